"""Rows: a batch sees itself, extents stand inline or spilled, segments are counted, effects tell what changed."""

import msgspec
import pytest
from hypothesis import given, strategies as st

from storage import keys
from storage.family import Family, IndexWrite
from storage.records import FORMAT, BucketFacts, ObjectState, ResidentRow, SegmentRow, UploadRecord, encode
from storage.rows import Rows, decode_object, decode_segment, read_extents, read_extents_in
from storage.types import EXTENT_BYTES_MAX, INLINE_EXTENTS_MAX, ByteRange, Extent, Stream
from tests.fakes.index import FakeIndex
from tests.fakes.records import BUCKET, entry, extent, part_uploaded, record
from tests.fakes.row_invariants import rows_of

KEYS = st.binary(min_size=1, max_size=3)


@pytest.fixture
def index() -> FakeIndex:
    """Give an empty index."""
    return FakeIndex()


def many_extents(count: int) -> tuple[Extent, ...]:
    """Make extents with a gap behind each."""
    return tuple(extent(20 * number, 10, 7, 100 * number) for number in range(count))


# --- the batch over the index ----------------------------------------------------------------------------------------


def test_get_when_batch_has_written(index: FakeIndex) -> None:
    """A read sees what the batch wrote and removed, and what it did not touch as it is in the index."""
    index.write([IndexWrite(Family.META, key, b"old") for key in (b"a", b"b", b"c")])
    rows = Rows(index)

    rows.put(Family.META, b"a", b"new")
    rows.delete(Family.META, b"b")

    assert [rows.get(Family.META, key) for key in (b"a", b"b", b"c", b"d")] == [b"new", None, b"old", None]
    assert index.get(Family.META, b"a") == b"old"


def test_batch_when_key_is_written_twice(index: FakeIndex) -> None:
    """A batch has each key once, with what was said last."""
    rows = Rows(index)

    rows.put(Family.META, b"a", b"1")
    rows.delete(Family.META, b"a")
    rows.put(Family.META, b"a", b"2")
    rows.put(Family.DIRTY, b"a", b"3")
    rows.delete(Family.DIRTY, b"a")

    assert rows.batch() == [
        IndexWrite(Family.META, b"a", b"2"),
        IndexWrite(Family.DIRTY, b"a", None),
    ]


@pytest.mark.slow
@given(
    stored=st.dictionaries(KEYS, st.binary(max_size=2)),
    written=st.dictionaries(KEYS, st.none() | st.binary(max_size=2)),
    bounds=st.tuples(KEYS, KEYS),
    limit=st.integers(1, 4),
)
def test_scan_when_batch_lies_over_index(
    stored: dict[bytes, bytes],
    written: dict[bytes, bytes | None],
    bounds: tuple[bytes, bytes],
    limit: int,
) -> None:
    """A scan gives what the index will give once the batch is written, in order and up to the limit."""
    index = FakeIndex()
    index.write([IndexWrite(Family.PARTS, key, value) for key, value in stored.items()])
    rows = Rows(index)
    for key, value in written.items():
        rows.delete(Family.PARTS, key) if value is None else rows.put(Family.PARTS, key, value)

    found = rows.scan(Family.PARTS, *bounds, limit)

    index.write(rows.batch())
    assert found == index.scan(Family.PARTS, *bounds, limit)


# --- objects ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, INLINE_EXTENTS_MAX, INLINE_EXTENTS_MAX + 1, 40])
def test_put_object_when_extents_are_few_or_many(index: FakeIndex, count: int) -> None:
    """Up to 16 extents stand in the record, more all in their own family; either way they read back in order."""
    rows = Rows(index)
    extents = many_extents(count)

    stored = rows.put_object(BUCKET, "key", record(1), extents)

    index.write(rows.batch())
    assert stored.extents_spilled == (count > 16)
    assert stored.extents == (() if count > 16 else extents)
    assert len(rows_of(index, Family.EXTENTS)) == (count if count > 16 else 0)
    assert read_extents(index, stored) == extents


@pytest.mark.parametrize(("before", "after"), [(16, 17), (17, 16), (40, 17), (17, 40), (40, 0)])
def test_put_object_when_number_of_extents_changes(index: FakeIndex, before: int, after: int) -> None:
    """Extents move between the record and their family without leaving a row behind."""
    first = Rows(index)
    stored = first.put_object(BUCKET, "key", record(1), many_extents(before))
    index.write(first.batch())
    rows = Rows(index)

    again = rows.put_object(BUCKET, "key", stored, many_extents(after))

    index.write(rows.batch())
    assert read_extents(index, again) == many_extents(after)
    assert len(rows_of(index, Family.EXTENTS)) == (after if after > 16 else 0)


