"""Continuation tokens of ListObjectsV2: where our listing stands, in a form that only we can have made.

A token holds our last key or common prefix, never the origin's token, because pages are merged from two sources and one may
change under the other. Layout before base64url without padding: version (1 byte), kind (1 byte), text (UTF-8), CRC-32 of
all before it (4 bytes, big-endian). Within a published target the version is another, and the generation (8 bytes,
big-endian) stands before the text: a listing goes on with the generation that it began with.

The CRC is no secret: it tells a foreign or cut token from ours; a position that a client makes up shows it nothing that
`start-after` would not, and a generation nothing that was not published under the same target.
"""

import re
import zlib
from base64 import urlsafe_b64decode, urlsafe_b64encode
from enum import Enum
from typing import Final

import msgspec

from gateway.s3.errors import S3Error, invalid_argument

_VERSION: Final = b"\x01"
_VERSION_OF_TARGETS: Final = b"\x02"
_GENERATION_BYTES: Final = 8
_HEAD_BYTES: Final = 2
_CRC_BYTES: Final = 4
_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{8,2048}", re.ASCII)


class PositionKind(Enum):
    """What the last line of a page was."""

    KEY = b"k"
    PREFIX = b"p"


class Position(msgspec.Struct, frozen=True, gc=False):
    """The last line of a page: the next one starts behind this key, or behind all keys with this prefix.

    `generation` is that of the published target in which the line stands, None outside of targets.
    """

    kind: PositionKind
    text: str
    generation: int | None = None


def encode(position: Position) -> str:
    """Write a position as a token; letters, digits, `-` and `_` only."""
    body = _VERSION + position.kind.value
    if position.generation is not None:
        body = _VERSION_OF_TARGETS + position.kind.value + position.generation.to_bytes(_GENERATION_BYTES)
    body += position.text.encode()
    return urlsafe_b64encode(body + zlib.crc32(body).to_bytes(_CRC_BYTES)).rstrip(b"=").decode()


def decode(token: str) -> Position:
    """Read a token back.

    Raises:
        S3Error: InvalidArgument: not one of ours.
    """
    if _TOKEN.fullmatch(token) is None:
        raise _foreign(token)
    try:
        data = urlsafe_b64decode(token + "=" * (-len(token) % 4))
        body, crc = data[:-_CRC_BYTES], data[-_CRC_BYTES:]
        if zlib.crc32(body).to_bytes(_CRC_BYTES) != crc:
            raise _foreign(token)
        position = _read(token, body)
    except ValueError as error:
        # Of base64, of an unknown kind, or of text that is not UTF-8.
        raise _foreign(token) from error
    return position


def _read(token: str, body: bytes) -> Position:
    kind, rest = PositionKind(body[1:_HEAD_BYTES]), body[_HEAD_BYTES:]
    if body[:1] == _VERSION:
        return Position(kind, rest.decode())
    if body[:1] != _VERSION_OF_TARGETS or len(rest) < _GENERATION_BYTES:
        raise _foreign(token)
    generation = int.from_bytes(rest[:_GENERATION_BYTES])
    return Position(kind, rest[_GENERATION_BYTES:].decode(), generation)


def _foreign(token: str) -> S3Error:
    return invalid_argument(
        "continuation-token", token[:2048], "The continuation token provided is incorrect"
    )
