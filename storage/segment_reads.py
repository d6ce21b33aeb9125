"""Read segments: pins, open descriptors, and which blocks were found right.

Whoever reads the index and then a segment pins it in the same synchronous step. A file is unlinked, and its descriptor closed, only
when nothing is pinned and no call is under way, as a number of a closed descriptor may come to mean another file.

`pin` and `reader` are called in the event loop, and do not wait; what reads a block blocks and runs in worker threads.
"""

import errno
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Final, Self

from storage.checksums import block_matches, block_range
from storage.errors import DiskFailedError, OverloadedError, SegmentGoneError
from storage.filesystem import File, Filesystem
from storage.segment_files import Segment
from storage.segment_table import SegmentTable
from storage.types import Location

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


class SegmentReads:
    """Reads what is pinned, over at most `readers_max` descriptors but for more pinned segments than that."""

    def __init__(self, table: SegmentTable, filesystem: Filesystem, *, readers_max: int) -> None:
        self._table = table
        self._lock = table.lock
        self._segments = table.segments
        self._verified = table.verified
        self._filesystem = filesystem
        self._readers_max = readers_max
        self._readers: OrderedDict[int, File] = OrderedDict()

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
            if len(self._readers) > self._readers_max:
                self._close_surplus_readers()
            if self._table.is_retired:
                self.close_if_unused()

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
        surplus = len(self._readers) - self._readers_max
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
            end = location.offset + location.length
            raise SegmentGoneError(
                f"segment {location.segment_id:x} ends before byte {end}, which it should hold"
            )
        return data

    def take_reader(self, segment_id: int) -> File | None:
        """Give up the descriptor of a segment that is not pinned, to be closed; None where there is none. The lock is held."""
        return self._readers.pop(segment_id, None)

    def take_all(self) -> list[File]:
        """Give up all descriptors, to be closed; the lock is held."""
        files = list(self._readers.values())
        self._readers.clear()
        return files

    def close_if_unused(self) -> None:
        """Close a retired store's descriptors once nothing is pinned; the lock is held."""
        if self._table.is_retired and not any(segment.pins for segment in self._segments.values()):
            while self._readers:
                self._readers.popitem()[1].close()

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
                if location.segment_id in self._segments and not self._table.is_retired:
                    self._verified.add(location, block)
        return is_right

    def distrust(self, segment_id: int) -> None:
        """Let every block of a segment be checked again before it is served: one of them was found wrong."""
        with self._lock:
            segment = self._segments.get(segment_id)
            if segment is not None:
                segment.is_own = False
            self._verified.forget(segment_id)
