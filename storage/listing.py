"""One listing out of two: the origin's pages and the overlay of what is not there yet.

`ListingMerger` is pulled: `step` says what it needs next, the driver fetches that and feeds it, until `step` gives the result.
It keeps one position, up to which all keys are decided, and two sorted views of what lies behind it:

- the overlay, read in chunks: dirty puts, which show (and shadow the origin's entry), and tombstones, which hide;
- the origin, asked with the listing's own delimiter, so that a group of a million keys costs one line. Where a group has
  tombstones and no put, its line proves nothing: the keys below it are asked for without delimiter (a "detail" page) until
  one is found that is not deleted. A detail page runs on into the groups that follow, so that a tree of small deleted
  directories does not cost a request each; as soon as the position is outside an undecided group, the grouped view is used
  again.

Two rules of the design are kept here. The overlay is read before the origin: when another chunk of it has to be read, the
origin's pages at hand are older than it and are dropped. And nothing depends on what an origin does with a start inside a
group, where implementations differ: only undelimited requests start there, or such as skip the group.

Order is that of the keys' UTF-8 bytes, which is the order of Python strings by code point. Nothing here is as long as the
listing: a chunk, a grouped and a detail page, and one page of results.
"""

import itertools
from collections import deque
from dataclasses import dataclass
from typing import Final

import msgspec

from storage.errors import OriginUnavailableError
from storage.origin.documents import PageRequest
from storage.records import OverlayRecord
from storage.types import Checksum, ChecksumAlgorithm, ChecksumType

PAGE_KEYS_MAX: Final = 1000
"""The most that the origin gives at once (AWS API_ListObjectsV2, max-keys)."""

OVERLAY_CHUNK_MAX: Final = 2000
"""How much of the overlay is held at a time; two pages' worth, so that the origin is seldom asked twice for one place."""

FRUITLESS_PAGES_MAX: Final = 1000
"""So many pages in a row without anything new mean an origin that does not move on."""

_BEHIND_GROUP: Final = "\U0010ffff"
"""Appended to a group's name it is behind all keys of the group that do not begin with the last code point themselves."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A place in a listing: behind the key `name`, or behind all keys that begin with the common prefix `name`."""

    name: str = ""
    is_prefix: bool = False

    def covers(self, name: str) -> bool:
        """Whether a key or common prefix is at or before the place."""
        return name <= self.name or (self.is_prefix and name.startswith(self.name))


class ListQuery(msgspec.Struct, frozen=True):
    """What a client wants listed.

    Attributes:
        delimiter: "" lists keys only.
        after: From a token; of a client's marker or start-after by `position_of_marker`.
        max_keys: Keys and common prefixes together, 0 to PAGE_KEYS_MAX.
        generation: That of the published target in which `after` lies, as the page before said; None begins anew.
        with_owner: Whether the origin is to say whose its objects are.
    """

    bucket: str
    prefix: str = ""
    delimiter: str = ""
    after: Position = Position()
    max_keys: int = PAGE_KEYS_MAX
    generation: int | None = None
    with_owner: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.max_keys <= PAGE_KEYS_MAX:
            raise ValueError(f"max_keys is {self.max_keys}, allowed is 0 to {PAGE_KEYS_MAX}")

    def group_of(self, key: str) -> str | None:
        """Give the common prefix into which a key is rolled up; None where it is listed itself."""
        if not self.delimiter:
            return None
        at = key.find(self.delimiter, len(self.prefix))
        return None if at < 0 else key[: at + len(self.delimiter)]


class ListEntry(msgspec.Struct, frozen=True, gc=False):
    """One key of a listing. The ETag is without quotes; the owner is empty where it was not asked for, or is not at the origin yet."""

    key: str
    size: int
    etag: str
    last_modified_s: int
    storage_class: str = "STANDARD"
    checksum_algorithms: tuple[ChecksumAlgorithm, ...] = ()
    checksum_type: ChecksumType | None = None
    owner_id: str = ""
    owner_display_name: str = ""


class OverlayEntry(msgspec.Struct, frozen=True, gc=False):
    """What the overlay says of one key; `entry` is None for a tombstone."""

    key: str
    entry: ListEntry | None


