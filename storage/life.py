"""One life of an engine: a recovered directory, the components over it, and their tasks, until a failure of the disk ends it.

    open ─> run ─> fail ─> cut the writes ─> give up writing ─> (another life is opened) ─> retire
                └─> stop

After a failed sync or index write nobody knows what is on the disk, so a life that failed never writes again; the engine opens the
next one through recovery, in the same process. What happens to what is under way:

- A write is cut, at the failure: its client gets 503, and the object is in its old or its new state. What it sent to the origin
  may land yet, as after a crash; the next life's flush looks by HEAD for as long.
- The flush and its confirmations end when recovery begins. Barriers go on in the next life, under their numbers. A publish is
  cut off, and says so to whoever asks.
- Reads go on: from the index, nothing clean trusted unasked, and keeping nothing of what they bring.
- Once the next life is there, bodies that were begun go on by what they hold: pinned segments, each block checked anew, and
  the origin for the rest, uncached. Openings that wait for the origin are begun anew there.

Nothing of a life touches the directory once `give_up_writing` has returned, but for reading.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from storage.assembly import Components, assemble
from storage.engine_parts import EngineParts
from storage.errors import DiskFullError, UnknownOutcomeError
from storage.filesystem import disk_error
from storage.hidden_writes import LOOK_EVERY_S
from storage.index_keeper import IndexKeeper
from storage.recovery import Recovered, RecoveryParts, nothing_is_pinned, recover
from storage.segments import SegmentLimits, SegmentStore
from storage.types import MIB
from storage.upkeep import CHECKPOINT_EVERY_S, COMPACT_EVERY_S, EXPIRE_EVERY_S, TURN_S, Duty, Upkeep
from storage.workers import CountedWorkers

log = logging.getLogger(__name__)

DISK_RESERVE_BYTES: Final = 256 * MIB
DISK_RESERVE_SHARE: Final = 0.02


class Life:
    """A set of components that lives and ends together. Made by `open`; `start` makes it work."""

    def __init__(
        self, parts: EngineParts, pool: CountedWorkers, recovered: Recovered, segments: SegmentStore
    ) -> None:
        self.parts = parts
        self._pool = pool
        self.recovered = recovered
        self.components: Final[Components] = assemble(parts, recovered, segments, self._fail)
        self.has_failed: Final = asyncio.Event()
        self.has_given_up = False
        self.is_index_damaged = False
        self._is_stopped = False
        self._writes: set[asyncio.Timeout] = set()
        self._no_writes = asyncio.Event()
        self._no_writes.set()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        components = self.components
        components.unreadable.load(recovered.dirty)
        components.state.listeners += [
            components.flusher.absorb,
            components.origin_uploads.absorb,
            components.early.absorb,
            components.reclaim.absorb,
            components.unreadable.absorb,
        ]

    @classmethod
    async def open(cls, parts: EngineParts, keeper: IndexKeeper, before: "Life | None" = None) -> "Life":
        """Recover the cache directory; where there was a life before, which has given up writing, under its lock.

        Raises:
            LockedError, FormatError, DamagedError: As `recovery.recover`.
            DiskFullError: Cache and reserve do not fit on the volume.
            StorageError: The disk refused.
        """
        pool = CountedWorkers(parts.workers.pool)
        parts = replace(parts, workers=replace(parts.workers, pool=pool))
        limits = await parts.workers.commit.run(_segment_limits, parts)
        recovered = await parts.workers.commit.run(
            recover,
            RecoveryParts(
                filesystem=parts.filesystem,
                index_home=keeper,
                origin=parts.settings.origin,
                fresh_instance_id=parts.rng.randbytes(16),
                lock=None if before is None else before.recovered.lock,
                acknowledged_sequence=0 if before is None else before.components.applier.applied_sequence,
                is_pinned=nothing_is_pinned if before is None else before.components.segments.is_pinned,
            ),
        )
        keeper.show()
        recovered = replace(recovered, index=keeper)
        predecessor = None if before is None else before.components.segments
        try:
            segments, orphans = await parts.workers.pool.run(
                _adopt_segments, parts, limits, recovered, predecessor
            )
            for segment_id in orphans:
                parts.eviction.removed(segment_id)
            life = cls(parts, pool, recovered, segments)
        except BaseException:
            recovered.journal.close()
            if before is None:
                recovered.lock.close()
            raise
        keeper.know_dirty(lambda name: life.components.planner.state_of(name) is not None)
        return life

    def take_over(self, before: "Life", *, is_draining: bool) -> None:
        """Go on where a life ended that has given up writing; `load` comes first, nothing is awaited between."""
        self.components.facts.take_over(before.components.facts)
        self.components.landings.take_over(before.components.landings)
        self.components.flusher.take_over(before.components.flusher, is_draining=is_draining)
        self.components.origin_uploads.take_over(before.components.origin_uploads)
        self.components.publisher.take_over(before.components.publisher)
        self.components.pointers.take_over(before.components.pointers)

    def load(self) -> None:
        """Take over the flush queue, before anything can be committed: the planner sees each key's changes in their order."""
        components, recovered = self.components, self.recovered
        components.flusher.load(recovered.dirty)
        components.origin_uploads.load(recovered.origin_uploads, recovered.named_origin_uploads)
        components.early.load(recovered.uploads)

    def start(self, tasks: asyncio.TaskGroup, count_levels: Callable[[], None]) -> None:
        """Do the background work in tasks of a group until `stop`; a bug in any part of it ends the group."""
        components = self.components
        self._tasks = (
            tasks.create_task(components.commit.run(), name="commit"),
            tasks.create_task(components.flusher.run(), name="flusher"),
            tasks.create_task(components.reclaim.run(), name="reclaim"),
            tasks.create_task(self.upkeep(count_levels).run(), name="upkeep"),
        )

    async def stop(self) -> None:
        """End the background work; what waits for a commit gets an error."""
        self._is_stopped = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- failing -----------------------------------------------------------------------------------------------------

    def _fail(self, failure: str) -> None:
        """Learn why nothing can be written any more; called once or more, also for what a stop has cut."""
        if not self.components.state.failure and not self._is_stopped:
            log.critical("writes are refused until the cache directory is re-opened: %s", failure)
            self.components.state.failure = failure
            self.has_failed.set()

    def see_damage(self, damage: str) -> None:
        """Learn that a row of the index cannot be read: the next life has a new one, filled from the journal."""
        self.is_index_damaged = True
        self._fail(damage)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Components]:
        """Let a client's write work in the block, until the disk fails.

        Raises:
            UnknownOutcomeError: It has failed, before the block or in it.
        """
        if self.components.state.failure:
            raise UnknownOutcomeError(self.components.state.failure)
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._writes.add(scope)
                self._no_writes.clear()
                try:
                    yield self.components
                finally:
                    self._writes.discard(scope)
                    if not self._writes:
                        self._no_writes.set()
        except TimeoutError as error:
            if not scope.expired():
                raise
            raise UnknownOutcomeError(self.components.state.failure) from error

    def cut_writes(self) -> None:
        """End the clients' writes where they are."""
        now_s = asyncio.get_running_loop().time()
        for scope in self._writes:
            if not scope.expired():
                scope.reschedule(now_s)

    async def give_up_writing(self) -> None:
        """End all that may write to the directory, or that acts for a write at the origin. Reads go on. Once is enough.

        On return no task and no thread of this life changes anything in the directory, and none will. Where it raises it is to be
        called again.
        """
        components, workers = self.components, self.parts.workers
        self.cut_writes()
        components.segments.retire()
        await components.supply.end_fills()
        await components.publisher.close()
        await components.early.close(0.0)
        await components.flusher.close(ends_waits=False)
        await components.origin_uploads.close()
        await components.facts.close()
        await self._no_writes.wait()
        await self.stop()
        components.applier.refuse(components.state.failure)
        await components.applier.changes_ended()
        # What was cancelled may still run in its thread: bodies' writes, a compaction's file, a group, a batch.
        await workers.index.run(self._pool.wait_for_calls)
        await workers.commit.run(self.recovered.journal.close)
        self.has_given_up = True

    async def retire(self) -> None:
        """Open nothing more, since there is another life: who waits for the origin begins anew there."""
        self.components.supply.retire()
        await self.components.pointers.close()
        await self.components.reader.close()

    def upkeep(self, count_levels: Callable[[], None]) -> Upkeep:
        """Give what is to be done from time to time."""
        components, settings = self.components, self.parts.settings

        async def count() -> None:
            count_levels()

        return Upkeep(
            self.parts.clock,
            (
                Duty("reserve ids", TURN_S, self.reserve_ids),
                Duty("count levels", TURN_S, count, needs_writes=False),
                Duty("checkpoint", CHECKPOINT_EVERY_S, components.applier.checkpoint),
                Duty(
                    "expire uploads",
                    EXPIRE_EVERY_S,
                    lambda: components.uploads.expire(upload_ttl_s=settings.upload_ttl_s),
                ),
                Duty(
                    "look for hidden writes", LOOK_EVERY_S, components.hidden_writes.look, needs_writes=False
                ),
                Duty("compact the journal", COMPACT_EVERY_S, components.compaction.run_if_due),
                Duty("look up pins", TURN_S, components.pins.turn),
                *((Duty("scrub", TURN_S, components.scrubber.turn),) if settings.scrub_bytes_per_s else ()),
            ),
            lambda: not components.state.failure,
        )

    async def reserve_ids(self) -> None:
        """Commit the next reservation of ids where the present one runs low."""
        ids = self.recovered.ids
        if ids.is_running_low:
            reservation = ids.reservation()
            await self.components.commit.commit(reservation)
            ids.adopt(reservation)


