"""S3-FIFO under the cost of segments that are reclaimed whole: what ours is held against where epochs do not rule.

Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023), its two queues made of segments: new extents go to the
small one, a tenth of the cache; those that were read there again, or are remembered by the ghost, to the main one, whose extents
are written again as long as they are read.
"""

from collections import OrderedDict
from collections.abc import Callable

from bench.replay import PinsNothing
from storage.eviction import ExtentUse, Kept, Victim
from storage.types import Stream

SMALL_SHARE = 10
READS_MAX = 3


class SegmentS3Fifo(PinsNothing):
    """`storage.eviction.EvictionPolicy`."""

    def __init__(self, *, capacity_bytes: int, segment_bytes: int) -> None:
        self._segments_small = max(1, capacity_bytes // segment_bytes // SMALL_SHARE)
        self._ghost_bytes_max = capacity_bytes * 9 // 10
        self._ghost: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._ghost_bytes = 0
        # Segments in the order of their age; their extents: offset -> (identity, length).
        self._segments: dict[int, dict[int, tuple[tuple[int, int], int]]] = {}
        self._streams: dict[int, Stream] = {}
        self._reads: dict[tuple[int, int], int] = {}
        self._stream_of_next: dict[int, Stream] = {}
        self._moving: Stream | None = None

    def admit(self, use: ExtentUse, *, has_room: bool, is_next: bool = False) -> Stream | None:
        """Admit everything: to the main queue what the ghost remembers."""
        del has_room, is_next
        length = self._ghost.pop((use.version_id, use.start), None)
        self._moving = None
        if length is None:
            self._last = Stream.CLEAN
        else:
            self._ghost_bytes -= length
            self._last = Stream.KEPT
        return self._last

    def announced(self, use: ExtentUse) -> None:
        """Learn nothing of it."""

    def found(self, segment_id: int, live_bytes: int) -> None:
        """Nothing is known before the first read."""

    def admitted(self, use: ExtentUse, segment_id: int, offset: int) -> None:
        """Put the extent into its segment's queue."""
        if segment_id not in self._segments:
            self._segments[segment_id] = {}
            self._streams[segment_id] = self._moving or self._last
        identity = (use.version_id, use.start)
        self._segments[segment_id][offset] = (identity, use.length)
        if self._moving is None:
            self._reads[identity] = 0

    def accessed(self, use: ExtentUse, segment_id: int | None, offset: int = 0) -> None:
        """Count reads of what is here, up to three."""
        del offset
        if segment_id is not None:
            identity = (use.version_id, use.start)
            self._reads[identity] = min(READS_MAX, self._reads.get(identity, 0) + 1)

    def touched(self, segment_id: int, offset: int, length: int) -> bool:
        """Leave all to `accessed`."""
        del segment_id, offset, length
        return False

    def moved(self, segment_id: int, kept: Kept, to_segment_id: int, to_offset: int) -> None:
        """Leave the old place; `admitted` told of the new one."""
        del to_segment_id, to_offset
        self._segments[segment_id].pop(kept.offset, None)

    def removed(self, segment_id: int) -> None:
        """Remember what left the small queue."""
        stream = self._streams.pop(segment_id, None)
        for identity, length in self._segments.pop(segment_id, {}).values():
            self._reads.pop(identity, None)
            if stream is Stream.CLEAN:
                self._ghost[identity] = length
                self._ghost_bytes += length
        while self._ghost_bytes > self._ghost_bytes_max:
            self._ghost_bytes -= self._ghost.popitem(last=False)[1]

    def choose(self, is_reclaimable: Callable[[int], bool]) -> Victim | None:
        """Take the oldest segment of the queue that is too long."""
        small = [one for one, stream in self._streams.items() if stream is Stream.CLEAN]
        main = [one for one, stream in self._streams.items() if stream is Stream.KEPT]
        is_small = not main or len(small) >= self._segments_small
        order = [*small, *main] if is_small else [*main, *small]
        segment_id = next((one for one in order if is_reclaimable(one)), None)
        if segment_id is None:
            return None
        is_small = self._streams[segment_id] is Stream.CLEAN
        kept = []
        for offset, (identity, length) in sorted(self._segments[segment_id].items()):
            reads = self._reads.get(identity, 0)
            if reads > (1 if is_small else 0):
                self._reads[identity] = 0 if is_small else reads - 1
                kept.append(Kept(offset, offset + length, Stream.KEPT))
        self._moving = Stream.KEPT
        return Victim(segment_id, tuple(kept))
