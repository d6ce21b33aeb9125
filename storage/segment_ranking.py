"""Which segment is given up: the one that loses least a byte freed, and what of it is worth being written again. Pure.

A segment's score is what a byte freed of it costs, in hits lost and bytes written again, by the cheapest way to free FREED_SHARE_MIN of
it. Scores are of when a segment was last looked at: a few are looked at anew each time one is chosen, in a ring, and the one that is
chosen always is. No look takes long: it goes through SAMPLE_EXTENTS of the extents at most, and only a victim is walked through whole.
"""

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Final

from storage.eviction import Kept, Victim
from storage.pins import Pins
from storage.residents import SegmentResidents
from storage.reuse import AGE_BIN, AGE_MAX, CLASS_OF, ROW_OF
from storage.traffic_clock import TrafficClock
from storage.types import Stream
from storage.worth_tables import PINNED_WORTH, WorthTables

FREED_SHARE_MIN: Final = 0.4
"""So much of a victim is freed at least, so that writing again what it keeps never goes round in circles."""

WRITE_COST: Final = 0.5
"""What writing a byte again costs, in prices: more trades hits for writes. On Zipf 0.8 at C/N = 0.1: 0 gave 0.565 and 1.43 bytes rewritten
for one admitted, 0.5 gave 0.563 and 0.28."""

PINNED_SHARE_MAX: Final = 0.9
"""A segment of which no more is pinned can go and keep its pins, which lie among their like from then on: so dead bytes among pins are
a tenth of them at most."""

LOOKS: Final = 8
"""So many segments are looked at anew each time one is chosen."""

TRIES: Final = 4
FOUND_SINGLY: Final = 8
SAMPLE_EXTENTS: Final = 256

_PINNED_SCORE: Final = 1e200
"""The score of a segment that cannot go without a pin, at least: above all others."""

_PRICE_INERTIA: Final = 0.02


class SegmentRanking:
    """The segments that are known, in the order in which they would go.

    Args:
        tables: What an extent is worth.
        pins: What is pinned.
        clock: The traffic.
        survivor_streams: To which stream a survivor goes, by its reference class.

    Attributes:
        segments: What is known of each segment.
        price: What a byte of cache is worth now, in hits a unit of traffic.
    """

    def __init__(
        self, tables: WorthTables, pins: Pins, clock: TrafficClock, survivor_streams: Sequence[Stream]
    ) -> None:
        self._tables = tables
        self._pins = pins
        self._clock = clock
        self._survivor_streams = survivor_streams
        self.segments: Final[dict[int, SegmentResidents]] = {}
        self._ring: list[int] = []
        self._hand = 0
        self._is_reclaimable: Callable[[int], bool] | None = None
        self.price = 0.0
        self._usual_price = 0.0

    def residents_of(self, segment_id: int) -> SegmentResidents:
        """Give what is known of a segment, which is known from here on."""
        residents = self.segments.get(segment_id)
        if residents is None:
            residents = self.segments[segment_id] = SegmentResidents(self._clock.now, self._pins)
            residents.place = len(self._ring)
            self._ring.append(segment_id)
        return residents

    def take_out(self, segment_id: int) -> SegmentResidents | None:
        """Forget a segment, and give what was known of it; None for an unknown one."""
        residents = self.segments.pop(segment_id, None)
        if residents is None:
            return None
        last = self._ring.pop()
        if last != segment_id:
            self._ring[residents.place] = last
            self.segments[last].place = residents.place
        return residents

    def choose(self, is_reclaimable: Callable[[int], bool]) -> Victim | None:
        """Name the segment that costs least a byte freed, as far as its last look and a few new ones tell."""
        self._is_reclaimable = is_reclaimable
        for looked_at in self._next_in_ring():
            self._look(self.segments[looked_at])
        segment_id = self._cheapest(is_reclaimable)
        if segment_id is None:
            return None
        residents = self.segments[segment_id]
        if self._pins.are_all_that_is_left:
            return Victim(segment_id, pinned_bytes=residents.pinned_bytes)
        self._usual_price += _PRICE_INERTIA * (self.price - self._usual_price)
        # The next one should not be the same again while nothing else is known, should the caller fail to remove it.
        return Victim(segment_id, self._kept(residents))

    def look_anew(self) -> Iterator[None]:
        """Look at some segments and at the price anew, in short steps, by what could go when one was chosen last."""
        if self._is_reclaimable is not None:
            for segment_id in tuple(self._next_in_ring()):
                residents = self.segments.get(segment_id)
                if residents is not None:
                    self._look(residents)
                yield
            self._cheapest(self._is_reclaimable)

    def _cheapest(self, is_reclaimable: Callable[[int], bool]) -> int | None:
        cheapest = None
        for _ in range(TRIES):
            cheapest = self._first(self._ranked(), is_reclaimable)
            if cheapest is None:
                self._pins.are_all_that_is_left = False
                return None
            residents = self.segments[cheapest]
            before = residents.score
            loss = self._look(residents)
            self._pins.are_all_that_is_left = residents.score >= _PINNED_SCORE
            if self._pins.are_all_that_is_left:
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
                residents = self.segments[one]
                if residents.pinned_bytes:
                    self._look(residents)
                if residents.score < _PINNED_SCORE:
                    return one
                found = one if found is None else found
        return found

    def _ranked(self) -> Iterator[int]:
        """Give the segments as they are ranked now, the lowest score first."""
        ring, segments = self._ring, self.segments
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
            return PINNED_WORTH, _PINNED_SCORE, 0.0
        worths = self._worths(residents, step)
        if pinned:
            worths = [one for one in worths if one[0] < PINNED_WORTH]
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
        now, table_of = self._clock.now, self._tables.of
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
        return self._tables.prior[AGE_BIN[min(self._clock.now - residents.found_at, AGE_MAX)]]

    def _kept(self, residents: SegmentResidents) -> tuple[Kept, ...]:
        """Name what of a victim is worth more than the cut, neighbours of one stream joined."""
        cut, _, _ = self._cut(residents, 1)
        kept: list[Kept] = []
        room = int((1.0 - FREED_SHARE_MIN) * residents.size_bytes) - residents.pinned_bytes
        for position, (worth, length) in enumerate(self._worths(residents, 1)):
            has_pin = worth == PINNED_WORTH
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
