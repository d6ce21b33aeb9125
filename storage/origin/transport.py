"""One attempt at the origin over aiohttp: send a signed request, stream the answer, translate what went wrong.

The only module of storage that knows aiohttp, and the border where its errors end. It takes no decision: no retry, no
signature, no reading of what an answer means. A request goes to aiohttp's connector and not by its session, which would add cookies,
redirects and tracing, at a price, and a hidden retry of idempotent requests: that would resend a write whose
outcome is unknown without anybody hearing of it.
"""

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextvars import ContextVar
from typing import Final

import aiohttp
from aiohttp import hdrs
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from storage.errors import OriginError, OriginRefusedError, OriginUnavailableError
from storage.origin.endpoint import Address, OriginSettings
from storage.origin.wire import OutgoingBody, bad_answer, number
from storage.types import KIB
from storage.words import in_words

log = logging.getLogger(__name__)

CHUNK_BYTES_MAX: Final = 256 * KIB
KEEP_ALIVE_S: Final = 15.0
"""Shorter than S3's own 20 s or so, so that we seldom send into a connection that is being closed."""

HEADER_BYTES_MAX: Final = 64 * KIB
_NOT_ADDED: Final = (hdrs.USER_AGENT, hdrs.ACCEPT, hdrs.ACCEPT_ENCODING, hdrs.CONTENT_TYPE)
"""What aiohttp would add to a request: it is not signed, and Content-Type would become the object's."""

SOURCE_WAIT_S: Final = 0.02
"""A source that gives nothing for so long makes its request a waiting one, which keeps the origin busy with nothing."""

RAW_BODY_BYTES_MAX: Final = 512 * KIB
"""aiohttp writes a longer bytes object in one go and warns; such a body is sent in slices."""


class Attempt:
    """What is known of one attempt while it runs and after it failed.

    Attributes:
        until_s: Loop time by which the answer has to begin; None where only the settings bound it.
        is_reused: It went over a connection that had served before.
        is_sent: There was a connection, so the request may have reached the origin.
        body_error: What the source of the body raised; the caller's own error, not the origin's.
        bytes_sent: Body bytes handed to the connection.
        pause, resume: Called when the request comes to wait for the source of its body, and when that gives bytes again.
    """

    __slots__ = (
        "body_error",
        "bytes_sent",
        "is_answered",
        "is_reused",
        "is_sent",
        "pause",
        "resume",
        "until_s",
    )

    def __init__(self, until_s: float | None = None) -> None:
        self.until_s = until_s
        self.is_reused = False
        self.is_sent = False
        self.is_answered = False
        self.body_error: Exception | None = None
        self.bytes_sent = 0
        self.pause: Callable[[], None] = _nothing
        self.resume: Callable[[], None] = _nothing


def _nothing() -> None:
    """Nobody is to be told."""


class Exchange:
    """An open answer. Whoever holds it reads the body to its end or closes it."""

    def __init__(self, response: aiohttp.ClientResponse, stall_s: float) -> None:
        self._response = response
        self._stall_s = stall_s
        self.bytes_received = 0

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._response.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, found whatever their case."""
        return self._response.headers

    async def read(self) -> bytes:
        """Give the next bytes, at most CHUNK_BYTES_MAX; b"" at the end.

        Raises:
            OriginUnavailableError: Code Timeout or Incomplete; the connection is closed.
        """
        try:
            # What has come already needs no deadline, which costs more than the read.
            content = self._response.content
            chunk = content.read_nowait(CHUNK_BYTES_MAX)
            if not chunk and not content.at_eof():
                async with asyncio.timeout(self._stall_s):
                    chunk = await content.read(CHUNK_BYTES_MAX)
        except TimeoutError as error:
            self.close()
            raise OriginUnavailableError("the origin stopped sending", status=0, code="Timeout") from error
        except Exception as error:
            # aiohttp's errors of connection and framing, and what it raises where its session was closed meanwhile.
            self.close()
            raise OriginUnavailableError(self._told_of(error), status=0, code="Incomplete") from error
        self.bytes_received += len(chunk)
        return chunk

    def _told_of(self, error: Exception) -> str:
        length = number(self.headers.get("content-length", ""))
        whole = "bytes, before its end" if length is None else f"of {length} bytes"
        why = "" if isinstance(error, aiohttp.ClientPayloadError) else f": {in_words(error)}"
        return f"the origin's answer ended after {self.bytes_received} {whole}{why}"

    async def read_all(self, bytes_max: int) -> bytes:
        """Give the whole body.

        Raises:
            OriginUnavailableError: As for `read`; BadAnswer where it is over `bytes_max`.
        """
        chunks: list[bytes] = []
        while chunk := await self.read():
            chunks.append(chunk)
            if self.bytes_received > bytes_max:
                self.close()
                raise bad_answer(f"a body over {bytes_max} bytes")
        return b"".join(chunks)

    def close(self) -> None:
        """Give the connection back if the body was read, else cut it; safe to call twice."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


