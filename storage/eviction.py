"""Which segment is given up when space is needed, and whether a fill is worth keeping at all.

The rest of storage knows the small interface `EvictionPolicy`; a policy decides and touches nothing. Space comes back a whole
segment at a time, so a policy names a segment, and those of its extents that are worth being written again elsewhere.

What must not go (dirty bytes, pinned segments, the open ones) is not the policy's to know: it asks `is_reclaimable` in the
step in which it chooses, so that no policy can lose an acknowledged byte by having kept stale books. All of it is soft state:
lost with the process, learnt anew.
"""

from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from storage.policy import RetentionPriority
from storage.types import ObjectName


class ExtentUse(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """An extent that is read, filled or offered: what of which version, how long, and what its policy thinks of it."""

    name: ObjectName
    version_id: int
    start: int
    length: int
    priority: RetentionPriority = RetentionPriority.NORMAL


class Victim(msgspec.Struct, frozen=True, gc=False):
    """A segment to give up.

    Attributes:
        keep: Its extents that are to be appended elsewhere first; all others are dropped.
    """

    segment_id: int
    keep: tuple[ExtentUse, ...] = ()


class EvictionPolicy(Protocol):
    """What stays in the cache. All calls are synchronous and quick; memory is bounded by the number of segments.

    The caller guarantees: a segment is `found` or had an extent `admitted` before it is `accessed`; after `removed` its id
    never comes again. The policy guarantees: a victim is reclaimable, known and not removed; asked again without news, it
    never answers None while a known segment is reclaimable.
    """

    def should_admit(self, use: ExtentUse) -> bool:
        """Say whether a missing extent, about to be filled, should be kept; False serves it past the cache."""
        ...

    def found(self, segment_id: int) -> None:
        """Take note of a segment that was there when the process started."""
        ...

    def admitted(self, use: ExtentUse, segment_id: int) -> None:
        """Take note that an extent was appended to a segment."""
        ...

    def accessed(self, use: ExtentUse, segment_id: int | None) -> None:
        """Take note of a read: from a segment, or from the origin (None)."""
        ...

    def removed(self, segment_id: int) -> None:
        """Forget a segment that is gone; unknown ones are ignored."""
        ...

    def choose(self, is_reclaimable: Callable[[int], bool]) -> Victim | None:
        """Name the segment that is worth least; None where none is reclaimable. The segment stays known until `removed`."""
        ...


_CREDIT_MAX: Final = 3
"""More would make a segment that was once hot survive many rounds after it cooled."""

_CREDIT: Final = {RetentionPriority.LOW: 0, RetentionPriority.NORMAL: 1, RetentionPriority.HIGH: 2}
"""How many rounds of the hand one use is worth."""


class SegmentClock:
    """The plain policy: CLOCK over segments with a small counter each, whole segments dropped, everything admitted.

    A read gives its segment credit, the hand takes one away each time it passes, and the first reclaimable segment without
    credit goes. New segments start behind the hand without credit, so a scan that is read once leaves in the order it came.
    """

    def __init__(self) -> None:
        # In the order of the hand: its next segment is the first. A dict serves as a ring that one can also leave.
        self._credit: dict[int, int] = {}

    def __len__(self) -> int:
        """Count the segments known."""
        return len(self._credit)

    def __repr__(self) -> str:
        return f"<SegmentClock: {len(self._credit)} segments, {sum(map(bool, self._credit.values()))} with credit>"

    def should_admit(self, use: ExtentUse) -> bool:  # noqa: ARG002  the interface's
        """Keep everything."""
        return True

    def found(self, segment_id: int) -> None:
        """Put the segment behind the hand, without credit."""
        self._credit.setdefault(segment_id, 0)

    def admitted(self, use: ExtentUse, segment_id: int) -> None:  # noqa: ARG002  the interface's
        """Put the segment behind the hand, without credit for being written."""
        self._credit.setdefault(segment_id, 0)

    def accessed(self, use: ExtentUse, segment_id: int | None) -> None:
        """Give the segment credit by the extent's priority."""
        credit = None if segment_id is None else self._credit.get(segment_id)
        if segment_id is not None and credit is not None:
            self._credit[segment_id] = max(credit, min(_CREDIT_MAX, credit + _CREDIT[use.priority]))

    def removed(self, segment_id: int) -> None:
        """Forget the segment."""
        self._credit.pop(segment_id, None)

    def choose(self, is_reclaimable: Callable[[int], bool]) -> Victim | None:
        """Move the hand to the first reclaimable segment without credit.

        Each is asked once: a segment that may not go keeps its credit, since the hand's passing says nothing of its worth.
        """
        candidates = [segment_id for segment_id in self._credit if is_reclaimable(segment_id)]
        for _ in range(_CREDIT_MAX + 1):
            for segment_id in candidates:
                # Behind the hand, in either case: a victim that the caller could not remove is not first again.
                credit = self._credit.pop(segment_id)
                self._credit[segment_id] = max(0, credit - 1)
                if credit == 0:
                    return Victim(segment_id)
        return None
