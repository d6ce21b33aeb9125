"""What the reader decides about questions to the origin; what becomes of the answers is in tests/integration/test_read_*."""

import asyncio
import base64
import random
import threading
import zlib
from collections.abc import Sequence

import pytest

from storage.errors import NoSuchKeyError, OriginUnavailableError
from storage.family import Family, IndexWrite
from storage.origin_reads import whole_blocks
from storage.policy import Freshness, FreshnessMode, Policy
from storage.types import MIB, CacheResult, Checksum, ChecksumAlgorithm, ObjectName, RangeSpec
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, FakeIndexHome, RunningEngine, running_engine, until

NAME = ObjectName(BUCKET, "key")
ALWAYS = Policy(freshness=Freshness(FreshnessMode.ALWAYS))
DATA = random.Random(1).randbytes(2 * MIB + 5)
CRC32 = base64.b64encode(zlib.crc32(DATA).to_bytes(4)).decode()


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        (None, None),
        (RangeSpec(start=0), None),
        (RangeSpec(start=MIB - 1), None),
        (RangeSpec(start=MIB), RangeSpec(start=MIB)),
        (RangeSpec(start=2 * MIB + 5), RangeSpec(start=2 * MIB)),
        (RangeSpec(start=0, stop=1), RangeSpec(start=0, stop=MIB)),
        (RangeSpec(start=MIB - 1, stop=MIB + 1), RangeSpec(start=0, stop=2 * MIB)),
        (RangeSpec(start=5, stop=MIB), RangeSpec(start=0, stop=MIB)),
    ],
)
def test_a_cold_read_asks_for_whole_blocks(wanted: RangeSpec | None, asked: RangeSpec | None) -> None:
    """The range of the first request takes in what is wanted and no more blocks than that touches."""
    assert whole_blocks(wanted) == asked


async def test_a_made_up_range_does_not_charge_the_budget() -> None:
    """A client that asks for bytes up to far behind the end costs the byte budget what came, not what it said."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        hints: list[int] = []
        admit = running.client._caller._limiter.admit

        def noted(priority: object, bytes_hint: int = 0, *rest: object, **named: object) -> object:
            hints.append(bytes_hint)
            return admit(priority, bytes_hint, *rest, **named)  # type: ignore[arg-type]  # passed on as it came

        running.client._caller._limiter.admit = noted  # type: ignore[method-assign,assignment]  # a wiretap

        got = await running.get("key", RangeSpec(start=5, stop=1 << 60))

        assert got.data == DATA[5:]
        assert hints == [0]


async def test_the_age_of_a_version_counts_from_the_question() -> None:
    """An answer that took long is as old as its question (RFC 9111 section 4.2.3)."""
    async with running_engine(policy=Policy(freshness=Freshness(ttl_s=60.0))) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        gate = running.origin.hold("GET", "bucket/key")
        async with asyncio.TaskGroup() as group:
            group.create_task(running.get("key"))
            await gate.reached.wait()
            running.clock.ahead_s = 50.0
            gate.open()
        running.clock.ahead_s = 61.0

        got = await running.get("key")

        assert got.reason == "validated"


async def hold_head(running: RunningEngine) -> None:
    """Answer the next HEAD with what is true now, once another question has been asked."""
    gate = running.origin.hold("HEAD", "bucket/key")
    await gate.reached.wait()
    running.origin.store.put(BUCKET, "key", b"newer")
    late = await running.get("key")
    gate.open()

    assert late.data == b"newer"


async def test_always_proves_nothing_by_a_question_asked_before_the_read() -> None:
    """Two reads of a known version: the one that began after an outside write sees it, though a HEAD was under way."""
    async with running_engine(policy=ALWAYS) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        await running.get("key")
        await running.fills_ended()

        async with asyncio.TaskGroup() as group:
            held = group.create_task(hold_head(running))
            await until(lambda: bool(running.origin._gates))
            early = group.create_task(running.get("key"))

        assert held.done()
        assert early.result().data in {DATA, b"newer"}


async def test_always_validates_what_a_cold_read_under_way_brought() -> None:
    """Who joins the first read of an object asks for itself whether that answer still holds."""
    async with running_engine(policy=ALWAYS) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        gate = running.origin.hold("GET", "bucket/key")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(running.get("key"))
            await gate.reached.wait()
            running.origin.store.put(BUCKET, "key", b"newer")
            late = group.create_task(running.get("key"))
            await until(lambda: "2 waiters" in repr(running.engine._components.reader._colds))
            gate.open()

        assert first.result().data == DATA
        assert late.result().data == b"newer"


async def test_a_read_between_a_cold_read_and_its_fill_shares_the_fill() -> None:
    """The row shows before the loop knows that it is written; who reads it then does not ask the origin again."""
    index_home = FakeIndexHome()
    async with running_engine(index_home=index_home) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        write, may_return = index_home.index.write, threading.Event()

        def held_write(batch: Sequence[IndexWrite]) -> None:
            write(batch)
            may_return.wait(10.0)

        index_home.index.write = held_write  # type: ignore[method-assign]  # written, and not told yet
        async with asyncio.TaskGroup() as group:
            first = group.create_task(running.get("key"))
            await until(lambda: running.engine._components.holdings.record(NAME) is not None)
            second = group.create_task(running.get("key"))
            await until(lambda: "2 waiters" in repr(running.engine._components.reader._colds))
            may_return.set()

        assert first.result().data == second.result().data == DATA
        assert running.origin.requests == {"GetObject": 1}


async def test_equal_cold_heads_are_asked_once() -> None:
    """Many HEADs of an unknown object at the same time are one request."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)

        async def head() -> int:
            opened = await running.engine.open_object(NAME, metadata_only=True)
            await opened.close()
            return opened.record.size

        async with asyncio.TaskGroup() as group:
            heads = [group.create_task(head()) for _ in range(10)]

        assert {task.result() for task in heads} == {len(DATA)}
        assert running.origin.requests == {"HeadObject": 1}


