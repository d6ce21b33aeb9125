"""Keep a client waiting for a long operation: its answer begins with 200 and blanks, and ends with the document or an error.

S3 does so for CompleteMultipartUpload, CopyObject and UploadPartCopy, and its SDKs look for an error in the document of a 200
(AWS API_CompleteMultipartUpload, API_CopyObject). Only a long operation gets this: whatever ends sooner has its own status. The XML
declaration comes before the blanks, since nothing may precede it in a document.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Final

from gateway.context import XML_TYPE, S3Response
from gateway.s3.documents_out import XML_DECLARATION
from gateway.s3.routes import Operation
from storage.types import CacheResult

LONG_OPERATIONS: Final = frozenset(
    {Operation.COMPLETE_MULTIPART_UPLOAD, Operation.COPY_OBJECT, Operation.UPLOAD_PART_COPY}
)

BLANKS_EVERY_S: Final = 10.0
"""Well under the time that clients and proxies wait for the next byte: 30 s and more."""

_DECLARATION: Final = XML_DECLARATION.encode()

Document = Callable[[Awaitable[S3Response]], Awaitable[bytes]]
"""Waits for the operation and gives its document, or that of its error."""


class LateBody:
    """`storage.requests.Body` of an answer that is still being worked on. `close` waits for the operation's end: it is not cut."""

    result: Final = CacheResult.BYPASS

    def __init__(self, task: "asyncio.Task[S3Response]", document: Document, every_s: float) -> None:
        self._task: Final = task
        self._document: Final = document
        self._every_s: Final = every_s
        self._pieces_given = 0
        self._has_ended = False

    async def next_piece(self) -> bytes | None:
        """Give the declaration, then a blank from time to time, at last what comes of it."""
        self._pieces_given += 1
        if self._pieces_given == 1:
            return _DECLARATION
        if self._has_ended:
            return None
        if not await _done(self._task, self._every_s):
            return b" "
        self._has_ended = True
        return (await self._document(self._task)).removeprefix(_DECLARATION)

    async def close(self) -> None:
        """Wait for the operation; whether its client hears of it does not decide whether it happens."""
        await _done(self._task, None)
        if not self._has_ended and not self._task.cancelled():
            self._task.exception()


async def answered_late(
    operation: Coroutine[object, object, S3Response], document: Document, every_s: float
) -> S3Response:
    """Give an operation's answer, or one that is on its way once it takes longer than `every_s`; raise what it soon raised."""
    task = asyncio.get_running_loop().create_task(operation)
    if await _done(task, every_s):
        return task.result()
    return S3Response(200, (XML_TYPE,), LateBody(task, document, every_s), has_length=False)


async def _done(task: "asyncio.Task[S3Response]", within_s: float | None) -> bool:
    """Wait for the operation's end; one whose own request is cut, at a stop, is cut with it."""
    try:
        await asyncio.wait({task}, timeout=within_s)
    except asyncio.CancelledError:
        task.cancel()
        raise
    return task.done()
