"""One seed's world: an engine over fakes on virtual time, its clients, its origin's weather, and what must hold throughout.

    world = World(seed); world.run()    # raises ViolationError, with the story of the key

The engine is the whole one, wired by `storage/assembly.py`; only its adapters are fakes. It is killed at drawn moments (within
a commit, between a request and its answer, anywhere), or the power fails, or it is stopped in order; the next one starts over what
that leaves. What is checked when:

- after each event of the planner: its own invariants; no dirty row that it does not know of
- after each batch of the index: what leaves the queue as flushed is at the origin, and nothing that is under way can change it
- at each answer to a client: a read shows a state that is allowed, a barrier that is reached has brought what it waited for
- now and then, and at each start: rows do not contradict each other, no dirty byte is missing, what is quarantined shows
- at the end: when the origin has healed all drains within a bound, every key has an allowed state, the same here and there
- over all: requests per key stay within a bound in time, whatever the origin does
"""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest

from storage.errors import NoSuchKeyError, StorageError
from storage.policy import Policy
from storage.types import MIB, ObjectName
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.origin_store import Received
from tests.fakes.running_engine import FakeIndexHome
from tests.simulation.clients import Clients
from tests.simulation.invariants import Invariants, Logs, check_retries
from tests.simulation.ledger import Ledger, Outcome
from tests.simulation.loop import DrawnLoop, VirtualClock
from tests.simulation.network import SimTransport
from tests.simulation.origin import DELETED, OP, SimOrigin, SimStore
from tests.simulation.process import FLUSH, ORIGIN, SimEngine, make_parts
from tests.simulation.weather import Weather

if TYPE_CHECKING:
    from storage.engine import Engine

BUCKETS: Final = ("b1", "b2")
NAMES: Final = tuple(ObjectName(bucket, key) for bucket in BUCKETS for key in ("k1", "k2", "k3"))
SEED_S_MAX: Final = 48 * 3600.0
DRAIN_S_MAX: Final = 2_400.0
"""Longest time from the origin's healing to an empty queue: the longest wait of a probe, of a retry, and a few time-outs."""


class ViolationError(AssertionError):
    """Something that must hold did not."""


