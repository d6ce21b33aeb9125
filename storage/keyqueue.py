r"""One bounded queue per key: who may work on an object, in what order, beside whom.

Three kinds of work change a key. Each takes its place when it asks and gets its turn when nothing ahead of it, running or
waiting, is of a kind it has to wait for:

    behind \ ahead   WRITE_BACK   FLUSH   THROUGH
    WRITE_BACK       waits        passes  waits
    FLUSH            waits        waits   waits
    THROUGH          waits        waits   waits

A write-back is a local commit. It never waits for a flush, or the origin's latency would become the client's; the flush that
is overtaken sends a state that was the newest when it began, and the next flush sends what replaced it. It waits for a
passed-through write ahead of it, whose effect at the origin came first. A passed-through operation must find the key as the
origin has it, so it waits for all and holds up all.

A passed-through operation whose key is dirty needs a flush, which would wait behind it for ever. `Place.let_flush_pass` lets
flushes of the key, and nothing else, go ahead while the operation keeps its place.

Only keys with somebody in their queue take memory. All state changes are synchronous, between awaits.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import IntFlag
from typing import Final, Self

from storage.errors import OverloadedError
from storage.types import ObjectName

WAITING_PER_KEY_MAX: Final = 128
"""So many may wait for one key; the next is refused. Flushes do not count: there is one a key, and nobody to refuse."""


class Turn(IntFlag):
    """What kind of work a place in the queue is for."""

    WRITE_BACK = 1
    FLUSH = 2
    THROUGH = 4


WAITS_FOR: Final = {
    Turn.WRITE_BACK: Turn.WRITE_BACK | Turn.THROUGH,
    Turn.FLUSH: Turn.WRITE_BACK | Turn.FLUSH | Turn.THROUGH,
    Turn.THROUGH: Turn.WRITE_BACK | Turn.FLUSH | Turn.THROUGH,
}
"""Behind which kinds each kind waits: the table above."""

_BITS: Final = {kind: (int(kind), int(waits_for)) for kind, waits_for in WAITS_FOR.items()}


class Place:
    """A place in the queue of one key; an async context manager that is entered when the turn has come.

    The place is taken when the context is entered, not when the object is made. Cancellation while waiting gives the place up.
    """

    __slots__ = (
        "_is_running",
        "_queue",
        "_wakeup",
        "bit",
        "has_left",
        "kind",
        "lets_flush_pass",
        "name",
        "waits_for",
    )

    def __init__(self, queue: "KeyQueue", name: ObjectName, kind: Turn) -> None:
        self._queue = queue
        self._is_running = False
        self._wakeup: asyncio.Future[None] | None = None
        self.name = name
        self.kind = kind
        # As plain numbers: a flag of the enum is made anew by each of its operators.
        self.bit, self.waits_for = _BITS[kind]
        self.lets_flush_pass = False
        # Made by whoever waits for this place to be given up.
        self.has_left: asyncio.Event | None = None

    async def __aenter__(self) -> Self:
        self._queue.take(self)
        if not self._is_running:
            await self._wait()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._queue.leave(self)

    def __repr__(self) -> str:
        return f"<{self.kind.name} of {self.name}: {'running' if self._is_running else 'waiting'}>"

    @property
    def is_running(self) -> bool:
        """Whether the turn has come."""
        return self._is_running

    def run(self) -> None:
        """Say that the turn has come; the queue's part."""
        self._is_running = True
        if self._wakeup is not None and not self._wakeup.done():
            self._wakeup.set_result(None)

    @asynccontextmanager
    async def let_flush_pass(self) -> AsyncIterator[None]:
        """Let flushes of the key go ahead of this running operation while the block lasts.

        Writes behind stay where they are, so the key cannot get dirty again meanwhile. The block's end waits for a flush
        that is still running; after it the operation is alone again.
        """
        assert self._is_running, f"{self!r} has no turn to lend"
        assert self.kind is Turn.THROUGH, f"{self!r} does not hold up flushes"
        self.lets_flush_pass = True
        self._queue.regrant(self.name)
        try:
            yield
        finally:
            self.lets_flush_pass = False
            await self._queue.flushes_ended(self.name)

    async def _wait(self) -> None:
        self._wakeup = asyncio.get_running_loop().create_future()
        try:
            await self._wakeup
        except asyncio.CancelledError:
            # Perhaps the turn came in the same step; either way nobody is going to use it.
            self._queue.leave(self)
            raise
        finally:
            self._wakeup = None


