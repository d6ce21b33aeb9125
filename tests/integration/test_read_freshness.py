"""When a cached version may be served: time, the origin's failures, unclean stops, and writes of the gateway's own."""

import asyncio
import hashlib
import random
from collections.abc import Callable

import pytest

from storage.cached import ForgetClean
from storage.errors import NoSuchKeyError, ObjectChangedError, OriginError, OriginUnavailableError
from storage.policy import Freshness, FreshnessMode, Policy
from storage.requests import PutRequest
from storage.rows import Rows
from storage.types import MIB, CacheResult, ObjectName, WriteMode
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, running_engine, until

NAME = ObjectName(BUCKET, "key")
DATA = random.Random(1).randbytes(2 * MIB + 5)
OTHER = random.Random(2).randbytes(2 * MIB + 5)
TTL = Policy(freshness=Freshness(ttl_s=60.0, stale_s=3600.0))
ALWAYS = Policy(freshness=Freshness(FreshnessMode.ALWAYS))
IMMUTABLE = Policy(freshness=Freshness(FreshnessMode.IMMUTABLE))


async def warm(running: RunningEngine) -> None:
    """Bring the object into the cache."""
    running.origin.store.put(BUCKET, "key", DATA)
    await running.get("key")
    await running.fills_ended()


def metadata_now(running: RunningEngine) -> tuple[tuple[str, str], ...]:
    """Read the user metadata of the object's row."""
    row = running.engine._components.holdings.record(NAME)
    assert row is not None
    return row.user_metadata


async def test_within_its_time_a_version_is_served_without_asking() -> None:
    """Freshness ttl: no request before the time is over, one HEAD after it, none again for as long."""
    async with running_engine(policy=TTL) as running:
        await warm(running)
        running.clock.ahead_s = 59.0
        before = await running.get("key")
        running.clock.ahead_s = 61.0
        after = await running.get("key")
        again = await running.get("key")

        assert before.data == after.data == again.data == DATA
        assert [got.result for got in (before, after, again)] == [CacheResult.HIT] * 3
        assert after.reason == "validated"
        assert running.origin.requests == {"GetObject": 1, "HeadObject": 1}


async def test_always_asks_each_time_and_immutable_never() -> None:
    """Freshness always costs a HEAD a read; immutable none, however old the version is."""
    async with running_engine(policy=ALWAYS) as running:
        await warm(running)

        await running.get("key")
        await running.get("key")
        heads = running.origin.requests["HeadObject"]
        running.use(IMMUTABLE)
        running.clock.ahead_s = 1e9
        got = await running.get("key")

        assert (heads, running.origin.requests["HeadObject"]) == (2, 2)
        assert got.data == DATA


async def test_many_readers_of_an_old_version_ask_once() -> None:
    """Equal validations at the same time are one HEAD."""
    async with running_engine(policy=TTL) as running:
        await warm(running)
        running.clock.ahead_s = 61.0
        gate = running.origin.hold("HEAD", "bucket/key")

        async with asyncio.TaskGroup() as group:
            reads = [group.create_task(running.get("key")) for _ in range(30)]
            await gate.reached.wait()
            gate.open()

        assert all(read.result().data == DATA for read in reads)
        assert running.origin.requests == {"GetObject": 1, "HeadObject": 1}


async def test_after_the_time_only_the_new_version_is_seen() -> None:
    """B08: an overwrite behind the gateway, of the same size, shows whole once the time is over."""
    async with running_engine(policy=TTL) as running:
        await warm(running)
        running.origin.store.put(BUCKET, "key", OTHER)
        before = await running.get("key")
        running.clock.ahead_s = 61.0

        after = await running.get("key")

        assert (before.data, before.result) == (DATA, CacheResult.HIT)
        assert (after.data, after.opened, after.result) == (OTHER, CacheResult.MISS, CacheResult.MISS)


async def test_a_delete_at_the_origin_is_seen_after_the_time() -> None:
    """B08: a deleted key answers 404 once it is validated, and a new object under it is seen at once."""
    async with running_engine(policy=TTL) as running:
        await warm(running)
        running.origin.store._delete(BUCKET, "key")
        running.clock.ahead_s = 61.0

        with pytest.raises(NoSuchKeyError):
            await running.get("key")
        running.origin.store.put(BUCKET, "key", OTHER)
        got = await running.get("key")

        assert got.data == OTHER


