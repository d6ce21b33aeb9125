"""Puts and deletes of a whole engine, with the origin on the loopback."""

import asyncio
import base64
import errno
import random
import threading
import zlib
from typing import Any

import pytest

from storage.errors import (
    DiskFailedError,
    DiskFullError,
    DurabilityNotPossibleError,
    NoSuchBucketError,
    NoSuchKeyError,
    OriginRefusedError,
    OverloadedError,
)
from storage.flush_events import FlushSettings
from storage.intake import HELD_BODY_BYTES_MAX
from storage.policy import Policy
from storage.requests import Content, PutResult
from storage.types import MIB, CacheResult, Checksum, ChecksumAlgorithm, ObjectName, WriteMode
from tests.fakes.filesystem import FakeFilesystem, Operation
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, delete_lines, running_engine
from tests.fakes.writing import BrokenContent, SlowContent, delete, flushed, md5, pause, request, until

QUICK = FlushSettings(origin_timeout_s=0.6, retry_s_min=0.02, retry_s_max=0.1)
LONG = HELD_BODY_BYTES_MAX + 3 * MIB


async def put(
    running: RunningEngine, key: str, content: Content | bytes, bucket: str = BUCKET, **fields: Any
) -> PutResult:
    """Write an object as a request with these fields asks."""
    body = BytesContent(content) if isinstance(content, bytes) else content
    return await running.engine.put_object(request(key, bucket=bucket, **fields), body)


def is_whole(running: RunningEngine) -> bool:
    """Whether nothing is held by a write that has ended."""
    components = running.engine._components
    return (
        components.backlog.admitted_bytes == 0
        and len(components.queue) == 0
        and all(state.is_settled for state in components.segments.states())
        and not any(state.pins for state in components.segments.states())
    )


# --- which way a write goes ---------------------------------------------------------------------------------------------


async def test_put_goes_through_when_the_bucket_is_versioned() -> None:
    """A versioned bucket answers each PUT itself, with its version id, and nothing of it is kept."""
    async with running_engine() as running:
        running.origin.store.create_bucket("versioned", versioning="Enabled")

        result = await put(running, "k", b"body", bucket="versioned")

        assert dict(result.headers)["x-amz-version-id"]
        assert running.origin.store.body("versioned", "k") == b"body"
        assert (await running.get("k", bucket="versioned")).opened is CacheResult.MISS


async def test_put_goes_through_when_the_bucket_encrypts_with_keys() -> None:
    """A bucket that encrypts with KMS has other ETags: the origin's own is answered."""
    async with running_engine() as running:
        running.origin.store.create_bucket("kms", encryption="aws:kms")

        result = await put(running, "k", b"body", bucket="kms")

        assert result.etag == running.origin.store.buckets["kms"].objects["k"].etag != md5(b"body")


@pytest.mark.parametrize(
    ("policy", "fields", "then"),
    [
        (Policy(write=WriteMode.THROUGH), {}, CacheResult.HIT),
        (Policy(), {"mode": WriteMode.THROUGH}, CacheResult.HIT),
        (Policy(write=WriteMode.AROUND), {}, CacheResult.MISS),
        (
            Policy(),
            {"origin_reason": "acl", "origin_headers": (("x-amz-acl", "private"),)},
            CacheResult.MISS,
        ),
    ],
)
async def test_put_through_is_at_the_origin_on_return_and_kept_only_if_not_forced(
    policy: Policy, fields: dict[str, Any], then: CacheResult
) -> None:
    """Policy, client or need: the origin has it before the answer, and the cache only where the gateway knows all of it."""
    async with running_engine(policy=policy) as running:
        result = await put(running, "k", b"body", **fields)

        assert running.origin.store.body(BUCKET, "k") == b"body"
        assert result.etag == md5(b"body")
        got = await running.get("k")
        assert (got.data, got.opened) == (b"body", then)
        assert running.engine.status().pending_objects == 0


async def test_put_refuses_when_the_client_insists_on_the_disk_and_it_cannot_be() -> None:
    """The origin is not asked instead."""
    async with running_engine() as running:
        with pytest.raises(DurabilityNotPossibleError):
            await put(running, "k", b"body", mode=WriteMode.BACK, origin_reason="acl")

        assert running.origin.requests_of("PutObject") == 0


