"""What of open uploads travels early, and when: the planner by itself, and any sequence of what may happen to it."""

import random

import pytest

from storage.early_flush import (
    LOSSES_MAX,
    EarlyFlushPlanner,
    EarlyFlushSettings,
    ListUpload,
    OpenUpload,
    SendPart,
    Step,
    carried_on,
    may_travel,
)
from storage.flush_events import FailureKind
from storage.policy import Policy
from storage.records import FORMAT, PartSize, UploadRecord
from storage.types import MIB, Checksum, ChecksumAlgorithm, ObjectName, WriteMode

NAME = ObjectName("bucket", "key")
SETTINGS = EarlyFlushSettings(bytes_min=10 * MIB, parts_max=2, settle_s=1.0, failures_max=3)
PART = 5 * MIB


class World:
    """A planner with one upload, and a clock."""

    def __init__(self, settings: EarlyFlushSettings = SETTINGS, origin_upload_id: str = "") -> None:
        self.planner = EarlyFlushPlanner(settings)
        self.planner.add_upload("u", NAME, origin_upload_id)
        self.now_s = 0.0

    def part(self, number: int, etag: str = "", size: int = PART) -> None:
        """Receive a part."""
        self.planner.add_part("u", number, size, etag or f"e{number}", self.now_s)

    def parts(self, *numbers: int) -> None:
        """Receive parts."""
        for number in numbers:
            self.part(number)

    def steps(self, *, is_pressed: bool = False, may_send: bool = True) -> list[Step]:
        """Ask what to begin now."""
        return self.asked(is_pressed=is_pressed, may_send=may_send)[0]

    def asked(self, *, is_pressed: bool = False, may_send: bool = True) -> tuple[list[Step], float | None]:
        """Ask what to begin now, and when to ask again."""
        answer = self.planner.steps(self.now_s, is_pressed=is_pressed, may_send=lambda _: may_send)
        self.planner.check_invariants()
        return answer

    def opened(self, *numbers: int) -> None:
        """Receive parts, let them settle, and have the origin open an upload."""
        self.parts(*numbers)
        self.now_s += 1.0
        assert self.steps() == [OpenUpload("u")]
        self.planner.take_opened("u", "o")

    def fail(self, step: Step, kind: FailureKind = FailureKind.RETRY, retry_after_s: float = 0.0) -> None:
        """Let a step fail; its backoff is the longest."""
        self.planner.take_failure(step, kind, now_s=self.now_s, jitter=1.0, retry_after_s=retry_after_s)
        self.planner.check_invariants()


def send(number: int, etag: str = "", origin_upload_id: str = "o") -> SendPart:
    """Name a step."""
    return SendPart("u", origin_upload_id, number, etag or f"e{number}")


# --- when it is worth it ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "is_worth_it"),
    [([20 * MIB], False), ([PART, PART - 1], False), ([PART, PART], True), ([8 * MIB, 8 * MIB], True)],
)
def test_upload_is_sent_early_from_its_size_and_second_part_on(sizes: list[int], is_worth_it: bool) -> None:
    """Neither one part of any size nor two small ones cost a request."""
    world = World()
    for number, size in enumerate(sizes, start=1):
        world.part(number, size=size)
    world.now_s = 10.0

    assert world.steps() == ([OpenUpload("u")] if is_worth_it else [])


def test_nothing_is_sent_early_when_it_is_off() -> None:
    """Off is off, whatever the size; what is received is counted all the same."""
    world = World(EarlyFlushSettings(bytes_min=None))
    world.parts(*range(1, 100))
    world.now_s = 10.0

    assert world.asked() == ([], None)
    assert world.planner.bytes_received == 99 * PART


def test_nothing_is_opened_twice_when_the_opening_is_under_way() -> None:
    """One opening at a time, whatever comes meanwhile."""
    world = World()
    world.parts(1, 2)
    world.now_s = 1.0

    assert world.steps() == [OpenUpload("u")]
    world.part(3)
    assert world.asked() == ([], None)


# --- which part next ----------------------------------------------------------------------------------------------------


def test_parts_are_sent_in_order_some_at_a_time() -> None:
    """The first parts go first, as many at once as are allowed, each one's end makes room for the next."""
    world = World()
    world.opened(1, 2, 3)

    assert world.steps() == [send(1), send(2)]
    assert world.steps() == []
    world.planner.take_sent(send(2))
    assert world.steps() == [send(3)]
    world.planner.take_sent(send(1))
    world.planner.take_sent(send(3))
    assert world.asked() == ([], None)
    assert world.planner.bytes_at_origin == 3 * PART


