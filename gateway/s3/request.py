"""One S3 request as a value: what was sent, untouched, and what it names, decoded exactly once.

A key may hold any UTF-8: `//`, `..`, `+` and `%2F` mean themselves (AWS User Guide "Creating object key names"), so nothing
here normalises. The raw path and query stay beside the decoded ones because signatures are made over them.
"""

import re
from collections.abc import Iterable
from typing import Final
from urllib.parse import unquote_to_bytes

import msgspec

from gateway.s3.errors import ErrorCode, S3Error
from storage.types import KEY_BYTES_MAX

ADMIN_BUCKET: Final = "-"
"""Stands in the place of a bucket in `/-/...`, the gateway's own paths; no S3 bucket can have this name."""

_ABSOLUTE_TARGET: Final = re.compile(r"https?://([^/?#]*)(/[^?]*)?(\?.*)?", re.IGNORECASE | re.DOTALL)
_BAD_PERCENT: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
# What S3 has ever allowed: buckets made before 2018 in us-east-1, and other S3 servers, know upper case and "_".
_BUCKET: Final = re.compile(r"[A-Za-z0-9](?!.*\.\.)[A-Za-z0-9._-]{1,253}[A-Za-z0-9_-]", re.ASCII)
_NEW_BUCKET: Final = re.compile(r"[a-z0-9](?!.*\.\.)[a-z0-9.-]{1,61}[a-z0-9]", re.ASCII)
_IP_ADDRESS: Final = re.compile(r"\d+\.\d+\.\d+\.\d+", re.ASCII)


class Headers(msgspec.Struct, frozen=True, gc=False):
    """Request headers in the order received, with lower-case names and trimmed values.

    `combined` holds each name once; the values of a repeated one are joined by commas (RFC 9110 section 5.3), so that
    a header which must not be repeated fails its own parser instead of losing a value unseen.
    """

    pairs: tuple[tuple[str, str], ...]
    combined: dict[str, str]

    def get(self, name: str) -> str | None:
        """Give a header's value whatever the case of `name`; None where it was not sent."""
        return self.combined.get(name.lower())

    def get_all(self, name: str) -> tuple[str, ...]:
        """Give every value sent under `name`, in order."""
        wanted = name.lower()
        return tuple([value for sent, value in self.pairs if sent == wanted])

    def __contains__(self, name: str) -> bool:
        return name.lower() in self.combined


class Query(msgspec.Struct, frozen=True, gc=False):
    """Query parameters, decoded, in the order received. `?acl` and `?acl=` both read ("acl", "")."""

    pairs: tuple[tuple[str, str], ...]
    first: dict[str, str]

    def get(self, name: str) -> str | None:
        """Give the first value of `name` (case matters); None where it was not sent."""
        return self.first.get(name)

    def __contains__(self, name: str) -> bool:
        return name in self.first


_NO_QUERY: Final = Query((), {})


class S3Request(msgspec.Struct, frozen=True, gc=False):
    """The head of one request.

    Attributes:
        method: Upper case.
        raw_path: The path as received, without the query; what signatures are made over.
        raw_query: The query as received, without `?`.
        headers: As received.
        bucket: "" at service level, ADMIN_BUCKET for the gateway's own paths.
        key: "" at bucket level.
        query: Decoded parameters.
        host: Lower case, without port; "" where none was sent.
        request_id: As answered in x-amz-request-id.
        received_at_s: Wall clock at the head's arrival.
    """

    method: str
    raw_path: str
    raw_query: str
    headers: Headers
    bucket: str
    key: str
    query: Query
    host: str
    request_id: str
    received_at_s: float


def parse(
    method: str,
    raw_target: str,
    headers: Iterable[tuple[str, str]],
    *,
    request_id: str,
    received_at_s: float,
    domains: tuple[str, ...] = (),
) -> S3Request:
    """Read a request's head.

    Args:
        method: From the request line.
        raw_target: From the request line, never re-encoded; absolute form too.
        headers: Names and values in order.
        request_id: What the answer will carry.
        received_at_s: Wall clock.
        domains: Base domains of virtual-host style: `bucket.domain` names a bucket.

    Raises:
        S3Error: InvalidURI, InvalidBucketName or KeyTooLongError.
    """
    read = read_headers(headers)
    authority, raw_path, raw_query = _split_target(raw_target)
    host = _hostname(authority or read.combined.get("host", ""))
    bucket = _bucket_of_host(host, domains)
    if bucket:
        _check_bucket(bucket)
        raw_key = raw_path[1:]
    else:
        bucket, raw_key = _split_path(raw_path)
    return S3Request(
        method=method.upper(),
        raw_path=raw_path,
        raw_query=raw_query,
        headers=read,
        bucket=bucket,
        key=_decode_key(raw_key),
        query=parse_query(raw_query),
        host=host,
        request_id=request_id,
        received_at_s=received_at_s,
    )


