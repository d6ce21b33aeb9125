"""The object store that the gateway calls: values and locations in, values and streams out.

    open_object ──> reader ──> bodies, fills ─────> segments, origin
    put, delete ──> writer ──> intake ──> commit ──> journal, index          flusher ──> sender ──> origin
    upload_*    ──> uploads ─────────────^              └── effects ─────────^
    all else    ──> through ──> origin

`Engine` sends each call where it belongs, gives the components their long-lived tasks, and stops them in order. `open` recovers the
directory first; `run` is the owner's task; `close` ends in order and leaves the flush queue for the next start.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from storage.acknowledged import acknowledged_line, acknowledged_page
from storage.acknowledgements import AcknowledgedLine, AcknowledgedPage
from storage.assembly import Components, EngineParts, assemble
from storage.errors import (
    DiskFullError,
    EngineClosedError,
    NoSuchKeyError,
    NotSupportedError,
    StorageError,
    UnknownOutcomeError,
)
from storage.flush_events import Scope
from storage.flush_waits import Barrier
from storage.listing import ListQuery, ListResult
from storage.opened import Opened
from storage.publish import View
from storage.records import FORMAT, BucketFacts, EpochEnded
from storage.recovery import Recovered, RecoveryParts, recover
from storage.reports import barrier_report, pending_lines, quarantined_page, status_report, update_levels
from storage.requests import (
    BarrierReport,
    BucketEntry,
    CompletedPart,
    Content,
    DeleteResult,
    OriginReply,
    PartsPage,
    PendingLine,
    PublishReport,
    PutRequest,
    PutResult,
    StatusReport,
    UploadRequest,
    UploadsPage,
)
from storage.rows import Effects
from storage.segments import SegmentLimits, SegmentStore
from storage.types import MIB, Checksum, ObjectName, RangeSpec
from storage.upkeep import CHECKPOINT_EVERY_S, COMPACT_EVERY_S, EXPIRE_EVERY_S, TURN_S, Duty, Upkeep
from storage.uploads import page_of_uploads

log = logging.getLogger(__name__)

FLUSH_GRACE_S: Final = 5.0
"""So long a stop waits for flushes under way, so that none is left that may land later."""

DISK_RESERVE_BYTES: Final = 256 * MIB
DISK_RESERVE_SHARE: Final = 0.02

Headers = tuple[tuple[str, str], ...]


class Engine:
    """One open cache directory in front of one origin. Made by `open`."""

    def __init__(self, parts: EngineParts, recovered: Recovered, segments: SegmentStore) -> None:
        self._parts = parts
        self._recovered = recovered
        self._components: Components = assemble(parts, recovered, segments, self._fail)
        self._is_closed = False
        self._is_draining = False
        self._has_run = False
        self._is_ready = asyncio.Event()
        self._stopping = asyncio.Event()
        self._has_ended = asyncio.Event()
        self.stats = parts.stats
        self.instance_id = recovered.layout.instance_id.hex()
        components = self._components
        components.state.listeners += [components.flusher.absorb, components.reclaim.absorb, self._see_levels]

    @classmethod
    async def open(cls, parts: EngineParts) -> "Engine":
        """Recover the cache directory and make an engine of it; `run` makes it work.

        Raises:
            LockedError, FormatError, DamagedError: As `recovery.recover`.
            DiskFullError: Cache and reserve do not fit on the volume.
            StorageError: The disk refused.
        """
        recovered = await parts.workers.commit.run(
            recover,
            RecoveryParts(
                filesystem=parts.filesystem,
                index_home=parts.index_home,
                origin=parts.settings.origin,
                fresh_instance_id=parts.rng.randbytes(16),
            ),
        )
        try:
            segments = await parts.workers.pool.run(_adopt_segments, parts, recovered)
            return cls(parts, recovered, segments)
        except BaseException:
            recovered.release()
            raise

    async def run(self) -> None:
        """Do the background work until `close`; a bug in any part of it ends all."""
        components = self._components
        # Before anything can be committed, so that the planner sees each key's changes in their order.
        components.flusher.load(self._recovered.dirty)
        self._has_run = True
        try:
            async with asyncio.TaskGroup() as tasks:
                running = [
                    tasks.create_task(components.commit.run(), name="commit"),
                    tasks.create_task(components.flusher.run(), name="flusher"),
                    tasks.create_task(components.reclaim.run(), name="reclaim"),
                    tasks.create_task(self._upkeep().run(), name="upkeep"),
                ]
                # Now rather than at the first turn, so that nobody reads that nothing is pending after a crash.
                update_levels(self._parts, components)
                self._is_ready.set()
                await self._stopping.wait()
                for task in running:
                    task.cancel()
        finally:
            self._has_ended.set()

    async def ready(self) -> None:
        """Return when writes are accepted."""
        await self._is_ready.wait()

    def _upkeep(self) -> Upkeep:
        components, settings = self._components, self._parts.settings
        return Upkeep(
            self._parts.clock,
            (
                Duty("reserve ids", TURN_S, self._reserve_ids),
                Duty("count levels", TURN_S, self._count_levels, needs_writes=False),
                Duty("checkpoint", CHECKPOINT_EVERY_S, components.applier.checkpoint),
                Duty(
                    "expire uploads",
                    EXPIRE_EVERY_S,
                    lambda: components.uploads.expire(upload_ttl_s=settings.upload_ttl_s),
                ),
                Duty("compact the journal", COMPACT_EVERY_S, components.compaction.run_if_due),
                *((Duty("scrub", TURN_S, components.scrubber.turn),) if settings.scrub_bytes_per_s else ()),
            ),
            lambda: not components.state.failure,
        )

    async def _count_levels(self) -> None:
        update_levels(self._parts, self._components)

    def _see_levels(self, _: Effects) -> None:
        """Keep the levels in step with each batch, so that a scrape right after an acknowledgement shows it."""
        update_levels(self._parts, self._components)

    async def _reserve_ids(self) -> None:
        ids = self._recovered.ids
        if ids.is_running_low:
            reservation = ids.reservation()
            await self._components.commit.commit(reservation)
            ids.adopt(reservation)

    def _fail(self, failure: str) -> None:
        if not self._components.state.failure:
            log.critical("writes are refused until the gateway is started again: %s", failure)
            self._components.state.failure = failure

    async def drain(self, timeout_s: float) -> BarrierReport:
        """Flush everything, delays or not; say what is left after `timeout_s`."""
        self._is_draining = True
        barrier = self._components.flusher.drain()
        return await self.wait_barrier(barrier.barrier_id, timeout_s)

    async def close(self) -> None:
        """Stop in order: no new call, fills and flushes cut, the last commits done, the index durable, the lock let go.

        Makes `run` return. The flush queue is in the journal; the next start goes on with it.
        """
        if self._is_closed:
            return
        self._is_closed = True
        components, workers = self._components, self._parts.workers
        await components.publisher.close()
        await components.pointers.close()
        await components.reader.close()
        has_settled = await components.flusher.close(FLUSH_GRACE_S)
        await components.facts.close()
        try:
            await self._end_epoch(has_settled=has_settled)
        except StorageError as error:
            log.warning("the stop is unclean: %s", error)
        self._stopping.set()
        if self._has_run:
            await self._has_ended.wait()
        await self._parts.adapters.aclose()
        await workers.commit.run(self._recovered.journal.close)
        await workers.index.run(self._recovered.index.close)
        components.segments.close()
        self._recovered.lock.close()
        workers.commit.close()
        workers.index.close()

    async def _end_epoch(self, *, has_settled: bool) -> None:
        """Let the next start trust what is cached: only where nothing is under way, and all of it is durable before.

        Nor is a stop clean while something that was sent may yet land at the origin (not `has_settled`): the next start
        then looks by HEAD after each first flush of a key.
        Changes to clean rows are in no journal. Were one lost behind the mark, an old version would pass for a valid one.
        """
        components = self._components
        is_quiet = not len(components.queue)
        await components.applier.end_changes()
        if not self._is_ready.is_set() or components.state.failure:
            return
        if not is_quiet or not has_settled:
            log.warning("the stop is unclean: operations are under way")
            return
        await components.applier.checkpoint()
        await components.commit.commit(
            EpochEnded(FORMAT, self._recovered.epoch, self._recovered.trusted_epoch)
        )

    def _check_open(self) -> Components:
        if self._is_closed or self._is_draining:
            raise EngineClosedError("the gateway is stopping", retry_after_s=5.0)
        return self._components

    def _check_writable(self, name: ObjectName | None = None) -> Components:
        components = self._check_open()
        if name is not None:
            components.pointers.check_writable(name)
        if components.state.failure:
            raise UnknownOutcomeError(components.state.failure, retry_after_s=30.0)
        return components

    # --- objects -----------------------------------------------------------------------------------------------------

    async def open_object(
        self, name: ObjectName, wanted: RangeSpec | None = None, *, metadata_only: bool = False
    ) -> Opened:
        """Hold one version of an object for reading; see `Reader.open`."""
        if self._is_closed:
            raise EngineClosedError("the gateway is stopping", retry_after_s=5.0)
        return await self._components.reader.open(name, wanted, metadata_only=metadata_only)

    async def view(self, name: ObjectName) -> View | None:
        """Say how a name under a published target is read; None where it means itself. See `Pointers.view`."""
        if self._is_closed:
            raise EngineClosedError("the gateway is stopping", retry_after_s=5.0)
        return await self._components.pointers.view(name)

    async def put_object(self, request: PutRequest, content: Content) -> PutResult:
        """Store an object; see `Writer.put`."""
        return await self._check_writable(request.name).writer.put(request, content)

    async def delete_object(
        self,
        name: ObjectName,
        *,
        origin_reason: str = "",
        origin_headers: Headers = (),
        version_id: str = "",
        credential_id: str = "",
    ) -> DeleteResult:
        """Delete an object; see `Writer.delete`."""
        return await self._check_writable(name).writer.delete(
            name,
            origin_reason=origin_reason,
            origin_headers=origin_headers,
            version_id=version_id,
            credential_id=credential_id,
        )

    async def delete_objects(
        self, bucket: str, keys: Sequence[str], *, credential_id: str = ""
    ) -> tuple[DeleteResult, ...]:
        """Delete many objects; one result a key, in order. One that fails does not stop the others."""
        components = self._check_writable()
        await self.bucket_facts(bucket)
        refused = components.pointers.refused_lines(bucket, keys)
        allowed = [key for key in keys if key not in refused]
        results = iter(await components.writer.delete_many(bucket, allowed, credential_id=credential_id))
        return tuple(refused.get(key) or next(results) for key in keys)

    async def copy_object(
        self, source: ObjectName, target: ObjectName, headers: Headers, credential_id: str = ""
    ) -> PutResult:
        """Copy an object at the origin; see `Passing.copy_object`."""
        del credential_id  # all keys share the gateway's own authority at the origin
        components = self._check_writable(target)
        view = await components.pointers.view(source)
        return await components.passing.copy_object(view.name if view else source, target, headers)

    async def list_objects(self, query: ListQuery) -> ListResult:
        """Give one page of a listing; see `PublishedLister.page`."""
        return await self._check_open().published_lister.page(query)

    # --- buckets -----------------------------------------------------------------------------------------------------

    async def list_buckets(self) -> tuple[BucketEntry, ...]:
        """Give the origin's buckets."""
        return await self._check_open().passing.list_buckets()

    async def create_bucket(self, bucket: str, *, region: str, headers: Headers = ()) -> OriginReply:
        """Make a bucket at the origin."""
        return await self._check_writable().passing.create_bucket(bucket, region=region, headers=headers)

    async def delete_bucket(self, bucket: str) -> None:
        """Delete an empty bucket; see `Passing.delete_bucket`."""
        await self._check_writable().passing.delete_bucket(bucket)

    async def bucket_facts(self, bucket: str) -> BucketFacts:
        """Say what is known of a bucket, asking the origin where nothing is."""
        return await self._check_open().facts.facts(bucket)

    # --- uploads -----------------------------------------------------------------------------------------------------

    async def create_upload(self, request: UploadRequest) -> tuple[str, Headers]:
        """Open an upload, here or at the origin; its id says where."""
        components = self._check_writable(request.name)
        if await components.uploads.may_keep(request):
            return await components.uploads.create(request), ()
        return await components.passing.create_upload(request), ()

    async def upload_part(
        self, name: ObjectName, upload_id: str, number: int, content: Content, origin_headers: Headers = ()
    ) -> PutResult:
        """Store one part."""
        components = self._check_writable(name)
        if components.uploads.is_ours(upload_id):
            return await components.uploads.put_part(name, upload_id, number, content)
        return await components.passing.upload_part(name, upload_id, number, content, origin_headers)

    async def complete_upload(  # noqa: PLR0913 - what the operation takes
        self,
        name: ObjectName,
        upload_id: str,
        parts: Sequence[CompletedPart],
        *,
        checksums: tuple[Checksum, ...] = (),
        size: int | None = None,
        origin_reason: str = "",
        origin_headers: Headers = (),
    ) -> PutResult:
        """Make an object of an upload's parts; `checksums` and `size` are what the client expects of it."""
        components = self._check_writable(name)
        if not components.uploads.is_ours(upload_id):
            return await components.passing.complete_upload(name, upload_id, parts, origin_headers)
        if origin_reason:
            raise NotSupportedError(f"{origin_reason} on completing an upload that the gateway keeps")
        expected = self._parts.object_checksums(checksums, size)
        return await components.uploads.complete(name, upload_id, parts, expected)

    async def abort_upload(self, name: ObjectName, upload_id: str) -> None:
        """Drop an upload."""
        components = self._check_writable()
        if components.uploads.is_ours(upload_id):
            await components.uploads.abort(name, upload_id)
        else:
            await components.passing.abort_upload(name, upload_id)

    async def list_parts(
        self, name: ObjectName, upload_id: str, *, part_marker: int, max_parts: int
    ) -> PartsPage:
        """Give one page of an upload's parts."""
        components = self._check_open()
        if components.uploads.is_ours(upload_id):
            return components.uploads.parts_page(
                name, upload_id, part_marker=part_marker, max_parts=max_parts
            )
        return await components.passing.list_parts(
            name, upload_id, part_marker=part_marker, max_parts=max_parts
        )

    async def list_uploads(
        self,
        bucket: str,
        *,
        prefix: str,
        delimiter: str,
        key_marker: str,
        upload_id_marker: str,
        max_uploads: int,
    ) -> UploadsPage:
        """Give one page of a bucket's open uploads, ours and the origin's."""
        components = self._check_open()
        await components.facts.facts(bucket)
        # All rows of uploads are looked at, which may take long where many were completed lately.
        ours = await self._parts.workers.pool.run(components.uploads.open_uploads, bucket)
        theirs = await components.passing.uploads(bucket, prefix)
        return page_of_uploads(
            (*ours, *theirs),
            prefix=prefix,
            delimiter=delimiter,
            after=(key_marker, upload_id_marker),
            max_uploads=max_uploads,
        )

    # --- for the operator --------------------------------------------------------------------------------------------

    def start_barrier(self, bucket: str, prefix: str) -> BarrierReport:
        """Begin a flush of all that is acknowledged now under a prefix; `bucket` "" is everything."""
        return self._report(self._components.flusher.waits.start(Scope(bucket, prefix)))

    async def wait_barrier(self, barrier_id: int, timeout_s: float) -> BarrierReport:
        """Wait for a barrier at most so long, and say how far it is; one that has ended stays known for a while.

        Raises:
            NoSuchKeyError: There is no such barrier, or it ended long ago.
        """
        barrier = self._components.flusher.waits.find(barrier_id)
        if barrier is None:
            raise NoSuchKeyError(f"there is no barrier {barrier_id}")
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await barrier.done.wait()
        return self._report(barrier)

    def _report(self, barrier: Barrier) -> BarrierReport:
        return barrier_report(barrier, self._components.planner, self._components.dirty_rows)

    async def start_publish(
        self, bucket: str, source: str, target: str, *, is_copy: bool = False
    ) -> PublishReport:
        """Begin to show a prefix under a published target, or to copy it there; see `Publisher.start`."""
        return await self._check_writable().publisher.start(bucket, source, target, is_copy=is_copy)

    async def wait_publish(self, publish_id: int, timeout_s: float) -> PublishReport:
        """Wait for a publish at most so long, and say how far it is; see `Publisher.wait`."""
        return await self._components.publisher.wait(publish_id, timeout_s)

    def status(self) -> StatusReport:
        """Say how the engine is."""
        return status_report(self._parts, self._recovered, self._components, is_draining=self._is_draining)

    def pending(
        self, bucket: str, prefix: str, limit: int, after: int = 0, *, is_quarantined: bool = False
    ) -> tuple[PendingLine, ...]:
        """List acknowledged changes that are not at the origin, oldest first, behind sequence `after`."""
        scope, components = Scope(bucket, prefix), self._components
        if is_quarantined:
            return quarantined_page(components.dirty_rows, components.planner, scope, limit, after)
        return pending_lines(self._recovered.index, components.planner, scope, limit, after)

    def acknowledged(
        self, bucket: str, prefix: str, after: str = "", *, is_deep: bool = False
    ) -> AcknowledgedPage:
        """Give the next page of what was acknowledged under a prefix, in the order of keys."""
        components = self._components
        scope = (bucket, prefix, after)
        return acknowledged_page(
            self._recovered.index, components.dirty_rows, components.planner, scope, is_deep=is_deep
        )

    def acknowledged_of(self, name: ObjectName) -> AcknowledgedLine | None:
        """Say what was acknowledged of one key; None where nothing is known."""
        components = self._components
        return acknowledged_line(self._recovered.index, components.dirty_rows, components.planner, name)

    async def retry_quarantined(self, bucket: str, prefix: str) -> int:
        """Send what the origin refused once more; give how many changes."""
        scope = Scope(bucket, prefix)
        count = self._components.planner.quarantined_in(scope)
        self._components.flusher.retry_quarantined(scope)
        return count

    async def discard_quarantined(self, bucket: str, key: str) -> int:
        """Give up what the origin refused of one key; give how many changes."""
        return await self._components.flusher.discard(ObjectName(bucket, key))


