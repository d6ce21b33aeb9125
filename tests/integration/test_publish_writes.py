"""Writes that meet a target while it comes into force, over a whole engine: acknowledged and in sight, or refused."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import pytest

from storage.errors import PublishConflictError, ReadOnlyError
from storage.policy import Policy
from storage.requests import CompletedPart, PutRequest, UploadRequest
from storage.types import ObjectName, WriteMode
from tests.fakes.origin_faults import Fault
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.publishing import MANIFEST, TARGET, manifest_generation, publish, store, target
from tests.fakes.running_engine import BUCKET, BytesContent, delete_lines, running_engine
from tests.fakes.writing import PART, complete, flushed, open_upload, pause, put_part, request, until

if TYPE_CHECKING:
    from collections.abc import Coroutine

NAME = ObjectName(BUCKET, f"{TARGET}k0")


class HeldContent(BytesContent):
    """A body that comes once it is let go."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.go = asyncio.Event()

    async def chunks(self) -> AsyncIterator[bytes]:
        """Wait, then yield the pieces."""
        await self.go.wait()
        async for piece in super().chunks():
            yield piece


# --- this gateway --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [WriteMode.BACK, WriteMode.THROUGH])
async def test_a_write_is_refused_when_the_target_comes_into_force_while_its_body_comes(
    mode: WriteMode,
) -> None:
    """What was not acknowledged before the target was in force is not acknowledged after it, and is nowhere."""
    async with running_engine() as running:
        await store(running, "v1", 2)
        body = HeldContent(b"late")
        put = asyncio.get_running_loop().create_task(
            running.engine.put_object(PutRequest(NAME, mode=mode), body)
        )
        await pause()
        target(running)
        report = await publish(running, "v1")
        body.go.set()

        with pytest.raises(ReadOnlyError):
            await put
        await flushed(running)
        at_origin = running.origin.store.body(BUCKET, NAME.key)

    assert (report.phase, report.generation) == ("done", 1)
    assert at_origin is None


async def test_a_part_is_refused_when_the_target_comes_into_force_while_it_comes() -> None:
    """A part that nobody can complete any more is not taken in."""
    async with running_engine() as running:
        upload_id = await open_upload(running, NAME.key)
        body = HeldContent(b"part")
        part = asyncio.get_running_loop().create_task(running.engine.upload_part(NAME, upload_id, 1, body))
        await pause()
        target(running)
        body.go.set()

        with pytest.raises(ReadOnlyError):
            await part


async def test_whoever_waits_for_the_key_is_refused_when_the_target_comes_into_force() -> None:
    """Each kind of write looks again in its turn; the one that was ahead of them is acknowledged, and is in sight."""
    async with running_engine() as running:
        await running.put("elsewhere", b"x")
        await store(running, "v1", 2)
        upload_id = await open_upload(running, NAME.key)
        await put_part(running, NAME.key, upload_id, 1, b"x" * PART)
        gate = running.origin.hold("PUT", f"bucket/{NAME.key}")
        loop, engine = asyncio.get_running_loop(), running.engine
        first = loop.create_task(
            engine.put_object(request(NAME.key, mode=WriteMode.THROUGH), BytesContent(b"first"))
        )
        await gate.reached.wait()
        writes: list[Coroutine[object, object, object]] = [
            running.put(NAME.key, b"x"),
            engine.put_object(request(NAME.key, mode=WriteMode.THROUGH), BytesContent(b"x")),
            engine.delete_object(NAME),
            engine.delete_object(NAME.at_version("null")),
            engine.copy_object(ObjectName(BUCKET, "elsewhere"), NAME, ()),
            complete(running, NAME.key, upload_id, {1: b"x" * PART}),
        ]
        tasks = [loop.create_task(write) for write in writes]
        batch = loop.create_task(engine.delete_objects(BUCKET, delete_lines([NAME.key])))
        await pause(0.1)
        target(running)
        gate.open()

        await first
        await asyncio.wait(tasks)
        outcomes = [task.exception() for task in tasks]
        lines = await batch
        with pytest.raises(PublishConflictError, match="data/live/k0 lies at the target"):
            await publish(running, "v1")
        at_origin = running.origin.store.body(BUCKET, NAME.key)

    assert [type(outcome) for outcome in outcomes] == [ReadOnlyError] * 6
    assert [(line.key, line.code) for line in lines] == [(NAME.key, "AccessDenied")]
    assert at_origin == b"first"


async def test_a_publish_waits_for_writes_at_the_target_and_looks_again() -> None:
    """A write that has its turn when the target comes into force is let end, and what it left keeps the switch away."""
    async with running_engine() as running:
        await store(running, "v1", 2)
        running.origin.faults.add(Fault(operation="PutObject", key=f"bucket/{NAME.key}", delay_s=0.5))
        loop = asyncio.get_running_loop()
        put = loop.create_task(
            running.engine.put_object(request(NAME.key, mode=WriteMode.THROUGH), BytesContent(b"late"))
        )
        await until(lambda: running.origin.faults.hits == 1)
        target(running)

        report = await publish(running, "v1")
        await put

    assert report.phase == "failed"
    assert report.error == "s3://bucket/data/live/k0 lies at the target, and would be hidden"
    assert manifest_generation(running.origin) == 0


