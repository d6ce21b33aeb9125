"""What the gateway asks of the storage engine, and what it gets back: values and small ports, no behaviour.

Listings have their own values in `storage/listing.py`, policies in `storage/policy.py`.
"""

from collections.abc import AsyncIterator
from typing import Protocol

import msgspec

from storage.effects import Effect
from storage.filesystem import File
from storage.records import ObjectRecord, PartRecord, UploadRecord
from storage.types import ByteRange, CacheResult, Checksum, ObjectName, WriteMode
from storage.warm_jobs import WarmReport


class Content(Protocol):
    """A body as it arrives from a client, already free of transfer framing."""

    @property
    def size(self) -> int:
        """Bytes of the whole body, known beforehand."""
        ...

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body once, in pieces of at most 1 MiB.

        The last piece is yielded only after length, signatures and every declared digest have been checked, so that
        whoever forwards the pieces never completes a body that was not verified. What fails the check is raised here
        and passes through storage unchanged.
        """
        ...

    def checksums(self) -> tuple[Checksum, ...]:
        """The checksums to store with the object; complete only after the last piece."""
        ...


class BoundedContent(Content):
    """A body whose length is known when it has ended: a file within a form. `size` is the most that may come."""


class FileSpan(msgspec.Struct, frozen=True, gc=False):
    """Verified bytes of a pinned local file, to be sent without copying them."""

    file: File
    offset: int
    length: int


class Body(Protocol):
    """The bytes of one read, in order. Owned by whoever asked; must be closed, which releases pins and joins."""

    @property
    def result(self) -> CacheResult:
        """HIT where all bytes are local, PARTIAL where some are, MISS where none is; known at the start."""
        ...

    async def next_piece(self) -> bytes | FileSpan | None:
        """Give the next bytes, None at the end.

        Raises:
            ObjectChangedError: The origin's object changed; no piece may follow.
            OriginError: The origin failed before the range was complete.
            DirtyBytesLostError: Acknowledged bytes could not be read back.
        """
        ...

    async def close(self) -> None:
        """Let go; idempotent; also the way to give up in the middle."""
        ...


class OpenObject(Protocol):
    """One version, held so that metadata and bytes are of the same state."""

    @property
    def record(self) -> ObjectRecord:
        """The version's metadata."""
        ...

    @property
    def result(self) -> CacheResult:
        """How the metadata was answered: HIT, MISS (asked of the origin), STALE, BYPASS."""
        ...

    @property
    def reason(self) -> str:
        """The text of x-cache-reason, "" where the result is plain."""
        ...

    def read(self, span: ByteRange, *, is_copied: bool = False) -> Body:
        """Plan the bytes of `span`; synchronous, pins what is local before anything else can run.

        With `is_copied` each local block is held against its checksum as it is given, not only where nobody has checked it yet:
        a new checksum will be made of it.
        """
        ...

    async def close(self) -> None:
        """Let go of what opening holds; a body that was taken lives on by itself. Idempotent."""
        ...


class PutRequest(msgspec.Struct, frozen=True):
    """One PutObject without its body.

    Attributes:
        mode: The client's x-forebay-durability, None where the policy decides.
        origin_reason: Why only the origin can answer this write ("" where nothing forces it).
        origin_headers: Request headers that a write-through hands to the origin beside the stored ones.
    """

    name: ObjectName
    headers: tuple[tuple[str, str], ...] = ()
    user_metadata: tuple[tuple[str, str], ...] = ()
    tags: str = ""
    mode: WriteMode | None = None
    origin_reason: str = ""
    origin_headers: tuple[tuple[str, str], ...] = ()
    credential_id: str = ""


