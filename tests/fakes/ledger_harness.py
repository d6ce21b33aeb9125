"""A cache directory without a gateway: recovery, journal, segments, index and the door, driven by hand over the in-memory fakes.

`Ledger.start` recovers a directory as an engine does. Mutations go in by `commit` (through the real door) or `commit_now` (the door's
two stages at once, for use inside of a worker's call). `dirty_state` gives all that must survive a crash, places replaced by bytes.

`ObservedFilesystem` calls back after each changing call, so that a test can look at what a crash right there would leave.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Final

import msgspec

from storage import keys
from storage.applier import Applier, write_group
from storage.cached import AddExtents, StoreVersion
from storage.checksums import checksums
from storage.commit import Commit, _Waiting
from storage.compaction import Compaction
from storage.family import Family
from storage.journal_format import JOURNAL_DIRECTORY, journal_path
from storage.records import (
    FORMAT,
    NOWHERE,
    DirtyEntry,
    Flushed,
    Mutation,
    ObjectRecord,
    ObjectState,
    OriginIdentity,
    PartRecord,
    PartSize,
    PartUploaded,
    Put,
    ResidentRow,
    SegmentRow,
    Tombstone,
    UploadAborted,
    UploadCompleted,
    UploadCreated,
    UploadRecord,
    Validated,
    encode,
)
from storage.recovery import Recovered, RecoveryParts, recover
from storage.rows import (
    RowSource,
    decode_dirty,
    decode_facts,
    decode_object,
    decode_overlay,
    decode_part,
    decode_resident,
    decode_segment,
    decode_upload,
    read_extents,
)
from storage.segments import Reservation, SegmentLimits, SegmentStore, segment_path
from storage.state import State
from storage.types import BLOCK_BYTES, MIB, Extent, Location, Stream
from tests.fakes.filesystem import CHANGING, FakeFilesystem, Operation, _Fault
from tests.fakes.index import FakeIndex
from tests.fakes.workers import InlineWorkers

ORIGIN: Final = "http://origin.test"
BUCKET: Final = "bucket"
INSTANCE_ID: Final = bytes(range(16))
PAST_ALL: Final = b"\xff" * 17


class FakeIndexHome:
    """`recovery.IndexHome` over one FakeIndex; None is a lost index."""

    def __init__(self, index: FakeIndex | None = None) -> None:
        self.index = index or FakeIndex()

    def open(self) -> FakeIndex:
        """Give the index; one that was closed is given as a killed process leaves it."""
        if self.index._is_closed:
            self.index = self.index.kill_clone()
        return self.index

    def destroy(self) -> None:
        """Forget all rows."""
        self.index = FakeIndex()


class ObservedFilesystem(FakeFilesystem):
    """Calls `after_change` after each changing call, when it is set. Clones are plain."""

    def __init__(self, *, disk_bytes_max: int = 1 << 40, seed: int = 0) -> None:
        super().__init__(disk_bytes_max=disk_bytes_max, seed=seed)
        self.after_change: Callable[[], None] | None = None

    def call(
        self, operation: Operation, path: str, offset: int = 0, length: int = 0
    ) -> AbstractContextManager[_Fault | None]:
        """Record a call, then call back."""
        call = super().call(operation, path, offset, length)
        return self._observed(call) if operation in CHANGING else call

    @contextmanager
    def _observed(self, call: AbstractContextManager[_Fault | None]) -> Iterator[_Fault | None]:
        with call as fault:
            yield fault
        if self.after_change is not None:
            self.after_change()


class HookedIndex:
    """The reads of an index, with a call before each; for what happens between two reads of another thread."""

    def __init__(self, index: RowSource, before_read: Callable[[], None]) -> None:
        self._index = index
        self._before_read = before_read

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Read a row."""
        self._before_read()
        return self._index.get(family, key)

    def scan(self, family: Family, start: bytes, stop: bytes, limit: int) -> list[tuple[bytes, bytes]]:
        """Read rows."""
        self._before_read()
        return self._index.scan(family, start, stop, limit)


def recover_directory(filesystem: FakeFilesystem, index: FakeIndex | None = None) -> Recovered:
    """Recover a directory; `index` None is a lost one."""
    return recover(RecoveryParts(filesystem, FakeIndexHome(index), ORIGIN, INSTANCE_ID))


