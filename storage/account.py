"""Whose objects the origin's are: the account that signs for it, as listings name owners.

ListBuckets is the one answer of S3 that says it of nobody but the asker (AWS API_ListBuckets). It is asked when an owner is first
wanted, and not again but after a refusal: many keys may not list buckets.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from storage.errors import OriginError
from storage.requests import Owner

ASKED_AGAIN_S: Final = 600.0
"""After this long a refusal or a failure is no answer any more."""

UNKNOWN: Final = Owner("forebay", "forebay")
"""Who is named as an owner where the origin does not say."""


class Account:
    """Knows the owner of what is written with one set of credentials."""

    def __init__(self, ask: Callable[[], Awaitable[Owner]], wall_s: Callable[[], float]) -> None:
        self._ask = ask
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
            found = await self._ask()
        except OriginError:
            found = Owner("")
        if not found.id:
            self._failed_at_s = self._wall_s()
            return UNKNOWN
        self._owner = found
        return found
