import pytest
from hypothesis import given, strategies as st

from storage.origin.pacing import (
    CUT_RATE,
    CUT_RATE_DEEP,
    FIRST_RATE_MIN,
    FORGET_RATE_S,
    PLATEAU_S,
    AdaptiveConcurrency,
    AdaptiveRate,
    RateMeter,
    TokenBucket,
)


@given(
    rate=st.floats(0.1, 1000),
    burst=st.floats(1, 100),
    steps=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 1)), max_size=100),
)
def test_bucket_grants_no_more_than_burst_and_rate_allow(
    rate: float, burst: float, steps: list[tuple[float, float]]
) -> None:
    """In any time t a bucket gives at most burst + rate * t tokens."""
    bucket = TokenBucket(rate=rate, burst=burst, now_s=0.0)
    now_s = taken = 0.0

    for step_s, share in steps:
        now_s += step_s
        amount = share * burst
        if bucket.take(now_s, amount) == 0.0:
            taken += amount

        assert taken <= (burst + rate * now_s) * (1 + 1e-9)


def test_bucket_grants_after_the_wait_it_told() -> None:
    """A refused take says exactly when the tokens are there."""
    bucket = TokenBucket(rate=2.0, burst=4.0, now_s=0.0)

    waits = [bucket.take(0.0, 4.0), bucket.take(0.0, 3.0), bucket.take(1.4, 3.0), bucket.take(1.5, 3.0)]

    assert waits == [0.0, 1.5, pytest.approx(0.1), 0.0]


def test_bucket_in_debt_waits_until_it_is_paid() -> None:
    """A charge over the level is paid by later time, whatever its size."""
    bucket = TokenBucket(rate=10.0, burst=10.0, now_s=0.0)

    bucket.charge(0.0, 110.0)

    assert bucket.wait_s(0.0) == 10.0
    assert bucket.wait_s(10.0) == 0.0


def test_bucket_refuses_what_can_never_fit() -> None:
    """An amount over the burst is a mistake of the caller, not an endless wait."""
    bucket = TokenBucket(rate=1.0, burst=2.0, now_s=0.0)

    with pytest.raises(ValueError, match="do not fit"):
        bucket.take(0.0, 3.0)


def test_concurrency_rises_by_an_eighth_a_round_until_the_first_overload_and_by_one_after_it() -> None:
    """As many successes as the limit raise it by an eighth at first, and by about one once it was too much."""
    limit = AdaptiveConcurrency(start=20, ceiling=100)

    for _ in range(20):
        limit.succeeded(in_flight=20)
    at_first = limit.limit
    limit.overloaded(1.0, sent_at_s=0.5)
    for _ in range(12):
        limit.succeeded(in_flight=12)

    assert (at_first, limit.limit) == (22, 12)


def test_concurrency_keeps_what_a_learnt_rate_needs() -> None:
    """A throttled answer takes no more slots than the rate leaves unused: 100/s of 0.1 s each keep ten in flight, twenty stay."""
    limit = AdaptiveConcurrency(start=30, ceiling=100)
    for _ in range(200):
        limit.succeeded(in_flight=1, held_s=0.1)

    limit.overloaded(2.0, sent_at_s=1.0, rate_per_s=100.0)
    limit.overloaded(4.0, sent_at_s=3.0, rate_per_s=100.0)

    assert limit.limit in (19, 20)


def test_concurrency_begins_with_little_when_the_origin_is_back() -> None:
    """After an outage two go, then more with each answer."""
    limit = AdaptiveConcurrency(start=64, ceiling=100)

    limit.restart(2)
    before = limit.limit
    for _ in range(16):
        limit.succeeded(in_flight=2)

    assert (before, limit.limit) == (2, 4)


def test_concurrency_stays_when_not_in_use() -> None:
    """Successes far below the limit teach nothing about it."""
    limit = AdaptiveConcurrency(start=10, ceiling=100)

    for _ in range(1000):
        limit.succeeded(in_flight=1)

    assert limit.limit == 10


def test_concurrency_is_cut_once_for_requests_in_flight_together() -> None:
    """Ten throttled answers to one burst halve the limit once; one sent later halves it again."""
    limit = AdaptiveConcurrency(start=64, ceiling=100)

    for _ in range(10):
        limit.overloaded(2.0, sent_at_s=1.0)
    once = limit.limit
    limit.overloaded(4.0, sent_at_s=3.0)

    assert (once, limit.limit) == (32, 16)


def test_concurrency_never_falls_under_one() -> None:
    """One request always goes, or nothing would ever be learnt again."""
    limit = AdaptiveConcurrency(start=2, ceiling=4)

    for at_s in range(1, 10):
        limit.overloaded(float(at_s), sent_at_s=at_s - 0.5)

    assert limit.limit == 1


