"""Reads through a whole engine: how often the origin is asked, what is given, what is kept. Faults are in the neighbouring files."""

import asyncio
import random

import pytest

from storage.errors import NoSuchKeyError
from storage.requests import FileSpan
from storage.types import MIB, ByteRange, CacheResult, ObjectName, RangeSpec
from tests.fakes.running_engine import BUCKET, bytes_of, read_all, running_engine, until

SIZE = 9 * MIB + 123
NAME = ObjectName(BUCKET, "key")


def bytes_like(size: int, seed: int = 1) -> bytes:
    """Make a body that no other seed makes."""
    return random.Random(seed).randbytes(size)


def edge_ranges(size: int, draws: random.Random) -> list[RangeSpec]:
    """Ranges of all three forms around the edges of blocks and of the object."""
    edges = [
        0,
        1,
        MIB - 1,
        MIB,
        MIB + 1,
        4 * MIB - 1,
        4 * MIB,
        5 * MIB + 7,
        9 * MIB - 1,
        9 * MIB,
        size - 1,
        size,
    ]
    specs = [RangeSpec(start=e, stop=e + length) for e in edges for length in (1, MIB, 3 * MIB + 5)]
    specs += [RangeSpec(start=e) for e in (*edges, size + 1, size + 5 * MIB)]
    specs += [RangeSpec(suffix=length) for length in (0, 1, 122, 123, 124, MIB, 5 * MIB, size, size + 1)]
    specs += [
        RangeSpec(start=start, stop=start + 1 + draws.randrange(size))
        for start in draws.sample(range(size), 10)
    ]
    draws.shuffle(specs)
    return specs


def at_of(piece: bytes | FileSpan, start: int, stop: int) -> bytes:
    """Read some bytes of a piece."""
    if isinstance(piece, bytes):
        return piece[start:stop]
    return piece.file.pread(piece.offset + start, stop - start)


async def test_one_get_of_a_cold_object_is_one_origin_request_and_the_next_one_is_none() -> None:
    """A cold GET costs one GetObject and no HEAD; what it brought serves the next."""
    async with running_engine() as running:
        data = bytes_like(SIZE)
        running.origin.store.put(BUCKET, "key", data)

        first = await running.get("key")
        await running.fills_ended()
        second = await running.get("key")

        assert (first.data, first.result) == (data, CacheResult.MISS)
        assert (second.data, second.result) == (data, CacheResult.HIT)
        assert running.origin.requests == {"GetObject": 1}
        assert running.engine.stats.cache_bytes == {"cache": SIZE, "origin": SIZE}


async def test_the_first_byte_leaves_before_the_last_arrives() -> None:
    """A reader gets what has arrived while the origin still holds back the rest."""
    async with running_engine() as running:
        data = bytes_like(SIZE)
        running.origin.store.put(BUCKET, "key", data)
        gate = running.origin.hold("GET", "bucket/key", after_bytes=300_000)

        opened = await running.engine.open_object(NAME)
        body = opened.read(ByteRange(0, SIZE))
        got = b""
        while len(got) < 300_000:
            got += bytes_of(await body.next_piece())
        is_held_back = gate.reached.is_set()
        gate.open()
        got += await read_all(body)

        assert is_held_back
        assert got == data


async def test_head_then_get_asks_once_each() -> None:
    """A HEAD's answer makes the version that the GET then only has to fill, if it is still that version."""
    async with running_engine() as running:
        data = bytes_like(SIZE)
        running.origin.store.put(BUCKET, "key", data)

        opened = await running.engine.open_object(NAME, metadata_only=True)
        await opened.close()
        got = await running.get("key")

        assert (opened.record.size, opened.result) == (SIZE, CacheResult.MISS)
        assert (got.data, got.opened, got.result) == (data, CacheResult.HIT, CacheResult.MISS)
        assert running.origin.requests == {"HeadObject": 1, "GetObject": 1}
        assert running.origin.log[-1].headers["if-match"] == f'"{got.etag}"'


async def test_an_empty_object_is_kept_too() -> None:
    """An object without bytes is known after one request."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", b"")

        first, second = await running.get("key"), await running.get("key")

        assert first.data == second.data == b""
        assert running.origin.requests == {"GetObject": 1}


@pytest.mark.parametrize("size", [0, 10, SIZE])
async def test_a_range_behind_the_end_of_a_cold_object_still_tells_the_size(size: int) -> None:
    """The caller of a range that cannot be satisfied learns the metadata that its 416 needs."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", bytes_like(size))
        wanted = RangeSpec(start=size + 3 * MIB, stop=size + 4 * MIB)

        opened = await running.engine.open_object(NAME, wanted)
        await opened.close()

        assert opened.record.size == size
        assert wanted.resolve(opened.record.size) is None


