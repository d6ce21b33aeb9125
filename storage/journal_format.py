"""The bytes of a journal file.

All numbers are unsigned and big-endian; u32 and u64 are their widths. XXH3 is XXH3-64.

A file lies at `journal/<segment id>.log`, the id as 16 lower-case hexadecimal digits: ids are u64 with the node in the top 16
bits, and a fixed width lets names sort as ids do. Journal files share the ids of segments, so that a location may point into
one. A file under construction is named `.tmp` and counts for nothing. A `.log` name is given by a rename after the file was
synced, so it always has a whole header.

    file     = header frame*
    header   = 64 bytes:
        offset 0   8  magic "FBJRNL" CR LF
               8  u32 format number, 1
              12  u32 zero
              16  u64 segment id, as in the name
              24  16  instance id of the cache directory
              40  u64 first sequence: that of the first record to come; 0 in a compacted file
              48  u64 checkpoint sequence: 0 in a plain file, S in a compacted one
              56  u64 XXH3 of bytes [0, 56), seed 0

    frame    = frame header, bodies, payload; the bytes of one group:
        offset 0   4  magic "FBG" NUL
               4  u32 count of records
               8  u64 this frame's own offset in the file
              16  u64 first sequence
              24  u64 last sequence
              32  u32 bytes of bodies
              36  u32 bytes of payload
              40  u64 XXH3 of bytes [0, 40) of the frame, seeded
              48  u64 XXH3 of bytes [0, 48) of the frame, then bodies and payload, seeded
              56      bodies: tiny bodies one behind the other, nothing between
                      payload: a MessagePack array of records, each an array [sequence, bin mutation],
                      the mutation as storage.records.encode gives it

The seed of a frame's checksums is the checksum in its file's header. With the frame's own offset beside it, no bytes of a
client, not even a journal file stored as an object, can be taken for a frame.

Bodies stand before the payload, so that a tiny body's location is known before the mutation that names it is encoded: the
first one lies at the frame's offset + 56.

A plain file holds consecutive sequences: those of a frame are first, first + 1, ... last, the next frame starts at last + 1.
A compacted file holds what is live of all sequences up to S, ascending with gaps, no bodies, and ends with a frame of no
records (first and last are S): without that frame it is not whole.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import xxhash

from storage.errors import DamagedError
from storage.types import MIB

JOURNAL_DIRECTORY: Final = "journal"
JOURNAL_FORMAT: Final = 1
REPAIR_SUFFIX: Final = ".repair"
"""Names the file of a repair that is not finished; a start refuses while there is one."""
FIRST_SEQUENCE: Final = 1
"""The sequence of the first mutation ever; 0 means none."""

FRAME_BYTES_MAX: Final = 64 * MIB
"""No frame is longer: bounds the memory of a reader, and how far the search behind a bad frame goes."""

HEADER_MAGIC: Final = b"FBJRNL\r\n"
FRAME_MAGIC: Final = b"FBG\0"
INSTANCE_ID_BYTES: Final = 16

_HEADER: Final = struct.Struct(">8sIIQ16sQQ")
_FRAME: Final = struct.Struct(">4sIQQQII")
_CHECKSUM: Final = struct.Struct(">Q")

HEADER_BYTES: Final = _HEADER.size + _CHECKSUM.size
FRAME_HEADER_BYTES: Final = _FRAME.size + 2 * _CHECKSUM.size

assert HEADER_BYTES == 64, "the header's size is part of the format"
assert FRAME_HEADER_BYTES == 56, "the frame header's size is part of the format"


class JournalRecord(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One mutation, encoded, and its sequence."""

    sequence: int
    mutation: bytes


@dataclass(frozen=True, slots=True)
class JournalHeader:
    """What the head of a file says; see the module's docstring."""

    segment_id: int
    instance_id: bytes
    first_sequence: int
    checkpoint_sequence: int = 0

    @property
    def is_compacted(self) -> bool:
        """Whether the file replaces all sequences up to `checkpoint_sequence`."""
        return self.checkpoint_sequence > 0


@dataclass(frozen=True, slots=True)
class FrameHeader:
    """What the head of a frame says; `offset` is its own."""

    offset: int
    count: int
    first_sequence: int
    last_sequence: int
    bodies_bytes: int
    payload_bytes: int
    checksum: int

    @property
    def bodies_offset(self) -> int:
        """Where the first body lies in the file."""
        return self.offset + FRAME_HEADER_BYTES

    @property
    def end_offset(self) -> int:
        """Where the frame ends in the file."""
        return self.bodies_offset + self.bodies_bytes + self.payload_bytes


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final[msgspec.msgpack.Decoder[tuple[JournalRecord, ...]]] = msgspec.msgpack.Decoder(
    tuple[JournalRecord, ...]
)


def journal_path(segment_id: int) -> str:
    """Name the journal file of this segment id."""
    return f"{JOURNAL_DIRECTORY}/{segment_id:016x}.log"


def unfinished_path(segment_id: int) -> str:
    """Name the file that becomes `journal_path` once it is whole and synced."""
    return f"{JOURNAL_DIRECTORY}/{segment_id:016x}.tmp"


def damage(path: str, offset: int, reason: str) -> DamagedError:
    """Word what is wrong with a journal file, where, and the way out."""
    return DamagedError(f"{path}: {reason} at offset {offset}; see `forebay fsck`")