async def test_a_change_of_metadata_alone_is_seen_after_the_time() -> None:
    """B08: the same ETag with a newer Last-Modified is a new version."""
    async with running_engine(policy=TTL) as running:
        running.origin.store._now_s = lambda: 1_700_000_000.0
        running.origin.store.put(BUCKET, "key", DATA, **{"x-amz-meta-run": "1"})
        await running.get("key")
        await running.fills_ended()
        before = metadata_now(running)
        running.origin.store._now_s = lambda: 1_700_000_005.0
        running.origin.store.put(BUCKET, "key", DATA, **{"x-amz-meta-run": "2"})
        running.clock.ahead_s = 61.0

        got = await running.get("key")

        assert (before, metadata_now(running)) == ((("run", "1"),), (("run", "2"),))
        assert got.data == DATA


async def test_a_change_of_metadata_alone_is_seen_when_the_version_was_flushed_from_here() -> None:
    """B08 again: no answer to a write carries a date, so the first validation compares what the origin shows of the object."""
    async with running_engine(policy=TTL) as running:
        await running.put("key", DATA)
        await running.engine._components.flusher.flush_key(NAME)
        running.origin.store.put(BUCKET, "key", DATA, **{"x-amz-meta-run": "2"})
        running.clock.ahead_s = 61.0

        got = await running.get("key")

        assert (metadata_now(running), got.data) == ((("run", "2"),), DATA)


async def test_a_change_of_metadata_within_the_second_of_the_date_is_seen_and_costs_no_bytes() -> None:
    """B08: the same ETag and the same Last-Modified, whose unit is the second: what HEAD says is taken over, the bytes stay."""
    async with running_engine(policy=TTL) as running:
        running.origin.store._now_s = lambda: 1_700_000_000.2
        running.origin.store.put(BUCKET, "key", DATA, **{"x-amz-meta-run": "1", "content-type": "text/x"})
        await running.get("key")
        await running.fills_ended()
        running.origin.store._now_s = lambda: 1_700_000_000.7
        running.origin.store.put(BUCKET, "key", DATA, **{"x-amz-meta-run": "2", "content-language": "de"})
        running.clock.ahead_s = 61.0

        got = await running.get("key")
        row = running.engine._components.holdings.record(NAME)

        assert row is not None
        assert row.user_metadata == (("run", "2"),)
        assert dict(row.headers) == {"content-type": "binary/octet-stream", "content-language": "de"}
        assert (got.data, got.result) == (DATA, CacheResult.HIT)
        assert running.origin.requests == {"GetObject": 1, "HeadObject": 1}


@pytest.mark.parametrize("is_written_here", [False, True], ids=["read", "written"])
async def test_what_the_origin_says_of_a_version_without_a_new_date_is_seen(*, is_written_here: bool) -> None:
    """B08: a tool that waits for a restore or a replication by HEAD sees it end (AWS API_HeadObject)."""
    async with running_engine(policy=TTL) as running:
        if is_written_here:
            await running.put("key", DATA)
            await running.engine._components.flusher.flush_key(NAME)
        else:
            running.origin.store.put(BUCKET, "key", DATA)
            await running.get("key")
            await running.fills_ended()
        shown = []
        for number, restore in enumerate(('ongoing-request="true"', 'ongoing-request="false"', "")):
            running.origin.faults.clear()
            told = {"x-amz-restore": restore, "x-amz-storage-class": "GLACIER"} if restore else {}
            running.origin.faults.add(Fault(operation="HeadObject", headers=told, times=-1))
            running.clock.ahead_s = 61.0 * (number + 1)
            opened = await running.engine.open_object(NAME, metadata_only=True)
            await opened.close()
            shown.append(dict(opened.record.headers).get("x-amz-restore"))

        got = await running.get("key")

        assert shown == ['ongoing-request="true"', 'ongoing-request="false"', None]
        assert (got.data, got.result) == (DATA, CacheResult.HIT)
        assert running.origin.requests["GetObject"] == (0 if is_written_here else 1)


@pytest.mark.parametrize(
    "fault",
    [Fault(status=500), Fault(status=503, code="SlowDown"), Fault(status=429), Fault(drop="before")],
    ids=["500", "503", "429", "cut"],
)
async def test_a_failing_origin_is_covered_by_what_is_cached_for_a_while(fault: Fault) -> None:
    """STALE within stale_s, an error after it."""
    async with running_engine(policy=TTL) as running:
        await warm(running)
        running.origin.faults.add(Fault(status=fault.status, code=fault.code, drop=fault.drop, times=-1))
        running.clock.ahead_s = 60.0 + 3599.0

        covered = await running.get("key")
        running.clock.ahead_s = 60.0 + 3601.0
        with pytest.raises(OriginUnavailableError):
            await running.get("key")
        running.origin.faults.clear()
        recovered = await running.get("key")

        assert (covered.data, covered.opened, covered.result) == (DATA, CacheResult.STALE, CacheResult.STALE)
        assert covered.reason.startswith("origin: ")
        assert (recovered.data, recovered.result) == (DATA, CacheResult.HIT)


