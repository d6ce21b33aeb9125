"""plan and merge_extents against sets of bytes; blocks are shrunk so that the sets stay small."""

from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import example, given, strategies as st

from storage import blocks, types
from storage.blocks import (
    CachedSpan,
    MissingSpan,
    cut_extent,
    join_extents,
    location_blocks,
    merge_extents,
    plan,
)
from storage.types import EXTENT_BYTES_MAX as MAX, ByteRange, Extent, Location

BLOCK = 4
SIZE = 40


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", BLOCK)
        patch.setattr(types, "BLOCK_BYTES", BLOCK)
        yield


def extent(start: int, stop: int, segment_id: int = 1) -> Extent:
    """An extent whose location starts at 1000 + start and has one checksum a block, naming its number."""
    count = -(-(stop - start) // BLOCK)
    checksums = b"".join(number.to_bytes(8) for number in range(count))
    return Extent(start, stop, Location(segment_id, 1000 + start, stop - start, checksums))


def bytes_of(extents: tuple[Extent, ...] | list[Extent]) -> set[int]:
    """All bytes that extents hold."""
    return {byte for e in extents for byte in range(e.start, e.stop)}


@st.composite
def disjoint_extents(draw: st.DrawFn) -> tuple[Extent, ...]:
    """Extents at any byte, ascending, that do not overlap."""
    cuts = sorted(draw(st.sets(st.integers(0, SIZE), max_size=8)))
    spans = list(pairwise(cuts))
    kept = draw(st.lists(st.booleans(), min_size=len(spans), max_size=len(spans)))
    return tuple(extent(a, b) for (a, b), keep in zip(spans, kept, strict=True) if keep)


@pytest.mark.slow
@given(extents=disjoint_extents(), cut=st.tuples(st.integers(0, SIZE), st.integers(0, SIZE)))
@example(extents=(), cut=(0, SIZE))
@example(extents=(extent(3, 5), extent(6, 7)), cut=(4, 9))
def test_plan_covers_the_range_exactly_when_some_of_it_is_cached(
    extents: tuple[Extent, ...], cut: tuple[int, int]
) -> None:
    """Spans are in order without gap; cached ones are cached, missing ones are not; fetches hold no cached byte (B16)."""
    wanted = ByteRange(min(cut), max(cut))
    cached = bytes_of(extents)

    spans = plan(wanted, SIZE, extents)

    assert [byte for span in spans for byte in range(span.start, span.stop)] == list(
        range(wanted.start, wanted.stop)
    )
    fetched: list[int] = []
    for span in spans:
        assert span.start < span.stop
        if isinstance(span, CachedSpan):
            assert span.file_offset == 1000 + span.start
            (home,) = [e for e in extents if e.location is span.location]
            assert home.start <= span.start < span.stop <= home.stop
        else:
            assert cached.isdisjoint(range(span.fetch_start, span.fetch_stop))
            assert span.fetch_start <= span.start < span.stop <= span.fetch_stop <= SIZE
            fetched += range(span.fetch_start, span.fetch_stop)
            # Outwards to the block, unless something cached, or the version's end, is in between.
            assert span.fetch_start % BLOCK == 0 or span.fetch_start - 1 in cached
            assert span.fetch_stop % BLOCK == 0 or span.fetch_stop in cached or span.fetch_stop == SIZE
            assert span.start - span.fetch_start < BLOCK
            assert span.fetch_stop - span.stop < BLOCK
    assert len(fetched) == len(set(fetched))
    for one, other in pairwise(spans):
        assert isinstance(one, CachedSpan) or isinstance(other, CachedSpan), "missing neighbours are one span"


def test_nothing_is_planned_when_the_range_is_empty() -> None:
    """An empty range, of an empty object too, needs nothing."""
    assert plan(ByteRange(0, 0), 0, ()) == ()
    assert plan(ByteRange(7, 7), SIZE, (extent(4, 8),)) == ()


def test_neighbouring_missing_blocks_are_one_fetch_when_nothing_lies_between() -> None:
    """One ranged GET for all blocks up to what is cached."""
    spans = plan(ByteRange(5, 30), SIZE, (extent(24, 28),))

    assert spans == (
        MissingSpan(5, 24, 4, 24),
        CachedSpan(24, 28, extent(24, 28).location, 0),
        MissingSpan(28, 30, 28, 32),
    )


def test_span_names_the_blocks_to_check_when_it_begins_within_an_extent() -> None:
    """Checksum blocks count from the location's own start."""
    (span,) = plan(ByteRange(12, 14), SIZE, (extent(3, 20),))

    assert isinstance(span, CachedSpan)
    assert (span.skip, span.file_offset, span.checked_blocks) == (9, 1012, range(2, 3))


@st.composite
def any_extents(draw: st.DrawFn) -> list[Extent]:
    """Extents that may overlap anything, each in a segment of its own."""
    spans = draw(st.lists(st.tuples(st.integers(0, SIZE - 1), st.integers(1, 15)), max_size=6))
    return [extent(a, min(SIZE, a + length), 2 + n) for n, (a, length) in enumerate(spans)]


@given(existing=disjoint_extents(), new=any_extents())
@example(existing=(extent(4, 8),), new=[extent(0, 12, 2)])
def test_merged_extents_are_disjoint_and_lose_nothing_when_new_ones_overlap(
    existing: tuple[Extent, ...], new: list[Extent]
) -> None:
    """The present ones stay as they are; new bytes are kept by whole blocks of their own; kept and dropped are all there was."""
    merged, dropped = merge_extents(existing, new)

    assert list(merged) == sorted(merged, key=lambda e: e.start)
    assert len(bytes_of(merged)) == sum(e.stop - e.start for e in merged), "disjoint"
    assert set(existing) <= set(merged)
    for candidate in new:
        pieces = [e for e in (*merged, *dropped) if e.location.segment_id == candidate.location.segment_id]
        assert sorted(byte for e in pieces for byte in range(e.start, e.stop)) == list(
            range(candidate.start, candidate.stop)
        )
        for piece in pieces:
            first = (piece.start - candidate.start) // BLOCK
            assert (piece.start - candidate.start) % BLOCK == 0
            assert piece.location.offset == 1000 + piece.start
            assert piece.location.checksums == b"".join(
                number.to_bytes(8) for number in range(first, first + -(-(piece.stop - piece.start) // BLOCK))
            )
    for lost in dropped:
        for start in range(lost.start, lost.stop, BLOCK):
            block = set(range(start, min(start + BLOCK, lost.stop)))
            others = [e for e in merged if e.location.segment_id != lost.location.segment_id]
            assert block & bytes_of(others), "a block that would have fitted was dropped"


def test_fill_of_a_gap_fits_when_it_was_planned() -> None:
    """What a plan asked for is never dropped, even where extents begin within blocks."""
    present = (extent(3, 5), extent(9, 14))
    fetches = [span for span in plan(ByteRange(0, SIZE), SIZE, present) if isinstance(span, MissingSpan)]

    merged, dropped = merge_extents(present, [extent(s.fetch_start, s.fetch_stop, 2) for s in fetches])

    assert dropped == ()
    assert bytes_of(merged) == set(range(SIZE))


@pytest.mark.parametrize(
    ("start", "stop", "expected"),
    [(0, 4, range(1)), (0, 5, range(2)), (3, 5, range(2)), (4, 8, range(1, 2)), (5, 5, range(0))],
)
def test_blocks_cover_a_span_when_counted_from_the_location(start: int, stop: int, expected: range) -> None:
    """Every block that holds one of the bytes, and no other; none for no bytes."""
    assert location_blocks(start, stop) == expected


def test_cut_keeps_checksums_when_blocks_are_taken_out() -> None:
    """A piece has its own place and its own blocks' checksums."""
    piece = cut_extent(extent(2, 12), 1, 3)

    assert piece == Extent(6, 12, Location(1, 1006, 6, (1).to_bytes(8) + (2).to_bytes(8)))


def test_neighbours_are_joined_when_they_lie_behind_each_other() -> None:
    """Two whole blocks and a bit that go on in the segment too are one extent, with the checksums of both."""
    joined = join_extents([extent(0, 4), extent(4, 10)])

    checksums = (0).to_bytes(8) + (0).to_bytes(8) + (1).to_bytes(8)
    assert joined == (Extent(0, 10, Location(1, 1000, 10, checksums)),)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (extent(0, 6), extent(6, 10)),
        (extent(0, 4), extent(5, 9)),
        (extent(0, 4), extent(4, 8, 2)),
        (extent(0, 4), Extent(4, 8, Location(1, 1008, 4, bytes(8)))),
        (Extent(0, MAX, Location(1, 0, MAX)), Extent(MAX, MAX + 4, Location(1, MAX, 4))),
    ],
    ids=["within a block", "gap in the version", "other segment", "gap in the segment", "too long"],
)
def test_neighbours_stay_apart_when_one_extent_could_not_say_the_same(one: Extent, other: Extent) -> None:
    """A checksum must go on to cover the bytes it was made of, and no extent passes the limit."""
    assert join_extents([one, other]) == (one, other)


@given(extents=disjoint_extents())
def test_joining_changes_no_byte_and_no_checksum_when_some_extents_touch(extents: tuple[Extent, ...]) -> None:
    """Every block of every extent keeps its place and its checksum."""
    joined = join_extents(extents)

    def blocks_of(all_extents: tuple[Extent, ...]) -> set[tuple[int, int, int, int]]:
        return {
            (
                e.start + n * BLOCK,
                e.location.segment_id,
                e.location.offset + n * BLOCK,
                e.location.checksum(n),
            )
            for e in all_extents
            for n in range(e.location.block_count())
        }

    assert blocks_of(joined) == blocks_of(extents)
    assert bytes_of(joined) == bytes_of(extents)
