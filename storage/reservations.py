"""Where a body goes: cut into pieces that fit the segments.

The rules. A body longer than what its segment has left goes on in the next one, so that segments are filled to their ends. No
piece is longer than EXTENT_BYTES_MAX. A cut falls on a multiple of BLOCK_BYTES of the body, so that every block, and its checksum,
lies in one piece; hence a body of at most BLOCK_BYTES is never cut. The block that reaches a segment's end goes over it, by less than
BLOCK_BYTES: nothing is left empty at any end.

And how much there is to give: `Space` counts what was promised against the capacity and against the disk.
"""

from collections.abc import Iterator

import msgspec

from storage.errors import DiskFullError
from storage.types import BLOCK_BYTES, EXTENT_BYTES_MAX


class Reservation(msgspec.Struct, frozen=True, gc=False):
    """A range of a segment that belongs to one body: `length` bytes at `offset`."""

    segment_id: int
    offset: int
    length: int


class Piece(msgspec.Struct, frozen=True, gc=False):
    """One piece of a body; `opens_segment` where it is the first in a new one, and goes to its start."""

    length: int
    opens_segment: bool


def cut_body(length: int, *, room_bytes: int, segment_bytes: int) -> Iterator[Piece]:
    """Cut a body of `length` bytes, given what its present segment has left and the size of the ones after it."""
    assert segment_bytes >= BLOCK_BYTES, f"a segment of {segment_bytes} bytes does not hold a block"
    rest = length
    opens_segment = False
    while rest:
        if room_bytes <= 0:
            room_bytes = segment_bytes
            opens_segment = True
        blocks_bytes = -(-room_bytes // BLOCK_BYTES) * BLOCK_BYTES
        taken = min(rest, blocks_bytes, EXTENT_BYTES_MAX)
        yield Piece(taken, opens_segment)
        rest -= taken
        room_bytes -= taken
        opens_segment = False


def growth_bytes(pieces: tuple[Piece, ...], *, room_bytes: int, segment_bytes: int) -> int:
    """Say by how much the cache grows with these pieces, an open segment counting whole and a sealed one as it is filled."""
    room_bytes = max(0, room_bytes)
    filled = sum(piece.length for piece in pieces)
    if not any(piece.opens_segment for piece in pieces):
        return max(0, filled - room_bytes)
    last = max(index for index, piece in enumerate(pieces) if piece.opens_segment)
    in_last = sum(piece.length for piece in pieces[last:])
    return filled - in_last - room_bytes + max(segment_bytes, in_last)


class Space:
    """Counts promised bytes. Two bounds: the capacity, and what the disk has above its reserve.

    The disk's room is a sample of its free bytes, less what was promised and is not written yet. Promised bytes that are never written
    (a failed body) count until they are given up.
    """

    def __init__(self, *, capacity_bytes: int, disk_reserve_bytes: int) -> None:
        self.used_bytes = 0
        self.disk_room_bytes = 0
        self._capacity_bytes = capacity_bytes
        self._disk_reserve_bytes = disk_reserve_bytes
        self._unwritten_bytes = 0
        self._promised_total_bytes = 0

    def room_bytes(self, open_tails_bytes: int) -> int:
        """Say how much may still be promised for new segments, `open_tails_bytes` being free in open ones."""
        return min(self._capacity_bytes - self.used_bytes - open_tails_bytes, self.disk_room_bytes)

    def check(self, length: int, growth: int, open_tails_bytes: int) -> None:
        """Raise DiskFullError where a body of `length` bytes, by which the cache grows as `growth_bytes` says, passes a bound."""
        if self.used_bytes + open_tails_bytes + growth > self._capacity_bytes:
            raise DiskFullError(
                f"no room for {length} bytes: {self.used_bytes} of {self._capacity_bytes} are used"
            )
        if length > self.disk_room_bytes:
            raise DiskFullError(
                f"no room for {length} bytes: the disk has {self.disk_room_bytes} above its reserve"
            )

    def adopt(self, length: int) -> None:
        """Count bytes that are on the disk already."""
        self.used_bytes += length

    def promise(self, length: int) -> None:
        """Count bytes given to a body."""
        self.used_bytes += length
        self.disk_room_bytes -= length
        self._unwritten_bytes += length
        self._promised_total_bytes += length

    def settle(self, length: int) -> None:
        """Count promised bytes that are written now, or never will be."""
        self._unwritten_bytes -= length
        assert self._unwritten_bytes >= 0, "more bytes were written than promised"

    def remove(self, length: int) -> None:
        """Count bytes that are gone; the next sample shows the room."""
        self.used_bytes -= length

    def fill_disk(self) -> None:
        """Learn that the disk is full: nothing is promised until a sample says otherwise."""
        self.disk_room_bytes = min(self.disk_room_bytes, 0)

    def begin_sample(self) -> int:
        """Begin a look at the disk; the value goes to `end_sample`.

        What is written or promised during the look is then counted at least once.
        """
        return self._unwritten_bytes - self._promised_total_bytes

    def end_sample(self, begun: int, free_bytes: int) -> None:
        """Take in what the look found."""
        self.disk_room_bytes = free_bytes - (begun + self._promised_total_bytes) - self._disk_reserve_bytes
