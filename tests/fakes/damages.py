"""One kind of damage each to a real cache directory at rest; each gives the keys whose bytes or records it hits."""

import shutil
from collections.abc import Callable
from pathlib import Path

from storage.types import KIB, MIB
from tests.end_to_end.content import content

DIRTY = {
    "dirty/large": content(1, 2 * MIB + 5),
    "dirty/small": content(2, KIB),
    "dirty/last": content(3, 3 * KIB),
}
CLEAN = {"clean/large": content(4, 2 * MIB), "clean/small": content(5, 2 * KIB)}

Damage = Callable[[Path], set[str]]


def files(directory: Path, pattern: str) -> list[Path]:
    """Give files, oldest name first."""
    found = sorted(path for path in directory.glob(pattern) if path.stat().st_size)
    assert found, f"{pattern} is nowhere"
    return found


def find(directory: Path, pattern: str, data: bytes) -> tuple[Path, int]:
    """Say where some bytes lie."""
    for path in files(directory, pattern):
        at = path.read_bytes().find(data)
        if at >= 0:
            return path, at
    raise AssertionError(f"it is in no {pattern}")


def flip(path: Path, at: int) -> None:
    """Flip a bit of a file."""
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 0x40]))


def cut(path: Path, size_bytes: int) -> None:
    """Cut a file short."""
    with path.open("r+b") as file:
        file.truncate(size_bytes)


def dirty_segment_bit(directory: Path) -> set[str]:
    """A bit in a dirty body."""
    path, at = find(directory, "segments/*.seg", DIRTY["dirty/large"][:64])
    flip(path, at + 1000)
    return {"dirty/large"}


def dirty_segment_cut(directory: Path) -> set[str]:
    """The end of a dirty body is missing."""
    path, at = find(directory, "segments/*.seg", DIRTY["dirty/large"][:64])
    cut(path, at + 1000)
    return {"dirty/large"}


def dirty_segment_gone(directory: Path) -> set[str]:
    """A segment with a dirty body is missing."""
    path, _ = find(directory, "segments/*.seg", DIRTY["dirty/large"][:64])
    path.unlink()
    return {"dirty/large"}


def clean_segment_bit(directory: Path) -> set[str]:
    """A bit in a clean body."""
    path, at = find(directory, "segments/*.seg", CLEAN["clean/large"][:64])
    flip(path, at + 1000)
    return set()


def clean_segment_gone(directory: Path) -> set[str]:
    """A segment with clean bodies is missing."""
    path, _ = find(directory, "segments/*.seg", CLEAN["clean/large"][:64])
    path.unlink()
    return set()


def journal_middle_body(directory: Path) -> set[str]:
    """A bit in a body that rides in the journal, with records behind it."""
    path, at = find(directory, "journal/*.log", DIRTY["dirty/small"])
    flip(path, at + 100)
    return {"dirty/small"}


def journal_middle_record(directory: Path) -> set[str]:
    """A bit in a frame's header, with records behind it; the index has applied it."""
    path, at = find(directory, "journal/*.log", DIRTY["dirty/small"])
    flip(path, at - 30)
    return set()


def journal_middle_and_index(directory: Path) -> set[str]:
    """The same, and there is no index that knows better."""
    journal_middle_record(directory)
    shutil.rmtree(directory / "index")
    return {"dirty/small"}


def journal_tail(directory: Path) -> set[str]:
    """The end of the journal is cut off, though it was acknowledged: the index knows it."""
    path, at = find(directory, "journal/*.log", DIRTY["dirty/last"])
    cut(path, at + 10)
    return {"dirty/last"}


def journal_header(directory: Path) -> set[str]:
    """A bit in the head of a journal file."""
    flip(files(directory, "journal/*.log")[-1], 20)
    return set()


def index_gone(directory: Path) -> set[str]:
    """There is no index."""
    shutil.rmtree(directory / "index")
    return set()


def index_log_bit(directory: Path) -> set[str]:
    """A bit in RocksDB's own log."""
    logs = sorted(directory.glob("index/*.log"), key=lambda path: path.stat().st_size)
    # A stop in order leaves it empty.
    if logs and logs[-1].stat().st_size:
        flip(logs[-1], logs[-1].stat().st_size // 2)
    return set()


def index_table_bit(directory: Path) -> set[str]:
    """A bit in one of RocksDB's tables, where it has written one."""
    for path in directory.glob("index/*.sst"):
        flip(path, 40)
    return set()


def index_table_gone(directory: Path) -> set[str]:
    """One of RocksDB's tables is missing, where it has written one."""
    for path in sorted(directory.glob("index/*.sst"))[:1]:
        path.unlink()
    return set()


def index_current_gone(directory: Path) -> set[str]:
    """RocksDB's CURRENT is missing."""
    (directory / "index" / "CURRENT").unlink()
    return set()


def index_manifest_bit(directory: Path) -> set[str]:
    """A bit in RocksDB's manifest."""
    path = files(directory, "index/MANIFEST-*")[-1]
    flip(path, path.stat().st_size // 2)
    return set()


def format_damaged(directory: Path) -> set[str]:
    """FORMAT does not read back."""
    (directory / "FORMAT").write_bytes(b"\xff\x00 nothing of it")
    return set()


def format_gone(directory: Path) -> set[str]:
    """FORMAT is missing."""
    (directory / "FORMAT").unlink()
    return set()


DAMAGES: tuple[Damage, ...] = (
    dirty_segment_bit,
    dirty_segment_cut,
    dirty_segment_gone,
    clean_segment_bit,
    clean_segment_gone,
    journal_middle_body,
    journal_middle_record,
    journal_middle_and_index,
    journal_tail,
    journal_header,
    index_gone,
    index_log_bit,
    index_table_bit,
    index_table_gone,
    index_current_gone,
    index_manifest_bit,
    format_damaged,
    format_gone,
)