@dataclass
class Ledger:
    """One open directory; made by `start`."""

    filesystem: FakeFilesystem
    recovered: Recovered
    index: FakeIndex
    segments: SegmentStore
    state: State
    applier: Applier
    commit_door: Commit
    failures: list[str]
    _running: "asyncio.Task[None]"
    upload_parts: dict[str, dict[int, PartSize]] = field(default_factory=dict)

    @classmethod
    async def start(
        cls,
        filesystem: FakeFilesystem,
        index: FakeIndex | None = None,
        *,
        file_bytes: int = 16 * MIB,
        capacity_bytes: int = 64 * MIB,
    ) -> "Ledger":
        """Recover a directory and open its door, as an engine does."""
        recovered = recover_directory(filesystem, index)
        limits = SegmentLimits(BLOCK_BYTES, capacity_bytes)
        segments = SegmentStore(filesystem, limits, recovered.ids.take_segment_id)
        for segment_id, path in recovered.journal_files:
            is_own = segment_id == recovered.journal.segment_id
            segments.register_journal(segment_id, path, is_own=is_own)
        recovered.journal.on_file = lambda segment_id, path: segments.register_journal(
            segment_id, path, is_own=True
        )
        recovered.journal._file_bytes = file_bytes
        segments.adopt([row.segment_id for row in recovered.segments])
        state = State()
        state.load(recovered.segments, recovered.facts, recovered.open_uploads, recovered.dirty)
        used = recovered.index
        assert isinstance(used, FakeIndex), "recovery gives the index of its home"
        applier = Applier(used, InlineWorkers(), state.absorb)
        applier.applied_sequence = applier.durable_sequence = recovered.applied_sequence
        failures: list[str] = []
        commit = Commit(
            segments=segments,
            journal=recovered.journal,
            applier=applier,
            workers=InlineWorkers(),
            next_sequence=recovered.next_sequence,
            take_file_id=recovered.ids.take_segment_id,
            on_failure=failures.append,
        )
        running = asyncio.get_running_loop().create_task(commit.run())
        return cls(filesystem, recovered, used, segments, state, applier, commit, failures, running)

    async def stop(self) -> None:
        """End the door's task, as a killed process does."""
        self._running.cancel()
        await asyncio.wait({self._running})

    def compaction(self, index: RowSource | None = None, *, compact_bytes: int = 0) -> Compaction:
        """Make a compaction of this directory; `index` is what it reads."""
        return Compaction(
            filesystem=self.filesystem,
            index=self.index if index is None else index,
            journal=self.recovered.journal,
            segments=self.segments,
            commit=self.commit_door,
            applier=self.applier,
            workers=InlineWorkers(),
            take_segment_id=self.recovered.ids.take_segment_id,
            instance_id=self.recovered.layout.instance_id,
            compact_bytes=compact_bytes,
        )

    # --- mutations ---------------------------------------------------------------------------------------------------

    async def commit(self, mutation: Mutation, body: bytes = b"") -> int:
        """Take a mutation through the door."""
        return (await self.commit_door.commit(mutation, body=body)).sequence

    def commit_now(self, mutation: Mutation, body: bytes = b"") -> int:
        """Take a mutation through both stages of the door at once; nothing else is on its way."""
        size_bytes = len(body) + len(encode(mutation))
        waiting = _Waiting(mutation, body, asyncio.get_running_loop().create_future(), size_bytes)
        journal = self.recovered.journal
        spare_id = self.recovered.ids.take_segment_id() if journal.is_full else 0
        sequenced = self.commit_door._make_durable([waiting], spare_id)
        self.state.absorb(write_group(self.index, sequenced))
        self.applier.applied_sequence = sequenced[-1][0]
        return sequenced[-1][0]

    def rotate_now(self) -> None:
        """Seal the file in use."""
        self.recovered.journal.rotate()
        self.commit_now(self.recovered.ids.reservation())

    def put_now(self, key: str, body: bytes, *, is_tiny: bool) -> int:
        """Put an object whose body rides in the journal, or lies in a segment."""
        version_id = self.recovered.ids.take_version_id()
        extents, tiny = self._write(body, Stream.DIRTY, is_tiny=is_tiny)
        record = _record(version_id, len(body), ObjectState.DIRTY, extents)
        return self.commit_now(Put(FORMAT, record, _entry(key, version_id, len(body))), tiny)

    def delete_now(self, key: str) -> int:
        """Delete an object."""
        return self.commit_now(Tombstone(FORMAT, _entry(key, 0, 0)))

    def flush_now(self, sequence: int) -> int:
        """Confirm a change."""
        value = self.index.get(Family.DIRTY, keys.dirty_key(sequence))
        is_tombstone = value is not None and decode_dirty(value).is_tombstone
        origin = None if is_tombstone else OriginIdentity("", 0, 1, "etag")
        return self.commit_now(Flushed(FORMAT, sequence, origin, Validated(1.0, 1)))

    def create_upload_now(self, key: str) -> str:
        """Open an upload; give its id."""
        upload_id = f"upload-{self.recovered.ids.take_version_id():x}"
        upload = UploadRecord(FORMAT, upload_id, BUCKET, key, 1.0, "credential", tags="a=b")
        self.commit_now(UploadCreated(FORMAT, upload))
        self.upload_parts[upload_id] = {}
        return upload_id

    def part_now(self, upload_id: str, number: int, body: bytes, *, is_tiny: bool) -> int:
        """Upload a part."""
        extents, tiny = self._write(body, Stream.DIRTY, is_tiny=is_tiny)
        part = PartRecord(FORMAT, number, len(body), f"{len(body):032x}", 7, extents=extents)
        sequence = self.commit_now(PartUploaded(FORMAT, upload_id, part), tiny)
        self.upload_parts[upload_id][number] = PartSize(number, part.size, part.etag)
        return sequence

    def complete_now(self, upload_id: str, key: str, numbers: list[int]) -> int:
        """Complete an upload from these parts."""
        known = self.upload_parts.pop(upload_id)
        sizes = tuple(known[number] for number in numbers)
        version_id, size = self.recovered.ids.take_version_id(), sum(part.size for part in sizes)
        record = msgspec.structs.replace(_record(version_id, size, ObjectState.DIRTY, ()), parts=sizes)
        value = self.index.get(Family.UPLOADS, keys.upload_key(upload_id))
        carried = "" if value is None else decode_upload(value).origin_upload_id
        entry = msgspec.structs.replace(_entry(key, version_id, size), origin_upload_id=carried)
        return self.commit_now(UploadCompleted(FORMAT, upload_id, record, entry, 5.0))

    def abort_now(self, upload_id: str) -> int:
        """Abort an upload, or forget a completed one."""
        self.upload_parts.pop(upload_id, None)
        return self.commit_now(UploadAborted(FORMAT, upload_id))

    async def fill(self, key: str, body: bytes) -> None:
        """Keep a clean version of a key that is not known."""
        version_id = self.recovered.ids.take_version_id()
        reserved = self.segments.reserve(len(body), Stream.CLEAN)
        extents = _extents(self.segments, body, reserved[0])
        record = _record(version_id, len(body), ObjectState.CLEAN, ())
        if await self.applier.change(StoreVersion(BUCKET, key, record, 0)):
            await self.applier.change(AddExtents(BUCKET, key, version_id, extents))
        self.segments.settle(reserved)

    def _write(self, body: bytes, stream: Stream, *, is_tiny: bool) -> tuple[tuple[Extent, ...], bytes]:
        if not body:
            return (), b""
        if is_tiny:
            return (Extent(0, len(body), msgspec.structs.replace(NOWHERE, length=len(body))),), body
        reserved = self.segments.reserve(len(body), stream)
        extents = _extents(self.segments, body, reserved[0])
        # Nothing removes segments here but the test itself.
        self.segments.settle(reserved)
        return extents, b""

    def unlink_removed(self) -> None:
        """Do what reclaim does with removed files."""
        for segment_id in self.segments.take_removable():
            self.segments.unlink(segment_id)