class PutResult(msgspec.Struct, frozen=True):
    """What a PutObject, Complete or copy answers. `headers` are the origin's own to pass on (SSE, version id)."""

    etag: str
    last_modified_s: int
    checksums: tuple[Checksum, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()


class DeleteResult(msgspec.Struct, frozen=True):
    """One line of a delete: code "" on success. `headers`: the origin's, such as x-amz-delete-marker.

    `version_id` is what the origin says of it: the delete marker's that was made, or the version's that was deleted.
    """

    key: str
    code: str = ""
    message: str = ""
    version_id: str = ""
    headers: tuple[tuple[str, str], ...] = ()


class DeleteLine(msgspec.Struct, frozen=True):
    """One object, or one version of it, to delete. `origin_headers` are the conditions that only the origin can judge."""

    name: ObjectName
    origin_headers: tuple[tuple[str, str], ...] = ()


class CompletedPart(msgspec.Struct, frozen=True):
    """One line of a client's Complete."""

    number: int
    etag: str
    checksums: tuple[Checksum, ...] = ()


class UploadRequest(msgspec.Struct, frozen=True):
    """One CreateMultipartUpload. `checksum_type` is FULL_OBJECT, COMPOSITE or ""."""

    name: ObjectName
    headers: tuple[tuple[str, str], ...] = ()
    user_metadata: tuple[tuple[str, str], ...] = ()
    tags: str = ""
    checksum_algorithm: str = ""
    checksum_type: str = ""
    mode: WriteMode | None = None
    origin_reason: str = ""
    origin_headers: tuple[tuple[str, str], ...] = ()
    credential_id: str = ""


class PartsPage(msgspec.Struct, frozen=True):
    """One page of ListParts."""

    upload: UploadRecord
    parts: tuple[PartRecord, ...]
    is_truncated: bool
    next_part_marker: int


class UploadsPage(msgspec.Struct, frozen=True):
    """One page of ListMultipartUploads."""

    uploads: tuple[UploadRecord, ...]
    prefixes: tuple[str, ...]
    is_truncated: bool
    next_key_marker: str = ""
    next_upload_id_marker: str = ""


class Owner(msgspec.Struct, frozen=True, gc=False):
    """An account as S3 names owners; the name is "" where the origin has none to tell, as AWS since 2025."""

    id: str
    display_name: str = ""


class BucketEntry(msgspec.Struct, frozen=True):
    """One line of ListBuckets."""

    name: str
    created_at_s: float


class OriginReply(msgspec.Struct, frozen=True):
    """An answer of the origin passed on as it is: status, end-to-end headers, a small body."""

    status: int
    headers: tuple[tuple[str, str], ...]
    body: bytes


class RelayRequest(msgspec.Struct, frozen=True):
    """One operation that the origin carries out, without a body that writes.

    Attributes:
        operation: S3's name of it; a metrics label.
        name: What it is about, without a version; key "" for a bucket, both "" for the service.
        query: Decoded pairs, in order, without a signature.
        headers: The client's; those of its connection and signature may be among them.
        body: The document of a read, small and whole; b"" for a write, whose body is a `Content`.
        guarded: The query names by which it is more than a plain put or delete of the object or the bucket; the origin must know
            them before it is asked (`storage/relay_guard.py`). () where a plain one is not to be feared.
    """

    operation: str
    method: str
    name: ObjectName
    effect: Effect
    query: tuple[tuple[str, str], ...] = ()
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    guarded: tuple[str, ...] = ()
    credential_id: str = ""

    @property
    def changed(self) -> ObjectName:
        """The object, or the version of it that the query names: what is cached of it is not to be trusted afterwards."""
        version_id = next((value for name, value in self.query if name == "versionId"), "")
        return self.name.at_version(version_id) if version_id else self.name


class RelayReply(msgspec.Struct, frozen=True):
    """The origin's answer to such an operation, whatever its status, open: `body` must be closed.

    Attributes:
        headers: As received.
        length: Bytes of the body, or of the body that a GET would have had; None where the origin did not say.
    """

    status: int
    headers: tuple[tuple[str, str], ...]
    length: int | None
    body: Body


class PendingLine(msgspec.Struct, frozen=True):
    """One dirty change in a barrier's or a status' report."""

    sequence: int
    bucket: str
    key: str
    size: int
    is_tombstone: bool
    acknowledged_at_s: float
    attempts: int
    state: str
    reason: str


class PendingPage(msgspec.Struct, frozen=True):
    """Lines in the order of sequences, perhaps none. `next_after` is the sequence to go on after, 0 at the end."""

    lines: tuple[PendingLine, ...]
    next_after: int = 0


class BarrierReport(msgspec.Struct, frozen=True):
    """How far a flush barrier is: `remaining` changes are not at the origin yet, `blocked` says which cannot and why."""

    barrier_id: int
    is_reached: bool
    total: int
    remaining: int
    blocked: tuple[PendingLine, ...] = ()


class PointerLine(msgspec.Struct, frozen=True):
    """What a published target shows."""

    bucket: str
    target: str
    source: str
    generation: int


class PublishReport(msgspec.Struct, frozen=True):
    """How far a publish is.

    Attributes:
        phase: `flushing`, `listing`, `switching` or `copying`; at the end `done` or `failed`.
        total: Of the phase: changes to flush, keys to copy; 0 where nobody knows yet.
        done: How many of them are.
        generation: The one that the switch made; 0 for copies, and before the switch.
        keys: How many lie under the source.
        extra: Objects that lie at the target and not under the source, after a copy.
        error: Why it failed.
        failures: Of the keys that could not be copied the first ones, and why.
    """

    publish_id: int
    bucket: str
    source: str
    target: str
    is_copy: bool
    phase: str
    total: int = 0
    done: int = 0
    generation: int = 0
    keys: int = 0
    digest: str = ""
    extra: int = 0
    error: str = ""
    failures: tuple[str, ...] = ()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, well or not."""
        return self.phase in {"done", "failed"}


class StatusReport(msgspec.Struct, frozen=True):
    """What `forebay status` shows. `early_bytes` are the part of `open_upload_bytes` that the origin has too.

    Attributes:
        failure: Why writes are refused, and how re-opening the directory stands; "" while they are accepted.
        unreadable: Acknowledged objects whose bytes can be read neither here nor at the origin, each with the reason.
        reopenings: How often the directory was opened again after a failure of its disk.
        hidden: Bucket and key of acknowledged objects that lie under a published target and are not at the origin.
        settings_failure: Why the last reload of the settings was refused; the gateway's to fill in, "" where none was.
        scrub_done_at_s: Wall time at which the last whole round of the scrub ended, 0 before.
        warm_jobs: Warm-ups that run.
        lost_before: What repairs of the directory found lost; it stands until its report is removed, as of the start.
        degraded: What does not work as it should while all else does, a line each.
        ignoring_conditions: Buckets whose origin was found to ignore conditions of writes (policy `on_conflict`).
    """

    instance_id: str
    epoch: int
    origin: str
    cache_used_bytes: int
    cache_dirty_bytes: int
    cache_capacity_bytes: int
    pending_objects: int
    pending_bytes: int
    oldest_pending_s: float
    quarantined: tuple[PendingLine, ...]
    suspended_buckets: tuple[tuple[str, str], ...]
    open_uploads: int
    is_writable: bool
    failure: str
    origin_requests: int
    origin_throttled: int
    hit_ratio_requests: float
    hit_ratio_bytes: float
    is_draining: bool = False
    settings_failure: str = ""
    pointers: tuple[PointerLine, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    reopenings: int = 0
    scrub_bytes_per_s: int = 0
    scrub_round_bytes: int = 0
    scrub_done_at_s: float = 0.0
    scrub_damaged_clean: int = 0
    scrub_damaged_dirty: int = 0
    open_upload_bytes: int = 0
    early_bytes: int = 0
    hidden: tuple[tuple[str, str], ...] = ()
    ignoring_conditions: tuple[str, ...] = ()
    lost_before: int = 0
    degraded: tuple[str, ...] = ()
    warm_jobs: tuple[WarmReport, ...] = ()
