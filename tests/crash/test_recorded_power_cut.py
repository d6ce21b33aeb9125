"""Power cuts over a real file system and RocksDB, by recording every call of an engine under load.

FOREBAY_SEED=7 FOREBAY_CUTS=300 pytest tests/crash/test_recorded_power_cut.py
"""

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.types import MIB
from tests.crash.expectation import ViolationError
from tests.crash.recorded import Cuts, Recorded, record
from tests.fakes.recording import Opened, SyncBegun, SyncEnded

SEED = int(os.environ.get("FOREBAY_SEED", "1"))
IS_LONG = os.environ.get("FOREBAY_TEST_LONG", "") not in {"", "0"}
CUTS = int(os.environ.get("FOREBAY_CUTS", "1000" if IS_LONG else "160"))
CUTS_OF_ALL_KINDS = 100
KINDS = 4
"""No index, one of an earlier checkpoint, one since the last, and a start that was cut as well."""

RUNS = 2
STEPS = 40
PLANTED_CUTS = 100
IMAGE_ROOM_BYTES = 256 * MIB

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if IS_LONG else 180)]


@pytest.fixture
def images(tmp_path: Path) -> Iterator[Path]:
    """Give a directory for images, which need not outlast a power cut themselves: in memory where there is room."""
    memory = Path("/dev/shm")
    has_room = memory.is_dir() and shutil.disk_usage(memory).free > IMAGE_ROOM_BYTES
    with tempfile.TemporaryDirectory(dir=memory if has_room else tmp_path) as directory:
        yield Path(directory)


def places(recorded: Recorded, draws: random.Random, count: int) -> list[int]:
    """Draw places of a log, in order."""
    return sorted(draws.randrange(len(recorded.log.events)) for _ in range(count))


@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
async def test_real_directory_when_power_is_cut_anywhere(seed: int, tmp_path: Path, images: Path) -> None:
    """Every image opens with real files and RocksDB; every acknowledged write is there or at the origin; nothing older comes back."""
    recorded, draws = await record(tmp_path, seed, STEPS), random.Random(seed)
    cuts = Cuts(recorded, images, draws)

    cuts.run(places(recorded, draws, CUTS // RUNS))

    assert cuts.done == CUTS // RUNS
    assert len(cuts.kinds) == KINDS or CUTS < CUTS_OF_ALL_KINDS, cuts.kinds


async def test_real_directory_when_something_is_not_synced(tmp_path: Path, images: Path) -> None:
    """Leaving out the sync of bodies, of the journal, or of the names of either is found."""
    recorded = await record(tmp_path, SEED, STEPS)
    unseen = []
    for what in ("segments/", "journal/", "segments", "journal"):
        draws = random.Random(SEED)
        planted = without_syncs(recorded, what)
        try:
            Cuts(planted, images, draws).run(places(planted, draws, PLANTED_CUTS))
        except ViolationError:
            continue
        unseen.append(what)

    assert unseen == []


def without_syncs(recorded: Recorded, what: str) -> Recorded:
    """Take the syncs of a directory, or of all files in it where `what` ends in a slash, out of a log."""
    events = recorded.log.events
    paths = {event.handle: event.path for event in events if isinstance(event, Opened)}
    left_out = {
        event.sync
        for event in events
        if isinstance(event, SyncBegun)
        and (paths.get(event.handle, "").startswith(what) if what.endswith("/") else event.path == what)
    }
    planted = Recorded(bodies=recorded.bodies)
    planted.log.events = [
        event for event in events if not (isinstance(event, SyncBegun | SyncEnded) and event.sync in left_out)
    ]
    return planted
