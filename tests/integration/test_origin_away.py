"""An origin that does not answer for a while: what is here is served, what is written is kept, and nobody waits for time-outs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from storage.errors import OriginAwayError, OriginUnavailableError, OverloadedError, StorageError
from storage.flush_events import FlushSettings
from storage.origin import circuit
from storage.origin.endpoint import OriginSettings
from storage.policy import Freshness, FreshnessMode, Policy
from storage.types import CacheResult
from tests.fakes.bad_network import BadNetwork
from tests.fakes.origin_server import FakeOrigin
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine, until
from tests.fakes.tasks import pause

TTL = Policy(freshness=Freshness(FreshnessMode.TTL, ttl_s=60.0, stale_s=3600.0))
QUICK = FlushSettings(
    origin_timeout_s=0.5,
    retry_s_min=0.05,
    retry_s_max=0.1,
    probe_s_min=0.05,
    probe_s_max=0.1,
    away_probe_s_max=0.1,
)
KEYS = [f"warm/{number}" for number in range(12)]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outage of tenths of a second is one."""
    monkeypatch.setattr(circuit, "AWAY_S_MIN", 0.02)
    monkeypatch.setattr(circuit, "PROBE_S_MIN", 0.05)
    monkeypatch.setattr(circuit, "PROBE_S_MAX", 0.1)


@asynccontextmanager
async def warm_engine_behind_a_network() -> AsyncIterator[tuple[RunningEngine, BadNetwork]]:
    """Run an engine that has some objects, no longer fresh, and whose way to the origin may turn bad."""
    async with PausedOrigin() as origin, BadNetwork(origin._port) as network:
        settings = OriginSettings(endpoint_url=network.url, connect_s=0.5, answer_s=0.5, stall_s=0.5)
        async with running_engine(
            origin=origin, origin_settings=settings, policy=TTL, flush=QUICK
        ) as running:
            for key in KEYS:
                running.origin.store.put(BUCKET, key, key.encode())
                await running.get(key)
            await running.put("known", b"the bucket's facts are known from here on")
            await until(lambda: running.engine.status().pending_objects == 0)
            await running.fills_ended()
            running.clock.ahead_s = 120.0
            yield running, network


async def ask_until_away(running: RunningEngine) -> None:
    """Ask for what is not here until the origin counts as away."""
    while not running.engine.status().degraded:
        with pytest.raises((OriginUnavailableError, OverloadedError)):
            await running.get("cold")
        await pause(0.01)


async def test_what_is_cached_is_served_and_what_is_written_arrives() -> None:
    """No error reaches who reads what is here, no write is lost; the status says what is wrong, and all of it ends by itself."""
    async with warm_engine_behind_a_network() as (running, network):
        healthy = running.engine.status().degraded
        await network.refuse()
        at_once = await running.get(KEYS[0])
        await ask_until_away(running)

        reads = [await running.get(key) for key in KEYS]
        written = {f"new/{number}": b"%d" % number for number in range(5)}
        for key, body in written.items():
            await running.put(key, body)
        own = [(await running.get(key)).data for key in written]
        degraded = running.engine.status().degraded
        await network.listen()
        await until(lambda: running.engine.status().pending_objects == 0)
        back = await running.get(KEYS[1])

        assert healthy == ()
        assert [got.data for got in (at_once, *reads)] == [key.encode() for key in (KEYS[0], *KEYS)]
        assert {got.result for got in (at_once, *reads)} == {CacheResult.STALE}
        # One of them may be what looks whether the origin is back.
        assert {got.reason for got in reads} - {"origin: Connection"} == {"origin: Away"}
        assert own == list(written.values())
        assert "has not answered" in degraded[0]
        assert BUCKET in degraded[0]
        assert {key: running.origin.store.body(BUCKET, key) for key in written} == written
        assert (back.data, back.result) == (KEYS[1].encode(), CacheResult.HIT)
        assert running.engine.status().degraded == ()


async def test_nobody_waits_for_an_origin_that_says_nothing() -> None:
    """A black hole costs a time-out a few times; then a reader hears of it at once, and one request at a time looks."""
    async with warm_engine_behind_a_network() as (running, network):
        network.turn_bad(hangs=True)

        async def fail() -> None:
            with pytest.raises(StorageError):
                await running.get("cold")

        for _ in range(2):
            async with asyncio.TaskGroup() as group:
                for number in range(6):
                    group.create_task(running.get(KEYS[number]))
                    group.create_task(fail())
        await ask_until_away(running)
        before, begun_s = network.requests, running.clock.monotonic_s()
        away = 0
        for _ in range(50):
            try:
                await running.get("cold")
            except OriginAwayError:
                away += 1
            except OriginUnavailableError:
                pass  # it was the probe
            await pause(0.002)

        assert away >= 45
        assert network.requests - before <= 5
        assert running.clock.monotonic_s() - begun_s < 10.0
        network.heal()


async def test_origin_that_comes_back_is_not_run_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it answers again, many who want to read come a few at a time, not all at once."""
    async with warm_engine_behind_a_network() as (running, network):
        for number in range(40):
            running.origin.store.put(BUCKET, f"cold/{number}", b"x")
        await network.refuse()
        await ask_until_away(running)
        monkeypatch.setattr(circuit, "PROBE_S_MAX", 0.05)
        await network.listen()
        at_once = most_at_once(running.origin, monkeypatch)

        async def read(number: int) -> None:
            while True:
                try:
                    await running.get(f"cold/{number}")
                except OriginAwayError:
                    await pause(0.005)
                else:
                    return

        async with asyncio.TaskGroup() as group:
            for number in range(40):
                group.create_task(read(number))

        assert max(at_once[:9]) <= 3
        assert len(at_once) >= 40


def most_at_once(origin: FakeOrigin, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note with each request that comes how many are being answered."""
    seen: list[int] = []
    running = 0
    answer = origin._answer

    async def noted(*given: object) -> object:
        nonlocal running
        running += 1
        seen.append(running)
        try:
            await pause(0.005)
            return await answer(*given)  # type: ignore[arg-type]  # passed on as it came
        finally:
            running -= 1

    monkeypatch.setattr(origin, "_answer", noted)
    return seen
