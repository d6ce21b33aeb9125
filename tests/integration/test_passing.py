"""Operations that only the origin answers, on a whole engine."""

import asyncio

import pytest

from storage.errors import (
    BucketNotEmptyError,
    NoSuchBucketError,
    NoSuchKeyError,
    QuarantinedError,
    StorageError,
)
from storage.flush_events import FlushSettings
from storage.policy import Policy
from storage.types import ObjectName
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine
from tests.fakes.writing import PART, delete, flushed, listed, md5, pause, settled, until, upload

QUICK = FlushSettings(origin_timeout_s=0.6, retry_s_min=0.02, retry_s_max=0.1)


async def copy(running: RunningEngine, source: str, target: str) -> str:
    """Copy an object within the bucket; give the ETag."""
    result = await running.engine.copy_object(ObjectName(BUCKET, source), ObjectName(BUCKET, target), ())
    return result.etag


# --- copies -------------------------------------------------------------------------------------------------------------


async def test_copy_sees_the_acknowledged_source_and_replaces_the_target() -> None:
    """Source and target are as they were acknowledged, however far the flush is; the target read afterwards is the copy."""
    async with running_engine(flush=QUICK, policy=Policy(flush_delay_s=60.0)) as running:
        await running.put("source", b"old source")
        await running.put("source", b"source")
        await running.put("target", b"target")
        assert (await running.get("target")).data == b"target"

        etag = await copy(running, "source", "target")

        assert etag == md5(b"source")
        assert (await running.get("target")).data == b"source"
        assert running.origin.store.etags(BUCKET, "target") == [md5(b"target"), md5(b"source")]
        assert sorted(entry.key for entry in await listed(running)) == ["source", "target"]


async def test_copy_of_an_acknowledged_upload_sees_it_whole() -> None:
    """A multipart source is flushed with its parts first."""
    async with running_engine(flush=QUICK, policy=Policy(flush_delay_s=60.0)) as running:
        await upload(running, "source", [b"a" * PART, b"b"])

        await copy(running, "source", "target")

        assert (await running.get("target")).data == b"a" * PART + b"b"


async def test_copy_without_a_source_leaves_the_target() -> None:
    """A source that is not there, or whose delete was acknowledged, is told; the target stays what it was."""
    async with running_engine(flush=QUICK) as running:
        running.origin.store.put(BUCKET, "deleted", b"x")
        await running.put("target", b"target")
        await delete(running, "deleted")

        for source in ("missing", "deleted"):
            with pytest.raises(NoSuchKeyError):
                await copy(running, source, "target")

        assert (await running.get("target")).data == b"target"
        assert running.origin.store.body(BUCKET, "target") == b"target"


async def test_copies_in_opposite_directions_do_not_wait_for_each_other_for_ever() -> None:
    """Two copies that have each other's target as source both end."""
    async with running_engine(flush=QUICK) as running:
        await running.put("a", b"a")
        await running.put("b", b"b")

        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            for source, target in [("a", "b"), ("b", "a")] * 3:
                group.create_task(copy(running, source, target))

        assert {running.origin.store.body(BUCKET, key) for key in "ab"} <= {b"a", b"b"}


async def test_copy_onto_itself_changes_the_acknowledged_object() -> None:
    """A copy onto itself, with other metadata, is of what was acknowledged last."""
    async with running_engine(flush=QUICK) as running:
        await running.put("k", b"one")
        await running.put("k", b"two")
        headers = (("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-a", "1"))

        await running.engine.copy_object(ObjectName(BUCKET, "k"), ObjectName(BUCKET, "k"), headers)

        opened = await running.engine.open_object(ObjectName(BUCKET, "k"), metadata_only=True)
        await opened.close()
        assert (opened.record.etag, dict(opened.record.user_metadata)) == (md5(b"two"), {"a": "1"})


async def test_error_inside_a_200_of_a_copy_is_a_failure() -> None:
    """A copy that answers 200 with an error document has failed (B58), and what is cached of the target is asked anew."""
    async with running_engine(flush=QUICK) as running:
        await running.put("source", b"source")
        await running.put("target", b"target")
        await flushed(running)
        running.origin.faults.add(Fault(operation="CopyObject", error_in_200="InternalError", status=500))

        with pytest.raises(StorageError):
            await copy(running, "source", "target")

        assert (await running.get("target")).data == b"target"


# --- buckets ------------------------------------------------------------------------------------------------------------


