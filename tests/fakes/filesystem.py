"""A file system in memory that counts calls, fails any of them, and tells what a power cut or a SIGKILL would leave.

The fault model:

1. Written bytes, sizes and names are seen by every open file at once. They are durable only after `fdatasync` of the file, and
   `sync_directory` of the directory, has returned.
2. Power cut (`crash_clone`): of the unsynced writes and truncates of a file any subset survives, each kept, lost or, for a
   write, torn: any subset of its 512-byte sectors (at multiples of 512 in the file). The size may have grown although the
   bytes are lost; a hole reads as zeros. Of the unsynced creates, renames, unlinks and new directories any subset survives,
   each whole. (Real file systems keep a prefix of them, mostly; any subset is harsher.) A synced file whose name was not
   synced is gone. A rename between two directories is durable once either is synced: milder than the truth, and not used.
3. SIGKILL (`kill_clone`): what was written survives, and is as unsynced as before.
4. A call that fails (`fail`) changes nothing, with three exceptions. A failed write leaves the first `written_share` of its
   bytes. A failed `fdatasync` lets each pending change reach the disk or drops it for good, so that a later success does not
   write it; what was dropped reads back, or not, for the whole file. A failed `sync_directory` makes any subset durable and
   leaves the rest to the next sync.
5. A full disk (`disk_bytes_max`) takes the part of a write that fits and then fails with ENOSPC. Every byte of a file counts,
   holes too; an unlinked file counts until it is closed.
6. `halt_at(n)`: the n-th changing call takes effect and does not return: it raises Halted, as does every later call. The
   state before the call is the state after the call before it.
7. A sync covers what was written before it began. `on_sync` runs while it is under way, outside of the lock.

Not modelled: bytes that change by themselves (`replace_contents` does it by hand), reads torn by a write at the same time.
"""

import errno
import os
import random
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from tests.fakes.disk import Directory, Entry, Inode, Tree, inodes


class Halted(BaseException):
    """The process is gone: raised by every call from the one named by `halt_at` on, so that no cleaning up happens."""


class Operation(StrEnum):
    """The calls that are recorded and can fail; `close`, `size` and `fileno` are not among them."""

    CREATE = "create"
    OPEN = "open"
    OPEN_READER = "open_reader"
    RENAME = "rename"
    UNLINK = "unlink"
    MAKE_DIRECTORY = "make_directory"
    LIST_DIRECTORY = "list_directory"
    SYNC_DIRECTORY = "sync_directory"
    LOCK = "lock"
    PREAD = "pread"
    PWRITE = "pwrite"
    TRUNCATE = "truncate"
    FDATASYNC = "fdatasync"
    STATVFS = "statvfs"


CHANGING: Final = frozenset(
    {
        Operation.CREATE,
        Operation.RENAME,
        Operation.UNLINK,
        Operation.MAKE_DIRECTORY,
        Operation.SYNC_DIRECTORY,
        Operation.PWRITE,
        Operation.TRUNCATE,
        Operation.FDATASYNC,
    }
)
"""The calls after which the disk, or what a power cut leaves of it, may be another."""

HANDED_OUT: Final = frozenset({Operation.PWRITE, Operation.FDATASYNC, Operation.SYNC_DIRECTORY})
"""The calls that do something although they fail."""


@dataclass(frozen=True, slots=True)
class Call:
    """One recorded call."""

    operation: Operation
    path: str
    offset: int = 0
    length: int = 0


@dataclass(slots=True)
class _Fault:
    operations: frozenset[Operation]
    matches: Callable[[Call], bool]
    calls_left: int
    error_number: int
    is_persistent: bool
    written_share: float

    def strikes(self, call: Call) -> bool:
        if call.operation not in self.operations or not self.matches(call):
            return False
        self.calls_left -= 1
        return self.calls_left == 0 or (self.is_persistent and self.calls_left < 0)

    def error(self, path: str) -> OSError:
        return OSError(self.error_number, os.strerror(self.error_number), path)


class _Running:
    """A call that runs, under the lock: a class, since crash tests make hundreds of thousands of calls."""

    __slots__ = ("_call", "_filesystem")

    def __init__(self, filesystem: "FakeFilesystem", call: Call) -> None:
        self._filesystem = filesystem
        self._call = call

    def __enter__(self) -> _Fault | None:
        self._filesystem._lock.acquire()
        try:
            return self._filesystem.begin(self._call)
        except BaseException:
            self._filesystem._lock.release()
            raise

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._filesystem.end()
        finally:
            self._filesystem._lock.release()


