"""Which headers pass the gateway."""

import pytest

from storage.origin.relayed import answered_headers, passed_headers

OF_THE_HOP = [
    "Connection",
    "Keep-Alive",
    "Proxy-Authenticate",
    "Proxy-Authorization",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
]


@pytest.mark.parametrize(
    "name",
    [
        *OF_THE_HOP,
        "Host",
        "Content-Length",
        "Expect",
        "Authorization",
        "Date",
        "X-Amz-Date",
        "X-Amz-Content-SHA256",
        "X-Amz-Security-Token",
        "X-Amz-Decoded-Content-Length",
        "X-Amz-Trailer",
        "Accept-Encoding",
        "User-Agent",
        "X-Amzn-Trace-Id",
        "amz-sdk-request",
        "Cookie",
        "Origin",
        "Access-Control-Request-Method",
        "X-Forwarded-For",
        "Via",
        "X-Forebay-Durability",
    ],
)
def test_passed_headers_leave_out_what_is_of_this_hop(name: str) -> None:
    """What is of the client's connection, framing, signature or site does not reach the origin."""
    assert passed_headers(((name, "x"), ("Content-Type", "text/xml"))) == (("content-type", "text/xml"),)


@pytest.mark.parametrize(
    "name",
    [
        "content-type",
        "content-md5",
        "range",
        "if-match",
        "referer",
        "x-amz-acl",
        "x-amz-checksum-crc32",
        "x-amz-expected-bucket-owner",
        "x-amz-object-attributes",
        "x-amz-server-side-encryption-customer-key",
        "x-amz-something-new",
        "x-something-else",
    ],
)
def test_passed_headers_keep_all_else(name: str) -> None:
    """What the origin is to see goes on as it is, known here or not."""
    assert passed_headers(((name, " x"),)) == ((name, " x"),)


def test_passed_headers_leave_out_what_connection_names() -> None:
    """RFC 9110 section 7.6.1: a header that the connection claims is the connection's."""
    given = (("Connection", "close, X-Local"), ("x-local", "1"), ("x-other", "2"))

    assert passed_headers(given) == (("x-other", "2"),)
    assert answered_headers(given) == (("x-other", "2"),)


@pytest.mark.parametrize(
    "name",
    [
        *OF_THE_HOP,
        "Content-Length",
        "Date",
        "Server",
        "x-amz-request-id",
        "x-amz-id-2",
        "Set-Cookie",
        "Access-Control-Allow-Origin",
    ],
)
def test_answered_headers_leave_out_what_is_of_the_origins_hop(name: str) -> None:
    """The client gets the gateway's own framing, date and request id."""
    assert answered_headers(((name, "x"), ("ETag", '"e"'))) == (("etag", '"e"'),)


def test_answered_headers_keep_all_else() -> None:
    """The origin's own words about the object or the bucket come back, repeated ones too."""
    given = (("x-amz-version-id", "v"), ("vary", "a"), ("vary", "b"), ("retry-after", "3"))

    assert answered_headers(given) == given
