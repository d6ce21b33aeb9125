"""Reads of all kinds while objects change behind the gateway, the origin fails, space is short, and the process is killed.

FOREBAY_SEED=4711 pytest tests/integration/test_read_weather.py      replays one; FOREBAY_SEEDS=200 runs so many
"""

import asyncio
import os
import random
from dataclasses import dataclass

import pytest

from storage.errors import NoSuchKeyError, StorageError
from storage.flush_events import FlushSettings
from storage.policy import Freshness, Policy
from storage.requests import PutRequest
from storage.types import MIB, CacheResult, ObjectName, RangeSpec, WriteMode
from tests.fakes.origin_faults import Fault
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.running_engine import (
    BUCKET,
    BytesContent,
    FakeIndexHome,
    PlainBuckets,
    RunningEngine,
    ShiftedClock,
    bytes_of,
    running_engine,
)

FIRST_SEED = int(os.environ.get("FOREBAY_FIRST_SEED") or "0")
SEEDS = int(os.environ.get("FOREBAY_SEEDS") or "4")
ONE_SEED = os.environ.get("FOREBAY_SEED", "")
TTL_S = 60.0
STALE_S = 3600.0
POLICY = Policy(freshness=Freshness(ttl_s=TTL_S, stale_s=STALE_S))
ROUNDS = 12
READERS = 7
FOREIGN = ("foreign-0", "foreign-1", "foreign-2")
OWN = ("own-0", "own-1")
SIZES = (0, 1, 1000, MIB, MIB + 1, 2 * MIB, 3 * MIB - 7)
MODES = (None, None, WriteMode.THROUGH, WriteMode.AROUND)
FAULTS = (
    Fault(operation="GetObject", cut_body_at=MIB + 1000),
    Fault(operation="GetObject", cut_body_at=0),
    Fault(operation="GetObject", status=500),
    Fault(operation="GetObject", content_length=1000),
    Fault(operation="GetObject", content_range="bytes 1-1048576/99999999"),
    Fault(operation="GetObject", drop="before"),
    Fault(operation="HeadObject", status=500),
    Fault(operation="HeadObject", drop="after"),
    Fault(operation="*Object", delay_s=0.02, times=4),
)


@dataclass(slots=True)
class State:
    """One state of a key: what a reader may be shown from when to when, in wall time. `data` is None where there is no object."""

    number: int
    data: bytes | None
    began_s: float
    until_s: float = float("inf")


