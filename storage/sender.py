"""Send one dirty state to the origin, once: a put as one PutObject or with its parts' boundaries.

No decision is taken here about what to send, when, or what a failure means; that is the planner's. What is sent is
checked on both sides: each block against its checksum before it leaves, and the whole by Content-MD5, so a success
means that the origin has these bytes. An ETag other than ours is then an origin whose ETags are not MD5, and both are
kept.

An upload of ours at the origin is known from the step that opened it until the origin has completed or dropped it,
and written to the journal before its first part. A failed attempt leaves it open: the next one, of this process or a
later one, goes on behind the parts that the origin has. Where it is gone, a Complete without an answer may have
landed: then the origin is asked for the object first.
"""

import base64
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Final

from storage.commit import Commit
from storage.conflict_rules import UNCONDITIONAL, Condition
from storage.errors import (
    DirtyBytesLostError,
    DiskFailedError,
    NoSuchKeyError,
    NoSuchUploadError,
    OriginError,
    OriginUnavailableError,
    SegmentGoneError,
    StorageError,
)
from storage.origin.answers import WriteAnswer
from storage.origin.client import OriginClient
from storage.origin.documents import PartToComplete
from storage.origin.multipart import PartTarget
from storage.origin.wire import (
    OriginObject,
    OutgoingBody,
    checksum_headers,
    condition_headers,
    object_headers,
)
from storage.records import FORMAT, Attempted, DirtyEntry, ObjectRecord, OriginIdentity, PartSize
from storage.segments import SegmentStore
from storage.types import (
    BLOCK_BYTES,
    ByteRange,
    Checksum,
    ChecksumType,
    Extent,
    Location,
    ObjectName,
    Priority,
)
from storage.workers import Workers

PART_PAGES_MAX: Final = 100
"""Pages of ListParts that are read of one upload; 10,000 parts are ten."""


class SupersededError(Exception):
    """The change is no longer the key's newest; the rest of it is not worth sending."""


@dataclass(slots=True)
class SenderParts:
    """What sending works with; made once by the engine."""

    origin: OriginClient
    segments: SegmentStore
    workers: Workers
    commit: Commit
    extents: Callable[[ObjectRecord], tuple[Extent, ...]]


