"""What has to be done from time to time: checkpoints, id reservations, expiry of uploads, compaction of the journal.

Each duty has its own period and its own task, so that a long one (a compaction) keeps no other (the reservation of
ids) waiting. A duty is skipped while the engine takes no writes. A failure is logged and the duty tried again when it
is due next; none of them is needed for what was acknowledged to be safe.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from storage.clock import Clock
from storage.errors import StorageError

log = logging.getLogger(__name__)

TURN_S: Final = 0.25
CHECKPOINT_EVERY_S: Final = 5.0
EXPIRE_EVERY_S: Final = 60.0
COMPACT_EVERY_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Duty:
    """One thing to do, again `every_s` seconds after it was done.

    `needs_writes` false is done also while the engine takes no writes.
    """

    name: str
    every_s: float
    work: Callable[[], Awaitable[object]]
    needs_writes: bool = True


class Upkeep:
    """Does the duties, each at its own pace."""

    def __init__(self, clock: Clock, duties: tuple[Duty, ...], is_writable: Callable[[], bool]) -> None:
        self._clock = clock
        self._duties = duties
        self._is_writable = is_writable

    async def run(self) -> None:
        """Go on until cancelled; what is not expected of a duty ends all."""
        async with asyncio.TaskGroup() as tasks:
            for duty in self._duties:
                tasks.create_task(self._repeat(duty), name=duty.name)

    async def _repeat(self, duty: Duty) -> None:
        while True:
            await self._clock.sleep(duty.every_s)
            if self._is_writable() or not duty.needs_writes:
                await _carry_out(duty)


async def _carry_out(duty: Duty) -> None:
    try:
        await duty.work()
    except (StorageError, OSError) as error:
        log.warning("%s: %s", duty.name, error)
