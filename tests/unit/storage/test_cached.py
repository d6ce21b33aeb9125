"""Changes to clean rows: each is dropped where the row has moved on, and none touches a dirty byte."""

from collections.abc import Callable
from typing import TypeVar

import pytest
from msgspec.structs import replace

from storage import keys
from storage.applier import write_change, write_group
from storage.cached import (
    AddExtents,
    CleanMove,
    DropExtents,
    DropSegment,
    ForgetClean,
    ForgetVersion,
    MarkValidated,
    MoveClean,
    StoreVersion,
)
from storage.family import Family
from storage.mutations import stamp
from storage.records import (
    FORMAT,
    Mutation,
    ObjectRecord,
    ObjectState,
    OriginIdentity,
    ResidentRow,
    SegmentRow,
    Validated,
)
from storage.rows import Effects, Rows, read_extents
from storage.types import BLOCK_BYTES, Checksum, ChecksumAlgorithm, Extent, Location, Stream
from tests.fakes.index import FakeIndex
from tests.fakes.records import BUCKET, extent, flushed, part_uploaded, put, record, tombstone, upload_created
from tests.fakes.row_invariants import all_rows, check_rows

ORIGIN = OriginIdentity("", 0, 100, "theirs")

T = TypeVar("T")


class Cached:
    """An index with mutations and changes applied; consistent after each."""

    def __init__(self) -> None:
        self.index = FakeIndex()
        self.sequence = 0

    def commit(self, *mutations: Mutation) -> None:
        """Apply mutations."""
        group = []
        for mutation in mutations:
            self.sequence += 1
            group.append((self.sequence, stamp(mutation, self.sequence, None)))
        write_group(self.index, group)

    def change(self, change: Callable[[Rows], T]) -> tuple[T, Effects]:
        """Carry out a change."""
        result, effects = write_change(self.index, change)
        check_rows(self.index)
        return result, effects

    def known(self, key: str, version_id: int, *extents: Extent, size: int = 100) -> ObjectRecord:
        """Keep a clean version with these bytes."""
        version = record(version_id, size=size, state=ObjectState.CLEAN, origin=ORIGIN)
        assert self.change(StoreVersion(BUCKET, key, version, 0))[0]
        assert self.change(AddExtents(BUCKET, key, version_id, extents))[0]
        return version

    def object(self, key: str) -> ObjectRecord | None:
        """Read a version."""
        return Rows(self.index).object(BUCKET, key)

    def extents(self, key: str) -> tuple[Extent, ...]:
        """Read a version's extents, wherever they stand."""
        present = self.object(key)
        assert present is not None
        return read_extents(self.index, present)

    def refuses(self, change: Callable[[Rows], int]) -> bool:
        """Whether a change is dropped, and leaves all as it was."""
        before = all_rows(self.index)
        result, effects = self.change(change)
        return not result and all_rows(self.index) == before and effects == Effects()


@pytest.fixture
def cached() -> Cached:
    """Give an empty index."""
    return Cached()


# --- StoreVersion ----------------------------------------------------------------------------------------------------


def test_store_version_when_key_is_unknown(cached: Cached) -> None:
    """What the origin showed is kept, without bytes yet."""
    version = record(7, size=100, state=ObjectState.CLEAN, origin=ORIGIN)

    assert cached.change(StoreVersion(BUCKET, "key", version, 0))[0]

    assert cached.object("key") == version


def test_store_version_when_it_replaces_the_known_one(cached: Cached) -> None:
    """A newer version takes the place of the one it was asked about, whose bytes die."""
    cached.known("key", 7, extent(0, 100, 3))
    newer = record(8, size=50, state=ObjectState.CLEAN, origin=ORIGIN)

    is_kept, effects = cached.change(StoreVersion(BUCKET, "key", newer, 7))

    assert is_kept
    assert cached.object("key") == newer
    assert effects.segments == {3: SegmentRow(FORMAT, 3, Stream.CLEAN)}


