"""The one door to durability.

    commit() -> [waiting] -> stage 1: sync segments, append + sync journal -> stage 2: apply to the index -> receipt

Everything acknowledged passes here. Mutations that wait together become durable together: one `fdatasync` of each
segment that holds their bodies, then one append and one `fdatasync` of the journal. So a journal record that reads
back implies bodies that are there. Then the group is applied to the index in one batch and becomes visible; only then
does `commit` return.

What nobody is kept waiting for by (the confirmation of a flush) waits a moment for a mutation that somebody is, and shares its
syncs; by itself it would be a group of its own, and whoever came meanwhile would wait for that.

The two stages overlap by one group: while group N is applied, group N+1 is synced, and N+2 collects. Order is kept: one
group at a time is in stage 1, and stage 2 takes them in that order.

Failures. Before the journal's sync the outcome is known: the append is cut back, every caller of the group gets the
error, and the sequences are used by the next group. A failed sync, of a segment or the journal, or a failed index
write has an unknown outcome: the callers get `UnknownOutcomeError`, and so does every later commit, until a new engine
has recovered the directory.

Cancellation. A mutation that still waits is withdrawn. One that was taken into a group commits, and its caller learns
of the cancellation only when that is over: it holds the space that the mutation names, and the turn of its key, until
the rows are there. Were the space let go before, reclaim could take a segment that the journal is about to name.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Final, Protocol

import msgspec
import xxhash

from storage.applier import Applier, Sequenced
from storage.errors import (
    DiskFailedError,
    EngineClosedError,
    OverloadedError,
    StorageError,
    UnknownOutcomeError,
)
from storage.mutations import locations_of, stamp
from storage.records import TINY_SEGMENT_ID, Mutation, encode
from storage.types import MIB, TINY_BODY_BYTES_MAX, Location
from storage.words import in_words
from storage.workers import Workers

GROUP_MUTATIONS_MAX: Final = 1024
GROUP_BYTES_MAX: Final = 16 * MIB
"""Bodies and mutations together; far below what one journal frame may be."""

STAMP_BYTES_MAX: Final = 64
"""By so much a mutation may grow when it gets its sequence and the place of its tiny body."""

WAITING_MAX: Final = 16 * GROUP_MUTATIONS_MAX
"""More waiting commits than this are refused with SlowDown: the disk does not keep up."""


COMPANY_WAIT_S: Final = 0.01
"""So long a mutation that may wait does, for one that may not."""


class Receipt(msgspec.Struct, frozen=True, gc=False):
    """Proof that a mutation is durable: its sequence and the places that hold it."""

    sequence: int
    places: tuple[str, ...] = ("local",)


class SegmentSync(Protocol):
    """What the door needs of the segments."""

    def sync(self, segment_ids: Sequence[int]) -> None:
        """Make all bytes written to these segments, and their names, durable. Blocks."""
        ...


class GroupLog(Protocol):
    """What the door needs of the journal. All calls block and come from one thread."""

    @property
    def is_full(self) -> bool:
        """Whether `begin_group` should begin a new file."""
        ...

    def begin_group(self, spare_id: int) -> Location:
        """Begin a new file where `spare_id` is not 0 and the disk lets it; say where the group's bodies will lie."""
        ...

    def append(self, first_sequence: int, mutations: Sequence[bytes], bodies: Sequence[bytes]) -> None:
        """Append one group and sync it; a known failure leaves nothing behind."""
        ...


class _Waiting:
    """One mutation on its way through the door."""

    __slots__ = ("body", "done", "is_taken", "mutation", "segments", "size_bytes")

    def __init__(
        self, mutation: Mutation, body: bytes, done: "asyncio.Future[Receipt]", size_bytes: int
    ) -> None:
        self.mutation = mutation
        self.body = body
        self.is_taken = False
        self.size_bytes = size_bytes
        self.segments = frozenset(
            location.segment_id
            for location in locations_of(mutation)
            if location.segment_id != TINY_SEGMENT_ID
        )
        self.done = done


