"""The Range header and its answers: the only place, beside `storage/origin/wire.py`, that knows HTTP's inclusive ranges."""

import re
from typing import Final

from gateway.s3.errors import ErrorCode, S3Error
from storage.types import ByteRange, RangeSpec

_OFFSET_MAX: Final = 2**63 - 1
"""Offsets beyond are taken as this one: past every object, and small enough for any arithmetic."""

_SINGLE_RANGE: Final = re.compile(r"bytes[ \t]*=[ \t]*([0-9]*)-([0-9]*)[ \t]*", re.ASCII | re.IGNORECASE)
_COPY_RANGE: Final = re.compile(r"bytes=([0-9]+)-([0-9]+)", re.ASCII)


def parse_range(header: str | None) -> RangeSpec | None:
    """Read a Range header: `bytes=a-b`, `bytes=a-` or `bytes=-n`.

    None means that the whole object is asked for: no header, another unit, several ranges, or text that is no range. S3
    ignores all of these (AWS "GetObject": one range a request; RFC 9110 section 14.2 allows it). `bytes=-0` is a range, one
    that no object satisfies.
    """
    if header is None:
        return None
    match = _SINGLE_RANGE.fullmatch(header.strip())
    if match is None:
        return None
    first, last = match.groups()
    if first:
        return _from_first_to_last(first, last)
    return RangeSpec(suffix=_offset(last)) if last else None


def resolve_range(spec: RangeSpec | None, size: int, requested: str) -> ByteRange | None:
    """Fit a range to an object of `size` bytes; None means the whole object, answered with 200.

    A suffix of an empty object is the whole of it: S3 answers 200 without a body, though RFC 9110 would allow 416.

    Args:
        spec: What `parse_range` gave.
        size: Bytes of the whole object.
        requested: The header as received, for the error document.

    Raises:
        S3Error: InvalidRange (416), no byte of the object is in the range.
    """
    if spec is None or (size == 0 and spec.suffix):
        return None
    resolved = spec.resolve(size)
    if resolved is None:
        raise _unsatisfied("The requested range is not satisfiable", requested, size)
    return resolved


def content_range(span: ByteRange, size: int) -> str:
    """Write the Content-Range of a 206; the span is not empty."""
    assert 0 <= span.start < span.stop <= size, (span, size)
    return f"bytes {span.start}-{span.stop - 1}/{size}"


def unsatisfied_content_range(size: int) -> str:
    """Write the Content-Range of a 416 (RFC 9110 section 14.4)."""
    return f"bytes */{size}"


def parse_copy_source_range(header: str) -> ByteRange:
    """Read x-amz-copy-source-range, which has one form only, `bytes=first-last` (AWS "UploadPartCopy").

    Raises:
        S3Error: InvalidArgument (400) for anything else.
    """
    match = _COPY_RANGE.fullmatch(header)
    if match is not None:
        first, last = _offset(match[1]), _offset(match[2])
        if first <= last:
            return ByteRange(first, last + 1)
    raise S3Error(
        ErrorCode.INVALID_ARGUMENT,
        "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the "
        "zero-based offsets of the first and last bytes to copy",
    )


def check_copy_source_range(span: ByteRange, size: int) -> None:
    """Refuse a copy that reaches past its source; unlike a GET, nothing is cut to fit.

    Raises:
        S3Error: InvalidRange (416).
    """
    if span.stop > size:
        requested = f"bytes={span.start}-{span.stop - 1}"
        raise _unsatisfied(f"Range specified is not valid for source object of size: {size}", requested, size)


def _from_first_to_last(first: str, last: str) -> RangeSpec | None:
    start = _offset(first)
    if not last:
        return RangeSpec(start=start)
    stop = _offset(last) + 1
    # RFC 9110 section 14.1.1: a last position before the first makes the range invalid, and so ignored.
    return RangeSpec(start=start, stop=stop) if start < stop else None


def _offset(digits: str) -> int:
    # int() of thousands of digits is slow and, past 4300, an error; 19 digits hold every offset there is.
    digits = digits.lstrip("0")
    return min(int(digits or "0"), _OFFSET_MAX) if len(digits) <= 19 else _OFFSET_MAX


def _unsatisfied(message: str, requested: str, size: int) -> S3Error:
    return S3Error(
        ErrorCode.INVALID_RANGE, message, extra={"RangeRequested": requested, "ActualObjectSize": str(size)}
    )
