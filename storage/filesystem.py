"""The port to the file system, and the POSIX adapter behind it.

Everything that storage does to files goes through `Filesystem` and `File`, so that a test can count the calls, fail the n-th,
and clone what a power cut would leave (`tests/fakes/filesystem.py`). Paths are relative to the cache directory, with `/`; "" is
the cache directory itself.

All calls block: they are made from worker threads, except `File.pread_if_cached`, `File.fileno` and `Filesystem.open_reader`
of a file that is in the page cache. Errors are OSError with errno; callers translate once at their border.

What a call promises after a power cut: bytes written are durable only after `fdatasync` of that file returned; a name created,
renamed or removed is durable only after `sync_directory` of its directory returned. After a failed `fdatasync` nothing is known
about the bytes since the last successful one, and a later success says nothing about them.
"""

import errno
import fcntl
import logging
import os
from pathlib import Path, PurePosixPath
from typing import Final, Protocol

from storage.errors import DiskFailedError, DiskFullError

log = logging.getLogger(__name__)

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NOT_PROBED: Final = frozenset({errno.EAGAIN, errno.EOPNOTSUPP})
"""What preadv2 answers where the bytes are not in memory, and where the file system cannot tell."""


def disk_error(error: OSError, action: str) -> DiskFullError | DiskFailedError:
    """Translate a failure with a known outcome: no space (or quota) is DiskFullError, all else DiskFailedError.

    Not for a failed sync, nor for a failed cut back: their outcome is unknown.
    """
    message = f"{action}: {error.strerror or error}"
    return DiskFullError(message) if error.errno in _FULL else DiskFailedError(message)