class KeyQueue:
    """The queues of all keys.

    Args:
        waiting_max: How many may wait for one key before the next is refused.
    """

    def __init__(self, waiting_max: int = WAITING_PER_KEY_MAX) -> None:
        self._waiting_max = waiting_max
        self._places: dict[ObjectName, list[Place]] = {}
        self._flush_waiters: dict[ObjectName, asyncio.Future[None]] = {}

    def __len__(self) -> int:
        """Count the keys with somebody in their queue."""
        return len(self._places)

    def __repr__(self) -> str:
        places = [place for queue in self._places.values() for place in queue]
        running = sum(place.is_running for place in places)
        return f"<KeyQueue: {len(self._places)} keys, {running} running, {len(places) - running} waiting>"

    def turn(self, name: ObjectName, kind: Turn) -> Place:
        """Give a place to wait in: `async with queue.turn(name, Turn.WRITE_BACK): ...`.

        Raises:
            OverloadedError: On entering, where too many wait for this key already.
        """
        return Place(self, name, kind)

    def is_idle(self, name: ObjectName) -> bool:
        """Whether nobody works on the key or waits for it."""
        return name not in self._places

    def take(self, place: Place) -> None:
        """Put a place at the end of its queue; it runs at once where nothing ahead stands in its way."""
        places = self._places.get(place.name, [])
        waiting = sum(not other.is_running and other.kind is not Turn.FLUSH for other in places)
        if waiting >= self._waiting_max and place.kind is not Turn.FLUSH:
            raise OverloadedError(f"{waiting} operations wait for one key", retry_after_s=1.0)
        assert place not in places, f"{place!r} is in the queue already"
        places.append(place)
        self._places[place.name] = places
        self.regrant(place.name)

    def leave(self, place: Place) -> None:
        """Give a place up, running or not, and let those behind it go on."""
        places = self._places[place.name]
        places.remove(place)
        if place.has_left is not None:
            place.has_left.set()
        if not places:
            del self._places[place.name]
        self.regrant(place.name)
        waiter = self._flush_waiters.get(place.name)
        if waiter is not None and not waiter.done() and not self._has_running_flush(place.name):
            waiter.set_result(None)

    def regrant(self, name: ObjectName) -> None:
        """Give the turn to all whose way is free, in order."""
        places = self._places.get(name, [])
        if places and places[0].lets_flush_pass:
            self._grant_passing_flush(places)
            return
        ahead = 0
        for place in places:
            if not place.is_running and not place.waits_for & ahead:
                place.run()
            ahead |= place.bit

    async def writes_left(self, bucket: str, prefix: str) -> None:
        """Return when all have left who work on keys under a prefix now, or wait for them; flushes do not count.

        Whoever comes meanwhile is not waited for.
        """
        writes = [
            place
            for name, places in self._places.items()
            if name.bucket == bucket and name.key.startswith(prefix)
            for place in places
            if place.kind is not Turn.FLUSH
        ]
        for place in writes:
            if place.has_left is None:
                place.has_left = asyncio.Event()
        for place in writes:
            assert place.has_left is not None, "made above"
            await place.has_left.wait()

    async def flushes_ended(self, name: ObjectName) -> None:
        """Return when no flush of the key runs; one that waits does not count."""
        if not self._has_running_flush(name):
            return
        assert name not in self._flush_waiters, f"two wait for the flushes of {name}"
        waiter = self._flush_waiters[name] = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            del self._flush_waiters[name]

    def _has_running_flush(self, name: ObjectName) -> bool:
        return any(place.is_running and place.kind is Turn.FLUSH for place in self._places.get(name, ()))

    def _grant_passing_flush(self, places: list[Place]) -> None:
        """Give the turn to the first flush, past all who wait: the lender at the head waits for it, and they for the lender."""
        flushes = [place for place in places if place.kind is Turn.FLUSH]
        if flushes and not any(place.is_running for place in flushes):
            places.remove(flushes[0])
            # Ahead of those it overtook, so that they wait for it even if the lender gives up meanwhile.
            places.insert(1, flushes[0])
            flushes[0].run()
