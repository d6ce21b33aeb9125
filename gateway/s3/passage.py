"""Which writes only the origin can answer, and which of their headers it must see.

A write is acknowledged from the disk only where the gateway can answer exactly as the origin would. So the question is
asked the safe way round: a header is either known here to make no difference, or the write goes through.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from gateway.s3.checksums import CHECKSUM_HEADERS
from gateway.s3.metadata import (
    STORAGE_CLASS,
    SYSTEM_HEADERS,
    USER_METADATA_PREFIX,
    check_header,
    without_aws_chunked,
)

HeaderPairs = tuple[tuple[str, str], ...]

CONDITIONAL_HEADERS: Final = frozenset(
    {"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"}
)

_TRANSPORT_HEADERS: Final = frozenset(
    {
        # Signing, framing and tracing of this hop: the origin gets its own.
        "x-amz-algorithm",
        "x-amz-cf-id",
        "x-amz-content-sha256",
        "x-amz-credential",
        "x-amz-date",
        "x-amz-decoded-content-length",
        "x-amz-sdk-checksum-algorithm",
        "x-amz-security-token",
        "x-amz-trailer",
        "x-amz-user-agent",
    }
)
_BATCH_HEADERS: Final = frozenset(
    {
        "x-amz-bypass-governance-retention",
        "x-amz-expected-bucket-owner",
        "x-amz-mfa",
        "x-amz-request-payer",
    }
)
_SIGNATURE_PARAMETERS: Final = frozenset(
    {*_TRANSPORT_HEADERS, "x-amz-expires", "x-amz-signature", "x-amz-signedheaders"}
)
_STORED_HEADERS: Final = frozenset({*SYSTEM_HEADERS, "x-amz-tagging"})
_LOCAL_HEADERS: Final = frozenset(
    {
        # The gateway carries these out itself.
        *CHECKSUM_HEADERS,
        "x-amz-checksum-algorithm",
        "x-amz-checksum-mode",
        "x-amz-checksum-type",
        "x-amz-copy-source",
        "x-amz-copy-source-if-match",
        "x-amz-copy-source-if-modified-since",
        "x-amz-copy-source-if-none-match",
        "x-amz-copy-source-if-unmodified-since",
        "x-amz-copy-source-range",
        "x-amz-metadata-directive",
        "x-amz-mp-object-size",
        "x-amz-tagging-directive",
    }
)
_LOCAL_STORAGE_CLASSES: Final = frozenset(
    {"STANDARD", "REDUCED_REDUNDANCY", "STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR"}
)
"""The classes whose objects can be read at once. The archives answer a GET with InvalidObjectState."""

_SOURCE_PREFIXES: Final = ("x-amz-copy-source", "x-amz-rename-source")

_REASONS: Final = (
    ("x-amz-if-match-", "conditional"),
    ("x-amz-server-side-encryption", "encryption"),
    ("x-amz-copy-source-server-side-encryption", "encryption"),
    ("x-amz-object-lock-", "object-lock"),
    ("x-amz-bypass-governance-retention", "object-lock"),
    ("x-amz-acl", "acl"),
    ("x-amz-grant-", "acl"),
    ("x-amz-expected-bucket-owner", "expected-bucket-owner"),
    ("x-amz-source-expected-bucket-owner", "expected-bucket-owner"),
    ("x-amz-request-payer", "request-payer"),
)


def needs_origin(headers: Mapping[str, str]) -> str:
    """Say why a write must be written through, "" where nothing in its headers (lower-case names) demands it.

    Reasons are words fit for x-cache-reason: `conditional`, `encryption` (any server-side encryption header: AES256 too is
    answered by the origin, which may refuse or upgrade it), `object-lock`, `acl`, `expected-bucket-owner`, `request-payer`,
    `storage-class`, and `unknown-header <name>`.
    """
    for name, value in headers.items():
        reason = _reason(name, value)
        if reason:
            return reason
    return ""


def origin_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Pick the request headers that a write-through hands to the origin beside what is stored.

    These are conditions, declared digests, and every x-amz-* header but those of this hop and those that `read_metadata`
    stores, which are sent from the stored form.
    """
    return tuple((name, value) for name, value in headers.items() if _is_forwarded(name))


