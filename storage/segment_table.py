"""The segments of a store in memory: one table under one lock, for those who give out space, write, read and remove.

One lock guards all of it, and is never held over a call to the file system but for closing. What is said to be called with the lock held
does not take it.
"""

import threading
from typing import TYPE_CHECKING, Final

from storage.checksums import VerifiedBlocks
from storage.errors import DiskFailedError, SegmentGoneError
from storage.reservations import Space
from storage.segment_files import Segment, SegmentLimits

if TYPE_CHECKING:
    from storage.types import Stream


class SegmentTable:
    """What is known of all segments of one directory.

    Attributes:
        segments: Each that has a file, or will have one, by its id.
        open: The segment of each stream that gives out space.
        space: How much was promised, and how much there is.
        verified: Blocks of segments of earlier processes that were found right.
        is_retired: Whether nothing is given out, written or synced any more, for good.
    """

    def __init__(self, limits: SegmentLimits) -> None:
        self.lock: Final = threading.Lock()
        self.segments: Final[dict[int, Segment]] = {}
        self.open: Final[dict[Stream, Segment]] = {}
        self.space: Final = Space(
            capacity_bytes=limits.capacity_bytes, disk_reserve_bytes=limits.disk_reserve_bytes
        )
        self.verified: Final = VerifiedBlocks(limits.short_blocks_max)
        self.is_retired = False

    def known(self, segment_id: int) -> Segment:
        """Give a segment.

        Raises:
            SegmentGoneError: There is none, or it is being unlinked.
        """
        with self.lock:
            segment = self.segments.get(segment_id)
        if segment is None or segment.is_leaving:
            raise SegmentGoneError(f"segment {segment_id:x} is gone")
        return segment

    def refuse_if_retired(self) -> None:
        """Raise DiskFailedError where the store is retired; the lock is held."""
        if self.is_retired:
            raise DiskFailedError("the segments take no more bytes: the cache directory is being re-opened")

    def seal_held(self, segment: Segment) -> None:
        """Let a segment give out no more, for good; the lock is held."""
        segment.is_sealed = True
        if segment.stream is not None and self.open.get(segment.stream) is segment:
            del self.open[segment.stream]
        self.close_if_idle(segment)

    def close_if_idle(self, segment: Segment) -> None:
        """Close the writing descriptor of a segment that gets no more bytes; the lock is held."""
        if segment.file is not None and segment.is_sealed and not segment.held and not segment.calls:
            segment.file.close()
            segment.file = None

    def distrust_held(self, segment: Segment) -> None:
        """Let every block of a segment be checked again before it is served; the lock is held."""
        segment.is_own = False
        self.verified.forget(segment.segment_id)
