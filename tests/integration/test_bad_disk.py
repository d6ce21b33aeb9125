"""A disk that refuses bytes before a sync, and bytes that cannot be read back: known outcomes, alarms, misses."""

import errno
import logging
from collections.abc import Callable

import pytest

from storage.errors import (
    DirtyBytesLostError,
    DiskFailedError,
    OverloadedError,
    StorageError,
    UnknownOutcomeError,
)
from storage.policy import Policy
from storage.requests import UploadRequest
from storage.types import ObjectName
from tests.fakes.failing_disk import (
    LARGE,
    NAME,
    SMALL,
    TINY,
    QuickClock,
    at_origin,
    drained,
    engine_over,
    in_segments,
    put_until_acknowledged,
)
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.origin_faults import Fault
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.running_engine import (
    BUCKET,
    BytesContent,
    FakeIndexHome,
    until,
)

# --- Failures with a known outcome -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS])
@pytest.mark.parametrize("share", [0.0, 0.5])
@pytest.mark.parametrize("body", [TINY, SMALL])
async def test_writes_go_through_when_the_disk_refuses_bytes(number: int, share: float, body: bytes) -> None:
    """The write that meets the failure answers 503, those after it go through; once the disk is good they are local again."""
    disk, home = FakeFilesystem(seed=18), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        await running.put("warm", TINY)
        await drained(running)
        disk.fail(Operation.PWRITE, is_persistent=True, error_number=number, written_share=share)

        with pytest.raises(StorageError) as caught:
            await running.put("key", body)
        await running.put("through", body)
        sent = at_origin(running, "through")
        disk.heal()
        running.engine._components.writer._parts.inlet._bad_until_s = 0.0
        await running.put("key", body)

        assert (caught.value.retryable, isinstance(caught.value, UnknownOutcomeError)) == (True, False)
        assert sent == body
        assert (await running.get("key")).data == body
        assert running.engine.stats.reopenings["done"] == 0


async def test_a_file_system_that_turns_read_only_recovers_by_itself() -> None:
    """All changes are refused, the cutting back of an append among them: nothing is acknowledged locally, reads go on."""
    disk, home, clock = FakeFilesystem(seed=19), FakeIndexHome(), QuickClock()
    async with engine_over(filesystem=disk, index_home=home, clock=clock) as running:
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=500))
        await running.put("dirty", SMALL)
        disk.fail(is_persistent=True, error_number=errno.EROFS)

        for body in (TINY, SMALL, LARGE):
            with pytest.raises(StorageError):
                await running.put("key", body)
        with pytest.raises(StorageError):
            await running.engine.delete_object(ObjectName(BUCKET, "dirty"))
        dirty = (await running.get("dirty")).data
        disk.heal()
        await put_until_acknowledged(running, "key", SMALL)
        running.origin.faults.clear()
        await drained(running)

        assert dirty == SMALL
        assert (at_origin(running, "dirty"), at_origin(running, "key")) == (SMALL, SMALL)


async def test_parts_and_deletes_are_refused_or_go_through_while_the_disk_is_bad() -> None:
    """A part cannot go elsewhere: 503. A delete goes through once the disk is known to be bad."""
    disk, home = FakeFilesystem(seed=20), FakeIndexHome()
    async with engine_over(filesystem=disk, index_home=home) as running:
        running.origin.store.put(BUCKET, "gone", b"old")
        upload_id, _ = await running.engine.create_upload(UploadRequest(NAME))
        disk.fail(Operation.PWRITE, is_persistent=True)

        for _ in range(2):
            with pytest.raises((DiskFailedError, OverloadedError)):
                await running.engine.upload_part(NAME, upload_id, 1, BytesContent(SMALL))
        await running.engine.delete_object(ObjectName(BUCKET, "gone"))
        gone = at_origin(running, "gone")
        disk.heal()

        assert gone is None


# --- Dirty bytes that cannot be read ---------------------------------------------------------------------------------


def damage_segments(disk: FakeFilesystem) -> None:
    """Flip a bit in each segment."""
    for name in disk.list_directory("segments"):
        data = bytearray(disk.contents(f"segments/{name}"))
        data[1000] ^= 1
        disk.replace_contents(f"segments/{name}", data)


def truncate_segments(disk: FakeFilesystem) -> None:
    """Cut each segment short."""
    for name in disk.list_directory("segments"):
        disk.replace_contents(f"segments/{name}", disk.contents(f"segments/{name}")[:1000])


def remove_segments(disk: FakeFilesystem) -> None:
    """Lose each segment."""
    for name in disk.list_directory("segments"):
        disk.unlink(f"segments/{name}")


def refuse_reads(disk: FakeFilesystem) -> None:
    """Refuse to read any segment."""
    disk.fail(Operation.PREAD, is_persistent=True, when=in_segments)


async def dirty_directory(
    origin: PausedOrigin, older: bytes, newer: bytes
) -> tuple[FakeFilesystem, FakeIndexHome]:
    """Give the directory of a killed process, with an object of which the origin has an older version."""
    async with engine_over(origin=origin) as before:
        origin.store.put(BUCKET, "key", older)
        origin.faults.add(Fault(operation="PutObject", times=-1, status=500))
        await before.put("key", newer)
        return before.stop_uncleanly()