def copy_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Pick the request headers that a copy hands to the origin, which carries it out.

    These are what the target is to have (metadata, tags, storage class, encryption), the directives, and the conditions on
    source and target. The source itself is named anew by whoever sends the copy, and signing is of this hop.
    """
    return tuple(
        (name, value)
        for name, value in headers.items()
        if name in SYSTEM_HEADERS
        or name in CONDITIONAL_HEADERS
        or (name.startswith("x-amz-") and name not in _TRANSPORT_HEADERS and name != "x-amz-copy-source")
    )


def batch_headers(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Pick the headers of a DeleteObjects that go to the origin with each of its deletes (AWS API_DeleteObjects)."""
    return tuple((name, value) for name, value in headers.items() if name in _BATCH_HEADERS)


def with_hoisted(headers: Mapping[str, str], query: Iterable[tuple[str, str]]) -> Mapping[str, str]:
    """Add to a presigned request's headers the x-amz-* that its signer moved into the query, as some SDKs do.

    A header that was sent stands. Left out are the signature's own parameters and the checksums: a URL is signed before there
    is a body, and S3 does not look at a checksum there.

    Args:
        headers: Lower-case names.
        query: Decoded parameters.

    Raises:
        S3Error: InvalidArgument (400), one of them can stand in no header.
    """
    lowered = ((name.lower(), value) for name, value in query)
    hoisted = {name: value for name, value in lowered if _is_hoisted(name)}
    for name, value in hoisted.items():
        check_header(name, value)
    return {**hoisted, **headers} if hoisted else headers


def relayed_headers(headers: Mapping[str, str], query: Iterable[tuple[str, str]]) -> HeaderPairs:
    """Give the headers of a request that the origin is to answer, with those that the signer of a URL moved into its query.

    The token of the framing, which is taken off here, is no part of Content-Encoding. A source that a request names has no
    meaning for any operation that is relayed, and must not get one at an origin that reads requests otherwise.

    Raises:
        S3Error: As `with_hoisted`.
    """
    given = {
        name: value
        for name, value in with_hoisted(headers, query).items()
        if not name.startswith(_SOURCE_PREFIXES)
    }
    if "content-encoding" in given:
        given["content-encoding"] = without_aws_chunked(given["content-encoding"])
    return tuple((name, value) for name, value in given.items() if value or name != "content-encoding")


def relayed_query(query: Iterable[tuple[str, str]]) -> HeaderPairs:
    """Give the decoded parameters of a request that the origin is to answer: all but the signature's and hoisted headers."""
    return tuple((name, value) for name, value in query if not name.lower().startswith("x-amz-"))


def _is_hoisted(name: str) -> bool:
    return name.startswith("x-amz-") and name not in _SIGNATURE_PARAMETERS and name not in _LOCAL_HEADERS


def _reason(name: str, value: str) -> str:
    if name in CONDITIONAL_HEADERS:
        return "conditional"
    if name == STORAGE_CLASS:
        return "" if not value or value in _LOCAL_STORAGE_CLASSES else "storage-class"
    if not name.startswith("x-amz-") or name.startswith(USER_METADATA_PREFIX):
        return ""
    if name in _LOCAL_HEADERS or name in _TRANSPORT_HEADERS or name in _STORED_HEADERS:
        return ""
    return next((reason for prefix, reason in _REASONS if name.startswith(prefix)), f"unknown-header {name}")


def _is_forwarded(name: str) -> bool:
    if name in CONDITIONAL_HEADERS or name == "content-md5":
        return True
    if not name.startswith("x-amz-") or name.startswith(USER_METADATA_PREFIX):
        return False
    return name not in _TRANSPORT_HEADERS and name not in _STORED_HEADERS
