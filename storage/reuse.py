"""How soon bytes of a prefix are read again: a sampled monitor of reuse ages, and the index that it teaches.

Ages are bytes of traffic between two reads of the same extent, counted in units of C/4096 (C is the size of the cache), in bins
that grow by a fourth root of two. The monitor remembers the extents whose hash is below its threshold, hit or miss, present or
not: so what it learns is not bent by what was evicted. For each reference class (how often an extent was read lately, as the
cache knows it) and age it counts reads ("hits") and waiting ("exposure"); their quotient is the hazard, the chance of a read in
the next unit of traffic.

The index is Gittins': of all the times one could go on keeping an extent, the best ratio "chance of a hit / traffic waited for
it" (Gittins, "Bandit Processes and Dynamic Allocation Indices", J. R. Statist. Soc. B 41, 1979). Where every extent is read once
an epoch the hazard rises with age, so what was just read ranks lowest; where reads cluster it falls, and the ranking is that of
LFU and LRU.

Pure; all of it is touched on the event loop only.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, compress
from math import exp, log2
from typing import Final

UNITS_A_CACHE: Final = 4096
"""The resolution of ages: a cache's worth of traffic is so many units."""

BINS: Final = 72
CLASSES: Final = 6

EDGES: Final = (0.0, *(2.0 ** (step / 4) for step in range(BINS)))
"""Bin `b` holds the ages `[EDGES[b], EDGES[b + 1])`, in units; the last one also what is older."""

HORIZON: Final = EDGES[BINS]
"""The oldest age told apart: some 54 caches' worth of traffic."""

AGE_MAX: Final = int(HORIZON)
"""The last place in `AGE_BIN`."""

ENTRIES_MAX: Final = 3072
"""So many extents a monitor follows at most. More of them learn small caches that change better, and cost each hit more: see the
constants in docs/adr/0023."""

_NARROWED: Final = 0.7
"""The share of those that are still followed once there are too many: never much under 2048, so that few reads are of the sample."""

EVENTS_MIN: Final = 1000
"""A monitor with fewer events neither forgets nor widens its sample."""

AGED_SHARE: Final = 2
"""The waiting of those that are not read again is counted so often while as many reads of the sample come as there are of them: it
takes time for each."""

_ALL: Final = 0xFFFF_FFFF_FFFF_FFFF
_WIDTHS: Final = tuple(EDGES[b + 1] - EDGES[b] for b in range(BINS))
_BASE_RATE: Final = 0.05 / UNITS_A_CACHE
"""What is believed of the hazard before anything was seen: a read in twenty caches' worth of traffic."""

_PRIOR_WIDTHS: Final = 4.0
_SHRINK_WIDTHS: Final = 8.0
_CHANGE_EVENTS: Final = 256
_CHANGE_DISTANCE: Final = 0.45
_CHANGE_FADE: Final = 0.25
_BIN_EIGHTH: Final = EDGES.index(UNITS_A_CACHE / 8)
_BIN_WHOLE: Final = EDGES.index(UNITS_A_CACHE)
_CODE_MAX: Final = 126
_CODES_A_DOUBLING: Final = 16
_HALVING_CACHES: Final = 8
_DECAY_STEPS: Final = 32
_DECAYS_MAX: Final = 8 * _DECAY_STEPS


def bin_of(age: float) -> int:
    """Say in which bin an age of so many units falls."""
    return 0 if age < 1.0 else min(BINS - 1, int(4.0 * log2(age) + 1e-9) + 1)


AGE_BIN: Final = (
    bytes(bin_of(age) for age in range(2))
    + b"".join(bytes((b,)) * (int(EDGES[b + 1] - 1e-9) - int(EDGES[b] - 1e-9)) for b in range(1, BINS))[1:]
)
"""`bin_of` for whole units up to AGE_MAX, as a table."""


def _count_of(code: int) -> float:
    return 2.0 ** ((code - 1) / _CODES_A_DOUBLING) if code else 1.0


