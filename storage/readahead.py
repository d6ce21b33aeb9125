"""How far ahead of a reader its bytes are asked for: from how much evidence, in pieces of which length, in which share. Pure.

Two kinds of evidence that bytes will be wanted:

- *Asked*: one GET whose range is long. Its client wants all of it, so a few pieces are begun at once, and more the further it
  has read: a client that looks at the beginning of a whole GET and goes costs a few pieces.
- *Seen*: GETs of short ranges, each beginning about where one before it ended (`Runs`). Behind the last of them no more is
  begun than the run has asked for so far. So random small ranges bring their own blocks and nothing else, and a run that goes
  on doubles what lies ahead of it until the window is full.

Pieces begin at multiples of their length, so that readers of one version ask for the same pieces and share them.
"""

from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from storage.types import BLOCK_BYTES, KIB, MIB

PIECE_BYTES: Final = 8 * MIB
"""One request ahead: some ten times what a connection brings in the time to its first byte."""

PIECE_MEMORY_BYTES: Final = 3 * MIB
"""What a piece on its way holds: two blocks, and the buffers of its connection."""

WINDOW_BYTES_MAX: Final = 128 * MIB
"""No reader has more begun ahead of it."""

WINDOWS_A_CACHE: Final = 8
"""No window is more of the cache, so that pieces do not push each other out before they are read."""

FIRST_PIECES: Final = 2
"""So many pieces ahead a reader of a long range has from its first byte on."""

LONG_PIECES: Final = 4
"""A range of no more is one request: little is won in so short a time, and the first answer of a cold GET is not left in the middle."""

UNAIDED_PIECES: Final = 4
"""A reader for which no piece ahead may be begun asks for so many in one request."""

assert LONG_PIECES > FIRST_PIECES, "a long range has room for the pieces that are begun at once"

SEEN_BYTES_MIN: Final = 4 * MIB
SEEN_READS_MIN: Final = 3
"""A shorter run, or one of fewer GETs, is no evidence."""

GAP_BYTES_MAX: Final = 128 * KIB
"""A GET that begins so little behind the end of a run continues it: headers are skipped, padding is."""

BEHIND_READS: Final = 16
BEYOND_READS: Final = 2
"""A GET that begins before the end of a run, or behind it, by so many of its own lengths, continues it: parallel ranges come out
of order."""

DENSITY_MIN: Final = 2 / 3
"""A run that asks for less of what it goes over is no evidence: what it skips would be brought for nothing."""

RUNS_MAX: Final = 8
VERSIONS_MAX: Final = 1024
UNREAD_MAX: Final = 256
"""So many runs of a version, versions, and pieces that wait for a reader are remembered."""


