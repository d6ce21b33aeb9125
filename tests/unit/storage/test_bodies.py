"""Bodies over real segments and fills, with a source that a test plays."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

import pytest
from msgspec.structs import replace

from storage.bodies import CUTS_MAX, VersionBody
from storage.body_source import BodyParts
from storage.cached import DropExtents
from storage.checksums import checksums
from storage.errors import (
    DirtyBytesLostError,
    DiskFullError,
    ObjectChangedError,
    OriginRefusedError,
    OriginUnavailableError,
)
from storage.fill_table import FillTable
from storage.fills import Fill, FillParts
from storage.hashers import ChecksumHasher
from storage.holdings import Held
from storage.records import FORMAT, ObjectRecord, ObjectState, OriginIdentity, Validated
from storage.segments import SegmentLimits, SegmentStore
from storage.types import (
    MIB,
    ByteRange,
    CacheResult,
    Checksum,
    ChecksumAlgorithm,
    Extent,
    Location,
    ObjectName,
    Stream,
)
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.running_engine import bytes_of, read_all, until

P = ParamSpec("P")
T = TypeVar("T")
NAME = ObjectName("bucket", "key")
SIZE = 6 * MIB + 321
DATA = random.Random(1).randbytes(SIZE)


class PlainWorkers:
    """Runs calls in place."""

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call."""
        return call(*args, **kwargs)

    def close(self) -> None:
        """Nothing to end."""


