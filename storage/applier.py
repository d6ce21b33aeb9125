"""The one writer of the index: applies journal groups and changes to clean rows, one batch after the other.

A worker thread of its own does the reading and writing of each batch, so batches are totally ordered and what one read
is still true when it writes. Only journal groups move `applied_sequence`, and they move it in order, in the same
atomic batch as their rows. Effects reach the event loop before the caller's await returns, so what is acknowledged is
also known.

Failures. A group whose rows cannot be written, after its journal sync, is an unknown outcome like a failed sync. So is
a change to clean rows: were it left out, an old version might go on being served after a newer one was passed through.
In either case the applier refuses all further work and says so once.

A change whose caller is cancelled is carried out all the same, and the event loop hears of it.
"""

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeVar, cast

from storage.errors import EngineClosedError, StorageError, UnknownOutcomeError
from storage.family import Family, IndexWrite
from storage.mutations import apply
from storage.records import Mutation
from storage.rows import APPLIED_SEQUENCE, Effects, Rows, RowSource
from storage.words import in_words
from storage.workers import StartingWorkers

T = TypeVar("T")

Sequenced = tuple[int, Mutation]


class RowStore(RowSource, Protocol):
    """What the applier needs of an index beside reading."""

    def write(self, batch: Sequence[IndexWrite]) -> None:
        """Write a batch, whole or not at all; not synced."""
        ...

    def checkpoint(self) -> None:
        """Make all written batches durable."""
        ...


def write_group(store: RowStore, group: Sequence[Sequenced]) -> Effects:
    """Apply journaled mutations and note how far the journal is applied, in one batch. Blocks."""
    rows = Rows(store)
    for sequence, mutation in group:
        apply(rows, sequence, mutation)
    rows.put(Family.META, APPLIED_SEQUENCE, group[-1][0].to_bytes(8))
    store.write(rows.batch())
    return rows.effects


def write_change(store: RowStore, change: Callable[[Rows], T]) -> tuple[T, Effects]:
    """Carry out a change that no journal holds, in one batch. Blocks.

    Raises:
        DamagedError, DiskFailedError: A row could not be read. Nothing was written.
        UnknownOutcomeError: The batch could not be written; whether it shows after a restart is unknown.
    """
    rows = Rows(store)
    result = change(rows)
    batch = rows.batch()
    if batch:
        try:
            store.write(batch)
        except (StorageError, OSError) as error:
            raise UnknownOutcomeError(_why("index write failed", error)) from error
    return result, rows.effects


def _why(step: str, error: StorageError | OSError) -> str:
    """Say why a step failed: an error of ours says so itself, one of the system says only what it met."""
    return str(error) if isinstance(error, StorageError) else f"{step}: {in_words(error)}"


