"""One call of the disk, the index or the origin fails while an engine does one thing: what is there afterwards?

A `Stage` is a directory and an origin in a known state, `CONTENT`. For each trial the stage is copied, the n-th call of a
kind fails, a `Deed` is done, and what clients see is compared with the state before it and the state after it: in the
engine that met the failure, and in engines that start from what a SIGKILL and a power cut right after it leave. Then
everything is flushed, and the origin must hold the same.
"""

import asyncio
import copy
import errno
import hashlib
import os
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Final

from storage.engine_parts import EngineWorkers
from storage.errors import (
    DiskFailedError,
    DiskFullError,
    NoSuchKeyError,
    NoSuchUploadError,
    OverloadedError,
    StorageError,
)
from storage.flush_events import FlushSettings
from storage.journal_format import unfinished_path
from storage.listing import ListQuery
from storage.policy import Policy
from storage.records import FORMAT, BucketFacts, FactsLearnt
from storage.requests import CompletedPart, UploadRequest
from storage.types import MIB, ObjectName
from storage.upkeep import CHECKPOINT_EVERY_S, COMPACT_EVERY_S, EXPIRE_EVERY_S, TURN_S
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.index import FakeIndex
from tests.fakes.origin_store import Bucket, Upload
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.running_engine import (
    BUCKET,
    BytesContent,
    FakeIndexHome,
    RunningEngine,
    ShiftedClock,
    running_engine,
    until,
)
from tests.fakes.workers import InlineWorkers

IS_LONG: Final = os.environ.get("FOREBAY_TEST_LONG", "") not in {"", "0"}
"""Each call fails once and for good, and both cuts follow; else these take turns."""

CALLS_MAX: Final = 200
"""No deed takes so many calls: the loop over n would not end."""

WRITABLE_S_MAX: Final = 20.0
FAILURES_MAX: Final = 4
"""After so many failures of the disk nobody waits for a flush any more: it does not heal by itself."""

HELD: Final = Policy(flush_delay_s=3600.0)
"""Nothing is flushed before a barrier asks for it."""

QUICK: Final = FlushSettings(origin_timeout_s=0.0, retry_s_min=0.002, retry_s_max=0.01, probe_s_min=0.01)

OWN_PACE: Final = frozenset({TURN_S, CHECKPOINT_EVERY_S, EXPIRE_EVERY_S, COMPACT_EVERY_S})
PAUSE_S_MAX: Final = 0.002

LONG: Final = random.Random(1).randbytes(2 * MIB + 200_000)
PARTS: Final = (random.Random(2).randbytes(5 * MIB), b"the last part")
JOINED_ETAG: Final = f"{hashlib.md5(b''.join(hashlib.md5(part).digest() for part in PARTS)).hexdigest()}-2"
BLOCK: Final = b"block" * 20_000
CONTENT: Final[dict[str, bytes | None]] = {
    "block": BLOCK,
    "clean": b"clean" * 200,
    "gone": None,
    "tiny": b"tiny",
}
"""Objects of the stage: one is clean, the others dirty, one of them a delete."""

State = dict[str, bytes | tuple[str, ...] | None]
"""What clients see: objects by key, and under `UPLOAD` the ETags of the open upload's parts; None once it has ended."""

UPLOAD: Final = "?upload"


class BriskClock(ShiftedClock):
    """A clock on which retries come at once; upkeep keeps its pace."""

    async def sleep(self, wait_s: float) -> None:
        """Sleep, but not long."""
        await super().sleep(wait_s if wait_s in OWN_PACE else min(wait_s, PAUSE_S_MAX))


class FailingHome(FakeIndexHome):
    """Where an index lives whose faults outlast its being opened again and thrown away."""

    def open(self) -> FakeIndex:
        """Give the rows as the last engine left them."""
        before = self.index
        after = super().open()
        after.take_faults(before)
        return after

    def destroy(self) -> None:
        """Begin an empty index."""
        before = self.index
        super().destroy()
        self.index.take_faults(before)


class _Fixed(random.Random):
    """Draws the same number again and again."""

    def __init__(self, drawn: float) -> None:
        super().__init__(1)
        self._drawn = drawn

    def random(self) -> float:
        return self._drawn


