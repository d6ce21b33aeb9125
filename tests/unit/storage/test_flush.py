"""FlushPlanner: what follows from one event, told as short stories."""

import pytest

from storage.flush import COUNTED_PER_EVENT_MAX, RELEASED_PER_EVENT_MAX, FlushPlanner
from storage.flush_events import (
    BarrierAdded,
    BarrierBlocked,
    BarrierCancelled,
    BarrierReached,
    BucketProbeResult,
    CheckByHead,
    Confirm,
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
    FlushSucceeded,
    HeadChecked,
    HeadResult,
    Instruction,
    Quarantine,
    Release,
    Remaining,
    RetryQuarantined,
    Scope,
    StartDeletes,
    StartFlush,
    StrayNoted,
    Tick,
    WakeAt,
)
from storage.records import DirtyEntry
from storage.types import ObjectName, Priority

K = ObjectName("b", "k")


def dirty(
    sequence: int,
    key: str = "k",
    *,
    bucket: str = "b",
    is_tombstone: bool = False,
    size: int = 10,
    held_s: float = 0.0,
    deadline_s: float = 0.0,
    outcome_unknown: bool = False,
    quarantine_reason: str = "",
) -> DirtyAdded:
    """A change acknowledged at wall time 1000."""
    entry = DirtyEntry(
        format=1,
        sequence=sequence,
        bucket=bucket,
        key=key,
        slot=0,
        version_id=0 if is_tombstone else sequence,
        size=0 if is_tombstone else size,
        credential_id="",
        acknowledged_at_s=1000.0 + sequence,
        flush_after_s=1000.0 + sequence + held_s if held_s else 0.0,
        deadline_s=1000.0 + sequence + deadline_s if deadline_s else 0.0,
        outcome_unknown=outcome_unknown,
        quarantine_reason=quarantine_reason,
    )
    return DirtyAdded(entry, wall_s=1000.0 + sequence)


def failed(
    sequence: int, kind: FailureKind, *, jitter: float = 0.5, retry_after_s: float = 0.0
) -> FlushFailed:
    """A failure for the reason "because"."""
    return FlushFailed(sequence, kind, "because", jitter, retry_after_s)


def outage(sequence: int, *, jitter: float = 0.5) -> FlushFailed:
    """A failure that says nothing of the object."""
    return FlushFailed(sequence, FailureKind.RETRY, "no connection", jitter, is_outage=True)


def send(sequence: int, *, is_urgent: bool = False, needs_followup_head: bool = False) -> StartFlush:
    """The instruction to send a put."""
    return StartFlush(sequence, Priority.URGENT_FLUSH if is_urgent else Priority.FLUSH, needs_followup_head)


class Bench:
    """A planner whose invariants are checked after each event, at a time that the test sets."""

    def __init__(self, *, unclean_until_s: float = 0.0, concurrency: int = 6, away_after: int = 12) -> None:
        settings = FlushSettings(concurrency=concurrency, away_after=away_after)
        self.planner = FlushPlanner(settings, unclean_until_s)
        self.now_s = 0.0

    def handle(self, *events: Event, at_s: float | None = None) -> list[Instruction]:
        self.now_s = self.now_s if at_s is None else at_s
        out: list[Instruction] = []
        for event in events:
            out += self.planner.handle(event, self.now_s)
            self.planner.check_invariants()
        return out

    def state(self, key: str = "k", bucket: str = "b") -> FlushState | None:
        return self.planner.state_of(ObjectName(bucket, key))


@pytest.fixture
def bench() -> Bench:
    """A planner of six slots, started cleanly at time 0."""
    return Bench()


def test_change_is_gone_when_the_journal_holds_its_confirmation(bench: Bench) -> None:
    """Send, confirm, and only then is nothing left of it."""
    assert bench.handle(dirty(1)) == [send(1)]
    assert bench.handle(FlushSucceeded(1)) == [Confirm(1)]
    assert bench.state() is FlushState.CONFIRMING
    assert bench.handle(Confirmed(1)) == []
    assert bench.state() is None
    assert repr(bench.planner) == (
        "<FlushPlanner: <FlushBooks: all clean>, 0 of 6 slots, 0 barriers, suspended: none>"
    )


def test_newest_is_sent_when_the_one_in_flight_has_ended(bench: Bench) -> None:
    """Two overwrites while an attempt is under way: it is waited for, and then only the newest is sent (B05)."""
    bench.handle(dirty(1))

    assert bench.handle(dirty(2), dirty(3)) == []
    assert bench.handle(FlushSucceeded(1)) == [send(3)]


def test_newest_is_sent_when_an_overwritten_change_is_confirmed_late(bench: Bench) -> None:
    """A write that comes while the confirmation is written waits for it."""
    bench.handle(dirty(1), FlushSucceeded(1))

    assert bench.handle(dirty(2)) == []
    assert bench.handle(Confirmed(1)) == [send(2)]


def test_tombstone_is_sent_when_the_put_before_it_never_was(bench: Bench) -> None:
    """PUT and DELETE do not cancel out: the origin may hold an older object."""
    bench.handle(*[dirty(n, f"other{n}") for n in range(1, 7)])
    bench.handle(dirty(7), dirty(8, is_tombstone=True))

    assert bench.handle(FlushSucceeded(1)) == [Confirm(1), StartDeletes("b", (8,), Priority.FLUSH)]


