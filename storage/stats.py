"""What storage counts: plain numbers that the hot path adds to and the exporter reads when it is scraped.

A counter is an attribute or a small dict, so that counting costs one addition; nothing here knows the exporter. Keys come
from closed sets (enums, operation names in the code, HTTP statuses), never from a client, so every dict stays small. All of
it is touched on the event loop only. Levels (`*_bytes`, `*_objects`) are set by their owners, counters only grow.

Pure: time comes in as `now_s`, monotonic.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final, Protocol

from storage.reasons import LastAnswers
from storage.types import CacheResult, Priority
from storage.warm_jobs import WarmResult

WINDOW_S: Final = 300
"""The span of `cache_hit_ratio`."""

BUCKET_S: Final = 10
"""The window moves in steps of this many seconds."""

LATENCY_BOUNDS_S: Final = (
    0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
"""Upper bounds of the latency histograms: from a warm GET (about 0.1 ms) to an origin time-out."""

assert WINDOW_S % BUCKET_S == 0, "a window is whole buckets"


class Histogram:
    """How often a duration fell under each bound.

    Attributes:
        bounds: Ascending upper bounds, inclusive.
        counts: One a bound, and one more for what is above all; not cumulative.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS_S) -> None:
        self.bounds: Final = bounds
        self.counts: Final = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    @property
    def count(self) -> int:
        """How many values were counted."""
        return sum(self.counts)


