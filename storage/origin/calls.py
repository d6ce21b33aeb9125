"""The road of a call to the origin: admit, sign, send, read the verdict, and perhaps once more.

Theory of operation. A `Call` is tried until it is answered or no step is left:

- A *remedy* is used at most once a call and needs a body that can be sent again: a connection that was dead when it was taken
  from the pool is replaced at once, for an idempotent call; a refused key, a wrong clock and a wrong region are corrected.
- A *retry* is for reads only and costs a token of the retry budget and a wait with full jitter. Each retry is admitted anew,
  so that it queues like any other request.
- A write is never retried: the caller orders writes and must know that an attempt may still land. `outcome_unknown` of the
  error, and `is_earlier_unknown` of an answer that a remedy got after such an attempt, say so.
"""

import asyncio
import copy
import hashlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import Self, TypeVar

import msgspec

from storage.clock import Clock
from storage.errors import (
    NoSuchBucketError,
    NoSuchKeyError,
    NoSuchUploadError,
    NotNeededError,
    OriginAwayError,
    OriginError,
    OriginThrottledError,
    OriginUnavailableError,
    OverloadedError,
    StorageError,
)
from storage.origin.admission import Limiter, Ticket
from storage.origin.counters import OriginCounters
from storage.origin.credentials import Credentials, CredentialSource
from storage.origin.documents import DOCUMENT_BYTES_MAX, ERROR_BYTES_MAX
from storage.origin.endpoint import Address, OriginSettings, Regions, address, is_aws
from storage.origin.failures import failure_in_success, failure_of, names_reason, told_region
from storage.origin.limiter import Budget, Feedback
from storage.origin.retry import CREDENTIAL_CODES, THROTTLE_CODES, Outcome, RetryBudgets, classify, delay_s
from storage.origin.signing import EMPTY_SHA256, UNSIGNED_PAYLOAD, SigningIdentity, sign_headers
from storage.origin.transport import Attempt, Exchange, Transport
from storage.origin.wire import OutgoingBody, bad_answer, header_text, http_date_s
from storage.stats import charge_origin
from storage.types import Priority

log = logging.getLogger(__name__)

T = TypeVar("T")

USER_AGENT = "forebay"
_FLUSHING = (Priority.URGENT_FLUSH, Priority.FLUSH, Priority.EARLY_FLUSH)


class Call(msgspec.Struct, frozen=True):
    """One operation at the origin. Seen by the garbage collector, since `on_turn` may hold what holds an error that holds the call.

    Attributes:
        operation: S3's name of it; a metrics label.
        is_read: It changes nothing, so that it may be retried.
        is_retried: A read is retried here; False for whoever asks again itself, which would multiply.
        is_idempotent: Sent twice it leaves what it leaves sent once, so that a dead connection may be replaced.
        bytes_hint: Body bytes that it will move, for the byte budget.
        on_turn: Called when the limiter lets an attempt through. Where it raises NotNeededError nothing is sent.
        within_s: Longest time until the head of its answer, all waits included; it is not retried then. None: as the
            settings say. For calls without a streamed body.
    """

    operation: str
    method: str
    bucket: str
    key: str = ""
    query: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes | OutgoingBody = b""
    priority: Priority = Priority.FOREGROUND
    is_read: bool = True
    is_retried: bool = True
    is_idempotent: bool = True
    bytes_hint: int = 0
    within_s: float | None = None
    on_turn: Callable[[], object] | None = None

    @property
    def has_repeatable_body(self) -> bool:
        """Whether the body can be sent again."""
        return not isinstance(self.body, OutgoingBody) or self.body.is_repeatable


