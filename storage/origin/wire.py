"""The origin's heads: headers of requests that carry an object, and what the headers of an answer say of it.

Pure. HTTP's inclusive ranges exist here and nowhere else in storage. An answer is checked field by field before a byte of it
is used: status, Content-Range, Content-Length, ETag. Text of an answer passes `kept_text` before it is kept.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, Protocol

import msgspec

from storage.errors import ObjectChangedError, OriginUnavailableError
from storage.origin.signing import uri_encode
from storage.types import (
    ByteRange,
    Checksum,
    ChecksumAlgorithm,
    ChecksumType,
    ObjectName,
    PartSpan,
    RangeSpec,
)

STORED_HEADERS: Final = (
    "content-type",
    "cache-control",
    "content-disposition",
    "content-encoding",
    "content-language",
    "expires",
    "x-amz-website-redirect-location",
    "x-amz-storage-class",
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-bucket-key-enabled",
    "x-amz-object-lock-mode",
    "x-amz-object-lock-retain-until-date",
    "x-amz-object-lock-legal-hold",
)
"""What belongs to an object: sent with a PUT, given back by GET and HEAD (AWS API_PutObject, API_GetObject)."""

ANSWER_ONLY_HEADERS: Final = (
    "x-amz-expiration",
    "x-amz-restore",
    "x-amz-replication-status",
    "x-amz-tagging-count",
)
"""What the origin adds to an answer; kept for clients, never sent with a PUT."""

META_PREFIX: Final = "x-amz-meta-"
CHECKSUM_PREFIX: Final = "x-amz-checksum-"

_CONDITIONS: Final = ("if-", "x-amz-if-", "x-amz-copy-source-if-")

_MONTHS: Final = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}

DIGITS_MAX: Final = 18
"""Longer numbers are no sizes: they would not fit a record's 64 bits, and `int` refuses them from 4301 digits on."""

_UNSENDABLE: Final = dict.fromkeys((*range(9), *range(10, 32), 127))
"""Control characters but the tab: no header may hold them (RFC 9110 section 5.5)."""

_CHECKSUM_HEADERS: Final = tuple((f"{CHECKSUM_PREFIX}{name.lower()}", name) for name in ChecksumAlgorithm)


class Describes(Protocol):
    """What an object is besides its bytes: `ObjectRecord` and `UploadRecord` do."""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        """Stored headers, lower-case names."""
        ...

    @property
    def user_metadata(self) -> tuple[tuple[str, str], ...]:
        """User metadata without the prefix."""
        ...

    @property
    def tags(self) -> str:
        """The x-amz-tagging query string."""
        ...


class OriginObject(msgspec.Struct, frozen=True, gc=False):
    """One version as the origin describes it.

    Attributes:
        size: Bytes of the whole object, also in the answer to a ranged GET.
        etag: Without quotes.
        last_modified_s: Wall clock; 0 where the origin gave none.
        headers: As `ObjectRecord.headers`: stored headers and ANSWER_ONLY_HEADERS.
        checksums: Of the whole object; empty in the answer to a ranged GET.
        parts_count: Parts of the upload it came from, 0 where not told.
        missing_meta: User metadata that cannot be shown as headers.
    """

    size: int
    etag: str
    last_modified_s: int
    headers: tuple[tuple[str, str], ...] = ()
    user_metadata: tuple[tuple[str, str], ...] = ()
    checksums: tuple[Checksum, ...] = ()
    version_id: str = ""
    tag_count: int = 0
    storage_class: str = "STANDARD"
    encryption: str = ""
    parts_count: int = 0
    missing_meta: int = 0


class OutgoingBody(msgspec.Struct, frozen=True, gc=False):
    """Bytes on their way to the origin, streamed.

    Attributes:
        size: Exactly so many bytes come from `content`; another number is an error and cuts the connection.
        content: Starts the stream. Called again for another attempt only where `is_repeatable`.
        md5: Base64, sent as Content-MD5; "" where unknown.
        sha256: Hex, signed with the request; "" where unknown.
        checksums: Whole-body checksums for the origin to verify.
    """

    size: int
    content: Callable[[], AsyncIterator[bytes]]
    is_repeatable: bool
    md5: str = ""
    sha256: str = ""
    checksums: tuple[Checksum, ...] = ()


