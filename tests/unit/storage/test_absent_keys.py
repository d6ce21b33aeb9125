"""`storage.absent_keys`: which 404s of the origin are believed, and until when."""

from collections.abc import Callable

import pytest

from storage import absent_keys
from storage.absent_keys import Absence, AbsentKeys
from storage.generations import Generations
from storage.policy import Freshness, FreshnessMode, Policy, PolicyTable
from storage.stats import Stats
from storage.types import ObjectName
from tests.fakes.set_clock import SetClock

NAME = ObjectName("b", "k")
BELIEVED = Policy(negative_ttl_s=60.0)


class Bench:
    """Entries under one table."""

    def __init__(self, *policies: Policy, default: Policy = BELIEVED) -> None:
        self.clock = SetClock()
        self.clock.now_s = 1000.0
        self.generations = Generations()
        self.stats = Stats()
        self.doubted_at_s = 0.0
        self.drops = 0
        self.table = PolicyTable(policies, default)
        self.keys = AbsentKeys(
            lambda: self.table,
            self.generations,
            self.clock,
            self.stats,
            lambda _: self.doubted_at_s,
            lambda _: self.drops,
        )

    def note(self, name: ObjectName = NAME) -> None:
        """Hear from the origin that there is no such object."""
        self.keys.note(name, self.keys.question(name))

    def knows(self, name: ObjectName = NAME) -> bool:
        """Whether a read is answered from memory."""
        return self.keys.find(name) is not None


def test_a_404_is_believed_for_as_long_as_its_policy_says() -> None:
    """From the moment in which the origin was asked, and for this key only."""
    bench = Bench()
    question = bench.keys.question(NAME)
    bench.clock.now_s += 5

    bench.keys.note(NAME, question)

    assert bench.keys.find(NAME) == Absence(1000.0, 1060.0)
    assert not bench.knows(ObjectName("b", "k2"))
    assert not bench.knows(ObjectName("b2", "k"))
    bench.clock.now_s = 1059.9
    assert bench.knows()
    bench.clock.now_s = 1060.0
    assert not bench.knows()
    assert (len(bench.keys), len(bench.generations)) == (0, 0)


@pytest.mark.parametrize(
    "policy", [Policy(), Policy(negative_ttl_s=60.0, freshness=Freshness(FreshnessMode.ALWAYS))]
)
def test_nothing_is_remembered_when_the_policy_does_not_allow_it(policy: Policy) -> None:
    """By default, and where the origin is to be asked each time."""
    bench = Bench(default=policy)

    bench.note()

    assert not bench.knows()
    assert (len(bench.keys), len(bench.generations)) == (0, 0)


def test_a_version_is_never_remembered() -> None:
    """A name with a version id may mean a marker, and has answers of its own."""
    bench = Bench()

    bench.note(ObjectName("b", "k", "v1"))

    assert len(bench.keys) == 0


def test_the_policy_of_the_key_decides_and_a_reload_holds_at_once() -> None:
    """Shorter, longer, or not at all."""
    bench = Bench(Policy("b", "k", negative_ttl_s=5.0), default=Policy())
    bench.note()
    bench.note(ObjectName("b", "other"))
    assert (bench.knows(), len(bench.keys)) == (True, 1)

    bench.table = PolicyTable()

    assert not bench.knows()


ENDINGS: dict[str, Callable[[Bench], object]] = {
    "write": lambda bench: bench.generations.bump(NAME),
    "bucket": lambda bench: bench.generations.bump_bucket("b"),
    "drop": lambda bench: setattr(bench, "drops", 1),
    "found": lambda bench: bench.keys.forget(NAME),
    "clock": lambda bench: setattr(bench.clock, "now_s", 999.0),
    "doubt": lambda bench: setattr(bench, "doubted_at_s", 1000.0),
    "failed disk": lambda bench: setattr(bench, "doubted_at_s", float("inf")),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_entry_ends_at_once_when_the_word_may_not_hold_any_more(ending: str) -> None:
    """Whatever of this gateway's own may have made the object, or have been told of it."""
    bench = Bench()
    bench.note()
    assert bench.knows()

    ENDINGS[ending](bench)

    assert not bench.knows()


def test_a_drop_of_the_bucket_between_question_and_answer_counts() -> None:
    """It may have been made anew since."""
    bench = Bench()
    question = bench.keys.question(NAME)
    bench.drops += 1

    bench.keys.note(NAME, question)

    assert not bench.knows()


def test_memory_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With their watches."""
    monkeypatch.setattr(absent_keys, "ENTRIES_MAX", 3)
    bench = Bench()

    for number in range(5):
        bench.note(ObjectName("b", f"{number}"))

    assert [bench.knows(ObjectName("b", f"{number}")) for number in range(5)] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert (len(bench.keys), len(bench.generations)) == (3, 3)


def test_an_answer_is_a_hit_that_says_why_and_is_counted() -> None:
    """As `x-cache` shows it."""
    bench = Bench()

    refusal = bench.keys.refusal(NAME)

    assert refusal.told == (("x-cache", "HIT"), ("x-cache-reason", "known not to exist"))
    assert bench.stats.remembered_absences == 1
