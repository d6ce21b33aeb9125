"""What each mutation does to the index: the one `apply`, used when a group commits and when recovery replays it.

Pure and total. A mutation is applied to rows that may be ahead of it (a compacted journal leaves out what is dead and
holds rows as they were later) or that lost clean rows (a rebuilt index), so a mutation whose subject is gone does
nothing: `Flushed` of a superseded sequence, a part of an aborted upload, `Moved` of bytes that were overwritten.

Invariants after each mutation, asserted by `tests/unit/storage/test_mutations.py`:
    * a key has an overlay row if and only if one dirty entry, the newest, carries its sequence;
    * an object row that is not CLEAN belongs to the overlay's version;
    * residents, and the live and dirty bytes of each segment, add up to the extents of objects and parts;
    * an upload of ours at the origin that was opened by a mutation, and is named by an open upload or a dirty entry, has a row.

What the rows of uploads at the origin are for: one that is named by nothing is left over, and is aborted however often a
process dies before it is. So a row goes only when the origin has dropped or completed its upload.
"""

from collections.abc import Iterable, Sequence
from typing import Final, assert_never

import msgspec

from storage.family import Family
from storage.records import (
    FORMAT,
    TINY_SEGMENT_ID,
    Attempted,
    DirtyEntry,
    Discarded,
    EpochEnded,
    EpochStarted,
    FactsLearnt,
    Flushed,
    Forgotten,
    IdsReserved,
    Moved,
    Mutation,
    ObjectRecord,
    ObjectState,
    OriginUploadEnded,
    OriginUploadOpened,
    OverlayRecord,
    PartRecord,
    PartUploaded,
    PointerSet,
    Put,
    Quarantined,
    Released,
    ResidentRow,
    Tombstone,
    UploadAborted,
    UploadCompleted,
    UploadCreated,
    UploadPassed,
    UploadRecord,
    encode,
)
from storage.rows import EPOCH, RESERVED_IDS, Rows
from storage.types import ByteRange, Extent, Location

POINTER_PREFIX: Final = b"pointer:"


def apply(rows: Rows, sequence: int, mutation: Mutation) -> None:  # noqa: C901, PLR0912, PLR0915 - one arm a mutation, no logic
    """Apply one mutation to the rows of a batch."""
    match mutation:
        case Put():
            _put(rows, sequence, mutation.record, mutation.record.extents, mutation.entry)
        case Tombstone():
            _tombstone(rows, sequence, mutation.entry)
        case Flushed():
            _flushed(rows, mutation)
        case Attempted():
            _attempted(rows, mutation)
        case OriginUploadOpened():
            _origin_upload_opened(rows, mutation)
        case OriginUploadEnded():
            _origin_upload_ended(rows, mutation.origin_upload_id)
        case Quarantined():
            # An entry without a reason counts as queued.
            _mark(rows, mutation.sequence, ObjectState.QUARANTINED, mutation.reason or "refused")
        case Released():
            _mark(rows, mutation.sequence, ObjectState.DIRTY, "")
        case Discarded():
            _discarded(rows, mutation.sequence)
        case Forgotten():
            forget_clean(rows, mutation.bucket, mutation.key)
        case UploadCreated():
            _upload_created(rows, mutation.upload)
        case PartUploaded():
            _part_uploaded(rows, mutation.upload_id, mutation.part)
        case UploadCompleted():
            _upload_completed(rows, sequence, mutation)
        case UploadAborted():
            _upload_aborted(rows, mutation.upload_id)
        case UploadPassed():
            _upload_passed(rows, mutation)
        case Moved():
            _moved(rows, mutation)
        case IdsReserved():
            rows.put(Family.META, RESERVED_IDS, encode(mutation))
        case EpochStarted() | EpochEnded():
            rows.put(Family.META, EPOCH, encode(mutation))
        case FactsLearnt():
            rows.put_facts(mutation.facts)
        case PointerSet():
            rows.put(
                Family.META,
                POINTER_PREFIX + f"{mutation.bucket}/{mutation.target}".encode(),
                encode(mutation),
            )
        case _:
            assert_never(mutation)


