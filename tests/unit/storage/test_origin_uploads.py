"""Uploads of ours at the origin end there, or are given up with a word, whatever the origin and the disk do meanwhile."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable

import pytest

from storage.clock import SystemClock
from storage.errors import (
    DiskFailedError,
    NoSuchBucketError,
    NoSuchUploadError,
    OriginUnavailableError,
    UnknownOutcomeError,
)
from storage.origin.wire import OutgoingBody
from storage.origin_uploads import (
    ABORTS_MAX,
    COMMITS_MAX,
    OriginUpload,
    OriginUploads,
    OriginUploadsParts,
    Owner,
)
from storage.records import FORMAT, Mutation, OriginUploadEnded, OriginUploadOpened, UploadRecord
from storage.rows import Effects
from storage.types import ObjectName, Priority

NAME = ObjectName("bucket", "key")
UPLOAD = OriginUpload(NAME, "theirs")
OPENED = OriginUploadOpened(FORMAT, "theirs", "bucket", "key", "ours")
DESCRIBED = UploadRecord(FORMAT, "ours", "bucket", "key", 0.0, "")
SILENT = OriginUnavailableError("no answer", status=0, code="Timeout", outcome_unknown=True)


class HastyClock(SystemClock):
    """Sleeps are noted, and take one turn of the loop."""

    def __init__(self) -> None:
        self.slept: list[float] = []

    async def sleep(self, wait_s: float) -> None:
        """Note, and let others run."""
        self.slept.append(wait_s)
        await super().sleep(0)


class Origin:
    """An origin whose answers are given: an error, or success."""

    def __init__(self) -> None:
        self.aborts: list[Exception | None] = []
        self.aborted = 0
        self.sending = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.part_failure: Exception | None = None

    async def create_multipart_upload(self, *_: object, **__: object) -> str:
        """Open the one upload."""
        return "theirs"

    async def abort_multipart_upload(self, *_: object, **__: object) -> None:
        """Answer as was given; then with success."""
        self.aborted += 1
        answer = self.aborts.pop(0) if self.aborts else None
        if answer is not None:
            raise answer

    async def upload_part(self, *_: object, **__: object) -> None:
        """Wait until the answer may come."""
        self.sending.set()
        await self.may_answer.wait()
        if self.part_failure is not None:
            raise self.part_failure


class Door:
    """A door that notes what goes through it, and refuses at first as was given."""

    def __init__(self) -> None:
        self.refusals: list[Exception] = []
        self.tried = 0
        self.committed: list[Mutation] = []

    async def commit(self, mutation: Mutation) -> None:
        """Commit, or refuse."""
        self.tried += 1
        if self.refusals:
            raise self.refusals.pop(0)
        self.committed.append(mutation)


class World:
    """The uploads over an origin, a door and a clock."""

    def __init__(self) -> None:
        self.origin, self.door, self.clock = Origin(), Door(), HastyClock()
        self.uploads = OriginUploads(
            OriginUploadsParts(
                self.origin,  # type: ignore[arg-type]  # the calls that are made
                self.door,  # type: ignore[arg-type]  # likewise
                self.clock,
                random.Random(1),
                origin_timeout_s=60.0,
            )
        )

    async def ended(self) -> None:
        """Wait until nothing is being ended."""
        while self.uploads._ending:
            await asyncio.wait(tuple(self.uploads._ending.values()))

    def begin_part(self) -> "asyncio.Task[object]":
        """Send a part whose answer is held back."""
        body = OutgoingBody(0, no_pieces, is_repeatable=True)
        send = self.uploads.send_part(UPLOAD, 1, body, Priority.FLUSH)
        return asyncio.get_running_loop().create_task(send)


async def no_pieces() -> AsyncIterator[bytes]:
    """Give no byte."""
    yield b""


async def test_upload_is_known_and_journaled_before_a_part_can_be_sent() -> None:
    """It is hidden from clients, and its record names what it is for."""
    world = World()

    upload = await world.uploads.open(NAME, DESCRIBED, (), Owner(upload_id="ours"), Priority.FLUSH)

    assert upload == UPLOAD
    assert world.door.committed == [OPENED]
    assert world.uploads.ids() == {"theirs"}


async def test_upload_that_cannot_be_journaled_is_aborted_again() -> None:
    """No upload is filled that a crash would leave behind."""
    world = World()
    world.door.refusals = [DiskFailedError("no")]

    with pytest.raises(DiskFailedError):
        await world.uploads.open(NAME, DESCRIBED, (), Owner(upload_id="ours"), Priority.FLUSH)
    await world.ended()

    assert world.origin.aborted == 1
    assert world.uploads.ids() == frozenset()


@pytest.mark.parametrize("last", [None, NoSuchUploadError("gone")])
async def test_left_over_upload_is_aborted_until_the_origin_says_that_it_is_gone(
    last: Exception | None,
) -> None:
    """Then its end is journaled, and it is not hidden any more."""
    world = World()
    world.origin.aborts = [SILENT, SILENT, last]
    effects = Effects()
    effects.origin_uploads_left.append(OPENED)

    world.uploads.absorb(effects)
    hidden = world.uploads.ids()
    await world.ended()

    assert hidden == {"theirs"}
    assert world.origin.aborted == 3
    assert world.door.committed == [OriginUploadEnded(FORMAT, "theirs")]
    assert world.uploads.ids() == frozenset()


async def test_upload_is_aborted_after_its_bucket_was_away() -> None:
    """A bucket that comes back comes with its uploads."""
    world = World()
    world.origin.aborts = [NoSuchBucketError("away"), NoSuchBucketError("away")]

    world.uploads.end(UPLOAD)
    await world.ended()

    assert world.origin.aborted == 3
    assert world.door.committed == [OriginUploadEnded(FORMAT, "theirs")]


async def test_upload_that_cannot_be_aborted_is_given_up_with_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After hours it is left to the bucket's lifecycle rules, by id and key."""
    world = World()
    world.origin.aborts = [SILENT] * 1000

    with caplog.at_level(logging.WARNING):
        world.uploads.end(UPLOAD)
        await world.ended()

    assert world.origin.aborted == ABORTS_MAX
    assert 3600 < sum(world.clock.slept) < 24 * 3600
    assert "upload theirs of s3://bucket/key stays at the origin" in caplog.text
    assert world.door.committed == [OriginUploadEnded(FORMAT, "theirs")]


