"""What must hold of an index's rows after every batch, whatever was applied: the head of `storage/mutations.py`, checked."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

import msgspec

from storage import keys
from storage.family import Family
from storage.records import FORMAT, ObjectRecord, ObjectState, ResidentRow
from storage.rows import (
    RowSource,
    decode_dirty,
    decode_extent,
    decode_object,
    decode_overlay,
    decode_part,
    decode_resident,
    decode_segment,
    decode_upload,
    read_extents,
)
from storage.types import INLINE_EXTENTS_MAX, Extent, ObjectName

PAST_ALL_KEYS = b"\xff" * 32


def rows_of(source: RowSource, family: Family) -> list[tuple[bytes, bytes]]:
    """Read a whole family."""
    return source.scan(family, b"", PAST_ALL_KEYS, 1_000_000)


def all_rows(source: RowSource) -> dict[Family, dict[bytes, bytes]]:
    """Read everything, to compare two indexes."""
    return {family: dict(rows_of(source, family)) for family in Family}


def objects_of(source: RowSource) -> dict[ObjectName, ObjectRecord]:
    """Read all objects."""
    return {
        keys.split_object_key(key): decode_object(value) for key, value in rows_of(source, Family.OBJECTS)
    }


def check_rows(source: RowSource) -> None:
    """Raise AssertionError where rows contradict each other."""
    _check_queue(source)
    _check_spilled(source)
    _check_uploads(source)
    _check_places(source)


def _check_queue(source: RowSource) -> None:
    overlays = {
        keys.split_object_key(key): decode_overlay(value) for key, value in rows_of(source, Family.OVERLAY)
    }
    entries = {keys.split_dirty_key(key): decode_dirty(value) for key, value in rows_of(source, Family.DIRTY)}
    objects = objects_of(source)
    assert {name: overlay.sequence for name, overlay in overlays.items()} == {
        ObjectName(entry.bucket, entry.key): sequence for sequence, entry in entries.items()
    }, "a key has an overlay exactly if one dirty entry carries its sequence"
    assert len(entries) == len(overlays), "two entries of one key"
    for sequence, entry in entries.items():
        name = ObjectName(entry.bucket, entry.key)
        overlay, record = overlays[name], objects.get(name)
        assert entry.sequence == sequence, f"entry {entry.sequence} under {sequence}"
        assert overlay.is_tombstone == entry.is_tombstone, f"{name}: a put or a delete?"
        if entry.is_tombstone:
            assert record is None, f"{name} is deleted and there"
            continue
        assert record is not None, f"{name} is dirty and not there"
        assert (record.version_id, record.size, record.etag) == (
            entry.version_id,
            overlay.size,
            overlay.etag,
        ), f"{name}: {record} is not what is queued"
        is_refused = bool(entry.quarantine_reason)
        assert record.state is (ObjectState.QUARANTINED if is_refused else ObjectState.DIRTY), f"{name}"
    for name, record in objects.items():
        if record.state is not ObjectState.CLEAN:
            assert overlays[name].version_id == record.version_id, f"{name} is dirty and not queued"


def _check_spilled(source: RowSource) -> None:
    expected: dict[int, int] = {}
    for name, record in objects_of(source).items():
        extents = read_extents(source, record)
        assert record.extents_spilled == (len(extents) > INLINE_EXTENTS_MAX), f"{name}: spilled?"
        if record.extents_spilled:
            expected[record.version_id] = len(extents)
        for before, after in pairwise(extents):
            assert before.stop <= after.start, f"{name}: {before} and {after} overlap"
        if record.state is not ObjectState.CLEAN:
            assert sum(e.stop - e.start for e in extents) == record.size, f"{name}: dirty bytes are missing"
    rows = rows_of(source, Family.EXTENTS)
    assert Counter(keys.split_extents_key(key)[0] for key, _ in rows) == Counter(expected)
    for key, value in rows:
        assert keys.split_extents_key(key)[1] == decode_extent(value).start


def _check_uploads(source: RowSource) -> None:
    uploads = {
        keys.split_upload_key(key): decode_upload(value) for key, value in rows_of(source, Family.UPLOADS)
    }
    for key, value in rows_of(source, Family.PARTS):
        upload_id, number = keys.split_part_key(key)
        assert upload_id in uploads, f"part {number} of no upload"
        assert not uploads[upload_id].completed_at_s, f"part {number} of a completed upload"
        assert decode_part(value).number == number


@dataclass
class _Count:
    live: int = 0
    dirty: int = 0


@dataclass
class _Places:
    residents: dict[tuple[int, int], ResidentRow] = field(default_factory=dict)
    segments: dict[int, _Count] = field(default_factory=dict)

    def add(self, extents: tuple[Extent, ...], owner: ResidentRow, *, is_dirty: bool) -> None:
        for extent in extents:
            place = extent.location
            at = (place.segment_id, place.offset)
            assert at not in self.residents, f"{place} belongs to {owner} and {self.residents[at]}"
            self.residents[at] = msgspec.structs.replace(owner, start=extent.start, length=place.length)
            count = self.segments.setdefault(place.segment_id, _Count())
            count.live += place.length
            count.dirty += place.length if is_dirty else 0


def _check_places(source: RowSource) -> None:
    places = _Places()
    for extents, owner, is_dirty in _owned(source):
        places.add(extents, owner, is_dirty=is_dirty)
    found = {
        keys.split_resident_key(key): decode_resident(value)
        for key, value in rows_of(source, Family.RESIDENTS)
    }
    assert found == places.residents, "residents are not the extents of objects and parts"
    counted = {
        row.segment_id: _Count(row.live_bytes, row.dirty_bytes)
        for row in (decode_segment(value) for _, value in rows_of(source, Family.SEGMENTS))
        if row.live_bytes or row.dirty_bytes
    }
    assert counted == places.segments, "segments do not add up to their extents"


def _owned(source: RowSource) -> Iterator[tuple[tuple[Extent, ...], ResidentRow, bool]]:
    for name, record in objects_of(source).items():
        owner = ResidentRow(FORMAT, 0, 0, bucket=name.bucket, key=name.key, version_id=record.version_id)
        yield read_extents(source, record), owner, record.state is not ObjectState.CLEAN
    for key, value in rows_of(source, Family.PARTS):
        upload_id, number = keys.split_part_key(key)
        yield decode_part(value).extents, ResidentRow(FORMAT, 0, 0, upload_id=upload_id, part=number), True
