"""What the gateway knows of one object, and what it would do with a read of it now: `forebay explain`. Reads and changes nothing."""

from collections.abc import Sequence
from typing import Final

import msgspec

from storage.assembly import Components
from storage.freshness import Standing, may_serve_stale, standing
from storage.policy import Freshness, FreshnessMode
from storage.reasons import Answer, Reason
from storage.records import DirtyEntry, ObjectRecord, ObjectState
from storage.types import ByteRange, Extent, ObjectName

RANGES_MAX: Final = 20
"""So many ranges are told; an object may have thousands."""


class ObjectReport(msgspec.Struct, frozen=True):
    """What is known of one object. Times are wall-clock seconds, 0 where there is none.

    Attributes:
        read_as: The name it is read under, of one under a published target; "" where that is its own.
        state: `unknown`, `absent` (at the origin, by its word), `clean`, `dirty`, `quarantined` or `deleted` (acknowledged, and not
            at the origin yet).
        version_id: The gateway's own number of the version.
        origin_version_id: The origin's, in a versioned bucket.
        ranges: What is here, ascending; of `range_count` the first ones.
        is_being_fetched: A fill of it is under way at its first missing byte.
        confirmed_at_s: When the origin last confirmed it.
        is_fresh: Whether a read now would be answered without asking the origin, where its bytes are here.
        why_fresh: Why, or why not.
        fresh_until_s: 0 where it is not, and where it is without end.
        covers_until_s: So long it covers for a failing origin; -1 without end, 0 not at all.
        acknowledged_at_s: Of a change that is not at the origin; `pending` is how its flush stands.
        why_missing: Why bytes are missing, as far as that can be told; "" where none are.
        pinned_bytes: What of it is pinned; `why_not_pinned` is "" where that is all that should be.
        last_answer: The last read that was no plain hit, since the start.
    """

    place: str
    now_s: float
    read_as: str = ""
    state: str = "unknown"
    size: int = 0
    etag: str = ""
    origin_etag: str = ""
    version_id: int = 0
    origin_version_id: str = ""
    last_modified_s: int = 0
    cached_bytes: int = 0
    ranges: tuple[tuple[int, int], ...] = ()
    range_count: int = 0
    is_being_fetched: bool = False
    confirmed_at_s: float = 0.0
    is_fresh: bool = False
    why_fresh: str = ""
    fresh_until_s: float = 0.0
    covers_until_s: float = 0.0
    acknowledged_at_s: float = 0.0
    pending: str = ""
    why_missing: str = ""
    pinned_bytes: int = 0
    why_not_pinned: str = ""
    last_answer: Answer | None = None


def object_report(
    components: Components, name: ObjectName, place: str, last_answer: Answer | None, now_s: float
) -> ObjectReport:
    """Tell of an object.

    Args:
        components: Of the engine.
        name: The name that it is read under.
        place: As it was asked for.
        last_answer: The last read of it that was no plain hit.
        now_s: Wall time.
    """
    read_as = "" if str(name) == place else str(name)
    report = ObjectReport(place, now_s, read_as, last_answer=last_answer)
    record = components.holdings.record(name)
    entry = components.dirty_rows.newest(name)
    if entry is not None:
        report = _pending(components, name, entry, report)
    if entry is not None and entry.is_tombstone:
        return msgspec.structs.replace(
            report, state="deleted", is_fresh=True, why_fresh="its delete was acknowledged here"
        )
    absence = components.reader.absence(name) if record is None else None
    if absence is not None:
        return msgspec.structs.replace(
            report,
            state="absent",
            confirmed_at_s=absence.asked_at_s,
            is_fresh=True,
            why_fresh="the origin said so within negative_ttl",
            fresh_until_s=absence.until_s,
        )
    if record is None:
        return msgspec.structs.replace(report, why_missing=_why_unknown(last_answer))
    return _of_version(components, name, record, report)