def test_parts_behind_a_gap_wait() -> None:
    """An object whose numbers have gaps is flushed under others, so what lies behind a gap is not sent."""
    world = World()
    world.opened(1, 3, 4)

    assert world.steps() == [send(1)]
    assert world.asked() == ([], None)
    world.part(2)
    world.now_s += 1.0
    assert world.steps() == [send(2)]
    world.planner.take_sent(send(1))
    assert world.steps() == [send(3)]


def test_young_part_waits_until_it_has_settled() -> None:
    """A part that its client may repeat at once is not sent yet, and the planner says when it can be."""
    world = World()
    world.opened(1, 2)
    world.now_s = 5.0
    world.steps()
    world.planner.take_sent(send(1))
    world.planner.take_sent(send(2))
    world.part(3)

    assert world.asked() == ([], 6.0)
    world.now_s = 6.0
    assert world.steps() == [send(3)]


def test_replaced_part_is_sent_again_once_the_attempt_before_has_ended() -> None:
    """Two attempts of one number never run at once: the older could land last."""
    world = World()
    world.opened(1, 2)
    world.steps()
    world.part(1, "new")
    world.now_s += 1.0

    assert world.steps() == []
    world.planner.take_sent(send(1))
    assert world.planner.bytes_at_origin == 0
    assert world.steps() == [send(1, "new")]
    world.planner.take_sent(send(1, "new"))
    assert world.planner.bytes_at_origin == PART


def test_part_that_is_at_the_origin_is_sent_again_when_it_is_replaced() -> None:
    """The same bytes again cost nothing, others are sent."""
    world = World()
    world.opened(1, 2)
    world.steps()
    world.planner.take_sent(send(1))
    world.planner.take_sent(send(2))
    world.part(1, "e1")
    world.part(2, "new")
    world.now_s += 1.0

    assert world.steps() == [send(2, "new")]


def test_upload_of_an_earlier_process_goes_on_behind_what_the_origin_has() -> None:
    """After a restart the origin is asked first, and only what it lacks or has otherwise is sent."""
    world = World(origin_upload_id="o")
    world.parts(1, 2, 3)
    world.now_s = 1.0

    assert world.steps() == [ListUpload("u", "o")]
    world.planner.take_listed("u", "o", {1: "e1", 2: "old", 9: "e9"})
    assert world.planner.bytes_at_origin == PART
    assert world.steps() == [send(2), send(3)]


# --- who goes first -----------------------------------------------------------------------------------------------------


def test_nothing_is_begun_when_the_flush_is_pressed() -> None:
    """What somebody was promised goes first, and is looked at again soon."""
    world = World()
    world.parts(1, 2)
    world.now_s = 1.0

    assert world.asked(is_pressed=True) == ([], 1.0 + SETTINGS.look_again_s)
    assert world.steps() == [OpenUpload("u")]


def test_nothing_is_begun_when_policy_or_bucket_forbid_it() -> None:
    """A bucket that is suspended, or an object that is written through, sends nothing early."""
    world = World()
    world.parts(1, 2)
    world.now_s = 1.0

    assert world.asked(may_send=False) == ([], 1.0 + SETTINGS.look_again_s)


# --- failures -----------------------------------------------------------------------------------------------------------


def test_failed_step_is_tried_again_later_and_later_then_never() -> None:
    """Each failure in a row doubles the wait; the last leaves the upload to the ordinary flush."""
    world = World()
    world.parts(1, 2)
    world.now_s = 1.0
    waits = []
    for _ in range(SETTINGS.failures_max - 1):
        (step,) = world.steps()
        world.fail(step)
        steps, wake_s = world.asked()
        assert steps == []
        assert wake_s is not None
        waits.append(wake_s - world.now_s)
        world.now_s = wake_s

    (step,) = world.steps()
    world.fail(step)
    world.now_s += 1000.0

    assert waits == [1.0, 2.0]
    assert world.asked() == ([], None)


