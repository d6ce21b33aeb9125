"""The cache directory: what lies in it, whose it is, and who has it open.

    <cache_dir>/FORMAT      TOML: format number, instance id, node, the origin's endpoint, whether the journal has begun
                LOCK        held by the process that has the directory open
                journal/    storage/journal_format.py
                segments/   storage/segments.py
                index/      RocksDB, storage/index.py
                quarantine/ what a repair has put aside, storage/aside.py; only where there was one

FORMAT is written when the directory is made and once more when the journal has begun, whole or not at all. A directory
of another origin or of a newer format is refused, unchanged: its dirty bytes belong somewhere else, or mean something that
this program does not know.
"""

import tomllib
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from storage.errors import DamagedError, FormatError, LockedError
from storage.filesystem import Filesystem, Lock, disk_error

FORMAT_NUMBER: Final = 1
FORMAT_PATH: Final = "FORMAT"
LOCK_PATH: Final = "LOCK"
JOURNAL_DIRECTORY: Final = "journal"
SEGMENTS_DIRECTORY: Final = "segments"
INDEX_DIRECTORY: Final = "index"
ROOT: Final = ""
INSTANCE_ID_BYTES: Final = 16

_FORMAT_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """What FORMAT says. `instance_id` is 16 bytes, drawn when the directory was made.

    `has_begun` says that the journal has its first file: from then on a directory without one has lost it.
    """

    instance_id: bytes
    node: int
    origin: str
    has_begun: bool = False


def take_lock(filesystem: Filesystem) -> Lock:
    """Keep every other process out.

    Raises:
        LockedError: Another process has the directory open.
    """
    try:
        return filesystem.lock(LOCK_PATH)
    except BlockingIOError as error:
        raise LockedError("the cache directory is in use by another process; stop it first") from error
    except OSError as error:
        raise disk_error(error, "take the LOCK file") from error


def open_layout(filesystem: Filesystem, *, origin: str, fresh_instance_id: bytes) -> Layout:
    """Read FORMAT, or make the directory what FORMAT says; the lock is held.

    Raises:
        FormatError: The directory is of another origin or a newer format.
        DamagedError: FORMAT is unreadable, or missing where a journal is.
        DiskFullError, DiskFailedError: The directory could not be made.
    """
    try:
        names = filesystem.list_directory(ROOT)
        if FORMAT_PATH in names:
            layout = read_layout(filesystem)
            _refuse_other_origin(layout, origin)
        else:
            _refuse_foreign(filesystem, names)
            layout = Layout(fresh_instance_id, 0, origin)
            write_layout(filesystem, layout)
        for directory in (JOURNAL_DIRECTORY, SEGMENTS_DIRECTORY, INDEX_DIRECTORY):
            filesystem.make_directory(directory)
        filesystem.sync_directory(ROOT)
    except OSError as error:
        raise disk_error(error, "open the cache directory") from error
    return layout


def mark_begun(filesystem: Filesystem, layout: Layout) -> Layout:
    """Note that the journal's first file is durable; done once in the life of a directory. Gives what FORMAT says then.

    Raises:
        DiskFullError, DiskFailedError: It is not noted; the next start does it.
    """
    begun = replace(layout, has_begun=True)
    try:
        if not layout.has_begun:
            write_layout(filesystem, begun)
    except OSError as error:
        raise disk_error(error, "write FORMAT") from error
    return begun


def read_layout(filesystem: Filesystem) -> Layout:
    """Read FORMAT without changing anything; errors as `open_layout`."""
    file = filesystem.open_reader(FORMAT_PATH)
    try:
        text = file.pread(0, _FORMAT_BYTES_MAX)
    finally:
        file.close()
    try:
        fields = tomllib.loads(text.decode())
        # Before the rest, which may have changed with it.
        _refuse_newer(int(fields["format"]))
        layout = Layout(
            bytes.fromhex(fields["instance_id"]),
            int(fields["node"]),
            str(fields["origin"]),
            has_begun=bool(fields.get("has_begun", False)),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DamagedError(f"FORMAT is not readable ({error}); see `forebay fsck`") from error
    if len(layout.instance_id) != INSTANCE_ID_BYTES:
        raise DamagedError("FORMAT has no whole instance id; see `forebay fsck`")
    return layout


def _refuse_newer(number: int) -> None:
    if number > FORMAT_NUMBER:
        raise FormatError(
            f"the cache directory has format {number}; this program knows up to {FORMAT_NUMBER}: "
            "use the newer program, or drain with it and start with an empty --cache-dir"
        )


def _refuse_other_origin(layout: Layout, origin: str) -> None:
    if layout.origin != origin:
        raise FormatError(
            f"the cache directory belongs to the origin {layout.origin}, not to {origin}; "
            "start with the old origin and `--drain`, or choose another --cache-dir"
        )


def _refuse_foreign(filesystem: Filesystem, names: list[str]) -> None:
    """Refuse to make a cache of a directory that holds something, above all a journal without its FORMAT."""
    if JOURNAL_DIRECTORY in names and filesystem.list_directory(JOURNAL_DIRECTORY):
        raise DamagedError("FORMAT is missing beside a journal; see `forebay fsck`")
    known = {
        LOCK_PATH,
        JOURNAL_DIRECTORY,
        SEGMENTS_DIRECTORY,
        INDEX_DIRECTORY,
        f"{FORMAT_PATH}.tmp",
        "lost+found",
    }
    foreign = sorted(set(names) - known)
    if foreign:
        raise FormatError(
            f"the cache directory holds something else ({', '.join(foreign[:3])}); choose an empty --cache-dir"
        )


def write_layout(filesystem: Filesystem, layout: Layout) -> None:
    """Write FORMAT, whole or not at all; durable on return."""
    text = (
        f"format = {FORMAT_NUMBER}\n"
        f'instance_id = "{layout.instance_id.hex()}"\n'
        f"node = {layout.node}\n"
        f'origin = "{_escaped(layout.origin)}"\n'
        f"has_begun = {str(layout.has_begun).lower()}\n"
    )
    unfinished = f"{FORMAT_PATH}.tmp"
    with suppress(FileNotFoundError):
        filesystem.unlink(unfinished)
    file = filesystem.create(unfinished)
    try:
        file.pwrite(0, text.encode())
        file.fdatasync()
    finally:
        file.close()
    filesystem.rename(unfinished, FORMAT_PATH)
    filesystem.sync_directory(ROOT)


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
