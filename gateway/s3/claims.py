"""What a request says of its own signature, in its Authorization header or in its query: read and checked for form and time.

Nothing here is proof yet; `auth.py` compares the signature. Messages follow AWS's, as clients' authors search for them.
"""

import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

import msgspec

from gateway.s3.errors import ErrorCode, S3Error, invalid_argument
from gateway.s3.request import S3Request
from storage.origin import signing

CLOCK_SKEW_S_MAX: Final = 15 * 60
"""How far a signed request's time may be from ours (AWS "RESTAuthentication")."""

EXPIRES_S_MAX: Final = 7 * 24 * 3600
"""The longest life of a presigned URL (AWS "sigv4-query-string-auth")."""

SIGNATURE_PARAMETER: Final = "X-Amz-Signature"
"""Stands in the query and is not part of what it signs."""

_CREDENTIAL: Final = "X-Amz-Credential"
_AUTH_PARAMETERS: Final = (
    "X-Amz-Algorithm",
    _CREDENTIAL,
    SIGNATURE_PARAMETER,
    "X-Amz-Date",
    "X-Amz-SignedHeaders",
    "X-Amz-Expires",
)
_CLAIMING: Final = (*_AUTH_PARAMETERS, "AWSAccessKeyId", "Signature")
_ASYMMETRIC: Final = "AWS4-ECDSA-P256-SHA256"
_AMZ_DATE: Final = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z", re.ASCII)
_UTC_ZONES: Final = ("GMT", "+0000", "-0000")
# Bounded, as the region is part of the key under which signing keys are remembered.
_REGION: Final = re.compile(r"[^\s,]{1,64}")
_TERMS_CHARACTERS_MAX: Final = 8192
"""Of the Authorization header before the signature; bounds what is remembered of it."""
NOT_OURS: Final = (
    "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256."
)
"""Told to who signs with Signature Version 2 or 4A."""


class Claim(msgspec.Struct, frozen=True, gc=False):
    """A signature as claimed: well-formed and in time, not verified.

    Attributes:
        access_key: Whose secret should have signed.
        date: Day of the scope, the same as of `amz_date`.
        region: Of the scope.
        signed_headers: Lower case, sorted.
        signature: As sent.
        amz_date: Time of the request, YYYYMMDDTHHMMSSZ.
        payload_hash: What stands for the body in the canonical request.
        is_presigned: From the query.
    """

    access_key: str
    date: str
    region: str
    signed_headers: tuple[str, ...]
    signature: str
    amz_date: str
    payload_hash: str
    is_presigned: bool


def is_unsigned(request: S3Request) -> bool:
    """Whether a request claims no signature at all, neither of ours nor of another kind, and so is anonymous.

    What has a part of one is no anonymous request: its sender meant to sign.
    """
    if request.headers.combined.get("authorization") is not None:
        return False
    return not request.query.pairs or not any(name in request.query for name in _CLAIMING)


def read_claim(request: S3Request, now_s: float) -> Claim:
    """Find the one place where a request is signed and read it.

    Raises:
        S3Error: As `auth.authenticate` says, but for what only the comparison shows.
    """
    authorization = request.headers.combined.get("authorization")
    query = request.query
    in_query = bool(query.pairs) and any(name in query for name in _AUTH_PARAMETERS[:3])
    if authorization is not None:
        if in_query:
            raise invalid_argument(
                "Authorization",
                authorization,
                "Only one auth mechanism allowed: the Authorization header or the query.",
            )
        return _header_claim(request, authorization, now_s)
    if in_query:
        return _query_claim(request, now_s)
    if "AWSAccessKeyId" in query and "Signature" in query:
        raise S3Error(ErrorCode.INVALID_REQUEST, NOT_OURS)
    raise S3Error(ErrorCode.ACCESS_DENIED)


@lru_cache(maxsize=256)
def parse_amz_date(text: str) -> float | None:
    """Read YYYYMMDDTHHMMSSZ as seconds since the epoch; None where it is no such time."""
    match = _AMZ_DATE.fullmatch(text)
    if match is None:
        return None
    year, month, day, hour, minute, second = (int(digits) for digits in match.groups())
    try:
        return datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp()
    except ValueError:
        return None


def _header_claim(request: S3Request, authorization: str, now_s: float) -> Claim:
    algorithm, _, rest = authorization.partition(" ")
    if algorithm != signing.ALGORITHM:
        if algorithm in {"AWS", _ASYMMETRIC}:
            raise S3Error(ErrorCode.INVALID_REQUEST, NOT_OURS)
        raise invalid_argument("Authorization", authorization, "Unsupported Authorization Type")
    amz_date, sent_at_s = _header_date(request)
    if abs(now_s - sent_at_s) > CLOCK_SKEW_S_MAX:
        raise S3Error(
            ErrorCode.REQUEST_TIME_TOO_SKEWED,
            extra={
                "RequestTime": amz_date,
                "ServerTime": _iso(now_s),
                "MaxAllowedSkewMilliseconds": str(CLOCK_SKEW_S_MAX * 1000),
            },
        )
    # All but the signature is the same in most requests of one client on one day.
    head, _, signature = rest.rpartition("Signature=")
    terms = "it is too long" if len(head) > _TERMS_CHARACTERS_MAX else _header_terms(head, amz_date[:8])
    if isinstance(terms, str):
        raise S3Error(
            ErrorCode.AUTHORIZATION_HEADER_MALFORMED, f"The authorization header is malformed; {terms}."
        )
    payload_hash = request.headers.combined.get("x-amz-content-sha256")
    if payload_hash is None:
        raise S3Error(
            ErrorCode.INVALID_REQUEST, "Missing required header for this request: x-amz-content-sha256"
        )
    return Claim(*terms, signature, amz_date, payload_hash, is_presigned=False)


