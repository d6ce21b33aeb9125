import asyncio
from collections.abc import Coroutine
from contextlib import closing

import async_solipsism  # type: ignore[import-untyped]  # it ships no types
import pytest

from storage.clock import SystemClock
from storage.errors import OverloadedError
from storage.origin.admission import Limiter
from storage.origin.limiter import Budget, Feedback, LimiterSettings
from storage.types import Priority

ONE = LimiterSettings(concurrency_start=1, concurrency_max=1, wait_s_max=5.0)


class LoopClock(SystemClock):
    """Monotonic time is the loop's, and so virtual."""

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


def run(test: Coroutine[object, object, None]) -> None:
    """Run on a loop whose time passes at once."""
    with closing(async_solipsism.EventLoop()) as loop:
        loop.run_until_complete(test)


def now_s() -> float:
    """Give the loop's time."""
    return asyncio.get_running_loop().time()


def test_admit_waits_for_a_slot() -> None:
    """The second caller goes when the first one leaves, and its wait is counted."""

    async def scenario() -> None:
        limiter = Limiter(ONE, LoopClock())
        order: list[tuple[str, float]] = []

        async def call(name: str) -> None:
            async with limiter.admit(Priority.FOREGROUND):
                order.append((name, now_s()))
                await LoopClock().sleep(2.0)

        async with asyncio.TaskGroup() as group:
            group.create_task(call("first"))
            group.create_task(call("second"))

        assert order == [("first", 0.0), ("second", 2.0)]
        waits = limiter.waits[Priority.FOREGROUND]
        assert (waits.count, waits.total) == (2, 2.0)
        assert limiter.in_flight == 0

    run(scenario())


def test_admit_refuses_after_the_longest_wait() -> None:
    """Nobody waits for ever: after wait_s_max the caller is told to come again."""

    async def scenario() -> None:
        limiter = Limiter(ONE, LoopClock())
        async with limiter.admit(Priority.FOREGROUND):
            with pytest.raises(OverloadedError):
                await limiter.admit(Priority.FOREGROUND).acquire()

            assert now_s() == 5.0
            assert (limiter.refused_total, limiter.waiting, limiter.in_flight) == (1, 0, 1)

    run(scenario())


def test_admit_refuses_at_once_when_the_queue_is_full() -> None:
    """Beyond queue_max a caller does not even wait."""

    async def scenario() -> None:
        limiter = Limiter(LimiterSettings(concurrency_start=1, concurrency_max=1, queue_max=1), LoopClock())
        async with limiter.admit(Priority.FOREGROUND):
            waiter = asyncio.get_running_loop().create_task(limiter.admit(Priority.FOREGROUND).acquire())
            await LoopClock().sleep(0.1)

            with pytest.raises(OverloadedError):
                await limiter.admit(Priority.FOREGROUND).acquire()

            assert now_s() == pytest.approx(0.1)
        (await waiter).give_back()

    run(scenario())


def test_cancelled_caller_gives_up_its_place() -> None:
    """A cancelled wait leaves nothing behind, neither in the queue nor in flight."""

    async def scenario() -> None:
        limiter = Limiter(ONE, LoopClock())
        async with limiter.admit(Priority.FOREGROUND):
            waiter = asyncio.get_running_loop().create_task(limiter.admit(Priority.FOREGROUND).acquire())
            await LoopClock().sleep(0.1)
            waiter.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiter

            assert limiter.waiting == 0
        assert limiter.in_flight == 0

    run(scenario())


def test_caller_cancelled_as_it_is_let_through_gives_back() -> None:
    """A slot given in the same turn as the cancellation is not lost."""

    async def scenario() -> None:
        limiter = Limiter(ONE, LoopClock())
        first = await limiter.admit(Priority.FOREGROUND).acquire()
        waiter = asyncio.get_running_loop().create_task(limiter.admit(Priority.FOREGROUND).acquire())
        await LoopClock().sleep(0.1)

        first.give_back()
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter

        assert limiter.in_flight == 0
        async with limiter.admit(Priority.FOREGROUND):
            assert limiter.in_flight == 1

    run(scenario())


def test_time_alone_lets_callers_through() -> None:
    """Under a request rate callers go as tokens come, with nobody finishing."""

    async def scenario() -> None:
        limiter = Limiter(LimiterSettings(requests_per_s=2.0), LoopClock())
        times: list[float] = []

        async def call() -> None:
            await limiter.admit(Priority.FLUSH, 10, Budget.GENERAL).acquire()
            times.append(now_s())

        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(call())

        assert times == pytest.approx([0.0, 0.5, 1.0, 1.5], abs=0.01)

    run(scenario())


def test_throttled_report_is_counted_and_pauses() -> None:
    """A throttled answer with Retry-After stops the next caller for so long."""

    async def scenario() -> None:
        limiter = Limiter(LimiterSettings(), LoopClock())
        async with limiter.admit(Priority.FOREGROUND) as ticket:
            ticket.report(Feedback.THROTTLED, retry_after_s=3.0)

        async with limiter.admit(Priority.FOREGROUND):
            waited_until_s = now_s()

        assert waited_until_s == pytest.approx(3.0, abs=0.01)
        assert limiter.throttled_total == 1
        assert limiter.rate_limit_per_s is not None
        assert limiter.concurrency_limit == 6

    run(scenario())
