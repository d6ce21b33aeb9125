"""Reads of the flush queue, while the writer thread goes on between any two of them."""

from storage.applier import write_group
from storage.dirty_rows import DirtyRows
from storage.family import Family
from storage.mutations import stamp
from storage.records import Mutation
from storage.state import State
from storage.types import ObjectName
from tests.fakes.index import FakeIndex
from tests.fakes.records import BUCKET, extent, flushed, put, record, tombstone

NAME = ObjectName(BUCKET, "key")


class Racing(FakeIndex):
    """An index in which a change is applied between two reads."""

    def __init__(self) -> None:
        super().__init__()
        self.sequence = 0
        self.between: list[Mutation] = []
        self.state = State()
        self.rows = DirtyRows(self, self.state)

    def commit(self, mutation: Mutation) -> None:
        """Apply a mutation and tell of it."""
        self.sequence += 1
        self.state.absorb(write_group(self, [(self.sequence, stamp(mutation, self.sequence, None))]))

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Read a row; after an overlay's, apply what is to come between."""
        value = super().get(family, key)
        if family is Family.OVERLAY and self.between:
            change, *rest = self.between
            self.between = []  # what applies it reads too
            self.commit(change)
            self.between = rest
        return value


def test_the_newest_change_is_found_when_another_takes_its_place_between_two_reads() -> None:
    """A key that is dirty all the time is never called clean."""
    index = Racing()
    index.commit(put("key", record(1, (extent(0, 5, 3),))))
    index.between = [put("key", record(2, (extent(0, 6, 3, 64),))), tombstone("key")]

    newest = index.rows.newest(NAME)

    assert newest is not None
    assert newest.sequence == 3


def test_there_is_no_newest_change_when_it_is_flushed_between_two_reads() -> None:
    """The key is clean by then."""
    index = Racing()
    index.commit(put("key", record(1, (extent(0, 5, 3),))))
    index.between = [flushed(1)]

    assert index.rows.newest(NAME) is None


def test_a_bucket_has_a_put_while_one_is_dirty() -> None:
    """A delete is none, and a flushed put is none any more."""
    index = Racing()
    index.commit(tombstone("deleted"))
    found = [index.rows.has_put(BUCKET)]

    index.commit(put("key", record(1, (extent(0, 5, 3),))))
    found.append(index.rows.has_put(BUCKET))
    index.commit(flushed(2))
    found.append(index.rows.has_put(BUCKET))

    assert found == [False, True, False]
