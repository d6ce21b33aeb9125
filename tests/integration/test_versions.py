"""Versions that are named by the origin's id, on a whole engine: read, cached, deleted, copied; and buckets that become versioned."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from gateway.s3.effects import EFFECTS
from gateway.s3.routes import Operation
from storage.errors import (
    NoSuchKeyError,
    NoSuchVersionError,
    OriginRefusedError,
    QuarantinedError,
    StorageError,
)
from storage.flush_events import FlushSettings
from storage.policy import Freshness, FreshnessMode, Policy
from storage.requests import CompletedPart, DeleteLine, PutRequest, PutResult, RelayRequest, UploadRequest
from storage.types import MIB, ByteRange, CacheResult, ObjectName, RangeSpec, WriteMode
from tests.fakes.origin_faults import Fault
from tests.fakes.origin_store import Received
from tests.fakes.running_engine import (
    BUCKET,
    BytesContent,
    RunningEngine,
    read_all,
    running_engine,
)
from tests.fakes.writing import PART, delete, flushed, pause, until

OLD = "versioned"
KEY = ObjectName(OLD, "k")
TAGS = b"<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>"
QUICK = FlushSettings(origin_timeout_s=0.6, retry_s_min=0.02, retry_s_max=0.1)


@asynccontextmanager
async def versioned(**options: object) -> AsyncIterator[RunningEngine]:
    """Run an engine over an origin with a versioned bucket beside the plain one."""
    async with running_engine(flush=QUICK, **options) as running:  # type: ignore[arg-type]  # handed on as they came
        running.origin.store.create_bucket(OLD, versioning="Enabled")
        yield running


async def read(
    running: RunningEngine, name: ObjectName, wanted: RangeSpec | None = None
) -> tuple[bytes, CacheResult]:
    """Read an object or version, or a range of it; say how it was answered."""
    opened = await running.engine.open_object(name, wanted)
    try:
        span = (wanted or RangeSpec(start=0)).resolve(opened.record.size) or ByteRange(0, 0)
        return await read_all(opened.read(span)), opened.result
    finally:
        await opened.close()


async def put(running: RunningEngine, data: bytes, name: ObjectName = KEY) -> str:
    """Write an object; give the version id that was answered."""
    result = await running.engine.put_object(PutRequest(name), BytesContent(data))
    return version_of(result)


def version_of(result: PutResult) -> str:
    """Give the version id of an answer to a write, "" for none."""
    return dict(result.headers).get("x-amz-version-id", "")


async def make_versioned(running: RunningEngine, bucket: str = BUCKET, status: str = "Enabled") -> None:
    """Change a bucket's versioning as a gateway passes the change through: closed, flushed, asked."""
    components = running.engine._components
    async with components.facts.closed(bucket) as closing:
        await components.flusher.waits.flush_bucket(bucket)
        closing.is_asked = True
        body = f"<VersioningConfiguration><Status>{status}</Status></VersioningConfiguration>".encode()
        async with running.client.request(
            "PUT", ObjectName(bucket, ""), query=(("versioning", ""),), body=body
        ) as answer:
            assert answer.status == 200


def reads_of_origin(running: RunningEngine) -> int:
    """Count the origin's GETs and HEADs of objects."""
    return running.origin.requests_of("GetObject") + running.origin.requests_of("HeadObject")


# --- reading ------------------------------------------------------------------------------------------------------------


async def test_version_is_asked_for_once_and_never_again() -> None:
    """A version never changes: each is its own bytes, and the second read asks nobody, whatever the policy says of the key."""
    policy = Policy(freshness=Freshness(mode=FreshnessMode.ALWAYS))
    async with versioned(policy=policy) as running:
        ids = [await put(running, b"body %d" % number) for number in range(3)]
        for number, version_id in enumerate(ids):
            assert await read(running, KEY.at_version(version_id)) == (b"body %d" % number, CacheResult.MISS)
        await running.fills_ended()
        asked = reads_of_origin(running)
        await delete(running, "k", bucket=OLD)

        again = [await read(running, KEY.at_version(version_id)) for version_id in ids]

        assert again == [(b"body %d" % number, CacheResult.HIT) for number in range(3)]
        assert reads_of_origin(running) == asked