@pytest.mark.parametrize("harm", [damage_segments, truncate_segments, remove_segments, refuse_reads])
@pytest.mark.parametrize("is_read_first", [True, False])
async def test_dirty_bytes_that_cannot_be_read_are_an_alarm(
    harm: Callable[[FakeFilesystem], None], is_read_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The object is named, counted and shown, never served in an older version; a new write heals it."""
    async with PausedOrigin() as origin:
        left, index = await dirty_directory(origin, b"older", SMALL)
        harm(left)
        if not is_read_first:
            origin.faults.clear()
        async with engine_over(filesystem=left, index_home=index, origin=origin) as running:
            engine = running.engine
            if not is_read_first:
                await until(lambda: engine.status().quarantined != ())
            with caplog.at_level(logging.CRITICAL), pytest.raises(DirtyBytesLostError):
                await running.get("key")
            origin.faults.clear()
            await until(lambda: engine.status().quarantined != ())
            status, level = engine.status(), engine.stats.unreadable_dirty_objects
            older = at_origin(running, "key")
            left.heal()
            await running.put("key", b"healed")
            await drained(running)

            assert [name for name, _ in status.unreadable] == ["s3://bucket/key"]
            assert (level, engine.stats.unreadable_dirty_objects) == (1, 0)
            assert older == b"older"
            assert at_origin(running, "key") == b"healed"
            assert engine.status().unreadable == ()
    assert "s3://bucket/key" in caplog.text


@pytest.mark.parametrize(
    ("operation", "error_number", "times"),
    [
        (Operation.PREAD, errno.EIO, 3),
        (Operation.OPEN_READER, errno.EMFILE, 8),
        (Operation.OPEN_READER, errno.ENFILE, 8),
    ],
)
async def test_a_read_that_the_disk_refuses_for_a_while_costs_a_change_nothing(
    operation: Operation, error_number: int, times: int
) -> None:
    """A flush tries a refused read again before it says that bytes are lost; a lack of descriptors never says it."""
    async with PausedOrigin() as origin:
        left, index = await dirty_directory(origin, b"older", SMALL)
        # A start opens the segment once, to learn its size.
        nth = 2 if operation is Operation.OPEN_READER else 1
        for _ in range(times):
            left.fail(operation, nth=nth, error_number=error_number, when=in_segments)
        origin.faults.clear()
        async with engine_over(filesystem=left, index_home=index, origin=origin) as running:
            await until(lambda: at_origin(running, "key") == SMALL)
            status = running.engine.status()
            refused = left.failures_total

            assert refused == times
            assert (status.unreadable, status.quarantined) == ((), ())


@pytest.mark.parametrize("refusals", [1, 2])
async def test_a_client_s_read_is_made_once_more_before_the_alarm(refusals: int) -> None:
    """One refusal costs a dirty object nothing; two are an alarm."""
    held = Policy(flush_delay_s=3600.0)
    async with PausedOrigin() as origin:
        async with engine_over(origin=origin, policy=held) as before:
            await before.put("key", SMALL)
            left, index = before.stop_uncleanly()
        async with engine_over(filesystem=left, index_home=index, origin=origin, policy=held) as running:
            for _ in range(refusals):
                left.fail(Operation.PREAD, when=in_segments)

            if refusals == 1:
                assert (await running.get("key")).data == SMALL
            else:
                with pytest.raises(DirtyBytesLostError):
                    await running.get("key")

            assert left.failures_total == refusals
            assert len(running.engine.status().unreadable) == refusals - 1


async def test_a_read_raises_the_alarm_by_itself() -> None:
    """Whether or not the flush has met the object before."""
    async with PausedOrigin() as origin:
        left, index = await dirty_directory(origin, b"older", SMALL)
        damage_segments(left)
        async with engine_over(filesystem=left, index_home=index, origin=origin) as running:
            await until(lambda: running.engine.status().quarantined != ())
            running.engine._components.unreadable._reasons.clear()
            with pytest.raises(DirtyBytesLostError):
                await running.get("key")

            assert [name for name, _ in running.engine.status().unreadable] == ["s3://bucket/key"]


async def test_an_unreadable_object_is_known_again_after_a_start() -> None:
    """The alarm does not end with the process: the journal says why the change is quarantined."""
    async with PausedOrigin() as origin:
        left, index = await dirty_directory(origin, b"older", SMALL)
        damage_segments(left)
        origin.faults.clear()
        async with engine_over(filesystem=left, index_home=index, origin=origin) as second:
            await until(lambda: second.engine.status().quarantined != ())
            await second.put("other", TINY)
            again, index = second.stop_uncleanly()
        async with engine_over(filesystem=again, index_home=index, origin=origin) as third:
            assert third.engine.stats.unreadable_dirty_objects == 1


@pytest.mark.parametrize("harm", [damage_segments, truncate_segments, remove_segments])
async def test_clean_bytes_that_cannot_be_read_are_fetched_again(
    harm: Callable[[FakeFilesystem], None],
) -> None:
    """They are a miss, not an alarm."""
    async with engine_over(filesystem=FakeFilesystem()) as before:
        before.origin.store.put(BUCKET, "key", LARGE)
        await before.get("key")
        await before.fills_ended()
        left, index = before.stop_uncleanly()
        harm(left)
        async with engine_over(filesystem=left, index_home=index, origin=before.origin) as running:
            assert (await running.get("key")).data == LARGE
            assert running.engine.stats.unreadable_dirty_objects == 0
