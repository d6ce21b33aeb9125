"""Courses over real fills and segments, with an origin that a test plays: whatever the order in which things happen."""

import asyncio
import base64
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given, strategies as st
from msgspec.structs import replace

from storage.ahead import Ahead
from storage.blocks import MissingSpan, plan
from storage.bodies import VersionBody
from storage.body_source import BodyParts
from storage.clock import SystemClock
from storage.errors import DiskFullError, OriginUnavailableError
from storage.fills import Fill, FillParts
from storage.hashers import ChecksumHasher
from storage.readahead import ReadaheadSettings
from storage.records import ObjectRecord
from storage.segments import SegmentLimits, SegmentStore
from storage.stats import Stats
from storage.types import MIB, ByteRange, Checksum, ChecksumAlgorithm, ObjectName
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.running_engine import bytes_of, until
from tests.unit.storage.test_bodies import NAME, PlainWorkers, Source

SIZE = 9 * MIB + 77
DATA = random.Random(2).randbytes(SIZE)
SETTINGS = ReadaheadSettings(memory_bytes=9 * MIB, piece_bytes=MIB, window_bytes_max=4 * MIB)
CHUNK_BYTES = MIB // 2
CLOCK = SystemClock()


def crc_of(data: bytes) -> Checksum:
    """Give the CRC of all bytes."""
    hasher = ChecksumHasher(ChecksumAlgorithm.CRC64NVME)
    hasher.update(data)
    return Checksum(ChecksumAlgorithm.CRC64NVME, base64.b64encode(hasher.digest()).decode())


