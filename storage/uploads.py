"""S3 multipart uploads, kept locally until their Complete: parts land on disk as they come, Complete moves no bytes.

An upload opened here is answered here to its end; its id names this instance. One that only the origin can answer (a
versioned bucket, encryption by key ...) is the origin's own, with the origin's id, and each call on it is passed
through. So the id decides.

Parts count as dirty from their acknowledgement on and are never dropped but by Abort, Complete or `upload_ttl`. A
completed upload is remembered for a day, so that a repeated Complete, sent by a client whose connection broke, gets
the same answer.

Parts may travel to the origin before the Complete (`early_flusher.py`); nothing here waits for that or depends on it. The
Complete hands the upload at the origin over to the flush.
"""

import hashlib
import itertools
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from storage import keys
from storage.backlog import Backlog
from storage.clock import Clock
from storage.commit import Commit
from storage.conditional_completes import ConditionalCompletes
from storage.conflict_rules import Base
from storage.conflicts import Conflicts
from storage.dirty_rows import DirtyRows
from storage.early_flush import carried_on
from storage.errors import (
    InvalidPartError,
    InvalidPartOrderError,
    NoSuchUploadError,
    OverloadedError,
    PartTooSmallError,
    QuarantinedError,
)
from storage.facts_table import FactsTable
from storage.family import Family
from storage.generations import Generations
from storage.ids import Ids
from storage.intake import Inlet
from storage.keyqueue import KeyQueue, Place, Turn
from storage.policy import PolicyTable
from storage.queued_change import new_entry, on_base
from storage.records import (
    FORMAT,
    DirtyEntry,
    ObjectRecord,
    ObjectState,
    PartRecord,
    PartSize,
    PartUploaded,
    UploadAborted,
    UploadCompleted,
    UploadCreated,
    UploadRecord,
    Validated,
)
from storage.requests import CompletedPart, Content, PartsPage, PutResult, UploadRequest
from storage.rows import RowSource, decode_part, decode_upload, row_at, rows_in
from storage.through import Through
from storage.types import MIB, Checksum, Extent, ObjectName, WriteMode
from storage.workers import Workers
from storage.write_turn import write_turn
from storage.writemode import decide, late_reason

PART_BYTES_MIN: Final = 5 * MIB
"""The smallest part that is not the last (AWS "Amazon S3 multipart upload limits")."""

COMPLETED_KEPT_S: Final = 24 * 3600.0

BUSY_RETRY_S: Final = 5.0
"""Asked of a client whose part found no room; the upload is here, so the part cannot go elsewhere."""

ObjectChecksums = Callable[[UploadRecord, tuple[PartSize, ...]], tuple[Checksum, ...]]
"""What checksums the object of these parts has; may raise what the client's own expectation contradicts."""


@dataclass(slots=True)
class UploadsParts:
    """What uploads work with; made once by the engine."""

    index: RowSource
    inlet: Inlet
    commit: Commit
    backlog: Backlog
    queue: KeyQueue
    generations: Generations
    facts: FactsTable
    conflicts: Conflicts
    conditional: ConditionalCompletes
    policies: Callable[[], PolicyTable]
    ids: Ids
    clock: Clock
    workers: Workers
    instance_id: str
    epoch: int
    draw_bits: Callable[[int], int]
    check_writable: Callable[[ObjectName], None]
    through: Through
    dirty_rows: DirtyRows


