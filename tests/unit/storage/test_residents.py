"""What is known of a segment's extents: each byte once, whichever way it came to be known."""

from itertools import pairwise

from hypothesis import given, strategies as st

from storage.pins import HIGH, PINNED, Pins
from storage.residents import SegmentResidents
from storage.types import KIB

ADDED = st.lists(
    st.tuples(st.integers(0, 30), st.integers(1, 20), st.sampled_from([PINNED, HIGH])),
    max_size=40,
)


def residents_of(*added: tuple[int, int, int]) -> SegmentResidents:
    """Remember extents of so many KiB from so many KiB on, with these tags, one after the other."""
    residents = SegmentResidents(0, Pins(1 << 30))
    for number, (offset, length, tag) in enumerate(added):
        residents.add(offset * KIB, length * KIB, number, number, 0, tag)
    return residents


def spans(residents: SegmentResidents) -> list[tuple[int, int]]:
    """Give offset and length of what is known, in KiB."""
    return [(o // KIB, n // KIB) for o, n in zip(residents.offsets, residents.lengths, strict=True)]


def test_a_grain_takes_the_place_of_the_smaller_ones_that_it_covers() -> None:
    """Whether it begins with one of them and grows, or is new; what was known beyond its end stays."""
    small = [(0, 4, PINNED), (8, 4, PINNED), (16, 8, PINNED)]

    grown = residents_of(*small, (0, 20, PINNED))
    new = residents_of(*small, (4, 16, PINNED))

    assert spans(grown) == [(0, 20), (20, 4)]
    assert spans(new) == [(0, 4), (4, 16), (20, 4)]
    assert grown.stamps[0] == 0
    for residents in (grown, new):
        assert residents.known_bytes == residents.pinned_bytes == residents.pins.held_bytes == 24 * KIB


def test_a_grain_that_is_covered_no_more_pinned_is_counted_out() -> None:
    """The tag of what takes their place is the one that counts."""
    residents = residents_of((0, 4, PINNED), (4, 4, PINNED), (0, 8, HIGH))

    assert (residents.known_bytes, residents.pinned_bytes, residents.pins.held_bytes) == (8 * KIB, 0, 0)


@given(added=ADDED)
def test_what_is_known_never_overlaps_and_is_counted_once(added: list[tuple[int, int, int]]) -> None:
    """Whatever is added in whatever order: columns in order, and the counts are their sums."""
    residents = residents_of(*added)

    known = spans(residents)
    assert all(a + n <= b for (a, n), (b, _) in pairwise(known))
    columns = (residents.identities, residents.stamps, residents.codes, residents.tags)
    assert {len(column) for column in columns} == {len(known)}
    assert residents.known_bytes == sum(residents.lengths)
    pinned = sum(n for n, tag in zip(residents.lengths, residents.tags, strict=True) if tag == PINNED)
    assert residents.pinned_bytes == residents.pins.held_bytes == pinned
