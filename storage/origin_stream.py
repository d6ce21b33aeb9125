"""Bytes of one version straight from the origin, at the pace of their one reader, kept nowhere."""

from storage.hashers import WholeCheck
from storage.openings import FillAnswer, Opening, incomplete


class OriginStream:
    """An open answer; `close` is owed.

    Attributes:
        stop: It ends before this byte of the version.
    """

    def __init__(self, opening: Opening, answer: FillAnswer, stop: int, check: WholeCheck | None) -> None:
        """Take over an opening that was entered; `check` where it brings the whole object, of which a checksum is known."""
        self.stop = stop
        self._opening = opening
        self._chunks = answer.chunks()
        self._check = check

    @property
    def is_refuted(self) -> bool:
        """Whether the bytes are not the object's: what was given of them is wrong."""
        return self._check is not None and self._check.is_refuted

    async def next_chunk(self, position: int) -> bytes:
        """Give the next bytes, which begin at `position`; the last ones of a whole object are compared before they are given.

        Raises:
            OriginUnavailableError: It was cut, or it `is_refuted`.
        """
        chunk = await anext(self._chunks, b"")
        if not chunk:
            raise incomplete(position, self.stop)
        if self._check is not None:
            # A chunk is small enough for the loop.
            self._check.update(chunk)
            if position + len(chunk) == self.stop:
                self._check.verify()
        return chunk

    async def close(self) -> None:
        """Cut what was not read."""
        await self._opening.__aexit__(None, None, None)