def stamp(mutation: Mutation, sequence: int, tiny: Location | None) -> Mutation:
    """Give a mutation its sequence, and the place of its tiny body, before it is encoded.

    The caller of commit knows neither: the sequence is the journal's next, and a tiny body lies in the group's own
    frame. Asserts what must not get into a journal: a version whose bytes are not all there, or are nowhere.
    """
    match mutation:
        case Put(record=record, entry=entry):
            assert record.version_id == entry.version_id, f"{record.version_id} queued as {entry.version_id}"
            assert not record.extents_spilled, "a journaled version has all its extents with it"
            placed = _placed(record.extents, tiny, record.size)
            return msgspec.structs.replace(
                mutation,
                entry=msgspec.structs.replace(entry, sequence=sequence),
                record=msgspec.structs.replace(record, extents=placed),
            )
        case Tombstone(entry=entry) | UploadCompleted(entry=entry):
            assert tiny is None, f"a body for {mutation}"
            return msgspec.structs.replace(mutation, entry=msgspec.structs.replace(entry, sequence=sequence))
        case PartUploaded(part=part):
            placed = _placed(part.extents, tiny, part.size)
            return msgspec.structs.replace(mutation, part=msgspec.structs.replace(part, extents=placed))
        case _:
            assert tiny is None, f"a body for {mutation}"
            return mutation


def locations_of(mutation: Mutation) -> tuple[Location, ...]:
    """Name the places whose bytes a mutation promises: their segments are synced before it is journaled."""
    match mutation:
        case Put(record=record):
            return tuple(extent.location for extent in record.extents)
        case PartUploaded(part=part):
            return tuple(extent.location for extent in part.extents)
        case Moved(new=new):
            return (new,)
        case _:
            return ()


def _placed(extents: tuple[Extent, ...], tiny: Location | None, size: int) -> tuple[Extent, ...]:
    if tiny is not None:
        assert len(extents) == 1, "a tiny body is one extent"
        assert extents[0].location.segment_id == TINY_SEGMENT_ID, f"a tiny body at {extents[0].location}"
        extents = (Extent(0, tiny.length, tiny),)
    position = 0
    for extent in extents:
        assert extent.start == position, f"bytes [{position}, {extent.start}) are missing"
        assert extent.location.segment_id != TINY_SEGMENT_ID, "a tiny body that did not come along"
        position = extent.stop
    assert position == size, f"{position} bytes of {size}"
    return extents


# --- objects ---------------------------------------------------------------------------------------------------------


def _put(
    rows: Rows, sequence: int, record: ObjectRecord, extents: tuple[Extent, ...], entry: DirtyEntry
) -> None:
    assert entry.sequence == sequence, f"entry {entry.sequence} applied as {sequence}"
    assert record.state is not ObjectState.CLEAN, "an acknowledged version starts dirty"
    _supersede(rows, entry.bucket, entry.key)
    rows.put_object(entry.bucket, entry.key, record, extents)
    owner = ResidentRow(FORMAT, 0, 0, bucket=entry.bucket, key=entry.key, version_id=record.version_id)
    rows.occupy(extents, owner, is_dirty=True)
    storage_class = next(
        (value for name, value in record.headers if name == "x-amz-storage-class"), "STANDARD"
    )
    overlay = OverlayRecord(
        FORMAT,
        sequence,
        is_tombstone=False,
        version_id=record.version_id,
        size=record.size,
        etag=record.etag,
        last_modified_s=record.last_modified_s,
        storage_class=storage_class,
        checksums=record.checksums,
    )
    rows.put_overlay(entry.bucket, entry.key, overlay)
    rows.add_dirty(entry)


def _tombstone(rows: Rows, sequence: int, entry: DirtyEntry) -> None:
    assert entry.sequence == sequence, f"entry {entry.sequence} applied as {sequence}"
    _supersede(rows, entry.bucket, entry.key)
    rows.put_overlay(entry.bucket, entry.key, OverlayRecord(FORMAT, sequence, is_tombstone=True))
    rows.add_dirty(entry)


