"""Conditional writes of one gateway: one winner whatever the origin knows of conditions, and no refusal by an own attempt."""

from collections.abc import Awaitable, Sequence
from email.utils import formatdate
from typing import TypeVar

import pytest

from gateway.s3.failures import to_s3_error
from storage.early_flush import EarlyFlushSettings
from storage.errors import (
    NoSuchKeyError,
    NoSuchUploadError,
    OriginError,
    OriginRefusedError,
    OriginUnavailableError,
    QuarantinedError,
    StorageError,
)
from storage.flush_events import FlushSettings
from storage.policy import Freshness, FreshnessMode, Policy
from storage.requests import CompletedPart, PutRequest, PutResult, UploadRequest
from storage.types import MIB, ObjectName
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, running_engine, until
from tests.fakes.tasks import start, turns

QUICK = FlushSettings(origin_timeout_s=0.05, retry_s_min=0.001, retry_s_max=0.01)
HELD = Policy(flush_delay_s=3600.0, freshness=Freshness(FreshnessMode.TTL, 60.0))
NAME = ObjectName(BUCKET, "k")
ABSENT = (("if-none-match", "*"),)

Headers = tuple[tuple[str, str], ...]

T = TypeVar("T")


async def put_if(running: RunningEngine, data: bytes, conditions: Headers) -> PutResult:
    """Put under conditions."""
    request = PutRequest(NAME, origin_reason="conditional", origin_headers=conditions)
    return await running.engine.put_object(request, BytesContent(data))


async def delete_if(running: RunningEngine, conditions: Headers) -> None:
    """Delete under conditions."""
    await running.engine.delete_object(NAME, origin_reason="conditional", origin_headers=conditions)


async def upload(running: RunningEngine, *parts: bytes) -> tuple[str, list[CompletedPart]]:
    """Open an upload and send its parts; give its id and the lines of its Complete."""
    upload_id, _ = await running.engine.create_upload(UploadRequest(NAME))
    lines = []
    for number, data in enumerate(parts, start=1):
        part = await running.engine.upload_part(NAME, upload_id, number, BytesContent(data))
        lines.append(CompletedPart(number, part.etag))
    return upload_id, lines


async def complete_if(
    running: RunningEngine, upload_id: str, lines: Sequence[CompletedPart], conditions: Headers = ABSENT
) -> PutResult:
    """Complete under conditions."""
    return await running.engine.complete_upload(NAME, upload_id, lines, origin_headers=conditions)


def at_origin(running: RunningEngine) -> bytes | None:
    """Give what the origin has."""
    return running.origin.store.body(BUCKET, "k")


async def outcome(work: Awaitable[T]) -> T | StorageError:
    """Give what work gives, or what it fails with."""
    try:
        return await work
    except StorageError as error:
        return error


async def place(running: RunningEngine, where: str) -> str:
    """Put an object, or a delete, where the case says; give the ETag that clients see, "" for none."""
    match where:
        case "origin":
            return running.origin.store.put(BUCKET, "k", b"there").etag
        case "dirty":
            return (await running.put("k", b"there")).etag
        case "clean":
            etag = (await running.put("k", b"there")).etag
            await running.engine.wait_barrier(running.engine.start_barrier("", "").barrier_id, 5.0)
            return etag
        case "tombstone":
            running.origin.store.put(BUCKET, "k", b"old")
            await running.engine.delete_object(NAME)
            return ""
        case _:
            return ""


@pytest.mark.parametrize("heeds", [True, False])
@pytest.mark.parametrize("where", ["origin", "dirty", "clean", "tombstone", "nowhere"])
async def test_conditions_are_held_against_what_clients_see_wherever_it_is(
    where: str, *, heeds: bool
) -> None:
    """B10: put, delete and their refusals, over an object at the origin only, dirty, clean, deleted here, or none."""
    async with running_engine(flush=QUICK, policy=HELD) as running:
        running.origin.store.heeds_conditions = heeds
        etag = await place(running, where)
        stale = (("if-match", '"0123"'),)

        if etag:
            for refused in (stale, ABSENT, (("if-match", f'"{etag}"'), ("if-none-match", f'"{etag}"'))):
                with pytest.raises(OriginRefusedError) as raised:
                    await put_if(running, b"wrong", refused)
                assert (raised.value.status, raised.value.code) == (412, "PreconditionFailed")
            with pytest.raises(OriginRefusedError):
                await delete_if(running, stale)
            assert (await running.get("k")).data == b"there"
            await put_if(running, b"new", (("if-match", f'"{etag}"'),))
            assert at_origin(running) == b"new"
            await delete_if(running, (("if-match", "*"),))
        else:
            for conditions in (stale, (("if-match", "*"),)):
                with pytest.raises(NoSuchKeyError):
                    await put_if(running, b"wrong", conditions)
                with pytest.raises(NoSuchKeyError):
                    await delete_if(running, conditions)

        await put_if(running, b"lock", ABSENT)
        assert (await running.get("k")).data == at_origin(running) == b"lock"


