"""How an engine is put together: its settings, the adapters it stands on, and its components wired to each other.

Nothing is decided and nothing runs here. `engine.py` opens the directory, calls `assemble`, and owns what comes of it.
"""

import random
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from storage.absent_keys import AbsentKeys
from storage.applier import Applier
from storage.backlog import Backlog
from storage.clock import Clock
from storage.commit import Commit
from storage.compaction import Compaction
from storage.condition_probe import ConditionProbe
from storage.conditional_completes import ConditionalCompletes, ConditionalCompletesParts
from storage.conditional_writes import ConditionalWrites
from storage.conflicts import Conflicts, ConflictsParts
from storage.covered_lister import CoveredLister
from storage.dirty_rows import DirtyRows
from storage.early_flush import EarlyFlushPlanner, EarlyFlushSettings, may_travel
from storage.early_flusher import EarlyFlusher, EarlyFlusherParts
from storage.eviction import EvictionPolicy
from storage.facts_table import FactsTable
from storage.filesystem import Filesystem
from storage.flush import FlushPlanner
from storage.flush_attempts import Attempts, AttemptsParts
from storage.flush_events import FlushSettings
from storage.flusher import Flusher, FlusherParts
from storage.generations import Generations
from storage.gittins_policy import PINNED_SHARE_MAX, GittinsPolicy
from storage.guarded import GuardedSends
from storage.hidden_writes import HiddenWrites
from storage.holdings import Holdings
from storage.intake import HeldBodies, Inlet
from storage.keyqueue import KeyQueue
from storage.late_landings import LateLandings
from storage.listed_pages import ListedPages
from storage.lister import Lister
from storage.origin.admission import Limiter
from storage.origin.client import OriginClient
from storage.origin.control import ControlLane
from storage.origin.facts import FactsSource
from storage.origin_reads import OriginReads, OriginReadsParts
from storage.origin_uploads import OriginUploads, OriginUploadsParts
from storage.outgoing import Outgoing
from storage.passing import Passing, PassingParts
from storage.pin_survey import PinSurvey
from storage.pointers import Pointers
from storage.policy import PolicyTable
from storage.published_lister import PublishedLister
from storage.publisher import Publisher, PublisherParts
from storage.readahead import ReadaheadSettings
from storage.reader import Reader, ReaderParts
from storage.reclaim import Reclaim, ReclaimParts
from storage.recovery import IndexHome, Recovered
from storage.relay import Relay, RelayParts
from storage.removal_probe import RemovalProbe
from storage.rows import read_extents
from storage.scrubber import Scrubber, ScrubParts
from storage.segment_files import segment_bytes_of
from storage.segments import SegmentStore
from storage.sender import Sender, SenderParts
from storage.state import State
from storage.stats import Stats
from storage.supply import Supply, SupplyParts
from storage.survivors import Survivors
from storage.through import Through
from storage.types import EXTENT_BYTES_MAX, Checksum, ObjectName
from storage.unreadable import Unreadable
from storage.uploads import ObjectChecksums, Uploads, UploadsParts
from storage.uploads_lister import UploadsLister
from storage.versions import Versions
from storage.workers import StartingWorkers, Workers
from storage.writer import Writer, WriterParts

T = TypeVar("T")

ROOM_SEGMENTS: Final = 4
"""So many segments are kept free, so that every stream can open one while reclaim goes on."""