def test_put_takes_the_tombstones_place_when_it_is_newer(bench: Bench) -> None:
    """DELETE and PUT send the put only."""
    bench.handle(*[dirty(n, f"other{n}") for n in range(1, 7)])
    bench.handle(dirty(7, is_tombstone=True), dirty(8))

    assert bench.handle(FlushSucceeded(1)) == [Confirm(1), send(8)]


def test_tombstones_share_a_request_when_they_wait_together(bench: Bench) -> None:
    """Deletes of one bucket go in one batch and one slot, and each is settled by its own line."""
    bench.handle(*[dirty(n, f"put{n}") for n in range(1, 7)])
    bench.handle(*[dirty(n, f"gone{n}", is_tombstone=True) for n in range(7, 10)])
    bench.handle(dirty(10, "elsewhere", bucket="c", is_tombstone=True))

    assert bench.handle(FlushSucceeded(1))[1:] == [StartDeletes("b", (7, 8, 9), Priority.FLUSH)]
    assert bench.handle(FlushSucceeded(8)) == [Confirm(8)]
    assert bench.handle(failed(7, FailureKind.REFUSE)) == [Quarantine(7, "because")]
    assert bench.handle(FlushSucceeded(9)) == [Confirm(9), StartDeletes("c", (10,), Priority.FLUSH)]


def test_oldest_goes_first_and_keeps_its_place_when_it_is_overwritten() -> None:
    """A key that is written again and again is not pushed to the end of the queue each time."""
    bench = Bench(concurrency=1)
    bench.handle(dirty(1, "busy"), dirty(2, "hot"), dirty(3, "cold"), dirty(4, "hot"))

    assert bench.handle(FlushSucceeded(1)) == [Confirm(1), send(4)]
    assert bench.handle(FlushSucceeded(4)) == [Confirm(4), send(3)]


def test_another_wake_up_is_asked_for_when_a_tick_comes_early(bench: Bench) -> None:
    """A loop's timer may fire a fraction of a millisecond before its time; what waits for it must not be forgotten."""
    assert bench.handle(dirty(1, held_s=30)) == [WakeAt(30.0)]

    assert bench.handle(Tick(), at_s=29.9996) == [WakeAt(30.0)]
    assert bench.handle(Tick(), at_s=30.0) == [send(1)]


def test_change_is_held_when_its_policy_delays_it(bench: Bench) -> None:
    """flush_delay holds a change back; an overwrite neither shortens nor prolongs the wait, and the newest is sent."""
    assert bench.handle(dirty(1, held_s=30)) == [WakeAt(30.0)]
    assert bench.state() is FlushState.HELD
    assert bench.handle(dirty(2, held_s=30), at_s=20) == []
    assert bench.handle(Tick(), at_s=30) == [send(2)]


def test_hold_is_not_longer_than_the_policy_says_when_the_wall_clock_went_back(bench: Bench) -> None:
    """The delay is measured from the acknowledgement, not from a clock that jumped."""
    event = dirty(1, held_s=30)

    assert bench.handle(DirtyAdded(event.entry, wall_s=event.wall_s - 86_400)) == [WakeAt(30.0)]


def test_held_change_is_sent_when_a_barrier_waits_for_it(bench: Bench) -> None:
    """A barrier does not wait out a delay, and what it waits for is urgent."""
    bench.handle(dirty(1, held_s=30))

    assert bench.handle(BarrierAdded(7, Scope("b", "k", is_one_key=True), 1)) == [send(1, is_urgent=True)]
    assert bench.handle(FlushSucceeded(1)) == [Confirm(1)]
    assert bench.handle(Confirmed(1)) == [BarrierReached(7)]


def test_nothing_is_held_when_draining(bench: Bench) -> None:
    """A drain sends what is held and holds nothing any more."""
    bench.handle(dirty(1, held_s=30))

    assert bench.handle(DrainStarted()) == [send(1)]
    assert bench.handle(dirty(2, "k2", held_s=30)) == [send(2)]


def test_change_gets_urgent_when_its_deadline_nears() -> None:
    """From a lead before its deadline on, a change goes before older ones."""
    bench = Bench(concurrency=1)

    bench.handle(dirty(1, "busy"), dirty(2, "old"))
    assert bench.handle(dirty(3, "due", deadline_s=20)) == [WakeAt(15.0)]
    bench.handle(Tick(), at_s=15)
    assert bench.handle(FlushSucceeded(1)) == [Confirm(1), send(3, is_urgent=True)]


def test_planner_is_pressed_when_something_is_urgent_or_no_slot_is_free() -> None:
    """Work that nobody was promised is to wait then, and no longer."""
    bench = Bench(concurrency=2)
    bench.handle(dirty(1, "a"))
    is_pressed = [bench.planner.is_pressed()]
    bench.handle(dirty(2, "b"))
    is_pressed.append(bench.planner.is_pressed())
    bench.handle(FlushSucceeded(1))
    is_pressed.append(bench.planner.is_pressed())
    bench.handle(dirty(3, "c", held_s=60.0), FlushSucceeded(2), BarrierAdded(7, Scope("b"), 3))
    is_pressed.append(bench.planner.is_pressed())
    bench.handle(FlushSucceeded(3))
    is_pressed.append(bench.planner.is_pressed())

    assert is_pressed == [False, True, False, True, False]