@pytest.mark.parametrize("heeds", [True, False])
async def test_one_of_sixteen_wins_and_a_lock_that_was_let_go_can_be_taken(*, heeds: bool) -> None:
    """B10: puts and Completes with If-None-Match on one key, five times over with a delete in between."""
    async with running_engine(flush=QUICK) as running:
        running.origin.store.heeds_conditions = heeds

        async def try_put(n: int) -> bytes:
            await put_if(running, b"%d" % n, ABSENT)
            return b"%d" % n

        async def try_complete(n: int) -> bytes:
            upload_id, lines = await upload(running, b"%d" % n)
            await complete_if(running, upload_id, lines)
            return b"%d" % n

        for turn in range(5):
            tries = [try_complete(n) if n % 2 else try_put(n) for n in range(16)]
            ends = [await outcome(one) for one in [start(one) for one in tries]]
            won = [end for end in ends if isinstance(end, bytes)]
            lost = [end for end in ends if not isinstance(end, bytes)]
            assert len(won) == 1, (turn, ends)
            assert all(isinstance(end, OriginRefusedError) and end.status == 412 for end in lost)
            assert (await running.get("k")).data == won[0]
            await running.engine.delete_object(NAME)


async def test_a_deletes_size_and_date_are_those_that_clients_see() -> None:
    """x-amz-if-match-size and -last-modified-time hold for no object too; the origin, with its own date, is asked for the ETag."""
    async with running_engine(flush=QUICK, policy=HELD) as running:
        running.clock.ahead_s = -5000.0
        await place(running, "dirty")
        opened = await running.engine.open_object(NAME, metadata_only=True)
        await opened.close()
        date = formatdate(opened.record.last_modified_s, usegmt=True)
        for wrong in (
            ("x-amz-if-match-size", "6"),
            ("x-amz-if-match-last-modified-time", formatdate(1, usegmt=True)),
        ):
            with pytest.raises(OriginRefusedError):
                await delete_if(running, (wrong,))
        await delete_if(running, (("x-amz-if-match-size", "5"), ("x-amz-if-match-last-modified-time", date)))
        sent = [one for one in running.origin.log if one.operation == "DeleteObject"]

        assert at_origin(running) is None
        assert [one.headers.get("if-match", "") != "" for one in sent] == [True]
        assert "x-amz-if-match-size" not in sent[0].headers
        await delete_if(running, (("x-amz-if-match-size", "6"),))


async def test_conditions_of_a_copy_are_on_its_target() -> None:
    """AWS API_CopyObject, If-Match and If-None-Match; this origin knows neither for copies."""
    async with running_engine(flush=QUICK, policy=HELD) as running:
        etag = await place(running, "dirty")
        source = ObjectName(BUCKET, "source")
        await running.put("source", b"copied")

        with pytest.raises(OriginRefusedError):
            await running.engine.copy_object(source, NAME, ABSENT)
        with pytest.raises(NoSuchKeyError):
            await running.engine.copy_object(source, ObjectName(BUCKET, "free"), (("if-match", "*"),))
        assert running.origin.requests_of("CopyObject") == 0
        await running.engine.copy_object(source, NAME, (("if-match", f'"{etag}"'),))

        assert (await running.get("k")).data == b"copied"


async def test_a_writer_that_comes_between_the_look_and_the_write_is_not_written_over() -> None:
    """What is sent carries the ETag that was seen, so an origin that heeds it decides against writers elsewhere."""
    async with running_engine(flush=QUICK) as running:
        etag = await place(running, "origin")
        gate = running.origin.hold("HEAD", f"{BUCKET}/k")
        writing = start(put_if(running, b"mine", (("if-match", f'"{etag}"'),)))
        await gate.reached.wait()
        running.origin.store.put(BUCKET, "k", b"theirs")
        gate.open()

        with pytest.raises(OriginRefusedError):
            await writing
        assert at_origin(running) == b"theirs"


