"""The index as typed rows: read through, write to a batch, and tell what changed.

`Rows` is made for one batch by the one writer thread. Reads see the batch's own writes, so that a group of mutations
applies as if one after the other, and nothing reaches the index before `batch()` is written whole. What the event loop
must know of it (the flush queue, the use of segments, bucket facts) is collected as `Effects`, the same in recovery and
at run time.

Pure: the index is a port with two reads.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar, runtime_checkable

import msgspec

from storage import keys
from storage.errors import DamagedError
from storage.family import Family, IndexWrite
from storage.records import (
    FORMAT,
    BucketFacts,
    DirtyEntry,
    ObjectHead,
    ObjectRecord,
    ObjectState,
    OriginUploadOpened,
    OverlayRecord,
    PartRecord,
    ResidentRow,
    SegmentRow,
    UploadRecord,
    WrittenHead,
    encode,
)
from storage.types import EXTENT_BYTES_MAX, INLINE_EXTENTS_MAX, ByteRange, Extent, Location, Stream

SCAN_ROWS_MAX: Final = 8_000_000
"""No single object or upload has more rows: 5 TiB, the largest object, in extents of one block are 5.2 million."""

APPLIED_SEQUENCE: Final = b"applied_sequence"
INSTANCE_ID: Final = b"instance_id"
RESERVED_IDS: Final = b"reserved_ids"
EPOCH: Final = b"epoch"

ORIGIN_UPLOAD_PREFIX: Final = b"origin_upload:"
"""In front of the origin's id: the rows of our uploads at the origin, each an OriginUploadOpened."""

ORIGIN_UPLOADS: Final = (ORIGIN_UPLOAD_PREFIX, ORIGIN_UPLOAD_PREFIX[:-1] + b";")
"""From which key to which, without the second, these rows stand in `Family.META`."""

assert ORIGIN_UPLOADS[1][-1] == ORIGIN_UPLOADS[0][-1] + 1, "the first key behind those of the prefix"


LOAD_ROWS: Final = 10_000
STEPS_MAX: Final = 1_000_000
"""No family has more steps of rows than this: it would be a loop that does not end."""


