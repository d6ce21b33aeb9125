"""The n-th call of the disk, the index or the origin fails, for n = 1, 2, 3 ...: what is there is the state before or after.

What was answered 200 is there; what was refused with a known outcome is not; the engine takes the next write, or refuses
writes until it is started again. `tests/crash/nth_failure.py` says what is compared.
"""

from collections.abc import Awaitable, Callable

import pytest

from storage.types import ObjectName
from tests.crash.nth_failure import (
    CONTENT,
    JOINED_ETAG,
    KINDS,
    LONG,
    PARTS,
    UPLOAD,
    Deed,
    Kind,
    Stage,
    fail_each,
    prepared,
)
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine

pytestmark = [pytest.mark.slow]


def put(key: str, data: bytes) -> Deed:
    """Put an object."""

    async def act(running: RunningEngine, _stage: Stage) -> None:
        await running.put(key, data)

    return Deed(act, {key: data})


async def delete(running: RunningEngine, _stage: Stage) -> None:
    """Delete an object that is dirty."""
    await running.engine.delete_object(ObjectName(BUCKET, "block"))


async def put_part(running: RunningEngine, stage: Stage) -> None:
    """Send the last part again, with the same bytes."""
    name = ObjectName(BUCKET, "joined")
    await running.engine.upload_part(name, stage.upload_id, 2, BytesContent(PARTS[1]))


async def complete(running: RunningEngine, stage: Stage) -> None:
    """Complete the upload."""
    assert await stage.complete(running) == JOINED_ETAG


DEEDS = {
    "a tiny PUT": put("new", b"new"),
    "a tiny PUT over a dirty one": put("tiny", b"other"),
    "a PUT of one block": put("block", b"other" * 21_000),
    "a PUT of several extents": put("long", LONG),
    "a PUT over a clean one": put("clean", b"other" * 300),
    "a DELETE": Deed(delete, {"block": None}),
    "a part": Deed(put_part, {}, ends_upload=True),
    "a Complete": Deed(complete, {"joined": b"".join(PARTS), UPLOAD: None}, ends_upload=True),
}


@pytest.mark.parametrize("name", DEEDS)
async def test_state_is_before_or_after_when_the_nth_call_fails(name: str) -> None:
    """Whichever call a write makes fails, once or for good, and in whatever way: it has happened whole or not at all."""
    struck = 0
    async with prepared() as stage:
        for kind in KINDS:
            for is_persistent in (False, True):
                count, _ = await fail_each(stage, DEEDS[name], kind, is_persistent=is_persistent, name=name)
                struck += count

    assert struck >= 8
