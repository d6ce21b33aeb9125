import msgspec
import pytest
from hypothesis import given, strategies as st

from storage.errors import ObjectChangedError, OriginUnavailableError
from storage.origin.wire import (
    OriginObject,
    check_answer,
    copy_source,
    http_date_s,
    kept_text,
    object_headers,
    parse_content_range,
    parse_object,
    quote_etag,
    range_header,
    retry_after_s,
    unquote_etag,
)
from storage.records import FORMAT, ObjectRecord, ObjectState, Validated
from storage.types import ByteRange, Checksum, ChecksumAlgorithm, ChecksumType, ObjectName, RangeSpec

WHOLE = {"content-length": "10", "etag": '"abc"', "last-modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
PART = {**WHOLE, "content-length": "4", "content-range": "bytes 2-5/10"}


def test_whole_answer_is_described() -> None:
    """A 200 says size, ETag, date, headers, metadata and checksums of the object."""
    headers = {
        **WHOLE,
        "content-type": "text/plain",
        "content-encoding": "gzip",
        "x-amz-meta-Robot": "r2",
        "x-amz-storage-class": "STANDARD_IA",
        "x-amz-server-side-encryption": "AES256",
        "x-amz-version-id": "v1",
        "x-amz-tagging-count": "2",
        "x-amz-missing-meta": "1",
        "x-amz-checksum-crc32": "AAAAAA==",
        "x-amz-checksum-type": "FULL_OBJECT",
        "x-amz-request-id": "not kept",
    }

    answer = check_answer(200, headers, wanted=None)

    assert answer.byte_range == ByteRange(0, 10)
    described = answer.object
    assert (described.size, described.etag, described.last_modified_s) == (10, "abc", 1445412480)
    assert described.headers == (
        ("content-type", "text/plain"),
        ("content-encoding", "gzip"),
        ("x-amz-storage-class", "STANDARD_IA"),
        ("x-amz-server-side-encryption", "AES256"),
        ("x-amz-tagging-count", "2"),
    )
    assert described.user_metadata == (("robot", "r2"),)
    assert described.checksums == (Checksum(ChecksumAlgorithm.CRC32, "AAAAAA=="),)
    assert (described.version_id, described.storage_class, described.encryption) == (
        "v1",
        "STANDARD_IA",
        "AES256",
    )
    assert (described.tag_count, described.missing_meta) == (2, 1)


def test_ranged_answer_has_the_whole_size_and_no_checksum() -> None:
    """A 206 says where its bytes lie; a checksum beside it may be a part's and is not the object's."""
    headers = {**PART, "x-amz-checksum-crc32": "AAAAAA=="}

    answer = check_answer(206, headers, wanted=ByteRange(2, 6))

    assert answer.byte_range == ByteRange(2, 6)
    assert answer.object.size == 10
    assert answer.object.checksums == ()


@pytest.mark.parametrize(
    ("wanted", "content_range", "length"),
    [
        (ByteRange(2, 100), "bytes 2-9/10", 8),
        (RangeSpec(suffix=3), "bytes 7-9/10", 3),
        (RangeSpec(suffix=30), "bytes 0-9/10", 10),
        (RangeSpec(start=4), "bytes 4-9/10", 6),
        (RangeSpec(start=4, stop=5), "bytes 4-4/10", 1),
    ],
)
def test_range_is_cut_to_the_object(wanted: ByteRange | RangeSpec, content_range: str, length: int) -> None:
    """Only the range that the question means at this size is accepted."""
    headers = {**WHOLE, "content-length": str(length), "content-range": content_range}

    assert check_answer(206, headers, wanted=wanted).byte_range.length == length


@pytest.mark.parametrize(
    ("status", "changes", "wanted"),
    [
        (200, {}, ByteRange(10, 16)),
        (206, {"content-range": "bytes 2-5/10", "content-length": "4"}, None),
        (206, {"content-range": "bytes 3-6/10", "content-length": "4"}, ByteRange(2, 6)),
        (206, {"content-range": "bytes 2-5/10", "content-length": "5"}, ByteRange(2, 6)),
        (206, {"content-range": "bytes 2-4/10", "content-length": "3"}, ByteRange(2, 6)),
        (206, {"content-range": "", "content-length": "4"}, ByteRange(2, 6)),
        (204, {}, None),
        (200, {"etag": ""}, None),
        (200, {"content-length": ""}, None),
        (200, {"content-length": "-1"}, None),
    ],
)
def test_contradicting_answer_is_refused(
    status: int, changes: dict[str, str], wanted: ByteRange | None
) -> None:
    """An answer that is not to the question, or contradicts itself, is never used."""
    with pytest.raises(OriginUnavailableError) as refused:
        check_answer(status, {**WHOLE, **changes}, wanted=wanted)

    assert refused.value.code == "BadAnswer"


def test_a_wrong_range_is_told_in_the_words_of_http() -> None:
    """What was asked for and what came, as the two headers would say it."""
    headers = {**WHOLE, "content-range": "bytes 0-499999/500000", "content-length": "700000"}

    with pytest.raises(OriginUnavailableError) as refused:
        check_answer(206, headers, wanted=ByteRange(0, 700_000))

    told = "asked for bytes 0-699999, got bytes 0-499999 of 500000 in 700000 bytes"
    assert str(refused.value) == f"the origin's answer is wrong: {told}"


def test_whole_answer_to_a_range_of_all_is_accepted() -> None:
    """An origin that ignores Range gave what was asked where the range is the whole object."""
    assert check_answer(200, WHOLE, wanted=ByteRange(0, 99)).byte_range == ByteRange(0, 10)


def test_whole_answer_to_a_part_holds_that_part() -> None:
    """RFC 9110 section 14.2: an origin may ignore Range; the answer says which bytes are wanted of it, and that it did."""
    answer = check_answer(200, WHOLE, wanted=ByteRange(2, 6))

    assert (answer.byte_range, answer.object.size, answer.is_range_ignored) == (ByteRange(2, 6), 10, True)


def test_other_etag_means_the_object_changed() -> None:
    """An origin that ignores If-Match does not slip another version in."""
    with pytest.raises(ObjectChangedError):
        check_answer(200, WHOLE, wanted=None, if_match="older")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bytes */10",
        "bytes 0-9/*",
        "bytes 5-4/10",
        "bytes 0-10/10",
        "items 0-1/2",
        "bytes -1/10",
        "bytes 0-٣/10",
    ],
)
def test_bad_content_range_is_refused(text: str) -> None:
    """What does not name a range and a size, within each other, is no Content-Range to us."""
    with pytest.raises(OriginUnavailableError):
        parse_content_range(text)


