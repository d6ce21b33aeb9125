"""How fast and how many at a time: token buckets, and the two limits that are learnt from the origin's answers.

Pure: `now_s` comes in. Theory of operation of `AdaptiveRate`:

- There is no limit before the first answer that asks for less. That answer comes where the origin's bucket has run dry, so what was
  sent lately, its burst included, is more than it takes: the first limit is a part of that.
- A cut is gentle (a tenth), since the limit lies near the right one for most of its life; a cut soon behind another is deep, since then
  the first was not enough. Requests that were sent before a cut cut no more: they saw the load of before.
- Between cuts the limit follows a cubic curve with its flat part at the rate that was throttled last (the shape of CUBIC, RFC 9438
  section 4.2): most of the time is spent just under what the origin takes, and where that has grown, the curve finds it soon. A saw of
  larger cuts has its mean far lower: at 0.7 with a linear rise, 0.85.
- It rises only while it is in use. A limit that nobody reaches teaches nothing. Where it has come past the curve's far end unrefused, the
  origin takes more than the curve looks for, and the limit is searched for as the first one is.
- An origin that refuses nearly all, however little it is sent, is not full but failing: its answers say nothing about a rate. Cuts go on
  meanwhile, to spare it. Once it takes requests again, the limit is back within seconds where the first of these cuts left it.
- What the limit saves up is a twentieth of a second, so that a stall here is no burst there.
"""

from typing import Final

CUT_CONCURRENCY: Final = 0.5
"""What an overload leaves of the requests that may be in flight."""

CUT_RATE: Final = 0.9
"""What a throttled answer leaves of a rate."""

CUT_RATE_DEEP: Final = 0.7
"""The same where the cut before was not enough, and of the first measurement."""

PLATEAU_S: Final = 6.0
"""So long after a cut the rate is back where it was throttled; at twice that, as far above it as the cut was below."""

PLATEAU_REQUESTS: Final = 250.0
"""So many requests at least lie between a cut and that time, so that at a low rate too what is refused stays a few in a hundred."""

PLATEAU_S_MAX: Final = 15.0

SOON: Final = 1 / 3
"""A cut within this part of the plateau's time behind another is deep."""

FORGET_RATE_S: Final = 600.0
"""The rate limit goes away after so long without a throttled answer."""

RATE_FLOOR_PER_S: Final = 2.0

FIRST_RATE_MIN: Final = 20.0
"""The first limit is not measured as lower: where little is sent, a refusal tells nothing of what the origin takes."""

FAILING_REFUSED_MIN: Final = 4
"""So many refusals at least, and FAILING_SHARE of all answers, since the first of several cuts make an origin a failing one."""

FAILING_SHARE: Final = 0.8
RELAPSE_S: Final = 60.0
"""An origin that fails so soon after it was used again may have been asked too much: the limit stays below where that began."""

TAKEN_MIN: Final = 4
"""An origin that has taken so many requests between two cuts takes requests."""

RESTORE: Final = 1.0
"""By so much a second a limit rises to where it was before an origin failed."""

METER_BIN_S: Final = 0.5
METER_S_MIN: Final = 0.1
GROWTH_S: Final = 0.1
SEARCH: Final = 0.25
"""By so much a second the first limit rises until it is throttled in its turn: it is no more than a guess."""

BURST_S: Final = 0.05
"""A request rate lets through what has come up in so long at once; at least one request."""

SLOW_START: Final = 0.125
"""By so much a success raises the limit before the first overload: an eighth more each round trip."""

HEADROOM: Final = 2.0
"""A cut for throttling leaves so many times what the learnt rate keeps in flight: the rate does the rest."""


