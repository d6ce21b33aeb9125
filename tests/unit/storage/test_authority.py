"""What the origin lets an authority read: its answers are kept for a time, bounded, and asked for once."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from storage.authority import PERMITS_MAX, ReadPermits
from storage.errors import (
    NoSuchKeyError,
    OriginRefusedError,
    OriginSuspendedError,
    OriginUnavailableError,
    StorageError,
)
from storage.origin.answers import OriginAnswer
from storage.origin.wire import OriginObject
from storage.types import ObjectName, RangeSpec

NAME = ObjectName("bucket", "key")
DENIED = OriginSuspendedError("the origin answered 403 AccessDenied", status=403, code="AccessDenied")


class Origin:
    """Answers as it is told, and counts."""

    def __init__(self) -> None:
        self.head: StorageError | None = None
        self.byte: StorageError | None = None
        self.asked: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.now_s = 100.0

    def permits(self, believed_s: float = 60.0) -> ReadPermits:
        """Make the permits over it."""
        return ReadPermits(self, lambda: self.now_s, believed_s)

    async def head_object(self, name: ObjectName) -> OriginObject | None:
        self.asked.append(f"HEAD {name.key}")
        answer = self.head
        await self.may_answer.wait()
        if answer is not None:
            raise answer
        return None

    @asynccontextmanager
    async def get_object(self, name: ObjectName, wanted: RangeSpec) -> AsyncIterator[OriginAnswer]:
        assert wanted == RangeSpec(0, 1)
        self.asked.append(f"GET {name.key}")
        if self.byte is not None:
            raise self.byte
        yield OriginAnswer.__new__(OriginAnswer)


async def code_of(permits: ReadPermits, name: ObjectName = NAME) -> str:
    """Give the code of a refusal, "" for a permit."""
    try:
        await permits.check(name)
    except (OriginRefusedError, OriginSuspendedError) as error:
        return error.code
    return ""


async def test_a_permit_is_believed_for_its_time_and_no_longer() -> None:
    """The time runs from the question, since the answer may be as old as that."""
    origin = Origin()
    permits = origin.permits(believed_s=60)
    origin.may_answer.clear()

    asking = asyncio.ensure_future(permits.check(NAME))  # noqa: TID251  # a client beside the test
    await asyncio.sleep(0)  # noqa: TID251  # it has asked by then
    await asyncio.sleep(0)  # noqa: TID251
    origin.now_s += 30
    origin.may_answer.set()
    await asking
    origin.now_s += 29.9
    await permits.check(NAME)
    believed = len(origin.asked)
    origin.now_s += 0.1
    await permits.check(NAME)

    assert (believed, len(origin.asked)) == (1, 2)


async def test_a_refusal_is_believed_as_long_and_is_the_origins_own_word() -> None:
    """A byte is asked for to learn why, since HEAD cannot say; then nothing, until the time is over."""
    origin = Origin()
    origin.head = OriginSuspendedError("403", status=403, code="AccessDenied")
    origin.byte = OriginSuspendedError("403", status=403, code="AllAccessDisabled")
    permits = origin.permits()

    codes = [await code_of(permits) for _ in range(3)]
    origin.head = None
    origin.now_s += 60
    lifted = await code_of(permits)

    assert codes == ["AllAccessDisabled"] * 3
    assert lifted == ""
    assert origin.asked == ["HEAD key", "GET key", "HEAD key"]


@pytest.mark.parametrize("status", [400, 401, 403])
async def test_what_can_be_read_may_be_read(status: int) -> None:
    """Where a byte is given after all, keys that had expired were renewed; an empty object has no byte to give."""
    for byte in (None, OriginRefusedError("416", status=416, code="InvalidRange")):
        origin = Origin()
        origin.head, origin.byte = OriginRefusedError("x", status=status, code="X"), byte
        permits = origin.permits()

        assert [await code_of(permits) for _ in range(2)] == ["", ""]
        assert origin.asked == ["HEAD key", "GET key"]


@pytest.mark.parametrize(
    "error",
    [
        NoSuchKeyError("none"),
        OriginUnavailableError("503", status=503, code="SlowDown"),
        OriginRefusedError("405", status=405, code="MethodNotAllowed"),
    ],
)
async def test_what_is_neither_permit_nor_refusal_is_asked_again(error: StorageError) -> None:
    """That there is no object, or no answer, says nothing of the next moment."""
    origin = Origin()
    origin.head = error
    permits = origin.permits()

    for _ in range(2):
        with pytest.raises(type(error)):
            await permits.check(NAME)

    assert origin.asked == ["HEAD key", "HEAD key"]


async def test_equal_questions_are_asked_once() -> None:
    """Whoever comes while the origin is asked waits for the same answer."""
    origin = Origin()
    permits = origin.permits()
    origin.may_answer.clear()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(code_of(permits)) for _ in range(5)]
        await asyncio.sleep(0)  # noqa: TID251  # they have asked by then
        origin.may_answer.set()

    assert [task.result() for task in tasks] == [""] * 5
    assert origin.asked == ["HEAD key"]


async def test_an_answer_that_a_write_overtook_is_not_kept() -> None:
    """What was asked before a write answers who asked then; the next one asks anew."""
    origin = Origin()
    origin.head = origin.byte = DENIED
    permits = origin.permits()
    origin.may_answer.clear()
    async with asyncio.TaskGroup() as group:
        before = group.create_task(code_of(permits))
        await asyncio.sleep(0)  # noqa: TID251  # it has asked by then
        await asyncio.sleep(0)  # noqa: TID251
        permits.forget(NAME)
        origin.head = None
        origin.may_answer.set()

    assert before.result() == "AccessDenied"
    assert await code_of(permits) == ""


async def test_answers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest answer goes first; permits and refusals count alike."""
    assert PERMITS_MAX >= 1000
    monkeypatch.setattr("storage.authority.PERMITS_MAX", 2)
    origin = Origin()
    permits = origin.permits()
    names = [ObjectName("bucket", key) for key in "abc"]
    for name in names:
        await permits.check(name)

    await permits.check(names[2])
    await permits.check(names[0])

    assert origin.asked == ["HEAD a", "HEAD b", "HEAD c", "HEAD a"]


async def test_refusals_share_no_traceback() -> None:
    """Each who is refused gets an exception of its own."""
    origin = Origin()
    origin.head = origin.byte = DENIED
    permits = origin.permits()
    raised = []
    for _ in range(3):
        with pytest.raises(OriginSuspendedError) as caught:
            await permits.check(NAME)
        raised.append(caught.value)

    assert len({id(error) for error in raised}) == 3
