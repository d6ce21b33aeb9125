"""Engines whose disk fails: the ways to make it, and clients that try again."""

import asyncio
from functools import partial

from storage.errors import (
    DiskFailedError,
    EngineClosedError,
    OverloadedError,
    StorageError,
    UnknownOutcomeError,
)
from storage.flush_events import FlushSettings
from storage.types import ObjectName
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
