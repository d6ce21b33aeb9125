"""Settle the acknowledged changes that a repair cannot vouch for: compare them with the origin, and quarantine what it does not have.

Which they are, and what the origin's answer makes of each, is decided in `storage/recovered_changes.py`. What comes of it is written into
the survey's own state of the index; nothing of the directory is touched.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from storage import keys
from storage.family import Family
from storage.fsck_rows import Damage, Owner
from storage.fsck_survey import Survey
from storage.index import Index
from storage.mutations import apply
from storage.records import FORMAT, DirtyEntry, Discarded, ObjectRecord, Quarantined
from storage.recovered_changes import Looked, doubt, is_same, names_of, reason
from storage.repair_outcome import RepairOutcome
from storage.rows import Rows, all_rows, decode_dirty, decode_object
from storage.types import ObjectName

LOOK_STEP: Final = 1000
"""So many objects are compared with the origin at a time."""

Look = Callable[[Sequence[ObjectName]], list[Looked]]
"""Asks the origin about objects. Blocks; an origin that gives no answer is an error in each value, never raised."""


class Doubts:
    """What is in doubt of a survey.

    Args:
        survey: What the directory says.
        look: None where the origin is not to be asked.
        outcome: Is told what becomes of each.
    """

    def __init__(self, survey: Survey, look: Look | None, outcome: RepairOutcome) -> None:
        self._survey = survey
        self._ask = look
        self._outcome = outcome

    def settle(self) -> bool:
        """Compare and quarantine; give whether any change of the state came of it."""
        damages = _by_owner(self._survey.damages)
        has_changed = False
        for chunk in _chunks(self._in_doubt(damages), LOOK_STEP):
            looked = self._look([entry for entry, _ in chunk])
            for (entry, why), told in zip(chunk, looked, strict=True):
                has_changed |= self._settle_one(entry, why, told, damages)
        for damage in self._survey.damages:
            if damage.is_dirty and damage.owner.upload_id:
                self._survey.lost.add(
                    f"{damage.owner}{_upload_of(self._survey.index, damage.owner)}: {damage}"
                )
        return has_changed

    def _in_doubt(self, damages: dict[Owner, str]) -> Iterator[tuple[DirtyEntry, str]]:
        for _, value in all_rows(self._survey.index, Family.DIRTY):
            entry = decode_dirty(value)
            why = doubt(entry, self._survey.knowledge, damages.get(_owner(entry), ""))
            if why:
                yield entry, why

    def _look(self, entries: Sequence[DirtyEntry]) -> list[Looked]:
        if self._ask is None:
            return [Looked(error="it was not to be")] * len(entries)
        looked = self._ask(names_of(entries))
        failed = [told.error for told in looked if told.error]
        compared = f"compare {len(entries)} changes in doubt with the origin"
        if failed:
            compared = (
                f"{compared}: {len(failed)} times it gave no answer ({failed[0]}); those are not compared"
            )
        self._outcome.step(compared)
        return looked

    def _settle_one(self, entry: DirtyEntry, why: str, told: Looked, damages: dict[Owner, str]) -> bool:
        place = f"s3://{entry.bucket}/{entry.key}"
        if is_same(entry, _record(self._survey.index, entry), told):
            self._outcome.at_origin(place)
            _apply(self._survey.index, Discarded(FORMAT, entry.sequence))
            return True
        damage = damages.get(_owner(entry))
        if damage:
            self._survey.lost.add(f"{place}: {damage}")
        text = reason(why, entry, told)
        self._outcome.quarantined(place, text)
        if text == entry.quarantine_reason:
            return False
        _apply(self._survey.index, Quarantined(FORMAT, entry.sequence, text))
        return True


def _record(index: Index, entry: DirtyEntry) -> ObjectRecord | None:
    value = index.get(Family.OBJECTS, keys.object_key(entry.bucket, entry.key))
    return None if value is None else decode_object(value)


def _owner(entry: DirtyEntry) -> Owner:
    return Owner(entry.bucket, entry.key, entry.version_id)


def _by_owner(damages: Sequence[Damage]) -> dict[Owner, str]:
    """Say of each version that is damaged what, and of how many places."""
    found: dict[Owner, str] = {}
    counts: dict[Owner, int] = {}
    for damage in damages:
        if damage.is_dirty:
            found.setdefault(damage.owner, str(damage))
            counts[damage.owner] = counts.get(damage.owner, 0) + 1
    return {
        owner: text if counts[owner] == 1 else f"{text}, and {counts[owner] - 1} places more"
        for owner, text in found.items()
    }


def _upload_of(index: Index, owner: Owner) -> str:
    upload = Rows(index).upload(owner.upload_id)
    return "" if upload is None else f" of s3://{upload.bucket}/{upload.key}"


def _apply(index: Index, mutation: Discarded | Quarantined) -> None:
    rows = Rows(index)
    apply(rows, mutation.sequence, mutation)
    index.write(rows.batch())


def _chunks(found: Iterator[tuple[DirtyEntry, str]], size: int) -> Iterator[list[tuple[DirtyEntry, str]]]:
    chunk: list[tuple[DirtyEntry, str]] = []
    for one in found:
        chunk.append(one)
        if len(chunk) >= size:
            yield chunk
            chunk = []
    if chunk:
        yield chunk
