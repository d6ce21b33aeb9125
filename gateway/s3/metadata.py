"""What a request says of an object beside its bytes: what is stored, what is answered, what only the origin can carry out.

Sources: AWS "Working with object metadata", "PutObject", "GetObject". Header names are lower case. Header values come as
aiohttp gives them: UTF-8, with the bytes that are none as lone surrogates.

Stored user metadata is ASCII: a value with other characters is kept as the RFC 2047 word in which AWS answers it, so that it
reads the same before and after the flush. AWS's own example takes the UTF-8 bytes of a request for Latin-1 and answers text
that nobody sent; here they are taken for what they are, and only bytes that are no UTF-8 count as Latin-1.
"""

import base64
import re
from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.tagging import read_tagging, tag_count

DEFAULT_CONTENT_TYPE: Final = "binary/octet-stream"

USER_METADATA_PREFIX: Final = "x-amz-meta-"

USER_METADATA_BYTES_MAX: Final = 2048
"""Names without the prefix and values, in UTF-8, added up (AWS "Working with object metadata")."""

STORAGE_CLASS: Final = "x-amz-storage-class"

SYSTEM_HEADERS: Final = (
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
    "x-amz-website-redirect-location",
    STORAGE_CLASS,
)
"""The request headers that are stored and answered as they came."""

RESPONSE_OVERRIDES: Final[Mapping[str, str]] = {
    "response-cache-control": "cache-control",
    "response-content-disposition": "content-disposition",
    "response-content-encoding": "content-encoding",
    "response-content-language": "content-language",
    "response-content-type": "content-type",
    "response-expires": "expires",
}
"""Query parameters of GetObject and HeadObject, and the header each replaces in that one answer."""

HeaderPairs = tuple[tuple[str, str], ...]

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_HEADER_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""RFC 9110 section 5.6.2, a token."""

_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\xa0-\xff]*")


class StoredMetadata(msgspec.Struct, frozen=True):
    """What is kept with an object, in the form of `storage.records.ObjectRecord`."""

    headers: HeaderPairs
    user_metadata: HeaderPairs
    tags: str


def check_header(name: str, value: str) -> None:
    """Refuse what can stand in no header: a name that is no token, a value with a control character other than the tab.

    A header of the request holds neither, as a rule; one that was moved into the query may hold anything.

    Raises:
        S3Error: InvalidArgument (400).
    """
    if not _HEADER_NAME.fullmatch(name):
        raise S3Error(ErrorCode.INVALID_ARGUMENT, "A parameter cannot be the name of a header.")
    if _CONTROL.search(value):
        raise S3Error(ErrorCode.INVALID_ARGUMENT, f"The value of {name} holds a control character.")


def read_metadata(headers: Mapping[str, str]) -> StoredMetadata:
    """Take what is to be stored from the headers of a PutObject, CreateMultipartUpload or replacing copy.

    A missing content type becomes S3's default; an empty header counts as missing; the transport token aws-chunked is no
    part of the stored Content-Encoding, and STANDARD is what a missing storage class means.

    Raises:
        S3Error: MetadataTooLarge, InvalidTag, InvalidArgument (all 400).
    """
    return StoredMetadata(
        headers=_system_headers(headers),
        user_metadata=_user_metadata(headers),
        tags=read_tagging(headers.get("x-amz-tagging")),
    )


def object_headers(
    headers: HeaderPairs, user_metadata: HeaderPairs, tags: str, overrides: HeaderPairs = ()
) -> HeaderPairs:
    """Write the stored metadata of an object as response headers of a GET or HEAD.

    The caller adds what is not metadata: ETag, Last-Modified, lengths, checksums.

    Args:
        headers: As stored.
        user_metadata: As stored, names without prefix.
        tags: As stored; only their number is told (AWS "GetObject", x-amz-tagging-count).
        overrides: What `read_overrides` gave; they replace stored headers of the same name.
    """
    answered = [*_overridden(headers, overrides)]
    answered += [(USER_METADATA_PREFIX + name, value) for name, value in user_metadata]
    if tags:
        answered.append(("x-amz-tagging-count", str(tag_count(tags))))
    return tuple(answered)


def read_overrides(query: Iterable[tuple[str, str]], *, is_signed: bool) -> HeaderPairs:
    """Take the response-* parameters from a decoded query, as headers that replace stored ones.

    Raises:
        S3Error: InvalidRequest (400) where the request is anonymous; InvalidArgument (400) for a value that cannot stand in a
            header, a line break above all.
    """
    overrides = tuple(
        (RESPONSE_OVERRIDES[name], value) for name, value in query if name in RESPONSE_OVERRIDES
    )
    if overrides and not is_signed:
        raise S3Error(
            ErrorCode.INVALID_REQUEST,
            "Request specific response headers cannot be used for anonymous GET requests.",
        )
    for _, value in overrides:
        if not _HEADER_VALUE.fullmatch(value):
            raise S3Error(ErrorCode.INVALID_ARGUMENT, "Header value cannot be represented using ISO-8859-1.")
    return overrides


def header_text(value: str) -> str:
    """Give a header value as text that can be stored: the bytes received as UTF-8, or as Latin-1 where they are none."""
    if value.isascii():
        return value
    raw = value.encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def mail_safe(text: str) -> str:
    """Write text in ASCII: as it is, or as one RFC 2047 word `=?UTF-8?B?...?=`."""
    if text.isascii():
        return text
    return f"=?UTF-8?B?{base64.b64encode(text.encode('utf-8')).decode('ascii')}?="


def without_aws_chunked(content_encoding: str) -> str:
    """Take the token of the transfer framing off a Content-Encoding; "" where it was the only one."""
    tokens = [token.strip() for token in content_encoding.split(",")]
    kept = [token for token in tokens if token.lower() != "aws-chunked"]
    return content_encoding if len(kept) == len(tokens) else ", ".join(kept)


def _system_headers(headers: Mapping[str, str]) -> HeaderPairs:
    stored = {name: header_text(headers[name]) for name in SYSTEM_HEADERS if headers.get(name)}
    for name, value in stored.items():
        check_header(name, value)
    stored.setdefault("content-type", DEFAULT_CONTENT_TYPE)
    if "content-encoding" in stored:
        stored["content-encoding"] = without_aws_chunked(stored["content-encoding"])
    if stored.get(STORAGE_CLASS) == "STANDARD":
        del stored[STORAGE_CLASS]
    return tuple((name, value) for name, value in stored.items() if value)


def _user_metadata(headers: Mapping[str, str]) -> HeaderPairs:
    sent = [(name, value) for name, value in headers.items() if name.startswith(USER_METADATA_PREFIX)]
    for name, value in sent:
        check_header(name, value)
    texts = [(name.removeprefix(USER_METADATA_PREFIX), header_text(value)) for name, value in sent]
    size = sum(len(name.encode()) + len(text.encode()) for name, text in texts)
    if size > USER_METADATA_BYTES_MAX:
        raise S3Error(
            ErrorCode.METADATA_TOO_LARGE,
            "Your metadata headers exceed the maximum allowed metadata size",
            extra={"Size": str(size), "MaxSizeAllowed": str(USER_METADATA_BYTES_MAX)},
        )
    return tuple((name, mail_safe(text)) for name, text in texts)


def _overridden(headers: HeaderPairs, overrides: HeaderPairs) -> HeaderPairs:
    if not overrides:
        return headers
    replaced = dict(overrides)
    return (*(pair for pair in headers if pair[0] not in replaced), *replaced.items())
