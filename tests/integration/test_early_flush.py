"""Parts of open uploads on their way to the origin: a whole engine with the origin on the loopback."""

import asyncio
import copy
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from storage.early_flush import EarlyFlushSettings
from storage.errors import NoSuchUploadError
from storage.flush_events import FlushSettings
from storage.policy import Policy
from storage.requests import CompletedPart, UploadRequest
from storage.rows import read_origin_uploads
from storage.types import ChecksumType, ObjectName, WriteMode
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.origin_faults import Fault
from tests.fakes.origin_store import OriginStore
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.running_engine import BUCKET, BytesContent, FakeIndexHome, RunningEngine, running_engine
from tests.fakes.writing import (
    PART,
    complete,
    etag_of,
    flushed,
    head,
    md5,
    open_upload,
    pause,
    put_part,
    settled,
    until,
    upload,
)
from tests.integration.test_sender import crc32, object_checksums

QUICK = FlushSettings(origin_timeout_s=0.3, retry_s_min=0.02, retry_s_max=0.1)
EARLY = EarlyFlushSettings(
    bytes_min=2 * PART, settle_s=0.0, retry_s_min=0.02, retry_s_max=0.1, look_again_s=0.01
)
NAME = ObjectName(BUCKET, "k")
BODIES = {number: bytes([number]) * PART for number in (1, 2, 3)}
WHOLE = b"".join(BODIES.values())


async def parts_sent(running: RunningEngine, size: int = len(WHOLE)) -> None:
    """Wait until the origin has so much of the open uploads."""
    await until(lambda: running.engine.status().early_bytes == size)


async def begun(running: RunningEngine, bodies: dict[int, bytes] = BODIES, key: str = "k") -> str:
    """Open an upload and send parts; give its id."""
    upload_id = await open_upload(running, key)
    for number, body in bodies.items():
        await put_part(running, key, upload_id, number, body)
    return upload_id


def known(running: RunningEngine) -> set[str]:
    """Name the uploads at the origin that the index knows as ours."""
    return {one.origin_upload_id for one in read_origin_uploads(running.engine._recovered.index)}


async def nothing_left(running: RunningEngine) -> None:
    """Wait until no upload is open at the origin, and none is known."""
    await until(lambda: not running.origin.store.uploads and not known(running))
    await until(lambda: not running.engine._components.flusher.origin_upload_ids())


# --- what it is for -----------------------------------------------------------------------------------------------------


async def test_complete_sends_only_what_the_origin_lacks() -> None:
    """Parts travel while the upload is open; after its Complete the rest follows, and one Complete."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        upload_id = await begun(running)
        await parts_sent(running)
        sent_early = running.origin.requests_of("UploadPart")
        await put_part(running, "k", upload_id, 4, b"rest")
        made = await complete(running, "k", upload_id, {**BODIES, 4: b"rest"})
        await flushed(running)

        assert sent_early == 3
        assert running.origin.requests_of("UploadPart") == 4
        assert running.origin.requests_of("CreateMultipartUpload") == 1
        assert running.origin.requests_of("CompleteMultipartUpload") == 1
        stored = running.origin.store.buckets[BUCKET].objects["k"]
        assert (stored.body, stored.etag) == (WHOLE + b"rest", made.etag)
        assert (await head(running, "k")).last_modified_s == made.last_modified_s
        await nothing_left(running)


async def test_client_sees_nothing_of_it() -> None:
    """Answers, ListParts and ListMultipartUploads are what they are without it, and nothing is to be seen of the object."""
    seen: list[object] = []
    for settings in (EARLY, EarlyFlushSettings(bytes_min=None)):
        async with running_engine(flush=QUICK, early=settings) as running:
            upload_id = await begun(running)
            if settings is EARLY:
                await parts_sent(running)
            parts = await running.engine.list_parts(NAME, upload_id, part_marker=0, max_parts=10)
            uploads = await running.engine.list_uploads(
                BUCKET, prefix="", delimiter="", key_marker="", upload_id_marker="", max_uploads=10
            )
            assert [one.upload_id for one in uploads.uploads] == [upload_id]
            assert "k" not in running.origin.store.buckets[BUCKET].objects
            seen.append([(part.number, part.size, part.etag) for part in parts.parts])
            made = await complete(running, "k", upload_id, BODIES)
            seen.append([made.etag, (await running.get("k")).data == WHOLE])

    assert seen[:2] == seen[2:]


async def test_part_replaced_after_it_was_sent_is_sent_again() -> None:
    """The origin ends with the part as it was last sent, whether that travelled before the Complete or after it."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        upload_id = await begun(running)
        await parts_sent(running)
        await put_part(running, "k", upload_id, 2, b"x" * PART)
        await parts_sent(running)
        # Nothing travels from here on before the Complete.
        running.use(Policy(write=WriteMode.THROUGH))
        await put_part(running, "k", upload_id, 1, b"y" * PART)
        wanted = {1: b"y" * PART, 2: b"x" * PART, 3: BODIES[3]}

        made = await complete(running, "k", upload_id, wanted)
        await flushed(running)

        stored = running.origin.store.buckets[BUCKET].objects["k"]
        assert (stored.body == b"".join(wanted.values()), stored.etag) == (True, made.etag)
        assert running.origin.requests_of("CreateMultipartUpload") == 1


