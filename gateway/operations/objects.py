"""GetObject, HeadObject, PutObject, DeleteObject.

A GET is primed: its first piece is fetched before the answer exists. So an origin that fails before the first byte still
gives a whole error answer, and a version that was overwritten meanwhile is opened anew without the client noticing.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec

from gateway.context import HeaderPairs, OperationContext, S3Response, empty_response
from gateway.operations.arguments import (
    durability,
    end_to_end,
    object_name,
    quoted,
    version_name,
    write_headers,
    written_headers,
)
from gateway.s3.checksums import checksum_headers, wants_checksums
from gateway.s3.conditions import Conditions, Outcome, evaluate, if_range_holds, read_conditions
from gateway.s3.dates import http_date
from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.metadata import object_headers, read_metadata, read_overrides
from gateway.s3.passage import needs_origin, origin_headers
from gateway.s3.ranges import content_range, parse_range, resolve_range
from gateway.s3.request import S3Request
from gateway.s3.routes import part_number
from storage.errors import ObjectChangedError, OriginError
from storage.reasons import Answer
from storage.records import ObjectRecord
from storage.requests import Body, FileSpan, OpenObject, PutRequest
from storage.types import PUT_BYTES_MAX, ByteRange, CacheResult, Checksum, ObjectName, RangeSpec

OPENED_MAX: Final = 3
"""So often a GET is begun when the object changes before its first byte; writers win for longer than that rarely."""


class _Wish(msgspec.Struct, frozen=True):
    """What a GET or HEAD asks for."""

    name: ObjectName
    conditions: Conditions
    range_header: str | None
    if_range: str | None
    part_number: int | None
    overrides: HeaderPairs
    wants_checksums: bool

    @property
    def range(self) -> RangeSpec | None:
        return parse_range(self.range_header)

    @property
    def depends_on_metadata(self) -> bool:
        """Whether which bytes are wanted can only be told from the version's metadata."""
        return not self.conditions.is_empty or self.if_range is not None or self.part_number is not None


class _Selection(msgspec.Struct, frozen=True):
    """The bytes of a version that are answered. `is_partial`: with 206 and Content-Range."""

    span: ByteRange
    is_partial: bool
    checksums: tuple[Checksum, ...] = ()
    part_count: int = 0


class PrimedBody(Body):
    """A body whose first piece was fetched already."""

    def __init__(self, body: Body, first: bytes | FileSpan | None) -> None:
        self._body: Final = body
        self._first = first

    @property
    def result(self) -> CacheResult:
        """As the body's own."""
        return self._body.result

    async def next_piece(self) -> bytes | FileSpan | None:
        """Give the piece at hand, then the body's."""
        first, self._first = self._first, None
        return first if first is not None else await self._body.next_piece()

    async def close(self) -> None:
        """Close the body."""
        await self._body.close()


async def get_object(context: OperationContext, request: S3Request) -> S3Response:
    """Answer GetObject: 200, 206 for a range or part, 304 and 412 by conditions, 416 outside the object."""
    return await _answered(_get_once, context, _read_wish(context, request))


async def head_object(context: OperationContext, request: S3Request) -> S3Response:
    """Answer HeadObject: what a GET would have, without the body."""
    return await _answered(_head_once, context, _read_wish(context, request))


async def _answered(
    once: Callable[[OperationContext, _Wish], Awaitable[S3Response]], context: OperationContext, wish: _Wish
) -> S3Response:
    for attempt in range(1, OPENED_MAX + 1):
        try:
            return await once(context, wish)
        except ObjectChangedError:
            if attempt == OPENED_MAX:
                raise
    raise AssertionError("the last attempt returns or raises")


async def _head_once(context: OperationContext, wish: _Wish) -> S3Response:
    opened = await context.store.open_object(wish.name, wish.range, metadata_only=True)
    try:
        unchanged = _not_modified(wish, opened)
        if unchanged is not None:
            return unchanged
        selection = await _select(context, wish, opened.record)
        return _found(wish, opened, selection, opened.result, None)
    finally:
        await opened.close()


