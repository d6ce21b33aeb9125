"""Decide what may go to the origin now: rates, an adaptive limit, priorities, a bounded queue.

Pure: `now_s` comes in, decisions go out; `admission.py` carries them out. Theory of operation:

- `Gate.join` queues a demand in its priority's FIFO, or refuses it where that FIFO is full.
- `Gate.grant` lets waiting demands through while a slot, a request token and a byte budget are there. Which class is next is
  decided by weights (start-time fair queueing): a class gets at least its share of what all ask for, so none starves, and
  what a class does not use goes to the others. Unused credit is not saved up.
- `Gate.finish` takes back the slot and learns from the answer: additive increase, multiplicative decrease. Requests that
  were sent before the last decrease do not decrease again: they saw the load of before.

Classes behind the foreground leave a quarter of the slots free, so that a reader never waits for uploads alone. Bytes are
paid when the demand is let through, in full; a budget in debt lets nothing more through until it is paid. (Waiting for
the whole amount to be there would starve large bodies behind small ones.)
"""

from collections import OrderedDict
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from storage.errors import OverloadedError
from storage.types import MIB, Priority

if TYPE_CHECKING:
    from collections.abc import Callable

WEIGHTS: Final = {
    Priority.FOREGROUND: 64.0,
    Priority.URGENT_FLUSH: 16.0,
    Priority.VALIDATION: 8.0,
    Priority.FLUSH: 4.0,
    Priority.EARLY_FLUSH: 2.0,
    Priority.READAHEAD: 2.0,
    Priority.WARM_UP: 1.0,
}
"""Shares of the classes where all of them wait. The foreground has two thirds, warm-up one in a hundred."""

assert set(WEIGHTS) == set(Priority), "each priority has a weight"

PAUSE_S_MAX: Final = 30.0
"""A longer Retry-After is cut to this, so that a wrong one does not stop the gateway for hours."""

CUT_CONCURRENCY: Final = 0.5
CUT_RATE: Final = 0.7
"""What a throttled answer leaves of the limits."""

FORGET_RATE_S: Final = 600.0
"""The rate limit goes away after so long without a throttled answer."""

RATE_FLOOR_PER_S: Final = 2.0
METER_BIN_S: Final = 0.5


class Budget(StrEnum):
    """Which byte and request budgets a demand is paid from."""

    GENERAL = "general"
    FLUSH = "flush"


class Feedback(StrEnum):
    """What an attempt says about the origin's load."""

    SUCCESS = "success"
    THROTTLED = "throttled"
    TIMED_OUT = "timed_out"
    NEUTRAL = "neutral"


class TokenBucket:
    """At most `burst + rate * t` tokens in any `t` seconds."""

    __slots__ = ("_burst", "_level", "_rate", "_seen_s")

    def __init__(self, *, rate: float, burst: float, now_s: float) -> None:
        if rate <= 0 or burst <= 0:
            raise ValueError(f"rate and burst must be positive, not {rate} and {burst}")
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._seen_s = now_s

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self._rate

    def take(self, now_s: float, amount: float) -> float:
        """Take `amount` tokens and return 0, or take nothing and return the seconds until they will be there.

        Raises:
            ValueError: The amount is over the burst and would never be there.
        """
        if amount > self._burst:
            raise ValueError(f"{amount} tokens do not fit a burst of {self._burst}")
        wait_s = self.wait_s(now_s, amount)
        if wait_s == 0.0:
            self._level -= amount
        return wait_s

    def wait_s(self, now_s: float, amount: float = 0.0) -> float:
        """Say in how many seconds `amount` tokens are there; with amount 0, until there is no debt."""
        self._refill(now_s)
        return max(0.0, (amount - self._level) / self._rate)

    def charge(self, now_s: float, amount: float) -> None:
        """Pay `amount` now, into debt if need be; a negative amount gives back."""
        self._refill(now_s)
        self._level = min(self._burst, self._level - amount)

    def set_rate(self, now_s: float, *, rate: float, burst: float) -> None:
        """Go on at another rate; the level is kept, within the new burst."""
        self._refill(now_s)
        self._rate = rate
        self._burst = burst
        self._level = min(self._level, burst)

    def _refill(self, now_s: float) -> None:
        if now_s > self._seen_s:
            self._level = min(self._burst, self._level + (now_s - self._seen_s) * self._rate)
            self._seen_s = now_s


