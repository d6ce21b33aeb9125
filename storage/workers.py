"""Where blocking work runs: a bounded pool of threads, or inline in tests.

Index gets and reads that are in memory run in the event loop; syncs, index writes, cold reads, unlinks and hashing over
256 KiB run here, since each would stop every other request for its time.
"""

import asyncio
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