def _extents(segments: SegmentStore, body: bytes, reserved: Reservation) -> tuple[Extent, ...]:
    segments.write(reserved, 0, body)
    location = Location(reserved.segment_id, reserved.offset, reserved.length, checksums(body))
    return (Extent(0, len(body), location),)


def _record(version_id: int, size: int, state: ObjectState, extents: tuple[Extent, ...]) -> ObjectRecord:
    return ObjectRecord(
        FORMAT,
        version_id,
        size,
        f"etag-{version_id:x}",
        9,
        state,
        None,
        Validated(),
        headers=(("content-type", "text/plain"),),
        user_metadata=(("colour", "blue"),),
        extents=extents,
    )


def _entry(key: str, version_id: int, size: int) -> DirtyEntry:
    return DirtyEntry(FORMAT, 0, BUCKET, key, keys.slot(BUCKET, key), version_id, size, "credential", 3.0)


# --- what must survive -------------------------------------------------------------------------------------------------


def dirty_state(filesystem: FakeFilesystem, index: RowSource) -> dict[str, object]:
    """Give all that an acknowledgement promises, by names: rows without their places, and the bytes that lie there."""
    state: dict[str, object] = {}
    for key, value in all_rows(index, Family.DIRTY):
        state[f"dirty {keys.split_dirty_key(key)}"] = decode_dirty(value)
    for key, value in all_rows(index, Family.OVERLAY):
        state[f"overlay {keys.split_object_key(key)}"] = decode_overlay(value)
    for key, value in all_rows(index, Family.OBJECTS):
        record = decode_object(value)
        if record.state is not ObjectState.CLEAN:
            bare = msgspec.structs.replace(record, extents=(), extents_spilled=False)
            body = read_body(filesystem, read_extents(index, record))
            state[f"object {keys.split_object_key(key)}"] = (bare, body)
    for key, value in all_rows(index, Family.UPLOADS):
        state[f"upload {keys.split_upload_key(key)}"] = decode_upload(value)
    for key, value in all_rows(index, Family.PARTS):
        part = decode_part(value)
        bare_part = msgspec.structs.replace(part, extents=())
        state[f"part {keys.split_part_key(key)}"] = (bare_part, read_body(filesystem, part.extents))
    for key, value in all_rows(index, Family.BUCKETS):
        state[f"facts {keys.split_bucket_key(key)}"] = decode_facts(value)
    return state


