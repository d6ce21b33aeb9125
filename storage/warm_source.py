"""Bring one object into the cache because it will be read: behind every other request to the origin, and never in its way.

    here and fresh, or as the listing shows it ─> nothing to do
    else ─> open it as a reader of the lowest priority ─> what bytes are missing? ─> a fill on its way: wait for it
                                                       └> begin a fill, which readers find once its request may go

No reader waits in the line of the lowest priority: until the limiter lets the request of a warm-up go, a client's read of the same
bytes asks for itself, and the warm-up's request is then dropped when its turn comes. From its turn on, readers join it, so that
nothing is asked for twice. Where it fails, they ask for themselves; the warm-up's own next attempt stands in its own line again.

Nothing is read from the disk, and no use is told to the eviction policy: a warm-up is no read. What it brings is announced as bytes
that are still to be read; of an order, whose objects are next, all is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from storage.asks import FOR_WARM_UP, Ask
from storage.assembly import Components, Reading
from storage.blocks import MissingSpan, plan
from storage.clock import Clock
from storage.engine_parts import EngineSettings, room_bytes_min
from storage.errors import (
    DiskFullError,
    NotNeededError,
    ObjectChangedError,
    OriginUnavailableError,
)
from storage.fills import Fill
from storage.freshness import Verdict
from storage.listing import ListEntry, ListQuery, ListResult
from storage.opened import Opened, joined
from storage.origin.client import OriginClient
from storage.publish import seen_through
from storage.published_lister import PublishedLister
from storage.reader import Reader
from storage.records import ObjectRecord, ObjectState
from storage.types import ByteRange, CacheResult, ObjectName, RangeSpec
from storage.warm_jobs import WarmResult

OPENED_MAX: Final = 3
"""So often an object is begun anew that changes while it is brought."""

LOOK_AGAIN_S: Final = 0.02

FILLS_MAX: Final = 1000
"""Fills of one object in a row; each brings at least a block or is the last."""


@dataclass(frozen=True, slots=True)
class Brought:
    """What became of one object: BROUGHT, SKIPPED or UNFIT; its size, or that of the range; what was fetched for it."""

    result: WarmResult
    size: int = 0
    fetched: int = 0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What is to be brought.

    Attributes:
        range: None is all of it.
        listed: What a listing that was just made says of it; None where none was.
        room: So many bytes may be brought; with fewer than the object has, it is UNFIT.
        ask: WARM_UP or NEXT; what is not wanted any more when a request for it may go is PASSED.
    """

    name: ObjectName
    range: RangeSpec | None = None
    listed: ListEntry | None = None
    metadata_only: bool = False
    room: int = 0
    ask: Ask = FOR_WARM_UP