class Transport:
    """The data lane's connections. Use as an async context manager, on the loop that will send."""

    def __init__(self, settings: OriginSettings) -> None:
        self._settings = settings
        self._connecting = aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_s)
        self._session: aiohttp.ClientSession | None = None

    async def open(self) -> None:
        """Make the session; reads the CA bundle where one is set."""
        trust: ssl.SSLContext | bool = True
        if self._settings.ca_bundle:
            trust = ssl.create_default_context(cafile=self._settings.ca_bundle)
        self._session = aiohttp.ClientSession(
            connector=_Connector(
                limit=self._settings.connections_max, keepalive_timeout=KEEP_ALIVE_S, ssl=trust
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Cut all connections."""
        if self._session is not None:
            await self._session.close()

    async def send(
        self,
        method: str,
        address: Address,
        headers: Mapping[str, str],
        body: bytes | OutgoingBody,
        attempt: Attempt,
    ) -> Exchange:
        """Send a request and wait for the head of its answer, whatever its status.

        Raises:
            OriginUnavailableError: Code Connection or Timeout; `attempt` says how far it got.
            OriginRefusedError: Header values cannot be sent.
            Exception: What the body's source raised, as it is; the origin did not get the whole body.
        """
        try:
            response = await self._request(method, address, headers, body, attempt)
        except Exception as error:
            if attempt.body_error is error:
                raise
            if attempt.body_error is not None:
                raise attempt.body_error from error
            raise _translated(error) from error
        return Exchange(response, self._settings.stall_s)

    async def _request(
        self,
        method: str,
        address: Address,
        headers: Mapping[str, str],
        body: bytes | OutgoingBody,
        attempt: Attempt,
    ) -> aiohttp.ClientResponse:
        assert self._session is not None, "open comes first"
        settings = self._settings
        url = URL(address.url, encoded=True)
        until_s = asyncio.get_running_loop().time() + settings.connect_s + settings.answer_s
        if attempt.until_s is not None:
            until_s = min(until_s, attempt.until_s)
        async with asyncio.timeout_at(until_s) as deadline:
            now = _attempt_now.set(attempt)
            try:
                data: bytes | AsyncIterator[bytes] | None = None
                if isinstance(body, OutgoingBody):
                    data = _feed(body, deadline, settings, attempt)
                elif body:
                    attempt.bytes_sent = len(body)
                    data = body if len(body) <= RAW_BODY_BYTES_MAX else _slices(body)
                return await self._exchange(
                    aiohttp.ClientRequest(
                        method,
                        url,
                        headers=headers,
                        skip_auto_headers=_NOT_ADDED,
                        data=data,
                        loop=asyncio.get_running_loop(),
                        session=self._session,
                    )
                )
            finally:
                _attempt_now.reset(now)
                attempt.is_answered = True  # the deadline ends here: a body still being sent moves it no more

    async def _exchange(self, request: aiohttp.ClientRequest) -> aiohttp.ClientResponse:
        """Send a request, once, and wait for the head of its answer."""
        assert self._session is not None, "open comes first"
        assert self._session.connector is not None, "a session is made with a connector"
        connection = await self._session.connector.connect(request, [], self._connecting)
        try:
            assert connection.protocol is not None, "a connection that was just taken is open"
            connection.protocol.set_response_params(
                skip_payload=request.method == "HEAD",
                read_until_eof=True,
                auto_decompress=False,
                read_bufsize=CHUNK_BYTES_MAX,
                max_line_size=HEADER_BYTES_MAX,
                max_field_size=HEADER_BYTES_MAX,
            )
            response = await request.send(connection)
            try:
                await response.start(connection)
            except BaseException:
                response.close()
                raise
        except BaseException:
            connection.close()
            raise
        return response


_attempt_now: Final[ContextVar[Attempt]] = ContextVar("attempt")
"""What is tried now in this context, for the connector, which hears nothing else of it."""


class _Connector(aiohttp.TCPConnector):
    """Notes in the attempt what became of it, and leaves a pooled connection on which something came that nobody had asked for.

    That is no answer to the next request (RFC 9112 section 9.2): servers and proxies say 408 before they close an idle connection,
    and what follows an answer that was longer than it said could pass for another object's.
    """

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109  aiohttp's name
    ) -> Connection:
        """Give a connection; the request may have reached the origin from here on."""
        attempt = _attempt_now.get()
        attempt.is_reused = False
        connection = await super().connect(req, traces, timeout)
        attempt.is_sent = True
        return connection

    async def _get(self, key: ConnectionKey, traces: list[Trace]) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            if connection.protocol is not None and not connection.protocol.should_close:
                _attempt_now.get().is_reused = True
                return connection
            connection.close()
        return None


class CutError(Exception):
    """The connection broke before an answer; not an aiohttp error, so that aiohttp does not retry."""


async def no_hidden_retry(
    request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """Be a middleware of aiohttp's session, for the control lane.

    It raises CutError for a connection that broke, which aiohttp would try again unseen.
    """
    try:
        return await handler(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise CutError(cause_in_words(error)) from error


async def _feed(
    body: OutgoingBody, deadline: asyncio.Timeout, settings: OriginSettings, attempt: Attempt
) -> AsyncIterator[bytes]:
    """Stream a body, counted. The origin's clock runs while it takes bytes and stands while the source makes them."""
    loop = asyncio.get_running_loop()

    def allow(wait_s: float | None) -> None:
        # Once the deadline has run out it cannot be moved; the request ends by it, and that is what its caller is told.
        if not (attempt.is_answered or deadline.expired()):
            deadline.reschedule(None if wait_s is None else loop.time() + wait_s)

    try:
        source = body.content()
        allow(None)
        async for chunk in source if body.is_repeatable else _told(source, attempt):
            attempt.bytes_sent += len(chunk)
            assert attempt.bytes_sent <= body.size, f"a body of {body.size} bytes went on"
            allow(settings.stall_s)
            yield chunk
            allow(None)
        assert attempt.bytes_sent == body.size, (
            f"a body of {body.size} bytes ended after {attempt.bytes_sent}"
        )
        allow(settings.answer_s)
    except Exception as error:
        attempt.body_error = error
        raise


async def _told(source: AsyncIterator[bytes], attempt: Attempt) -> AsyncIterator[bytes]:
    """Pass a stream on, and tell where it comes to a stop and goes on: it may be a client's, of whatever speed."""
    loop = asyncio.get_running_loop()
    waiting = loop.call_later(SOURCE_WAIT_S, attempt.pause)
    try:
        async for chunk in source:
            waiting.cancel()
            attempt.resume()
            yield chunk
            waiting = loop.call_later(SOURCE_WAIT_S, attempt.pause)
    finally:
        waiting.cancel()
        attempt.resume()


async def _slices(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), CHUNK_BYTES_MAX):
        yield body[start : start + CHUNK_BYTES_MAX]


def _translated(error: Exception) -> OriginError:
    """Give our name to what aiohttp or the socket raised before there was an answer."""
    if isinstance(error, TimeoutError):  # aiohttp's connect time-out is one too
        return OriginUnavailableError("the origin did not answer in time", status=0, code="Timeout")
    if isinstance(error, aiohttp.ClientResponseError):
        return OriginUnavailableError(
            f"not an HTTP answer: {cause_in_words(error)}", status=0, code="BadAnswer"
        )
    if isinstance(error, ValueError) and not isinstance(error, (aiohttp.ClientError, OSError)):
        return OriginRefusedError(
            f"the request cannot be sent: {in_words(error)}", status=400, code="InvalidArgument"
        )
    if not isinstance(error, (aiohttp.ClientError, OSError, CutError)):
        # A session that was closed meanwhile, or a fault of aiohttp's own.
        log.error("the origin cannot be asked", exc_info=error)
    return OriginUnavailableError(
        f"no connection to the origin: {cause_in_words(error)}", status=0, code="Connection"
    )


def cause_in_words(error: Exception) -> str:
    """Say what happened to a request, without aiohttp's addresses and classes."""
    match error:
        case aiohttp.ServerDisconnectedError():
            return "it was closed before an answer"
        case aiohttp.ClientConnectorCertificateError():
            return in_words(error.certificate_error)
        case aiohttp.ClientConnectorError():
            return in_words(error.os_error)
        case aiohttp.ClientResponseError():
            lines = error.message.splitlines() or [""]
            return lines[0].rstrip(":") or f"status {error.status}"
        case _:
            return in_words(error)
