"""The road of a read: what opens objects and brings what is missing of them, and what lists them. Wiring only."""

from dataclasses import dataclass

from storage.absent_keys import AbsentKeys
from storage.engine_parts import room_bytes_min
from storage.flush_road import FlushRoad
from storage.ground import Ground
from storage.holdings import Holdings
from storage.listed_pages import ListedPages
from storage.lister import Lister
from storage.origin_reads import OriginReads, OriginReadsParts
from storage.reader import Reader, ReaderParts
from storage.supply import Supply, SupplyParts
from storage.types import EXTENT_BYTES_MAX
from storage.versions import Versions


@dataclass(frozen=True, slots=True)
class ReadRoad:
    """The components of reads and listings."""

    holdings: Holdings
    supply: Supply
    reader: Reader
    versions: Versions
    lister: Lister


def lay_read_road(ground: Ground, flush: FlushRoad) -> ReadRoad:
    """Wire them. Nothing runs yet."""
    parts, recovered, state = ground.parts, ground.recovered, ground.state
    holdings = Holdings(recovered.index, ground.segments)
    supply = Supply(
        SupplyParts(
            holdings=holdings,
            segments=ground.segments,
            applier=ground.applier,
            origin=parts.origin,
            policies=parts.policies,
            clock=parts.clock,
            workers=parts.workers.pool,
            eviction=parts.eviction,
            stats=parts.stats,
            make_room=ground.reclaim.make_room,
            room_bytes_min=room_bytes_min(parts.settings),
            piece_bytes=min(parts.settings.segment_bytes, EXTENT_BYTES_MAX),
            keep_bytes_max=parts.settings.cache_bytes // 2,
            unreadable=flush.unreadable,
            readahead=parts.settings.readahead.fitted(parts.settings.cache_bytes),
        )
    )
    absent = AbsentKeys(
        parts.policies,
        ground.generations,
        parts.clock,
        parts.stats,
        lambda name: float("inf") if state.failure else ground.doubted_at_s(name),
        ground.facts.drops,
    )
    reads = OriginReads(
        OriginReadsParts(
            index=recovered.index,
            applier=ground.applier,
            origin=parts.origin,
            generations=ground.generations,
            ids=recovered.ids,
            clock=parts.clock,
            holdings=holdings,
            supply=supply,
            epoch=recovered.epoch,
            absent=absent,
        )
    )
    reader = Reader(
        ReaderParts(
            reads=reads,
            holdings=holdings,
            supply=supply,
            policies=parts.policies,
            clock=parts.clock,
            trusted_epoch=recovered.trusted_epoch,
            has_failed=lambda: bool(state.failure),
            doubted_at_s=ground.doubted_at_s,
            absent=absent,
            has_object_lock=lambda bucket: bucket in state.facts and state.facts[bucket].has_object_lock,
        )
    )
    return ReadRoad(
        holdings=holdings,
        supply=supply,
        reader=reader,
        versions=Versions(reader, ground.facts, flush.flusher),
        lister=_lister(ground),
    )


def _lister(ground: Ground) -> Lister:
    parts, state = ground.parts, ground.state
    pages = ListedPages(
        parts.origin,
        parts.policies,
        ground.generations,
        parts.clock,
        lambda bucket: (
            float("inf")
            if state.failure
            else max(ground.facts.doubted_at_s(bucket), ground.landings.bucket_doubted_at_s(bucket))
        ),
        ground.facts.drops,
    )
    return Lister(ground.recovered.index, pages, state, parts.workers.pool)
