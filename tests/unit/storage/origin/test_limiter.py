import pytest
from hypothesis import given, strategies as st

from storage.errors import OriginAwayError, OverloadedError
from storage.origin.circuit import AWAY_AFTER
from storage.origin.limiter import Budget, Demand, Feedback, Gate, LimiterSettings
from storage.types import Priority


def granted(gate: Gate, now_s: float) -> list[Demand]:
    """Give what goes now."""
    return gate.grant(now_s)[0]


def join(  # all that a demand is
    gate: Gate,
    priority: Priority,
    now_s: float = 0.0,
    size: int = 0,
    budget: Budget = Budget.GENERAL,
    *,
    bucket: str = "",
    client: str = "",
) -> Demand:
    """Queue a demand."""
    return gate.join(now_s, priority, size, budget, bucket=bucket, client=client)


def finish(
    gate: Gate,
    demand: Demand,
    now_s: float,
    feedback: Feedback = Feedback.SUCCESS,
    retry_after_s: float | None = None,
) -> None:
    """End a demand that moved what it said."""
    gate.finish(now_s, demand, feedback, bytes_moved=demand.bytes_hint, retry_after_s=retry_after_s)


def test_gate_lets_through_up_to_the_limit_and_no_more() -> None:
    """Slots bound what is in flight; a finished request lets the next through."""
    gate = Gate(LimiterSettings(concurrency_start=2, concurrency_max=2), 0.0)
    demands = [join(gate, Priority.FOREGROUND) for _ in range(3)]

    first = granted(gate, 0.0)
    finish(gate, first[0], 1.0)
    second = granted(gate, 1.0)

    assert first == demands[:2]
    assert second == demands[2:]


def uploads_at_rest(gate: Gate, bucket: str, count: int) -> list[Demand]:
    """Let as many of so many uploads through as may go while those that went wait for their clients."""
    for _ in range(count):
        join(gate, Priority.UPLOAD, bucket=bucket)
    gone: list[Demand] = []
    while going := granted(gate, 0.0):
        for upload in going:
            assert gate.rest(0.0, upload)
        gone += going
    return gone


def test_upload_that_waits_for_its_client_holds_nobody_up() -> None:
    """While it rests another goes in its place; it counts again as soon as its bytes flow."""
    gate = Gate(LimiterSettings(concurrency_start=4, concurrency_max=100), 0.0)
    uploads = [join(gate, Priority.UPLOAD) for _ in range(4)]

    first = granted(gate, 0.0)
    is_news = [gate.rest(1.0, first[0]), gate.rest(1.0, first[0])]
    second = granted(gate, 1.0)
    gate.wake(2.0, first[0])
    finish(gate, second[0], 3.0)
    third = granted(gate, 3.0)

    assert (first, second, third) == (uploads[:2], uploads[2:3], [])
    assert is_news == [True, False]


@pytest.mark.parametrize("priority", [one for one in Priority if one is not Priority.UPLOAD])
def test_slow_uploads_leave_something_to_every_class(priority: Priority) -> None:
    """However many wait for their clients, to one bucket or to two: half of what is set is for others, in any bucket."""
    gate = Gate(LimiterSettings(concurrency_start=12, concurrency_max=64), 0.0)

    gone = [len(uploads_at_rest(gate, bucket, 100)) for bucket in ("a", "b")]
    others = [join(gate, priority, bucket=bucket) for bucket in ("a", "b", "c")]

    assert gone == [32, 0]
    assert granted(gate, 1.0) == others


def test_uploads_that_go_on_all_at_once_leave_half_to_others() -> None:
    """They are more than the origin bears by what is learnt, and a reader does not wait for them to end."""
    gate = Gate(LimiterSettings(concurrency_start=12, concurrency_max=64), 0.0)
    gone = uploads_at_rest(gate, "", 100)

    for upload in gone:
        gate.wake(1.0, upload)
    for _ in range(50):
        join(gate, Priority.FOREGROUND)
        join(gate, Priority.UPLOAD)
    going = granted(gate, 1.0)

    assert {demand.priority for demand in going} == {Priority.FOREGROUND}
    assert len(going) == 6


