"""Request heads: what was sent, and what it names."""

import pytest
from hypothesis import example, given, strategies as st

from gateway.s3.errors import S3Error
from gateway.s3.request import (
    S3Request,
    check_new_bucket_name,
    decode,
    is_bucket_name,
    parse,
    parse_query,
    read_headers,
)
from storage.origin.signing import uri_encode

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
WIRE = st.binary(max_size=60).map(lambda data: data.decode("utf-8", "surrogateescape"))


def request(target: str, host: str = "localhost:9000", domains: tuple[str, ...] = ()) -> S3Request:
    """Parse a GET of `target`."""
    return parse("GET", target, [("Host", host)], request_id="R", received_at_s=1.5, domains=domains)


def code_of(target: str) -> str:
    """Give the code that parsing `target` ends in."""
    with pytest.raises(S3Error) as caught:
        request(target)
    return caught.value.code


def parse_or_error(target: str, headers: list[tuple[str, str]]) -> S3Request | S3Error:
    """Give the request, or the error that parsing ends in."""
    try:
        return parse("GET", target, headers, request_id="R", received_at_s=0.0, domains=("s3.local",))
    except S3Error as error:
        return error


@pytest.mark.parametrize(
    ("target", "bucket", "key"),
    [
        ("/", "", ""),
        ("/?max-buckets=1", "", ""),
        ("/bucket", "bucket", ""),
        ("/bucket/", "bucket", ""),
        ("/bucket/key", "bucket", "key"),
        ("/bucket//two", "bucket", "/two"),
        ("/bucket//", "bucket", "/"),
        ("/bucket/mid//dle/", "bucket", "mid//dle/"),
        ("/bucket/a/../b/./c", "bucket", "a/../b/./c"),
        ("/bucket/..", "bucket", ".."),
        ("/bucket/a+b", "bucket", "a+b"),
        ("/bucket/a%2Bb%20c", "bucket", "a+b c"),
        ("/bucket/a%2Fb", "bucket", "a/b"),
        ("/bucket/a%252Fb", "bucket", "a%2Fb"),
        ("/bucket/%C3%A4", "bucket", "ä"),
        ("/bucket/ä", "bucket", "ä"),
        ("/bucket/a%3Fb%23c", "bucket", "a?b#c"),
        ("/bucket/a?b=c", "bucket", "a"),
        ("/my%2Dbucket/k", "my-bucket", "k"),
        ("/Old_Bucket/k", "Old_Bucket", "k"),
        ("/-/flush", "-", "flush"),
        ("http://other:80/bucket/key?acl", "bucket", "key"),
        ("http://other", "", ""),
    ],
)
def test_parse_names_bucket_and_key_as_sent(target: str, bucket: str, key: str) -> None:
    """A path-style path is split at its second slash and decoded once, never normalised (B21, B22)."""
    parsed = request(target)

    assert (parsed.bucket, parsed.key) == (bucket, key)


def test_parse_keeps_the_raw_form() -> None:
    """Path and query stay as received, for the signature."""
    parsed = parse("put", "/bucket/a%2fb//?x=%7e&acl", [("Host", "H")], request_id="R", received_at_s=1.5)

    assert parsed.method == "PUT"
    assert parsed.raw_path == "/bucket/a%2fb//"
    assert parsed.raw_query == "x=%7e&acl"
    assert parsed.request_id == "R"
    assert parsed.received_at_s == 1.5


@pytest.mark.parametrize(
    "target",
    [
        "/bucket/%",
        "/bucket/%2",
        "/bucket/%zz",
        "/bucket/%FF",
        "/bucket/%C3",
        "/bucket/\udcff",
        "/bucket/k?prefix=%",
        "/bucket/k?%ff=1",
        "/%zz",
        "*",
        "",
        "bucket/key",
        "ftp://host/bucket",
    ],
)
def test_parse_refuses_what_is_no_uri(target: str) -> None:
    """Broken percent signs and bytes that are not UTF-8 are InvalidURI, in path and query."""
    assert code_of(target) == "InvalidURI"


@pytest.mark.parametrize(
    "target",
    ["//key", "/a/key", "/ab", "/my%2Fbucket/k", "/my..bucket/k", "/.bucket", "/bucket./k", "/my%20bucket/k"],
)
def test_parse_refuses_what_is_no_bucket(target: str) -> None:
    """A first segment that no bucket can have as its name is InvalidBucketName."""
    assert code_of(target) == "InvalidBucketName"


@pytest.mark.parametrize(("key", "fits"), [("k" * 1024, True), ("k" * 1025, False), ("€" * 341, True)])
def test_parse_bounds_the_key_in_bytes(key: str, fits: bool) -> None:
    """1024 bytes of UTF-8 pass, 1025 do not (B27)."""
    target = f"/bucket/{uri_encode(key)}"

    actual = request(target).key if fits else code_of(target)

    assert actual == (key if fits else "KeyTooLongError")


def test_parse_counts_bytes_not_characters() -> None:
    """342 characters of three bytes are over the limit."""
    assert code_of(f"/bucket/{uri_encode('€' * 342)}") == "KeyTooLongError"