async def test_conditional_writes_are_refused_with_the_reason_over_what_the_origin_refused() -> None:
    """A quarantined change is what clients see, and the origin does not have it: nobody can decide, nothing is sent."""
    async with running_engine(flush=QUICK) as running:
        running.origin.faults.add(Fault(operation="PutObject", status=400, code="InvalidRequest"))
        await running.put("k", b"refused")
        await until(lambda: bool(running.engine.status().quarantined))

        with pytest.raises(QuarantinedError):
            await put_if(running, b"x", ABSENT)
        upload_id, lines = await upload(running, b"x")
        with pytest.raises(QuarantinedError):
            await complete_if(running, upload_id, lines)
        assert running.origin.requests_of("CreateMultipartUpload") == 0


@pytest.mark.parametrize("operation", ["PutObject", "DeleteObject", "CompleteMultipartUpload"])
async def test_an_attempt_without_an_answer_is_told_so_and_is_not_repeated(operation: str) -> None:
    """On a pooled connection that turns out dead the first attempt may have taken effect; a second would be refused by it."""
    async with running_engine(flush=QUICK) as running:
        upload_id, lines = await upload(running, b"part")
        if operation == "DeleteObject":
            await place(running, "origin")
        running.origin.faults.add(Fault(operation=operation, drop="after"))

        attempt: Awaitable[object]
        if operation == "PutObject":
            attempt = put_if(running, b"mine", ABSENT)
        elif operation == "DeleteObject":
            attempt = delete_if(running, (("if-match", "*"),))
        else:
            attempt = complete_if(running, upload_id, lines)
        with pytest.raises(OriginUnavailableError) as raised:
            await attempt

        assert raised.value.outcome_unknown
        assert running.origin.requests_of(operation) == 1
        assert at_origin(running) == {"PutObject": b"mine", "DeleteObject": None}.get(operation, b"part")


# --- Completes of uploads that are kept here --------------------------------------------------------------------------


async def test_conditional_complete_makes_the_object_at_the_origin_and_leaves_nothing_behind() -> None:
    """Parts, metadata and boundaries are the client's; a repeated Complete is answered without the origin."""
    async with running_engine(flush=QUICK) as running:
        request = UploadRequest(
            NAME, headers=(("content-type", "text/x"),), user_metadata=(("a", "b"),), tags="t=1"
        )
        upload_id, _ = await running.engine.create_upload(request)
        first, second = b"x" * (5 * MIB), b"y"
        lines = []
        # Numbers with gaps, and one part that the Complete does not name.
        for number, data in ((2, first), (5, b"not named"), (9, second)):
            part = await running.engine.upload_part(NAME, upload_id, number, BytesContent(data))
            lines.append(CompletedPart(number, part.etag))
        lines = [lines[0], lines[2]]

        made = await complete_if(running, upload_id, lines)
        stored = running.origin.store.buckets[BUCKET].objects["k"]
        asked = len(running.origin.log)
        again = await complete_if(running, upload_id, lines)

        assert (again.etag, again.last_modified_s) == (made.etag, made.last_modified_s)
        assert len(running.origin.log) == asked
        assert (stored.body, stored.etag, stored.tags) == (first + second, made.etag, "t=1")
        assert (stored.headers["content-type"], stored.headers["x-amz-meta-a"]) == ("text/x", "b")
        assert stored.part_sizes == (5 * MIB, 1)
        assert not running.origin.store.uploads
        assert running.engine.status().open_uploads == running.engine.status().cache_dirty_bytes == 0
        assert (await running.get("k")).data == first + second
        with pytest.raises(NoSuchUploadError):
            await running.engine.abort_upload(NAME, upload_id)