def test_rate_has_no_limit_before_the_first_throttle() -> None:
    """Speed alone, or a time-out, never makes a rate limit."""
    rate = AdaptiveRate(0.0)

    for i in range(10_000):
        rate.sent(i / 10_000)
    rate.timed_out(1.0, sent_at_s=0.9)

    assert rate.limit_per_s is None
    assert rate.wait_s(1.0) == 0.0


def test_rate_is_cut_below_what_was_sent_when_throttled() -> None:
    """The first throttled answer limits to 0.7 of the measured rate."""
    rate = AdaptiveRate(0.0)
    for i in range(1000):
        rate.sent(i * 0.01)

    rate.throttled(10.0, sent_at_s=9.9)

    assert rate.limit_per_s == pytest.approx(70.0, rel=0.05)
    assert rate.wait_s(10.0) > 0.0


def test_first_limit_is_no_trickle() -> None:
    """One refusal of the tenth request in ten seconds does not hold what comes next to a request a second."""
    rate = AdaptiveRate(0.0)
    for i in range(10):
        rate.sent(float(i))

    rate.throttled(9.1, sent_at_s=9.0)

    assert rate.limit_per_s == pytest.approx(FIRST_RATE_MIN * CUT_RATE_DEEP)


def throttled_at(rate_per_s: float) -> AdaptiveRate:
    """Give a limit that was found: throttled at time 10 at this rate, after an earlier limit had risen to it."""
    rate = AdaptiveRate(0.0)
    for i in range(int(10 * rate_per_s)):
        rate.sent(i / rate_per_s)
    rate.throttled(10.0, sent_at_s=9.99)
    return rate


def used_until(rate: AdaptiveRate, begin_s: float, end_s: float) -> None:
    """Send all that the limit allows."""
    now_s = begin_s
    while now_s < end_s:
        wait_s = rate.wait_s(now_s)
        if wait_s == 0.0:
            rate.sent(now_s)
        now_s += max(wait_s, 1e-4)


def test_first_limit_is_a_guess_that_rises_until_it_is_throttled() -> None:
    """From 0.7 of what was sent the first limit rises by a quarter a second, so a guess that was low is soon corrected."""
    rate = throttled_at(100.0)

    used_until(rate, 10.0, 14.0)

    assert rate.limit_per_s == pytest.approx(70.0 * 1.25**4, rel=0.1)


def test_limit_returns_to_where_it_was_throttled_and_stays_about_there() -> None:
    """A gentle cut leaves nine tenths; the old rate is back after the plateau's time, and a tenth more after twice that."""
    rate = throttled_at(100.0)
    used_until(rate, 10.0, 14.0)
    top = rate.limit_per_s or 0.0
    rate.throttled(14.0, sent_at_s=13.99)
    cut = rate.limit_per_s or 0.0

    used_until(rate, 14.0, 14.0 + PLATEAU_S)
    back = rate.limit_per_s
    used_until(rate, 14.0 + PLATEAU_S, 14.0 + 2 * PLATEAU_S)

    assert 0.8 * top < cut <= 1.001 * CUT_RATE * top
    assert back == pytest.approx(cut / CUT_RATE, rel=0.01)
    assert rate.limit_per_s == pytest.approx(1.1 * cut / CUT_RATE, rel=0.02)


def test_second_cut_soon_behind_the_first_is_deep() -> None:
    """Where a cut was not enough the next one is no tenth, or an origin that takes half would refuse for seconds."""
    rate = throttled_at(100.0)
    used_until(rate, 10.0, 14.0)
    rate.throttled(14.0, sent_at_s=13.99)
    used_until(rate, 14.0, 14.5)
    before = rate.limit_per_s or 0.0

    rate.throttled(14.5, sent_at_s=14.4)

    assert rate.limit_per_s == pytest.approx(0.7 * before)


def test_limit_that_is_not_used_does_not_rise_and_is_forgotten_in_the_end() -> None:
    """Idle time proves nothing: the limit stays; only ten minutes without a throttled answer end it."""
    rate = throttled_at(100.0)

    for tick in range(1000):
        rate.wait_s(10.0 + tick * 0.5)
    idle = rate.limit_per_s
    rate.wait_s(11.0 + FORGET_RATE_S)

    assert idle == pytest.approx(70.0, rel=0.05)
    assert rate.limit_per_s is None


def test_limit_saves_up_no_burst() -> None:
    """After a pause no more goes at once than a twentieth of a second's worth."""
    rate = throttled_at(200.0)
    rate.wait_s(40.0)
    burst = 0

    while rate.wait_s(40.0) == 0.0:
        rate.sent(40.0)
        burst += 1

    assert 6 <= burst <= 7


def test_meter_follows_the_rate() -> None:
    """The measured rate comes near the true one and fades when nothing happens."""
    meter = RateMeter(0.0)

    for i in range(300):
        meter.add(i / 100)

    assert meter.rate(3.0) == pytest.approx(100.0, rel=0.1)
    assert meter.rate(13.0) < 1.0