async def put_object(context: OperationContext, request: S3Request) -> S3Response:
    """Answer PutObject."""
    headers = write_headers(request)
    content = context.body.content()
    if content.size > PUT_BYTES_MAX:
        raise S3Error(
            ErrorCode.ENTITY_TOO_LARGE,
            extra={"ProposedSize": str(content.size), "MaxSizeAllowed": str(PUT_BYTES_MAX)},
        )
    metadata = read_metadata(headers)
    put = PutRequest(
        name=object_name(request),
        headers=metadata.headers,
        user_metadata=metadata.user_metadata,
        tags=metadata.tags,
        mode=durability(headers),
        origin_reason=needs_origin(headers),
        origin_headers=origin_headers(headers),
        credential_id=context.credential_id,
    )
    result = await context.store.put_object(put, content)
    own = (("etag", quoted(result.etag)), *checksum_headers(result.checksums))
    return empty_response(200, written_headers(own, result.headers))


async def delete_object(context: OperationContext, request: S3Request) -> S3Response:
    """Answer DeleteObject: 204, whether or not there was such an object or version."""
    headers = request.headers.combined
    result = await context.store.delete_object(
        version_name(request),
        origin_reason=needs_origin(headers),
        origin_headers=origin_headers(headers),
        credential_id=context.credential_id,
    )
    if result.code:
        raise S3Error(result.code, result.message, status=_status_of(result.code))
    return empty_response(204, end_to_end(result.headers))


async def _get_once(context: OperationContext, wish: _Wish) -> S3Response:
    opened = await context.store.open_object(wish.name, wish.range, metadata_only=wish.depends_on_metadata)
    try:
        unchanged = _not_modified(wish, opened)
        if unchanged is not None:
            return unchanged
        selection = await _select(context, wish, opened.record)
        if selection.span.length == 0:
            _count(context, wish, opened, opened.result)
            return _found(wish, opened, selection, opened.result, None)
        body = opened.read(selection.span)
    finally:
        await opened.close()
    primed = await _primed(body)
    result = _result(opened, primed)
    _count(context, wish, opened, result)
    return _found(wish, opened, selection, result, primed)


def _count(context: OperationContext, wish: _Wish, opened: OpenObject, result: CacheResult) -> None:
    """Count a GET that is answered, and remember how if it was no plain hit."""
    stats = context.store.stats
    stats.count_request(result, context.clock.monotonic_s())
    if result is not CacheResult.HIT:
        stats.last_answers.note(wish.name, Answer(result, opened.reason, context.clock.wall_s()))


async def _primed(body: Body) -> PrimedBody:
    try:
        return PrimedBody(body, await body.next_piece())
    except BaseException:
        # Cancellation too: what the body pins must not stay pinned.
        await body.close()
        raise


def _read_wish(context: OperationContext, request: S3Request) -> _Wish:
    headers = request.headers.combined
    number = part_number(request)
    range_header = headers.get("range")
    if number is not None and range_header is not None:
        raise S3Error(
            ErrorCode.INVALID_REQUEST, "Cannot specify both Range header and partNumber query parameter"
        )
    return _Wish(
        name=version_name(request),
        conditions=read_conditions(headers),
        range_header=range_header,
        if_range=headers.get("if-range"),
        part_number=number,
        overrides=read_overrides(request.query.pairs, is_signed=context.is_signed),
        wants_checksums=wants_checksums(headers),
    )


def _not_modified(wish: _Wish, opened: OpenObject) -> S3Response | None:
    """Give the 304 that the conditions ask for; None where the object is to be sent."""
    record = opened.record
    outcome = evaluate(wish.conditions, record.etag, record.last_modified_s)
    if outcome is Outcome.PRECONDITION_FAILED:
        # If-Match, where it is sent, is the only one of the two that is looked at.
        name = "If-Unmodified-Since" if wish.conditions.if_match is None else "If-Match"
        raise S3Error(ErrorCode.PRECONDITION_FAILED, extra={"Condition": name})
    if outcome is Outcome.PASS:
        return None
    kept = tuple(pair for pair in record.headers if pair[0] in {"cache-control", "expires"})
    return empty_response(304, (*_identity(opened, opened.result), *kept))