class OverlayChunk(msgspec.Struct, frozen=True):
    """Answers NeedOverlay: entries in ascending order, and whether none follow."""

    entries: tuple[OverlayEntry, ...]
    is_last: bool


class OriginPage(msgspec.Struct, frozen=True):
    """Answers a PageRequest: one page of the origin's listing, keys and common prefixes each in ascending order."""

    entries: tuple[ListEntry, ...]
    prefixes: tuple[str, ...] = ()
    is_truncated: bool = False
    next_token: str = ""


@dataclass(frozen=True, slots=True)
class NeedOverlay:
    """Read up to `limit` overlay entries of the bucket whose keys begin with `prefix` and come behind `after`."""

    bucket: str
    prefix: str
    after: str
    limit: int


class ListResult(msgspec.Struct, frozen=True):
    """One page for the client.

    Attributes:
        next_position: The last key or common prefix given; goes into the token. None unless truncated.
        generation: Of the published target that the page is of; goes into the token too. None outside of targets.
        stale_reason: Why the page is one that was given before, the origin having failed; "" for one of now.
    """

    entries: tuple[ListEntry, ...]
    prefixes: tuple[str, ...]
    is_truncated: bool
    next_position: Position | None = None
    generation: int | None = None
    stale_reason: str = ""

    @property
    def key_count(self) -> int:
        """Keys and common prefixes together, as ListObjectsV2 counts them."""
        return len(self.entries) + len(self.prefixes)

    def next_marker(self, query: ListQuery) -> str | None:
        """Give NextMarker of ListObjects, which exists only with a delimiter (AWS API_ListObjects)."""
        return self.next_position.name if self.next_position is not None and query.delimiter else None


def position_of_marker(marker: str, prefix: str, delimiter: str) -> Position:
    """Place a client's `marker` (ListObjects) or `start-after` (ListObjectsV2).

    One that is a common prefix, as NextMarker may be, or lies below one, is behind the whole group: what is listed are keys
    and common prefixes, and the group's name is not greater than the marker.
    """
    group = ListQuery("", prefix, delimiter).group_of(marker) if marker.startswith(prefix) else None
    return Position(marker) if group is None else Position(group, is_prefix=True)


def overlay_entry(key: str, record: OverlayRecord) -> OverlayEntry:
    """Make what the merger takes out of an overlay row."""
    if record.is_tombstone:
        return OverlayEntry(key, None)
    entry = ListEntry(
        key=key,
        size=record.size,
        etag=record.etag,
        last_modified_s=record.last_modified_s,
        storage_class=record.storage_class,
        checksum_algorithms=tuple(checksum.algorithm for checksum in record.checksums),
        checksum_type=_checksum_type(record.checksums),
    )
    return OverlayEntry(key, entry)


