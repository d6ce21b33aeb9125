"""Is the origin there at all, and if not, who may look?

Pure: `now_s` comes in. Several attempts in a row without an answer mean that a bucket's origin is away. Then nobody waits for time-outs
any more: one request at a time is let through as a probe, at growing intervals, and all others are turned away at once, so that what is
cached can be served. The first answer ends it; the limiter begins with little then, so that all who waited do not come at once
(Nygard, "Release It!", circuit breaker; AWS Builders' Library, "Using load shedding to avoid overload").
"""

from typing import Final

AWAY_AFTER: Final = 8
"""So many attempts in a row without an answer."""

AWAY_S_MIN: Final = 1.0
"""And for so long: what passes sooner is left to retries."""

PROBE_S_MIN: Final = 0.5
PROBE_S_MAX: Final = 8.0
"""The interval of probes doubles between these bounds."""


class Circuit:
    """Closed while the origin answers, open while it is away."""

    __slots__ = ("_failing_since_s", "_failures", "_interval_s", "_is_probing", "_opened_at_s", "_probe_at_s")

    def __init__(self) -> None:
        self._failures = 0
        self._failing_since_s = 0.0
        self._opened_at_s: float | None = None
        self._interval_s = PROBE_S_MIN
        self._probe_at_s = 0.0
        self._is_probing = False

    @property
    def is_open(self) -> bool:
        """Whether the origin is away."""
        return self._opened_at_s is not None

    def away_s(self, now_s: float) -> float:
        """Say for how long it has been away; 0 where it is not."""
        return 0.0 if self._opened_at_s is None else now_s - self._opened_at_s

    def retry_after_s(self, now_s: float) -> float:
        """Say when to come again: the time of the next probe."""
        return max(1.0, self._probe_at_s - now_s)

    def may_pass(self, now_s: float) -> bool:
        """Whether a request may go on: any while the circuit is closed, one probe whose time has come while it is open."""
        return not self.is_open or (not self._is_probing and now_s >= self._probe_at_s)

    def passed(self) -> bool:
        """Note that a request is on its way. Whether it is the probe of an open circuit."""
        self._is_probing = self.is_open
        return self._is_probing

    def answered(self) -> bool:
        """Close: the origin has answered, whatever it said. Whether it had been open."""
        was_open = self.is_open
        self._failures = 0
        self._opened_at_s = None
        self._is_probing = False
        self._interval_s = PROBE_S_MIN
        return was_open

    def failed(self, now_s: float, *, sent_at_s: float, is_probe: bool = False) -> bool:
        """Count an attempt without an answer. Whether the circuit has opened with it."""
        if self.is_open:
            if is_probe:
                self._put_off(now_s)
            return False
        if not self._failures:
            self._failing_since_s = sent_at_s
        self._failures += 1
        if self._failures < AWAY_AFTER or now_s - self._failing_since_s < AWAY_S_MIN:
            return False
        self._opened_at_s = now_s
        self._put_off(now_s)
        return True

    def gave_up(self) -> None:
        """Note that the probe ended without a word on the origin; the next request may be one in its place."""
        self._is_probing = False

    def _put_off(self, now_s: float) -> None:
        self._is_probing = False
        self._probe_at_s = now_s + self._interval_s
        self._interval_s = min(PROBE_S_MAX, 2.0 * self._interval_s)
