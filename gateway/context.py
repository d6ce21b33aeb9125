"""What an operation is given, and what it gives back: values and ports between the edge of the gateway and its operations.

An operation is `async (OperationContext, S3Request) -> S3Response`. It sees neither a socket nor aiohttp, and of storage only
the port `ObjectStore`, so that every operation runs against an in-memory store in tests.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from gateway.grants import EVERYTHING, Access
from gateway.s3.request import S3Request
from storage.acknowledgements import AcknowledgedLine, AcknowledgedPage
from storage.clock import Clock
from storage.explained import ObjectReport
from storage.listing import ListQuery, ListResult
from storage.publish import View
from storage.records import BucketFacts, ObjectRecord
from storage.requests import (
    BarrierReport,
    Body,
    BucketEntry,
    CompletedPart,
    Content,
    DeleteLine,
    DeleteResult,
    OpenObject,
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
from storage.stats import Stats
from storage.types import Checksum, ObjectName, PartSpan, RangeSpec
from storage.warmer import Warmer

HeaderPairs = tuple[tuple[str, str], ...]


XML_TYPE: Final = ("content-type", "application/xml")


class S3Response(msgspec.Struct, frozen=True, gc=False):
    """One answer before it is written to a connection.

    Attributes:
        headers: Without those that every answer has (date, server, request id) and without Content-Length.
        body: All bytes, or where they come from; None for no body, as an answer to HEAD.
        length: Bytes of the body, or of the body that a GET would have had.
        has_length: Whether Content-Length is sent; 204 and 304 have none, nor has a `Body` of which nobody knows how long it is.
        is_chunked: A body without a length goes in chunks (RFC 9112 section 7.1), else until the connection ends.
    """

    status: int
    headers: HeaderPairs = ()
    body: bytes | Body | None = None
    length: int = 0
    has_length: bool = True
    is_chunked: bool = False


def xml_response(document: bytes, headers: HeaderPairs = (), *, status: int = 200) -> S3Response:
    """Make an answer of an XML document."""
    return S3Response(status, (XML_TYPE, *headers), document, len(document))


def empty_response(status: int, headers: HeaderPairs = ()) -> S3Response:
    """Make an answer without a body."""
    return S3Response(status, headers, has_length=status not in {204, 304})


class RequestBody(Protocol):
    """The body of the request being answered, free of framing, checked against all that was declared of it."""

    def content(self) -> Content:
        """Give the body to be streamed, once.

        Raises:
            S3Error: MissingContentLength (411), or a declaration that is none (InvalidDigest ...).
        """
        ...

    async def read_small(self, limit: int, *, checksums_are_of_object: bool = False) -> bytes:
        """Read a document of at most `limit` bytes.

        `checksums_are_of_object` says that x-amz-checksum-* headers speak of the object that is made and not of this
        body, as in CompleteMultipartUpload.

        Raises:
            S3Error: MaxMessageLengthExceeded, or what the body was refused for.
        """
        ...


class ObjectStore(Protocol):
    """The storage engine as the gateway sees it; `storage/engine.py` says what each call promises."""

    @property
    def stats(self) -> Stats:
        """The counters that a scrape reads."""
        ...

    @property
    def instance_id(self) -> str:
        """The name of this cache directory."""
        ...

    async def open_object(
        self, name: ObjectName, wanted: RangeSpec | None = None, *, metadata_only: bool = False
    ) -> OpenObject:
        """Hold one version of an object for reading."""
        ...

    async def part_span(self, name: ObjectName, record: ObjectRecord, number: int) -> PartSpan:
        """Say which bytes of a version one part is, where its record does not."""
        ...

    async def view(self, name: ObjectName) -> View | None:
        """Say how a name under a published target is read; None where it means itself."""
        ...

    async def put_object(self, request: PutRequest, content: Content) -> PutResult:
        """Store an object."""
        ...

    async def delete_object(
        self,
        name: ObjectName,
        *,
        origin_reason: str = "",
        origin_headers: HeaderPairs = (),
        credential_id: str = "",
    ) -> DeleteResult:
        """Delete an object or a version of it; one that does not exist is deleted too."""
        ...

    async def delete_objects(
        self, bucket: str, lines: Sequence[DeleteLine], *, credential_id: str = ""
    ) -> tuple[DeleteResult, ...]:
        """Delete many objects of a bucket, or versions of them; one result a line, in order."""
        ...

    async def copy_object(
        self, source: ObjectName, target: ObjectName, headers: HeaderPairs, credential_id: str = ""
    ) -> PutResult:
        """Copy an object; `headers` are the request's own."""
        ...

    async def list_objects(self, query: ListQuery, on_generation: Callable[[int | None], None]) -> ListResult:
        """Give one page of a listing, acknowledged changes included.

        `on_generation` hears beforehand of which generation of a published target it will be, an error too; None of none.
        """
        ...

    async def list_buckets(self) -> tuple[BucketEntry, ...]:
        """Give the origin's buckets."""
        ...

    async def owner(self) -> Owner:
        """Say whose what is written here is at the origin; some name where the origin does not say."""
        ...

    async def create_bucket(self, bucket: str, *, region: str, headers: HeaderPairs = ()) -> OriginReply:
        """Create a bucket at the origin."""
        ...

    async def delete_bucket(self, bucket: str) -> None:
        """Delete an empty bucket."""
        ...

    async def bucket_facts(self, bucket: str) -> BucketFacts:
        """Say what is known of a bucket."""
        ...

    async def relay(self, request: RelayRequest, content: Content | None = None) -> RelayReply:
        """Have the origin carry out what it alone can; a write comes with a content."""
        ...

    async def create_upload(self, request: UploadRequest) -> tuple[str, HeaderPairs]:
        """Open an upload; give its id and headers of the origin's to pass on."""
        ...

    async def upload_part(
        self,
        name: ObjectName,
        upload_id: str,
        number: int,
        content: Content,
        origin_headers: HeaderPairs = (),
    ) -> PutResult:
        """Store one part."""
        ...

    def keeps_upload(self, upload_id: str) -> bool:
        """Whether an upload of this id is kept by the gateway, if there is one; else it is the origin's."""
        ...

    async def copy_part(
        self, name: ObjectName, upload_id: str, number: int, body: Body, size: int
    ) -> PutResult:
        """Make a part of a kept upload of bytes that were opened for reading; closes the body."""
        ...

    async def upload_part_copy(
        self,
        source: ObjectName,
        name: ObjectName,
        upload_id: str,
        number: int,
        headers: HeaderPairs = (),
    ) -> PutResult:
        """Have the origin copy a part into an upload of its own; `headers` are the request's own."""
        ...

    async def complete_upload(  # noqa: PLR0913  # what AWS lets a Complete say
        self,
        name: ObjectName,
        upload_id: str,
        parts: Sequence[CompletedPart],
        *,
        checksums: tuple[Checksum, ...] = (),
        size: int | None = None,
        origin_reason: str = "",
        origin_headers: HeaderPairs = (),
    ) -> PutResult:
        """Make an object of an upload's parts."""
        ...

    async def abort_upload(self, name: ObjectName, upload_id: str) -> None:
        """Drop an upload."""
        ...

    async def list_parts(
        self, name: ObjectName, upload_id: str, *, part_marker: int, max_parts: int
    ) -> PartsPage:
        """Give one page of an upload's parts."""
        ...

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
        """Give one page of a bucket's open uploads."""
        ...


