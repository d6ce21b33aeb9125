"""A load on an open directory, and power cuts anywhere in it.

`Cutter` is called before each call that changes the disk and around each write of the index, those of the start itself
included. Now and then it makes an image of what a power cut or a SIGKILL right there would leave, starts it, and compares
it with what clients were told so far. Sometimes the start is itself cut short, up to three times in a row, and sometimes
the machine loses power once more right after it. The index of an image is gone, a copy from an earlier checkpoint, or as
of the last checkpoint or any batch after it.

`Load` is what goes on meanwhile: clients that put, delete, upload and go away, flush confirmations, refusals, releases
and discards, fills, checkpoints, compactions, reclaim. Everything runs in one thread, so that a seed gives one run.
"""

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field

from storage.compaction import Compaction
from storage.errors import DiskFullError, StorageError
from storage.eviction import EvictionPolicy
from storage.family import IndexWrite
from storage.recovery import Recovered, recover
from storage.rows import Rows
from storage.types import KIB, MIB
from tests.crash.expectation import DELETED, Expectation, UploadState, ViolationError, settled_state
from tests.fakes.filesystem import CHANGING, FakeFile, FakeFilesystem, Halted, Operation, _Fault
from tests.fakes.index import FakeIndex
from tests.fakes.open_directory import IndexHome, OpenDirectory, open_directory, recovery_parts
from tests.fakes.workers import InlineWorkers

CAPACITY_BYTES = 12 * MIB
DIRTY_BYTES_MAX = 5 * MIB
JOURNAL_FILE_BYTES = 12 * KIB
COMPACT_BYTES = 24 * KIB
CLIENTS = 4
KEYS_A_CLIENT = 4
PARTS_MAX = 3
MANY_PARTS = 18
CUT_STARTS = (0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 3)
"""How many starts in a row are cut short, drawn for each cut."""

COPIES_MAX = 4
"""Copies of the index at earlier checkpoints that may come back."""


class DeafFile(FakeFile):
    """A file whose sync does nothing, and says that it did."""

    def fdatasync(self) -> None:
        """Return at once."""


class CutFilesystem(FakeFilesystem):
    """Calls back before each changing call. Two bugs can be planted in it.

    What `is_deaf` names is not synced, whatever is asked. With `forgets_renames` the sync of a directory after a rename in
    it does nothing. Clones are plain: whoever starts from one has a disk that does what it says.
    """

    def __init__(self, seed: int) -> None:
        super().__init__(seed=seed)
        self.before_change: Callable[[str], None] = lambda _what: None
        self.is_deaf: Callable[[str], bool] = lambda _path: False
        self.forgets_renames = False
        self._renamed: set[str] = set()

    def take_over(self, left: FakeFilesystem) -> None:
        """Go on with what another file system holds."""
        self._tree = left._tree

    def call(
        self, operation: Operation, path: str, offset: int = 0, length: int = 0
    ) -> AbstractContextManager[_Fault | None]:
        """Call back, then record the call."""
        if operation in CHANGING:
            self.before_change(f"{operation} {path}")
        return super().call(operation, path, offset, length)

    def create(self, path: str) -> FakeFile:
        """Create a file, deaf or not."""
        file = super().create(path)
        if self.is_deaf(path):
            file.__class__ = DeafFile
        return file

    def rename(self, path: str, target: str) -> None:
        """Give a file another name."""
        super().rename(path, target)
        self._renamed.add(target.rpartition("/")[0])

    def sync_directory(self, path: str) -> None:
        """Make names durable, or not."""
        is_forgotten = self.forgets_renames and path in self._renamed
        self._renamed.discard(path)
        if not self.is_deaf(path) and not is_forgotten:
            super().sync_directory(path)


