"""What a policy remembers of one segment: its extents in the order of their places, in 22 bytes each.

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
        identities: The hash of each extent, of 64 bits; see `gittins_policy`.
        is_partly_known: Rows named bytes in it before anything was known of them.
        live_bytes: What rows name in the segment; what of it is not known here was there before the process, or nobody has read it.
        size_bytes: What is freed when the segment goes.
        score: What a freed byte costs, when it was last looked at.
        tags: The group's number and the priority of each extent.
    """

    __slots__ = (
        "codes",
        "found_at",
        "identities",
        "is_partly_known",
        "known_bytes",
        "lengths",
        "live_bytes",
        "offsets",
        "place",
        "score",
        "size_bytes",
        "stamps",
        "tags",
    )

    def __init__(self, found_at: int) -> None:
        self.offsets = array("I")
        self.lengths = array("I")
        self.identities = array("Q")
        self.stamps = array("I")
        self.codes = bytearray()
        self.tags = bytearray()
        self.known_bytes = 0
        self.live_bytes = 0
        self.size_bytes = 0
        self.score = 0.0
        self.found_at = found_at
        self.place = 0
        self.is_partly_known = False

    def __len__(self) -> int:
        """Count the grains known."""
        return len(self.offsets)

    def first_at(self, offset: int) -> int:
        """Give the position of the first extent that ends above an offset."""
        position = bisect_right(self.offsets, offset)
        if position and self.offsets[position - 1] + self.lengths[position - 1] > offset:
            return position - 1
        return position

    def add(self, offset: int, length: int, identity: int, stamp: int, code: int, tag: int) -> None:
        """Remember an extent; one that is known at its offset keeps its age and takes the length, where it has grown."""
        position = bisect_left(self.offsets, offset)
        if position < len(self.offsets) and self.offsets[position] == offset:
            grown = max(0, length - self.lengths[position])
            self.lengths[position] += grown
            self.known_bytes += grown
        else:
            self.offsets.insert(position, offset)
            self.lengths.insert(position, length)
            self.identities.insert(position, identity)
            self.stamps.insert(position, stamp)
            self.codes.insert(position, code)
            self.tags.insert(position, tag)
            self.known_bytes += length
        self.size_bytes = max(self.size_bytes, offset + length)

    def put(self, offset: int, other: "SegmentResidents", position: int) -> None:
        """Take over what another segment knows of an extent that lies here now, in place of what is known at its offset."""
        stamp, code, tag = other.stamps[position], other.codes[position], other.tags[position]
        self.add(offset, other.lengths[position], other.identities[position], stamp, code, tag)
        at = bisect_left(self.offsets, offset)
        self.stamps[at], self.codes[at], self.tags[at] = stamp, code, tag

    @property
    def unknown_bytes(self) -> int:
        """Live bytes that nothing is known of."""
        return max(0, self.live_bytes - self.known_bytes)
