"""Segments: append-only files that hold the bodies.

    segments/<16 hex digits of the id>.seg     no header; rows of the index say what lies where, and its checksums

States of a segment. *Open*: the one of its stream that gives out space. *Sealed*: gives out no more, for good; a start seals all.
*Removed*: no row names it, it waits for its pins. *Leaving*: being unlinked. An id never comes back.

Space. `reserve` gives a body its ranges before the first byte arrives, and holds them until `settle`: after the commit of the rows
that name them, or after the body failed. A segment with a held range is not removed, since a row for it may yet come; so reclaim asks
`SegmentState.is_settled` before it drops rows. What was not written of a settled range is dead space. Open segments count whole
against the capacity, so that what has been promised is always there. The disk's free space is a sample less what was promised since
and what of it is not written yet: `reserve` itself never waits.

Durability. `sync` covers the writes that returned before it was called. After a failed fdatasync nothing is known about the file, and
a later success says nothing (the kernel reports an error once, to whoever asks first): syncs of one segment are made one after
the other, and a failed one poisons the segment, which is never synced or appended again. The same goes for the directory.

Pins. Whoever reads the index and then a segment pins it in the same synchronous step. A file is unlinked, and its descriptor closed,
only when nothing is pinned and no call is under way, as a number of a closed descriptor may come to mean another file.

Re-opening. An engine that re-opens its directory adopts it with a new store; the old one is retired. It gives out, writes and syncs
nothing more, and goes on for who has pinned something in it, each block checked anew: what this process wrote before a sync failed may
read back as something else. The new store unlinks nothing that is pinned in the one before.

Threads. `reserve`, `settle`, `pin`, `remove`, `reader` and the questions are called in the event loop, and do not wait; the others
block and run in worker threads. One lock guards the tables and is never held over a call to the file system, but for closing.
"""

import errno
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Final, Self

from storage.checksums import BlockChecksums, VerifiedBlocks, block_matches, block_range, checksums
from storage.errors import (
    DamagedError,
    DiskFailedError,
    DiskFullError,
    OverloadedError,
    SegmentGoneError,
    StorageError,
    UnknownOutcomeError,
)
from storage.filesystem import File, Filesystem
from storage.reservations import Piece, Reservation, Space, cut_body, growth_bytes
from storage.segment_files import (
    DIRECTORY,
    Adoption,
    Segment,
    SegmentLimits,
    SegmentState,
    segment_id_of,
    segment_path,
    state_of,
)
from storage.types import Location, Stream

__all__ = [
    "Adoption",
    "BlockChecksums",
    "Pin",
    "Reservation",
    "SegmentLimits",
    "SegmentState",
    "SegmentStore",
    "checksums",
    "segment_path",
]

_ROOT: Final = ""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})


