"""Ids that never return: only below a reservation, and never the same again after a crash."""

import pytest
from hypothesis import given, strategies as st

from storage.errors import OverloadedError
from storage.ids import SEGMENT_IDS_BLOCK, VERSION_IDS_BLOCK, Ids
from storage.records import FORMAT, IdsReserved


def make_ids(*, versions: int = 10, segments: int = 10, node: int = 0) -> Ids:
    """Make ids from 1 and 1 on, with so many reserved."""
    ids = Ids(node, next_version_id=1, next_segment_counter=1)
    ids.adopt(IdsReserved(FORMAT, 1 + versions, 1 + segments))
    return ids


def test_take_when_nothing_is_reserved() -> None:
    """No id is given before a reservation is durable."""
    ids = Ids(0, next_version_id=7, next_segment_counter=9)

    with pytest.raises(OverloadedError):
        ids.take_version_id()
    with pytest.raises(OverloadedError):
        ids.take_segment_id()


def test_take_when_reserved() -> None:
    """Ids come in order up to the limit, which is not itself given; then the caller is to try again."""
    ids = make_ids(versions=3, segments=2)

    versions = [ids.take_version_id() for _ in range(3)]
    segments = [ids.take_segment_id() for _ in range(2)]

    assert versions == [1, 2, 3]
    assert segments == [1, 2]
    with pytest.raises(OverloadedError) as caught:
        ids.take_version_id()
    assert caught.value.retry_after_s == 1.0
    with pytest.raises(OverloadedError):
        ids.take_segment_id()


def test_take_segment_id_when_node_is_set() -> None:
    """The node stands above the counter, so that two nodes never give the same id."""
    assert make_ids(node=3).take_segment_id() == 0x0003_0000_0000_0001


def test_reservation_when_asked() -> None:
    """A reservation is a full block above what is in use, of both kinds."""
    ids = make_ids()
    ids.take_version_id()

    assert ids.reservation() == IdsReserved(FORMAT, 2 + VERSION_IDS_BLOCK, 1 + SEGMENT_IDS_BLOCK)


def test_adopt_when_reservation_is_older() -> None:
    """Limits only rise, in whatever order reservations become durable."""
    ids = make_ids(versions=10)

    ids.adopt(IdsReserved(FORMAT, 2, 2))

    assert [ids.take_version_id() for _ in range(10)] == list(range(1, 11))


@pytest.mark.parametrize(
    ("versions", "segments", "is_low"),
    [
        (VERSION_IDS_BLOCK, SEGMENT_IDS_BLOCK, False),
        (VERSION_IDS_BLOCK // 2 + 1, SEGMENT_IDS_BLOCK // 2 + 1, False),
        (VERSION_IDS_BLOCK // 2, SEGMENT_IDS_BLOCK, True),
        (VERSION_IDS_BLOCK, SEGMENT_IDS_BLOCK // 2, True),
    ],
)
def test_is_running_low_when_half_is_used(versions: int, segments: int, is_low: bool) -> None:
    """The next block is asked for while half of the present one is left, of either kind."""
    assert make_ids(versions=versions, segments=segments).is_running_low == is_low


@given(st.lists(st.integers(0, 40), max_size=6))
def test_take_when_process_crashes_again_and_again(uses: list[int]) -> None:
    """Whatever was used before a crash, journaled or not, a start that begins at the durable limits gives none of it again."""
    durable = IdsReserved(FORMAT, 1, 1)
    given_versions: set[int] = set()
    given_segments: set[int] = set()

    for count in uses:
        ids = Ids(
            0, next_version_id=durable.version_id_limit, next_segment_counter=durable.segment_counter_limit
        )
        durable = ids.reservation()
        ids.adopt(durable)
        versions, segments = (
            {ids.take_version_id() for _ in range(count)},
            {ids.take_segment_id() for _ in range(count)},
        )

        assert not versions & given_versions
        assert not segments & given_segments
        given_versions |= versions
        given_segments |= segments
