"""Bodies on their way in, over the file system in memory."""

import asyncio
import errno
import random
from itertools import count

import pytest
from hypothesis import given, settings, strategies as st

from storage.errors import DiskFailedError, DiskFullError, UnknownOutcomeError
from storage.intake import BAD_DISK_S, HELD_BODY_BYTES_MAX, BodyIntake, HeldBodies, HeldContent, Inlet
from storage.records import NOWHERE
from storage.requests import Content
from storage.segments import SegmentLimits, SegmentStore
from storage.types import KIB, MIB, TINY_BODY_BYTES_MAX, Stream
from storage.workers import ThreadWorkers
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.running_engine import BytesContent, ShiftedClock
from tests.fakes.workers import InlineWorkers
from tests.fakes.writing import BrokenContent, md5, pause

WORKERS = InlineWorkers()


def make_store(
    disk: FakeFilesystem, *, capacity_bytes: int = 64 * MIB, disk_reserve_bytes: int = 0
) -> SegmentStore:
    """Make a started store of segments of 4 MiB."""
    limits = SegmentLimits(4 * MIB, capacity_bytes, disk_reserve_bytes)
    store = SegmentStore(disk, limits, count(1).__next__)
    store.adopt(frozenset())
    return store


def unsettled(store: SegmentStore) -> list[int]:
    """Name the segments with a range that somebody holds."""
    return [state.segment_id for state in store.states() if not state.is_settled]


def bytes_of(length: int) -> bytes:
    """Make bytes that repeat nowhere near."""
    return random.Random(length).randbytes(length)


def read_back(store: SegmentStore, taken: BodyIntake) -> bytes:
    """Read what a body's extents name, each block checked."""
    data = b""
    for extent in taken.result().extents:
        assert extent.start == len(data)
        location = extent.location
        assert all(store.verify_block(location, block) for block in range(location.block_count()))
        data += store.read(location, 0, location.length)
    return data


class NoRoom:
    """Makes no room; counts who asks."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def make_room(self, size: int, *, is_for_write: bool) -> bool:
        """Refuse."""
        assert is_for_write
        self.asked.append(size)
        return False


# --- one body -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, TINY_BODY_BYTES_MAX])
async def test_tiny_body_stays_in_memory_and_takes_no_space(size: int) -> None:
    """A body that rides in the journal names no segment yet, and an empty one nothing at all."""
    store = make_store(FakeFilesystem())
    data = bytes_of(size)

    with BodyIntake(store, WORKERS, BytesContent(data), Stream.DIRTY) as body:
        taken = await body.take()

    assert (taken.size, taken.md5_hex, taken.tiny) == (size, md5(data), data)
    assert [extent.location.segment_id for extent in taken.extents] == [NOWHERE.segment_id] * bool(size)
    assert store.used_bytes == 0


@settings(max_examples=25)
@given(size=st.integers(TINY_BODY_BYTES_MAX + 1, 10 * MIB), piece=st.integers(100 * KIB, 3 * MIB))
def test_body_is_on_disk_as_it_came_whatever_its_pieces(size: int, piece: int) -> None:
    """Bytes, MD5 and block checksums are those of the body, across segments and however it is cut on its way."""
    store = make_store(FakeFilesystem())
    data = bytes_of(size)

    async def take() -> bytes:
        with BodyIntake(
            store, WORKERS, BytesContent(data, piece_bytes=min(piece, MIB)), Stream.DIRTY
        ) as body:
            taken = await body.take()
            assert (taken.size, taken.md5_hex) == (size, md5(data))
            return read_back(store, body)

    assert asyncio.run(take()) == data
    assert unsettled(store) == []


async def test_long_body_is_durable_before_its_commit_and_a_short_one_is_left_to_it() -> None:
    """A body over a block is synced while it streams, so that a small commit never waits for it; others ride with the group."""
    disk = FakeFilesystem()
    store = make_store(disk)

    with BodyIntake(store, WORKERS, BytesContent(bytes_of(200 * KIB)), Stream.DIRTY) as body:
        await body.take()
    syncs = [call for call in disk.calls if call.operation is Operation.FDATASYNC]
    with BodyIntake(store, WORKERS, BytesContent(bytes_of(20 * MIB)), Stream.DIRTY) as body:
        await body.take()
    more = [call for call in disk.calls if call.operation is Operation.FDATASYNC]

    assert syncs == []
    assert len(more) >= 20 // 8 + 1


async def test_refused_space_is_told_before_a_byte_is_read() -> None:
    """A body that does not fit raises at its head and holds nothing."""
    store = make_store(FakeFilesystem(), capacity_bytes=8 * MIB)

    with pytest.raises(DiskFullError):
        BodyIntake(store, WORKERS, BytesContent(bytes_of(9 * MIB)), Stream.DIRTY)

    assert unsettled(store) == []
    assert store.used_bytes == 0


async def test_tiny_body_is_refused_when_the_disk_has_only_its_reserve_left() -> None:
    """The journal's reserve is for the way out, flush confirmations, not for more to be flushed."""
    disk = FakeFilesystem(disk_bytes_max=MIB)
    store = make_store(disk, disk_reserve_bytes=MIB)

    with pytest.raises(DiskFullError, match="reserve"):
        BodyIntake(store, WORKERS, BytesContent(b"x"), Stream.DIRTY)


