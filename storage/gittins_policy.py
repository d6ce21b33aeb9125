"""The eviction policy: extents ranked by the Gittins index of their (prefix group, reference class, age).

One rule and no modes. `storage/reuse.py` learns from a small sample how soon extents of a prefix are read again and makes index
tables of it: what a byte of cache is worth while it waits. From these follow

    admission   a missing extent is kept where it is worth more than what would go for it, the price
    the victim  the segment that loses least a byte freed, those of its extents that are worth more than writing them again being kept
    release     a group that has long not been read, while others missed, counts next to nothing
    pins        what a policy pins is worth more than all else, goes to a stream of its own, and is bounded (`storage/pins.py`)

Where an epoch reads every item once, what was just read waits longest: new items are turned away and the resident set stays put,
which gives the hit ratio C/N, the best possible there. Where reads cluster, the same rule keeps what was read lately and often.

Books: per segment its extents (`storage/residents.py`), for the others a ghost (`storage/ghost.py`). What rows name and the
policy has not seen (extents from before a restart that nobody has read) is worth what all groups' first reads are.

No step takes long: a look at a segment takes at most SAMPLE_EXTENTS of its extents, tables are rebuilt one class at a time, a step
in a few reads, and only a victim is walked through whole. Pure: no clock but traffic, no randomness but places in a ring.
"""

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final

from storage.eviction import SEGMENT_STOP, ExtentUse, Kept, Victim
from storage.ghost import Ghost
from storage.identities import identity_of, mark_of
from storage.pins import (
    HIGH,
    LOW,
    NORMAL,
    PINNED,
    PRIORITY_BITS,
    PRIORITY_MASK,
    PRIORITY_NUMBERS,
    Pins,
    is_pinned,
    with_priority,
)
from storage.prefix_groups import Group, PrefixGroups
from storage.residents import GRAIN_BYTES, SegmentResidents, first_grains, grains
from storage.reuse import (
    AGE_BIN,
    AGE_MAX,
    AGE_OLD,
    BINS,
    CLASS_OF,
    CLASSES,
    CODES_AFTER,
    MARK,
    MARKED_MAX,
    ROW_OF,
    STEP_SHIFT,
    UNITS_A_CACHE,
    UNREAD,
    UNREAD_INDEX,
    ReuseMonitor,
    bumped,
    index_of,
    prior_rates,
)
from storage.types import Stream

FREED_SHARE_MIN: Final = 0.4
"""So much of a victim is freed at least, so that writing again what it keeps never goes round in circles."""

WRITE_COST: Final = 0.5
"""What writing a byte again costs, in prices: more trades hits for writes. On Zipf 0.8 at C/N = 0.1: 0 gave 0.565 and 1.43 bytes rewritten
for one admitted, 0.5 gave 0.563 and 0.28."""

ADMISSION_MARGIN: Final = 1.1
"""A missing extent must be worth so much more than what would go for it: equals are not exchanged."""

RELEASE_CACHES: Final = 0.25
"""Others must miss so many caches' worth of bytes before a group that is not read counts as released."""

RELEASED_WORTH: Final = 0.001
PRIORITY_WORTH: Final = {LOW: 0.25, NORMAL: 1.0, HIGH: 4.0}
PINNED_SHARE_MAX: Final = 0.9
"""A segment of which no more is pinned can go and keep its pins, which lie among their like from then on: so dead bytes among pins are
a tenth of them at most."""

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

LOOKS: Final = 8
"""So many segments are looked at anew each time one is chosen."""

TRIES: Final = 4
FOUND_SINGLY: Final = 8
SAMPLE_EXTENTS: Final = 256
ANNOUNCED_MAX: Final = 1 << 16
"""So many grains on their way for reads to come are remembered; of those before, it is forgotten that nobody has read them yet."""

FORGOTTEN_GRAINS_MAX: Final = 64
"""The grains of a longer version that is forgotten are looked for among those followed, which takes longer than naming so many."""

STREAMS_SEGMENTS_MIN: Final = 64
"""A cache of fewer segments has one stream for all survivors, as open segments take room."""

SURVIVORS_SEGMENTS_MIN: Final = 32
"""And one of fewer than these has one for them and for what is new."""

