"""Reclaim among pins: they go last and for writes alone, are written again where their segment goes, and never keep it from making room."""

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterator
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import pytest
from hypothesis import given, settings, strategies as st

from storage.cached import DropSegment
from storage.errors import DiskFullError
from storage.eviction import EvictionPolicy, Victim
from storage.gittins_policy import GittinsPolicy
from storage.policy import Policy, PolicyTable, RetentionPriority
from storage.rows import Rows
from storage.segments import Reservation
from storage.types import KIB, MIB, Stream
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.open_directory import IndexHome, OpenDirectory, open_directory
from tests.fakes.records import BUCKET
from tests.fakes.row_invariants import check_rows

T = TypeVar("T")

SEGMENTS = 16
PINS = PolicyTable((Policy(BUCKET, "pinned/", priority=RetentionPriority.PINNED),))
SIZE = 256 * KIB


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """Let room take its time: how long is not what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage.reclaim.ROOM_WAIT_S", 120.0)
        yield


@asynccontextmanager
async def opened(
    disk: FakeFilesystem | None = None, *, room: int = 2, home: IndexHome | None = None
) -> AsyncIterator[OpenDirectory]:
    """Open a directory of 16 segments of 1 MiB, half of which may be pinned, and check its rows at the end."""
    async with open_directory(
        disk or FakeFilesystem(),
        home,
        capacity_bytes=SEGMENTS * MIB,
        room_bytes_min=room * MIB,
        policies=lambda: PINS,
    ) as directory:
        yield directory
        check_rows(directory.index)


@asynccontextmanager
async def reclaiming(directory: OpenDirectory) -> AsyncIterator[None]:
    """Run reclaim."""
    running = asyncio.get_running_loop().create_task(directory.reclaim.run())
    try:
        yield
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def cached(directory: OpenDirectory, prefix: str, count: int = 200) -> int:
    """Count the bytes that are here of the objects under a prefix, by their rows."""
    rows = Rows(directory.index)
    total = 0
    for number in range(count):
        record = rows.object(BUCKET, f"{prefix}/{number}")
        total += 0 if record is None else sum(e.location.length for e in rows.extents_of(record))
    return total


def pins_of(directory: OpenDirectory) -> int:
    """Count what is pinned, by the policy's books."""
    policy = directory.reclaim._parts.policy
    assert isinstance(policy, GittinsPolicy)
    return policy.pins.held_bytes


def prefer(policy: EvictionPolicy, segment_ids: Container[int]) -> None:
    """Have the policy choose these segments where it can without cost to a pin that it knows."""
    chosen = policy.choose

    def preferred(is_reclaimable: Callable[[int], bool]) -> Victim | None:
        victim = chosen(lambda one: one in segment_ids and is_reclaimable(one))
        return victim if victim is not None and not victim.pinned_bytes else chosen(is_reclaimable)

    policy.choose = preferred  # type: ignore[method-assign]


async def fill(directory: OpenDirectory, prefix: str, count: int, begin: int = 0) -> None:
    """Cache so many objects under a prefix."""
    for number in range(begin, begin + count):
        await directory.fill(f"{prefix}/{number}", bytes(SIZE))


async def test_pins_stay_when_all_else_goes() -> None:
    """Scans of several caches' worth go through: not a pinned byte goes, and room is kept free all the same."""
    async with opened() as directory:
        await fill(directory, "pinned", 24)
        for number in range(160):
            await fill(directory, "other", 1, begin=number)
            await directory.reclaim.round()

        assert cached(directory, "pinned") == 24 * SIZE == pins_of(directory)
        assert directory.segments.room_bytes >= 2 * MIB
        assert directory.reclaim._parts.stats.evicted_bytes["pinned"] == 0


