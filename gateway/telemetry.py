"""Every metric of Forebay in one table, and the collector that reads them when Prometheus asks.

Nothing on the road of a request touches prometheus_client: its `labels()` costs 2 microseconds a call, a plain addition
0.05. A scrape walks METRICS, reads the counters of `storage.stats` and of `RequestStats`, and is done in a millisecond.
Label values come from closed sets; a key, a bucket or anything else of a client's is never a label.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Final, assert_never

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from storage.clock import Clock
from storage.origin.counters import SECONDS_BOUNDS
from storage.stats import CallSeconds, Histogram, LimiterFigures, PinFigures, Stats
from storage.types import Priority

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
"""The media type of `Exporter.render`."""


class RequestStats:
    """What the gateway counts of its own requests; touched on the event loop only.

    Attributes:
        requests: Answers by (operation, status).
        seconds: From the request's head to the last byte of the answer, by operation.
        body_bytes: Payload bytes by direction, `in` from clients and `out` to them.
        connections: Open connections now.
        refused_connections: Connections turned away because the limit was reached.
        failures: Answers of 500 that no rule foresaw; each has a traceback in the log.
        access_log_dropped: Lines that the access log had no room for.
        settings_reloads: Reloads of the settings by result: `taken` or `refused`.
    """

    def __init__(self) -> None:
        self.requests: Final[Counter[tuple[str, int]]] = Counter()
        self.seconds: Final[dict[str, Histogram]] = {}
        self.body_bytes: Final[Counter[str]] = Counter()
        self.connections = 0
        self.refused_connections = 0
        self.failures = 0
        self.access_log_dropped = 0
        self.settings_reloads: Final[Counter[str]] = Counter(taken=0, refused=0)

    def count(self, operation: str, status: int, duration_s: float) -> None:
        """Count one answered request."""
        self.requests[operation, status] += 1
        histogram = self.seconds.get(operation)
        if histogram is None:
            histogram = self.seconds[operation] = Histogram()
        histogram.observe(duration_s)


@dataclass(frozen=True, slots=True)
class Scrape:
    """What a metric may be read from, at one moment."""

    stats: Stats
    requests: RequestStats
    monotonic_s: float
    wall_s: float


class Kind(StrEnum):
    """What a metric's number means."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


@dataclass(frozen=True, slots=True)
class Summary:
    """How many values there were, and what they add up to."""

    count: int
    total: float


Reading = Mapping[tuple[str, ...], float | Histogram | Summary]
"""A metric's values by its labels' values, in the order of the labels."""


@dataclass(frozen=True, slots=True)
class MetricRow:
    """One metric: its whole name as exported, its labels, what it says, and how it is read."""

    name: str
    kind: Kind
    labels: tuple[str, ...]
    help: str
    read: Callable[[Scrape], Reading] = field(repr=False)


def _one(value: float | Histogram | Summary) -> Reading:
    return {(): value}


def _by_name(values: Mapping[str, int] | Mapping[str, Histogram]) -> Reading:
    return {(name,): value for name, value in values.items()}


def _by_status(counts: Mapping[tuple[str, int], int]) -> Reading:
    return {(operation, str(status)): count for (operation, status), count in counts.items()}


def _oldest_pending_s(scrape: Scrape) -> float:
    oldest_at_s = scrape.stats.oldest_pending_at_s
    return max(0.0, scrape.wall_s - oldest_at_s) if oldest_at_s else 0.0


def _origin_requests(scrape: Scrape) -> Reading:
    if scrape.stats.origin is None:
        return {}
    return {(operation, status): count for (operation, status), count in scrape.stats.origin.requests.items()}


def _origin_seconds(scrape: Scrape) -> Reading:
    if scrape.stats.origin is None:
        return {}
    return {(operation,): _histogram(seconds) for operation, seconds in scrape.stats.origin.seconds.items()}


def _origin_bytes(scrape: Scrape) -> Reading:
    origin = scrape.stats.origin
    return {} if origin is None else {("in",): origin.bytes_in, ("out",): origin.bytes_out}


def _origin_calls(scrape: Scrape) -> Reading:
    limiter = scrape.stats.limiter
    return {} if limiter is None else {("running",): limiter.in_flight, ("waiting",): limiter.waiting}


def _limiter_wait(scrape: Scrape) -> Reading:
    limiter = scrape.stats.limiter
    return {} if limiter is None else {(_class(one),): waits for one, waits in limiter.waits.items()}


