"""One suite over the index in RocksDB and the one in memory, and what only RocksDB can get wrong."""

import resource
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given, settings, strategies as st

from storage import keys
from storage.errors import DamagedError, DiskFailedError, LockedError, UnknownOutcomeError
from storage.index import Family, Index, IndexWrite, RocksIndex
from storage.types import MIB
from tests.fakes.index import FakeIndex


class Subject(Protocol):
    """An index and a way to see what a killed process would leave of it."""

    index: Index

    def after_kill(self) -> Index: ...


class RocksSubject:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._copies: list[RocksIndex] = []
        self._opened = RocksIndex.open(str(path / "index"))
        self.index: Index = self._opened

    def after_kill(self) -> Index:
        """Open a copy of the files as they are: what is in the page cache survives a killed process."""
        copy = self._path / f"copy{len(self._copies)}"
        shutil.copytree(self._path / "index", copy)
        self._copies.append(RocksIndex.open(str(copy)))
        return self._copies[-1]

    def close(self) -> None:
        for index in (self._opened, *self._copies):
            index.close()


class FakeSubject:
    def __init__(self) -> None:
        self._fake = FakeIndex()
        self.index: Index = self._fake

    def after_kill(self) -> Index:
        return self._fake.kill_clone()


@pytest.fixture(params=["rocks", "fake"])
def subject(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Subject]:
    """Give each kind of index in turn."""
    if request.param == "fake":
        yield FakeSubject()
        return
    rocks = RocksSubject(tmp_path)
    yield rocks
    rocks.close()


@pytest.fixture
def index(subject: Subject) -> Index:
    """Give the index alone."""
    return subject.index


def put(family: Family, key: bytes, value: bytes = b"v") -> IndexWrite:
    """Say one write."""
    return IndexWrite(family, key, value)


def delete(family: Family, key: bytes) -> IndexWrite:
    """Say one delete."""
    return IndexWrite(family, key, None)


def names(rows: list[tuple[bytes, bytes]]) -> list[bytes]:
    """Give the keys of rows."""
    return [key for key, _ in rows]


# --- rows ---------------------------------------------------------------------------------------------------------------


def test_get_when_never_written(index: Index) -> None:
    """A row that was never written is None."""
    assert index.get(Family.OBJECTS, b"bucket\x00key") is None


def test_get_when_written(index: Index) -> None:
    """A written row reads back byte for byte, NULs, high bytes and an empty value included."""
    index.write([put(Family.OBJECTS, b"\x00\xff", b"\x00\xff\n"), put(Family.META, b"empty", b"")])

    assert index.get(Family.OBJECTS, b"\x00\xff") == b"\x00\xff\n"
    assert index.get(Family.META, b"empty") == b""


def test_get_when_deleted(index: Index) -> None:
    """A deleted row is None, and deleting an absent row is no error."""
    index.write([put(Family.DIRTY, b"a")])

    index.write([delete(Family.DIRTY, b"a"), delete(Family.DIRTY, b"absent")])

    assert index.get(Family.DIRTY, b"a") is None


def test_write_when_key_named_twice(index: Index) -> None:
    """What a batch says last of a key counts."""
    index.write(
        [
            put(Family.META, b"a", b"1"),
            put(Family.META, b"a", b"2"),
            put(Family.META, b"b"),
            delete(Family.META, b"b"),
        ]
    )

    assert index.get(Family.META, b"a") == b"2"
    assert index.get(Family.META, b"b") is None


def test_write_when_batch_is_empty(index: Index) -> None:
    """An empty batch changes nothing."""
    index.write([])

    assert index.scan(Family.META, b"", None, 10) == []


@pytest.mark.parametrize("family", list(Family))
def test_write_when_same_key_in_every_family(index: Index, family: Family) -> None:
    """Families do not see each other's rows."""
    index.write([put(each, b"key", each.value.encode()) for each in Family])

    assert index.get(family, b"key") == family.value.encode()
    assert index.scan(family, b"", None, 10) == [(b"key", family.value.encode())]


# --- scans --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def letters(index: Index) -> Index:
    """Give an index with five rows, written out of order."""
    index.write([put(Family.OVERLAY, bytes((letter,)), bytes((letter,)).upper()) for letter in b"dacbe"])
    return index


