"""Take a request's body from its connection: framing off, digests checked, in bounded memory.

    socket -> aiohttp's stream -> [aws-chunked decoder] -> pieces of up to 1 MiB -> digests -> whoever stores or forwards

A body is verified before it is complete for anybody: the piece that reaches its announced size is held until the end of the
stream was seen and every declared digest, signature and trailer agreed. What fails raises S3Error out of the iteration.

Memory. Pieces are charged to one budget for all bodies. A body that finds it spent does not wait, which could leave every body
waiting for another; it hands on what it has, in pieces as small as they arrive. So the gateway holds at most the budget, and
for each connection what one read of its socket gave.

`Expect: 100-continue` is answered with the first read, so never to a request that is refused by its head.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from aiohttp import StreamReader
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.web_protocol import RequestPayloadError
from msgspec.structs import replace

from gateway.s3.auth import Authenticated, PayloadMode
from gateway.s3.checksums import (
    CHECKSUM_HEADERS,
    BodyDigests,
    DeclaredDigests,
    VerifiedDigests,
    declared_digests,
)
from gateway.s3.chunked import AwsChunkedDecoder, ChunkedForm
from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.request import Headers
from storage.origin import signing
from storage.requests import Content
from storage.types import KIB, MIB, Checksum
from storage.workers import Workers

PIECE_BYTES: Final = MIB
"""What is gathered before a piece is handed on."""

HASHED_IN_LOOP_BYTES_MAX: Final = 256 * KIB
"""A larger piece is hashed by a worker: MD5 takes 1.5 ms a MiB."""

BUDGET_BYTES: Final = 64 * MIB
"""For the pieces of all bodies together."""

CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class Outlet(Protocol):
    """Where the interim answer goes."""

    def write(self, data: bytes) -> None:
        """Write bytes to the connection."""
        ...


class MemoryBudget:
    """Counts the bytes that bodies hold."""

    def __init__(self, limit_bytes: int = BUDGET_BYTES) -> None:
        self._limit_bytes: Final = limit_bytes
        self.taken_bytes = 0

    def take(self, size_bytes: int) -> bool:
        """Charge bytes, or say that there is no room for them."""
        if self.taken_bytes + size_bytes > self._limit_bytes:
            return False
        self.taken_bytes += size_bytes
        return True

    def give(self, size_bytes: int) -> None:
        """Give charged bytes back."""
        self.taken_bytes -= size_bytes
        assert self.taken_bytes >= 0, f"{size_bytes} bytes were given back that nobody took"


@dataclass(frozen=True, slots=True)
class _ChunkKey:
    """Signs chunks as the holder of the request's key would; `chunked.ChunkSigner`."""

    identity: Authenticated

    def chunk_signature(self, previous: str, chunk_sha256_hex: str) -> str:
        identity = self.identity
        return signing.chunk_signature(
            identity.signing_key, identity.amz_date, identity.scope, previous, chunk_sha256_hex
        )

    def trailer_signature(self, previous: str, trailer_sha256_hex: str) -> str:
        identity = self.identity
        return signing.trailer_signature(
            identity.signing_key, identity.amz_date, identity.scope, previous, trailer_sha256_hex
        )


@dataclass(frozen=True, slots=True)
class Intake:
    """What all bodies of a server share. `stalled_receive_s`: so long may a client send nothing."""

    budget: MemoryBudget
    workers: Workers
    stalled_receive_s: float


