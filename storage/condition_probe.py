"""Whether the origin heeds the conditions of writes, which `on_conflict = quarantine` rests on; asked once a bucket.

    PUT a name that nobody has, If-Match: an ETag that nobody has
        404, 412 -> heeded; nothing was written
        2xx      -> ignored; what was written is empty and ours, and is deleted
        else     -> not known

The name is drawn, and lies where the policy does, so the key that may write there may ask. Nobody else's object is
touched whatever the answer, and at an origin that heeds conditions nothing is ever written. An origin that heeds
If-Match and not If-None-Match would not be found out: to ask for that, an object has to be there.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from typing import Final

from storage.conflict_rules import Condition, is_condition_refusal
from storage.errors import OriginError, OriginUnavailableError, StorageError
from storage.origin.client import OriginClient
from storage.origin.wire import OutgoingBody
from storage.policy import PolicyTable
from storage.types import ObjectName, Priority

PROBES_MAX: Final = 3
"""So often a bucket is asked whose origin does not answer; then it counts as one that heeds them, until the next start."""

BUCKETS_MAX: Final = 1024
"""So many buckets are remembered; one that was forgotten is asked again."""

_NO_ETAG: Final = Condition(if_match="0" * 32)

_EMPTY_MD5: Final = "1B2M2Y8AsgTpgAmY7PhCfg=="

log = logging.getLogger(__name__)


class ConditionProbe:
    """What is known of each bucket."""

    def __init__(self, origin: OriginClient, policies: Callable[[], PolicyTable], rng: random.Random) -> None:
        self._origin = origin
        self._policies = policies
        self._rng = rng
        self._is_ignored: dict[str, bool] = {}
        self._tries: dict[str, int] = {}
        self._turn = asyncio.Lock()

    def ignoring(self) -> tuple[str, ...]:
        """Name the buckets whose origin is known to ignore conditions."""
        return tuple(sorted(bucket for bucket, is_ignored in self._is_ignored.items() if is_ignored))

    async def is_ignored(self, name: ObjectName, priority: Priority) -> bool:
        """Whether a condition on a write of the object would be ignored; False also while it is not known. Never raises."""
        async with self._turn:
            if name.bucket not in self._is_ignored:
                await self._learn(name, priority)
            return self._is_ignored.get(name.bucket, False)

    async def _learn(self, name: ObjectName, priority: Priority) -> None:
        drawn = f"{self._policies().find(name).prefix}.forebay-probe-{self._rng.getrandbits(64):016x}"
        is_ignored = await self._asked(ObjectName(name.bucket, drawn), priority)
        tries = self._tries.get(name.bucket, 0) + 1
        if is_ignored is None and tries < PROBES_MAX:
            self._tries[name.bucket] = tries
            return
        self._tries.pop(name.bucket, None)
        self._is_ignored[name.bucket] = bool(is_ignored)
        if len(self._is_ignored) > BUCKETS_MAX:
            self._is_ignored.pop(next(iter(self._is_ignored)))

    async def _asked(self, probe: ObjectName, priority: Priority) -> bool | None:
        """Ask the origin; None where it did not answer."""
        body = OutgoingBody(0, _nothing, is_repeatable=True, md5=_EMPTY_MD5)
        try:
            await self._origin.put_object(probe, (), body, if_match=_NO_ETAG.if_match, priority=priority)
        except StorageError as error:
            if is_condition_refusal(error, _NO_ETAG):
                return False
            if isinstance(error, OriginError) and error.outcome_unknown:
                await self._remove(probe, priority)
            if isinstance(error, OriginUnavailableError):
                return None
            log.info("whether the origin heeds conditions in bucket %s is not known: %s", probe.bucket, error)
            return False
        log.warning(
            "the origin ignores conditions of writes (it took %s with If-Match on no object): on_conflict = quarantine "
            "looks at each object of bucket %s before its flush, and does not see what comes in that moment",
            probe,
            probe.bucket,
        )
        await self._remove(probe, priority)
        return True

    async def _remove(self, probe: ObjectName, priority: Priority) -> None:
        try:
            await self._origin.delete_object(probe, priority=priority)
        except StorageError as error:
            log.warning("the empty object %s of ours may stay at the origin: %s", probe, error)


async def _nothing() -> AsyncIterator[bytes]:
    """Stream no byte."""
    nothing: tuple[bytes, ...] = ()
    for piece in nothing:
        yield piece