@pytest.mark.parametrize(
    ("start", "stop", "limit", "forwards", "backwards"),
    [
        (b"", None, 9, b"abcde", b"edcba"),
        (b"b", b"d", 9, b"bc", b"cb"),
        (b"b", None, 2, b"bc", b"ed"),
        (b"", b"c", 9, b"ab", b"ba"),
        (b"aa", b"dd", 9, b"bcd", b"dcb"),
        (b"", None, 0, b"", b""),
        (b"c", b"c", 9, b"", b""),
        (b"d", b"b", 9, b"", b""),
        (b"x", b"z", 9, b"", b""),
    ],
)
def test_scan_when_bounded(
    letters: Index, start: bytes, stop: bytes | None, limit: int, forwards: bytes, backwards: bytes
) -> None:
    """A scan gives the rows of the half-open range in order, or from its end, up to the limit."""
    up = letters.scan(Family.OVERLAY, start, stop, limit)
    down = letters.scan(Family.OVERLAY, start, stop, limit, reverse=True)

    assert b"".join(names(up)) == forwards
    assert b"".join(names(down)) == backwards
    assert all(value == key.upper() for key, value in up + down)


def test_scan_when_rows_were_deleted(letters: Index) -> None:
    """Deleted rows are not in a scan, in either direction."""
    letters.write([delete(Family.OVERLAY, b"a"), delete(Family.OVERLAY, b"c"), delete(Family.OVERLAY, b"e")])

    assert names(letters.scan(Family.OVERLAY, b"", None, 9)) == [b"b", b"d"]
    assert names(letters.scan(Family.OVERLAY, b"", None, 9, reverse=True)) == [b"d", b"b"]


def test_scan_when_keys_are_numbers(index: Index) -> None:
    """Rows keyed by numbers come in the order of the numbers."""
    sequences = [1, 255, 256, 65_536, 2**32, 2**63, 2**64 - 1]
    index.write([put(Family.DIRTY, keys.dirty_key(sequence)) for sequence in reversed(sequences)])

    rows = index.scan(Family.DIRTY, keys.dirty_key(0), None, 99)

    assert [keys.split_dirty_key(key) for key in names(rows)] == sequences


def test_scan_when_bucket_has_prefix_of_other_bucket(index: Index) -> None:
    """A bucket's scan shows its own keys only, though another bucket's name begins with its name."""
    places = [
        ("data", "a"),
        ("data", "b/1"),
        ("data", "b/2"),
        ("data", "bé"),
        ("data-2", "b/3"),
        ("dat", "b/4"),
    ]
    index.write([put(Family.OBJECTS, keys.object_key(*place)) for place in places])

    whole = index.scan(Family.OBJECTS, *keys.prefix_range("data"), 99)
    prefixed = index.scan(Family.OBJECTS, *keys.prefix_range("data", "b/"), 99)

    assert [keys.split_object_key(key).key for key in names(whole)] == ["a", "b/1", "b/2", "bé"]
    assert [keys.split_object_key(key).key for key in names(prefixed)] == ["b/1", "b/2"]


Batches = list[list[tuple[int, int, int | None]]]


@settings(max_examples=30)
@given(
    batches=st.lists(
        st.lists(
            st.tuples(st.integers(0, 1), st.integers(0, 40), st.none() | st.integers(0, 255)), max_size=12
        ),
        max_size=8,
    ),
    bounds=st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(0, 12)),
)
def test_scan_when_compared_with_a_dict(
    tmp_path_factory: pytest.TempPathFactory, batches: Batches, bounds: tuple[int, int, int]
) -> None:
    """After any batches, RocksDB and the fake show what a dict of each family shows."""
    families = (Family.DIRTY, Family.OBJECTS)
    model: dict[Family, dict[bytes, bytes]] = {family: {} for family in families}
    rocks = RocksIndex.open(str(tmp_path_factory.mktemp("index") / "index"))
    subjects: tuple[Index, ...] = (rocks, FakeIndex())
    for batch in batches:
        rows = [
            IndexWrite(families[family], bytes((key,)), None if value is None else bytes((value,)))
            for family, key, value in batch
        ]
        for each in subjects:
            each.write(rows)
        for family, key, value in rows:
            model[family][key] = value if value is not None else b"gone"
            if value is None:
                del model[family][key]
    start, stop, limit = bytes((bounds[0],)), bytes((bounds[1],)), bounds[2]

    for family in families:
        expected = sorted(row for row in model[family].items() if start <= row[0] < stop)
        for each in subjects:
            assert each.scan(family, start, stop, limit) == expected[:limit]
            assert each.scan(family, start, stop, limit, reverse=True) == expected[::-1][:limit]
            assert each.scan(family, start, None, 99) == sorted(
                r for r in model[family].items() if start <= r[0]
            )
    rocks.close()


