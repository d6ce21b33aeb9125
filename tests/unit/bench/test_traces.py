"""Traces: both forms give the same reads, and what is neither is refused by its line."""

import gzip
import lzma
import struct
from pathlib import Path

import pytest

from bench.traces import UNIT_BYTES, read_trace


def test_text_gives_reads_sizes_and_prefixes(tmp_path: Path) -> None:
    """Keys are numbered by their first read; the largest size counts; what is not said is a unit and no prefix."""
    path = tmp_path / "some.trace.txt"
    path.write_text("# of a web cache\nk9 100 a\nk7\n\nk9, 300, a  # grown\nk3 50 b\nk9 200 a\n")

    trace = read_trace(path)

    assert trace.name == "some"
    assert trace.requests == [0, 1, 0, 2, 0]
    assert trace.sizes == [300, UNIT_BYTES, 50]
    assert trace.groups == [0, 1, 2]


def test_oracle_general_gives_keys_and_sizes(tmp_path: Path) -> None:
    """Records of libCacheSim, little endian without padding: time, key, bytes, next read."""
    path = tmp_path / "disk.oracleGeneral.bin"
    reads = ((1, 1 << 40, 4096, 2), (1, 7, 512, -1), (2, 1 << 40, 4096, -1))
    path.write_bytes(b"".join(struct.pack("<IQIq", *read) for read in reads))

    trace = read_trace(path)

    assert trace.requests == [0, 1, 0]
    assert trace.sizes == [4096, 512]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress)])
def test_packed_files_are_unpacked(tmp_path: Path, suffix: str, pack: object) -> None:
    """By their suffix."""
    path = tmp_path / f"some.trace{suffix}"
    assert callable(pack)
    path.write_bytes(pack(b"1 10\n2 20\n1 10\n"))

    assert read_trace(path).requests == [0, 1, 0]


@pytest.mark.parametrize("line", ["k large", "k -5", "k 10 p more", "k 1.5"])
def test_what_is_no_trace_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    """Rather than read as something else."""
    path = tmp_path / "some.txt"
    path.write_text(f"k 10\n{line}\n")

    with pytest.raises(ValueError, match="line 2"):
        read_trace(path)


def test_broken_and_empty_files_are_refused(tmp_path: Path) -> None:
    """Half a record is no record, and no reads are no trace."""
    broken, empty = tmp_path / "disk.oracleGeneral.bin", tmp_path / "some.txt"
    broken.write_bytes(b"x" * 25)
    empty.write_text("# nothing\n")

    with pytest.raises(ValueError, match="25 bytes"):
        read_trace(broken)
    with pytest.raises(ValueError, match="no reads"):
        read_trace(empty)
