"""A listening socket that takes in all connections that wait, not one in each turn of the event loop.

libuv accepts one connection a turn (its `uv__server_io`, since 1.46), and so does uvloop's `create_server`. A turn under load takes tens of
milliseconds, so a crowd of new clients waits for half a minute while those that are in already are served. asyncio's own loop accepts
as many as the backlog holds; so does this.
"""

import asyncio
import errno
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from storage.words import in_words

BACKLOG: Final = 1024
"""Connections that wait to be accepted; the kernel may hold fewer (net.core.somaxconn)."""

ACCEPTS_MAX: Final = 128
"""So many are taken in one turn, so that those that are in get their turn too."""

PAUSE_S: Final = 1.0
"""Without a free descriptor nothing is accepted for so long; the connections wait in the kernel."""

_SCARCE: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


async def listen(
    host: str,
    port: int,
    protocol: Callable[[], asyncio.Protocol],
    context: ssl.SSLContext | None = None,
) -> list["Acceptor"]:
    """Listen on each address of a host; `protocol` makes that of each connection, within `context` over TLS.

    Raises:
        OSError: An address cannot be had.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    with ExitStack() as failing:
        sockets: list[socket.socket] = []
        for family, kind, number, _, address in dict.fromkeys(found):
            sockets.append(failing.enter_context(socket.socket(family, kind, number)))
            _bind(sockets[-1], address)
        failing.pop_all()
    return [Acceptor(listening, protocol, context) for listening in sockets]


def _bind(listening: socket.socket, address: tuple[object, ...]) -> None:
    listening.settimeout(0)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if listening.family == socket.AF_INET6:
        listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    try:
        listening.bind(address)
        listening.listen(BACKLOG)
    except OSError as error:
        raise OSError(
            error.errno, f"cannot listen on {address[0]} port {address[1]}: {error.strerror}"
        ) from None


class Acceptor:
    """Accepts on one address until it is closed; connections that were accepted go on."""

    def __init__(
        self,
        listening: socket.socket,
        protocol: Callable[[], asyncio.Protocol],
        context: ssl.SSLContext | None,
    ) -> None:
        self._listening: Final = listening
        self._protocol: Final = protocol
        self._context: Final = context
        self._loop: Final = asyncio.get_running_loop()
        self._openings: Final[set[asyncio.Task[None]]] = set()
        self._resuming: asyncio.TimerHandle | None = None
        self._loop.add_reader(listening, self._accept)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, as they were chosen where the port was 0."""
        host, port, *_ = self._listening.getsockname()
        return str(host), int(port)

    def close(self) -> None:
        """Accept nothing more; what waits in the kernel is refused, what is in the middle of a TLS handshake is cut."""
        if self._listening.fileno() < 0:
            return
        if self._resuming is not None:
            self._resuming.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()
        if self._context is not None:
            # Without TLS each has begun by now, and has an owner who ends it.
            for opening in self._openings:
                opening.cancel()

    def _accept(self) -> None:
        for _ in range(ACCEPTS_MAX):
            try:
                accepted, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _SCARCE:
                    raise
                _log.warning("no connection is accepted for %g s: %s", PAUSE_S, in_words(error))
                self._loop.remove_reader(self._listening)
                self._resuming = self._loop.call_later(PAUSE_S, self._resume)
                return
            accepted.settimeout(0)
            opening = self._loop.create_task(self._open(accepted))
            self._openings.add(opening)
            opening.add_done_callback(self._openings.discard)

    def _resume(self) -> None:
        self._resuming = None
        self._loop.add_reader(self._listening, self._accept)

    async def _open(self, accepted: socket.socket) -> None:
        # The transport owns the socket from here on, and closes it in whatever way this ends.
        try:
            await self._loop.connect_accepted_socket(self._protocol, accepted, ssl=self._context)
        except OSError as error:
            # ssl.SSLError is an OSError too: whoever scans ports is no event.
            _log.debug("a connection ended before it began: %s", error)