def test_last_slot_is_left_when_urgent_ones_queue() -> None:
    """Urgent work never starves the rest: one slot of several goes to the oldest that is not urgent."""
    bench = Bench(concurrency=2)
    bench.handle(dirty(1, "x1", bucket="x"), dirty(2, "x2", bucket="x"))
    bench.handle(*[dirty(n, f"u{n}") for n in (3, 4, 5)], dirty(6, "plain", bucket="c"))
    bench.handle(BarrierAdded(1, Scope("b"), 5))

    assert bench.handle(FlushSucceeded(1)) == [Confirm(1), send(3, is_urgent=True)]
    assert bench.handle(FlushSucceeded(2)) == [Confirm(2), send(6)]


@pytest.mark.parametrize(
    ("jitter", "retry_after_s", "due_s"), [(0.5, 0.0, 0.5), (0.0, 0.0, 0.1), (0.5, 9.0, 9.0)]
)
def test_retry_waits_for_a_drawn_part_of_its_backoff_when_it_failed(
    bench: Bench, jitter: float, retry_after_s: float, due_s: float
) -> None:
    """Full jitter under a limit that doubles, never under a tenth of the least, nor under what the origin asked for."""
    bench.handle(dirty(1))

    failure = failed(1, FailureKind.RETRY, jitter=jitter, retry_after_s=retry_after_s)

    assert bench.handle(failure) == [WakeAt(due_s)]
    assert bench.handle(Tick(), at_s=due_s) == [send(1)]


def test_backoff_doubles_up_to_its_limit_when_a_change_fails_again_and_again(bench: Bench) -> None:
    """1, 2, 4 ... seconds, and never more than two minutes."""
    bench.handle(dirty(1))
    waits = []

    for _ in range(9):
        (wake,) = bench.handle(failed(1, FailureKind.THROTTLE, jitter=1.0))
        assert isinstance(wake, WakeAt)
        waits.append(wake.time_s - bench.now_s)
        bench.handle(Tick(), at_s=wake.time_s)

    assert waits == [1, 2, 4, 8, 16, 32, 64, 120, 120]


def test_overwrite_does_not_skip_the_backoff_when_a_key_waits_for_a_retry(bench: Bench) -> None:
    """A hot key on a failing origin is not sent anew with each write."""
    bench.handle(dirty(1), failed(1, FailureKind.RETRY))

    assert bench.handle(dirty(2)) == []
    assert bench.handle(Tick(), at_s=0.5) == [send(2)]


def test_success_is_checked_by_head_when_an_attempt_had_no_answer(bench: Bench) -> None:
    """The attempt without an answer may still land: wait the origin's time-out, look, and only then confirm."""
    bench.handle(dirty(1), failed(1, FailureKind.UNKNOWN_OUTCOME))

    assert bench.handle(Tick(), at_s=0.5) == [send(1, needs_followup_head=True)]
    assert bench.handle(FlushSucceeded(1), at_s=2) == [WakeAt(62.0)]
    assert bench.planner.status().slots_used == 0
    assert bench.handle(Tick(), at_s=62) == [CheckByHead(1, (1,))]
    assert bench.handle(HeadChecked(1, HeadResult.OURS, 0.5)) == [Confirm(1)]
    assert bench.handle(Confirmed(1)) == []
    assert bench.handle(dirty(2)) == [send(2)]


def test_newest_is_sent_again_when_head_shows_a_superseded_attempt(bench: Bench) -> None:
    """An older attempt of ours landed over the newest: it is sent again, once (B05).

    The time of all attempts is past then, so its success needs no further check: an origin that shows an object in another way
    than it was sent would be sent it again and again.
    """
    bench.handle(dirty(1), failed(1, FailureKind.UNKNOWN_OUTCOME), dirty(2))
    bench.handle(Tick(), at_s=0.5)
    bench.handle(FlushSucceeded(2), at_s=2)

    assert bench.handle(Tick(), at_s=62) == [CheckByHead(2, (1, 2))]
    assert bench.handle(HeadChecked(2, HeadResult.SUPERSEDED, 0.5)) == [send(2)]
    assert bench.handle(FlushSucceeded(2)) == [Confirm(2)]


def test_resent_state_is_checked_again_when_the_resend_had_no_answer(bench: Bench) -> None:
    """What is sent over a superseded attempt is an attempt like any other."""
    bench.handle(dirty(1), failed(1, FailureKind.UNKNOWN_OUTCOME), dirty(2))
    bench.handle(Tick(), at_s=0.5)
    bench.handle(FlushSucceeded(2), at_s=2)
    bench.handle(Tick(), at_s=62)
    bench.handle(HeadChecked(2, HeadResult.SUPERSEDED, 0.5))

    bench.handle(failed(2, FailureKind.UNKNOWN_OUTCOME))

    assert bench.handle(Tick(), at_s=63) == [send(2, needs_followup_head=True)]


