"""The lines of a ledger: what a client asked for, and what it was told.

A ledger is a text file, one JSON object a line, only ever appended to. Behind each stands a tab and the CRC-32 of the line's bytes and of
the sum before it, in hex, so that a line that was changed, lost, doubled or moved is found; lines of older programs have none, and may
stand only in front of those that have one. An `Attempt` is on the disk before its request is sent;
`Acknowledged`, `Refused` or `Unanswered` follows it, and is on the disk before the next request of the same key is sent. So whatever cuts a
ledger short, it never lacks a request that was sent, and lacks an acknowledgement only of a request that was the key's last: it then
expects less than is there, never more.

Attempts of one key follow each other: one client owns it. Their numbers rise through the whole file.

Pure.
"""

import zlib
from typing import Final

import msgspec

FORMAT: Final = 1

ATTEMPT_METADATA: Final = "x-amz-meta-forebay-attempt"
"""The metadata that names the attempt that wrote an object."""


class _Line(msgspec.Struct, frozen=True, tag_field="line", tag=str.lower, omit_defaults=True):
    """Base of all lines."""


class Begun(_Line, frozen=True):
    """The first line: which prefix the ledger is of, and the seed of its first run."""

    format: int
    place: str
    seed: int


class Attempt(_Line, frozen=True):
    """A request that changes a key is about to be sent.

    Attributes:
        number: Rises through the file.
        mark: What the object's metadata says; "" for the number itself. An upload is marked when it is opened.
        operation: put, delete, copy or complete.
        sha256: Of the body that the key then has; "" for a delete, as the two that follow.
        size: Bytes of it.
        etag: What S3 makes of it; "" also where only the answer says (a copy).
    """

    number: int
    key: str
    operation: str
    at_s: float
    sha256: str = ""
    size: int = 0
    etag: str = ""
    mark: str = ""

    @property
    def name(self) -> str:
        """What the metadata of the object says."""
        return self.mark or str(self.number)

    @property
    def is_delete(self) -> bool:
        """Whether the key is absent afterwards."""
        return self.operation == "delete"


class Acknowledged(_Line, frozen=True):
    """The attempt was answered 2xx, with this ETag."""

    number: int
    key: str
    etag: str = ""


class Unanswered(_Line, frozen=True):
    """The attempt was not answered, or answered what leaves open whether it took effect."""

    number: int
    key: str
    reason: str


class Refused(_Line, frozen=True):
    """The attempt was answered that it is not done, a 4xx: it must never come to be seen."""

    number: int
    key: str
    reason: str


class Seen(_Line, frozen=True):
    """A check read this attempt's state (0: the key never was there), so it counts as acknowledged from here on."""

    number: int
    key: str


class Broken(_Line, frozen=True):
    """A promise that was broken while the load ran, such as an upload with acknowledged parts that is gone."""

    key: str
    what: str


Line = Begun | Attempt | Acknowledged | Refused | Unanswered | Seen | Broken

_SEPARATOR: Final = b"\t"
"""JSON writes no bare tab, so the first one in a line is ours."""

_DECODER: Final = msgspec.json.Decoder(Line)


class LedgerError(Exception):
    """A ledger cannot be read. One line for people."""


class Chain:
    """The sums of a ledger's lines, each over its own line and the sum before it."""

    def __init__(self) -> None:
        self._sum: int | None = None

    def encode(self, line: Line) -> bytes:
        """Write the next line, its end included."""
        data = msgspec.json.encode(line)
        return data + _SEPARATOR + self._next(data) + b"\n"

    def decode(self, text: bytes, where: str) -> Line:
        """Read the next line.

        Raises:
            LedgerError: It is none, or not the one that was written here.
        """
        data, separator, told = text.rstrip(b"\n").partition(_SEPARATOR)
        if separator:
            if told != self._next(data):
                raise LedgerError(
                    f"{where}: its checksum is wrong: this line was changed, or lines before it are missing; the ledger proves nothing"
                )
        elif self._sum is not None:
            raise LedgerError(
                f"{where}: it has no checksum, and lines before it have one; the ledger proves nothing"
            )
        return decode(data, where)

    def _next(self, data: bytes) -> bytes:
        self._sum = zlib.crc32(data, self._sum or 0)
        return b"%08x" % self._sum


def decode(text: bytes, where: str) -> Line:
    """Read a line without its sum.

    Raises:
        LedgerError: It is none.
    """
    try:
        line = _DECODER.decode(text)
    except msgspec.DecodeError as error:
        raise LedgerError(f"{where}: not a ledger's line: {error}") from error
    if isinstance(line, Begun) and line.format != FORMAT:
        raise LedgerError(f"{where}: a ledger of format {line.format}; this program reads {FORMAT}")
    return line
