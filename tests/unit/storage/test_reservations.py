"""How bodies are cut, and how promised space is counted."""

import pytest
from hypothesis import given, strategies as st

from storage.errors import DiskFullError
from storage.reservations import Piece, Space, cut_body, growth_bytes
from storage.types import BLOCK_BYTES, EXTENT_BYTES_MAX, MIB


def cut(length: int, *, room_bytes: int, segment_bytes: int) -> list[tuple[int, bool]]:
    """Cut a body; say length and whether a segment is opened."""
    pieces = cut_body(length, room_bytes=room_bytes, segment_bytes=segment_bytes)
    return [(piece.length, piece.opens_segment) for piece in pieces]


@pytest.mark.parametrize(
    ("length", "room_bytes", "segment_bytes", "expected"),
    [
        (0, 0, 4 * MIB, []),
        (5, 0, 4 * MIB, [(5, True)]),
        (5, 5, 4 * MIB, [(5, False)]),
        (5, 4, 4 * MIB, [(5, False)]),
        (MIB, MIB - 1, 4 * MIB, [(MIB, False)]),
        (MIB + 1, MIB, 4 * MIB, [(MIB, False), (1, True)]),
        (MIB + 1, MIB - 1, 4 * MIB, [(MIB, False), (1, True)]),
        (5, -7, 4 * MIB, [(5, True)]),
        (3 * MIB, 2 * MIB + 7, 4 * MIB, [(3 * MIB, False)]),
        (9 * MIB + 3, 0, 4 * MIB, [(4 * MIB, True), (4 * MIB, True), (MIB + 3, True)]),
        (5 * MIB, 0, 2 * MIB + 9, [(3 * MIB, True), (2 * MIB, True)]),
        (150 * MIB, 0, 256 * MIB, [(64 * MIB, True), (64 * MIB, False), (22 * MIB, False)]),
    ],
)
def test_cut_body_when_segments_end(
    length: int, room_bytes: int, segment_bytes: int, expected: list[tuple[int, bool]]
) -> None:
    """A body fills the segment it begins in, goes over its end by less than a block, and is cut at blocks of its own only."""
    assert cut(length, room_bytes=room_bytes, segment_bytes=segment_bytes) == expected


@given(
    length=st.integers(0, 300 * MIB),
    room_bytes=st.integers(0, 100 * MIB),
    segment_bytes=st.integers(MIB, 100 * MIB),
)
def test_cut_body_when_any_body_comes(length: int, room_bytes: int, segment_bytes: int) -> None:
    """Pieces add up to the body, pass no end by a block, keep blocks whole, and open a segment only for want of room."""
    room_bytes = min(room_bytes, segment_bytes)

    pieces = tuple(cut_body(length, room_bytes=room_bytes, segment_bytes=segment_bytes))

    assert sum(piece.length for piece in pieces) == length
    assert all(0 < piece.length <= EXTENT_BYTES_MAX for piece in pieces)
    assert all(piece.length % BLOCK_BYTES == 0 for piece in pieces[:-1])
    assert length > BLOCK_BYTES or len(pieces) <= 1
    room = room_bytes
    for piece in pieces:
        if piece.opens_segment:
            assert room <= 0
            room = segment_bytes
        assert piece.length < room + BLOCK_BYTES
        room -= piece.length


@pytest.mark.parametrize(
    ("pieces", "room_bytes", "expected"),
    [
        ([], 3, 0),
        ([(2, False)], 3, 0),
        ([(2, True)], 0, 10),
        ([(2, True)], 1, 9),
        ([(5, False)], 3, 2),
        ([(13, True)], 0, 13),
        ([(2, True)], -4, 10),
        ([(3, False), (2, True)], 3, 10),
        ([(3, False), (9, True), (4, True), (1, False)], 4, 9 + 10 - 1),
    ],
)
def test_growth_bytes_when_segments_open(
    pieces: list[tuple[int, bool]], room_bytes: int, expected: int
) -> None:
    """An open segment counts whole, a sealed one as it is filled: what its end has left is given back."""
    cut_pieces = tuple(Piece(length, opens) for length, opens in pieces)

    assert growth_bytes(cut_pieces, room_bytes=room_bytes, segment_bytes=10) == expected


def sampled(free_bytes: int, *, capacity_bytes: int = 1000, disk_reserve_bytes: int = 0) -> Space:
    """Make a space whose disk was looked at once."""
    space = Space(capacity_bytes=capacity_bytes, disk_reserve_bytes=disk_reserve_bytes)
    space.end_sample(space.begin_sample(), free_bytes)
    return space


def test_check_when_capacity_would_be_passed() -> None:
    """Growth up to the capacity is allowed, a byte more is not."""
    space = sampled(10_000)
    space.adopt(700)

    space.check(length=1, growth=200, open_tails_bytes=100)
    with pytest.raises(DiskFullError, match="700 of 1000 are used"):
        space.check(length=1, growth=201, open_tails_bytes=100)
    assert space.room_bytes(open_tails_bytes=100) == 200


def test_check_when_disk_reserve_would_be_touched() -> None:
    """A body may take what the disk has above its reserve, and not a byte more."""
    space = sampled(500, disk_reserve_bytes=300)

    space.check(length=200, growth=0, open_tails_bytes=0)
    with pytest.raises(DiskFullError, match="above its reserve"):
        space.check(length=201, growth=0, open_tails_bytes=0)


def test_check_when_disk_was_never_looked_at() -> None:
    """Nothing is promised before the first look at the disk."""
    with pytest.raises(DiskFullError):
        Space(capacity_bytes=1000, disk_reserve_bytes=0).check(length=1, growth=0, open_tails_bytes=0)


def test_disk_room_when_promised_bytes_are_written() -> None:
    """Promised bytes lessen the room once, whether they are written or not when the disk is looked at."""
    space = sampled(500)
    space.promise(100)
    assert space.disk_room_bytes == 400

    space.end_sample(space.begin_sample(), 500)  # nothing is written yet
    assert space.disk_room_bytes == 400
    space.settle(60)  # written
    space.end_sample(space.begin_sample(), 440)
    assert space.disk_room_bytes == 400
    space.settle(40)  # given up
    space.end_sample(space.begin_sample(), 440)
    assert space.disk_room_bytes == 440


def test_disk_room_when_much_happens_during_a_look() -> None:
    """What is written or promised while the disk is looked at is counted at least once."""
    space = sampled(500)
    space.promise(100)

    begun = space.begin_sample()
    space.settle(100)  # written after the disk was read: its 500 do not show it
    space.promise(30)
    space.end_sample(begun, 500)

    assert space.disk_room_bytes == 370


def test_fill_disk_when_write_found_it_full() -> None:
    """After ENOSPC nothing is promised until a look at the disk finds room."""
    space = sampled(500)

    space.fill_disk()

    with pytest.raises(DiskFullError):
        space.check(length=1, growth=0, open_tails_bytes=0)
    space.end_sample(space.begin_sample(), 5)
    space.check(length=5, growth=0, open_tails_bytes=0)