class TokenBucket:
    """At most `burst + rate * t` tokens in any `t` seconds."""

    __slots__ = ("_burst", "_level", "_rate", "_seen_s")

    def __init__(self, *, rate: float, burst: float, now_s: float) -> None:
        if rate <= 0 or burst <= 0:
            raise ValueError(f"rate and burst must be positive, not {rate} and {burst}")
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._seen_s = now_s

    @property
    def rate(self) -> float:
        """Tokens a second."""
        return self._rate

    def take(self, now_s: float, amount: float) -> float:
        """Take `amount` tokens and return 0, or take nothing and return the seconds until they will be there.

        Raises:
            ValueError: The amount is over the burst and would never be there.
        """
        if amount > self._burst:
            raise ValueError(f"{amount} tokens do not fit a burst of {self._burst}")
        wait_s = self.wait_s(now_s, amount)
        if wait_s == 0.0:
            self._level -= amount
        return wait_s

    def wait_s(self, now_s: float, amount: float = 0.0) -> float:
        """Say in how many seconds `amount` tokens are there; with amount 0, until there is no debt."""
        self._refill(now_s)
        return max(0.0, (amount - self._level) / self._rate)

    def charge(self, now_s: float, amount: float) -> None:
        """Pay `amount` now, into debt if need be; a negative amount gives back."""
        self._refill(now_s)
        self._level = min(self._burst, self._level - amount)

    def drain(self, now_s: float) -> None:
        """Lose what is saved up; a debt stays."""
        self._refill(now_s)
        self._level = min(0.0, self._level)

    def set_rate(self, now_s: float, *, rate: float, burst: float) -> None:
        """Go on at another rate; the level is kept, within the new burst."""
        self._refill(now_s)
        self._rate = rate
        self._burst = burst
        self._level = min(self._level, burst)

    def _refill(self, now_s: float) -> None:
        if now_s > self._seen_s:
            self._level = min(self._burst, self._level + (now_s - self._seen_s) * self._rate)
            self._seen_s = now_s


class AdaptiveConcurrency:
    """How many requests may be in flight.

    An eighth more each round until the origin is first overloaded; then one more each round, and halved by an overload.
    """

    __slots__ = ("_ceiling", "_cut_at_s", "_hold_s", "_is_starting", "_left", "_limit", "_taken")

    def __init__(self, *, start: int, ceiling: int) -> None:
        if not 1 <= start <= ceiling:
            raise ValueError(f"a concurrency limit starts in 1 to {ceiling}, not at {start}")
        self._limit = float(start)
        self._ceiling = ceiling
        self._is_starting = True
        self._cut_at_s = float("-inf")
        self._hold_s = 0.0
        self._left = float(start)
        self._taken = 0

    @property
    def limit(self) -> int:
        """Requests that may be in flight, at least 1."""
        return int(self._limit)

    def restart(self, start: int) -> None:
        """Begin anew with little, the origin having been away."""
        self._limit = float(min(start, self._ceiling))
        self._is_starting = True

    def succeeded(self, *, in_flight: int, held_s: float = 0.0) -> None:
        """Rise, if the limit was in use: a limit that nobody reaches teaches nothing. `held_s` is how long the request took."""
        self._taken += 1
        self._hold_s += (held_s - self._hold_s) / 16
        if 2 * in_flight >= self._limit:
            step = SLOW_START if self._is_starting else 1.0 / self._limit
            self._limit = min(self._ceiling, self._limit + step)

    def overloaded(self, now_s: float, *, sent_at_s: float, rate_per_s: float = 0.0) -> None:
        """Halve, once for all requests that were in flight together; not below what a limit on the rate keeps in flight twice over."""
        self._is_starting = False
        if sent_at_s > self._cut_at_s:
            needed = min(self._limit, HEADROOM * rate_per_s * self._hold_s)
            self._limit = max(1.0, needed, self._limit * CUT_CONCURRENCY)
            self._cut_at_s = now_s
            if self._taken >= TAKEN_MIN:
                self._left = self._limit
            self._taken = 0

    def restore(self) -> None:
        """Be back where the first left it of several overloads between which hardly anything was taken."""
        self._limit = max(self._limit, self._left)


