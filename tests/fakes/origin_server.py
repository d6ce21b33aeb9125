"""An in-memory S3 origin over HTTP on the loopback, that fails as it is told.

In a test: `async with FakeOrigin() as origin:`, then `origin.url`, `origin.store`, `origin.faults`, `origin.log`. As a process:
`python -m tests.fakes.origin_server --port 9100 --bucket data`, steered under `/-/`:

    POST   /-/faults              JSON list of `Fault`s, added        DELETE /-/faults
    POST   /-/settings            JSON: latency_s, throttle_per_s, throttle_burst, keys {access: secret}, expired [access, ...],
                                  allowed {access: [beginning, ...]}
    PUT    /-/buckets/NAME?versioning=Enabled&encryption=aws:kms
    GET    /-/counters            requests by operation and status, bytes, faults hit
    GET    /-/log                 one JSON object a request          DELETE /-/log
    GET    /-/history?bucket=B&key=K   the states that the key went through
"""

import argparse
import asyncio
import contextlib
import hashlib
import re
import ssl
import time
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from email.utils import formatdate
from typing import Self
from urllib.parse import parse_qsl, unquote

import msgspec
from aiohttp import web
from botocore.auth import S3SigV4Auth  # type: ignore[import-untyped]  # it ships no types
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # it ships no types
from botocore.credentials import Credentials  # type: ignore[import-untyped]  # it ships no types

from tests.fakes.origin_faults import Fault, Faults, Throttle
from tests.fakes.origin_store import OriginStore, Received, Reply, error_reply, operation_of

LOG_MAX = 100_000
LOGGED_BODY_BYTES_MAX = 1024
SKEW_S_MAX = 900.0
_SCOPE = re.compile(
    r"Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, ?SignedHeaders=([^,]+), ?Signature=(\w+)"
)


@dataclass(frozen=True, slots=True)
class Logged:
    """One request and how it was answered; status 0 where the connection was cut instead."""

    at_s: float
    operation: str
    bucket: str
    key: str
    status: int
    bytes_in: int
    bytes_out: int
    range: str
    headers: dict[str, str]
    query: dict[str, str]
    method: str = ""
    target: str = ""
    body: bytes = b""
    access_key: str = ""


class Settings(msgspec.Struct):
    """What `/-/settings` takes; what is left out stays."""

    latency_s: float | None = None
    throttle_per_s: float | None = None
    throttle_burst: float | None = None
    keys: dict[str, str] | None = None
    expired: list[str] | None = None
    allowed: dict[str, tuple[str, ...]] | None = None


class _CutError(Exception):
    """End the connection without another byte."""