def test_store_version_when_row_has_moved_on(cached: Cached) -> None:
    """An answer of the origin is not kept over a version that it was not asked about, nor over anything dirty."""
    cached.known("clean", 7)
    cached.commit(put("dirty", record(9, (extent(0, 5, 3),))), tombstone("deleted"))
    late = record(10, size=1, state=ObjectState.CLEAN, origin=ORIGIN)

    for key, replaces in [
        ("clean", 0),
        ("clean", 6),
        ("unknown", 7),
        ("dirty", 9),
        ("dirty", 0),
        ("deleted", 0),
    ]:
        assert cached.refuses(StoreVersion(BUCKET, key, late, replaces)), (key, replaces)


# --- AddExtents ------------------------------------------------------------------------------------------------------


def test_add_extents_when_bytes_come_in_any_order(cached: Cached) -> None:
    """Filled bytes are noted in ascending order and counted as clean."""
    cached.known("key", 7, extent(50, 10, 3))

    _, effects = cached.change(AddExtents(BUCKET, "key", 7, (extent(0, 20, 3, 64), extent(80, 5, 4))))

    assert cached.extents("key") == (extent(0, 20, 3, 64), extent(50, 10, 3), extent(80, 5, 4))
    assert effects.segments == {
        3: SegmentRow(FORMAT, 3, Stream.CLEAN, "", 30, 0),
        4: SegmentRow(FORMAT, 4, Stream.CLEAN, "", 5, 0),
    }


def test_add_extents_when_bytes_are_there_already(cached: Cached) -> None:
    """The second copy of the same bytes is dead space, and writes nothing."""
    cached.known("key", 7, extent(0, 20, 3))
    before = all_rows(cached.index)

    is_there, effects = cached.change(AddExtents(BUCKET, "key", 7, (extent(0, 20, 4),)))

    assert is_there
    assert all_rows(cached.index) == before
    assert effects == Effects()


def test_add_extents_when_part_is_new(cached: Cached) -> None:
    """Of an extent that overlaps only the blocks that are missing are noted."""
    cached.known("key", 7, extent(0, BLOCK_BYTES, 3), size=3 * BLOCK_BYTES)
    checksums = bytes(range(16))
    two_blocks = Extent(0, 2 * BLOCK_BYTES, Location(4, 0, 2 * BLOCK_BYTES, checksums))

    cached.change(AddExtents(BUCKET, "key", 7, (two_blocks,)))

    second = Extent(BLOCK_BYTES, 2 * BLOCK_BYTES, Location(4, BLOCK_BYTES, BLOCK_BYTES, checksums[8:]))
    assert cached.extents("key") == (extent(0, BLOCK_BYTES, 3), second)


def test_add_extents_when_version_is_gone(cached: Cached) -> None:
    """A fill that comes late does not touch a newer version, clean, dirty or deleted."""
    cached.known("clean", 7)
    cached.commit(put("dirty", record(9, (extent(0, 5, 3),))), tombstone("deleted"))

    for key in ("clean", "dirty", "deleted", "unknown"):
        assert cached.refuses(AddExtents(BUCKET, key, 6, (extent(0, 5, 8),))), key


def test_add_extents_when_they_go_on_from_each_other(cached: Cached) -> None:
    """Blocks that were fetched one by one, and lie one behind the other, become one extent, as do their residents."""
    cached.known("key", 7, size=4 * BLOCK_BYTES)
    blocks = [
        Extent(
            n * BLOCK_BYTES,
            (n + 1) * BLOCK_BYTES,
            Location(3, n * BLOCK_BYTES, BLOCK_BYTES, n.to_bytes(8)),
        )
        for n in range(4)
    ]

    for n in (0, 1, 3, 2):
        cached.change(AddExtents(BUCKET, "key", 7, (blocks[n],)))

    checksums = b"".join(n.to_bytes(8) for n in range(4))
    whole = Extent(0, 4 * BLOCK_BYTES, Location(3, 0, 4 * BLOCK_BYTES, checksums))
    assert cached.extents("key") == (whole,)
    assert len(Rows(cached.index).scan(Family.RESIDENTS, b"", b"\xff")) == 1
    segment = Rows(cached.index).segment(3)
    assert segment is not None
    assert segment.live_bytes == 4 * BLOCK_BYTES


