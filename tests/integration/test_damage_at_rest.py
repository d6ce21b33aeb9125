"""Every kind of damage to a directory of real files and a real RocksDB: no wrong byte, and nothing vanishes without a word.

An engine writes a directory, which is copied as a SIGKILL leaves it, or after a stop in order. The copy is damaged, repaired (at once, or
where the start refuses), and opened over an origin that has none of the dirty objects. Then clean objects read right, dirty ones read
right or are named, and all that reads right reaches the origin.
"""

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest

from storage.clock import SystemClock
from storage.errors import DamagedError, StorageError
from storage.filesystem import PosixFilesystem
from storage.flush_events import FlushSettings
from storage.fsck_repair import RepairParts, repair
from storage.index_aside import RocksRepairHome
from storage.layered_index import RocksCopies
from storage.layout import INDEX_DIRECTORY
from storage.origin.admission import Limiter
from storage.origin.client import OriginClient
from storage.origin.credentials import Credentials, StaticCredentials
from storage.origin.endpoint import OriginSettings
from storage.origin.limiter import LimiterSettings
from storage.origin_look import OriginLook
from storage.refetch import Refetching
from storage.repair_ids import spare_segment_id
from storage.repair_outcome import RepairOutcome
from storage.types import ObjectName
from tests.end_to_end.content import IS_LONG
from tests.fakes.damages import CLEAN, DAMAGES, DIRTY, Damage, clean_segment_bit, journal_middle_and_index
from tests.fakes.origin_faults import Fault
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine

FLUSH = FlushSettings(origin_timeout_s=0.3)
ORIGIN = "http://origin"
WAYS = [("killed", False)] + ([("killed", True), ("stopped", False), ("stopped", True)] if IS_LONG else [])
"""How the directory was left, and whether it is repaired before the first start."""


def engine_at(directory: Path, origin: PausedOrigin) -> "AbstractAsyncContextManager[RunningEngine]":
    """Open an engine over real files and a real index."""
    return running_engine(
        origin=origin,
        filesystem=PosixFilesystem(str(directory)),
        index_home=RocksRepairHome(str(directory)),
        flush=FLUSH,
    )


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a directory once for all, with dirty and clean objects; give it as a SIGKILL and as a stop leave it."""
    directory = tmp_path_factory.mktemp("written")

    async def write() -> None:
        async with PausedOrigin() as origin:
            await write_directory(origin, directory)

    # In a thread of its own: this one's event loop is pytest's.
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, write()).result()
    return directory


async def write_directory(origin: PausedOrigin, directory: Path) -> None:
    """Write it."""
    origin.store.create_bucket(BUCKET)
    live = directory / "stopped"
    live.mkdir()
    for key, body in CLEAN.items():
        origin.store.put(BUCKET, key, body)
    origin.faults.add(Fault(operation="PutObject", times=-1, status=503, code="SlowDown"))
    async with engine_at(live, origin) as running:
        for key, body in CLEAN.items():
            assert (await running.get(key)).data == body
        await running.fills_ended()
        for key, body in DIRTY.items():
            await running.put(key, body)
        shutil.copytree(live, directory / "killed")
    assert not DIRTY.keys() & origin.store.buckets[BUCKET].objects.keys()


@asynccontextmanager
async def clean_origin() -> AsyncIterator[PausedOrigin]:
    """Run an origin that has what is clean, and nothing of what is dirty."""
    async with PausedOrigin() as origin:
        origin.store.create_bucket(BUCKET)
        for key, body in CLEAN.items():
            origin.store.put(BUCKET, key, body)
        yield origin


def copy_of(written: Path, how: str, tmp_path: Path) -> Path:
    """Give a copy to damage."""
    shutil.copytree(written / how, tmp_path / "cache")
    return tmp_path / "cache"


def client_of(origin: PausedOrigin) -> OriginClient:
    """Make a data lane as the command does."""
    clock = SystemClock()
    return OriginClient(
        OriginSettings(endpoint_url=origin.url, answer_s=2.0),
        limiter=Limiter(LimiterSettings(), clock),
        credentials=StaticCredentials(Credentials("key", "secret")),
        clock=clock,
        rng=random.Random(1),
    )


def repair_now(directory: Path, origin: PausedOrigin, *, should_refetch: bool = False) -> RepairOutcome:
    """Repair as the command does; blocks."""
    filesystem = PosixFilesystem(str(directory))
    refetch = Refetching(
        filesystem,
        lambda: client_of(origin),
        lambda index: spare_segment_id(filesystem, index, 0),
        pytest.fail,
        room_bytes=1 << 30,
    )
    with RocksCopies(str(directory / INDEX_DIRECTORY)) as copies:
        return repair(
            RepairParts(
                filesystem,
                copies,
                RocksRepairHome(str(directory)),
                ORIGIN,
                OriginLook(lambda: client_of(origin)),
                "now",
                refetch=refetch if should_refetch else None,
            )
        )


async def read(running: RunningEngine, key: str) -> bytes | None:
    """Read an object; None where the engine says that it cannot."""
    try:
        return (await running.get(key)).data
    except StorageError:
        return None


@pytest.mark.parametrize(("how", "is_repaired"), WAYS)
@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
async def test_no_byte_is_wrong_and_nothing_vanishes_when_a_directory_is_damaged(
    damage: Damage,
    how: str,
    is_repaired: bool,
    written: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Clean data is fetched again, dirty data that cannot be read is named, all else is readable and reaches the origin."""
    async with clean_origin() as origin:
        directory = copy_of(written, how, tmp_path)
        hit = damage(directory)
        said: list[str] = []
        if is_repaired:
            said += (await asyncio.to_thread(repair_now, directory, origin)).lines()
        try:
            engine = engine_at(directory, origin)
            running = await engine.__aenter__()
        except DamagedError as error:
            said.append(f"refused: {error}")
            said += (await asyncio.to_thread(repair_now, directory, origin)).lines()
            engine = engine_at(directory, origin)
            running = await engine.__aenter__()
        try:
            clean = {key: await read(running, key) for key in CLEAN}
            dirty = {key: await read(running, key) for key in DIRTY}
            said += [str(line) for line in running.engine.status().quarantined]
            await running.engine.retry_quarantined(BUCKET, "")
            barrier = running.engine.start_barrier(BUCKET, "")
            await running.engine.wait_barrier(barrier.barrier_id, 20.0)
        finally:
            await engine.__aexit__(None, None, None)
        objects = origin.store.buckets[BUCKET].objects
        sent = {key: objects[key].body for key in DIRTY if key in objects}

    told = "\n".join([*said, caplog.text])
    assert all("forebay fsck" in line for line in said if line.startswith("refused: "))
    is_index_broken = "index_table" in damage.__name__ and not is_repaired
    assert is_index_broken or clean == CLEAN
    for key, body in DIRTY.items():
        assert dirty[key] == body or (dirty[key] is None and (key in hit or is_index_broken)), key
        if dirty[key] == body:
            assert sent[key] == body
        else:
            assert key not in sent
            assert key in told or "what they were is not known" in told or "index row" in told, key


