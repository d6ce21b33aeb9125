"""Each mutation by itself: what it does to the rows, what it tells, and that it does nothing where its subject is gone."""

import msgspec
import pytest

from storage import keys
from storage.applier import write_group
from storage.commit import STAMP_BYTES_MAX
from storage.family import Family
from storage.mutations import apply, locations_of, stamp
from storage.records import (
    FORMAT,
    NOWHERE,
    Attempted,
    BucketFacts,
    Discarded,
    EpochEnded,
    EpochStarted,
    FactsLearnt,
    Forgotten,
    IdsReserved,
    Moved,
    Mutation,
    ObjectState,
    OriginIdentity,
    PartSize,
    PointerSet,
    Put,
    Quarantined,
    Released,
    ResidentRow,
    SegmentRow,
    UploadAborted,
    UploadCreated,
    UploadPassed,
    UploadRecord,
    Validated,
    encode,
)
from storage.rows import APPLIED_SEQUENCE, EPOCH, RESERVED_IDS, Effects, Rows
from storage.types import Extent, Location, Stream
from tests.fakes.index import FakeIndex
from tests.fakes.records import (
    BUCKET,
    entry,
    extent,
    flushed,
    part_uploaded,
    put,
    record,
    tiny_extents,
    tombstone,
    upload_completed,
    upload_created,
)
from tests.fakes.row_invariants import all_rows, check_rows, rows_of


class Applied:
    """An index and its next sequence; mutations are stamped and applied, one group each."""

    def __init__(self) -> None:
        self.index = FakeIndex()
        self.sequence = 0

    def __call__(self, *mutations: Mutation) -> Effects:
        group = []
        for mutation in mutations:
            self.sequence += 1
            group.append((self.sequence, stamp(mutation, self.sequence, None)))
        effects = write_group(self.index, group)
        check_rows(self.index)
        return effects

    @property
    def rows(self) -> Rows:
        """Read as a batch does."""
        return Rows(self.index)

    def but_meta(self) -> dict[Family, dict[bytes, bytes]]:
        """Give all rows but those that every group writes."""
        rows = all_rows(self.index)
        rows.pop(Family.META)
        return rows


@pytest.fixture
def applied() -> Applied:
    """Give an empty index to apply to."""
    return Applied()


# --- objects ---------------------------------------------------------------------------------------------------------


def test_put_when_key_is_new(applied: Applied) -> None:
    """A put makes an object, lays it over the origin's listing, queues it and counts its bytes as dirty."""
    version = record(7, (extent(0, 10, 3),), headers=(("x-amz-storage-class", "STANDARD_IA"),))

    effects = applied(put("key", version))

    overlay, queued = applied.rows.overlay(BUCKET, "key"), applied.rows.dirty(1)
    assert applied.rows.object(BUCKET, "key") == version
    assert overlay is not None
    assert (overlay.sequence, overlay.is_tombstone, overlay.version_id, overlay.size) == (1, False, 7, 10)
    assert (overlay.etag, overlay.storage_class) == ("etag-7", "STANDARD_IA")
    assert queued == entry("key", 7, sequence=1, size=10)
    assert effects.dirty_added == [queued]
    assert effects.segments == {3: SegmentRow(FORMAT, 3, Stream.DIRTY, "", 10, 10)}


def test_put_when_key_was_dirty(applied: Applied) -> None:
    """A newer put takes the older one's place in the queue, and the older one's bytes die."""
    applied(put("key", record(7, (extent(0, 10, 3),))))

    effects = applied(put("key", record(8, (extent(0, 4, 4),))))

    assert applied.rows.dirty(1) is None
    assert [queued.sequence for queued in effects.dirty_removed] == [1]
    assert [queued.sequence for queued in effects.dirty_added] == [2]
    assert effects.segments[3] == SegmentRow(FORMAT, 3, Stream.DIRTY)
    assert not effects.discarded


def test_put_when_older_one_had_an_upload_at_the_origin(applied: Applied) -> None:
    """An upload at the origin that nobody will complete is told, so that it is aborted."""
    applied(put("key", record(7, (extent(0, 10, 3),))), Attempted(FORMAT, 1, "theirs"))

    effects = applied(put("key", record(8)))

    assert [abandoned.origin_upload_id for abandoned in effects.abandoned_uploads] == ["theirs"]


