"""`storage.warm_jobs`: what a warm-up is asked for, what it tells, and the list that it holds."""

import pytest

from storage import errors
from storage.types import RangeSpec
from storage.warm_jobs import (
    BACKLOG_BYTES_MAX,
    EXAMPLES_MAX,
    FEED_ENTRIES_MAX,
    Backlog,
    Tally,
    WarmEntry,
    WarmKind,
    WarmPhase,
    WarmReport,
    WarmRequest,
    failure_kind,
)


def entries(start: int, count: int) -> tuple[WarmEntry, ...]:
    """List keys as those of a dataset."""
    return tuple(WarmEntry("bucket", f"data/train/sample-{n:08}.jpg") for n in range(start, start + count))


def test_a_list_comes_out_as_it_went_in() -> None:
    """In order, with ranges and any key."""
    first = (WarmEntry("b", "k\n\u20ac", RangeSpec(start=1, stop=9)), WarmEntry("b2", "k"))
    backlog = Backlog()

    backlog.append(first, is_last=False)
    backlog.append(entries(0, 3), is_last=True)

    assert (backlog.take(), backlog.take()) == (first, entries(0, 3))
    assert backlog.is_empty
    assert backlog.packed_bytes == 0
    assert (backlog.count, backlog.is_whole) == (5, True)


def test_a_list_is_packed_when_it_waits() -> None:
    """A million keys of a dataset take less than the bound."""
    backlog = Backlog()

    backlog.append(entries(0, FEED_ENTRIES_MAX), is_last=False)

    assert backlog.packed_bytes * 1000 < BACKLOG_BYTES_MAX
    assert not backlog.is_full


def test_the_share_counts_what_is_here_when_objects_failed_or_did_not_fit() -> None:
    """Brought and skipped are warm; of nothing, nothing is."""
    report = WarmReport(
        1,
        WarmKind.PREFIX,
        "s3://b/p",
        WarmPhase.DONE,
        known_objects=8,
        results={"brought": 3, "skipped": 3, "unfit": 1, "failed": 1},
    )

    assert (report.warm_objects, report.seen_objects, report.percent_warm) == (6, 8, 75.0)
    assert WarmReport(1, WarmKind.PREFIX, "s3://b/p", WarmPhase.DONE).percent_warm == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"kind": WarmKind.PREFIX},
        {"kind": WarmKind.LIST, "bucket": "b"},
        {"kind": WarmKind.LIST, "concurrency": 0},
        {"kind": WarmKind.LIST, "concurrency": 257},
        {"kind": WarmKind.ORDER, "ahead_objects": 0},
        {"kind": WarmKind.ORDER, "ahead_bytes": 0},
        {"kind": WarmKind.LIST, "hold_s": -1.0},
        {"kind": WarmKind.LIST, "hold_s": float("inf")},
        {"kind": WarmKind.ORDER, "idle_s": float("nan")},
    ],
)
def test_a_job_is_refused_when_its_bounds_are_none(wrong: dict[str, object]) -> None:
    """A request that exists is valid."""
    with pytest.raises(ValueError, match=r"allowed|positive|bucket"):
        WarmRequest(**wrong)  # type: ignore[arg-type]  # the table mixes fields


def test_failures_are_counted_by_kind_and_the_first_are_named() -> None:
    """However many fail, few are held."""
    tally = Tally()

    for number in range(EXAMPLES_MAX + 5):
        tally.fail(f"s3://b/{number}", errors.NoSuchKeyError("gone"))
    tally.fail("s3://b/x", errors.OriginRefusedError("no", status=403, code="AccessDenied"))

    assert tally.failures == {"not found": EXAMPLES_MAX + 5, "refused": 1}
    assert len(tally.examples) == EXAMPLES_MAX
    assert tally.examples[0] == "s3://b/0: gone"


def test_kinds_are_told_apart_when_one_error_is_a_case_of_another() -> None:
    """The first that fits counts."""
    assert failure_kind(errors.OriginThrottledError("slow", status=503, code="SlowDown")) == "throttled"
    assert failure_kind(errors.OriginUnavailableError("cut", status=0, code="Incomplete")) == "wrong answer"
    assert (
        failure_kind(errors.OriginUnavailableError("no ETag", status=0, code="BadAnswer")) == "wrong answer"
    )
    assert (
        failure_kind(errors.OriginUnavailableError("no", status=500, code="InternalError")) == "server error"
    )
    assert failure_kind(errors.OriginUnavailableError("gone", status=0, code="Connection")) == "origin away"
    assert failure_kind(errors.OriginAwayError("away", status=0, code="Away")) == "origin away"
    assert failure_kind(errors.DiskFullError("full")) == "overloaded"
    assert failure_kind(errors.SegmentGoneError("gone")) == "other"