class Supply(Source):
    """A source of `DATA` whose answers come a chunk at a time, in the order that `draws` says, and fail as it says.

    Attributes:
        lets_through: Whether requests of pieces ahead get their turn; `pieces_begun` counts them all.
    """

    def __init__(self, draws: random.Random, *, failing: float = 0.0, lets_through: bool = True) -> None:
        super().__init__()
        ids = iter(range(1, 10_000))
        limits = SegmentLimits(8 * MIB, 256 * MIB)
        self.segments = SegmentStore(FakeFilesystem(), limits, lambda: next(ids))
        self.segments.adopt([])
        self.workers = PlainWorkers()
        self.record = replace(self.record, size=SIZE, checksums=(crc_of(DATA),))
        self.stats = Stats()
        self.ahead = Ahead(SETTINGS, self.fills, self.stats, 64 * MIB, lambda: True, self.missing)
        self.draws = draws
        self.failing = failing
        self.lets_through = lets_through
        self.pieces_begun = 0
        self.parts = BodyParts(self, self, self.segments, self.fills, self.workers, self.ahead)

    def reader(self, start: int, stop: int) -> VersionBody:
        """Plan a read of `[start, stop)`."""
        span = ByteRange(start, stop)
        return VersionBody(self.parts, NAME, self.hold(NAME, self.record, span), span)

    def missing(self, *asked: object) -> tuple[ByteRange, ...]:
        """Say what is not here; as `Holdings.missing`."""
        _, _, span = asked
        assert isinstance(span, ByteRange)
        spans = plan(span, SIZE, self.extents)
        return tuple(
            ByteRange(one.fetch_start, one.fetch_stop) for one in spans if isinstance(one, MissingSpan)
        )

    def start_ahead(self, *asked: object) -> Fill:
        """Begin a piece; `PieceSource.start_ahead`."""
        _, _, span = asked
        assert isinstance(span, ByteRange)
        assert self.ahead.in_flight < SETTINGS.pieces_max
        if self.draws.random() < self.failing:
            raise DiskFullError("full")
        self.pieces_begun += 1
        return self._fill(span, is_ahead=True)

    def start_fill(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Fill:
        """Begin a fill for a reader."""
        assert (name, record.version_id) == (NAME, 1)
        return self._fill(span, is_ahead=False)

    def _fill(self, span: ByteRange, *, is_ahead: bool) -> Fill:
        parts = FillParts(self.segments, self.workers, self._no_room, 4 * MIB)
        fill = Fill(span, parts, self._add, joint=self.ahead.joint_of(1))
        self.fills.start(1, fill, self._answer(fill, is_ahead=is_ahead))
        return fill

    @asynccontextmanager
    async def _answer(self, fill: Fill, *, is_ahead: bool) -> AsyncIterator["Chunks"]:
        await self._turns()
        if is_ahead and not self.lets_through:
            await asyncio.Event().wait()
        if is_ahead:
            self.ahead.let_through(fill)
        await self._turns()
        if self.draws.random() < self.failing:
            raise OriginUnavailableError("as told", status=503, code="SlowDown")
        yield Chunks(self, fill.span)

    async def _turns(self) -> None:
        for _ in range(self.draws.randrange(4)):
            await CLOCK.sleep(0)


class Chunks:
    """An answer; it breaks off as the supply says."""

    def __init__(self, supply: Supply, span: ByteRange) -> None:
        self._supply = supply
        self._span = span

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body."""
        for start in range(self._span.start, self._span.stop, CHUNK_BYTES):
            await self._supply._turns()
            if self._supply.draws.random() < self._supply.failing / 4:
                raise OriginUnavailableError("broke off", status=0, code="Incomplete")
            yield DATA[start : min(self._span.stop, start + CHUNK_BYTES)]


async def read(supply: Supply, start: int, stop: int, leave_at: int) -> None:
    """Read a range, at odd moments, and leave at a position or at the end; compare."""
    body = supply.reader(start, stop)
    at = start
    try:
        with suppress(OriginUnavailableError):
            while at < leave_at:
                piece = await body.next_piece()
                if piece is None:
                    assert at == stop
                    break
                data = bytes_of(piece)
                assert data == DATA[at : at + len(data)], f"wrong bytes at {at}"
                at += len(data)
                await supply._turns()
    finally:
        await body.close()


async def settled(supply: Supply) -> None:
    """Wait until nothing is on its way, then look whether anything was left behind."""
    await until(lambda: not len(supply.fills))
    assert (supply.ahead.in_flight, supply.ahead.courses) == (0, 0)
    assert supply.pins() == 0
    counted = supply.stats.readahead_bytes
    assert counted["used"] <= counted["begun"]


RANGES = st.tuples(st.integers(0, SIZE - 1), st.integers(1, SIZE), st.integers(0, SIZE)).map(
    lambda one: (one[0], min(SIZE, one[0] + one[1]), one[2])
)
WHOLES = st.integers(0, SIZE).map(lambda leave_at: (0, SIZE, leave_at))


@pytest.mark.slow
@given(
    reads=st.lists(st.one_of(RANGES, WHOLES, st.just((0, SIZE, SIZE))), min_size=1, max_size=5),
    seed=st.integers(0, 2**32),
    failing=st.sampled_from((0.0, 0.0, 0.2)),
)
def test_bytes_are_right_and_nothing_is_left_whatever_the_order(
    reads: list[tuple[int, int, int]], seed: int, failing: float
) -> None:
    """Readers that come, go in the middle, meet failures: right bytes, never more than the bound, and all is let go of."""

    async def run() -> None:
        supply = Supply(random.Random(seed), failing=failing)
        async with asyncio.timeout(20):
            async with asyncio.TaskGroup() as group:
                for one in reads:
                    group.create_task(read(supply, *one))
            await settled(supply)

    asyncio.run(run())


async def test_pieces_that_wait_for_the_limiter_are_given_up_when_their_reader_comes() -> None:
    """A reader asks for itself for all of it, piece after piece, while nothing ahead of it gets a turn."""
    supply = Supply(random.Random(1), lets_through=False)

    async with asyncio.timeout(20):
        await read(supply, 0, SIZE, SIZE)
        await settled(supply)

    assert supply.pieces_begun > 0
    assert supply.stats.readahead_bytes == {"begun": 0, "used": 0, "wasted": 0}


async def test_a_piece_that_fails_closes_the_window_of_its_reader() -> None:
    """An origin that fails is not asked for more ahead at once."""
    supply = Supply(random.Random(1))
    body = supply.reader(0, SIZE)
    await body.next_piece()
    course = body._course
    assert course is not None
    before = course._window.goal(course._position).stop - course._position

    supply.failing = 1.0
    await until(lambda: supply.ahead.in_flight == 0)
    after = course._window.goal(course._position).stop - course._position
    await body.close()
    await settled(supply)

    assert before > MIB
    assert after == 0


async def test_a_checksum_is_settled_before_the_last_block_is_given() -> None:
    """Whatever of the object comes last, the last block waits until all of it has been compared."""
    supply = Supply(random.Random(3))
    body = supply.reader(0, SIZE)
    joint = supply.ahead.joint_of(1)
    assert joint is not None
    at = 0

    while (piece := await body.next_piece()) is not None:
        if at + len(bytes_of(piece)) > 9 * MIB:
            break
        at += len(bytes_of(piece))
    await body.close()

    assert at == 9 * MIB
    assert joint.is_settled
    assert not joint.is_refuted
