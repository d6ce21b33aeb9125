"""Accept writes of single objects: from the local disk where the gateway may answer for the origin, else through to it.

    put -> facts, policy -> back:    admit -> take the body in -> turn -> commit -> 200
                         -> through: take small bodies in first, stream long ones -> turn -> origin -> 200, kept in the cache
                                     (a long one that says its length only at its end is taken in first, on disk)

A write-back takes its turn when its body is complete, so a slow upload holds up nobody; which of two concurrent
writes wins is decided by that order, as S3's last writer. One whose bucket became versioned while its body came is
acknowledged when the origin has it, with the origin's version id. A write-back that finds the disk full or too much dirty
goes through instead.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, ExitStack, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

import msgspec

from storage.applier import Applier
from storage.backlog import Backlog
from storage.cached import AddExtents, StoreVersion
from storage.clock import Clock
from storage.commit import Commit
from storage.conditional_writes import ConditionalWrites
from storage.conflict_rules import Base
from storage.conflicts import Conflicts
from storage.errors import (
    NoSuchKeyError,
    NoSuchVersionError,
    OriginError,
    OverloadedError,
    ReadOnlyError,
    StorageError,
)
from storage.facts_table import FactsTable
from storage.generations import Generations
from storage.ids import Ids
from storage.intake import BodyIntake, HeldBodies, HeldContent, Inlet, Intake
from storage.keyqueue import KeyQueue
from storage.origin.answers import WriteAnswer
from storage.origin.client import OriginClient
from storage.origin.wire import OutgoingBody, is_conditional, object_headers
from storage.outgoing import Outgoing
from storage.policy import PolicyTable
from storage.queued_change import new_entry, on_base
from storage.records import (
    FORMAT,
    DirtyEntry,
    ObjectRecord,
    ObjectState,
    OriginIdentity,
    Put,
    Tombstone,
    Validated,
)
from storage.requests import BoundedContent, Content, DeleteLine, DeleteResult, PutRequest, PutResult
from storage.sent_digests import held_body, without_told
from storage.through import Passed, Through
from storage.types import NULL_VERSION, ByteRange, Checksum, ObjectName, WriteMode
from storage.workers import Workers
from storage.write_turn import FactsNow, write_turn
from storage.writemode import WriteDecision, decide, late_reason

THROUGH_DELETES_MAX: Final = 16
"""Deletes of one batch that are at the origin at a time; those from the local disk go together, to share the syncs."""

BUSY_RETRY_S: Final = 5.0
"""Asked of a client whose write found no room here and no origin."""

Headers = tuple[tuple[str, str], ...]
Deleting = Coroutine[object, object, DeleteResult]


@dataclass(slots=True)
class WriterParts:
    """What the writer works with; made once by the engine."""

    inlet: Inlet
    commit: Commit
    applier: Applier
    backlog: Backlog
    queue: KeyQueue
    generations: Generations
    facts: FactsTable
    conflicts: Conflicts
    conditional: ConditionalWrites
    through: Through
    origin: OriginClient
    policies: Callable[[], PolicyTable]
    ids: Ids
    clock: Clock
    workers: Workers
    held: HeldBodies
    outgoing: Outgoing
    check_writable: Callable[[ObjectName], None]
    epoch: int


class Writer:
    """Puts and deletes."""

    def __init__(self, parts: WriterParts) -> None:
        self._parts = parts

    def signed_by(self, origin: OriginClient) -> "Writer":
        """Write as another authority; only what goes through asks the origin."""
        conditional = replace(self._parts.conditional, origin=origin)
        return Writer(replace(self._parts, origin=origin, conditional=conditional))

    async def put(self, request: PutRequest, content: Content) -> PutResult:
        """Store an object; on return it is durable on the local disk or at the origin, as the mode asks.

        A cancelled call has stored the object or not, as one whose connection broke; nothing of it is held any more.

        Raises:
            NoSuchBucketError: The origin has no such bucket.
            DurabilityNotPossibleError: The client insisted on the disk and it cannot be.
            OverloadedError: Too much is dirty, and the origin did not take the write either.
            OriginError: It had to be written through, and the origin refused or failed.
            BaseUnknownError: The origin had to be asked what it holds (policy `on_conflict`), and did not say.
        """
        decision = await self._decide(request)
        releases = self._parts.policies().find(request.name).release_after_flush
        # What leaves the disk as soon as the origin has it is not kept at all where the origin has it first.
        is_kept = decision.mode is not WriteMode.AROUND and not decision.is_forced and not releases
        if decision.mode is not WriteMode.BACK:
            return await self.put_through(request, content, keep=is_kept)
        result = await self._try_put_back(request, content, releases=releases)
        if result is not None:
            return result
        try:
            return await self.put_through(request, content, keep=is_kept)
        except OriginError as error:
            if not error.retryable:
                raise
            raise OverloadedError(
                f"no room for {content.size} bytes here, and the origin does not take them: {error}",
                retry_after_s=error.retry_after_s or BUSY_RETRY_S,
            ) from error

    async def _decide(self, request: PutRequest) -> WriteDecision:
        facts = await self._parts.facts.facts(request.name.bucket)
        policy = self._parts.policies().find(request.name)
        return decide(policy, facts, requested=request.mode, origin_reason=request.origin_reason)

    # --- write-back --------------------------------------------------------------------------------------------------

    async def _try_put_back(
        self, request: PutRequest, content: Content, *, releases: bool
    ) -> PutResult | None:
        """Acknowledge from the disk; None where there is no room and not a byte of the body was read."""
        size = content.size
        if not await self._parts.backlog.admit(size):
            return None
        try:
            begun = await self._parts.inlet.begin(content, releases=releases)
            if begun is None:
                return None
            with begun:
                with self._parts.inlet.watching_disk():
                    intake = await begun.take()
                    committed = await self._commit_put(request, content, intake)
                return committed or await self._send_taken(request, content, intake, keep=False)
        finally:
            self._parts.backlog.settle(size)

    async def _commit_put(self, request: PutRequest, content: Content, intake: Intake) -> PutResult | None:
        """Acknowledge what was taken in; None where the bucket became one whose origin has to answer."""
        while True:
            async with self._turn(request.name) as facts_now:
                base = await self._parts.conflicts.base(request.name)
                facts = facts_now()
                if facts is None:
                    continue
                if late_reason(facts):
                    return None
                now_s = self._parts.clock.wall_s()
                record = self._record(request, intake, content, now_s)
                entry = self._entry(request.name, record, base, now_s, request.credential_id)
                with self._parts.generations.laying_over(request.name):
                    await self._parts.commit.commit(Put(FORMAT, record, entry), body=intake.tiny)
            return PutResult(record.etag, record.last_modified_s, record.checksums)

    def _turn(self, name: ObjectName) -> AbstractAsyncContextManager[FactsNow]:
        return write_turn(self._parts.facts, self._parts.queue, name, self._parts.check_writable)

    def _record(self, request: PutRequest, intake: Intake, content: Content, now_s: float) -> ObjectRecord:
        return ObjectRecord(
            FORMAT,
            self._parts.ids.take_version_id(),
            intake.size,
            intake.md5_hex,
            int(now_s),
            ObjectState.DIRTY,
            None,
            Validated(),
            headers=request.headers,
            user_metadata=request.user_metadata,
            tags=request.tags,
            checksums=content.checksums(),
            extents=intake.extents,
            is_written_here=True,
        )

    def _entry(
        self, name: ObjectName, record: ObjectRecord | None, base: Base, now_s: float, credential_id: str
    ) -> DirtyEntry:
        policy = self._parts.policies().find(name)
        entry = new_entry(
            name, record, policy, now_s=now_s, epoch=self._parts.epoch, credential_id=credential_id
        )
        return on_base(entry, base)

    # --- deletes -----------------------------------------------------------------------------------------------------

    async def delete(
        self,
        name: ObjectName,
        *,
        origin_reason: str = "",
        origin_headers: Headers = (),
        credential_id: str = "",
    ) -> DeleteResult:
        """Delete an object, or the version of it that is named; one that does not exist is deleted too, as S3 has it.

        A version, or for a reason that only the origin can answer, is deleted there before the call returns. In a bucket
        that never had versions the one called `null` is the object.
        """
        if name.version_id == NULL_VERSION:
            facts = await self._parts.facts.facts(name.bucket)
            name = name if facts.is_versioned else name.plain
        if (
            not name.version_id
            and await self._deletes_back(name, origin_reason)
            and await self._delete_back(name, credential_id)
        ):
            return DeleteResult(name.key)
        return await self.delete_through(name, origin_headers)

    async def delete_through(self, name: ObjectName, origin_headers: Headers = ()) -> DeleteResult:
        """Delete an object, or the version of it that is named, at the origin before the call returns."""
        replaces = not is_conditional(origin_headers) and not name.version_id
        async with self._parts.through.operation(name, replaces=replaces) as passed:
            # The condition of a delete of a version is on the version, which a HEAD of the object does not show.
            headers = origin_headers
            if not name.version_id:
                with passed.looking():
                    headers = await self._parts.conditional.checked(name, origin_headers)
            answer = await self._parts.origin.delete_object(name, headers=headers)
            passed.is_unknown = answer.is_earlier_unknown
        return DeleteResult(name.key, version_id=answer.version_id, headers=answer.headers)

    async def delete_many(
        self, lines: Sequence[DeleteLine], *, credential_id: str
    ) -> tuple[DeleteResult, ...]:
        """Delete each line's object as `delete` does, together, so that tombstones share the syncs; one result a line."""
        through = asyncio.Semaphore(THROUGH_DELETES_MAX)

        async def delete(line: DeleteLine) -> DeleteResult:
            name = line.name
            if not name.version_id and not line.origin_headers and await self._deletes_back(name, ""):
                # Where each asks the origin first, they must not all do so at once.
                async with through if self._parts.conflicts.is_on(name) else nullcontext():
                    if await self._delete_back(name, credential_id):
                        return DeleteResult(name.key)
            async with through:
                return await self.delete(
                    name,
                    origin_reason="conditional" if line.origin_headers else "",
                    origin_headers=line.origin_headers,
                    credential_id=credential_id,
                )

        return await _delete_each(lines, delete)

    async def delete_many_through(
        self, lines: Sequence[DeleteLine], told: Callable[[ObjectName, Deleting], Awaitable[DeleteResult]]
    ) -> tuple[DeleteResult, ...]:
        """Delete each line's object as `delete_through` does, some at a time; one result a line, as `told` makes it."""
        through = asyncio.Semaphore(THROUGH_DELETES_MAX)

        async def delete(line: DeleteLine) -> DeleteResult:
            async with through:
                return await told(line.name, self.delete_through(line.name, line.origin_headers))

        return await _delete_each(lines, delete)

    async def _deletes_back(self, name: ObjectName, origin_reason: str) -> bool:
        facts = await self._parts.facts.facts(name.bucket)
        policy = self._parts.policies().find(name)
        mode = decide(policy, facts, requested=None, origin_reason=origin_reason).mode
        return mode is WriteMode.BACK and self._parts.inlet.has_record_room()

    async def _delete_back(self, name: ObjectName, credential_id: str) -> bool:
        """Acknowledge a delete from the disk; False where the bucket became one whose origin has to answer."""
        while True:
            async with self._turn(name) as facts_now:
                base = await self._parts.conflicts.base(name)
                facts = facts_now()
                if facts is None:
                    continue
                if late_reason(facts):
                    return False
                entry = self._entry(name, None, base, self._parts.clock.wall_s(), credential_id)
                with self._parts.inlet.watching_disk(), self._parts.generations.laying_over(name):
                    await self._parts.commit.commit(Tombstone(FORMAT, entry))
                return True

    # --- write-through -----------------------------------------------------------------------------------------------

    async def put_through(self, request: PutRequest, content: Content, *, keep: bool) -> PutResult:
        """Store an object at the origin before the call returns; with `keep`, a copy here."""
        replaces = not is_conditional(request.origin_headers)
        with ExitStack() as held_back:
            is_held = held_back.enter_context(self._parts.held.room(content.size))
            held = await HeldContent.take(content) if is_held else None
            if held is None and isinstance(content, BoundedContent):
                return await self._put_spooled(request, content, keep=keep)
            async with self._parts.through.operation(request.name, replaces=replaces) as passed:
                request = await self._judged(passed, request)
                if held is not None:
                    found = await self._send_held(request, held)
                    if keep:
                        passed.keep = partial(self._keep_held, request, held, found)
                else:
                    copy = self._parts.inlet.copy(content) if keep else None
                    if copy is not None:
                        held_back.enter_context(copy)
                    found = await self._send_streamed(request, content, copy)
                    if copy is not None:
                        passed.keep = partial(self._keep, request, content, copy.kept(), found)
                passed.is_unknown = found.is_earlier_unknown
        return PutResult(found.etag, int(self._parts.clock.wall_s()), content.checksums(), found.headers)

    async def _put_spooled(self, request: PutRequest, content: Content, *, keep: bool) -> PutResult:
        """Take a body in on disk to learn its length, then send it; what was taken in is the copy that is kept.

        Raises:
            OverloadedError: There is no room for it; nothing of it was read.
        """
        spool = await self._parts.inlet.spool(content)
        if spool is None:
            raise OverloadedError(f"no room for {content.size} bytes here", retry_after_s=BUSY_RETRY_S)
        with spool:
            with self._parts.inlet.watching_disk():
                intake = await spool.take()
            return await self._send_taken(request, content, intake, keep=keep)

    async def _send_taken(
        self, request: PutRequest, content: Content, intake: Intake, *, keep: bool
    ) -> PutResult:
        """Store at the origin what was taken in; with `keep`, it is the copy that stays."""
        replaces = not is_conditional(request.origin_headers)
        body = without_told(self._taken_body(intake, content.checksums()), request.origin_headers)
        async with self._parts.through.operation(request.name, replaces=replaces) as passed:
            request = await self._judged(passed, request)
            found = await self._parts.origin.put_object(request.name, self._headers(request), body)
            if keep:
                passed.keep = partial(self._keep, request, content, intake, found)
            passed.is_unknown = found.is_earlier_unknown
        return PutResult(found.etag, int(self._parts.clock.wall_s()), content.checksums(), found.headers)

    def _taken_body(self, intake: Intake, checksums: tuple[Checksum, ...]) -> OutgoingBody:
        whole = ByteRange(0, intake.size)
        body = self._parts.outgoing.body(intake.extents, whole, md5_hex=intake.md5_hex, checksums=checksums)
        return msgspec.structs.replace(body, content=intake.pieces) if intake.tiny else body

    async def _judged(self, passed: Passed, request: PutRequest) -> PutRequest:
        """Hold the conditions of a write against what is there; give it with those that the origin is still to judge."""
        with passed.looking():
            headers = await self._parts.conditional.checked(request.name, request.origin_headers)
        return msgspec.structs.replace(request, origin_headers=headers)

    async def _send_held(self, request: PutRequest, held: HeldContent) -> WriteAnswer:
        """Send a body that is whole in memory, so that it can be sent again, with a digest for the origin to verify."""
        body = await held_body(held, request.origin_headers, self._parts.workers)
        return await self._parts.origin.put_object(request.name, self._headers(request), body)

    async def _send_streamed(
        self, request: PutRequest, content: Content, copy: BodyIntake | None
    ) -> WriteAnswer:
        source = content.chunks if copy is None else copy.pieces
        body = OutgoingBody(content.size, source, is_repeatable=False)
        return await self._parts.origin.put_object(request.name, self._headers(request), body)

    def _headers(self, request: PutRequest) -> Headers:
        return object_headers(request) + request.origin_headers

    async def _keep_held(self, request: PutRequest, held: HeldContent, found: WriteAnswer) -> None:
        copy = self._parts.inlet.copy(held)
        if copy is None:
            return
        with copy, suppress(StorageError):
            await self._keep(request, held, await copy.take(), found)

    async def _keep(
        self, request: PutRequest, content: Content, intake: Intake | None, found: WriteAnswer
    ) -> None:
        """Put the local copy of what went through into the index; failing is no failure of the write."""
        if intake is None:
            return
        name = request.name
        now_s = self._parts.clock.wall_s()
        record = ObjectRecord(
            FORMAT,
            self._parts.ids.take_version_id(),
            intake.size,
            found.etag,
            int(now_s),
            ObjectState.CLEAN,
            OriginIdentity("", 0, intake.size, found.etag, found.version_id),
            Validated(now_s, self._parts.epoch),
            headers=request.headers,
            user_metadata=request.user_metadata,
            tags=request.tags,
            checksums=content.checksums(),
            is_written_here=True,
        )
        with suppress(StorageError):
            is_stored = await self._parts.applier.change(StoreVersion(name.bucket, name.key, record, 0))
            if is_stored and intake.extents:
                await self._parts.applier.change(
                    AddExtents(name.bucket, name.key, record.version_id, intake.extents)
                )


async def _delete_each(
    lines: Sequence[DeleteLine], delete: Callable[[DeleteLine], Awaitable[DeleteResult]]
) -> tuple[DeleteResult, ...]:
    """Carry lines out side by side; a failure is the result of its line."""

    async def settled(line: DeleteLine) -> DeleteResult:
        try:
            return await delete(line)
        except StorageError as error:
            return _failed_line(line.name, error)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(settled(line)) for line in lines]
    return tuple(task.result() for task in tasks)


def _failed_line(name: ObjectName, error: StorageError) -> DeleteResult:
    match error:
        case OriginError():
            code = error.code or "InternalError"
        case ReadOnlyError():
            code = "AccessDenied"
        case NoSuchVersionError():
            code = "NoSuchVersion"
        case NoSuchKeyError():
            code = "NoSuchKey"
        case _:
            code = "SlowDown" if error.retryable else "InternalError"
    return DeleteResult(name.key, code, str(error), name.version_id)
