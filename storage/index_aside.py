"""The real index as a repair needs it: opened, and moved aside whole."""

from pathlib import Path

from storage.errors import DiskFailedError
from storage.filesystem import PosixFilesystem
from storage.index import RocksIndex
from storage.layout import INDEX_DIRECTORY, ROOT
from storage.words import in_words


class RocksRepairHome:
    """`fsck_repair.RepairHome` of the cache directory `root`."""

    def __init__(self, root: str) -> None:
        self._root = Path(root)

    def open(self) -> RocksIndex:
        """Open or create the database."""
        return RocksIndex.open(str(self._root / INDEX_DIRECTORY))

    def destroy(self) -> None:
        """Remove the database."""
        RocksIndex.destroy(str(self._root / INDEX_DIRECTORY))

    def set_aside(self, place: str) -> int:
        """Move the database to a place in the cache directory, durably; give its size in bytes, 0 where there is none.

        Raises:
            DiskFailedError: It could not be moved, or may come back after a power cut.
        """
        index = self._root / INDEX_DIRECTORY
        if not index.exists():
            return 0
        filesystem = PosixFilesystem(str(self._root))
        try:
            size_bytes = sum(path.stat().st_size for path in index.rglob("*") if path.is_file())
            filesystem.rename(INDEX_DIRECTORY, place)
            filesystem.sync_directory(place.rpartition("/")[0])
            filesystem.sync_directory(ROOT)
        except OSError as error:
            raise DiskFailedError(f"the index cannot be put aside: {in_words(error)}") from error
        return size_bytes
