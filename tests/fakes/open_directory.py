"""A cache directory that is open, without a gateway: recovery, door, segments and reclaim, wired as the engine wires them.

    async with open_directory(FakeFilesystem()) as directory:
        await directory.put("key", b"...")

Everything blocking runs on the workers that are given: inline by default, so that one seed gives one order of events.
`kill` and `stop` end it without and with order. What is left is `directory.filesystem` and `directory.home.index`, of
which clones are made.
"""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Self

import msgspec

from storage.applier import Applier
from storage.cached import AddExtents, StoreVersion
from storage.clock import SystemClock
from storage.commit import Commit, Receipt
from storage.eviction import EvictionPolicy
from storage.filesystem import Filesystem
from storage.gittins_policy import GittinsPolicy
from storage.index import Index
from storage.intake import BodyIntake
from storage.journal_log import JOURNAL_FILE_BYTES, JournalLog
from storage.pin_survey import PinSurvey
from storage.policy import PolicyTable
from storage.reclaim import Reclaim, ReclaimParts
from storage.records import (
    FORMAT,
    Discarded,
    EpochEnded,
    Flushed,
    Forgotten,
    ObjectRecord,
    ObjectState,
    OriginIdentity,
    PartRecord,
    PartSize,
    PartUploaded,
    Put,
    Quarantined,
    Released,
    Tombstone,
    UploadAborted,
    UploadCompleted,
    UploadCreated,
    UploadRecord,
    Validated,
)
from storage.recovery import Recovered, RecoveryParts, recover
from storage.rows import Rows
from storage.segments import SegmentLimits, SegmentStore
from storage.state import State
from storage.stats import Stats
from storage.survivors import Survivors
from storage.types import MIB, Checksum, Stream
from storage.workers import StartingWorkers, Workers
from tests.fakes.index import FakeIndex
from tests.fakes.records import BUCKET, entry
from tests.fakes.workers import InlineWorkers

ORIGIN = "http://origin.test"
INSTANCE_ID = bytes(range(16))