def _code_of(count: float) -> int:
    return min(_CODE_MAX, max(1, round(_CODES_A_DOUBLING * log2(count)) + 1))


def _class_of(code: int) -> int:
    count = _count_of(code)
    return 0 if code == 0 else 1 + sum(count >= bound for bound in (1.6, 2.6, 5.0, 12.0))


UNREAD: Final = _CODE_MAX + 1
"""The code of what was brought for a read that is yet to come. That read is its first one."""

CODES: Final = UNREAD + 1
"""How often an extent was read lately is kept in a byte, its code: 0 for the first read, else the logarithm of a count that halves in
eight caches' worth of traffic."""

MARK: Final = CODES
"""Added to the codes of extents whose identity is at most MARKED_MAX, that a read need not look at the identity of any other: all that
is looked up by a code can be by a marked one."""

MARKED_MAX: Final = (1 << 62) - 1

CLASS_OF: Final = bytes(0 if code == UNREAD else _class_of(code) for code in range(CODES)) * 2
"""The reference class of a code: 0 never read before as far as is known, then counts from 1, 1.6, 2.6, 5 and 12."""

ROW_OF: Final = tuple(
    BINS * (CLASSES if code & ~MARK == UNREAD else class_no) for code, class_no in enumerate(CLASS_OF)
)
"""Where the class of a code begins in an index table; that of UNREAD behind all of them."""

UNREAD_INDEX: Final = tuple(
    32.0 / UNITS_A_CACHE if edge < UNITS_A_CACHE / 4 else 0.0 if edge > UNITS_A_CACHE else 1.0 / UNITS_A_CACHE
    for edge in EDGES[:BINS]
)
"""What UNREAD bytes are worth by the time since they were brought: more than nearly all that was read, for a quarter of a cache's worth
of traffic, as they are read soon; then as much as what is read once in a cache's worth; then nobody has come for them."""


def _code_after(code: int, step: int) -> int:
    return 0 if code == UNREAD else _code_of(max(1.0, _count_of(code) * 2.0 ** (-step / _DECAY_STEPS) + 1.0))


STEP_SHIFT: Final = 9
_DECAYED: Final = tuple(
    bytes(_code_after(code, step) for code in range(CODES)) for step in range(_DECAYS_MAX + 1)
)
_DECAYED_MARKED: Final = tuple(row + bytes(code + MARK for code in row) for row in _DECAYED)
CODES_AFTER: Final = tuple(_DECAYED_MARKED[(step + 1) >> 1] for step in range(2 * _DECAYS_MAX + 1))
"""The code of an extent that is read again, by its age in steps of C/8 of traffic and by its code. Counts have decayed by the nearest
whole C/4, of all ages from AGE_OLD on by as much."""

AGE_OLD: Final = 2 * _DECAYS_MAX << STEP_SHIFT
assert _HALVING_CACHES * UNITS_A_CACHE >> STEP_SHIFT == 2 * _DECAY_STEPS, "a decay step is C/4 of traffic"


def bumped(code: int, age: int) -> int:
    """Give the code of an extent that is read again `age` units after its last read."""
    return CODES_AFTER[min(age, AGE_OLD) >> STEP_SHIFT][code]


def gittins(hazards: Sequence[float]) -> list[float]:
    """Give the index of each age bin, in hits a unit of traffic, from the chance of a read within each.

    The best ratio of chance to waiting over all later stopping times: the slopes of a concave hull, joined from the oldest bin on, each
    joint seen from its own start, so that small chances of getting there cost no precision.
    """
    index: list[float] = []
    hull: list[tuple[float, float, float]] = []
    # What follows is the hull's next slope; below the last one nothing is worth waiting for.
    next_chance, next_wait, next_survival = 0.0, 1.0, 1.0
    for hazard, width in zip(reversed(hazards), reversed(_WIDTHS), strict=True):
        chance, wait, survival = hazard, width * (1.0 - hazard / 2.0), 1.0 - hazard
        while next_chance * wait > chance * next_wait:
            chance += survival * next_chance
            wait += survival * next_wait
            survival *= next_survival
            next_chance, next_wait, next_survival = hull.pop()
        hull.append((next_chance, next_wait, next_survival))
        next_chance, next_wait, next_survival = chance, wait, survival
        index.append(chance / wait)
    index.reverse()
    return index


