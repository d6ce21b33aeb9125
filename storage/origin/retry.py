"""Decide what an error of the origin means and whether trying again is allowed.

Pure. `classify` reads status and code; `RetryBudget` bounds retries to a share of what succeeds, so that a failing origin
is not hit harder than a healthy one (AWS Builders' Library "Timeouts, retries and backoff with jitter").
"""

from collections import OrderedDict
from enum import StrEnum
from typing import Final

DELAY_S_BASE: Final = 0.1
DELAY_S_MAX: Final = 20.0
BUDGETS_MAX: Final = 1000

THROTTLE_CODES: Final = frozenset(
    {
        "SlowDown",
        "ServiceUnavailable",
        "RequestLimitExceeded",
        "RequestThrottled",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "TooManyRequestsException",
    }
)
"""S3 says SlowDown and ServiceUnavailable; the others are what compatible origins say (AWS S3 "Error responses")."""

CREDENTIAL_CODES: Final = frozenset(
    {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "InvalidAccessKeyId"}
)
"""New credentials may help."""

_SUSPEND_CODES: Final = CREDENTIAL_CODES | {
    "AccessDenied",
    "AccountProblem",
    "AllAccessDisabled",
    "AuthorizationHeaderMalformed",
    "InvalidPayer",
    "InvalidSecurity",
    "NoSuchBucket",
    "NotSignedUp",
    "SignatureDoesNotMatch",
    "UnauthorizedAccess",
}

_RETRY_CODES: Final = frozenset(
    {"RequestTimeout", "OperationAborted", "ConditionalRequestConflict", "InternalError", "IncompleteBody"}
)

_GONE_CODES: Final = frozenset({"NoSuchKey", "NoSuchVersion", "NoSuchUpload"})

_ELSEWHERE_CODES: Final = frozenset(
    {"PermanentRedirect", "TemporaryRedirect", "Redirect", "IllegalLocationConstraintException"}
)


class Outcome(StrEnum):
    """What an error answer asks for."""

    RETRY = "retry"
    """The same request may succeed soon."""
    THROTTLE = "throttle"
    """The same request may succeed when we ask less."""
    REFUSE = "refuse"
    """This object or request is refused for good."""
    SUSPEND = "suspend"
    """The bucket or the credentials are refused, whatever the object."""
    SKEW = "skew"
    """Our clock is off; the Date header of the answer says by how much."""
    GONE = "gone"
    """What the request names does not exist."""
    ELSEWHERE = "elsewhere"
    """The bucket is in another region; the answer may say which."""


_BY_CODE: Final = {
    **dict.fromkeys(THROTTLE_CODES, Outcome.THROTTLE),
    **dict.fromkeys(_SUSPEND_CODES, Outcome.SUSPEND),
    **dict.fromkeys(_RETRY_CODES, Outcome.RETRY),
    **dict.fromkeys(_GONE_CODES, Outcome.GONE),
    **dict.fromkeys(_ELSEWHERE_CODES, Outcome.ELSEWHERE),
    "RequestTimeTooSkewed": Outcome.SKEW,
}

_BY_STATUS: Final = {
    301: Outcome.ELSEWHERE,
    307: Outcome.ELSEWHERE,
    308: Outcome.ELSEWHERE,
    401: Outcome.SUSPEND,
    404: Outcome.GONE,
    408: Outcome.RETRY,
    429: Outcome.THROTTLE,
    501: Outcome.REFUSE,
    503: Outcome.THROTTLE,
    505: Outcome.REFUSE,
}


def classify(status: int, code: str) -> Outcome:
    """Say what an error answer asks for. The code decides; the status where it is unknown or, as for HEAD, not given.

    Status 0 means no answer: a retry. A 403 with a code that is not known concerns the object (InvalidObjectState);
    one without a code is taken for AccessDenied.
    """
    known = _BY_CODE.get(code)
    if known is not None:
        return known
    if status == 403:
        return Outcome.REFUSE if code else Outcome.SUSPEND
    return _BY_STATUS.get(status, Outcome.RETRY if status >= 500 or status == 0 else Outcome.REFUSE)


def is_outcome_unknown(status: int, code: str) -> bool:
    """Say whether a write that was answered like this may have been carried out all the same.

    A 5xx does not promise that nothing happened, except where it says that the request was turned away.
    """
    return (status >= 500 and status not in (501, 505) and code not in THROTTLE_CODES) or status == 0


def delay_s(attempt: int, jitter: float, retry_after_s: float | None = None) -> float:
    """Give the wait before retry number `attempt` (from 1): full jitter under a doubling ceiling.

    `jitter` is drawn from [0, 1). An origin's Retry-After is a floor, cut to DELAY_S_MAX, with jitter on top.
    """
    assert attempt >= 1, f"the first retry is number 1, not {attempt}"
    ceiling_s = min(DELAY_S_MAX, DELAY_S_BASE * 2.0 ** min(attempt - 1, 16))
    floor_s = 0.0 if retry_after_s is None else min(DELAY_S_MAX, max(0.0, retry_after_s))
    return floor_s + jitter * ceiling_s


class RetryBudget:
    """Tokens that successes earn and retries spend: retries <= share * successes + floor_per_s * t + floor."""

    __slots__ = ("_floor", "_floor_per_s", "_level", "_level_max", "_seen_s", "_share")

    def __init__(
        self, now_s: float, *, share: float = 0.1, floor_per_s: float = 1.0, level_max: float = 100.0
    ) -> None:
        self._share = share
        self._floor = 10.0 * floor_per_s
        self._floor_per_s = floor_per_s
        self._level_max = level_max
        self._level = self._floor
        self._seen_s = now_s

    def succeeded(self) -> None:
        """Earn for one success; what is earned is kept up to `level_max`."""
        self._level = min(self._level_max, self._level + self._share)

    def try_spend(self, now_s: float) -> bool:
        """Spend one retry if there is one. Time alone fills up to the floor and no further."""
        if self._level < self._floor:
            self._level = min(self._floor, self._level + max(0.0, now_s - self._seen_s) * self._floor_per_s)
        self._seen_s = max(self._seen_s, now_s)
        if self._level < 1.0:
            return False
        self._level -= 1.0
        return True


class RetryBudgets:
    """A budget for each bucket, so that one that fails does not take the retries of others; `BUDGETS_MAX` at most."""

    def __init__(self) -> None:
        self._budgets: OrderedDict[str, RetryBudget] = OrderedDict()

    def of(self, bucket: str, now_s: float) -> RetryBudget:
        """Give the budget of a bucket, "" for the service."""
        budget = self._budgets.get(bucket)
        if budget is None:
            if len(self._budgets) >= BUDGETS_MAX:
                self._budgets.popitem(last=False)
            budget = self._budgets[bucket] = RetryBudget(now_s)
        self._budgets.move_to_end(bucket)
        return budget
