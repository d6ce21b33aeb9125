"""`python -m bench.throttled_origin`: an origin on the loopback whose token bucket throttles; every key of every bucket is there.

It answers GET and HEAD of objects and nothing else of S3: 200 while its bucket has a token, 503 SlowDown else, each after a latency.
`GET /-/seconds` gives what was taken and refused in each second since the first request, as JSON, and starts anew.
"""

import argparse
import asyncio
import json
import zlib
from typing import Final, cast

import uvloop

from storage.origin.pacing import TokenBucket

DATE: Final = "Mon, 30 Nov 2026 00:00:00 GMT"
SLOW_DOWN: Final = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Origin:
    """What all connections share."""

    def __init__(self, rate: float, burst: float, latency_s: float, size: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.bucket = TokenBucket(rate=rate, burst=burst, now_s=self.loop.time())
        self.latency_s = latency_s
        self.body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        self.begun_s: float | None = None
        self.seconds: list[list[int]] = []

    def answer(self, method: str, path: str) -> bytes:
        """Count a request and give its answer."""
        if path == "/-/seconds":
            body = json.dumps(self.seconds).encode()
            self.begun_s, self.seconds = None, []
            return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        now_s = self.loop.time()
        is_taken = self.bucket.take(now_s, 1.0) == 0.0
        self.begun_s = now_s if self.begun_s is None else self.begun_s
        while len(self.seconds) <= now_s - self.begun_s:
            self.seconds.append([0, 0])
        self.seconds[int(now_s - self.begun_s)][not is_taken] += 1
        if not is_taken:
            head = b"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: %d\r\n\r\n"
            return head % len(SLOW_DOWN) + (b"" if method == "HEAD" else SLOW_DOWN)
        head = (
            f'HTTP/1.1 200 OK\r\nETag: "{zlib.crc32(path.encode()):032x}"\r\nLast-Modified: {DATE}\r\n'
            f"Accept-Ranges: bytes\r\nContent-Length: {len(self.body)}\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else self.body)


class Connection(asyncio.Protocol):
    """Requests without bodies, one after the other."""

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._received = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what answers are written to."""
        # uvloop's transports are no instances of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, _error: Exception | None) -> None:
        """Answer nobody any more."""
        self._transport = None

    def data_received(self, data: bytes) -> None:
        """Answer each whole head."""
        self._received += data
        while b"\r\n\r\n" in self._received:
            head, _, self._received = self._received.partition(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
            answer = self._origin.answer(method, target.partition("?")[0])
            self._origin.loop.call_later(self._origin.latency_s, self._send, answer)

    def _send(self, answer: bytes) -> None:
        if self._transport is not None:
            self._transport.write(answer)


async def serve(given: argparse.Namespace) -> None:
    """Serve until the process is ended."""
    origin = Origin(given.rate, given.burst, given.latency, given.size)
    server = await origin.loop.create_server(
        lambda: Connection(origin), "127.0.0.1", given.port, backlog=1024
    )
    async with server:
        await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--burst", type=float, default=20.0)
    parser.add_argument("--latency", type=float, default=0.01)
    parser.add_argument("--size", type=int, default=4096)
    uvloop.run(serve(parser.parse_args()))
