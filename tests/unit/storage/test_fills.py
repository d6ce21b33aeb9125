"""Fills over real segments on a file system in memory, fed by hand."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

import pytest

from storage.checksums import checksums
from storage.errors import (
    DiskFailedError,
    DiskFullError,
    EngineClosedError,
    ObjectChangedError,
    OriginUnavailableError,
)
from storage.fill_table import FillTable
from storage.fills import JOIN_AHEAD_BYTES_MAX, UNJOINED_BYTES_MAX, Fill, FillAtTurn, FillParts, Proof
from storage.hashers import ChecksumHasher
from storage.openings import OpenAnswer
from storage.requests import FileSpan
from storage.segments import SegmentLimits, SegmentStore
from storage.types import MIB, ByteRange, Checksum, ChecksumAlgorithm, Extent, Stream
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.running_engine import bytes_of, until

P = ParamSpec("P")
T = TypeVar("T")
DATA = random.Random(1).randbytes(8 * MIB)
VERSION = 7


class Answer:
    """An answer of the origin that a test feeds; an exception among the chunks is raised in its place."""

    def __init__(self) -> None:
        self._chunks: asyncio.Queue[bytes | Exception] = asyncio.Queue()
        self.is_open = False
        self.was_opened = False
        self.refusal: Exception | None = None

    def feed(self, *chunks: bytes | Exception) -> None:
        """Let these arrive; b"" ends the body."""
        for chunk in chunks:
            self._chunks.put_nowait(chunk)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield what is fed."""
        while chunk := await self._chunks.get():
            if isinstance(chunk, Exception):
                raise chunk
            yield chunk

    @asynccontextmanager
    async def opening(self) -> AsyncIterator["Answer"]:
        """Open it."""
        if self.refusal is not None:
            raise self.refusal
        self.is_open = self.was_opened = True
        try:
            yield self
        finally:
            self.is_open = False


class HeldWorkers:
    """Runs calls in place; while `held`, they wait."""

    def __init__(self) -> None:
        self.free = asyncio.Event()
        self.free.set()

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call when it may."""
        await self.free.wait()
        return call(*args, **kwargs)

    def close(self) -> None:
        """Nothing to end."""


class Bench:
    """A table of fills over segments of 2 MiB, and what it told the index."""

    def __init__(self, capacity_bytes: int = 64 * MIB) -> None:
        self.filesystem = FakeFilesystem()
        ids = iter(range(1, 1000))
        self.segments = SegmentStore(
            self.filesystem, SegmentLimits(2 * MIB, capacity_bytes), lambda: next(ids)
        )
        self.segments.adopt([])
        self.workers = HeldWorkers()
        self.table = FillTable()
        self.answer = Answer()
        self.added: list[Extent] = []
        self.forgotten = 0
        self.room_asked: list[int] = []
        self.gives_room = False
        self.on_room: Callable[[], None] = lambda: None

    async def _add(self, extent: Extent) -> None:
        self.added.append(extent)

    async def _forget(self) -> None:
        self.forgotten += 1

    async def _make_room(self, size: int) -> bool:
        self.room_asked.append(size)
        self.on_room()
        return self.gives_room

    def fill(self, start: int, stop: int, told: tuple[Checksum, ...] = ()) -> Fill:
        """Make a fill."""
        parts = FillParts(self.segments, self.workers, self._make_room, 2 * MIB)
        return Fill(ByteRange(start, stop), parts, self._add, Proof(told, self._forget))

    def start(self, start: int, stop: int, told: tuple[Checksum, ...] = ()) -> Fill:
        """Make a fill and run it, with one reader."""
        fill = self.fill(start, stop, told)
        self.table.start(VERSION, fill, self.answer.opening())
        fill.join()
        return fill

    def pins(self) -> int:
        """Count the pins on all segments."""
        return sum(state.pins for state in self.segments.states())

    def is_settled(self) -> bool:
        """Whether no range is held."""
        return all(state.is_settled for state in self.segments.states())

    def stored(self, extent: Extent) -> bytes:
        """Read an extent's bytes."""
        return self.segments.read(extent.location, 0, extent.location.length)