class OperatorStore(ObjectStore, Protocol):
    """The storage engine as the gateway's own verbs see it; always with the gateway's own authority at the origin."""

    @property
    def warmer(self) -> Warmer:
        """The warm-ups."""
        ...

    def start_barrier(self, bucket: str, prefix: str) -> BarrierReport:
        """Begin a flush of all that is acknowledged now under a prefix."""
        ...

    async def wait_barrier(self, barrier_id: int, timeout_s: float) -> BarrierReport:
        """Wait for a barrier at most so long, and say how far it is."""
        ...

    async def start_publish(
        self, bucket: str, source: str, target: str, *, is_copy: bool = False
    ) -> PublishReport:
        """Begin to show a prefix under a published target, or to copy it there."""
        ...

    async def wait_publish(self, publish_id: int, timeout_s: float) -> PublishReport:
        """Wait for a publish at most so long, and say how far it is."""
        ...

    def status(self) -> StatusReport:
        """Say how the engine is."""
        ...

    async def explain(self, name: ObjectName) -> ObjectReport:
        """Say what is known of an object, and what a read of it now would be."""
        ...

    def pending(
        self, bucket: str, prefix: str, limit: int, after: int = 0, *, is_quarantined: bool = False
    ) -> PendingPage:
        """List acknowledged changes that are not at the origin, oldest first, behind sequence `after`.

        A page may have few lines, or none, and not be the last: see `PendingPage.next_after`.
        """
        ...

    def acknowledged(
        self, bucket: str, prefix: str, after: str = "", *, is_deep: bool = False
    ) -> AcknowledgedPage:
        """Give the next page of what was acknowledged under a prefix, in the order of keys."""
        ...

    def acknowledged_of(self, name: ObjectName) -> AcknowledgedLine | None:
        """Say what was acknowledged of one key; None where nothing is known."""
        ...

    async def retry_quarantined(self, bucket: str, prefix: str, *, is_one_key: bool = False) -> int:
        """Send what the origin refused once more, of one key or of all that begin so; give how many changes."""
        ...

    async def discard_quarantined(self, bucket: str, key: str, sequence: int) -> int:
        """Give up the change of that sequence, if the origin refused it and the key has no newer one; give how many changes."""
        ...


class OperationContext(msgspec.Struct, frozen=True):
    """What an operation may use.

    Attributes:
        credential_id: The access key that signed, "" for an anonymous request.
        is_signed: Whether the request was authenticated.
        region: The gateway's own region, what GetBucketLocation and signatures speak of.
        scheme: `http` or `https`, as clients reach the gateway.
        stamps: Headers that the operation gives to its answer whatever that will be, an error too.
        access: What its sender may do: for names that do not stand in the request's head.
    """

    store: ObjectStore
    body: RequestBody
    clock: Clock
    credential_id: str
    is_signed: bool
    region: str
    scheme: str
    stamps: list[tuple[str, str]] = msgspec.field(default_factory=list)
    access: Access = EVERYTHING


Operator = Callable[[OperationContext, S3Request], Awaitable[S3Response]]
"""The form of every operation."""