class FakeOrigin:
    """The server. Signatures are checked, by botocore, as soon as `keys` is not empty.

    Attributes:
        latency_s: Passes before each answer.
        keys: Secret keys by access key.
        expired: Access keys that answer ExpiredToken.
        allowed: By access key, what it may do anything with: beginnings of `bucket/key`. A key that is not named may do all.
        clock_offset_s: By how much the origin's clock is ahead; checked against signatures.
        checks_region: Answer 301 where a request is signed for another region than the bucket's.
    """

    def __init__(self, port: int = 0, *, tls: ssl.SSLContext | None = None) -> None:
        self.store = OriginStore()
        self.faults = Faults()
        self.throttle = Throttle()
        self.latency_s = 0.0
        self.keys: dict[str, str] = {}
        self.expired: set[str] = set()
        self.allowed: dict[str, tuple[str, ...]] = {}
        self.clock_offset_s = 0.0
        self.checks_region = False
        self.requests: Counter[str] = Counter()
        self.answers: Counter[tuple[str, int]] = Counter()
        self.bytes_in = 0
        self.bytes_out = 0
        self.in_flight = 0
        self.in_flight_max = 0
        self.connections = 0
        self.log: deque[Logged] = deque(maxlen=LOG_MAX)
        self._port = port
        self._tls = tls
        self._server = web.Server(self._handle, auto_decompress=False, access_log=None, keepalive_timeout=75)
        self._runner = web.ServerRunner(self._server, shutdown_timeout=0.1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, ssl_context=self._tls)
        await site.start()
        self._port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """The endpoint."""
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self._port}"

    def requests_of(self, operation: str) -> int:
        """Count the requests for one operation, refused and cut ones included."""
        return self.requests[operation]

    def cut_idle_connections(self) -> None:
        """Reset all connections, as an origin does with those that were idle for long."""
        for connection in list(self._server.connections):
            if connection.transport is not None:
                connection.transport.abort()

    # --- One request -------------------------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.raw_path.startswith("/-/"):
            return await self._admin(request)
        self.in_flight += 1
        self.in_flight_max = max(self.in_flight_max, self.in_flight)
        try:
            return await self._answer(request)
        except _CutError:
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        finally:
            self.in_flight -= 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        received = _parsed(request)
        operation = operation_of(received)
        self.requests[operation] += 1
        fault = self.faults.take(operation, received.bucket, received.key) or Fault()
        sent = 0
        status = 0
        try:
            if fault.drop == "before":
                raise _CutError
            received = _with_body(received, await self._body(request))
            await asyncio.sleep(self.latency_s + fault.delay_s)
            reply = self._reply(operation, received, request, fault)
            if fault.drop == "after":
                raise _CutError
            status = reply.status
            response, sent = await self._send(request, reply, fault)
            return response
        finally:
            self.answers[operation, status] += 1
            signed = _SCOPE.search(received.headers.get("authorization", ""))
            kept = {n: v for n, v in received.headers.items() if n != "authorization"}
            self.log.append(
                Logged(
                    time.time(),
                    operation,
                    received.bucket,
                    received.key,
                    status,
                    len(received.body),
                    sent,
                    received.headers.get("range", ""),
                    kept,
                    received.query,
                    request.method,
                    request.raw_path,
                    received.body[:LOGGED_BODY_BYTES_MAX],
                    signed[1] if signed is not None else "",
                )
            )

    def _reply(self, operation: str, received: Received, request: web.BaseRequest, fault: Fault) -> Reply:
        reply = self._refusal(received, request)
        if reply is None and fault.status and not fault.is_processed:
            reply = error_reply(fault.status, fault.code, "as told", fault.region)
        elif reply is None and fault.body:
            reply = Reply(200, fault.body.encode(), {"content-type": "application/xml"})
        elif reply is None:
            reply = self.store.handle(operation, received)
            if fault.status:
                reply = error_reply(fault.status, fault.code, "as told", fault.region)
        if fault.error_in_200:
            reply = error_reply(200, fault.error_in_200, "as told")
            reply.body = b"\n \n" + reply.body
        if fault.retry_after_s >= 0:
            reply.headers["retry-after"] = str(fault.retry_after_s)
        if request.method == "HEAD":
            reply.body = b""
        return reply

    async def _body(self, request: web.BaseRequest) -> bytes:
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        chunks = []
        try:
            while chunk := await request.content.readany():
                self.bytes_in += len(chunk)
                chunks.append(chunk)
        except (ConnectionError, web.RequestPayloadError) as error:
            raise _CutError from error
        return b"".join(chunks)

    async def _send(
        self, request: web.BaseRequest, reply: Reply, fault: Fault
    ) -> tuple[web.StreamResponse, int]:
        length = len(reply.body) if reply.length is None else reply.length
        headers = {
            "date": formatdate(time.time() + self.clock_offset_s, usegmt=True),
            "x-amz-request-id": f"{len(self.log):016X}",
            **reply.headers,
            **fault.headers,
        }
        headers |= {"etag": f'"{fault.etag}"'} if fault.etag else {}
        headers |= {"content-range": fault.content_range} if fault.content_range else {}
        response = web.StreamResponse(status=reply.status, headers=headers)
        if reply.is_streamed:
            response.enable_chunked_encoding()
        elif reply.status not in (204, 304):
            response.content_length = length if fault.content_length < 0 else fault.content_length
        await response.prepare(request)
        body = reply.body if fault.cut_body_at < 0 else reply.body[: fault.cut_body_at]
        await self._send_body(response, body, fault)
        is_short = len(body) < len(reply.body) or (
            fault.content_length > len(body) and request.method != "HEAD"
        )
        if is_short and request.transport is not None:
            request.transport.close()
        return response, len(body)

    async def _send_body(self, response: web.StreamResponse, body: bytes, fault: Fault) -> None:
        step = 256 * 1024 if not fault.body_bytes_per_s else max(1, int(fault.body_bytes_per_s / 20))
        for start in range(0, len(body), step):
            piece = body[start : start + step]
            try:
                await response.write(piece)
            except ConnectionError as error:
                raise _CutError from error
            self.bytes_out += len(piece)
            if fault.body_bytes_per_s:
                await asyncio.sleep(len(piece) / fault.body_bytes_per_s)

    # --- Refusals ----------------------------------------------------------------------------------------------------

    def _refusal(self, received: Received, request: web.BaseRequest) -> Reply | None:
        if not self.throttle.takes(time.monotonic()):
            return error_reply(503, "SlowDown", "Please reduce your request rate.")
        signed = _SCOPE.search(received.headers.get("authorization", ""))
        if signed is not None and signed[1] in self.expired:
            return error_reply(400, "ExpiredToken", "The provided token has expired.")
        bucket = self.store.buckets.get(received.bucket)
        if self.checks_region and signed is not None and bucket is not None and bucket.region != signed[3]:
            reply = error_reply(301, "PermanentRedirect", "", bucket.region)
            reply.headers["x-amz-bucket-region"] = bucket.region
            return reply
        refusal = self._signature_refusal(received, request, signed) if self.keys else None
        if refusal is None and signed is not None and signed[1] in self.allowed:
            return self._right_refusal(received, self.allowed[signed[1]])
        return refusal

    def _right_refusal(self, received: Received, allowed: tuple[str, ...]) -> Reply | None:
        """Refuse what a policy of the key would; a listing asks for its prefix, a batch of deletes for its bucket."""
        name = received.key or received.query.get("prefix", "")
        asked = [f"{received.bucket}/{name}"]
        source = received.headers.get("x-amz-copy-source")
        if source is not None:
            asked.append(unquote(source).removeprefix("/"))
        if all(one.startswith(allowed) for one in asked):
            return None
        return error_reply(403, "AccessDenied", "not for this key")

    def _signature_refusal(
        self, received: Received, request: web.BaseRequest, signed: re.Match[str] | None
    ) -> Reply | None:
        if signed is None:
            return error_reply(403, "AccessDenied", "not signed")
        if signed[1] not in self.keys:
            return error_reply(403, "InvalidAccessKeyId")
        amz_date = received.headers.get("x-amz-date", "")
        skew_s = time.time() + self.clock_offset_s - _amz_s(amz_date)
        if abs(skew_s) > SKEW_S_MAX:
            return error_reply(403, "RequestTimeTooSkewed")
        payload = received.headers.get("x-amz-content-sha256", "")
        if re.fullmatch("[0-9a-f]{64}", payload) and payload != hashlib.sha256(received.body).hexdigest():
            return error_reply(400, "XAmzContentSHA256Mismatch")
        if _signature(received, request, signed, self.keys[signed[1]]) != signed[5]:
            return error_reply(403, "SignatureDoesNotMatch")
        return None

    # --- Steering ----------------------------------------------------------------------------------------------------

    async def _admin(self, request: web.BaseRequest) -> web.Response:
        path, _, raw_query = request.raw_path.partition("?")
        query = dict(parse_qsl(raw_query))
        body = await request.read()
        match request.method, path.removeprefix("/-/").split("/"):
            case "POST", ["faults"]:
                self.faults.add(*msgspec.json.decode(body, type=list[Fault]))
            case "DELETE", ["faults"]:
                self.faults.clear()
            case "POST", ["settings"]:
                self.set(msgspec.json.decode(body, type=Settings))
            case "PUT", ["buckets", name]:
                self.store.create_bucket(unquote(name), **query)
            case "GET", ["counters"]:
                return _json(self.counters())
            case "GET", ["log"]:
                return web.Response(body=b"\n".join(msgspec.json.encode(asdict(entry)) for entry in self.log))
            case "DELETE", ["log"]:
                self.log.clear()
            case "GET", ["history"]:
                states = self.store.history.get((query.get("bucket", ""), query.get("key", "")), [])
                return _json([asdict(state) for state in states])
            case _:
                return web.Response(status=404, text="no such verb\n")
        return web.Response(text="ok\n")

    def set(self, settings: Settings) -> None:
        """Change what is given."""
        if settings.latency_s is not None:
            self.latency_s = settings.latency_s
        if settings.throttle_per_s is not None:
            burst = settings.throttle_burst or settings.throttle_per_s
            self.throttle.set(time.monotonic(), rate=settings.throttle_per_s, burst=burst)
        if settings.keys is not None:
            self.keys = settings.keys
        if settings.expired is not None:
            self.expired = set(settings.expired)
        if settings.allowed is not None:
            self.allowed = settings.allowed

    def counters(self) -> dict[str, object]:
        """Give all counts, as JSON can carry them."""
        return {
            "requests": dict(self.requests),
            "answers": {
                f"{operation} {status}": count for (operation, status), count in self.answers.items()
            },
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "in_flight_max": self.in_flight_max,
            "faults_hit": self.faults.hits,
        }


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _parsed(request: web.BaseRequest) -> Received:
    path, _, raw_query = request.raw_path.partition("?")
    bucket, _, key = path.removeprefix("/").partition("/")
    query = dict(parse_qsl(raw_query, keep_blank_values=True))
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        headers[name.lower()] = value
    return Received(request.method, unquote(bucket), unquote(key, errors="surrogateescape"), query, headers)


