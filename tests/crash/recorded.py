"""A whole engine over real files and RocksDB under load, recorded; then power cuts anywhere in what was recorded.

`record` runs the load: clients put, overwrite, delete and upload, the flush works against an origin that refuses some,
the index is checkpointed, the journal compacted, space reclaimed. What clients were told, what the origin held, and copies
of RocksDB's directory stand in the same log as the calls of the file system.

`Cuts` makes of it what power cuts leave: of the files what had been synced, the rest lost, kept or torn; as index none,
one of an earlier checkpoint, or a copy at or after the last one. Each is started by the real recovery and compared with
what was acknowledged by then; now and then the power goes once more during that start.
"""

import asyncio
import hashlib
import random
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from storage.checksums import checksums
from storage.errors import DamagedError, StorageError
from storage.family import Family, IndexWrite
from storage.filesystem import Filesystem, PosixFilesystem
from storage.index import RocksIndex
from storage.journal_format import journal_path
from storage.records import ObjectState
from storage.recovery import Recovered, RecoveryParts as Parts, recover
from storage.requests import CompletedPart, UploadRequest
from storage.rows import Rows, read_extents
from storage.segments import segment_path
from storage.types import KIB, MIB, Extent, ObjectName
from tests.crash.expectation import DELETED, ViolationError
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.origin_faults import Fault
from tests.fakes.origin_store import Received, Reply
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.recording import Log, RecordingFilesystem, Replay, write_out
from tests.fakes.row_invariants import check_rows
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, running_engine

ORIGIN: Final = "http://origin"
CLIENTS: Final = 4
KEYS_A_CLIENT: Final = 4
SIZES: Final = (0, 3, 700, 4 * KIB, 40 * KIB, 40 * KIB, 300 * KIB, MIB + 12_345)
COPY_EVERY_WRITES: Final = 9


# --- what is noted beside the calls of the file system -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Asked:
    """A client asks that a key hold a body, by its digest, or DELETED."""

    key: str
    digest: str


@dataclass(frozen=True, slots=True)
class Told:
    """It was answered 200."""

    key: str


@dataclass(frozen=True, slots=True)
class PartTold:
    """A part of an upload was acknowledged."""

    upload_id: str
    number: int
    etag: str


@dataclass(frozen=True, slots=True)
class UploadEnds:
    """A client asks to complete or abort an upload."""

    upload_id: str


@dataclass(frozen=True, slots=True)
class OriginHas:
    """What the origin holds from now on: digests by key."""

    objects: dict[str, str]


@dataclass(frozen=True, slots=True)
class IndexCopied:
    """RocksDB's directory was copied; `is_checkpoint`: just after a checkpoint had returned."""

    path: Path
    is_checkpoint: bool


# --- recording -----------------------------------------------------------------------------------------------------------


