"""What may still happen after a stop, a failed sync or a lost directory must not cost an acknowledged byte."""

import pytest

from storage.errors import DamagedError, UnknownOutcomeError
from storage.flush_events import FlushSettings
from storage.requests import PutRequest
from storage.types import MIB, ObjectName
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.origin_faults import Fault
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.running_engine import BytesContent, FakeIndexHome, RunningEngine, running_engine, until

NAME = ObjectName("bucket", "key")
FLUSH = FlushSettings(origin_timeout_s=1.0)


async def barrier(running: RunningEngine) -> bool:
    """Flush all; whether it got there."""
    begun = running.engine.start_barrier("bucket", "")
    return (await running.engine.wait_barrier(begun.barrier_id, 20.0)).is_reached


async def test_a_put_stays_when_an_attempt_from_before_a_stop_lands_late() -> None:
    """A stop that cuts a flush is not clean: the next process looks again before it calls a newer write flushed."""
    async with PausedOrigin() as origin:
        async with running_engine(origin=origin, flush=FLUSH) as before:
            origin.faults.add(Fault(operation="PutObject", key="bucket/key", delay_s=7.0))
            await before.put("key", b"old")
            await until(lambda: origin.in_flight > 0)
            filesystem, index_home = before.filesystem, before.index_home
        is_in_flight = origin.in_flight > 0

        async with running_engine(
            origin=origin,
            filesystem=filesystem,
            index_home=index_home,
            flush=FlushSettings(origin_timeout_s=4.0),
        ) as after:
            await after.put("key", b"new")
            is_reached = await barrier(after)

    assert is_in_flight
    assert is_reached
    assert origin.store.buckets["bucket"].objects["key"].body == b"new"


async def test_a_stop_waits_when_a_flush_is_about_to_end() -> None:
    """A flush under way ends within the grace, and the stop is a clean one."""
    async with PausedOrigin() as origin:
        async with running_engine(origin=origin, flush=FLUSH) as before:
            origin.faults.add(Fault(operation="PutObject", key="bucket/key", delay_s=0.5))
            await before.put("key", b"body")
            await until(lambda: origin.in_flight > 0)
            filesystem, index_home = before.filesystem, before.index_home

        async with running_engine(
            origin=origin, filesystem=filesystem, index_home=index_home, flush=FLUSH
        ) as after:
            is_unclean = after.engine._recovered.is_unclean

    assert not is_unclean


async def test_metadata_is_the_newest_when_an_older_attempt_with_the_same_bytes_lands_late() -> None:
    """A HEAD that shows our bytes under other headers is no proof: the newest state is sent again."""
    async with PausedOrigin() as origin, running_engine(origin=origin, flush=FLUSH, answer_s=0.3) as running:
        origin.faults.add(Fault(operation="PutObject", key="bucket/key", delay_s=0.9))
        old = PutRequest(NAME, headers=(("content-type", "text/old"),))
        await running.engine.put_object(old, BytesContent(b"same"))
        await until(lambda: origin.in_flight > 0)
        new = PutRequest(NAME, headers=(("content-type", "text/new"),))
        await running.engine.put_object(new, BytesContent(b"same"))

        is_reached = await barrier(running)

        stored = origin.store.buckets["bucket"].objects["key"]
    assert is_reached
    assert dict(stored.headers)["content-type"] == "text/new"


async def test_the_bodies_stay_when_the_sync_of_their_record_failed() -> None:
    """The record may read back at the next start, so nothing that it names goes before then."""
    filesystem = FakeFilesystem(seed=1)
    async with running_engine(cache_bytes=64 * MIB, filesystem=filesystem) as before:
        hold = before.origin.hold("PUT", "bucket/key")
        await before.put("key", b"1" * (3 * MIB))
        filesystem.fail(Operation.FDATASYNC, when=lambda call: call.path.startswith("journal"))
        with pytest.raises(UnknownOutcomeError):
            await before.put("key", b"2" * (5 * MIB))
        named = set(filesystem.list_directory("segments"))
        for _ in range(3):
            await before.engine._components.reclaim.round()
        hold.open()
        left = set(filesystem.list_directory("segments"))

    assert left == named


async def test_the_start_is_refused_when_the_journal_is_gone_beside_segments() -> None:
    """Segments without a journal may hold dirty bytes that nobody can name: they are not thrown away."""
    async with PausedOrigin() as origin:
        async with running_engine(origin=origin) as before:
            origin.faults.add(Fault(operation="PutObject", times=-1, status=503, code="SlowDown"))
            await before.put("key", b"1" * (3 * MIB))
            left, _ = before.stop_uncleanly()
        assert isinstance(left, FakeFilesystem)
        for name in left.list_directory("journal"):
            left.unlink(f"journal/{name}")

        with pytest.raises(DamagedError, match="fsck"):
            async with running_engine(origin=origin, filesystem=left, index_home=FakeIndexHome()):
                pass


async def test_deletes_go_through_when_the_disk_has_no_room_above_its_reserve() -> None:
    """Tombstones do not eat the reserve that flush confirmations need; the origin answers them instead."""
    filesystem = FakeFilesystem(disk_bytes_max=24 * MIB)
    async with running_engine(cache_bytes=8 * MIB, filesystem=filesystem, flush=FLUSH) as running:
        running.origin.store.put("bucket", "key", b"body")
        segments = running.engine._components.segments
        filesystem.disk_bytes_max -= segments.disk_room_bytes
        segments.sample_free_bytes()

        result = await running.engine.delete_object(NAME)

        assert result.code == ""
        assert "key" not in running.origin.store.buckets["bucket"].objects
        assert running.engine.status().pending_objects == 0
