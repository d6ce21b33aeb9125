"""When the next attempt to re-open the cache directory is due, and what is told of it meanwhile. Pure.

The first attempt comes at once: most failures are of one write or one sync. Each that fails doubles the wait before the next, up
to WAIT_S_MAX. A directory that fails again soon after it was re-opened goes on where it was: else a disk on which every second sync
fails would have the engine re-open all the time.
"""

import math
from typing import Final

WAIT_S_MIN: Final = 1.0
WAIT_S_MAX: Final = 60.0
CALM_S: Final = 60.0
"""A directory that was open for so long without a failure begins anew, without a wait."""


class ReopenPace:
    """Counts failures of re-opening; times are monotonic."""

    def __init__(self) -> None:
        self._failures = 0
        self._reopened_at_s = -math.inf
        self._next_at_s = -math.inf
        self._last_failure = ""

    def begin(self, now_s: float) -> None:
        """Take note that the directory has failed."""
        self._last_failure = ""
        self._failures = self._failures + 1 if now_s - self._reopened_at_s < CALM_S else 0

    def wait_s(self, draw: float, now_s: float) -> float:
        """Say how long to wait before the next attempt; `draw` is from [0, 1)."""
        wait_s = 0.0
        if self._failures:
            limit_s = min(WAIT_S_MAX, WAIT_S_MIN * 2.0 ** min(self._failures, 30))
            wait_s = max(WAIT_S_MIN, limit_s * (0.5 + 0.5 * draw))
        self._next_at_s = now_s + wait_s
        return wait_s

    def failed(self, why: str) -> None:
        """Take note of an attempt that failed."""
        self._failures += 1
        self._last_failure = why

    def succeeded(self, now_s: float) -> None:
        """Take note that the directory is open again."""
        self._reopened_at_s = now_s
        self._last_failure = ""

    def retry_after_s(self, now_s: float) -> float:
        """Say when a client whose write was refused may try again: after the next attempt."""
        return min(WAIT_S_MAX, max(WAIT_S_MIN, self._next_at_s - now_s + WAIT_S_MIN))

    def text(self, now_s: float) -> str:
        """Say how re-opening stands, in words for an operator; "" where no attempt has failed since the failure."""
        if not self._last_failure:
            return ""
        return f"re-opening failed: {self._last_failure}; next attempt in {max(0.0, self._next_at_s - now_s):.0f} s"
