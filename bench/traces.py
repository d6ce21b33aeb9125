"""Public traces of other caches, as files: none comes with the project.

Two forms, plain or packed (`.gz`, `.xz`):

    text            one read a line: `key [bytes [prefix]]`, between them blanks or commas; `#` begins a comment. Where bytes are
                    missing, an object has UNIT_BYTES
    oracleGeneral   the binary form of libCacheSim, told by that word in the file's name: 24 bytes a read, little endian: time u32, key u64,
                    bytes u32, next read i64

An object has the most bytes that any of its reads names. Where traces can be had:

    github.com/1a1a11a/libCacheSim, data/     cloudPhysicsIO.oracleGeneral.bin, a disk
    github.com/ben-manes/caffeine, simulator/src/main/resources/.../parser/     web, databases, disks: lirs/*.trace.gz are text (without the
                    lines `*`); cache2k and cloud_physics are numbers of 4 bytes, scarab and corda of 8, which od turns into text:
                    `xz -dc web12.trace.xz | od -An -v -w4 -tu4 --endian=big`; adapt_size has time, key, bytes: `cut -d' ' -f2,3`
    github.com/twitter/cache-trace, and https://cachemon.org     large ones, in oracleGeneral packed as .zst (`zstd -dc`, then `head -c`)
"""

import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path
from struct import iter_unpack
from typing import Final, NamedTuple

UNIT_BYTES: Final = 128 * 1024
_RECORD: Final = "<IQIq"
_RECORD_BYTES: Final = 24
_PACKED: Final = {".gz": gzip.decompress, ".xz": lzma.decompress}


class Trace(NamedTuple):
    """Reads of objects, numbered in the order of their first.

    Attributes:
        sizes: Bytes of each object, at least 1.
        groups: The prefix of each object, by number.
    """

    name: str
    requests: list[int]
    sizes: list[int]
    groups: list[int]


def read_trace(path: Path) -> Trace:
    """Read a file.

    Raises:
        ValueError: It is not of either form, or holds no reads.
    """
    unpack = _PACKED.get(path.suffix)
    data = path.read_bytes() if unpack is None else unpack(path.read_bytes())
    is_binary = "oracleGeneral" in path.name
    numbers: dict[str | int, int] = {}
    prefixes: dict[str, int] = {}
    requests: list[int] = []
    sizes: list[int] = []
    groups: list[int] = []
    for key, size, prefix in _binary_reads(data) if is_binary else _text_reads(data.decode()):
        number = numbers.setdefault(key, len(numbers))
        if number == len(sizes):
            sizes.append(1)
            groups.append(prefixes.setdefault(prefix, len(prefixes)))
        sizes[number] = max(sizes[number], size)
        requests.append(number)
    if not requests:
        raise ValueError(f"{path} holds no reads")
    return Trace(path.name.split(".", 1)[0], requests, sizes, groups)


def _binary_reads(data: bytes) -> Iterator[tuple[int, int, str]]:
    if len(data) % _RECORD_BYTES:
        raise ValueError(f"{len(data)} bytes are not whole records of {_RECORD_BYTES}")
    for _, key, size, _ in iter_unpack(_RECORD, data):
        yield key, size, ""


def _text_reads(text: str) -> Iterator[tuple[str, int, str]]:
    for line_no, line in enumerate(text.splitlines(), 1):
        fields = line.split("#", 1)[0].replace(",", " ").split()
        if not fields:
            continue
        key, size, prefix = (*fields, "", "")[:3]
        if len(fields) > 3 or not (size or "0").isdecimal():
            raise ValueError(f"line {line_no} is not `key [bytes [prefix]]`: {line[:80]}")
        yield key, int(size) if size else UNIT_BYTES, prefix
