"""Ask the origin about many objects from a command that has no event loop of its own.

Each call opens the data lane, asks at most AT_ONCE at a time, and closes it. A question without an answer is asked twice. An origin that
gives none to several in a row cannot be reached: what is left is given up with the same words. One that answered before is given longer.
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
ASKED_MAX: Final = 2
"""So often a question is asked that gets no answer."""

SILENCE_MAX: Final = 4
"""So many questions in a row without an answer tell that there is no origin, before the first answer."""

SILENCE_AFTER_ANSWER_MAX: Final = 4 * AT_ONCE

OpenClient = Callable[[], AbstractAsyncContextManager[OriginClient]]


class OriginLook:
    """`repair_doubts.Look` over the data lane; `open_client` makes one on the loop that is running."""

    def __init__(self, open_client: OpenClient) -> None:
        self._open_client = open_client
        self._unreachable = ""
        self._has_answered = False
        self._silent = 0

    def __call__(self, names: Sequence[ObjectName]) -> list[Looked]:
        """Ask about each object; an answer that is none becomes an error in its value."""
        return asyncio.run(self._look_at_all(names))

    async def _look_at_all(self, names: Sequence[ObjectName]) -> list[Looked]:
        # What is not filled in was not answered, and is not "not there".
        found = [Looked(error="it was not asked")] * len(names)
        places = iter(range(len(names)))
        async with self._open_client() as client:

            async def ask() -> None:
                for place in places:
                    found[place] = await self._look_at(client, names[place])

            # One after the other until the first answer: it tells whether there is an origin at all.
            for place in places:
                found[place] = await self._look_at(client, names[place])
                if self._has_answered:
                    break
            async with asyncio.TaskGroup() as tasks:
                for number in range(AT_ONCE):
                    tasks.create_task(ask(), name=f"look-{number}")
        return found

    async def _look_at(self, client: OriginClient, name: ObjectName) -> Looked:
        looked = Looked(error=self._unreachable)
        for _ in range(ASKED_MAX):
            if self._unreachable:
                return Looked(error=self._unreachable)
            looked = await self._ask(client, name)
            if not looked.error:
                return looked
        return looked

    async def _ask(self, client: OriginClient, name: ObjectName) -> Looked:
        try:
            looked = Looked(await client.head_object(name, is_covered=True))
        except NoSuchKeyError:
            looked = Looked()
        except OriginUnavailableError as error:
            self._silent += 1
            if self._silent >= (SILENCE_AFTER_ANSWER_MAX if self._has_answered else SILENCE_MAX):
                self._unreachable = str(error)
            return Looked(error=str(error))
        except StorageError as error:
            looked = Looked(error=str(error))
        self._has_answered, self._silent = True, 0
        return looked
