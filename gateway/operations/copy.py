"""CopyObject and UploadPartCopy."""

from typing import Final

from gateway.context import HeaderPairs, OperationContext, S3Response, xml_response
from gateway.operations.arguments import end_to_end, object_name
from gateway.s3 import documents_out
from gateway.s3.conditions import Outcome, copy_source_conditions, evaluate
from gateway.s3.copy_source import SOURCE, parse_copy_source
from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.passage import copy_headers, needs_origin
from gateway.s3.ranges import check_copy_source_range, parse_copy_source_range
from gateway.s3.request import S3Request
from gateway.s3.routes import part_number
from storage.errors import ObjectChangedError
from storage.publish import seen_through
from storage.records import ObjectRecord
from storage.requests import PutResult
from storage.types import PUT_BYTES_MAX, ByteRange, ObjectName

OPENED_MAX: Final = 3
"""So often the copy of a part is begun when its source changes under it."""


async def copy_object(context: OperationContext, request: S3Request) -> S3Response:
    """Answer CopyObject; its conditions are the origin's to decide, with the headers passed on."""
    source = parse_copy_source(request.headers.get(SOURCE) or "")
    result = await context.store.copy_object(
        source, object_name(request), copy_headers(request.headers.combined), context.credential_id
    )
    document = documents_out.copy_object_result(result.etag, result.last_modified_s, result.checksums)
    return xml_response(document, end_to_end(result.headers))


async def upload_part_copy(context: OperationContext, request: S3Request) -> S3Response:
    """Answer UploadPartCopy: into an upload that is kept here the bytes are read as a GET reads them, else the origin copies."""
    source = parse_copy_source(request.headers.get(SOURCE) or "")
    headers = request.headers.combined
    asked = headers.get("x-amz-copy-source-range")
    span = None if asked is None else parse_copy_source_range(asked)
    number = part_number(request)
    assert number is not None, "the route asks for partNumber"
    upload_id = request.query.get("uploadId") or ""
    if context.store.keeps_upload(upload_id):
        if needs_origin(headers):
            raise S3Error(ErrorCode.NOT_IMPLEMENTED, f"{needs_origin(headers)} on a part that is copied.")
        result = await _copy_here(context, request, source, span, number)
    else:
        result = await context.store.upload_part_copy(
            source, object_name(request), upload_id, number, copy_headers(headers)
        )
    document = documents_out.copy_part_result(result.etag, result.last_modified_s, result.checksums)
    return xml_response(document, end_to_end(result.headers))


async def _copy_here(
    context: OperationContext, request: S3Request, source: ObjectName, span: ByteRange | None, number: int
) -> PutResult:
    view = await context.store.view(source.plain)
    if view is not None and not view.is_possible:
        raise S3Error(ErrorCode.NO_SUCH_KEY)
    name = seen_through(view, source)
    for attempt in range(1, OPENED_MAX + 1):
        try:
            return await _copy_once(context, request, name, span, number)
        except ObjectChangedError:
            if attempt == OPENED_MAX:
                raise
    raise AssertionError("the last attempt returns or raises")


async def _copy_once(
    context: OperationContext, request: S3Request, source: ObjectName, span: ByteRange | None, number: int
) -> PutResult:
    opened = await context.store.open_object(source, metadata_only=True)
    try:
        record = opened.record
        conditions = copy_source_conditions(request.headers.combined)
        if evaluate(conditions, record.etag, record.last_modified_s) is not Outcome.PASS:
            raise S3Error(ErrorCode.PRECONDITION_FAILED)
        wanted = _wanted(span, record)
        body = opened.read(wanted, is_copied=True)
    finally:
        await opened.close()
    result = await context.store.copy_part(
        object_name(request), request.query.get("uploadId") or "", number, body, wanted.length
    )
    return PutResult(result.etag, result.last_modified_s, result.checksums, _source_version(record))


def _wanted(span: ByteRange | None, record: ObjectRecord) -> ByteRange:
    """Say which bytes become the part.

    Raises:
        S3Error: InvalidRange: the range reaches past the source; InvalidRequest: more than a part may have.
    """
    if span is not None:
        check_copy_source_range(span, record.size)
    wanted = span or ByteRange(0, record.size)
    if wanted.length > PUT_BYTES_MAX:
        raise S3Error(
            ErrorCode.INVALID_REQUEST,
            f"The specified copy source is larger than the maximum allowable size for a copy source: {PUT_BYTES_MAX}",
        )
    return wanted


def _source_version(record: ObjectRecord) -> HeaderPairs:
    version_id = "" if record.origin is None else record.origin.version_id
    return (("x-amz-copy-source-version-id", version_id),) if version_id else ()
