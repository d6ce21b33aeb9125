"""Would the origin take the deletion of a bucket's configuration for that of the bucket? Asked of a bucket of our own.

    PUT    forebay-probe-…          a bucket that is ours and empty
    DELETE forebay-probe-…?name     the question
    HEAD   forebay-probe-…          404 -> it took the request for a DeleteBucket: 501 from now on
    DELETE forebay-probe-…          2xx -> the bucket was still there: the origin knows the name

That an origin can read a name does not tell: SeaweedFS answers `GET ?website` with NoSuchWebsiteConfiguration and ignores the name in
a DELETE. Nor may the bucket itself be risked: SeaweedFS by its own defaults deletes a bucket with all that is in it. So no other
bucket is asked by a name before the origin has shown on one of ours what it does, under the gateway's own key, which has to have
CreateBucket and DeleteBucket there. Once a name, whatever comes of it, while the process lives; never at Amazon S3.
"""

import asyncio
import logging
import random
from typing import Final

from storage.errors import NameIgnoredError, OriginUnavailableError, StorageError
from storage.origin.client import OriginClient
from storage.requests import RelayRequest
from storage.types import ObjectName

NAMES_MAX: Final = 1000
"""So many names are remembered, here the ones that the origin ignores, too; S3 has some twenty."""

PROBE_PREFIX: Final = "forebay-probe-"
"""What the names of these buckets begin with; 16 digits follow. One may be left by a process that was killed."""

log = logging.getLogger(__name__)


class RemovalProbe:
    """Remembers by which names a bucket's configuration can be deleted."""

    def __init__(self, origin: OriginClient, rng: random.Random) -> None:
        self._origin = origin
        self._rng = rng
        self._is_known: dict[tuple[str, ...], bool] = {}
        self._turn = asyncio.Lock()

    async def check(self, request: RelayRequest) -> None:
        """Refuse the DELETE of a bucket's sub-resource that the origin may take for a DeleteBucket.

        Raises:
            NameIgnoredError: It would, or lets the gateway make no bucket to tell by.
            OriginError: It does not answer.
        """
        names = request.guarded
        async with self._turn:
            if names not in self._is_known:
                is_known = await self._is_understood(request)
                if len(self._is_known) < NAMES_MAX:
                    self._is_known[names] = is_known
                is_ignored = not is_known
            else:
                is_ignored = not self._is_known[names]
        if is_ignored:
            raise NameIgnoredError(
                f"The origin takes the deletion of {', '.join(names):.200} for the deletion of the bucket; nothing was done."
            )

    async def _is_understood(self, request: RelayRequest) -> bool:
        """Ask the origin; errors as `check`, where nothing was learnt."""
        probe = ObjectName(f"{PROBE_PREFIX}{self._rng.getrandbits(64):016x}", "")
        is_there = True
        try:
            await self._make(probe, request.guarded)
            await self._status("DELETE", probe, request.query)
            if await self._status("HEAD", probe) == 404:
                is_there = False
                return False
            # An origin of several nodes may show for a while what is gone; what deletes it knows.
            is_understood = await self._status("DELETE", probe) < 300
            is_there = not is_understood
            return is_understood
        finally:
            if is_there:
                await self._remove(probe)

    async def _make(self, probe: ObjectName, names: tuple[str, ...]) -> None:
        status = await self._status("PUT", probe)
        if status >= 300:
            raise NameIgnoredError(
                f"Whether the origin knows the deletion of {', '.join(names):.200} cannot be told: it does not let the gateway's "
                f"key create a bucket to try it on ({status}). Nothing was done."
            )

    async def _status(self, method: str, probe: ObjectName, query: tuple[tuple[str, str], ...] = ()) -> int:
        async with self._origin.request(method, probe, operation="ProbeBucket", query=query) as answer:
            status = answer.status
        if status >= 500 and status != 501:
            raise OriginUnavailableError(
                f"the origin does not say what it makes of {method} of a bucket",
                status=status,
                code="BadAnswer",
            )
        return status

    async def _remove(self, probe: ObjectName) -> None:
        """Delete the bucket, which may not be there, whatever went wrong before."""
        try:
            status = await self._status("DELETE", probe)
        except StorageError as error:
            log.warning("bucket %s may be left at the origin: %s", probe.bucket, error)
        else:
            if status >= 300 and status != 404:
                log.warning("bucket %s is left at the origin: %s", probe.bucket, status)