async def test_pins_among_others_are_written_again_once() -> None:
    """What was written among other things moves to a segment of pins as its own one goes, and is not moved again."""
    async with opened() as directory:
        for number in range(12):
            await directory.put(f"pinned/{number}", bytes(SIZE))
            await directory.put(f"other/{number}", bytes(SIZE))
        for number in range(12):
            await directory.flush(f"pinned/{number}")
            await directory.flush(f"other/{number}")
        places: dict[int, set[int]] = {number: set() for number in range(12)}
        for number in range(12, 200):
            await fill(directory, "other", 1, begin=number)
            await directory.reclaim.round()
            for pinned, seen in places.items():
                record = Rows(directory.index).object(BUCKET, f"pinned/{pinned}")
                assert record is not None
                seen.update(extent.location.segment_id for extent in record.extents)

        assert cached(directory, "pinned") == 12 * SIZE == pins_of(directory)
        assert max(map(len, places.values())) == 2
        assert Stream.PINNED in {state.stream for state in directory.segments.states()}


async def test_pins_go_for_a_write_that_waits_and_not_for_a_fill() -> None:
    """Where only pins are left, a fill hears at once that there is no room; a write gets it, and what it cost is counted."""
    async with opened(room=1) as directory, reclaiming(directory):
        await fill(directory, "pinned", 32)
        for number in range(7):
            await directory.put(f"dirty-{number}", bytes(MIB))
        assert pins_of(directory) == 8 * MIB

        async with asyncio.timeout(60.0):
            assert not await directory.reclaim.make_room(3 * MIB)
        assert cached(directory, "pinned") == 8 * MIB

        assert await directory.reclaim.make_room(3 * MIB, is_for_write=True)
        gone = 8 * MIB - cached(directory, "pinned")
        assert 2 * MIB <= gone <= 4 * MIB
        assert directory.reclaim._parts.stats.evicted_bytes["pinned"] == gone
        assert pins_of(directory) == cached(directory, "pinned")


def all_room_of(directory: OpenDirectory) -> list[Reservation]:
    """Reserve all room that is left, which is some."""
    reserved = list(directory.segments.reserve(SIZE, Stream.DIRTY))
    with suppress(DiskFullError):
        while True:
            reserved += directory.segments.reserve(SIZE, Stream.DIRTY)
    return reserved


async def crowd(directory: OpenDirectory) -> None:
    """Leave nothing that could go but segments with a pin in each."""
    for number in range(3):
        await fill(directory, "pinned", 1, begin=number)
        await fill(directory, "other", 3, begin=3 * number)
    await directory.fill("seals", bytes(KIB))
    for number in range(11):
        await directory.put(f"dirty-{number}", bytes(MIB))


async def test_a_segment_whose_pins_find_no_room_is_passed_over() -> None:
    """Survivors need room before their segment gives any: where there is none, one without pins goes first."""
    async with opened(room=4) as directory:
        for number in range(3):
            await fill(directory, "pinned", 1, begin=number)
            await fill(directory, "other", 3, begin=3 * number)
        await fill(directory, "other", 4 * 10, begin=9)
        policy = directory.reclaim._parts.policy
        mixed = {one for one in directory.state.segments if policy.pinned_in(one)}
        reserved = all_room_of(directory)
        prefer(policy, mixed)

        await directory.reclaim.round()

        directory.segments.settle(reserved)
        assert cached(directory, "pinned") == 3 * SIZE
        assert directory.segments.room_bytes >= 4 * MIB
        assert directory.reclaim._parts.stats.evicted_bytes["pinned"] == 0


async def test_pins_go_where_nothing_else_is_left_and_they_find_no_room() -> None:
    """The last resort: a write is not kept waiting for pins that cannot be written again."""
    async with opened(room=1) as directory, reclaiming(directory):
        await crowd(directory)
        reserved = all_room_of(directory)

        assert await directory.reclaim.make_room(MIB, is_for_write=True)

        directory.segments.settle(reserved)


