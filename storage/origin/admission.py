"""Carry out what `limiter.Gate` decided: callers wait here until they may go to the origin.

Whose a request is, for the turns that clients take, and how long it waited, is written down at the client's request that it is made for
(`stats.origin_time`).

A waiting caller holds an event. Finished requests and one loop timer pump the gate; the timer exists only while
time alone lets somebody through. No tasks: closing needs nothing.
"""

import asyncio
from types import TracebackType
from typing import Self

from storage.clock import Clock
from storage.errors import OriginAwayError, OverloadedError
from storage.origin.counters import SECONDS_BOUNDS
from storage.origin.limiter import Budget, Demand, Feedback, Gate, LimiterSettings
from storage.stats import Histogram, asking_client, charge_limiter
from storage.types import Priority

_TIMER_S_MIN = 0.001


class Ticket:
    """The right to one request at the origin. Use as an async context manager: entering waits, leaving gives back."""

    __slots__ = ("_demand", "_feedback", "_hint", "_limiter", "_retry_after_s", "bytes_moved")

    def __init__(
        self, limiter: "Limiter", priority: Priority, bytes_hint: int, budget: Budget, bucket: str
    ) -> None:
        self._limiter = limiter
        self._hint = (priority, bytes_hint, budget, bucket)
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

    def rest(self) -> None:
        """Say that the request waits for its own client's bytes: others may go meanwhile."""
        if self._demand is not None:
            self._limiter.rest(self._demand)

    def wake(self) -> None:
        """Say that bytes flow again; safe to call where it did not rest."""
        if self._demand is not None:
            self._limiter.wake(self._demand)

    def answered(self) -> None:
        """Say that the origin has answered, before the body is read: who was kept away may come."""
        if self._demand is not None:
            self._limiter.answered(self._demand)

    def give_back(self) -> None:
        """End the request; safe to call twice."""
        demand, self._demand = self._demand, None
        if demand is not None:
            self._limiter.leave(demand, self._feedback, self.bytes_moved, self._retry_after_s)


class Limiter:
    """In front of every request to the origin, of both lanes.

    Attributes:
        throttled_total: Answers that asked us to slow down.
        waits: Seconds that admitted callers waited, by priority.
        refused_total: Callers turned away because too many waited, or for too long.
        away_total: Callers turned away because the origin was away.
    """

    def __init__(self, settings: LimiterSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._gate = Gate(settings, clock.monotonic_s())
        self._timer: asyncio.TimerHandle | None = None
        self.throttled_total = 0
        self.refused_total = 0
        self.away_total = 0
        self.waits = {priority: Histogram(SECONDS_BOUNDS) for priority in Priority}

    @property
    def in_flight(self) -> int:
        """Requests at the origin now."""
        return self._gate.in_flight

    @property
    def resting(self) -> int:
        """Of those, uploads that wait for their own client."""
        return self._gate.resting

    @property
    def waiting(self) -> int:
        """Callers that wait now."""
        return self._gate.waiting

    @property
    def waiting_by_class(self) -> dict[Priority, int]:
        """Callers that wait now, by priority."""
        return self._gate.waiting_by_class()

    @property
    def concurrency_limit(self) -> int:
        """Requests that may be under way now to the bucket that bears least."""
        return self._gate.concurrency_limit

    @property
    def rate_limit_per_s(self) -> float | None:
        """The lowest learnt request rate of a bucket, None before the origin first throttled us."""
        return self._gate.rate_limit_per_s

    @property
    def paused_buckets(self) -> int:
        """Buckets whose origin asked for a pause that is not over."""
        return self._gate.paused(self._clock.monotonic_s())

    @property
    def away(self) -> dict[str, float]:
        """Buckets whose origin does not answer, and for how many seconds; "" is the service itself."""
        return self._gate.away(self._clock.monotonic_s())

    def admit(
        self,
        priority: Priority,
        bytes_hint: int = 0,
        budget: Budget = Budget.GENERAL,
        *,
        bucket: str = "",
    ) -> Ticket:
        """Give a ticket whose `async with` body may send one request of about `bytes_hint` body bytes to a bucket, "" for the service.

        Entering raises OverloadedError where too many callers wait or it took longer than `wait_s_max`, and OriginAwayError where
        the origin has not answered for a while. Cancellation while waiting gives up the place.
        """
        return Ticket(self, priority, bytes_hint, budget, bucket)

    async def enter(self, priority: Priority, bytes_hint: int, budget: Budget, bucket: str) -> Demand:
        """Wait until the demand is let through; `Ticket` calls this."""
        now_s = self._clock.monotonic_s()
        try:
            demand = self._gate.join(
                now_s, priority, bytes_hint, budget, bucket=bucket, client=asking_client()
            )
            self._pump()
            if demand.granted_at_s is None:
                await self._wait(demand)
        except OverloadedError:
            self.refused_total += 1
            raise
        except OriginAwayError:
            self.away_total += 1
            raise
        finally:
            waited_s = self._clock.monotonic_s() - now_s
            charge_limiter(waited_s)
        self.waits[priority].observe(waited_s)
        return demand

    def answered(self, demand: Demand) -> None:
        """Note that the origin is there; `Ticket` calls this."""
        self._gate.answered(demand)

    def rest(self, demand: Demand) -> None:
        """Let others go while a request waits for its own client; `Ticket` calls this."""
        if self._gate.rest(self._clock.monotonic_s(), demand):
            self._pump()

    def wake(self, demand: Demand) -> None:
        """Count a request that rested again; `Ticket` calls this."""
        self._gate.wake(self._clock.monotonic_s(), demand)

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
        settled = asyncio.Event()
        demand.on_grant = settled.set
        try:
            async with asyncio.timeout(self._settings.wait_s_max):
                await settled.wait()
        except TimeoutError:
            if demand.granted_at_s is not None:
                return  # let through in the same turn: the place is ours
            self._gate.leave(demand)
            retry_after_s = self._gate.retry_after_s(self._clock.monotonic_s(), demand.bucket)
            raise OverloadedError("waited too long for the origin", retry_after_s=retry_after_s) from None
        except asyncio.CancelledError:
            if demand.granted_at_s is None:
                self._gate.leave(demand)
            else:
                self.leave(demand, Feedback.NEUTRAL, 0)
            raise
        if demand.refusal is not None:
            raise demand.refusal

    def _pump(self) -> None:
        for demand in self._gate.refused():
            if demand.on_grant is not None:
                demand.on_grant()
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
