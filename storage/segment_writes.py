"""Write bodies into segments, and make what was written durable.

`sync` covers the writes that returned before it was called. After a failed fdatasync nothing is known about the file, and a later
success says nothing (the kernel reports an error once, to whoever asks first): syncs of one segment are made one after the other, and
a failed one poisons the segment, which is never synced or appended again. The same goes for the directory.

Both calls block and run in worker threads.
"""

import errno
import threading
from collections.abc import Iterable, Sequence
from typing import Final

from storage.errors import (
    DamagedError,
    DiskFailedError,
    DiskFullError,
    SegmentGoneError,
    StorageError,
    UnknownOutcomeError,
)
from storage.filesystem import File, Filesystem
from storage.reservations import Reservation
from storage.segment_files import DIRECTORY, Segment
from storage.segment_table import SegmentTable

_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class SegmentWrites:
    """Writes to reserved ranges, and syncs of segments and of their names."""

    def __init__(self, table: SegmentTable, filesystem: Filesystem) -> None:
        self._table = table
        self._lock = table.lock
        self._segments = table.segments
        self._space = table.space
        self._filesystem = filesystem
        self._directory_lock = threading.Lock()
        self._created = 0
        self._names_synced = 0
        self._is_directory_poisoned = False

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
            self._table.refuse_if_retired()
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
            self._table.close_if_idle(segment)

    # --- durability --------------------------------------------------------------------------------------------------

    def sync(self, segment_ids: Iterable[int]) -> None:
        """Make all that was written to these segments before the call, and their names, durable. Blocks.

        Segments without unsynced writes, those of earlier processes and journal files cost nothing.

        Raises:
            UnknownOutcomeError: Nothing is known about what was written to the segment since its last sync, for good.
            SegmentGoneError: One is not there; nothing is known to be synced.
        """
        segments = [self._table.known(segment_id) for segment_id in dict.fromkeys(segment_ids)]
        for segment in segments:
            self._sync_bytes(segment)
        self._sync_names(segments)

    def _sync_bytes(self, segment: Segment) -> None:
        with segment.io_lock:
            with self._lock:
                if segment.is_poisoned or self._table.is_retired:
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
                self._table.distrust_held(segment)
                self._table.seal_held(segment)
