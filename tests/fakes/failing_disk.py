"""Engines whose disk fails: the ways to make it, and clients that try again."""

import asyncio
import threading
from collections.abc import Sequence
from functools import partial

from storage.errors import (
    DamagedError,
    DiskFailedError,
    EngineClosedError,
    OverloadedError,
    StorageError,
    UnknownOutcomeError,
)
from storage.family import Family, IndexWrite
from storage.flush_events import FlushSettings
from storage.types import ObjectName
from storage.upkeep import CHECKPOINT_EVERY_S
from tests.fakes.filesystem import Call, FakeFilesystem, Operation
from tests.fakes.index import FakeIndex
from tests.fakes.running_engine import (
    BUCKET,
    FakeIndexHome,
    PlainBuckets,
    RunningEngine,
    ShiftedClock,
    running_engine,
    until,
)

TINY = b"t" * 100
SMALL = b"s" * (200 * 1024)
LARGE = bytes(range(256)) * (12 * 1024)  # 3 MiB: synced as it streams
NAME = ObjectName(BUCKET, "key")

# An attempt of the life before may land for a time-out of the origin, and a drain waits for that.
engine_over = partial(
    running_engine,
    flush=FlushSettings(origin_timeout_s=0.1, retry_s_min=0.02, retry_s_max=0.1),
    questions=PlainBuckets(),
)


class QuickClock(ShiftedClock):
    """A clock whose waits of a second and more are remembered and take no time."""

    def __init__(self) -> None:
        super().__init__()
        self.waits_s: list[float] = []

    async def sleep(self, wait_s: float) -> None:
        """Wait, if it is short."""
        if wait_s >= 1.0:
            self.waits_s.append(wait_s)
        await super().sleep(min(wait_s, 0.02))


class QuickReopenings(ShiftedClock):
    """A clock on which the first attempts to re-open follow each other at once; what is done every five seconds is not."""

    async def sleep(self, wait_s: float) -> None:
        """Wait, or not."""
        await super().sleep(0.02 if 1.0 <= wait_s < CHECKPOINT_EVERY_S else wait_s)


class RefusingHome(FakeIndexHome):
    """An index home that the disk refuses to open while a test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.is_refused = False

    def open(self) -> FakeIndex:
        """Open the index, or not."""
        if self.is_refused:
            raise DiskFailedError("the index cannot be opened: on command")
        return super().open()


class BreakableIndex(FakeIndex):
    """An index with a row that cannot be read, once a test says so, and writes that wait for a test."""

    is_rotten = False
    is_rotten_in_scans = False
    held: threading.Event | None = None
    is_filling: threading.Event

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Read a row, or not."""
        if self.is_rotten and family is Family.OBJECTS and key.endswith(b"rotten"):
            raise DamagedError("index row cannot be read: Corruption")
        return super().get(family, key)

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Give rows, or not."""
        if self.is_rotten_in_scans:
            raise DamagedError("index row cannot be read: Corruption")
        return super().scan(family, start, stop, limit, reverse=reverse)

    def write(self, batch: Sequence[IndexWrite]) -> None:
        """Write a batch, once the test lets it."""
        if self.held is not None:
            self.is_filling.set()
            self.held.wait(20.0)
        super().write(batch)


class BreakableHome(FakeIndexHome):
    """An index home whose index a test breaks while it is open.

    Attributes:
        is_failing: All writes of what is opened from now on fail.
        held: While it is not set, writes of what is opened from now on wait, having set `is_filling`.
        destroyed: How often the index was thrown away since it was broken.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_failing = False
        self.held: threading.Event | None = None
        self.is_filling = threading.Event()
        self.destroyed = 0
        self._is_broken = False

    def open(self) -> FakeIndex:
        """Open what is left of the index."""
        opened = BreakableIndex()
        clone = self.left()
        opened._tables, opened._durable = clone._tables, clone._durable
        opened.is_rotten = isinstance(self.index, BreakableIndex) and self.index.is_rotten
        opened.held, opened.is_filling = self.held, self.is_filling
        if self.is_failing:
            opened.fail_write(is_persistent=True)
        self.index = opened
        return opened

    def left(self) -> FakeIndex:
        """Give the rows that opening finds."""
        return self.index.kill_clone()

    def destroy(self) -> None:
        """Begin an empty index."""
        self.destroyed += 1
        super().destroy()

    def break_index(self, *, is_failing: bool = True) -> None:
        """Break it, and let all writes of the next one fail."""
        self.is_failing = is_failing
        self.destroyed = 0

    def mend(self) -> None:
        """Let the next attempt succeed."""
        self.is_failing = False


