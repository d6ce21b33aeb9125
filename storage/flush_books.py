"""The FlushPlanner's books: which keys and buckets there are, what they add up to, and what happened to them lately."""

import itertools
from collections import Counter, deque
from collections.abc import Iterable
from typing import Final

from storage.flush_events import FlushState, FlushStatus, Scope
from storage.flush_keys import MAY_FOLLOW, FlushBucket, FlushKey
from storage.flush_order import LazyHeap
from storage.records import DirtyEntry
from storage.types import ObjectName

STORY_LINES_MAX: Final = 2000
"""So many transitions, of all keys together, are remembered."""


class FlushBooks:
    """Keeps keys, their newest changes and states, and the sums over them in step."""

    def __init__(self) -> None:
        self.keys: Final[dict[ObjectName, FlushKey]] = {}
        self.buckets: Final[dict[str, FlushBucket]] = {}
        self._by_sequence: dict[int, FlushKey] = {}
        self._states: Counter[FlushState] = Counter()
        self._quarantined: dict[FlushKey, None] = {}
        self._quarantined_bytes = 0
        self._to_release: deque[tuple[Scope, deque[FlushKey]]] = deque()
        self._pending: LazyHeap[FlushKey] = LazyHeap()  # by the time of acknowledgement
        self._pending_bytes = 0
        self._story: deque[tuple[float, ObjectName, str]] = deque(maxlen=STORY_LINES_MAX)

    def __repr__(self) -> str:
        counts = ", ".join(
            f"{self._states[state]} {state.value}" for state in FlushState if self._states[state]
        )
        return f"<FlushBooks: {counts or 'all clean'}>"

    def key(self, name: ObjectName) -> FlushKey:
        """Give the key of a name, made where there is none."""
        key = self.keys.get(name)
        if key is None:
            key = self.keys[name] = FlushKey(name)
            bucket = self.buckets.get(name.bucket)
            if bucket is None:
                bucket = self.buckets[name.bucket] = FlushBucket(name.bucket)
            bucket.keys[name.key] = key
        return key

    def bucket(self, name: str) -> FlushBucket:
        """Give a bucket that has keys."""
        return self.buckets[name]

    def by_sequence(self, sequence: int) -> FlushKey | None:
        """Give the key whose newest change, or attempt under way, is of a sequence."""
        return self._by_sequence.get(sequence)

    def in_scope(self, scope: Scope) -> Iterable[FlushKey]:
        """Give the keys in scope as they are now; do not make or drop keys meanwhile."""
        if not scope.bucket:
            return self.keys.values()
        if scope.is_one_key:
            key = self.keys.get(ObjectName(scope.bucket, scope.prefix))
            return () if key is None else (key,)
        bucket = self.buckets.get(scope.bucket)
        keys = {} if bucket is None else bucket.keys
        if not scope.prefix:
            return keys.values()
        return [key for name, key in keys.items() if name.startswith(scope.prefix)]

    def want_released(self, scope: Scope) -> None:
        """Note which keys are quarantined now, to be let go on where they are in scope."""
        self._to_release.append((scope, deque(self._quarantined)))

    def take_to_release(self, limit: int) -> list[FlushKey]:
        """Look at up to `limit` of those; give what is in scope and quarantined still, oldest quarantine first."""
        found: dict[FlushKey, None] = {}
        while self._to_release and limit:
            scope, keys = self._to_release[0]
            if not keys:
                self._to_release.popleft()
                continue
            limit -= 1
            key = keys.popleft()
            if key.state is FlushState.QUARANTINED and key.name in scope:
                found[key] = None
        return list(found)

    @property
    def has_to_release(self) -> bool:
        """Whether there are keys that `take_to_release` has not looked at."""
        return bool(self._to_release)

    def count_quarantined(self, scope: Scope) -> int:
        """Count the quarantined keys in scope."""
        if not scope.bucket:
            return len(self._quarantined)
        bucket, prefix = scope.bucket, scope.prefix
        if scope.is_one_key:
            return sum(key.name in scope for key in self._quarantined)
        return sum(
            [key.name.bucket == bucket and key.name.key.startswith(prefix) for key in self._quarantined]
        )

    def oldest_quarantined(self, limit: int) -> list[FlushKey]:
        """Give up to `limit` quarantined keys, oldest quarantine first; looks at no others."""
        return list(itertools.islice(self._quarantined, limit))

    def set_entry(self, key: FlushKey, entry: DirtyEntry) -> None:
        """Give a key, which has none, its newest change."""
        assert key.entry is None, f"{key!r} has one"
        key.entry = entry
        self._by_sequence[entry.sequence] = key
        self._pending_bytes += entry.size
        self._pending.put(entry.acknowledged_at_s, key)

    def drop_entry(self, key: FlushKey) -> None:
        """Take a key's newest change out; the sequence stays known while the driver is at work on it."""
        entry = key.entry
        if entry is None:
            return
        if key in self._quarantined:
            del self._quarantined[key]
            self._quarantined_bytes -= entry.size
        else:
            self._pending.discard(key)
            self._pending_bytes -= entry.size
        if not key.is_busy or entry.sequence != key.sent:
            del self._by_sequence[entry.sequence]
        key.entry = None

    def end_sent(self, key: FlushKey) -> None:
        """Note that no attempt of a key is under way any more."""
        if key.sent is not None and (key.entry is None or key.has_unsent):
            self._by_sequence.pop(key.sent, None)
        key.sent = None

    def move(self, key: FlushKey, state: FlushState, now_s: float) -> None:
        """Put a key in another state, which must be one that may follow."""
        before = key.state
        assert state in MAY_FOLLOW[before], f"{key!r} cannot become {state.value}; {self.story(key.name)}"
        if before is not None:
            self._states[before] -= 1
        self._states[state] += 1
        self.note(key, state.value, now_s)
        key.state = state
        if state is FlushState.QUARANTINED:
            self._enter_quarantine(key)
        elif before is FlushState.QUARANTINED:
            self._leave_quarantine(key)

    def drop_key(self, key: FlushKey, now_s: float) -> None:
        """Forget a key without a change; its bucket goes with the last one."""
        assert key.entry is None, f"{key!r} is not settled"
        assert not key.barriers, f"{key!r} leaves barriers {key.barriers} behind"
        if key.state is not None:
            self._states[key.state] -= 1
        key.state = None
        self.note(key, "gone", now_s)
        del self.keys[key.name]
        bucket = self.buckets[key.name.bucket]
        del bucket.keys[key.name.key]
        if not bucket.keys:
            del self.buckets[bucket.name]

    def status(self, slots_used: int) -> FlushStatus:
        """Sum up."""
        return FlushStatus(
            pending_objects=len(self._pending),
            pending_bytes=self._pending_bytes,
            oldest_acknowledged_at_s=self._pending.first_order(),
            quarantined_objects=len(self._quarantined),
            quarantined_bytes=self._quarantined_bytes,
            slots_used=slots_used,
            suspended_buckets=tuple(sorted([b.name for b in self.buckets.values() if b.is_suspended])),
        )

    def note(self, key: FlushKey, text: str, now_s: float) -> None:
        """Add a line to the story of a key."""
        self._story.append((now_s, key.name, text))

    def story(self, name: ObjectName) -> list[str]:
        """Tell what happened to a key lately."""
        return [f"{at_s:.3f} {text}" for at_s, of, text in self._story if of == name]

    def check_invariants(self) -> None:
        """Compare the sums with what they sum up; for tests, O(n)."""
        entries = {key: key.entry for key in self.keys.values() if key.entry is not None}
        quarantined = {key for key in self.keys.values() if key.state is FlushState.QUARANTINED}
        assert set(self._quarantined) == quarantined, f"{self._quarantined} are not {quarantined}"
        pending = [entry for key, entry in entries.items() if key not in quarantined]
        assert self._pending_bytes == sum(entry.size for entry in pending)
        assert self._quarantined_bytes == sum(entries[key].size for key in quarantined)
        assert self._pending.first_order() == min((e.acknowledged_at_s for e in pending), default=None)
        assert len(self._pending) == len(pending)
        assert +self._states == Counter(key.state for key in self.keys.values())
        sequences = {entry.sequence: key for key, entry in entries.items()}
        sequences |= {key.sent: key for key in self.keys.values() if key.sent is not None}
        assert self._by_sequence == sequences, f"{self._by_sequence} is not {sequences}"
        for bucket in self.buckets.values():
            assert bucket.keys, f"{bucket.name} has no keys"
            assert all(self.keys[key.name] is key for key in bucket.keys.values())
        assert sum(len(bucket.keys) for bucket in self.buckets.values()) == len(self.keys)

    def _enter_quarantine(self, key: FlushKey) -> None:
        assert key.entry is not None, f"{key!r} has nothing to quarantine"
        self._pending.discard(key)
        self._pending_bytes -= key.entry.size
        self._quarantined[key] = None
        self._quarantined_bytes += key.entry.size

    def _leave_quarantine(self, key: FlushKey) -> None:
        if (
            key in self._quarantined
        ):  # else the quarantined change was replaced, and is out of the sums already
            assert key.entry is not None, f"{key!r} is quarantined with nothing"
            del self._quarantined[key]
            self._quarantined_bytes -= key.entry.size
            self._pending.put(key.entry.acknowledged_at_s, key)
            self._pending_bytes += key.entry.size
