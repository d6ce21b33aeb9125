"""Where blocking work runs: a bounded pool of threads, or inline in tests.

Index gets and reads that are in memory run in the event loop; syncs, index writes, cold reads, unlinks and hashing over
256 KiB run here, since each would stop every other request for its time.
"""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Workers(Protocol):
    """Run blocking calls off the event loop, and tell their result or exception to the awaiting task.

    Cancelling the await does not stop a call that has begun: it runs to its end and its result is dropped.
    """

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` and return what it returns."""
        ...

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        ...


class ThreadWorkers:
    """A pool of `threads` threads; one thread makes a queue that keeps order."""

    def __init__(self, name: str, threads: int) -> None:
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix=name)

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` on the pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: call(*args, **kwargs))

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        self._pool.shutdown(wait=True)


class CountedWorkers:
    """One user's part of a pool, who can wait for its calls: a cancelled await leaves its call running."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._lock = threading.Condition()
        self._running: set[int] = set()
        self._calls = 0

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` on the pool."""
        return await self._workers.run(self._counted, lambda: call(*args, **kwargs))

    def _counted(self, call: Callable[[], T]) -> T:
        with self._lock:
            self._calls += 1
            number = self._calls
            self._running.add(number)
        try:
            return call()
        finally:
            with self._lock:
                self._running.discard(number)
                self._lock.notify_all()

    def wait_for_calls(self) -> None:
        """Return when the calls that run now have ended. Blocks, so not on this pool."""
        with self._lock:
            begun = frozenset(self._running)
            self._lock.wait_for(lambda: not begun & self._running)

    def close(self) -> None:
        """Do nothing: the pool is another's."""
