"""What a segment is: its file's name, its bounds, and what the store keeps of it in memory."""

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from storage.types import BLOCK_BYTES, MIB, Stream

if TYPE_CHECKING:
    from storage.filesystem import File

DIRECTORY: Final = "segments"
_SUFFIX: Final = ".seg"
_ID_DIGITS: Final = 16

SEGMENT_BYTES_MIN: Final = MIB
SEGMENT_BYTES_MAX: Final = 256 * MIB
SEGMENTS_A_CACHE: Final = 512
"""A policy on whole segments needs some 200 of them; those kept free, and the open ones, are cache that holds nothing."""


@dataclass(frozen=True, slots=True)
class SegmentLimits:
    """The bounds of a segment store.

    Attributes:
        segment_bytes: The size of a segment, at least BLOCK_BYTES.
        capacity_bytes: All segments together, open ones counted whole.
        disk_reserve_bytes: Left free on the volume for journal and index.
        readers_max: Descriptors kept open for reading; more only while more segments than that are pinned.
        short_blocks_max: Checked blocks shorter than BLOCK_BYTES that are remembered; some 80 bytes of memory each.
    """

    segment_bytes: int
    capacity_bytes: int
    disk_reserve_bytes: int = 0
    readers_max: int = 512
    short_blocks_max: int = 131_072

    def __post_init__(self) -> None:
        if not BLOCK_BYTES <= self.segment_bytes <= self.capacity_bytes:
            raise ValueError(
                f"segments of {self.segment_bytes} bytes do not fit a cache of {self.capacity_bytes}"
            )


@dataclass(frozen=True, slots=True)
class SegmentState:
    """What is known of one segment now. `stream` is None where an earlier process made it."""

    segment_id: int
    stream: Stream | None
    size_bytes: int
    is_sealed: bool
    is_settled: bool
    pins: int


@dataclass(frozen=True, slots=True)
class Adoption:
    """What a start found: segments that no row names, and named ones that are not there. Ids in ascending order."""

    orphans: tuple[int, ...]
    missing: tuple[int, ...]


class Segment:
    """One file. Guarded by the store's lock but for `io_lock`, which orders creating and syncing it.

    `held` maps the offset of each range that is not settled to how much of it is not written. `writes` counts the writes that
    returned, `synced` how many of them a sync has covered. `calls` counts calls to the file that are under way.
    """

    __slots__ = (
        "calls",
        "created_no",
        "end",
        "file",
        "held",
        "io_lock",
        "is_leaving",
        "is_own",
        "is_poisoned",
        "is_removed",
        "is_sealed",
        "path",
        "pins",
        "segment_id",
        "stream",
        "synced",
        "writes",
    )

    def __init__(self, segment_id: int, path: str, stream: Stream | None, *, end: int, is_own: bool) -> None:
        self.segment_id = segment_id
        self.path = path
        self.stream = stream
        self.end = end
        self.is_own = is_own
        self.is_sealed = not is_own
        self.is_removed = False
        self.is_leaving = False
        self.is_poisoned = False
        self.file: File | None = None
        self.created_no = 0
        self.held: dict[int, int] = {}
        self.pins = 0
        self.calls = 0
        self.writes = 0
        self.synced = 0
        self.io_lock = threading.Lock()


def segment_bytes_of(cache_bytes: int) -> int:
    """Give the size of a segment: whole MiB, so that blocks fill it."""
    ideal = cache_bytes // SEGMENTS_A_CACHE // MIB * MIB
    return min(SEGMENT_BYTES_MAX, max(SEGMENT_BYTES_MIN, ideal))


def segment_path(segment_id: int) -> str:
    """Name a segment's file, relative to the cache directory."""
    return f"{DIRECTORY}/{segment_id:0{_ID_DIGITS}x}{_SUFFIX}"


def segment_id_of(name: str) -> int | None:
    """Read a file's name; None where it is not a segment's."""
    digits = name.removesuffix(_SUFFIX)
    if digits == name or len(digits) != _ID_DIGITS or digits.strip("0123456789abcdef"):
        return None
    return int(digits, 16)


def state_of(segment: Segment) -> SegmentState:
    """Say how a segment stands; the store's lock is held."""
    return SegmentState(
        segment_id=segment.segment_id,
        stream=segment.stream,
        size_bytes=segment.end,
        is_sealed=segment.is_sealed,
        is_settled=not segment.held,
        pins=segment.pins,
    )