async def ended(bench: Bench) -> None:
    """Wait until no fill is under way."""
    await until(lambda: len(bench.table) == 0)


async def test_what_has_arrived_can_be_taken_wherever_it_lies() -> None:
    """Bytes are given from the segment, from the block being written and from what is gathered, each exactly."""
    bench = Bench()
    fill = bench.start(0, 5 * MIB)
    bench.answer.feed(DATA[: MIB + 10])
    await until(lambda: fill.arrived == MIB + 10)
    await until(lambda: not fill._writing)
    bench.workers.free.clear()
    bench.answer.feed(DATA[MIB + 10 : 2 * MIB + 100])
    await until(lambda: fill.arrived == 2 * MIB + 100)
    await until(lambda: bool(fill._writing))

    pieces = [fill.take(5, 5 * MIB), fill.take(MIB + 3, 5 * MIB), fill.take(2 * MIB + 7, 2 * MIB + 50)]

    assert isinstance(pieces[0], FileSpan)
    assert bytes_of(pieces[0]) == DATA[5:MIB]
    assert pieces[1] == DATA[MIB + 3 : 2 * MIB]
    assert pieces[2] == DATA[2 * MIB + 7 : 2 * MIB + 50]
    bench.workers.free.set()
    await bench.table.close()


@pytest.mark.parametrize("start", [0, MIB, 3 * MIB + 123])
async def test_a_complete_fill_tells_the_index_of_every_byte_with_its_checksums(start: int) -> None:
    """Extents cover the span without gap, hold its bytes, and carry one checksum a block of their own."""
    bench = Bench()
    fill = bench.start(start, 7 * MIB + 77)
    for at in range(start, 7 * MIB + 77, 100_000):
        bench.answer.feed(DATA[at : min(at + 100_000, 7 * MIB + 77)])
    bench.answer.feed(b"")

    await ended(bench)

    assert fill.failure is None
    assert [extent.start for extent in bench.added] == [start, *(e.stop for e in bench.added[:-1])]
    assert bench.added[-1].stop == 7 * MIB + 77
    for extent in bench.added:
        assert bench.stored(extent) == DATA[extent.start : extent.stop]
        assert extent.location.checksums == checksums(DATA[extent.start : extent.stop])
    assert bench.is_settled()


async def test_a_fill_is_found_from_the_step_on_in_which_it_is_shown() -> None:
    """Before that nobody joins it, and it takes no room."""
    bench = Bench()
    parts = FillParts(bench.segments, bench.workers, bench._make_room, 2 * MIB)
    fill = FillAtTurn(ByteRange(0, 100), parts, bench._add)
    bench.table.start(VERSION, fill, bench.answer.opening(), is_shown=False)
    fill.join()

    before = (bench.table.find(VERSION, 5), bench.table.bringing(VERSION, 5), bench.table.has(VERSION))
    reserved = bench.segments.used_bytes
    bench.table.show(VERSION, fill)
    after = (bench.table.find(VERSION, 5), bench.table.bringing(VERSION, 5), bench.table.has(VERSION))
    bench.answer.feed(DATA[:100], b"")
    await ended(bench)

    assert before == (None, None, False)
    assert reserved == 0
    assert after == (fill, fill, True)
    assert [bench.stored(extent) for extent in bench.added] == [DATA[:100]]
    assert not bench.table.shows(VERSION, fill)


async def test_a_fill_is_in_the_table_until_its_last_extent_is_known() -> None:
    """No reader sees a gap between the fill and the index; who comes afterwards is not given an ended fill."""
    bench = Bench()
    fill = bench.start(0, 100)
    bench.workers.free.clear()
    bench.answer.feed(DATA[:100], b"")
    await until(lambda: fill.arrived == 100)

    before = bench.table.find(VERSION, 50)
    bench.workers.free.set()
    await until(lambda: fill.is_finished)
    after = bench.table.find(VERSION, 50)

    assert before is fill
    assert after is None
    assert bench.added