# --- durability ---------------------------------------------------------------------------------------------------------


def test_write_when_process_is_killed(subject: Subject) -> None:
    """A killed process loses no batch, checkpointed or not."""
    subject.index.write([put(Family.META, b"a"), put(Family.DIRTY, b"b")])
    subject.index.checkpoint()
    subject.index.write([put(Family.OBJECTS, b"c"), delete(Family.META, b"a")])

    left = subject.after_kill()

    assert left.get(Family.META, b"a") is None
    assert left.get(Family.DIRTY, b"b") == b"v"
    assert left.get(Family.OBJECTS, b"c") == b"v"


def test_close_when_closed_already(index: Index) -> None:
    """Closing twice is allowed."""
    index.close()

    index.close()


def test_get_when_closed(index: Index) -> None:
    """Using a closed index is a bug that shows, never an absent row."""
    index.close()

    with pytest.raises(AssertionError, match="is closed"):
        index.get(Family.META, b"a")
    with pytest.raises(AssertionError, match="is closed"):
        index.scan(Family.META, b"", None, 9)
    with pytest.raises(AssertionError, match="is closed"):
        index.write([put(Family.META, b"a")])
    with pytest.raises(AssertionError, match="is closed"):
        index.checkpoint()


def test_get_when_another_thread_writes(index: Index) -> None:
    """Reads made while another thread writes and checkpoints see each batch whole over two families, and never go back."""
    families = (Family.META, Family.DIRTY)
    index.write([put(family, b"n", (0).to_bytes(8)) for family in families])

    def write_on() -> None:
        for number in range(1, 400):
            index.write([put(family, b"n", number.to_bytes(8)) for family in families])
            if number % 100 == 0:
                index.checkpoint()

    writer = threading.Thread(target=write_on)
    writer.start()
    seen: list[int] = []
    while writer.is_alive():
        # The second is read after the first: a batch that shows in the first shows in the second.
        first, second = (int.from_bytes(index.get(family, b"n") or b"") for family in families)
        assert first <= second
        seen.append(first)
        assert len(index.scan(Family.META, b"", None, 9)) == 1
    writer.join()

    assert seen == sorted(seen)
    assert index.get(Family.META, b"n") == index.get(Family.DIRTY, b"n") == (399).to_bytes(8)


# --- RocksDB alone ------------------------------------------------------------------------------------------------------


@pytest.fixture
def closed(tmp_path: Path) -> Path:
    """Give the place of a database as a killed process leaves it: rows in table files and one in the log only."""
    live, path = tmp_path / "live", tmp_path / "index"
    index = RocksIndex.open(str(live))
    index.write([put(Family.META, b"old", b"1" * 5000), put(Family.OBJECTS, b"old", b"1")])
    index.close()  # writes the memtables out
    index = RocksIndex.open(str(live))
    index.write([put(Family.META, b"new", b"2")])
    shutil.copytree(live, path)
    index.close()
    return path


def test_open_when_reopened(closed: Path) -> None:
    """Rows of table files and of the log are there after a reopening."""
    index = RocksIndex.open(str(closed))

    found = (
        index.get(Family.META, b"old"),
        index.get(Family.META, b"new"),
        index.get(Family.OBJECTS, b"old"),
    )
    index.close()

    assert found == (b"1" * 5000, b"2", b"1")


