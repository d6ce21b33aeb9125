"""Pins by policy, over a whole engine: what a pinned prefix has in the cache stays there, and nobody waits for it."""

from collections.abc import Iterator
from functools import partial

import pytest

from storage.asks import Ask, Intent
from storage.gittins_policy import GittinsPolicy
from storage.policy import Freshness, FreshnessMode, Policy, PolicyTable, RetentionPriority
from storage.types import KIB, MIB, ByteRange, CacheResult, ObjectName, RangeSpec
from tests.fakes.row_invariants import check_rows
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine, until

ITEM_BYTES = 256 * KIB
CACHE_BYTES = 24 * MIB
PATIENCE_S = 60.0
IMMUTABLE = Freshness(FreshnessMode.IMMUTABLE)
PLAIN = PolicyTable(default=Policy(freshness=IMMUTABLE))
half_pinned = partial(running_engine, cache_bytes=CACHE_BYTES, pinned_bytes_limit=CACHE_BYTES // 2)
"""Runs an engine half of whose cache may be pinned."""

PINS = PolicyTable(
    (Policy(BUCKET, "pinned/", freshness=IMMUTABLE, priority=RetentionPriority.PINNED),),
    Policy(freshness=IMMUTABLE),
)


@pytest.fixture(scope="module", autouse=True)
def _patience() -> Iterator[None]:
    """Let room take its time: how long is not what is tested."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("storage.reclaim.ROOM_WAIT_S", 120.0)
        yield


def content(key: str, turn: int = 0) -> bytes:
    """Give an object's bytes, like no other's."""
    return f"{key} {turn} ".encode().ljust(KIB, b".") * (ITEM_BYTES // KIB)


def in_force(running: RunningEngine, table: PolicyTable) -> None:
    """Put a table in force, as a reload does."""
    running.policy[:] = [table]


def pins_of(running: RunningEngine) -> int:
    """Count what is pinned."""
    eviction = running.engine._parts.eviction
    assert isinstance(eviction, GittinsPolicy)
    return eviction.pins.held_bytes


async def read(running: RunningEngine, key: str, turn: int = 0) -> bool:
    """Read an object and hold it against what it should be; True where it came from the cache."""
    got = await running.get(key)
    assert got.data == content(key, turn)
    return got.result is CacheResult.HIT


async def hits(running: RunningEngine, count: int) -> int:
    """Read so many pinned objects; say how many came from the cache."""
    found = [await read(running, f"pinned/{number}") for number in range(count)]
    await running.fills_ended()
    return sum(found)


async def scan(running: RunningEngine, begin: int, count: int = 160) -> None:
    """Read as many other objects as fill the cache nearly twice, some of them again and again."""
    for number in range(begin, begin + count):
        await read(running, f"scan/{number}")
        await read(running, f"hot/{number % 20}")
    await running.fills_ended()


def at_origin(running: RunningEngine, *, pinned: int, scanned: int) -> None:
    """Have objects at the origin."""
    keys = [f"pinned/{n}" for n in range(pinned)] + [f"scan/{n}" for n in range(scanned)]
    for key in [*keys, *(f"hot/{n}" for n in range(20))]:
        running.origin.store.put(BUCKET, key, content(key))


async def test_pins_hit_always_while_scans_go_through() -> None:
    """Pinned objects that are read once, then not for two caches' worth of other reads, are all there; so again after the next."""
    async with half_pinned(dirty_bytes_limit=4 * MIB) as running:
        in_force(running, PINS)
        at_origin(running, pinned=24, scanned=320)
        await hits(running, 24)

        for begin in (0, 160):
            await scan(running, begin)
            assert await hits(running, 24) == 24

        stats = running.engine.stats
        assert pins_of(running) == 24 * ITEM_BYTES
        assert stats.evicted_bytes["pinned"] == 0
        assert stats.evicted_bytes["space"] + stats.bypassed_bytes > CACHE_BYTES
        report = await running.engine.explain(ObjectName(BUCKET, "pinned/7"))
        assert (report.pinned_bytes, report.why_not_pinned) == (ITEM_BYTES, "")
        check_rows(running.engine._recovered.index)


async def test_pins_over_the_bound_are_read_as_ever_and_told_of() -> None:
    """Of pinned objects that are twice the bound, those that fit stay; the others are right, may go, and explain says why."""
    async with running_engine(
        cache_bytes=CACHE_BYTES, pinned_bytes_limit=4 * MIB, dirty_bytes_limit=4 * MIB
    ) as running:
        in_force(running, PINS)
        at_origin(running, pinned=32, scanned=160)
        assert await hits(running, 32) == 0
        refused = await running.engine.explain(ObjectName(BUCKET, "pinned/31"))
        assert (refused.cached_bytes, refused.pinned_bytes) == (ITEM_BYTES, 0)
        assert "pinned_bytes_max" in refused.why_not_pinned

        await scan(running, 0)

        assert [await read(running, f"pinned/{number}") for number in range(16)] == [True] * 16
        assert await hits(running, 32) >= 16
        eviction = running.engine._parts.eviction
        assert isinstance(eviction, GittinsPolicy)
        assert eviction.pins.held_bytes <= 4 * MIB == eviction.pins.limit_bytes
        assert eviction.pins.refused_bytes >= 16 * ITEM_BYTES


async def test_a_reload_pins_and_unpins_what_is_cached() -> None:
    """Within seconds of the exchange, without a read of any of it; what is unpinned makes room as all else."""
    async with half_pinned(dirty_bytes_limit=4 * MIB) as running:
        in_force(running, PLAIN)
        at_origin(running, pinned=24, scanned=320)
        await hits(running, 24)

        in_force(running, PINS)
        await until(lambda: pins_of(running) == 24 * ITEM_BYTES, PATIENCE_S)
        await scan(running, 0)
        assert await hits(running, 24) == 24

        in_force(running, PLAIN)
        await until(lambda: pins_of(running) == 0, PATIENCE_S)
        report = await running.engine.explain(ObjectName(BUCKET, "pinned/7"))
        assert (report.pinned_bytes, report.why_not_pinned) == (0, "")
        assert await running.engine._components.reclaim.make_room(20 * MIB)
        assert await hits(running, 24) < 48


@pytest.mark.parametrize("is_clean", [True, False])
async def test_pins_are_known_again_after_a_start(is_clean: bool) -> None:
    """After a stop or a kill what is pinned is there, is found out in the background, and stays through scans that begin at once."""
    async with half_pinned(dirty_bytes_limit=4 * MIB) as running:
        in_force(running, PINS)
        at_origin(running, pinned=24, scanned=320)
        await hits(running, 24)
        origin = running.origin
        filesystem, index_home = running.filesystem, running.index_home
        if is_clean:
            await running.engine.close()
        else:
            filesystem, index_home = running.stop_uncleanly()

        async with running_engine(
            origin=origin,
            filesystem=filesystem,
            index_home=index_home,
            cache_bytes=CACHE_BYTES,
            pinned_bytes_limit=CACHE_BYTES // 2,
            dirty_bytes_limit=4 * MIB,
        ) as again:
            in_force(again, PINS)
            await scan(again, 0)
            assert await hits(again, 24) == 24
            await until(lambda: pins_of(again) == 24 * ITEM_BYTES, PATIENCE_S)


async def test_ranged_reads_after_a_start_count_no_pin_twice() -> None:
    """An object that is read in pieces before its segment is looked up is pinned for its size, and explain says no more."""
    size = 4 * MIB
    async with half_pinned() as running:
        in_force(running, PINS)
        running.origin.store.put(BUCKET, "pinned/big", bytes(size))
        await running.get("pinned/big")
        await running.fills_ended()
        origin, filesystem, index_home = running.origin, running.filesystem, running.index_home
        await running.engine.close()

    async with running_engine(
        origin=origin,
        filesystem=filesystem,
        index_home=index_home,
        cache_bytes=CACHE_BYTES,
        pinned_bytes_limit=CACHE_BYTES // 2,
    ) as again:
        in_force(again, PINS)
        for start in range(0, size, 128 * KIB):
            await again.get("pinned/big", RangeSpec(start=start, stop=start + 64 * KIB))
        survey = again.engine._components.pins
        for segment_id in tuple(survey._state.segments):
            await survey._look_up(segment_id)

        assert pins_of(again) == size
        report = await again.engine.explain(ObjectName(BUCKET, "pinned/big"))
        assert (report.cached_bytes, report.pinned_bytes, report.why_not_pinned) == (size, size, "")


async def test_overwritten_and_deleted_pins_free_their_space() -> None:
    """A pinned prefix that is written over and over holds what its newest versions have; deleted, it holds nothing."""
    async with half_pinned(dirty_bytes_limit=8 * MIB) as running:
        in_force(running, PINS)
        at_origin(running, pinned=0, scanned=160)
        for turn in range(8):
            for number in range(16):
                key = f"pinned/{number}"
                await running.put(key, content(key, turn))
            await until(lambda: running.engine.stats.pending_objects == 0, PATIENCE_S)
            assert pins_of(running) == 16 * ITEM_BYTES
        await scan(running, 0)

        for number in range(16):
            assert await read(running, f"pinned/{number}", 7)
        assert pins_of(running) == 16 * ITEM_BYTES
        assert running.engine.stats.evicted_bytes["pinned"] == 0
        for number in range(16):
            await running.engine.delete_object(ObjectName(BUCKET, f"pinned/{number}"))
        assert pins_of(running) == 0


async def test_writes_go_on_beside_pins_while_the_origin_is_away() -> None:
    """Where pins and what waits for its flush are more than the cache, pins go: each write is acknowledged from the disk, and arrives."""
    async with half_pinned(dirty_bytes_limit=20 * MIB) as running:
        in_force(running, PINS)
        at_origin(running, pinned=45, scanned=0)
        await hits(running, 45)
        assert pins_of(running) == 45 * ITEM_BYTES
        running.origin.store.denied.add("PutObject")

        for number in range(19):
            await running.put(f"written/{number}", content("w", number) * 4)

        assert running.engine.stats.pending_objects == 19
        assert 0 < running.engine.stats.evicted_bytes["pinned"] < 45 * ITEM_BYTES
        assert running.origin.requests_of("PutObject") >= 1
        running.origin.store.denied.clear()
        await hits(running, 45)


async def test_a_fill_in_the_order_that_was_announced_says_so_and_whether_there_is_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """That it is next is no room: of pins none goes for it."""
    async with running_engine(cache_bytes=CACHE_BYTES) as running:
        at_origin(running, pinned=0, scanned=1)
        await read(running, "scan/0")
        supply, name = running.engine._components.supply, ObjectName(BUCKET, "scan/0")
        record, asked = running.engine._components.holdings.record(name), []
        assert record is not None
        monkeypatch.setattr(supply._parts.eviction, "admit", lambda _, **told: asked.append(told))
        following = supply.signed_by(supply._parts.origin, Ask(Intent.NEXT))
        monkeypatch.setattr(following, "_has_room", lambda: False)

        assert following.start_at_turn(name, record, ByteRange(0, record.size)) is None

        assert asked == [{"has_room": False, "is_next": True}]


# --- the bound that the metrics show ---------------------------------------------------------------------------------


async def test_hit_bound_under_overwrites_counts_each_object_once() -> None:
    """A prefix that is overwritten again and again is as many bytes to read as its newest versions are; deleted ones are none."""
    async with running_engine(cache_bytes=CACHE_BYTES, dirty_bytes_limit=12 * MIB) as running:
        eviction = running.engine._parts.eviction
        assert isinstance(eviction, GittinsPolicy)
        at_origin(running, pinned=0, scanned=48)
        for number in range(48):
            await read(running, f"scan/{number}")
        for turn in range(6):
            for number in range(24):
                key = f"replay/{number}"
                await running.put(key, content(key, turn))
            await until(lambda: running.engine.stats.pending_objects == 0, PATIENCE_S)

        assert eviction.hit_bound() == pytest.approx(1.0)
        distinct = sum(group.monitor.distinct_bytes() for group in eviction._groups.live())
        assert distinct == pytest.approx((48 + 24) * ITEM_BYTES)

        for number in range(24):
            await running.engine.delete_object(ObjectName(BUCKET, f"replay/{number}"))
        distinct = sum(group.monitor.distinct_bytes() for group in eviction._groups.live())
        assert distinct == pytest.approx(48 * ITEM_BYTES)


async def test_hit_bound_when_the_origin_s_objects_are_made_again_and_not_cached() -> None:
    """A version of which no byte is here is forgotten in N as one that is here: nobody will read it again."""
    async with running_engine(cache_bytes=CACHE_BYTES, dirty_bytes_limit=4 * MIB) as running:
        in_force(running, PolicyTable(default=Policy(freshness=Freshness(FreshnessMode.ALWAYS))))
        at_origin(running, pinned=0, scanned=160)
        for turn in range(3):
            for number in range(160):
                running.origin.store.put(BUCKET, f"scan/{number}", content(f"scan/{number}", turn))
                await read(running, f"scan/{number}", turn)
        await running.fills_ended()
        eviction = running.engine._parts.eviction
        assert isinstance(eviction, GittinsPolicy)
        bound = eviction.hit_bound()

    assert bound == pytest.approx(CACHE_BYTES / (160 * len(content("scan/0"))), rel=0.15)
