"""The only place that reads time.

Two clocks: monotonic for waits, deadlines and rates; wall for dates, signatures and freshness across restarts. Pure modules
take the number as `now_s`.
"""

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Time as a component, so that tests and simulation decide how it passes."""

    def monotonic_s(self) -> float:
        """Seconds that never go back, from an arbitrary start; only differences mean something."""
        ...

    def wall_s(self) -> float:
        """Seconds since the epoch as the world counts them; may jump."""
        ...

    async def sleep(self, wait_s: float) -> None:
        """Return after `wait_s` seconds, at once where it is not positive."""
        ...


class SystemClock:
    """The machine's clocks and the event loop's sleep."""

    def monotonic_s(self) -> float:
        """Read CLOCK_MONOTONIC."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Read the wall clock."""
        return time.time()

    async def sleep(self, wait_s: float) -> None:
        """Sleep on the running loop."""
        await asyncio.sleep(max(0.0, wait_s))