class ListingMerger:
    """Makes one page of a listing. Call `step`; feed what it asks for; repeat until it gives a ListResult."""

    def __init__(self, query: ListQuery) -> None:
        self._query = query
        self._at = query.after
        self._entries: list[ListEntry] = []
        self._prefixes: list[str] = []
        self._overlay: deque[OverlayEntry] = deque()
        self._overlay_after = start_after(query.after)
        self._overlay_is_whole = False
        self._grouped = _View()
        self._detail: _View | None = None
        self._asked: NeedOverlay | PageRequest | None = None
        self._fruitless_pages = 0
        self._result: ListResult | None = None if query.max_keys else ListResult((), (), is_truncated=False)

    def __repr__(self) -> str:
        return (
            f"<ListingMerger: {self._query!r} at {self._at!r}, {len(self._entries)} keys, "
            f"{len(self._prefixes)} prefixes, asked {self._asked!r}>"
        )

    def step(self) -> NeedOverlay | PageRequest | ListResult:
        """Go as far as what is known allows; say what is needed next, or give the result.

        A page of the origin may be answered from a cache only within the rules on overlay and generation. Its `token` is set where the
        page before told nothing new.
        """
        if self._asked is not None:
            return self._asked
        # Each round decides a key or a group of a buffer, or ends the loop.
        while self._result is None:
            need = self._next_need()
            if need is not None:
                self._asked = need
                return need
            self._decide_next()
        return self._result

    def feed_overlay(self, chunk: OverlayChunk) -> None:
        """Answer NeedOverlay. What is known of the origin is older than this chunk and is dropped."""
        assert isinstance(self._asked, NeedOverlay), f"{self!r} did not ask for the overlay"
        assert chunk.entries or chunk.is_last, "an empty chunk that is not the last"
        self._asked = None
        if chunk.entries:
            self._overlay_after = max(self._overlay_after, chunk.entries[-1].key)
        self._overlay.extend(entry for entry in chunk.entries if not self._at.covers(entry.key))
        self._overlay_is_whole = chunk.is_last
        self._grouped = _View()
        self._detail = None

    def feed_origin(self, page: OriginPage) -> None:
        """Answer a PageRequest.

        Raises:
            OriginUnavailableError: The origin's pages do not move on.
        """
        assert isinstance(self._asked, PageRequest), f"{self!r} did not ask for a page"
        self._asked = None
        view = self._grouped if self._detail is None else self._detail
        view.take(page, self._at)
        self._fruitless_pages = 0 if view.items or not page.is_truncated else self._fruitless_pages + 1
        if self._fruitless_pages and (self._fruitless_pages > FRUITLESS_PAGES_MAX or not page.next_token):
            raise OriginUnavailableError("the origin's listing does not move on", status=0, code="BadAnswer")

    # --- What is needed ---

    def _next_need(self) -> NeedOverlay | PageRequest | None:
        """Find out what has to be known before the next key is decided; None where enough is, or the result is clear."""
        if not self._overlay and not self._overlay_is_whole:
            self._overlay_after = max(self._overlay_after, start_after(self._at))
            return NeedOverlay(self._query.bucket, self._query.prefix, self._overlay_after, OVERLAY_CHUNK_MAX)
        self._choose_view()
        if self._is_full() and self._more_is_certain():
            self._finish(is_truncated=True)
            return None
        view = self._grouped if self._detail is None else self._detail
        return None if view.items or view.is_complete else self._need_page(view)

    def _choose_view(self) -> None:
        """Use detail where the position, or the group that comes next, cannot be decided from common prefixes."""
        if self._detail is not None and self._keeps_detail(self._detail):
            return
        grouped = self._grouped
        grouped.drop(self._at)
        if grouped.items:
            # What the page passed over is not at the origin, so a position inside a group that it does not have is decided.
            needs_detail = self._is_undecidable(grouped.items[0])
        else:
            needs_detail = not grouped.is_complete and self._is_in_undecided_group()
        if needs_detail:
            self._detail = _View()

    def _keeps_detail(self, detail: "_View") -> bool:
        """Whether the detail view has more to tell; where not, go back to the grouped one."""
        detail.drop(self._at)
        if detail.items or not (detail.is_truncated or detail.is_complete):
            return True
        if detail.is_truncated and (detail.next_token or self._is_in_undecided_group()):
            return True
        self._detail = None
        self._grouped.drop(self._at)
        if detail.is_complete:
            self._grouped = detail  # nothing follows, in either view
        elif not self._grouped.items:
            # That more follows behind its page says nothing any more: the detail may have walked past it.
            self._grouped = _View()
        return False

    def _is_in_undecided_group(self) -> bool:
        at = self._at
        return (
            not at.is_prefix
            and at.name.startswith(self._query.prefix)
            and self._query.group_of(at.name) is not None
        )

    def _is_undecidable(self, item: ListEntry | str) -> bool:
        """Whether the overlay may hide all of a common prefix: tombstones below it, and no put at hand that shows it."""
        if isinstance(item, ListEntry):
            return False
        # The overlay's entries before the group are decided first; they, too, would only be walked again each time.
        if not self._overlay or not self._overlay[0].key.startswith(item):
            return False
        below = itertools.takewhile(lambda overlaid: overlaid.key.startswith(item), self._overlay)
        return all(overlaid.entry is None for overlaid in below)

    def _need_page(self, view: "_View") -> PageRequest:
        query = self._query
        # As many as the page lacks, one to know whether more follow, and one for each that may be hidden.
        lacking = query.max_keys - len(self._entries) - len(self._prefixes) + 1
        return PageRequest(
            bucket=query.bucket,
            prefix=query.prefix,
            delimiter=query.delimiter if self._detail is None else "",
            start_after=start_after(self._at),
            max_keys=min(PAGE_KEYS_MAX, lacking + self._tombstones()),
            token=view.next_token,
            with_owner=query.with_owner,
        )

    def _more_is_certain(self) -> bool:
        """Whether something follows the full page that no tombstone can hide, so that nobody need be asked."""
        if any(overlaid.entry is not None for overlaid in self._overlay):
            return True
        # A page that told nothing may be followed by nothing.
        is_told = self._grouped.is_truncated and not self._fruitless_pages
        grouped_is_spent = self._detail is None and not self._grouped.items and is_told
        return grouped_is_spent and not self._overlay and not self._is_in_undecided_group()

    def _tombstones(self) -> int:
        return sum(overlaid.entry is None for overlaid in self._overlay)

    # --- What is decided ---

    def _decide_next(self) -> None:
        """Decide the first key or group behind the position, of whichever side has it."""
        if self._result is not None:
            return
        items = (self._grouped if self._detail is None else self._detail).items
        item = items[0] if items else None
        overlaid = self._overlay[0] if self._overlay else None
        if item is None and overlaid is None:
            self._finish(is_truncated=False)
        elif isinstance(item, str):
            # Undecidable groups were sent to the detail view, so this one shows, unless the overlay has a group before it.
            if overlaid is not None and overlaid.key < item:
                self._decide_overlaid()
            else:
                self._show_group(item)
        elif item is None or (overlaid is not None and overlaid.key <= item.key):
            self._decide_overlaid()
        else:
            self._show(item)

    def _decide_overlaid(self) -> None:
        overlaid = self._overlay.popleft()
        if overlaid.entry is None:
            self._at = Position(overlaid.key)
        else:
            self._show(overlaid.entry)

    def _show(self, entry: ListEntry) -> None:
        group = self._query.group_of(entry.key)
        if group is not None:
            self._show_group(group)
        elif self._is_full():
            self._finish(is_truncated=True)
        else:
            self._entries.append(entry)
            self._pass(Position(entry.key))

    def _show_group(self, group: str) -> None:
        if self._is_full():
            self._finish(is_truncated=True)
            return
        self._prefixes.append(group)
        self._pass(Position(group, is_prefix=True))

    def _pass(self, position: Position) -> None:
        self._at = position
        while self._overlay and position.covers(self._overlay[0].key):
            self._overlay.popleft()

    def _is_full(self) -> bool:
        return len(self._entries) + len(self._prefixes) == self._query.max_keys

    def _finish(self, *, is_truncated: bool) -> None:
        last = Position(self._entries[-1].key) if self._entries else Position()
        if self._prefixes and self._prefixes[-1] > last.name:
            last = Position(self._prefixes[-1], is_prefix=True)
        next_position = last if is_truncated else None
        self._result = ListResult(tuple(self._entries), tuple(self._prefixes), is_truncated, next_position)


