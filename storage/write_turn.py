"""The turn of a write-back in the queue of its key, in a bucket whose facts hold."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

from storage.facts_table import FactsTable
from storage.keyqueue import KeyQueue, Turn
from storage.records import BucketFacts
from storage.types import ObjectName

FactsNow = Callable[[], BucketFacts | None]
"""Gives what is known of a bucket in this step; None where it must be asked anew."""


@asynccontextmanager
async def write_turn(
    facts: FactsTable, queue: KeyQueue, name: ObjectName, check_writable: Callable[[ObjectName], None]
) -> AsyncIterator[FactsNow]:
    """Give a write-back its turn of the key, in a bucket that is not being deleted or changed.

    What comes gives the bucket's facts, None where they were dropped since: then the write lets go and takes another turn. It
    is looked at in the step that hands the write to the door.

    Raises:
        ReadOnlyError: The key became one that no client writes, while its body came or the turn was waited for.
        NoSuchBucketError: The bucket was deleted meanwhile.
        OverloadedError: Too many wait for the key.
    """
    while True:
        drops = facts.drops(name.bucket)
        # Not within the turn: the bucket's deletion may have a flush of this key to wait for.
        known = await facts.facts(name.bucket)
        facts_now = partial(facts.since, name.bucket, drops, known)
        async with queue.turn(name, Turn.WRITE_BACK):
            if facts_now() is not None:
                check_writable(name)
                yield facts_now
                return