class HowLong(StrEnum):
    """Whether the calls after the one that failed fail too."""

    ONCE = "once"
    FOR_GOOD = "for good"
    IN_TURN = "once or for good"


@dataclass(frozen=True)
class Kind:
    """One way in which calls fail. Which calls count is said by `operations`, or they are those of the index.

    Attributes:
        sync_draw: Below 0.5 what a failed sync was to write is on the disk, else it is dropped, and reads back until a restart.
    """

    name: str
    operations: frozenset[Operation] = frozenset()
    error_number: int = errno.EIO
    written_share: float = 0.0
    index_call: str = ""
    sync_draw: float = 0.0

    def plant(self, how: HowLong, filesystem: FakeFilesystem, index: FakeIndex, nth: int) -> None:
        """Let the n-th call from now fail, once or with all that follow."""
        is_persistent = how is HowLong.FOR_GOOD or (how is HowLong.IN_TURN and nth % 2 == 0)
        if self.index_call == "write":
            index.fail_write(nth, is_persistent=is_persistent)
        elif self.index_call == "checkpoint":
            index.fail_checkpoint(nth, is_persistent=is_persistent)
        else:
            filesystem.draws = _Fixed(self.sync_draw)
            filesystem.fail(
                *self.operations,
                nth=nth,
                error_number=self.error_number,
                is_persistent=is_persistent,
                written_share=self.written_share,
            )


class Cut(StrEnum):
    """What ends the engine that met the failure."""

    KILL = "a kill"
    POWER = "a power cut"


SYNCS: Final = frozenset({Operation.FDATASYNC, Operation.SYNC_DIRECTORY})
GROWS: Final = frozenset({Operation.CREATE, Operation.MAKE_DIRECTORY, Operation.PWRITE, Operation.RENAME})
DISK_KINDS: Final = (
    Kind("an I/O error", frozenset(Operation) - SYNCS),
    Kind("no space", GROWS, errno.ENOSPC),
    Kind("a short write", frozenset({Operation.PWRITE}), errno.ENOSPC, 0.5),
    Kind("a failed sync that wrote all", SYNCS, sync_draw=0.0),
    Kind("a failed sync that dropped all", SYNCS, sync_draw=0.99),
)
INDEX_KINDS: Final = (
    Kind("a failed index write", index_call="write"),
    Kind("a failed checkpoint", index_call="checkpoint"),
)
KINDS: Final = DISK_KINDS + INDEX_KINDS


@dataclass(frozen=True)
class Deed:
    """One thing that an engine does.

    Attributes:
        act: Does it; returns once it is acknowledged.
        changes: By how the state after it differs from the one before.
        ends_upload: The upload is completed after the restart, for the first time or again.
        ends_engine: Nothing can be asked of the engine afterwards.
    """

    act: Callable[[RunningEngine, "Stage"], Awaitable[None]]
    changes: State = field(default_factory=dict)
    ends_upload: bool = False
    ends_engine: bool = False


@dataclass(frozen=True)
class OriginState:
    """What an origin holds at one time."""

    buckets: dict[str, Bucket]
    uploads: dict[str, Upload]

    @classmethod
    def of(cls, origin: PausedOrigin) -> "OriginState":
        """Remember it."""
        return cls(copy.deepcopy(origin.store.buckets), copy.deepcopy(origin.store.uploads))


