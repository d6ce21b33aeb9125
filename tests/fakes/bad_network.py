"""What stands between a gateway and its origin, and does not always speak HTTP: a relay on the loopback that turns bad on command."""

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self


@dataclass(slots=True)
class BadNetwork:
    """A relay to `port` on the loopback.

    Attributes:
        answer: Sent to whoever asks, in place of the origin's answer; the connection is closed then. None: relay.
        hangs: Take requests and say nothing.
        requests: Connections that got something else than the relay.
    """

    port: int
    answer: bytes | None = None
    hangs: bool = False
    requests: int = 0
    _server: asyncio.Server | None = None
    _address: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set["asyncio.Task[None]"] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.refuse()
        for task in tuple(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def url(self) -> str:
        """Where the gateway finds its origin."""
        return f"http://127.0.0.1:{self._address}"

    async def listen(self) -> None:
        """Take connections, again on the same port."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", self._address)
        self._address = self._server.sockets[0].getsockname()[1]

    async def refuse(self) -> None:
        """Take no connection, and end those that there are."""
        if self._server is not None:
            self._server.close()
            self._server = None
        self.cut()

    def cut(self) -> None:
        """End all connections, so that what comes next meets what the network is now."""
        for writer in tuple(self._writers):
            writer.transport.abort()

    def turn_bad(self, answer: bytes | None = None, *, hangs: bool = False) -> None:
        """Answer this from now on, or nothing."""
        self.answer, self.hangs = answer, hangs
        self.cut()

    def heal(self) -> None:
        """Relay again."""
        self.answer, self.hangs = None, False
        self.cut()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "a connection has a task"
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                await self._serve(reader, writer)
        finally:
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.answer is None and not self.hangs:
            await self._relay(reader, writer)
            return
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        if self.hangs:
            await reader.read()
            return
        writer.write(self.answer or b"")
        await writer.drain()
        await asyncio.sleep(0.05)  # the client reads it before it sees the end

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        their_reader, their_writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers.add(their_writer)
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(_pipe(reader, their_writer))
                both.create_task(_pipe(their_reader, writer))
        finally:
            self._writers.discard(their_writer)
            their_writer.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while chunk := await reader.read(65536):
            writer.write(chunk)
            await writer.drain()
    writer.transport.abort()
