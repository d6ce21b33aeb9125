"""What is written to disk: index rows and journal mutations, and their bytes.

Each record is a msgspec array in MessagePack whose first field is its format number; a field is only ever added at the
end, with a default, so that an older record reads in a newer program. `docs/format.md` shows the layouts and
`tests/unit/storage/test_records.py` pins the bytes. Times are wall-clock seconds; a field named `_s` is a float,
`last_modified_s` a whole number as HTTP dates are.

Fields that a later piece of work needs (cluster, packs, several disks, several processes) exist from the first format on;
ADR 0002 lists them.
"""

from enum import IntEnum
from typing import Final

import msgspec

from storage.types import Checksum, Extent, Location

FORMAT: Final = 1

NOT_READ: Final = msgspec.Raw(b"\xc0")
"""Stands for a field that is stepped over; the nil of MessagePack."""


class ObjectState(IntEnum):
    """Where a version stands towards the origin."""

    CLEAN = 0
    DIRTY = 1
    QUARANTINED = 2


class OriginIdentity(msgspec.Struct, frozen=True, array_like=True):
    """What the origin calls this version. `key` and `offset` differ from the object's own only in packs."""

    key: str
    offset: int
    length: int
    etag: str
    version_id: str = ""
    last_modified_s: int = 0


class Validated(msgspec.Struct, frozen=True, array_like=True):
    """When the origin last confirmed this version: wall time and process epoch.

    The epoch is negative where it was confirmed to another authority than the gateway's own, which then has still to ask.
    """

    wall_s: float = 0.0
    epoch: int = 0


class PartSize(msgspec.Struct, frozen=True, array_like=True):
    """One part of a completed upload: the boundaries that the flush must keep, and what partNumber reads need."""

    number: int
    size: int
    etag: str
    checksums: tuple[Checksum, ...] = ()


class ObjectRecord(msgspec.Struct, frozen=True, array_like=True):
    """One version of an object: content identity, metadata and where its bytes are.

    Attributes:
        etag: Without quotes, as answered to clients.
        headers: Stored system headers, lower-case names (content-type, cache-control, ...), in the order received.
        user_metadata: x-amz-meta-* without the prefix, lower-case names.
        tags: The x-amz-tagging query string, "" without tags.
        origin: None until the origin has held this version.
        extents: Present byte ranges in ascending order; empty and `extents_spilled` set where there are more than
            INLINE_EXTENTS_MAX, which then all stand in the extents family.
        is_written_here: A client was told that this gateway has taken it; stays, whatever the origin says of it later.
    """

    format: int
    version_id: int
    size: int
    etag: str
    last_modified_s: int
    state: ObjectState
    origin: OriginIdentity | None
    validated: Validated
    headers: tuple[tuple[str, str], ...] = ()
    user_metadata: tuple[tuple[str, str], ...] = ()
    tags: str = ""
    checksums: tuple[Checksum, ...] = ()
    parts: tuple[PartSize, ...] = ()
    extents: tuple[Extent, ...] = ()
    extents_spilled: bool = False
    is_written_here: bool = False


class ObjectHead(msgspec.Struct, frozen=True, array_like=True):
    """The first fields of an ObjectRecord, for who reads thousands of rows and none of their extents."""

    format: int
    version_id: int
    size: int
    etag: str
    last_modified_s: int
    state: ObjectState
    origin: OriginIdentity | None


class WrittenHead(ObjectHead, frozen=True, array_like=True):
    """An ObjectRecord of which only the first fields and the last are read; the others are stepped over as they lie."""

    validated: msgspec.Raw
    headers: msgspec.Raw = NOT_READ
    user_metadata: msgspec.Raw = NOT_READ
    tags: msgspec.Raw = NOT_READ
    checksums: msgspec.Raw = NOT_READ
    parts: msgspec.Raw = NOT_READ
    extents: msgspec.Raw = NOT_READ
    extents_spilled: msgspec.Raw = NOT_READ
    is_written_here: bool = False


def was_written_here(record: ObjectRecord | WrittenHead) -> bool:
    """Whether a client was told that this gateway has taken a clean version.

    A row from before the field has no mark. It shows by the origin's date, which the answer to a read has and the answer to a
    write has not (AWS API_PutObject), until the origin is asked about it; `cached.MarkValidated` sets the mark then.
    """
    is_undated = record.origin is not None and record.origin.last_modified_s == 0
    return record.is_written_here or is_undated


class OverlayRecord(msgspec.Struct, frozen=True, array_like=True):
    """A dirty put or tombstone as laid over an origin listing."""

    format: int
    sequence: int
    is_tombstone: bool
    version_id: int = 0
    size: int = 0
    etag: str = ""
    last_modified_s: int = 0
    storage_class: str = "STANDARD"
    checksums: tuple[Checksum, ...] = ()


