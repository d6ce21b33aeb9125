"""Relay what the origin alone carries out: flush what it depends on, ask, forget what it changed, stream the answer.

    read   -> flush the key, or the bucket ------------------------------------> ask
    write  -> a sub-resource: does the origin know it? (`relay_guard`; a key's in its turn)
           -> take a small body in -> configuration: --------------------------> ask
                                   -> key:    `Through`: turn, flush ----------> ask -> forget the cached version
                                   -> facts:  close the bucket, flush it ------> ask -> ask for its facts anew
                                   -> any object: close (or turn), flush, doubt > ask -> doubt what was cached of it

The answer to a write is begun within its turn: its head and its first ANSWER_BYTES, which for S3's documents is all of it. So
an operation that answers 200 at once and ends its work behind that has ended when the next one begins. Whatever is longer
streams to the client behind the turn, and holds up nobody.

The origin is asked by the gateway's key or by the client key's own (`signed_by`), and what it refuses is an answer like any other.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final, assert_never

import msgspec

from storage.effects import Changes, Needs
from storage.errors import NotSupportedError, OverloadedError
from storage.facts_table import FactsTable
from storage.flusher import Flusher
from storage.generations import Generations
from storage.intake import HELD_BODY_BYTES_MAX, HeldBodies, HeldContent
from storage.late_landings import LANDING_S
from storage.origin.answers import RawAnswer
from storage.origin.client import OriginClient
from storage.origin.wire import OutgoingBody, checksum_headers
from storage.relay_guard import RelayGuard
from storage.removal_probe import RemovalProbe
from storage.requests import Content, RelayReply, RelayRequest
from storage.through import Through, quarantined_error
from storage.types import KIB, MIB, CacheResult

ANSWER_BYTES: Final = MIB
"""So much of the answer to a write is read within its turn."""

SIGNED_BYTES_MAX: Final = 256 * KIB
"""A body up to this size is signed with the request; hashing more would hold up the event loop."""

SDK_ALGORITHM: Final = "x-amz-sdk-checksum-algorithm"

LISTING: Final = "ListObjectVersions"
"""The operation of a bucket whose query says by a prefix which names it is about (`gateway/s3/routes.py`)."""


class RelayedBody:
    """The body of an answer of the origin, on its way to a client; owns the open answer."""

    def __init__(self, answer: RawAnswer, opening: AsyncExitStack) -> None:
        self._chunks = answer.chunks()
        self._opening = opening
        self._first: list[bytes] = []

    @property
    def result(self) -> CacheResult:
        """Nothing of it is kept."""
        return CacheResult.BYPASS

    async def begin(self, bytes_max: int) -> None:
        """Read ahead until the end, or until so much is here."""
        held = 0
        while held < bytes_max and (chunk := await anext(self._chunks, b"")):
            self._first.append(chunk)
            held += len(chunk)
        self._first.reverse()

    @property
    def first(self) -> bytes:
        """What `begin` has read."""
        return b"".join(reversed(self._first))

    async def next_piece(self) -> bytes | None:
        """Give the next bytes, None at the end; errors as `Body.next_piece`."""
        if self._first:
            return self._first.pop()
        return await anext(self._chunks, None)

    async def close(self) -> None:
        """Let the answer go; what was not read of it is cut."""
        await self._opening.aclose()


@dataclass(slots=True)
class RelayParts:
    """What relaying works with; made once by the engine. `removals` asks with the gateway's own key, whoever relays."""

    origin: OriginClient
    removals: RemovalProbe
    through: Through
    flusher: Flusher
    facts: FactsTable
    generations: Generations
    held: HeldBodies
    wall_s: Callable[[], float]


