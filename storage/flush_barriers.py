"""Who waits for what to be at the origin.

A barrier counts the keys it waits for, and those of them that can still get there, by bucket; so each event costs it a step
for each barrier its key is in, however many keys there are.

It takes note of the keys there are when it begins, and counts them some at a time, since they may be all there are: a barrier is
*forming* until it has counted them, and never over before. A key that is counted later is waited for whatever it holds by then: what
it held at the beginning may be in flight, or merged into something newer. So a forming barrier may wait for more than it has to, and
never for less. One that was confirmed and forgotten meanwhile is at the origin, whatever has come under its name since.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

from storage.flush_events import BarrierBlocked, BarrierReached, FlushState, Remaining
from storage.flush_keys import FlushBucket, FlushKey

REMAINING_MAX: Final = 1000
"""So many keys of a blocked barrier are listed; the rest is a number."""


@dataclass(slots=True)
class _Barrier:
    """`pending` maps a key to the least sequence whose arrival settles it; `able` counts those not quarantined.

    `uncounted` are the keys that are neither yet, in `pending` with sequences up to `up_to_sequence`.
    """

    up_to_sequence: int
    uncounted: deque[FlushKey]
    pending: dict[FlushKey, int] = field(default_factory=dict)
    able: dict[str, int] = field(default_factory=dict)


class Barriers:
    """All barriers that are waited for; says which are over."""

    def __init__(self) -> None:
        self._barriers: dict[int, _Barrier] = {}
        self._touched: set[int] = set()
        self._forming: deque[int] = deque()
        self._leaving: deque[tuple[int, deque[FlushKey]]] = deque()

    def __len__(self) -> int:
        return len(self._barriers)

    @property
    def has_work(self) -> bool:
        """Whether there are keys to count, or to tell that a barrier is over."""
        return bool(self._forming or self._leaving)

    @property
    def is_forming(self) -> bool:
        """Whether a barrier has keys to count."""
        return bool(self._forming)

    def add(self, barrier_id: int, keys: Iterable[FlushKey], up_to_sequence: int) -> None:
        """Begin to wait for keys, which are counted by `count_some`."""
        assert barrier_id not in self._barriers, f"barrier {barrier_id} is there already"
        self._barriers[barrier_id] = _Barrier(up_to_sequence, deque(keys))
        self._forming.append(barrier_id)
        self._touched.add(barrier_id)

    def is_first_forming(self, barrier_id: int) -> bool:
        """Whether the next keys to be counted are a barrier's."""
        return bool(self._forming) and self._forming[0] == barrier_id

    def count_some(self, limit: int, has_to_wait: Callable[[FlushKey, int], bool]) -> list[FlushKey]:
        """Count up to `limit` keys of the oldest forming barrier, but for those that it need not wait for; give what it waits for.

        Args:
            limit: At least 1.
            has_to_wait: Whether a key that was there at the beginning has anything to wait for, up to a sequence.
        """
        while self._forming and (self._forming[0] not in self._barriers):
            self._forming.popleft()
        if not self._forming:
            return []
        barrier_id = self._forming[0]
        barrier = self._barriers[barrier_id]
        counted: list[FlushKey] = []
        for _ in range(min(limit, len(barrier.uncounted))):
            key = barrier.uncounted.popleft()
            if not has_to_wait(key, barrier.up_to_sequence):
                continue
            assert key.entry is not None, f"{key!r} has nothing to wait for"
            barrier.pending[key] = min(key.entry.sequence, barrier.up_to_sequence)
            key.barriers.add(barrier_id)
            if key.state is not FlushState.QUARANTINED:
                _count(barrier, key, 1)
            counted.append(key)
        if not barrier.uncounted:
            self._forming.popleft()
            self._touched.add(barrier_id)
        return counted

    def cancel(self, barrier_id: int) -> None:
        """Forget a barrier; unknown ones are ignored. Where it has many keys, `leave_some` tells them."""
        barrier = self._barriers.pop(barrier_id, None)
        self._touched.discard(barrier_id)
        if barrier is not None and barrier.pending:
            self._leaving.append((barrier_id, deque(barrier.pending)))

    def leave_some(self, limit: int) -> None:
        """Tell up to `limit` keys that a barrier is over."""
        while self._leaving and limit:
            barrier_id, keys = self._leaving[0]
            for _ in range(min(limit, len(keys))):
                keys.popleft().barriers.discard(barrier_id)
                limit -= 1
            if not keys:
                self._leaving.popleft()

    def leave(self, key: FlushKey) -> None:
        """Tell one key at once of all that are over."""
        key.barriers &= self._barriers.keys()

    def remaining(self, barrier_id: int) -> int:
        """Count the keys that a barrier waits for, all that are not counted yet among them; 0 for an unknown one."""
        barrier = self._barriers.get(barrier_id)
        return 0 if barrier is None else len(barrier.pending) + len(barrier.uncounted)

    def settle(self, key: FlushKey, sequence: int) -> None:
        """Say that the key's state of a sequence is at the origin, or given up."""
        self.leave(key)
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
            self.leave(key)
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
            if barrier.uncounted:
                continue
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