class DirtyEntry(msgspec.Struct, frozen=True, array_like=True):
    """One acknowledged change that the origin has not confirmed; the flush queue's row, keyed by `sequence`.

    Attributes:
        version_id: 0 for a tombstone.
        flush_after_s: Not sent before this wall time (policy `flush_delay`).
        deadline_s: Priority rises as this wall time nears; 0 without one.
        base_etag: What the origin held under the key when the write was accepted; None unknown, "" absent.
        origin_upload_id: The upload of ours at the origin that carries this version; aborted when superseded.
        quarantine_reason: Not empty once the origin refused this change for good.
        own_etags: States of ours that were sent before this one and perhaps took effect: where the origin shows one of
            them instead of `base_etag`, no other writer was there. "" is a delete.
    """

    format: int
    sequence: int
    bucket: str
    key: str
    slot: int
    version_id: int
    size: int
    credential_id: str
    acknowledged_at_s: float
    flush_after_s: float = 0.0
    deadline_s: float = 0.0
    attempts: int = 0
    last_error: str = ""
    outcome_unknown: bool = False
    base_etag: str | None = None
    origin_upload_id: str = ""
    origin_parts_done: tuple[int, ...] = ()
    epoch: int = 0
    replicas: tuple[str, ...] = ()
    quarantine_reason: str = ""
    own_etags: tuple[str, ...] = ()

    @property
    def is_tombstone(self) -> bool:
        """Whether the change is a delete."""
        return self.version_id == 0


class UploadRecord(msgspec.Struct, frozen=True, array_like=True):
    """An open upload, or a completed one that still answers a repeated Complete (`completed_at_s` not 0).

    `origin_upload_id` is the upload of ours at the origin that carries parts of an open one already.
    """

    format: int
    upload_id: str
    bucket: str
    key: str
    initiated_s: float
    credential_id: str
    headers: tuple[tuple[str, str], ...] = ()
    user_metadata: tuple[tuple[str, str], ...] = ()
    tags: str = ""
    checksum_algorithm: str = ""
    checksum_type: str = ""
    completed_at_s: float = 0.0
    completed_etag: str = ""
    completed_version_id: int = 0
    completed_checksums: tuple[Checksum, ...] = ()
    origin_upload_id: str = ""


class PartRecord(msgspec.Struct, frozen=True, array_like=True):
    """One uploaded part; a part sent again replaces the one before."""

    format: int
    number: int
    size: int
    etag: str
    last_modified_s: int
    checksums: tuple[Checksum, ...] = ()
    extents: tuple[Extent, ...] = ()


class SegmentRow(msgspec.Struct, frozen=True, array_like=True):
    """What is known of one segment or journal file. `place` names the disk, "" the only one.

    `stream` is that of the first bytes that were counted, a journal file's DIRTY. `live_bytes` counts what rows refer to;
    `dirty_bytes` the part of it that must not be reclaimed.
    """

    format: int
    segment_id: int
    stream: int
    place: str = ""
    live_bytes: int = 0
    dirty_bytes: int = 0


class ResidentRow(msgspec.Struct, frozen=True, array_like=True):
    """Whose bytes lie at one place of a segment: the way back from a segment to the objects in it.

    Exactly one of (bucket, key, version_id) and (upload_id, part) is set.
    """

    format: int
    start: int
    length: int
    bucket: str = ""
    key: str = ""
    version_id: int = 0
    upload_id: str = ""
    part: int = 0


class BucketFacts(msgspec.Struct, frozen=True, array_like=True):
    """What the origin says of a bucket; decides whether a write may be acknowledged from the disk.

    Attributes:
        asked_at_s: Wall time of the question; 0 where nothing is known but `doubted_at_s`.
        doubted_at_s: What was validated up to this wall time is validated again before its use: something passed through may
            have changed any object of the bucket. 0 where nothing has.
    """

    format: int
    bucket: str
    exists: bool
    asked_at_s: float
    region: str = ""
    is_versioned: bool = False
    default_encryption: str = ""
    has_object_lock: bool = False
    etag_is_md5: bool = True
    created_at_s: float = 0.0
    doubted_at_s: float = 0.0


# --- Journal mutations -------------------------------------------------------------------------------------------------


