"""`forebay fsck`: look whether a cache directory is sound, and above all whether every acknowledged byte is there. Changes nothing.

    1  take the lock, read FORMAT
    2  scan the journal
    3  open the index for reading, and lay over it what the next start would apply to it; where it would be thrown away, all of the journal
    4  check the rows of that against each other, and the bytes that they name against their checksums

So what is checked is what the next start will find, by the same replay, and no more memory is taken than a start takes. All dirty bytes
are read; clean ones on demand, as a wrong clean block is a miss and no more.

The lock file is the only thing that may be made, where it is missing.
"""

from collections.abc import Callable
from typing import Final

from storage.errors import DamagedError, DiskFailedError, StorageError
from storage.family import Family
from storage.filesystem import Filesystem, disk_error
from storage.findings import Report
from storage.fsck_places import Places
from storage.fsck_rows import RowCheck
from storage.index import Index
from storage.index_recovery import IndexBrokenError, finish_rebuild, replay_journal
from storage.journal_format import JOURNAL_DIRECTORY
from storage.journal_reader import BadFrame, JournalReader
from storage.journal_scan import JournalScan, scan
from storage.layered_index import IndexCopies, LayeredIndex
from storage.layout import FORMAT_PATH, ROOT, Layout, read_layout, take_lock
from storage.rows import APPLIED_SEQUENCE, INSTANCE_ID, all_rows, decode_segment
from storage.standing_losses import standing_losses

__all__ = ["Progress", "Report", "check"]

Progress = Callable[[int, int], None]
"""Told from time to time how many bytes are done, and how many there are to do."""

PROGRESS_STEP_BYTES: Final = 64 * 1024 * 1024