def _segment_limits(parts: EngineParts) -> SegmentLimits:
    """Look whether cache and reserve fit on the volume. Blocks."""
    try:
        total_bytes = parts.filesystem.total_bytes()
    except OSError as error:
        raise disk_error(error, "ask the volume for its size") from error
    reserve_bytes = disk_reserve_bytes(total_bytes)
    settings = parts.settings
    if settings.cache_bytes + reserve_bytes > total_bytes:
        raise DiskFullError(
            f"cache_size {settings.cache_bytes} and a reserve of {reserve_bytes} bytes do not fit on a volume "
            f"of {total_bytes} bytes"
        )
    return SegmentLimits(settings.segment_bytes, settings.cache_bytes, disk_reserve_bytes=reserve_bytes)


def _adopt_segments(
    parts: EngineParts, limits: SegmentLimits, recovered: Recovered, predecessor: SegmentStore | None
) -> tuple[SegmentStore, tuple[int, ...]]:
    """Take over the segment files; name those that no row names, which reclaim unlinks. Blocks."""
    segments = SegmentStore(parts.filesystem, limits, recovered.ids.take_segment_id, predecessor)
    for segment_id, path in recovered.journal_files:
        segments.register_journal(segment_id, path, is_own=segment_id == recovered.journal.segment_id)
    recovered.journal.on_file = lambda segment_id, path: segments.register_journal(
        segment_id, path, is_own=True
    )
    adoption = segments.adopt([row.segment_id for row in recovered.segments])
    return segments, adoption.orphans


def disk_reserve_bytes(total_bytes: int) -> int:
    """Say how much of a volume is kept for journal and index: 2 % or 256 MiB, never more than an eighth."""
    return min(max(DISK_RESERVE_BYTES, int(DISK_RESERVE_SHARE * total_bytes)), total_bytes // 8)