async def test_refused_complete_leaves_the_upload_open() -> None:
    """412 and 404 before a part is sent; afterwards the same upload is completed, or aborted, and nothing stays at the origin."""
    async with running_engine(flush=QUICK) as running:
        await place(running, "origin")
        upload_id, lines = await upload(running, b"part")
        other_id, other_lines = await upload(running, b"other")
        with pytest.raises(OriginRefusedError):
            await complete_if(running, upload_id, lines)
        assert running.origin.requests_of("CreateMultipartUpload") == 0
        running.origin.store._delete(BUCKET, "k")
        with pytest.raises(NoSuchKeyError):
            await complete_if(running, upload_id, lines, (("if-match", "*"),))
        assert len((await running.engine.list_parts(NAME, upload_id, part_marker=0, max_parts=9)).parts) == 1

        running.origin.faults.add(
            Fault(operation="CompleteMultipartUpload", status=409, code="ConditionalRequestConflict")
        )
        with pytest.raises(OriginError) as conflict:
            await complete_if(running, upload_id, lines)
        assert (conflict.value.status, to_s3_error(conflict.value).code) == (
            409,
            "ConditionalRequestConflict",
        )
        running.origin.faults.add(
            Fault(operation="CompleteMultipartUpload", status=412, code="PreconditionFailed")
        )
        with pytest.raises(OriginRefusedError):
            await complete_if(running, other_id, other_lines)
        await running.engine.abort_upload(NAME, other_id)
        await complete_if(running, upload_id, lines)

        assert (await running.get("k")).data == b"part"
        await until(lambda: not running.origin.store.uploads)


async def test_complete_behind_a_conflict_is_of_another_upload() -> None:
    """AWS API_CompleteMultipartUpload: open another, and send the parts again. However long the first one takes to end."""
    async with running_engine(flush=QUICK) as running:
        upload_id, lines = await upload(running, b"part")
        running.origin.faults.add(
            Fault(operation="CompleteMultipartUpload", status=409, code="ConditionalRequestConflict")
        )
        running.origin.faults.add(Fault(operation="AbortMultipartUpload", status=503, code="SlowDown"))
        with pytest.raises(OriginError):
            await complete_if(running, upload_id, lines)
        (first,) = running.origin.store.uploads
        await complete_if(running, upload_id, lines)

        assert at_origin(running) == b"part"
        assert running.origin.requests["CreateMultipartUpload"] == 2
        assert tuple(running.origin.store.uploads) in {(first,), ()}
        await until(lambda: not running.origin.store.uploads)


async def test_unconditional_complete_goes_on_behind_a_refused_conditional_one() -> None:
    """What the refused one has sent is the same upload's, so nothing is lost and nothing is left."""
    async with running_engine(flush=QUICK) as running:
        upload_id, lines = await upload(running, b"part")
        running.origin.faults.add(
            Fault(operation="CompleteMultipartUpload", status=412, code="PreconditionFailed")
        )
        with pytest.raises(OriginRefusedError):
            await complete_if(running, upload_id, lines)
        await running.engine.complete_upload(NAME, upload_id, lines)
        await until(lambda: at_origin(running) == b"part")

        await until(lambda: not running.origin.store.uploads)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_repeated_complete_is_not_refused_by_its_own_first_attempt(*, is_killed: bool) -> None:
    """The first one took effect and its answer was lost, or the process with it: the second says success."""
    async with running_engine(flush=QUICK) as running:
        upload_id, lines = await upload(running, b"part")
        running.origin.faults.add(Fault(operation="CompleteMultipartUpload", drop="after"))
        with pytest.raises(OriginUnavailableError):
            await complete_if(running, upload_id, lines)
        if is_killed:
            filesystem, home = running.stop_uncleanly()
            async with running_engine(
                origin=running.origin, filesystem=filesystem, index_home=home, flush=QUICK
            ) as next_:
                made = await complete_if(next_, upload_id, lines)
                assert next_.engine.status().open_uploads == 0
        else:
            made = await complete_if(running, upload_id, lines)

        assert made.etag == running.origin.store.buckets[BUCKET].objects["k"].etag
        assert len(running.origin.store.etags(BUCKET, "k")) == 1


