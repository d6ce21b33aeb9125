"""A whole engine, running, in front of a fake origin on the loopback.

    async with running_engine() as running:
        running.origin.store.put("bucket", "key", b"...")
        body = await running.get("key")

By default everything but the origin is in memory. What outlives an engine can be handed in again, to start anew over the same directory:
`running_engine(filesystem=..., index_home=..., origin=...)`; `running.stop_uncleanly()` gives what a SIGKILL leaves of it.
"""

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace

from storage.clock import SystemClock
from storage.early_flush import EarlyFlushSettings
from storage.engine import Engine
from storage.engine_parts import EngineParts, EngineSettings, EngineWorkers
from storage.filesystem import Filesystem
from storage.flush_events import FlushSettings
from storage.origin.admission import Limiter
from storage.origin.client import OriginClient
from storage.origin.control import ControlLane
from storage.origin.credentials import Credentials, CredentialSource, StaticCredentials
from storage.origin.endpoint import OriginSettings
from storage.origin.facts import BucketQuestions, FactsSource
from storage.origin.limiter import LimiterSettings
from storage.policy import Policy, PolicyTable
from storage.readahead import ReadaheadSettings
from storage.recovery import IndexHome
from storage.requests import Body, DeleteLine, FileSpan, PutRequest, PutResult
from storage.types import MIB, CacheResult, Checksum, ObjectName, RangeSpec
from storage.uploads import ObjectChecksums
from storage.workers import ThreadWorkers
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.index import FakeIndex
from tests.fakes.paused_origin import PausedOrigin

BUCKET = "bucket"

CONTROL_ANSWER_S = 3.0
"""The least that the origin has for an answer about a bucket."""


class ShiftedClock(SystemClock):
    """The machine's clocks; the wall clock can be set ahead."""

    def __init__(self) -> None:
        self.ahead_s = 0.0

    def wall_s(self) -> float:
        """Read the wall clock, `ahead_s` ahead."""
        return super().wall_s() + self.ahead_s


class FakeIndexHome:
    """Where an index in memory lives between two engines."""

    def __init__(self, index: FakeIndex | None = None) -> None:
        self.index = index or FakeIndex()

    def open(self) -> FakeIndex:
        """Give the rows as the last engine left them."""
        self.index = self.index.kill_clone()
        return self.index

    def destroy(self) -> None:
        """Begin an empty index."""
        self.index = FakeIndex()


class PlainBuckets:
    """Says of every bucket that it is there and plain, without the second it takes to load the SDK that asks an origin."""

    async def head_bucket(self, _bucket: str) -> str:
        """Give a region."""
        return "us-east-1"

    async def get_bucket_versioning(self, _bucket: str) -> str:
        """Give none."""
        return ""

    async def get_bucket_encryption(self, _bucket: str) -> str:
        """Give none."""
        return ""

    async def get_object_lock_configuration(self, _bucket: str) -> bool:
        """Give none."""
        return False