class CutIndex(FakeIndex):
    """Calls back before and after each write and checkpoint, and keeps copies of the last checkpoints.

    With `is_deaf` a checkpoint does nothing and says that it did: a planted bug.
    """

    def __init__(self) -> None:
        super().__init__()
        self.around_write: Callable[[str], None] = lambda _what: None
        self.is_deaf = False
        self.copies: deque[FakeIndex] = deque(maxlen=COPIES_MAX)

    def take_over(self, left: FakeIndex) -> None:
        """Go on with the rows of another index."""
        self._tables, self._durable, self._unsynced = left._tables, left._durable, left._unsynced

    def write(self, batch: Sequence[IndexWrite]) -> None:
        """Write a batch."""
        self.around_write("before index write")
        super().write(batch)
        self.around_write("after index write")

    def checkpoint(self) -> None:
        """Make batches durable."""
        self.around_write("before checkpoint")
        if not self.is_deaf:
            super().checkpoint()
            self.copies.append(self.checkpoint_clone())
        self.around_write("after checkpoint")


class CutHome(IndexHome):
    """`recovery.IndexHome` over CutIndexes: closed and opened again, one has what was not durable still before it."""

    def open(self) -> FakeIndex:
        """Give the index."""
        self.index._is_closed = False
        return self.index


@dataclass
class Cutter:
    """Makes images and checks them; the first violation ends all."""

    expectation: Expectation
    draws: random.Random
    chance: float
    cuts_max: int
    cuts: int = 0
    violation: str = ""
    filesystem: CutFilesystem | None = None
    index: CutIndex | None = None
    directory: OpenDirectory | None = None
    is_stopped: bool = False
    kinds: dict[str, int] = field(default_factory=dict)

    @property
    def is_done(self) -> bool:
        """Whether enough was cut, or something was found."""
        return bool(self.violation) or self.cuts >= self.cuts_max

    def consider(self, where: str) -> None:
        """Cut here, with the chance that was given."""
        if self.draws.random() < self.chance:
            self.cut(where)

    def cut(self, where: str) -> None:
        """Cut here, if a directory is open."""
        if self.is_done or self.filesystem is None:
            return
        self.cuts += 1
        try:
            self._cut(where)
        except ViolationError as violation:
            self.violation = f"cut {self.cuts}, before {where}: {violation}"
        except StorageError as error:
            self.violation = f"cut {self.cuts}, before {where}: the start is refused: {error!r}"

    def _cut(self, where: str) -> None:
        assert self.filesystem is not None
        self.kinds[where.partition(" ")[0]] = self.kinds.get(where.partition(" ")[0], 0) + 1
        filesystem, index = self._image(self.filesystem, self.index)
        for _ in range(self.draws.choice(CUT_STARTS)):
            filesystem, index = self._cut_start(filesystem, index)
        recovered, home = _start(filesystem, index)
        self._check(filesystem, recovered)
        if self.draws.random() < 0.3:
            # What the start accepted it may have acted upon: it must survive whatever comes next.
            left, left_index = self._image(filesystem, home.index, lost_index=0.3)
            again, _ = _start(left, left_index)
            self._check(left, again)

    def _image(
        self, filesystem: FakeFilesystem, index: FakeIndex | None, *, lost_index: float = 0.15
    ) -> tuple[FakeFilesystem, FakeIndex | None]:
        is_power_cut = self.draws.random() < 0.75
        left = (
            filesystem.crash_clone(self.draws, self.draws.choice([0.0, 0.5, 0.9]))
            if is_power_cut
            else filesystem.kill_clone()
        )
        if index is None or self.draws.random() < lost_index:
            return left, None
        # After a clean stop what is cached is trusted, as the index was made durable before its record was written.
        if (
            isinstance(index, CutIndex)
            and index.copies
            and not self.is_stopped
            and self.draws.random() < 0.15
        ):
            return left, self.draws.choice(index.copies).kill_clone()
        batches = index.batches_after_checkpoint
        kept = self.draws.choice([0, self.draws.randint(0, batches), batches]) if is_power_cut else batches
        return left, index.clone_at(kept)

    def _cut_start(
        self, filesystem: FakeFilesystem, index: FakeIndex | None
    ) -> tuple[FakeFilesystem, FakeIndex | None]:
        filesystem.halt_at(self.draws.randint(1, 20))
        home = IndexHome(index)
        with suppress(Halted):
            recover(recovery_parts(filesystem, home))
        return self._image(filesystem, home.index)

    def _check(self, filesystem: FakeFilesystem, recovered: Recovered) -> None:
        self.expectation.check(filesystem, recovered)
        if self.directory is not None:
            used = self.directory.recovered.ids
            fresh = recovered.ids
            if fresh._next_version_id < used._next_version_id:
                raise ViolationError(f"version ids from {fresh._next_version_id} on come back")
            if fresh._next_segment_counter < used._next_segment_counter:
                raise ViolationError(f"segment ids from {fresh._next_segment_counter} on come back")


