"""A running engine whose disk fails: writes are refused until the directory was re-opened, and nothing acknowledged is lost."""

import asyncio
import os
from collections.abc import Callable

import pytest

from storage.errors import (
    DamagedError,
    NoSuchKeyError,
    OverloadedError,
    StorageError,
    UnknownOutcomeError,
)
from storage.listing import ListQuery
from storage.policy import Policy
from storage.requests import CompletedPart, PutRequest, UploadRequest
from storage.types import MIB, CacheResult, ObjectName, WriteMode
from tests.fakes.failing_disk import (
    LARGE,
    NAME,
    SMALL,
    TINY,
    QuickClock,
    QuickReopenings,
    RefusingHome,
    RottenHome,
    at_origin,
    drained,
    engine_over,
    fail_cut_back,
    fail_directory_sync,
    fail_index_write,
    fail_journal_sync,
    fail_segment_sync,
    put_until_acknowledged,
    reopened,
)
from tests.fakes.filesystem import CHANGING, FakeFilesystem, Operation
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import (
    BUCKET,
    BytesContent,
    FakeIndexHome,
    RunningEngine,
    until,
)

Failing = Callable[[FakeFilesystem, FakeIndexHome], None]

EVERY_FAILURE = pytest.mark.parametrize(
    ("fail", "body"),
    [
        (fail_journal_sync, TINY),
        (fail_journal_sync, SMALL),
        (fail_segment_sync, SMALL),
        (fail_segment_sync, LARGE),
        (fail_directory_sync, LARGE),
        (fail_index_write, TINY),
        (fail_index_write, SMALL),
        (fail_cut_back, TINY),
    ],
)


# --- What is acknowledged --------------------------------------------------------------------------------------------


@EVERY_FAILURE
async def test_writes_go_on_by_themselves_when_the_disk_failed_once(fail: Failing, body: bytes) -> None:
    """A failed sync or index write costs 503s; then writes are taken again, and all that was acknowledged reaches the origin."""
    disk, home = FakeFilesystem(seed=3), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=500))
        await running.put("before", body)
        await running.put("key", b"old")
        fail(disk, home)

        with pytest.raises(UnknownOutcomeError) as caught:
            await running.put("key", body)
        await reopened(running)
        after_failure = (await running.get("key")).data
        await running.put("after", body)

        assert caught.value.retry_after_s is not None
        assert after_failure in {b"old", body}
        assert (await running.get("before")).data == body
        status = running.engine.status()
        assert (status.is_writable, status.failure, status.reopenings) == (True, "", 1)
        running.origin.faults.clear()
        await drained(running)
        assert (at_origin(running, "before"), at_origin(running, "after")) == (body, body)
        assert at_origin(running, "key") == after_failure


@EVERY_FAILURE
async def test_a_client_that_tries_again_is_acknowledged_in_the_end(fail: Failing, body: bytes) -> None:
    """Many writers meet the failure at once; each is acknowledged after some 503s, and shows its last body, here and there."""
    disk, home = FakeFilesystem(seed=4), FakeIndexHome()
    clock = QuickClock()
    async with engine_over(filesystem=disk, index_home=home, clock=clock) as running:
        await running.put("warm", TINY)

        async def write(number: int) -> list[type[StorageError]]:
            refusals = []
            for turn in range(3):
                if number == turn == 1:
                    fail(disk, home)
                refusals += await put_until_acknowledged(
                    running, f"key-{number}", body + bytes([number, turn])
                )
            return refusals

        async with asyncio.TaskGroup() as writers:
            tasks = [writers.create_task(write(number)) for number in range(4)]
        refusals = [error for task in tasks for error in task.result()]
        shown = [(await running.get(f"key-{number}")).data for number in range(4)]
        await drained(running)

        assert UnknownOutcomeError in refusals
        assert shown == [body + bytes([number, 2]) for number in range(4)]
        assert [at_origin(running, f"key-{number}") for number in range(4)] == shown


async def test_what_was_acknowledged_survives_a_crash_right_after_a_reopening() -> None:
    """What the next life accepts of the journal is synced in a copy: a power cut then takes nothing of it."""
    disk, home = FakeFilesystem(seed=5), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=500))
        await running.put("before", TINY)
        fail_journal_sync(disk, home)
        with pytest.raises(UnknownOutcomeError):
            await running.put("key", SMALL)
        await reopened(running)
        shown = await shown_or_nothing(running, "key")
        await running.put("after", SMALL)
        left = disk.crash_clone(disk.draws, keep_probability=0.0)
        index = FakeIndexHome(home.index.checkpoint_clone())

        async with engine_over(filesystem=left, index_home=index, origin=running.origin) as started:
            assert (await started.get("before")).data == TINY
            assert (await started.get("after")).data == SMALL
            assert await shown_or_nothing(started, "key") == shown


async def shown_or_nothing(running: RunningEngine, key: str) -> bytes:
    """Read an object that may not be there."""
    try:
        return (await running.get(key)).data
    except NoSuchKeyError:
        return b""