class FakeFile:
    """One open file of a FakeFilesystem."""

    def __init__(self, filesystem: "FakeFilesystem", inode: Inode, path: str, *, is_writable: bool) -> None:
        self._filesystem = filesystem
        self._inode = inode
        self._path = path
        self._is_writable = is_writable
        self._is_closed = False
        inode.handles += 1

    def fileno(self) -> int:
        return -1

    def pread(self, offset: int, length: int) -> bytes:
        with self._filesystem.call(Operation.PREAD, self._path, offset, length):
            self._check(is_change=False)
            return bytes(self._inode.data[offset : offset + length])

    def pread_if_cached(self, offset: int, length: int) -> bytes | None:
        return None if self._path in self._filesystem.cold_paths else self.pread(offset, length)

    def pwrite(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        whole = bytes(data)
        with self._filesystem.call(Operation.PWRITE, self._path, offset, len(whole)) as fault:
            self._check()
            taken = whole[: int(len(whole) * fault.written_share)] if fault else whole
            fitting = taken[: self._filesystem.room_bytes(self._inode, offset, len(taken))]
            if fitting:
                self._inode.write(offset, fitting)
            if fault:
                raise fault.error(self._path)
            if len(fitting) < len(whole):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self._path)

    def fdatasync(self) -> None:
        serial = self._inode.serial
        self._filesystem.on_sync(self._path)
        with self._filesystem.call(Operation.FDATASYNC, self._path) as fault:
            self._check(is_change=False)
            if fault:
                self._inode.fail_sync(self._filesystem.draws)
                raise fault.error(self._path)
            self._inode.sync(serial)

    def truncate(self, size: int) -> None:
        with self._filesystem.call(Operation.TRUNCATE, self._path, size):
            self._check()
            self._inode.truncate(size)

    def size(self) -> int:
        self._check(is_change=False)
        return len(self._inode.data)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._inode.handles -= 1

    def _check(self, *, is_change: bool = True) -> None:
        if self._is_closed or (is_change and not self._is_writable):
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)


class FakeLock:
    """A lock held in a FakeFilesystem."""

    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path
        held.add(path)

    def close(self) -> None:
        self._held.discard(self._path)