async def test_version_and_key_have_rows_of_their_own() -> None:
    """The newest is read by the plain key, an older one by its id, each cached for itself, in any order."""
    async with versioned() as running:
        first, second = await put(running, b"first"), await put(running, b"second")

        old = await read(running, KEY.at_version(first))
        newest = await read(running, KEY)
        named = await read(running, KEY.at_version(second))

        assert (old[0], newest[0], named[0]) == (b"first", b"second", b"second")
        index = running.engine._recovered.index
        lines = running.engine.acknowledged("", "")
        assert index is not None
        assert lines.lines == ()


async def test_range_of_a_version_fills_that_version() -> None:
    """A ranged read fills blocks of the version it names, under its own id and ETag."""
    async with versioned() as running:
        data = bytes(range(256)) * 4096 * 3
        first = await put(running, data)
        await put(running, b"newest")

        part = await read(running, KEY.at_version(first), RangeSpec(start=MIB + 7, stop=MIB + 19))
        whole = await read(running, KEY.at_version(first))

        assert part[0] == data[MIB + 7 : MIB + 19]
        assert whole[0] == data
        asked = [e for e in running.origin.log if e.operation == "GetObject"]
        assert {entry.query["versionId"] for entry in asked} == {first}


async def test_version_outlives_a_kill() -> None:
    """After an unclean stop a version is served as it was, without a question."""
    async with versioned() as running:
        first = await put(running, b"first")
        await put(running, b"second")
        await read(running, KEY.at_version(first))
        await running.fills_ended()
        filesystem, home = running.stop_uncleanly()
        async with running_engine(
            origin=running.origin, filesystem=filesystem, index_home=home, flush=QUICK
        ) as again:
            asked = reads_of_origin(again)

            assert await read(again, KEY.at_version(first)) == (b"first", CacheResult.HIT)
            assert reads_of_origin(again) == asked


async def test_versions_share_the_cache_with_objects() -> None:
    """More versions than the cache holds: older bytes are reclaimed as those of objects are, and all reads are right."""
    async with versioned(cache_bytes=16 * MIB, dirty_bytes_limit=4 * MIB) as running:
        bodies = [bytes([number]) * (2 * MIB) for number in range(12)]
        ids = [await put(running, body) for body in bodies]
        for _ in range(2):
            for version_id, body in zip(ids, bodies, strict=True):
                assert (await read(running, KEY.at_version(version_id)))[0] == body
                await running.fills_ended()

        status = running.engine.status()
        assert status.cache_used_bytes <= status.cache_capacity_bytes == 16 * MIB
        assert running.origin.requests_of("GetObject") > len(ids)
        assert sum(running.engine.stats.evicted_bytes.values()) > 0


async def test_unknown_versions_are_told_as_such() -> None:
    """An id that the object does not have is NoSuchVersion, by GET and by HEAD."""
    async with versioned() as running:
        await put(running, b"body")

        for metadata_only in (False, True):
            with pytest.raises(NoSuchVersionError):
                await running.engine.open_object(KEY.at_version("none"), metadata_only=metadata_only)


async def test_answer_about_another_version_is_none() -> None:
    """An origin that takes no notice of the id and gives what it has is not believed, and nothing is kept of it."""
    async with versioned() as running:
        version_id = await put(running, b"newest")
        for operation in ("GetObject", "HeadObject"):
            running.origin.faults.add(Fault(operation=operation, headers={"x-amz-version-id": "other"}))
            with pytest.raises(NoSuchVersionError):
                await running.engine.open_object(
                    KEY.at_version(version_id), metadata_only=operation == "HeadObject"
                )

        assert (await read(running, KEY.at_version(version_id)))[0] == b"newest"


async def test_delete_markers_are_told_with_their_ids() -> None:
    """404 of the key under a marker and 405 of the marker itself carry what the origin's headers said."""
    async with versioned() as running:
        await put(running, b"body")
        result = await running.engine.delete_object(KEY)
        marker = {name: value for name, value in result.headers if name != "x-amz-request-id"}
        assert marker["x-amz-delete-marker"] == "true"

        for metadata_only in (False, True):
            with pytest.raises(NoSuchKeyError) as hidden:
                await running.engine.open_object(KEY, metadata_only=metadata_only)
            with pytest.raises(OriginRefusedError) as itself:
                await running.engine.open_object(
                    KEY.at_version(marker["x-amz-version-id"]), metadata_only=metadata_only
                )
            assert dict(hidden.value.told) == marker
            assert itself.value.status == 405
            assert {name: dict(itself.value.told)[name] for name in marker} == marker
            assert "last-modified" in dict(itself.value.told)