@pytest.mark.parametrize(
    ("host", "target", "bucket", "key"),
    [
        ("bucket.s3.local:9000", "/key", "bucket", "key"),
        ("BUCKET.S3.local", "//key", "bucket", "/key"),
        ("my.bucket.s3.local", "/", "my.bucket", ""),
        ("s3.local:9000", "/bucket/key", "bucket", "key"),
        ("eu.s3.local", "/bucket/key", "bucket", "key"),
        ("bucket.eu.s3.local", "/key", "bucket", "key"),
        ("notbucket-s3.local", "/bucket/key", "bucket", "key"),
        ("127.0.0.1:9000", "/bucket/key", "bucket", "key"),
        ("[::1]:9000", "/bucket/key", "bucket", "key"),
        ("bucket.s3.local", "/-/flush", "bucket", "-/flush"),
    ],
)
def test_parse_reads_virtual_host_style(host: str, target: str, bucket: str, key: str) -> None:
    """A name below a base domain is the bucket, the longest domain first; other hosts are path style."""
    parsed = request(target, host, ("s3.local", "eu.s3.local"))

    assert (parsed.bucket, parsed.key) == (bucket, key)


def test_parse_refuses_bad_bucket_in_host() -> None:
    """A host cannot name the gateway's own paths or another impossible bucket."""
    with pytest.raises(S3Error) as caught:
        request("/key", "-.s3.local", ("s3.local",))

    assert caught.value.code == "InvalidBucketName"


@pytest.mark.parametrize(
    ("sent", "host"),
    [("A.example:80", "a.example"), ("[::1]:80", "[::1]"), ("[::1]", "[::1]"), ("h", "h"), ("", "")],
)
def test_host_is_lower_case_without_port(sent: str, host: str) -> None:
    """The host is a bare name; an IPv6 address keeps its colons."""
    assert request("/", sent).host == host


def test_absolute_target_brings_its_own_host() -> None:
    """The authority of an absolute target counts more than the Host header (RFC 9112 section 3.2.2)."""
    assert request("http://Other:81/bucket").host == "other"


def test_query_keeps_order_repeats_and_empty_values() -> None:
    """Parameters come as sent; `+` and `%20` are blanks; the first of a repeated one is got."""
    query = parse_query("b=1+2&a=%2B&&acl&a=&=x&c=d=e")

    assert query.pairs == (("b", "1 2"), ("a", "+"), ("acl", ""), ("a", ""), ("", "x"), ("c", "d=e"))
    assert query.get("a") == "+"
    assert query.get("acl") == ""
    assert query.get("Acl") is None
    assert "acl" in query


def test_headers_are_found_in_any_case_and_repeats_are_kept() -> None:
    """Names ignore case; a repeated header is combined in order and keeps its single values."""
    headers = read_headers([("X-Amz-Meta-A", " 1 "), ("Host", "h"), ("x-amz-meta-a", "2")])

    assert headers.pairs == (("x-amz-meta-a", "1"), ("host", "h"), ("x-amz-meta-a", "2"))
    assert headers.get("x-AMZ-meta-a") == "1,2"
    assert headers.get_all("X-Amz-Meta-A") == ("1", "2")
    assert headers.get("range") is None
    assert "HOST" in headers
    assert "range" not in headers


@pytest.mark.parametrize(
    ("name", "may_exist", "may_be_created"),
    [
        ("abc", True, True),
        ("ab", False, False),
        ("a" * 63, True, True),
        ("a" * 64, True, False),
        ("a" * 255, True, False),
        ("a" * 256, False, False),
        ("my.bucket-1", True, True),
        ("Upper", True, False),
        ("under_score", True, False),
        ("a..b", False, False),
        ("-abc", False, False),
        ("abc-", True, False),
        ("192.168.5.4", True, False),
        ("ä-bucket", False, False),
        ("new\nline", False, False),
        ("bucket\n", False, False),
    ],
)
def test_bucket_names(name: str, may_exist: bool, may_be_created: bool) -> None:
    """Old names stay reachable; a new bucket follows today's rules."""
    created = True
    try:
        check_new_bucket_name(name)
    except S3Error as error:
        created = error.code != "InvalidBucketName"

    assert is_bucket_name(name) is may_exist
    assert created is may_be_created


@given(key=TEXT)
@example("a%2Fb+c//../d")
def test_decode_undoes_one_encoding(key: str) -> None:
    """Any key survives the way over the wire byte for byte."""
    assert decode(uri_encode(key)) == key
    assert decode(uri_encode(key, keep_slash=True)) == key


@given(pairs=st.lists(st.tuples(TEXT, TEXT), max_size=5))
def test_query_undoes_one_encoding(pairs: list[tuple[str, str]]) -> None:
    """Any names and values survive the way over the wire."""
    raw = "&".join(f"{uri_encode(name)}={uri_encode(value)}" for name, value in pairs)

    assert list(parse_query(raw).pairs) == pairs


@pytest.mark.slow
@given(
    target=WIRE
    | WIRE.map(lambda text: f"/{text}")
    | WIRE.map(lambda text: f"/bucket/{text}")
    | st.text(max_size=40),
    headers=st.lists(st.tuples(WIRE, WIRE), max_size=3),
)
def test_parse_raises_only_s3_errors(target: str, headers: list[tuple[str, str]]) -> None:
    """Whatever a socket delivers is a request or an S3Error, and the bounds hold."""
    outcome = parse_or_error(target, headers)

    if isinstance(outcome, S3Error):
        assert outcome.status == 400
    else:
        assert len(outcome.key.encode()) <= 1024
        assert outcome.bucket in {"", "-"} or is_bucket_name(outcome.bucket)
