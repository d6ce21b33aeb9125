"""HTTP/1.1 for origins of benchmarks, which share the processors with what they measure: a request costs a tenth of what aiohttp's takes.

Each request is answered after a time that its answer names; a client is to wait for one before it sends the next. A body is taken by
its Content-Length and held in memory; a chunked one ends the connection.
"""

import asyncio
from collections.abc import Callable
from typing import NamedTuple, cast

_HEAD_END = b"\r\n\r\n"


class Request(NamedTuple):
    """What was asked, as it came.

    Attributes:
        head: All of it, the request line included, in lower case.
    """

    method: str
    path: str
    query: str
    head: bytes
    body: bytes

    def header(self, name: bytes) -> bytes:
        """Give the value of a header, named in lower case; nothing where it was not sent."""
        return _header(self.head, name)


def _header(head: bytes, name: bytes) -> bytes:
    _, found, rest = head.partition(b"\r\n%s:" % name)
    return rest.partition(b"\r\n")[0].strip() if found else b""


class Answer(NamedTuple):
    """What goes back, whole, and how many seconds later; `None` cuts the connection."""

    written: bytes | None
    delay_s: float = 0.0


def answer(status: str, body: bytes = b"", headers: str = "", *, of_head: bool = False) -> bytes:
    """Write an answer; one to HEAD has the length of `body` alone. `headers` are lines, each with its end."""
    head = f"HTTP/1.1 {status}\r\n{headers}content-length: {len(body)}\r\n\r\n".encode()
    return head if of_head else head + body


class Connection(asyncio.Protocol):
    """One client's requests, each answered by `serve`."""

    def __init__(self, serve: Callable[[Request], Answer]) -> None:
        self._serve = serve
        self._received = bytearray()
        self._head: bytes | None = None
        self._body_bytes = 0
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what answers are written to."""
        # uvloop's transports are no instances of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _error: Exception | None) -> None:
        """Answer nobody any more."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Serve each request that is whole."""
        self._received += data
        while (request := self._next()) is not None:
            written, delay_s = self._serve(request)
            if written is None:
                if self._transport is not None:
                    self._transport.abort()
                return
            if delay_s > 0:
                asyncio.get_running_loop().call_later(delay_s, self._send, written)
            else:
                self._send(written)

    def _next(self) -> Request | None:
        if self._head is None:
            end = self._received.find(_HEAD_END)
            if end < 0:
                return None
            self._head = bytes(self._received[: end + 2])
            del self._received[: end + len(_HEAD_END)]
            lower = self._head.lower()
            if _header(lower, b"transfer-encoding"):
                self._send(answer("501 Not Implemented"))
                if self._transport is not None:
                    self._transport.close()
                return None
            self._body_bytes = int(_header(lower, b"content-length") or 0)
            if _header(lower, b"expect"):
                self._send(b"HTTP/1.1 100 Continue\r\n\r\n")
        if len(self._received) < self._body_bytes:
            return None
        head, self._head = self._head, None
        body = bytes(self._received[: self._body_bytes])
        del self._received[: self._body_bytes]
        method, target, _ = head[: head.index(b"\r\n")].decode().split(" ")
        path, _, query = target.partition("?")
        return Request(method, path, query, head.lower(), body)

    def _send(self, written: bytes) -> None:
        if self._transport is not None:
            self._transport.write(written)


async def serve_at(port: int, serve: Callable[[Request], Answer]) -> None:
    """Serve on the loopback until cancelled."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(serve), "127.0.0.1", port, backlog=1024)
    async with server:
        await server.serve_forever()
