"""Ask the origin about many objects from a command that has no event loop of its own.

Each call opens the data lane, asks at most AT_ONCE at a time, and closes it. An origin that cannot be reached is asked once: what is left
is given up with the same words.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from storage.errors import NoSuchKeyError, OriginUnavailableError, StorageError
from storage.origin.client import OriginClient
from storage.recovered_changes import Looked
from storage.types import ObjectName

AT_ONCE: Final = 16

OpenClient = Callable[[], AbstractAsyncContextManager[OriginClient]]


class OriginLook:
    """`fsck_repair.Look` over the data lane; `open_client` makes one on the loop that is running."""

    def __init__(self, open_client: OpenClient) -> None:
        self._open_client = open_client
        self._unreachable = ""

    def __call__(self, names: Sequence[ObjectName]) -> list[Looked]:
        """Ask about each object; an answer that is none becomes an error in its value."""
        return asyncio.run(self._look_at_all(names))

    async def _look_at_all(self, names: Sequence[ObjectName]) -> list[Looked]:
        found: list[Looked] = [Looked()] * len(names)
        places = iter(range(len(names)))
        async with self._open_client() as client:

            async def ask() -> None:
                for place in places:
                    found[place] = await self._look_at(client, names[place])

            # The first alone: it tells whether there is an origin at all.
            for place in places:
                found[place] = await self._look_at(client, names[place])
                break
            async with asyncio.TaskGroup() as tasks:
                for number in range(AT_ONCE):
                    tasks.create_task(ask(), name=f"look-{number}")
        return found

    async def _look_at(self, client: OriginClient, name: ObjectName) -> Looked:
        if self._unreachable:
            return Looked(error=self._unreachable)
        try:
            return Looked(await client.head_object(name, is_covered=True))
        except NoSuchKeyError:
            return Looked()
        except OriginUnavailableError as error:
            self._unreachable = str(error)
            return Looked(error=str(error))
        except StorageError as error:
            return Looked(error=str(error))