def read_body(filesystem: FakeFilesystem, extents: tuple[Extent, ...]) -> bytes | str:
    """Read extents; a text says what is wrong."""
    position, body = 0, b""
    journal_names = filesystem.list_directory(JOURNAL_DIRECTORY)
    for extent in extents:
        place = extent.location
        if extent.start != position:
            return f"nothing at {position}"
        position = extent.stop
        path = journal_path(place.segment_id)
        if path.removeprefix(f"{JOURNAL_DIRECTORY}/") not in journal_names:
            path = segment_path(place.segment_id)
        try:
            data = filesystem.contents(path)[place.offset : place.offset + place.length]
        except FileNotFoundError:
            return f"{path} is gone"
        if checksums(data) != place.checksums:
            return f"{path} is wrong at {place.offset}"
        body += data
    return body


def check_accounts(index: RowSource) -> None:
    """Compare residents, and the live and dirty bytes of segments, with the extents of objects and parts."""
    residents: dict[tuple[int, int], ResidentRow] = {}
    segments: dict[int, tuple[int, int]] = {}

    def count(extents: tuple[Extent, ...], owner: ResidentRow, *, is_dirty: bool) -> None:
        for extent in extents:
            place = extent.location
            row = msgspec.structs.replace(owner, start=extent.start, length=place.length)
            residents[place.segment_id, place.offset] = row
            live, dirty = segments.get(place.segment_id, (0, 0))
            segments[place.segment_id] = (live + place.length, dirty + place.length * is_dirty)

    for key, value in all_rows(index, Family.OBJECTS):
        name, record = keys.split_object_key(key), decode_object(value)
        owner = ResidentRow(FORMAT, 0, 0, bucket=name.bucket, key=name.key, version_id=record.version_id)
        count(read_extents(index, record), owner, is_dirty=record.state is not ObjectState.CLEAN)
    for key, value in all_rows(index, Family.PARTS):
        upload_id, number = keys.split_part_key(key)
        owner = ResidentRow(FORMAT, 0, 0, upload_id=upload_id, part=number)
        count(decode_part(value).extents, owner, is_dirty=True)
    found = {keys.split_resident_key(k): decode_resident(v) for k, v in all_rows(index, Family.RESIDENTS)}
    assert found == residents, "residents are not the extents' owners"
    rows = [decode_segment(value) for _, value in all_rows(index, Family.SEGMENTS)]
    counted = {row.segment_id: (row.live_bytes, row.dirty_bytes) for row in rows if row.live_bytes}
    assert counted == segments, "segment rows do not add up"


def segment_rows(index: RowSource) -> dict[int, SegmentRow]:
    """Give the rows of segments by id."""
    rows = [decode_segment(value) for _, value in all_rows(index, Family.SEGMENTS)]
    return {row.segment_id: row for row in rows}


def all_rows(index: RowSource, family: Family) -> list[tuple[bytes, bytes]]:
    """Read all rows of a family."""
    return index.scan(family, b"", PAST_ALL, 1_000_000)


@asynccontextmanager
async def opened_ledger() -> AsyncIterator[Ledger]:
    """Open a directory for a while."""
    ledger = await Ledger.start(FakeFilesystem())
    try:
        yield ledger
    finally:
        await ledger.stop()


def location_of(ledger: Ledger, key: str) -> Location:
    """Say where an object's bytes lie."""
    value = ledger.index.get(Family.OBJECTS, keys.object_key(BUCKET, key))
    assert value is not None
    return decode_object(value).extents[0].location
