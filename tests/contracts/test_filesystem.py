"""What the file system port promises, run over the real one and the fake, and what each promises beyond it."""

import errno
import os
import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage.errors import DiskFailedError, DiskFullError, StorageError
from storage.filesystem import Filesystem, PosixFile, PosixFilesystem, disk_error
from tests.fakes.filesystem import Call, FakeFilesystem, Halted, Operation

KEEP_ALL = 1.0
KEEP_NOTHING = 0.0


@pytest.fixture(params=["posix", "fake"])
def filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> Filesystem:
    """The real one and the fake in turn."""
    if request.param == "posix":
        return PosixFilesystem(str(tmp_path))
    return FakeFilesystem()


@pytest.fixture
def fake() -> FakeFilesystem:
    """An empty fake."""
    return FakeFilesystem()


# --- both ----------------------------------------------------------------------------------------------------------------


def test_pread_when_inside_the_file(filesystem: Filesystem) -> None:
    """Bytes written are read back from any place at once, by the same and by another open file."""
    file = filesystem.create("a")

    file.pwrite(0, b"hello")
    file.pwrite(5, bytearray(b" wor"))
    file.pwrite(9, memoryview(b"ld"))

    assert file.pread(4, 4) == b"o wo"
    reader = filesystem.open_reader("a")
    assert reader.pread(0, 11) == b"hello world"
    file.close()
    reader.close()


def test_pread_when_at_the_end(filesystem: Filesystem) -> None:
    """A read that crosses the end is short, one behind it empty."""
    file = filesystem.create("a")
    file.pwrite(0, b"hello")

    assert file.pread(3, 100) == b"lo"
    assert file.pread(5, 1) == b""
    assert file.pread(500, 1) == b""
    file.close()


def test_pwrite_when_behind_the_end(filesystem: Filesystem) -> None:
    """A hole reads as zeros and counts in the size."""
    file = filesystem.create("a")

    file.pwrite(3, b"x")

    assert file.pread(0, 10) == b"\0\0\0x"
    assert file.size() == 4
    file.close()


def test_pread_if_cached_when_just_written(filesystem: Filesystem) -> None:
    """Bytes in memory are given as by pread, and short at the end of the file."""
    file = filesystem.create("a")
    file.pwrite(0, b"hello")

    assert file.pread_if_cached(1, 3) == b"ell"
    assert file.pread_if_cached(3, 100) == b"lo"
    assert file.pread_if_cached(5, 10) == b""
    file.close()


def test_truncate_when_shorter_and_longer(filesystem: Filesystem) -> None:
    """Truncating cuts bytes off for good and fills up with zeros."""
    file = filesystem.create("a")
    file.pwrite(0, b"hello")

    file.truncate(2)
    file.truncate(4)
    file.fdatasync()

    assert file.size() == 4
    assert file.pread(0, 10) == b"he\0\0"
    file.close()


def test_create_when_name_is_taken(filesystem: Filesystem) -> None:
    """Creating never takes over a file that is there."""
    filesystem.create("a").close()

    with pytest.raises(FileExistsError):
        filesystem.create("a")


@pytest.mark.parametrize("call", ["open", "open_reader", "unlink", "rename", "list_directory", "create"])
def test_call_when_name_is_missing(filesystem: Filesystem, call: str) -> None:
    """What is not there, or in a directory that is not there, is FileNotFoundError."""
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: filesystem.open("a"),
        "open_reader": lambda: filesystem.open_reader("a"),
        "unlink": lambda: filesystem.unlink("a"),
        "rename": lambda: filesystem.rename("a", "b"),
        "list_directory": lambda: filesystem.list_directory("a"),
        "create": lambda: filesystem.create("a/b"),
    }

    with pytest.raises(FileNotFoundError):
        calls[call]()


def test_pwrite_when_opened_for_reading(filesystem: Filesystem) -> None:
    """A reader's file cannot be changed."""
    filesystem.create("a").close()
    reader = filesystem.open_reader("a")

    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        reader.pwrite(0, b"x")

    assert reader.size() == 0
    reader.close()