@given(
    count=st.sampled_from([3, 40]),
    start=st.integers(0, 900),
    length=st.integers(0, 300),
)
def test_extents_in_a_span_when_they_stand_inline_or_spilled(count: int, start: int, length: int) -> None:
    """Those that have a byte in the span, and no other; also the one that begins before it."""
    index = FakeIndex()
    rows = Rows(index)
    stored = rows.put_object(BUCKET, "key", record(1), many_extents(count))
    index.write(rows.batch())
    span = ByteRange(start, start + length)

    found = read_extents_in(index, stored, span)

    assert found == tuple(e for e in many_extents(count) if e.start < span.stop and e.stop > span.start)


def test_the_longest_extent_is_found_when_only_its_last_byte_is_wanted(index: FakeIndex) -> None:
    """The search begins early enough for an extent of EXTENT_BYTES_MAX."""
    rows = Rows(index)
    behind = tuple(extent(EXTENT_BYTES_MAX + 20 * n, 10, 7, 100 * n) for n in range(20))
    longest = extent(0, EXTENT_BYTES_MAX, 8)
    stored = rows.put_object(BUCKET, "key", record(1), (longest, *behind))
    index.write(rows.batch())

    found = read_extents_in(index, stored, ByteRange(EXTENT_BYTES_MAX - 1, EXTENT_BYTES_MAX))

    assert found == (longest,)


def test_put_object_when_few_spilled_extents_change(index: FakeIndex) -> None:
    """Only the spilled rows that changed are written: a fill of a large object must not rewrite all of its extents."""
    first = Rows(index)
    stored = first.put_object(BUCKET, "key", record(1), many_extents(40))
    index.write(first.batch())
    rows = Rows(index)

    rows.put_object(BUCKET, "key", stored, many_extents(41))

    assert [write.family for write in rows.batch()].count(Family.EXTENTS) == 1


def test_drop_object_when_extents_are_spilled(index: FakeIndex) -> None:
    """Nothing of a dropped version stays but the rows of its segments, which count nothing."""
    rows = Rows(index)
    stored = rows.put_object(BUCKET, "key", record(1), many_extents(20))
    owner = ResidentRow(FORMAT, 0, 0, bucket=BUCKET, key="key", version_id=1)
    rows.occupy(rows.extents_of(stored), owner, is_dirty=True)

    rows.drop_object(BUCKET, "key", stored)

    index.write(rows.batch())
    assert rows.object(BUCKET, "key") is None
    assert not rows_of(index, Family.EXTENTS)
    assert not rows_of(index, Family.RESIDENTS)
    assert rows.segment(7) == SegmentRow(FORMAT, 7, Stream.DIRTY)


def test_extents_of_when_two_versions_are_spilled(index: FakeIndex) -> None:
    """The extents of one version are not those of its neighbour by number."""
    rows = Rows(index)
    one = rows.put_object(BUCKET, "one", record(1), many_extents(20))
    two = rows.put_object(BUCKET, "two", record(2), many_extents(18))

    assert rows.extents_of(one) == many_extents(20)
    assert rows.extents_of(two) == many_extents(18)


# --- places ----------------------------------------------------------------------------------------------------------


def test_occupy_when_dirty_bytes_become_clean_and_die(index: FakeIndex) -> None:
    """A segment counts live and dirty bytes up and down, and its residents say whose they are."""
    rows = Rows(index)
    extents = (extent(0, 10, 7), extent(10, 30, 8, 64))
    owner = ResidentRow(FORMAT, 0, 0, upload_id="u", part=3)

    rows.occupy(extents, owner, is_dirty=True)
    counted = [rows.segment(7), rows.segment(8)]
    resident = rows.get(Family.RESIDENTS, keys.resident_key(8, 64))
    rows.clean(extents)
    cleaned = [rows.segment(7), rows.segment(8)]
    rows.release(extents[:1], is_dirty=False)

    assert counted == [
        SegmentRow(FORMAT, 7, Stream.DIRTY, "", 10, 10),
        SegmentRow(FORMAT, 8, Stream.DIRTY, "", 30, 30),
    ]
    assert resident == encode(ResidentRow(FORMAT, 10, 30, upload_id="u", part=3))
    assert cleaned == [
        SegmentRow(FORMAT, 7, Stream.DIRTY, "", 10, 0),
        SegmentRow(FORMAT, 8, Stream.DIRTY, "", 30, 0),
    ]
    assert rows.segment(7) == SegmentRow(FORMAT, 7, Stream.DIRTY)
    assert rows.effects.segments == {7: rows.segment(7), 8: rows.segment(8)}


