"""What a policy remembers of one segment: its extents in the order of their places, in 26 bytes each.

Columns of plain numbers rather than objects, as there are millions of extents in a large cache. Long extents are kept as grains
of GRAIN_BYTES, cut where the version's own offsets are multiples of it, so that each of their bytes has the age of its own last
read. Pure.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

from storage.pins import LOW, Pins, is_pinned, with_priority
from storage.types import MIB

GRAIN_BYTES: Final = MIB
MISS_GRAINS_MAX: Final = 64
"""Of a longer span that is missed, so much is remembered at once; what is kept of it is noted as it is admitted."""


def grains(start: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Cut `length` bytes of a version from `start` on: number, distance from `start` and length of each grain."""
    position, stop = start, start + length
    while position < stop:
        number = position // GRAIN_BYTES
        end = min(stop, (number + 1) * GRAIN_BYTES)
        yield number, position - start, end - position
        position = end


def first_grains(start: int, length: int) -> Iterator[tuple[int, int, int]]:
    """Give the first MISS_GRAINS_MAX of them."""
    return islice(grains(start, length), MISS_GRAINS_MAX)


class SegmentResidents:
    """The extents of one segment that are known.

    Attributes:
        identities: The hash of each extent, of 64 bits; see `gittins_policy`.
        is_partly_known: Rows named bytes in it before anything was known of them.
        live_bytes: What rows name in the segment; what of it is not known here was there before the process, or nobody has read it.
        pinned_bytes: What of it is pinned.
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
        "pinned_bytes",
        "pins",
        "place",
        "score",
        "size_bytes",
        "stamps",
        "tags",
    )

    def __init__(self, found_at: int, pins: Pins) -> None:
        self.pins = pins
        self.pinned_bytes = 0
        self.offsets = array("I")
        self.lengths = array("I")
        self.identities = array("Q")
        # Whole units of all traffic: 32 bits would end with a million caches of it.
        self.stamps = array("Q")
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

    def object_at(self, offset: int) -> int | None:
        """Give the hash of the version at an offset, the upper half of its extents' ones; None where none is known."""
        position = self.first_at(offset)
        is_known = position < len(self.offsets) and self.offsets[position] <= offset
        return self.identities[position] >> 32 if is_known else None

    def add(self, offset: int, length: int, identity: int, stamp: int, code: int, tag: int) -> None:
        """Remember an extent; one that is known at its offset keeps its age, and takes the tag, and the length where it has grown.

        What was known of bytes that it covers is known by it from here on: no byte is counted twice.
        """
        position = bisect_left(self.offsets, offset)
        if position < len(self.offsets) and self.offsets[position] == offset:
            self.set_tag(position, tag)
            grown = max(0, length - self.lengths[position])
            if grown:
                self._uncover(position + 1, offset + length)
                self._resize(position, length)
        else:
            self._shorten_before(position, offset)
            self._uncover(position, offset + length)
            self.offsets.insert(position, offset)
            self.lengths.insert(position, 0)
            self.identities.insert(position, identity)
            self.stamps.insert(position, stamp)
            self.codes.insert(position, code)
            self.tags.insert(position, tag)
            self._resize(position, length)
        self.size_bytes = max(self.size_bytes, offset + length)

    def _resize(self, position: int, length: int) -> None:
        grown = length - self.lengths[position]
        self.lengths[position] = length
        self.known_bytes += grown
        self._count_pinned(self.tags[position], grown)

    def _shorten_before(self, position: int, stop: int) -> None:
        """Have the extent before a position end where the next begins, at the latest."""
        if position and self.offsets[position - 1] + self.lengths[position - 1] > stop:
            self._resize(position - 1, stop - self.offsets[position - 1])

    def _uncover(self, first: int, stop: int) -> None:
        """Take out the extents from a position on that begin below an offset; what one of them has beyond it stays."""
        end = bisect_left(self.offsets, stop, first)
        if end == first:
            return
        rest = self.offsets[end - 1] + self.lengths[end - 1] - stop
        if rest > 0:
            end -= 1
            self._resize(end, rest)
            self.offsets[end] = stop
        for position in range(first, end):
            self._resize(position, 0)
        for column in (self.offsets, self.lengths, self.identities, self.stamps, self.codes, self.tags):
            del column[first:end]

    def put(self, offset: int, other: "SegmentResidents", position: int) -> None:
        """Take over what another segment knows of an extent that lies here now; where bytes are known here, its age alone.

        What is known here was told of as it was placed, as moves cut it: at the end of a segment, or joined of smaller ones.
        """
        at = self.first_at(offset)
        stamp, code = other.stamps[position], other.codes[position]
        if at < len(self.offsets) and self.offsets[at] <= offset:
            self.stamps[at], self.codes[at] = stamp, code
        else:
            length, identity = other.lengths[position], other.identities[position]
            self.add(offset, length, identity, stamp, code, other.tags[position])

    def take_out(self, position: int) -> None:
        """Forget the bytes of an extent that lies elsewhere now: it is not to become a ghost when the rest goes."""
        self._resize(position, 0)

    # --- what is pinned ----------------------------------------------------------------------------------------------

    def set_tag(self, position: int, tag: int) -> None:
        """Put an extent under another group or priority."""
        if tag == self.tags[position]:
            return
        self._count_pinned(self.tags[position], -self.lengths[position])
        self.tags[position] = tag
        self._count_pinned(tag, self.lengths[position])

    def set_priority(self, start: int, stop: int, priority: int) -> None:
        """Put the extents that begin between two offsets under another priority."""
        for position in range(bisect_left(self.offsets, start), bisect_left(self.offsets, stop)):
            self.set_tag(position, with_priority(self.tags[position], priority))

    def tag_in(self, start: int, stop: int) -> int | None:
        """Give the tag of the first extent with bytes between two offsets; None where none is known."""
        return self.tags[self.first_at(start)] if self.overlaps(start, stop) else None

    def _count_pinned(self, tag: int, size: int) -> None:
        if is_pinned(tag):
            self.pinned_bytes += size
            self.pins.count(tag, size)

    def _pinned(self, start: int, stop: int) -> Iterator[int]:
        """Go through the positions of the pinned extents with bytes between two offsets."""
        if not self.pinned_bytes:
            return
        position = self.first_at(start)
        while position < len(self.offsets) and self.offsets[position] < stop:
            if is_pinned(self.tags[position]):
                yield position
            position += 1

    def pinned_in(self, start: int, stop: int) -> int:
        """Count the bytes of the pinned extents that have some between two offsets."""
        return sum(self.lengths[position] for position in self._pinned(start, stop))

    def unpin(self, start: int, stop: int) -> None:
        """Pin the extents no more that have bytes between two offsets."""
        for position in self._pinned(start, stop):
            self.set_tag(position, with_priority(self.tags[position], LOW))

    def unpin_others(self, start: int, stop: int, spans: Sequence[tuple[int, int]]) -> None:
        """Pin the extents no more that begin between two offsets and in none of the spans, which are in order."""
        begins = [begin for begin, _ in spans]
        for position in self._pinned(start, stop):
            offset = self.offsets[position]
            place = bisect_right(begins, offset) - 1
            if place < 0 or offset >= spans[place][1]:
                self.set_tag(position, with_priority(self.tags[position], LOW))

    def overlaps(self, start: int, stop: int) -> bool:
        """Whether anything is known of the bytes between two offsets."""
        position = self.first_at(start)
        return position < len(self.offsets) and self.offsets[position] < stop

    def known_in(self, start: int, stop: int) -> int:
        """Count the known bytes of the extents between two offsets, which no extent crosses."""
        first, end = bisect_left(self.offsets, start), bisect_left(self.offsets, stop)
        return sum(self.lengths[first:end])

    @property
    def unknown_bytes(self) -> int:
        """Live bytes that nothing is known of."""
        return max(0, self.live_bytes - self.known_bytes)
