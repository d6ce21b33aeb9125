"""Values that cross borders inside Forebay: names, ranges, locations, extents.

Ranges are half-open `[start, stop)` everywhere; HTTP's inclusive form exists in `gateway/s3/ranges.py` and
`storage/origin/wire.py` only. Sizes and offsets are bytes. A value that exists is valid.
"""

from enum import IntEnum, StrEnum
from typing import Final

import msgspec

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB

BLOCK_BYTES: Final = MIB
"""The aligned unit in which a partly cached version is filled, and the span of one checksum."""

EXTENT_BYTES_MAX: Final = 64 * MIB
"""No extent is longer, so that one can be moved, checked or read in bounded time."""

INLINE_EXTENTS_MAX: Final = 16
"""So many extents stand in the object's own record; a longer list goes to the extents family."""

TINY_BODY_BYTES_MAX: Final = 32 * KIB
"""A body up to this size rides in the journal record: one file, one sync."""

PUT_BYTES_MAX: Final = 5 * GIB
"""The largest PutObject and UploadPart (AWS "Multipart upload limits")."""

KEY_BYTES_MAX: Final = 1024
"""The longest object key in UTF-8 (AWS User Guide "Creating object key names")."""

assert EXTENT_BYTES_MAX % BLOCK_BYTES == 0, "an extent split must fall on a block of the extent"
assert TINY_BODY_BYTES_MAX <= BLOCK_BYTES, "a tiny body has one checksum"


NULL_VERSION: Final = "null"
"""The origin's id of the version that was written while a bucket was not versioned, or suspended. It may be overwritten."""


class ObjectName(msgspec.Struct, frozen=True, gc=False, array_like=True, order=True):
    """What names an object: bucket and key, the key as the client's UTF-8 text, never normalised.

    `version_id` is the origin's id of one version of it, "" for whatever is the newest. An id has no NUL.
    """

    bucket: str
    key: str
    version_id: str = ""

    def __str__(self) -> str:
        suffix = f"?versionId={self.version_id}" if self.version_id else ""
        return f"s3://{self.bucket}/{self.key}{suffix}"

    @property
    def plain(self) -> "ObjectName":
        """The object itself, whichever of its versions this names."""
        return ObjectName(self.bucket, self.key) if self.version_id else self

    @property
    def shelf(self) -> str:
        """Where the name's rows stand in the index: see `storage/keys.py`. For a plain name that is its bucket."""
        return f"{self.bucket}\x01{self.version_id}" if self.version_id else self.bucket

    def at_version(self, version_id: str) -> "ObjectName":
        """Name a version of the same object."""
        return ObjectName(self.bucket, self.key, version_id)


class ByteRange(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Bytes `[start, stop)` of one version; may be empty."""

    start: int
    stop: int

    def __post_init__(self) -> None:
        if not 0 <= self.start <= self.stop:
            raise ValueError(f"not a byte range: [{self.start}, {self.stop})")

    @property
    def length(self) -> int:
        """Bytes in the range."""
        return self.stop - self.start


class RangeSpec(msgspec.Struct, frozen=True, gc=False):
    """What a Range header asked for, before the size is known (RFC 9110 section 14.1.2).

    Either `start` with an optional exclusive `stop`, or `suffix`: that many last bytes.
    """

    start: int | None = None
    stop: int | None = None
    suffix: int | None = None

    def __post_init__(self) -> None:
        if (self.start is None) == (self.suffix is None):
            raise ValueError("a range has a start or a suffix, not both")
        if self.stop is not None and (self.start is None or self.stop <= self.start):
            raise ValueError("a range stops after it starts")

    def resolve(self, size: int) -> ByteRange | None:
        """Fit the request to an object of `size` bytes; None where it cannot be satisfied (416)."""
        if self.suffix is not None:
            if self.suffix == 0 or size == 0:
                return None
            return ByteRange(max(0, size - self.suffix), size)
        assert self.start is not None
        if self.start >= size:
            return None
        return ByteRange(self.start, size if self.stop is None else min(self.stop, size))


class Location(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Where bytes lie: `length` bytes at `offset` of a segment (or a journal file, which shares the ids).

    `checksums` holds one big-endian XXH3-64 for each block of BLOCK_BYTES counted from `offset`, the last one
    shorter. Immutable: the same bytes for ever, or nothing once the segment is gone.
    """

    segment_id: int
    offset: int
    length: int
    checksums: bytes = b""

    def block_count(self) -> int:
        """Say how many blocks, and so checksums, the location has."""
        return -(-self.length // BLOCK_BYTES)

    def checksum(self, block: int) -> int:
        """Give the XXH3-64 of block `block`, counted from the location's start."""
        return int.from_bytes(self.checksums[8 * block : 8 * block + 8])


class Extent(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """Bytes `[start, stop)` of one version, present locally at `location`."""

    start: int
    stop: int
    location: Location

    def __post_init__(self) -> None:
        if self.stop - self.start != self.location.length or self.start < 0 or self.stop <= self.start:
            raise ValueError(
                f"bytes {self.start} to {self.stop} do not fit a place of {self.location.length} bytes"
            )


class ChecksumAlgorithm(StrEnum):
    """The checksums that S3 keeps with an object (AWS User Guide "Checking object integrity")."""

    CRC32 = "CRC32"
    CRC32C = "CRC32C"
    CRC64NVME = "CRC64NVME"
    SHA1 = "SHA1"
    SHA256 = "SHA256"


class ChecksumType(StrEnum):
    """Whether a checksum is of all bytes or of the parts' checksums."""

    FULL_OBJECT = "FULL_OBJECT"
    COMPOSITE = "COMPOSITE"


class Checksum(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One x-amz-checksum: `value` is base64 as on the wire, with `-N` behind it where composite."""

    algorithm: ChecksumAlgorithm
    value: str
    type: ChecksumType = ChecksumType.FULL_OBJECT


class CacheResult(StrEnum):
    """How a read was answered; the values of `x-cache` and of the metrics label `result`."""

    HIT = "HIT"
    PARTIAL = "PARTIAL"
    MISS = "MISS"
    STALE = "STALE"
    BYPASS = "BYPASS"


class WriteMode(StrEnum):
    """When a write is acknowledged: from the local disk, from the origin, from the origin and not kept."""

    BACK = "back"
    THROUGH = "through"
    AROUND = "around"


class Stream(IntEnum):
    """Which open segment a body is appended to, so that segments tend to die whole."""

    JOURNAL = 0
    DIRTY = 1
    CLEAN = 2
    RELEASED = 3
    """Dirty bytes that go as soon as they are flushed; rows count them as DIRTY."""
    KEPT = 4
    """Clean bytes that outlived their segment, and were read once lately; rows count them and the next two as CLEAN."""
    WARM = 5
    """Clean bytes that are read now and then."""
    HOT = 6
    """Clean bytes that are read often."""
    PINNED = 7
    """Clean bytes that a policy pins."""


class Priority(IntEnum):
    """The order in which work is let through to the origin; the lowest value goes first, none starves.

    UPLOAD is a body that is passed on as its client sends it.
    """

    FOREGROUND = 0
    UPLOAD = 1
    URGENT_FLUSH = 2
    VALIDATION = 3
    FLUSH = 4
    EARLY_FLUSH = 5
    READAHEAD = 6
    WARM_UP = 7


class PartSpan(msgspec.Struct, frozen=True, gc=False):
    """Which bytes one part is of a version, of how many parts; `count` is 0 where the origin says nothing of parts."""

    span: ByteRange
    count: int
    checksums: tuple[Checksum, ...] = ()
