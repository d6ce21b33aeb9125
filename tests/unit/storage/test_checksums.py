"""Block checksums and the memory of checked blocks."""

import pytest
from hypothesis import given, strategies as st

from storage.checksums import BlockChecksums, VerifiedBlocks, block_matches, block_range, checksums
from storage.types import BLOCK_BYTES, Location

EMPTY_BLOCK = bytes(BLOCK_BYTES)


def place(*, segment_id: int = 1, offset: int = 0, length: int, sums: bytes = b"") -> Location:
    """Name a place."""
    return Location(segment_id, offset, length, sums)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ""),
        (b"forebay", "37943e07b6564785"),
        (EMPTY_BLOCK, "918780b90550bf34"),
        (EMPTY_BLOCK + b"forebay", "918780b90550bf3437943e07b6564785"),
    ],
)
def test_checksums_when_compared_with_vectors(data: bytes, expected: str) -> None:
    """There is one big-endian XXH3-64 a block, and none for no bytes: the form on disk."""
    assert checksums(data).hex() == expected


@given(cuts=st.lists(st.integers(0, 2 * BLOCK_BYTES + 5), max_size=6), asks=st.booleans())
def test_block_checksums_when_fed_in_pieces(cuts: list[int], asks: bool) -> None:
    """The pieces in which bytes arrive, and digests taken in between, do not show in the checksums."""
    data = b"0123456789abcdef" * (BLOCK_BYTES // 8) + b"tail!"
    gathered = BlockChecksums()

    for start, stop in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        gathered.update(memoryview(data)[start:stop])
        if asks:
            gathered.digest()

    assert gathered.digest() == checksums(data)
    assert len(gathered.digest()) == 24


def test_block_range_when_last_block_is_short() -> None:
    """Blocks are counted from the location's start; the last one ends with it."""
    location = place(offset=12_345, length=BLOCK_BYTES + 7)

    assert (block_range(location, 0).start, block_range(location, 0).stop) == (0, BLOCK_BYTES)
    assert (block_range(location, 1).start, block_range(location, 1).stop) == (BLOCK_BYTES, BLOCK_BYTES + 7)
    with pytest.raises(AssertionError, match="has no block 2"):
        block_range(location, 2)


def test_block_matches_when_bytes_differ() -> None:
    """A changed bit, a missing byte, another block's bytes and a location without checksums do not match."""
    data = EMPTY_BLOCK + b"tail"
    location = place(length=len(data), sums=checksums(data))

    assert block_matches(location, 0, EMPTY_BLOCK)
    assert block_matches(location, 1, b"tail")
    assert not block_matches(location, 1, b"tait")
    assert not block_matches(location, 1, b"tai")
    assert not block_matches(location, 0, b"tail")
    assert not block_matches(place(length=4), 0, b"tail")


def test_verified_blocks_when_short_ones_share_a_unit() -> None:
    """Two short blocks within one block's length of each other are told apart, as are two segments."""
    verified = VerifiedBlocks(short_blocks_max=9)

    verified.add(place(offset=100, length=50), 0)

    assert (place(offset=100, length=50), 0) in verified
    assert (place(offset=150, length=50), 0) not in verified
    assert (place(segment_id=2, offset=100, length=50), 0) not in verified


def test_verified_blocks_when_whole_ones_are_not_aligned() -> None:
    """Whole blocks at any offset, and the short one behind them, are remembered one by one."""
    verified = VerifiedBlocks(short_blocks_max=9)
    location = place(offset=100, length=3 * BLOCK_BYTES + 5)

    verified.add(location, 1)
    verified.add(location, 3)

    assert [(location, block) in verified for block in range(4)] == [False, True, False, True]


def test_verified_blocks_when_bound_is_reached() -> None:
    """Over the bound the segment seen first is forgotten, the others are not; whole blocks do not count."""
    verified = VerifiedBlocks(short_blocks_max=3)
    verified.add(place(segment_id=9, length=BLOCK_BYTES), 0)
    for segment_id, offset in ((1, 0), (1, 10), (2, 0), (2, 0), (2, 10)):
        verified.add(place(segment_id=segment_id, offset=offset, length=5), 0)

    known = [(place(segment_id=s, offset=o, length=5), 0) in verified for s in (1, 2) for o in (0, 10)]

    assert known == [False, False, True, True]
    assert (place(segment_id=9, length=BLOCK_BYTES), 0) in verified


def test_verified_blocks_when_segment_is_forgotten() -> None:
    """A forgotten segment's blocks are unknown, and their room is free again."""
    verified = VerifiedBlocks(short_blocks_max=1)
    verified.add(place(length=BLOCK_BYTES), 0)
    verified.add(place(length=5), 0)

    verified.forget(1)
    verified.add(place(segment_id=2, length=5), 0)

    assert (place(length=BLOCK_BYTES), 0) not in verified
    assert (place(length=5), 0) not in verified
    assert (place(segment_id=2, length=5), 0) in verified


BLOCKS = st.lists(st.tuples(st.integers(1, 2), st.sampled_from([5, 700_000, BLOCK_BYTES])), max_size=12)


@pytest.mark.slow
@given(blocks=BLOCKS, added=st.sets(st.integers(0, 11)))
def test_verified_blocks_when_compared_with_a_set(blocks: list[tuple[int, int]], added: set[int]) -> None:
    """Of blocks appended one after the other, those are known that were added, and no other."""
    ends = {1: 0, 2: 0}
    locations: list[Location] = []
    for segment_id, length in blocks:
        locations.append(place(segment_id=segment_id, offset=ends[segment_id], length=length))
        ends[segment_id] += length
    verified = VerifiedBlocks(short_blocks_max=99)

    for index in added & set(range(len(blocks))):
        verified.add(locations[index], 0)

    assert [(location, 0) in verified for location in locations] == [i in added for i in range(len(blocks))]
