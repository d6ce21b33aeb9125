import pytest

from storage.errors import (
    DiskFailedError,
    NoSuchBucketError,
    NoSuchUploadError,
    OriginRefusedError,
    OriginSuspendedError,
    OriginThrottledError,
    OriginUnavailableError,
    OverloadedError,
    StorageError,
)
from storage.flush_events import FailureKind, HeadResult
from storage.flush_outcomes import failure_event, head_result, line_failure

UNKNOWN = FailureKind.UNKNOWN_OUTCOME


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OriginThrottledError("", status=503, code="SlowDown"), FailureKind.THROTTLE),
        (OverloadedError("the limiter is full"), FailureKind.THROTTLE),
        (OriginUnavailableError("", status=0, code="Timeout", outcome_unknown=True), UNKNOWN),
        (OriginUnavailableError("", status=500, code="InternalError", outcome_unknown=True), UNKNOWN),
        (OriginUnavailableError("", status=0, code="Connection"), FailureKind.RETRY),
        (OriginRefusedError("", status=400, code="InvalidStorageClass"), FailureKind.REFUSE),
        (OriginRefusedError("", status=400, code="BadDigest"), FailureKind.RETRY),
        (OriginSuspendedError("", status=403, code="AccessDenied"), FailureKind.SUSPEND_BUCKET),
        (OriginSuspendedError("", status=400, code="ExpiredToken"), FailureKind.SUSPEND_BUCKET),
        (NoSuchBucketError(""), FailureKind.SUSPEND_BUCKET),
        (NoSuchUploadError(""), FailureKind.RETRY),
        (DiskFailedError(""), FailureKind.RETRY),
    ],
)
def test_failure_event_says_what_each_error_means(error: StorageError, kind: FailureKind) -> None:
    """Who is at fault decides what comes next: the object, the bucket, the load, or nobody."""
    assert failure_event(7, error, 0.5).kind is kind


@pytest.mark.parametrize(
    ("error", "is_outage"),
    [
        (OriginUnavailableError("", status=0, code="Connection"), True),
        (OriginUnavailableError("", status=500, code="InternalError", outcome_unknown=True), True),
        (OriginThrottledError("", status=503, code="SlowDown"), True),
        (OriginThrottledError("", status=429, code="TooManyRequests"), False),
        (OriginUnavailableError("", status=409, code="ConditionalRequestConflict"), False),
        (OriginUnavailableError("", status=409, code="OperationAborted"), False),
        (OriginUnavailableError("", status=400, code="RequestTimeout"), False),
        (OriginRefusedError("", status=501, code="NotImplemented"), False),
        (OverloadedError("the limiter is full"), False),
        (DiskFailedError(""), False),
    ],
)
def test_failure_event_takes_only_silence_and_5xx_for_an_outage(
    error: StorageError, *, is_outage: bool
) -> None:
    """An origin that answers 4xx is there: however often it does, its bucket is not suspended for being away."""
    assert failure_event(7, error, 0.5).is_outage is is_outage


def test_failure_event_keeps_reason_and_retry_after() -> None:
    """The reason fits one line of a report; the origin's own wait is passed on."""
    error = OriginThrottledError("slow\n  down", status=503, code="SlowDown", retry_after_s=3.0)

    event = failure_event(7, error, 0.5)

    assert (event.sequence, event.reason, event.jitter, event.retry_after_s) == (7, "slow down", 0.5, 3.0)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("AccessDenied", FailureKind.SUSPEND_BUCKET),
        ("SlowDown", FailureKind.THROTTLE),
        ("Overloaded", FailureKind.THROTTLE),
        ("Incomplete", FailureKind.RETRY),
        ("InvalidArgument", FailureKind.REFUSE),
        ("Timeout", UNKNOWN),
        ("Connection", UNKNOWN),
        ("InternalError", UNKNOWN),
    ],
)
def test_line_failure_says_what_each_line_means(code: str, kind: FailureKind) -> None:
    """A line of a batch counts like an answer of its own; one that stands for a call without an answer may still land."""
    assert line_failure(7, code, "why", 0.5).kind is kind


@pytest.mark.parametrize(
    ("code", "is_outage"),
    [
        ("InternalError", True),
        ("SlowDown", True),
        ("ServiceUnavailable", True),
        ("Connection", True),
        ("MayLand", False),
        ("TooManyRequests", False),
        ("Overloaded", False),
        ("Incomplete", False),
        ("AccessDenied", False),
        ("OperationAborted", False),
    ],
)
def test_line_failure_is_an_outage_where_an_answer_of_its_own_would_be(code: str, *, is_outage: bool) -> None:
    """An origin whose batches are answered 200 with an error in each line is as good as away."""
    assert line_failure(7, code, "why", 0.5).is_outage is is_outage


@pytest.mark.parametrize(
    ("etag", "attempted", "is_from_before", "result"),
    [
        ("ours", {"old"}, False, HeadResult.OURS),
        ("ours", set(), True, HeadResult.OURS),
        ("old", {"old"}, False, HeadResult.SUPERSEDED),
        ("", {""}, False, HeadResult.SUPERSEDED),
        ("else", {"old"}, False, HeadResult.OTHER),
        ("else", {None}, False, HeadResult.SUPERSEDED),
        ("else", set(), True, HeadResult.SUPERSEDED),
        ("", {"old"}, False, HeadResult.OTHER),
    ],
)
def test_head_result_compares_what_is_there_with_what_we_sent(
    etag: str,
    attempted: set[str | None],
    is_from_before: bool,
    result: HeadResult,
) -> None:
    """Ours stays, an older attempt of ours is sent over, another writer's stays; what is not known counts as an older attempt."""
    assert head_result(etag, "ours", attempted, is_from_before=is_from_before) is result