class IncomingBody:
    """The body of one request, read once; `context.RequestBody`.

    Args:
        stream: The body as aiohttp receives it, transfer encoding off.
        outlet: The connection.
        headers: The request's.
        intake: What bodies share.
        expects_continue: The client waits for an interim answer before it sends.
    """

    def __init__(
        self,
        stream: StreamReader,
        outlet: Outlet,
        headers: Headers,
        intake: Intake,
        *,
        expects_continue: bool = False,
    ) -> None:
        self._stream: Final = stream
        self._outlet: Final = outlet
        self._headers: Final = headers
        self._intake: Final = intake
        self._owes_continue = expects_continue
        self.identity: Authenticated | None = None
        """Who signed the request, once that is known: it says how the body is framed and covered."""
        self.received_bytes = 0
        """Bytes read from the connection, framing included."""

    @property
    def is_read(self) -> bool:
        """Whether the connection is at the end of the body, in step for the next request."""
        return self._stream.is_eof()

    @property
    def is_withheld(self) -> bool:
        """Whether the client still waits for leave to send."""
        return self._owes_continue and not self._stream.total_bytes

    @property
    def length(self) -> int | None:
        """Bytes of the whole body by Content-Length, framing included; None where it does not say."""
        return _size(self._headers.get("content-length"))

    @property
    def left_bytes(self) -> int | None:
        """Bytes still to come by Content-Length; None where it does not say."""
        length = self.length
        return None if length is None else length - self._stream.total_bytes

    def content(self) -> "VerifiedContent":
        """Give the body to be streamed, once; see `context.RequestBody`."""
        return self._content(self._headers.combined)

    def _content(self, declarations: Mapping[str, str]) -> "VerifiedContent":
        form = self._form()
        length = self._headers.get("content-length" if form is None else "x-amz-decoded-content-length")
        size = _size(length)
        if size is None:
            raise S3Error(ErrorCode.MISSING_CONTENT_LENGTH)
        declared = declared_digests(declarations)
        if self.identity is not None:
            # A presigned URL may cover the body too, and its word counts, not that of a header.
            declared = replace(declared, sha256_hex=self.identity.payload_sha256 or None)
        decoder = None if form is None else self._decoder(form, size)
        return VerifiedContent(self, self._intake, size, declared, decoder)

    async def read_small(self, limit: int, *, checksums_are_of_object: bool = False) -> bytes:
        """Read a document whole; see `context.RequestBody`."""
        declarations = self._headers.combined
        if checksums_are_of_object:
            declarations = {n: value for n, value in declarations.items() if n not in CHECKSUM_HEADERS}
        content = self._content(declarations)
        if content.size > limit:
            raise S3Error(ErrorCode.MAX_MESSAGE_LENGTH_EXCEEDED)
        return b"".join([piece async for piece in content.chunks()])

    async def read(self) -> bytes:
        """Give what the connection has, waiting where it has nothing; b"" at the end of the body.

        Raises:
            S3Error: RequestTimeout where nothing came for too long, IncompleteBody where nothing more will.
        """
        self._give_leave()
        try:
            data = self._stream.read_nowait()
            if not data and not self._stream.at_eof():
                async with asyncio.timeout(self._intake.stalled_receive_s):
                    data = await self._stream.readany()
        except TimeoutError as error:
            raise S3Error(ErrorCode.REQUEST_TIMEOUT) from error
        except (OSError, RequestPayloadError, HttpProcessingError) as error:
            raise S3Error(ErrorCode.INCOMPLETE_BODY) from error
        self.received_bytes += len(data)
        return data

    async def discard(self, limit_bytes: int, wait_s: float) -> None:
        """Read and drop what still comes, at most so much for so long.

        A connection that is closed with bytes unread is reset, and the reset can overtake the answer. Never gives leave to
        send: who waits for it is not to begin.
        """
        discarded_bytes = 0
        try:
            async with asyncio.timeout(wait_s):
                while discarded_bytes < limit_bytes and not self._stream.at_eof():
                    discarded_bytes += len(await self._stream.readany())
        except (TimeoutError, OSError, RequestPayloadError, HttpProcessingError):
            return

    def _give_leave(self) -> None:
        if self._owes_continue:
            # A client that stopped waiting and sends already needs no leave (RFC 9110 section 10.1.1).
            if not self._stream.total_bytes:
                self._outlet.write(CONTINUE)
            self._owes_continue = False

    def _form(self) -> ChunkedForm | None:
        payload = PayloadMode.UNSIGNED if self.identity is None else self.identity.payload
        return None if payload in {PayloadMode.SHA256, PayloadMode.UNSIGNED} else ChunkedForm(payload.value)

    def _decoder(self, form: ChunkedForm, size: int) -> AwsChunkedDecoder:
        identity = self.identity
        assert identity is not None, "only a signed request announces a form"
        names = (name.strip().lower() for name in (self._headers.get("x-amz-trailer") or "").split(","))
        return AwsChunkedDecoder(
            form,
            size,
            trailer_names=frozenset(name for name in names if name),
            signer=_ChunkKey(identity),
            seed_signature=identity.seed_signature,
        )