def test_add_extents_when_joining_leaves_few(cached: Cached) -> None:
    """A version whose extents became few enough has them in its row again."""
    apart = tuple(extent(100 * n, 10, 3, 1000 * n) for n in range(2, 17))
    first = Extent(0, BLOCK_BYTES, Location(4, 0, BLOCK_BYTES, bytes(8)))
    third = Extent(2 * BLOCK_BYTES, 3 * BLOCK_BYTES, Location(4, 2 * BLOCK_BYTES, BLOCK_BYTES, bytes(8)))
    second = Extent(BLOCK_BYTES, 2 * BLOCK_BYTES, Location(4, BLOCK_BYTES, BLOCK_BYTES, bytes(8)))
    behind = tuple(Extent(4 * BLOCK_BYTES + e.start, 4 * BLOCK_BYTES + e.stop, e.location) for e in apart)
    cached.known("key", 7, first, third, *behind, size=5 * BLOCK_BYTES)
    before = cached.object("key")

    cached.change(AddExtents(BUCKET, "key", 7, (second,)))

    after = cached.object("key")
    assert before is not None
    assert after is not None
    assert (before.extents_spilled, after.extents_spilled) == (True, False)
    assert len(after.extents) == 16


def test_changes_when_a_version_has_many_extents(cached: Cached) -> None:
    """One more block, or a word of the origin, reads and writes what it concerns, however much else is there."""
    many = tuple(
        Extent(
            2 * n * BLOCK_BYTES,
            (2 * n + 1) * BLOCK_BYTES,
            Location(3, n * BLOCK_BYTES, BLOCK_BYTES, bytes(8)),
        )
        for n in range(1000)
    )
    cached.known("key", 7, *many, size=2000 * BLOCK_BYTES)
    rows = Rows(cached.index)
    scan, read = cached.index.scan, list[int]()

    def counted(family: Family, start: bytes, stop: bytes | None, limit: int) -> list[tuple[bytes, bytes]]:
        found = scan(family, start, stop, limit)
        read.append(len(found))
        return found

    cached.index.scan = counted  # type: ignore[method-assign,assignment]  # a wiretap

    added = AddExtents(
        BUCKET,
        "key",
        7,
        (Extent(1001 * BLOCK_BYTES, 1002 * BLOCK_BYTES, Location(9, 0, BLOCK_BYTES, bytes(8))),),
    )
    assert added(rows)
    assert MarkValidated(BUCKET, "key", 7, Validated(5.0, 2), ORIGIN)(rows)

    assert sum(read) < 100
    assert len(rows.batch()) == 4  # the extent, its resident, its segment, the object


# --- MarkValidated, ForgetVersion, ForgetClean, DropExtents ----------------------------------------------------------


def test_mark_validated_when_version_is_clean(cached: Cached) -> None:
    """The time and the origin's name of it are noted, the bytes stay; also where they are many."""
    many = tuple(extent(2 * n, 1, 3, 64 * n) for n in range(20))
    cached.known("key", 7, *many)
    renamed = OriginIdentity("", 0, 100, "theirs", last_modified_s=9)

    assert cached.change(MarkValidated(BUCKET, "key", 7, Validated(5.0, 2), renamed))[0]

    present = cached.object("key")
    assert present is not None
    assert (present.validated, present.origin) == (Validated(5.0, 2), renamed)
    assert cached.extents("key") == many


def test_mark_validated_when_the_origin_shows_checksums(cached: Cached) -> None:
    """A version without checksums gets them; one that has its own keeps those."""
    shown = (Checksum(ChecksumAlgorithm.CRC32, "AAAAAA=="),)
    cached.known("key", 7)

    cached.change(MarkValidated(BUCKET, "key", 7, Validated(5.0, 2), ORIGIN, shown))
    learned = cached.object("key")
    cached.change(MarkValidated(BUCKET, "key", 7, Validated(6.0, 2), ORIGIN))
    kept = cached.object("key")

    assert learned is not None
    assert kept is not None
    assert learned.checksums == kept.checksums == shown


