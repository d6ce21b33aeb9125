"""Reads while the origin cuts, lies or fails, and while the disk does: never a wrong byte, never a short body that looks whole."""

import dataclasses
import errno
import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from gateway.context import OperationContext
from gateway.operations.objects import get_object
from gateway.s3.request import parse
from storage.errors import (
    DirtyBytesLostError,
    NoSuchKeyError,
    ObjectChangedError,
    OriginRefusedError,
    OriginUnavailableError,
)
from storage.hashers import ChecksumHasher
from storage.records import ObjectRecord
from storage.requests import Body, Content
from storage.types import MIB, ByteRange, CacheResult, ChecksumAlgorithm, ObjectName, RangeSpec
from tests.fakes.filesystem import Call, FakeFilesystem, Operation
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import (
    BUCKET,
    FakeIndexHome,
    RunningEngine,
    bytes_of,
    read_all,
    running_engine,
)

SIZE = 5 * MIB + 123
NAME = ObjectName(BUCKET, "key")
DATA = random.Random(1).randbytes(SIZE)
OTHER = random.Random(2).randbytes(SIZE)


def cached_bytes(running: RunningEngine) -> int:
    """Say how much of the object the index knows as present."""
    row = running.engine._components.holdings.record(NAME)
    return 0 if row is None else sum(extent.stop - extent.start for extent in row.extents)


def is_segment(call: Call) -> bool:
    """Whether a call concerns a segment file."""
    return call.path.startswith("segments/")


async def describe(running: RunningEngine) -> ObjectRecord:
    """Let the gateway know the object without any of its bytes."""
    opened = await running.engine.open_object(NAME, metadata_only=True)
    await opened.close()
    return opened.record


# --- The origin ------------------------------------------------------------------------------------------------------


async def test_a_body_that_breaks_off_is_taken_up_where_it_ended() -> None:
    """B14: one cut is invisible to the reader; the rest is asked for under If-Match."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.faults.add(Fault(operation="GetObject", cut_body_at=SIZE // 2))

        got = await running.get("key")
        await running.fills_ended()
        again = await running.get("key")

        assert got.data == again.data == DATA
        assert again.result is CacheResult.HIT
        assert [entry.range for entry in running.origin.log] == ["", f"bytes=2097152-{SIZE - 1}"]
        assert running.origin.log[1].headers["if-match"] == f'"{got.etag}"'


async def test_an_origin_that_breaks_off_each_time_is_given_up_and_nothing_short_is_kept() -> None:
    """B14: a bounded number of requests, an error, whole blocks only; when it is well again the object is complete."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.faults.add(Fault(operation="GetObject", cut_body_at=MIB // 2, times=-1))

        with pytest.raises(OriginUnavailableError):
            await running.get("key")
        requests = running.origin.requests["GetObject"]
        kept_bytes = cached_bytes(running)
        running.origin.faults.clear()
        got = await running.get("key")

        assert requests <= 4
        assert kept_bytes == 0
        assert got.data == DATA


async def test_an_origin_that_breaks_off_after_some_progress_each_time_is_read_to_the_end() -> None:
    """Cuts are counted without progress: a long body over a bad line still arrives."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.faults.add(Fault(operation="GetObject", cut_body_at=MIB + 1000, times=5))

        got = await running.get("key")

        assert got.data == DATA


@pytest.mark.parametrize(
    "fault",
    [
        Fault(content_range="bytes 0-1048575/99999999"),
        Fault(content_range="bytes 1-1048576/5243003"),
        Fault(content_range="nonsense"),
        Fault(content_length=1000),
        Fault(content_length=2 * MIB),
        Fault(etag='"other"'),
    ],
    ids=["size", "place", "form", "too short", "too long", "etag"],
)
async def test_an_answer_that_contradicts_the_question_is_not_used(fault: Fault) -> None:
    """B14: wrong Content-Range, length or ETag of a known version is retried or an error, never bytes."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        await describe(running)
        running.origin.faults.add(replace(fault, operation="GetObject", times=-1))

        with pytest.raises((OriginUnavailableError, ObjectChangedError)):
            await running.get("key", RangeSpec(start=0, stop=1000))
        await running.fills_ended()
        kept_bytes = cached_bytes(running)
        running.origin.faults.clear()
        got = await running.get("key")

        assert kept_bytes == 0
        assert got.data == DATA