@dataclass(frozen=True, slots=True)
class OriginUpload:
    """An upload of ours at the origin."""

    name: ObjectName
    upload_id: str


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
            DirtyBytesLostError: The bytes cannot be read back.
        """
        extents = self._parts.extents(record)
        with self._parts.segments.pin({extent.location.segment_id for extent in extents}):
            shipment = Shipment(entry, record, extents, priority, is_newest, condition)
            if record.parts:
                return await self._send_upload(shipment)
            return await self._send_single(shipment)

    async def _send_single(self, shipment: Shipment) -> OriginIdentity:
        record = shipment.record
        body = self._body(
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
            name = ObjectName(entry.bucket, entry.key)
            self._uploads[entry.sequence] = OriginUpload(name, entry.origin_upload_id)

    def take_over(self, before: "Sender") -> tuple[int, ...]:
        """Learn of the uploads that another sender of this process knew; give the sequences that were not known here."""
        new = {sequence: one for sequence, one in before._uploads.items() if sequence not in self._uploads}  # noqa: SLF001  of the same class
        self._uploads |= new
        return tuple(new)

    def upload_ids(self) -> frozenset[str]:
        """Name the uploads at the origin that are our own."""
        return frozenset(upload.upload_id for upload in self._uploads.values())

    def has_upload(self, sequence: int) -> bool:
        """Whether an upload of ours is open for a change, as far as is known."""
        return sequence in self._uploads

    def forget(self, sequence: int) -> None:
        """Stop counting an upload as ours; what is left of it at the origin is for its owner's lifecycle rules."""
        self._uploads.pop(sequence, None)

    async def abort(self, sequence: int) -> bool:
        """End the upload of a change that nobody will complete; whether it is known to be gone."""
        upload = self._uploads.get(sequence)
        if upload is None:
            return True
        try:
            await self._parts.origin.abort_multipart_upload(
                upload.name, upload.upload_id, priority=Priority.FLUSH
            )
        except NoSuchUploadError:
            pass
        except StorageError:
            return False
        self.forget(sequence)
        return True

    async def _send_upload(self, shipment: Shipment) -> OriginIdentity:
        upload = self._uploads.get(shipment.entry.sequence)
        present: dict[int, PartToComplete] = {}
        if upload is not None:
            try:
                present = await self._present_parts(upload, shipment)
            except NoSuchUploadError:
                self.forget(shipment.entry.sequence)
                upload = None
                found = await self._landed(shipment)
                if found is not None:
                    return found
        if upload is None:
            upload = await self._open_upload(shipment)
        lines = await self._send_parts(upload, shipment, present)
        answer = await self._complete(upload, shipment, lines)
        self.forget(shipment.entry.sequence)
        return _identity(shipment.record, answer)

    async def _complete(
        self, upload: OriginUpload, shipment: Shipment, lines: tuple[PartToComplete, ...]
    ) -> WriteAnswer:
        condition = shipment.condition
        headers = _complete_headers(shipment.record)
        try:
            return await self._parts.origin.complete_multipart_upload(
                upload.name,
                upload.upload_id,
                lines,
                headers=headers + condition_headers(condition.if_match, condition.if_none_match),
                priority=shipment.priority,
            )
        except OriginError as error:
            if error.code == "ConditionalRequestConflict":
                # Such an upload is not to be completed any more (AWS API_CompleteMultipartUpload): begin another one.
                await self.abort(shipment.entry.sequence)
            raise

    async def _open_upload(self, shipment: Shipment) -> OriginUpload:
        record = shipment.record
        upload_id = await self._parts.origin.create_multipart_upload(
            shipment.name,
            object_headers(record) + _upload_checksum_headers(record),
            priority=shipment.priority,
        )
        upload = self._uploads[shipment.entry.sequence] = OriginUpload(shipment.name, upload_id)
        # Durable before the first part is sent, so that whatever happens no bytes are left behind at the origin.
        await self._parts.commit.commit(Attempted(FORMAT, shipment.entry.sequence, upload_id))
        return upload

    async def _send_parts(
        self, upload: OriginUpload, shipment: Shipment, present: dict[int, PartToComplete]
    ) -> tuple[PartToComplete, ...]:
        lines: list[PartToComplete] = []
        position = 0
        for number, part in enumerate(shipment.record.parts, start=1):
            if not shipment.is_newest():
                raise SupersededError
            span = ByteRange(position, position + part.size)
            target = PartTarget(upload.name, upload.upload_id, number)
            lines.append(present.get(number) or await self._send_part(target, part, span, shipment))
            position = span.stop
        if not shipment.is_newest():
            raise SupersededError
        return tuple(lines)

    async def _send_part(
        self, target: PartTarget, part: PartSize, span: ByteRange, shipment: Shipment
    ) -> PartToComplete:
        body = self._body(shipment.extents, span, md5_hex=part.etag, checksums=part.checksums)
        answer = await self._parts.origin.upload_part(target, body, priority=shipment.priority)
        return PartToComplete(target.number, answer.etag, part.checksums)

    async def _present_parts(self, upload: OriginUpload, shipment: Shipment) -> dict[int, PartToComplete]:
        """Say which parts the origin has already, as we would send them.

        Raises:
            NoSuchUploadError: The upload is gone: dropped, or completed.
        """
        wanted = dict(enumerate(shipment.record.parts, start=1))
        present: dict[int, PartToComplete] = {}
        marker = 0
        for _ in range(PART_PAGES_MAX):
            page = await self._parts.origin.list_parts(
                upload.name, upload.upload_id, marker=marker, priority=shipment.priority
            )
            for found in page.parts:
                part = wanted.get(found.number)
                if part is not None and (part.etag, part.size) == (found.etag, found.size):
                    present[found.number] = PartToComplete(found.number, found.etag, part.checksums)
            if not page.is_truncated:
                break
            marker = page.next_marker
        return present

    async def _landed(self, shipment: Shipment) -> OriginIdentity | None:
        """Look whether the origin has the very object that we would send; None where it has not."""
        try:
            found = await self._parts.origin.head_object(shipment.name, priority=shipment.priority)
        except NoSuchKeyError:
            return None
        if found is None or found.etag != shipment.record.etag or not has_description(found, shipment.record):
            return None
        return OriginIdentity("", 0, found.size, found.etag, found.version_id)

    # --- bytes -------------------------------------------------------------------------------------------------------

    def _body(
        self,
        extents: tuple[Extent, ...],
        span: ByteRange,
        *,
        md5_hex: str,
        checksums: tuple[Checksum, ...] = (),
    ) -> OutgoingBody:
        return OutgoingBody(
            span.length,
            lambda: self._pieces(extents, span),
            is_repeatable=True,
            md5=base64.b64encode(bytes.fromhex(md5_hex)).decode(),
            checksums=checksums,
        )

    async def _pieces(self, extents: tuple[Extent, ...], span: ByteRange) -> AsyncIterator[bytes]:
        """Read a span block by block, each checked before it is given."""
        position = span.start
        for extent in extents:
            if extent.stop <= position or extent.start >= span.stop:
                continue
            if extent.start > position:
                break
            stop = min(extent.stop, span.stop)
            while position < stop:
                at = position - extent.start
                block = at // BLOCK_BYTES
                data = await self._read_block(extent.location, block)
                piece = data[at - block * BLOCK_BYTES : stop - extent.start - block * BLOCK_BYTES]
                position += len(piece)
                yield piece
        if position != span.stop:
            raise DirtyBytesLostError(f"byte {position} of a version to be flushed is nowhere")

    async def _read_block(self, location: Location, block: int) -> bytes:
        try:
            return await self._parts.workers.run(self._read_checked, location, block)
        except (SegmentGoneError, DiskFailedError) as error:
            raise DirtyBytesLostError(str(error)) from error

    def _read_checked(self, location: Location, block: int) -> bytes:
        start = block * BLOCK_BYTES
        data = self._parts.segments.read(location, start, min(start + BLOCK_BYTES, location.length))
        if not self._parts.segments.check_block(location, block, data):
            raise DirtyBytesLostError(
                f"segment {location.segment_id:x} at {location.offset + start}: dirty bytes have another checksum"
            )
        return data