def test_put_when_version_was_quarantined_as_written(applied: Applied) -> None:
    """A compacted journal writes a refused change as one put: it comes back refused."""
    version = record(7, (extent(0, 10, 3),), state=ObjectState.QUARANTINED)
    queued = msgspec.structs.replace(entry("key", 7, size=10), quarantine_reason="no", attempts=3)

    applied(Put(FORMAT, version, queued))

    stored, kept = applied.rows.object(BUCKET, "key"), applied.rows.dirty(1)
    assert stored is not None
    assert stored.state is ObjectState.QUARANTINED
    assert kept is not None
    assert (kept.quarantine_reason, kept.attempts) == ("no", 3)


def test_put_when_version_is_clean(applied: Applied) -> None:
    """A clean version is not something to acknowledge."""
    with pytest.raises(AssertionError, match="starts dirty"):
        applied(put("key", record(7, state=ObjectState.CLEAN)))


def test_tombstone_when_object_is_there(applied: Applied) -> None:
    """A delete takes the object away, leaves a tombstone over the listing, and is queued."""
    applied(put("key", record(7, (extent(0, 10, 3),))))

    effects = applied(tombstone("key"))

    overlay = applied.rows.overlay(BUCKET, "key")
    assert applied.rows.object(BUCKET, "key") is None
    assert overlay is not None
    assert overlay.is_tombstone
    assert [queued.sequence for queued in effects.dirty_removed] == [1]
    assert [queued.is_tombstone for queued in effects.dirty_added] == [True]


def test_flushed_when_put_is_newest(applied: Applied) -> None:
    """A confirmed version is clean, knows what the origin calls it, and shows no more over the listing."""
    applied(put("key", record(7, (extent(0, 10, 3),))))

    effects = applied(flushed(1, etag="theirs"))

    stored = applied.rows.object(BUCKET, "key")
    assert stored is not None
    assert stored.state is ObjectState.CLEAN
    assert stored.origin == OriginIdentity("", 0, 0, "theirs")
    assert stored.validated == Validated(200.0, 1)
    assert applied.rows.overlay(BUCKET, "key") is None
    assert applied.rows.dirty(1) is None
    assert [gone.sequence for gone in effects.dirty_removed] == [1]
    assert effects.segments == {3: SegmentRow(FORMAT, 3, Stream.DIRTY, "", 10, 0)}


def test_flushed_when_it_releases(applied: Applied) -> None:
    """The version is clean and has no bytes here any more, however many extents it had; its record stays."""
    extents = tuple(extent(10 * n, 10, 3 + n % 2, 64 * n) for n in range(20))
    applied(put("key", record(7, extents)))

    effects = applied(flushed(1, releases=True))

    stored = applied.rows.object(BUCKET, "key")
    assert stored is not None
    assert (stored.state, stored.etag, stored.version_id) == (ObjectState.CLEAN, "etag-7", 7)
    assert applied.rows.extents_of(stored) == ()
    assert effects.segments == {
        3: SegmentRow(FORMAT, 3, Stream.DIRTY),
        4: SegmentRow(FORMAT, 4, Stream.DIRTY),
    }


def test_flushed_when_it_releases_a_superseded_change(applied: Applied) -> None:
    """Nothing of the newer state is released with the older one's confirmation."""
    applied(put("key", record(7, (extent(0, 10, 3),))), put("key", record(8, (extent(0, 4, 3, 64),))))
    before = applied.but_meta()

    applied(flushed(1, releases=True))

    assert applied.but_meta() == before


def test_flushed_when_upload_at_the_origin_was_used(applied: Applied) -> None:
    """The upload at the origin that carried a confirmed version is not abandoned: it was completed."""
    applied(put("key", record(7)), Attempted(FORMAT, 1, "theirs"))

    effects = applied(flushed(1))

    assert not effects.abandoned_uploads


def test_flushed_when_change_was_superseded(applied: Applied) -> None:
    """A confirmation of an older state says nothing of the newer one."""
    applied(put("key", record(7, (extent(0, 10, 3),))), put("key", record(8, (extent(0, 4, 3, 64),))))
    before = applied.but_meta()

    effects = applied(flushed(1))

    assert applied.but_meta() == before
    assert effects == Effects()


def test_flushed_when_tombstone(applied: Applied) -> None:
    """A confirmed delete leaves nothing at all."""
    applied(tombstone("key"))

    applied(flushed(1, is_tombstone=True))

    assert not any(applied.but_meta().values())


