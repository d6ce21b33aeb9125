"""The list of a warm-up as its command reads it: lines that come when they come, and what a line may say.

A list may be a file of millions of names, or what a sampler writes a little ahead of its reads. So a piece of it is what is there, and
what follows within GATHER_S: one name where names come one by one, and FEED_ENTRIES_MAX where they come fast.
"""

import os
import select
from collections import deque
from collections.abc import Callable
from typing import Final

import msgspec

from gateway.s3.ranges import parse_range
from gateway.s3.request import is_bucket_name
from gateway.settings import SettingsError
from storage.clock import Clock
from storage.types import KEY_BYTES_MAX, KIB, RangeSpec
from storage.warm_jobs import FEED_ENTRIES_MAX, WarmEntry

GATHER_S: Final = 0.02
"""After its first name, a piece is sent at the latest so much later, unless more is there all the time."""

READ_BYTES: Final = 64 * KIB

LINE_BYTES_MAX: Final = 16 * KIB
"""The longest key, every byte of it written as six characters, with its bucket and range, is half of it."""

_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"

SplitPlace = Callable[[str], tuple[str, str]]


class _Line(msgspec.Struct, frozen=True):
    """A line that is JSON."""

    key: str
    bucket: str = ""
    range: str = ""


class WarmList:
    """Reads a list from a descriptor: a file, a pipe, a terminal.

    Args:
        descriptor: Open for reading; stays its owner's.
        bucket: Of the lines that name none; "" where each has to.
        split: Takes an s3:// address apart; raises SettingsError.
        clock: Says how long a piece is gathered.
    """

    def __init__(self, descriptor: int, bucket: str, split: SplitPlace, clock: Clock) -> None:
        self._descriptor: Final = descriptor
        self._bucket: Final = bucket
        self._split: Final = split
        self._clock: Final = clock
        self._lines: Final[deque[bytes]] = deque()
        self._rest = b""
        self._number = 0
        self._is_read = False

    @property
    def has_ended(self) -> bool:
        """Whether no name follows."""
        return self._is_read and not self._lines

    def piece(self, wait_s: float) -> tuple[WarmEntry, ...]:
        """Give the next names, at most FEED_ENTRIES_MAX; none at the end, and where none came within `wait_s`.

        Raises:
            SettingsError: A line is no name, and which.
            OSError: It cannot be read.
        """
        entries: list[WarmEntry] = []
        until_s = self._clock.monotonic_s() + wait_s
        while len(entries) < FEED_ENTRIES_MAX:
            if self._lines:
                entry = self._entry(self._lines.popleft())
                if entry is not None:
                    if not entries:
                        until_s = self._clock.monotonic_s() + GATHER_S
                    entries.append(entry)
            elif self._is_read or not self._read(max(0.0, until_s - self._clock.monotonic_s())):
                break
        return tuple(entries)

    def _read(self, wait_s: float) -> bool:
        """Read what is there; False where nothing came."""
        ready, _, _ = select.select([self._descriptor], [], [], wait_s)
        if not ready:
            return False
        data = os.read(self._descriptor, READ_BYTES)
        *whole, self._rest = (self._rest + data).split(b"\n")
        self._lines.extend(whole)
        if not data:
            self._is_read = True
            self._lines.append(self._rest)
        elif len(self._rest) > LINE_BYTES_MAX:
            self._lines.append(self._rest)  # told by its number, behind those before it
        return True

    def _entry(self, line: bytes) -> WarmEntry | None:
        """Read a line; None of an empty one."""
        self._number += 1
        line = line.removesuffix(b"\r")
        if self._number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        if not line:
            return None
        try:
            return self._named(line)
        except (SettingsError, msgspec.DecodeError) as error:
            raise SettingsError(f"list: line {self._number} is no name: {error}") from error

    def _named(self, line: bytes) -> WarmEntry:
        """Read a key, an s3:// address, or a JSON object with `key` and perhaps `bucket` and `range` (a header's value, `bytes=0-1023`).

        A key that begins with { or s3://, or holds a line's end or NUL, stands in the second or third form.
        """
        if len(line) > LINE_BYTES_MAX:
            raise SettingsError(f"it is longer than {LINE_BYTES_MAX} bytes")
        if b"\0" in line:
            raise SettingsError("it holds a NUL; allowed: one name a line, ended by a line feed")
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise SettingsError(f"it is not UTF-8: {error.reason} at byte {error.start}") from error
        said = msgspec.json.decode(text, type=_Line) if text.startswith("{") else _Line(text)
        bucket, key = said.bucket or self._bucket, said.key
        if key.startswith("s3://") and not said.bucket:
            bucket, key = self._split(key)
        if not bucket or not key:
            raise SettingsError(
                "it names no bucket or no key; allowed: a key with s3://BUCKET given, s3://BUCKET/KEY"
            )
        if not is_bucket_name(bucket):
            raise SettingsError(f"{bucket!r} is no name of a bucket")
        size = len(key.encode())
        if size > KEY_BYTES_MAX:
            raise SettingsError(f"its key has {size} bytes; allowed: at most {KEY_BYTES_MAX}")
        return WarmEntry(bucket, key, _range(said.range))


def _range(text: str) -> RangeSpec | None:
    if not text:
        return None
    spec = parse_range(text)
    if spec is None:
        raise SettingsError(f"range {text!r} is none; allowed: bytes=FIRST-LAST")
    return spec
