"""S3 uploads that the gateway keeps, on a whole engine with the origin on the loopback."""

import asyncio
import random
import threading
from collections.abc import Sequence

import pytest

from storage.errors import (
    InvalidPartError,
    InvalidPartOrderError,
    NoSuchKeyError,
    NoSuchUploadError,
    OverloadedError,
    PartTooSmallError,
    StorageError,
)
from storage.flush_events import FlushSettings
from storage.policy import Policy
from storage.requests import CompletedPart, PutResult, UploadRequest
from storage.types import KIB, MIB, ObjectName
from storage.uploads import COMPLETED_KEPT_S
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.running_engine import BUCKET, Got, RunningEngine, running_engine
from tests.fakes.writing import (
    PART,
    BrokenContent,
    complete,
    delete,
    etag_of,
    flushed,
    listed,
    md5,
    open_upload,
    pause,
    put_part,
    until,
    upload,
)

QUICK = FlushSettings(origin_timeout_s=0.6, retry_s_min=0.02, retry_s_max=0.1)
NAME = ObjectName(BUCKET, "k")


async def numbers(running: RunningEngine, upload_id: str) -> list[tuple[int, int]]:
    """List the parts of an upload of `NAME`: number and size."""
    page = await running.engine.list_parts(NAME, upload_id, part_marker=0, max_parts=1000)
    return [(part.number, part.size) for part in page.parts]


async def complete_lines(
    running: RunningEngine, upload_id: str, lines: Sequence[tuple[int, str]]
) -> PutResult:
    """Complete an upload of `NAME` with these numbers and ETags."""
    return await running.engine.complete_upload(
        NAME, upload_id, [CompletedPart(number, etag) for number, etag in lines]
    )


# --- the list of a Complete (B19) ---------------------------------------------------------------------------------------


async def test_complete_takes_parts_by_number_whatever_their_order_and_gaps() -> None:
    """Parts 7, 2, 5 and 1 come in that order; a Complete of 2, 5 and 7 makes an object of those, in order."""
    async with running_engine(flush=QUICK) as running:
        upload_id = await open_upload(running, "k")
        bodies = {number: bytes([number]) * PART for number in (7, 2, 5, 1)}
        for number, body in bodies.items():
            await put_part(running, "k", upload_id, number, body)
        wanted = [bodies[number] for number in (2, 5, 7)]

        made = await complete(running, "k", upload_id, {number: bodies[number] for number in (2, 5, 7)})

        assert made.etag == etag_of(wanted)
        assert (await running.get("k")).data == b"".join(wanted)
        await flushed(running)
        assert running.origin.store.body(BUCKET, "k") == b"".join(wanted)
        assert running.origin.store.buckets[BUCKET].objects["k"].etag == made.etag


async def test_twelve_parts_in_random_order_sort_by_number_and_not_as_text() -> None:
    """Part 10 comes behind part 2."""
    async with running_engine(flush=QUICK) as running:
        upload_id = await open_upload(running, "k")
        bodies = {number: bytes([number]) * PART for number in range(1, 13)}
        shuffled = list(bodies)
        random.Random(1).shuffle(shuffled)
        async with asyncio.TaskGroup() as group:
            for number in shuffled:
                group.create_task(put_part(running, "k", upload_id, number, bodies[number]))

        made = await complete(running, "k", upload_id, bodies)

        assert made.etag == etag_of(list(bodies.values()))
        assert numbers_in(await running.get("k")) == list(range(1, 13))


def numbers_in(got: Got) -> list[int]:
    """Read the part numbers that the bytes of an object tell."""
    return [got.data[start] for start in range(0, len(got.data), PART)]