class CheckedAnswer(msgspec.Struct, frozen=True, gc=False):
    """A head whose fields agree: `byte_range` is what was asked for of the object, and what the body holds.

    Attributes:
        is_range_ignored: The body holds the whole object instead, as RFC 9110 section 14.2 allows.
    """

    object: OriginObject
    byte_range: ByteRange
    is_range_ignored: bool = False


# --- Requests ----------------------------------------------------------------------------------------------------------


def object_headers(described: Describes, checksums: tuple[Checksum, ...] = ()) -> tuple[tuple[str, str], ...]:
    """Give the headers that make the origin store what the record says. Composite checksums are not of one PUT: left out."""
    stored = tuple((name, value) for name, value in described.headers if name not in ANSWER_ONLY_HEADERS)
    meta = tuple((META_PREFIX + name, value) for name, value in described.user_metadata)
    tags = (("x-amz-tagging", described.tags),) if described.tags else ()
    return stored + meta + tags + checksum_headers(checksums)


def checksum_headers(checksums: tuple[Checksum, ...]) -> tuple[tuple[str, str], ...]:
    """Give the headers that let the origin verify whole-body checksums."""
    return tuple(
        (f"{CHECKSUM_PREFIX}{checksum.algorithm.lower()}", checksum.value)
        for checksum in checksums
        if checksum.type is ChecksumType.FULL_OBJECT
    )


def condition_headers(if_match: str, if_none_match: str) -> tuple[tuple[str, str], ...]:
    """Write the conditions that are not ""."""
    match = (("if-match", quote_etag(if_match)),) if if_match else ()
    return match + ((("if-none-match", quote_etag(if_none_match)),) if if_none_match else ())


def is_conditional(headers: Iterable[tuple[str, str]]) -> bool:
    """Whether a write depends on what is there (RFC 9110 section 13.1, AWS "Conditional writes"); lower-case names.

    Such a write is never sent twice: its first attempt could refute the second.
    """
    return any(name.startswith(_CONDITIONS) for name, _ in headers)


def digest_headers(body: OutgoingBody) -> tuple[tuple[str, str], ...]:
    """Give the digests that are known of a body, for the origin to verify."""
    md5 = (("content-md5", body.md5),) if body.md5 else ()
    return md5 + checksum_headers(body.checksums)


def copy_source(source: ObjectName) -> tuple[str, str]:
    """Name the source of a copy, at one of its versions where the name has one."""
    path = f"/{source.bucket}/{uri_encode(source.key, keep_slash=True)}"
    query = f"?versionId={uri_encode(source.version_id)}" if source.version_id else ""
    return ("x-amz-copy-source", path + query)


def range_header(wanted: ByteRange | RangeSpec) -> str:
    """Write a Range header (RFC 9110 section 14.1.2)."""
    if isinstance(wanted, RangeSpec) and wanted.suffix is not None:
        return f"bytes=-{wanted.suffix}"
    if wanted.stop is None:
        return f"bytes={wanted.start}-"
    assert wanted.start is not None
    assert wanted.stop > wanted.start, "an empty range cannot be asked for"
    return f"bytes={wanted.start}-{wanted.stop - 1}"


def quote_etag(etag: str) -> str:
    """Write an ETag as HTTP does; `*` stands for itself."""
    return etag if etag == "*" else f'"{etag}"'


# --- Answers -----------------------------------------------------------------------------------------------------------


