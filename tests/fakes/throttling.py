"""A gate before an origin whose token bucket throttles, in virtual time: what a cold dataset and many readers do to each other.

Readers ask for one object after another and ask again where they were throttled, as the gateway's retries do. Every request takes half
of the latency to the origin and half back, each within a fifth. Nothing waits in real time; 10,000 requests take about a second.
"""

import random
from dataclasses import dataclass, field
from heapq import heappop, heappush

from storage.origin.limiter import Budget, Demand, Feedback, Gate, LimiterSettings
from storage.origin.pacing import TokenBucket
from storage.types import Priority

TIMER_S_MIN = 0.001


@dataclass(frozen=True, slots=True)
class Throttling:
    """An origin, and who asks it.

    Attributes:
        rates: Requests a second that it takes, from each time on.
        latency_s: From sending a request to its answer.
    """

    rates: tuple[tuple[float, float], ...]
    burst: float = 20.0
    latency_s: float = 0.02
    readers: int = 64
    concurrency_max: int = 64
    requests_per_s: float | None = None
    seed: int = 1


@dataclass(slots=True)
class Outcome:
    """How many requests the origin took and refused, a second each."""

    taken: list[int] = field(default_factory=list)
    refused: list[int] = field(default_factory=list)

    def share_refused(self, begin_s: int, end_s: int) -> float:
        """Say which part of the requests in these seconds was refused."""
        taken, refused = sum(self.taken[begin_s:end_s]), sum(self.refused[begin_s:end_s])
        return refused / max(1, taken + refused)

    def worst_second(self, begin_s: int = 0) -> float:
        """Give the largest such part of one second."""
        return max(self.share_refused(second, second + 1) for second in range(begin_s, len(self.taken)))


class _Run:
    def __init__(self, world: Throttling, seconds: int) -> None:
        self.world = world
        self.rng = random.Random(world.seed)
        self.gate = Gate(
            LimiterSettings(concurrency_max=world.concurrency_max, requests_per_s=world.requests_per_s), 0.0
        )
        self.bucket = TokenBucket(rate=world.rates[0][1], burst=world.burst, now_s=0.0)
        self.events: list[tuple[float, int, str, Demand | None, bool]] = []
        self.number = 0
        self.timer = 0
        self.outcome = Outcome([0] * seconds, [0] * seconds)

    def later(self, at_s: float, kind: str, demand: Demand | None = None, *, is_taken: bool = False) -> int:
        self.number += 1
        heappush(self.events, (at_s, self.number, kind, demand, is_taken))
        return self.number

    def travel_s(self) -> float:
        return self.world.latency_s / 2 * self.rng.uniform(0.8, 1.2)

    def pump(self, now_s: float) -> None:
        granted, wake_s = self.gate.grant(now_s)
        for demand in granted:
            self.later(now_s + self.travel_s(), "arrives", demand)
        self.timer = 0 if wake_s is None else self.later(now_s + max(TIMER_S_MIN, wake_s), "timer")

    def ask(self, now_s: float) -> None:
        self.gate.join(now_s, Priority.FOREGROUND, 0, Budget.GENERAL, bucket="data")

    def run(self, seconds: int) -> Outcome:
        for at_s, rate in self.world.rates[1:]:
            self.later(at_s, f"rate {rate}")
        for _ in range(self.world.readers):
            self.ask(0.0)
        self.pump(0.0)
        while self.events:
            now_s, number, kind, demand, is_taken = heappop(self.events)
            if now_s >= seconds:
                break
            if kind == "arrives":
                is_taken = self.bucket.take(now_s, 1.0) == 0.0
                counts = self.outcome.taken if is_taken else self.outcome.refused
                counts[int(now_s)] += 1
                self.later(now_s + self.travel_s(), "answered", demand, is_taken=is_taken)
            elif kind == "answered":
                assert demand is not None, "an answer is to a demand"
                feedback = Feedback.SUCCESS if is_taken else Feedback.THROTTLED
                self.gate.finish(now_s, demand, feedback, bytes_moved=0, retry_after_s=None)
                self.ask(now_s)
                self.pump(now_s)
            elif kind != "timer":
                self.bucket.set_rate(now_s, rate=float(kind.split()[1]), burst=self.world.burst)
            elif number == self.timer:
                self.pump(now_s)
        return self.outcome


def storm(world: Throttling, seconds: int) -> Outcome:
    """Let the readers read for so many virtual seconds."""
    return _Run(world, seconds).run(seconds)
