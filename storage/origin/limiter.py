"""Decide what may go to the origin now: rates, learnt limits, priorities, fairness, a bounded queue.

Pure: `now_s` comes in, decisions go out; `admission.py` carries them out. Theory of operation:

- `Gate.join` queues a demand in its priority's line, or refuses it where that line is full or its bucket's origin is away.
- `Gate.grant` lets waiting demands through while a slot, a request token and a byte budget are there. Which class is next is
  decided by weights (start-time fair queueing): a class gets at least its share of what all ask for, so none starves, and
  what a class does not use goes to the others. Unused credit is not saved up. Within a class clients take turns (`fair_queue.py`).
- `Gate.finish` takes back the slot and learns from the answer (`pacing.py`, `circuit.py`).

Caps of the settings hold over everything that is sent, whatever is learnt: in any `t` seconds at most `rate * t` and a burst of a
twentieth of a second leave. What flushes send counts against their own caps too. What is learnt is learnt for each bucket, since S3 limits
each for itself (AWS User Guide "Optimizing Amazon S3 performance"): a bucket that is throttled, paused or away holds up no other.

Classes behind the foreground leave a quarter of the slots free, so that a reader never waits for flushes alone. Uploads that are passed
on as their clients send them have half of what is set at most. One that waits for its client rests meanwhile: it keeps the origin busy
with nothing, and takes no slot of what is learnt; nor do those that go on all at once take more than half of it from others. So
slow clients hold up nobody but other uploads. Bytes are
paid when the demand is let through, in full; a budget in debt lets nothing more through until it is paid. (Waiting for
the whole amount to be there would starve large bodies behind small ones.)
"""

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from storage.errors import OriginAwayError, OverloadedError, StorageError
from storage.origin.circuit import Circuit
from storage.origin.fair_queue import FairQueue
from storage.origin.pacing import BURST_S, AdaptiveConcurrency, AdaptiveRate, TokenBucket
from storage.types import MIB, Priority

if TYPE_CHECKING:
    from collections.abc import Callable

WEIGHTS: Final = {
    Priority.FOREGROUND: 64.0,
    Priority.UPLOAD: 32.0,
    Priority.URGENT_FLUSH: 16.0,
    Priority.VALIDATION: 8.0,
    Priority.FLUSH: 4.0,
    Priority.EARLY_FLUSH: 2.0,
    Priority.READAHEAD: 2.0,
    Priority.WARM_UP: 1.0,
}
"""Shares of the classes where all of them wait. The foreground has half, warm-up less than one in a hundred."""

assert set(WEIGHTS) == set(Priority), "each priority has a weight"

PAUSE_S_MAX: Final = 30.0
"""A longer Retry-After is cut to this, so that a wrong one does not stop the gateway for hours."""

SITES_MAX: Final = 1000
"""So many buckets are known to the limiter; beyond it the one that was used longest ago is forgotten, if nothing of it is under way."""

CONCURRENCY_BACK: Final = 2
"""So many requests at a time at first to a bucket that was away."""

FEW: Final = 16
"""A full line takes in who waits with less than this part of it, so that no client's requests keep all others out."""


class Budget(StrEnum):
    """Which budgets a demand is paid from beside the one of all."""

    GENERAL = "general"
    FLUSH = "flush"


class Feedback(StrEnum):
    """What an attempt says about the origin's load."""

    SUCCESS = "success"
    THROTTLED = "throttled"
    TIMED_OUT = "timed_out"
    FAILED = "failed"
    """There was no connection, or only somebody's word that the origin cannot be reached."""
    NEUTRAL = "neutral"


@dataclass(frozen=True, slots=True)
class LimiterSettings:
    """Bounds of the limiter. A rate of None is unlimited.

    Attributes:
        concurrency_start: In flight to one bucket before anything is learnt.
        concurrency_max: In flight in all.
        bucket_concurrency_max: In flight to one bucket; None for no bound of its own.
        bucket_requests_per_s: To one bucket.
        queue_max: Waiting demands of one priority; more are refused, but for those of clients that wait with few.
        wait_s_max: A demand that waited longer is refused.
    """

    concurrency_start: int = 12
    concurrency_max: int = 256
    bucket_concurrency_max: int | None = None
    requests_per_s: float | None = None
    bucket_requests_per_s: float | None = None
    flush_requests_per_s: float | None = None
    bytes_per_s: float | None = None
    flush_bytes_per_s: float | None = None
    queue_max: int = 4096
    wait_s_max: float = 30.0

    def __post_init__(self) -> None:
        if self.queue_max < 1 or self.wait_s_max <= 0:
            raise ValueError("queue_max and wait_s_max must be positive")
        if self.concurrency_max < 1 or (self.bucket_concurrency_max or 1) < 1:
            raise ValueError("something must be able to run")


