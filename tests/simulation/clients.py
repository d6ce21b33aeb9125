"""Clients of a simulated gateway: they write, read, ask for barriers, and go away in the middle; operators retry and discard."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from storage.errors import OriginError, OverloadedError, StorageError
from storage.requests import CompletedPart, DeleteLine, PutRequest, UploadRequest
from storage.types import ObjectName, WriteMode
from tests.fakes.running_engine import BytesContent
from tests.simulation.ledger import Outcome, Write
from tests.simulation.origin import OP

if TYPE_CHECKING:
    from storage.engine import Engine
    from tests.simulation.world import World

CLIENTS: Final = 3
STEPS: Final = 5
_WHAT: Final = (
    ("put", 40),
    ("delete", 18),
    ("deletes", 5),
    ("through", 8),
    ("copy", 6),
    ("upload", 10),
    ("read", 8),
    ("barrier", 5),
    ("discard", 3),
    ("retry", 2),
)
_PAUSES_S: Final = (0.0, 0.0, 0.01, 0.3, 5.0, 40.0, 130.0)

Attempt = Callable[["Engine", Write], Awaitable[object]]


class Clients:
    """All clients of a world."""

    def __init__(self, world: "World", names: tuple[ObjectName, ...]) -> None:
        self._world = world
        self._names = names
        self._draws = random.Random(f"clients {world.seed}")
        self._size_max = 600_000 if world.is_tight else 2_000

    async def run(self) -> None:
        """Let all do their steps."""
        tasks = {self._world.start(self._client(), f"client-{n}") for n in range(CLIENTS)}
        await asyncio.wait(tasks)
        for task in tasks:
            task.result()

    async def _client(self) -> None:
        kinds, weights = zip(*_WHAT, strict=True)
        for _ in range(STEPS):
            await asyncio.sleep(self._draws.choice(_PAUSES_S) * self._draws.random())
            while (engine := self._world.engine) is None:  # noqa: ASYNC110 - it comes and goes
                await asyncio.sleep(1.0)
            (kind,) = self._draws.choices(kinds, weights)
            await self._step(engine, kind, self._draws.choice(self._names))

    async def _step(self, engine: "Engine", kind: str, name: ObjectName) -> None:
        """Do one thing, and perhaps go away before it is done; whoever dies with the process is not answered."""
        match kind:
            case "read":
                work = self._read(engine, name)
            case "barrier":
                work = self._barrier(engine, name)
            case "discard":
                work = self._discard(engine, name)
            case "retry":
                assert self._world.invariants is not None, "an engine is watched"
                self._world.invariants.check_quarantine()
                await engine.retry_quarantined("", "")
                return
            case "deletes":
                work = self._deletes(engine, name.bucket)
            case _:
                work = self._write(engine, kind, name)
        task = asyncio.get_running_loop().create_task(work, name=f"{kind}-{name.key}")
        leaves_s = self._draws.random() * 2.0 if self._draws.random() < 0.07 else 7200.0
        _, left = await asyncio.wait({task}, timeout=leaves_s)
        if left:
            task.cancel()
            await asyncio.wait(left)
        if not task.cancelled():
            task.result()

    # --- writes --------------------------------------------------------------------------------------------------------

    async def _write(self, engine: "Engine", kind: str, name: ObjectName) -> None:
        write = self._world.ledger.begin(name, kind)
        outcome = Outcome.UNKNOWN
        try:
            await self._attempts()[kind](engine, write)
            outcome = Outcome.ACKNOWLEDGED
        except OriginError as error:
            outcome = Outcome.UNKNOWN if error.outcome_unknown else Outcome.FAILED
        except OverloadedError:
            outcome = Outcome.UNKNOWN  # perhaps in place of the origin's own error
        except StorageError:
            outcome = Outcome.FAILED
        finally:
            is_answered = self._world.engine is engine
            self._world.ledger.end(write, outcome if is_answered else Outcome.UNKNOWN)

    async def _deletes(self, engine: "Engine", bucket: str) -> None:
        """Delete all keys of a bucket by one request; each line is an answer of its own."""
        writes = [self._world.ledger.begin(name, "delete") for name in self._names if name.bucket == bucket]
        outcomes = dict.fromkeys(writes, Outcome.UNKNOWN)
        try:
            results = await engine.delete_objects(bucket, [DeleteLine(write.name) for write in writes])
            outcomes = {
                write: Outcome.UNKNOWN if result.code else Outcome.ACKNOWLEDGED
                for write, result in zip(writes, results, strict=True)
            }
        except StorageError:
            pass
        finally:
            is_answered = self._world.engine is engine
            for write, outcome in outcomes.items():
                self._world.ledger.end(write, outcome if is_answered else Outcome.UNKNOWN)

    def _attempts(self) -> dict[str, Attempt]:
        return {
            "put": lambda engine, write: self._put(engine, write, None),
            "through": lambda engine, write: self._put(engine, write, WriteMode.THROUGH),
            "delete": lambda engine, write: engine.delete_object(write.name),
            "copy": self._copy,
            "upload": self._upload,
        }

    async def _put(self, engine: "Engine", write: Write, mode: WriteMode | None) -> None:
        metadata = (("op", str(write.number)),)
        await engine.put_object(
            PutRequest(write.name, user_metadata=metadata, mode=mode), BytesContent(self._body(write))
        )

    async def _copy(self, engine: "Engine", write: Write) -> None:
        source = self._draws.choice(self._names)
        headers = (("x-amz-metadata-directive", "REPLACE"), (OP, str(write.number)))
        await engine.copy_object(source, write.name, headers)

    async def _upload(self, engine: "Engine", write: Write) -> None:
        metadata = (("op", str(write.number)),)
        upload_id, _ = await engine.create_upload(UploadRequest(write.name, user_metadata=metadata))
        lines = []
        for number in range(1, self._draws.choice((2, 3, 4))):
            body = b"part %d of " % number + self._body(write)
            part = await engine.upload_part(write.name, upload_id, number, BytesContent(body))
            lines.append(CompletedPart(number, part.etag))
        await engine.complete_upload(write.name, upload_id, lines)

    def _body(self, write: Write) -> bytes:
        """Make a body; now and then the same bytes as another write's, whose metadata differs."""
        if self._draws.random() < 0.1:
            return b"the same bytes"
        size = self._draws.randrange(self._size_max)
        return b"%d " % write.number + bytes(size)

    # --- the rest ------------------------------------------------------------------------------------------------------

    async def _read(self, engine: "Engine", name: ObjectName) -> None:
        began = self._world.loop.turns
        state = await self._world.read(name)
        if state is None or self._world.engine is not engine:
            return
        allowed = self._world.ledger.allowed(name, began)
        if state not in allowed:
            self._world.violate(f"a read from turn {began} on shows {state}, none of {sorted(allowed)}", name)

    async def _barrier(self, engine: "Engine", name: ObjectName) -> None:
        began = self._world.loop.turns
        bucket, prefix = self._draws.choice((("", ""), (name.bucket, ""), (name.bucket, name.key)))
        try:
            started = engine.start_barrier(bucket, prefix)
            report = await engine.wait_barrier(started.barrier_id, 900.0)
        except StorageError:
            return
        if not report.is_reached or self._world.engine is not engine:
            return
        for one in self._names:
            if (not bucket or one.bucket == bucket) and one.key.startswith(prefix):
                self._check_arrived(one, began)

    def _check_arrived(self, name: ObjectName, began: int) -> None:
        """What was acknowledged before a barrier has been at the origin since, or what came after it."""
        ledger = self._world.ledger
        landed = self._world.store.landed.get((name.bucket, name.key), [])
        for write in ledger.must_be_there(name, began):
            later = {
                one.state
                for one in ledger.writes[name]
                if one.outcome is not Outcome.FAILED and not one.ended_before(write)
            }
            if not any(one.turn >= write.began and one.op in later for one in landed):
                self._world.violate(f"a barrier from turn {began} on is reached without {write.number}", name)

    async def _discard(self, engine: "Engine", name: ObjectName) -> None:
        try:
            entry = engine._components.flusher.dirty_entry(name)
            sequence = 0 if entry is None else entry.sequence
            count = await engine.discard_quarantined(name.bucket, name.key, sequence)
        except StorageError:
            count = 1
        if count or self._world.engine is not engine:
            self._world.ledger.give_up(name)
