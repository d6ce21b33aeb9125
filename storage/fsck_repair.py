"""`forebay fsck --repair`: put a cache directory in order, offline, and remove nothing that was acknowledged.

    1  finish a repair that was cut short
    2  survey: what the directory still says (`storage/fsck_survey.py`)
    3  compare what is in doubt with the origin, and quarantine what the origin does not have (`storage/repair_doubts.py`)
    4  write down what is lost, as a later run does not find it any more (`storage/standing_losses.py`);
       where changes were lost, keep aside the segments in which their bodies may be and which a start removes
    5  where the journal does not read back, or changed by 3: state it anew in one file, keep the old ones aside
    6  write FORMAT where it is lost
    7  bring the index up to that; where it does not count, or changes are lost that it does not know, set it aside and rebuild it
    8  drop clean bytes that do not read back, and fetch them again if that is wanted

Nothing of the directory is touched before the last sync of what replaces it, so an interrupted repair is repeated: up to the naming of
the new journal it has changed nothing, and behind it all that it changed can be told from the new journal. Nothing is sent to the origin.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from storage.applier import write_change
from storage.aside import Aside
from storage.cached import DropExtents
from storage.errors import DamagedError
from storage.family import Family, IndexWrite
from storage.filesystem import Filesystem, disk_error
from storage.fsck_rows import Damage
from storage.fsck_survey import DAMAGES_MAX, Survey, Surveyor
from storage.index import Index
from storage.index_recovery import IndexHome, finish_rebuild, replay_journal
from storage.journal_bodies import BodyRescue
from storage.journal_format import (
    JOURNAL_DIRECTORY,
    JournalHeader,
    journal_path,
)
from storage.journal_replacement import (
    finish_replacement,
    is_prepared_whole,
    prepare_replacement,
    unfinished_replacement,
)
from storage.journal_scan import scan
from storage.layered_index import IndexCopies
from storage.layout import (
    FORMAT_PATH,
    INDEX_DIRECTORY,
    ROOT,
    SEGMENTS_DIRECTORY,
    take_lock,
    write_layout,
)
from storage.records import (
    FORMAT,
    EpochEnded,
    EpochStarted,
    SegmentRow,
    encode,
)
from storage.repair_doubts import Doubts, Look
from storage.repair_ids import RepairIds
from storage.repair_outcome import RepairOutcome
from storage.restatement import Restatement
from storage.rows import (
    APPLIED_SEQUENCE,
    EPOCH,
    RESERVED_IDS,
    all_rows,
    decode_segment,
)
from storage.segment_files import segment_path
from storage.standing_losses import keep_losses, standing_losses
from storage.types import Location, Stream

SUPERSEDED: Final = (
    "changes that it does not know are lost, and may have replaced what it has of clean objects"
)

DELTA_ROWS: Final = 1000
LOST_SEQUENCES: Final = 1 << 20
"""By so much sequences go on behind what is known, where a part of the journal that may have given some is lost."""

_epoch_decoder: Final[msgspec.msgpack.Decoder[EpochStarted | EpochEnded]] = msgspec.msgpack.Decoder(
    EpochStarted | EpochEnded
)


class RepairHome(IndexHome, Protocol):
    """Where the index lives, as a repair needs it."""

    def set_aside(self, place: str) -> int:
        """Move the index, whatever state it is in, to a place in the cache directory, durably; give its size in bytes, 0 for none."""
        ...


class Refetch(Protocol):
    """Fetches clean bytes that were dropped into an index that is open; blocks."""

    def __call__(self, index: Index, damages: Sequence[Damage]) -> int:
        """Give how many of the places were fetched."""
        ...


@dataclass(frozen=True, slots=True)
class RepairParts:
    """What a repair works with.

    Attributes:
        origin: The origin's endpoint, for a directory whose FORMAT is lost; "" where it was not said.
        look: None where the origin is not to be asked.
        label: Names the directory of what is kept aside.
    """

    filesystem: Filesystem
    copies: IndexCopies
    home: RepairHome
    origin: str
    look: Look | None
    label: str
    say: Callable[[str], None] = lambda _line: None
    progress: Callable[[int, int], None] = lambda _done, _total: None
    refetch: Refetch | None = None


def repair(parts: RepairParts, *, is_dry: bool = False) -> RepairOutcome:
    """Repair a cache directory; with `is_dry`, say what a repair would do. Blocks for as long as it takes to read everything.

    Raises:
        LockedError: A gateway has the directory open.
        FormatError: A newer program wrote it.
        DamagedError: Nothing says whose directory it is, or the files of an unfinished repair are damaged themselves.
        DiskFullError, DiskFailedError: The disk refused. The repair can be repeated; nothing is lost by it.
    """
    outcome = RepairOutcome(parts.say, is_dry)
    try:
        if not _is_cache_directory(parts.filesystem):
            outcome.report.note(
                FORMAT_PATH, "is missing: this is no cache directory, or one that was never used"
            )
            return outcome
        lock = take_lock(parts.filesystem)
        try:
            _Repair(parts, outcome).run()
        finally:
            lock.close()
    except OSError as error:
        raise disk_error(error, "repair") from error
    return outcome


def _is_cache_directory(filesystem: Filesystem) -> bool:
    names = filesystem.list_directory(ROOT)
    return FORMAT_PATH in names or (
        JOURNAL_DIRECTORY in names and bool(filesystem.list_directory(JOURNAL_DIRECTORY))
    )


class _Repair:
    """One repair under way."""

    def __init__(self, parts: RepairParts, outcome: RepairOutcome) -> None:
        self._parts = parts
        self._filesystem = parts.filesystem
        self._outcome = outcome
        self._aside = Aside(parts.filesystem, parts.label)

    def run(self) -> None:
        self._outcome.standing = standing_losses(self._filesystem)
        if not self._finish_unfinished():
            return
        parts = self._parts
        surveyor = Surveyor(parts.filesystem, parts.copies, origin=parts.origin, progress=parts.progress)
        survey = surveyor.survey()
        self._outcome.report = survey.report
        try:
            self._put_in_order(survey)
        finally:
            survey.close()
            self._outcome.aside = self._aside.kept

    def _finish_unfinished(self) -> bool:
        """Do step 1; False where only a real repair can go on."""
        prepared = unfinished_replacement(self._filesystem)
        if prepared is None:
            return True
        if not is_prepared_whole(self._filesystem, prepared):
            raise DamagedError(
                f"{prepared}, of a repair that was cut short, is damaged: put the files in quarantine/ back by hand"
            )
        self._outcome.step(f"finish a repair that was cut short: {prepared} becomes the journal")
        if self._outcome.is_dry:
            return False
        finish_replacement(self._filesystem, prepared, self._aside)
        return True

    def _put_in_order(self, survey: Survey) -> None:
        self._outcome.lost = survey.lost
        self._outcome.has_more = len(survey.damages) >= DAMAGES_MAX
        has_changed = Doubts(survey, self._parts.look, self._outcome).settle()
        if not self._outcome.is_dry:
            keep_losses(
                self._filesystem,
                self._aside,
                self._outcome.standing,
                survey.lost.lines,
                survey.lost.count,
            )
        strange = survey.journal.foreign + survey.journal.unreadable
        is_restated = has_changed or bool(survey.refusal) or bool(strange) or survey.has_lost_changes
        index_why = survey.index_why or (SUPERSEDED if survey.has_lost_changes else "")
        if survey.has_lost_changes:
            # Before the journal is sound again: a start would remove them.
            self._keep_orphans(survey)
        if is_restated:
            self._restate_journal(survey)
        if not survey.has_format:
            self._write_format(survey)
        if index_why and (survey.has_index or survey.journal.files):
            self._rebuild_index(survey, index_why)
            return
        if is_restated:
            self._bring_up_index(survey)
        self._drop_clean(survey)

    # --- 4 and 5: journal and segments ----------------------------------------------------------------------------------------------

    def _keep_orphans(self, survey: Survey) -> None:
        """Keep segments that a start removes, as no dirty row names them, where bodies of lost changes may be in them."""
        excluded = set()
        for _, value in all_rows(survey.index, Family.SEGMENTS):
            row = decode_segment(value)
            if row.dirty_bytes or row.stream == Stream.CLEAN or self._is_full(row):
                excluded.add(row.segment_id)
        orphans = sorted(survey.places.segment_ids - excluded)
        if not orphans:
            return
        self._outcome.step(
            f"keep {len(orphans)} segments that no dirty row names: bodies of lost changes may be in them"
        )
        if self._outcome.is_dry:
            return
        for segment_id in orphans:
            self._aside.move(segment_path(segment_id))
        self._filesystem.sync_directory(SEGMENTS_DIRECTORY)

    def _is_full(self, row: SegmentRow) -> bool:
        """Whether rows name all bytes of a segment: then no other body is in it."""
        if not row.live_bytes:
            return False
        try:
            file = self._filesystem.open_reader(segment_path(row.segment_id))
        except FileNotFoundError:
            return False
        try:
            return file.size() <= row.live_bytes
        finally:
            file.close()

    def _restate_journal(self, survey: Survey) -> None:
        outcome = self._outcome
        outcome.step(
            f"state the journal anew in one file and keep the {len(survey.journal.files)} old ones in quarantine/"
        )
        if outcome.is_dry:
            return
        ids = RepairIds(survey, self._filesystem)
        journal_ids = sorted(survey.places.journal_ids)
        rescue = BodyRescue(self._filesystem, survey.index, ids.take, _known_damage(survey.damages))
        rescue.empty(journal_ids)
        if rescue.moved:
            outcome.step(f"moved {rescue.moved} small bodies from the journal to segments")
        file_id = ids.take()
        last = _last_sequence(survey)
        _set_meta(survey.index, EPOCH, encode(_epoch(survey.index)))
        restated = Restatement(survey.index, last, ids.reservation())
        checkpoint = restated.checkpoint_sequence()
        header = JournalHeader(file_id, survey.layout.instance_id, 0, checkpoint)
        prepared = prepare_replacement(self._filesystem, header, restated.records())
        finish_replacement(self._filesystem, prepared, self._aside)
        _set_meta(survey.index, RESERVED_IDS, encode(ids.reservation()))
        _set_meta(survey.index, APPLIED_SEQUENCE, checkpoint.to_bytes(8))
        outcome.step(f"the journal is {journal_path(file_id)}, up to change {checkpoint}")

    def _write_format(self, survey: Survey) -> None:
        self._outcome.step(f"write FORMAT anew, for the origin {survey.layout.origin}")
        if self._outcome.is_dry:
            return
        if FORMAT_PATH in self._filesystem.list_directory(ROOT):
            self._aside.move(FORMAT_PATH)
        write_layout(self._filesystem, survey.layout)

    # --- 7: the index ------------------------------------------------------------------------------------------------

    def _bring_up_index(self, survey: Survey) -> None:
        """Write into the directory's index what the repair changed. Cut short, it is behind the journal, and is rebuilt."""
        self._outcome.step("bring the index up to the journal")
        if self._outcome.is_dry:
            return
        index = self._parts.home.open()
        try:
            batch: list[IndexWrite] = []
            for write in survey.index.changes():
                if len(batch) >= DELTA_ROWS and write.family is not Family.META:
                    index.write(batch)
                    batch = []
                batch.append(write)
            index.write(batch)
            index.checkpoint()
        finally:
            index.close()

    def _rebuild_index(self, survey: Survey, why: str) -> None:
        self._outcome.step(f"rebuild the index from the journal: {why}")
        if self._outcome.is_dry:
            return
        place = self._aside.place(INDEX_DIRECTORY)
        size_bytes = self._parts.home.set_aside(place)
        if size_bytes:
            self._aside.note(INDEX_DIRECTORY, place, size_bytes)
        self._filesystem.make_directory(INDEX_DIRECTORY)
        self._filesystem.sync_directory(ROOT)
        index = self._parts.home.open()
        try:
            replay_journal(self._filesystem, scan(self._filesystem), index)
            finish_rebuild(index, survey.layout)
            index.checkpoint()
        finally:
            index.close()

    # --- 8: clean bytes ----------------------------------------------------------------------------------------------

    def _drop_clean(self, survey: Survey) -> None:
        """Drop clean bytes that do not read back."""
        damages = [damage for damage in survey.damages if not damage.is_dirty and damage.extent is not None]
        if not damages:
            return
        self._outcome.step(
            f"drop {len(damages)} damaged places of clean bytes; they are fetched when asked for"
        )
        self._outcome.dropped_clean = len(damages)
        if self._outcome.is_dry:
            return
        index = self._parts.home.open()
        try:
            for damage in damages:
                assert damage.extent is not None, f"{damage} has no place"
                owner = damage.owner
                change = DropExtents(owner.bucket, owner.key, owner.version_id, (damage.extent.location,))
                write_change(index, change)
            if self._parts.refetch is not None:
                self._outcome.refetched = self._parts.refetch(index, damages)
                self._outcome.step(f"fetched {self._outcome.refetched} of them from the origin")
            index.checkpoint()
        finally:
            index.close()


