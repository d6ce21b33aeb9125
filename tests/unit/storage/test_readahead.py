"""What is begun ahead of a reader: no socket, no fill, only decisions."""

import pytest
from hypothesis import given, strategies as st

from storage.readahead import (
    BEHIND_READS,
    GAP_BYTES_MAX,
    LONG_PIECES,
    PIECE_MEMORY_BYTES,
    RUNS_MAX,
    SEEN_BYTES_MIN,
    SEEN_READS_MIN,
    UNREAD_MAX,
    VERSIONS_MAX,
    ReadaheadSettings,
    Run,
    Runs,
    Unread,
    Window,
)
from storage.types import BLOCK_BYTES, GIB, KIB, MIB

SETTINGS = ReadaheadSettings()
PIECE = SETTINGS.piece_bytes


def run_of(runs: Runs, start: int, length: int, reads: int, version_id: int = 1) -> Run:
    """Note reads of `length` bytes, one behind the other."""
    run = Run(0, 0)
    for number in range(reads):
        run = runs.note(version_id, start + number * length, start + (number + 1) * length)
    return run


# --- settings ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("memory_bytes", "cache_bytes", "is_on"),
    [
        (48 * MIB, GIB, True),
        (0, GIB, False),
        (PIECE_MEMORY_BYTES - 1, GIB, False),
        (48 * MIB, 127 * MIB, False),
    ],
)
def test_readahead_is_on_where_memory_and_cache_have_room_for_it(
    memory_bytes: int, cache_bytes: int, *, is_on: bool
) -> None:
    """0 turns it off, and so does a cache in which a window would push out what it just brought."""
    assert ReadaheadSettings(memory_bytes).fitted(cache_bytes).is_on is is_on


def test_a_piece_is_whole_blocks() -> None:
    """Extents end with blocks, so pieces do."""
    with pytest.raises(ValueError, match="whole blocks"):
        ReadaheadSettings(piece_bytes=BLOCK_BYTES + 1)


@given(readers=st.integers(1, 1000))
def test_shares_of_all_readers_stay_within_the_bound(readers: int) -> None:
    """Nobody has nothing; and where the shares are whole they add up to no more than there is."""
    share = SETTINGS.share(readers)

    assert share >= 1
    assert share == 1 or share * readers <= SETTINGS.pieces_max