def test_clean_when_taken_back(index: FakeIndex) -> None:
    """Clean bytes can be counted as dirty again."""
    rows = Rows(index)
    rows.occupy((extent(0, 10, 7),), ResidentRow(FORMAT, 0, 0, bucket=BUCKET, key="k"), is_dirty=False)

    rows.clean((extent(0, 10, 7),), is_clean=False)

    assert rows.segment(7) == SegmentRow(FORMAT, 7, Stream.CLEAN, "", 10, 10)


def test_release_when_segment_is_not_known(index: FakeIndex) -> None:
    """A count never falls below nothing, whatever a row says of a segment that is gone."""
    rows = Rows(index)

    rows.release((extent(0, 10, 7),), is_dirty=True)

    index.write(rows.batch())
    value = index.get(Family.SEGMENTS, keys.segment_key(7))
    assert value is not None
    assert decode_segment(value) == SegmentRow(FORMAT, 7, Stream.CLEAN)


# --- typed rows and what they tell -----------------------------------------------------------------------------------


def test_dirty_when_added_changed_and_removed(index: FakeIndex) -> None:
    """The flush queue's rows read back, and each step is told in the order of the changes."""
    rows = Rows(index)
    one, two = entry("a", 1, sequence=5), entry("b", 2, sequence=6)
    changed = msgspec.structs.replace(two, attempts=1)

    rows.add_dirty(one)
    rows.add_dirty(two)
    rows.change_dirty(changed)
    rows.remove_dirty(one)

    assert rows.dirty(5) is None
    assert rows.dirty(6) == changed
    assert rows.effects.dirty_added == [one, two]
    assert rows.effects.dirty_changed == [changed]
    assert rows.effects.dirty_removed == [one]


def test_upload_and_parts_when_written_and_dropped(index: FakeIndex) -> None:
    """Uploads and parts read back, parts in the order of their numbers, and those of another upload apart."""
    rows = Rows(index)
    upload = UploadRecord(FORMAT, "u", BUCKET, "key", 1.0, "")
    parts = [part_uploaded("u", number, (extent(0, 5, number),)).part for number in (300, 2, 10)]

    rows.put_upload(upload)
    for part in parts:
        rows.put_part("u", part)
    rows.put_part("u2", parts[0])

    assert rows.upload("u") == upload
    assert [part.number for part in rows.parts("u")] == [2, 10, 300]
    assert rows.part("u", 10) == parts[2]
    rows.drop_part("u", 10)
    rows.drop_upload("u")
    assert [part.number for part in rows.parts("u")] == [2, 300]
    assert rows.upload("u") is None


def test_put_facts_when_bucket_exists_or_not(index: FakeIndex) -> None:
    """Facts of a bucket are kept, those of none only told, so that nothing remembers a bucket that is not there."""
    rows = Rows(index)
    known, gone = BucketFacts(FORMAT, BUCKET, True, 1.0), BucketFacts(FORMAT, BUCKET, False, 2.0)

    rows.put_facts(known)
    kept = rows.get(Family.BUCKETS, keys.bucket_key(BUCKET))
    rows.put_facts(gone)

    assert kept == encode(known)
    assert rows.get(Family.BUCKETS, keys.bucket_key(BUCKET)) is None
    assert rows.effects.facts == [known, gone]


def test_object_when_read_through_the_batch(index: FakeIndex) -> None:
    """An object reads as its stored record, None where there is none."""
    rows = Rows(index)
    stored = rows.put_object(BUCKET, "key", record(1, state=ObjectState.CLEAN), (extent(0, 3, 7),))

    value = rows.get(Family.OBJECTS, keys.object_key(BUCKET, "key"))

    assert value is not None
    assert decode_object(value) == stored == rows.object(BUCKET, "key")
    assert rows.object(BUCKET, "other") is None