def check(
    filesystem: Filesystem,
    copies: IndexCopies,
    *,
    verify_clean: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> Report:
    """Check a cache directory. Blocks: for as long as it takes to read all dirty bytes, and all others with `verify_clean`.

    Raises:
        LockedError: A gateway has the directory open; it has to be stopped first.
        FormatError: A newer program wrote it.
        DiskFailedError: It cannot be read at all.
    """
    report = Report()
    try:
        if not _is_cache_directory(filesystem, report):
            return report
        lock = take_lock(filesystem)
        try:
            _Check(filesystem, copies, report, progress).run(verify_clean=verify_clean)
        finally:
            lock.close()
    except OSError as error:
        raise disk_error(error, "check") from error
    return report


def _is_cache_directory(filesystem: Filesystem, report: Report) -> bool:
    names = filesystem.list_directory(ROOT)
    if FORMAT_PATH in names:
        return True
    if JOURNAL_DIRECTORY in names and filesystem.list_directory(JOURNAL_DIRECTORY):
        report.critical(FORMAT_PATH, "is missing beside a journal")
        return True
    report.note(FORMAT_PATH, "is missing: this is no cache directory, or one that was never used")
    return False


class _Check:
    """One check under way."""

    def __init__(
        self, filesystem: Filesystem, copies: IndexCopies, report: Report, progress: Progress
    ) -> None:
        self._filesystem = filesystem
        self._copies = copies
        self._report = report
        self._progress = progress
        self._done_bytes = 0
        self._told_bytes = 0
        self._total_bytes = 0

    def run(self, *, verify_clean: bool) -> None:
        self._report.standing = standing_losses(self._filesystem)
        layout = self._read_layout()
        scanned = self._scan(layout)
        index = self._open_index(layout, scanned)
        places = Places(self._filesystem)
        try:
            self._total_bytes = self._report.counts.journal_bytes + _live_bytes(index)
            self._advance(self._report.counts.journal_bytes)
            rows = RowCheck(index, places, self._report, verify_clean=verify_clean, advance=self._advance)
            rows.walk()
        except StorageError as error:
            self._report.critical("index", f"cannot be read on: {error}")
        finally:
            places.close()
            index.close()
        self._progress(self._total_bytes, self._total_bytes)

    def _advance(self, size_bytes: int) -> None:
        self._done_bytes += size_bytes
        if self._done_bytes - self._told_bytes >= PROGRESS_STEP_BYTES:
            self._told_bytes = self._done_bytes
            self._progress(min(self._done_bytes, self._total_bytes), self._total_bytes)

    # --- 1 and 2 -----------------------------------------------------------------------------------------------------

    def _read_layout(self) -> Layout | None:
        try:
            return read_layout(self._filesystem)
        except FileNotFoundError:
            return None
        except DamagedError as error:
            self._report.critical(FORMAT_PATH, str(error))
            return None

    def _scan(self, layout: Layout | None) -> JournalScan | None:
        """Scan the journal; None where it cannot be replayed."""
        if JOURNAL_DIRECTORY not in self._filesystem.list_directory(ROOT):
            if layout is not None and layout.has_begun:
                self._report.critical("journal", "is missing: what was dirty is not known any more")
            # As a first start that was cut short leaves it; an index with rows is ahead of it.
            return JournalScan((), (), (), None, 0, 0, None)
        try:
            scanned = scan(self._filesystem)
        except DamagedError as error:
            self._report.critical("journal", str(error))
            self._look_at_each_file()
            return None
        counts = self._report.counts
        counts.journal_files = len(scanned.files)
        counts.journal_bytes = sum(file.end_offset for file in scanned.files)
        if layout is not None and scanned.instance_id not in {None, layout.instance_id}:
            self._report.critical("journal", "is of another instance than FORMAT")
        if layout is not None and layout.has_begun and not scanned.files:
            self._report.critical("journal", "is missing: what was dirty is not known any more")
        if scanned.torn is not None:
            torn = scanned.torn
            what = f"{torn.size_bytes - torn.offset} bytes from {torn.offset} on are of a group that was never acknowledged"
            self._report.note(torn.path, f"{what} ({torn.reason}); the next start cuts them off")
        for path in (*scanned.superseded, *scanned.unfinished):
            self._report.note(path, "does not count any more; the next start removes it")
        return scanned

    def _look_at_each_file(self) -> None:
        """Name every place where a file stops making sense; the scan names the first that refuses the start."""
        for name in self._filesystem.list_directory(JOURNAL_DIRECTORY):
            if name.endswith(".log"):
                self._look_at_file(f"{JOURNAL_DIRECTORY}/{name}")

    def _look_at_file(self, path: str) -> None:
        try:
            with JournalReader(self._filesystem, path) as reader:
                last_sequence = 0
                for group in reader.groups():
                    if isinstance(group, BadFrame):
                        what = f"{group.reason} at offset {group.offset} of {reader.size_bytes}"
                        self._report.critical(path, f"{what}; sound up to sequence {last_sequence}")
                        return
                    last_sequence = group.last_sequence
        except DamagedError as error:
            self._report.critical(path, str(error))

    # --- 3 -----------------------------------------------------------------------------------------------------------

    def _open_index(self, layout: Layout | None, scanned: JournalScan | None) -> LayeredIndex:
        """Give the index as the next start would have it; as it is, where the journal cannot be replayed."""
        below, why = self._open_below()
        if below is not None and scanned is not None:
            why = self._why_not(below, layout, scanned)
        if why and below is not None:
            below.close()
            below = None
        if scanned is None:
            what = "is checked as it is, without what the journal holds beyond it"
            self._report.note("index", f"{why}: nothing of it can be checked" if below is None else what)
            return LayeredIndex(below, self._copies.open_scratch())
        if below is not None:
            index = LayeredIndex(below, self._copies.open_scratch())
            try:
                self._replay(scanned, index)
            except IndexBrokenError as error:
                index.close()
                why = str(error)
            else:
                return index
        if scanned.files:
            self._report.note("index", f"{why}; the next start rebuilds it, without clean objects")
        return self._rebuilt(layout, scanned)

    def _rebuilt(self, layout: Layout | None, scanned: JournalScan) -> LayeredIndex:
        index = LayeredIndex(None, self._copies.open_scratch())
        self._replay(scanned, index)
        if layout is not None:
            finish_rebuild(index, layout)
        return index

    def _open_below(self) -> tuple[Index | None, str]:
        """Open the directory's index, or say why it cannot be."""
        try:
            return self._copies.open_read_only(), ""
        except (DamagedError, DiskFailedError) as error:
            return None, str(error)

    def _why_not(self, index: Index, layout: Layout | None, scanned: JournalScan) -> str:
        """Say why the next start would not use the index; "" where it would, or would not start at all."""
        try:
            instance_id = index.get(Family.META, INSTANCE_ID)
            applied = _applied_sequence(index)
        except StorageError as error:
            return str(error)
        if instance_id is None or (layout is not None and instance_id != layout.instance_id):
            return "it is of another instance, or was never finished"
        if applied < scanned.checkpoint_sequence:
            return f"it has applied {applied}, behind the journal's checkpoint {scanned.checkpoint_sequence}"
        if applied > scanned.last_sequence:
            what = f"has applied sequence {applied}, the journal ends at {scanned.last_sequence}"
            self._report.critical("index", f"{what}: a part of the journal is missing")
        return ""

    def _replay(self, scanned: JournalScan, index: LayeredIndex) -> None:
        applied = _applied_sequence(index)
        try:
            replay_journal(self._filesystem, scanned, index)
        except DamagedError as error:
            self._report.critical("journal", str(error))
        except AssertionError as error:
            self._report.critical("journal", f"contradicts itself, or the index: {error}")
        self._report.counts.replayed = max(0, _applied_sequence(index) - applied)


def _applied_sequence(index: Index) -> int:
    value = index.get(Family.META, APPLIED_SEQUENCE)
    return 0 if value is None else int.from_bytes(value)


def _live_bytes(index: Index) -> int:
    return sum(decode_segment(value).live_bytes for _, value in all_rows(index, Family.SEGMENTS))
