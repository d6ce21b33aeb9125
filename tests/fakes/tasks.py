"""Work that goes on beside a test, and steps of the event loop: what unit tests may not call by themselves."""

import asyncio
import time
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


def start(work: Coroutine[object, object, T]) -> "asyncio.Task[T]":
    """Begin work beside the test, which ends or awaits it."""
    return asyncio.get_running_loop().create_task(work)


async def turns(count: int = 50) -> None:
    """Let everything that can go on go on, for so many turns of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)


async def pause(wait_s: float = 0.01) -> None:
    """Let threads go on for a moment; only where a longer or shorter moment changes nothing."""
    await asyncio.sleep(wait_s)


async def lag_s(wait_s: float) -> float:
    """Say by how much the event loop oversleeps."""
    begun = time.perf_counter()
    await asyncio.sleep(wait_s)
    return time.perf_counter() - begun - wait_s


def sleep_blocking(wait_s: float) -> None:
    """Block this thread, as a slow disk does."""
    time.sleep(wait_s)