async def test_parts_that_the_complete_does_not_name_are_dropped() -> None:
    """A part more than the object has does no harm at the origin."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        upload_id = await begun(running)
        await parts_sent(running)

        await complete(running, "k", upload_id, {1: BODIES[1], 2: BODIES[2]})
        await flushed(running)

        assert running.origin.store.body(BUCKET, "k") == BODIES[1] + BODIES[2]
        assert running.origin.requests_of("UploadPart") == 3
        await nothing_left(running)


async def test_complete_whose_numbers_have_gaps_is_sent_anew_under_numbers_without() -> None:
    """AWS takes gaps only of uploads without checksums: what was sent is ended, and the flush numbers from 1 on."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        upload_id = await begun(running)
        await parts_sent(running)

        await complete(running, "k", upload_id, {1: BODIES[1], 3: BODIES[3]})
        await flushed(running)
        await nothing_left(running)

        numbers = [one.query["partNumber"] for one in running.origin.log if one.operation == "UploadPart"]
        assert sorted(numbers) == ["1", "1", "2", "2", "3"]
        assert running.origin.store.body(BUCKET, "k") == BODIES[1] + BODIES[3]


@pytest.mark.parametrize("kind", list(ChecksumType))
async def test_checksums_are_the_clients_own(kind: ChecksumType) -> None:
    """The upload at the origin is opened for the checksum that the client chose, and each part carries it."""
    async with running_engine(flush=QUICK, early=EARLY, object_checksums=object_checksums) as running:
        upload_id, _ = await running.engine.create_upload(
            UploadRequest(NAME, checksum_algorithm="CRC32", checksum_type=kind.value)
        )
        for number, body in BODIES.items():
            await running.engine.upload_part(NAME, upload_id, number, BytesContent(body, (crc32(body),)))
        await parts_sent(running)
        lines = [CompletedPart(number, md5(body), (crc32(body),)) for number, body in BODIES.items()]
        made = await running.engine.complete_upload(NAME, upload_id, lines)
        await flushed(running)

        stored = running.origin.store.buckets[BUCKET].objects["k"]
        assert (stored.checksums, stored.checksum_type) == ({"crc32": made.checksums[0].value}, kind.value)
        assert running.origin.requests_of("CreateMultipartUpload") == 1
        assert running.origin.requests_of("UploadPart") == 3


async def test_flush_waits_for_a_part_that_is_under_way() -> None:
    """A Complete in the middle of a part's journey neither sends it twice nor completes without it."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        gate = running.origin.hold("PUT", "bucket/k")
        upload_id = await begun(running)
        await gate.reached.wait()
        await complete(running, "k", upload_id, BODIES)
        await pause(0.1)
        asked_early = running.origin.requests_of("ListParts")
        gate.open()
        await flushed(running)

        assert asked_early == 0
        assert running.origin.requests_of("UploadPart") == 3
        assert running.origin.store.body(BUCKET, "k") == WHOLE


# --- when it is not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "policy", [Policy(flush_delay_s=0.2), Policy(write=WriteMode.THROUGH)], ids=["delayed", "through"]
)
async def test_nothing_travels_when_the_policy_holds_writes_back_or_sends_them_through(
    policy: Policy,
) -> None:
    """What may never have to be sent is not sent early; nor is what was to be written through by now."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        upload_id = await open_upload(running, "k")
        running.use(policy)
        for number, body in BODIES.items():
            await put_part(running, "k", upload_id, number, body)
        await pause(0.1)
        before = running.origin.requests_of("CreateMultipartUpload")
        await complete(running, "k", upload_id, BODIES)
        await flushed(running)

        assert before == 0
        assert running.origin.store.body(BUCKET, "k") == WHOLE


