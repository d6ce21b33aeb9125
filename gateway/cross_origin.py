"""Keep the rules of buckets for cross-origin requests, asked of the origin with the gateway's own key, and answer by them.

A preflight is unsigned, so it is answered here and never refused for want of a signature. Every other request that names the page
it comes from (Origin) has the rules asked for beside its own work, and its answer, an error too, says what they allow. Requests
without Origin cost nothing.

Rules are kept for KEPT_S. Older ones still serve, and are asked for again behind the answer; so only the first request from a page
to a bucket waits for the origin, WAIT_S at most, after which its answer goes without. A question that failed is not asked again for
FAILED_S. What passes through here and may change the rules drops them (`note`), and with them the answers that are under way.
"""

import asyncio
import logging
from typing import Final

import msgspec

from gateway.context import HeaderPairs, ObjectStore, S3Response, empty_response
from gateway.s3.cors import (
    DOCUMENT_BYTES_MAX,
    VARY,
    CorsRule,
    allowing,
    check_preflight,
    parse_rules,
    read_cross_origin,
    refused_preflight,
    sharing_headers,
)
from gateway.s3.effects import EFFECTS
from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.request import ADMIN_BUCKET, S3Request
from gateway.s3.routes import Operation
from storage.clock import Clock
from storage.errors import StorageError
from storage.requests import RelayRequest
from storage.types import ObjectName

KEPT_S: Final = 60.0
FAILED_S: Final = 10.0
WAIT_S: Final = 5.0
BUCKETS_MAX: Final = 1000
QUESTIONS_MAX: Final = 16
"""So many buckets are asked about at a time: anybody may ask by a preflight."""

_CHANGING: Final = frozenset(
    {
        Operation.CREATE_BUCKET,
        Operation.DELETE_BUCKET,
        Operation.DELETE_BUCKET_CORS,
        Operation.PUT_BUCKET_CORS,
        Operation.UNKNOWN,
    }
)
_log = logging.getLogger(__name__)


class _Known(msgspec.Struct, frozen=True):
    """What is known of a bucket: rules, () for none, None where the origin did not say; until when that is not asked again."""

    rules: tuple[CorsRule, ...] | None
    until_s: float


class CrossOriginRules:
    """The rules of all buckets that browsers ask about. Owns the questions under way."""

    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store: Final = store
        self._clock: Final = clock
        self._known: Final[dict[str, _Known]] = {}
        self._questions: Final[dict[str, asyncio.Task[None]]] = {}

    async def preflight(self, request: S3Request) -> S3Response:
        """Answer OPTIONS.

        Raises:
            S3Error: BadRequest; AccessForbidden, no rule allows it; ServiceUnavailable, the origin does not say.
        """
        asked = check_preflight(request)
        rules = await self._rules(request.bucket)
        if rules is None:
            raise S3Error(ErrorCode.SERVICE_UNAVAILABLE, headers={"Retry-After": "1"})
        rule = allowing(rules, asked)
        if rule is None:
            raise refused_preflight(asked, request, has_rules=bool(rules))
        return empty_response(200, sharing_headers(rule, asked))

    def begin(self, request: S3Request) -> None:
        """Ask for the rules that the answer will need, beside the request's own work."""
        if "origin" in request.headers and request.method != "OPTIONS":
            self._ask_if_due(request.bucket)

    async def headers(self, request: S3Request) -> HeaderPairs:
        """Give what the answer to a request says to the browser; nothing where it comes from no page."""
        if request.method == "OPTIONS":
            return ()
        asked = read_cross_origin(request.method, request.headers.combined)
        if asked is None:
            return ()
        rules = await self._rules(request.bucket)
        if not rules:
            return ()
        rule = allowing(rules, msgspec.structs.replace(asked, headers=()))
        return (VARY,) if rule is None else sharing_headers(rule, msgspec.structs.replace(asked, headers=()))

    def note(self, operation: Operation, bucket: str) -> None:
        """Forget the rules where an operation may have changed them; a question that was asked before it is not believed."""
        if operation in _CHANGING:
            self._known.pop(bucket, None)
            question = self._questions.pop(bucket, None)
            if question is not None:
                question.cancel()

    async def close(self) -> None:
        """End the questions under way."""
        questions = tuple(self._questions.values())
        for question in questions:
            question.cancel()
        if questions:
            await asyncio.wait(questions)

    async def _rules(self, bucket: str) -> tuple[CorsRule, ...] | None:
        """Give a bucket's rules; None where they are not known."""
        if bucket in {"", ADMIN_BUCKET}:
            return ()
        self._ask_if_due(bucket)
        known, question = self._known.get(bucket), self._questions.get(bucket)
        if known is None and question is not None:
            await asyncio.wait({question}, timeout=WAIT_S)
            known = self._known.get(bucket)
        return None if known is None else known.rules

    def _ask_if_due(self, bucket: str) -> None:
        known = self._known.get(bucket)
        is_due = known is None or self._clock.monotonic_s() >= known.until_s
        if not is_due or bucket in self._questions or bucket in {"", ADMIN_BUCKET}:
            return
        if len(self._questions) >= QUESTIONS_MAX:
            return
        task = asyncio.get_running_loop().create_task(self._ask(bucket), name="cross-origin rules")
        self._questions[bucket] = task
        task.add_done_callback(lambda ended: self._ended(bucket, ended))

    def _ended(self, bucket: str, task: asyncio.Task[None]) -> None:
        if self._questions.get(bucket) is task:
            del self._questions[bucket]
        if not task.cancelled() and (bug := task.exception()) is not None:
            _log.error("the cross-origin rules of bucket %s cannot be asked for", bucket, exc_info=bug)

    async def _ask(self, bucket: str) -> None:
        before = self._known.get(bucket)
        try:
            rules = await self._answered(bucket)
        except StorageError as error:
            _log.info("the cross-origin rules of bucket %s are not known: %s", bucket, error)
            rules = None
        now_s = self._clock.monotonic_s()
        if rules is None:
            # What was known goes on; what was not is not asked for by every request.
            self._keep(bucket, _Known(before.rules if before else None, now_s + FAILED_S))
        else:
            self._keep(bucket, _Known(rules, now_s + KEPT_S))

    async def _answered(self, bucket: str) -> tuple[CorsRule, ...] | None:
        """Ask; None where the answer says nothing of the rules."""
        operation = Operation.GET_BUCKET_CORS
        reply = await self._store.relay(
            RelayRequest(
                operation=operation.value,
                method="GET",
                name=ObjectName(bucket, ""),
                effect=EFFECTS[operation],
                query=(("cors", ""),),
            )
        )
        try:
            if reply.status >= 500 and reply.status != 501:
                return None
            if reply.status != 200:
                # No rules, no such bucket, an origin that knows no rules, or does not show them to the gateway's key.
                return ()
            document = b""
            while (piece := await reply.body.next_piece()) is not None:
                assert isinstance(piece, bytes), "what is relayed lies in no file"
                document += piece
                if len(document) > DOCUMENT_BYTES_MAX:
                    return None
            return parse_rules(document)
        finally:
            await reply.body.close()

    def _keep(self, bucket: str, known: _Known) -> None:
        self._known.pop(bucket, None)
        while len(self._known) >= BUCKETS_MAX:
            del self._known[next(iter(self._known))]
        self._known[bucket] = known