def test_other_writers_object_stays_when_head_shows_it(bench: Bench) -> None:
    """What neither attempt of ours wrote is another writer's: the change is confirmed as overtaken."""
    bench.handle(dirty(1, outcome_unknown=True))
    bench.handle(FlushSucceeded(1), Tick(), at_s=1)
    bench.handle(Tick(), at_s=61)

    assert bench.handle(HeadChecked(1, HeadResult.OTHER, 0.5)) == [Confirm(1, is_overtaken=True)]


def test_head_is_asked_again_when_it_failed(bench: Bench) -> None:
    """A HEAD without a usable answer is repeated after a backoff; the bytes stay dirty."""
    bench.handle(dirty(1, outcome_unknown=True), FlushSucceeded(1))
    bench.handle(Tick(), at_s=60)

    assert bench.handle(HeadChecked(1, HeadResult.FAILED, 1.0)) == [WakeAt(61.0)]
    assert bench.handle(Tick(), at_s=61) == [CheckByHead(1, (1,))]


def test_new_write_replaces_the_check_when_it_comes_before(bench: Bench) -> None:
    """Nobody need look at a state that is about to be replaced, but the newest is checked in turn."""
    bench.handle(dirty(1, outcome_unknown=True), FlushSucceeded(1))

    assert bench.handle(dirty(2), at_s=10) == [send(2, needs_followup_head=True)]
    assert bench.handle(FlushSucceeded(2), at_s=11) == []
    assert bench.handle(Tick(), at_s=60) == [WakeAt(71.0)]
    assert bench.handle(Tick(), at_s=71) == [CheckByHead(2, (1, 2))]


def test_success_is_checked_when_the_attempt_was_of_a_change_given_up(bench: Bench) -> None:
    """An attempt without an answer outlives its change: what is written to the key before its time is past is checked."""
    bench.handle(dirty(1), failed(1, FailureKind.UNKNOWN_OUTCOME), DirtyRemoved(1))

    assert bench.handle(dirty(2), at_s=10) == [send(2, needs_followup_head=True)]
    bench.handle(FlushSucceeded(2), at_s=11)
    assert bench.handle(Tick(), at_s=71) == [CheckByHead(2, (1, 2))]


def test_success_is_not_checked_when_the_attempt_can_not_land_any_more(bench: Bench) -> None:
    """The attempt of a change that was given up is forgotten after the origin's time-out."""
    bench.handle(dirty(1), failed(1, FailureKind.UNKNOWN_OUTCOME), DirtyRemoved(1))

    assert bench.handle(dirty(2), at_s=60) == [send(2)]


def test_raised_change_stays_raised_when_its_barrier_is_cancelled() -> None:
    """A change that a barrier took out of its delay does not go back into it, however it is overwritten."""
    bench = Bench(concurrency=1)
    bench.handle(
        dirty(1, "busy"), dirty(2, held_s=30), BarrierAdded(1, Scope("b", "k"), 2), BarrierCancelled(1)
    )

    bench.handle(dirty(3, held_s=30))

    assert bench.state() is FlushState.QUEUED


def test_success_is_checked_when_it_follows_an_unclean_stop() -> None:
    """Attempts of the process before may land until unclean_until_s, so each success until then is checked at that time."""
    bench = Bench(unclean_until_s=60)
    bench.handle(dirty(1))

    assert bench.handle(FlushSucceeded(1), at_s=5) == [WakeAt(60.0)]
    assert bench.handle(dirty(2, "late"), at_s=60) == [CheckByHead(1, (1,), is_from_before=True), send(2)]
    assert bench.handle(FlushSucceeded(2)) == [Confirm(2)]


def test_refused_change_is_quarantined_and_others_go_on_when_the_origin_will_not_have_it(
    bench: Bench,
) -> None:
    """It stays, visible in the counts, and one object never blocks another (B15)."""
    bench.handle(dirty(1, size=5), dirty(2, "k2", size=7))

    assert bench.handle(failed(1, FailureKind.REFUSE)) == [Quarantine(1, "because")]
    assert bench.handle(FlushSucceeded(2)) == [Confirm(2)]
    status = bench.planner.status()
    assert (status.quarantined_objects, status.quarantined_bytes) == (1, 5)
    assert (status.pending_objects, status.pending_bytes) == (1, 7)


def test_attempt_may_land_behind_the_refusal_when_it_had_no_answer(bench: Bench) -> None:
    """Nothing will be sent behind it that settles it: neither while the change is kept, nor when it was given up."""
    name = ObjectName("b", "k")
    bench.handle(dirty(1), failed(1, FailureKind.UNKNOWN_OUTCOME), at_s=5)
    waiting = bench.planner.may_land_until_s(name)
    bench.handle(Tick(), at_s=20)
    bench.handle(failed(1, FailureKind.REFUSE), at_s=21)
    refused = bench.planner.may_land_until_s(name)
    bench.handle(DirtyRemoved(1), at_s=22)
    given_up = bench.planner.may_land_until_s(name)
    bench.handle(Tick(), at_s=66)

    assert (waiting, refused, given_up) == (0.0, 65.0, 65.0)
    assert bench.planner.may_land_until_s(name) == 0.0


