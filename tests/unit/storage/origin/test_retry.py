import pytest
from hypothesis import given, strategies as st

from storage.origin.retry import DELAY_S_MAX, Outcome, RetryBudget, classify, delay_s, is_outcome_unknown


@pytest.mark.parametrize(
    ("status", "code", "outcome"),
    [
        (503, "SlowDown", Outcome.THROTTLE),
        (503, "", Outcome.THROTTLE),
        (429, "", Outcome.THROTTLE),
        (400, "RequestThrottled", Outcome.THROTTLE),
        (500, "InternalError", Outcome.RETRY),
        (502, "", Outcome.RETRY),
        (504, "", Outcome.RETRY),
        (0, "Timeout", Outcome.RETRY),
        (400, "RequestTimeout", Outcome.RETRY),
        (409, "OperationAborted", Outcome.RETRY),
        (501, "NotImplemented", Outcome.REFUSE),
        (400, "InvalidArgument", Outcome.REFUSE),
        (412, "PreconditionFailed", Outcome.REFUSE),
        (403, "InvalidObjectState", Outcome.REFUSE),
        (403, "AccessDenied", Outcome.SUSPEND),
        (403, "", Outcome.SUSPEND),
        (401, "", Outcome.SUSPEND),
        (404, "NoSuchBucket", Outcome.SUSPEND),
        (400, "ExpiredToken", Outcome.SUSPEND),
        (403, "InvalidAccessKeyId", Outcome.SUSPEND),
        (403, "AllAccessDisabled", Outcome.SUSPEND),
        (403, "RequestTimeTooSkewed", Outcome.SKEW),
        (404, "NoSuchKey", Outcome.GONE),
        (404, "NoSuchUpload", Outcome.GONE),
        (404, "", Outcome.GONE),
        (301, "PermanentRedirect", Outcome.ELSEWHERE),
        (301, "", Outcome.ELSEWHERE),
    ],
)
def test_classify_reads_the_code_then_the_status(status: int, code: str, outcome: Outcome) -> None:
    """Each error asks for what AWS's error list says of it."""
    assert classify(status, code) is outcome


@pytest.mark.parametrize(
    ("status", "code", "unknown"),
    [
        (500, "InternalError", True),
        (502, "", True),
        (503, "", True),
        (503, "SlowDown", False),
        (503, "ServiceUnavailable", False),
        (501, "NotImplemented", False),
        (400, "BadDigest", False),
        (0, "Timeout", True),
    ],
)
def test_outcome_is_unknown_unless_turned_away(status: int, code: str, unknown: bool) -> None:
    """A 5xx may have been carried out, except where it says that the request was turned away."""
    assert is_outcome_unknown(status, code) is unknown


@given(attempt=st.integers(1, 1000), jitter=st.floats(0, 1, exclude_max=True))
def test_delay_stays_under_its_ceiling(attempt: int, jitter: float) -> None:
    """No wait is negative or over the bound, however often it failed."""
    assert 0.0 <= delay_s(attempt, jitter) < min(DELAY_S_MAX, 0.1 * 2 ** min(attempt - 1, 20)) + 1e-9


def test_delay_has_retry_after_as_its_floor() -> None:
    """The origin's wish is kept, up to the bound, with jitter on top."""
    assert delay_s(1, 0.5, retry_after_s=3.0) == pytest.approx(3.05)
    assert delay_s(1, 0.0, retry_after_s=1000.0) == DELAY_S_MAX


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), max_size=500))
def test_budget_bounds_retries_to_a_share_and_a_floor(steps: list[tuple[float, bool]]) -> None:
    """Retries are at most 10 + 1 a second + a tenth of the successes."""
    budget = RetryBudget(0.0)
    now_s = 0.0
    successes = retries = 0

    for step_s, succeeds in steps:
        now_s += step_s
        if succeeds:
            budget.succeeded()
            successes += 1
        elif budget.try_spend(now_s):
            retries += 1

        assert retries <= 10 + now_s + 0.1 * successes + 1e-6


def test_budget_runs_dry_in_an_outage_and_drips() -> None:
    """When everything fails, ten retries go and then one a second."""
    budget = RetryBudget(0.0)

    at_once = sum(budget.try_spend(0.0) for _ in range(100))
    later = [budget.try_spend(now_s) for now_s in (0.5, 1.0, 1.5, 2.0)]

    assert at_once == 10
    assert later == [False, True, False, True]
