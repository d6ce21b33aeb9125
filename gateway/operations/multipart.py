"""CreateMultipartUpload, UploadPart, CompleteMultipartUpload, AbortMultipartUpload, ListParts, ListMultipartUploads."""

from typing import Final

from gateway.context import OperationContext, S3Response, empty_response, xml_response
from gateway.operations.arguments import (
    account_owner,
    count_parameter,
    durability,
    end_to_end,
    is_url_encoded,
    object_name,
    quoted,
    resource_url,
    write_headers,
    written_headers,
)
from gateway.s3 import documents_out
from gateway.s3.checksums import checksum_headers, declared_checksum, upload_checksum
from gateway.s3.documents_in import DOCUMENT_BYTES_MAX, parse_complete
from gateway.s3.errors import ErrorCode, S3Error, invalid_argument
from gateway.s3.metadata import STORAGE_CLASS, read_metadata
from gateway.s3.passage import CONDITIONAL_HEADERS, needs_origin, origin_headers
from gateway.s3.request import S3Request
from gateway.s3.routes import PART_NUMBER_MAX, part_number
from storage.records import UploadRecord
from storage.requests import CompletedPart, UploadRequest
from storage.types import PUT_BYTES_MAX

PAGE_MAX: Final = 1000
"""The longest page of parts or uploads (AWS "ListParts", "ListMultipartUploads")."""


async def create_upload(context: OperationContext, request: S3Request) -> S3Response:
    """Answer CreateMultipartUpload."""
    headers = write_headers(request)
    metadata = read_metadata(headers)
    checksum = upload_checksum(headers)
    algorithm, checksum_type = ("", "") if checksum is None else (str(checksum[0]), str(checksum[1]))
    upload = UploadRequest(
        name=object_name(request),
        headers=metadata.headers,
        user_metadata=metadata.user_metadata,
        tags=metadata.tags,
        checksum_algorithm=algorithm,
        checksum_type=checksum_type,
        mode=durability(headers),
        origin_reason=needs_origin(headers),
        origin_headers=origin_headers(headers),
        credential_id=context.credential_id,
    )
    upload_id, answered = await context.store.create_upload(upload)
    declared = (("x-amz-checksum-algorithm", algorithm), ("x-amz-checksum-type", checksum_type))
    document = documents_out.initiate_upload(request.bucket, request.key, upload_id)
    return xml_response(document, (*(declared if algorithm else ()), *end_to_end(answered)))


async def upload_part(context: OperationContext, request: S3Request) -> S3Response:
    """Answer UploadPart."""
    headers = request.headers.combined
    number = part_number(request)
    assert number is not None, "the route asks for partNumber"
    content = context.body.content()
    if content.size > PUT_BYTES_MAX:
        raise S3Error(
            ErrorCode.ENTITY_TOO_LARGE,
            extra={"ProposedSize": str(content.size), "MaxSizeAllowed": str(PUT_BYTES_MAX)},
        )
    result = await context.store.upload_part(
        object_name(request), _upload_id(request), number, content, origin_headers(headers)
    )
    etag = ("etag", quoted(result.etag))
    # A part's answer has the checksum but no type, which is the upload's (AWS "UploadPart").
    checksums = tuple(pair for pair in checksum_headers(result.checksums) if pair[0] != "x-amz-checksum-type")
    return empty_response(200, written_headers((etag, *checksums), result.headers))


async def complete_upload(context: OperationContext, request: S3Request) -> S3Response:
    """Answer CompleteMultipartUpload; a repeated one answers as the first did."""
    headers = request.headers.combined
    document = await context.body.read_small(DOCUMENT_BYTES_MAX, checksums_are_of_object=True)
    parts = parse_complete(document)
    checksum = declared_checksum(headers, of_upload=True)
    result = await context.store.complete_upload(
        object_name(request),
        _upload_id(request),
        [CompletedPart(part.number, part.etag, part.checksums) for part in parts],
        checksums=() if checksum is None else (checksum,),
        size=_object_size(headers.get("x-amz-mp-object-size")),
        # A condition is no reason: where the upload is kept here, storage decides it with the origin.
        origin_reason=needs_origin({n: v for n, v in headers.items() if n not in CONDITIONAL_HEADERS}),
        origin_headers=origin_headers(headers),
    )
    answer = documents_out.complete_upload(
        location=resource_url(context, request),
        bucket=request.bucket,
        key=request.key,
        etag=result.etag,
        checksums=result.checksums,
    )
    return xml_response(answer, end_to_end(result.headers))


