"""Whose objects the origin's are: the account that signs for it, as listings name owners.

ListBuckets is the one answer of S3 that says it of nobody but the asker (AWS API_ListBuckets). It is asked when an owner is first
wanted, and not again but after a refusal: many keys may not list buckets.
"""

from collections.abc import Callable
from typing import Final, Protocol

from storage.errors import OriginError
from storage.origin.control import BucketsOwner
from storage.requests import Owner

ASKED_AGAIN_S: Final = 600.0
"""After this long a refusal or a failure is no answer any more."""

UNKNOWN: Final = Owner("forebay", "forebay")
"""Who is named as an owner where the origin does not say."""


class OwnerSource(Protocol):
    """Who asks: `origin.control.ControlLane`."""

    async def owner(self) -> BucketsOwner:
        """Say whose the buckets are."""
        ...


class Account:
    """Knows the owner of what is written with one set of credentials."""

    def __init__(self, source: OwnerSource, wall_s: Callable[[], float]) -> None:
        self._source = source
        self._wall_s = wall_s
        self._owner: Owner | None = None
        self._failed_at_s: float | None = None

    async def owner(self) -> Owner:
        """Give the owner; UNKNOWN where the origin does not say. No failure of the origin is one of this."""
        if self._owner is not None:
            return self._owner
        if self._failed_at_s is not None and self._wall_s() - self._failed_at_s < ASKED_AGAIN_S:
            return UNKNOWN
        try:
            found = await self._source.owner()
        except OriginError:
            found = BucketsOwner("", "")
        if not found.account_id:
            self._failed_at_s = self._wall_s()
            return UNKNOWN
        self._owner = Owner(found.account_id, found.display_name)
        return self._owner