class RatioWindow:
    """A share over the last WINDOW_S seconds, in a ring of BUCKET_S buckets."""

    __slots__ = ("_newest", "_part", "_whole")

    def __init__(self) -> None:
        size = WINDOW_S // BUCKET_S
        self._part = [0] * size
        self._whole = [0] * size
        self._newest = 0

    def add(self, part: int, whole: int, now_s: float) -> None:
        """Count `whole` things of which `part` had the property."""
        self._advance(now_s)
        place = self._newest % len(self._whole)
        self._part[place] += part
        self._whole[place] += whole

    def ratio(self, now_s: float) -> float:
        """Give the share, 0.0 where nothing was counted."""
        self._advance(now_s)
        whole = sum(self._whole)
        return sum(self._part) / whole if whole else 0.0

    def _advance(self, now_s: float) -> None:
        bucket = int(now_s // BUCKET_S)
        size = len(self._whole)
        # Monotonic time does not go back; a caller's slightly older `now_s` counts in the newest bucket.
        for passed in range(max(self._newest + 1, bucket - size + 1), bucket + 1):
            self._part[passed % size] = self._whole[passed % size] = 0
        self._newest = max(self._newest, bucket)


class OriginTime:
    """How long one request of a client waited for the origin; the access log's `origin_s` and `limiter_s`.

    Attributes:
        client: Whose request it is, for the turns that clients take at the limiter; "" for the gateway's own.
        limiter_s: Seconds that its calls of the origin waited for their turn.
    """

    __slots__ = ("client", "limiter_s", "spent_s")

    def __init__(self, client: str = "") -> None:
        self.client = client
        self.limiter_s = 0.0
        self.spent_s = 0.0


origin_time: Final[ContextVar[OriginTime | None]] = ContextVar("origin_time", default=None)
"""The request being served in this context; tasks started from it inherit it. None in background work."""


def charge_origin(duration_s: float) -> None:
    """Charge the time of a call of the origin to the client's request that it was made for, if any."""
    charged = origin_time.get()
    if charged is not None:
        charged.spent_s += duration_s


def charge_limiter(waited_s: float) -> None:
    """Charge a wait for the limiter to the client's request that it was for, if any."""
    charged = origin_time.get()
    if charged is not None:
        charged.limiter_s += waited_s


def asking_client() -> str:
    """Say whose request is being served in this context; "" in background work."""
    charged = origin_time.get()
    return "" if charged is None else charged.client


class CallSeconds(Protocol):
    """How long one kind of call took: so many up to each bound, and in all."""

    counts: list[int]
    total_s: float
    count: int


class OriginFigures(Protocol):
    """What is counted of calls of the origin; `storage/origin/counters.py`."""

    bytes_in: int
    bytes_out: int
    ranges_ignored: int

    @property
    def requests(self) -> Mapping[tuple[str, str], int]:
        """Attempts by (operation, status or kind of failure)."""
        ...

    @property
    def seconds(self) -> Mapping[str, CallSeconds]:
        """Time to the head of the answer, by operation."""
        ...


class PinFigures(Protocol):
    """What is pinned; `storage/pins.py`."""

    held_bytes: int
    limit_bytes: int
    refused_bytes: int


class EvictionFigures(Protocol):
    """What the eviction policy shows; `storage/gittins_policy.py`."""

    @property
    def price(self) -> float:
        """What a byte of cache is worth now, in hits a unit of traffic."""
        ...

    @property
    def pins(self) -> PinFigures:
        """What is pinned, and how much may be."""
        ...

    def hit_bound(self) -> float:
        """Estimate which share of the bytes read could be here at most, were each read once an epoch: C/N."""
        ...


class LimiterFigures(Protocol):
    """What the limiter in front of the origin shows; `storage/origin/admission.py`."""

    throttled_total: int
    refused_total: int
    away_total: int
    waits: dict[Priority, Histogram]

    @property
    def concurrency_limit(self) -> int:
        """Calls that may run at once to the bucket that bears least."""
        ...

    @property
    def rate_limit_per_s(self) -> float | None:
        """The lowest learnt request rate of a bucket; None without one."""
        ...

    @property
    def paused_buckets(self) -> int:
        """Buckets that wait out a Retry-After."""
        ...

    @property
    def away(self) -> dict[str, float]:
        """Buckets whose origin does not answer, and for how many seconds."""
        ...

    @property
    def waiting_by_class(self) -> dict[Priority, int]:
        """Calls that wait now, by priority."""
        ...

    @property
    def in_flight(self) -> int:
        """Calls at the origin now."""
        ...

    @property
    def waiting(self) -> int:
        """Calls that wait now."""
        ...


class Stats:
    """All counters and levels of one engine.

    Attributes:
        cache_requests: GETs by result; counted by the gateway, by what `x-cache` said.
        cache_bytes: Bytes handed to readers, by source `cache` or `origin`.
        readahead_bytes: Bytes asked for ahead of readers: `begun` in all, `used` by the reader that they were for, `wasted` because
            they came for one that went, or that never came.
        evicted_bytes: Bytes that reclaim dropped, by reason: for `space`, `released` after their flush, `pinned` as nothing else could go.
        rewritten_bytes: Bytes that reclaim appended elsewhere, as they were worth more than their space.
        admitted_bytes: Bytes that were to be filled and were kept.
        bypassed_bytes: Bytes that passed the cache, since what would have gone for them was worth more.
        bypassed_fills: How often that was so.
        flushed: Finished flush attempts by result: `done`, `retried`, `quarantined`, `superseded`.
        reopenings: How often the cache directory was opened again after a failure of its disk, by result: `done`, `failed`.
        unreadable_dirty_objects: Acknowledged objects whose bytes are neither readable here nor at the origin.
        early_parts: Attempts to send a part before its upload's Complete, by result: `sent`, `failed`.
        early_bytes: Bytes of open uploads that the origin has too.
        oldest_pending_at_s: Wall time of the oldest acknowledgement not yet at the origin; 0 without one.
        scrub_round_bytes: What the round under way has read; `scrub_done_at_s` is the wall time of the last one's end, 0 before.
        scrub_damaged: Damaged blocks that the scrub found, `clean` or `dirty`.
        last_answers: Of reads that were no plain hits.
        warm_jobs: Warm-ups that run; `warm_objects` counts what became of each object, `warm_bytes` what was fetched for them.
        remembered_absences: 404s that a policy's `negative_ttl` answered.
        origin: Set by the engine once the origin's client exists.
        limiter: Likewise.
    """

    def __init__(self) -> None:
        # Known labels start at 0: a rate over a series that appears at its first event misses that event.
        self.cache_requests: Final[Counter[CacheResult]] = Counter(dict.fromkeys(CacheResult, 0))
        self.cache_bytes: Final[Counter[str]] = Counter(cache=0, origin=0)
        self.readahead_bytes: Final[Counter[str]] = Counter(begun=0, used=0, wasted=0)
        self.evicted_bytes: Final[Counter[str]] = Counter()
        self.rewritten_bytes = 0
        self.admitted_bytes = 0
        self.bypassed_bytes = 0
        self.bypassed_fills = 0
        self.flushed: Final[Counter[str]] = Counter()
        self.early_parts: Final[Counter[str]] = Counter(sent=0, failed=0)
        self.early_bytes = 0
        self.cache_clean_bytes = 0
        self.cache_dirty_bytes = 0
        self.cache_capacity_bytes = 0
        self.pending_objects = 0
        self.pending_bytes = 0
        self.oldest_pending_at_s = 0.0
        self.quarantined_objects = 0
        self.unreadable_dirty_objects = 0
        self.reopenings: Final[Counter[str]] = Counter(done=0, failed=0)
        self.scrub_bytes = 0
        self.scrub_round_bytes = 0
        self.scrub_rounds = 0
        self.scrub_done_at_s = 0.0
        self.scrub_damaged: Final[Counter[str]] = Counter(clean=0, dirty=0)
        self.last_answers: Final = LastAnswers()
        self.remembered_absences = 0
        self.warm_jobs = 0
        self.warm_objects: Final[Counter[str]] = Counter(dict.fromkeys(WarmResult, 0))
        self.warm_bytes = 0
        self.origin: OriginFigures | None = None
        self.limiter: LimiterFigures | None = None
        self.eviction: EvictionFigures | None = None
        self._hit_requests = RatioWindow()
        self._hit_bytes = RatioWindow()

    def count_request(self, result: CacheResult, now_s: float) -> None:
        """Count one GET; HIT and STALE were answered without a byte of the origin's."""
        self.cache_requests[result] += 1
        is_hit = result is CacheResult.HIT or result is CacheResult.STALE
        self._hit_requests.add(int(is_hit), 1, now_s)

    def count_bytes(self, *, from_cache: int = 0, from_origin: int = 0, now_s: float) -> None:
        """Count bytes handed to a reader by where they came from."""
        self.cache_bytes["cache"] += from_cache
        self.cache_bytes["origin"] += from_origin
        self._hit_bytes.add(from_cache, from_cache + from_origin, now_s)

    def hit_ratio_requests(self, now_s: float) -> float:
        """Give the share of GETs answered without the origin's bytes, over the last WINDOW_S seconds."""
        return self._hit_requests.ratio(now_s)

    def hit_ratio_bytes(self, now_s: float) -> float:
        """Give the share of bytes that came from the cache, over the last WINDOW_S seconds."""
        return self._hit_bytes.ratio(now_s)
