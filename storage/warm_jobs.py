"""Warm-up jobs as values: what is asked for, how far it is, and the list of names that a job has been given. Pure.

A job never holds its prefix as a list: pages of a listing come and go. A list of names that was handed over is held, so that the job
goes on when its client has left: packed, and up to BACKLOG_BYTES_MAX, above which its client waits.
"""

import zlib
from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from storage.errors import (
    DiskFailedError,
    NoSuchBucketError,
    NoSuchKeyError,
    ObjectChangedError,
    OriginRefusedError,
    OriginSuspendedError,
    OriginThrottledError,
    OriginUnavailableError,
    OverloadedError,
    StorageError,
)
from storage.types import GIB, MIB, RangeSpec

CONCURRENCY: Final = 16
CONCURRENCY_MAX: Final = 256

FEED_ENTRIES_MAX: Final = 1000
"""Names in one piece of a list."""

BACKLOG_BYTES_MAX: Final = 16 * MIB
"""Packed names that wait in one job: some two million keys with long common prefixes, more than 200,000 without any."""

EXAMPLES_MAX: Final = 20
"""So many failures of a job are told by name."""

AHEAD_OBJECTS: Final = 1000
AHEAD_OBJECTS_MAX: Final = 100_000
AHEAD_BYTES: Final = GIB
IDLE_S: Final = 600.0
HOLD_S_MAX: Final = 3600.0


class WarmKind(StrEnum):
    """What a job warms: all under a prefix, a list, or a list at the pace at which it is read."""

    PREFIX = "prefix"
    LIST = "list"
    ORDER = "order"


class WarmResult(StrEnum):
    """What became of one object; label values of the metrics.

    SKIPPED was here already. UNFIT does not fit: it is over what one object may take of the cache, the job has filled the cache with
    its own bytes, or the cache would not keep it. PASSED was read before its turn came (ORDER only).
    """

    BROUGHT = "brought"
    SKIPPED = "skipped"
    UNFIT = "unfit"
    FAILED = "failed"
    PASSED = "passed"


class WarmPhase(StrEnum):
    """Where a job stands. IDLE has ended too: nobody read what was listed for so long."""

    RUNNING = "running"
    DONE = "done"
    IDLE = "idle"
    CANCELLED = "cancelled"
    FAILED = "failed"


class WarmEntry(msgspec.Struct, frozen=True, gc=False):
    """One line of a list: an object, or a range of it."""

    bucket: str
    key: str
    range: RangeSpec | None = None


class WarmRequest(msgspec.Struct, frozen=True):
    """A job to begin.

    Attributes:
        bucket: With `prefix`, of a job of that kind.
        metadata_only: Bring what HEAD answers and no bytes.
        concurrency: Objects at a time.
        ahead_objects: How far an ORDER job may be ahead of the reads; `ahead_bytes` likewise, whichever is less.
        idle_s: An ORDER job ends when nothing of its list was read for so long; a LIST job that nobody holds, when nothing came.
        hold_s: Whoever gives the list holds the job meanwhile (`Warmer.hold`), and has gone once nobody did for so long; 0 where
            its list comes without.
    """

    kind: WarmKind
    bucket: str = ""
    prefix: str = ""
    metadata_only: bool = False
    concurrency: int = CONCURRENCY
    ahead_objects: int = AHEAD_OBJECTS
    ahead_bytes: int = AHEAD_BYTES
    idle_s: float = IDLE_S
    hold_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise ValueError(f"concurrency is {self.concurrency}, allowed is 1 to {CONCURRENCY_MAX}")
        if not 1 <= self.ahead_objects <= AHEAD_OBJECTS_MAX:
            raise ValueError(f"ahead is {self.ahead_objects}, allowed is 1 to {AHEAD_OBJECTS_MAX}")
        if self.ahead_bytes < 1 or not self.idle_s > 0:
            raise ValueError("ahead_bytes and idle are positive")
        if not 0 <= self.hold_s <= HOLD_S_MAX:
            raise ValueError(f"hold is {self.hold_s}, allowed is 0 to {HOLD_S_MAX:.0f}")
        if (self.kind is WarmKind.PREFIX) != bool(self.bucket):
            raise ValueError("a job has a bucket if and only if it warms a prefix")


