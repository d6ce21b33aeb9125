"""What was on its way to the origin when the process was killed, and lands over a write that the next process acknowledged."""

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from storage.flush_events import FlushSettings
from storage.requests import PutRequest
from storage.types import ObjectName, WriteMode
from tests.fakes.failing_disk import at_origin, drained, engine_over
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.running_engine import BUCKET, BytesContent, RunningEngine, until

NAME = ObjectName(BUCKET, "key")
OLDER = b"of the operation that was under way"
NEWER = b"acknowledged by the next process"

# The older write lands well within the time-out, on a busy machine too.
FLUSH = FlushSettings(origin_timeout_s=0.8, retry_s_min=0.02, retry_s_max=0.1)

Operation = Callable[[RunningEngine], Coroutine[object, object, None]]


async def copy(running: RunningEngine) -> None:
    """Copy over the key."""
    await running.engine.copy_object(ObjectName(BUCKET, "source"), NAME, ())


async def put_through(running: RunningEngine) -> None:
    """Write the key through."""
    await running.engine.put_object(PutRequest(NAME, mode=WriteMode.THROUGH), BytesContent(OLDER))


async def put_back(running: RunningEngine) -> None:
    """Write the key, and have it flushed."""
    await running.put("key", OLDER)
    await drained(running)


@pytest.mark.parametrize("operation", [copy, put_through, put_back])
@pytest.mark.parametrize("is_delete", [False, True])
async def test_an_operation_under_way_at_a_kill_does_not_replace_what_is_acknowledged_after_it(
    operation: Operation, is_delete: bool
) -> None:
    """It lands after the newer write was flushed, within the origin's time-out: the key is looked at then, and sent once more."""
    expected = None if is_delete else NEWER
    async with PausedOrigin() as origin, engine_over(origin=origin) as before, asyncio.TaskGroup() as group:
        origin.store.put(BUCKET, "source", OLDER)
        origin.store.put(BUCKET, "key", b"before all")
        held = origin.hold("PUT", f"{BUCKET}/key")
        task = group.create_task(operation(before), name="under way")
        await held.reached.wait()
        left, index = before.stop_uncleanly()
        del origin.store.buckets[BUCKET].objects["key"]  # it has not landed yet

        async with engine_over(filesystem=left, index_home=index, origin=origin, flush=FLUSH) as running:
            if is_delete:
                await running.engine.delete_object(NAME)
                await until(lambda: origin.requests["DeleteObject"] > 0)
            else:
                await running.put("key", NEWER)
                await until(lambda: at_origin(running, "key") == NEWER)
            origin.store.put(BUCKET, "key", OLDER)
            await drained(running)

            assert at_origin(running, "key") == expected
        held.open()
        await task