def _pending(
    components: Components, name: ObjectName, entry: DirtyEntry, report: ObjectReport
) -> ObjectReport:
    state = components.planner.state_of(name)
    reason = components.planner.reason_of(name) or components.planner.suspension_of(name.bucket)
    return msgspec.structs.replace(
        report,
        acknowledged_at_s=entry.acknowledged_at_s,
        pending=": ".join(filter(None, ("" if state is None else state.value, reason))),
    )


def _of_version(
    components: Components, name: ObjectName, record: ObjectRecord, report: ObjectReport
) -> ObjectReport:
    freshness, now_s, trusted_epoch, doubted_at_s = components.reader.circumstances(name)
    stands = standing(record, freshness, now_s, trusted_epoch, doubted_at_s)
    is_covering = may_serve_stale(record, freshness, now_s, trusted_epoch, doubted_at_s)
    held = components.holdings.held(name, record, ByteRange(0, record.size))
    extents = () if held is None else held.extents
    if held is not None:
        held.pin.release()
    ranges = _ranges(extents)
    pinned, why_not_pinned = components.reclaim.pinned(name, extents)
    cached = sum(extent.stop - extent.start for extent in extents)
    missing_at = ranges[0][1] if ranges and not ranges[0][0] else 0
    is_being_fetched = cached < record.size and components.supply.fill_at(record, missing_at) is not None
    origin = record.origin
    return msgspec.structs.replace(
        report,
        state=record.state.name.lower(),
        size=record.size,
        etag=record.etag,
        origin_etag="" if origin is None else origin.etag,
        version_id=record.version_id,
        origin_version_id="" if origin is None else origin.version_id,
        last_modified_s=record.last_modified_s,
        cached_bytes=cached,
        ranges=tuple(ranges[:RANGES_MAX]),
        range_count=len(ranges),
        is_being_fetched=is_being_fetched,
        confirmed_at_s=record.validated.wall_s if record.state is ObjectState.CLEAN else 0.0,
        is_fresh=stands.is_fresh,
        why_fresh=stands.why,
        fresh_until_s=stands.until_s,
        covers_until_s=_covers_until_s(record, freshness, stands) if is_covering else 0.0,
        why_missing=_why_missing(components, record, cached, report.last_answer),
        pinned_bytes=pinned,
        why_not_pinned=why_not_pinned,
    )


def _ranges(extents: Sequence[Extent]) -> list[tuple[int, int]]:
    """Join extents that lie behind each other in the object."""
    ranges: list[tuple[int, int]] = []
    for extent in extents:
        if ranges and ranges[-1][1] == extent.start:
            ranges[-1] = (ranges[-1][0], extent.stop)
        else:
            ranges.append((extent.start, extent.stop))
    return ranges


def _covers_until_s(record: ObjectRecord, freshness: Freshness, stands: Standing) -> float:
    if record.state is not ObjectState.CLEAN or freshness.mode is FreshnessMode.IMMUTABLE:
        return -1.0
    assert freshness.mode is FreshnessMode.TTL, f"{stands} covers for nothing"
    return record.validated.wall_s + freshness.ttl_s + freshness.stale_s


_OUTSIDE: Final = (Reason.TOO_LARGE, Reason.NO_ROOM, Reason.NOT_ADMITTED, Reason.NOT_KEPT)


def _why_unknown(last: Answer | None) -> str:
    if last is None:
        return "nobody has read it here since the start, or what was known of it was dropped"
    return "what was known of it was dropped since: it changed, was deleted, or was written past the cache"


def _why_missing(components: Components, record: ObjectRecord, cached: int, last: Answer | None) -> str:
    if cached == record.size:
        return ""
    if record.size - cached > components.supply.keep_bytes_max:
        return "one read of what is missing is too large to be kept"
    kept_out = next((reason for reason in _OUTSIDE if last is not None and reason in last.reason), None)
    if kept_out is not None:
        return f"the last read was not kept: {kept_out}"
    if cached:
        return "these bytes were not read, or were reclaimed"
    return "only its metadata was asked for, or its bytes were reclaimed"
