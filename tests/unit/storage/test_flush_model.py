"""FlushPlanner against a small world: an origin where attempts land late, refuse and vanish, and a journal.

The world plays the driver. Each instruction becomes a task that a rule settles in some way, at some time; an attempt without an
answer may land at any moment until the origin's time-out. What must hold whatever the order: one attempt a key, in the order of
its changes; a confirmation only while the origin holds that change and nothing can land over it; and in the end every change is
confirmed or quarantined, with the newest state at the origin.
"""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from storage.flush import FlushPlanner
from storage.flush_events import (
    BarrierAdded,
    BarrierBlocked,
    BarrierCancelled,
    BarrierReached,
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
    Quarantine,
    Release,
    RetryQuarantined,
    Scope,
    StartDeletes,
    StartFlush,
    Tick,
    WakeAt,
)
from storage.records import DirtyEntry
from storage.types import ObjectName

TIMEOUT_S = 60.0
FOREIGN = -1
NAMES = [ObjectName(bucket, key) for bucket in ("x", "y") for key in ("1", "2", "3")]
JITTER = st.sampled_from([0.0, 0.5, 0.99])
INDEX = st.integers(0, 1000)


@dataclass
class Stray:
    """An attempt without an answer, which may land until a time."""

    name: ObjectName
    sequence: int
    until_s: float


