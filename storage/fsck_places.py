"""Reading what locations name, for a check: segments and journal files alike, without an engine."""

from collections import OrderedDict
from typing import Final

from storage.checksums import block_matches, block_range
from storage.filesystem import File, Filesystem
from storage.journal_format import JOURNAL_DIRECTORY, journal_path
from storage.layout import ROOT
from storage.segment_files import DIRECTORY, segment_id_of, segment_path
from storage.types import Location

READERS_MAX: Final = 64


class Places:
    """The files that locations may point into. Missing ones are found once, when it is made."""

    def __init__(self, filesystem: Filesystem) -> None:
        self._filesystem = filesystem
        self._readers: OrderedDict[int, tuple[File, int]] = OrderedDict()
        there = filesystem.list_directory(ROOT)
        journal = filesystem.list_directory(JOURNAL_DIRECTORY) if JOURNAL_DIRECTORY in there else []
        self.journal_ids = frozenset(
            int(name.removesuffix(".log"), 16) for name in journal if name.endswith(".log")
        )
        names = filesystem.list_directory(DIRECTORY) if DIRECTORY in there else []
        found = {name: segment_id_of(name) for name in names}
        self.segment_ids = frozenset(segment_id for segment_id in found.values() if segment_id is not None)
        self.foreign_names = tuple(name for name, segment_id in found.items() if segment_id is None)

    def close(self) -> None:
        """Close all files."""
        for file, _ in self._readers.values():
            file.close()
        self._readers.clear()

    def path(self, segment_id: int) -> str | None:
        """Name the file of a segment id; None where there is none."""
        if segment_id in self.journal_ids:
            return journal_path(segment_id)
        return segment_path(segment_id) if segment_id in self.segment_ids else None

    def missing(self, location: Location) -> str:
        """Say, without reading, why the bytes cannot be there; "" where they may be."""
        path = self.path(location.segment_id)
        if path is None:
            return f"segment {location.segment_id:x} is missing"
        try:
            _, size_bytes = self._reader(location.segment_id, path)
        except OSError as error:
            return f"{path} cannot be opened: {error.strerror}"
        if location.offset + location.length > size_bytes:
            return f"{path} ends at {size_bytes}, within [{location.offset}, {location.offset + location.length})"
        if len(location.checksums) != 8 * location.block_count():
            return f"{path} at {location.offset}: checksums of another length"
        return ""

    def wrong(self, location: Location) -> str:
        """Read all blocks; say what is wrong with the first bad one, "" where all have their checksum."""
        why = self.missing(location)
        if why:
            return why
        path = self.path(location.segment_id) or ""
        file, _ = self._reader(location.segment_id, path)
        for block in range(location.block_count()):
            wanted = block_range(location, block)
            offset = location.offset + wanted.start
            try:
                data = file.pread(offset, wanted.length)
            except OSError as error:
                return f"{path} at {offset} cannot be read: {error.strerror}"
            if not block_matches(location, block, data):
                return f"{path} at {offset}: {wanted.length} bytes with a wrong checksum"
        return ""

    def _reader(self, segment_id: int, path: str) -> tuple[File, int]:
        known = self._readers.get(segment_id)
        if known is None:
            file = self._filesystem.open_reader(path)
            known = self._readers[segment_id] = (file, file.size())
            if len(self._readers) > READERS_MAX:
                _, (oldest, _) = self._readers.popitem(last=False)
                oldest.close()
        self._readers.move_to_end(segment_id)
        return known