async def test_always_is_never_covered() -> None:
    """With freshness always a failing origin is an error."""
    async with running_engine(policy=ALWAYS) as running:
        await warm(running)
        running.origin.faults.add(Fault(status=500, times=-1))

        with pytest.raises(OriginUnavailableError):
            await running.get("key")


async def test_a_refusal_is_never_covered() -> None:
    """A 403 of the origin is an answer; it reaches the reader though the version is cached."""
    async with running_engine(policy=TTL) as running:
        await warm(running)
        running.origin.faults.add(Fault(operation="HeadObject", status=403))
        running.clock.ahead_s = 61.0

        with pytest.raises(OriginError) as caught:
            await running.get("key")

        assert caught.value.status == 403


async def test_after_an_unclean_stop_a_version_is_validated_before_its_first_use() -> None:
    """What was written through just before the stop may be unknown here, so the time of before does not count."""
    async with running_engine(policy=TTL) as before:
        await warm(before)
        filesystem, index_home = before.stop_uncleanly()
        before.origin.store.put(BUCKET, "key", OTHER)
        async with running_engine(
            origin=before.origin, filesystem=filesystem, index_home=index_home, policy=TTL
        ) as running:
            got = await running.get("key")
            await running.fills_ended()
            heads = running.origin.requests["HeadObject"]
            again = await running.get("key")

        assert got.data == again.data == OTHER
        assert (heads, running.origin.requests["HeadObject"]) == (1, 1)


async def test_after_an_unclean_stop_a_version_covers_for_nothing() -> None:
    """While the origin fails, a version of before the stop may be older than a write of the gateway's own."""
    async with running_engine(policy=TTL) as before:
        await warm(before)
        filesystem, index_home = before.stop_uncleanly()
        before.origin.faults.add(Fault(status=500, times=-1))
        async with running_engine(
            origin=before.origin, filesystem=filesystem, index_home=index_home, policy=TTL
        ) as running:
            with pytest.raises(OriginUnavailableError):
                await running.get("key")


async def test_after_an_orderly_stop_the_time_goes_on() -> None:
    """A restart alone costs no validation."""
    async with running_engine(policy=TTL) as before:
        await warm(before)
        origin, filesystem, index_home = before.origin, before.filesystem, before.index_home
        await before.engine.close()
        async with running_engine(
            origin=origin, filesystem=filesystem, index_home=index_home, policy=TTL
        ) as running:
            got = await running.get("key")

        assert (got.data, got.result) == (DATA, CacheResult.HIT)
        assert origin.requests == {"GetObject": 1}


# --- Writes of the gateway's own -------------------------------------------------------------------------------------


async def test_an_answer_of_the_origin_that_a_write_overtook_is_not_stored() -> None:
    """A cold read whose answer was made before an acknowledged put gives the put's bytes, then and later."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        gate = running.origin.hold("GET", "bucket/key")

        async with asyncio.TaskGroup() as group:
            read = group.create_task(running.get("key"))
            await gate.reached.wait()
            await running.put("key", OTHER)
            gate.open()
        later = await running.get("key")

        assert read.result().data == OTHER
        assert later.data == OTHER


async def test_a_404_that_a_write_overtook_is_not_believed() -> None:
    """Who joins a question that was asked before a write-through ended must see what was written."""
    async with running_engine() as running:
        await running.engine.bucket_facts(BUCKET)
        gate = running.origin.hold("GET", "bucket/key")

        async with asyncio.TaskGroup() as group:
            early = group.create_task(running.get("key"))
            await gate.reached.wait()
            await running.engine.put_object(PutRequest(NAME, mode=WriteMode.AROUND), BytesContent(OTHER))
            joined = group.create_task(running.get("key"))
            await until(lambda: "2 waiters" in repr(running.engine._components.reader._colds))
            gate.open()

        assert joined.result().data == OTHER
        assert early.result().data == OTHER


async def test_a_validation_that_a_write_overtook_changes_nothing() -> None:
    """A HEAD made before an acknowledged put neither confirms nor replaces what the put left."""
    async with running_engine(policy=TTL) as running:
        await warm(running)
        running.origin.store.put(BUCKET, "key", b"of another writer")
        running.clock.ahead_s = 61.0
        gate = running.origin.hold("HEAD", "bucket/key")

        async with asyncio.TaskGroup() as group:
            read = group.create_task(running.get("key"))
            await gate.reached.wait()
            await running.put("key", OTHER)
            gate.open()
        later = await running.get("key")

        assert read.result().data == later.data == OTHER


async def test_a_delete_is_seen_at_once_though_the_origin_still_has_the_object() -> None:
    """A tombstone answers 404 without the origin, also to a reader whose question was under way."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.faults.add(Fault(operation="Delete*", status=500, times=-1))
        gate = running.origin.hold("GET", "bucket/key")

        async with asyncio.TaskGroup() as group:
            read = group.create_task(read_or_none(running))
            await gate.reached.wait()
            await running.engine.delete_object(NAME)
            gate.open()
        with pytest.raises(NoSuchKeyError):
            await running.get("key")

        assert read.result() is None