async def _select(context: OperationContext, wish: _Wish, record: ObjectRecord) -> _Selection:
    whole = ByteRange(0, record.size)
    if wish.part_number is not None:
        if not record.parts and "-" in record.etag:
            return await _select_part_of_origin(context, wish.name, record, wish.part_number)
        return _select_part(wish.part_number, record)
    if wish.range_header is not None and if_range_holds(wish.if_range, record.etag, record.last_modified_s):
        span = resolve_range(wish.range, record.size, wish.range_header)
        if span is not None:
            return _Selection(span, is_partial=True)
    return _Selection(whole, is_partial=False, checksums=record.checksums)


def _select_part(number: int, record: ObjectRecord) -> _Selection:
    """Give the bytes of one part as it was uploaded (AWS "GetObject", partNumber)."""
    if not record.parts:
        if number != 1:
            raise _no_such_part(number, 1)
        # S3 answers 206 for part 1 of an object without parts, and leaves the count out.
        whole = ByteRange(0, record.size)
        return _Selection(whole, is_partial=record.size > 0, checksums=record.checksums)
    if number > len(record.parts):
        raise _no_such_part(number, len(record.parts))
    start = sum(part.size for part in record.parts[: number - 1])
    part = record.parts[number - 1]
    span = ByteRange(start, start + part.size)
    return _Selection(
        span, is_partial=span.length > 0, checksums=part.checksums, part_count=len(record.parts)
    )


async def _select_part_of_origin(
    context: OperationContext, name: ObjectName, record: ObjectRecord, number: int
) -> _Selection:
    """Give the bytes of one part of an object that was uploaded at the origin, which alone knows its parts."""
    try:
        found = await context.store.part_span(name, record, number)
    except OriginError as error:
        if error.status != 416:
            raise
        raise _no_such_part(number, _parts_by_etag(record.etag)) from error
    if number > found.count:
        raise _no_such_part(number, found.count)
    return _Selection(
        found.span, is_partial=found.span.length > 0, checksums=found.checksums, part_count=found.count
    )


def _parts_by_etag(etag: str) -> int:
    """Read how many parts an object has from its ETag, as S3 makes it: the digits behind the dash; 0 where there are none."""
    count = etag.rpartition("-")[2]
    return int(count) if count.isascii() and count.isdecimal() and len(count) <= 5 else 0


def _found(
    wish: _Wish, opened: OpenObject, selection: _Selection, result: CacheResult, body: Body | None
) -> S3Response:
    record = opened.record
    headers = [*_identity(opened, result), ("accept-ranges", "bytes")]
    headers += object_headers(record.headers, record.user_metadata, record.tags, wish.overrides)
    if selection.is_partial:
        headers.append(("content-range", content_range(selection.span, record.size)))
    if selection.part_count:
        headers.append(("x-amz-mp-parts-count", str(selection.part_count)))
    if wish.wants_checksums:
        headers += checksum_headers(selection.checksums)
    status = 206 if selection.is_partial else 200
    return S3Response(status, tuple(headers), body, selection.span.length)


def _identity(opened: OpenObject, result: CacheResult) -> HeaderPairs:
    """Write which version is answered, and how it was found."""
    record = opened.record
    headers: HeaderPairs = (
        ("x-cache", result.value),
        ("etag", quoted(record.etag)),
        ("last-modified", http_date(record.last_modified_s)),
    )
    reason = opened.reason
    if reason:
        headers += (("x-cache-reason", reason),)
    if record.origin is not None and record.origin.version_id:
        headers += (("x-amz-version-id", record.origin.version_id),)
    return headers


def _result(opened: OpenObject, body: Body) -> CacheResult:
    """Say how a GET was answered: a stale or bypassing open says more than where its bytes were."""
    if opened.result in {CacheResult.STALE, CacheResult.BYPASS}:
        return opened.result
    return body.result


def _no_such_part(number: int, count: int) -> S3Error:
    return S3Error(
        ErrorCode.INVALID_PART_NUMBER,
        extra={"PartNumberRequested": str(number), "ActualPartCount": str(count)},
    )


def _status_of(code: str) -> int:
    return {"AccessDenied": 403, "PreconditionFailed": 412, "NoSuchKey": 404}.get(code, 400)
