"""The bytes of every record and mutation, pinned; and what an older record means to this program.

Each file of tests/golden/records holds the MessagePack of one sample, in hexadecimal, with `#` before a comment. A
file that is there never changes within a format: what was written by a release must be read by the next.
"""

from pathlib import Path
from typing import get_args

import msgspec
import pytest

from storage.records import (
    FORMAT,
    NOWHERE,
    Attempted,
    BucketFacts,
    DirtyEntry,
    Discarded,
    EpochEnded,
    EpochStarted,
    FactsLearnt,
    Flushed,
    Forgotten,
    IdsReserved,
    Moved,
    Mutation,
    ObjectRecord,
    ObjectState,
    OriginIdentity,
    OriginUploadEnded,
    OriginUploadOpened,
    OverlayRecord,
    PartRecord,
    PartSize,
    PartUploaded,
    PointerSet,
    Put,
    Quarantined,
    Released,
    ResidentRow,
    SegmentRow,
    Tombstone,
    UploadAborted,
    UploadCompleted,
    UploadCreated,
    UploadPassed,
    UploadRecord,
    Validated,
    WrittenHead,
    decode_mutation,
    encode,
)
from storage.types import Checksum, ChecksumAlgorithm, ChecksumType, Extent, Location

GOLDEN = Path(__file__).parents[2] / "golden" / "records"

SEGMENT = 0x0001_0000_0000_0007
PLACE = Location(SEGMENT, 4096, 5, b"\x01\x02\x03\x04\x05\x06\x07\x08")
EXTENT = Extent(0, 5, PLACE)
CRC = Checksum(ChecksumAlgorithm.CRC32, "NhCmhg==")
COMPOSITE = Checksum(
    ChecksumAlgorithm.SHA256, "LPJNul+wow4m6DsqxbninhsWHlwfp0JecwQzYpOLmCQ=-2", ChecksumType.COMPOSITE
)
IDENTITY = OriginIdentity("packs/1", 512, 5, "5d41402abc4b2a76b9719d911017c592", "v-1", 1_700_000_000)
VALIDATED = Validated(1_700_000_001.5, 3)
PARTS = (PartSize(1, 3, "aa", (CRC,)), PartSize(7, 2, "bb"))
OBJECT = ObjectRecord(
    FORMAT,
    41,
    5,
    "5d41402abc4b2a76b9719d911017c592",
    1_700_000_002,
    ObjectState.QUARANTINED,
    IDENTITY,
    VALIDATED,
    headers=(("content-type", "text/plain"), ("cache-control", "no-cache")),
    user_metadata=(("colour", "grün"),),
    tags="a=b&c=d",
    checksums=(CRC, COMPOSITE),
    parts=PARTS,
    extents=(EXTENT,),
    extents_spilled=False,
    is_written_here=True,
)
ENTRY = DirtyEntry(
    FORMAT,
    70_000,
    "bucket",
    "a/ключ",
    4095,
    41,
    5,
    "credential",
    1_700_000_003.25,
    flush_after_s=1_700_000_004.0,
    deadline_s=1_700_000_005.0,
    attempts=2,
    last_error="SlowDown",
    outcome_unknown=True,
    base_etag="",
    origin_upload_id="upload",
    origin_parts_done=(1, 7),
    epoch=3,
    replicas=("peer",),
    quarantine_reason="AccessDenied",
    own_etags=("cc", ""),
)
TOMBSTONE_ENTRY = DirtyEntry(FORMAT, 9, "bucket", "gone", 12, 0, 0, "", 1.0)
UPLOAD = UploadRecord(
    FORMAT,
    "0123abcd-1-ff",
    "bucket",
    "key",
    1_700_000_000.5,
    "credential",
    headers=(("content-type", "text/plain"),),
    user_metadata=(("colour", "blue"),),
    tags="a=b",
    checksum_algorithm="SHA256",
    checksum_type="COMPOSITE",
    completed_at_s=1_700_000_009.0,
    completed_etag="cc-2",
    completed_version_id=41,
    completed_checksums=(COMPOSITE,),
    origin_upload_id="theirs",
)
PART = PartRecord(FORMAT, 7, 5, "bb", 1_700_000_006, (CRC,), (EXTENT,))
RESIDENT = ResidentRow(FORMAT, 0, 5, bucket="bucket", key="key", version_id=41)
FACTS = BucketFacts(
    FORMAT,
    "bucket",
    exists=True,
    asked_at_s=1_700_000_000.0,
    region="eu-central-1",
    is_versioned=True,
    default_encryption="aws:kms",
    has_object_lock=True,
    etag_is_md5=False,
    created_at_s=1_600_000_000.0,
    doubted_at_s=1_700_000_010.0,
)

