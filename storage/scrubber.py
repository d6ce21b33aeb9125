"""The background scrub: reads everything that rows name, slowly, and holds each block against its checksum.

A block is read on the worker pool, at most 1 MiB at a time, with its segment pinned for the read; rows are read there too, some at a time.
What the scrub found right is not noted as checked: the table of checked blocks is bounded and belongs to what is served.
A block that is wrong, twice in a row and with its row unchanged, makes its whole segment one that is checked again before anything of it
is served. Then

    clean    the block is dropped: the next read is a miss
    dirty    an alarm names the object, and says whether the origin has the same bytes. The row stays: nobody serves or flushes the bytes,
             as both check them

Blocks are read as they are served, through the page cache: rot below a page in memory shows once the page has gone. Segments that take in
bytes are left to the round after they are sealed. The journal's records are read by each compaction and each start,
the index's blocks have RocksDB's own checksums; neither is the scrub's.

It is driven by turns (`storage/upkeep.py`). Between two turns a round keeps its place; a row that changes meanwhile is met as it is then.
"""

import logging
from collections import deque
from dataclasses import dataclass
from typing import Final

from storage import keys
from storage.applier import Applier
from storage.cached import DropExtents
from storage.checksums import block_matches, block_range
from storage.clock import Clock
from storage.errors import DamagedError, DiskFailedError, NoSuchKeyError, SegmentGoneError, StorageError
from storage.family import Family
from storage.index import Index
from storage.origin.client import OriginClient
from storage.records import (
    DirtyEntry,
    ObjectRecord,
    ObjectState,
    PartRecord,
    ResidentRow,
)
from storage.rows import (
    decode_dirty,
    decode_extent,
    decode_object,
    decode_part,
    decode_resident,
    decode_upload,
    decoded,
    row_at,
    rows_in,
)
from storage.scrub import FAMILY_OF, Pace, Phase, Position
from storage.segments import SegmentStore
from storage.state import State
from storage.stats import Stats
from storage.types import BLOCK_BYTES, Extent, Location, Priority
from storage.workers import Workers

log = logging.getLogger(__name__)

ROWS_STEP: Final = 64
TARGETS_STEP: Final = 64
"""A step looks at no more rows, and takes no more places of one object: what is held, and a call on the pool, are bounded by it."""

BLOCKS_A_TURN_MAX: Final = 64
ROUND_EVERY_S: Final = 600.0
"""A round begins no sooner than this after the one before: a small cache is not read over and over."""

ALARMED_MAX: Final = 10_000
"""So many damaged dirty blocks are remembered as told of; one beyond is told of once a round."""


@dataclass(slots=True)
class ScrubParts:
    """What the scrub works with; made once by the engine."""

    index: Index
    segments: SegmentStore
    applier: Applier
    origin: OriginClient
    state: State
    workers: Workers
    clock: Clock
    stats: Stats
    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class _Target:
    """Blocks to read: whose they are, and where."""

    owner: ResidentRow
    is_dirty: bool
    extent: Extent

    @property
    def location(self) -> Location:
        """Where the bytes lie."""
        return self.extent.location


