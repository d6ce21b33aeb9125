"""Bugs to be planted in a gateway, which show that the ledger finds such bugs.

Each replaces one function by plain assignment before the gateway runs; `tests/end_to_end/forked.py` does so in the new process,
and the product knows nothing of it.
"""

import asyncio
import base64
from collections.abc import Callable, Coroutine
from typing import Any, Final

from storage.commit import Commit, Receipt
from storage.origin.answers import DeletesAnswer, WriteAnswer
from storage.origin.client import OriginClient
from storage.origin.documents import DeleteResult
from storage.origin.wire import OutgoingBody
from storage.records import Mutation, Put, Tombstone, UploadCompleted
from storage.types import ObjectName

_later: Final[set[asyncio.Task[object]]] = set()
"""A task that nobody holds may be collected."""


def _do_later(work: Coroutine[Any, Any, object]) -> None:
    task = asyncio.get_running_loop().create_task(work)
    _later.add(task)
    task.add_done_callback(_forget)


def _forget(task: "asyncio.Task[object]") -> None:
    _later.discard(task)
    # A failure that nobody hears of is part of the bug.
    if not task.cancelled():
        task.exception()


def early_acknowledgement() -> None:
    """Acknowledge a change before it is appended to the journal."""
    commit = Commit.commit

    async def acknowledge_first(
        door: Commit, mutation: Mutation, *, body: bytes = b"", may_wait: bool = False
    ) -> Receipt:
        if not isinstance(mutation, Put | Tombstone | UploadCompleted):
            return await commit(door, mutation, body=body, may_wait=may_wait)
        _do_later(commit(door, mutation, body=body))
        return Receipt(0)

    Commit.commit = acknowledge_first  # type: ignore[method-assign,assignment]  # the bug


def early_confirmation() -> None:
    """Count a flush as done before the origin has answered."""
    put_object = OriginClient.put_object

    async def confirm_first(
        client: OriginClient, name: ObjectName, headers: Any, body: OutgoingBody, **options: Any
    ) -> WriteAnswer:
        _do_later(put_object(client, name, headers, body, **options))
        return WriteAnswer(etag=base64.b64decode(body.md5).hex())

    OriginClient.put_object = confirm_first  # type: ignore[assignment]  # the bug


def lost_tombstones() -> None:
    """Count a delete as done without sending it."""

    async def delete_objects(
        _client: OriginClient, _bucket: str, keys: tuple[str, ...], **_options: Any
    ) -> DeletesAnswer:
        return DeletesAnswer(tuple(DeleteResult(key, "", "") for key in keys))

    async def delete_object(_client: OriginClient, _name: ObjectName, **_options: Any) -> WriteAnswer:
        return WriteAnswer(etag="")

    OriginClient.delete_objects = delete_objects  # type: ignore[method-assign,assignment]  # the bug
    OriginClient.delete_object = delete_object  # type: ignore[method-assign,assignment]  # the bug


BUGS: Final[dict[str, Callable[[], None]]] = {
    "early-acknowledgement": early_acknowledgement,
    "early-confirmation": early_confirmation,
    "lost-tombstones": lost_tombstones,
}
