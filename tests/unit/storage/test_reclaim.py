"""Reclaim: room where clean bytes can make it, and never a dirty byte, a pinned, unsettled or open segment, or a journal file."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from storage.cached import DropSegment
from storage.errors import DamagedError
from storage.family import Family
from storage.records import ObjectState
from storage.rows import Rows
from storage.segments import segment_path
from storage.types import BLOCK_BYTES, KIB, MIB, Extent, Stream
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.index import FakeIndex
from tests.fakes.open_directory import IndexHome, OpenDirectory, open_directory
from tests.fakes.records import BUCKET
from tests.fakes.row_invariants import check_rows, objects_of
from tests.fakes.tasks import start, turns

HALF = BLOCK_BYTES // 2
TINY = b"tiny"


@pytest.fixture
def disk() -> FakeFilesystem:
    """Give a file system in memory."""
    return FakeFilesystem()


@asynccontextmanager
async def opened(
    disk: FakeFilesystem, *, segments: int = 16, room: int = 2, home: IndexHome | None = None
) -> AsyncIterator[OpenDirectory]:
    """Open a directory of so many segments of 1 MiB, of which so many are kept free."""
    async with open_directory(
        disk, home, capacity_bytes=segments * MIB, room_bytes_min=room * MIB
    ) as directory:
        yield directory
        check_rows(directory.index)


def segment_files(disk: FakeFilesystem) -> set[str]:
    """Name the segments' files."""
    return {f"segments/{name}" for name in disk.list_directory("segments")}


def place(directory: OpenDirectory, key: str) -> int:
    """Say in which segment an object begins."""
    return extents(directory, key)[0].location.segment_id


def extents(directory: OpenDirectory, key: str) -> tuple[Extent, ...]:
    """Read an object's extents."""
    stored = Rows(directory.index).object(BUCKET, key)
    assert stored is not None, key
    return Rows(directory.index).extents_of(stored)


# --- what goes -------------------------------------------------------------------------------------------------------


async def test_round_when_there_is_room(disk: FakeFilesystem) -> None:
    """Clean bytes stay while there is room."""
    async with opened(disk) as directory:
        for number in range(4):
            await directory.fill(f"k{number}", bytes(BLOCK_BYTES))
        before = segment_files(disk)

        await directory.reclaim.round()

        assert segment_files(disk) == before


async def test_round_when_room_is_short(disk: FakeFilesystem) -> None:
    """As many segments go as make the room that is kept, and not one more; their rows, files and bytes go with them."""
    async with opened(disk, segments=16, room=4) as directory:
        for number in range(15):
            await directory.fill(f"k{number}", bytes(BLOCK_BYTES))
        before = directory.segments.used_bytes

        await directory.reclaim.round()

        left = [key.key for key, record in objects_of(directory.index).items() if record.extents]
        assert directory.segments.room_bytes == 4 * MIB
        assert before - directory.segments.used_bytes == 3 * MIB
        assert len(segment_files(disk)) == 12
        assert len(left) == 12
        assert directory.reclaim._parts.stats.evicted_bytes["space"] == 3 * MIB
        assert directory.state.live_bytes == 12 * MIB


async def test_round_when_segments_are_dead(disk: FakeFilesystem) -> None:
    """Segments without a live byte go first and whether room is short or not: overwritten, deleted, failed bodies."""
    async with opened(disk) as directory:
        await directory.fill("kept", bytes(BLOCK_BYTES))
        await directory.put("overwritten", bytes(BLOCK_BYTES))
        await directory.put("overwritten", TINY)
        (failed,) = directory.segments.reserve(BLOCK_BYTES, Stream.DIRTY)
        directory.segments.write(failed, 0, b"half a body")
        directory.segments.settle([failed])
        directory.segments.reserve(1, Stream.DIRTY)  # seals the one before
        dead = segment_files(disk) - {segment_path(place(directory, "kept"))}
        assert len(dead) == 2

        await directory.reclaim.round()

        assert segment_files(disk) == {segment_path(place(directory, "kept"))}
        assert directory.reclaim._parts.stats.evicted_bytes["space"] == 0