class Pin:
    """Keeps segments from being unlinked until released. A context manager."""

    __slots__ = ("_release", "_segments")

    def __init__(self, segments: Sequence[Segment], release: Callable[[Sequence[Segment]], None]) -> None:
        self._segments = segments
        self._release = release

    def release(self) -> None:
        """Let go; releasing twice is allowed."""
        segments, self._segments = self._segments, ()
        if segments:
            self._release(segments)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class SegmentStore:
    """All segments of one cache directory. `adopt` comes first."""

    def __init__(
        self,
        filesystem: Filesystem,
        limits: SegmentLimits,
        take_id: Callable[[], int],
        predecessor: "SegmentStore | None" = None,
    ) -> None:
        """Make a store of a directory that is still to be adopted.

        Args:
            filesystem: Where the files are.
            limits: The bounds.
            take_id: Gives an id never given before, without waiting; what it raises passes through `reserve`.
            predecessor: The retired store of the same directory, whose pins count here too.
        """
        self._predecessor = predecessor
        self._is_retired = False
        self._filesystem = filesystem
        self._limits = limits
        self._take_id = take_id
        self._lock = threading.Lock()
        self._directory_lock = threading.Lock()
        self._segments: dict[int, Segment] = {}
        self._open: dict[Stream, Segment] = {}
        self._removed: set[int] = set()
        self._readers: OrderedDict[int, File] = OrderedDict()
        self._verified = VerifiedBlocks(limits.short_blocks_max)
        self._space = Space(
            capacity_bytes=limits.capacity_bytes, disk_reserve_bytes=limits.disk_reserve_bytes
        )
        self._created = 0
        self._names_synced = 0
        self._is_directory_poisoned = False

    # --- start and end -----------------------------------------------------------------------------------------------

    def adopt(self, live_segment_ids: Collection[int]) -> Adoption:
        """Take over the directory, creating it durably, and seal what is there. Blocks; called once, before all but journals.

        `live_segment_ids` are those that rows name, journal files that are registered already among them or not. Orphans are
        removed already: `take_removable` gives them.

        Raises:
            DiskFailedError: The directory could not be made or read.
        """
        assert not self._open, "adopt comes before the first reservation"
        live = frozenset(live_segment_ids)
        try:
            self._filesystem.make_directory(DIRECTORY)
            self._filesystem.sync_directory(_ROOT)
            found = {segment_id: self._size_on_disk(segment_id) for segment_id in self._ids_on_disk()}
        except OSError as error:
            raise DiskFailedError(f"segments cannot be listed: {error}") from error
        for segment_id, size_bytes in found.items():
            segment = Segment(segment_id, segment_path(segment_id), None, end=size_bytes, is_own=False)
            segment.is_removed = segment_id not in live
            self._segments[segment_id] = segment
            self._space.adopt(size_bytes)
        orphans = found.keys() - live
        self._removed |= orphans
        self.sample_free_bytes()
        return Adoption(tuple(sorted(orphans)), tuple(sorted(live - self._segments.keys())))

    def _ids_on_disk(self) -> list[int]:
        names = self._filesystem.list_directory(DIRECTORY)
        return [segment_id for name in names if (segment_id := segment_id_of(name)) is not None]

    def _size_on_disk(self, segment_id: int) -> int:
        file = self._filesystem.open_reader(segment_path(segment_id))
        try:
            return file.size()
        finally:
            file.close()

    def register_journal(self, segment_id: int, path: str, *, is_own: bool) -> None:
        """Let a journal file be read, pinned and removed by its segment id. `is_own` where this process writes it."""
        with self._lock:
            assert segment_id not in self._segments, f"segment {segment_id:x} is known already"
            segment = Segment(segment_id, path, Stream.JOURNAL, end=0, is_own=is_own)
            segment.is_sealed = True
            self._segments[segment_id] = segment

    def close(self) -> None:
        """Close all descriptors, syncing nothing; nothing is under way and nothing is called afterwards."""
        with self._lock:
            files = [
                *self._readers.values(),
                *(s.file for s in self._segments.values() if s.file is not None),
            ]
            self._readers.clear()
        for file in files:
            file.close()
        if self._predecessor is not None:
            self._predecessor.close()

    def retire(self) -> None:
        """Give out, write and sync nothing more, for good; see the head of this module. What is under way in a thread goes on."""
        with self._lock:
            self._is_retired = True
            for segment in tuple(self._segments.values()):
                segment.is_own = False
                self._verified.forget(segment.segment_id)
                self._seal(segment)
            self._close_if_unused()

    @property
    def has_pins(self) -> bool:
        """Whether somebody reads any segment, here or in the stores before."""
        with self._lock:
            if any(segment.pins or segment.calls for segment in self._segments.values()):
                return True
        return self._predecessor is not None and self._predecessor.has_pins

    def is_pinned(self, segment_id: int) -> bool:
        """Whether somebody reads a segment, here or in the stores before."""
        with self._lock:
            segment = self._segments.get(segment_id)
            if segment is not None and (segment.pins or segment.calls):
                return True
        return self._predecessor is not None and self._predecessor.is_pinned(segment_id)

    def _close_if_unused(self) -> None:
        """Close a retired store's descriptors once nothing is pinned; the lock is held."""
        if self._is_retired and not any(segment.pins for segment in self._segments.values()):
            while self._readers:
                self._readers.popitem()[1].close()

    # --- space -------------------------------------------------------------------------------------------------------

    @property
    def used_bytes(self) -> int:
        """Bytes given out in all segments, written or not, live or dead."""
        return self._space.used_bytes

    @property
    def room_bytes(self) -> int:
        """Bytes left for new segments under the capacity and on the disk; less than nothing where a bound was passed."""
        with self._lock:
            return self._space.room_bytes(self._open_tails_bytes())

    @property
    def disk_room_bytes(self) -> int:
        """Bytes that the disk has above its reserve, as far as is known; what rides in the journal may take no more."""
        return self._space.disk_room_bytes

    @property
    def segment_bytes(self) -> int:
        """How large a segment gets."""
        return self._limits.segment_bytes

    def reserve(self, length: int, stream: Stream) -> tuple[Reservation, ...]:
        """Give a body of `length` bytes its ranges, in the order of the body, and hold them until `settle`.

        Cut as `reservations.cut_body` says. All or nothing. Does not wait.

        Raises:
            DiskFullError: It would pass the capacity, or touch the disk's reserve.
            DiskFailedError: The store is retired.
        """
        segment_bytes = self._limits.segment_bytes
        with self._lock:
            self._refuse_if_retired()
            current = self._open.get(stream)
            room_bytes = segment_bytes - current.end if current else 0
            pieces = tuple(cut_body(length, room_bytes=room_bytes, segment_bytes=segment_bytes))
            growth = growth_bytes(pieces, room_bytes=room_bytes, segment_bytes=segment_bytes)
            self._space.check(length, growth, self._open_tails_bytes())
            new_ids = [self._take_id() for piece in pieces if piece.opens_segment]
            return self._place(stream, pieces, iter(new_ids))

    def _refuse_if_retired(self) -> None:
        if self._is_retired:
            raise DiskFailedError("the segments take no more bytes: the cache directory is being re-opened")

    def _open_tails_bytes(self) -> int:
        segment_bytes = self._limits.segment_bytes
        return sum([segment_bytes - one.end for one in self._open.values() if one.end < segment_bytes])

    def _place(
        self, stream: Stream, pieces: Iterable[Piece], new_ids: Iterable[int]
    ) -> tuple[Reservation, ...]:
        ids = iter(new_ids)
        placed: list[Reservation] = []
        for piece in pieces:
            if piece.opens_segment:
                self._open_segment(next(ids), stream)
            segment = self._open[stream]
            placed.append(Reservation(segment.segment_id, segment.end, piece.length))
            segment.held[segment.end] = piece.length
            segment.end += piece.length
            self._space.promise(piece.length)
        return tuple(placed)

    def _open_segment(self, segment_id: int, stream: Stream) -> None:
        assert segment_id not in self._segments, f"segment id {segment_id:x} came back"
        if stream in self._open:
            self._seal(self._open[stream])
        segment = Segment(segment_id, segment_path(segment_id), stream, end=0, is_own=True)
        self._segments[segment_id] = self._open[stream] = segment

    def _seal(self, segment: Segment) -> None:
        segment.is_sealed = True
        if segment.stream is not None and self._open.get(segment.stream) is segment:
            del self._open[segment.stream]
        self._close_if_idle(segment)

    def seal(self, segment_id: int) -> bool:
        """End an open segment before it is full, since what it holds may go; False where a range of it is not settled."""
        with self._lock:
            segment = self._segments.get(segment_id)
            if segment is None or segment.held:
                return False
            self._seal(segment)
            return True

    def settle(self, reservations: Iterable[Reservation]) -> None:
        """Let go of ranges: the rows that name them are committed, or the body failed. Settling twice is allowed.

        No write to them is accepted afterwards. What of them must be durable has been synced.
        """
        with self._lock:
            for reservation in reservations:
                segment = self._segments.get(reservation.segment_id)
                if segment is not None:
                    self._space.settle(segment.held.pop(reservation.offset, 0))
                    self._close_if_idle(segment)

    def sample_free_bytes(self) -> None:
        """Look how much the disk has left. Blocks shortly; to be called every second or so.

        Raises:
            DiskFailedError: The volume does not answer.
        """
        with self._lock:
            begun = self._space.begin_sample()
        try:
            free_bytes = self._filesystem.free_bytes()
        except OSError as error:
            raise DiskFailedError(f"free space is unknown: {error}") from error
        with self._lock:
            self._space.end_sample(begun, free_bytes)

    # --- writing -----------------------------------------------------------------------------------------------------

    def write(self, reservation: Reservation, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Write `data`, of bytes, at `offset` of a reserved range. Blocks. Durable after a `sync` that begins afterwards.

        Raises:
            SegmentGoneError: The range is settled.
            DiskFullError, DiskFailedError: The range is not whole; the others are untouched.
            DamagedError: The new segment's file exists.
        """
        size_bytes = len(data)
        assert 0 <= offset <= offset + size_bytes <= reservation.length, f"outside of {reservation}"
        segment = self._begin_write(reservation)
        try:
            file = segment.file or self._open_to_write(segment)
            file.pwrite(reservation.offset + offset, data)
        except OSError as error:
            raise self._refusal(segment, error) from error
        else:
            self._count_write(segment, reservation, size_bytes)
        finally:
            self._end_call(segment)

    def _begin_write(self, reservation: Reservation) -> Segment:
        with self._lock:
            self._refuse_if_retired()
            segment = self._segments.get(reservation.segment_id)
            if segment is None or reservation.offset not in segment.held:
                raise SegmentGoneError(f"{reservation} is settled")
            if segment.is_poisoned:
                raise DiskFailedError(
                    f"segment {segment.segment_id:x} takes no more bytes: a sync of it failed"
                )
            segment.calls += 1
            return segment

    def _open_to_write(self, segment: Segment) -> File:
        with segment.io_lock:
            return segment.file or self._open_file(segment)

    def _open_file(self, segment: Segment) -> File:
        """Open the file, creating it at its first use; `io_lock` is held."""
        is_new = not segment.created_no
        file = self._filesystem.create(segment.path) if is_new else self._filesystem.open(segment.path)
        with self._lock:
            segment.file = file
            if is_new:
                self._created += 1
                segment.created_no = self._created
        return file

    def _count_write(self, segment: Segment, reservation: Reservation, size_bytes: int) -> None:
        with self._lock:
            segment.writes += 1
            # Settled meanwhile, or written twice: then there is nothing more to count.
            unwritten_bytes = segment.held.get(reservation.offset, 0)
            counted_bytes = min(size_bytes, unwritten_bytes)
            if counted_bytes:
                segment.held[reservation.offset] = unwritten_bytes - counted_bytes
                self._space.settle(counted_bytes)

    def _refusal(self, segment: Segment, error: OSError) -> StorageError:
        if isinstance(error, FileExistsError):
            return DamagedError(f"segment {segment.segment_id:x} exists, though its id was never given out")
        if error.errno in _FULL:
            with self._lock:
                self._space.fill_disk()
            return DiskFullError(f"segment {segment.segment_id:x}: {error}")
        return DiskFailedError(f"segment {segment.segment_id:x}: {error}")

    def _end_call(self, segment: Segment) -> None:
        with self._lock:
            segment.calls -= 1
            self._close_if_idle(segment)

    def _close_if_idle(self, segment: Segment) -> None:
        """Close the writing descriptor of a segment that gets no more bytes; the lock is held."""
        if segment.file is not None and segment.is_sealed and not segment.held and not segment.calls:
            segment.file.close()
            segment.file = None

    # --- durability --------------------------------------------------------------------------------------------------

    def sync(self, segment_ids: Iterable[int]) -> None:
        """Make all that was written to these segments before the call, and their names, durable. Blocks.

        Segments without unsynced writes, those of earlier processes and journal files cost nothing.

        Raises:
            UnknownOutcomeError: Nothing is known about what was written to the segment since its last sync, for good.
            SegmentGoneError: One is not there; nothing is known to be synced.
        """
        segments = [self._known(segment_id) for segment_id in dict.fromkeys(segment_ids)]
        for segment in segments:
            self._sync_bytes(segment)
        self._sync_names(segments)

    def _known(self, segment_id: int) -> Segment:
        with self._lock:
            segment = self._segments.get(segment_id)
        if segment is None or segment.is_leaving:
            raise SegmentGoneError(f"segment {segment_id:x} is gone")
        return segment

    def _sync_bytes(self, segment: Segment) -> None:
        with segment.io_lock:
            with self._lock:
                if segment.is_poisoned or self._is_retired:
                    raise UnknownOutcomeError(f"segment {segment.segment_id:x}: a sync of it failed before")
                writes = segment.writes
                if writes == segment.synced:
                    return
                segment.calls += 1
            try:
                (segment.file or self._open_file(segment)).fdatasync()
            except OSError as error:
                self._poison([segment])
                raise UnknownOutcomeError(f"segment {segment.segment_id:x}: sync failed: {error}") from error
            else:
                segment.synced = writes
            finally:
                self._end_call(segment)

    def _sync_names(self, segments: Sequence[Segment]) -> None:
        with self._directory_lock:
            with self._lock:
                created = self._created
                unsynced = [segment for segment in segments if segment.created_no > self._names_synced]
            if not unsynced:
                return
            if self._is_directory_poisoned:
                raise UnknownOutcomeError("the segments' names: a sync of the directory failed before")
            try:
                self._filesystem.sync_directory(DIRECTORY)
            except OSError as error:
                self._is_directory_poisoned = True
                self._poison(unsynced)
                raise UnknownOutcomeError(f"the segments' names: sync failed: {error}") from error
            self._names_synced = created

    def _poison(self, segments: Iterable[Segment]) -> None:
        with self._lock:
            for segment in segments:
                segment.is_poisoned = True
                # What reads back now may not be what was written.
                segment.is_own = False
                self._verified.forget(segment.segment_id)
                self._seal(segment)

    # --- reading -----------------------------------------------------------------------------------------------------

    def pin(self, segment_ids: Iterable[int]) -> Pin:
        """Keep these segments' files until the pin is released; done in the step that read their ids from the index.

        One that is gone is not pinned: its `reader` and `read` raise SegmentGoneError, where the caller knows what it misses.
        """
        pinned: list[Segment] = []
        with self._lock:
            for segment_id in segment_ids:
                segment = self._segments.get(segment_id)
                if segment is not None and not segment.is_leaving:
                    segment.pins += 1
                    pinned.append(segment)
        return Pin(pinned, self._unpin)

    def _unpin(self, segments: Sequence[Segment]) -> None:
        with self._lock:
            for segment in segments:
                segment.pins -= 1
                assert segment.pins >= 0, f"segment {segment.segment_id:x} was unpinned too often"
            if len(self._readers) > self._limits.readers_max:
                self._close_surplus_readers()
            if self._is_retired:
                self._close_if_unused()

    def reader(self, segment_id: int) -> File:
        """Give an open descriptor of a segment, or journal file, that the caller has pinned; valid while it is, and not to be closed.

        Opens the file where it is not open, which does not touch the disk for one that was written or read lately.

        Raises:
            SegmentGoneError: There is no such file.
            DiskFailedError: It cannot be opened.
        """
        with self._lock:
            segment = self._segments.get(segment_id)
            if segment is None or segment.is_leaving:
                raise SegmentGoneError(f"segment {segment_id:x} is gone")
            assert segment.pins > 0, f"segment {segment_id:x} is not pinned"
            file = self._readers.get(segment_id)
            if file is not None:
                self._readers.move_to_end(segment_id)
                return file
        opened = self._open_reader(segment)
        with self._lock:
            file = self._readers.setdefault(segment_id, opened)
            if file is not opened:
                opened.close()  # another thread was first
            self._close_surplus_readers()
        return file

    def _open_reader(self, segment: Segment) -> File:
        try:
            return self._filesystem.open_reader(segment.path)
        except FileNotFoundError as error:
            raise SegmentGoneError(f"segment {segment.segment_id:x} has no file") from error
        except OSError as error:
            if error.errno in _NO_DESCRIPTOR:
                # It says nothing of the bytes.
                raise OverloadedError(f"segment {segment.segment_id:x} cannot be opened: {error}") from error
            raise DiskFailedError(f"segment {segment.segment_id:x} cannot be opened: {error}") from error

    def _close_surplus_readers(self) -> None:
        """Close the descriptors used least lately over the bound, but none of a pinned segment; the lock is held."""
        surplus = len(self._readers) - self._limits.readers_max
        if surplus <= 0:
            return
        idle = [segment_id for segment_id in self._readers if not self._segments[segment_id].pins]
        for segment_id in idle[:surplus]:
            self._readers.pop(segment_id).close()

    def read(self, location: Location, start: int, stop: int) -> bytes:
        """Give the bytes `[start, stop)` of a location, unchecked. Blocks where they are not in memory.

        Raises:
            SegmentGoneError: They are not there, or not all.
            DiskFailedError: The disk refused.
            OverloadedError: No file descriptor is left.
        """
        assert 0 <= start <= stop <= location.length, f"[{start}, {stop}) is not in {location}"
        with self.pin((location.segment_id,)):
            file = self.reader(location.segment_id)
            try:
                data = file.pread(location.offset + start, stop - start)
            except OSError as error:
                raise DiskFailedError(f"segment {location.segment_id:x} cannot be read: {error}") from error
        if len(data) != stop - start:
            raise SegmentGoneError(f"segment {location.segment_id:x} ends in {location}")
        return data

    # --- what was checked --------------------------------------------------------------------------------------------

    def is_verified(self, location: Location, block: int) -> bool:
        """Whether a block may be served unread: this process wrote it, or has found it right."""
        segment = self._segments.get(location.segment_id)
        return segment is not None and (segment.is_own or (location, block) in self._verified)

    def verify_block(self, location: Location, block: int) -> bool:
        """Read a block and compare it with its checksum; a right one is remembered. Blocks. Errors as read."""
        wanted = block_range(location, block)
        return self.check_block(location, block, self.read(location, wanted.start, wanted.stop))

    def check_block(self, location: Location, block: int, data: bytes) -> bool:
        """Compare the bytes of a whole block, read by the caller, with its checksum; a right one is remembered."""
        is_right = block_matches(location, block, data)
        if is_right:
            with self._lock:
                if location.segment_id in self._segments and not self._is_retired:
                    self._verified.add(location, block)
        return is_right

    def distrust(self, segment_id: int) -> None:
        """Let every block of a segment be checked again before it is served: one of them was found wrong."""
        with self._lock:
            segment = self._segments.get(segment_id)
            if segment is not None:
                segment.is_own = False
            self._verified.forget(segment_id)

    # --- removal -----------------------------------------------------------------------------------------------------

    def state(self, segment_id: int) -> SegmentState | None:
        """Say how a segment stands; None where it is unknown or removed."""
        with self._lock:
            segment = self._segments.get(segment_id)
            return None if segment is None or segment.is_removed else state_of(segment)

    def states(self) -> list[SegmentState]:
        """Say how all segments stand, journal files and removed ones excepted, in no order."""
        with self._lock:
            return [
                state_of(segment)
                for segment in self._segments.values()
                if not segment.is_removed and segment.stream is not Stream.JOURNAL
            ]

    def remove(self, segment_id: int) -> bool:
        """Give up a segment, or journal file, that no row names any more; `take_removable` gives it once nobody reads it.

        Its open readers go on. False, and nothing is changed, where a range of it is not settled: a row may yet come.
        """
        with self._lock:
            segment = self._segments.get(segment_id)
            if segment is None:
                return True
            if segment.held:
                return False
            self._seal(segment)
            segment.is_removed = True
            self._removed.add(segment_id)
            return True

    def take_removable(self) -> list[int]:
        """Give the removed segments that nobody uses, each once, for `unlink`. They cannot be pinned from here on."""
        before = self._predecessor
        if before is not None and not before.has_pins:
            before = self._predecessor = None
        with self._lock:
            free = [
                segment_id
                for segment_id in self._removed
                if not self._segments[segment_id].pins
                and not self._segments[segment_id].calls
                and (before is None or not before.is_pinned(segment_id))
            ]
            self._removed.difference_update(free)
            for segment_id in free:
                self._segments[segment_id].is_leaving = True
        return sorted(free)

    def unlink(self, segment_id: int) -> None:
        """Unlink a segment that `take_removable` gave, and forget it. Blocks: a large file's blocks take a while to free.

        Raises:
            DiskFailedError: It could not be unlinked; `take_removable` gives it again.
        """
        with self._lock:
            segment = self._segments[segment_id]
            assert segment.is_leaving, f"segment {segment_id:x} is not to be unlinked"
            files = [file for file in (segment.file, self._readers.pop(segment_id, None)) if file is not None]
            segment.file = None
        for file in files:
            file.close()
        try:
            self._filesystem.unlink(segment.path)
        except FileNotFoundError:
            pass  # reserved and never written, or unlinked before a failure
        except OSError as error:
            with self._lock:
                self._removed.add(segment_id)
            raise DiskFailedError(f"segment {segment_id:x} cannot be unlinked: {error}") from error
        with self._lock:
            del self._segments[segment_id]
            self._verified.forget(segment_id)
            self._space.remove(segment.end)
        self.sample_free_bytes()
