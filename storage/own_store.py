"""The object store as a client key with origin credentials of its own sees it: the origin decides, the cache only saves bytes.

    read   ─> what is dirty is flushed ─> may it? (HEAD, answers kept) ─> reader, which asks as this authority
    write  ─> through, signed by this authority
    list   ─> the origin's page to this authority, and the overlay laid over it

Nothing is told of an object before the origin has let this authority read it, and nothing of a bucket's names before it has
given a page of them: not that a name is dirty, quarantined or known here either. A change that the origin refused (quarantined)
cannot be put before it, so reads of it answer 409 to those who may read the name.

A page of a listing proves the right to the names under its prefix, so what is acknowledged under it may be laid over.
A published target is followed by those who may read its manifest; for others the names under it mean themselves.
"""

import dataclasses
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec.structs import replace

from storage.account import Account
from storage.assembly import Components, Reading
from storage.authority import Authority, ReadPermits
from storage.clock import Clock
from storage.effects import Changes, Needs
from storage.errors import (
    DurabilityNotPossibleError,
    NoSuchKeyError,
    NoSuchUploadError,
    NotSupportedError,
    OriginRefusedError,
    OriginSuspendedError,
    OriginUnavailableError,
    OverloadedError,
    QuarantinedError,
)
from storage.listing import ListQuery, ListResult
from storage.opened import Opened
from storage.origin.client import OriginClient
from storage.origin.control import ControlLane
from storage.origin.documents import PageRequest
from storage.passing import Passing
from storage.pointers import Pointers
from storage.publish import Pointer, Target, Targets, View, seen_through
from storage.published_lister import OnGeneration, PublishedLister, unheard
from storage.records import FORMAT, BucketFacts, ObjectRecord, ObjectState
from storage.relay import Relay, needed_prefix
from storage.requests import (
    Body,
    BucketEntry,
    CompletedPart,
    Content,
    DeleteLine,
    DeleteResult,
    OriginReply,
    Owner,
    PartsPage,
    PutRequest,
    PutResult,
    RelayReply,
    RelayRequest,
    UploadRequest,
    UploadsPage,
)
from storage.stats import Stats
from storage.through import quarantined_error
from storage.types import NULL_VERSION, Checksum, ObjectName, PartSpan, RangeSpec, WriteMode
from storage.uploads_lister import UploadsQuery

REASON: Final = "own credentials"
"""Why a write of such a key goes through, in `x-cache-reason`."""

OPENED_MAX: Final = 3
"""So often a read begins anew because the object was written between its flush and its opening."""

T = TypeVar("T")
Headers = tuple[tuple[str, str], ...]
_SOURCE_KEY: Final = "x-amz-copy-source-server-side-encryption-customer-"
_REASONED: Final = ("x-cache-reason", REASON)


@dataclass(frozen=True, slots=True)
class OwnStoreParts:
    """What such a store works with; made by the engine.

    Attributes:
        reading: Lets a read work.
        writing: Lets a write work, on a name if it is of one object.
        components: Gives what the engine works with now.
        origin: Asks as the authority.
        control: Asks about buckets as the authority; closed by whoever made it.
        note_read: Hears of each name that is read.
    """

    reading: Reading
    writing: Callable[[ObjectName | None], AbstractAsyncContextManager[Components]]
    components: Callable[[], Components]
    origin: OriginClient
    control: ControlLane
    note_read: Callable[[ObjectName], None]
    clock: Clock
    stats: Stats
    instance_id: str


class _OwnPointers:
    """What targets show to an authority; `published_lister.PointerSource`."""

    def __init__(self, pointers: Pointers, permits: ReadPermits) -> None:
        self._pointers = pointers
        self._permits = permits

    @property
    def targets(self) -> Targets:
        """The targets of the policies in force."""
        return self._pointers.targets

    async def pointer(self, target: Target, generation: int | None = None) -> Pointer:
        """Give what a target shows; nothing to an authority that may not read its manifest."""
        if not await self.may_follow(target):
            return Pointer(target)
        return await self._pointers.pointer(target, generation)

    async def may_follow(self, target: Target) -> bool:
        """Whether the origin lets the manifest be read, or says that there is none."""
        try:
            await self._permits.check(target.manifest)
        except (OriginRefusedError, OriginSuspendedError):
            return False
        except NoSuchKeyError:
            return True
        return True


