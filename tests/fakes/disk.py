"""The disk under `tests/fakes/filesystem.py`: what is in memory, what is durable, and what a power cut leaves.

The fault model is stated in `tests/fakes/filesystem.py`.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

SECTOR_BYTES: Final = 512
"""What a disk writes whole or not at all."""


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes written to a file and not yet synced."""

    serial: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """A change of a file's size not yet synced."""

    serial: int
    size: int


def apply(image: bytearray, change: Write | Truncate) -> None:
    """Carry out one change on a file's bytes; a hole reads as zeros."""
    match change:
        case Write(offset=offset, data=data):
            _grow(image, offset)
            image[offset : offset + len(data)] = data
        case Truncate(size=size):
            _grow(image, size)
            del image[size:]


@dataclass(eq=False, slots=True)
class Inode:
    """One file: `data` as a process reads it, `durable` as the disk holds it, `pending` the way between them.

    A clone shares the bytes with its original until either changes them, so that an image costs no more than what is
    written after it.
    """

    data: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    pending: list[Write | Truncate] = field(default_factory=list)
    serial: int = 0
    links: int = 0
    handles: int = 0
    is_data_shared: bool = False
    is_durable_shared: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether neither a name nor an open file refers to it, so that its space is free."""
        return self.links == 0 and self.handles == 0

    def write(self, offset: int, data: bytes) -> None:
        """Write in memory."""
        self.serial += 1
        self._change(Write(self.serial, offset, data))

    def truncate(self, size: int) -> None:
        """Set the size in memory."""
        self.serial += 1
        self._change(Truncate(self.serial, size))

    def sync(self, serial: int) -> None:
        """Make the changes up to `serial` durable; a later one, made while the sync ran, is not covered."""
        covered = [change for change in self.pending if change.serial <= serial]
        if covered:
            durable = self._own_durable()
            for change in covered:
                apply(durable, change)
            self.pending = [change for change in self.pending if change.serial > serial]

    def fail_sync(self, draws: random.Random) -> None:
        """Let each pending change reach the disk or be dropped for good; what reads back may be either.

        As Linux does after a write-back error: the pages are marked clean, so that no later sync writes them, and they
        read back until they are evicted. The size in memory stays.
        """
        durable = self._own_durable()
        for change in self.pending:
            if draws.random() < 0.5:
                apply(durable, change)
        self.pending.clear()
        if draws.random() < 0.5:
            size = len(self.data)
            self.data, self.is_data_shared = bytearray(durable), False
            apply(self.data, Truncate(0, size))

    def replace(self, data: bytes | bytearray) -> None:
        """Hold other bytes, durably."""
        self.data, self.durable = bytearray(data), bytearray(data)
        self.is_data_shared = self.is_durable_shared = False
        self.pending.clear()

    def crashed(self, draws: random.Random, keep_probability: float) -> "Inode":
        """Give the file after a power cut: the durable bytes and any part of the pending changes, all durable."""
        if not self.pending:
            self.is_durable_shared = True
            image = self.durable
        else:
            image = bytearray(self.durable)
            for change in self.pending:
                if draws.random() < keep_probability:
                    apply(image, change)
                elif isinstance(change, Write) and keep_probability > 0 and draws.random() < 0.5:
                    _tear(image, change, draws, keep_probability)
        return Inode(data=image, durable=image, links=1, is_data_shared=True, is_durable_shared=True)

    def copied(self) -> "Inode":
        """Give the file as it is, as far from durable as it is; nobody has the copy open."""
        self.is_data_shared = self.is_durable_shared = True
        return Inode(
            self.data,
            self.durable,
            list(self.pending),
            self.serial,
            self.links,
            is_data_shared=True,
            is_durable_shared=True,
        )

    def _change(self, change: Write | Truncate) -> None:
        if self.is_data_shared:
            self.data, self.is_data_shared = bytearray(self.data), False
        apply(self.data, change)
        self.pending.append(change)

    def _own_durable(self) -> bytearray:
        if self.is_durable_shared:
            self.durable, self.is_durable_shared = bytearray(self.durable), False
        return self.durable


def _tear(image: bytearray, write: Write, draws: random.Random, keep_probability: float) -> None:
    """Keep each sector of a write or not; the file's size may have grown although the bytes are lost."""
    for start, stop in _sectors(write.offset, write.offset + len(write.data)):
        if draws.random() < keep_probability:
            apply(image, Write(0, start, write.data[start - write.offset : stop - write.offset]))
    if draws.random() < 0.5:
        _grow(image, write.offset + len(write.data))


def _sectors(start: int, stop: int) -> Iterator[tuple[int, int]]:
    while start < stop:
        end = min(stop, start - start % SECTOR_BYTES + SECTOR_BYTES)
        yield start, end
        start = end


