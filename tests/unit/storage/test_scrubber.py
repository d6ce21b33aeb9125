"""The scrub's steps are small: the event loop reads no rows, and what is held is bounded."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ParamSpec, TypeVar, cast

from storage.applier import write_group
from storage.records import FORMAT, Put
from storage.scrubber import TARGETS_STEP, Scrubber, ScrubParts
from storage.segments import SegmentLimits, SegmentStore
from storage.stats import Stats
from storage.types import MIB, Extent, Location
from tests.fakes import records
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.index import FakeIndex
from tests.fakes.ledger_harness import HookedIndex

P = ParamSpec("P")
T = TypeVar("T")

PLACE_BYTES = 1000
PLACES = 500


class Pool:
    """Runs calls inline and knows that it does; takes every block for right."""

    def __init__(self) -> None:
        self.is_running = False
        self.places_read: list[tuple[int, int]] = []

    async def run(self, call: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a call, but for the reading of a block."""
        if isinstance(args[0], Location):
            self.places_read.append((args[0].segment_id, args[0].offset))
            return cast("T", "")
        self.is_running = True
        try:
            return call(*args, **kwargs)
        finally:
            self.is_running = False

    def close(self) -> None:
        """Nothing is open."""


def index_of_large_objects() -> FakeIndex:
    """Make two dirty objects of very many places each."""
    index = FakeIndex()
    for number in (1, 2):
        extents = tuple(
            Extent(at, at + PLACE_BYTES, Location(number, at, PLACE_BYTES, bytes(8)))
            for at in range(0, PLACES * PLACE_BYTES, PLACE_BYTES)
        )
        entry = records.entry(f"key-{number}", number, sequence=number, size=PLACES * PLACE_BYTES)
        write_group(index, [(number, Put(FORMAT, records.record(number, extents), entry))])
    return index


async def test_a_step_is_bounded_and_off_the_loop_however_large_an_object_is() -> None:
    """All rows are read on the pool, few places are held at a time, and each is read once a round."""
    pool, now = Pool(), [1000.0]
    reads_on_loop = 0

    def before_read() -> None:
        nonlocal reads_on_loop
        reads_on_loop += not pool.is_running

    parts = SimpleNamespace(
        index=HookedIndex(index_of_large_objects(), before_read),
        segments=SegmentStore(FakeFilesystem(), SegmentLimits(MIB, 64 * MIB), lambda: 9),
        state=SimpleNamespace(live_bytes=0),
        workers=pool,
        clock=SimpleNamespace(monotonic_s=lambda: now[0], wall_s=lambda: now[0]),
        stats=Stats(),
        bytes_per_s=64 * MIB,
    )
    scrubber = Scrubber(cast("ScrubParts", cast("Any", parts)))
    held = 0
    for _ in range(100):
        now[0] += 0.25
        await scrubber.turn()
        held = max(held, len(scrubber._targets))
        if parts.stats.scrub_rounds:
            break

    wanted = [(number, at * PLACE_BYTES) for number in (1, 2) for at in range(PLACES)]
    assert pool.places_read == wanted
    assert reads_on_loop == 0
    assert 0 < held <= 2 * TARGETS_STEP
