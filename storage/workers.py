"""Where blocking work runs: a bounded pool of threads, or inline in tests.

Index gets and reads that are in memory run in the event loop; syncs, index writes, cold reads, unlinks and hashing over
256 KiB run here, since each would stop every other request for its time.
"""

import asyncio
import threading
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
R = TypeVar("R")


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


class StartingWorkers(Workers, Protocol):
    """Workers that begin a call without somebody who awaits it."""

    def start(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """Begin a call, and give what will have its outcome; cancelling that drops the outcome, and the call if it has not begun."""
        ...


class ThreadWorkers:
    """A pool of `threads` threads; one thread makes a queue that keeps order.

    Not an executor of the standard library: a request hops to a thread several times, and the futures of both worlds, chained,
    cost more than most of the calls. The threads begin with the first calls, and end with the pool, or with the process.
    """

    def __init__(self, name: str, threads: int) -> None:
        self._name = name
        self._calls: _Calls = SimpleQueue()
        self._threads_missing = threads
        self._threads: list[threading.Thread] = []
        self._end = weakref.finalize(self, _end, self._calls, self._threads)

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` on the pool."""
        return await self.start(call, *args, **kwargs)

    def start(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "asyncio.Future[T]":
        """Begin `call` on the pool."""
        if self._threads_missing:
            self._begin_thread()
        assert self._end.alive, f"the threads of {self._name} have ended"
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._calls.put(_Call(done, call, args, kwargs).run)
        return done

    def _begin_thread(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        # A daemon, since the interpreter would wait for others before it calls the finalizer that ends them.
        thread = threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True)
        thread.start()
        self._threads.append(thread)
        self._threads_missing -= 1

    def close(self) -> None:
        """Wait for what runs and end the threads."""
        self._threads_missing = 0
        self._end()


class _Call(Generic[T]):
    """One call on its way through a pool, and who waits for it."""

    __slots__ = ("_args", "_call", "_done", "_kwargs", "_loop")

    def __init__(
        self,
        done: "asyncio.Future[T]",
        call: Callable[..., T],
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        self._loop = done.get_loop()
        self._done = done
        self._call = call
        self._args = args
        self._kwargs = kwargs

    def run(self) -> None:
        """Make the call, in a thread of the pool, and tell the loop how it went; one that nobody waits for any more is left out."""
        if self._done.cancelled():
            return
        try:
            result = self._call(*self._args, **self._kwargs)
        except BaseException as error:  # noqa: BLE001  it is the awaiting task's
            self._tell(self._done.set_exception, error)
        else:
            self._tell(self._done.set_result, result)
        finally:
            # The error's traceback holds this frame, and the future the error: without this, the arguments too until a collection.
            del self

    def _tell(self, settle: Callable[[R], None], outcome: R) -> None:
        try:
            self._loop.call_soon_threadsafe(_settle, self._done, settle, outcome)
        except RuntimeError:
            # The loop is closed: nobody waits.
            assert self._loop.is_closed(), "an open loop takes results"


_Calls = SimpleQueue[Callable[[], None] | None]
"""None ends one thread."""


def _settle(done: "asyncio.Future[T]", settle: Callable[[R], None], outcome: R) -> None:
    if not done.done():
        settle(outcome)


def _serve(calls: _Calls) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # what it holds goes now, not with the next one


def _end(calls: _Calls, threads: list[threading.Thread]) -> None:
    """End the threads behind the calls that wait, and wait for them; not for the one that this runs in, should it be of them."""
    for _ in threads:
        calls.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join()


class CountedWorkers:
    """One user's part of a pool, who can wait for its calls: a cancelled await leaves its call running."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._running: set[object] = set()
        self._ended = threading.Condition()
        self._waiting = 0

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` on the pool."""
        return await self._workers.run(self._counted, call, args, kwargs)

    def _counted(self, call: Callable[..., T], args: tuple[object, ...], kwargs: dict[str, object]) -> T:
        running = object()
        self._running.add(running)
        try:
            return call(*args, **kwargs)
        finally:
            self._running.discard(running)
            # Read behind the line before: who begins to wait after it does not see this call any more.
            if self._waiting:
                with self._ended:
                    self._ended.notify_all()

    def wait_for_calls(self) -> None:
        """Return when the calls that run now have ended. Blocks, so not on this pool."""
        with self._ended:
            self._waiting += 1
            begun = frozenset(self._running)
            self._ended.wait_for(lambda: not begun & self._running)
            self._waiting -= 1

    def close(self) -> None:
        """Do nothing: the pool is another's."""