async def test_a_failure_is_shared_by_those_who_wait_and_not_kept() -> None:
    """One question fails all its readers; the next reader asks anew."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.faults.add(Fault(operation="GetObject", status=500, times=4))

        async def fails() -> bool:
            with pytest.raises(OriginUnavailableError):
                await running.get("key")
            return True

        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(fails()) for _ in range(5)]
        got = await running.get("key")

        assert all(task.result() for task in reads)
        assert got.data == DATA
        assert running.origin.requests == {"GetObject": 5}


async def test_a_reader_alone_is_given_what_was_acknowledged_though_the_origin_is_behind() -> None:
    """The origin is not asked of a dirty key: its answer may come after the flush, and be of before it."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", b"before")
        gate = running.origin.hold("PUT", "bucket/key")
        await running.put("key", b"acknowledged")

        opened = await running.engine._components.reader._open_alone(NAME, None)
        await opened.close()
        gate.open()

        assert opened.record.size == len(b"acknowledged")
        assert running.origin.requests["HeadObject"] == 0


async def test_a_reader_alone_is_told_of_a_delete_though_the_origin_still_has_the_object() -> None:
    """An acknowledged delete is the truth until its flush is confirmed."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", b"before")
        gate = running.origin.hold("POST", "*")
        alone = running.origin.hold("DELETE", "bucket/key")
        await running.engine.delete_object(NAME)

        with pytest.raises(NoSuchKeyError):
            await running.engine._components.reader._open_alone(NAME, None)
        gate.open()
        alone.open()

        assert running.origin.requests["HeadObject"] == 0


async def test_a_reader_alone_looks_again_where_a_change_was_applied_between_its_reads() -> None:
    """No row, and then the overlay of a put: the row is there by now, and the origin may still show what was deleted."""
    index_home = FakeIndexHome()
    async with running_engine(index_home=index_home) as running:
        gate = running.origin.hold("PUT", "bucket/key")
        await running.put("key", b"acknowledged")
        index = index_home.index
        get, is_early = index.get, [True]

        def early(family: Family, key: bytes, /) -> bytes | None:
            if family is Family.OBJECTS and is_early and is_early.pop():
                return None
            return get(family, key)

        index.get = early  # type: ignore[method-assign]  # the first read comes before the put is applied

        opened = await running.engine._components.reader._open_alone(NAME, None)
        await opened.close()
        gate.open()

        assert opened.record.size == len(b"acknowledged")
        assert running.origin.requests["HeadObject"] == 0


async def test_no_question_is_asked_of_a_key_that_became_dirty_before_it_was_sent() -> None:
    """What the origin says of a dirty key is not believed, also where the flush ends before the answer comes."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", b"before")
        await running.get("key")
        reader = running.engine._components.reader
        known = reader._holdings.record(NAME)
        assert known is not None
        gate = running.origin.hold("PUT", "bucket/key")
        await running.put("key", b"acknowledged")
        asked = dict(running.origin.requests)

        told = [
            await reader._reads.describe(NAME),
            await reader._reads.read(NAME, None),
            await reader._reads.validate(NAME, known, is_covered=False),
        ]
        since = dict(running.origin.requests)
        gate.open()

        assert told == [None, None, None]
        assert since | {"PutObject": 1} == asked | {"PutObject": 1}