def test_nothing_may_land_behind_a_refusal_when_each_attempt_was_answered(bench: Bench) -> None:
    """Nor is what clients sent past the flush waited for: it is theirs to order, as at S3."""
    name, other = ObjectName("b", "k"), ObjectName("b", "other")
    bench.handle(dirty(1), failed(1, FailureKind.REFUSE), StrayNoted(name), StrayNoted(other), at_s=5)

    assert [bench.planner.may_land_until_s(n) for n in (name, other)] == [0.0, 0.0]


def test_newer_write_replaces_the_quarantined_one_when_it_comes(bench: Bench) -> None:
    """The quarantine ends with the change that was refused."""
    bench.handle(dirty(1), failed(1, FailureKind.REFUSE))

    assert bench.handle(dirty(2)) == [send(2)]
    assert bench.planner.status().quarantined_objects == 0


def test_refusal_counts_for_nothing_when_the_change_was_overwritten(bench: Bench) -> None:
    """What was refused is not the newest any more: that is sent, not quarantined."""
    bench.handle(dirty(1), dirty(2))

    assert bench.handle(failed(1, FailureKind.REFUSE)) == [send(2)]


def test_quarantined_change_is_sent_again_on_command_when_in_scope(bench: Bench) -> None:
    """RetryQuarantined releases what is in its scope and nothing else."""
    bench.handle(dirty(1, "a/1", quarantine_reason="old"), dirty(2, "b/1", quarantine_reason="old"))

    assert bench.handle(RetryQuarantined(Scope("b", "a/"))) == [Release(1), send(1)]
    assert bench.state("b/1") is FlushState.QUARANTINED


def test_bucket_is_tried_with_one_key_at_a_time_when_suspended(bench: Bench) -> None:
    """A refusal of the bucket holds up its keys, not those of others; probes come one at a time, further and further apart."""
    bench.handle(dirty(1), dirty(2, "k2"))

    assert bench.handle(failed(1, FailureKind.SUSPEND_BUCKET, jitter=1.0)) == [WakeAt(10.0)]
    assert bench.handle(failed(2, FailureKind.SUSPEND_BUCKET, jitter=1.0)) == []
    assert bench.planner.status().suspended_buckets == ("b",)
    assert bench.handle(dirty(3, bucket="c")) == [send(3)]
    assert bench.handle(dirty(4, "k4"), at_s=9) == []
    assert bench.handle(Tick(), at_s=10) == [send(1)]
    assert bench.handle(failed(1, FailureKind.SUSPEND_BUCKET, jitter=1.0)) == [WakeAt(30.0)]
    assert bench.handle(Tick(), at_s=30) == [send(1)]
    assert bench.handle(FlushSucceeded(1)) == [Confirm(1), send(2), send(4)]
    assert bench.planner.status().suspended_buckets == ()


def test_probe_goes_on_when_its_key_fails_for_another_reason(bench: Bench) -> None:
    """A probe without a verdict is followed by another one, with another key."""
    bench.handle(dirty(1), failed(1, FailureKind.SUSPEND_BUCKET, jitter=0.0), dirty(2, "k2"))
    assert bench.handle(Tick(), at_s=5) == [send(1)]

    assert bench.handle(failed(1, FailureKind.RETRY, jitter=0.5), at_s=5) == [WakeAt(15.0)]
    assert bench.handle(Tick(), at_s=15) == [send(2), WakeAt(16.0)]


def test_probe_is_repeated_when_its_key_was_skipped(bench: Bench) -> None:
    """A probe that sent nothing showed nothing: the next key is tried at once."""
    bench.handle(dirty(1), failed(1, FailureKind.SUSPEND_BUCKET, jitter=0.0), dirty(2, "k2"))
    bench.handle(Tick(), at_s=5)

    assert bench.handle(FlushSkipped(1)) == [send(2), WakeAt(6.0)]


def test_bucket_opens_when_something_else_shows_that_it_takes_writes(bench: Bench) -> None:
    """News from outside, such as new credentials, end a suspension; the contrary begins one."""
    bench.handle(dirty(1), failed(1, FailureKind.SUSPEND_BUCKET))

    assert bench.handle(BucketProbeResult("b", is_open=True, reason="", jitter=0.5)) == [send(1)]
    bench.handle(BucketProbeResult("b", is_open=False, reason="expired token", jitter=0.5))
    assert bench.handle(dirty(2, "k2")) == []
    assert bench.handle(BucketProbeResult("nobody", is_open=True, reason="", jitter=0.5)) == []


