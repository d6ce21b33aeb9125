"""What is held of a version whose extents stand in rows of their own, while the writer thread goes on."""

import random
from collections.abc import AsyncIterator

import pytest

from storage import keys
from storage.errors import ObjectChangedError
from storage.family import Family
from storage.types import MIB, ByteRange, ObjectName, RangeSpec
from tests.fakes.running_engine import BUCKET, FakeIndexHome, RunningEngine, running_engine

NAME = ObjectName(BUCKET, "key")
DATA = random.Random(1).randbytes(18 * MIB)
OTHER = random.Random(2).randbytes(18 * MIB)
ROW = keys.object_key(BUCKET, "key")


@pytest.fixture
async def running() -> AsyncIterator[RunningEngine]:
    """Run an engine whose segments are of one MiB, and whose flush does not come to an end."""
    async with running_engine(cache_bytes=256 * MIB, index_home=FakeIndexHome()) as running:
        gate = running.origin.hold("PUT", "bucket/key")
        await running.put("key", DATA)
        yield running
        gate.open()


async def test_an_overwrite_between_row_and_extents_is_not_a_loss(running: RunningEngine) -> None:
    """A read that met the old row and the new one's extents starts over, and gets the new version whole."""
    index = running.engine._recovered.index
    old = index.get(Family.OBJECTS, ROW)
    await running.put("key", OTHER)
    get, left = index.get, [old]

    def stale(family: Family, key: bytes, /) -> bytes | None:
        return left.pop() if left and (family, key) == (Family.OBJECTS, ROW) else get(family, key)

    index.get = stale  # type: ignore[method-assign]  # as if the overwrite were applied right after the first read

    got = await running.get("key")

    assert not left
    assert got.data == OTHER


async def test_only_what_is_wanted_is_held(running: RunningEngine) -> None:
    """A range costs the extents of its blocks; a description none."""
    holdings = running.engine._components.holdings
    record = holdings.record(NAME)
    assert record is not None

    held = holdings.held(NAME, record, ByteRange(5 * MIB + 7, 6 * MIB + 8))
    described = holdings.held(NAME, record, ByteRange(0, 0))

    assert held is not None
    assert described is not None
    assert [(e.start, e.stop) for e in held.extents] == [(5 * MIB, 6 * MIB), (6 * MIB, 7 * MIB)]
    assert described.extents == ()
    held.pin.release()
    described.pin.release()


async def test_another_part_than_it_was_opened_for_can_be_read(running: RunningEngine) -> None:
    """What is held is not all that can be read."""
    opened = await running.engine.open_object(NAME, RangeSpec(start=0, stop=MIB))
    body = opened.read(ByteRange(9 * MIB, 9 * MIB + 5))
    await opened.close()

    piece = await body.next_piece()
    await body.close()

    assert piece is not None
    assert not isinstance(piece, bytes)
    assert piece.file.pread(piece.offset, piece.length) == DATA[9 * MIB : 9 * MIB + 5]


async def test_a_part_that_was_overwritten_since_the_opening_is_not_called_lost(
    running: RunningEngine,
) -> None:
    """The bytes of a version that only the gateway had went with it; who asks for them opens anew."""
    opened = await running.engine.open_object(NAME, metadata_only=True)
    await running.put("key", OTHER)

    with pytest.raises(ObjectChangedError):
        opened.read(ByteRange(0, 5))

    await opened.close()