async def test_an_object_that_is_not_there_is_asked_for_each_time() -> None:
    """A 404 is not kept, so an object that appears is seen at once."""
    async with running_engine() as running:
        with pytest.raises(NoSuchKeyError):
            await running.get("key")
        running.origin.store.put(BUCKET, "key", b"now")

        got = await running.get("key")

        assert got.data == b"now"


@pytest.mark.parametrize("state", ["cold", "partly cached", "warm"])
async def test_ranges_over_all_edges_give_the_bytes_asked_for(state: str) -> None:
    """B16: every range, whatever is cached, gives exactly its bytes, twelve at a time."""
    data = bytes_like(SIZE)
    draws = random.Random(7)
    specs = edge_ranges(SIZE, draws)
    assert 60 <= len(specs) <= 80
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", data)
        if state == "warm":
            await running.get("key")
        if state == "partly cached":
            for block in (1, 4, 5):
                await running.get("key", RangeSpec(start=block * MIB + 5, stop=block * MIB + 6))
        slots = asyncio.Semaphore(12)

        async def check(spec: RangeSpec) -> None:
            async with slots:
                got = await running.get("key", spec)
            span = spec.resolve(SIZE)
            assert got.data == (b"" if span is None else data[span.start : span.stop]), f"{state}: {spec}"

        async with asyncio.TaskGroup() as group:
            for spec in specs:
                group.create_task(check(spec))
        await running.fills_ended()
        whole = await running.get("key")

        assert (whole.data, whole.result) == (data, CacheResult.HIT)


async def test_ranges_of_a_cold_object_each_alone_give_the_bytes_asked_for() -> None:
    """A range of an object that nobody knows is asked for in whole blocks and given exactly."""
    data = bytes_like(SIZE)
    async with running_engine() as running:
        for number, spec in enumerate(edge_ranges(SIZE, random.Random(3))[:24]):
            running.origin.store.put(BUCKET, f"key-{number}", data)

            got = await running.get(f"key-{number}", spec)

            span = spec.resolve(SIZE)
            assert got.data == (b"" if span is None else data[span.start : span.stop]), f"{spec}"


async def test_a_read_of_partly_cached_bytes_asks_for_the_missing_ones_only() -> None:
    """PARTIAL: neighbouring missing blocks come as one ranged GET, under If-Match."""
    async with running_engine() as running:
        data = bytes_like(SIZE)
        running.origin.store.put(BUCKET, "key", data)
        await running.get("key", RangeSpec(start=4 * MIB, stop=5 * MIB))
        await running.fills_ended()

        got = await running.get("key")

        asked = [entry.range for entry in running.origin.log]
        assert (got.data, got.result) == (data, CacheResult.PARTIAL)
        assert asked == ["bytes=4194304-5242879", "bytes=0-4194303", f"bytes=5242880-{SIZE - 1}"]


async def test_fifty_readers_of_a_cold_object_cost_its_bytes_once() -> None:
    """B55: single flight, and every body is whole."""
    size = 32 * MIB
    data = memoryview(bytes_like(size))
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", bytes(data))

        async def read() -> int:
            opened = await running.engine.open_object(NAME)
            body = opened.read(ByteRange(0, size))
            at = 0
            while (piece := await body.next_piece()) is not None:
                length = len(piece) if isinstance(piece, bytes) else piece.length
                # The ends of a long run tell as much as all of it, and fifty bodies are long.
                for start, stop in ((0, min(length, 999)), (max(0, length - 999), length)):
                    assert at_of(piece, start, stop) == data[at + start : at + stop]
                at += length
            await body.close()
            return at

        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(read()) for _ in range(50)]

        assert {task.result() for task in reads} == {size}
        assert running.origin.requests == {"GetObject": 1}
        assert running.origin.bytes_out == size


async def test_readers_of_a_known_object_without_bytes_share_one_fill() -> None:
    """Single flight holds as well where the version is known and only its bytes are missing."""
    async with running_engine() as running:
        data = bytes_like(SIZE)
        running.origin.store.put(BUCKET, "key", data)
        await (await running.engine.open_object(NAME, metadata_only=True)).close()

        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(running.get("key")) for _ in range(20)]

        assert all(read.result().data == data for read in reads)
        assert running.origin.requests == {"HeadObject": 1, "GetObject": 1}


