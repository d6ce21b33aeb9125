"""What an index that does not count can still lend to a journal that lost changes.

An index is set aside where its rows contradict each other or cannot all be read. Where the journal lost changes that this index had
applied, its rows may be the last that says what they were. A dirty row that is whole, with its object, gives the change back; the hole
stays one, so that all that is dirty is in doubt and nothing of it is sent by itself.

Parts of uploads and facts carry no sequence: they cannot be told from what the journal has since ended, and are not lent.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final

import msgspec

from storage import keys
from storage.errors import DamagedError
from storage.family import Family
from storage.index import Index
from storage.journal_format import JournalRecord
from storage.journal_salvage import Salvage
from storage.records import FORMAT, DirtyEntry, ObjectState, Put, Tombstone, encode
from storage.rows import all_rows, decode_dirty, decode_object, read_extents

LENT_MAX: Final = 100_000
"""So many changes are lent; an index that is set aside keeps the rest."""

_UNREADABLE: Final = (DamagedError, msgspec.DecodeError, ValueError)


def lent_changes(index: Index, journal: Salvage, *, up_to_sequence: int) -> list[JournalRecord]:
    """Give the changes up to a sequence that the journal does not say and whole rows do, ascending.

    Raises:
        DiskFailedError: The index could not be read, which says nothing against it.
    """
    lent: list[JournalRecord] = []
    # A block that cannot be read ends it: what stands behind it cannot be reached.
    with suppress(*_UNREADABLE):
        for key, value in all_rows(index, Family.DIRTY):
            sequence = keys.split_dirty_key(key)
            if sequence <= up_to_sequence and _is_missing(journal, sequence) and len(lent) < LENT_MAX:
                lent += _lent(index, sequence, value)
    return lent


def _is_missing(journal: Salvage, sequence: int) -> bool:
    return sequence > journal.read_sequence or any(
        hole.first <= sequence <= (hole.last or sequence) for hole in journal.holes
    )


def _lent(index: Index, sequence: int, value: bytes) -> Iterator[JournalRecord]:
    """Give the change of one row; none where it, or the object with it, is not whole."""
    with suppress(*_UNREADABLE):
        entry = decode_dirty(value)
        mutation = _mutation(index, entry) if entry.sequence == sequence else None
        if mutation is not None:
            yield JournalRecord(sequence, encode(mutation))


def _mutation(index: Index, entry: DirtyEntry) -> Put | Tombstone | None:
    if entry.is_tombstone:
        return Tombstone(FORMAT, entry)
    found = index.get(Family.OBJECTS, keys.object_key(entry.bucket, entry.key))
    record = None if found is None else decode_object(found)
    if record is None or (record.version_id, record.size) != (entry.version_id, entry.size):
        return None
    state = ObjectState.QUARANTINED if entry.quarantine_reason else ObjectState.DIRTY
    extents = read_extents(index, record)
    whole = msgspec.structs.replace(record, state=state, extents=extents, extents_spilled=False)
    return Put(FORMAT, whole, entry)
