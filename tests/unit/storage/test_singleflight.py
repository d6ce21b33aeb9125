"""SingleFlight under success, failure and every kind of cancellation."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

import pytest

from storage.errors import OverloadedError, StorageError
from storage.singleflight import SingleFlight

Call = Callable[[], Coroutine[object, None, str]]


class Work:
    """Work that ends when told; counts how often it was started and cancelled."""

    def __init__(self) -> None:
        self.started = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def __call__(self) -> str:
        self.started += 1
        number = self.started
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            if self.error is not None:
                raise self.error from None
            raise
        if self.error is not None:
            raise self.error
        return f"result {number}"


async def settle() -> None:
    """Let all that can run do so."""
    loop = asyncio.get_running_loop()
    for _ in range(10):
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


async def start(flights: SingleFlight[str, str], work: Call, key: str = "k") -> asyncio.Task[str]:
    """Ask for the result in a task of its own, and let it get as far as it can."""
    task = asyncio.get_running_loop().create_task(flights.run(key, work))
    await settle()
    return task


async def test_work_runs_once_when_many_want_its_result() -> None:
    """All get the one result; the next to ask starts anew."""
    flights: SingleFlight[str, str] = SingleFlight()
    work = Work()
    tasks = [await start(flights, work) for _ in range(5)]
    assert repr(flights) == "<SingleFlight: 1 flights, 5 waiters>"

    work.gate.set()
    results = [await task for task in tasks]

    assert results == ["result 1"] * 5
    assert await flights.run("k", work) == "result 2"
    assert len(flights) == 0


async def test_work_is_each_keys_own_when_keys_differ() -> None:
    """Two keys, two runs."""
    flights: SingleFlight[str, str] = SingleFlight()
    work = Work()
    tasks = [await start(flights, work, key) for key in ("a", "b")]

    work.gate.set()

    assert [await task for task in tasks] == ["result 1", "result 2"]


async def test_others_get_the_result_when_the_first_is_cancelled() -> None:
    """The first asker's cancellation hands the work over, it does not end it."""
    flights: SingleFlight[str, str] = SingleFlight()
    work = Work()
    first, second = await start(flights, work), await start(flights, work)

    first.cancel()
    await settle()
    work.gate.set()

    assert await second == "result 1"
    assert first.cancelled()
    assert (work.started, work.cancelled) == (1, 0)


async def test_work_is_cancelled_when_nobody_waits_any_more() -> None:
    """The last one's cancellation ends the work, and a new call does not join what is ending."""
    flights: SingleFlight[str, str] = SingleFlight()
    work = Work()
    tasks = [await start(flights, work) for _ in range(2)]

    for task in tasks:
        task.cancel()
    await settle()
    late = await start(flights, work)
    work.gate.set()

    assert work.cancelled == 1
    assert await late == "result 2"


async def test_failure_reaches_all_who_wait_and_is_not_kept_when_work_fails() -> None:
    """Shared once, then forgotten."""
    flights: SingleFlight[str, str] = SingleFlight()
    work = Work()
    work.error = StorageError("broken")
    tasks = [await start(flights, work) for _ in range(2)]

    work.gate.set()

    for task in tasks:
        with pytest.raises(StorageError, match="broken"):
            await task
    work.error = None
    assert await flights.run("k", work) == "result 2"


async def test_waiters_are_told_when_the_owner_closes() -> None:
    """Closing ends the work, returns when it has ended, and refuses what comes after."""
    flights: SingleFlight[str, str] = SingleFlight()
    work = Work()
    waiter = await start(flights, work)

    await flights.close()

    assert work.cancelled == 1
    with pytest.raises(OverloadedError):
        await waiter
    with pytest.raises(OverloadedError):
        await flights.run("k", work)
    await flights.close()


async def test_close_waits_for_work_that_is_ending_when_its_waiters_have_gone() -> None:
    """A task that nobody waits for still has an owner."""
    flights: SingleFlight[str, str] = SingleFlight()
    ended = asyncio.Event()

    async def slow_to_end() -> str:
        try:
            await asyncio.Event().wait()
        finally:
            await settle()
            ended.set()
        return "never"

    task = await start(flights, slow_to_end)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    assert not ended.is_set()

    await flights.close()

    assert ended.is_set()


@pytest.mark.parametrize(("error", "reports"), [(StorageError("expected"), 0), (RuntimeError("bug"), 1)])
async def test_bug_is_reported_when_all_waiters_have_gone(error: Exception, reports: int) -> None:
    """A failure that nobody sees goes to the loop's handler, unless it is an expected one."""
    flights: SingleFlight[str, str] = SingleFlight()
    work = Work()
    work.error = error
    seen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context["message"]))
    task = await start(flights, work)

    task.cancel()
    await settle()

    assert len(seen) == reports
