"""Keys of index rows: their bytes, their order, and the way back."""

import msgspec
import pytest
from hypothesis import assume, given, strategies as st

from storage import keys
from storage.types import ObjectName

U64 = st.integers(0, 2**64 - 1)
TEXT = st.text(max_size=12)
BUCKETS = st.text(alphabet="abcz019-.", min_size=1, max_size=8)
UPLOAD_IDS = st.text(alphabet="abcXYZ019-_", min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("bucket", "key", "expected"),
    [
        ("bucket", "key", 3158),
        ("bucket", "", 3308),
        ("bucket", "a/b c+%2F//../d", 1441),
        ("bucket", "ü/日本.bin", 1328),
        ("training-data", "shards/000001.tar", 1586),
    ],
)
def test_slot_when_compared_with_vectors(bucket: str, key: str, expected: int) -> None:
    """A slot is xxh64 with seed 0 over the raw path, low 12 bits: other machines compute the same."""
    assert keys.slot(bucket, key) == expected


@given(bucket=BUCKETS, key=TEXT)
def test_slot_when_any_object_is_named(bucket: str, key: str) -> None:
    """Every slot is one of 4096."""
    assert 0 <= keys.slot(bucket, key) < 4096


def test_keys_when_written_down() -> None:
    """The bytes of each kind of key are those of the first format."""
    assert keys.object_key("b", "k/é\x00z") == b"b\x00k/\xc3\xa9\x00z"
    assert keys.extents_key(1, 2**20) == bytes.fromhex("0000000000000001 0000000000100000")
    assert keys.dirty_key(258) == bytes.fromhex("0000000000000102")
    assert keys.upload_key("u1") == b"u1"
    assert keys.part_key("u1", 10_000) == b"u1\x00\x00\x00\x27\x10"
    assert keys.segment_key(keys.segment_id(1, 2)) == bytes.fromhex("0001000000000002")
    assert keys.resident_key(3, 4) == bytes.fromhex("0000000000000003 0000000000000004")
    assert keys.bucket_key("b") == b"b"


@given(
    bucket=BUCKETS,
    key=TEXT,
    numbers=st.tuples(U64, U64),
    upload_id=UPLOAD_IDS,
    part=st.integers(0, 2**32 - 1),
)
def test_split_when_built_before(
    bucket: str, key: str, numbers: tuple[int, int], upload_id: str, part: int
) -> None:
    """What a key was built from is read back from it."""
    assert keys.split_object_key(keys.object_key(bucket, key)) == ObjectName(bucket, key)
    assert keys.split_extents_key(keys.extents_key(*numbers)) == numbers
    assert keys.split_dirty_key(keys.dirty_key(numbers[0])) == numbers[0]
    assert keys.split_upload_key(keys.upload_key(upload_id)) == upload_id
    assert keys.split_part_key(keys.part_key(upload_id, part)) == (upload_id, part)
    assert keys.split_segment_key(keys.segment_key(numbers[0])) == numbers[0]
    assert keys.split_resident_key(keys.resident_key(*numbers)) == numbers
    assert keys.split_bucket_key(keys.bucket_key(bucket)) == bucket


@given(first=st.tuples(U64, U64), second=st.tuples(U64, U64))
def test_number_keys_when_ordered(first: tuple[int, int], second: tuple[int, int]) -> None:
    """Keys of numbers sort as the numbers do."""
    assert (keys.extents_key(*first) < keys.extents_key(*second)) == (first < second)
    assert (keys.resident_key(*first) < keys.resident_key(*second)) == (first < second)
    assert (keys.dirty_key(first[0]) < keys.dirty_key(second[0])) == (first[0] < second[0])


@given(bucket=BUCKETS, first=TEXT, second=TEXT)
def test_object_keys_when_ordered(bucket: str, first: str, second: str) -> None:
    """Keys of one bucket sort by their UTF-8 bytes, the order of an S3 listing."""
    assert (keys.object_key(bucket, first) < keys.object_key(bucket, second)) == (
        first.encode() < second.encode()
    )


@given(bucket=BUCKETS, prefix=TEXT, other=st.tuples(BUCKETS, TEXT))
def test_prefix_range_when_compared_with_startswith(bucket: str, prefix: str, other: tuple[str, str]) -> None:
    """The range holds the bucket's keys that start with the prefix, and no others."""
    start, stop = keys.prefix_range(bucket, prefix)

    for name in (other, (bucket, other[1]), (bucket, prefix + other[1]), (bucket, prefix)):
        expected = name[0] == bucket and name[1].startswith(prefix)
        assert (start <= keys.object_key(*name) < stop) == expected


def test_prefix_range_when_prefix_ends_in_the_last_character() -> None:
    """The highest code point at the end of a prefix does not spill into the next bucket."""
    start, stop = keys.prefix_range("b", "k\U0010ffff")

    assert start == b"b\x00k\xf4\x8f\xbf\xbf"
    assert stop == b"b\x00k\xf4\x8f\xbf\xc0"


