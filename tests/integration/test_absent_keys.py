"""`negative_ttl` in a whole engine: a 404 is believed by policy only, and what this gateway writes shows at once."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

from storage.authority import Authority
from storage.errors import NoSuchBucketError, NoSuchKeyError, OriginUnavailableError, StorageError
from storage.origin.credentials import Credentials, StaticCredentials
from storage.policy import Policy
from storage.requests import CompletedPart, PutRequest, UploadRequest
from storage.types import CacheResult, ObjectName, WriteMode
from tests.fakes.gateway import ACCESS_KEY, ask, running_gateway
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, delete_lines, running_engine

NAME = ObjectName(BUCKET, "k")
BELIEVED = Policy(negative_ttl_s=3600.0)


async def is_there(running: RunningEngine, key: str = "k", *, by_head: bool = False) -> bool:
    """Read an object, or ask for its description."""
    try:
        if by_head:
            await (await running.engine.open_object(ObjectName(BUCKET, key), metadata_only=True)).close()
        else:
            await running.get(key)
    except NoSuchKeyError:
        return False
    return True


def asked(running: RunningEngine) -> int:
    """Count the questions to the origin about objects."""
    return running.origin.requests_of("GetObject") + running.origin.requests_of("HeadObject")


@pytest.mark.parametrize("first_by_head", [True, False])
async def test_a_404_is_believed_by_policy_only(first_by_head: bool) -> None:
    """GET and HEAD share it; without a policy the origin is asked each time; a key made elsewhere shows when the time is over."""
    async with running_engine(policy=BELIEVED) as running:
        assert not await is_there(running, by_head=first_by_head)
        once = asked(running)
        running.origin.store.put(BUCKET, "k", b"made elsewhere")

        assert not await is_there(running)
        assert not await is_there(running, by_head=True)
        assert asked(running) == once
        running.clock.ahead_s += 3600
        assert await is_there(running)

        running.use(Policy())
        assert not await is_there(running, "other")
        before = asked(running)
        assert not await is_there(running, "other")
        assert asked(running) > before


async def test_every_write_of_this_gateway_shows_at_once() -> None:
    """Whatever was remembered before it, and whether it is flushed, deleted again or goes through."""
    draws = random.Random(11)
    async with running_engine(policy=BELIEVED) as running:
        expected: set[str] = set()
        for step in range(200):
            key = f"{draws.randrange(5)}"
            kind = draws.randrange(6)
            if kind == 0:
                await running.engine.delete_object(ObjectName(BUCKET, key))
                expected.discard(key)
            elif kind == 1:
                await running.engine.delete_objects(BUCKET, delete_lines([key]))
                expected.discard(key)
            elif kind == 2:
                request = PutRequest(ObjectName(BUCKET, key), mode=WriteMode.THROUGH)
                await running.engine.put_object(request, BytesContent(b"through"))
                expected.add(key)
            elif kind == 3:
                await running.put(key, b"back")
                expected.add(key)
            elif kind == 4:
                report = running.engine.start_barrier(BUCKET, "")
                assert (await running.engine.wait_barrier(report.barrier_id, 10.0)).is_reached
            for looked in range(5):
                found = await is_there(running, f"{looked}", by_head=bool(draws.randrange(2)))
                assert found == (f"{looked}" in expected), (step, looked)

        assert running.engine.stats.remembered_absences > 100


async def test_a_write_around_the_cache_shows_at_once() -> None:
    """Nothing of it is known here afterwards."""
    async with running_engine(policy=BELIEVED) as running:
        assert not await is_there(running)

        await running.engine.put_object(PutRequest(NAME, mode=WriteMode.AROUND), BytesContent(b"around"))

        assert await is_there(running)


async def test_an_upload_shows_once_it_is_complete_and_not_before() -> None:
    """Its parts are no object."""
    async with running_engine(policy=BELIEVED) as running:
        assert not await is_there(running)
        upload_id, _ = await running.engine.create_upload(UploadRequest(NAME))
        part = await running.engine.upload_part(NAME, upload_id, 1, BytesContent(b"part"))
        assert not await is_there(running)

        await running.engine.complete_upload(NAME, upload_id, [CompletedPart(1, part.etag)])

        assert await is_there(running)


async def test_a_failure_of_the_origin_is_no_entry() -> None:
    """Nor does an entry cover for one: what is not known any more is a 503."""
    async with running_engine(policy=replace(BELIEVED, negative_ttl_s=10.0), answer_s=0.5) as running:
        running.origin.faults.add(Fault(operation="*", status=500, times=-1))
        with pytest.raises(OriginUnavailableError):
            await is_there(running)
        running.origin.faults.clear()
        running.origin.store.put(BUCKET, "k", b"there all the time")
        assert await is_there(running)

        assert not await is_there(running, "other")
        running.origin.faults.add(Fault(operation="*", status=500, times=-1))
        assert not await is_there(running, "other"), "within its time it is answered"
        running.clock.ahead_s += 10
        with pytest.raises(OriginUnavailableError):
            await is_there(running, "other")


async def test_a_bucket_that_is_missing_is_no_entry() -> None:
    """It says nothing of its keys."""
    async with running_engine(policy=BELIEVED) as running:
        bucket = running.origin.store.buckets.pop(BUCKET)
        for by_head in (True, False):
            with pytest.raises(NoSuchBucketError):
                await is_there(running, by_head=by_head)
        running.origin.store.buckets[BUCKET] = bucket
        running.origin.store.put(BUCKET, "k", b"there all the time")

        assert await is_there(running)


async def test_a_write_without_an_answer_keeps_a_404_from_being_believed() -> None:
    """It may land at any moment."""
    async with running_engine(policy=BELIEVED, answer_s=0.5) as running:
        running.origin.faults.add(Fault(operation="PutObject", drop="before", times=-1))
        request = PutRequest(NAME, mode=WriteMode.THROUGH)
        with pytest.raises(StorageError):
            await running.engine.put_object(request, BytesContent(b"late"))

        assert not await is_there(running)
        running.origin.store.put(BUCKET, "k", b"late")

        assert await is_there(running)


async def test_a_version_that_is_found_gone_is_remembered_as_such() -> None:
    """The validation that finds it out is the last question."""
    async with running_engine(policy=BELIEVED) as running:
        running.origin.store.put(BUCKET, "k", b"first")
        assert await is_there(running)
        await running.fills_ended()
        running.origin.store.buckets[BUCKET].objects.pop("k")
        running.clock.ahead_s += 100
        assert not await is_there(running)
        once = asked(running)

        assert not await is_there(running)
        assert asked(running) == once


async def test_keys_with_credentials_of_their_own_share_no_404() -> None:
    """Neither is theirs remembered, nor is the gateway's told to them."""
    async with running_engine(policy=BELIEVED) as running:
        own = running.engine.own_store(Authority("own", StaticCredentials(Credentials("own", "secret")), 0.0))
        with pytest.raises(NoSuchKeyError):
            await own.open_object(NAME, None)
        assert running.engine._components.reader.absence(NAME) is None
        assert not await is_there(running)
        assert running.engine._components.reader.absence(NAME) is not None
        running.origin.store.put(BUCKET, "k", b"made elsewhere")

        opened = await own.open_object(NAME, None)
        await opened.close()

        assert opened.record.size == len(b"made elsewhere")
        assert await is_there(running), "what the origin shows to one exists for all"


async def test_clients_and_operators_are_told(tmp_path: Path) -> None:
    """In `x-cache-reason` and by `forebay explain`."""
    async with (
        running_engine(policy=BELIEVED) as running,
        running_gateway(str(tmp_path / "access.log"), engine=running.engine) as gateway,
    ):
        first = await ask(gateway, "GET", f"/{BUCKET}/k", {}, ACCESS_KEY)
        again = [await ask(gateway, method, f"/{BUCKET}/k", {}, ACCESS_KEY) for method in ("GET", "HEAD")]
        report = await running.engine.explain(NAME)

    assert first.status == 404
    assert "x-cache" not in first.headers
    assert b"NoSuchKey" in again[0].body
    for answer in again:
        assert answer.status == 404
        assert answer.headers["x-cache"] == CacheResult.HIT
        assert answer.headers["x-cache-reason"] == "known not to exist"
    assert (report.state, report.is_fresh, report.why_missing) == ("absent", True, "")
    assert report.fresh_until_s == pytest.approx(report.confirmed_at_s + 3600)
