"""Send a change only over what it was made on; what is there instead is looked at before anything is decided.

A put carries its condition, so the origin decides, but for one that ignores conditions: there the object is looked at first,
as before a delete. A delete does not, since few origins know conditional deletes: the
object is looked at first, and an object that comes between the look and the delete is lost (`docs/semantics.md`).
"""

from collections.abc import Callable
from typing import Final

from storage.condition_probe import ConditionProbe
from storage.conflict_rules import (
    ABSENT,
    Base,
    Standing,
    condition_of,
    conflict_reason,
    is_condition_refusal,
    standing,
)
from storage.conflicts import Conflicts
from storage.described import has_description
from storage.errors import NoSuchKeyError, OriginUnavailableError, StorageError
from storage.origin.answers import WriteAnswer
from storage.origin.client import OriginClient
from storage.origin.wire import OriginObject
from storage.records import DirtyEntry, ObjectRecord, OriginIdentity
from storage.sender import Sender
from storage.types import ObjectName, Priority

SENDS_MAX: Final = 3
"""So often in a row one attempt is made over another state of ours; then the flush comes back to it later."""


class ConflictError(Exception):
    """Another writer changed the object; the text says what is there and what was to be. Nothing was sent, or it was refused."""


class GuardedSends:
    """Sends of the flush that respect other writers where the policy says so. Whoever calls holds the key's turn."""

    def __init__(
        self, conflicts: Conflicts, sender: Sender, origin: OriginClient, probe: ConditionProbe
    ) -> None:
        self.conflicts: Final = conflicts
        self._probe = probe
        self._sender = sender
        self._origin = origin

    async def put(
        self, entry: DirtyEntry, record: ObjectRecord, priority: Priority, is_newest: Callable[[], bool]
    ) -> OriginIdentity:
        """Send a version as `Sender.send_put` does, over what it was made on where it has a base.

        Raises:
            ConflictError: Another writer's object is there, or another writer deleted it.
        """
        name = ObjectName(entry.bucket, entry.key)
        if entry.base_etag is None and not self.conflicts.is_on(name):
            return await self._sender.send_put(entry, record, priority, is_newest)
        base = self.conflicts.base_of(entry)
        with self.conflicts.sending(name, record.etag):
            if base is None:
                identity = await self._sender.send_put(entry, record, priority, is_newest)
            else:
                identity = await self._put_over(base, entry, record, priority, is_newest)
        self.conflicts.took_effect(name, record.etag, identity.etag)
        return identity

    async def _put_over(
        self,
        base: Base,
        entry: DirtyEntry,
        record: ObjectRecord,
        priority: Priority,
        is_newest: Callable[[], bool],
    ) -> OriginIdentity:
        name = ObjectName(entry.bucket, entry.key)
        assert base.etag is not None, f"{entry} has no base"
        wanted: str | OriginIdentity = base.etag
        if await self._probe.is_ignored(name, priority):
            # Its refusal cannot be waited for, so what is there is looked at as before a delete.
            wanted = await self._looked_at(base, name, record, priority)
        for _ in range(SENDS_MAX):
            if isinstance(wanted, OriginIdentity):
                return wanted
            condition = condition_of(wanted)
            try:
                return await self._sender.send_put(entry, record, priority, is_newest, condition)
            except StorageError as error:
                if not is_condition_refusal(error, condition):
                    raise
            wanted = await self._looked_at(base, name, record, priority)
        if isinstance(wanted, OriginIdentity):
            return wanted
        raise OriginUnavailableError(
            f"{name} changes faster at the origin than it can be written over",
            status=409,
            code="ConditionalRequestConflict",
        )

    async def _looked_at(
        self, base: Base, name: ObjectName, record: ObjectRecord, priority: Priority
    ) -> str | OriginIdentity:
        """Give the ETag of what may be written over, ABSENT for nothing, or the version itself where it has landed already.

        Raises:
            ConflictError: Another writer's object is there.
        """
        found = await self._look(name, priority)
        etag = ABSENT if found is None else found.etag
        is_landed = found is not None and etag == record.etag and has_description(found, record)
        assert base.etag is not None, f"{name} has no base"
        match standing(etag, base.etag, base.own_etags, is_landed=is_landed):
            case Standing.LANDED:
                assert found is not None, "nothing is no version"
                return OriginIdentity("", 0, found.size, found.etag, found.version_id)
            case Standing.OURS:
                return etag
            case Standing.OTHER:
                raise ConflictError(conflict_reason(etag, base.etag))

    async def delete(self, base: Base, entry: DirtyEntry, priority: Priority) -> WriteAnswer:
        """Delete an object at the origin unless another writer's is there.

        Raises:
            ConflictError: One is; nothing was deleted.
        """
        name = ObjectName(entry.bucket, entry.key)
        assert base.etag is not None, f"{entry} has no base"
        with self.conflicts.sending(name, ABSENT):
            found = await self._look(name, priority)
            # Where nothing is left to delete the origin is told all the same: its answer is what confirms the change.
            if found is not None:
                what = standing(found.etag, base.etag, base.own_etags, is_landed=False)
                if what is Standing.OTHER:
                    raise ConflictError(conflict_reason(found.etag, base.etag))
            answer = await self._origin.delete_object(name, priority=priority)
        if not answer.is_earlier_unknown:
            self.conflicts.took_effect(name, ABSENT, ABSENT)
        return answer

    async def _look(self, name: ObjectName, priority: Priority) -> OriginObject | None:
        try:
            return await self._origin.head_object(name, priority=priority)
        except NoSuchKeyError:
            return None
