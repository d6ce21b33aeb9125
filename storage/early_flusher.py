"""The driver of the early flush: parts of open uploads go to the origin while their client still sends others.

    effects of commits ──> EarlyFlushPlanner ──> steps ──> tasks (open, list, send) ──> EarlyFlushPlanner ...

Nothing that a client sees depends on it: its parts stay here until the flush of its Complete is confirmed, and that flush asks
the origin what it has. A step that fails, foreseen or not, costs the step. No turn of a key is held: an upload at the origin
is not seen there before its Complete.

When a client's upload ends, what has not begun to travel is cut at once; what has is let come to its end, and whoever completes or
aborts the upload at the origin waits for it (`OriginUploads.idle`).
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import assert_never

import msgspec

from storage import keys
from storage.clock import Clock
from storage.early_flush import EarlyFlushPlanner, ListUpload, OpenUpload, SendPart, Step
from storage.errors import DirtyBytesLostError, NoSuchUploadError, StorageError
from storage.family import Family
from storage.flush_events import FailureKind
from storage.flush_outcomes import failure_event
from storage.origin.wire import OutgoingBody
from storage.origin_uploads import OriginUpload, OriginUploads, Owner, upload_checksum_headers
from storage.outgoing import Outgoing
from storage.records import PartRecord, UploadRecord
from storage.rows import (
    Effects,
    RowSource,
    decode_part,
    decode_upload,
    row_at,
    rows_in,
)
from storage.stats import Stats
from storage.types import ByteRange, ObjectName, Priority

log = logging.getLogger(__name__)


@dataclass(slots=True)
class EarlyFlusherParts:
    """What the early flush works with; made once by the engine.

    Attributes:
        may_send: Whether policy and bucket let an object's parts go early.
        is_pressed: Whether the flush has no room to spare.
    """

    planner: EarlyFlushPlanner
    index: RowSource
    outgoing: Outgoing
    uploads: OriginUploads
    clock: Clock
    rng: random.Random
    stats: Stats
    may_send: Callable[[ObjectName], bool]
    is_pressed: Callable[[], bool]


@dataclass(eq=False, slots=True)
class _Travel:
    """One step under way. `has_begun` once the origin may have got some of it; then it is cut by a stop only."""

    upload_id: str
    is_opening: bool = False
    has_begun: bool = False
    task: "asyncio.Task[None] | None" = field(default=None, repr=False)


class EarlyFlusher:
    """Owns the planner of the early flush and every task that it causes."""

    def __init__(self, parts: EarlyFlusherParts) -> None:
        self._parts = parts
        self._travels: set[_Travel] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._is_closed = False

    # --- the planner's road ------------------------------------------------------------------------------------------

    def load(self, uploads: Iterable[UploadRecord]) -> None:
        """Take over the open uploads that recovery found."""
        now_s = self._parts.clock.monotonic_s()
        for upload in uploads:
            self._add(upload)
            span = keys.parts_range(upload.upload_id)
            for part in rows_in(self._parts.index, Family.PARTS, span, decode_part):
                self._parts.planner.add_part(upload.upload_id, part.number, part.size, part.etag, now_s)
        self._pump()

    def absorb(self, effects: Effects) -> None:
        """Take over what a batch changed; a listener of the engine's state."""
        if not (effects.uploads_created or effects.parts_added or effects.uploads_ended):
            return
        now_s = self._parts.clock.monotonic_s()
        for upload in effects.uploads_created:
            self._add(upload)
        for upload_id, part in effects.parts_added:
            self._parts.planner.add_part(upload_id, part.number, part.size, part.etag, now_s)
        for upload_id in effects.uploads_ended:
            self._parts.planner.end_upload(upload_id)
            self._cut(upload_id)
        self._pump()

    def _add(self, upload: UploadRecord) -> None:
        name = ObjectName(upload.bucket, upload.key)
        self._parts.planner.add_upload(upload.upload_id, name, upload.origin_upload_id)

    def _cut(self, upload_id: str) -> None:
        for travel in self._travels:
            if travel.upload_id == upload_id and not travel.has_begun and travel.task is not None:
                travel.task.cancel()

    def _pump(self) -> None:
        if self._is_closed:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_s = self._parts.clock.monotonic_s()
        steps, wake_s = self._parts.planner.steps(
            now_s, is_pressed=self._parts.is_pressed(), may_send=self._parts.may_send
        )
        for step in steps:
            self._begin(step)
        if wake_s is not None:
            self._timer = asyncio.get_running_loop().call_later(max(0.0, wake_s - now_s), self._pump)

    def _begin(self, step: Step) -> None:
        # An opening is never cut for its upload's end: one whose id nobody learnt would stay at the origin.
        is_opening = isinstance(step, OpenUpload)
        travel = _Travel(step.upload_id, is_opening, has_begun=is_opening)
        match step:
            case OpenUpload():
                work: Coroutine[object, object, None] = self._open(step)
            case ListUpload():
                work = self._list(step)
            case SendPart():
                work = self._send(step, travel)
            case _:
                assert_never(step)
        travel.task = asyncio.get_running_loop().create_task(
            self._settled(step, work), name=f"early-{step.upload_id}"
        )
        self._travels.add(travel)
        travel.task.add_done_callback(lambda _: self._ended(travel))

    def _ended(self, travel: _Travel) -> None:
        self._travels.discard(travel)
        self._pump()

    async def _settled(self, step: Step, work: Coroutine[object, object, None]) -> None:
        """Carry out a step; what it raises costs the step and no more."""
        try:
            await work
        except StorageError as error:
            self._fail(step, error)
        except Exception:
            log.exception("an early flush of %s failed in a way that nobody foresaw", step.upload_id)
            self._parts.stats.early_parts["failed"] += isinstance(step, SendPart)
            self._take_failure(step, FailureKind.REFUSE)

    def _fail(self, step: Step, error: StorageError) -> None:
        log.info("an early flush of upload %s failed: %s", step.upload_id, error)
        self._parts.stats.early_parts["failed"] += isinstance(step, SendPart)
        if isinstance(error, NoSuchUploadError) and not isinstance(step, OpenUpload):
            self._note_gone(step)
            return
        if isinstance(error, DirtyBytesLostError):
            log.critical("bytes of upload %s cannot be read: %s", step.upload_id, error)
            self._take_failure(step, FailureKind.REFUSE)
            return
        failed = failure_event(0, error, 0.0)
        self._take_failure(step, failed.kind, failed.retry_after_s)

    def _note_gone(self, step: ListUpload | SendPart) -> None:
        planner = self._parts.planner
        is_ours = planner.knows_at_origin(step.upload_id, step.origin_upload_id)
        if is_ours and not planner.is_inherited(step.upload_id):
            upload = self._upload(step.upload_id)
            if upload is not None:
                name = ObjectName(upload.bucket, upload.key)
                self._parts.uploads.note_gone(OriginUpload(name, step.origin_upload_id))
        planner.take_gone(step)

    def _take_failure(self, step: Step, kind: FailureKind, retry_after_s: float = 0.0) -> None:
        self._parts.planner.take_failure(
            step,
            kind,
            now_s=self._parts.clock.monotonic_s(),
            jitter=self._parts.rng.random(),
            retry_after_s=retry_after_s,
        )

    async def settle(self, upload_id: str) -> None:
        """Leave an upload to whoever completes it at the origin now: begin nothing more of it, and return when nothing is under way."""
        self._parts.planner.leave(upload_id)
        self._cut(upload_id)
        while under_way := {t.task for t in self._travels if t.upload_id == upload_id and t.task is not None}:
            await asyncio.wait(under_way)

    async def close(self, grace_s: float) -> None:
        """Begin nothing more; cut what is sent at once, and what is being opened after `grace_s`. The journal knows the rest."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        for travel in self._travels:
            if travel.task is not None and not travel.is_opening:
                travel.task.cancel()
        if self._travels:
            await asyncio.wait(self._tasks(), timeout=grace_s)
        for task in self._tasks():
            task.cancel()
        while self._travels:
            await asyncio.wait(self._tasks())

    def _tasks(self) -> set["asyncio.Task[None]"]:
        return {travel.task for travel in self._travels if travel.task is not None}

    # --- steps -------------------------------------------------------------------------------------------------------

    async def _open(self, step: OpenUpload) -> None:
        upload = self._upload(step.upload_id)
        if upload is None:
            return
        opened = await self._parts.uploads.open(
            ObjectName(upload.bucket, upload.key),
            upload,
            upload_checksum_headers(upload.checksum_algorithm, upload.checksum_type),
            Owner(upload_id=step.upload_id),
            Priority.EARLY_FLUSH,
        )
        self._parts.planner.take_opened(step.upload_id, opened.upload_id)

    async def _list(self, step: ListUpload) -> None:
        upload = self._upload(step.upload_id)
        if upload is None:
            return
        name = ObjectName(upload.bucket, upload.key)
        found = await self._parts.uploads.parts(
            OriginUpload(name, step.origin_upload_id), Priority.EARLY_FLUSH
        )
        etags = {number: part.etag for number, part in found.items()}
        self._parts.planner.take_listed(step.upload_id, step.origin_upload_id, etags)

    async def _send(self, step: SendPart, travel: _Travel) -> None:
        """Send a part as it is in the index; nothing where it is another one by now, or its upload has ended."""
        upload, part = self._upload(step.upload_id), self._part(step)
        is_wanted = self._parts.planner.knows_at_origin(step.upload_id, step.origin_upload_id)
        if upload is None or part is None or part.etag != step.etag or not is_wanted:
            self._parts.planner.take_changed(step)
            return
        if upload.checksum_algorithm and upload.checksum_algorithm not in {
            checksum.algorithm.value for checksum in part.checksums
        }:
            # The object will not have the checksum that the upload at the origin was opened for.
            self._parts.planner.take_changed(step)
            self._parts.planner.leave(step.upload_id)
            return
        with self._parts.outgoing.pin(part.extents):
            body = self._parts.outgoing.body(
                part.extents, ByteRange(0, part.size), md5_hex=part.etag, checksums=part.checksums
            )
            name = ObjectName(upload.bucket, upload.key)
            await self._parts.uploads.send_part(
                OriginUpload(name, step.origin_upload_id),
                step.number,
                _noting(body, travel),
                Priority.EARLY_FLUSH,
            )
        self._parts.stats.early_parts["sent"] += 1
        self._parts.planner.take_sent(step)

    def _upload(self, upload_id: str) -> UploadRecord | None:
        """Read an open upload; None where it has ended."""
        upload = row_at(self._parts.index, Family.UPLOADS, keys.upload_key(upload_id), decode_upload)
        return None if upload is None or upload.completed_at_s else upload

    def _part(self, step: SendPart) -> PartRecord | None:
        return row_at(
            self._parts.index, Family.PARTS, keys.part_key(step.upload_id, step.number), decode_part
        )


def _noting(body: OutgoingBody, travel: _Travel) -> OutgoingBody:
    """Let a body note that its first byte is asked for."""

    async def pieces() -> AsyncIterator[bytes]:
        travel.has_begun = True
        async for piece in body.content():
            yield piece

    return msgspec.structs.replace(body, content=pieces)
