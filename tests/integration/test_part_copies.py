"""Parts that are copied out of objects, and parts of objects that were uploaded at the origin."""

import base64
import hashlib
import zlib

import pytest

from storage.errors import (
    DirtyBytesLostError,
    NoSuchKeyError,
    NoSuchUploadError,
    NotSupportedError,
    ObjectChangedError,
    OriginError,
    OriginUnavailableError,
)
from storage.policy import Policy
from storage.requests import CompletedPart, PutRequest, PutResult, UploadRequest
from storage.types import MIB, ByteRange, Checksum, ChecksumAlgorithm, ObjectName, PartSpan, WriteMode
from tests.fakes.origin_faults import Fault
from tests.fakes.rotting import location_of, rot
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, running_engine, until

SOURCE, TARGET = ObjectName(BUCKET, "source"), ObjectName(BUCKET, "target")
DATA = bytes(range(256)) * (9 * 4096) + b"end"
HELD = Policy(flush_delay_s=3600.0)


async def opened_upload(running: RunningEngine, algorithm: str = "") -> str:
    """Open an upload of the target."""
    request = UploadRequest(
        TARGET, checksum_algorithm=algorithm, checksum_type="FULL_OBJECT" if algorithm else ""
    )
    upload_id, _ = await running.engine.create_upload(request)
    return upload_id


async def copied(running: RunningEngine, upload_id: str, number: int, span: ByteRange) -> PutResult:
    """Copy bytes of the source into a part."""
    opened = await running.engine.open_object(SOURCE, metadata_only=True)
    try:
        body = opened.read(span, is_copied=True)
    finally:
        await opened.close()
    return await running.engine.copy_part(TARGET, upload_id, number, body, span.length)


@pytest.mark.parametrize("where", ["dirty", "cached", "cold"])
async def test_copied_parts_are_as_if_the_client_had_sent_them(where: str) -> None:
    """Dirty and cached sources need no origin, a cold one is read once; the object is that of the ranges, checksums and all."""
    async with running_engine(policy=HELD) as running:
        if where == "dirty":
            await running.put("source", DATA)
        else:
            running.origin.store.put(BUCKET, "source", DATA)
        if where == "cached":
            assert (await running.get("source")).data == DATA
            await running.fills_ended()
        running.origin.log.clear()
        upload_id = await opened_upload(running, "CRC32")
        first, second = ByteRange(3, 3 + 6 * MIB), ByteRange(6 * MIB, len(DATA))

        parts = [await copied(running, upload_id, number, span) for number, span in ((1, first), (2, second))]
        lines = [CompletedPart(number, part.etag) for number, part in enumerate(parts, start=1)]
        await running.engine.complete_upload(TARGET, upload_id, lines)

        pieces = [DATA[span.start : span.stop] for span in (first, second)]
        sums = [base64.b64encode(zlib.crc32(piece).to_bytes(4)).decode() for piece in pieces]
        assert [part.checksums for part in parts] == [
            (Checksum(ChecksumAlgorithm.CRC32, one),) for one in sums
        ]
        assert (await running.get("target")).data == b"".join(pieces)
        asked = {one.operation for one in running.origin.log if one.key == "source"}
        assert asked == ({"HeadObject", "GetObject"} if where == "cold" else set())


@pytest.mark.parametrize("is_dirty", [False, True])
async def test_rotten_bytes_of_a_source_do_not_get_a_new_checksum(*, is_dirty: bool) -> None:
    """This process wrote them and serves them unread; copied so, they would be right for ever: by the part's own checksum."""
    async with running_engine(policy=HELD) as running:
        if is_dirty:
            await running.put("source", DATA)
        else:
            running.origin.store.put(BUCKET, "source", DATA)
        assert (await running.get("source")).data == DATA
        await running.fills_ended()
        rot(running, location_of(running, "source"), 100)
        upload_id = await opened_upload(running)

        if is_dirty:
            with pytest.raises(DirtyBytesLostError):
                await copied(running, upload_id, 1, ByteRange(0, len(DATA)))
        else:
            part = await copied(running, upload_id, 1, ByteRange(0, len(DATA)))
            assert part.etag == hashlib.md5(DATA, usedforsecurity=False).hexdigest()
        parts = (await running.engine.list_parts(TARGET, upload_id, part_marker=0, max_parts=9)).parts
        assert len(parts) == (0 if is_dirty else 1)


async def test_part_of_nothing_is_an_empty_part() -> None:
    """An empty source makes an empty object."""
    async with running_engine() as running:
        await running.put("source", b"")
        upload_id = await opened_upload(running)
        part = await copied(running, upload_id, 1, ByteRange(0, 0))

        await running.engine.complete_upload(TARGET, upload_id, [CompletedPart(1, part.etag)])
        assert (await running.get("target")).data == b""


