import pytest
from hypothesis import given, strategies as st

from storage.errors import OverloadedError
from storage.origin.limiter import (
    FORGET_RATE_S,
    AdaptiveConcurrency,
    AdaptiveRate,
    Budget,
    Demand,
    Feedback,
    Gate,
    LimiterSettings,
    RateMeter,
    TokenBucket,
)
from storage.types import Priority


def granted(gate: Gate, now_s: float) -> list[Demand]:
    """Give what goes now."""
    return gate.grant(now_s)[0]


def join(
    gate: Gate, priority: Priority, now_s: float = 0.0, size: int = 0, budget: Budget = Budget.GENERAL
) -> Demand:
    """Queue a demand."""
    return gate.join(now_s, priority, size, budget)


def finish(
    gate: Gate,
    demand: Demand,
    now_s: float,
    feedback: Feedback = Feedback.SUCCESS,
    retry_after_s: float | None = None,
) -> None:
    """End a demand that moved what it said."""
    gate.finish(now_s, demand, feedback, bytes_moved=demand.bytes_hint, retry_after_s=retry_after_s)


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


def test_concurrency_rises_by_one_a_round_when_in_use() -> None:
    """As many successes as the limit raise it by about one."""
    limit = AdaptiveConcurrency(start=10, ceiling=100)

    for _ in range(11):
        limit.succeeded(in_flight=10)

    assert limit.limit == 11


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


def test_rate_recovers_additively_and_is_forgotten() -> None:
    """Without another throttle the old rate is back in some twenty seconds, and the limit gone in ten minutes."""
    rate = AdaptiveRate(0.0)
    for i in range(1000):
        rate.sent(i * 0.01)
    rate.throttled(10.0, sent_at_s=9.9)

    for tick in range(100):
        rate.wait_s(10.0 + tick * 0.1)
    recovered = rate.limit_per_s
    rate.wait_s(11.0 + FORGET_RATE_S)

    assert recovered == pytest.approx(70.0 + 5.0 * 10.0, rel=0.1)
    assert rate.limit_per_s is None


def test_meter_follows_the_rate() -> None:
    """The measured rate comes near the true one and fades when nothing happens."""
    meter = RateMeter(0.0)

    for i in range(300):
        meter.add(i / 100)

    assert meter.rate(3.0) == pytest.approx(100.0, rel=0.1)
    assert meter.rate(13.0) < 1.0


def test_gate_lets_through_up_to_the_limit_and_no_more() -> None:
    """Slots bound what is in flight; a finished request lets the next through."""
    gate = Gate(LimiterSettings(concurrency_start=2, concurrency_max=2), 0.0)
    demands = [join(gate, Priority.FOREGROUND) for _ in range(3)]

    first = granted(gate, 0.0)
    finish(gate, first[0], 1.0)
    second = granted(gate, 1.0)

    assert first == demands[:2]
    assert second == demands[2:]


def test_gate_keeps_a_quarter_of_the_slots_for_the_foreground() -> None:
    """Uploads alone never hold all slots, so a reader goes at once."""
    gate = Gate(LimiterSettings(concurrency_start=8, concurrency_max=8), 0.0)
    for _ in range(20):
        join(gate, Priority.FLUSH)

    flushes = granted(gate, 0.0)
    reader = join(gate, Priority.FOREGROUND)

    assert len(flushes) == 6
    assert granted(gate, 0.0) == [reader]


def test_gate_lets_a_flush_through_when_one_slot_is_left() -> None:
    """With a limit of one there is nothing to keep back, or flushing would stop for good."""
    gate = Gate(LimiterSettings(concurrency_start=1, concurrency_max=1), 0.0)
    flush = join(gate, Priority.FLUSH)

    assert granted(gate, 0.0) == [flush]


def test_gate_starves_no_class_when_all_wait() -> None:
    """Under lasting load each class gets its share: 64:16:8:4:2:1."""
    gate = Gate(LimiterSettings(concurrency_start=1, concurrency_max=1), 0.0)
    for priority in Priority:
        for _ in range(1000):
            join(gate, priority)
    served = dict.fromkeys(Priority, 0)

    for turn in range(970):
        (demand,) = granted(gate, float(turn))
        served[demand.priority] += 1
        finish(gate, demand, float(turn), Feedback.NEUTRAL)

    assert list(served.values()) == pytest.approx([640, 160, 80, 40, 20, 20, 10], abs=2)


def test_gate_saves_no_credit_for_an_idle_class() -> None:
    """A class that was away does not take all slots when it returns."""
    gate = Gate(LimiterSettings(concurrency_start=1, concurrency_max=1), 0.0)
    for _ in range(1000):
        join(gate, Priority.FOREGROUND)
    for turn in range(500):
        finish(gate, granted(gate, float(turn))[0], float(turn), Feedback.NEUTRAL)
    for _ in range(100):
        join(gate, Priority.WARM_UP)
    warm_ups = 0

    for turn in range(500, 630):
        (demand,) = granted(gate, float(turn))
        warm_ups += demand.priority is Priority.WARM_UP
        finish(gate, demand, float(turn), Feedback.NEUTRAL)

    assert warm_ups == 2


