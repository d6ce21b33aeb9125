"""Bytes on their way to the origin out of segments: each block is held against its checksum before it leaves."""

import base64
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager
from typing import Final

from storage.errors import DirtyBytesLostError, DiskFailedError, SegmentGoneError
from storage.origin.wire import OutgoingBody
from storage.segments import SegmentStore
from storage.types import BLOCK_BYTES, KIB, ByteRange, Checksum, Extent, Location
from storage.workers import Workers

READ_HERE_BYTES_MAX: Final = 256 * KIB
"""Up to this size a block that is in memory is read and checked in the event loop: some 50 us, half of what a thread costs."""


class ReadRefusedError(DiskFailedError):
    """The disk refused to read acknowledged bytes, which may be there all the same."""


class Outgoing:
    """Makes bodies of dirty bytes."""

    def __init__(self, segments: SegmentStore, workers: Workers) -> None:
        self._segments = segments
        self._workers = workers

    def pin(self, extents: tuple[Extent, ...]) -> AbstractContextManager[object]:
        """Keep the segments of extents for the length of a block; to be entered in the step that read the extents."""
        return self._segments.pin({extent.location.segment_id for extent in extents})

    def body(
        self,
        extents: tuple[Extent, ...],
        span: ByteRange,
        *,
        md5_hex: str,
        checksums: tuple[Checksum, ...] = (),
    ) -> OutgoingBody:
        """Make a body of the bytes in `span`, with the digests that the origin verifies; `extents` are pinned while it is sent.

        Reading it raises DirtyBytesLostError where a byte is gone or another than was taken in, ReadRefusedError where the disk
        refuses a read, and OverloadedError where no file descriptor is left.
        """
        return OutgoingBody(
            span.length,
            lambda: self._pieces(extents, span),
            is_repeatable=True,
            md5=base64.b64encode(bytes.fromhex(md5_hex)).decode(),
            checksums=checksums,
        )

    async def _pieces(self, extents: tuple[Extent, ...], span: ByteRange) -> AsyncIterator[bytes]:
        """Read a span block by block, each checked before it is given."""
        position = span.start
        for extent in extents:
            if extent.stop <= position or extent.start >= span.stop:
                continue
            if extent.start > position:
                break
            stop = min(extent.stop, span.stop)
            while position < stop:
                at = position - extent.start
                block = at // BLOCK_BYTES
                data = await self._read_block(extent.location, block)
                piece = data[at - block * BLOCK_BYTES : stop - extent.start - block * BLOCK_BYTES]
                position += len(piece)
                yield piece
        if position != span.stop:
            raise DirtyBytesLostError(f"byte {position} of a version to be flushed is nowhere")

    async def _read_block(self, location: Location, block: int) -> bytes:
        try:
            start, stop = _bounds(location, block)
            if stop - start <= READ_HERE_BYTES_MAX:
                data = self._read_if_cached(location, start, stop)
                if data is not None:
                    return self._checked(location, block, data)
            return await self._workers.run(self._read_checked, location, block)
        except SegmentGoneError as error:
            raise DirtyBytesLostError(str(error)) from error
        except DiskFailedError as error:
            raise ReadRefusedError(str(error)) from error

    def _read_if_cached(self, location: Location, start: int, stop: int) -> bytes | None:
        """Give bytes that are all in memory; None where `SegmentStore.read` is to say how they are. Does not wait."""
        with self._segments.pin((location.segment_id,)):
            file = self._segments.reader(location.segment_id)
            try:
                data = file.pread_if_cached(location.offset + start, stop - start)
            except OSError:
                return None
        return data if data is not None and len(data) == stop - start else None

    def _read_checked(self, location: Location, block: int) -> bytes:
        return self._checked(location, block, self._segments.read(location, *_bounds(location, block)))

    def _checked(self, location: Location, block: int, data: bytes) -> bytes:
        if not self._segments.check_block(location, block, data):
            at = location.offset + block * BLOCK_BYTES
            raise DirtyBytesLostError(
                f"segment {location.segment_id:x} at {at}: dirty bytes have another checksum"
            )
        return data


def _bounds(location: Location, block: int) -> tuple[int, int]:
    start = block * BLOCK_BYTES
    return start, min(start + BLOCK_BYTES, location.length)