class BytesContent:
    """A body that a client sends, in pieces of at most `piece_bytes`."""

    def __init__(self, data: bytes, checksums: tuple[Checksum, ...] = (), piece_bytes: int = MIB) -> None:
        self.size = len(data)
        self._data = data
        self._checksums = checksums
        self._piece_bytes = piece_bytes

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the pieces."""
        for start in range(0, self.size, self._piece_bytes):
            yield self._data[start : start + self._piece_bytes]

    def checksums(self) -> tuple[Checksum, ...]:
        """Give what was declared."""
        return self._checksums


@dataclass(slots=True)
class Got:
    """What one GET gave."""

    data: bytes
    opened: CacheResult
    result: CacheResult
    reason: str
    etag: str


@dataclass(slots=True)
class RunningEngine:
    """The engine and all around it that a test may want to touch."""

    engine: Engine
    origin: PausedOrigin
    clock: ShiftedClock
    filesystem: Filesystem
    index_home: IndexHome
    client: OriginClient
    policy: list[PolicyTable] = field(default_factory=list)

    def use(self, policy: Policy) -> None:
        """Put another policy in force, for everything."""
        self.policy[:] = [PolicyTable(default=policy)]

    async def get(self, key: str, wanted: RangeSpec | None = None, *, bucket: str = BUCKET) -> Got:
        """Read an object, or a range of it, to the end; nothing where the range cannot be satisfied."""
        opened = await self.engine.open_object(ObjectName(bucket, key), wanted)
        try:
            record = opened.record
            span = (wanted or RangeSpec(start=0)).resolve(record.size)
            if span is None:
                return Got(b"", opened.result, opened.result, opened.reason, record.etag)
            body = opened.read(span)
        finally:
            await opened.close()
        data = await read_all(body)
        return Got(data, opened.result, body.result, opened.reason, record.etag)

    async def put(self, key: str, data: bytes, *, bucket: str = BUCKET) -> PutResult:
        """Write an object."""
        return await self.engine.put_object(PutRequest(ObjectName(bucket, key)), BytesContent(data))

    async def fills_ended(self) -> None:
        """Wait until no fill is under way."""
        await until(lambda: self.engine._components.supply.fills_in_progress == 0)

    def stop_uncleanly(self) -> tuple[FakeFilesystem, FakeIndexHome]:
        """Give the directory as a SIGKILL now would leave it."""
        assert isinstance(self.filesystem, FakeFilesystem)
        assert isinstance(self.index_home, FakeIndexHome)
        return self.filesystem.kill_clone(), FakeIndexHome(self.index_home.index.kill_clone())


def delete_lines(keys: Iterable[str], bucket: str = BUCKET) -> list[DeleteLine]:
    """Name objects to delete, in the order of the keys."""
    return [DeleteLine(ObjectName(bucket, key)) for key in keys]


async def read_all(body: Body) -> bytes:
    """Read a body to its end and close it."""
    try:
        pieces = []
        while (piece := await body.next_piece()) is not None:
            pieces.append(bytes_of(piece))
        return b"".join(pieces)
    finally:
        await body.close()


async def until(condition: Callable[[], bool], wait_s: float = 10.0) -> None:
    """Wait, by looking every millisecond, until something holds."""
    async with asyncio.timeout(wait_s):
        while not condition():  # noqa: ASYNC110 - any condition, also one that tells nobody
            await asyncio.sleep(0.001)


def bytes_of(piece: bytes | FileSpan | None) -> bytes:
    """Read a piece as the gateway would send it."""
    assert piece is not None, "the body has ended"
    return piece if isinstance(piece, bytes) else piece.file.pread(piece.offset, piece.length)


@asynccontextmanager
async def running_engine(
    *,
    origin: PausedOrigin | None = None,
    filesystem: Filesystem | None = None,
    index_home: IndexHome | None = None,
    cache_bytes: int = 512 * MIB,
    dirty_bytes_limit: int = 256 * MIB,
    pinned_bytes_limit: int = 0,
    policy: Policy | None = None,
    origin_settings: OriginSettings | None = None,
    clock: ShiftedClock | None = None,
    answer_s: float = 10.0,
    flush: FlushSettings | None = None,
    early: EarlyFlushSettings | None = None,
    readahead: ReadaheadSettings | None = None,
    dirty_wait_s: float = 10.0,
    limits: LimiterSettings | None = None,
    credentials: CredentialSource | None = None,
    object_checksums: Callable[[tuple[Checksum, ...], int | None], ObjectChecksums] | None = None,
    questions: BucketQuestions | None = None,
    workers: EngineWorkers | None = None,
    seed: int = 1,
) -> AsyncIterator[RunningEngine]:
    """Run an engine, with bucket `BUCKET` at its origin, for the length of the block; a given `origin` is running already."""
    async with AsyncExitStack() as stack:
        if origin is None:
            origin = await stack.enter_async_context(PausedOrigin())
        if BUCKET not in origin.store.buckets:
            origin.store.create_bucket(BUCKET)
        rng, clock = random.Random(seed), clock or ShiftedClock()
        if workers is None:
            workers = EngineWorkers(
                ThreadWorkers("commit", 1), ThreadWorkers("index", 1), ThreadWorkers("pool", 4)
            )
        stack.callback(workers.pool.close)
        limiter = Limiter(limits or LimiterSettings(), clock)
        settings = origin_settings or OriginSettings(
            endpoint_url=origin.url, connect_s=min(2.0, answer_s), answer_s=answer_s
        )
        # The first question to the control lane makes a client, which takes longer than an impatient test gives the origin.
        patient = origin_settings or replace(settings, answer_s=max(answer_s, CONTROL_ANSWER_S))
        credentials = credentials or StaticCredentials(Credentials("key", "secret"))
        adapters = await stack.enter_async_context(AsyncExitStack())
        client = await adapters.enter_async_context(
            OriginClient(settings, limiter=limiter, credentials=credentials, clock=clock, rng=rng)
        )
        control = await adapters.enter_async_context(
            ControlLane(patient, limiter=limiter, credentials=credentials, regions=client.regions)
        )
        table = [PolicyTable(default=policy or Policy())]
        filesystem = filesystem or FakeFilesystem()
        index_home = index_home or FakeIndexHome()
        settings_of_engine = EngineSettings(
            # One directory may meet several origins in a test; it belongs to none of them by address.
            origin="http://origin",
            cache_bytes=cache_bytes,
            dirty_bytes_limit=dirty_bytes_limit,
            pinned_bytes_limit=pinned_bytes_limit,
            dirty_wait_s=dirty_wait_s,
            flush=flush or FlushSettings(origin_timeout_s=10.0),
            early_flush=early or EarlyFlushSettings(),
            readahead=readahead or ReadaheadSettings(),
        )
        engine = await Engine.open(
            EngineParts(
                settings=settings_of_engine,
                filesystem=filesystem,
                index_home=index_home,
                origin=client,
                control=control,
                facts=FactsSource(questions or control, clock),
                limiter=limiter,
                clock=clock,
                rng=rng,
                workers=workers,
                policies=lambda: table[0],
                object_checksums=object_checksums or (lambda _declared, _size: lambda _upload, _parts: ()),
                adapters=adapters,
                eviction=settings_of_engine.new_policy(),
            )
        )
        running = asyncio.get_running_loop().create_task(engine.run())
        try:
            await engine.ready()
            yield RunningEngine(engine, origin, clock, filesystem, index_home, client, table)
        finally:
            await engine.close()
            await running
