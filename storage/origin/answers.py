"""What the data lane's operations give back, and how an answer becomes it.

ETags come without quotes, header names in lower case. Whoever gets an open answer closes it; the client's context managers do.
"""

from collections.abc import AsyncIterator

import msgspec

from storage.origin.calls import Answer, ErrorAnswer, completed
from storage.origin.documents import DeleteResult, parse_completed
from storage.origin.wire import (
    CheckedAnswer,
    OriginObject,
    bad_answer,
    kept_text,
    number,
    parse_checksums,
    unquote_etag,
)
from storage.types import ByteRange, Checksum

Headers = tuple[tuple[str, str], ...]


class WriteAnswer(msgspec.Struct, frozen=True, gc=False):
    """What the origin said to a write that succeeded.

    Attributes:
        etag: "" where the operation answers none.
        headers: The answer's x-amz-* headers, lower case.
        is_earlier_unknown: Another attempt of this call may still land.
    """

    etag: str
    version_id: str = ""
    checksums: tuple[Checksum, ...] = ()
    last_modified_s: int = 0
    headers: Headers = ()
    is_earlier_unknown: bool = False


class DeletesAnswer(msgspec.Struct, frozen=True, gc=False):
    """How each key of a batch ended, in the order asked."""

    results: tuple[DeleteResult, ...]
    is_earlier_unknown: bool = False


class OriginAnswer:
    """An open answer to a GET: its head is checked, its body streams.

    Attributes:
        not_modified: `if_none_match` names the current version; there is no object and no body.
    """

    def __init__(self, answer: Answer, checked: CheckedAnswer | None) -> None:
        self._answer = answer
        self._checked = checked
        self.not_modified = checked is None

    @property
    def object(self) -> OriginObject:
        """What the origin says of the version; not for an answer that is `not_modified`."""
        assert self._checked is not None, "not modified: nothing is said of the object"
        return self._checked.object

    @property
    def byte_range(self) -> ByteRange:
        """Which bytes of the version the body holds."""
        assert self._checked is not None, "not modified: there is no body"
        return self._checked.byte_range

    def chunks(self) -> AsyncIterator[bytes]:
        """Stream the bytes of `byte_range`, in pieces of at most 256 KiB, to exactly its end.

        Raises:
            OriginUnavailableError: Code Incomplete or Timeout. What came before is right as far as it goes.
        """
        if self._checked is not None and self._checked.is_range_ignored:
            return _within(self._answer.chunks(), self._checked.byte_range)
        return self._answer.chunks()

    def close(self) -> None:
        """Give back connection and slot, cutting what was not read."""
        self._answer.close()


async def _within(chunks: AsyncIterator[bytes], span: ByteRange) -> AsyncIterator[bytes]:
    """Cut a range out of a whole object; nothing is read behind the end of the range."""
    at = 0
    async for chunk in chunks:
        piece = chunk[max(0, span.start - at) : max(0, span.stop - at)]
        at += len(chunk)
        if piece:
            yield piece
        if at >= span.stop:
            return


class RawAnswer:
    """An answer for passing on, whatever its status.

    Attributes:
        is_unknown: A write whose attempt, this one or one before, may take effect yet, or have taken it.
    """

    def __init__(self, answer: Answer | ErrorAnswer, *, is_unknown: bool = False) -> None:
        self._answer = answer
        self.status = answer.status
        self.is_unknown = is_unknown

    @property
    def headers(self) -> Headers:
        """All headers as received, names in lower case."""
        if isinstance(self._answer, ErrorAnswer):
            return self._answer.headers
        return tuple((name.lower(), value) for name, value in self._answer.headers.items())

    @property
    def length(self) -> int | None:
        """Bytes of the body, or of the body that a GET would have had; None where the origin does not say."""
        if isinstance(self._answer, ErrorAnswer):
            return len(self._answer.body)
        return number(self._answer.headers.get("content-length", ""))

    async def chunks(self) -> AsyncIterator[bytes]:
        """Stream the body; errors as for `OriginAnswer.chunks`."""
        if isinstance(self._answer, ErrorAnswer):
            if self._answer.body:
                yield self._answer.body
            return
        async for chunk in self._answer.chunks():
            yield chunk


async def written(answer: Answer) -> WriteAnswer:
    """Read the answer to a PUT of bytes; BadAnswer where it has no ETag."""
    told = await written_without_etag(answer)
    if not told.etag:
        raise bad_answer("a write without an ETag")
    return told


async def written_without_etag(answer: Answer) -> WriteAnswer:
    """Read the answer to a write that makes no bytes."""
    await completed(answer)
    headers = answer.headers
    return WriteAnswer(
        etag=unquote_etag(headers.get("etag", "")),
        version_id=kept_text(headers.get("x-amz-version-id", "")),
        checksums=parse_checksums(headers),
        headers=_told(answer),
        is_earlier_unknown=answer.is_earlier_unknown,
    )


async def made_by(answer: Answer) -> WriteAnswer:
    """Read the document of a Complete or a copy."""
    made = parse_completed(await completed(answer))
    return WriteAnswer(
        etag=made.etag,
        version_id=kept_text(answer.headers.get("x-amz-version-id", "")),
        checksums=made.checksums,
        last_modified_s=made.last_modified_s,
        headers=_told(answer),
        is_earlier_unknown=answer.is_earlier_unknown,
    )


def _told(answer: Answer) -> Headers:
    lowered = ((name.lower(), value) for name, value in answer.headers.items())
    return tuple((name, kept_text(value)) for name, value in lowered if name.startswith("x-amz-"))