@pytest.mark.parametrize("fault", ["cut", "changed", "ended"])
async def test_nothing_is_recorded_when_the_source_fails(fault: str) -> None:
    """Half a source, another version of it, or an upload that has ended: the parts stay as they were, and nothing is held."""
    async with running_engine() as running:
        running.origin.store.put(BUCKET, "source", DATA)
        upload_id = await opened_upload(running)
        before = await running.engine.upload_part(TARGET, upload_id, 1, BytesContent(b"before"))
        opened = await running.engine.open_object(SOURCE, metadata_only=True)
        body = opened.read(ByteRange(0, len(DATA)))
        await opened.close()
        expected: type[Exception] = OriginUnavailableError
        if fault == "cut":
            running.origin.faults.add(Fault(operation="GetObject", cut_body_at=1000, times=-1))
        elif fault == "changed":
            running.origin.store.put(BUCKET, "source", DATA[::-1])
            expected = ObjectChangedError
        else:
            await running.engine.abort_upload(TARGET, upload_id)
            expected = NoSuchUploadError

        with pytest.raises(expected):
            await running.engine.copy_part(TARGET, upload_id, 1, body, len(DATA))

        if fault != "ended":
            page = await running.engine.list_parts(TARGET, upload_id, part_marker=0, max_parts=10)
            assert [part.etag for part in page.parts] == [before.etag]
        await until(lambda: not running.engine._components.segments.has_pins)


async def test_origin_copies_the_acknowledged_source_into_an_upload_of_its_own() -> None:
    """A dirty source is flushed first, whatever its name; a missing one is 404 and leaves the parts."""
    async with running_engine(policy=HELD) as running:
        odd = ObjectName(BUCKET, "a b+c%2F\u00fc?x")
        await running.engine.put_object(PutRequest(odd), BytesContent(b"0123456789"))
        request = UploadRequest(TARGET, mode=WriteMode.THROUGH, origin_reason="acl")
        upload_id, _ = await running.engine.create_upload(request)
        assert not running.engine.keeps_upload(upload_id)

        part = await running.engine.upload_part_copy(
            odd, TARGET, upload_id, 1, (("x-amz-copy-source-range", "bytes=3-9"),)
        )
        with pytest.raises(NoSuchKeyError):
            await running.engine.upload_part_copy(ObjectName(BUCKET, "absent"), TARGET, upload_id, 2)
        await running.engine.complete_upload(TARGET, upload_id, [CompletedPart(1, part.etag)])

        assert running.origin.store.body(BUCKET, "target") == b"3456789"


# --- reading by part number -------------------------------------------------------------------------------------------


async def uploaded_at_origin(running: RunningEngine) -> PartSpan:
    """Upload an object of 5 MiB and 1 byte at the origin, past the gateway; give its second part as the gateway finds it."""
    request = UploadRequest(SOURCE, mode=WriteMode.THROUGH, origin_reason="acl")
    upload_id, _ = await running.engine.create_upload(request)
    lines = []
    for number, data in ((1, b"x" * (5 * MIB)), (2, b"y")):
        part = await running.engine.upload_part(SOURCE, upload_id, number, BytesContent(data))
        lines.append(CompletedPart(number, part.etag))
    await running.engine.complete_upload(SOURCE, upload_id, lines)
    return await part_span(running, 2)


async def part_span(running: RunningEngine, number: int) -> PartSpan:
    """Ask for the place of a part."""
    opened = await running.engine.open_object(SOURCE, metadata_only=True)
    await opened.close()
    return await running.engine.part_span(SOURCE, opened.record, number)


async def test_parts_of_what_was_uploaded_at_the_origin_are_asked_for() -> None:
    """Span and count of the very version; 416 beyond the last; not guessed where the origin does not tell."""
    async with running_engine() as running:
        second = await uploaded_at_origin(running)
        with pytest.raises(OriginError) as beyond:
            await part_span(running, 3)
        running.origin.faults.add(
            Fault(operation="HeadObject", content_range="bytes 5242880-5242880/5242881")
        )

        assert second == PartSpan(ByteRange(5 * MIB, 5 * MIB + 1), 2, second.checksums)
        assert beyond.value.status == 416

        running.origin.store.put(BUCKET, "source", b"z" * 100)
        opened = await running.engine.open_object(SOURCE, metadata_only=True)
        await opened.close()
        if opened.record.size > 100:
            with pytest.raises(ObjectChangedError):
                await running.engine.part_span(SOURCE, opened.record, 1)
        with pytest.raises((NotSupportedError, ObjectChangedError)):
            await part_span(running, 1)
