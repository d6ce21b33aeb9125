"""Publishing over a whole engine: the switch, what it refuses, copies."""

from typing import TYPE_CHECKING

import pytest

from storage.errors import (
    NoSuchKeyError,
    PublishConflictError,
    PublishRefusedError,
    ReadOnlyError,
)
from storage.policy import Policy, PolicyTable
from storage.publish import Target as PublishedTarget, View, decode_manifest
from storage.requests import CompletedPart, PutRequest, UploadRequest
from storage.types import ByteRange, ObjectName
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import (
    BUCKET,
    BytesContent,
    delete_lines,
    read_all,
    running_engine,
    until,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

from tests.fakes.publishing import (
    MANIFEST,
    TARGET,
    TTL,
    listed,
    manifest_generation,
    publish,
    store,
    target,
    view,
)

# --- the switch ----------------------------------------------------------------------------------------------------------


async def test_a_target_shows_one_source_and_then_another_when_it_is_published() -> None:
    """GET, LIST, status and the origin's manifest follow each publish; the older source comes back the same way."""
    async with running_engine() as running:
        target(running)
        await store(running, "v1")
        await store(running, "v2", 2)

        before = await view(running)
        first = await publish(running, "v1")
        one = await view(running), await listed(running)
        second = await publish(running, "v2")
        two = await view(running), await listed(running)
        third = await publish(running, "v1")
        back = await view(running), await listed(running)
        shown = running.engine.status().pointers

    assert before == View(ObjectName(BUCKET, f"{TARGET}k0"), 0)
    keys = [f"{TARGET}k{number}" for number in range(3)]
    assert one == (View(ObjectName(BUCKET, "staging/v1/k0"), 1), (1, keys))
    assert two == (View(ObjectName(BUCKET, "staging/v2/k0"), 2), (2, keys[:2]))
    assert back == (View(ObjectName(BUCKET, "staging/v1/k0"), 3), (3, keys))
    assert [report.generation for report in (first, second, third)] == [1, 2, 3]
    assert [report.keys for report in (first, second, third)] == [3, 2, 3]
    assert first.digest == third.digest != second.digest
    assert [(one.target, one.source, one.generation) for one in shown] == [(TARGET, "staging/v1/", 3)]


async def test_the_manifest_is_written_last_when_the_source_is_dirty() -> None:
    """Everything that was acknowledged under the source is at the origin before the switch, delays or not."""
    async with running_engine() as running:
        policies = (
            Policy(bucket=BUCKET, prefix=TARGET, published=True, freshness=TTL),
            Policy(bucket=BUCKET, prefix="staging/", flush_delay_s=3600.0),
        )
        running.policy[:] = [PolicyTable(policies)]
        await store(running, "v1", 5)
        running.origin.faults.add(
            Fault(operation="PutObject", key="bucket/staging/*", delay_s=0.05, times=-1)
        )

        report = await publish(running, "v1")

        taken = {key: states[0].sequence for (_, key), states in running.origin.store.history.items()}
        order = sorted(taken, key=lambda key: taken[key])

    assert report.phase == "done"
    assert sorted(order[:5]) == [f"staging/v1/k{number}" for number in range(5)]
    assert order[5:] == [MANIFEST]


async def test_progress_is_told_while_the_source_is_flushed() -> None:
    """Whoever asks hears how many of the changes are at the origin, and that it is not over."""
    async with running_engine() as running:
        target(running)
        gate = running.origin.hold("PUT", "bucket/staging/v1/k0")
        await store(running, "v1")
        await gate.reached.wait()
        begun = await running.engine.start_publish(BUCKET, "staging/v1/", TARGET)
        await until(lambda: running.engine.status().pending_objects == 1)

        during = await running.engine.wait_publish(begun.publish_id, 0.0)
        gate.open()
        after = await running.engine.wait_publish(begun.publish_id, 20.0)

    assert (during.phase, during.is_over, during.total - during.done) == ("flushing", False, 1)
    assert (after.phase, after.is_over) == ("done", True)


async def test_the_manifest_itself_is_read_and_not_listed() -> None:
    """A GET of the manifest's name shows the manifest, the new one after a switch; no listing names it."""
    async with running_engine() as running:
        target(running)
        await store(running, "v1")
        await store(running, "v2")
        await publish(running, "v1")

        first = await running.get(MANIFEST)
        await publish(running, "v2")
        second = await running.get(MANIFEST)
        meaning = await running.engine.view(ObjectName(BUCKET, MANIFEST))
        _, keys = await listed(running, "")

    where = PublishedTarget(BUCKET, TARGET)
    assert [decode_manifest(got.data, where).generation for got in (first, second)] == [1, 2]
    assert meaning is None
    assert keys == [
        *(f"{TARGET}k{number}" for number in range(3)),
        *(f"staging/v{version}/k{number}" for version in (1, 2) for number in range(3)),
    ]


async def test_a_body_that_was_opened_goes_on_when_the_target_is_switched() -> None:
    """What was opened under one generation is read to its end from it."""
    async with running_engine() as running:
        target(running)
        await store(running, "v1")
        await store(running, "v2")
        await publish(running, "v1")
        opened = await running.engine.open_object((await view(running)).name)
        body = opened.read(ByteRange(0, 4))

        await publish(running, "v2")
        data = await read_all(body)
        await opened.close()

    assert data == b"v1:0"


# --- what is refused -----------------------------------------------------------------------------------------------------


async def test_no_write_reaches_a_target() -> None:
    """Every kind of write under a target is refused, before the first publish too, and changes nothing."""
    async with running_engine() as running:
        await running.put("elsewhere", b"x")
        upload, _ = await running.engine.create_upload(UploadRequest(ObjectName(BUCKET, f"{TARGET}u")))
        target(running)
        engine, name = running.engine, ObjectName(BUCKET, f"{TARGET}k0")

        writes: list[Awaitable[object]] = [
            engine.put_object(PutRequest(name), BytesContent(b"x")),
            engine.put_object(PutRequest(ObjectName(BUCKET, MANIFEST)), BytesContent(b"x")),
            engine.delete_object(name),
            engine.copy_object(ObjectName(BUCKET, "elsewhere"), name, ()),
            engine.create_upload(UploadRequest(name)),
            engine.upload_part(ObjectName(BUCKET, f"{TARGET}u"), upload, 1, BytesContent(b"x")),
            engine.complete_upload(ObjectName(BUCKET, f"{TARGET}u"), upload, [CompletedPart(1, "e")]),
        ]
        refusals = 0
        for write in writes:
            with pytest.raises(ReadOnlyError):
                await write
            refusals += 1
        lines = await engine.delete_objects(BUCKET, delete_lines(["elsewhere", name.key, "elsewhere"]))
        await engine.abort_upload(ObjectName(BUCKET, f"{TARGET}u"), upload)
        _, keys = await listed(running, "")

    assert refusals == 7
    assert [(line.key, line.code) for line in lines] == [
        ("elsewhere", ""),
        (name.key, "AccessDenied"),
        ("elsewhere", ""),
    ]
    assert keys == []


async def test_a_copy_of_a_target_is_one_of_its_source() -> None:
    """CopyObject from a name under a target copies the object that a GET of it would show."""
    async with running_engine() as running:
        target(running)
        await store(running, "v1")
        await publish(running, "v1")

        await running.engine.copy_object(ObjectName(BUCKET, f"{TARGET}k1"), ObjectName(BUCKET, "copy"), ())

        assert (await running.get("copy")).data == b"v1:1"


@pytest.mark.parametrize("is_dirty", [False, True])
async def test_the_first_publish_is_refused_when_objects_lie_at_the_target(is_dirty: bool) -> None:
    """Nothing that somebody put there before is hidden, whether it is at the origin already or not."""
    async with running_engine() as running:
        await store(running, "v1")
        if is_dirty:
            running.origin.faults.add(
                Fault(operation="PutObject", key=f"bucket/{TARGET}*", times=-1, status=503)
            )
            await running.put(f"{TARGET}old", b"x")
        else:
            running.origin.store.put(BUCKET, f"{TARGET}old", b"x")
        target(running)

        with pytest.raises(PublishConflictError, match="data/live/old lies at the target"):
            await publish(running, "v1")

        assert manifest_generation(running.origin) == 0


async def test_a_publish_is_refused_when_its_places_are_none() -> None:
    """A target that no policy names is refused at once."""
    async with running_engine() as running:
        await store(running, "v1")

        with pytest.raises(PublishRefusedError, match="no published target"):
            await publish(running, "v1")


async def test_a_publish_fails_when_nothing_lies_under_the_source() -> None:
    """A mistyped source does not empty the target."""
    async with running_engine() as running:
        target(running)

        report = await publish(running, "v9")

        assert report.phase == "failed"
        assert report.error == "nothing lies under s3://bucket/staging/v9/"
        assert manifest_generation(running.origin) == 0


async def test_a_publish_fails_when_the_source_cannot_be_flushed() -> None:
    """What the origin refuses for good keeps the switch from happening, and is named."""
    async with running_engine() as running:
        target(running)
        running.origin.faults.add(
            Fault(
                operation="PutObject", key="bucket/staging/v1/k1", times=-1, status=400, code="InvalidRequest"
            )
        )
        await store(running, "v1")

        report = await publish(running, "v1")

        assert report.phase == "failed"
        assert "s3://bucket/staging/v1/k1" in report.error
        assert manifest_generation(running.origin) == 0


async def test_one_publish_at_a_time_when_two_are_asked_for() -> None:
    """A second publish of the same target is told that one is under way."""
    async with running_engine() as running:
        target(running)
        await store(running, "v1")
        gate = running.origin.hold("PUT", f"bucket/{MANIFEST}")
        begun = await running.engine.start_publish(BUCKET, "staging/v1/", TARGET)
        await gate.reached.wait()

        with pytest.raises(PublishConflictError, match="under way"):
            await running.engine.start_publish(BUCKET, "staging/v1/", TARGET)
        gate.open()

        assert (await running.engine.wait_publish(begun.publish_id, 20.0)).phase == "done"


async def test_an_unknown_publish_is_not_found() -> None:
    """A number that was never given is answered as such."""
    async with running_engine() as running:
        with pytest.raises(NoSuchKeyError):
            await running.engine.wait_publish(7, 0.0)


# --- copies --------------------------------------------------------------------------------------------------------------


async def test_real_objects_are_made_when_copies_are_asked_for() -> None:
    """Copies have the bytes and headers of the source, are at the origin, and set no pointer; others there are counted."""
    async with running_engine() as running:
        await running.put(f"{TARGET}old", b"old")
        target(running)
        request = PutRequest(
            ObjectName(BUCKET, "staging/v1/dir/a"),
            headers=(("content-type", "text/plain"),),
            user_metadata=(("colour", "blue"),),
        )
        await store(running, "v1", 40)
        await running.engine.put_object(request, BytesContent(b"bytes"))

        report = await publish(running, "v1", is_copy=True)
        copied = running.origin.store.buckets[BUCKET].objects[f"{TARGET}dir/a"]
        got = await running.get(f"{TARGET}k39")
        shown = await view(running)

    assert (report.phase, report.keys, report.total, report.done) == ("done", 41, 41, 41)
    assert (report.generation, report.extra) == (0, 1)
    assert copied.body == b"bytes"
    assert copied.headers["content-type"] == "text/plain"
    assert copied.headers["x-amz-meta-colour"] == "blue"
    assert got.data == b"v1:39"
    assert shown.generation == 0


async def test_copies_that_fail_are_named() -> None:
    """The rest is copied, and the publish ends as failed with the keys and the reasons."""
    async with running_engine() as running:
        target(running)
        await store(running, "v1")
        running.origin.faults.add(
            Fault(operation="CopyObject", key=f"bucket/{TARGET}k1", times=-1, status=403, code="AccessDenied")
        )

        report = await publish(running, "v1", is_copy=True)

        assert report.phase == "failed"
        assert report.error == "1 of 3 objects could not be copied"
        assert [line.partition(":")[0] for line in report.failures] == ["staging/v1/k1"]
        assert running.origin.store.body(BUCKET, f"{TARGET}k2") == b"v1:2"


async def test_copies_are_refused_when_the_target_is_published() -> None:
    """Copies would lie behind the pointer, where readers of the gateway do not see them."""
    async with running_engine() as running:
        target(running)
        await store(running, "v1")
        await publish(running, "v1")

        with pytest.raises(PublishConflictError, match="is published already"):
            await publish(running, "v1", is_copy=True)