async def test_small_upload_costs_no_request_before_its_complete() -> None:
    """Below the size nothing is opened at the origin."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        await begun(running, {1: BODIES[1], 2: b"less"})
        await pause(0.1)

        assert running.origin.requests_of("CreateMultipartUpload") == 0


# --- how an upload ends -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("failures", [0, 2])
async def test_abort_leaves_nothing_at_the_origin(failures: int) -> None:
    """An aborted upload is aborted there too, again where that fails at first; the client does not wait for it."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        upload_id = await begun(running)
        await parts_sent(running)
        running.origin.faults.add(
            Fault(operation="AbortMultipartUpload", times=failures, status=503, code="SlowDown")
        )

        await running.engine.abort_upload(NAME, upload_id)
        await nothing_left(running)

        assert running.origin.requests_of("AbortMultipartUpload") == failures + 1
        assert running.engine.status().cache_dirty_bytes == 0


async def test_abort_in_the_middle_of_an_opening_and_of_parts_leaves_nothing() -> None:
    """Whenever the client gives up, what was opened at the origin ends there."""
    for method in ("POST", "PUT"):
        async with running_engine(flush=QUICK, early=EARLY) as running:
            gate = running.origin.hold(method, "bucket/k")
            upload_id = await begun(running)
            await gate.reached.wait()
            await running.engine.abort_upload(NAME, upload_id)
            gate.open()

            await nothing_left(running)
            assert running.origin.requests_of("CreateMultipartUpload") == 1


async def test_expired_upload_leaves_nothing_at_the_origin() -> None:
    """An upload that nobody goes on with ends there when it ends here."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        await begun(running)
        await parts_sent(running)
        running.clock.ahead_s = 100.0

        assert await running.engine._components.uploads.expire(upload_ttl_s=50.0) == 1
        await nothing_left(running)


@pytest.mark.parametrize("how", ["put", "discard"])
async def test_superseded_or_discarded_object_leaves_nothing_at_the_origin(how: str) -> None:
    """An object that took over what had travelled gives it up when it is overwritten, or given up itself."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        upload_id = await begun(running)
        await parts_sent(running)
        running.origin.faults.add(
            Fault(operation="CompleteMultipartUpload", times=-1, status=400, code="EntityTooLarge")
        )
        await complete(running, "k", upload_id, BODIES)
        await settled(running)

        if how == "put":
            await running.put("k", b"new")
            await flushed(running)
        else:
            (refused,) = running.engine.status().quarantined
            assert await running.engine.discard_quarantined(BUCKET, "k", refused.sequence) == 1

        await nothing_left(running)
        assert running.origin.store.body(BUCKET, "k") == (b"new" if how == "put" else None)


@pytest.mark.parametrize("how", ["abort", "put"])
async def test_what_a_killed_process_left_at_the_origin_is_ended_by_the_next(how: str) -> None:
    """A kill between the end of an upload, or of its object, and the abort at the origin leaves nothing behind."""
    async with PausedOrigin() as origin:
        async with running_engine(origin=origin, flush=QUICK, early=EARLY) as before:
            upload_id = await begun(before)
            await parts_sent(before)
            origin.faults.add(Fault(operation="AbortMultipartUpload", times=-1, drop="before"))
            if how == "abort":
                await before.engine.abort_upload(NAME, upload_id)
            else:
                origin.faults.add(
                    Fault(operation="CompleteMultipartUpload", times=-1, status=503, code="SlowDown")
                )
                await complete(before, "k", upload_id, BODIES)
                await until(lambda: origin.requests_of("CompleteMultipartUpload") > 0)
                await before.put("k", b"new")
            disk, index_home = before.stop_uncleanly()
        assert len(origin.store.uploads) == 1
        origin.faults.clear()

        async with running_engine(
            origin=origin, filesystem=disk, index_home=index_home, flush=QUICK, early=EARLY
        ) as after:
            await flushed(after)
            await nothing_left(after)

            assert origin.store.body(BUCKET, "k") == (None if how == "abort" else b"new")