ROWS: dict[str, msgspec.Struct] = {
    "row_object": OBJECT,
    "row_object_smallest": ObjectRecord(FORMAT, 1, 0, "d", 0, ObjectState.DIRTY, None, Validated()),
    "row_overlay": OverlayRecord(FORMAT, 70_000, False, 41, 5, "etag", 1_700_000_002, "STANDARD_IA", (CRC,)),
    "row_overlay_tombstone": OverlayRecord(FORMAT, 9, is_tombstone=True),
    "row_dirty": ENTRY,
    "row_dirty_tombstone": TOMBSTONE_ENTRY,
    "row_upload": UPLOAD,
    "row_part": PART,
    "row_segment": SegmentRow(FORMAT, SEGMENT, 2, "disk-2", 1_000_000, 70_000),
    "row_resident": RESIDENT,
    "row_resident_of_part": ResidentRow(FORMAT, 0, 5, upload_id="0123abcd-1-ff", part=7),
    "row_facts": FACTS,
    "row_extent": EXTENT,
}
MUTATIONS: dict[str, Mutation] = {
    "put": Put(FORMAT, OBJECT, ENTRY),
    "tombstone": Tombstone(FORMAT, TOMBSTONE_ENTRY),
    "flushed": Flushed(FORMAT, 70_000, IDENTITY, VALIDATED),
    "flushed_released": Flushed(FORMAT, 70_000, IDENTITY, VALIDATED, releases=True),
    "flushed_tombstone": Flushed(FORMAT, 9, None, VALIDATED),
    "attempted": Attempted(FORMAT, 70_000, "theirs", (1, 7)),
    "origin_upload_opened": OriginUploadOpened(FORMAT, "theirs", "bucket", "key", "0123abcd-1-ff", 70_000),
    "origin_upload_ended": OriginUploadEnded(FORMAT, "theirs"),
    "quarantined": Quarantined(FORMAT, 70_000, "AccessDenied: no"),
    "released": Released(FORMAT, 70_000),
    "discarded": Discarded(FORMAT, 70_000),
    "forgotten": Forgotten(FORMAT, "bucket", "key"),
    "upload_created": UploadCreated(FORMAT, UPLOAD),
    "part_uploaded": PartUploaded(FORMAT, "0123abcd-1-ff", PART),
    "upload_completed": UploadCompleted(FORMAT, "0123abcd-1-ff", OBJECT, ENTRY, 1_700_000_009.0),
    "upload_aborted": UploadAborted(FORMAT, "0123abcd-1-ff"),
    "upload_passed": UploadPassed(FORMAT, "0123abcd-1-ff", 1_700_000_009.0, "etag-2", OBJECT.checksums),
    "moved": Moved(FORMAT, RESIDENT, PLACE, Location(SEGMENT + 1, 0, 5, PLACE.checksums)),
    "ids_reserved": IdsReserved(FORMAT, 1_048_577, 4097),
    "epoch_started": EpochStarted(FORMAT, 4, 3),
    "epoch_ended": EpochEnded(FORMAT, 4, 3),
    "facts_learnt": FactsLearnt(FORMAT, FACTS),
    "pointer_set": PointerSet(FORMAT, "bucket", "live/", "runs/7/", 2, checked_at_s=1_700_000_000.5),
}
SAMPLES: dict[str, msgspec.Struct] = {**ROWS, **MUTATIONS}


def golden(name: str) -> bytes:
    """Read the pinned bytes of a sample."""
    lines = (GOLDEN / f"{name}.txt").read_text().splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))


@pytest.mark.parametrize("name", SAMPLES)
def test_encode_when_bytes_are_pinned(name: str) -> None:
    """The bytes of a record never change within a format."""
    assert encode(SAMPLES[name]).hex() == golden(name).hex()


@pytest.mark.parametrize("name", ROWS)
def test_decode_when_row_is_pinned(name: str) -> None:
    """A pinned row reads as what it was written from."""
    row = ROWS[name]

    assert msgspec.msgpack.decode(golden(name), type=type(row)) == row


@pytest.mark.parametrize("name", MUTATIONS)
def test_decode_mutation_when_pinned(name: str) -> None:
    """A pinned mutation reads as what it was written from."""
    assert decode_mutation(golden(name)) == MUTATIONS[name]


def test_samples_when_compared_with_the_union() -> None:
    """Every mutation that a journal may hold has a sample, and every golden file belongs to one."""
    sampled = {type(mutation) for mutation in MUTATIONS.values()}

    assert sampled == set(get_args(Mutation))
    assert {path.stem for path in GOLDEN.glob("*.txt")} == set(SAMPLES)


