"""One piece of work, however many want its result.

Who asks first starts the work, in a task that the flight owns; who asks while it runs joins. So the first asker's cancellation
hands over to those who joined, and only when nobody waits any more is the work itself cancelled. A failure goes to all who
wait at that moment and is not kept: the next to ask starts anew.

The owner ends what is left with `close`. There are no tasks without an owner, and no result is kept past its flight.
"""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from typing import Generic, TypeVar

from storage.errors import OverloadedError, StorageError

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Runs the work of a key once at a time; of one event loop."""

    def __init__(self) -> None:
        self._flights: dict[K, _Flight[T]] = {}
        # All tasks that have not ended, those whose flight nobody waits for included.
        self._tasks: set[asyncio.Task[T]] = set()
        self._is_closed = False

    def __len__(self) -> int:
        """Count the flights that somebody waits for."""
        return len(self._flights)

    def __contains__(self, key: K) -> bool:
        """Whether there is a flight of `key` that a call would join."""
        return key in self._flights

    def __repr__(self) -> str:
        waiters = sum(flight.waiters for flight in self._flights.values())
        return f"<SingleFlight: {len(self._flights)} flights, {waiters} waiters>"

    async def run(self, key: K, work: Callable[[], Coroutine[object, None, T]]) -> T:
        """Give the result of the work of `key`, starting `work` where none is under way.

        Cancelling the call leaves the work to the others; the last one's cancellation cancels it, and from that step on
        a new call starts anew.

        Raises:
            OverloadedError: The owner is closing.
            Exception: What the work raised, the same to each who waits.
        """
        if self._is_closed:
            raise OverloadedError("shutting down")
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(self._start(key, work))
        return await self._wait(key, flight)

    async def join(self, key: K) -> T:
        """Give the result of the work of `key` that is under way; else as `run`."""
        if self._is_closed:
            raise OverloadedError("shutting down")
        return await self._wait(key, self._flights[key])

    def seal(self, key: K) -> None:
        """Let nobody else join the flight of `key`: who calls from here on starts anew, who joined gets its result."""
        self._flights.pop(key, None)

    async def close(self) -> None:
        """Refuse new calls, cancel all work, and return when the last task has ended; who waits gets OverloadedError."""
        self._is_closed = True
        for task in self._tasks:
            if not task.cancelling():  # a second cancellation would cut short what it does on its way out
                task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _start(self, key: K, work: Callable[[], Coroutine[object, None, T]]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._end(key, ended))
        return task

    async def _wait(self, key: K, flight: "_Flight[T]") -> T:
        flight.waiters += 1
        try:
            # Not `await task`: that would let the waiter's cancellation through to the task.
            await asyncio.wait((flight.task,))
        finally:
            flight.waiters -= 1
            if flight.waiters == 0 and not flight.task.done():
                self._forget(key, flight.task)
                flight.task.cancel()
        if flight.task.cancelled():
            raise OverloadedError("the work was ended before it had a result")
        return flight.task.result()

    def _end(self, key: K, task: asyncio.Task[T]) -> None:
        self._tasks.discard(task)
        self._forget(key, task)
        if task.cancelled():
            return
        # Looked at here, so that asyncio does not complain of a failure whose waiters have all gone.
        error = task.exception()
        if error is not None and not isinstance(error, StorageError) and task.cancelling():
            report = {
                "message": "work failed after its last waiter had gone",
                "exception": error,
                "task": task,
            }
            task.get_loop().call_exception_handler(report)

    def _forget(self, key: K, task: asyncio.Task[T]) -> None:
        flight = self._flights.get(key)
        if flight is not None and flight.task is task:
            del self._flights[key]


class _Flight(Generic[T]):
    """One run of the work and how many wait for it."""

    __slots__ = ("task", "waiters")

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiters = 0
