"""What tests of the write path say often: small steps on a running engine, and waits that end as soon as what they wait for is there."""

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Callable, Sequence

from storage.listing import ListEntry, ListQuery
from storage.records import ObjectRecord
from storage.requests import (
    BarrierReport,
    BoundedContent,
    CompletedPart,
    PutRequest,
    PutResult,
    UploadRequest,
)
from storage.types import MIB, Checksum, ObjectName
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine

PART = 5 * MIB


async def pause(wait_s: float = 0.0) -> None:
    """Let the others run, for a while or for one step."""
    await asyncio.sleep(wait_s)


async def until(is_so: Callable[[], bool], *, timeout_s: float = 10.0, every_s: float = 0.005) -> None:
    """Return when something is so."""
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(every_s)


async def flushed(running: RunningEngine, bucket: str = "", *, timeout_s: float = 20.0) -> BarrierReport:
    """Wait until all that is acknowledged is at the origin; an origin that has just come back may still count as refusing."""
    deadline = time.monotonic() + timeout_s
    while not (report := await settled(running, bucket, timeout_s=timeout_s)).is_reached:
        assert time.monotonic() < deadline, (
            f"{report.remaining} of {report.total} are not at the origin: {report.blocked}"
        )
        await pause(0.02)
    return report


async def settled(running: RunningEngine, bucket: str = "", *, timeout_s: float = 20.0) -> BarrierReport:
    """Wait until all that is acknowledged is at the origin, or cannot get there."""
    started = running.engine.start_barrier(bucket, "")
    report = await running.engine.wait_barrier(started.barrier_id, timeout_s)
    assert report.is_reached or report.blocked, f"{report.remaining} of {report.total} are not at the origin"
    return report


async def head(running: RunningEngine, key: str, *, bucket: str = BUCKET) -> ObjectRecord:
    """Describe an object."""
    opened = await running.engine.open_object(ObjectName(bucket, key), metadata_only=True)
    await opened.close()
    return opened.record


async def listed(running: RunningEngine, *, bucket: str = BUCKET) -> list[ListEntry]:
    """List a bucket."""
    return list((await running.engine.list_objects(ListQuery(bucket))).entries)


async def delete(running: RunningEngine, key: str, *, bucket: str = BUCKET) -> None:
    """Delete an object."""
    result = await running.engine.delete_object(ObjectName(bucket, key))
    assert not result.code, result


async def open_upload(running: RunningEngine, key: str, *, bucket: str = BUCKET) -> str:
    """Open an upload."""
    upload_id, _ = await running.engine.create_upload(UploadRequest(ObjectName(bucket, key)))
    return upload_id


async def put_part(
    running: RunningEngine, key: str, upload_id: str, number: int, data: bytes, *, bucket: str = BUCKET
) -> PutResult:
    """Upload one part."""
    return await running.engine.upload_part(ObjectName(bucket, key), upload_id, number, BytesContent(data))


async def complete(
    running: RunningEngine, key: str, upload_id: str, parts: dict[int, bytes], *, bucket: str = BUCKET
) -> PutResult:
    """Complete an upload of these parts."""
    lines = [CompletedPart(number, md5(data)) for number, data in parts.items()]
    return await running.engine.complete_upload(ObjectName(bucket, key), upload_id, lines)


async def upload(
    running: RunningEngine, key: str, parts: Sequence[bytes], *, bucket: str = BUCKET
) -> PutResult:
    """Store an object in parts."""
    upload_id = await open_upload(running, key, bucket=bucket)
    numbered = dict(enumerate(parts, start=1))
    for number, data in numbered.items():
        await put_part(running, key, upload_id, number, data, bucket=bucket)
    return await complete(running, key, upload_id, numbered, bucket=bucket)


def request(key: str, *, bucket: str = BUCKET, **fields: object) -> PutRequest:
    """Make a PutRequest."""
    return PutRequest(ObjectName(bucket, key), **fields)  # type: ignore[arg-type]  # a test names the right ones


def md5(data: bytes) -> str:
    """Give the MD5 in hex."""
    return hashlib.md5(data).hexdigest()


def etag_of(parts: Sequence[bytes]) -> str:
    """Give the ETag of an object made of parts."""
    return f"{md5(b''.join(hashlib.md5(part).digest() for part in parts))}-{len(parts)}"


class BrokenContent:
    """A body whose client goes away, or fails its check, behind `good` bytes of `size`."""

    def __init__(self, size: int, good: int, error: Exception) -> None:
        self.size = size
        self._good = good
        self._error = error

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield what is good, then raise."""
        for start in range(0, self._good, MIB):
            yield b"x" * min(MIB, self._good - start)
        raise self._error

    def checksums(self) -> tuple[Checksum, ...]:
        """None are declared."""
        return ()


class SlowContent:
    """A body that comes in `pieces` pieces, each when `step` is set free or after a pause."""

    def __init__(self, data: bytes, piece_bytes: int, pause_s: float) -> None:
        self.size = len(data)
        self._data = data
        self._piece_bytes = piece_bytes
        self._pause_s = pause_s

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the pieces, slowly."""
        for start in range(0, self.size, self._piece_bytes):
            await asyncio.sleep(self._pause_s)
            yield self._data[start : start + self._piece_bytes]

    def checksums(self) -> tuple[Checksum, ...]:
        """None are declared."""
        return ()


class FormFile(BoundedContent):
    """A body that says at its head only that it is `spare` bytes longer at most, and may fail at its end."""

    def __init__(self, data: bytes, spare: int, error: Exception | None = None) -> None:
        self._data = data
        self._spare = spare
        self._error = error

    @property
    def size(self) -> int:
        """The most that may come."""
        return len(self._data) + self._spare

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the pieces."""
        for start in range(0, len(self._data), MIB):
            yield self._data[start : start + MIB]
        if self._error is not None:
            raise self._error

    def checksums(self) -> tuple[Checksum, ...]:
        """None are declared."""
        return ()
