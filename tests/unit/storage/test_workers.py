"""Where blocking work runs."""

import asyncio
import threading

import pytest

from storage.workers import CountedWorkers, ThreadWorkers
from tests.fakes.tasks import turns


async def test_calls_are_waited_for_when_nobody_awaits_them_any_more() -> None:
    """A cancelled await leaves its call running; calls that begin later are not waited for."""
    pool = ThreadWorkers("pool", 3)
    workers = CountedWorkers(pool)
    begun, may_end, later_may_end = threading.Event(), threading.Event(), threading.Event()

    def block(gate: threading.Event) -> None:
        begun.set()
        gate.wait(5)

    loop = asyncio.get_running_loop()
    call = loop.create_task(workers.run(block, may_end))
    await pool.run(begun.wait, 5)
    call.cancel()
    waiting = loop.create_task(pool.run(workers.wait_for_calls))
    begun.clear()
    await asyncio.wait((waiting,), timeout=0.05)
    was_waiting = not waiting.done()
    later = loop.create_task(workers.run(block, later_may_end))
    await loop.run_in_executor(None, begun.wait, 5)

    may_end.set()
    await asyncio.wait_for(waiting, 5)

    assert was_waiting
    assert not later.done()
    later_may_end.set()
    await later
    pool.close()


async def test_a_call_gives_what_it_returns() -> None:
    """The part of a pool is a pool."""
    pool = ThreadWorkers("pool", 1)

    given = await CountedWorkers(pool).run(divmod, 7, 2)

    assert given == (3, 1)
    pool.close()


async def test_what_a_call_raises_reaches_who_awaits_it() -> None:
    """An exception comes as it is, and the thread goes on."""
    pool = ThreadWorkers("pool", 1)

    with pytest.raises(ZeroDivisionError):
        await pool.run(divmod, 1, 0)

    assert await pool.run(int, "11", base=2) == 3
    pool.close()


async def test_a_call_whose_await_was_cancelled_before_its_turn_is_left_out() -> None:
    """Nobody waits for it, so it does not begin; one that has begun ends, and its outcome is dropped."""
    pool = ThreadWorkers("pool", 1)
    begun, may_end = threading.Event(), threading.Event()
    calls: list[str] = []

    def block() -> None:
        begun.set()
        may_end.wait(5)
        calls.append("begun")
        raise ValueError

    loop = asyncio.get_running_loop()
    running = loop.create_task(pool.run(block))
    await loop.run_in_executor(None, begun.wait, 5)
    waiting = loop.create_task(pool.run(calls.append, "waiting"))
    await turns()
    for task in (running, waiting):
        task.cancel()
    await asyncio.wait((running, waiting))
    may_end.set()
    await pool.run(calls.append, "after")

    assert calls == ["begun", "after"]
    pool.close()


async def test_closing_waits_for_what_runs() -> None:
    """On return nothing of the pool runs, and nothing runs on it any more."""
    pool = ThreadWorkers("closing", 2)
    may_end = threading.Event()
    ended: list[bool] = []
    call = asyncio.get_running_loop().create_task(pool.run(lambda: ended.append(may_end.wait(5))))
    await pool.run(int)
    may_end.set()

    pool.close()

    assert ended == [True]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("closing")]
    await call
    with pytest.raises(AssertionError):
        await pool.run(int)


async def test_a_pool_that_nobody_has_any_more_ends_its_threads() -> None:
    """A pool that was not closed does not leave its threads behind."""
    pool = ThreadWorkers("forgotten", 2)
    await pool.run(int)

    del pool

    assert not [thread for thread in threading.enumerate() if thread.name.startswith("forgotten")]


def test_a_call_whose_loop_is_closed_harms_nobody() -> None:
    """What it gives is dropped, and the thread goes on."""
    pool = ThreadWorkers("pool", 1)
    begun, may_end = threading.Event(), threading.Event()

    def block() -> None:
        begun.set()
        may_end.wait(5)

    async def leave() -> None:
        task = asyncio.get_running_loop().create_task(pool.run(block))
        await asyncio.get_running_loop().run_in_executor(None, begun.wait, 5)
        task.cancel()

    asyncio.run(leave())
    may_end.set()

    assert asyncio.run(pool.run(int, "7")) == 7
    pool.close()