@pytest.mark.parametrize(
    ("lines", "error"),
    [
        ([(2, "b"), (1, "a")], InvalidPartOrderError),
        ([(1, "a"), (1, "a")], InvalidPartOrderError),
        ([(1, "a"), (2, "wrong")], InvalidPartError),
        ([(1, "a"), (9, "b")], InvalidPartError),
        ([], InvalidPartError),
        ([(3, "c"), (4, "d")], PartTooSmallError),
    ],
)
async def test_refused_complete_leaves_the_upload_open(
    lines: list[tuple[int, str]], error: type[StorageError]
) -> None:
    """Wrong order, duplicates, a wrong ETag, a missing part, no part, a small first part: told, and the upload goes on."""
    async with running_engine() as running:
        upload_id = await open_upload(running, "k")
        bodies = {1: b"a" * PART, 2: b"b" * PART, 3: b"c", 4: b"d"}
        for number, body in bodies.items():
            await put_part(running, "k", upload_id, number, body)
        etags = {chr(body[0]): md5(body) for body in bodies.values()}

        with pytest.raises(error):
            await complete_lines(
                running, upload_id, [(number, etags.get(name, name * 16)) for number, name in lines]
            )

        with pytest.raises(NoSuchKeyError):
            await running.get("k")
        assert (await complete(running, "k", upload_id, {1: bodies[1], 3: bodies[3]})).etag
        assert (await running.get("k")).data == bodies[1] + bodies[3]


async def test_upload_is_invisible_until_it_is_completed() -> None:
    """Neither GET nor LIST shows a half-done upload; the object that is there stays."""
    async with running_engine() as running:
        await running.put("k", b"old")
        upload_id = await open_upload(running, "k")
        await put_part(running, "k", upload_id, 1, b"new")

        assert (await running.get("k")).data == b"old"
        await complete(running, "k", upload_id, {1: b"new"})
        assert (await running.get("k")).data == b"new"
        assert [(entry.key, entry.etag) for entry in await listed(running)] == [("k", etag_of([b"new"]))]


async def test_empty_part_makes_an_empty_object() -> None:
    """An object of one empty part has no bytes and a multipart ETag, at the origin too."""
    async with running_engine(flush=QUICK) as running:
        made = await upload(running, "k", [b""])
        await flushed(running)

        assert made.etag == etag_of([b""])
        assert (await running.get("k")).data == b""
        assert running.origin.store.buckets[BUCKET].objects["k"].etag == made.etag


# --- parts sent twice, two uploads (B20) --------------------------------------------------------------------------------


async def test_part_sent_again_replaces_the_one_before() -> None:
    """B20: the last part of a number wins, is listed once with its own size, and the old one's ETag is refused."""
    async with running_engine() as running:
        upload_id = await open_upload(running, "k")
        await put_part(running, "k", upload_id, 1, b"x" * (6 * MIB))
        await put_part(running, "k", upload_id, 1, b"y" * PART)
        await put_part(running, "k", upload_id, 2, b"z")

        assert await numbers(running, upload_id) == [(1, PART), (2, 1)]
        with pytest.raises(InvalidPartError):
            await complete(running, "k", upload_id, {1: b"x" * (6 * MIB), 2: b"z"})
        await complete(running, "k", upload_id, {1: b"y" * PART, 2: b"z"})
        assert (await running.get("k")).data == b"y" * PART + b"z"
        assert running.engine.status().cache_dirty_bytes <= PART + 1


async def test_two_uploads_of_one_key_do_not_know_of_each_other() -> None:
    """Each has its own parts; the one that completes last is the object."""
    async with running_engine() as running:
        first, second = await open_upload(running, "k"), await open_upload(running, "k")
        await put_part(running, "k", first, 1, b"first")
        await put_part(running, "k", second, 1, b"second")

        await complete(running, "k", second, {1: b"second"})
        with pytest.raises(InvalidPartError):
            await complete(running, "k", first, {1: b"second"})
        await complete(running, "k", first, {1: b"first"})

        assert (await running.get("k")).data == b"first"


# --- how an upload ends -------------------------------------------------------------------------------------------------