def _limiter_waiting(scrape: Scrape) -> Reading:
    limiter = scrape.stats.limiter
    return {} if limiter is None else {(_class(one),): n for one, n in limiter.waiting_by_class.items()}


def _of_limiter(read: Callable[[LimiterFigures], float | int | None]) -> Callable[[Scrape], Reading]:
    """Read one number of the limiter, 0 where there is none."""

    def reading(scrape: Scrape) -> Reading:
        limiter = scrape.stats.limiter
        return _one(0 if limiter is None else read(limiter) or 0)

    return reading


def _of_pins(read: Callable[[PinFigures], int]) -> Callable[[Scrape], Reading]:
    """Read one number of the pins, 0 where there is no policy."""

    def reading(scrape: Scrape) -> Reading:
        eviction = scrape.stats.eviction
        return _one(0 if eviction is None else read(eviction.pins))

    return reading


def _class(priority: Priority) -> str:
    return priority.name.lower()


def _histogram(seconds: CallSeconds) -> Histogram:
    histogram = Histogram(SECONDS_BOUNDS)
    histogram.counts[:-1] = seconds.counts
    histogram.counts[-1] = seconds.count - sum(seconds.counts)
    histogram.total = seconds.total_s
    return histogram


def _hit_distance(scrape: Scrape) -> float:
    bound = 0.0 if scrape.stats.eviction is None else scrape.stats.eviction.hit_bound()
    return scrape.stats.hit_ratio_bytes(scrape.monotonic_s) / bound if bound else 0.0


_C, _G, _H, _S = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM, Kind.SUMMARY