class FakeFilesystem:
    """See the head of this file.

    Attributes:
        calls: Every call so far, in order.
        failures_total: Calls that a fault has struck.
        cold_paths: Files that `pread_if_cached` finds not in memory.
        on_sync: Runs while an `fdatasync` is under way, on its thread; may sleep or wait.
        draws: Where the model's own chances come from (what a failed sync drops).
    """

    def __init__(self, *, disk_bytes_max: int = 1 << 40, seed: int = 0) -> None:
        self.calls: list[Call] = []
        self.failures_total = 0
        self.cold_paths: set[str] = set()
        self.on_sync: Callable[[str], None] = lambda _path: None
        self.draws = random.Random(seed)
        self.disk_bytes_max = disk_bytes_max
        self._tree = Tree()
        self._unlinked: list[Inode] = []
        self._held: set[str] = set()
        self._faults: list[_Fault] = []
        self._changing_calls = 0
        self._halt_at: int | None = None
        self._lock = threading.RLock()

    # --- the port ---

    def create(self, path: str) -> FakeFile:
        with self.call(Operation.CREATE, path):
            directory, name = self._parent(path)
            if name in directory.entries:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            inode = Inode(links=1)
            self._tree.change(Entry(directory, name, inode))
            return FakeFile(self, inode, path, is_writable=True)

    def open(self, path: str) -> FakeFile:
        with self.call(Operation.OPEN, path):
            return FakeFile(self, self._inode(path), path, is_writable=True)

    def open_reader(self, path: str) -> FakeFile:
        with self.call(Operation.OPEN_READER, path):
            return FakeFile(self, self._inode(path), path, is_writable=False)

    def rename(self, path: str, target: str) -> None:
        with self.call(Operation.RENAME, path):
            inode = self._inode(path)
            (source, name), (directory, new_name) = self._parent(path), self._parent(target)
            replaced = directory.entries.get(new_name)
            if replaced is inode:
                return
            if isinstance(replaced, Inode):
                self._drop_link(replaced)
            self._tree.change(Entry(source, name, None), Entry(directory, new_name, inode))

    def unlink(self, path: str) -> None:
        with self.call(Operation.UNLINK, path):
            self._drop_link(self._inode(path))
            directory, name = self._parent(path)
            self._tree.change(Entry(directory, name, None))

    def make_directory(self, path: str) -> None:
        with self.call(Operation.MAKE_DIRECTORY, path):
            directory, name = self._parent(path)
            present = directory.entries.get(name)
            if isinstance(present, Inode):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            if present is None:
                self._tree.change(Entry(directory, name, Directory()))

    def list_directory(self, path: str) -> list[str]:
        with self.call(Operation.LIST_DIRECTORY, path):
            return sorted(self._directory(path).entries)

    def sync_directory(self, path: str) -> None:
        with self.call(Operation.SYNC_DIRECTORY, path) as fault:
            directory = self._directory(path)
            if fault:
                self._tree.fail_sync(directory, self.draws)
                raise fault.error(path)
            self._tree.sync(directory)

    def lock(self, path: str) -> FakeLock:
        with self.call(Operation.LOCK, path):
            if path in self._held:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
            directory, name = self._parent(path)
            if name not in directory.entries:
                self._tree.change(Entry(directory, name, Inode(links=1)))
            return FakeLock(self._held, path)

    def free_bytes(self) -> int:
        with self.call(Operation.STATVFS, ""):
            return self._free_bytes()

    def _free_bytes(self) -> int:
        with self._lock:
            self._unlinked = [inode for inode in self._unlinked if not inode.is_gone]
            files = [*inodes(self._tree.root), *self._unlinked]
            return max(0, self.disk_bytes_max - sum(len(inode.data) for inode in files))

    def total_bytes(self) -> int:
        with self.call(Operation.STATVFS, ""):
            return self.disk_bytes_max

    # --- what a test does ---

    @property
    def changing_calls(self) -> int:
        """How many calls of CHANGING were made: the bound of a loop over `halt_at`."""
        return self._changing_calls

    def fail(
        self,
        *operations: Operation,
        nth: int = 1,
        error_number: int = errno.EIO,
        is_persistent: bool = False,
        written_share: float = 0.0,
        when: Callable[[Call], bool] = lambda _call: True,
    ) -> None:
        """Fail the n-th call, counted from now, of these operations (all changing ones if none is named) that `when` accepts.

        Once, or with all that follow it. Faults add up; the first that strikes decides.
        """
        chosen = frozenset(operations) or CHANGING
        self._faults.append(_Fault(chosen, when, nth, error_number, is_persistent, written_share))

    def heal(self) -> bool:
        """Forget all faults; True where any has struck."""
        has_struck = any(fault.calls_left <= 0 for fault in self._faults)
        self._faults.clear()
        return has_struck

    def halt_at(self, nth: int) -> None:
        """Let the n-th changing call from now be the last: it takes effect and raises Halted."""
        self._halt_at = self._changing_calls + nth

    def crash_clone(self, draws: random.Random, keep_probability: float = 0.5) -> "FakeFilesystem":
        """Give a file system as after a power cut now. 0 keeps what was synced and nothing else, 1 keeps all."""
        with self._lock:
            return self._clone(self._tree.crashed(draws, keep_probability))

    def kill_clone(self) -> "FakeFilesystem":
        """Give a file system as after a SIGKILL now: nothing is lost, nothing more is durable."""
        with self._lock:
            return self._clone(self._tree.copied())

    def contents(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes `[start, stop)` of a file, all by default, without a call."""
        return bytes(self._inode(path).data[start:stop])

    def replace_contents(self, path: str, data: bytes | bytearray) -> None:
        """Put other bytes into a file, durably and without a call: damage."""
        self._inode(path).replace(data)

    # --- for FakeFile ---

    def call(
        self, operation: Operation, path: str, offset: int = 0, length: int = 0
    ) -> AbstractContextManager[_Fault | None]:
        """Record a call and keep the lock while it runs; raise its fault, or hand it out where the call has to do with it."""
        return _Running(self, Call(operation, path, offset, length))

    def begin(self, call: Call) -> _Fault | None:
        """Record a call that begins; see `call`."""
        if self._is_halted():
            raise Halted
        self.calls.append(call)
        self._changing_calls += call.operation in CHANGING
        fault = next((fault for fault in self._faults if fault.strikes(call)), None) if self._faults else None
        if fault is None:
            return None
        self.failures_total += 1
        if call.operation not in HANDED_OUT:
            raise fault.error(call.path)
        return fault

    def end(self) -> None:
        """Let a call that has succeeded be the last, where it is to be."""
        if self._is_halted():
            raise Halted

    def room_bytes(self, inode: Inode, offset: int, length: int) -> int:
        """Say how many of `length` bytes at `offset` the disk has room for."""
        growth_bytes = max(0, offset + length - len(inode.data))
        return length - max(0, min(length, growth_bytes - self._free_bytes()))

    def _is_halted(self) -> bool:
        return self._halt_at is not None and self._changing_calls >= self._halt_at

    def _clone(self, tree: Tree) -> "FakeFilesystem":
        clone = FakeFilesystem(disk_bytes_max=self.disk_bytes_max, seed=self.draws.getrandbits(32))
        clone._tree = tree
        for inode in inodes(tree.root):
            inode.handles = 0
        return clone

    def _drop_link(self, inode: Inode) -> None:
        inode.links -= 1
        self._unlinked.append(inode)

    def _inode(self, path: str) -> Inode:
        directory, name = self._parent(path)
        node = directory.entries.get(name)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        if isinstance(node, Directory):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return node

    def _parent(self, path: str) -> tuple[Directory, str]:
        parent, _, name = path.rpartition("/")
        assert name, f"{path!r} names no file"
        return self._directory(parent), name

    def _directory(self, path: str) -> Directory:
        directory = self._tree.root
        for name in path.split("/") if path else ():
            node = directory.entries.get(name)
            if node is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if isinstance(node, Inode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
            directory = node
        return directory
