"""ListObjects and ListObjectsV2."""

from functools import partial

from gateway.context import HeaderPairs, OperationContext, S3Response, xml_response
from gateway.operations.arguments import account_owner, count_parameter, is_url_encoded, name_generation
from gateway.s3 import documents_out, tokens
from gateway.s3.documents_out import Owner
from gateway.s3.errors import S3Error
from gateway.s3.request import S3Request
from storage.listing import PAGE_KEYS_MAX, ListEntry, ListQuery, ListResult, Position, position_of_marker
from storage.types import CacheResult


async def list_objects_v2(context: OperationContext, request: S3Request) -> S3Response:
    """Answer ListObjectsV2.

    An empty token is none, and comes back as it was sent: AWS API_ListObjectsV2 says nothing of it, and clients that carry a token
    from page to page send it with the first.
    """
    query = request.query
    token, start_after = query.get("continuation-token"), query.get("start-after") or ""
    prefix, delimiter = query.get("prefix") or "", query.get("delimiter") or ""
    if token:
        # One without a generation was made outside of targets: where there is one now, it is not what was listed.
        after, generation = _position(tokens.decode(token), default=0)
    else:
        after, generation = position_of_marker(start_after, prefix, delimiter), None
    with_owner = query.get("fetch-owner") == "true"
    page = await _page(context, wanted := _query(request, after, generation, with_owner=with_owner))
    owner = await _own(context, page) if with_owner else None
    document = documents_out.list_objects_v2(
        documents_out.ObjectsPageV2(
            bucket=request.bucket,
            prefix=prefix,
            delimiter=delimiter,
            max_keys=wanted.max_keys,
            entries=tuple(_entry(entry, owner) for entry in page.entries),
            common_prefixes=page.prefixes,
            start_after=start_after,
            continuation_token=token,
            next_continuation_token=_token(page),
            is_url_encoded=is_url_encoded(request),
        )
    )
    return xml_response(document, _stale(page))


async def list_objects(context: OperationContext, request: S3Request) -> S3Response:
    """Answer ListObjects, version 1, which always names owners.

    Within a published target NextMarker is a token, as version 2 has it, so that the listing stays in its generation.
    """
    query = request.query
    prefix, delimiter, marker = (query.get(name) or "" for name in ("prefix", "delimiter", "marker"))
    token = _marker_token(marker)
    if token is None:
        after, generation = position_of_marker(marker, prefix, delimiter), None
    else:
        after, generation = _position(token, default=None)
    page = await _page(context, wanted := _query(request, after, generation, with_owner=True))
    owner = await _own(context, page)
    document = documents_out.list_objects(
        documents_out.ObjectsPage(
            bucket=request.bucket,
            prefix=prefix,
            delimiter=delimiter,
            marker=marker,
            max_keys=wanted.max_keys,
            is_truncated=page.is_truncated,
            entries=tuple(_entry(entry, owner) for entry in page.entries),
            common_prefixes=page.prefixes,
            next_marker=_token(page) if page.generation is not None else page.next_marker(wanted) or "",
            is_url_encoded=is_url_encoded(request),
        )
    )
    return xml_response(document, _stale(page))


async def _page(context: OperationContext, wanted: ListQuery) -> ListResult:
    return await context.store.list_objects(wanted, partial(name_generation, context))


def _stale(page: ListResult) -> HeaderPairs:
    """Say that a page is one of before, the origin having failed."""
    if not page.stale_reason:
        return ()
    return (("x-cache", CacheResult.STALE.value), ("x-cache-reason", page.stale_reason))


async def _own(context: OperationContext, page: ListResult) -> Owner:
    """Give the owner of entries that are not at the origin yet; it is asked only where there are any."""
    if all(entry.owner_id for entry in page.entries):
        return Owner("")
    return await account_owner(context)


def _query(request: S3Request, after: Position, generation: int | None, *, with_owner: bool) -> ListQuery:
    return ListQuery(
        bucket=request.bucket,
        prefix=request.query.get("prefix") or "",
        delimiter=request.query.get("delimiter") or "",
        after=after,
        max_keys=count_parameter(request, "max-keys", default=PAGE_KEYS_MAX, most=PAGE_KEYS_MAX),
        generation=generation,
        with_owner=with_owner,
    )


def _position(token: tokens.Position, *, default: int | None) -> tuple[Position, int | None]:
    at = Position(token.text, is_prefix=token.kind is tokens.PositionKind.PREFIX)
    return at, default if token.generation is None else token.generation


def _marker_token(marker: str) -> tokens.Position | None:
    """Read a marker that is a NextMarker of ours within a target; None where it is a key like any other."""
    try:
        token = tokens.decode(marker)
    except S3Error:
        return None
    return None if token.generation is None else token


def _token(page: ListResult) -> str:
    """Write where the next page begins; "" where there is none."""
    at = page.next_position
    if at is None:
        return ""
    kind = tokens.PositionKind.PREFIX if at.is_prefix else tokens.PositionKind.KEY
    return tokens.encode(tokens.Position(kind, at.name, page.generation))


def _entry(entry: ListEntry, owner: Owner | None) -> documents_out.ObjectEntry:
    """Write an entry; `owner` is that of one that has none of its own, None where nobody asked."""
    return documents_out.ObjectEntry(
        key=entry.key,
        size=entry.size,
        etag=entry.etag,
        last_modified_s=entry.last_modified_s,
        storage_class=entry.storage_class,
        checksum_algorithms=entry.checksum_algorithms,
        checksum_type=entry.checksum_type or "",
        owner=None if owner is None else _owner(entry, owner),
    )


def _owner(entry: ListEntry, other: Owner) -> Owner:
    if entry.owner_id:
        return Owner(entry.owner_id, entry.owner_display_name)
    return other
