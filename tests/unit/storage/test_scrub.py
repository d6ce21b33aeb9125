"""The scrub's order and pace."""

from storage.scrub import Pace, Phase, Position
from storage.types import MIB


def test_position_goes_through_the_phases_when_each_has_ended() -> None:
    """What only this gateway has comes before what is also at the origin; then the round is over."""
    position: Position | None = Position()
    phases: list[Phase] = []
    while position is not None:
        phases.append(position.phase)
        position = position.next_phase()

    assert phases == [Phase.DIRTY, Phase.PARTS, Phase.CLEAN]


def test_position_goes_on_behind_a_row() -> None:
    """The next row is the first above the last one read."""
    assert Position(Phase.CLEAN).behind(b"\x01\xff") == Position(Phase.CLEAN, b"\x01\xff\x00")


def test_pace_allows_nothing_before_time_has_passed() -> None:
    """The first block waits for its bytes."""
    pace = Pace(8 * MIB, now_s=100.0)

    assert not pace.allow(100.0, is_busy=False)
    assert pace.allow(100.1, is_busy=False)


def test_pace_keeps_to_its_bytes_when_it_is_asked_all_the_time() -> None:
    """Over 10 seconds at 8 MiB/s some 80 blocks of 1 MiB are allowed."""
    pace, blocks = Pace(8 * MIB, now_s=0.0), 0
    for tick in range(1000):
        if pace.allow(tick / 100, is_busy=False):
            pace.spend(MIB)
            blocks += 1

    assert 79 <= blocks <= 81


def test_pace_is_a_quarter_when_clients_are_served() -> None:
    """The disk is theirs first."""
    pace, blocks = Pace(8 * MIB, now_s=0.0), 0
    for tick in range(1000):
        if pace.allow(tick / 100, is_busy=True):
            pace.spend(MIB)
            blocks += 1

    assert 19 <= blocks <= 21


def test_pace_saves_up_a_second_at_most_when_it_was_not_asked() -> None:
    """A pause of an hour is not followed by a burst of an hour's bytes."""
    pace = Pace(8 * MIB, now_s=0.0)
    blocks = 0
    while pace.allow(3600.0, is_busy=False):
        pace.spend(MIB)
        blocks += 1

    assert blocks == 8


def test_pace_gets_there_when_a_second_is_less_than_a_block() -> None:
    """A block is read, and paid back before the next."""
    pace = Pace(1024, now_s=0.0)

    assert pace.allow(1.0, is_busy=False)
    pace.spend(MIB)

    assert not pace.allow(2.0, is_busy=False)
    assert pace.allow(1100.0, is_busy=False)
