"""Power cuts and kills anywhere: what was acknowledged is there, bit for bit, and nothing that was superseded comes back.

A failure prints its seed and the number of its cut; the same seed gives the same run:

    FOREBAY_SEED=7 FOREBAY_CUTS=300 pytest tests/crash/test_power_cut.py

FOREBAY_TEST_LONG=1 makes eight times as many cuts. Each seed is a test of its own, so that they run beside each other.
"""

import os
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec
import pytest

from storage import ids, recovery
from storage.applier import write_group
from storage.cached import DropSegment
from storage.compaction import Compaction
from storage.journal_files import remove_files
from storage.journal_log import SealedFile
from storage.journal_scan import scan
from storage.reclaim import Reclaim
from storage.records import FORMAT, EpochEnded, IdsReserved, decode_mutation
from storage.rows import Rows
from storage.segments import segment_path
from tests.crash.load import Cutter, Run
from tests.fakes.open_directory import OpenDirectory
from tests.fakes.records import BUCKET

SEED = int(os.environ.get("FOREBAY_SEED", "1"))
IS_LONG = os.environ.get("FOREBAY_TEST_LONG", "") not in {"", "0"}
CUTS = int(os.environ.get("FOREBAY_CUTS", "5120" if IS_LONG else "640"))
RUNS = 8
PLANTED_RUNS = 4
PLANTED_CUTS_MAX = 400


def explained(cutter: Cutter, seed: int) -> str:
    """Say how to see it again."""
    return f"seed {seed}: {cutter.violation}\nFOREBAY_SEED={seed} FOREBAY_CUTS={CUTS} pytest tests/crash"


@pytest.mark.slow
@pytest.mark.timeout(3600 if IS_LONG else 180)
@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
def test_directory_when_power_is_cut_anywhere(seed: int) -> None:
    """Every image starts; every acknowledged object and part is there; tombstones stay; ids are new; no dirty byte is lost."""
    cutter = Run(seed, CUTS // RUNS).start()

    assert not cutter.violation, explained(cutter, seed)
    assert cutter.cuts == CUTS // RUNS


# --- planted bugs: what the test above is worth ----------------------------------------------------------------------


def is_found(
    *,
    chance: float = 0.1,
    steps: int = 25,
    is_deaf: Callable[[str], bool] = lambda _path: False,
    is_index_deaf: bool = False,
    forgets_renames: bool = False,
    plant: Callable[[OpenDirectory], None] = lambda _directory: None,
) -> bool:
    """Whether any of a few runs shows a planted bug."""
    runs = [
        Run(
            seed,
            PLANTED_CUTS_MAX // PLANTED_RUNS,
            chance,
            steps,
            is_deaf=is_deaf,
            is_index_deaf=is_index_deaf,
            forgets_renames=forgets_renames,
            plant=plant,
        )
        for seed in range(SEED, SEED + PLANTED_RUNS)
    ]
    return any(run.start().violation for run in runs)


@pytest.mark.parametrize(
    "deaf_path", ["segments/", "journal/", "segments", "journal"], ids=["bodies", "records", "names", "files"]
)
def test_cuts_when_something_is_not_synced(deaf_path: str) -> None:
    """Leaving out the sync of bodies, of the journal, or of the names of either is found."""

    def is_deaf(path: str) -> bool:
        return path.startswith(deaf_path) if deaf_path.endswith("/") else path == deaf_path

    assert is_found(is_deaf=is_deaf)


def test_cuts_when_a_rename_is_not_synced() -> None:
    """Leaving out the sync of the directory after a rename alone, as of a new journal file, is found."""
    assert is_found(forgets_renames=True)


def test_cuts_when_an_index_checkpoint_is_claimed_and_not_made() -> None:
    """A checkpoint that returns before the rows are durable is found: a clean stop vouches for what is cached."""
    # Cuts after the stop only, and short loads, so that there are many stops.
    assert is_found(is_index_deaf=True, chance=0.0, steps=8)


def test_cuts_when_segments_go_before_the_confirmation_is_durable() -> None:
    """Unlinking a segment as soon as the origin has its bytes, before the journal says so, is found."""

    def plant(directory: OpenDirectory) -> None:
        flush = directory.flush

        async def flush_early(key: str) -> int:
            record = Rows(directory.index).object(BUCKET, key)
            named = {extent.location.segment_id for extent in record.extents} if record else set()
            for segment_id in named:
                with suppress(FileNotFoundError):
                    directory.filesystem.unlink(segment_path(segment_id))
            return await flush(key)

        directory.flush = flush_early  # type: ignore[method-assign]  # the planted bug

    assert is_found(plant=plant)


def test_cuts_when_journal_files_go_before_the_compacted_one_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unlinking what a compaction replaces before the new file has its name, synced, is found."""
    original = Compaction._write

    def write_late(self: Compaction, sealed: Sequence[SealedFile], segment_id: int, sequence: int) -> int:
        records = list(self._live_records(sealed))
        remove_files(self._filesystem, [file.path for file in sealed])
        monkeypatch.setattr(Compaction, "_live_records", lambda _self, _sealed: iter(records))
        return original(self, sealed, segment_id, sequence)

    monkeypatch.setattr(Compaction, "_write", write_late)

    assert is_found()


def test_cuts_when_start_does_not_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that acts upon what it read, without making it durable, is found."""
    monkeypatch.setattr(recovery, "settle", scan)

    assert is_found()


def test_cuts_when_dirty_segments_are_reclaimed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Giving up a dirty byte for room is found."""
    monkeypatch.setattr(Reclaim, "_is_clean", lambda _self, state: state.is_sealed and state.is_settled)
    original = DropSegment.__call__

    def drop(self: DropSegment, rows: Rows) -> bool:
        row = rows.segment(self.segment_id)
        if row is not None:
            rows.put_segment(msgspec.structs.replace(row, dirty_bytes=0))
        return original(self, rows)

    monkeypatch.setattr(DropSegment, "__call__", drop)
    monkeypatch.setattr(DropSegment, "_drop", lambda _self, _rows, _owner: None)

    assert is_found()


def test_cuts_when_index_goes_ahead_of_the_journal() -> None:
    """Applying a group before its journal record is synced is found."""

    def plant(directory: OpenDirectory) -> None:
        journal = directory.journal
        append = journal.append

        def append_late(first_sequence: int, mutations: Sequence[bytes], bodies: Sequence[bytes]) -> None:
            group = [(first_sequence + n, decode_mutation(data)) for n, data in enumerate(mutations)]
            write_group(directory.home.index, group)
            append(first_sequence, mutations, bodies)

        journal.append = append_late  # type: ignore[method-assign]  # the planted bug

    assert is_found(plant=plant)


def test_cuts_when_a_clean_stop_vouches_for_too_much() -> None:
    """A stop that says "clean" before the changes to clean rows are durable is found."""

    def plant(directory: OpenDirectory) -> None:
        async def stop() -> None:
            recovered = directory.recovered
            await directory.commit.commit(EpochEnded(FORMAT, recovered.epoch, recovered.trusted_epoch))

        directory.stop = stop  # type: ignore[method-assign]  # the planted bug

    # Cuts after the stop only, and short loads, so that there are many stops.
    assert is_found(plant=plant, chance=0.0, steps=8)


def test_cuts_when_ids_are_used_before_they_are_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that are handed out above what the journal has reserved are found."""
    monkeypatch.setattr(ids, "VERSION_IDS_BLOCK", 2)

    def plant(directory: OpenDirectory) -> None:
        directory.recovered.ids.adopt(IdsReserved(FORMAT, 1 << 40, 1 << 40))

    assert is_found(plant=plant)