async def test_put_is_refused_before_the_body_when_there_is_no_bucket() -> None:
    """NoSuchBucket comes before a byte of the body is read."""
    async with running_engine() as running:
        with pytest.raises(NoSuchBucketError):
            await put(running, "k", BrokenContent(MIB, 0, AssertionError("read")), bucket="missing")


# --- nothing unverified reaches the origin (B03, B30) -------------------------------------------------------------------


@pytest.mark.parametrize("size", [MIB, LONG])
@pytest.mark.parametrize("mode", [WriteMode.BACK, WriteMode.THROUGH])
async def test_old_object_stays_when_a_body_breaks_off_or_fails_its_check(size: int, mode: WriteMode) -> None:
    """A short body or a wrong digest, however long it is and wherever it goes, is neither kept nor completed."""
    async with running_engine(flush=QUICK) as running:
        await running.put("k", b"old")
        await flushed(running)

        with pytest.raises(ValueError, match="digest"):
            await put(running, "k", BrokenContent(size, size - MIB, ValueError("digest")), mode=mode)
        await pause(0.05)

        assert running.origin.store.body(BUCKET, "k") == b"old"
        assert (await running.get("k")).data == b"old"
        await until(lambda: is_whole(running))


async def test_long_body_is_streamed_through_and_kept() -> None:
    """A body that is too long to be taken in first reaches the origin as it came, and is read from the cache afterwards."""
    async with running_engine() as running:
        data = random.Random(1).randbytes(LONG)

        result = await put(running, "k", SlowContent(data, MIB, 0.0), mode=WriteMode.THROUGH)
        got = await running.get("k")

        assert result.etag == md5(data)
        assert running.origin.store.body(BUCKET, "k") == data
        assert (got.data == data, got.result) == (True, CacheResult.HIT)
        assert is_whole(running)


@pytest.mark.parametrize("size", [1000, LONG])
async def test_declared_checksum_is_handed_on_once_when_a_write_goes_through(size: int) -> None:
    """The origin verifies what the client declared: a wrong one is refused there, a right one is stored."""
    data = b"\x00" * size
    crc = Checksum(ChecksumAlgorithm.CRC32, base64.b64encode(zlib.crc32(data).to_bytes(4)).decode())
    async with running_engine() as running:
        declared = (("x-amz-checksum-crc32", crc.value),)
        wrong = (("content-md5", "AAAAAAAAAAAAAAAAAAAAAA=="),)

        with pytest.raises(OriginRefusedError) as refused:
            await put(running, "k", data, mode=WriteMode.THROUGH, origin_headers=wrong)
        await put(
            running,
            "k",
            BytesContent(data, (crc,)),
            mode=WriteMode.THROUGH,
            origin_headers=declared,
        )

        assert refused.value.code == "BadDigest"
        sent = [entry for entry in running.origin.log if entry.operation == "PutObject"]
        assert [entry.headers.get("x-amz-checksum-crc32") for entry in sent[1:]] == [crc.value] * (
            len(sent) - 1
        )


async def test_held_body_is_sent_again_when_a_pooled_connection_was_dead() -> None:
    """A body in memory survives a connection that the origin closed while it was idle."""
    async with running_engine() as running:
        await put(running, "k", b"one", mode=WriteMode.THROUGH)
        running.origin.cut_idle_connections()

        await put(running, "k", b"two", mode=WriteMode.THROUGH)

        assert running.origin.store.body(BUCKET, "k") == b"two"


# --- order around passed-through writes ---------------------------------------------------------------------------------


async def test_cache_is_never_stale_when_write_throughs_follow_each_other_at_once() -> None:
    """Of many parallel write-throughs of a key, the cache ends with what the origin ended with."""
    async with running_engine(policy=Policy(write=WriteMode.THROUGH)) as running:
        for _ in range(3):
            async with asyncio.TaskGroup() as group:
                for n in range(10):
                    group.create_task(running.put("k", b"state %d" % n))

            assert (await running.get("k")).data == running.origin.store.body(BUCKET, "k")


