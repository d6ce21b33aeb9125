"""The uploads at the origin that are our own: opened, filled, and ended there however long that takes.

    open: CreateMultipartUpload ──> OriginUploadOpened through the door ──> parts may be sent
    completed: the flush that completes it commits Flushed, which takes its row away
    left over (its change or its client's upload has ended): no part under way any more ──> AbortMultipartUpload, again and
        again ──> OriginUploadEnded through the door

Between the two mutations the journal knows the upload, so that a start ends what the process before has left. An upload whose
opening was sent and not answered, or not journaled before a kill, is known to nobody; it has no part, and stays for the bucket's
lifecycle rules.

A part that is sent while its upload is aborted may stay, and be paid for (AWS API_AbortMultipartUpload). So an abort waits for the
parts under way; and where one of them had no answer, or may be of the process before, it is repeated once such a request
cannot land any more.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass
from typing import Final

from storage.clock import Clock
from storage.commit import Commit
from storage.errors import (
    EngineClosedError,
    NoSuchUploadError,
    OriginError,
    StorageError,
    UnknownOutcomeError,
)
from storage.origin.answers import WriteAnswer
from storage.origin.client import OriginClient
from storage.origin.multipart import PartTarget
from storage.origin.wire import Describes, OutgoingBody, object_headers
from storage.records import FORMAT, Mutation, OriginUploadEnded, OriginUploadOpened
from storage.rows import Effects
from storage.types import Checksum, ObjectName, Priority

log = logging.getLogger(__name__)

PART_PAGES_MAX: Final = 100
"""Pages of ListParts that are read of one upload; 10,000 parts are ten."""

ABORTS_MAX: Final = 48
ABORT_S_MIN: Final = 1.0
ABORT_S_MAX: Final = 600.0
"""An upload that is left over is aborted so often in one process, with doubling waits, some seven hours in all."""

COMMITS_MAX: Final = 100
COMMIT_RETRY_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class OriginUpload:
    """An upload of ours at the origin."""

    name: ObjectName
    upload_id: str


@dataclass(frozen=True, slots=True)
class Owner:
    """What an upload at the origin is for: a client's open upload, or a dirty change. Exactly one is set."""

    upload_id: str = ""
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A part that the origin has."""

    etag: str
    size: int


@dataclass(slots=True)
class OriginUploadsParts:
    """What this works with; made once by the engine."""

    origin: OriginClient
    commit: Commit
    clock: Clock
    rng: random.Random
    origin_timeout_s: float


class OriginUploads:
    """Knows all uploads of ours at the origin, and owns the tasks that end those that are left over."""

    def __init__(self, parts: OriginUploadsParts) -> None:
        self._parts = parts
        self._known: dict[str, OriginUpload] = {}
        self._under_way: Counter[str] = Counter()
        self._idle: dict[str, asyncio.Event] = {}
        # A request that had no answer may still land in these.
        self._unsure: set[str] = set()
        self._ending: dict[str, asyncio.Task[None]] = {}
        self._is_closed = False

    def ids(self) -> frozenset[str]:
        """Name the uploads at the origin that no client opened."""
        return frozenset(self._known)

    # --- from the index and its changes ------------------------------------------------------------------------------

    def load(self, opened: Iterable[OriginUploadOpened], named: frozenset[str]) -> None:
        """Take over what the process before opened; what is not in `named` is left over, and is ended."""
        for one in opened:
            upload = OriginUpload(ObjectName(one.bucket, one.key), one.origin_upload_id)
            self.know(upload)
            # Parts that the process before was sending may still land.
            self._unsure.add(one.origin_upload_id)
            if one.origin_upload_id not in named:
                self.end(upload)

    def absorb(self, effects: Effects) -> None:
        """End what a batch left over; a listener of the engine's state."""
        for one in effects.origin_uploads_left:
            self.end(OriginUpload(ObjectName(one.bucket, one.key), one.origin_upload_id))

    def take_over(self, before: "OriginUploads") -> None:
        """End what the life before opened and could not journal; `load` comes first, and knows all others."""
        for upload in before._known.values():  # noqa: SLF001 - of the same class
            if upload.upload_id not in self._known:
                self._unsure.add(upload.upload_id)
                self.end(upload)

    def know(self, upload: OriginUpload) -> None:
        """Count an upload as ours."""
        self._known[upload.upload_id] = upload

    def forget(self, upload: OriginUpload) -> None:
        """Stop counting an upload as ours, which the origin has completed."""
        if upload.upload_id not in self._ending:
            self._known.pop(upload.upload_id, None)
            self._unsure.discard(upload.upload_id)

    # --- open, fill, look --------------------------------------------------------------------------------------------

    async def open(
        self,
        name: ObjectName,
        described: Describes,
        checksum_headers: tuple[tuple[str, str], ...],
        owner: Owner,
        priority: Priority,
    ) -> OriginUpload:
        """Open an upload at the origin; durably known on return. It may have no owner any more by then, and be ended.

        Raises:
            OriginError: Refused, failed, or without an answer.
            StorageError: It could not be journaled, and is ended again.
        """
        upload_id = await self._parts.origin.create_multipart_upload(
            name, object_headers(described) + checksum_headers, priority=priority
        )
        upload = OriginUpload(name, upload_id)
        self.know(upload)
        try:
            await self._parts.commit.commit(
                OriginUploadOpened(FORMAT, upload_id, name.bucket, name.key, owner.upload_id, owner.sequence)
            )
        except StorageError:
            self.end(upload)
            raise
        return upload

    async def send_part(
        self, upload: OriginUpload, number: int, body: OutgoingBody, priority: Priority
    ) -> WriteAnswer:
        """Send a part; whoever waits in `idle` waits for it.

        Raises:
            NoSuchUploadError: The upload is gone.
            OriginError: Refused, failed, or without an answer: then it may still land.
        """
        self._under_way[upload.upload_id] += 1
        try:
            return await self._parts.origin.upload_part(
                PartTarget(upload.name, upload.upload_id, number), body, priority=priority
            )
        except OriginError as error:
            if error.outcome_unknown:
                self._unsure.add(upload.upload_id)
            raise
        finally:
            self._under_way[upload.upload_id] -= 1
            if not self._under_way[upload.upload_id]:
                del self._under_way[upload.upload_id]
                idle = self._idle.pop(upload.upload_id, None)
                if idle is not None:
                    idle.set()

    async def idle(self, upload: OriginUpload) -> None:
        """Return when no part of an upload is under way."""
        while upload.upload_id in self._under_way:
            await self._idle.setdefault(upload.upload_id, asyncio.Event()).wait()

    async def parts(self, upload: OriginUpload, priority: Priority) -> dict[int, FoundPart]:
        """Say which parts the origin has, by number.

        Raises:
            NoSuchUploadError: The upload is gone: dropped, or completed.
            OriginError: The origin failed.
        """
        found: dict[int, FoundPart] = {}
        marker = 0
        for _ in range(PART_PAGES_MAX):
            page = await self._parts.origin.list_parts(
                upload.name, upload.upload_id, marker=marker, priority=priority
            )
            found |= {part.number: FoundPart(part.etag, part.size) for part in page.parts}
            if not page.is_truncated:
                break
            marker = page.next_marker
        return found

    # --- end ---------------------------------------------------------------------------------------------------------

    def end(self, upload: OriginUpload) -> None:
        """See to it that an upload which nobody will complete goes away at the origin; begun at once, done some time."""
        self.know(upload)
        if self._is_closed or upload.upload_id in self._ending:
            return
        self._start(upload, self._end(upload))

    def is_ending(self, upload_id: str) -> bool:
        """Whether an upload is being aborted, or forgotten: nobody goes on with it."""
        return upload_id in self._ending

    def note_gone(self, upload: OriginUpload) -> None:
        """Learn that the origin does not know an upload any more."""
        if not self._is_closed and upload.upload_id not in self._ending:
            self._start(upload, self._forget_durably(upload))

    def _start(self, upload: OriginUpload, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"end-upload-{upload.name}")
        self._ending[upload.upload_id] = task
        task.add_done_callback(lambda _: self._ended(upload))

    def _ended(self, upload: OriginUpload) -> None:
        task = self._ending.pop(upload.upload_id)
        if not task.cancelled() and (bug := task.exception()) is not None:
            # The next start finds it again.
            log.error("the upload of %s cannot be ended", upload.name, exc_info=bug)

    async def _end(self, upload: OriginUpload) -> None:
        await self.idle(upload)
        is_gone = await self._abort(upload)
        if is_gone and upload.upload_id in self._unsure:
            await self._parts.clock.sleep(self._parts.origin_timeout_s)
            is_gone = await self._abort(upload)
        if not is_gone:
            log.warning(
                "upload %s of %s stays at the origin, where it cannot be aborted: the bucket's lifecycle rules have to end it",
                upload.upload_id,
                upload.name,
            )
        await self._forget_durably(upload)

    async def _abort(self, upload: OriginUpload) -> bool:
        """Abort until the origin says that it is gone; False where it did not for a long time.

        That there is no bucket does not say it: one that is away for a while comes back with the upload.
        """
        wait_s = ABORT_S_MIN
        for _ in range(ABORTS_MAX):
            try:
                await self._parts.origin.abort_multipart_upload(
                    upload.name, upload.upload_id, priority=Priority.FLUSH
                )
            except NoSuchUploadError:
                return True
            except StorageError as error:
                log.info("upload %s of %s is not aborted yet: %s", upload.upload_id, upload.name, error)
            else:
                return True
            await self._parts.clock.sleep(wait_s * (0.5 + self._parts.rng.random()))
            wait_s = min(ABORT_S_MAX, wait_s * 2)
        return False

    async def _forget_durably(self, upload: OriginUpload) -> None:
        if await self._journal(OriginUploadEnded(FORMAT, upload.upload_id)):
            self._known.pop(upload.upload_id, None)
            self._unsure.discard(upload.upload_id)

    async def _journal(self, mutation: Mutation) -> bool:
        """Commit, again while the disk refuses; False where the door is closed or the disk stays bad: the next start goes on."""
        for _ in range(COMMITS_MAX):
            try:
                await self._parts.commit.commit(mutation)
            except (UnknownOutcomeError, EngineClosedError):
                return False
            except StorageError as error:
                log.warning("the end of an upload at the origin cannot be journaled yet: %s", error)
                await self._parts.clock.sleep(COMMIT_RETRY_S + self._parts.rng.random())
            else:
                return True
        return False

    async def close(self) -> None:
        """Cut what is being ended; it is in the journal, and the next start goes on with it."""
        self._is_closed = True
        for task in self._ending.values():
            task.cancel()
        while self._ending:
            await asyncio.wait(tuple(self._ending.values()))


def upload_checksum_headers(checksum_algorithm: str, checksum_type: str) -> tuple[tuple[str, str], ...]:
    """Ask the origin to keep a checksum with the upload's object; all parts have one then. None where the algorithm is ""."""
    if not checksum_algorithm:
        return ()
    told = (("x-amz-checksum-algorithm", checksum_algorithm),)
    return (*told, ("x-amz-checksum-type", checksum_type)) if checksum_type else told


def checksum_headers_of(checksums: tuple[Checksum, ...]) -> tuple[tuple[str, str], ...]:
    """Ask the origin to keep the checksum that an object has."""
    return upload_checksum_headers(checksums[0].algorithm.value, checksums[0].type.value) if checksums else ()