@given(start=st.integers(0, 2**50), length=st.integers(1, 2**50), rest=st.integers(0, 2**50))
def test_range_header_and_content_range_agree(start: int, length: int, rest: int) -> None:
    """What we ask for in HTTP's inclusive form comes back as the half-open range it was."""
    wanted = ByteRange(start, start + length)
    first, last = range_header(wanted).removeprefix("bytes=").split("-")

    parsed = parse_content_range(f"bytes {first}-{last}/{start + length + rest}")

    assert parsed == (wanted, start + length + rest)


def test_range_header_of_each_form() -> None:
    """All three forms of RFC 9110 section 14.1.2 can be asked."""
    asked = [range_header(w) for w in (ByteRange(0, 1), RangeSpec(start=5), RangeSpec(suffix=7))]

    assert asked == ["bytes=0-0", "bytes=5-", "bytes=-7"]


def test_composite_checksum_is_told_by_its_form() -> None:
    """Without x-amz-checksum-type, `-N` behind the value says composite."""
    described = parse_object({"etag": '"a-2"', "x-amz-checksum-sha256": "YWJj-2"}, size=1, is_whole=True)

    assert described.checksums == (Checksum(ChecksumAlgorithm.SHA256, "YWJj-2", ChecksumType.COMPOSITE),)


def test_put_headers_carry_all_that_the_record_holds() -> None:
    """Headers, metadata, tags and whole-body checksums are sent; what only answers carry is not."""
    stored = ObjectRecord(
        FORMAT,
        7,
        10,
        "abc",
        0,
        ObjectState.DIRTY,
        None,
        Validated(),
        headers=(("content-type", "text/plain"), ("x-amz-expiration", "tomorrow")),
        user_metadata=(("robot", "r2"),),
        tags="a=1&b=2",
    )
    sums = (
        Checksum(ChecksumAlgorithm.CRC32C, "AAAA"),
        Checksum(ChecksumAlgorithm.SHA1, "BBBB-2", ChecksumType.COMPOSITE),
    )

    headers = object_headers(stored, sums)

    assert headers == (
        ("content-type", "text/plain"),
        ("x-amz-meta-robot", "r2"),
        ("x-amz-tagging", "a=1&b=2"),
        ("x-amz-checksum-crc32c", "AAAA"),
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("Wed, 21 Oct 2015 07:28:00 GMT", 1445412480),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 784111777),
        ("yesterday", 0),
        ("", 0),
        ("Wed, 2x Oct 2015 07:28:00 GMT", 0),
    ],
)
def test_http_date_is_read_or_zero(text: str, seconds: int) -> None:
    """The forms of RFC 9110 are read; anything else is no date."""
    assert http_date_s(text) == seconds


@pytest.mark.parametrize(
    ("text", "seconds"), [("3", 3.0), (" 0 ", 0.0), ("-1", None), ("soon", None), ("", None), ("9" * 9, None)]
)
def test_retry_after_is_read_as_seconds(text: str, seconds: float | None) -> None:
    """A plain number of seconds counts; what is neither that nor a date does not."""
    assert retry_after_s({"retry-after": text}) == seconds


