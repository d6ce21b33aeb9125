"""A bucket that is not at the origin, for a while or for good, is not a key that is not there."""

import asyncio

import pytest

from storage.errors import NoSuchBucketError, NoSuchKeyError, OriginUnavailableError
from storage.policy import Freshness, FreshnessMode, Policy
from storage.types import CacheResult, ObjectName, Priority
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
        assert running.origin.requests["GetObject"] == 1, "only what was not known was asked for by GET"


async def missed(running: RunningEngine, key: str) -> None:
    """Look for what is not there."""
    with pytest.raises(NoSuchKeyError):
        await running.client.head_object(ObjectName(BUCKET, key))


async def test_a_key_that_is_gone_is_still_a_404_of_the_key() -> None:
    """The bucket is asked for once in a while, by one of many, and only after a 404."""
    async with running_engine(policy=ALWAYS) as running:
        await warm(running)
        await running.get("key")
        assert running.origin.requests == {"HeadObject": 1}
        del running.origin.store.buckets[BUCKET].objects["key"]

        with pytest.raises(NoSuchKeyError):
            await running.get("key")
        async with asyncio.TaskGroup() as group:
            for number in range(20):
                group.create_task(missed(running, str(number)))

        assert running.origin.requests["HeadBucket"] == 1


async def test_a_bucket_seen_before_is_not_enough_where_it_is_said() -> None:
    """What settles a flush asks again, though the bucket was there a moment ago."""
    async with running_engine() as running:
        with pytest.raises(NoSuchKeyError):
            await running.client.head_object(NAME)
        running.origin.store.buckets.clear()

        with pytest.raises(NoSuchBucketError):
            await running.client.head_object(NAME, priority=Priority.VALIDATION, is_bucket_fresh=True)


@pytest.mark.parametrize("status", [403, 405, 501])
async def test_an_origin_that_lets_nobody_ask_for_the_bucket_is_believed(status: int) -> None:
    """No answer says that the bucket is away."""
    async with running_engine() as running:
        running.origin.faults.add(Fault(operation="HeadBucket", status=status, times=9))

        with pytest.raises(NoSuchKeyError):
            await running.client.head_object(NAME)


async def test_an_origin_that_does_not_say_leaves_it_open() -> None:
    """A 404 of an object whose bucket nobody tells of is no answer: it covers what is cached like any failure."""
    async with running_engine() as running:
        running.origin.faults.add(Fault(operation="HeadBucket", status=500, times=99))

        with pytest.raises(OriginUnavailableError):
            await running.client.head_object(NAME, is_covered=True)
