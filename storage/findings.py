"""What a check of a cache directory finds, and how it is told.

Bounded: so many problems are kept in words, all are counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Final

from storage.standing_losses import StandingLosses, standing_document, standing_lines, standing_verdict

PROBLEMS_MAX: Final = 1000


class Severity(IntEnum):
    """How bad a problem is; the values are the exit codes of `forebay fsck`."""

    NOTE = 1
    """The gateway mends it, or lives with it: clean bytes that are a miss, files that the next start removes."""

    CRITICAL = 2
    """Acknowledged bytes are damaged or in danger, or the gateway would refuse to start."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be: where, and what."""

    severity: Severity
    where: str
    what: str


@dataclass(slots=True)
class Counts:
    """What was looked at. `replayed` counts the mutations that the next start would apply to the index."""

    journal_files: int = 0
    journal_bytes: int = 0
    replayed: int = 0
    dirty_puts: int = 0
    dirty_deletes: int = 0
    quarantined: int = 0
    dirty_bytes: int = 0
    open_uploads: int = 0
    parts: int = 0
    part_bytes: int = 0
    clean_objects: int = 0
    clean_bytes: int = 0
    verified_bytes: int = 0
    segments: int = 0
    origin_uploads: int = 0


@dataclass(slots=True)
class Report:
    """What a check found.

    Attributes:
        problems: The first PROBLEMS_MAX, in the order found.
        notes, criticals: All of them, counted.
        standing: What earlier repairs found lost; of a repair, its outcome tells it.
        contradictions: The criticals among them that are of rows which contradict each other: another index may not have them.
    """

    problems: list[Problem] = field(default_factory=list)
    notes: int = 0
    criticals: int = 0
    contradictions: int = 0
    first_contradiction: str = ""
    counts: Counts = field(default_factory=Counts)
    standing: tuple[StandingLosses, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 where nothing is wrong, else the worst severity."""
        if self.criticals or self.standing:
            return Severity.CRITICAL
        return Severity.NOTE if self.notes else 0

    def note(self, where: str, what: str) -> None:
        """Add what the gateway mends or lives with."""
        self.add(Severity.NOTE, where, what)

    def critical(self, where: str, what: str) -> None:
        """Add what endangers acknowledged bytes or the next start."""
        self.add(Severity.CRITICAL, where, what)

    def contradiction(self, where: str, what: str) -> None:
        """Add a critical one that lies in the rows of the index alone."""
        self.contradictions += 1
        self.first_contradiction = self.first_contradiction or f"{where}: {what}"
        self.critical(where, what)

    def add(self, severity: Severity, where: str, what: str) -> None:
        """Add a problem."""
        if severity is Severity.CRITICAL:
            self.criticals += 1
        else:
            self.notes += 1
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(severity, where, what))

    def absorb(self, other: "Report") -> None:
        """Put what another look found behind what was found before it; its counts take the place of these."""
        self.problems += other.problems[: PROBLEMS_MAX - len(self.problems)]
        self.notes += other.notes
        self.criticals += other.criticals
        self.contradictions += other.contradictions
        self.first_contradiction = self.first_contradiction or other.first_contradiction
        self.counts = other.counts

    def lines(self) -> Iterator[str]:
        """Tell it as text, a line at a time: what was lost before, problems, then counts, then the verdict."""
        yield from standing_lines(self.standing)
        for problem in self.problems:
            yield f"{problem.severity.name.lower()}: {problem.where}: {problem.what}"
        more = self.notes + self.criticals - len(self.problems)
        if more:
            yield f"... and {more} more"
        for counted in fields(self.counts):
            yield f"{counted.name.replace('_', ' ')}: {getattr(self.counts, counted.name)}"
        yield self._verdict()

    def document(self) -> dict[str, object]:
        """Tell it as values that JSON has."""
        return {
            "problems": [
                {"severity": problem.severity.name.lower(), "where": problem.where, "what": problem.what}
                for problem in self.problems
            ],
            "notes": self.notes,
            "criticals": self.criticals,
            "lost_before": standing_document(self.standing),
            "counts": {counted.name: getattr(self.counts, counted.name) for counted in fields(self.counts)},
        }

    def _verdict(self) -> str:
        if self.criticals:
            return f"DAMAGED: {self.criticals} critical problems, {self.notes} notes; keep a copy before anything else"
        if self.standing:
            return standing_verdict(self.standing)
        if self.notes:
            return f"sound: all dirty bytes are there; {self.notes} notes"
        return "sound: nothing to note"