class RowSource(Protocol):
    """The two reads that rows need of an index."""

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Give a row's bytes, None where there is none."""
        ...

    def scan(self, family: Family, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Give up to `limit` rows with `start <= key < stop` in key order."""
        ...


class OpenRowSource(RowSource, Protocol):
    """A RowSource whose scans need not have an end."""

    def scan(self, family: Family, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Give up to `limit` rows with `start <= key < stop` in key order; to the family's end where `stop` is None."""
        ...


def all_rows(index: OpenRowSource, family: Family) -> Iterator[tuple[bytes, bytes]]:
    """Go through a family in key order, a bounded number of rows in memory at a time."""
    start = b""
    for _ in range(STEPS_MAX):
        rows = index.scan(family, start, None, LOAD_ROWS)
        yield from rows
        if len(rows) < LOAD_ROWS:
            return
        start = rows[-1][0] + b"\x00"
    raise AssertionError(f"more than {STEPS_MAX * LOAD_ROWS} rows in {family}")


@dataclass(slots=True)
class Effects:
    """What one batch changed that the event loop keeps in memory. Lists are in the order of the changes.

    Attributes:
        dirty_removed: What left the flush queue, for whatever reason: flushed, replaced by a newer change, discarded.
        discarded: The part of `dirty_removed` that was given up with nothing in its place.
        abandoned_uploads: Entries whose upload at the origin nobody will complete.
        origin_uploads_left: Uploads of ours at the origin that nobody will complete, and that were no entry's.
        uploads_created: Open uploads that are new.
        parts_added: Parts of open uploads, each with its upload's id; one may replace another.
        uploads_ended: Ids of uploads that were open: completed, aborted or expired.
        placed: Where extents of objects lie from here on, and whether they are dirty.
        freed: What no row names any more, each with how many of `placed` came before it.
        versions_dropped: Versions of objects that are replaced or deleted, or not believed in any more, with their sizes.
    """

    dirty_added: list[DirtyEntry] = field(default_factory=list)
    dirty_changed: list[DirtyEntry] = field(default_factory=list)
    dirty_removed: list[DirtyEntry] = field(default_factory=list)
    discarded: list[DirtyEntry] = field(default_factory=list)
    segments: dict[int, SegmentRow] = field(default_factory=dict)
    facts: list[BucketFacts] = field(default_factory=list)
    abandoned_uploads: list[DirtyEntry] = field(default_factory=list)
    origin_uploads_left: list[OriginUploadOpened] = field(default_factory=list)
    uploads_created: list[UploadRecord] = field(default_factory=list)
    parts_added: list[tuple[str, PartRecord]] = field(default_factory=list)
    uploads_ended: list[str] = field(default_factory=list)
    placed: list[tuple[ResidentRow, Location, bool]] = field(default_factory=list)
    freed: list[tuple[int, Location]] = field(default_factory=list)
    versions_dropped: list[tuple[int, int]] = field(default_factory=list)
    uploads_opened: int = 0
    uploads_closed: int = 0

    @property
    def is_empty(self) -> bool:
        """Whether the batch changed nothing of it: a version that was stored without bytes, a validation."""
        return not (
            self.segments
            or self.placed
            or self.freed
            or self.versions_dropped
            or self.dirty_added
            or self.dirty_changed
            or self.dirty_removed
            or self.discarded
            or self.facts
            or self.abandoned_uploads
            or self.origin_uploads_left
            or self.uploads_created
            or self.parts_added
            or self.uploads_ended
            or self.uploads_opened
            or self.uploads_closed
        )


T = TypeVar("T")


def _decoder(row_type: type[T]) -> Callable[[bytes], T]:
    """Make the decoder of a record type, once; making one costs more than using it.

    What it gives raises DamagedError for bytes that are no such record: RocksDB has vouched for them, so that they were written wrong.
    """
    decode = msgspec.msgpack.Decoder(row_type).decode

    def decode_row(value: bytes) -> T:
        try:
            return decode(value)
        except (msgspec.MsgspecError, ValueError) as error:
            raise DamagedError(f"a row is no {row_type.__name__}: {error}") from error

    return decode_row


decode_object = _decoder(ObjectRecord)
decode_head = _decoder(ObjectHead)
decode_written = _decoder(WrittenHead)
decode_overlay = _decoder(OverlayRecord)
decode_dirty = _decoder(DirtyEntry)
decode_upload = _decoder(UploadRecord)
decode_part = _decoder(PartRecord)
decode_segment = _decoder(SegmentRow)
decode_resident = _decoder(ResidentRow)
decode_facts = _decoder(BucketFacts)
decode_extent = _decoder(Extent)
decode_origin_upload = _decoder(OriginUploadOpened)


@runtime_checkable
class DamageListener(Protocol):
    """A source of rows that wants to hear of those that mean nothing, as of those that cannot be read."""

    def note_damage(self, why: str) -> None:
        """Hear of one, in whichever thread it was met."""
        ...


def row_at(source: RowSource, family: Family, key: bytes, decode: Callable[[bytes], T]) -> T | None:
    """Read one row; None where there is none.

    Raises:
        DamagedError: It cannot be read, or means nothing; it is named, and the source is told.
    """
    value = source.get(family, key)
    return None if value is None else decoded(source, family, key, value, decode)


def decoded(source: RowSource, family: Family, key: bytes, value: bytes, decode: Callable[[bytes], T]) -> T:
    """Decode a row that was read from a source; errors as `row_at`."""
    try:
        return decode(value)
    except DamagedError as error:
        why = f"the index has a row in {family.name.lower()} at {key!r} that means nothing: {error}"
        if isinstance(source, DamageListener):
            source.note_damage(why)
        raise DamagedError(why) from error


def rows_in(
    source: RowSource,
    family: Family,
    span: tuple[bytes, bytes],
    decode: Callable[[bytes], T],
    limit: int = SCAN_ROWS_MAX,
) -> tuple[T, ...]:
    """Read up to `limit` rows from the first key of `span` to the second, without that; errors as `row_at`."""
    rows = source.scan(family, *span, limit)
    return tuple(decoded(source, family, key, value, decode) for key, value in rows)


def origin_upload_key(origin_upload_id: str) -> bytes:
    """Give the key, in `Family.META`, of the row of an upload of ours at the origin."""
    return ORIGIN_UPLOAD_PREFIX + origin_upload_id.encode()


def read_origin_uploads(source: RowSource) -> tuple[OriginUploadOpened, ...]:
    """Give all uploads of ours that may be at the origin."""
    return rows_in(source, Family.META, ORIGIN_UPLOADS, decode_origin_upload)


def read_extents(source: RowSource, record: ObjectRecord) -> tuple[Extent, ...]:
    """Give all present extents of a version in ascending order, wherever they stand."""
    if not record.extents_spilled:
        return record.extents
    return rows_in(source, Family.EXTENTS, keys.extents_range(record.version_id), decode_extent)


def read_extents_in(source: RowSource, record: ObjectRecord, span: ByteRange) -> tuple[Extent, ...]:
    """Give the present extents of a version that have bytes in `span`, in ascending order; costs what lies there."""
    extents: Iterable[Extent] = record.extents
    if record.extents_spilled:
        # None is longer than EXTENT_BYTES_MAX, so the one that holds the first byte begins less than that before it.
        start = keys.extents_key(record.version_id, max(0, span.start - EXTENT_BYTES_MAX))
        stop = keys.extents_key(record.version_id, span.stop)
        extents = rows_in(source, Family.EXTENTS, (start, stop), decode_extent)
    return tuple(extent for extent in extents if extent.start < span.stop and extent.stop > span.start)


class Rows:
    """Typed rows over an index, with the writes of one batch laid over it."""

    def __init__(self, source: RowSource) -> None:
        self._source = source
        # Families that the batch has nothing of are not in it: most batches write rows of two or three.
        self._pending: dict[Family, dict[bytes, bytes | None]] = {}
        self.effects = Effects()

    def note_damage(self, why: str) -> None:
        """Pass on to the source that a row means nothing."""
        if isinstance(self._source, DamageListener):
            self._source.note_damage(why)

    # --- raw ---------------------------------------------------------------------------------------------------------

    def get(self, family: Family, key: bytes) -> bytes | None:
        """Read a row as the batch sees it."""
        pending = self._pending.get(family)
        return pending[key] if pending and key in pending else self._source.get(family, key)

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Write a row in the batch."""
        self._pending.setdefault(family, {})[key] = value

    def delete(self, family: Family, key: bytes) -> None:
        """Remove a row in the batch; it may be absent."""
        self._pending.setdefault(family, {})[key] = None

    def scan(
        self, family: Family, start: bytes, stop: bytes, limit: int = SCAN_ROWS_MAX
    ) -> list[tuple[bytes, bytes]]:
        """Read up to `limit` rows of a range, in key order, as the batch sees them."""
        pending = {key: value for key, value in self._pending.get(family, {}).items() if start <= key < stop}
        if not pending:
            return self._source.scan(family, start, stop, limit)
        # A row that the batch removes must not take the place of one behind it, so the limit is applied to what is
        # left.
        merged = dict(self._source.scan(family, start, stop, limit + len(pending))) | pending
        return sorted((key, value) for key, value in merged.items() if value is not None)[:limit]

    def batch(self) -> Sequence[IndexWrite]:
        """Give the writes of the batch, each key once."""
        return [
            IndexWrite(family, key, value)
            for family, pending in self._pending.items()
            for key, value in pending.items()
        ]

    # --- objects -----------------------------------------------------------------------------------------------------

    def object(self, bucket: str, key: str) -> ObjectRecord | None:
        """Read the newest known version of an object."""
        return row_at(self, Family.OBJECTS, keys.object_key(bucket, key), decode_object)

    def extents_of(self, record: ObjectRecord) -> tuple[Extent, ...]:
        """Read a version's extents."""
        return read_extents(self, record)

    def extents_in(self, record: ObjectRecord, span: ByteRange) -> tuple[Extent, ...]:
        """Read those of a version's extents that have bytes in `span`."""
        return read_extents_in(self, record, span)

    def put_object(
        self, bucket: str, key: str, record: ObjectRecord, extents: tuple[Extent, ...]
    ) -> ObjectRecord:
        """Write a version with these extents, inline or spilled as their number asks.

        The caller has dropped the extents rows of a version it replaces; residents and segments are its matter too.
        """
        is_spilled = len(extents) > INLINE_EXTENTS_MAX
        if record.extents_spilled or is_spilled:
            self._write_spilled(record, extents if is_spilled else ())
        stored = msgspec.structs.replace(
            record, extents=() if is_spilled else extents, extents_spilled=is_spilled
        )
        self.put(Family.OBJECTS, keys.object_key(bucket, key), encode(stored))
        return stored

    def put_record(self, bucket: str, key: str, record: ObjectRecord) -> None:
        """Write a version whose extents stay what and where they are; costs the same however many they are."""
        self.put(Family.OBJECTS, keys.object_key(bucket, key), encode(record))

    def change_extents(
        self, bucket: str, key: str, record: ObjectRecord, removed: Sequence[Extent], added: Sequence[Extent]
    ) -> None:
        """Put extents in the place of others, and write no other; residents and segments are the caller's matter."""
        if not record.extents_spilled:
            kept = [extent for extent in record.extents if extent not in removed]
            self.put_object(bucket, key, record, tuple(sorted((*kept, *added), key=lambda one: one.start)))
            return
        for extent in removed:
            self.delete(Family.EXTENTS, keys.extents_key(record.version_id, extent.start))
        for extent in added:
            self.put(Family.EXTENTS, keys.extents_key(record.version_id, extent.start), encode(extent))
        if len(removed) > len(added):
            self._unspill(bucket, key, record)

    def _unspill(self, bucket: str, key: str, record: ObjectRecord) -> None:
        """Bring the extents back into the object's row where they are few enough by now."""
        start, stop = keys.extents_range(record.version_id)
        extents = rows_in(self, Family.EXTENTS, (start, stop), decode_extent, INLINE_EXTENTS_MAX + 1)
        if len(extents) <= INLINE_EXTENTS_MAX:
            self.put_object(bucket, key, record, extents)

    def _write_spilled(self, record: ObjectRecord, extents: tuple[Extent, ...]) -> None:
        wanted = {keys.extents_key(record.version_id, extent.start): encode(extent) for extent in extents}
        present: dict[bytes, bytes] = {}
        if record.extents_spilled:
            present = dict(self.scan(Family.EXTENTS, *keys.extents_range(record.version_id)))
        for place in present.keys() - wanted.keys():
            self.delete(Family.EXTENTS, place)
        for place, value in wanted.items():
            if present.get(place) != value:
                self.put(Family.EXTENTS, place, value)

    def drop_object(self, bucket: str, key: str, record: ObjectRecord) -> None:
        """Remove a version's record and give up its extents."""
        self.release(self.extents_of(record), is_dirty=record.state is not ObjectState.CLEAN)
        if record.extents_spilled:
            self._write_spilled(record, ())
        self.delete(Family.OBJECTS, keys.object_key(bucket, key))
        self.effects.versions_dropped.append((record.version_id, record.size))

    # --- places in segments ------------------------------------------------------------------------------------------

    def occupy(self, extents: Iterable[Extent], owner: ResidentRow, *, is_dirty: bool) -> None:
        """Note that extents of one owner are live; `owner`'s start and length are filled in for each."""
        for extent in extents:
            location = extent.location
            row = msgspec.structs.replace(owner, start=extent.start, length=location.length)
            self.put(Family.RESIDENTS, keys.resident_key(location.segment_id, location.offset), encode(row))
            self._count(
                location.segment_id, location.length, location.length if is_dirty else 0, is_dirty=is_dirty
            )
            if not row.upload_id:
                self.effects.placed.append((row, location, is_dirty))

    def release(self, extents: Iterable[Extent], *, is_dirty: bool) -> None:
        """Note that extents are dead; their bytes stay until the segment goes."""
        for extent in extents:
            location = extent.location
            self.delete(Family.RESIDENTS, keys.resident_key(location.segment_id, location.offset))
            self._count(location.segment_id, -location.length, -location.length if is_dirty else 0)
            self.effects.freed.append((len(self.effects.placed), location))

    def clean(self, extents: Iterable[Extent], *, is_clean: bool = True) -> None:
        """Move live bytes from dirty to clean, or back."""
        for extent in extents:
            length = extent.location.length
            self._count(extent.location.segment_id, 0, -length if is_clean else length)

    def segment(self, segment_id: int) -> SegmentRow | None:
        """Read what is known of a segment."""
        return row_at(self, Family.SEGMENTS, keys.segment_key(segment_id), decode_segment)

    def put_segment(self, row: SegmentRow) -> None:
        """Write a segment's row and tell the loop."""
        self.put(Family.SEGMENTS, keys.segment_key(row.segment_id), encode(row))
        self.effects.segments[row.segment_id] = row

    def _count(self, segment_id: int, live: int, dirty: int, *, is_dirty: bool = False) -> None:
        row = self.segment(segment_id)
        if row is None:
            row = SegmentRow(FORMAT, segment_id, Stream.DIRTY if is_dirty else Stream.CLEAN)
        # A segment that was removed under a row that still named it counts from zero: never below.
        counted = msgspec.structs.replace(
            row, live_bytes=max(0, row.live_bytes + live), dirty_bytes=max(0, row.dirty_bytes + dirty)
        )
        self.put_segment(counted)

    # --- the flush queue and its overlay -----------------------------------------------------------------------------

    def overlay(self, bucket: str, key: str) -> OverlayRecord | None:
        """Read the dirty state of a key."""
        return row_at(self, Family.OVERLAY, keys.object_key(bucket, key), decode_overlay)

    def put_overlay(self, bucket: str, key: str, record: OverlayRecord) -> None:
        """Lay a dirty state over the origin's."""
        self.put(Family.OVERLAY, keys.object_key(bucket, key), encode(record))

    def drop_overlay(self, bucket: str, key: str) -> None:
        """Let the origin's state show again."""
        self.delete(Family.OVERLAY, keys.object_key(bucket, key))

    def dirty(self, sequence: int) -> DirtyEntry | None:
        """Read a row of the flush queue."""
        return row_at(self, Family.DIRTY, keys.dirty_key(sequence), decode_dirty)

    def add_dirty(self, entry: DirtyEntry) -> None:
        """Queue a change for the flush."""
        self.put(Family.DIRTY, keys.dirty_key(entry.sequence), encode(entry))
        self.effects.dirty_added.append(entry)

    def change_dirty(self, entry: DirtyEntry) -> None:
        """Write a queued change anew."""
        self.put(Family.DIRTY, keys.dirty_key(entry.sequence), encode(entry))
        self.effects.dirty_changed.append(entry)

    def remove_dirty(self, entry: DirtyEntry) -> None:
        """Take a change out of the queue."""
        self.delete(Family.DIRTY, keys.dirty_key(entry.sequence))
        self.effects.dirty_removed.append(entry)

    # --- uploads -----------------------------------------------------------------------------------------------------

    def upload(self, upload_id: str) -> UploadRecord | None:
        """Read an upload, open or completed."""
        return row_at(self, Family.UPLOADS, keys.upload_key(upload_id), decode_upload)

    def put_upload(self, upload: UploadRecord) -> None:
        """Write an upload."""
        self.put(Family.UPLOADS, keys.upload_key(upload.upload_id), encode(upload))

    def drop_upload(self, upload_id: str) -> None:
        """Remove an upload's own row."""
        self.delete(Family.UPLOADS, keys.upload_key(upload_id))

    def part(self, upload_id: str, number: int) -> PartRecord | None:
        """Read one part."""
        return row_at(self, Family.PARTS, keys.part_key(upload_id, number), decode_part)

    def parts(self, upload_id: str) -> tuple[PartRecord, ...]:
        """Read all parts of an upload in order."""
        return rows_in(self, Family.PARTS, keys.parts_range(upload_id), decode_part)

    def put_part(self, upload_id: str, part: PartRecord) -> None:
        """Write one part."""
        self.put(Family.PARTS, keys.part_key(upload_id, part.number), encode(part))

    def drop_part(self, upload_id: str, number: int) -> None:
        """Remove one part's row."""
        self.delete(Family.PARTS, keys.part_key(upload_id, number))

    # --- uploads of ours at the origin -------------------------------------------------------------------------------

    def origin_upload(self, origin_upload_id: str) -> OriginUploadOpened | None:
        """Read what is known of an upload of ours at the origin."""
        return row_at(self, Family.META, origin_upload_key(origin_upload_id), decode_origin_upload)

    def put_origin_upload(self, opened: OriginUploadOpened) -> None:
        """Know an upload of ours at the origin."""
        self.put(Family.META, origin_upload_key(opened.origin_upload_id), encode(opened))

    def drop_origin_upload(self, origin_upload_id: str) -> None:
        """Forget an upload of ours at the origin; it may be unknown."""
        self.delete(Family.META, origin_upload_key(origin_upload_id))

    # --- buckets -----------------------------------------------------------------------------------------------------

    def put_facts(self, facts: BucketFacts) -> None:
        """Keep the origin's word on a bucket; a bucket that does not exist keeps no row."""
        if facts.exists:
            self.put(Family.BUCKETS, keys.bucket_key(facts.bucket), encode(facts))
        else:
            self.delete(Family.BUCKETS, keys.bucket_key(facts.bucket))
        self.effects.facts.append(facts)
