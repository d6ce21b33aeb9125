"""Look up what of the segments is pinned: in the rows, by the policies in force, for the eviction policy to know.

What is placed is told of as it is placed, under the policies of that moment (`storage/reclaim.py`). This is for all else: what was
cached before the process, and what was before a reload pinned or unpinned it. Segments are looked up one after the other in the
background, some every turn; and each before it goes, so that nothing pinned goes unseen meanwhile. Nothing is done while no policy
pins, nor was one that did.

    rows of a segment ─> in a worker thread, a batch at a time ─> policies ─> the eviction policy, unless the segment has changed
"""

from collections.abc import Callable
from typing import Final

from storage import keys
from storage.clock import Clock
from storage.errors import StorageError
from storage.eviction import SEGMENT_STOP, EvictionPolicy, ExtentUse
from storage.family import Family
from storage.policy import PolicyTable
from storage.rows import RowSource, decode_resident, decoded
from storage.state import State
from storage.workers import Workers

BATCH_ROWS: Final = 500
"""Told at once: some 2 ms of the event loop."""

TURN_SEGMENTS_MAX: Final = 256
TURN_BUSY_S: Final = 0.1
"""A turn begins no further segment after so long."""

TRIES: Final = 10
"""So often a batch is read again whose segment changed meanwhile; then it is left for a later turn."""


class PinSurvey:
    """Keeps the eviction policy in step with what policies pin."""

    def __init__(
        self,
        index: RowSource,
        state: State,
        eviction: EvictionPolicy,
        policies: Callable[[], PolicyTable],
        workers: Workers,
        clock: Clock,
    ) -> None:
        self._index = index
        self._state = state
        self._eviction = eviction
        self._policies = policies
        self._workers = workers
        self._clock = clock
        self._table: PolicyTable | None = None
        self._due: set[int] = set()

    @property
    def due_count(self) -> int:
        """How many segments are to be looked up yet, as far as the last turn noticed."""
        return len(self._due)

    def note(self, segment_id: int) -> None:
        """Have a segment looked up of which not all was told."""
        if self._policies().has_pins:
            self._due.add(segment_id)

    async def turn(self) -> None:
        """Look up some of the segments that the policies in force ask for; an exchange of the policies is noticed here.

        Raises:
            StorageError: Rows cannot be read; the segment is looked up again in a later turn.
        """
        self._notice_exchange()
        stop_at_s = self._clock.monotonic_s() + TURN_BUSY_S
        for segment_id in tuple(self._due)[:TURN_SEGMENTS_MAX]:
            await self._look_up(segment_id)
            if self._clock.monotonic_s() >= stop_at_s:
                return

    def _notice_exchange(self) -> None:
        before, self._table = self._table, self._policies()
        if before is self._table:
            return
        if self._table.has_pins:
            self._due = set(self._state.segments)
        else:
            self._due = {one for one in self._state.segments if self._eviction.pinned_in(one)}

    async def before_it_goes(self, segment_id: int) -> bool:
        """Look a segment up that is to be given up; whether something else of it is pinned than the policy knew.

        Raises:
            StorageError: Rows cannot be read.
        """
        if not self._eviction.pinned_in(segment_id) and not self._policies().has_pins:
            return False
        return await self._look_up(segment_id)

    async def _look_up(self, segment_id: int) -> bool:
        start: int | None = 0
        has_changed = False
        self._due.discard(segment_id)
        while start is not None and segment_id in self._state.segments:
            try:
                start, is_news = await self._tell(segment_id, start)
                has_changed |= is_news
            except StorageError:
                self._due.add(segment_id)
                raise
        return has_changed

    async def _tell(self, segment_id: int, start: int) -> tuple[int | None, bool]:
        """Tell of a batch of a segment's extents; give where the next begins, None behind the last, and whether it changed a pin."""
        for _ in range(TRIES):
            row, table = self._state.segments.get(segment_id), self._policies()
            uses, stop = await self._workers.run(self._read, segment_id, start, table)
            if self._state.segments.get(segment_id) is row:
                is_news = self._eviction.looked_up(segment_id, start, stop, uses)
                return None if stop == SEGMENT_STOP else stop, is_news
        self._due.add(segment_id)
        return None, False

    def _read(
        self, segment_id: int, start: int, table: PolicyTable
    ) -> tuple[list[tuple[ExtentUse, int]], int]:
        """Read a batch of the extents of objects that lie in a segment, and up to where it goes. Runs in a worker thread."""
        first, end = keys.resident_key(segment_id, start), keys.residents_range(segment_id)[1]
        rows = self._index.scan(Family.RESIDENTS, first, end, BATCH_ROWS)
        uses, stop = [], SEGMENT_STOP
        for key, value in rows:
            offset = keys.split_resident_key(key)[1]
            resident = decoded(self._index, Family.RESIDENTS, key, value, decode_resident)
            stop = offset + resident.length
            if not resident.upload_id:
                name = keys.name_on(resident.bucket, resident.key)
                use = ExtentUse(
                    name, resident.version_id, resident.start, resident.length, table.find(name).priority
                )
                uses.append((use, offset))
        return uses, stop if len(rows) == BATCH_ROWS else SEGMENT_STOP
