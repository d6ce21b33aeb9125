"""Versions as a client key with its own credentials at the origin sees them: the origin decides of each, and of deletes and copies."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from storage.errors import NoSuchKeyError, NoSuchVersionError, OriginRefusedError, QuarantinedError
from storage.policy import Policy
from storage.requests import DeleteLine, PutRequest, UploadRequest
from storage.types import NULL_VERSION, CacheResult, ObjectName
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, until
from tests.integration.test_own_store import MINE, OTHERS, Own, own, refused

OLD = "versioned"
MY_KEY = ObjectName(OLD, "mine/key")
OTHERS_KEY = ObjectName(OLD, "others/key")
LATE = Policy(flush_delay_s=3600)


@asynccontextmanager
async def versioned(policy: Policy | None = None) -> AsyncIterator[Own]:
    """Run an engine in front of an origin with a versioned bucket, whose keys under `mine/` the own key may touch."""
    async with own(policy=policy) as it:
        it.running.origin.store.create_bucket(OLD, versioning="Enabled")
        it.running.origin.allowed["own"] = (f"{BUCKET}/mine/", f"{OLD}/mine/")
        yield it


async def put(it: Own, name: ObjectName, data: bytes) -> str:
    """Write an object with the gateway's own key; give its version."""
    result = await it.running.engine.put_object(PutRequest(name), BytesContent(data))
    return dict(result.headers).get("x-amz-version-id", "")


async def quarantine(it: Own, *names: ObjectName) -> None:
    """Acknowledge a change of each name that the origin refuses."""
    it.running.origin.faults.add(
        Fault(operation="PutObject", status=400, code="InvalidArgument", times=len(names))
    )
    for name in names:
        await it.running.put(name.key, b"refused")
    flusher = it.running.engine._components.flusher
    await until(lambda: all(flusher.quarantine_reason(name) for name in names))


# --- reads ---------------------------------------------------------------------------------------------------------------


async def test_a_version_is_asked_for_with_the_own_key_and_then_served_from_the_cache() -> None:
    """The origin is asked of the version that is named, signed by the key; its bytes are kept once, and are that version's."""
    async with versioned() as it:
        ids = [await put(it, MY_KEY, b"body %d" % number) for number in range(2)]
        it.running.origin.log.clear()

        first = [await it.get(MY_KEY.at_version(one)) for one in ids]
        await it.running.fills_ended()
        asked = [(line.access_key, line.query.get("versionId")) for line in it.running.origin.log]
        second = [await it.get(MY_KEY.at_version(one)) for one in ids]

        assert [data for data, _ in first] == [b"body 0", b"body 1"]
        assert second == [(b"body 0", CacheResult.HIT), (b"body 1", CacheResult.HIT)]
        assert {access_key for access_key, _ in asked if _ is not None} == {"own"}
        assert {version for _, version in asked if version is not None} == set(ids)


async def test_a_cached_version_of_others_is_not_served() -> None:
    """Cold, cached or deleted, of a name that the origin does not let the key read each version is its 403."""
    async with versioned() as it:
        cached, cold = await put(it, OTHERS_KEY, b"cached"), await put(it, OTHERS_KEY, b"cold")
        opened = await it.running.engine.open_object(OTHERS_KEY.at_version(cached), metadata_only=True)
        await opened.close()

        for version in (cached, cold, NULL_VERSION, "no-such-version"):
            await refused(it.get(OTHERS_KEY.at_version(version)))


async def test_what_another_key_brought_in_of_a_version_is_not_shown_by_it() -> None:
    """A version that the own key filled is served to the gateway's key only once the origin has shown it to that, too."""
    async with versioned() as it:
        version = await put(it, MY_KEY, b"bytes")
        await it.get(MY_KEY.at_version(version))
        await it.running.fills_ended()
        it.running.origin.allowed["key"] = ("nothing",)

        await refused(it.running.engine.open_object(MY_KEY.at_version(version)))


async def test_a_version_that_the_key_deleted_is_gone_at_once() -> None:
    """Neither what is cached of the version nor what was believed of it outlives its delete; the others stay."""
    async with versioned() as it:
        old, new = await put(it, MY_KEY, b"old"), await put(it, MY_KEY, b"new")
        for version in (old, new):
            await it.get(MY_KEY.at_version(version))
        await it.get(MY_KEY)
        await it.running.fills_ended()

        await it.store.delete_object(MY_KEY.at_version(new))

        with pytest.raises(NoSuchVersionError):
            await it.get(MY_KEY.at_version(new))
        with pytest.raises(NoSuchKeyError):
            await it.running.engine.open_object(MY_KEY.at_version(new))
        assert (await it.get(MY_KEY))[0] == b"old"
        assert await it.get(MY_KEY.at_version(old)) == (b"old", CacheResult.HIT)
        await refused(it.store.delete_object(OTHERS_KEY.at_version(old)))


async def test_a_delete_marker_is_no_version_to_read() -> None:
    """405 of the marker by its id, 404 of the key, and what was before it by its own id."""
    async with versioned() as it:
        old = await put(it, MY_KEY, b"old")
        deleted = await it.store.delete_object(MY_KEY)
        marker = dict(deleted.headers).get("x-amz-version-id") or deleted.version_id

        with pytest.raises(OriginRefusedError) as raised:
            await it.get(MY_KEY.at_version(marker))
        with pytest.raises(NoSuchKeyError):
            await it.get(MY_KEY)

        assert raised.value.status == 405
        assert (await it.get(MY_KEY.at_version(old)))[0] == b"old"


