import pytest
from hypothesis import given, strategies as st

from gateway.s3.errors import S3Error
from gateway.s3.ranges import (
    check_copy_source_range,
    content_range,
    parse_copy_source_range,
    parse_range,
    resolve_range,
    unsatisfied_content_range,
)
from storage.types import ByteRange, RangeSpec


@pytest.mark.parametrize(
    ("header", "spec"),
    [
        ("bytes=0-0", RangeSpec(start=0, stop=1)),
        ("bytes=2-5", RangeSpec(start=2, stop=6)),
        ("bytes=7-", RangeSpec(start=7)),
        ("bytes=-3", RangeSpec(suffix=3)),
        ("bytes=-0", RangeSpec(suffix=0)),
        ("Bytes = 0002-0005 ", RangeSpec(start=2, stop=6)),
    ],
)
def test_parse_range_reads_the_three_forms(header: str, spec: RangeSpec) -> None:
    """First and last, first alone, and suffix become half-open."""
    assert parse_range(header) == spec


@pytest.mark.parametrize(
    "header",
    [None, "", "bytes", "bytes=", "bytes=-", "bytes=5-2", "bytes=a-b", "bytes=0-1,3-4", "lines=0-1", "bytes=--1", "bytes=1-2-3",
     "bytes=0x1-2", "bytes=٣-٤", "0-1"],
)  # fmt: skip
def test_parse_range_asks_for_the_whole_object_when_the_header_is_no_single_byte_range(
    header: str | None,
) -> None:
    """S3 ignores what it cannot read as one byte range, and so do we."""
    assert parse_range(header) is None


@pytest.mark.parametrize(
    ("header", "size", "span"),
    [
        ("bytes=0-9", 10, ByteRange(0, 10)),
        ("bytes=0-99", 10, ByteRange(0, 10)),
        ("bytes=9-9", 10, ByteRange(9, 10)),
        ("bytes=-3", 10, ByteRange(7, 10)),
        ("bytes=-99", 10, ByteRange(0, 10)),
        ("bytes=3-" + "9" * 6000, 10, ByteRange(3, 10)),
        ("bytes=-5", 0, None),
        ("bytes=x", 10, None),
    ],
)
def test_resolve_range_fits_the_range_to_the_object(header: str, size: int, span: ByteRange | None) -> None:
    """B16, B24: a range is clamped to the object; a suffix of an empty object is the whole of it."""
    assert resolve_range(parse_range(header), size, header) == span


@pytest.mark.parametrize(
    ("header", "size"),
    [("bytes=10-", 10), ("bytes=10-20", 10), ("bytes=-0", 10), ("bytes=0-", 0), ("bytes=0-0", 0), ("bytes=-0", 0),
     ("bytes=" + "9" * 6000 + "-", 10)],
)  # fmt: skip
def test_resolve_range_refuses_when_no_byte_is_in_the_range(header: str, size: int) -> None:
    """B24: a start past the end, and a suffix of nothing, are 416 with the object's size."""
    with pytest.raises(S3Error) as caught:
        resolve_range(parse_range(header), size, header)

    assert (caught.value.code, caught.value.status) == ("InvalidRange", 416)
    assert caught.value.extra == {"RangeRequested": header, "ActualObjectSize": str(size)}


@given(first=st.integers(0, 40), last=st.integers(0, 40), size=st.integers(1, 40))
def test_resolve_range_picks_the_bytes_that_slicing_picks(first: int, last: int, size: int) -> None:
    """For every range with bytes in it the span is the slice of the object from first to last."""
    body = bytes(range(size))
    wanted = body[first : last + 1]
    header = f"bytes={first}-{last}"

    spec = parse_range(header)

    if first > last:
        assert spec is None
    elif first < size:
        span = resolve_range(spec, size, header)
        assert span is not None
        assert body[span.start : span.stop] == wanted


def test_content_range_is_inclusive() -> None:
    """HTTP's form names the last byte."""
    assert content_range(ByteRange(2, 6), 10) == "bytes 2-5/10"
    assert unsatisfied_content_range(10) == "bytes */10"


def test_parse_copy_source_range_reads_the_one_form_there_is() -> None:
    """First and last become half-open."""
    assert parse_copy_source_range("bytes=0-9") == ByteRange(0, 10)


@pytest.mark.parametrize(
    "header", ["0-2", "bytes=0", "bytes=hello-world", "bytes=0-bar", "bytes=hello-", "bytes=0-2,3-5", "bytes=-5", "bytes=5-", "bytes=5-2"]
)  # fmt: skip
def test_parse_copy_source_range_refuses_when_the_form_is_another(header: str) -> None:
    """A copy range is never ignored: what is not first-last is 400 InvalidArgument."""
    with pytest.raises(S3Error) as caught:
        parse_copy_source_range(header)

    assert (caught.value.code, caught.value.status) == ("InvalidArgument", 400)


def test_check_copy_source_range_refuses_when_it_reaches_past_the_source() -> None:
    """A copy range is never cut to fit."""
    check_copy_source_range(ByteRange(0, 5), 5)

    with pytest.raises(S3Error) as caught:
        check_copy_source_range(ByteRange(0, 22), 5)

    assert caught.value.code == "InvalidRange"
    assert caught.value.extra["RangeRequested"] == "bytes=0-21"
