"""What an error, a line of a batch or a HEAD means for the flush. Pure."""

from collections.abc import Collection
from typing import Final

from storage.errors import (
    NoSuchBucketError,
    OriginError,
    OriginRefusedError,
    OriginSuspendedError,
    OriginThrottledError,
    OriginUnavailableError,
    OverloadedError,
    StorageError,
)
from storage.flush_events import FailureKind, FlushFailed, HeadResult
from storage.origin.documents import MAY_LAND
from storage.origin.retry import Outcome, classify

_KINDS: Final = {
    Outcome.RETRY: FailureKind.RETRY,
    Outcome.THROTTLE: FailureKind.THROTTLE,
    Outcome.REFUSE: FailureKind.REFUSE,
    Outcome.SUSPEND: FailureKind.SUSPEND_BUCKET,
    Outcome.SKEW: FailureKind.RETRY,
    # An upload of ours that somebody ended: the next attempt opens another.
    Outcome.GONE: FailureKind.RETRY,
    Outcome.ELSEWHERE: FailureKind.SUSPEND_BUCKET,
}

_BY_LINE_CODE: Final = {
    # Not S3's: the call of its own that the line stands for had no answer, and may yet take effect.
    "Timeout": FailureKind.UNKNOWN_OUTCOME,
    "Connection": FailureKind.UNKNOWN_OUTCOME,
    "BadAnswer": FailureKind.UNKNOWN_OUTCOME,
    MAY_LAND: FailureKind.UNKNOWN_OUTCOME,
    # Of a call of its own this is a 500, which does not promise that nothing happens.
    "InternalError": FailureKind.UNKNOWN_OUTCOME,
    # A line that is missing, or a call that was not made, says nothing against the object.
    "Incomplete": FailureKind.RETRY,
    "Overloaded": FailureKind.THROTTLE,
}

_OUTAGE_LINE_CODES: Final = frozenset(
    {"Timeout", "Connection", "BadAnswer", "InternalError", "ServiceUnavailable", "SlowDown"}
)
"""Of a call of its own these are silence or a 5xx. A line says no status: of the codes that ask for less only S3's own, 503s, count."""

_DAMAGED_ON_THE_WAY: Final = frozenset({"BadDigest", "XAmzContentSHA256Mismatch"})
"""What was sent was checked block by block, so the bytes suffered on the way: no refusal of the object."""


def failure_event(sequence: int, error: StorageError, jitter: float) -> FlushFailed:
    """Say what a failed attempt means. `jitter` is drawn from [0, 1)."""
    return FlushFailed(
        sequence,
        _kind(error),
        _one_line(str(error)),
        jitter,
        error.retry_after_s or 0.0,
        is_outage=_is_outage(error),
    )


def line_failure(sequence: int, code: str, message: str, jitter: float) -> FlushFailed:
    """Say what a failed line of a batch of deletes means."""
    kind = _BY_LINE_CODE.get(code) or _KINDS[classify(200, code)]
    return FlushFailed(
        sequence, kind, _one_line(f"{code}: {message}"), jitter, is_outage=code in _OUTAGE_LINE_CODES
    )


def head_result(
    etag: str, ours: str, attempted: Collection[str | None], *, is_from_before: bool
) -> HeadResult:
    """Compare what the origin has under a key with what we sent.

    Where attempts are out whose content is not known, anything else than ours counts as one of them and the newest
    state is sent again: to overwrite another writer is S3's last writer wins, to lose an acknowledged write is not.

    Args:
        etag: At the origin; "" where there is no object.
        ours: Of the state that was accepted; "" for a delete.
        attempted: Of superseded attempts that may have landed; None for one that is not known.
        is_from_before: Attempts of an earlier process may have landed.
    """
    if etag == ours:
        return HeadResult.OURS
    if etag in attempted or None in attempted or is_from_before:
        return HeadResult.SUPERSEDED
    return HeadResult.OTHER


def _is_outage(error: StorageError) -> bool:
    """Say whether the origin was not there or could not serve. A 4xx is an answer, also one that asks for another try."""
    return isinstance(error, OriginUnavailableError) and (error.status == 0 or error.status >= 500)


def _kind(error: StorageError) -> FailureKind:
    if isinstance(error, OriginError) and error.outcome_unknown:
        return FailureKind.UNKNOWN_OUTCOME
    match error:
        case OriginThrottledError() | OverloadedError():
            return FailureKind.THROTTLE
        case OriginSuspendedError() | NoSuchBucketError():
            return FailureKind.SUSPEND_BUCKET
        case OriginRefusedError(code=code):
            return FailureKind.RETRY if code in _DAMAGED_ON_THE_WAY else FailureKind.REFUSE
        case OriginError():
            return _KINDS[classify(error.status, error.code)]
        case _:
            # Gone keys and uploads, a local disk that does not read: the next attempt looks again.
            return FailureKind.RETRY


def _one_line(text: str) -> str:
    return " ".join(text.split())[:500]