async def test_write_back_waits_for_the_passed_through_write_ahead_of_it() -> None:
    """A write-back that is ready while another write is at the origin is acknowledged behind it, and ends above it."""
    async with running_engine(flush=QUICK) as running:
        gate = running.origin.hold("PUT", f"{BUCKET}/k")
        loop = asyncio.get_running_loop()
        first = loop.create_task(put(running, "k", b"through", mode=WriteMode.THROUGH))
        await gate.reached.wait()

        second = loop.create_task(running.put("k", b"back"))
        await pause(0.05)
        assert not second.done()

        gate.open()
        await first
        await second
        assert (await running.get("k")).data == b"back"
        await flushed(running)
        assert running.origin.store.body(BUCKET, "k") == b"back"


async def test_conditional_put_meets_what_was_acknowledged() -> None:
    """If-None-Match is passed through behind the flush of the key: it fails on an acknowledged put, succeeds behind a delete."""
    async with running_engine(flush=QUICK) as running:
        running.origin.latency_s = 0.05
        absent: dict[str, Any] = {"origin_reason": "conditional", "origin_headers": (("if-none-match", "*"),)}

        await running.put("k", b"there")
        with pytest.raises(OriginRefusedError) as refused:
            await put(running, "k", b"lock", **absent)
        await delete(running, "k")
        await put(running, "k", b"lock", **absent)

        assert refused.value.status == 412
        assert running.origin.store.body(BUCKET, "k") == b"lock"
        assert (await running.get("k")).data == b"lock"


async def test_exactly_one_conditional_put_wins_when_sixteen_run_at_once() -> None:
    """Five times over, with an acknowledged delete in between, one of sixteen If-None-Match puts holds the lock."""
    refusals: set[int] = set()
    async with running_engine(flush=QUICK) as running:

        async def try_lock(n: int) -> bool:
            try:
                await put(
                    running,
                    "lock",
                    b"%d" % n,
                    origin_reason="conditional",
                    origin_headers=(("if-none-match", "*"),),
                )
            except OriginRefusedError as error:
                refusals.add(error.status)
                return False
            return True

        for _ in range(5):
            async with asyncio.TaskGroup() as group:
                tries = [group.create_task(try_lock(n)) for n in range(16)]
            winners = [n for n, task in enumerate(tries) if task.result()]

            assert len(winners) == 1
            assert (await running.get("lock")).data == b"%d" % winners[0]
            await delete(running, "lock")
        assert refusals == {412}


# --- too much dirty -----------------------------------------------------------------------------------------------------


async def test_put_waits_for_room_and_then_goes_back_when_the_flush_makes_some() -> None:
    """Above the mark a write waits, and is acknowledged from the disk as soon as a flush has made room."""
    async with running_engine(dirty_bytes_limit=2 * MIB, flush=QUICK) as running:
        running.origin.faults.add(Fault(operation="PutObject", delay_s=0.2))

        await running.put("a", b"a" * MIB)
        await running.put("b", b"b" * MIB)
        await running.put("c", b"c" * MIB)

        assert (await running.get("c")).data == b"c" * MIB
        await flushed(running)
        assert {key: len(running.origin.store.body(BUCKET, key) or b"") for key in "abc"} == dict.fromkeys(
            "abc", MIB
        )


async def test_put_goes_through_when_no_room_comes_in_time() -> None:
    """A write that waited in vain is at the origin before it is answered; what was acknowledged before stays."""
    async with running_engine(
        dirty_bytes_limit=MIB, dirty_wait_s=0.05, policy=Policy(flush_delay_s=60.0)
    ) as running:
        await running.put("a", b"a" * MIB)

        await running.put("b", b"b" * MIB)

        assert running.origin.store.body(BUCKET, "b") == b"b" * MIB
        assert running.origin.store.body(BUCKET, "a") is None
        assert [line.key for line in running.engine.pending(BUCKET, "", 10).lines] == ["a"]
        assert (await running.get("b")).opened is CacheResult.HIT


