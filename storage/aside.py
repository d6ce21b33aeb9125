"""Files that a repair replaces: kept aside, never deleted.

    <cache_dir>/quarantine/<time>/      whole files under their own names, as they were

A directory is made by the first file that goes into it, and no name in it is given twice.
"""

from dataclasses import dataclass
from typing import Final

from storage.filesystem import Filesystem
from storage.layout import ROOT

ASIDE_DIRECTORY: Final = "quarantine"
_TRIES_MAX: Final = 10_000


@dataclass(frozen=True, slots=True)
class KeptAside:
    """One file that was put aside: where it was, where it is, how long it is."""

    path: str
    place: str
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.path} -> {self.place} ({self.size_bytes} bytes)"


class Aside:
    """One repair's directory; `label` names it, its time for people."""

    def __init__(self, filesystem: Filesystem, label: str) -> None:
        self._filesystem = filesystem
        self._label = label
        self._directory = ""
        self._names: set[str] = set()
        self.kept: list[KeptAside] = []

    def directory(self) -> str:
        """Name the directory, made durably at the first call."""
        if not self._directory:
            self._directory = self._made()
        return self._directory

    def _made(self) -> str:
        self._filesystem.make_directory(ASIDE_DIRECTORY)
        self._filesystem.sync_directory(ROOT)
        taken = set(self._filesystem.list_directory(ASIDE_DIRECTORY))
        labels = (self._label, *(f"{self._label}-{number}" for number in range(2, _TRIES_MAX)))
        path = f"{ASIDE_DIRECTORY}/{next(label for label in labels if label not in taken)}"
        self._filesystem.make_directory(path)
        self._filesystem.sync_directory(ASIDE_DIRECTORY)
        return path

    def place(self, path: str) -> str:
        """Say where a file would go."""
        name = path.replace("/", "-")
        assert name not in self._names, f"{path} is put aside twice"
        self._names.add(name)
        return f"{self.directory()}/{name}"

    def move(self, path: str) -> None:
        """Put one file aside. The new name is durable on return, the going of the old one once its directory is synced."""
        file = self._filesystem.open_reader(path)
        try:
            size_bytes = file.size()
        finally:
            file.close()
        place = self.place(path)
        self._filesystem.rename(path, place)
        self._filesystem.sync_directory(self._directory)
        self.kept.append(KeptAside(path, place, size_bytes))

    def note(self, path: str, place: str, size_bytes: int) -> None:
        """Take note of what was moved to a `place` by somebody else."""
        self.kept.append(KeptAside(path, place, size_bytes))
