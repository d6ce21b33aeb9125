"""Write one answer to a client's connection: head and body, from memory, from files by sendfile, or as the origin sends.

Two objects. `Wire` is a TCP connection as answers are written to it; it lives as long as the connection. `Sender` writes one
answer and is asked afterwards how far it came. The rules they keep:

1. The head leaves together with the first piece of the body, so that an error before the first byte is still a whole error
   answer. After the first byte an error ends the connection: a short body never looks whole.
2. sendfile works on a duplicate of the socket, since uvloop has no sendfile and owns the original. The duplicate is touched
   only when the transport's own buffer is empty, or bytes would overtake each other; reading is paused meanwhile, so that
   the transport does not close under the duplicate.
3. Nothing reads from a disk in the event loop. A page that is not in memory is first read by a worker thread, in steps of at
   most STEP_BYTES, and sent after that.
4. A client that takes nothing for `stalled_send_s` loses its connection; what it held (pins, joins) is let go.
"""

import asyncio
import fcntl
import os
import socket
import sys
import termios
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from http import HTTPStatus
from typing import Final

from gateway.context import HeaderPairs, S3Response
from storage.clock import Clock
from storage.filesystem import File
from storage.reasons import joined_reasons, waited
from storage.requests import Body, FileSpan
from storage.types import KIB, MIB
from storage.workers import Workers

JOINED_BYTES_MAX: Final = 64 * KIB
"""A body piece up to this size is written in one call with what precedes it; larger ones are not copied."""

STEP_BYTES: Final = MIB
"""Sent, or read by a worker, at a time."""

PROBE_EVERY_BYTES: Final = 128 * KIB
"""One page in so many is probed for being in memory: the kernel's read-ahead works in runs of this size."""

TURN_BYTES: Final = 4 * MIB
"""After so many bytes that no wait has broken, other connections get a turn of the event loop."""

SERVER_NAME: Final = "Forebay"

REASON: Final = "x-cache-reason"

_STATUS_LINES: Final = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n" for status in HTTPStatus}

assert STEP_BYTES % PROBE_EVERY_BYTES == 0, "a step is probed in whole runs"


def with_wait(headers: HeaderPairs, waited_s: float) -> HeaderPairs:
    """Say in x-cache-reason, beside what stands there, for how long the answer was held up in front of the origin."""
    wait = waited(waited_s)
    if not wait:
        return headers
    said = next((value for name, value in headers if name == REASON), "")
    return (*(pair for pair in headers if pair[0] != REASON), (REASON, joined_reasons(said, wait)))


class BrokenBodyError(ConnectionError):
    """The body gave other bytes than its answer announced; the connection has to end."""


class StalledClientError(ConnectionError):
    """The client took nothing for as long as it may."""


class Wire:
    """One client's connection, as answers are written to it.

    Owns the duplicate of the socket. `lost` is called when the connection has ended, from whatever side.
    """

    def __init__(self, transport: asyncio.Transport) -> None:
        self.transport: Final = transport
        self.is_tls: Final = transport.get_extra_info("sslcontext") is not None
        self.remote: Final = _remote(transport)
        self.is_over_limit = False
        self._on_lost: Callable[[], object] | None = None
        self._duplicate: socket.socket | None = None
        self._writable: asyncio.Future[None] | None = None
        # Pausing at the first byte makes `drain` mean "empty", which sendfile needs to know.
        transport.set_write_buffer_limits(high=0)

    @property
    def is_lost(self) -> bool:
        """Whether nothing can be written any more."""
        return self.transport.is_closing()

    @contextmanager
    def watched(self, on_lost: Callable[[], object]) -> Iterator[None]:
        """Call `on_lost` should the connection end within the block."""
        self._on_lost = on_lost
        try:
            yield
        finally:
            self._on_lost = None

    def duplicate(self) -> socket.socket:
        """Give the socket that sendfile writes to; made at its first use."""
        if self._duplicate is None:
            original = self.transport.get_extra_info("socket")
            if original is None or self.is_lost:
                raise ConnectionResetError("the connection is gone")
            self._duplicate = socket.socket(fileno=os.dup(original.fileno()))
            self._duplicate.setblocking(False)  # noqa: FBT003  # the standard library's own signature
        return self._duplicate

    def unsent_bytes(self) -> int:
        """Bytes that the client has not taken: in the transport's buffer and in the kernel's queue."""
        original = self.transport.get_extra_info("socket")
        if original is None or self.is_lost:
            return 0
        queued = bytearray(4)
        fcntl.ioctl(original.fileno(), termios.TIOCOUTQ, queued)
        return int.from_bytes(queued, sys.byteorder) + self.transport.get_write_buffer_size()

    async def progress(self, wait: Callable[[], Awaitable[object]], stalled_s: float) -> None:
        """Wait for something that needs the client to take bytes, as long as it takes some.

        `wait` is called anew after each cancellation by the time-out.

        A kernel's queue holds megabytes and becomes writable only when a third of it is free, so a slow client must not be
        judged by that.

        Raises:
            StalledClientError: It took none for `stalled_s`.
        """
        unsent_bytes = self.unsent_bytes()
        while True:
            try:
                async with asyncio.timeout(stalled_s):
                    await wait()
            except TimeoutError:
                left_bytes = self.unsent_bytes()
                if left_bytes >= unsent_bytes:
                    raise StalledClientError(f"nothing was taken for {stalled_s} s") from None
                unsent_bytes = left_bytes
            else:
                return

    async def writable(self) -> None:
        """Wait until the duplicate takes bytes, or raise ConnectionError when the connection ends."""
        loop = asyncio.get_running_loop()
        duplicate = self.duplicate()
        self._writable = loop.create_future()
        loop.add_writer(duplicate.fileno(), _resolve, self._writable)
        try:
            await self._writable
        finally:
            self._writable = None
            # `lost` has ended the watch and closed the duplicate: its number may be another connection's by now.
            if self._duplicate is duplicate:
                loop.remove_writer(duplicate.fileno())

    async def linger(self, wait_s: float) -> None:
        """Say that nothing more comes, and give the client so long to end the connection.

        Were it closed at once with bytes unread, the reset could overtake the answer (RFC 9112 section 9.6).
        """
        if self.is_lost:
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        gone = asyncio.Event()
        with self.watched(gone.set), suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await gone.wait()

    def abort(self) -> None:
        """End the connection at once; the client sees that the answer is not complete."""
        self.transport.abort()

    def lost(self) -> None:
        """Let go of the duplicate and wake who waits for it; idempotent."""
        if self._on_lost is not None:
            self._on_lost()
        if self._writable is not None and not self._writable.done():
            self._writable.set_exception(ConnectionResetError("the connection is gone"))
        if self._duplicate is not None:
            # A descriptor must leave the poller before it is closed, or its number would be watched for the next owner.
            asyncio.get_running_loop().remove_writer(self._duplicate.fileno())
            self._duplicate.close()
            self._duplicate = None


