"""Changes to clean rows, which no journal carries: what a fill, a validation or a reclaim does to the index.

They run on the writer thread between groups, each checked against the row it was planned on and dropped where the row
has moved on: a fill that comes late must never touch a newer version. Pure, over `Rows`.

None of them survives a power cut for certain. So none may be needed for an acknowledged byte to be found, and after an
unclean stop a clean row counts only once it is validated (`recovery.Recovered.trusted_epoch`).

`bucket` is the shelf of the row (`storage/keys.py`), and so the bucket itself but for versions that were asked for by the origin's id.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from storage import keys
from storage.blocks import join_extents, merge_extents
from storage.family import Family
from storage.mutations import forget_clean, move_extent
from storage.records import (
    FORMAT,
    ObjectRecord,
    ObjectState,
    OriginIdentity,
    ResidentRow,
    SegmentRow,
    Validated,
    was_written_here,
)
from storage.rows import Rows, decode_resident, decoded
from storage.types import NULL_VERSION, ByteRange, Checksum, Extent, Location, ObjectName


@dataclass(frozen=True, slots=True)
class StoreVersion:
    """Keep a version that the origin showed. `replaces` is the version id the key was known under, 0 for none."""

    bucket: str
    key: str
    record: ObjectRecord
    replaces: int

    def __call__(self, rows: Rows) -> bool:
        """Write the row; False where the key is dirty or has another version by now."""
        if rows.overlay(self.bucket, self.key) is not None:
            return False
        present = rows.object(self.bucket, self.key)
        if (present.version_id if present else 0) != self.replaces:
            return False
        if present is not None:
            rows.drop_object(self.bucket, self.key, present)
        rows.put_object(self.bucket, self.key, self.record, ())
        return True


@dataclass(frozen=True, slots=True)
class AddExtents:
    """Note filled bytes of one version."""

    bucket: str
    key: str
    version_id: int
    extents: tuple[Extent, ...]

    def __call__(self, rows: Rows) -> bool:
        """Add what is not present yet; False where the version is gone."""
        record = rows.object(self.bucket, self.key)
        if record is None or record.version_id != self.version_id:
            return False
        for extent in self.extents:
            self._add(rows, record, extent)
            record = rows.object(self.bucket, self.key) or record
        return True

    def _add(self, rows: Rows, record: ObjectRecord, extent: Extent) -> None:
        """Add one extent, joined to its neighbours where it goes on from them; no other extent is read or written."""
        near = rows.extents_in(record, ByteRange(max(0, extent.start - 1), extent.stop + 1))
        kept, _ = merge_extents(near, (extent,))
        if kept == near:
            return
        is_dirty = record.state is not ObjectState.CLEAN
        if not is_dirty:
            # A dirty extent is the journal's too, which names its place.
            kept = join_extents(kept)
        removed = [one for one in near if one not in kept]
        added = [one for one in kept if one not in near]
        rows.change_extents(self.bucket, self.key, record, removed, added)
        rows.release(removed, is_dirty=is_dirty)
        owner = ResidentRow(FORMAT, 0, 0, bucket=self.bucket, key=self.key, version_id=self.version_id)
        rows.occupy(added, owner, is_dirty=is_dirty)


@dataclass(frozen=True, slots=True)
class Shown:
    """What the origin's answer says of a version besides its bytes: `ObjectRecord.headers` and `.user_metadata`."""

    headers: tuple[tuple[str, str], ...]
    user_metadata: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MarkValidated:
    """The origin confirmed a clean version, and said how it names it.

    `checksums` are those it showed: a version that was first seen by the answer to a range has none of its own. `shown` is how it
    describes the version now, in place of what was known; None where that stays.
    """

    bucket: str
    key: str
    version_id: int
    validated: Validated
    origin: OriginIdentity
    checksums: tuple[Checksum, ...] = ()
    shown: Shown | None = None

    def __call__(self, rows: Rows) -> bool:
        """Write the time; False where the version is gone, or dirty, which no answer of the origin can be about."""
        record = rows.object(self.bucket, self.key)
        if record is None or record.version_id != self.version_id or record.state is not ObjectState.CLEAN:
            return False
        confirmed = msgspec.structs.replace(
            record,
            validated=self.validated,
            origin=self.origin,
            checksums=record.checksums or self.checksums,
            is_written_here=was_written_here(record),
        )
        if self.shown is not None:
            confirmed = msgspec.structs.replace(
                confirmed, headers=self.shown.headers, user_metadata=self.shown.user_metadata
            )
        rows.put_record(self.bucket, self.key, confirmed)
        return True


