"""What a ledger says of each key, and whether what was read of it may be.

A key must show its last acknowledged state, or that of an attempt that came after it: such a request was sent and not answered, so
it may have happened. Anything else is a violation: the state is gone, one that was superseded is back, one that was refused is there,
or bytes, size or ETag are not
those of the attempt that the object names.

What a check has seen of such an attempt must stay so. A copy is the exception: it may be under way at the origin when the gateway is
killed, and land after the check; until the key's next acknowledgement it stays possible.

Pure.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from gateway.ledger.entries import (
    Acknowledged,
    Attempt,
    Begun,
    Broken,
    LedgerError,
    Line,
    Refused,
    Seen,
    Unanswered,
)

ABSENT: Final = 0
"""Stands for the attempt of a key that nobody ever wrote."""

SHOWN_MAX: Final = 20
"""Lines of a key's history that a violation shows, the newest."""


@dataclass(frozen=True, slots=True)
class Found:
    """What was read of a key; `attempt` is its metadata's, "" without."""

    sha256: str
    size: int
    etag: str
    attempt: str


@dataclass(slots=True)
class KeyHistory:
    """One key.

    Attributes:
        attempts: By number, in order.
        told: ETags of the answers, by number.
        refused: Numbers of attempts that were answered that they are not done.
        settled: The newest attempt that was acknowledged or seen; ABSENT for none.
        confirmed: The newest that was acknowledged to the client itself.
        horizon: Attempts up to this number can no longer come to be seen, unless settled or a copy.
    """

    attempts: dict[int, Attempt] = field(default_factory=dict)
    told: dict[int, str] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    refused: set[int] = field(default_factory=set)
    settled: int = ABSENT
    confirmed: int = ABSENT
    horizon: int = ABSENT
    seen: list[int] = field(default_factory=list)

    @property
    def current(self) -> Attempt | None:
        """The last settled attempt; None where there is none or where it was a delete."""
        attempt = self.attempts.get(self.settled)
        return None if attempt is None or attempt.is_delete else attempt

    @property
    def is_certain(self) -> bool:
        """Whether exactly one state is possible."""
        return len(self.allowed()) == 1

    def allowed(self) -> list[int]:
        """Give the numbers of the attempts whose state may be read."""
        later = [
            number
            for number, attempt in self.attempts.items()
            if number not in self.refused
            and (number > self.horizon or (attempt.operation == "copy" and number > self.confirmed))
        ]
        return [self.settled, *(number for number in later if number != self.settled)]

    def acknowledge(self, number: int) -> None:
        """Count an attempt as done, and all before it as superseded."""
        self.settled = self.confirmed = self.horizon = number

    def refuse(self, number: int) -> None:
        """Count an attempt as one that must never come to be seen."""
        self.refused.add(number)

    def see(self, number: int) -> None:
        """Count an attempt as what the key holds: of all that were sent up to now, no other can come to be seen."""
        self.settled = number
        self.horizon = max(self.attempts, default=ABSENT)
        self.seen.append(number)

    def named(self, name: str) -> Attempt | None:
        """Find the attempt that an object's metadata names."""
        return next(
            (one for one in reversed(self.attempts.values()) if one.name == name and not one.is_delete), None
        )

    def forget_superseded(self) -> None:
        """Drop what only a report would show: a load that runs for days keeps what it needs to go on."""
        self.attempts = {number: one for number, one in self.attempts.items() if number >= self.settled}
        self.told = {number: etag for number, etag in self.told.items() if number >= self.settled}
        self.refused = {number for number in self.refused if number >= self.settled}

    def lines(self) -> list[str]:
        """Write the newest part of the history for people."""
        newest = sorted(self.attempts)[-SHOWN_MAX:]
        return [self._line(self.attempts[number]) for number in newest]

    def _line(self, attempt: Attempt) -> str:
        end = "acknowledged" if attempt.number in self.told else self.reasons.get(attempt.number, "no answer")
        seen = ", seen by a check" if attempt.number in self.seen else ""
        what = "" if attempt.is_delete else f" {attempt.size} bytes, sha256 {attempt.sha256[:16]}"
        return f"{attempt.number:>8} {attempt.at_s:.3f} {attempt.operation}{what}: {end}{seen}"


class Histories:
    """All keys of a ledger. Memory grows with the number of attempts: about 1 KiB each."""

    def __init__(self, lines: Iterable[Line] = ()) -> None:
        self.begun: Begun | None = None
        self.keys: dict[str, KeyHistory] = {}
        self.broken: list[Broken] = []
        self.last_number = ABSENT
        self.acknowledged_total = 0
        for line in lines:
            self.take(line)

    def take(self, line: Line) -> None:
        """Add the next line of the file.

        Raises:
            LedgerError: It speaks of an attempt that was never made.
        """
        match line:
            case Begun():
                self.begun = self.begun or line
            case Attempt():
                self.keys.setdefault(line.key, KeyHistory()).attempts[line.number] = line
                self.last_number = max(self.last_number, line.number)
            case Acknowledged():
                history = self._history(line.key, line.number)
                history.told[line.number] = line.etag
                history.acknowledge(line.number)
                self.acknowledged_total += 1
            case Refused():
                history = self._history(line.key, line.number)
                history.reasons[line.number] = line.reason
                history.refuse(line.number)
            case Unanswered():
                self._history(line.key, line.number).reasons[line.number] = line.reason
            case Seen():
                self._history(line.key, line.number).see(line.number)
            case Broken():
                self.broken.append(line)

    def _history(self, key: str, number: int) -> KeyHistory:
        history = self.keys.get(key)
        if history is None or (number != ABSENT and number not in history.attempts):
            raise LedgerError(f"the ledger lacks attempt {number} of {key!r}")
        return history

    def __iter__(self) -> Iterator[tuple[str, KeyHistory]]:
        yield from sorted(self.keys.items())


def judge(history: KeyHistory, found: Found | None, *, compares_etag: bool = True) -> tuple[int, str]:
    """Say which attempt's state was read, and what is wrong with it ("" for nothing).

    Args:
        history: Of the key.
        found: None where the key is absent.
        compares_etag: Hold the ETag against what the client was told; an origin that encrypts has others of its own.
    """
    allowed = history.allowed()
    if found is None:
        for number in reversed(allowed):
            if number == ABSENT or history.attempts[number].is_delete:
                return number, ""
        return ABSENT, f"LOST: attempt {history.settled} was acknowledged, and the key is absent"
    attempt = history.named(found.attempt)
    if attempt is None:
        return ABSENT, f"FOREIGN: the object names attempt {found.attempt!r}, which this key never had"
    number = attempt.number
    if number in history.refused:
        return number, f"REFUSED: attempt {number} is read, which was answered {history.reasons[number]!r}"
    if number not in allowed:
        return number, f"BACK: attempt {number} is read, which attempt {history.settled} has superseded"
    return number, _difference(attempt, history.told.get(number, ""), found, compares_etag=compares_etag)


def _difference(attempt: Attempt, told_etag: str, found: Found, *, compares_etag: bool) -> str:
    if found.size != attempt.size:
        return f"WRONG SIZE: {found.size} bytes instead of {attempt.size} of attempt {attempt.number}"
    if found.sha256 != attempt.sha256:
        return f"WRONG BYTES: sha256 {found.sha256} instead of {attempt.sha256} of attempt {attempt.number}"
    wanted = {etag for etag in (attempt.etag, told_etag) if etag}
    if compares_etag and wanted and found.etag not in wanted:
        return (
            f"WRONG ETAG: {found.etag} instead of {' or '.join(sorted(wanted))} of attempt {attempt.number}"
        )
    return ""
