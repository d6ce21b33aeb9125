"""`x-cache-reason` and `forebay explain` over a whole engine: why an answer was no plain hit, as clients and operators read it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from storage.explained import ObjectReport
from storage.origin.limiter import LimiterSettings
from storage.policy import Freshness, FreshnessMode, Policy
from storage.types import MIB, CacheResult, ObjectName, RangeSpec
from tests.fakes.gateway import ACCESS_KEY, Answer, RunningGateway, ask, pause, running_gateway
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine, until

NAME = ObjectName(BUCKET, "k")


async def describe(running: RunningEngine, key: str = "k") -> ObjectReport:
    """Ask what is known of an object."""
    return await running.engine.explain(ObjectName(BUCKET, key))


async def head(running: RunningEngine, key: str = "k") -> None:
    """Ask for an object's description."""
    await (await running.engine.open_object(ObjectName(BUCKET, key), metadata_only=True)).close()


@asynccontextmanager
async def served(running: RunningEngine, tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """Serve an engine over HTTP."""
    async with running_gateway(str(tmp_path / "access.log"), engine=running.engine) as gateway:
        yield gateway


async def get(gateway: RunningGateway, key: str = "k", **headers: str) -> Answer:
    """Send a signed GET."""
    return await ask(gateway, "GET", f"/{BUCKET}/{key}", headers, ACCESS_KEY)


def told(answer: Answer) -> tuple[str, str]:
    """Read how it was answered."""
    return answer.headers["x-cache"], answer.headers.get("x-cache-reason", "")


async def test_every_answer_says_why_it_is_no_plain_hit(tmp_path: Path) -> None:
    """From the first read of an object to its change at the origin."""
    async with running_engine() as running, served(running, tmp_path) as gateway:
        running.origin.store.put(BUCKET, "k", bytes(3 * MIB))

        assert told(await ask(gateway, "HEAD", f"/{BUCKET}/k", {}, ACCESS_KEY)) == ("MISS", "not known here")
        assert told(await get(gateway, range="bytes=0-9")) == ("MISS", "not cached")
        await running.fills_ended()
        assert told(await get(gateway, range="bytes=0-9")) == ("HIT", "")
        assert told(await get(gateway)) == ("PARTIAL", "not cached")
        running.clock.ahead_s += 100
        assert told(await get(gateway)) == ("HIT", "validated")
        running.clock.ahead_s += 100
        running.origin.store.put(BUCKET, "k", b"new")
        assert told(await get(gateway)) == ("MISS", "changed at the origin; not cached")


async def test_an_answer_that_follows_another_read_s_fill_says_so(tmp_path: Path) -> None:
    """Its bytes are the origin's, and it asked for none."""
    async with running_engine() as running, served(running, tmp_path) as gateway:
        running.origin.store.put(BUCKET, "k", bytes(3 * MIB))
        await head(running)
        gate = running.origin.hold("GET", f"{BUCKET}/k")
        first = asyncio.get_running_loop().create_task(running.get("k"))
        await gate.reached.wait()
        second = asyncio.get_running_loop().create_task(get(gateway))
        await until(
            lambda: next(iter(running.engine._components.supply._fills._fills.values()))[0].readers == 2
        )
        gate.open()

        assert told(await second) == ("MISS", "being fetched")
        await first


async def test_an_answer_past_the_cache_says_why(tmp_path: Path) -> None:
    """What is longer than half of the cache is not kept."""
    async with running_engine(cache_bytes=32 * MIB) as running, served(running, tmp_path) as gateway:
        running.origin.store.put(BUCKET, "k", bytes(20 * MIB))
        await head(running)

        assert told(await get(gateway)) == ("BYPASS", "too large to keep")
        assert (await describe(running)).why_missing == "one read of what is missing is too large to be kept"


async def test_an_answer_that_covers_for_the_origin_says_what_failed(tmp_path: Path) -> None:
    """With the origin's code."""
    policy = Policy(freshness=Freshness(ttl_s=0.0))
    async with running_engine(policy=policy) as running, served(running, tmp_path) as gateway:
        running.origin.store.put(BUCKET, "k", b"x")
        await get(gateway)
        await running.fills_ended()
        running.origin.faults.add(Fault(status=503, code="InternalError", times=-1))

        assert told(await get(gateway)) == ("STALE", "origin: ServiceUnavailable")


async def test_an_answer_that_waited_for_its_turn_says_for_how_long(tmp_path: Path) -> None:
    """The one slot is taken by another read."""
    limits = LimiterSettings(concurrency_start=1, concurrency_max=1)
    async with running_engine(limits=limits) as running, served(running, tmp_path) as gateway:
        running.origin.store.put(BUCKET, "k", b"x")
        running.origin.store.put(BUCKET, "slow", b"x")
        gate = running.origin.hold("GET", f"{BUCKET}/slow")
        slow = asyncio.get_running_loop().create_task(running.get("slow"))
        await gate.reached.wait()
        waiting = asyncio.get_running_loop().create_task(get(gateway))
        await until(lambda: running.engine._parts.limiter.waiting == 1)
        await pause(0.15)
        gate.open()

        result, reason = told(await waiting)

        await slow
        assert result == "MISS"
        assert reason.startswith("not known here; waited 0.")
        assert reason.endswith(" s for the limiter")


# --- explain ---------------------------------------------------------------------------------------------------------


async def test_an_object_is_explained_from_before_its_first_read_to_after_its_change(tmp_path: Path) -> None:
    """What is here of it, and whether it would be served unasked."""
    async with running_engine() as running, served(running, tmp_path) as gateway:
        etag = running.origin.store.put(BUCKET, "k", bytes(3 * MIB)).etag
        nothing = await describe(running)
        await get(gateway, range=f"bytes={MIB}-{MIB + 9}")
        await running.fills_ended()
        part = await describe(running)
        await get(gateway)
        await running.fills_ended()
        whole = await describe(running)
        running.clock.ahead_s += 100
        late = await describe(running)

    assert (nothing.state, nothing.version_id, nothing.last_answer) == ("unknown", 0, None)
    assert nothing.why_missing.startswith("nobody has read it here")
    assert (part.state, part.size, part.cached_bytes, part.ranges) == (
        "clean",
        3 * MIB,
        MIB,
        ((MIB, 2 * MIB),),
    )
    assert part.etag == part.origin_etag == etag.strip('"')
    assert part.why_missing == "these bytes were not read, or were reclaimed"
    assert part.last_answer is not None
    assert (part.last_answer.result, part.last_answer.reason) == (CacheResult.MISS, "not known here")
    assert (whole.cached_bytes, whole.ranges, whole.why_missing) == (3 * MIB, ((0, 3 * MIB),), "")
    assert whole.is_fresh
    assert whole.fresh_until_s == pytest.approx(whole.confirmed_at_s + 60)
    assert whole.covers_until_s == pytest.approx(whole.confirmed_at_s + 3660)
    assert (late.is_fresh, late.fresh_until_s) == (False, 0.0)
    assert "time to live has passed" in late.why_fresh


async def test_a_dirty_object_is_explained_with_its_flush() -> None:
    """And its delete, before that is at the origin."""
    async with running_engine(policy=Policy(flush_delay_s=3600.0)) as running:
        await running.put("k", b"mine")
        dirty = await describe(running)
        await running.engine.delete_object(NAME)
        deleted = await describe(running)

    assert (dirty.state, dirty.cached_bytes, dirty.is_fresh, dirty.covers_until_s) == ("dirty", 4, True, -1.0)
    assert dirty.acknowledged_at_s > 0
    assert dirty.pending
    assert (deleted.state, deleted.version_id, deleted.is_fresh) == ("deleted", 0, True)


async def test_an_object_is_explained_by_its_policy() -> None:
    """Immutable is for ever, always never."""
    async with running_engine(policy=Policy(freshness=Freshness(FreshnessMode.IMMUTABLE))) as running:
        running.origin.store.put(BUCKET, "k", b"x")
        await head(running)
        immutable = await describe(running)
        running.use(Policy(freshness=Freshness(FreshnessMode.ALWAYS)))
        always = await describe(running)

    assert (immutable.is_fresh, immutable.fresh_until_s, immutable.covers_until_s) == (True, 0.0, -1.0)
    assert immutable.why_missing == "only its metadata was asked for, or its bytes were reclaimed"
    assert (always.is_fresh, always.covers_until_s) == (False, 0.0)


async def test_explaining_asks_the_origin_nothing() -> None:
    """And leaves everything as it is, an object of many extents too."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "k", bytes(60 * MIB))
        for start in range(0, 60, 2):
            await running.get("k", RangeSpec(start=start * MIB, stop=start * MIB + 1))
        await running.fills_ended()
        asked = len(running.origin.log)

        report = await describe(running)

        assert len(running.origin.log) == asked
        assert (report.range_count, len(report.ranges), report.cached_bytes) == (30, 20, 30 * MIB)
