"""A client key with its own credentials at the origin: the origin decides, for each read, write and listing."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
import pytest

from gateway.operations.relay import NoContent
from gateway.s3.effects import EFFECTS
from gateway.s3.routes import Operation
from storage.authority import Authority
from storage.errors import (
    DurabilityNotPossibleError,
    InvalidPartOrderError,
    NoSuchKeyError,
    NoSuchUploadError,
    OriginError,
    OriginSuspendedError,
    QuarantinedError,
)
from storage.listing import ListQuery
from storage.origin.credentials import Credentials, CredentialSource, StaticCredentials
from storage.own_store import OwnStore
from storage.policy import Freshness, FreshnessMode, Policy
from storage.requests import CompletedPart, DeleteLine, PutRequest, RelayReply, RelayRequest, UploadRequest
from storage.types import MIB, ByteRange, CacheResult, ObjectName, RangeSpec, WriteMode
from tests.fakes.origin_faults import Fault
from tests.fakes.publishing import TARGET, publish, store as store_source, target
from tests.fakes.rotating_credentials import Rotating
from tests.fakes.running_engine import (
    BUCKET,
    BytesContent,
    RunningEngine,
    read_all,
    running_engine,
    until,
)

MINE = ObjectName(BUCKET, "mine/key")
OTHERS = ObjectName(BUCKET, "others/key")
REASONED = ("x-cache-reason", "own credentials")


@dataclass
class Own:
    """An engine, and its store as a key sees it that the origin lets do anything under `bucket/mine/`."""

    running: RunningEngine
    store: OwnStore

    async def get(self, name: ObjectName, wanted: RangeSpec | None = None) -> tuple[bytes, CacheResult]:
        """Read an object, or a range of it, to the end."""
        opened = await self.store.open_object(name, wanted)
        try:
            span = (wanted or RangeSpec(start=0)).resolve(opened.record.size)
            assert span is not None
            body = opened.read(span)
        finally:
            await opened.close()
        return await read_all(body), body.result

    def asked(self, operation: str) -> list[str]:
        """Say who signed the requests of an operation that reached the origin."""
        return [line.access_key for line in self.running.origin.log if line.operation == operation]


@asynccontextmanager
async def own(
    *,
    policy: Policy | None = None,
    believed_s: float = 60.0,
    credentials: CredentialSource | None = None,
) -> AsyncIterator[Own]:
    """Run an engine in front of an origin that checks signatures, and lets the own key do only some things."""
    async with running_engine(policy=policy) as running:
        origin = running.origin
        origin.keys = {"key": "secret", "own": "secret", "own2": "secret"}
        origin.allowed = {"own": (f"{BUCKET}/mine/",)}
        authority = Authority(
            "own", credentials or StaticCredentials(Credentials("own", "secret")), believed_s
        )
        yield Own(running, running.engine.own_store(authority))


async def refused(call: Awaitable[object]) -> None:
    """Expect the origin's 403."""
    with pytest.raises(OriginSuspendedError) as raised:
        await call
    assert (raised.value.status, raised.value.code) == (403, "AccessDenied")


# --- reads ---------------------------------------------------------------------------------------------------------------


async def test_a_cached_object_is_served_while_the_origin_has_let_it_be_read() -> None:
    """One HEAD with the key's own credentials, then the cache; the origin is asked again when its word has grown old."""
    async with own(believed_s=60.0) as it:
        it.running.origin.store.put(BUCKET, MINE.key, b"bytes")
        await it.running.get(MINE.key)
        it.running.origin.log.clear()

        first = await it.get(MINE)
        second = await it.get(MINE)
        heads = it.asked("HeadObject")
        it.running.origin.allowed["own"] = ()
        believed = await it.get(MINE)

    assert first == second == believed == (b"bytes", CacheResult.HIT)
    assert heads == ["own"]