class AdaptiveConcurrency:
    """How many requests may be in flight: up by one a round of successes, halved when the origin is overloaded."""

    __slots__ = ("_ceiling", "_cut_at_s", "_limit")

    def __init__(self, *, start: int, ceiling: int) -> None:
        if not 1 <= start <= ceiling:
            raise ValueError(f"a concurrency limit starts in 1 to {ceiling}, not at {start}")
        self._limit = float(start)
        self._ceiling = ceiling
        self._cut_at_s = float("-inf")

    @property
    def limit(self) -> int:
        """Requests that may be in flight, at least 1."""
        return int(self._limit)

    def succeeded(self, *, in_flight: int) -> None:
        """Rise, if the limit was in use: a limit that nobody reaches teaches nothing."""
        if 2 * in_flight >= self._limit:
            self._limit = min(self._ceiling, self._limit + 1.0 / self._limit)

    def overloaded(self, now_s: float, *, sent_at_s: float) -> None:
        """Halve, once for all requests that were in flight together."""
        if sent_at_s > self._cut_at_s:
            self._limit = max(1.0, self._limit * CUT_CONCURRENCY)
            self._cut_at_s = now_s


class RateMeter:
    """Events a second, smoothed over a few bins of half a second."""

    __slots__ = ("_bin", "_count", "_rate")

    def __init__(self, now_s: float) -> None:
        self._bin = now_s
        self._count = 0
        self._rate = 0.0

    def add(self, now_s: float) -> None:
        """Count one event."""
        self._roll(now_s)
        self._count += 1

    def rate(self, now_s: float) -> float:
        """Events a second, the bin that is still open included where it says more."""
        self._roll(now_s)
        return max(self._rate, self._count / METER_BIN_S)

    def _roll(self, now_s: float) -> None:
        elapsed_s = now_s - self._bin
        if elapsed_s < METER_BIN_S:
            return
        keep = 0.5 ** (elapsed_s / METER_BIN_S)
        self._rate = keep * self._rate + (1.0 - keep) * self._count / elapsed_s
        self._count = 0
        self._bin = now_s


class AdaptiveRate:
    """Requests a second that the origin takes: no limit until its first throttled answer, then found by AIMD."""

    __slots__ = ("_bucket", "_cut_at_s", "_grown_at_s", "_meter", "_step_per_s", "_throttled_at_s")

    def __init__(self, now_s: float) -> None:
        self._meter = RateMeter(now_s)
        self._bucket: TokenBucket | None = None
        self._cut_at_s = float("-inf")
        self._throttled_at_s = float("-inf")
        self._grown_at_s = now_s
        self._step_per_s = 1.0

    @property
    def limit_per_s(self) -> float | None:
        """The limit, None without one."""
        return None if self._bucket is None else self._bucket.rate

    def wait_s(self, now_s: float) -> float:
        """Say in how many seconds the next request may go."""
        self._grow(now_s)
        return 0.0 if self._bucket is None else self._bucket.wait_s(now_s, 1.0)

    def sent(self, now_s: float) -> None:
        """Count a request that goes now."""
        self._meter.add(now_s)
        if self._bucket is not None:
            self._bucket.charge(now_s, 1.0)

    def throttled(self, now_s: float, *, sent_at_s: float) -> None:
        """Set or cut the limit, once for all requests that were in flight together."""
        self._throttled_at_s = now_s
        if sent_at_s <= self._cut_at_s:
            return
        self._cut_at_s = now_s
        measured = self._meter.rate(now_s)
        if self._bucket is None:
            # Recover the rate of before in some twenty seconds, however high it was.
            self._step_per_s = max(1.0, measured / 20)
            self._set(now_s, measured * CUT_RATE)
        else:
            self._set(now_s, min(self._bucket.rate, max(measured, RATE_FLOOR_PER_S)) * CUT_RATE)

    def timed_out(self, now_s: float, *, sent_at_s: float) -> None:
        """Cut a limit that exists; a time-out alone makes none."""
        if self._bucket is not None:
            self.throttled(now_s, sent_at_s=sent_at_s)

    def _grow(self, now_s: float) -> None:
        if self._bucket is None or now_s - self._grown_at_s < METER_BIN_S:
            return
        if now_s - self._throttled_at_s > FORGET_RATE_S:
            self._bucket = None
            return
        self._set(now_s, self._bucket.rate + self._step_per_s * (now_s - self._grown_at_s))

    def _set(self, now_s: float, rate: float) -> None:
        rate = max(RATE_FLOOR_PER_S, rate)
        burst = max(1.0, rate * METER_BIN_S)
        self._grown_at_s = now_s
        if self._bucket is None:
            self._bucket = TokenBucket(rate=rate, burst=burst, now_s=now_s)
            self._bucket.charge(now_s, burst)  # the burst is what was just throttled
        else:
            self._bucket.set_rate(now_s, rate=rate, burst=burst)