class RateMeter:
    """Events a second, smoothed over a few bins of half a second."""

    __slots__ = ("_begun_s", "_bin", "_count", "_rate")

    def __init__(self, now_s: float) -> None:
        self._begun_s = now_s
        self._bin = now_s
        self._count = 0
        self._rate = 0.0

    def add(self, now_s: float) -> None:
        """Count one event."""
        self._roll(now_s)
        self._count += 1

    def rate(self, now_s: float) -> float:
        """Events a second, the bin that is still open included where it says more; at the start what came in METER_S_MIN at least."""
        self._roll(now_s)
        return max(self._rate, self._count / min(METER_BIN_S, max(METER_S_MIN, now_s - self._begun_s)))

    def _roll(self, now_s: float) -> None:
        elapsed_s = now_s - self._bin
        if elapsed_s < METER_BIN_S:
            return
        keep = 0.5 ** (elapsed_s / METER_BIN_S)
        self._rate = keep * self._rate + (1.0 - keep) * self._count / elapsed_s
        self._count = 0
        self._bin = now_s


class _Cuts:
    """Cuts between which the origin took little, and its answers to what was sent since the first.

    Attributes:
        left: Where the limit goes back to, should they be of failures: to what the first left of it.
        depth: Which part of it the first took away.
        is_searching: The first made the limit.
        taken_since: What it took since the last.
    """

    __slots__ = ("begun_at_s", "depth", "is_searching", "left", "refused", "taken", "taken_since")

    def __init__(self, now_s: float, left: float, depth: float, *, is_searching: bool) -> None:
        self.begun_at_s = now_s
        self.left = left
        self.depth = depth
        self.is_searching = is_searching
        self.refused = 0
        self.taken = 0
        self.taken_since = 0

    def is_over(self) -> bool:
        """Whether the origin has taken so much since the last that another cut is about a rate."""
        return self.taken_since >= TAKEN_MIN

    def is_of_failures(self) -> bool:
        """Whether the origin refused nearly all, however little was sent."""
        return self.refused >= max(FAILING_REFUSED_MIN, FAILING_SHARE * (self.refused + self.taken))


