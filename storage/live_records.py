"""Which records of sealed journal files are live, and what stands for each in a compacted file.

The files hold all sequences up to S; the index has applied at least those, and goes on while it is read here. A compacted file is right if
replaying it, then the journal after S, gives the dirty state that the index has. So for each kind of mutation up to S:

    Put, UploadCompleted     live while its dirty row exists: written as Put, with record and entry as they are now
    Tombstone                live while its dirty row exists: written with the entry as it is now
    UploadCreated            of an upload that ended up to S: its row as it is now, for the repeated Complete; dead without a row
                             of any other: as it was written: open, since what ends it after S must find it so, or completed
                             by an earlier compaction
    PartUploaded             of an upload that ended up to S: dead
                             of an open one: the part as it is now
                             of one that ended after S: see below
    OriginUploadOpened       live while its row exists: as it was written while what it is for names it, else for nothing, as one left over
    FactsLearnt, PointerSet  the last of each bucket or target
    IdsReserved, EpochStarted, EpochEnded     the last
    all others               dead: what they did is in the rows that are written

Why a row that is newer than S does no harm. What happened to a live change between S and the reading of its row is in the row, and is
replayed on top of it once more. Each such mutation says what is, not what changes: Attempted, Quarantined and Released set what the last
one of them sets at the end; OriginUploadOpened too, and what it replaces then is only told; Moved finds nothing at the old place.
Whatever ends the change (Flushed, Discarded, a newer state of the key) takes its dirty row away: if that is already so when the row is
read, the change is left out, and to the mutations after S that name its sequence or version, "gone" means "nothing to do".

Uploads that ended after S. The Complete names its parts by number and takes their extents, so the parts must be there when it is
replayed, though their rows are gone. While its object is dirty, the object's own extents, cut at the parts' sizes, are the parts'. Once
it is not (flushed, overwritten, discarded: all in the journal after S), the bytes do not matter and the part is written with its size
and no extent. To wait instead until no upload spans S would never end where uploads never cease.

Races. Rows are read while the writer thread goes on. A dirty row, once gone, never returns, and while it is there the object's row and
extents are whole; so it is read last, and what was read before it counts only if it is there.

Memory: one id of each upload that ended in the files, one number of each bucket.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final

import msgspec

from storage import keys
from storage.errors import DamagedError
from storage.family import Family
from storage.journal_format import JournalRecord
from storage.records import (
    FORMAT,
    DirtyEntry,
    FactsLearnt,
    ObjectRecord,
    ObjectState,
    OriginUploadOpened,
    PartRecord,
    PartUploaded,
    PointerSet,
    Put,
    Tombstone,
    UploadAborted,
    UploadCompleted,
    UploadCreated,
    UploadPassed,
    UploadRecord,
    decode_mutation,
    encode,
)
from storage.rows import (
    RowSource,
    decode_dirty,
    decode_facts,
    decode_object,
    decode_part,
    decode_upload,
    decoded,
    origin_upload_key,
    read_extents,
    row_at,
)
from storage.types import Extent

COMPLETED_KEPT: Final = 16
"""So many completed uploads' parts are remembered: cutting a large object again for each of its parts would take for ever."""

_NOTED: Final = frozenset(
    {
        "upload_completed",
        "upload_aborted",
        "upload_passed",
        "facts_learnt",
        "ids_reserved",
        "epoch_started",
        "epoch_ended",
        "pointer_set",
    }
)


