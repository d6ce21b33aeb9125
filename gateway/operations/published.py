"""Read a published target: the operations of its source's objects, each answer with the generation that it is of.

Which name is read is settled once, before the operation begins, so whatever it answers is of one generation. Rights were
asked of the name that the client sent; the source's name is seen by nobody.
"""

from msgspec.structs import replace

from gateway.context import OperationContext, Operator, S3Response
from gateway.operations.arguments import name_generation, object_name
from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.request import S3Request


def under_targets(operator: Operator) -> Operator:
    """Make an operation that reads one object read it under published targets, too."""

    async def answer(context: OperationContext, request: S3Request) -> S3Response:
        view = await context.store.view(object_name(request))
        if view is None:
            return await operator(context, request)
        name_generation(context, view.generation)
        if not view.is_possible:
            raise S3Error(ErrorCode.NO_SUCH_KEY)
        return await operator(context, replace(request, bucket=view.name.bucket, key=view.name.key))

    return answer