class Scrubber:
    """Goes round and round; `turn` reads as much as the pace allows."""

    def __init__(self, parts: ScrubParts) -> None:
        self._parts = parts
        self._pace = Pace(parts.bytes_per_s, parts.clock.monotonic_s())
        self._position: Position | None = None
        self._targets: deque[_Target] = deque()
        self._block = 0
        self._activity = (0, 0)
        self._round_at_s = -ROUND_EVERY_S
        self._is_index_told = False
        self._alarmed: set[tuple[int, int]] = set()

    async def turn(self) -> None:
        """Read what is due now. A row of the index that cannot be read, or means nothing, ends the round, and is told of once.

        Raises:
            DiskFailedError: The disk refused to read the index.
        """
        try:
            await self._turn()
        except DamagedError as error:
            self._position = None
            self._targets.clear()
            if not self._is_index_told:
                self._is_index_told = True
                log.critical(
                    "the index is damaged (%s); if it is not begun anew now, run `forebay fsck --repair`",
                    error,
                )

    async def _turn(self) -> None:
        parts = self._parts
        for _ in range(BLOCKS_A_TURN_MAX):
            if not self._pace.allow(parts.clock.monotonic_s(), is_busy=self._is_busy()):
                return
            if not self._targets and not await self._find_targets():
                return
            if self._targets:
                await self._scrub_next()

    def _is_busy(self) -> bool:
        """Whether bodies were handed out or taken in since the last look."""
        activity = (sum(self._parts.stats.cache_bytes.values()), self._parts.state.live_bytes)
        is_busy = activity != self._activity
        self._activity = activity
        return is_busy

    # --- what is next ------------------------------------------------------------------------------------------------

    async def _find_targets(self) -> bool:
        """Look at the next rows; False where a round has ended."""
        stats = self._parts.stats
        if self._position is None:
            now_s = self._parts.clock.monotonic_s()
            if now_s < self._round_at_s + ROUND_EVERY_S:
                return False
            self._position, self._round_at_s = Position(), now_s
            stats.scrub_round_bytes = 0
        found, self._position = await self._parts.workers.run(self._step, self._position)
        self._targets.extend(target for target in found if self._is_at_rest(target.location))
        if self._position is not None:
            return True
        stats.scrub_rounds += 1
        stats.scrub_done_at_s = self._parts.clock.wall_s()
        return False

    def _is_at_rest(self, location: Location) -> bool:
        state = self._parts.segments.state(location.segment_id)
        # One that is missing is read all the same, to find that it is.
        return state is None or (state.is_sealed and state.is_settled)

    def _step(self, position: Position) -> tuple[list[_Target], Position | None]:
        """Read the next rows; give what they name, and where to go on. Runs in a worker thread."""
        rows = self._parts.index.scan(FAMILY_OF[position.phase], position.key, None, ROWS_STEP)
        if not rows:
            return [], position.next_phase()
        targets: list[_Target] = []
        for key, value in rows:
            start = position.start if key == position.key else 0
            found = self._targets_of(position.phase, key, value, start)
            targets += found
            if len(found) >= TARGETS_STEP:
                return targets, Position(position.phase, key, found[-1].extent.stop)
            if len(targets) >= TARGETS_STEP:
                return targets, position.behind(key)
        return targets, position.behind(rows[-1][0])

    def _targets_of(self, phase: Phase, key: bytes, value: bytes, start: int) -> list[_Target]:
        """Give what a row names from `start` on, at most TARGETS_STEP places."""
        match phase:
            case Phase.DIRTY:
                return self._dirty(decoded(self._parts.index, Family.DIRTY, key, value, decode_dirty), start)
            case Phase.PARTS:
                upload_id, number = keys.split_part_key(key)
                owner = ResidentRow(1, 0, 0, upload_id=upload_id, part=number)
                part = decoded(self._parts.index, Family.PARTS, key, value, decode_part)
                extents = _from(part.extents, start)
                return [_Target(owner, is_dirty=True, extent=extent) for extent in extents]
            case Phase.CLEAN:
                return self._clean(key, value)

    def _dirty(self, entry: DirtyEntry, start: int) -> list[_Target]:
        record = self._object(entry.bucket, entry.key)
        if record is None or record.version_id != entry.version_id:
            return []
        owner = ResidentRow(1, 0, 0, bucket=entry.bucket, key=entry.key, version_id=entry.version_id)
        return [_Target(owner, is_dirty=True, extent=extent) for extent in self._extents_from(record, start)]

    def _clean(self, key: bytes, value: bytes) -> list[_Target]:
        resident = decoded(self._parts.index, Family.RESIDENTS, key, value, decode_resident)
        record = None if resident.upload_id else self._object(resident.bucket, resident.key)
        if (
            record is None
            or record.version_id != resident.version_id
            or record.state is not ObjectState.CLEAN
        ):
            return []
        extent = self._extent_at(record, resident.start)
        if extent is None:
            return []
        place = extent.location
        is_there = keys.resident_key(place.segment_id, place.offset) == key
        return [_Target(resident, is_dirty=False, extent=extent)] if is_there else []

    def _extents_from(self, record: ObjectRecord, start: int) -> tuple[Extent, ...]:
        if not record.extents_spilled:
            return _from(record.extents, start)
        first = keys.extents_key(record.version_id, start)
        _, stop = keys.extents_range(record.version_id)
        return rows_in(self._parts.index, Family.EXTENTS, (first, stop), decode_extent, TARGETS_STEP)

    def _object(self, bucket: str, key: str) -> ObjectRecord | None:
        return row_at(self._parts.index, Family.OBJECTS, keys.object_key(bucket, key), decode_object)

    def _extent_at(self, record: ObjectRecord, start: int) -> Extent | None:
        if not record.extents_spilled:
            return next((extent for extent in record.extents if extent.start == start), None)
        return row_at(
            self._parts.index, Family.EXTENTS, keys.extents_key(record.version_id, start), decode_extent
        )

    # --- one block ---------------------------------------------------------------------------------------------------

    async def _scrub_next(self) -> None:
        """Read the next block of the first target."""
        target, block = self._targets[0], self._block
        self._block += 1
        if self._block >= target.location.block_count():
            self._targets.popleft()
            self._block = 0
        await self._scrub(target, block)

    async def _scrub(self, target: _Target, block: int) -> None:
        size_bytes = block_range(target.location, block).length
        why = await self._parts.workers.run(self._wrong, target.location, block)
        self._pace.spend(size_bytes)
        self._parts.stats.scrub_bytes += size_bytes
        self._parts.stats.scrub_round_bytes += size_bytes
        if not why:
            return
        # Once more: what was read on its way out of the cache, or wrong in memory only, is right the second time.
        why = await self._parts.workers.run(self._wrong, target.location, block)
        is_named = bool(why) and await self._parts.workers.run(self._is_named, target)
        if is_named:
            await self._tell(target, block, why)

    def _wrong(self, location: Location, block: int) -> str:
        """Read a block; say what is wrong with it. Runs in a worker thread."""
        wanted = block_range(location, block)
        try:
            data = self._parts.segments.read(location, wanted.start, wanted.stop)
        except (SegmentGoneError, DiskFailedError) as error:
            return str(error)
        return "" if block_matches(location, block, data) else "wrong checksum"

    def _is_named(self, target: _Target) -> bool:
        """Whether the row still names the place, as what it was when the block was chosen. Runs in a worker thread."""
        owner, place = target.owner, target.location
        if owner.upload_id:
            part: PartRecord | None = row_at(
                self._parts.index, Family.PARTS, keys.part_key(owner.upload_id, owner.part), decode_part
            )
            return part is not None and any(extent.location == place for extent in part.extents)
        record = self._object(owner.bucket, owner.key)
        if record is None or record.version_id != owner.version_id:
            return False
        if (record.state is not ObjectState.CLEAN) is not target.is_dirty:
            return False
        extent = self._extent_at(record, target.extent.start)
        return extent is not None and extent.location == place

    async def _tell(self, target: _Target, block: int, why: str) -> None:
        place = target.location
        where = f"segment {place.segment_id:x} at {place.offset}, block {block}"
        self._parts.segments.distrust(place.segment_id)
        if not target.is_dirty:
            self._parts.stats.scrub_damaged["clean"] += 1
            await self._drop(target, f"{where}: {why}")
            return
        told = (place.segment_id, place.offset + block * BLOCK_BYTES)
        if told in self._alarmed:
            return
        if len(self._alarmed) < ALARMED_MAX:
            self._alarmed.add(told)
        self._parts.stats.scrub_damaged["dirty"] += 1
        proof = await self._proof(target.owner)
        log.critical("dirty bytes of %s are damaged: %s: %s; %s", self._name(target.owner), where, why, proof)

    async def _drop(self, target: _Target, why: str) -> None:
        owner = target.owner
        log.warning("cached bytes of %s are dropped: %s", keys.name_on(owner.bucket, owner.key), why)
        change = DropExtents(owner.bucket, owner.key, owner.version_id, (target.location,))
        try:
            await self._parts.applier.change(change)
        except StorageError as error:
            # They are checked before they are served, as they are not trusted any more.
            log.warning("they stay until they are read: %s", error)

    def _name(self, owner: ResidentRow) -> str:
        if not owner.upload_id:
            return str(keys.name_on(owner.bucket, owner.key))
        upload = row_at(self._parts.index, Family.UPLOADS, keys.upload_key(owner.upload_id), decode_upload)
        place = "" if upload is None else f" of s3://{upload.bucket}/{upload.key}"
        return f"part {owner.part} of upload {owner.upload_id}{place}"

    async def _proof(self, owner: ResidentRow) -> str:
        """Say whether the origin has the same bytes under the key."""
        record = None if owner.upload_id else self._object(owner.bucket, owner.key)
        if record is None:
            return "no other copy is known"
        try:
            found = await self._parts.origin.head_object(
                keys.name_on(owner.bucket, owner.key), priority=Priority.WARM_UP, is_covered=True
            )
        except NoSuchKeyError:
            return "the origin does not have the object"
        except StorageError as error:
            return f"the origin did not say whether it has them ({error})"
        if found is not None and (found.etag, found.size) == (record.etag, record.size):
            return f"the origin has the same bytes (ETag {found.etag})"
        return "the origin has another version"


def _from(extents: tuple[Extent, ...], start: int) -> tuple[Extent, ...]:
    return tuple(extent for extent in extents if extent.start >= start)[:TARGETS_STEP]