@dataclass
class Stage:
    """A directory and an origin in a known state; each trial works on a copy.

    Attributes:
        filesystem, index: What a killed engine left.
    """

    origin: PausedOrigin
    filesystem: FakeFilesystem
    index: FakeIndex
    upload_id: str
    etags: tuple[str, ...]
    at_first: "OriginState"
    flush: FlushSettings = field(default_factory=lambda: QUICK)

    def reset(self, origin: "OriginState | None" = None) -> None:
        """Let the origin be as it was at the beginning, or at another time, and fail no more."""
        state = origin or self.at_first
        self.origin.faults.clear()
        self.origin.store.buckets = copy.deepcopy(state.buckets)
        self.origin.store.uploads = copy.deepcopy(state.uploads)

    @asynccontextmanager
    async def engine(self, filesystem: FakeFilesystem, home: FakeIndexHome) -> AsyncIterator[RunningEngine]:
        """Run an engine over a directory."""
        async with running_engine(
            origin=self.origin,
            filesystem=filesystem,
            index_home=home,
            cache_bytes=64 * MIB,
            clock=BriskClock(),
            policy=HELD,
            flush=self.flush,
            workers=EngineWorkers(InlineWorkers(), InlineWorkers(), InlineWorkers()),
        ) as running:
            yield running

    async def look(self, running: RunningEngine, keys: Iterable[str]) -> State:
        """See the state of these keys and of the upload, as clients do."""
        seen: State = {key: await _read(running, key) for key in keys if key != UPLOAD}
        listed = await running.engine.list_objects(ListQuery(BUCKET))
        sizes = {entry.key: entry.size for entry in listed.entries if entry.key in seen}
        there = {key: len(data) for key, data in seen.items() if isinstance(data, bytes)}
        assert sizes == there, f"listed is {sizes}, read is {there}"
        seen[UPLOAD] = await self._parts(running)
        return seen

    async def _parts(self, running: RunningEngine) -> tuple[str, ...] | None:
        name = ObjectName(BUCKET, "joined")
        try:
            page = await running.engine.list_parts(name, self.upload_id, part_marker=0, max_parts=10)
        except NoSuchUploadError:
            return None
        return tuple(part.etag for part in page.parts)

    async def complete(self, running: RunningEngine) -> str:
        """Complete the open upload; give the object's ETag."""
        parts = [CompletedPart(number, etag) for number, etag in enumerate(self.etags, 1)]
        result = await running.engine.complete_upload(ObjectName(BUCKET, "joined"), self.upload_id, parts)
        return result.etag


async def _read(running: RunningEngine, key: str) -> bytes | None:
    try:
        return (await running.get(key)).data
    except NoSuchKeyError:
        return None


@asynccontextmanager
async def prepared() -> AsyncIterator[Stage]:
    """Make the stage: one clean object, four dirty changes, an upload with two parts."""
    async with PausedOrigin() as origin:
        origin.store.create_bucket(BUCKET)
        origin.store.put(BUCKET, "gone", b"to be deleted")
        filesystem, home = FakeFilesystem(), FakeIndexHome()
        async with running_engine(
            origin=origin, filesystem=filesystem, index_home=home, cache_bytes=64 * MIB, policy=HELD
        ) as running:
            facts = BucketFacts(FORMAT, BUCKET, exists=True, asked_at_s=1e12)
            await running.engine._components.commit.commit(FactsLearnt(FORMAT, facts))
            await running.put("clean", b"clean" * 200)
            await flush(running)
            # All at once, so that they share groups of the journal: each group is calls of a start and a compaction.
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(running.put("block", BLOCK))
                tasks.create_task(running.put("tiny", b"tiny"))
                tasks.create_task(running.engine.delete_object(ObjectName(BUCKET, "gone")))
                upload = tasks.create_task(_upload(running))
            upload_id, etags = upload.result()
            left, home = running.stop_uncleanly()
        yield Stage(origin, left, home.index, upload_id, etags, OriginState.of(origin))


async def _upload(running: RunningEngine) -> tuple[str, tuple[str, ...]]:
    name = ObjectName(BUCKET, "joined")
    upload_id, _ = await running.engine.create_upload(UploadRequest(name))
    async with asyncio.TaskGroup() as tasks:
        results = [
            tasks.create_task(running.engine.upload_part(name, upload_id, number, BytesContent(data)))
            for number, data in enumerate(PARTS, 1)
        ]
    return upload_id, tuple(task.result().etag for task in results)


async def flush(running: RunningEngine, *, wait_s: float = 20.0) -> None:
    """Wait until the origin has everything; TimeoutError where it has not in time, or refuses some, or the disk does."""
    report = running.engine.start_barrier("", "")
    give_up_s = running.clock.monotonic_s() + wait_s
    while not report.is_reached and not report.blocked and running.clock.monotonic_s() < give_up_s:
        assert isinstance(running.filesystem, FakeFilesystem)
        if not running.engine.status().is_writable or running.filesystem.failures_total >= FAILURES_MAX:
            break
        report = await running.engine.wait_barrier(report.barrier_id, 0.02)
    if not report.is_reached:
        raise TimeoutError(f"{report.remaining} changes are not at the origin: {report.blocked}")


