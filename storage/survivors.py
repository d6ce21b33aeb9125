"""Write again what of a segment is worth more than its space, before the segment goes.

    copy    to reserved ranges of other segments, each block held against its checksum, a batch of bounded size at a time
    rows    take the new places, each only where it still holds the old one
    drop    is reclaim's, once this is done: a row never names bytes that are not there

All of it is clean: nothing is synced. A copy that a power cut loses or leaves half written has not the checksum that its row has, and is a
miss; so is an extent that could not be copied, as it goes with its segment. Held ranges keep the new segments from being
reclaimed until the rows are there.

An extent is moved whole or not at all, as it is one row; it is where at least half of its bytes are to be kept.
"""

import logging
from bisect import bisect_right
from collections.abc import Sequence
from typing import Final, NamedTuple

from storage import keys
from storage.applier import Applier
from storage.cached import CleanMove, MoveClean
from storage.checksums import block_matches
from storage.errors import DiskFailedError, OverloadedError, SegmentGoneError
from storage.eviction import Kept, Victim
from storage.family import Family
from storage.records import ObjectState, ResidentRow
from storage.rows import (
    RowSource,
    decode_extent,
    decode_object,
    decode_resident,
    decoded,
    read_extents_in,
    row_at,
)
from storage.segments import Reservation, SegmentStore
from storage.types import BLOCK_BYTES, MIB, ByteRange, Extent, Location, Stream
from storage.workers import Workers

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 8 * MIB
"""Moved together, one longer extent excepted: so long the copy of a batch keeps a worker thread, and its rows the writer thread."""

BATCH_EXTENTS: Final = 256
SCAN_ROWS: Final = 1000


class Moved(NamedTuple):
    """What became of a victim's survivors: from where to where they moved, and whether room or disk ended it before the last."""

    pairs: list[tuple[Location, Location]]
    is_cut_short: bool


class _Found(NamedTuple):
    resident: ResidentRow
    extent: Extent
    stream: Stream