class Weather:
    """What the keys went through, what is done to them, and what reads of them may show."""

    def __init__(self, seed: int, origin: PausedOrigin, clock: ShiftedClock) -> None:
        self.draws = random.Random(seed)
        self._origin = origin
        self._clock = clock
        self._states: dict[str, list[State]] = {}
        self._count = 0
        self.results: set[CacheResult] = set()

    # --- what is done --------------------------------------------------------------------------------------------------

    def change_behind(self, key: str) -> None:
        """Overwrite, describe anew, or delete an object at the origin."""
        states = self._states.setdefault(key, [State(0, None, 0.0)])
        last = states[-1].data
        data: bytes | None = self._data()
        if last is not None:
            kind = self.draws.randrange(4)
            data = (data, random.Random(self._count).randbytes(len(last)), last, None)[kind]
        began_s = self._clock.wall_s()
        self._count += 1
        if data is None:
            self._origin.store._delete(BUCKET, key)
        else:
            self._origin.store.put(BUCKET, key, data, **{"x-amz-meta-n": str(self._count)})
        states[-1].until_s = self._clock.wall_s()
        states.append(State(self._count, data, began_s))

    async def write(self, running: RunningEngine, key: str) -> None:
        """Write or delete an object through the gateway; whoever is told nothing may be shown either state."""
        states = self._states.setdefault(key, [State(0, None, 0.0)])
        self._count += 1
        state = State(self._count, None if self.draws.random() < 0.2 else self._data(), self._clock.wall_s())
        states.append(state)
        name = ObjectName(BUCKET, key)
        try:
            if state.data is None:
                await running.engine.delete_object(name)
            else:
                request = PutRequest(
                    name, user_metadata=(("n", str(state.number)),), mode=self.draws.choice(MODES)
                )
                await running.engine.put_object(request, BytesContent(state.data))
        except StorageError:
            return
        for before in states[:-1]:
            before.until_s = min(before.until_s, self._clock.wall_s())

    def _data(self) -> bytes:
        return random.Random(self._count).randbytes(self.draws.choice(SIZES))

    def change_weather(self) -> None:
        """Let time pass, let the origin fail in some way, or be well again."""
        kind = self.draws.randrange(4)
        if kind == 0:
            self._clock.ahead_s += self.draws.choice((1.0, 31.0, 61.0, 61.0, 4000.0))
        elif kind == 1:
            self._origin.faults.add(self.draws.choice(FAULTS))
        elif kind == 2:
            self._origin.faults.clear()
        else:
            self._origin.cut_idle_connections()

    # --- what is read --------------------------------------------------------------------------------------------------

    async def read(self, running: RunningEngine, key: str) -> None:
        """Read an object, or a range of it, and check each byte that comes, also where it ends in an error."""
        began_s = self._clock.wall_s()
        wanted = self._wanted()
        is_described = self.draws.random() < 0.15
        try:
            opened = await running.engine.open_object(
                ObjectName(BUCKET, key), wanted, metadata_only=is_described
            )
        except NoSuchKeyError:
            self._check(key, None, began_s, reach_s=TTL_S)
            return
        except StorageError:
            return
        number = int(dict(opened.record.user_metadata)["n"])
        is_stale = opened.result is CacheResult.STALE
        state = self._check(key, number, began_s, reach_s=TTL_S + (STALE_S if is_stale else 0.0))
        assert state.data is not None
        # An origin may lie about the size so that only the checksum shows it; such a body never looks whole.
        is_lie = opened.record.size != len(state.data)
        span = None if is_described else (wanted or RangeSpec(start=0)).resolve(opened.record.size)
        if span is None:
            await opened.close()
            return
        body = opened.read(span)
        await opened.close()
        got: list[bytes] = []
        is_whole = False
        try:
            while (piece := await body.next_piece()) is not None:
                got.append(bytes_of(piece))
            is_whole = True
        except StorageError:
            pass
        finally:
            await body.close()
        self.results.add(body.result)
        is_right = state.data[span.start : span.stop].startswith(b"".join(got))
        assert is_right, f"{key}: other bytes than those of {number} in {span}"
        assert not is_whole or (sum(map(len, got)) == span.length and not is_lie), f"{key}: {number} cut"

    def _wanted(self) -> RangeSpec | None:
        start = self.draws.choice((0, 1, MIB - 1, MIB, 2 * MIB + 5, 3 * MIB - 9))
        length = self.draws.choice((1, 1000, MIB, 2 * MIB + 1))
        return self.draws.choice(
            (
                None,
                None,
                RangeSpec(start=start),
                RangeSpec(start=start, stop=start + length),
                RangeSpec(suffix=length),
            )
        )

    def _check(self, key: str, number: int | None, began_s: float, *, reach_s: float) -> State:
        """Find the state that was shown: it was there at some time since `reach_s` before the read began."""
        states = self._states.setdefault(key, [State(0, None, 0.0)])
        if key in OWN:
            reach_s = 0.0  # own writes are visible at once, whatever the policy says
        since_s = began_s - reach_s - 1e-6
        for state in states:
            is_shown = state.data is None if number is None else state.number == number
            if is_shown and state.until_s >= since_s:
                return state
        shown = [(one.number, one.data is not None, one.began_s, one.until_s) for one in states]
        raise AssertionError(f"{key}: {number} was shown to a read from {began_s}, reach {reach_s}: {shown}")


async def live(weather: Weather, running: RunningEngine) -> None:
    """Let some rounds pass, in each of which much happens at once; all writes of one key come one after the other."""
    draws = weather.draws
    for _ in range(ROUNDS):
        weather.change_weather()
        async with asyncio.TaskGroup() as group:
            for key in draws.sample(FOREIGN + OWN, 2):
                if key in OWN:
                    group.create_task(weather.write(running, key))
            for _ in range(READERS):
                group.create_task(weather.read(running, draws.choice(FOREIGN + OWN)))
            await running.clock.sleep(draws.choice((0.0, 0.0, 0.003, 0.01)))
            for key in draws.sample(FOREIGN, draws.randrange(2)):
                weather.change_behind(key)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [int(ONE_SEED)] if ONE_SEED else range(FIRST_SEED, FIRST_SEED + SEEDS))
async def test_reads_show_one_state_that_was_there_whatever_happens(seed: int) -> None:
    """B07, B08, B14, B16, B53, B55: never a wrong byte, never two states in one body, never one older than the policy allows."""
    clock = ShiftedClock()
    async with PausedOrigin() as origin:
        origin.store._now_s = clock.wall_s
        origin.store.create_bucket(BUCKET)
        weather = Weather(seed, origin, clock)
        for key in FOREIGN:
            weather.change_behind(key)
        kept: tuple[object, FakeIndexHome] | None = None
        for _ in range(2):
            filesystem, index_home = kept or (None, None)
            async with running_engine(
                origin=origin,
                filesystem=filesystem,  # type: ignore[arg-type]  # of the engine before
                index_home=index_home,
                clock=clock,
                policy=POLICY,
                cache_bytes=18 * MIB,
                dirty_bytes_limit=6 * MIB,
                dirty_wait_s=0.05,
                questions=PlainBuckets(),
                flush=FlushSettings(origin_timeout_s=0.5),
                seed=seed,
            ) as running:
                await live(weather, running)
                kept = running.stop_uncleanly()
                origin.faults.clear()
        assert len(weather.results) > 1
