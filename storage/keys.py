"""How index keys are built, so that the order of the keys is the order in which the rows are wanted.

    objects, overlay   shelf NUL key          UTF-8; within a shelf in S3's listing order (UTF-8 bytes)
    extents            version_id start       u64 u64
    dirty              sequence               u64
    uploads            upload_id              UTF-8
    parts              upload_id NUL number   UTF-8, u32
    segments           segment_id             u64
    residents          segment_id offset      u64 u64
    buckets            bucket                 UTF-8

All numbers are unsigned and big-endian, so bytes sort as numbers do. A bucket's name and an upload id contain no NUL, an object's
key may. A segment id is a node (u16) above a counter (u48): segments of several nodes never share an id.

A slot is 12 bits of a hash over the canonical path, the same that a load balancer computes to send a key to its node. It is a
field of records, never a prefix of keys: listings need key order.

A shelf is a bucket, or `bucket SOH version`: there stand the rows of a version that was asked for by the origin's id of it. No
bucket's name has SOH, so such a row has the key of no plain object, and no range of a bucket's keys covers it. Whatever names a row
by `bucket` and `key` (residents, the changes of `storage/cached.py`, `Forgotten`) has the shelf in the place of the bucket.
"""

import struct
from typing import Final

import xxhash

from storage.types import ObjectName

SLOTS: Final = 4096
"""So many slots share the key space."""

NODE_MAX: Final = (1 << 16) - 1
SEGMENT_COUNTER_MAX: Final = (1 << 48) - 1

_NUL: Final = b"\x00"
_SOH: Final = "\x01"
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_U64_U64: Final = struct.Struct(">QQ")
_PAST_ANY_U64: Final = b"\xff" * 9
"""One byte longer than a number and all ones, so that it sorts behind every one."""

assert SLOTS & (SLOTS - 1) == 0, "a slot is the low bits of the hash"


def slot(bucket: str, key: str) -> int:
    """Give the slot of an object: xxh64 (seed 0) of `/bucket/key` in UTF-8, the key as is, modulo SLOTS."""
    return xxhash.xxh64_intdigest(f"/{bucket}/{key}".encode()) & (SLOTS - 1)


def after_prefix(prefix: bytes) -> bytes | None:
    """Give the least bytes above every key that starts with `prefix`; None where no bytes are (b"" and all 0xff)."""
    stem = prefix.rstrip(b"\xff")
    if not stem:
        return None
    return stem[:-1] + bytes((stem[-1] + 1,))


# --- objects and their overlay -----------------------------------------------------------------------------------------


def object_key(shelf: str, key: str) -> bytes:
    """Build the key of an objects or overlay row."""
    assert "\x00" not in shelf, f"not a shelf: {shelf!r}"
    return f"{shelf}\x00{key}".encode()


def split_object_key(row_key: bytes) -> ObjectName:
    """Read an objects or overlay key."""
    shelf, separator, key = row_key.partition(_NUL)
    assert separator, f"not an object's row key: {row_key!r}"
    return name_on(shelf.decode(), key.decode())


def name_on(shelf: str, key: str) -> ObjectName:
    """Give the name whose rows stand on a shelf under a key."""
    bucket, _, version_id = shelf.partition(_SOH)
    return ObjectName(bucket, key, version_id)


def prefix_range(bucket: str, prefix: str = "") -> tuple[bytes, bytes]:
    """Bound the rows of a bucket's keys that start with `prefix`: `start <= row key < stop`."""
    start = object_key(bucket, prefix)
    stop = after_prefix(start)
    assert stop is not None, "the separator alone keeps the range finite"
    return start, stop


# --- extents -----------------------------------------------------------------------------------------------------------


def extents_key(version_id: int, start: int) -> bytes:
    """Build the key of the extent of a version that begins at byte `start`."""
    return _U64_U64.pack(version_id, start)


def split_extents_key(row_key: bytes) -> tuple[int, int]:
    """Read an extents key: version id and start."""
    version_id, start = _U64_U64.unpack(row_key)
    return version_id, start


