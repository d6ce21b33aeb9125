"""Take the bodies out of journal files that a repair replaces: copy them to new segments, whatever their checksums say.

What was found damaged before is copied as it is, with zeros for what cannot be read: its row keeps its checksum, so it is never served,
and whoever looks for it by hand has it in one place. What was right before and does not read back now ends the repair, which can be
repeated: no row is left that names a place in a file that goes. What is clean is dropped, as it can be fetched again. Rows change in the
repair's own state only; the new segments are orphans until the new journal names them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from storage import keys
from storage.cached import DropExtents
from storage.checksums import checksums
from storage.compaction import DropFileRows
from storage.errors import DiskFailedError
from storage.family import Family
from storage.filesystem import File, Filesystem
from storage.index import Index
from storage.journal_format import journal_path
from storage.layout import ROOT, SEGMENTS_DIRECTORY
from storage.mutations import move
from storage.records import ObjectState, ResidentRow
from storage.rows import Rows, decode_resident
from storage.segment_files import segment_path
from storage.types import MIB, Extent, Location

RESIDENTS_STEP: Final = 256
NEW_SEGMENT_BYTES: Final = 64 * MIB


@dataclass(slots=True)
class BodyRescue:
    """Moves bodies into segments of its own.

    Attributes:
        take_segment_id: Gives ids that were never given.
        is_known: Says of a place whether it is known to be damaged.
    """

    filesystem: Filesystem
    index: Index
    take_segment_id: Callable[[], int]
    is_known: Callable[[Location], bool]
    moved: int = 0
    _file: File | None = None
    _segment_id: int = 0
    _end: int = 0
    _readers: dict[int, File] = field(default_factory=dict)

    def empty(self, journal_ids: Sequence[int]) -> None:
        """Leave no row that names a place in these files. New segments are durable on return.

        Raises:
            DiskFailedError: A body that was right before does not read back; nothing is lost by it.
        """
        try:
            for segment_id in journal_ids:
                self._empty_file(segment_id)
            self._seal()
            if self.moved:
                self.filesystem.sync_directory(SEGMENTS_DIRECTORY)
        finally:
            for file in (*self._readers.values(), *((self._file,) if self._file else ())):
                file.close()
        for segment_id in journal_ids:
            rows = Rows(self.index)
            is_empty = DropFileRows((segment_id,))(rows)
            assert is_empty, f"a row still names a place in {journal_path(segment_id)}"
            self.index.write(rows.batch())

    def _empty_file(self, segment_id: int) -> None:
        start, stop = keys.residents_range(segment_id)
        while found := self.index.scan(Family.RESIDENTS, start, stop, RESIDENTS_STEP):
            rows = Rows(self.index)
            for key, value in found:
                self._move(rows, segment_id, keys.split_resident_key(key)[1], decode_resident(value))
            self.index.write(rows.batch())
            start = found[-1][0] + b"\x00"

    def _move(self, rows: Rows, segment_id: int, offset: int, resident: ResidentRow) -> None:
        found = _extent(rows, resident, segment_id, offset)
        if found is None:
            return
        extent, is_dirty = found
        if not is_dirty:
            DropExtents(resident.bucket, resident.key, resident.version_id, (extent.location,))(rows)
            return
        data = self._body(extent.location)
        move(rows, resident, extent.location, (self._append(data, extent.location.checksums),))
        self.moved += 1

    def _body(self, place: Location) -> bytes:
        """Give all bytes of a place, with zeros for those of a damaged one that cannot be read."""
        try:
            data = self._read(place)
            why = "" if checksums(data) == place.checksums else "it read back before and does not now"
        except OSError as error:
            data, why = b"", error.strerror or str(error)
        if why and not self.is_known(place):
            raise DiskFailedError(f"read {journal_path(place.segment_id)} at {place.offset}: {why}")
        return data.ljust(place.length, b"\0")

    def _read(self, place: Location) -> bytes:
        file = self._readers.get(place.segment_id)
        if file is None:
            file = self.filesystem.open_reader(journal_path(place.segment_id))
            self._readers[place.segment_id] = file
        return file.pread(place.offset, place.length)

    def _append(self, data: bytes, sums: bytes) -> Location:
        if self._file is None or self._end + len(data) > NEW_SEGMENT_BYTES:
            self._seal()
            self._open()
        assert self._file is not None, "a segment was opened"
        self._file.pwrite(self._end, data)
        place = Location(self._segment_id, self._end, len(data), sums)
        self._end += len(data)
        return place

    def _open(self) -> None:
        self.filesystem.make_directory(SEGMENTS_DIRECTORY)
        self.filesystem.sync_directory(ROOT)
        self._segment_id = self.take_segment_id()
        self._file, self._end = self.filesystem.create(segment_path(self._segment_id)), 0

    def _seal(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            try:
                file.fdatasync()
            finally:
                file.close()


def _extent(rows: Rows, resident: ResidentRow, segment_id: int, offset: int) -> tuple[Extent, bool] | None:
    """Find what a place holds by the rows of its owner; None where its owner does not name it."""
    if resident.upload_id:
        part = rows.part(resident.upload_id, resident.part)
        extents, is_dirty = (() if part is None else part.extents), True
    else:
        record = rows.object(resident.bucket, resident.key)
        if record is None or record.version_id != resident.version_id:
            return None
        extents, is_dirty = rows.extents_of(record), record.state is not ObjectState.CLEAN
    for extent in extents:
        if (extent.location.segment_id, extent.location.offset) == (segment_id, offset):
            return extent, is_dirty
    return None