METRICS: Final = (
    MetricRow("forebay_requests_total", _C, ("operation", "status"),
              "Requests answered.", lambda s: _by_status(s.requests.requests)),
    MetricRow("forebay_request_seconds", _H, ("operation",),
              "Time from a request's head to the last byte of its answer.", lambda s: _by_name(s.requests.seconds)),
    MetricRow("forebay_request_body_bytes_total", _C, ("direction",),
              "Payload bytes from (in) and to (out) clients.", lambda s: _by_name(s.requests.body_bytes)),
    MetricRow("forebay_connections", _G, (),
              "Open client connections.", lambda s: _one(s.requests.connections)),
    MetricRow("forebay_refused_connections_total", _C, (),
              "Connections turned away at the limit.", lambda s: _one(s.requests.refused_connections)),
    MetricRow("forebay_failures_total", _C, (),
              "Answers of 500 that no rule foresaw; see the log.", lambda s: _one(s.requests.failures)),
    MetricRow("forebay_access_log_dropped_total", _C, (),
              "Lines that the access log had no room for.", lambda s: _one(s.requests.access_log_dropped)),
    MetricRow("forebay_settings_reloads_total", _C, ("result",),
              "Reloads of the settings: taken, or refused because something in them is wrong.",
              lambda s: _by_name(s.requests.settings_reloads)),
    MetricRow("forebay_cache_requests_total", _C, ("result",),
              "GetObject by cache result: hit, partial, miss, stale, bypass.",
              lambda s: {(result.value.lower(),): n for result, n in s.stats.cache_requests.items()}),
    MetricRow("forebay_cache_absences_total", _C, (),
              "404s that were answered without the origin, under negative_ttl.",
              lambda s: _one(s.stats.remembered_absences)),
    MetricRow("forebay_cache_bytes_total", _C, ("source",),
              "Object bytes served, by where they came from: cache or origin.",
              lambda s: _by_name(s.stats.cache_bytes)),
    MetricRow("forebay_readahead_bytes_total", _C, ("result",),
              "Bytes asked for ahead of sequential readers: begun in all, used by the reader, wasted since none came.",
              lambda s: _by_name(s.stats.readahead_bytes)),
    MetricRow("forebay_cache_hit_ratio", _G, ("unit",),
              "Share served without the origin over the last 5 minutes, by requests and by bytes.",
              lambda s: {("requests",): s.stats.hit_ratio_requests(s.monotonic_s),
                         ("bytes",): s.stats.hit_ratio_bytes(s.monotonic_s)}),
    MetricRow("forebay_cache_used_bytes", _G, ("state",),
              "Bytes on the disk, clean (also at the origin) or dirty (only here).",
              lambda s: {("clean",): s.stats.cache_clean_bytes, ("dirty",): s.stats.cache_dirty_bytes}),
    MetricRow("forebay_cache_capacity_bytes", _G, (),
              "The cache's size limit.", lambda s: _one(s.stats.cache_capacity_bytes)),
    MetricRow("forebay_evicted_bytes_total", _C, ("reason",),
              "Clean bytes dropped from the cache: for space, released after their flush, pinned as nothing else was left.",
              lambda s: _by_name(s.stats.evicted_bytes)),
    MetricRow("forebay_rewritten_bytes_total", _C, (),
              "Clean bytes appended elsewhere when their segment went, as they were worth keeping.",
              lambda s: _one(s.stats.rewritten_bytes)),
    MetricRow("forebay_fill_bytes_total", _C, ("result",),
              "Missing bytes that fills kept (admitted), or that passed the cache as what they would displace is worth more.",
              lambda s: {("admitted",): s.stats.admitted_bytes, ("bypassed",): s.stats.bypassed_bytes}),
    MetricRow("forebay_cache_hit_bound", _G, (),
              "Estimate of C/N: the best hit ratio by bytes where each item is read once an epoch.",
              lambda s: _one(0.0 if s.stats.eviction is None else s.stats.eviction.hit_bound())),
    MetricRow("forebay_cache_hit_distance", _G, (),
              "Hit ratio by bytes of the last 5 minutes over that bound: 1 is all that epochs allow.",
              lambda s: _one(_hit_distance(s))),
    MetricRow("forebay_cache_price", _G, (),
              "What a byte of cache is worth: the reads of it that are expected while 1/4096 of the cache's size is read.",
              lambda s: _one(0.0 if s.stats.eviction is None else s.stats.eviction.price)),
    MetricRow("forebay_cache_pinned_bytes", _G, (),
              "Bytes in the cache that policies pin.", _of_pins(lambda pins: pins.held_bytes)),
    MetricRow("forebay_cache_pinned_limit_bytes", _G, (),
              "How many bytes may be pinned.", _of_pins(lambda pins: pins.limit_bytes)),
    MetricRow("forebay_cache_pins_refused_bytes_total", _C, (),
              "Bytes that policies pin and that came when pins held their limit: kept as of priority high.",
              _of_pins(lambda pins: pins.refused_bytes)),
    MetricRow("forebay_origin_requests_total", _C, ("operation", "status"),
              "Calls of the origin by HTTP status, or by what failed where no answer came.", _origin_requests),
    MetricRow("forebay_origin_request_seconds", _H, ("operation",),
              "Time from sending a call of the origin to the head of its answer.", _origin_seconds),
    MetricRow("forebay_origin_bytes_total", _C, ("direction",),
              "Body bytes from (in) and to (out) the origin.", _origin_bytes),
    MetricRow("forebay_origin_ignored_ranges_total", _C, (),
              "Answers of the origin with a whole object where a range of it was asked for.",
              lambda s: _one(0 if s.stats.origin is None else s.stats.origin.ranges_ignored)),
    MetricRow("forebay_origin_calls", _G, ("state",),
              "Calls of the origin now, running or waiting for the limiter.", _origin_calls),
    MetricRow("forebay_origin_throttled_total", _C, (),
              "Answers of the origin that asked to slow down.", _of_limiter(lambda one: one.throttled_total)),
    MetricRow("forebay_origin_refused_total", _C, (),
              "Calls that the limiter turned away because too many waited, or for too long.",
              _of_limiter(lambda one: one.refused_total)),
    MetricRow("forebay_origin_away_total", _C, (),
              "Calls that were not sent because the origin had not answered for a while.",
              _of_limiter(lambda one: one.away_total)),
    MetricRow("forebay_origin_limiter_wait_seconds", _H, ("class",),
              "How long calls waited for the limiter in front of the origin, by priority class.", _limiter_wait),
    MetricRow("forebay_origin_limiter_waiting", _G, ("class",),
              "Calls that wait for the limiter now, by priority class.", _limiter_waiting),
    MetricRow("forebay_origin_concurrency_limit", _G, (),
              "Calls that the limiter lets run at once to the bucket that bears least.",
              _of_limiter(lambda one: one.concurrency_limit)),
    MetricRow("forebay_origin_rate_limit", _G, (),
              "The lowest request rate a second that was learnt of a bucket; 0 where none has asked to slow down.",
              _of_limiter(lambda one: one.rate_limit_per_s)),
    MetricRow("forebay_origin_paused_buckets", _G, (),
              "Buckets that wait out a Retry-After.", _of_limiter(lambda one: one.paused_buckets)),
    MetricRow("forebay_origin_away_buckets", _G, (),
              "Buckets whose origin does not answer; asked by one request at a time.", _of_limiter(lambda one: len(one.away))),
    MetricRow("forebay_writeback_pending_objects", _G, (),
              "Acknowledged changes not yet at the origin.", lambda s: _one(s.stats.pending_objects)),
    MetricRow("forebay_writeback_pending_bytes", _G, (),
              "Their bytes.", lambda s: _one(s.stats.pending_bytes)),
    MetricRow("forebay_writeback_oldest_pending_seconds", _G, (),
              "Age of the oldest acknowledged change not yet at the origin.", lambda s: _one(_oldest_pending_s(s))),
    MetricRow("forebay_writeback_flushed_total", _C, ("result",),
              "Finished flush attempts.", lambda s: _by_name(s.stats.flushed)),
    MetricRow("forebay_writeback_quarantined_objects", _G, (),
              "Changes that the origin refused for good.", lambda s: _one(s.stats.quarantined_objects)),
    MetricRow("forebay_unreadable_dirty_objects", _G, (),
              "Acknowledged objects not at the origin whose bytes cannot be read here.",
              lambda s: _one(s.stats.unreadable_dirty_objects)),
    MetricRow("forebay_reopenings_total", _C, ("result",),
              "Attempts to open the cache directory again after a failure of its disk: done, failed.",
              lambda s: _by_name(s.stats.reopenings)),
    MetricRow("forebay_scrub_bytes_total", _C, (),
              "Bytes that the background scrub has read.", lambda s: _one(s.stats.scrub_bytes)),
    MetricRow("forebay_scrub_rounds_total", _C, (),
              "Whole rounds of the scrub over all that is on the disk.", lambda s: _one(s.stats.scrub_rounds)),
    MetricRow("forebay_scrub_damaged_blocks_total", _C, ("state",),
              "Damaged blocks that the scrub found, clean (dropped) or dirty (an alarm).",
              lambda s: _by_name(s.stats.scrub_damaged)),
    MetricRow("forebay_warmup_jobs", _G, (),
              "Warm-ups that run.", lambda s: _one(s.stats.warm_jobs)),
    MetricRow("forebay_warmup_objects_total", _C, ("result",),
              "Objects that warm-ups are done with: brought, skipped (here already), unfit, failed, passed (read first).",
              lambda s: _by_name(s.stats.warm_objects)),
    MetricRow("forebay_warmup_bytes_total", _C, (),
              "Bytes that warm-ups fetched from the origin.", lambda s: _one(s.stats.warm_bytes)),
    MetricRow("forebay_early_flush_parts_total", _C, ("result",),
              "Parts sent to the origin, or not, before the Complete of their upload.", lambda s: _by_name(s.stats.early_parts)),
    MetricRow("forebay_early_flush_bytes", _G, (),
              "Bytes of open uploads that the origin has too.", lambda s: _one(s.stats.early_bytes)),
)  # fmt: skip
"""All metrics; docs/operations.md shows the same table."""


