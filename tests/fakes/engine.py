"""An object store in memory with the engine's API: all of S3 that the gateway needs, no disk, no origin.

Obvious rather than fast. A test arranges with `make_bucket` and `put`, and makes it misbehave:

- `fail`: the next call of that name raises.
- `script`: the next read gives these pieces; an exception among them is raised in its place. So does the next relayed answer.
- `replies`: status, headers and length of the next relayed answers; 200 and none where there is none.
- `files`: bodies are given as spans of a real file instead of bytes.
- `results`: how the next reads say that they were answered.
- `views`: how names under published targets are read; `generation`: of what all listings are.
- `publish_end`: how a publish ends, at the first question about it.
- `part_spans`: where the parts of an object lie that was uploaded at the origin.
- `warm`: what becomes of objects that are warmed, and what was asked for.
- `gates`: the call of that name waits for its event, and says that it arrived.
"""

# ruff: noqa: ARG002  # a fake takes all that the port gives it
import asyncio
import hashlib
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

from gateway.s3.checksums import whole_checksum
from storage.acknowledgements import AcknowledgedLine, AcknowledgedPage
from storage.authority import Authority
from storage.errors import (
    BucketNotEmptyError,
    InvalidPartError,
    InvalidPartOrderError,
    NoSuchBucketError,
    NoSuchKeyError,
    NoSuchUploadError,
    NoSuchVersionError,
    OriginRefusedError,
    PartTooSmallError,
)
from storage.explained import ObjectReport
from storage.listing import ListEntry, ListQuery, ListResult, Position
from storage.publish import View
from storage.records import (
    FORMAT,
    BucketFacts,
    ObjectRecord,
    ObjectState,
    OriginIdentity,
    PartRecord,
    PartSize,
    UploadRecord,
    Validated,
)
from storage.requests import (
    BarrierReport,
    Body,
    BucketEntry,
    CompletedPart,
    Content,
    DeleteLine,
    DeleteResult,
    FileSpan,
    OriginReply,
    Owner,
    PartsPage,
    PendingLine,
    PendingPage,
    PublishReport,
    PutRequest,
    PutResult,
    RelayReply,
    RelayRequest,
    StatusReport,
    UploadRequest,
    UploadsPage,
)
from storage.stats import Stats
from storage.types import (
    MIB,
    ByteRange,
    CacheResult,
    Checksum,
    ChecksumAlgorithm,
    ChecksumType,
    ObjectName,
    PartSpan,
    RangeSpec,
)
from storage.warmer import Warmer
from tests.fakes.scripted_body import FakeBody, Gate, Piece
from tests.fakes.stored_upload import StoredUpload
from tests.fakes.warm_source import FakeWarmSource
from tests.fakes.whole_content import FakeContent, taken

if TYPE_CHECKING:
    from storage.filesystem import File

PART_BYTES_MIN = 5 * MIB

HeaderPairs = tuple[tuple[str, str], ...]


class FakeOpenObject:
    def __init__(self, store: "FakeStore", record: ObjectRecord, data: bytes, result: CacheResult) -> None:
        self._store = store
        self._data = data
        self.record = record
        self.result = result
        self.reason = "origin does not answer" if result is CacheResult.STALE else ""
        self.is_closed = False

    def read(self, span: ByteRange, *, is_copied: bool = False) -> FakeBody:
        pieces = self._store.script.pop(0) if self._store.script else self._store.pieces(self._data, span)
        body = FakeBody(pieces, self.result, self._store.gates.get("next_piece"))
        self._store.bodies.append(body)
        self._store.copied_reads += is_copied
        return body

    async def close(self) -> None:
        self.is_closed = True


