"""Duties that recur: each at its own pace, none in another's way."""

import asyncio
import errno
from collections.abc import AsyncIterator

import pytest

from storage.errors import DiskFailedError
from storage.upkeep import Duty, Upkeep
from tests.fakes.tasks import start, turns


class SteppedClock:
    """A clock whose sleepers wake when a test lets time pass."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def monotonic_s(self) -> float:
        """Give the time."""
        return self.now_s

    def wall_s(self) -> float:
        """Give the time."""
        return self.now_s

    async def sleep(self, wait_s: float) -> None:
        """Sleep until the time has come."""
        woken = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now_s + wait_s, woken))
        await woken

    async def pass_s(self, time_s: float, step_s: float = 0.5) -> None:
        """Let time pass in steps."""
        for _ in range(round(time_s / step_s)):
            self.now_s += step_s
            due = [sleeper for sleeper in self._sleepers if sleeper[0] <= self.now_s]
            for sleeper in due:
                self._sleepers.remove(sleeper)
                sleeper[1].set_result(None)
            await turns(5)


class Work:
    """Counts what was done, and fails on demand."""

    def __init__(self) -> None:
        self.done = 0
        self.error: Exception | None = None
        self.gate = asyncio.Event()
        self.gate.set()

    async def __call__(self) -> None:
        """Do it."""
        self.done += 1
        await self.gate.wait()
        if self.error is not None:
            raise self.error


class Running:
    """Duties: one often, one seldom, one that needs no writes; under a clock that a test steps."""

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.often, self.seldom, self.reading = Work(), Work(), Work()
        self.is_writable = True
        duties = (
            Duty("often", 1.0, self.often),
            Duty("seldom", 5.0, self.seldom),
            Duty("reading", 1.0, self.reading, needs_writes=False),
        )
        self.task = start(Upkeep(self.clock, duties, lambda: self.is_writable).run())


@pytest.fixture
async def running() -> AsyncIterator[Running]:
    """Give running duties."""
    running = Running()
    await turns(3)
    yield running
    running.task.cancel()
    await asyncio.wait({running.task})


async def test_duties_when_time_passes(running: Running) -> None:
    """Each is done once in its period, not before the first has passed."""
    await running.clock.pass_s(0.5)
    at_first = running.often.done
    await running.clock.pass_s(10.0)

    assert at_first == 0
    assert running.often.done == 10
    assert running.seldom.done == 2


async def test_duties_when_one_takes_long(running: Running) -> None:
    """A duty that takes long does not keep the others waiting, and is not begun twice."""
    running.seldom.gate.clear()

    await running.clock.pass_s(20.0)

    assert running.seldom.done == 1
    assert running.often.done == 20


@pytest.mark.parametrize("error", [DiskFailedError("no"), OSError(errno.EIO, "no")])
async def test_duties_when_one_fails(running: Running, error: Exception) -> None:
    """An expected failure, one of the disk that nobody translated too, is tried again at the next turn."""
    running.often.error = error

    await running.clock.pass_s(3.0)

    assert running.often.done == 3
    assert not running.task.done()


async def test_duties_when_engine_takes_no_writes(running: Running) -> None:
    """Only what needs no writes is done while the engine takes none, and all goes on afterwards."""
    running.is_writable = False
    await running.clock.pass_s(5.0)
    meanwhile = running.often.done
    reading = running.reading.done

    running.is_writable = True
    await running.clock.pass_s(2.0)

    assert meanwhile == 0
    assert reading == 5
    assert running.often.done == 2


async def test_run_when_a_duty_has_a_bug() -> None:
    """What is not expected of a duty ends all, so that it is seen."""
    running = Running()
    running.often.error = ValueError("a bug")
    await turns(3)

    await running.clock.pass_s(1.0)

    with pytest.raises(ExceptionGroup):
        await running.task