def test_success_ends_a_row_of_failures() -> None:
    """An origin that fails now and then is not given up."""
    world = World()
    world.opened(1, 2)
    for turn in range(2 * SETTINGS.failures_max):
        world.part(2, f"turn {turn}")
        world.now_s += 100.0
        assert world.steps() == [send(1), send(2, f"turn {turn}")]
        world.fail(send(1))
        world.planner.take_sent(send(2, f"turn {turn}"))

    world.now_s += 100.0
    assert world.steps() == [send(1)]


@pytest.mark.parametrize(
    ("kind", "retry_after_s", "until_s"),
    [
        (FailureKind.THROTTLE, 30.0, 31.0),
        (FailureKind.THROTTLE, 0.0, 2.0),
        (FailureKind.UNKNOWN_OUTCOME, 0.0, 2.0),
    ],
)
def test_all_uploads_pause_when_the_origin_asks_for_less_or_is_silent(
    kind: FailureKind, retry_after_s: float, until_s: float
) -> None:
    """One throttled part is enough for all uploads to hold back, for as long as the origin asks."""
    world = World()
    world.opened(1, 2)
    world.planner.add_upload("v", ObjectName("bucket", "other"))
    for number in (1, 2):
        world.planner.add_part("v", number, PART, "e", -10.0)
    steps = world.steps()
    assert steps == [send(1), send(2)]
    world.planner.take_sent(send(2))

    world.fail(send(1), kind, retry_after_s)

    assert world.asked() == ([], until_s)
    world.now_s = until_s
    assert OpenUpload("v") in world.steps()


def test_refused_upload_is_left_to_the_ordinary_flush_at_once() -> None:
    """What the origin will never take early is not offered again; what is there stays for the flush."""
    world = World()
    world.opened(1, 2)
    world.steps()
    world.planner.take_sent(send(2))
    world.fail(send(1), FailureKind.REFUSE)
    world.now_s += 1000.0

    assert world.asked() == ([], None)
    assert world.planner.bytes_at_origin == PART


def test_upload_that_somebody_ended_at_the_origin_begins_anew_some_times() -> None:
    """All parts are sent again into a new upload; attempts into the old one do not count for it."""
    world = World()
    world.opened(1, 2)
    world.steps()
    world.planner.take_sent(send(1))

    world.planner.take_gone(send(2))
    assert world.planner.bytes_at_origin == 0
    assert world.steps() == [OpenUpload("u")]
    world.planner.take_opened("u", "o2")
    assert world.steps() == [send(1, origin_upload_id="o2"), send(2, origin_upload_id="o2")]

    for turn in range(LOSSES_MAX - 1):
        world.planner.take_gone(send(1, origin_upload_id=f"o{turn + 2}"))
        if turn < LOSSES_MAX - 2:
            world.planner.take_gone(send(2, origin_upload_id=f"o{turn + 2}"))
            assert world.steps() == [OpenUpload("u")]
            world.planner.take_opened("u", f"o{turn + 3}")
            world.steps()
    world.now_s += 1000.0

    assert world.asked() == ([], None)


def test_late_answers_for_an_ended_upload_are_ignored() -> None:
    """An upload that was completed or aborted is forgotten, with what is under way of it."""
    world = World()
    world.opened(1, 2)
    world.steps()

    world.planner.end_upload("u")
    world.planner.take_sent(send(1))
    world.fail(send(2))
    world.planner.take_gone(send(2))
    world.part(3)

    assert world.asked() == ([], None)
    assert (world.planner.bytes_received, world.planner.bytes_at_origin) == (0, 0)


@pytest.mark.parametrize(
    ("policy", "suspension", "may"),
    [
        (Policy(), "", True),
        (Policy(flush_deadline_s=60.0), "", True),
        (Policy(), "AccessDenied", False),
        (Policy(flush_delay_s=1.0), "", False),
        (Policy(write=WriteMode.THROUGH), "", False),
        (Policy(write=WriteMode.AROUND), "", False),
    ],
)
def test_parts_travel_only_where_a_write_back_would_be_sent_at_once(
    policy: Policy, suspension: str, *, may: bool
) -> None:
    """Neither what may never have to be sent, nor what is not written back, nor into a bucket that refuses."""
    assert may_travel(policy, suspension=suspension) is may


# --- what the flush goes on with ----------------------------------------------------------------------------------------

CRC = (Checksum(ChecksumAlgorithm.CRC32, "AAAAAA=="),)


