"""The body of a part that is copied: bytes of an object that was opened for reading, as content that a client might have sent.

They are read as a GET reads them, from segments, from a fill, or as the origin sends, a piece at a time, and hashed on the way: into
an upload that has a checksum algorithm a copied part comes with its checksum (AWS User Guide "Checking object integrity").
"""

from collections.abc import AsyncIterator

from storage.errors import OriginUnavailableError
from storage.hashers import ChecksumHasher
from storage.requests import Body, FileSpan
from storage.types import MIB, Checksum, ChecksumAlgorithm
from storage.workers import Workers

PIECE_BYTES = MIB


class CopiedContent:
    """`requests.Content` over a body, which is closed with the last piece, or by `close`."""

    def __init__(self, body: Body, size: int, algorithm: str, workers: Workers) -> None:
        self.size = size
        self._body = body
        self._workers = workers
        self._hasher = ChecksumHasher(ChecksumAlgorithm(algorithm)) if algorithm else None

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes.

        Raises:
            StorageError: What the body raised; nothing of it may be kept then.
        """
        given = 0
        while (piece := await self._body.next_piece()) is not None:
            for start in range(0, piece.length if isinstance(piece, FileSpan) else len(piece), PIECE_BYTES):
                chunk = await self._workers.run(self._take, piece, start)
                given += len(chunk)
                yield chunk
        if given != self.size:
            raise OriginUnavailableError(
                f"{given} bytes of a source of {self.size} came", status=0, code="Incomplete"
            )

    def _take(self, piece: bytes | FileSpan, start: int) -> bytes:
        """Read and hash the next bytes of a piece; runs in a worker thread."""
        if isinstance(piece, FileSpan):
            chunk = piece.file.pread(piece.offset + start, min(PIECE_BYTES, piece.length - start))
        else:
            chunk = piece[start : start + PIECE_BYTES]
        if self._hasher is not None:
            self._hasher.update(chunk)
        return chunk

    def checksums(self) -> tuple[Checksum, ...]:
        """Give the checksum of all bytes; only after the last piece."""
        return () if self._hasher is None else (self._hasher.checksum(),)

    async def close(self) -> None:
        """Let go of the body."""
        await self._body.close()