async def test_repeated_complete_gives_the_same_answer_for_a_day() -> None:
    """A client whose connection broke completes again and hears the same, even after the object is gone (B11)."""
    async with running_engine(flush=QUICK) as running:
        upload_id = await open_upload(running, "k")
        await put_part(running, "k", upload_id, 1, b"body")
        made = await complete(running, "k", upload_id, {1: b"body"})

        again = await complete(running, "k", upload_id, {1: b"body"})
        await delete(running, "k")
        once_more = await complete(running, "k", upload_id, {1: b"body"})
        running.clock.ahead_s = COMPLETED_KEPT_S + 1
        await running.engine._components.uploads.expire(upload_ttl_s=1e9)

        assert (again, once_more) == (made, made)
        with pytest.raises(NoSuchKeyError):
            await running.get("k")
        with pytest.raises(NoSuchUploadError):
            await complete(running, "k", upload_id, {1: b"body"})


async def test_completed_upload_takes_no_more_parts_and_cannot_be_aborted() -> None:
    """An upload that has ended is none any more to all but a repeated Complete."""
    async with running_engine() as running:
        upload_id = await open_upload(running, "k")
        await put_part(running, "k", upload_id, 1, b"body")
        await complete(running, "k", upload_id, {1: b"body"})

        with pytest.raises(NoSuchUploadError):
            await put_part(running, "k", upload_id, 1, b"more")
        with pytest.raises(NoSuchUploadError):
            await running.engine.abort_upload(NAME, upload_id)
        with pytest.raises(NoSuchUploadError):
            await numbers(running, upload_id)
        assert running.engine.status().open_uploads == 0


async def test_abort_drops_the_parts_and_their_bytes() -> None:
    """An aborted upload is gone, and nothing of it counts as dirty."""
    async with running_engine() as running:
        upload_id = await open_upload(running, "k")
        await put_part(running, "k", upload_id, 1, b"x" * MIB)
        assert running.engine.status().cache_dirty_bytes == MIB

        await running.engine.abort_upload(NAME, upload_id)

        assert running.engine.status().cache_dirty_bytes == 0
        assert running.engine.status().open_uploads == 0
        with pytest.raises(NoSuchUploadError):
            await put_part(running, "k", upload_id, 2, b"x")


@pytest.mark.parametrize(
    "shape", ["{0}-1-0123456789abcdef", "{0}-\x00", "{0}-zz-0123456789abcdef", "nonsense", ""]
)
async def test_unknown_upload_is_told(shape: str) -> None:
    """An id of ours that was never given out, or one of nobody's, is NoSuchUpload and nothing worse."""
    async with running_engine() as running:
        upload_id = shape.format((await open_upload(running, "k")).partition("-")[0])

        with pytest.raises(NoSuchUploadError):
            await put_part(running, "k", upload_id or "gone", 1, b"x")


async def test_upload_belongs_to_its_key() -> None:
    """The id of one key's upload is unknown under another key."""
    async with running_engine() as running:
        upload_id = await open_upload(running, "k")

        with pytest.raises(NoSuchUploadError):
            await put_part(running, "other", upload_id, 1, b"x")


async def test_uploads_that_nobody_goes_on_with_expire() -> None:
    """After `upload_ttl` an open upload and its parts are dropped; a younger one stays."""
    async with running_engine() as running:
        old = await open_upload(running, "k")
        await put_part(running, "k", old, 1, b"x" * MIB)
        running.clock.ahead_s = 100
        young = await open_upload(running, "k")

        dropped = await running.engine._components.uploads.expire(upload_ttl_s=50)

        assert dropped == 1
        assert running.engine.status().cache_dirty_bytes == 0
        with pytest.raises(NoSuchUploadError):
            await put_part(running, "k", old, 1, b"x")
        await put_part(running, "k", young, 1, b"x")


# --- races --------------------------------------------------------------------------------------------------------------