async def read_or_none(running: RunningEngine) -> bytes | None:
    """Read the object; None where there is none."""
    try:
        return (await running.get("key")).data
    except NoSuchKeyError:
        return None


async def test_a_fill_that_a_write_overtook_adds_nothing_to_the_new_version() -> None:
    """Who follows the fill gets the version it opened; the new version's row has its own bytes only."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        gate = running.origin.hold("GET", "bucket/key", after_bytes=MIB)

        async with asyncio.TaskGroup() as group:
            read = group.create_task(running.get("key"))
            await gate.reached.wait()
            await until(lambda: running.engine._components.holdings.record(NAME) is not None)
            await running.put("key", OTHER)
            gate.open()
        await running.fills_ended()
        later = await running.get("key")

        assert read.result().data == DATA
        assert later.data == OTHER


async def test_a_key_that_is_written_all_the_time_can_be_read() -> None:
    """A reader whose every question is overtaken by a write-through gets what the origin then says, not an error."""
    async with running_engine() as running:
        await running.engine.bucket_facts(BUCKET)
        running.origin.store.put(BUCKET, "key", DATA)
        reads = asyncio.get_running_loop().create_task(running.get("key"))
        for number in range(3):
            gate = running.origin.hold("GET", "bucket/key")
            await gate.reached.wait()
            around = PutRequest(NAME, mode=WriteMode.AROUND)
            await running.engine.put_object(around, BytesContent(b"%d" % number))
            gate.open()

        got = await reads

        assert got.data == b"2"


async def test_a_question_asked_during_a_write_through_is_overtaken_before_the_key_is_made_free() -> None:
    """Else an answer from before the write could take the place of the version that the write makes be forgotten."""
    async with running_engine() as running:
        await running.engine.bucket_facts(BUCKET)
        components = running.engine._components
        change, seen = components.applier.change, []
        gate = running.origin.hold("PUT", "bucket/key")

        async def noted(asked: Callable[[Rows], object]) -> object:
            if isinstance(asked, ForgetClean):
                seen.append(watch.is_current)
            return await change(asked)

        components.applier.change = noted  # type: ignore[method-assign,assignment]  # a wiretap
        async with asyncio.TaskGroup() as group:
            around = PutRequest(NAME, mode=WriteMode.AROUND)
            group.create_task(running.engine.put_object(around, BytesContent(OTHER)))
            await gate.reached.wait()
            watch = components.generations.watch(NAME)
            gate.open()

        assert seen == [False]


@pytest.mark.parametrize(
    "modes", [(WriteMode.BACK,), (WriteMode.THROUGH, WriteMode.AROUND), tuple(WriteMode)]
)
async def test_a_read_under_overwrites_is_exactly_one_version(modes: tuple[WriteMode, ...]) -> None:
    """B07: bytes, length and ETag of each answer belong together, and no reader sees an older state than the last it saw."""
    versions = [random.Random(n).randbytes(200_000 * (n % 6) + 1000 * n + 1) for n in range(24)]
    order = {hashlib.md5(data).hexdigest(): number for number, data in enumerate(versions)}
    async with running_engine() as running:
        await running.engine.bucket_facts(BUCKET)
        acknowledged = -1

        async def write() -> None:
            nonlocal acknowledged
            for number, data in enumerate(versions):
                request = PutRequest(NAME, mode=modes[number % len(modes)])
                await running.engine.put_object(request, BytesContent(data))
                acknowledged = number

        async def read() -> None:
            while acknowledged < len(versions) - 1:
                await running.clock.sleep(0.0)  # a warm read waits for nothing
                at_least = acknowledged
                try:
                    got = await running.get("key")
                except NoSuchKeyError:
                    assert at_least < 0
                    continue
                except ObjectChangedError:
                    continue  # the gateway would begin again, or cut
                assert hashlib.md5(got.data).hexdigest() == got.etag
                assert order[got.etag] >= at_least

        async with asyncio.TaskGroup() as group:
            group.create_task(write())
            for _ in range(4):
                group.create_task(read())
