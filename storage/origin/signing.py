"""AWS Signature Version 4 for S3, used on both sides: we verify clients with it and sign for the origin.

The four steps carry AWS's names (AWS S3 API Reference "Signature Calculations for the Authorization Header: Transferring
Payload in a Single Chunk"): canonical request, string to sign, signing key, signature. S3 differs from other services in two
points: the path is URI-encoded once, and it is never normalised; so this module takes paths as they go over the wire.

Text that came from a socket may hold surrogate escapes (PEP 383); they are signed as the bytes they stand for.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from urllib.parse import quote

ALGORITHM: Final = "AWS4-HMAC-SHA256"
CHUNK_ALGORITHM: Final = "AWS4-HMAC-SHA256-PAYLOAD"
TRAILER_ALGORITHM: Final = "AWS4-HMAC-SHA256-TRAILER"
SERVICE: Final = "s3"
TERMINATOR: Final = "aws4_request"

UNSIGNED_PAYLOAD: Final = "UNSIGNED-PAYLOAD"
EMPTY_SHA256: Final = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

_SHA256_BLOCK_BYTES: Final = 64

_SIGNING_KEYS_MAX: Final = 256
"""A key serves one secret, day and region: far more than a gateway has, and 100 KiB at most."""


@dataclass(frozen=True, slots=True)
class SigningIdentity:
    """Who signs, and for which region. `session_token` is "" for long-lived credentials."""

    access_key: str
    secret_key: str = field(repr=False)
    region: str
    session_token: str = field(default="", repr=False)


def uri_encode(text: str, *, keep_slash: bool = False) -> str:
    """Percent-encode every byte of the UTF-8 form but `A-Za-z0-9-._~`; keep `/` in a key that becomes a path."""
    return quote(text, safe="/-._~" if keep_slash else "-._~", errors="surrogateescape")


def canonical_query(pairs: Iterable[tuple[str, str]]) -> str:
    """Give the canonical query string of decoded names and values: encoded, then sorted by name and value."""
    return "&".join(
        [
            f"{name}={value}"
            for name, value in sorted((uri_encode(name), uri_encode(value)) for name, value in pairs)
        ]
    )


def canonical_raw_query(raw_query: str) -> str:
    """Give the canonical query string of a query that is already encoded as it should be signed."""
    if not raw_query:
        return ""
    split = [pair.partition("=") for pair in raw_query.split("&") if pair]
    return "&".join([f"{name}={value}" for name, _, value in sorted(split)])


def canonical_headers(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Sort lower-case names and trim their values, runs of blanks becoming one; a name stands once."""
    return sorted([(name, " ".join(value.split())) for name, value in headers])


def canonical_request(
    method: str, uri: str, query: str, headers: Sequence[tuple[str, str]], payload_hash: str
) -> str:
    """Put together the canonical request; all parts are canonical already.

    Args:
        method: Upper case.
        uri: The path as it goes over the wire, from its first `/`.
        query: From `canonical_query`.
        headers: The signed ones, from `canonical_headers`.
        payload_hash: The value of x-amz-content-sha256.
    """
    lines = "".join([f"{name}:{value}\n" for name, value in headers])
    names = ";".join([name for name, _ in headers])
    return f"{method}\n{uri}\n{query}\n{lines}\n{names}\n{payload_hash}"


def credential_scope(date: str, region: str) -> str:
    """Say for which day (YYYYMMDD), region and service a signing key is good."""
    return f"{date}/{region}/{SERVICE}/{TERMINATOR}"


def string_to_sign(amz_date: str, scope: str, canonical: str) -> str:
    """Bind a canonical request to its time (YYYYMMDDTHHMMSSZ) and scope."""
    return f"{ALGORITHM}\n{amz_date}\n{scope}\n{hashlib.sha256(_encode(canonical)).hexdigest()}"


@lru_cache(maxsize=_SIGNING_KEYS_MAX)
def signing_key(secret_key: str, date: str, region: str) -> bytes:
    """Derive the key of one day (YYYYMMDD) and region; remembered, as it costs four HMACs."""
    key = f"AWS4{secret_key}".encode()
    for scope_part in (date, region, SERVICE, TERMINATOR):
        key = hmac.digest(key, _encode(scope_part), "sha256")
    return key


def signature(key: bytes, text: str) -> str:
    """Sign a string to sign; 64 lower-case hex digits."""
    inner, outer = _hmac_states(key)
    inner, outer = inner.copy(), outer.copy()
    inner.update(_encode(text))
    outer.update(inner.digest())
    return outer.hexdigest()


