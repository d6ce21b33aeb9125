"""Take a form from a request's body: its fields first, then its file, streamed and checked as it comes.

    IncomingBody -> FormReader -> fields            read whole, 20 KB at most
                               -> pieces of the file -> size and digests -> whoever stores or forwards

How long the file is shows when it has ended: the Content-Length is of the whole form, and what stands behind the file is the
sender's choice. So its content is bounded (`storage.requests.BoundedContent`), and its last piece is handed on only when the
whole form has come and everything that was declared of the file holds.
"""

from collections.abc import AsyncIterator
from typing import Final

from gateway.body import HASHED_IN_LOOP_BYTES_MAX, PIECE_BYTES, IncomingBody, Intake, MemoryBudget
from gateway.context import RequestBody
from gateway.s3.checksums import BodyDigests, VerifiedDigests, declared_digests
from gateway.s3.errors import ErrorCode, S3Error
from gateway.s3.post_form import FIELDS_BYTES_MAX, FormReader, boundary_of
from gateway.s3.post_policy import Policy, check_size
from gateway.s3.request import Headers
from storage.requests import BoundedContent
from storage.types import Checksum


class FormBody(RequestBody):
    """The body of one POST upload, read once.

    Args:
        source: The request's body.
        intake: What bodies share.
        headers: The request's own.
    """

    def __init__(self, source: IncomingBody, intake: Intake, headers: Headers) -> None:
        self._source: Final = source
        self._intake: Final = intake
        self._reader: Final = FormReader(boundary_of(headers.get("content-type")))
        self._first = b""
        self._policy: Policy | None = None
        self._declared = headers

    async def read_fields(self) -> dict[str, str]:
        """Read up to the file; give the fields by lower-case name.

        Raises:
            S3Error: MissingContentLength, and what `FormReader` refuses.
        """
        if self._source.length is None:
            raise S3Error(ErrorCode.MISSING_CONTENT_LENGTH)
        while self._reader.form is None:
            data = await self._source.read()
            if not data:
                self._reader.finish()
            self._first = self._reader.feed(data)
        return self._reader.form.fields

    def allow(self, policy: Policy, declared: Headers) -> None:
        """Learn what the file may be, and what the form declares of it; before `content`."""
        self._policy = policy
        self._declared = declared

    def content(self) -> "FormContent":
        """Give the file to be streamed, once; see `context.RequestBody`.

        Raises:
            S3Error: EntityTooLarge, however little stands around the file; or a declaration that is none.
        """
        assert self._policy is not None, "a form is stored only if its policy allows it"
        length = self._source.length
        assert length is not None, "checked with the fields"
        size_max = length - self._source.received_bytes + len(self._first)
        if size_max - FIELDS_BYTES_MAX > self._policy.size_max:
            check_size(self._policy, size_max, is_whole=False)
        size_max = min(size_max, self._policy.size_max)
        digests = BodyDigests(declared_digests(self._declared.combined))
        return FormContent(
            self._source, self._reader, self._intake, self._policy, (size_max, self._first, digests)
        )

    async def read_small(self, limit: int, *, checksums_are_of_object: bool = False) -> bytes:  # noqa: ARG002
        """Refuse: a form is no document."""
        raise AssertionError("no operation reads a document out of a form")


class FormContent(BoundedContent):
    """A form's file as storage takes it in; `storage.requests.BoundedContent`."""

    def __init__(
        self,
        source: IncomingBody,
        reader: FormReader,
        intake: Intake,
        policy: Policy,
        begun: tuple[int, bytes, BodyDigests],
    ) -> None:
        self._source: Final = source
        self._reader: Final = reader
        self._intake: Final = intake
        self._policy: Final = policy
        self._size_max, self._first, self._digests = begun
        self._verified: VerifiedDigests | None = None

    @property
    def size(self) -> int:
        """The most bytes that the file can have."""
        return self._size_max

    def checksums(self) -> tuple[Checksum, ...]:
        """The checksum to store; only after the last piece."""
        assert self._verified is not None, "asked before the last piece"
        return () if self._verified.checksum is None else (self._verified.checksum,)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the file; see `storage.requests.Content`."""
        held = _Held(self._intake.budget)
        try:
            async for piece in self._pieces(held):
                await self._hash(piece)
                previous = held.exchange(piece)
                if previous:
                    yield previous
            self._verified = self._digests.verify()
            last = held.exchange(b"")
            if last:
                yield last
        finally:
            held.close()

    async def _pieces(self, held: "_Held") -> AsyncIterator[bytes]:
        """Gather the file into pieces; smaller ones where the budget is spent."""
        size = 0
        async for payload in self._payloads():
            size += len(payload)
            check_size(self._policy, size, is_whole=False)
            has_room = held.add(payload)
            while held.gathered_bytes >= PIECE_BYTES or (held.gathered_bytes and not has_room):
                yield held.take()
        check_size(self._policy, size, is_whole=True)
        if held.gathered_bytes:
            yield held.take()

    async def _payloads(self) -> AsyncIterator[bytes]:
        """Give what is the file's of each read, to the end of the form and of the body."""
        first, self._first = self._first, b""
        yield first
        while data := await self._source.read():
            yield self._reader.feed(data)
        self._reader.finish()

    async def _hash(self, piece: bytes) -> None:
        if len(piece) <= HASHED_IN_LOOP_BYTES_MAX:
            self._digests.update(piece)
        else:
            await self._intake.workers.run(self._digests.update, piece)


class _Held:
    """What is in memory of a file: the piece that waits for the next one to come, and what gathers for that."""

    def __init__(self, budget: MemoryBudget) -> None:
        self._budget: Final = budget
        self._parts: list[bytes] = []
        self._piece = b""
        self._charged_bytes = 0
        self.gathered_bytes = 0

    def add(self, payload: bytes) -> bool:
        """Take payload in; False where the budget has no room for it, so that what is gathered is to be handed on soon."""
        if not payload:
            return True
        self._parts.append(payload)
        self.gathered_bytes += len(payload)
        has_room = self._budget.take(len(payload))
        if has_room:
            self._charged_bytes += len(payload)
        return has_room

    def take(self) -> bytes:
        """Give what is gathered, PIECE_BYTES at most."""
        gathered = b"".join(self._parts)
        piece, rest = gathered[:PIECE_BYTES], gathered[PIECE_BYTES:]
        self._parts = [rest] if rest else []
        self.gathered_bytes = len(rest)
        return piece

    def exchange(self, piece: bytes) -> bytes:
        """Hold this piece and give the one held before, which is charged no longer."""
        previous, self._piece = self._piece, piece
        still_held = len(piece) + self.gathered_bytes
        surplus = max(0, self._charged_bytes - still_held)
        self._budget.give(surplus)
        self._charged_bytes -= surplus
        return previous

    def close(self) -> None:
        """Give back everything."""
        self._budget.give(self._charged_bytes)
        self._charged_bytes = 0