class _View:
    """What is known of the origin behind the position: items in order, and whether more follow."""

    __slots__ = ("is_complete", "is_truncated", "items", "next_token")

    def __init__(self) -> None:
        self.items: deque[ListEntry | str] = deque()
        self.is_truncated = False
        self.is_complete = False
        self.next_token = ""

    def take(self, page: OriginPage, at: Position) -> None:
        """Add what a page has behind the position."""
        items: list[ListEntry | str] = [*page.entries, *page.prefixes]
        items.sort(key=_name)
        self.items.extend(item for item in items if not at.covers(_name(item)))
        self.is_truncated = page.is_truncated
        self.is_complete = not page.is_truncated
        # A page with news is continued by name: the position may by then be far behind the page's end.
        self.next_token = "" if self.items else page.next_token

    def drop(self, at: Position) -> None:
        """Forget what the position has passed."""
        while self.items and at.covers(_name(self.items[0])):
            self.items.popleft()


def _name(item: ListEntry | str) -> str:
    return item if isinstance(item, str) else item.key


def start_after(position: Position) -> str:
    """Give the key behind which the origin is asked to go on."""
    return position.name + _BEHIND_GROUP if position.is_prefix else position.name


def _checksum_type(checksums: tuple[Checksum, ...]) -> ChecksumType | None:
    return checksums[0].type if checksums else None
