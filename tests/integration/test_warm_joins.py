"""Reads that meet warm-ups in a whole engine: who asks the origin, who joins whom, and at which priority."""

import asyncio
import gc
from functools import partial

import pytest

from storage.asks import Ask, Intent
from storage.errors import NotNeededError
from storage.fills import FillAtTurn
from storage.origin.limiter import Budget, Demand, LimiterSettings
from storage.policy import Freshness, Policy
from storage.readahead import ReadaheadSettings
from storage.types import MIB, ByteRange, ObjectName, Priority, RangeSpec
from storage.warm_jobs import WarmEntry, WarmKind, WarmRequest
from tests.fakes.origin_faults import Fault
from tests.fakes.paused_origin import Gate
from tests.fakes.running_engine import BUCKET, Got, RunningEngine, running_engine, until
from tests.fakes.warming import ended, fill_origin, names, under, warm


async def test_no_fill_is_there_to_be_joined_while_a_warm_up_waits_for_its_turn() -> None:
    """A reader that joined it would stand in the queue of the lowest priority."""
    async with running_engine(limits=LimiterSettings(concurrency_start=1, concurrency_max=1)) as running:
        fill_origin(running, 2)
        # Known, and its bytes are not.
        name = ObjectName(BUCKET, "data/k0001")
        opened = await running.engine.open_object(name, metadata_only=True)
        await opened.close()
        gate = running.origin.hold("GET", f"{BUCKET}/data/k0000")
        slow = asyncio.get_running_loop().create_task(running.get("data/k0000"))
        await gate.reached.wait()
        job = running.engine.warmer.start(WarmRequest(WarmKind.LIST))
        running.engine.warmer.feed(job.job_id, 0, names("data/k0001"), is_last=True)

        await until(lambda: running.engine._parts.limiter.waiting > 0)

        assert running.engine._components.supply.fill_at(opened.record, 0) is None
        gate.open()
        await slow
        assert (await ended(running, job.job_id)).results == {"brought": 1}


async def described(running: RunningEngine, key: str) -> None:
    """Have an object known, without its bytes."""
    opened = await running.engine.open_object(ObjectName(BUCKET, key), metadata_only=True)
    await opened.close()


def has_joined(running: RunningEngine) -> bool:
    """Whether a read waits for what a warm-up has asked for."""
    reader = running.engine._components.reader
    ahead = reader._others.get(("warm-up", False))
    questions = () if ahead is None else ahead._colds.flights._flights.values()
    fills = running.engine._components.supply._fills._tasks
    return any(one.waiters > 1 for one in questions) or any(fill.readers > 1 for fill in fills)


def demands(running: RunningEngine) -> list[Priority]:
    """Give the list of the priorities of all that will be asked of the limiter."""
    asked: list[Priority] = []
    gate = running.engine._parts.limiter._gate
    join = gate.join

    def listen(
        now_s: float,
        priority: Priority,
        bytes_hint: int,
        budget: Budget,
        *,
        bucket: str = "",
        client: str = "",
    ) -> Demand:
        asked.append(priority)
        return join(now_s, priority, bytes_hint, budget, bucket=bucket, client=client)

    gate.join = listen  # type: ignore[method-assign]  # to hear of each demand
    return asked


async def warm_up_at_the_origin(running: RunningEngine, key: str) -> tuple[int, Gate]:
    """Begin a warm-up of one object whose request is at the origin, held there; give its job and the gate."""
    gate = running.origin.hold("GET", f"{BUCKET}/{key}")
    job = running.engine.warmer.start(WarmRequest(WarmKind.LIST))
    running.engine.warmer.feed(job.job_id, 0, names(key), is_last=True)
    await gate.reached.wait()
    return job.job_id, gate


async def joining(running: RunningEngine, key: str) -> asyncio.Task[Got]:
    """Begin a read that joins what a warm-up has asked for."""
    reading = asyncio.get_running_loop().create_task(running.get(key))
    await until(partial(has_joined, running))
    return reading


KNOWN_OR_NOT = pytest.mark.parametrize("is_known", [True, False])


@KNOWN_OR_NOT
async def test_a_read_joins_a_warm_up_whose_request_is_at_the_origin(is_known: bool) -> None:
    """The origin is asked once, and the read waits for no turn."""
    async with running_engine() as running:
        fill_origin(running, 1)
        if is_known:
            await described(running, "data/k0000")
        job_id, gate = await warm_up_at_the_origin(running, "data/k0000")

        reading = await joining(running, "data/k0000")
        gate.open()
        got = await reading

        assert got.data == bytes(1000)
        assert (await ended(running, job_id)).results == {"brought": 1}
        assert running.origin.requests_of("GetObject") == 1