def test_attempted_when_change_goes_on(applied: Applied) -> None:
    """The origin's upload id is kept with the change, and told."""
    applied(put("key", record(7)))

    effects = applied(Attempted(FORMAT, 1, "theirs", (1, 2)))

    queued = applied.rows.dirty(1)
    assert queued is not None
    assert (queued.origin_upload_id, queued.origin_parts_done) == ("theirs", (1, 2))
    assert effects.dirty_changed == [queued]


def test_quarantined_when_released_again(applied: Applied) -> None:
    """A refused change stays dirty and is marked with the reason; released, it is queued as before."""
    applied(put("key", record(7, (extent(0, 10, 3),))))
    before = applied.but_meta()

    applied(Quarantined(FORMAT, 1, "AccessDenied"))
    stored, queued = applied.rows.object(BUCKET, "key"), applied.rows.dirty(1)
    applied(Released(FORMAT, 1))

    assert stored is not None
    assert stored.state is ObjectState.QUARANTINED
    assert queued is not None
    assert queued.quarantine_reason == "AccessDenied"
    assert applied.but_meta() == before


def test_quarantined_when_tombstone_without_reason(applied: Applied) -> None:
    """A refused delete is marked too, in words even where the origin gave none."""
    applied(tombstone("key"))

    applied(Quarantined(FORMAT, 1, ""))

    queued = applied.rows.dirty(1)
    assert queued is not None
    assert queued.quarantine_reason == "refused"


def test_discarded_when_put_and_tombstone(applied: Applied) -> None:
    """A change that is given up leaves no object, no overlay and no dirty byte, and is told apart from a replaced one."""
    applied(put("key", record(7, (extent(0, 10, 3),))), Attempted(FORMAT, 1, "theirs"), tombstone("gone"))

    effects = applied(Discarded(FORMAT, 1), Discarded(FORMAT, 3))

    assert [gone.sequence for gone in effects.discarded] == [1, 3]
    assert [gone.sequence for gone in effects.dirty_removed] == [1, 3]
    assert [gone.sequence for gone in effects.abandoned_uploads] == [1]
    assert applied.but_meta() == {
        **{family: {} for family in Family if family is not Family.META},
        Family.SEGMENTS: {keys.segment_key(3): encode(SegmentRow(FORMAT, 3, Stream.DIRTY))},
    }


def test_forgotten_when_object_is_clean_or_dirty(applied: Applied) -> None:
    """What is clean is dropped, what is dirty stays: it is the truth."""
    applied(put("clean", record(7, (extent(0, 10, 3),))), flushed(1), put("dirty", record(8)))

    applied(*[Forgotten(FORMAT, BUCKET, key) for key in ("clean", "dirty", "unknown")])

    assert applied.rows.object(BUCKET, "clean") is None
    assert applied.rows.object(BUCKET, "dirty") is not None


@pytest.mark.parametrize(
    "mutation",
    [
        flushed(99),
        Attempted(FORMAT, 99, "theirs"),
        Quarantined(FORMAT, 99, "no"),
        Released(FORMAT, 99),
        Discarded(FORMAT, 99),
        Forgotten(FORMAT, BUCKET, "unknown"),
        part_uploaded("unknown", 1, (extent(0, 5, 9),)),
        upload_completed("unknown", "key", 5, ((1, 5),)),
        UploadAborted(FORMAT, "unknown"),
        UploadPassed(FORMAT, "unknown", 5.0, "etag-1"),
        Moved(
            FORMAT,
            ResidentRow(FORMAT, 0, 10, bucket=BUCKET, key="key", version_id=1),
            Location(3, 0, 10),
            Location(4, 0, 10),
        ),
        Moved(
            FORMAT,
            ResidentRow(FORMAT, 0, 10, bucket=BUCKET, key="key", version_id=7),
            Location(3, 64, 10),
            Location(4, 0, 10),
        ),
        Moved(FORMAT, ResidentRow(FORMAT, 0, 10, upload_id="unknown", part=1), Location(3, 0, 10), NOWHERE),
    ],
    ids=[
        *("flushed", "attempted", "quarantined", "released", "discarded", "forgotten"),
        *("part_uploaded", "upload_completed", "upload_aborted", "upload_passed"),
        *("moved_of_object", "moved_from_elsewhere", "moved_of_part"),
    ],
)
def test_apply_when_subject_is_gone(applied: Applied, mutation: Mutation) -> None:
    """A mutation whose subject is not there, as after compaction, changes nothing and tells nothing."""
    applied(put("key", record(7, (extent(0, 10, 3),))))
    before = applied.but_meta()

    effects = applied(mutation)

    assert applied.but_meta() == before
    assert effects == Effects()


