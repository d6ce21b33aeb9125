"""List objects: the driver of `listing.ListingMerger`.

The overlay is read before each origin page it is merged with: an entry leaves the overlay when its flush is
confirmed, and a page that was asked for before that may not show it yet. The merger drops its pages whenever it reads
another chunk, so each page is younger than the chunk it meets.

Where nothing dirty lies in what is listed, the origin's page is passed on as it came. That saves a request here and there,
and keeps the order of an origin that does not list by UTF-8 bytes (S3 Express, SeaweedFS): cutting and sorting its pages by
name would lose keys.

A version that the index knows is listed as HEAD describes it: with the date and ETag that its writer was answered.
"""

from collections.abc import Sequence
from typing import Final, Protocol, assert_never

import msgspec

from storage import keys
from storage.errors import OriginUnavailableError
from storage.family import Family
from storage.listing import (
    ListEntry,
    ListingMerger,
    ListQuery,
    ListResult,
    NeedOverlay,
    OriginPage,
    OverlayChunk,
    Position,
    overlay_entry,
    start_after,
)
from storage.origin.documents import ListedObject, ListPage, PageRequest
from storage.rows import (
    RowSource,
    decode_head,
    decode_overlay,
    decoded,
    row_at,
)
from storage.state import State
from storage.types import ChecksumAlgorithm, ChecksumType
from storage.workers import Workers

STEPS_MAX: Final = 10_000
"""No page of 1000 keys needs more pages and chunks, unless the origin does not move on."""


_ALGORITHMS: Final = frozenset(ChecksumAlgorithm)
_TYPES: Final = frozenset(ChecksumType)


class PageSource(Protocol):
    """Who gives the origin's pages: `origin.client.OriginClient`."""

    async def list_objects_v2(self, page: PageRequest) -> ListPage:
        """Give one page."""
        ...


class Lister:
    """Answers ListObjectsV2 and ListObjects."""

    def __init__(self, index: RowSource, origin: PageSource, state: State, workers: Workers) -> None:
        """Take what listings are made of.

        Args:
            index: The rows.
            origin: Gives the origin's pages.
            state: Knows how many rows the overlay of a bucket has.
            workers: Where the overlay is read, which may have to step over many rows that were flushed.
        """
        self._index = index
        self._origin = origin
        self._state = state
        self._workers = workers

    def signed_by(self, origin: PageSource) -> "Lister":
        """List as another authority: each page is merged with one that the origin gave to that one, or is not given."""
        return Lister(self._index, origin, self._state, self._workers)

    async def list(self, query: ListQuery) -> ListResult:
        """Give one page, with all that was acknowledged and without what was deleted.

        Raises:
            NoSuchBucketError: The origin has no such bucket.
            OriginError: The origin failed; a listing is never made up of the overlay alone.
        """
        if query.max_keys and not await self._has_overlay(query):
            passed_on = await self._passed_on(query)
            if passed_on is not None:
                return passed_on
        merger = ListingMerger(query)
        for _ in range(STEPS_MAX):
            step = merger.step()
            match step:
                case ListResult():
                    return step
                case NeedOverlay():
                    merger.feed_overlay(await self._overlay_chunk(step))
                case PageRequest():
                    merger.feed_origin(await self._origin_page(step))
                case _:
                    assert_never(step)
        raise OriginUnavailableError("the origin's listing does not end", status=0, code="BadAnswer")

    async def _has_overlay(self, query: ListQuery) -> bool:
        start, stop = keys.prefix_range(query.bucket, query.prefix)
        start = max(start, keys.object_key(query.bucket, query.after.name))
        return bool(await self._overlay_rows(query.bucket, start, stop, 1))

    async def _overlay_rows(
        self, bucket: str, start: bytes, stop: bytes, limit: int
    ) -> Sequence[tuple[bytes, bytes]]:
        """Read overlay rows as of one moment of this call, in a worker; nothing is read where nothing is dirty.

        A change that is acknowledged meanwhile is concurrent with the listing.
        """
        if start >= stop or not self._state.dirty_keys[bucket]:
            return []
        return await self._workers.run(self._index.scan, Family.OVERLAY, start, stop, limit)

    async def _passed_on(self, query: ListQuery) -> ListResult | None:
        """Give the origin's page as it came; None where it says that more follows and not where."""
        page = await self._origin_page(
            PageRequest(
                query.bucket,
                query.prefix,
                query.delimiter,
                start_after=start_after(query.after),
                max_keys=query.max_keys,
                with_owner=query.with_owner,
            )
        )
        if page.is_truncated and not page.entries and not page.prefixes:
            return None
        last = page.entries[-1].key if page.entries else ""
        group = page.prefixes[-1] if page.prefixes else ""
        next_position = Position(group, is_prefix=True) if group > last else Position(last)
        return ListResult(
            page.entries, page.prefixes, page.is_truncated, next_position if page.is_truncated else None
        )

    async def _overlay_chunk(self, need: NeedOverlay) -> OverlayChunk:
        start, stop = keys.prefix_range(need.bucket, need.prefix)
        if need.after:
            start = max(start, keys.object_key(need.bucket, need.after) + b"\x00")
        rows = await self._overlay_rows(need.bucket, start, stop, need.limit)
        entries = tuple(
            overlay_entry(
                keys.split_object_key(row_key).key,
                decoded(self._index, Family.OVERLAY, row_key, value, decode_overlay),
            )
            for row_key, value in rows
        )
        return OverlayChunk(entries, is_last=len(rows) < need.limit)

    async def _origin_page(self, need: PageRequest) -> OriginPage:
        page = await self._origin.list_objects_v2(need)
        return OriginPage(
            tuple(self._as_known(need.bucket, _entry(listed)) for listed in page.objects),
            page.prefixes,
            page.is_truncated,
            page.next_token,
        )

    def _as_known(self, bucket: str, entry: ListEntry) -> ListEntry:
        """Give the entry the date and ETag of the version that the index knows, if it is that version."""
        known = row_at(self._index, Family.OBJECTS, keys.object_key(bucket, entry.key), decode_head)
        if known is None:
            return entry
        origin = known.origin
        if origin is None or origin.etag != entry.etag or known.size != entry.size:
            return entry
        if origin.last_modified_s not in {0, entry.last_modified_s}:
            return entry
        return msgspec.structs.replace(entry, etag=known.etag, last_modified_s=known.last_modified_s)


def _entry(listed: ListedObject) -> ListEntry:
    return ListEntry(
        listed.key,
        listed.size,
        listed.etag,
        listed.last_modified_s,
        storage_class=listed.storage_class,
        checksum_algorithms=tuple(
            ChecksumAlgorithm(a) for a in listed.checksum_algorithms if a in _ALGORITHMS
        ),
        checksum_type=ChecksumType(listed.checksum_type) if listed.checksum_type in _TYPES else None,
        owner_id=listed.owner_id,
        owner_display_name=listed.owner_display_name,
    )