class AdaptiveRate:
    """Requests a second that the origin takes: no limit until its first throttled answer, then the head of this module's theory."""

    __slots__ = (
        "_age_s",
        "_bucket",
        "_cut_at_s",
        "_cuts",
        "_depth",
        "_grown_at_s",
        "_is_relapse",
        "_is_restoring",
        "_is_searching",
        "_meter",
        "_plateau",
        "_restored_at_s",
        "_sent",
        "_throttled_at_s",
    )

    def __init__(self, now_s: float) -> None:
        self._meter = RateMeter(now_s)
        self._bucket: TokenBucket | None = None
        self._plateau = 0.0
        self._age_s = 0.0
        self._depth = 1.0 - CUT_RATE
        self._is_searching = True
        self._sent = 0
        self._cuts: _Cuts | None = None
        self._is_restoring = False
        self._restored_at_s = float("-inf")
        self._is_relapse = False
        self._cut_at_s = float("-inf")
        self._throttled_at_s = float("-inf")
        self._grown_at_s = now_s

    @property
    def limit_per_s(self) -> float | None:
        """The limit, None without one."""
        return None if self._bucket is None else self._bucket.rate

    def wait_s(self, now_s: float) -> float:
        """Say in how many seconds the next request may go."""
        self._grow(now_s)
        return 0.0 if self._bucket is None else self._bucket.wait_s(now_s, 1.0)

    def sent(self, now_s: float) -> None:
        """Count a request that goes now."""
        self._meter.add(now_s)
        self._sent += 1
        if self._bucket is not None:
            self._bucket.charge(now_s, 1.0)

    def succeeded(self, *, sent_at_s: float) -> bool:
        """Note that the origin took a request. Whether it had failed before: the limit is restored from here on."""
        cuts = self._cuts
        if cuts is None or sent_at_s <= cuts.begun_at_s:
            return False
        begins = not self._is_restoring and cuts.is_of_failures()
        self._is_restoring = self._is_restoring or begins
        cuts.taken += 1
        cuts.taken_since += 1
        return begins

    def throttled(self, now_s: float, *, sent_at_s: float) -> None:
        """Set or cut the limit, once for all requests that were in flight together."""
        self._throttled_at_s = now_s
        if self._cuts is not None and sent_at_s > self._cuts.begun_at_s:
            self._cuts.refused += 1
        if sent_at_s <= self._cut_at_s:
            return
        self._cut_at_s = now_s
        measured = self._meter.rate(now_s)
        is_soon = False
        if self._bucket is None:
            before, cut = max(FIRST_RATE_MIN, measured), CUT_RATE_DEEP
        else:
            before = min(self._bucket.rate, max(measured, CUT_RATE * self._bucket.rate))
            is_soon = self._age_s < SOON * self._plateau_s()
            cut = CUT_RATE_DEEP if is_soon else CUT_RATE
            if 2.0 * measured < self._bucket.rate:
                # The limit was not in use: it is not what is too high.
                before = max(before, min(self._bucket.rate, FIRST_RATE_MIN * CUT_RATE_DEEP) / cut)
        self._plateau = max(RATE_FLOOR_PER_S, before)
        self._depth = 1.0 - cut
        self._is_restoring = False
        if self._cuts is None or self._cuts.is_over():
            self._is_relapse = now_s - self._restored_at_s < RELAPSE_S
            self._cuts = _Cuts(now_s, before * cut, self._depth, is_searching=self._bucket is None)
        else:
            self._cuts.taken_since = 0
        self._is_searching = self._bucket is None
        self._age_s, self._sent = 0.0, 0
        self._set(now_s, before * cut)
        assert self._bucket is not None, "it was set"
        self._bucket.drain(now_s)

    def timed_out(self, now_s: float, *, sent_at_s: float) -> None:
        """Cut a limit that exists; a time-out alone makes none."""
        if self._bucket is not None:
            self.throttled(now_s, sent_at_s=sent_at_s)

    def _plateau_s(self) -> float:
        return min(PLATEAU_S_MAX, max(PLATEAU_S, PLATEAU_REQUESTS / self._plateau))

    def _grow(self, now_s: float) -> None:
        elapsed_s = now_s - self._grown_at_s
        if self._bucket is None or elapsed_s < max(GROWTH_S, 4.0 / self._bucket.rate):
            return
        if now_s - self._throttled_at_s > FORGET_RATE_S:
            self._bucket, self._cuts = None, None
            self._is_searching, self._is_restoring = True, False
            return
        is_used = 2 * self._sent >= self._bucket.rate * elapsed_s
        self._sent = 0
        self._grown_at_s = now_s
        if is_used:
            self._age_s += elapsed_s
            target = self._restored(elapsed_s) if self._is_restoring else self._risen(elapsed_s)
            if target > self._bucket.rate:
                self._set(now_s, target)

    def _risen(self, elapsed_s: float) -> float:
        assert self._bucket is not None, "there is a limit"
        x = self._age_s / self._plateau_s() - 1.0
        curve = self._plateau * (1.0 + self._depth * x**3)
        search = self._bucket.rate * (1.0 + SEARCH * elapsed_s)
        if self._is_searching:
            return search
        may_search = not self._is_relapse or self._grown_at_s - self._restored_at_s > RELAPSE_S
        return max(curve, search) if x > 1.0 and may_search else curve

    def _restored(self, elapsed_s: float) -> float:
        """Give the limit on its way back; where the first cut left it, all goes on as after that."""
        assert self._bucket is not None, "there is a limit"
        assert self._cuts is not None, "something cut it"
        target, end = self._bucket.rate * (1.0 + RESTORE * elapsed_s), self._cuts.left
        if target < end:
            return target
        self._is_restoring, self._is_searching = False, self._cuts.is_searching
        self._depth, self._age_s = self._cuts.depth, 0.0
        self._plateau = end if self._is_relapse else end / (1.0 - self._depth)
        self._cuts, self._restored_at_s = None, self._grown_at_s
        return end

    def _set(self, now_s: float, rate: float) -> None:
        rate = max(RATE_FLOOR_PER_S, rate)
        burst = max(1.0, rate * BURST_S)
        self._grown_at_s = now_s
        if self._bucket is None:
            self._bucket = TokenBucket(rate=rate, burst=burst, now_s=now_s)
        else:
            self._bucket.set_rate(now_s, rate=rate, burst=burst)
