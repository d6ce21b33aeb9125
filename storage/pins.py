"""How much of the cache is pinned, and whether more may be: first come, and never more than a bound.

An extent carries its priority in the lowest bits of its tag, below the number of its prefix group (`gittins_policy`). Those whose
tag says PINNED are counted here as they come and go. Which extents they are is the segments' to know (`storage/residents.py`).
Pure.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from storage.policy import RetentionPriority

PRIORITY_BITS: Final = 2
PRIORITY_MASK: Final = (1 << PRIORITY_BITS) - 1
NORMAL, LOW, HIGH, PINNED = range(4)
"""The priorities, as tags have them."""

PRIORITY_NUMBERS: Final = {
    RetentionPriority.NORMAL: NORMAL,
    RetentionPriority.LOW: LOW,
    RetentionPriority.HIGH: HIGH,
    RetentionPriority.PINNED: PINNED,
}


def is_pinned(tag: int) -> bool:
    """Whether an extent with this tag stays."""
    return tag & PRIORITY_MASK == PINNED


def with_priority(tag: int, priority: int) -> int:
    """Give the tag of the same group with another priority."""
    return tag & ~PRIORITY_MASK | priority


class Pins:
    """What is pinned, in bytes.

    Attributes:
        are_all_that_is_left: Nothing but pins could go when that was last looked at, and no pin has gone since.
        came: How often a pin came; only grows, as `gone`.
        gone: How often one went.
        limit_bytes: No more is pinned; 0 pins nothing.
        held_bytes: What is pinned now.
        refused_bytes: What came to be cached and should have been pinned, but for the bound; only grows.
    """

    __slots__ = (
        "_by_group",
        "are_all_that_is_left",
        "came",
        "gone",
        "held_bytes",
        "limit_bytes",
        "refused_bytes",
    )

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.are_all_that_is_left = False
        self.came = 0
        self.gone = 0
        self.held_bytes = 0
        self.refused_bytes = 0
        self._by_group: Counter[int] = Counter()

    def __repr__(self) -> str:
        return f"<Pins: {self.held_bytes} of {self.limit_bytes} bytes>"

    @property
    def by_group(self) -> Mapping[int, int]:
        """What is pinned of each prefix group, by its number."""
        return self._by_group

    def fits(self, size: int) -> bool:
        """Whether so many bytes more may be pinned."""
        return self.held_bytes + size <= self.limit_bytes

    def count(self, tag: int, size: int) -> None:
        """Count bytes of a pinned tag in, or out where `size` is negative."""
        self.came += size > 0
        if size < 0:
            self.gone += 1
            self.are_all_that_is_left = False
        self.held_bytes += size
        self._by_group[tag >> PRIORITY_BITS] += size
