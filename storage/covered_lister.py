"""Listings while the origin fails: the pages that it gave last, where they still say all there is to say.

A page that was answered is kept, whole as the client got it, and given again, marked stale, while the origin does not answer.
It is what the origin and the overlay had at that time, so it lacks nothing that was there. It is given no longer than the policy of its
prefix lets cached objects cover for the origin (`freshness.may_serve_stale`), and not where anything was written to the bucket through
this gateway since it was asked for: the gateway's own writes show in every listing, or there is none. Nothing is ever made up of what
the cache happens to hold: a listing that lacks objects deletes files in the hands of a tool that mirrors.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec.structs import replace

from storage.clock import Clock
from storage.errors import OriginUnavailableError, OverloadedError
from storage.generations import Generations, Watch
from storage.listing import ListQuery, ListResult
from storage.policy import Freshness, FreshnessMode, PolicyTable
from storage.types import ObjectName

LINES_KEPT_MAX: Final = 100_000
"""Keys and common prefixes of all pages that are kept: some 50 MB."""


class PlainLister(Protocol):
    """Who lists: `lister.Lister`."""

    async def list(self, query: ListQuery) -> ListResult:
        """Give one page."""
        ...


@dataclass(slots=True)
class _Page:
    result: ListResult
    watch: Watch
    wall_s: float


class CoveredLister:
    """A lister whose pages cover for a failing origin."""

    def __init__(
        self,
        lister: PlainLister,
        generations: Generations,
        policies: Callable[[], PolicyTable],
        clock: Clock,
    ) -> None:
        self._lister = lister
        self._generations = generations
        self._policies = policies
        self._clock = clock
        self._pages: OrderedDict[ListQuery, _Page] = OrderedDict()
        self._lines = 0

    async def list(self, query: ListQuery) -> ListResult:
        """Give one page; errors as `Lister.list`, where no page covers for them."""
        wall_s = self._clock.wall_s()
        watch = self._generations.watch_bucket(query.bucket)
        try:
            result = await self._lister.list(query)
        except (OriginUnavailableError, OverloadedError) as error:
            watch.close()
            covering = self._covering(query)
            if covering is None:
                raise
            code = error.code if isinstance(error, OriginUnavailableError) else "Overloaded"
            return replace(covering, stale_reason=f"origin: {code}")
        except BaseException:
            watch.close()
            self._drop(query)
            raise
        self._keep(query, _Page(result, watch, wall_s))
        return result

    def _covering(self, query: ListQuery) -> ListResult | None:
        page = self._pages.get(query)
        if page is None:
            return None
        freshness = self._policies().find(ObjectName(query.bucket, query.prefix)).freshness
        if not page.watch.is_current or not _covers(freshness, self._clock.wall_s() - page.wall_s):
            self._drop(query)
            return None
        return page.result

    def _keep(self, query: ListQuery, page: _Page) -> None:
        self._drop(query)
        if not page.watch.is_current:
            page.watch.close()
            return
        self._pages[query] = page
        self._lines += 1 + page.result.key_count
        while self._lines > LINES_KEPT_MAX:
            self._drop(next(iter(self._pages)))

    def _drop(self, query: ListQuery) -> None:
        page = self._pages.pop(query, None)
        if page is not None:
            page.watch.close()
            self._lines -= 1 + page.result.key_count


def _covers(freshness: Freshness, age_s: float) -> bool:
    match freshness.mode:
        case FreshnessMode.ALWAYS:
            return False
        case FreshnessMode.IMMUTABLE:
            # Of objects that word means that they never change, which says nothing of what is added.
            return 0 <= age_s < freshness.stale_s
        case FreshnessMode.TTL:
            return 0 <= age_s < freshness.ttl_s + freshness.stale_s
