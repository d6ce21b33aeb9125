"""Connections as aiohttp's low-level server gives them: their number bounded, each with its `Wire`, ended in order.

aiohttp parses a request's head before anybody here sees it. One that its parser refuses never becomes a request of ours; it is
answered all the same, as S3 answers: `Handler.refuse`, and then the connection ends, since nobody knows where the next request
would begin.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Protocol

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_protocol import RequestHandler

from gateway.respond import Wire
from gateway.telemetry import RequestStats
from storage.types import KIB

LINE_BYTES_MAX: Final = 32 * KIB
"""Request line and each header: a presigned URL with a key of 1024 escaped bytes is 7 kB."""

HEADERS_MAX: Final = 256

READ_BYTES: Final = 64 * KIB
"""aiohttp buffers twice this much of a body before it stops reading from the connection."""

CUT_S: Final = 0.1
"""At a stop, what did not end in time gets this long to let go."""

IDLE_S: Final = 75.0
"""A connection without a request is closed after this; SDKs keep theirs for up to a minute."""

HARD_LIMIT_SHARE: Final = 8
"""Beyond the limit plus one in so many, a connection is not even answered."""


class Written(web.StreamResponse):
    """Tells aiohttp that the answer is written, and whether the connection goes on."""

    def __init__(self, *, keep_alive: bool) -> None:
        super().__init__()
        self._keep_alive = keep_alive

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:  # noqa: ARG002
        """Write nothing."""
        return None

    async def write_eof(self, data: bytes = b"") -> None:
        """Write nothing."""


class Handler(Protocol):
    """Who answers; `server.S3Server`."""

    async def handle(self, raw: web.BaseRequest) -> web.StreamResponse:
        """Answer one request and say whether its connection goes on."""
        ...

    async def refuse(self, raw: web.BaseRequest, error: BaseException | None) -> None:
        """Answer what is no request; `raw` stands for it and holds nothing of it."""
        ...


class _Refused(Written):
    """Answers, when aiohttp would write a response, a head that its parser refused."""

    def __init__(self, handler: Handler, raw: web.BaseRequest, error: BaseException | None) -> None:
        super().__init__(keep_alive=False)
        self._handler: Final = handler
        self._raw: Final = raw
        self._error: Final = error

    async def write_eof(self, data: bytes = b"") -> None:  # noqa: ARG002  # aiohttp's signature
        """Have the refusal written."""
        await self._handler.refuse(self._raw, self._error)


class _Connection(RequestHandler):
    """One connection; an error of aiohttp's own is answered by our handler."""

    handler: Handler

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002  # aiohttp's signature
    ) -> web.StreamResponse:
        """Refuse what is no request; end the connection where our own handler failed, of whose answer a part may have left."""
        if status == 400:
            # What still comes is dropped: the parser has lost its place.
            self.close()
            return _Refused(self.handler, request, exc)
        self.log_exception("the handler of a request failed", exc_info=exc)
        if self.transport is not None:
            self.transport.abort()
        return Written(keep_alive=False)


class Listener(web.Server):
    """aiohttp's server, which also keeps the `Wire` of each connection and bounds their number."""

    def __init__(self, handler: Handler, stats: RequestStats, connections_max: int) -> None:
        super().__init__(handler.handle)
        self._handler: Final = handler
        self._stats: Final = stats
        self._connections_max: Final = connections_max
        self._wires: Final[dict[RequestHandler, Wire]] = {}
        self._running: Final[set[RequestHandler]] = set()
        self._ended: Final = asyncio.Event()
        self._ended.set()

    def __call__(self) -> RequestHandler:
        """Make the protocol of a new connection."""
        connection = _Connection(
            self,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]  # None turns it off, which the annotation forgets
            auto_decompress=False,
            keepalive_timeout=IDLE_S,
            lingering_time=0,
            max_field_size=LINE_BYTES_MAX,
            max_headers=HEADERS_MAX,
            max_line_size=LINE_BYTES_MAX,
            read_bufsize=READ_BYTES,
        )
        connection.handler = self._handler
        return connection

    def wire(self, protocol: RequestHandler) -> Wire | None:
        """Give the connection of a request; None once it has ended."""
        return self._wires.get(protocol)

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        """Take a connection in, or turn it away."""
        super().connection_made(handler, transport)
        self._wires[handler] = wire = Wire(transport)
        self._stats.connections = count = len(self._wires)
        if count > self._connections_max:
            wire.is_over_limit = True
            self._stats.refused_connections += 1
            if count > self._connections_max + self._connections_max // HARD_LIMIT_SHARE + 1:
                wire.abort()

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        """Let a connection go."""
        super().connection_lost(handler, exc)
        wire = self._wires.pop(handler, None)
        self._stats.connections = len(self._wires)
        if wire is not None:
            wire.lost()

    @contextmanager
    def running(self, protocol: RequestHandler) -> Iterator[None]:
        """Let `stop` wait for the block, which answers a request of this connection."""
        self._running.add(protocol)
        self._ended.clear()
        try:
            yield
        finally:
            self._running.discard(protocol)
            if not self._running:
                self._ended.set()

    async def stop(self, grace_s: float) -> None:
        """Close idle connections, let running requests end within `grace_s`, cut off the rest.

        aiohttp's own shutdown stops reading from every connection, so a body that is still on its way would never end;
        its handler's `close` leaves the socket of an idle connection open.
        """
        for protocol, wire in tuple(self._wires.items()):
            if protocol not in self._running:
                protocol.close()
                wire.transport.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                await self._ended.wait()
        await self.shutdown(CUT_S)
