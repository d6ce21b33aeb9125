"""What the gateway answers that is not S3: metrics, health, and the verbs of the command line.

    GET  /metrics                          open, path style only; on its own port where one is set
    GET  /-/healthz                        open: 200 as long as the event loop answers; ok, or degraded and why
    GET  /-/ready                          open: 200 if writes are taken, 503 and why if not
    GET  /-/status                         StatusReport
    POST /-/flush?bucket=&prefix=          BarrierReport of a new barrier
    GET  /-/flush/{id}?wait=SECONDS        BarrierReport, after at most WAIT_S_MAX
    GET  /-/pending?bucket=&prefix=&after= PendingPage of what is not at the origin yet, oldest first, behind a sequence
    GET  /-/quarantine?bucket=&prefix=&after=  the part of it that the origin refused
    GET  /-/acknowledged?bucket=&prefix=&after=&deep=  AcknowledgedPage, in the order of keys, behind a key
    GET  /-/acknowledged?bucket=&key=      the AcknowledgedLine of one key, or null
    POST /-/publish?bucket=&source=&target=&copy=   PublishReport of a new publish, or of copies where copy is 1
    GET  /-/publish/{id}?wait=SECONDS      PublishReport, after at most WAIT_S_MAX
    POST /-/warm?bucket=&prefix=&mode=&metadata-only=&concurrency=&ahead=&ahead-bytes=&idle=&hold=   WarmReport of a new warm-up;
                                           mode is prefix, list or order
    POST /-/warm/{id}?at=&last=            WarmFed: a piece of its list, a JSON array of {bucket, key, range}
    GET  /-/warm/{id}/hold                 blanks for as long as more of its list may come, then WarmReport: whoever gives the list keeps
                                           this request open meanwhile, and has gone when it breaks
    GET  /-/warm                           WarmJobs: those that run or ended lately
    GET  /-/warm/{id}?wait=SECONDS         WarmReport, after at most WAIT_S_MAX
    DELETE /-/warm/{id}                    WarmReport of the warm-up, which was ended
    POST /-/retry?bucket=&prefix=          Changed; with key= instead of prefix= of this one
    POST /-/discard?bucket=&key=&sequence= Changed: 0 where the key has another change by now
    GET  /-/object?bucket=&key=            ExplainedObject
    GET  /-/policy?bucket=&key=            PolicyExplanation
    POST /-/reload                         ReloadReport, as SIGHUP does it

All but the first three need the signature of a key with the admin right, which the server has checked before `answer`.
Answers are JSON, errors S3 error documents.
"""

import ssl
from typing import Final, Protocol

import msgspec
from aiohttp import web

from gateway.context import OperatorStore, RequestBody, S3Response
from gateway.explain import PolicyExplanation, explain
from gateway.s3.errors import invalid_argument
from gateway.s3.request import ADMIN_BUCKET, S3Request
from gateway.settings import Settings
from gateway.telemetry import CONTENT_TYPE, Exporter
from gateway.verb_parameters import not_allowed, number, optional, optional_number, required, truth
from gateway.warm_verbs import answer_warm
from storage.errors import StorageError
from storage.explained import ObjectReport
from storage.requests import PublishReport, StatusReport
from storage.types import ObjectName

METRICS_PATH: Final = "/metrics"

WAIT_S_MAX: Final = 20.0
"""How long an answer about a barrier may take; under the idle limits of proxies."""

PENDING_MAX: Final = 1000

_SIGNATURE_PARAMETERS: Final = ("X-Amz-Signature", "Signature")


class Changed(msgspec.Struct, frozen=True):
    """How many changes a verb touched."""

    changed: int


class ExplainedObject(msgspec.Struct, frozen=True):
    """What is known of an object, and which policy holds for it; None where the settings cannot be told."""

    object: ObjectReport
    policy: PolicyExplanation | None = None


class ReloadReport(msgspec.Struct, frozen=True):
    """What became of a reload of the settings.

    Attributes:
        reason: Why it was refused, in one line; "" where it was not.
        changed: What is different from before, and in force.
        needs_restart: What is different from how the gateway was started, and not in force.
        warnings: Settings in force that do nothing where they stand, a line each.
    """

    is_taken: bool
    reason: str = ""
    changed: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


class LiveSettings(Protocol):
    """The settings in force; `gateway/reload.py`."""

    settings: Settings
    failure: str

    async def reload(self) -> ReloadReport:
        """Read them again and take over what can be."""
        ...