async def test_who_waits_is_woken_by_each_arrival() -> None:
    """Two readers at different places each go on when their byte is there."""
    bench = Bench()
    fill = bench.start(0, 1000)

    async with asyncio.TaskGroup() as group:
        near = group.create_task(fill.wait_for(0))
        far = group.create_task(fill.wait_for(999))
        bench.answer.feed(DATA[:1])
        await until(near.done)
        is_far_done = far.done()
        bench.answer.feed(DATA[1:1000], b"")

    assert (near.result(), far.result(), is_far_done) == (True, True, False)


@pytest.mark.parametrize(
    "error", [OriginUnavailableError("cut", status=0, code="Incomplete"), ObjectChangedError("x")]
)
async def test_a_failure_reaches_who_waits_and_whole_blocks_are_kept(error: Exception) -> None:
    """What arrived of an unfinished block is given up; the blocks before it are told to the index."""
    bench = Bench()
    fill = bench.start(0, 4 * MIB)
    bench.answer.feed(DATA[: MIB + 500], error)

    with pytest.raises(type(error)):
        await fill.wait_for(3 * MIB)

    assert fill.arrived == MIB
    assert [(extent.start, extent.stop) for extent in bench.added] == [(0, MIB)]
    assert bench.is_settled()


async def test_an_origin_that_refuses_to_open_fails_the_fill() -> None:
    """Readers that joined before the origin answered get its refusal."""
    bench = Bench()
    fill = bench.fill(0, 100)
    bench.answer.refusal = ObjectChangedError("412")
    bench.table.start(VERSION, fill, bench.answer.opening())
    fill.join()

    with pytest.raises(ObjectChangedError):
        await fill.wait_for(0)

    assert bench.is_settled()


@pytest.mark.parametrize("size", [99, 101])
async def test_an_answer_of_another_length_is_an_error(size: int) -> None:
    """Neither a short body nor a long one completes a fill."""
    bench = Bench()
    fill = bench.start(0, 100)
    bench.answer.feed(DATA[:size], b"")

    with pytest.raises(OriginUnavailableError):
        await fill.wait_for(99)

    assert bench.added == []


