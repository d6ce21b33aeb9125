"""Before a sub-resource is written or deleted: does the origin know the sub-resource?

An origin that ignores a query name which it does not know takes `PUT key?name` for a PutObject, `DELETE key?name` for a
DeleteObject, `PUT bucket?name` for a CreateBucket and `DELETE bucket?name` for a DeleteBucket; moto and SeaweedFS do. So once for
each name the origin is asked to read it, with the client's own credentials:

    the object's first byte, the bucket's listing    -> it takes no notice: 501
    501                                              -> it says itself that it does not do this: 501
    404 NoSuchKey, NoSuchBucket                      -> that
    404 of another code, another document            -> known
    another 4xx -> the same without the name?  yes   -> cannot be told, so the client has the refusal
                                               no    -> known

A 4xx alone says nothing: who may not read an object, or reads one that is archived or encrypted with a customer's key, is refused by
an origin that ignores the name as well.

That it can be read is not enough for the DELETE of a bucket's sub-resource, see `removal_probe`. Amazon S3 itself is not asked about
its own operations. What is known once is not asked again while the process lives.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from storage.errors import (
    NameIgnoredError,
    NoSuchBucketError,
    NoSuchKeyError,
    NoSuchVersionError,
    OriginUnavailableError,
    StorageError,
)
from storage.origin.client import OriginClient
from storage.origin.documents import ErrorDocument, parse_error
from storage.origin.failures import failure_of
from storage.origin.wire import unquote_etag
from storage.removal_probe import RemovalProbe
from storage.requests import RelayRequest

NAMES_MAX: Final = 1000
"""So many names are remembered; S3 has some twenty."""

LOOKS_MAX: Final = 3
"""So often what looks like an object that others write meanwhile is looked at again."""

UNKNOWN: Final = "Unknown"
"""The operation's name where the gateway does not know it (`gateway/s3/routes.py`)."""

MISREAD_CODES: Final = frozenset({"BucketAlreadyExists", "BucketAlreadyOwnedByYou", "BucketNotEmpty"})
"""Refusals of CreateBucket and DeleteBucket (AWS "Error responses"), which no write of a configuration has."""

_BODY_BYTES_MAX: Final = 64 * 1024
_LISTING: Final = "ListBucketResult"
_ROOT: Final = re.compile(rb"\s*(?:<[?!][^>]*>\s*)*<(?:[\w.-]+:)?([\w.-]+)")
_MISSING: Final = (NoSuchBucketError, NoSuchKeyError, NoSuchVersionError)
_NAMELESS_404: Final = frozenset({"", "404", "NotFound"})
"""Codes that do not say what is not there."""

_TOLD_ALONG: Final = frozenset({"x-amz-expected-bucket-owner", "x-amz-request-payer"})
"""Headers that decide whether a read is answered, and not by what."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a read was answered: an error's code, an object's ETag without quotes, the root of a bucket's document."""

    status: int
    code: str = ""
    etag: str = ""
    root: str = ""
    failure: StorageError | None = field(default=None, compare=False)


