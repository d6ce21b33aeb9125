"""Who sent a request, and whether it is what they signed: AWS Signature Version 4 in the header or in the query.

Follows AWS S3 API Reference "Authenticating Requests (AWS Signature Version 4)". Any region is accepted in the scope, as
clients are configured variously; the service must be s3. What the gateway acts on must be signed: the host and every
x-amz-* header, or someone who holds a signed URL could add an x-amz-copy-source to it.

The signature is made over the path as received. Software between client and gateway may rewrite harmless percent signs
(`%7E` and `~` are the same byte), so where the first form does not match, the form that AWS computes, decoded once and
encoded again, is tried too: both name the same key.
"""

import hmac
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, NoReturn

import msgspec

from gateway.grants import EVERYTHING, NOTHING, Access
from gateway.s3.claims import SIGNATURE_PARAMETER, Claim, is_unsigned, read_claim
from gateway.s3.errors import ErrorCode, S3Error, invalid_argument
from gateway.s3.request import S3Request, decode
from gateway.setting_values import OriginKeys
from storage.origin import signing

_SHA256: Final = re.compile(r"[0-9A-Fa-f]{64}", re.ASCII)


class PayloadMode(StrEnum):
    """What the signature says of the body; the value of x-amz-content-sha256 but for SHA256."""

    SHA256 = "SHA256"
    UNSIGNED = "UNSIGNED-PAYLOAD"
    STREAMING_UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"
    STREAMING_SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    STREAMING_SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"


_NAMED_MODES: Final = {str(mode): mode for mode in PayloadMode if mode is not PayloadMode.SHA256}


@dataclass(frozen=True, slots=True)
class Credential:
    """A key that clients may sign with.

    Attributes:
        credential_id: Names it in what we keep, where the key itself does not belong.
        is_admin: Whether it may use what lies under `/-/`.
        access: What it may do with buckets and objects.
        origin: Its own credentials at the origin, which then decides, too; None where it shares the gateway's.
    """

    access_key: str
    secret_key: str = field(repr=False)
    credential_id: str
    is_admin: bool = False
    access: Access = EVERYTHING
    origin: OriginKeys | None = None


@dataclass(slots=True)
class CredentialsInForce:
    """Who may ask; a reload replaces what is in it.

    Attributes:
        by_access_key: Keys that sign.
        anonymous: What a request without a signature may do.
    """

    by_access_key: Mapping[str, Credential]
    anonymous: Access = NOTHING

    def use(self, other: "CredentialsInForce") -> None:
        """Hold from now on what another one holds."""
        self.by_access_key, self.anonymous = other.by_access_key, other.anonymous


class Authenticated(msgspec.Struct, frozen=True, gc=False):
    """Proof that a request is by the holder of `credential`, and what the decoder of its body needs.

    Attributes:
        credential: Who signed.
        signed_headers: Lower-case names.
        payload: How the body is covered.
        payload_sha256: Lower-case hex that the body must hash to; "" unless `payload` is SHA256.
        seed_signature: The request's signature; the first chunk's chains to it.
        signing_key: Signs the chunks.
        amz_date: The request's time as signed, YYYYMMDDTHHMMSSZ.
        scope: date/region/s3/aws4_request.
        is_presigned: By URL, not by header.
    """

    credential: Credential
    signed_headers: tuple[str, ...]
    payload: PayloadMode
    payload_sha256: str
    seed_signature: str
    signing_key: bytes
    amz_date: str
    scope: str
    is_presigned: bool


def authenticate(
    request: S3Request, credentials: Mapping[str, Credential], now_s: float
) -> Authenticated | None:
    """Verify a request's signature; None for a request that claims none, and so is anonymous.

    Args:
        request: As received.
        credentials: By access key.
        now_s: Wall clock.

    Raises:
        S3Error: AccessDenied: expired, or a header that matters is not signed; InvalidAccessKeyId;
            SignatureDoesNotMatch; RequestTimeTooSkewed; AuthorizationHeaderMalformed, AuthorizationQueryParametersError,
            InvalidRequest, InvalidArgument: it cannot be read, or is of a kind that we do not know.
    """
    if is_unsigned(request):
        return None
    claim = read_claim(request, now_s)
    credential = credentials.get(claim.access_key)
    if credential is None:
        raise S3Error(ErrorCode.INVALID_ACCESS_KEY_ID, extra={"AWSAccessKeyId": claim.access_key})
    _check_covered(request, claim)
    mode, payload_sha256 = _payload_mode(claim.payload_hash)
    scope = signing.credential_scope(claim.date, claim.region)
    key = signing.signing_key(credential.secret_key, claim.date, claim.region)
    _check_signature(request, claim, scope, key)
    return Authenticated(
        credential=credential,
        signed_headers=claim.signed_headers,
        payload=mode,
        payload_sha256=payload_sha256,
        seed_signature=claim.signature,
        signing_key=key,
        amz_date=claim.amz_date,
        scope=scope,
        is_presigned=claim.is_presigned,
    )