def test_close_when_the_system_reports_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor is gone and nobody is told: what must be on the disk was synced before."""
    file = PosixFilesystem(str(tmp_path)).create("a")
    close = os.close

    def fail(descriptor: int) -> None:
        close(descriptor)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr("os.close", fail)
    file.close()
    file.close()

    assert file.fileno() == -1


def test_close_when_closed(filesystem: Filesystem) -> None:
    """Closing twice is allowed; anything else on a closed file fails with EBADF and has no descriptor."""
    file = filesystem.create("a")

    file.close()
    file.close()

    assert file.fileno() == -1
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        file.pread(0, 1)
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        file.size()


def test_rename_when_target_exists(filesystem: Filesystem) -> None:
    """A rename replaces the target; who had that open still reads the old bytes."""
    filesystem.make_directory("d")
    for name in ("d/new", "d/old"):
        file = filesystem.create(name)
        file.pwrite(0, name.encode())
        file.close()
    reader = filesystem.open_reader("d/old")

    filesystem.rename("d/new", "d/old")
    filesystem.sync_directory("d")

    assert filesystem.list_directory("d") == ["old"]
    assert filesystem.open_reader("d/old").pread(0, 10) == b"d/new"
    assert reader.pread(0, 10) == b"d/old"


def test_unlink_when_open(filesystem: Filesystem) -> None:
    """A name goes at once, the bytes stay for who has them open."""
    file = filesystem.create("a")
    file.pwrite(0, b"hello")

    filesystem.unlink("a")

    assert filesystem.list_directory("") == []
    assert file.pread(0, 5) == b"hello"
    file.close()


def test_list_directory_when_files_and_directories(filesystem: Filesystem) -> None:
    """Names come sorted, directories among them; making a directory that is there is fine."""
    filesystem.make_directory("m")
    filesystem.make_directory("m")
    filesystem.create("z").close()
    filesystem.create("a").close()
    filesystem.create("m/x").close()

    assert filesystem.list_directory("") == ["a", "m", "z"]
    assert filesystem.list_directory("m") == ["x"]


def test_make_directory_when_a_file_has_the_name(filesystem: Filesystem) -> None:
    """A file is not mistaken for a directory."""
    filesystem.create("a").close()

    with pytest.raises(FileExistsError):
        filesystem.make_directory("a")


def test_lock_when_held(filesystem: Filesystem) -> None:
    """Only one holder at a time; closing lets the next one in."""
    held = filesystem.lock("LOCK")

    with pytest.raises(BlockingIOError):
        filesystem.lock("LOCK")
    held.close()

    filesystem.lock("LOCK").close()
    assert filesystem.list_directory("") == ["LOCK"]


def test_free_bytes_when_asked(filesystem: Filesystem) -> None:
    """There is a volume, and no more of it is free than it has."""
    assert 0 < filesystem.free_bytes() <= filesystem.total_bytes()


# --- the real one --------------------------------------------------------------------------------------------------------


@pytest.fixture
def posix_file(tmp_path: Path) -> Iterator[PosixFile]:
    """An empty real file."""
    file = PosixFilesystem(str(tmp_path)).create("a")
    yield file
    file.close()


def test_pread_if_cached_when_not_in_memory(posix_file: PosixFile) -> None:
    """Bytes that the kernel dropped from memory are not waited for; pread brings them back."""
    posix_file.pwrite(0, b"x" * 65536)
    posix_file.fdatasync()
    os.posix_fadvise(posix_file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)

    cold = posix_file.pread_if_cached(0, 65536)
    posix_file.pread(0, 65536)
    warm = posix_file.pread_if_cached(0, 65536)

    if warm is None:
        pytest.skip("the file system of the test directory cannot tell")
    assert cold is None
    assert warm == b"x" * 65536


def test_pread_if_cached_when_the_kernel_cannot_tell(
    posix_file: PosixFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system without the probe counts as not in memory; any other error is an error."""

    def refuse(code: int) -> None:
        def preadv(*_: object) -> int:
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "preadv", preadv)

    refuse(errno.EOPNOTSUPP)
    assert posix_file.pread_if_cached(0, 1) is None

    refuse(errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        posix_file.pread_if_cached(0, 1)


def test_pread_if_cached_when_only_the_head_is_in_memory(
    posix_file: PosixFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part in memory is not mistaken for the end of the file."""
    posix_file.pwrite(0, b"x" * 8192)
    real_preadv = os.preadv
    monkeypatch.setattr(
        os, "preadv", lambda fd, buffers, offset, _: real_preadv(fd, [buffers[0][:0]], offset) + 4096
    )

    assert posix_file.pread_if_cached(0, 8192) is None


def test_pwrite_and_pread_when_the_kernel_takes_little(
    posix_file: PosixFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Short system calls are continued until all is done."""
    real_pwrite, real_pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real_pwrite(fd, data[:3], offset))
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: real_pread(fd, min(length, 4), offset))

    posix_file.pwrite(0, b"hello world")

    assert posix_file.pread(0, 11) == b"hello world"
    assert posix_file.pread(6, 100) == b"world"