def _supersede(rows: Rows, bucket: str, key: str) -> None:
    """Drop the key's present version and its queued change: a newer state takes their place."""
    record = rows.object(bucket, key)
    if record is not None:
        rows.drop_object(bucket, key, record)
    overlay = rows.overlay(bucket, key)
    if overlay is not None:
        _unqueue(rows, overlay.sequence)


def _unqueue(rows: Rows, sequence: int) -> None:
    entry = rows.dirty(sequence)
    if entry is None:
        return
    rows.remove_dirty(entry)
    if entry.origin_upload_id:
        rows.effects.abandoned_uploads.append(entry)


def _flushed(rows: Rows, mutation: Flushed) -> None:
    entry = rows.dirty(mutation.sequence)
    if entry is None:
        return
    rows.remove_dirty(entry)
    rows.drop_overlay(entry.bucket, entry.key)
    if entry.origin_upload_id:
        rows.drop_origin_upload(entry.origin_upload_id)
    if entry.is_tombstone:
        return
    record = _newest(rows, entry)
    extents = rows.extents_of(record)
    is_dirty = record.state is not ObjectState.CLEAN
    if mutation.releases:
        rows.release(extents, is_dirty=is_dirty)
    elif is_dirty:
        rows.clean(extents)
    flushed = msgspec.structs.replace(
        record,
        state=ObjectState.CLEAN,
        origin=mutation.origin,
        validated=mutation.validated,
        # A change that was journaled before there was the mark gets it here.
        is_written_here=True,
    )
    rows.put_object(entry.bucket, entry.key, flushed, () if mutation.releases else extents)


def _newest(rows: Rows, entry: DirtyEntry) -> ObjectRecord:
    record = rows.object(entry.bucket, entry.key)
    assert record is not None, f"dirty entry {entry.sequence} has no object row"
    assert record.version_id == entry.version_id, (
        f"entry {entry.sequence}: {record.version_id} is not its version"
    )
    return record


def _attempted(rows: Rows, mutation: Attempted) -> None:
    entry = rows.dirty(mutation.sequence)
    if entry is not None:
        rows.change_dirty(
            msgspec.structs.replace(
                entry,
                origin_upload_id=mutation.origin_upload_id,
                origin_parts_done=mutation.origin_parts_done,
            )
        )


def _origin_upload_opened(rows: Rows, mutation: OriginUploadOpened) -> None:
    """Let the change or the client's upload name it; what it replaces, or it itself where that is gone, is left over."""
    rows.put_origin_upload(mutation)
    upload = rows.upload(mutation.upload_id) if mutation.upload_id else None
    entry = rows.dirty(mutation.sequence) if mutation.sequence else None
    if upload is not None and not upload.completed_at_s:
        _leave_origin_upload(rows, upload.origin_upload_id, unless=mutation.origin_upload_id)
        rows.put_upload(msgspec.structs.replace(upload, origin_upload_id=mutation.origin_upload_id))
    elif entry is not None:
        _leave_origin_upload(rows, entry.origin_upload_id, unless=mutation.origin_upload_id)
        rows.change_dirty(msgspec.structs.replace(entry, origin_upload_id=mutation.origin_upload_id))
    else:
        rows.effects.origin_uploads_left.append(mutation)


def _origin_upload_ended(rows: Rows, origin_upload_id: str) -> None:
    opened = rows.origin_upload(origin_upload_id)
    if opened is None:
        return
    rows.drop_origin_upload(origin_upload_id)
    upload = rows.upload(opened.upload_id) if opened.upload_id else None
    if upload is not None and upload.origin_upload_id == origin_upload_id:
        rows.put_upload(msgspec.structs.replace(upload, origin_upload_id=""))
    entry = rows.dirty(opened.sequence) if opened.sequence else None
    if entry is not None and entry.origin_upload_id == origin_upload_id:
        rows.change_dirty(msgspec.structs.replace(entry, origin_upload_id=""))