async def test_complete_races_with_resent_parts_aborts_and_itself_without_harm() -> None:
    """Whatever runs into whatever, cancelled or not, the object is one list of parts whole, and the engine goes on."""
    rng = random.Random(11)
    bodies = [bytes([n]) * (20 * KIB + n * 30 * KIB) for n in range(6)]
    async with running_engine(flush=QUICK) as running:
        for turn in range(25):
            key = f"k{turn}"
            upload_id = await open_upload(running, key)
            await put_part(running, key, upload_id, 1, bodies[0])
            name = ObjectName(BUCKET, key)
            work = [
                *(put_part(running, key, upload_id, 1, rng.choice(bodies)) for _ in range(4)),
                *(complete(running, key, upload_id, {1: bodies[rng.randrange(2)]}) for _ in range(3)),
                *([running.engine.abort_upload(name, upload_id)] if turn % 3 == 0 else []),
            ]
            rng.shuffle(work)
            tasks: list[asyncio.Task[object]] = []
            for one in work:
                tasks.append(asyncio.get_running_loop().create_task(one))
                await pause(rng.random() * 0.002)
                if rng.random() < 0.4:
                    rng.choice(tasks).cancel()
            await asyncio.wait(tasks)

            made = {result.etag for task in tasks if (result := made_by(task)) is not None}
            failures = [task.exception() for task in tasks if not task.cancelled() and task.exception()]
            assert all(isinstance(failure, InvalidPartError | NoSuchUploadError) for failure in failures)
            assert len(made - {md5(body) for body in bodies}) <= 1
            try:
                data = (await running.get(key)).data
                assert data in bodies
            except NoSuchKeyError:
                assert not made - {md5(body) for body in bodies}

        await flushed(running)
        assert running.engine.status().is_writable
        assert running.engine._components.backlog.admitted_bytes == 0
        assert len(running.engine._components.queue) == 0


async def test_complete_waits_for_a_resent_part_whose_client_went_away_in_its_commit() -> None:
    """A part that is being made durable holds its upload, cancelled or not: a Complete sees it, never half of each."""
    disk, stuck, go_on = FakeFilesystem(), threading.Event(), threading.Event()

    def hold(path: str) -> None:
        if path.startswith("journal/"):
            stuck.set()
            assert go_on.wait(10)

    async with running_engine(filesystem=disk) as running:
        upload_id = await open_upload(running, "k")
        await put_part(running, "k", upload_id, 1, b"first")
        disk.on_sync = hold
        loop = asyncio.get_running_loop()
        resent = loop.create_task(put_part(running, "k", upload_id, 1, b"second and longer"))
        await until(stuck.is_set)

        resent.cancel()
        made = loop.create_task(complete(running, "k", upload_id, {1: b"first"}))
        await pause(0.02)
        go_on.set()

        with pytest.raises(InvalidPartError):
            await made
        with pytest.raises(asyncio.CancelledError):
            await resent
        assert await numbers(running, upload_id) == [(1, len(b"second and longer"))]
        await complete(running, "k", upload_id, {1: b"second and longer"})
        assert (await running.get("k")).data == b"second and longer"


def made_by(task: asyncio.Task[object]) -> PutResult | None:
    """Give what a task answered; None where it failed, was cancelled or answered nothing."""
    result = None if task.cancelled() or task.exception() is not None else task.result()
    return result if isinstance(result, PutResult) else None


async def test_put_and_complete_of_one_key_end_with_the_later_acknowledged() -> None:
    """An upload's Complete takes its place among the other writes of the key."""
    async with running_engine(flush=QUICK) as running:
        await upload(running, "k", [b"a" * PART, b"b"])
        await running.put("k", b"put")
        await upload(running, "k", [b"c" * PART, b"d"])
        await flushed(running)

        assert running.origin.store.body(BUCKET, "k") == b"c" * PART + b"d"
        await until(lambda: not running.origin.store.uploads)


# --- limits and failures ------------------------------------------------------------------------------------------------


async def test_part_that_breaks_off_is_not_recorded() -> None:
    """A part whose client went away is neither listed nor counted (B03)."""
    async with running_engine() as running:
        upload_id = await open_upload(running, "k")

        with pytest.raises(ValueError, match="gone"):
            await running.engine.upload_part(
                NAME, upload_id, 1, BrokenContent(2 * MIB, MIB, ValueError("gone"))
            )

        assert await numbers(running, upload_id) == []
        assert running.engine.status().cache_dirty_bytes == 0


