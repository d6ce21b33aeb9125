"""What a cache directory still says of itself, damaged or not: the state that a repair puts in order.

    1  read FORMAT, or tell from the journal what it said
    2  read what reads back of the journal
    3  open the index for reading; one that is damaged, behind or contradicts the journal or itself does not count, but lends what it
       alone says (`storage/lent_changes.py`)
    4  lay over it, or over nothing, what the journal has behind it, one change at a time, leaving out what cannot be applied
    5  check the rows of that and all bytes that they name, clean ones too

An index that counts holds all changes up to the last one it applied, so what the journal lost of those is not lost. Nothing is
changed here.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from storage import keys
from storage.applier import Sequenced, write_group
from storage.errors import DamagedError
from storage.family import Family
from storage.filesystem import Filesystem
from storage.findings import Report
from storage.fsck_places import Places
from storage.fsck_rows import Damage, RowCheck
from storage.index import Index
from storage.index_recovery import finish_rebuild
from storage.journal_format import JournalRecord
from storage.journal_salvage import Hole, Salvage, salvage, salvaged_records
from storage.journal_scan import scan
from storage.layered_index import IndexCopies, LayeredIndex
from storage.layout import FORMAT_PATH, ROOT, SEGMENTS_DIRECTORY, Layout, read_layout
from storage.lent_changes import lent_changes
from storage.records import (
    Mutation,
    PartUploaded,
    Put,
    Tombstone,
    UploadCompleted,
    UploadCreated,
    decode_mutation,
)
from storage.recovered_changes import JournalKnowledge
from storage.rows import APPLIED_SEQUENCE, INSTANCE_ID, Rows, all_rows, decode_dirty, decode_segment

GROUP_CHANGES: Final = 1024
DAMAGES_MAX: Final = 100_000
"""So many damaged places are repaired by one run; the next one takes the rest."""

LOST_MAX: Final = 1000


@dataclass(slots=True)
class Lost:
    """What was acknowledged and is damaged or gone: so many lines in words, all counted."""

    lines: list[str] = field(default_factory=list)
    count: int = 0

    def add(self, line: str) -> None:
        """Add one."""
        self.count += 1
        if len(self.lines) < LOST_MAX:
            self.lines.append(line)

    def absorb(self, other: "Lost") -> None:
        """Add all of another."""
        self.count += other.count
        self.lines += other.lines[: LOST_MAX - len(self.lines)]


@dataclass(slots=True)
class Survey:
    """What was found; `close` lets go of it.

    Attributes:
        has_format: FORMAT is there and reads back.
        refusal: Why a start would refuse the journal; "" where it would not.
        index: The state. What is written to it stays above the directory's own index.
        index_why: Why the directory's own index does not count; "" where it does.
        has_index: There is one, whatever its state.
        damages: At most DAMAGES_MAX of what does not read back.
        lost: Changes that cannot be applied, and what the journal does not say any more.
        unfit: The first of these.
    """

    layout: Layout
    has_format: bool
    journal: Salvage
    refusal: str
    index: LayeredIndex
    index_why: str
    has_index: bool
    knowledge: JournalKnowledge
    report: Report
    places: Places
    damages: list[Damage] = field(default_factory=list)
    lost: Lost = field(default_factory=Lost)
    unfit: list[str] = field(default_factory=list)

    @property
    def has_lost_changes(self) -> bool:
        """Whether there were, or may have been, changes that neither journal nor index says any more."""
        is_cut = self.journal.read_sequence < self.knowledge.applied_sequence
        return bool(self.knowledge.uncovered()) or (bool(self.refusal) and is_cut) or self.is_all_lost

    @property
    def is_all_lost(self) -> bool:
        """Whether nothing says any more what was dirty."""
        return bool(self.refusal) and not self.journal.files and bool(self.index_why)

    def close(self) -> None:
        """Close all that was opened."""
        self.places.close()
        self.index.close()


class Surveyor:
    """Makes surveys of one directory.

    Args:
        origin: The origin's endpoint, for a directory whose FORMAT is lost; "" where it was not said.
        progress: Told of bytes done and to do.
    """

    def __init__(
        self,
        filesystem: Filesystem,
        copies: IndexCopies,
        *,
        origin: str,
        progress: Callable[[int, int], None],
    ) -> None:
        self._filesystem = filesystem
        self._copies = copies
        self._origin = origin
        self._progress = progress
        self._done_bytes = 0
        self._lent: list[JournalRecord] = []

    def survey(self) -> Survey:
        """Look at everything.

        Raises:
            DamagedError: Nothing says whose directory this is.
            FormatError: A newer program wrote it.
            DiskFailedError: The disk refused a read, which says nothing against what is there.
        """
        report = Report()
        layout, why_not = self._layout()
        journal = salvage(self._filesystem, layout.instance_id if layout else self._instance_of_index())
        if layout is None:
            report.critical(FORMAT_PATH, why_not)
        layout = layout or self._derived(journal)
        if journal.foreign and not journal.files:
            raise DamagedError(
                f"{journal.foreign[0]} is of another instance than FORMAT names, and no journal file is of this one: files of "
                "two cache directories are mixed. Put the FORMAT or the journal/ back that belongs to the other, from a copy of "
                "the directory. Where there is none and the journal is the right one, move FORMAT and index/ away and repeat "
                "this with --origin URL, the endpoint that its changes are for; FORMAT is then written anew from the journal. "
                "Nothing was changed"
            )
        refusal = self._refusal(layout, journal)
        if refusal:
            report.critical("journal", refusal)
        survey = self._with_index(layout, journal, refusal, report)
        survey.has_format = not why_not
        return survey

    # --- FORMAT and journal ------------------------------------------------------------------------------------------

    def _layout(self) -> tuple[Layout | None, str]:
        try:
            return read_layout(self._filesystem), ""
        except FileNotFoundError:
            return None, "is missing"
        except DamagedError as error:
            return None, str(error)

    def _instance_of_index(self) -> bytes:
        """Read whose the index is, for where FORMAT is lost; "" where it does not say."""
        try:
            index = self._copies.open_read_only()
        except DamagedError:
            return b""
        try:
            return index.get(Family.META, INSTANCE_ID) or b""
        except DamagedError:
            return b""
        finally:
            index.close()

    def _derived(self, journal: Salvage) -> Layout:
        if not journal.instance_id:
            raise DamagedError("neither FORMAT nor the journal says whose directory this is")
        if not self._origin:
            raise DamagedError("FORMAT is lost: say with --origin to which origin the directory belongs")
        nodes = [
            keys.segment_node(file.header.segment_id) for file in journal.files if file.header is not None
        ]
        return Layout(journal.instance_id, next(iter(nodes), 0), self._origin, has_begun=True)

    def _refusal(self, layout: Layout, journal: Salvage) -> str:
        names = self._filesystem.list_directory(ROOT)
        has_segments = SEGMENTS_DIRECTORY in names and self._filesystem.list_directory(SEGMENTS_DIRECTORY)
        if not (journal.files or journal.foreign or journal.unreadable):
            return (
                "is missing: what was dirty is not known any more" if layout.has_begun or has_segments else ""
            )
        try:
            scanned = scan(self._filesystem)
        except DamagedError as error:
            return str(error)
        if scanned.instance_id not in {None, layout.instance_id}:
            return "is of another instance than FORMAT"
        return ""

    # --- the index ---------------------------------------------------------------------------------------------------

    def _with_index(self, layout: Layout, journal: Salvage, refusal: str, report: Report) -> Survey:
        """Build the state on the index where that counts, else on the journal alone."""
        below, why, applied = self._below(layout, journal)
        has_index = below is not None or "there is no index" not in why
        if below is not None:
            tried = Report()
            survey = self._state(layout, journal, refusal, tried, below)
            why = self._contradiction(survey, applied)
            if not why:
                report.absorb(tried)
                survey.report = report
                survey.has_index = True
                return survey
            survey.close()
        self._lent = self._lent_by_index(journal, applied)
        if applied > journal.read_sequence:
            # The index knew changes that nobody can tell any more.
            hole = Hole(max(journal.last_sequence, journal.read_sequence) + 1, applied)
            journal = _with_hole(journal, hole)
            refusal = refusal or f"ends at {journal.read_sequence}, and the index had applied {applied}"
        if journal.files and why:
            report.note("index", f"{why}; it is rebuilt, without clean objects")
        survey = self._state(layout, journal, refusal, report, None)
        survey.index_why, survey.has_index = why, has_index
        if survey.is_all_lost:
            survey.lost.add("journal and index are both gone: what was dirty is not known any more")
        return survey

    def _lent_by_index(self, journal: Salvage, applied: int) -> list[JournalRecord]:
        """Take from an index that does not count what it alone says of changes it has applied."""
        if not journal.holes and applied <= journal.read_sequence:
            return []
        try:
            index = self._copies.open_read_only()
        except DamagedError:
            return []
        try:
            return lent_changes(index, journal, up_to_sequence=applied)
        finally:
            index.close()

    def _below(self, layout: Layout, journal: Salvage) -> tuple[Index | None, str, int]:
        """Open the index; None where it does not count. With it, why not, and what it says it has applied."""
        try:
            index = self._copies.open_read_only()
        except DamagedError as error:
            return None, str(error), 0
        applied = 0
        try:
            instance_id = index.get(Family.META, INSTANCE_ID)
            applied = _applied_sequence(index) if instance_id == layout.instance_id else 0
            why = (
                ""
                if instance_id == layout.instance_id
                else "it is of another instance, or was never finished"
            )
            if not why and applied < journal.checkpoint_sequence:
                why = (
                    f"it has applied {applied}, behind the journal's checkpoint {journal.checkpoint_sequence}"
                )
            if not why:
                for family in Family:
                    for _ in all_rows(index, family):
                        pass
        except DamagedError as error:
            why = str(error)
        if why:
            index.close()
            return None, why, applied
        return index, "", applied

    def _contradiction(self, survey: Survey, applied: int) -> str:
        """Say where the index contradicts itself, or a journal that is whole."""
        if survey.report.contradictions:
            return f"its rows contradict each other ({survey.report.first_contradiction})"
        if survey.unfit and not survey.knowledge.uncovered():
            return f"a change of the journal does not fit it ({survey.unfit[0]})"
        if survey.refusal or survey.knowledge.holes or applied > survey.journal.read_sequence:
            return ""
        index = LayeredIndex(None, self._copies.open_scratch())
        try:
            _replay(self._records(survey.journal, 0), index, Lost())
            return _difference(index, survey.index)
        finally:
            index.close()

    # --- the state ---------------------------------------------------------------------------------------------------

    def _state(
        self, layout: Layout, journal: Salvage, refusal: str, report: Report, below: Index | None
    ) -> Survey:
        index = LayeredIndex(below, self._copies.open_scratch())
        applied = _applied_sequence(index)
        knowledge = JournalKnowledge(journal.holes, applied, journal.read_sequence)
        survey = Survey(
            layout=layout,
            has_format=True,
            journal=journal,
            refusal=refusal,
            index=index,
            index_why="",
            has_index=False,
            knowledge=knowledge,
            report=report,
            places=Places(self._filesystem),
        )
        try:
            if applied > journal.read_sequence and not refusal:
                survey.refusal = (
                    f"ends at {journal.read_sequence}, and the index has applied {applied}: a part is missing"
                )
                report.critical("journal", survey.refusal)
            _tell_of_journal(survey)
            unfit = Lost()
            _replay(self._records(journal, applied), index, unfit, knowledge.uncovered())
            survey.unfit = unfit.lines
            if unfit.count and not survey.refusal:
                survey.refusal = f"holds changes that cannot be applied: {unfit.lines[0]}"
                report.critical("journal", survey.refusal)
            survey.lost.absorb(unfit)
            if below is None:
                finish_rebuild(index, layout)
            self._check(survey)
        except BaseException:
            survey.close()
            raise
        return survey

    def _records(self, journal: Salvage, after: int) -> Iterator[JournalRecord]:
        read = salvaged_records(self._filesystem, journal, after_sequence=after)
        return heapq.merge(read, self._lent, key=lambda record: record.sequence)

    def _check(self, survey: Survey) -> None:
        total = sum(decode_segment(value).live_bytes for _, value in all_rows(survey.index, Family.SEGMENTS))

        def advance(size_bytes: int) -> None:
            self._done_bytes += size_bytes
            self._progress(min(self._done_bytes, total), total)

        def damaged(damage: Damage) -> None:
            if len(survey.damages) < DAMAGES_MAX:
                survey.damages.append(damage)

        self._done_bytes = 0
        try:
            check = RowCheck(
                survey.index,
                survey.places,
                survey.report,
                verify_clean=True,
                advance=advance,
                on_damage=damaged,
            )
            check.walk()
        except DamagedError as error:
            survey.report.contradiction("index", f"cannot be read on: {error}")


def _tell_of_journal(survey: Survey) -> None:
    report, journal = survey.report, survey.journal
    report.counts.journal_files = len(journal.files)
    report.counts.journal_bytes = sum(file.size_bytes for file in journal.files)
    for path in journal.foreign:
        report.critical(path, "is of another instance than FORMAT")
    for path in journal.unreadable:
        report.critical(path, "says nothing that reads back")
    for file in journal.files:
        if file.header_damage:
            report.critical(file.path, file.header_damage)
        for bad in file.bad:
            what = f"{bad.reason} at offset {bad.offset} of {file.size_bytes}"
            if file.is_torn:
                report.note(file.path, f"{what}: of a group that was never acknowledged")
            else:
                report.critical(file.path, what)
    uncovered = survey.knowledge.uncovered()
    for hole in journal.holes:
        if hole.last is not None and hole.last <= survey.knowledge.applied_sequence:
            report.note("journal", f"{hole} cannot be read; the index has applied them")
    for hole in uncovered:
        line = f"{hole} of the journal cannot be read: what they were is not known"
        report.critical("journal", line)
        survey.lost.add(line)


# --- changes -----------------------------------------------------------------------------------------------------------


def _replay(records: Iterable[JournalRecord], index: Index, lost: Lost, holes: tuple[Hole, ...] = ()) -> None:
    """Apply what the index lacks; what cannot be applied, or builds on what one of the holes had, is left out and named."""
    group: list[Sequenced] = []
    created: set[str] = set()
    for record in records:
        try:
            mutation = decode_mutation(record.mutation)
        except msgspec.DecodeError as error:
            lost.add(f"change {record.sequence} is of no known kind: {error}")
            continue
        if isinstance(mutation, UploadCreated):
            created.add(mutation.upload.upload_id)
        upload_id = _needed_upload(mutation)
        has_hole = any(hole.first < record.sequence for hole in holes)
        if upload_id and has_hole and upload_id not in created and Rows(index).upload(upload_id) is None:
            subject = _subject(mutation)
            lost.add(f"{subject}: change {record.sequence} cannot be applied: its upload is not known")
            continue
        group.append((record.sequence, mutation))
        if len(group) >= GROUP_CHANGES:
            _apply(index, group, lost)
            group = []
            created = set()
    if group:
        _apply(index, group, lost)


def _needed_upload(mutation: Mutation) -> str:
    return mutation.upload_id if isinstance(mutation, PartUploaded | UploadCompleted) else ""


def _apply(index: Index, group: list[Sequenced], lost: Lost) -> None:
    try:
        write_group(index, group)
    except AssertionError:
        # Nothing of the group was written: one at a time shows which it is.
        for change in group:
            try:
                write_group(index, [change])
            except AssertionError as error:
                lost.add(f"{_subject(change[1])}: change {change[0]} cannot be applied: {error}")


def _subject(mutation: Mutation) -> str:
    match mutation:
        case Put(entry=entry) | Tombstone(entry=entry) | UploadCompleted(entry=entry):
            return f"s3://{entry.bucket}/{entry.key}"
        case PartUploaded():
            return f"part {mutation.part.number} of upload {mutation.upload_id}"
        case _:
            return type(mutation).__name__


def _difference(journal: Index, index: Index) -> str:
    """Compare the flush queue that the journal gives with that of the index, by sequence and version."""
    for one, other in ((journal, index), (index, journal)):
        for key, value in all_rows(one, Family.DIRTY):
            entry = decode_dirty(value)
            found = other.get(Family.DIRTY, key)
            if found is None or decode_dirty(found).version_id != entry.version_id:
                name = f"s3://{entry.bucket}/{entry.key}"
                return f"it contradicts the journal over change {entry.sequence} of {name}"
    return ""


def _with_hole(journal: Salvage, hole: Hole) -> Salvage:
    known = tuple(one for one in journal.holes if one.last is not None)
    return replace(journal, holes=(*known, hole), last_sequence=max(journal.last_sequence, hole.last or 0))


def _applied_sequence(index: Index) -> int:
    value = index.get(Family.META, APPLIED_SEQUENCE)
    return 0 if value is None else int.from_bytes(value)
