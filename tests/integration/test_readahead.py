"""Readahead through a whole engine: what the origin is asked for, at which time, and what a reader gets. Pieces are of one block here."""

import asyncio
import random
from dataclasses import replace

import pytest

from storage.ahead import Ahead
from storage.bodies import VersionBody
from storage.errors import ObjectChangedError, OriginUnavailableError
from storage.origin.limiter import LimiterSettings
from storage.readahead import ReadaheadSettings
from storage.types import MIB, ByteRange, CacheResult, ObjectName, RangeSpec
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, RunningEngine, bytes_of, read_all, running_engine, until

SIZE = 12 * MIB + 345
DATA = random.Random(4).randbytes(SIZE)
OTHER = random.Random(5).randbytes(SIZE)
NAME = ObjectName(BUCKET, "key")
SETTINGS = ReadaheadSettings(memory_bytes=12 * MIB, piece_bytes=MIB, window_bytes_max=6 * MIB)
OFF = ReadaheadSettings(memory_bytes=0)


async def opened_body(running: RunningEngine, key: str = "key", size: int = SIZE) -> VersionBody:
    """Open an object for a read of all of it."""
    opened = await running.engine.open_object(ObjectName(BUCKET, key))
    return opened.read(ByteRange(0, size))


async def read_some(body: VersionBody, length: int) -> bytes:
    """Read at least so many bytes, where there are."""
    data = b""
    while len(data) < length and (piece := await body.next_piece()) is not None:
        data += bytes_of(piece)
    return data


async def read_into(got: list[bytes], body: VersionBody) -> None:
    """Read to the end, and keep what came where that is not reached."""
    while (piece := await body.next_piece()) is not None:
        got.append(bytes_of(piece))


def ahead_of(running: RunningEngine) -> Ahead:
    """Give the engine's readahead."""
    ahead = running.engine._components.supply.body_parts.ahead
    assert ahead is not None
    return ahead


def ranges_asked(running: RunningEngine, size: int = SIZE) -> list[tuple[int, int]]:
    """Give the ranges that the origin was asked for, half-open, in the order of their beginning."""
    spans = [entry.range.removeprefix("bytes=").split("-") for entry in running.origin.log if entry.range]
    return sorted((int(first), int(last or size - 1) + 1) for first, last in spans)


def kept_bytes(running: RunningEngine) -> int:
    """Say how much of the object is cached."""
    row = running.engine._components.holdings.record(NAME)
    return 0 if row is None else sum(extent.stop - extent.start for extent in row.extents)


def assert_nothing_is_left(running: RunningEngine) -> None:
    """No piece, no reader, no pin."""
    ahead = ahead_of(running)
    assert (ahead.in_flight, ahead.courses) == (0, 0)
    assert sum(state.pins for state in running.engine._components.segments.states()) == 0


# --- Sequential readers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_known", [False, True])
async def test_one_get_of_a_large_object_has_several_requests_at_the_origin_and_each_byte_once(
    *, is_known: bool
) -> None:
    """In parallel, under If-Match, without overlap; what was asked for ahead of a read is no hit of it."""
    async with running_engine(readahead=SETTINGS) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.latency_s = 0.02
        if is_known:
            await (await running.engine.open_object(NAME, metadata_only=True)).close()

        got = await running.get("key")
        await running.fills_ended()
        asked, at_a_time = ranges_asked(running), running.origin.in_flight_max
        again = await running.get("key")

        assert (got.data, got.result) == (DATA, CacheResult.MISS)
        assert (again.data, again.result) == (DATA, CacheResult.HIT)
        assert 3 <= at_a_time <= 1 + SETTINGS.pieces_max
        assert asked == [
            (start, min(SIZE, start + MIB)) for start in range(0 if is_known else MIB, SIZE, MIB)
        ]
        assert {entry.headers.get("if-match") for entry in running.origin.log if entry.range} == {
            f'"{got.etag}"'
        }
        assert running.engine.stats.cache_bytes == {"cache": SIZE, "origin": SIZE}
        ahead_bytes = running.engine.stats.readahead_bytes
        assert ahead_bytes["begun"] == ahead_bytes["used"] >= SIZE // 3
        assert ahead_bytes["wasted"] == 0
        assert_nothing_is_left(running)


async def test_readahead_can_be_turned_off() -> None:
    """Without memory for it each read is one request, as long as it may be."""
    async with running_engine(readahead=OFF) as running:
        running.origin.store.put(BUCKET, "key", DATA)

        got = await running.get("key")
        running.origin.store.put(BUCKET, "other", DATA * 3)
        other = await running.get("other")

        assert (got.data, other.data) == (DATA, DATA * 3)
        assert running.origin.requests == {"GetObject": 2}