class OwnStore:
    """One authority's view of an engine; `gateway.context.ObjectStore`."""

    def __init__(self, authority: Authority, parts: OwnStoreParts) -> None:
        self._authority = authority
        self._parts = parts
        self._permits: Final = ReadPermits(parts.origin, parts.clock.monotonic_s, authority.believed_s)
        self._account: Final = Account(parts.control, parts.clock.wall_s)
        self.stats = parts.stats
        self.instance_id = parts.instance_id

    async def close(self) -> None:
        """End the questions in flight."""
        await self._permits.close()

    # --- reads -------------------------------------------------------------------------------------------------------

    async def open_object(
        self, name: ObjectName, wanted: RangeSpec | None = None, *, metadata_only: bool = False
    ) -> Opened:
        """Hold one version of an object for reading, which the origin has and lets this authority read.

        Raises:
            OriginRefusedError, OriginSuspendedError: The origin does not let it.
            QuarantinedError: It lets it, and does not have the object's newest change.
        """
        if not metadata_only:
            self._parts.note_read(name)

        async def read(components: Components) -> Opened:
            for _ in range(OPENED_MAX):
                await self._make_readable(components, name)
                reader = components.reader.signed_by(self._authority.authority_id, self._parts.origin)
                opener = components.versions.over(reader) if name.version_id else reader
                opened = await opener.open(name, wanted, metadata_only=metadata_only)
                if opened.record.state is ObjectState.CLEAN:
                    return opened
                await opened.close()
            raise OverloadedError(f"{name} is written faster than it is flushed", retry_after_s=1.0)

        return await self._parts.reading(read, needs_index=True)

    async def _make_readable(self, components: Components, name: ObjectName) -> None:
        """Return once the origin has what was acknowledged of a name, and has let it be read; else raise what it says."""
        flusher, key = components.flusher, name.plain
        if flusher.dirty_entry(key) is None:
            await self._permits.check(name)
            return
        reason = flusher.quarantine_reason(key)
        if not reason:
            try:
                await flusher.waits.flush_key(key)
            except OriginUnavailableError:
                await self._check_known(name)
                raise
            self._forget(name)
            reason = flusher.quarantine_reason(key)
        # A version that has an id of its own stays what it is, whatever the origin refused since.
        if reason and name.version_id in {"", NULL_VERSION}:
            await self._check_known(name)
            raise quarantined_error(key, reason)
        await self._permits.check(name)

    async def _make_copyable(self, components: Components, name: ObjectName, headers: Headers) -> None:
        """As `_make_readable`, for a copy by the origin; what a key of the customer's (SSE-C) opens is the copy's to ask.

        A HEAD without that key is refused whoever asks. The copy is this authority's own request, and nothing is told before.
        """
        brings_key = any(header.startswith(_SOURCE_KEY) for header, _ in headers)
        if not brings_key or components.flusher.dirty_entry(name.plain) is not None:
            await self._make_readable(components, name)

    def _forget(self, name: ObjectName) -> None:
        """Ask anew whether a name may be read, which was written; a version's change may show in its object."""
        self._permits.forget(name)
        self._permits.forget(name.plain)

    async def _check_known(self, name: ObjectName) -> None:
        """Return where the authority may know of a name, object or not; else raise the origin's refusal."""
        try:
            await self._permits.check(name)
        except NoSuchKeyError:
            return

    async def part_span(self, name: ObjectName, record: ObjectRecord, number: int) -> PartSpan:
        """Say which bytes of a version one part is, where its record does not; errors as `told_part`."""
        return await told_part(self._parts.origin, name, record, number)

    async def view(self, name: ObjectName) -> View | None:
        """Say how a name under a published target is read; None where it means itself."""

        async def read(components: Components) -> View | None:
            pointers = components.pointers
            target = pointers.targets.find(name)
            if target is None or not await _OwnPointers(pointers, self._permits).may_follow(target):
                return None
            return await pointers.view(name)

        return await self._parts.reading(read, needs_index=False)

    async def list_objects(self, query: ListQuery, on_generation: OnGeneration = unheard) -> ListResult:
        """Give one page of a listing that the origin gives to this authority."""
        components = self._parts.components()
        lister = components.lister.signed_by(self._parts.origin)
        pointers = _OwnPointers(components.pointers, self._permits)
        return await PublishedLister(lister, pointers).page(query, on_generation)

    # --- writes ------------------------------------------------------------------------------------------------------

    async def put_object(self, request: PutRequest, content: Content) -> PutResult:
        """Store an object at the origin; nothing of it is kept here.

        Raises:
            DurabilityNotPossibleError: The client insisted on the disk.
        """
        _refuse_disk(request.mode)
        name = request.name
        async with self._parts.writing(name) as components:
            writer = components.writer.signed_by(self._parts.origin)
            return _reasoned(await self._written(name, writer.put_through(request, content, keep=False)))

    async def _written(self, name: ObjectName, write: Coroutine[object, object, T]) -> T:
        """Carry out a write; what is quarantined of its name is told to those who may know of it."""
        try:
            return await write
        except QuarantinedError:
            await self._check_known(name)
            raise
        finally:
            self._forget(name)

    async def delete_object(
        self,
        name: ObjectName,
        *,
        origin_reason: str = "",
        origin_headers: Headers = (),
        credential_id: str = "",
    ) -> DeleteResult:
        """Delete an object, or a version of it, at the origin."""
        del origin_reason, credential_id
        async with self._parts.writing(name) as components:
            writer = components.writer.signed_by(self._parts.origin)
            result = await self._written(name, writer.delete_through(name, origin_headers))
            return replace(result, headers=(*result.headers, _REASONED))

    async def delete_objects(
        self, bucket: str, lines: Sequence[DeleteLine], *, credential_id: str = ""
    ) -> tuple[DeleteResult, ...]:
        """Delete many objects at the origin, or versions of them, one by one; one result a line, in order."""
        del credential_id
        async with self._parts.writing(None) as components:
            refused = components.pointers.refused_lines(bucket, [line.name.key for line in lines])
            allowed = [line for line in lines if line.name.key not in refused]
            writer = components.writer.signed_by(self._parts.origin)
            results = iter(await writer.delete_many_through(allowed, self._written))
            return tuple(refused.get(line.name.key) or next(results) for line in lines)

    async def copy_object(
        self, source: ObjectName, target: ObjectName, headers: Headers, credential_id: str = ""
    ) -> PutResult:
        """Copy an object at the origin, which must let this authority read the source."""
        del credential_id
        shown = seen_through(await self.view(source.plain), source)
        async with self._parts.writing(target) as components:
            await self._make_copyable(components, shown, headers)
            copying = self._passing(components).copy_object(shown, target, headers)
            return _reasoned(await self._written(target, copying))

    # --- buckets -----------------------------------------------------------------------------------------------------

    async def list_buckets(self) -> tuple[BucketEntry, ...]:
        """Give the buckets that the origin lists for this authority."""
        return await self._passing(self._parts.components()).list_buckets()

    async def owner(self) -> Owner:
        """Say whose what this authority writes is at the origin."""
        return await self._account.owner()

    async def create_bucket(self, bucket: str, *, region: str, headers: Headers = ()) -> OriginReply:
        """Make a bucket at the origin."""
        async with self._parts.writing(None) as components:
            return await self._passing(components).create_bucket(bucket, region=region, headers=headers)

    async def delete_bucket(self, bucket: str) -> None:
        """Delete an empty bucket; see `Passing.delete_bucket`.

        The origin is asked for the bucket first: it is closed for a moment, and what is acknowledged in it told, only for
        those who may see it.
        """
        await self._parts.control.head_bucket(bucket)
        async with self._parts.writing(None) as components:
            await self._passing(components).delete_bucket(bucket)

    async def bucket_facts(self, bucket: str) -> BucketFacts:
        """Say that a bucket is there and where, if the origin tells this authority."""
        region = await self._parts.control.head_bucket(bucket)
        return BucketFacts(FORMAT, bucket, True, self._parts.clock.wall_s(), region=region)  # noqa: FBT003  # a record

    # --- all else ----------------------------------------------------------------------------------------------------

    async def relay(self, request: RelayRequest, content: Content | None = None) -> RelayReply:
        """Have the origin carry out what it alone can, as this authority; see `Relay`.

        What is to be flushed first and cannot be is told to those who may know of it. An operation that closes a bucket or
        doubts what is cached of it is for those who may see the bucket.
        """
        if content is None:
            return await self._parts.reading(
                lambda components: self._relayed(request, self._relay(components).read(request)),
                needs_index=True,
            )
        if request.effect.changes in {Changes.FACTS, Changes.OBJECTS}:
            await self._parts.control.head_bucket(request.name.bucket)
        name = request.name if request.name.key else None
        async with self._parts.writing(name) as components:
            try:
                return await self._relayed(request, self._relay(components).write(request, content))
            finally:
                self._forget(request.changed)

    def _relay(self, components: Components) -> Relay:
        return components.relay.signed_by(self._authority.authority_id, self._parts.origin)

    async def _relayed(
        self, request: RelayRequest, asking: Coroutine[object, object, RelayReply]
    ) -> RelayReply:
        try:
            return await asking
        except (QuarantinedError, OriginUnavailableError):
            await self._check_related(request)
            raise

    async def _check_related(self, request: RelayRequest) -> None:
        """Return where the authority may know what an operation depends on; else raise the origin's refusal."""
        name = request.name
        if request.effect.needs is Needs.KEY:
            await self._check_known(name)
        elif request.effect.needs is Needs.BUCKET:
            await self._parts.origin.list_objects_v2(
                PageRequest(name.bucket, needed_prefix(request), max_keys=1)
            )

    # --- uploads: all are the origin's own, which knows none that is kept here ---

    async def create_upload(self, request: UploadRequest) -> tuple[str, Headers]:
        """Open an upload at the origin; its id is the origin's."""
        _refuse_disk(request.mode)
        async with self._parts.writing(request.name) as components:
            return await self._passing(components).create_upload(request), (_REASONED,)

    async def upload_part(
        self, name: ObjectName, upload_id: str, number: int, content: Content, origin_headers: Headers = ()
    ) -> PutResult:
        """Hand a part on."""
        async with self._parts.writing(name) as components:
            passing = self._passing(components)
            return _reasoned(await passing.upload_part(name, upload_id, number, content, origin_headers))

    def keeps_upload(self, upload_id: str) -> bool:
        """Say that none of this authority's uploads is kept here."""
        del upload_id
        return False

    async def copy_part(
        self, name: ObjectName, upload_id: str, number: int, body: Body, size: int
    ) -> PutResult:
        """Refuse: no upload of this authority's is kept here; closes the body."""
        del name, number, size
        await body.close()
        raise NoSuchUploadError(f"upload {upload_id} is not kept here")

    async def upload_part_copy(
        self, source: ObjectName, name: ObjectName, upload_id: str, number: int, headers: Headers = ()
    ) -> PutResult:
        """Have the origin copy a part, of a source that it lets this authority read."""
        shown = seen_through(await self.view(source.plain), source)
        async with self._parts.writing(name) as components:
            await self._make_copyable(components, shown, headers)
            passing = self._passing(components)
            return _reasoned(await passing.copy_part(shown, name, upload_id, number, headers))

    async def complete_upload(  # noqa: PLR0913  # what the operation takes
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
        """Complete the origin's upload; what the client expects of the object stands in the headers that are passed on."""
        del checksums, size, origin_reason
        async with self._parts.writing(name) as components:
            completing = self._passing(components).complete_upload(name, upload_id, parts, origin_headers)
            return _reasoned(await self._written(name, completing))

    async def abort_upload(self, name: ObjectName, upload_id: str) -> None:
        """Abort the origin's upload."""
        async with self._parts.writing(None) as components:
            await self._passing(components).abort_upload(name, upload_id)

    async def list_parts(
        self, name: ObjectName, upload_id: str, *, part_marker: int, max_parts: int
    ) -> PartsPage:
        """Give one page of an upload's parts."""
        components = self._parts.components()
        return await self._passing(components).list_parts(
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
        """Give one page of a bucket's open uploads at the origin."""
        lister = dataclasses.replace(self._parts.components().uploads_lister, origin=self._parts.origin)
        query = UploadsQuery(bucket, prefix, delimiter, (key_marker, upload_id_marker), max_uploads)
        return await lister.page(query, ())

    def _passing(self, components: Components) -> Passing:
        return components.passing.signed_by(self._parts.origin, self._parts.control)


async def told_part(origin: OriginClient, name: ObjectName, record: ObjectRecord, number: int) -> PartSpan:
    """Ask the origin which bytes of a clean version one part of its upload is.

    Raises:
        ObjectChangedError: The origin holds another version.
        NotSupportedError: The origin says nothing of parts.
        OriginError: 416 where there is no such part, and whatever else the origin says.
    """
    if record.origin is None:
        raise NotSupportedError(f"the parts of {name} are not known")
    found = await origin.head_part(name, number, if_match=record.origin.etag)
    if not found.count or found.span.stop > record.size:
        raise NotSupportedError(f"the origin does not tell the parts of {name}")
    return found


def _refuse_disk(mode: WriteMode | None) -> None:
    if mode is WriteMode.BACK:
        raise DurabilityNotPossibleError(f"x-forebay-durability: disk is not possible here: {REASON}")


def _reasoned(result: PutResult) -> PutResult:
    return replace(result, headers=(*result.headers, _REASONED))