class Sender:
    """Writes one answer.

    Args:
        wire: The connection.
        drain: Makes the coroutine that waits until the transport's buffer is empty.
        workers: Read what is not in memory.
        clock: Gives other connections their turn.
        stalled_send_s: How long a client may take nothing.
    """

    def __init__(
        self,
        wire: Wire,
        drain: Callable[[], Coroutine[object, object, None]],
        workers: Workers,
        clock: Clock,
        *,
        stalled_send_s: float,
    ) -> None:
        self._wire: Final = wire
        self._drain: Final = drain
        self._workers: Final = workers
        self._clock: Final = clock
        self._stalled_send_s: Final = stalled_send_s
        self._unbroken_bytes = 0
        self.is_started = False
        """Whether a byte of the answer may have left; from then on an error can only end the connection."""
        self.sent_bytes = 0
        """Bytes of the body handed to the kernel or the transport."""

    async def send(self, head: bytes, response: S3Response) -> None:
        """Write the head and the body; the caller closes the body.

        Raises:
            ConnectionError: The client is gone, took nothing for too long, or the body broke its promise.
            StorageError: What the body raised; `is_started` says whether it may still be answered.
        """
        body = response.body
        if body is None or isinstance(body, bytes):
            await self._write(head, body or b"")
            return
        if response.has_length:
            await self._send_body(head, body, response.length)
        else:
            await self._send_unmeasured(head, body, is_chunked=response.is_chunked)

    async def _send_body(self, head: bytes, body: Body, length: int) -> None:
        while self.sent_bytes < length:
            piece = await body.next_piece()
            if piece is None:
                raise BrokenBodyError(f"the body ended after {self.sent_bytes} of {length} bytes")
            size = len(piece) if isinstance(piece, bytes) else piece.length
            if self.sent_bytes + size > length:
                raise BrokenBodyError(f"the body is longer than {length} bytes")
            if isinstance(piece, bytes):
                await self._write(head, piece)
            else:
                await self._send_span(head, piece)
            head = b""
        if head:
            await self._write(head, b"")

    async def _send_unmeasured(self, head: bytes, body: Body, *, is_chunked: bool) -> None:
        """Send a body to its end, wherever that is; one that breaks off never ends as a whole one does."""
        while (piece := await body.next_piece()) is not None:
            data = (
                piece
                if isinstance(piece, bytes)
                else await self._read(piece.file, piece.offset, piece.length)
            )
            if data:
                await self._write(head + b"%x\r\n" % len(data) if is_chunked else head, data)
                head = b"\r\n" if is_chunked else b""
        if is_chunked:
            head += b"0\r\n\r\n"
        if head:
            await self._write(head, b"")

    async def _send_span(self, head: bytes, span: FileSpan) -> None:
        if span.length <= JOINED_BYTES_MAX:
            await self._write(head, await self._read(span.file, span.offset, span.length))
        elif self._wire.is_tls or span.file.fileno() < 0:
            await self._copy(head, span)
        else:
            await self._sendfile(head, span)

    async def _write(self, head: bytes, data: bytes) -> None:
        """Write through the transport, and wait until the kernel has all of it."""
        if self._wire.is_lost:
            raise ConnectionResetError("the connection is gone")
        self.is_started = True
        if len(data) <= JOINED_BYTES_MAX:
            self._wire.transport.write(head + data)
        else:
            if head:
                self._wire.transport.write(head)
            self._wire.transport.write(data)
        self.sent_bytes += len(data)
        await self._emptied()

    async def _emptied(self) -> None:
        transport = self._wire.transport
        while transport.get_write_buffer_size():
            if self._wire.is_lost:
                raise ConnectionResetError("the connection is gone")
            # aiohttp's wait cannot be taken up again once it was cancelled, so it is a task that outlives a time-out.
            draining = asyncio.get_running_loop().create_task(self._drain())
            try:
                await self._wire.progress(partial(asyncio.wait, {draining}), self._stalled_send_s)
                await draining
            finally:
                draining.cancel()

    async def _copy(self, head: bytes, span: FileSpan) -> None:
        """Send a span through memory: TLS has to encrypt it, and a fake file has no descriptor."""
        stop = span.offset + span.length
        for offset in range(span.offset, stop, STEP_BYTES):
            await self._write(head, await self._read(span.file, offset, min(STEP_BYTES, stop - offset)))
            head = b""

    async def _read(self, file: File, offset: int, length: int) -> bytes:
        data = file.pread_if_cached(offset, length)
        if data is None:
            data = await self._workers.run(file.pread, offset, length)
        if len(data) != length:
            raise BrokenBodyError(f"the file gave {len(data)} of {length} bytes at {offset}")
        return data

    async def _sendfile(self, head: bytes, span: FileSpan) -> None:
        await self._emptied()
        stop = span.offset + span.length
        with self._reading_paused():
            if head:
                await self._send_head(head)
            for offset in range(span.offset, stop, STEP_BYTES):
                length = min(STEP_BYTES, stop - offset)
                if not _is_cached(span.file, offset, length):
                    await self._workers.run(span.file.pread, offset, length)
                await self._sendfile_step(span.file, offset, offset + length)

    async def _send_head(self, head: bytes) -> None:
        self.is_started = True
        # MSG_MORE: the kernel joins the head with the first bytes of the file.
        left = memoryview(head)
        while left:
            try:
                left = left[self._wire.duplicate().send(left, socket.MSG_MORE) :]
            except BlockingIOError:
                await self._wire.progress(self._wire.writable, self._stalled_send_s)

    async def _sendfile_step(self, file: File, offset: int, stop: int) -> None:
        while offset < stop:
            try:
                sent = os.sendfile(self._wire.duplicate().fileno(), file.fileno(), offset, stop - offset)
            except BlockingIOError:
                self._unbroken_bytes = 0
                await self._wire.progress(self._wire.writable, self._stalled_send_s)
                continue
            if sent == 0:
                raise BrokenBodyError(f"the file ends at {offset}, before {stop}")
            offset += sent
            self.sent_bytes += sent
            self._unbroken_bytes += sent
            if self._unbroken_bytes >= TURN_BYTES:
                self._unbroken_bytes = 0
                await self._clock.sleep(0)

    @contextmanager
    def _reading_paused(self) -> Iterator[None]:
        # Only what was paused here is resumed here: aiohttp pauses on its own account too.
        transport = self._wire.transport
        if not transport.is_reading():
            yield
            return
        transport.pause_reading()
        try:
            yield
        finally:
            if not transport.is_closing():
                transport.resume_reading()