def _leave_origin_upload(rows: Rows, origin_upload_id: str, *, unless: str = "") -> None:
    """Tell that nobody will complete an upload of ours; its row stays until the origin has dropped it."""
    opened = None if origin_upload_id in {"", unless} else rows.origin_upload(origin_upload_id)
    if opened is not None:
        rows.effects.origin_uploads_left.append(opened)


def _mark(rows: Rows, sequence: int, state: ObjectState, reason: str) -> None:
    entry = rows.dirty(sequence)
    if entry is None:
        return
    rows.change_dirty(msgspec.structs.replace(entry, quarantine_reason=reason))
    if not entry.is_tombstone:
        record = _newest(rows, entry)
        extents = rows.extents_of(record)
        rows.put_object(entry.bucket, entry.key, msgspec.structs.replace(record, state=state), extents)


def _discarded(rows: Rows, sequence: int) -> None:
    entry = rows.dirty(sequence)
    if entry is None:
        return
    _unqueue(rows, sequence)
    rows.effects.discarded.append(entry)
    rows.drop_overlay(entry.bucket, entry.key)
    if not entry.is_tombstone:
        rows.drop_object(entry.bucket, entry.key, _newest(rows, entry))


def forget_clean(rows: Rows, bucket: str, key: str) -> None:
    """Drop what is cached of an object; a dirty version stays, it is the truth."""
    record = rows.object(bucket, key)
    if record is not None and record.state is ObjectState.CLEAN:
        rows.drop_object(bucket, key, record)


# --- uploads ---------------------------------------------------------------------------------------------------------


def _upload_created(rows: Rows, upload: UploadRecord) -> None:
    rows.put_upload(upload)
    # A compacted journal carries a completed upload as created so, for the repeated Complete.
    if not upload.completed_at_s:
        rows.effects.uploads_opened += 1
        rows.effects.uploads_created.append(upload)


def _part_uploaded(rows: Rows, upload_id: str, part: PartRecord) -> None:
    upload = rows.upload(upload_id)
    if upload is None or upload.completed_at_s:
        return
    _drop_part(rows, upload_id, rows.part(upload_id, part.number))
    rows.put_part(upload_id, part)
    owner = ResidentRow(FORMAT, 0, 0, upload_id=upload_id, part=part.number)
    rows.occupy(part.extents, owner, is_dirty=True)
    rows.effects.parts_added.append((upload_id, part))


def _drop_part(rows: Rows, upload_id: str, part: PartRecord | None) -> None:
    if part is not None:
        rows.release(part.extents, is_dirty=True)
        rows.drop_part(upload_id, part.number)


def _upload_completed(rows: Rows, sequence: int, mutation: UploadCompleted) -> None:
    """Make the named parts' extents the object's, in order and shifted; the other parts die."""
    upload = rows.upload(mutation.upload_id)
    if upload is None or upload.completed_at_s:
        return
    parts = {part.number: part for part in rows.parts(mutation.upload_id)}
    extents: list[Extent] = []
    position = 0
    for named in mutation.record.parts:
        part = parts.get(named.number)
        assert part is not None, f"part {named.number} of {mutation.upload_id} went under its Complete"
        assert part.size == named.size, (
            f"part {named.number} of {mutation.upload_id} changed under its Complete"
        )
        extents += [Extent(position + e.start, position + e.stop, e.location) for e in part.extents]
        position += part.size
    assert position == mutation.record.size, "the parts add up to the object"
    for part in parts.values():
        _drop_part(rows, mutation.upload_id, part)
    rows.put_upload(
        msgspec.structs.replace(
            upload,
            completed_at_s=mutation.completed_at_s,
            completed_etag=mutation.record.etag,
            completed_version_id=mutation.record.version_id,
            completed_checksums=mutation.record.checksums,
            origin_upload_id="",
        )
    )
    _close_upload(rows, mutation.upload_id)
    _leave_origin_upload(rows, upload.origin_upload_id, unless=mutation.entry.origin_upload_id)
    _put(rows, sequence, mutation.record, tuple(extents), mutation.entry)


