"""The index at a start: opened, thrown away where it does not fit the journal, and filled from the journal.

An index counts as missing where there is none, where a row of it cannot be read, where it is of another instance, or
behind the checkpoint of a compacted journal. One that is ahead of the journal is not repaired: something acknowledged
is missing.

A missing index is rebuilt: all dirty state returns, and what the journal says of clean versions is dropped. They may be
older than the truth, as what passed through the gateway meanwhile is in no journal. The new index gets its instance id
in the last batch, so a rebuild that is cut short begins anew.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Protocol

import msgspec

from storage import keys
from storage.applier import Sequenced, write_group
from storage.errors import DamagedError
from storage.family import Family, IndexWrite
from storage.filesystem import Filesystem
from storage.index import Index
from storage.journal_format import JournalRecord
from storage.journal_scan import JournalScan, replay
from storage.layout import Layout
from storage.records import Mutation, ObjectState, decode_mutation
from storage.rows import APPLIED_SEQUENCE, INSTANCE_ID, Rows, all_rows, decode_object

log = logging.getLogger(__name__)

REPLAY_GROUP_MUTATIONS: Final = 1024
DROP_ROWS: Final = 1_000


class IndexHome(Protocol):
    """Where the index lives; opening and removing it."""

    def open(self) -> Index:
        """Open or create the index; DamagedError where it is no readable index."""
        ...

    def destroy(self) -> None:
        """Remove the index, whatever state it is in."""
        ...


class IndexBrokenError(Exception):
    """The index has a row that cannot be read; it is to be rebuilt."""


@contextmanager
def index_rows() -> Iterator[None]:
    """Tell a row that cannot be read from a journal that cannot: that costs the index, this refuses the start."""
    try:
        yield
    except (DamagedError, msgspec.DecodeError) as error:
        raise IndexBrokenError(str(error)) from error


def open_index(home: IndexHome, layout: Layout, scanned: JournalScan) -> tuple[Index, bool]:
    """Open the index; True with it where it is an empty one that the journal has to fill.

    Raises:
        DamagedError: It has applied more than the journal holds.
        LockedError, DiskFailedError: It cannot be opened, which says nothing against it.
    """
    try:
        index = home.open()
    except DamagedError as error:
        log.warning("the index is rebuilt from the journal: %s", error)
        return fresh_index(home), True
    try:
        why = _why_missing(index, layout, scanned)
    except BaseException:
        index.close()
        raise
    if not why:
        return index, False
    index.close()
    if scanned.files:
        log.warning("the index is rebuilt from the journal: %s", why)
    return fresh_index(home), True


def refuse_index_ahead(home: IndexHome, layout: Layout, scanned: JournalScan) -> None:
    """Look whether the index has applied more than the journal holds; nothing is changed but by opening it.

    Raises:
        DamagedError: It has.
        LockedError, DiskFailedError: It cannot be opened.
    """
    try:
        index = home.open()
    except DamagedError:
        # It will be rebuilt, and cannot tell.
        return
    try:
        _why_missing(index, layout, scanned)
    finally:
        index.close()


def _why_missing(index: Index, layout: Layout, scanned: JournalScan) -> str:
    try:
        instance_id = index.get(Family.META, INSTANCE_ID)
        applied = _applied_sequence(index)
    except DamagedError as error:
        return str(error)
    if instance_id is None:
        return "there is none"
    if instance_id != layout.instance_id:
        return "it is of another instance"
    if applied < scanned.checkpoint_sequence:
        return f"it is behind the journal's checkpoint {scanned.checkpoint_sequence}"
    if applied > scanned.last_sequence:
        raise DamagedError(
            f"the index has applied sequence {applied}, the journal ends at {scanned.last_sequence}: "
            "a part of the journal is missing; see `forebay fsck`"
        )
    return ""


def fresh_index(home: IndexHome) -> Index:
    """Throw an index away, if there is one, and give an empty one in its place."""
    home.destroy()
    return home.open()


def replay_journal(filesystem: Filesystem, scanned: JournalScan, index: Index) -> None:
    """Apply what the index lacks.

    Raises:
        DamagedError: A record of the journal makes no sense.
        IndexBrokenError: A row that a mutation is about cannot be read.
    """
    with index_rows():
        applied = _applied_sequence(index)
    group: list[Sequenced] = []
    for records in replay(filesystem, scanned, after_sequence=applied):
        group += [(record.sequence, _decoded(record)) for record in records]
        if len(group) >= REPLAY_GROUP_MUTATIONS:
            _apply(index, group)
            group = []
    if group:
        _apply(index, group)
    # A compacted journal may end with sequences of which nothing is live.
    if applied < scanned.last_sequence:
        index.write([IndexWrite(Family.META, APPLIED_SEQUENCE, scanned.last_sequence.to_bytes(8))])


def _applied_sequence(index: Index) -> int:
    value = index.get(Family.META, APPLIED_SEQUENCE)
    return 0 if value is None else int.from_bytes(value)


def _decoded(record: JournalRecord) -> Mutation:
    try:
        return decode_mutation(record.mutation)
    except msgspec.DecodeError as error:
        raise DamagedError(
            f"journal record {record.sequence} is of no known kind ({error}); see `forebay fsck`"
        ) from error


def _apply(index: Index, group: list[Sequenced]) -> None:
    try:
        with index_rows():
            write_group(index, group)
    except AssertionError as error:
        sequences = f"{group[0][0]} to {group[-1][0]}"
        raise DamagedError(
            f"journal records {sequences} contradict the rows ({error}); see `forebay fsck`"
        ) from error


def finish_rebuild(index: Index, layout: Layout) -> None:
    """Leave dirty versions only in a filled index, and let it count from now on."""
    rows, dropped = Rows(index), 0
    for key, value in all_rows(index, Family.OBJECTS):
        record = decode_object(value)
        if record.state is ObjectState.CLEAN:
            name = keys.split_object_key(key)
            rows.drop_object(name.shelf, name.key, record)
            dropped += 1
        if dropped >= DROP_ROWS:
            index.write(rows.batch())
            rows, dropped = Rows(index), 0
    rows.put(Family.META, INSTANCE_ID, layout.instance_id)
    index.write(rows.batch())