class Applier:
    """Feeds the writer thread; `workers` must have exactly one thread.

    Args:
        tell: Takes over what each batch changed; called in the event loop, in the order of the batches.
        on_failure: Told once, why nothing is written any more.

    Attributes:
        failure: Why nothing is written any more; "" while all is well.
        has_index_failed: Whether that is since the index itself failed.
        applied_sequence: All journaled mutations up to here are in the index.
        durable_sequence: And up to here they would survive a power cut without the journal.
    """

    def __init__(
        self,
        store: RowStore,
        workers: StartingWorkers,
        tell: Callable[[Effects], None],
        *,
        on_failure: Callable[[str], None] = lambda _failure: None,
    ) -> None:
        self._store = store
        self._workers = workers
        self._tell = tell
        self._on_failure = on_failure
        self._changes: set[asyncio.Future[object]] = set()
        self._are_changes_ended = False
        self.has_index_failed = False
        self.failure = ""
        self.applied_sequence = 0
        self.durable_sequence = 0

    async def apply_group(self, group: Sequence[Sequenced]) -> None:
        """Apply a group whose journal record is synced; visible on return.

        Raises:
            UnknownOutcomeError: The rows could not be written; the journal holds the truth, a restart applies it.
        """
        self._refuse_after_failure()
        assert group[0][0] > self.applied_sequence, f"group {group[0][0]} after {self.applied_sequence}"
        try:
            effects = await self._workers.run(write_group, self._store, group)
        except (StorageError, OSError) as error:
            raise self._fail(_why("index write failed", error)) from error
        self.applied_sequence = group[-1][0]
        self._tell(effects)

    async def change(self, change: Callable[[Rows], T]) -> T:
        """Carry out a change to clean rows; what it returns tells whether the rows were still as planned.

        Raises:
            EngineClosedError: `end_changes` was called. Nothing was written.
            DamagedError, DiskFailedError: A row could not be read. Nothing was written.
            UnknownOutcomeError: The change could not be written, now or by an earlier failure.
        """
        self.check_open()
        # Not awaited itself, so that a caller that goes away does not keep the effects from the event loop.
        outcome: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        work = self._workers.start(write_change, self._store, change)
        self._changes.add(cast("asyncio.Future[object]", work))  # Future is invariant, and is only waited for
        work.add_done_callback(partial(self._changed, outcome))
        return await outcome

    def _changed(self, outcome: "asyncio.Future[T]", work: "asyncio.Future[tuple[T, Effects]]") -> None:
        """Tell the event loop of a change that has ended, then whoever asked for it and is still there."""
        self._changes.discard(cast("asyncio.Future[object]", work))
        if work.cancelled():
            outcome.cancel()
            return
        try:
            result, effects = work.result()
            self._tell(effects)
        except UnknownOutcomeError as error:
            failure = self._fail(str(error))
            failure.__cause__ = error
            _refuse(outcome, failure)
        except BaseException as error:  # noqa: BLE001  it is the caller's
            _refuse(outcome, error)
        else:
            if not outcome.done():
                outcome.set_result(result)
        finally:
            del work, outcome  # an error's traceback holds this frame

    async def checkpoint(self) -> int:
        """Make what is applied durable in the index; give the sequence that covers.

        Raises:
            UnknownOutcomeError: It may not be durable, and a later checkpoint would say nothing about it.
        """
        self._refuse_after_failure()
        sequence = self.applied_sequence
        try:
            await self._workers.run(self._store.checkpoint)
        except (StorageError, OSError) as error:
            raise self._fail(_why("index checkpoint failed", error)) from error
        self.durable_sequence = max(self.durable_sequence, sequence)
        return self.durable_sequence

    def check_open(self) -> None:
        """Raise once changes are refused: what would need one afterwards must not begin.

        Raises:
            EngineClosedError: `end_changes` was called.
            UnknownOutcomeError: The index, or the disk under it, has failed.
        """
        self._refuse_after_failure()
        if self._are_changes_ended:
            raise EngineClosedError("the gateway is stopping", retry_after_s=5.0)

    def refuse(self, failure: str) -> None:
        """Refuse all further work as after a failure of the index; reads go on and keep nothing."""
        self.failure = self.failure or failure

    async def changes_ended(self) -> None:
        """Return when no change is under way."""
        while self._changes:
            await asyncio.wait(tuple(self._changes))

    async def end_changes(self) -> None:
        """Refuse further changes to clean rows, and wait for those under way: the last checkpoint is then complete."""
        self._are_changes_ended = True
        await self.changes_ended()

    def _fail(self, failure: str) -> UnknownOutcomeError:
        self.has_index_failed = True
        if not self.failure:
            self.failure = failure
            self._on_failure(failure)
        return UnknownOutcomeError(self.failure)

    def _refuse_after_failure(self) -> None:
        if self.failure:
            raise UnknownOutcomeError(self.failure)


def _refuse(outcome: "asyncio.Future[T]", error: BaseException) -> None:
    if not outcome.done():
        outcome.set_exception(error)
