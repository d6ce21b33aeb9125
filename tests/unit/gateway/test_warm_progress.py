"""`gateway.warm_progress`: what is told of a warm-up."""

import pytest
from msgspec.structs import replace

from gateway.warm_progress import Progress, duration_text, end_lines, job_line, percent_text, room_line
from storage.types import GIB, MIB
from storage.warm_jobs import WarmKind, WarmPhase, WarmReport

REPORT = WarmReport(
    3,
    WarmKind.PREFIX,
    "s3://b/p/",
    WarmPhase.RUNNING,
    known_objects=1000,
    known_bytes=1000 * MIB,
    is_counted=True,
    results={"brought": 100},
    brought_bytes=100 * MIB,
    warm_bytes=100 * MIB,
    room_bytes=GIB,
    elapsed_s=10.0,
)


def test_rate_and_time_left_come_of_the_reports_so_far() -> None:
    """After the first one, of all the time so far."""
    progress = Progress()

    line = progress.line(REPORT)

    assert line == "100 of 1000 objects, 100.0 MiB of 1000.0 MiB, 10 objects/s, 10.0 MiB/s, ETA 1:30"


def test_rate_is_of_the_last_seconds_when_it_changes() -> None:
    """Objects that were skipped at the start do not make the rest look near."""
    progress = Progress()
    report = replace(REPORT, elapsed_s=1.0, results={"skipped": 500})
    progress.line(report)
    for second in range(2, 40):
        report = replace(
            REPORT, elapsed_s=float(second), results={"skipped": 500, "brought": second}, warm_bytes=500 * MIB
        )
        progress.line(report)

    assert progress.left_s(report) == pytest.approx(1000 - 539, rel=0.01)


def test_no_time_is_promised_when_it_is_not_known_how_much_there_is() -> None:
    """A plus says that more may come."""
    line = Progress().line(replace(REPORT, is_counted=False))

    assert "ETA" not in line
    assert line.startswith("100 of 1000+ objects, 100.0 MiB of 1000.0 MiB+")


def test_an_order_tells_how_far_the_reads_are() -> None:
    """It has no end that could be foretold."""
    line = Progress().line(replace(REPORT, kind=WarmKind.ORDER, position=50, ahead_bytes=MIB))

    assert "reads at 50, 1.0 MiB ahead" in line
    assert "ETA" not in line


def test_it_is_told_beforehand_what_does_not_fit() -> None:
    """And nothing where all of it does, nor of an order."""
    large = replace(REPORT, known_bytes=3 * GIB)

    assert room_line(REPORT) == ""
    assert "3.0 GiB are known and the cache has room for 1.0 GiB: 2.0 GiB will not fit" in room_line(large)
    assert room_line(replace(large, kind=WarmKind.ORDER)) == ""


def test_the_end_counts_what_is_warm_and_names_what_failed() -> None:
    """By kind, and the first by name."""
    report = replace(
        REPORT,
        phase=WarmPhase.DONE,
        known_objects=10,
        results={"brought": 3, "skipped": 2, "unfit": 1, "failed": 4},
        failures={"refused": 3, "not found": 1},
        examples=("s3://b/k: 403",),
    )

    assert end_lines(report) == [
        "5 of 10 objects warm (50.00%): 3 fetched (100.0 MiB), 2 were here, 1 did not fit, 4 failed (1 not found, 3 refused)",
        "not warm    s3://b/k: 403",
        "not warm    and 3 more",
    ]


def test_the_end_of_an_idle_order_says_where_the_reads_stopped() -> None:
    """It is no failure."""
    report = replace(REPORT, kind=WarmKind.ORDER, phase=WarmPhase.IDLE, position=7, results={"passed": 2})

    lines = end_lines(report)

    assert "2 were read first" in lines[0]
    assert lines[1] == "nobody reads the list any more; the reads had come to 7"


def test_a_share_is_not_rounded_up_to_all() -> None:
    """One of many thousands is missing."""
    report = replace(REPORT, known_objects=100_000, results={"brought": 99_999})

    assert percent_text(report) == "99.99%"


@pytest.mark.parametrize(("seconds", "text"), [(5, "0:05"), (65.9, "1:05"), (3661, "1:01:01")])
def test_times_are_written_as_clocks_show_them(seconds: float, text: str) -> None:
    """Hours only where there are any."""
    assert duration_text(seconds) == text


def test_one_of_several_jobs_is_one_line() -> None:
    """As `forebay status` shows it."""
    assert job_line(REPORT) == ("warm-up 3   running   s3://b/p/: 100 of 1000 objects, 100.0 MiB fetched")