class FlushWorld(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.planner = FlushPlanner(
            FlushSettings(concurrency=3, origin_timeout_s=TIMEOUT_S, deletes_max=2, away_after=2),
            unclean_until_s=TIMEOUT_S,
        )
        self.now_s = 0.0
        self.sequence = 0
        self.entries: dict[int, DirtyEntry] = {}  # all there ever were
        self.newest: dict[ObjectName, int] = {}  # dirty or quarantined
        self.quarantined: set[int] = set()
        self.origin: dict[ObjectName, int] = {}
        self.strays = [Stray(name, 0, TIMEOUT_S) for name in NAMES[::2]]  # of the process before
        self.sent: dict[ObjectName, int] = {}  # the last sequence sent of each key
        self.tasks: list[StartFlush | CheckByHead | Confirm] = []
        self.denied: set[str] = set()
        self.barriers: dict[int, tuple[Scope, dict[ObjectName, int]]] = {}
        self.barrier_count = 0
        self.wake_s: float | None = None
        self.settled: dict[ObjectName, int] = {}  # newest that got there or was given up

    # --- The driver ---

    def tell(self, event: Event) -> None:  # noqa: C901, PLR0912  one case an instruction
        for instruction in self.planner.handle(event, self.now_s):
            match instruction:
                case StartFlush(sequence):
                    assert not self.entries[sequence].is_tombstone
                    self.start(sequence)
                case StartDeletes(bucket, sequences):
                    assert len({self.name_of(s) for s in sequences}) == len(sequences) <= 2
                    for sequence in sequences:
                        assert self.entries[sequence].is_tombstone
                        assert self.entries[sequence].bucket == bucket
                        self.start(sequence)
                case CheckByHead(sequence, attempted):
                    assert attempted[-1] == sequence
                    self.require_idle(self.name_of(sequence))
                    self.tasks.append(instruction)
                case Confirm():
                    self.require_idle(self.name_of(instruction.sequence))
                    self.tasks.append(instruction)
                case Quarantine(sequence):
                    assert self.newest[self.name_of(sequence)] == sequence
                    self.quarantined.add(sequence)
                case Release(sequence):
                    self.quarantined.remove(sequence)
                case BarrierReached(barrier_id):
                    self.end_barrier(barrier_id, is_reached=True)
                case BarrierBlocked(barrier_id, count, remaining):
                    assert count == len(remaining) > 0
                    for left in remaining:
                        assert left.sequence in self.quarantined or left.name.bucket in self.denied_once
                    self.end_barrier(barrier_id, is_reached=False)
                case WakeAt(time_s):
                    assert self.wake_s is None or self.wake_s <= self.now_s or time_s <= self.wake_s
                    self.wake_s = time_s

    @property
    def denied_once(self) -> set[str]:
        return set(self.planner.status().suspended_buckets)

    def name_of(self, sequence: int) -> ObjectName:
        return ObjectName(self.entries[sequence].bucket, self.entries[sequence].key)

    def require_idle(self, name: ObjectName) -> None:
        assert all(self.name_of(task.sequence) != name for task in self.tasks), f"{name} is at work"

    def start(self, sequence: int) -> None:
        name = self.name_of(sequence)
        self.require_idle(name)
        assert self.newest[name] == sequence, "only the newest is sent"
        assert self.sent.get(name, 0) <= sequence, "order of a key"
        assert sequence not in self.quarantined
        self.sent[name] = sequence
        self.tasks.append(StartFlush(sequence, priority=0, needs_followup_head=False))  # type: ignore[arg-type]  # unused

    def end_barrier(self, barrier_id: int, *, is_reached: bool) -> None:
        _, waited_for = self.barriers.pop(barrier_id)
        for name, sequence in waited_for.items():
            settled = self.settled.get(name, 0) >= sequence
            assert settled or not is_reached, f"{name} of {barrier_id} is not there"

    # --- What the world keeps to judge by ---

    def settle(self, name: ObjectName, sequence: int) -> None:
        self.settled[name] = max(self.settled.get(name, 0), sequence)

    def take(self, index: int, kind: type, may: Callable[[int], bool] = lambda _: True) -> int | None:
        """Take a task of a kind off the list; give its sequence."""
        found = [task for task in self.tasks if isinstance(task, kind) and may(task.sequence)]
        if not found:
            return None
        task = found[index % len(found)]
        self.tasks.remove(task)
        return task.sequence

    # --- Rules: clients ---

    @rule(
        name=st.sampled_from(NAMES),
        is_tombstone=st.booleans(),
        hold_s=st.sampled_from([0.0, 0.0, 20.0]),
        deadline_s=st.sampled_from([0.0, 10.0]),
    )
    def write(self, name: ObjectName, is_tombstone: bool, hold_s: float, deadline_s: float) -> None:
        self.sequence += 1
        wall_s = 1000.0 + self.now_s
        entry = DirtyEntry(
            format=1,
            sequence=self.sequence,
            bucket=name.bucket,
            key=name.key,
            slot=0,
            version_id=0 if is_tombstone else self.sequence,
            size=0 if is_tombstone else 10,
            credential_id="",
            acknowledged_at_s=wall_s,
            flush_after_s=wall_s + hold_s,
            deadline_s=wall_s + deadline_s if deadline_s else 0.0,
        )
        self.entries[self.sequence] = entry
        self.quarantined.discard(self.newest.get(name, 0))
        self.newest[name] = self.sequence
        self.tell(DirtyAdded(entry, wall_s))

    @precondition(lambda self: self.newest)
    @rule(index=INDEX)
    def discard(self, index: int) -> None:
        name = sorted(self.newest)[index % len(self.newest)]
        sequence = self.newest.pop(name)
        self.quarantined.discard(sequence)
        self.settle(name, sequence)
        self.tell(DirtyRemoved(sequence))

    @rule(bucket=st.sampled_from(["", "x", "y"]), key=st.sampled_from(["", "1"]), is_one_key=st.booleans())
    def add_barrier(self, bucket: str, key: str, is_one_key: bool) -> None:
        scope = Scope(bucket, key, is_one_key) if bucket else Scope()
        self.barrier_count += 1
        waited_for = {name: sequence for name, sequence in self.newest.items() if name in scope}
        self.barriers[self.barrier_count] = (scope, waited_for)
        self.tell(BarrierAdded(self.barrier_count, scope, self.sequence))

    @precondition(lambda self: self.barriers)
    @rule()
    def cancel_barrier(self) -> None:
        barrier_id = min(self.barriers)
        del self.barriers[barrier_id]
        self.tell(BarrierCancelled(barrier_id))

    @rule()
    def retry_quarantined(self) -> None:
        self.tell(RetryQuarantined(Scope()))

    @precondition(lambda self: self.sequence > 20)
    @rule()
    def drain(self) -> None:
        self.tell(DrainStarted())

    # --- Rules: the origin ---

    @rule(bucket=st.sampled_from(["x", "y"]))
    def deny_or_allow(self, bucket: str) -> None:
        self.denied ^= {bucket}

    @rule(name=st.sampled_from(NAMES))
    def write_behind_our_back(self, name: ObjectName) -> None:
        self.origin[name] = FOREIGN

    @precondition(lambda self: self.strays)
    @rule(index=INDEX)
    def land(self, index: int) -> None:
        stray = self.strays.pop(index % len(self.strays))
        if self.now_s < stray.until_s:
            self.origin[stray.name] = stray.sequence

    @rule(index=INDEX)
    def succeed(self, index: int) -> None:
        sequence = self.take(index, StartFlush, lambda s: self.entries[s].bucket not in self.denied)
        if sequence is not None:
            name = self.name_of(sequence)
            self.origin[name] = sequence
            self.settle(name, sequence)
            self.tell(FlushSucceeded(sequence))

    @rule(index=INDEX, kind=st.sampled_from(FailureKind), jitter=JITTER, is_outage=st.booleans())
    def fail(self, index: int, kind: FailureKind, jitter: float, *, is_outage: bool) -> None:
        sequence = self.take(index, StartFlush)
        if sequence is None:
            return
        name = self.name_of(sequence)
        if kind is FailureKind.UNKNOWN_OUTCOME:
            self.strays.append(Stray(name, sequence, self.now_s + TIMEOUT_S))
        self.tell(FlushFailed(sequence, kind, "why", jitter, is_outage=is_outage))

    @rule(index=INDEX)
    def skip(self, index: int) -> None:
        sequence = self.take(index, StartFlush, lambda s: self.newest.get(self.name_of(s)) != s)
        if sequence is not None:
            self.tell(FlushSkipped(sequence))

    @rule(index=INDEX, fails=st.booleans(), jitter=JITTER)
    def look(self, index: int, fails: bool, jitter: float) -> None:
        heads = {task.sequence: task.attempted for task in self.tasks if isinstance(task, CheckByHead)}
        sequence = self.take(index, CheckByHead)
        if sequence is None:
            return
        there = self.origin.get(self.name_of(sequence))
        result = HeadResult.OTHER
        if fails:
            result = HeadResult.FAILED
        elif there == sequence:
            result = HeadResult.OURS
        elif there in heads[sequence]:
            result = HeadResult.SUPERSEDED
        self.tell(HeadChecked(sequence, result, jitter))

    @rule(index=INDEX)
    def confirm(self, index: int) -> None:
        sequence = self.take(index, Confirm)
        if sequence is None:
            return
        name = self.name_of(sequence)
        # The heart of it: what becomes clean is at the origin and nothing of ours can land over it. Another writer may,
        # and the attempt of the process before (0) is not told from another writer's.
        assert self.origin[name] in {sequence, FOREIGN, 0}
        assert all(stray.name != name or stray.until_s <= self.now_s for stray in self.strays)
        if self.newest.get(name) == sequence:
            del self.newest[name]
        self.tell(Confirmed(sequence))

    @precondition(lambda self: self.wake_s is not None)
    @rule()
    def wake(self) -> None:
        assert self.wake_s is not None
        self.now_s = max(self.now_s, self.wake_s)
        self.wake_s = None
        self.tell(Tick())

    @rule(wait_s=st.sampled_from([0.5, 10.0, 70.0]))
    def wait(self, wait_s: float) -> None:
        self.now_s += wait_s
        # A Tick is the driver's one timer that has fired, perhaps early: nothing is asked for any more.
        self.wake_s = None
        self.tell(Tick())

    # --- What always holds ---

    @invariant()
    def books_are_right(self) -> None:
        self.planner.check_invariants()
        status = self.planner.status()
        assert status.quarantined_objects == len(self.quarantined)
        assert status.pending_objects == len(self.newest) - len(self.quarantined)
        assert status.slots_used <= 3

    @invariant()
    def suspended_bucket_has_one_probe(self) -> None:
        for bucket in self.planner._books.buckets.values():
            assert bucket.probe is None or bucket.probe.state is FlushState.IN_FLIGHT

    def teardown(self) -> None:
        """Let the origin recover: everything gets there, or stays in quarantine, and no barrier is left waiting."""
        self.denied.clear()
        self.strays = [stray for stray in self.strays if stray.until_s > self.now_s]
        for _ in range(2000):
            if self.tasks:
                task = self.tasks[0]
                if isinstance(task, StartFlush):
                    self.succeed(0)
                elif isinstance(task, CheckByHead):
                    self.look(0, fails=False, jitter=0.0)
                else:
                    self.confirm(0)
            elif self.strays:
                self.land(0)
            elif self.wake_s is not None:
                self.wake()
            else:
                break
        assert set(self.newest.values()) == self.quarantined
        assert self.barriers == {}


FlushWorld.TestCase.settings = settings(max_examples=120, stateful_step_count=60)
TestFlushWorld = FlushWorld.TestCase
TestFlushWorld = pytest.mark.slow(TestFlushWorld)
