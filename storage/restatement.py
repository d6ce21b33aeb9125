"""The dirty state of an index, stated anew as the records of one compacted journal file.

For a repair: the journal that said it does not read back, and what it says together with the index is known. Replayed into an empty
index, the records give the dirty state that they were made of. What is clean is left out, as in every compacted file.

A change keeps its sequence, which names it everywhere. Uploads, parts, facts, pointers, ids and the epoch have none in their rows; they
are given new ones above all that were ever given, and the last of them is the checkpoint of the file. Pure.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

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
    decode_dirty,
    decode_facts,
    decode_object,
    decode_origin_upload,
    decode_part,
    decode_upload,
    read_extents,
)

STEP_ROWS: Final = 1000
STEPS_MAX: Final = 10_000_000


class StateRows(Protocol):
    """What is read of an index."""

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Give a row's bytes."""
        ...

    def scan(self, family: Family, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        """Give rows in key order."""
        ...


@dataclass(frozen=True, slots=True)
class Restatement:
    """What `rows` say. `last_sequence` is the highest that was ever given; `ids` is the reservation to state."""

    rows: StateRows
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
        for key, value in _all_rows(self.rows, Family.DIRTY):
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
        for _, value in _all_rows(self.rows, Family.UPLOADS):
            upload = decode_upload(value)
            yield encode(UploadCreated(FORMAT, upload))
            if upload.completed_at_s:
                continue
            start, stop = keys.parts_range(upload.upload_id)
            for _, part in self.rows.scan(Family.PARTS, start, stop, STEP_ROWS * 100):
                yield encode(PartUploaded(FORMAT, upload.upload_id, decode_part(part)))
        for _, value in _all_rows(self.rows, Family.BUCKETS):
            yield encode(FactsLearnt(FORMAT, decode_facts(value)))
        for key, value in _all_rows(self.rows, Family.META):
            if key.startswith(POINTER_PREFIX) or key == EPOCH:
                yield value
            elif key.startswith(ORIGIN_UPLOAD_PREFIX):
                # What goes on with it names it in its own row.
                yield encode(msgspec.structs.replace(decode_origin_upload(value), upload_id="", sequence=0))
        yield encode(self.ids)


def reserved_ids(rows: StateRows) -> IdsReserved:
    """Give the last reservation that the rows know."""
    value = rows.get(Family.META, RESERVED_IDS)
    return IdsReserved(FORMAT, 1, 1) if value is None else _reserved_decoder.decode(value)


def _all_rows(rows: StateRows, family: Family) -> Iterator[tuple[bytes, bytes]]:
    start = b""
    for _ in range(STEPS_MAX):
        found = rows.scan(family, start, None, STEP_ROWS)
        yield from found
        if len(found) < STEP_ROWS:
            return
        start = found[-1][0] + b"\x00"
    raise AssertionError(f"more than {STEPS_MAX * STEP_ROWS} rows in {family}")


_reserved_decoder: Final = msgspec.msgpack.Decoder(IdsReserved)