class Demand:
    """One request that wants to go: waiting, then in flight, then finished. Made and owned by `Gate`.

    Attributes:
        is_probe: It looks whether an origin that was away is back.
        rests_since_s: Since when it waits for its own client; None while bytes flow.
        rested_s: How long it did so before.
        refusal: Why it will never go; it waits no more then.
        on_grant: Called by the owner when either has come.
    """

    __slots__ = (
        "bucket",
        "budget",
        "bytes_hint",
        "client",
        "granted_at_s",
        "is_probe",
        "joined_at_s",
        "on_grant",
        "priority",
        "refusal",
        "rested_s",
        "rests_since_s",
    )

    def __init__(  # all that a demand is
        self,
        priority: Priority,
        budget: Budget,
        bytes_hint: int,
        joined_at_s: float,
        *,
        bucket: str = "",
        client: str = "",
    ) -> None:
        self.priority = priority
        self.budget = budget
        self.bytes_hint = bytes_hint
        self.joined_at_s = joined_at_s
        self.bucket = bucket
        self.client = client
        self.granted_at_s: float | None = None
        self.is_probe = False
        self.rests_since_s: float | None = None
        self.rested_s = 0.0
        self.refusal: StorageError | None = None
        self.on_grant: Callable[[], object] | None = None


class _Class:
    """The demands of one priority that wait, and the class's place in the fair queue of classes."""

    __slots__ = ("finish_tag", "waiting", "weight")

    def __init__(self, weight: float) -> None:
        self.waiting: FairQueue[Demand] = FairQueue()
        self.finish_tag = 0.0
        self.weight = weight