def _adopt_segments(parts: EngineParts, recovered: Recovered) -> SegmentStore:
    """Take over the segment files; what no row names is unlinked by reclaim. Blocks."""
    total_bytes = parts.filesystem.total_bytes()
    reserve_bytes = disk_reserve_bytes(total_bytes)
    settings = parts.settings
    if settings.cache_bytes + reserve_bytes > total_bytes:
        raise DiskFullError(
            f"cache_size {settings.cache_bytes} and a reserve of {reserve_bytes} bytes do not fit on a volume "
            f"of {total_bytes} bytes"
        )
    limits = SegmentLimits(settings.segment_bytes, settings.cache_bytes, disk_reserve_bytes=reserve_bytes)
    segments = SegmentStore(parts.filesystem, limits, recovered.ids.take_segment_id)
    for segment_id, path in recovered.journal_files:
        segments.register_journal(segment_id, path, is_own=segment_id == recovered.journal.segment_id)
    recovered.journal.on_file = lambda segment_id, path: segments.register_journal(
        segment_id, path, is_own=True
    )
    segments.adopt([row.segment_id for row in recovered.segments])
    return segments


def disk_reserve_bytes(total_bytes: int) -> int:
    """Say how much of a volume is kept for journal and index: 2 % or 256 MiB, never more than an eighth."""
    return min(max(DISK_RESERVE_BYTES, int(DISK_RESERVE_SHARE * total_bytes)), total_bytes // 8)