class Answer:
    """An open answer to a call, with the limiter's ticket: the slot is held until it is closed."""

    def __init__(
        self, exchange: Exchange, ticket: Ticket, counters: OriginCounters, history: "History"
    ) -> None:
        self._exchange = exchange
        self._ticket = ticket
        self._counters = counters
        self._sent = history.bytes_sent
        self._is_open = True
        self.is_earlier_unknown = history.unknown is not None

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self._exchange.status

    @property
    def headers(self) -> Mapping[str, str]:
        """The headers, found whatever their case."""
        return self._exchange.headers

    async def chunks(self) -> AsyncIterator[bytes]:
        """Stream the body in pieces of at most 256 KiB.

        Raises:
            OriginUnavailableError: Code Incomplete or Timeout; what came before is a prefix of the body.
        """
        try:
            while chunk := await self._exchange.read():
                yield chunk
        except OriginUnavailableError as error:
            self._ticket.report(_feedback(error))
            raise

    async def document(self) -> bytes:
        """Give the whole body, of a document, and close."""
        body = await self.open_document()
        self.close()
        return body

    async def open_document(self) -> bytes:
        """Give the whole body, of a document that has yet to be judged; `close` then comes behind `teach`."""
        return await self._exchange.read_all(DOCUMENT_BYTES_MAX)

    def teach(self, failure: StorageError) -> None:
        """Let the limiter learn of a failure that stands in the document of a success, as it would of an answer of that status."""
        self._ticket.report(_feedback(failure), failure.retry_after_s)

    def teach_lines(self, codes: Iterable[str]) -> None:
        """Let the limiter learn of lines that failed in a success: one that asks for less counts as an answer that does."""
        failed = {code for code in codes if classify(500, code) in (Outcome.THROTTLE, Outcome.RETRY) and code}
        if failed & THROTTLE_CODES:
            self._ticket.report(Feedback.THROTTLED)
        elif failed:
            self._ticket.report(Feedback.NEUTRAL)

    def close(self) -> None:
        """Give back connection and slot, cutting what was not read; safe to call twice."""
        if self._is_open:
            self._is_open = False
            self._exchange.close()
            self._counters.bytes_in += self._exchange.bytes_received
            self._ticket.bytes_moved = self._sent + self._exchange.bytes_received
            self._ticket.give_back()


class History:
    """What happened in the attempts of one call so far."""

    __slots__ = (
        "answer",
        "attempt",
        "attempts",
        "bytes_sent",
        "credentials",
        "remedies",
        "told_region",
        "unknown",
        "until_s",
        "used_region",
    )

    def __init__(self) -> None:
        self.attempts = 0
        self.attempt = Attempt()
        self.bytes_sent = 0
        self.remedies: set[str] = set()
        self.unknown: OriginError | None = None
        self.credentials: Credentials | None = None
        self.used_region = ""
        self.told_region = ""
        self.answer: ErrorAnswer | None = None
        self.until_s: float | None = None

    @property
    def has_document(self) -> bool:
        """Whether the last answer was an error that says in a document what it is."""
        return self.answer is not None and bool(self.answer.body)

    @property
    def lacks_reason(self) -> bool:
        """Whether the last answer was an error that, being a 404, does not say what is not there."""
        return self.answer is not None and not names_reason(dict(self.answer.headers), self.answer.body)

    def first(self, remedy: str) -> bool:
        """Take a remedy if it was not taken before."""
        if remedy in self.remedies:
            return False
        self.remedies.add(remedy)
        return True


