"""What a repair did, and how it is told: to people a line at a time, to programs as one document."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from storage.aside import KeptAside
from storage.findings import Report
from storage.fsck_survey import Lost
from storage.standing_losses import (
    StandingLosses,
    standing_document,
    standing_lines,
    standing_verdict,
)

KEPT_LINES_MAX: Final = 1000


@dataclass(slots=True)
class RepairOutcome:
    """What was found and done.

    Attributes:
        say: Takes each step's line as it is done.
        steps: Those lines.
        recovered: Changes that are quarantined now: place and reason, the first KEPT_LINES_MAX.
        settled: Changes in doubt that the origin has exactly; they are clean.
        lost: What is damaged or gone of what was acknowledged.
        standing: What earlier repairs found lost, and nobody has dealt with yet.
        dropped_clean: Damaged places of clean bytes that were dropped; `refetched` of them were fetched again.
        has_more: Another run is needed for the rest.
        is_dry: Nothing was done: the lines say what would be.
    """

    say: Callable[[str], None]
    is_dry: bool
    report: Report = field(default_factory=Report)
    steps: list[str] = field(default_factory=list)
    recovered: list[tuple[str, str]] = field(default_factory=list)
    recovered_total: int = 0
    settled: list[str] = field(default_factory=list)
    settled_total: int = 0
    lost: Lost = field(default_factory=Lost)
    standing: tuple[StandingLosses, ...] = ()
    aside: list[KeptAside] = field(default_factory=list)
    dropped_clean: int = 0
    refetched: int = 0
    has_more: bool = False

    @property
    def exit_code(self) -> int:
        """0 where all that was acknowledged is there, 1 where something of it is damaged or lost, or was and still stands."""
        return 1 if self.lost.count or self.standing or self.has_more else 0

    def step(self, line: str) -> None:
        """Tell of one step."""
        line = f"would: {line}" if self.is_dry else line
        self.steps.append(line)
        self.say(line)

    def quarantined(self, place: str, reason: str) -> None:
        """Take note of a change that is quarantined."""
        self.recovered_total += 1
        if len(self.recovered) < KEPT_LINES_MAX:
            self.recovered.append((place, reason))

    def at_origin(self, place: str) -> None:
        """Take note of a change that the origin has."""
        self.settled_total += 1
        if len(self.settled) < KEPT_LINES_MAX:
            self.settled.append(place)

    def lines(self) -> list[str]:
        """Tell the result: what is lost, what is to be decided, what was kept, the verdict last."""
        lines = standing_lines(self.standing)
        lines += [f"lost: {line}" for line in self.lost.lines]
        lines += [f"quarantined: {place}: {reason}" for place, reason in self.recovered]
        lines += [f"at the origin already: {place}" for place in self.settled]
        lines += [f"kept aside: {kept}; it may be deleted once nothing is missed" for kept in self.aside]
        lines.append(self._verdict())
        return lines

    def document(self) -> dict[str, object]:
        """Tell it as values that JSON has."""
        return {
            "exit_status": self.exit_code,
            "is_dry_run": self.is_dry,
            **self.report.document(),
            "lost_before": standing_document(self.standing),
            "steps": self.steps,
            "lost": self.lost.lines,
            "lost_total": self.lost.count,
            "recovered": [{"place": place, "reason": reason} for place, reason in self.recovered],
            "recovered_total": self.recovered_total,
            "at_origin": self.settled,
            "at_origin_total": self.settled_total,
            "kept_aside": [
                {"path": kept.path, "place": kept.place, "size_bytes": kept.size_bytes} for kept in self.aside
            ],
            "dropped_clean": self.dropped_clean,
            "refetched": self.refetched,
            "has_more": self.has_more,
        }

    def _verdict(self) -> str:
        if self.has_more:
            return "NOT DONE: more is damaged than one run repairs; run it again"
        if self.lost.count:
            return (
                f"DAMAGED: {self.lost.count} times something acknowledged is damaged or lost, as named above"
            )
        if self.standing:
            return standing_verdict(self.standing)
        if self.is_dry:
            return "nothing was changed" if self.steps else "sound: nothing to repair"
        return "repaired: all that was acknowledged is there" if self.steps else "sound: nothing to repair"