async def test_a_delete_and_an_upload_go_on_over_a_reopening() -> None:
    """Parts and tombstones acknowledged before are there after it, and the upload's Complete works."""
    disk, home = FakeFilesystem(seed=6), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        running.origin.store.put(BUCKET, "gone", b"old")
        upload_id, _ = await running.engine.create_upload(UploadRequest(NAME))
        first = await running.engine.upload_part(NAME, upload_id, 1, BytesContent(b"1" * (5 * MIB)))
        await running.engine.delete_object(ObjectName(BUCKET, "gone"))
        fail_journal_sync(disk, home)
        with pytest.raises(UnknownOutcomeError):
            await running.engine.upload_part(NAME, upload_id, 2, BytesContent(b"2"))
        await reopened(running)

        second = await running.engine.upload_part(NAME, upload_id, 2, BytesContent(b"3"))
        parts = (CompletedPart(1, first.etag), CompletedPart(2, second.etag))
        await running.engine.complete_upload(NAME, upload_id, parts)
        shown = (await running.get("key")).data
        with pytest.raises(NoSuchKeyError):
            await running.get("gone")
        await drained(running)

        assert shown == b"1" * (5 * MIB) + b"3"
        assert (at_origin(running, "key"), at_origin(running, "gone")) == (shown, None)


async def test_a_failed_directory_fails_again_soon_after_a_reopening() -> None:
    """The second failure within a minute waits before it is re-opened, so that a bad disk is not re-opened all the time."""
    disk, home, clock = FakeFilesystem(seed=7), FakeIndexHome(), QuickClock()
    async with engine_over(filesystem=disk, index_home=home, clock=clock) as running:
        for turn in range(3):
            fail_journal_sync(disk, home)
            with pytest.raises(UnknownOutcomeError):
                await running.put("key", TINY)
            await reopened(running, turn + 1)
        await running.put("key", b"new")

        waits_s = [wait_s for wait_s in clock.waits_s if wait_s not in {1.0, 5.0, 10.0, 60.0}]
        assert (await running.get("key")).data == b"new"
        assert len(waits_s) == 2
        assert 1.0 <= waits_s[0] <= 2.0 <= waits_s[1] <= 4.0


# --- A disk that stays bad -------------------------------------------------------------------------------------------


async def test_reopening_is_tried_again_when_the_disk_stays_bad() -> None:
    """Attempts go on at growing intervals; writes answer 503, reads go on, status and counter say so; then all is well."""
    disk, home, clock = FakeFilesystem(seed=8), FakeIndexHome(), QuickClock()
    async with engine_over(filesystem=disk, index_home=home, clock=clock) as running:
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=500))
        running.origin.store.put(BUCKET, "cold", SMALL)
        await running.put("dirty", SMALL)
        disk.fail(Operation.FDATASYNC, is_persistent=True)

        with pytest.raises(UnknownOutcomeError):
            await running.put("key", TINY)
        await until(lambda: running.engine.stats.reopenings["failed"] >= 2)
        with pytest.raises(UnknownOutcomeError) as refused:
            await running.put("key", TINY)
        with pytest.raises(UnknownOutcomeError):
            await through(running, "key", TINY)
        dirty, cold = (await running.get("dirty")).data, (await running.get("cold")).data
        listed = await running.engine.list_objects(ListQuery(BUCKET))
        status = running.engine.status()
        disk.heal()
        await reopened(running)
        await running.put("key", b"new")
        shown = (await running.get("dirty")).data, (await running.get("key")).data
        running.origin.faults.clear()
        await drained(running)

        assert (dirty, cold) == (SMALL, SMALL)
        assert [one.key for one in listed.entries] == ["cold", "dirty"]
        assert not status.is_writable
        assert "re-opening failed" in status.failure
        assert refused.value.retry_after_s is not None
        assert 1.0 <= refused.value.retry_after_s <= 60.0
        assert shown == (SMALL, b"new")
        assert (at_origin(running, "dirty"), at_origin(running, "key")) == shown


async def through(running: RunningEngine, key: str, data: bytes) -> None:
    """Write an object through."""
    request = PutRequest(ObjectName(BUCKET, key), mode=WriteMode.THROUGH)
    await running.engine.put_object(request, BytesContent(data))


READING = frozenset(Operation) - CHANGING - {Operation.LOCK}
IS_LONG = bool(os.environ.get("FOREBAY_TEST_LONG"))


def fail_changing(disk: FakeFilesystem, _home: FakeIndexHome, nth: int) -> None:
    """Fail a call that changes the disk."""
    disk.fail(nth=nth)


def fail_reading(disk: FakeFilesystem, _home: FakeIndexHome, nth: int) -> None:
    """Fail a call that reads the disk."""
    disk.fail(*READING, nth=nth)


def fail_statvfs(disk: FakeFilesystem, _home: FakeIndexHome, nth: int) -> None:
    """Fail a question for the volume's size or room."""
    disk.fail(Operation.STATVFS, nth=nth)