def test_pwrite_when_the_kernel_takes_nothing(posix_file: PosixFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that does not advance is an error, not a loop."""
    monkeypatch.setattr(os, "pwrite", lambda *_: 0)

    with pytest.raises(OSError, match="took no byte"):
        posix_file.pwrite(0, b"x")


@pytest.mark.parametrize("path", ["/etc/passwd", "../a", "d/../../a"])
def test_open_when_path_leaves_the_directory(tmp_path: Path, path: str) -> None:
    """A path outside of the cache directory is a bug."""
    with pytest.raises(AssertionError):
        PosixFilesystem(str(tmp_path)).open(path)


@pytest.mark.parametrize(
    ("number", "expected"),
    [
        (errno.ENOSPC, DiskFullError),
        (errno.EDQUOT, DiskFullError),
        (errno.EIO, DiskFailedError),
        (errno.EROFS, DiskFailedError),
    ],
)
def test_disk_error_when_full_or_failed(number: int, expected: type[StorageError]) -> None:
    """No space and no quota are a full disk; all else is a failed one; both say what was tried."""
    translated = disk_error(OSError(number, os.strerror(number)), "append to x")

    assert type(translated) is expected
    assert str(translated) == f"append to x: {os.strerror(number)}"


# --- the fake: power cuts and kills -----------------------------------------------------------------------------------


def _synced_file(fake: FakeFilesystem, path: str, data: bytes) -> None:
    file = fake.create(path)
    file.pwrite(0, data)
    file.fdatasync()
    fake.sync_directory("")
    file.close()


def test_crash_clone_when_nothing_unsynced_survives(fake: FakeFilesystem) -> None:
    """What was synced is there, what was not is not: bytes, sizes, names."""
    _synced_file(fake, "kept", b"old")
    _synced_file(fake, "renamed", b"r")
    _synced_file(fake, "removed", b"x")
    file = fake.open("kept")
    file.pwrite(0, b"new and longer")
    fake.create("unsynced").fdatasync()
    fake.rename("renamed", "renamed2")
    fake.unlink("removed")
    fake.make_directory("d")

    clone = fake.crash_clone(random.Random(1), KEEP_NOTHING)

    assert clone.list_directory("") == ["kept", "removed", "renamed"]
    assert clone.contents("kept") == b"old"


@pytest.mark.parametrize("how", ["power cut that keeps all", "kill"])
def test_clone_when_everything_survives(fake: FakeFilesystem, how: str) -> None:
    """A kill loses nothing, and neither does a lucky power cut."""
    fake.make_directory("d")
    fake.create("d/a").pwrite(0, b"hello")
    fake.rename("d/a", "d/b")

    clone = fake.kill_clone() if how == "kill" else fake.crash_clone(random.Random(1), KEEP_ALL)

    assert clone.list_directory("d") == ["b"]
    assert clone.contents("d/b") == b"hello"


def test_kill_clone_when_power_is_cut_later(fake: FakeFilesystem) -> None:
    """A kill makes nothing durable."""
    _synced_file(fake, "a", b"old")
    fake.open("a").pwrite(0, b"new")

    clone = fake.kill_clone().crash_clone(random.Random(1), KEEP_NOTHING)

    assert clone.contents("a") == b"old"


def test_clone_when_the_original_goes_on(fake: FakeFilesystem) -> None:
    """A clone is a picture: neither side sees what the other does next."""
    file = fake.create("a")
    clone = fake.kill_clone()

    file.pwrite(0, b"x")
    clone.create("b")

    assert clone.contents("a") == b""
    assert fake.list_directory("") == ["a"]


def test_crash_clone_when_a_write_is_torn(fake: FakeFilesystem) -> None:
    """Each 512-byte sector of an unsynced write is old, new or, behind the old end, missing or zero; all kinds occur."""
    _synced_file(fake, "a", b"o" * 1024)
    fake.open("a").pwrite(100, b"n" * 1400)
    draws = random.Random(7)

    images = {fake.crash_clone(draws).contents("a") for _ in range(300)}

    pieces = {(image[100:512], image[512:1024], image[1024:]) for image in images}
    assert {piece[0] for piece in pieces} == {b"o" * 412, b"n" * 412}
    assert {piece[1] for piece in pieces} == {b"o" * 512, b"n" * 512}
    assert {piece[2] for piece in pieces} == {b"", bytes(476), b"n" * 476}
    assert (b"o" * 412, b"o" * 512, b"n" * 476) in pieces


def test_crash_clone_when_writes_are_reordered(fake: FakeFilesystem) -> None:
    """A later write or truncate may survive without an earlier one."""
    _synced_file(fake, "a", b"....")
    file = fake.open("a")
    file.pwrite(0, b"1")
    file.pwrite(3, b"2")
    file.truncate(6)
    draws = random.Random(7)

    images = {fake.crash_clone(draws).contents("a") for _ in range(200)}

    assert images == {
        first + b".." + last + rest
        for first in (b"1", b".")
        for last in (b"2", b".")
        for rest in (b"", b"\0\0")
    }


def test_crash_clone_when_names_are_reordered(fake: FakeFilesystem) -> None:
    """Any subset of unsynced name changes survives; a rename never loses or doubles a synced name."""
    _synced_file(fake, "a", b"A")
    fake.rename("a", "b")
    fake.create("c")
    draws = random.Random(7)

    listings = {tuple(fake.crash_clone(draws).list_directory("")) for _ in range(100)}

    assert listings == {("a",), ("b",), ("a", "c"), ("b", "c")}


def test_fdatasync_when_a_write_comes_during_it(fake: FakeFilesystem) -> None:
    """A sync covers what was written before it began, and nothing later."""
    _synced_file(fake, "a", b"..")
    file = fake.open("a")
    file.pwrite(0, b"1")
    fake.on_sync = lambda _path: file.pwrite(1, b"2")

    file.fdatasync()

    assert fake.crash_clone(random.Random(1), KEEP_NOTHING).contents("a") == b"1."
    assert file.pread(0, 2) == b"12"


def test_on_sync_when_it_waits(fake: FakeFilesystem) -> None:
    """While one file's sync is under way, other threads go on."""
    slow, fast = fake.create("slow"), fake.create("fast")
    is_waiting, may_end = threading.Event(), threading.Event()

    def on_sync(path: str) -> None:
        if path == "slow":
            is_waiting.set()
            may_end.wait(10)

    fake.on_sync = on_sync
    thread = threading.Thread(target=slow.fdatasync)
    thread.start()
    is_waiting.wait(10)
    fast.pwrite(0, b"x")
    fast.fdatasync()
    before = [call.path for call in fake.calls if call.operation is Operation.FDATASYNC]
    may_end.set()
    thread.join(10)

    assert before == ["fast"]
    assert fake.calls[-1] == Call(Operation.FDATASYNC, "slow")


# --- the fake: failures ----------------------------------------------------------------------------------------------


def test_fail_when_nth_of_an_operation(fake: FakeFilesystem) -> None:
    """Exactly the n-th call fails, with the errno asked for and no effect."""
    file = fake.create("a")
    fake.fail(Operation.PWRITE, nth=2, error_number=errno.ENOSPC)

    file.pwrite(0, b"1")
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        file.pwrite(1, b"2")
    file.pwrite(2, b"3")

    assert fake.contents("a") == b"1\x003"


def test_fail_when_persistent_and_chosen_by_path(fake: FakeFilesystem) -> None:
    """A persistent fault lasts until it is healed and strikes only what it is meant for."""
    good, bad = fake.create("good"), fake.create("bad")
    fake.fail(Operation.PWRITE, is_persistent=True, when=lambda call: call.path == "bad")

    good.pwrite(0, b"x")
    for _ in range(2):
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            bad.pwrite(0, b"x")
    fake.heal()
    bad.pwrite(0, b"x")

    assert fake.contents("good") == fake.contents("bad") == b"x"


def test_fail_when_the_write_is_short(fake: FakeFilesystem) -> None:
    """A short write leaves the part that was taken."""
    file = fake.create("a")
    fake.fail(Operation.PWRITE, written_share=0.5)

    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        file.pwrite(0, b"12345678")

    assert fake.contents("a") == b"1234"


def test_fail_when_no_operation_is_named(fake: FakeFilesystem) -> None:
    """Without a name the n-th changing call fails; reads are not counted."""
    file = fake.create("a")
    fake.fail(nth=2)

    file.pwrite(0, b"x")
    file.pread(0, 1)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        fake.sync_directory("")


def test_fdatasync_when_it_fails() -> None:
    """After a failed sync bytes may be dropped although they read back, and no later sync brings them to the disk."""
    outcomes = set()
    for seed in range(40):
        disk = FakeFilesystem(seed=seed)
        _synced_file(disk, "a", b"old")
        file = disk.open("a")
        file.pwrite(0, b"new")
        disk.fail(Operation.FDATASYNC)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            file.fdatasync()
        file.fdatasync()

        read_back = disk.contents("a")
        durable = disk.crash_clone(random.Random(1), KEEP_ALL).contents("a")
        outcomes.add((read_back, durable))

    assert outcomes == {(b"new", b"new"), (b"new", b"old"), (b"old", b"old")}


def test_sync_directory_when_it_fails() -> None:
    """After a failed directory sync a name may be durable or not; a later success makes it so."""
    survived = set()
    for seed in range(20):
        disk = FakeFilesystem(seed=seed)
        disk.create("a")
        disk.fail(Operation.SYNC_DIRECTORY)
        with pytest.raises(OSError, match=os.strerror(errno.EIO)):
            disk.sync_directory("")
        survived.add(tuple(disk.crash_clone(random.Random(1), KEEP_NOTHING).list_directory("")))
        disk.sync_directory("")
        assert disk.crash_clone(random.Random(1), KEEP_NOTHING).list_directory("") == ["a"]

    assert survived == {(), ("a",)}


def test_pwrite_when_the_disk_is_full() -> None:
    """A full disk takes what fits and says ENOSPC; space comes back with the last user of an unlinked file."""
    fake = FakeFilesystem(disk_bytes_max=10)
    file, other = fake.create("a"), fake.create("b")
    file.pwrite(0, b"12345678")

    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        other.pwrite(0, b"abcd")
    file.pwrite(0, b"rewritten"[:8])
    fake.unlink("a")
    free_while_open = fake.free_bytes()
    file.close()

    assert fake.contents("b") == b"ab"
    assert (free_while_open, fake.free_bytes()) == (0, 8)


def test_halt_at_when_reached(fake: FakeFilesystem) -> None:
    """The n-th changing call takes effect and does not return; nothing later does anything."""
    fake.halt_at(2)
    file = fake.create("a")

    with pytest.raises(Halted):
        file.pwrite(0, b"x")
    with pytest.raises(Halted):
        fake.unlink("a")

    assert fake.kill_clone().contents("a") == b"x"
    assert fake.changing_calls == 2


def test_pread_if_cached_when_made_cold(fake: FakeFilesystem) -> None:
    """A test can say which files are not in memory."""
    file = fake.create("a")
    fake.cold_paths.add("a")

    assert file.pread_if_cached(0, 1) is None


def test_replace_contents_when_damaged(fake: FakeFilesystem) -> None:
    """Damage by hand is durable."""
    fake.create("a").pwrite(0, b"good")
    fake.sync_directory("")

    fake.replace_contents("a", b"bad")

    assert fake.crash_clone(random.Random(1), KEEP_NOTHING).contents("a") == b"bad"