# --- what goes wrong ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_completed", [False, True])
async def test_upload_that_somebody_ends_at_the_origin_is_begun_anew(*, is_completed: bool) -> None:
    """A lifecycle rule or another tool may end ours, before the Complete or after it: the object arrives all the same."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        upload_id = await begun(running)
        await parts_sent(running)
        running.origin.store.uploads.clear()
        if not is_completed:
            await put_part(running, "k", upload_id, 4, b"x" * PART)
            await parts_sent(running, 4 * PART)
        wanted = BODIES if is_completed else {**BODIES, 4: b"x" * PART}

        made = await complete(running, "k", upload_id, wanted)
        await flushed(running)

        stored = running.origin.store.buckets[BUCKET].objects["k"]
        assert made.etag == stored.etag == etag_of(list(wanted.values()))
        assert running.origin.requests_of("CreateMultipartUpload") == 2
        await nothing_left(running)


async def test_part_that_landed_late_over_a_newer_one_costs_another_upload_and_no_quarantine() -> None:
    """The origin refuses a Complete whose part is another one by then; all is sent again from the local parts."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        upload_id = await begun(running)
        await parts_sent(running)
        gate = running.origin.hold("GET", "bucket/k")
        await complete(running, "k", upload_id, BODIES)
        await gate.reached.wait()
        (theirs,) = running.origin.store.uploads.values()
        theirs.parts[2] = theirs.parts[1]
        gate.open()
        report = await flushed(running)

        assert report.is_reached
        assert running.origin.store.body(BUCKET, "k") == WHOLE
        await nothing_left(running)


@pytest.mark.parametrize(
    "refusal", [(501, "NotImplemented"), (403, "AccessDenied"), (405, "MethodNotAllowed")]
)
async def test_object_arrives_when_the_origin_does_not_tell_what_it_has(refusal: tuple[int, str]) -> None:
    """A key that may not list parts, or an origin that cannot, costs a second journey of the parts and nothing else."""
    status, code = refusal
    async with running_engine(flush=QUICK, early=EARLY) as running:
        running.origin.faults.add(Fault(operation="ListParts", times=-1, status=status, code=code))
        upload_id = await begun(running)
        await parts_sent(running)

        await complete(running, "k", upload_id, BODIES)
        report = await flushed(running)

        assert report.is_reached
        assert running.origin.requests_of("UploadPart") == 6
        assert running.origin.store.body(BUCKET, "k") == WHOLE
        assert running.engine.status().suspended_buckets == ()


async def test_upload_is_acknowledged_as_before_when_the_origin_is_down() -> None:
    """Nothing waits for the origin but the flush, which sends all when it is back."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        await running.put("warm", b"facts are known")
        await flushed(running)
        running.origin.faults.add(Fault(times=-1, drop="before"))

        made = await upload(running, "k", list(BODIES.values()))
        assert (await running.get("k")).data == WHOLE
        running.origin.faults.clear()
        await flushed(running)

        assert running.origin.store.buckets[BUCKET].objects["k"].etag == made.etag
        await nothing_left(running)


@pytest.mark.slow
async def test_early_flush_backs_off_and_gives_up_when_the_origin_throttles() -> None:
    """A throttled origin gets a handful of requests, and then none until the Complete."""
    slow = EarlyFlushSettings(bytes_min=2 * PART, settle_s=0.0, retry_s_min=0.02, retry_s_max=0.1)
    async with running_engine(flush=QUICK, early=slow) as running:
        running.origin.faults.add(
            Fault(operation="CreateMultipartUpload", times=-1, status=503, code="SlowDown")
        )
        upload_id = await begun(running)
        await until(lambda: running.origin.requests_of("CreateMultipartUpload") == slow.failures_max)
        await put_part(running, "k", upload_id, 4, b"x" * PART)
        await pause(0.5)
        tried = running.origin.requests_of("CreateMultipartUpload")
        running.origin.faults.clear()
        await complete(running, "k", upload_id, {**BODIES, 4: b"x" * PART})
        await flushed(running, timeout_s=60.0)

        assert tried == slow.failures_max
        assert running.origin.store.body(BUCKET, "k") == WHOLE + b"x" * PART


async def test_failed_parts_are_tried_again_and_counted() -> None:
    """A part that fails costs itself."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        running.origin.faults.add(Fault(operation="UploadPart", skip=1, times=1, status=500))
        await begun(running)
        await parts_sent(running)

        assert running.engine.stats.early_parts == {"sent": 3, "failed": 1}
        await until(lambda: running.engine.stats.early_bytes == len(WHOLE))
        assert running.engine.status().open_upload_bytes == len(WHOLE)


# --- crashes ------------------------------------------------------------------------------------------------------------


@dataclass
class Crash:
    """All there is at one moment: disk, index and origin."""

    disk: FakeFilesystem
    index_home: FakeIndexHome
    store: OriginStore


