"""What goes over the wire in a flush: the whole sender of an engine, with the origin on the loopback."""

import base64
import zlib

import pytest

from gateway.s3.checksums import completed_checksums
from storage.errors import DirtyBytesLostError
from storage.flush_events import FlushSettings
from storage.policy import Policy
from storage.records import PartSize, UploadRecord
from storage.requests import CompletedPart, UploadRequest
from storage.types import MIB, Checksum, ChecksumAlgorithm, ChecksumType, ObjectName
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, running_engine
from tests.fakes.writing import (
    PART,
    delete,
    etag_of,
    flushed,
    head,
    md5,
    pause,
    request,
    settled,
    until,
    upload,
)

QUICK = FlushSettings(origin_timeout_s=0.6, retry_s_min=0.02, retry_s_max=0.1)


def crc32(data: bytes) -> Checksum:
    """Compute a CRC32 as S3 writes it."""
    return Checksum(ChecksumAlgorithm.CRC32, base64.b64encode(zlib.crc32(data).to_bytes(4)).decode())


def object_checksums(declared: tuple[Checksum, ...], size: int | None):  # type: ignore[no-untyped-def]
    """Compute the checksums of an upload as the gateway does."""

    def compute(upload: UploadRecord, parts: tuple[PartSize, ...]) -> tuple[Checksum, ...]:
        sizes = [(part.size, part.checksums) for part in parts]
        return completed_checksums(
            upload.checksum_algorithm, upload.checksum_type, sizes, declared=declared, size=size
        )

    return compute


