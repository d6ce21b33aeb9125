"""Hold new writes back while too much is dirty: they wait a bounded time, then the caller writes them through.

The mark bounds what a loss of this machine's disk could cost, and what a flush has to catch up with. Nothing that was
acknowledged is ever dropped to get below it.

    dirty bytes (`State`) + admitted bytes (bodies on their way in) <= limit

A write is counted twice between its commit and its `settle`, which errs on the safe side. Whoever waits is looked at
in the order of arrival each time that dirty bytes may have fallen, and admitted there and then, so that nobody is
woken for nothing; a small write may be admitted past a large one that does not fit yet.
"""

import asyncio
from typing import Final

from storage.rows import Effects
from storage.state import State

WAITING_MAX: Final = 4096
"""More waiting writes than this go through at once; each holds a connection."""


class Backlog:
    """Admits writes below the dirty mark, in the order of arrival as far as bytes allow."""

    def __init__(self, state: State, *, dirty_bytes_limit: int, wait_s_max: float) -> None:
        self._state = state
        self._limit = dirty_bytes_limit
        self._wait_s_max = wait_s_max
        self._waiting: dict[asyncio.Future[None], int] = {}
        self.admitted_bytes = 0
        state.listeners.append(self._absorb)

    def __repr__(self) -> str:
        return (
            f"<Backlog: {self._state.dirty_bytes} dirty and {self.admitted_bytes} admitted of {self._limit} bytes, "
            f"{len(self._waiting)} waiting>"
        )

    async def admit(self, size: int) -> bool:
        """Wait until `size` more dirty bytes are below the mark; False where they are not in time.

        An admitted caller calls `settle(size)` once its bytes are dirty or will not be. A cancelled call has admitted
        nothing.
        """
        if self._fits(size):
            self.admitted_bytes += size
            return True
        if len(self._waiting) >= WAITING_MAX or size > self._limit:
            return False
        return await self._wait(size)

    def settle(self, size: int) -> None:
        """Give back an admission: its bytes are counted as dirty now, or never came."""
        self.admitted_bytes -= size
        assert self.admitted_bytes >= 0, f"{size} bytes were settled that nobody admitted"
        self._look_again()

    async def _wait(self, size: int) -> bool:
        place = asyncio.get_running_loop().create_future()
        self._waiting[place] = size
        try:
            async with asyncio.timeout(self._wait_s_max):
                await place
        except TimeoutError:
            # Perhaps it was admitted in the same step.
            return place.done() and not place.cancelled()
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.settle(size)
            raise
        finally:
            self._waiting.pop(place, None)
        return True

    def _absorb(self, _: Effects) -> None:
        self._look_again()

    def _look_again(self) -> None:
        """Admit whoever fits by now."""
        if not self._waiting:
            return
        for place, size in list(self._waiting.items()):
            if place.done() or not self._fits(size):
                continue
            del self._waiting[place]
            self.admitted_bytes += size
            place.set_result(None)

    def _fits(self, size: int) -> bool:
        return self._state.dirty_bytes + self.admitted_bytes + size <= self._limit
