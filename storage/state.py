"""What the event loop knows of the index without reading it: the use of segments, what is dirty, the buckets' facts.

Filled once by recovery, then kept in step by the effects of each batch. Everything here can be rebuilt from the index;
nothing is decided here.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from storage.records import BucketFacts, DirtyEntry, SegmentRow
from storage.rows import Effects

Listener = Callable[[Effects], None]


@dataclass(slots=True)
class State:
    """The engine's in-memory mirror.

    Attributes:
        dirty_bytes: Bytes that only this gateway has, parts of open uploads included.
        dirty_keys: How many keys of a bucket are dirty: its rows in the overlay.
        dirty_puts: How many of them are not deletes.
        failure: Why writes are refused ("" while they are accepted).
    """

    segments: dict[int, SegmentRow] = field(default_factory=dict)
    facts: dict[str, BucketFacts] = field(default_factory=dict)
    live_bytes: int = 0
    dirty_bytes: int = 0
    open_uploads: int = 0
    dirty_keys: Counter[str] = field(default_factory=Counter)
    dirty_puts: Counter[str] = field(default_factory=Counter)
    failure: str = ""
    listeners: list[Listener] = field(default_factory=list)

    def load(
        self,
        segments: Iterable[SegmentRow],
        facts: Iterable[BucketFacts],
        open_uploads: int,
        dirty: Iterable[DirtyEntry],
    ) -> None:
        """Take over what recovery found."""
        for row in segments:
            self._see_segment(row)
        self.facts = {known.bucket: known for known in facts}
        self.open_uploads = open_uploads
        self._count_dirty(dirty, 1)

    def absorb(self, effects: Effects) -> None:
        """Take over what a batch changed, then tell the listeners, where it is anything to them."""
        if effects.is_empty:
            return
        for row in effects.segments.values():
            self._see_segment(row)
        for facts in effects.facts:
            if facts.exists:
                self.facts[facts.bucket] = facts
            else:
                self.facts.pop(facts.bucket, None)
        self._count_dirty(effects.dirty_added, 1)
        self._count_dirty(effects.dirty_removed, -1)
        self.open_uploads += effects.uploads_opened - effects.uploads_closed
        for listener in self.listeners:
            listener(effects)

    def _count_dirty(self, entries: Iterable[DirtyEntry], by: int) -> None:
        """Count entries in or out; each dirty key has exactly one, its newest change (see `mutations`)."""
        for entry in entries:
            _count(self.dirty_keys, entry.bucket, by)
            if not entry.is_tombstone:
                _count(self.dirty_puts, entry.bucket, by)

    def _see_segment(self, row: SegmentRow) -> None:
        before = self.segments.pop(row.segment_id, None)
        if before is not None:
            self.live_bytes -= before.live_bytes
            self.dirty_bytes -= before.dirty_bytes
        # A negative count is the mark of a dropped segment (cached.DropSegment).
        if row.live_bytes >= 0:
            self.segments[row.segment_id] = row
            self.live_bytes += row.live_bytes
            self.dirty_bytes += row.dirty_bytes


def _count(counter: Counter[str], bucket: str, by: int) -> None:
    """Count up or down; a bucket that comes to nothing takes no memory."""
    counter[bucket] += by
    if not counter[bucket]:
        del counter[bucket]