def test_an_upload_at_rest_is_no_probe() -> None:
    """What looks whether an origin is back waits for the origin alone: the next request looks."""
    gate = Gate(LimiterSettings(), 0.0)
    for number in range(AWAY_AFTER + 1):
        demand = join(gate, Priority.FOREGROUND, float(number))
        granted(gate, float(number))
        finish(gate, demand, number + 0.5, Feedback.FAILED)
        if gate.away(number + 0.5):
            break
    probe = join(gate, Priority.UPLOAD, 100.0)
    (upload,) = granted(gate, 100.0)
    with pytest.raises(OriginAwayError):
        join(gate, Priority.FOREGROUND, 100.0)

    gate.rest(101.0, upload)
    reader = join(gate, Priority.FOREGROUND, 101.0)

    assert upload is probe
    assert granted(gate, 101.0) == [reader]


def test_a_resting_upload_that_ends_gives_its_place_back_once() -> None:
    """Whether it rested or not, nothing is left behind, and the time of its rest is none that the origin took."""
    gate = Gate(LimiterSettings(concurrency_start=1, concurrency_max=4), 0.0)
    rested = join(gate, Priority.UPLOAD)
    granted(gate, 0.0)
    gate.rest(1.0, rested)

    finish(gate, rested, 100.0)
    gate.wake(101.0, rested)
    readers = [join(gate, Priority.FOREGROUND) for _ in range(4)]

    assert (gate.in_flight, rested.rested_s) == (0, 99.0)
    assert granted(gate, 102.0) == readers[:1]


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


@pytest.mark.slow
def test_gate_starves_no_class_when_all_wait() -> None:
    """Under lasting load each class gets its share: 64:32:16:8:4:2:1."""
    gate = Gate(LimiterSettings(concurrency_start=1, concurrency_max=1), 0.0)
    for priority in Priority:
        for _ in range(1000):
            join(gate, priority)
    served = dict.fromkeys(Priority, 0)

    for turn in range(1290):
        (demand,) = granted(gate, float(turn))
        served[demand.priority] += 1
        finish(gate, demand, float(turn), Feedback.NEUTRAL)

    assert list(served.values()) == pytest.approx([640, 320, 160, 80, 40, 20, 20, 10], abs=2)


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

    assert counts == [1, 0, 1, 1]


def test_gate_gives_back_bytes_that_were_not_moved() -> None:
    """What a body fell short of its hint is there for others."""
    gate = Gate(LimiterSettings(bytes_per_s=2_000_000), 0.0)
    first = join(gate, Priority.FOREGROUND, size=10_000_000)
    granted(gate, 0.0)

    gate.finish(0.0, first, Feedback.SUCCESS, bytes_moved=10, retry_after_s=None)
    second = join(gate, Priority.FOREGROUND)

    assert granted(gate, 0.0) == [second]


# --- caps ----------------------------------------------------------------------------------------------------------------