class Content:
    """A client's body, in pieces of at most 1 MiB."""

    def __init__(self, data: bytes) -> None:
        self.size = len(data)
        self._data = data

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the pieces, and let others run between them."""
        for start in range(0, self.size, MIB):
            await asyncio.sleep(0)
            yield self._data[start : start + MIB]

    def checksums(self) -> tuple[Checksum, ...]:
        """Give none."""
        return ()


class IndexHome:
    """`recovery.IndexHome` over a FakeIndex.

    Attributes:
        refusal: Raised by the next `open`, once.
        destroyed_total: How often the index was thrown away.
    """

    def __init__(self, index: FakeIndex | None = None) -> None:
        self.index = index or FakeIndex()
        self.refusal: Exception | None = None
        self.destroyed_total = 0
        self._make: Callable[[], FakeIndex] = FakeIndex

    @classmethod
    def of(cls, make: Callable[[], FakeIndex]) -> Self:
        """Make a home whose indexes are made by `make`."""
        home = cls(make())
        home._make = make
        return home

    def open(self) -> FakeIndex:
        """Give the index; one that was closed as a killed process leaves it."""
        refusal, self.refusal = self.refusal, None
        if refusal is not None:
            raise refusal
        if self.index._is_closed:
            self.index = self.index.kill_clone()
        return self.index

    def destroy(self) -> None:
        """Forget all rows."""
        self.destroyed_total += 1
        self.index = self._make()


@dataclass(frozen=True)
class DirectoryWorkers:
    """Where blocking work runs."""

    commit: Workers = field(default_factory=InlineWorkers)
    index: StartingWorkers = field(default_factory=InlineWorkers)
    pool: Workers = field(default_factory=InlineWorkers)


@dataclass
class OpenDirectory:
    """One open directory; made by `open_directory`."""

    filesystem: Filesystem
    home: IndexHome
    recovered: Recovered
    workers: DirectoryWorkers
    segments: SegmentStore
    state: State
    applier: Applier
    commit: Commit
    reclaim: Reclaim
    failures: list[str]
    running: "asyncio.Task[None]"
    etags: dict[int, str] = field(default_factory=dict)

    @property
    def journal(self) -> JournalLog:
        """The journal's end."""
        return self.recovered.journal

    @property
    def index(self) -> Index:
        """The rows."""
        return self.recovered.index

    async def kill(self) -> None:
        """End the door as a killed process does; files and index stay as they are."""
        self.running.cancel()
        with suppress(asyncio.CancelledError):
            await self.running

    async def stop(self) -> None:
        """Stop in order, as the engine does."""
        await self.applier.end_changes()
        await self.applier.checkpoint()
        await self.commit.commit(EpochEnded(FORMAT, self.recovered.epoch, self.recovered.trusted_epoch))
        await self.kill()
        self.recovered.release()
        self.segments.close()

    # --- objects ---

    async def put(self, key: str, data: bytes) -> int:
        """Acknowledge a put; give its sequence. The version id is the newest of `etags`."""
        with BodyIntake(self.segments, self.workers.pool, Content(data), Stream.DIRTY) as body:
            intake = await body.take()
            version = self._version(intake.size, intake.md5_hex, ObjectState.DIRTY)
            version = msgspec.structs.replace(version, extents=intake.extents)
            put = Put(FORMAT, version, entry(key, version.version_id, size=version.size))
            receipt = await self.commit.commit(put, body=intake.tiny)
        return receipt.sequence

    async def delete(self, key: str) -> int:
        """Acknowledge a delete; give its sequence."""
        return (await self.commit.commit(Tombstone(FORMAT, entry(key)))).sequence

    async def flush(self, key: str) -> int:
        """Confirm the newest change of a key; give the change's sequence."""
        overlay = Rows(self.index).overlay(BUCKET, key)
        assert overlay is not None, f"{key} is not dirty"
        origin = None if overlay.is_tombstone else OriginIdentity("", 0, overlay.size, overlay.etag)
        validated = Validated(10.0, self.recovered.epoch)
        await self.commit.commit(Flushed(FORMAT, overlay.sequence, origin, validated))
        return overlay.sequence

    async def quarantine(self, key: str, reason: str) -> None:
        """Note that the origin refuses the newest change of a key for good."""
        await self.commit.commit(Quarantined(FORMAT, self._dirty_sequence(key), reason))

    async def release(self, key: str) -> None:
        """Put a refused change back into the flush queue."""
        await self.commit.commit(Released(FORMAT, self._dirty_sequence(key)))

    async def discard(self, key: str) -> None:
        """Give the newest change of a key up."""
        await self.commit.commit(Discarded(FORMAT, self._dirty_sequence(key)))

    async def forget(self, key: str) -> None:
        """Forget what is cached of a key, as before an operation that is passed through."""
        await self.commit.commit(Forgotten(FORMAT, BUCKET, key))

    def _dirty_sequence(self, key: str) -> int:
        overlay = Rows(self.index).overlay(BUCKET, key)
        assert overlay is not None, f"{key} is not dirty"
        return overlay.sequence

    async def fill(self, key: str, data: bytes) -> bool:
        """Keep a version of the origin's with all its bytes; False where the key is dirty."""
        present = Rows(self.index).object(BUCKET, key)
        with BodyIntake(self.segments, self.workers.pool, Content(data), Stream.CLEAN) as body:
            intake = await body.take()
            version = self._version(intake.size, intake.md5_hex, ObjectState.CLEAN)
            replaces = present.version_id if present else 0
            if not await self.applier.change(StoreVersion(BUCKET, key, version, replaces)):
                return False
            return await self.applier.change(AddExtents(BUCKET, key, version.version_id, intake.extents))

    def _version(self, size: int, etag: str, state: ObjectState) -> ObjectRecord:
        is_clean = state is ObjectState.CLEAN
        origin = OriginIdentity("", 0, size, etag) if is_clean else None
        validated = Validated(10.0, self.recovered.epoch) if is_clean else Validated()
        version_id = self.recovered.ids.take_version_id()
        self.etags[version_id] = etag
        return ObjectRecord(FORMAT, version_id, size, etag, 1_700_000_000, state, origin, validated)

    # --- uploads ---

    async def create_upload(self, key: str) -> str:
        """Open an upload; give its id."""
        upload_id = f"upload-{self.recovered.ids.take_version_id()}"
        await self.commit.commit(UploadCreated(FORMAT, UploadRecord(FORMAT, upload_id, BUCKET, key, 5.0, "")))
        return upload_id

    async def put_part(self, upload_id: str, number: int, data: bytes) -> Receipt:
        """Acknowledge a part."""
        with BodyIntake(self.segments, self.workers.pool, Content(data), Stream.DIRTY) as body:
            intake = await body.take()
            part = PartRecord(FORMAT, number, intake.size, intake.md5_hex, 7, extents=intake.extents)
            return await self.commit.commit(PartUploaded(FORMAT, upload_id, part), body=intake.tiny)

    async def complete(self, upload_id: str, key: str, numbers: list[int]) -> int:
        """Make an object of an upload's parts; give its sequence."""
        parts = {part.number: part for part in Rows(self.index).parts(upload_id)}
        sizes = tuple(PartSize(n, parts[n].size, parts[n].etag) for n in numbers)
        size = sum(part.size for part in sizes)
        etag = hashlib.md5("".join(part.etag for part in sizes).encode()).hexdigest()
        version = self._version(size, f"{etag}-{len(sizes)}", ObjectState.DIRTY)
        version = msgspec.structs.replace(version, parts=sizes)
        change = entry(key, version.version_id, size=size)
        completed = UploadCompleted(FORMAT, upload_id, version, change, 20.0)
        return (await self.commit.commit(completed)).sequence

    async def abort(self, upload_id: str) -> None:
        """End an upload without an object."""
        await self.commit.commit(UploadAborted(FORMAT, upload_id))