class WarmSource:
    """Where warm-up jobs get objects from, and pages of listings."""

    def __init__(
        self,
        reading: Reading,
        components: Callable[[], Components],
        origin: OriginClient,
        settings: EngineSettings,
        clock: Clock,
    ) -> None:
        """Take what the engine works with.

        Args:
            reading: Lets a read work.
            components: Gives what the engine works with now.
            origin: Asks the origin as the gateway, at the lowest priority.
            settings: Those of the engine.
            clock: Waits.
        """
        self._reading = reading
        self._components = components
        self._origin = origin
        self._settings = settings
        self._clock = clock

    @property
    def room_bytes(self) -> int:
        """What the cache can hold of clean bytes, whatever of them it holds now."""
        dirty = self._components().state.dirty_bytes
        return max(0, self._settings.cache_bytes - room_bytes_min(self._settings) - dirty)

    async def shown(self, name: ObjectName) -> ObjectName:
        """Give the name that a name under a published target is read under."""

        async def read(components: Components) -> ObjectName:
            return seen_through(await components.pointers.view(name), name)

        return await self._reading(read, needs_index=False)

    async def page(self, query: ListQuery) -> ListResult:
        """Give one page of a listing, as clients see it."""

        async def read(components: Components) -> ListResult:
            lister = components.lister.signed_by(self._origin)
            return await PublishedLister(lister, components.pointers).page(query)

        return await self._reading(read, needs_index=True)

    async def bring(self, wanted: Wanted) -> Brought:
        """Bring an object, or what is missing of it; `wanted.name` is as `shown` gives it.

        On return what was brought is in the index. Cancellation keeps whole blocks.

        Raises:
            NoSuchKeyError: There is none.
            OriginError: The origin failed or refused.
            OverloadedError: Too much waits for the origin.
            ObjectChangedError: It was written each time that it was begun.
        """
        changes = 0
        while wanted.ask.is_wanted():
            try:
                return await self._reading(lambda parts: self._bring(parts, wanted), needs_index=True)
            except NotNeededError:
                # A client asked while this waited for its turn. What that brings is waited for, if it is kept.
                await self._clock.sleep(LOOK_AGAIN_S)
            except ObjectChangedError:
                changes += 1
                if changes == OPENED_MAX:
                    raise
        return Brought(WarmResult.PASSED)

    async def _bring(self, components: Components, wanted: Wanted) -> Brought:
        name, reader = wanted.name, components.reader
        known = components.holdings.record(name)
        if known is not None and _is_as_told(reader, name, known, wanted.listed):
            span = _span(known, wanted)
            if wanted.metadata_only or not _missing(components, name, known, span):
                return Brought(WarmResult.SKIPPED, span.length)
        size = wanted.listed.size if wanted.listed is not None else known.size if known is not None else 0
        if _is_unfit(components, wanted, size):
            return Brought(WarmResult.UNFIT, size)
        low = reader.asking_ahead(wanted.ask, self._origin)
        # What has no bytes is asked for by HEAD, which takes no part in a fill.
        is_described = wanted.metadata_only or (wanted.listed is not None and not wanted.listed.size)
        opened = await low.open(
            name,
            wanted.range or RangeSpec(start=0),
            metadata_only=is_described or known is not None,
        )
        try:
            return await self._complete(components, wanted, opened)
        finally:
            await opened.close()

    async def _complete(self, components: Components, wanted: Wanted, opened: Opened) -> Brought:
        """Bring what is missing of a version that was opened."""
        record = opened.record
        span = _span(record, wanted)
        if opened.result is CacheResult.STALE:
            raise OriginUnavailableError(
                f"{wanted.name} could not be confirmed", status=0, code="Unavailable"
            )
        if wanted.metadata_only:
            is_new = opened.result is CacheResult.MISS
            return Brought(WarmResult.BROUGHT if is_new else WarmResult.SKIPPED, span.length)
        fill = opened.take_fill()
        fetched = 0
        if fill is not None and fill.is_kept:
            fetched = await _ended(fill)
        elif fill is not None:
            fill.leave()
        missing = _missing(components, wanted.name, record, span)
        for _ in range(FILLS_MAX):
            if missing is None:
                is_new = bool(fetched) or opened.result is CacheResult.MISS
                return Brought(WarmResult.BROUGHT if is_new else WarmResult.SKIPPED, span.length, fetched)
            if _is_unfit(components, wanted, record.size):
                break
            fetched_more = await self._fetch(components, wanted, record, missing)
            before, missing = missing, _missing(components, wanted.name, record, span)
            fetched += fetched_more
            if missing is not None and missing.start <= before.start:
                break  # nothing of it was kept
        return Brought(WarmResult.UNFIT, span.length, fetched)

    async def _fetch(
        self, components: Components, wanted: Wanted, record: ObjectRecord, missing: MissingSpan
    ) -> int:
        """Bring a stretch that is missing, or wait for the fill that brings it; give the bytes that came.

        Raises:
            NotNeededError: It came meanwhile, or is not wanted any more.
        """
        name, supply = wanted.name, components.supply
        if record.state is not ObjectState.CLEAN:
            raise ObjectChangedError(f"{name} was written since it was opened")
        on_its_way = joined(supply.fill_at(record, missing.start))
        if on_its_way is not None:
            return await _ended(on_its_way)
        low = supply.signed_by(self._origin, wanted.ask)
        span = ByteRange(missing.fetch_start, missing.fetch_stop)
        fill = joined(low.start_at_turn(name, record, span))
        return 0 if fill is None else await _ended(fill)


async def _ended(fill: Fill) -> int:
    """Wait until a fill that was joined has ended, its extents in the index; give the bytes that it brought.

    Raises:
        StorageError: What it failed with, but for want of room: what is missing then is found out by who looks.
    """
    try:
        await fill.wait_for(fill.span.stop)
    except DiskFullError:
        return fill.arrived - fill.span.start
    finally:
        fill.leave()
    return fill.arrived - fill.span.start


def _span(record: ObjectRecord, wanted: Wanted) -> ByteRange:
    """Say which bytes of a version are wanted; none where the range lies behind its end."""
    return (wanted.range or RangeSpec(start=0)).resolve(record.size) or ByteRange(0, 0)


def _missing(
    components: Components, name: ObjectName, record: ObjectRecord, span: ByteRange
) -> MissingSpan | None:
    """Give the first stretch of a version that is not here; None where all of it is.

    Raises:
        ObjectChangedError: The key has another version by now.
    """
    if not span.length:
        return None
    present = components.holdings.record(name)
    is_present = present is not None and present.version_id == record.version_id
    held = components.holdings.held(name, present, span) if present is not None and is_present else None
    if held is None:
        raise ObjectChangedError(f"{name} was written since it was opened")
    held.pin.release()
    spans = plan(span, held.record.size, held.extents)
    return next((one for one in spans if isinstance(one, MissingSpan)), None)


def _is_as_told(reader: Reader, name: ObjectName, record: ObjectRecord, listed: ListEntry | None) -> bool:
    """Whether a version may be served as it is, or is the one that the origin has just listed."""
    if reader.verdict(name, record) is Verdict.FRESH:
        return True
    origin = record.origin
    if listed is None or origin is None:
        return False
    is_dated = origin.last_modified_s in {0, listed.last_modified_s}
    return listed.etag in {origin.etag, record.etag} and listed.size == record.size and is_dated


def _is_unfit(components: Components, wanted: Wanted, size: int) -> bool:
    if wanted.metadata_only:
        return False
    span = (wanted.range or RangeSpec(start=0)).resolve(size) if size else None
    length = 0 if span is None else span.length
    return wanted.room <= 0 or length > min(wanted.room, components.supply.keep_bytes_max)