@dataclass(frozen=True, slots=True)
class LimiterSettings:
    """Bounds of the limiter. A rate of None is unlimited.

    Attributes:
        concurrency_start: In flight before anything is learnt.
        queue_max: Waiting demands of one priority; more are refused.
        wait_s_max: A demand that waited longer is refused.
    """

    concurrency_start: int = 64
    concurrency_max: int = 256
    requests_per_s: float | None = None
    flush_requests_per_s: float | None = None
    bytes_per_s: float | None = None
    flush_bytes_per_s: float | None = None
    queue_max: int = 4096
    wait_s_max: float = 30.0

    def __post_init__(self) -> None:
        if self.queue_max < 1 or self.wait_s_max <= 0:
            raise ValueError("queue_max and wait_s_max must be positive")


class Demand:
    """One request that wants to go: waiting, then in flight, then finished. Made and owned by `Gate`."""

    __slots__ = ("budget", "bytes_hint", "granted_at_s", "joined_at_s", "on_grant", "priority")

    def __init__(self, priority: Priority, budget: Budget, bytes_hint: int, joined_at_s: float) -> None:
        self.priority = priority
        self.budget = budget
        self.bytes_hint = bytes_hint
        self.joined_at_s = joined_at_s
        self.granted_at_s: float | None = None
        self.on_grant: Callable[[], object] | None = None


class _Class:
    """The demands of one priority that wait, in order, and the class's place in the fair queue."""

    __slots__ = ("finish_tag", "waiting", "weight")

    def __init__(self, weight: float) -> None:
        self.waiting: OrderedDict[int, Demand] = OrderedDict()
        self.finish_tag = 0.0
        self.weight = weight