@pytest.mark.parametrize("version_id", [NULL_VERSION, "another"])
async def test_what_is_dirty_is_flushed_before_a_version_is_asked_for(version_id: str) -> None:
    """What was acknowledged is at the origin before it says anything of a version; others' names stay a 403."""
    async with versioned(LATE) as it:
        for name in (MINE, OTHERS):
            await it.running.put(name.key, b"acknowledged")

        if version_id == NULL_VERSION:
            assert (await it.get(MINE.at_version(version_id)))[0] == b"acknowledged"
        else:
            with pytest.raises(NoSuchKeyError):
                await it.get(MINE.at_version(version_id))
        await refused(it.get(OTHERS.at_version(version_id)))

        assert it.running.origin.store.body(BUCKET, MINE.key) == b"acknowledged"


async def test_a_quarantined_change_is_told_of_versions_to_who_may_read_them_alone() -> None:
    """The version null would be the change that the origin refused: 409 or 403; a version with an id is the origin's to answer."""
    async with versioned() as it:
        await quarantine(it, MINE, OTHERS)

        with pytest.raises(QuarantinedError):
            await it.get(MINE.at_version(NULL_VERSION))
        await refused(it.get(OTHERS.at_version(NULL_VERSION)))
        with pytest.raises(NoSuchKeyError):
            await it.get(MINE.at_version("other"))
        await refused(it.get(OTHERS.at_version("other")))


# --- deletes -------------------------------------------------------------------------------------------------------------


async def test_a_batch_deletes_versions_and_objects_each_as_the_origin_lets_it() -> None:
    """Lines of versions, of objects and of others' names in one batch: each its own result, in order, and none read after."""
    async with versioned() as it:
        old, new = await put(it, MY_KEY, b"old"), await put(it, MY_KEY, b"new")
        other = await put(it, OTHERS_KEY, b"other")
        for version in (old, new):
            await it.get(MY_KEY.at_version(version))
        await it.running.fills_ended()
        names = [OTHERS_KEY.at_version(other), MY_KEY.at_version(new), OTHERS_KEY, MY_KEY]

        results = await it.store.delete_objects(OLD, [DeleteLine(name) for name in names])

        assert [(one.key, one.code) for one in results] == [
            (OTHERS_KEY.key, "AccessDenied"),
            (MY_KEY.key, ""),
            (OTHERS_KEY.key, "AccessDenied"),
            (MY_KEY.key, ""),
        ]
        with pytest.raises(NoSuchKeyError):
            await it.get(MY_KEY.at_version(new))
        with pytest.raises(NoSuchKeyError):
            await it.get(MY_KEY)
        assert await it.get(MY_KEY.at_version(old)) == (b"old", CacheResult.HIT)
        assert (await it.running.engine.open_object(OTHERS_KEY)).record.size == len(b"other")


@pytest.mark.parametrize("version_id", ["", NULL_VERSION, "other"])
async def test_a_batch_tells_of_a_quarantined_change_only_who_may_know(version_id: str) -> None:
    """A line of a name that the key may not read is refused as the origin would, whatever is known of the name here."""
    async with versioned() as it:
        await quarantine(it, MINE, OTHERS)
        conditions = (("if-match", '"x"'),) if not version_id else ()
        lines = [DeleteLine(name.at_version(version_id), conditions) for name in (MINE, OTHERS)]

        mine, others = await it.store.delete_objects(BUCKET, lines)

        assert mine.code
        assert "refused" in mine.message
        assert others.code == "AccessDenied"
        assert "refused" not in others.message


async def test_the_version_null_is_the_object_in_a_bucket_without_versions() -> None:
    """Its delete is the object's: what is cached of it is served to nobody any more."""
    async with versioned() as it:
        await it.running.put(MINE.key, b"bytes")
        await it.running.get(MINE.key)

        await it.store.delete_object(MINE.at_version(NULL_VERSION))

        for read in (it.get(MINE), it.get(MINE.at_version(NULL_VERSION)), it.running.get(MINE.key)):
            with pytest.raises(NoSuchKeyError):
                await read


# --- copies --------------------------------------------------------------------------------------------------------------


async def test_a_version_is_copied_where_the_origin_lets_it_be_read() -> None:
    """Of an object or as a part: the version that is named, of the key's own names; of others' nothing is copied."""
    async with versioned() as it:
        old = await put(it, MY_KEY, b"old")
        await put(it, MY_KEY, b"new")
        other = await put(it, OTHERS_KEY, b"other")
        target = ObjectName(OLD, "mine/copy")
        upload_id, _ = await it.store.create_upload(UploadRequest(target))
        stolen = OTHERS_KEY.at_version(other)

        await it.store.copy_object(MY_KEY.at_version(old), MY_KEY, ())
        await refused(it.store.copy_object(stolen, target, ()))
        part = await it.store.upload_part_copy(MY_KEY.at_version(old), target, upload_id, 1)
        await refused(it.store.upload_part_copy(stolen, target, upload_id, 2))
        page = await it.store.list_parts(target, upload_id, part_marker=0, max_parts=10)

        assert (await it.get(MY_KEY))[0] == b"old"
        assert [(one.number, one.etag) for one in page.parts] == [(1, part.etag)]
        with pytest.raises(NoSuchKeyError):
            await it.get(target)
