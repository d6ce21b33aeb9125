"""Which segment is given up when space is needed, and whether a fill is worth keeping at all.

The rest of storage knows the small interface `EvictionPolicy`; a policy decides and touches nothing. Space comes back a whole
segment at a time, so a policy names a segment, and those of its bytes that are worth being written again elsewhere.

What must not go (dirty bytes, segments that are being read, the open ones) is not the policy's to know: it asks `is_reclaimable` in the
step in which it chooses, so that no policy can lose an acknowledged byte by having kept stale books. All of it is soft state:
lost with the process, learnt anew.

What is pinned (`RetentionPriority.PINNED`) is clean or dirty like all else, and goes when nothing else is left to go: the victim
says how much of it that costs, and the caller decides whether space is needed so badly.
"""

from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from storage.policy import RetentionPriority
from storage.types import ObjectName, Stream

SEGMENT_STOP: Final = 1 << 32
"""Above every offset of a segment."""


class ExtentUse(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Bytes that are read, filled or offered: of which version, and what its policy thinks of it."""

    name: ObjectName
    version_id: int
    start: int
    length: int
    priority: RetentionPriority = RetentionPriority.NORMAL


class Kept(msgspec.Struct, frozen=True, gc=False):
    """Bytes `[offset, stop)` of a victim that are to be appended elsewhere first, to this stream."""

    offset: int
    stop: int
    stream: Stream = Stream.CLEAN


class Victim(msgspec.Struct, frozen=True, gc=False):
    """A segment to give up.

    Attributes:
        keep: What of it is to be kept, in order and without overlap; all else is dropped.
        pinned_bytes: What of that is pinned. More than 0 only where no segment can go that would cost no pin.
    """

    segment_id: int
    keep: tuple[Kept, ...] = ()
    pinned_bytes: int = 0


class EvictionPolicy(Protocol):
    """What stays in the cache. All calls are synchronous and quick.

    The caller guarantees: a segment is `found` or had an extent `admitted` before it is `accessed`; after `removed` its id
    never comes again. The policy guarantees: a victim is reclaimable, known and not removed; asked again without news, it
    never answers None while a known segment is reclaimable.
    """

    def admit(self, use: ExtentUse, *, has_room: bool, is_next: bool = False) -> Stream | None:
        """Say to which stream a missing extent, about to be filled, goes; None serves it past the cache.

        Asked before the read that misses it is told of by `accessed`. `has_room` says that nothing has to go for it, `is_next` that
        its read is the next to come: it is worth its room, whatever is known of it, unless pins would have to go for it.
        """
        ...

    def announced(self, use: ExtentUse) -> None:
        """Take note that what is about to be filled is brought for a read that is yet to come."""
        ...

    def found(self, segment_id: int, live_bytes: int) -> None:
        """Take note of a segment that is there, and of how many of its bytes rows name now."""
        ...

    def admitted(self, use: ExtentUse, segment_id: int, offset: int) -> None:
        """Take note that rows name an extent at a place, filled or written there, or joined of others."""
        ...

    def accessed(self, use: ExtentUse, segment_id: int | None, offset: int = 0) -> None:
        """Take note of a read: from a place in a segment, or from the origin (None)."""
        ...

    def touched(self, segment_id: int, offset: int, length: int) -> bool:
        """Take note of a read from a place, as `accessed`, where its bytes are known; False where that is to be called instead."""
        ...

    def moved(self, segment_id: int, kept: Kept, to_segment_id: int, to_offset: int) -> None:
        """Take note that bytes of a victim lie elsewhere now."""
        ...

    def removed(self, segment_id: int) -> None:
        """Forget a segment that is gone; unknown ones are ignored."""
        ...

    def freed(self, segment_id: int, offset: int, length: int) -> None:
        """Take note that no row names these bytes any more; moved ones are told of so too, before `moved`."""
        ...

    def forgotten(self, version_id: int, size: int) -> None:
        """Take note that a version of so many bytes is replaced or deleted: nobody will read it again."""
        ...

    def looked_up(
        self, segment_id: int, start: int, stop: int, uses: Sequence[tuple[ExtentUse, int]]
    ) -> bool:
        """Take note of all extents that rows name between two offsets of a segment, in their order, as policies see them now.

        So what was cached before a start, or under other policies, is pinned, or pinned no more; whether that changed anything.
        """
        ...

    def may_pin(self, size: int) -> bool:
        """Whether so many bytes more would be pinned."""
        ...

    def pinned_in(self, segment_id: int, start: int = 0, stop: int = SEGMENT_STOP) -> int:
        """Count the pinned bytes of a segment, of those extents that have bytes between two offsets."""
        ...

    def choose(self, is_reclaimable: Callable[[int], bool]) -> Victim | None:
        """Name the segment that is worth least; None where none is reclaimable. The segment stays known until `removed`."""
        ...
