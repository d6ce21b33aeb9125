"""What bodies ask for where bytes of a version are not here: a fill that brings and keeps them, or the origin's answer alone.

`body_source.VersionSource` over the origin, segments and the eviction policy. Owns the fills.
"""

import copy
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, TypeVar

from storage.ahead import Ahead
from storage.applier import Applier
from storage.asks import FOR_READ, Ask, Intent
from storage.body_source import BodyParts
from storage.cached import AddExtents, DropExtents, ForgetVersion
from storage.clock import Clock
from storage.errors import (
    DiskFailedError,
    NoSuchKeyError,
    NotNeededError,
    ObjectChangedError,
    OriginRefusedError,
    OverloadedError,
    UnknownOutcomeError,
)
from storage.eviction import EvictionPolicy, ExtentUse
from storage.fill_table import FillTable
from storage.fills import Fill, FillAtTurn, FillParts, Proof
from storage.holdings import Holdings
from storage.openings import FillAnswer, Opening, beginning
from storage.origin.client import OriginClient
from storage.policy import PolicyTable
from storage.readahead import ReadaheadSettings
from storage.reasons import Reason
from storage.records import ObjectRecord
from storage.segments import SegmentStore
from storage.stats import Stats
from storage.types import ByteRange, Checksum, Extent, ObjectName, Priority
from storage.unkept import UnkeptBudget, UnkeptFill
from storage.unreadable import Unreadable
from storage.workers import Workers

F = TypeVar("F", bound=Fill)

INDEX_FAILURES: Final = (UnknownOutcomeError, DiskFailedError)
"""The index takes no writes: reads go on and keep nothing."""


@dataclass(slots=True)
class SupplyParts:
    """What the supply works with; made once by the engine.

    Attributes:
        make_room: Waits a bounded time for room for so many bytes of clean segments; False where it does not come.
        piece_bytes: What a fill reserves at a time: a segment's worth, so that pieces are no shorter than segments cut
            them.
        keep_bytes_max: A longer fill would push too much else out, and is not kept.
        readahead: The bounds of what is asked for ahead of readers.
        room_bytes_min: What reclaim keeps free; what a fill finds above it, and a segment more, nothing has to go for.
    """

    holdings: Holdings
    segments: SegmentStore
    applier: Applier
    origin: OriginClient
    policies: Callable[[], PolicyTable]
    clock: Clock
    workers: Workers
    eviction: EvictionPolicy
    stats: Stats
    make_room: Callable[[int], Awaitable[bool]]
    piece_bytes: int
    keep_bytes_max: int
    room_bytes_min: int
    unreadable: Unreadable
    readahead: ReadaheadSettings = field(default_factory=ReadaheadSettings)


@dataclass(slots=True)
class _Ends:
    """What has ended, for a supply and all that ask as others over the same fills."""

    has_ended_fills: bool = False