def _start(filesystem: FakeFilesystem, index: FakeIndex | None) -> tuple[Recovered, IndexHome]:
    home = IndexHome(index)
    return recover(recovery_parts(filesystem, home)), home


class Load:
    """Clients and upkeep of one open directory."""

    def __init__(self, directory: OpenDirectory, cutter: Cutter, draws: random.Random, run: "Run") -> None:
        self._directory = directory
        self._cutter = cutter
        self._expectation = cutter.expectation
        self._draws = draws
        self._steps = run.steps
        self._keys = run.keys_a_client
        self._dirty_bytes_max = run.dirty_bytes_max
        self._compaction = Compaction(
            filesystem=directory.filesystem,
            index=directory.index,
            journal=directory.journal,
            segments=directory.segments,
            commit=directory.commit,
            applier=directory.applier,
            workers=InlineWorkers(),
            take_segment_id=directory.recovered.ids.take_segment_id,
            instance_id=directory.recovered.layout.instance_id,
            compact_bytes=COMPACT_BYTES,
        )

    async def run(self) -> None:
        """Go on for so many steps a client, or until something was found."""
        async with asyncio.TaskGroup() as tasks:
            clients = [tasks.create_task(self._client(number)) for number in range(CLIENTS)]
            upkeep = tasks.create_task(self._upkeep())
            await asyncio.wait(clients)
            upkeep.cancel()

    async def _client(self, number: int) -> None:
        keys = [f"c{number}k{n}" for n in range(self._keys)]
        for _ in range(self._steps):
            if self._cutter.is_done:
                return
            await self._step(self._draws.choice(keys))

    async def _step(self, key: str) -> None:
        state = self._expectation.key(key)
        choice = self._draws.random()
        if state.is_refused and (choice < 0.4 or self._is_crowded):
            await self._settle_refused(key)
        elif state.dirty is not None and not state.is_refused and (choice < 0.25 or self._is_crowded):
            if choice < 0.06:
                await self._mark(key, self._directory.quarantine(key, "refused"))
            else:
                await self._flush(key)
        elif state.newest_clean and choice < 0.03:
            await self._forget(key)
        elif choice < 0.60 and not self._is_crowded:
            await self._put(key)
        elif choice < 0.70:
            await self._change(key, DELETED, self._directory.delete(key))
        elif choice < 0.84:
            await self._upload(key)
        elif choice < 0.86 and not self._is_crowded:
            await self._upload_many(key)
        elif state.dirty is None:
            await self._fill(key)

    @property
    def _is_crowded(self) -> bool:
        return self._directory.state.dirty_bytes > self._dirty_bytes_max

    def _new_body(self) -> bytes:
        size = self._draws.choice([0, 3, 700, 4 * KIB, 40 * KIB, 40 * KIB, 300 * KIB, 2 * MIB + 12_345])
        # A body that no other one is like.
        return (
            self._draws.randbytes(size) if size > 700 else b"%d" % self._draws.getrandbits(64) + bytes(size)
        )

    # --- what clients do ---------------------------------------------------------------------------------------------

    async def _put(self, key: str) -> None:
        data = self._new_body()
        work = self._directory.put(key, data)
        if self._draws.random() < 0.15:
            await self._give_up(key, self._expectation.body(data), work)
        else:
            await self._change(key, self._expectation.body(data), work)

    async def _change(self, key: str, etag: str, work: object) -> None:
        state = self._expectation.key(key)
        state.pending = etag
        try:
            await work  # type: ignore[misc]  # any of the directory's coroutines
        except DiskFullError:
            state.pending = None
        else:
            state.acknowledge()

    async def _give_up(self, key: str, etag: str, work: object) -> None:
        """Let a client go away in the middle; afterwards the outcome is decided, and the rows say which."""
        self._expectation.key(key).pending = etag
        task = asyncio.ensure_future(work)  # type: ignore[call-overload]  # any of the directory's coroutines
        for _ in range(self._draws.randrange(12)):
            await asyncio.sleep(0)
        task.cancel()
        with suppress(asyncio.CancelledError, DiskFullError):
            await task
        settled = settled_state(Rows(self._directory.index), key)
        before = self._expectation.key(key)
        # Clean versions that a power cut may bring back are those from before, unless the put replaced them.
        settled.clean |= before.clean if settled.dirty is None else set()
        self._expectation.keys[key] = settled

    async def _flush(self, key: str) -> None:
        state = self._expectation.key(key)
        state.is_flushing = True
        await self._directory.flush(key)
        state.confirm()

    async def _settle_refused(self, key: str) -> None:
        """Send it again, or give it up."""
        if self._draws.random() < 0.5:
            await self._mark(key, self._directory.release(key))
            return
        state = self._expectation.key(key)
        state.is_leaving = True
        await self._directory.discard(key)
        state.discard()

    async def _mark(self, key: str, work: Awaitable[None]) -> None:
        state = self._expectation.key(key)
        state.is_marking = True
        await work
        state.mark()

    async def _forget(self, key: str) -> None:
        await self._directory.forget(key)
        self._expectation.key(key).forget()

    async def _fill(self, key: str) -> None:
        data = self._new_body()
        etag, state = self._expectation.body(data), self._expectation.key(key)
        before = state.newest_clean
        state.clean.add(etag)
        with suppress(DiskFullError):
            await self._directory.fill(key, data)
        present = Rows(self._directory.index).object("bucket", key)
        state.newest_clean = None if present is None else present.etag
        assert state.newest_clean in {etag, before}

    async def _upload(self, key: str) -> None:
        if self._draws.random() < 0.4 or not self._open_uploads(key):
            await self._new_upload(key)
        upload_id = self._draws.choice(self._open_uploads(key))
        for _ in range(self._draws.randint(1, 3)):
            if not self._is_crowded:
                number = self._draws.randint(1, PARTS_MAX)
                await self._put_part(upload_id, number, self._new_body())
        state = self._expectation.uploads[upload_id]
        choice = self._draws.random()
        if choice < 0.4 and state.parts:
            numbers = self._draws.sample(sorted(state.parts), self._draws.randint(1, len(state.parts)))
            await self._complete(upload_id, state, sorted(numbers))
        elif choice < 0.6:
            state.is_ending = True
            await self._directory.abort(upload_id)
            self._end(upload_id)

    async def _new_upload(self, key: str) -> str:
        self._expectation.creating += 1
        upload_id = await self._directory.create_upload(key)
        self._expectation.creating -= 1
        self._expectation.uploads[upload_id] = UploadState(key)
        return upload_id

    async def _upload_many(self, key: str) -> None:
        """Make an object of more extents than stand in its record."""
        upload_id = await self._new_upload(key)
        state = self._expectation.uploads[upload_id]
        for number in range(1, MANY_PARTS + 1):
            data = self._draws.randbytes(self._draws.choice([500, 40 * KIB]))
            await self._put_part(upload_id, number, data)
        if len(state.parts) == MANY_PARTS:
            await self._complete(upload_id, state, sorted(state.parts))

    def _open_uploads(self, key: str) -> list[str]:
        uploads = self._expectation.uploads
        return [upload_id for upload_id, state in uploads.items() if state.key == key]

    async def _put_part(self, upload_id: str, number: int, data: bytes) -> None:
        state = self._expectation.uploads[upload_id]
        state.pending[number] = self._expectation.body(data)
        with suppress(DiskFullError):
            await self._directory.put_part(upload_id, number, data)
            state.parts[number] = state.pending[number]
        del state.pending[number]

    async def _complete(self, upload_id: str, state: UploadState, numbers: list[int]) -> None:
        etag = self._expectation.joined([state.parts[number] for number in numbers])
        state.is_ending = True
        await self._change(state.key, etag, self._directory.complete(upload_id, state.key, numbers))
        self._end(upload_id)
        self._expectation.completed.add(upload_id)

    def _end(self, upload_id: str) -> None:
        del self._expectation.uploads[upload_id]
        self._expectation.ended.add(upload_id)

    # --- what goes on beside them ------------------------------------------------------------------------------------

    async def _upkeep(self) -> None:
        while True:
            for _ in range(self._draws.randrange(40)):
                await asyncio.sleep(0)
            match self._draws.randrange(4):
                case 0:
                    await self._directory.applier.checkpoint()
                case 1:
                    await self._compaction.run_if_due()
                case _:
                    await self._directory.reclaim.round()