@KNOWN_OR_NOT
async def test_a_warm_up_asks_nothing_when_a_read_came_before_its_turn(is_known: bool) -> None:
    """What the read brings is what it waits for."""
    async with running_engine(limits=LimiterSettings(concurrency_start=4, concurrency_max=4)) as running:
        fill_origin(running, 4)
        if is_known:
            await described(running, "data/k0001")
        gates = [running.origin.hold("GET", f"{BUCKET}/data/k{number:04}") for number in range(4)]
        loop = asyncio.get_running_loop()
        slow = [loop.create_task(running.get(f"data/k{number:04}")) for number in (0, 2, 3)]
        for number in (0, 2, 3):
            await gates[number].reached.wait()
        job = running.engine.warmer.start(WarmRequest(WarmKind.LIST, concurrency=2))
        running.engine.warmer.feed(job.job_id, 0, names("data/k0001"), is_last=True)
        # The slot that is left is the foreground's.
        await until(lambda: running.engine._parts.limiter.waiting > 0)
        reading = loop.create_task(running.get("data/k0001"))
        await gates[1].reached.wait()

        for number in (0, 2, 3):
            gates[number].open()
        for read in slow:
            await read
        await until(lambda: running.engine._parts.limiter.waiting == 0)
        gates[1].open()

        assert (await reading).data == bytes([1]) * 1000
        report = await ended(running, job.job_id)
        assert report.results in ({"skipped": 1}, {"brought": 1})
        assert running.origin.requests_of("GetObject") == 4


@KNOWN_OR_NOT
async def test_a_read_that_joined_a_warm_up_asks_for_itself_when_that_fails(is_known: bool) -> None:
    """It does not wait for the next attempt in the line of the lowest priority, nor is it told of the failure."""
    async with running_engine() as running:
        fill_origin(running, 1)
        if is_known:
            await described(running, "data/k0000")
        running.origin.faults.add(Fault(operation="GetObject", status=500))
        asked = demands(running)
        job_id, gate = await warm_up_at_the_origin(running, "data/k0000")
        reading = await joining(running, "data/k0000")
        gate.open()

        assert (await reading).data == bytes(1000)
        report = await ended(running, job_id)
        assert report.results in ({"skipped": 1}, {"brought": 1})
        assert asked[:2] == [Priority.WARM_UP, Priority.FOREGROUND]


@KNOWN_OR_NOT
async def test_a_read_that_joined_a_warm_up_is_served_when_that_is_cancelled(is_known: bool) -> None:
    """The request goes on for who waits for it."""
    async with running_engine() as running:
        fill_origin(running, 1)
        if is_known:
            await described(running, "data/k0000")
        job_id, gate = await warm_up_at_the_origin(running, "data/k0000")
        reading = await joining(running, "data/k0000")

        await running.engine.warmer.cancel(job_id)
        gate.open()

        assert (await reading).data == bytes(1000)
        assert running.origin.requests_of("GetObject") == 1


@KNOWN_OR_NOT
async def test_a_read_that_joined_a_warm_up_is_served_when_its_connection_had_gone(is_known: bool) -> None:
    """The request is sent once more for who waits for it, in no line, whatever was read of the object meanwhile."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "data/big", bytes(3 * MIB))
        fill_origin(running, 1)
        await running.get("data/k0000")  # a connection is in the pool
        if is_known:
            await described(running, "data/big")
        asked = demands(running)
        gate = running.origin.hold("GET", f"{BUCKET}/data/big")
        running.origin.faults.add(Fault(operation="GetObject", drop="after"))
        job = running.engine.warmer.start(WarmRequest(WarmKind.LIST))
        running.engine.warmer.feed(job.job_id, 0, names("data/big"), is_last=True)
        await until(lambda: running.origin.requests_of("GetObject") == 2)
        reading = asyncio.get_running_loop().create_task(running.get("data/big"))
        await gate.reached.wait()
        await until(partial(has_joined, running))
        await running.get("data/big", RangeSpec(start=2 * MIB, stop=2 * MIB + 10))
        gate.open()

        assert (await reading).data == bytes(3 * MIB)
        await ended(running, job.job_id)
        assert asked.count(Priority.WARM_UP) == 1


BEHIND = RangeSpec(start=5 * MIB, stop=6 * MIB)


async def warm_up_behind_the_end(running: RunningEngine) -> tuple[int, Gate]:
    """Begin a warm-up of a range that the object does not have, its refusal held at the origin; give its job and the gate."""
    gate = running.origin.hold("GET", f"{BUCKET}/data/k0000")
    job = running.engine.warmer.start(WarmRequest(WarmKind.LIST))
    running.engine.warmer.feed(job.job_id, 0, [WarmEntry(BUCKET, "data/k0000", BEHIND)], is_last=True)
    await gate.reached.wait()
    return job.job_id, gate


async def test_a_read_that_joined_a_warm_up_of_a_range_behind_the_end_waits_in_no_line() -> None:
    """The HEAD that follows the refusal is the read's."""
    async with running_engine() as running:
        fill_origin(running, 1)
        asked = demands(running)
        job_id, gate = await warm_up_behind_the_end(running)
        reading = asyncio.get_running_loop().create_task(running.get("data/k0000", BEHIND))
        await until(partial(has_joined, running))
        gate.open()

        assert (await reading).data == b""
        await ended(running, job_id)
        assert asked == [Priority.WARM_UP, Priority.FOREGROUND]