class Admin:
    """Answers the gateway's own paths; `server.OwnPaths`.

    Args:
        store: The engine.
        exporter: Writes the metrics.
        has_own_port: Metrics are served by `MetricsServer`; `/metrics` here is a bucket like any other.
        live: The settings, where they can be reloaded and explained.
    """

    def __init__(
        self,
        store: OperatorStore,
        exporter: Exporter,
        *,
        has_own_port: bool,
        live: LiveSettings | None = None,
    ) -> None:
        self._store: Final = store
        self._live: Final = live
        self._exporter: Final = exporter
        self._has_own_port: Final = has_own_port

    def answer_openly(self, request: S3Request) -> S3Response | None:
        """Answer metrics and health; None for what needs a signature."""
        if request.method not in {"GET", "HEAD"}:
            return None
        if request.bucket == ADMIN_BUCKET and request.key == "healthz":
            return self._health()
        if request.bucket == ADMIN_BUCKET and request.key == "ready":
            return self._readiness()
        if self._is_metrics(request):
            return S3Response(
                200, (("content-type", CONTENT_TYPE),), body := self._exporter.render(), len(body)
            )
        return None

    def begin_stop(self) -> None:
        """End what would wait for as long as a client likes."""
        self._store.warmer.release_holds()

    async def answer(self, request: S3Request, body: RequestBody) -> S3Response:  # noqa: PLR0911 - one arm a verb
        """Answer an admin verb.

        Raises:
            S3Error: MethodNotAllowed for what is none, InvalidArgument for a parameter that is wrong.
        """
        verb, _, rest = request.key.partition("/")
        match request.method, verb, rest:
            case "GET", "policy", "" if self._live is not None:
                return _json(await self._explain(self._live.settings, request))
            case "GET", "object", "":
                return _json(await self._explain_object(request))
            case "POST", "reload", "" if self._live is not None:
                return _json(await self._live.reload())
            case "GET", ("status" | "pending" | "quarantine" | "acknowledged"), "":
                return _json(self._reported(verb, request))
            case "POST", "flush", "":
                return _json(
                    self._store.start_barrier(required(request, "bucket"), optional(request, "prefix"))
                )
            case "GET", "flush", barrier_id:
                wait_s = min(WAIT_S_MAX, optional_number(request, "wait"))
                return _json(await self._store.wait_barrier(number("barrier", barrier_id), wait_s))
            case _, "publish", publish_id:
                return _json(await self._publish(request, publish_id))
            case _, "warm", job:
                told = await answer_warm(self._store.warmer, request, job, body, WAIT_S_MAX)
                return told if isinstance(told, S3Response) else _json(told)
            case "POST", "retry" | "discard", "":
                return _json(Changed(await self._settle_quarantined(request, verb)))
            case _:
                raise not_allowed(request)

    async def _publish(self, request: S3Request, publish_id: str) -> PublishReport:
        """Begin a publish, or say how far one is."""
        if request.method == "GET" and publish_id:
            wait_s = min(WAIT_S_MAX, optional_number(request, "wait"))
            return await self._store.wait_publish(number("publish", publish_id), wait_s)
        if request.method != "POST" or publish_id:
            raise not_allowed(request)
        return await self._store.start_publish(
            required(request, "bucket"),
            required(request, "source"),
            required(request, "target"),
            is_copy=truth(request, "copy"),
        )

    async def _settle_quarantined(self, request: S3Request, verb: str) -> int:
        bucket = required(request, "bucket")
        if verb == "retry":
            key = optional(request, "key")
            prefix = key or optional(request, "prefix")
            return await self._store.retry_quarantined(bucket, prefix, is_one_key=bool(key))
        sequence = number("sequence", required(request, "sequence"))
        return await self._store.discard_quarantined(bucket, required(request, "key"), sequence)

    def _status(self) -> StatusReport:
        failure = "" if self._live is None else self._live.failure
        return msgspec.structs.replace(self._store.status(), settings_failure=failure)

    async def _explain(self, settings: Settings, request: S3Request) -> PolicyExplanation:
        name = ObjectName(required(request, "bucket"), optional(request, "key"))
        try:
            facts = await self._store.bucket_facts(name.bucket)
        except StorageError as error:
            return explain(settings, name, None, str(error))
        return explain(settings, name, facts)

    async def _explain_object(self, request: S3Request) -> ExplainedObject:
        report = await self._store.explain(ObjectName(required(request, "bucket"), required(request, "key")))
        policy = None if self._live is None else await self._explain(self._live.settings, request)
        return ExplainedObject(report, policy)

    def _reported(self, verb: str, request: S3Request) -> object:
        """Answer what changes nothing and waits for nothing."""
        if verb == "status":
            return self._status()
        if verb == "acknowledged":
            return self._acknowledged(request)
        is_quarantined = verb == "quarantine"
        bucket, prefix = optional(request, "bucket"), optional(request, "prefix")
        if not bucket and (prefix or not is_quarantined):
            raise invalid_argument("bucket", "", "The parameter bucket is missing.")
        after = optional_number(request, "after")
        return self._store.pending(bucket, prefix, PENDING_MAX, after, is_quarantined=is_quarantined)

    def _acknowledged(self, request: S3Request) -> object:
        bucket = required(request, "bucket")
        if key := optional(request, "key"):
            return self._store.acknowledged_of(ObjectName(bucket, key))
        prefix, after = optional(request, "prefix"), optional(request, "after")
        is_deep = bool(optional_number(request, "deep"))
        return self._store.acknowledged(bucket, prefix, after, is_deep=is_deep)

    def _is_metrics(self, request: S3Request) -> bool:
        if self._has_own_port or request.raw_path != METRICS_PATH or request.bucket != METRICS_PATH[1:]:
            return False
        # A signed request means the bucket of this name.
        is_signed = "authorization" in request.headers or any(
            name in request.query for name in _SIGNATURE_PARAMETERS
        )
        return not is_signed

    def _health(self) -> S3Response:
        """Always 200: to restart a gateway whose origin is away would help nobody, and stop what it serves."""
        degraded = self._store.status().degraded
        return _text(200, "".join(f"degraded: {reason}\n" for reason in degraded) or "ok\n")

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
