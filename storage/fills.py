"""Fills: one origin request each, written to the cache and followed by any number of readers.

Theory of operation. A fill covers bytes `[start, stop)` of one version. Its own task opens the origin's answer,
gathers a block, writes it to reserved segment space, and goes on. At any moment the bytes lie in three runs:

    start ........ written ........ written+writing ........ arrived ........ stop
      in the segment      being written        gathered in memory     not here yet

A reader follows at its own pace: what is written it sends from the segment, the rest (at most two blocks) from
memory, and it waits for what has not arrived. So the first byte leaves as soon as the origin's first byte arrives, a
late reader catches up from disk, and a slow one holds up nobody. Memory a fill: two blocks. Who looks for a fill to join finds it
in `storage/fill_table.py`.

Space is reserved a piece at a time, so that a fill that ends early leaves little of it dead, and a long one does not
need all of its room at once. Each piece becomes one extent or, where it crosses a segment's end, a few. Blocks count
from the fill's own start.

Where a checksum of the whole object is known, a fill of all of it computes that as the blocks are written. The last
block is given to nobody before the comparison, so that no reader gets a whole body that is not the object.

Ends. Complete: the last extent is added to the index and the fill leaves the table, in that order, so that no reader
sees a gap. Refused, cut or changed at the origin, or no space or no disk: whole blocks are kept, and those who wait
get the error. Another checksum: the version's row is forgotten, with the extents that earlier pieces became, and all
readers get the error. Nobody reads any more: the fill ends at the next block. The index may refuse the extents (the version
is gone): then they are dead space, and those who follow still get the bytes of the version they opened.

The segments stay pinned until the fill has ended and its last reader has left.
"""

import asyncio
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from storage.checksums import checksums
from storage.errors import DiskFullError, EngineClosedError, OriginUnavailableError, StorageError
from storage.hashers import WholeCheck, whole_check
from storage.joint import Joint, Stretch
from storage.openings import FillAnswer, Opening, incomplete
from storage.requests import FileSpan
from storage.segments import Pin, Reservation, SegmentStore
from storage.types import BLOCK_BYTES, MIB, ByteRange, Checksum, Extent, Location, Stream
from storage.workers import Workers

JOIN_AHEAD_BYTES_MAX: Final = 16 * MIB
"""A reader whose first byte is further ahead of a fill asks the origin itself: that takes less time."""

UNJOINED_BYTES_MAX: Final = 4 * MIB
"""So much a fill reads before its first reader has come: whoever asked is told of it one turn of the loop later."""


@dataclass(frozen=True, slots=True)
class FillParts:
    """What fills work with; made once by the supply.

    Attributes:
        make_room: Waits a bounded time for room for so many bytes; False where it does not come.
        piece_bytes: Reserved at a time; a multiple of BLOCK_BYTES.
    """

    segments: SegmentStore
    workers: Workers
    make_room: Callable[[int], Awaitable[bool]]
    piece_bytes: int


AddExtent = Callable[[Extent], Awaitable[object]]
"""Tells the index of filled bytes; raises nothing that is expected."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What a fill of a whole object is held against.

    Attributes:
        checksums: What the origin told of all the bytes; nothing is compared where none of it is of the whole.
        forget: Forgets the version whose bytes were found to be others; raises nothing that is expected.
    """

    checksums: tuple[Checksum, ...]
    forget: Callable[[], Awaitable[object]]


@dataclass(slots=True)
class _Piece:
    """One reservation: bytes `[start, stop)` of the version, and the checksums of what is written of them."""

    reservation: Reservation
    start: int
    checksums: bytes = b""

    @property
    def stop(self) -> int:
        return self.start + self.reservation.length