class Exporter(Collector):
    """Gives the text of `/metrics`."""

    def __init__(self, stats: Stats, requests: RequestStats, clock: Clock) -> None:
        self._stats = stats
        self._requests = requests
        self._clock = clock
        # Our own registry: the library's global one would let two gateways in one process (tests) collide.
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def render(self) -> bytes:
        """Read all metrics and write them in the Prometheus text format, CONTENT_TYPE."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Give one family a row of METRICS."""
        scrape = Scrape(self._stats, self._requests, self._clock.monotonic_s(), self._clock.wall_s())
        for row in METRICS:
            yield _family(row, row.read(scrape))


def _family(row: MetricRow, reading: Reading) -> Metric:
    match row.kind:
        case Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(row.name, row.help, labels=row.labels)
            for labels, value in reading.items():
                assert isinstance(value, Histogram), row.name
                histogram.add_metric(labels, _buckets(value), value.total)
            return histogram
        case Kind.SUMMARY:
            summary = SummaryMetricFamily(row.name, row.help, labels=row.labels)
            for labels, value in reading.items():
                assert isinstance(value, Summary), row.name
                summary.add_metric(labels, value.count, value.total)
            return summary
        case Kind.COUNTER | Kind.GAUGE:
            make = CounterMetricFamily if row.kind is Kind.COUNTER else GaugeMetricFamily
            plain = make(row.name, row.help, labels=row.labels)
            for labels, value in reading.items():
                assert isinstance(value, int | float), row.name
                plain.add_metric(labels, value)
            return plain
        case _:
            assert_never(row.kind)


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = (*map(str, histogram.bounds), "+Inf")
    return list(zip(bounds, accumulate(histogram.counts), strict=True))
