"""Listening: how many connections a turn of the loop takes in, what a lack of descriptors does, and how it ends."""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import cast

import pytest

from gateway import acceptor
from gateway.acceptor import ACCEPTS_MAX, Acceptor, listen
from tests.fakes.gateway import until

CROWD = 2 * ACCEPTS_MAX


class Echo(asyncio.Protocol):
    """Sends back what comes; counts its connections, all and those that are open."""

    made = 0
    open = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count."""
        # uvloop's transports are not instances of asyncio's class.
        self._transport = cast("asyncio.Transport", transport)
        Echo.made += 1
        Echo.open += 1

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  asyncio's signature
        """Count it out."""
        Echo.open -= 1

    def data_received(self, data: bytes) -> None:
        """Send it back."""
        self._transport.write(data)


@asynccontextmanager
async def listening(context: ssl.SSLContext | None = None) -> AsyncIterator[Acceptor]:
    """Listen on a free port of the loopback; at the end every connection is gone."""
    Echo.made = Echo.open = 0
    (opened,) = await listen("127.0.0.1", 0, Echo, context)
    try:
        yield opened
    finally:
        opened.close()
    await until(lambda: Echo.open == 0)


async def turns_until(is_so: Callable[[], bool]) -> int:
    """Turn the loop until something is so; give how many turns it took."""
    for turn in range(100 * CROWD):
        if is_so():
            return turn
        await asyncio.sleep(0)  # noqa: TID251  # one turn of the loop
    raise AssertionError("it does not become so")


async def test_a_crowd_is_taken_in_within_a_few_turns() -> None:
    """Who waits to be accepted does not wait a turn of the loop for each of those before."""
    async with listening() as opened:
        # The kernel takes them into the backlog; the loop has no turn meanwhile.
        crowd = [socket.create_connection(opened.address) for _ in range(CROWD)]

        turns = await turns_until(lambda: Echo.made == CROWD)
        for client in crowd:
            client.close()

    assert turns < CROWD // 4


async def test_what_a_connection_sends_comes_back() -> None:
    """An accepted connection is one like any other, over IPv6 too where there is a loopback of it."""
    async with listening() as opened:
        reader, writer = await asyncio.open_connection(*opened.address)
        writer.write(b"hello")

        came = await reader.readexactly(5)
        writer.close()
        await writer.wait_closed()

    assert came == b"hello"


async def test_a_lack_of_descriptors_delays_connections_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With EMFILE the loop neither spins nor gives up: what waits is accepted once there are descriptors again."""
    monkeypatch.setattr(acceptor, "PAUSE_S", 0.02)
    calls = 0

    class Scarce(socket.socket):
        """Finds no descriptor three times."""

        def accept(self) -> tuple[socket.socket, object]:
            """Fail, then accept."""
            nonlocal calls
            calls += 1
            if calls <= 3:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    Echo.made = Echo.open = 0
    scarce = Scarce(socket.AF_INET, socket.SOCK_STREAM)
    scarce.settimeout(0)
    scarce.bind(("127.0.0.1", 0))
    scarce.listen()
    opened = Acceptor(scarce, Echo, None)
    client = socket.create_connection(opened.address)
    with caplog.at_level(logging.WARNING):
        await until(lambda: Echo.made == 1)
    client.close()
    opened.close()
    await until(lambda: Echo.open == 0)

    # The last call finds nobody.
    assert calls == 5
    assert [record.levelname for record in caplog.records] == ["WARNING"] * 3


async def test_nothing_is_accepted_after_the_close() -> None:
    """New clients are refused, a connection that was accepted goes on, a second close does nothing."""
    async with listening() as opened:
        address = opened.address
        reader, writer = await asyncio.open_connection(*address)
        await until(lambda: Echo.made == 1)
        opened.close()
        opened.close()
        writer.write(b"still")

        came = await reader.readexactly(5)
        writer.close()
        await writer.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)

    assert came == b"still"


async def test_a_handshake_under_way_is_cut_at_the_close(
    tls_contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """A client that never speaks TLS does not hold up a stop; one that speaks something else ends only its own connection."""
    async with listening(tls_contexts[0]) as opened:
        silent_reader, silent = await asyncio.open_connection(*opened.address)
        wrong_reader, wrong = await asyncio.open_connection(*opened.address)
        wrong.write(b"GET / HTTP/1.1\r\n\r\n")
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await wrong_reader.readuntil(b"no end")
        reader, writer = await asyncio.open_connection(
            *opened.address, ssl=tls_contexts[1], server_hostname="localhost"
        )
        writer.write(b"hello")
        came = await reader.readexactly(5)
        opened.close()

        async with asyncio.timeout(5):
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await silent_reader.readuntil(b"no end")
        for one in (silent, wrong, writer):
            one.close()

    assert came == b"hello"


async def test_an_address_in_use_is_named() -> None:
    """Who starts two gateways on one port reads which."""
    async with listening() as opened:
        with pytest.raises(
            OSError, match=f"cannot listen on 127.0.0.1 port {opened.address[1]}: Address already"
        ):
            await listen(*opened.address, Echo)
