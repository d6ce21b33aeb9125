"""Send one dirty state to the origin, once: a put as one PutObject or with its parts' boundaries.

No decision is taken here about what to send, when, or what a failure means; that is the planner's. What is sent is
checked on both sides: each block against its checksum before it leaves, and the whole by Content-MD5, so a success
means that the origin has these bytes. An ETag other than ours is then an origin whose ETags are not MD5, and both are
kept.

An upload of ours at the origin is known from the step that opened it until the change is confirmed or given up, and
written to the journal before its first part. A failed attempt leaves it open: the next one, of this process or a
later one, goes on behind the parts that the origin has, also those that travelled before the client's Complete. Where
it is gone, a Complete without an answer may have landed: then the origin is asked for the object first.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from storage.conflict_rules import UNCONDITIONAL, Condition
from storage.described import has_description
from storage.errors import (
    NoSuchKeyError,
    NoSuchUploadError,
    OriginError,
    OriginRefusedError,
    OriginUnavailableError,
)
from storage.origin.answers import WriteAnswer
from storage.origin.client import OriginClient
from storage.origin.documents import PartToComplete
from storage.origin.wire import checksum_headers, condition_headers, object_headers
from storage.origin_uploads import FoundPart, OriginUpload, OriginUploads, Owner, checksum_headers_of
from storage.outgoing import Outgoing
from storage.records import DirtyEntry, ObjectRecord, OriginIdentity
from storage.types import ByteRange, ChecksumType, Extent, ObjectName, Priority

log = logging.getLogger(__name__)


class SupersededError(Exception):
    """The change is no longer the key's newest; the rest of it is not worth sending."""


@dataclass(slots=True)
class SenderParts:
    """What sending works with; made once by the engine."""

    origin: OriginClient
    outgoing: Outgoing
    uploads: OriginUploads
    extents: Callable[[ObjectRecord], tuple[Extent, ...]]


@dataclass(frozen=True, slots=True)
class Shipment:
    """What one attempt sends, and over what. `is_newest` says whether it is still worth it."""

    entry: DirtyEntry
    record: ObjectRecord
    extents: tuple[Extent, ...]
    priority: Priority
    is_newest: Callable[[], bool]
    condition: Condition

    @property
    def name(self) -> ObjectName:
        """The object."""
        return ObjectName(self.entry.bucket, self.entry.key)