async def test_a_failing_origin_is_asked_a_few_times_and_its_error_not_kept() -> None:
    """B14: six 500s, then OK: the first GET fails after its retries, a later one is complete."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.faults.add(Fault(operation="GetObject", status=500, times=6))

        with pytest.raises(OriginUnavailableError):
            await running.get("key")
        got = await running.get("key")

        assert got.data == DATA
        assert running.origin.requests["GetObject"] == 7


async def test_a_connection_that_died_idle_is_not_seen_by_the_reader() -> None:
    """B57: a pooled connection that the origin has closed is replaced at once."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.store.put(BUCKET, "other", OTHER)
        await running.get("key")
        await running.fills_ended()
        running.origin.cut_idle_connections()

        got = await running.get("other")

        assert got.data == OTHER


async def test_a_refusal_is_an_answer_and_not_kept() -> None:
    """A 403 reaches the reader as it is; the next read asks again."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        running.origin.faults.add(Fault(operation="GetObject", status=403, code="InvalidObjectState"))

        with pytest.raises(OriginRefusedError):
            await running.get("key")
        got = await running.get("key")

        assert got.data == DATA


async def test_a_version_that_changed_before_the_first_byte_is_forgotten_so_that_a_new_open_finds_the_new_one() -> (
    None
):
    """A 412 on the first fill raises ObjectChangedError before any byte; opening again gives the new version whole."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        await describe(running)
        running.origin.store.put(BUCKET, "key", OTHER)

        with pytest.raises(ObjectChangedError):
            await running.get("key")
        got = await running.get("key")

        assert got.data == OTHER


class NoBody:
    """The body of a request that has none."""

    def content(self) -> Content:
        """Not called for a GET."""
        raise NotImplementedError

    async def read_small(self, limit: int, *, checksums_are_of_object: bool = False) -> bytes:
        """Not called for a GET."""
        raise NotImplementedError


async def test_the_gateway_begins_a_get_again_when_the_object_changed_before_its_first_byte() -> None:
    """The client of a GET that meets a 412 gets the new version whole, head and body, with 200."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        await describe(running)
        running.origin.store.put(BUCKET, "key", OTHER)
        context = OperationContext(
            running.engine, NoBody(), running.clock, "key", is_signed=True, region="", scheme="http"
        )
        request = parse("GET", "/bucket/key", [("host", "gateway")], request_id="1", received_at_s=0.0)

        response = await get_object(context, request)

        assert response.body is not None
        assert not isinstance(response.body, bytes)
        assert (response.status, response.length) == (200, SIZE)
        assert dict(response.headers)["x-cache"] == "MISS"
        assert await read_all(response.body) == OTHER


async def test_two_versions_never_meet_in_one_body() -> None:
    """B08: bytes of the old version are followed by an error, not by bytes of the new one."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        await running.get("key", RangeSpec(start=0, stop=MIB))
        await running.fills_ended()
        running.origin.store.put(BUCKET, "key", OTHER)

        opened = await running.engine.open_object(NAME)
        body = opened.read(ByteRange(0, SIZE))
        first = bytes_of(await body.next_piece())
        with pytest.raises(ObjectChangedError):
            await read_all(body)
        got = await running.get("key")

        assert first == DATA[:MIB]
        assert got.data == OTHER


async def test_a_version_that_changed_while_its_answer_was_cut_is_not_continued_with_the_new_one() -> None:
    """The request that takes up a cut body names the version whose bytes were given."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        gate = running.origin.hold("GET", "bucket/key", after_bytes=2 * MIB)
        opened = await running.engine.open_object(NAME)
        body = opened.read(ByteRange(0, SIZE))
        got = b""
        while len(got) < 2 * MIB:
            got += bytes_of(await body.next_piece())

        running.origin.store.put(BUCKET, "key", OTHER)
        running.origin.cut_idle_connections()
        with pytest.raises(ObjectChangedError):
            await read_all(body)
        gate.open()

        assert got == DATA[: 2 * MIB]


async def test_a_version_that_was_deleted_in_the_middle_ends_the_read() -> None:
    """A 404 on a later fill is a change of the object, and the next open says that there is none."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA)
        await running.get("key", RangeSpec(start=0, stop=MIB))
        await running.fills_ended()
        running.origin.store.buckets[BUCKET].objects.pop("key")

        with pytest.raises(ObjectChangedError):
            await running.get("key", RangeSpec(start=3 * MIB))
        with pytest.raises(NoSuchKeyError):
            await running.get("key")


# --- The checksum of the whole object --------------------------------------------------------------------------------