# --- uploads ---------------------------------------------------------------------------------------------------------


def test_upload_when_created_and_parts_come(applied: Applied) -> None:
    """Parts are kept with their upload, count as dirty, and a part sent again replaces the one before."""
    opened = applied(upload_created("u", "key"))
    applied(part_uploaded("u", 1, (extent(0, 10, 3),)), part_uploaded("u", 2, (extent(0, 7, 3, 64),)))

    effects = applied(part_uploaded("u", 1, (extent(0, 5, 4),)))

    assert (opened.uploads_opened, opened.uploads_closed) == (1, 0)
    assert [(part.number, part.size) for part in applied.rows.parts("u")] == [(1, 5), (2, 7)]
    assert effects.segments[3] == SegmentRow(FORMAT, 3, Stream.DIRTY, "", 7, 7)
    assert effects.segments[4] == SegmentRow(FORMAT, 4, Stream.DIRTY, "", 5, 5)


def test_upload_completed_when_some_parts_are_named(applied: Applied) -> None:
    """The object has the named parts' bytes in order; the others die; the upload stays for the repeated Complete."""
    applied(
        upload_created("u", "key"),
        part_uploaded("u", 2, (extent(0, 10, 3), extent(10, 4, 4))),
        part_uploaded("u", 5, (extent(0, 6, 5),)),
        part_uploaded("u", 9, (extent(0, 3, 6),)),
    )

    effects = applied(upload_completed("u", "key", 7, ((2, 14), (5, 6))))

    stored, upload = applied.rows.object(BUCKET, "key"), applied.rows.upload("u")
    assert stored is not None
    assert stored.extents == (extent(0, 10, 3), extent(10, 4, 4), extent(14, 6, 5))
    assert stored.parts == (PartSize(2, 14, "part-2"), PartSize(5, 6, "part-5"))
    assert applied.rows.parts("u") == ()
    assert upload is not None
    assert (upload.completed_at_s, upload.completed_etag, upload.completed_version_id) == (60.0, "etag-7", 7)
    assert effects.segments[6] == SegmentRow(FORMAT, 6, Stream.DIRTY)
    assert effects.uploads_closed == 1
    assert [queued.version_id for queued in effects.dirty_added] == [7]


def test_upload_completed_when_repeated(applied: Applied) -> None:
    """A second Complete of the same upload, and a part after it, change nothing."""
    applied(upload_created("u", "key"), part_uploaded("u", 1, (extent(0, 10, 3),)))
    applied(upload_completed("u", "key", 7, ((1, 10),)))
    before = applied.but_meta()

    effects = applied(upload_completed("u", "key", 8, ((1, 10),)), part_uploaded("u", 1, (extent(0, 5, 4),)))

    assert applied.but_meta() == before
    assert effects == Effects()


@pytest.mark.parametrize(("number", "size"), [(2, 10), (1, 9)])
def test_upload_completed_when_part_is_another(applied: Applied, number: int, size: int) -> None:
    """A Complete of parts that are not there as named is a bug of whoever let it through, and makes no object."""
    applied(upload_created("u", "key"), part_uploaded("u", 1, (extent(0, 10, 3),)))

    with pytest.raises(AssertionError, match="under its Complete"):
        applied(upload_completed("u", "key", 7, ((number, size),)))

    assert applied.rows.object(BUCKET, "key") is None


def test_upload_aborted_when_open_or_completed(applied: Applied) -> None:
    """An aborted upload leaves nothing alive; forgetting a completed one leaves its object and closes nothing twice."""
    applied(
        upload_created("open", "key"),
        part_uploaded("open", 1, (extent(0, 10, 3),)),
        upload_created("done", "key"),
        part_uploaded("done", 1, (extent(0, 5, 4),)),
        upload_completed("done", "key", 7, ((1, 5),)),
    )

    effects = applied(UploadAborted(FORMAT, "open"), UploadAborted(FORMAT, "done"))

    assert not rows_of(applied.index, Family.UPLOADS)
    assert not rows_of(applied.index, Family.PARTS)
    assert applied.rows.object(BUCKET, "key") is not None
    assert effects.uploads_closed == 1
    assert effects.segments == {3: SegmentRow(FORMAT, 3, Stream.DIRTY)}


