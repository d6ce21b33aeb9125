"""Who waits for the flush: barriers with a number that an operator asks for, and waits within one call.

The planner decides when a barrier is over; here its word is kept for whoever asks. One that is over stays known until
newer ones push it out, so that an answer that was lost on its way can be asked for again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, assert_never

from storage.errors import EngineClosedError, OriginUnavailableError, OverloadedError, QuarantinedError
from storage.flush_events import (
    BarrierAdded,
    BarrierBlocked,
    BarrierCancelled,
    BarrierReached,
    FlushState,
    Remaining,
    Scope,
)
from storage.types import ObjectName

OPEN_MAX: Final = 64
"""So many barriers of operators are waited for at a time; each holds the names of all keys that it waits for."""

ENDED_MAX: Final = 64

WAIT_S_MAX: Final = 60.0
"""So long a passed-through operation waits for what must be flushed first; then the origin does not keep up."""

Outcome = BarrierReached | BarrierBlocked


@dataclass(slots=True)
class Barrier:
    """A barrier that somebody may ask about.

    Attributes:
        total: So many keys were to go at its start.
        outcome: None while it is waited for, and for good where the engine stopped first.
    """

    barrier_id: int
    scope: Scope
    total: int = 0
    done: asyncio.Event = field(default_factory=asyncio.Event)
    outcome: Outcome | None = None


class FlushWaits:
    """All barriers.

    Args:
        post: Tells the planner, which may end a barrier there and then.
        remaining: Counts the keys that a barrier waits for.
        last_sequence: Gives the newest sequence that may have been acknowledged.
    """

    def __init__(
        self,
        post: Callable[[BarrierAdded | BarrierCancelled], None],
        remaining: Callable[[int], int],
        last_sequence: Callable[[], int],
    ) -> None:
        self._post = post
        self._remaining = remaining
        self._last_sequence = last_sequence
        self._barriers: dict[int, Barrier] = {}
        self._asked: set[int] = set()
        self._next_id = 1
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._barriers)

    def start(self, scope: Scope) -> Barrier:
        """Begin to flush all that is acknowledged now in scope, ahead of other flushes, for somebody who asks by its id.

        Raises:
            OverloadedError: Too many barriers are waited for.
        """
        self._make_room()
        barrier = self.begin(scope)
        self._asked.add(barrier.barrier_id)
        return barrier

    def begin(self, scope: Scope) -> Barrier:
        """Begin as `start` does, without a bound, for whoever ends it by `drop` or keeps it to the end."""
        barrier = Barrier(self._next_id, scope)
        self._next_id += 1
        self._barriers[barrier.barrier_id] = barrier
        self._post(BarrierAdded(barrier.barrier_id, scope, self._last_sequence()))
        barrier.total = max(barrier.total, self._remaining(barrier.barrier_id))
        return barrier

    def find(self, barrier_id: int) -> Barrier | None:
        """Give a barrier that was begun, or ended lately."""
        return self._barriers.get(barrier_id)

    def end(self, outcome: Outcome) -> None:
        """Take the planner's word on a barrier; one that was dropped is ignored."""
        barrier = self._barriers.get(outcome.barrier_id)
        if barrier is None:
            return
        barrier.outcome = outcome
        if isinstance(outcome, BarrierBlocked):
            # One that is blocked at its start was never counted.
            barrier.total = max(barrier.total, outcome.count)
        barrier.done.set()

    def drop(self, barrier: Barrier) -> None:
        """Forget a barrier; nobody waits for it."""
        self._asked.discard(barrier.barrier_id)
        known = self._barriers.pop(barrier.barrier_id, None)
        if known is not None and known.outcome is None:
            self._post(BarrierCancelled(barrier.barrier_id))

    def take_over(self, before: "FlushWaits") -> None:
        """Go on with the barriers of an engine's life that has ended, under their ids; the planner knows its changes already.

        What they wait for is dirty still, with the sequences it had: nothing is lost of it but what was confirmed.
        """
        self._next_id = before._next_id  # noqa: SLF001  of the same class
        self._barriers, self._asked = before._barriers, before._asked  # noqa: SLF001  of the same class
        before._barriers, before._asked = {}, set()  # noqa: SLF001  of the same class
        for barrier in tuple(self._barriers.values()):
            if barrier.outcome is None:
                self._post(BarrierAdded(barrier.barrier_id, barrier.scope, self._last_sequence()))

    def close(self) -> None:
        """Let all who wait go, without an outcome, and refuse whoever comes."""
        self._is_closed = True
        for barrier in self._barriers.values():
            barrier.done.set()

    async def flush_key(self, name: ObjectName) -> None:
        """Send the key's newest change now; return when it is at the origin and confirmed, or quarantined.

        Raises:
            OriginUnavailableError: The origin does not take it, in time or at all; it stays dirty.
            EngineClosedError: The engine stopped first.
        """
        blocked = await self._flush(Scope(name.bucket, name.key, is_one_key=True))
        if blocked and blocked[0].state is not FlushState.QUARANTINED:
            raise _suspended_error(blocked[0])

    async def flush_bucket(self, bucket: str, prefix: str = "") -> None:
        """Send all that is dirty in a bucket under a prefix; errors as `flush_key`, and QuarantinedError where something is refused."""
        blocked = await self._flush(Scope(bucket, prefix))
        for one in blocked:
            if one.state is FlushState.QUARANTINED:
                raise QuarantinedError(f"{one.name} holds a change that the origin refused: {one.reason}")
        if blocked:
            raise _suspended_error(blocked[0])

    async def _flush(self, scope: Scope) -> tuple[Remaining, ...]:
        """Flush and give what cannot be; nothing where all is at the origin."""
        if self._is_closed:
            raise _closed_error()
        barrier = self.begin(scope)
        try:
            async with asyncio.timeout(WAIT_S_MAX):
                await barrier.done.wait()
        except TimeoutError as error:
            raise OriginUnavailableError(
                "the origin does not take what must be flushed first", status=0, code="Timeout"
            ) from error
        finally:
            self.drop(barrier)
        match barrier.outcome:
            case BarrierReached():
                return ()
            case BarrierBlocked(remaining=remaining):
                return remaining
            case None:
                raise _closed_error()
            case _:
                assert_never(barrier.outcome)

    def _make_room(self) -> None:
        """Forget the oldest barriers that are over, beyond a bound; refuse where too many are not."""
        asked = [self._barriers[barrier_id] for barrier_id in sorted(self._asked)]
        ended = [barrier for barrier in asked if barrier.done.is_set()]
        for barrier in ended[: max(0, len(ended) - ENDED_MAX)]:
            self.drop(barrier)
        if len(asked) - len(ended) >= OPEN_MAX:
            raise OverloadedError(f"{OPEN_MAX} barriers are waited for already", retry_after_s=5.0)


def _suspended_error(one: Remaining) -> OriginUnavailableError:
    return OriginUnavailableError(
        f"{one.name} must be flushed first, and the bucket does not take it: {one.reason}",
        status=0,
        code="Suspended",
    )


def _closed_error() -> EngineClosedError:
    return EngineClosedError("the gateway is stopping", retry_after_s=5.0)