class RelayGuard:
    """Remembers which names the origin knows, as one authority sees it; `gateways` is the guard of the gateway's own."""

    def __init__(
        self, origin: OriginClient, removals: RemovalProbe, gateways: "RelayGuard | None" = None
    ) -> None:
        self._origin = origin
        self._removals = removals
        self._gateways = gateways
        self._known: set[tuple[bool, tuple[str, ...]]] = set()

    def is_feared(self, request: RelayRequest) -> bool:
        """Whether the origin could take a request for another one, as far as that can be said without asking."""
        return bool(request.guarded) and not (self._origin.is_s3 and request.operation != UNKNOWN)

    async def check(self, request: RelayRequest) -> None:
        """Refuse to write by a name that the origin takes no notice of.

        Raises:
            NameIgnoredError: It does not know the name, or that cannot be told of an operation that is not known here either.
            NoSuchKeyError, NoSuchVersionError: There is no object, and so no sub-resource of it.
            NoSuchBucketError: Nor is there a bucket.
            OriginError: It does not say, or refuses to show it as it refuses what it is of.
        """
        if not self.is_feared(request):
            return
        if not self.knows(request):
            await self._learn(request)
            if len(self._known) < NAMES_MAX:
                self._known.add(_asked(request))
        if request.method == "DELETE" and not request.name.key and not self._origin.is_s3:
            await self._removals.check(request)

    def check_answer(self, request: RelayRequest, document: bytes) -> None:
        """Look at a 409 to a write: to one of a bucket's sub-resource CreateBucket and DeleteBucket have answers of their own.

        Raises:
            NameIgnoredError: It is one of theirs. The origin has refused, so nothing was done.
        """
        is_suspect = request.guarded and not request.name.key
        error = parse_error(document) if is_suspect else None
        if error is not None and error.code in MISREAD_CODES:
            raise ignored(request)

    def knows(self, request: RelayRequest) -> bool:
        """Whether the origin is known to know a request's names."""
        return _asked(request) in self._known

    async def _learn(self, request: RelayRequest) -> None:
        """Return where the origin knows the name; errors as `check`."""
        for _ in range(LOOKS_MAX):
            seen = await self._look(request, by_name=True)
            _check_answered(request, seen)
            if seen.status < 300 or seen.status == 416:
                is_settled = not _may_be_object(request, seen) or await self._is_no_object(request, seen)
            else:
                is_named = seen.status == 404 and seen.code not in _NAMELESS_404
                is_settled = is_named or await self._is_refused_for_its_name(request, seen)
            if is_settled:
                return
        raise OriginUnavailableError(
            f"{request.name} is written by others all the time", status=0, code="ObjectChanged"
        )

    async def _is_no_object(self, request: RelayRequest, seen: Look) -> bool:
        """Whether what was seen was not the object, which has another ETag; False where others wrote the object meanwhile.

        Raises:
            NameIgnoredError: It was.
        """
        shown = await self._origin.head_object(request.changed)
        assert shown is not None, "an unconditional HEAD describes the object"
        if (not seen.etag and not shown.size) or seen.etag == shown.etag:
            raise ignored(request)
        return await self._look(request, by_name=True) == seen

    async def _is_refused_for_its_name(self, request: RelayRequest, seen: Look) -> bool:
        """Whether a refusal is of the name and not of what it is of; False where that changed meanwhile.

        Raises:
            OriginError: The object or bucket is refused alike, so nothing says that the name makes a difference.
        """
        plain = await self._look(request, by_name=False)
        if (plain.status, plain.code) != (seen.status, seen.code):
            return await self._look(request, by_name=True) == seen
        if self._gateways is not None and self._gateways.knows(request):
            return True
        assert plain.failure is not None, "what is refused alike is a refusal"
        raise plain.failure

    async def _look(self, request: RelayRequest, *, by_name: bool) -> Look:
        """Read an object's first byte or a bucket, by the names or without them."""
        is_object = bool(request.name.key)
        kept = {*(request.guarded if by_name else ()), *(("versionId",) if is_object else ())}
        query = tuple(pair for pair in request.query if pair[0] in kept)
        headers = tuple(pair for pair in request.headers if pair[0].lower() in _TOLD_ALONG)
        async with self._origin.request(
            "GET",
            request.name,
            query=query if by_name or is_object else (("max-keys", "1"),),
            headers=(*headers, ("range", "bytes=0-0")) if is_object else headers,
        ) as answer:
            status, answered, body = answer.status, dict(answer.headers), b""
            if status >= 300 or not is_object:
                async for chunk in answer.chunks():
                    body += chunk
                    if len(body) > _BODY_BYTES_MAX:
                        break
        etag = unquote_etag(answered.get("etag", "")) if is_object else ""
        if status < 300:
            root = None if is_object else _ROOT.match(body)
            return Look(status, etag=etag, root="" if root is None else root[1].decode())
        error = parse_error(body) or ErrorDocument("")
        has_version = any(name == "versionId" for name, _ in query)
        failure = failure_of(status, answered, body, is_read=True, has_key=is_object, has_version=has_version)
        return Look(status, error.code, failure=failure)


def ignored(request: RelayRequest) -> NameIgnoredError:
    """Make the error that says of a request that the origin does not know its names."""
    return NameIgnoredError(
        f"The origin takes no notice of the query parameter {', '.join(request.guarded):.200}, and would carry out another "
        "operation; nothing was done."
    )


def _asked(request: RelayRequest) -> tuple[bool, tuple[str, ...]]:
    """Give what is learnt at once: a name of an object's sub-resource may be none of a bucket's."""
    return bool(request.name.key), request.guarded


def _check_answered(request: RelayRequest, seen: Look) -> None:
    """Raise where a read by the names settles that nothing is to be written by them."""
    if seen.root == _LISTING:
        raise ignored(request)
    if seen.status == 501:
        raise NameIgnoredError(f"The origin does not implement {', '.join(request.guarded):.200}.")
    if seen.status >= 500:
        raise OriginUnavailableError(
            f"the origin does not say whether it knows {request.guarded}",
            status=seen.status,
            code="BadAnswer",
        )
    if isinstance(seen.failure, _MISSING) and seen.code:
        if request.operation == UNKNOWN and request.name.key:
            raise NameIgnoredError(
                f"Nobody knows what {', '.join(request.guarded):.200} is to be of an object that is not there."
            )
        raise seen.failure


def _may_be_object(request: RelayRequest, seen: Look) -> bool:
    """Whether an answer may be the object: one of its bytes with its ETag, or a 416 of one without bytes."""
    return bool(request.name.key) and (seen.status == 416 or bool(seen.etag))