async def test_what_holds_a_version_is_asked_where_there_is_object_lock() -> None:
    """A legal hold changes without a new version: it is the origin's word at each read, the bytes are the cache's."""
    async with versioned() as running:
        running.origin.store.buckets[OLD].has_object_lock = True
        first = await put(running, b"first")
        await read(running, KEY.at_version(first))
        stored = running.origin.store.buckets[OLD].versions["k"]
        stored[0] = replace(stored[0], headers={"x-amz-object-lock-legal-hold": "ON"})

        opened = await running.engine.open_object(KEY.at_version(first), metadata_only=True)
        await opened.close()

        assert ("x-amz-object-lock-legal-hold", "ON") in opened.record.headers
        await read(running, KEY.at_version(first))
        assert (await read(running, KEY.at_version(first))) == (b"first", CacheResult.HIT)


# --- the version `null` ---------------------------------------------------------------------------------------------------


async def test_null_is_the_object_where_a_bucket_never_had_versions() -> None:
    """In a plain bucket the id `null` names what is there, acknowledged changes included, and its delete is the object's."""
    async with versioned(policy=Policy(flush_delay_s=60.0)) as running:
        await running.put("k", b"dirty")
        null = ObjectName(BUCKET, "k", "null")

        assert await read(running, null) == (b"dirty", CacheResult.HIT)
        await running.engine.delete_object(null)

        with pytest.raises(NoSuchKeyError):
            await read(running, null)
        assert running.origin.requests_of("PutObject") == 0


async def test_null_is_never_stale_when_it_is_overwritten() -> None:
    """While a bucket is suspended anybody may overwrite `null`: each read asks, also where the policy says immutable."""
    policy = Policy(freshness=Freshness(mode=FreshnessMode.IMMUTABLE))
    async with versioned(policy=policy) as running:
        running.origin.store.create_bucket("suspended", versioning="Suspended")
        name = ObjectName("suspended", "k")
        assert await put(running, b"one", name) == "null"
        assert (await read(running, name.at_version("null")))[0] == b"one"
        await put(running, b"two, by us", name)
        assert (await read(running, name.at_version("null")))[0] == b"two, by us"
        running.clock.ahead_s += 2
        running.origin.store.put("suspended", "k", b"three, by others")

        assert (await read(running, name.at_version("null")))[0] == b"three, by others"
        assert (await read(running, name.at_version("null"))) == (b"three, by others", CacheResult.HIT)


async def test_null_that_became_a_marker_is_not_served() -> None:
    """A delete in a suspended bucket puts a marker in the place of `null`."""
    async with versioned() as running:
        running.origin.store.create_bucket("suspended", versioning="Suspended")
        name = ObjectName("suspended", "k")
        await put(running, b"one", name)
        await read(running, name.at_version("null"))
        await running.fills_ended()
        running.origin.store.handle("DeleteObject", _as_received("DELETE", name))

        for _ in range(2):
            with pytest.raises(OriginRefusedError):
                await read(running, name.at_version("null"))
        assert not running.engine._components.reader.knows(name.at_version("null"))


# --- what is dirty, and what changes it -----------------------------------------------------------------------------------


async def test_dirty_key_is_flushed_before_a_version_is_asked_for() -> None:
    """A bucket that became versioned behind the gateway: what is acknowledged becomes a version before others are read."""
    async with versioned(policy=Policy(flush_delay_s=60.0)) as running:
        running.origin.store.put(BUCKET, "k", b"before")
        await running.put("k", b"dirty")
        running.origin.store.buckets[BUCKET].versioning = "Enabled"

        with pytest.raises(NoSuchVersionError):
            await read(running, ObjectName(BUCKET, "k", "none"))

        assert running.origin.store.body(BUCKET, "k") == b"dirty"


async def test_quarantined_key_hides_its_null_version_and_no_other() -> None:
    """What the origin refused may be its `null`; other versions are what they are."""
    async with versioned(policy=Policy(flush_delay_s=60.0)) as running:
        await running.put("k", b"dirty")
        running.origin.store.buckets[BUCKET].versioning = "Enabled"
        first = running.origin.store.put(BUCKET, "k", b"first").version_id
        running.origin.faults.add(
            Fault(operation="PutObject", status=403, code="InvalidObjectState", times=-1)
        )
        running.engine._components.facts.drop(BUCKET)

        with pytest.raises(QuarantinedError):
            await read(running, ObjectName(BUCKET, "k", "null"))

        assert (await read(running, ObjectName(BUCKET, "k", first)))[0] == b"first"


