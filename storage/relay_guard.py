"""Before a sub-resource of an object is written: does the origin know the sub-resource?

An origin that ignores a query name which it does not know takes `PUT key?name` for a PutObject and `DELETE key?name` for a
DeleteObject, and the object is gone; moto and SeaweedFS do. So once for each name the origin is asked to read it, one byte. Who
answers with the object's own first byte does not know the name, and nothing is written by it. What is known once is not asked
again while the process lives; what is not known, or cannot be told since there is no object, is asked again.
"""

from typing import Final

from storage.errors import NoSuchKeyError, NotSupportedError, OriginUnavailableError
from storage.origin.client import OriginClient
from storage.origin.documents import parse_error
from storage.origin.wire import unquote_etag
from storage.requests import RelayRequest

NAMES_MAX: Final = 1000
"""So many names are remembered; S3 has some twenty."""

LOOKS_MAX: Final = 3
"""So often what looks like an object that others write meanwhile is looked at again."""

UNKNOWN: Final = "Unknown"
"""The operation's name where the gateway does not know it (`gateway/s3/routes.py`)."""

_BODY_BYTES_MAX: Final = 64 * 1024


class RelayGuard:
    """Remembers which names the origin knows."""

    def __init__(self, origin: OriginClient) -> None:
        self._origin = origin
        self._known: set[tuple[str, ...]] = set()

    async def check(self, request: RelayRequest) -> None:
        """Refuse to write by a name that the origin takes no notice of.

        Raises:
            NotSupportedError: It does not know the name, or that cannot be told of an operation that is not known here either.
            NoSuchKeyError: There is no object, and so no sub-resource of it.
            OriginUnavailableError: It does not say.
        """
        names = request.guarded
        if not names or names in self._known:
            return
        for _ in range(LOOKS_MAX):
            first = await self._looks_like(request)
            if first is None or await self._differs(request, first):
                if len(self._known) < NAMES_MAX:
                    self._known.add(names)
                return
        raise OriginUnavailableError(
            f"{request.name} is written by others all the time", status=0, code="ObjectChanged"
        )

    async def _looks_like(self, request: RelayRequest) -> str | None:
        """Read by the names; give the ETag of what may be the object itself, "" of one without bytes, None of what is not.

        Raises:
            NotSupportedError, NoSuchKeyError, OriginUnavailableError: As `check`.
        """
        async with self._origin.request(
            "GET",
            request.name,
            query=tuple(pair for pair in request.query if pair[0] in request.guarded),
            headers=(("range", "bytes=0-0"),),
        ) as answer:
            status, headers, body = answer.status, dict(answer.headers), b""
            if status == 404:
                async for chunk in answer.chunks():
                    body = (body + chunk)[:_BODY_BYTES_MAX]
        if status >= 500 and status != 501:
            raise OriginUnavailableError(
                f"the origin does not say whether it knows {request.guarded}", status=status, code="BadAnswer"
            )
        document = parse_error(body)
        if status == 404 and document is not None and document.code == "NoSuchKey":
            if request.operation == UNKNOWN:
                raise NotSupportedError(f"nobody knows {request.guarded} of an object that is not there")
            raise NoSuchKeyError(f"{request.name} does not exist")
        if status == 416:
            return ""
        return (unquote_etag(headers.get("etag", "")) or None) if status in {200, 206} else None

    async def _differs(self, request: RelayRequest, first: str) -> bool:
        """Whether the answer was not the object, which has another ETag; False where others wrote the object meanwhile.

        Raises:
            NotSupportedError: It was.
        """
        shown = await self._origin.head_object(request.name)
        assert shown is not None, "an unconditional HEAD describes the object"
        if (not first and not shown.size) or first == shown.etag:
            raise NotSupportedError(f"the origin takes no notice of {request.guarded}")
        return await self._looks_like(request) == first