class Supply:
    """Where bodies get their bytes."""

    def __init__(self, parts: SupplyParts) -> None:
        self._parts = parts
        self._fills = FillTable()
        self._ends = _Ends()
        self._ask = FOR_READ
        self._unkept = UnkeptBudget()
        self._fill_parts = FillParts(parts.segments, parts.workers, parts.make_room, parts.piece_bytes)
        self._ahead = Ahead(
            parts.readahead,
            self._fills,
            parts.stats,
            parts.keep_bytes_max,
            can_ask_ranges=lambda: not parts.origin.counters.is_ignoring_ranges,
            missing=parts.holdings.missing,
        )
        self.body_parts = BodyParts(
            self, parts.holdings, parts.segments, self._fills, parts.workers, self._ahead
        )

    def signed_by(self, origin: OriginClient, ask: Ask = FOR_READ) -> "Supply":
        """Give a supply that asks as another authority, or ahead of readers, over the same fills: what one brings, the other follows.

        It ends with this one. Whoever opens an object through it has been let read it.
        """
        other = copy.copy(self)
        other._ask = ask  # noqa: SLF001  of the same class
        other._parts = replace(self._parts, origin=origin)  # noqa: SLF001  of the same class
        other.body_parts = replace(self.body_parts, source=other)
        return other

    @property
    def fills_in_progress(self) -> int:
        """How many fills have not ended."""
        return len(self._fills)

    @property
    def keep_bytes_max(self) -> int:
        """The longest fill that is kept."""
        return self._parts.keep_bytes_max

    def fill_at(self, record: ObjectRecord, position: int) -> Fill | None:
        """Give the fill on its way that brings a byte of a version and keeps it, however far it is from it; None where none does."""
        return self._fills.bringing(record.version_id, position)

    def start_fill(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Fill | None:
        """Begin to bring `span` of a version; see `body_source.VersionSource`."""
        fill = self._new_fill(name, record, span, record.checksums, Fill) or self._new_unkept(
            name, record, span
        )
        if fill is not None:
            self._fills.start(record.version_id, fill, self.stream(name, record, span))
        return fill

    def _new_unkept(
        self, name: ObjectName, record: ObjectRecord, span: ByteRange, told: tuple[Checksum, ...] = ()
    ) -> UnkeptFill | None:
        """Make a fill of what was turned away, for all who read it now; None where there is no memory for it, or it is too long."""
        if self._ends.has_ended_fills or span.length > self._parts.keep_bytes_max:
            return None
        held_bytes = self._unkept.take(span)
        if held_bytes is None:
            return None
        proof = None
        if span.length == record.size:
            proof = Proof(told or record.checksums, lambda: self.forget(name, record))
        return UnkeptFill(span, self._fill_parts, proof, self._unkept, held_bytes)

    async def start_fill_from(
        self,
        name: ObjectName,
        record: ObjectRecord,
        span: ByteRange,
        opening: Opening,
        told: tuple[Checksum, ...],
    ) -> Fill | None:
        """Begin to keep `span` from an open answer that `opening` gives and closes, and that told these checksums.

        Where what is behind its first piece will be brought by others, no more of the answer is taken. None, and it is not
        entered, where none is kept: what is turned away passes through memory for those who read it now, if any do.
        """
        told = told or record.checksums
        first = self._ahead.first_piece(record, span, told)
        joint = self._ahead.joint(record, span, told) if first.length < span.length else None
        try:
            fill = self._new_fill(name, record, first, told, Fill)
        except OverloadedError:
            fill = await self._new_fill_with_room(name, record, first, told)
        del joint  # the fill keeps it from here on
        is_read = self._ask.intent is Intent.READ
        if fill is None and is_read:
            first = span
            fill = self._new_unkept(name, record, span, told)
        if fill is not None:
            if is_read:
                self.note_read(name, record, first, None)
            whole = first.length == span.length
            bounded = opening if whole else beginning(opening, first.length)
            self._fills.start(record.version_id, fill, bounded, is_answered=True)
        return fill

    def start_at_turn(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Fill | None:
        """Begin to bring `span`, or its first piece, of a version for reads to come: found by none before the limiter lets the request go.

        So no reader waits in the line of a warm-up, and none asks again for what a warm-up has asked for already. None where it is
        not to be kept. Its `failure` is NotNeededError where by then it has come, or is on its way to somebody else, or is not wanted.
        Its room is reserved with its first block: many may wait, and go without having been sent.
        """
        span = self._ahead.first_piece(record, span, record.checksums)
        fill = self._new_fill(name, record, span, record.checksums, FillAtTurn)
        if fill is None:
            return None
        version_id = record.version_id

        def show() -> None:
            if self._fills.shows(version_id, fill):
                return  # sent again
            is_here = self._parts.holdings.missing(name, record, span) == ()
            is_wanted_still = self._ask.is_wanted() and fill.readers > 0
            if is_here or not is_wanted_still or self._fills.bringing(version_id, span.start) is not None:
                raise NotNeededError(f"{name} is here, on its way or passed")
            self._fills.show(version_id, fill)

        asking = self.stream(name, record, span, on_turn=show)
        self._fills.start(version_id, fill, asking, is_shown=False)
        return fill

    def start_ahead(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Fill | None:
        """Begin to bring `span` of a version before its reader is there; see `ahead.PieceSource`."""
        fill = self._new_fill(name, record, span, (), Fill)
        if fill is not None:
            on_turn = partial(self._ahead.let_through, fill)
            asking = self.stream(name, record, span, priority=Priority.READAHEAD, on_turn=on_turn)
            self._fills.start(record.version_id, fill, asking)
        return fill

    async def _new_fill_with_room(
        self, name: ObjectName, record: ObjectRecord, span: ByteRange, told: tuple[Checksum, ...]
    ) -> Fill | None:
        """Wait for room, and make a fill; None where it does not come."""
        if not await self.make_room(name, span):
            return None
        try:
            return self._new_fill(name, record, span, told, Fill)
        except OverloadedError:
            return None

    def _new_fill(
        self,
        name: ObjectName,
        record: ObjectRecord,
        span: ByteRange,
        told: tuple[Checksum, ...],
        kind: type[F],
    ) -> F | None:
        """Reserve the room for a fill; None where the span is not to be kept."""
        if self._ends.has_ended_fills:
            return None
        if span.length > self._parts.keep_bytes_max:
            return None
        use, intent = self._use(name, record, span), self._ask.intent
        is_next = intent is Intent.NEXT
        stream = self._parts.eviction.admit(use, has_room=self._has_room(), is_next=is_next)
        if stream is None:
            self._parts.stats.bypassed_bytes += span.length
            self._parts.stats.bypassed_fills += 1
            return None
        self._parts.stats.admitted_bytes += span.length

        async def add(extent: Extent) -> None:
            change = AddExtents(name.shelf, name.key, record.version_id, (extent,))
            await self._quietly(change)

        proof = joint = None
        if span.length < record.size:
            joint = self._ahead.joint_of(record.version_id)
        else:
            proof = Proof(told, lambda: self.forget(name, record))
        fill = kind(span, self._fill_parts, add, proof, joint, stream=stream)
        if intent is not Intent.READ:
            fill.is_unread = True
            self._parts.eviction.announced(use)
        return fill

    def _has_room(self) -> bool:
        """Whether a fill makes nothing go: a segment above what is kept free, as that is what goes at least."""
        segments = self._parts.segments
        return segments.room_bytes >= self._parts.room_bytes_min + segments.segment_bytes

    def why_not_kept(self, span: ByteRange) -> str:
        """Say why no fill was begun for `span`; see `body_source.VersionSource`."""
        if self._ends.has_ended_fills:
            return Reason.NOT_KEPT
        return Reason.TOO_LARGE if span.length > self._parts.keep_bytes_max else Reason.NOT_ADMITTED

    async def make_room(self, name: ObjectName, span: ByteRange) -> bool:
        """Wait a bounded time for room to begin a fill; see `body_source.VersionSource`."""
        del name
        return await self._parts.make_room(min(span.length, self._parts.piece_bytes))

    @asynccontextmanager
    async def stream(
        self,
        name: ObjectName,
        record: ObjectRecord,
        span: ByteRange,
        *,
        priority: Priority = Priority.FOREGROUND,
        on_turn: Callable[[], object] | None = None,
    ) -> AsyncIterator[FillAnswer]:
        """Ask the origin for `span` of the version, and of no other; see `body_source.VersionSource`.

        `on_turn` is called when the request may go.
        """
        assert record.origin is not None, "only a clean version is asked of the origin"
        asking = self._parts.origin.get_object(
            name, span, if_match=record.origin.etag, priority=priority, on_turn=on_turn
        )
        try:
            async with asking as answer:
                if answer.object.size != record.size:
                    raise ObjectChangedError(f"{name} has another size at the origin under the same ETag")
                yield answer
        except NoSuchKeyError as error:
            raise ObjectChangedError(f"{name} is not at the origin any more") from error
        except OriginRefusedError as error:
            if error.status != 416:
                raise
            raise ObjectChangedError(f"{name} is shorter at the origin than it was") from error

    async def drop_extents(self, change: DropExtents) -> None:
        """Forget clean bytes that cannot be served."""
        await self._quietly(change)

    async def forget(self, name: ObjectName, record: ObjectRecord) -> None:
        """Forget a clean version that the origin does not have any more, or that it told wrong things of."""
        await self._quietly(ForgetVersion(name.shelf, name.key, record.version_id))

    async def _quietly(self, change: AddExtents | DropExtents | ForgetVersion) -> bool:
        """Change clean rows; where the index takes no writes, do without: the next start asks the origin again."""
        if self._parts.holdings.is_retired:
            return False
        try:
            return await self._parts.applier.change(change)
        except INDEX_FAILURES:
            return False

    def note_unreadable(self, name: ObjectName, record: ObjectRecord, why: str) -> None:
        """Raise the alarm, where the version is still the newest; see `body_source.VersionSource`."""
        if self._parts.holdings.is_retired:
            # The next life's readers and flush look for themselves.
            return
        newest = self._parts.holdings.record(name)
        if newest is not None and newest.version_id == record.version_id:
            self._parts.unreadable.note(name, why)

    def note_read(
        self, name: ObjectName, record: ObjectRecord, span: ByteRange, place: tuple[int, int] | None
    ) -> None:
        """Tell the eviction policy of a read; see `body_source.VersionSource`."""
        eviction = self._parts.eviction
        if place is None:
            eviction.accessed(self._use(name, record, span), None)
        elif not eviction.touched(place[0], place[1], span.length):
            eviction.accessed(self._use(name, record, span), place[0], place[1])

    def _use(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> ExtentUse:
        priority = self._parts.policies().find(name).priority
        return ExtentUse(name, record.version_id, span.start, span.length, priority)

    def count_bytes(self, *, from_cache: int, from_origin: int) -> None:
        """Count what was handed out."""
        self._parts.stats.count_bytes(
            from_cache=from_cache, from_origin=from_origin, now_s=self._parts.clock.monotonic_s()
        )

    async def close(self) -> None:
        """End all fills and begin no more."""
        await self._fills.close()

    async def end_fills(self) -> None:
        """End all fills, and have what is missing streamed from the origin from here on, without keeping it."""
        self._ends.has_ended_fills = True
        await self._fills.close(DiskFailedError("the cache directory is being re-opened"))

    def retire(self) -> None:
        """Open nothing more: the directory has another engine's life by now. Bodies that were begun go on by what they hold.

        What they lack they stream from the origin; a version that only the gateway had, and that they do not hold, is cut.
        """
        self._ends.has_ended_fills = self._parts.holdings.is_retired = True
