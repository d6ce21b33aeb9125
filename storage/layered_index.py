"""An index laid over one that is only read: what the next start would make of an index, without touching it.

`LayeredIndex` reads from below what was not written above. `RocksCopies` gives the two layers for a real directory: the index itself,
opened through links, and an empty one in a temporary directory.
"""

import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

from storage.family import Family, IndexWrite
from storage.index import Index, RocksIndex

STEP_ROWS: Final = 10_000

_GONE: Final = b"\x00"
_HERE: Final = b"\x01"


class IndexCopies(Protocol):
    """Where the layers come from. What was opened is closed by the caller."""

    def open_read_only(self) -> Index:
        """Open the directory's index for reading; DamagedError where there is none that can be read."""
        ...

    def open_scratch(self) -> Index:
        """Make an empty index somewhere else, to be thrown away."""
        ...


class LayeredIndex:
    """`storage.index.Index` over two: `below` None is empty; `above` is empty at first and takes all writes."""

    def __init__(self, below: Index | None, above: Index) -> None:
        self._below = below
        self._above = above

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Give a row's bytes."""
        written = self._above.get(family, key)
        if written is not None:
            return written[1:] if written[:1] == _HERE else None
        return None if self._below is None else self._below.get(family, key)

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Give rows in key order; not backwards."""
        assert not reverse, "nothing that is checked is read backwards"
        found: list[tuple[bytes, bytes]] = []
        step = min(limit, STEP_ROWS)
        while len(found) < limit:
            rows, last = self._merged(family, start, stop, step)
            found += rows
            if last is None:
                break
            start = last + b"\x00"
        return found[:limit]

    def _merged(
        self, family: Family, start: bytes, stop: bytes | None, step: int
    ) -> tuple[list[tuple[bytes, bytes]], bytes | None]:
        """Merge up to `step` rows of each layer; give with them the key up to which that is all, None for the end."""
        below = [] if self._below is None else self._below.scan(family, start, stop, step)
        above = self._above.scan(family, start, stop, step)
        last = min((rows[-1][0] for rows in (below, above) if len(rows) == step), default=None)
        merged = dict(below)
        for key, written in above:
            if written[:1] == _HERE:
                merged[key] = written[1:]
            else:
                merged.pop(key, None)
        return [(key, merged[key]) for key in sorted(merged) if last is None or key <= last], last

    def write(self, batch: Sequence[IndexWrite]) -> None:
        """Write above."""
        self._above.write(
            [
                IndexWrite(family, key, _GONE if value is None else _HERE + value)
                for family, key, value in batch
            ]
        )

    def changes(self) -> Iterator[IndexWrite]:
        """Give what was written above, family by family, META last."""
        for family in sorted(Family, key=lambda family: family is Family.META):
            start = b""
            while rows := self._above.scan(family, start, None, STEP_ROWS):
                for key, written in rows:
                    yield IndexWrite(family, key, written[1:] if written[:1] == _HERE else None)
                start = rows[-1][0] + b"\x00"

    def checkpoint(self) -> None:
        """Promise nothing: it is thrown away."""

    def close(self) -> None:
        """Close both layers."""
        self._above.close()
        if self._below is not None:
            self._below.close()


class RocksCopies:
    """`IndexCopies` of the database in directory `path`, as a context manager; nothing is written there."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._temporary = tempfile.TemporaryDirectory(prefix="forebay-fsck-")
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._temporary.cleanup()

    def open_read_only(self) -> Index:
        """Open the database for reading."""
        return RocksIndex.open_read_only(self._path, self._fresh_directory())

    def open_scratch(self) -> Index:
        """Make an empty database."""
        return RocksIndex.open(self._fresh_directory())

    def _fresh_directory(self) -> str:
        self._count += 1
        directory = Path(self._temporary.name) / str(self._count)
        directory.mkdir()
        return str(directory)