@dataclass(frozen=True, slots=True)
class ReadaheadSettings:
    """The bounds of readahead.

    Attributes:
        memory_bytes: For all pieces ahead that are on their way, of all readers together; under PIECE_MEMORY_BYTES there is no
            readahead.
        window_bytes_max: Of one reader.
    """

    memory_bytes: int = 48 * MIB
    piece_bytes: int = PIECE_BYTES
    window_bytes_max: int = WINDOW_BYTES_MAX

    def __post_init__(self) -> None:
        if self.piece_bytes <= 0 or self.piece_bytes % BLOCK_BYTES:
            raise ValueError(f"a piece is whole blocks, not {self.piece_bytes} bytes")

    @property
    def pieces_max(self) -> int:
        """Pieces ahead that may be on their way at a time."""
        return self.memory_bytes // PIECE_MEMORY_BYTES

    @property
    def is_on(self) -> bool:
        """Whether anything is ever begun ahead."""
        return self.pieces_max > 0 and self.window_bytes_max >= FIRST_PIECES * self.piece_bytes

    def fitted(self, cache_bytes: int) -> "ReadaheadSettings":
        """Give the settings for a cache of this size; a small one has no readahead."""
        return replace(self, window_bytes_max=min(self.window_bytes_max, cache_bytes // WINDOWS_A_CACHE))

    def is_long(self, length: int) -> bool:
        """Whether a range of so many bytes is read in pieces, several at a time."""
        return self.is_on and length > LONG_PIECES * self.piece_bytes

    def first_stop(self, start: int, stop: int, *, is_aided: bool = True) -> int:
        """Say up to where a reader of the long range `[start, stop)` asks for itself, the pieces behind that being others'."""
        length = self.piece_bytes if is_aided else UNAIDED_PIECES * self.piece_bytes
        boundary = (start // self.piece_bytes) * self.piece_bytes + length
        if boundary - start < self.piece_bytes // 2:
            boundary += self.piece_bytes
        return min(stop, boundary)

    def share(self, readers: int) -> int:
        """Say how many pieces each of so many readers may have on their way; all of them stay within `pieces_max`."""
        return max(1, self.pieces_max // max(1, readers))


class Run:
    """GETs of one version that go forward: where the last of them ends, how many they are, how many bytes they asked for.

    Attributes:
        looked_until: Below it, what was missing has been begun for this run.
    """

    __slots__ = ("asked_bytes", "looked_until", "reads", "skipped_bytes", "stop")

    def __init__(self, start: int, stop: int) -> None:
        self.stop = stop
        self.reads = 1
        self.asked_bytes = stop - start
        self.skipped_bytes = 0
        self.looked_until = stop

    def __repr__(self) -> str:
        return f"<Run up to {self.stop}: {self.reads} reads of {self.asked_bytes} bytes>"

    @property
    def seen_bytes(self) -> int:
        """How much may be begun behind the run; 0 as long as it is no evidence."""
        is_long = self.reads >= SEEN_READS_MIN and self.asked_bytes >= SEEN_BYTES_MIN
        is_dense = self.asked_bytes >= DENSITY_MIN * (self.asked_bytes + self.skipped_bytes)
        return self.asked_bytes if is_long and is_dense else 0

    def is_continued(self, start: int, length: int) -> bool:
        """Whether a GET of `length` bytes from `start` on belongs to the run."""
        gap_bytes_max = max(GAP_BYTES_MAX, BEYOND_READS * length)
        return self.stop - BEHIND_READS * length <= start <= self.stop + gap_bytes_max

    def take(self, start: int, stop: int) -> None:
        """Take in a GET that belongs to the run."""
        self.reads += 1
        late_bytes = min(self.skipped_bytes, max(0, min(stop, self.stop) - start))
        self.asked_bytes += late_bytes
        self.skipped_bytes -= late_bytes
        if stop > self.stop:
            self.asked_bytes += stop - max(start, self.stop)
            self.skipped_bytes += max(0, start - self.stop)
            self.stop = stop


class Runs:
    """The runs of all versions, bounded: those that nothing continued for longest go first."""

    def __init__(self) -> None:
        self._runs: OrderedDict[int, list[Run]] = OrderedDict()

    def __len__(self) -> int:
        """Count the versions with runs."""
        return len(self._runs)

    def note(self, version_id: int, start: int, stop: int) -> Run:
        """Take note of a GET of `[start, stop)`; give the run that it continues, or begins."""
        runs = self._runs.setdefault(version_id, [])
        self._runs.move_to_end(version_id)
        for run in reversed(runs):
            if run.is_continued(start, stop - start):
                runs.remove(run)
                runs.append(run)
                run.take(start, stop)
                return run
        run = Run(start, stop)
        runs.append(run)
        del runs[:-RUNS_MAX]
        if len(self._runs) > VERSIONS_MAX:
            self._runs.popitem(last=False)
        return run


class Goal(NamedTuple):
    """Pieces are begun up to `stop`, each up to the next multiple of `piece_bytes`."""

    stop: int
    piece_bytes: int


class Window:
    """How far ahead of its position one GET of `[start, stop)` of `size` bytes is.

    Grows with what has been read, from FIRST_PIECES for what the GET asked for itself, from what its run has seen for what lies
    behind that. A piece that fails closes the window: it opens again with what is read from there on.
    """

    def __init__(
        self, settings: ReadaheadSettings, start: int, stop: int, size: int, seen_bytes: int
    ) -> None:
        assert 0 <= start < stop <= size, f"[{start}, {stop}) of {size} bytes"
        self._settings = settings
        self._stop = stop
        self._size = size
        self._opened_at = start
        is_long = settings.is_long(stop - start)
        self._first_bytes = (1 + FIRST_PIECES) * settings.piece_bytes if is_long else 0
        self._seen_bytes = seen_bytes

    def close(self, position: int) -> None:
        """Begin nothing more until there is progress from `position` on."""
        self._opened_at = position
        self._first_bytes = self._seen_bytes = 0

    def goal(self, position: int) -> Goal:
        """Say up to where pieces should be begun for a reader at `position`; `stop` is at `position` where none should."""
        read = max(0, position - self._opened_at)
        asked = self._reach(position, self._first_bytes + 2 * read, self._stop) if self._is_asked else None
        seen = self._reach(position, self._seen_bytes + read, self._size) if self._seen_bytes else None
        return max((goal for goal in (asked, seen) if goal is not None), default=Goal(position, BLOCK_BYTES))

    @property
    def _is_asked(self) -> bool:
        return self._settings.is_long(self._stop - self._opened_at) or self._first_bytes > 0

    def _reach(self, position: int, window_bytes: int, stop_max: int) -> Goal:
        settings = self._settings
        window_bytes = min(window_bytes, settings.window_bytes_max)
        half = window_bytes // 2 // BLOCK_BYTES * BLOCK_BYTES
        piece_bytes = min(settings.piece_bytes, max(BLOCK_BYTES, half))
        stop = position + window_bytes
        if stop >= stop_max:
            return Goal(max(position, stop_max), piece_bytes)
        return Goal(max(position, stop // piece_bytes * piece_bytes), piece_bytes)


class Unread:
    """Pieces that wait, whole, for a reader that has yet to come; bounded, the oldest are given up."""

    def __init__(self) -> None:
        self._pieces: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._versions: dict[int, int] = {}

    def __len__(self) -> int:
        """Count the pieces."""
        return len(self._pieces)

    def add(self, version_id: int, start: int, stop: int) -> int:
        """Remember a piece; give the bytes of the one that is forgotten for it."""
        if (version_id, start) not in self._pieces:
            self._versions[version_id] = self._versions.get(version_id, 0) + 1
        self._pieces[version_id, start] = stop
        if len(self._pieces) <= UNREAD_MAX:
            return 0
        oldest = next(iter(self._pieces))
        return self._take(oldest)

    def read(self, version_id: int, start: int, stop: int) -> int:
        """Forget the pieces that a read of `[start, stop)` touches; give their bytes."""
        if version_id not in self._versions:
            return 0
        touched = [
            piece
            for piece, piece_stop in self._pieces.items()
            if piece[0] == version_id and piece[1] < stop and start < piece_stop
        ]
        return sum(self._take(piece) for piece in touched)

    def _take(self, piece: tuple[int, int]) -> int:
        version_id, start = piece
        left = self._versions.pop(version_id) - 1
        if left:
            self._versions[version_id] = left
        return self._pieces.pop(piece) - start