async def test_failed_check_leaves_dead_space_and_no_hold() -> None:
    """What the content raises passes through; the space is nobody's."""
    store = make_store(FakeFilesystem())
    content = BrokenContent(3 * MIB, 2 * MIB, ValueError("the client went away"))

    with (
        pytest.raises(ValueError, match="went away"),
        BodyIntake(store, WORKERS, content, Stream.DIRTY) as body,
    ):
        await body.take()

    assert unsettled(store) == []


@pytest.mark.parametrize(
    ("operation", "number", "expected"),
    [
        (Operation.PWRITE, errno.EIO, DiskFailedError),
        (Operation.PWRITE, errno.ENOSPC, DiskFullError),
        (Operation.CREATE, errno.EIO, DiskFailedError),
        (Operation.FDATASYNC, errno.EIO, UnknownOutcomeError),
    ],
)
async def test_refusal_of_the_disk_ends_the_body(
    operation: Operation, number: int, expected: type[Exception]
) -> None:
    """A write or sync that fails is told, whichever of the body's it is, and the space is given up."""
    disk = FakeFilesystem()
    store = make_store(disk)
    disk.fail(operation, error_number=number)

    with (
        pytest.raises(expected),
        BodyIntake(store, WORKERS, BytesContent(bytes_of(3 * MIB)), Stream.DIRTY) as body,
    ):
        await body.take()

    assert unsettled(store) == []


async def test_body_longer_than_it_said_is_a_bug_and_not_a_loop() -> None:
    """A content that breaks its promise of a size is stopped."""
    store = make_store(FakeFilesystem())
    content = BrokenContent(MIB, 2 * MIB, ValueError("never reached"))

    with pytest.raises(AssertionError), BodyIntake(store, WORKERS, content, Stream.DIRTY) as body:
        await body.take()

    assert unsettled(store) == []


async def test_cancelled_body_holds_nothing_though_a_write_is_under_way() -> None:
    """Cancelling between two steps of a worker thread gives the space up; the late write is refused and does no harm."""
    disk = FakeFilesystem()
    store = make_store(disk)
    workers = ThreadWorkers("pool", 2)
    rng = random.Random(3)

    async def take(content: Content) -> None:
        with BodyIntake(store, workers, content, Stream.DIRTY) as body:
            await body.take()

    for _ in range(30):
        task = asyncio.get_running_loop().create_task(take(BytesContent(bytes_of(3 * MIB))))
        await pause(rng.random() * 0.01)
        task.cancel()
        await asyncio.wait([task])
        for segment_id in [state.segment_id for state in store.states() if state.is_sealed]:
            store.remove(segment_id)
        for segment_id in store.take_removable():
            store.unlink(segment_id)
    workers.close()

    assert unsettled(store) == []


# --- a copy of what goes through ----------------------------------------------------------------------------------------


