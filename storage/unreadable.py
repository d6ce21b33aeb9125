"""Acknowledged bytes that cannot be read back: the alarm, and what an operator is shown of it.

No other copy of such bytes exists. Who meets them (a read, a flush, a compaction) refuses to go on, and says so here: one
critical line that names the object, a number for the metric, a line for `forebay status`. The change itself stays where it is,
refused by the flush until it is replaced, discarded or retried; then it is forgotten here.

The reason in the journal of a quarantined change begins with REASON, so that a start knows such a change again.
"""

import logging
from collections.abc import Iterable
from typing import Final

from storage.records import DirtyEntry
from storage.rows import Effects
from storage.stats import Stats
from storage.types import ObjectName

log = logging.getLogger(__name__)

REASON: Final = "acknowledged bytes cannot be read: "

NAMES_MAX: Final = 10_000
"""So many objects are remembered; of more one line tells that there are, and the flush's quarantine names them."""


class Unreadable:
    """The objects whose newest change cannot be read; on the event loop only."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats
        self._reasons: dict[ObjectName, str] = {}
        self._is_full_told = False
        self._set_level()

    def __len__(self) -> int:
        return len(self._reasons)

    def load(self, entries: Iterable[DirtyEntry]) -> None:
        """Take over what an earlier life found, from the changes it quarantined for it."""
        for entry in entries:
            if entry.quarantine_reason.startswith(REASON):
                self.note(ObjectName(entry.bucket, entry.key), entry.quarantine_reason.removeprefix(REASON))

    def note(self, name: ObjectName, reason: str) -> None:
        """Raise the alarm for an object, once until its change is gone."""
        if name in self._reasons:
            return
        if len(self._reasons) >= NAMES_MAX:
            if not self._is_full_told:
                self._is_full_told = True
                log.critical(
                    "acknowledged bytes of more than %d objects cannot be read; %s too", NAMES_MAX, name
                )
            return
        log.critical("acknowledged bytes of %s cannot be read: %s", name, reason)
        self._reasons[name] = reason
        self._set_level()

    def absorb(self, effects: Effects) -> None:
        """Forget what was replaced, discarded, or could be sent after all; a listener of the engine's state."""
        if not self._reasons:
            return
        for entry in effects.dirty_removed:
            self._reasons.pop(ObjectName(entry.bucket, entry.key), None)
        if len(self._reasons) < NAMES_MAX:
            self._is_full_told = False
        self._set_level()

    def lines(self, limit: int) -> tuple[tuple[str, str], ...]:
        """Give up to `limit` objects with the reason, oldest alarm first."""
        return tuple((str(name), reason) for name, reason in list(self._reasons.items())[:limit])

    def _set_level(self) -> None:
        self._stats.unreadable_dirty_objects = len(self._reasons)
