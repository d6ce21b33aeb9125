"""What every EvictionPolicy must do, whatever it prefers. A test module of a policy subclasses EvictionPolicyContract."""

from abc import ABC, abstractmethod

from hypothesis import given, strategies as st

from storage.eviction import EvictionPolicy, ExtentUse
from storage.policy import RetentionPriority
from storage.types import ObjectName

STEPS = st.lists(
    st.tuples(
        st.sampled_from(["found", "announced", "admitted", "accessed", "missed", "removed", "choose"]),
        st.integers(0, 11),
        st.sets(st.integers(0, 11), max_size=8),
        st.sampled_from(RetentionPriority),
    ),
    max_size=120,
)


def use(number: int, priority: RetentionPriority = RetentionPriority.NORMAL, length: int = 4096) -> ExtentUse:
    """An extent of an object of its own."""
    return ExtentUse(ObjectName("b", f"k{number}"), number, 0, length, priority)


class EvictionPolicyContract(ABC):
    """The contract's tests, run against what `make` gives."""

    @abstractmethod
    def make(self) -> EvictionPolicy:
        """Give a policy that knows nothing yet."""

    @given(steps=STEPS)
    def test_victim_is_known_and_reclaimable_whatever_happened(
        self, steps: list[tuple[str, int, set[int], RetentionPriority]]
    ) -> None:
        """Dirty, pinned, open, unknown and removed segments are never chosen, and None means that no other was left."""
        policy = self.make()
        known: set[int] = set()
        gone: set[int] = set()

        for step, segment_id, blocked, priority in steps:
            if step in {"found", "admitted"} and segment_id in gone:
                continue  # ids never come again
            if step == "found":
                policy.found(segment_id, 4096)
                known.add(segment_id)
            elif step == "announced":
                policy.announced(use(segment_id, priority))
            elif step == "admitted":
                policy.admitted(use(segment_id, priority), segment_id, 0)
                known.add(segment_id)
            elif step == "accessed" and segment_id in known:
                policy.accessed(use(segment_id, priority), segment_id, 0)
            elif step == "missed":
                policy.accessed(use(segment_id, priority), None)
            elif step == "removed":
                policy.removed(segment_id)
                known.discard(segment_id)
                gone.add(segment_id)
            elif step == "choose":
                victim = policy.choose(lambda candidate, blocked=blocked: candidate not in blocked)  # type: ignore[misc]  # bound now
                assert (victim is None) == (known <= blocked)
                assert victim is None or victim.segment_id in known - blocked

    def test_all_segments_come_up_when_space_is_needed_again_and_again(self) -> None:
        """However hot they are, all segments can be reclaimed one after the other."""
        policy = self.make()
        for segment_id in range(20):
            policy.admitted(use(segment_id), segment_id, 0)
            for _ in range(50):
                policy.accessed(use(segment_id, RetentionPriority.HIGH), segment_id)
        reclaimed = []

        while (victim := policy.choose(lambda _: True)) is not None:
            policy.removed(victim.segment_id)
            reclaimed.append(victim.segment_id)

        assert sorted(reclaimed) == list(range(20))

    def test_used_segment_outlives_unused_ones_when_all_are_equal_otherwise(self) -> None:
        """A segment that is read over and over is not the first to go."""
        policy = self.make()
        for segment_id in range(8):
            policy.admitted(use(segment_id), segment_id, 0)
        for _ in range(20):
            policy.accessed(use(3), 3)

        victim = policy.choose(lambda _: True)

        assert victim is not None
        assert victim.segment_id != 3
