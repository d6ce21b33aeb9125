"""The data lane's pooled connections: what comes on one belongs to the request that was sent on it, and to no other."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from storage.clock import SystemClock
from storage.origin.admission import Limiter
from storage.origin.client import OriginClient
from storage.origin.credentials import Credentials, StaticCredentials
from storage.origin.endpoint import OriginSettings
from storage.origin.limiter import LimiterSettings
from storage.types import ObjectName
from tests.fakes.running_engine import until

NAME = ObjectName("bucket", "key")


def answer(body: bytes, *, status: str = "200 OK", length: int | None = None) -> bytes:
    """Write an answer about an object, or one that only says that it is of so many bytes."""
    head = (
        f"HTTP/1.1 {status}\r\n"
        f'ETag: "{len(body)}"\r\n'
        "Last-Modified: Mon, 30 Nov 2026 08:30:20 GMT\r\n"
        f"Content-Length: {len(body) if length is None else length}\r\n\r\n"
    )
    return head.encode() + body


class RawOrigin:
    """Answers each request on a connection with the next text, and sends another one when it is told, asked or not."""

    def __init__(self, *texts: bytes) -> None:
        self.texts = list(texts)
        self.connections = 0
        self._writer: asyncio.StreamWriter | None = None
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection."""
        self.connections += 1
        self._writer = writer
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                self.requests += 1
                writer.write(self.texts.pop(0))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def say(self, text: bytes) -> None:
        """Send what nobody asked for on the newest connection, and see it sent."""
        assert self._writer is not None
        self._writer.write(text)
        await self._writer.drain()


@asynccontextmanager
async def lane(origin: RawOrigin) -> AsyncIterator[OriginClient]:
    """Run the raw origin, and a client of it."""
    server = await asyncio.start_server(origin.serve, "127.0.0.1", 0)
    clock = SystemClock()
    client = OriginClient(
        OriginSettings(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", read_attempts=1),
        limiter=Limiter(LimiterSettings(), clock),
        credentials=StaticCredentials(Credentials("key", "secret")),
        clock=clock,
        rng=random.Random(1),
    )
    try:
        async with client:
            yield client
    finally:
        server.close()


async def read(client: OriginClient) -> bytes:
    """Get the object."""
    async with client.get_object(NAME) as opened:
        return b"".join([chunk async for chunk in opened.chunks()])


def has_heard(client: OriginClient) -> bool:
    """Whether something came on an idle connection."""
    session = client._caller._transport._session
    assert session is not None
    assert session.connector is not None
    idle = [protocol for waiting in session.connector._conns.values() for protocol, _ in waiting]
    return any(protocol.should_close or not protocol.is_connected() for protocol in idle)


@pytest.mark.parametrize(
    "unasked",
    [answer(b"of another object"), answer(b"", status="408 Request Timeout"), b"no HTTP at all"],
    ids=["answer", "408", "noise"],
)
async def test_what_comes_on_an_idle_connection_is_no_answer(unasked: bytes) -> None:
    """B57 and B07: servers say 408 before they close; whatever it is, the next read asks on another connection and is right."""
    origin = RawOrigin(answer(b"first"), answer(b"second"))
    async with lane(origin) as client:
        first = await read(client)
        await origin.say(unasked)
        await until(lambda: has_heard(client))

        second = await read(client)

        assert (first, second) == (b"first", b"second")
        assert (origin.connections, origin.requests) == (2, 2)
        assert client.counters.requests == {("GetObject", "200"): 2}


async def test_what_follows_a_body_that_was_longer_than_it_said_is_no_answer() -> None:
    """B14: the bytes behind Content-Length, here a whole answer of another object, reach nobody."""
    origin = RawOrigin(answer(b"first", length=5) + answer(b"of another object"), answer(b"second"))
    async with lane(origin) as client:
        first = await read(client)

        second = await read(client)

        assert (first, second) == (b"first", b"second")


async def test_connection_is_reused_where_nothing_came() -> None:
    """One connection serves one request after the other."""
    origin = RawOrigin(answer(b"first"), answer(b"second"), answer(b"third"))
    async with lane(origin) as client:
        got = [await read(client) for _ in range(3)]

        assert got == [b"first", b"second", b"third"]
        assert origin.connections == 1
