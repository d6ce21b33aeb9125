"""`python -m bench.throttled_origin`: an origin on the loopback whose token bucket throttles; every key of every bucket is there.

It answers GET and HEAD of objects and nothing else of S3: 200 while its bucket has a token, 503 SlowDown else, each after a latency.
`GET /-/seconds` gives what was taken and refused in each second since the first request, as JSON, and starts anew.
"""

import argparse
import asyncio
import json
import zlib
from typing import Final

import uvloop

from bench.http_origin import Answer, Request, answer, serve_at
from storage.origin.pacing import TokenBucket

DATE: Final = "Mon, 30 Nov 2026 00:00:00 GMT"
SLOW_DOWN: Final = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


def slow_down(request: Request) -> bytes:
    """Write the answer that asks for less."""
    headers = "content-type: application/xml\r\n"
    return answer("503 Slow Down", SLOW_DOWN, headers, of_head=request.method == "HEAD")


class Origin:
    """What all connections share."""

    def __init__(self, rate: float, burst: float, latency_s: float, size: int) -> None:
        self.loop = asyncio.get_running_loop()
        self.bucket = TokenBucket(rate=rate, burst=burst, now_s=self.loop.time())
        self.latency_s = latency_s
        self.body = bytes(range(256)) * (size // 256) + bytes(size % 256)
        self.begun_s: float | None = None
        self.seconds: list[list[int]] = []

    def serve(self, request: Request) -> Answer:
        """Count a request and answer it."""
        if request.path == "/-/seconds":
            told = json.dumps(self.seconds).encode()
            self.begun_s, self.seconds = None, []
            return Answer(answer("200 OK", told))
        now_s = self.loop.time()
        is_taken = self.bucket.take(now_s, 1.0) == 0.0
        self.begun_s = now_s if self.begun_s is None else self.begun_s
        while len(self.seconds) <= now_s - self.begun_s:
            self.seconds.append([0, 0])
        self.seconds[int(now_s - self.begun_s)][not is_taken] += 1
        if not is_taken:
            return Answer(slow_down(request), self.latency_s)
        of_head = request.method == "HEAD"
        tag = zlib.crc32(request.path.encode())
        headers = f'ETag: "{tag:032x}"\r\nLast-Modified: {DATE}\r\nAccept-Ranges: bytes\r\n'
        return Answer(answer("200 OK", self.body, headers, of_head=of_head), self.latency_s)


async def serve(given: argparse.Namespace) -> None:
    """Serve until the process is ended."""
    await serve_at(given.port, Origin(given.rate, given.burst, given.latency, given.size).serve)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--burst", type=float, default=20.0)
    parser.add_argument("--latency", type=float, default=0.01)
    parser.add_argument("--size", type=int, default=4096)
    uvloop.run(serve(parser.parse_args()))
