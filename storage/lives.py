"""The lives of an engine, one after the other: which one works now, and who waits while the next one is opened.

When a life (`storage/life.py`) fails of the disk, its writes are cut, and the next one is opened through recovery, again and again until
that succeeds. The directory's lock is held all the while. Reads go on in the life that failed, and wait only while the index is
opened anew; what was begun there and failed of it begins anew in the next one.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Final, TypeVar

from storage.assembly import Components
from storage.engine_parts import EngineParts
from storage.errors import EngineClosedError, StorageError, UnknownOutcomeError
from storage.index import Index
from storage.index_keeper import IndexKeeper
from storage.life import Life
from storage.records import FORMAT, EpochEnded
from storage.recovery import probe_disk
from storage.reopen_pace import ReopenPace
from storage.reports import update_levels
from storage.rows import Effects
from storage.types import ObjectName

log = logging.getLogger(__name__)

FLUSH_GRACE_S: Final = 5.0
"""So long a stop waits for flushes under way, so that none is left that may land later."""

LIVES_MAX: Final = 10
"""So often an opening for reading begins anew because the directory was re-opened meanwhile."""

T = TypeVar("T")

OpenLife = Callable[[EngineParts, IndexKeeper, Life | None], Awaitable[Life]]
"""Opens a life after another, or the first; see `Life.open`."""


class Lives:
    """The life that works, and how it is replaced.

    Attributes:
        life: The one that works.
        is_closed: Whether the engine has begun to stop.
        is_draining: Whether it flushes all and accepts no more.
        has_ended: Set once the tasks have ended.
    """

    def __init__(self, parts: EngineParts, keeper: IndexKeeper, life: Life, open_life: OpenLife) -> None:
        self._parts = parts
        self._keeper = keeper
        self._open_life = open_life
        self.life = life
        self.is_closed = False
        self.is_draining = False
        self.has_ended: Final = asyncio.Event()
        self._has_run = False
        self._is_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        # Not set while an attempt to re-open is under way, which a stop waits for; nor, reads waiting, while recovery is.
        self._is_settled = asyncio.Event()
        self._is_settled.set()
        self._is_readable = asyncio.Event()
        self._is_readable.set()
        self._reopening = ReopenPace()
        self._loop = asyncio.get_running_loop()
        keeper.on_damage = self._note_damage
        life.components.state.listeners.append(self._see_levels)

    @property
    def components(self) -> Components:
        """The components of the life that works."""
        return self.life.components

    def reopening_text(self) -> str:
        """Say how the re-opening goes; "" where none is under way."""
        return self._reopening.text(self._parts.clock.monotonic_s())

    # --- work --------------------------------------------------------------------------------------------------------

    def check_open(self) -> Components:
        """Give the components of the life that works.

        Raises:
            EngineClosedError: The gateway is stopping.
        """
        if self.is_closed or self.is_draining:
            raise EngineClosedError("the gateway is stopping", retry_after_s=5.0)
        return self.life.components

    @asynccontextmanager
    async def writing(self, name: ObjectName | None = None) -> AsyncIterator[Components]:
        """Let a write work in the block, on `name` if it is of one object; a failure of the disk cuts it.

        Raises:
            ReadOnlyError: The object lies under a published target, or has a manifest's name.
            EngineClosedError: The gateway is stopping.
            UnknownOutcomeError: The disk has failed, before or in the block, and the directory is not open again.
        """
        components = self.check_open()
        if name is not None:
            components.pointers.check_writable(name)
        try:
            async with self.life.write() as components:
                yield components
        except UnknownOutcomeError as error:
            retry_after_s = self._reopening.retry_after_s(self._parts.clock.monotonic_s())
            raise UnknownOutcomeError(str(error), retry_after_s=retry_after_s) from error

    async def reading(
        self, read: Callable[[Components], Coroutine[object, object, T]], *, needs_index: bool
    ) -> T:
        """Read, and begin anew where the directory was re-opened meanwhile: what cut the read says nothing of the object.

        Raises:
            EngineClosedError: The gateway is stopping.
            StorageError: What the read failed with in the life that it began in, and that goes on.
        """
        for _ in range(LIVES_MAX):
            if needs_index and not self._is_readable.is_set():
                await self._is_readable.wait()
            if self.is_closed:
                break
            life = self.life
            try:
                return await read(life.components)
            except StorageError:
                if life is self.life:
                    raise
        raise EngineClosedError("the gateway is stopping", retry_after_s=5.0)

    # --- the tasks ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Do the background work until `close`; a bug in any part of it ends all."""
        self.life.load()
        self._has_run = True
        try:
            async with asyncio.TaskGroup() as tasks:
                self.life.start(tasks, self._count_levels)
                # Now rather than at the first turn, so that nobody reads that nothing is pending after a crash.
                self._count_levels()
                reopening = tasks.create_task(self._reopen_when_failed(tasks), name="re-open")
                self._is_ready.set()
                await self._stopping.wait()
                reopening.cancel()
                await self.life.stop()
        finally:
            self.has_ended.set()

    async def ready(self) -> None:
        """Return when writes are accepted."""
        await self._is_ready.wait()

    async def close(self) -> None:
        """Stop in order: no new call, fills and flushes cut, the last commits done, the index durable, the lock let go.

        Makes `run` return. The flush queue is in the journal; the next start goes on with it. `is_closed` is set already.
        """
        assert self.is_closed, "no new call may come while the components are closed"
        await self._is_settled.wait()
        components, workers = self.components, self._parts.workers
        await components.publisher.close()
        await components.pointers.close()
        await components.reader.close()
        await components.early.close(FLUSH_GRACE_S)
        has_settled = await components.flusher.close(FLUSH_GRACE_S)
        await components.origin_uploads.close()
        await components.facts.close()
        try:
            await self._end_epoch(has_settled=has_settled)
        except StorageError as error:
            log.warning("the stop is unclean: %s", error)
        self._stopping.set()
        if self._has_run:
            await self.has_ended.wait()
        await self._parts.adapters.aclose()
        await workers.commit.run(self.life.recovered.journal.close)
        await workers.index.run(self._keeper.release)
        components.segments.close()
        self.life.recovered.lock.close()
        workers.commit.close()
        workers.index.close()

    async def _end_epoch(self, *, has_settled: bool) -> None:
        """Let the next start trust what is cached: only where nothing is under way, and all of it is durable before.

        Nor is a stop clean while something that was sent may yet land at the origin (not `has_settled`): the next start
        then looks by HEAD after each first flush of a key.
        Changes to clean rows are in no journal. Were one lost behind the mark, an old version would pass for a valid one.
        """
        components = self.components
        is_quiet = not len(components.queue)
        await components.applier.end_changes()
        if not self._is_ready.is_set() or components.state.failure:
            return
        if not is_quiet or not has_settled:
            log.warning("the stop is unclean: operations are under way")
            return
        await components.applier.checkpoint()
        await components.commit.commit(
            EpochEnded(FORMAT, self.life.recovered.epoch, self.life.recovered.trusted_epoch)
        )

    def _count_levels(self) -> None:
        update_levels(self._parts, self.components)

    def _see_levels(self, _: Effects) -> None:
        """Keep the levels in step with each batch, so that a scrape right after an acknowledgement shows it."""
        self._count_levels()

    def _note_damage(self, index: Index, damage: str) -> None:
        """Hear of a row of an index that cannot be read, from whichever thread has met it."""
        # A loop that has ended needs no other index.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._see_damage, index, damage)

    def _see_damage(self, index: Index, damage: str) -> None:
        if self._keeper.shows(index):
            self.life.see_damage(damage)

    # --- re-opening --------------------------------------------------------------------------------------------------

    async def _reopen_when_failed(self, tasks: asyncio.TaskGroup) -> None:
        """Replace each life that fails by the next one, tried until it is there; a stop ends it between two attempts."""
        while True:
            life = self.life
            await life.has_failed.wait()
            life.cut_writes()
            self._reopening.begin(self._parts.clock.monotonic_s())
            while self.life is life:
                clock = self._parts.clock
                await clock.sleep(self._reopening.wait_s(self._parts.rng.random(), clock.monotonic_s()))
                if self.is_closed:
                    return
                self._is_settled.clear()
                try:
                    await self._try_to_reopen(life, tasks)
                finally:
                    self._is_settled.set()

    async def _try_to_reopen(self, life: Life, tasks: asyncio.TaskGroup) -> None:
        try:
            await self._parts.workers.commit.run(probe_disk, self._parts.filesystem)
            if not life.has_given_up:
                await life.give_up_writing()
                if life.is_index_damaged:
                    self._keeper.condemn()
                elif life.components.applier.has_index_failed:
                    self._keeper.distrust()
            opened = await self._open_next(life)
        except (StorageError, OSError) as error:
            self._reopening.failed(str(error))
            self._parts.stats.reopenings["failed"] += 1
            log.warning("the cache directory cannot be re-opened yet: %s", error)
            return
        self._succeed(life, opened, tasks)
        self._is_readable.set()
        await life.retire()

    async def _open_next(self, life: Life) -> Life:
        """Open the next life; readers wait from here until that has failed, or it has begun."""
        self._is_readable.clear()
        self._keeper.hide()
        try:
            return await self._open_life(self._parts, self._keeper, life)
        except BaseException:
            self._keeper.end_attempt()
            self._is_readable.set()
            raise

    def _succeed(self, life: Life, opened: Life, tasks: asyncio.TaskGroup) -> None:
        """Let the next life begin; nothing is awaited here."""
        opened.load()
        opened.take_over(life, is_draining=self.is_draining)
        opened.components.state.listeners.append(self._see_levels)
        self.life = opened
        opened.start(tasks, self._count_levels)
        self._count_levels()
        self._reopening.succeeded(self._parts.clock.monotonic_s())
        self._parts.stats.reopenings["done"] += 1
        log.warning("the cache directory was re-opened, epoch %d: writes go on", opened.recovered.epoch)