async def test_round_when_an_open_segment_held_only_what_was_released(disk: FakeFilesystem) -> None:
    """It is sealed and goes, unless a body is on its way into it; an open segment of any other stream stays."""
    async with opened(disk) as directory:
        for stream in (Stream.RELEASED, Stream.DIRTY):
            (gone,) = directory.segments.reserve(HALF, stream)
            directory.segments.write(gone, 0, b"released")
            directory.segments.settle([gone])
        (held,) = directory.segments.reserve(HALF // 2, Stream.RELEASED)
        before = directory.segments.used_bytes

        await directory.reclaim.round()
        while_held = directory.segments.used_bytes
        directory.segments.settle([held])
        await directory.reclaim.round()

        streams = [state.stream for state in directory.segments.states()]
        assert before == while_held == 2 * HALF + HALF // 2
        assert streams == [Stream.DIRTY]
        assert directory.segments.used_bytes == HALF


async def test_reclaim_looks_at_once_when_a_segment_died(disk: FakeFilesystem) -> None:
    """A sealed segment without a live byte does not wait for the next look."""
    async with opened(disk) as directory:
        await directory.put("k", bytes(BLOCK_BYTES))
        await directory.put("other", bytes(BLOCK_BYTES))  # seals the one before
        directory.state.listeners.append(directory.reclaim.absorb)
        directory.reclaim._wanted.clear()

        await directory.put("k", TINY)

        assert directory.reclaim._wanted.is_set()


async def test_round_when_orphans_are_left_by_a_crash(disk: FakeFilesystem) -> None:
    """Segments that no row names after a start are unlinked."""
    async with opened(disk) as directory:
        await directory.fill("lost", bytes(BLOCK_BYTES))
        await directory.put("kept", bytes(BLOCK_BYTES))
    async with opened(disk.kill_clone(), home=IndexHome()) as directory:
        left = directory.filesystem
        assert isinstance(left, FakeFilesystem)
        assert len(segment_files(left)) == 2

        await directory.reclaim.round()

        assert segment_files(left) == {segment_path(place(directory, "kept"))}


async def test_round_when_one_object_lies_in_several_segments(disk: FakeFilesystem) -> None:
    """An object loses what was in the segment that goes, and keeps the rest."""
    async with opened(disk, segments=8, room=1) as directory:
        await directory.fill("large", bytes(4 * BLOCK_BYTES))
        await directory.fill("more", bytes(4 * BLOCK_BYTES - KIB))

        await directory.reclaim.round()

        assert [extent.start // BLOCK_BYTES for extent in extents(directory, "large")] == [1, 2, 3]


# --- what stays ------------------------------------------------------------------------------------------------------


async def test_round_when_all_is_dirty(disk: FakeFilesystem) -> None:
    """A dirty byte is never given up for room, of an object or of an upload's part."""
    async with opened(disk, segments=8, room=8) as directory:
        await directory.put("object", bytes(3 * BLOCK_BYTES))
        upload_id = await directory.create_upload("upload")
        await directory.put_part(upload_id, 1, bytes(2 * BLOCK_BYTES))
        before = segment_files(disk)

        await directory.reclaim.round()

        assert segment_files(disk) == before
        assert directory.state.dirty_bytes == 5 * MIB


async def test_round_when_dirty_and_clean_share_a_segment(disk: FakeFilesystem) -> None:
    """One dirty byte keeps a whole segment; confirmed, it goes."""
    async with opened(disk, segments=8, room=8) as directory:
        await directory.put("flushed", bytes(HALF))
        await directory.put("dirty", bytes(HALF))
        await directory.put("next", bytes(HALF))  # seals the first segment
        await directory.flush("flushed")

        await directory.reclaim.round()
        while_dirty = segment_files(disk)
        await directory.flush("dirty")
        await directory.reclaim.round()

        assert len(while_dirty) == 2
        assert extents(directory, "flushed") == extents(directory, "dirty") == ()
        assert segment_files(disk) == {segment_path(place(directory, "next"))}


async def test_drop_segment_when_it_gets_dirty_on_the_way(disk: FakeFilesystem) -> None:
    """Whatever the loop believes, the writer thread has the last word: a segment with dirty bytes stays."""
    async with opened(disk, segments=8, room=8) as directory:
        await directory.put("dirty", bytes(BLOCK_BYTES))
        segment_id = place(directory, "dirty")
        directory.state.segments.clear()

        await directory.reclaim.round()

        assert segment_path(segment_id) in segment_files(disk)
        assert not await directory.applier.change(DropSegment(segment_id))


async def test_round_when_segment_is_being_read(disk: FakeFilesystem) -> None:
    """A pinned segment is not chosen; a dead one that is pinned loses its rows and keeps its file until it is let go."""
    async with opened(disk, segments=8, room=8) as directory:
        await directory.fill("read", bytes(BLOCK_BYTES))
        await directory.put("dead", bytes(BLOCK_BYTES))
        read, dead = place(directory, "read"), place(directory, "dead")
        for stream in (Stream.CLEAN, Stream.DIRTY):
            directory.segments.reserve(1, stream)  # seals the one before
        await directory.put("dead", TINY)
        with directory.segments.pin([read, dead]):
            file = directory.segments.reader(dead)

            await directory.reclaim.round()

            assert extents(directory, "read")
            assert file.pread(0, 4) == bytes(4)
            assert segment_files(disk) == {segment_path(read), segment_path(dead)}
        await directory.reclaim.round()

        assert segment_files(disk) == set()


async def test_round_when_range_is_not_settled(disk: FakeFilesystem) -> None:
    """A segment whose row may yet come stays, however dead it looks."""
    async with opened(disk, segments=8, room=8) as directory:
        (held,) = directory.segments.reserve(BLOCK_BYTES, Stream.CLEAN)
        directory.segments.write(held, 0, bytes(BLOCK_BYTES))
        directory.segments.reserve(1, Stream.CLEAN)

        await directory.reclaim.round()
        while_held = segment_files(disk)
        directory.segments.settle([held])
        await directory.reclaim.round()

        assert while_held == {segment_path(held.segment_id)}
        assert segment_files(disk) == set()


async def test_round_when_segment_is_open(disk: FakeFilesystem) -> None:
    """The segment that gives out space stays, though all in it is dead."""
    async with opened(disk, segments=8, room=8) as directory:
        await directory.put("key", bytes(HALF))
        await directory.put("key", TINY)
        before = segment_files(disk)

        await directory.reclaim.round()

        assert segment_files(disk) == before


async def test_round_when_tiny_bodies_are_clean(disk: FakeFilesystem) -> None:
    """A journal file is never reclaimed, whatever lies in it and however little is dirty: it is the truth."""
    async with opened(disk, segments=8, room=8) as directory:
        for number in range(20):
            await directory.put(f"k{number}", TINY)
            await directory.flush(f"k{number}")
        directory.journal.rotate()
        await directory.put("large", bytes(BLOCK_BYTES))
        before = disk.list_directory("journal")

        for _ in range(3):
            await directory.reclaim.round()

        assert disk.list_directory("journal") == before
        assert len(extents(directory, "k0")) == 1


# --- room that is waited for -----------------------------------------------------------------------------------------


@asynccontextmanager
async def reclaiming(directory: OpenDirectory) -> AsyncIterator[None]:
    """Let reclaim run beside the test."""
    running = start(directory.reclaim.run())
    try:
        yield
        assert not running.done()
    finally:
        running.cancel()


async def test_make_room_when_body_is_larger_than_what_is_kept_free(disk: FakeFilesystem) -> None:
    """Room is made for what is asked for, beyond what is kept free anyway."""
    async with opened(disk, segments=16, room=1) as directory, reclaiming(directory):
        await directory.fill("old", bytes(15 * BLOCK_BYTES))

        is_made = await directory.reclaim.make_room(10 * MIB)

        assert is_made
        assert 10 * MIB <= directory.segments.room_bytes <= 12 * MIB


async def test_make_room_when_several_wait(disk: FakeFilesystem) -> None:
    """Each of several bodies that wait finds its room."""
    async with opened(disk, segments=16, room=1) as directory, reclaiming(directory):
        await directory.fill("old", bytes(16 * BLOCK_BYTES))
        waiting = [start(directory.reclaim.make_room(4 * MIB)) for _ in range(3)]

        results = [await task for task in waiting]

        assert results == [True, True, True]
        assert directory.segments.room_bytes >= 12 * MIB


async def test_make_room_when_nothing_can_go(disk: FakeFilesystem) -> None:
    """Where all is dirty it is told at once, so that the caller goes through to the origin."""
    async with opened(disk, segments=8, room=1) as directory, reclaiming(directory):
        await directory.put("dirty", bytes(8 * BLOCK_BYTES))

        assert not await directory.reclaim.make_room(MIB)


async def test_make_room_when_readers_let_go(disk: FakeFilesystem) -> None:
    """Room that a reader holds up comes when the reader is done."""
    async with opened(disk, segments=4, room=0) as directory, reclaiming(directory):
        await directory.fill("read", bytes(4 * BLOCK_BYTES))
        pin = directory.segments.pin([e.location.segment_id for e in extents(directory, "read")])
        making = start(directory.reclaim.make_room(2 * MIB))
        await turns()
        was_made = making.done()

        pin.release()

        assert not was_made
        assert await making


@pytest.mark.slow
async def test_run_when_index_or_disk_refuses(disk: FakeFilesystem) -> None:
    """A refusal is waited out: it ends neither reclaim nor the engine."""
    async with opened(disk, segments=8, room=1) as directory, reclaiming(directory):
        await directory.fill("old", bytes(8 * BLOCK_BYTES))
        disk.fail(Operation.UNLINK)

        is_made = await directory.reclaim.make_room(4 * MIB)

        assert is_made


class DamagedIndex(FakeIndex):
    """An index whose residents cannot be read."""

    is_damaged = False

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Read rows."""
        if self.is_damaged and family is Family.RESIDENTS:
            raise DamagedError("index row cannot be read")
        return super().scan(family, start, stop, limit, reverse=reverse)


async def test_run_when_a_row_cannot_be_read(disk: FakeFilesystem) -> None:
    """A damaged row keeps its segment, and reclaim and engine alive."""
    home = IndexHome.of(DamagedIndex)
    async with open_directory(disk, home, capacity_bytes=8 * MIB, room_bytes_min=MIB) as directory:
        await directory.fill("old", bytes(8 * BLOCK_BYTES))
        assert isinstance(home.index, DamagedIndex)
        home.index.is_damaged = True
        async with reclaiming(directory):
            directory.reclaim._wanted.set()
            await turns()

            assert len(segment_files(disk)) == 8


# --- over time -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
async def test_cache_when_many_times_its_size_goes_through(disk: FakeFilesystem, seed: int) -> None:
    """The directory stays under its limit, nothing dirty is lost, and no write is refused while clean bytes can go (B52)."""
    draws, dirty = random.Random(seed), dict[str, bytes]()
    capacity = 16 * MIB
    async with opened(disk, segments=16, room=4) as directory, reclaiming(directory):
        for step in range(160):
            key, size = f"k{draws.randrange(30)}", draws.choice([1000, 300 * KIB, MIB, 2 * MIB + 7])
            data = draws.randbytes(size)
            is_put = draws.random() < 0.4
            if not is_put and key not in dirty:
                if directory.segments.room_bytes >= 3 * MIB or await directory.reclaim.make_room(3 * MIB):
                    await directory.fill(key, data)
            elif is_put and sum(map(len, dirty.values())) < 4 * MIB:
                assert directory.segments.room_bytes >= 3 * MIB or await directory.reclaim.make_room(3 * MIB)
                await directory.put(key, data)
                dirty[key] = data
            elif dirty:
                flushed = draws.choice(sorted(dirty))
                await directory.flush(flushed)
                del dirty[flushed]
            if step % 8 == 0:
                await turns()

            used = sum(len(disk.contents(path)) for path in segment_files(disk))
            assert used <= capacity
            assert directory.segments.used_bytes <= capacity

        for key, data in dirty.items():
            read = b"".join(
                directory.segments.read(extent.location, 0, extent.location.length)
                for extent in extents(directory, key)
            )
            assert read == data
        states = {record.state for record in objects_of(directory.index).values()}
        assert states <= {ObjectState.CLEAN, ObjectState.DIRTY}
