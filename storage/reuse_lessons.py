"""When the eviction policy learns: the lessons that make the tables anew, taken in steps while reads go on. Pure.

A lesson goes through the prefix groups one after the other (`ReuseMonitor.lesson`), says which of them count as released, and ends with
a look at prices. It is due by traffic and by reads, and each of its steps is short, so that no read waits for all of it.
"""

from collections.abc import Iterator
from typing import Final

from storage.pins import Pins
from storage.prefix_groups import PrefixGroups
from storage.reuse import index_of, prior_rates
from storage.segment_ranking import SegmentRanking
from storage.traffic_clock import TrafficClock
from storage.worth_tables import WorthTables

RELEASE_CACHES: Final = 0.25
"""Others must miss so many caches' worth of bytes before a group that is not read counts as released."""

LEARN_SHARE: Final = 32
"""The tables are rebuilt so often in a cache's worth of traffic."""

LEARN_READS_MIN: Final = 128
LEARN_READS_MAX: Final = 4096
"""But not more often than once in so many reads, however small the cache: fewer at first, more once much was read."""

LEARN_READS_A_STEP: Final = 8
"""A lesson is taken in steps of about 0.1 ms, one in so many reads, so that no read waits for all of it."""

GROUPS_LEARNT_ALL: Final = 4
"""Of more groups only those that were read since their last lesson are learnt about anew: what the others did changes little of it."""

DIGEST_READS: Final = 32
"""So many reads of cached bytes are learnt from together, which costs a fraction of learning from each by itself."""


class Lessons:
    """Takes a lesson whenever one is due.

    Attributes:
        reads_left: So many reads are to come before the next step; whoever takes note of reads counts it down.
    """

    def __init__(
        self,
        capacity_bytes: int,
        clock: TrafficClock,
        groups: PrefixGroups,
        tables: WorthTables,
        ranking: SegmentRanking,
        pins: Pins,
    ) -> None:
        self._capacity_bytes = capacity_bytes
        self._clock = clock
        self._groups = groups
        self._tables = tables
        self._ranking = ranking
        self._pins = pins
        self._learn_at = self._learn_bytes = max(1, capacity_bytes // LEARN_SHARE)
        self._next_lesson_at = self._learn_at
        self.reads_left = self._reads_between = LEARN_READS_MIN
        self._lesson: Iterator[bool] | None = None

    def take_if_due(self) -> None:
        """Take what steps are due by now."""
        while self.reads_left <= 0 and self._clock.bytes >= self._learn_at:
            self.step()

    def step(self) -> None:
        """Take one short step of the lesson that is on, beginning one where the last is over."""
        lesson = self._lesson
        if lesson is None:
            self._next_lesson_at = self._clock.bytes + self._learn_bytes
            lesson = self._lesson = self._steps()
        if next(lesson, False):
            self._learn_at = self._clock.bytes
            # However many short reads came before the lesson was due.
            self.reads_left = max(self.reads_left, -DIGEST_READS) + LEARN_READS_A_STEP
            return
        self._lesson = None
        self._learn_at = self._next_lesson_at
        # What little is known of changes fast, what much was read of slowly.
        self._reads_between = min(LEARN_READS_MAX, self._reads_between * 9 // 8)
        self.reads_left = self._reads_between

    def _steps(self) -> Iterator[bool]:
        """Rebuild the tables of all groups one after the other, then look at prices anew; no step takes long."""
        groups = self._groups.live()
        rates = prior_rates([group.monitor for group in groups])
        self._tables.prior = index_of(rates)
        yield True
        for group in groups:
            if len(groups) <= GROUPS_LEARNT_ALL or group.monitor.has_news:
                for _ in group.monitor.lesson(rates, self._clock.bytes / self._clock.unit_bytes):
                    yield True
            group.gap_bytes *= 0.999
            gap = self._clock.missed_bytes - group.missed_at
            # Pins make the cache smaller for all else.
            loose_bytes = self._capacity_bytes - self._pins.held_bytes
            group.is_released = gap > RELEASE_CACHES * loose_bytes and gap > 1.5 * group.gap_bytes
            self._tables.clear()
            yield True
        for _ in self._ranking.look_anew():
            yield True
