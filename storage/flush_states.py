"""Where each key of the flush stands, and in which order it waits there: for its turn, a time, a check. Pure.

`FlushPlanner` (`storage/flush.py`) says why a key moves; here it is moved, so that its state, the orders of what is ready and of what
gets due, the barriers' counts and the suspension of its bucket are always in step. A key stands in at most one of these orders:

    ready       QUEUED                     _wakes   HELD, WAITING_RETRY, WAITING_CHECK until its time
    checks      WAITING_CHECK and due      none     at work, or QUARANTINED

and in `_deadlines` as well while its deadline is still to come.
"""

from collections import deque
from typing import Final

from storage.flush_barriers import Barriers
from storage.flush_books import FlushBooks
from storage.flush_events import Confirm, FlushSettings, FlushState, Instruction, WakeAt
from storage.flush_gate import BucketGate
from storage.flush_keys import FlushBucket, FlushKey
from storage.flush_order import LazyHeap, ReadyOrder
from storage.flush_strays import Strays
from storage.records import DirtyEntry

RAISED_PER_EVENT_MAX: Final = 250
"""So many keys are moved to the urgent ones in one step, a few milliseconds' worth."""

NEVER_S: Final = float("inf")


class FlushStates:
    """All keys, each in its state and its place.

    Attributes:
        now_s: The time of the event that is taken.
        is_draining: Whether nothing is held back any more.
        out: The instructions that follow from the event so far, in order.
        ready: What may be sent.
        checks: What waits for a slot for its HEAD, its time being past.
        to_raise: Keys that a barrier or the drain made urgent.
        wake_asked_s: For when a Tick was asked.
    """

    def __init__(self, settings: FlushSettings) -> None:
        self._settings = settings
        self.now_s = 0.0
        self.is_draining = False
        self.out: list[Instruction] = []
        self.books: Final = FlushBooks()
        self.ready: Final[ReadyOrder[FlushKey]] = ReadyOrder()
        self.gate: Final = BucketGate(settings, self.ready, self.books.buckets)
        self.barriers: Final = Barriers()
        self.strays: Final = Strays()
        self.checks: Final[LazyHeap[FlushKey]] = LazyHeap()
        self.to_raise: Final[deque[FlushKey]] = deque()
        self.wake_asked_s = NEVER_S
        self._wakes: LazyHeap[FlushKey] = LazyHeap()
        self._deadlines: LazyHeap[FlushKey] = LazyHeap()

    # --- Keys ---

    def go_on(self, key: FlushKey, retry_in_s: float = 0.0) -> None:
        """Let a key that is no longer at work wait for its next attempt, or forget it where nothing is left to send."""
        self.books.end_sent(key)
        if key.entry is None:
            self.forget(key)
        elif retry_in_s > 0:
            self.wait(key, FlushState.WAITING_RETRY, self.now_s + retry_in_s)
        else:
            self.queue(key)

    def queue(self, key: FlushKey) -> None:
        """Put a key where it waits for its turn: held back by its delay, or ready."""
        assert key.entry is not None, f"{key!r} has nothing to send"
        self.books.end_sent(key)
        self._wakes.discard(key)
        self.checks.discard(key)
        if key.hold_until_s > self.now_s and not key.barriers and not self.is_draining:
            self.ready.discard(key.name.bucket, key)
            self.wait(key, FlushState.HELD, key.hold_until_s)
            return
        key.hold_until_s = min(key.hold_until_s, self.now_s)  # what a barrier raised stays raised without it
        self.move(key, FlushState.QUEUED)
        is_tombstone, is_urgent = key.entry.is_tombstone, key.is_urgent(self.now_s)
        self.ready.put(key.name.bucket, key, key.since, is_urgent=is_urgent, is_tombstone=is_tombstone)
        self.gate.offer(self.books.bucket(key.name.bucket))

    def wait(self, key: FlushKey, state: FlushState, until_s: float) -> None:
        """Put a key where it waits for a time."""
        self.move(key, state)
        self._wakes.put(until_s, key)

    def confirm(self, key: FlushKey, *, is_overtaken: bool = False) -> None:
        """Ask for what was sent of a key to be confirmed."""
        assert key.sent is not None, f"{key!r} sent nothing"
        self.move(key, FlushState.CONFIRMING)
        self.out.append(Confirm(key.sent, is_overtaken))

    def quarantine(self, key: FlushKey, reason: str) -> None:
        """Set a key aside, refused for good."""
        key.reason, key.attempts = reason, 0
        self._deadlines.discard(key)
        self.move(key, FlushState.QUARANTINED)

    def forget(self, key: FlushKey) -> None:
        """End a key with nothing left to send."""
        for queue in (self._wakes, self._deadlines, self.checks):
            queue.discard(key)
        bucket = self.books.bucket(key.name.bucket)
        self.ready.discard(bucket.name, key)
        bucket.unserved.discard(key)
        if len(bucket.keys) == 1:
            self.open(bucket)  # its suspension goes with its last key
        if key.attempted:
            end_s = key.attempted_at_s + self._settings.origin_timeout_s
            self.strays.remember(key.name, key.attempted, end_s)
        self.barriers.leave(key)
        self.books.drop_key(key, self.now_s)

    def move(self, key: FlushKey, state: FlushState) -> None:
        """Put a key in a state, in step with what the barriers count."""
        before = key.state
        if before is not state:
            self.books.move(key, state, self.now_s)
            self.barriers.move(key, before, state)

    def raise_some(self) -> None:
        """Move keys that a barrier or the drain made urgent; some at a time, as a barrier may take in all there are."""
        for _ in range(min(RAISED_PER_EVENT_MAX, len(self.to_raise))):
            key = self.to_raise.popleft()
            if key.state in {FlushState.HELD, FlushState.QUEUED}:
                self.queue(key)

    # --- Buckets ---

    def open(self, bucket: FlushBucket) -> None:
        """Let a bucket go on; where the origin is back, without waiting for the retries of those that found it away."""
        unserved, bucket.unserved = bucket.unserved, set()
        was_away = bucket.is_away
        self.gate.open(bucket)
        for key in unserved:
            if was_away and key.state is FlushState.WAITING_RETRY:
                self.queue(key)

    def suspend(self, bucket: FlushBucket, reason: str, jitter: float, *, is_away: bool = False) -> None:
        """Set a bucket aside; a barrier may be stuck by it."""
        self.gate.suspend(bucket, reason, self.now_s, jitter, is_away=is_away)
        self.barriers.touch(bucket.name)

    # --- Time ---

    def set_times(self, key: FlushKey, entry: DirtyEntry, wall_s: float, *, merges: bool) -> None:
        """Turn wall times into the planner's. What replaces an unsent change keeps its times, or a busy key would wait for ever."""
        # A wall clock that went back must not hold a change for longer than its policy says.
        hold_s = min(entry.flush_after_s - wall_s, entry.flush_after_s - entry.acknowledged_at_s)
        hold_until_s = self.now_s + max(0.0, hold_s)
        deadline_at_s = NEVER_S
        if entry.deadline_s:
            deadline_at_s = self.now_s + entry.deadline_s - wall_s - self._settings.deadline_lead_s
        key.hold_until_s = min(key.hold_until_s, hold_until_s) if merges else hold_until_s
        key.deadline_at_s = min(key.deadline_at_s, deadline_at_s) if merges else deadline_at_s
        if self.now_s < key.deadline_at_s < NEVER_S:
            self._deadlines.put(key.deadline_at_s, key)
        else:
            self._deadlines.discard(key)

    def fire_due(self) -> None:
        """Move what has become due."""
        while (key := self._deadlines.pop_due(self.now_s)) is not None:
            if key.state is FlushState.QUEUED:
                self.queue(key)
        while (key := self._wakes.pop_due(self.now_s)) is not None:
            if key.state is FlushState.WAITING_CHECK:
                self.checks.put(self.now_s, key)
            else:
                self.queue(key)
        self.gate.fire_due(self.now_s)
        self.strays.end_due(self.now_s)

    def ask_to_be_woken(self) -> None:
        """Ask for a Tick when the next thing gets due; at once where there is more to go through."""
        if self.wake_asked_s <= self.now_s:
            self.wake_asked_s = NEVER_S
        orders = (self._wakes.first_order(), self._deadlines.first_order(), self.gate.first_time_s())
        wake_s = min((order for order in orders if order is not None), default=NEVER_S)
        if self.to_raise or self.books.has_to_release or self.barriers.has_work:
            wake_s = self.now_s
        # A later time than was asked for is not worth a word: that Tick will find nothing and ask anew.
        if wake_s < self.wake_asked_s:
            self.wake_asked_s = wake_s
            self.out.append(WakeAt(wake_s))

    def backoff_s(self, key: FlushKey, jitter: float) -> float:
        """Wait up to a time that doubles with each attempt, all of it drawn ("full jitter"), so that retries spread."""
        is_away = self.books.bucket(key.name.bucket).is_away
        longest_s = self._settings.away_probe_s_max if is_away else self._settings.retry_s_max
        limit_s = min(longest_s, self._settings.retry_s_min * 2.0 ** min(key.attempts - 1, 30))
        return max(self._settings.retry_s_min / 10, limit_s * jitter)

    # --- For tests ---

    def check_invariants(self) -> None:
        """Compare the orders with the states, and what else is kept twice; for tests, O(n)."""
        self.books.check_invariants()
        self.barriers.check_invariants()
        queued = {FlushState.HELD, FlushState.WAITING_RETRY}
        for key in self.books.keys.values():
            assert self.ready.is_in(key.name.bucket, key) == (key.state is FlushState.QUEUED), (
                f"{key!r} and its turn"
            )
            waits = key in self._wakes or (key.state is FlushState.WAITING_CHECK and key in self.checks)
            assert waits == (key.state in queued or key.state is FlushState.WAITING_CHECK), (
                f"{key!r} and its wake"
            )
            assert key.is_busy or key.entry is not None, f"{key!r} should be gone"
            assert (key.sent is not None) == (key.is_busy or key.state is FlushState.WAITING_CHECK), (
                f"{key!r}"
            )