async def test_a_late_reader_joins_a_fill_in_progress() -> None:
    """Whoever comes while a fill is under way gets what has arrived and follows the rest."""
    async with running_engine() as running:
        data = bytes_like(SIZE)
        running.origin.store.put(BUCKET, "key", data)
        gate = running.origin.hold("GET", "bucket/key", after_bytes=5 * MIB)

        async with asyncio.TaskGroup() as group:
            early = group.create_task(running.get("key"))
            await gate.reached.wait()
            late = group.create_task(running.get("key"))
            await running.get("key", RangeSpec(start=0, stop=4 * MIB))
            gate.open()

        assert early.result().data == late.result().data == data
        assert late.result().result is CacheResult.PARTIAL
        assert running.origin.requests == {"GetObject": 1}


async def test_the_first_reader_may_go_while_others_read() -> None:
    """B55: a fill belongs to all who follow it, not to the one who came first."""
    async with running_engine() as running:
        data = bytes_like(SIZE)
        running.origin.store.put(BUCKET, "key", data)
        before_head = running.origin.hold("GET", "bucket/key")
        first = asyncio.get_running_loop().create_task(running.get("key"))
        await before_head.reached.wait()

        async with asyncio.TaskGroup() as group:
            others = [group.create_task(running.get("key")) for _ in range(5)]
            await until(
                lambda: (
                    repr(running.engine._components.reader._colds.flights)
                    == "<SingleFlight: 1 flights, 6 waiters>"
                )
            )
            first.cancel()
            before_head.open()

        assert all(read.result().data == data for read in others)
        assert first.cancelled()
        assert running.origin.requests == {"GetObject": 1}


async def test_a_fill_that_nobody_reads_ends_and_keeps_whole_blocks() -> None:
    """A client that goes away stops the origin's bytes soon; what came in whole blocks serves the next reader."""
    async with running_engine() as running:
        data = bytes_like(64 * MIB)
        running.origin.store.put(BUCKET, "key", data)
        gate = running.origin.hold("GET", "bucket/key", after_bytes=3 * MIB + 1000)
        opened = await running.engine.open_object(NAME)
        body = opened.read(ByteRange(0, len(data)))
        read_bytes = 0
        while read_bytes < 3 * MIB:
            read_bytes += len(bytes_of(await body.next_piece()))

        await body.close()
        gate.open()
        await running.fills_ended()
        asked = running.origin.requests["GetObject"]
        kept = await running.get("key", RangeSpec(start=0, stop=3 * MIB))

        assert (kept.data, kept.result) == (data[: 3 * MIB], CacheResult.HIT)
        assert running.origin.requests == {"GetObject": asked}


async def test_an_opened_object_that_is_not_read_leaves_its_fill() -> None:
    """Closing an open object without reading, as a 416 does, lets its fill end."""
    async with running_engine() as running:
        data = bytes_like(64 * MIB)
        running.origin.store.put(BUCKET, "key", data)
        gate = running.origin.hold("GET", "bucket/key", after_bytes=1000)

        opened = await running.engine.open_object(NAME)
        await opened.close()
        await opened.close()
        gate.open()
        await running.fills_ended()

        row = running.engine._components.holdings.record(NAME)
        assert row is not None
        assert sum(extent.stop - extent.start for extent in row.extents) == MIB


async def test_a_slow_reader_holds_no_origin_connection() -> None:
    """The fill runs at the origin's pace, and ends, however slowly its reader takes the bytes."""
    async with running_engine() as running:
        data = bytes_like(SIZE)
        running.origin.store.put(BUCKET, "key", data)
        opened = await running.engine.open_object(NAME)
        body = opened.read(ByteRange(0, SIZE))
        got = bytes_of(await body.next_piece())

        await running.fills_ended()
        await until(lambda: running.origin.in_flight == 0)
        got += await read_all(body)

        assert got == data


async def test_a_reader_far_ahead_of_a_fill_asks_for_itself() -> None:
    """A range in the middle of a long object that is being filled does not wait for all that lies before it."""
    async with running_engine() as running:
        data = bytes_like(40 * MIB)
        running.origin.store.put(BUCKET, "key", data)
        gate = running.origin.hold("GET", "bucket/key", after_bytes=MIB)
        async with asyncio.TaskGroup() as group:
            whole = group.create_task(running.get("key"))
            await gate.reached.wait()

            ahead = await running.get("key", RangeSpec(start=30 * MIB, stop=31 * MIB))

            gate.open()

        assert ahead.data == data[30 * MIB : 31 * MIB]
        assert whole.result().data == data


async def test_a_put_is_read_back_without_the_origin() -> None:
    """What the gateway acknowledged is served from here, before and after the flush."""
    async with running_engine() as running:
        data = bytes_like(3 * MIB)
        await running.put("key", data)

        got = await running.get("key")

        assert (got.data, got.result) == (data, CacheResult.HIT)
        assert running.origin.requests["GetObject"] == 0
        assert running.origin.requests["HeadObject"] == 0
