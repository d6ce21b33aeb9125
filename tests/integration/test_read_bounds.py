"""Reads under pressure: a cache that is smaller than what is read, and readers that are slower than the origin."""

import asyncio
import random
import tracemalloc
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from storage.bodies import VersionBody
from storage.errors import OverloadedError
from storage.filesystem import PosixFilesystem
from storage.readahead import ReadaheadSettings
from storage.types import GIB, MIB, ByteRange, CacheResult, ObjectName, RangeSpec
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine

OBJECT_BYTES = 3 * MIB + 77
OBJECTS = 40


def bytes_like(number: int) -> bytes:
    """Make the body of an object."""
    return random.Random(number).randbytes(OBJECT_BYTES)


def cache_bytes_on_disk(directory: Path) -> int:
    """Say how much the segments take on the disk."""
    used_bytes = 0
    for file in (directory / "segments").iterdir():
        with suppress(FileNotFoundError):
            used_bytes += file.stat().st_blocks * 512
    return used_bytes


async def test_readers_get_right_bytes_while_space_is_reclaimed_under_them(tmp_path: Path) -> None:
    """B53 and B52: 8 readers of 40 objects, three times the cache; no error, no wrong byte, and the limit holds."""
    cache_bytes = 40 * MIB
    objects = [bytes_like(number) for number in range(OBJECTS)]
    disk_bytes_max = 0
    results: Counter[CacheResult] = Counter()
    async with running_engine(filesystem=PosixFilesystem(str(tmp_path)), cache_bytes=cache_bytes) as running:
        for number, data in enumerate(objects):
            running.origin.store.put(BUCKET, f"key-{number}", data)

        async def read(seed: int) -> None:
            nonlocal disk_bytes_max
            draws = random.Random(seed)
            for _ in range(40):
                number = min(int(draws.expovariate(0.08)), OBJECTS - 1)
                start = draws.randrange(OBJECT_BYTES)
                wanted = draws.choice(
                    (None, RangeSpec(start=start), RangeSpec(start=start, stop=start + MIB))
                )
                span = ByteRange(0, OBJECT_BYTES) if wanted is None else wanted.resolve(OBJECT_BYTES)
                assert span is not None
                if draws.random() < 0.2:
                    opened = await running.engine.open_object(
                        ObjectName(BUCKET, f"key-{number}"), metadata_only=True
                    )
                    await opened.close()
                got = await running.get(f"key-{number}", wanted)
                results[got.result] += 1
                assert got.data == objects[number][span.start : span.stop]
                disk_bytes_max = max(disk_bytes_max, cache_bytes_on_disk(tmp_path))

        async with asyncio.TaskGroup() as group:
            for seed in range(8):
                group.create_task(read(seed))
        evicted_bytes = running.engine.stats.evicted_bytes["space"]
        used_bytes = running.engine._components.segments.used_bytes

        assert results[CacheResult.HIT] > 0
        # Eight readers pin most of so small a cache at times; then a read may find no room.
        # What the eviction policy turns away passes the cache too, and has nothing to do with room.
        assert results[CacheResult.BYPASS] - running.engine.stats.bypassed_fills < 32
        assert evicted_bytes > cache_bytes
        assert used_bytes <= cache_bytes
        assert disk_bytes_max <= cache_bytes


async def test_a_full_cache_makes_room_for_what_is_read_now() -> None:
    """Reads one after the other through more than the cache holds are kept each, not served past it."""
    async with running_engine(cache_bytes=32 * MIB) as running:
        for number in range(30):
            running.origin.store.put(BUCKET, f"key-{number}", bytes_like(number))

        results: Counter[CacheResult] = Counter()
        for number in range(30):
            got = await running.get(f"key-{number}")
            await running.fills_ended()
            again = await running.get(f"key-{number}")
            results[again.result] += 1

            assert got.data == again.data == bytes_like(number)
            assert got.result is CacheResult.MISS
        # Which segment goes is the policy's choice, and may now and then be the newest.
        assert results[CacheResult.HIT] > 20
        assert results[CacheResult.BYPASS] == 0


async def test_an_object_of_more_than_half_the_cache_is_served_past_it() -> None:
    """BYPASS: what would push everything else out is not kept, and what is cached stays."""
    async with running_engine(cache_bytes=32 * MIB) as running:
        long = random.Random(1).randbytes(20 * MIB)
        running.origin.store.put(BUCKET, "long", long)
        running.origin.store.put(BUCKET, "key", bytes_like(1))
        await running.get("key")
        await running.fills_ended()

        got = await running.get("long")
        kept = await running.get("key")

        assert (got.data, got.result) == (long, CacheResult.BYPASS)
        assert kept.result is CacheResult.HIT


async def test_a_cache_full_of_unflushed_bytes_serves_reads_past_itself() -> None:
    """B09: dirty bytes are never given up for a read; the read is streamed and costs no error."""
    async with running_engine(cache_bytes=16 * MIB, dirty_bytes_limit=16 * MIB) as running:
        running.origin.faults.add(Fault(operation="PutObject", status=500, times=-1))
        stored = 0
        try:
            while stored < 16:
                await running.put(f"dirty-{stored}", bytes_like(stored)[:MIB])
                stored += 1
        except OverloadedError:
            pass
        running.origin.store.put(BUCKET, "key", bytes_like(99))

        got = await running.get("key")

        assert got.data == bytes_like(99)
        for number in range(stored):
            assert (await running.get(f"dirty-{number}")).data == bytes_like(number)[:MIB]


@pytest.mark.slow
async def test_memory_does_not_grow_with_the_object_or_its_readers(tmp_path: Path) -> None:
    """B51: 256 MiB read by four readers, one of them stuck, within what readahead may take and some blocks a reader."""
    size = 256 * MIB
    readahead = ReadaheadSettings(memory_bytes=24 * MIB, piece_bytes=2 * MIB)

    async with running_engine(
        filesystem=PosixFilesystem(str(tmp_path)), cache_bytes=GIB, readahead=readahead
    ) as running:
        running.origin.store.put(BUCKET, "key", bytes(size))
        stuck = await open_body(running, size)
        await stuck.next_piece()
        tracemalloc.start()

        async def read_through() -> int:
            body = await open_body(running, size)
            read_bytes = 0
            while (piece := await body.next_piece()) is not None:
                read_bytes += len(piece) if isinstance(piece, bytes) else piece.length
            await body.close()
            return read_bytes

        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(read_through()) for _ in range(3)]
        await running.fills_ended()
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        await stuck.close()

        assert {read.result() for read in reads} == {size}
        # One more where a reader on a slow machine asks for a piece in the moment in which readahead begins it.
        pieces = size // readahead.piece_bytes
        assert pieces <= running.origin.requests["GetObject"] <= pieces + 1
        # The origin, which is in this process too, has a copy of each piece that it sends.
        copied_bytes = (readahead.pieces_max + 4) * readahead.piece_bytes
        assert peak_bytes < readahead.memory_bytes + copied_bytes + 24 * MIB


async def open_body(running: RunningEngine, size: int) -> VersionBody:
    """Open the object for a whole read."""
    opened = await running.engine.open_object(ObjectName(BUCKET, "key"))
    return opened.read(ByteRange(0, size))
