"""Training reads a dataset larger than the cache once an epoch: an engine keeps a share of it that stays, and serves the right bytes."""

import random

import pytest

from storage.types import KIB, MIB, CacheResult
from tests.fakes.row_invariants import check_rows
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine

ITEMS = 512
ITEM_BYTES = 64 * KIB
CACHE_BYTES = 16 * MIB
"""Half of all items: what holds still is 14 of its 16 segments, as two are kept free, and one of those is open."""

EPOCHS = 4


def content(number: int) -> bytes:
    """Give an item's bytes, like no other's."""
    return random.Random(number).randbytes(1 * KIB) * (ITEM_BYTES // KIB)


async def epoch(running: RunningEngine, draws: random.Random) -> float:
    """Read all items in an order of its own; give the share of hits."""
    order = list(range(ITEMS))
    draws.shuffle(order)
    hits = 0
    for number in order:
        got = await running.get(f"data/{number}")
        assert got.data == content(number)
        hits += got.result is CacheResult.HIT
    await running.fills_ended()
    return hits / ITEMS


@pytest.mark.slow
async def test_shuffled_epochs_hit_most_of_what_is_possible() -> None:
    """From the third epoch on the engine hits most of C/N, where one that keeps what was read last hits 0.15 of all at C/N = 0.5."""
    draws = random.Random(5)
    async with running_engine(cache_bytes=CACHE_BYTES) as running:
        for number in range(ITEMS):
            running.origin.store.put(BUCKET, f"data/{number}", content(number))

        ratios = [await epoch(running, draws) for _ in range(EPOCHS)]

        stats = running.engine._parts.stats
        assert min(ratios[2:]) > 0.3, ratios
        assert stats.bypassed_bytes > stats.admitted_bytes
        check_rows(running.engine._recovered.index)