class Relay:
    """Relays operations."""

    def __init__(self, parts: RelayParts, gateways: RelayGuard | None = None) -> None:
        self._parts = parts
        self._guard = RelayGuard(parts.origin, parts.removals, gateways)
        self._others: dict[str, Relay] = {}

    def signed_by(self, authority_id: str, origin: OriginClient) -> "Relay":
        """Relay as another authority, which finds out by itself what the origin knows; where that is refused, ours counts."""
        known = self._others.get(authority_id)
        if known is None:
            parts = replace(self._parts, origin=origin)
            known = self._others[authority_id] = Relay(parts, self._guard)
        return known

    async def read(self, request: RelayRequest) -> RelayReply:
        """Relay what changes nothing.

        Raises:
            QuarantinedError: The origin refused the newest change of what it depends on.
            OriginError: The flush failed, or the origin did not answer.
        """
        await self._flush_needed(request)
        reply, _ = await self._ask(request, request.body, is_begun=False)
        return reply

    async def write(self, request: RelayRequest, content: Content) -> RelayReply:
        """Relay what may change something.

        A body up to the bound of `HeldBodies` is taken in and verified before the origin is asked, a longer one is streamed, its
        last piece held back until it is.

        Raises:
            NoSuchBucketError: The origin has no such bucket.
            NotSupportedError, OverloadedError: The body cannot be held, and is for a bucket that is closed meanwhile.
            NameIgnoredError, NoSuchKeyError, NoSuchVersionError: As `RelayGuard.check`.
            ReadOnlyError, QuarantinedError, OriginError, EngineClosedError, UnknownOutcomeError: As `Through.operation`.
            Exception: What the body raised; the origin does not have it whole.
        """
        with ExitStack() as holding:
            is_held = holding.enter_context(self._parts.held.room(content.size))
            if not request.name.key:
                if request.effect.changes in {Changes.FACTS, Changes.OBJECTS}:
                    _check_held(content, is_held=is_held)
                await self._check_bucket(request)
            request, body = await _outgoing(request, content, is_held=is_held)
            match request.effect.changes:
                case Changes.NOTHING | Changes.CONFIGURATION:
                    await self._flush_needed(request)
                    reply, _ = await self._ask(request, body)
                case Changes.KEY:
                    reply = await self._change_key(request, body)
                case Changes.FACTS:
                    async with self._bucket_closed(request.name.bucket):
                        reply, _ = await self._ask(request, body)
                case Changes.OBJECTS if request.name.key:
                    reply = await self._change_objects(request, body, self._object_turn(request))
                case Changes.OBJECTS:
                    closed = self._bucket_closed(request.name.bucket)
                    reply = await self._change_objects(request, body, closed)
                case _:
                    assert_never(request.effect.changes)
        return reply

    async def _check_bucket(self, request: RelayRequest) -> None:
        """Have neither a bucket made nor one deleted by a write of a configuration; errors as `RelayGuard.check`.

        An origin that knows how to read the name and ignores it in a PUT (SeaweedFS: `website`, `logging`) makes the bucket
        that it names, unless there is one.
        """
        if self._guard.is_feared(request) and request.method == "PUT":
            await self._parts.facts.facts(request.name.bucket)
        await self._guard.check(request)

    async def _flush_needed(self, request: RelayRequest) -> None:
        flusher, name = self._parts.flusher, request.name
        match request.effect.needs:
            case Needs.NOTHING:
                return
            case Needs.BUCKET:
                await flusher.waits.flush_bucket(name.bucket, needed_prefix(request))
            case Needs.KEY:
                # Not in the key's turn: a write that comes now is concurrent with the read, and either order is right.
                if flusher.dirty_entry(name) is None:
                    return
                await flusher.waits.flush_key(name)
                reason = flusher.quarantine_reason(name)
                if reason:
                    raise quarantined_error(name, reason)
            case _:
                assert_never(request.effect.needs)

    async def _change_key(self, request: RelayRequest, body: bytes | OutgoingBody) -> RelayReply:
        async with AsyncExitStack() as undoing:
            async with self._parts.through.operation(request.changed) as passed:
                await self._guard.check(request)
                reply, passed.is_unknown = await self._ask(request, body)
                # Tags and the like belong to a version, of which the newest need not have been named.
                passed.changed_version_id = changed_version_id(reply.headers)
                # What fails behind the answer, forgetting above all, leaves nobody to close it.
                undoing.push_async_callback(reply.body.close)
            undoing.pop_all()
        return reply

    async def _change_objects(
        self, request: RelayRequest, body: bytes | OutgoingBody, held: AbstractAsyncContextManager[None]
    ) -> RelayReply:
        """Relay what may change any object of a bucket, by a name of one of them or of the bucket, while `held` is."""
        bucket, facts = request.name.bucket, self._parts.facts
        is_unknown = True
        async with AsyncExitStack() as undoing:
            async with held:
                await facts.doubt(bucket, self._parts.wall_s())
                try:
                    reply, is_unknown = await self._ask(request, body)
                    undoing.push_async_callback(reply.body.close)
                finally:
                    facts.drop(bucket)
                    self._parts.generations.bump_bucket(bucket)
                    landed_by_s = self._parts.wall_s() + (LANDING_S if is_unknown else 0.0)
                    await facts.doubt(bucket, landed_by_s)
            undoing.pop_all()
        return reply

    @asynccontextmanager
    async def _object_turn(self, request: RelayRequest) -> AsyncIterator[None]:
        """Hold one object, with its whole bucket at the origin as it was acknowledged.

        Its bucket is not closed: a long body would hold up all other writes, which are concurrent with this one.
        """
        bucket = request.name.bucket
        await self._parts.facts.facts(bucket)
        # Not within the turn: another operation like this one may have its own turn of what is to be flushed.
        await self._parts.flusher.waits.flush_bucket(bucket)
        async with self._parts.through.operation(request.changed):
            await self._guard.check(request)
            yield

    @asynccontextmanager
    async def _bucket_closed(self, bucket: str) -> AsyncIterator[None]:
        """Keep writes out of a bucket, flushed, while the block changes what decides about them."""
        await self._parts.facts.facts(bucket)
        async with self._parts.facts.closed(bucket) as closing:
            await self._parts.flusher.waits.flush_bucket(bucket)
            closing.is_asked = True
            yield

    async def _ask(
        self, request: RelayRequest, body: bytes | OutgoingBody, *, is_begun: bool = True
    ) -> tuple[RelayReply, bool]:
        """Ask the origin; give its answer, and whether something that was sent may yet take effect."""
        asking: AbstractAsyncContextManager[RawAnswer] = self._parts.origin.request(
            request.method,
            request.name,
            operation=request.operation,
            query=request.query,
            headers=request.headers,
            body=body,
            is_read=request.effect.is_read,
            is_repeatable=request.effect.is_repeatable,
        )
        async with AsyncExitStack() as opening:
            answer = await opening.enter_async_context(asking)
            relayed = RelayedBody(answer, opening.pop_all())
        try:
            if is_begun:
                await relayed.begin(ANSWER_BYTES)
                if answer.status == 409:
                    self._guard.check_answer(request, relayed.first)
        except BaseException:
            await relayed.close()
            raise
        return RelayReply(answer.status, answer.headers, answer.length, relayed), answer.is_unknown