@pytest.mark.parametrize(
    ("prefix", "expected"),
    [
        (b"a", b"b"),
        (b"a\xff", b"b"),
        (b"a\xff\xff", b"b"),
        (b"\x00", b"\x01"),
        (b"\xff\xff", None),
        (b"", None),
    ],
)
def test_after_prefix_when_at_the_edges(prefix: bytes, expected: bytes | None) -> None:
    """A prefix of all ones, or none, has nothing above it; trailing ones carry."""
    assert keys.after_prefix(prefix) == expected


@given(prefix=st.binary(max_size=4), candidate=st.binary(max_size=6))
def test_after_prefix_when_compared_with_startswith(prefix: bytes, candidate: bytes) -> None:
    """Bytes lie between a prefix and what is after it exactly if they start with it."""
    stop = keys.after_prefix(prefix)

    assert (prefix <= candidate and (stop is None or candidate < stop)) == candidate.startswith(prefix)


@given(owner=U64, other=U64, second=U64)
def test_number_ranges_when_compared_with_equality(owner: int, other: int, second: int) -> None:
    """The range of a version's extents, and of a segment's residents, holds all of its rows and no other's."""
    for build, bound in ((keys.extents_key, keys.extents_range), (keys.resident_key, keys.residents_range)):
        start, stop = bound(owner)
        assert start <= build(owner, second) < stop
        assert (start <= build(other, second) < stop) == (other == owner)


@pytest.mark.parametrize("number", [0, 1, 2**64 - 1])
def test_number_ranges_when_at_the_edges(number: int) -> None:
    """The least and the greatest ids keep their rows in range."""
    start, stop = keys.extents_range(number)

    assert start <= keys.extents_key(number, 0) < keys.extents_key(number, 2**64 - 1) < stop


@given(upload_id=UPLOAD_IDS, other=UPLOAD_IDS, number=st.integers(0, 2**32 - 1))
def test_parts_range_when_compared_with_equality(upload_id: str, other: str, number: int) -> None:
    """The range of an upload holds its parts and none of an upload whose id begins alike."""
    start, stop = keys.parts_range(upload_id)

    assert start <= keys.part_key(upload_id, number) < stop
    assert (start <= keys.part_key(other, number) < stop) == (other == upload_id)


@given(node=st.integers(0, 2**16 - 1), counter=st.integers(0, 2**48 - 1))
def test_segment_id_when_split(node: int, counter: int) -> None:
    """Node and counter are read back from the id, which fits 64 bits."""
    segment = keys.segment_id(node, counter)

    assert (keys.segment_node(segment), keys.segment_counter(segment)) == (node, counter)
    assert 0 <= segment < 2**64


@pytest.mark.parametrize(("node", "counter"), [(-1, 0), (2**16, 0), (0, -1), (0, 2**48)])
def test_segment_id_when_out_of_range(node: int, counter: int) -> None:
    """A number that does not fit its field is a bug, never another node's id."""
    with pytest.raises(AssertionError, match="out of range"):
        keys.segment_id(node, counter)


def test_keys_when_a_separator_is_in_a_name() -> None:
    """A bucket or an upload id with a NUL would look like another row; it is refused."""
    with pytest.raises(AssertionError, match="not a shelf"):
        keys.object_key("a\x00b", "k")
    with pytest.raises(AssertionError, match="not an upload id"):
        keys.part_key("a\x00b", 1)


@given(st.text(max_size=8), st.text(max_size=8), st.text(min_size=1, max_size=8), st.text(max_size=4))
def test_rows_of_versions_meet_no_plain_key(key: str, other: str, version_id: str, prefix: str) -> None:
    """A version's row reads back, is no plain key's whatever that is, and lies in no range of its bucket's keys."""
    assume("\x00" not in version_id)
    name = ObjectName("bucket", key, version_id)

    row_key = keys.object_key(name.shelf, name.key)

    assert keys.split_object_key(row_key) == name
    assert row_key != keys.object_key("bucket", other)
    start, stop = keys.prefix_range("bucket", prefix)
    assert not start <= row_key < stop
    assert name.plain.shelf == "bucket"


def test_rows_of_versions_are_each_their_own() -> None:
    """Ids and keys that could run into each other name different rows; a plain key is where it was in old directories."""
    names = [("b", "k", ""), ("b", "k", "v"), ("b", "v\x00k", ""), ("b", "k", "v\x01"), ("b", "\x01k", "v")]

    rows = [keys.object_key(ObjectName(*name).shelf, name[1]) for name in names]

    assert len(set(rows)) == len(rows)
    assert rows[0] == b"b\x00k"
    assert [tuple(msgspec.structs.astuple(keys.split_object_key(row))) for row in rows] == names
