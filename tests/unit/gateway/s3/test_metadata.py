import pytest

from gateway.s3.errors import S3Error
from gateway.s3.metadata import (
    StoredMetadata,
    header_text,
    mail_safe,
    object_headers,
    read_metadata,
    read_overrides,
)

DEFAULT_TYPE = ("content-type", "binary/octet-stream")


def test_read_metadata_keeps_every_header_that_s3_keeps() -> None:
    """B12: system headers, user metadata and tags are stored, and nothing else of the request."""
    stored = read_metadata(
        {
            "host": "b.example",
            "content-length": "3",
            "content-type": "text/plain",
            "cache-control": "no-cache",
            "content-disposition": 'attachment; filename="a"',
            "content-encoding": "gzip",
            "content-language": "en",
            "expires": "Thu, 01 Dec 1994 16:00:00 GMT",
            "x-amz-website-redirect-location": "/other",
            "x-amz-storage-class": "STANDARD_IA",
            "x-amz-meta-robot": "seven",
            "x-amz-meta-empty": "",
            "x-amz-tagging": "a=1",
            "x-amz-date": "20130524T000000Z",
        }
    )

    assert stored == StoredMetadata(
        headers=(
            ("content-type", "text/plain"),
            ("cache-control", "no-cache"),
            ("content-disposition", 'attachment; filename="a"'),
            ("content-encoding", "gzip"),
            ("content-language", "en"),
            ("expires", "Thu, 01 Dec 1994 16:00:00 GMT"),
            ("x-amz-website-redirect-location", "/other"),
            ("x-amz-storage-class", "STANDARD_IA"),
        ),
        user_metadata=(("robot", "seven"), ("empty", "")),
        tags="a=1",
    )


@pytest.mark.parametrize(
    "headers", [{}, {"content-type": ""}, {"x-amz-storage-class": "STANDARD"}, {"cache-control": ""}]
)
def test_read_metadata_gives_the_default_type_alone_when_nothing_is_said(headers: dict[str, str]) -> None:
    """B12: no content type means S3's default; an empty header and STANDARD mean nothing."""
    assert read_metadata(headers) == StoredMetadata((DEFAULT_TYPE,), (), "")


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("aws-chunked", None),
        ("AWS-Chunked", None),
        ("aws-chunked, aws-chunked", None),
        ("aws-chunked,gzip", "gzip"),
        ("gzip, aws-chunked", "gzip"),
        ("deflate,  gzip", "deflate,  gzip"),
        ("deflate,aws-chunked, gzip", "deflate, gzip"),
    ],
)
def test_read_metadata_never_stores_the_token_aws_chunked(sent: str, kept: str | None) -> None:
    """B28: the transport's token goes, what else was said stays, and an empty header is none."""
    assert dict(read_metadata({"content-encoding": sent}).headers).get("content-encoding") == kept


def test_read_metadata_refuses_when_user_metadata_is_over_2_kib() -> None:
    """Names and values count in UTF-8, the prefix does not."""
    read_metadata({"x-amz-meta-abc": "é" * 1022 + "x"})

    with pytest.raises(S3Error) as caught:
        read_metadata({"x-amz-meta-abc": "é" * 1023})

    assert (caught.value.code, caught.value.status) == ("MetadataTooLarge", 400)
    assert caught.value.extra == {"Size": "2049", "MaxSizeAllowed": "2048"}


@pytest.mark.parametrize(
    ("received", "stored"),
    [
        (b"plain", "plain"),
        ("Z\u00fcrich".encode(), "=?UTF-8?B?WsO8cmljaA==?="),
        ("Z\u00fcrich".encode("latin-1"), "=?UTF-8?B?WsO8cmljaA==?="),
        (b"=?UTF-8?Q?Z=C3=BCrich?=", "=?UTF-8?Q?Z=C3=BCrich?="),
    ],
)
def test_read_metadata_stores_user_metadata_as_s3_answers_it(received: bytes, stored: str) -> None:
    """Other characters than ASCII become an RFC 2047 word, whichever way they were sent; such a word stays."""
    value = received.decode("utf-8", "surrogateescape")

    assert read_metadata({"x-amz-meta-city": value}).user_metadata == (("city", stored),)


def test_header_text_and_mail_safe_keep_ascii_as_it_is() -> None:
    """The ordinary value is not touched."""
    assert header_text("a") == "a"
    assert mail_safe("a") == "a"


def test_object_headers_answer_what_was_stored() -> None:
    """Stored headers, metadata under its prefix, and the number of tags."""
    answered = object_headers((DEFAULT_TYPE,), (("robot", "seven"),), "a=1&b=2")

    assert answered == (DEFAULT_TYPE, ("x-amz-meta-robot", "seven"), ("x-amz-tagging-count", "2"))


def test_object_headers_replace_stored_ones_when_the_query_overrides_them() -> None:
    """B35: response-* parameters replace or add headers in one answer."""
    overrides = read_overrides(
        [("response-content-type", "text/html"), ("response-expires", "0"), ("versionId", "null")],
        is_signed=True,
    )

    answered = object_headers((("content-type", "a/b"), ("cache-control", "no-cache")), (), "", overrides)

    assert answered == (("cache-control", "no-cache"), ("content-type", "text/html"), ("expires", "0"))


def test_read_overrides_refuses_when_the_request_is_anonymous() -> None:
    """B35: only a signed request may choose its response headers."""
    with pytest.raises(S3Error) as caught:
        read_overrides([("response-cache-control", "no-cache")], is_signed=False)

    assert caught.value.code == "InvalidRequest"
    assert read_overrides([("prefix", "a")], is_signed=False) == ()


@pytest.mark.parametrize("value", ["a\r\nset-cookie: x", "a\nb", "a\x00", "\u4e8c", "a\x7f"])
def test_read_overrides_refuses_when_a_value_cannot_stand_in_a_header(value: str) -> None:
    """A line break in a presigned URL cannot add a header of its own."""
    with pytest.raises(S3Error) as caught:
        read_overrides([("response-content-disposition", value)], is_signed=True)

    assert caught.value.code == "InvalidArgument"


@pytest.mark.parametrize("value", ["a\r\nset-cookie: x", "a\nb", "a\rb", "a\x00", "\x1fa", "a\x7f"])
@pytest.mark.parametrize(
    "name", ["content-type", "cache-control", "content-disposition", "x-amz-storage-class", "x-amz-meta-a"]
)
def test_read_metadata_refuses_when_a_value_holds_a_control_character(name: str, value: str) -> None:
    """What no answer could carry is never acknowledged."""
    with pytest.raises(S3Error) as caught:
        read_metadata({name: value})

    assert (caught.value.code, caught.value.status) == ("InvalidArgument", 400)


@pytest.mark.parametrize("name", ["a b", "a\r\nb", "a:b", "\u00e9", "\udce9"])
def test_read_metadata_refuses_when_the_name_of_user_metadata_is_none_of_a_header(name: str) -> None:
    """A name out of a query is checked as one out of a header already is."""
    with pytest.raises(S3Error) as caught:
        read_metadata({f"x-amz-meta-{name}": "v"})

    assert caught.value.code == "InvalidArgument"


def test_read_metadata_takes_a_tab_and_text_of_any_language() -> None:
    """Only what no header can carry is refused."""
    stored = read_metadata({"content-disposition": "a\tb \u4e8c \u0093", "x-amz-meta-a_b-c.d": "a\tb"})

    assert dict(stored.headers)["content-disposition"] == "a\tb \u4e8c \u0093"
    assert stored.user_metadata == (("a_b-c.d", "a\tb"),)
