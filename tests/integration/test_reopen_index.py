"""A directory that is re-opened with an index that failed, regressed or is damaged: nothing that it lacks is told meanwhile."""

import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from storage.errors import DamagedError, OverloadedError, StorageError, UnknownOutcomeError
from storage.listing import ListQuery
from storage.policy import Policy
from storage.requests import UploadRequest
from storage.types import ObjectName
from tests.fakes.failing_disk import (
    NAME,
    SMALL,
    TINY,
    BreakableHome,
    QuickReopenings,
    RegressingHome,
    RottenHome,
    engine_over,
    fail_journal_sync,
    reopened,
)
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.index import FakeIndex
from tests.fakes.running_engine import BUCKET, FakeIndexHome, RunningEngine, until

NEWER = b"acknowledged, newer than the origin's"
ONLY_HERE = b"acknowledged, and nowhere else"


async def fill(running: RunningEngine) -> None:
    """Acknowledge what the origin has an older state of, and what it has not; nothing is flushed."""
    running.use(Policy(flush_delay_s=3600.0))
    running.origin.store.put(BUCKET, "rotten", SMALL)
    running.origin.store.put(BUCKET, "dirty", b"superseded")
    await running.put("dirty", NEWER)
    await running.put("only-here", ONLY_HERE)


async def assert_nothing_is_told(running: RunningEngine, upload_id: str) -> None:
    """Check that all that the index would have to say is refused rather than told wrongly."""
    engine = running.engine
    for key in ("dirty", "only-here"):
        with pytest.raises(OverloadedError):
            await running.get(key)
        with pytest.raises(OverloadedError):
            engine.acknowledged_of(ObjectName(BUCKET, key))
    with pytest.raises(OverloadedError):
        await engine.list_objects(ListQuery(BUCKET))
    with pytest.raises(OverloadedError):
        await engine.list_parts(NAME, upload_id, part_marker=0, max_parts=10)
    with pytest.raises(OverloadedError):
        await engine.list_uploads(
            BUCKET, prefix="", delimiter="", key_marker="", upload_id_marker="", max_uploads=10
        )
    for is_quarantined in (False, True):
        with pytest.raises(OverloadedError):
            engine.pending("", "", 10, is_quarantined=is_quarantined)
    with pytest.raises(OverloadedError):
        engine.acknowledged(BUCKET, "")


@pytest.mark.parametrize("home_type", [RottenHome, RegressingHome])
async def test_nothing_is_told_of_an_index_that_is_not_filled(home_type: type[BreakableHome]) -> None:
    """Between two attempts, the first cut short in its replay, dirty keys and lists answer 503, not the origin's older state."""
    disk, home = FakeFilesystem(seed=21), home_type()
    async with engine_over(filesystem=disk, index_home=home, clock=QuickReopenings()) as running:
        await fill(running)
        upload_id, _ = await running.engine.create_upload(UploadRequest(NAME))
        home.break_index()

        await meet_failure(running)
        await until(lambda: running.engine.stats.reopenings["failed"] >= 1)
        await assert_nothing_is_told(running, upload_id)
        home.mend()
        await reopened(running)

        assert (await running.get("dirty")).data == NEWER
        assert (await running.get("only-here")).data == ONLY_HERE
        listed = await running.engine.list_objects(ListQuery(BUCKET))
        assert {"dirty", "only-here", "rotten"} <= {one.key for one in listed.entries}


async def meet_failure(running: RunningEngine) -> None:
    """Read what has the engine meet the failure of its index: a rotten row, or the write of what was filled."""
    with suppress(StorageError):
        await running.get("rotten")
    await until(lambda: not running.engine.status().is_writable)


async def test_nothing_is_told_while_an_index_is_filled() -> None:
    """A listing asked for while recovery fills an empty index answers 503, not what is in it so far."""
    disk, home = FakeFilesystem(seed=21), RottenHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        await fill(running)
        home.held = threading.Event()
        home.break_index(is_failing=False)
        try:
            await meet_failure(running)
            await until(home.is_filling.is_set)

            with pytest.raises(OverloadedError):
                await running.engine.list_objects(ListQuery(BUCKET))
        finally:
            home.held.set()
        await reopened(running)

        listed = await running.engine.list_objects(ListQuery(BUCKET))
        assert [one.key for one in listed.entries] == ["dirty", "only-here", "rotten"]


