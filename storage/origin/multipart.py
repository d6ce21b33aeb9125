"""The data lane's operations on S3 uploads; `OriginClient` has them too."""

from typing import Final

import msgspec

from storage.origin.answers import Headers, WriteAnswer, made_by, written, written_without_etag
from storage.origin.calls import Answer, Call, Caller
from storage.origin.documents import (
    PartsPage,
    PartToComplete,
    UploadsPage,
    parse_parts_page,
    parse_upload_id,
    parse_uploads_page,
    write_complete,
)
from storage.origin.wire import OutgoingBody, copy_source, digest_headers
from storage.types import ObjectName, Priority

PAGE_PARTS_MAX: Final = 1000
"""What a page has at most, and where nothing is said (AWS API_ListParts)."""


class PartTarget(msgspec.Struct, frozen=True, gc=False):
    """Which part of which upload at the origin."""

    name: ObjectName
    upload_id: str
    number: int

    @property
    def query(self) -> Headers:
        """The part's query parameters."""
        return (("partNumber", str(self.number)), ("uploadId", self.upload_id))


class MultipartClient:
    """S3 uploads at the origin. What holds for all writes stands in `client.py`."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    async def create_multipart_upload(
        self, name: ObjectName, headers: Headers, *, priority: Priority = Priority.FOREGROUND
    ) -> str:
        """Open an upload and give its id. An unknown outcome may leave an upload behind."""
        call = Call(
            "CreateMultipartUpload",
            "POST",
            name.bucket,
            name.key,
            query=(("uploads", ""),),
            headers=headers,
            priority=priority,
            is_read=False,
            is_idempotent=False,
        )

        async def opened(answer: Answer) -> str:
            return parse_upload_id(await answer.document())

        return await self._caller.run(call, opened)

    async def upload_part(
        self,
        target: PartTarget,
        body: OutgoingBody,
        *,
        headers: Headers = (),
        priority: Priority = Priority.FOREGROUND,
    ) -> WriteAnswer:
        """Store one part; errors of the body's source as for `put_object`."""
        call = Call(
            "UploadPart",
            "PUT",
            target.name.bucket,
            target.name.key,
            query=target.query,
            headers=headers + digest_headers(body),
            body=body,
            priority=priority,
            is_read=False,
            bytes_hint=body.size,
        )
        return await self._caller.run(call, written)

    async def upload_part_copy(
        self,
        source: ObjectName,
        target: PartTarget,
        headers: Headers = (),
        *,
        priority: Priority = Priority.FOREGROUND,
    ) -> WriteAnswer:
        """Fill one part from an object, or one version of it, at the origin; `headers` may hold x-amz-copy-source-range."""
        call = Call(
            "UploadPartCopy",
            "PUT",
            target.name.bucket,
            target.name.key,
            query=target.query,
            headers=(copy_source(source), *headers),
            priority=priority,
            is_read=False,
        )
        return await self._caller.run(call, made_by)

    async def complete_multipart_upload(
        self,
        name: ObjectName,
        upload_id: str,
        parts: tuple[PartToComplete, ...],
        *,
        headers: Headers = (),
        priority: Priority = Priority.FOREGROUND,
    ) -> WriteAnswer:
        """Make the object of its parts. An unknown outcome is for the caller to settle, by HEAD.

        Raises:
            OriginError: Also for an error inside a 200.
            NoSuchUploadError: It was aborted, or completed before.
        """
        call = Call(
            "CompleteMultipartUpload",
            "POST",
            name.bucket,
            name.key,
            query=(("uploadId", upload_id),),
            headers=(("content-type", "application/xml"), *headers),
            body=write_complete(parts),
            priority=priority,
            is_read=False,
            is_idempotent=False,
        )
        return await self._caller.run(call, made_by)

    async def abort_multipart_upload(
        self, name: ObjectName, upload_id: str, *, priority: Priority = Priority.FOREGROUND
    ) -> None:
        """Abort an upload and drop its parts."""
        call = Call(
            "AbortMultipartUpload",
            "DELETE",
            name.bucket,
            name.key,
            query=(("uploadId", upload_id),),
            priority=priority,
            is_read=False,
        )
        await self._caller.run(call, written_without_etag)

    async def list_parts(
        self,
        name: ObjectName,
        upload_id: str,
        *,
        marker: int = 0,
        max_parts: int = PAGE_PARTS_MAX,
        priority: Priority = Priority.FOREGROUND,
    ) -> PartsPage:
        """Give one page of an upload's parts, behind part number `marker`."""
        query: Headers = (("uploadId", upload_id), ("part-number-marker", str(marker)))
        if max_parts < PAGE_PARTS_MAX:
            query = (*query, ("max-parts", str(max_parts)))
        call = Call("ListParts", "GET", name.bucket, name.key, query=query, priority=priority)

        async def listed(answer: Answer) -> PartsPage:
            return parse_parts_page(await answer.document())

        return await self._caller.run(call, listed)

    async def list_multipart_uploads(
        self,
        bucket: str,
        prefix: str = "",
        *,
        key_marker: str = "",
        upload_id_marker: str = "",
        priority: Priority = Priority.FOREGROUND,
    ) -> UploadsPage:
        """Give one page of the bucket's open uploads."""
        optional = (("prefix", prefix), ("key-marker", key_marker), ("upload-id-marker", upload_id_marker))
        query = (
            ("uploads", ""),
            ("encoding-type", "url"),
            *((name, value) for name, value in optional if value),
        )
        call = Call("ListMultipartUploads", "GET", bucket, query=query, priority=priority)

        async def listed(answer: Answer) -> UploadsPage:
            return parse_uploads_page(await answer.document())

        return await self._caller.run(call, listed)
