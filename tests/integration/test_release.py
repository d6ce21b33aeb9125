"""Policy `release_after_flush`: bytes leave the disk once the journal has the confirmation, and nothing else does."""

import pytest

from storage.policy import Freshness, FreshnessMode, Policy, PolicyTable
from storage.types import MIB, CacheResult, ObjectName, RangeSpec, Stream, WriteMode
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, read_all, running_engine
from tests.fakes.writing import PART, flushed, head, pause, request, until, upload

RELEASING = Policy(release_after_flush=True)
KEEPING = Policy()
NAME = ObjectName(BUCKET, "k")


def body_of(size: int, seed: int = 0) -> bytes:
    """Make bytes that differ from block to block."""
    return bytes((n // 4096 * 31 + seed) % 251 for n in range(0, size, 4096)) * 4096


def disk_bytes(running: RunningEngine) -> int:
    """Say how much the segments take."""
    return running.engine.status().cache_used_bytes


async def released(running: RunningEngine) -> None:
    """Wait until nothing is left in the segments."""
    await flushed(running)
    await until(lambda: disk_bytes(running) == 0)


# --- what goes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [40_960, 9 * MIB])
async def test_disk_use_falls_after_the_flush_without_any_pressure(size: int) -> None:
    """In an empty cache of 512 MiB the bytes of a flushed object are gone within a look or two; its record stays.

    HEAD answers from here, with the ETag and the date that the client was given; the next GET fetches the bytes.
    """
    data = body_of(size)
    async with running_engine(policy=RELEASING) as running:
        put = await running.put("k", data)
        assert disk_bytes(running) == size

        await released(running)
        before = running.origin.requests_of("GetObject")
        record = await head(running, "k")
        got = await running.get("k")

        assert (record.etag, record.last_modified_s, record.extents) == (put.etag, put.last_modified_s, ())
        assert running.origin.requests_of("HeadObject") == 0

        assert (got.data, got.etag) == (data, put.etag)
        assert (got.opened, got.result) == (CacheResult.HIT, CacheResult.MISS)
        assert running.origin.requests_of("GetObject") == before + 1
        assert running.engine.stats.evicted_bytes["released"] == size


async def test_an_upload_is_released_when_it_is_flushed() -> None:
    """The parts of a multipart upload lie in the segments of what is released, and go with them."""
    parts = [body_of(PART, 1), body_of(PART, 2), body_of(MIB, 3)]
    async with running_engine(policy=RELEASING, cache_bytes=256 * MIB) as running:
        await upload(running, "k", parts)

        await released(running)

        assert (await running.get("k")).data == b"".join(parts)


async def test_a_tiny_body_is_released_from_its_journal_file() -> None:
    """A body that rides in the journal counts as dead there, so that the journal's compaction drops it."""
    async with running_engine(policy=RELEASING) as running:
        await running.put("k", b"tiny")
        await flushed(running)

        assert (await head(running, "k")).extents == ()
        assert running.engine._components.state.live_bytes == 0
        assert (await running.get("k")).data == b"tiny"


async def test_what_is_released_shares_no_segment_with_what_is_kept() -> None:
    """Its segments die whole, and what was written beside them stays."""
    async with running_engine() as running:
        running.policy[:] = [PolicyTable((Policy(prefix="gone/", release_after_flush=True),))]
        for n in range(3):
            await running.put(f"kept/{n}", body_of(MIB, n))
            await running.put(f"gone/{n}", body_of(MIB, n))
        streams = {state.stream for state in running.engine._components.segments.states()}

        await flushed(running)
        await until(lambda: disk_bytes(running) == 3 * MIB)

        assert streams == {Stream.DIRTY, Stream.RELEASED}
        assert (await running.get("kept/1")).result is CacheResult.HIT
        assert (await running.get("gone/1")).result is CacheResult.MISS


async def test_what_is_written_through_is_not_kept_where_it_would_be_released() -> None:
    """The origin has it first, so there is nothing to keep it for."""
    async with running_engine(policy=RELEASING) as running:
        wanted = request("k", mode=WriteMode.THROUGH)

        await running.engine.put_object(wanted, BytesContent(body_of(MIB)))

        assert disk_bytes(running) == 0
        assert (await running.get("k")).result is CacheResult.MISS


# --- what does not -----------------------------------------------------------------------------------------------------


async def test_nothing_is_released_while_the_origin_does_not_take_it() -> None:
    """Dirty bytes stay, and are read from here."""
    data = body_of(MIB)
    async with running_engine(policy=RELEASING) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.store.denied.add("PutObject")
        await running.put("k", data)
        await until(lambda: running.origin.answers["PutObject", 403] > 0)

        await running.engine._components.reclaim.round()

        assert disk_bytes(running) == MIB
        assert (await running.get("k")).data == data


async def test_a_reader_in_the_middle_goes_on_when_the_bytes_are_released() -> None:
    """A GET that began before the confirmation reads to its end from the segments that it holds; they go after it."""
    data = body_of(24 * MIB)
    async with running_engine(policy=RELEASING) as running:
        gate = running.origin.hold("PUT", f"{BUCKET}/k")
        await running.put("k", data)
        opened = await running.engine.open_object(NAME)
        body = opened.read(RangeSpec(start=0).resolve(len(data)) or pytest.fail("no span"))
        await opened.close()
        first = await body.next_piece()
        gate.open()
        await flushed(running)
        await running.engine._components.reclaim.round()
        assert (await head(running, "k")).extents == ()
        asked = running.origin.requests_of("GetObject")

        held = first if isinstance(first, bytes) else first.file.pread(first.offset, first.length)  # type: ignore[union-attr]  # a body of 24 MiB has a first piece
        rest = await read_all(body)

        assert held + rest == data
        assert running.origin.requests_of("GetObject") == asked
        await until(lambda: disk_bytes(running) == 0)


async def test_an_overwrite_during_the_flush_loses_nothing() -> None:
    """The confirmation of the older state releases nothing of the newer one."""
    newer = body_of(2 * MIB, 7)
    async with running_engine(policy=RELEASING) as running:
        gate = running.origin.hold("PUT", f"{BUCKET}/k")
        await running.put("k", body_of(MIB))
        await gate.reached.wait()
        await running.put("k", newer)
        running.origin.store.denied.add("PutObject")
        gate.open()
        await until(lambda: running.origin.answers["PutObject", 403] > 0)

        assert (await running.get("k")).data == newer
        assert len((await head(running, "k")).extents) > 0
        running.origin.store.denied.clear()
        await flushed(running)
        assert running.origin.store.body(BUCKET, "k") == newer


async def test_overwrites_at_the_moment_of_the_release_lose_nothing() -> None:
    """Whatever the order of confirmations and overwrites, the last acknowledged state is read, and is at the origin at the end."""
    async with running_engine(policy=RELEASING) as running:
        for n in range(40):
            await running.put("k", body_of(MIB // 8, n))
            if n % 3:
                await pause(0.002 * (n % 5))
            assert (await running.get("k")).data == body_of(MIB // 8, n)
        await flushed(running)

        assert running.origin.store.body(BUCKET, "k") == body_of(MIB // 8, 39)


async def test_a_crash_behind_the_confirmation_leaves_nothing_to_release() -> None:
    """The release is in the confirmation itself: a start that replays the one has done the other."""
    data = body_of(3 * MIB)
    policy = Policy(release_after_flush=True, freshness=Freshness(FreshnessMode.TTL, 3600))
    async with running_engine(policy=policy) as running:
        await running.put("k", data)
        await flushed(running)
        filesystem, index_home = running.stop_uncleanly()
        origin = running.origin

        async with running_engine(
            origin=origin, filesystem=filesystem, index_home=index_home, policy=KEEPING
        ) as again:
            await until(lambda: disk_bytes(again) == 0)
            assert (await head(again, "k")).extents == ()
            assert (await again.get("k")).data == data
