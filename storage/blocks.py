"""Which bytes of a version are here, which have to be fetched, and how new extents join the old ones.

All offsets are bytes of the version, half-open, unless a name says that they count from a location's start. Extents of one
version never overlap. Blocks exist twice: the version's blocks, counted from its first byte, are what a fill asks the origin
for; a location's blocks, counted from its own start, are what its checksums cover. The two agree for most extents, but not
for one that begins where a segment ended in the middle of a block, so nothing here assumes that they do.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from storage.types import BLOCK_BYTES, EXTENT_BYTES_MAX, ByteRange, Extent, Location


class CachedSpan(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Wanted bytes `[start, stop)` that lie `skip` bytes behind the start of `location`."""

    start: int
    stop: int
    location: Location
    skip: int

    @property
    def file_offset(self) -> int:
        """Where the first wanted byte lies in the segment."""
        return self.location.offset + self.skip

    @property
    def checked_blocks(self) -> range:
        """The location's blocks whose checksums cover the span."""
        return location_blocks(self.skip, self.skip + self.stop - self.start)


class MissingSpan(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Wanted bytes `[start, stop)` that are not here, and the bytes `[fetch_start, fetch_stop)` to ask the origin for.

    The fetch takes in the wanted bytes, reaches outwards to the version's blocks and stops short of what is cached.
    """

    start: int
    stop: int
    fetch_start: int
    fetch_stop: int


class Merged(NamedTuple):
    """The extents of a version after a fill, and the new ones, or pieces of new ones, that found their place taken."""

    extents: tuple[Extent, ...]
    dropped: tuple[Extent, ...]


def plan(byte_range: ByteRange, size: int, extents: Sequence[Extent]) -> tuple[CachedSpan | MissingSpan, ...]:
    """Cut a wanted range into spans that are here and spans that are not, in order, without gap or overlap.

    Neighbouring missing blocks come as one span, so that one ranged GET fetches them; the fetches of a plan are disjoint
    and take in no cached byte.

    Args:
        byte_range: What is wanted; within `size`.
        size: Bytes of the version.
        extents: What is here, ascending and disjoint.
    """
    assert byte_range.stop <= size, f"[{byte_range.start}, {byte_range.stop}) of a version of {size} bytes"
    spans: list[CachedSpan | MissingSpan] = []
    at = byte_range.start
    index = max(0, bisect_right(extents, at, key=_start) - 1)
    before = 0  # where the last extent so far stops
    while at < byte_range.stop:
        extent = extents[index] if index < len(extents) else None
        if extent is None or extent.start > at:
            gap = (before, size if extent is None else extent.start)
            spans.append(_missing(at, min(byte_range.stop, gap[1]), gap))
        elif extent.stop > at:
            stop = min(byte_range.stop, extent.stop)
            spans.append(CachedSpan(at, stop, extent.location, at - extent.start))
        else:
            before, index = extent.stop, index + 1
            continue
        at = spans[-1].stop
    return tuple(spans)


def merge_extents(existing: Iterable[Extent], new: Iterable[Extent]) -> Merged:
    """Add new extents to those of a version; where both hold a byte, the present one keeps it.

    The present one may be pinned by readers and is already on disk; the new one's copy becomes dead space of its segment.
    A new extent is cut only between its own blocks, since a checksum covers a whole block: what is left of a block that
    overlaps is dropped with it.
    """
    extents = sorted(existing, key=_start)
    dropped: list[Extent] = []
    for candidate in new:
        kept, lost = _fit(candidate, extents)
        dropped += lost
        if kept:
            extents = sorted([*extents, *kept], key=_start)
    return Merged(tuple(extents), tuple(dropped))


def join_extents(extents: Iterable[Extent]) -> tuple[Extent, ...]:
    """Make one extent of neighbours that lie behind each other in one segment too; what they hold stays the same.

    Only where the first one ends with a whole block, so that each checksum covers the same bytes as before, and never
    over EXTENT_BYTES_MAX.

    Args:
        extents: Ascending and disjoint.
    """
    joined: list[Extent] = []
    for extent in extents:
        if joined and _goes_on(joined[-1], extent):
            before, place = joined[-1], joined[-1].location
            length = place.length + extent.location.length
            checksums = place.checksums + extent.location.checksums
            location = Location(place.segment_id, place.offset, length, checksums)
            joined[-1] = Extent(before.start, extent.stop, location)
        else:
            joined.append(extent)
    return tuple(joined)


def location_blocks(start: int, stop: int) -> range:
    """Name a location's blocks that cover `[start, stop)`, counted in bytes from the location's own start."""
    assert 0 <= start <= stop, f"[{start}, {stop})"
    return range(start // BLOCK_BYTES, -(-stop // BLOCK_BYTES)) if start < stop else range(0)


def cut_extent(extent: Extent, first_block: int, stop_block: int) -> Extent:
    """Give the extent of blocks `[first_block, stop_block)` of an extent, counted from its own start."""
    first = first_block * BLOCK_BYTES
    length = min(stop_block * BLOCK_BYTES, extent.location.length) - first
    checksums = extent.location.checksums[8 * first_block : 8 * stop_block]
    location = Location(extent.location.segment_id, extent.location.offset + first, length, checksums)
    return Extent(extent.start + first, extent.start + first + length, location)


def _goes_on(one: Extent, other: Extent) -> bool:
    place, following = one.location, other.location
    return (
        one.stop == other.start
        and place.segment_id == following.segment_id
        and place.offset + place.length == following.offset
        and place.length % BLOCK_BYTES == 0
        and place.length + following.length <= EXTENT_BYTES_MAX
    )


def _start(extent: Extent) -> int:
    return extent.start


def _missing(start: int, stop: int, gap: tuple[int, int]) -> MissingSpan:
    first = start - start % BLOCK_BYTES
    last = -(-stop // BLOCK_BYTES) * BLOCK_BYTES
    return MissingSpan(start, stop, max(first, gap[0]), min(last, gap[1]))


def _fit(candidate: Extent, extents: Sequence[Extent]) -> tuple[list[Extent], list[Extent]]:
    """Cut a new extent, between its own blocks, into pieces that fit between the present ones and pieces that do not."""
    kept: list[Extent] = []
    dropped: list[Extent] = []
    done = 0  # blocks of the candidate that are in `kept` or `dropped`
    for first, stop in _free_blocks(candidate, extents):
        if done < first:
            dropped.append(cut_extent(candidate, done, first))
        kept.append(cut_extent(candidate, first, stop))
        done = stop
    if done < candidate.location.block_count():
        dropped.append(cut_extent(candidate, done, candidate.location.block_count()))
    return kept, dropped


def _free_blocks(candidate: Extent, extents: Sequence[Extent]) -> list[tuple[int, int]]:
    """Find the runs of the candidate's blocks that touch no present extent."""
    runs: list[tuple[int, int]] = []
    at = candidate.start
    index = max(0, bisect_right(extents, at, key=_start) - 1)
    while at < candidate.stop:
        gap_stop = extents[index].start if index < len(extents) else candidate.stop
        run = _whole_blocks(candidate, at, min(gap_stop, candidate.stop))
        if run[0] < run[1]:
            runs.append(run)
        if index >= len(extents):
            break
        at = max(at, extents[index].stop)
        index += 1
    return runs


def _whole_blocks(candidate: Extent, start: int, stop: int) -> tuple[int, int]:
    """Name the candidate's blocks that lie wholly in `[start, stop)`; its last, shorter one is whole too."""
    first = -(-(start - candidate.start) // BLOCK_BYTES)
    if stop == candidate.stop:
        return first, candidate.location.block_count()
    return first, (stop - candidate.start) // BLOCK_BYTES