class _Site:
    """What is known of one bucket's origin, and what is under way there."""

    __slots__ = (
        "ceiling",
        "circuit",
        "concurrency",
        "in_flight",
        "paused_until_s",
        "rate",
        "requests",
        "resting",
        "uploads",
        "waiting",
    )

    def __init__(self, settings: LimiterSettings, now_s: float) -> None:
        self.ceiling = min(
            settings.concurrency_max, settings.bucket_concurrency_max or settings.concurrency_max
        )
        self.concurrency = AdaptiveConcurrency(
            start=min(settings.concurrency_start, self.ceiling), ceiling=self.ceiling
        )
        self.rate = AdaptiveRate(now_s)
        self.circuit = Circuit()
        self.requests = _requests(settings.bucket_requests_per_s, now_s)
        self.paused_until_s = float("-inf")
        self.in_flight = 0
        self.uploads = 0
        self.resting = 0
        self.waiting = 0

    @property
    def busy(self) -> int:
        """Requests under way that do not wait for their own client."""
        return self.in_flight - self.resting

    def has_slot(self, priority: Priority) -> bool:
        """Whether one more of a class may be under way."""
        limit, awake = self.concurrency.limit, self.uploads - self.resting
        if not _has_slot(priority, self.in_flight, self.ceiling):
            return False
        if priority is Priority.UPLOAD:
            may_have_more = 2 * self.uploads < self.ceiling and 2 * awake < limit
            return may_have_more and _has_slot(priority, self.busy, limit)
        # Uploads come back from their rest without being asked: what they take beyond their half is not taken from others.
        return _has_slot(priority, self.busy - max(0, awake - limit // 2), limit)

    def wait_s(self, now_s: float) -> float:
        """Say in how many seconds the next request may go; inf where none will before something else happens."""
        if not self.circuit.may_pass(now_s):
            return float("inf")
        wait_s = max(0.0, self.paused_until_s - now_s, self.rate.wait_s(now_s))
        return wait_s if self.requests is None else max(wait_s, self.requests.wait_s(now_s, 1.0))

    def sent(self, now_s: float, demand: Demand) -> None:
        """Pay for a request that goes now."""
        self.in_flight += 1
        self.uploads += demand.priority is Priority.UPLOAD
        self.waiting -= 1
        demand.is_probe = self.circuit.passed()
        self.rate.sent(now_s)
        if self.requests is not None:
            self.requests.charge(now_s, 1.0)

    def throttled(self, now_s: float, *, sent_at_s: float, retry_after_s: float | None) -> None:
        """Learn from an answer that asks for less."""
        self.rate.throttled(now_s, sent_at_s=sent_at_s)
        self.concurrency.overloaded(now_s, sent_at_s=sent_at_s, rate_per_s=self.rate.limit_per_s or 0.0)
        if retry_after_s is not None:
            self.paused_until_s = max(self.paused_until_s, now_s + min(retry_after_s, PAUSE_S_MAX))


class Gate:
    """The limiter's state. Synchronous: nothing interleaves within a call."""

    def __init__(self, settings: LimiterSettings, now_s: float) -> None:
        self._settings = settings
        self._classes = {priority: _Class(WEIGHTS[priority]) for priority in Priority}
        self._sites: OrderedDict[str, _Site] = OrderedDict()
        self._virtual = 0.0
        self._waiting = 0
        self._in_flight = 0
        self._uploads = 0
        self._refused: list[Demand] = []
        self._requests = {
            Budget.GENERAL: _requests(settings.requests_per_s, now_s),
            Budget.FLUSH: _requests(settings.flush_requests_per_s, now_s),
        }
        self._bytes = {
            Budget.GENERAL: _bytes(settings.bytes_per_s, now_s),
            Budget.FLUSH: _bytes(settings.flush_bytes_per_s, now_s),
        }

    @property
    def in_flight(self) -> int:
        """Demands let through and not finished."""
        return self._in_flight

    @property
    def resting(self) -> int:
        """Of those, uploads that wait for their own client."""
        return sum(site.resting for site in self._sites.values())

    @property
    def waiting(self) -> int:
        """Demands not yet let through."""
        return self._waiting

    def waiting_by_class(self) -> dict[Priority, int]:
        """Say how many wait in each class."""
        return {priority: len(line.waiting) for priority, line in self._classes.items()}

    @property
    def concurrency_limit(self) -> int:
        """What may be in flight now to the bucket that bears least of those that are known."""
        limits = (site.concurrency.limit for site in self._sites.values())
        return min(limits, default=min(self._settings.concurrency_start, self._settings.concurrency_max))

    @property
    def rate_limit_per_s(self) -> float | None:
        """The lowest learnt request rate of a bucket, None before the first throttled answer."""
        rates = [site.rate.limit_per_s for site in self._sites.values()]
        return min((rate for rate in rates if rate is not None), default=None)

    def paused(self, now_s: float) -> int:
        """Say how many buckets wait out a Retry-After."""
        return sum(now_s < site.paused_until_s for site in self._sites.values())

    def away(self, now_s: float) -> dict[str, float]:
        """Give the buckets whose origin is away, and for how many seconds; "" is the service itself."""
        sites = self._sites.items()
        return {bucket: site.circuit.away_s(now_s) for bucket, site in sites if site.circuit.is_open}

    def join(
        self,
        now_s: float,
        priority: Priority,
        bytes_hint: int,
        budget: Budget,
        *,
        bucket: str = "",
        client: str = "",
    ) -> Demand:
        """Queue a demand; `grant` says when it may go, or that it may not.

        Raises:
            OriginAwayError: The bucket's origin is away, and it is not yet time to look again.
            OverloadedError: Too many of this priority wait already.
        """
        site = self._site(bucket, now_s)
        if not site.circuit.may_pass(now_s) or (site.circuit.is_open and site.waiting):
            raise _away(site, now_s)
        line = self._classes[priority].waiting
        room = self._settings.queue_max
        if len(line) >= room and (len(line) >= 2 * room or line.waiting_of(client) >= room // FEW):
            raise OverloadedError(
                "too many requests wait for the origin", retry_after_s=self.retry_after_s(now_s, bucket)
            )
        demand = Demand(priority, budget, bytes_hint, now_s, bucket=bucket, client=client)
        line.add(demand)
        site.waiting += 1
        self._waiting += 1
        return demand

    def leave(self, demand: Demand) -> None:
        """Forget a demand that is still waiting."""
        assert demand.granted_at_s is None, "a demand in flight is finished, not left"
        if demand.refusal is None:
            self._classes[demand.priority].waiting.discard(demand)
            self._sites[demand.bucket].waiting -= 1
            self._waiting -= 1

    def grant(self, now_s: float) -> tuple[list[Demand], float | None]:
        """Let through what may go now, in order; say in how many seconds more may go, None where no time helps."""
        granted: list[Demand] = []
        while self._waiting:
            best, wake_s = self._next(now_s)
            if best is None:
                return granted, wake_s
            self._let_through(now_s, best)
            granted.append(best)
        return granted, None

    def refused(self) -> list[Demand]:
        """Give what will never go, since its bucket's origin is away by now; each once."""
        refused, self._refused = self._refused, []
        return refused

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
        self.wake(now_s, demand)
        site, sent_at_s = self._sites[demand.bucket], demand.granted_at_s
        self._note_life(now_s, demand, site, feedback)
        match feedback:
            case Feedback.SUCCESS:
                site.concurrency.succeeded(in_flight=site.busy, held_s=now_s - sent_at_s - demand.rested_s)
                if site.rate.succeeded(sent_at_s=sent_at_s):
                    site.concurrency.restore()
            case Feedback.THROTTLED:
                site.throttled(now_s, sent_at_s=sent_at_s, retry_after_s=retry_after_s)
            case Feedback.TIMED_OUT:
                site.concurrency.overloaded(now_s, sent_at_s=sent_at_s)
                site.rate.timed_out(now_s, sent_at_s=sent_at_s)
            case Feedback.FAILED | Feedback.NEUTRAL:
                pass
        for budget in {Budget.GENERAL, demand.budget}:
            bucket = self._bytes[budget]
            if bucket is not None:
                bucket.charge(now_s, bytes_moved - demand.bytes_hint)
        site.in_flight -= 1
        self._in_flight -= 1
        if demand.priority is Priority.UPLOAD:
            site.uploads -= 1
            self._uploads -= 1
        assert site.in_flight >= 0, "each demand finishes once"

    def rest(self, now_s: float, demand: Demand) -> bool:
        """Note that an upload in flight waits for its own client; say whether that is news, by which others may go.

        It looks no more whether an origin that was away is back: its client may take all the time in the world.
        """
        assert demand.granted_at_s is not None, "only what was let through rests"
        assert demand.priority is Priority.UPLOAD, "only uploads wait for a client"
        if demand.rests_since_s is not None:
            return False
        site = self._sites[demand.bucket]
        demand.rests_since_s = now_s
        site.resting += 1
        if demand.is_probe:
            demand.is_probe = False
            site.circuit.gave_up()
        return True

    def wake(self, now_s: float, demand: Demand) -> None:
        """Note that its bytes flow again. Nobody waits for that: what is under way may be over what is learnt meanwhile."""
        if demand.rests_since_s is not None:
            demand.rested_s += now_s - demand.rests_since_s
            demand.rests_since_s = None
            self._sites[demand.bucket].resting -= 1

    def answered(self, demand: Demand) -> None:
        """Note that the origin has answered, whatever it said; whoever comes now is let through again, few at a time at first."""
        site = self._sites[demand.bucket]
        if site.circuit.answered():
            site.concurrency.restart(CONCURRENCY_BACK)

    def retry_after_s(self, now_s: float, bucket: str = "") -> float:
        """Say when a refused caller may come again."""
        site = self._sites.get(bucket)
        return 1.0 if site is None else max(1.0, site.paused_until_s - now_s)

    def _note_life(self, now_s: float, demand: Demand, site: _Site, feedback: Feedback) -> None:
        """Tell the circuit whether the origin is there; where it went away, turn away all that wait for it."""
        assert demand.granted_at_s is not None, "it went"
        match feedback:
            case Feedback.SUCCESS | Feedback.THROTTLED:
                self.answered(demand)
            case Feedback.TIMED_OUT | Feedback.FAILED:
                if site.circuit.failed(now_s, sent_at_s=demand.granted_at_s, is_probe=demand.is_probe):
                    self._turn_away(now_s, demand.bucket, site)
            case Feedback.NEUTRAL:
                if demand.is_probe:
                    site.circuit.gave_up()

    def _turn_away(self, now_s: float, bucket: str, site: _Site) -> None:
        for line in self._classes.values():
            for demand in line.waiting.drop_bucket(bucket):
                demand.refusal = _away(site, now_s)
                site.waiting -= 1
                self._waiting -= 1
                self._refused.append(demand)

    def _site(self, bucket: str, now_s: float) -> _Site:
        site = self._sites.get(bucket)
        if site is None:
            if len(self._sites) >= SITES_MAX:
                self._forget_one()
            site = self._sites[bucket] = _Site(self._settings, now_s)
        self._sites.move_to_end(bucket)
        return site

    def _forget_one(self) -> None:
        for bucket, site in self._sites.items():
            if not site.in_flight and not site.waiting:
                del self._sites[bucket]
                return

    def _next(self, now_s: float) -> tuple[Demand | None, float | None]:
        best: Demand | None = None
        best_tag = float("inf")
        wake_s: float | None = None
        waits: dict[str, float] = {}
        for priority, line in self._classes.items():
            tag = max(line.finish_tag, self._virtual)
            if (
                not line.waiting
                or tag >= best_tag
                or not _has_slot(priority, self._in_flight, self._settings.concurrency_max)
                or (priority is Priority.UPLOAD and not self._takes_uploads())
            ):
                continue
            head, wait_s = self._head(now_s, priority, line, waits)
            if head is not None:
                best, best_tag = head, tag
            elif wait_s < float("inf"):
                wake_s = wait_s if wake_s is None else min(wake_s, wait_s)
        return best, wake_s

    def _head(
        self, now_s: float, priority: Priority, line: _Class, waits: dict[str, float]
    ) -> tuple[Demand | None, float]:
        """Find which demand of a class is next of those whose bucket may be asked; else in how many seconds one may be."""
        best: tuple[float, int, Demand] | None = None
        soonest_s = float("inf")
        for demand_at in self._heads(line):
            demand = demand_at[2]
            site = self._sites[demand.bucket]
            if not site.has_slot(priority):
                continue
            if demand.bucket not in waits:
                waits[demand.bucket] = site.wait_s(now_s)
            wait_s = max(waits[demand.bucket], self._budget_wait_s(now_s, demand.budget))
            if wait_s > 0.0:
                soonest_s = min(soonest_s, wait_s)
            elif best is None or demand_at[:2] < best[:2]:
                best = demand_at
        return (None if best is None else best[2]), soonest_s

    def _heads(self, line: _Class) -> Iterator[tuple[float, int, Demand]]:
        for bucket in line.waiting.buckets():
            head = line.waiting.head(bucket)
            if head is not None:
                yield head

    def _budget_wait_s(self, now_s: float, budget: Budget) -> float:
        wait_s = 0.0
        for one in {Budget.GENERAL, budget}:
            requests, moved = self._requests[one], self._bytes[one]
            if requests is not None:
                wait_s = max(wait_s, requests.wait_s(now_s, 1.0))
            if moved is not None:
                wait_s = max(wait_s, moved.wait_s(now_s))
        return wait_s

    def _takes_uploads(self) -> bool:
        """Whether there are few enough that others keep what they may have."""
        return 2 * self._uploads < self._settings.concurrency_max

    def _let_through(self, now_s: float, demand: Demand) -> None:
        line = self._classes[demand.priority]
        self._virtual = max(line.finish_tag, self._virtual)
        line.finish_tag = self._virtual + 1.0 / line.weight
        line.waiting.take(demand)
        self._waiting -= 1
        self._in_flight += 1
        self._uploads += demand.priority is Priority.UPLOAD
        demand.granted_at_s = now_s
        self._sites[demand.bucket].sent(now_s, demand)
        for budget in {Budget.GENERAL, demand.budget}:
            requests, moved = self._requests[budget], self._bytes[budget]
            if requests is not None:
                requests.charge(now_s, 1.0)
            if moved is not None:
                moved.charge(now_s, demand.bytes_hint)


def _has_slot(priority: Priority, in_flight: int, limit: int) -> bool:
    if priority is not Priority.FOREGROUND and limit > 1:
        limit -= max(1, limit // 4)
    return in_flight < limit


def _away(site: _Site, now_s: float) -> OriginAwayError:
    return OriginAwayError(
        # Without the time: the text is kept as the reason of what waits, and told when it is another.
        "the origin does not answer; it is asked again from time to time",
        status=0,
        code="Away",
        retry_after_s=site.circuit.retry_after_s(now_s),
    )


def _requests(rate: float | None, now_s: float) -> TokenBucket | None:
    """Make a bucket of requests, None for no limit; its burst is small, since the origin's may be."""
    return None if rate is None else TokenBucket(rate=rate, burst=max(1.0, rate * BURST_S), now_s=now_s)


def _bytes(rate: float | None, now_s: float) -> TokenBucket | None:
    """Make a bucket of bytes with half a second of burst, None for no limit."""
    return None if rate is None else TokenBucket(rate=rate, burst=max(float(MIB), rate / 2), now_s=now_s)