@pytest.mark.parametrize("fail", [FakeIndex.fail_write, FakeIndex.fail_checkpoint])
async def test_an_index_that_fails_under_recovery_is_opened_anew(fail: Callable[[FakeIndex], None]) -> None:
    """It takes no write any more, as RocksDB's; the next attempt opens it again, though the life before did not see it fail."""
    disk, home = FakeFilesystem(seed=23), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home, clock=QuickReopenings()) as running:
        await fill(running)
        fail_journal_sync(disk, home)
        fail(home.index)

        with pytest.raises(UnknownOutcomeError):
            await running.put("x", TINY)
        await reopened(running)
        await running.put("after", TINY)

        assert running.engine.stats.reopenings["failed"] == 1
        assert (await running.get("dirty")).data == NEWER


class UnsyncedHome(RegressingHome):
    """What is opened takes writes, and no sync."""

    def open(self) -> FakeIndex:
        """Open it."""
        opened = super().open()
        if self.is_failing:
            opened.heal()
            opened.fail_checkpoint(is_persistent=True)
        return opened


async def test_attempts_that_the_index_refuses_leave_no_journal_files() -> None:
    """However long the index takes no sync: nothing compacts the journal meanwhile."""
    disk, home = FakeFilesystem(seed=25), UnsyncedHome()
    async with engine_over(filesystem=disk, index_home=home, clock=QuickReopenings()) as running:
        await fill(running)
        home.break_index()
        await meet_failure(running)
        before = disk.list_directory("journal")
        await until(lambda: running.engine.stats.reopenings["failed"] >= 3)

        assert disk.list_directory("journal") == before


@pytest.mark.parametrize("home_type", [RottenHome, RegressingHome])
async def test_a_reopening_refuses_a_journal_that_lacks_what_was_acknowledged(
    home_type: type[BreakableHome],
) -> None:
    """A last frame that rotted is no torn tail when the process knows that it was acknowledged, whatever the index can tell."""
    disk, home = FakeFilesystem(seed=22), home_type()
    async with engine_over(filesystem=disk, index_home=home, clock=QuickReopenings()) as running:
        await fill(running)
        rot_last_frame(disk)
        home.break_index(is_failing=False)

        await meet_failure(running)
        await until(lambda: running.engine.stats.reopenings["failed"] >= 2)
        status = running.engine.status()

        assert running.engine.stats.reopenings["done"] == 0
        assert not status.is_writable
        assert "was acknowledged" in status.failure
        assert ONLY_HERE[:-1] in rotten_tail(disk)
        # The index is the other witness, for a start that knows nothing: it is not thrown away before the journal is settled.
        assert home.destroyed == 0


async def list_all(running: RunningEngine) -> None:
    """Go through a listing."""
    await running.engine.list_objects(ListQuery(BUCKET))


async def list_uploads(running: RunningEngine) -> None:
    """Go through the open uploads, in a thread."""
    await running.engine.list_uploads(
        BUCKET, prefix="", delimiter="", key_marker="", upload_id_marker="", max_uploads=10
    )


async def ask_for_acknowledged(running: RunningEngine) -> None:
    """Ask for what was acknowledged of a key."""
    running.engine.acknowledged_of(ObjectName(BUCKET, "rotten"))


@pytest.mark.parametrize("read", [list_all, list_uploads, ask_for_acknowledged])
async def test_damage_is_seen_whoever_meets_it(read: Callable[[RunningEngine], Awaitable[None]]) -> None:
    """A listing or a question of an operator that meets a row that cannot be read has the index begun anew, as a GET does."""
    disk, home = FakeFilesystem(seed=24), RottenHome()
    async with engine_over(filesystem=disk, index_home=home, clock=QuickReopenings()) as running:
        await fill(running)
        await running.engine.create_upload(UploadRequest(NAME))
        home.rot(scans=read is not ask_for_acknowledged)

        with pytest.raises(DamagedError):
            await read(running)
        await reopened(running)

        await read(running)
        assert home.destroyed == 1
        assert (await running.get("dirty")).data == NEWER


def last_journal(disk: FakeFilesystem) -> str:
    """Name the journal file in use."""
    return "journal/" + max(disk.list_directory("journal"))


def rot_last_frame(disk: FakeFilesystem) -> None:
    """Flip a bit of the last acknowledged body."""
    path = last_journal(disk)
    data = bytearray(disk.contents(path))
    data[data.rindex(ONLY_HERE) + len(ONLY_HERE) - 1] ^= 1
    disk.replace_contents(path, data)


def rotten_tail(disk: FakeFilesystem) -> bytes:
    """Give the end of the journal as it lies on the disk."""
    return disk.contents(last_journal(disk))