def checksum_header(data: bytes, algorithm: ChecksumAlgorithm = ChecksumAlgorithm.CRC32) -> dict[str, str]:
    """Give the header, as the fake origin's store takes it, that carries a checksum of `data`."""
    hasher = ChecksumHasher(algorithm)
    hasher.update(data)
    return {f"x_amz_checksum_{algorithm.lower()}": hasher.checksum().value}


async def read_into(body: Body, got: list[bytes]) -> None:
    """Take all pieces of a body, keeping what came where it fails."""
    while (piece := await body.next_piece()) is not None:
        got.append(bytes_of(piece))


@pytest.mark.parametrize("size", [0, 1000, MIB, 2 * MIB, 3 * MIB + 5])
async def test_a_short_answer_that_agrees_with_itself_is_neither_given_whole_nor_kept(size: int) -> None:
    """B14: Content-Length lies, ETag and checksum are true: the reader gets an error, and the next one the object."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA, **checksum_header(DATA))
        running.origin.faults.add(Fault(operation="GetObject", content_length=size))

        with pytest.raises((OriginUnavailableError, ObjectChangedError)):
            await running.get("key")
        await running.fills_ended()
        kept = running.engine._components.holdings.record(NAME)
        got = await running.get("key")
        await running.fills_ended()
        again = await running.get("key")

        assert kept is None
        assert got.data == again.data == DATA
        assert again.result is CacheResult.HIT


async def test_a_short_answer_gives_no_byte_of_its_last_block() -> None:
    """A reader of a long lie is cut before its end: what it got is never as long as what it was promised."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA, **checksum_header(DATA))
        running.origin.faults.add(Fault(operation="GetObject", content_length=2 * MIB + 5))

        opened = await running.engine.open_object(NAME)
        body = opened.read(ByteRange(0, opened.record.size))
        await opened.close()
        got: list[bytes] = []
        with pytest.raises(OriginUnavailableError) as failure:
            await read_into(body, got)
        await body.close()

        assert failure.value.code == "BadAnswer"
        assert sum(map(len, got)) <= 2 * MIB
        assert DATA.startswith(b"".join(got))


@pytest.mark.parametrize("times", [1, -1])
async def test_the_gateway_begins_a_get_again_when_nothing_of_a_refuted_answer_was_given(times: int) -> None:
    """A lie told once is not noticed by the client; one told each time is an error, not a short body."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA, **checksum_header(DATA))
        running.origin.faults.add(Fault(operation="GetObject", content_length=1000, times=times))
        context = OperationContext(
            running.engine, NoBody(), running.clock, "key", is_signed=True, region="", scheme="http"
        )
        request = parse("GET", "/bucket/key", [("host", "gateway")], request_id="1", received_at_s=0.0)

        if times < 0:
            with pytest.raises(ObjectChangedError):
                await get_object(context, request)
            return
        response = await get_object(context, request)

        assert response.body is not None
        assert not isinstance(response.body, bytes)
        assert (response.status, response.length) == (200, SIZE)
        assert await read_all(response.body) == DATA


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("is_known", [True, False])
async def test_other_bytes_of_the_same_length_are_found_out(*, keeps: bool, is_known: bool) -> None:
    """A whole object is checked in fills and in streams past the cache, after a HEAD too."""
    filesystem = FakeFilesystem()
    async with running_engine(filesystem=filesystem) as running:
        running.origin.store.put(BUCKET, "key", DATA, **checksum_header(DATA))
        stored = running.origin.store.buckets[BUCKET].objects["key"]
        if is_known:
            await describe(running)
        running.origin.store.buckets[BUCKET].objects["key"] = dataclasses.replace(stored, body=OTHER)
        if not keeps:
            running.engine._components.supply._parts.keep_bytes_max = 0

        with pytest.raises(OriginUnavailableError) as failure:
            await running.get("key")
        await running.fills_ended()
        kept = running.engine._components.holdings.record(NAME)

        assert failure.value.code == "BadAnswer"
        assert kept is None


@pytest.mark.parametrize("algorithm", ChecksumAlgorithm)
async def test_an_object_with_a_true_checksum_is_given_and_kept(algorithm: ChecksumAlgorithm) -> None:
    """Each algorithm: the cold GET is whole, and the second one a HIT."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "key", DATA, **checksum_header(DATA, algorithm))

        got = await running.get("key")
        await running.fills_ended()
        again = await running.get("key")

        assert (got.data, got.result) == (DATA, CacheResult.MISS)
        assert (again.data, again.result) == (DATA, CacheResult.HIT)
        assert running.origin.requests["GetObject"] == 1