class RecordingIndex:
    """A RocksIndex whose directory is copied after each checkpoint, and after some batches."""

    def __init__(self, index: RocksIndex, home: "RecordingHome") -> None:
        self._index = index
        self._home = home
        self._writes = 0

    def get(self, family: Family, key: bytes, /) -> bytes | None:
        """Give a row."""
        return self._index.get(family, key)

    def scan(
        self, family: Family, start: bytes, stop: bytes | None, limit: int, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Give rows."""
        return self._index.scan(family, start, stop, limit, reverse=reverse)

    def write(self, batch: Sequence[IndexWrite]) -> None:
        """Write a batch."""
        self._index.write(batch)
        self._writes += 1
        if self._writes % COPY_EVERY_WRITES == 0:
            self._home.copy(is_checkpoint=False)

    def checkpoint(self) -> None:
        """Make batches durable."""
        self._index.checkpoint()
        self._home.copy(is_checkpoint=True)

    def close(self) -> None:
        """Release the database."""
        self._index.close()


@dataclass
class RecordingHome:
    """`recovery.IndexHome` of RocksDB in `path`, copied to `copies`."""

    path: Path
    copies: Path
    log: Log

    def open(self) -> RecordingIndex:
        """Open or create the database."""
        return RecordingIndex(RocksIndex.open(str(self.path)), self)

    def destroy(self) -> None:
        """Remove the database."""
        RocksIndex.destroy(str(self.path))

    def copy(self, *, is_checkpoint: bool) -> None:
        """Copy it as it is."""
        target = self.copies / str(self.log.take_id())
        shutil.copytree(self.path, target)
        self.log.note(IndexCopied(target, is_checkpoint))


@dataclass
class Recorded:
    """What a load left: the log, and the bodies by ETag."""

    log: Log = field(default_factory=Log)
    bodies: dict[str, bytes] = field(default_factory=dict)

    def body(self, data: bytes) -> str:
        """Remember a body and the ETag of a one-part upload of it; give its digest."""
        md5 = hashlib.md5(data)
        self.bodies[md5.hexdigest()] = self.bodies[f"{hashlib.md5(md5.digest()).hexdigest()}-1"] = data
        return md5.hexdigest()

    def digest(self, etag: str) -> str:
        """Give the digest of the body with an ETag."""
        return hashlib.md5(self.bodies[etag]).hexdigest()


async def record(root: Path, seed: int, steps: int) -> Recorded:
    """Run a load on a new directory under `root`."""
    recorded, draws = Recorded(), random.Random(seed)
    directory = root / "cache"
    directory.mkdir()
    (root / "copies").mkdir()
    filesystem = RecordingFilesystem(PosixFilesystem(str(directory)), recorded.log)
    home = RecordingHome(directory / "index", root / "copies", recorded.log)
    async with PausedOrigin() as origin:
        _note_origin(origin, recorded.log)
        origin.faults.add(*[Fault(operation="PutObject", status=400, code="X", skip=8) for _ in range(8)])
        async with running_engine(
            origin=origin, filesystem=filesystem, index_home=home, cache_bytes=64 * MIB
        ) as running:
            running.engine._recovered.journal._file_bytes = 12 * KIB
            running.engine._components.compaction._compact_bytes = 24 * KIB
            await _Load(running, recorded, draws, steps).run()
            # What comes behind is an orderly stop, of which `load.py` makes images.
            end = len(recorded.log.events)
    del recorded.log.events[end:]
    return recorded


def _note_origin(origin: PausedOrigin, log: Log) -> None:
    store, handle = origin.store, origin.store.handle

    def handle_and_note(operation: str, request: Received) -> Reply:
        reply = handle(operation, request)
        if request.method not in {"GET", "HEAD"} and BUCKET in store.buckets:
            objects = store.buckets[BUCKET].objects
            log.note(OriginHas({key: hashlib.md5(one.body).hexdigest() for key, one in objects.items()}))
        return reply

    store.handle = handle_and_note  # type: ignore[method-assign]  # what it holds is to be known at each time


class _Load:
    def __init__(self, running: RunningEngine, recorded: Recorded, draws: random.Random, steps: int) -> None:
        self._running = running
        self._recorded = recorded
        self._log = recorded.log
        self._draws = draws
        self._steps = steps

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            clients = [tasks.create_task(self._client(number)) for number in range(CLIENTS)]
            upkeep = tasks.create_task(self._upkeep())
            await asyncio.wait(clients)
            upkeep.cancel()

    async def _client(self, number: int) -> None:
        for _ in range(self._steps):
            key = f"c{number}k{self._draws.randrange(KEYS_A_CLIENT)}"
            choice = self._draws.random()
            if choice < 0.6:
                data = self._new_body()
                await self._change(key, self._recorded.body(data), self._running.put(key, data))
            elif choice < 0.75:
                work = self._running.engine.delete_object(ObjectName(BUCKET, key))
                await self._change(key, DELETED, work)
            else:
                await self._upload(key)

    def _new_body(self) -> bytes:
        size = self._draws.choice(SIZES)
        return b"%d" % self._draws.getrandbits(64) + self._draws.randbytes(size)

    async def _change(self, key: str, digest: str, work: object) -> None:
        self._log.note(Asked(key, digest))
        await work  # type: ignore[misc]  # any of the engine's coroutines
        self._log.note(Told(key))

    async def _upload(self, key: str) -> None:
        name, engine = ObjectName(BUCKET, key), self._running.engine
        upload_id, _ = await engine.create_upload(UploadRequest(name))
        data = self._new_body()
        digest = self._recorded.body(data)
        part = await engine.upload_part(name, upload_id, 1, BytesContent(data))
        self._log.note(PartTold(upload_id, 1, part.etag))
        choice = self._draws.random()
        if choice < 0.6:
            self._log.note(UploadEnds(upload_id))
            work = engine.complete_upload(name, upload_id, [CompletedPart(1, part.etag)])
            await self._change(key, digest, work)
        elif choice < 0.8:
            self._log.note(UploadEnds(upload_id))
            await engine.abort_upload(name, upload_id)

    async def _upkeep(self) -> None:
        components = self._running.engine._components
        while True:
            await asyncio.sleep(self._draws.random() * 0.05)
            if self._draws.random() < 0.5:
                await components.applier.checkpoint()
            else:
                await components.compaction.run_if_due()


# --- cutting -------------------------------------------------------------------------------------------------------------


@dataclass
class Known:
    """What clients and the origin knew at one place of the log."""

    told: dict[str, str] = field(default_factory=dict)
    asked: dict[str, str] = field(default_factory=dict)
    parts: dict[str, dict[int, str]] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    copies: list[IndexCopied] = field(default_factory=list)

    def note(self, event: object) -> None:
        """Take an event over."""
        match event:
            case Asked(key, digest):
                self.asked[key] = digest
            case Told(key):
                self.told[key] = self.asked.pop(key)
            case PartTold(upload_id, number, etag):
                self.parts.setdefault(upload_id, {})[number] = etag
            case UploadEnds(upload_id):
                self.parts.pop(upload_id, None)
            case OriginHas(objects):
                self.origin = objects
            case IndexCopied():
                self.copies.append(event)
            case _:
                pass

    def allowed(self, key: str) -> set[str]:
        """Say what may be there of a key."""
        told = self.told.get(key, DELETED)
        return {told, self.asked.get(key, told)}


@dataclass
class _Home:
    path: str

    def open(self) -> RocksIndex:
        return RocksIndex.open(self.path)

    def destroy(self) -> None:
        RocksIndex.destroy(self.path)


@dataclass
class Cuts:
    """Makes images and checks them, in directories under `root`."""

    recorded: Recorded
    root: Path
    draws: random.Random
    done: int = 0
    kinds: dict[str, int] = field(default_factory=dict)

    def run(self, places: Sequence[int]) -> None:
        """Cut at these places of the log, which ascend; ViolationError at the first that shows something."""
        replay, known = Replay(), Known()
        waiting = list(places)
        for place, event in enumerate(self.recorded.log.events):
            while waiting and waiting[0] == place:
                waiting.pop(0)
                self._cut(place, replay.filesystem, known)
            if not replay.apply(event):
                known.note(event)

    def _cut(self, place: int, filesystem: FakeFilesystem, known: Known) -> None:
        self.done += 1
        left = filesystem.crash_clone(self.draws, self.draws.choice([0.0, 0.5, 0.9]))
        copy = self._index_copy(known)
        try:
            if self.draws.random() < 0.2:
                left = self._cut_start(left, copy)
            directory = self._directory(left, copy)
            recovered = recover(_parts(PosixFilesystem(str(directory)), directory))
            try:
                _Check(self.recorded, known, recovered, directory).run()
            finally:
                recovered.release()
                shutil.rmtree(directory)
        except ViolationError as violation:
            raise ViolationError(f"cut {self.done}, at event {place}: {violation}") from violation
        except StorageError as error:
            raise ViolationError(
                f"cut {self.done}, at event {place}: the start is refused: {error!r}"
            ) from error

    def _index_copy(self, known: Known) -> Path | None:
        """Choose what is left of the index: nothing, an earlier checkpoint, or a copy since the last one."""
        newest = max((n for n, copy in enumerate(known.copies) if copy.is_checkpoint), default=None)
        choice = self.draws.random()
        if newest is None or choice < 0.15:
            self._count("no index")
            return None
        if choice < 0.3:
            self._count("an earlier index")
            return self.draws.choice(known.copies[: newest + 1]).path
        self._count("an index")
        return self.draws.choice(known.copies[newest:]).path

    def _count(self, kind: str) -> None:
        self.kinds[kind] = self.kinds.get(kind, 0) + 1

    def _directory(self, left: FakeFilesystem, copy: Path | None) -> Path:
        directory = self.root / f"image-{self.done}"
        write_out(left, directory)
        if copy is not None:
            shutil.copytree(copy, directory / "index", dirs_exist_ok=True)
        return directory

    def _cut_start(self, left: FakeFilesystem, copy: Path | None) -> FakeFilesystem:
        """Start an image, and cut the power anywhere in the start; the index stays as it was before."""
        self._count("a cut start")
        directory, log = self._directory(left, copy), Log()
        recovered = recover(_parts(RecordingFilesystem(PosixFilesystem(str(directory)), log), directory))
        recovered.release()
        shutil.rmtree(directory)
        replay = Replay(left)
        for event in log.events[: self.draws.randint(0, len(log.events))]:
            replay.apply(event)
        return replay.filesystem.crash_clone(self.draws, self.draws.choice([0.0, 0.5, 0.9]))


def _parts(filesystem: Filesystem, directory: Path) -> Parts:
    return Parts(filesystem, _Home(str(directory / "index")), ORIGIN, bytes(range(16)))


@dataclass
class _Check:
    """Compares a recovered directory with what was known."""

    recorded: Recorded
    known: Known
    recovered: Recovered
    directory: Path

    def run(self) -> None:
        try:
            check_rows(self.recovered.index)
        except (AssertionError, DamagedError) as error:
            raise ViolationError(f"rows contradict each other: {error}") from error
        for key in sorted({*self.known.told, *self.known.asked}):
            self._check_key(key)
        for upload_id, parts in self.known.parts.items():
            self._check_upload(upload_id, parts)

    def _check_key(self, key: str) -> None:
        rows = Rows(self.recovered.index)
        overlay, record = rows.overlay(BUCKET, key), rows.object(BUCKET, key)
        if overlay is None:
            # The journal said that the origin has it.
            found = self.known.origin.get(key, DELETED)
        else:
            found = DELETED if overlay.is_tombstone else self.recorded.digest(overlay.etag)
        allowed = self.known.allowed(key)
        if found not in allowed:
            raise ViolationError(
                f"{key}: {found[:8]!r} {'clean' if overlay is None else 'dirty'}, not {allowed}"
            )
        if record is None:
            return
        if overlay is None and self.recorded.digest(record.etag) != found:
            raise ViolationError(f"{key}: {record.etag} is cached, the origin has {found[:8]!r}")
        body = self.recorded.bodies[record.etag]
        is_dirty = record.state is not ObjectState.CLEAN
        self._check_extents(key, body, read_extents(rows, record), is_dirty=is_dirty)

    def _check_extents(self, what: str, body: bytes, extents: tuple[Extent, ...], *, is_dirty: bool) -> None:
        for extent in extents:
            data = self._read(extent)
            is_right = data is not None and checksums(data) == extent.location.checksums
            if not is_right and is_dirty:
                raise ViolationError(f"{what}: acknowledged bytes of {extent} are lost")
            if is_right and data != body[extent.start : extent.stop]:
                raise ViolationError(f"{what}: wrong bytes with a right checksum at {extent}")

    def _read(self, extent: Extent) -> bytes | None:
        place = extent.location
        for path in (segment_path(place.segment_id), journal_path(place.segment_id)):
            with suppress(FileNotFoundError), (self.directory / path).open("rb") as file:
                file.seek(place.offset)
                return file.read(place.length)
        return None

    def _check_upload(self, upload_id: str, parts: dict[int, str]) -> None:
        rows = Rows(self.recovered.index)
        if rows.upload(upload_id) is None:
            raise ViolationError(f"upload {upload_id} is gone")
        found = {part.number: part for part in rows.parts(upload_id)}
        for number, etag in parts.items():
            if number not in found or found[number].etag != etag:
                raise ViolationError(f"part {number} of {upload_id} is gone")
            extents = found[number].extents
            self._check_extents(f"{upload_id}/{number}", self.recorded.bodies[etag], extents, is_dirty=True)
