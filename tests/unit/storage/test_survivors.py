"""Survivors: what a segment keeps when it goes lies elsewhere before its rows say so, and is never another's bytes."""

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from bench.replay import PinsNothing
from storage.eviction import EvictionPolicy, ExtentUse, Kept, Victim
from storage.rows import Rows
from storage.types import KIB, MIB, Extent, Stream
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.open_directory import IndexHome, OpenDirectory, open_directory
from tests.fakes.records import BUCKET
from tests.fakes.row_invariants import check_rows

PIECE = 300 * KIB


class KeepsFirst(PinsNothing):
    """A policy that gives up the oldest segment, and keeps the object at its beginning."""

    def __init__(self) -> None:
        self.segments: list[int] = []
        self.moves: list[tuple[int, Kept, int, int]] = []

    def admit(self, use: ExtentUse, *, has_room: bool, is_next: bool = False) -> Stream | None:
        """Admit all."""
        del use, has_room, is_next
        return Stream.CLEAN

    def announced(self, use: ExtentUse) -> None:
        """Learn nothing of it."""

    def found(self, segment_id: int, live_bytes: int) -> None:
        """Remember the segment."""
        del live_bytes
        if segment_id not in self.segments:
            self.segments.append(segment_id)

    def admitted(self, use: ExtentUse, segment_id: int, offset: int) -> None:
        """Leave it."""

    def accessed(self, use: ExtentUse, segment_id: int | None, offset: int = 0) -> None:
        """Leave it."""

    def touched(self, segment_id: int, offset: int, length: int) -> bool:
        """Leave it."""
        del segment_id, offset, length
        return True

    def moved(self, segment_id: int, kept: Kept, to_segment_id: int, to_offset: int) -> None:
        """Remember the move."""
        self.moves.append((segment_id, kept, to_segment_id, to_offset))

    def removed(self, segment_id: int) -> None:
        """Forget it."""
        self.segments.remove(segment_id)

    def choose(self, is_reclaimable: Callable[[int], bool]) -> Victim | None:
        """Take the oldest."""
        found = next((one for one in self.segments if is_reclaimable(one)), None)
        return None if found is None else Victim(found, (Kept(0, PIECE, Stream.KEPT),))


def content(number: int) -> bytes:
    """Give an object's bytes."""
    return bytes([number]) * PIECE


def extents(directory: OpenDirectory, key: str) -> tuple[Extent, ...]:
    """Read an object's extents."""
    record = Rows(directory.index).object(BUCKET, key)
    assert record is not None
    return Rows(directory.index).extents_of(record)


def read(directory: OpenDirectory, key: str) -> bytes:
    """Read what is here of an object, each block held against its checksum."""
    found = extents(directory, key)
    for extent in found:
        assert all(
            directory.segments.verify_block(extent.location, b) for b in range(extent.location.block_count())
        )
    return b"".join(directory.segments.read(e.location, 0, e.location.length) for e in found)


@asynccontextmanager
async def filled(
    disk: FakeFilesystem, policy: EvictionPolicy | None, home: IndexHome | None = None
) -> AsyncIterator[OpenDirectory]:
    """Fill a cache of eight segments until four of them are short."""
    async with open_directory(
        disk, home, capacity_bytes=8 * MIB, room_bytes_min=4 * MIB, policy=policy
    ) as directory:
        for number in range(16):
            await directory.fill(f"k{number}", content(number))
        yield directory


async def test_round_when_a_victim_keeps_something() -> None:
    """The kept object lies in another segment, whole and with its checksums; the rest is dropped; rows and books agree."""
    policy = KeepsFirst()
    async with filled(FakeFilesystem(), policy) as directory:
        before = extents(directory, "k0")[0].location

        await directory.reclaim.round()

        (after,) = extents(directory, "k0")
        assert after.location.segment_id != before.segment_id
        assert read(directory, "k0") == content(0)
        assert extents(directory, "k1") == ()
        assert directory.segments.state(before.segment_id) is None
        assert policy.moves[0][0] == before.segment_id
        assert directory.reclaim._parts.stats.rewritten_bytes >= PIECE
        check_rows(directory.index)


async def test_round_when_a_kept_block_is_damaged() -> None:
    """A block that has not its checksum is not carried on: it goes with its segment, and is a miss."""
    disk = FakeFilesystem()
    async with filled(disk, KeepsFirst()) as directory:
        place = extents(directory, "k0")[0].location
        file = disk.open(f"segments/{place.segment_id:016x}.seg")
        file.pwrite(place.offset + 7, b"rotten")
        file.close()

        await directory.reclaim.round()

        assert extents(directory, "k0") == ()
        check_rows(directory.index)


async def test_round_when_a_kept_object_is_overwritten_meanwhile() -> None:
    """A copy of what is not the object's any more is not named by its row."""
    async with filled(FakeFilesystem(), KeepsFirst()) as directory:
        victim = directory.reclaim._parts.policy.choose(directory.reclaim._is_reclaimable)
        assert victim is not None
        survivors = directory.reclaim._parts.survivors
        found = survivors._find(victim)
        await directory.fill("k0", content(77))

        moved = await survivors._move(found)

        assert moved == []
        assert read(directory, "k0") == content(77)
        check_rows(directory.index)


async def test_power_cut_when_survivors_were_moved() -> None:
    """After a power cut a survivor's copy may be lost: then its row's checksum says so, and no read gives other bytes."""
    disk = FakeFilesystem()
    home = IndexHome()
    async with filled(disk, KeepsFirst(), home) as directory:
        await directory.reclaim.round()
        await directory.applier.checkpoint()
        cut = disk.crash_clone(random.Random(4))

        async with open_directory(cut, IndexHome(home.index), capacity_bytes=8 * MIB) as after:
            for number in range(16):
                for extent in extents(after, f"k{number}"):
                    place = extent.location
                    state = after.segments.state(place.segment_id)
                    if state is None or state.size_bytes < place.offset + place.length:
                        continue  # gone: a miss
                    if after.segments.verify_block(place, 0):
                        assert after.segments.read(place, 0, place.length) == content(number)
