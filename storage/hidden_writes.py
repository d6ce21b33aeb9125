"""What was acknowledged here and lies under a published target: a name that readers do not reach, for it means the source's.

Writes look for the policy of a target in their turn, so nothing comes there once it is in force. What was acknowledged before that,
and another gateway's publish did not know of, is looked for here: a publish of this gateway is refused until it is gone, and until
then it is told in the log and in the status. It is not lost: it is flushed as all else, to its own name.
"""

import logging
from collections.abc import Sequence
from typing import Final

from storage import keys
from storage.family import Family
from storage.pointers import Pointers
from storage.publish import Target
from storage.rows import (
    RowSource,
    decode_overlay,
    decoded,
)
from storage.state import State
from storage.types import ObjectName
from storage.workers import Workers

LOOK_EVERY_S: Final = 1.0

ROWS_MAX: Final = 1000
"""So many rows of the overlay are read for one target."""

SHOWN_A_TARGET_MAX: Final = 10

log = logging.getLogger(__name__)


class HiddenWrites:
    """Looks for such writes from time to time.

    Attributes:
        names: Those that the last look found, at most SHOWN_A_TARGET_MAX for each target.
    """

    def __init__(self, index: RowSource, state: State, pointers: Pointers, workers: Workers) -> None:
        self._index = index
        self._state = state
        self._pointers = pointers
        self._workers = workers
        self.names: tuple[ObjectName, ...] = ()

    async def look(self) -> None:
        """Find what lies under the targets in force, and warn of what was not there at the last look."""
        dirty = [bucket for bucket, puts in self._state.dirty_puts.items() if puts]
        targets = [target for bucket in dirty for target in self._pointers.targets.of_bucket(bucket)]
        found = await self._workers.run(self._found, targets) if targets else ()
        for name in found:
            if name not in self.names:
                log.warning(
                    "%s was acknowledged before its published target came into force, and is hidden where that is published",
                    name,
                )
        self.names = found

    def _found(self, targets: Sequence[Target]) -> tuple[ObjectName, ...]:
        return tuple(name for target in targets for name in self._under(target))

    def _under(self, target: Target) -> list[ObjectName]:
        start, stop = keys.prefix_range(target.bucket, target.prefix)
        rows = self._index.scan(Family.OVERLAY, start, stop, ROWS_MAX)
        puts = [
            keys.split_object_key(row_key)
            for row_key, value in rows
            if not decoded(self._index, Family.OVERLAY, row_key, value, decode_overlay).is_tombstone
        ]
        return [name for name in puts if name != target.manifest][:SHOWN_A_TARGET_MAX]
