"""The cache directory: made whole or not at all, and refused, unchanged, where it belongs to somebody else."""

import random

import pytest

from storage.errors import DamagedError, DiskFailedError, DiskFullError, FormatError, LockedError
from storage.filesystem import PosixFilesystem
from storage.layout import Layout, open_layout, read_layout, take_lock
from tests.fakes.filesystem import CHANGING, FakeFilesystem, Halted, Operation

INSTANCE_ID = bytes(range(16))
ORIGIN = "https://s3.example.test"
FORMAT_TEXT = b"""\
format = 1
instance_id = "000102030405060708090a0b0c0d0e0f"
node = 0
origin = "https://s3.example.test"
has_begun = false
"""


@pytest.fixture
def disk() -> FakeFilesystem:
    """Give an empty file system in memory."""
    return FakeFilesystem()


def make(disk: FakeFilesystem, origin: str = ORIGIN) -> Layout:
    """Open a directory with a fixed instance id."""
    return open_layout(disk, origin=origin, fresh_instance_id=INSTANCE_ID)


def write_format(disk: FakeFilesystem, text: bytes) -> None:
    """Put a FORMAT file into the directory."""
    disk.create("FORMAT").pwrite(0, text)


def changes(disk: FakeFilesystem) -> list[Operation]:
    """Show what was changed."""
    return [call.operation for call in disk.calls if call.operation in CHANGING]


def test_open_layout_when_directory_is_empty(disk: FakeFilesystem) -> None:
    """A new directory gets its FORMAT, whose bytes never change within a format, and its three directories."""
    layout = make(disk)

    assert layout == Layout(INSTANCE_ID, 0, ORIGIN)
    assert disk.contents("FORMAT") == FORMAT_TEXT
    assert disk.list_directory("") == ["FORMAT", "index", "journal", "segments"]


def test_open_layout_when_it_was_made_before(disk: FakeFilesystem) -> None:
    """A directory keeps the instance id that it was made with."""
    make(disk)

    again = open_layout(disk, origin=ORIGIN, fresh_instance_id=bytes(16))

    assert again == Layout(INSTANCE_ID, 0, ORIGIN)


@pytest.mark.parametrize("seed", range(4))
def test_open_layout_when_cut_short_anywhere(seed: int) -> None:
    """Wherever a power cut or a kill interrupts the making, the next start makes it, under one instance id."""
    draws = random.Random(seed)
    whole = FakeFilesystem()
    make(whole)

    for nth in range(1, whole.changing_calls + 1):
        disk = FakeFilesystem(seed=seed)
        disk.halt_at(nth)
        with pytest.raises(Halted):
            make(disk)
        for left in (disk.crash_clone(draws), disk.crash_clone(draws, 0.0), disk.kill_clone()):
            layout = open_layout(left, origin=ORIGIN, fresh_instance_id=bytes(16))

            after = left.crash_clone(draws, 0.0)
            assert layout.instance_id in {INSTANCE_ID, bytes(16)}
            assert read_layout(after) == layout
            assert after.list_directory("") == ["FORMAT", "index", "journal", "segments"]


def test_open_layout_when_origin_is_another(disk: FakeFilesystem) -> None:
    """A directory of another origin is refused with both names and the way out, and nothing in it is touched."""
    make(disk)
    disk.calls.clear()

    with pytest.raises(FormatError, match=r"s3\.example\.test, not to https://other.*--drain.*--cache-dir"):
        make(disk, "https://other.example.test")

    assert changes(disk) == []


@pytest.mark.parametrize(
    "text", [b"format = 2\n", FORMAT_TEXT.replace(b"format = 1", b"format = 7") + b'disks = ["a", "b"]\n']
)
def test_open_layout_when_format_is_newer(disk: FakeFilesystem, text: bytes) -> None:
    """A directory of a newer format is refused as such, even where its fields are others, and nothing is touched."""
    write_format(disk, text)
    disk.calls.clear()

    with pytest.raises(FormatError, match=r"has format [27]; this program knows up to 1.*newer program"):
        make(disk)

    assert changes(disk) == []


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"format = one\n",
        b"format = 1\n",
        FORMAT_TEXT.replace(b'0f"', b'"'),
        FORMAT_TEXT.replace(b"000102", b"zzzzzz"),
        FORMAT_TEXT.replace(b"node = 0", b'node = "x"'),
    ],
)
def test_open_layout_when_format_is_damaged(disk: FakeFilesystem, text: bytes) -> None:
    """A FORMAT that makes no sense is damage, and names the tool for it."""
    write_format(disk, text)

    with pytest.raises(DamagedError, match="forebay fsck"):
        make(disk)


def test_open_layout_when_format_is_missing_beside_a_journal(disk: FakeFilesystem) -> None:
    """A journal without its FORMAT is not made anew over: it may hold what nobody else has."""
    make(disk)
    disk.create("journal/0000000000000001.log")
    disk.unlink("FORMAT")

    with pytest.raises(DamagedError, match="FORMAT is missing beside a journal"):
        make(disk)


def test_open_layout_when_directory_holds_something_else(disk: FakeFilesystem) -> None:
    """A directory with foreign files is not made a cache of."""
    disk.create("thesis.tex")
    disk.make_directory("lost+found")

    with pytest.raises(FormatError, match=r"something else \(thesis.tex\)"):
        make(disk)


@pytest.mark.parametrize(
    "origin", ['https://a"b\\c.test', "http://[::1]:9000", "https://bücher.example.test/ü"]
)
def test_read_layout_when_origin_has_odd_characters(disk: FakeFilesystem, origin: str) -> None:
    """An endpoint reads back as it was written."""
    make(disk, origin)

    assert read_layout(disk).origin == origin


@pytest.mark.parametrize(("error_number", "kind"), [(28, DiskFullError), (5, DiskFailedError)])
def test_open_layout_when_disk_refuses(
    disk: FakeFilesystem, error_number: int, kind: type[Exception]
) -> None:
    """What the disk refuses is told as such; a later try makes the directory."""
    disk.fail(Operation.PWRITE, error_number=error_number)

    with pytest.raises(kind):
        make(disk)

    assert make(disk) == Layout(INSTANCE_ID, 0, ORIGIN)


def test_take_lock_when_directory_is_in_use(disk: FakeFilesystem) -> None:
    """A second process is kept out until the first has let go."""
    lock = take_lock(disk)

    with pytest.raises(LockedError, match="in use by another process"):
        take_lock(disk)
    lock.close()
    take_lock(disk).close()


def test_take_lock_when_it_cannot_be_made(disk: FakeFilesystem) -> None:
    """A lock that cannot be taken for want of a disk is no other process."""
    disk.fail(Operation.LOCK)

    with pytest.raises(DiskFailedError):
        take_lock(disk)


def test_open_layout_when_file_system_is_real(tmp_path: object) -> None:
    """The same on a real file system, the lock file included."""
    filesystem = PosixFilesystem(str(tmp_path))
    lock = take_lock(filesystem)

    layout = open_layout(filesystem, origin=ORIGIN, fresh_instance_id=INSTANCE_ID)

    assert read_layout(filesystem) == layout
    assert filesystem.list_directory("") == ["FORMAT", "LOCK", "index", "journal", "segments"]
    lock.close()
