"""Give a reader the bytes of one version, in order: from segments, from fills, or straight from the origin.

A body holds what it needs so that nothing can change under it: the version's record, and pins on the segments that
its extents name, taken in the same synchronous step that read the index (`Held`). It goes forward through its span
and asks at each position:

    is it here               -> a span of a segment file
    is a fill bringing it    -> follow the fill
    else                     -> begin a fill; where nothing can be kept, stream from the origin at the reader's own pace

A cached block is checked against its checksum before its first serving in this process. Clean bytes that are gone or
wrong are forgotten and fetched again; dirty ones are an error and an alarm, since no other copy exists.

What is counted. Bytes that were here when the read was planned, in a segment or as far as a fill had come, are the
cache's; all others are the origin's, also those of a fill that another reader began. `result` says the same of the
read as a whole.

Bytes that turn out not to be the object's end the body: what it gave is wrong, so it is cut; where it gave nothing yet
it ends like one whose object changed, and may be begun anew.

Every round of the loop that gives no bytes is bounded: a lost extent is never looked at again, room is waited for
once, and an origin that breaks off is given up after CUTS_MAX times without a block's progress.
"""

import logging
from bisect import bisect_right
from typing import Final

from storage.ahead import Course
from storage.blocks import CachedSpan, MissingSpan, plan
from storage.body_source import BodyParts
from storage.cached import DropExtents
from storage.errors import (
    DirtyBytesLostError,
    DiskFailedError,
    DiskFullError,
    ObjectChangedError,
    OriginRefusedError,
    OriginSuspendedError,
    OriginUnavailableError,
    OverloadedError,
    SegmentGoneError,
    StorageError,
)
from storage.fills import Fill
from storage.hashers import whole_check
from storage.holdings import Held
from storage.joint import Joint
from storage.origin_stream import OriginStream
from storage.reasons import Reason
from storage.records import ObjectState
from storage.requests import FileSpan
from storage.types import BLOCK_BYTES, MIB, ByteRange, CacheResult, Extent, Location, ObjectName
from storage.verified import verified

CUTS_MAX: Final = 3
"""So often in a row one body takes up a cut answer where it ended; then the origin is given up on."""

FILE_SPAN_BYTES_MAX: Final = 8 * MIB
"""A longer run is given in steps, so that a body that is given up stops within one."""

log = logging.getLogger(__name__)