async def test_deleted_version_is_forgotten_and_the_newest_asked_anew() -> None:
    """DELETE with a version id takes that version, which no read finds then; what is the newest is asked of the origin."""
    async with versioned() as running:
        first, second = await put(running, b"first"), await put(running, b"second")
        for name in (KEY, KEY.at_version(first), KEY.at_version(second)):
            await read(running, name)
        await running.fills_ended()

        result = await running.engine.delete_object(KEY.at_version(second))

        assert dict(result.headers)["x-amz-version-id"] == second
        assert (await read(running, KEY))[0] == b"first"
        assert (await read(running, KEY.at_version(first))) == (b"first", CacheResult.HIT)
        with pytest.raises(NoSuchVersionError):
            await read(running, KEY.at_version(second))


async def test_deleted_version_stays_forgotten_after_a_kill() -> None:
    """Nobody would validate a version, so that it is to go is journaled before the origin is asked."""
    async with versioned() as running:
        first = await put(running, b"first")
        await read(running, KEY.at_version(first))
        await running.fills_ended()
        gate = running.origin.hold("DELETE", f"{OLD}/k")
        deleting = asyncio.get_running_loop().create_task(running.engine.delete_object(KEY.at_version(first)))
        await gate.reached.wait()
        filesystem, home = running.stop_uncleanly()
        gate.open()
        await deleting
        async with running_engine(
            origin=running.origin, filesystem=filesystem, index_home=home, flush=QUICK
        ) as again:
            with pytest.raises(NoSuchVersionError):
                await read(again, KEY.at_version(first))


async def test_read_that_overlaps_a_delete_of_its_version_keeps_nothing() -> None:
    """What the origin said of a version before it was deleted is not stored afterwards."""
    async with versioned() as running:
        first = await put(running, b"first")
        gate = running.origin.hold("GET", f"{OLD}/k")
        reading = asyncio.get_running_loop().create_task(read(running, KEY.at_version(first)))
        await gate.reached.wait()
        await running.engine.delete_object(KEY.at_version(first))
        gate.open()
        with pytest.raises(NoSuchVersionError):
            await reading

        with pytest.raises(NoSuchVersionError):
            await read(running, KEY.at_version(first))


async def test_version_that_is_read_while_its_delete_is_under_way_is_forgotten() -> None:
    """What the origin still had when it was asked, behind the beginning of the delete, does not outlive its end."""
    async with versioned() as running:
        first = await put(running, b"first")
        running.origin.faults.add(Fault(operation="DeleteObject", delay_s=0.1))
        deleting = asyncio.get_running_loop().create_task(running.engine.delete_object(KEY.at_version(first)))
        await until(lambda: running.origin.requests_of("DeleteObject") == 1)

        assert (await read(running, KEY.at_version(first)))[0] == b"first"
        assert not deleting.done()
        await deleting

        with pytest.raises(NoSuchVersionError):
            await read(running, KEY.at_version(first))


async def test_lines_of_a_batch_name_keys_and_versions() -> None:
    """A plain line makes a marker, one with an id takes that version, one that is not there is told as deleted; in order."""
    async with versioned() as running:
        first = await put(running, b"first")
        second = await put(running, b"second")
        await read(running, KEY.at_version(first))

        results = await running.engine.delete_objects(
            OLD,
            [
                DeleteLine(KEY.at_version(first)),
                DeleteLine(ObjectName(OLD, "other")),
                DeleteLine(KEY.at_version("none")),
            ],
        )

        assert [result.code for result in results] == ["", "", ""]
        assert results[0].version_id == first
        assert dict(results[1].headers)["x-amz-delete-marker"] == "true"
        with pytest.raises(NoSuchVersionError):
            await read(running, KEY.at_version(first))
        assert (await read(running, KEY.at_version(second)))[0] == b"second"


async def test_copy_of_an_old_version_brings_it_back() -> None:
    """The source may be a version, of the target itself too; the answer names the new one and the one it is of."""
    async with versioned() as running:
        first = await put(running, b"first")
        await put(running, b"second")

        result = await running.engine.copy_object(KEY.at_version(first), KEY, ())

        headers = dict(result.headers)
        assert headers["x-amz-copy-source-version-id"] == first
        assert headers["x-amz-version-id"] not in {"", first}
        assert (await read(running, KEY))[0] == b"first"