class World:
    """Everything of one seed.

    Args:
        seed: Decides all.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.loop = DrawnLoop(seed)
        # What a killed process leaves unanswered is not worth a word.
        self.loop.set_exception_handler(lambda _loop, _context: None)
        self.draws = random.Random(f"world {seed}")
        self.clock = VirtualClock(self.loop)
        self.store = SimStore(self.loop)
        self.origin = SimOrigin(
            self.loop, random.Random(f"origin {seed}"), FLUSH.origin_timeout_s, self._at_event, self.store
        )
        self.origin.refuses = self.draws.random() < 0.3
        if self.draws.random() < 0.2:
            self.store.unsupported.add("DeleteObjects")
        self.ledger = Ledger(lambda: self.loop.turns, self.loop.time, FLUSH.origin_timeout_s)
        self.filesystem = FakeFilesystem(seed=seed)
        self.index_home = FakeIndexHome()
        self.is_tight = self.draws.random() < 0.15
        self.policy = self._drawn_policy()
        self.our_uploads: set[str] = set()
        self.process = 0
        self.engine: Engine | None = None
        self.invariants: Invariants | None = None
        self.events_until_kill = 0
        self.violation: ViolationError | None = None
        self._violated = asyncio.Event()
        self._died = asyncio.Event()
        self._running: asyncio.Task[None] | None = None
        self._replacing: asyncio.Task[object] | None = None
        self._transport: SimTransport | None = None
        self._own: set[asyncio.Task[object]] = set()
        self._way = "kill"

    def run(self) -> list[str]:
        """Live through the seed; give the trace of what the origin saw.

        Raises:
            ViolationError: Something did not hold.
        """
        with pytest.MonkeyPatch.context() as patch, Logs(self):
            patch.setattr("storage.uploads.PART_BYTES_MIN", 1)
            patch.setattr("storage.journal_log.JOURNAL_FILE_BYTES", 4096)
            patch.setattr("storage.reclaim.LOOK_EVERY_S", 30.0)
            try:
                self.loop.run_until_complete(self.start(self._guarded(), "seed"))
            finally:
                self._end()
        return self.origin.trace

    def violate(self, what: str, name: ObjectName | None = None) -> None:
        """Note that something did not hold; the first one counts."""
        if self.violation is None:
            story = [] if name is None else self.story(name)
            lines = [f"seed {self.seed} at {self.loop.time():.3f} s, turn {self.loop.turns}: {what}", *story]
            self.violation = ViolationError("\n".join(lines))
            self._violated.set()

    def story(self, name: ObjectName) -> list[str]:
        """Tell all that is known of a key."""
        engine = self.engine
        planner = [] if engine is None else engine._components.planner.story(name)
        landed = self.store.landed.get((name.bucket, name.key), [])
        shows = {f"/{name.key}", name.bucket}
        return [
            f"--- {name}: clients",
            *self.ledger.story(name),
            "--- at the origin",
            *(f"{one.at_s:.3f} (turn {one.turn}) {one.op}" for one in landed),
            "--- the planner of the last process",
            *planner,
            "--- requests",
            *(line for line in self.origin.trace if any(show in line for show in shows) or "process" in line),
        ]

    # --- a seed's course -----------------------------------------------------------------------------------------------

    async def _guarded(self) -> None:
        """Run until done, or until something did not hold."""
        course = self.start(self._course(), "course")
        violated = self.start(self._violated.wait(), "violated")
        async with asyncio.timeout(SEED_S_MAX + 24 * 3600.0):
            await asyncio.wait({course, violated}, return_when=asyncio.FIRST_COMPLETED)
        if self.violation is None and course.done():
            course.result()
        if self.violation is not None:
            raise self.violation

    async def _course(self) -> None:
        self._arrange()
        await self._begin_process()
        clients = Clients(self, NAMES)
        weather = self.start(self._change_weather(), "weather")
        restarts = self.start(self._restart(), "restarts")
        await clients.run()
        weather.cancel()
        self.origin.change(Weather.CLEAR, "")
        self.origin.refuses = False
        restarts.cancel()
        self.events_until_kill = 0
        await asyncio.wait({restarts, weather})
        if self._replacing is not None:
            await self._replacing
        if self.engine is None:
            await self._replace()
        await self._drain()
        await self._compare()
        await self._stop()

    def _arrange(self) -> None:
        for bucket in BUCKETS:
            self.store.create_bucket(bucket)
        for name in NAMES:
            if self.draws.random() < 0.4:
                write = self.ledger.begin(name, "put")
                self.store.handle(
                    "PutObject",
                    Received("PUT", name.bucket, name.key, {}, {OP: str(write.number)}, b"at the origin"),
                )
                self.ledger.end(write, Outcome.ACKNOWLEDGED)
            else:
                self.ledger.end(self.ledger.begin(name, "delete"), Outcome.ACKNOWLEDGED)
                self.store.note(name.bucket, name.key, DELETED)

    async def _change_weather(self) -> None:
        while True:
            weather = self.draws.choice((Weather.CLEAR, Weather.FLAKY, Weather.FLAKY, *Weather))
            self.origin.change(weather, self.draws.choice(BUCKETS))
            scale_s = self.draws.choice((2.0, 20.0, 200.0))
            if weather is Weather.DOWN and self.draws.random() < 0.1:
                scale_s = 4 * 3600.0
            await asyncio.sleep(self.draws.random() * scale_s)

    async def _restart(self) -> None:
        for _ in range(self.draws.choice((0, 0, 1, 1, 2))):
            self._way = self.draws.choice(("kill", "kill", "power", "stop"))
            if self._way == "stop":
                await asyncio.sleep(self.draws.random() * 60.0)
            else:
                self._died.clear()
                self.events_until_kill = self.draws.randrange(1, 150)
                await self._died.wait()
            self._replacing = self.start(self._replace(), "replace")
            await asyncio.shield(self._replacing)

    async def _replace(self) -> None:
        """Put a new process in the place of the one that has died or is to stop."""
        if self._way == "stop":
            await self._stop()
        else:
            await self._bury()
        await asyncio.sleep(self.draws.choice((0.0, 1.0, 100.0)) * self.draws.random())
        await self._begin_process()

    def _drawn_policy(self) -> Policy:
        delay_s = self.draws.choice((0.0, 0.0, 0.0, 30.0))
        deadline_s = self.draws.choice((0.0, 0.0, 60.0))
        return Policy(flush_delay_s=delay_s, flush_deadline_s=deadline_s)

    # --- processes -----------------------------------------------------------------------------------------------------

    def start(self, work: Coroutine[object, object, object], name: str) -> asyncio.Task[object]:
        """Begin a task of the world's own, which outlives engines."""
        task = self.loop.create_task(work, name=name)
        self._own.add(task)
        task.add_done_callback(self._own.discard)
        return task

    async def _begin_process(self) -> None:
        self.process += 1
        draws = random.Random(f"process {self.seed} {self.process}")
        self.origin.trace.append(f"{self.loop.time():.3f} process {self.process} starts")
        self._transport = SimTransport(ORIGIN, self.origin, self.process)
        engine = await SimEngine.open(
            make_parts(
                self.origin,
                self._transport,
                clock=self.clock,
                draws=draws,
                at_call=self._at_event,
                directory=(self.filesystem, self.index_home),
                policy=self.policy,
                cache_bytes=(4 if self.is_tight else 64) * MIB,
            )
        )
        self.invariants = Invariants(self, engine)
        self.invariants.watch()
        self._running = self.loop.create_task(engine.run(), name="engine")
        self._running.add_done_callback(self._engine_ended)
        await engine.ready()
        self.engine = engine

    def is_up(self) -> bool:
        """Whether the process lives; what is left of one that was killed goes on until it is buried."""
        return self._transport is not None and self._transport.is_alive

    def _at_event(self) -> None:
        """Count an event; at the drawn one the process dies, here and now: what it does from now on is not seen."""
        if self.events_until_kill > 0 and self.engine is not None:
            self.events_until_kill -= 1
            if self.events_until_kill == 0:
                self._die()

    def _die(self) -> None:
        assert self._transport is not None, "a process has one"
        self._transport.is_alive = False
        self.engine = None
        index, draws = self.index_home.index, self.draws
        if self._way == "power":
            self.filesystem = self.filesystem.crash_clone(draws, draws.choice((0.0, 0.5, 1.0)))
            kept = draws.randrange(index.batches_after_checkpoint + 1)
            self.index_home = FakeIndexHome(index.clone_at(kept))
        else:
            self.filesystem = self.filesystem.kill_clone()
            self.index_home = FakeIndexHome(index.kill_clone())
        self.origin.trace.append(f"{self.loop.time():.3f} process {self.process} dies ({self._way})")
        self.origin.process_died(self.process)
        self._died.set()

    async def _bury(self) -> None:
        """End all tasks of a process that has died."""
        left: list[asyncio.Task[object]] = []
        for _ in range(100):
            left = [task for task in asyncio.all_tasks() if task not in self._own]
            if not left:
                return
            for task in sorted(left, key=hash):
                task.cancel()
            await asyncio.wait(left, timeout=1.0)
        raise AssertionError(f"these do not end: {left}")

    async def _stop(self) -> None:
        """Stop in order."""
        engine = self.engine
        assert engine is not None, "there is one to stop"
        self.engine = None
        self.origin.trace.append(f"{self.loop.time():.3f} process {self.process} stops")
        await engine.close()
        if self._running is not None:
            await asyncio.wait({self._running})
        assert self._transport is not None, "a process has one"
        self._transport.is_alive = False
        self.origin.process_died(self.process)
        self.index_home = FakeIndexHome(self.index_home.index.kill_clone())
        await self._bury()

    def _engine_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and task.exception() is not None and self.is_up():
            self.violate(f"the engine has ended: {task.exception()!r}")

    def _end(self) -> None:
        """Leave nothing behind on the loop."""
        for _ in range(20):
            left = sorted(asyncio.all_tasks(self.loop), key=hash)
            if not left:
                break
            for task in left:
                task.cancel()
            with suppress(Exception):
                self.loop.run_until_complete(asyncio.wait(left, timeout=1.0))
        self.loop.close()

    async def _drain(self) -> None:
        engine = self.engine
        assert engine is not None, "the last process is not killed"
        assert self.invariants is not None, "an engine is watched"
        self.invariants.check_quarantine()
        await engine.retry_quarantined("", "")
        until_s = self.loop.time() + DRAIN_S_MAX
        while engine.status().pending_objects or engine.status().quarantined:
            if self.loop.time() > until_s:
                line = engine.pending("", "", 1).lines[0]
                name = ObjectName(line.bucket, line.key)
                self.violate(f"{line} is not at the origin {DRAIN_S_MAX} s after it has healed", name)
                return
            await asyncio.sleep(10.0)
            await engine.retry_quarantined("", "")
        await asyncio.sleep(FLUSH.origin_timeout_s + 1.0)

    async def _compare(self) -> None:
        """The origin alone shows each key's last state, and so does the gateway."""
        engine = self.engine
        assert engine is not None, "the last process is not killed"
        assert self.invariants is not None, "an engine is watched"
        self.invariants.check_rows()
        for name in NAMES:
            there, allowed = self.store.op_of(name.bucket, name.key), self.ledger.allowed(name)
            if there not in allowed:
                self.violate(f"the origin ends with {there}, not with one of {sorted(allowed)}", name)
            here = await self.read(name)
            if here != there:
                self.violate(f"the origin ends with {there}, the gateway with {here}", name)
        await self._compare_uploads(engine)
        check_retries(self)

    async def _compare_uploads(self, engine: "Engine") -> None:
        """Of all uploads that the journal ever knew as ours, those alone are at the origin that an open upload goes on with."""
        until_s = self.loop.time() + DRAIN_S_MAX
        while left := self._left_uploads(engine):
            if self.loop.time() > until_s:
                upload = self.store.uploads[left[0]]
                name = ObjectName(upload.bucket, upload.key)
                self.violate(f"uploads of ours stay at the origin for ever: {', '.join(left)}", name)
                return
            await asyncio.sleep(10.0)

    def _left_uploads(self, engine: "Engine") -> list[str]:
        named = {
            one.origin_upload_id for one in engine._components.uploads.all_uploads() if not one.completed_at_s
        }
        return sorted(self.our_uploads & self.store.uploads.keys() - named)

    async def read(self, name: ObjectName) -> int | None:
        """Ask the gateway which state a key has; None where it cannot say."""
        engine = self.engine
        if engine is None:
            return None
        try:
            opened = await engine.open_object(name, metadata_only=True)
        except NoSuchKeyError:
            return DELETED
        except StorageError:
            return None
        await opened.close()
        return int(dict(opened.record.user_metadata)["op"])
