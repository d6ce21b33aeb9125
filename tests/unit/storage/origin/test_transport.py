"""How a body is fed to the origin."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

from storage.origin.endpoint import OriginSettings
from storage.origin.transport import Attempt, _feed
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