class Uploads:
    """Uploads that this gateway keeps itself."""

    def __init__(self, parts: UploadsParts) -> None:
        self._parts = parts
        # Parts and the Complete of one upload take turns here; keys are (bucket, upload id).
        self._turns = KeyQueue()
        self._own_id = re.compile(f"{re.escape(parts.instance_id)}-[0-9a-f]{{1,16}}-[0-9a-f]{{16}}")

    def is_ours(self, upload_id: str) -> bool:
        """Whether the id has the form of those given out here; such an upload may have ended, or never been."""
        return self._own_id.fullmatch(upload_id) is not None

    async def may_keep(self, request: UploadRequest) -> bool:
        """Whether the upload may be kept here; else it is the origin's.

        Raises:
            NoSuchBucketError: The origin has no such bucket.
            DurabilityNotPossibleError: The client insisted on the disk and it cannot be.
        """
        facts = await self._parts.facts.facts(request.name.bucket)
        policy = self._parts.policies().find(request.name)
        decision = decide(policy, facts, requested=request.mode, origin_reason=request.origin_reason)
        return decision.mode is WriteMode.BACK

    async def create(self, request: UploadRequest) -> str:
        """Open an upload; durable on return, with its id.

        Raises:
            OverloadedError: The disk has no room for its record.
        """
        self._check_record_room()
        upload_id = f"{self._parts.instance_id}-{self._parts.ids.take_version_id():x}-{self._parts.draw_bits(64):016x}"
        upload = UploadRecord(
            FORMAT,
            upload_id,
            request.name.bucket,
            request.name.key,
            self._parts.clock.wall_s(),
            request.credential_id,
            headers=request.headers,
            user_metadata=request.user_metadata,
            tags=request.tags,
            checksum_algorithm=request.checksum_algorithm,
            checksum_type=request.checksum_type,
        )
        await self._parts.commit.commit(UploadCreated(FORMAT, upload))
        return upload_id

    async def put_part(self, name: ObjectName, upload_id: str, number: int, content: Content) -> PutResult:
        """Store one part, durable on return; a part sent again replaces the one before.

        Raises:
            NoSuchUploadError: There is no such open upload of this object.
            OverloadedError: No room; the upload is here, so the part cannot go elsewhere.
        """
        self.open_upload(name, upload_id)
        size = content.size
        if not await self._parts.backlog.admit(size):
            raise OverloadedError("too much is dirty to take another part", retry_after_s=BUSY_RETRY_S)
        try:
            releases = self._parts.policies().find(name).release_after_flush
            body = await self._parts.inlet.begin(content, releases=releases)
            if body is None:
                raise OverloadedError(f"no room for a part of {size} bytes", retry_after_s=BUSY_RETRY_S)
            with self._parts.inlet.watching_disk(), body:
                intake = await body.take()
                part = PartRecord(
                    FORMAT,
                    number,
                    intake.size,
                    intake.md5_hex,
                    int(self._parts.clock.wall_s()),
                    checksums=content.checksums(),
                    extents=intake.extents,
                )
                async with self._turn(name.bucket, upload_id):
                    # The upload may have ended while the body came, or its place become read-only.
                    self._parts.check_writable(name)
                    self.open_upload(name, upload_id)
                    await self._parts.commit.commit(PartUploaded(FORMAT, upload_id, part), body=intake.tiny)
        finally:
            self._parts.backlog.settle(size)
        return PutResult(part.etag, part.last_modified_s, part.checksums)

    async def complete(
        self,
        name: ObjectName,
        upload_id: str,
        wanted: Sequence[CompletedPart],
        object_checksums: ObjectChecksums,
        conditions: tuple[tuple[str, str], ...] = (),
    ) -> PutResult:
        """Make an object of the named parts, durable on return; repeated, it gives the same answer for a day.

        With `conditions`, headers of the client, the object is made at the origin: see `ConditionalCompletes.complete`, also for
        what that raises.

        Raises:
            NoSuchUploadError: There is no such upload of this object.
            InvalidPartError, InvalidPartOrderError, PartTooSmallError: The list does not fit what was uploaded; the
            upload
                stays open.
            NoSuchBucketError: The bucket was deleted since the upload was opened.
            BaseUnknownError: The origin had to be asked what it holds (policy `on_conflict`), and did not say; the upload
                stays open.
        """
        # The turn is held until the commit's outcome is known, cancelled or not: parts must not change under a Complete.
        async with self._turn(name.bucket, upload_id):
            upload = self._upload(name, upload_id)
            if upload.completed_at_s:
                return await self._completed(upload)
            parts = _named_parts(wanted, {part.number: part for part in self.parts(upload_id)})
            sizes = tuple(PartSize(p.number, p.size, p.etag, p.checksums) for p in parts)
            checksums = object_checksums(upload, sizes)
            if conditions:
                record = self._record(upload, sizes, checksums)
                record = msgspec.structs.replace(record, extents=_joined_extents(parts))
                return await self._parts.conditional.complete(upload_id, record, conditions)
            return await self._commit(upload, sizes, checksums)

    def _record(
        self, upload: UploadRecord, sizes: tuple[PartSize, ...], checksums: tuple[Checksum, ...]
    ) -> ObjectRecord:
        """Say what the object of these parts is. Its bytes are where the parts' are."""
        return ObjectRecord(
            FORMAT,
            self._parts.ids.take_version_id(),
            sum(part.size for part in sizes),
            multipart_etag(sizes),
            int(self._parts.clock.wall_s()),
            ObjectState.DIRTY,
            None,
            Validated(),
            headers=upload.headers,
            user_metadata=upload.user_metadata,
            tags=upload.tags,
            checksums=checksums,
            parts=sizes,
            is_written_here=True,
        )

    async def _completed(self, upload: UploadRecord) -> PutResult:
        """Give the answer of a Complete again, the origin's part in it too."""
        name, etag = ObjectName(upload.bucket, upload.key), upload.completed_etag
        facts = await self._parts.facts.facts(upload.bucket)
        headers = await self._at_origin(name, etag) if late_reason(facts) else ()
        return PutResult(etag, int(upload.completed_at_s), upload.completed_checksums, headers)

    async def _commit(
        self, upload: UploadRecord, sizes: tuple[PartSize, ...], checksums: tuple[Checksum, ...]
    ) -> PutResult:
        name = ObjectName(upload.bucket, upload.key)
        completed, is_late = None, False
        while completed is None:
            async with write_turn(
                self._parts.facts, self._parts.queue, name, self._parts.check_writable
            ) as facts_now:
                base = await self._parts.conflicts.base(name)
                facts = facts_now()
                if facts is None:
                    continue
                is_late = bool(late_reason(facts))
                # Its place taken, a version would never be made at an origin that keeps every one.
                if not (is_late and self._parts.through.has_unsent(name)):
                    completed = await self._commit_at(upload, self._record(upload, sizes, checksums), base)
            if completed is None:
                # What the origin refuses for good is taken the place of, as ever.
                with suppress(QuarantinedError):
                    await self._parts.through.settle(name)
        headers = await self._at_origin(name, completed.etag) if is_late else ()
        return msgspec.structs.replace(completed, headers=headers)

    async def _commit_at(self, upload: UploadRecord, record: ObjectRecord, base: Base) -> PutResult:
        name, now_s = ObjectName(upload.bucket, upload.key), self._parts.clock.wall_s()
        entry = on_base(self._entry(upload, record, now_s), base)
        with self._parts.generations.laying_over(name):
            await self._parts.commit.commit(UploadCompleted(FORMAT, upload.upload_id, record, entry, now_s))
        return PutResult(record.etag, record.last_modified_s, record.checksums)

    def _entry(self, upload: UploadRecord, record: ObjectRecord, now_s: float) -> DirtyEntry:
        name = ObjectName(upload.bucket, upload.key)
        entry = new_entry(
            name,
            record,
            self._parts.policies().find(name),
            now_s=now_s,
            epoch=self._parts.epoch,
            credential_id=upload.credential_id,
        )
        # Read in the step that hands it to the door: parts may have begun to travel while the key's turn was waited for.
        newest = self._upload(name, upload.upload_id)
        carried = carried_on(newest, record.parts, record.checksums)
        return msgspec.structs.replace(entry, origin_upload_id=carried)

    async def _at_origin(self, name: ObjectName, etag: str) -> tuple[tuple[str, str], ...]:
        """Bring an object that was just committed to the origin, before it is acknowledged; give the origin's name of it.

        None is known where a newer write of the key has taken its place meanwhile.

        Raises:
            QuarantinedError, OriginError: As `Through.settle`; the object is kept, and its outcome unknown to the client.
        """
        await self._parts.through.settle(name)
        newest = self._parts.dirty_rows.version(name)
        if newest is None or newest.origin is None or newest.etag != etag or not newest.origin.version_id:
            return ()
        return (("x-amz-version-id", newest.origin.version_id),)

    async def abort(self, name: ObjectName, upload_id: str) -> None:
        """Drop an open upload and its parts.

        Raises:
            NoSuchUploadError: There is no such open upload of this object.
        """
        async with self._turn(name.bucket, upload_id):
            self.open_upload(name, upload_id)
            await self._parts.commit.commit(UploadAborted(FORMAT, upload_id))

    def _turn(self, bucket: str, upload_id: str) -> Place:
        return self._turns.turn(ObjectName(bucket, upload_id), Turn.WRITE_BACK)

    # --- reading -----------------------------------------------------------------------------------------------------

    def open_upload(self, name: ObjectName, upload_id: str) -> UploadRecord:
        """Give an open upload of this object, or raise NoSuchUploadError."""
        upload = self._upload(name, upload_id)
        if upload.completed_at_s:
            raise NoSuchUploadError(f"upload {upload_id} has been completed")
        return upload

    def _upload(self, name: ObjectName, upload_id: str) -> UploadRecord:
        upload = row_at(self._parts.index, Family.UPLOADS, keys.upload_key(upload_id), decode_upload)
        if upload is None or (upload.bucket, upload.key) != (name.bucket, name.key):
            raise NoSuchUploadError(f"there is no upload {upload_id} of {name}")
        return upload

    def parts(self, upload_id: str) -> tuple[PartRecord, ...]:
        """Give all parts of an upload in order."""
        return rows_in(self._parts.index, Family.PARTS, keys.parts_range(upload_id), decode_part)

    def parts_page(self, name: ObjectName, upload_id: str, *, part_marker: int, max_parts: int) -> PartsPage:
        """Give the parts behind a marker, at most `max_parts`."""
        upload = self.open_upload(name, upload_id)
        _, stop = keys.parts_range(upload_id)
        start = min(stop, keys.part_key(upload_id, part_marker + 1))
        found: tuple[PartRecord, ...] = ()
        if start < stop:
            found = rows_in(self._parts.index, Family.PARTS, (start, stop), decode_part, max_parts + 1)
        page = found[:max_parts]
        is_truncated = bool(page) and len(found) > len(page)
        return PartsPage(upload, page, is_truncated, page[-1].number if page else part_marker)

    def all_uploads(self) -> tuple[UploadRecord, ...]:
        """Give all uploads, open and completed, in no order that means anything."""
        return rows_in(self._parts.index, Family.UPLOADS, (b"", b"\xff" * 8), decode_upload)

    def open_uploads(self, bucket: str) -> tuple[UploadRecord, ...]:
        """Give the open uploads of a bucket by key, then by when they were opened."""
        found = [u for u in self.all_uploads() if u.bucket == bucket and not u.completed_at_s]
        return tuple(sorted(found, key=lambda upload: (upload.key, upload.initiated_s, upload.upload_id)))

    async def expire(self, *, upload_ttl_s: float) -> int:
        """Drop uploads that nobody goes on with, and completed ones that nobody repeats any more; give how many."""
        now_s = self._parts.clock.wall_s()
        uploads = await self._parts.workers.run(self.all_uploads)
        expired = [u for u in uploads if _is_expired(u, now_s, upload_ttl_s)]
        return sum([await self._expire(upload, now_s, upload_ttl_s) for upload in expired])

    async def _expire(self, upload: UploadRecord, now_s: float, upload_ttl_s: float) -> bool:
        async with self._turn(upload.bucket, upload.upload_id):
            # Completed or aborted meanwhile, perhaps; and one whose parts still come is gone on with, however old it is.
            key = keys.upload_key(upload.upload_id)
            newest = row_at(self._parts.index, Family.UPLOADS, key, decode_upload)
            if newest is None or not _is_expired(newest, now_s, upload_ttl_s):
                return False
            newest_s = max((part.last_modified_s for part in self.parts(upload.upload_id)), default=0)
            if not upload.completed_at_s and now_s - newest_s <= upload_ttl_s:
                return False
            await self._parts.commit.commit(UploadAborted(FORMAT, upload.upload_id))
            return True

    def _check_record_room(self) -> None:
        if not self._parts.inlet.has_record_room():
            raise OverloadedError("the disk has no room for an upload's record", retry_after_s=5.0)


