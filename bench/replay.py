"""Replay requests through an eviction policy as it ships, over the segment store as it ships: only the bytes are missing."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count

from storage.errors import DiskFullError
from storage.eviction import SEGMENT_STOP, EvictionPolicy, ExtentUse, Kept, Victim
from storage.segments import SegmentLimits, SegmentStore
from storage.types import Stream

ROOM_SEGMENTS = 4
"""As `storage/engine_parts.py` keeps free."""


class NoBytes:
    """`storage.filesystem.Filesystem` as far as a store needs it that nothing is written to."""

    def make_directory(self, path: str) -> None:
        """Do nothing."""

    def sync_directory(self, path: str) -> None:
        """Do nothing."""

    def list_directory(self, path: str) -> list[str]:
        """Find nothing."""
        del path
        return []

    def free_bytes(self) -> int:
        """Never be full."""
        return 1 << 60

    def unlink(self, path: str) -> None:
        """Do nothing."""


class PinsNothing:
    """What a policy says that knows no pins, and that learns nothing of what is replaced."""

    def freed(self, segment_id: int, offset: int, length: int) -> None:
        """Leave it."""

    def forgotten(self, version_id: int, size: int) -> None:
        """Leave it."""

    def looked_up(
        self, segment_id: int, start: int, stop: int, uses: Sequence[tuple[ExtentUse, int]]
    ) -> bool:
        """Leave it."""
        del segment_id, start, stop, uses
        return False

    def may_pin(self, size: int) -> bool:
        """Pin none."""
        del size
        return False

    def pinned_in(self, segment_id: int, start: int = 0, stop: int = SEGMENT_STOP) -> int:
        """Count none."""
        del segment_id, start, stop
        return 0


@dataclass(slots=True)
class Outcome:
    """What a replay came to."""

    hits: int = 0
    hit_bytes: int = 0
    read_bytes: int = 0
    reads: int = 0
    admitted_bytes: int = 0
    bypassed_bytes: int = 0
    dropped_bytes: int = 0
    rewritten_bytes: int = 0

    @property
    def byte_ratio(self) -> float:
        """Hits by bytes."""
        return self.hit_bytes / max(1, self.read_bytes)

    @property
    def object_ratio(self) -> float:
        """Hits by objects, all of whose bytes were here."""
        return self.hits / max(1, self.reads)


class CacheReplay:
    """A cache of segments without bytes in them: fills, reclaim and survivors as storage carries them out."""

    def __init__(
        self, policy: EvictionPolicy, uses: Sequence[ExtentUse], *, capacity_bytes: int, segment_bytes: int
    ) -> None:
        ids = count(1)
        self._policy = policy
        self._uses = uses
        limits = SegmentLimits(segment_bytes, capacity_bytes)
        self._store = SegmentStore(NoBytes(), limits, lambda: next(ids))  # type: ignore[arg-type]
        self._store.adopt(())
        self._room_bytes_min = min(ROOM_SEGMENTS * segment_bytes, capacity_bytes // 8)
        self._segment_bytes = segment_bytes
        self._extents: dict[int, list[tuple[int, int, int, int]]] = {}
        self._residents: dict[int, dict[int, tuple[int, int, int]]] = {}
        self.outcome = Outcome()
        self.carries_out_keep = True

    def count_hits_anew(self) -> None:
        """Leave what was read so far out of the hit ratios."""
        outcome = self.outcome
        outcome.hits = outcome.hit_bytes = outcome.reads = outcome.read_bytes = 0

    def read(self, number: int) -> bool:
        """Read an object whole; True where all of it was here."""
        outcome, use = self.outcome, self._uses[number]
        outcome.reads += 1
        outcome.read_bytes += use.length
        extents = self._extents.get(number)
        if extents is None:
            self._miss(number, use)
            return False
        position = 0
        for start, length, segment_id, offset in tuple(extents):
            if start > position:
                self._miss(number, _part(use, position, start - position))
            if not self._policy.touched(segment_id, offset, length):
                self._policy.accessed(_part(use, start, length), segment_id, offset)
            outcome.hit_bytes += length
            position = start + length
        if position < use.length:
            self._miss(number, _part(use, position, use.length - position))
        is_hit = sum(length for _, length, _, _ in extents) == use.length and len(extents) > 0
        outcome.hits += is_hit
        return is_hit

    def places(self, number: int) -> list[tuple[int, int, int]]:
        """Say where an object lies: segment, offset and length of each extent, in their order; empty where not all of it is here."""
        extents = self._extents.get(number, [])
        is_whole = sum(length for _, length, _, _ in extents) == self._uses[number].length
        return [(segment, offset, length) for _, length, segment, offset in extents] if is_whole else []

    def _miss(self, number: int, use: ExtentUse) -> None:
        # What goes is at least a segment: what the last one left over is nobody's for nothing.
        has_room = self._store.room_bytes >= self._room_bytes_min + self._segment_bytes
        stream = self._policy.admit(use, has_room=has_room)
        self._policy.accessed(use, None)
        if stream is None:
            self.outcome.bypassed_bytes += use.length
            return
        self.outcome.admitted_bytes += use.length
        try:
            self._append(number, use, stream)
        except DiskFullError:
            self._make_room(use.length)
            self._append(number, use, stream)
        self._make_room()

    def _append(self, number: int, use: ExtentUse, stream: Stream) -> list[tuple[int, int, int]]:
        placed = []
        position = use.start
        reservations = self._store.reserve(use.length, stream)
        for reservation in reservations:
            segment_id, offset, length = reservation.segment_id, reservation.offset, reservation.length
            self._policy.admitted(_part(use, position, length), segment_id, offset)
            self._residents.setdefault(segment_id, {})[offset] = (number, position, length)
            extents = self._extents.setdefault(number, [])
            extents.append((position, length, segment_id, offset))
            extents.sort()
            placed.append((segment_id, offset, length))
            position += length
        self._store.settle(reservations)
        return placed

    # --- space -------------------------------------------------------------------------------------------------------

    def _is_reclaimable(self, segment_id: int) -> bool:
        state = self._store.state(segment_id)
        return state is not None and state.is_sealed and state.is_settled and not state.pins

    def _make_room(self, asked: int = 0) -> None:
        while self._store.room_bytes < self._room_bytes_min + asked:
            victim = self._policy.choose(self._is_reclaimable)
            if victim is None:
                return
            self._give_up(victim)

    def _give_up(self, victim: Victim) -> None:
        if self.carries_out_keep:
            # What there is no room for goes with the segment.
            with suppress(DiskFullError):
                self._keep(victim)
        for offset, (number, start, length) in self._residents.pop(victim.segment_id, {}).items():
            self._forget(number, (start, length, victim.segment_id, offset))
            self.outcome.dropped_bytes += length
        self._policy.removed(victim.segment_id)
        self._store.remove(victim.segment_id)
        for segment_id in self._store.take_removable():
            self._store.unlink(segment_id)

    def _keep(self, victim: Victim) -> None:
        for kept in victim.keep:
            for offset in sorted(self._residents.get(victim.segment_id, {})):
                if kept.offset <= offset < kept.stop:
                    self._move(victim.segment_id, offset, kept.stream)

    def _move(self, segment_id: int, offset: int, stream: Stream) -> None:
        number, start, length = self._residents[segment_id][offset]
        use = _part(self._uses[number], start, length)
        placed = self._append(number, use, stream)
        del self._residents[segment_id][offset]
        self._forget(number, (start, length, segment_id, offset))
        moved = offset
        for to_segment_id, to_offset, to_length in placed:
            piece = Kept(moved, moved + to_length, stream)
            self._policy.moved(segment_id, piece, to_segment_id, to_offset)
            moved += to_length
        self.outcome.rewritten_bytes += length

    def _forget(self, number: int, gone: tuple[int, int, int, int]) -> None:
        extents = [one for one in self._extents[number] if one != gone]
        if extents:
            self._extents[number] = extents
        else:
            del self._extents[number]


def _part(use: ExtentUse, start: int, length: int) -> ExtentUse:
    if start == use.start and length == use.length:
        return use
    return ExtentUse(use.name, use.version_id, start, length, use.priority)