async def test_a_read_does_not_join_a_warm_up_that_has_to_wait_once_more() -> None:
    """Where nobody waits for it, the HEAD that follows the refusal of a range is in the line of the lowest priority."""
    async with running_engine(limits=LimiterSettings(concurrency_start=4, concurrency_max=4)) as running:
        fill_origin(running, 4)
        asked = demands(running)
        job_id, refused = await warm_up_behind_the_end(running)
        gates = [running.origin.hold("GET", f"{BUCKET}/data/k{number:04}") for number in (1, 2, 3)]
        loop = asyncio.get_running_loop()
        slow = [loop.create_task(running.get(f"data/k{number:04}")) for number in (1, 2, 3)]
        for gate in gates:
            await gate.reached.wait()
        # Whichever HEAD comes first; the slot that is left is the foreground's.
        gates.append(running.origin.hold("HEAD", f"{BUCKET}/data/k0000"))
        refused.open()
        await until(lambda: asked.count(Priority.WARM_UP) == 2)
        before = len(asked)
        reading = loop.create_task(running.get("data/k0000", BEHIND))

        await until(lambda: asked[before:] == [Priority.FOREGROUND, Priority.FOREGROUND])

        for gate in gates:
            gate.open()
        assert (await reading).data == b""
        for read in slow:
            await read
        await ended(running, job_id)


async def test_a_warm_up_waits_for_a_fill_that_is_far_from_what_it_wants() -> None:
    """A reader so far ahead of a fill asks for itself; a warm-up has time, and asks the limiter for nothing."""
    async with running_engine(readahead=ReadaheadSettings(memory_bytes=0)) as running:
        running.origin.store.put(BUCKET, "data/big", bytes(48 * MIB))
        await described(running, "data/big")
        gate = running.origin.hold("GET", f"{BUCKET}/data/big")
        reading = asyncio.get_running_loop().create_task(running.get("data/big"))
        await gate.reached.wait()
        asked = demands(running)
        job = running.engine.warmer.start(WarmRequest(WarmKind.LIST))
        far = WarmEntry(BUCKET, "data/big", RangeSpec(start=32 * MIB, stop=33 * MIB))
        running.engine.warmer.feed(job.job_id, 0, [far], is_last=True)
        await until(partial(has_joined, running))
        gate.open()

        await reading
        assert (await ended(running, job.job_id)).results in ({"skipped": 1}, {"brought": 1})
        assert asked == []


async def test_nothing_is_left_of_requests_that_were_not_sent() -> None:
    """A fill whose turn came too late is forgotten, and no room of the cache with it."""
    async with running_engine() as running:
        fill_origin(running, 1)
        await described(running, "data/k0000")
        supply = running.engine._components.supply
        record = running.engine._components.holdings.record(ObjectName(BUCKET, "data/k0000"))
        assert record is not None
        used_bytes = running.engine._components.segments.used_bytes
        unwanted = supply.signed_by(supply._parts.origin, Ask(Intent.WARM_UP, lambda: False))
        for _ in range(20):
            fill = unwanted.start_at_turn(ObjectName(BUCKET, "data/k0000"), record, ByteRange(0, 1000))
            assert fill is not None
            fill.join()
            with pytest.raises(NotNeededError):
                await fill.wait_for(999)
            fill.leave()
            del fill
        await running.fills_ended()
        gc.collect()

        assert [one for one in gc.get_objects() if isinstance(one, FillAtTurn)] == []
        assert running.engine._components.segments.used_bytes == used_bytes
        assert running.origin.requests_of("GetObject") == 0


async def test_calls_of_a_warm_up_have_the_lowest_priority() -> None:
    """Listing, HEAD and GET, whatever priority a client's read would have."""
    async with running_engine(policy=Policy(freshness=Freshness(ttl_s=0.0))) as running:
        fill_origin(running, 1)
        running.origin.store.put(BUCKET, "data/known", b"x")
        opened = await running.engine.open_object(ObjectName(BUCKET, "data/known"), metadata_only=True)
        await opened.close()
        asked = demands(running)

        await warm(running, under())

        assert set(asked) == {Priority.WARM_UP}
        assert len(asked) == 4