async def test_version_ids_go_to_the_origin_as_they_came() -> None:
    """B23: an id of odd characters is encoded once, in a query and in a copy's source."""
    async with versioned() as running:
        odd = "a b/+%2F?&=\u00fc"
        running.origin.store.put(OLD, "k", b"odd")
        stored = running.origin.store.buckets[OLD].versions["k"]
        stored[0] = replace(stored[0], version_id=odd)

        assert (await read(running, KEY.at_version(odd)))[0] == b"odd"
        result = await running.engine.copy_object(KEY.at_version(odd), ObjectName(OLD, "copy"), ())

        assert result.etag
        assert running.origin.store.body(OLD, "copy") == b"odd"


# --- a bucket that becomes versioned ----------------------------------------------------------------------------------


class HeldContent(BytesContent):
    """A body whose last piece comes when it is let go."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.began = asyncio.Event()
        self.let_go = asyncio.Event()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield all of it, late."""
        self.began.set()
        await self.let_go.wait()
        async for piece in super().chunks():
            yield piece


async def test_write_decided_before_a_bucket_is_versioned_has_a_version_id() -> None:
    """A PUT, a Complete and a DELETE that began before the change are acknowledged after it as the origin would."""
    async with versioned(policy=Policy(flush_delay_s=60.0)) as running:
        loop, engine = asyncio.get_running_loop(), running.engine
        await running.put("deleted", b"x")
        upload_id, _ = await engine.create_upload(UploadRequest(ObjectName(BUCKET, "upload")))
        part = await engine.upload_part(ObjectName(BUCKET, "upload"), upload_id, 1, BytesContent(b"p" * PART))
        content = HeldContent(b"late")
        putting = loop.create_task(engine.put_object(PutRequest(ObjectName(BUCKET, "late")), content))
        await content.began.wait()
        await make_versioned(running)
        content.let_go.set()

        late = await putting
        parts = (CompletedPart(1, part.etag),)
        completed = await engine.complete_upload(ObjectName(BUCKET, "upload"), upload_id, parts)
        again = await engine.complete_upload(ObjectName(BUCKET, "upload"), upload_id, parts)
        deleted = await engine.delete_object(ObjectName(BUCKET, "deleted"))

        objects = running.origin.store.buckets[BUCKET].objects
        assert version_of(late) == objects["late"].version_id != ""
        assert version_of(completed) == version_of(again) == objects["upload"].version_id != ""
        assert dict(deleted.headers)["x-amz-delete-marker"] == "true"
        assert objects["late"].body == b"late"


async def test_delete_that_waited_while_a_bucket_was_versioned_makes_a_marker() -> None:
    """A delete that was to be acknowledged from the disk, and whose turn comes behind the change, goes through."""
    async with versioned() as running:
        loop, name = asyncio.get_running_loop(), ObjectName(BUCKET, "k")
        gate = running.origin.hold("PUT", f"{BUCKET}/k")
        request = PutRequest(name, mode=WriteMode.THROUGH)
        putting = loop.create_task(running.engine.put_object(request, BytesContent(b"x")))
        await gate.reached.wait()
        deleting = loop.create_task(running.engine.delete_object(name))
        batch = loop.create_task(running.engine.delete_objects(BUCKET, [DeleteLine(name)]))
        await until(lambda: len(running.engine._components.queue._places[name]) == 3)
        await make_versioned(running)
        gate.open()

        await putting
        results = [await deleting, *(await batch)]

        assert [dict(result.headers).get("x-amz-delete-marker") for result in results] == ["true", "true"]


async def test_no_write_is_acknowledged_from_the_disk_once_a_bucket_is_versioned() -> None:
    """Puts and deletes all the time, and a change between: whatever is acknowledged after its answer has a version id."""
    async with versioned() as running:
        is_changed = asyncio.Event()
        acknowledged: list[tuple[bool, str]] = []
        stop = asyncio.Event()

        async def write(writer: int) -> None:
            number = 0
            while not stop.is_set():
                number += 1
                name = ObjectName(BUCKET, f"k{(writer + number) % 3}")
                if number % 4:
                    headers = (
                        await running.engine.put_object(
                            PutRequest(name), BytesContent(b"%d %d" % (writer, number))
                        )
                    ).headers
                else:
                    headers = (await running.engine.delete_object(name)).headers
                acknowledged.append((is_changed.is_set(), dict(headers).get("x-amz-version-id", "")))

        async with asyncio.TaskGroup() as group:
            for writer in range(6):
                group.create_task(write(writer))
            await until(lambda: len(acknowledged) > 30)
            await make_versioned(running)
            is_changed.set()
            behind = len(acknowledged)
            await until(lambda: len(acknowledged) > behind + 60)
            stop.set()

        late = [version_id for is_late, version_id in acknowledged if is_late]
        assert any(not is_late for is_late, _ in acknowledged)
        assert all(late)
        await flushed(running)
        ids = [
            v.version_id
            for versions in running.origin.store.buckets[BUCKET].versions.values()
            for v in versions
        ]
        assert len(set(late)) == len(late)
        assert set(late) <= set(ids)