class ReuseMonitor:
    """What one prefix group's sampled extents were seen to do.

    Attributes:
        limit: Extents whose identity is at most this are followed.
        index: The table: BINS values for each class, in hits a unit of traffic; empty before the first `learn`.
        changes: How often most was forgotten, since reads had begun to look unlike those before.
    """

    __slots__ = (
        "_aged_at",
        "_classes",
        "_events",
        "_exposure",
        "_hits",
        "_lasts",
        "_lengths",
        "_long_run",
        "_recent",
        "_recent_count",
        "_slots",
        "_unaged",
        "_unaged_learnt",
        "_whole",
        "changes",
        "index",
        "limit",
    )

    def __init__(self) -> None:
        self.limit = _ALL
        self.index: list[float] = []
        self.changes = 0
        self._hits = [[0.0] * BINS for _ in range(CLASSES)]
        self._exposure = [[0.0] * BINS for _ in range(CLASSES)]
        # Bins waited through whole, as differences between neighbours; `_settle` adds them to the exposure.
        self._whole = [[0.0] * (BINS + 1) for _ in range(CLASSES)]
        self._events = 0.0
        # The extents followed: columns of when each was read last, its class then, its length; and by identity its place in them, in
        # the same order. Waiting is counted up to `_aged_at`, of all of them.
        self._slots: dict[int, int] = {}
        self._lasts = array("d")
        self._classes = bytearray()
        self._lengths = array("I")
        self._aged_at = 0.0
        self._recent = [0, 0, 0, 0]
        self._recent_count = 0
        self._long_run = [0.0, 0.0, 0.0, 0.0]
        # Reads since the waiting was counted last: now, and when the index was made.
        self._unaged = 0
        self._unaged_learnt = 0

    def __len__(self) -> int:
        """Count the extents followed."""
        return len(self._slots)

    @property
    def has_news(self) -> bool:
        """Whether there is more to learn from than what the index was made of."""
        return self._unaged != self._unaged_learnt

    @property
    def threshold(self) -> int:
        """Objects whose hash, of 32 bits, is at most this are followed."""
        return self.limit >> 32

    @property
    def hits(self) -> list[list[float]]:
        """Reads by class and age."""
        return self._hits

    @property
    def exposure(self) -> list[list[float]]:
        """Traffic waited through, by class and age."""
        self._settle()
        return self._exposure

    @property
    def events(self) -> float:
        """How many reads the tables stand for, what was forgotten left out."""
        return self._events

    def distinct_bytes(self) -> float:
        """Estimate how many bytes of the group were read within the horizon, and are still there to be read."""
        return sum(self._lengths) * (0x1_0000_0000 / (self.threshold + 1))

    def typical_age(self) -> float:
        """Estimate the mean age at which extents are read again, in units; 0.0 where none was."""
        hits = [sum(column) for column in zip(*self._hits, strict=True)]
        total = sum(hits)
        return sum(h * EDGES[b] for b, h in enumerate(hits)) / total if total else 0.0

    def observe(self, identity: int, length: int, class_no: int, now: float) -> None:
        """Take note of a read of a sampled extent.

        Args:
            identity: Its 64-bit hash, whose upper half is the object's and at most `threshold`.
            length: Its bytes.
            class_no: The class that the cache gives it now.
            now: The clock of traffic, in units.
        """
        self._events += 1.0
        self._unaged += 1
        self._recent_count = count = self._recent_count + 1
        lasts, classes = self._lasts, self._classes
        slot = self._slots.get(identity)
        if slot is None:
            self._slots[identity] = len(lasts)
            lasts.append(now)
            classes.append(class_no)
            self._lengths.append(length)
            self._recent[3] += 1
            if len(lasts) > ENTRIES_MAX:
                self._narrow()
        else:
            last, class_before = lasts[slot], classes[slot]
            lasts[slot], classes[slot], self._lengths[slot] = now, class_no, length
            age = now - last
            final = AGE_BIN[int(age) if age < AGE_MAX else AGE_MAX]
            self._hits[class_before][final] += 1.0
            self._recent[0 if final < _BIN_EIGHTH else 1 if final < _BIN_WHOLE else 2] += 1
            # As in `_age`.
            aged_at = self._aged_at
            counted = aged_at - last if aged_at > last else 0.0
            first = AGE_BIN[int(counted)]
            exposure = self._exposure[class_before]
            if first == final:
                exposure[first] += age - counted
            else:
                exposure[first] += EDGES[first + 1] - counted
                exposure[final] += age - EDGES[final]
                whole = self._whole[class_before]
                whole[first + 1] += 1.0
                whole[final] -= 1.0
        if count >= _CHANGE_EVENTS:
            self._notice_change()

    def of_object(self, upper: int) -> list[int]:
        """Give the identities that are followed of an object, by their upper half."""
        return [identity for identity in self._slots if identity >> 32 == upper]

    def forget(self, identities: Iterable[int]) -> None:
        """Count extents no more among those that are there to be read. What their waiting teaches stays."""
        for identity in identities:
            slot = self._slots.get(identity)
            if slot is not None:
                self._lengths[slot] = 0

    def _narrow(self) -> None:
        """Follow fewer extents, a root of two less."""
        self.limit = limit = int(self.threshold * _NARROWED) << 32 | 0xFFFF_FFFF
        self._follow_only([identity <= limit for identity in self._slots])
        self._fade(_NARROWED)

    def _follow_only(self, stays: Sequence[bool]) -> None:
        """Let go of extents, by their places."""
        self._slots = {identity: slot for slot, identity in enumerate(compress(self._slots, stays))}
        self._lasts = array("d", compress(self._lasts, stays))
        self._classes = bytearray(compress(self._classes, stays))
        self._lengths = array("I", compress(self._lengths, stays))

    def _notice_change(self) -> None:
        """Forget most of what was learnt where reads have begun to look unlike those before."""
        recent, total = self._recent, self._recent_count
        known = sum(self._long_run)
        if known > 2 * total:
            distance = sum(abs(r / total - k / known) for r, k in zip(recent, self._long_run, strict=True))
            if distance / 2 > _CHANGE_DISTANCE:
                self._fade(_CHANGE_FADE)
                self.changes += 1
        self._long_run = [k + r for k, r in zip(self._long_run, recent, strict=True)]
        self._recent = [0, 0, 0, 0]
        self._recent_count = 0

    def _fade(self, factor: float) -> None:
        self._settle()
        for rows in (self._hits, self._exposure):
            for class_no, row in enumerate(rows):
                rows[class_no] = [value * factor for value in row]
        self._events *= factor
        self._long_run = [value * factor for value in self._long_run]

    def merge(self, other: "ReuseMonitor") -> None:
        """Take over what another monitor has learnt, though not what it follows."""
        for mine, others in ((self._hits, other.hits), (self._exposure, other.exposure)):
            for class_no, row in enumerate(others):
                mine[class_no] = [a + b for a, b in zip(mine[class_no], row, strict=True)]
        self._events += other.events
        self._unaged += 1

    # --- learning ----------------------------------------------------------------------------------------------------

    def totals(self) -> tuple[list[float], list[float]]:
        """Give hits and exposure of each bin, all classes together."""
        self._settle()
        return _columns(self._hits), _columns(self._exposure)

    def learn(self, prior: Sequence[float], now: float) -> None:
        """Take a whole lesson."""
        for _ in self.lesson(prior, now):
            pass

    def lesson(self, prior: Sequence[float], now: float) -> Iterator[None]:
        """Rebuild the index from what was seen, leaning on `prior`, the hazard rates of all groups together, in steps.

        A step takes about 0.1 ms; only what ages the extents followed takes time for each of them, 2 ms at most.
        """
        if self._unaged >= len(self._slots) // AGED_SHARE:
            self._unaged = 0
            self._age(now)
            yield
        self._unaged_learnt = self._unaged
        if len(self._slots) < ENTRIES_MAX // 4 and self.limit < _ALL and self._events > EVENTS_MIN:
            self.limit = min(_ALL, 2 * self.limit + 1)
        if self._events > max(EVENTS_MIN, len(self._slots) / 2):
            self._fade(0.5)
        hits, exposure = self.totals()
        rates = _shrunk(hits, exposure, prior, _SHRINK_WIDTHS)
        index: list[float] = []
        for class_no in range(CLASSES):
            yield
            own = _shrunk(self._hits[class_no], self._exposure[class_no], rates, _SHRINK_WIDTHS)
            index += index_of(own)
        self.index = index

    def _settle(self) -> None:
        """Add the bins that were waited through whole to the exposure."""
        for class_no, differences in enumerate(self._whole):
            if any(differences):
                waits = zip(self._exposure[class_no], accumulate(differences), _WIDTHS, strict=False)
                self._exposure[class_no] = [waited + count * width for waited, count, width in waits]
                self._whole[class_no] = [0.0] * (BINS + 1)

    def _age(self, now: float) -> None:
        """Count the waiting of those that have not been read again, and let go of the oldest."""
        exposures, wholes = self._exposure, self._whole
        aged_at, self._aged_at = self._aged_at, now
        has_old = False
        for last, class_no in zip(self._lasts, self._classes, strict=True):
            age = now - last
            if age < AGE_MAX:
                final = AGE_BIN[int(age)]
            else:
                final, has_old = BINS - 1, True
            counted = aged_at - last if aged_at > last else 0.0
            first = AGE_BIN[int(counted)]
            exposure = exposures[class_no]
            if first == final:
                exposure[first] += age - counted
            else:
                exposure[first] += EDGES[first + 1] - counted
                exposure[final] += age - EDGES[final]
                whole = wholes[class_no]
                whole[first + 1] += 1.0
                whole[final] -= 1.0
        if has_old:
            self._follow_only([now - last < HORIZON for last in self._lasts])


def _columns(rows: Sequence[Sequence[float]]) -> list[float]:
    return list(map(sum, zip(*rows, strict=True)))


def _shrunk(
    hits: Sequence[float], exposure: Sequence[float], rates: Sequence[float], widths: float
) -> list[float]:
    """Give hazard rates, each drawn towards another by so many bin widths of made-up waiting."""
    return [
        (h + widths * w * r) / (e + widths * w)
        for h, e, r, w in zip(hits, exposure, rates, _WIDTHS, strict=True)
    ]


def index_of(rates: Sequence[float]) -> list[float]:
    """Give the index of each age bin from hazard rates, in reads a unit of traffic."""
    return gittins([1.0 - exp(-rate * width) for rate, width in zip(rates, _WIDTHS, strict=True)])


def prior_rates(monitors: Sequence[ReuseMonitor]) -> list[float]:
    """Give the hazard rates of all groups together, which each leans on where it has seen little."""
    totals = [monitor.totals() for monitor in monitors]
    hits = _columns([h for h, _ in totals]) if totals else [0.0] * BINS
    exposure = _columns([e for _, e in totals]) if totals else [0.0] * BINS
    return _shrunk(hits, exposure, [_BASE_RATE] * BINS, _PRIOR_WIDTHS)
