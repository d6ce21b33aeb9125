"""Which function answers which operation; what is missing here is relayed to the origin, or refused with the reason."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from gateway.context import OperationContext, Operator, S3Response
from gateway.operations import batch, buckets, copy, listing, multipart, objects, relay
from gateway.operations.post import as_form
from gateway.operations.published import under_targets
from gateway.s3.request import S3Request
from gateway.s3.routes import Operation

OPERATIONS: Final[Mapping[Operation, Operator]] = MappingProxyType(
    {
        Operation.ABORT_MULTIPART_UPLOAD: multipart.abort_upload,
        Operation.COMPLETE_MULTIPART_UPLOAD: multipart.complete_upload,
        Operation.COPY_OBJECT: copy.copy_object,
        Operation.CREATE_BUCKET: buckets.create_bucket,
        Operation.CREATE_MULTIPART_UPLOAD: multipart.create_upload,
        Operation.DELETE_BUCKET: buckets.delete_bucket,
        Operation.DELETE_OBJECT: objects.delete_object,
        Operation.DELETE_OBJECTS: batch.delete_objects,
        Operation.GET_BUCKET_LOCATION: buckets.get_bucket_location,
        Operation.GET_OBJECT: relay.with_customer_keys(
            Operation.GET_OBJECT, under_targets(objects.get_object)
        ),
        Operation.HEAD_BUCKET: buckets.head_bucket,
        Operation.HEAD_OBJECT: relay.with_customer_keys(
            Operation.HEAD_OBJECT, under_targets(objects.head_object)
        ),
        Operation.LIST_BUCKETS: buckets.list_buckets,
        Operation.LIST_MULTIPART_UPLOADS: multipart.list_uploads,
        Operation.LIST_OBJECTS: listing.list_objects,
        Operation.LIST_OBJECTS_V2: listing.list_objects_v2,
        Operation.LIST_PARTS: multipart.list_parts,
        Operation.POST_OBJECT: as_form(objects.put_object),
        Operation.PUT_OBJECT: objects.put_object,
        Operation.UPLOAD_PART: multipart.upload_part,
        Operation.UPLOAD_PART_COPY: copy.upload_part_copy,
    }
)


async def operate(operation: Operation, context: OperationContext, request: S3Request) -> S3Response:
    """Carry out one operation.

    Raises:
        S3Error: NotImplemented for an operation that is neither answered nor relayed, and whatever the operation refuses.
        StorageError: What storage could not do.
    """
    operator = OPERATIONS.get(operation)
    if operator is None:
        return await relay.relay(operation, context, request)
    return await operator(context, request)