@pytest.mark.parametrize("data", [b"late", b"late" * 50_000], ids=["tiny", "long"])
async def test_each_of_two_late_writes_of_a_key_is_a_version(data: bytes) -> None:
    """Two puts of a key that began before the change are two versions, though the second followed at the heels of the first."""
    async with versioned() as running:
        contents = [HeldContent(data + b"%d" % number) for number in range(2)]
        name = ObjectName(BUCKET, "late")
        async with asyncio.TaskGroup() as group:
            putting = [
                group.create_task(running.engine.put_object(PutRequest(name), content))
                for content in contents
            ]
            for content in contents:
                await content.began.wait()
            await make_versioned(running)
            for content in contents:
                content.let_go.set()

        versions = {v.version_id: v.body for v in running.origin.store.buckets[BUCKET].versions["late"]}
        for number, put in enumerate(putting):
            assert versions[version_of(put.result())] == data + b"%d" % number


async def test_each_of_two_late_completes_of_a_key_is_a_version() -> None:
    """Two uploads of a key that began before the change and are completed behind it are two versions."""
    async with versioned(policy=Policy(flush_delay_s=60.0)) as running:
        engine, name = running.engine, ObjectName(BUCKET, "upload")
        bodies = [b"%d" % number * PART for number in range(3)]
        uploads = []
        for body in bodies:
            upload_id, _ = await engine.create_upload(UploadRequest(name))
            part = await engine.upload_part(name, upload_id, 1, BytesContent(body))
            uploads.append((upload_id, (CompletedPart(1, part.etag),)))
        await make_versioned(running)
        gate = running.origin.hold("PUT", f"{BUCKET}/upload")

        async with asyncio.TaskGroup() as group:
            for upload_id, parts in uploads:
                group.create_task(engine.complete_upload(name, upload_id, parts))
            await gate.reached.wait()
            await pause(0.05)
            gate.open()

        versions = running.origin.store.buckets[BUCKET].versions["upload"]
        assert sorted(version.body for version in versions) == bodies


async def test_late_write_is_not_acknowledged_when_the_origin_does_not_take_it() -> None:
    """A put that should have a version id fails where the origin refuses it, and is not made."""
    async with versioned(policy=Policy(flush_delay_s=60.0)) as running:
        content = HeldContent(b"late")
        name = ObjectName(BUCKET, "late")
        await running.put("late", b"before")
        putting = asyncio.get_running_loop().create_task(running.engine.put_object(PutRequest(name), content))
        await content.began.wait()
        await make_versioned(running)
        running.origin.faults.add(Fault(operation="PutObject", status=400, code="InvalidRequest", times=1))
        content.let_go.set()

        with pytest.raises(StorageError):
            await putting

        assert (await read(running, name))[0] == b"before"


def _as_received(method: str, name: ObjectName) -> Received:
    return Received(method, name.bucket, name.key, {}, {})


# --- relayed operations -----------------------------------------------------------------------------------------------


async def test_relayed_change_of_a_version_is_seen_at_the_next_read() -> None:
    """Tags belong to a version: whoever names it, or the key whose newest it is, sees the version anew afterwards."""
    async with versioned() as running:
        first, second = await put(running, b"first"), await put(running, b"second")
        counts = []
        effect = EFFECTS[Operation.PUT_OBJECT_TAGGING]
        for version_id, query in ((first, (("versionId", first),)), (second, ())):
            name = KEY.at_version(version_id)
            await read(running, name)
            await running.fills_ended()
            relayed = RelayRequest(
                "PutObjectTagging",
                "PUT",
                KEY,
                effect,
                (("tagging", ""), *query),
            )
            assert relayed.changed == (name if query else KEY)
            reply = await running.engine.relay(relayed, BytesContent(TAGS))
            await reply.body.close()
            assert reply.status == 200
            opened = await running.engine.open_object(name, metadata_only=True)
            await opened.close()
            counts.append(dict(opened.record.headers).get("x-amz-tagging-count"))

        assert counts == ["1", "1"]
