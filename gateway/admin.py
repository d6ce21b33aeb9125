"""What the gateway answers that is not S3: metrics, health, and the verbs of the command line.

    GET  /metrics                          open, path style only; on its own port where one is set
    GET  /-/healthz                        open: the event loop answers
    GET  /-/ready                          open: 200 if writes are taken, 503 and why if not
    GET  /-/status                         StatusReport
    POST /-/flush?bucket=&prefix=          BarrierReport of a new barrier
    GET  /-/flush/{id}?wait=SECONDS        BarrierReport, after at most WAIT_S_MAX
    POST /-/publish?bucket=&source=&target=&copy=   PublishReport of a new publish, or of copies where copy is 1
    GET  /-/publish/{id}?wait=SECONDS      PublishReport, after at most WAIT_S_MAX
    GET  /-/pending?bucket=&prefix=        what is not at the origin yet, oldest first
    POST /-/retry?bucket=&prefix=          Changed
    POST /-/discard?bucket=&key=           Changed

All but the first three need the signature of a key with the admin right, which the server has checked before `answer`.
Answers are JSON, errors S3 error documents.
"""

import ssl
from typing import Final

import msgspec
from aiohttp import web

from gateway.context import ObjectStore, S3Response
from gateway.s3.errors import ErrorCode, S3Error, invalid_argument
from gateway.s3.request import ADMIN_BUCKET, S3Request
from gateway.telemetry import CONTENT_TYPE, Exporter
from storage.requests import PublishReport

METRICS_PATH: Final = "/metrics"

WAIT_S_MAX: Final = 20.0
"""How long an answer about a barrier may take; under the idle limits of proxies."""

PENDING_MAX: Final = 1000

_SIGNATURE_PARAMETERS: Final = ("X-Amz-Signature", "Signature")


class Changed(msgspec.Struct, frozen=True):
    """How many changes a verb touched."""

    changed: int


class Admin:
    """Answers the gateway's own paths; `server.OwnPaths`.

    Args:
        store: The engine.
        exporter: Writes the metrics.
        has_own_port: Metrics are served by `MetricsServer`; `/metrics` here is a bucket like any other.
    """

    def __init__(self, store: ObjectStore, exporter: Exporter, *, has_own_port: bool) -> None:
        self._store: Final = store
        self._exporter: Final = exporter
        self._has_own_port: Final = has_own_port

    def answer_openly(self, request: S3Request) -> S3Response | None:
        """Answer metrics and health; None for what needs a signature."""
        if request.method not in {"GET", "HEAD"}:
            return None
        if request.bucket == ADMIN_BUCKET and request.key == "healthz":
            return _text(200, "ok\n")
        if request.bucket == ADMIN_BUCKET and request.key == "ready":
            return self._readiness()
        if self._is_metrics(request):
            return S3Response(
                200, (("content-type", CONTENT_TYPE),), body := self._exporter.render(), len(body)
            )
        return None

    async def answer(self, request: S3Request) -> S3Response:
        """Answer an admin verb.

        Raises:
            S3Error: MethodNotAllowed for what is none, InvalidArgument for a parameter that is wrong.
        """
        verb, _, rest = request.key.partition("/")
        match request.method, verb, rest:
            case "GET", "status", "":
                return _json(self._store.status())
            case "GET", "pending", "":
                return _json(
                    self._store.pending(
                        _parameter(request, "bucket"), _optional(request, "prefix"), PENDING_MAX
                    )
                )
            case "POST", "flush", "":
                return _json(
                    self._store.start_barrier(_parameter(request, "bucket"), _optional(request, "prefix"))
                )
            case "GET", "flush", barrier_id:
                wait_s = min(WAIT_S_MAX, _number("wait", _optional(request, "wait") or "0"))
                return _json(await self._store.wait_barrier(_number("barrier", barrier_id), wait_s))
            case _, "publish", publish_id:
                return _json(await self._publish(request, publish_id))
            case "POST", "retry" | "discard", "":
                return _json(Changed(await self._settle_quarantined(request, verb)))
            case _:
                raise _not_allowed(request)

    async def _publish(self, request: S3Request, publish_id: str) -> PublishReport:
        """Begin a publish, or say how far one is."""
        if request.method == "GET" and publish_id:
            wait_s = min(WAIT_S_MAX, _number("wait", _optional(request, "wait") or "0"))
            return await self._store.wait_publish(_number("publish", publish_id), wait_s)
        if request.method != "POST" or publish_id:
            raise _not_allowed(request)
        return await self._store.start_publish(
            _parameter(request, "bucket"),
            _parameter(request, "source"),
            _parameter(request, "target"),
            is_copy=_optional(request, "copy") in {"1", "true"},
        )

    async def _settle_quarantined(self, request: S3Request, verb: str) -> int:
        bucket = _parameter(request, "bucket")
        if verb == "retry":
            return await self._store.retry_quarantined(bucket, _optional(request, "prefix"))
        return await self._store.discard_quarantined(bucket, _parameter(request, "key"))

    def _is_metrics(self, request: S3Request) -> bool:
        if self._has_own_port or request.raw_path != METRICS_PATH or request.bucket != METRICS_PATH[1:]:
            return False
        # A signed request means the bucket of this name.
        is_signed = "authorization" in request.headers or any(
            name in request.query for name in _SIGNATURE_PARAMETERS
        )
        return not is_signed

    def _readiness(self) -> S3Response:
        status = self._store.status()
        if status.is_writable and not status.is_draining:
            return _text(200, "ready\n")
        return _text(503, f"{'draining' if status.is_draining else status.failure or 'not writable'}\n")


class MetricsServer:
    """Serves `/metrics` on a port of its own, which can be kept from clients."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter: Final = exporter
        self._runner: web.ServerRunner | None = None

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Accept connections; give the address with the port that was chosen for 0."""
        self._runner = web.ServerRunner(web.Server(self._handle))
        await self._runner.setup()
        await web.TCPSite(self._runner, host, port, ssl_context=context).start()
        address: tuple[str, int] = self._runner.addresses[0]
        return address[0], address[1]

    async def stop(self) -> None:
        """Close the port."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != METRICS_PATH:
            return web.Response(status=404, text="only /metrics is here\n")
        return web.Response(body=self._exporter.render(), headers={"content-type": CONTENT_TYPE})


def _json(value: object) -> S3Response:
    body = msgspec.json.encode(value) + b"\n"
    return S3Response(200, (("content-type", "application/json"),), body, len(body))


def _text(status: int, text: str) -> S3Response:
    body = text.encode()
    return S3Response(status, (("content-type", "text/plain; charset=utf-8"),), body, len(body))


def _not_allowed(request: S3Request) -> S3Error:
    return S3Error(
        ErrorCode.METHOD_NOT_ALLOWED, extra={"Method": request.method, "ResourceType": request.key}
    )


def _optional(request: S3Request, name: str) -> str:
    return request.query.get(name) or ""


def _parameter(request: S3Request, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise invalid_argument(name, "", f"The parameter {name} is missing.")
    return value


def _number(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise invalid_argument(name, text, f"{name} is not a number.")
    return int(text)