def test_open_when_open_already(closed: Path) -> None:
    """A database that is open is not opened a second time."""
    index = RocksIndex.open(str(closed))

    with pytest.raises(LockedError, match="open already"):
        RocksIndex.open(str(closed))
    index.close()


def remove_manifest(path: Path) -> None:
    """Lose the list of table files."""
    for manifest in path.glob("MANIFEST-*"):
        manifest.unlink()


def zero_manifest(path: Path) -> None:
    """Blank the list of table files."""
    for manifest in path.glob("MANIFEST-*"):
        manifest.write_bytes(bytes(manifest.stat().st_size))


def remove_tables(path: Path) -> None:
    """Lose the table files."""
    for table in path.glob("*.sst"):
        table.unlink()


def cut_tables(path: Path) -> None:
    """Keep only the beginning of each table file."""
    for table in path.glob("*.sst"):
        table.write_bytes(table.read_bytes()[:100])


def garble_current(path: Path) -> None:
    """Spoil the name of the present manifest."""
    (path / "CURRENT").write_bytes(b"nonsense")


def remove_current(path: Path) -> None:
    """Lose the name of the present manifest."""
    (path / "CURRENT").unlink()


@pytest.mark.parametrize(
    "damage", [remove_manifest, zero_manifest, remove_tables, cut_tables, garble_current, remove_current]
)
def test_open_when_damaged(closed: Path, damage: Callable[[Path], None]) -> None:
    """A damaged database raises DamagedError, and after destroy a new, empty one opens in its place."""
    damage(closed)

    with pytest.raises(DamagedError, match="is damaged"):
        RocksIndex.open(str(closed))
    RocksIndex.destroy(str(closed))
    fresh = RocksIndex.open(str(closed))
    rows = fresh.scan(Family.META, b"", None, 9)
    fresh.close()

    assert rows == []


def test_get_when_table_block_is_damaged(closed: Path) -> None:
    """A row whose bytes have changed on disk is an error, never wrong bytes."""
    for table in closed.glob("*.sst"):
        content = bytearray(table.read_bytes())
        content[10] ^= 0xFF
        table.write_bytes(content)
    index = RocksIndex.open(str(closed))

    with pytest.raises(DamagedError, match="cannot be read"):
        index.get(Family.META, b"old")
    with pytest.raises(DamagedError, match="cannot be read"):
        index.scan(Family.META, b"", None, 9)
    index.close()


def test_open_when_log_is_cut(tmp_path: Path) -> None:
    """Wherever the log is torn, what is left is the rows as of some batch, whole over all families."""
    index = RocksIndex.open(str(tmp_path / "index"))
    for number in range(30):
        index.write([put(Family.META, b"n", number.to_bytes(8)), put(Family.DIRTY, b"n", number.to_bytes(8))])
    found: list[bytes | None] = []
    for cut_bytes in range(1, 1000, 37):
        copy = tmp_path / f"cut{cut_bytes}"
        shutil.copytree(tmp_path / "index", copy)
        log = max(copy.glob("*.log"), key=lambda path: path.stat().st_size)
        log.write_bytes(log.read_bytes()[:-cut_bytes])

        torn = RocksIndex.open(str(copy))

        assert torn.get(Family.META, b"n") == torn.get(Family.DIRTY, b"n")
        found.append(torn.get(Family.META, b"n"))
        torn.close()
    index.close()
    assert found == sorted(found, key=lambda value: value or b"", reverse=True)
    assert found[0] == (28).to_bytes(8)
    assert found[-1] is not None
    assert found[-1] < (20).to_bytes(8)


def test_write_when_disk_refuses(tmp_path: Path) -> None:
    """A batch that the disk refuses is DiskFailedError and leaves nothing visible; what was written before stays."""
    index = RocksIndex.open(str(tmp_path / "index"))
    index.write([put(Family.META, b"before")])
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, hard))

    try:
        with pytest.raises(DiskFailedError, match="index write failed"):
            index.write([put(Family.META, b"a"), put(Family.OBJECTS, b"b", bytes(2 * MIB))])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert names(index.scan(Family.META, b"", None, 9)) == [b"before"]
    assert index.get(Family.OBJECTS, b"b") is None
    index.close()
    reopened = RocksIndex.open(str(tmp_path / "index"))
    assert reopened.get(Family.META, b"before") == b"v"
    reopened.close()


