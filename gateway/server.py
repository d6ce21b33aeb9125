"""The road of a request: parse, authenticate, route, authorise, operate, respond. `S3Server._answer` is the whole of it.

aiohttp's low-level server gives the head and a stream for the body; everything written to a client goes through
`gateway/respond.py`. aiohttp expects a response object back from a handler: KEPT and CLOSED say what becomes of the
connection, and write nothing.

Errors are mapped in `_serve` and nowhere else. An error before the first byte of an answer becomes an S3 error document;
after it, the connection ends. A body that was not read when its answer is written would be taken for the next request, so
what is left of it is read and dropped if it is short, and the connection closed if it is long.

A client that goes away ends its GET or HEAD at once, wherever that waits. A write whose body is complete runs to its end:
whether the client hears the answer does not decide whether the write happens.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from msgspec.structs import replace

from gateway.acceptor import Acceptor, listen
from gateway.access_log import AccessEntry, AccessLog
from gateway.body import IncomingBody, Intake
from gateway.context import XML_TYPE, ObjectStore, OperationContext, RequestBody, S3Response
from gateway.cross_origin import CrossOriginRules
from gateway.form import FormBody
from gateway.late_answer import BLANKS_EVERY_S, LONG_OPERATIONS, LateBody, answered_late
from gateway.listener import Listener, Written
from gateway.operations.table import operate
from gateway.respond import Sender, Wire, head_bytes, with_wait
from gateway.s3.auth import Authenticated, Credential, CredentialsInForce, authenticate
from gateway.s3.dates import http_date
from gateway.s3.errors import ErrorCode, S3Error, render
from gateway.s3.failures import to_s3_error, with_names
from gateway.s3.post_object import put_request
from gateway.s3.post_policy import authenticate_form, check_policy, read_policy
from gateway.s3.request import ADMIN_BUCKET, Headers, S3Request, parse, read_headers
from gateway.s3.rights import authorise
from gateway.s3.routes import Operation, is_form, route
from gateway.setting_values import OriginKeys
from gateway.telemetry import RequestStats
from storage.clock import Clock
from storage.errors import StorageError
from storage.stats import OriginTime, origin_time
from storage.types import KIB, MIB
from storage.words import in_words
from storage.workers import Workers

SKIPPED_BYTES_MAX: Final = 256 * KIB
"""An unread body up to this size is read and dropped, so that the connection can go on."""

LINGER_BYTES_MAX: Final = 64 * MIB
LINGER_S: Final = 5.0
"""So much of a longer one is read before the connection closes: a reset would overtake the answer."""

CLIENT_GONE: Final = 499
"""Counted and logged as the status of a request whose client left before its answer existed."""

_READING: Final = frozenset({"GET", "HEAD"})

_log = logging.getLogger(__name__)


class OwnPaths(Protocol):
    """What the gateway answers that is not S3: metrics, health, admin verbs; `gateway/admin.py`."""

    def answer_openly(self, request: S3Request) -> S3Response | None:
        """Answer what needs no signature; None for everything else."""
        ...

    async def answer(self, request: S3Request, body: RequestBody) -> S3Response:
        """Answer an admin verb; the caller has checked the right to it."""
        ...

    def begin_stop(self) -> None:
        """End what would wait without end."""
        ...


@dataclass(frozen=True, slots=True)
class ServerParts:
    """What the server works with; made once by `gateway/app.py`.

    Attributes:
        own_stores: Gives the store as it is to a key with these credentials at the origin.
        credentials: Who may ask; read anew for each request.
        domains: Base domains of virtual-host style.
        random: Request ids are drawn from it.
    """

    store: ObjectStore
    own_stores: Callable[[OriginKeys], ObjectStore]
    own_paths: OwnPaths
    credentials: CredentialsInForce
    domains: tuple[str, ...]
    region: str
    clock: Clock
    random: random.Random
    workers: Workers
    intake: Intake
    access_log: AccessLog
    stats: RequestStats
    connections_max: int
    stalled_send_s: float
    blanks_every_s: float = BLANKS_EVERY_S


class _Exchange:
    """One request on its way, for the error answer and the log."""

    def __init__(self, raw: web.BaseRequest, wire: Wire, sender: Sender, request_id: str) -> None:
        self.raw: Final = raw
        self.wire: Final = wire
        self.sender: Final = sender
        self.request_id: Final = request_id
        self.request: S3Request | None = None
        self.body: IncomingBody | None = None
        self.access_key = ""
        self.operation = "Unknown"
        self.status = 0
        self.code = ""
        self.cache = ""
        self.stamps: list[tuple[str, str]] = []
        self.is_cut = False
        self.will_close = not raw.keep_alive or raw.version < (1, 1)


class S3Server:
    """Answers requests on any number of listening sockets."""

    def __init__(self, parts: ServerParts) -> None:
        self._parts: Final = parts
        self._listener: Final = Listener(self, parts.stats, parts.connections_max)
        self._acceptors: Final[list[Acceptor]] = []
        self._is_stopping = False
        self._cross_origin: Final = CrossOriginRules(parts.store, parts.clock)
        self._kept: Final = Written(keep_alive=True)
        self._closed: Final = Written(keep_alive=False)

    async def listen(self, host: str, port: int, context: ssl.SSLContext | None = None) -> tuple[str, int]:
        """Accept connections on an address; give it back with the port that was chosen for 0.

        Raises:
            OSError: The address cannot be had.
        """
        acceptors = await listen(host, port, self._listener, context)
        self._acceptors.extend(acceptors)
        return acceptors[0].address

    async def stop(self, grace_s: float) -> None:
        """Accept nothing more, let what runs end within `grace_s`, cut off the rest."""
        self._is_stopping = True
        for acceptor in self._acceptors:
            acceptor.close()
        self._parts.own_paths.begin_stop()
        await self._listener.stop(grace_s)
        await self._cross_origin.close()

    async def handle(self, raw: web.BaseRequest) -> web.StreamResponse:
        """Answer one request and say whether its connection goes on."""
        parts = self._parts
        started_s, received_at_s = parts.clock.monotonic_s(), parts.clock.wall_s()
        wire = self._listener.wire(raw.protocol)
        if wire is None:
            return self._closed
        sender = Sender(
            wire, raw.writer.drain, parts.workers, parts.clock, stalled_send_s=parts.stalled_send_s
        )
        exchange = _Exchange(raw, wire, sender, f"{parts.random.getrandbits(64):016X}")
        spent = OriginTime()
        origin_time.set(spent)
        try:
            with self._listener.running(raw.protocol):
                await self._serve_watched(exchange, received_at_s)
        except BaseException:
            exchange.is_cut = True
            raise
        finally:
            duration_s = parts.clock.monotonic_s() - started_s
            self._record(exchange, received_at_s, duration_s, spent)
        is_last = exchange.will_close or exchange.is_cut or self._is_stopping
        return self._closed if is_last else self._kept

    async def refuse(self, raw: web.BaseRequest, error: BaseException | None) -> None:
        """Answer a head that aiohttp's parser refused, then let the client end the connection."""
        parts = self._parts
        started_s, received_at_s = parts.clock.monotonic_s(), parts.clock.wall_s()
        wire = self._listener.wire(raw.protocol)
        if wire is None:
            return
        sender = Sender(
            wire, raw.writer.drain, parts.workers, parts.clock, stalled_send_s=parts.stalled_send_s
        )
        exchange = _Exchange(raw, wire, sender, f"{parts.random.getrandbits(64):016X}")
        _log.debug("%s: no request: %s", exchange.request_id, error)
        code = (
            ErrorCode.REQUEST_HEADER_SECTION_TOO_LARGE
            if isinstance(error, LineTooLong)
            else ErrorCode.BAD_REQUEST
        )
        await self._send_error(exchange, S3Error(code))
        self._record(exchange, received_at_s, parts.clock.monotonic_s() - started_s, OriginTime())
        await wire.linger(LINGER_S)

    async def _serve_watched(self, exchange: _Exchange, received_at_s: float) -> None:
        """Answer; a read ends with its client's connection."""
        if exchange.raw.method not in _READING:
            await self._serve(exchange, received_at_s)
            return
        with exchange.wire.watched(_current_task().cancel):
            await self._serve(exchange, received_at_s)

    async def _serve(self, exchange: _Exchange, received_at_s: float) -> None:
        """Answer, or turn what went wrong into an answer; the only place that maps errors."""
        try:
            await self._send(exchange, await self._answer(exchange, received_at_s))
        except ConnectionError as error:
            _log.debug("%s: cut: %s", exchange.request_id, error)
            self._cut(exchange)
        except Exception as error:  # noqa: BLE001  # the last resort of every request
            s3_error = self._as_s3_error(error, exchange)
            if exchange.sender.is_started:
                _log.warning("%s: cut in the middle: %s: %s", exchange.request_id, s3_error, in_words(error))
                self._cut(exchange)
                return
            await self._send_error(exchange, s3_error)

    async def _answer(self, exchange: _Exchange, received_at_s: float) -> S3Response:
        parts, raw = self._parts, exchange.raw
        request = exchange.request = parse(
            raw.method,
            raw.raw_path,
            raw.headers.items(),
            request_id=exchange.request_id,
            received_at_s=received_at_s,
            domains=parts.domains,
        )
        body = exchange.body = self._body(raw, request.headers, exchange.wire)
        if exchange.wire.is_over_limit:
            exchange.will_close = True
            raise S3Error(ErrorCode.SLOW_DOWN, "Too many connections.")
        open_answer = parts.own_paths.answer_openly(request)
        if open_answer is not None:
            exchange.operation = "Probe"
            return open_answer
        if request.method == "OPTIONS":
            exchange.operation = Operation.OPTIONS_OBJECT.value
            return await self._cross_origin.preflight(request)
        self._cross_origin.begin(request)
        if is_form(request):
            return await self._answer_form(exchange, request, body)
        identity = body.identity = authenticate(request, parts.credentials.by_access_key, received_at_s)
        if identity is not None:
            exchange.access_key = identity.credential.access_key
        _note_client(exchange)
        if request.bucket == ADMIN_BUCKET:
            _require_admin(identity)
            exchange.operation = "Admin"
            return await parts.own_paths.answer(request, body)
        operation = _routed(request, identity)
        exchange.operation = operation.value
        context = self._context(identity, body, exchange.wire)
        authorise(context.access, operation, request, is_signed=context.is_signed)
        exchange.stamps = context.stamps
        try:
            working = operate(operation, context, request)
            # HTTP/1.0 knows no chunks, in which an answer is sent that is not there yet.
            if operation not in LONG_OPERATIONS or raw.version < (1, 1):
                return await working
            return await answered_late(working, partial(self._late_document, exchange), parts.blanks_every_s)
        finally:
            self._cross_origin.note(operation, request.bucket)

    async def _late_document(self, exchange: _Exchange, working: Awaitable[S3Response]) -> bytes:
        """Give the document of an answer whose head has left, or that of the error in its place."""
        try:
            response = await working
        except Exception as error:  # noqa: BLE001  # as in `_serve`, which sees no error of a late answer
            s3_error = self._as_s3_error(error, exchange)
            exchange.code = s3_error.code
            return self._error_document(exchange, s3_error)
        assert isinstance(response.body, bytes), "a long operation answers a document"
        return response.body

    async def _answer_form(self, exchange: _Exchange, request: S3Request, body: IncomingBody) -> S3Response:
        """Take the same road with a form: who sends it, and what was allowed, its fields say; nothing else is done on their word."""
        exchange.operation = Operation.POST_OBJECT.value
        form = FormBody(body, self._parts.intake, request.headers)
        fields = await form.read_fields()
        put = exchange.request = put_request(request, fields)
        identity = authenticate_form(fields, self._parts.credentials.by_access_key)
        exchange.access_key = identity.credential.access_key
        _note_client(exchange)
        policy = read_policy(fields["policy"])
        check_policy(policy, fields, request.bucket, request.received_at_s)
        context = self._context(identity, form, exchange.wire)
        authorise(context.access, Operation.POST_OBJECT, put, is_signed=True)
        form.allow(policy, put.headers)
        exchange.stamps = context.stamps
        return await operate(Operation.POST_OBJECT, context, put)

    def _context(self, identity: Authenticated | None, body: RequestBody, wire: Wire) -> OperationContext:
        credential = None if identity is None else identity.credential
        return OperationContext(
            store=self._store(credential),
            body=body,
            clock=self._parts.clock,
            credential_id="" if credential is None else credential.credential_id,
            is_signed=credential is not None,
            region=self._parts.region,
            scheme="https" if wire.is_tls else "http",
            access=self._parts.credentials.anonymous if credential is None else credential.access,
        )

    def _store(self, credential: Credential | None) -> ObjectStore:
        if credential is None or credential.origin is None:
            return self._parts.store
        return self._parts.own_stores(credential.origin)

    def _body(self, raw: web.BaseRequest, headers: Headers, wire: Wire) -> IncomingBody:
        expects_continue = (headers.get("expect") or "").lower() == "100-continue"
        return IncomingBody(
            raw.content,
            wire.transport,
            headers,
            self._parts.intake,
            # HTTP/1.0 has no interim answers (RFC 9110 section 10.1.1).
            expects_continue=expects_continue and raw.version >= (1, 1),
        )

    def _as_s3_error(self, error: Exception, exchange: _Exchange) -> S3Error:
        if isinstance(error, S3Error):
            return error
        if isinstance(error, StorageError):
            s3_error = to_s3_error(error)
            if s3_error.status == 500:
                _log.error("%s: %s: %s", exchange.request_id, exchange.operation, error)
            return s3_error
        self._parts.stats.failures += 1
        _log.error("%s: %s failed", exchange.request_id, exchange.operation, exc_info=error)
        return S3Error(ErrorCode.INTERNAL_ERROR)

    async def _send_error(self, exchange: _Exchange, error: S3Error) -> None:
        exchange.code = error.code
        headers = (XML_TYPE, *((name.lower(), value) for name, value in error.headers.items()))
        document = self._error_document(exchange, error)
        has_body = error.status != 304
        response = S3Response(error.status, headers, document, len(document))
        if not has_body:
            response = S3Response(error.status, headers, has_length=False)
        try:
            await self._send(exchange, response)
        except (ConnectionError, ValueError) as failure:
            _log.debug("%s: cut: %s", exchange.request_id, failure)
            self._cut(exchange)

    def _error_document(self, exchange: _Exchange, error: S3Error) -> bytes:
        if exchange.request is not None:
            error = with_names(error, exchange.request)
        resource = exchange.raw.raw_path.partition("?")[0]
        return render(error, resource=resource, request_id=exchange.request_id, host_id=self._host_id)

    async def _send(self, exchange: _Exchange, response: S3Response) -> None:
        body = None if response.body is None or isinstance(response.body, bytes) else response.body
        try:
            if body is None or exchange.raw.method in _READING or isinstance(body, LateBody):
                await self._write(exchange, response)
            else:
                # What it did is done, so its body too ends with its client's connection.
                with exchange.wire.watched(_current_task().cancel):
                    await self._write(exchange, response)
        finally:
            if body is not None:
                await body.close()

    async def _write(self, exchange: _Exchange, response: S3Response) -> None:
        exchange.status = response.status
        sharing = () if exchange.request is None else await self._cross_origin.headers(exchange.request)
        headers = response.headers
        if exchange.stamps or sharing:
            headers = (*headers, *exchange.stamps, *sharing)
        spent = origin_time.get()
        if spent is not None:
            headers = with_wait(headers, spent.limiter_s)
        if headers is not response.headers:
            response = replace(response, headers=headers)
        exchange.cache = next((value for name, value in response.headers if name == "x-cache"), "")
        if exchange.raw.method == "HEAD" and response.body is not None:
            length = 0 if response.status >= 400 else response.length
            response = replace(response, body=None, length=length)
        if exchange.body is None:
            # The head could not be parsed; what follows it is skipped all the same.
            exchange.body = self._body(
                exchange.raw, read_headers(exchange.raw.headers.items()), exchange.wire
            )
        if not response.has_length and response.body is not None:
            is_chunked = exchange.raw.version >= (1, 1)
            framing = (("transfer-encoding", "chunked"),) if is_chunked else ()
            response = replace(response, headers=(*response.headers, *framing), is_chunked=is_chunked)
            exchange.will_close = exchange.will_close or not is_chunked
        unread = None if exchange.body.is_read else exchange.body
        if self._is_stopping or (unread is not None and not _is_skippable(unread)):
            exchange.will_close = True
        head = head_bytes(
            response,
            date=http_date(int(self._parts.clock.wall_s())),
            request_id=exchange.request_id,
            host_id=self._host_id,
            keep_alive=not exchange.will_close,
        )
        await exchange.sender.send(head, response)
        if unread is not None and not unread.is_withheld:
            await unread.discard(LINGER_BYTES_MAX, LINGER_S)
            exchange.will_close = exchange.will_close or not unread.is_read

    def _cut(self, exchange: _Exchange) -> None:
        exchange.is_cut = True
        exchange.wire.abort()

    @property
    def _host_id(self) -> str:
        return self._parts.store.instance_id

    def _record(
        self, exchange: _Exchange, received_at_s: float, duration_s: float, spent: OriginTime
    ) -> None:
        parts, request = self._parts, exchange.request
        bytes_in = exchange.body.received_bytes if exchange.body is not None else 0
        bytes_out = exchange.sender.sent_bytes
        status = exchange.status or CLIENT_GONE
        parts.stats.count(exchange.operation, status, duration_s)
        parts.stats.body_bytes["in"] += bytes_in
        parts.stats.body_bytes["out"] += bytes_out
        parts.access_log.record(
            AccessEntry(
                time=round(received_at_s, 3),
                request_id=exchange.request_id,
                remote=exchange.wire.remote,
                method=exchange.raw.method,
                operation=exchange.operation,
                bucket="" if request is None else request.bucket,
                key="" if request is None else request.key,
                status=status,
                code=exchange.code,
                cache=exchange.cache,
                bytes_in=bytes_in,
                bytes_out=bytes_out,
                origin_s=round(spent.spent_s, 6),
                limiter_s=round(spent.limiter_s, 6),
                duration_s=round(duration_s, 6),
                access_key=exchange.access_key,
                is_cut=exchange.is_cut,
            )
        )


def _note_client(exchange: _Exchange) -> None:
    """Write down whose request it is, for the turns that clients take at the origin: the key's, and the machine's that uses it."""
    spent = origin_time.get()
    if spent is not None:
        spent.client = f"{exchange.access_key}@{exchange.wire.remote.rpartition(':')[0]}"


def _routed(request: S3Request, identity: Authenticated | None) -> Operation:
    """Find the operation; without a signature, what is none is no open read either, and is refused as all else is."""
    try:
        return route(request)
    except S3Error as error:
        if identity is None:
            raise S3Error(ErrorCode.ACCESS_DENIED) from error
        raise


def _require_admin(identity: Authenticated | None) -> None:
    """Refuse the gateway's own verbs to all but keys with the admin right."""
    if identity is None or not identity.credential.is_admin:
        raise S3Error(ErrorCode.ACCESS_DENIED)


def _current_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None, "aiohttp runs each request in a task"
    return task


def _is_skippable(body: IncomingBody) -> bool:
    left_bytes = body.left_bytes
    return left_bytes is not None and left_bytes <= SKIPPED_BYTES_MAX and not body.is_withheld
