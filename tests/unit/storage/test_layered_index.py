"""An index over another behaves as one, and the lower one stays as it is."""

from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from storage.errors import DamagedError
from storage.family import Family, IndexWrite
from storage.index import RocksIndex
from storage.layered_index import LayeredIndex, RocksCopies
from tests.fakes.index import FakeIndex

KEYS = [b"%d" % n for n in range(12)]
ROWS = st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=2)), max_size=20)


def written(index: FakeIndex | LayeredIndex, rows: list[tuple[bytes, bytes | None]]) -> None:
    """Write rows one by one."""
    for key, value in rows:
        index.write([IndexWrite(Family.META, key, value)])


@pytest.mark.slow
@given(
    below=ROWS,
    above=ROWS,
    start=st.sampled_from([b"", *KEYS]),
    stop=st.none() | st.sampled_from(KEYS),
    limit=st.integers(1, 8),
)
def test_reads_are_those_of_one_index(
    below: list[tuple[bytes, bytes | None]],
    above: list[tuple[bytes, bytes | None]],
    start: bytes,
    stop: bytes | None,
    limit: int,
) -> None:
    """Gets and scans of any bounds see the lower rows with all later writes, removals too."""
    lower, plain = FakeIndex(), FakeIndex()
    written(lower, below)
    written(plain, below + above)
    layered = LayeredIndex(lower, FakeIndex())
    written(layered, above)
    writes = lower.writes_total

    found = layered.scan(Family.META, start, stop, limit)

    assert found == plain.scan(Family.META, start, stop, limit)
    assert [layered.get(Family.META, key) for key in KEYS] == [plain.get(Family.META, key) for key in KEYS]
    assert lower.writes_total == writes


def test_reads_when_there_is_nothing_below() -> None:
    """What is written is there."""
    layered = LayeredIndex(None, FakeIndex())
    layered.write([IndexWrite(Family.META, b"k", b"v")])

    assert layered.get(Family.META, b"k") == b"v"
    assert layered.get(Family.META, b"other") is None
    assert layered.scan(Family.META, b"", None, 10) == [(b"k", b"v")]


def test_rocks_copies_when_there_is_no_index(tmp_path: Path) -> None:
    """It is told, and none is made."""
    with RocksCopies(str(tmp_path / "index")) as copies, pytest.raises(DamagedError):
        copies.open_read_only()

    assert list(tmp_path.iterdir()) == []


def test_rocks_copies_when_the_index_was_killed(tmp_path: Path) -> None:
    """Rows that stand in its log only are read."""
    path = str(tmp_path / "index")
    index = RocksIndex.open(path)
    index.write([IndexWrite(Family.OBJECTS, b"k", b"v")])

    with RocksCopies(path) as copies:
        layered = LayeredIndex(copies.open_read_only(), copies.open_scratch())
        layered.write([IndexWrite(Family.OBJECTS, b"l", b"w")])
        rows = layered.scan(Family.OBJECTS, b"", None, 10)
        layered.close()
    index.close()

    assert rows == [(b"k", b"v"), (b"l", b"w")]
