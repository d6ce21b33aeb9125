"""The object store that the gateway calls: values and locations in, values and streams out.

    open_object ──> reader ──> bodies, fills ─────> segments, origin
    put, delete ──> writer ──> intake ──> commit ──> journal, index          flusher ──> sender ──> origin
    upload_*    ──> uploads ─────────────^              ├── effects ─────────^
                                                        └── effects ──> early flusher ──────────^
    all else    ──> through ──> origin

`Engine` sends each call where it belongs. Components and their tasks are a `Life` (`storage/life.py`), and when one fails of the disk
`Lives` (`storage/lives.py`) opens the next. `open` recovers the directory first; `run` is the owner's task; `close` ends in order and
leaves the flush queue for the next start.
"""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import ClassVar

from storage.acknowledged import acknowledged_line, acknowledged_page
from storage.acknowledgements import AcknowledgedLine, AcknowledgedPage
from storage.assembly import Components
from storage.authority import Authority
from storage.copied import CopiedContent
from storage.engine_parts import EngineParts
from storage.errors import NoSuchKeyError, NotSupportedError
from storage.explained import ObjectReport, object_report
from storage.flush_events import Scope
from storage.flush_waits import Barrier
from storage.index_keeper import IndexKeeper
from storage.life import Life
from storage.listing import ListQuery, ListResult
from storage.lives import Lives
from storage.opened import Opened
from storage.origin.wire import is_conditional
from storage.own_store import OwnStore, OwnStoreParts, told_part
from storage.publish import View, seen_through
from storage.published_lister import OnGeneration, unheard
from storage.records import BucketFacts, ObjectRecord
from storage.recovery import Recovered
from storage.reports import barrier_report, pending_page, quarantined_page, status_report
from storage.requests import (
    BarrierReport,
    Body,
    BucketEntry,
    CompletedPart,
    Content,
    DeleteLine,
    DeleteResult,
    OriginReply,
    Owner,
    PartsPage,
    PendingPage,
    PublishReport,
    PutRequest,
    PutResult,
    RelayReply,
    RelayRequest,
    StatusReport,
    UploadRequest,
    UploadsPage,
)
from storage.types import Checksum, ObjectName, PartSpan, Priority, RangeSpec
from storage.uploads_lister import UploadsQuery
from storage.warm_source import WarmSource
from storage.warmer import Warmer

Headers = tuple[tuple[str, str], ...]