def test_samples_when_fields_are_set() -> None:
    """The fullest sample of each record sets every field, so that no field's bytes go unpinned."""
    for sample in (OBJECT, ENTRY, UPLOAD, PART, FACTS, IDENTITY):
        for field in msgspec.structs.fields(sample):
            if not field.required and field.name != "extents_spilled":
                assert getattr(sample, field.name) != field.default, field.name


def test_decode_when_record_is_older() -> None:
    """A record written before a field was added reads with that field's default."""
    whole = msgspec.msgpack.decode(encode(OBJECT))

    older = msgspec.msgpack.decode(msgspec.msgpack.encode(whole[:8]), type=ObjectRecord)

    assert older == ObjectRecord(*[getattr(OBJECT, name) for name in OBJECT.__struct_fields__[:8]])
    assert older.extents == ()


def test_view_when_it_is_held_against_its_record() -> None:
    """A view reads the same fields at the same places as the record that it is of, of an older record too."""
    assert WrittenHead.__struct_fields__ == ObjectRecord.__struct_fields__
    seen = msgspec.msgpack.decode(encode(OBJECT), type=WrittenHead)
    older = msgspec.msgpack.decode(encode(OBJECT), type=list)[:15]
    seen_older = msgspec.msgpack.decode(msgspec.msgpack.encode(older), type=WrittenHead)

    assert (seen.etag, seen.state, seen.origin, seen.is_written_here) == (
        OBJECT.etag,
        ObjectState.QUARANTINED,
        IDENTITY,
        True,
    )
    assert (seen_older.etag, seen_older.is_written_here) == (OBJECT.etag, False)


def test_decode_mutation_when_it_was_written_before_release_and_bases() -> None:
    """A confirmation and a queued change of a journal from before their newest fields read as they did."""
    flushed = bytes.fromhex(
        "95a7666c757368656401ce0001117096a77061636b732f31cd020005d920356434313430326162633462326137366239"
        "3731396439313130313763353932a3762d31ce6553f10092cb41d954fc4060000003"
    )
    queued = bytes.fromhex(
        "dc001401ce00011170a66275636b6574aa612fd0bad0bbd18ed187cd0fff2905aa63726564656e7469616ccb41d954fc"
        "40d00000cb41d954fc41000000cb41d954fc4140000002a8536c6f77446f776ec3a0a675706c6f61649201070391a470"
        "656572ac41636365737344656e696564"
    )

    assert decode_mutation(flushed) == Flushed(FORMAT, 70_000, IDENTITY, VALIDATED, releases=False)
    assert msgspec.msgpack.decode(queued, type=DirtyEntry) == msgspec.structs.replace(ENTRY, own_etags=())


def test_decode_when_record_is_newer() -> None:
    """A record with fields that this program does not know yet reads without them."""
    newer = [*msgspec.msgpack.decode(encode(TOMBSTONE_ENTRY)), "new", 7]

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(newer), type=DirtyEntry) == TOMBSTONE_ENTRY


def test_decode_mutation_when_a_pointer_has_no_time() -> None:
    """A pointer that was journaled before it had a time reads as one that the origin has never confirmed."""
    older = bytes.fromhex("96ab706f696e7465725f73657401a66275636b6574a56c6976652fa772756e732f372f02")

    assert decode_mutation(older) == PointerSet(FORMAT, "bucket", "live/", "runs/7/", 2, checked_at_s=0.0)


def test_decode_mutation_when_kind_is_unknown() -> None:
    """A mutation that only a newer program knows is refused, not skipped."""
    with pytest.raises(msgspec.DecodeError):
        decode_mutation(msgspec.msgpack.encode(["published", 1, "bucket"]))


def test_mutation_when_shape_is_read_from_outside() -> None:
    """The tag stands first and the format second, so that a reader of any format finds both."""
    for mutation in MUTATIONS.values():
        tag, number, *_ = msgspec.msgpack.decode(encode(mutation))

        assert (tag, number) == (type(mutation).__struct_config__.tag, 1)


def test_is_tombstone_when_entry_has_no_version() -> None:
    """An entry is a delete exactly if it names no version."""
    assert TOMBSTONE_ENTRY.is_tombstone
    assert not ENTRY.is_tombstone


def test_nowhere_when_seen_as_a_place() -> None:
    """The place of a body that has none yet is in no file: ids begin at 1."""
    assert Location(segment_id=0, offset=0, length=0) == NOWHERE