@dataclass(frozen=True, slots=True)
class ForgetVersion:
    """A clean version is not the origin's any more."""

    bucket: str
    key: str
    version_id: int

    def __call__(self, rows: Rows) -> bool:
        """Drop the row if it is still this clean version."""
        record = rows.object(self.bucket, self.key)
        if record is None or record.version_id != self.version_id or record.state is not ObjectState.CLEAN:
            return False
        rows.drop_object(self.bucket, self.key, record)
        return True


@dataclass(frozen=True, slots=True)
class ForgetClean:
    """Whatever clean version there is of a key is not to be trusted: something was passed through.

    Nor is what is known of its version `null`, which may have been overwritten, and of the one named, if any.
    """

    bucket: str
    key: str
    version_id: str = ""

    def __call__(self, rows: Rows) -> bool:
        """Drop the rows if they are clean."""
        for version_id in {"", NULL_VERSION, self.version_id}:
            forget_clean(rows, ObjectName(self.bucket, self.key, version_id).shelf, self.key)
        return True


@dataclass(frozen=True, slots=True)
class DropExtents:
    """Clean bytes that cannot be read, or do not have their checksum, are a miss from here on."""

    bucket: str
    key: str
    version_id: int
    locations: tuple[Location, ...]

    def __call__(self, rows: Rows) -> bool:
        """Forget the places; False where the version is gone or dirty."""
        record = rows.object(self.bucket, self.key)
        if record is None or record.version_id != self.version_id or record.state is not ObjectState.CLEAN:
            return False
        extents = rows.extents_of(record)
        dead = tuple(extent for extent in extents if extent.location in self.locations)
        rows.release(dead, is_dirty=False)
        rows.put_object(self.bucket, self.key, record, tuple(e for e in extents if e not in dead))
        return True


@dataclass(frozen=True, slots=True)
class DropSegment:
    """Reclaim one segment whole: every clean extent in it is forgotten.

    A segment with dirty bytes is refused: a dirty or only copy is never reclaimed.
    """

    segment_id: int

    def __call__(self, rows: Rows) -> bool:
        """Drop the rows; False where the segment holds dirty bytes, and nothing changed."""
        row = rows.segment(self.segment_id)
        if row is not None and row.dirty_bytes:
            return False
        residents = rows.scan(Family.RESIDENTS, *keys.residents_range(self.segment_id))
        owners = dict.fromkeys(
            _owner(decoded(rows, Family.RESIDENTS, key, value, decode_resident)) for key, value in residents
        )
        for owner in owners:
            self._drop(rows, owner)
        for place, _ in residents:
            rows.delete(Family.RESIDENTS, place)
        rows.delete(Family.SEGMENTS, keys.segment_key(self.segment_id))
        rows.effects.segments[self.segment_id] = SegmentRow(FORMAT, self.segment_id, 0, live_bytes=-1)
        return True

    def _drop(self, rows: Rows, owner: ResidentRow) -> None:
        assert not owner.upload_id, (
            f"segment {self.segment_id:x} holds an open upload's part but no dirty byte"
        )
        record = rows.object(owner.bucket, owner.key)
        if record is None or record.version_id != owner.version_id:
            return
        assert record.state is ObjectState.CLEAN, f"segment {self.segment_id:x} holds dirty bytes uncounted"
        kept = tuple(e for e in rows.extents_of(record) if e.location.segment_id != self.segment_id)
        rows.put_object(owner.bucket, owner.key, record, kept)


def _owner(resident: ResidentRow) -> ResidentRow:
    """Name whose bytes these are, wherever they are: an object may have many extents in one segment."""
    return msgspec.structs.replace(resident, start=0, length=0)


@dataclass(frozen=True, slots=True)
class CleanMove:
    """One clean extent that was re-appended elsewhere: at one place, or at several where segments ended."""

    resident: ResidentRow
    old: Location
    new: tuple[Location, ...]


@dataclass(frozen=True, slots=True)
class MoveClean:
    """Clean bytes have other places; each row takes them only if it is clean and still holds the old one."""

    moves: Sequence[CleanMove]

    def __call__(self, rows: Rows) -> list[bool]:
        """Move what is still where it was; say which moved."""
        return [self._move(rows, one) for one in self.moves]

    def _move(self, rows: Rows, one: CleanMove) -> bool:
        resident = one.resident
        record = rows.object(resident.bucket, resident.key)
        return (
            record is not None
            and record.version_id == resident.version_id
            and record.state is ObjectState.CLEAN
            and move_extent(rows, record, resident, one.old, one.new)
        )