def fail_writing_index(_disk: FakeFilesystem, home: FakeIndexHome, nth: int) -> None:
    """Fail a write of the index."""
    home.index.fail_write(nth)


def fail_syncing_index(_disk: FakeFilesystem, home: FakeIndexHome, nth: int) -> None:
    """Fail a sync of the index."""
    home.index.fail_checkpoint(nth)


@pytest.mark.parametrize(
    ("fail", "nth"),
    [
        *((fail_changing, nth) for nth in range(1, 30, 1 if IS_LONG else 4)),
        *((fail_reading, nth) for nth in range(1, 60, 1 if IS_LONG else 10)),
        *((fail_statvfs, nth) for nth in ((1, 2, 3) if IS_LONG else (1,))),
        *((fail_writing_index, nth) for nth in ((1, 2, 3) if IS_LONG else (1, 2))),
        *((fail_syncing_index, nth) for nth in ((1, 2) if IS_LONG else (1,))),
    ],
)
async def test_reopening_that_fails_anywhere_is_tried_again(
    fail: Callable[[FakeFilesystem, FakeIndexHome, int], None], nth: int
) -> None:
    """Whichever call of recovery the disk or the index refuses, the next attempt succeeds, and nothing acknowledged is lost."""
    disk, home, clock = FakeFilesystem(seed=nth), FakeIndexHome(), QuickReopenings()
    async with engine_over(filesystem=disk, index_home=home, clock=clock) as running:
        running.use(Policy(flush_delay_s=3600.0))
        await running.put("before", TINY)
        await running.put("large", LARGE)
        await running.put("key", b"old")
        fail_journal_sync(disk, home)
        with pytest.raises(UnknownOutcomeError):
            await running.put("key", b"new")
        fail(disk, home, nth)
        await reopened(running)
        disk.heal()
        refusals = await put_until_acknowledged(running, "after", SMALL)

        assert len(refusals) <= 20
        shown = (await running.get("key")).data
        assert shown in {b"old", b"new"}
        assert (await running.get("before")).data == TINY
        assert (await running.get("large")).data == LARGE
        await drained(running)
        assert [at_origin(running, key) for key in ("before", "large", "after")] == [TINY, LARGE, SMALL]
        assert at_origin(running, "key") == (await running.get("key")).data


async def test_reads_go_on_when_the_index_cannot_be_opened() -> None:
    """Without an index a clean key is asked of the origin; a dirty one answers 503, never the origin's older version."""
    disk, home, clock = FakeFilesystem(seed=9), RefusingHome(), QuickClock()
    async with engine_over(filesystem=disk, index_home=home, clock=clock) as running:
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=500))
        running.origin.store.put(BUCKET, "clean", SMALL)
        running.origin.store.put(BUCKET, "dirty", b"older")
        await running.get("clean")
        await running.put("dirty", b"newer")
        home.is_refused = True
        home.index.fail_write()

        with pytest.raises(UnknownOutcomeError):
            await running.put("key", TINY)
        await until(lambda: running.engine.stats.reopenings["failed"] >= 2)
        clean = await running.get("clean")
        with pytest.raises(OverloadedError):
            await running.get("dirty")
        status = running.engine.status()
        home.is_refused = False
        await reopened(running)

        assert (clean.data, clean.result) == (SMALL, CacheResult.BYPASS)
        assert not status.is_writable
        assert (await running.get("dirty")).data == b"newer"
        # The journal had been synced before the index failed.
        assert (await running.get("key")).data == TINY


async def test_the_engine_stops_while_the_disk_is_bad() -> None:
    """A stop between two attempts ends in order, and the next start finds what was acknowledged."""
    disk, home = FakeFilesystem(seed=10), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=500))
        origin_data = SMALL
        await running.put("dirty", origin_data)
        disk.fail(Operation.FDATASYNC, is_persistent=True)
        with pytest.raises(UnknownOutcomeError):
            await running.put("key", TINY)
        await until(lambda: running.engine.stats.reopenings["failed"] >= 1)
        await running.engine.close()
        disk.heal()

        async with engine_over(
            filesystem=disk, index_home=home, origin=running.origin, clock=QuickClock()
        ) as started:
            assert (await started.get("dirty")).data == origin_data
            assert started.engine._recovered.is_unclean


async def test_a_damaged_index_is_filled_anew_from_the_journal() -> None:
    """A row that cannot be read costs the clean cache and one answer; all that is dirty is there again."""
    disk, home = FakeFilesystem(seed=21), RottenHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=500))
        running.origin.store.put(BUCKET, "rotten", SMALL)
        await running.put("key", SMALL)
        upload_id, _ = await running.engine.create_upload(UploadRequest(NAME))
        home.break_index(is_failing=False)

        with pytest.raises(DamagedError):
            await running.get("rotten")
        await reopened(running)

        assert home.destroyed == 1
        assert (await running.get("rotten")).data == SMALL
        assert (await running.get("key")).data == SMALL
        await running.engine.abort_upload(NAME, upload_id)
        running.origin.faults.clear()
        await drained(running)
        assert at_origin(running, "key") == SMALL