class Sender:
    """Sends puts. Whoever calls holds the key's turn."""

    def __init__(self, parts: SenderParts) -> None:
        self._parts = parts
        self._uploads: dict[int, OriginUpload] = {}

    async def send_put(
        self,
        entry: DirtyEntry,
        record: ObjectRecord,
        priority: Priority,
        is_newest: Callable[[], bool],
        condition: Condition = UNCONDITIONAL,
    ) -> OriginIdentity:
        """Send a version; give the origin's name of it once the origin has confirmed it.

        An upload whose Complete does not meet its condition stays open, for an attempt with another one.

        Raises:
            OriginError: Refused, failed, or without an answer.
            SupersededError: `is_newest` said no between two parts.
            DirtyBytesLostError: The bytes are gone, or others than were taken in.
            ReadRefusedError: The disk refused to read them.
        """
        extents = self._parts.extents(record)
        with self._parts.outgoing.pin(extents):
            shipment = Shipment(entry, record, extents, priority, is_newest, condition)
            if record.parts:
                return await self._send_upload(shipment)
            return await self._send_single(shipment)

    async def _send_single(self, shipment: Shipment) -> OriginIdentity:
        record = shipment.record
        body = self._parts.outgoing.body(
            shipment.extents, ByteRange(0, record.size), md5_hex=record.etag, checksums=record.checksums
        )
        answer = await self._parts.origin.put_object(
            shipment.name,
            object_headers(record),
            body,
            if_match=shipment.condition.if_match,
            if_none_match=shipment.condition.if_none_match,
            priority=shipment.priority,
        )
        return _identity(record, answer)

    # --- uploads -----------------------------------------------------------------------------------------------------

    def adopt(self, entry: DirtyEntry) -> None:
        """Learn from the queue which upload of ours carries a change."""
        if entry.origin_upload_id:
            upload = OriginUpload(ObjectName(entry.bucket, entry.key), entry.origin_upload_id)
            self._uploads[entry.sequence] = upload
            self._parts.uploads.know(upload)

    def take(self, sequence: int) -> OriginUpload | None:
        """Give the upload of a change that has ended, and forget it; None where there is none."""
        return self._uploads.pop(sequence, None)

    async def _send_upload(self, shipment: Shipment) -> OriginIdentity:
        upload = self._uploads.get(shipment.entry.sequence)
        present: dict[int, PartToComplete] = {}
        if upload is not None:
            try:
                present = await self._present_parts(upload, shipment)
            except NoSuchUploadError:
                self._uploads.pop(shipment.entry.sequence, None)
                self._parts.uploads.note_gone(upload)
                upload = None
                found = await self._landed(shipment)
                if found is not None:
                    return found
        is_resumed = upload is not None
        if upload is None:
            upload = await self._open_upload(shipment)
        lines = await self._send_parts(upload, shipment, present)
        try:
            return await self._complete(upload, shipment, lines)
        except OriginRefusedError as error:
            if error.code != "InvalidPart" or not is_resumed:
                raise
            # What an earlier attempt sent under one of the numbers has landed late, over what we saw there.
            log.warning("the upload of %s is begun anew: %s", shipment.name, error)
            self._give_up(upload, shipment)
        return await self._send_upload(shipment)

    async def _open_upload(self, shipment: Shipment) -> OriginUpload:
        """Open an upload; known durably before the first part is sent, so that no bytes are ever left behind at the origin."""
        record, sequence = shipment.record, shipment.entry.sequence
        upload = self._uploads[sequence] = await self._parts.uploads.open(
            shipment.name,
            record,
            checksum_headers_of(record.checksums),
            Owner(sequence=sequence),
            shipment.priority,
        )
        return upload

    async def _complete(
        self, upload: OriginUpload, shipment: Shipment, lines: tuple[PartToComplete, ...]
    ) -> OriginIdentity:
        condition = shipment.condition
        headers = _complete_headers(shipment.record)
        try:
            answer = await self._parts.origin.complete_multipart_upload(
                upload.name,
                upload.upload_id,
                lines,
                headers=headers + condition_headers(condition.if_match, condition.if_none_match),
                priority=shipment.priority,
            )
        except OriginError as error:
            if error.code == "ConditionalRequestConflict":
                # Such an upload is not to be completed any more (AWS API_CompleteMultipartUpload): begin another one.
                self._give_up(upload, shipment)
            raise
        return _identity(shipment.record, answer)

    # --- uploads that a client completes there -----------------------------------------------------------------------

    async def landed(self, upload: OriginUpload, shipment: Shipment) -> OriginIdentity | None:
        """Say whether a Complete that had no answer took effect: the upload is gone, and its very object is there.

        Raises:
            OriginUnavailableError: The origin does not say.
        """
        try:
            await self._parts.uploads.parts(upload, shipment.priority)
        except NoSuchUploadError:
            return await self._landed(shipment)
        except OriginRefusedError as error:
            log.warning("the origin does not tell whether the upload of %s is open: %s", shipment.name, error)
        return None

    async def fill(self, upload: OriginUpload, shipment: Shipment) -> tuple[PartToComplete, ...]:
        """Send the parts that an upload lacks; give the lines of its Complete.

        Raises:
            NoSuchUploadError: The upload is gone.
            OriginError, DirtyBytesLostError, ReadRefusedError: As `send_put`.
        """
        return await self._send_parts(upload, shipment, await self._present_parts(upload, shipment))

    async def complete_under(
        self,
        upload: OriginUpload,
        shipment: Shipment,
        lines: tuple[PartToComplete, ...],
        conditions: tuple[tuple[str, str], ...],
    ) -> WriteAnswer:
        """Complete an upload under a client's own conditions; errors are the origin's."""
        return await self._parts.origin.complete_multipart_upload(
            upload.name,
            upload.upload_id,
            lines,
            headers=_complete_headers(shipment.record) + conditions,
            priority=shipment.priority,
        )

    def _give_up(self, upload: OriginUpload, shipment: Shipment) -> None:
        """End an upload that the change does not go on with."""
        self._uploads.pop(shipment.entry.sequence, None)
        self._parts.uploads.end(upload)

    async def _send_parts(
        self, upload: OriginUpload, shipment: Shipment, present: dict[int, PartToComplete]
    ) -> tuple[PartToComplete, ...]:
        lines: list[PartToComplete] = []
        position = 0
        for number, part in enumerate(shipment.record.parts, start=1):
            if not shipment.is_newest():
                raise SupersededError
            span = ByteRange(position, position + part.size)
            lines.append(present.get(number) or await self._send_part(upload, number, span, shipment))
            position = span.stop
        if not shipment.is_newest():
            raise SupersededError
        return tuple(lines)

    async def _send_part(
        self, upload: OriginUpload, number: int, span: ByteRange, shipment: Shipment
    ) -> PartToComplete:
        part = shipment.record.parts[number - 1]
        body = self._parts.outgoing.body(shipment.extents, span, md5_hex=part.etag, checksums=part.checksums)
        answer = await self._parts.uploads.send_part(upload, number, body, shipment.priority)
        return PartToComplete(number, answer.etag, part.checksums)

    async def _present_parts(self, upload: OriginUpload, shipment: Shipment) -> dict[int, PartToComplete]:
        """Say which parts the origin has already, as we would send them; none where it does not tell: all are sent again then.

        Raises:
            NoSuchUploadError: The upload is gone: dropped, or completed.
            OriginError: The origin failed.
        """
        # A part that was sent before the Complete may still be under way.
        await self._parts.uploads.idle(upload)
        try:
            found = await self._parts.uploads.parts(upload, shipment.priority)
        except OriginError as error:
            # It may not know ListParts, or allow it to others only; a refusal that concerns more shows at the first part.
            if isinstance(error, OriginUnavailableError) and error.code != "BadAnswer":
                raise
            log.warning("all parts of %s are sent again: %s", shipment.name, error)
            return {}
        wanted = enumerate(shipment.record.parts, start=1)
        return {
            number: PartToComplete(number, part.etag, part.checksums)
            for number, part in wanted
            if found.get(number) == FoundPart(part.etag, part.size)
        }

    async def _landed(self, shipment: Shipment) -> OriginIdentity | None:
        """Look whether the origin has the very object that we would send; None where it has not."""
        try:
            found = await self._parts.origin.head_object(shipment.name, priority=shipment.priority)
        except NoSuchKeyError:
            return None
        if found is None or found.etag != shipment.record.etag or not has_description(found, shipment.record):
            return None
        return OriginIdentity("", 0, found.size, found.etag, found.version_id)


def _identity(record: ObjectRecord, answer: WriteAnswer) -> OriginIdentity:
    if answer.is_earlier_unknown:
        raise OriginUnavailableError(
            "an earlier attempt of the same call may still land",
            status=0,
            code="Connection",
            outcome_unknown=True,
        )
    return OriginIdentity("", 0, record.size, answer.etag, answer.version_id)


def _complete_headers(record: ObjectRecord) -> tuple[tuple[str, str], ...]:
    """Let the origin verify the whole object's checksum; a composite one it makes of the parts' own."""
    whole = checksum_headers(record.checksums)
    return (*whole, ("x-amz-checksum-type", ChecksumType.FULL_OBJECT.value)) if whole else ()