class VersionBody:
    """`requests.Body` over one version.

    Attributes:
        result: How much of the read was here.
        reason: Why not all of it; "" where all was, and where the opening says it.
    """

    def __init__(  # noqa: PLR0913 - all that a read is
        self,
        parts: BodyParts,
        name: ObjectName,
        held: Held,
        span: ByteRange,
        *,
        fill: Fill | None = None,
        is_stale: bool = False,
        is_copied: bool = False,
    ) -> None:
        """Plan the read.

        Args:
            parts: What all bodies share.
            name: The object.
            held: The version; its pin is the body's from here on.
            span: The bytes to give; within the version, and what is held of it.
            fill: A fill that this read's own opening began, or joined as it began, joined for it.
            is_stale: Whether the version only covers for a failing origin.
            is_copied: Whether each block is checked, however often it was before.
        """
        self._parts = parts
        self._name = name
        self._is_copied = is_copied
        self._record, self._extents, self._pin, _ = held
        self._start = self._position = span.start
        self._stop = span.stop
        self._fill: Fill | None = None
        self._begun: Fill | None = None
        self._stream: OriginStream | None = None
        self._here_until = span.start  # bytes of a fill below it were here when the read was planned
        self._cuts = 0
        self._cut_at = span.start
        self._lost: tuple[Location, ...] = ()
        self._noted: Extent | None = None
        self._has_waited_for_room = False
        self.result = self._first_result(span, fill, is_stale=is_stale)
        is_told = fill is not None or self.result in {CacheResult.HIT, CacheResult.STALE}
        self.reason = "" if is_told else Reason.ABSENT.value
        if self.result is CacheResult.BYPASS:
            self.reason = Reason.NOT_ADMITTED.value
        self._course = self._begin_course(span)
        self._joint = None if self._course is None else self._course.joint
        # The last block is kept back for as long as the joint checksum is not settled.
        self._given_stop = (
            self._stop if self._joint is None else (self._stop - 1) // BLOCK_BYTES * BLOCK_BYTES
        )

    def _begin_course(self, span: ByteRange) -> Course | None:
        ahead, extents = self._parts.ahead, self._extents
        if ahead is None or self._record.state is not ObjectState.CLEAN:
            return None
        if len(extents) == 1 and extents[0].start <= span.start and extents[0].stop == self._record.size:
            return None
        return ahead.course(self._parts.source, self._name, self._record, span)

    def _first_result(self, span: ByteRange, fill: Fill | None, *, is_stale: bool) -> CacheResult:
        """Say how much of the read is here, and take over, or find, the fill that brings its beginning."""
        if fill is not None:
            if fill.can_serve(self._position):
                self._fill = fill
                self._note_followed(fill)
            else:
                fill.leave()
            return CacheResult.MISS if fill.is_kept else CacheResult.BYPASS
        extents = self._extents
        if len(extents) == 1 and extents[0].start <= span.start and span.stop <= extents[0].stop:
            is_here, is_missing = True, False
        else:
            is_here, is_missing = self._look(span)
        if is_missing:
            return CacheResult.PARTIAL if is_here else CacheResult.MISS
        return CacheResult.STALE if is_stale else CacheResult.HIT

    def _look(self, span: ByteRange) -> tuple[bool, bool]:
        """Say whether any byte of the span is here, and whether any is missing."""
        spans = plan(span, self._record.size, self._extents)
        is_here = is_missing = False
        for one in spans:
            if isinstance(one, CachedSpan):
                is_here = True
                continue
            fill = self._parts.fills.find(self._record.version_id, one.start)
            arrived = one.start if fill is None else min(fill.arrived, one.stop)
            is_here = is_here or arrived > one.start
            is_missing = is_missing or arrived < one.stop
        return is_here, is_missing

    async def next_piece(self) -> bytes | FileSpan | None:
        """Give the next bytes, None at the end; see `requests.Body`."""
        while self._position < self._stop:
            piece = await self._next()
            if piece is not None:
                self._position += piece.length if isinstance(piece, FileSpan) else len(piece)
                return piece
        return None

    async def close(self) -> None:
        """Let go of pins, fill, stream, and what was begun ahead."""
        course, self._course = self._course, None
        if course is not None:
            course.close(self._position)
        self._unfollow()
        self._pin.release()
        await self._close_stream()

    # --- one step ----------------------------------------------------------------------------------------------------

    async def _next(self) -> bytes | FileSpan | None:
        """Give the bytes at the position, or None where the situation changed and is to be looked at anew."""
        if self._stream is not None:
            return await self._next_of_stream(self._stream)
        fill = self._fill
        extent = _covering(self._extents, self._position) if fill is None else None
        if self._course is not None and (
            extent is not None or (fill is not None and self._position < fill.span.stop)
        ):
            await self._go_ahead(self._course)
        if fill is not None:
            return await self._next_of_fill(fill)
        if extent is not None:
            return await self._next_of_extent(extent)
        await self._begin_missing()
        return None

    async def _go_ahead(self, course: Course) -> None:
        """Have pieces begun ahead of a position whose own bytes are here or on their way, and keep the last block back."""
        course.advance(self._position)
        if self._joint is not None and self._position >= self._given_stop:
            await self._prove(self._joint)

    async def _begin_missing(self) -> None:
        """Find or make where the bytes at the position come from; the next step takes them."""
        course, fill = self._course, self._parts.fills.find(self._record.version_id, self._position)
        if fill is not None and not (course is not None and course.claims(fill)):
            if self._position == self._start and self.reason:
                self.reason = Reason.FETCHING.value
            self._follow(fill)
            return
        # What a fill brought since the read was planned is in the index by now.
        self._look_again()
        if _covering(self._extents, self._position) is not None:
            return
        if self._record.state is not ObjectState.CLEAN:
            raise self._lost_for_good(f"byte {self._position} is nowhere")
        await self._begin_fill()

    async def _begin_fill(self) -> None:
        source, name, record = self._parts.source, self._name, self._record
        span = self._missing_span()
        why_not = ""
        try:
            fill = source.start_fill(name, record, span)
        except OverloadedError:
            if not self._has_waited_for_room:
                self._has_waited_for_room = True
                if await source.make_room(name, span):
                    return
            fill, why_not = None, Reason.NO_ROOM.value
        source.note_read(name, record, span, None)
        if fill is None:
            await self._begin_stream(why_not or source.why_not_kept(span))
            return
        if not fill.is_kept:
            self.result, self.reason = CacheResult.BYPASS, source.why_not_kept(span)
        self._begun = fill
        self._follow(fill)

    def _missing(self) -> MissingSpan:
        missing = plan(ByteRange(self._position, self._stop), self._record.size, self._extents)[0]
        assert isinstance(missing, MissingSpan), f"byte {self._position} of {self._name} is here"
        return missing

    def _missing_span(self) -> ByteRange:
        """Say what one origin request should bring: whole blocks, up to what is present or on its way."""
        missing = self._missing()
        next_fill = self._parts.fills.next_start(self._record.version_id, self._position)
        stop = missing.fetch_stop if next_fill is None else min(missing.fetch_stop, next_fill)
        if self._course is not None:
            stop = self._course.own_stop(missing.fetch_start, stop)
        return ByteRange(missing.fetch_start, stop)

    # --- cached bytes ------------------------------------------------------------------------------------------------

    async def _next_of_extent(self, extent: Extent) -> FileSpan | None:
        location = extent.location
        start = self._position - extent.start
        stop = min(self._given_stop - extent.start, location.length, start + FILE_SPAN_BYTES_MAX)
        segments, workers, is_trusted = self._parts.segments, self._parts.workers, not self._is_copied
        try:
            try:
                stop, file = await verified(segments, workers, location, start, stop, is_trusted=is_trusted)
            except DiskFailedError as error:
                # One refusal is not a loss yet: of dirty bytes it would be an alarm, of clean ones another request.
                log.warning("%s is read once more: %s", self._name, error)
                stop, file = await verified(segments, workers, location, start, stop, is_trusted=is_trusted)
        except (SegmentGoneError, DiskFailedError) as error:
            await self._lose(extent, str(error))
            return None
        if stop <= start:
            await self._lose(extent, "checksum mismatch")
            return None
        self._count_cached(extent, location.offset + start, stop - start)
        return FileSpan(file, location.offset + start, stop - start)

    def _count_cached(self, extent: Extent, offset: int, length: int) -> None:
        """Count bytes of an extent, and its use; what was brought ahead of this very read is the origin's, and counted as used."""
        source, course = self._parts.source, self._course
        brought = 0 if course is None else course.brought(self._position, self._position + length)
        if self._noted is not extent and not brought:
            self._noted = extent
            span = ByteRange(self._position, min(self._stop, extent.stop))
            source.note_read(self._name, self._record, span, (extent.location.segment_id, offset))
        source.count_bytes(from_cache=length - brought, from_origin=brought)

    async def _lose(self, extent: Extent, why: str) -> None:
        """Do without an extent that cannot be served: from elsewhere, from the origin, or not at all."""
        place = extent.location
        self._lost = (*self._lost, place)
        self._look_again()
        if _covering(self._extents, self._position) is not None:
            return  # it was moved, and lies elsewhere by now
        where = f"segment {place.segment_id:x} at {place.offset}"
        if self._record.state is not ObjectState.CLEAN:
            raise self._lost_for_good(f"{where}: {why}")
        log.warning("cached bytes of %s are forgotten: %s: %s", self._name, where, why)
        await self._parts.source.drop_extents(
            DropExtents(self._name.shelf, self._name.key, self._record.version_id, (place,))
        )

    def _lost_for_good(self, why: str) -> DirtyBytesLostError:
        self._parts.source.note_unreadable(self._name, self._record, why)
        return DirtyBytesLostError(f"{self._name}: acknowledged bytes cannot be read: {why}")

    def _look_again(self) -> None:
        held = self._parts.holdings.hold(self._name, self._record, ByteRange(self._position, self._stop))
        self._pin.release()
        self._record, extents, self._pin, _ = held
        lost = self._lost
        self._extents = tuple(one for one in extents if one.location not in lost) if lost else extents

    # --- bytes on their way ------------------------------------------------------------------------------------------

    async def _next_of_fill(self, fill: Fill) -> bytes | FileSpan | None:
        """Give what the fill has at the position; where it ended or failed, stop following it."""
        try:
            if self._position < fill.span.stop and await fill.wait_for(self._position):
                stop = min(self._given_stop, fill.span.stop, self._position + FILE_SPAN_BYTES_MAX)
                return self._counted(fill.take(self._position, stop))
            self._unfollow()
        except ObjectChangedError:
            await self._parts.source.forget(self._name, self._record)
            raise
        except OriginUnavailableError as error:
            self._unfollow()
            if fill.is_refuted:
                raise self._refuted(error) from error
            self._count_cut(error)
        except (OriginRefusedError, OriginSuspendedError):
            self._unfollow()
            if fill is self._begun:
                raise
            # Refused to who began the fill, perhaps with other credentials: no answer to this read.
            await self._begin_stream(Reason.NOT_KEPT)
        except (DiskFullError, DiskFailedError, SegmentGoneError) as error:
            # The cache failed, not the origin; what this read lacks it asks for itself.
            self._unfollow()
            is_full = isinstance(error, DiskFullError)
            await self._begin_stream(Reason.NO_ROOM if is_full else Reason.NOT_KEPT)
        except OverloadedError:
            self._unfollow()
            if fill is self._begun:
                raise
            # It was to wait for its turn longer than this read has to.
        return None

    async def _prove(self, joint: Joint) -> None:
        """Wait for what the joint checksum shows of a body whose last block is here or on its way.

        Where the fill of that failed it is begun anew, and the checksum waited for again.
        """
        await joint.wait()
        if joint.is_refuted:
            await self._parts.source.forget(self._name, self._record)
            raise self._refuted(joint.error())
        fill = self._fill
        is_asked_again = fill is not None and fill.is_finished and fill.arrived <= self._position
        if joint.is_settled or not is_asked_again:
            self._do_without_proof()

    def _do_without_proof(self) -> None:
        """Give what comes: it was proved, or cannot be."""
        self._joint = None
        self._given_stop = self._stop

    def _counted(self, piece: bytes | FileSpan) -> bytes | FileSpan:
        length = piece.length if isinstance(piece, FileSpan) else len(piece)
        here = min(length, max(0, self._here_until - self._position))
        self._parts.source.count_bytes(from_cache=here, from_origin=length - here)
        return piece

    def _follow(self, fill: Fill) -> None:
        fill.join()
        self._fill = fill
        self._note_followed(fill)
        course, at = self._course, self._position
        is_own = fill is self._begun or (course is not None and course.brought(at, at + 1) > 0)
        self._here_until = at if is_own else fill.arrived

    def _note_followed(self, fill: Fill) -> None:
        """Tell of the first read of what was begun for a read to come; of all other fills who began them has told."""
        if fill.is_unread:
            fill.is_unread = False
            span = ByteRange(self._position, min(self._stop, fill.span.stop))
            self._parts.source.note_read(self._name, self._record, span, None)

    def _unfollow(self) -> None:
        fill, self._fill = self._fill, None
        if fill is not None:
            fill.leave()

    def _count_cut(self, error: OriginUnavailableError) -> None:
        """Allow for one more interruption; the count begins anew when there was progress since the last one."""
        self._cuts = 1 if self._position - self._cut_at >= BLOCK_BYTES else self._cuts + 1
        self._cut_at = self._position
        if self._cuts >= CUTS_MAX:
            raise error

    def _refuted(self, error: OriginUnavailableError) -> StorageError:
        """Say how to end when the bytes are not the object's: to begin anew, or, where some were given, for good."""
        if self._position > self._start:
            return error
        return ObjectChangedError(f"{self._name}: {error}")

    # --- bytes that cannot be kept -----------------------------------------------------------------------------------

    async def _begin_stream(self, reason: str) -> None:
        stop = self._missing().stop
        self._do_without_proof()
        opening = self._parts.source.stream(self._name, self._record, ByteRange(self._position, stop))
        try:
            answer = await opening.__aenter__()
        except ObjectChangedError:
            await self._parts.source.forget(self._name, self._record)
            raise
        except OriginUnavailableError as error:
            self._count_cut(error)
            return
        is_whole = self._position == 0 and stop == self._record.size
        check = whole_check(self._record.checksums) if is_whole else None
        self._stream = OriginStream(opening, answer, stop, check)
        self.result, self.reason = CacheResult.BYPASS, str(reason)

    async def _next_of_stream(self, stream: OriginStream) -> bytes | None:
        if self._position == stream.stop:
            await self._close_stream()
            return None
        try:
            chunk = await stream.next_chunk(self._position)
        except OriginUnavailableError as error:
            await self._close_stream()
            if stream.is_refuted:
                await self._parts.source.forget(self._name, self._record)
                raise self._refuted(error) from error
            self._count_cut(error)
            return None
        self._parts.source.count_bytes(from_cache=0, from_origin=len(chunk))
        return chunk

    async def _close_stream(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()


def _covering(extents: tuple[Extent, ...], position: int) -> Extent | None:
    """Find the extent that holds the byte at `position`."""
    index = 0 if len(extents) == 1 else bisect_right(extents, position, key=_start) - 1
    if 0 <= index < len(extents):
        extent = extents[index]
        if extent.start <= position < extent.stop:
            return extent
    return None


def _start(extent: Extent) -> int:
    return extent.start
