"""Keep pages of the origin's listings for as long as a policy says (`listing_ttl`), so that a listing of a warm prefix asks nobody.

A page that is kept stands for the one that the origin would give now, but for what other writers have done since. So it must be as if
it had been asked for in the moment in which it is used, with respect to this gateway's own writes: it holds a watch on its prefix
(`generations.Watch`), and counts only while no write under it has begun or ended since it was asked for, and no flush of one was
confirmed. A change that is acknowledged meanwhile lies in the overlay, which the lister reads before it comes here.

Not kept is a page of a bucket in which something that was sent may land yet, nor is any used that was asked for before that, nor while
the disk has failed. Pages are the gateway's own: another authority at the origin asks for itself.

Memory: ENTRIES_MAX entries in all, the pages that were used least recently go first.
"""

from collections import OrderedDict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final

from storage.clock import Clock
from storage.generations import Generations, Watch
from storage.lister import PageSource
from storage.origin.documents import ListPage, PageRequest
from storage.policy import PolicyTable

ENTRIES_MAX: Final = 100_000
"""Objects and common prefixes of all pages together: about 40 MB."""

PAGES_MAX: Final = 1000


@dataclass(frozen=True, slots=True)
class _Kept:
    page: ListPage
    watch: Watch
    asked_s: float
    asked_wall_s: float
    drops: int

    @property
    def weight(self) -> int:
        """Count its entries; an empty page has a weight too."""
        return 1 + len(self.page.objects) + len(self.page.prefixes)


class ListedPages:
    """`lister.PageSource`, over another one."""

    def __init__(
        self,
        origin: PageSource,
        policies: Callable[[], PolicyTable],
        generations: Generations,
        clock: Clock,
        doubted_at_s: Callable[[str], float],
        drops: Callable[[str], int],
    ) -> None:
        """Keep nothing yet.

        Args:
            origin: Gives the pages.
            policies: Says for how long one counts.
            generations: Tells of writes.
            clock: Ages are monotonic, doubts are of the wall.
            doubted_at_s: Gives the wall time up to which nothing that the origin said of a bucket is trusted; infinite while
                the disk has failed.
            drops: Says how often what was known of a bucket was dropped, which was made, changed or deleted then.
        """
        self._origin = origin
        self._policies = policies
        self._generations = generations
        self._clock = clock
        self._doubted_at_s = doubted_at_s
        self._drops = drops
        self._pages: OrderedDict[PageRequest, _Kept] = OrderedDict()
        self._weight = 0

    def __len__(self) -> int:
        return len(self._pages)

    async def list_objects_v2(self, page: PageRequest) -> ListPage:
        """Give one page: a kept one that counts, or the origin's."""
        bucket, prefix = page.bucket, page.prefix
        ttl_s = self._policies().listing_ttl_s(bucket, prefix)
        if ttl_s > 0:
            found = self._find(page, ttl_s)
            if found is not None:
                return found
        with ExitStack() as holding:
            watch = holding.enter_context(self._generations.watch_prefix(bucket, prefix))
            asked = (self._clock.monotonic_s(), self._clock.wall_s(), self._drops(bucket))
            given = await self._origin.list_objects_v2(page)
            kept = _Kept(given, watch, *asked)
            if ttl_s > 0 and self._counts(bucket, kept):
                holding.pop_all()
                self._keep(page, kept)
        return given

    def _find(self, asked: PageRequest, ttl_s: float) -> ListPage | None:
        kept = self._pages.get(asked)
        if kept is None:
            return None
        if self._clock.monotonic_s() - kept.asked_s >= ttl_s or not self._counts(asked.bucket, kept):
            self._drop(asked)
            return None
        self._pages.move_to_end(asked)
        return kept.page

    def _counts(self, bucket: str, kept: _Kept) -> bool:
        """Whether a page is as if it were asked for now, other writers aside."""
        is_trusted = kept.asked_wall_s > self._doubted_at_s(bucket) and kept.drops == self._drops(bucket)
        return kept.watch.is_current and is_trusted

    def _keep(self, asked: PageRequest, kept: _Kept) -> None:
        self._drop(asked)
        self._pages[asked] = kept
        self._weight += kept.weight
        while self._weight > ENTRIES_MAX or len(self._pages) > PAGES_MAX:
            self._drop(next(iter(self._pages)))

    def _drop(self, asked: PageRequest) -> None:
        kept = self._pages.pop(asked, None)
        if kept is not None:
            self._weight -= kept.weight
            kept.watch.close()