def needed_prefix(request: RelayRequest) -> str:
    """Say what all names begin with that an operation on a bucket depends on, "" for every name.

    A listing depends on what it shows alone. Of two prefixes the origin may take either.
    """
    prefixes = [value for name, value in request.query if name == "prefix"]
    return prefixes[0] if request.operation == LISTING and len(prefixes) == 1 else ""


def changed_version_id(headers: tuple[tuple[str, str], ...]) -> str:
    """Find which version an answer says that it is about (AWS API_PutObjectTagging); "" where it does not."""
    told = next((value for name, value in headers if name.lower() == "x-amz-version-id"), "")
    return told if told.isprintable() else ""


async def _outgoing(
    request: RelayRequest, content: Content, *, is_held: bool
) -> tuple[RelayRequest, bytes | OutgoingBody]:
    """Make the body to send, and give the request with the checksum in its head that the client sent behind the body.

    S3 refuses a request that names an algorithm (x-amz-sdk-checksum-algorithm) and has no checksum of it, so behind a long body,
    whose checksum comes too late for the head, the name goes too; the gateway has verified it.
    """
    headers = request.headers
    names = {name.lower() for name, _ in headers}
    held = await HeldContent.take(content) if is_held else None
    if "x-amz-trailer" in names:
        if held is None:
            headers = tuple(pair for pair in headers if pair[0].lower() != SDK_ALGORITHM)
        else:
            headers += checksum_headers(held.checksums())
    request = msgspec.structs.replace(request, headers=headers)
    if held is None:
        return request, OutgoingBody(content.size, content.chunks, is_repeatable=False)
    if held.size <= SIGNED_BYTES_MAX:
        return request, held.data
    return request, OutgoingBody(held.size, held.chunks, is_repeatable=True)


def _check_held(content: Content, *, is_held: bool) -> None:
    """Refuse a body that would have to be streamed while the bucket is closed: how long that takes is up to its client.

    Raises:
        NotSupportedError: It is longer than any that is held.
        OverloadedError: There is no room to hold it now.
    """
    if content.size > HELD_BODY_BYTES_MAX:
        raise NotSupportedError(f"a body of {content.size} bytes for a bucket as a whole")
    if not is_held:
        raise OverloadedError("too many bodies are held", retry_after_s=1.0)