async def test_damaged_clean_blocks_are_fetched_at_once_when_it_is_wanted(
    written: Path, tmp_path: Path
) -> None:
    """With the bytes fetched the object is a hit again, and the origin is not asked for them."""
    async with clean_origin() as origin:
        directory = copy_of(written, "stopped", tmp_path)
        origin.faults.add(Fault(operation="PutObject", times=-1, status=503, code="SlowDown"))
        clean_segment_bit(directory)

        outcome = await asyncio.to_thread(repair_now, directory, origin, should_refetch=True)

        async with engine_at(directory, origin) as running:
            got = await running.get("clean/large")
    assert (outcome.exit_code, outcome.dropped_clean, outcome.refetched) == (0, 1, 1)
    assert got.data == CLEAN["clean/large"]
    assert got.result.value == "HIT"


async def test_what_the_origin_has_already_is_not_in_doubt(written: Path, tmp_path: Path) -> None:
    """The origin is asked by the real client: what it holds with this ETag is clean, the rest is quarantined."""
    async with clean_origin() as origin:
        directory = copy_of(written, "killed", tmp_path)
        journal_middle_and_index(directory)
        async with client_of(origin) as client:
            assert await client.head_object(ObjectName(BUCKET, "clean/large")) is not None
        origin.store.put(BUCKET, "dirty/large", DIRTY["dirty/large"])

        outcome = await asyncio.to_thread(repair_now, directory, origin)

    assert outcome.settled == [f"s3://{BUCKET}/dirty/large"]
    assert [place for place, _ in outcome.recovered] == [f"s3://{BUCKET}/dirty/last"]


async def test_all_local_is_repaired_when_the_origin_is_away(written: Path, tmp_path: Path) -> None:
    """What is in doubt is quarantined without comparison, and the start succeeds."""
    async with clean_origin() as origin:
        directory = copy_of(written, "killed", tmp_path)
        journal_middle_and_index(directory)

    outcome = await asyncio.to_thread(repair_now, directory, origin)

    async with PausedOrigin() as other, engine_at(directory, other) as running:
        assert (await running.get("dirty/large")).data == DIRTY["dirty/large"]
    assert outcome.recovered_total == 2
    assert all("the origin was not asked" in reason for _, reason in outcome.recovered)
