"""A body that is there already, and taking one in whole."""

import base64
import hashlib
from collections.abc import AsyncIterator

from storage.requests import BoundedContent, Content
from storage.types import Checksum, ChecksumAlgorithm


class FakeContent:
    """A body that is there already."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size(self) -> int:
        return len(self._data)

    async def chunks(self) -> AsyncIterator[bytes]:
        if self._data:
            yield self._data

    def checksums(self) -> tuple[Checksum, ...]:
        return (
            Checksum(
                ChecksumAlgorithm.SHA256, base64.b64encode(hashlib.sha256(self._data).digest()).decode()
            ),
        )


async def taken(content: Content) -> bytes:
    """Read a body to its end."""
    data = b"".join([piece async for piece in content.chunks()])
    is_whole = len(data) <= content.size if isinstance(content, BoundedContent) else len(data) == content.size
    assert is_whole, "a content that does not raise is whole"
    return data