async def test_a_segment_that_went_is_not_given_up_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One whose pins found no room goes once; with what that gave the pins of the next ones are written again, and stay."""
    async with opened(room=1) as directory:
        await crowd(directory)
        reserved = all_room_of(directory)
        dropped: list[int] = []
        change = directory.applier.change

        async def noted(one: Callable[[Rows], T]) -> T:
            if isinstance(one, DropSegment):
                dropped.append(one.segment_id)
            return await change(one)

        monkeypatch.setattr(directory.applier, "change", noted)
        directory.reclaim._asked_bytes = directory.reclaim._asked_by_writes = 3 * MIB

        await directory.reclaim.round()

        directory.segments.settle(reserved)
        assert len(dropped) == len(set(dropped)) == 3
        assert cached(directory, "pinned") == 2 * SIZE
        assert directory.segments.room_bytes >= 2 * MIB


async def test_pins_of_before_a_start_stay() -> None:
    """After a start the policy knows nothing, and space is needed at once: what is pinned is found out before it would go."""
    disk, home = FakeFilesystem(), IndexHome()
    async with open_directory(disk, home, capacity_bytes=SEGMENTS * MIB) as directory:
        await fill(directory, "other", 20)
        await fill(directory, "pinned", 24)
        await directory.stop()

    async with opened(disk, home=home) as directory:
        policy = directory.reclaim._parts.policy
        prefer(policy, set(directory.state.segments))
        for number in range(100, 160):
            await fill(directory, "other", 1, begin=number)
            await directory.reclaim.round()

        assert cached(directory, "pinned") == 24 * SIZE == pins_of(directory)


async def test_overwritten_and_deleted_pins_give_their_space_back() -> None:
    """Pinned objects are written again many times over, then deleted: they take what they have, and nothing in the end."""
    async with opened(room=2) as directory:
        for turn in range(20):
            for number in range(8):
                await directory.put(f"pinned/{number}", bytes(SIZE))
                await directory.flush(f"pinned/{number}")
                await fill(directory, "other", 1, begin=(turn * 8 + number) % 100)
                await directory.reclaim.round()
            assert pins_of(directory) == 8 * SIZE == cached(directory, "pinned")
        assert directory.segments.room_bytes >= 2 * MIB
        assert directory.reclaim._parts.stats.evicted_bytes["pinned"] == 0

        for number in range(8):
            await directory.delete(f"pinned/{number}")
        assert pins_of(directory) == 0


# --- whatever happens ------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["fill", "fill", "put", "flush", "delete"]),
        st.sampled_from(["pinned", "other"]),
        st.integers(0, 15),
        st.sampled_from([1000, SIZE, MIB, 2 * MIB + 7]),
    ),
    min_size=20,
    max_size=60,
)


@settings(max_examples=25)
@given(steps=STEPS)
def test_reclaim_makes_room_for_a_write_or_nothing_clean_is_left(
    steps: list[tuple[str, str, int, int]],
) -> None:
    """Whatever is cached, written and pinned: a write is refused only where all is dirty, and the books of pins are the rows'."""
    asyncio.run(_checked(steps))


async def _checked(steps: list[tuple[str, str, int, int]]) -> None:
    async with opened() as directory:
        async with reclaiming(directory):
            await _carry_out(directory, steps)
        await directory.reclaim.round()
        assert pins_of(directory) <= cached(directory, "pinned", 16)


async def _carry_out(directory: OpenDirectory, steps: list[tuple[str, str, int, int]]) -> None:
    dirty: dict[str, int] = {}
    for step, prefix, number, size in steps:
        key = f"{prefix}/{number}"
        if step == "fill" and key not in dirty:
            if directory.segments.room_bytes >= 3 * MIB or await directory.reclaim.make_room(3 * MIB):
                await directory.fill(key, bytes(size))
        elif step == "put":
            has_room = await directory.reclaim.make_room(3 * MIB, is_for_write=True)
            reclaim = directory.reclaim
            assert has_room or not any(reclaim._is_clean(s) for s in directory.segments.states())
            if has_room:
                await directory.put(key, bytes(size))
                dirty[key] = size
        elif step == "flush" and key in dirty:
            await directory.flush(key)
            del dirty[key]
        elif step == "delete" and key not in dirty:
            await directory.delete(key)
            await directory.flush(key)
        assert pins_of(directory) <= SEGMENTS * MIB // 2