async def _outcome(waiting: _Waiting) -> Receipt:
    """Wait for the outcome; a cancellation withdraws what no group has taken, and waits out what one has."""
    try:
        return await asyncio.shield(waiting.done)
    except asyncio.CancelledError:
        if not waiting.is_taken:
            waiting.done.cancel()
        while not waiting.done.done():
            # Cancelled once more: the first one is on its way already.
            with suppress(asyncio.CancelledError):
                await asyncio.wait((waiting.done,))
        raise


class Commit:
    """Collects mutations into groups and takes each group through the two stages.

    `run()` is the owner's task; it ends by cancellation, after `drain()` on an orderly stop. Whatever ends it, nobody
    waits for ever: what had not begun is refused, what was under way has an unknown outcome.

    Args:
        take_file_id: Gives the id of a next journal file; OverloadedError where none is reserved.
        on_failure: Told why no further commit is accepted.
    """

    def __init__(  # noqa: PLR0913 - the door's parts, wired once
        self,
        *,
        segments: SegmentSync,
        journal: GroupLog,
        applier: Applier,
        workers: Workers,
        next_sequence: int,
        take_file_id: Callable[[], int],
        on_failure: Callable[[str], None],
    ) -> None:
        self._segments = segments
        self._journal = journal
        self._applier = applier
        self._workers = workers
        self._next_sequence = next_sequence
        self._take_file_id = take_file_id
        self._on_failure = on_failure
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()
        self._synced: asyncio.Queue[tuple[list[_Waiting], list[Sequenced]]] = asyncio.Queue(maxsize=1)
        self._idle = asyncio.Event()
        self._idle.set()
        self._taken: set[_Waiting] = set()
        self._spare_id = 0
        self._company: asyncio.TimerHandle | None = None
        self._failure = ""
        self.groups_total = 0
        self.mutations_total = 0

    @property
    def failure(self) -> str:
        """Why no further commit is accepted; "" while they are."""
        return self._failure or self._applier.failure

    @property
    def last_sequence(self) -> int:
        """The newest sequence that a synced journal group carries."""
        return self._next_sequence - 1

    async def commit(self, mutation: Mutation, *, body: bytes = b"", may_wait: bool = False) -> Receipt:
        """Make one mutation durable and visible; say where it is durable. It begins by COMPANY_WAIT_S later where it `may_wait`.

        `body` is a tiny body (at most TINY_BODY_BYTES_MAX); the mutation then has one extent at `records.NOWHERE`'s
        segment, which gets its place in the journal. Other bodies are already written to the segments it names.

        Raises:
            OverloadedError: Too many commits wait. Nothing was written.
            DiskFullError, DiskFailedError: Nothing was written; the caller may retry.
            EngineClosedError: The door closed before its turn came. Nothing was written.
            UnknownOutcomeError: The mutation may or may not be durable; no further commit is accepted.
        """
        assert len(body) <= TINY_BODY_BYTES_MAX, f"{len(body)} bytes are not a tiny body"
        # Also tells here, to this caller alone, what cannot be encoded: in a group it would fail all.
        size_bytes = len(body) + len(encode(mutation)) + STAMP_BYTES_MAX
        if self.failure:
            raise UnknownOutcomeError(self.failure)
        if len(self._waiting) >= WAITING_MAX:
            raise OverloadedError("the local disk does not keep up with commits", retry_after_s=1.0)
        done: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        waiting = _Waiting(mutation, body, done, size_bytes)
        self._waiting.append(waiting)
        self._idle.clear()
        if not may_wait:
            self._arrived.set()
        elif self._company is None:
            self._company = asyncio.get_running_loop().call_later(COMPANY_WAIT_S, self._arrived.set)
        return await _outcome(waiting)

    async def run(self) -> None:
        """Take groups through the door until cancelled; then nobody waits for an outcome any more."""
        try:
            async with asyncio.TaskGroup() as stages:
                stages.create_task(self._sync_groups(), name="commit-sync")
                stages.create_task(self._apply_groups(), name="commit-apply")
        finally:
            self._close()

    def _end_company(self) -> None:
        if self._company is not None:
            self._company.cancel()
            self._company = None

    def _close(self) -> None:
        self._end_company()
        self._failure = self.failure or "the gateway has stopped"
        self._fail_group(tuple(self._taken), UnknownOutcomeError(self._failure))
        refused, self._waiting = tuple(self._waiting), deque()
        self._fail_group(refused, EngineClosedError("the gateway is stopping", retry_after_s=5.0))

    async def drain(self) -> None:
        """Wait until no commit waits or is under way."""
        await self._idle.wait()

    # --- stage 1 -----------------------------------------------------------------------------------------------------

    async def _sync_groups(self) -> None:
        while True:
            await self._arrived.wait()
            group = self._take_group()
            if not group:
                continue
            sequenced = await self._sync_group(group)
            if sequenced is not None:
                await self._synced.put((group, sequenced))

    def _take_group(self) -> list[_Waiting]:
        group: list[_Waiting] = []
        group_bytes = 0
        while self._waiting and len(group) < GROUP_MUTATIONS_MAX and group_bytes < GROUP_BYTES_MAX:
            waiting = self._waiting.popleft()
            if waiting.done.cancelled():
                continue
            group_bytes += waiting.size_bytes
            waiting.is_taken = True
            group.append(waiting)
        self._taken.update(group)
        if not self._waiting:
            self._arrived.clear()
            self._end_company()
        self._settle_idle()
        return group

    async def _sync_group(self, group: list[_Waiting]) -> list[Sequenced] | None:
        if self.failure:
            self._fail_group(group, UnknownOutcomeError(self.failure))
            return None
        try:
            return await self._workers.run(self._make_durable, group, self._id_of_next_file())
        except UnknownOutcomeError as error:
            self._stop(str(error))
            self._fail_group(group, error)
        except StorageError as error:
            self._fail_group(group, error)
        except OSError as error:
            self._fail_group(group, DiskFailedError(f"commit failed: {in_words(error)}"))
        return None

    def _id_of_next_file(self) -> int:
        """Give an id where the journal wants a new file. Taken here, since ids are handed out in the event loop only.

        Without one the journal goes on in the old file: the group may hold the very reservation that brings new ids.
        """
        if not self._journal.is_full:
            return 0
        if not self._spare_id:
            with suppress(OverloadedError):
                self._spare_id = self._take_file_id()
        return self._spare_id

    def _make_durable(self, group: list[_Waiting], spare_id: int) -> list[Sequenced]:
        """Sync bodies, then append and sync the journal. Runs in the commit's worker thread."""
        named = frozenset[int]().union(*(waiting.segments for waiting in group))
        if named:
            self._segments.sync(sorted(named))
        place = self._journal.begin_group(spare_id)
        if place.segment_id == spare_id:
            self._spare_id = 0
        offset = place.offset
        sequenced: list[Sequenced] = []
        for position, waiting in enumerate(group):
            tiny = None
            if waiting.body:
                checksum = xxhash.xxh3_64_intdigest(waiting.body).to_bytes(8)
                tiny = Location(place.segment_id, offset, len(waiting.body), checksum)
                offset += len(waiting.body)
            sequence = self._next_sequence + position
            sequenced.append((sequence, stamp(waiting.mutation, sequence, tiny)))
        encoded = [encode(mutation) for _, mutation in sequenced]
        self._journal.append(self._next_sequence, encoded, [w.body for w in group if w.body])
        self._next_sequence += len(group)
        return sequenced

    # --- stage 2 -----------------------------------------------------------------------------------------------------

    async def _apply_groups(self) -> None:
        while True:
            group, sequenced = await self._synced.get()
            try:
                await self._applier.apply_group(sequenced)
            except UnknownOutcomeError as error:
                self._stop(str(error))
                self._fail_group(group, error)
                continue
            self.groups_total += 1
            self.mutations_total += len(group)
            for waiting, (sequence, _) in zip(group, sequenced, strict=True):
                if not waiting.done.done():
                    waiting.done.set_result(Receipt(sequence))
            self._leave_stages(group)

    def _stop(self, failure: str) -> None:
        self._failure = self._failure or failure
        self._on_failure(self._failure)

    def _fail_group(self, group: Sequence[_Waiting], error: StorageError) -> None:
        for waiting in group:
            if not waiting.done.done():
                waiting.done.set_exception(error)
        self._leave_stages(group)

    def _leave_stages(self, group: Iterable[_Waiting]) -> None:
        self._taken.difference_update(group)
        self._settle_idle()

    def _settle_idle(self) -> None:
        if not self._waiting and not self._taken:
            self._idle.set()
