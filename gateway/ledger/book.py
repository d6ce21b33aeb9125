"""A ledger's file: appended to, synced, read; the only module that opens one.

Syncs are shared: whoever waits for one is served by any that began after its line was written.
"""

import fcntl
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final, Self

from gateway.ledger.entries import FORMAT, Begun, Chain, LedgerError, Line


class Book:
    """One open ledger; several threads may write. Held by a lock, so that no load and check run over the same file at once."""

    def __init__(self, file: BinaryIO, chain: Chain) -> None:
        self._file: Final = file
        self._chain: Final = chain
        self._write_lock: Final = threading.Lock()
        self._sync_lock: Final = threading.Lock()
        self._written = 0
        self._synced = 0

    @classmethod
    def open(cls, path: str, *, place: str, seed: int) -> Self:
        """Open a ledger to append to, and begin it where there is none; what a power cut left of a last line is cut off.

        Raises:
            LedgerError: It is in use, of another prefix, or cannot be read.
            OSError: It cannot be opened.
        """
        is_new = not Path(path).exists()
        file = Path(path).open("ab+", buffering=0)  # noqa: SIM115 - it lives as long as the book
        try:
            _lock(file, path)
            _cut_torn_line(file)
            chain, begun = Chain(), None
            for line in _read(path, chain):
                begun = begun or line
            book = cls(file, chain)
            book._begin(path, place, seed, begun)
        except BaseException:
            file.close()
            if is_new and not Path(path).stat().st_size:
                Path(path).unlink()
            raise
        return book

    def _begin(self, path: str, place: str, seed: int, begun: Line | None) -> None:
        if begun is None:
            self.append(Begun(FORMAT, place, seed))
            self.sync()
            _sync_name(path)
        elif not isinstance(begun, Begun) or begun.place != place:
            told = begun.place if isinstance(begun, Begun) else "nothing"
            raise LedgerError(f"{path} is a ledger of {told}, not of {place}")

    def append(self, line: Line) -> int:
        """Write a line behind all others; give what `sync` is to be told. Not durable yet."""
        with self._write_lock:
            self._file.write(self._chain.encode(line))
            self._written += 1
            return self._written

    def sync(self, upto: int | None = None) -> None:
        """Return when that line, and all before it, are on the disk; all that are written where none is named."""
        wanted = self._written if upto is None else upto
        with self._sync_lock:
            if self._synced >= wanted:
                return
            reached = self._written
            os.fdatasync(self._file.fileno())
            self._synced = reached

    def close(self) -> None:
        """Sync and let go."""
        self.sync()
        self._file.close()


def lines_of(path: str) -> Iterator[Line]:
    """Read a ledger; the start of a line that a power cut left at its end is passed over.

    Raises:
        LedgerError: A line is none, or its checksum says that the ledger was changed.
        OSError: It cannot be read.
    """
    return _read(path, Chain())


def _read(path: str, chain: Chain) -> Iterator[Line]:
    with Path(path).open("rb") as file:
        for number, text in enumerate(file, start=1):
            if text.endswith(b"\n"):
                yield chain.decode(text, f"{path}, line {number}")


def _lock(file: BinaryIO, path: str) -> None:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise LedgerError(f"{path} is in use by another load or check") from error


def _cut_torn_line(file: BinaryIO) -> None:
    end = kept = file.seek(0, os.SEEK_END)
    while kept:
        start = max(0, kept - 65536)
        file.seek(start)
        found = file.read(kept - start).rfind(b"\n")
        if found >= 0:
            kept = start + found + 1
            break
        kept = start
    if kept < end:
        file.truncate(kept)


def _sync_name(path: str) -> None:
    directory = os.open(Path(path).parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
