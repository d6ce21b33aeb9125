"""What the operator is shown: pending changes, barriers, the state of the engine."""

import itertools
from collections.abc import Callable
from typing import Final

import msgspec

from storage import keys
from storage.assembly import Components
from storage.dirty_rows import DirtyRows
from storage.engine_parts import EngineParts
from storage.errors import StorageError
from storage.family import Family
from storage.flush import FlushPlanner
from storage.flush_events import BarrierBlocked, Remaining, Scope
from storage.flush_waits import Barrier
from storage.records import DirtyEntry
from storage.recovery import Recovered
from storage.requests import BarrierReport, PendingLine, PendingPage, PointerLine, StatusReport
from storage.rows import (
    RowSource,
    decode_dirty,
    decoded,
)
from storage.types import ObjectName
from storage.warm_jobs import WarmReport

QUARANTINED_SHOWN_MAX: Final = 1000
AWAY_SHOWN_MAX: Final = 10
ROWS_MAX: Final = 2000
"""Rows of the flush queue that one step of the event loop looks at: some milliseconds."""

DIRTY_STOP: Final = b"\xff" * 9
"""Behind every row of the flush queue, whose keys are sequences of eight bytes."""


def pending_page(
    index: RowSource, planner: FlushPlanner, scope: Scope, limit: int, after: int = 0
) -> PendingPage:
    """List up to `limit` dirty changes in scope behind sequence `after`, oldest first; quarantined ones are among them."""
    return _page(index, planner, lambda entry: ObjectName(entry.bucket, entry.key) in scope, limit, after)


def _page(
    index: RowSource, planner: FlushPlanner, is_wanted: Callable[[DirtyEntry], bool], limit: int, after: int
) -> PendingPage:
    """Look at ROWS_MAX rows of the flush queue at most, however few of them are wanted."""
    rows = index.scan(Family.DIRTY, keys.dirty_key(after + 1), DIRTY_STOP, ROWS_MAX if limit else 0)
    lines: list[PendingLine] = []
    reached = after
    for key, value in rows:
        entry = decoded(index, Family.DIRTY, key, value, decode_dirty)
        reached = entry.sequence
        if is_wanted(entry):
            lines.append(_line(entry, planner))
            if len(lines) == limit:
                return PendingPage(tuple(lines), reached)
    return PendingPage(tuple(lines), reached if len(rows) == ROWS_MAX else 0)


def quarantined_lines(rows: DirtyRows, planner: FlushPlanner, limit: int) -> tuple[PendingLine, ...]:
    """List up to `limit` changes that the origin refused for good, oldest quarantine first; reads no others."""
    entries = (rows.entry(sequence) for sequence in planner.quarantined(limit))
    return tuple(_line(entry, planner) for entry in entries if entry is not None)


def quarantined_page(
    index: RowSource, rows: DirtyRows, planner: FlushPlanner, scope: Scope, limit: int, after: int
) -> PendingPage:
    """List up to `limit` quarantined changes in scope behind sequence `after`, in the order of sequences.

    Where they are few, no others are looked at. Where they are many, the flush queue's rows are gone through by pages, since to sort
    all of them for each page would hold up the event loop.
    """
    known = planner.quarantined(ROWS_MAX + 1)
    if len(known) > ROWS_MAX:
        return _page(
            index,
            planner,
            lambda entry: (
                ObjectName(entry.bucket, entry.key) in scope and planner.is_quarantined(entry.sequence)
            ),
            limit,
            after,
        )
    entries = (rows.entry(sequence) for sequence in sorted(known) if sequence > after)
    in_scope = (e for e in entries if e is not None and ObjectName(e.bucket, e.key) in scope)
    lines = tuple(_line(entry, planner) for entry in itertools.islice(in_scope, limit))
    return PendingPage(lines, lines[-1].sequence if len(lines) == limit else 0)


def _line(entry: DirtyEntry, planner: FlushPlanner) -> PendingLine:
    """Describe a change as the planner knows it, whose word is newer than the row's."""
    name = ObjectName(entry.bucket, entry.key)
    state = planner.state_of(name)
    return PendingLine(
        entry.sequence,
        entry.bucket,
        entry.key,
        entry.size,
        entry.is_tombstone,
        entry.acknowledged_at_s,
        planner.attempts_of(name),
        "" if state is None else state.value,
        planner.reason_of(name) or planner.suspension_of(entry.bucket),
    )


def barrier_report(barrier: Barrier, planner: FlushPlanner, rows: DirtyRows) -> BarrierReport:
    """Say how far a barrier is, and of one that is blocked what is left."""
    outcome = barrier.outcome
    if outcome is None:
        remaining = planner.barrier_remaining(barrier.barrier_id)
        return BarrierReport(barrier.barrier_id, is_reached=False, total=barrier.total, remaining=remaining)
    if isinstance(outcome, BarrierBlocked):
        blocked = tuple(_blocked_line(one, planner, rows) for one in outcome.remaining)
        return BarrierReport(
            barrier.barrier_id,
            is_reached=False,
            total=barrier.total,
            remaining=outcome.count,
            blocked=blocked,
        )
    return BarrierReport(barrier.barrier_id, is_reached=True, total=barrier.total, remaining=0)