@given(
    rate=st.floats(1, 500),
    flush_rate=st.floats(1, 500),
    bucket_rate=st.floats(1, 500),
    steps=st.lists(
        st.tuples(
            st.floats(0, 0.3),
            st.integers(0, 60),
            st.sampled_from(list(Priority)),
            st.sampled_from(["one", "two"]),
            st.sampled_from([Feedback.SUCCESS, Feedback.THROTTLED, Feedback.TIMED_OUT, Feedback.NEUTRAL]),
        ),
        max_size=40,
    ),
)
def test_caps_hold_in_any_window(
    rate: float,
    flush_rate: float,
    bucket_rate: float,
    steps: list[tuple[float, int, Priority, str, Feedback]],
) -> None:
    """Whatever waits, fails and is tried again: in any t seconds no more leaves than burst + rate * t, in all, to a bucket, of flushes."""
    settings = LimiterSettings(
        requests_per_s=rate, flush_requests_per_s=flush_rate, bucket_requests_per_s=bucket_rate
    )
    gate, now_s = Gate(settings, 0.0), 0.0
    sent: list[tuple[float, Demand]] = []
    running: list[Demand] = []

    for step_s, count, priority, bucket, feedback in steps:
        now_s += step_s
        budget = Budget.FLUSH if priority is Priority.FLUSH else Budget.GENERAL
        for _ in range(count):
            join(gate, priority, now_s, budget=budget, bucket=bucket)
        for demand in running[: count // 2]:
            running.remove(demand)
            finish(gate, demand, now_s, feedback)
        for demand in granted(gate, now_s):
            sent.append((now_s, demand))
            running.append(demand)

    check_windows([at_s for at_s, _ in sent], rate)
    check_windows([at_s for at_s, one in sent if one.budget is Budget.FLUSH], flush_rate)
    for bucket in ("one", "two"):
        check_windows([at_s for at_s, one in sent if one.bucket == bucket], bucket_rate)


def check_windows(times_s: list[float], rate: float) -> None:
    """Look at each window that begins and ends with a request."""
    burst = max(1.0, rate * 0.05)
    for first, begin_s in enumerate(times_s):
        for last in range(first, len(times_s)):
            count, seconds = last - first + 1, times_s[last] - begin_s
            assert count <= burst + rate * seconds + 1e-6


def test_flushes_count_against_the_cap_of_all() -> None:
    """The most requests a second to the origin are those of reads and flushes together."""
    gate = Gate(LimiterSettings(requests_per_s=20.0), 0.0)
    join(gate, Priority.FLUSH, budget=Budget.FLUSH)
    join(gate, Priority.FOREGROUND)

    assert len(granted(gate, 0.0)) == 1
    assert len(granted(gate, 0.05)) == 1


# --- buckets -------------------------------------------------------------------------------------------------------------


def test_throttled_bucket_holds_up_no_other() -> None:
    """One that has to wait, is paused or has no slots leaves the others as they were."""
    gate = Gate(LimiterSettings(), 0.0)
    first = join(gate, Priority.FOREGROUND, bucket="hot")
    granted(gate, 0.0)
    finish(gate, first, 0.1, Feedback.THROTTLED, retry_after_s=5.0)
    for _ in range(100):
        join(gate, Priority.FOREGROUND, 0.2, bucket="hot")

    other = join(gate, Priority.WARM_UP, 0.2, bucket="calm")

    assert granted(gate, 0.2) == [other]
    assert gate.paused(0.2) == 1


def test_bucket_has_a_bound_of_its_own() -> None:
    """With four slots for a bucket its fifth request waits, and another bucket's goes."""
    gate = Gate(LimiterSettings(bucket_concurrency_max=4), 0.0)
    for _ in range(10):
        join(gate, Priority.FOREGROUND, bucket="one")
    other = join(gate, Priority.FOREGROUND, bucket="two")

    assert len(granted(gate, 0.0)) == 5
    assert other.granted_at_s == 0.0


def test_all_buckets_together_keep_to_the_bound_of_all() -> None:
    """However many buckets are asked, no more is in flight than `concurrency_max`."""
    gate = Gate(LimiterSettings(concurrency_max=10), 0.0)
    for n in range(40):
        join(gate, Priority.FOREGROUND, bucket=f"b{n}")

    assert len(granted(gate, 0.0)) == 10


def test_bucket_that_was_used_longest_ago_is_forgotten() -> None:
    """What is known of buckets is bounded, though names come from clients."""
    gate = Gate(LimiterSettings(), 0.0)
    running = join(gate, Priority.FOREGROUND, bucket="running")
    granted(gate, 0.0)

    for n in range(3000):
        gate.leave(join(gate, Priority.FOREGROUND, 1.0, bucket=f"b{n}"))
    finish(gate, running, 2.0)

    assert len(gate._sites) == 1000


# --- clients -------------------------------------------------------------------------------------------------------------


def test_client_with_a_thousand_requests_does_not_hold_up_one_with_a_single_request() -> None:
    """Within a class clients take turns."""
    gate = Gate(LimiterSettings(concurrency_start=1, concurrency_max=1), 0.0)
    for _ in range(1000):
        join(gate, Priority.FOREGROUND, client="many")
    running = granted(gate, 0.0)[0]
    single = join(gate, Priority.FOREGROUND, client="single")

    order = []
    for _ in range(2):
        finish(gate, running, 0.0)
        (running,) = granted(gate, 0.0)
        order.append(running)

    assert single in order


def test_line_that_one_client_has_filled_takes_in_another() -> None:
    """A client's own waiting requests keep out its next one, and nobody else's."""
    gate = Gate(LimiterSettings(concurrency_start=1, concurrency_max=1, queue_max=32), 0.0)
    for _ in range(32):
        join(gate, Priority.FOREGROUND, client="many")

    with pytest.raises(OverloadedError):
        join(gate, Priority.FOREGROUND, client="many")

    assert join(gate, Priority.FOREGROUND, client="single").granted_at_s is None


# --- an origin that is away ----------------------------------------------------------------------------------------------


def gate_of_an_origin_away(bucket: str = "data") -> Gate:
    """Give a gate whose origin has not answered from time 0 to 10."""
    gate = Gate(LimiterSettings(), 0.0)
    demands = [join(gate, Priority.FOREGROUND, bucket=bucket) for _ in range(AWAY_AFTER)]
    granted(gate, 0.0)
    for demand in demands:
        finish(gate, demand, 10.0, Feedback.FAILED)
    return gate


def test_who_waits_is_turned_away_when_the_origin_has_gone() -> None:
    """Nobody waits for an origin that does not answer: those in line are told at once, those who come too."""
    gate = Gate(LimiterSettings(concurrency_start=AWAY_AFTER), 0.0)
    waiting = [join(gate, Priority.FOREGROUND, bucket="data") for _ in range(AWAY_AFTER + 3)]
    other = join(gate, Priority.FOREGROUND, bucket="other")
    running = granted(gate, 0.0)

    for demand in running:
        finish(gate, demand, 10.0, Feedback.FAILED if demand is not other else Feedback.SUCCESS)

    assert gate.refused() == waiting[AWAY_AFTER:]
    assert all(isinstance(one.refusal, OriginAwayError) for one in waiting[AWAY_AFTER:])
    assert (gate.waiting, gate.in_flight) == (0, 0)
    with pytest.raises(OriginAwayError) as refused:
        join(gate, Priority.FOREGROUND, 10.1, bucket="data")
    assert refused.value.retry_after_s == 1.0
    # The text is kept and told later, when no time in it would be right any more.
    assert str(refused.value) == str(waiting[-1].refusal)
    assert not any(letter.isdigit() for letter in str(refused.value))
    assert join(gate, Priority.FOREGROUND, 10.1, bucket="other").refusal is None


def test_origin_that_is_away_is_asked_by_one_at_a_time() -> None:
    """The first request behind the interval is the probe; others are turned away until it has an answer."""
    gate = gate_of_an_origin_away()
    probe = join(gate, Priority.VALIDATION, 11.0, bucket="data")

    with pytest.raises(OriginAwayError):
        join(gate, Priority.FOREGROUND, 11.0, bucket="data")
    went = granted(gate, 11.0)
    with pytest.raises(OriginAwayError):
        join(gate, Priority.FOREGROUND, 11.5, bucket="data")

    assert went == [probe]
    assert gate.away(12.0) == {"data": 2.0}


def test_recovery_is_gentle() -> None:
    """With the probe's answer the others may come: two at first, then more with each success."""
    gate = gate_of_an_origin_away()
    probe = join(gate, Priority.FOREGROUND, 11.0, bucket="data")
    granted(gate, 11.0)

    gate.answered(probe)
    for _ in range(200):
        join(gate, Priority.FOREGROUND, 11.1, bucket="data")
    finish(gate, probe, 11.1)
    rounds, running = [], granted(gate, 11.1)
    for turn in range(24):
        rounds.append(len(running))
        for demand in running:
            finish(gate, demand, 12.0 + turn)
        running = granted(gate, 12.0 + turn)

    assert rounds[0] == 2
    assert rounds == sorted(rounds)
    assert 8 <= rounds[-1] <= 32
    assert gate.away(30.0) == {}