@pytest.mark.parametrize(
    ("text", "date", "seconds"),
    [
        ("Wed, 21 Oct 2015 07:28:05 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 5.0),
        ("Wed, 21 Oct 2015 07:27:00 GMT", "Wed, 21 Oct 2015 07:28:00 GMT", 0.0),
        ("Wed, 21 Oct 2015 07:28:05 GMT", "", None),
    ],
)
def test_retry_after_is_read_as_a_date(text: str, date: str, seconds: float | None) -> None:
    """B56: a date counts from the answer's own, whatever our clock says; without one it says nothing."""
    assert retry_after_s({"retry-after": text, "date": date}) == seconds


def test_etag_quotes_come_off_and_go_on() -> None:
    """Inside ETags have no quotes, on the wire they have; a weak one is read as strong."""
    assert [unquote_etag(text) for text in ('"a"', 'W/"a"', "a")] == ["a", "a", "a"]
    assert [quote_etag(text) for text in ("a", "*")] == ['"a"', "*"]


def test_copy_source_is_encoded_once() -> None:
    """The key of a copy's source is percent-encoded, slashes kept, its version behind it."""
    assert copy_source(ObjectName("b", "a b/ü%2F", "v/1")) == (
        "x-amz-copy-source",
        "/b/a%20b/%C3%BC%252F?versionId=v%2F1",
    )


# --- What an origin may say that is not true -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "Wed, 21 Oct 0000 07:28:00 GMT",
        "Wed, 32 Oct 2015 07:28:00 GMT",
        "Wed, 31 Feb 2015 07:28:00 GMT",
        "Wed, 21 Oct 2015 24:28:00 GMT",
        "Wed, 21 Oct 2015 07:28:61 GMT",
        "Thu, 01 Jan 1601 00:00:00 GMT",
        "Wed, 21 Oct 99999 07:28:00 GMT",
        "Wed, 21 Oct 2015 07:28:00 +9999999",
        "9" * 5000,
    ],
)
def test_http_date_is_none_when_there_is_no_such_time(text: str) -> None:
    """A date that no calendar has counts as not told, and so does one before the epoch."""
    assert http_date_s(text) == 0


def test_http_date_is_read_when_its_second_is_a_leap_second() -> None:
    """Second 60 belongs to the next minute."""
    assert http_date_s("Tue, 30 Jun 2015 23:59:60 GMT") == 1435708800


@given(st.text(max_size=40))
def test_http_date_never_raises(text: str) -> None:
    """Whatever stands there, it is a time or none."""
    assert http_date_s(text) >= 0


@pytest.mark.parametrize("digits", ["9" * 19, "1" * 4301, "٣"])
def test_answer_is_bad_when_its_length_is_no_size(digits: str) -> None:
    """A number that no object can have is a wrong answer, not an error of ours."""
    with pytest.raises(OriginUnavailableError) as length:
        check_answer(200, {**WHOLE, "content-length": digits}, wanted=None)
    with pytest.raises(OriginUnavailableError) as size:
        parse_content_range(f"bytes 0-1/{digits}")

    assert (length.value.code, size.value.code) == ("BadAnswer", "BadAnswer")


@pytest.mark.parametrize(
    ("received", "kept"),
    [
        (b'attachment; filename="a.txt"', 'attachment; filename="a.txt"'),
        ('filename="Z\u00fcrich"'.encode(), 'filename="Z\u00fcrich"'),
        ('filename="Z\u00fcrich"'.encode("latin-1"), 'filename="Z\u00fcrich"'),
        (b"a\tb\x01\x7f", "a\tb"),
    ],
)
def test_text_of_an_answer_can_be_stored_and_sent_on(received: bytes, kept: str) -> None:
    """Bytes are UTF-8, or Latin-1 where they are none; what no header may hold is left out."""
    text = received.decode("utf-8", "surrogateescape")
    names = ("content-disposition", "x-amz-version-id", "x-amz-storage-class", "x-amz-checksum-crc32")
    headers = {**dict.fromkeys(names, text), "x-amz-meta-a": text, "etag": f'"{text}"'}

    described = parse_object(headers, size=1, is_whole=True)

    assert dict(described.headers)["content-disposition"] == kept
    assert described.user_metadata == (("a", kept),)
    assert (described.version_id, described.storage_class) == (kept, kept)
    assert described.checksums[0].value == kept
    assert described.etag == kept.strip('"')
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(described), type=OriginObject) == described


@given(st.binary(max_size=30))
def test_text_of_an_answer_is_unicode_whatever_its_bytes(raw: bytes) -> None:
    """A record with it can always be written."""
    text = kept_text(raw.decode("utf-8", "surrogateescape"))

    assert text.encode().decode() == text
    assert not any((char < " " and char != "\t") or char == "\x7f" for char in text)
