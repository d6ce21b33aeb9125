"""The scrub finds what rotted under a running engine: clean bytes become a miss, dirty ones an alarm, and no wrong byte is served."""

import logging

import pytest

from storage import keys
from storage.errors import DirtyBytesLostError
from storage.family import Family, IndexWrite
from storage.scrubber import Scrubber, ScrubParts
from storage.segments import segment_path
from storage.types import MIB
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.origin_faults import Fault
from tests.fakes.rotting import location_of, rot
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine, until
from tests.fakes.set_clock import SetClock

BYTES_PER_S = 64 * MIB


def scrubber_of(running: RunningEngine, clock: SetClock) -> Scrubber:
    """Make a scrub of its own over a running engine."""
    components, parts = running.engine._components, running.engine._parts
    return Scrubber(
        ScrubParts(
            index=running.engine._recovered.index,
            segments=components.segments,
            applier=components.applier,
            origin=running.client,
            state=components.state,
            workers=parts.workers.pool,
            clock=clock,
            stats=parts.stats,
            bytes_per_s=BYTES_PER_S,
        )
    )


async def whole_round(running: RunningEngine, clock: SetClock, scrubber: Scrubber) -> None:
    """Take turns until a round is done."""
    rounds = running.engine.stats.scrub_rounds
    clock.now_s += 600.0
    for _ in range(100):
        clock.now_s += 0.25
        await scrubber.turn()
        if running.engine.stats.scrub_rounds > rounds:
            return
    raise AssertionError("the round does not end")


async def sealed(running: RunningEngine) -> None:
    """Write and fill so much that the segments before are sealed."""
    await running.put("filler", bytes(3 * MIB))
    running.origin.store.put(BUCKET, "filler-clean", bytes(3 * MIB))
    await running.get("filler-clean")
    await running.fills_ended()


async def test_a_round_reads_all_and_finds_nothing_when_all_is_well() -> None:
    """Dirty and clean bytes in sealed segments are read once a round, and nothing is marked or dropped."""
    clock = SetClock()
    async with running_engine() as running:
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=503, code="SlowDown"))
        running.origin.store.put(BUCKET, "clean", b"c" * MIB)
        await running.get("clean")
        await running.put("dirty", b"d" * MIB)
        await sealed(running)
        scrubber = scrubber_of(running, clock)

        await whole_round(running, clock, scrubber)
        first = running.engine.stats.scrub_bytes
        await whole_round(running, clock, scrubber)

        stats = running.engine.stats
        assert first >= 2 * MIB
        assert stats.scrub_bytes == 2 * first
        assert stats.scrub_damaged == {"clean": 0, "dirty": 0}
        assert running.engine.status().scrub_done_at_s == clock.now_s
        assert (await running.get("clean")).result.value == "HIT"


async def test_rotten_clean_bytes_are_dropped_and_never_served() -> None:
    """Though this process wrote them and would serve them unread, the next read is a miss with the right bytes."""
    clock = SetClock()
    async with running_engine() as running:
        body = bytes(range(256)) * 4096
        running.origin.store.put(BUCKET, "clean", body)
        await running.get("clean")
        await sealed(running)
        rot(running, location_of(running, "clean"), 100)

        await whole_round(running, clock, scrubber_of(running, clock))

        assert running.engine.stats.scrub_damaged == {"clean": 1, "dirty": 0}
        got = await running.get("clean")
        assert (got.data, got.result.value) == (body, "MISS")