def encode_header(header: JournalHeader) -> bytes:
    """Give the first HEADER_BYTES of a file."""
    assert len(header.instance_id) == INSTANCE_ID_BYTES, f"not an instance id: {header.instance_id!r}"
    assert (header.first_sequence == 0) == header.is_compacted, f"neither plain nor compacted: {header}"
    data = _HEADER.pack(
        HEADER_MAGIC,
        JOURNAL_FORMAT,
        0,
        header.segment_id,
        header.instance_id,
        header.first_sequence,
        header.checkpoint_sequence,
    )
    return data + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(data))


def decode_header(data: bytes) -> tuple[int, JournalHeader] | None:
    """Read the first HEADER_BYTES of a file: its format number and what it says; None where they are no header.

    The fields mean something only where the number is JOURNAL_FORMAT.
    """
    if len(data) != HEADER_BYTES or frame_seed(data) != xxhash.xxh3_64_intdigest(data[: _HEADER.size]):
        return None
    magic, number, _, segment_id, instance_id, first_sequence, checkpoint_sequence = _HEADER.unpack_from(data)
    if magic != HEADER_MAGIC:
        return None
    return number, JournalHeader(segment_id, instance_id, first_sequence, checkpoint_sequence)


def frame_seed(header: bytes) -> int:
    """Give the seed of the checksums of a file's frames, from the bytes of its header."""
    (checksum,) = _CHECKSUM.unpack_from(header, _HEADER.size)
    assert isinstance(checksum, int)
    return checksum


def with_computed_checksum(header: bytes) -> bytes:
    """Give a header the checksum that its other bytes ask for, in case it is the checksum that was damaged."""
    fields = header[: _HEADER.size]
    return fields + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields))


def frame_bytes(mutations: Sequence[bytes], bodies: Sequence[bytes]) -> int:
    """Bound from above the bytes of a frame with this in it."""
    # A record costs at most 1 (array) + 9 (u64) + 5 (bin) bytes beside its mutation, the array of records 5.
    records_bytes = sum(map(len, mutations)) + 15 * len(mutations) + 5
    return FRAME_HEADER_BYTES + sum(map(len, bodies)) + records_bytes


def encode_frame(
    seed: int, offset: int, records: Sequence[JournalRecord], bodies: Sequence[bytes] = ()
) -> bytes:
    """Give the frame of a group that will lie at `offset`; `records` ascend and are at least one."""
    assert records, "a group has a record"
    return _encode(seed, offset, records, bodies, (records[0].sequence, records[-1].sequence))


def encode_end_frame(seed: int, offset: int, checkpoint_sequence: int) -> bytes:
    """Give the frame that ends a compacted file."""
    return _encode(seed, offset, (), (), (checkpoint_sequence, checkpoint_sequence))


def _encode(
    seed: int,
    offset: int,
    records: Sequence[JournalRecord],
    bodies: Sequence[bytes],
    sequences: tuple[int, int],
) -> bytes:
    payload = _encoder.encode(records)
    bodies_bytes = sum(map(len, bodies))
    fields = _FRAME.pack(FRAME_MAGIC, len(records), offset, *sequences, bodies_bytes, len(payload))
    fields += _CHECKSUM.pack(xxhash.xxh3_64_intdigest(fields, seed))
    content = b"".join((*bodies, payload))
    frame = b"".join((fields, _CHECKSUM.pack(_frame_checksum(seed, fields, content)), content))
    assert len(frame) <= FRAME_BYTES_MAX, f"a frame of {len(frame)} bytes"
    return frame


def decode_frame_header(seed: int, offset: int, data: bytes) -> FrameHeader | None:
    """Read the FRAME_HEADER_BYTES found at `offset`; None where they are no frame header of this file at this place."""
    if len(data) != FRAME_HEADER_BYTES or not data.startswith(FRAME_MAGIC):
        return None
    _, count, own_offset, first_sequence, last_sequence, bodies_bytes, payload_bytes = _FRAME.unpack_from(
        data
    )
    (header_checksum,) = _CHECKSUM.unpack_from(data, _FRAME.size)
    if own_offset != offset or header_checksum != xxhash.xxh3_64_intdigest(data[: _FRAME.size], seed):
        return None
    (checksum,) = _CHECKSUM.unpack_from(data, _FRAME.size + _CHECKSUM.size)
    return FrameHeader(offset, count, first_sequence, last_sequence, bodies_bytes, payload_bytes, checksum)


def is_frame_whole(seed: int, header: bytes, frame: FrameHeader, content: bytes) -> bool:
    """Check a frame's content (bodies and payload) against the checksum in its header's bytes."""
    return frame.checksum == _frame_checksum(seed, header[: FRAME_HEADER_BYTES - _CHECKSUM.size], content)


def decode_records(payload: bytes | memoryview) -> tuple[JournalRecord, ...]:
    """Read the payload of a frame.

    Raises:
        msgspec.DecodeError: The bytes are no payload of this format.
    """
    return _decoder.decode(payload)


def _frame_checksum(seed: int, fields: bytes, content: bytes) -> int:
    digest = xxhash.xxh3_64(fields, seed)
    digest.update(content)
    return digest.intdigest()
