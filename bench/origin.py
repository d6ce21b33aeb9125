"""An origin on the loopback with one large object: so many bytes a second on each connection, so long to the first byte.

    python -m bench.origin --port 9100 --size 1GiB --rate 50MB --latency 0.02

Any bucket and key names the object. Its bytes are of the size alone (`content`). GET, HEAD, Range and If-Match; nothing is checked of
a signature. `GET /-/counters` gives, as JSON: requests, requests of a range, bytes sent, the most connections that sent at a time.
"""

import argparse
import asyncio
import json
import random
from contextlib import suppress
from dataclasses import asdict, dataclass

import uvloop

from gateway.setting_values import parse_size
from storage.types import KIB

STEP_BYTES = 256 * KIB
PERIOD_BYTES = 1_048_583
"""A prime: bytes that are shifted by any number of blocks are other bytes."""

ETAG = "5f0c1f0b8e1f4b7c9e1a5f0c1f0b8e1f"

_PERIOD = random.Random(5).randbytes(PERIOD_BYTES)
_TWICE = _PERIOD + _PERIOD


def content(start: int, length: int) -> memoryview:
    """Give bytes of the object from `start` on, at most PERIOD_BYTES."""
    assert length <= PERIOD_BYTES, f"{length} bytes are more than a period"
    place = start % PERIOD_BYTES
    return memoryview(_TWICE)[place : place + length]


def is_content(start: int, data: memoryview) -> bool:
    """Whether these are the bytes from `start` on; at most PERIOD_BYTES."""
    # Two memoryviews would be compared one byte at a time.
    return _TWICE.startswith(data, start % PERIOD_BYTES)


@dataclass(slots=True)
class Counters:
    """What was asked of the origin."""

    requests: int = 0
    ranges: int = 0
    bytes_out: int = 0
    at_a_time: int = 0
    sending: int = 0


@dataclass(slots=True)
class SlowOrigin:
    """The server."""

    size: int
    bytes_per_s: float
    latency_s: float
    counters: Counters

    async def serve(self, port: int) -> None:
        """Serve until cancelled."""
        server = await asyncio.start_server(self._connection, "127.0.0.1", port)
        async with server:
            await server.serve_forever()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                method, target, _ = head[0].split(" ", 2)
                headers = dict(line.lower().split(": ", 1) for line in head[1:] if line)
                if target == "/-/counters":
                    body = json.dumps(asdict(self.counters)).encode()
                    writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
                    continue
                await self._answer(method, headers, writer)
        writer.close()

    async def _answer(self, method: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        counters = self.counters
        counters.requests += 1
        counters.ranges += "range" in headers
        await asyncio.sleep(self.latency_s)
        start, stop = 0, self.size
        status = "200 OK"
        told = ""
        if "range" in headers:
            first, _, last = headers["range"].removeprefix("bytes=").partition("-")
            start, stop = int(first), min(self.size, int(last) + 1) if last else self.size
            status = "206 Partial Content"
            told = f"content-range: bytes {start}-{stop - 1}/{self.size}\r\n"
        _check_open(writer)
        writer.write(
            f"HTTP/1.1 {status}\r\ncontent-length: {stop - start}\r\n{told}"
            f'etag: "{ETAG}"\r\nlast-modified: Mon, 02 Nov 2026 00:00:00 GMT\r\naccept-ranges: bytes\r\n\r\n'.encode()
        )
        if method == "HEAD":
            return
        counters.sending += 1
        counters.at_a_time = max(counters.at_a_time, counters.sending)
        try:
            await self._send(start, stop, writer)
        finally:
            counters.sending -= 1

    async def _send(self, start: int, stop: int, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        begun_s, sent = loop.time(), 0
        for place in range(start, stop, STEP_BYTES):
            piece = content(place, min(STEP_BYTES, stop - place))
            _check_open(writer)
            writer.write(piece)
            await writer.drain()
            self.counters.bytes_out += len(piece)
            sent += len(piece)
            ahead_s = begun_s + sent / self.bytes_per_s - loop.time()
            if ahead_s > 0.0005:
                await asyncio.sleep(ahead_s)
            elif ahead_s < -0.05:
                begun_s = (
                    loop.time() - sent / self.bytes_per_s
                )  # time that the machine took is not made up for


def _check_open(writer: asyncio.StreamWriter) -> None:
    """Raise where the client went away during a wait: uvloop takes a write to a closed connection for a mistake."""
    if writer.is_closing():
        raise ConnectionResetError("the client has gone")


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--size", type=parse_size, default=parse_size("1GiB"))
    parser.add_argument(
        "--rate", type=parse_size, default=parse_size("50MB"), help="bytes a second a connection"
    )
    parser.add_argument("--latency", type=float, default=0.02, help="seconds to the first byte")
    given = parser.parse_args()
    uvloop.run(SlowOrigin(given.size, given.rate, given.latency, Counters()).serve(given.port))


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