async def test_nothing_is_served_when_the_word_of_the_origin_has_grown_old() -> None:
    """What the origin allowed once it may forbid: its word holds for the time of the settings and not longer."""
    async with own(believed_s=0.0) as it:
        it.running.origin.store.put(BUCKET, MINE.key, b"bytes")
        await it.get(MINE)
        it.running.origin.allowed["own"] = ()

        await refused(it.get(MINE))


async def test_a_refusal_is_remembered_and_asked_once_by_all() -> None:
    """A key that may not read asks the origin once, however often and however many at a time it tries."""
    async with own() as it:
        it.running.origin.store.put(BUCKET, OTHERS.key, b"bytes")
        await it.running.get(OTHERS.key)

        for _ in range(3):
            await refused(it.get(OTHERS))

        assert (it.asked("HeadObject"), it.asked("GetObject")) == (["own"], ["key", "own"])


@pytest.mark.parametrize("freshness", list(FreshnessMode))
async def test_a_cold_object_is_filled_with_the_credentials_of_who_reads_it(freshness: FreshnessMode) -> None:
    """The fill is signed by the reader's key, and keeps the object; another key must be shown it before it is served."""
    async with own(policy=Policy(freshness=Freshness(freshness))) as it:
        it.running.origin.store.put(BUCKET, MINE.key, b"bytes")
        it.running.origin.allowed["key"] = ("nothing",)

        cold = await it.get(MINE)
        await it.running.fills_ended()
        gets = it.asked("GetObject")
        warm = await it.get(MINE)
        # The gateway's own key may not read what the other key brought in, whatever the policy.
        with pytest.raises(OriginSuspendedError):
            await it.running.get(MINE.key)
        with pytest.raises(OriginSuspendedError):
            await it.running.engine.open_object(MINE, metadata_only=True)
        del it.running.origin.allowed["key"]
        shown = await it.running.get(MINE.key)

        assert it.asked("GetObject") == gets == ["own"]
    assert (cold, warm) == ((b"bytes", CacheResult.MISS), (b"bytes", CacheResult.HIT))
    assert (shown.data, shown.result) == (b"bytes", CacheResult.HIT)