async def test_part_is_told_to_slow_down_when_too_much_is_dirty() -> None:
    """Parts count as dirty from their acknowledgement on, and cannot go elsewhere: above the mark they are refused for now."""
    async with running_engine(dirty_bytes_limit=2 * MIB, dirty_wait_s=0.05) as running:
        upload_id = await open_upload(running, "k")
        await put_part(running, "k", upload_id, 1, b"x" * (2 * MIB))

        with pytest.raises(OverloadedError) as refused:
            await put_part(running, "k", upload_id, 2, b"x" * MIB)

        assert (refused.value.retry_after_s or 0) > 0
        assert await numbers(running, upload_id) == [(1, 2 * MIB)]


async def test_parts_push_clean_bytes_out_when_the_cache_is_full() -> None:
    """A cache full of clean bytes makes room for parts, as it does for puts."""
    async with running_engine(cache_bytes=16 * MIB, flush=QUICK) as running:
        for n in range(14):
            await running.put(f"clean{n}", bytes([n]) * MIB)
        await flushed(running)
        upload_id = await open_upload(running, "k")

        await put_part(running, "k", upload_id, 1, b"x" * (6 * MIB))
        await put_part(running, "k", upload_id, 2, b"y" * (3 * MIB))
        await complete(running, "k", upload_id, {1: b"x" * (6 * MIB), 2: b"y" * (3 * MIB)})

        assert (await running.get("k")).data == b"x" * (6 * MIB) + b"y" * (3 * MIB)


async def test_uploads_and_their_parts_survive_a_kill() -> None:
    """A killed gateway goes on with open uploads, keeps the answers of completed ones, and flushes what was acknowledged."""
    async with running_engine(policy=Policy(flush_delay_s=60)) as running:
        open_id = await open_upload(running, "open")
        await put_part(running, "open", open_id, 1, b"a" * PART)
        done_id = await open_upload(running, "k")
        await put_part(running, "k", done_id, 1, b"body")
        made = await complete(running, "k", done_id, {1: b"body"})
        disk, index_home = running.stop_uncleanly()

    async with running_engine(filesystem=disk, index_home=index_home, flush=QUICK) as running:
        await put_part(running, "open", open_id, 2, b"b")
        await complete(running, "open", open_id, {1: b"a" * PART, 2: b"b"})
        again = await complete(running, "k", done_id, {1: b"body"})
        await flushed(running)

        assert again == made
        assert running.origin.store.body(BUCKET, "open") == b"a" * PART + b"b"
        assert running.origin.store.body(BUCKET, "k") == b"body"


# --- uploads of the origin's own ----------------------------------------------------------------------------------------


async def test_upload_into_a_versioned_bucket_is_the_origins_own() -> None:
    """Parts, list, Complete and Abort of an upload that only the origin can answer are passed through."""
    async with running_engine() as running:
        running.origin.store.create_bucket("versioned", versioning="Enabled")
        name = ObjectName("versioned", "k")

        upload_id = await open_upload(running, "k", bucket="versioned")
        assert upload_id in running.origin.store.uploads
        await put_part(running, "k", upload_id, 1, b"a" * PART, bucket="versioned")
        await put_part(running, "k", upload_id, 2, b"b", bucket="versioned")
        page = await running.engine.list_parts(name, upload_id, part_marker=1, max_parts=10)
        made = await complete(running, "k", upload_id, {1: b"a" * PART, 2: b"b"}, bucket="versioned")
        second = await open_upload(running, "k", bucket="versioned")
        await running.engine.abort_upload(name, second)

        assert [(part.number, part.size) for part in page.parts] == [(2, 1)]
        assert dict(made.headers)["x-amz-version-id"]
        assert running.origin.store.body("versioned", "k") == b"a" * PART + b"b"
        assert running.origin.store.uploads == {}


