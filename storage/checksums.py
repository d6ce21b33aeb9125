"""Checksums of blocks, and which blocks were found right in this process.

A location carries one XXH3-64 for each block of BLOCK_BYTES counted from the location's own start, the last one shorter. Files
hold no header: the row that names a place also says what must be there, so bytes of another place never pass for it.
"""

from typing import Final

import xxhash

from storage.types import BLOCK_BYTES, ByteRange, Location

CHECKSUM_BYTES: Final = 8
"""An XXH3-64, big-endian."""


class BlockChecksums:
    """Gathers the checksums of one location's bytes, fed in order in pieces of any size."""

    __slots__ = ("_block", "_done", "_missing")

    def __init__(self) -> None:
        self._done = bytearray()
        self._block = xxhash.xxh3_64()
        self._missing = BLOCK_BYTES

    def update(self, data: bytes | bytearray | memoryview) -> None:
        """Take the next bytes. Hashing runs at several GB/s and lets other threads run meanwhile."""
        rest = memoryview(data).cast("B")
        while rest:
            piece = rest[: self._missing]
            rest = rest[len(piece) :]
            self._block.update(piece)
            self._missing -= len(piece)
            if not self._missing:
                self._done += self._block.digest()
                self._block.reset()
                self._missing = BLOCK_BYTES

    def digest(self) -> bytes:
        """Give the checksums of all bytes so far; more may follow."""
        if self._missing == BLOCK_BYTES:
            return bytes(self._done)
        return bytes(self._done) + self._block.digest()


def checksums(data: bytes | bytearray | memoryview) -> bytes:
    """Give the block checksums of a whole location's bytes."""
    gathered = BlockChecksums()
    gathered.update(data)
    return gathered.digest()


def block_range(location: Location, block: int) -> ByteRange:
    """Say which bytes of a location, counted from its start, are its block number `block`."""
    assert 0 <= block < location.block_count(), f"{location} has no block {block}"
    start = block * BLOCK_BYTES
    return ByteRange(start, min(start + BLOCK_BYTES, location.length))


def block_matches(location: Location, block: int, data: bytes) -> bool:
    """Say whether `data` is block number `block` of a location; a location without checksums matches nothing."""
    first = block * CHECKSUM_BYTES
    return (
        len(data) == block_range(location, block).length
        and xxhash.xxh3_64_digest(data) == location.checksums[first : first + CHECKSUM_BYTES]
    )


class VerifiedBlocks:
    """Remembers blocks that were checked; forgetting one costs a check, never a wrong byte.

    A whole block is a bit of its segment's bitmap, at its start in units of BLOCK_BYTES: two whole blocks that do not overlap
    never share a bit. A shorter block is remembered by its exact start, as many of them may begin in one such unit; so many of
    these are kept as the bound says, then all of the segment seen first are dropped.
    """

    def __init__(self, short_blocks_max: int) -> None:
        self._short_blocks_max = short_blocks_max
        self._whole: dict[int, int] = {}
        self._short: dict[int, set[int]] = {}
        self._short_count = 0

    def add(self, location: Location, block: int) -> None:
        """Remember that this block was found right."""
        start = location.offset + block * BLOCK_BYTES
        if block_range(location, block).length == BLOCK_BYTES:
            self._whole[location.segment_id] = (
                self._whole.get(location.segment_id, 0) | 1 << start // BLOCK_BYTES
            )
            return
        starts = self._short.setdefault(location.segment_id, set())
        if start not in starts:
            starts.add(start)
            self._short_count += 1
        while self._short_count > self._short_blocks_max:
            self._drop_short(next(iter(self._short)))

    def __contains__(self, place: tuple[Location, int]) -> bool:
        """Whether a location's block is known to be right."""
        location, block = place
        start = location.offset + block * BLOCK_BYTES
        if block_range(location, block).length == BLOCK_BYTES:
            return bool(self._whole.get(location.segment_id, 0) >> start // BLOCK_BYTES & 1)
        return start in self._short.get(location.segment_id, ())

    def forget(self, segment_id: int) -> None:
        """Drop what is known of a segment."""
        self._whole.pop(segment_id, None)
        self._drop_short(segment_id)

    def _drop_short(self, segment_id: int) -> None:
        self._short_count -= len(self._short.pop(segment_id, ()))
