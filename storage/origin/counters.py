"""Plain counts of what went to the origin; telemetry reads them at scrape. Pure."""

from typing import Final

SECONDS_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper bounds of the histogram; what is slower is counted in the sum and count only."""


class Seconds:
    """A histogram: `counts[i]` answers took at most SECONDS_BOUNDS[i] and more than the bound before."""

    __slots__ = ("count", "counts", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * len(SECONDS_BOUNDS)
        self.total_s = 0.0
        self.count = 0

    def add(self, seconds: float) -> None:
        """Count one answer."""
        self.count += 1
        self.total_s += seconds
        for index, bound in enumerate(SECONDS_BOUNDS):
            if seconds <= bound:
                self.counts[index] += 1
                return


class OriginCounters:
    """Counts since the process started.

    Attributes:
        requests: Attempts by (operation, status); the status is `timeout`, `connection`, ... where there was no answer.
        seconds: Time to the head of the answer, by operation.
        bytes_in: Body bytes from the origin.
        bytes_out: Body bytes handed to connections to the origin, repeated ones included.
        retries_total: Attempts after the first.
        ranges_ignored: Answers with a whole object where a part of it was asked for.
        is_ignoring_ranges: The last range that was asked for was ignored.
    """

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], int] = {}
        self.seconds: dict[str, Seconds] = {}
        self.bytes_in = 0
        self.bytes_out = 0
        self.retries_total = 0
        self.ranges_ignored = 0
        self.is_ignoring_ranges = False

    @property
    def requests_total(self) -> int:
        """All attempts."""
        return sum(self.requests.values())

    def count_range(self, *, is_ignored: bool) -> bool:
        """Count an answer to a range; say whether it is news that the origin ignores it."""
        is_news = is_ignored and not self.is_ignoring_ranges
        self.is_ignoring_ranges = is_ignored
        self.ranges_ignored += is_ignored
        return is_news

    def count(self, operation: str, status: str, seconds: float) -> None:
        """Count one attempt. Both labels come from closed sets."""
        key = (operation, status)
        self.requests[key] = self.requests.get(key, 0) + 1
        histogram = self.seconds.get(operation)
        if histogram is None:
            histogram = self.seconds[operation] = Seconds()
        histogram.add(seconds)
