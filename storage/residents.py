"""What a policy remembers of one segment: its extents in the order of their places, in 26 bytes each.

Columns of plain numbers rather than objects, as there are millions of extents in a large cache. Long extents are kept as grains
of GRAIN_BYTES, cut where the version's own offsets are multiples of it, so that each of their bytes has the age of its own last
read. Pure.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Final

from storage.types import MIB

GRAIN_BYTES: Final = MIB


def grains(start: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Cut `length` bytes of a version from `start` on: number, distance from `start` and length of each grain."""
    position, stop = start, start + length
    while position < stop:
        number = position // GRAIN_BYTES
        end = min(stop, (number + 1) * GRAIN_BYTES)
        yield number, position - start, end - position
        position = end


class SegmentResidents:
    """The extents of one segment that are known.

    Attributes:
        live_bytes: What rows name in the segment; what of it is not known here was there before the process, or nobody has read it.
        size_bytes: What is freed when the segment goes.
        score: What a freed byte costs, when it was last looked at.
        tags: The group's number and the priority of each extent.
    """

    __slots__ = (
        "codes",
        "found_at",
        "grain_numbers",
        "known_bytes",
        "lengths",
        "live_bytes",
        "offsets",
        "place",
        "score",
        "size_bytes",
        "stamps",
        "tags",
        "version_ids",
    )

    def __init__(self, found_at: int) -> None:
        self.offsets = array("I")
        self.lengths = array("I")
        self.version_ids = array("Q")
        self.grain_numbers = array("I")
        self.stamps = array("I")
        self.codes = bytearray()
        self.tags = bytearray()
        self.known_bytes = 0
        self.live_bytes = 0
        self.size_bytes = 0
        self.score = 0.0
        self.found_at = found_at
        self.place = 0

    def __len__(self) -> int:
        """Count the grains known."""
        return len(self.offsets)

    def first_at(self, offset: int) -> int:
        """Give the position of the first extent that ends above an offset."""
        position = bisect_right(self.offsets, offset)
        if position and self.offsets[position - 1] + self.lengths[position - 1] > offset:
            return position - 1
        return position

    def add(  # noqa: PLR0913, PLR0917 - one of each column
        self, offset: int, length: int, version_id: int, grain_number: int, stamp: int, code: int, tag: int
    ) -> bool:
        """Remember an extent; False where one is known at its offset."""
        position = bisect_left(self.offsets, offset)
        if position < len(self.offsets) and self.offsets[position] == offset:
            return False
        self.offsets.insert(position, offset)
        self.lengths.insert(position, length)
        self.version_ids.insert(position, version_id)
        self.grain_numbers.insert(position, grain_number)
        self.stamps.insert(position, stamp)
        self.codes.insert(position, code)
        self.tags.insert(position, tag)
        self.known_bytes += length
        self.size_bytes = max(self.size_bytes, offset + length)
        return True

    def put(self, offset: int, other: "SegmentResidents", position: int) -> None:
        """Take over what another segment knows of an extent that lies here now, in place of what is known at its offset."""
        at = bisect_left(self.offsets, offset)
        stamp, code, tag = other.stamps[position], other.codes[position], other.tags[position]
        if at < len(self.offsets) and self.offsets[at] == offset:
            self.stamps[at], self.codes[at], self.tags[at] = stamp, code, tag
            return
        length, version_id = other.lengths[position], other.version_ids[position]
        self.add(offset, length, version_id, other.grain_numbers[position], stamp, code, tag)

    @property
    def unknown_bytes(self) -> int:
        """Live bytes that nothing is known of."""
        return max(0, self.live_bytes - self.known_bytes)
