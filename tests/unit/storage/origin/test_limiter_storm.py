import pytest

from storage.origin.limiter import Budget, Feedback, Gate, LimiterSettings
from storage.types import Priority
from tests.fakes.throttling import Throttling, storm


def at(rate: float, **others: float) -> Throttling:
    """Give an origin that takes so many requests a second."""
    return Throttling(((0.0, rate),), **others)  # type: ignore[arg-type]  # numbers of each kind by name


@pytest.mark.slow
def test_learnt_rate_stays_just_under_what_the_origin_takes() -> None:
    """200 requests/s and a burst of 20: under 3 % is refused after ten seconds, no second is bad, and little is left unused."""
    seen = storm(at(200.0, burst=20.0, latency_s=0.02), 60)

    assert seen.share_refused(10, 60) < 0.01
    assert seen.worst_second() <= 0.1
    assert sum(seen.taken) > 0.95 * 60 * 200


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "burst", "latency_s", "concurrency"),
    [
        (20.0, 5.0, 0.005, 64),
        (20.0, 20.0, 0.2, 64),
        (200.0, 20.0, 0.005, 64),
        (200.0, 100.0, 0.2, 128),
        (1000.0, 100.0, 0.02, 128),
        (5000.0, 500.0, 0.05, 512),
    ],
)
def test_many_origins_are_used_well_and_not_pressed(
    rate: float, burst: float, latency_s: float, concurrency: int
) -> None:
    """20 to 5,000 requests/s, 5 to 200 ms: under 3 % refused after ten seconds; four fifths of the rate used, the start included."""
    seconds = 16 if rate > 2000 else 30
    world = at(rate, burst=burst, latency_s=latency_s, concurrency_max=concurrency, readers=concurrency)

    seen = storm(world, seconds)

    assert seen.share_refused(10, seconds) < 0.03
    assert seen.worst_second(10) <= 0.15
    assert sum(seen.taken) > 0.8 * seconds * rate


def test_cap_under_the_origins_rate_is_never_refused() -> None:
    """With 190 requests/s set before an origin that takes 200, nothing is refused, and the 190 are used."""
    seen = storm(at(200.0, requests_per_s=190.0), 30)

    assert sum(seen.refused) == 0
    assert sum(seen.taken) > 0.97 * 30 * 190


@pytest.mark.slow
def test_origin_that_takes_half_is_followed_within_seconds() -> None:
    """Where others use a part of the rate, the limit falls to what is left and finds the whole again later."""
    world = Throttling(((0.0, 200.0), (20.0, 100.0), (60.0, 200.0)), latency_s=0.02)

    seen = storm(world, 100)

    assert seen.share_refused(23, 60) < 0.03
    assert sum(seen.taken[23:60]) > 0.85 * 37 * 100
    assert sum(seen.taken[80:100]) > 0.85 * 20 * 200


@pytest.mark.parametrize(
    ("latency_s", "readers", "taken_meanwhile_per_s"), [(0.02, 64, 0.001), (0.02, 64, 0.1), (0.5, 256, 0.001)]
)
def test_origin_that_failed_is_used_again_within_seconds(
    latency_s: float, readers: int, taken_meanwhile_per_s: float
) -> None:
    """Where all or nearly all is refused for 40 seconds, two a second are tried; ten seconds behind it most of the rate is used."""
    rates = ((0.0, 200.0), (20.0, taken_meanwhile_per_s), (60.0, 200.0))
    world = Throttling(rates, latency_s=latency_s, readers=readers, concurrency_max=readers)

    seen = storm(world, 80)

    assert max(seen.refused[28:60]) <= 3
    assert sum(seen.taken[60:68]) > 0.2 * 8 * 200
    assert sum(seen.taken[70:78]) > 0.75 * 8 * 200
    assert sum(seen.refused[61:78]) <= 0.02 * sum(seen.taken[61:78])


def test_idle_gateway_is_not_held_to_a_trickle_by_refusals_now_and_then() -> None:
    """One 503 of a hundred requests, five seconds apart each: what is not in use is not what is too high."""
    gate = Gate(LimiterSettings(), 0.0)

    for number in range(1000):
        demand = gate.join(5.0 * number, Priority.FOREGROUND, 0, Budget.GENERAL)
        assert gate.grant(5.0 * number)[0] == [demand]
        feedback = Feedback.SUCCESS if number % 100 else Feedback.THROTTLED
        gate.finish(5.0 * number + 0.1, demand, feedback, bytes_moved=0, retry_after_s=None)

    assert (gate.rate_limit_per_s or 0.0) >= 13.0


@pytest.mark.slow
def test_origin_that_takes_far_more_is_found_out() -> None:
    """From 20 to 500 a second in half a minute: past the far end of its curve the limit is searched for."""
    world = Throttling(((0.0, 20.0), (20.0, 500.0)), latency_s=0.02)

    seen = storm(world, 60)

    assert sum(seen.taken[50:60]) > 0.85 * 10 * 500