class RottenHome(BreakableHome):
    """A row of the index is rotten; it stays so until the index is thrown away."""

    def break_index(self, *, is_failing: bool = True) -> None:
        """Break the row."""
        super().break_index(is_failing=is_failing)
        self.rot(scans=False)

    def rot(self, *, scans: bool) -> None:
        """Let the row not be read any more, or no rows that are gone through."""
        self.destroyed = 0
        assert isinstance(self.index, BreakableIndex)
        self.index.is_rotten, self.index.is_rotten_in_scans = not scans, scans


class RegressingHome(BreakableHome):
    """A write of the index fails; opened anew, it lacks all that was written since its last sync."""

    def left(self) -> FakeIndex:
        """Give the rows that a failed sync leaves at the least."""
        return self.index.checkpoint_clone()

    def break_index(self, *, is_failing: bool = True) -> None:
        """Fail the next write."""
        super().break_index(is_failing=is_failing)
        self.index.fail_write()


def in_journal(call: Call) -> bool:
    """Whether a call concerns the journal."""
    return call.path.startswith("journal")


def in_segments(call: Call) -> bool:
    """Whether a call concerns the segments."""
    return call.path.startswith("segments")


def fail_journal_sync(disk: FakeFilesystem, _home: FakeIndexHome) -> None:
    """Fail the next sync of the journal."""
    disk.fail(Operation.FDATASYNC, when=in_journal)


def fail_segment_sync(disk: FakeFilesystem, _home: FakeIndexHome) -> None:
    """Fail the next sync of a segment."""
    disk.fail(Operation.FDATASYNC, when=in_segments)


def fail_directory_sync(disk: FakeFilesystem, _home: FakeIndexHome) -> None:
    """Fail the next sync of the segments' names."""
    disk.fail(Operation.SYNC_DIRECTORY, when=in_segments)


def fail_index_write(_disk: FakeFilesystem, home: FakeIndexHome) -> None:
    """Fail the next write of the index."""
    home.index.fail_write()


def fail_cut_back(disk: FakeFilesystem, _home: FakeIndexHome) -> None:
    """Fail the next append to the journal in the middle, and undoing it too."""
    disk.fail(Operation.PWRITE, when=in_journal, written_share=0.5)
    disk.fail(Operation.TRUNCATE, when=in_journal)


async def put_until_acknowledged(running: RunningEngine, key: str, body: bytes) -> list[type[StorageError]]:
    """Put as a client that tries again; give what it was answered before."""
    refusals: list[type[StorageError]] = []
    async with asyncio.timeout(20):
        while True:
            try:
                await running.put(key, body)
            except (UnknownOutcomeError, OverloadedError, DiskFailedError, EngineClosedError) as error:
                refusals.append(type(error))
                await running.clock.sleep(0.005)
            else:
                return refusals


async def reopened(running: RunningEngine, times: int = 1) -> None:
    """Wait until the directory was re-opened so often."""
    await until(lambda: running.engine.stats.reopenings["done"] >= times)


async def drained(running: RunningEngine) -> None:
    """Wait until everything is at the origin."""
    report = running.engine.start_barrier("", "")
    report = await running.engine.wait_barrier(report.barrier_id, 20)
    assert report.is_reached, report


def at_origin(running: RunningEngine, key: str) -> bytes | None:
    """Give an object's bytes at the origin."""
    stored = running.origin.store.buckets[BUCKET].objects.get(key)
    return None if stored is None else stored.body
