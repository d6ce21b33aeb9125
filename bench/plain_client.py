"""GETs over plain sockets, for benchmarks that share the processors with what they measure: a client costs a fifth of aiohttp's.

`Connection` is one reader among many on an event loop. `Probe` is alone in its process, and tells when an answer was there apart from when
its process was let look: the kernel stamps what it receives (SO_TIMESTAMPNS, socket(7)), on the loopback in the step in which the
server's own write puts it there. Linux only.
"""

import asyncio
import socket
import struct
import time
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from storage.origin.signing import EMPTY_SHA256, SigningIdentity, sign_headers
from storage.types import KIB

RECEIVE_BYTES: Final = 64 * KIB
_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length: "
_SO_TIMESTAMPNS: Final = 35
_TIMESPEC: Final = struct.Struct("qq")


def signed_headers(identity: SigningIdentity, endpoint: str, path: str) -> dict[str, str]:
    """Give the headers of a signed GET; good for 15 minutes."""
    headers = {"host": endpoint.removeprefix("http://")}
    return sign_headers(identity, "GET", path, headers, EMPTY_SHA256, time.time())


def signed_get(identity: SigningIdentity, endpoint: str, path: str) -> bytes:
    """Write a signed GET as it goes over the wire."""
    signed = signed_headers(identity, endpoint, path)
    lines = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
    return f"GET {path} HTTP/1.1\r\n{lines}\r\n".encode()


def address(endpoint: str) -> tuple[str, int]:
    """Take an address of the form http://host:port apart."""
    host, _, port = endpoint.removeprefix("http://").partition(":")
    return host, int(port)


class Answer:
    """One answer as it comes; its head says how long it is."""

    def __init__(self) -> None:
        self._received = bytearray()
        self._stop: int | None = None
        self.status = 0

    def take(self, data: bytes) -> bool:
        """Take what was received; say whether the answer is whole."""
        self._received += data
        if self._stop is None:
            head, end, _ = bytes(self._received).partition(_HEAD_END)
            if not end:
                return False
            self.status = int(head[9:12])
            length = head.lower().partition(_LENGTH)[2].split(b"\r\n", 1)[0]
            self._stop = len(head) + len(end) + int(length)
        return len(self._received) >= self._stop


class Connection(asyncio.Protocol):
    """Sends one request at a time: what `ready` asks for by `ask`, each time that it is called."""

    def __init__(
        self,
        ready: Callable[["Connection"], object],
        answered: Callable[["Connection", int], object],
        lost: Callable[[], object],
    ) -> None:
        """Tell `ready` of the connection once, `answered` of each status, `lost` of an end that nobody wanted."""
        self._ready = ready
        self._answered = answered
        self._lost = lost
        self._answer: Answer | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports are no instances of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        self._ready(self)

    def connection_lost(self, _error: Exception | None) -> None:
        if self._transport is not None:
            self._lost()

    def ask(self, request: bytes) -> None:
        """Send a request."""
        assert self._transport is not None, "it is open"
        self._answer = Answer()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        assert self._answer is not None, "nothing comes unasked"
        if self._answer.take(data):
            self._answered(self, self._answer.status)

    def close(self) -> None:
        """End the connection."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()


class Took(NamedTuple):
    """How long a GET took, in seconds: until its answer was there, and until its reader had it."""

    answered_s: float
    read_s: float


class Probe:
    """One connection, on which a GET is sent and waited for."""

    def __init__(self, endpoint: str) -> None:
        self._socket = socket.create_connection(address(endpoint))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)

    def get(self, request: bytes) -> Took:
        """Send a request and read its answer, which is to be 200."""
        answer, is_whole, there_ns = Answer(), False, 0
        begun_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        self._socket.sendall(request)
        while not is_whole:
            data, told, _, _ = self._socket.recvmsg(RECEIVE_BYTES, socket.CMSG_SPACE(_TIMESPEC.size))
            if not data:
                raise ConnectionError("the connection ended before the answer")
            for _, _, stamp in told:
                seconds, nanoseconds = _TIMESPEC.unpack(stamp)
                there_ns = seconds * 10**9 + nanoseconds
            is_whole = answer.take(data)
        read_ns = time.clock_gettime_ns(time.CLOCK_REALTIME)
        assert answer.status == 200, f"the object is there, not {answer.status}"
        assert begun_ns <= there_ns <= read_ns, "the kernel stamps what it receives"
        return Took((there_ns - begun_ns) / 1e9, (read_ns - begun_ns) / 1e9)

    def close(self) -> None:
        """End the connection."""
        self._socket.close()
