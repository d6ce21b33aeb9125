"""A real directory whose every change is written down, so that what a power cut would have left of it can be made.

`RecordingFilesystem` carries each call out on a real file system and notes it in a `Log`: what changes something with its
bytes, a sync when it begins and when it has returned. `Replay` carries the log out once more, up to any place, on a
`FakeFilesystem`, whose `crash_clone` is then what a power cut there leaves; `write_out` makes a real directory of that.

A call is noted once it has returned, and only one that changes something is under way at a time, so the order of the
log is the order of the changes. Syncs run beside them: one covers what was noted before it began.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.filesystem import File, Filesystem, Lock
from tests.fakes.disk import Directory, Entry, Inode
from tests.fakes.filesystem import FakeFile, FakeFilesystem


@dataclass(frozen=True, slots=True)
class Opened:
    """A file was opened for writing, created where `is_new`; later events name it by `handle`."""

    handle: int
    path: str
    is_new: bool


@dataclass(frozen=True, slots=True)
class Wrote:
    """Bytes were written."""

    handle: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncated:
    """A file's size was set."""

    handle: int
    size: int


@dataclass(frozen=True, slots=True)
class Renamed:
    """A file got another name."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class Unlinked:
    """A name was removed."""

    path: str


@dataclass(frozen=True, slots=True)
class MadeDirectory:
    """A directory was made, or was there."""

    path: str


@dataclass(frozen=True, slots=True)
class SyncBegun:
    """A sync of a file, or of the directory `path` where `handle` is 0, began."""

    sync: int
    handle: int
    path: str = ""


@dataclass(frozen=True, slots=True)
class SyncEnded:
    """It returned without an error."""

    sync: int


class Log:
    """All that happened, in order; others may note events of their own in it."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.events: list[object] = []
        self._last_id = 0

    def note(self, event: object) -> None:
        """Put an event behind the others."""
        with self.lock:
            self.events.append(event)

    def take_id(self) -> int:
        """Give a number for a handle or a sync."""
        with self.lock:
            self._last_id += 1
            return self._last_id

    @contextmanager
    def syncing(self, handle: int, path: str = "") -> Iterator[None]:
        """Note that a sync begins, and that it ended where the block did not raise."""
        sync = self.take_id()
        self.note(SyncBegun(sync, handle, path))
        yield
        self.note(SyncEnded(sync))


class RecordingFile:
    """One open file whose changes are noted."""

    def __init__(self, file: File, log: Log, handle: int) -> None:
        self._file = file
        self._log = log
        self._handle = handle

    def fileno(self) -> int:
        return self._file.fileno()

    def pread(self, offset: int, length: int) -> bytes:
        return self._file.pread(offset, length)

    def pread_if_cached(self, offset: int, length: int) -> bytes | None:
        return self._file.pread_if_cached(offset, length)

    def pwrite(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        with self._log.lock:
            self._file.pwrite(offset, data)
            self._log.note(Wrote(self._handle, offset, bytes(data)))

    def fdatasync(self) -> None:
        with self._log.syncing(self._handle):
            self._file.fdatasync()

    def truncate(self, size: int) -> None:
        with self._log.lock:
            self._file.truncate(size)
            self._log.note(Truncated(self._handle, size))

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


class RecordingFilesystem:
    """See the head of this file."""

    def __init__(self, filesystem: Filesystem, log: Log) -> None:
        self._filesystem = filesystem
        self._log = log

    def create(self, path: str) -> File:
        with self._log.lock:
            return self._opened(self._filesystem.create(path), path, is_new=True)

    def open(self, path: str) -> File:
        with self._log.lock:
            return self._opened(self._filesystem.open(path), path, is_new=False)

    def _opened(self, file: File, path: str, *, is_new: bool) -> File:
        handle = self._log.take_id()
        self._log.note(Opened(handle, path, is_new))
        return RecordingFile(file, self._log, handle)

    def open_reader(self, path: str) -> File:
        return self._filesystem.open_reader(path)

    def rename(self, path: str, target: str) -> None:
        with self._log.lock:
            self._filesystem.rename(path, target)
            self._log.note(Renamed(path, target))

    def unlink(self, path: str) -> None:
        with self._log.lock:
            self._filesystem.unlink(path)
            self._log.note(Unlinked(path))

    def make_directory(self, path: str) -> None:
        with self._log.lock:
            self._filesystem.make_directory(path)
            self._log.note(MadeDirectory(path))

    def list_directory(self, path: str) -> list[str]:
        return self._filesystem.list_directory(path)

    def sync_directory(self, path: str) -> None:
        with self._log.syncing(0, path):
            self._filesystem.sync_directory(path)

    def lock(self, path: str) -> Lock:
        return self._filesystem.lock(path)

    def free_bytes(self) -> int:
        return self._filesystem.free_bytes()

    def total_bytes(self) -> int:
        return self._filesystem.total_bytes()


class Replay:
    """Carries a log out on a file system in memory, event by event; what is nobody's call it leaves to its caller."""

    def __init__(self, filesystem: FakeFilesystem | None = None) -> None:
        self.filesystem = filesystem or FakeFilesystem()
        self._files: dict[int, FakeFile] = {}
        self._serials: dict[int, tuple[Inode, int]] = {}
        self._names: dict[int, tuple[str, list[tuple[Entry, ...]]]] = {}

    def apply(self, event: object) -> bool:
        """Carry out an event; False where it is none of the file system's."""
        filesystem = self.filesystem
        match event:
            case Opened(handle, path, is_new):
                self._files[handle] = filesystem.create(path) if is_new else filesystem.open(path)
            case Wrote(handle, offset, data):
                self._files[handle].pwrite(offset, data)
            case Truncated(handle, size):
                self._files[handle].truncate(size)
            case Renamed(path, target):
                filesystem.rename(path, target)
            case Unlinked(path):
                filesystem.unlink(path)
            case MadeDirectory(path):
                filesystem.make_directory(path)
            case SyncBegun(sync, 0, path):
                self._names[sync] = (path, list(filesystem._tree.pending))
            case SyncBegun(sync, handle):
                inode = self._files[handle]._inode
                self._serials[sync] = (inode, inode.serial)
            case SyncEnded(sync):
                self._end(sync)
            case _:
                return False
        return True

    def _end(self, sync: int) -> None:
        if sync in self._serials:
            inode, serial = self._serials.pop(sync)
            inode.sync(serial)
        else:
            path, begun = self._names.pop(sync)
            self.filesystem._tree.sync(self.filesystem._directory(path), begun)


def write_out(filesystem: FakeFilesystem, root: Path) -> None:
    """Make a real directory that holds what a file system in memory does."""

    def write(directory: Directory, place: Path) -> None:
        place.mkdir(exist_ok=True)
        for name, node in directory.entries.items():
            if isinstance(node, Directory):
                write(node, place / name)
            else:
                (place / name).write_bytes(node.data)

    write(filesystem._tree.root, root)
