"""Power cuts and kills anywhere: what was acknowledged is there, bit for bit, and nothing that was superseded comes back.

A failure prints its seed and the number of its cut; the same seed gives the same run:

    FOREBAY_SEED=7 FOREBAY_CUTS=300 pytest tests/crash/test_power_cut.py

FOREBAY_TEST_LONG=1 makes ten times as many cuts.
"""

import os
from collections.abc import Callable, Sequence

import msgspec
import pytest

from storage import ids, recovery
from storage.applier import write_group
from storage.cached import DropSegment
from storage.journal_scan import scan
from storage.reclaim import Reclaim
from storage.records import FORMAT, EpochEnded, IdsReserved, decode_mutation
from storage.rows import Rows
from tests.crash.load import Cutter, Run
from tests.fakes.open_directory import OpenDirectory

SEED = int(os.environ.get("FOREBAY_SEED", "1"))
IS_LONG = os.environ.get("FOREBAY_TEST_LONG", "") not in {"", "0"}
CUTS = int(os.environ.get("FOREBAY_CUTS", "2000" if IS_LONG else "160"))
RUNS = 4
PLANTED_CUTS_MAX = 400


def explained(cutter: Cutter, seed: int) -> str:
    """Say how to see it again."""
    return f"seed {seed}: {cutter.violation}\nFOREBAY_SEED={seed} FOREBAY_CUTS={CUTS} pytest tests/crash"


@pytest.mark.timeout(3600 if IS_LONG else 120)
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
    is_deaf: Callable[[str], bool] = lambda _path: False,
    plant: Callable[[OpenDirectory], None] = lambda _directory: None,
) -> bool:
    """Whether any of a few runs shows a planted bug."""
    runs = [
        Run(seed, PLANTED_CUTS_MAX // RUNS, chance, is_deaf=is_deaf, plant=plant)
        for seed in range(SEED, SEED + RUNS)
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

    # Cuts after the stop only, so that there are many stops.
    assert is_found(plant=plant, chance=0.0)


def test_cuts_when_ids_are_used_before_they_are_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ids that are handed out above what the journal has reserved are found."""
    monkeypatch.setattr(ids, "VERSION_IDS_BLOCK", 2)

    def plant(directory: OpenDirectory) -> None:
        directory.recovered.ids.adopt(IdsReserved(FORMAT, 1 << 40, 1 << 40))

    assert is_found(plant=plant)