# --- one trial -----------------------------------------------------------------------------------------------------------


@dataclass
class Trial:
    """One deed, done while one call fails.

    Attributes:
        error: What the deed ended with; None where it was acknowledged.
        has_struck: Whether the call that was to fail was made.
        settled: What the engine showed once it took writes again; no start may show another state.
        is_at_origin: It is one of the origin's.
    """

    stage: Stage
    deed: Deed
    what: str
    is_at_origin: bool = False
    error: BaseException | None = None
    has_struck: bool = False
    later: bool = False
    settled: State | None = None

    @property
    def _before(self) -> State:
        return {**dict.fromkeys(self.deed.changes), **CONTENT, UPLOAD: self.stage.etags}

    @property
    def allowed(self) -> list[State]:
        """What may be seen once the directory was started again."""
        before, after = self._before, {**self._before, **self.deed.changes}
        if self.settled is not None:
            return [self.settled]
        if self.error is None:
            return [after]
        is_known = isinstance(self.error, DiskFullError | DiskFailedError | OverloadedError)
        return [before] if is_known else [before, after]

    def check(self, seen: State, where: str) -> None:
        """Raise where neither the state before nor the state after is seen, or not the one that was answered."""
        wrong = [sorted(k for k in seen if seen[k] != state[k]) for state in self.allowed]
        assert [] in wrong, f"{self.what}, then {self.error!r}: {where} {min(wrong, key=len)} differ"

    async def run(self, plant: Callable[[FakeFilesystem, FakeIndex], None], cuts: Sequence[Cut]) -> None:
        """Do it and look; then start what these cuts leave, and flush the last of them."""
        self.stage.reset()
        hits = self.stage.origin.faults.hits
        filesystem, home = self.stage.filesystem.kill_clone(), FailingHome(self.stage.index.kill_clone())
        async with self.stage.engine(filesystem, home) as running:
            plant(filesystem, home.index)
            await self._do(running)
            self.stage.origin.faults.clear()
            self.has_struck = filesystem.heal() | home.index.heal()
            if self.is_at_origin:
                self.has_struck = self.stage.origin.faults.hits > hits
            if not self.deed.ends_engine:
                # After a failure with an unknown outcome it re-opens the directory by itself, which settles the outcome.
                await until(lambda: running.engine.status().is_writable, WRITABLE_S_MAX)
                seen = await self.stage.look(running, self._before)
                self.check(seen, "in the engine")
                self.settled = seen
                await self._write_later(running)
            left = {
                Cut.KILL: running.stop_uncleanly(),
                Cut.POWER: power_cut(filesystem, home.index, self.what),
            }
            at_origin = OriginState.of(self.stage.origin)
        for cut in cuts:
            self.stage.reset(at_origin)
            await self._restart(*left[cut], f"after {cut}", flushes=cut is cuts[-1])

    async def _do(self, running: RunningEngine) -> None:
        try:
            async with asyncio.timeout(20.0):
                await self.deed.act(running, self.stage)
        except (StorageError, TimeoutError) as error:
            self.error = error

    async def _write_later(self, running: RunningEngine) -> None:
        """A write after the failure is taken."""
        await running.put("later", b"later")
        self.later = True

    async def _restart(
        self, filesystem: FakeFilesystem, home: FakeIndexHome, where: str, *, flushes: bool
    ) -> None:
        async with self.stage.engine(filesystem, home) as running:
            seen = await self.stage.look(running, self._before)
            self.check(seen, where)
            later = await _read(running, "later")
            assert not self.later or later == b"later", f"{self.what}: {where} the next write is lost"
            if flushes:
                await self._finish(running, seen, where)

    async def _finish(self, running: RunningEngine, seen: State, where: str) -> None:
        if self.deed.ends_upload:
            # Again, or at last: the answer is the same, and the parts are all there.
            assert await self.stage.complete(running) == JOINED_ETAG
            seen["joined"] = b"".join(PARTS)
            assert await _read(running, "joined") == seen["joined"]
        await running.engine.retry_quarantined("", "")
        await flush(running)
        store = self.stage.origin.store
        at_origin = {key: store.body(BUCKET, key) for key in seen if key != UPLOAD}
        expected = {key: data for key, data in seen.items() if key != UPLOAD}
        assert at_origin == expected, f"{self.what}: {where}, then flushed"
        # One whose CreateMultipartUpload had no answer is there and nobody knows its id; it holds nothing.
        assert not any(upload.parts for upload in store.uploads.values()), f"{self.what}: {where} parts stay"