@pytest.mark.parametrize(
    ("numbers", "algorithm", "checksums", "is_carried_on"),
    [
        ((1, 2, 3), "", (), True),
        ((1, 2, 3), "CRC32", CRC, True),
        ((1, 2, 3), "CRC32", (), False),
        ((1, 3), "", (), False),
        ((2, 3), "", (), False),
    ],
)
def test_flush_goes_on_with_an_upload_only_when_numbers_and_checksums_fit(
    numbers: tuple[int, ...], algorithm: str, checksums: tuple[Checksum, ...], is_carried_on: bool
) -> None:
    """Numbers with gaps, and an object without the checksum that its upload was opened for, are sent anew."""
    upload = UploadRecord(
        FORMAT, "u", "bucket", "key", 0.0, "", checksum_algorithm=algorithm, origin_upload_id="o"
    )
    parts = [PartSize(number, PART, "e") for number in numbers]

    assert carried_on(upload, parts, checksums) == ("o" if is_carried_on else "")


# --- anything that may happen -------------------------------------------------------------------------------------------


class Random:
    """An origin and clients that do whatever they like, drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.draws = random.Random(seed)
        self.planner = EarlyFlushPlanner(SETTINGS)
        self.now_s = 0.0
        self.origin: dict[str, dict[int, str]] = {}
        self.parts: dict[str, dict[int, str]] = {}
        self.under_way: list[Step] = []
        self.count = 0

    def new(self) -> str:
        """Give a text never given before."""
        self.count += 1
        return f"{self.count}"

    def turn(self) -> None:
        """Let something happen."""
        self.now_s += self.draws.choice([0.0, 0.1, 2.0])
        match self.draws.randrange(8):
            case 0 if len(self.parts) < 3:
                upload_id = self.new()
                self.parts[upload_id] = {}
                self.planner.add_upload(upload_id, NAME)
            case 1 | 2 | 3 if self.parts:
                upload_id, number = self.draws.choice(list(self.parts)), self.draws.randrange(1, 7)
                self.parts[upload_id][number] = self.new()
                self.planner.add_part(upload_id, number, PART, self.parts[upload_id][number], self.now_s)
            case 4 if self.parts and self.draws.random() < 0.2:
                upload_id = self.draws.choice(list(self.parts))
                del self.parts[upload_id]
                self.planner.end_upload(upload_id)
            case 5 if self.origin and self.draws.random() < 0.2:
                del self.origin[self.draws.choice(list(self.origin))]
            case _ if self.under_way:
                self.end(self.under_way.pop(self.draws.randrange(len(self.under_way))))
            case _:
                pass
        self.planner.check_invariants()
        steps, _ = self.planner.steps(
            self.now_s, is_pressed=self.draws.random() < 0.2, may_send=lambda _: True
        )
        for step in steps:
            self.check(step)
        self.under_way += steps

    def check(self, step: Step) -> None:
        """Hold a step against what was told."""
        assert step.upload_id in self.parts
        if isinstance(step, SendPart):
            assert step.etag == self.parts[step.upload_id][step.number]
            assert all(number in self.parts[step.upload_id] for number in range(1, step.number))
            others = [one for one in self.under_way if isinstance(one, SendPart)]
            assert (step.upload_id, step.number) not in {(one.upload_id, one.number) for one in others}

    def end(self, step: Step) -> None:
        """Let a step end, one way or another."""
        if self.draws.random() < 0.15:
            kinds = [FailureKind.RETRY, FailureKind.THROTTLE, FailureKind.UNKNOWN_OUTCOME]
            self.planner.take_failure(
                step, self.draws.choice(kinds), now_s=self.now_s, jitter=self.draws.random()
            )
            return
        match step:
            case OpenUpload():
                origin_upload_id = self.new()
                self.origin[origin_upload_id] = {}
                self.planner.take_opened(step.upload_id, origin_upload_id)
            case ListUpload():
                raise AssertionError("nothing is from before")
            case SendPart() if step.origin_upload_id in self.origin:
                self.origin[step.origin_upload_id][step.number] = step.etag
                self.planner.take_sent(step)
            case SendPart():
                self.planner.take_gone(step)


@pytest.mark.parametrize("seed", range(40))
def test_planner_when_anything_happens_in_any_order(seed: int) -> None:
    """Books add up after every step; only parts as they are now are sent, in a run, never one twice at once."""
    world = Random(seed)

    for _ in range(400):
        world.turn()