@given(st.lists(st.tuples(st.sampled_from(list(Priority)), st.booleans()), min_size=1, max_size=200))
def test_gate_lets_everybody_through_in_order_within_a_class(steps: list[tuple[Priority, bool]]) -> None:
    """Whatever comes and goes, each demand is let through once, first come first served within its class."""
    gate = Gate(LimiterSettings(concurrency_start=2, concurrency_max=2), 0.0)
    joined: dict[Priority, list[Demand]] = {priority: [] for priority in Priority}
    served: dict[Priority, list[Demand]] = {priority: [] for priority in Priority}
    running: list[Demand] = []

    def pump(*, ends: bool) -> None:
        if ends and running:
            finish(gate, running.pop(0), 0.0)
        for demand in granted(gate, 0.0):
            served[demand.priority].append(demand)
            running.append(demand)

    for priority, ends in steps:
        joined[priority].append(join(gate, priority))
        pump(ends=ends)
    for _ in steps:
        pump(ends=True)
    pump(ends=True)

    assert served == joined
    assert gate.waiting == 0


def test_gate_refuses_when_a_class_is_full() -> None:
    """The queue of a class is bounded; others still get in."""
    gate = Gate(LimiterSettings(concurrency_start=1, concurrency_max=1, queue_max=2), 0.0)
    join(gate, Priority.WARM_UP)
    join(gate, Priority.WARM_UP)

    with pytest.raises(OverloadedError) as refused:
        join(gate, Priority.WARM_UP)

    assert refused.value.retry_after_s == 1.0
    assert join(gate, Priority.FOREGROUND).granted_at_s is None


def test_gate_forgets_who_leaves() -> None:
    """A place that was given up goes to the next."""
    gate = Gate(LimiterSettings(concurrency_start=1, concurrency_max=1), 0.0)
    running = join(gate, Priority.FOREGROUND)
    granted(gate, 0.0)
    impatient, patient = join(gate, Priority.FOREGROUND), join(gate, Priority.FOREGROUND)

    gate.leave(impatient)
    finish(gate, running, 1.0)

    assert granted(gate, 1.0) == [patient]


def test_gate_pauses_for_retry_after() -> None:
    """Nothing goes while the origin asked for peace, and the wait is told."""
    gate = Gate(LimiterSettings(), 0.0)
    first = join(gate, Priority.FOREGROUND)
    granted(gate, 0.0)

    finish(gate, first, 1.0, Feedback.THROTTLED, retry_after_s=5.0)
    second = join(gate, Priority.FOREGROUND, 2.0)
    during = gate.grant(2.0)
    after = gate.grant(6.5)

    assert during == ([], 4.0)
    assert after[0] == [second]


def test_gate_cuts_an_absurd_retry_after() -> None:
    """An hour's Retry-After is not believed."""
    gate = Gate(LimiterSettings(), 0.0)
    first = join(gate, Priority.FOREGROUND)
    granted(gate, 0.0)

    finish(gate, first, 0.0, Feedback.THROTTLED, retry_after_s=3600.0)

    assert gate.retry_after_s(0.0) == 30.0


def test_gate_halves_concurrency_on_a_time_out_without_making_a_rate() -> None:
    """A time-out is overload; only a throttled answer makes a rate limit."""
    gate = Gate(LimiterSettings(concurrency_start=8), 0.0)
    first = join(gate, Priority.FOREGROUND)
    granted(gate, 0.0)

    finish(gate, first, 1.0, Feedback.TIMED_OUT)

    assert gate.concurrency_limit == 4
    assert gate.rate_limit_per_s is None


def test_gate_bounds_flush_bytes_apart_from_reads() -> None:
    """A flush that spent its bytes waits for them; a reader does not."""
    gate = Gate(LimiterSettings(flush_bytes_per_s=1_000_000), 0.0)
    join(gate, Priority.FLUSH, size=3_048_576, budget=Budget.FLUSH)
    second = join(gate, Priority.FLUSH, size=1, budget=Budget.FLUSH)
    reader = join(gate, Priority.FOREGROUND, size=10_000_000)

    now, wake_s = gate.grant(0.0)
    later = gate.grant(2.1)[0]

    assert [demand.priority for demand in now] == [Priority.FOREGROUND, Priority.FLUSH]
    assert now[0] is reader
    assert wake_s == pytest.approx(2.0)
    assert later == [second]


def test_gate_bounds_requests_a_second() -> None:
    """A configured request rate holds from the start."""
    gate = Gate(LimiterSettings(requests_per_s=10.0), 0.0)
    for _ in range(20):
        join(gate, Priority.FOREGROUND)

    counts = [len(granted(gate, now_s)) for now_s in (0.0, 0.05, 0.1, 1.0)]

    assert counts == [5, 0, 1, 5]


def test_gate_gives_back_bytes_that_were_not_moved() -> None:
    """What a body fell short of its hint is there for others."""
    gate = Gate(LimiterSettings(bytes_per_s=2_000_000), 0.0)
    first = join(gate, Priority.FOREGROUND, size=10_000_000)
    granted(gate, 0.0)

    gate.finish(0.0, first, Feedback.SUCCESS, bytes_moved=10, retry_after_s=None)
    second = join(gate, Priority.FOREGROUND)

    assert granted(gate, 0.0) == [second]