class ErrorAnswer(msgspec.Struct, frozen=True):
    """An error answer as received, for passing on."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class Caller:
    """Carries calls to the origin. Holds what is learnt from answers: regions, clock offset, retry budgets."""

    def __init__(
        self,
        settings: OriginSettings,
        *,
        limiter: Limiter,
        credentials: CredentialSource,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self._settings = settings
        self._limiter = limiter
        self._credentials = credentials
        self._clock = clock
        self._rng = rng
        self._transport = Transport(settings)
        self._budgets = RetryBudgets()
        self.regions = Regions(settings.region)
        self.is_s3 = is_aws(settings)
        self.counters = OriginCounters()
        self.clock_offset_s = 0.0
        self._priority: Priority | None = None

    def signed_by(self, credentials: CredentialSource) -> Self:
        """Give a caller that signs with other credentials, over the same connections, limits and regions.

        It is open as long as this one is, and is not opened or closed itself. A clock offset that either learns from here on
        is its own.
        """
        other = copy.copy(self)
        other._credentials = credentials  # noqa: SLF001  of the same class
        return other

    def at_priority(self, priority: Priority) -> Self:
        """Give a caller for who asks again itself: all its calls have one priority, and none is retried; else as `signed_by`.

        So whoever has come to wait for the same answer hears of a failure at once, and is not held up by that priority.
        """
        other = copy.copy(self)
        other._priority = priority  # noqa: SLF001  of the same class
        return other

    async def open(self) -> None:
        """Make ready to send, on the running loop."""
        await self._transport.open()

    async def close(self) -> None:
        """Cut all connections; calls in flight fail."""
        await self._transport.close()

    async def run(
        self, call: Call, use: Callable[[Answer], Awaitable[T]], history: History | None = None
    ) -> T:
        """Send a call until it is answered with success, and give what `use` makes of the answer.

        `use` closes the answer or returns what does; a retryable error that it raises counts as the attempt's, and any
        error that is not of storage makes the answer a bad one. After an error answer, `history.answer` is what was
        received.

        Raises:
            NoSuchKeyError, NoSuchBucketError, NoSuchUploadError: As the origin says.
            OriginError: The last attempt's; for a write, `outcome_unknown` covers all attempts.
            OriginAwayError: It has not answered for a while; nothing was sent by that attempt.
            OverloadedError: The limiter's queue is full or too slow; likewise.
        """
        history = history or History()
        if self._priority is not None:
            call = msgspec.structs.replace(call, priority=self._priority, is_retried=False)
        if call.within_s is not None:
            history.until_s = asyncio.get_running_loop().time() + call.within_s
        while True:
            try:
                answer = await self._attempt(call, history)
                try:
                    with answer_read(call.operation):
                        return await use(answer)
                except BaseException:
                    answer.close()
                    raise
            except OriginError as failure:
                self._note(call, history, failure)
                wait_s = self._next_step(call, history, failure)
                if wait_s is None:
                    raise
                if self._priority is not None:
                    # Only what was remedied is sent again: it has had its turn, and others may wait for it by now.
                    call = msgspec.structs.replace(call, priority=Priority.FOREGROUND)
            except (NoSuchKeyError, NoSuchBucketError, NoSuchUploadError, OverloadedError) as error:
                if history.unknown is None:
                    raise
                raise history.unknown from error  # the attempt before may still land: that is what the caller must hear
            self.counters.retries_total += 1
            await self._clock.sleep(wait_s)

    async def _attempt(self, call: Call, history: History) -> Answer:
        history.attempts += 1
        history.attempt = attempt = Attempt(history.until_s)
        history.told_region = ""
        history.answer = None
        ticket = await self._admitted(call, history)
        attempt.pause, attempt.resume = ticket.rest, ticket.wake
        started_s = self._clock.monotonic_s()
        try:
            if call.on_turn is not None:
                call.on_turn()
            exchange = await self._send(call, history, attempt)
            self._count(call, str(exchange.status), started_s)
            with answer_read(call.operation):
                await self._raise_if_refused(call, history, exchange)
        except BaseException as error:
            if isinstance(error, OriginError) and error.status == 0:
                self._count(call, error.code.lower(), started_s)
            ticket.bytes_moved = attempt.bytes_sent
            ticket.report(_feedback(error), getattr(error, "retry_after_s", None))
            ticket.give_back()
            raise
        finally:
            history.bytes_sent = attempt.bytes_sent
            self.counters.bytes_out += attempt.bytes_sent
        ticket.report(Feedback.SUCCESS)
        ticket.answered()
        self._budgets.of(call.bucket, started_s).succeeded()
        return Answer(exchange, ticket, self.counters, history)

    async def _admitted(self, call: Call, history: History) -> Ticket:
        """Get the keys to sign with and the limiter's leave to send."""
        if history.until_s is None:
            return await self._admit(call, history)
        try:
            async with asyncio.timeout_at(history.until_s):
                return await self._admit(call, history)
        except TimeoutError as error:
            raise OriginUnavailableError(
                "no turn to ask the origin in time", status=0, code="Timeout"
            ) from error

    async def _admit(self, call: Call, history: History) -> Ticket:
        budget = Budget.FLUSH if call.priority in _FLUSHING else Budget.GENERAL
        history.credentials = await self._credentials.credentials()
        priority = call.priority if call.has_repeatable_body else Priority.UPLOAD
        ticket = self._limiter.admit(priority, call.bytes_hint, budget, bucket=call.bucket)
        return await ticket.acquire()

    def _count(self, call: Call, status: str, started_s: float) -> None:
        duration_s = self._clock.monotonic_s() - started_s
        self.counters.count(call.operation, status, duration_s)
        charge_origin(duration_s)

    async def _send(self, call: Call, history: History, attempt: Attempt) -> Exchange:
        credentials = history.credentials
        assert credentials is not None, "credentials come before admission"
        history.used_region = region = self.regions.of(call.bucket)
        where = address(self._settings, call.bucket, call.key, call.query, region=region)
        identity = SigningIdentity(
            credentials.access_key, credentials.secret_key, region, credentials.session_token
        )
        wall_s = self._clock.wall_s() + self.clock_offset_s
        headers = _signed(call, where, identity, wall_s)
        return await self._transport.send(call.method, where, headers, call.body, attempt)

    async def _raise_if_refused(self, call: Call, history: History, exchange: Exchange) -> None:
        """Read an error answer, keep what it teaches, and raise what it is."""
        if exchange.status < 300 or exchange.status == 304:
            return
        headers = exchange.headers
        try:
            body = await exchange.read_all(ERROR_BYTES_MAX)
        except OriginUnavailableError:
            if exchange.status == 404 and call.is_read:
                exchange.close()
                raise  # what there is not, the key or its bucket, stood in what was lost
            body = b""  # any other status is an answer without its document, too
        exchange.close()
        self.counters.bytes_in += exchange.bytes_received
        history.answer = ErrorAnswer(exchange.status, tuple((n.lower(), v) for n, v in headers.items()), body)
        failure = failure_of(
            exchange.status,
            headers,
            body,
            is_read=call.is_read,
            has_key=bool(call.key),
            has_version=any(name == "versionId" for name, _ in call.query),
        )
        history.told_region = told_region(headers, body)
        if isinstance(failure, OriginError) and failure.code == "RequestTimeTooSkewed":
            date_s = http_date_s(headers.get("date", ""))
            if date_s:
                self.clock_offset_s = date_s - self._clock.wall_s()
        raise failure

    def _note(self, call: Call, history: History, failure: OriginError) -> None:
        """Complete what a failure says of the outcome of a write."""
        if call.is_read:
            return
        if failure.status == 0 and history.attempt.is_sent:
            failure.outcome_unknown = True
        if failure.outcome_unknown:
            history.unknown = failure
        failure.outcome_unknown = history.unknown is not None

    def _next_step(self, call: Call, history: History, failure: OriginError) -> float | None:
        """Say after how many seconds to try again, None to give up."""
        is_remedied = self._remedy(call, history, failure)
        if is_remedied and call.has_repeatable_body:
            return 0.0
        may_retry = call.is_read and call.is_retried and call.within_s is None
        if not may_retry or not isinstance(failure, OriginUnavailableError):
            return None
        if isinstance(failure, OriginAwayError):
            return None  # nothing was asked: who can do without should hear of it now
        now_s = self._clock.monotonic_s()
        if history.attempts >= self._settings.read_attempts:
            return None
        if not self._budgets.of(call.bucket, now_s).try_spend(now_s):
            return None
        return delay_s(history.attempts, self._rng.random(), failure.retry_after_s)

    def _remedy(self, call: Call, history: History, failure: OriginError) -> bool:
        """Correct what one more attempt would do better; what is learnt here also serves calls that cannot be repeated."""
        if failure.status == 0:
            is_stale = failure.code == "Connection" and history.attempt.is_reused
            return is_stale and call.is_idempotent and history.first("connection")
        if history.told_region not in ("", history.used_region):
            self.regions.learn(call.bucket, history.told_region)
            return history.first("region")
        if failure.code == "RequestTimeTooSkewed":
            return history.first("clock")
        if failure.code in CREDENTIAL_CODES and history.credentials is not None:
            return self._credentials.refused(history.credentials) and history.first("credentials")
        return False