# --- The disk --------------------------------------------------------------------------------------------------------


def flip(contents: bytes) -> bytes:
    """Change one bit."""
    middle = len(contents) // 2
    return contents[:middle] + bytes([contents[middle] ^ 1]) + contents[middle + 1 :]


def zero(contents: bytes) -> bytes:
    """Make all bytes zero."""
    return bytes(len(contents))


def truncate(contents: bytes) -> bytes:
    """Cut the second half off."""
    return contents[: len(contents) // 2]


def segment_paths(filesystem: FakeFilesystem) -> list[str]:
    """Name all segment files."""
    return [f"segments/{name}" for name in filesystem.list_directory("segments")]


@pytest.mark.parametrize("damage", [flip, zero, truncate, None], ids=["flip", "zero", "truncate", "unlink"])
async def test_clean_bytes_that_rotted_while_stopped_are_fetched_again(
    damage: Callable[[bytes], bytes] | None,
) -> None:
    """B54: a damaged segment of clean bytes is a miss; the bytes given are the object's."""
    async with running_engine() as before:
        before.origin.store.put(BUCKET, "key", DATA)
        await before.get("key")
        await before.fills_ended()
        filesystem, index_home = before.stop_uncleanly()
        for path in segment_paths(filesystem):
            if damage is None:
                filesystem.unlink(path)
            elif len(filesystem.contents(path)) > MIB:
                filesystem.replace_contents(path, damage(filesystem.contents(path)))

        async with running_engine(
            origin=before.origin, filesystem=filesystem, index_home=index_home
        ) as running:
            got = await running.get("key")
            await running.fills_ended()
            # The whole extent is given up with its damaged block, also what of it was served before the damage.
            again = await running.get("key")
            await running.fills_ended()
            last = await running.get("key")

        assert got.data == again.data == last.data == DATA
        assert last.result is CacheResult.HIT


@pytest.mark.parametrize("damage", [flip, truncate], ids=["flip", "truncate"])
async def test_acknowledged_bytes_that_rotted_are_an_error_and_never_served(
    damage: Callable[[bytes], bytes],
) -> None:
    """B54: no other copy exists, so the reader gets an error, not bytes."""
    async with running_engine() as before:
        before.origin.faults.add(Fault(operation="PutObject", status=500, times=-1))
        await before.put("key", DATA)
        filesystem, index_home = before.stop_uncleanly()
        for path in segment_paths(filesystem):
            filesystem.replace_contents(path, damage(filesystem.contents(path)))

        async with running_engine(
            origin=before.origin, filesystem=filesystem, index_home=index_home
        ) as running:
            with pytest.raises(DirtyBytesLostError):
                await running.get("key")


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("nth", [1, 3])
async def test_a_disk_that_takes_no_bytes_does_not_stop_reads(error_number: int, nth: int) -> None:
    """A fill that cannot be written is served past the cache; the next read asks for what was not kept."""
    filesystem = FakeFilesystem()
    async with running_engine(filesystem=filesystem) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        filesystem.fail(
            Operation.PWRITE, nth=nth, error_number=error_number, is_persistent=True, when=is_segment
        )

        got = await running.get("key")
        await running.fills_ended()
        kept_bytes = cached_bytes(running)
        filesystem.heal()
        again = await running.get("key")

        assert (got.data, got.result) == (DATA, CacheResult.BYPASS)
        assert kept_bytes == (nth - 1) * MIB
        assert again.data == DATA


async def test_a_segment_that_cannot_be_opened_does_not_stop_reads() -> None:
    """EIO on opening clean bytes is a miss; those of a fill in progress are streamed."""
    filesystem = FakeFilesystem()
    async with running_engine(filesystem=filesystem) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        filesystem.fail(Operation.OPEN_READER, is_persistent=True, when=is_segment)

        cold = await running.get("key")
        await running.fills_ended()
        warm = await running.get("key")

        assert cold.data == warm.data == DATA


async def test_an_index_that_takes_no_writes_does_not_stop_reads() -> None:
    """Versions and extents are then not kept; the bytes are the origin's."""
    index_home = FakeIndexHome()
    async with running_engine(index_home=index_home) as running:
        running.origin.store.put(BUCKET, "key", DATA)
        index_home.index.fail_write()

        first = await running.get("key")
        await running.fills_ended()
        second = await running.get("key")

        assert first.data == second.data == DATA
