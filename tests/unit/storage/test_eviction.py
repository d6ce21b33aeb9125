"""SegmentClock: the contract of all policies, and what is its own."""

from storage.eviction import EvictionPolicy, SegmentClock
from storage.policy import RetentionPriority
from tests.contracts.eviction_policy import EvictionPolicyContract, use


class TestSegmentClockContract(EvictionPolicyContract):
    def make(self) -> EvictionPolicy:
        return SegmentClock()


def order_of(clock: SegmentClock) -> list[int]:
    """Reclaim everything; give the order."""
    order = []
    while (victim := clock.choose(lambda _: True)) is not None:
        clock.removed(victim.segment_id)
        order.append(victim.segment_id)
    return order


def test_segments_go_in_order_of_age_when_none_was_read() -> None:
    """A scan leaves in the order it came."""
    clock = SegmentClock()
    for segment_id in (5, 3, 4):
        clock.found(segment_id)

    assert order_of(clock) == [5, 3, 4]


def test_priority_decides_how_long_a_read_counts_when_segments_are_equal() -> None:
    """A read of low priority earns nothing, a high one stays a round longer than a normal one."""
    clock = SegmentClock()
    for number, priority in enumerate(
        (RetentionPriority.HIGH, RetentionPriority.NORMAL, RetentionPriority.LOW)
    ):
        clock.admitted(use(number, priority), number)
        clock.accessed(use(number, priority), number)

    assert order_of(clock) == [2, 1, 0]


def test_hot_segment_cools_when_it_is_not_read_any_more() -> None:
    """Credit is bounded: a thousand reads long ago last three rounds."""
    clock = SegmentClock()
    clock.found(0)
    for _ in range(1000):
        clock.accessed(use(0), 0)
    for segment_id in range(1, 4):
        clock.found(segment_id)
        clock.accessed(use(segment_id), segment_id)

    assert order_of(clock) == [1, 2, 3, 0]
    assert len(clock) == 0


def test_segment_keeps_its_credit_when_it_may_not_go() -> None:
    """The hand passes over what is dirty or pinned without taking anything from it."""
    clock = SegmentClock()
    for segment_id in (0, 1):
        clock.found(segment_id)
        clock.accessed(use(segment_id), segment_id)

    victim = clock.choose(lambda segment_id: segment_id == 1)

    assert victim is not None
    assert victim.segment_id == 1
    assert repr(clock) == "<SegmentClock: 2 segments, 1 with credit>"


def test_everything_is_admitted_when_asked() -> None:
    """The plain policy keeps every fill."""
    assert SegmentClock().should_admit(use(1))