async def test_rotten_dirty_bytes_raise_an_alarm_once_and_are_neither_served_nor_flushed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The object is named, with what the origin says of it; reads fail, and the origin never gets the bytes."""
    clock = SetClock()
    async with running_engine() as running:
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=503, code="SlowDown"))
        await running.put("dirty", b"d" * MIB)
        await sealed(running)
        rot(running, location_of(running, "dirty"), 5)
        scrubber = scrubber_of(running, clock)

        await whole_round(running, clock, scrubber)
        await whole_round(running, clock, scrubber)

        alarms = [r.getMessage() for r in caplog.records if r.levelno == logging.CRITICAL]
        assert (
            len([text for text in alarms if f"dirty bytes of s3://{BUCKET}/dirty are damaged" in text]) == 1
        )
        assert any("the origin does not have the object" in text for text in alarms)
        assert running.engine.stats.scrub_damaged["dirty"] == 1
        with pytest.raises(DirtyBytesLostError):
            await running.get("dirty")
        running.origin.faults.clear()
        await until(lambda: "filler" in running.origin.store.buckets[BUCKET].objects, 30)
        assert "dirty" not in running.origin.store.buckets[BUCKET].objects


async def test_the_alarm_says_so_when_the_origin_has_the_same_bytes(caplog: pytest.LogCaptureFixture) -> None:
    """The flush arrived and its confirmation did not: nothing is lost."""
    clock = SetClock()
    async with running_engine() as running:
        running.origin.faults.add(Fault(operation="PutObject", times=-1, status=503, code="SlowDown"))
        await running.put("dirty", b"d" * MIB)
        await sealed(running)
        running.origin.store.put(BUCKET, "dirty", b"d" * MIB)
        rot(running, location_of(running, "dirty"), 5)

        await whole_round(running, clock, scrubber_of(running, clock))

    assert "the origin has the same bytes (ETag " in caplog.text


async def test_a_missing_segment_is_found_by_the_scrub() -> None:
    """Its clean bytes are dropped, before anybody asks for them."""
    clock = SetClock()
    async with running_engine() as before:
        before.origin.store.put(BUCKET, "clean", b"c" * MIB)
        await before.get("clean")
        await before.fills_ended()
        place = location_of(before, "clean")
        filesystem, index_home = before.filesystem, before.index_home
    filesystem.unlink(segment_path(place.segment_id))
    async with running_engine(filesystem=filesystem, index_home=index_home) as running:
        await whole_round(running, clock, scrubber_of(running, clock))

        assert running.engine.stats.scrub_damaged == {"clean": 1, "dirty": 0}


async def test_a_segment_that_takes_in_bytes_is_left_alone() -> None:
    """It is read once it is sealed."""
    clock = SetClock()
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "clean", b"c" * MIB)
        await running.get("clean")
        await running.fills_ended()
        rot(running, location_of(running, "clean"), 5)

        await whole_round(running, clock, scrubber_of(running, clock))

        assert running.engine.stats.scrub_bytes == 0


async def test_a_block_that_reads_right_the_second_time_is_not_damaged() -> None:
    """A read that failed once says nothing of the bytes."""
    clock = SetClock()
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "clean", b"c" * MIB)
        await running.get("clean")
        await sealed(running)
        disk = running.filesystem
        assert isinstance(disk, FakeFilesystem)
        disk.fail(Operation.PREAD)

        await whole_round(running, clock, scrubber_of(running, clock))

        assert running.engine.stats.scrub_damaged == {"clean": 0, "dirty": 0}


async def test_turns_keep_to_the_pace() -> None:
    """In one second of turns no more is read than the setting says, and a block."""
    clock = SetClock()
    async with running_engine() as running:
        for number in range(4):
            running.origin.store.put(BUCKET, f"clean-{number}", bytes(3 * MIB))
            await running.get(f"clean-{number}")
        await running.fills_ended()
        scrubber = scrubber_of(running, clock)
        scrubber._pace = type(scrubber._pace)(2 * MIB, clock.now_s)
        await scrubber.turn()
        for _ in range(8):
            clock.now_s += 0.125
            await scrubber.turn()

        assert MIB <= running.engine.stats.scrub_bytes <= 3 * MIB


async def test_a_row_that_means_nothing_ends_the_round_and_no_more(caplog: pytest.LogCaptureFixture) -> None:
    """It is told of once; the engine begins the index anew, and the scrub goes on over that."""
    clock = SetClock()
    async with running_engine() as running:
        rotten = IndexWrite(Family.RESIDENTS, keys.resident_key(7, 0), b"\xc1")
        running.engine._recovered.index.write([rotten])
        scrubber = scrubber_of(running, clock)

        with caplog.at_level(logging.CRITICAL):
            while "the index is damaged" not in caplog.text:
                clock.now_s += 600.0
                await scrubber.turn()
            await until(lambda: running.engine.stats.reopenings["done"] == 1)
            await whole_round(running, clock, scrubber_of(running, clock))

        assert caplog.text.count("the index is damaged") == 1
        assert running.engine.status().is_writable