class WarmReport(msgspec.Struct, frozen=True):
    """How far a job is.

    Attributes:
        place: What it warms, for people.
        known_objects: So many there are, as far as the job has looked; `known_bytes` likewise, of those whose size is known.
        is_counted: All of them are known.
        results: Objects by `WarmResult`.
        brought_bytes: Fetched from the origin by this job.
        warm_bytes: Of the objects that were brought or skipped.
        room_bytes: What the cache could hold of it, when the job was last looked at.
        elapsed_s: Since it began, until now or its end.
        position: Of an ORDER job: how far the reads have come; `ahead_bytes` is what lies warm before it.
        failures: Objects that failed, by kind; `examples` names the first of them.
        error: Why the job failed.
    """

    job_id: int
    kind: WarmKind
    place: str
    phase: WarmPhase
    known_objects: int = 0
    known_bytes: int = 0
    is_counted: bool = False
    results: dict[str, int] = {}
    brought_bytes: int = 0
    warm_bytes: int = 0
    room_bytes: int = 0
    elapsed_s: float = 0.0
    position: int = 0
    ahead_bytes: int = 0
    failures: dict[str, int] = {}
    examples: tuple[str, ...] = ()
    error: str = ""

    @property
    def is_over(self) -> bool:
        """Whether it has ended, however."""
        return self.phase is not WarmPhase.RUNNING

    @property
    def warm_objects(self) -> int:
        """Objects that are here."""
        return self.results.get(WarmResult.BROUGHT, 0) + self.results.get(WarmResult.SKIPPED, 0)

    @property
    def seen_objects(self) -> int:
        """Objects that the job is done with."""
        return sum(self.results.values())

    @property
    def percent_warm(self) -> float:
        """Share of the known objects that are here, in percent; 0 where there are none: a prefix without objects is a mistake."""
        return 100.0 * self.warm_objects / self.known_objects if self.known_objects else 0.0


class WarmFed(msgspec.Struct, frozen=True):
    """What a job took of a piece of its list: `next_at` names are known; fewer than were sent where it has no room yet."""

    next_at: int


class WarmJobs(msgspec.Struct, frozen=True):
    """All jobs that run or ended lately, oldest first."""

    jobs: tuple[WarmReport, ...] = ()


class Backlog:
    """The names that a job was given and has not looked at, packed; first in, first out."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self.count = 0
        self.packed_bytes = 0
        self.is_whole = False

    @property
    def is_full(self) -> bool:
        """Whether the client has to wait."""
        return self.packed_bytes >= BACKLOG_BYTES_MAX

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits."""
        return not self._pieces

    def append(self, entries: tuple[WarmEntry, ...], *, is_last: bool) -> None:
        """Add a piece of the list; after the last one nothing follows."""
        assert not self.is_whole, "the list has ended"
        if entries:
            # A thousand keys take about a millisecond.
            piece = zlib.compress(msgspec.msgpack.encode(entries), 1)
            self._pieces.append(piece)
            self.packed_bytes += len(piece)
            self.count += len(entries)
        self.is_whole = is_last

    def take(self) -> tuple[WarmEntry, ...]:
        """Give the oldest piece."""
        piece = self._pieces.popleft()
        self.packed_bytes -= len(piece)
        return msgspec.msgpack.decode(zlib.decompress(piece), type=tuple[WarmEntry, ...])


@dataclass(slots=True)
class Tally:
    """What a job counts."""

    known_objects: int = 0
    known_bytes: int = 0
    is_counted: bool = False
    results: Counter[str] = field(default_factory=Counter)
    brought_bytes: int = 0
    warm_bytes: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)

    def fail(self, name: str, error: StorageError) -> None:
        """Count an object that could not be brought."""
        self.results[WarmResult.FAILED] += 1
        self.failures[failure_kind(error)] += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(f"{name}: {error}")


_WRONG_ANSWERS: Final = frozenset({"BadAnswer", "Incomplete"})
"""Cut, of another length, without an ETag, or with bytes that do not have their checksum: the origin is there."""

_KINDS: Final[tuple[tuple[type[StorageError], str], ...]] = (
    (NoSuchKeyError, "not found"),
    (NoSuchBucketError, "no such bucket"),
    (ObjectChangedError, "changed meanwhile"),
    (OriginRefusedError, "refused"),
    (OriginSuspendedError, "refused"),
    (OriginThrottledError, "throttled"),
    (OverloadedError, "overloaded"),
    (DiskFailedError, "disk failed"),
)


def failure_kind(error: StorageError) -> str:
    """Name the kind of a failure, of a closed set."""
    if isinstance(error, OriginUnavailableError) and not isinstance(error, OriginThrottledError):
        if error.code in _WRONG_ANSWERS:
            return "wrong answer"
        return "server error" if error.status else "origin away"
    return next((kind for error_type, kind in _KINDS if isinstance(error, error_type)), "other")
