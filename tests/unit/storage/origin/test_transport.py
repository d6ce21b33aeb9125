"""How a body is fed to the origin, and what is told of a request that got no answer."""

import asyncio
import errno
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from storage.origin.endpoint import OriginSettings
from storage.origin.transport import Attempt, _feed, cause_in_words
from storage.origin.wire import OutgoingBody


async def pieces() -> AsyncIterator[bytes]:
    """A body of two pieces."""
    yield b"ab"
    yield b"c"


async def test_a_body_is_not_to_blame_when_the_time_runs_out_while_it_is_sent() -> None:
    """The time-out is what the caller is told, since the attempt may have landed; moving its end now is no error of the body."""
    attempt, sent = Attempt(), list[bytes]()
    with suppress(TimeoutError):
        async with asyncio.timeout(0) as deadline:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                body = OutgoingBody(3, pieces, is_repeatable=True)
                settings = OriginSettings("http://127.0.0.1:1")
                sent = [piece async for piece in _feed(body, deadline, settings, attempt)]
                raise

    assert sent == [b"ab", b"c"]
    assert attempt.body_error is None


KEY = ConnectionKey("origin", 443, True, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            aiohttp.ClientConnectorError(
                KEY, OSError(errno.ECONNREFUSED, "Connect call failed ('127.0.0.1', 9)")
            ),
            "Connection refused",
        ),
        (
            aiohttp.ClientConnectorCertificateError(
                KEY, ssl.SSLCertVerificationError(1, "[SSL: X] certificate verify failed: expired (_ssl.c:9)")
            ),
            "certificate verify failed: expired",
        ),
        (aiohttp.ServerDisconnectedError(), "it was closed before an answer"),
        (aiohttp.ClientOSError(errno.ECONNRESET, "Connection reset by peer"), "Connection reset by peer"),
        (RuntimeError("Session is closed"), "Session is closed"),
    ],
)
def test_a_connection_that_failed_is_told_without_insides(error: Exception, words: str) -> None:
    """The system's words, without addresses as Python shows them, classes and lines of source."""
    assert cause_in_words(error) == words