def test_origin_that_is_away_is_tried_with_one_key_at_a_time_whatever_waits() -> None:
    """Six attempts in a row without service, and two hundred other keys are not tried; the next success lets all go on."""
    bench = Bench(away_after=6)
    bench.handle(*(dirty(n, f"k{n}") for n in range(1, 201)))

    out = bench.handle(*(outage(n, jitter=1.0) for n in range(1, 7)))
    sent = [one for one in out if isinstance(one, StartFlush)]
    # What took the free slots before the sixth showed it is under way.
    assert [one.sequence for one in sent] == [7, 8, 9, 10, 11]
    assert bench.planner.suspension_of("b") == "no connection"
    assert bench.handle(*(outage(n, jitter=1.0) for n in range(7, 12))) == []
    assert bench.handle(Tick(), at_s=10) == [send(1)]
    out = bench.handle(FlushSucceeded(1))
    assert out[0] == Confirm(1)
    # Those that found it away are next; they do not wait for their retries.
    assert [one for one in out if isinstance(one, StartFlush)] == [send(n) for n in range(2, 8)]
    assert bench.planner.suspension_of("b") == ""


def test_outage_is_not_concluded_when_another_key_is_served_in_between() -> None:
    """A key that never gets an answer holds up no other one."""
    bench = Bench(away_after=2)
    bench.handle(dirty(1), dirty(2, "k2"), dirty(3, "k3"))

    bench.handle(outage(1), FlushSucceeded(2), outage(3))

    assert bench.planner.status().suspended_buckets == ()


def test_outage_is_not_concluded_when_one_batch_of_deletes_fails() -> None:
    """A batch is one attempt, however many keys are in it."""
    bench = Bench(away_after=2, concurrency=1)
    bench.handle(*(dirty(n, f"k{n}", is_tombstone=True) for n in range(1, 4)))
    assert StartDeletes("b", (2, 3), Priority.FLUSH) in bench.handle(FlushSucceeded(1))

    bench.handle(outage(2), outage(3))

    assert bench.planner.status().suspended_buckets == ()


def test_another_key_is_the_next_probe_when_one_key_alone_is_never_served() -> None:
    """What was left over when the bucket was suspended does not keep a new key from being tried."""
    bench = Bench(away_after=1)
    bench.handle(dirty(1), outage(1, jitter=1.0), dirty(2, "k2"))

    assert bench.handle(Tick(), at_s=10) == [send(1)]
    assert bench.handle(outage(1, jitter=1.0)) == [WakeAt(30.0)]
    assert bench.handle(Tick(), at_s=30) == [send(2), WakeAt(31.0)]


def test_change_is_given_up_when_the_origin_is_away() -> None:
    """The last change of a bucket can be discarded while it waits for its retry, and nothing is left of either."""
    bench = Bench(away_after=1)
    bench.handle(dirty(1), outage(1))

    assert bench.handle(DirtyRemoved(1)) == []
    assert bench.state() is None
    assert bench.planner.status().suspended_buckets == ()


def test_barrier_waits_when_the_origin_is_away() -> None:
    """An outage ends by itself, so it blocks no barrier: the bucket is probed at once, and the barrier goes on waiting."""
    bench = Bench(away_after=1)
    bench.handle(dirty(1), outage(1, jitter=0.0))

    assert bench.handle(BarrierAdded(1, Scope("b"), 1), Tick(), at_s=1) == [send(1, is_urgent=True)]
    out = bench.handle(outage(1, jitter=0.0))
    assert not any(isinstance(one, BarrierBlocked) for one in out)
    bench.handle(Tick(), at_s=10)
    bench.handle(FlushSucceeded(1))
    assert bench.handle(Confirmed(1)) == [BarrierReached(1)]


def test_suspension_ends_when_the_last_key_of_the_bucket_is_given_up(bench: Bench) -> None:
    """Nothing is remembered of a bucket without keys."""
    bench.handle(dirty(1), failed(1, FailureKind.SUSPEND_BUCKET))

    bench.handle(DirtyRemoved(1))

    assert bench.handle(dirty(2)) == [send(2)]


def test_barrier_is_reached_at_once_when_nothing_is_dirty(bench: Bench) -> None:
    """An empty barrier, and one for what came later, wait for nothing."""
    assert bench.handle(BarrierAdded(1, Scope(), 99)) == [BarrierReached(1)]
    bench.handle(dirty(5))
    assert bench.handle(BarrierAdded(2, Scope("b"), 4)) == [BarrierReached(2)]
    assert bench.handle(BarrierAdded(3, Scope("b", "other"), 9)) == [BarrierReached(3)]


def test_barrier_is_reached_when_the_overwritten_state_got_there(bench: Bench) -> None:
    """A key that is overwritten without end does not keep a barrier waiting: its state of then was at the origin."""
    bench.handle(dirty(1), BarrierAdded(1, Scope("b"), 1), dirty(2))

    assert bench.handle(FlushSucceeded(1)) == [send(2), BarrierReached(1)]


def test_barrier_waits_for_the_newest_when_the_older_was_never_sent() -> None:
    """What was acknowledged before the barrier went into a newer change, which has to get there instead."""
    bench = Bench(concurrency=1)
    bench.handle(dirty(1, "busy"), dirty(2), dirty(3))

    assert bench.handle(BarrierAdded(1, Scope("b", "k"), 2)) == []
    assert bench.handle(FlushSucceeded(1)) == [Confirm(1), send(3, is_urgent=True)]
    bench.handle(Confirmed(1), FlushSucceeded(3))
    assert bench.handle(Confirmed(3)) == [BarrierReached(1)]


