"""What a byte of cache is worth: an index table for each prefix group and priority, made of what the group has learnt. Pure.

A table has a value for each reference class and age (`storage/reuse.py`), in hits a unit of traffic. What a policy pins is worth more
than all else; a group that was released counts next to nothing.
"""

from math import inf
from typing import Final

from storage.pins import HIGH, LOW, NORMAL, PRIORITY_BITS, PRIORITY_MASK, is_pinned
from storage.prefix_groups import PrefixGroups
from storage.reuse import BINS, CLASSES, UNREAD_INDEX, index_of, prior_rates

RELEASED_WORTH: Final = 0.001
PRIORITY_WORTH: Final = {LOW: 0.25, NORMAL: 1.0, HIGH: 4.0}

PINNED_WORTH: Final = inf
_PINNED_TABLE: Final = [PINNED_WORTH] * (BINS * (CLASSES + 1))


class WorthTables:
    """The tables, each made when it is asked for first and kept until something was learnt.

    Attributes:
        prior: The index of all groups' reads together, by age: what is worth what nothing else is known of.
    """

    def __init__(self, groups: PrefixGroups) -> None:
        self._groups = groups
        self._tables: dict[int, list[float]] = {}
        self.prior = index_of(prior_rates(()))

    def of(self, tag: int) -> list[float]:
        """Give the table of a group and priority, by their tag."""
        table = self._tables.get(tag)
        if table is None and is_pinned(tag):
            table = self._tables[tag] = _PINNED_TABLE
        elif table is None:
            group = self._groups.by_number[tag >> PRIORITY_BITS]
            weight = PRIORITY_WORTH[tag & PRIORITY_MASK] * (RELEASED_WORTH if group.is_released else 1.0)
            index = group.monitor.index or self.prior * CLASSES
            if weight != 1.0:
                index = [weight * value for value in index]
            # Whoever announced a read knows more of it than what is known of the group.
            table = self._tables[tag] = [*index, *UNREAD_INDEX]
        return table

    def clear(self) -> None:
        """Have all tables made anew: something was learnt, or a group counts again."""
        self._tables.clear()
