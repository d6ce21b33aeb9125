"""Bytes on their way to the origin: where they are read, and that nothing wrong leaves."""

from collections.abc import Callable
from itertools import count
from typing import ParamSpec, TypeVar

import pytest

from storage.errors import DirtyBytesLostError
from storage.outgoing import READ_HERE_BYTES_MAX, Outgoing, ReadRefusedError
from storage.segments import BlockChecksums, SegmentLimits, SegmentStore, segment_path
from storage.types import BLOCK_BYTES, MIB, ByteRange, Extent, Location, Stream
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.workers import InlineWorkers

P = ParamSpec("P")
T = TypeVar("T")


class CountingWorkers(InlineWorkers):
    """Counts the calls that would have taken a thread."""

    def __init__(self) -> None:
        self.calls = 0

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run `call` and count it."""
        self.calls += 1
        return await super().run(call, *args, **kwargs)


class Bench:
    """One body in a segment of a file system in memory."""

    def __init__(self, size: int) -> None:
        self.disk = FakeFilesystem()
        self.segments = SegmentStore(self.disk, SegmentLimits(8 * MIB, 64 * MIB), count(1).__next__)
        self.segments.adopt([])
        self.workers = CountingWorkers()
        self.data = bytes(range(251)) * (size // 251 + 1)
        self.data = self.data[:size]
        (place,) = self.segments.reserve(size, Stream.DIRTY)
        self.segments.write(place, 0, self.data)
        self.segments.settle((place,))
        sums = BlockChecksums()
        sums.update(self.data)
        self.path = segment_path(place.segment_id)
        self.extent = Extent(0, size, Location(place.segment_id, place.offset, size, sums.digest()))

    async def sent(self) -> bytes:
        """Read the whole body as a flush does."""
        extents = (self.extent,)
        outgoing = Outgoing(self.segments, self.workers)
        with outgoing.pin(extents):
            body = outgoing.body(extents, ByteRange(0, self.extent.stop), md5_hex="00" * 16)
            return b"".join([piece async for piece in body.content()])


async def test_a_small_block_in_memory_takes_no_thread() -> None:
    """It is read and checked where the flush runs."""
    bench = Bench(READ_HERE_BYTES_MAX)

    assert await bench.sent() == bench.data
    assert bench.workers.calls == 0


async def test_a_block_that_is_not_in_memory_is_read_by_a_thread() -> None:
    """The event loop does not wait for the disk."""
    bench = Bench(1000)
    bench.disk.cold_paths.add(bench.path)

    assert await bench.sent() == bench.data
    assert bench.workers.calls == 1


async def test_long_blocks_are_read_by_a_thread() -> None:
    """Nor does it hash for long; the short end of a long body is read at once."""
    bench = Bench(2 * BLOCK_BYTES + 10)

    assert await bench.sent() == bench.data
    assert bench.workers.calls == 2


@pytest.mark.parametrize("is_cold", [False, True])
async def test_wrong_bytes_do_not_leave(*, is_cold: bool) -> None:
    """Wherever they are read, they are held against their checksum first."""
    bench = Bench(1000)
    place = bench.extent.location
    file = bench.disk.open(bench.path)
    file.pwrite(place.offset + 500, b"\xff\xff")
    if is_cold:
        bench.disk.cold_paths.add(bench.path)

    with pytest.raises(DirtyBytesLostError):
        await bench.sent()


async def test_a_read_that_the_disk_refuses_is_told_as_such() -> None:
    """A refusal says nothing of the bytes: they are not called lost."""
    bench = Bench(1000)
    bench.disk.fail(Operation.PREAD, is_persistent=True)

    with pytest.raises(ReadRefusedError):
        await bench.sent()
