"""Listings while the origin fails: the pages that it gave last, where they still say all there is to say.

A page that was answered is kept, whole as the client got it. While the origin does not answer, listings are made of such pages in
place of the origin's, with the overlay as it is now, and marked stale. So what is written through the gateway meanwhile shows, and
nothing is lacking that was there: whatever may have changed at the origin, or has left the overlay, since a page was asked for ends
it (`Generations.watch_origin`). It is given no longer than the policy of its prefix lets cached objects cover for the origin
(`freshness.may_serve_stale`). Nothing is ever made up of what the cache happens to hold: a listing that lacks objects deletes files
in the hands of a tool that mirrors.

A listing goes on through pages that follow each other, wherever they begin, as long as prefix and delimiter are the same. Whether a
common prefix is still there under which everything was deleted, no page says.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from msgspec.structs import replace

from storage.clock import Clock
from storage.errors import OriginUnavailableError, OverloadedError
from storage.generations import Generations, Watch
from storage.lister import PageSource
from storage.listing import ListEntry, ListQuery, ListResult, start_after as begin_behind
from storage.origin.documents import ListedObject, ListPage, PageRequest
from storage.policy import Freshness, FreshnessMode, PolicyTable
from storage.types import ObjectName

LINES_KEPT_MAX: Final = 100_000
"""Keys and common prefixes of all pages that are kept: some 50 MB."""


class PlainLister(Protocol):
    """Who lists: `lister.Lister`."""

    async def list(self, query: ListQuery) -> ListResult:
        """Give one page."""
        ...

    def signed_by(self, origin: PageSource) -> "PlainLister":
        """List with other pages of the origin, over the same overlay."""
        ...


class _Run(NamedTuple):
    """What pages that follow each other have in common."""

    bucket: str
    prefix: str
    delimiter: str
    generation: int | None
    with_owner: bool


@dataclass(slots=True)
class _Page:
    result: ListResult
    watch: Watch
    wall_s: float

    def goes_on_behind(self, key: str, query: ListQuery) -> bool:
        """Whether it says what follows on a key; `query` is what it was the answer to."""
        end = self.result.next_position
        return begin_behind(query.after) <= key and (end is None or key < begin_behind(end))


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
        self._runs: dict[_Run, set[ListQuery]] = {}
        self._lines = 0

    async def list(self, query: ListQuery) -> ListResult:
        """Give one page; errors as `Lister.list`, where no page covers for them."""
        wall_s = self._clock.wall_s()
        watch = self._generations.watch_origin(query.bucket)
        try:
            result = await self._lister.list(query)
        except (OriginUnavailableError, OverloadedError) as error:
            watch.close()
            covering = await self._covering(query, error)
            code = error.code if isinstance(error, OriginUnavailableError) else "Overloaded"
            return replace(covering, stale_reason=f"origin: {code}")
        except BaseException:
            watch.close()
            self._drop(query)
            raise
        self._keep(query, _Page(result, watch, wall_s))
        return result

    async def _covering(
        self, query: ListQuery, error: OriginUnavailableError | OverloadedError
    ) -> ListResult:
        """Make a page of those that were given before; the origin's error where they do not tell all of it."""
        if _run(query) not in self._runs:
            raise error
        return await self._lister.signed_by(_KeptPages(self, query, error)).list(query)

    def find(self, query: ListQuery, key: str) -> ListResult | None:
        """Give a page of before that says what follows on a key, of the run that a query is of; None where none does."""
        queries = self._runs.get(_run(query), ())
        # Where nothing is laid over it, a listing is the page that answered it before, in whatever order the origin lists.
        is_same = query in queries and key == begin_behind(query.after)
        for kept in (query,) if is_same else tuple(queries):
            page = self._pages[kept]
            if self._is_spent(kept, page):
                self._drop(kept)
            elif page.goes_on_behind(key, kept):
                return page.result
        return None

    def _is_spent(self, query: ListQuery, page: _Page) -> bool:
        freshness = self._policies().find(ObjectName(query.bucket, query.prefix)).freshness
        return not page.watch.is_current or not _covers(freshness, self._clock.wall_s() - page.wall_s)

    def _keep(self, query: ListQuery, page: _Page) -> None:
        self._drop(query)
        if not page.watch.is_current:
            page.watch.close()
            return
        self._pages[query] = page
        self._runs.setdefault(_run(query), set()).add(query)
        self._lines += 1 + page.result.key_count
        while self._lines > LINES_KEPT_MAX:
            self._drop(next(iter(self._pages)))

    def _drop(self, query: ListQuery) -> None:
        page = self._pages.pop(query, None)
        if page is None:
            return
        page.watch.close()
        self._lines -= 1 + page.result.key_count
        of_run = self._runs[_run(query)]
        of_run.discard(query)
        if not of_run:
            del self._runs[_run(query)]


class _KeptPages:
    """`lister.PageSource` for one listing: pages of before in place of the origin's, which failed with `error`."""

    def __init__(
        self, lister: CoveredLister, query: ListQuery, error: OriginUnavailableError | OverloadedError
    ) -> None:
        self._lister = lister
        self._query = query
        self._error = error

    async def list_objects_v2(self, page: PageRequest) -> ListPage:
        """Give what was known to follow on `start_after`; raises the origin's error where that is not known."""
        is_of_run = page.delimiter == self._query.delimiter and not page.token
        found = self._lister.find(self._query, page.start_after) if is_of_run else None
        if found is None:
            raise self._error
        return ListPage(tuple(map(_listed, found.entries)), found.prefixes, found.is_truncated)


def _run(query: ListQuery) -> _Run:
    return _Run(query.bucket, query.prefix, query.delimiter, query.generation, query.with_owner)


def _listed(entry: ListEntry) -> ListedObject:
    return ListedObject(
        entry.key,
        entry.size,
        entry.etag,
        entry.last_modified_s,
        entry.storage_class,
        tuple(entry.checksum_algorithms),
        entry.checksum_type or "",
        entry.owner_id,
        entry.owner_display_name,
    )


def _covers(freshness: Freshness, age_s: float) -> bool:
    match freshness.mode:
        case FreshnessMode.ALWAYS:
            return False
        case FreshnessMode.IMMUTABLE:
            # Of objects that word means that they never change, which says nothing of what is added.
            return 0 <= age_s < freshness.stale_s
        case FreshnessMode.TTL:
            return 0 <= age_s < freshness.ttl_s + freshness.stale_s
