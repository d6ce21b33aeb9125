"""Cross-origin sharing: a bucket's rules, which of them allows a request, and what the answer says of it. Pure.

By AWS: User Guide "Using cross-origin resource sharing (CORS)", "Elements of a CORS configuration", API "PutBucketCors" and
"OPTIONS object". The first rule that allows origin, method and every header that is asked for decides. An origin or a header of a
rule may hold one `*`, which stands for any text, none too. Origins are compared as they are, header names without their case.

The method that is asked about is Access-Control-Request-Method, also where it comes with another request than a preflight, which
no browser sends; else the request's own.
"""

from collections.abc import Mapping
from typing import Final

import msgspec
from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import ParseError, fromstring

from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.request import S3Request

DOCUMENT_BYTES_MAX: Final = 128 * 1024
"""AWS API_PutBucketCors: the document is limited to 64 KB; as the origin writes it out it may be longer."""

RULES_MAX: Final = 100

VARY: Final = ("vary", "Origin, Access-Control-Request-Headers, Access-Control-Request-Method")

HeaderPairs = tuple[tuple[str, str], ...]


class CorsRule(msgspec.Struct, frozen=True, gc=False):
    """One rule.

    Attributes:
        methods: Upper case.
        headers: Lower case; what a preflight may ask for.
        max_age_s: How long a browser may keep the answer to a preflight; "" where the rule does not say.
    """

    methods: tuple[str, ...]
    origins: tuple[str, ...]
    headers: tuple[str, ...] = ()
    exposed: tuple[str, ...] = ()
    max_age_s: str = ""


class CrossOrigin(msgspec.Struct, frozen=True, gc=False):
    """What a browser says of the page that a request is for. `headers`: lower case, what a preflight asks for."""

    origin: str
    method: str
    headers: tuple[str, ...] = ()


def parse_rules(document: bytes) -> tuple[CorsRule, ...]:
    """Read the document that GetBucketCors answers; what is no such document has no rules."""
    try:
        root = fromstring(document)
    except (ParseError, DefusedXmlException, ValueError):
        return ()
    rules = []
    for element in root:
        if _local(element.tag) != "CORSRule":
            continue
        found: dict[str, list[str]] = {}
        for child in element:
            found.setdefault(_local(child.tag), []).append((child.text or "").strip())
        age = next(iter(found.get("MaxAgeSeconds", ())), "")
        rules.append(
            CorsRule(
                methods=tuple(found.get("AllowedMethod", ())),
                origins=tuple(found.get("AllowedOrigin", ())),
                headers=tuple(name.lower() for name in found.get("AllowedHeader", ())),
                exposed=tuple(found.get("ExposeHeader", ())),
                max_age_s=age if age.isascii() and age.isdecimal() else "",
            )
        )
    return tuple(rules[:RULES_MAX])


def read_cross_origin(method: str, headers: Mapping[str, str]) -> CrossOrigin | None:
    """Read what a request says of its page; None where it comes from none.

    Args:
        method: The request's own.
        headers: Lower-case names.
    """
    origin = headers.get("origin")
    if origin is None:
        return None
    asked = headers.get("access-control-request-headers", "")
    return CrossOrigin(
        origin,
        headers.get("access-control-request-method", method),
        tuple(name.strip().lower() for name in asked.split(",") if name.strip()),
    )


def check_preflight(request: S3Request) -> CrossOrigin:
    """Read a preflight.

    Raises:
        S3Error: BadRequest (400), it does not say for which page, or for which method.
    """
    asked = read_cross_origin(request.method, request.headers.combined)
    if asked is None:
        raise S3Error(ErrorCode.BAD_REQUEST, "Insufficient information. Origin request header needed.")
    if "access-control-request-method" not in request.headers:
        raise S3Error(ErrorCode.BAD_REQUEST, "Invalid Access-Control-Request-Method: null")
    return asked


def allowing(rules: tuple[CorsRule, ...], asked: CrossOrigin) -> CorsRule | None:
    """Give the first rule that allows a request; None where none does."""
    return next((rule for rule in rules if _allows(rule, asked)), None)


def sharing_headers(rule: CorsRule, asked: CrossOrigin) -> HeaderPairs:
    """Give what an answer tells the browser, to a preflight with the headers that were asked for."""
    matched = next(pattern for pattern in rule.origins if _fits(pattern, asked.origin))
    told = [
        ("access-control-allow-origin", "*" if matched == "*" else asked.origin),
        ("access-control-allow-methods", ", ".join(rule.methods)),
    ]
    if asked.headers:
        told.append(("access-control-allow-headers", ", ".join(asked.headers)))
    if rule.exposed:
        told.append(("access-control-expose-headers", ", ".join(rule.exposed)))
    if rule.max_age_s:
        told.append(("access-control-max-age", rule.max_age_s))
    if matched != "*":
        # Credentials are never shared with every page (Fetch standard, "CORS protocol and credentials").
        told.append(("access-control-allow-credentials", "true"))
    return (*told, VARY)


def refused_preflight(asked: CrossOrigin, request: S3Request, *, has_rules: bool) -> S3Error:
    """Make the AccessForbidden (403) of a preflight that no rule allows."""
    message = (
        "CORSResponse: This CORS request is not allowed. This is usually because the evaluation of Origin, request method / "
        "Access-Control-Request-Method or Access-Control-Request-Headers are not whitelisted by the resource's CORS spec."
        if has_rules
        else "CORSResponse: CORS is not enabled for this bucket."
    )
    kind = "OBJECT" if request.key else "BUCKET" if request.bucket else "SERVICE"
    extra = {"Method": asked.method, "ResourceType": kind}
    return S3Error(ErrorCode.ACCESS_FORBIDDEN, message, extra=extra)


def _allows(rule: CorsRule, asked: CrossOrigin) -> bool:
    return (
        asked.method in rule.methods
        and any(_fits(pattern, asked.origin) for pattern in rule.origins)
        and all(any(_fits(pattern, name) for pattern in rule.headers) for name in asked.headers)
    )


def _fits(pattern: str, text: str) -> bool:
    """Whether text is the pattern, with its first `*` standing for any text."""
    start, star, end = pattern.partition("*")
    if not star:
        return pattern == text
    return len(text) >= len(start) + len(end) and text.startswith(start) and text.endswith(end)


def _local(tag: object) -> str:
    return str(tag).rpartition("}")[2]