async def test_a_version_first_seen_by_a_range_learns_its_checksums_when_it_is_validated() -> None:
    """The answer to a range shows none; the HEAD of the next validation does."""
    async with running_engine(policy=Policy(freshness=Freshness(ttl_s=60.0))) as running:
        running.origin.store.put(BUCKET, "key", DATA, **{"x-amz-checksum-crc32": CRC32})
        await running.get("key", RangeSpec(start=0, stop=5))
        opened = await running.engine.open_object(NAME, metadata_only=True)
        await opened.close()
        running.clock.ahead_s = 61.0

        validated = await running.engine.open_object(NAME, metadata_only=True)
        await validated.close()

        assert opened.record.checksums == ()
        assert validated.record.checksums == (Checksum(ChecksumAlgorithm.CRC32, CRC32),)


@pytest.mark.parametrize(("ahead_s", "times"), [(61.0, 1), (5000.0, 4)])
async def test_an_origin_that_is_down_is_asked_once_where_the_version_may_cover_for_it(
    ahead_s: float, times: int
) -> None:
    """A reader that can be served does not wait for repetitions; one that cannot has them."""
    policy = Policy(freshness=Freshness(ttl_s=60.0, stale_s=3600.0))
    async with running_engine(policy=policy) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        await running.get("key")
        await running.fills_ended()
        running.origin.faults.add(Fault(operation="HeadObject", status=500, times=-1))
        running.clock.ahead_s = ahead_s

        failure = await _failure(running)

        assert failure == ("" if times == 1 else "OriginUnavailableError")
        assert running.origin.requests["HeadObject"] == times


async def test_a_validation_that_cannot_be_written_down_still_serves() -> None:
    """The origin confirmed the version; that the index takes no writes is no reason to refuse it."""
    index_home = FakeIndexHome()
    async with running_engine(index_home=index_home) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        await running.get("key")
        await running.fills_ended()
        running.clock.ahead_s = 61.0
        index_home.index.fail_write()

        got = await running.get("key")

        assert (got.data, got.result, got.reason) == (DATA, CacheResult.HIT, "validated")


async def test_reading_an_opened_object_twice_plans_it_twice() -> None:
    """Each body pins what it reads; none takes the other's pins away."""
    async with running_engine() as running:
        await running.put("key", DATA)
        opened = await running.engine.open_object(NAME)
        whole = RangeSpec(start=0).resolve(len(DATA))
        assert whole is not None

        first, second = opened.read(whole), opened.read(whole)
        await first.close()
        await opened.close()
        piece = await second.next_piece()
        await second.close()

        assert piece is not None
        assert all(state.pins == 0 for state in running.engine._components.segments.states())


@pytest.mark.slow
async def test_an_object_that_is_opened_and_closed_holds_nothing() -> None:
    """HEAD pins nothing past its end."""
    async with running_engine() as running:
        await running.put("key", DATA)

        opened = await running.engine.open_object(NAME, metadata_only=True)
        held = sum(state.pins for state in running.engine._components.segments.states())
        await opened.close()

        assert held == len({extent.location.segment_id for extent in opened.record.extents}) > 1
        assert all(state.pins == 0 for state in running.engine._components.segments.states())


async def test_after_the_close_nothing_is_begun() -> None:
    """A read that comes too late is refused; one under way ends with an error, not with a short body."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        gate = running.origin.hold("GET", "bucket/key", after_bytes=MIB)
        under_way = asyncio.get_running_loop().create_task(_failure(running))
        await gate.reached.wait()
        await until(lambda: running.engine._components.supply.fills_in_progress == 1)

        await running.engine.close()
        failure = await under_way
        late = await _failure(running)

        assert (failure, late) == ("EngineClosedError", "EngineClosedError")


async def _failure(running: RunningEngine) -> str:
    try:
        await running.get("key")
    except NoSuchKeyError:
        raise
    except Exception as error:  # noqa: BLE001 - which it is, is asserted
        return type(error).__name__
    return ""