async def test_upload_is_ended_once_however_often_it_is_asked() -> None:
    """The flush and the journal may both tell of the same one."""
    world = World()

    world.uploads.end(UPLOAD)
    world.uploads.end(UPLOAD)
    world.uploads.note_gone(UPLOAD)
    await world.ended()

    assert world.origin.aborted == 1
    assert len(world.door.committed) == 1


async def test_abort_waits_for_the_parts_under_way() -> None:
    """A part that arrives behind the abort would stay, and be paid for."""
    world = World()
    part = world.begin_part()
    await world.origin.sending.wait()

    world.uploads.end(UPLOAD)
    await asyncio.wait((part,), timeout=0.01)
    before = world.origin.aborted
    world.origin.may_answer.set()
    await part
    await world.ended()

    assert before == 0
    assert world.origin.aborted == 1


async def test_abort_is_repeated_when_a_part_may_land_late() -> None:
    """A part without an answer may arrive behind the first abort, never behind the one after the origin's time-out."""
    world = World()
    world.origin.part_failure = SILENT
    world.origin.may_answer.set()
    with pytest.raises(OriginUnavailableError):
        await world.begin_part()

    world.uploads.end(UPLOAD)
    await world.ended()

    assert world.origin.aborted == 2
    assert world.clock.slept == [60.0]


async def test_start_ends_what_nothing_names_and_keeps_what_something_does() -> None:
    """What goes on is hidden, and is not touched; what is left over ends, its parts of the process before included."""
    world = World()
    other = OriginUploadOpened(FORMAT, "other", "bucket", "other", "", 7)

    world.uploads.load([OPENED, other], frozenset({"other"}))
    await world.ended()

    assert world.origin.aborted == 2
    assert world.door.committed == [OriginUploadEnded(FORMAT, "theirs")]
    assert world.uploads.ids() == {"other"}


@pytest.mark.parametrize(
    ("refusals", "tried", "is_done"),
    [
        (lambda: [DiskFailedError("no")] * 3, 4, True),
        (lambda: [DiskFailedError("no")] * 1000, COMMITS_MAX, False),
        (lambda: [UnknownOutcomeError("sync")], 1, False),
    ],
)
async def test_end_is_journaled_when_the_disk_lets_it(
    refusals: Callable[[], list[Exception]], tried: int, *, is_done: bool
) -> None:
    """A disk that is bad for a while costs time; a closed door leaves it to the next start, which finds it again."""
    world = World()
    world.door.refusals = refusals()

    world.uploads.end(UPLOAD)
    await world.ended()

    assert world.door.tried == tried
    assert bool(world.door.committed) is is_done
    assert world.uploads.ids() == (frozenset() if is_done else {"theirs"})


async def test_close_cuts_what_is_being_ended() -> None:
    """A stop does not wait for an origin that is away."""
    world = World()
    part = world.begin_part()
    await world.origin.sending.wait()
    world.uploads.end(UPLOAD)

    await world.uploads.close()
    world.uploads.end(OriginUpload(NAME, "later"))

    assert world.origin.aborted == 0
    assert not world.uploads._ending
    world.origin.may_answer.set()
    await part
