"""The metrics table and what Prometheus reads."""

import re

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.telemetry import METRICS, Exporter, Kind, RequestStats
from storage.origin.counters import OriginCounters
from storage.stats import Histogram, Stats
from storage.types import CacheResult, Priority


class FixedClock:
    def monotonic_s(self) -> float:
        return 1000.0

    def wall_s(self) -> float:
        return 5000.0

    async def sleep(self, wait_s: float) -> None:
        raise AssertionError(f"a scrape does not sleep {wait_s} s")


class FixedLimiter:
    throttled_total = 3
    refused_total = 1
    away_total = 6
    concurrency_limit = 64
    rate_limit_per_s = 190.5
    paused_buckets = 1
    in_flight = 5
    waiting = 2

    def __init__(self) -> None:
        self.waits = {priority: Histogram() for priority in Priority}
        self.waits[Priority.FLUSH].observe(2.5)
        self.waiting_by_class = {priority: int(priority is Priority.FLUSH) * 2 for priority in Priority}
        self.away = {"data": 12.0}


def filled() -> tuple[Stats, RequestStats]:
    """Counters of which every metric has something to show."""
    stats, requests = Stats(), RequestStats()
    requests.count("GetObject", 200, 0.003)
    requests.body_bytes["in"] += 7
    stats.count_request(CacheResult.HIT, 990.0)
    stats.count_bytes(from_cache=3, from_origin=1, now_s=990.0)
    stats.evicted_bytes["space"] += 10
    stats.flushed["done"] += 2
    stats.oldest_pending_at_s = 4990.0
    origin = OriginCounters()
    origin.count("GetObject", "200", 0.3)
    origin.count("GetObject", "timeout", 99.0)
    origin.bytes_in = 100
    stats.origin, stats.limiter = origin, FixedLimiter()
    return stats, requests


def samples() -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Scrape the filled counters; values by name and labels."""
    text = Exporter(*filled(), FixedClock()).render().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_table_is_what_is_exported() -> None:
    """Every row is exported with its labels, and nothing of ours is exported that has no row."""
    exported: dict[str, set[tuple[str, ...]]] = {}
    for name, labels in samples():
        base = re.sub(r"_(bucket|sum|count|created)$", "", name)
        if base.startswith("forebay_"):
            exported.setdefault(base, set()).add(tuple(key for key, _ in labels if key != "le"))

    assert exported == {row.name: {tuple(sorted(row.labels))} for row in METRICS}


@pytest.mark.parametrize(
    ("name", "labels", "value"),
    [
        ("forebay_requests_total", {"operation": "GetObject", "status": "200"}, 1),
        ("forebay_request_seconds_bucket", {"operation": "GetObject", "le": "0.0025"}, 0),
        ("forebay_request_seconds_bucket", {"operation": "GetObject", "le": "0.005"}, 1),
        ("forebay_request_seconds_count", {"operation": "GetObject"}, 1),
        ("forebay_cache_requests_total", {"result": "hit"}, 1),
        ("forebay_cache_requests_total", {"result": "bypass"}, 0),
        ("forebay_cache_bytes_total", {"source": "cache"}, 3),
        ("forebay_cache_hit_ratio", {"unit": "requests"}, 1),
        ("forebay_cache_hit_ratio", {"unit": "bytes"}, 0.75),
        ("forebay_evicted_bytes_total", {"reason": "space"}, 10),
        ("forebay_origin_requests_total", {"operation": "GetObject", "status": "timeout"}, 1),
        ("forebay_origin_request_seconds_bucket", {"operation": "GetObject", "le": "0.5"}, 1),
        ("forebay_origin_request_seconds_bucket", {"operation": "GetObject", "le": "+Inf"}, 2),
        ("forebay_origin_bytes_total", {"direction": "in"}, 100),
        ("forebay_origin_throttled_total", {}, 3),
        ("forebay_origin_limiter_wait_seconds_sum", {"class": "flush"}, 2.5),
        ("forebay_origin_limiter_waiting", {"class": "flush"}, 2),
        ("forebay_origin_limiter_waiting", {"class": "foreground"}, 0),
        ("forebay_origin_rate_limit", {}, 190.5),
        ("forebay_origin_paused_buckets", {}, 1),
        ("forebay_origin_away_buckets", {}, 1),
        ("forebay_origin_away_total", {}, 6),
        ("forebay_origin_concurrency_limit", {}, 64),
        ("forebay_writeback_oldest_pending_seconds", {}, 10),
        ("forebay_writeback_flushed_total", {"result": "done"}, 2),
    ],
)
def test_a_metric_has_its_value(name: str, labels: dict[str, str], value: float) -> None:
    """What was counted is what is read."""
    found = samples()[name, tuple(sorted(labels.items()))]

    assert found == value


def test_the_names_that_tools_rely_on_are_there() -> None:
    """The metrics that the design promises keep their names, kinds and labels."""
    table = {row.name: (row.kind, row.labels) for row in METRICS}

    promised = {
        "forebay_requests_total": (Kind.COUNTER, ("operation", "status")),
        "forebay_request_seconds": (Kind.HISTOGRAM, ("operation",)),
        "forebay_cache_requests_total": (Kind.COUNTER, ("result",)),
        "forebay_cache_bytes_total": (Kind.COUNTER, ("source",)),
        "forebay_cache_hit_ratio": (Kind.GAUGE, ("unit",)),
        "forebay_cache_used_bytes": (Kind.GAUGE, ("state",)),
        "forebay_cache_capacity_bytes": (Kind.GAUGE, ()),
        "forebay_evicted_bytes_total": (Kind.COUNTER, ("reason",)),
        "forebay_origin_requests_total": (Kind.COUNTER, ("operation", "status")),
        "forebay_origin_request_seconds": (Kind.HISTOGRAM, ("operation",)),
        "forebay_origin_bytes_total": (Kind.COUNTER, ("direction",)),
        "forebay_origin_throttled_total": (Kind.COUNTER, ()),
        "forebay_origin_limiter_wait_seconds": (Kind.HISTOGRAM, ("class",)),
        "forebay_origin_concurrency_limit": (Kind.GAUGE, ()),
        "forebay_writeback_pending_objects": (Kind.GAUGE, ()),
        "forebay_writeback_pending_bytes": (Kind.GAUGE, ()),
        "forebay_writeback_oldest_pending_seconds": (Kind.GAUGE, ()),
        "forebay_writeback_flushed_total": (Kind.COUNTER, ("result",)),
        "forebay_writeback_quarantined_objects": (Kind.GAUGE, ()),
    }
    assert promised.items() <= table.items()


def test_a_scrape_works_when_nothing_happened() -> None:
    """A fresh gateway exports its gauges and no error, before the origin's client exists."""
    text = Exporter(Stats(), RequestStats(), FixedClock()).render().decode()

    assert "forebay_writeback_pending_objects 0.0" in text
    assert 'forebay_cache_requests_total{result="miss"} 0.0' in text
