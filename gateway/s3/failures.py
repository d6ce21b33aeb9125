"""What a client sees when storage fails: one S3 error for each class of `storage/errors.py`. Nowhere else is one translated.

The rule behind the table: what the client can cure is a 4xx, what time can cure a 503 that SDKs retry, what needs a person
a 500.
"""

import math
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.s3.errors import ERRORS, ErrorCode, S3Error
from gateway.s3.request import S3Request
from storage import errors

CODES: Final[Mapping[type[errors.StorageError], ErrorCode]] = MappingProxyType(
    {
        errors.StorageError: ErrorCode.INTERNAL_ERROR,
        errors.NoSuchBucketError: ErrorCode.NO_SUCH_BUCKET,
        errors.NoSuchKeyError: ErrorCode.NO_SUCH_KEY,
        errors.NoSuchVersionError: ErrorCode.NO_SUCH_VERSION,
        errors.NoSuchUploadError: ErrorCode.NO_SUCH_UPLOAD,
        errors.InvalidPartError: ErrorCode.INVALID_PART,
        errors.InvalidPartOrderError: ErrorCode.INVALID_PART_ORDER,
        errors.PartTooSmallError: ErrorCode.ENTITY_TOO_SMALL,
        errors.BucketNotEmptyError: ErrorCode.BUCKET_NOT_EMPTY,
        errors.QuarantinedError: ErrorCode.OPERATION_ABORTED,
        errors.ObjectChangedError: ErrorCode.SERVICE_UNAVAILABLE,
        errors.NotNeededError: ErrorCode.SERVICE_UNAVAILABLE,
        errors.OverloadedError: ErrorCode.SLOW_DOWN,
        errors.DiskFullError: ErrorCode.SLOW_DOWN,
        errors.DiskFailedError: ErrorCode.SLOW_DOWN,
        errors.UnknownOutcomeError: ErrorCode.SERVICE_UNAVAILABLE,
        errors.EngineClosedError: ErrorCode.SLOW_DOWN,
        errors.SegmentGoneError: ErrorCode.SERVICE_UNAVAILABLE,
        errors.BaseUnknownError: ErrorCode.SERVICE_UNAVAILABLE,
        errors.DurabilityNotPossibleError: ErrorCode.INVALID_REQUEST,
        errors.NotSupportedError: ErrorCode.NOT_IMPLEMENTED,
        errors.NameIgnoredError: ErrorCode.NOT_IMPLEMENTED,
        errors.ReadOnlyError: ErrorCode.ACCESS_DENIED,
        errors.PublishRefusedError: ErrorCode.INVALID_REQUEST,
        errors.PublishConflictError: ErrorCode.OPERATION_ABORTED,
        errors.WarmConflictError: ErrorCode.OPERATION_ABORTED,
        errors.GenerationGoneError: ErrorCode.INVALID_ARGUMENT,
        errors.DirtyBytesLostError: ErrorCode.INTERNAL_ERROR,
        errors.FormatError: ErrorCode.INTERNAL_ERROR,
        errors.DamagedError: ErrorCode.INTERNAL_ERROR,
        errors.LockedError: ErrorCode.INTERNAL_ERROR,
        errors.OriginError: ErrorCode.SERVICE_UNAVAILABLE,
        errors.OriginUnavailableError: ErrorCode.SERVICE_UNAVAILABLE,
        errors.OriginAwayError: ErrorCode.SERVICE_UNAVAILABLE,
        errors.OriginThrottledError: ErrorCode.SLOW_DOWN,
        errors.OriginRefusedError: ErrorCode.SERVICE_UNAVAILABLE,
        errors.OriginSuspendedError: ErrorCode.SERVICE_UNAVAILABLE,
    }
)
"""The code of each class; what the origin refuses about the client's request keeps the origin's own."""

_SPEAKING: Final = frozenset(
    {
        errors.QuarantinedError,
        errors.InvalidPartError,
        errors.PartTooSmallError,
        errors.BaseUnknownError,
        errors.DurabilityNotPossibleError,
        errors.NameIgnoredError,
        errors.ReadOnlyError,
        errors.PublishRefusedError,
        errors.PublishConflictError,
        errors.WarmConflictError,
        errors.GenerationGoneError,
    }
)
"""Classes whose text is written for the client; the rest speak of our insides and answer the code's own message."""

