"""Put one compacted file in the place of a journal that does not read back, and keep the old files aside.

    1  write the new file whole, sync it, name it `journal/<id>.repair`     nothing of the old journal is touched
    2  move all `.log` files aside
    3  rename `.repair` to `.log`

A crash before 1 is done leaves the old journal. After it there is no way but forward: a start refuses while a `.repair` is there, since
of the old files any number may be gone, and the next repair does 2 and 3 again.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from storage.aside import Aside
from storage.filesystem import Filesystem
from storage.journal_files import compacted_chunks
from storage.journal_format import (
    HEADER_BYTES,
    JOURNAL_DIRECTORY,
    REPAIR_SUFFIX,
    JournalHeader,
    JournalRecord,
    decode_header,
    frame_seed,
    journal_path,
)
from storage.journal_reader import BadFrame, JournalReader
from storage.layout import ROOT

_LOG: Final = ".log"


def unfinished_replacement(filesystem: Filesystem) -> str | None:
    """Name the file of a replacement that was cut short; None where there is none."""
    if JOURNAL_DIRECTORY not in filesystem.list_directory(ROOT):
        return None
    names = filesystem.list_directory(JOURNAL_DIRECTORY)
    return next((f"{JOURNAL_DIRECTORY}/{name}" for name in names if name.endswith(REPAIR_SUFFIX)), None)


def prepare_replacement(
    filesystem: Filesystem, header: JournalHeader, records: Iterable[JournalRecord]
) -> str:
    """Do step 1; give the file's path. Until this returns, or a crash in its last call, nothing has changed."""
    filesystem.make_directory(JOURNAL_DIRECTORY)
    filesystem.sync_directory(ROOT)
    target = journal_path(header.segment_id)
    prepared = target.removesuffix(_LOG) + REPAIR_SUFFIX
    unfinished = f"{target.removesuffix(_LOG)}.tmp"
    with suppress(FileNotFoundError):
        filesystem.unlink(unfinished)
    file = filesystem.create(unfinished)
    try:
        offset = 0
        for chunk in compacted_chunks(header, records):
            file.pwrite(offset, chunk)
            offset += len(chunk)
        file.fdatasync()
    finally:
        file.close()
    filesystem.rename(unfinished, prepared)
    filesystem.sync_directory(JOURNAL_DIRECTORY)
    return prepared


def finish_replacement(filesystem: Filesystem, prepared: str, aside: Aside) -> None:
    """Do steps 2 and 3. To be repeated after a crash."""
    # A prepared name that reads back may not be on the disk yet: then nothing may go before it is.
    filesystem.sync_directory(JOURNAL_DIRECTORY)
    for name in filesystem.list_directory(JOURNAL_DIRECTORY):
        if name.endswith(_LOG):
            aside.move(f"{JOURNAL_DIRECTORY}/{name}")
    filesystem.sync_directory(JOURNAL_DIRECTORY)
    filesystem.rename(prepared, prepared.removesuffix(REPAIR_SUFFIX) + _LOG)
    filesystem.sync_directory(JOURNAL_DIRECTORY)


def is_prepared_whole(filesystem: Filesystem, prepared: str) -> bool:
    """Whether the file of step 1 reads back, so that it may take the journal's place."""
    file = filesystem.open_reader(prepared)
    try:
        data = file.pread(0, HEADER_BYTES)
    finally:
        file.close()
    decoded = decode_header(data)
    if decoded is None:
        return False
    is_ended = False
    with JournalReader(filesystem, prepared, (decoded[1], frame_seed(data))) as reader:
        for group in reader.groups():
            if isinstance(group, BadFrame) or is_ended:
                return False
            is_ended = not group.records
    return is_ended