def test_mark_validated_when_version_was_written_here(cached: Cached) -> None:
    """The mark stays, and a row from before there was one gets it while the missing date still shows it; one that was read gets none."""
    dated = OriginIdentity("", 0, 100, "theirs", last_modified_s=9)
    cached.known("marked", 7)
    cached.known("read", 8)
    cached.known("older", 9)
    for key, origin, is_marked in [("marked", dated, True), ("read", dated, False), ("older", ORIGIN, False)]:
        row = cached.object(key)
        assert row is not None
        cached.change(
            StoreVersion(BUCKET, key, replace(row, origin=origin, is_written_here=is_marked), row.version_id)
        )

    for key, version_id in [("marked", 7), ("read", 8), ("older", 9)]:
        assert cached.change(MarkValidated(BUCKET, key, version_id, Validated(5.0, 2), dated))[0]

    marks = [row.is_written_here for key in ("marked", "read", "older") if (row := cached.object(key))]
    assert marks == [True, False, True]


def test_changes_when_version_is_dirty_or_another(cached: Cached) -> None:
    """No word about a clean version changes a dirty one, or one of another number."""
    cached.known("clean", 7, extent(0, 100, 3))
    cached.commit(put("dirty", record(9, (extent(0, 5, 4),))))

    for key, version_id in [("clean", 6), ("dirty", 9), ("unknown", 1)]:
        place = Location(4, 0, 5, bytes(8))
        assert cached.refuses(MarkValidated(BUCKET, key, version_id, Validated(5.0, 2), ORIGIN))
        assert cached.refuses(ForgetVersion(BUCKET, key, version_id))
        assert cached.refuses(DropExtents(BUCKET, key, version_id, (place,)))


@pytest.mark.parametrize("change", [ForgetVersion(BUCKET, "key", 7), ForgetClean(BUCKET, "key")])
def test_forget_when_version_is_clean(cached: Cached, change: Callable[[Rows], bool]) -> None:
    """A forgotten version leaves no row and no live byte."""
    cached.known("key", 7, *(extent(2 * n, 1, 3, 64 * n) for n in range(20)))

    assert cached.change(change)[0]

    assert cached.object("key") is None
    assert Rows(cached.index).segment(3) == SegmentRow(FORMAT, 3, Stream.CLEAN)


def test_forget_clean_when_key_is_dirty(cached: Cached) -> None:
    """What is dirty is not forgotten because something passed through."""
    cached.commit(put("key", record(9, (extent(0, 5, 4),))))
    before = all_rows(cached.index)

    cached.change(ForgetClean(BUCKET, "key"))

    assert all_rows(cached.index) == before


def test_drop_extents_when_some_cannot_be_read(cached: Cached) -> None:
    """Only the bytes that are wrong become a miss."""
    cached.known("key", 7, extent(0, 20, 3), extent(20, 30, 4))

    _, effects = cached.change(DropExtents(BUCKET, "key", 7, (extent(0, 20, 3).location,)))

    assert cached.extents("key") == (extent(20, 30, 4),)
    assert effects.segments == {3: SegmentRow(FORMAT, 3, Stream.CLEAN)}


# --- DropSegment -----------------------------------------------------------------------------------------------------


def test_drop_segment_when_all_in_it_is_clean(cached: Cached) -> None:
    """Every version loses what it had there and keeps the rest, inline or spilled; the loop hears that it is gone."""
    many = tuple(extent(2 * n, 1, 3 + n % 2, 64 * n) for n in range(40))
    cached.known("many", 7, *many)
    cached.known("one", 8, extent(0, 20, 3, 4096))
    cached.commit(put("flushed", record(9, (extent(0, 5, 3, 8192),))), flushed(1))

    is_dropped, effects = cached.change(DropSegment(3))

    assert is_dropped
    assert cached.extents("many") == many[1::2]
    assert cached.extents("one") == cached.extents("flushed") == ()
    assert Rows(cached.index).segment(3) is None
    assert effects.segments[3].live_bytes == -1
    assert not cached.index.scan(Family.RESIDENTS, *keys.residents_range(3), 10)