class Engine:
    """One open cache directory in front of one origin. Made by `open`."""

    life_type: ClassVar[type[Life]] = Life

    def __init__(self, parts: EngineParts, keeper: IndexKeeper, life: Life) -> None:
        self._parts = parts
        self._keeper = keeper
        self._lives = lives = Lives(parts, keeper, life, self.life_type.open)
        low = parts.origin.at_priority(Priority.WARM_UP)
        source = WarmSource(lives.reading, lambda: lives.components, low, parts.settings, parts.clock)
        self.warmer = Warmer(source, parts.clock, parts.stats)
        self.stats = parts.stats
        self.instance_id = life.recovered.layout.instance_id.hex()

    @classmethod
    async def open(cls, parts: EngineParts) -> "Engine":
        """Recover the cache directory and make an engine of it; `run` makes it work.

        Raises:
            LockedError, FormatError, DamagedError: As `recovery.recover`.
            DiskFullError: Cache and reserve do not fit on the volume.
            StorageError: The disk refused.
        """
        keeper = IndexKeeper(parts.index_home)
        try:
            return cls(parts, keeper, await cls.life_type.open(parts, keeper))
        except BaseException:
            keeper.release()
            raise

    @property
    def _components(self) -> Components:
        return self._lives.life.components

    @property
    def _recovered(self) -> Recovered:
        return self._lives.life.recovered

    async def run(self) -> None:
        """Do the background work until `close`; a bug in any part of it ends all."""
        await self._lives.run()

    async def ready(self) -> None:
        """Return when writes are accepted."""
        await self._lives.ready()

    async def drain(self, timeout_s: float) -> BarrierReport:
        """Flush everything, delays or not; say what is left after `timeout_s`."""
        self._lives.is_draining = True
        barrier = self._components.flusher.drain()
        return await self.wait_barrier(barrier.barrier_id, timeout_s)

    async def close(self) -> None:
        """Stop in order, and make `run` return; see `Lives.close`. The flush queue is in the journal; the next start goes on with it."""
        if self._lives.is_closed:
            return
        self._lives.is_closed = True
        await self.warmer.close()
        await self._lives.close()

    def own_store(self, authority: Authority) -> OwnStore:
        """Give the store as a client key sees it that has an authority of its own at the origin; it ends with the engine."""
        origin = self._parts.origin.signed_by(authority.credentials)
        control = self._parts.control.signed_by(authority.credentials)
        parts = OwnStoreParts(
            reading=self._lives.reading,
            writing=self._lives.writing,
            components=self._lives.check_open,
            origin=origin,
            control=control,
            note_read=self.warmer.note_read,
            clock=self._parts.clock,
            stats=self.stats,
            instance_id=self.instance_id,
        )
        store = OwnStore(authority, parts)
        self._parts.adapters.push_async_exit(control)
        self._parts.adapters.push_async_callback(store.close)
        return store

    # --- objects -----------------------------------------------------------------------------------------------------

    async def open_object(
        self, name: ObjectName, wanted: RangeSpec | None = None, *, metadata_only: bool = False
    ) -> Opened:
        """Hold one version of an object for reading; see `Reader.open`, and `Versions.open` for one that is named."""
        if self.warmer.follows_reads and not metadata_only:
            self.warmer.note_read(name)
        return await self._lives.reading(
            lambda components: (components.versions if name.version_id else components.reader).open(
                name, wanted, metadata_only=metadata_only
            ),
            needs_index=True,
        )

    async def part_span(self, name: ObjectName, record: ObjectRecord, number: int) -> PartSpan:
        """Say which bytes of a clean version one part of its upload is, where its record does not: the origin is asked.

        Raises:
            ObjectChangedError: The origin holds another version.
            NotSupportedError: The origin says nothing of parts.
            OriginError: 416 where there is no such part, and whatever else the origin says.
        """
        return await told_part(self._parts.origin, name, record, number)

    async def view(self, name: ObjectName) -> View | None:
        """Say how a name under a published target is read; None where it means itself. See `Pointers.view`."""
        return await self._lives.reading(lambda components: components.pointers.view(name), needs_index=False)

    async def put_object(self, request: PutRequest, content: Content) -> PutResult:
        """Store an object; see `Writer.put`."""
        async with self._lives.writing(request.name) as components:
            return await components.writer.put(request, content)

    async def delete_object(
        self,
        name: ObjectName,
        *,
        origin_reason: str = "",
        origin_headers: Headers = (),
        credential_id: str = "",
    ) -> DeleteResult:
        """Delete an object or a version of it; see `Writer.delete`."""
        async with self._lives.writing(name) as components:
            return await components.writer.delete(
                name,
                origin_reason=origin_reason,
                origin_headers=origin_headers,
                credential_id=credential_id,
            )

    async def delete_objects(
        self, bucket: str, lines: Sequence[DeleteLine], *, credential_id: str = ""
    ) -> tuple[DeleteResult, ...]:
        """Delete many objects of a bucket, or versions of them; one result a line, in order.

        One that fails does not stop the others.
        """
        async with self._lives.writing() as components:
            await components.facts.facts(bucket)
            refused = components.pointers.refused_lines(bucket, [line.name.key for line in lines])
            allowed = [line for line in lines if line.name.key not in refused]
            results = iter(await components.writer.delete_many(allowed, credential_id=credential_id))
            return tuple(refused.get(line.name.key) or next(results) for line in lines)

    async def copy_object(
        self, source: ObjectName, target: ObjectName, headers: Headers, credential_id: str = ""
    ) -> PutResult:
        """Copy an object at the origin; see `Passing.copy_object`."""
        del credential_id
        async with self._lives.writing(target) as components:
            view = await components.pointers.view(source.plain)
            return await components.passing.copy_object(seen_through(view, source), target, headers)

    async def list_objects(self, query: ListQuery, on_generation: OnGeneration = unheard) -> ListResult:
        """Give one page of a listing; see `PublishedLister.page`."""
        return await self._lives.check_open().published_lister.page(query, on_generation)

    # --- buckets -----------------------------------------------------------------------------------------------------

    async def list_buckets(self) -> tuple[BucketEntry, ...]:
        """Give the origin's buckets."""
        return await self._lives.check_open().passing.list_buckets()

    async def owner(self) -> Owner:
        """Say whose what is written here is at the origin."""
        return await self._lives.check_open().passing.account.owner()

    async def create_bucket(self, bucket: str, *, region: str, headers: Headers = ()) -> OriginReply:
        """Make a bucket at the origin."""
        async with self._lives.writing() as components:
            return await components.passing.create_bucket(bucket, region=region, headers=headers)

    async def delete_bucket(self, bucket: str) -> None:
        """Delete an empty bucket; see `Passing.delete_bucket`."""
        async with self._lives.writing() as components:
            await components.passing.delete_bucket(bucket)

    async def bucket_facts(self, bucket: str) -> BucketFacts:
        """Say what is known of a bucket, asking the origin where nothing is."""
        return await self._lives.check_open().facts.facts(bucket)

    # --- all else ----------------------------------------------------------------------------------------------------

    async def relay(self, request: RelayRequest, content: Content | None = None) -> RelayReply:
        """Have the origin carry out what it alone can, and give its answer, to be closed; see `Relay`.

        A read has its document in the request; anything else comes with a `content`, which may be empty.
        """
        if content is None:
            assert request.effect.is_read, f"{request.operation} writes, and has no body"
            return await self._lives.reading(
                lambda components: components.relay.read(request), needs_index=True
            )
        async with self._lives.writing(request.name if request.name.key else None) as components:
            return await components.relay.write(request, content)

    # --- uploads -----------------------------------------------------------------------------------------------------

    async def create_upload(self, request: UploadRequest) -> tuple[str, Headers]:
        """Open an upload, here or at the origin; its id says where."""
        async with self._lives.writing(request.name) as components:
            if await components.uploads.may_keep(request):
                return await components.uploads.create(request), ()
            return await components.passing.create_upload(request), ()

    async def upload_part(
        self, name: ObjectName, upload_id: str, number: int, content: Content, origin_headers: Headers = ()
    ) -> PutResult:
        """Store one part."""
        async with self._lives.writing(name) as components:
            if components.uploads.is_ours(upload_id):
                return await components.uploads.put_part(name, upload_id, number, content)
            return await components.passing.upload_part(name, upload_id, number, content, origin_headers)

    def keeps_upload(self, upload_id: str) -> bool:
        """Whether an upload of this id is kept here, if there is one; else it is the origin's."""
        return self._lives.check_open().uploads.is_ours(upload_id)

    async def copy_part(
        self, name: ObjectName, upload_id: str, number: int, body: Body, size: int
    ) -> PutResult:
        """Make a part, of an upload that is kept here, of bytes that were opened for reading; the body is closed in any case."""
        try:
            async with self._lives.writing(name) as components:
                algorithm = components.uploads.open_upload(name, upload_id).checksum_algorithm
                content = CopiedContent(body, size, algorithm, self._parts.workers.pool)
                return await components.uploads.put_part(name, upload_id, number, content)
        finally:
            await body.close()

    async def upload_part_copy(
        self, source: ObjectName, name: ObjectName, upload_id: str, number: int, headers: Headers = ()
    ) -> PutResult:
        """Have the origin copy a part into an upload of its own; see `Passing.copy_part`."""
        async with self._lives.writing(name) as components:
            view = await components.pointers.view(source.plain)
            return await components.passing.copy_part(
                seen_through(view, source), name, upload_id, number, headers
            )

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
        async with self._lives.writing(name) as components:
            if not components.uploads.is_ours(upload_id):
                return await components.passing.complete_upload(name, upload_id, parts, origin_headers)
            if origin_reason:
                raise NotSupportedError(f"{origin_reason} on completing an upload that the gateway keeps")
            expected = self._parts.object_checksums(checksums, size)
            conditions = tuple(pair for pair in origin_headers if is_conditional((pair,)))
            return await components.uploads.complete(name, upload_id, parts, expected, conditions)

    async def abort_upload(self, name: ObjectName, upload_id: str) -> None:
        """Drop an upload."""
        async with self._lives.writing() as components:
            if components.uploads.is_ours(upload_id):
                await components.uploads.abort(name, upload_id)
            else:
                await components.passing.abort_upload(name, upload_id)

    async def list_parts(
        self, name: ObjectName, upload_id: str, *, part_marker: int, max_parts: int
    ) -> PartsPage:
        """Give one page of an upload's parts."""
        components = self._lives.check_open()
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
        components = self._lives.check_open()
        await components.facts.facts(bucket)
        # All rows of uploads are looked at, which may take long where many were completed lately.
        ours = await self._parts.workers.pool.run(components.uploads.open_uploads, bucket)
        query = UploadsQuery(bucket, prefix, delimiter, (key_marker, upload_id_marker), max_uploads)
        return await components.uploads_lister.page(query, ours)

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
        async with self._lives.writing() as components:
            return await components.publisher.start(bucket, source, target, is_copy=is_copy)

    async def wait_publish(self, publish_id: int, timeout_s: float) -> PublishReport:
        """Wait for a publish at most so long, and say how far it is; see `Publisher.wait`."""
        return await self._components.publisher.wait(publish_id, timeout_s)

    def status(self) -> StatusReport:
        """Say how the engine is."""
        return status_report(
            self._parts,
            self._recovered,
            self._components,
            is_draining=self._lives.is_draining,
            reopening=self._lives.reopening_text(),
            warm_jobs=self.warmer.running(),
        )

    async def explain(self, name: ObjectName) -> ObjectReport:
        """Say what is known of an object, and what a read of it now would be."""
        parts = self._parts

        async def look(components: Components) -> ObjectReport:
            shown = seen_through(await components.pointers.view(name), name)
            last = self.stats.last_answers.find(shown)
            return object_report(components, shown, str(name), last, parts.clock.wall_s())

        return await self._lives.reading(look, needs_index=True)

    def pending(
        self, bucket: str, prefix: str, limit: int, after: int = 0, *, is_quarantined: bool = False
    ) -> PendingPage:
        """List acknowledged changes that are not at the origin, oldest first, behind sequence `after`."""
        self._keeper.check_readable()
        scope, components, index = Scope(bucket, prefix), self._components, self._recovered.index
        if is_quarantined:
            rows = components.dirty_rows
            return quarantined_page(index, rows, components.planner, scope, limit, after)
        return pending_page(index, components.planner, scope, limit, after)

    def acknowledged(
        self, bucket: str, prefix: str, after: str = "", *, is_deep: bool = False
    ) -> AcknowledgedPage:
        """Give the next page of what was acknowledged under a prefix, in the order of keys."""
        self._keeper.check_readable()
        components = self._components
        scope = (bucket, prefix, after)
        return acknowledged_page(
            self._recovered.index, components.dirty_rows, components.planner, scope, is_deep=is_deep
        )

    def acknowledged_of(self, name: ObjectName) -> AcknowledgedLine | None:
        """Say what was acknowledged of one key; None where nothing is known."""
        self._keeper.check_readable()
        components = self._components
        return acknowledged_line(self._recovered.index, components.dirty_rows, components.planner, name)

    async def retry_quarantined(self, bucket: str, prefix: str, *, is_one_key: bool = False) -> int:
        """Send what the origin refused once more, of one key or of all that begin so; give how many changes."""
        scope = Scope(bucket, prefix, is_one_key=is_one_key)
        count = self._components.planner.quarantined_in(scope)
        self._components.flusher.retry_quarantined(scope)
        return count

    async def discard_quarantined(self, bucket: str, key: str, sequence: int) -> int:
        """Give up the change of that sequence, if the origin refused it and the key has no newer one; give how many changes."""
        async with self._lives.life.write() as components:
            return await components.flusher.discard(ObjectName(bucket, key), sequence)
