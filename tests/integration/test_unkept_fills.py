"""What the eviction policy turns away is asked of the origin once for all who read it at the same time."""

import asyncio
import random
from collections.abc import AsyncIterator

import pytest

from storage.opened import Opened
from storage.types import BLOCK_BYTES, MIB, ByteRange, CacheResult, ObjectName
from storage.unkept import BYTES_MAX, UnkeptBudget
from tests.fakes.running_engine import BUCKET, RunningEngine, read_all, running_engine

NAME = ObjectName(BUCKET, "k")
READERS = 6


@pytest.fixture
async def running() -> AsyncIterator[RunningEngine]:
    """Run an engine whose policy keeps nothing."""
    async with running_engine(cache_bytes=64 * MIB) as running:
        policy = running.engine._components.supply._parts.eviction
        policy.admit = lambda *_use, **_room: None  # type: ignore[method-assign]
        yield running
        await running.fills_ended()
        assert budget(running).free_bytes == BYTES_MAX


def budget(running: RunningEngine) -> UnkeptBudget:
    """Give what bounds the memory."""
    return running.engine._components.supply._unkept


def put(running: RunningEngine, size: int) -> bytes:
    """Make the object at the origin."""
    data = random.Random(size).randbytes(size)
    running.origin.store.put(BUCKET, "k", data)
    return data


@pytest.mark.parametrize("size", [1, 120_000, BLOCK_BYTES, 3 * BLOCK_BYTES + 77])
@pytest.mark.parametrize("is_known", [False, True])
async def test_readers_of_a_moment_share_one_request(
    running: RunningEngine, size: int, *, is_known: bool
) -> None:
    """However many read an object that is not kept, cold or known, the origin gives it once; afterwards nothing of it is here."""
    data = put(running, size)
    if is_known:
        await (await running.engine.open_object(NAME, metadata_only=True)).close()
    async with asyncio.TaskGroup() as group:
        reads = [group.create_task(running.get("k")) for _ in range(READERS)]

    assert all(read.result().data == data for read in reads)
    assert running.origin.requests_of("GetObject") == 1
    assert CacheResult.BYPASS in {read.result().result for read in reads}

    again = await running.get("k")

    assert again.data == data
    assert again.result is CacheResult.BYPASS
    assert running.origin.requests_of("GetObject") == 2


async def opened(running: RunningEngine) -> Opened:
    """Open the object."""
    one = await running.engine.open_object(NAME)
    assert isinstance(one, Opened)
    return one


async def test_a_reader_that_falls_behind_asks_for_itself(running: RunningEngine) -> None:
    """A quick reader is held up by nobody, and a slow one gets all bytes."""
    data = put(running, 8 * BLOCK_BYTES)
    async with asyncio.TaskGroup() as group:
        opening = [group.create_task(opened(running)) for _ in range(2)]
    slow, quick = (one.result() for one in opening)
    slow_body, quick_body = slow.read(ByteRange(0, len(data))), quick.read(ByteRange(0, len(data)))
    await slow.close()
    await quick.close()
    first = await slow_body.next_piece()
    assert isinstance(first, bytes)

    assert await read_all(quick_body) == data
    assert first + await read_all(slow_body) == data
    assert running.origin.requests_of("GetObject") == 2


async def test_a_reader_two_blocks_behind_is_given_its_own_bytes(running: RunningEngine) -> None:
    """Of a window of blocks each reader takes from where it is, and no second request is made."""
    data = put(running, 3 * BLOCK_BYTES)
    async with asyncio.TaskGroup() as group:
        opening = [group.create_task(opened(running)) for _ in range(2)]
    bodies = [one.result().read(ByteRange(0, len(data))) for one in opening]
    for one in opening:
        await one.result().close()
    ahead, behind = bytearray(), bytearray()
    while len(ahead) <= 2 * BLOCK_BYTES:
        piece = await bodies[0].next_piece()
        assert isinstance(piece, bytes)
        ahead += piece

    while len(behind) < len(data):
        for body, got in zip(bodies, (ahead, behind), strict=True):
            if len(got) < len(data):
                piece = await body.next_piece()
                assert isinstance(piece, bytes)
                got.extend(piece)
    for body in bodies:
        await body.close()

    assert (bytes(ahead), bytes(behind)) == (data, data)
    assert running.origin.requests_of("GetObject") == 1


async def test_a_request_that_nobody_reads_ends(running: RunningEngine) -> None:
    """Its readers go before its end."""
    data = put(running, 8 * BLOCK_BYTES)
    body = (one := await opened(running)).read(ByteRange(0, len(data)))
    await one.close()
    await body.next_piece()
    await body.close()

    await running.fills_ended()

    assert budget(running).free_bytes == BYTES_MAX


async def test_without_memory_readers_stream_for_themselves(running: RunningEngine) -> None:
    """The bound holds, and all bytes come."""
    data = put(running, 2 * BLOCK_BYTES)
    taken = budget(running).take(ByteRange(0, BYTES_MAX))
    while (more := budget(running).take(ByteRange(0, MIB))) is not None:
        taken = (taken or 0) + more

    assert taken == BYTES_MAX
    async with asyncio.TaskGroup() as group:
        reads = [group.create_task(running.get("k")) for _ in range(2)]

    assert running.origin.requests_of("GetObject") >= 2
    assert [(r.result().data, r.result().result) for r in reads] == 2 * [(data, CacheResult.BYPASS)]
    budget(running).give_back(taken or 0)
