"""The slots of the flush: what is started next, and how many attempts are under way. Pure.

A slot is one put, one HEAD or one batch of deletes. Checks go first, then the probes of suspended buckets, then what is ready; urgent
keys before others, but the last slot is left to the rest.
"""

from storage.flush_events import CheckByHead, FlushSettings, FlushState, StartDeletes, StartFlush
from storage.flush_keys import Flight, FlushKey
from storage.flush_states import FlushStates
from storage.types import Priority


class FlushSlots:
    """Starts what fits in the slots.

    Args:
        states: The keys.
        settings: How many slots there are, and how long a batch of deletes may be.
        unclean_until_s: After an unclean stop: until then an attempt of the process before may still land.

    Attributes:
        used: Slots in use.
        urgent_used: Those of them that somebody waits for.
    """

    def __init__(self, states: FlushStates, settings: FlushSettings, unclean_until_s: float) -> None:
        self._states = states
        self._settings = settings
        self._unclean_until_s = unclean_until_s
        self.used = 0
        self.urgent_used = 0

    def fill(self) -> None:
        """Start what fits. Checks first: they are short and let bytes become clean."""
        while self.used < self._settings.concurrency:
            check = self._states.checks.pop()
            if check is not None:
                self._start_check(check)
                continue
            probe = self._states.gate.next_probe()
            key = self._next_ready() if probe is None else probe
            if key is None:
                return
            self._launch(key, is_probe=probe is not None)

    def _next_ready(self) -> FlushKey | None:
        """Take the next key; urgent ones first, but they never take the last slot from the rest."""
        urgent_first = self.urgent_used < max(1, self._settings.concurrency - 1)
        first = self._states.ready.take(is_urgent=urgent_first)
        return self._states.ready.take(is_urgent=not urgent_first) if first is None else first

    def _start_check(self, key: FlushKey) -> None:
        assert key.sent is not None, f"{key!r} sent nothing"
        self._begin([key], is_urgent=False)
        self._states.move(key, FlushState.CHECKING)
        attempted = tuple(sequence for sequence in key.attempted if sequence != key.sent)
        self._states.out.append(
            CheckByHead(key.sent, (*attempted, key.sent), is_from_before=key.check_until_s > 0)
        )

    def _launch(self, key: FlushKey, *, is_probe: bool) -> None:
        assert key.entry is not None, f"{key!r} has nothing to send"
        is_urgent = key.is_urgent(self._states.now_s)
        priority = Priority.URGENT_FLUSH if is_urgent else Priority.FLUSH
        if not key.entry.is_tombstone:
            (sequence,) = self._send([key], is_urgent=is_urgent)
            self._states.out.append(StartFlush(sequence, priority, key.needs_check))
            return
        keys = [key]
        if not is_probe:
            limit = self._settings.deletes_max - 1
            keys += self._states.ready.take_tombstones(key.name.bucket, limit, is_urgent=is_urgent)
        sequences = self._send(keys, is_urgent=is_urgent)
        self._states.out.append(StartDeletes(key.name.bucket, sequences, priority))

    def _send(self, keys: list[FlushKey], *, is_urgent: bool) -> tuple[int, ...]:
        """Put keys in flight together, in one slot; give their sequences."""
        self._begin(keys, is_urgent=is_urgent)
        sequences: list[int] = []
        for key in keys:
            assert key.entry is not None, f"{key!r} has nothing to send"
            key.sent = key.entry.sequence
            sequences.append(key.sent)
            if self._states.now_s < self._unclean_until_s:
                key.check_until_s = self._unclean_until_s
            self._states.move(key, FlushState.IN_FLIGHT)
        return tuple(sequences)

    def _begin(self, keys: list[FlushKey], *, is_urgent: bool) -> None:
        flight = Flight(len(keys), is_urgent=is_urgent)
        self.used += 1
        self.urgent_used += is_urgent
        for key in keys:
            assert key.flight is None, f"{key!r} has a slot; {self._states.books.story(key.name)}"
            key.flight = flight
            self._states.books.bucket(key.name.bucket).flights += 1

    def end(self, key: FlushKey) -> bool:
        """Give back the key's part of its slot; say whether it was the probe of its bucket."""
        flight, bucket = key.flight, self._states.books.bucket(key.name.bucket)
        assert flight is not None, f"{key!r} has no slot; {self._states.books.story(key.name)}"
        key.flight = None
        bucket.flights -= 1
        flight.remaining -= 1
        if not flight.remaining:
            self.used -= 1
            self.urgent_used -= flight.is_urgent
        if bucket.is_suspended:
            self._states.barriers.touch(bucket.name)
        was_probe = bucket.probe is key
        if was_probe:
            bucket.probe = None
        return was_probe

    def check_invariants(self) -> None:
        """Compare what is counted with what the keys say; for tests, O(n)."""
        keys = self._states.books.keys.values()
        flights = {id(key.flight): key.flight for key in keys if key.flight is not None}
        assert self.used == len(flights) <= self._settings.concurrency, (
            f"{self.used} of {len(flights)} flights"
        )
        assert self.urgent_used == sum(flight.is_urgent for flight in flights.values())
        for key in keys:
            has_slot = key.state in {FlushState.IN_FLIGHT, FlushState.CHECKING}
            assert (key.flight is not None) == has_slot, f"{key!r} and its slot"
        for bucket in self._states.books.buckets.values():
            assert bucket.flights == sum(key.flight is not None for key in bucket.keys.values())