async def test_copy_has_all_bytes_when_the_last_piece_is_handed_on() -> None:
    """Whoever forwards the last piece may be answered before it asks for more: the copy is whole by then."""
    store = make_store(FakeFilesystem())
    data = bytes_of(3 * MIB + 5)
    received = 0

    with BodyIntake(store, WORKERS, BytesContent(data, piece_bytes=300 * KIB), Stream.CLEAN) as body:
        async for piece in body.pieces():
            received += len(piece)
            assert (body.kept() is not None) == (received == len(data))
        kept = body.kept()
        copied = read_back(store, body)

    assert kept is not None
    assert (kept.md5_hex, copied) == (md5(data), data)


@pytest.mark.parametrize("nth", [1, 2, 3])
async def test_stream_goes_on_when_the_disk_refuses_its_copy(nth: int) -> None:
    """A disk that fails costs the copy, never the write that goes through."""
    disk = FakeFilesystem()
    store = make_store(disk)
    data = bytes_of(3 * MIB)
    disk.fail(Operation.PWRITE, nth=nth, error_number=errno.ENOSPC, is_persistent=True)

    with BodyIntake(store, WORKERS, BytesContent(data), Stream.CLEAN) as body:
        streamed = b"".join([piece async for piece in body.pieces()])

    assert streamed == data
    assert body.kept() is None
    assert unsettled(store) == []


# --- where bodies begin -------------------------------------------------------------------------------------------------


async def test_inlet_makes_room_when_there_is_none_and_gives_up_when_none_comes() -> None:
    """Clean bytes go before a body is refused; None says that it has to go elsewhere, unread."""
    store = make_store(FakeFilesystem(), capacity_bytes=8 * MIB)
    room = NoRoom()
    inlet = Inlet(store, WORKERS, room, ShiftedClock())

    begun = await inlet.begin(BytesContent(bytes_of(3 * MIB)))
    assert begun is not None
    assert await inlet.begin(BytesContent(bytes_of(7 * MIB))) is None

    assert room.asked == [7 * MIB + 4 * MIB]
    begun.__exit__()


async def test_inlet_sends_bodies_elsewhere_while_the_disk_is_bad_and_tries_again_later() -> None:
    """After a refused write bodies go through from their first byte, for a while; then the disk is tried again."""
    store = make_store(FakeFilesystem())
    clock = SetClock()
    inlet = Inlet(store, WORKERS, NoRoom(), clock)

    with pytest.raises(DiskFailedError), inlet.watching_disk():
        raise DiskFailedError("EIO")
    while_bad = await inlet.begin(BytesContent(b"x"))
    clock.now_s += BAD_DISK_S
    later = await inlet.begin(BytesContent(b"x"))

    assert while_bad is None
    assert later is not None


async def test_inlet_does_not_call_the_disk_bad_when_a_client_fails() -> None:
    """A body that fails its check says nothing of the disk."""
    inlet = Inlet(make_store(FakeFilesystem()), WORKERS, NoRoom(), ShiftedClock())

    with pytest.raises(ValueError, match="digest"), inlet.watching_disk():
        raise ValueError("digest")

    assert await inlet.begin(BytesContent(b"x")) is not None


class SetClock(ShiftedClock):
    """A clock that stands."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0

    def monotonic_s(self) -> float:
        """Read it."""
        return self.now_s


# --- bodies in memory ---------------------------------------------------------------------------------------------------


async def test_held_content_can_be_read_twice() -> None:
    """What is in memory can be sent again, with the checksums that the original verified."""
    data = bytes_of(3 * MIB)

    held = await HeldContent.take(BytesContent(data))

    assert b"".join([piece async for piece in held.chunks()]) == data
    assert b"".join([piece async for piece in held.chunks()]) == data
    assert held.md5_digest().hex() == md5(data)


def test_held_bodies_are_bounded_one_by_one_and_together() -> None:
    """A long body, or one too many, is not held; each gives its room back, failed or not."""
    held = HeldBodies(limit_bytes=2 * HELD_BODY_BYTES_MAX)

    with (
        held.room(HELD_BODY_BYTES_MAX) as first,
        held.room(HELD_BODY_BYTES_MAX) as second,
        held.room(1) as third,
    ):
        assert (first, second, third) == (True, True, False)
    with held.room(HELD_BODY_BYTES_MAX + 1) as long:
        assert not long
    with pytest.raises(ValueError, match="x"), held.room(5):
        raise ValueError("x")

    assert held.taken_bytes == 0
