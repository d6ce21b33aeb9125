"""DeleteObjects."""

from gateway.context import OperationContext, S3Response, xml_response
from gateway.s3 import documents_out
from gateway.s3.checksums import CHECKSUM_HEADERS
from gateway.s3.documents_in import DOCUMENT_BYTES_MAX, ObjectToDelete, parse_delete
from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.request import S3Request, check_key
from gateway.s3.rights import may
from gateway.s3.routes import Operation
from storage.requests import DeleteResult


async def delete_objects(context: OperationContext, request: S3Request) -> S3Response:
    """Answer DeleteObjects: one line a key, only the failures where the client wants it quiet; the right is asked for each."""
    _require_digest(request)
    wanted = parse_delete(await context.body.read_small(DOCUMENT_BYTES_MAX))
    refusals = (_refusal(context, request.bucket, line) for line in wanted.objects)
    refused = {number: error for number, error in enumerate(refusals) if error is not None}
    # Each key once: deletes of one key take their turns one after the other, and a thousand would each sync for themselves.
    keys = list(
        dict.fromkeys(line.key for number, line in enumerate(wanted.objects) if number not in refused)
    )
    results = {
        result.key: result
        for result in (
            await context.store.delete_objects(request.bucket, keys, credential_id=context.credential_id)
            if keys
            else ()
        )
    }
    deleted: list[documents_out.DeletedEntry] = []
    failures: list[documents_out.DeleteFailure] = []
    for number, line in enumerate(wanted.objects):
        error = refused.get(number)
        if error is not None:
            failures.append(
                documents_out.DeleteFailure(line.key, error.code, error.message, line.version_id or "")
            )
            continue
        result = results[line.key]
        if result.code:
            failures.append(
                documents_out.DeleteFailure(line.key, result.code, result.message, result.version_id)
            )
        else:
            deleted.append(_deleted(line.key, result))
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


def _refusal(context: OperationContext, bucket: str, line: ObjectToDelete) -> S3Error | None:
    """Say why one line may not or cannot be carried out here; None where it can."""
    if not may(context.access, Operation.DELETE_OBJECTS, bucket, line.key):
        return S3Error(ErrorCode.ACCESS_DENIED)
    # Its outcome would tell what the object is.
    is_conditional = bool(line.etag or line.last_modified or line.size)
    if is_conditional and not may(context.access, Operation.HEAD_OBJECT, bucket, line.key):
        return S3Error(ErrorCode.ACCESS_DENIED)
    if not line.is_plain and (line.version_id != "null" or line.etag or line.last_modified or line.size):
        return S3Error(
            ErrorCode.NOT_IMPLEMENTED, "Deletes of versions and conditional deletes are not implemented."
        )
    try:
        check_key(line.key)
    except S3Error as error:
        return error
    return None


def _deleted(key: str, result: DeleteResult) -> documents_out.DeletedEntry:
    headers = dict(result.headers)
    is_marker = headers.get("x-amz-delete-marker") == "true"
    return documents_out.DeletedEntry(
        key, is_delete_marker=is_marker, delete_marker_version_id=result.version_id if is_marker else ""
    )