async def test_a_fill_under_way_is_joined_by_who_may_read_and_by_nobody_else() -> None:
    """A key whose permission is not known gets no byte of another's fill; one that is let read follows it."""
    async with own() as it:
        data = bytes(range(256)) * (4 * MIB // 256)
        for name in (MINE, OTHERS):
            it.running.origin.store.put(BUCKET, name.key, data)
        for name in (MINE, OTHERS):
            gate = it.running.origin.hold("GET", str(name.bucket) + "/" + name.key, after_bytes=MIB)
            opened = await it.running.engine.open_object(name)
            body = opened.read(RangeSpec(start=0).resolve(opened.record.size) or pytest.fail("no span"))
            await opened.close()
            await gate.reached.wait()

            if name is OTHERS:
                await refused(it.get(name))
                gate.open()
            else:
                joined = await it.store.open_object(name)
                follower = joined.read(RangeSpec(start=0).resolve(len(data)) or pytest.fail("no span"))
                await joined.close()
                gate.open()
                assert await read_all(follower) == data
            assert await read_all(body) == data

        gets = [
            (line.access_key, line.range) for line in it.running.origin.log if line.operation == "GetObject"
        ]
        assert sorted(gets) == [("key", ""), ("key", ""), ("own", "bytes=0-0")]


@pytest.mark.parametrize("is_own_first", [True, False])
async def test_a_refusal_of_a_fill_is_of_who_began_it(*, is_own_first: bool) -> None:
    """Who follows a fill that the origin refuses to another authority asks for itself, and gets the bytes."""
    async with own() as it:
        data = bytes(range(256)) * (2 * MIB // 256)
        it.running.origin.store.put(BUCKET, MINE.key, data)
        first, second = it.store.open_object, it.running.engine.open_object
        if not is_own_first:
            first, second = second, first
        opened = [await open_object(MINE, RangeSpec(0, 10)) for open_object in (first, second)]
        await read_all(opened[0].read(ByteRange(0, 10)))
        await it.running.fills_ended()
        gate = it.running.origin.hold("GET", f"{BUCKET}/{MINE.key}")
        it.running.origin.faults.add(Fault(operation="GetObject", status=403, code="AccessDenied"))
        bodies = [one.read(ByteRange(MIB, 2 * MIB)) for one in opened]
        async with asyncio.TaskGroup() as group:
            beginning = group.create_task(refused(read_all(bodies[0])))
            await gate.reached.wait()
            following = group.create_task(read_all(bodies[1]))
            await asyncio.sleep(0)  # noqa: TID251  # it follows the fill by then
            gate.open()
        for one in opened:
            await one.close()

    assert beginning.result() is None
    assert following.result() == data[MIB:]


async def test_a_dirty_object_is_flushed_before_it_is_read() -> None:
    """What another key wrote is at the origin first, where its rights are; then the origin is asked, and it is served."""
    async with own(policy=Policy(flush_delay_s=3600)) as it:
        await it.running.put(MINE.key, b"acknowledged")
        await it.running.put(OTHERS.key, b"acknowledged")

        mine = await it.get(MINE)
        await refused(it.get(OTHERS))

        assert mine == (b"acknowledged", CacheResult.HIT)
        assert it.running.origin.store.body(BUCKET, MINE.key) == b"acknowledged"


async def test_a_tombstone_is_flushed_before_it_is_told() -> None:
    """Whether there is an object is the origin's to tell: to one key that it is gone, to another nothing."""
    async with own(policy=Policy(flush_delay_s=3600)) as it:
        for name in (MINE, OTHERS):
            it.running.origin.store.put(BUCKET, name.key, b"bytes")
            await it.running.engine.delete_object(name)

        with pytest.raises(NoSuchKeyError):
            await it.get(MINE)
        await refused(it.get(OTHERS))


async def test_a_quarantined_change_is_told_to_who_may_read_the_name_alone() -> None:
    """What the origin will not take cannot be put before it: 409 to who may read the name, 403 to who may not."""
    async with own() as it:
        it.running.origin.faults.add(
            Fault(operation="PutObject", status=400, code="InvalidArgument", times=2)
        )
        for name in (MINE, OTHERS):
            await it.running.put(name.key, b"refused")
        flusher = it.running.engine._components.flusher
        await until(lambda: all(flusher.quarantine_reason(name) for name in (MINE, OTHERS)))

        with pytest.raises(QuarantinedError):
            await it.get(MINE)
        await refused(it.get(OTHERS))
        with pytest.raises(QuarantinedError):
            await it.store.copy_object(MINE, ObjectName(BUCKET, "mine/copy"), ())
        await refused(it.store.copy_object(OTHERS, ObjectName(BUCKET, "mine/copy"), ()))
        conditional = PutRequest(OTHERS, origin_headers=(("if-none-match", "*"),))
        await refused(it.store.put_object(conditional, BytesContent(b"x")))


async def test_a_missing_object_is_not_remembered() -> None:
    """What is made at the origin a moment later is read a moment later."""
    async with own() as it:
        with pytest.raises(NoSuchKeyError):
            await it.get(MINE)
        it.running.origin.store.put(BUCKET, MINE.key, b"bytes")

        assert await it.get(MINE) == (b"bytes", CacheResult.MISS)


async def test_credentials_are_renewed_when_the_origin_refuses_them() -> None:
    """Expired keys of a client key are replaced by its source's next ones within the call."""
    async with own(credentials=Rotating("own", "own2")) as it:
        it.running.origin.store.put(BUCKET, MINE.key, b"bytes")
        it.running.origin.expired.add("own")

        assert (await it.get(MINE))[0] == b"bytes"
        assert it.asked("HeadObject") == ["own"]
        assert it.asked("GetObject") == ["own", "own2", "own2"]


# --- writes --------------------------------------------------------------------------------------------------------------


async def test_writes_go_through_with_the_own_credentials() -> None:
    """A put, a copy and deletes are at the origin when they are answered, signed by the key, and say why."""
    async with own() as it:
        put = await it.store.put_object(PutRequest(MINE), BytesContent(b"bytes"))
        there = it.running.origin.store.body(BUCKET, MINE.key)
        read = await it.get(MINE)
        copied = await it.store.copy_object(MINE, ObjectName(BUCKET, "mine/copy"), ())
        deleted = await it.store.delete_object(MINE)
        wanted = [DeleteLine(ObjectName(BUCKET, key)) for key in ("mine/copy", "others/key")]
        lines = await it.store.delete_objects(BUCKET, wanted)

        assert it.asked("PutObject") == it.asked("CopyObject") == ["own"]
        assert set(it.asked("DeleteObject")) == {"own"}
        assert it.running.origin.store.body(BUCKET, "mine/copy") is None
    assert (there, read[0]) == (b"bytes", b"bytes")
    for result in (put, copied, deleted):
        assert REASONED in result.headers
    assert [(line.key, line.code) for line in lines] == [("mine/copy", ""), ("others/key", "AccessDenied")]


async def test_the_source_of_a_copy_with_a_customers_key_is_the_copys_to_ask() -> None:
    """Without the key a HEAD is refused, whoever asks; the copy asks the origin with both."""
    key = (("x-amz-copy-source-server-side-encryption-customer-key", "a2V5"),)
    target = ObjectName(BUCKET, "mine/copy")
    async with own() as it:
        it.running.origin.store.put(BUCKET, MINE.key, b"bytes")
        refusal = Fault(key=f"{BUCKET}/{MINE.key}", status=400, times=-1)
        it.running.origin.faults.add(refusal)

        await it.store.copy_object(MINE, target, key)
        await refused(it.store.copy_object(OTHERS, target, key))

        assert it.running.origin.store.body(BUCKET, target.key) == b"bytes"


async def test_a_write_is_refused_when_the_origin_refuses_it() -> None:
    """Nothing is acknowledged that the origin did not take, and what others wrote there stays."""
    async with own() as it:
        it.running.origin.store.put(BUCKET, OTHERS.key, b"bytes")
        name = ObjectName(BUCKET, "mine/key")
        it.running.origin.store.put(BUCKET, name.key, b"bytes")

        await refused(it.store.put_object(PutRequest(OTHERS), BytesContent(b"mine")))
        await refused(it.store.delete_object(OTHERS))
        await refused(it.store.copy_object(OTHERS, name, ()))
        await refused(it.store.copy_object(name, OTHERS, ()))
        await refused(it.store.create_upload(UploadRequest(OTHERS)))
        with pytest.raises(DurabilityNotPossibleError):
            await it.store.put_object(PutRequest(name, mode=WriteMode.BACK), BytesContent(b"x"))

        assert it.running.origin.store.body(BUCKET, OTHERS.key) == b"bytes"
        assert it.running.engine.status().pending_objects == 0


async def test_a_write_of_the_key_lifts_what_was_remembered_of_it() -> None:
    """Who was refused and then wrote the object reads it at once."""
    async with own() as it:
        it.running.origin.allowed["own"] = ()
        await refused(it.get(MINE))
        it.running.origin.allowed["own"] = (f"{BUCKET}/mine/",)

        await it.store.put_object(PutRequest(MINE), BytesContent(b"bytes"))

        assert (await it.get(MINE))[0] == b"bytes"


async def test_an_upload_is_the_origins_own() -> None:
    """The upload's id is the origin's, each of its calls is the key's, and an upload that is kept here is not."""
    async with own() as it:
        kept, _ = await it.running.engine.create_upload(UploadRequest(MINE))
        it.running.origin.log.clear()
        upload_id, headers = await it.store.create_upload(UploadRequest(MINE))
        part = await it.store.upload_part(MINE, upload_id, 1, BytesContent(b"bytes"))
        page = await it.store.list_parts(MINE, upload_id, part_marker=0, max_parts=10)
        uploads = await it.store.list_uploads(
            BUCKET, prefix="mine/", delimiter="", key_marker="", upload_id_marker="", max_uploads=10
        )
        with pytest.raises(InvalidPartOrderError):
            await it.store.complete_upload(MINE, upload_id, [CompletedPart(1, part.etag)] * 2)
        done = await it.store.complete_upload(MINE, upload_id, [CompletedPart(1, part.etag)])
        stray, _ = await it.store.create_upload(UploadRequest(MINE))
        await it.store.abort_upload(MINE, stray)
        for call in (
            it.store.upload_part(MINE, kept, 1, BytesContent(b"x")),
            it.store.complete_upload(MINE, kept, []),
            it.store.abort_upload(MINE, kept),
            it.store.list_parts(MINE, kept, part_marker=0, max_parts=1),
        ):
            with pytest.raises(NoSuchUploadError):
                await call

        assert (await it.get(MINE))[0] == b"bytes"
        assert {line.access_key for line in it.running.origin.log} == {"own"}
    assert REASONED in headers
    assert [one.number for one in page.parts] == [1]
    assert [one.upload_id for one in uploads.uploads] == [upload_id]
    assert done.etag.endswith("-1")


# --- listings and buckets ------------------------------------------------------------------------------------------------


async def test_a_listing_is_the_origins_page_to_the_key_with_the_overlay_over_it() -> None:
    """A prefix that the origin lists for the key shows what is acknowledged under it; any other shows nothing of it."""
    async with own(policy=Policy(flush_delay_s=3600)) as it:
        it.running.origin.store.put(BUCKET, "mine/a", b"a")
        it.running.origin.store.put(BUCKET, "mine/b", b"b")
        await it.running.put("mine/c", b"c")
        await it.running.engine.delete_object(ObjectName(BUCKET, "mine/a"))
        await it.running.put("others/c", b"c")
        it.running.origin.log.clear()

        page = await it.store.list_objects(ListQuery(BUCKET, "mine/"))
        for prefix in ("", "others/", "mine"):
            await refused(it.store.list_objects(ListQuery(BUCKET, prefix)))

        assert [entry.key for entry in page.entries] == ["mine/b", "mine/c"]
        assert set(it.asked("ListObjectsV2")) == {"own"}


async def test_buckets_are_the_ones_that_the_origin_tells_the_key() -> None:
    """Each call about buckets is signed by the key; one that it may not see is refused before anything is said of it."""
    async with own() as it:
        it.running.origin.allowed["own"] = ("/", "mine/")
        it.running.origin.store.create_bucket("mine")
        await it.running.put("others/c", b"c")

        facts = await it.store.bucket_facts("mine")
        buckets = await it.store.list_buckets()
        for call in (it.store.bucket_facts, it.store.delete_bucket):
            await refused(call(BUCKET))
        await it.store.delete_bucket("mine")

        assert facts.exists
        assert [bucket.name for bucket in buckets] == [BUCKET, "mine"]
        assert "mine" not in it.running.origin.store.buckets
        assert it.asked("ListBuckets") == it.asked("DeleteBucket") == ["own"]


# --- what is relayed -----------------------------------------------------------------------------------------------------


def relayed(operation: Operation, method: str, name: ObjectName, *query: tuple[str, str]) -> RelayRequest:
    """Make a request that the origin is to answer."""
    return RelayRequest(operation.value, method, name, EFFECTS[operation], query)


async def status(call: Awaitable[RelayReply]) -> int:
    """Give the status of an answer, and let it go."""
    reply = await call
    await reply.body.close()
    return reply.status


async def test_what_is_relayed_is_asked_with_the_own_credentials() -> None:
    """Tags are read and written as the origin lets this key, of what was acknowledged; anything else is its 403."""
    async with own(policy=Policy(flush_delay_s=3600)) as it:
        for name in (MINE, OTHERS):
            await it.running.put(name.key, b"acknowledged")
        tags = relayed(Operation.GET_OBJECT_TAGGING, "GET", MINE, ("tagging", ""))
        untag = relayed(Operation.DELETE_OBJECT_TAGGING, "DELETE", MINE, ("tagging", ""))
        other = msgspec.structs.replace(tags, name=OTHERS)
        untag_other = msgspec.structs.replace(untag, name=OTHERS)

        assert await status(it.store.relay(tags)) == 200
        assert await status(it.store.relay(untag, NoContent())) == 204
        assert await status(it.store.relay(other)) == 403
        assert await status(it.store.relay(untag_other, NoContent())) == 403
        assert set(it.asked("GetObjectTagging") + it.asked("DeleteObjectTagging")) == {"own"}


async def test_what_the_origin_knows_is_learnt_once_for_each_authority() -> None:
    """A name is asked about once, not with each request; another authority's word is not taken for it."""
    async with own() as it:
        it.running.origin.store.put(BUCKET, MINE.key, b"bytes")
        untag = relayed(Operation.DELETE_OBJECT_TAGGING, "DELETE", MINE, ("tagging", ""))
        guarded = msgspec.structs.replace(untag, guarded=("tagging",))

        for _ in range(3):
            assert await status(it.store.relay(guarded, NoContent())) == 204
        first = it.asked("GetObjectTagging")
        assert await status(it.running.engine.relay(guarded, NoContent())) == 204

        assert first == ["own"] * len(first)
        assert len(it.asked("GetObjectTagging")) == 2 * len(first) > 0


async def test_a_key_that_may_not_read_is_refused_until_the_gateway_has_found_out() -> None:
    """Who is refused the object and its tags alike cannot tell whether the origin knows tags; then what the gateway knows counts."""
    async with own() as it:
        for name in (MINE, OTHERS):
            it.running.origin.store.put(BUCKET, name.key, b"bytes")
        untag = relayed(Operation.DELETE_OBJECT_TAGGING, "DELETE", OTHERS, ("tagging", ""))
        guarded = msgspec.structs.replace(untag, guarded=("tagging",))

        with pytest.raises(OriginError) as denied:
            await it.store.relay(guarded, NoContent())
        asked = it.asked("DeleteObjectTagging")
        gateways = msgspec.structs.replace(guarded, name=MINE)
        assert await status(it.running.engine.relay(gateways, NoContent())) == 204
        refused_by_origin = await status(it.store.relay(guarded, NoContent()))

        assert (denied.value.status, denied.value.code, asked) == (403, "AccessDenied", [])
        assert refused_by_origin == 403
        assert "own" in it.asked("DeleteObjectTagging")


async def test_what_cannot_be_flushed_is_told_to_who_may_know_of_it_when_it_is_relayed() -> None:
    """A quarantined change stands before the origin's answer: 409 for who may see the name, 403 for who may not."""
    async with own() as it:
        it.running.origin.faults.add(
            Fault(operation="PutObject", status=400, code="InvalidArgument", times=2)
        )
        for name in (MINE, OTHERS):
            await it.running.put(name.key, b"refused")
        flusher = it.running.engine._components.flusher
        await until(lambda: all(flusher.quarantine_reason(name) for name in (MINE, OTHERS)))
        tags = relayed(Operation.GET_OBJECT_TAGGING, "GET", MINE, ("tagging", ""))
        untag = relayed(Operation.DELETE_OBJECT_TAGGING, "DELETE", MINE, ("tagging", ""))
        versions = relayed(
            Operation.LIST_OBJECT_VERSIONS,
            "GET",
            ObjectName(BUCKET, ""),
            ("versions", ""),
            ("prefix", "mine/"),
        )
        elsewhere = msgspec.structs.replace(versions, query=(("versions", ""),))

        for wish, content in ((tags, None), (untag, NoContent()), (versions, None)):
            with pytest.raises(QuarantinedError):
                await it.store.relay(wish, content)
        await refused(it.store.relay(msgspec.structs.replace(tags, name=OTHERS)))
        await refused(it.store.relay(msgspec.structs.replace(untag, name=OTHERS), NoContent()))
        await refused(it.store.relay(elsewhere))


async def test_a_listing_of_versions_depends_on_the_names_that_it_shows() -> None:
    """What is quarantined or dirty elsewhere in the bucket is told by no listing of another prefix, and holds none up."""
    async with own(policy=Policy(flush_delay_s=3600)) as it:
        it.running.origin.faults.add(
            Fault(operation="PutObject", status=400, code="InvalidArgument", times=1)
        )
        await it.running.put(OTHERS.key, b"refused")
        flusher = it.running.engine._components.flusher
        with pytest.raises(QuarantinedError):
            await flusher.waits.flush_bucket(BUCKET)
        await it.running.put(MINE.key, b"acknowledged")
        bucket = ObjectName(BUCKET, "")
        it.running.origin.store.documents[(BUCKET, "", "versions")] = b"<ListVersionsResult/>"
        listing = relayed(
            Operation.LIST_OBJECT_VERSIONS, "GET", bucket, ("versions", ""), ("prefix", "mine/")
        )
        twice = msgspec.structs.replace(listing, query=(*listing.query, ("prefix", "")))
        unknown = msgspec.structs.replace(listing, operation=Operation.UNKNOWN.value)

        assert await status(it.store.relay(listing)) == 200
        for wish in (twice, unknown):
            await refused(it.store.relay(wish))

        assert it.running.origin.store.body(BUCKET, MINE.key) == b"acknowledged"
        assert await status(it.running.engine.relay(listing)) == 200
        with pytest.raises(QuarantinedError):
            await it.running.engine.relay(twice)


async def test_a_bucket_is_closed_for_who_may_see_it_alone() -> None:
    """A change of a bucket's facts by a key that may not see it is refused before anything here waits for it."""
    async with own() as it:
        wish = relayed(Operation.PUT_BUCKET_VERSIONING, "PUT", ObjectName(BUCKET, ""), ("versioning", ""))
        it.running.origin.store.put(BUCKET, MINE.key, b"bytes")

        await refused(it.store.relay(wish, NoContent()))

        assert not it.running.engine._components.facts.dropped
        assert it.asked("PutBucketVersioning") == []


# --- published targets ---------------------------------------------------------------------------------------------------


def _nothing(_: int | None) -> None:
    return


@pytest.mark.parametrize(
    ("allowed", "is_followed"),
    [((f"{BUCKET}/data/", f"{BUCKET}/staging/"), True), ((f"{BUCKET}/staging/",), False)],
)
async def test_a_target_is_followed_by_who_may_read_its_manifest(
    allowed: tuple[str, ...], *, is_followed: bool
) -> None:
    """The pointer is an object like others; who may not read it sees what the origin has under the name, or is refused."""
    async with own() as it:
        target(it.running)
        await store_source(it.running, "v1")
        await publish(it.running, "v1")
        it.running.origin.allowed["own"] = allowed
        name = ObjectName(BUCKET, f"{TARGET}k0")

        view = await it.store.view(name)
        if is_followed:
            assert view is not None
            listed = await it.store.list_objects(ListQuery(BUCKET, TARGET), _nothing)
            assert (await it.get(view.name))[0] == b"v1:0"
            assert [entry.key for entry in listed.entries] == [f"{TARGET}k{number}" for number in range(3)]
        else:
            assert view is None
            await refused(it.get(name))
            await refused(it.store.list_objects(ListQuery(BUCKET, TARGET), _nothing))


async def test_a_target_gives_nothing_when_its_source_is_not_for_the_key() -> None:
    """Reading the manifest is not reading what it points to."""
    async with own() as it:
        target(it.running)
        await store_source(it.running, "v1")
        await publish(it.running, "v1")
        it.running.origin.allowed["own"] = (f"{BUCKET}/data/",)

        view = await it.store.view(ObjectName(BUCKET, f"{TARGET}k0"))
        assert view is not None
        await refused(it.get(view.name))
        await refused(it.store.list_objects(ListQuery(BUCKET, TARGET), _nothing))