def _check_covered(request: S3Request, claim: Claim) -> None:
    """Refuse a request with a header that we act on and its sender did not sign."""
    signed = claim.signed_headers
    missing = [name for name in request.headers.combined if name.startswith("x-amz-") and name not in signed]
    if "host" not in signed:
        missing.append("host")
    if missing:
        raise S3Error(
            ErrorCode.ACCESS_DENIED,
            "There were headers present in the request which were not signed",
            extra={"HeadersNotSigned": ", ".join(missing)},
        )


def _payload_mode(payload_hash: str) -> tuple[PayloadMode, str]:
    """Say what x-amz-content-sha256 means; with the hash in lower case where it is one."""
    if _SHA256.fullmatch(payload_hash):
        return PayloadMode.SHA256, payload_hash.lower()
    mode = _NAMED_MODES.get(payload_hash)
    if mode is not None:
        return mode, ""
    if payload_hash.startswith("STREAMING-AWS4-ECDSA-"):
        raise S3Error(ErrorCode.NOT_IMPLEMENTED, f"The payload signing {payload_hash} is not implemented.")
    raise invalid_argument(
        "x-amz-content-sha256",
        payload_hash,
        "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, a STREAMING- form, or a valid sha256 value.",
    )


def _check_signature(request: S3Request, claim: Claim, scope: str, key: bytes) -> None:
    combined = request.headers.combined
    headers = signing.canonical_headers([(name, combined.get(name, "")) for name in claim.signed_headers])
    given = claim.signature.encode("utf-8", "surrogateescape")
    query = ""
    if request.query.pairs:
        query = signing.canonical_query(
            [pair for pair in request.query.pairs if pair[0] != SIGNATURE_PARAMETER]
        )
    target = (request.raw_path or "/", query)
    canonical, text = _texts_to_sign(request.method, target, headers, claim, scope)
    if hmac.compare_digest(signing.signature(key, text).encode(), given):
        return
    for other in _other_targets(request, *target):
        _, other_text = _texts_to_sign(request.method, other, headers, claim, scope)
        if hmac.compare_digest(signing.signature(key, other_text).encode(), given):
            return
    _refuse_signature(claim, canonical, text)


def _texts_to_sign(
    method: str, target: tuple[str, str], headers: list[tuple[str, str]], claim: Claim, scope: str
) -> tuple[str, str]:
    """Give canonical request and string to sign for one spelling of the target."""
    canonical = signing.canonical_request(method, *target, headers, claim.payload_hash)
    return canonical, signing.string_to_sign(claim.amz_date, scope, canonical)


def _other_targets(request: S3Request, uri: str, query: str) -> Iterator[tuple[str, str]]:
    """Give the other spellings of path and query that may have been signed; two at most."""
    encoded_uri = signing.uri_encode(decode(uri), keep_slash=True)
    if encoded_uri != uri:
        yield encoded_uri, query
    raw_pairs = [
        pair for pair in request.raw_query.split("&") if pair.partition("=")[0] != SIGNATURE_PARAMETER
    ]
    raw_query = signing.canonical_raw_query("&".join(raw_pairs))
    if raw_query != query:
        yield uri, raw_query


def _refuse_signature(claim: Claim, canonical: str, text: str) -> NoReturn:
    """Answer with what we signed, so that the client's author can compare."""
    raise S3Error(
        ErrorCode.SIGNATURE_DOES_NOT_MATCH,
        extra={
            "AWSAccessKeyId": claim.access_key,
            "StringToSign": text,
            "SignatureProvided": claim.signature,
            "StringToSignBytes": _hex(text),
            "CanonicalRequest": canonical,
            "CanonicalRequestBytes": _hex(canonical),
        },
    )


def _hex(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").hex(" ")
