"""What the gateway does not answer itself: asked of the origin under the gateway's own signature, and answered as it answers.

What a request needs and changes is looked up in `gateway/s3/effects.py`; flushing and forgetting is storage's. Status, headers,
body and error documents are the origin's; what is of a connection or a signature is left out both ways
(`storage/origin/relayed.py`).
"""

from collections.abc import AsyncIterator
from typing import Final

from gateway.context import OperationContext, Operator, S3Response
from gateway.operations.arguments import end_to_end, version_name
from gateway.operations.published import under_targets
from gateway.s3.effects import EFFECTS, ENCRYPTED_READ, REFUSED, unknown_effect
from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.metadata import read_overrides
from gateway.s3.passage import relayed_headers, relayed_query
from gateway.s3.request import S3Request
from gateway.s3.routes import SUBRESOURCES, Operation, level_of, operation_names
from storage.effects import Effect
from storage.errors import OriginError, OriginRefusedError, OriginUnavailableError
from storage.origin.documents import parse_error
from storage.requests import Content, RelayReply, RelayRequest
from storage.types import MIB, Checksum

READ_BODY_BYTES_MAX: Final = MIB
"""The document of a read is taken in whole, so that it can be asked again; SelectObjectContent's is at most 256 KiB."""

_BODILESS: Final = frozenset({"GET", "HEAD", "DELETE"})
_PLAIN: Final = frozenset({"PUT", "DELETE"})
"""The methods by which a request without a sub-resource replaces or deletes the object, or makes or deletes the bucket."""

_CUSTOMER_KEY: Final = "x-amz-server-side-encryption-customer-"
_FORM: Final = "multipart/form-data"
_OTHER_OBJECTS: Final = ("x-amz-copy-source", "x-amz-rename-source")


class NoContent:
    """The body of a write that has none."""

    size = 0

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield nothing."""
        nothing: tuple[bytes, ...] = ()
        for piece in nothing:
            yield piece

    def checksums(self) -> tuple[Checksum, ...]:
        """Give none."""
        return ()


async def relay(operation: Operation, context: OperationContext, request: S3Request) -> S3Response:
    """Answer an operation with the origin's answer.

    Raises:
        S3Error: NotImplemented, with the reason, for what cannot be relayed; InvalidArgument, a version id that none can be.
        StorageError: What it depends on cannot be flushed, or the origin did not answer.
    """
    effect = _effect(operation, request)

    async def asked(context: OperationContext, shown: S3Request) -> S3Response:
        return await _asked(operation, effect, context, shown, is_renamed=shown is not request)

    reads_object = effect.is_read and bool(request.key)
    return await (under_targets(asked) if reads_object else asked)(context, request)


def with_customer_keys(operation: Operation, operator: Operator) -> Operator:
    """Let the origin answer a read that brings a key of the customer's (SSE-C): it alone can check the key.

    What is encrypted so is never cached: it is written through without a copy, and read through here.
    """

    async def answer(context: OperationContext, request: S3Request) -> S3Response:
        async def asked(context: OperationContext, shown: S3Request) -> S3Response:
            return await _asked(operation, ENCRYPTED_READ, context, shown, is_renamed=shown is not request)

        if not any(name.startswith(_CUSTOMER_KEY) for name in request.headers.combined):
            return await operator(context, request)
        # Refused here, as the origin would: its request is always signed.
        read_overrides(request.query.pairs, is_signed=context.is_signed)
        return await under_targets(asked)(context, request)

    return answer


def _effect(operation: Operation, request: S3Request) -> Effect:
    reason = REFUSED.get(operation, "")
    effect = EFFECTS.get(operation)
    if operation is Operation.UNKNOWN:
        effect = unknown_effect(request.method, level_of(request))
        if effect is None or not (effect.is_read or SUBRESOURCES.isdisjoint(operation_names(request))):
            names = ", ".join(name for name, _ in request.query.pairs)
            reason = f"What the query parameters ask for is not known here: {names:.200}."
    if effect is not None and not effect.is_read:
        reason = reason or _misleading(request)
    if reason or effect is None:
        raise S3Error(ErrorCode.NOT_IMPLEMENTED, f"{operation} is not implemented. {reason}".strip())
    return effect


def _misleading(request: S3Request) -> str:
    """Say why an origin that overlooks the query would take a write for one that the guard cannot find out; "" where it would not."""
    if any(name in request.headers for name in _OTHER_OBJECTS):
        return "It names another object, and could be taken for a copy."
    content_type = request.headers.get("content-type") or ""
    if request.method == "POST" and not request.key and content_type.lower().startswith(_FORM):
        return "Its body is a form, and could be taken for an object."
    return ""


async def _asked(
    operation: Operation, effect: Effect, context: OperationContext, request: S3Request, *, is_renamed: bool
) -> S3Response:
    """Ask the origin; `is_renamed` where the client knows the object by another name, which is under a published target."""
    wish = RelayRequest(
        operation=operation.value,
        method=request.method,
        name=version_name(request).plain,
        effect=effect,
        query=relayed_query(request.query.pairs),
        headers=relayed_headers(request.headers.combined, request.query.pairs),
        body=await _document(context, request) if effect.is_read else b"",
        guarded=operation_names(request) if request.method in _PLAIN else (),
        credential_id=context.credential_id,
    )
    content = None if effect.is_read else _content(context, request)
    reply = await context.store.relay(wish, content)
    if is_renamed and reply.status >= 400:
        raise await _nameless(reply)
    return await _answer(request.method, reply)


async def _nameless(reply: RelayReply) -> OriginError:
    """Make of an error that the origin answered one that says nothing but what kind it is: its document names the object."""
    document = b""
    try:
        while len(document) < READ_BODY_BYTES_MAX and isinstance(
            piece := await reply.body.next_piece(), bytes
        ):
            document += piece
    finally:
        await reply.body.close()
    read = parse_error(document)
    code = "" if read is None else read.code
    kind = OriginRefusedError if reply.status < 500 else OriginUnavailableError
    return kind(f"the origin answered {reply.status} {code}".rstrip(), status=reply.status, code=code)


async def _document(context: OperationContext, request: S3Request) -> bytes:
    return await context.body.read_small(READ_BODY_BYTES_MAX) if _has_body(request) else b""


def _content(context: OperationContext, request: S3Request) -> Content:
    return context.body.content() if _has_body(request) else NoContent()


def _has_body(request: S3Request) -> bool:
    """Whether there is a body to read; where there has to be one, its reader refuses a request that does not say how long."""
    return (
        request.method not in _BODILESS
        or "content-length" in request.headers
        or "transfer-encoding" in request.headers
    )


async def _answer(method: str, reply: RelayReply) -> S3Response:
    headers = end_to_end(reply.headers)
    has_length = reply.length is not None and reply.status not in {204, 304}
    if method == "HEAD" or reply.status in {204, 304}:
        await reply.body.close()
        return S3Response(reply.status, headers, None, reply.length or 0, has_length=has_length)
    return S3Response(reply.status, headers, reply.body, reply.length or 0, has_length=has_length)
