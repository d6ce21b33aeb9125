"""A clock that a test sets, and that a sleep moves."""


class SetClock:
    """Both of its clocks show `now_s`; a sleep is over at once, and as late as it was meant to be; `clock.Clock`."""

    def __init__(self, now_s: float = 1000.0) -> None:
        self.now_s = now_s

    def monotonic_s(self) -> float:
        """Read it."""
        return self.now_s

    def wall_s(self) -> float:
        """Read it."""
        return self.now_s

    async def sleep(self, wait_s: float) -> None:
        """Move on."""
        self.now_s += wait_s