@pytest.mark.parametrize("size", [0, 1, 100_000, 3 * MIB + 17])
async def test_put_carries_the_digests_that_the_origin_verifies(size: int) -> None:
    """Every single put has its MD5 and the checksum that the client asked to be kept, and arrives byte for byte."""
    data = bytes(range(256)) * (size // 256 + 1)
    body = data[:size]
    async with running_engine(flush=QUICK) as running:
        await running.engine.put_object(request("k"), BytesContent(body, (crc32(body),)))
        await flushed(running)

        (sent,) = [entry for entry in running.origin.log if entry.operation == "PutObject"]
        assert sent.headers["content-md5"] == base64.b64encode(bytes.fromhex(md5(body))).decode()
        assert sent.headers["x-amz-checksum-crc32"] == crc32(body).value
        assert running.origin.store.body(BUCKET, "k") == body


@pytest.mark.parametrize("kind", list(ChecksumType))
async def test_upload_keeps_its_checksum_at_the_origin(kind: ChecksumType) -> None:
    """A checksum of the parts or of the whole is at the origin what it was at the gateway."""
    parts = [b"a" * PART, b"b"]
    async with running_engine(flush=QUICK, object_checksums=object_checksums) as running:
        name = ObjectName(BUCKET, "k")
        upload_id, _ = await running.engine.create_upload(
            UploadRequest(name, checksum_algorithm="CRC32", checksum_type=kind.value)
        )
        for number, data in enumerate(parts, start=1):
            await running.engine.upload_part(name, upload_id, number, BytesContent(data, (crc32(data),)))
        lines = [CompletedPart(n, md5(data), (crc32(data),)) for n, data in enumerate(parts, start=1)]
        made = await running.engine.complete_upload(name, upload_id, lines)
        await flushed(running)

        stored = running.origin.store.buckets[BUCKET].objects["k"]
        assert (stored.etag, stored.checksum_type) == (etag_of(parts), kind.value)
        assert stored.checksums == {"crc32": made.checksums[0].value}
        assert (await head(running, "k")).checksums == made.checksums


@pytest.mark.parametrize("size", [100, 3 * MIB])
async def test_damaged_bytes_are_never_sent(size: int) -> None:
    """A dirty block that lost its checksum stays here, with an alarm and a reason; the origin keeps what it has."""
    disk = FakeFilesystem()
    async with running_engine(filesystem=disk, flush=QUICK, policy=Policy(flush_delay_s=0.3)) as running:
        running.origin.store.put(BUCKET, "k", b"old")
        await running.put("k", b"x" * size)
        folder = "segments" if size > MIB else "journal"
        for path in [f"{folder}/{name}" for name in disk.list_directory(folder)]:
            disk.replace_contents(path, disk.contents(path).replace(b"x" * 50, b"y" * 50))

        report = await settled(running)

        assert not report.is_reached
        assert running.origin.store.body(BUCKET, "k") == b"old"
        (line,) = running.engine.status().quarantined
        assert "checksum" in line.reason
        if size > MIB:
            await running.put("other", b"fine")
            await until(lambda: running.origin.store.body(BUCKET, "other") == b"fine")


async def test_parts_that_the_origin_has_are_not_sent_again() -> None:
    """A part that fails costs itself: the next attempt goes on behind the parts that arrived, in the same upload."""
    parts = [bytes([n]) * PART for n in range(4)] + [b"rest"]
    async with running_engine(flush=QUICK) as running:
        running.origin.faults.add(
            Fault(operation="UploadPart", skip=3, times=2, status=500),
            Fault(operation="UploadPart", skip=1, times=1, drop="before"),
        )

        await upload(running, "k", parts)
        await flushed(running)

        assert running.origin.store.body(BUCKET, "k") == b"".join(parts)
        assert running.origin.requests_of("CreateMultipartUpload") == 1
        assert running.origin.requests_of("UploadPart") == 5 + 3
        assert running.origin.store.uploads == {}


async def test_upload_that_the_origin_dropped_is_begun_anew() -> None:
    """Somebody's lifecycle rule may end an upload of ours in the middle; the object arrives all the same."""
    async with running_engine(flush=QUICK) as running:
        running.origin.faults.add(Fault(operation="UploadPart", skip=1, times=1, delay_s=0.2, status=500))

        made = await upload(running, "k", [b"a" * PART, b"b"])
        await until(lambda: running.origin.requests_of("UploadPart") == 2)
        running.origin.store.uploads.clear()
        await flushed(running)

        assert running.origin.store.buckets[BUCKET].objects["k"].etag == made.etag


async def test_object_of_the_same_bytes_is_not_taken_for_ours_when_its_metadata_differs() -> None:
    """An upload that is gone has landed only if all of the object is there: bytes and metadata."""
    parts = [b"a" * PART, b"b"]
    async with running_engine(flush=QUICK) as running:
        await upload(running, "k", parts)
        await flushed(running)
        running.origin.faults.add(Fault(operation="UploadPart", times=1, delay_s=0.2, status=500))
        name = ObjectName(BUCKET, "k")
        upload_id, _ = await running.engine.create_upload(UploadRequest(name, user_metadata=(("a", "new"),)))
        for number, data in enumerate(parts, start=1):
            await running.engine.upload_part(name, upload_id, number, BytesContent(data))
        await running.engine.complete_upload(
            name, upload_id, [CompletedPart(n, md5(data)) for n, data in enumerate(parts, start=1)]
        )
        await until(lambda: bool(running.origin.store.uploads))
        running.origin.store.uploads.clear()
        await flushed(running)

        assert running.origin.store.buckets[BUCKET].objects["k"].headers["x-amz-meta-a"] == "new"


@pytest.mark.parametrize("how", ["put", "delete"])
async def test_superseded_upload_ends_between_two_parts_and_is_aborted(how: str) -> None:
    """The rest of an object that was overwritten or deleted is not worth sending, and nothing of it stays at the origin."""
    async with running_engine(flush=QUICK) as running:
        running.origin.faults.add(
            Fault(operation="UploadPart", times=-1, delay_s=0.1),
            Fault(operation="AbortMultipartUpload", times=1, status=503, code="SlowDown"),
        )
        await upload(running, "k", [bytes([n]) * PART for n in range(6)])
        await until(lambda: running.origin.requests_of("UploadPart") == 2)

        await (running.put("k", b"new") if how == "put" else delete(running, "k"))
        await flushed(running)
        await until(lambda: not running.origin.store.uploads)

        assert running.origin.store.body(BUCKET, "k") == (b"new" if how == "put" else None)
        assert running.origin.requests_of("UploadPart") <= 3
        assert running.origin.requests_of("CompleteMultipartUpload") == 0
        await until(lambda: not running.engine._components.flusher.origin_upload_ids())


async def test_dead_pooled_connection_costs_no_object() -> None:
    """A connection that the origin closed while it was idle is replaced at once, for puts and deletes alike."""
    async with running_engine(flush=QUICK) as running:
        await running.put("k", b"one")
        await flushed(running)
        running.origin.cut_idle_connections()
        await pause(0.02)

        await running.put("k", b"two")
        await delete(running, "gone")
        await flushed(running)

        assert running.origin.store.body(BUCKET, "k") == b"two"


async def test_reader_of_damaged_dirty_bytes_is_told() -> None:
    """No other copy exists, so a read of damaged dirty bytes is an error, never wrong bytes."""
    disk = FakeFilesystem()
    async with running_engine(filesystem=disk, policy=Policy(flush_delay_s=60)) as running:
        await running.put("k", b"x" * (2 * MIB))
        clone, index_home = running.stop_uncleanly()
    for path in [f"segments/{name}" for name in clone.list_directory("segments")]:
        clone.replace_contents(path, b"y" * len(clone.contents(path)))

    async with running_engine(
        filesystem=clone, index_home=index_home, policy=Policy(flush_delay_s=60)
    ) as running:
        with pytest.raises(DirtyBytesLostError):
            await read(running, "k")


async def read(running: RunningEngine, key: str) -> bytes:
    """Read an object to its end."""
    return (await running.get(key)).data