class VerifiedContent(Content):
    """One body as storage takes it in; `storage.requests.Content`."""

    def __init__(
        self,
        source: IncomingBody,
        intake: Intake,
        size: int,
        declared: DeclaredDigests,
        decoder: AwsChunkedDecoder | None,
    ) -> None:
        self._source: Final = source
        self._intake: Final = intake
        self._size: Final = size
        self._digests: Final = BodyDigests(declared)
        self._decoder: Final = decoder
        self._verified: VerifiedDigests | None = None

    @property
    def size(self) -> int:
        """Bytes of the payload."""
        return self._size

    @property
    def etag(self) -> str:
        """The MD5 of the payload in hex; only after the last piece."""
        assert self._verified is not None, "asked before the last piece"
        return self._verified.etag

    def checksums(self) -> tuple[Checksum, ...]:
        """The checksum to store; only after the last piece."""
        assert self._verified is not None, "asked before the last piece"
        return () if self._verified.checksum is None else (self._verified.checksum,)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the payload; see `storage.requests.Content`."""
        gathering = _Gathering(self._intake.budget)
        left = self._size
        hashing: asyncio.Task[None] | None = None
        try:
            while left:
                piece = await self._gather(gathering, left)
                left -= len(piece)
                hashing = self._begin_hash(piece)
                if not left:
                    await self._end_hash(hashing)
                    await self._verify()
                    yield piece
                    return
                # The worker hashes this piece while whoever takes it writes it.
                yield piece
                await self._end_hash(hashing)
                gathering.release()
            await self._verify()
        finally:
            if hashing is not None:
                hashing.cancel()
            gathering.close()

    async def _gather(self, gathering: "_Gathering", left: int) -> bytes:
        """Collect the next piece: PIECE_BYTES, what is left, or less where the budget is spent."""
        wanted = min(PIECE_BYTES, left)
        has_room = True
        while has_room and gathering.size_bytes < wanted:
            data = await self._source.read()
            if not data:
                raise S3Error(ErrorCode.INCOMPLETE_BODY)
            for payload in await self._decode(data):
                has_room = gathering.add(payload) and has_room
            if gathering.size_bytes > left:
                raise S3Error(ErrorCode.INCOMPLETE_BODY)
            has_room = has_room or gathering.size_bytes == 0
        return gathering.take(wanted)

    async def _decode(self, data: bytes) -> list[bytes]:
        if self._decoder is None:
            return [data]
        if len(data) <= HASHED_IN_LOOP_BYTES_MAX:
            return self._decoder.feed(data)
        # The decoder hashes signed chunks.
        return await self._intake.workers.run(self._decoder.feed, data)

    def _begin_hash(self, piece: bytes) -> asyncio.Task[None] | None:
        if len(piece) <= HASHED_IN_LOOP_BYTES_MAX:
            self._digests.update(piece)
            return None
        hashed = self._intake.workers.run(self._digests.update, piece)
        return asyncio.get_running_loop().create_task(hashed)

    async def _end_hash(self, hashing: asyncio.Task[None] | None) -> None:
        if hashing is not None:
            await hashing

    async def _verify(self) -> None:
        trailers: dict[str, str] = {}
        if self._decoder is not None:
            while data := await self._source.read():
                if self._decoder.feed(data):
                    raise S3Error(ErrorCode.INCOMPLETE_BODY)
            trailers = self._decoder.finish()
        elif await self._source.read():
            raise S3Error(ErrorCode.INCOMPLETE_BODY)
        self._verified = self._digests.verify(trailers)


class _Gathering:
    """Payload on its way into a piece, and what is charged for it and for the piece that was handed on."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget: Final = budget
        self._parts: list[bytes] = []
        self._charged_bytes = 0
        self.size_bytes = 0

    def add(self, payload: bytes) -> bool:
        """Take payload in; False where the budget had no room for it, so that it is to be handed on soon."""
        self._parts.append(payload)
        self.size_bytes += len(payload)
        has_room = self._budget.take(len(payload))
        if has_room:
            self._charged_bytes += len(payload)
        return has_room

    def take(self, wanted: int) -> bytes:
        """Give a piece of up to `wanted` bytes and keep the rest."""
        gathered = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        piece, rest = gathered[:wanted], gathered[wanted:]
        self._parts = [rest] if rest else []
        self.size_bytes = len(rest)
        return piece

    def release(self) -> None:
        """Give back what the piece handed on was charged for, less what its successor holds already."""
        self._budget.give(self._charged_bytes)
        self._charged_bytes = 0
        if self.size_bytes and self._budget.take(self.size_bytes):
            self._charged_bytes = self.size_bytes

    def close(self) -> None:
        """Give back everything."""
        self._budget.give(self._charged_bytes)
        self._charged_bytes = 0


def _size(header: str | None) -> int | None:
    if header is None:
        return None
    # aiohttp has refused a Content-Length that is no number; a decoded length is the client's own text.
    if not header.isascii() or not header.isdigit() or len(header) > 18:
        raise S3Error(ErrorCode.INVALID_ARGUMENT, "A length header is not a number.")
    return int(header)