async def test_upload_with_a_checksum_asks_the_origin_for_it_once() -> None:
    """A passed-through Create names its algorithm once, though it stands in the request's own headers too."""
    async with running_engine() as running:
        request = UploadRequest(
            NAME,
            checksum_algorithm="CRC32",
            checksum_type="FULL_OBJECT",
            origin_reason="acl",
            origin_headers=(("x-amz-acl", "private"), ("x-amz-checksum-algorithm", "CRC32")),
        )

        await running.engine.create_upload(request)

        (sent,) = [entry for entry in running.origin.log if entry.operation == "CreateMultipartUpload"]
        assert sent.headers["x-amz-checksum-algorithm"] == "CRC32"
        assert sent.headers["x-amz-checksum-type"] == "FULL_OBJECT"


async def test_listing_of_uploads_shows_ours_and_the_clients_at_the_origin_but_not_the_flushes() -> None:
    """What the flush has open at the origin is nobody's business."""
    async with running_engine(flush=QUICK) as running:
        gate = running.origin.hold("PUT", f"{BUCKET}/flushed")
        await upload(running, "flushed", [b"a" * PART, b"b"])
        await gate.reached.wait()
        ours = await open_upload(running, "ours")
        theirs, _ = await running.engine.create_upload(
            UploadRequest(ObjectName(BUCKET, "theirs"), origin_reason="acl")
        )

        page = await running.engine.list_uploads(
            BUCKET, prefix="", delimiter="", key_marker="", upload_id_marker="", max_uploads=100
        )
        gate.open()

        assert [(one.key, one.upload_id) for one in page.uploads] == [("ours", ours), ("theirs", theirs)]


# --- pages --------------------------------------------------------------------------------------------------------------


async def test_parts_are_listed_in_pages() -> None:
    """Each page ends where the next begins; a page of nothing does not claim that more follows."""
    async with running_engine() as running:
        upload_id = await open_upload(running, "k")
        for number in (3, 1, 7, 10, 9999):
            await put_part(running, "k", upload_id, number, b"%d" % number)

        pages, marker = [], 0
        while True:
            page = await running.engine.list_parts(NAME, upload_id, part_marker=marker, max_parts=2)
            pages.append([part.number for part in page.parts])
            marker = page.next_part_marker
            if not page.is_truncated:
                break
        empty = await running.engine.list_parts(NAME, upload_id, part_marker=0, max_parts=0)

        assert pages == [[1, 3], [7, 10], [9999]]
        assert (empty.parts, empty.is_truncated) == ((), False)


async def test_parts_at_the_origin_are_listed_in_pages_too() -> None:
    """No more is asked for than is shown, with what the upload is; a page of none asks only whether there is one."""
    async with running_engine() as running:
        request = UploadRequest(
            NAME,
            headers=(("x-amz-storage-class", "STANDARD_IA"),),
            checksum_algorithm="CRC32",
            origin_reason="acl",
        )
        upload_id, _ = await running.engine.create_upload(request)
        for number in (3, 1, 7):
            await put_part(running, "k", upload_id, number, b"%d" % number)

        pages, marker = [], 0
        while True:
            page = await running.engine.list_parts(NAME, upload_id, part_marker=marker, max_parts=2)
            pages.append([part.number for part in page.parts])
            marker = page.next_part_marker
            if not page.is_truncated:
                break
        empty = await running.engine.list_parts(NAME, upload_id, part_marker=0, max_parts=0)
        with pytest.raises(NoSuchUploadError):
            await running.engine.list_parts(NAME, "absent", part_marker=0, max_parts=0)

        assert pages == [[1, 3], [7]]
        assert (empty.parts, empty.is_truncated) == ((), False)
        assert page.upload.checksum_algorithm == "CRC32"
        assert dict(page.upload.headers) == {"x-amz-storage-class": "STANDARD_IA"}
        asked = [one.query.get("max-parts") for one in running.origin.log if one.operation == "ListParts"]
        assert asked == ["2", "2", "1", "1"]