class File(Protocol):
    """One open file."""

    def fileno(self) -> int:
        """The descriptor, for sendfile; -1 where the file system is not a real one."""
        ...

    def pread(self, offset: int, length: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end of the file."""
        ...

    def pread_if_cached(self, offset: int, length: int) -> bytes | None:
        """Read without touching the disk; None where any of it is not in memory (preadv2 RWF_NOWAIT)."""
        ...

    def pwrite(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data` at `offset`, or raise (a short write is OSError ENOSPC or EIO, never silent)."""
        ...

    def fdatasync(self) -> None:
        """Make bytes and size durable."""
        ...

    def truncate(self, size: int) -> None:
        """Set the file's size."""
        ...

    def size(self) -> int:
        """The file's size in bytes."""
        ...

    def close(self) -> None:
        """Release the descriptor; closing twice is allowed. Never fails: whether bytes are on the disk is for `fdatasync` to say."""
        ...


class Lock(Protocol):
    """An exclusive lock on the directory, held until closed or the process ends."""

    def close(self) -> None:
        """Let the next process in."""
        ...


class Filesystem(Protocol):
    """A directory tree."""

    def create(self, path: str) -> File:
        """Create a file for reading and writing; FileExistsError where the name is taken."""
        ...

    def open(self, path: str) -> File:
        """Open an existing file for reading and writing; FileNotFoundError where there is none."""
        ...

    def open_reader(self, path: str) -> File:
        """Open an existing file for reading only."""
        ...

    def rename(self, path: str, target: str) -> None:
        """Give the file another name in the same tree, replacing what had it, atomically."""
        ...

    def unlink(self, path: str) -> None:
        """Remove a name; FileNotFoundError where there is none. Open files stay readable."""
        ...

    def make_directory(self, path: str) -> None:
        """Create a directory; it may exist already."""
        ...

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        ...

    def sync_directory(self, path: str) -> None:
        """Make the names of a directory durable."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock file `path`, creating it; BlockingIOError where another process holds it."""
        ...

    def free_bytes(self) -> int:
        """Bytes that may still be allocated on the volume."""
        ...

    def total_bytes(self) -> int:
        """The size of the volume in bytes."""
        ...


class PosixFile:
    """One open file of a real file system; owns its descriptor."""

    def __init__(self, descriptor: int, path: str) -> None:
        self._descriptor = descriptor
        self._path = path

    def __repr__(self) -> str:
        return f"PosixFile({self._path!r}, descriptor={self._descriptor})"

    def fileno(self) -> int:
        """The descriptor; -1 once closed."""
        return self._descriptor

    def pread(self, offset: int, length: int) -> bytes:
        """Read up to `length` bytes at `offset`; shorter only at the end of the file."""
        data = os.pread(self._descriptor, length, offset)
        if len(data) in (0, length):
            return data
        # Linux cuts one read at 2 GiB and on a signal: a short answer is the end of the file only when the next one is empty.
        chunks = [data]
        read_bytes = len(data)
        while data and read_bytes < length:
            data = os.pread(self._descriptor, length - read_bytes, offset + read_bytes)
            chunks.append(data)
            read_bytes += len(data)
        return b"".join(chunks)

    def pread_if_cached(self, offset: int, length: int) -> bytes | None:
        """Read what is in the page cache whole; None where any of it is not, or the file system cannot tell."""
        buffer = bytearray(length)
        try:
            read_bytes = os.preadv(self._descriptor, [buffer], offset, os.RWF_NOWAIT)
        except OSError as error:
            if error.errno in _NOT_PROBED:
                return None
            raise
        if read_bytes == length:
            return bytes(buffer)
        # Short is the end of the file, or the first page that is not in memory.
        is_at_end = offset + read_bytes >= self.size()
        return bytes(buffer[:read_bytes]) if is_at_end else None

    def pwrite(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write all of `data`; after an error any part of it may be in the file."""
        rest = memoryview(data).cast("B")
        while rest:
            written_bytes = os.pwrite(self._descriptor, rest, offset)
            if written_bytes == 0:
                raise OSError(errno.EIO, "the file system took no byte", self._path)
            rest = rest[written_bytes:]
            offset += written_bytes

    def fdatasync(self) -> None:
        """Make bytes and size durable."""
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        """Set the file's size."""
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        """The file's size in bytes."""
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        """Release the descriptor; closing twice is allowed."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor == -1:
            return
        try:
            os.close(descriptor)
        except OSError as error:
            # The descriptor is gone all the same (close(2)), and nothing that was not synced is relied upon.
            log.warning("%s: close: %s", self._path, error.strerror)


class PosixFilesystem:
    """The directory tree under `root`, which exists and belongs to this process (see `lock`)."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def create(self, path: str) -> PosixFile:
        """Create a file for reading and writing, readable by its owner only."""
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def open(self, path: str) -> PosixFile:
        """Open an existing file for reading and writing."""
        return self._open(path, os.O_RDWR)

    def open_reader(self, path: str) -> PosixFile:
        """Open an existing file for reading only."""
        return self._open(path, os.O_RDONLY)

    def rename(self, path: str, target: str) -> None:
        """Give the file another name in the same tree, replacing what had it, atomically."""
        self._place(path).replace(self._place(target))

    def unlink(self, path: str) -> None:
        """Remove a name; open files stay readable."""
        self._place(path).unlink()

    def make_directory(self, path: str) -> None:
        """Create a directory under an existing one; it may exist already."""
        self._place(path).mkdir(mode=0o700, exist_ok=True)

    def list_directory(self, path: str) -> list[str]:
        """The names in a directory, sorted."""
        return sorted(entry.name for entry in self._place(path).iterdir())

    def sync_directory(self, path: str) -> None:
        """Make the names of a directory durable."""
        descriptor = os.open(self._place(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def lock(self, path: str) -> PosixFile:
        """Take the lock file `path` by flock, which the kernel lets go when the process ends in whatever way."""
        file = self._open(path, os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise
        return file

    def free_bytes(self) -> int:
        """Bytes that this process may still allocate on the volume."""
        volume = os.statvfs(self._root)
        return volume.f_bavail * volume.f_frsize

    def total_bytes(self) -> int:
        """The size of the volume in bytes."""
        volume = os.statvfs(self._root)
        return volume.f_blocks * volume.f_frsize

    def _open(self, path: str, flags: int) -> PosixFile:
        return PosixFile(os.open(self._place(path), flags | os.O_CLOEXEC, 0o600), path)

    def _place(self, path: str) -> Path:
        relative = PurePosixPath(path)
        assert not relative.is_absolute(), f"{path!r} is not a path inside the cache directory"
        assert ".." not in relative.parts, f"{path!r} is not a path inside the cache directory"
        return self._root / relative
