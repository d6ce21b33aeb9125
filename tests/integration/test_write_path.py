"""The write path as a whole: engine, journal, index and flush over a real HTTP origin."""

import asyncio
import random
from pathlib import Path

import pytest

from gateway.build import RocksIndexHome
from storage.errors import NoSuchKeyError
from storage.filesystem import PosixFilesystem
from storage.flush_events import FlushSettings
from storage.policy import Policy
from storage.types import MIB, ObjectName, WriteMode
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, FakeIndexHome, RunningEngine, running_engine
from tests.fakes.writing import (
    PART,
    delete,
    etag_of,
    flushed,
    head,
    listed,
    md5,
    open_upload,
    pause,
    put_part,
    request,
    until,
    upload,
)

QUICK = FlushSettings(
    origin_timeout_s=0.6, retry_s_min=0.02, retry_s_max=0.2, probe_s_min=0.05, probe_s_max=0.2
)


# --- B01: what was acknowledged shows at once ---------------------------------------------------------------------------


@pytest.mark.timing
async def test_put_is_acknowledged_and_shown_at_once_when_the_origin_is_slow() -> None:
    """B01: a PUT takes milliseconds while the origin takes half a second a request, and GET, HEAD and LIST show it at once, 20 times."""
    async with running_engine() as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.latency_s = 0.5
        loop, slowest_s = asyncio.get_running_loop(), 0.0
        shown: list[tuple[bytes, str]] = []

        for n in range(20):
            started_s = loop.time()
            await running.put(f"k{n}", b"v%d" % n)
            slowest_s = max(slowest_s, loop.time() - started_s)
            shown.append(((await running.get(f"k{n}")).data, (await head(running, f"k{n}")).etag))
        entries = await listed(running)

        assert slowest_s < 0.25
        assert shown == [(b"v%d" % n, md5(b"v%d" % n)) for n in range(20)]
        assert sorted(entry.key for entry in entries) == sorted(f"k{n}" for n in range(20))