def test_open_when_disk_refuses(closed: Path) -> None:
    """A disk that refuses at the opening says nothing against the index, which opens once the disk does not."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, hard))

    try:
        with pytest.raises(DiskFailedError, match="cannot be opened"):
            RocksIndex.open(str(closed))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    index = RocksIndex.open(str(closed))
    assert index.get(Family.META, b"new") == b"2"
    index.close()


def test_destroy_when_it_cannot(tmp_path: Path) -> None:
    """What cannot be removed is told."""
    (tmp_path / "index").write_bytes(b"a file")

    with pytest.raises(DiskFailedError, match="cannot be removed"):
        RocksIndex.destroy(str(tmp_path / "index"))


def test_destroy_when_absent(tmp_path: Path) -> None:
    """Destroying what is not there is no error."""
    RocksIndex.destroy(str(tmp_path / "index"))

    assert not (tmp_path / "index").exists()


def test_open_when_full_of_rows(tmp_path: Path) -> None:
    """Rows that outgrow the memtables read back, from table files too, in order."""
    index = RocksIndex.open(str(tmp_path / "index"))
    for first in range(0, 60, 10):
        index.write(
            [put(Family.OBJECTS, keys.dirty_key(n), bytes((n,)) * MIB) for n in range(first, first + 10)]
        )

    rows = index.scan(Family.OBJECTS, b"", None, 99)
    value = index.get(Family.OBJECTS, keys.dirty_key(3))
    # Written in the background as they fill; closing waits for what is under way.
    index.close()
    tables = list((tmp_path / "index").glob("*.sst"))

    assert [keys.split_dirty_key(key) for key in names(rows)] == list(range(60))
    assert value == b"\x03" * MIB
    assert tables


# --- the fake alone -----------------------------------------------------------------------------------------------------


def test_clone_at_when_batches_follow_a_checkpoint() -> None:
    """A power cut leaves the checkpoint and any number of whole batches after it."""
    fake = FakeIndex()
    fake.write([put(Family.META, b"n", b"0"), put(Family.DIRTY, b"n", b"0")])
    fake.checkpoint()
    fake.write([put(Family.META, b"n", b"1"), put(Family.DIRTY, b"n", b"1")])
    fake.write([delete(Family.META, b"n"), put(Family.DIRTY, b"n", b"2")])

    clones = [fake.checkpoint_clone(), fake.clone_at(1), fake.kill_clone()]

    assert [(clone.get(Family.META, b"n"), clone.get(Family.DIRTY, b"n")) for clone in clones] == [
        (b"0", b"0"),
        (b"1", b"1"),
        (None, b"2"),
    ]
    assert [clone.batches_after_checkpoint for clone in clones] == [0, 0, 0]


def test_fail_write_when_second_write_is_named() -> None:
    """The named write fails and leaves nothing, and so do all that follow, until the index is opened anew."""
    fake = FakeIndex()
    fake.fail_write(2)
    fake.write([put(Family.META, b"a")])

    with pytest.raises(DiskFailedError):
        fake.write([put(Family.META, b"b")])
    fake.heal()
    with pytest.raises(DiskFailedError):
        fake.write([put(Family.META, b"c")])
    with pytest.raises(UnknownOutcomeError):
        fake.checkpoint()
    opened = fake.kill_clone()
    opened.write([put(Family.META, b"d")])

    assert names(fake.scan(Family.META, b"", None, 9)) == [b"a"]
    assert names(opened.scan(Family.META, b"", None, 9)) == [b"a", b"d"]


def test_fail_checkpoint_when_named() -> None:
    """A failed checkpoint makes nothing durable, nor does a later one; one after opening anew does."""
    fake = FakeIndex()
    fake.write([put(Family.META, b"a")])
    fake.fail_checkpoint()

    for _ in range(2):
        with pytest.raises(UnknownOutcomeError):
            fake.checkpoint()

    assert fake.checkpoint_clone().get(Family.META, b"a") is None
    opened = fake.kill_clone()
    opened.checkpoint()
    assert opened.checkpoint_clone().get(Family.META, b"a") == b"v"