@given(start=st.integers(0, GIB), length=st.integers(1, GIB), is_aided=st.booleans())
def test_a_readers_own_request_goes_to_a_boundary_of_pieces_or_to_the_end(
    start: int, length: int, *, is_aided: bool
) -> None:
    """So that what lies behind it are whole pieces; it is never much shorter than one."""
    stop = SETTINGS.first_stop(start, start + length, is_aided=is_aided)

    assert start < stop <= start + length
    assert stop == start + length or (stop % PIECE == 0 and stop - start >= PIECE // 2)


# --- evidence ------------------------------------------------------------------------------------------------------------


def test_a_run_is_evidence_after_some_reads_and_bytes() -> None:
    """Two neighbouring reads are chance, and a few kilobytes are not worth a request."""
    assert run_of(Runs(), 0, 8 * MIB, SEEN_READS_MIN - 1).seen_bytes == 0
    assert run_of(Runs(), 0, 8 * MIB, SEEN_READS_MIN).seen_bytes == 8 * MIB * SEEN_READS_MIN
    assert run_of(Runs(), 0, 64 * KIB, SEEN_READS_MIN).seen_bytes == 0
    assert run_of(Runs(), 0, 64 * KIB, SEEN_BYTES_MIN // (64 * KIB)).seen_bytes == SEEN_BYTES_MIN


def test_reads_that_skip_a_little_are_one_run_and_what_they_skip_is_not_counted() -> None:
    """The members of an archive, read one after the other without their headers."""
    runs = Runs()
    member, gap = MIB, GAP_BYTES_MAX
    run = Run(0, 0)
    for number in range(8):
        start = number * (member + gap)
        run = runs.note(1, start, start + member)

    assert run.seen_bytes == 8 * member


def test_parallel_reads_that_come_out_of_order_are_one_run() -> None:
    """A client with ten connections asks for the next ranges in the order in which its threads wake up."""
    runs = Runs()
    run = Run(0, 0)
    for number in (1, 0, 2, 4, 3, 5, 7, 6):
        run = runs.note(1, number * 8 * MIB, (number + 1) * 8 * MIB)

    assert run.stop == 64 * MIB
    assert run.seen_bytes == 56 * MIB


def test_reads_that_skip_most_of_what_they_go_over_are_no_evidence() -> None:
    """One column of a table: what lies between would be brought for nothing."""
    runs = Runs()
    run = Run(0, 0)
    for number in range(20):
        run = runs.note(1, number * 3 * MIB, number * 3 * MIB + MIB)

    assert run.reads == 20
    assert run.seen_bytes == 0


def test_reading_the_same_bytes_again_is_no_evidence() -> None:
    """A header that is read many times says nothing of what lies behind it."""
    runs = Runs()
    run = Run(0, 0)
    for _ in range(20):
        run = runs.note(1, 0, 2 * MIB)

    assert run.seen_bytes == 0


def test_a_second_pass_from_the_beginning_is_another_run() -> None:
    """The end of the first pass is no place of the second one."""
    runs = Runs()
    first = run_of(runs, 0, MIB, 100)

    second = run_of(runs, 0, MIB, 5)

    assert first.stop == 100 * MIB
    assert (second.stop, second.seen_bytes) == (5 * MIB, 5 * MIB)
    assert first.stop > BEHIND_READS * MIB


@given(starts=st.lists(st.integers(0, 100 * MIB), min_size=1, max_size=60), length=st.integers(1, 256 * KIB))
def test_random_short_reads_are_no_evidence_to_speak_of(starts: list[int], length: int) -> None:
    """Samples within a shard: what would be begun is never more than what was asked for."""
    runs = Runs()
    asked_bytes = 0
    for start in starts:
        asked_bytes += length
        assert runs.note(1, start, start + length).seen_bytes <= asked_bytes


def test_what_is_remembered_is_bounded() -> None:
    """Neither many places of one version nor many versions are kept without end; the oldest go."""
    runs = Runs()
    for number in range(3 * RUNS_MAX):
        runs.note(1, number * 64 * MIB, number * 64 * MIB + 1)
    for version_id in range(2, VERSIONS_MAX + 100):
        runs.note(version_id, 0, 1)

    assert len(runs) == VERSIONS_MAX
    assert run_of(runs, 0, MIB, 5, version_id=1).reads == 5


# --- windows -------------------------------------------------------------------------------------------------------------


def test_a_long_range_has_pieces_ahead_of_its_first_byte_and_more_as_it_is_read() -> None:
    """What was asked for is begun at once, a little; a reader that goes on has the whole window soon."""
    window = Window(SETTINGS, 0, GIB, GIB, 0)

    assert window.goal(0) == (3 * PIECE, PIECE)
    assert window.goal(PIECE).stop == PIECE + 5 * PIECE
    assert window.goal(256 * MIB).stop == 256 * MIB + SETTINGS.window_bytes_max


def test_a_range_of_some_mebibytes_is_one_request() -> None:
    """A small object costs one request, and so does a range of the usual size."""
    assert not SETTINGS.is_long(LONG_PIECES * PIECE)
    assert Window(SETTINGS, 0, LONG_PIECES * PIECE, GIB, 0).goal(0).stop == 0


def test_a_long_range_is_not_read_beyond_its_end() -> None:
    """Without a run before it nothing says that more will be wanted."""
    window = Window(SETTINGS, 0, 64 * MIB, GIB, 0)

    assert window.goal(60 * MIB).stop == 64 * MIB


def test_a_run_has_as_much_ahead_as_it_has_asked_for() -> None:
    """So it doubles, up to the window; and in requests of half of it, at least a block."""
    short = Window(SETTINGS, 4 * MIB, 4 * MIB + 100 * KIB, GIB, 4 * MIB)
    long = Window(SETTINGS, 512 * MIB, 513 * MIB, GIB, 512 * MIB)

    assert short.goal(4 * MIB) == (8 * MIB, 2 * MIB)
    assert long.goal(512 * MIB) == (512 * MIB + SETTINGS.window_bytes_max, PIECE)


def test_a_window_that_was_closed_opens_with_what_is_read() -> None:
    """After a failure nothing is begun at once, and the window grows anew."""
    window = Window(SETTINGS, 0, GIB, GIB, 0)

    window.close(100 * MIB)

    assert window.goal(100 * MIB).stop == 100 * MIB
    assert window.goal(104 * MIB).stop == 112 * MIB


@given(
    start=st.integers(0, 300 * MIB),
    length=st.integers(1, 300 * MIB),
    behind=st.integers(0, 300 * MIB),
    seen_bytes=st.one_of(st.just(0), st.integers(SEEN_BYTES_MIN, GIB)),
    steps=st.lists(st.integers(0, 40 * MIB), max_size=20),
    closed_after=st.integers(0, 20),
)
def test_never_more_than_the_window_is_ahead(
    start: int, length: int, behind: int, seen_bytes: int, steps: list[int], closed_after: int
) -> None:
    """Whatever a reader does: within the window, within the object, within its range where no run says otherwise."""
    stop, size = start + length, start + length + behind
    window = Window(SETTINGS, start, stop, size, seen_bytes)
    position = start

    for number, step in enumerate(steps):
        if number == closed_after:
            window.close(position)
        goal = window.goal(position)
        assert position <= goal.stop <= min(size, position + SETTINGS.window_bytes_max)
        assert seen_bytes or goal.stop <= stop or goal.stop == position
        assert goal.piece_bytes % BLOCK_BYTES == 0
        assert BLOCK_BYTES <= goal.piece_bytes <= PIECE
        position = min(stop - 1, position + step)


# --- pieces without a reader ---------------------------------------------------------------------------------------------


def test_a_piece_counts_once_as_used_whatever_part_of_it_is_read() -> None:
    """A piece waits until a read touches it; another version's does not."""
    unread = Unread()
    unread.add(1, 0, 8 * MIB)
    unread.add(1, 8 * MIB, 12 * MIB)

    assert unread.read(2, 0, GIB) == 0
    assert unread.read(1, 8 * MIB - 1, 8 * MIB) == 8 * MIB
    assert unread.read(1, 0, 8 * MIB) == 0
    assert unread.read(1, 0, GIB) == 4 * MIB
    assert len(unread) == 0


def test_a_piece_that_nobody_reads_is_forgotten_for_a_newer_one() -> None:
    """What is remembered is bounded; what is forgotten was wasted."""
    unread = Unread()

    given_up = [unread.add(number, 0, MIB) for number in range(UNREAD_MAX + 3)]

    assert sum(given_up) == 3 * MIB
    assert len(unread) == UNREAD_MAX
    assert unread.read(0, 0, MIB) == 0