async def test_overwrite_complete_and_delete_show_at_once_when_the_origin_is_slow() -> None:
    """B01: the same holds after an overwrite, a Complete and a DELETE of what the origin has."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "over", b"old")
        running.origin.store.put(BUCKET, "gone", b"old")
        assert (await running.get("gone")).data == b"old"
        await running.engine.bucket_facts(BUCKET)
        running.origin.latency_s = 0.5

        await running.put("over", b"new")
        made = await upload(running, "big", [b"a" * PART, b"b"])
        await delete(running, "gone")

        assert (await running.get("over")).data == b"new"
        assert (await running.get("big")).data == b"a" * PART + b"b"
        assert made.etag == etag_of([b"a" * PART, b"b"])
        with pytest.raises(NoSuchKeyError):
            await running.get("gone")
        assert [(e.key, e.size) for e in await listed(running)] == [("big", PART + 1), ("over", 3)]


# --- B05: the origin ends with the last acknowledged state ---------------------------------------------------------------


async def test_origin_ends_with_the_last_state_when_a_key_is_overwritten_quickly() -> None:
    """Of 30 quick overwrites the last is at the origin, and stays; states in between need not be sent at all."""
    async with running_engine(flush=QUICK) as running:
        running.origin.faults.add(
            Fault(operation="PutObject", times=3, delay_s=0.1),
            Fault(operation="PutObject", times=2, status=503, code="SlowDown"),
            Fault(operation="PutObject", times=1, drop="before"),
        )

        for n in range(30):
            await running.put("k", b"state %d" % n)
        await flushed(running)

        assert running.origin.store.body(BUCKET, "k") == b"state 29"
        assert running.origin.requests_of("PutObject") < 30
        await pause(0.3)
        assert running.origin.store.body(BUCKET, "k") == b"state 29"


@pytest.mark.parametrize("latency_s", [0.0, 0.05])
async def test_origin_ends_with_the_last_state_when_puts_and_deletes_alternate(latency_s: float) -> None:
    """PUT, DELETE, PUT ends with the second body; PUT, DELETE with nothing."""
    async with running_engine(flush=QUICK) as running:
        running.origin.latency_s = latency_s

        await running.put("back", b"one")
        await delete(running, "back")
        await running.put("back", b"two")
        await running.put("away", b"one")
        await pause(latency_s)
        await delete(running, "away")
        await flushed(running)

        assert running.origin.store.body(BUCKET, "back") == b"two"
        assert running.origin.store.body(BUCKET, "away") is None
        assert [entry.key for entry in await listed(running)] == ["back"]


async def test_small_put_wins_when_it_follows_an_upload_that_is_being_flushed() -> None:
    """A put over a multipart object under way ends at the origin, and no upload is left behind there."""
    async with running_engine(flush=QUICK) as running:
        running.origin.faults.add(Fault(operation="UploadPart", times=-1, delay_s=0.15))

        await upload(running, "k", [b"a" * PART, b"b" * PART, b"c"])
        await until(lambda: running.origin.requests_of("UploadPart") >= 1)
        await running.put("k", b"small")
        await flushed(running)
        await until(lambda: not running.origin.store.uploads)

        assert running.origin.store.body(BUCKET, "k") == b"small"
        assert running.origin.requests_of("CompleteMultipartUpload") == 0
        assert (await running.get("k")).data == b"small"


async def test_state_of_each_key_survives_when_writes_faults_and_delays_mix() -> None:
    """Whatever is written at random, with faults of all kinds, the origin ends with each key's last acknowledged state."""
    rng = random.Random(7)
    wanted: dict[str, bytes | None] = {}
    async with running_engine(answer_s=0.3, flush=QUICK) as running:
        for _ in range(12):
            running.origin.faults.add(
                rng.choice(
                    [
                        Fault(operation="PutObject", status=500, is_processed=True),
                        Fault(operation="PutObject", status=500),
                        Fault(operation="PutObject", drop="after"),
                        Fault(operation="PutObject", delay_s=0.45),
                        Fault(operation="Delete*", drop="before"),
                        Fault(operation="Delete*", status=503, code="SlowDown"),
                        Fault(operation="HeadObject", status=500),
                    ]
                )
            )

        for n in range(120):
            key = f"k{rng.randrange(8)}"
            if rng.random() < 0.3:
                await delete(running, key)
                wanted[key] = None
            else:
                wanted[key] = b"%d" % n
                await running.put(key, wanted[key] or b"")
            if rng.random() < 0.2:
                await pause(0.02)
        report = await flushed(running, timeout_s=40.0)
        await pause(0.5)

        assert report.is_reached
        assert {key: running.origin.store.body(BUCKET, key) for key in wanted} == wanted


# --- restarts -----------------------------------------------------------------------------------------------------------


async def test_everything_dirty_arrives_after_an_orderly_restart_over_real_files(tmp_path: Path) -> None:
    """A queue of puts, deletes and an upload, stopped in order on a real disk and RocksDB, is sent by the next engine."""
    (tmp_path / "index").mkdir()

    def parts() -> tuple[PosixFilesystem, RocksIndexHome]:
        return PosixFilesystem(str(tmp_path)), RocksIndexHome(str(tmp_path / "index"))

    filesystem, index_home = parts()
    async with running_engine(
        filesystem=filesystem, index_home=index_home, policy=Policy(flush_delay_s=60.0)
    ) as running:
        running.origin.store.put(BUCKET, "gone", b"old")
        store = running.origin.store
        for n in range(10):
            await running.put(f"k{n}", b"%d" % n * (n * 20_000 + 1))
        await delete(running, "gone")
        await upload(running, "big", [b"a" * PART, b"b"])

    filesystem, index_home = parts()
    async with running_engine(filesystem=filesystem, index_home=index_home, flush=QUICK) as running:
        running.origin.store = store
        assert (await running.get("big")).data == b"a" * PART + b"b"
        await flushed(running)

        assert [store.body(BUCKET, f"k{n}") for n in range(10)] == [
            b"%d" % n * (n * 20_000 + 1) for n in range(10)
        ]
        assert store.body(BUCKET, "gone") is None
        assert store.body(BUCKET, "big") == b"a" * PART + b"b"
        assert running.engine.status().cache_dirty_bytes == 0