class LiveRecords:
    """Decides record by record: first `note` all of them, then ask `live` of each, both times in the order of the sequences.

    `replaced_ids` are the files that will be gone: no place that is written may lie in one.
    """

    def __init__(self, index: RowSource, replaced_ids: Iterable[int]) -> None:
        self._index = index
        self._replaced_ids = frozenset(replaced_ids)
        self._ended_uploads: set[str] = set()
        self._last: dict[tuple[str, ...], int] = {}
        self._completed: OrderedDict[str, dict[int, PartRecord]] = OrderedDict()

    def note(self, record: JournalRecord) -> None:
        """Take note of what decides about earlier records: which uploads ended, and the last of what only the last counts."""
        tag = tag_of(record.mutation)
        if tag not in _NOTED:
            return
        match decode_mutation(record.mutation):
            case (
                UploadCompleted(upload_id=upload_id)
                | UploadAborted(upload_id=upload_id)
                | UploadPassed(upload_id=upload_id)
            ):
                self._ended_uploads.add(upload_id)
            case FactsLearnt() | PointerSet() as mutation:
                self._last[_subject(mutation)] = record.sequence
            case _:
                self._last[_kind(tag),] = record.sequence

    def live(self, record: JournalRecord) -> bytes | None:
        """Give the mutation to write under the record's sequence; None where the record is dead.

        Raises:
            DamagedError: The index contradicts itself or the journal; nothing may be compacted.
        """
        tag = tag_of(record.mutation)
        match tag:
            case "put" | "upload_completed":
                return self._put(record.sequence)
            case "tombstone":
                return self._tombstone(record.sequence)
            case "upload_created" | "part_uploaded" | "origin_upload_opened" | "facts_learnt" | "pointer_set":
                return self._of_mutation(record)
            case "ids_reserved" | "epoch_started" | "epoch_ended":
                is_last = self._last[_kind(tag),] == record.sequence
                return record.mutation if is_last else None
            case _:
                return None

    def _of_mutation(self, record: JournalRecord) -> bytes | None:
        match decode_mutation(record.mutation):
            case UploadCreated(upload=upload):
                return self._upload_created(upload.upload_id, record.mutation)
            case PartUploaded(upload_id=upload_id, part=part):
                return self._part_uploaded(upload_id, part)
            case OriginUploadOpened() as mutation:
                return self._origin_upload(mutation, record.mutation)
            case FactsLearnt() as mutation:
                is_last = self._last[_subject(mutation)] == record.sequence
                return self._facts(mutation.facts.bucket) if is_last else None
            case PointerSet() as mutation:
                is_last = self._last[_subject(mutation)] == record.sequence
                return record.mutation if is_last else None
            case mutation:
                raise AssertionError(f"{mutation} is not of its tag")

    # --- changes of objects ------------------------------------------------------------------------------------------

    def _put(self, sequence: int) -> bytes | None:
        entry = self._entry(sequence)
        if entry is None:
            return None
        record = self._object(entry.bucket, entry.key)
        extents = () if record is None else read_extents(self._index, record)
        entry = self._entry(sequence)
        if entry is None:
            return None
        if record is None or record.version_id != entry.version_id or record.state is ObjectState.CLEAN:
            raise DamagedError(
                f"the object of dirty change {sequence} is not in the index; see `forebay fsck`"
            )
        self._check(f"dirty change {sequence}", record.size, extents)
        whole = msgspec.structs.replace(record, extents=extents, extents_spilled=False)
        return encode(Put(FORMAT, whole, entry))

    def _tombstone(self, sequence: int) -> bytes | None:
        entry = self._entry(sequence)
        return None if entry is None else encode(Tombstone(FORMAT, entry))

    def _entry(self, sequence: int) -> DirtyEntry | None:
        return row_at(self._index, Family.DIRTY, keys.dirty_key(sequence), decode_dirty)

    def _object(self, bucket: str, key: str) -> ObjectRecord | None:
        return row_at(self._index, Family.OBJECTS, keys.object_key(bucket, key), decode_object)

    def _check(self, what: str, size: int, extents: tuple[Extent, ...]) -> None:
        """Refuse to write a change whose bytes are not all there, or will not be."""
        position = 0
        for extent in extents:
            if extent.start != position:
                break
            position = extent.stop
            if extent.location.segment_id in self._replaced_ids:
                raise DamagedError(f"{what} names a place that was to be left; see `forebay fsck`")
        if position != size:
            raise DamagedError(f"{what} lacks bytes from {position} on; see `forebay fsck`")

    # --- uploads -----------------------------------------------------------------------------------------------------

    def _upload(self, upload_id: str) -> UploadRecord | None:
        return row_at(self._index, Family.UPLOADS, keys.upload_key(upload_id), decode_upload)

    def _upload_created(self, upload_id: str, written: bytes) -> bytes | None:
        if upload_id not in self._ended_uploads:
            return written
        upload = self._upload(upload_id)
        return None if upload is None else encode(UploadCreated(FORMAT, upload))

    def _part_uploaded(self, upload_id: str, written: PartRecord) -> bytes | None:
        if upload_id in self._ended_uploads:
            return None
        part = self._open_part(upload_id, written.number)
        if part is None:
            part = self._ended_part(upload_id, written)
        return encode(PartUploaded(FORMAT, upload_id, part))

    def _open_part(self, upload_id: str, number: int) -> PartRecord | None:
        """Read a part of an open upload; None where the upload has ended."""
        upload = self._upload(upload_id)
        if upload is None or upload.completed_at_s:
            return None
        value = self._index.get(Family.PARTS, keys.part_key(upload_id, number))
        if value is None:
            upload = self._upload(upload_id)
            if upload is None or upload.completed_at_s:
                return None
            raise DamagedError(
                f"part {number} of open upload {upload_id} is not in the index; see `forebay fsck`"
            )
        part = decoded(self._index, Family.PARTS, keys.part_key(upload_id, number), value, decode_part)
        self._check(f"part {number} of upload {upload_id}", part.size, part.extents)
        return part

    def _ended_part(self, upload_id: str, written: PartRecord) -> PartRecord:
        """Say what a Complete after S has to find of a part."""
        parts = self._completed.get(upload_id)
        if parts is None:
            parts = self._parts_of_object(self._upload(upload_id))
            self._completed[upload_id] = parts
            if len(self._completed) > COMPLETED_KEPT:
                self._completed.popitem(last=False)
        return parts.get(written.number) or msgspec.structs.replace(written, extents=())

    def _parts_of_object(self, upload: UploadRecord | None) -> dict[int, PartRecord]:
        """Cut the object that came of an upload into its parts again; none where it is not dirty any more."""
        if upload is None:
            return {}
        record = self._dirty_version(upload)
        if record is None:
            return {}
        extents = read_extents(self._index, record)
        if self._dirty_version(upload) is None:
            return {}
        self._check(f"the object of upload {upload.upload_id}", record.size, extents)
        return dict(_cut_at_parts(record, extents))

    def _dirty_version(self, upload: UploadRecord) -> ObjectRecord | None:
        record = self._object(upload.bucket, upload.key)
        if record is None or record.version_id != upload.completed_version_id:
            return None
        return None if record.state is ObjectState.CLEAN else record

    # --- uploads of ours at the origin -------------------------------------------------------------------------------

    def _origin_upload(self, opened: OriginUploadOpened, written: bytes) -> bytes | None:
        """Keep an upload that may be at the origin; what it is for may name a later one by now, or have ended."""
        if self._index.get(Family.META, origin_upload_key(opened.origin_upload_id)) is None:
            return None
        if opened.origin_upload_id == self._origin_upload_of(opened):
            return written
        return encode(msgspec.structs.replace(opened, upload_id="", sequence=0))

    def _origin_upload_of(self, opened: OriginUploadOpened) -> str:
        """Say which upload at the origin carries what this one was opened for."""
        upload = self._upload(opened.upload_id) if opened.upload_id else None
        entry = self._entry(opened.sequence) if opened.sequence else None
        carried = upload or entry
        return "" if carried is None else carried.origin_upload_id

    # --- buckets -----------------------------------------------------------------------------------------------------

    def _facts(self, bucket: str) -> bytes | None:
        facts = row_at(self._index, Family.BUCKETS, keys.bucket_key(bucket), decode_facts)
        return None if facts is None else encode(FactsLearnt(FORMAT, facts))