async def test_put_is_told_to_slow_down_when_there_is_no_room_and_no_origin() -> None:
    """503 SlowDown with Retry-After is the last resort, bounded in time; nothing that was acknowledged is dropped."""
    async with running_engine(dirty_bytes_limit=MIB, dirty_wait_s=0.05, flush=QUICK) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.faults.add(Fault(times=-1, status=503, code="SlowDown"))
        await running.put("a", b"a" * MIB)

        async with asyncio.timeout(5):
            with pytest.raises(OverloadedError) as refused:
                await running.put("b", b"b" * MIB)

        assert (refused.value.retry_after_s or 0) > 0
        running.origin.faults.clear()
        await flushed(running)
        assert running.origin.store.body(BUCKET, "a") == b"a" * MIB
        await running.put("b", b"b" * MIB)


# --- a disk that is full or fails (B60) ---------------------------------------------------------------------------------


async def test_put_goes_through_when_the_disk_is_full_and_back_again_when_it_is_not() -> None:
    """B60: with the cache full of dirty bytes new writes go through; every read is right; it recovers alone."""
    async with running_engine(
        cache_bytes=16 * MIB,
        dirty_bytes_limit=64 * MIB,
        dirty_wait_s=0.05,
        flush=QUICK,
        policy=Policy(flush_delay_s=60.0),
    ) as running:
        written: dict[str, bytes] = {}
        for n in range(24):
            written[f"k{n}"] = bytes([n]) * MIB
            await running.put(f"k{n}", written[f"k{n}"])

        assert {key: (await running.get(key)).data for key in written} == written
        assert running.origin.requests_of("PutObject") > 0
        await flushed(running)
        assert {key: running.origin.store.body(BUCKET, key) for key in written} == written
        before = running.origin.requests_of("PutObject")
        await until(lambda: running.engine._components.segments.room_bytes >= 2 * MIB)
        await running.put("again", b"x" * MIB)
        assert running.origin.requests_of("PutObject") == before


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
async def test_put_that_meets_a_bad_disk_is_refused_and_the_next_ones_go_through(number: int) -> None:
    """A refused write is a clean failure; while the disk is bad writes go through from their first byte, later back again."""
    disk = FakeFilesystem()
    async with running_engine(filesystem=disk, flush=QUICK) as running:
        await running.put("k", b"old")
        await flushed(running)
        disk.fail(
            Operation.PWRITE,
            error_number=number,
            is_persistent=True,
            when=lambda call: "segments" in call.path,
        )

        with pytest.raises((DiskFailedError, DiskFullError)):
            await running.put("k", b"x" * MIB)
        await running.put("k", b"through")

        assert running.origin.store.body(BUCKET, "k") == b"through"
        assert (await running.get("k")).data == b"through"
        assert running.engine.status().is_writable
        await until(lambda: is_whole(running))


# --- deletes ------------------------------------------------------------------------------------------------------------


async def test_delete_goes_through_when_the_bucket_is_versioned() -> None:
    """The origin's delete marker is answered."""
    async with running_engine() as running:
        running.origin.store.create_bucket("versioned", versioning="Enabled")
        await put(running, "k", b"body", bucket="versioned")

        result = await running.engine.delete_object(ObjectName("versioned", "k"))

        assert dict(result.headers).get("x-amz-delete-marker") == "true"
        with pytest.raises(NoSuchKeyError):
            await running.get("k", bucket="versioned")


async def test_delete_of_a_version_names_it_at_the_origin() -> None:
    """A delete with a version id never deletes the current object instead."""
    async with running_engine() as running:
        await running.put("k", b"body")

        await running.engine.delete_object(ObjectName(BUCKET, "k", "v1"))

        sent = [entry for entry in running.origin.log if entry.operation == "DeleteObject"]
        assert [entry.query for entry in sent] == [{"versionId": "v1"}]


async def test_many_deletes_share_their_syncs() -> None:
    """A thousand keys cost a few groups, not a sync each, and every key is told."""
    async with running_engine() as running:
        keys = [f"k{n}" for n in range(1000)]
        for key in keys[:5]:
            await running.put(key, b"x")
        before = running.engine._components.commit.groups_total

        results = await running.engine.delete_objects(BUCKET, delete_lines(keys))

        assert [(one.key, one.code) for one in results] == [(key, "") for key in keys]
        assert running.engine._components.commit.groups_total - before <= 6
        await flushed(running)
        assert running.origin.requests_of("DeleteObjects") <= 6
        assert running.origin.requests_of("DeleteObject") <= 6