def recovery_parts(filesystem: Filesystem, home: IndexHome, *, origin: str = ORIGIN) -> RecoveryParts:
    """Say what recovery works with."""
    return RecoveryParts(filesystem, home, origin, INSTANCE_ID)


@asynccontextmanager
async def open_directory(
    filesystem: Filesystem,
    home: IndexHome | None = None,
    *,
    workers: DirectoryWorkers | None = None,
    segment_bytes: int = MIB,
    capacity_bytes: int = 64 * MIB,
    room_bytes_min: int = 0,
    journal_file_bytes: int = JOURNAL_FILE_BYTES,
    policy: EvictionPolicy | None = None,
    policies: Callable[[], PolicyTable] = PolicyTable,
) -> AsyncIterator[OpenDirectory]:
    """Recover a directory and hold it open; the block's end kills it, unless it was stopped."""
    home, workers = home or IndexHome(), workers or DirectoryWorkers()
    recovered = recover(recovery_parts(filesystem, home))
    limits = SegmentLimits(segment_bytes, capacity_bytes)
    segments = SegmentStore(filesystem, limits, recovered.ids.take_segment_id)
    for segment_id, path in recovered.journal_files:
        segments.register_journal(segment_id, path, is_own=segment_id == recovered.journal.segment_id)
    recovered.journal.on_file = lambda segment_id, path: segments.register_journal(
        segment_id, path, is_own=True
    )
    recovered.journal._file_bytes = journal_file_bytes
    segments.adopt([row.segment_id for row in recovered.segments])
    state, failures = State(), list[str]()
    state.load(recovered.segments, recovered.facts, recovered.open_uploads, recovered.dirty)
    applier = Applier(recovered.index, workers.index, state.absorb, on_failure=failures.append)
    applier.applied_sequence = applier.durable_sequence = recovered.applied_sequence
    commit = Commit(
        segments=segments,
        journal=recovered.journal,
        applier=applier,
        workers=workers.commit,
        next_sequence=recovered.next_sequence,
        take_file_id=recovered.ids.take_segment_id,
        on_failure=failures.append,
    )
    policy = policy or GittinsPolicy(
        capacity_bytes=capacity_bytes, segment_bytes=segment_bytes, pinned_bytes_max=capacity_bytes // 2
    )
    reclaim = Reclaim(
        ReclaimParts(
            segments=segments,
            state=state,
            applier=applier,
            policy=policy,
            workers=workers.pool,
            clock=SystemClock(),
            stats=Stats(),
            room_bytes_min=room_bytes_min,
            policies=policies,
            survivors=Survivors(recovered.index, segments, applier, workers.pool),
            pins=PinSurvey(recovered.index, state, policy, policies, workers.pool, SystemClock()),
        )
    )
    state.listeners.append(reclaim.absorb)
    running = asyncio.get_running_loop().create_task(commit.run())
    directory = OpenDirectory(
        filesystem,
        home,
        recovered,
        workers,
        segments,
        state,
        applier,
        commit,
        reclaim,
        failures,
        running,
    )
    try:
        yield directory
    finally:
        await directory.kill()
