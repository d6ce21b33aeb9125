"""Before a sub-resource of an object is written: does the origin know the sub-resource?

An origin that ignores a query name which it does not know takes `PUT key?name` for a PutObject and `DELETE key?name` for a
DeleteObject, and the object is gone; moto and SeaweedFS do. So once for each name the origin is asked to read it, one byte. Who
answers with the object's own first byte does not know the name, and nothing is written by it. What is known once is not asked
again while the process lives; what is not known, or cannot be told since there is no object, is asked again.
"""

from collections.abc import Mapping
from typing import Final

from storage.errors import NoSuchKeyError, NotSupportedError, OriginUnavailableError
from storage.origin.client import OriginClient
from storage.origin.documents import parse_error
from storage.origin.wire import unquote_etag
from storage.requests import RelayRequest

NAMES_MAX: Final = 1000
"""So many names are remembered; S3 has some twenty."""

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
        async with self._origin.request(
            "GET",
            request.name,
            query=tuple(pair for pair in request.query if pair[0] in names),
            headers=(("range", "bytes=0-0"),),
        ) as answer:
            status, headers, body = answer.status, dict(answer.headers), b""
            if status == 404:
                async for chunk in answer.chunks():
                    body = (body + chunk)[:_BODY_BYTES_MAX]
        await self._judge(request, status, headers, body)
        if len(self._known) < NAMES_MAX:
            self._known.add(names)

    async def _judge(
        self, request: RelayRequest, status: int, headers: Mapping[str, str], body: bytes
    ) -> None:
        if status >= 500 and status != 501:
            raise OriginUnavailableError(
                f"the origin does not say whether it knows {request.guarded}", status=status, code="BadAnswer"
            )
        document = parse_error(body)
        if status == 404 and document is not None and document.code == "NoSuchKey":
            if request.operation == UNKNOWN:
                raise NotSupportedError(f"nobody knows {request.guarded} of an object that is not there")
            raise NoSuchKeyError(f"{request.name} does not exist")
        etag = unquote_etag(headers.get("etag", ""))
        if status != 416 and not (status in {200, 206} and etag):
            return
        shown = await self._origin.head_object(request.name)
        assert shown is not None, "an unconditional HEAD describes the object"
        if (status == 416 and not shown.size) or etag == shown.etag:
            raise NotSupportedError(f"the origin takes no notice of {request.guarded}")
