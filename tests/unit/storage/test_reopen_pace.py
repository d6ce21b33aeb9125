"""When a bad disk is tried again."""

import pytest

from storage.reopen_pace import ReopenPace


def test_the_first_attempt_comes_at_once() -> None:
    """Most failures are of one sync."""
    pace = ReopenPace()
    pace.begin(100.0)

    wait_s = pace.wait_s(0.5, 100.0)

    assert wait_s == 0.0


@pytest.mark.parametrize(
    ("draw", "waits_s"),
    [
        (0.0, [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]),
        (1.0, [0.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]),
    ],
)
def test_waits_grow_when_attempts_fail(draw: float, waits_s: list[float]) -> None:
    """From a second on they double, up to a minute."""
    pace = ReopenPace()
    pace.begin(0.0)

    found = []
    for _ in waits_s:
        found.append(pace.wait_s(draw, 0.0))
        pace.failed("EIO")

    assert found == waits_s


def test_waits_stay_bounded_when_the_disk_is_bad_for_days() -> None:
    """The power of two does not overflow."""
    pace = ReopenPace()
    pace.begin(0.0)
    for _ in range(5000):
        pace.failed("EIO")

    assert pace.wait_s(1.0, 0.0) == 60.0


@pytest.mark.parametrize(("failed_at_s", "wait_s"), [(159.0, 1.0), (160.0, 0.0)])
def test_a_wait_comes_first_when_the_directory_failed_again_soon(failed_at_s: float, wait_s: float) -> None:
    """A minute without a failure makes up for those before."""
    pace = ReopenPace()
    pace.begin(0.0)
    pace.succeeded(100.0)
    pace.begin(failed_at_s)

    assert pace.wait_s(0.0, failed_at_s) == wait_s


def test_clients_are_told_to_come_after_the_next_attempt() -> None:
    """At least a second, at most a minute."""
    pace = ReopenPace()
    pace.begin(0.0)
    at_once = pace.retry_after_s(0.0)
    for _ in range(3):
        pace.failed("EIO")
    pace.wait_s(1.0, 10.0)

    assert at_once == 1.0
    assert (pace.retry_after_s(10.0), pace.retry_after_s(17.0), pace.retry_after_s(500.0)) == (9.0, 2.0, 1.0)


def test_an_operator_is_told_why_and_when() -> None:
    """Nothing while no attempt has failed, or all is well again."""
    pace = ReopenPace()
    pace.begin(0.0)
    before = pace.text(0.0)
    pace.failed("EIO")
    pace.wait_s(1.0, 0.0)
    meanwhile = pace.text(0.5)
    pace.succeeded(2.0)

    assert (before, meanwhile, pace.text(2.0)) == ("", "re-opening failed: EIO; next attempt in 2 s", "")
