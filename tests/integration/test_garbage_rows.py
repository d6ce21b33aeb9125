"""Rows of the index that read back and mean nothing: they cost the index, no task, and no acknowledged byte."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from storage.errors import NoSuchKeyError, StorageError
from storage.eviction import Victim
from storage.family import Family, IndexWrite
from storage.listing import ListQuery
from storage.policy import Policy
from storage.types import ObjectName
from tests.fakes.failing_disk import QuickReopenings, at_origin, drained, engine_over
from tests.fakes.index import FakeIndex
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.running_engine import BUCKET, FakeIndexHome, RunningEngine
from tests.fakes.writing import open_upload, put_part

GARBAGE = b"\xc1 is never a byte of MessagePack"
DIRTY = b"acknowledged, and nowhere else " * 4000
CLEAN = b"what the origin has too " * 4000
HELD = Policy(flush_delay_s=3600.0)

Work = Callable[[RunningEngine, str], Awaitable[object]]


async def get(running: RunningEngine, _: str) -> None:
    """Read what is clean, dirty, and deleted."""
    for key in ("clean", "dirty", "tiny", "deleted"):
        await attempt(running.get(key))


async def write(running: RunningEngine, _: str) -> None:
    """Replace what is dirty and what is clean, and delete."""
    await attempt(running.put("clean", CLEAN))
    await attempt(running.put("dirty", DIRTY))
    await attempt(running.engine.delete_object(ObjectName(BUCKET, "deleted")))


async def show(running: RunningEngine, upload_id: str) -> None:
    """List and report."""
    engine = running.engine
    await attempt(engine.list_objects(ListQuery(BUCKET)))
    await attempt(engine.list_parts(ObjectName(BUCKET, "upload"), upload_id, part_marker=0, max_parts=10))
    await attempt(
        engine.list_uploads(
            BUCKET, prefix="", delimiter="", key_marker="", upload_id_marker="", max_uploads=10
        )
    )
    engine.status()
    with suppress(StorageError):
        engine.pending("", "", 10, is_quarantined=False)
    with suppress(StorageError):
        engine.acknowledged(BUCKET, "")
    with suppress(StorageError):
        engine.acknowledged_of(ObjectName(BUCKET, "dirty"))


async def upload(running: RunningEngine, upload_id: str) -> None:
    """Go on with an upload, as client and as the early flush, and end it."""
    await attempt(put_part(running, "upload", upload_id, 2, DIRTY))
    await attempt(running.engine.abort_upload(ObjectName(BUCKET, "upload"), upload_id))


async def flush(running: RunningEngine, _: str) -> None:
    """Send everything."""
    running.use(Policy())
    running.engine.start_barrier("", "")
    await running.clock.sleep(0.05)


async def upkeep(running: RunningEngine, _: str) -> None:
    """Do what is done from time to time."""
    components = running.engine._lives.life.components
    await attempt(components.compaction.compact())
    await attempt(components.uploads.expire(upload_ttl_s=1e9))
    await attempt(components.hidden_writes.look())
    await attempt(components.applier.checkpoint())


async def scrub(running: RunningEngine, _: str) -> None:
    """Go round."""
    for _turn in range(20):
        await attempt(running.engine._lives.life.components.scrubber.turn())


async def reclaim(running: RunningEngine, _: str) -> None:
    """Give up what is clean."""
    components = running.engine._lives.life.components
    for state in components.segments.states():
        await attempt(components.reclaim._drop(Victim(state.segment_id)))


WORKS: tuple[Work, ...] = (get, write, show, upload, flush, upkeep, scrub, reclaim)


async def attempt(work: Awaitable[object]) -> None:
    """Let it fail as storage may."""
    with suppress(StorageError):
        await work


def plant(index: FakeIndex, family: Family) -> int:
    """Let every row of a family mean nothing; give how many."""
    keys = [key for key, _ in index.scan(family, b"", None, 1000)]
    index.write([IndexWrite(family, key, GARBAGE) for key in keys])
    return len(keys)


async def until_read(running: RunningEngine, key: str) -> bytes:
    """Read as a client that tries again."""
    async with asyncio.timeout(10):
        while True:
            try:
                return (await running.get(key)).data
            except NoSuchKeyError:
                return b""
            except StorageError:
                await running.clock.sleep(0.005)


@pytest.mark.parametrize(
    "family", [family for family in Family if family not in {Family.META, Family.EXTENTS}]
)
async def test_garbage_in_any_family_ends_no_task_and_loses_nothing(family: Family) -> None:
    """Whatever meets it first, a client or a background task: all that is dirty is read and reaches the origin."""
    async with PausedOrigin() as origin:
        for work in WORKS:
            home = FakeIndexHome()
            async with engine_over(
                origin=origin, index_home=home, clock=QuickReopenings(), policy=HELD
            ) as running:
                origin.store.put(BUCKET, "clean", CLEAN)
                origin.store.put(BUCKET, "deleted", b"old")
                await running.get("clean")
                await running.fills_ended()
                await running.put("dirty", DIRTY)
                running.engine._lives.life.recovered.journal.rotate()
                await running.put("tiny", b"tiny")
                await running.engine.delete_object(ObjectName(BUCKET, "deleted"))
                upload_id = await open_upload(running, "upload")
                await put_part(running, "upload", upload_id, 1, DIRTY)
                assert plant(home.index, family)

                await work(running, upload_id)
                running.use(Policy())

                found = {key: await until_read(running, key) for key in ("clean", "dirty", "tiny", "deleted")}
                assert found == {"clean": CLEAN, "dirty": DIRTY, "tiny": b"tiny", "deleted": b""}, work
                await drained(running)
                assert (at_origin(running, "dirty"), at_origin(running, "tiny")) == (DIRTY, b"tiny"), work
                assert at_origin(running, "deleted") is None, work
                assert not running.engine._lives.has_ended.is_set(), f"{work} has ended the engine"