class Fill:
    """One fill. The table runs it; readers `join`, `wait_for`, `take` and `leave`.

    Attributes:
        readers: Who has joined, and who holds it for a reader that has yet to come.
        has_turn: The limiter has let its request through; of a fill that was begun ahead of its reader.
        is_unread: It was begun for a read that is yet to come; whoever reads from it first tells the eviction policy, and resets it.
        failure: Why it ended short of its end.
        is_kept: Whether what it brings is in the cache once it has ended; see `storage/unkept.py`.
    """

    is_kept = True
    _reserves_at_once = True

    def __init__(
        self,
        span: ByteRange,
        parts: FillParts,
        add_extent: AddExtent,
        proof: Proof | None = None,
        joint: Joint | None = None,
        *,
        stream: Stream = Stream.CLEAN,
    ) -> None:
        """Reserve the room of the first piece.

        Args:
            span: The bytes to bring; all of the object where there is a `proof`.
            parts: What all fills share.
            add_extent: Is told of what is kept.
            proof: None where the bytes cannot be compared with anything by themselves.
            joint: What they are compared with together with those of other fills.
            stream: Where they are appended.

        Raises:
            OverloadedError: There is none (DiskFullError), or no segment id at the moment.
        """
        assert span.length, "a fill brings something"
        self.span = span
        self._parts = parts
        self._add_extent = add_extent
        self._proof = proof
        self._stream = stream
        self._check = None if proof is None else whole_check(proof.checksums)
        self._given_stop = span.stop if self._check is None else _last_block_start(span)
        self._pieces: list[_Piece] = []
        self._current = 0
        self._pins: list[Pin] = []
        self._written = span.start
        self._writing = b""
        self._gathered = bytearray()
        self._progress = asyncio.Event()
        self._was_joined = False
        self._was_given_up = False
        self._has_answer = False
        self._holds = 0
        self._when_ended: list[Callable[[], object]] = []
        self.has_turn = False
        self.is_unread = False
        self.readers = 0
        self.failure: StorageError | None = None
        self.cut: StorageError = EngineClosedError("the fill was ended", retry_after_s=5.0)
        self.is_finished = False
        self._joint = joint
        self._stretch: Stretch | None = None
        if self._reserves_at_once:
            self._reserve()

    def __repr__(self) -> str:
        state = "finished" if self.is_finished else f"{self.readers} readers"
        return f"<Fill [{self.span.start}, {self.span.stop}) arrived {self.arrived}, {state}>"

    @property
    def _received(self) -> int:
        return self._written + len(self._writing) + len(self._gathered)

    @property
    def arrived(self) -> int:
        """Bytes below this position can be taken."""
        return min(self._received, self._given_stop)

    @property
    def is_refuted(self) -> bool:
        """Whether the bytes are not the object's: what was taken of them is wrong, or less than there is."""
        return self._check is not None and self._check.is_refuted

    def can_serve(self, position: int) -> bool:
        """Whether a reader at `position` should follow this fill rather than ask for itself."""
        if not self.span.start <= position < self.span.stop or self._was_given_up:
            return False
        if self.is_finished:
            return position < self.arrived
        return position - self.arrived <= JOIN_AHEAD_BYTES_MAX

    def shown(self) -> None:
        """Take it that readers may come from this step on; the table calls this, once."""
        joint, self._joint = self._joint, None
        if joint is not None:
            self._stretch = joint.begin(self.span.start)

    # --- readers -----------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Follow a fill that has not ended; `leave` is owed."""
        assert not self.is_finished, f"{self!r} has let go of its segments"
        self._was_joined = True
        self.readers += 1

    def leave(self) -> None:
        """Stop following; without readers the fill ends at the next block."""
        self.readers -= 1
        assert self.readers >= 0, f"{self!r} was left too often"
        self._let_go_if_done()

    def hold(self) -> None:
        """Keep a fill going that a reader will come to; `let_go` is owed."""
        self._holds += 1
        self.join()

    def let_go(self) -> None:
        """Hold the fill no more; without readers it ends at the next block."""
        self._holds -= 1
        self.leave()

    @property
    def is_followed(self) -> bool:
        """Whether anybody reads from it now."""
        return self.readers > self._holds

    def give_up(self) -> bool:
        """Take it that nobody needs this fill, and whoever looks for one makes another.

        Those who hold it see it end. False where somebody reads from it, or where its answer is there: nothing is gained then.
        """
        self._was_given_up = not self._has_answer and not self.is_followed
        return self._was_given_up

    @property
    def has_answer(self) -> bool:
        """Whether the origin has answered, so that there is something to close."""
        return self._has_answer

    def answered(self) -> None:
        """Take it that the answer is there before the fill runs."""
        self._has_answer = True

    def when_ended(self, call: Callable[[], object]) -> None:
        """Have `call` called once, in the step in which the fill ends; now where it has."""
        if self.is_finished:
            call()
        else:
            self._when_ended.append(call)

    @property
    def is_on_its_way(self) -> bool:
        """Whether it has not ended, and nobody has given it up."""
        return not self.is_finished and not self._was_given_up

    async def wait_for(self, position: int) -> bool:
        """Wait until the byte at `position` can be taken; False where the fill ended before it.

        Raises:
            StorageError: The fill failed before it.
        """
        while self.arrived <= position:
            if self.is_finished:
                if self.failure is not None:
                    raise self.failure
                return False
            self._progress.clear()
            await self._progress.wait()
        return True

    def take(self, position: int, stop: int) -> bytes | FileSpan:
        """Give bytes from `position` on, fewer than up to `stop` where they lie in several places.

        Raises:
            SegmentGoneError, DiskFailedError: What was written cannot be opened.
        """
        assert self.span.start <= position < self.arrived, f"{position} is not there yet in {self!r}"
        stop = min(stop, self.arrived)
        if position < self._written:
            return self._written_span(position, min(stop, self._written))
        in_writing = position - self._written
        if in_writing < len(self._writing):
            return self._writing[in_writing : in_writing + stop - position]
        in_gathered = in_writing - len(self._writing)
        return bytes(memoryview(self._gathered)[in_gathered : in_gathered + stop - position])

    def _written_span(self, position: int, stop: int) -> FileSpan:
        piece = self._pieces[bisect_right(self._pieces, position, key=_start) - 1]
        file = self._parts.segments.reader(piece.reservation.segment_id)
        offset = piece.reservation.offset + position - piece.start
        return FileSpan(file, offset, min(stop, piece.stop) - position)

    # --- the fill's own task -----------------------------------------------------------------------------------------

    async def run(self, opening: Opening) -> None:
        """Read the answer to its end, or to where nobody reads it any more. Raises nothing that is expected.

        Cancellation keeps what is whole; who waits gets `cut`, which says that the engine was closed unless told otherwise.
        """
        try:
            async with opening as answer:
                self._has_answer = True
                await self._read(answer)
        except StorageError as error:
            self.failure = error
        except BaseException:
            self.failure = self.cut
            raise
        finally:
            await self._finish()

    async def _read(self, answer: FillAnswer) -> None:
        async for chunk in answer.chunks():
            if self._received + len(chunk) > self.span.stop:
                raise OriginUnavailableError(
                    f"the answer goes on behind {self.span.stop}", status=0, code="BadAnswer"
                )
            self._gathered += chunk
            self._progress.set()
            while len(self._gathered) >= BLOCK_BYTES or (self._gathered and self._received == self.span.stop):
                await self._write_block()
                # What has arrived to its end is kept, though its reader took the last bytes and left.
                if self._received < self.span.stop and not self._is_wanted():
                    return
        if self._written != self.span.stop:
            raise incomplete(self._received, self.span.stop)

    def _is_wanted(self) -> bool:
        if self._was_joined:
            return self.readers > 0
        return self._written - self.span.start < UNJOINED_BYTES_MAX

    async def _write_block(self) -> None:
        """Write the next block, or the shorter last one; a block never crosses a piece."""
        piece = await self._current_piece()
        block = bytes(memoryview(self._gathered)[:BLOCK_BYTES])
        del self._gathered[: len(block)]
        self._writing = block
        piece.checksums += await self._parts.workers.run(self._write, piece, self._written, block)
        self._written += len(block)
        self._writing = b""
        if self._written == self.span.stop:
            self._given_stop = self.span.stop
            self._progress.set()
        if self._written == piece.stop:
            self._current += 1
            await self._add(piece)

    def _write(self, piece: _Piece, position: int, block: bytes) -> bytes:
        if self._check is not None:
            self._compare(self._check, position, block)
        self._parts.segments.write(piece.reservation, position - piece.start, block)
        if self._stretch is not None:
            self._stretch.update(block)
        return checksums(block)

    def _compare(self, check: WholeCheck, position: int, block: bytes) -> None:
        check.update(block)
        if position + len(block) == self.span.stop:
            check.verify()

    async def _current_piece(self) -> _Piece:
        if self._current == len(self._pieces):
            try:
                self._reserve()
            except DiskFullError:
                if not await self._parts.make_room(self._next_length()):
                    raise
                self._reserve()
        return self._pieces[self._current]

    def _next_length(self) -> int:
        return min(self._parts.piece_bytes, self.span.stop - self._written)

    def _reserve(self) -> None:
        segments = self._parts.segments
        start = self._written
        for reservation in segments.reserve(self._next_length(), self._stream):
            self._pins.append(segments.pin((reservation.segment_id,)))
            self._pieces.append(_Piece(reservation, start))
            start += reservation.length

    async def _add(self, piece: _Piece) -> None:
        """Tell the index of what is written of a piece, and give up the rest of it."""
        length = min(self._written, piece.stop) - piece.start
        try:
            if length > 0:
                place = piece.reservation
                location = Location(place.segment_id, place.offset, length, piece.checksums)
                await self._add_extent(Extent(piece.start, piece.start + length, location))
        finally:
            self._parts.segments.settle((piece.reservation,))

    async def _finish(self) -> None:
        self._gathered.clear()
        self._writing = b""
        try:
            if self.is_refuted:
                await self._disown()
            for piece in self._pieces[self._current :]:
                await self._add(piece)
        finally:
            self.end()

    async def _disown(self) -> None:
        """Keep nothing and give nothing more; who opens the object from here on does not find the version."""
        self._written = self.span.start
        assert self._proof is not None, "nothing is refuted without a proof"
        await self._proof.forget()

    def end(self) -> None:
        """Mark the fill as ended; for the table, whose task may be cancelled before it runs."""
        self._parts.segments.settle(piece.reservation for piece in self._pieces[self._current :])
        stretch, self._stretch = self._stretch, None
        if stretch is not None:
            stretch.end(self._written)
        self.is_finished = True
        self._progress.set()
        told, self._when_ended = self._when_ended, []
        for call in told:
            call()
        self._let_go_if_done()

    def _let_go_if_done(self) -> None:
        if self.is_finished and not self.readers:
            for pin in self._pins:
                pin.release()


class FillAtTurn(Fill):
    """A fill whose request waits behind all others before it is sent: it reserves room with its first block.

    Many may wait, and go again without having been sent: a reservation that is given up leaves its room dead.
    """

    _reserves_at_once = False


def _last_block_start(span: ByteRange) -> int:
    return span.start + (span.length - 1) // BLOCK_BYTES * BLOCK_BYTES


def _start(piece: _Piece) -> int:
    return piece.start
