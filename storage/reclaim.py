"""Make space: give up whole segments of clean bytes before bodies and fills run out of room.

A segment goes in this order: its rows are dropped on the writer thread, which refuses while it holds a dirty byte;
then it is marked removed, so nobody pins it any more; then, once its pins are gone, it is unlinked. A segment with a
range that is not settled is passed over, since a row for it may yet come. Segments without a live byte go first, whether
there is room or not; which of the others goes is the eviction policy's decision. The open segment of what is released
after its flush is sealed once nothing in it is live, at most one in each look, so that its space comes back though
nothing follows it. Journal files are not reclaimed, whatever their bodies are: they
are the truth about what is dirty.

What is pinned (`priority = "pinned"`) goes when nothing else can, and then only for a write that waits, or where half of what is kept
free is gone: fills do without. A victim is looked up for pins before it goes (`storage/pin_survey.py`); its pins are written again
elsewhere, and where there is no room for that, others go first.

Nothing of this needs to be durable in its order: rows that a power cut brings back name a segment that is gone, and
clean bytes that are gone are a miss. What was dirty is clean only since the journal's sync of its confirmation.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Final

from storage import keys
from storage.applier import Applier
from storage.cached import DropSegment
from storage.clock import Clock
from storage.errors import StorageError
from storage.eviction import EvictionPolicy, ExtentUse, Kept, Victim
from storage.pin_survey import PinSurvey
from storage.policy import PolicyTable, RetentionPriority
from storage.rows import Effects
from storage.segments import SegmentState, SegmentStore
from storage.state import State
from storage.stats import Stats
from storage.survivors import Survivors
from storage.types import GIB, Extent, Location, ObjectName, Stream
from storage.workers import Workers

log = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
ROUND_SEGMENTS_MAX: Final = 64
"""So many segments go in one round before the free space is looked at again."""

PLACED_BYTES_MAX: Final = GIB
"""So much of one batch the policy is told of, extent by extent; the rest of it is known to it by its count only."""

LOOKS_MAX: Final = 64
"""So many victims are chosen anew in one round, at most, since they turned out to hold pins."""

PINS_ARE_FULL: Final = "pins hold what they may, pinned_bytes_max: it is kept as of priority high"
PINNED_LATER: Final = "it came before the start or the reload, or when pins held all that they may; it is pinned before it would go"

ROOM_WAIT_S: Final = 5.0
LOOK_AGAIN_S: Final = 0.02


@dataclass(slots=True)
class ReclaimParts:
    """What reclaim works with; made once by the engine."""

    segments: SegmentStore
    state: State
    applier: Applier
    policy: EvictionPolicy
    workers: Workers
    clock: Clock
    stats: Stats
    room_bytes_min: int
    policies: Callable[[], PolicyTable]
    survivors: Survivors
    pins: PinSurvey


class Reclaim:
    """Keeps `room_bytes_min` free where clean bytes can make it, and what bodies wait for on top of that."""

    def __init__(self, parts: ReclaimParts) -> None:
        self._parts = parts
        self._wanted = asyncio.Event()
        self._made = asyncio.Event()
        self._asked_bytes = 0
        self._asked_by_writes = 0
        self._is_all_pinned = False
        for segment in parts.segments.states():
            row = parts.state.segments.get(segment.segment_id)
            parts.policy.found(segment.segment_id, 0 if row is None else row.live_bytes)

    def absorb(self, effects: Effects) -> None:
        """Let the policy know of segments and extents as rows begin to name them; a listener of the engine's state."""
        self._tell_placed(effects)
        is_clean_among = is_dead_among = False
        for segment_id, row in effects.segments.items():
            state = self._state(segment_id)
            if row.live_bytes >= 0 and state is not None:
                self._parts.policy.found(segment_id, row.live_bytes)
                is_clean_among |= row.dirty_bytes == 0
                is_dead_among |= row.live_bytes == 0 and self._is_clean(state)
        # Where all is dirty there is nothing to look for at each write.
        if is_dead_among or (is_clean_among and self._is_room_wanted()):
            self._wanted.set()

    def _tell_placed(self, effects: Effects) -> None:
        """Let the policy know where extents lie, and lie no more; what was written counts as read, at the price of a miss."""
        policy, policies = self._parts.policy, self._parts.policies()
        told_bytes = freed_count = 0
        freed = effects.freed
        for place, (resident, location, is_dirty) in enumerate(effects.placed):
            while freed_count < len(freed) and freed[freed_count][0] <= place:
                self._tell_freed(freed[freed_count][1])
                freed_count += 1
            if self._state(location.segment_id) is None:
                continue
            told_bytes += location.length
            if told_bytes > PLACED_BYTES_MAX:
                self._parts.pins.note(location.segment_id)
                continue
            name = keys.name_on(resident.bucket, resident.key)
            priority = policies.find(name).priority
            use = ExtentUse(name, resident.version_id, resident.start, location.length, priority)
            if is_dirty:
                policy.accessed(use, None)
            policy.admitted(use, location.segment_id, location.offset)
        for _, location in freed[freed_count:]:
            self._tell_freed(location)
        for version_id, size in effects.versions_dropped:
            policy.forgotten(version_id, size)

    def _tell_freed(self, location: Location) -> None:
        self._parts.policy.freed(location.segment_id, location.offset, location.length)

    async def run(self) -> None:
        """Make room when it is wanted, and look by itself every second."""
        while True:
            try:
                async with asyncio.timeout(LOOK_EVERY_S):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                await self.round()
            except StorageError as error:
                log.warning("no space can be reclaimed: %s", error)
                await self._parts.clock.sleep(LOOK_EVERY_S)
            finally:
                self._made.set()

    async def make_room(self, size: int, *, is_for_write: bool = False) -> bool:
        """Wait a bounded time for room for `size` bytes, for a body that found none; False where it does not come.

        Nothing pinned goes for it, unless `is_for_write`.
        """
        self._asked_bytes += size
        self._asked_by_writes += size if is_for_write else 0
        try:
            async with asyncio.timeout(ROOM_WAIT_S):
                while True:
                    self._made.clear()
                    self._wanted.set()
                    await self._made.wait()
                    if self._parts.segments.room_bytes >= size:
                        return True
                    if not self._may_give() or (self._is_all_pinned and not is_for_write):
                        return False
                    # What could go is being read, or is more than one round gives.
                    await self._parts.clock.sleep(LOOK_AGAIN_S)
        except TimeoutError:
            return False
        finally:
            self._asked_bytes -= size
            self._asked_by_writes -= size if is_for_write else 0

    async def round(self) -> None:
        """Give up segments, one after the other, until there is the room that is wanted or nothing more to give.

        Raises:
            StorageError: The disk or the index refused; what was given up so far stays so.
        """
        if self._is_stopped():
            # A record whose sync failed may read back at the next start and name bodies that no row names now.
            return
        await self._parts.workers.run(self._parts.segments.sample_free_bytes)
        self._is_all_pinned = False
        spared: set[int] = set()
        for _ in range(ROUND_SEGMENTS_MAX):
            if self._is_stopped():
                return
            segment_id = self._dead_segment()
            victim = None if segment_id is None else Victim(segment_id)
            if victim is None and self._is_room_wanted():
                victim = await self._choose(spared)
            if victim is None:
                break
            if await self._keep(victim) or victim.pinned_bytes:
                if await self._drop(victim):
                    # There is room for what found none.
                    spared.clear()
            else:
                spared.add(victim.segment_id)
            # Each before the next is chosen: room comes with the unlinking.
            await self._unlink()
        await self._unlink()

    async def _choose(self, spared: Collection[int]) -> Victim | None:
        """Choose what goes, once it is known what of it is pinned; None where nothing can, or only pins could, and need not.

        The spared, whose pins there was no room to write again, go when nothing else can.
        """
        policy = self._parts.policy
        for _ in range(LOOKS_MAX):
            victim = policy.choose(lambda one: one not in spared and self._is_reclaimable(one))
            if victim is None or not await self._parts.pins.before_it_goes(victim.segment_id):
                break
        else:
            return None
        if victim is None or victim.pinned_bytes:
            # Of those that cost a pin, the one that costs least.
            costly = [
                Victim(one, pinned_bytes=policy.pinned_in(one)) for one in spared if self._is_reclaimable(one)
            ]
            costly += [] if victim is None else [victim]
            victim = min(costly, key=lambda one: one.pinned_bytes, default=None)
        if victim is None or not victim.pinned_bytes:
            return victim
        self._is_all_pinned = True
        return victim if self._may_unpin() else None

    def _may_unpin(self) -> bool:
        """Whether space is needed so badly that pins go for it: a write waits, or little is left for all that must find some."""
        room_bytes = self._parts.segments.room_bytes
        return room_bytes < self._asked_by_writes + self._parts.room_bytes_min // 2

    def pinned(self, name: ObjectName, extents: Sequence[Extent]) -> tuple[int, str]:
        """Say how many of these bytes of an object are pinned, and why not all that should be; "" where none are missing.

        What lies in a journal file is left out: that does not go.
        """
        policy = self._parts.policy
        places = [e.location for e in extents if self._state(e.location.segment_id) is not None]
        pinned = sum(policy.pinned_in(p.segment_id, p.offset, p.offset + p.length) for p in places)
        missing = max(0, sum(place.length for place in places) - pinned)
        if not missing or self._parts.policies().find(name).priority is not RetentionPriority.PINNED:
            return pinned, ""
        return pinned, PINNED_LATER if policy.may_pin(missing) else PINS_ARE_FULL

    def _is_stopped(self) -> bool:
        return bool(self._parts.state.failure)

    def _is_room_wanted(self) -> bool:
        return self._parts.segments.room_bytes < self._parts.room_bytes_min + self._asked_bytes

    def _may_give(self) -> bool:
        """Whether any segment could go, now or once its readers are gone."""
        return any(self._is_clean(state) for state in self._parts.segments.states())

    def _dead_segment(self) -> int | None:
        """Give a segment that no row names: of failed bodies, overwritten or deleted objects."""
        for state in self._parts.segments.states():
            row = self._parts.state.segments.get(state.segment_id)
            is_dead = row is None or row.live_bytes == 0
            if is_dead and (self._is_clean(state) or self._seal_released(state)):
                return state.segment_id
        return None

    def _seal_released(self, state: SegmentState) -> bool:
        """Seal the open segment of bytes that go after their flush, all of which have gone; False for any other."""
        is_open = state.stream is Stream.RELEASED and not state.is_sealed and state.size_bytes > 0
        return is_open and state.is_settled and self._parts.segments.seal(state.segment_id)

    def _is_reclaimable(self, segment_id: int) -> bool:
        state = self._state(segment_id)
        return state is not None and self._is_clean(state) and not state.pins

    def _is_clean(self, state: SegmentState) -> bool:
        """Whether a segment gets no more bytes, no row that is not there yet, and has no dirty byte."""
        row = self._parts.state.segments.get(state.segment_id)
        return state.is_sealed and state.is_settled and (row is None or row.dirty_bytes == 0)

    def _state(self, segment_id: int) -> SegmentState | None:
        """Say how a segment stands; None where it is no segment, but a journal file."""
        state = self._parts.segments.state(segment_id)
        return None if state is None or state.stream is Stream.JOURNAL else state

    async def _keep(self, victim: Victim) -> bool:
        """Write again what of a victim is worth it, and let the policy know where it lies; False where pins were to be kept and are not."""
        if not victim.keep:
            return True
        pairs, is_cut_short = await self._parts.survivors.move(victim)
        for old, new in pairs:
            kept = Kept(old.offset, old.offset + old.length)
            self._parts.policy.moved(victim.segment_id, kept, new.segment_id, new.offset)
            self._parts.stats.rewritten_bytes += new.length
        return not (is_cut_short and self._parts.policy.pinned_in(victim.segment_id))

    async def _drop(self, victim: Victim) -> bool:
        """Give a segment up; False where it is not to go after all."""
        segment_id = victim.segment_id
        row = self._parts.state.segments.get(segment_id)
        if not await self._parts.applier.change(DropSegment(segment_id)):
            return False
        # Since the rows went, nobody could read one that names the segment; who had read one before has it pinned.
        is_removed = self._parts.segments.remove(segment_id)
        assert is_removed, f"segment {segment_id:x} had space that was not settled"
        self._parts.policy.removed(segment_id)
        evicted = self._parts.stats.evicted_bytes
        live_bytes = 0 if row is None else row.live_bytes
        pinned_bytes = min(victim.pinned_bytes, live_bytes)
        evicted["pinned"] += pinned_bytes
        evicted["space"] += live_bytes - pinned_bytes
        if pinned_bytes:
            log.warning("%d pinned bytes had to go: nothing else could", pinned_bytes)
        return True

    async def _unlink(self) -> None:
        for segment_id in self._parts.segments.take_removable():
            await self._parts.workers.run(self._parts.segments.unlink, segment_id)
