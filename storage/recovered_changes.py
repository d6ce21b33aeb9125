"""Which acknowledged changes a repair cannot vouch for, and what the origin's answer makes of each.

A change is in doubt where the journal around it is lost (it may have been replaced, deleted or flushed since, or follow something that
was), where only the index names it, or where its bytes do not read back. A change in doubt is never sent by itself: it might overwrite
what is newer. It is quarantined with a reason that begins with RECOVERED, for an operator to retry or discard.

Where the origin has exactly this state, there is nothing left to decide: the change is at the origin, and what was dirty is clean.

What the index holds is not in doubt, whatever the journal lost before: its rows are the sum of all changes up to the one applied last.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from storage.described import has_description
from storage.journal_salvage import Hole
from storage.origin.wire import OriginObject
from storage.records import DirtyEntry, ObjectRecord
from storage.types import ObjectName

RECOVERED: Final = "recovered: "
REASON_CHARACTERS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class Looked:
    """What the origin says of a key: `found` None is "not there", unless `error` says that it gave no answer."""

    found: OriginObject | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class JournalKnowledge:
    """What is known of the sequences behind `applied_sequence`, that of the index the state was built on.

    Attributes:
        read_sequence: The highest that the journal still says.
    """

    holes: tuple[Hole, ...]
    applied_sequence: int
    read_sequence: int

    def uncovered(self) -> tuple[Hole, ...]:
        """Give the holes that the index does not make up for."""
        return tuple(
            Hole(max(hole.first, self.applied_sequence + 1), hole.last)
            for hole in self.holes
            if hole.last is None or hole.last > self.applied_sequence
        )


def doubt(entry: DirtyEntry, knowledge: JournalKnowledge, damage: str) -> str:
    """Say why a change is in doubt; "" where it is not. `damage` says what of its bytes does not read back."""
    if damage:
        return f"{RECOVERED}{damage}"
    holes = knowledge.uncovered()
    if holes:
        later = next((hole for hole in holes if hole.first > entry.sequence), None)
        if later is not None:
            return f"{RECOVERED}{later} of the journal cannot be read and may have replaced it"
        return f"{RECOVERED}it follows {holes[-1]} of the journal, which cannot be read"
    if entry.sequence > knowledge.read_sequence:
        return f"{RECOVERED}the journal lost change {entry.sequence}; the index has it"
    return entry.quarantine_reason if entry.quarantine_reason.startswith(RECOVERED) else ""


def is_same(entry: DirtyEntry, record: ObjectRecord | None, looked: Looked) -> bool:
    """Whether the origin has exactly what the change made: these bytes and what describes them, or nothing after a delete."""
    if looked.error:
        return False
    found = looked.found
    if entry.is_tombstone or record is None or found is None:
        return entry.is_tombstone and found is None
    return found.etag == record.etag and has_description(found, record)


def reason(why: str, entry: DirtyEntry, looked: Looked) -> str:
    """Write the reason of the quarantine; one that is quarantined as recovered already keeps its own."""
    if entry.quarantine_reason.startswith(RECOVERED):
        return entry.quarantine_reason
    if looked.error:
        told = f"the origin was not asked ({looked.error})"
    elif looked.found is None:
        told = "the origin does not have the object"
    else:
        told = f"the origin has {looked.found.size} bytes with ETag {looked.found.etag}"
    before = f"; before: {entry.quarantine_reason}" if entry.quarantine_reason else ""
    return f"{why}; {told}{before}"[:REASON_CHARACTERS_MAX]


def names_of(entries: Sequence[DirtyEntry]) -> list[ObjectName]:
    """Name the objects to ask the origin about."""
    return [ObjectName(entry.bucket, entry.key) for entry in entries]