def _upload_passed(rows: Rows, mutation: UploadPassed) -> None:
    """Give up the parts; the upload of ours that carried them is an object at the origin by now."""
    upload = rows.upload(mutation.upload_id)
    if upload is None or upload.completed_at_s:
        return
    for part in rows.parts(mutation.upload_id):
        _drop_part(rows, mutation.upload_id, part)
    rows.put_upload(
        msgspec.structs.replace(
            upload,
            completed_at_s=mutation.completed_at_s,
            completed_etag=mutation.etag,
            completed_checksums=mutation.checksums,
            origin_upload_id="",
        )
    )
    _close_upload(rows, mutation.upload_id)
    if upload.origin_upload_id:
        rows.drop_origin_upload(upload.origin_upload_id)


def _upload_aborted(rows: Rows, upload_id: str) -> None:
    upload = rows.upload(upload_id)
    if upload is None:
        return
    for part in rows.parts(upload_id):
        _drop_part(rows, upload_id, part)
    rows.drop_upload(upload_id)
    if not upload.completed_at_s:
        _close_upload(rows, upload_id)
        _leave_origin_upload(rows, upload.origin_upload_id)


def _close_upload(rows: Rows, upload_id: str) -> None:
    rows.effects.uploads_closed += 1
    rows.effects.uploads_ended.append(upload_id)


# --- places ----------------------------------------------------------------------------------------------------------


def _moved(rows: Rows, mutation: Moved) -> None:
    move(rows, mutation.resident, mutation.old, (mutation.new,))


def move(rows: Rows, resident: ResidentRow, old: Location, new: Sequence[Location]) -> bool:
    """Put one extent of an object or part at other places, one behind the other, if its owner still has it at the old one."""
    if resident.upload_id:
        return _move_part(rows, resident, old, new)
    record = rows.object(resident.bucket, resident.key)
    if record is None or record.version_id != resident.version_id:
        return False
    return move_extent(rows, record, resident, old, new)


def move_extent(
    rows: Rows, record: ObjectRecord, resident: ResidentRow, old: Location, new: Sequence[Location]
) -> bool:
    """Put one extent of a version at other places; False where it does not lie at `old`. `record` was read in this batch."""
    span = ByteRange(resident.start, resident.start + old.length)
    held = _held(rows.extents_in(record, span), resident.start, old)
    if not held:
        return False
    added = _laid(resident.start, new)
    rows.change_extents(resident.bucket, resident.key, record, held, added)
    _occupy_anew(rows, resident, held, added, is_dirty=record.state is not ObjectState.CLEAN)
    return True


def _move_part(rows: Rows, resident: ResidentRow, old: Location, new: Sequence[Location]) -> bool:
    part = rows.part(resident.upload_id, resident.part)
    held = [] if part is None else _held(part.extents, resident.start, old)
    if part is None or not held:
        return False
    added = _laid(resident.start, new)
    kept = [extent for extent in part.extents if extent not in held]
    extents = tuple(sorted((*kept, *added), key=lambda extent: extent.start))
    rows.put_part(resident.upload_id, msgspec.structs.replace(part, extents=extents))
    _occupy_anew(rows, resident, held, added, is_dirty=True)
    return True


def _held(extents: Iterable[Extent], start: int, old: Location) -> list[Extent]:
    """Give the extent that begins at `start` if it lies at the old place."""
    return [extent for extent in extents if extent.start == start and _same_place(extent.location, old)]


def _same_place(one: Location, other: Location) -> bool:
    return one.segment_id == other.segment_id and one.offset == other.offset and one.length == other.length


def _laid(start: int, places: Sequence[Location]) -> list[Extent]:
    """Lay places one behind the other, from `start` on."""
    extents: list[Extent] = []
    for place in places:
        extents.append(Extent(start, start + place.length, place))
        start += place.length
    return extents


def _occupy_anew(
    rows: Rows, resident: ResidentRow, held: Sequence[Extent], added: Sequence[Extent], *, is_dirty: bool
) -> None:
    rows.release(held, is_dirty=is_dirty)
    rows.occupy(added, resident, is_dirty=is_dirty)