async def test_readers_of_one_object_share_the_pieces() -> None:
    """Whoever comes first begins a piece; no byte is asked for twice."""
    async with running_engine(readahead=SETTINGS) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.latency_s = 0.005

        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(running.get("key")) for _ in range(6)]

        assert all(read.result().data == DATA for read in reads)
        assert ranges_asked(running) == [(start, min(SIZE, start + MIB)) for start in range(MIB, SIZE, MIB)]
        assert_nothing_is_left(running)


async def test_all_readers_together_stay_within_the_bound() -> None:
    """Pieces ahead of all readers are counted together, and each reader has some."""
    async with running_engine(readahead=SETTINGS) as running:
        for number in range(5):
            running.origin.store.put(BUCKET, f"key-{number}", DATA)
            opened = await running.engine.open_object(ObjectName(BUCKET, f"key-{number}"), metadata_only=True)
            await opened.close()
        running.origin.latency_s = 0.01

        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(running.get(f"key-{number}")) for number in range(5)]

        assert all(read.result().data == DATA for read in reads)
        assert 5 < running.origin.in_flight_max <= 5 + SETTINGS.pieces_max
        assert_nothing_is_left(running)


async def test_successive_ranges_find_what_was_begun_ahead_of_them() -> None:
    """A client that reads in ranges of its own: after some of them the next ones are there, in requests of more than a range."""
    async with running_engine(readahead=SETTINGS) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        step = MIB // 2

        results = []
        for start in range(0, SIZE, step):
            got = await running.get("key", RangeSpec(start=start, stop=start + step))
            assert got.data == DATA[start : start + step]
            results.append(got.result)
            await running.fills_ended()

        assert results[-8:] == [CacheResult.HIT] * 8
        assert running.origin.requests["GetObject"] <= 13
        assert running.origin.bytes_out == SIZE
        assert (
            running.engine.stats.readahead_bytes["used"] == running.engine.stats.readahead_bytes["begun"] > 0
        )
        assert_nothing_is_left(running)


async def test_random_small_ranges_bring_their_blocks_and_nothing_else() -> None:
    """Footers, members, samples of a shard: no byte beyond the blocks that were asked for."""
    size = 40 * MIB
    data = DATA * 3 + DATA[: size - 3 * SIZE]
    draws = random.Random(11)
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", data)
        blocks = set()

        for _ in range(25):
            start = draws.randrange(size - 50_000)
            got = await running.get("key", RangeSpec(start=start, stop=start + 50_000))
            assert got.data == data[start : start + 50_000]
            blocks |= {start // MIB, (start + 49_999) // MIB}
        await running.fills_ended()

        assert running.origin.bytes_out == len(blocks) * MIB
        assert running.engine.stats.readahead_bytes["begun"] == 0


# --- Readers that go, or stand still -------------------------------------------------------------------------------------


async def test_a_reader_that_goes_leaves_nothing_behind() -> None:
    """What nobody wants is not begun, or given up before it is answered, or ended at its next block."""
    async with running_engine(readahead=SETTINGS) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.latency_s = 0.05
        body = await opened_body(running)
        data = await read_some(body, MIB // 4)

        await body.close()
        await running.fills_ended()
        asked = running.origin.requests["GetObject"]
        await until(lambda: running.origin.in_flight == 0)

        assert data == DATA[: len(data)]
        assert asked <= 4
        assert kept_bytes(running) <= MIB
        assert running.engine.stats.readahead_bytes["used"] == 0
        assert_nothing_is_left(running)


async def test_a_reader_that_goes_leaves_another_one_its_pieces() -> None:
    """Pieces belong to all who are coming to them."""
    async with running_engine(readahead=SETTINGS) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.latency_s = 0.02
        first, second = await opened_body(running), await opened_body(running)
        await read_some(first, MIB)
        beginning = await read_some(second, 1)

        await first.close()
        rest = await read_all(second)

        assert beginning + rest == DATA
        assert ranges_asked(running) == [(start, min(SIZE, start + MIB)) for start in range(MIB, SIZE, MIB)]
        assert_nothing_is_left(running)


async def test_nothing_is_begun_further_ahead_of_a_slow_reader_than_the_window() -> None:
    """A client that takes a byte and then nothing has some mebibytes brought, not the object."""
    async with running_engine(readahead=SETTINGS) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        body = await opened_body(running)
        data = await read_some(body, 1)

        await running.fills_ended()
        kept = kept_bytes(running)
        data += await read_all(body)

        assert MIB < kept <= SETTINGS.window_bytes_max
        assert data == DATA


async def test_a_reader_does_not_wait_in_the_line_of_what_is_only_likely() -> None:
    """Where the limiter lets only the foreground through, a reader asks for itself for what it has come to."""
    limits = LimiterSettings(concurrency_start=4, concurrency_max=4)
    async with running_engine(readahead=SETTINGS, limits=limits) as running:
        gates = []
        for number in range(3):
            running.origin.store.put(BUCKET, f"held-{number}", b"bytes")
            gates.append(running.origin.hold("GET", f"bucket/held-{number}"))
        running.origin.store.put(BUCKET, "key", DATA)

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(running.get(f"held-{number}"))
            for gate in gates:
                await gate.reached.wait()
            got = await running.get("key")
            for gate in gates:
                gate.open()
        await running.fills_ended()

        assert got.data == DATA
        assert_nothing_is_left(running)


@pytest.mark.parametrize("slots", [1, 2])
async def test_a_limiter_with_hardly_a_slot_is_no_dead_end(slots: int) -> None:
    """The last block waits for the other pieces, and holds no slot that they would need."""
    limits = LimiterSettings(concurrency_start=slots, concurrency_max=slots)
    async with running_engine(readahead=SETTINGS, limits=limits) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.faults.add(Fault(operation="GetObject", skip=3, times=1, status=503, code="SlowDown"))

        got = await running.get("key")

        assert got.data == DATA


# --- Faults --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        Fault(cut_body_at=MIB // 2),
        Fault(status=403, code="AccessDenied"),
        Fault(drop="before"),
        Fault(content_range="bytes 0-1048575/99999999"),
    ],
    ids=["cut", "refused", "no answer", "another place"],
)
async def test_a_piece_that_fails_is_asked_for_again_by_its_reader(fault: Fault) -> None:
    """What failed ahead of a reader is no answer to it."""
    async with running_engine(readahead=SETTINGS) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        fault.operation, fault.skip = "GetObject", 2
        running.origin.faults.add(fault)

        got = await running.get("key")
        await running.fills_ended()
        again = await running.get("key")

        assert got.data == again.data == DATA
        assert running.origin.faults.hits == 1
        assert_nothing_is_left(running)


