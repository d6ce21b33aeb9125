"""What `forebay fsck --repair` works with, over a Ledger's directory in memory, and damage done to it by hand."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from storage.errors import DamagedError
from storage.fsck_repair import RepairParts, repair
from storage.recovered_changes import Looked
from storage.recovery import Recovered, RecoveryParts, recover
from storage.repair_doubts import Look
from storage.repair_outcome import RepairOutcome
from storage.types import ObjectName
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.index import FakeIndex
from tests.fakes.ledger_harness import INSTANCE_ID, ORIGIN, Ledger


class RepairIndexHome:
    """`fsck_repair.RepairHome` and `IndexCopies` over a FakeIndex; None is one that is lost or cannot be opened.

    `fail_write_at` lets so many-th write of the next index that is opened fail; 0 lets none.
    """

    def __init__(self, index: FakeIndex | None) -> None:
        self.index = index
        self.kept: list[str] = []
        self.fail_write_at = 0

    def open(self) -> FakeIndex:
        """Give the index as the process before left it; an empty one where there is none."""
        self.index = FakeIndex() if self.index is None else self.index.kill_clone()
        if self.fail_write_at:
            self.index.fail_write(self.fail_write_at)
        return self.index

    def destroy(self) -> None:
        """Forget all rows."""
        self.index = None

    def set_aside(self, place: str) -> int:
        """Forget all rows, and remember that somebody asked for it."""
        self.kept.append(place)
        self.index = None
        return 1

    def open_read_only(self) -> FakeIndex:
        """Give a copy."""
        if self.index is None:
            raise DamagedError("there is no index")
        return self.index.kill_clone()

    def open_scratch(self) -> FakeIndex:
        """Give an empty index."""
        return FakeIndex()


@dataclass
class Directory:
    """A cache directory at rest."""

    filesystem: FakeFilesystem
    home: RepairIndexHome
    looked: list[ObjectName] = field(default_factory=list)

    @classmethod
    def of(cls, ledger: Ledger, *, has_index: bool = True) -> "Directory":
        """Give what a killed process leaves of a ledger."""
        return cls(
            ledger.filesystem.kill_clone(), RepairIndexHome(ledger.index.kill_clone() if has_index else None)
        )

    def clone(self) -> "Directory":
        """Give a copy, as after a kill."""
        index = self.home.index
        return Directory(
            self.filesystem.kill_clone(), RepairIndexHome(None if index is None else index.kill_clone())
        )

    def repair(
        self, *, origin: dict[str, Looked] | None = None, is_dry: bool = False, look: Look | None = None
    ) -> RepairOutcome:
        """Repair it; `origin` says what is there by key, None that it is not to be asked."""

        def answer(names: Sequence[ObjectName]) -> list[Looked]:
            self.looked += names
            return [(origin or {}).get(name.key, Looked()) for name in names]

        asked = look or (None if origin is None else answer)
        parts = RepairParts(self.filesystem, self.home, self.home, ORIGIN, asked, "now")
        return repair(parts, is_dry=is_dry)

    def start(self) -> Recovered:
        """Start as an engine does."""
        return recover(RecoveryParts(self.filesystem, self.home, ORIGIN, INSTANCE_ID))

    # --- damage ---

    def journal_paths(self) -> list[str]:
        """Name the journal's files, oldest first."""
        names = self.filesystem.list_directory("journal")
        return [f"journal/{name}" for name in names if name.endswith(".log")]

    def change(self, path: str, edit: Callable[[bytearray], None]) -> None:
        """Change a file's bytes."""
        data = bytearray(self.filesystem.contents(path))
        edit(data)
        self.filesystem.replace_contents(path, data)

    def flip(self, path: str, at: int) -> None:
        """Flip a bit."""

        def edit(data: bytearray) -> None:
            data[at] ^= 0x10

        self.change(path, edit)

    def cut(self, path: str, size_bytes: int) -> None:
        """Cut a file short."""

        def edit(data: bytearray) -> None:
            del data[size_bytes:]

        self.change(path, edit)

    def find(self, text: bytes) -> tuple[str, int]:
        """Say in which journal file some bytes lie, and where."""
        for path in self.journal_paths():
            at = self.filesystem.contents(path).find(text)
            if at >= 0:
                return path, at
        raise AssertionError(f"{text!r} is in no journal file")