class Survivors:
    """Moves survivors; one segment at a time."""

    def __init__(self, index: RowSource, segments: SegmentStore, applier: Applier, workers: Workers) -> None:
        self._index = index
        self._segments = segments
        self._applier = applier
        self._workers = workers

    async def move(self, victim: Victim) -> Moved:
        """Move what a victim names, as far as there is room for it.

        Raises:
            UnknownOutcomeError: The index takes no writes.
        """
        pairs: list[tuple[Location, Location]] = []
        with self._segments.pin((victim.segment_id,)):
            found = await self._workers.run(self._find, victim)
            while found:
                batch = _first_batch(found)
                found = found[len(batch) :]
                try:
                    pairs += await self._move(batch)
                except (OverloadedError, DiskFailedError) as error:
                    log.info("survivors of segment %x stay behind: %s", victim.segment_id, error)
                    return Moved(pairs, is_cut_short=True)
        return Moved(pairs, is_cut_short=False)

    # --- what is there -----------------------------------------------------------------------------------------------

    def _find(self, victim: Victim) -> list[_Found]:
        """Look up the rows of what is to be kept. Runs in a worker thread."""
        start, stop = keys.residents_range(victim.segment_id)
        starts = [kept.offset for kept in victim.keep]
        found: list[_Found] = []
        while True:
            rows = self._index.scan(Family.RESIDENTS, start, stop, SCAN_ROWS)
            for key, value in rows:
                offset = keys.split_resident_key(key)[1]
                resident = decoded(self._index, Family.RESIDENTS, key, value, decode_resident)
                stream = _stream_of(victim.keep, starts, offset, resident.length)
                extent = None if stream is None else self._extent(resident)
                if extent is not None and stream is not None:
                    place = extent.location
                    if (place.segment_id, place.offset, place.length) == (
                        victim.segment_id,
                        offset,
                        resident.length,
                    ):
                        found.append(_Found(resident, extent, stream))
            if len(rows) < SCAN_ROWS:
                return found
            start = rows[-1][0] + b"\x00"

    def _extent(self, resident: ResidentRow) -> Extent | None:
        """Give the extent of a resident of a clean object; None where its owner has moved on."""
        if resident.upload_id:
            return None
        key = keys.object_key(resident.bucket, resident.key)
        record = row_at(self._index, Family.OBJECTS, key, decode_object)
        if record is None or record.version_id != resident.version_id:
            return None
        if record.state is not ObjectState.CLEAN:
            return None
        if record.extents_spilled:
            place = keys.extents_key(record.version_id, resident.start)
            return row_at(self._index, Family.EXTENTS, place, decode_extent)
        near = read_extents_in(self._index, record, ByteRange(resident.start, resident.start + 1))
        return next((extent for extent in near if extent.start == resident.start), None)

    # --- moving ------------------------------------------------------------------------------------------------------

    async def _move(self, batch: Sequence[_Found]) -> list[tuple[Location, Location]]:
        reserved: list[tuple[_Found, tuple[Reservation, ...]]] = []
        try:
            for one in batch:
                places = self._segments.reserve(one.extent.location.length, one.stream)
                reserved += [(one, places)]
            copied = await self._workers.run(self._copy_all, reserved)
            moves = [one for one in copied if one is not None]
            is_moved = await self._applier.change(MoveClean(moves)) if moves else []
        finally:
            self._segments.settle(place for _, held in reserved for place in held)
        return [
            pair
            for move, was_moved in zip(moves, is_moved, strict=True)
            if was_moved
            for pair in _pairs(move)
        ]

    def _copy_all(self, reserved: Sequence[tuple[_Found, tuple[Reservation, ...]]]) -> list[CleanMove | None]:
        """Copy, and say where to; None for what is gone or wrong. Runs in a worker thread."""
        return [self._copy(one, places) for one, places in reserved]

    def _copy(self, one: _Found, places: Sequence[Reservation]) -> CleanMove | None:
        old = one.extent.location
        new: list[Location] = []
        done = 0
        try:
            for place in places:
                first = done // BLOCK_BYTES
                for start in range(done, done + place.length, BLOCK_BYTES):
                    stop = min(start + BLOCK_BYTES, done + place.length)
                    data = self._segments.read(old, start, stop)
                    if not block_matches(old, start // BLOCK_BYTES, data):
                        log.warning(
                            "%s is not kept: wrong checksum in segment %x", one.resident, old.segment_id
                        )
                        return None
                    self._segments.write(place, start - done, data)
                count = -(-place.length // BLOCK_BYTES)
                sums = old.checksums[8 * first : 8 * (first + count)]
                new.append(Location(place.segment_id, place.offset, place.length, sums))
                done += place.length
        except SegmentGoneError:
            return None
        return CleanMove(one.resident, old, tuple(new))


def _first_batch(found: Sequence[_Found]) -> Sequence[_Found]:
    taken = size = 0
    for one in found[:BATCH_EXTENTS]:
        size += one.extent.location.length
        if taken and size > BATCH_BYTES:
            break
        taken += 1
    return found[:taken]


def _stream_of(keep: Sequence[Kept], starts: Sequence[int], offset: int, length: int) -> Stream | None:
    """Give the stream of the first of the bytes that are kept of an extent; None where they are less than half."""
    position = max(0, bisect_right(starts, offset) - 1)
    kept_bytes, stream = 0, None
    for kept in keep[position:]:
        if kept.offset >= offset + length:
            break
        common = min(kept.stop, offset + length) - max(kept.offset, offset)
        if common > 0:
            kept_bytes += common
            stream = kept.stream if stream is None else stream
    return stream if 2 * kept_bytes >= length else None


def _pairs(move: CleanMove) -> list[tuple[Location, Location]]:
    """Say which bytes of the old place lie at which of the new ones."""
    pairs: list[tuple[Location, Location]] = []
    done = 0
    for new in move.new:
        old = Location(move.old.segment_id, move.old.offset + done, new.length)
        pairs.append((old, new))
        done += new.length
    return pairs
