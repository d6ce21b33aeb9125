"""bench.access_cost: what it times is what a hit and a miss call."""

import pytest

from bench.access_cost import READS_A_TURN, Hit, MissTimer, hit_cost, main
from storage.gittins_policy import GittinsPolicy
from storage.types import MIB
from tests.contracts.eviction_policy import use


class Recording(GittinsPolicy):
    """A policy that writes down which reads it hears of."""

    def __init__(self) -> None:
        super().__init__(capacity_bytes=64 * MIB, segment_bytes=MIB)
        self.heard: list[Hit] = []

    def touched(self, segment_id: int, offset: int, length: int) -> bool:
        """Write it down."""
        self.heard.append((segment_id, offset, length))
        return super().touched(segment_id, offset, length)


def test_hits_are_read_in_their_order_over_and_over() -> None:
    """A policy hears of as many reads as are asked for, and of no other calls."""
    policy = Recording()
    for number in range(5):
        policy.admitted(use(number), 1, number * 4096)
    hits = [(1, number * 4096, 4096) for number in range(5)]

    cost = hit_cost(policy, hits, reads=READS_A_TURN + 7)

    assert policy.heard == (hits * READS_A_TURN)[: READS_A_TURN + 7]
    assert cost.turn_ns > 0


def test_misses_are_timed_and_hits_are_not() -> None:
    """All calls reach the policy; what a miss costs is what the calls that are not hits took, by the misses."""
    policy = Recording()
    timed = MissTimer(policy)

    assert policy.admit(use(1), has_room=True) is not None
    policy.accessed(use(1), None)
    policy.admitted(use(1), 1, 0)
    missed_ns = timed.spent_ns
    assert policy.touched(1, 0, 4096)
    after_hit_ns = timed.spent_ns
    policy.accessed(use(1), 1)

    assert policy.heard == [(1, 0, 4096)] * 2
    assert timed.misses == 1
    assert missed_ns > 0
    assert after_hit_ns == missed_ns != timed.spent_ns


def test_each_workload_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints what hits and misses take, for each workload that is asked for."""
    sizes = ["--photographs", "1000", "--reads", "3000", "--hits", "1000"]

    main([*sizes, "--only", "epochs", "zipf-1.0-3prefix"])

    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| epochs", "| zipf"))]
    assert [line.split("|")[1].strip() for line in lines] == ["epochs", "epochs", "zipf-1.0-3prefix"]
    assert all(float(line.split("|")[6]) > 0 and float(line.split("|")[9]) > 0 for line in lines)