@lru_cache(maxsize=256)
def _header_terms(head: str, date: str) -> tuple[str, str, str, tuple[str, ...]] | str:
    """Read what stands before the signature: access key, date, region, signed headers; or say what is wrong with it."""
    fields = dict(
        [component.strip().partition("=")[::2] for component in head.strip().rstrip(",").split(",")]
    )
    if fields.keys() != {"Credential", "SignedHeaders"}:
        return "it has exactly the components Credential, SignedHeaders and, at the end, Signature"
    parts = scope_parts(fields["Credential"], date)
    return parts if isinstance(parts, str) else (*parts, _names(fields["SignedHeaders"]))


def _header_date(request: S3Request) -> tuple[str, float]:
    """Give the time of a request as signed, and in seconds: of x-amz-date, or of Date where that is missing."""
    amz_date = request.headers.combined.get("x-amz-date")
    if amz_date is None:
        amz_date = _amz_of_http_date(request.headers.combined.get("date", ""))
    sent_at_s = parse_amz_date(amz_date)
    if sent_at_s is None:
        raise S3Error(
            ErrorCode.ACCESS_DENIED, "AWS authentication requires a valid Date or x-amz-date header"
        )
    return amz_date, sent_at_s


def _amz_of_http_date(text: str) -> str:
    """Rewrite a Date header (RFC 9110 section 5.6.7, or with a numeric zone as e-mail has it); "" where it is none."""
    moment, _, zone = text.rpartition(" ")
    if zone not in _UTC_ZONES:
        return ""
    try:
        read = datetime.strptime(moment, "%a, %d %b %Y %H:%M:%S").replace(tzinfo=UTC)
    except ValueError:
        return ""
    return read.strftime("%Y%m%dT%H%M%SZ")


def _query_claim(request: S3Request, now_s: float) -> Claim:
    values = {name: value for name, value in request.query.pairs if name in _AUTH_PARAMETERS}
    sent = sum(name in values for name, _ in request.query.pairs)
    if len(values) != len(_AUTH_PARAMETERS) or sent != len(values):
        raise S3Error(ErrorCode.AUTHORIZATION_QUERY_PARAMETERS_ERROR)
    if values["X-Amz-Algorithm"] != signing.ALGORITHM:
        raise _malformed_query(f'X-Amz-Algorithm only supports "{signing.ALGORITHM}"')
    amz_date = values["X-Amz-Date"]
    sent_at_s = parse_amz_date(amz_date)
    if sent_at_s is None:
        raise _malformed_query("X-Amz-Date must be in the ISO8601 Long Format \"yyyyMMdd'T'HHmmss'Z'\"")
    parts = scope_parts(values[_CREDENTIAL], amz_date[:8])
    if isinstance(parts, str):
        raise _malformed_query(f"Error parsing the X-Amz-Credential parameter: {parts}")
    _check_life(values["X-Amz-Expires"], sent_at_s, now_s)
    payload_hash = request.query.get("X-Amz-Content-Sha256")
    if payload_hash is None:
        payload_hash = request.headers.combined.get("x-amz-content-sha256", signing.UNSIGNED_PAYLOAD)
    names = _names(values["X-Amz-SignedHeaders"])
    return Claim(*parts, names, values[SIGNATURE_PARAMETER], amz_date, payload_hash, is_presigned=True)


def _check_life(expires: str, sent_at_s: float, now_s: float) -> None:
    """Refuse a presigned URL before its time and after its end."""
    digits = expires.removeprefix("-")
    if not (digits.isascii() and digits.isdecimal()):
        raise _malformed_query("X-Amz-Expires should be a number")
    # Digits without bound would be a number without bound.
    if digits != expires or len(digits) > 10 or not 1 <= int(digits) <= EXPIRES_S_MAX:
        raise _malformed_query(f"X-Amz-Expires must be at least 1 and at most {EXPIRES_S_MAX} seconds")
    if sent_at_s - now_s > CLOCK_SKEW_S_MAX:
        raise S3Error(ErrorCode.ACCESS_DENIED, "Request is not valid yet", extra={"ServerTime": _iso(now_s)})
    expires_at_s = sent_at_s + int(digits)
    if now_s > expires_at_s:
        raise S3Error(
            ErrorCode.ACCESS_DENIED,
            "Request has expired",
            extra={"X-Amz-Expires": digits, "Expires": _iso(expires_at_s), "ServerTime": _iso(now_s)},
        )


def scope_parts(credential: str, request_date: str) -> tuple[str, str, str] | str:
    """Take `key/date/region/s3/aws4_request` apart: access key, date, region; or say what is wrong with it."""
    parts = credential.rsplit("/", 4)
    if len(parts) != 5 or not parts[0]:
        return "the Credential is not of the form key/date/region/service/aws4_request"
    access_key, date, region, service, terminator = parts
    if date != request_date:
        return f'the date of the Credential, "{date}", is not the date of the request, "{request_date}"'
    if _REGION.fullmatch(region) is None:
        return "the region of the Credential is empty, too long or holds blanks"
    if service != signing.SERVICE:
        return f'incorrect service "{service}"; this endpoint belongs to "{signing.SERVICE}"'
    if terminator != signing.TERMINATOR:
        return f'incorrect terminal "{terminator}"; this endpoint uses "{signing.TERMINATOR}"'
    return access_key, date, region


def _names(signed_headers: str) -> tuple[str, ...]:
    return tuple(sorted(signed_headers.lower().split(";")))


def _malformed_query(message: str) -> S3Error:
    return S3Error(ErrorCode.AUTHORIZATION_QUERY_PARAMETERS_ERROR, message)


def _iso(wall_s: float) -> str:
    return datetime.fromtimestamp(int(wall_s), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
