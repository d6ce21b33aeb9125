"""`python -m bench.storing_origin`: an origin on the loopback that keeps what is put, answers after a latency, throttles, and goes away.

Of S3 it knows GET (with one Range that begins within the object), HEAD and PUT of objects in any bucket, no conditions, and says of a
bucket that it has no versions, no encryption and no locks. Signatures are not looked at. Steered under `/-/`:

    GET   /-/counters    JSON: `requests` by operation, `refused` (503s), `bytes_in`, `bytes_out`
    POST  /-/settings    JSON, any of: `latency_s`, `rate` (requests a second; 0 for no bound), `burst`, `is_away` (connections are cut)
"""

import argparse
import asyncio
import hashlib
import json
import time
from collections import Counter
from email.utils import formatdate
from typing import Final, NamedTuple
from urllib.parse import unquote

import uvloop

from bench.http_origin import Answer, Request, answer, serve_at
from bench.throttled_origin import slow_down
from storage.origin.pacing import TokenBucket

XML: Final = "content-type: application/xml\r\n"


class Stored(NamedTuple):
    """One object."""

    body: bytes
    headers: str


class Origin:
    """What all connections share."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._objects: dict[str, Stored] = {}
        self._bucket: TokenBucket | None = None
        self._latency_s = 0.0
        self._is_away = False
        self._requests: Counter[str] = Counter()
        self._refused = 0
        self._bytes_in = 0
        self._bytes_out = 0

    def serve(self, request: Request) -> Answer:
        """Count a request and answer it."""
        if request.path.startswith("/-/"):
            return Answer(self._steered(request))
        key = request.path.strip("/").partition("/")[2]
        operation = request.method.capitalize() + ("Object" if key else "Bucket")
        self._requests[operation] += 1
        if self._is_away:
            return Answer(None)
        if self._bucket is not None and self._bucket.take(self._loop.time(), 1.0) > 0.0:
            self._refused += 1
            return Answer(slow_down(request), self._latency_s)
        written = self._object(request) if key else _of_bucket(request)
        self._bytes_in += len(request.body)
        self._bytes_out += len(written)
        return Answer(written, self._latency_s)

    def _object(self, request: Request) -> bytes:
        name, of_head = unquote(request.path), request.method == "HEAD"
        if request.method == "PUT":
            headers = f'etag: "{hashlib.md5(request.body).hexdigest()}"\r\n'
            dated = (
                f"{headers}last-modified: {formatdate(time.time(), usegmt=True)}\r\naccept-ranges: bytes\r\n"
            )
            self._objects[name] = Stored(request.body, dated)
            return answer("200 OK", b"", headers)
        stored = self._objects.get(name)
        if stored is None:
            return answer("404 Not Found", b"<Error><Code>NoSuchKey</Code></Error>", XML, of_head=of_head)
        body, headers = stored
        if not (wanted := request.header(b"range")):
            return answer("200 OK", body, headers, of_head=of_head)
        first, _, last = wanted.removeprefix(b"bytes=").partition(b"-")
        start, stop = int(first), min(len(body), int(last) + 1 if last else len(body))
        headers += f"content-range: bytes {start}-{stop - 1}/{len(body)}\r\n"
        return answer("206 Partial Content", body[start:stop], headers, of_head=of_head)

    def _steered(self, request: Request) -> bytes:
        if request.path == "/-/counters":
            told = {
                "requests": self._requests,
                "refused": self._refused,
                "bytes_in": self._bytes_in,
                "bytes_out": self._bytes_out,
            }
            return answer("200 OK", json.dumps(told).encode())
        settings = json.loads(request.body)
        self._latency_s = settings.get("latency_s", self._latency_s)
        self._is_away = settings.get("is_away", self._is_away)
        if "rate" in settings:
            rate, burst = settings["rate"], settings.get("burst", 1.0)
            self._bucket = TokenBucket(rate=rate, burst=burst, now_s=self._loop.time()) if rate else None
        return answer("200 OK")


def _of_bucket(request: Request) -> bytes:
    """Say that a bucket is there, and has nothing special."""
    if request.query.startswith("versioning"):
        return answer("200 OK", b"<VersioningConfiguration/>", XML)
    if request.query:
        code = b"<Error><Code>ServerSideEncryptionConfigurationNotFoundError</Code></Error>"
        if request.query.startswith("object-lock"):
            code = b"<Error><Code>ObjectLockConfigurationNotFoundError</Code></Error>"
        return answer("404 Not Found", code, XML)
    return answer("200 OK", of_head=request.method == "HEAD")


async def serve(port: int) -> None:
    """Serve until the process is ended."""
    await serve_at(port, Origin().serve)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))