@lru_cache(maxsize=_SIGNING_KEYS_MAX)
def _hmac_states(key: bytes) -> "tuple[hashlib._Hash, hashlib._Hash]":
    """Begin the two hashes of HMAC-SHA256 with a key of at most 64 bytes (RFC 2104); never updated, but copied.

    `hmac.digest` gives the interpreter's lock away for each text, however short, and may wait long to have it back.
    """
    block = key.ljust(_SHA256_BLOCK_BYTES, b"\0")
    assert len(block) == _SHA256_BLOCK_BYTES, f"a key of {len(key)} bytes is not one of `signing_key`"
    return hashlib.sha256(bytes(byte ^ 0x36 for byte in block)), hashlib.sha256(
        bytes(byte ^ 0x5C for byte in block)
    )


def chunk_string_to_sign(amz_date: str, scope: str, previous_signature: str, chunk_sha256: str) -> str:
    """Give what the signature of one aws-chunked chunk signs (AWS "sigv4-streaming"); `chunk_sha256` in hex."""
    return f"{CHUNK_ALGORITHM}\n{amz_date}\n{scope}\n{previous_signature}\n{EMPTY_SHA256}\n{chunk_sha256}"


def trailer_string_to_sign(amz_date: str, scope: str, previous_signature: str, trailer_sha256: str) -> str:
    r"""Give what x-amz-trailer-signature signs (AWS "sigv4-streaming-trailers").

    `trailer_sha256` is the hex SHA-256 of the trailing headers, each as `name:value\n`, names in lower case.
    """
    return f"{TRAILER_ALGORITHM}\n{amz_date}\n{scope}\n{previous_signature}\n{trailer_sha256}"


def chunk_signature(key: bytes, amz_date: str, scope: str, previous_signature: str, chunk_sha256: str) -> str:
    """Sign one chunk; the first one follows the request's own signature, the last one is empty."""
    return signature(key, chunk_string_to_sign(amz_date, scope, previous_signature, chunk_sha256))


def trailer_signature(
    key: bytes, amz_date: str, scope: str, previous_signature: str, trailer_sha256: str
) -> str:
    """Sign the trailing headers; they follow the signature of the empty chunk."""
    return signature(key, trailer_string_to_sign(amz_date, scope, previous_signature, trailer_sha256))


@lru_cache(maxsize=64)
def format_amz_date(wall_s: int) -> str:
    """Write whole seconds since the epoch as x-amz-date wants them: YYYYMMDDTHHMMSSZ."""
    return datetime.fromtimestamp(wall_s, UTC).strftime("%Y%m%dT%H%M%SZ")


def sign_headers(
    identity: SigningIdentity,
    method: str,
    raw_target: str,
    headers: Mapping[str, str],
    payload_hash: str,
    now_s: float,
) -> dict[str, str]:
    """Sign a request to the origin; give all its headers, `authorization` with them.

    Every header given is signed, so leave out what a client library or proxy may change on the way (user-agent,
    accept-encoding, expect, transfer-encoding) and add it afterwards.

    Args:
        identity: Whose key signs.
        method: Upper case.
        raw_target: Path and query exactly as sent, encoded with `uri_encode`.
        headers: Lower-case names, `host` among them.
        payload_hash: Hex SHA-256 of the body, UNSIGNED_PAYLOAD, or a STREAMING- form.
        now_s: Wall clock of the origin as we know it.
    """
    assert "host" in headers, f"the host is always signed: {sorted(headers)}"
    amz_date = format_amz_date(int(now_s))
    date = amz_date[:8]
    signed = {**headers, "x-amz-content-sha256": payload_hash, "x-amz-date": amz_date}
    if identity.session_token:
        signed["x-amz-security-token"] = identity.session_token
    path, _, query = raw_target.partition("?")
    canonical = canonical_headers(signed.items())
    scope = credential_scope(date, identity.region)
    text = string_to_sign(
        amz_date,
        scope,
        canonical_request(method, path, canonical_raw_query(query), canonical, payload_hash),
    )
    names = ";".join([name for name, _ in canonical])
    value = signature(signing_key(identity.secret_key, date, identity.region), text)
    signed["authorization"] = (
        f"{ALGORITHM} Credential={identity.access_key}/{scope}, SignedHeaders={names}, Signature={value}"
    )
    return signed


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