class _Mutation(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all mutations. The tag, a short name, is the first array element; `format` the second."""


class Put(_Mutation, frozen=True, tag="put"):
    """A version became the object's newest state, acknowledged and not yet at the origin."""

    format: int
    record: ObjectRecord
    entry: DirtyEntry


class Tombstone(_Mutation, frozen=True, tag="tombstone"):
    """A delete was acknowledged."""

    format: int
    entry: DirtyEntry


class Flushed(_Mutation, frozen=True, tag="flushed"):
    """The origin confirmed the change of `sequence`; `origin` is None for a tombstone.

    `releases` gives up the version's bytes here (policy `release_after_flush`); its record stays.
    """

    format: int
    sequence: int
    origin: OriginIdentity | None
    validated: Validated
    releases: bool = False


class Attempted(_Mutation, frozen=True, tag="attempted"):
    """What is known of a flush that goes on: the origin's upload id, parts done. OriginUploadOpened has taken its place."""

    format: int
    sequence: int
    origin_upload_id: str = ""
    origin_parts_done: tuple[int, ...] = ()


class Quarantined(_Mutation, frozen=True, tag="quarantined"):
    """The origin refused the change of `sequence` for good; the bytes stay, visible, retried on command."""

    format: int
    sequence: int
    reason: str


class Released(_Mutation, frozen=True, tag="released"):
    """A quarantined change goes back to the flush queue."""

    format: int
    sequence: int


class Discarded(_Mutation, frozen=True, tag="discarded"):
    """A dirty change is given up: on command, or because a written-through change replaced it at the origin."""

    format: int
    sequence: int


class Forgotten(_Mutation, frozen=True, tag="forgotten"):
    """What is cached of an object is not to be trusted any more; a dirty change of it stays."""

    format: int
    bucket: str
    key: str


class OriginUploadOpened(_Mutation, frozen=True, tag="origin_upload_opened"):
    """An upload of ours is open at the origin; durable before its first part is sent. Live until it is known to be gone.

    Exactly one of `upload_id`, the client's open upload that it carries, and `sequence`, the dirty change, is set.
    """

    format: int
    origin_upload_id: str
    bucket: str
    key: str
    upload_id: str = ""
    sequence: int = 0


class OriginUploadEnded(_Mutation, frozen=True, tag="origin_upload_ended"):
    """An upload of ours is not at the origin any more, or was given up there."""

    format: int
    origin_upload_id: str


class UploadCreated(_Mutation, frozen=True, tag="upload_created"):
    """A client's upload was opened."""

    format: int
    upload: UploadRecord


class PartUploaded(_Mutation, frozen=True, tag="part_uploaded"):
    """A part is on disk."""

    format: int
    upload_id: str
    part: PartRecord


class UploadCompleted(_Mutation, frozen=True, tag="upload_completed"):
    """An upload became an object. `record` has no extents: they are the named parts' own, in order."""

    format: int
    upload_id: str
    record: ObjectRecord
    entry: DirtyEntry
    completed_at_s: float


class UploadAborted(_Mutation, frozen=True, tag="upload_aborted"):
    """An upload and its parts are gone: aborted, expired, or past the time for a repeated Complete."""

    format: int
    upload_id: str


class UploadPassed(_Mutation, frozen=True, tag="upload_passed"):
    """An upload was completed at the origin, not here: its parts are given up, and a repeated Complete is answered with this."""

    format: int
    upload_id: str
    completed_at_s: float
    etag: str
    checksums: tuple[Checksum, ...] = ()


class Moved(_Mutation, frozen=True, tag="moved"):
    """Dirty bytes have a new place; applied to whatever row still holds the old one."""

    format: int
    resident: ResidentRow
    old: Location
    new: Location


class IdsReserved(_Mutation, frozen=True, tag="ids_reserved"):
    """Ids below these limits may be in use; a start continues from them. Segment limits are counters, without the node."""

    format: int
    version_id_limit: int
    segment_counter_limit: int


class EpochStarted(_Mutation, frozen=True, tag="epoch_started"):
    """A process opened the directory. Clean records validated before `trusted_epoch` are validated before use."""

    format: int
    epoch: int
    trusted_epoch: int


class EpochEnded(_Mutation, frozen=True, tag="epoch_ended"):
    """The process of this epoch stopped cleanly; `trusted_epoch` as EpochStarted."""

    format: int
    epoch: int
    trusted_epoch: int


class FactsLearnt(_Mutation, frozen=True, tag="facts_learnt"):
    """The origin's word on a bucket."""

    format: int
    facts: BucketFacts


class PointerSet(_Mutation, frozen=True, tag="pointer_set"):
    """A published prefix shows another source prefix from here on, or none where `source` is "".

    `checked_at_s` is the wall time at which the origin said so; written again now and then while it goes on saying it.
    """

    format: int
    bucket: str
    target: str
    source: str
    generation: int
    checked_at_s: float = 0.0


Mutation = (
    Put
    | Tombstone
    | Flushed
    | Attempted
    | OriginUploadOpened
    | OriginUploadEnded
    | Quarantined
    | Released
    | Discarded
    | Forgotten
    | UploadCreated
    | PartUploaded
    | UploadCompleted
    | UploadAborted
    | UploadPassed
    | Moved
    | IdsReserved
    | EpochStarted
    | EpochEnded
    | FactsLearnt
    | PointerSet
)

TINY_SEGMENT_ID: Final = 0
"""Stands in a location of a mutation that is being committed with a tiny body; the commit puts the journal file's id."""

NOWHERE: Final = Location(segment_id=TINY_SEGMENT_ID, offset=0, length=0)

_encoder = msgspec.msgpack.Encoder()
_mutation_decoder: Final[msgspec.msgpack.Decoder[Mutation]] = msgspec.msgpack.Decoder(Mutation)


def encode(record: msgspec.Struct) -> bytes:
    """Give a record's bytes."""
    return _encoder.encode(record)


def decode_mutation(data: bytes) -> Mutation:
    """Read one mutation.

    Raises:
        msgspec.DecodeError: The bytes are no mutation of this format.
    """
    return _mutation_decoder.decode(data)
