"""The counters that a scrape reads."""

import pytest
from hypothesis import given, strategies as st

from storage.stats import (
    BUCKET_S,
    WINDOW_S,
    Histogram,
    OriginTime,
    RatioWindow,
    Stats,
    charge_origin,
    origin_time,
)
from storage.types import CacheResult


@pytest.mark.parametrize(("value", "place"), [(0.0, 0), (1.0, 0), (1.5, 1), (2.0, 1), (2.1, 2)])
def test_a_value_falls_under_its_bound(value: float, place: int) -> None:
    """Bounds are inclusive; what is above all is counted too."""
    histogram = Histogram((1.0, 2.0))

    histogram.observe(value)

    assert histogram.counts == [int(index == place) for index in range(3)]
    assert (histogram.count, histogram.total) == (1, value)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.floats(0, 120)), max_size=30))
def test_the_ratio_is_that_of_the_last_minutes_when_time_passes(events: list[tuple[int, int, float]]) -> None:
    """The window agrees with a list of all events, to the step it moves in."""
    window, now_s, seen = RatioWindow(), 10_000.0, []

    for part, more, passed_s in events:
        now_s += passed_s
        window.add(part, part + more, now_s)
        seen.append((part, part + more, now_s))

    oldest = int(now_s // BUCKET_S) - WINDOW_S // BUCKET_S
    kept = [(part, whole) for part, whole, at_s in seen if int(at_s // BUCKET_S) > oldest]
    whole = sum(whole for _, whole in kept)
    expected = sum(part for part, _ in kept) / whole if whole else 0.0
    assert window.ratio(now_s) == pytest.approx(expected)


def test_the_ratio_is_zero_when_all_is_long_ago() -> None:
    """What happened before the window does not count, however long nobody asked."""
    window = RatioWindow()
    window.add(1, 1, 5.0)

    ratio = window.ratio(1_000_000.0)

    assert ratio == 0.0


def test_a_stale_answer_is_a_hit_when_ratios_are_taken() -> None:
    """HIT and STALE need no byte of the origin; the rest does."""
    stats = Stats()

    for result in CacheResult:
        stats.count_request(result, 100.0)
    stats.count_bytes(from_cache=30, from_origin=10, now_s=100.0)

    assert stats.hit_ratio_requests(100.0) == pytest.approx(0.4)
    assert stats.hit_ratio_bytes(100.0) == pytest.approx(0.75)
    assert set(stats.cache_requests.values()) == {1}


def test_the_origins_time_is_charged_when_a_request_is_being_served() -> None:
    """Time goes to the request of the context, and nowhere in background work."""
    charge_origin(5.0)
    spent = OriginTime()
    token = origin_time.set(spent)

    charge_origin(0.5)
    charge_origin(0.25)
    origin_time.reset(token)
    charge_origin(7.0)

    assert spent.spent_s == 0.75
