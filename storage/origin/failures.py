"""What an error answer of the origin becomes: one exception of storage.errors. Pure."""

from collections.abc import Mapping
from typing import Final, assert_never

from storage.errors import (
    BucketNotEmptyError,
    NoSuchBucketError,
    NoSuchKeyError,
    NoSuchUploadError,
    NoSuchVersionError,
    OriginError,
    OriginRefusedError,
    OriginSuspendedError,
    OriginThrottledError,
    OriginUnavailableError,
    StorageError,
)
from storage.origin.documents import ErrorDocument, is_spoilt, parse_error
from storage.origin.endpoint import is_region
from storage.origin.retry import THROTTLE_CODES, Outcome, classify, is_outcome_unknown
from storage.origin.wire import bad_answer, kept_text, retry_after_s

_MARKER_HEADERS: Final = ("x-amz-delete-marker", "x-amz-version-id", "last-modified")

REASON_HEADER: Final = "x-minio-error-code"
"""Where MinIO names the code of an error without a document (its `writeErrorResponseHeadersOnly`)."""

_CODE_BY_STATUS: Final = {
    301: "PermanentRedirect",
    307: "TemporaryRedirect",
    400: "BadRequest",
    401: "AccessDenied",
    403: "AccessDenied",
    404: "NotFound",
    405: "MethodNotAllowed",
    409: "Conflict",
    412: "PreconditionFailed",
    416: "InvalidRange",
    429: "TooManyRequests",
    500: "InternalError",
    501: "NotImplemented",
    503: "ServiceUnavailable",
}
"""For answers without a document, as HEAD has none."""


def failure_of(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    is_read: bool,
    has_key: bool,
    has_version: bool = False,
) -> StorageError:
    """Make the exception for an error answer, with what the answer's headers tell the client.

    A HEAD's 404 has no document: where no header names its reason, it is taken for the version where the request named one,
    for the key where it named that, else for the bucket.
    """
    document = parse_error(body) or _document_of(status, headers, body)
    failure = _missing(status, document, body, has_key=has_key, has_version=has_version)
    if failure is None:
        failure = failure_named(status, document, headers, body, is_read=is_read)
    failure.told = told_of_versions(headers)
    return failure


def names_reason(headers: Mapping[str, str], body: bytes) -> bool:
    """Whether a 404 that `failure_of` takes for a key says itself that it is one: by document or header, or by a delete marker."""
    if body or told_of_versions(headers):
        return True
    return failure_by_code(_document_of(404, headers, body)) is not None


def told_of_versions(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Pick what an error answer says of a delete marker (AWS User Guide "Working with delete markers"); none of any other."""
    if headers.get("x-amz-delete-marker", "").lower() != "true":
        return ()
    return tuple((name, kept_text(headers[name])) for name in _MARKER_HEADERS if name in headers)


def failure_named(
    status: int, document: ErrorDocument, headers: Mapping[str, str], body: bytes, *, is_read: bool
) -> OriginError:
    """Make the OriginError for a status and code; codes with a class of their own are `failure_by_code`'s."""
    code = document.code or _CODE_BY_STATUS.get(status, f"Status{status}")
    unknown = not is_read and is_outcome_unknown(status, document.code)
    return _kind(classify(status, document.code))(
        _text(status, code, document.message),
        status=status,
        code=code,
        body=body,
        retry_after_s=retry_after_s(headers),
        outcome_unknown=unknown,
    )


def failure_by_code(document: ErrorDocument) -> StorageError | None:
    """Make the exception for a code that has a class of its own; None for any other code."""
    text = _text(404, document.code, document.message)
    match document.code:
        case "NoSuchBucket":
            return NoSuchBucketError(text)
        case "NoSuchKey":
            return NoSuchKeyError(text)
        case "NoSuchVersion":
            return NoSuchVersionError(text)
        case "NoSuchUpload":
            return NoSuchUploadError(text)
        case "BucketNotEmpty":
            return BucketNotEmptyError(_text(409, document.code, document.message))
        case _:
            return None


def failure_in_success(body: bytes) -> StorageError | None:
    """Find the error document inside a 200 answer to a write; None where there is none.

    It counts as the 500 or 503 that the origin could no longer send (AWS API_CompleteMultipartUpload). What begins as a
    document and is none, cut off or a web page of somebody in between, is no success either.
    """
    document = parse_error(body)
    if document is None:
        return bad_answer("a success with a document that is none") if is_spoilt(body) else None
    status = 503 if document.code in THROTTLE_CODES else 500
    return failure_of(status, {}, body, is_read=False, has_key=True)


def told_region(headers: Mapping[str, str], body: bytes) -> str:
    """Find the region that an error answer names for the bucket; "" where it names none."""
    region = headers.get("x-amz-bucket-region", "")
    if not region:
        document = parse_error(body)
        region = "" if document is None else document.region
    return region if is_region(region) else ""


def _document_of(status: int, headers: Mapping[str, str], body: bytes) -> ErrorDocument:
    """Give what headers say in the place of a document: the reason of a 404, and nothing of any other answer."""
    return ErrorDocument(headers.get(REASON_HEADER, "") if status == 404 and not body else "")


def _missing(
    status: int, document: ErrorDocument, body: bytes, *, has_key: bool, has_version: bool
) -> StorageError | None:
    named = failure_by_code(document)
    if named is None and status == 404 and not body:
        text = _text(status, "NotFound", "")
        if has_version:
            return NoSuchVersionError(text)
        return NoSuchKeyError(text) if has_key else NoSuchBucketError(text)
    return named


def _kind(outcome: Outcome) -> type[OriginError]:
    match outcome:
        case Outcome.THROTTLE:
            return OriginThrottledError
        case Outcome.RETRY:
            return OriginUnavailableError
        case Outcome.SUSPEND | Outcome.SKEW | Outcome.ELSEWHERE:
            return OriginSuspendedError
        case Outcome.REFUSE | Outcome.GONE:
            return OriginRefusedError
        case _:
            assert_never(outcome)


def _text(status: int, code: str, message: str) -> str:
    return (
        f"the origin answered {status} {code}: {message}"
        if message
        else f"the origin answered {status} {code}"
    )