def _is_expired(upload: UploadRecord, now_s: float, upload_ttl_s: float) -> bool:
    if upload.completed_at_s:
        return now_s - upload.completed_at_s > COMPLETED_KEPT_S
    return now_s - upload.initiated_s > upload_ttl_s


def check_part_order(wanted: Sequence[CompletedPart]) -> None:
    """Refuse a Complete whose parts do not ascend; one that is named twice does not (AWS API_CompleteMultipartUpload).

    Raises:
        InvalidPartOrderError: They do not.
    """
    if any(second.number <= first.number for first, second in itertools.pairwise(wanted)):
        raise InvalidPartOrderError("the parts are not in ascending order")


def _named_parts(wanted: Sequence[CompletedPart], present: dict[int, PartRecord]) -> tuple[PartRecord, ...]:
    """Check a Complete's list against the parts (AWS API_CompleteMultipartUpload)."""
    if not wanted:
        raise InvalidPartError("an object has at least one part")
    check_part_order(wanted)
    parts: list[PartRecord] = []
    for named in wanted:
        part = present.get(named.number)
        if part is None or part.etag != named.etag or not _checksums_fit(named, part):
            raise InvalidPartError(f"part {named.number} was not uploaded like this")
        parts.append(part)
    for part in parts[:-1]:
        if part.size < PART_BYTES_MIN:
            raise PartTooSmallError(
                f"part {part.number} has {part.size} bytes, the smallest is {PART_BYTES_MIN}"
            )
    return tuple(parts)


def _checksums_fit(named: CompletedPart, part: PartRecord) -> bool:
    known = {checksum.algorithm: checksum.value for checksum in part.checksums}
    return all(known.get(one.algorithm, one.value) == one.value for one in named.checksums)


def _joined_extents(parts: Sequence[PartRecord]) -> tuple[Extent, ...]:
    """Give the places of parts that follow each other, as those of one object."""
    extents: list[Extent] = []
    position = 0
    for part in parts:
        extents += [Extent(position + e.start, position + e.stop, e.location) for e in part.extents]
        position += part.size
    return tuple(extents)


def multipart_etag(parts: Sequence[PartSize]) -> str:
    """Give the ETag of a multipart object: MD5 of the parts' MD5s, and their number."""
    digest = hashlib.md5(usedforsecurity=False)
    for part in parts:
        digest.update(bytes.fromhex(part.etag))
    return f"{digest.hexdigest()}-{len(parts)}"
