"""CopyObject."""

from gateway.context import OperationContext, S3Response, xml_response
from gateway.operations.arguments import end_to_end, object_name
from gateway.s3 import documents_out
from gateway.s3.errors import ErrorCode, S3Error, invalid_argument
from gateway.s3.passage import copy_headers
from gateway.s3.request import S3Request, check_key, decode, is_bucket_name
from storage.types import ObjectName

SOURCE = "x-amz-copy-source"


async def copy_object(context: OperationContext, request: S3Request) -> S3Response:
    """Answer CopyObject; its conditions are the origin's to decide, with the headers passed on."""
    source = read_source(request.headers.get(SOURCE) or "")
    result = await context.store.copy_object(
        source, object_name(request), copy_headers(request.headers.combined), context.credential_id
    )
    document = documents_out.copy_object_result(result.etag, result.last_modified_s, result.checksums)
    return xml_response(document, end_to_end(result.headers))


def read_source(header: str) -> ObjectName:
    """Read x-amz-copy-source: `bucket/key` or `/bucket/key`, percent-encoded, decoded exactly once.

    The slash between the two may be encoded too, as some clients encode the whole.

    Raises:
        S3Error: InvalidArgument: no such form; NotImplemented: a version of the source.
    """
    path, question, query = header.partition("?")
    if question and query != "versionId=null":
        raise S3Error(ErrorCode.NOT_IMPLEMENTED, "Copies of a version are not implemented.")
    bucket, slash, key = decode(path).removeprefix("/").partition("/")
    if not slash or not key or not is_bucket_name(bucket):
        raise invalid_argument(
            SOURCE, header, "Copy Source must mention the source bucket and key: sourcebucket/sourcekey"
        )
    check_key(key)
    return ObjectName(bucket, key)