def _identity(record: ObjectRecord, answer: WriteAnswer) -> OriginIdentity:
    if answer.is_earlier_unknown:
        raise OriginUnavailableError(
            "an earlier attempt of the same call may still land",
            status=0,
            code="Connection",
            outcome_unknown=True,
        )
    return OriginIdentity("", 0, record.size, answer.etag, answer.version_id)


def has_description(found: OriginObject, record: ObjectRecord) -> bool:
    """Whether an object at the origin has the size, headers and metadata of a record; tags do not show, ETags may differ."""
    told = dict(found.headers)
    return (
        found.size == record.size
        and sorted(found.user_metadata) == sorted(record.user_metadata)
        # An origin leaves the default class out of its answers.
        and all(told.get(name, "STANDARD") == value for name, value in record.headers)
    )


def _upload_checksum_headers(record: ObjectRecord) -> tuple[tuple[str, str], ...]:
    """Ask the origin to keep the checksum that the client asked us to keep; all parts have one then."""
    if not record.checksums:
        return ()
    checksum = record.checksums[0]
    return (
        ("x-amz-checksum-algorithm", checksum.algorithm.value),
        ("x-amz-checksum-type", checksum.type.value),
    )


def _complete_headers(record: ObjectRecord) -> tuple[tuple[str, str], ...]:
    """Let the origin verify the whole object's checksum; a composite one it makes of the parts' own."""
    whole = checksum_headers(record.checksums)
    return (*whole, ("x-amz-checksum-type", ChecksumType.FULL_OBJECT.value)) if whole else ()