def test_drop_segment_when_object_has_many_extents_there(cached: Cached) -> None:
    """Each version's row is written once, however many of its extents are in the segment."""
    cached.known("many", 7, *(extent(2 * n, 1, 3, 64 * n) for n in range(40)))
    rows = Rows(cached.index)

    DropSegment(3)(rows)

    assert [write.family for write in rows.batch()].count(Family.EXTENTS) == 40
    assert [write.family for write in rows.batch()].count(Family.OBJECTS) == 1


def test_drop_segment_when_dirty_bytes_are_in_it(cached: Cached) -> None:
    """A segment with a byte that only this gateway has stays as it is: of an object, or of a part."""
    cached.known("clean", 7, extent(0, 20, 3), extent(20, 20, 4))
    cached.commit(put("dirty", record(9, (extent(0, 5, 3, 64),))))
    cached.commit(upload_created("u", "key"), part_uploaded("u", 1, (extent(0, 5, 4, 64),)))

    assert cached.refuses(DropSegment(3))
    assert cached.refuses(DropSegment(4))


def test_drop_segment_when_nothing_is_known_of_it(cached: Cached) -> None:
    """A segment without a row, of bodies that failed, can go."""
    is_dropped, effects = cached.change(DropSegment(3))

    assert is_dropped
    assert effects.segments[3].live_bytes == -1


# --- MoveClean -------------------------------------------------------------------------------------------------------


def test_move_clean_when_some_rows_have_moved_on(cached: Cached) -> None:
    """Each row takes the new place if it still holds the old one; the others are counted out."""
    cached.known("here", 7, extent(0, 20, 3))
    cached.known("gone", 8, extent(0, 20, 3, 64))
    cached.change(ForgetVersion(BUCKET, "gone", 8))
    moves = [
        CleanMove(
            ResidentRow(FORMAT, 0, 20, bucket=BUCKET, key="here", version_id=7),
            Location(3, 0, 20),
            (Location(9, 0, 20),),
        ),
        CleanMove(
            ResidentRow(FORMAT, 0, 20, bucket=BUCKET, key="gone", version_id=8),
            Location(3, 64, 20),
            (Location(9, 20, 20),),
        ),
    ]

    moved, effects = cached.change(MoveClean(moves))

    assert moved == [True, False]
    assert cached.extents("here") == (Extent(0, 20, Location(9, 0, 20)),)
    assert effects.segments == {
        3: SegmentRow(FORMAT, 3, Stream.CLEAN),
        9: SegmentRow(FORMAT, 9, Stream.CLEAN, "", 20, 0),
    }


def test_move_clean_when_the_new_place_goes_over_the_end_of_a_segment(cached: Cached) -> None:
    """An extent that lies at two places becomes two extents, and both count."""
    cached.known("key", 7, extent(0, 20, 3), extent(20, 20, 4))
    resident = ResidentRow(FORMAT, 0, 20, bucket=BUCKET, key="key", version_id=7)

    moved, effects = cached.change(
        MoveClean([CleanMove(resident, Location(3, 0, 20), (Location(8, 90, 12), Location(9, 0, 8)))])
    )

    assert moved == [True]
    assert [(e.start, e.location.segment_id) for e in cached.extents("key")] == [(0, 8), (12, 9), (20, 4)]
    assert {segment_id: row.live_bytes for segment_id, row in effects.segments.items()} == {3: 0, 8: 12, 9: 8}


def test_move_clean_when_the_row_is_dirty(cached: Cached) -> None:
    """Dirty bytes move by the journal alone: nothing of them changes, of an object or of a part."""
    cached.commit(put("key", record(9, (extent(0, 5, 3, 64),))))
    cached.commit(upload_created("u", "key"), part_uploaded("u", 1, (extent(0, 5, 4, 64),)))
    of_object = ResidentRow(FORMAT, 0, 5, bucket=BUCKET, key="key", version_id=9)
    of_part = ResidentRow(FORMAT, 0, 5, upload_id="u", part=1)
    before = all_rows(cached.index)

    moved, _ = cached.change(
        MoveClean(
            [
                CleanMove(of_object, Location(3, 64, 5), (Location(9, 0, 5),)),
                CleanMove(of_part, Location(4, 64, 5), (Location(9, 5, 5),)),
            ]
        )
    )

    assert moved == [False, False]
    assert all_rows(cached.index) == before
