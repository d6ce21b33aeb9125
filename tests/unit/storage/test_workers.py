"""Where blocking work runs."""

import asyncio
import threading

from storage.workers import CountedWorkers, ThreadWorkers


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