def read_headers(headers: Iterable[tuple[str, str]]) -> Headers:
    """Take in header pairs: names in lower case, values trimmed."""
    pairs = tuple([(name.lower(), value.strip()) for name, value in headers])
    combined = dict(pairs)
    if len(combined) != len(pairs):
        combined = {}
        for name, value in pairs:
            combined[name] = f"{combined[name]},{value}" if name in combined else value
    return Headers(pairs, combined)


def parse_query(raw_query: str) -> Query:
    """Decode a query string once; `+` is a blank there, unlike in a path.

    Raises:
        S3Error: InvalidURI: a broken percent sign, or not UTF-8.
    """
    if not raw_query:
        return _NO_QUERY
    pairs = tuple([_decode_pair(pair) for pair in raw_query.split("&") if pair])
    first: dict[str, str] = {}
    for name, value in pairs:
        first.setdefault(name, value)
    return Query(pairs, first)


def decode(raw: str) -> str:
    """Decode percent-encoded text once, `+` meaning itself: a path, or x-amz-copy-source.

    Raises:
        S3Error: InvalidURI: a broken percent sign, or not UTF-8.
    """
    if "%" not in raw and raw.isascii():
        return raw
    if _BAD_PERCENT.search(raw):
        raise S3Error(ErrorCode.INVALID_URI)
    try:
        return unquote_to_bytes(raw.encode("utf-8", "surrogateescape")).decode()
    except UnicodeError as error:
        raise S3Error(ErrorCode.INVALID_URI) from error


def check_key(key: str) -> None:
    """Refuse a key over 1024 bytes of UTF-8 with KeyTooLongError."""
    # No character has more than 4 bytes: a short key need not be encoded to be measured.
    if len(key) * 4 <= KEY_BYTES_MAX:
        return
    size = len(key.encode())
    if size > KEY_BYTES_MAX:
        raise S3Error(ErrorCode.KEY_TOO_LONG, extra={"Size": str(size), "MaxSizeAllowed": str(KEY_BYTES_MAX)})


def is_bucket_name(name: str) -> bool:
    """Say whether some S3 server may have a bucket of this name; wider than what may be created today."""
    return _BUCKET.fullmatch(name) is not None


def check_new_bucket_name(name: str) -> None:
    """Refuse what CreateBucket may not create (AWS User Guide "General purpose bucket naming rules").

    Reserved prefixes and suffixes are left to the origin, which knows today's list.
    """
    if _NEW_BUCKET.fullmatch(name) is None or _IP_ADDRESS.fullmatch(name):
        raise _invalid_bucket(name)


def _split_target(raw_target: str) -> tuple[str, str, str]:
    """Take a request target apart: authority ("" in origin form), path, query."""
    if raw_target.startswith("/"):
        path, _, query = raw_target.partition("?")
        return "", path, query
    absolute = _ABSOLUTE_TARGET.fullmatch(raw_target)
    if absolute is None:
        raise S3Error(ErrorCode.INVALID_URI)
    authority, path, query = absolute.groups(default="")
    return authority, path or "/", query[1:]


def _hostname(authority: str) -> str:
    # An IPv6 address holds colons of its own, inside brackets.
    name, colon, port = authority.rpartition(":")
    return (name if colon and port.isdecimal() else authority).lower()


def _bucket_of_host(host: str, domains: tuple[str, ...]) -> str:
    """Give the bucket that a virtual-host style name holds, "" in path style. The longest domain decides."""
    if not domains or host in domains:
        return ""
    fitting = [domain for domain in domains if host.endswith(f".{domain}")]
    if not fitting:
        return ""
    return host[: -len(max(fitting, key=len)) - 1]


def _split_path(raw_path: str) -> tuple[str, str]:
    """Give the checked bucket, "" for `/`, and the raw key of a path-style path."""
    if raw_path == "/":
        return "", ""
    raw_bucket, _, raw_key = raw_path[1:].partition("/")
    bucket = decode(raw_bucket)
    if bucket != ADMIN_BUCKET:
        _check_bucket(bucket)
    return bucket, raw_key


def _check_bucket(name: str) -> None:
    if not is_bucket_name(name):
        raise _invalid_bucket(name)


def _invalid_bucket(name: str) -> S3Error:
    return S3Error(ErrorCode.INVALID_BUCKET_NAME, extra={"BucketName": name})


def _decode_key(raw_key: str) -> str:
    key = decode(raw_key)
    check_key(key)
    return key


def _decode_pair(pair: str) -> tuple[str, str]:
    name, _, value = pair.partition("=")
    return decode(name.replace("+", " ")), decode(value.replace("+", " "))
