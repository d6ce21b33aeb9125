"""Checking the rows of an index against each other and against the bytes that they name.

One walk a family, a bounded number of rows in memory. What concerns acknowledged bytes is critical, what concerns clean ones a note.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

from storage import keys
from storage.errors import (
    DamagedError,
)
from storage.family import Family
from storage.findings import Report, Severity
from storage.fsck_places import Places
from storage.index import Index
from storage.records import DirtyEntry, ObjectRecord, ObjectState, ResidentRow, SegmentRow
from storage.rows import (
    ORIGIN_UPLOADS,
    SCAN_ROWS_MAX,
    all_rows,
    decode_dirty,
    decode_extent,
    decode_object,
    decode_origin_upload,
    decode_overlay,
    decode_part,
    decode_resident,
    decode_segment,
    decode_upload,
    origin_upload_key,
    read_extents,
)
from storage.types import Extent, Location

RESIDENT_ROWS: Final = 10_000


class Owner(NamedTuple):
    """Whose bytes: a version of an object, or a part of an upload. `bucket` is the shelf that the rows stand on."""

    bucket: str
    key: str
    version_id: int
    upload_id: str = ""
    part: int = 0

    def __str__(self) -> str:
        if self.upload_id:
            return f"part {self.part} of upload {self.upload_id}"
        return str(keys.name_on(self.bucket, self.key))


@dataclass(frozen=True, slots=True)
class Damage:
    """Bytes that cannot be read, or are not those that were written; `extent` None where they are nowhere."""

    owner: Owner
    is_dirty: bool
    extent: Extent | None
    why: str

    def __str__(self) -> str:
        if self.extent is None:
            return self.why
        return f"bytes [{self.extent.start}, {self.extent.stop}): {self.why}"


class RowCheck:
    """Walks the rows. `advance` is told of the bytes of each extent, once it is done with, `on_damage` of bytes that are not right."""

    def __init__(
        self,
        index: Index,
        places: Places,
        report: Report,
        *,
        verify_clean: bool,
        advance: Callable[[int], None],
        on_damage: Callable[[Damage], None] = lambda _damage: None,
    ) -> None:
        self._on_damage = on_damage
        self._index = index
        self._places = places
        self._report = report
        self._verify_clean = verify_clean
        self._advance = advance

    def walk(self) -> None:
        """Check all families."""
        self._dirty()
        self._overlay()
        self._uploads()
        self._origin_uploads()
        self._parts()
        self._objects()
        self._segments()

    @contextmanager
    def _row(self, where: str, severity: Severity) -> Iterator[None]:
        """Tell of a row that does not decode, and go on with the next."""
        try:
            yield
        except (DamagedError, ValueError) as error:
            self._add(severity, where, f"the row cannot be read: {error}")

    def _add(self, severity: Severity, where: str, what: str) -> None:
        """Tell of rows that contradict each other."""
        if severity is Severity.CRITICAL:
            self._report.contradiction(where, what)
        else:
            self._report.add(severity, where, what)

    # --- the flush queue ---------------------------------------------------------------------------------------------

    def _dirty(self) -> None:
        for key, value in all_rows(self._index, Family.DIRTY):
            with self._row(f"dirty row {key.hex()}", Severity.CRITICAL):
                entry = decode_dirty(value)
                where = f"s3://{entry.bucket}/{entry.key} (change {entry.sequence})"
                if keys.dirty_key(entry.sequence) != key:
                    self._report.contradiction(
                        where, f"stands under the sequence {keys.split_dirty_key(key)}"
                    )
                self._dirty_entry(where, entry)

    def _dirty_entry(self, where: str, entry: DirtyEntry) -> None:
        counts = self._report.counts
        counts.quarantined += bool(entry.quarantine_reason)
        self._check_overlay(where, entry)
        record = self._object(entry.bucket, entry.key)
        if entry.is_tombstone:
            counts.dirty_deletes += 1
            if record is not None:
                self._report.contradiction(where, "an object row stands under a delete")
            return
        counts.dirty_puts += 1
        if record is None or record.version_id != entry.version_id:
            self._report.contradiction(where, "its version is not in the index")
            return
        wanted = ObjectState.QUARANTINED if entry.quarantine_reason else ObjectState.DIRTY
        if record.state is not wanted:
            self._report.contradiction(where, f"its version is {record.state.name}, not {wanted.name}")
        if record.size != entry.size:
            self._report.contradiction(where, f"its version has {record.size} bytes, not {entry.size}")
        counts.dirty_bytes += record.size
        owner = Owner(entry.bucket, entry.key, record.version_id)
        self._check_whole(where, owner, record.size, read_extents(self._index, record))

    def _check_overlay(self, where: str, entry: DirtyEntry) -> None:
        value = self._index.get(Family.OVERLAY, keys.object_key(entry.bucket, entry.key))
        overlay = None if value is None else decode_overlay(value)
        if overlay is None or overlay.sequence != entry.sequence:
            shown = "nothing" if overlay is None else f"change {overlay.sequence}"
            self._report.contradiction(where, f"listings show {shown} instead")
        elif (overlay.is_tombstone, overlay.version_id) != (entry.is_tombstone, entry.version_id):
            self._report.contradiction(where, "listings show another version of it")

    def _object(self, bucket: str, key: str) -> ObjectRecord | None:
        value = self._index.get(Family.OBJECTS, keys.object_key(bucket, key))
        return None if value is None else decode_object(value)

    def _overlay(self) -> None:
        for key, value in all_rows(self._index, Family.OVERLAY):
            where = f"{keys.split_object_key(key)}"
            with self._row(where, Severity.CRITICAL):
                overlay = decode_overlay(value)
                if self._index.get(Family.DIRTY, keys.dirty_key(overlay.sequence)) is None:
                    self._report.contradiction(
                        where, f"change {overlay.sequence} is shown, and will never be flushed"
                    )

    # --- uploads -----------------------------------------------------------------------------------------------------

    def _uploads(self) -> None:
        for key, value in all_rows(self._index, Family.UPLOADS):
            with self._row(f"upload {keys.split_upload_key(key)}", Severity.CRITICAL):
                upload = decode_upload(value)
                self._report.counts.open_uploads += not upload.completed_at_s
                self._check_at_origin(f"upload {upload.upload_id}", upload.origin_upload_id)

    def _origin_uploads(self) -> None:
        start, stop = ORIGIN_UPLOADS
        for key, value in self._index.scan(Family.META, start, stop, SCAN_ROWS_MAX):
            with self._row(f"upload at the origin {key.hex()}", Severity.NOTE):
                opened = decode_origin_upload(value)
                self._report.counts.origin_uploads += 1
                if origin_upload_key(opened.origin_upload_id) != key:
                    self._report.note(
                        f"upload {opened.origin_upload_id} at the origin", "stands under another id"
                    )

    def _check_at_origin(self, where: str, origin_upload_id: str) -> None:
        """Note what would stay at the origin, were its owner given up and the process killed before it is ended there."""
        if origin_upload_id and self._index.get(Family.META, origin_upload_key(origin_upload_id)) is None:
            self._report.note(where, f"its upload {origin_upload_id} at the origin is not known by itself")

    def _parts(self) -> None:
        counts = self._report.counts
        for key, value in all_rows(self._index, Family.PARTS):
            upload_id, number = keys.split_part_key(key)
            where = f"part {number} of upload {upload_id}"
            with self._row(where, Severity.CRITICAL):
                part = decode_part(value)
                upload = self._index.get(Family.UPLOADS, keys.upload_key(upload_id))
                if upload is None or decode_upload(upload).completed_at_s:
                    self._report.contradiction(where, "its upload is not open")
                if part.number != number:
                    self._report.contradiction(where, f"the row says {part.number}")
                counts.parts += 1
                counts.part_bytes += part.size
                owner = Owner("", "", 0, upload_id, number)
                self._check_whole(where, owner, part.size, part.extents)
                self._check_residents(where, part.extents, owner, Severity.CRITICAL)

    # --- objects -----------------------------------------------------------------------------------------------------

    def _objects(self) -> None:
        for key, value in all_rows(self._index, Family.OBJECTS):
            name = keys.split_object_key(key)
            with self._row(str(name), Severity.NOTE):
                record = decode_object(value)
                extents = read_extents(self._index, record)
                is_clean = record.state is ObjectState.CLEAN
                owner = Owner(name.shelf, name.key, record.version_id)
                severity = Severity.NOTE if is_clean else Severity.CRITICAL
                self._check_residents(str(name), extents, owner, severity)
                self._check_state(str(name), key, record)
                if is_clean:
                    self._clean_object(str(name), owner, record.size, extents)

    def _check_state(self, where: str, key: bytes, record: ObjectRecord) -> None:
        value = self._index.get(Family.OVERLAY, key)
        overlay = None if value is None else decode_overlay(value)
        if record.state is not ObjectState.CLEAN:
            if overlay is None or overlay.version_id != record.version_id:
                self._report.contradiction(where, f"it is {record.state.name}, and will never be flushed")
        elif overlay is not None:
            self._report.contradiction(where, f"a clean version stands under change {overlay.sequence}")

    def _clean_object(self, where: str, owner: Owner, size: int, extents: tuple[Extent, ...]) -> None:
        counts = self._report.counts
        counts.clean_objects += 1
        position = 0
        for extent in extents:
            if extent.start < position or extent.stop > size:
                self._report.note(where, f"bytes [{extent.start}, {extent.stop}) are out of place")
            position = extent.stop
            counts.clean_bytes += extent.location.length
            self._check_bytes(where, owner, extent, Severity.NOTE, is_read=self._verify_clean)

    # --- bytes -------------------------------------------------------------------------------------------------------

    def _check_whole(self, where: str, owner: Owner, size: int, extents: tuple[Extent, ...]) -> None:
        """Check that every byte of an acknowledged body is there and right."""
        position = 0
        for extent in extents:
            if extent.start != position:
                break
            position = extent.stop
            self._check_bytes(where, owner, extent, Severity.CRITICAL, is_read=True)
        if position != size:
            self._report.contradiction(where, f"bytes from {position} of {size} are nowhere")
            self._on_damage(
                Damage(owner, is_dirty=True, extent=None, why=f"bytes from {position} of {size} are nowhere")
            )

    def _check_bytes(
        self, where: str, owner: Owner, extent: Extent, severity: Severity, *, is_read: bool
    ) -> None:
        location = extent.location
        why = self._places.wrong(location) if is_read else self._places.missing(location)
        if why:
            damage = Damage(owner, severity is Severity.CRITICAL, extent, why)
            self._report.add(severity, where, str(damage))
            self._on_damage(damage)
        elif is_read:
            self._report.counts.verified_bytes += location.length
        self._advance(location.length)

    def _check_residents(
        self,
        where: str,
        extents: tuple[Extent, ...],
        owner: Owner,
        severity: Severity,
    ) -> None:
        """Check that the way back from each place leads here: else it would be moved or reclaimed without its row."""
        for extent in extents:
            place = extent.location
            value = self._index.get(Family.RESIDENTS, keys.resident_key(place.segment_id, place.offset))
            found = None if value is None else decode_resident(value)
            if found is None or (found.start, found.length, *_owner(found)) != (
                extent.start,
                place.length,
                *owner,
            ):
                self._add(severity, where, f"segment {place.segment_id:x} does not know it at {place.offset}")

    # --- segments ----------------------------------------------------------------------------------------------------

    def _segments(self) -> None:
        rows = {}
        for key, value in all_rows(self._index, Family.SEGMENTS):
            with self._row(f"segment {keys.split_segment_key(key):x}", Severity.NOTE):
                rows[keys.split_segment_key(key)] = decode_segment(value)
        for segment_id in sorted(rows.keys() | self._resident_segments()):
            self._segment(segment_id, rows.get(segment_id))
        self._report.counts.segments = len(self._places.segment_ids)
        for segment_id in sorted(self._places.segment_ids - rows.keys()):
            self._report.note(f"segment {segment_id:x}", "no row names it; the next start removes it")
        for name in self._places.foreign_names:
            self._report.note(f"segments/{name}", "not a segment")

    def _resident_segments(self) -> set[int]:
        """Name the segments that have residents, in one look for each."""
        found: set[int] = set()
        start = b""
        while rows := self._index.scan(Family.RESIDENTS, start, None, 1):
            segment_id, _ = keys.split_resident_key(rows[0][0])
            found.add(segment_id)
            start = keys.residents_range(segment_id)[1]
        return found

    def _segment(self, segment_id: int, row: SegmentRow | None) -> None:
        """Compare what a segment's row counts with what lives in it, and with its file."""
        where = f"segment {segment_id:x}"
        live_bytes, dirty_bytes = self._live_bytes(segment_id)
        counted = (0, 0) if row is None else (row.live_bytes, row.dirty_bytes)
        if counted != (live_bytes, dirty_bytes):
            # Counted short, it would be reclaimed though dirty bytes are in it.
            severity = Severity.CRITICAL if counted[1] < dirty_bytes else Severity.NOTE
            what = f"{counted[0]} live and {counted[1]} dirty bytes are counted, there are {live_bytes} and {dirty_bytes}"
            self._add(severity, where, what)
        if row is not None and self._places.path(segment_id) is None and not live_bytes:
            self._report.note(where, "has a row and no file")

    def _live_bytes(self, segment_id: int) -> tuple[int, int]:
        live_bytes = dirty_bytes = 0
        start, stop = keys.residents_range(segment_id)
        while rows := self._index.scan(Family.RESIDENTS, start, stop, RESIDENT_ROWS):
            for key, value in rows:
                _, offset = keys.split_resident_key(key)
                with self._row(f"resident of segment {segment_id:x} at {offset}", Severity.NOTE):
                    resident = decode_resident(value)
                    is_dirty = self._is_dirty(resident, segment_id, offset)
                    if is_dirty is None:
                        self._report.note(f"segment {segment_id:x} at {offset}", "its owner does not name it")
                        continue
                    live_bytes += resident.length
                    dirty_bytes += resident.length * is_dirty
            start = rows[-1][0] + b"\x00"
        return live_bytes, dirty_bytes

    def _is_dirty(self, resident: ResidentRow, segment_id: int, offset: int) -> bool | None:
        """Say whether the owner of a place has it as dirty bytes; None where it does not have it."""
        if resident.upload_id:
            value = self._index.get(Family.PARTS, keys.part_key(resident.upload_id, resident.part))
            extents = () if value is None else decode_part(value).extents
            return True if _holds(extents, resident.start, segment_id, offset) else None
        record = self._object(resident.bucket, resident.key)
        if record is None or record.version_id != resident.version_id:
            return None
        extents = record.extents
        if record.extents_spilled:
            value = self._index.get(Family.EXTENTS, keys.extents_key(record.version_id, resident.start))
            extents = () if value is None else (decode_extent(value),)
        if not _holds(extents, resident.start, segment_id, offset):
            return None
        return record.state is not ObjectState.CLEAN


def _owner(resident: ResidentRow) -> Owner:
    return Owner(resident.bucket, resident.key, resident.version_id, resident.upload_id, resident.part)


def _holds(extents: tuple[Extent, ...], start: int, segment_id: int, offset: int) -> bool:
    return any(extent.start == start and _is_at(extent.location, segment_id, offset) for extent in extents)


def _is_at(location: Location, segment_id: int, offset: int) -> bool:
    return location.segment_id == segment_id and location.offset == offset