def _blocked_line(one: Remaining, planner: FlushPlanner, rows: DirtyRows) -> PendingLine:
    entry = rows.entry(one.sequence)
    if entry is not None:
        return msgspec.structs.replace(_line(entry, planner), state=one.state.value, reason=one.reason)
    # It was flushed, replaced or given up since the barrier ended; the report says how it was then.
    return PendingLine(
        sequence=one.sequence,
        bucket=one.name.bucket,
        key=one.name.key,
        size=0,
        is_tombstone=False,
        acknowledged_at_s=0.0,
        attempts=0,
        state=one.state.value,
        reason=one.reason,
    )


def status_report(
    parts: EngineParts,
    recovered: Recovered,
    components: Components,
    *,
    is_draining: bool,
    reopening: str = "",
    warm_jobs: tuple[WarmReport, ...] = (),
) -> StatusReport:
    """Say how the engine is, from what is in memory and the quarantined rows.

    `reopening` is how that stands, if it is due; `warm_jobs` are those that run.
    """
    flush = components.planner.status()
    stats, now_s = parts.stats, parts.clock.monotonic_s()
    oldest_at_s = flush.oldest_acknowledged_at_s
    counters = parts.origin.counters
    return StatusReport(
        instance_id=recovered.layout.instance_id.hex(),
        epoch=recovered.epoch,
        origin=recovered.layout.origin,
        cache_used_bytes=components.segments.used_bytes,
        cache_dirty_bytes=components.state.dirty_bytes,
        cache_capacity_bytes=parts.settings.cache_bytes,
        pending_objects=flush.pending_objects,
        pending_bytes=flush.pending_bytes,
        oldest_pending_s=0.0 if oldest_at_s is None else max(0.0, parts.clock.wall_s() - oldest_at_s),
        quarantined=_quarantined(components),
        suspended_buckets=tuple(
            (name, components.planner.suspension_of(name)) for name in flush.suspended_buckets
        ),
        open_uploads=components.state.open_uploads,
        is_writable=not components.state.failure,
        failure="; ".join(filter(None, (components.state.failure, reopening))),
        origin_requests=counters.requests_total,
        origin_throttled=parts.limiter.throttled_total,
        hit_ratio_requests=stats.hit_ratio_requests(now_s),
        hit_ratio_bytes=stats.hit_ratio_bytes(now_s),
        is_draining=is_draining,
        pointers=tuple(
            PointerLine(one.target.bucket, one.target.prefix, one.source, one.generation)
            for one in components.pointers.shown()
        ),
        unreadable=components.unreadable.lines(QUARANTINED_SHOWN_MAX),
        reopenings=stats.reopenings["done"],
        scrub_bytes_per_s=parts.settings.scrub_bytes_per_s,
        scrub_round_bytes=stats.scrub_round_bytes,
        scrub_done_at_s=stats.scrub_done_at_s,
        scrub_damaged_clean=stats.scrub_damaged["clean"],
        scrub_damaged_dirty=stats.scrub_damaged["dirty"],
        open_upload_bytes=components.early_planner.bytes_received,
        early_bytes=components.early_planner.bytes_at_origin,
        hidden=tuple((name.bucket, name.key) for name in components.hidden_writes.names),
        ignoring_conditions=components.probe.ignoring(),
        lost_before=sum(losses.total for losses in recovered.losses),
        degraded=degraded(parts, components),
        warm_jobs=warm_jobs,
    )


def degraded(parts: EngineParts, components: Components) -> tuple[str, ...]:
    """Say what keeps the engine from doing all its work, from what is in memory: an origin that is away, a disk that takes no writes."""
    away = (
        f"the origin has not answered for {away_s:.0f} s"
        + (f", asked for bucket {bucket}" if bucket else "")
        + ": what is cached is served, writes are kept"
        for bucket, away_s in itertools.islice(sorted(parts.limiter.away.items()), AWAY_SHOWN_MAX)
    )
    failure = components.state.failure
    return (*away, *((f"writes are refused: {failure}",) if failure else ()))


def _quarantined(components: Components) -> tuple[PendingLine, ...]:
    try:
        return quarantined_lines(components.dirty_rows, components.planner, QUARANTINED_SHOWN_MAX)
    except StorageError:
        # The rows cannot be read while the index is re-opened; all else can be told.
        return ()


def update_levels(parts: EngineParts, components: Components) -> None:
    """Bring the levels that telemetry shows up to date: from what is in memory, in microseconds."""
    stats, state, flush = parts.stats, components.state, components.planner.status()
    stats.cache_clean_bytes = state.live_bytes - state.dirty_bytes
    stats.cache_dirty_bytes = state.dirty_bytes
    stats.cache_capacity_bytes = parts.settings.cache_bytes
    stats.early_bytes = components.early_planner.bytes_at_origin
    stats.pending_objects = flush.pending_objects
    stats.pending_bytes = flush.pending_bytes
    stats.oldest_pending_at_s = flush.oldest_acknowledged_at_s or 0.0
    stats.quarantined_objects = flush.quarantined_objects
