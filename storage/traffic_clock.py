"""The clock of the eviction policy: it counts bytes of traffic, and no time. Pure."""

from storage.reuse import UNITS_A_CACHE


class TrafficClock:
    """How much was read so far.

    Attributes:
        unit_bytes: A unit of age: the cache's size over UNITS_A_CACHE.
        bytes: All that was read.
        now: The same, in whole units.
        missed_bytes: What of it was not in the cache.
    """

    __slots__ = ("bytes", "missed_bytes", "now", "unit_bytes")

    def __init__(self, capacity_bytes: int) -> None:
        self.unit_bytes = max(1, capacity_bytes // UNITS_A_CACHE)
        self.bytes = 0
        self.now = 0
        self.missed_bytes = 0
