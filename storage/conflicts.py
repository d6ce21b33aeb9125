"""Bases of writes: asked for when a write is accepted, carried by its flush (policy `on_conflict = quarantine`).

    accepted over a dirty change    its base; or what this process has seen of ours take effect since
    accepted over a clean version   the origin's ETag of it, where it is fresh by its policy; else asked by HEAD
    accepted over nothing known     asked by HEAD

The HEAD comes before the acknowledgement and within the key's turn, so nothing of ours is between its answer and the
write. An earlier state of ours can be there all the same: its attempt had no answer, or was overtaken by the write. What
may be so is kept with the write in the journal (`own_etags`), so that it counts as ours after a crash as well.

In memory there is, of each key with something under way, what was sent and not settled, and what took effect last. It is
dropped once the newest change is confirmed: the planner has then waited for all that may land. What is lost of it is found
out by one HEAD more, or shows as a conflict that is none; never as another writer's object written over.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from storage.clock import Clock
from storage.conflict_rules import ABSENT, NO_BASE, Base, joined_etags
from storage.dirty_rows import DirtyRows
from storage.errors import BaseUnknownError, NoSuchKeyError, OriginError
from storage.freshness import Verdict, judge
from storage.origin.client import OriginClient
from storage.policy import OnConflict, PolicyTable
from storage.records import DirtyEntry, ObjectRecord
from storage.types import ObjectName

KEYS_MAX: Final = 65_536
"""So many keys are remembered; keys that were discarded in the middle of an attempt would stay for ever."""


@dataclass(slots=True)
class ConflictsParts:
    """What bases come of; made once by the engine."""

    rows: DirtyRows
    origin: OriginClient
    policies: Callable[[], PolicyTable]
    clock: Clock
    epoch: int
    trusted_epoch: int
    doubted_at_s: Callable[[ObjectName], float]


@dataclass(slots=True)
class _Known:
    """What this process knows of one key.

    Attributes:
        landed: What took effect last, by the origin's own word; None where nothing did.
        open: What was sent, and perhaps took effect or will.
    """

    landed: str | None = None
    open: tuple[str, ...] = ()


class Conflicts:
    """Bases of writes, and what was sent of each key."""

    def __init__(self, parts: ConflictsParts) -> None:
        self._parts = parts
        self._known: dict[ObjectName, _Known] = {}

    def __len__(self) -> int:
        """Count the keys of which something is known."""
        return len(self._known)

    def is_on(self, name: ObjectName) -> bool:
        """Whether the policy in force guards a key against other writers."""
        return self._parts.policies().find(name).on_conflict is OnConflict.QUARANTINE

    # --- when a write is accepted ------------------------------------------------------------------------------------

    async def base(self, name: ObjectName) -> Base:
        """Give the base of a write that is about to be acknowledged; the caller holds the key's turn.

        Raises:
            BaseUnknownError: The origin was to be asked, and did not say; the write must not be acknowledged.
        """
        if not self.is_on(name):
            return NO_BASE
        entry = self._parts.rows.newest(name)
        if entry is not None:
            return self._inherited(name, entry)
        known = self._known.get(name)
        if known is not None:
            # The key was clean meanwhile: what took effect before says nothing of what is there now.
            known.landed = None
        record = self._parts.rows.version(name)
        etag = self._shown(name, record)
        if etag is None:
            etag = await self._asked(name)
        return Base(etag, () if known is None else known.open)

    def _inherited(self, name: ObjectName, entry: DirtyEntry) -> Base:
        if entry.base_etag is None:
            return NO_BASE
        known = self._known.get(name) or _Known()
        base = entry.base_etag if known.landed is None else known.landed
        # An earlier process may have sent it; this one would know.
        before = () if entry.epoch == self._parts.epoch else (self._etag_of(entry),)
        return Base(base, joined_etags(entry.own_etags, before, known.open))

    def _etag_of(self, entry: DirtyEntry) -> str:
        record = None if entry.is_tombstone else self._parts.rows.record(entry)
        return ABSENT if record is None else record.etag

    def _shown(self, name: ObjectName, record: ObjectRecord | None) -> str | None:
        """Give the origin's ETag by a clean row that may be believed; None where the origin is to be asked."""
        if record is None or record.origin is None or record.validated.epoch < self._parts.trusted_epoch:
            return None
        freshness = self._parts.policies().find(name).freshness
        verdict = judge(
            record,
            freshness,
            self._parts.clock.wall_s(),
            self._parts.trusted_epoch,
            self._parts.doubted_at_s(name),
        )
        return record.origin.etag if verdict is Verdict.FRESH else None

    async def _asked(self, name: ObjectName) -> str:
        try:
            found = await self._parts.origin.head_object(name)
        except NoSuchKeyError:
            return ABSENT
        except OriginError as error:
            # Whatever it is, the client's request is not what was wrong: a refusal must not become its own.
            raise _unknown(name, error) from error
        assert found is not None, "an unconditional HEAD describes the object"
        return found.etag

    # --- when it is sent ---------------------------------------------------------------------------------------------

    def base_of(self, entry: DirtyEntry) -> Base | None:
        """Give what a flush of a change must find at the origin; None where it takes effect whatever is there.

        The policy in force counts, so that an operator who wants the change to win can say `overwrite` and retry.
        """
        name = ObjectName(entry.bucket, entry.key)
        if entry.base_etag is None or not self.is_on(name):
            return None
        known = self._known.get(name) or _Known()
        base = entry.base_etag if known.landed is None else known.landed
        return Base(base, joined_etags(entry.own_etags, known.open))

    @contextmanager
    def sending(self, name: ObjectName, etag: str) -> Iterator[None]:
        """Remember that a state is being sent; if the block fails, until its outcome is known."""
        known = self._known.setdefault(name, _Known())
        if len(self._known) > KEYS_MAX:
            self._known.pop(next(iter(self._known)))
        was_open = etag in known.open
        known.open = joined_etags(known.open, (etag,))
        try:
            yield
        except Exception as error:
            may_land = isinstance(error, OriginError) and error.outcome_unknown
            if not was_open and not may_land:
                known.open = tuple(one for one in known.open if one != etag)
            raise

    def took_effect(self, name: ObjectName, etag: str, origin_etag: str) -> None:
        """Learn that a state of ours is at the origin, which calls it `origin_etag`."""
        known = self._known.setdefault(name, _Known())
        known.landed = origin_etag
        known.open = tuple(one for one in known.open if one != etag)

    def settle(self, name: ObjectName) -> None:
        """Forget a key whose newest change is confirmed: nothing of ours can land any more."""
        self._known.pop(name, None)


def _unknown(name: ObjectName, error: OriginError) -> BaseUnknownError:
    hint = ""
    if error.status == 403:
        hint = (
            "; S3 answers 403 for an object that does not exist where the gateway's key lacks s3:ListBucket"
        )
    return BaseUnknownError(
        f"on_conflict = quarantine needs to know what the origin holds under {name}, and it did not say: {error}{hint}",
        retry_after_s=error.retry_after_s,
    )