async def abort_upload(context: OperationContext, request: S3Request) -> S3Response:
    """Answer AbortMultipartUpload.

    Raises:
        S3Error: NotImplemented for a condition on when the upload was opened, which only directory buckets know.
    """
    if "x-amz-if-match-initiated-time" in request.headers:
        raise S3Error(
            ErrorCode.NOT_IMPLEMENTED,
            "x-amz-if-match-initiated-time is not implemented.",
            extra={"Header": "x-amz-if-match-initiated-time"},
        )
    await context.store.abort_upload(object_name(request), _upload_id(request))
    return empty_response(204)


async def list_parts(context: OperationContext, request: S3Request) -> S3Response:
    """Answer ListParts."""
    marker = count_parameter(request, "part-number-marker", default=0, most=PART_NUMBER_MAX)
    most = count_parameter(request, "max-parts", default=PAGE_MAX, most=PAGE_MAX)
    page = await context.store.list_parts(
        object_name(request), _upload_id(request), part_marker=marker, max_parts=most
    )
    owner = await account_owner(context)
    document = documents_out.list_parts(
        documents_out.PartsPage(
            upload=_upload_entry(page.upload, owner),
            bucket=request.bucket,
            part_number_marker=marker,
            max_parts=most,
            is_truncated=page.is_truncated,
            entries=tuple(
                documents_out.PartEntry(p.number, p.size, p.etag, p.last_modified_s, p.checksums)
                for p in page.parts
            ),
            next_part_number_marker=page.next_part_marker,
        )
    )
    return xml_response(document)


async def list_uploads(context: OperationContext, request: S3Request) -> S3Response:
    """Answer ListMultipartUploads."""
    query = request.query
    prefix, delimiter = query.get("prefix") or "", query.get("delimiter") or ""
    key_marker, id_marker = query.get("key-marker") or "", query.get("upload-id-marker") or ""
    most = count_parameter(request, "max-uploads", default=PAGE_MAX, most=PAGE_MAX)
    page = await context.store.list_uploads(
        request.bucket,
        prefix=prefix,
        delimiter=delimiter,
        key_marker=key_marker,
        # Without a key marker an upload id marker means nothing (AWS "ListMultipartUploads").
        upload_id_marker=id_marker if key_marker else "",
        max_uploads=most,
    )
    owner = await account_owner(context)
    document = documents_out.list_uploads(
        documents_out.UploadsPage(
            bucket=request.bucket,
            prefix=prefix,
            delimiter=delimiter,
            key_marker=key_marker,
            upload_id_marker=id_marker,
            max_uploads=most,
            is_truncated=page.is_truncated,
            entries=tuple(_upload_entry(upload, owner) for upload in page.uploads),
            common_prefixes=page.prefixes,
            next_key_marker=page.next_key_marker,
            next_upload_id_marker=page.next_upload_id_marker,
            is_url_encoded=is_url_encoded(request),
        )
    )
    return xml_response(document)


def _upload_id(request: S3Request) -> str:
    return request.query.get("uploadId") or ""


def _object_size(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal() and len(text) <= 18):
        raise invalid_argument("x-amz-mp-object-size", text, "The object size is not a number.")
    return int(text)


def _upload_entry(upload: UploadRecord, owner: documents_out.Owner) -> documents_out.UploadEntry:
    return documents_out.UploadEntry(
        key=upload.key,
        upload_id=upload.upload_id,
        initiated_s=upload.initiated_s,
        storage_class=dict(upload.headers).get(STORAGE_CLASS, "STANDARD"),
        checksum_algorithm=upload.checksum_algorithm,
        checksum_type=upload.checksum_type,
        owner=owner,
    )
