"""Carry out what `limiter.Gate` decided: callers wait here until they may go to the origin.

A waiting caller holds an event. Finished requests and one loop timer pump the gate; the timer exists only while
time alone lets somebody through. No tasks: closing needs nothing.
"""

import asyncio
from types import TracebackType
from typing import Self

from storage.clock import Clock
from storage.errors import OverloadedError
from storage.origin.limiter import Budget, Demand, Feedback, Gate, LimiterSettings
from storage.types import Priority

_TIMER_S_MIN = 0.001


class Ticket:
    """The right to one request at the origin. Use as an async context manager: entering waits, leaving gives back."""

    __slots__ = ("_demand", "_feedback", "_hint", "_limiter", "_retry_after_s", "bytes_moved")

    def __init__(self, limiter: "Limiter", priority: Priority, bytes_hint: int, budget: Budget) -> None:
        self._limiter = limiter
        self._hint = (priority, bytes_hint, budget)
        self._demand: Demand | None = None
        self._feedback = Feedback.NEUTRAL
        self._retry_after_s: float | None = None
        self.bytes_moved = bytes_hint

    async def acquire(self) -> Self:
        """Wait for the right; the caller owes `give_back`. `async with` does both."""
        self._demand = await self._limiter.enter(*self._hint)
        return self

    async def __aenter__(self) -> Self:
        return await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()

    def report(self, feedback: Feedback, retry_after_s: float | None = None) -> None:
        """Say how the attempt went; without a report it teaches nothing."""
        self._feedback = feedback
        self._retry_after_s = retry_after_s

    def give_back(self) -> None:
        """End the request; safe to call twice."""
        demand, self._demand = self._demand, None
        if demand is not None:
            self._limiter.leave(demand, self._feedback, self.bytes_moved, self._retry_after_s)


class Limiter:
    """In front of every request to the origin, of both lanes.

    Attributes:
        throttled_total: Answers that asked us to slow down.
        wait_s_sum: Seconds that admitted callers waited, `wait_count` callers in all.
        refused_total: Callers turned away because too many waited, or for too long.
    """

    def __init__(self, settings: LimiterSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._gate = Gate(settings, clock.monotonic_s())
        self._timer: asyncio.TimerHandle | None = None
        self.throttled_total = 0
        self.refused_total = 0
        self.wait_s_sum = 0.0
        self.wait_count = 0

    @property
    def in_flight(self) -> int:
        """Requests at the origin now."""
        return self._gate.in_flight

    @property
    def waiting(self) -> int:
        """Callers that wait now."""
        return self._gate.waiting

    @property
    def concurrency_limit(self) -> int:
        """Requests that may be at the origin now."""
        return self._gate.concurrency_limit

    @property
    def rate_limit_per_s(self) -> float | None:
        """The learnt request rate, None before the origin first throttled us."""
        return self._gate.rate_limit_per_s

    def admit(self, priority: Priority, bytes_hint: int = 0, budget: Budget = Budget.GENERAL) -> Ticket:
        """Give a ticket whose `async with` body may send one request of about `bytes_hint` body bytes.

        Entering raises OverloadedError where too many callers wait or it took longer than `wait_s_max`. Cancellation
        while waiting gives up the place.
        """
        return Ticket(self, priority, bytes_hint, budget)

    async def enter(self, priority: Priority, bytes_hint: int, budget: Budget) -> Demand:
        """Wait until the demand is let through; `Ticket` calls this."""
        now_s = self._clock.monotonic_s()
        try:
            demand = self._gate.join(now_s, priority, bytes_hint, budget)
        except OverloadedError:
            self.refused_total += 1
            raise
        self._pump()
        if demand.granted_at_s is None:
            await self._wait(demand)
        self.wait_count += 1
        self.wait_s_sum += self._clock.monotonic_s() - now_s
        return demand

    def leave(
        self, demand: Demand, feedback: Feedback, bytes_moved: int, retry_after_s: float | None = None
    ) -> None:
        """Give a place back and say how it went; `Ticket` calls this."""
        if feedback is Feedback.THROTTLED:
            self.throttled_total += 1
        now_s = self._clock.monotonic_s()
        self._gate.finish(now_s, demand, feedback, bytes_moved=bytes_moved, retry_after_s=retry_after_s)
        self._pump()

    async def _wait(self, demand: Demand) -> None:
        granted = asyncio.Event()
        demand.on_grant = granted.set
        try:
            async with asyncio.timeout(self._settings.wait_s_max):
                await granted.wait()
        except TimeoutError:
            if demand.granted_at_s is not None:
                return  # let through in the same turn: the place is ours
            self._gate.leave(demand)
            self.refused_total += 1
            retry_after_s = self._gate.retry_after_s(self._clock.monotonic_s())
            raise OverloadedError("waited too long for the origin", retry_after_s=retry_after_s) from None
        except asyncio.CancelledError:
            if demand.granted_at_s is None:
                self._gate.leave(demand)
            else:
                self.leave(demand, Feedback.NEUTRAL, 0)
            raise

    def _pump(self) -> None:
        if not self._gate.waiting:
            return
        granted, wake_s = self._gate.grant(self._clock.monotonic_s())
        for demand in granted:
            if demand.on_grant is not None:
                demand.on_grant()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_s is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(max(_TIMER_S_MIN, wake_s), self._timer_fired)

    def _timer_fired(self) -> None:
        self._timer = None
        self._pump()
