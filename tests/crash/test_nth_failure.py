"""The n-th call of the disk, the index or the origin fails, for n = 1, 2, 3 ...: what is there is the state before or after.

What was answered 200 is there; what was refused with a known outcome is not; the engine takes the next write, or refuses
writes until it is started again. `tests/crash/nth_failure.py` says what is compared.

FOREBAY_TEST_LONG=1 lets each call fail once and for good, and both a kill and a power cut follow; the gate takes turns.
"""

from collections.abc import Sequence
from contextlib import suppress
from functools import partial

import msgspec
import pytest

from storage.errors import DamagedError, UnknownOutcomeError
from storage.flush_events import FlushSettings
from storage.journal import JournalWriter
from storage.types import ObjectName
from tests.crash.nth_failure import (
    DISK_KINDS,
    INDEX_KINDS,
    IS_LONG,
    JOINED_ETAG,
    KINDS,
    LONG,
    PARTS,
    UPLOAD,
    Deed,
    HowLong,
    Kind,
    Plant,
    Stage,
    fail_each,
    fail_each_of_a_start,
    flush,
    prepared,
)
from tests.fakes.filesystem import FakeFilesystem
from tests.fakes.index import FakeIndex
from tests.fakes.origin_faults import Fault
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
    "a tiny PUT over a dirty object": put("tiny", b"other"),
    "a PUT of one block over a clean object": put("clean", b"other" * 21_000),
    "a PUT of several extents": put("long", LONG),
    "a DELETE": Deed(delete, {"block": None}),
    "a part": Deed(put_part, {}, ends_upload=True),
    "a Complete": Deed(complete, {"joined": b"".join(PARTS), UPLOAD: None}, ends_upload=True),
}


async def flush_all(running: RunningEngine, _stage: Stage) -> None:
    """Bring everything to the origin, as far as it gets soon."""
    await flush(running)


async def flush_refused(running: RunningEngine, stage: Stage) -> None:
    """Let the origin refuse an object, which is quarantined then."""
    stage.origin.faults.add(
        Fault(operation="PutObject", key=f"{BUCKET}/block", status=400, code="X", times=-1)
    )
    with suppress(TimeoutError):
        await flush(running)


async def compact(running: RunningEngine, _stage: Stage) -> None:
    """Compact the journal and remove what it replaces."""
    components = running.engine._components
    await components.compaction.compact()
    await components.reclaim.round()


async def stop(running: RunningEngine, _stage: Stage) -> None:
    """Stop in order."""
    await running.engine.close()


DEEDS |= {
    "a flush": Deed(flush_all),
    "a quarantine": Deed(flush_refused),
    "a compaction": Deed(compact),
    "a stop": Deed(stop, ends_engine=True),
}


def ways(kinds: Sequence[Kind] = KINDS) -> list[tuple[Plant, str]]:
    """Give all ways to fail: each kind, once and for good."""
    lengths = (HowLong.ONCE, HowLong.FOR_GOOD) if IS_LONG else (HowLong.IN_TURN,)
    return [(partial(kind.plant, how), f"{kind.name} {how}") for kind in kinds for how in lengths]


@pytest.mark.parametrize("name", DEEDS)
async def test_state_is_before_or_after_when_the_nth_call_fails(name: str) -> None:
    """Whichever call of the disk or the index fails, and however: what was done is whole or not there, and nothing else is touched."""
    async with prepared() as stage:
        failures = [
            len(await fail_each(stage, DEEDS[name], plant, f"{name}: {how}")) for plant, how in ways()
        ]

    assert sum(failures) >= 4


async def test_a_failed_sync_that_is_taken_for_a_success_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: a journal that goes on after a failed sync loses an acknowledged delete, and the trials show it."""
    original = JournalWriter.sync

    def sync(self: JournalWriter) -> None:
        with suppress(UnknownOutcomeError):
            original(self)
        self._is_synced, self._is_poisoned = True, False

    monkeypatch.setattr(JournalWriter, "sync", sync)
    async with prepared() as stage:
        with pytest.raises((AssertionError, DamagedError)):
            await _delete_in_all_ways(stage)


async def _delete_in_all_ways(stage: Stage) -> None:
    for plant, how in ways(DISK_KINDS):
        await fail_each(stage, DEEDS["a DELETE"], plant, how)


@pytest.mark.parametrize("has_index", [True, False], ids=["index", "no-index"])
async def test_everything_is_there_when_the_nth_call_of_a_start_fails(has_index: bool) -> None:
    """A start that fails anywhere is refused or good, and the next one finds all that is dirty, also after a power cut."""
    kinds = KINDS if has_index else INDEX_KINDS
    async with prepared() as stage:
        failures = [
            await fail_each_of_a_start(stage, plant, how, has_index=has_index) for plant, how in ways(kinds)
        ]

    assert sum(failures) >= 2


# --- the origin ----------------------------------------------------------------------------------------------------------


async def complete_and_flush(running: RunningEngine, stage: Stage) -> None:
    """Complete the upload and bring everything to the origin, but for what is refused."""
    await stage.complete(running)
    with suppress(TimeoutError):
        await flush(running)


SENT = Deed(complete_and_flush, {"joined": b"".join(PARTS), UPLOAD: None}, ends_upload=True)
ORIGIN_FAULTS = {
    "refused": Fault(status=400, code="InvalidRequest"),
    "denied": Fault(status=403, code="AccessDenied"),
    "failed": Fault(status=500),
    "failed and carried out": Fault(status=500, is_processed=True),
    "an error in a 200": Fault(error_in_200="InternalError"),
    "cut": Fault(drop="before"),
    "no answer but carried out": Fault(drop="after"),
}


@pytest.mark.parametrize("name", ORIGIN_FAULTS)
async def test_origin_ends_with_what_was_acknowledged_when_its_nth_call_fails(name: str) -> None:
    """Puts, a delete and an upload under way: whichever call of a flush fails, all reaches the origin in the end, once each."""
    async with prepared() as stage:
        stage.flush = FlushSettings(
            origin_timeout_s=0.02, retry_s_min=0.002, retry_s_max=0.01, probe_s_min=0.01
        )

        def plant(_filesystem: FakeFilesystem, _index: FakeIndex, nth: int) -> None:
            stage.origin.faults.add(msgspec.structs.replace(ORIGIN_FAULTS[name], skip=nth - 1))

        errors = await fail_each(stage, SENT, plant, name, is_at_origin=True)

    assert errors == [None] * len(errors)
    assert len(errors) >= 7
