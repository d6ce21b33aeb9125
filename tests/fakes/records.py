"""Makers of records for tests: what a test does not say is plain, what it says stands in its arguments."""

from storage import keys
from storage.records import (
    FORMAT,
    NOWHERE,
    DirtyEntry,
    Flushed,
    ObjectRecord,
    ObjectState,
    OriginIdentity,
    PartRecord,
    PartSize,
    PartUploaded,
    Put,
    Tombstone,
    UploadCompleted,
    UploadCreated,
    UploadRecord,
    Validated,
)
from storage.types import Extent, Location

BUCKET = "bucket"


def extent(start: int, length: int, segment_id: int, offset: int = 0) -> Extent:
    """Make an extent at a place of a segment."""
    return Extent(start, start + length, Location(segment_id, offset, length, bytes(8)))


def tiny_extents(size: int) -> tuple[Extent, ...]:
    """Make the extents of a body that rides in the journal."""
    return (Extent(0, size, Location(NOWHERE.segment_id, 0, size)),) if size else ()


def record(
    version_id: int,
    extents: tuple[Extent, ...] = (),
    *,
    size: int | None = None,
    state: ObjectState = ObjectState.DIRTY,
    headers: tuple[tuple[str, str], ...] = (),
    parts: tuple[PartSize, ...] = (),
    origin: OriginIdentity | None = None,
    validated: Validated | None = None,
) -> ObjectRecord:
    """Make a version; its size is where its extents end."""
    ends = extents[-1].stop if extents else 0
    return ObjectRecord(
        FORMAT,
        version_id,
        ends if size is None else size,
        f"etag-{version_id}",
        1_700_000_000 + version_id,
        state,
        origin,
        validated or Validated(),
        headers=headers,
        parts=parts,
        extents=extents,
    )


def entry(
    key: str, version_id: int = 0, *, sequence: int = 0, size: int = 0, origin_upload_id: str = ""
) -> DirtyEntry:
    """Make a row of the flush queue; without a version it is a delete."""
    return DirtyEntry(
        FORMAT,
        sequence,
        BUCKET,
        key,
        keys.slot(BUCKET, key),
        version_id,
        size,
        "credential",
        100.0,
        origin_upload_id=origin_upload_id,
        epoch=1,
    )


def put(key: str, version: ObjectRecord, *, sequence: int = 0) -> Put:
    """Make a put of a version."""
    return Put(FORMAT, version, entry(key, version.version_id, sequence=sequence, size=version.size))


def tombstone(key: str, *, sequence: int = 0) -> Tombstone:
    """Make a delete."""
    return Tombstone(FORMAT, entry(key, sequence=sequence))


def flushed(
    sequence: int, *, is_tombstone: bool = False, etag: str = "etag", releases: bool = False
) -> Flushed:
    """Make a confirmation."""
    origin = None if is_tombstone else OriginIdentity("", 0, 0, etag)
    return Flushed(FORMAT, sequence, origin, Validated(200.0, 1), releases=releases)


def upload_created(upload_id: str, key: str) -> UploadCreated:
    """Make an opened upload."""
    return UploadCreated(FORMAT, UploadRecord(FORMAT, upload_id, BUCKET, key, 50.0, "credential"))


def part_uploaded(upload_id: str, number: int, extents: tuple[Extent, ...]) -> PartUploaded:
    """Make a part; its size is where its extents end."""
    size = extents[-1].stop if extents else 0
    return PartUploaded(FORMAT, upload_id, PartRecord(FORMAT, number, size, f"part-{number}", 7, (), extents))


def upload_completed(
    upload_id: str, key: str, version_id: int, parts: tuple[tuple[int, int], ...], *, sequence: int = 0
) -> UploadCompleted:
    """Make a Complete of parts given as number and size."""
    sizes = tuple(PartSize(number, size, f"part-{number}") for number, size in parts)
    total = sum(part.size for part in sizes)
    version = record(version_id, size=total, parts=sizes)
    return UploadCompleted(
        FORMAT, upload_id, version, entry(key, version_id, sequence=sequence, size=total), 60.0
    )
