"""ListBuckets, CreateBucket, DeleteBucket, HeadBucket, GetBucketLocation."""

from typing import Final

from gateway.context import OperationContext, S3Response, empty_response, xml_response
from gateway.operations.arguments import account_owner, count_parameter, end_to_end
from gateway.s3 import documents_out, tokens
from gateway.s3.documents_in import DOCUMENT_BYTES_MAX, parse_bucket_configuration
from gateway.s3.errors import ErrorCode, S3Error, invalid_argument
from gateway.s3.request import S3Request, check_new_bucket_name
from storage.requests import BucketEntry

BUCKETS_MAX: Final = 10_000
"""The longest page (AWS "ListBuckets", max-buckets)."""


async def list_buckets(context: OperationContext, request: S3Request) -> S3Response:
    """Answer ListBuckets: those of the origin's buckets in which the key may do anything, in order of their names."""
    prefix = request.query.get("prefix") or ""
    most = count_parameter(request, "max-buckets", default=BUCKETS_MAX, most=BUCKETS_MAX)
    if most == 0:
        raise invalid_argument(
            "max-buckets", "0", f"max-buckets must be an integer between 1 and {BUCKETS_MAX}"
        )
    token = request.query.get("continuation-token")
    after = tokens.decode(token).text if token else ""
    seen = (b for b in await context.store.list_buckets() if context.access.holds_any(b.name))
    found = [b for b in seen if b.name.startswith(prefix) and b.name > after]
    found.sort(key=_name)
    page = found[:most]
    following = (
        tokens.encode(tokens.Position(tokens.PositionKind.KEY, page[-1].name)) if len(found) > most else ""
    )
    document = documents_out.list_buckets(
        await account_owner(context),
        [documents_out.BucketEntry(bucket.name, bucket.created_at_s) for bucket in page],
        prefix=prefix,
        continuation_token=following,
    )
    return xml_response(document)


async def create_bucket(context: OperationContext, request: S3Request) -> S3Response:
    """Answer CreateBucket with the origin's answer."""
    check_new_bucket_name(request.bucket)
    configuration = parse_bucket_configuration(await context.body.read_small(DOCUMENT_BYTES_MAX))
    if not configuration.is_plain:
        raise S3Error(
            ErrorCode.NOT_IMPLEMENTED, "Of a bucket's configuration only its location is implemented."
        )
    passed_on = tuple(
        (name, value)
        for name, value in request.headers.pairs
        if name.startswith(
            ("x-amz-acl", "x-amz-grant-", "x-amz-bucket-object-lock-", "x-amz-object-ownership")
        )
    )
    reply = await context.store.create_bucket(
        request.bucket, region=configuration.location, headers=passed_on
    )
    return S3Response(reply.status, end_to_end(reply.headers), reply.body, len(reply.body))


async def delete_bucket(context: OperationContext, request: S3Request) -> S3Response:
    """Answer DeleteBucket."""
    await context.store.delete_bucket(request.bucket)
    return empty_response(204)


async def head_bucket(context: OperationContext, request: S3Request) -> S3Response:
    """Answer HeadBucket, with the region that SDKs look for."""
    facts = await context.store.bucket_facts(request.bucket)
    return empty_response(200, (("x-amz-bucket-region", facts.region or context.region),))


async def get_bucket_location(context: OperationContext, request: S3Request) -> S3Response:
    """Answer GetBucketLocation."""
    facts = await context.store.bucket_facts(request.bucket)
    return xml_response(documents_out.location_constraint(facts.region or context.region))


def _name(bucket: BucketEntry) -> str:
    return bucket.name
