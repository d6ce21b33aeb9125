"""Pass an operation on a key through to the origin, so that its effect falls between the writes around it.

    turn (exclusive) -> flush what is dirty of the key -> [operation at the origin] -> forget what is cached

Writes that come meanwhile wait behind the turn. What the origin said of the key to anybody before or during the
operation is not stored any more (`Generations`), and the cached version is forgotten after it, so the next read asks
the origin. Where policy calls the key immutable nobody would ask, so there `forgotten` is committed before the
operation: even a crash in between cannot leave the old version trusted. So it is for a version that the operation names.

An operation that ends without an answer, cancelled or timed out, may still take effect after the turn has gone to the
next write. The flusher is told, and looks whether the next state that it sends of the key is the one that stays; and what is read
of the key meanwhile is not trusted for longer than that read (`storage/late_landings.py`).
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

from storage.applier import Applier
from storage.cached import ForgetClean
from storage.commit import Commit
from storage.errors import OriginError, QuarantinedError
from storage.generations import Generations
from storage.keyqueue import KeyQueue, Place, Turn
from storage.late_landings import LateLandings
from storage.policy import FreshnessMode, PolicyTable
from storage.records import FORMAT, DirtyEntry, Discarded, Forgotten
from storage.types import NULL_VERSION, ObjectName


class FlushDoor(Protocol):
    """What passing through needs of the flusher."""

    def dirty_entry(self, name: ObjectName) -> DirtyEntry | None:
        """Give the key's newest change that is not at the origin."""
        ...

    async def flush_key(self, name: ObjectName) -> None:
        """Send the key's newest change now; return when the journal has the confirmation, or it is quarantined.

        Raises:
            OriginError: The origin does not take it at the moment.
        """
        ...

    def quarantine_reason(self, name: ObjectName) -> str:
        """Say why the origin refused the key's newest change for good; "" where it did not."""
        ...

    async def outlast_strays(self, name: ObjectName) -> None:
        """Wait until nothing that was sent of a key, and then refused or given up, can land any more."""
        ...

    def note_stray(self, name: ObjectName) -> None:
        """Learn that something was sent under the key that may yet take effect."""
        ...