def test_barrier_waits_for_the_one_in_flight_when_it_was_overwritten_before(bench: Bench) -> None:
    """A change up to the barrier that is still under way counts, though a later one has taken its place."""
    bench.handle(dirty(1), dirty(2))

    assert bench.handle(BarrierAdded(1, Scope("b"), 1)) == []
    assert bench.handle(FlushSucceeded(1)) == [send(2), BarrierReached(1)]


def test_barrier_is_not_reached_when_an_older_state_got_there(bench: Bench) -> None:
    """The attempt under way when the barrier came is of an older change than the one it waits for."""
    bench.handle(dirty(1), dirty(2), BarrierAdded(1, Scope("b"), 2))

    assert bench.handle(FlushSucceeded(1)) == [send(2, is_urgent=True)]
    assert bench.handle(FlushSucceeded(2), Confirmed(2)) == [Confirm(2), BarrierReached(1)]


def test_barrier_is_not_reached_when_an_attempt_may_still_land(bench: Bench) -> None:
    """A success over which an earlier attempt may land is not yet a state of the origin."""
    bench.handle(dirty(1), BarrierAdded(1, Scope("b"), 1), failed(1, FailureKind.UNKNOWN_OUTCOME))
    bench.handle(Tick(), at_s=0.5)
    bench.handle(dirty(2))

    assert bench.handle(FlushSucceeded(1)) == [send(2, is_urgent=True, needs_followup_head=True)]


@pytest.mark.slow
def test_barrier_over_many_keys_raises_some_at_a_time_when_they_are_held(bench: Bench) -> None:
    """One event does not stop the loop for a hundred thousand keys: the planner asks to be woken at once for the rest."""
    bench.handle(*[dirty(n, f"k{n}", held_s=30) for n in range(1, 601)])

    out = bench.handle(BarrierAdded(1, Scope("b"), 600))
    held = sum(bench.state(f"k{n}") is FlushState.HELD for n in range(1, 601))

    assert WakeAt(0.0) in out
    assert held == 350
    bench.handle(Tick(), Tick())
    assert bench.state("k600") is FlushState.QUEUED


def test_barrier_is_blocked_when_only_quarantined_keys_are_left(bench: Bench) -> None:
    """It says what is left and why, once the rest is there."""
    bench.handle(dirty(1), dirty(2, "k2"), BarrierAdded(1, Scope("b"), 2))

    assert bench.handle(failed(1, FailureKind.REFUSE)) == [Quarantine(1, "because")]
    bench.handle(FlushSucceeded(2))

    left = Remaining(K, 1, FlushState.QUARANTINED, "because")
    assert bench.handle(Confirmed(2)) == [BarrierBlocked(1, 1, (left,))]


def test_barrier_has_the_bucket_probed_when_it_is_suspended(bench: Bench) -> None:
    """Whoever waits gets a fresh answer: the probe is sent at once, and only its refusal blocks the barrier."""
    bench.handle(dirty(1), failed(1, FailureKind.SUSPEND_BUCKET))

    assert bench.handle(BarrierAdded(1, Scope("b"), 1)) == [send(1, is_urgent=True)]
    out = bench.handle(failed(1, FailureKind.SUSPEND_BUCKET, jitter=0.0))

    assert out == [BarrierBlocked(1, 1, (Remaining(K, 1, FlushState.QUEUED, "because"),))]


def test_barrier_is_forgotten_when_cancelled(bench: Bench) -> None:
    """Nobody is told of a barrier that nobody waits for."""
    bench.handle(dirty(1), BarrierAdded(1, Scope("b"), 1), BarrierCancelled(1), BarrierCancelled(99))

    assert bench.handle(FlushSucceeded(1), Confirmed(1)) == [Confirm(1)]


def test_barrier_is_reached_when_what_it_waits_for_is_given_up(bench: Bench) -> None:
    """A discarded change is not waited for, even while its attempt is under way."""
    bench.handle(dirty(1), BarrierAdded(1, Scope("b"), 1))

    assert bench.handle(DirtyRemoved(1)) == [BarrierReached(1)]
    assert bench.handle(FlushSucceeded(1)) == []
    assert bench.state() is None


@pytest.mark.parametrize(
    "outcome",
    [
        FlushSucceeded(1),
        FlushSkipped(1),
        failed(1, FailureKind.RETRY),
        failed(1, FailureKind.REFUSE),
        failed(1, FailureKind.SUSPEND_BUCKET),
        failed(1, FailureKind.UNKNOWN_OUTCOME),
    ],
)
def test_nothing_is_left_when_a_given_up_change_ends_its_attempt(bench: Bench, outcome: Event) -> None:
    """However the attempt ends, there is nothing to send and nothing to confirm."""
    bench.handle(dirty(1), DirtyRemoved(1), DirtyRemoved(77))

    bench.handle(outcome)

    assert bench.state() is None
    assert bench.planner.status().pending_objects == 0


def test_skipped_attempt_waits_when_the_news_of_its_successor_is_late(bench: Bench) -> None:
    """The planner does not send in a circle what the driver will not send."""
    bench.handle(dirty(1))

    assert bench.handle(FlushSkipped(1)) == [WakeAt(1.0)]
    assert bench.handle(dirty(2), Tick(), at_s=1) == [send(2)]


