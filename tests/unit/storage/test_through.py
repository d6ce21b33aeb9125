"""The turn of a passed-through operation, over doubles that write down what was done in which order."""

import asyncio
from collections.abc import Callable

import pytest

from storage.cached import ForgetClean
from storage.commit import Receipt
from storage.errors import (
    OriginRefusedError,
    OriginUnavailableError,
    QuarantinedError,
    ReadOnlyError,
    UnknownOutcomeError,
)
from storage.generations import Generations
from storage.keyqueue import KeyQueue, Turn
from storage.late_landings import LateLandings
from storage.policy import Freshness, FreshnessMode, Policy, PolicyTable
from storage.records import FORMAT, DirtyEntry, Discarded, Forgotten, Mutation
from storage.through import Through
from storage.types import ObjectName
from tests.fakes.writing import pause

NAME = ObjectName("b", "k")
ENTRY = DirtyEntry(FORMAT, 7, "b", "k", 0, 1, 5, "", 0.0)


class Bench:
    """Everything around a Through; `done` says what happened."""

    def __init__(self, *, freshness: FreshnessMode = FreshnessMode.TTL) -> None:
        self.done: list[str] = []
        self.entry: DirtyEntry | None = None
        self.refusal = ""
        self.landing: asyncio.Event | None = None
        self.flush_error: Exception | None = None
        self.read_only: set[ObjectName] = set()
        self.queue = KeyQueue()
        self.generations = Generations()
        table = PolicyTable(default=Policy(freshness=Freshness(mode=freshness)))
        self.through = Through(
            queue=self.queue,
            generations=self.generations,
            applier=self,  # type: ignore[arg-type]  # a double of the part that is used
            commit=self,  # type: ignore[arg-type]  # likewise
            flusher=self,
            policies=lambda: table,
            check_writable=self.check_writable,
            landings=LateLandings(),
            wall_s=lambda: 1000.0,
        )

    # --- the parts ---

    def check_writable(self, name: ObjectName) -> None:
        """Refuse what became read-only."""
        if name in self.read_only:
            raise ReadOnlyError(f"{name} is read-only")

    def check_open(self) -> None:
        """The index takes changes."""

    async def change(self, change: Callable[[object], object]) -> object:
        """Write down a change of clean rows."""
        assert isinstance(change, ForgetClean)
        await pause()
        self.done.append("forget")
        return True

    async def commit(self, mutation: Mutation) -> Receipt:
        """Write down a commit."""
        assert isinstance(mutation, Discarded | Forgotten)
        self.done.append(type(mutation).__name__.lower())
        return Receipt(1)

    def dirty_entry(self, name: ObjectName) -> DirtyEntry | None:
        """Give the entry."""
        assert name == NAME
        return self.entry

    async def flush_key(self, name: ObjectName) -> None:
        """Flush in the key's queue, as the flusher does."""
        if self.flush_error is not None:
            raise self.flush_error
        async with self.queue.turn(name, Turn.FLUSH):
            await pause()
            self.done.append("flush")
            self.entry = None if not self.refusal else self.entry

    def quarantine_reason(self, name: ObjectName) -> str:
        """Give the reason."""
        assert name == NAME
        return self.refusal

    async def outlast_strays(self, name: ObjectName) -> None:
        """Wait as long as told."""
        assert name == NAME
        if self.landing is not None:
            await self.landing.wait()
            self.done.append("outlasted")

    def note_stray(self, name: ObjectName) -> None:
        """Write down a stray."""
        assert name == NAME
        self.done.append("stray")

    async def pass_through(self, *, replaces: bool = False, error: BaseException | None = None) -> None:
        """Pass an operation through that ends as told."""
        async with self.through.operation(NAME, replaces=replaces) as passed:
            self.done.append("operation")
            if error is not None:
                raise error

            async def keep() -> None:
                self.done.append("keep")

            passed.keep = keep


async def test_operation_forgets_then_keeps_when_the_key_is_clean() -> None:
    """What is kept of the operation comes behind the forgetting of what was there."""
    bench = Bench()

    await bench.pass_through()

    assert bench.done == ["operation", "forget", "keep"]
    assert len(bench.queue) == 0


async def test_operation_is_preceded_by_the_flush_of_the_key() -> None:
    """The origin sees what was acknowledged before."""
    bench = Bench()
    bench.entry = ENTRY

    await bench.pass_through()

    assert bench.done == ["flush", "operation", "forget", "keep"]


async def test_operation_does_not_begin_when_the_flush_fails() -> None:
    """A key that cannot be flushed cannot be operated on; the error is the flush's, the turn is given back."""
    bench = Bench()
    bench.entry = ENTRY
    bench.flush_error = OriginUnavailableError("", status=0, code="Timeout")

    with pytest.raises(OriginUnavailableError):
        await bench.pass_through()

    assert bench.done == []
    assert len(bench.queue) == 0


async def test_operation_on_a_quarantined_key_is_refused_with_the_reason() -> None:
    """What is not at the origin, and will not be, cannot be operated on there."""
    bench = Bench()
    bench.entry, bench.refusal = ENTRY, "InvalidStorageClass"

    with pytest.raises(QuarantinedError, match="InvalidStorageClass"):
        await bench.pass_through()

    assert bench.done == []


