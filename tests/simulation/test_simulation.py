"""The flush of a whole engine, simulated on virtual time: a thousand seeds in the gate, as many as one likes by hand.

FOREBAY_SEED=4711 pytest tests/simulation -k seeds          replays one, with the story of the key that went wrong
FOREBAY_SEEDS=20000 pytest tests/simulation -k seeds -n 2   runs so many; FOREBAY_FIRST_SEED=1000 begins elsewhere
"""

import gc
import os
from collections.abc import Iterator

import pytest

from tests.simulation.planted import PLANTS, Plant
from tests.simulation.world import ViolationError, World

SEEDS = int(os.environ.get("FOREBAY_SEEDS") or ("10000" if os.environ.get("FOREBAY_TEST_LONG") else "1000"))
FIRST_SEED = int(os.environ.get("FOREBAY_FIRST_SEED") or "0")
ONE_SEED = os.environ.get("FOREBAY_SEED", "")
FOUND = (10106, 10184, 10598, 12846, 16278, 19446, 27844)
"""Beyond the gate's seeds: a HEAD's 404 while its bucket was away, and uploads that were opened at the moment of a kill."""
SEEDS_A_TEST = 25
PLANTS_IN_THE_GATE = 4
PLANTED = PLANTS if os.environ.get("FOREBAY_TEST_LONG") else PLANTS[:PLANTS_IN_THE_GATE]


def _starts() -> list[range]:
    """Give the seeds of each test, few enough that workers share them evenly."""
    if ONE_SEED:
        return [range(int(ONE_SEED), int(ONE_SEED) + 1)]
    last = FIRST_SEED + SEEDS
    return [range(seed, min(seed + SEEDS_A_TEST, last)) for seed in range(FIRST_SEED, last, SEEDS_A_TEST)]


@pytest.fixture(autouse=True)
def _rare_collections() -> Iterator[None]:
    """Collect garbage once a test: a seed makes many objects that live for its time."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def live(seed: int) -> list[str]:
    """Run a seed; a failure says how to replay it."""
    try:
        return World(seed).run()
    except Exception as error:
        raise AssertionError(
            f"replay with: FOREBAY_SEED={seed} .venv/bin/python -m pytest tests/simulation -k seeds\n{error!s}"
        ) from error


@pytest.mark.parametrize("seeds", _starts(), ids=lambda seeds: f"{seeds.start}-{seeds.stop - 1}")
def test_every_acknowledged_state_arrives_when_seeds_are_simulated(seeds: range) -> None:
    """Through outages, lost answers, late landings, refusals, kills and power cuts every invariant of the world holds.

    Per key the order is kept, the newest state wins, no tombstone is lost, no dirty byte is reclaimed, retries are bounded.
    """
    for seed in seeds:
        live(seed)


@pytest.mark.parametrize("seed", FOUND)
def test_seeds_that_found_something_are_lived_through(seed: int) -> None:
    """What one in a thousand seeds has shown stays mended."""
    live(seed)


def test_same_seed_same_trace() -> None:
    """A seed decides everything, so a failure can be replayed; other seeds are other traces."""
    traces = [live(seed) for seed in (7, 7, 8, 9, 9)]

    assert traces[0] == traces[1]
    assert traces[3] == traces[4]
    assert len({"\n".join(trace) for trace in traces}) == 3
    assert len(traces[0]) > 10


@pytest.mark.slow
@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_planted_bug_is_found_within_the_gates_seeds(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation finds what it is for: a bug put into the flush shows within a few of the seeds."""
    plant(monkeypatch)

    found: list[str] = []
    for seed in range(150):
        try:
            World(seed).run()
        except ViolationError as violation:
            found.append(str(violation))
            break

    assert found, f"{plant.__name__} was not found"
