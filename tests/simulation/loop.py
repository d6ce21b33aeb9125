"""An event loop on virtual time that runs one ready callback a turn, drawn by a seed.

Whatever is ready may go next, so a seed is one order of events among all that concurrency allows; time passes only when
nothing is ready, so an hour costs nothing. It stands on CPython's private `_ready`, `_scheduled` and `_run_once`
(3.11): `test_same_seed_same_trace` says when that changes.
"""

import asyncio
import contextvars
import heapq
import itertools
import random
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from collections import deque

T = TypeVar("T")

WALL_START_S: Final = 1_800_000_000.0


class StuckError(Exception):
    """Nothing is ready and nothing is waited for but what will never come."""


class NumberedTask(asyncio.Task[T]):
    """A task whose hash is its number, so that sets of tasks have one order in every process."""

    def __init__(
        self,
        number: int,
        work: Coroutine[Any, Any, T] | Generator[Any, None, T],
        *,
        loop: asyncio.AbstractEventLoop,
        name: str | None = None,
        context: contextvars.Context | None = None,
    ) -> None:
        self.number = number  # before the base class registers the task in a set
        super().__init__(work, loop=loop, name=name, context=context)

    def __hash__(self) -> int:
        return self.number

    def __eq__(self, other: object) -> bool:
        return self is other


class DrawnLoop(asyncio.BaseEventLoop):
    """The loop. Sockets, threads and signals do not exist on it.

    Attributes:
        turns: Callbacks run so far: the simulation's own count of events.
    """

    _ready: "deque[asyncio.Handle]"
    _scheduled: list[asyncio.TimerHandle]

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._draws = random.Random(seed)
        self._now_s = 0.0
        self._numbers = itertools.count(1)
        self.turns = 0
        self.set_task_factory(self._numbered)

    def time(self) -> float:
        """Virtual seconds since the start."""
        return self._now_s

    def _numbered(
        self,
        _: asyncio.AbstractEventLoop,
        work: Coroutine[Any, Any, T] | Generator[Any, None, T],
        context: contextvars.Context | None = None,
    ) -> "asyncio.Future[T]":
        return NumberedTask(next(self._numbers), work, loop=self, context=context)

    def _run_once(self) -> None:
        if not self._ready:
            self._pass_time()
        ready = self._ready
        at = self._draws.randrange(len(ready)) if len(ready) > 1 else 0
        handle = ready[at]
        del ready[at]
        self.turns += 1
        if not handle.cancelled():
            handle._run()

    def _pass_time(self) -> None:
        """Let time go on to the next timer, and make ready all that is due then."""
        scheduled = self._scheduled
        while scheduled and scheduled[0].cancelled():
            heapq.heappop(scheduled)
        if not scheduled:
            raise StuckError(f"nothing will ever happen after {self._now_s} s")
        self._now_s = max(self._now_s, scheduled[0].when())
        while scheduled and scheduled[0].when() <= self._now_s:
            timer = heapq.heappop(scheduled)
            if not timer.cancelled():
                self._ready.append(timer)

    def _process_events(self, event_list: object) -> None:
        raise NotImplementedError(f"no sockets: {event_list}")

    def _write_to_self(self) -> None:
        """Nobody sleeps in a selector."""


class VirtualClock:
    """`storage.clock.Clock` on a loop's virtual time. Attribute `ahead_s`: the wall clock is set ahead."""

    def __init__(self, loop: DrawnLoop) -> None:
        self._loop = loop
        self.ahead_s = 0.0

    def monotonic_s(self) -> float:
        """Read the loop's time."""
        return self._loop.time()

    def wall_s(self) -> float:
        """Read the loop's time as a date."""
        return WALL_START_S + self._loop.time() + self.ahead_s

    async def sleep(self, wait_s: float) -> None:
        """Sleep on the loop."""
        await asyncio.sleep(max(0.0, wait_s))


class QueueWorkers:
    """`storage.workers.Workers` without threads: calls take virtual time, one after the other, then run in the loop.

    Args:
        draws: How long each takes: half of them nothing.
        at_call: Called before and after each call; where it raises, the call's effect is what it is.
    """

    def __init__(self, draws: random.Random, at_call: Callable[[], None]) -> None:
        self._draws = draws
        self._at_call = at_call
        self._turn = asyncio.Lock()

    async def run(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Run `call` when its time has come."""
        async with self._turn:
            if self._draws.random() < 0.5:
                await asyncio.sleep(self._draws.random() * 0.05)
            self._at_call()
            try:
                return call(*args, **kwargs)
            finally:
                self._at_call()

    def start(self, call: Callable[..., T], /, *args: Any, **kwargs: Any) -> "asyncio.Future[T]":
        """Begin to run `call` when its time has come."""
        return asyncio.get_running_loop().create_task(self.run(call, *args, **kwargs))

    def close(self) -> None:
        """Nothing runs."""
