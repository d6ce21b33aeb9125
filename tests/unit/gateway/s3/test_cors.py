"""Rules for cross-origin requests, as AWS documents them and browsers ask."""

import pytest

from gateway.s3.cors import (
    VARY,
    CorsRule,
    CrossOrigin,
    allowing,
    check_preflight,
    parse_rules,
    read_cross_origin,
    refused_preflight,
    sharing_headers,
)
from gateway.s3.errors import S3Error
from gateway.s3.request import S3Request, parse

DOCUMENT = b"""<?xml version="1.0"?>
<CORSConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">
 <CORSRule><ID>one</ID><AllowedOrigin>https://a.example</AllowedOrigin><AllowedOrigin>https://*.b.example</AllowedOrigin>
  <AllowedMethod>PUT</AllowedMethod><AllowedMethod>GET</AllowedMethod><AllowedHeader>X-Amz-*</AllowedHeader>
  <AllowedHeader>Content-Type</AllowedHeader><ExposeHeader>ETag</ExposeHeader><ExposeHeader>x-amz-meta-a</ExposeHeader>
  <MaxAgeSeconds>3000</MaxAgeSeconds></CORSRule>
 <CORSRule><AllowedOrigin>*</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule>
</CORSConfiguration>"""
ONE, TWO = parse_rules(DOCUMENT)
WILD = (
    CorsRule(("GET",), ("*suffix",)),
    CorsRule(("GET",), ("start*end",)),
    CorsRule(("GET",), ("prefix*",)),
    CorsRule(("PUT",), ("*.put",)),
)


def options(**headers: str) -> S3Request:
    """Make a preflight; header names with `_` for `-`."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return parse("OPTIONS", "/bucket/key", named.items(), request_id="R", received_at_s=0.0)


def test_a_document_is_read() -> None:
    """All that a rule may say is taken, header names without their case."""
    assert (
        CorsRule(
            methods=("PUT", "GET"),
            origins=("https://a.example", "https://*.b.example"),
            headers=("x-amz-*", "content-type"),
            exposed=("ETag", "x-amz-meta-a"),
            max_age_s="3000",
        )
        == ONE
    )
    assert CorsRule(methods=("GET",), origins=("*",)) == TWO


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"no document",
        b"<CORSConfiguration/>",
        b"<Error><Code>NoSuchKey</Code></Error>",
        b'<!DOCTYPE a [<!ENTITY b "c">]><CORSConfiguration>&b;</CORSConfiguration>',
        b"\xff\xfe",
    ],
)
def test_what_is_no_document_has_no_rules(document: bytes) -> None:
    """Whatever an origin answers, nothing is allowed by it, and nothing fails."""
    assert parse_rules(document) == ()


@pytest.mark.parametrize(
    ("origin", "method", "allowed"),
    [
        ("foo.suffix", "GET", 0),
        ("foo.bar", "GET", None),
        ("foo.suffix.get", "GET", None),
        ("startend", "GET", 1),
        ("start1end", "GET", 1),
        ("start12end", "GET", 1),
        ("starend", "GET", None),
        ("0start12end", "GET", None),
        ("prefix", "GET", 2),
        ("prefix.suffix", "GET", 0),
        ("bla.prefix", "GET", None),
        ("foo.put", "GET", None),
        ("foo.put", "PUT", 3),
        ("foo.PUT", "PUT", None),
        ("foo.suffix", "get", None),
    ],
)
def test_the_first_rule_that_fits_decides(origin: str, method: str, allowed: int | None) -> None:
    """One `*` stands for any text, none too, and never for less than the rest of the pattern."""
    rule = allowing(WILD, CrossOrigin(origin, method))

    assert rule == (None if allowed is None else WILD[allowed])


@pytest.mark.parametrize(
    ("headers", "allowed"),
    [
        ((), ONE),
        (("x-amz-date", "content-type"), ONE),
        (("x-amz-date", "content-md5"), None),
        (("x-custom",), None),
    ],
)
def test_every_header_that_is_asked_for_must_be_allowed(
    headers: tuple[str, ...], allowed: CorsRule | None
) -> None:
    """A rule without headers allows none that a preflight asks for."""
    assert allowing((ONE, TWO), CrossOrigin("https://a.example", "GET", headers)) == allowed


def test_an_answer_says_what_is_allowed() -> None:
    """The page is named, the headers that were asked for are repeated, and caches are told what the answer depends on."""
    asked = CrossOrigin("https://x.b.example", "PUT", ("x-amz-date",))

    assert sharing_headers(ONE, asked) == (
        ("access-control-allow-origin", "https://x.b.example"),
        ("access-control-allow-methods", "PUT, GET"),
        ("access-control-allow-headers", "x-amz-date"),
        ("access-control-expose-headers", "ETag, x-amz-meta-a"),
        ("access-control-max-age", "3000"),
        ("access-control-allow-credentials", "true"),
        VARY,
    )


def test_an_answer_to_every_page_shares_no_credentials() -> None:
    """Where any origin is allowed the answer says so, and nothing of credentials."""
    assert sharing_headers(TWO, CrossOrigin("https://z.example", "GET")) == (
        ("access-control-allow-origin", "*"),
        ("access-control-allow-methods", "GET"),
        VARY,
    )


def test_a_preflight_is_read() -> None:
    """Names of headers are taken without their case and the blanks around them."""
    request = options(
        Origin="https://a.example",
        Access_Control_Request_Method="PUT",
        Access_Control_Request_Headers="X-Amz-Date, content-type,",
    )

    assert check_preflight(request) == CrossOrigin("https://a.example", "PUT", ("x-amz-date", "content-type"))


@pytest.mark.parametrize("headers", [{}, {"Origin": "a"}, {"Access_Control_Request_Method": "GET"}])
def test_a_preflight_that_says_too_little_is_bad(headers: dict[str, str]) -> None:
    """Without a page or a method there is nothing to decide."""
    with pytest.raises(S3Error) as raised:
        check_preflight(options(**headers))

    assert (raised.value.code, raised.value.status) == ("BadRequest", 400)


def test_another_request_is_of_its_own_method() -> None:
    """No Origin, no question; else the method is the request's, or what it asks about."""
    assert read_cross_origin("PUT", {}) is None
    assert read_cross_origin("PUT", {"origin": "a"}) == CrossOrigin("a", "PUT")
    assert read_cross_origin("PUT", {"origin": "a", "access-control-request-method": "GET"}) == CrossOrigin(
        "a", "GET"
    )


@pytest.mark.parametrize(
    ("has_rules", "words"), [(True, "This CORS request is not allowed"), (False, "CORS is not enabled")]
)
def test_a_refusal_says_why(has_rules: bool, words: str) -> None:
    """AWS User Guide "Troubleshooting CORS": 403, and whether there are rules at all."""
    error = refused_preflight(CrossOrigin("a", "PUT"), options(), has_rules=has_rules)

    assert (error.code, error.status) == ("AccessForbidden", 403)
    assert error.message.startswith(f"CORSResponse: {words}")
    assert error.extra == {"Method": "PUT", "ResourceType": "OBJECT"}