async def crashes_of(scenario: Callable[[RunningEngine], object]) -> list[Crash]:
    """Run something, and give what a kill would leave after each sync of the journal, and between them now and then."""
    crashes: list[Crash] = []
    async with running_engine(filesystem=FakeFilesystem(), flush=QUICK, early=EARLY) as running:
        loop = asyncio.get_running_loop()

        def look() -> None:
            disk, index_home = running.stop_uncleanly()
            crashes.append(Crash(disk, index_home, copy.deepcopy(running.origin.store)))

        def synced(path: str) -> None:
            if path.startswith("journal/"):
                loop.call_soon_threadsafe(look)

        assert isinstance(running.filesystem, FakeFilesystem)
        running.filesystem.on_sync = synced
        await scenario(running)  # type: ignore[misc]  # it is a coroutine function
        running.filesystem.on_sync = lambda _path: None
        look()
    return crashes


async def go_on(crash: Crash, finish: Callable[[RunningEngine], object]) -> tuple[OriginStore, bool]:
    """Start from a crash, let the client finish, and give the origin's state at the end, and whether anything of ours is left."""
    async with PausedOrigin() as origin:
        origin.store = crash.store
        async with running_engine(
            origin=origin, filesystem=crash.disk, index_home=crash.index_home, flush=QUICK, early=EARLY
        ) as running:
            await finish(running)  # type: ignore[misc]  # it is a coroutine function
            await flushed(running)
            await until(lambda: not known(running))
        return origin.store, any(one.parts for one in origin.store.uploads.values())


async def transfer(running: RunningEngine) -> None:
    """Upload an object, some of which travels before its Complete."""
    upload_id = await begun(running)
    await parts_sent(running)
    await put_part(running, "k", upload_id, 2, b"x" * PART)
    await complete(running, "k", upload_id, {**BODIES, 2: b"x" * PART})
    await flushed(running)


async def finish_transfer(running: RunningEngine) -> None:
    """Go on with the open upload where there is one; what was completed is there."""
    uploads = running.engine._components.uploads.open_uploads(BUCKET)
    if not uploads:
        return
    (one,) = uploads
    for number, body in {**BODIES, 2: b"x" * PART}.items():
        await put_part(running, "k", one.upload_id, number, body)
    await complete(running, "k", one.upload_id, {**BODIES, 2: b"x" * PART})


async def give_up(running: RunningEngine) -> None:
    """Upload parts, wait until they have travelled, and abort."""
    upload_id = await begun(running)
    await parts_sent(running)
    await running.engine.abort_upload(NAME, upload_id)
    await nothing_left(running)


async def finish_giving_up(running: RunningEngine) -> None:
    """Abort the upload where it is open."""
    for one in running.engine._components.uploads.open_uploads(BUCKET):
        await running.engine.abort_upload(NAME, one.upload_id)


@pytest.mark.slow
async def test_upload_arrives_whole_and_leaves_nothing_when_the_process_is_killed_at_any_sync() -> None:
    """Wherever the process dies the upload goes on, the object is right, and no part of ours stays at the origin."""
    crashes = await crashes_of(transfer)
    wanted = BODIES[1] + b"x" * PART + BODIES[3]

    for crash in crashes:
        store, has_left = await go_on(crash, finish_transfer)

        assert not has_left
        assert store.body(BUCKET, "k") in {wanted, None}
        assert store.body(BUCKET, "k") == wanted or crash is crashes[0]
    assert len(crashes) >= 8


@pytest.mark.slow
async def test_aborted_upload_leaves_nothing_when_the_process_is_killed_at_any_sync() -> None:
    """Wherever the process dies, what had travelled of an upload that its client gives up goes away."""
    crashes = await crashes_of(give_up)

    for crash in crashes:
        store, has_left = await go_on(crash, finish_giving_up)

        assert not has_left
        assert store.body(BUCKET, "k") is None
    assert len(crashes) >= 6


async def test_upload_opened_at_the_origin_too_late_is_ended() -> None:
    """The client's upload may end between the opening and its record: nothing goes on with it, and it ends."""
    async with running_engine(flush=QUICK, early=EARLY) as running:
        gate = running.origin.hold("POST", "bucket/k")
        upload_id = await begun(running)
        await gate.reached.wait()
        await complete(running, "k", upload_id, BODIES)
        await flushed(running)
        gate.open()

        await nothing_left(running)
        assert running.origin.store.body(BUCKET, "k") == WHOLE
        with pytest.raises(NoSuchUploadError):
            await running.engine.abort_upload(NAME, upload_id)