def test_upload_created_when_completed_as_written(applied: Applied) -> None:
    """A compacted journal writes a completed upload as created so: it answers a repeated Complete, and is not open."""
    upload = UploadRecord(FORMAT, "u", BUCKET, "key", 50.0, "", completed_at_s=60.0, completed_etag="e")

    effects = applied(UploadCreated(FORMAT, upload))

    assert applied.rows.upload("u") == upload
    assert (effects.uploads_opened, effects.uploads_closed) == (0, 0)


# --- places ----------------------------------------------------------------------------------------------------------


def test_moved_when_object_has_it_at_the_old_place(applied: Applied) -> None:
    """The extent is at its new place with its new checksums, and the old segment counts nothing."""
    applied(put("key", record(7, (extent(0, 10, 3), extent(10, 5, 3, 64)))))
    resident = ResidentRow(FORMAT, 10, 5, bucket=BUCKET, key="key", version_id=7)
    new = Location(9, 4096, 5, b"checksum")

    effects = applied(Moved(FORMAT, resident, Location(3, 64, 5), new))

    stored = applied.rows.object(BUCKET, "key")
    assert stored is not None
    assert stored.extents == (extent(0, 10, 3), Extent(10, 15, new))
    assert effects.segments == {
        3: SegmentRow(FORMAT, 3, Stream.DIRTY, "", 10, 10),
        9: SegmentRow(FORMAT, 9, Stream.DIRTY, "", 5, 5),
    }


def test_moved_when_part_of_an_upload(applied: Applied) -> None:
    """A part's bytes move as an object's do."""
    applied(upload_created("u", "key"), part_uploaded("u", 4, (extent(0, 10, 3),)))
    resident = ResidentRow(FORMAT, 0, 10, upload_id="u", part=4)

    applied(Moved(FORMAT, resident, Location(3, 0, 10), Location(9, 0, 10)))

    part = applied.rows.part("u", 4)
    assert part is not None
    assert part.extents == (Extent(0, 10, Location(9, 0, 10)),)


def test_moved_when_version_was_overwritten(applied: Applied) -> None:
    """Bytes of a version that is gone move nowhere, even where the new version has an extent at the same start."""
    applied(put("key", record(7, (extent(0, 10, 3),))), put("key", record(8, (extent(0, 10, 4),))))
    before = applied.but_meta()
    resident = ResidentRow(FORMAT, 0, 10, bucket=BUCKET, key="key", version_id=7)

    applied(Moved(FORMAT, resident, Location(3, 0, 10), Location(9, 0, 10)))

    assert applied.but_meta() == before


def test_moved_when_extents_are_spilled(applied: Applied) -> None:
    """One extent of many moves without the others being touched."""
    many = tuple(extent(10 * n, 10, 3, 100 * n) for n in range(20))
    applied(put("key", record(7, many)))
    resident = ResidentRow(FORMAT, 50, 10, bucket=BUCKET, key="key", version_id=7)

    applied(Moved(FORMAT, resident, Location(3, 500, 10), Location(9, 0, 10)))

    stored = applied.rows.object(BUCKET, "key")
    assert stored is not None
    assert [e.location.segment_id for e in applied.rows.extents_of(stored)].count(9) == 1


# --- what concerns no object -----------------------------------------------------------------------------------------


def test_apply_when_mutation_is_about_the_process(applied: Applied) -> None:
    """Reservations, epochs and pointers stand in the meta family as they were written, the last of each."""
    applied(
        IdsReserved(FORMAT, 10, 20),
        IdsReserved(FORMAT, 30, 40),
        EpochStarted(FORMAT, 2, 1),
        EpochEnded(FORMAT, 2, 1),
        PointerSet(FORMAT, BUCKET, "live/", "runs/7/", 2),
    )

    assert dict(rows_of(applied.index, Family.META)) == {
        RESERVED_IDS: encode(IdsReserved(FORMAT, 30, 40)),
        EPOCH: encode(EpochEnded(FORMAT, 2, 1)),
        b"pointer:bucket/live/": encode(PointerSet(FORMAT, BUCKET, "live/", "runs/7/", 2)),
        APPLIED_SEQUENCE: (5).to_bytes(8),
    }