async def test_failed_delete_does_not_stop_the_others() -> None:
    """Each key of a batch is answered for itself."""
    async with running_engine() as running:
        running.origin.store.create_bucket("versioned", versioning="Enabled")
        running.origin.faults.add(
            Fault(operation="DeleteObject", key="versioned/bad", status=403, code="AccessDenied")
        )

        results = await running.engine.delete_objects(
            "versioned", delete_lines(["a", "bad", "b"], "versioned")
        )

        assert [(one.key, one.code) for one in results] == [("a", ""), ("bad", "AccessDenied"), ("b", "")]


# --- cancellation -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [WriteMode.BACK, WriteMode.THROUGH])
async def test_cancelled_puts_hold_nothing_and_leave_each_key_in_one_state(mode: WriteMode) -> None:
    """Two hundred puts cancelled at random moments: counters, space, turns and pins are whole, and each key is readable."""
    rng = random.Random(5)
    async with running_engine(flush=QUICK, dirty_bytes_limit=64 * MIB) as running:
        bodies = {n: rng.randbytes(rng.choice([100, 50_000, 3 * MIB])) for n in range(20)}

        async def write(n: int) -> None:
            await put(running, f"k{n % 7}", SlowContent(bodies[n % 20], MIB, 0.0005), mode=mode)

        for start in range(0, 200, 20):
            tasks = [asyncio.get_running_loop().create_task(write(n)) for n in range(start, start + 20)]
            for task in tasks:
                await pause(rng.random() * 0.004)
                task.cancel()
            done, _ = await asyncio.wait(tasks)
            for task in done:
                assert task.cancelled() or task.exception() is None
        await flushed(running)
        await until(lambda: is_whole(running))

        for n in range(7):
            at_origin = running.origin.store.body(BUCKET, f"k{n}")
            try:
                assert (await running.get(f"k{n}")).data == at_origin
            except NoSuchKeyError:
                assert at_origin is None
        assert running.engine.status().pending_objects == 0


async def test_write_that_follows_a_cancelled_through_ends_above_it() -> None:
    """A passed-through write whose client went away may land late: the next acknowledged state is sent again over it."""
    async with running_engine(flush=QUICK) as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.faults.add(Fault(operation="PutObject", delay_s=0.3))
        gone = asyncio.get_running_loop().create_task(put(running, "k", b"late", mode=WriteMode.THROUGH))
        await until(lambda: running.origin.requests_of("PutObject") == 1)
        await pause(0.02)
        gone.cancel()
        await asyncio.wait([gone])

        await running.put("k", b"acknowledged")
        await flushed(running)

        await pause(0.3)
        assert b"late" in [
            b"late" for etag in running.origin.store.etags(BUCKET, "k") if etag == md5(b"late")
        ]
        assert running.origin.store.body(BUCKET, "k") == b"acknowledged"
        assert (await running.get("k")).data == b"acknowledged"


async def test_through_waits_for_a_write_back_whose_client_went_away_in_its_commit() -> None:
    """A put that is being made durable holds its key, cancelled or not: what is passed through behind it ends above it."""
    disk, stuck, go_on = FakeFilesystem(), threading.Event(), threading.Event()

    def hold(path: str) -> None:
        if path.startswith("journal/"):
            stuck.set()
            assert go_on.wait(10)

    async with running_engine(filesystem=disk, flush=QUICK) as running:
        await running.engine.bucket_facts(BUCKET)
        disk.on_sync = hold
        loop = asyncio.get_running_loop()
        back = loop.create_task(running.put("k", b"back"))
        await until(stuck.is_set)

        back.cancel()
        through = loop.create_task(put(running, "k", b"through", mode=WriteMode.THROUGH))
        await pause(0.02)
        assert running.origin.requests_of("PutObject") == 0
        go_on.set()
        await through
        await flushed(running)

        assert running.origin.store.etags(BUCKET, "k")[-1] == md5(b"through")
        assert (await running.get("k")).data == b"through"