async def test_created_bucket_is_usable_at_once_and_a_deleted_one_is_gone_at_once() -> None:
    """No write waits for a bucket's facts to age: made, used, emptied, deleted, made again."""
    async with running_engine(flush=QUICK) as running:
        with pytest.raises(NoSuchBucketError):
            await running.put("k", b"x", bucket="new")

        for _ in range(2):
            reply = await running.engine.create_bucket("new", region="us-east-1")
            await running.put("k", b"x", bucket="new")
            await delete(running, "k", bucket="new")
            await running.engine.delete_bucket("new")

            assert reply.status == 200
            with pytest.raises(NoSuchBucketError):
                await running.put("k", b"x", bucket="new")
            with pytest.raises(NoSuchBucketError):
                await running.engine.delete_bucket("new")


async def test_bucket_is_made_in_the_region_that_was_asked_for() -> None:
    """The location is handed on; an error answer of the origin comes back as it is."""
    async with running_engine() as running:
        await running.engine.create_bucket("far", region="eu-west-1")
        again = await running.engine.create_bucket("far", region="eu-west-1")

        assert running.origin.store.buckets["far"].region == "eu-west-1"
        assert (again.status, b"BucketAlreadyOwnedByYou" in again.body) == (409, True)


async def test_bucket_with_acknowledged_objects_is_not_empty() -> None:
    """An object that has not reached the origin counts; the bucket and the object stay."""
    async with running_engine(policy=Policy(flush_delay_s=60.0)) as running:
        await running.put("k", b"x")

        with pytest.raises(BucketNotEmptyError):
            await running.engine.delete_bucket(BUCKET)

        assert BUCKET in running.origin.store.buckets
        assert (await running.get("k")).data == b"x"
        running.origin.faults.add(Fault(times=-1, status=503, code="SlowDown"))
        await running.put("more", b"x")


async def test_acknowledged_deletes_reach_the_origin_before_the_bucket_goes() -> None:
    """A bucket whose objects were all deleted here can be deleted there."""
    async with running_engine(flush=QUICK, policy=Policy(flush_delay_s=60.0)) as running:
        for n in range(5):
            running.origin.store.put(BUCKET, f"k{n}", b"x")
            await delete(running, f"k{n}")

        await running.engine.delete_bucket(BUCKET)

        assert BUCKET not in running.origin.store.buckets


async def test_bucket_with_objects_at_the_origin_only_is_not_empty() -> None:
    """The origin's own refusal is told, and the bucket can be used again at once."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "k", b"x")

        with pytest.raises(StorageError):
            await running.engine.delete_bucket(BUCKET)

        await running.put("more", b"x")


async def test_delete_that_the_origin_refuses_keeps_the_bucket() -> None:
    """A quarantined tombstone is a reason why the bucket cannot go."""
    async with running_engine(flush=QUICK) as running:
        running.origin.store.put(BUCKET, "k", b"x")
        running.origin.faults.add(Fault(operation="DeleteObject", times=1, status=400, code="InvalidRequest"))
        await delete(running, "k")
        await settled(running)

        with pytest.raises(QuarantinedError, match="InvalidRequest"):
            await running.engine.delete_bucket(BUCKET)


async def test_write_that_meets_the_deletion_of_its_bucket_is_kept_or_refused_but_never_orphaned() -> None:
    """A put beside a DeleteBucket is acknowledged in a bucket that stays, or refused in one that is gone."""
    async with running_engine(flush=QUICK) as running:
        for turn in range(12):
            bucket = f"bucket{turn}"
            running.origin.store.create_bucket(bucket)
            await running.engine.bucket_facts(bucket)
            running.origin.faults.add(Fault(operation="DeleteBucket", key=f"{bucket}/", delay_s=0.02))
            loop = asyncio.get_running_loop()
            deleting = loop.create_task(running.engine.delete_bucket(bucket))
            await pause(turn * 0.002)
            writing = loop.create_task(running.put("k", b"x", bucket=bucket))
            await asyncio.wait([deleting, writing])

            outcomes = (type(deleting.exception()), type(writing.exception()))
            assert outcomes in {
                (BucketNotEmptyError, type(None)),
                (type(None), NoSuchBucketError),
            }
            assert (bucket in running.origin.store.buckets) == (outcomes[1] is type(None))
        await flushed(running)
        assert running.engine.status().pending_objects == 0


async def test_buckets_are_listed_by_name() -> None:
    """The list is the origin's."""
    async with running_engine() as running:
        running.origin.store.create_bucket("a")
        running.origin.store.create_bucket("z")

        names = [bucket.name for bucket in await running.engine.list_buckets()]

        assert names == ["a", BUCKET, "z"]


async def test_facts_that_a_change_has_outdated_are_asked_anew() -> None:
    """A bucket that was made with object lock is written through from its first object on."""
    async with running_engine() as running:
        await running.engine.create_bucket(
            "locked", region="us-east-1", headers=(("x-amz-bucket-object-lock-enabled", "true"),)
        )

        await running.put("k", b"x", bucket="locked")

        assert running.origin.store.body("locked", "k") == b"x"
        await until(lambda: running.engine.status().pending_objects == 0)