class answer_read:  # noqa: N801  used as a context manager
    """Make whatever reading an answer trips over the answer's fault, so that none can end more than its own call.

    Raises:
        OriginUnavailableError: Code BadAnswer, in place of any error that is not of storage.
    """

    __slots__ = ("_operation",)

    def __init__(self, operation: str) -> None:
        self._operation = operation

    def __enter__(self) -> None:
        """Begin to read."""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, StorageError):
            log.error("the origin's answer to %s cannot be read", self._operation, exc_info=error)
            raise bad_answer(f"that to {self._operation} cannot be read; the log says why") from error


async def completed(answer: Answer) -> bytes:
    """Give the document of a write's answer; for `Caller.run`.

    Raises:
        StorageError: The error document that came with status 200, or BadAnswer where a document is cut off or a web page.
    """
    body = await judged(answer)
    answer.close()
    return body


async def judged(answer: Answer) -> bytes:
    """As `completed`, with the answer still open for what its lines say."""
    body = await answer.open_document()
    failure = failure_in_success(body)
    if failure is not None:
        answer.teach(failure)
        raise failure
    return body


def _signed(call: Call, where: Address, identity: SigningIdentity, wall_s: float) -> dict[str, str]:
    headers: dict[str, str] = {"host": where.host}
    for name, value_as_received in call.headers:
        value = header_text(value_as_received)
        headers[name] = f"{headers[name]},{value}" if name in headers else value
    body = call.body
    if isinstance(body, OutgoingBody):
        size, payload_hash = body.size, body.sha256 or UNSIGNED_PAYLOAD
    else:
        size = len(body)
        payload_hash = hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256
    signed = sign_headers(identity, call.method, where.target, headers, payload_hash, wall_s)
    signed["user-agent"] = USER_AGENT
    if size or call.method in ("PUT", "POST"):
        signed["content-length"] = str(size)
    return signed


def _feedback(error: BaseException) -> Feedback:
    if isinstance(error, OriginThrottledError):
        return Feedback.THROTTLED
    if isinstance(error, OriginUnavailableError):
        return unavailable_feedback(error)
    if isinstance(error, NotNeededError):
        return Feedback.NEUTRAL
    # Any other answer, a refusal too, shows an origin that keeps up.
    return Feedback.SUCCESS if isinstance(error, StorageError) else Feedback.NEUTRAL


def unavailable_feedback(error: OriginUnavailableError) -> Feedback:
    """Say what no answer, or that of a server which failed, shows of the origin.

    502 and 504 are the word of somebody in between that the origin itself did not answer (RFC 9110 sections 15.6.3, 15.6.5).
    """
    if error.code == "Timeout":
        return Feedback.TIMED_OUT
    is_away = (error.status == 0 and error.code == "Connection") or error.status in {502, 504}
    return Feedback.FAILED if is_away else Feedback.NEUTRAL
