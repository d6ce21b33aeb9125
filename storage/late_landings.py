"""Which keys may yet be changed at the origin by what was sent there and had no answer. Pure.

What the origin says of such a key meanwhile is right when it says so, and may be outdated in the next moment by a write of this
gateway's own, which every reader has to see. So it is not trusted for longer than the read that asked: a version that was validated
before the last moment at which something may land is validated again before its use, also when that moment is past.
"""

from typing import Final

from storage.types import ObjectName

LANDING_S: Final = 60.0
"""So long after an attempt without an answer it may still land."""

NAMES_MAX: Final = 10_000
"""So many keys are known one by one; beyond that all that was validated up to the latest moment is doubted."""


class LateLandings:
    """Remembers until which wall time what is validated of a key is doubted; for as long as the process lives."""

    def __init__(self) -> None:
        self._until_s: dict[ObjectName, float] = {}
        self._latest_s: dict[str, float] = {}
        self._all_until_s = 0.0

    def note(self, name: ObjectName, now_s: float) -> None:
        """Learn that something under a key, or a version of it, had no answer at a wall time."""
        self._until_s[name.plain] = now_s + LANDING_S
        self._latest_s[name.bucket] = max(self._latest_s.get(name.bucket, 0.0), now_s + LANDING_S)
        if len(self._until_s) > NAMES_MAX:
            self._all_until_s = max(self._all_until_s, *self._until_s.values())
            self._until_s.clear()

    def doubted_at_s(self, name: ObjectName) -> float:
        """Give the wall time up to which what was validated of a key or its versions is doubted; 0 where nothing is."""
        return max(self._until_s.get(name.plain, 0.0), self._all_until_s)

    def bucket_doubted_at_s(self, bucket: str) -> float:
        """Give the wall time up to which what the origin said of any key of a bucket is doubted; 0 where nothing is."""
        return max(self._latest_s.get(bucket, 0.0), self._all_until_s)

    def take_over(self, before: "LateLandings") -> None:
        """Go on with what the life before knew."""
        self._until_s |= before._until_s  # noqa: SLF001  of the same class
        self._latest_s |= before._latest_s  # noqa: SLF001
        self._all_until_s = max(self._all_until_s, before._all_until_s)  # noqa: SLF001