_GROUP_SHIFT: Final = PRIORITY_BITS
_PINNED_WORTH: Final = inf
_PINNED_TABLE: Final = [_PINNED_WORTH] * (BINS * (CLASSES + 1))
_PINNED_SCORE: Final = 1e200
"""The score of a segment that cannot go without a pin, at least: above all others."""

_PRICE_INERTIA: Final = 0.02
_STREAM_OF_CLASS: Final = (Stream.KEPT, Stream.KEPT, Stream.WARM, Stream.WARM, Stream.HOT, Stream.HOT)


class GittinsPolicy:
    """`eviction.EvictionPolicy`, for a cache of `capacity_bytes` in segments of `segment_bytes`.

    Attributes:
        pins: What is pinned, of at most `pinned_bytes_max`.
        price: What a byte of cache is worth now, in hits a unit of traffic.
    """

    def __init__(self, *, capacity_bytes: int, segment_bytes: int, pinned_bytes_max: int = 0) -> None:
        self._capacity_bytes = capacity_bytes
        self._unit_bytes = max(1, capacity_bytes // UNITS_A_CACHE)
        segments = capacity_bytes // segment_bytes
        self._has_streams = segments >= STREAMS_SEGMENTS_MIN
        survivors = Stream.KEPT if segments >= SURVIVORS_SEGMENTS_MIN else Stream.CLEAN
        self._survivor_streams = _STREAM_OF_CLASS if self._has_streams else (survivors,) * CLASSES
        self._segments: dict[int, SegmentResidents] = {}
        self._ring: list[int] = []
        self._hand = 0
        self._ghost = Ghost(keep_bytes=2 * capacity_bytes)
        self._groups = PrefixGroups()
        self.pins: Final = Pins(pinned_bytes_max)
        # The place that rows named last and do not any more, and the version that was there.
        self._left: tuple[SegmentResidents | None, int, int | None] = None, 0, None
        self._clock_bytes = 0
        self._now = 0
        self._missed_bytes = 0
        self._prior = index_of(prior_rates(()))
        self._tables: dict[int, list[float]] = {}
        self._learn_at = self._learn_bytes = max(1, capacity_bytes // LEARN_SHARE)
        self._next_lesson_at = self._learn_at
        self._reads_to_learn = self._reads_between = LEARN_READS_MIN
        self._pending: list[tuple[SegmentResidents, int, int]] = []
        self._announced: dict[int, None] = {}
        self._lesson: Iterator[bool] | None = None
        self._is_reclaimable: Callable[[int], bool] | None = None
        self.price = 0.0
        self._usual_price = 0.0

    def __len__(self) -> int:
        """Count the segments known."""
        return len(self._segments)

    def __repr__(self) -> str:
        return f"<GittinsPolicy: {len(self._segments)} segments, price {self.price:.3g}>"

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
        unit, groups = self._unit_bytes, self._groups.by_number
        # The clock is read once a read: small numbers from a whole unit on are quicker than those of all traffic.
        since, into = divmod(self._clock_bytes, unit)
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
        self._reads_to_learn -= len(pending)
        self._clock_bytes, self._now = since * unit + into, now
        self._learn_if_due()

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
                group.monitor.observe(identity, length, CLASS_OF[code], clock / self._unit_bytes)
            position += 1

    def _see_hit(self, group: Group, now: int) -> None:
        group.runs += 1
        group.read_at = now
        if group.missed_at != self._missed_bytes or group.is_released:
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
        self._clock_bytes += use.length
        self._now = self._clock_bytes // self._unit_bytes
        self._reads_to_learn -= 1
        self._learn_if_due()
        if residents is None:
            self._missed(use)

    def _missed(self, use: ExtentUse) -> None:
        group = self._groups.of(use.name, self._now)
        group.runs += 1
        group.read_at = self._now
        self._see_again(group)
        self._missed_bytes += use.length
        group.missed_at = self._missed_bytes
        for number, _, length in first_grains(use.start, use.length):
            identity = identity_of(use.version_id, number)
            mark = mark_of(identity)
            known = self._ghost.find(mark, self._now)
            code = 0 if known is None else bumped(known[1], known[0])
            self._announced.pop(identity, None)
            self._ghost.put(mark, length, self._now, code)
            if identity <= group.monitor.limit:
                clock_units = self._clock_bytes / self._unit_bytes
                group.monitor.observe(identity, length, CLASS_OF[code], clock_units)

    def _see_again(self, group: Group) -> None:
        """Note how much the others missed since a group was read last, this run of reads counted already."""
        gap = self._missed_bytes - group.missed_at
        if group.runs > 1 and gap > group.gap_bytes:
            group.gap_bytes = gap
        group.missed_at = self._missed_bytes
        if group.is_released:
            group.is_released = False
            self._tables.clear()

    # --- what comes and goes -----------------------------------------------------------------------------------------

    def admit(self, use: ExtentUse, *, has_room: bool, is_next: bool = False) -> Stream | None:
        """Keep what is worth more than the price; everything that is next, while nothing has to go for it, or of an unknown group.

        Where only pins are left to go for it, nothing.
        """
        self._left = None, 0, None
        group, priority = self._groups.of(use.name, self._now), PRIORITY_NUMBERS[use.priority]
        if self.pins.are_all_that_is_left and not has_room:
            return None
        if priority == PINNED:
            if self.pins.fits(use.length):
                return Stream.PINNED
            priority = HIGH
        number, _, _ = next(grains(use.start, use.length))
        known = self._ghost.find(mark_of(identity_of(use.version_id, number)), self._now)
        class_no = 0 if known is None else CLASS_OF[bumped(known[1], known[0])]
        if not (has_room or is_next) and group.monitor.index:
            table = self._table(group.number << _GROUP_SHIFT | priority)
            if table[class_no * BINS] <= self.price * ADMISSION_MARGIN:
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
        residents = self._residents(segment_id)
        residents.is_partly_known |= live_bytes > residents.known_bytes
        residents.live_bytes = live_bytes
        residents.size_bytes = max(residents.size_bytes, live_bytes)

    def admitted(self, use: ExtentUse, segment_id: int, offset: int) -> None:
        """Remember an extent by its grains; those that were known at their places keep their ages."""
        self._admit_grains(use, self._residents(segment_id), offset)

    def _admit_grains(self, use: ExtentUse, residents: SegmentResidents, offset: int) -> None:
        self._add_grains(use, residents, offset, self._tag(use, residents, offset))

    def _add_grains(self, use: ExtentUse, residents: SegmentResidents, offset: int, tag: int) -> None:
        for number, distance, length in grains(use.start, use.length):
            identity = identity_of(use.version_id, number)
            known = self._ghost.find(mark_of(identity), self._now)
            age, code = (0, 0) if known is None else known
            if identity in self._announced:
                del self._announced[identity]
                age, code = 0, UNREAD
            code = code | MARK if identity <= MARKED_MAX else code & ~MARK
            residents.add(offset + distance, length, identity, max(0, self._now - age), code, tag)
        residents.live_bytes = max(residents.live_bytes, residents.known_bytes)

    def _tag(self, use: ExtentUse, residents: SegmentResidents, offset: int) -> int:
        """Say under which tag an extent is remembered: pinned as a whole where it fits, else of priority HIGH."""
        group = self._groups.of(use.name, self._now)
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

    def _residents(self, segment_id: int) -> SegmentResidents:
        residents = self._segments.get(segment_id)
        if residents is None:
            residents = self._segments[segment_id] = SegmentResidents(self._now, self.pins)
            residents.place = len(self._ring)
            self._ring.append(segment_id)
        return residents

    def moved(self, segment_id: int, kept: Kept, to_segment_id: int, to_offset: int) -> None:
        """Take the ages along to the new place."""
        self._digest()
        source, target = self._segments.get(segment_id), self._residents(to_segment_id)
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
        residents = self._segments.pop(segment_id, None)
        if residents is None:
            return
        residents.unpin(0, SEGMENT_STOP)
        last = self._ring.pop()
        if last != segment_id:
            self._ring[residents.place] = last
            self._segments[last].place = residents.place
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
        self._is_reclaimable = is_reclaimable
        for looked_at in self._next_in_ring():
            self._look(self._segments[looked_at])
        segment_id = self._cheapest(is_reclaimable)
        if segment_id is None:
            return None
        residents = self._segments[segment_id]
        if self.pins.are_all_that_is_left:
            return Victim(segment_id, pinned_bytes=residents.pinned_bytes)
        self._usual_price += _PRICE_INERTIA * (self.price - self._usual_price)
        # The next one should not be the same again while nothing else is known, should the caller fail to remove it.
        return Victim(segment_id, self._kept(residents))

    def _cheapest(self, is_reclaimable: Callable[[int], bool]) -> int | None:
        cheapest = None
        for _ in range(TRIES):
            cheapest = self._first(self._ranked(), is_reclaimable)
            if cheapest is None:
                self.pins.are_all_that_is_left = False
                return None
            residents = self._segments[cheapest]
            before = residents.score
            loss = self._look(residents)
            self.pins.are_all_that_is_left = residents.score >= _PINNED_SCORE
            if self.pins.are_all_that_is_left:
                break
            self.price = loss
            if residents.score <= before * 1.02 + 1e-30:
                break
        return cheapest

    def _first(self, ranked: Iterator[int], is_reclaimable: Callable[[int], bool]) -> int | None:
        """Give the first that may go and costs no pin; the first that may go where all do."""
        found = None
        for one in ranked:
            if is_reclaimable(one):
                residents = self._segments[one]
                if residents.pinned_bytes:
                    self._look(residents)
                if residents.score < _PINNED_SCORE:
                    return one
                found = one if found is None else found
        return found

    def _ranked(self) -> Iterator[int]:
        """Give the segments as they are ranked now, the lowest score first."""
        ring, segments = self._ring, self._segments
        scores = [segments[segment_id].score for segment_id in ring]
        # As a rule one of the first few may go: cheaper found one by one than by sorting all.
        found_singly = min(FOUND_SINGLY, len(ring))
        for _ in range(found_singly):
            place = scores.index(min(scores))
            yield ring[place]
            scores[place] = inf
        ranked = sorted(range(len(ring)), key=scores.__getitem__)
        yield from (ring[place] for place in ranked[: len(ring) - found_singly])

    def _next_in_ring(self) -> Iterator[int]:
        for _ in range(min(LOOKS, len(self._ring))):
            self._hand = (self._hand + 1) % len(self._ring)
            yield self._ring[self._hand]

    def _look(self, residents: SegmentResidents) -> float:
        """Score a segment by a sample of its extents; give what a byte freed loses in hits."""
        _, score, loss = self._cut(residents, max(1, len(residents) // SAMPLE_EXTENTS))
        residents.score = score
        return loss

    def _cut(self, residents: SegmentResidents, step: int) -> tuple[float, float, float]:
        """Say up to which worth extents should be dropped, what a byte freed then costs, and what it loses in hits.

        The cheapest of all ways to free at least FREED_SHARE_MIN of the segment by dropping what is worth least; among pins less will do.
        """
        pinned = residents.pinned_bytes
        if pinned > PINNED_SHARE_MAX * residents.size_bytes:
            return _PINNED_WORTH, _PINNED_SCORE, 0.0
        worths = self._worths(residents, step)
        if pinned:
            worths = [one for one in worths if one[0] < _PINNED_WORTH]
        counted = sum(length for _, length in worths)
        # What is sampled stands for what is live: dead bytes are free already.
        known = max(pinned, min(residents.known_bytes, residents.live_bytes) or residents.known_bytes)
        scale = (known - pinned) / counted if counted else 0.0
        unknown = residents.unknown_bytes
        lost = unknown * self._unknown_worth(residents)
        kept = float(known)
        freed = max(1.0, residents.size_bytes - kept)
        freed_min = FREED_SHARE_MIN * residents.size_bytes
        write_cost = WRITE_COST * self._usual_price
        best_cut, best_score, best_loss = -1.0, 1e300, 0.0
        if freed >= freed_min:
            best_score, best_loss = (lost + write_cost * kept) / freed, lost / freed
        for worth, length in sorted(worths):
            size = length * scale
            lost += worth * size
            freed += size
            kept -= size
            if freed < freed_min:
                continue
            score = (lost + write_cost * kept) / freed
            if score <= best_score:
                best_cut, best_score, best_loss = worth, score, lost / freed
        if best_score == 1e300:
            # Pins left less than what is asked for, or rounding did.
            score = (lost + write_cost * pinned) / freed
            return max(worths)[0] if worths else 0.0, score, lost / freed
        return best_cut, best_score, best_loss

    def _worths(self, residents: SegmentResidents, step: int) -> list[tuple[float, int]]:
        """Give index and length of every `step`-th extent."""
        now, table_of = self._now, self._table
        found = zip(
            residents.tags[::step],
            residents.codes[::step],
            residents.stamps[::step],
            residents.lengths[::step],
            strict=True,
        )
        return [
            (table_of(tag)[ROW_OF[code] + AGE_BIN[min(now - stamp, AGE_MAX)]], length)
            for tag, code, stamp, length in found
        ]

    def _unknown_worth(self, residents: SegmentResidents) -> float:
        return self._prior[AGE_BIN[min(self._now - residents.found_at, AGE_MAX)]]

    def _kept(self, residents: SegmentResidents) -> tuple[Kept, ...]:
        """Name what of a victim is worth more than the cut, neighbours of one stream joined."""
        cut, _, _ = self._cut(residents, 1)
        kept: list[Kept] = []
        room = int((1.0 - FREED_SHARE_MIN) * residents.size_bytes) - residents.pinned_bytes
        for position, (worth, length) in enumerate(self._worths(residents, 1)):
            has_pin = worth == _PINNED_WORTH
            if worth <= cut or not (length <= room or has_pin) or not length:
                continue
            room -= 0 if has_pin else length
            offset = residents.offsets[position]
            stream = self._survivor_streams[CLASS_OF[residents.codes[position]]]
            stream = Stream.PINNED if has_pin else stream
            if kept and kept[-1].stop == offset and kept[-1].stream is stream:
                kept[-1] = Kept(kept[-1].offset, offset + length, stream)
            else:
                kept.append(Kept(offset, offset + length, stream))
        return tuple(kept)

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

    # --- learning ----------------------------------------------------------------------------------------------------

    def _table(self, tag: int) -> list[float]:
        """Give the index table of a group and priority, made once after each time something was learnt."""
        table = self._tables.get(tag)
        if table is None and is_pinned(tag):
            table = self._tables[tag] = _PINNED_TABLE
        elif table is None:
            group = self._groups.by_number[tag >> _GROUP_SHIFT]
            weight = PRIORITY_WORTH[tag & PRIORITY_MASK] * (RELEASED_WORTH if group.is_released else 1.0)
            index = group.monitor.index or self._prior * CLASSES
            if weight != 1.0:
                index = [weight * value for value in index]
            # Whoever announced a read knows more of it than what is known of the group.
            table = self._tables[tag] = [*index, *UNREAD_INDEX]
        return table

    def _learn_if_due(self) -> None:
        while self._reads_to_learn <= 0 and self._clock_bytes >= self._learn_at:
            self._learn()

    def _learn(self) -> None:
        """Take one short step of the lesson that is on, beginning one where the last is over."""
        lesson = self._lesson
        if lesson is None:
            self._next_lesson_at = self._clock_bytes + self._learn_bytes
            lesson = self._lesson = self._steps()
        if next(lesson, False):
            self._learn_at = self._clock_bytes
            # However many short reads came before the lesson was due.
            self._reads_to_learn = max(self._reads_to_learn, -DIGEST_READS) + LEARN_READS_A_STEP
            return
        self._lesson = None
        self._learn_at = self._next_lesson_at
        # What little is known of changes fast, what much was read of slowly.
        self._reads_between = min(LEARN_READS_MAX, self._reads_between * 9 // 8)
        self._reads_to_learn = self._reads_between

    def _steps(self) -> Iterator[bool]:
        """Rebuild the tables of all groups one after the other, then look at prices anew; no step takes long."""
        groups = self._groups.live()
        rates = prior_rates([group.monitor for group in groups])
        self._prior = index_of(rates)
        yield True
        for group in groups:
            if len(groups) <= GROUPS_LEARNT_ALL or group.monitor.has_news:
                for _ in group.monitor.lesson(rates, self._clock_bytes / self._unit_bytes):
                    yield True
            group.gap_bytes *= 0.999
            gap = self._missed_bytes - group.missed_at
            # Pins make the cache smaller for all else.
            loose_bytes = self._capacity_bytes - self.pins.held_bytes
            group.is_released = gap > RELEASE_CACHES * loose_bytes and gap > 1.5 * group.gap_bytes
            self._tables.clear()
            yield True
        if self._is_reclaimable is not None:
            for segment_id in tuple(self._next_in_ring()):
                residents = self._segments.get(segment_id)
                if residents is not None:
                    self._look(residents)
                yield True
            self._cheapest(self._is_reclaimable)


assert len(_STREAM_OF_CLASS) == CLASSES, "each class has its stream"