async def test_early_flush_keeps_the_evidence_that_a_killed_process_completed() -> None:
    """Its upload at the origin is gone, which the next process finds when it would go on with it; the repetition is a success."""
    early = EarlyFlushSettings(bytes_min=2 * 5 * MIB, settle_s=0.0, look_again_s=0.01)
    async with running_engine(flush=QUICK, early=early) as running:
        upload_id, lines = await upload(running, b"x" * (5 * MIB), b"y" * (5 * MIB), b"z")
        await until(lambda: running.engine.status().early_bytes > 10 * MIB)
        running.origin.faults.add(Fault(operation="CompleteMultipartUpload", drop="after"))
        assert isinstance(await outcome(complete_if(running, upload_id, lines)), OriginUnavailableError)
        filesystem, home = running.stop_uncleanly()
        running.origin.log.clear()
        async with running_engine(
            origin=running.origin, filesystem=filesystem, index_home=home, flush=QUICK, early=early
        ) as next_:
            await until(lambda: any(one.operation == "ListParts" for one in running.origin.log))
            await turns()
            made = await complete_if(next_, upload_id, lines)

        assert made.etag == running.origin.store.buckets[BUCKET].objects["k"].etag
        assert len(running.origin.store.etags(BUCKET, "k")) == 1


async def test_complete_waits_for_what_the_early_flush_has_begun() -> None:
    """The upload that is being opened at the origin is the one that is completed, and not replaced under the Complete."""
    early = EarlyFlushSettings(bytes_min=5 * MIB, settle_s=0.0, look_again_s=0.01)
    async with running_engine(flush=QUICK, early=early) as running:
        gate = running.origin.hold("POST", f"{BUCKET}/k")
        upload_id, lines = await upload(running, b"x" * (5 * MIB), b"y")
        await gate.reached.wait()
        completing = start(complete_if(running, upload_id, lines))
        await turns()
        gate.open()
        await completing

        assert at_origin(running) == b"x" * (5 * MIB) + b"y"
        assert running.origin.requests_of("CreateMultipartUpload") == 1
        assert not running.origin.store.uploads


async def test_complete_that_lands_late_under_its_repetition_is_a_success() -> None:
    """The first attempt takes effect between the second one's look and its Complete."""
    async with running_engine(flush=QUICK) as running:
        upload_id, lines = await upload(running, b"part")
        running.origin.faults.add(Fault(operation="CompleteMultipartUpload", drop="before"))
        with pytest.raises(OriginUnavailableError):
            await complete_if(running, upload_id, lines)
        # Carried out, and answered as if its condition did not hold: what a second one meets when the first has just landed.
        running.origin.faults.add(
            Fault(
                operation="CompleteMultipartUpload", status=412, code="PreconditionFailed", is_processed=True
            )
        )

        made = await complete_if(running, upload_id, lines)

        assert at_origin(running) == b"part"
        assert made.etag == running.origin.store.buckets[BUCKET].objects["k"].etag


async def test_abort_and_conditional_complete_have_one_outcome() -> None:
    """An Abort that meets a Complete under way waits for it, and finds no upload any more."""
    async with running_engine(flush=QUICK) as running:
        upload_id, lines = await upload(running, b"part")
        gate = running.origin.hold("POST", f"{BUCKET}/k")
        completing = start(complete_if(running, upload_id, lines))
        await gate.reached.wait()
        aborting = start(running.engine.abort_upload(NAME, upload_id))
        await turns()
        assert not aborting.done()
        gate.open()

        await completing
        with pytest.raises(NoSuchUploadError):
            await aborting
        assert at_origin(running) == b"part"


async def test_kill_at_any_request_keeps_what_was_acknowledged_and_repeats_to_one_object() -> None:
    """After a kill around each request of a conditional Complete, the repetition ends with the object and no upload of ours."""
    for number in range(20):
        async with running_engine(flush=QUICK) as running:
            upload_id, lines = await upload(running, b"a" * (5 * MIB), b"b")
            running.origin.log.clear()
            running.origin.faults.add(Fault(skip=number, times=1, drop="after"))
            ended = await outcome(complete_if(running, upload_id, lines))
            filesystem, home = running.stop_uncleanly()
            was_hit = running.origin.faults.hits > 0
            running.origin.faults.clear()
            async with running_engine(
                origin=running.origin, filesystem=filesystem, index_home=home, flush=QUICK
            ) as next_:
                made = await complete_if(next_, upload_id, lines)
                assert (await next_.get("k")).data == b"a" * (5 * MIB) + b"b"
                assert made.etag == (await next_.get("k")).etag
                assert len(running.origin.store.etags(BUCKET, "k")) == 1, number
                open_ours = [
                    one
                    for one in running.origin.store.uploads
                    if one in next_.engine._components.origin_uploads.ids()
                ]
                assert not open_ours
            if not was_hit:
                assert isinstance(ended, PutResult)
                return
    raise AssertionError("a Complete has fewer requests")
