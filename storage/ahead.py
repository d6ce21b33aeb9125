"""Carry out what `readahead` decided: begin pieces ahead of a reader, hold them until it comes, let go of them when it goes.

    reader at a position ─> window ─> what is missing up to there? ─> on its way: hold it
                                                                  └> ask for it, behind all that readers wait for ─> hold it

A piece ahead is a fill like any other: it is in the table from the step in which it is begun, so whoever comes to it follows
it, and what it brings is in the index when it ends. Its request has the priority READAHEAD. Where its reader comes before the
limiter has let it through, it is given up, and the reader asks for itself: no reader waits in the line of what is only likely.

Who holds what. A `Course` is one GET on its way through a version. It holds the pieces ahead of it, begun by itself or by
others; so those of a reader that goes are kept if another one is coming to them, and end at their next block if not. What was
begun behind the end of a GET, because it is one of a run, belongs to nobody once that GET has its last byte: it comes to its
end, and nothing follows it before the next GET of the run.

Bounds. All pieces that were begun ahead and have not ended are counted, by `Ahead`: never more than `pieces_max`, and a share of
them for each course. A piece that fails tells nobody: its reader asks again when it comes there, and gets what the origin says
then; its course begins no more until there is progress.
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakValueDictionary

from storage.errors import OverloadedError
from storage.fill_table import FillTable
from storage.fills import Fill
from storage.hashers import joint_check, whole_check
from storage.joint import Joint
from storage.readahead import Goal, ReadaheadSettings, Run, Runs, Unread, Window
from storage.records import ObjectRecord
from storage.stats import Stats
from storage.types import BLOCK_BYTES, ByteRange, Checksum, ObjectName

Missing = Callable[[ObjectName, ObjectRecord, ByteRange], tuple[ByteRange, ...] | None]


class PieceSource(Protocol):
    """What a course asks of the supply that its body reads from."""

    def start_ahead(self, name: ObjectName, record: ObjectRecord, span: ByteRange) -> Fill | None:
        """Begin to bring `span`, behind all that readers wait for; None where it is not to be kept.

        Raises:
            OverloadedError: There is no room.
        """
        ...

    def note_read(
        self, name: ObjectName, record: ObjectRecord, span: ByteRange, place: tuple[int, int] | None
    ) -> None:
        """Tell the eviction policy that bytes were read from a segment and offset, or had to be asked of the origin (None)."""
        ...


@dataclass(slots=True)
class _Piece:
    """A fill ahead of a course: bytes `[start, stop)`, begun by this course (`is_own`) or by another; held until it ends."""

    fill: Fill
    start: int
    stop: int
    is_own: bool
    is_held: bool = True

    def let_go(self) -> None:
        if self.is_held:
            self.is_held = False
            self.fill.let_go()


class Ahead:
    """What is asked for ahead of all readers."""

    def __init__(
        self,
        settings: ReadaheadSettings,
        fills: FillTable,
        stats: Stats,
        keep_bytes_max: int,
        can_ask_ranges: Callable[[], bool],
        missing: Missing,
    ) -> None:
        """Begin with nothing.

        Args:
            settings: The bounds.
            fills: Where pieces are found, and given up.
            stats: Where they are counted.
            keep_bytes_max: A longer object is not read ahead.
            can_ask_ranges: Whether a range costs the origin, and us, its own bytes alone.
            missing: As `holdings.Holdings.missing`.
        """
        self.settings: Final = settings
        self.fills: Final = fills
        self.bytes: Final = stats.readahead_bytes
        self.runs: Final = Runs()
        self.in_flight = 0
        self.courses = 0
        self._joints: Final[WeakValueDictionary[int, Joint]] = WeakValueDictionary()
        self._unread: Final = Unread()
        self._keep_bytes_max = keep_bytes_max
        self.can_ask_ranges: Final = can_ask_ranges
        self.missing: Final = missing

    def __repr__(self) -> str:
        return f"<Ahead: {self.in_flight} pieces of {self.courses} readers>"

    def may_begin(self, on_their_way: int) -> bool:
        """Whether a course that has so many pieces of its own on their way may begin one more."""
        settings = self.settings
        return self.in_flight < settings.pieces_max and on_their_way < settings.share(self.courses)

    def first_piece(self, record: ObjectRecord, span: ByteRange, told: tuple[Checksum, ...]) -> ByteRange:
        """Say what of `span`, which one answer of the origin could bring, it should bring before others go on."""
        if not self._goes_ahead(record, span, told):
            return span
        return ByteRange(span.start, self.settings.first_stop(span.start, span.stop))

    def course(
        self, source: PieceSource, name: ObjectName, record: ObjectRecord, span: ByteRange
    ) -> "Course | None":
        """Give the course of a GET of `span`; None where nothing is read ahead for it. `Course.close` is owed."""
        if not span.length or not self._is_possible(record):
            return None
        self.bytes["used"] += self._unread.read(record.version_id, span.start, span.stop)
        run = None
        if span.length < record.size:
            run = self.runs.note(record.version_id, span.start, span.stop)
            if not run.seen_bytes or span.stop < run.stop:
                run = None
        if run is None and not self._goes_ahead(record, span, record.checksums):
            return None
        return Course(self, source, name, record, span, run)

    def _goes_ahead(self, record: ObjectRecord, span: ByteRange, told: tuple[Checksum, ...]) -> bool:
        """Whether a range that was asked for is read in several pieces at a time.

        Not where it is the whole of an object of which a checksum is known that needs all bytes in their order: one fill of it
        is held against that.
        """
        if not self.settings.is_long(span.length) or not self._is_possible(record):
            return False
        is_provable = whole_check(told) is None or joint_check(told, record.size) is not None
        return span.length < record.size or is_provable

    def _is_possible(self, record: ObjectRecord) -> bool:
        return self.settings.is_on and record.size <= self._keep_bytes_max and self.can_ask_ranges()

    def joint(self, record: ObjectRecord, span: ByteRange, told: tuple[Checksum, ...]) -> Joint | None:
        """Give what the bytes of a whole object are held against that is read in pieces; the caller keeps it alive.

        None where some of them are here, or on their way without it: then nothing can be compared.
        """
        if span.length < record.size or not self.settings.is_long(span.length):
            return None
        known = self.joint_of(record.version_id)
        if known is not None or record.extents or record.extents_spilled or self.fills.has(record.version_id):
            return known
        check = joint_check(told, record.size)
        if check is None:
            return None
        joint = self._joints[record.version_id] = Joint(check)
        return joint

    def joint_of(self, version_id: int) -> Joint | None:
        """Give what the fills of a version contribute to, if anything."""
        return self._joints.get(version_id)

    def begun(self, version_id: int, piece: ByteRange, *, is_tail: bool) -> None:
        """Count a piece; `is_tail` where it lies behind the GET for which it is begun, and waits for another."""
        self.in_flight += 1
        if is_tail:
            self.bytes["wasted"] += self._unread.add(version_id, piece.start, piece.stop)

    def let_through(self, fill: Fill) -> None:
        """Take it that the limiter has let the request of a piece go; its source tells, at each attempt."""
        if not fill.has_turn:
            fill.has_turn = True
            self.bytes["begun"] += fill.span.length

    def ended(self) -> None:
        """Count the end of a piece, whole or not."""
        self.in_flight -= 1
        assert self.in_flight >= 0, "each piece ends once"

    def wasted(self, version_id: int, piece: ByteRange, arrived: int) -> None:
        """Count a piece whose reader has gone: so many bytes of it came for nothing."""
        self._unread.read(version_id, piece.start, piece.stop)
        self.bytes["wasted"] += arrived


class Course:
    """One GET of `span`, going forward; told of its position, it has pieces begun ahead of that.

    Attributes:
        joint: What the whole object is held against, where the GET is for all of it.
    """

    def __init__(
        self,
        ahead: Ahead,
        source: PieceSource,
        name: ObjectName,
        record: ObjectRecord,
        span: ByteRange,
        run: Run | None,
    ) -> None:
        self.joint = ahead.joint(record, span, record.checksums)
        self._ahead = ahead
        self._source = source
        self._name = name
        self._record = record
        self._span = span
        self._run = run
        self._window = Window(
            ahead.settings, span.start, span.stop, record.size, 0 if run is None else run.seen_bytes
        )
        self._is_long = ahead.settings.is_long(span.length)
        self._pieces: list[_Piece] = []
        self._brought: list[ByteRange] = []
        self._on_their_way = 0
        self._looked_until = 0
        self._position = span.start
        self._look_at = span.start
        self._is_off = False
        ahead.courses += 1

    def __repr__(self) -> str:
        return f"<Course at {self._position} of [{self._span.start}, {self._span.stop}): {self._pieces}>"

    def advance(self, position: int) -> None:
        """Have pieces begun for a reader at `position`, whose own bytes are here or on their way."""
        if position < self._look_at:
            return
        self._position = position
        self._look_at = position + BLOCK_BYTES
        self._pass(position)
        if not self._is_off and self._ahead.can_ask_ranges():
            self._begin(self._window.goal(position))

    def own_stop(self, start: int, stop: int) -> int:
        """Say how far one request of the reader itself should go that could bring `[start, stop)`."""
        if not self._is_long or self._is_off or not self._ahead.can_ask_ranges():
            return stop
        settings = self._ahead.settings
        is_aided = self._on_their_way > 0 or self._ahead.may_begin(0)
        return settings.first_stop(start, stop, is_aided=is_aided)

    def claims(self, fill: Fill) -> bool:
        """Whether the reader, now at this fill, should ask for itself instead, since nobody has let the fill's request go yet.

        The fill is given up then.
        """
        piece = next((one for one in self._pieces if one.fill is fill and one.is_own), None)
        if piece is None or fill.has_turn or not self._ahead.fills.give_up(fill):
            return False
        self._pieces.remove(piece)
        piece.let_go()
        return True

    def brought(self, start: int, stop: int) -> int:
        """Say how many bytes of a stretch were asked of the origin ahead of this very reader, for what it has asked itself."""
        return sum(max(0, min(stop, one.stop) - max(start, one.start)) for one in self._brought)

    def close(self, position: int) -> None:
        """End the course of a reader that goes at `position`.

        Where it has all it asked for, what lies behind is left to come to its end for the next GET; else nobody wants it.
        """
        is_done = position >= self._span.stop
        self._is_off = True
        self._ahead.courses -= 1
        self._pass(min(position, self._span.stop - 1))
        pieces, self._pieces = self._pieces, []
        for piece in pieces:
            if piece.is_own and not is_done:
                span = ByteRange(piece.start, piece.stop)
                self._ahead.wasted(self._record.version_id, span, piece.fill.arrived - piece.start)
            if piece.is_own and is_done and piece.is_held:
                piece.fill.when_ended(piece.let_go)
                continue
            piece.let_go()
            if not piece.fill.readers:
                self._ahead.fills.give_up(piece.fill)

    # --- pieces ------------------------------------------------------------------------------------------------------

    def _pass(self, position: int) -> None:
        """Take it that the reader has come to all pieces that begin up to `position`, and follows one itself if it needs it."""
        passed = bisect_right(self._pieces, position, key=_start)
        for piece in self._pieces[:passed]:
            piece.let_go()
            if piece.is_own and piece.fill.failure is None:
                self._ahead.bytes["used"] += piece.stop - piece.start
                self._source.note_read(self._name, self._record, ByteRange(piece.start, piece.stop), None)
        del self._pieces[:passed]
        self._brought = [one for one in self._brought if one.stop > position]

    def _begin(self, goal: Goal) -> None:
        start = max(self._position, self._looked_until)
        if self._run is not None and not self._is_long:
            start = max(start, self._span.stop, self._run.looked_until)
        if start >= goal.stop or not self._ahead.may_begin(self._on_their_way):
            return
        missing = self._ahead.missing(self._name, self._record, ByteRange(start, goal.stop))
        if missing is None:
            self._is_off = True
            return
        for span in missing:
            stop = self._begin_in(span, goal.piece_bytes)
            if stop < span.stop:
                self._looked(stop)
                return
        self._looked(goal.stop)

    def _looked(self, stop: int) -> None:
        self._looked_until = max(self._looked_until, stop)
        if self._run is not None:
            self._run.looked_until = max(self._run.looked_until, stop)

    def _begin_in(self, span: ByteRange, piece_bytes: int) -> int:
        """Begin, or hold, what brings a missing span; say how far that goes, for now."""
        at, fills, version_id = span.start, self._ahead.fills, self._record.version_id
        while at < span.stop:
            fill = fills.bringing(version_id, at)
            if fill is None:
                stop = min(span.stop, (at // piece_bytes + 1) * piece_bytes)
                following = fills.next_start(version_id, at)
                fill = self._begun(ByteRange(at, stop if following is None else min(stop, following)))
                if fill is None:
                    return at
            elif fill.span.start > self._position:
                self._hold(fill, at, is_own=False)
            at = fill.span.stop
        return at

    def _begun(self, span: ByteRange) -> Fill | None:
        """Begin a piece; None where none may be begun now, or is to be kept."""
        if not self._ahead.may_begin(self._on_their_way):
            return None
        try:
            fill = self._source.start_ahead(self._name, self._record, span)
        except OverloadedError:
            return None
        if fill is None:
            self._is_off = True
            return None
        self._on_their_way += 1
        is_tail = span.start >= self._span.stop
        self._ahead.begun(self._record.version_id, span, is_tail=is_tail)
        if not is_tail:
            self._brought.append(span)
        self._hold(fill, span.start, is_own=True)
        return fill

    def _hold(self, fill: Fill, start: int, *, is_own: bool) -> None:
        piece = _Piece(fill, start, fill.span.stop, is_own)
        self._pieces.append(piece)
        fill.hold()
        fill.when_ended(lambda: self._ended(piece))

    def _ended(self, piece: _Piece) -> None:
        piece.let_go()
        if not piece.is_own:
            return
        self._on_their_way -= 1
        self._ahead.ended()
        if piece.fill.failure is not None:
            self._window.close(self._position)


def _start(piece: _Piece) -> int:
    return piece.start