def head_bytes(response: S3Response, *, date: str, request_id: str, host_id: str, keep_alive: bool) -> bytes:
    """Write the head of an answer.

    Raises:
        ValueError: A header holds a line break. Values can come from a client (`response-content-type`), and one with a
            line break would add headers, or a whole answer, of the client's making.
    """
    lines = [
        _STATUS_LINES.get(response.status) or f"HTTP/1.1 {response.status} Unknown\r\n",
        f"server: {SERVER_NAME}\r\ndate: {date}\r\nx-amz-request-id: {request_id}\r\nx-amz-id-2: {host_id}\r\n",
        "" if keep_alive else "connection: close\r\n",
    ]
    lines += [f"{name}: {value}\r\n" for name, value in response.headers]
    if response.has_length:
        lines.append(f"content-length: {response.length}\r\n")
    lines.append("\r\n")
    head = "".join(lines)
    expected = 6 + (not keep_alive) + len(response.headers) + response.has_length
    if head.count("\n") != expected or head.count("\r") != expected:
        raise ValueError("a header of the answer holds a line break")
    return head.encode("utf-8", "surrogateescape")


def _is_cached(file: File, offset: int, length: int) -> bool:
    """Say whether a step is in memory, going by one page in each run and the last one."""
    places = (*range(offset, offset + length, PROBE_EVERY_BYTES), offset + length - 1)
    return all(file.pread_if_cached(place, 1) is not None for place in places)


def _resolve(future: "asyncio.Future[None]") -> None:
    if not future.done():
        future.set_result(None)


def _remote(transport: asyncio.Transport) -> str:
    peer = transport.get_extra_info("peername")
    return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) and len(peer) >= 2 else ""
