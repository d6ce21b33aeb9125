"""Continuation tokens: ours come back, others do not."""

import re
from base64 import urlsafe_b64encode
from zlib import crc32

import pytest
from hypothesis import given, strategies as st

from gateway.s3.errors import S3Error
from gateway.s3.tokens import Position, PositionKind, decode, encode

KEYS = st.text(st.characters(exclude_categories=["Cs"]), max_size=256)
GENERATIONS = st.none() | st.integers(0, 2**64 - 1)
POSITIONS = st.builds(Position, st.sampled_from(PositionKind), KEYS, GENERATIONS)


def is_foreign(token: str) -> bool:
    """Say whether a token is refused as AWS refuses one; any other error is raised on."""
    try:
        decode(token)
    except S3Error as error:
        return (error.code, error.status) == ("InvalidArgument", 400)
    return False


def forge(body: bytes) -> str:
    """Make a token of any body with a fitting checksum."""
    return urlsafe_b64encode(body + crc32(body).to_bytes(4)).rstrip(b"=").decode()


def test_encode_is_stable() -> None:
    """A token that a client holds over an upgrade stays good; the form is pinned."""
    assert encode(Position(PositionKind.KEY, "a/b")) == "AWthL2Lv0Deh"
    assert encode(Position(PositionKind.PREFIX, "a/", 7)) == "AnAAAAAAAAAAB2Evu7R7OQ"


@given(position=POSITIONS)
def test_token_comes_back(position: Position) -> None:
    """Any key or prefix survives, in characters that URLs and XML leave alone."""
    token = encode(position)

    assert decode(token) == position
    assert re.fullmatch(r"[A-Za-z0-9_-]+", token)


def test_token_of_the_longest_key_comes_back() -> None:
    """1024 bytes fit."""
    position = Position(PositionKind.PREFIX, "€" * 341 + "/", 2**64 - 1)

    assert decode(encode(position)) == position


@given(position=POSITIONS, data=st.data())
def test_token_when_cut_or_changed(position: Position, data: st.DataObject) -> None:
    """A token with one character lost or changed is not ours any more."""
    token = encode(position)
    at = data.draw(st.integers(0, len(token) - 2))
    other = data.draw(
        st.sampled_from("ABCDEFabcdef0123456789-_").filter(lambda character: character != token[at])
    )

    assert is_foreign(token[:at] + token[at + 1 :])
    assert is_foreign(token[:at] + other + token[at + 1 :])


@pytest.mark.parametrize(
    "token",
    [
        "",
        "A",
        "a/b",
        "1ueGcxLPRx1Tr/XYExHnhbYLgveDs2J/wm36Hy4vbOwM=",
        "A" * 5000,
        "ä" * 12,
        "AWthL2Lv0Deh\n",
        "AWthL2Lv0Deh=",
        forge(b"\x02kkey"),
        forge(b"\x03kkey"),
        forge(b"\x02k1234567"),
        forge(b"\x01xkey"),
        forge(b"\x01k\xff"),
        forge(b"\x01"),
        forge(b"\x01\x01\x01"),
        forge(b""),
    ],
)
def test_token_when_foreign(token: str) -> None:
    """Tokens of other servers, versions and kinds are refused."""
    assert is_foreign(token)


@given(token=st.text(max_size=60))
def test_decode_raises_only_s3_errors(token: str) -> None:
    """Any text is refused in the same way."""
    assert is_foreign(token)