async def test_an_object_that_changes_midway_is_never_mixed() -> None:
    """The reader of the old version is cut, and has only its bytes; the next one gets the new version."""
    async with running_engine(readahead=SETTINGS) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        body = await opened_body(running)
        got = [await read_some(body, 2 * MIB)]

        running.origin.store.put(BUCKET, "key", OTHER)
        with pytest.raises(ObjectChangedError):
            await read_into(got, body)
        await body.close()
        await running.fills_ended()
        next_one = await running.get("key")

        data = b"".join(got)
        assert data == DATA[: len(data)]
        assert len(data) < SIZE
        assert next_one.data == OTHER
        assert_nothing_is_left(running)


async def test_pieces_that_are_not_the_object_together_do_not_become_a_whole_body() -> None:
    """The CRC of all pieces is held against the origin's before the last block is given; the version is forgotten."""
    async with running_engine(readahead=SETTINGS) as running:
        stored = running.origin.store.put(BUCKET, "key", DATA)
        stored_there = running.origin.store.buckets[BUCKET].objects
        assert stored.checksums
        body = await opened_body(running)
        got = [await read_some(body, 1)]

        wrong = DATA[: 9 * MIB] + b"wrong" + DATA[9 * MIB + 5 :]
        stored_there["key"] = replace(stored, body=wrong)
        with pytest.raises(OriginUnavailableError, match="do not have its"):
            await read_into(got, body)
        await body.close()
        await running.fills_ended()
        kept = kept_bytes(running)
        stored_there["key"] = stored
        again = await running.get("key")

        data = b"".join(got)
        assert data == wrong[: len(data)]
        assert len(data) <= SIZE // MIB * MIB
        assert kept == 0
        assert again.data == DATA


async def test_an_origin_that_ignores_ranges_works_and_is_noticed() -> None:
    """RFC 9110 section 14.2: a 200 with the whole object is an answer to a range; it is read ahead no more then."""
    async with running_engine(readahead=SETTINGS) as running:
        running.origin.store.heeds_ranges = False
        for key in ("key", "other"):
            running.origin.store.put(BUCKET, key, DATA)

        part = await running.get("key", RangeSpec(start=5 * MIB + 3, stop=7 * MIB))
        whole = await running.get("other")
        rest = await running.get("key")

        assert part.data == DATA[5 * MIB + 3 : 7 * MIB]
        assert whole.data == rest.data == DATA
        assert running.client.counters.ranges_ignored >= 1
        assert running.engine.stats.readahead_bytes["begun"] == 0
        assert [entry.range for entry in running.origin.log if entry.key == "other"] == [""]


async def test_an_origin_that_is_found_to_ignore_ranges_midway_is_asked_for_the_rest_at_once() -> None:
    """A few pieces are asked for before the first of their answers says so, and no more."""
    async with running_engine(readahead=SETTINGS) as running:
        running.origin.store.heeds_ranges = False
        running.origin.store.put(BUCKET, "key", DATA)

        got = await running.get("key")

        assert got.data == DATA
        assert running.origin.requests["GetObject"] < 9