def test_status_counts_pending_changes_and_the_oldest_when_asked(bench: Bench) -> None:
    """Objects, bytes and age are of what is not at the origin."""
    bench.handle(dirty(1, "a", size=5), dirty(2, "b", size=7), dirty(3, "a", size=6))

    status = bench.planner.status()

    assert (status.pending_objects, status.pending_bytes, status.oldest_acknowledged_at_s) == (2, 13, 1002.0)
    assert bench.planner.handle(FlushSucceeded(1), 0.0) == [send(3)]


def test_story_tells_what_happened_to_a_key_when_asked(bench: Bench) -> None:
    """One line a transition, of this key only."""
    bench.handle(dirty(1), dirty(2, "other"), failed(1, FailureKind.RETRY), at_s=3)

    assert bench.planner.story(K) == [
        "3.000 sequence 1 added, a put",
        "3.000 queued",
        "3.000 in flight",
        "3.000 retry: because",
        "3.000 waiting for a retry",
    ]


def test_outcome_is_a_bug_when_nobody_waits_for_it(bench: Bench) -> None:
    """An answer that does not fit the key's state fails with the key's story, not silently."""
    bench.handle(dirty(1))

    with pytest.raises(AssertionError, match="nobody waits"):
        bench.handle(FlushSucceeded(9))
    with pytest.raises(AssertionError, match="in flight"):
        bench.handle(Confirmed(1))


def test_scope_is_refused_when_it_has_a_prefix_without_bucket() -> None:
    """A prefix is of a bucket."""
    with pytest.raises(ValueError, match="of a bucket"):
        Scope("", "prefix")


def test_settings_are_refused_when_nothing_could_be_sent() -> None:
    """At least one slot, and batches as AWS allows them."""
    with pytest.raises(ValueError, match="no flush"):
        FlushSettings(concurrency=0)
    with pytest.raises(ValueError, match="no flush"):
        FlushSettings(deletes_max=1001)


# --- Commands that concern many keys ------------------------------------------------------------------------------


def test_barrier_waits_for_what_was_there_when_it_began_though_it_is_counted_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A change that is replaced, or fails, before its key is counted is waited for as what took its place; a new key is not."""
    monkeypatch.setattr("storage.flush.COUNTED_PER_EVENT_MAX", 1)
    bench = Bench()
    bench.handle(dirty(1, "a"), dirty(2, "b"), dirty(3, "c"))

    bench.handle(BarrierAdded(1, Scope("b"), 3))
    assert bench.planner.barrier_remaining(1) == 3
    bench.handle(dirty(4, "b"), dirty(5, "c"), failed(2, FailureKind.REFUSE))
    bench.handle(failed(3, FailureKind.REFUSE), dirty(6, "new"))
    out = bench.handle(FlushSucceeded(1), Confirmed(1), FlushSucceeded(4), Confirmed(4))
    assert BarrierReached(1) not in out
    assert bench.planner.barrier_remaining(1) == 1

    assert BarrierReached(1) in bench.handle(FlushSucceeded(5), Confirmed(5))


def test_barrier_is_not_over_before_it_has_counted_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were counted may be at the origin by then; one that has gone there meanwhile needs no waiting."""
    monkeypatch.setattr("storage.flush.COUNTED_PER_EVENT_MAX", 1)
    bench = Bench(concurrency=3)
    bench.handle(dirty(1, "a"), dirty(2, "b"), dirty(3, "c"))
    bench.handle(BarrierAdded(1, Scope("b"), 3))

    first = bench.handle(FlushSucceeded(3))
    ended = bench.handle(Confirmed(3), dirty(9, "c"), FlushSucceeded(1), Confirmed(1), FlushSucceeded(2))

    assert WakeAt(0.0) in first
    assert BarrierReached(1) not in [*first, *ended]
    assert BarrierReached(1) in bench.handle(Confirmed(2))


def test_commands_go_through_many_keys_a_few_at_a_time() -> None:
    """No event takes longer for a hundred thousand keys than for some hundred, and nothing is left out."""
    count = 3 * COUNTED_PER_EVENT_MAX
    planner = FlushPlanner(FlushSettings())
    for number in range(1, count + 1):
        planner.handle(dirty(number, str(number), quarantine_reason="refused"), 0.0)

    out = planner.handle(BarrierAdded(1, Scope("b"), count), 0.0)
    assert (out, planner.barrier_remaining(1)) == ([WakeAt(0.0)], count)
    ticks = 0
    while not any(isinstance(one, BarrierBlocked) for one in out):
        out = planner.handle(Tick(), 0.0)
        ticks += 1
    assert ticks == 2
    assert next(one for one in out if isinstance(one, BarrierBlocked)).count == count

    released: list[int] = []
    out = planner.handle(RetryQuarantined(Scope("b")), 0.0)
    while any(isinstance(one, Release) for one in out):
        step = [one.sequence for one in out if isinstance(one, Release)]
        assert len(step) <= RELEASED_PER_EVENT_MAX
        released += step
        out = planner.handle(Tick(), 0.0)
    assert released == list(range(1, count + 1))
    planner.check_invariants()