def extents_range(version_id: int) -> tuple[bytes, bytes]:
    """Bound the extents of a version: `start <= row key < stop`."""
    return _rows_under(_U64.pack(version_id))


# --- the flush queue ---------------------------------------------------------------------------------------------------


def dirty_key(sequence: int) -> bytes:
    """Build the key of a flush queue row."""
    return _U64.pack(sequence)


def split_dirty_key(row_key: bytes) -> int:
    """Read a flush queue key: the sequence."""
    (sequence,) = _U64.unpack(row_key)
    return int(sequence)


# --- uploads and parts -------------------------------------------------------------------------------------------------


def upload_key(upload_id: str) -> bytes:
    """Build the key of an upload's row."""
    return upload_id.encode()


def split_upload_key(row_key: bytes) -> str:
    """Read an uploads key: the upload id."""
    return row_key.decode()


def part_key(upload_id: str, number: int) -> bytes:
    """Build the key of a part's row; parts of an upload sort by number."""
    return _parts_prefix(upload_id) + _U32.pack(number)


def split_part_key(row_key: bytes) -> tuple[str, int]:
    """Read a parts key: upload id and part number."""
    upload_id, separator, number = (
        row_key[: -_U32.size - 1],
        row_key[-_U32.size - 1 : -_U32.size],
        row_key[-_U32.size :],
    )
    assert separator == _NUL, f"not a part's row key: {row_key!r}"
    return upload_id.decode(), int(_U32.unpack(number)[0])


def parts_range(upload_id: str) -> tuple[bytes, bytes]:
    """Bound the parts of an upload: `start <= row key < stop`."""
    return _rows_under(_parts_prefix(upload_id))


def _parts_prefix(upload_id: str) -> bytes:
    assert "\x00" not in upload_id, f"not an upload id: {upload_id!r}"
    return upload_id.encode() + _NUL


# --- segments and what lies in them ------------------------------------------------------------------------------------


def segment_id(node: int, counter: int) -> int:
    """Join a node and its counter to a segment id."""
    assert 0 <= node <= NODE_MAX, f"node {node} is out of range"
    assert 0 <= counter <= SEGMENT_COUNTER_MAX, f"segment counter {counter} is out of range"
    return node << 48 | counter


def segment_node(segment: int) -> int:
    """Say which node made a segment."""
    return segment >> 48


def segment_counter(segment: int) -> int:
    """Say which of its node's segments it is, in the order they were made."""
    return segment & SEGMENT_COUNTER_MAX


def segment_key(segment: int) -> bytes:
    """Build the key of a segment's row."""
    return _U64.pack(segment)


def split_segment_key(row_key: bytes) -> int:
    """Read a segments key: the segment id."""
    (segment,) = _U64.unpack(row_key)
    return int(segment)


def resident_key(segment: int, offset: int) -> bytes:
    """Build the key of the row that says whose bytes lie at an offset of a segment."""
    return _U64_U64.pack(segment, offset)


def split_resident_key(row_key: bytes) -> tuple[int, int]:
    """Read a residents key: segment id and offset."""
    segment, offset = _U64_U64.unpack(row_key)
    return segment, offset


def residents_range(segment: int) -> tuple[bytes, bytes]:
    """Bound the residents of a segment: `start <= row key < stop`."""
    return _rows_under(_U64.pack(segment))


# --- buckets -----------------------------------------------------------------------------------------------------------


def bucket_key(bucket: str) -> bytes:
    """Build the key of a bucket's facts."""
    return bucket.encode()


def split_bucket_key(row_key: bytes) -> str:
    """Read a buckets key: the bucket's name."""
    return row_key.decode()


def _rows_under(prefix: bytes) -> tuple[bytes, bytes]:
    """Bound the keys made of `prefix` and one number of at most 64 bits, the largest included."""
    return prefix, prefix + _PAST_ANY_U64