_RETRY_AFTER_S: Final = 1

# The origin refuses the gateway's own key with these. A client that reads one throws its own credentials away.
_CREDENTIAL_CODES: Final = frozenset(
    {
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidSecurity",
        "InvalidToken",
        "RequestTimeTooSkewed",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
        "AuthorizationHeaderMalformed",
    }
)
_NAMED: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        ErrorCode.BUCKET_ALREADY_EXISTS: ("BucketName",),
        ErrorCode.BUCKET_ALREADY_OWNED_BY_YOU: ("BucketName",),
        ErrorCode.BUCKET_NOT_EMPTY: ("BucketName",),
        ErrorCode.NO_SUCH_BUCKET: ("BucketName",),
        ErrorCode.NO_SUCH_KEY: ("Key",),
        ErrorCode.NO_SUCH_UPLOAD: ("UploadId",),
        ErrorCode.NO_SUCH_VERSION: ("Key", "VersionId"),
    }
)
# An answer to HEAD has no document, so only the status says what was meant.
_CODES_BY_STATUS: Final[Mapping[int, ErrorCode]] = MappingProxyType(
    {
        403: ErrorCode.ACCESS_DENIED,
        404: ErrorCode.NO_SUCH_KEY,
        405: ErrorCode.METHOD_NOT_ALLOWED,
        409: ErrorCode.OPERATION_ABORTED,
        411: ErrorCode.MISSING_CONTENT_LENGTH,
        412: ErrorCode.PRECONDITION_FAILED,
        416: ErrorCode.INVALID_RANGE,
    }
)
_CODE: Final = re.compile(r"[A-Z][A-Za-z0-9.]{2,63}", re.ASCII)


def to_s3_error(error: errors.StorageError) -> S3Error:
    """Translate a failure of storage; a class that the table lacks answers as its nearest base."""
    if isinstance(error, errors.OriginError) and _is_refusal(error):
        headers = dict(error.told)
        if headers and error.status == 405:
            # All that can be done with a delete marker (AWS API_GetObject; RFC 9110 section 15.5.6 asks for the header).
            headers["Allow"] = "DELETE"
        return S3Error(_origin_code(error), str(error), status=error.status, headers=headers)
    code = next(CODES[base] for base in type(error).__mro__ if base in CODES)
    message = str(error) if type(error) in _SPEAKING and str(error) else None
    if ERRORS[code][0] != 503:
        return S3Error(code, message, headers=dict(error.told))
    wait_s = _RETRY_AFTER_S if error.retry_after_s is None else error.retry_after_s
    return S3Error(code, message, headers={"Retry-After": str(max(_RETRY_AFTER_S, math.ceil(wait_s)))})


def with_names(error: S3Error, request: S3Request) -> S3Error:
    """Say in an error which of the request's names it is about, in the elements that S3 has for it.

    Left as it is where it says more already, or may be about the source of a copy.
    """
    if error.extra or "x-amz-copy-source" in request.headers:
        return error
    names = {
        "Key": request.key,
        "BucketName": request.bucket,
        "UploadId": request.query.get("uploadId") or "",
        "VersionId": request.query.get("versionId") or "",
    }
    extra = {element: names[element] for element in _NAMED.get(error.code, ()) if names[element]}
    return S3Error(error.code, error.message, status=error.status, extra=extra, headers=error.headers)


def _is_refusal(error: errors.OriginError) -> bool:
    """Say whether the origin refused what the client asked for, and not who we are or how much we ask."""
    # Worth a retry, but of what the client alone can decide anew: AWS User Guide "Conditional writes".
    if error.code == ErrorCode.CONDITIONAL_REQUEST_CONFLICT:
        return error.status == 409
    return (
        400 <= error.status < 500
        and error.code not in _CREDENTIAL_CODES
        and not isinstance(error, errors.OriginUnavailableError)
    )


def _origin_code(error: errors.OriginError) -> str:
    if _CODE.fullmatch(error.code):
        return error.code
    return _CODES_BY_STATUS.get(error.status, ErrorCode.INVALID_REQUEST)