def _with_body(received: Received, body: bytes) -> Received:
    headers = received.headers
    if headers.get("x-amz-content-sha256", "").startswith("STREAMING-"):
        body, trailers = _unchunked(body)
        headers = headers | trailers
    return Received(received.method, received.bucket, received.key, received.query, headers, body)


def _unchunked(body: bytes) -> tuple[bytes, dict[str, str]]:
    """Take the aws-chunked framing off; signatures of chunks are not checked."""
    chunks, at = [], 0
    while True:
        end = body.index(b"\r\n", at)
        size = int(body[at:end].split(b";")[0], 16)
        at = end + 2
        if size == 0:
            break
        chunks.append(body[at : at + size])
        at += size + 2
    lines = [line.partition(b":") for line in body[at:].split(b"\r\n") if b":" in line]
    return b"".join(chunks), {name.decode().lower(): value.decode().strip() for name, _, value in lines}


def _amz_s(text: str) -> float:
    try:
        return float(time.mktime(time.strptime(text, "%Y%m%dT%H%M%SZ")) - time.timezone)
    except ValueError:
        return 0.0


def _signature(received: Received, request: web.BaseRequest, signed: re.Match[str], secret: str) -> str:
    """Sign what was received with botocore: an implementation that is not ours."""
    names = signed[4].split(";")
    headers = {name: received.headers.get(name, "") for name in names}
    headers["x-amz-content-sha256"] = received.headers.get("x-amz-content-sha256", "")
    aws = AWSRequest(
        method=request.method, url=f"http://{received.headers['host']}{request.raw_path}", headers=headers
    )
    aws.context["timestamp"] = received.headers["x-amz-date"]
    auth = S3SigV4Auth(Credentials(signed[1], secret), "s3", signed[3])
    text = auth.string_to_sign(aws, auth.canonical_request(aws))
    return str(auth.signature(text, aws))


async def _serve(arguments: argparse.Namespace) -> None:
    origin = FakeOrigin(arguments.port)
    origin.latency_s = arguments.latency_s
    for bucket in arguments.bucket:
        origin.store.create_bucket(bucket)
    if arguments.rate:
        origin.throttle.set(time.monotonic(), rate=arguments.rate, burst=arguments.rate)
    async with origin:
        print(origin.url, flush=True)  # noqa: T201 - the caller reads the port here
        await asyncio.Event().wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until interrupted; the first line of output is the URL."""
    parser = argparse.ArgumentParser(description="an in-memory S3 origin for tests")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument(
        "--bucket", action="append", default=[], help="a bucket to start with; may be repeated"
    )
    parser.add_argument("--latency-s", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=0.0, help="requests a second before SlowDown")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(parser.parse_args(arguments)))


if __name__ == "__main__":
    main()