def parse_object(headers: Mapping[str, str], *, size: int, is_whole: bool) -> OriginObject:
    """Read what an answer's headers say of the object.

    Raises:
        OriginUnavailableError: Code BadAnswer, there is no ETag.
    """
    etag = unquote_etag(headers.get("etag", ""))
    if not etag:
        raise bad_answer("no ETag")
    return OriginObject(
        size=size,
        etag=etag,
        last_modified_s=http_date_s(headers.get("last-modified", "")),
        headers=_stored(headers),
        user_metadata=_user_metadata(headers),
        checksums=parse_checksums(headers) if is_whole else (),
        version_id=kept_text(headers.get("x-amz-version-id", "")),
        tag_count=_count(headers, "x-amz-tagging-count"),
        storage_class=kept_text(headers.get("x-amz-storage-class", "STANDARD")),
        encryption=kept_text(headers.get("x-amz-server-side-encryption", "")),
        parts_count=_count(headers, "x-amz-mp-parts-count"),
        missing_meta=_count(headers, "x-amz-missing-meta"),
    )


def check_answer(
    status: int, headers: Mapping[str, str], *, wanted: ByteRange | RangeSpec | None, if_match: str = ""
) -> CheckedAnswer:
    """Check the head of a successful GET or HEAD against what was asked.

    Raises:
        ObjectChangedError: The origin does not know If-Match and holds another version.
        OriginUnavailableError: Code BadAnswer, the fields contradict the question or each other.
    """
    length = _content_length(headers)
    is_range_ignored = False
    if status == 200:
        size, byte_range = length, ByteRange(0, length)
        asked = byte_range if wanted is None else _resolve(wanted, size)
        if asked is None:
            raise bad_answer("the whole object in answer to a range behind its end")
        byte_range, is_range_ignored = asked, asked.length < size
    elif status == 206 and wanted is not None:
        byte_range, size = parse_content_range(headers.get("content-range", ""))
        if byte_range != _resolve(wanted, size) or byte_range.length != length:
            told = f"asked for {range_header(wanted)}, got {range_header(byte_range)} of {size}".replace(
                "=", " "
            )
            raise bad_answer(f"{told} in {length} bytes")
    else:
        raise bad_answer(f"status {status}")
    is_whole = is_range_ignored or byte_range.length == size
    described = parse_object(headers, size=size, is_whole=is_whole)
    if if_match not in ("", "*", described.etag):
        raise ObjectChangedError(f"the origin holds {described.etag}, not {if_match}")
    return CheckedAnswer(described, byte_range, is_range_ignored)


def parse_part(status: int, headers: Mapping[str, str], *, if_match: str) -> PartSpan:
    """Read the answer to a HEAD of one part: 206 with its place; an origin that knows no parts answers 200 for the whole.

    Raises:
        ObjectChangedError: The origin does not know If-Match and holds another version.
        OriginUnavailableError: Code BadAnswer, the fields contradict each other.
    """
    length = _content_length(headers)
    count = _count(headers, "x-amz-mp-parts-count")
    span, size = ByteRange(0, length), length
    if status == 206:
        span, size = parse_content_range(headers.get("content-range", ""))
    elif length:
        count = 0
    described = parse_object(headers, size=size, is_whole=True)
    if described.etag != if_match:
        raise ObjectChangedError(f"the origin holds {described.etag}, not {if_match}")
    return PartSpan(span, count, described.checksums)


def parse_content_range(text: str) -> tuple[ByteRange, int]:
    """Read `bytes first-last/size` (RFC 9110 section 14.4) as a half-open range and the object's size.

    Raises:
        OriginUnavailableError: Code BadAnswer, it is none, or says nothing of the size.
    """
    unit, _, rest = text.partition(" ")
    span, slash, size_text = rest.partition("/")
    first, dash, last = span.partition("-")
    start, end, size = number(first), number(last), number(size_text)
    if unit.lower() != "bytes" or not slash or not dash or start is None or end is None or size is None:
        raise bad_answer(f"Content-Range {text!r:.100}")
    if not start <= end < size:
        raise bad_answer(f"Content-Range {text!r:.100}")
    return ByteRange(start, end + 1), size


def parse_checksums(headers: Mapping[str, str]) -> tuple[Checksum, ...]:
    """Read the x-amz-checksum headers of an answer."""
    told = headers.get("x-amz-checksum-type", "")
    found = []
    for header, name in _CHECKSUM_HEADERS:
        value = kept_text(headers.get(header, ""))
        if value:
            composite = told == ChecksumType.COMPOSITE or (not told and "-" in value)
            kind = ChecksumType.COMPOSITE if composite else ChecksumType.FULL_OBJECT
            found.append(Checksum(name, value, kind))
    return tuple(found)


