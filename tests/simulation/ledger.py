"""What clients did and were told, and which state a key may have because of it.

Every write carries a number. A state is allowed as long as no write that was acknowledged began after the state's own
write had ended: writes that overlap may come in either order. A write without an answer may have been carried out or
not; one that went through to the origin may still be for a while, and so may the first attempt of an acknowledged one whose
connection broke, which was repeated within the call. One that was refused never shows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from storage.types import ObjectName
from tests.simulation.origin import DELETED

PASSED_THROUGH = frozenset({"through", "copy"})
"""Kinds of writes that are carried out at the origin only: nothing is kept that could be sent again over a late attempt."""


class Outcome(Enum):
    """What the client was told."""

    PENDING = "pending"
    ACKNOWLEDGED = "acknowledged"
    UNKNOWN = "unknown"
    FAILED = "failed"


@dataclass(eq=False, slots=True)
class Write:
    """One write of a key.

    Attributes:
        state: The number that shows at the origin: its own, or DELETED.
        began, ended: Turns of the loop.
        lands_until_s: Of one without an answer, or passed through: an attempt may be carried out until then.
    """

    number: int
    name: ObjectName
    kind: str
    state: int
    began: int
    began_s: float
    ended: int = 0
    lands_until_s: float = 0.0
    outcome: Outcome = Outcome.PENDING

    def ended_before(self, other: "Write") -> bool:
        """Whether it can have no effect after another one that began later."""
        if self.outcome is Outcome.PENDING:
            return False
        return self.ended < other.began and self.lands_until_s < other.began_s


@dataclass(slots=True)
class Ledger:
    """All writes. `turn` and `now_s` tell the time."""

    turn: Callable[[], int]
    now_s: Callable[[], float]
    late_s: float
    writes: dict[ObjectName, list[Write]] = field(default_factory=dict)
    _given_up: dict[ObjectName, int] = field(default_factory=dict)
    _count: int = 0

    def begin(self, name: ObjectName, kind: str) -> Write:
        """Note that a write begins."""
        self._count += 1
        state = DELETED if kind == "delete" else self._count
        write = Write(self._count, name, kind, state, self.turn(), self.now_s())
        self.writes.setdefault(name, []).append(write)
        return write

    def end(self, write: Write, outcome: Outcome) -> None:
        """Note what the client was told; a write is ended once."""
        assert write.outcome is Outcome.PENDING, f"{write} has ended"
        write.outcome, write.ended = outcome, self.turn()
        if outcome is Outcome.UNKNOWN or (outcome is Outcome.ACKNOWLEDGED and write.kind in PASSED_THROUGH):
            write.lands_until_s = self.now_s() + self.late_s

    def give_up(self, name: ObjectName) -> None:
        """Note that an operator has given up a key's newest change: any earlier state may be what is left."""
        self._given_up[name] = self.turn()

    def allowed(self, name: ObjectName, before: int | None = None) -> set[int]:
        """Give the states that may show to whoever looks from turn `before` on (None: now)."""
        looks_at = self.turn() if before is None else before
        writes = [write for write in self.writes.get(name, ()) if write.outcome is not Outcome.FAILED]
        over = [write for write in writes if self._supersedes(write, looks_at)]
        return {write.state for write in writes if not any(write.ended_before(newer) for newer in over)}

    def must_be_there(self, name: ObjectName, at_turn: int) -> list[Write]:
        """Give the writes that were acknowledged before a turn and not superseded by another one of these."""
        done = [write for write in self.writes.get(name, ()) if self._supersedes(write, at_turn)]
        return [write for write in done if not any(write.ended_before(newer) for newer in done)]

    def by_state(self, name: ObjectName, state: int) -> list[Write]:
        """Give the writes that would make a state."""
        return [
            write
            for write in self.writes.get(name, ())
            if write.state == state and write.outcome is not Outcome.FAILED
        ]

    def story(self, name: ObjectName) -> list[str]:
        """Tell what was done to a key."""
        return [
            f"{write.began_s:.3f} (turns {write.began} to {write.ended}) {write.kind} {write.number}: "
            f"{write.outcome.value}"
            for write in self.writes.get(name, ())
        ]

    def _supersedes(self, write: Write, at_turn: int) -> bool:
        return (
            write.outcome is Outcome.ACKNOWLEDGED
            and write.ended <= at_turn
            and write.began > self._given_up.get(write.name, -1)
        )