@dataclass
class Run:
    """One run of cuts over several loads, each on what the one before left.

    Attributes:
        is_deaf: Which paths are never synced: a planted bug.
        is_index_deaf: Checkpoints of the index are claimed and not made: another.
        forgets_renames: The directory is not synced after a rename: another.
        plant: Does something to each opened directory: any other.
        policy: Makes the eviction policy of each opened directory; the one that ships by default.
        room_bytes_min: What reclaim keeps free where it can.
        keys_a_client: How many keys each client has; with more of them more is cached that is not overwritten soon.
        dirty_bytes_max: With more than this clients flush rather than write.
    """

    seed: int
    cuts: int
    chance: float = 0.04
    steps: int = 25
    is_deaf: Callable[[str], bool] = lambda _path: False
    is_index_deaf: bool = False
    forgets_renames: bool = False
    plant: Callable[[OpenDirectory], None] = lambda _directory: None
    policy: Callable[[random.Random], EvictionPolicy | None] = lambda _draws: None
    room_bytes_min: int = 3 * MIB
    keys_a_client: int = KEYS_A_CLIENT
    dirty_bytes_max: int = DIRTY_BYTES_MAX

    def start(self) -> Cutter:
        """Run until there were enough cuts, or one showed something."""
        draws = random.Random(self.seed)
        cutter = Cutter(Expectation(), random.Random(draws.getrandbits(64)), self.chance, self.cuts)
        left, index = FakeFilesystem(), FakeIndex()
        while not cutter.is_done:
            left, index = asyncio.run(self._generation(cutter, draws, left, index))
        return cutter

    async def _generation(
        self, cutter: Cutter, draws: random.Random, left: FakeFilesystem, index: FakeIndex
    ) -> tuple[FakeFilesystem, FakeIndex]:
        filesystem = self._filesystem(cutter, draws, left)
        home = self._home(cutter, index)
        cutter.filesystem = filesystem
        async with open_directory(
            filesystem,
            home,
            capacity_bytes=CAPACITY_BYTES,
            room_bytes_min=self.room_bytes_min,
            journal_file_bytes=JOURNAL_FILE_BYTES,
            policy=self.policy(draws),
        ) as directory:
            self.plant(directory)
            cutter.expectation.adopt(directory.recovered)
            cutter.directory = directory
            await Load(directory, cutter, draws, self).run()
            if draws.random() < 0.5:
                cutter.is_stopped = True
                await directory.stop()
                for _ in range(3):
                    cutter.cut("after the stop")
                cutter.is_stopped = False
            cutter.filesystem = None
        if draws.random() < 0.5:
            return filesystem.kill_clone(), home.index.kill_clone()
        kept = draws.randint(0, home.index.batches_after_checkpoint)
        return filesystem.crash_clone(draws), home.index.clone_at(kept)

    def _filesystem(self, cutter: Cutter, draws: random.Random, left: FakeFilesystem) -> CutFilesystem:
        filesystem = CutFilesystem(draws.getrandbits(32))
        filesystem.take_over(left)
        filesystem.is_deaf, filesystem.forgets_renames = self.is_deaf, self.forgets_renames
        filesystem.before_change = cutter.consider
        return filesystem

    def _home(self, cutter: Cutter, left: FakeIndex) -> CutHome:
        """Make a home of the index that was left, and of those that come after it is thrown away."""

        def make() -> CutIndex:
            index = CutIndex()
            index.is_deaf, index.around_write = self.is_index_deaf, cutter.consider
            cutter.index = index
            return index

        home = CutHome.of(make)
        assert cutter.index is not None
        cutter.index.take_over(left)
        return home
