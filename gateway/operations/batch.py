"""DeleteObjects."""

from gateway.context import HeaderPairs, OperationContext, S3Response, xml_response
from gateway.s3 import documents_out
from gateway.s3.checksums import CHECKSUM_HEADERS
from gateway.s3.documents_in import DOCUMENT_BYTES_MAX, ObjectToDelete, parse_delete
from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.metadata import check_header
from gateway.s3.passage import batch_headers
from gateway.s3.request import S3Request, check_key
from gateway.s3.rights import may
from gateway.s3.routes import Operation
from gateway.s3.versions import read_version_id
from storage.requests import DeleteLine, DeleteResult
from storage.types import ObjectName


async def delete_objects(context: OperationContext, request: S3Request) -> S3Response:
    """Answer DeleteObjects: one line an object or version, only the failures where the client wants it quiet.

    The right is asked for each line.
    """
    _require_digest(request)
    wanted = parse_delete(await context.body.read_small(DOCUMENT_BYTES_MAX))
    refusals = (_refusal(context, request, line) for line in wanted.objects)
    refused = {number: error for number, error in enumerate(refusals) if error is not None}
    common = batch_headers(request.headers.combined)
    lines = [_line(request.bucket, line, common) for line in wanted.objects]
    # Each once: deletes of one key take their turns one after the other, and a thousand would each sync for themselves.
    asked = list(dict.fromkeys(line for number, line in enumerate(lines) if number not in refused))
    told: tuple[DeleteResult, ...] = ()
    if asked:
        told = await context.store.delete_objects(request.bucket, asked, credential_id=context.credential_id)
    results = dict(zip(asked, told, strict=True))
    deleted: list[documents_out.DeletedEntry] = []
    failures: list[documents_out.DeleteFailure] = []
    for number, line in enumerate(wanted.objects):
        error = refused.get(number)
        if error is not None:
            failures.append(
                documents_out.DeleteFailure(line.key, error.code, error.message, line.version_id or "")
            )
            continue
        result = results[lines[number]]
        if result.code:
            failures.append(
                documents_out.DeleteFailure(line.key, result.code, result.message, line.version_id or "")
            )
        else:
            deleted.append(_deleted(line, result))
    return xml_response(documents_out.delete_result(() if wanted.is_quiet else deleted, failures))


def _require_digest(request: S3Request) -> None:
    """Insist on some digest of the document: a damaged list of keys would delete others (AWS "DeleteObjects")."""
    headers = request.headers.combined
    has_digest = (
        "content-md5" in headers
        or "x-amz-trailer" in headers
        or not CHECKSUM_HEADERS.keys().isdisjoint(headers)
    )
    if not has_digest and len(headers.get("x-amz-content-sha256", "")) != 64:
        raise S3Error(
            ErrorCode.INVALID_REQUEST,
            "Missing required header for this request: Content-MD5 OR x-amz-checksum-*",
        )


def _refusal(context: OperationContext, request: S3Request, line: ObjectToDelete) -> S3Error | None:
    """Say why one line may not or cannot be carried out; None where it can."""
    if not may(context.access, Operation.DELETE_OBJECTS, request, line.key):
        return S3Error(ErrorCode.ACCESS_DENIED)
    # Its outcome would tell what the object is.
    if _conditions(line) and not may(context.access, Operation.HEAD_OBJECT, request, line.key):
        return S3Error(ErrorCode.ACCESS_DENIED)
    try:
        check_key(line.key)
        read_version_id(line.version_id)
        for name, value in _conditions(line):
            check_header(name, value)
    except S3Error as error:
        return error
    return None


def _line(bucket: str, line: ObjectToDelete, common: HeaderPairs) -> DeleteLine:
    return DeleteLine(ObjectName(bucket, line.key, line.version_id or ""), _conditions(line) + common)


def _conditions(line: ObjectToDelete) -> HeaderPairs:
    """Write a line's conditions as DeleteObject has them (AWS API_ObjectIdentifier, API_DeleteObject)."""
    told = (
        ("if-match", line.etag),
        ("x-amz-if-match-last-modified-time", line.last_modified),
        ("x-amz-if-match-size", line.size),
    )
    return tuple((name, value) for name, value in told if value is not None)


def _deleted(line: ObjectToDelete, result: DeleteResult) -> documents_out.DeletedEntry:
    """Write a line that was carried out: of a marker that was made, or of a version that was one (AWS API_DeletedObject)."""
    is_marker = dict(result.headers).get("x-amz-delete-marker", "").lower() == "true"
    return documents_out.DeletedEntry(
        line.key,
        line.version_id or "",
        is_delete_marker=is_marker,
        delete_marker_version_id=(result.version_id or line.version_id or "") if is_marker else "",
    )
