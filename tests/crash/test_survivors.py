"""Power cuts and kills anywhere while reclaim writes again what a segment keeps: copies, rows, the segment's end.

The load is that of `test_power_cut.py`, with a policy that draws what is kept, so that most rounds of reclaim rewrite something. The same
holds as there: what was acknowledged is there, and where a block has its checksum its bytes are the object's. What was clean may be lost,
and is: blocks of clean segments go bad all the time.

    FOREBAY_SEED=7 FOREBAY_CUTS=300 pytest tests/crash/test_survivors.py
"""

import os
import random
from collections.abc import Callable, Sequence
from contextlib import suppress

import pytest

from storage.cached import CleanMove, MoveClean
from storage.checksums import checksums
from storage.mutations import move
from storage.records import ResidentRow
from storage.rows import Rows
from storage.segments import Reservation, segment_path
from storage.survivors import Survivors, _Found
from storage.types import MIB, Extent, Location
from tests.crash.load import Cutter, Run
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.keeping_policy import KeepingPolicy
from tests.fakes.open_directory import OpenDirectory

SEED = int(os.environ.get("FOREBAY_SEED", "1"))
IS_LONG = os.environ.get("FOREBAY_TEST_LONG", "") not in {"", "0"}
CUTS = int(os.environ.get("FOREBAY_CUTS", "1600" if IS_LONG else "200"))
RUNS = 4
PLANTED_RUNS = 4
PLANTED_CUTS = 100
CHANCE = 0.02


def rot(directory: OpenDirectory) -> None:
    """Let a block of each segment without dirty bytes go bad, now and then, before reclaim looks for what may go."""
    draws, round_of_reclaim = random.Random(SEED), directory.reclaim.round
    filesystem = directory.filesystem
    assert isinstance(filesystem, FakeFilesystem)

    async def rotting_round() -> None:
        for segment_id, row in directory.state.segments.items():
            if row.live_bytes > 0 and row.dirty_bytes == 0 and draws.random() < 0.2:
                with suppress(FileNotFoundError):
                    data = bytearray(filesystem.contents(segment_path(segment_id)))
                    place = draws.randrange(len(data) + 1)
                    data[place : place + 4096] = bytes(len(data[place : place + 4096]))
                    filesystem.replace_contents(segment_path(segment_id), data)
        await round_of_reclaim()

    directory.reclaim.round = rotting_round  # type: ignore[method-assign]  # what disks do


def run(
    seed: int,
    cuts: int,
    chance: float = CHANCE,
    plant: Callable[[OpenDirectory], None] = lambda _directory: None,
) -> tuple[Cutter, int]:
    """Make cuts in one load; give what they showed, and how many bytes reclaim wrote again meanwhile."""
    opened: list[OpenDirectory] = []

    def note(directory: OpenDirectory) -> None:
        opened.append(directory)
        rot(directory)
        plant(directory)

    cutter = Run(
        seed,
        cuts,
        chance,
        steps=60,
        plant=note,
        policy=KeepingPolicy,
        room_bytes_min=6 * MIB,
        keys_a_client=12,
        dirty_bytes_max=MIB,
    ).start()
    return cutter, sum(one.reclaim._parts.stats.rewritten_bytes for one in opened)


@pytest.mark.slow
@pytest.mark.timeout(3600 if IS_LONG else 180)
@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
def test_directory_when_power_is_cut_while_survivors_move(seed: int) -> None:
    """Every image starts; nothing acknowledged is lost; no block with its checksum has another object's bytes; rows agree."""
    cutter, rewritten_bytes = run(seed, CUTS // RUNS)

    assert not cutter.violation, f"seed {seed}: {cutter.violation}"
    assert cutter.cuts == CUTS // RUNS
    assert rewritten_bytes > 0


# --- planted bugs: what the test above is worth ----------------------------------------------------------------------


def shown(plant: Callable[[OpenDirectory], None] = lambda _directory: None) -> str:
    """Say what the first of a few runs that shows a planted bug says of it; nothing where none does."""
    for seed in range(SEED, SEED + PLANTED_RUNS):
        cutter, _ = run(seed, PLANTED_CUTS, CHANCE, plant)
        if cutter.violation:
            return cutter.violation
    return ""


def test_cuts_when_survivors_get_new_checksums(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that a power cut damaged, carried on with checksums of what was read instead of the row's, are found."""

    def copy(self: Survivors, one: _Found, places: Sequence[Reservation]) -> CleanMove:
        old, new, done = one.extent.location, [], 0
        for place in places:
            data = self._segments.read(old, done, done + place.length).ljust(place.length, b"\0")
            self._segments.write(place, 0, data)
            new.append(Location(place.segment_id, place.offset, place.length, checksums(data)))
            done += place.length
        return CleanMove(one.resident, old, tuple(new))

    monkeypatch.setattr(Survivors, "_copy", copy)

    assert "wrong bytes with a right checksum" in shown()


def test_cuts_when_dirty_bytes_move_like_clean_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Moving dirty bytes to a place that nobody syncs and the journal does not name, and then giving up their segment, is found."""

    def plant(directory: OpenDirectory) -> None:
        reclaim = directory.reclaim
        reclaim._is_clean = lambda state: state.is_sealed and state.is_settled  # type: ignore[method-assign]

    def extent(self: Survivors, resident: ResidentRow) -> Extent | None:
        rows = Rows(self._index)
        record = None if resident.upload_id else rows.object(resident.bucket, resident.key)
        if record is None or record.version_id != resident.version_id:
            return None
        return next((one for one in rows.extents_of(record) if one.start == resident.start), None)

    def unguarded(_self: MoveClean, rows: Rows, one: CleanMove) -> bool:
        return move(rows, one.resident, one.old, one.new)

    monkeypatch.setattr(Survivors, "_extent", extent)
    monkeypatch.setattr(MoveClean, "_move", unguarded)

    assert "acknowledged bytes" in shown(plant)
