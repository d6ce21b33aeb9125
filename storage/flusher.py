"""The driver of the flush planner: its instructions become work, the outcomes become events.

    effects of commits ──> events ──> FlushPlanner ──> instructions ──> tasks (turn, attempt, commit) ──> events ...

Everything that goes to the planner goes through `_post`, synchronously; each instruction becomes one task of this
owner, and each task ends in the one event that the planner waits for. What an attempt at the origin or a read of the
index raises, foreseen or not, becomes a failure of that one change; a bug in the planner's own books ends the flusher,
and the engine with it.

A flush is done when the origin has confirmed it and the journal holds the confirmation: `Attempts` keeps the answer
between the planner's "it succeeded" and its "confirm it". What is quarantined is the planner's word, not the row's:
the row follows when the journal has it.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Final, assert_never

from storage.applier import Applier
from storage.cached import ForgetClean
from storage.clock import Clock
from storage.commit import Commit
from storage.dirty_rows import DirtyRows
from storage.errors import StorageError, UnknownOutcomeError
from storage.flush import FlushPlanner
from storage.flush_attempts import Attempts
from storage.flush_events import (
    BarrierBlocked,
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
    FlushSkipped,
    FlushState,
    HeadChecked,
    HeadResult,
    Instruction,
    NewestTaken,
    Quarantine,
    Release,
    RetryQuarantined,
    Scope,
    StartDeletes,
    StartFlush,
    StrayNoted,
    Tick,
    WakeAt,
)
from storage.flush_outcomes import failure_event
from storage.flush_waits import Barrier, FlushWaits
from storage.generations import Generations
from storage.keyqueue import KeyQueue, Turn
from storage.origin_uploads import OriginUploads
from storage.policy import PolicyTable
from storage.records import (
    FORMAT,
    DirtyEntry,
    Discarded,
    Flushed,
    Mutation,
    Quarantined,
    Released,
    Validated,
)
from storage.rows import Effects
from storage.sender import Sender
from storage.stats import Stats
from storage.types import ObjectName, Priority

log = logging.getLogger(__name__)

COMMIT_RETRY_S: Final = 1.0

UNFORESEEN: Final = "a fault of the gateway itself; its log says which"
"""The reason of an attempt that ended in an error that nobody foresaw."""

GUARDED_DELETES_MAX: Final = 16
"""Deletes of one batch that are looked at and sent one by one, at a time."""


@dataclass(slots=True)
class FlusherParts:
    """What the flusher works with; made once by the engine."""

    planner: FlushPlanner
    attempts: Attempts
    rows: DirtyRows
    sender: Sender
    policies: Callable[[], PolicyTable]
    uploads: OriginUploads
    commit: Commit
    applier: Applier
    queue: KeyQueue
    generations: Generations
    clock: Clock
    rng: random.Random
    stats: Stats
    epoch: int


class Flusher:
    """Owns the planner and every task that it causes."""

    def __init__(self, parts: FlusherParts) -> None:
        self._parts = parts
        self._rows = parts.rows
        self._tasks: set[asyncio.Task[None]] = set()
        # Puts that are being sent now: whoever sends ends the upload of one that is overtaken.
        self._sending: set[int] = set()
        self.waits = FlushWaits(
            self._post, parts.planner.barrier_remaining, lambda: parts.commit.last_sequence
        )
        self._guarded_deletes = asyncio.Semaphore(GUARDED_DELETES_MAX)
        self._timer: asyncio.TimerHandle | None = None
        self._bug: BaseException | None = None
        self._has_bug = asyncio.Event()
        self._is_closed = False
        self._may_land = False

    # --- the planner's road ------------------------------------------------------------------------------------------

    def take_over(self, before: "Flusher", *, is_draining: bool) -> None:
        """Go on where a closed flusher of this process ended; the queue is loaded.

        Its barriers go on; uploads at the origin that the journal does not name are ended by `OriginUploads.take_over`.
        """
        self.waits.take_over(before.waits)
        if is_draining:
            self._post(DrainStarted())

    def load(self, entries: Iterable[DirtyEntry]) -> None:
        """Take over the queue that recovery found, oldest first."""
        for entry in entries:
            self._parts.sender.adopt(entry)
            self._post(DirtyAdded(entry, self._parts.clock.wall_s()))

    def absorb(self, effects: Effects) -> None:
        """Take over what a batch changed; a listener of the engine's state."""
        wall_s = self._parts.clock.wall_s()
        for entry in effects.dirty_added:
            self._parts.sender.adopt(entry)
            self._post(DirtyAdded(entry, wall_s))
        abandoned = {entry.sequence for entry in effects.abandoned_uploads}
        for entry in effects.dirty_removed:
            self._parts.attempts.forget_answer(entry.sequence)
            if entry.sequence not in abandoned:
                self._forget_upload(entry.sequence)
        for entry in effects.discarded:
            self._post(DirtyRemoved(entry.sequence))
        for sequence in abandoned:
            self._end_upload(sequence)

    def _post(self, event: Event) -> None:
        if self._is_closed:
            # What ends now is in the journal as dirty and is sent again; only what may yet land matters.
            match event:
                case FlushFailed(kind=FailureKind.UNKNOWN_OUTCOME) | StrayNoted():
                    self._may_land = True
                case _:
                    pass
            return
        for instruction in self._parts.planner.handle(event, self._parts.clock.monotonic_s()):
            self._carry_out(instruction)

    def _carry_out(self, instruction: Instruction) -> None:
        match instruction:
            case StartFlush():
                self._start(self._flush(instruction), f"flush-{instruction.sequence}")
            case StartDeletes():
                self._start(self._delete(instruction), f"deletes-{instruction.bucket}")
            case CheckByHead():
                self._start(self._check(instruction), f"check-{instruction.sequence}")
            case Confirm():
                self._start(self._confirm(instruction), f"confirm-{instruction.sequence}")
            case Quarantine(sequence=sequence, reason=reason):
                log.error("change %d is quarantined: %s", sequence, reason)
                self._parts.stats.flushed["quarantined"] += 1
                self._start(self._journal(Quarantined(FORMAT, sequence, reason)), f"quarantine-{sequence}")
            case Release(sequence=sequence):
                self._start(self._journal(Released(FORMAT, sequence)), f"release-{sequence}")
            case BarrierReached() | BarrierBlocked():
                self.waits.end(instruction)
            case WakeAt(time_s=time_s):
                self._wake_at(time_s)
            case _:
                assert_never(instruction)

    def _start(self, work: Coroutine[object, object, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            self._bug = self._bug or bug
            self._has_bug.set()

    def _wake_at(self, time_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        wait_s = max(0.0, time_s - self._parts.clock.monotonic_s())
        self._timer = asyncio.get_running_loop().call_later(wait_s, self._post, Tick())

    async def run(self) -> None:
        """Raise what a task of the flusher failed of; only a bug makes this return before it is cancelled."""
        await self._has_bug.wait()
        assert self._bug is not None
        raise self._bug

    async def close(self, grace_s: float = 0.0, *, ends_waits: bool = True) -> bool:
        """Begin nothing more, let what is under way end for `grace_s`, then cut it; the queue is in the journal.

        Where `ends_waits` is false, those who wait for a barrier go on to wait, for another flusher that takes them over. True
        where nothing that was sent may yet take effect at the origin.
        """
        self._may_land |= self._parts.planner.has_loose_ends()
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._tasks and grace_s > 0:
            await asyncio.wait(self._tasks, timeout=grace_s)
        # A task that is cut in a commit or a wait has nothing at the origin, but that is not known here.
        self._may_land |= bool(self._tasks)
        for task in tuple(self._tasks):
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)
        if ends_waits:
            self.waits.close()
        return not self._may_land

    # --- puts --------------------------------------------------------------------------------------------------------

    async def _flush(self, start: StartFlush) -> None:
        name = self._parts.planner.name_of(start.sequence)
        async with self._parts.queue.turn(name, Turn.FLUSH):
            event: Event = FlushSkipped(start.sequence)
            try:
                entry = self._take_newest(start.sequence)
            except StorageError as error:
                entry, event = None, failure_event(start.sequence, error, self._jitter())
            if entry is not None:
                event = await self._settled(entry.sequence, self._attempt(entry, start.priority))
        self._post(event)

    async def _settled(self, sequence: int, attempt: Awaitable[Event]) -> Event:
        """Give an attempt's event; what nobody foresaw of one object must not stop the flush of all others."""
        try:
            return await attempt
        except StorageError as error:
            return failure_event(sequence, error, self._jitter())
        except Exception:
            log.exception("the flush of change %d failed in a way that nobody foresaw", sequence)
            return FlushFailed(sequence, FailureKind.RETRY, UNFORESEEN, self._jitter())

    def _take_newest(self, sequence: int) -> DirtyEntry | None:
        """Give what to send now that the turn has come: the newest change, which may have replaced the one asked for.

        Else a key that is written all the time would never be sent. None where it was given up, or is being replaced
        in this moment.
        """
        newest = self._parts.planner.newest(sequence)
        entry = self._rows.entry(newest) if newest else None
        if entry is not None and newest != sequence:
            self._post(NewestTaken(sequence, newest))
        return entry

    async def _attempt(self, entry: DirtyEntry, priority: Priority) -> Event:
        if entry.is_tombstone:
            (event,) = await self._parts.attempts.deletes(entry.bucket, (entry,), priority)
            return event
        self._sending.add(entry.sequence)
        try:
            event = await self._parts.attempts.put(entry, priority)
        finally:
            self._sending.discard(entry.sequence)
        if self._rows.entry(entry.sequence) is None:
            self._end_upload(entry.sequence)
        return event

    # --- uploads of ours that nobody will complete -------------------------------------------------------------------

    def _end_upload(self, sequence: int) -> None:
        """End the upload of a change that left the queue; one that is being sent is ended when that has ended."""
        upload = None if sequence in self._sending else self._parts.sender.take(sequence)
        if upload is not None:
            self._parts.uploads.end(upload)

    def _forget_upload(self, sequence: int) -> None:
        """Forget the upload of a change that the origin has; while it is being sent nobody knows how that ends."""
        upload = None if sequence in self._sending else self._parts.sender.take(sequence)
        if upload is not None:
            self._parts.uploads.forget(upload)

    # --- deletes -----------------------------------------------------------------------------------------------------

    async def _delete(self, start: StartDeletes) -> None:
        """Send a batch; a key whose turn does not come at once goes alone, so that it holds up no other.

        So does one that is guarded against other writers, since the origin is asked of each first; a few at a time.
        """
        together: list[int] = []
        for sequence in start.sequences:
            if self._is_guarded(sequence):
                self._start(self._delete_guarded(sequence, start.priority), f"delete-{sequence}")
            elif self._parts.queue.is_idle(self._parts.planner.name_of(sequence)):
                together.append(sequence)
            else:
                self._start(self._flush_alone(sequence, start.priority), f"delete-{sequence}")
        if together:
            await self._delete_together(start.bucket, together, start.priority)

    def _is_guarded(self, sequence: int) -> bool:
        try:
            entry = self._rows.entry(sequence)
        except StorageError:
            # It holds up no other; alone, it tells why it cannot be sent.
            return True
        return entry is not None and self._parts.attempts.is_guarded(entry)

    async def _delete_guarded(self, sequence: int, priority: Priority) -> None:
        async with self._guarded_deletes:
            await self._flush_alone(sequence, priority)

    async def _flush_alone(self, sequence: int, priority: Priority) -> None:
        await self._flush(StartFlush(sequence, priority, needs_followup_head=False))

    async def _delete_together(self, bucket: str, sequences: list[int], priority: Priority) -> None:
        async with AsyncExitStack() as turns:
            for sequence in sequences:
                name = self._parts.planner.name_of(sequence)
                await turns.enter_async_context(self._parts.queue.turn(name, Turn.FLUSH))
            entries: list[DirtyEntry] = []
            events: list[Event] = []
            for sequence in sequences:
                try:
                    entry = self._rows.entry(sequence)
                except StorageError as error:
                    events.append(failure_event(sequence, error, self._jitter()))
                    continue
                if entry is None:
                    events.append(FlushSkipped(sequence))
                else:
                    entries.append(entry)
            if entries:
                events += await self._deleted(bucket, tuple(entries), priority)
        for event in events:
            self._post(event)

    async def _deleted(self, bucket: str, entries: tuple[DirtyEntry, ...], priority: Priority) -> list[Event]:
        try:
            return await self._parts.attempts.deletes(bucket, entries, priority)
        except Exception:
            log.exception("a batch of deletes failed in a way that nobody foresaw")
            return [FlushFailed(e.sequence, FailureKind.RETRY, UNFORESEEN, self._jitter()) for e in entries]

    # --- checks and confirmations ------------------------------------------------------------------------------------

    async def _check(self, check: CheckByHead) -> None:
        try:
            event = await self._parts.attempts.check(check)
        except Exception:
            log.exception("the check of change %d failed in a way that nobody foresaw", check.sequence)
            event = HeadChecked(check.sequence, HeadResult.FAILED, self._jitter())
        self._post(event)

    async def _confirm(self, confirm: Confirm) -> None:
        while True:
            try:
                return await self._confirm_once(confirm)
            except StorageError as error:
                log.warning("change %d cannot be confirmed yet: %s", confirm.sequence, error)
            await self._parts.clock.sleep(COMMIT_RETRY_S + self._jitter())

    async def _confirm_once(self, confirm: Confirm) -> None:
        entry = self._rows.entry(confirm.sequence)
        if entry is not None:
            name = ObjectName(entry.bucket, entry.key)
            identity = self._parts.attempts.answer(confirm.sequence)
            validated = Validated(self._parts.clock.wall_s(), self._parts.epoch)
            releases = not entry.is_tombstone and self._parts.policies().find(name).release_after_flush
            # What was asked for before may not show this change, and the overlay will not cover for it any more.
            self._parts.generations.bump(name)
            is_committed = await self._commit(
                Flushed(FORMAT, confirm.sequence, identity, validated, releases=releases)
            )
            self._parts.generations.bump(name)
            if not is_committed:
                # The door is closed; the change stays dirty in the journal, and the next start sends it again.
                return
            if confirm.is_overtaken:
                await self._forget_clean(name)
            self._parts.stats.flushed["done"] += 1
            self._parts.stats.evicted_bytes["released"] += entry.size if releases else 0
            self._parts.attempts.confirmed(entry)
        self._parts.attempts.forget(confirm.sequence)
        self._post(Confirmed(confirm.sequence))

    async def _forget_clean(self, name: ObjectName) -> None:
        try:
            await self._parts.applier.change(ForgetClean(name.bucket, name.key))
        except StorageError as error:
            # The index takes no more changes: the next start validates what it has.
            log.warning("%s stays in the cache: %s", name, error)

    async def _journal(self, mutation: Mutation) -> None:
        await self._commit(mutation)

    async def _commit(self, mutation: Mutation) -> bool:
        """Commit, again while the disk refuses with a known outcome; False where the door is closed."""
        while True:
            try:
                # A client waits for a flush now and then, for its confirmation's share of the syncs never.
                await self._parts.commit.commit(mutation, may_wait=True)
            except UnknownOutcomeError:
                return False
            except StorageError as error:
                log.warning("a flush cannot be confirmed yet: %s", error)
                await self._parts.clock.sleep(COMMIT_RETRY_S + self._jitter())
            else:
                return True

    def _jitter(self) -> float:
        return self._parts.rng.random()

    # --- what is dirty -----------------------------------------------------------------------------------------------

    def dirty_entry(self, name: ObjectName) -> DirtyEntry | None:
        """Give the key's newest change that is not at the origin."""
        return self._rows.newest(name)

    def has_dirty_put(self, bucket: str) -> bool:
        """Whether an object of the bucket is acknowledged and not at the origin."""
        return self._rows.has_put(bucket)

    def quarantine_reason(self, name: ObjectName) -> str:
        """Say why the origin refused the key's newest change for good; "" where it did not."""
        planner = self._parts.planner
        is_quarantined = planner.state_of(name) is FlushState.QUARANTINED
        return (planner.reason_of(name) or "refused") if is_quarantined else ""

    async def outlast_strays(self, name: ObjectName) -> None:
        """Wait until nothing that was sent of a key, and then refused or given up, can land any more."""
        clock = self._parts.clock
        while (wait_s := self._parts.planner.may_land_until_s(name) - clock.monotonic_s()) > 0:
            await clock.sleep(wait_s)

    def note_stray(self, name: ObjectName) -> None:
        """Learn that something was sent under the key outside of the flush that may yet take effect."""
        self._post(StrayNoted(name))

    def origin_upload_ids(self) -> frozenset[str]:
        """Name the uploads at the origin that no client opened."""
        return self._parts.uploads.ids()

    # --- commands ----------------------------------------------------------------------------------------------------

    async def flush_key(self, name: ObjectName) -> None:
        """Send the key's newest change now; see `FlushWaits.flush_key`."""
        await self.waits.flush_key(name)

    def drain(self) -> Barrier:
        """Hold nothing back any more; give a barrier over everything."""
        self._post(DrainStarted())
        return self.waits.begin(Scope())

    def retry_quarantined(self, scope: Scope) -> None:
        """Send what the origin refused once more."""
        self._post(RetryQuarantined(scope))

    async def discard(self, name: ObjectName, sequence: int) -> int:
        """Give up the change of that sequence where it is the key's newest and the origin refused it; give how many changes.

        Whoever names it has seen it in a list that may be old: a newer write of the key stays.
        """
        async with self._parts.queue.turn(name, Turn.WRITE_BACK):
            entry = self.dirty_entry(name)
            if entry is None or entry.sequence != sequence or not self.quarantine_reason(name):
                return 0
            with self._parts.generations.writing(name):
                await self._parts.commit.commit(Discarded(FORMAT, entry.sequence))
        return 1