async def test_a_fill_that_its_readers_left_ends_at_the_next_block() -> None:
    """The answer is closed, and what is whole is kept."""
    bench = Bench()
    fill = bench.start(0, 8 * MIB)
    bench.answer.feed(DATA[: MIB // 2])
    await fill.wait_for(1000)

    fill.leave()
    bench.answer.feed(DATA[MIB // 2 : 3 * MIB])
    await ended(bench)

    assert [(extent.start, extent.stop) for extent in bench.added] == [(0, MIB)]
    assert bench.answer.was_opened
    assert not bench.answer.is_open


async def test_what_has_arrived_to_its_end_is_kept_though_its_reader_left() -> None:
    """A reader that takes the last bytes from memory and goes does not undo the fill."""
    bench = Bench()
    bench.workers.free.clear()
    fill = bench.start(0, 2 * MIB + 5)
    bench.answer.feed(DATA[: 2 * MIB + 5], b"")
    await fill.wait_for(2 * MIB + 4)

    fill.leave()
    bench.workers.free.set()
    await ended(bench)

    assert bench.added[-1].stop == 2 * MIB + 5


async def test_a_fill_that_nobody_ever_joined_ends_soon() -> None:
    """A fill waits for its first reader for some blocks only."""
    bench = Bench()
    fill = bench.fill(0, 8 * MIB)
    bench.table.start(VERSION, fill, bench.answer.opening())
    bench.answer.feed(*(DATA[at : at + MIB] for at in range(0, 7 * MIB, MIB)))

    await ended(bench)

    assert sum(extent.stop - extent.start for extent in bench.added) == UNJOINED_BYTES_MAX
    assert bench.pins() == 0


async def test_segments_stay_pinned_until_the_fill_has_ended_and_the_last_reader_left() -> None:
    """A slow reader's bytes are not reclaimed under it."""
    bench = Bench()
    fill = bench.start(0, 3 * MIB)
    fill.join()
    bench.answer.feed(DATA[: 3 * MIB], b"")
    await ended(bench)

    fill.leave()
    while_one_reads = bench.pins()
    taken = bytes_of(fill.take(0, 3 * MIB))
    fill.leave()

    assert while_one_reads > 0
    assert bench.pins() == 0
    assert taken == DATA[: 2 * MIB]


async def test_space_is_reserved_a_piece_at_a_time() -> None:
    """A fill that ends early has taken no more of the cache than its last piece."""
    bench = Bench()
    fill = bench.start(0, 8 * MIB)
    at_start = bench.segments.used_bytes
    bench.answer.feed(DATA[: 3 * MIB])
    await fill.wait_for(3 * MIB - 1)
    await until(lambda: fill._written == 3 * MIB)

    assert at_start == 2 * MIB
    assert bench.segments.used_bytes == 4 * MIB
    await bench.table.close()


def test_a_full_cache_makes_no_fill() -> None:
    """Without room for the first piece there is nothing to end."""

    async def check() -> None:
        bench = Bench(capacity_bytes=4 * MIB)
        held = bench.segments.reserve(4 * MIB, Stream.DIRTY)
        with pytest.raises(DiskFullError):
            bench.fill(0, MIB)
        bench.segments.settle(held)

    asyncio.run(check())


async def test_a_cache_that_fills_up_meanwhile_is_asked_for_room() -> None:
    """The next piece waits for room; where none comes, who waits gets DiskFullError and whole pieces are kept."""
    bench = Bench(capacity_bytes=4 * MIB)
    fill = bench.start(0, 7 * MIB)
    bench.answer.feed(DATA[: 7 * MIB], b"")

    with pytest.raises(DiskFullError):
        await fill.wait_for(6 * MIB)

    assert bench.room_asked == [2 * MIB]
    assert [(extent.start, extent.stop) for extent in bench.added] == [(0, 2 * MIB), (2 * MIB, 4 * MIB)]


async def test_room_that_is_made_lets_the_fill_go_on() -> None:
    """A fill longer than the room there was at its start is complete in the end."""
    bench = Bench(capacity_bytes=6 * MIB)
    held = bench.segments.reserve(2 * MIB, Stream.DIRTY)
    bench.gives_room = True

    def free() -> None:
        bench.segments.settle(held)
        bench.segments.reserve(MIB, Stream.DIRTY)  # seals the first segment
        bench.segments.remove(held[0].segment_id)
        for segment_id in bench.segments.take_removable():
            bench.segments.unlink(segment_id)

    bench.on_room = free
    fill = bench.start(0, 3 * MIB)
    bench.answer.feed(DATA[: 3 * MIB], b"")
    await ended(bench)

    assert fill.failure is None
    assert bench.added[-1].stop == 3 * MIB


async def test_a_disk_that_fails_ends_the_fill_and_keeps_what_was_written() -> None:
    """EIO on a write reaches who waits; the blocks before it stay."""
    bench = Bench()
    bench.filesystem.fail(Operation.PWRITE, nth=2)
    fill = bench.start(0, 4 * MIB)
    bench.answer.feed(DATA[: 4 * MIB], b"")

    with pytest.raises(DiskFailedError):
        await fill.wait_for(3 * MIB)

    assert [(extent.start, extent.stop) for extent in bench.added] == [(0, MIB)]
    assert bench.is_settled()


async def test_closing_the_table_ends_its_fills_and_refuses_new_ones() -> None:
    """Who waits gets EngineClosedError, what is whole is kept, and the answer is closed."""
    bench = Bench()
    fill = bench.start(0, 8 * MIB)
    bench.answer.feed(DATA[: MIB + 5])
    await fill.wait_for(MIB)
    await until(lambda: fill._written == MIB)

    async with asyncio.TaskGroup() as group:
        waiting = group.create_task(_failure(fill, 2 * MIB))
        await until(lambda: not waiting.done())
        await bench.table.close()
    late = bench.fill(0, 100)
    with pytest.raises(EngineClosedError):
        bench.table.start(VERSION, late, bench.answer.opening())

    assert isinstance(waiting.result(), EngineClosedError)
    assert [(extent.start, extent.stop) for extent in bench.added] == [(0, MIB)]
    assert not bench.answer.is_open
    assert late.is_finished
    assert bench.is_settled()


async def _failure(fill: Fill, position: int) -> Exception | None:
    try:
        await fill.wait_for(position)
    except EngineClosedError as error:
        return error
    return None


async def test_a_fill_that_is_closed_at_its_beginning_is_ended_and_its_answer_closed() -> None:
    """Its readers do not wait for ever, its space is given up, and an answer that was open already holds no slot at the origin."""
    bench = Bench()
    asking = bench.answer.opening()
    fill = bench.fill(0, 100)
    bench.table.start(VERSION, fill, OpenAnswer(await asking.__aenter__(), asking), is_answered=True)
    fill.join()

    assert not bench.table.give_up(fill)
    await bench.table.close()
    with pytest.raises(EngineClosedError):
        await fill.wait_for(0)

    assert not bench.answer.is_open
    assert bench.is_settled()


@pytest.mark.parametrize("end", ["closed", "given up"])
async def test_a_fill_that_ends_before_it_ran_asks_nothing_and_leaves_nothing(end: str) -> None:
    """Its readers do not wait for ever, and its space is given up."""
    bench = Bench()
    fill = bench.start(0, 100)
    fill.leave()

    if end == "closed":
        await bench.table.close()
    else:
        assert bench.table.give_up(fill)
    with pytest.raises(EngineClosedError):
        await fill.wait_for(0)

    assert not bench.answer.was_opened
    assert bench.is_settled()


async def test_a_bug_in_a_fill_is_reported_and_fails_its_readers() -> None:
    """What nobody expected reaches the loop's handler, and no reader waits for ever."""
    reports: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, report: reports.append(report))
    bench = Bench()
    fill = bench.start(0, 100)
    bench.answer.feed(ValueError("bug"))

    with pytest.raises(EngineClosedError):
        await fill.wait_for(0)
    await ended(bench)

    assert [str(report["exception"]) for report in reports] == ["bug"]
    assert bench.is_settled()


async def test_a_reader_far_ahead_is_not_sent_to_the_fill() -> None:
    """Who would wait for more than JOIN_AHEAD_BYTES_MAX asks for itself; fills of other versions are no matter."""
    bench = Bench()
    fill = bench.start(MIB, JOIN_AHEAD_BYTES_MAX + 10 * MIB)

    assert bench.table.find(VERSION, MIB - 1) is None
    assert bench.table.find(VERSION, MIB) is fill
    assert bench.table.find(VERSION, JOIN_AHEAD_BYTES_MAX + MIB) is fill
    assert bench.table.find(VERSION, JOIN_AHEAD_BYTES_MAX + MIB + 1) is None
    assert bench.table.find(VERSION + 1, MIB) is None
    assert bench.table.next_start(VERSION, 0) == MIB
    assert bench.table.next_start(VERSION, MIB) is None
    assert repr(fill) == f"<Fill [{MIB}, {JOIN_AHEAD_BYTES_MAX + 10 * MIB}) arrived {MIB}, 1 readers>"
    await bench.table.close()


# --- The checksum of the whole object --------------------------------------------------------------------------------


def checksum_of(data: bytes, algorithm: ChecksumAlgorithm = ChecksumAlgorithm.CRC32) -> tuple[Checksum, ...]:
    """Give what an origin tells of an object's bytes."""
    hasher = ChecksumHasher(algorithm)
    hasher.update(data)
    return (hasher.checksum(),)


@pytest.mark.parametrize("algorithm", ChecksumAlgorithm)
@pytest.mark.parametrize("size", [1000, MIB, 3 * MIB, 5 * MIB + 77])
async def test_a_fill_of_the_bytes_that_the_checksum_is_of_is_complete(
    algorithm: ChecksumAlgorithm, size: int
) -> None:
    """All bytes are given and told to the index, nothing is forgotten."""
    bench = Bench()
    fill = bench.start(0, size, checksum_of(DATA[:size], algorithm))
    bench.answer.feed(*(DATA[at : min(at + 200_000, size)] for at in range(0, size, 200_000)), b"")

    await ended(bench)

    assert await fill.wait_for(size - 1)
    assert fill.failure is None
    assert (bench.added[0].start, bench.added[-1].stop) == (0, size)
    assert bench.forgotten == 0


@pytest.mark.parametrize("size", [1000, MIB, 2 * MIB, 3 * MIB, 5 * MIB + 77])
async def test_a_fill_of_other_bytes_fails_and_its_version_is_forgotten(size: int) -> None:
    """What no reader may keep is not told to the index any more, and who waits gets BadAnswer, after the forgetting."""
    bench = Bench()
    fill = bench.start(0, size, checksum_of(DATA))
    bench.answer.feed(*(DATA[at : min(at + 200_000, size)] for at in range(0, size, 200_000)), b"")

    with pytest.raises(OriginUnavailableError) as failure:
        await fill.wait_for(size - 1)

    assert failure.value.code == "BadAnswer"
    assert fill.is_refuted
    assert bench.forgotten == 1
    assert all(extent.stop < size for extent in bench.added)
    with pytest.raises(OriginUnavailableError):
        await fill.wait_for(0)
    assert bench.is_settled()


@pytest.mark.parametrize(("size", "given"), [(1000, 0), (MIB, 0), (2 * MIB, MIB), (2 * MIB + 5, 2 * MIB)])
async def test_the_last_block_is_not_given_before_it_is_compared(size: int, given: int) -> None:
    """What lies before it is given as it comes, the rest after the comparison, however it lies in memory."""
    bench = Bench()
    fill = bench.start(0, size, checksum_of(DATA[:size]))
    bench.answer.feed(DATA[: size - 1])
    await until(lambda: fill._received == size - 1)
    while_missing = fill.arrived
    bench.workers.free.clear()
    bench.answer.feed(DATA[size - 1 : size], b"")
    await until(lambda: fill._received == size)
    await until(lambda: bool(fill._writing))
    while_comparing = fill.arrived
    taken = fill.take(given - 1, size) if given else b""

    bench.workers.free.set()
    is_there = await fill.wait_for(size - 1)

    assert (while_missing, while_comparing) == (given, given)
    assert (taken if isinstance(taken, bytes) else bytes_of(taken)) == DATA[given - 1 : given]
    assert is_there
    assert fill.arrived == size


async def test_without_a_checksum_bytes_are_given_as_they_come() -> None:
    """Nothing is held back where nothing could be compared."""
    bench = Bench()
    fill = bench.start(0, 1000)
    bench.answer.feed(DATA[:10])

    assert await fill.wait_for(9)
    await bench.table.close()


async def test_a_fill_that_broke_off_proves_nothing() -> None:
    """Whole blocks are kept, and the version stays."""
    bench = Bench()
    fill = bench.start(0, 4 * MIB, checksum_of(DATA[: 4 * MIB]))
    bench.answer.feed(DATA[: MIB + 500], OriginUnavailableError("cut", status=0, code="Incomplete"))

    with pytest.raises(OriginUnavailableError):
        await fill.wait_for(3 * MIB)

    assert not fill.is_refuted
    assert bench.forgotten == 0
    assert [(extent.start, extent.stop) for extent in bench.added] == [(0, MIB)]
