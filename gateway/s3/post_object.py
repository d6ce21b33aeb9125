"""A POST upload as the PutObject that it stands for: fields become headers, and the answer is what the form asks for.

Source: AWS S3 API Reference "POST Object", "HTML form fields". What a PutObject says in a header, a form says in a field of the
same name, but for `acl` and `tagging`. Headers and query of the request itself are nobody's word: the policy does not cover them.
"""

from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

from msgspec.structs import replace

from gateway.s3.documents_in import parse_tagging
from gateway.s3.errors import S3Error, invalid_argument
from gateway.s3.metadata import check_header
from gateway.s3.post_policy import missing_field
from gateway.s3.request import S3Request, check_key, parse_query, read_headers
from gateway.s3.tagging import check_tags, encode_tags

SUCCESS_STATUS: Final = "success_action_status"
SUCCESS_REDIRECT: Final = "success_action_redirect"
OLD_REDIRECT: Final = "redirect"

_HEADER_FIELDS: Final = frozenset(
    {
        "cache-control",
        "content-disposition",
        "content-encoding",
        "content-language",
        "content-md5",
        "content-type",
        "expires",
    }
)
_ANSWER_FIELDS: Final = frozenset({SUCCESS_STATUS, SUCCESS_REDIRECT, OLD_REDIRECT})
_SIGNING_FIELDS: Final = frozenset(
    {
        "x-amz-algorithm",
        "x-amz-content-sha256",
        "x-amz-credential",
        "x-amz-date",
        "x-amz-decoded-content-length",
        "x-amz-security-token",
        "x-amz-signature",
        "x-amz-trailer",
    }
)
_KEPT_HEADERS: Final = frozenset({"host", "origin"})
"""Of the request itself: where the client reached us, and from which page."""

_STATUSES: Final[Mapping[str, int]] = {"200": 200, "201": 201}


def put_request(request: S3Request, fields: Mapping[str, str]) -> S3Request:
    """Write the request that a PutObject of the form's key and headers would be.

    Raises:
        S3Error: InvalidArgument: no key, or a field that no header can be; KeyTooLongError; MalformedXML or InvalidTag of tags.
    """
    key = fields.get("key", "")
    if not key:
        raise missing_field("key")
    check_key(key)
    kept = [pair for pair in request.headers.pairs if pair[0] in _KEPT_HEADERS]
    headers = [header for name, value in fields.items() for header in _headers(name, value)]
    return replace(
        request, key=key, headers=read_headers([*kept, *headers]), raw_query="", query=parse_query("")
    )


def success_status(headers: Mapping[str, str]) -> int:
    """Give the status of a success without redirect; what is none of three means the default, 204."""
    return _STATUSES.get(headers.get(SUCCESS_STATUS, ""), 204)


def redirect_url(headers: Mapping[str, str], *, bucket: str, key: str, etag: str) -> str:
    """Give where a success leads, with what was stored added to the query; "" for nowhere, or for what is no URL."""
    wanted = headers.get(SUCCESS_REDIRECT) or headers.get(OLD_REDIRECT) or ""
    try:
        parts = urlsplit(wanted)
    except ValueError:
        return ""
    if parts.scheme not in {"http", "https"} or not parts.netloc or not wanted.isprintable():
        return ""
    added = urlencode({"bucket": bucket, "key": key, "etag": f'"{etag}"'}, quote_via=quote)
    query = f"{parts.query}&{added}" if parts.query else added
    url = urlunsplit((parts.scheme, parts.netloc, parts.path, query, parts.fragment))
    return quote(url, safe="%/:?#[]@!$&'()*+,;=-._~")


def _headers(name: str, value: str) -> list[tuple[str, str]]:
    """Give the header that a field stands for, none for one that is not about the object."""
    if name == "tagging":
        return [("x-amz-tagging", encode_tags(check_tags(parse_tagging(value.encode()))))]
    if name in _ANSWER_FIELDS:
        return [(name, value)]
    if name == "acl":
        name = "x-amz-acl"
    is_object_header = name.startswith("x-amz-") and name not in _SIGNING_FIELDS
    if not is_object_header and name not in _HEADER_FIELDS:
        return []
    if name.startswith("x-amz-copy-source"):
        raise _no_header(name, value)
    try:
        check_header(name, value)
    except S3Error as error:
        raise _no_header(name, value) from error
    return [(name, value)]


def _no_header(name: str, value: str) -> S3Error:
    return invalid_argument(name, value, f"The field {name} cannot be what it says.")