def test_facts_learnt_when_bucket_is_gone_later(applied: Applied) -> None:
    """What the origin said last of a bucket is what is known."""
    known, gone = BucketFacts(FORMAT, BUCKET, True, 1.0), BucketFacts(FORMAT, BUCKET, False, 2.0)

    effects = applied(FactsLearnt(FORMAT, known), FactsLearnt(FORMAT, gone))

    assert not rows_of(applied.index, Family.BUCKETS)
    assert effects.facts == [known, gone]


# --- before the journal ----------------------------------------------------------------------------------------------


def test_stamp_when_body_is_tiny() -> None:
    """The sequence goes into the entry, and the tiny body's place into its one extent."""
    place = Location(42, 100, 5, b"checksum")

    stamped = stamp(put("key", record(7, tiny_extents(5))), 12, place)
    part = stamp(part_uploaded("u", 1, tiny_extents(5)), 12, place)

    assert stamped == put("key", record(7, (Extent(0, 5, place),)), sequence=12)
    assert part == part_uploaded("u", 1, (Extent(0, 5, place),))


def test_stamp_when_there_is_no_body() -> None:
    """Deletes and Completes get their sequence; what has none stays as it is."""
    assert stamp(tombstone("key"), 12, None) == tombstone("key", sequence=12)
    assert stamp(upload_completed("u", "key", 7, ()), 12, None) == upload_completed(
        "u", "key", 7, (), sequence=12
    )
    assert stamp(Released(FORMAT, 3), 12, None) == Released(FORMAT, 3)


@pytest.mark.parametrize(
    ("mutation", "tiny"),
    [
        (put("key", record(7, (extent(0, 10, 3),), size=11)), None),
        (put("key", record(7, (extent(0, 10, 3), extent(11, 4, 3)))), None),
        (put("key", record(7, tiny_extents(5))), None),
        (put("key", record(7, (extent(0, 5, 3),))), Location(42, 0, 5)),
        (put("key", record(7, tiny_extents(5))), Location(42, 0, 4)),
        (put("key", msgspec.structs.replace(record(7), extents_spilled=True)), None),
        (Put(FORMAT, record(7), entry("key", 8)), None),
        (part_uploaded("u", 1, tiny_extents(5)), None),
        (tombstone("key"), Location(42, 0, 5)),
        (Released(FORMAT, 3), Location(42, 0, 5)),
    ],
)
def test_stamp_when_bytes_are_not_all_there(mutation: Mutation, tiny: Location | None) -> None:
    """A version whose bytes are missing, nowhere or not its own does not get into a journal."""
    with pytest.raises(AssertionError):
        stamp(mutation, 12, tiny)


def test_apply_when_entry_has_another_sequence() -> None:
    """An entry is applied under the sequence that it carries."""
    with pytest.raises(AssertionError, match="entry 4 applied as 5"):
        apply(Rows(FakeIndex()), 5, tombstone("key", sequence=4))


def test_locations_of_when_mutation_promises_bytes() -> None:
    """What must be synced first are the places of puts, parts and moves; nobody else brings bytes."""
    old, new = Location(3, 0, 10), Location(4, 0, 10)
    moved = Moved(FORMAT, ResidentRow(FORMAT, 0, 10, bucket=BUCKET, key="k", version_id=7), old, new)

    assert [place.segment_id for place in locations_of(put("k", record(7, (extent(0, 5, 3),))))] == [3]
    assert [place.segment_id for place in locations_of(part_uploaded("u", 1, (extent(0, 5, 9),)))] == [9]
    assert locations_of(moved) == (new,)
    assert locations_of(upload_completed("u", "k", 7, ())) == ()
    assert locations_of(tombstone("k")) == ()


def test_stamp_when_compared_with_what_commit_allows_for() -> None:
    """A stamped mutation is longer than the one that was given to commit by no more than commit counts for it."""
    place = Location(2**64 - 1, 2**40, 2**15, bytes(8))
    part = part_uploaded("u", 1, tiny_extents(2**15))
    mutations: list[tuple[Mutation, Location | None]] = [
        (put("key", record(7, tiny_extents(2**15))), place),
        (part, place),
        (tombstone("key"), None),
        (upload_completed("u", "key", 7, ()), None),
    ]

    for mutation, tiny in mutations:
        growth = len(encode(stamp(mutation, 2**64 - 1, tiny))) - len(encode(mutation))

        assert growth <= STAMP_BYTES_MAX
