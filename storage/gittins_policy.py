"""The eviction policy: extents ranked by the Gittins index of their (prefix group, reference class, age).

One rule and no modes. `storage/reuse.py` learns from a small sample how soon extents of a prefix are read again (in lessons,
`storage/reuse_lessons.py`), of which index tables are made: what a byte of cache is worth while it waits (`storage/worth_tables.py`).
From these follow

    admission   a missing extent is kept where it is worth more than what would go for it, the price
    the victim  the segment that loses least a byte freed, those of its extents that are worth more than writing them again being kept
                (`storage/segment_ranking.py`)
    release     a group that has long not been read, while others missed, counts next to nothing
    pins        what a policy pins is worth more than all else, goes to a stream of its own, and is bounded (`storage/pins.py`)

Where an epoch reads every item once, what was just read waits longest: new items are turned away and the resident set stays put,
which gives the hit ratio C/N, the best possible there. Where reads cluster, the same rule keeps what was read lately and often.

Here are the books, and what is noted in them: per segment its extents (`storage/residents.py`), for the others a ghost
(`storage/ghost.py`). What rows name and the policy has not seen (extents from before a restart that nobody has read) is worth what all
groups' first reads are.

No step takes long: a look at a segment takes at most SAMPLE_EXTENTS of its extents (`storage/segment_ranking.py`), tables are rebuilt
one class at a time, a step in a few reads, and only a victim is walked through whole. Pure: no clock but traffic, no randomness but
places in a ring.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from storage.eviction import SEGMENT_STOP, ExtentUse, Kept, Victim
from storage.ghost import Ghost
from storage.identities import identity_of, mark_of
from storage.pins import (
    HIGH,
    PINNED,
    PRIORITY_BITS,
    PRIORITY_NUMBERS,
    Pins,
    is_pinned,
    with_priority,
)
from storage.prefix_groups import Group, PrefixGroups
from storage.residents import GRAIN_BYTES, SegmentResidents, first_grains, grains
from storage.reuse import (
    AGE_OLD,
    BINS,
    CLASS_OF,
    CLASSES,
    CODES_AFTER,
    MARK,
    MARKED_MAX,
    STEP_SHIFT,
    UNREAD,
    ReuseMonitor,
    bumped,
)
from storage.reuse_lessons import DIGEST_READS, Lessons
from storage.segment_ranking import SegmentRanking
from storage.traffic_clock import TrafficClock
from storage.types import Stream
from storage.worth_tables import WorthTables

ADMISSION_MARGIN: Final = 1.1
"""A missing extent must be worth so much more than what would go for it: equals are not exchanged."""

ANNOUNCED_MAX: Final = 1 << 16
"""So many grains on their way for reads to come are remembered; of those before, it is forgotten that nobody has read them yet."""

FORGOTTEN_GRAINS_MAX: Final = 64
"""The grains of a longer version that is forgotten are looked for among those followed, which takes longer than naming so many."""

STREAMS_SEGMENTS_MIN: Final = 64
"""A cache of fewer segments has one stream for all survivors, as open segments take room."""

SURVIVORS_SEGMENTS_MIN: Final = 32
"""And one of fewer than these has one for them and for what is new."""

_GROUP_SHIFT: Final = PRIORITY_BITS
_STREAM_OF_CLASS: Final = (Stream.KEPT, Stream.KEPT, Stream.WARM, Stream.WARM, Stream.HOT, Stream.HOT)


class GittinsPolicy:
    """`eviction.EvictionPolicy`, for a cache of `capacity_bytes` in segments of `segment_bytes`.

    Attributes:
        pins: What is pinned, of at most `pinned_bytes_max`.
    """

    def __init__(self, *, capacity_bytes: int, segment_bytes: int, pinned_bytes_max: int = 0) -> None:
        self._capacity_bytes = capacity_bytes
        segments = capacity_bytes // segment_bytes
        self._has_streams = segments >= STREAMS_SEGMENTS_MIN
        survivors = Stream.KEPT if segments >= SURVIVORS_SEGMENTS_MIN else Stream.CLEAN
        survivor_streams = _STREAM_OF_CLASS if self._has_streams else (survivors,) * CLASSES
        self.pins: Final = Pins(pinned_bytes_max)
        self._clock = TrafficClock(capacity_bytes)
        self._groups = PrefixGroups()
        self._ghost = Ghost(keep_bytes=2 * capacity_bytes)
        self._tables = WorthTables(self._groups)
        self._ranking = SegmentRanking(self._tables, self.pins, self._clock, survivor_streams)
        self._lessons = Lessons(
            capacity_bytes, self._clock, self._groups, self._tables, self._ranking, self.pins
        )
        self._segments = self._ranking.segments
        # The place that rows named last and do not any more, and the version that was there.
        self._left: tuple[SegmentResidents | None, int, int | None] = None, 0, None
        self._pending: list[tuple[SegmentResidents, int, int]] = []
        self._announced: dict[int, None] = {}

    def __len__(self) -> int:
        """Count the segments known."""
        return len(self._segments)

    def __repr__(self) -> str:
        return f"<GittinsPolicy: {len(self._segments)} segments, price {self._ranking.price:.3g}>"

    @property
    def price(self) -> float:
        """What a byte of cache is worth now, in hits a unit of traffic."""
        return self._ranking.price

    # --- reads -------------------------------------------------------------------------------------------------------

    def touched(self, segment_id: int, offset: int, length: int) -> bool:
        """Take note of a read of bytes that are known at their place; False, and nothing noted, where they are not.

        The one step that every read of cached bytes pays for: it is written down, and learnt from with DIGEST_READS others.
        """
        residents = self._segments.get(segment_id)
        if residents is None or (
            residents.is_partly_known and not residents.overlaps(offset, offset + length)
        ):
            return False
        pending = self._pending
        pending.append((residents, offset, length))
        if len(pending) >= DIGEST_READS:
            self._digest()
        return True

    def _digest(self) -> None:
        """Learn from the reads that were written down, in their order."""
        pending = self._pending
        if not pending:
            return
        self._pending = []
        unit, groups = self._clock.unit_bytes, self._groups.by_number
        # The clock is read once a read: small numbers from a whole unit on are quicker than those of all traffic.
        since, into = divmod(self._clock.bytes, unit)
        now, last_tag, code_min, monitor = since, -1, 0, self._groups.rest.monitor
        read: dict[int, tuple[ReuseMonitor, int]] = {}
        place_of, codes_after, old = bisect_right, CODES_AFTER, AGE_OLD
        for residents, offset, length in pending:
            into += length
            now = since + into // unit
            offsets = residents.offsets
            position = place_of(offsets, offset) - 1
            if position < 0 or offsets[position] != offset:
                # Not from the beginning of an extent on.
                position = residents.first_at(offset)
                if position == len(offsets) or offsets[position] >= offset + length:
                    continue
            tag = residents.tags[position]
            if tag != last_tag:
                last_tag = tag
                group_read = read.get(tag)
                if group_read is None:
                    monitor = groups[tag >> _GROUP_SHIFT].monitor
                    read[tag] = group_read = monitor, MARK if monitor.limit <= MARKED_MAX else 0
                monitor, code_min = group_read
            codes, stamps = residents.codes, residents.stamps
            # As `bumped`, of whose calls there would be one a read.
            age = now - stamps[position]
            code = codes_after[age >> STEP_SHIFT if age < old else -1][codes[position]]
            codes[position], stamps[position] = code, now
            if code >= code_min and residents.identities[position] <= monitor.limit:
                identity, grain_length = residents.identities[position], residents.lengths[position]
                monitor.observe(identity, grain_length, CLASS_OF[code], since + into / unit)
            if residents.lengths[position] < length:
                self._touch_rest(residents, position, offset + length, (since * unit + into, now))
        for tag in read:
            self._see_hit(groups[tag >> _GROUP_SHIFT], now)
        self._lessons.reads_left -= len(pending)
        self._clock.bytes, self._clock.now = since * unit + into, now
        self._lessons.take_if_due()

    def _touch_rest(
        self, residents: SegmentResidents, position: int, stop: int, time: tuple[int, int]
    ) -> None:
        """Take note of the further grains of a read that goes over more than one."""
        clock, now = time
        offsets, count = residents.offsets, len(residents)
        position += 1
        while position < count and offsets[position] < stop:
            code = bumped(residents.codes[position], now - residents.stamps[position])
            residents.codes[position], residents.stamps[position] = code, now
            group = self._groups.by_number[residents.tags[position] >> _GROUP_SHIFT]
            identity = residents.identities[position]
            if identity <= group.monitor.limit:
                length = residents.lengths[position]
                group.monitor.observe(identity, length, CLASS_OF[code], clock / self._clock.unit_bytes)
            position += 1

    def _see_hit(self, group: Group, now: int) -> None:
        group.runs += 1
        group.read_at = now
        if group.missed_at != self._clock.missed_bytes or group.is_released:
            self._see_again(group)

    def accessed(self, use: ExtentUse, segment_id: int | None, offset: int = 0) -> None:
        """Take note of a read, and learn from it where its object is of the sample."""
        self._digest()
        residents = None if segment_id is None else self._segments.get(segment_id)
        if segment_id is not None and residents is not None:
            if self.touched(segment_id, offset, use.length):
                return
            self._admit_grains(use, residents, offset)
            if self.touched(segment_id, offset, use.length):
                return
        clock = self._clock
        clock.bytes += use.length
        clock.now = clock.bytes // clock.unit_bytes
        self._lessons.reads_left -= 1
        self._lessons.take_if_due()
        if residents is None:
            self._missed(use)

    def _missed(self, use: ExtentUse) -> None:
        clock, now = self._clock, self._clock.now
        group = self._groups.of(use.name, now)
        group.runs += 1
        group.read_at = now
        self._see_again(group)
        clock.missed_bytes += use.length
        group.missed_at = clock.missed_bytes
        for number, _, length in first_grains(use.start, use.length):
            identity = identity_of(use.version_id, number)
            mark = mark_of(identity)
            known = self._ghost.find(mark, now)
            code = 0 if known is None else bumped(known[1], known[0])
            self._announced.pop(identity, None)
            self._ghost.put(mark, length, now, code)
            if identity <= group.monitor.limit:
                clock_units = clock.bytes / clock.unit_bytes
                group.monitor.observe(identity, length, CLASS_OF[code], clock_units)

    def _see_again(self, group: Group) -> None:
        """Note how much the others missed since a group was read last, this run of reads counted already."""
        gap = self._clock.missed_bytes - group.missed_at
        if group.runs > 1 and gap > group.gap_bytes:
            group.gap_bytes = gap
        group.missed_at = self._clock.missed_bytes
        if group.is_released:
            group.is_released = False
            self._tables.clear()

    # --- what comes and goes -----------------------------------------------------------------------------------------

    def admit(self, use: ExtentUse, *, has_room: bool, is_next: bool = False) -> Stream | None:
        """Keep what is worth more than the price; everything that is next, while nothing has to go for it, or of an unknown group.

        Where only pins are left to go for it, nothing.
        """
        self._left = None, 0, None
        group, priority = self._groups.of(use.name, self._clock.now), PRIORITY_NUMBERS[use.priority]
        if self.pins.are_all_that_is_left and not has_room:
            return None
        if priority == PINNED:
            if self.pins.fits(use.length):
                return Stream.PINNED
            priority = HIGH
        number, _, _ = next(grains(use.start, use.length))
        known = self._ghost.find(mark_of(identity_of(use.version_id, number)), self._clock.now)
        class_no = 0 if known is None else CLASS_OF[bumped(known[1], known[0])]
        if not (has_room or is_next) and group.monitor.index:
            table = self._tables.of(group.number << _GROUP_SHIFT | priority)
            if table[class_no * BINS] <= self._ranking.price * ADMISSION_MARGIN:
                return None
        return _STREAM_OF_CLASS[class_no] if class_no > 1 and self._has_streams else Stream.CLEAN

    def announced(self, use: ExtentUse) -> None:
        """Remember what is to come until it is here, or read."""
        for number, _, _ in grains(use.start, use.length):
            self._announced[identity_of(use.version_id, number)] = None
        while len(self._announced) > ANNOUNCED_MAX:
            del self._announced[next(iter(self._announced))]

    def found(self, segment_id: int, live_bytes: int) -> None:
        """Keep the count; what is known of the segment's extents stays."""
        residents = self._ranking.residents_of(segment_id)
        residents.is_partly_known |= live_bytes > residents.known_bytes
        residents.live_bytes = live_bytes
        residents.size_bytes = max(residents.size_bytes, live_bytes)

    def admitted(self, use: ExtentUse, segment_id: int, offset: int) -> None:
        """Remember an extent by its grains; those that were known at their places keep their ages."""
        self._admit_grains(use, self._ranking.residents_of(segment_id), offset)

    def _admit_grains(self, use: ExtentUse, residents: SegmentResidents, offset: int) -> None:
        self._add_grains(use, residents, offset, self._tag(use, residents, offset))

    def _add_grains(self, use: ExtentUse, residents: SegmentResidents, offset: int, tag: int) -> None:
        now = self._clock.now
        for number, distance, length in grains(use.start, use.length):
            identity = identity_of(use.version_id, number)
            known = self._ghost.find(mark_of(identity), now)
            age, code = (0, 0) if known is None else known
            if identity in self._announced:
                del self._announced[identity]
                age, code = 0, UNREAD
            code = code | MARK if identity <= MARKED_MAX else code & ~MARK
            residents.add(offset + distance, length, identity, max(0, now - age), code, tag)
        residents.live_bytes = max(residents.live_bytes, residents.known_bytes)

    def _tag(self, use: ExtentUse, residents: SegmentResidents, offset: int) -> int:
        """Say under which tag an extent is remembered: pinned as a whole where it fits, else of priority HIGH."""
        group = self._groups.of(use.name, self._clock.now)
        tag = group.number << _GROUP_SHIFT | PRIORITY_NUMBERS[use.priority]
        if is_pinned(tag):
            stop = offset + use.length
            if not self.pins.fits(use.length - residents.pinned_in(offset, stop)):
                left, place, version = self._left
                is_joined = left is residents and offset <= place < stop
                if is_joined or version != identity_of(use.version_id, 0) >> 32:
                    # What has just left another place is moved, and does not come.
                    self.pins.refused_bytes += max(0, use.length - residents.known_in(offset, stop))
                return with_priority(tag, HIGH)
        return tag

    def moved(self, segment_id: int, kept: Kept, to_segment_id: int, to_offset: int) -> None:
        """Take the ages along to the new place."""
        self._digest()
        source, target = self._segments.get(segment_id), self._ranking.residents_of(to_segment_id)
        if source is None:
            return
        position = source.first_at(kept.offset)
        while position < len(source) and source.offsets[position] < kept.stop:
            begin = max(source.offsets[position], kept.offset)
            target.put(to_offset + begin - kept.offset, source, position)
            source.take_out(position)
            position += 1

    def removed(self, segment_id: int) -> None:
        """Forget the segment; what was in it and did not move becomes a ghost."""
        self._digest()
        residents = self._ranking.take_out(segment_id)
        if residents is None:
            return
        residents.unpin(0, SEGMENT_STOP)
        for position, length in enumerate(residents.lengths):
            if length:
                mark = mark_of(residents.identities[position])
                self._ghost.put(mark, length, residents.stamps[position], residents.codes[position])

    def freed(self, segment_id: int, offset: int, length: int) -> None:
        """Pin it no more; the rest of the books follow the segment's count of live bytes."""
        residents = self._segments.get(segment_id)
        if residents is not None:
            residents.unpin(offset, offset + length)
            self._left = residents, offset, residents.object_at(offset)

    def forgotten(self, version_id: int, size: int) -> None:
        """Count its bytes no more among those that there are to read."""
        upper, count = identity_of(version_id, 0) >> 32, -(-size // GRAIN_BYTES)
        for group in self._groups.live():
            monitor = group.monitor
            if upper <= monitor.threshold:
                self._digest()
                few = count <= FORGOTTEN_GRAINS_MAX
                monitor.forget(
                    (identity_of(version_id, n) for n in range(count)) if few else monitor.of_object(upper)
                )

    def looked_up(
        self, segment_id: int, start: int, stop: int, uses: Sequence[tuple[ExtentUse, int]]
    ) -> bool:
        """Put what is known under the priorities of now, and get to know what is pinned."""
        residents = self._segments.get(segment_id)
        if residents is None:
            return False
        before = self.pins.came, self.pins.gone
        pinned = [(o, o + use.length) for use, o in uses if PRIORITY_NUMBERS[use.priority] == PINNED]
        residents.unpin_others(start, stop, pinned)
        for use, offset in uses:
            stop, priority = offset + use.length, PRIORITY_NUMBERS[use.priority]
            if priority == PINNED and not self.pins.fits(use.length - residents.pinned_in(offset, stop)):
                priority = HIGH
            residents.set_priority(offset, stop, priority)
            if priority == PINNED and residents.known_in(offset, stop) < use.length:
                # Nobody reads it now: no group comes to be for it, nor goes.
                tag = residents.tag_in(offset, stop)
                tag = self._groups.find(use.name).number << _GROUP_SHIFT if tag is None else tag
                self._add_grains(use, residents, offset, with_priority(tag, PINNED))
        return (self.pins.came, self.pins.gone) != before

    def may_pin(self, size: int) -> bool:
        """Say so by the bound."""
        return self.pins.fits(size)

    def pinned_in(self, segment_id: int, start: int = 0, stop: int = SEGMENT_STOP) -> int:
        """Count them by the books."""
        residents = self._segments.get(segment_id)
        return 0 if residents is None else residents.pinned_in(start, stop)

    # --- the victim --------------------------------------------------------------------------------------------------

    def choose(self, is_reclaimable: Callable[[int], bool]) -> Victim | None:
        """Name the segment that costs least a byte freed, as far as its last look and a few new ones tell."""
        self._digest()
        return self._ranking.choose(is_reclaimable)

    def hit_bound(self) -> float:
        """Estimate C/N, at most 1: of the distinct bytes that are there to read, N, the cache holds C; 0 before any read.

        What is pinned of a group counts for no more than what is read of it.
        """
        distinct = {id(group): group.monitor.distinct_bytes() for group in self._groups.live()}
        total = sum(distinct.values())
        if not total:
            return 0.0
        pinned: Counter[int] = Counter()
        for number, size in self.pins.by_group.items():
            pinned[id(self._groups.by_number[number])] += size
        read = sum(min(size, distinct.get(group, 0.0)) for group, size in pinned.items())
        return min(1.0, (self._capacity_bytes - self.pins.held_bytes + read) / total)


assert len(_STREAM_OF_CLASS) == CLASSES, "each class has its stream"
