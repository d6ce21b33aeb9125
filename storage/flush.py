"""What is sent to the origin, in which order, and when it counts as being there. A state machine without I/O.

`FlushPlanner.handle(event, now_s)` takes one event and gives the instructions that follow from it; `flusher.py` carries them
out and feeds their outcomes back. Here is what each event means; where a key waits then is `flush_states.py`'s to say, and what is
started `flush_slots.py`'s. The unit is the key, since that is what must not be overtaken:

    new ──> HELD ──> QUEUED ──> IN_FLIGHT ──> CONFIRMING ──> gone
              flush delay  ^        │ │ └─> WAITING_CHECK ──> CHECKING ──> CONFIRMING
                           │        │ └──> QUARANTINED                 └─> QUEUED (a superseded attempt landed)
                           └────────┴─> WAITING_RETRY

- Only a key's newest change is sent. A newer one replaces it at once where nothing is under way, else when that has ended:
  the key is then queued again. One attempt a key, whatever happens. A tombstone is a change like any other: only a newer
  change of the same key takes its place, even where the put it deletes was never sent, since the origin may have an older one.
- An attempt without an answer may still land. Its key is remembered as such, whatever is sent after it, and the next success
  is followed by a wait of the origin's time-out and a HEAD before it is confirmed. Neither wait takes a slot. Where the HEAD
  shows a superseded attempt the newest change is sent once more; by then nothing is left that could land.
- FlushSucceeded is not the end: Confirm has the journal written, and only Confirmed makes the bytes clean.
- A refusal that concerns a bucket or the credentials suspends the bucket: one key at a time is tried, at growing intervals,
  until one gets an answer of its own. Others are not affected, by slots, order or cost. So does an origin that is away, which
  shows in several attempts in a row: else a hundred thousand keys, each with a backoff of its own, would be a storm. One key
  that never gets an answer is no outage as long as others get theirs.
- Urgent is what a barrier waits for and what is near its deadline. It goes first, but the last slot is left to the rest.

Each event costs O(log n) and a bounded number of the keys that an earlier command concerns, but for taking note of those: 10 ms for
100,000 keys of a bucket under a prefix.
"""

from collections.abc import Callable
from typing import Final, TypeAlias, assert_never

from storage.flush_events import (
    STRAY,
    BarrierAdded,
    BarrierCancelled,
    BucketProbeResult,
    Confirmed,
    DirtyAdded,
    DirtyRemoved,
    DrainStarted,
    Event,
    FailureKind,
    FlushFailed,
    FlushSettings,
    FlushSkipped,
    FlushState,
    FlushStatus,
    FlushSucceeded,
    HeadChecked,
    HeadResult,
    Instruction,
    NewestTaken,
    Quarantine,
    Release,
    RetryQuarantined,
    Scope,
    StrayNoted,
    Tick,
)
from storage.flush_keys import FlushBucket, FlushKey
from storage.flush_slots import FlushSlots
from storage.flush_states import NEVER_S, FlushStates
from storage.records import DirtyEntry
from storage.types import ObjectName

_Outcome: TypeAlias = FlushSucceeded | FlushSkipped | FlushFailed | NewestTaken | HeadChecked | Confirmed
_News: TypeAlias = (
    DirtyAdded
    | DirtyRemoved
    | Tick
    | BarrierAdded
    | BarrierCancelled
    | StrayNoted
    | DrainStarted
    | RetryQuarantined
    | BucketProbeResult
)

COUNTED_PER_EVENT_MAX: Final = 1000
RELEASED_PER_EVENT_MAX: Final = 100
"""Keys that a command concerns are gone through so many at an event: some milliseconds, however many there are."""


