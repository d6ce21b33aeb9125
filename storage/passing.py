"""Operations that the origin alone answers: buckets, copies, and uploads that only it can keep.

Each is flushed for first what it concerns (a key, or a bucket's objects), and what it may have changed is forgotten
after it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final
from xml.sax.saxutils import escape

from storage.account import Account
from storage.conditional_writes import ConditionalWrites
from storage.errors import BucketNotEmptyError, NoSuchKeyError, NoSuchUploadError, OriginRefusedError
from storage.facts_table import FactsTable
from storage.flusher import Flusher
from storage.intake import HeldBodies, HeldContent
from storage.origin.client import OriginClient
from storage.origin.control import ControlLane
from storage.origin.documents import PartToComplete
from storage.origin.multipart import PartTarget
from storage.origin.wire import OutgoingBody, is_conditional, object_headers
from storage.records import FORMAT, PartRecord, UploadRecord
from storage.requests import (
    BucketEntry,
    CompletedPart,
    Content,
    OriginReply,
    PartsPage,
    PutResult,
    UploadRequest,
)
from storage.sent_digests import held_body
from storage.through import Through, quarantined_error
from storage.types import ObjectName
from storage.uploads import check_part_order
from storage.workers import Workers

Headers = tuple[tuple[str, str], ...]

STORAGE_CLASS: Final = "x-amz-storage-class"


@dataclass(slots=True)
class PassingParts:
    """What passing works with; made once by the engine."""

    origin: OriginClient
    control: ControlLane
    through: Through
    conditional: ConditionalWrites
    flusher: Flusher
    facts: FactsTable
    held: HeldBodies
    workers: Workers
    wall_s: Callable[[], float]


class Passing:
    """Passes operations on."""

    def __init__(self, parts: PassingParts) -> None:
        self._parts = parts
        self.account: Final = Account(parts.control, parts.wall_s)
        """Who owns what is written here."""

    def signed_by(self, origin: OriginClient, control: ControlLane) -> "Passing":
        """Pass on as another authority."""
        conditional = replace(self._parts.conditional, origin=origin)
        return Passing(replace(self._parts, origin=origin, control=control, conditional=conditional))

    # --- buckets -----------------------------------------------------------------------------------------------------

    async def list_buckets(self) -> tuple[BucketEntry, ...]:
        """Give the origin's buckets, by name."""
        buckets = await self._parts.control.list_buckets()
        return tuple(sorted((BucketEntry(b.name, b.created_at_s) for b in buckets), key=lambda b: b.name))

    async def create_bucket(self, bucket: str, *, region: str, headers: Headers) -> OriginReply:
        """Make a bucket, with the client's own headers (ACL, object lock) handed on."""
        body = b"" if region in {"", "us-east-1"} else _location_document(region)
        try:
            async with self._parts.origin.request(
                "PUT", ObjectName(bucket, ""), headers=headers, body=body
            ) as answer:
                document = b"".join([chunk async for chunk in answer.chunks()])
                return OriginReply(answer.status, answer.headers, document)
        finally:
            # Behind the request: whoever asked before or during it does not know its outcome.
            self._parts.facts.drop(bucket)

    async def delete_bucket(self, bucket: str) -> None:
        """Delete an empty bucket: tombstones are flushed first; a dirty put makes it not empty.

        Writes that come meanwhile wait, and then meet a bucket that is there or one that is not.

        Raises:
            BucketNotEmptyError: The origin, or the overlay, has an object in it.
            QuarantinedError: The origin refused to delete one of its objects.
            OriginError: The origin refused, or does not take what must be flushed first.
        """
        await self._parts.facts.facts(bucket)
        async with self._parts.facts.closed(bucket) as closing:
            if self._parts.flusher.has_dirty_put(bucket):
                raise BucketNotEmptyError(f"bucket {bucket} holds acknowledged objects")
            await self._parts.flusher.waits.flush_bucket(bucket)
            closing.is_asked = True
            await self._parts.control.delete_bucket(bucket)

    # --- copies ------------------------------------------------------------------------------------------------------

    async def copy_object(
        self, source: ObjectName, target: ObjectName, headers: Headers, *, is_own: bool = False
    ) -> PutResult:
        """Copy at the origin, which sees both objects as they were acknowledged; `is_own` as `Through.operation`.

        The source may be a version, also one of the target.

        Raises:
            QuarantinedError: The origin refused the newest change of one of the two.
            NoSuchKeyError: There is no source; the target stays as it was.
            OriginError: The origin refused or failed.
        """
        async with self._parts.through.operation(target, is_own=is_own) as passed:
            if source != target:
                await self._flush_source(source)
            with passed.looking():
                headers = await self._parts.conditional.checked(target, headers)
            answer = await self._parts.origin.copy_object(source, target, headers)
            passed.is_unknown = answer.is_earlier_unknown
        return PutResult(
            answer.etag,
            answer.last_modified_s or int(self._parts.wall_s()),
            answer.checksums,
            answer.headers,
        )

    async def _flush_source(self, source: ObjectName) -> None:
        """Bring the source to the origin as it was acknowledged.

        Not under the source's turn, which two copies in opposite directions would wait for in a ring. A write to the
        source that comes now is concurrent with the copy, and either order is right.
        """
        flusher, source = self._parts.flusher, source.plain
        if flusher.dirty_entry(source) is None:
            return
        await flusher.waits.flush_key(source)
        reason = flusher.quarantine_reason(source)
        if reason:
            raise quarantined_error(source, reason)

    # --- the origin's own uploads ------------------------------------------------------------------------------------

    async def create_upload(self, request: UploadRequest) -> str:
        """Open an upload at the origin; its id is the origin's."""
        checksum = (
            (
                ("x-amz-checksum-algorithm", request.checksum_algorithm),
                ("x-amz-checksum-type", request.checksum_type),
            )
            if request.checksum_algorithm
            else ()
        )
        told = {name for name, _ in request.origin_headers}
        declared = tuple(pair for pair in checksum if pair[0] not in told)
        headers = object_headers(request) + declared + request.origin_headers
        return await self._parts.origin.create_multipart_upload(request.name, headers)

    async def upload_part(
        self, name: ObjectName, upload_id: str, number: int, content: Content, headers: Headers
    ) -> PutResult:
        """Hand a part on: a small one is taken in first, a long one ends only after it was verified."""
        target = PartTarget(name, upload_id, number)
        with self._parts.held.room(content.size) as is_held:
            if is_held:
                held = await HeldContent.take(content)
                body = await held_body(held, headers, self._parts.workers)
            else:
                body = OutgoingBody(content.size, content.chunks, is_repeatable=False)
            answer = await self._parts.origin.upload_part(target, body, headers=headers)
        return PutResult(answer.etag, int(self._parts.wall_s()), content.checksums(), answer.headers)

    async def copy_part(
        self, source: ObjectName, name: ObjectName, upload_id: str, number: int, headers: Headers
    ) -> PutResult:
        """Have the origin copy a part, of a source that it sees as it was acknowledged.

        Raises:
            QuarantinedError: The origin refused the source's newest change.
            NoSuchKeyError: There is no source; the upload's parts stay as they were.
            OriginError: The origin refused or failed.
        """
        await self._flush_source(source)
        answer = await self._parts.origin.upload_part_copy(
            source, PartTarget(name, upload_id, number), headers
        )
        return PutResult(
            answer.etag,
            answer.last_modified_s or int(self._parts.wall_s()),
            answer.checksums,
            answer.headers,
        )

    async def complete_upload(
        self, name: ObjectName, upload_id: str, parts: Sequence[CompletedPart], headers: Headers
    ) -> PutResult:
        """Complete the origin's upload.

        The order of its parts is judged here, as of uploads that are kept: not every origin does.
        """
        check_part_order(parts)
        lines = tuple(PartToComplete(part.number, part.etag, part.checksums) for part in parts)
        async with self._parts.through.operation(name, replaces=not is_conditional(headers)) as passed:
            with passed.looking():
                try:
                    headers = await self._parts.conditional.checked(name, headers)
                except (NoSuchKeyError, OriginRefusedError):
                    if await self._is_open(name, upload_id):
                        raise
                    # What is there may be of this very Complete, sent before: the origin knows what it answered.
            answer = await self._parts.origin.complete_multipart_upload(
                name, upload_id, lines, headers=headers
            )
            passed.is_unknown = answer.is_earlier_unknown
        return PutResult(answer.etag, int(self._parts.wall_s()), answer.checksums, answer.headers)

    async def _is_open(self, name: ObjectName, upload_id: str) -> bool:
        try:
            await self._parts.origin.list_parts(name, upload_id)
        except NoSuchUploadError:
            return False
        return True

    async def abort_upload(self, name: ObjectName, upload_id: str) -> None:
        """Abort the origin's upload."""
        await self._parts.origin.abort_multipart_upload(name, upload_id)

    async def list_parts(
        self, name: ObjectName, upload_id: str, *, part_marker: int, max_parts: int
    ) -> PartsPage:
        """Give the parts of the origin's upload behind a marker, at most `max_parts`."""
        if max_parts <= 0:
            # Whether there is such an upload is the question then; not every origin takes a page of none.
            await self._parts.origin.list_parts(name, upload_id, marker=part_marker, max_parts=1)
            upload = UploadRecord(FORMAT, upload_id, name.bucket, name.key, 0.0, "")
            return PartsPage(upload, (), is_truncated=False, next_part_marker=part_marker)
        page = await self._parts.origin.list_parts(name, upload_id, marker=part_marker, max_parts=max_parts)
        parts = tuple(
            PartRecord(FORMAT, p.number, p.size, p.etag, p.last_modified_s, checksums=p.checksums)
            for p in page.parts[:max_parts]
        )
        storage_class = ((STORAGE_CLASS, page.storage_class),) if page.storage_class else ()
        upload = UploadRecord(
            FORMAT,
            upload_id,
            name.bucket,
            name.key,
            0.0,
            "",
            headers=storage_class,
            checksum_algorithm=page.checksum_algorithm,
            checksum_type=page.checksum_type,
        )
        is_truncated = page.is_truncated or len(page.parts) > len(parts)
        return PartsPage(upload, parts, is_truncated, parts[-1].number if parts else part_marker)


def _location_document(region: str) -> bytes:
    return (
        '<CreateBucketConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<LocationConstraint>{escape(region)}</LocationConstraint></CreateBucketConfiguration>"
    ).encode()
