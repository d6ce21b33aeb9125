"""Who waits for the flush: barriers with a number that an operator asks for, and waits within one call.

The planner decides when a barrier is over; here its word is kept for whoever asks. One that is over stays known until newer ones push it
out, so that an answer that was lost on its way can be asked for again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from storage.errors import OverloadedError
from storage.flush_events import BarrierBlocked, BarrierReached, Scope

OPEN_MAX: Final = 64
"""So many barriers of operators are waited for at a time; each holds the names of all keys that it waits for."""

ENDED_MAX: Final = 64

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

    def end(self, outcome: Outcome) -> None:
        """Take the planner's word."""
        self.outcome = outcome
        if isinstance(outcome, BarrierBlocked):
            # One that is blocked at its start was never counted.
            self.total = max(self.total, outcome.count)
        self.done.set()


class Barriers:
    """The barriers that somebody may ask about.

    Args:
        remaining: Counts the keys that a barrier waits for.
    """

    def __init__(self, remaining: Callable[[int], int]) -> None:
        self._remaining = remaining
        self._barriers: dict[int, Barrier] = {}
        self._asked: set[int] = set()
        self._next_id = 1

    def __len__(self) -> int:
        return len(self._barriers)

    def begin(self, scope: Scope, post: Callable[[Barrier], None], *, is_asked_for: bool) -> Barrier:
        """Begin a barrier: `post` tells the planner, which may end it there and then.

        Args:
            scope: What it waits for.
            post: Tells the planner.
            is_asked_for: It has an owner elsewhere, who asks for it by its id; else whoever began it calls `drop`.

        Raises:
            OverloadedError: Too many are waited for.
        """
        if is_asked_for:
            self._make_room()
        barrier = Barrier(self._next_id, scope)
        self._next_id += 1
        self._barriers[barrier.barrier_id] = barrier
        if is_asked_for:
            self._asked.add(barrier.barrier_id)
        post(barrier)
        barrier.total = max(barrier.total, self._remaining(barrier.barrier_id))
        return barrier

    def find(self, barrier_id: int) -> Barrier | None:
        """Give a barrier by its id."""
        return self._barriers.get(barrier_id)

    def end(self, outcome: Outcome) -> None:
        """Take the planner's word on a barrier; one that was dropped is ignored."""
        barrier = self._barriers.get(outcome.barrier_id)
        if barrier is not None:
            barrier.end(outcome)

    def drop(self, barrier: Barrier) -> bool:
        """Forget a barrier; whether the planner still waits for it."""
        self._asked.discard(barrier.barrier_id)
        return self._barriers.pop(barrier.barrier_id, None) is not None and barrier.outcome is None

    def close(self) -> None:
        """Let all who wait go, without an outcome."""
        for barrier in self._barriers.values():
            barrier.done.set()

    def _make_room(self) -> None:
        asked = [self._barriers[barrier_id] for barrier_id in sorted(self._asked)]
        ended = [barrier for barrier in asked if barrier.done.is_set()]
        for barrier in ended[: max(0, len(ended) - ENDED_MAX)]:
            self.drop(barrier)
        if len(asked) - len(ended) >= OPEN_MAX:
            raise OverloadedError(f"{OPEN_MAX} barriers are waited for already", retry_after_s=5.0)