OPEN_SEGMENTS: Final = 4
"""What is pinned leaves so many segments more to all that is open, or full and not pinned."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """The bounds of an engine.

    Attributes:
        origin: The origin's endpoint; the cache directory belongs to it.
        cache_bytes: All segments together.
        dirty_bytes_limit: Above it new writes wait `dirty_wait_s`, then go through.
        pinned_bytes_limit: No more is pinned; `pinned_bytes_max` says what of that the cache can hold.
        upload_ttl_s: An open upload that is older is aborted.
        scrub_bytes_per_s: The pace of the background scrub; 0 is none.
    """

    origin: str
    cache_bytes: int
    dirty_bytes_limit: int
    pinned_bytes_limit: int = 0
    dirty_wait_s: float = 10.0
    upload_ttl_s: float = 7 * 24 * 3600.0
    scrub_bytes_per_s: int = 0
    flush: FlushSettings = field(default_factory=FlushSettings)
    early_flush: EarlyFlushSettings = field(default_factory=EarlyFlushSettings)
    readahead: ReadaheadSettings = field(default_factory=ReadaheadSettings)

    @property
    def segment_bytes(self) -> int:
        """The size of a segment: whole MiB, so that blocks fill it."""
        return segment_bytes_of(self.cache_bytes)

    def new_policy(self) -> GittinsPolicy:
        """Make the eviction policy for a cache of this size, which knows nothing yet."""
        return GittinsPolicy(
            capacity_bytes=self.cache_bytes,
            segment_bytes=self.segment_bytes,
            pinned_bytes_max=pinned_bytes_max(self),
        )


@dataclass(frozen=True, slots=True)
class EngineWorkers:
    """Where blocking work runs. `commit` and `index` have one thread each: they keep order."""

    commit: Workers
    index: StartingWorkers
    pool: Workers


@dataclass(frozen=True, slots=True)
class EngineParts:
    """The adapters that an engine is made of, and its components that others may replace.

    Attributes:
        adapters: What the engine closes at its end: the origin's lanes.
        policies: Gives the table in force; a reload replaces it.
        object_checksums: What checksums a completed upload has; the S3 protocol's business, so it comes from the gateway.
    """

    settings: EngineSettings
    filesystem: Filesystem
    index_home: IndexHome
    origin: OriginClient
    control: ControlLane
    facts: FactsSource
    limiter: Limiter
    clock: Clock
    rng: random.Random
    workers: EngineWorkers
    policies: Callable[[], PolicyTable]
    object_checksums: Callable[[tuple[Checksum, ...], int | None], ObjectChecksums]
    adapters: AsyncExitStack
    eviction: EvictionPolicy
    stats: Stats = field(default_factory=Stats)


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
    state = State()
    state.load(recovered.segments, recovered.facts, recovered.open_uploads, recovered.dirty)
    applier = Applier(recovered.index, parts.workers.index, state.absorb, on_failure=on_failure)
    applier.applied_sequence = applier.durable_sequence = recovered.applied_sequence
    commit = Commit(
        segments=segments,
        journal=recovered.journal,
        applier=applier,
        workers=parts.workers.commit,
        next_sequence=recovered.next_sequence,
        take_file_id=recovered.ids.take_segment_id,
        on_failure=on_failure,
    )
    facts = FactsTable(state, parts.facts, commit, parts.clock)
    landings = LateLandings()

    def doubted_at_s(name: ObjectName) -> float:
        return max(facts.doubted_at_s(name.bucket), landings.doubted_at_s(name))

    generations, queue = Generations(), KeyQueue()
    outgoing = Outgoing(segments, parts.workers.pool)
    origin_uploads = OriginUploads(
        OriginUploadsParts(
            parts.origin, commit, parts.clock, parts.rng, parts.settings.flush.origin_timeout_s
        )
    )
    sender = Sender(
        SenderParts(
            parts.origin,
            outgoing,
            origin_uploads,
            lambda record: read_extents(recovered.index, record),
        )
    )
    planner = _planner(parts, recovered)
    unreadable = Unreadable(parts.stats)
    early_planner = EarlyFlushPlanner(parts.settings.early_flush)
    dirty_rows = DirtyRows(recovered.index, state)
    conflicts = Conflicts(
        ConflictsParts(
            rows=dirty_rows,
            origin=parts.origin,
            policies=parts.policies,
            clock=parts.clock,
            epoch=recovered.epoch,
            trusted_epoch=recovered.trusted_epoch,
            doubted_at_s=doubted_at_s,
        )
    )
    probe = ConditionProbe(parts.origin, parts.policies, parts.rng)
    guarded = GuardedSends(conflicts, sender, parts.origin, probe)
    flusher = Flusher(
        FlusherParts(
            planner=planner,
            attempts=Attempts(
                AttemptsParts(dirty_rows, guarded, parts.origin, facts, parts.rng, parts.stats, unreadable)
            ),
            rows=dirty_rows,
            sender=sender,
            policies=parts.policies,
            uploads=origin_uploads,
            commit=commit,
            applier=applier,
            queue=queue,
            generations=generations,
            clock=parts.clock,
            rng=parts.rng,
            stats=parts.stats,
            epoch=recovered.epoch,
        )
    )
    early = EarlyFlusher(
        EarlyFlusherParts(
            planner=early_planner,
            index=recovered.index,
            outgoing=outgoing,
            uploads=origin_uploads,
            clock=parts.clock,
            rng=parts.rng,
            stats=parts.stats,
            may_send=lambda name: may_travel(
                parts.policies().find(name), suspension=planner.suspension_of(name.bucket)
            ),
            is_pressed=planner.is_pressed,
        )
    )
    pointers = Pointers(
        origin=parts.origin,
        commit=commit,
        clock=parts.clock,
        policies=parts.policies,
        journaled=recovered.pointers,
    )
    through = Through(
        queue=queue,
        generations=generations,
        applier=applier,
        commit=commit,
        flusher=flusher,
        policies=parts.policies,
        check_writable=pointers.check_writable,
        landings=landings,
        wall_s=parts.clock.wall_s,
    )
    pins = PinSurvey(recovered.index, state, parts.eviction, parts.policies, parts.workers.pool, parts.clock)
    reclaim = Reclaim(
        ReclaimParts(
            segments=segments,
            state=state,
            applier=applier,
            policy=parts.eviction,
            workers=parts.workers.pool,
            clock=parts.clock,
            stats=parts.stats,
            room_bytes_min=room_bytes_min(parts.settings),
            policies=parts.policies,
            survivors=Survivors(recovered.index, segments, applier, parts.workers.pool),
            pins=pins,
        )
    )
    holdings = Holdings(recovered.index, segments)
    supply = Supply(
        SupplyParts(
            holdings=holdings,
            segments=segments,
            applier=applier,
            origin=parts.origin,
            policies=parts.policies,
            clock=parts.clock,
            workers=parts.workers.pool,
            eviction=parts.eviction,
            stats=parts.stats,
            make_room=reclaim.make_room,
            room_bytes_min=room_bytes_min(parts.settings),
            piece_bytes=min(parts.settings.segment_bytes, EXTENT_BYTES_MAX),
            keep_bytes_max=parts.settings.cache_bytes // 2,
            unreadable=unreadable,
            readahead=parts.settings.readahead.fitted(parts.settings.cache_bytes),
        )
    )
    held = HeldBodies()
    conditional = ConditionalWrites(parts.origin, dirty_rows.version)
    lister = Lister(
        recovered.index,
        ListedPages(
            parts.origin,
            parts.policies,
            generations,
            parts.clock,
            lambda bucket: (
                float("inf")
                if state.failure
                else max(facts.doubted_at_s(bucket), landings.bucket_doubted_at_s(bucket))
            ),
            facts.drops,
        ),
        state,
        parts.workers.pool,
    )
    passing = Passing(
        PassingParts(
            origin=parts.origin,
            control=parts.control,
            through=through,
            conditional=conditional,
            flusher=flusher,
            facts=facts,
            held=held,
            workers=parts.workers.pool,
            wall_s=parts.clock.wall_s,
        )
    )
    inlet = Inlet(segments, parts.workers.pool, reclaim, parts.clock, on_failure)
    backlog = Backlog(
        state,
        dirty_bytes_limit=parts.settings.dirty_bytes_limit,
        wait_s_max=parts.settings.dirty_wait_s,
    )
    absent = AbsentKeys(
        parts.policies,
        generations,
        parts.clock,
        parts.stats,
        lambda name: float("inf") if state.failure else doubted_at_s(name),
        facts.drops,
    )
    reads = OriginReads(
        OriginReadsParts(
            index=recovered.index,
            applier=applier,
            origin=parts.origin,
            generations=generations,
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
            doubted_at_s=doubted_at_s,
            absent=absent,
            has_object_lock=lambda bucket: bucket in state.facts and state.facts[bucket].has_object_lock,
        )
    )
    return Components(
        state=state,
        segments=segments,
        applier=applier,
        commit=commit,
        generations=generations,
        queue=queue,
        facts=facts,
        dirty_rows=dirty_rows,
        conflicts=conflicts,
        probe=probe,
        unreadable=unreadable,
        planner=planner,
        flusher=flusher,
        origin_uploads=origin_uploads,
        early_planner=early_planner,
        early=early,
        through=through,
        backlog=backlog,
        reclaim=reclaim,
        pins=pins,
        holdings=holdings,
        supply=supply,
        reader=reader,
        versions=Versions(reader, facts, flusher),
        writer=Writer(
            WriterParts(
                inlet=inlet,
                commit=commit,
                applier=applier,
                backlog=backlog,
                queue=queue,
                generations=generations,
                facts=facts,
                conflicts=conflicts,
                conditional=conditional,
                through=through,
                origin=parts.origin,
                policies=parts.policies,
                ids=recovered.ids,
                clock=parts.clock,
                workers=parts.workers.pool,
                held=held,
                outgoing=outgoing,
                check_writable=pointers.check_writable,
                epoch=recovered.epoch,
            )
        ),
        uploads=Uploads(
            UploadsParts(
                index=recovered.index,
                inlet=inlet,
                commit=commit,
                backlog=backlog,
                queue=queue,
                generations=generations,
                facts=facts,
                conflicts=conflicts,
                conditional=ConditionalCompletes(
                    ConditionalCompletesParts(
                        index=recovered.index,
                        through=through,
                        conditional=conditional,
                        sender=sender,
                        outgoing=outgoing,
                        uploads=origin_uploads,
                        early=early,
                        commit=commit,
                        clock=parts.clock,
                    )
                ),
                policies=parts.policies,
                ids=recovered.ids,
                clock=parts.clock,
                workers=parts.workers.pool,
                instance_id=recovered.layout.instance_id.hex()[:8],
                epoch=recovered.epoch,
                draw_bits=parts.rng.getrandbits,
                check_writable=pointers.check_writable,
                through=through,
                dirty_rows=dirty_rows,
            )
        ),
        uploads_lister=UploadsLister(parts.origin, flusher.origin_upload_ids),
        lister=lister,
        passing=passing,
        relay=Relay(
            RelayParts(
                origin=parts.origin,
                removals=RemovalProbe(parts.origin, parts.rng),
                through=through,
                flusher=flusher,
                facts=facts,
                generations=generations,
                held=held,
                wall_s=parts.clock.wall_s,
            )
        ),
        landings=landings,
        pointers=pointers,
        published_lister=PublishedLister(
            CoveredLister(lister, generations, parts.policies, parts.clock), pointers
        ),
        publisher=Publisher(
            PublisherParts(
                pointers=pointers,
                lister=lister,
                origin=parts.origin,
                passing=passing,
                through=through,
                queue=queue,
                waits=flusher.waits,
                remaining=planner.barrier_remaining,
                clock=parts.clock,
                draw_bits=parts.rng.getrandbits,
            )
        ),
        compaction=Compaction(
            filesystem=parts.filesystem,
            index=recovered.index,
            journal=recovered.journal,
            segments=segments,
            commit=commit,
            applier=applier,
            workers=parts.workers.pool,
            take_segment_id=recovered.ids.take_segment_id,
            instance_id=recovered.layout.instance_id,
        ),
        scrubber=Scrubber(
            ScrubParts(
                index=recovered.index,
                segments=segments,
                applier=applier,
                origin=parts.origin,
                state=state,
                workers=parts.workers.pool,
                clock=parts.clock,
                stats=parts.stats,
                bytes_per_s=parts.settings.scrub_bytes_per_s,
            )
        ),
        hidden_writes=HiddenWrites(recovered.index, state, pointers, parts.workers.pool),
    )


def _planner(parts: EngineParts, recovered: Recovered) -> FlushPlanner:
    """After an unclean stop, attempts of the process before may land until the origin's time-out has passed."""
    unclean_until_s = 0.0
    if recovered.is_unclean:
        unclean_until_s = parts.clock.monotonic_s() + parts.settings.flush.origin_timeout_s
    return FlushPlanner(parts.settings.flush, unclean_until_s=unclean_until_s)


def room_bytes_min(settings: EngineSettings) -> int:
    """Say how much of the cache is kept free, so that streams find room while reclaim goes on."""
    return min(ROOM_SEGMENTS * settings.segment_bytes, settings.cache_bytes // 8)


def pinned_bytes_max(settings: EngineSettings) -> int:
    """Say how much may be pinned: no more than fits beside what is kept free, segments that are open, and dead bytes among pins."""
    spare_bytes = room_bytes_min(settings) + OPEN_SEGMENTS * settings.segment_bytes
    held_bytes = int(PINNED_SHARE_MAX * (settings.cache_bytes - spare_bytes))
    return max(0, min(settings.pinned_bytes_limit, held_bytes))
