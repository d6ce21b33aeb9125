"""Buckets whose origin refuses them as a whole or is away: set aside, and tried with one key at a time, at growing intervals."""

from collections.abc import Mapping

from storage.flush_events import FlushSettings
from storage.flush_keys import FlushBucket, FlushKey
from storage.flush_order import LazyHeap, ReadyOrder


class BucketGate:
    """Suspends buckets, says when one is to be probed and with which key, and opens them again.

    Args:
        settings: The intervals.
        ready: What may be sent; the gate sets buckets aside there.
        buckets: The planner's buckets; one that is dropped has to be opened first.
    """

    def __init__(
        self, settings: FlushSettings, ready: ReadyOrder[FlushKey], buckets: Mapping[str, FlushBucket]
    ) -> None:
        self._settings = settings
        self._ready = ready
        self._buckets = buckets
        self._times: LazyHeap[str] = LazyHeap()
        # Suspended buckets whose probe is due and that may have a key to try, in order.
        self._candidates: dict[str, None] = {}

    def suspend(
        self, bucket: FlushBucket, reason: str, now_s: float, jitter: float, *, is_away: bool = False
    ) -> None:
        """Set a bucket aside; its next probe gets due after a while that grows with each failed one."""
        bucket.is_suspended, bucket.is_away, bucket.reason = True, is_away, reason
        self._ready.suspend(bucket.name)
        self.put_off(bucket, now_s, jitter)

    def put_off(self, bucket: FlushBucket, now_s: float, jitter: float) -> float:
        """Put the next probe off, the last one having shown nothing; give its time."""
        bucket.suspensions += 1
        longest_s = self._settings.away_probe_s_max if bucket.is_away else self._settings.probe_s_max
        limit_s = min(longest_s, self._settings.probe_s_min * 2.0 ** min(bucket.suspensions, 30))
        due_s = now_s + max(self._settings.probe_s_min, limit_s * jitter)
        self._times.put(due_s, bucket.name)
        return due_s

    def make_due(self, bucket: FlushBucket) -> None:
        """Let a suspended bucket be probed as soon as it has a key to try and a slot is free."""
        if bucket.is_suspended and bucket.probe is None:
            bucket.probe_is_due = True
            self._times.discard(bucket.name)
            self.offer(bucket)

    def offer(self, bucket: FlushBucket) -> None:
        """Look whether a bucket can be probed; to be called when one of its keys has become ready."""
        if bucket.probe_is_due:
            self._candidates[bucket.name] = None

    def open(self, bucket: FlushBucket) -> None:
        """Let a bucket take part again, the origin having served an attempt."""
        bucket.outages = 0
        if bucket.is_suspended:
            bucket.is_suspended, bucket.is_away = False, False
            bucket.suspensions, bucket.reason = 0, ""
            bucket.probe_is_due = False
            self._times.discard(bucket.name)
            self._candidates.pop(bucket.name, None)
            self._ready.resume(bucket.name)

    def next_probe(self) -> FlushKey | None:
        """Take the key to probe the next bucket with; None where no probe is due."""
        while self._candidates:
            name = next(iter(self._candidates))
            del self._candidates[name]
            key = self._ready.take_in(name)
            if key is not None:
                bucket = self._buckets[name]
                bucket.probe, bucket.probe_is_due = key, False
                return key
        return None

    def fire_due(self, now_s: float) -> None:
        """Make the probes due whose time has come."""
        while (name := self._times.pop_due(now_s)) is not None:
            self.make_due(self._buckets[name])

    def first_time_s(self) -> float | None:
        """Say when the next probe gets due; None where none is waited for."""
        return self._times.first_order()