class FlushPlanner:
    """Decides the flush; see the module's text. `now_s` is monotonic and never goes back.

    Args:
        settings: The bounds.
        unclean_until_s: After an unclean stop: until then an attempt of the process before may still land.
    """

    def __init__(self, settings: FlushSettings, unclean_until_s: float = 0.0) -> None:
        self._settings = settings
        self._states = FlushStates(settings)
        self._books = self._states.books
        self._gate = self._states.gate
        self._barriers = self._states.barriers
        self._strays = self._states.strays
        self._slots = FlushSlots(self._states, settings, unclean_until_s)

    def __repr__(self) -> str:
        status = self.status()
        return (
            f"<FlushPlanner: {self._books!r}, {self._slots.used} of {self._settings.concurrency} slots, "
            f"{len(self._barriers)} barriers, suspended: {', '.join(status.suspended_buckets) or 'none'}>"
        )

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Take one event; give what is to be done because of it and of the time, in order."""
        assert now_s >= self._states.now_s, f"time went back from {self._states.now_s} to {now_s}"
        self._states.now_s = now_s
        self._states.fire_due()
        if isinstance(event, _Outcome):
            self._take_outcome(event)
        else:
            self._take_news(event)
        if self._barriers.is_forming and not isinstance(event, BarrierAdded):
            self._count_some(self._is_there_still)
        self._release_some()
        self._states.raise_some()
        self._slots.fill()
        self._states.out += self._barriers.review(self._books.bucket)
        self._barriers.leave_some(COUNTED_PER_EVENT_MAX)
        self._states.ask_to_be_woken()
        out, self._states.out = self._states.out, []
        return out

    def status(self) -> FlushStatus:
        """Say how much is not at the origin; O(buckets)."""
        return self._books.status(self._slots.used)

    def is_pressed(self) -> bool:
        """Whether what somebody was promised is urgent now, or takes all slots: then nothing else should be sent."""
        return self._slots.urgent_used > 0 or self._slots.used >= self._settings.concurrency

    def state_of(self, name: ObjectName) -> FlushState | None:
        """Say where a key stands; None where nothing of it is to be flushed."""
        key = self._books.keys.get(name)
        return None if key is None else key.state

    def reason_of(self, name: ObjectName) -> str:
        """Say why a key's last attempt failed; "" where none did since its last success."""
        key = self._books.keys.get(name)
        return "" if key is None else key.reason

    def suspension_of(self, bucket: str) -> str:
        """Say why a bucket is suspended; "" where it is not."""
        known = self._books.buckets.get(bucket)
        return known.reason if known is not None and known.is_suspended else ""

    def quarantined_in(self, scope: Scope) -> int:
        """Count the quarantined changes in scope; half a microsecond each where it is not all of them."""
        return self._books.count_quarantined(scope)

    def name_of(self, sequence: int) -> ObjectName:
        """Name the key of an attempt that is asked for or under way."""
        key = self._books.by_sequence(sequence)
        assert key is not None, f"nobody asked for sequence {sequence}"
        return key.name

    def newest(self, sequence: int) -> int:
        """Give the newest change of an attempt's key; 0 where it was given up."""
        key = self._books.by_sequence(sequence)
        return 0 if key is None or key.entry is None else key.entry.sequence

    def attempts_of(self, name: ObjectName) -> int:
        """Count a key's failed attempts since its last success."""
        key = self._books.keys.get(name)
        return 0 if key is None else key.attempts

    def may_land_until_s(self, name: ObjectName) -> float:
        """Say until when what a flush sent of a key may land that nothing will be sent behind; 0 where nothing may."""
        key = self._books.keys.get(name)
        timeout_s = self._settings.origin_timeout_s
        return self._strays.until_s(name) if key is None else key.may_land_until_s(timeout_s)

    def is_quarantined(self, sequence: int) -> bool:
        """Whether a change is the newest of its key, and refused for good."""
        key = self._books.by_sequence(sequence)
        is_newest = key is not None and key.entry is not None and key.entry.sequence == sequence
        return key is not None and is_newest and key.state is FlushState.QUARANTINED

    def quarantined(self, limit: int) -> list[int]:
        """Give the sequences of quarantined changes, oldest quarantine first, at most `limit`."""
        keys = self._books.oldest_quarantined(limit)
        return [key.entry.sequence for key in keys if key.entry is not None]

    def barrier_remaining(self, barrier_id: int) -> int:
        """Count the keys that a barrier still waits for; 0 for one that is over."""
        return self._barriers.remaining(barrier_id)

    def has_loose_ends(self) -> bool:
        """Whether something sent earlier, now or outside of the flush may yet land; attempts under way do not count."""
        return bool(self._strays) or any(key.needs_check for key in self._books.keys.values())

    def story(self, name: ObjectName) -> list[str]:
        """Tell what happened to a key lately, one line a transition; bounded, for reports of bugs."""
        return self._books.story(name)

    # --- News: changes, commands, time ---

    def _take_news(self, event: _News) -> None:
        match event:
            case DirtyAdded():
                self._add(event.entry, event.wall_s)
            case DirtyRemoved():
                self._remove(event.sequence)
            case Tick():
                # What is due has been done. The timer is spent, and may have been a little early: ask for another one.
                self._states.wake_asked_s = NEVER_S
            case BarrierAdded():
                self._add_barrier(event)
            case BarrierCancelled():
                self._barriers.cancel(event.barrier_id)
            case StrayNoted():
                self._note_stray(event.name)
            case DrainStarted():
                self._states.is_draining = True
                self._states.to_raise.extend(self._books.keys.values())
            case RetryQuarantined():
                self._retry_quarantined(event.scope)
            case BucketProbeResult():
                self._take_probe_result(event)
            case _:
                assert_never(event)

    def _add(self, entry: DirtyEntry, wall_s: float) -> None:
        name = ObjectName(entry.bucket, entry.key)
        key = self._books.key(name)
        key.attempted = self._strays.take(name) or key.attempted
        assert key.entry is None or key.entry.sequence < entry.sequence, f"{key!r} is newer than {entry}"
        self._note(key, f"sequence {entry.sequence} added, a {'tombstone' if entry.is_tombstone else 'put'}")
        merges = key.has_unsent and key.state is not FlushState.QUARANTINED
        if not merges:
            key.since = entry.sequence
        self._states.set_times(key, entry, wall_s, merges=merges)
        self._books.drop_entry(key)
        self._books.set_entry(key, entry)
        if entry.outcome_unknown:
            key.remember_attempt(entry.sequence, self._states.now_s)
        if entry.quarantine_reason:
            self._states.quarantine(key, entry.quarantine_reason)
        elif not key.is_busy and key.state is not FlushState.WAITING_RETRY:
            self._states.queue(key)

    def _remove(self, sequence: int) -> None:
        key = self._books.by_sequence(sequence)
        if key is None or key.entry is None or key.entry.sequence != sequence:
            return  # replaced or confirmed meanwhile
        self._note(key, f"sequence {sequence} given up")
        self._barriers.settle(key, sequence)
        self._books.drop_entry(key)
        if not key.is_busy:
            self._books.end_sent(key)
            self._states.forget(key)

    def _add_barrier(self, event: BarrierAdded) -> None:
        self._barriers.add(event.barrier_id, self._books.in_scope(event.scope), event.up_to_sequence)
        if self._barriers.is_first_forming(event.barrier_id):
            # As they are now; those that are counted later are known by having been there now.
            self._count_some(FlushKey.began_before)

    def _count_some(self, has_to_wait: Callable[[FlushKey, int], bool]) -> None:
        """Count keys of the barriers that are forming; some at a time, as there may be all of them in one."""
        keys = self._barriers.count_some(COUNTED_PER_EVENT_MAX, has_to_wait)
        self._states.to_raise.extend(keys)
        for name in {key.name.bucket: None for key in keys}:
            self._gate.make_due(self._books.bucket(name))

    def _is_there_still(self, key: FlushKey, _up_to_sequence: int) -> bool:
        return key.entry is not None and self._books.keys.get(key.name) is key

    def _note_stray(self, name: ObjectName) -> None:
        """Have the next success of a key checked, if it comes before the stray's time is past."""
        key = self._books.keys.get(name)
        if key is not None:
            self._note(key, "a stray may land")
            key.remember_attempt(STRAY, self._states.now_s)
        else:
            self._strays.add(name, self._states.now_s + self._settings.origin_timeout_s)

    def _retry_quarantined(self, scope: Scope) -> None:
        self._books.want_released(scope)

    def _release_some(self) -> None:
        """Let quarantined keys go on that were there at the command; some at a time."""
        for key in self._books.take_to_release(RELEASED_PER_EVENT_MAX):
            assert key.entry is not None, f"{key!r} is quarantined with nothing"
            self._states.out.append(Release(key.entry.sequence))
            self._states.queue(key)

    def _take_probe_result(self, event: BucketProbeResult) -> None:
        bucket = self._books.buckets.get(event.bucket)
        if bucket is None:
            return  # nothing of it waits
        if event.is_open:
            self._states.open(bucket)
        elif not bucket.is_suspended:
            self._states.suspend(bucket, event.reason, event.jitter)

    # --- Outcomes of what the driver was told to do ---

    def _take_outcome(self, event: _Outcome) -> None:
        key = self._books.by_sequence(event.sequence)
        assert key is not None, f"nobody waits for {event}"
        assert key.sent == event.sequence, f"{event} is not what {key!r} waits for; {self.story(key.name)}"
        match event:
            case FlushSucceeded():
                self._require(key, FlushState.IN_FLIGHT)
                self._succeed(key)
            case FlushSkipped():
                self._require(key, FlushState.IN_FLIGHT)
                self._skip(key)
            case FlushFailed():
                self._require(key, FlushState.IN_FLIGHT)
                self._fail(key, event)
            case NewestTaken():
                self._require(key, FlushState.IN_FLIGHT)
                self._take_newest(key, event)
            case HeadChecked():
                self._require(key, FlushState.CHECKING)
                self._take_head(key, event)
            case Confirmed():
                self._require(key, FlushState.CONFIRMING)
                self._end_confirmed(key, event.sequence)
            case _:
                assert_never(event)

    def _succeed(self, key: FlushKey) -> None:
        self._slots.end(key)
        self._states.open(self._books.bucket(key.name.bucket))
        assert key.sent is not None, f"{key!r} sent nothing"
        key.attempts, key.reason = 0, ""
        if key.is_overtaken:
            if not key.needs_check:
                # It was there, which is all that a barrier asks, even if nothing of it will be confirmed.
                self._barriers.settle(key, key.sent)
            self._states.go_on(key)
        elif key.needs_check:
            wait_s = self._settings.origin_timeout_s if key.attempted else 0.0
            self._states.wait(
                key, FlushState.WAITING_CHECK, max(self._states.now_s + wait_s, key.check_until_s)
            )
        else:
            self._states.confirm(key)

    def _take_newest(self, key: FlushKey, event: NewestTaken) -> None:
        assert key.entry is not None, f"{key!r} has nothing to send"
        assert key.entry.sequence == event.newest, f"{event} is not the newest of {key!r}"
        self._note(key, f"sequence {event.newest} taken instead of {event.sequence}")
        self._books.end_sent(key)
        key.sent = event.newest

    def _skip(self, key: FlushKey) -> None:
        bucket = self._books.bucket(key.name.bucket)
        was_probe = self._slots.end(key)
        if was_probe:
            self._gate.make_due(bucket)
        # The news of what replaced it may still be on its way: do not try in a circle.
        self._states.go_on(key, retry_in_s=self._settings.retry_s_min)

    def _fail(self, key: FlushKey, event: FlushFailed) -> None:
        bucket = self._books.bucket(key.name.bucket)
        ends_attempt = key.flight is not None and key.flight.remaining == 1
        was_probe = self._slots.end(key)
        key.reason = event.reason
        self._note(key, f"{event.kind.value}: {event.reason}")
        match event.kind:
            case FailureKind.SUSPEND_BUCKET:
                # Several that were under way together are refused together; they count once.
                if was_probe or not bucket.is_suspended:
                    self._states.suspend(bucket, event.reason, event.jitter)
                self._states.go_on(key)
            case FailureKind.REFUSE:
                self._states.open(bucket)  # the answer was about the object, so the bucket takes requests
                self._refuse(key, event)
            case FailureKind.RETRY | FailureKind.THROTTLE | FailureKind.UNKNOWN_OUTCOME:
                if event.kind is FailureKind.UNKNOWN_OUTCOME:
                    key.remember_attempt(event.sequence, self._states.now_s)
                retry_in_s = event.retry_after_s
                if was_probe and bucket.is_suspended:
                    # Behind the next probe: a key that never gets an answer must not be every probe.
                    due_s = self._gate.put_off(bucket, self._states.now_s, event.jitter)
                    retry_in_s = max(retry_in_s, due_s - self._states.now_s + self._settings.retry_s_min)
                if event.is_outage:
                    self._note_outage(bucket, key, event, ends_attempt=ends_attempt)
                key.attempts += 1
                self._states.go_on(key, retry_in_s=max(self._states.backoff_s(key, event.jitter), retry_in_s))
            case _:
                assert_never(event.kind)

    def _note_outage(
        self, bucket: FlushBucket, key: FlushKey, event: FlushFailed, *, ends_attempt: bool
    ) -> None:
        """Count an attempt that the origin did not serve; several in a row mean that it is away."""
        bucket.unserved.add(key)
        bucket.outages += ends_attempt
        if bucket.outages >= self._settings.away_after and not bucket.is_suspended:
            self._states.suspend(bucket, event.reason, event.jitter, is_away=True)

    def _refuse(self, key: FlushKey, event: FlushFailed) -> None:
        if key.is_overtaken:
            self._states.go_on(key)
            return
        self._books.end_sent(key)
        self._states.quarantine(key, event.reason)
        self._states.out.append(Quarantine(event.sequence, event.reason))

    def _take_head(self, key: FlushKey, event: HeadChecked) -> None:
        self._slots.end(key)
        self._note(key, f"HEAD: {event.result.value}")
        if event.result is HeadResult.FAILED and not key.is_overtaken:
            key.attempts += 1
            self._states.wait(
                key, FlushState.WAITING_CHECK, self._states.now_s + self._states.backoff_s(key, event.jitter)
            )
            return
        if event.result is not HeadResult.FAILED:
            # Their time has passed: what could land has landed, and is what the HEAD shows.
            key.forget_attempts()
        if key.is_overtaken or event.result is HeadResult.SUPERSEDED:
            self._states.go_on(key)
        else:
            self._states.confirm(key, is_overtaken=event.result is HeadResult.OTHER)

    def _end_confirmed(self, key: FlushKey, sequence: int) -> None:
        key.forget_attempts()
        key.attempts = 0
        self._barriers.settle(key, sequence)
        if not key.is_overtaken:
            self._books.drop_entry(key)
        self._states.go_on(key)

    def _require(self, key: FlushKey, state: FlushState) -> None:
        assert key.state is state, f"{key!r} is not {state.value}; {self.story(key.name)}"

    def _note(self, key: FlushKey, text: str) -> None:
        self._books.note(key, text, self._states.now_s)

    # --- For tests ---

    def check_invariants(self) -> None:
        """Compare all that is kept twice; for tests, O(n)."""
        self._states.check_invariants()
        self._slots.check_invariants()
