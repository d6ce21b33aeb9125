"""`gateway.warm_list`: what a line of a list may say, and how a list is cut into pieces as it comes."""

import os
from collections.abc import Iterator
from typing import IO

import pytest

from gateway.cli import _place
from gateway.settings import SettingsError
from gateway.warm_list import LINE_BYTES_MAX, WarmList
from storage.clock import SystemClock
from storage.types import KEY_BYTES_MAX, RangeSpec
from storage.warm_jobs import FEED_ENTRIES_MAX, WarmEntry

LONG_S = 60.0


class Piped:
    """A list that a test writes itself."""

    def __init__(self, reading: int, writing: IO[bytes]) -> None:
        self.list = WarmList(reading, "bucket", _place, SystemClock())
        self.pipe = writing


@pytest.fixture
def piped() -> Iterator[Piped]:
    """Make one over a pipe."""
    reading, writing = os.pipe()
    with open(writing, "wb", buffering=0) as pipe:  # noqa: PTH123  # it is a descriptor
        yield Piped(reading, pipe)
    os.close(reading)


def read(piped: Piped, data: bytes) -> list[WarmEntry]:
    """Read a whole list."""
    piped.pipe.write(data)
    piped.pipe.close()
    entries: list[WarmEntry] = []
    while not piped.list.has_ended:
        entries += piped.list.piece(LONG_S)
    return entries


def test_a_list_may_have_keys_addresses_and_objects(piped: Piped) -> None:
    """One a line; empty lines are passed over, and nothing of a key is touched but its line's end."""
    lines = [
        b"\xef\xbb\xbfplain key \n",
        b"\n",
        b"\r\n",
        b"s3://other/a/b\r\n",
        b'{"key": "{odd", "range": "bytes=0-9"}\n',
        b'{"key": "s3://other/k", "range": "bytes=-5"}\r\n',
        b"[\n",
        "\u00fc\u20ac".encode() * 204 + b"kkkk\n",
        b'{"bucket": "third", "key": "s3://odd\\u0000"}',
    ]

    assert read(piped, b"".join(lines)) == [
        WarmEntry("bucket", "plain key "),
        WarmEntry("other", "a/b"),
        WarmEntry("bucket", "{odd", RangeSpec(start=0, stop=10)),
        WarmEntry("other", "k", RangeSpec(suffix=5)),
        WarmEntry("bucket", "["),
        WarmEntry("bucket", "\u00fc\u20ac" * 204 + "kkkk"),
        WarmEntry("third", "s3://odd\0"),
    ]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        (b"s3://bucket", "no bucket or no key"),
        (b"s3://bucket/", "no bucket or no key"),
        (b"s3:///k", "is no place"),
        (b"s3://b u/k", "'b u' is no name of a bucket"),
        (b"\xff\xfek\0", "a NUL"),
        (b"\xff\xfe", "not UTF-8: invalid start byte at byte 0"),
        (b"a\xe2\x82", "not UTF-8: unexpected end of data at byte 1"),
        (b"\xed\xa0\x80", "not UTF-8"),
        (b"one\0two", "a NUL"),
        ("\u20ac".encode() * 341 + b"kk", f"has {KEY_BYTES_MAX + 1} bytes"),
        (b"k" * (LINE_BYTES_MAX + 1), "longer than"),
        (b'{"key": 1}', "Expected `str`"),
        (b'{"key"', "truncated"),
        (b'{"name": "k"}', "missing required field `key`"),
        (b'{"key": "\\ud800"}', "list"),
        (b'{"key": "s3://bucket/k", "range": "0-9"}', "range '0-9' is none"),
    ],
)
def test_a_line_that_is_no_name_is_told_by_its_number(line: bytes, complaint: str, piped: Piped) -> None:
    """Whatever is wrong, what stands before it has been read."""
    with pytest.raises(SettingsError, match="list: line 3 is no name") as caught:
        read(piped, b"s3://bucket/k\n\n" + line + b"\n")

    assert complaint in str(caught.value)


def test_a_key_needs_a_bucket() -> None:
    """Where none is named beside the list."""
    reading, writing = os.pipe()
    os.write(writing, b"key\n")
    os.close(writing)
    try:
        with pytest.raises(SettingsError, match="line 1 is no name: it names no bucket"):
            WarmList(reading, "", _place, SystemClock()).piece(LONG_S)
    finally:
        os.close(reading)


def test_a_name_is_given_while_more_may_come(piped: Piped) -> None:
    """One is a piece, however many would go into it; a line that is not there to its end waits for that."""
    piped.pipe.write(b"one\ntw")
    first = piped.list.piece(LONG_S)
    nothing = piped.list.piece(0.0)
    piped.pipe.write(b"o\n")
    second = piped.list.piece(LONG_S)

    assert (first, nothing, second) == ((WarmEntry("bucket", "one"),), (), (WarmEntry("bucket", "two"),))
    assert not piped.list.has_ended


def test_pieces_are_as_large_as_may_be_when_names_are_there(piped: Piped) -> None:
    """And the last one says that it is."""
    piped.pipe.write(b"".join(b"%d\n" % number for number in range(2 * FEED_ENTRIES_MAX + 5)))
    piped.pipe.close()

    told = [(len(piped.list.piece(LONG_S)), piped.list.has_ended) for _ in range(3)]

    assert told == [(FEED_ENTRIES_MAX, False), (FEED_ENTRIES_MAX, False), (5, True)]


def test_an_empty_list_ends(piped: Piped) -> None:
    """At once, with a piece of nothing."""
    assert read(piped, b"") == []
    assert piped.list.piece(LONG_S) == ()


def test_a_line_without_end_is_told_before_it_ends(piped: Piped) -> None:
    """As of a device or a file that holds no lines."""
    piped.pipe.write(b"k" * (LINE_BYTES_MAX + 1))

    with pytest.raises(SettingsError, match="line 1 is no name: it is longer"):
        piped.list.piece(LONG_S)
