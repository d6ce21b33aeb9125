"""Take the tiny bodies out of journal files that are to go: copy them to segments, then let their rows name the new place.

Dirty bodies move by a `Moved` mutation through the door, which syncs the new segment before it journals the move; so at any moment the
journal names a place that is durable. Clean ones move without a journal record: should a power cut lose the copy, the block has a
wrong checksum then, and is a miss. Space is held from before the copy until the rows name it.

Every body is compared with its checksum on the way. A wrong dirty one stops everything: the file is the only copy there is. A
wrong clean one is forgotten.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

import msgspec

from storage import keys
from storage.applier import Applier
from storage.cached import CleanMove, DropExtents, MoveClean
from storage.checksums import block_matches
from storage.commit import Commit
from storage.errors import DirtyBytesLostError, DiskFailedError, SegmentGoneError, StorageError
from storage.family import Family
from storage.records import FORMAT, Moved, ObjectRecord, ObjectState, ResidentRow
from storage.rows import (
    RowSource,
    decode_extent,
    decode_object,
    decode_part,
    decode_resident,
    decoded,
    row_at,
)
from storage.segments import Reservation, SegmentStore
from storage.types import Extent, Location, Stream
from storage.workers import Workers

log = logging.getLogger(__name__)

BATCH_BODIES: Final = 256
"""Moved together: at most 8 MiB of bodies, and one sync of a segment and the journal."""

BATCHES_MAX: Final = 65_536
"""More batches than one file can hold bodies for; only owners that change all the time could reach it."""


class Body(msgspec.Struct, frozen=True):
    """A body in a journal file: whose it is, where, and whether this gateway alone has it."""

    resident: ResidentRow
    location: Location
    is_dirty: bool


class MoveOut:
    """Empties journal files of live bodies."""

    def __init__(
        self, *, index: RowSource, segments: SegmentStore, commit: Commit, applier: Applier, workers: Workers
    ) -> None:
        self._index = index
        self._segments = segments
        self._commit = commit
        self._applier = applier
        self._workers = workers

    async def empty(self, segment_ids: Sequence[int]) -> bool:
        """Move all bodies of these files; True once no row names a place in them.

        The files take in nothing more, and all that was journaled in them is applied.

        Raises:
            DirtyBytesLostError: A dirty body cannot be read or is wrong.
            DiskFullError, DiskFailedError, OverloadedError: The rest stays where it is.
            UnknownOutcomeError: A move may or may not be durable; no further commit is accepted.
        """
        for segment_id in segment_ids:
            if not await self._empty_file(segment_id):
                return False
        return True

    async def _empty_file(self, segment_id: int) -> bool:
        unowned: list[tuple[int, ResidentRow]] = []
        for _ in range(BATCHES_MAX):
            residents = await self._workers.run(self._residents, segment_id)
            if not residents:
                return True
            bodies = await self._workers.run(self._owned, segment_id, residents)
            if not bodies and residents != unowned:
                # Perhaps their owners let go of them between the two reads: then the next look does not find them.
                unowned = residents
                continue
            if not bodies:
                log.error(
                    "rows name places in journal file %x that nobody owns; see `forebay fsck`", segment_id
                )
                return False
            # What changed hands between the look and the move is found again by the next look.
            await self._move(bodies)
        return False

    # --- what is there -----------------------------------------------------------------------------------------------

    def _residents(self, segment_id: int) -> list[tuple[int, ResidentRow]]:
        start, stop = keys.residents_range(segment_id)
        rows = self._index.scan(Family.RESIDENTS, start, stop, BATCH_BODIES)
        return [
            (
                keys.split_resident_key(key)[1],
                decoded(self._index, Family.RESIDENTS, key, value, decode_resident),
            )
            for key, value in rows
        ]

    def _owned(self, segment_id: int, residents: Sequence[tuple[int, ResidentRow]]) -> list[Body]:
        """Look up the owners, whose rows hold the checksums."""
        bodies: list[Body] = []
        for offset, resident in residents:
            found = self._extent(resident)
            if found is None:
                continue
            extent, is_dirty = found
            place = extent.location
            if (place.segment_id, place.offset, place.length) == (segment_id, offset, resident.length):
                bodies.append(Body(resident, place, is_dirty))
        return bodies

    def _extent(self, resident: ResidentRow) -> tuple[Extent, bool] | None:
        if resident.upload_id:
            key = keys.part_key(resident.upload_id, resident.part)
            part = row_at(self._index, Family.PARTS, key, decode_part)
            extent = None if part is None else _starting_at(part.extents, resident.start)
            return None if extent is None else (extent, True)
        record = row_at(
            self._index, Family.OBJECTS, keys.object_key(resident.bucket, resident.key), decode_object
        )
        if record is None or record.version_id != resident.version_id:
            return None
        extent = self._object_extent(record, resident.start)
        return None if extent is None else (extent, record.state is not ObjectState.CLEAN)

    def _object_extent(self, record: ObjectRecord, start: int) -> Extent | None:
        if not record.extents_spilled:
            return _starting_at(record.extents, start)
        return row_at(self._index, Family.EXTENTS, keys.extents_key(record.version_id, start), decode_extent)

    # --- moving ------------------------------------------------------------------------------------------------------

    async def _move(self, bodies: Sequence[Body]) -> None:
        reservations: list[Reservation] = []
        try:
            for body in bodies:
                stream = Stream.DIRTY if body.is_dirty else Stream.CLEAN
                reserved = self._segments.reserve(body.location.length, stream)
                assert len(reserved) == 1, f"{body} is not a tiny body"
                reservations += reserved
            copied = await self._workers.run(self._copy_all, bodies, reservations)
            await self._commit_dirty([(b, new) for b, new in copied if b.is_dirty and new is not None])
            await self._change_clean([(b, new) for b, new in copied if not b.is_dirty])
        finally:
            self._segments.settle(reservations)

    def _copy_all(
        self, bodies: Sequence[Body], reservations: Sequence[Reservation]
    ) -> list[tuple[Body, Location | None]]:
        """Copy, and say where to; None for a clean body that is gone or wrong. Runs in a worker thread."""
        return [(body, self._copy(body, to)) for body, to in zip(bodies, reservations, strict=True)]

    def _copy(self, body: Body, to: Reservation) -> Location | None:
        old = body.location
        try:
            data, why = self._segments.read(old, 0, old.length), "wrong checksum"
        except (SegmentGoneError, DiskFailedError) as error:
            data, why = b"", str(error)
        if not block_matches(old, 0, data):
            self._lose(body, why)
            return None
        self._segments.write(to, 0, data)
        return Location(to.segment_id, to.offset, to.length, old.checksums)

    def _lose(self, body: Body, why: str) -> None:
        owner, place = _owner(body.resident), body.location
        where = f"journal file {place.segment_id:x} at {place.offset}"
        if body.is_dirty:
            log.critical("dirty bytes of %s cannot be read: %s: %s", owner, where, why)
            raise DirtyBytesLostError(f"{owner}: acknowledged bytes cannot be read: {where}: {why}")
        log.warning("cached bytes of %s are forgotten: %s: %s", owner, where, why)

    async def _commit_dirty(self, moves: Sequence[tuple[Body, Location]]) -> None:
        """Commit all together, so that they share a group; raise the first failure once all are settled."""
        errors: list[StorageError] = []

        async def commit(body: Body, new: Location) -> None:
            try:
                await self._commit.commit(Moved(FORMAT, body.resident, body.location, new))
            except StorageError as error:
                errors.append(error)

        async with asyncio.TaskGroup() as tasks:
            for body, new in moves:
                tasks.create_task(commit(body, new), name="move-body")
        if errors:
            raise errors[0]

    async def _change_clean(self, moves: Sequence[tuple[Body, Location | None]]) -> None:
        kept = [CleanMove(body.resident, body.location, (new,)) for body, new in moves if new is not None]
        if kept:
            await self._applier.change(MoveClean(kept))
        for body, new in moves:
            if new is None:
                resident = body.resident
                await self._applier.change(
                    DropExtents(resident.bucket, resident.key, resident.version_id, (body.location,))
                )


def _starting_at(extents: Sequence[Extent], start: int) -> Extent | None:
    return next((extent for extent in extents if extent.start == start), None)


def _owner(resident: ResidentRow) -> str:
    if resident.upload_id:
        return f"part {resident.part} of upload {resident.upload_id}"
    return str(keys.name_on(resident.bucket, resident.key))