async def test_last_acknowledged_states_arrive_when_the_gateway_is_killed_again_and_again() -> None:
    """Killed in the middle of writes and flushes, six times over, the gateway loses and reorders nothing."""
    rng = random.Random(3)
    wanted: dict[str, bytes | None] = {}
    filesystem, index_home = FakeFilesystem(), FakeIndexHome()
    store = None
    for _ in range(6):
        async with running_engine(
            filesystem=filesystem, index_home=index_home, flush=QUICK, answer_s=0.3
        ) as running:
            store = running.origin.store = store or running.origin.store
            running.origin.latency_s = 0.01
            for _ in range(30):
                await write_at_random(running, rng, wanted)
            await pause(rng.random() * 0.05)
            shown = {key: await read_or_none(running, key) for key in wanted}
            assert shown == wanted
            filesystem, index_home = running.stop_uncleanly()

    async with running_engine(filesystem=filesystem, index_home=index_home, flush=QUICK) as running:
        assert store is not None
        running.origin.store = store
        await flushed(running, timeout_s=30.0)

        assert {key: store.body(BUCKET, key) for key in wanted} == wanted
        assert await until_no_uploads(running)


async def write_at_random(
    running: RunningEngine, rng: random.Random, wanted: dict[str, bytes | None]
) -> None:
    """Put, delete or upload one of a few keys, and note what was acknowledged."""
    key, body = f"k{rng.randrange(10)}", rng.randbytes(rng.choice([10, 50_000]))
    chance = rng.random()
    if chance < 0.25:
        await delete(running, key)
        wanted[key] = None
    elif chance < 0.3:
        await upload(running, key, [body * (PART // len(body) + 1), body])
        wanted[key] = body * (PART // len(body) + 2)
    else:
        await running.put(key, body)
        wanted[key] = body


async def read_or_none(running: RunningEngine, key: str) -> bytes | None:
    """Read an object; None where there is none."""
    try:
        return (await running.get(key)).data
    except NoSuchKeyError:
        return None


async def until_no_uploads(running: RunningEngine) -> bool:
    """Wait until the flush has left no upload with parts at the origin."""
    await until(lambda: not any(upload.parts for upload in running.origin.store.uploads.values()))
    return True


# --- clients that go away -----------------------------------------------------------------------------------------------


async def test_calls_cancelled_at_random_moments_leave_everything_whole() -> None:
    """Puts both ways, deletes, parts, Completes and copies, cancelled anywhere: nothing is held, and each key is one state."""
    rng = random.Random(9)
    async with running_engine(flush=QUICK, dirty_bytes_limit=64 * MIB) as running:
        bodies = [bytes([n]) * size for n, size in enumerate([0, 100, 40_000, 200_000, MIB, 3 * MIB])]
        await running.put("source", b"source")
        upload_ids = [await open_upload(running, f"u{n}") for n in range(4)]

        async def once(n: int) -> object:
            name, body = ObjectName(BUCKET, f"k{n % 5}"), rng.choice(bodies)
            match n % 6:
                case 0 | 1:
                    return await running.put(name.key, body)
                case 2:
                    wanted = request(name.key, mode=WriteMode.THROUGH)
                    return await running.engine.put_object(wanted, BytesContent(body))
                case 3:
                    return await running.engine.delete_object(name)
                case 4:
                    which = n % 4
                    return await put_part(running, f"u{which}", upload_ids[which], 1 + n % 3, body)
                case _:
                    return await running.engine.copy_object(ObjectName(BUCKET, "source"), name, ())

        for start in range(0, 240, 24):
            tasks = [asyncio.get_running_loop().create_task(once(n)) for n in range(start, start + 24)]
            rng.shuffle(tasks)
            for task in tasks:
                await pause(rng.random() * 0.003)
                task.cancel()
            await asyncio.wait(tasks)
            assert [task.exception() for task in tasks if not task.cancelled() and task.exception()] == []
        report = await flushed(running)
        for n, upload_id in enumerate(upload_ids):
            await running.engine.abort_upload(ObjectName(BUCKET, f"u{n}"), upload_id)
        await until(lambda: is_whole(running))

        assert report.is_reached
        assert running.engine.status().cache_dirty_bytes == 0
        for n in range(5):
            assert await read_or_none(running, f"k{n}") == running.origin.store.body(BUCKET, f"k{n}")


def is_whole(running: RunningEngine) -> bool:
    """Whether nothing is held by a call that has ended."""
    components = running.engine._components
    return (
        components.backlog.admitted_bytes == 0
        and len(components.queue) == 0
        and all(state.is_settled for state in components.segments.states())
        and not any(state.pins for state in components.segments.states())
    )