def _last_sequence(survey: Survey) -> int:
    """Give the highest sequence that may have been given."""
    knowledge = survey.knowledge
    last = max(survey.journal.last_sequence, knowledge.applied_sequence)
    is_open = any(hole.last is None for hole in knowledge.holes) or not survey.journal.files
    return last + (LOST_SEQUENCES if is_open else 0)


def _epoch(index: Index) -> EpochStarted:
    """Let the next start count as one after an unclean stop."""
    value = index.get(Family.META, EPOCH)
    if value is None:
        return EpochStarted(FORMAT, 1, 1)
    epoch = _epoch_decoder.decode(value)
    return EpochStarted(FORMAT, epoch.epoch, epoch.trusted_epoch)


def _known_damage(damages: Sequence[Damage]) -> Callable[[Location], bool]:
    """Say of a place whether its bytes are among what is damaged; where there is too much to know all of it, any may be."""
    known = {
        (damage.extent.location.segment_id, damage.extent.location.offset)
        for damage in damages
        if damage.extent is not None
    }
    has_more = len(damages) >= DAMAGES_MAX
    return lambda place: has_more or (place.segment_id, place.offset) in known


def _set_meta(index: Index, key: bytes, value: bytes) -> None:
    index.write([IndexWrite(Family.META, key, value)])
