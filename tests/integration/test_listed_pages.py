"""Listings within `listing_ttl` in a whole engine: the origin is not asked, and this gateway's own writes show at once."""

import random
from dataclasses import replace

import pytest

from storage.errors import StorageError
from storage.listing import ListQuery
from storage.policy import Policy
from storage.records import Mutation
from storage.requests import PutRequest
from storage.types import ObjectName, WriteMode
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, delete_lines, running_engine

KEPT = Policy(listing_ttl_s=3600.0)


async def keys(running: RunningEngine, prefix: str = "") -> dict[str, int]:
    """List a prefix: sizes by keys."""
    page = await running.engine.list_objects(ListQuery(BUCKET, prefix))
    return {entry.key: entry.size for entry in page.entries}


async def test_a_listing_of_a_warm_prefix_asks_the_origin_once() -> None:
    """Until its time is over, what other writers add does not show; without a policy it does at once."""
    async with running_engine(policy=KEPT) as running:
        running.origin.store.put(BUCKET, "a", b"1")
        first = await keys(running)
        running.origin.store.put(BUCKET, "b", b"1")

        assert await keys(running) == first == {"a": 1}
        assert running.origin.requests_of("ListObjectsV2") == 1

        running.use(Policy())
        assert await keys(running) == {"a": 1, "b": 1}


async def test_what_is_written_through_the_gateway_shows_at_once() -> None:
    """However it is written, and when it is flushed too; whatever is listed between."""
    draws = random.Random(7)
    async with running_engine(policy=KEPT) as running:
        expected: dict[str, int] = {}
        for step in range(150):
            key = f"{draws.choice('ab')}/{draws.randrange(6)}"
            size = step + 1
            kind = draws.randrange(5)
            if kind == 0:
                await running.engine.delete_object(ObjectName(BUCKET, key))
                expected.pop(key, None)
            elif kind == 1:
                await running.engine.delete_objects(BUCKET, delete_lines([key]))
                expected.pop(key, None)
            elif kind == 2:
                request = PutRequest(ObjectName(BUCKET, key), mode=WriteMode.THROUGH)
                await running.engine.put_object(request, BytesContent(bytes(size)))
                expected[key] = size
            else:
                await running.put(key, bytes(size))
                expected[key] = size
            for _ in range(draws.randrange(3)):
                prefix = draws.choice(["", "a/", "b/"])
                listed = await keys(running, prefix)
                assert listed == {k: v for k, v in sorted(expected.items()) if k.startswith(prefix)}, step

        report = running.engine.start_barrier(BUCKET, "")
        while not report.is_reached:
            assert await keys(running) == dict(sorted(expected.items()))
            report = await running.engine.wait_barrier(report.barrier_id, 0.001)
        asked = running.origin.requests_of("ListObjectsV2")
        assert await keys(running) == await keys(running) == dict(sorted(expected.items()))
        assert running.origin.requests_of("ListObjectsV2") <= asked + 1


async def test_a_write_without_an_answer_keeps_listings_from_being_believed() -> None:
    """It may land at any moment."""
    async with running_engine(policy=KEPT, answer_s=0.5) as running:
        running.origin.store.put(BUCKET, "a", b"1")
        running.origin.faults.add(Fault(operation="PutObject", drop="after", times=-1))
        request = PutRequest(ObjectName(BUCKET, "a"), mode=WriteMode.THROUGH)
        with pytest.raises(StorageError):
            await running.engine.put_object(request, BytesContent(b"22"))

        await keys(running)
        await keys(running)

        assert running.origin.requests_of("ListObjectsV2") == 2


async def test_a_bucket_that_was_deleted_is_not_listed_from_memory() -> None:
    """Its last page was empty."""
    async with running_engine(policy=KEPT) as running:
        assert await keys(running) == {}

        await running.engine.delete_bucket(BUCKET)

        with pytest.raises(StorageError):
            await keys(running)


async def test_a_flushed_object_stays_in_the_listing_when_the_page_was_asked_for_before() -> None:
    """The page does not have it, and the overlay does not any more: not in the step in which its confirmation is applied, either."""
    async with running_engine(policy=replace(KEPT, flush_delay_s=3600.0)) as running:
        running.origin.store.put(BUCKET, "a", b"1")
        await running.put("b", b"22")
        await running.engine.delete_object(ObjectName(BUCKET, "a"))
        assert await keys(running) == {"b": 2}
        flusher = running.engine._components.flusher
        commit, seen = flusher._commit, []

        async def commit_and_look(mutation: Mutation) -> bool:
            is_committed = await commit(mutation)
            seen.append(await keys(running))
            return is_committed

        flusher._commit = commit_and_look  # type: ignore[method-assign]  # to look before the flusher goes on
        report = running.engine.start_barrier(BUCKET, "")

        report = await running.engine.wait_barrier(report.barrier_id, 10.0)

        assert report.is_reached
        assert seen
        assert all(listed == {"b": 2} for listed in seen)
        assert await keys(running) == {"b": 2}
