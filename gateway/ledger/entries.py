"""The lines of a ledger: what a client asked for, and what it was told.

A ledger is a text file, one JSON object a line, only ever appended to. An `Attempt` is on the disk before its request is sent;
`Acknowledged`, `Refused` or `Unanswered` follows it, and is on the disk before the next request of the same key is sent. So whatever cuts a
ledger short, it never lacks a request that was sent, and lacks an acknowledgement only of a request that was the key's last: it then
expects less than is there, never more.

Attempts of one key follow each other: one client owns it. Their numbers rise through the whole file.

Pure.
"""

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

_DECODER: Final = msgspec.json.Decoder(Line)


class LedgerError(Exception):
    """A ledger cannot be read. One line for people."""


def encode(line: Line) -> bytes:
    """Write a line, its end included."""
    return msgspec.json.encode(line) + b"\n"


def decode(text: bytes, where: str) -> Line:
    """Read a line.

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