async def test_key_that_turns_out_quarantined_by_the_flush_is_refused_too() -> None:
    """The verdict that this very flush brings counts."""
    bench = Bench()
    bench.entry = ENTRY

    async def flush(name: ObjectName) -> None:
        assert name == NAME
        bench.refusal = "AccessDenied"

    bench.flush_key = flush  # type: ignore[method-assign]  # this flush ends otherwise
    with pytest.raises(QuarantinedError, match="AccessDenied"):
        await bench.pass_through()


async def test_replacement_of_a_quarantined_change_discards_it_once_the_origin_has_accepted() -> None:
    """An unconditional write takes the place of what was refused; not before it has succeeded."""
    bench = Bench()
    bench.entry, bench.refusal = ENTRY, "InvalidStorageClass"

    with pytest.raises(OriginRefusedError):
        await bench.pass_through(replaces=True, error=OriginRefusedError("", status=400, code="X"))
    assert bench.done == ["operation", "forget"]

    bench.done.clear()
    await bench.pass_through(replaces=True)
    assert bench.done == ["operation", "forget", "discarded", "keep"]


async def test_immutable_key_is_forgotten_durably_before_the_operation() -> None:
    """Nobody would ask the origin about it again, so not even a crash may leave the old version trusted."""
    bench = Bench(freshness=FreshnessMode.IMMUTABLE)

    await bench.pass_through()

    assert bench.done == ["forgotten", "operation", "forget", "keep"]


@pytest.mark.parametrize(
    ("error", "done"),
    [
        (OriginUnavailableError("", status=0, code="Timeout", outcome_unknown=True), ["stray"]),
        (OriginUnavailableError("", status=0, code="Connection"), []),
        (OriginRefusedError("", status=412, code="PreconditionFailed"), []),
        (asyncio.CancelledError(), ["stray"]),
        (ValueError("the body failed its check"), []),
    ],
)
async def test_operation_without_an_answer_is_told_as_a_stray(error: BaseException, done: list[str]) -> None:
    """What may still take effect is told to the flusher; whatever happened, the cached version is forgotten."""
    bench = Bench()

    with pytest.raises(type(error)):
        await bench.pass_through(error=error)

    assert bench.done == ["operation", *done, "forget"]
    assert len(bench.queue) == 0


@pytest.mark.parametrize("entry", [None, ENTRY], ids=["given up", "refused"])
async def test_operation_waits_while_an_attempt_of_a_flush_may_land(entry: DirtyEntry | None) -> None:
    """What a refused or given up change sent without an answer would land over what the operation does."""
    bench = Bench()
    bench.entry, bench.refusal = entry, "no" if entry is not None else ""
    bench.landing = asyncio.Event()

    passing = asyncio.get_running_loop().create_task(bench.pass_through(replaces=True))
    await pause()
    done_before = list(bench.done)
    bench.landing.set()
    await passing

    assert (done_before, bench.done[:2]) == ([], ["outlasted", "operation"])


async def test_operation_whose_earlier_attempt_may_land_is_not_kept() -> None:
    """The origin may show something else in a moment, so the cache does not vouch for it."""
    bench = Bench()

    async with bench.through.operation(NAME) as passed:
        passed.is_unknown = True
        passed.keep = bench.pass_through

    assert bench.done == ["stray", "forget"]


async def test_answers_of_the_origin_from_during_the_operation_are_overtaken() -> None:
    """Whoever asked before or while the operation ran does not store the answer."""
    bench = Bench()
    before = bench.generations.watch(NAME)

    async with bench.through.operation(NAME):
        during = bench.generations.watch(NAME)
        seen = [before.is_current, during.is_current]
    seen.append(during.is_current)

    assert seen == [False, True, False]
    before.close()
    during.close()


async def test_operations_and_write_backs_of_a_key_take_turns() -> None:
    """Nothing else works on the key while an operation is at the origin."""
    bench = Bench()
    order: list[str] = []

    async def write() -> None:
        async with bench.queue.turn(NAME, Turn.WRITE_BACK):
            order.append("write")

    async with bench.through.operation(NAME):
        writing = asyncio.get_running_loop().create_task(write())
        await pause(0.01)
        order.append("operation ends")
    await writing

    assert order == ["operation ends", "write"]


async def test_turn_is_given_back_when_the_disk_refuses_to_forget() -> None:
    """A disk that has failed ends the operation without an acknowledgement, and without holding up the key."""
    bench = Bench()

    async def refuse(_: object) -> object:
        raise UnknownOutcomeError("the index cannot be written")

    bench.change = refuse  # type: ignore[method-assign, assignment]  # the disk fails
    with pytest.raises(UnknownOutcomeError):
        await bench.pass_through()

    assert len(bench.queue) == 0


async def test_nothing_is_sent_when_the_key_became_read_only_while_it_waited() -> None:
    """The key is asked about in its turn, so a target that came into force meanwhile is not written to; a publish may."""
    bench = Bench()
    async with bench.queue.turn(NAME, Turn.THROUGH):
        waiting = asyncio.get_running_loop().create_task(bench.pass_through())
        await pause()
        bench.read_only.add(NAME)

    with pytest.raises(ReadOnlyError):
        await waiting
    refused = list(bench.done)
    async with bench.through.operation(NAME, is_own=True):
        bench.done.append("own")

    assert refused == []
    assert bench.done == ["own", "forget"]
