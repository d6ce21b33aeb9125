"""An eviction policy that draws: any segment may go, and any bytes of it may have to be written again first."""

import random
from collections.abc import Callable

from bench.replay import PinsNothing
from storage.eviction import ExtentUse, Kept, Victim
from storage.types import MIB, Stream

STREAMS = (Stream.CLEAN, Stream.KEPT, Stream.WARM)


class KeepingPolicy(PinsNothing):
    """`eviction.EvictionPolicy` for segments of `segment_bytes`, of which it keeps up to three spans, never all."""

    def __init__(self, draws: random.Random, segment_bytes: int = MIB) -> None:
        self._draws = draws
        self._segment_bytes = segment_bytes
        self._segments: dict[int, None] = {}

    def admit(self, use: ExtentUse, *, has_room: bool, is_next: bool = False) -> Stream | None:
        """Admit all."""
        del use, has_room, is_next
        return Stream.CLEAN

    def announced(self, use: ExtentUse) -> None:
        """Learn nothing of it."""

    def found(self, segment_id: int, live_bytes: int) -> None:
        """Remember the segment."""
        del live_bytes
        self._segments[segment_id] = None

    def admitted(self, use: ExtentUse, segment_id: int, offset: int) -> None:
        """Remember the segment."""
        del use, offset
        self._segments[segment_id] = None

    def accessed(self, use: ExtentUse, segment_id: int | None, offset: int = 0) -> None:
        """Leave it."""

    def touched(self, segment_id: int, offset: int, length: int) -> bool:
        """Leave it."""
        del segment_id, offset, length
        return True

    def moved(self, segment_id: int, kept: Kept, to_segment_id: int, to_offset: int) -> None:
        """Leave it."""

    def removed(self, segment_id: int) -> None:
        """Forget it."""
        self._segments.pop(segment_id, None)

    def choose(self, is_reclaimable: Callable[[int], bool]) -> Victim | None:
        """Draw a segment, and what of it is to be kept."""
        found = [one for one in self._segments if is_reclaimable(one)]
        if not found:
            return None
        segment_id = self._draws.choice(found)
        if self._draws.random() < 0.2:
            return Victim(segment_id)
        third = self._segment_bytes // 3
        keep = []
        for number in range(3):
            start = number * third + self._draws.randrange(third // 2)
            stop = (number + 1) * third - self._draws.randrange(third // 8)
            if self._draws.random() < 0.6:
                keep.append(Kept(start, stop, self._draws.choice(STREAMS)))
        return Victim(segment_id, tuple(keep))