class Source:
    """`VersionSource`, and `Holder`, over one version and an origin that holds `DATA`.

    Attributes:
        asked: The spans asked of the origin, in order.
        cuts: After how many bytes the next answers break off.
        failure: What asking raises.
        may_go_on: What answers wait for after their first MiB.
        forgotten, dropped: What was told to be forgotten.
    """

    def __init__(self, state: ObjectState = ObjectState.CLEAN) -> None:
        self.filesystem = FakeFilesystem()
        ids = iter(range(1, 1000))
        self.segments = SegmentStore(self.filesystem, SegmentLimits(8 * MIB, 64 * MIB), lambda: next(ids))
        self.segments.adopt([])
        self.workers = PlainWorkers()
        self.fills = FillTable()
        self.record = ObjectRecord(
            FORMAT,
            1,
            SIZE,
            "etag",
            1,
            state,
            OriginIdentity("", 0, SIZE, "etag") if state is ObjectState.CLEAN else None,
            Validated(),
        )
        self.extents: tuple[Extent, ...] = ()
        self.asked: list[ByteRange] = []
        self.cuts: list[int] = []
        self.failure: Exception | None = None
        self.may_go_on: asyncio.Event | None = None
        self.is_full = False
        self.keeps = True
        self.room_asked = 0
        self.room_given = False
        self.forgotten = 0
        self.alarms: list[str] = []
        self.dropped: list[Location] = []
        self.is_drop_refused = False
        self.open_streams = 0
        self.noted: list[int | None] = []
        self.counted = {"cache": 0, "origin": 0}

    # --- what a test does --------------------------------------------------------------------------------------------

    def store(self, start: int, stop: int, stream: Stream = Stream.CLEAN) -> Extent:
        """Have bytes of the version here; streams lie in segments of their own."""
        (place,) = self.segments.reserve(stop - start, stream)
        data = DATA[start:stop]
        self.segments.write(place, 0, data)
        self.segments.settle((place,))
        extent = Extent(start, stop, Location(place.segment_id, place.offset, place.length, checksums(data)))
        self.extents = tuple(sorted((*self.extents, extent), key=lambda one: one.start))
        return extent

    def restart(self) -> None:
        """Open the segments anew, so that nothing counts as checked."""
        self.segments = SegmentStore(self.filesystem, SegmentLimits(8 * MIB, 64 * MIB), lambda: 1000)
        self.segments.adopt({extent.location.segment_id for extent in self.extents})

    def damage(self, extent: Extent, at: int) -> None:
        """Change a byte of an extent on the disk."""
        path = f"segments/{extent.location.segment_id:016x}.seg"
        contents = bytearray(self.filesystem.contents(path))
        contents[extent.location.offset + at] ^= 1
        self.filesystem.replace_contents(path, contents)

    def body(
        self, start: int = 0, stop: int = SIZE, *, fill: Fill | None = None, is_stale: bool = False
    ) -> VersionBody:
        """Plan a read."""
        parts = BodyParts(self, self, self.segments, self.fills, self.workers)
        held = self.hold(NAME, self.record, ByteRange(start, stop))
        return VersionBody(parts, NAME, held, ByteRange(start, stop), fill=fill, is_stale=is_stale)

    def pins(self) -> int:
        """Count the pins on all segments."""
        return sum(state.pins for state in self.segments.states())

    # --- VersionSource -----------------------------------------------------------------------------------------------

    def hold(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Held:
        """Give the version as it is now."""
        assert (name, record.version_id) == (NAME, 1)
        pin = self.segments.pin({extent.location.segment_id for extent in self.extents})
        return Held(self.record, self.extents, pin, span)

    def start_ahead(self, *_: object) -> Fill | None:
        raise AssertionError("nothing is read ahead here")

    def start_fill(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Fill | None:
        """Begin a fill."""
        if self.is_full:
            raise DiskFullError("full")
        if not self.keeps:
            return None
        parts = FillParts(self.segments, self.workers, self._no_room, 4 * MIB)
        fill = Fill(span, parts, self._add)
        self.fills.start(record.version_id, fill, self.stream(name, record, span))
        return fill

    def why_not_kept(self, span: ByteRange) -> str:
        """Say so."""
        return f"{span.length} are too many"

    async def _no_room(self, _size: int) -> bool:
        return False

    async def _add(self, extent: Extent) -> None:
        self.extents = tuple(sorted((*self.extents, extent), key=lambda one: one.start))

    async def make_room(self, name: ObjectName, span: ByteRange) -> bool:
        """Give room if the test says so."""
        assert name == NAME
        assert span.length
        self.room_asked += 1
        self.is_full = self.is_full and not self.room_given
        return self.room_given

    @asynccontextmanager
    async def stream(
        self, _name: ObjectName, _record: ObjectRecord, span: ByteRange
    ) -> AsyncIterator["Answer"]:
        """Answer from `DATA`."""
        self.asked.append(span)
        if self.failure is not None:
            raise self.failure
        self.open_streams += 1
        try:
            yield Answer(span, self.cuts.pop(0) if self.cuts else None, self.may_go_on)
        finally:
            self.open_streams -= 1

    async def drop_extents(self, change: DropExtents) -> None:
        """Forget extents."""
        self.dropped += change.locations
        if not self.is_drop_refused:
            self.extents = tuple(e for e in self.extents if e.location not in change.locations)

    async def forget(self, name: ObjectName, record: ObjectRecord) -> None:
        """Forget the version."""
        assert (name, record.version_id) == (NAME, 1)
        self.forgotten += 1

    def note_unreadable(self, name: ObjectName, record: ObjectRecord, why: str) -> None:
        """Remember the alarm."""
        assert (name, record.version_id) == (NAME, 1)
        self.alarms.append(why)

    def note_read(
        self, _name: ObjectName, _record: ObjectRecord, _span: ByteRange, place: tuple[int, int] | None
    ) -> None:
        """Remember which segment was read."""
        self.noted.append(None if place is None else place[0])

    def count_bytes(self, *, from_cache: int, from_origin: int) -> None:
        """Add up."""
        self.counted["cache"] += from_cache
        self.counted["origin"] += from_origin


class Answer:
    """Bytes of `DATA`, breaking off after `cut` of them."""

    def __init__(self, span: ByteRange, cut: int | None, may_go_on: asyncio.Event | None) -> None:
        self._span = span
        self._cut = cut
        self._may_go_on = may_go_on

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield 256 KiB at a time."""
        stop = self._span.stop if self._cut is None else min(self._span.stop, self._span.start + self._cut)
        for at in range(self._span.start, stop, 256 * 1024):
            if self._may_go_on is not None and at == self._span.start + MIB:
                await self._may_go_on.wait()
            yield DATA[at : min(at + 256 * 1024, stop)]
        if stop < self._span.stop:
            raise OriginUnavailableError("cut", status=0, code="Incomplete")


async def test_what_is_here_is_a_hit_and_comes_from_the_segments() -> None:
    """A read over several extents gives exactly its bytes and asks nobody."""
    source = Source()
    first, second = source.store(0, 3 * MIB), source.store(3 * MIB, SIZE)

    body = source.body(MIB + 5, 5 * MIB)
    data = await read_all(body)

    assert data == DATA[MIB + 5 : 5 * MIB]
    assert body.result is CacheResult.HIT
    assert source.asked == []
    assert source.counted == {"cache": 4 * MIB - 5, "origin": 0}
    assert source.noted == [first.location.segment_id, second.location.segment_id]
    assert source.pins() == 0


@pytest.mark.parametrize(
    ("here", "result"),
    [((), CacheResult.MISS), (((0, MIB),), CacheResult.PARTIAL), (((0, SIZE),), CacheResult.HIT)],
)
async def test_the_result_says_how_much_is_here(
    here: tuple[tuple[int, int], ...], result: CacheResult
) -> None:
    """HIT, PARTIAL and MISS are known before the first byte; stale counts only where the origin is not needed."""
    source = Source()
    for start, stop in here:
        source.store(start, stop)

    plain, stale = source.body(), source.body(is_stale=True)
    data = await read_all(plain)
    await stale.close()

    assert plain.result is result
    assert stale.result is (CacheResult.STALE if result is CacheResult.HIT else result)
    assert data == DATA


async def test_only_what_is_missing_is_asked_for_in_whole_blocks() -> None:
    """Gaps between extents are asked for one by one, widened to blocks, never over a byte that is here."""
    source = Source()
    source.store(0, MIB + 100)
    source.store(3 * MIB + 7, 4 * MIB)

    data = await read_all(source.body(0, 5 * MIB + 1))

    assert data == DATA[: 5 * MIB + 1]
    assert source.asked == [ByteRange(MIB + 100, 3 * MIB + 7), ByteRange(4 * MIB, 6 * MIB)]


async def test_gaps_that_do_not_begin_at_blocks_are_filled_for_good() -> None:
    """What is filled between extents of odd lengths is whole, so that the next read asks for nothing."""
    source = Source()
    source.store(0, MIB + 100)
    source.store(3 * MIB + 7, 4 * MIB)
    await read_all(source.body())
    await until(lambda: len(source.fills) == 0)

    again = source.body()
    data = await read_all(again)

    assert (data, again.result) == (DATA, CacheResult.HIT)


async def test_a_fill_in_progress_counts_as_far_as_it_has_come() -> None:
    """A read that finds its bytes in a fill is PARTIAL, and what had arrived is the cache's."""
    source = Source()
    source.may_go_on = asyncio.Event()
    leader = source.body()
    async with asyncio.TaskGroup() as group:
        group.create_task(read_all(leader))
        await until(lambda: (fill := source.fills.find(1, 0)) is not None and fill.arrived == MIB)
        source.counted = {"cache": 0, "origin": 0}

        follower, early = source.body(), source.body(0, MIB - 5)
        following = group.create_task(read_all(follower))
        early_data = await read_all(early)
        await until(lambda: source.counted["cache"] == 2 * MIB - 5)
        source.may_go_on.set()

    assert (follower.result, early.result) == (CacheResult.PARTIAL, CacheResult.HIT)
    assert (following.result(), early_data) == (DATA, DATA[: MIB - 5])
    assert source.counted == {"cache": 2 * MIB - 5, "origin": 2 * (SIZE - MIB)}


async def test_a_read_that_its_own_opening_began_is_a_miss() -> None:
    """The fill that was begun for this read is followed, and its bytes are the origin's, however much has come."""
    source = Source()
    fill = source.start_fill(NAME, source.record, ByteRange(0, SIZE))
    assert fill is not None
    fill.join()
    await until(lambda: fill.arrived > 0)

    body = source.body(fill=fill)
    data = await read_all(body)

    assert (data, body.result) == (DATA, CacheResult.MISS)
    assert source.counted == {"cache": 0, "origin": SIZE}
    assert source.asked == [ByteRange(0, SIZE)]
    assert fill.readers == 0


async def test_a_fill_that_does_not_reach_the_read_is_left() -> None:
    """Joined for a read that begins behind it, a fill loses its reader at once."""
    source = Source()
    fill = source.start_fill(NAME, source.record, ByteRange(0, MIB))
    assert fill is not None
    fill.join()

    body = source.body(2 * MIB, 3 * MIB, fill=fill)

    assert fill.readers == 0
    assert await read_all(body) == DATA[2 * MIB : 3 * MIB]


# --- The origin breaks off -------------------------------------------------------------------------------------------


async def test_cuts_without_progress_are_counted_and_the_last_is_raised() -> None:
    """An origin that gives less than a block each time is given up after CUTS_MAX cuts."""
    source = Source()
    source.cuts = [1000] * 10

    with pytest.raises(OriginUnavailableError):
        await read_all(source.body())

    assert len(source.asked) == CUTS_MAX


async def test_cuts_with_progress_do_not_add_up() -> None:
    """A long body over a bad line arrives, however often it breaks off."""
    source = Source()
    source.cuts = [MIB] * 5

    assert await read_all(source.body()) == DATA


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_changed_object_is_forgotten_and_ends_the_read(keeps: bool) -> None:
    """Whether filled or streamed, no byte follows and the version is given up."""
    source = Source()
    source.keeps = keeps
    source.store(0, MIB)
    source.failure = ObjectChangedError("412")
    body = source.body()
    first = bytes_of(await body.next_piece())

    with pytest.raises(ObjectChangedError):
        await body.next_piece()
    await body.close()

    assert first == DATA[:MIB]
    assert source.forgotten == 1


@pytest.mark.parametrize("keeps", [True, False])
async def test_a_refusal_reaches_the_reader(keeps: bool) -> None:
    """A 403 is not tried again and changes nothing here."""
    source = Source()
    source.keeps = keeps
    source.failure = OriginRefusedError("no", status=403, code="AccessDenied")

    with pytest.raises(OriginRefusedError):
        await read_all(source.body())

    assert len(source.asked) == 1
    assert (source.forgotten, source.pins()) == (0, 0)


# --- What cannot be kept ---------------------------------------------------------------------------------------------


async def test_what_is_not_kept_is_streamed_up_to_what_is_here() -> None:
    """BYPASS: the origin is asked for exactly the missing bytes, and the rest comes from the cache."""
    source = Source()
    source.keeps = False
    source.store(2 * MIB, 3 * MIB)

    body = source.body(5, 4 * MIB)
    data = await read_all(body)

    assert (data, body.result) == (DATA[5 : 4 * MIB], CacheResult.BYPASS)
    assert source.asked == [ByteRange(5, 2 * MIB), ByteRange(3 * MIB, 4 * MIB)]
    assert source.counted == {"cache": MIB, "origin": 3 * MIB - 5}
    assert source.open_streams == 0


async def test_a_stream_that_breaks_off_is_taken_up_where_it_ended() -> None:
    """Streams allow for cuts as fills do."""
    source = Source()
    source.keeps = False
    source.cuts = [MIB + 5]

    assert await read_all(source.body()) == DATA
    assert source.asked == [ByteRange(0, SIZE), ByteRange(MIB + 5, SIZE)]


@pytest.mark.parametrize("size", [SIZE, 1000])
async def test_a_stream_of_the_whole_object_is_held_against_its_checksum(size: int) -> None:
    """True bytes are given to the end; of others the last chunk is not, and the version is forgotten."""
    hasher = ChecksumHasher(ChecksumAlgorithm.CRC32)
    hasher.update(DATA[:size])
    true, false = Source(), Source()
    true.keeps = false.keeps = False
    true.record = replace(true.record, size=size, checksums=(hasher.checksum(),))
    false.record = replace(true.record, checksums=(Checksum(ChecksumAlgorithm.CRC32, "AAAAAA=="),))

    data = await read_all(true.body(0, size))
    with pytest.raises(OriginUnavailableError if size == SIZE else ObjectChangedError):
        await read_all(false.body(0, size))

    assert data == DATA[:size]
    assert (true.forgotten, false.forgotten) == (0, 1)
    assert false.counted["origin"] == (size - 1) // (256 * 1024) * (256 * 1024)
    assert (false.open_streams, false.pins()) == (0, 0)


async def test_giving_up_a_stream_closes_it() -> None:
    """A client that goes away holds no origin connection."""
    source = Source()
    source.keeps = False
    body = source.body()
    await body.next_piece()

    await body.close()
    await body.close()

    assert source.open_streams == 0


@pytest.mark.parametrize("is_given", [True, False])
async def test_room_is_waited_for_once(is_given: bool) -> None:
    """With room the read fills, without it streams; in either case it does not wait again."""
    source = Source()
    source.is_full = True
    source.room_given = is_given

    body = source.body()
    data = await read_all(body)

    assert data == DATA
    assert source.room_asked == 1
    assert body.result is (CacheResult.MISS if is_given else CacheResult.BYPASS)


# --- Bytes that rot --------------------------------------------------------------------------------------------------


async def test_a_wrong_block_is_fetched_again_and_those_before_it_served() -> None:
    """Clean bytes with another checksum are dropped and asked of the origin."""
    source = Source()
    extent = source.store(0, 3 * MIB)
    source.store(3 * MIB, SIZE)
    source.damage(extent, 2 * MIB + 5)
    source.restart()

    data = await read_all(source.body())

    assert data == DATA
    assert source.dropped == [extent.location]
    assert source.asked == [ByteRange(2 * MIB, 3 * MIB)]


async def test_an_extent_that_cannot_be_dropped_is_not_looked_at_again() -> None:
    """Where the index takes no writes, or another version has its row by now, a bad extent does not hold up the read."""
    source = Source()
    source.is_drop_refused = True
    source.damage(source.store(0, SIZE - MIB), 5)
    source.restart()

    assert await read_all(source.body()) == DATA


async def test_bytes_that_were_moved_are_read_where_they_are_now() -> None:
    """A place that is gone sends the reader to the index again, also for bytes that exist nowhere else."""
    source = Source(ObjectState.DIRTY)
    gone = source.store(0, 3 * MIB)
    source.store(3 * MIB, SIZE, Stream.DIRTY)
    body = source.body()
    source.filesystem.unlink(f"segments/{gone.location.segment_id:016x}.seg")
    source.extents = source.extents[1:]
    source.store(0, 3 * MIB, Stream.DIRTY)

    assert await read_all(body) == DATA
    assert source.dropped == []


@pytest.mark.parametrize("is_gone", [True, False])
async def test_acknowledged_bytes_that_are_lost_are_an_error(is_gone: bool) -> None:
    """Dirty bytes that are wrong, or nowhere, are never made up for by the origin's."""
    source = Source(ObjectState.DIRTY)
    extent = source.store(0, 3 * MIB)
    if not is_gone:
        source.store(3 * MIB, SIZE)
        source.damage(extent, 2 * MIB)
        source.restart()
    body = source.body()
    got = bytes_of(await body.next_piece())

    with pytest.raises(DirtyBytesLostError):
        await read_all(body)

    assert DATA.startswith(got)
    assert (source.asked, source.dropped) == ([], [])


async def test_a_version_that_was_flushed_meanwhile_may_be_fetched_again() -> None:
    """Bytes that were dirty at the opening and are clean by now are a miss where they rot."""
    source = Source(ObjectState.DIRTY)
    source.damage(source.store(0, SIZE - 3 * MIB), 5)
    source.store(SIZE - 3 * MIB, SIZE)
    source.restart()
    body = source.body()
    source.record = Source().record

    assert await read_all(body) == DATA