def _grow(image: bytearray, size: int) -> None:
    image.extend(bytes(max(0, size - len(image))))


@dataclass(eq=False, slots=True)
class Directory:
    """Names in memory and names on the disk."""

    entries: "dict[str, Inode | Directory]" = field(default_factory=dict)
    durable: "dict[str, Inode | Directory]" = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Entry:
    """A name that now means `node`, or nothing where that is None."""

    directory: Directory
    name: str
    node: Inode | Directory | None


@dataclass(eq=False, slots=True)
class Tree:
    """All names. `pending` holds the unsynced operations in order; each is kept or lost whole (a rename is two entries)."""

    root: Directory = field(default_factory=Directory)
    pending: list[tuple[Entry, ...]] = field(default_factory=list)

    def change(self, *operation: Entry) -> None:
        """Change names in memory."""
        for entry in operation:
            _set(entry.directory.entries, entry)
        self.pending.append(operation)

    def sync(self, directory: Directory, begun: Sequence[tuple[Entry, ...]] | None = None) -> None:
        """Make the operations that touch a directory durable; `begun` are those that were pending when the sync began."""
        covered = {id(operation) for operation in (self.pending if begun is None else begun)}
        rest = []
        for operation in self.pending:
            if id(operation) in covered and _touches(operation, directory):
                for entry in operation:
                    _set(entry.directory.durable, entry)
            else:
                rest.append(operation)
        self.pending = rest

    def fail_sync(self, directory: Directory, draws: random.Random) -> None:
        """Make any subset of the operations that touch a directory durable; the others stay pending."""
        lost = []
        for operation in self.pending:
            if _touches(operation, directory) and draws.random() < 0.5:
                for entry in operation:
                    _set(entry.directory.durable, entry)
            else:
                lost.append(operation)
        self.pending = lost

    def crashed(self, draws: random.Random, keep_probability: float) -> "Tree":
        """Give the tree after a power cut; all of it is durable."""
        names = {id(directory): dict(directory.durable) for directory in _directories(self)}
        for operation in self.pending:
            if draws.random() < keep_probability:
                for entry in operation:
                    _set(names[id(entry.directory)], entry)

        def rebuild(old: Directory) -> Directory:
            new = Directory()
            for name, node in names[id(old)].items():
                if isinstance(node, Directory):
                    new.entries[name] = rebuild(node)
                else:
                    new.entries[name] = node.crashed(draws, keep_probability)
            new.durable.update(new.entries)
            return new

        return Tree(rebuild(self.root))

    def copied(self) -> "Tree":
        """Give the same tree, as far from durable as it is."""
        copies: dict[int, Inode | Directory] = {}

        def copied(node: Inode | Directory) -> Inode | Directory:
            if id(node) not in copies:
                if isinstance(node, Inode):
                    copies[id(node)] = node.copied()
                else:
                    copies[id(node)] = new = Directory()
                    new.entries.update((name, copied(child)) for name, child in node.entries.items())
                    new.durable.update((name, copied(child)) for name, child in node.durable.items())
            return copies[id(node)]

        def copied_entry(entry: Entry) -> Entry:
            directory = copied(entry.directory)
            assert isinstance(directory, Directory)
            return Entry(directory, entry.name, None if entry.node is None else copied(entry.node))

        root = copied(self.root)
        assert isinstance(root, Directory)
        return Tree(root, [tuple(map(copied_entry, operation)) for operation in self.pending])


def inodes(directory: Directory) -> Iterator[Inode]:
    """Go through all files under a directory."""
    for node in directory.entries.values():
        if isinstance(node, Directory):
            yield from inodes(node)
        else:
            yield node


def _set(names: dict[str, Inode | Directory], entry: Entry) -> None:
    if entry.node is None:
        names.pop(entry.name, None)
    else:
        names[entry.name] = entry.node


def _touches(operation: tuple[Entry, ...], directory: Directory) -> bool:
    return any(entry.directory is directory for entry in operation)


def _directories(tree: Tree) -> Iterator[Directory]:
    """Go through all directories that are in memory, on the disk or on the way to it."""
    waiting = [tree.root, *(entry.directory for operation in tree.pending for entry in operation)]
    waiting += [
        entry.node for operation in tree.pending for entry in operation if isinstance(entry.node, Directory)
    ]
    seen: set[int] = set()
    while waiting:
        directory = waiting.pop()
        if id(directory) in seen:
            continue
        seen.add(id(directory))
        yield directory
        nodes = [*directory.entries.values(), *directory.durable.values()]
        waiting += [node for node in nodes if isinstance(node, Directory)]
