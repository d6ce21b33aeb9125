"""A bucket that is not at the origin, for a while or for good, is not a key that is not there."""

import asyncio

import pytest

from storage.errors import NoSuchBucketError, NoSuchKeyError, OriginUnavailableError
from storage.policy import Freshness, FreshnessMode, Policy
from storage.types import CacheResult, ObjectName
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine

DATA = b"cached before the bucket went away"
NAME = ObjectName(BUCKET, "key")
ALWAYS = Policy(freshness=Freshness(FreshnessMode.ALWAYS))


async def warm(running: RunningEngine) -> None:
    """Bring the object into the cache."""
    running.origin.store.put(BUCKET, "key", DATA)
    await running.get("key")
    await running.fills_ended()
    running.origin.requests.clear()


async def test_what_is_cached_is_kept_while_the_bucket_is_away() -> None:
    """Readers are told of the bucket, as the origin would; once it is back, the version is validated and its bytes are here."""
    async with running_engine(policy=ALWAYS) as running:
        await warm(running)
        away = running.origin.store.buckets.pop(BUCKET)

        with pytest.raises(NoSuchBucketError):
            await running.get("key")
        with pytest.raises(NoSuchBucketError):
            await running.get("other")
        running.origin.store.buckets[BUCKET] = away
        got = await running.get("key")

        assert (got.data, got.result) == (DATA, CacheResult.HIT)
        assert running.origin.requests["GetObject"] == 2, "one for each 404 of the bucket, none for the bytes"


async def missed(running: RunningEngine, key: str) -> None:
    """Look for what is not there."""
    with pytest.raises(NoSuchKeyError):
        await running.client.head_object(ObjectName(BUCKET, key))


async def test_a_key_that_is_gone_is_still_a_404_of_the_key() -> None:
    """Only after a 404 is anything else asked: a GET of one byte, which says why, and never for the bucket."""
    async with running_engine(policy=ALWAYS) as running:
        await warm(running)
        await running.get("key")
        assert running.origin.requests == {"HeadObject": 1}
        del running.origin.store.buckets[BUCKET].objects["key"]

        with pytest.raises(NoSuchKeyError):
            await running.get("key")

        assert running.origin.requests == {"HeadObject": 2, "GetObject": 1}


async def test_a_bucket_that_is_back_when_it_is_asked_for_does_not_make_a_404_the_keys() -> None:
    """A HEAD met a bucket that was away; whoever looked for the bucket a moment later would find it."""
    async with running_engine(policy=ALWAYS) as running:
        await warm(running)
        running.origin.faults.add(Fault(operation="HeadObject", status=404))

        got = await running.get("key")
        described = await running.client.head_object(NAME)

        assert (got.data, got.result) == (DATA, CacheResult.HIT)
        assert described is not None


async def test_an_empty_object_is_found_after_a_404_of_its_bucket() -> None:
    """It has no first byte, and a 416 says that it is there."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", b"")
        running.origin.faults.add(Fault(operation="HeadObject", status=404))

        described = await running.client.head_object(NAME)

        assert described is not None
        assert described.size == 0


@pytest.mark.parametrize("is_covered", [False, True])
async def test_an_origin_that_contradicts_itself_says_nothing(is_covered: bool) -> None:
    """HEAD does not find what GET does: no caller may take that for a key which is not there."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.faults.add(Fault(operation="HeadObject", status=404, times=-1))

        with pytest.raises(OriginUnavailableError):
            await running.client.head_object(NAME, is_covered=is_covered)


async def test_a_head_that_names_its_reason_needs_no_question() -> None:
    """MinIO tells the code of an error without a document in a header; AWS tells of a delete marker."""
    async with running_engine() as running:
        for told in ({"x-minio-error-code": "NoSuchKey"}, {"x-amz-delete-marker": "true"}):
            running.origin.faults.add(Fault(operation="HeadObject", headers=told))
            await missed(running, "key")
        running.origin.faults.add(
            Fault(operation="HeadObject", headers={"x-minio-error-code": "NoSuchBucket"})
        )

        with pytest.raises(NoSuchBucketError):
            await running.client.head_object(NAME)

        assert running.origin.requests == {"HeadObject": 3}


async def test_a_document_that_was_cut_off_is_asked_for_again() -> None:
    """What there is not stood in it, so a 404 without the rest of it is no answer."""
    async with running_engine() as running:
        running.origin.faults.add(Fault(operation="GetObject", cut_body_at=10))
        running.origin.store.buckets.clear()

        with pytest.raises(NoSuchBucketError):
            await running.get("key")

        assert running.origin.requests == {"GetObject": 2}


def without_documents(running: RunningEngine) -> None:
    """Make an origin that says in no answer what is not there."""
    running.origin.faults.add(
        Fault(operation="GetObject", status=404, cut_body_at=0, content_length=0, times=-1)
    )


async def test_without_documents_the_bucket_is_asked_for_by_one_of_many() -> None:
    """Whoever comes while the question is on its way has it answered by the next one, with all others that came."""
    async with running_engine() as running:
        without_documents(running)

        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(missed(running, str(number)))

        assert 1 <= running.origin.requests["HeadBucket"] < 20


async def test_without_documents_a_bucket_seen_before_is_not_enough() -> None:
    """Every 404 asks for the bucket, though it was there a moment ago."""
    async with running_engine() as running:
        without_documents(running)
        await missed(running, "key")
        running.origin.store.buckets.clear()

        with pytest.raises(NoSuchBucketError):
            await running.client.head_object(NAME)


@pytest.mark.parametrize("status", [403, 405, 501])
async def test_an_origin_that_lets_nobody_ask_for_the_bucket_is_believed(status: int) -> None:
    """No answer says that the bucket is away."""
    async with running_engine() as running:
        without_documents(running)
        running.origin.faults.add(Fault(operation="HeadBucket", status=status, times=9))

        await missed(running, "key")


@pytest.mark.parametrize("operation", ["GetObject", "HeadBucket"])
async def test_an_origin_that_does_not_say_leaves_it_open(operation: str) -> None:
    """A 404 of which nobody tells the reason is no answer: it covers what is cached like any failure."""
    async with running_engine() as running:
        running.origin.faults.add(Fault(operation=operation, status=500, times=99))
        without_documents(running)

        with pytest.raises(OriginUnavailableError):
            await running.client.head_object(NAME, is_covered=True)