def tag_of(mutation: bytes) -> str:
    """Read a mutation's tag without decoding it: a short array whose first element is a short string (MessagePack)."""
    assert mutation[0] & 0xF0 == 0x90, "a mutation has fewer than 16 fields"
    assert mutation[1] & 0xE0 == 0xA0, "a tag has fewer than 32 bytes"
    return mutation[2 : 2 + (mutation[1] & 0x1F)].decode()


def _kind(tag: str) -> str:
    return "epoch" if tag.startswith("epoch_") else tag


def _subject(mutation: FactsLearnt | PointerSet) -> tuple[str, ...]:
    match mutation:
        case FactsLearnt(facts=facts):
            return ("facts", facts.bucket)
        case PointerSet(bucket=bucket, target=target):
            return ("pointer", bucket, target)


def _cut_at_parts(record: ObjectRecord, extents: tuple[Extent, ...]) -> Iterable[tuple[int, PartRecord]]:
    """No extent spans two parts, since each part brought its own."""
    rest = iter(extents)
    start = 0
    for named in record.parts:
        stop = start + named.size
        own: list[Extent] = []
        position = start
        while position < stop:
            extent = next(rest)
            assert position == extent.start < extent.stop <= stop, f"{extent} spans two parts"
            own.append(Extent(extent.start - start, extent.stop - start, extent.location))
            position = extent.stop
        yield (
            named.number,
            PartRecord(
                FORMAT,
                named.number,
                named.size,
                named.etag,
                record.last_modified_s,
                named.checksums,
                tuple(own),
            ),
        )
        start = stop