class Passed:
    """What an operation leaves behind.

    Attributes:
        keep: Set by the block to put something into the cache; run after the old version is forgotten, still within
        the turn.
        is_unknown: An attempt may still land. Set by the block for one before the attempt that succeeded.
        is_untouched: Nothing was sent that could change the key, so that what is cached of it stays.
        changed_version_id: Set by the block where the origin says which version it changed; that is forgotten too.
    """

    def __init__(self) -> None:
        self.keep: Callable[[], Awaitable[None]] | None = None
        self.is_unknown = False
        self.is_untouched = False
        self.changed_version_id = ""

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Let a block look at what is there; where it raises, the operation ends without having touched the key."""
        self.is_untouched = True
        yield
        self.is_untouched = False


class Through:
    """Gives passed-through operations their turn."""

    def __init__(  # noqa: PLR0913 - the parts it works with
        self,
        *,
        queue: KeyQueue,
        generations: Generations,
        applier: Applier,
        commit: Commit,
        flusher: FlushDoor,
        policies: Callable[[], PolicyTable],
        check_writable: Callable[[ObjectName], None],
        landings: LateLandings,
        wall_s: Callable[[], float],
    ) -> None:
        self._queue = queue
        self._generations = generations
        self._applier = applier
        self._commit = commit
        self._flusher = flusher
        self._policies = policies
        self._check_writable = check_writable
        self._landings = landings
        self._wall_s = wall_s

    @asynccontextmanager
    async def operation(
        self, name: ObjectName, *, replaces: bool = False, is_own: bool = False
    ) -> AsyncIterator[Passed]:
        """Hold the key alone, flushed, while the block works on it at the origin.

        Args:
            name: The object, or the version of it that the block works on: then that is forgotten as well.
            replaces: The block unconditionally replaces or deletes the object, so a quarantined change of it need not
            be
                at the origin first: once the block has succeeded it is discarded.
            is_own: The block is part of a publish, which writes where clients may not.

        Raises:
            ReadOnlyError: The key became one that no client writes while the turn was waited for; nothing was done.
            QuarantinedError: The origin refused the key's newest change, and the block does not replace it.
            OriginError: The flush failed.
            UnknownOutcomeError: The disk does not take what must be written down; what the block did stands.
            EngineClosedError: The gateway is stopping; nothing was done.
        """
        async with self._queue.turn(name.plain, Turn.THROUGH) as place:
            # What the origin is told must be forgotten here afterwards.
            self._applier.check_open()
            quarantined = await self._flush_first(place, name.plain, replaces=replaces)
            if not is_own:
                self._check_writable(name.plain)
            with self._generations.writing(name):
                await self._distrust(name)
                passed = Passed()
                try:
                    yield passed
                except (OriginError, asyncio.CancelledError) as error:
                    passed.is_unknown |= not isinstance(error, OriginError) or error.outcome_unknown
                    raise
                finally:
                    if passed.is_unknown:
                        self._flusher.note_stray(name.plain)
                        self._landings.note(name, self._wall_s())
                    if not passed.is_untouched:
                        told = name.at_version(passed.changed_version_id)
                        # An answer that was asked for before this one came may show what was before it; between here and the end
                        # of `writing` it must not be stored in the place that is made free.
                        self._generations.bump(name)
                        self._generations.bump(told)
                        # Also after a failure: a request without an answer may have been carried out.
                        await self._applier.change(ForgetClean(name.bucket, name.key, name.version_id))
                        if told.version_id:
                            await self._applier.change(ForgetClean(name.bucket, name.key, told.version_id))
                if quarantined is not None:
                    await self._commit.commit(Discarded(FORMAT, quarantined.sequence))
                if passed.keep is not None and not passed.is_unknown:
                    await passed.keep()

    def has_unsent(self, name: ObjectName) -> bool:
        """Whether a change of the key waits for the origin, which has not refused it."""
        return self._flusher.dirty_entry(name) is not None and not self._flusher.quarantine_reason(name)

    async def settle(self, name: ObjectName) -> None:
        """Bring the key's newest change, which was acknowledged to nobody yet, to the origin.

        Raises:
            QuarantinedError: The origin refused it.
            OriginError: The origin does not take it at the moment; it stays dirty.
        """
        if self._flusher.dirty_entry(name) is not None:
            await self._flusher.flush_key(name)
        reason = self._flusher.quarantine_reason(name)
        if reason:
            raise quarantined_error(name, reason)

    async def _distrust(self, name: ObjectName) -> None:
        """Commit that what nobody would validate is forgotten, so that not even a crash leaves it trusted."""
        if name.version_id and name.version_id != NULL_VERSION:
            await self._commit.commit(Forgotten(FORMAT, name.shelf, name.key))
        if self._policies().find(name).freshness.mode is FreshnessMode.IMMUTABLE:
            await self._commit.commit(Forgotten(FORMAT, name.bucket, name.key))

    async def _flush_first(self, place: Place, name: ObjectName, *, replaces: bool) -> DirtyEntry | None:
        """Bring the key's change to the origin; give it where it is quarantined and will be replaced.

        Returns after the origin's time-out at the latest where an attempt of a change that went no further may yet land.
        """
        if self._flusher.dirty_entry(name) is not None and not self._flusher.quarantine_reason(name):
            async with place.let_flush_pass():
                await self._flusher.flush_key(name)
        entry = self._flusher.dirty_entry(name)
        if entry is not None and not replaces:
            raise quarantined_error(name, self._flusher.quarantine_reason(name))
        # An attempt that had no answer would take the place of what the block does, and nobody could send that again.
        await self._flusher.outlast_strays(name)
        return entry


def quarantined_error(name: ObjectName, reason: str) -> QuarantinedError:
    """Say why an operation cannot pass: the origin does not have the key's newest change and will not take it."""
    return QuarantinedError(f"{name} holds a change that the origin refused: {reason}")
