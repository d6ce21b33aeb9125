"""The dirty state of an index, stated anew as the records of one compacted journal file.

For a repair: the journal that said it does not read back, and what it says together with the index is known. Replayed into an empty
index, the records give the dirty state that they were made of. What is clean is left out, as in every compacted file.

A change keeps its sequence, which names it everywhere. Uploads, parts, facts, pointers, ids and the epoch have none in their rows; they
are given new ones above all that were ever given, and the last of them is the checkpoint of the file. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import msgspec

from storage import keys
from storage.family import Family
from storage.journal_format import JournalRecord
from storage.mutations import POINTER_PREFIX
from storage.records import (
    FORMAT,
    FactsLearnt,
    IdsReserved,
    PartUploaded,
    Put,
    Tombstone,
    UploadCreated,
    encode,
)
from storage.rows import (
    EPOCH,
    ORIGIN_UPLOAD_PREFIX,
    RESERVED_IDS,
    OpenRowSource,
    all_rows,
    decode_dirty,
    decode_facts,
    decode_object,
    decode_origin_upload,
    decode_part,
    decode_upload,
    read_extents,
)

PARTS_MAX: Final = 100_000
"""Rows of one upload in one read; AWS allows 10,000 parts."""


@dataclass(frozen=True, slots=True)
class Restatement:
    """What `rows` say. `last_sequence` is the highest that was ever given; `ids` is the reservation to state."""

    rows: OpenRowSource
    last_sequence: int
    ids: IdsReserved

    def checkpoint_sequence(self) -> int:
        """Give the sequence that the file stands for, that of the last record."""
        return self.last_sequence + sum(1 for _ in self._others())

    def records(self) -> Iterator[JournalRecord]:
        """Give the records, ascending."""
        yield from self._changes()
        sequence = self.last_sequence
        for mutation in self._others():
            sequence += 1
            yield JournalRecord(sequence, mutation)

    def _changes(self) -> Iterator[JournalRecord]:
        for key, value in all_rows(self.rows, Family.DIRTY):
            entry = decode_dirty(value)
            assert keys.dirty_key(entry.sequence) == key, f"{entry} stands under another sequence"
            if entry.is_tombstone:
                yield JournalRecord(entry.sequence, encode(Tombstone(FORMAT, entry)))
                continue
            found = self.rows.get(Family.OBJECTS, keys.object_key(entry.bucket, entry.key))
            record = None if found is None else decode_object(found)
            assert record is not None, f"{entry} has no object"
            assert record.version_id == entry.version_id, f"{entry} is of another version"
            extents = read_extents(self.rows, record)
            whole = msgspec.structs.replace(record, extents=extents, extents_spilled=False)
            yield JournalRecord(entry.sequence, encode(Put(FORMAT, whole, entry)))

    def _others(self) -> Iterator[bytes]:
        for _, value in all_rows(self.rows, Family.UPLOADS):
            upload = decode_upload(value)
            yield encode(UploadCreated(FORMAT, upload))
            if upload.completed_at_s:
                continue
            start, stop = keys.parts_range(upload.upload_id)
            for _, part in self.rows.scan(Family.PARTS, start, stop, PARTS_MAX):
                yield encode(PartUploaded(FORMAT, upload.upload_id, decode_part(part)))
        for _, value in all_rows(self.rows, Family.BUCKETS):
            yield encode(FactsLearnt(FORMAT, decode_facts(value)))
        for key, value in all_rows(self.rows, Family.META):
            if key.startswith(POINTER_PREFIX) or key == EPOCH:
                yield value
            elif key.startswith(ORIGIN_UPLOAD_PREFIX):
                # What goes on with it names it in its own row.
                yield encode(msgspec.structs.replace(decode_origin_upload(value), upload_id="", sequence=0))
        yield encode(self.ids)


def reserved_ids(rows: OpenRowSource) -> IdsReserved:
    """Give the last reservation that the rows know."""
    value = rows.get(Family.META, RESERVED_IDS)
    return IdsReserved(FORMAT, 1, 1) if value is None else _reserved_decoder.decode(value)


_reserved_decoder: Final = msgspec.msgpack.Decoder(IdsReserved)