class FakeStore:
    degraded: tuple[str, ...] = ()
    stale_reason = ""

    def __init__(self, now_s: int = 1_700_000_000) -> None:
        self.stats = Stats()
        self.instance_id = "fake-instance"
        self.now_s = now_s
        self.fail: dict[str, Exception] = {}
        self.script: list[list[Piece]] = []
        self.results: list[CacheResult] = []
        self.gates: dict[str, Gate] = {}
        self.files: File | None = None
        self.piece_bytes = MIB
        self.calls: list[str] = []
        self.part_spans: list[PartSpan] = []
        self.bodies: list[FakeBody] = []
        self.copied_reads = 0
        self.opened: list[FakeOpenObject] = []
        self.read: list[ObjectName] = []
        self.put_requests: list[PutRequest] = []
        self.upload_requests: list[UploadRequest] = []
        self.deleted: list[str] = []
        self.copies: list[tuple[ObjectName, ObjectName, HeaderPairs]] = []
        self.versions: dict[ObjectName, tuple[ObjectRecord, bytes]] = {}
        self.deletes: list[tuple[ObjectName, HeaderPairs]] = []
        self.delete_results: dict[ObjectName, DeleteResult] = {}
        self.is_writable = True
        self.barriers: dict[int, BarrierReport] = {}
        self.retried: list[tuple[str, bool]] = []
        self.lines: tuple[PendingLine, ...] = ()
        self.discarded: list[tuple[str, int]] = []
        self.rewritten: set[str] = set()
        self.acknowledged_lines: tuple[AcknowledgedLine, ...] = ()
        self.acknowledged_page_lines = 2
        self.views: dict[ObjectName, View] = {}
        self.generation: int | None = None
        self.queries: list[ListQuery] = []
        self.relayed: list[tuple[RelayRequest, bytes]] = []
        self.replies: list[tuple[int, HeaderPairs, int | None]] = []
        self.publish: PublishReport | None = None
        self.publish_end: dict[str, object] = {
            "phase": "done",
            "generation": 3,
            "keys": 2,
            "digest": "sha256:00",
        }
        self._buckets: dict[str, dict[str, tuple[ObjectRecord, bytes]]] = {}
        self._uploads: dict[str, StoredUpload] = {}
        self._file_offset = 0

    @cached_property
    def warm(self) -> FakeWarmSource:
        return FakeWarmSource(self)

    @property
    def warmer(self) -> Warmer:
        return self.warm.warmer

    # --- arranging -----------------------------------------------------------------------------------------------------

    def make_bucket(self, bucket: str) -> None:
        self._buckets.setdefault(bucket, {})

    def put(
        self, bucket: str, key: str, data: bytes, *, headers: HeaderPairs = (), tags: str = ""
    ) -> ObjectRecord:
        self.make_bucket(bucket)
        request = PutRequest(ObjectName(bucket, key), headers=headers, tags=tags)
        return self._store(request, data, (), hashlib.md5(data).hexdigest(), ())

    def put_version(self, name: ObjectName, data: bytes) -> ObjectRecord:
        """Keep bytes under a version's id, beside what the key has."""
        record = self.put(name.bucket, name.key, data)
        origin = OriginIdentity("", 0, len(data), record.etag, name.version_id)
        record = replace(record, state=ObjectState.CLEAN, origin=origin)
        self.versions[name] = (record, data)
        return record

    def data(self, bucket: str, key: str) -> bytes | None:
        found = self._buckets.get(bucket, {}).get(key)
        return None if found is None else found[1]

    def record(self, bucket: str, key: str) -> ObjectRecord:
        return self._buckets[bucket][key][0]

    def revise(self, bucket: str, key: str, record: ObjectRecord) -> None:
        self._buckets[bucket][key] = (record, self._buckets[bucket][key][1])

    def pieces(self, data: bytes, span: ByteRange) -> list[Piece]:
        wanted = data[span.start : span.stop]
        if self.files is not None:
            offset, self._file_offset = self._file_offset, self._file_offset + len(wanted)
            self.files.pwrite(offset, wanted)
            return [FileSpan(self.files, offset, len(wanted))]
        return [wanted[at : at + self.piece_bytes] for at in range(0, len(wanted), self.piece_bytes)]

    # --- objects -------------------------------------------------------------------------------------------------------

    async def open_object(
        self, name: ObjectName, wanted: RangeSpec | None = None, *, metadata_only: bool = False
    ) -> FakeOpenObject:
        await self._called("open_object")
        self.read.append(name)
        found = self._bucket(name.bucket).get(name.key)
        if name.version_id:
            found = self.versions.get(name)
            if found is None:
                raise NoSuchVersionError(str(name))
        if found is None:
            raise NoSuchKeyError(str(name))
        result = self.results.pop(0) if self.results else CacheResult.HIT
        opened = FakeOpenObject(self, *found, result)
        self.opened.append(opened)
        return opened

    async def part_span(self, name: ObjectName, record: ObjectRecord, number: int) -> PartSpan:
        await self._called("part_span")
        return self.part_spans[number - 1]

    async def put_object(self, request: PutRequest, content: Content) -> PutResult:
        await self._called("put_object")
        self._bucket(request.name.bucket)
        data = await taken(content)
        await self._called("put_object_taken")
        self.put_requests.append(request)
        record = self._store(request, data, content.checksums(), hashlib.md5(data).hexdigest(), ())
        return PutResult(record.etag, record.last_modified_s, record.checksums)

    async def delete_object(
        self,
        name: ObjectName,
        *,
        origin_reason: str = "",
        origin_headers: HeaderPairs = (),
        credential_id: str = "",
    ) -> DeleteResult:
        await self._called("delete_object")
        self.deletes.append((name, origin_headers))
        if name in self.delete_results:
            return self.delete_results[name]
        self._bucket(name.bucket).pop(name.key, None)
        return DeleteResult(name.key)

    async def delete_objects(
        self, bucket: str, lines: Sequence[DeleteLine], *, credential_id: str = ""
    ) -> tuple[DeleteResult, ...]:
        await self._called("delete_objects")
        self.deleted += [line.name.key for line in lines]
        for line in lines:
            self.deletes.append((line.name, line.origin_headers))
            self._bucket(bucket).pop(line.name.key, None)
        return tuple(self.delete_results.get(line.name) or DeleteResult(line.name.key) for line in lines)

    async def copy_object(
        self, source: ObjectName, target: ObjectName, headers: HeaderPairs, credential_id: str = ""
    ) -> PutResult:
        await self._called("copy_object")
        found = self.versions.get(source) or self._bucket(source.bucket).get(source.key)
        if found is None:
            raise NoSuchKeyError(str(source))
        self.copies.append((source, target, headers))
        record = replace(found[0], last_modified_s=self.now_s)
        self._bucket(target.bucket)[target.key] = (record, found[1])
        return PutResult(record.etag, record.last_modified_s, record.checksums)

    async def list_objects(self, query: ListQuery, on_generation: Callable[[int | None], None]) -> ListResult:
        on_generation(self.generation)
        await self._called("list_objects")
        self.queries.append(query)
        keys = sorted(key for key in self._bucket(query.bucket) if key.startswith(query.prefix))
        names: list[tuple[str, bool]] = []
        for key in keys:
            group = query.group_of(key)
            name = (key, False) if group is None else (group, True)
            if not query.after.covers(name[0]) and (not names or names[-1] != name):
                names.append(name)
        page = names[: query.max_keys]
        is_truncated = bool(page) and len(names) > len(page)
        return ListResult(
            entries=tuple(self._entry(query.bucket, name) for name, is_prefix in page if not is_prefix),
            prefixes=tuple(name for name, is_prefix in page if is_prefix),
            is_truncated=is_truncated,
            next_position=Position(*page[-1]) if is_truncated else None,
            generation=self.generation,
            stale_reason=self.stale_reason,
        )

    # --- buckets -------------------------------------------------------------------------------------------------------

    async def list_buckets(self) -> tuple[BucketEntry, ...]:
        await self._called("list_buckets")
        return tuple(BucketEntry(name, self.now_s) for name in self._buckets)

    async def owner(self) -> Owner:
        await self._called("owner")
        return Owner("account", "name")

    async def create_bucket(self, bucket: str, *, region: str, headers: HeaderPairs = ()) -> OriginReply:
        await self._called("create_bucket")
        if bucket in self._buckets:
            raise OriginRefusedError("it is yours", status=409, code="BucketAlreadyOwnedByYou")
        self.make_bucket(bucket)
        return OriginReply(200, (("Location", f"/{bucket}"), ("x-amz-request-id", "OF-THE-ORIGIN")), b"")

    async def delete_bucket(self, bucket: str) -> None:
        await self._called("delete_bucket")
        if self._bucket(bucket):
            raise BucketNotEmptyError(bucket)
        del self._buckets[bucket]

    async def bucket_facts(self, bucket: str) -> BucketFacts:
        await self._called("bucket_facts")
        self._bucket(bucket)
        return BucketFacts(FORMAT, bucket, exists=True, asked_at_s=self.now_s, region="eu-west-1")

    # --- all else ------------------------------------------------------------------------------------------------------

    async def relay(self, request: RelayRequest, content: Content | None = None) -> RelayReply:
        await self._called("relay")
        self._bucket(request.name.bucket)
        self.relayed.append((request, request.body if content is None else await taken(content)))
        pieces = self.script.pop(0) if self.script else []
        size = sum(len(piece) for piece in pieces if isinstance(piece, bytes))
        status, headers, length = self.replies.pop(0) if self.replies else (200, (), size)
        body = FakeBody(pieces, CacheResult.BYPASS, self.gates.get("next_piece"))
        self.bodies.append(body)
        return RelayReply(status, headers, length, body)

    # --- uploads -------------------------------------------------------------------------------------------------------

    async def create_upload(self, request: UploadRequest) -> tuple[str, HeaderPairs]:
        await self._called("create_upload")
        self._bucket(request.name.bucket)
        self.upload_requests.append(request)
        upload_id = f"upload-{len(self._uploads) + 1}"
        record = UploadRecord(
            format=FORMAT,
            upload_id=upload_id,
            bucket=request.name.bucket,
            key=request.name.key,
            initiated_s=self.now_s,
            credential_id=request.credential_id,
            headers=request.headers,
            user_metadata=request.user_metadata,
            tags=request.tags,
            checksum_algorithm=request.checksum_algorithm,
            checksum_type=request.checksum_type,
        )
        self._uploads[upload_id] = StoredUpload(record)
        return upload_id, ()

    async def upload_part(
        self,
        name: ObjectName,
        upload_id: str,
        number: int,
        content: Content,
        origin_headers: HeaderPairs = (),
    ) -> PutResult:
        await self._called("upload_part")
        upload = self._open_upload(name, upload_id)
        data = await taken(content)
        part = PartRecord(
            FORMAT, number, len(data), hashlib.md5(data).hexdigest(), self.now_s, content.checksums()
        )
        upload.parts[number] = (part, data)
        return PutResult(part.etag, part.last_modified_s, part.checksums)

    def keeps_upload(self, upload_id: str) -> bool:
        return not upload_id.startswith("origin-")

    async def copy_part(
        self, name: ObjectName, upload_id: str, number: int, body: Body, size: int
    ) -> PutResult:
        pieces = []
        while (piece := await body.next_piece()) is not None:
            pieces.append(
                piece.file.pread(piece.offset, piece.length) if isinstance(piece, FileSpan) else piece
            )
        await body.close()
        data = b"".join(pieces)
        assert len(data) == size, f"{len(data)} bytes of {size}"
        return await self.upload_part(name, upload_id, number, FakeContent(data))

    async def upload_part_copy(
        self,
        source: ObjectName,
        name: ObjectName,
        upload_id: str,
        number: int,
        headers: HeaderPairs = (),
    ) -> PutResult:
        await self._called("upload_part_copy")
        self.copies.append((source, name, headers))
        return PutResult("0" * 32, self.now_s)

    async def complete_upload(
        self,
        name: ObjectName,
        upload_id: str,
        parts: Sequence[CompletedPart],
        *,
        checksums: tuple[Checksum, ...] = (),
        size: int | None = None,
        origin_reason: str = "",
        origin_headers: HeaderPairs = (),
    ) -> PutResult:
        await self._called("complete_upload")
        upload = self._uploads.get(upload_id)
        if upload is not None and upload.result is not None:
            return upload.result
        upload = self._open_upload(name, upload_id)
        chosen = self._chosen_parts(upload, parts)
        etag = hashlib.md5(b"".join(bytes.fromhex(part.etag) for part, _ in chosen)).hexdigest()
        data = b"".join(data for _, data in chosen)
        request = PutRequest(name, upload.record.headers, upload.record.user_metadata, upload.record.tags)
        sizes = tuple(PartSize(p.number, p.size, p.etag, p.checksums) for p, _ in chosen)
        whole = self._whole_checksums(upload.record, chosen)
        record = self._store(request, data, whole, f"{etag}-{len(chosen)}", sizes)
        upload.result = PutResult(record.etag, record.last_modified_s, record.checksums)
        return upload.result

    async def abort_upload(self, name: ObjectName, upload_id: str) -> None:
        await self._called("abort_upload")
        self._open_upload(name, upload_id)
        del self._uploads[upload_id]

    async def list_parts(
        self, name: ObjectName, upload_id: str, *, part_marker: int, max_parts: int
    ) -> PartsPage:
        await self._called("list_parts")
        upload = self._open_upload(name, upload_id)
        parts = [upload.parts[number][0] for number in sorted(upload.parts) if number > part_marker]
        page = tuple(parts[:max_parts])
        return PartsPage(upload.record, page, len(parts) > len(page), page[-1].number if page else 0)

    async def list_uploads(
        self,
        bucket: str,
        *,
        prefix: str,
        delimiter: str,
        key_marker: str,
        upload_id_marker: str,
        max_uploads: int,
    ) -> UploadsPage:
        await self._called("list_uploads")
        self._bucket(bucket)
        uploads = sorted(
            (
                upload.record
                for upload in self._uploads.values()
                if upload.result is None
                and upload.record.bucket == bucket
                and upload.record.key.startswith(prefix)
            ),
            key=lambda record: (record.key, record.upload_id),
        )
        behind = [u for u in uploads if (u.key, u.upload_id) > (key_marker, upload_id_marker or "\U0010ffff")]
        page = tuple((behind if key_marker else uploads)[:max_uploads])
        is_truncated = len(behind if key_marker else uploads) > len(page)
        last = page[-1] if page and is_truncated else None
        return UploadsPage(page, (), is_truncated, last.key if last else "", last.upload_id if last else "")

    # --- verbs ---------------------------------------------------------------------------------------------------------

    def start_barrier(self, bucket: str, prefix: str) -> BarrierReport:
        barrier_id = len(self.barriers) + 1
        self.barriers[barrier_id] = BarrierReport(barrier_id, is_reached=False, total=2, remaining=2)
        return self.barriers[barrier_id]

    async def wait_barrier(self, barrier_id: int, timeout_s: float) -> BarrierReport:
        await self._called("wait_barrier")
        report = self.barriers[barrier_id]
        left = max(0, report.remaining - 1)
        self.barriers[barrier_id] = report = replace(report, remaining=left, is_reached=left == 0)
        return report

    async def view(self, name: ObjectName) -> View | None:
        return self.views.get(name)

    async def start_publish(
        self, bucket: str, source: str, target: str, *, is_copy: bool = False
    ) -> PublishReport:
        await self._called("start_publish")
        self.publish = PublishReport(1, bucket, source, target, is_copy, "flushing", total=2)
        return self.publish

    async def wait_publish(self, publish_id: int, timeout_s: float) -> PublishReport:
        await self._called("wait_publish")
        assert self.publish is not None
        self.publish = replace(self.publish, **self.publish_end)
        return self.publish

    def status(self) -> StatusReport:
        return StatusReport(
            instance_id=self.instance_id,
            epoch=1,
            origin="http://origin.test",
            cache_used_bytes=3 * MIB,
            cache_dirty_bytes=MIB,
            cache_capacity_bytes=1024 * MIB,
            pending_objects=2,
            pending_bytes=MIB,
            oldest_pending_s=1.5,
            quarantined=self.lines,
            suspended_buckets=(),
            open_uploads=0,
            is_writable=self.is_writable,
            failure="" if self.is_writable else "a sync failed",
            degraded=self.degraded,
            origin_requests=7,
            origin_throttled=0,
            hit_ratio_requests=0.5,
            hit_ratio_bytes=0.25,
            warm_jobs=self.warmer.reports(),
        )

    async def explain(self, name: ObjectName) -> ObjectReport:
        data, told = self.data(name.bucket, name.key), ObjectReport(str(name), self.now_s)
        if data is None:
            return told
        return replace(told, state="clean", version_id=1, size=len(data), cached_bytes=len(data))

    def pending(
        self, bucket: str, prefix: str, limit: int, after: int = 0, *, is_quarantined: bool = False
    ) -> PendingPage:
        behind = [
            line
            for line in self.lines
            if line.sequence > after
            and bucket in ("", line.bucket)
            and line.key.startswith(prefix)
            and (line.state == "quarantined" or not is_quarantined)
        ]
        lines = tuple(behind[:limit])
        return PendingPage(lines, lines[-1].sequence if len(lines) < len(behind) else 0)

    def acknowledged(
        self, bucket: str, prefix: str, after: str = "", *, is_deep: bool = False
    ) -> AcknowledgedPage:
        lines = [line for line in self.acknowledged_lines if line.key.startswith(prefix) and line.key > after]
        page = tuple(lines[: self.acknowledged_page_lines])
        return AcknowledgedPage(page, page[-1].key if len(page) < len(lines) else "")

    def acknowledged_of(self, name: ObjectName) -> AcknowledgedLine | None:
        return next((line for line in self.acknowledged_lines if line.key == name.key), None)

    async def retry_quarantined(self, bucket: str, prefix: str, *, is_one_key: bool = False) -> int:
        await self._called("retry_quarantined")
        self.retried.append((prefix, is_one_key))
        return 3

    async def discard_quarantined(self, bucket: str, key: str, sequence: int) -> int:
        await self._called("discard_quarantined")
        self.discarded.append((key, sequence))
        return 0 if key in self.rewritten else 1

    # --- inside --------------------------------------------------------------------------------------------------------

    async def _called(self, name: str) -> None:
        self.calls.append(name)
        gate = self.gates.get(name)
        if gate is not None:
            gate.reached.set()
            await gate.opened.wait()
        error = self.fail.pop(name, None)
        if error is not None:
            raise error

    def _bucket(self, bucket: str) -> dict[str, tuple[ObjectRecord, bytes]]:
        if bucket not in self._buckets:
            raise NoSuchBucketError(bucket)
        return self._buckets[bucket]

    def _store(
        self,
        request: PutRequest,
        data: bytes,
        checksums: tuple[Checksum, ...],
        etag: str,
        parts: tuple[PartSize, ...],
    ) -> ObjectRecord:
        record = ObjectRecord(
            format=FORMAT,
            version_id=len(self.calls) + 1,
            size=len(data),
            etag=etag,
            last_modified_s=self.now_s,
            state=ObjectState.DIRTY,
            origin=None,
            validated=Validated(),
            headers=request.headers,
            user_metadata=request.user_metadata,
            tags=request.tags,
            checksums=checksums,
            parts=parts,
        )
        self._bucket(request.name.bucket)[request.name.key] = (record, data)
        return record

    def _entry(self, bucket: str, key: str) -> ListEntry:
        record = self._buckets[bucket][key][0]
        return ListEntry(key, record.size, record.etag, record.last_modified_s)

    def _open_upload(self, name: ObjectName, upload_id: str) -> StoredUpload:
        self._bucket(name.bucket)
        upload = self._uploads.get(upload_id)
        if upload is None or upload.result is not None or upload.record.key != name.key:
            raise NoSuchUploadError(upload_id)
        return upload

    def _chosen_parts(
        self, upload: StoredUpload, parts: Sequence[CompletedPart]
    ) -> list[tuple[PartRecord, bytes]]:
        numbers = [part.number for part in parts]
        if any(later <= earlier for earlier, later in pairwise(numbers)):
            raise InvalidPartOrderError(str(numbers))
        chosen = []
        for part in parts:
            found = upload.parts.get(part.number)
            if found is None or found[0].etag != part.etag:
                raise InvalidPartError(str(part.number))
            chosen.append(found)
        if any(part.size < PART_BYTES_MIN for part, _ in chosen[:-1]):
            raise PartTooSmallError("a part is under 5 MiB")
        return chosen

    def _whole_checksums(
        self, upload: UploadRecord, chosen: list[tuple[PartRecord, bytes]]
    ) -> tuple[Checksum, ...]:
        if not upload.checksum_algorithm or any(not part.checksums for part, _ in chosen):
            return ()
        sums = [(part.checksums[0], part.size) for part, _ in chosen]
        return (
            whole_checksum(
                ChecksumAlgorithm(upload.checksum_algorithm), ChecksumType(upload.checksum_type), sums
            ),
        )


class FakeEngine(FakeStore):
    """The store with the engine's life; says in `calls` what was asked of it, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = asyncio.Event()
        self.broken = asyncio.Event()

    async def run(self) -> None:
        self.calls.append("run")
        closing = asyncio.create_task(self.closed.wait())
        breaking = asyncio.create_task(self.broken.wait())
        try:
            await asyncio.wait({closing, breaking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            closing.cancel()
            breaking.cancel()
        if self.broken.is_set():
            raise RuntimeError("the background work failed")

    def own_store(self, authority: Authority) -> "FakeEngine":
        self.calls.append(f"own_store {authority.authority_id}")
        return self

    async def drain(self, timeout_s: float) -> BarrierReport:
        self.calls.append("drain")
        return BarrierReport(0, is_reached=True, total=0, remaining=0)

    async def close(self) -> None:
        self.calls.append("close")
        self.closed.set()