def unquote_etag(text: str) -> str:
    """Take quotes off, and what cannot be kept; a weak tag, as some proxies make them, is read as the strong one."""
    return kept_text(text).removeprefix("W/").strip('"')


def header_text(value: str) -> str:
    """Give a header value as aiohttp reads it as text: its bytes as UTF-8, or as Latin-1 where they are none.

    aiohttp gives bytes that are no UTF-8 as lone surrogates, which no record can store and aiohttp itself leaves out when
    it sends them.
    """
    if value.isascii():
        return value
    raw = value.encode("utf-8", "surrogateescape")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("latin-1")


def kept_text(value: str) -> str:
    """Give text of an answer as it can be stored and sent on: `header_text` without control characters but the tab."""
    return value if value.isascii() and value.isprintable() else header_text(value).translate(_UNSENDABLE)


def number(text: str) -> int | None:
    """Read a count or size in decimal digits, at most DIGITS_MAX of them; None where it is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX else None


def http_date_s(text: str) -> int:
    """Read an HTTP date (RFC 9110 section 5.6.7) as whole seconds; 0 where it is none."""
    if len(text) == 29 and text.endswith(" GMT") and text[8:11] in _MONTHS:
        fields = (text[12:16], text[5:7], text[17:19], text[20:22], text[23:25])
        if all(field.isascii() and field.isdigit() for field in fields):
            year, day, hour, minute, second = map(int, fields)
            return utc_s(year, _MONTHS[text[8:11]], day, hour, minute, second)
    try:
        return max(0, int(parsedate_to_datetime(text).timestamp()))
    except (TypeError, ValueError, LookupError, OverflowError, OSError):
        return 0


def utc_s(year: int, month: int, day: int, hour: int, minute: int, second: int) -> int:
    """Give the seconds since the epoch of a time in UTC; 0 where there is no such time, or for one before the epoch.

    Second 60 is a leap second and belongs to the next minute.
    """
    try:
        minute_s = int(datetime(year, month, day, hour, minute, tzinfo=UTC).timestamp())
    except (ValueError, OverflowError):
        return 0
    return max(0, minute_s + second) if second <= 60 else 0


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Read Retry-After (RFC 9110 section 10.2.3): seconds, or a date, which is taken from the answer's own; None where it is neither.

    S3 sends no dates there; proxies and other origins may.
    """
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        return float(text) if len(text) < 7 else None
    until_s, now_s = http_date_s(text), http_date_s(headers.get("date", ""))
    return float(max(0, until_s - now_s)) if until_s and now_s else None


def bad_answer(problem: str) -> OriginUnavailableError:
    """Make the error for an answer that must not be used."""
    return OriginUnavailableError(f"the origin's answer is wrong: {problem}", status=0, code="BadAnswer")


def _resolve(wanted: ByteRange | RangeSpec, size: int) -> ByteRange | None:
    if isinstance(wanted, RangeSpec):
        return wanted.resolve(size)
    return ByteRange(wanted.start, min(wanted.stop, size)) if wanted.start < size else None


def _content_length(headers: Mapping[str, str]) -> int:
    text = headers.get("content-length", "")
    length = number(text)
    if length is None:
        raise bad_answer(f"Content-Length {text!r:.100}")
    return length


def _count(headers: Mapping[str, str], name: str) -> int:
    return number(headers.get(name, "")) or 0


def _stored(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    kept = []
    for name in STORED_HEADERS + ANSWER_ONLY_HEADERS:
        value = headers.get(name)
        if value is not None:
            kept.append((name, kept_text(value)))
    return tuple(kept)


def _user_metadata(headers: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    found = []
    for name, value in headers.items():
        lower = name.lower()
        if lower.startswith(META_PREFIX):
            found.append((kept_text(lower[len(META_PREFIX) :]), kept_text(value)))
    return tuple(found)
