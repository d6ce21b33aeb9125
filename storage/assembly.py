"""How an engine is put together: the components of its roads, wired to each other over a recovered directory.

Nothing is decided and nothing runs here. `life.py` opens the directory, calls `assemble`, and owns what comes of it.
"""

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol, TypeVar

from storage.applier import Applier
from storage.backlog import Backlog
from storage.commit import Commit
from storage.compaction import Compaction
from storage.condition_probe import ConditionProbe
from storage.conflicts import Conflicts
from storage.covered_lister import CoveredLister
from storage.dirty_rows import DirtyRows
from storage.early_flush import EarlyFlushPlanner
from storage.early_flusher import EarlyFlusher
from storage.engine_parts import EngineParts
from storage.facts_table import FactsTable
from storage.flush import FlushPlanner
from storage.flush_road import lay_flush_road
from storage.flusher import Flusher
from storage.generations import Generations
from storage.ground import Ground, lay_ground
from storage.hidden_writes import HiddenWrites
from storage.holdings import Holdings
from storage.keyqueue import KeyQueue
from storage.late_landings import LateLandings
from storage.lister import Lister
from storage.origin_uploads import OriginUploads
from storage.passing import Passing
from storage.pin_survey import PinSurvey
from storage.pointers import Pointers
from storage.published_lister import PublishedLister
from storage.publisher import Publisher, PublisherParts
from storage.read_road import lay_read_road
from storage.reader import Reader
from storage.reclaim import Reclaim
from storage.recovery import Recovered
from storage.relay import Relay
from storage.scrubber import Scrubber, ScrubParts
from storage.segments import SegmentStore
from storage.state import State
from storage.supply import Supply
from storage.through import Through
from storage.unreadable import Unreadable
from storage.uploads import Uploads
from storage.uploads_lister import UploadsLister
from storage.versions import Versions
from storage.write_road import lay_write_road
from storage.writer import Writer

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Components:
    """The parts of one engine, wired."""

    state: State
    segments: SegmentStore
    applier: Applier
    commit: Commit
    generations: Generations
    queue: KeyQueue
    facts: FactsTable
    dirty_rows: DirtyRows
    conflicts: Conflicts
    probe: ConditionProbe
    unreadable: Unreadable
    planner: FlushPlanner
    flusher: Flusher
    origin_uploads: OriginUploads
    early_planner: EarlyFlushPlanner
    early: EarlyFlusher
    through: Through
    backlog: Backlog
    reclaim: Reclaim
    pins: PinSurvey
    holdings: Holdings
    supply: Supply
    reader: Reader
    versions: Versions
    writer: Writer
    uploads: Uploads
    uploads_lister: UploadsLister
    lister: Lister
    passing: Passing
    relay: Relay
    landings: LateLandings
    compaction: Compaction
    pointers: Pointers
    published_lister: PublishedLister
    publisher: Publisher
    scrubber: Scrubber
    hidden_writes: HiddenWrites


class Reading(Protocol):
    """Reads, and begins anew where the directory was re-opened meanwhile; `Engine` says how."""

    async def __call__(
        self, read: Callable[[Components], Coroutine[object, object, T]], *, needs_index: bool
    ) -> T:
        """Give what `read` gives."""
        ...


def assemble(
    parts: EngineParts, recovered: Recovered, segments: SegmentStore, on_failure: Callable[[str], None]
) -> Components:
    """Wire the components over a recovered directory. Nothing runs yet."""
    ground = lay_ground(parts, recovered, segments, on_failure)
    flush = lay_flush_road(ground)
    reads = lay_read_road(ground, flush)
    writes = lay_write_road(ground, flush)
    return Components(
        state=ground.state,
        segments=segments,
        applier=ground.applier,
        commit=ground.commit,
        generations=ground.generations,
        queue=ground.queue,
        facts=ground.facts,
        dirty_rows=ground.dirty_rows,
        landings=ground.landings,
        reclaim=ground.reclaim,
        pins=ground.pins,
        unreadable=flush.unreadable,
        conflicts=flush.conflicts,
        probe=flush.probe,
        planner=flush.planner,
        flusher=flush.flusher,
        origin_uploads=flush.origin_uploads,
        early_planner=flush.early_planner,
        early=flush.early,
        holdings=reads.holdings,
        supply=reads.supply,
        reader=reads.reader,
        versions=reads.versions,
        lister=reads.lister,
        uploads_lister=UploadsLister(parts.origin, flush.flusher.origin_upload_ids),
        published_lister=PublishedLister(
            CoveredLister(reads.lister, ground.generations, parts.policies, parts.clock), writes.pointers
        ),
        pointers=writes.pointers,
        through=writes.through,
        backlog=writes.backlog,
        writer=writes.writer,
        uploads=writes.uploads,
        passing=writes.passing,
        relay=writes.relay,
        publisher=Publisher(
            PublisherParts(
                pointers=writes.pointers,
                lister=reads.lister,
                origin=parts.origin,
                passing=writes.passing,
                through=writes.through,
                queue=ground.queue,
                waits=flush.flusher.waits,
                remaining=flush.planner.barrier_remaining,
                clock=parts.clock,
                draw_bits=parts.rng.getrandbits,
            )
        ),
        compaction=_compaction(ground),
        scrubber=_scrubber(ground),
        hidden_writes=HiddenWrites(recovered.index, ground.state, writes.pointers, parts.workers.pool),
    )


def _compaction(ground: Ground) -> Compaction:
    recovered = ground.recovered
    return Compaction(
        filesystem=ground.parts.filesystem,
        index=recovered.index,
        journal=recovered.journal,
        segments=ground.segments,
        commit=ground.commit,
        applier=ground.applier,
        workers=ground.parts.workers.pool,
        take_segment_id=recovered.ids.take_segment_id,
        instance_id=recovered.layout.instance_id,
    )


def _scrubber(ground: Ground) -> Scrubber:
    parts = ground.parts
    return Scrubber(
        ScrubParts(
            index=ground.recovered.index,
            segments=ground.segments,
            applier=ground.applier,
            origin=parts.origin,
            state=ground.state,
            workers=parts.workers.pool,
            clock=parts.clock,
            stats=parts.stats,
            bytes_per_s=parts.settings.scrub_bytes_per_s,
        )
    )
