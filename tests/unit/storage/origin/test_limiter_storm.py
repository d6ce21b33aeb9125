import pytest

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


def test_origin_that_failed_is_used_again_within_seconds() -> None:
    """Where all is refused for 40 seconds, two a second are tried; of the ten seconds behind it most are used, and nothing is refused."""
    world = Throttling(((0.0, 200.0), (20.0, 0.001), (60.0, 200.0)), latency_s=0.02)

    seen = storm(world, 75)

    assert max(seen.refused[22:60]) <= 2
    assert sum(seen.taken[66:75]) > 0.8 * 9 * 200
    assert sum(seen.refused[61:75]) <= 3


def test_origin_that_takes_a_twentieth_is_no_failing_one() -> None:
    """Where nearly all is refused since little is taken, the limit falls to that and stays there."""
    world = Throttling(((0.0, 200.0), (20.0, 10.0)), latency_s=0.2)

    seen = storm(world, 60)

    assert seen.share_refused(24, 60) < 0.03
    assert sum(seen.taken[24:60]) > 0.85 * 36 * 10


@pytest.mark.slow
def test_origin_that_takes_far_more_is_found_out() -> None:
    """From 20 to 500 a second in half a minute: past the far end of its curve the limit is searched for."""
    world = Throttling(((0.0, 20.0), (20.0, 500.0)), latency_s=0.02)

    seen = storm(world, 60)

    assert sum(seen.taken[50:60]) > 0.85 * 10 * 500
