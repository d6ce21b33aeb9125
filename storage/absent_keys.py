"""Remember for as long as a policy says (`negative_ttl`) that the origin has no such object, so that asking again costs it nothing.

An entry stands for the 404 that the origin would give now, but for what other writers have done since. It rests on the origin's own
word about the key: a missing bucket, a refusal and every failure are no such word. It ends at once with any write of this gateway to
the key (it holds a `generations.Watch`), with a version of the key that the origin shows to anybody, and when the bucket is made,
deleted or changed. It does not count where something that was sent may land yet, and nothing does while the disk has failed.

Entries are the gateway's own: what the origin tells another authority is neither kept here nor answered from here. They are in memory
and end with the process. Not remembered are versions, and keys under a policy that has the origin asked each time (`always`).

Memory: ENTRIES_MAX entries, the oldest go first.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from storage.clock import Clock
from storage.errors import NoSuchKeyError
from storage.generations import Generations, Watch
from storage.policy import FreshnessMode, PolicyTable
from storage.reasons import Reason
from storage.stats import Stats
from storage.types import CacheResult, ObjectName

ENTRIES_MAX: Final = 20_000
"""About 20 MB, with keys as long as they may be 40."""


class RememberedAbsenceError(NoSuchKeyError):
    """The origin said a moment ago that there is no such object; it was not asked again. 404 NoSuchKey."""

    told: tuple[tuple[str, str], ...] = (
        ("x-cache", CacheResult.HIT.value),
        ("x-cache-reason", Reason.KNOWN_MISSING.value),
    )


@dataclass(frozen=True, slots=True)
class Question:
    """When the origin was asked: wall time, and how often what was known of the bucket had been dropped by then."""

    asked_at_s: float
    drops: int


@dataclass(frozen=True, slots=True)
class Absence:
    """That there was no such object at `asked_at_s`, believed until `until_s`; wall times."""

    asked_at_s: float
    until_s: float


class AbsentKeys:
    """What the origin does not have. All calls are synchronous."""

    def __init__(
        self,
        policies: Callable[[], PolicyTable],
        generations: Generations,
        clock: Clock,
        stats: Stats,
        doubted_at_s: Callable[[ObjectName], float],
        drops: Callable[[str], int],
    ) -> None:
        """Know of nothing yet.

        Args:
            policies: Says for how long an entry counts; asked at each use, so that a reload holds at once.
            generations: Tells of writes.
            clock: Gives wall times, as of versions: an age that comes out negative counts for nothing.
            stats: Counts answers.
            doubted_at_s: Gives the wall time up to which nothing that the origin said of a name is trusted; infinite while the
                disk has failed.
            drops: Says how often what was known of a bucket was dropped.
        """
        self._policies = policies
        self._generations = generations
        self._clock = clock
        self._stats = stats
        self._doubted_at_s = doubted_at_s
        self._drops = drops
        self._entries: OrderedDict[ObjectName, tuple[Question, Watch]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def question(self, name: ObjectName) -> Question:
        """Take down when the origin is asked; before that."""
        return Question(self._clock.wall_s(), self._drops(name.bucket))

    def note(self, name: ObjectName, question: Question) -> None:
        """Remember that the origin knows no such key.

        Called in the step that has found that nothing was written to the key since the question, and that no version of it is known.
        """
        if self._ttl_s(name) <= 0:
            return
        self.forget(name)
        self._entries[name] = (question, self._generations.watch(name))
        if len(self._entries) > ENTRIES_MAX:
            self.forget(next(iter(self._entries)))

    def find(self, name: ObjectName) -> Absence | None:
        """Say whether a key is known not to exist; an entry that does not count any more is forgotten."""
        entry = self._entries.get(name)
        if entry is None:
            return None
        question, watch = entry
        now_s, ttl_s = self._clock.wall_s(), self._ttl_s(name)
        is_young = 0 <= now_s - question.asked_at_s < ttl_s
        is_trusted = question.drops == self._drops(name.bucket)
        if not (is_young and is_trusted and watch.is_current):
            self.forget(name)
            return None
        if question.asked_at_s <= self._doubted_at_s(name):
            return None
        return Absence(question.asked_at_s, question.asked_at_s + ttl_s)

    def refusal(self, name: ObjectName) -> RememberedAbsenceError:
        """Make the answer to a read of a key that `find` has found, and count it."""
        self._stats.remembered_absences += 1
        return RememberedAbsenceError(f"{name} does not exist, as the origin said before")

    def forget(self, name: ObjectName) -> None:
        """End an entry: the key exists, or it is to be asked for again."""
        entry = self._entries.pop(name, None)
        if entry is not None:
            entry[1].close()

    def _ttl_s(self, name: ObjectName) -> float:
        policy = self._policies().find(name)
        is_asked_always = policy.freshness.mode is FreshnessMode.ALWAYS or bool(name.version_id)
        return 0.0 if is_asked_always else policy.negative_ttl_s