async def test_a_publish_is_refused_when_its_target_is_none_any_more() -> None:
    """The policy that named the target was taken away while the source was flushed: nothing is switched."""
    async with running_engine() as running:
        before = list(running.policy)
        target(running)
        await store(running, "v1", 1)
        await flushed(running)
        gate = running.origin.hold("GET", f"bucket/{MANIFEST}")
        starting = asyncio.get_running_loop().create_task(publish(running, "v1"))
        await gate.reached.wait()
        gate.open()
        gate = running.origin.hold("GET", f"bucket/{MANIFEST}")
        await gate.reached.wait()
        running.policy[:] = before
        gate.open()

        report = await starting

    assert report.phase == "failed"
    assert "no published target" in report.error
    assert manifest_generation(running.origin) == 0


# --- another gateway -----------------------------------------------------------------------------------------------------


async def test_what_another_gateways_publish_hides_is_told_and_refuses_the_next_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A gateway that learns late of a target warns of what it acknowledged there, in log and status, until it is gone."""
    async with AsyncExitStack() as stack:
        origin = await stack.enter_async_context(PausedOrigin())
        one = target(await stack.enter_async_context(running_engine(origin=origin)))
        late = await stack.enter_async_context(
            running_engine(origin=origin, policy=Policy(flush_delay_s=600.0))
        )
        await late.put(NAME.key, b"acknowledged")
        await store(one, "v1", 2)
        await publish(one, "v1")
        target(late)

        await until(lambda: late.engine.status().hidden != ())
        told = late.engine.status().hidden
        with pytest.raises(PublishConflictError, match="data/live/k0 lies at the target"):
            await publish(late, "v1")
        await flushed(late)
        await until(lambda: late.engine.status().hidden == ())
        with pytest.raises(PublishConflictError, match="data/live/k0 lies at the target"):
            await publish(one, "v1")
        await one.client.delete_object(NAME)
        report = await publish(late, "v1")

    assert told == ((BUCKET, NAME.key),)
    assert [line for line in caplog.messages if "s3://bucket/data/live/k0 was acknowledged before" in line]
    assert (report.phase, report.generation) == ("done", 2)


async def test_nothing_is_told_of_deletes_and_manifests_under_a_target() -> None:
    """A delete that was acknowledged there hides nothing."""
    async with running_engine(policy=Policy(flush_delay_s=600.0)) as running:
        running.origin.store.put(BUCKET, NAME.key, b"x")
        await store(running, "v1", 1)
        await running.engine.delete_object(NAME)
        target(running)

        report = await publish(running, "v1")
        await running.engine._components.hidden_writes.look()
        told = running.engine.status().hidden

    assert (report.phase, told) == ("done", ())


# --- the manifest's name -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [MANIFEST, ".forebay-published"])
async def test_no_client_writes_a_manifest_where_there_is_no_target_yet(key: str) -> None:
    """Every kind of write to the name is refused in every bucket and prefix; names that only look like it are free."""
    async with running_engine() as running:
        await running.put("elsewhere", b'{"format":1,"source":"secret/","generation":1}')
        engine, name = running.engine, ObjectName(BUCKET, key)
        writes: list[Coroutine[object, object, object]] = [
            running.put(key, b'{"format":1,"source":"secret/","generation":1}'),
            engine.put_object(request(key, mode=WriteMode.THROUGH), BytesContent(b"x")),
            engine.delete_object(name),
            engine.copy_object(ObjectName(BUCKET, "elsewhere"), name, ()),
            engine.create_upload(UploadRequest(name)),
            engine.upload_part(name, "some", 1, BytesContent(b"x")),
            engine.complete_upload(name, "some", [CompletedPart(1, "e")]),
        ]
        refusals = 0
        for write in writes:
            with pytest.raises(ReadOnlyError, match=r"\.forebay-published is kept"):
                await write
            refusals += 1
        lines = await engine.delete_objects(BUCKET, delete_lines([key, f"{key}/a", f"x{key}x"]))
        await running.put("a.forebay-published", b"free")
        await flushed(running)
        at_origin = running.origin.store.body(BUCKET, key)

    assert refusals == 7
    assert [line.code for line in lines] == ["AccessDenied", "", ""]
    assert at_origin is None


async def test_copies_leave_the_manifest_of_the_source_behind() -> None:
    """A source that was a target once is copied without its manifest, which would point from the new target."""
    async with running_engine() as running:
        target(running)
        await store(running, "v1", 2)
        await flushed(running)
        planted = b'{"format":1,"source":"staging/v0/","generation":1}'
        running.origin.store.put(BUCKET, "staging/v1/.forebay-published", planted)

        report = await publish(running, "v1", is_copy=True)
        keys = [key for key in running.origin.store.buckets[BUCKET].objects if key.startswith(TARGET)]

    assert (report.phase, report.keys, report.done) == ("done", 2, 2)
    assert sorted(keys) == [f"{TARGET}k0", f"{TARGET}k1"]
