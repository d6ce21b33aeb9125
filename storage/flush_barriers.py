"""Who waits for what to be at the origin.

A barrier counts the keys it waits for, and those of them that can still get there, by bucket; so each event costs it a step
for each barrier its key is in, however many keys there are.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from storage.flush_events import BarrierBlocked, BarrierReached, FlushState, Remaining
from storage.flush_keys import FlushBucket, FlushKey

REMAINING_MAX: Final = 1000
"""So many keys of a blocked barrier are listed; the rest is a number."""


@dataclass(slots=True)
class _Barrier:
    """`pending` maps a key to the least sequence whose arrival settles it; `able` counts those not quarantined."""

    pending: dict[FlushKey, int] = field(default_factory=dict)
    able: dict[str, int] = field(default_factory=dict)


class Barriers:
    """All barriers that are waited for; says which are over."""

    def __init__(self) -> None:
        self._barriers: dict[int, _Barrier] = {}
        self._touched: set[int] = set()

    def __len__(self) -> int:
        return len(self._barriers)

    def add(self, barrier_id: int, keys: Iterable[FlushKey], up_to_sequence: int) -> None:
        """Begin to wait for keys, which have changes up to a sequence."""
        assert barrier_id not in self._barriers, f"barrier {barrier_id} is there already"
        barrier = self._barriers[barrier_id] = _Barrier()
        for key in keys:
            assert key.entry is not None, f"{key!r} has nothing to wait for"
            barrier.pending[key] = min(key.entry.sequence, up_to_sequence)
            key.barriers.add(barrier_id)
            if key.state is not FlushState.QUARANTINED:
                _count(barrier, key, 1)
        self._touched.add(barrier_id)

    def cancel(self, barrier_id: int) -> None:
        """Forget a barrier; unknown ones are ignored."""
        barrier = self._barriers.pop(barrier_id, None)
        for key in barrier.pending if barrier is not None else ():
            key.barriers.discard(barrier_id)
        self._touched.discard(barrier_id)

    def remaining(self, barrier_id: int) -> int:
        """Count the keys that a barrier waits for; 0 for an unknown one."""
        barrier = self._barriers.get(barrier_id)
        return 0 if barrier is None else len(barrier.pending)

    def settle(self, key: FlushKey, sequence: int) -> None:
        """Say that the key's state of a sequence is at the origin, or given up."""
        for barrier_id in [b for b in key.barriers if self._barriers[b].pending[key] <= sequence]:
            barrier = self._barriers[barrier_id]
            del barrier.pending[key]
            key.barriers.discard(barrier_id)
            if key.state is not FlushState.QUARANTINED:
                _count(barrier, key, -1)
            self._touched.add(barrier_id)

    def move(self, key: FlushKey, before: FlushState | None, after: FlushState) -> None:
        """Say that a key went into quarantine or came out."""
        change = (before is FlushState.QUARANTINED) - (after is FlushState.QUARANTINED)
        if change:
            for barrier_id in key.barriers:
                _count(self._barriers[barrier_id], key, change)
                self._touched.add(barrier_id)

    def touch(self, bucket: str) -> None:
        """Say that a bucket may be stuck."""
        self._touched.update(b for b, barrier in self._barriers.items() if bucket in barrier.able)

    def review(self, bucket_of: Callable[[str], FlushBucket]) -> list[BarrierReached | BarrierBlocked]:
        """End the barriers that are reached or blocked and give the words for it."""
        ended: list[BarrierReached | BarrierBlocked] = []
        for barrier_id in sorted(self._touched):
            barrier = self._barriers[barrier_id]
            if not barrier.pending:
                ended.append(BarrierReached(barrier_id))
                self.cancel(barrier_id)
            elif all(bucket_of(bucket).is_stuck for bucket in barrier.able):
                keys = list(barrier.pending)
                remaining = tuple(_remaining(key, bucket_of(key.name.bucket)) for key in keys[:REMAINING_MAX])
                ended.append(BarrierBlocked(barrier_id, len(keys), remaining))
                self.cancel(barrier_id)
        self._touched.clear()
        return ended

    def check_invariants(self) -> None:
        """Compare the counts with what they count; for tests, O(n)."""
        for barrier_id, barrier in self._barriers.items():
            able: dict[str, int] = {}
            for key in barrier.pending:
                assert barrier_id in key.barriers, f"{key!r} does not know barrier {barrier_id}"
                if key.state is not FlushState.QUARANTINED:
                    able[key.name.bucket] = able.get(key.name.bucket, 0) + 1
            assert able == barrier.able, f"barrier {barrier_id} counts {barrier.able}, not {able}"


def _count(barrier: _Barrier, key: FlushKey, change: int) -> None:
    count = barrier.able.get(key.name.bucket, 0) + change
    if count:
        barrier.able[key.name.bucket] = count
    else:
        barrier.able.pop(key.name.bucket, None)


def _remaining(key: FlushKey, bucket: FlushBucket) -> Remaining:
    assert key.entry is not None, f"{key!r} has nothing to wait for"
    assert key.state is not None, f"{key!r} is in no state"
    reason = bucket.reason if bucket.is_suspended and key.state is not FlushState.QUARANTINED else key.reason
    return Remaining(key.name, key.entry.sequence, key.state, reason)