class Gate:
    """The limiter's state. Synchronous: nothing interleaves within a call."""

    def __init__(self, settings: LimiterSettings, now_s: float) -> None:
        self._settings = settings
        self._classes = {priority: _Class(WEIGHTS[priority]) for priority in Priority}
        self._virtual = 0.0
        self._waiting = 0
        self._in_flight = 0
        self._paused_until_s = float("-inf")
        self._concurrency = AdaptiveConcurrency(
            start=settings.concurrency_start, ceiling=settings.concurrency_max
        )
        self._rate = AdaptiveRate(now_s)
        self._requests = {
            Budget.GENERAL: _bucket(settings.requests_per_s, 1.0, now_s),
            Budget.FLUSH: _bucket(settings.flush_requests_per_s, 1.0, now_s),
        }
        self._bytes = {
            Budget.GENERAL: _bucket(settings.bytes_per_s, float(MIB), now_s),
            Budget.FLUSH: _bucket(settings.flush_bytes_per_s, float(MIB), now_s),
        }

    @property
    def in_flight(self) -> int:
        """Demands let through and not finished."""
        return self._in_flight

    @property
    def waiting(self) -> int:
        """Demands not yet let through."""
        return self._waiting

    @property
    def concurrency_limit(self) -> int:
        """What may be in flight now."""
        return self._concurrency.limit

    @property
    def rate_limit_per_s(self) -> float | None:
        """The learnt request rate, None before the first throttled answer."""
        return self._rate.limit_per_s

    def join(self, now_s: float, priority: Priority, bytes_hint: int, budget: Budget) -> Demand:
        """Queue a demand; `grant` says when it may go.

        Raises:
            OverloadedError: Too many of this priority wait already.
        """
        waiting = self._classes[priority].waiting
        if len(waiting) >= self._settings.queue_max:
            raise OverloadedError(
                "too many requests wait for the origin", retry_after_s=self.retry_after_s(now_s)
            )
        demand = Demand(priority, budget, bytes_hint, now_s)
        waiting[id(demand)] = demand
        self._waiting += 1
        return demand

    def leave(self, demand: Demand) -> None:
        """Forget a demand that is still waiting."""
        assert demand.granted_at_s is None, "a demand in flight is finished, not left"
        del self._classes[demand.priority].waiting[id(demand)]
        self._waiting -= 1

    def grant(self, now_s: float) -> tuple[list[Demand], float | None]:
        """Let through what may go now, in order; say in how many seconds more may go, None where no time helps."""
        if now_s < self._paused_until_s:
            return [], (self._paused_until_s - now_s if self._waiting else None)
        granted: list[Demand] = []
        while self._waiting:
            best, wake_s = self._next(now_s)
            if best is None:
                return granted, wake_s
            granted.append(self._let_through(now_s, best))
        return granted, None

    def finish(
        self,
        now_s: float,
        demand: Demand,
        feedback: Feedback,
        *,
        bytes_moved: int,
        retry_after_s: float | None,
    ) -> None:
        """Take the slot back and learn from the answer. `bytes_moved` settles the hint that was paid."""
        assert demand.granted_at_s is not None, "only what was let through finishes"
        sent_at_s = demand.granted_at_s
        match feedback:
            case Feedback.SUCCESS:
                self._concurrency.succeeded(in_flight=self._in_flight)
            case Feedback.THROTTLED:
                self._concurrency.overloaded(now_s, sent_at_s=sent_at_s)
                self._rate.throttled(now_s, sent_at_s=sent_at_s)
                if retry_after_s is not None:
                    self._paused_until_s = max(self._paused_until_s, now_s + min(retry_after_s, PAUSE_S_MAX))
            case Feedback.TIMED_OUT:
                self._concurrency.overloaded(now_s, sent_at_s=sent_at_s)
                self._rate.timed_out(now_s, sent_at_s=sent_at_s)
            case Feedback.NEUTRAL:
                pass
        bucket = self._bytes[demand.budget]
        if bucket is not None:
            bucket.charge(now_s, bytes_moved - demand.bytes_hint)
        self._in_flight -= 1
        assert self._in_flight >= 0, "each demand finishes once"

    def retry_after_s(self, now_s: float) -> float:
        """Say when a refused caller may come again."""
        return max(1.0, self._paused_until_s - now_s)

    def _next(self, now_s: float) -> tuple[Priority | None, float | None]:
        best: Priority | None = None
        best_tag = float("inf")
        wake_s: float | None = None
        for priority, line in self._classes.items():
            if not line.waiting or not self._has_slot(priority):
                continue
            wait_s = self._wait_s(now_s, next(iter(line.waiting.values())).budget)
            if wait_s > 0.0:
                wake_s = wait_s if wake_s is None else min(wake_s, wait_s)
                continue
            tag = max(line.finish_tag, self._virtual)
            if tag < best_tag:
                best, best_tag = priority, tag
        return best, wake_s

    def _has_slot(self, priority: Priority) -> bool:
        limit = self._concurrency.limit
        if priority is not Priority.FOREGROUND:
            limit -= limit // 4
        return self._in_flight < limit

    def _wait_s(self, now_s: float, budget: Budget) -> float:
        wait_s = self._rate.wait_s(now_s)
        requests, moved = self._requests[budget], self._bytes[budget]
        if requests is not None:
            wait_s = max(wait_s, requests.wait_s(now_s, 1.0))
        if moved is not None:
            wait_s = max(wait_s, moved.wait_s(now_s))
        return wait_s

    def _let_through(self, now_s: float, priority: Priority) -> Demand:
        line = self._classes[priority]
        self._virtual = max(line.finish_tag, self._virtual)
        line.finish_tag = self._virtual + 1.0 / line.weight
        _, demand = line.waiting.popitem(last=False)
        self._waiting -= 1
        self._in_flight += 1
        demand.granted_at_s = now_s
        self._rate.sent(now_s)
        requests, moved = self._requests[demand.budget], self._bytes[demand.budget]
        if requests is not None:
            requests.charge(now_s, 1.0)
        if moved is not None:
            moved.charge(now_s, demand.bytes_hint)
        return demand


def _bucket(rate: float | None, burst_min: float, now_s: float) -> TokenBucket | None:
    """Make a bucket with half a second of burst, None for no limit."""
    return None if rate is None else TokenBucket(rate=rate, burst=max(burst_min, rate / 2), now_s=now_s)