def cuts_of(nth: int) -> tuple[Cut, ...]:
    """Say what comes after the n-th failure: in the gate one cut, a kill each third time."""
    if IS_LONG:
        return (Cut.KILL, Cut.POWER)
    return (Cut.KILL if nth % 3 == 0 else Cut.POWER,)


def power_cut(
    filesystem: FakeFilesystem, index: FakeIndex, seed: str
) -> tuple[FakeFilesystem, FakeIndexHome]:
    """Give what a power cut leaves now."""
    draws = random.Random(seed)
    kept = draws.randint(0, index.batches_after_checkpoint)
    left = filesystem.crash_clone(draws, draws.choice([0.0, 0.5, 0.9]))
    return left, FakeIndexHome(index.clone_at(kept))


Plant = Callable[[FakeFilesystem, FakeIndex, int], None]
"""Lets the n-th call from now fail."""


async def fail_each(
    stage: Stage, deed: Deed, plant: Plant, what: str, *, is_at_origin: bool = False
) -> list[BaseException | None]:
    """Try with the n-th call failing, for n = 1, 2, 3 ... until none fails; give how the deed ended each time that one did."""
    errors: list[BaseException | None] = []
    for nth in range(1, CALLS_MAX):
        trial = Trial(stage, deed, f"{what}, call {nth}", is_at_origin)
        await trial.run(partial(_planted, plant, nth), cuts_of(nth))
        if not trial.has_struck:
            assert trial.error is None, f"{what}: nothing failed, and yet it ended with {trial.error!r}"
            return errors
        errors.append(trial.error)
    raise AssertionError(f"{what}: more than {CALLS_MAX} calls")


def _planted(plant: Plant, nth: int, filesystem: FakeFilesystem, index: FakeIndex) -> None:
    plant(filesystem, index, nth)


# --- starts --------------------------------------------------------------------------------------------------------------


async def fail_each_of_a_start(stage: Stage, plant: Plant, what: str, *, has_index: bool) -> int:
    """Start with the n-th call failing, for n = 1, 2, 3 ... until none fails; start again; give how many failed."""
    for nth in range(1, CALLS_MAX):
        stage.reset()
        filesystem, index = torn_clone(stage.filesystem), stage.index.kill_clone()
        home = FailingHome(index if has_index else FakeIndex())
        plant(filesystem, home.index, nth)
        where = f"{what}, call {nth} of a start"
        with suppress(StorageError):
            async with stage.engine(filesystem, home):
                pass
        left, left_home = power_cut(filesystem, home.index, where)
        has_struck = filesystem.heal() | home.index.heal()
        cuts = cuts_of(nth)
        if Cut.KILL in cuts:
            await _see(stage, filesystem, home, f"{where}, and once more")
        if Cut.POWER in cuts:
            await _see(stage, left, left_home, f"{where}, and a power cut")
        if not has_struck:
            return nth - 1
    raise AssertionError(f"{what}: more than {CALLS_MAX} calls")


async def _see(stage: Stage, filesystem: FakeFilesystem, home: FakeIndexHome, where: str) -> None:
    expected: State = {**CONTENT, UPLOAD: stage.etags}
    async with stage.engine(filesystem, home) as running:
        seen = await stage.look(running, expected)
        assert seen == expected, f"{where}: {sorted(k for k in seen if seen[k] != expected[k])} differ"


def torn_clone(filesystem: FakeFilesystem) -> FakeFilesystem:
    """Give a directory with half a frame at the journal's end, and an unfinished file: all that a start has to do."""
    left = filesystem.kill_clone()
    newest = max(left.list_directory("journal"))
    file = left.open(f"journal/{newest}")
    file.pwrite(file.size(), random.Random(3).randbytes(300))
    file.close()
    left.create(unfinished_path(1 << 40)).pwrite(0, b"begun")
    return left
