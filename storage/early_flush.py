"""Which parts of open uploads travel to the origin before their Complete, and when. A state machine without I/O.

The driver (`early_flusher.py`) tells what happens to uploads, asks for `steps`, and tells how each step ended:

    LOCAL ──OpenUpload──> OPENING ──> OPEN ──SendPart, some at a time──> OPEN
      ^                                 │ the origin does not know the upload any more
      └─────────────────────────────────┘
    UNLISTED ──ListUpload──> LISTING ──> OPEN         (after a restart, of an upload that the origin has)

- Nobody has been promised anything, so nothing here is urgent, and no failure matters: after some in a row an upload is left to
  the ordinary flush, with what the origin has of it. Nothing is ever quarantined for it.
- An upload is worth it from `bytes_min` received on, and never before its second part, so that small ones do not pay.
- Only the run of parts from number 1 on is sent: an object of other numbers is flushed anew under numbers without gaps (see
  `carried_on`), and what was sent of it would be lost. A part is sent once it is `settle_s` old, as one that a client repeats
  comes again at once; a part that is replaced later is sent again. One attempt a part number at a time, so that the newest stays.
- Whoever has been promised something goes first: while the flush is pressed, nothing is begun here.

Each call costs O(log parts); `steps` costs O(uploads that have something to send).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from heapq import heappop, heappush
from typing import Final, TypeAlias

from storage.flush_events import FailureKind
from storage.policy import Policy
from storage.records import PartSize, UploadRecord
from storage.types import MIB, Checksum, ObjectName, WriteMode

PARTS_MIN: Final = 2
"""An upload of one part is a small one, or one whose size nobody knows yet."""

LOSSES_MAX: Final = 3
"""So often an upload that somebody ended at the origin is begun anew; then it waits for its Complete."""


@dataclass(frozen=True, slots=True)
class EarlyFlushSettings:
    """The bounds of the early flush; times in seconds.

    Attributes:
        bytes_min: An upload is sent early once so much of it is here; None never.
        parts_max: Parts under way at once, of all uploads together.
        settle_s: A part is not sent before it is so old.
        failures_max: After so many failures in a row an upload is left to the ordinary flush.
        look_again_s: So long after the flush was pressed, or a bucket was not to be sent to, it is looked at again.
    """

    bytes_min: int | None = 64 * MIB
    parts_max: int = 4
    settle_s: float = 1.0
    retry_s_min: float = 1.0
    retry_s_max: float = 60.0
    failures_max: int = 6
    look_again_s: float = 0.25

    def __post_init__(self) -> None:
        if self.parts_max < 1 or self.failures_max < 1:
            raise ValueError(f"no early flush can work with {self}")


# --- What is to be done ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenUpload:
    """Open an upload at the origin; ends in `take_opened` or `take_failure`."""

    upload_id: str


@dataclass(frozen=True, slots=True)
class ListUpload:
    """Ask which parts the origin has; ends in `take_listed`, `take_gone` or `take_failure`."""

    upload_id: str
    origin_upload_id: str


@dataclass(frozen=True, slots=True)
class SendPart:
    """Send a part as it was when it had this ETag; ends in `take_sent`, `take_gone` or `take_failure`."""

    upload_id: str
    origin_upload_id: str
    number: int
    etag: str


Step: TypeAlias = OpenUpload | ListUpload | SendPart


class Stage(Enum):
    """How far an upload is at the origin."""

    LOCAL = "local"
    OPENING = "opening"
    UNLISTED = "unlisted"
    LISTING = "listing"
    OPEN = "open"


@dataclass(slots=True)
class _Part:
    size: int
    etag: str
    since_s: float


@dataclass(slots=True)
class _Upload:
    """One open upload. `waiting` is a heap of part numbers that the origin may lack, each once; none of them is under way."""

    upload_id: str
    name: ObjectName
    stage: Stage
    origin_upload_id: str = ""
    parts: dict[int, _Part] = field(default_factory=dict)
    run: int = 0
    waiting: list[int] = field(default_factory=list)
    is_waiting: set[int] = field(default_factory=set)
    at_origin: dict[int, str] = field(default_factory=dict)
    under_way: set[int] = field(default_factory=set)
    failures: int = 0
    losses: int = 0
    retry_at_s: float = 0.0
    is_left: bool = False
    is_inherited: bool = False

    def __repr__(self) -> str:
        return (
            f"<{self.name} {self.upload_id}: {self.stage.value}, {len(self.parts)} parts, "
            f"{len(self.at_origin)} at the origin, {self.failures} failures>"
        )

    def needs(self, number: int) -> bool:
        """Whether the origin lacks a part as it is now."""
        part = self.parts.get(number)
        return part is not None and self.at_origin.get(number) != part.etag

    def wait(self, number: int) -> None:
        """Let a part wait to be sent."""
        if number not in self.is_waiting and number not in self.under_way:
            self.is_waiting.add(number)
            heappush(self.waiting, number)

    def take(self) -> None:
        """Take the first that waits."""
        self.is_waiting.discard(heappop(self.waiting))

    def next_number(self) -> int:
        """Give the first part of the run that the origin lacks and nobody sends; 0 where there is none."""
        while self.waiting and not self.needs(self.waiting[0]):
            self.take()
        return self.waiting[0] if self.waiting and self.waiting[0] <= self.run else 0

    def bytes_at_origin(self, number: int) -> int:
        """Give the bytes of a part where the origin has it as it is now."""
        part = self.parts.get(number)
        return 0 if part is None or self.needs(number) else part.size


class EarlyFlushPlanner:
    """Decides the early flush; see the module's text. `now_s` is monotonic.

    Attributes:
        bytes_received: Of all open uploads.
        bytes_at_origin: The part of them that the origin has too.
    """

    def __init__(self, settings: EarlyFlushSettings) -> None:
        self._settings = settings
        self._uploads: dict[str, _Upload] = {}
        self._received: dict[str, int] = {}
        # Uploads that are worth it, in the order in which they became so.
        self._worthy: dict[str, _Upload] = {}
        self._under_way = 0
        self._strikes = 0
        self._pause_until_s = 0.0
        self.bytes_received = 0
        self.bytes_at_origin = 0

    def __repr__(self) -> str:
        return (
            f"<EarlyFlushPlanner: {len(self._uploads)} uploads, {len(self._worthy)} worth it, "
            f"{self._under_way} parts under way>"
        )

    def knows(self, upload_id: str) -> bool:
        """Whether an upload is open, as far as was told."""
        return upload_id in self._uploads

    def knows_at_origin(self, upload_id: str, origin_upload_id: str) -> bool:
        """Whether an open upload is carried by this one at the origin."""
        upload = self._uploads.get(upload_id)
        return upload is not None and upload.origin_upload_id == origin_upload_id

    def is_inherited(self, upload_id: str) -> bool:
        """Whether an open upload was carried by one at the origin when this process learnt of it.

        The process before may have sent its Complete there (`conditional_completes.py`), and not have heard or written down the
        outcome. Where such a one is gone, its name is the evidence that whoever completes next looks for.
        """
        upload = self._uploads.get(upload_id)
        return upload is not None and upload.is_inherited

    # --- what happens to uploads -------------------------------------------------------------------------------------

    def add_upload(self, upload_id: str, name: ObjectName, origin_upload_id: str = "") -> None:
        """Learn of an open upload; `origin_upload_id` is what carries it already, "" nothing."""
        stage = Stage.UNLISTED if origin_upload_id else Stage.LOCAL
        self._uploads[upload_id] = _Upload(
            upload_id, name, stage, origin_upload_id, is_inherited=bool(origin_upload_id)
        )
        self._received[upload_id] = 0

    def add_part(self, upload_id: str, number: int, size: int, etag: str, now_s: float) -> None:
        """Learn of a part; it replaces the one of its number."""
        upload = self._uploads.get(upload_id)
        if upload is None:
            return
        replaced = upload.parts.get(number)
        self.bytes_at_origin -= upload.bytes_at_origin(number)
        upload.parts[number] = _Part(size, etag, now_s)
        self.bytes_at_origin += upload.bytes_at_origin(number)
        self._count(upload_id, size - (0 if replaced is None else replaced.size))
        while upload.run + 1 in upload.parts:
            upload.run += 1
        upload.wait(number)
        self._judge(upload)

    def end_upload(self, upload_id: str) -> None:
        """Forget an upload that was completed, aborted or expired."""
        upload = self._uploads.pop(upload_id, None)
        if upload is None:
            return
        self._worthy.pop(upload_id, None)
        self._under_way -= len(upload.under_way)
        self.bytes_at_origin -= self._bytes_at_origin(upload)
        self._count(upload_id, -self._received[upload_id])
        del self._received[upload_id]

    def leave(self, upload_id: str) -> None:
        """Leave an upload to the ordinary flush, with what the origin has of it."""
        upload = self._uploads.get(upload_id)
        if upload is not None:
            upload.is_left = True
            self._worthy.pop(upload_id, None)

    def _count(self, upload_id: str, size: int) -> None:
        self._received[upload_id] += size
        self.bytes_received += size

    def _judge(self, upload: _Upload) -> None:
        bytes_min = self._settings.bytes_min
        if bytes_min is None or upload.is_left or len(upload.parts) < PARTS_MIN:
            return
        if self._received[upload.upload_id] >= bytes_min:
            self._worthy.setdefault(upload.upload_id, upload)

    def _bytes_at_origin(self, upload: _Upload) -> int:
        return sum(upload.bytes_at_origin(number) for number in upload.at_origin)

    # --- how steps ended ---------------------------------------------------------------------------------------------

    def take_opened(self, upload_id: str, origin_upload_id: str) -> None:
        """Learn that the origin has an upload, durably known; nothing is in it."""
        upload = self._uploads.get(upload_id)
        if upload is not None:
            upload.stage, upload.origin_upload_id = Stage.OPEN, origin_upload_id

    def take_listed(self, upload_id: str, origin_upload_id: str, etags: Mapping[int, str]) -> None:
        """Learn which parts the origin has, by number."""
        upload = self._current(upload_id, origin_upload_id)
        if upload is not None:
            upload.stage, upload.failures = Stage.OPEN, 0
            upload.at_origin = dict(etags)
            self.bytes_at_origin += self._bytes_at_origin(upload)

    def take_sent(self, step: SendPart) -> None:
        """Learn that the origin has a part as it was asked for."""
        self._strikes = 0
        upload = self._end_send(step)
        if upload is None:
            return
        upload.failures = 0
        self.bytes_at_origin -= upload.bytes_at_origin(step.number)
        upload.at_origin[step.number] = step.etag
        self.bytes_at_origin += upload.bytes_at_origin(step.number)

    def take_gone(self, step: ListUpload | SendPart) -> None:
        """Learn that the origin does not know an upload of ours any more: begin anew from the local parts, some times.

        One that was inherited is left as it is.
        """
        upload = self._end_send(step) if isinstance(step, SendPart) else None
        upload = upload or self._current(step.upload_id, step.origin_upload_id)
        if upload is None:
            return
        self.bytes_at_origin -= self._bytes_at_origin(upload)
        upload.at_origin = {}
        if upload.is_inherited:
            self.leave(upload.upload_id)
            return
        upload.stage, upload.origin_upload_id = Stage.LOCAL, ""
        for number in upload.parts:
            upload.wait(number)
        upload.losses += 1
        if upload.losses >= LOSSES_MAX:
            self.leave(upload.upload_id)

    def take_failure(
        self, step: Step, kind: FailureKind, *, now_s: float, jitter: float, retry_after_s: float = 0.0
    ) -> None:
        """Learn that a step failed. `jitter` is drawn uniformly from [0, 1).

        An origin that asks for less, or is silent, is given a pause by all uploads.
        """
        upload = self._end_send(step) if isinstance(step, SendPart) else self._uploads.get(step.upload_id)
        if kind in {FailureKind.THROTTLE, FailureKind.UNKNOWN_OUTCOME}:
            self._strikes += 1
            pause_s = max(self._backoff_s(self._strikes, jitter), retry_after_s)
            self._pause_until_s = max(self._pause_until_s, now_s + pause_s)
        if upload is None:
            return
        if upload.stage is Stage.OPENING:
            upload.stage = Stage.LOCAL
        elif upload.stage is Stage.LISTING:
            upload.stage = Stage.UNLISTED
        upload.failures += 1
        upload.retry_at_s = now_s + max(self._backoff_s(upload.failures, jitter), retry_after_s)
        if kind is FailureKind.REFUSE or upload.failures >= self._settings.failures_max:
            self.leave(upload.upload_id)

    def take_changed(self, step: SendPart) -> None:
        """Learn that nothing was sent, since the part was replaced or its upload ended in between."""
        self._end_send(step)

    def _current(self, upload_id: str, origin_upload_id: str) -> _Upload | None:
        upload = self._uploads.get(upload_id)
        return upload if upload is not None and upload.origin_upload_id == origin_upload_id else None

    def _end_send(self, step: SendPart) -> _Upload | None:
        """End an attempt, and let the number wait again; None where it was for an upload at the origin that does not count."""
        upload = self._uploads.get(step.upload_id)
        if upload is None or step.number not in upload.under_way:
            return None
        upload.under_way.discard(step.number)
        self._under_way -= 1
        # What the origin has by then is looked at when its turn comes.
        upload.wait(step.number)
        return upload if upload.origin_upload_id == step.origin_upload_id else None

    def _backoff_s(self, failures: int, jitter: float) -> float:
        """Wait up to a time that doubles with each failure ("full jitter"), but never next to nothing."""
        limit_s = min(self._settings.retry_s_max, self._settings.retry_s_min * 2.0 ** min(failures - 1, 30))
        return max(self._settings.retry_s_min / 10, limit_s * jitter)

    # --- what to do --------------------------------------------------------------------------------------------------

    def steps(
        self, now_s: float, *, is_pressed: bool, may_send: Callable[[ObjectName], bool]
    ) -> tuple[list[Step], float | None]:
        """Say what to begin now, and when to ask again if nothing happens before; None where only news can help.

        `is_pressed`: the flush has work that somebody was promised, and no room to spare. `may_send`: whether policy and bucket
        let an object's parts go early.
        """
        if not self._worthy:
            return [], None
        if is_pressed:
            return [], now_s + self._settings.look_again_s
        if now_s < self._pause_until_s:
            return [], self._pause_until_s
        begun: list[Step] = []
        wake_s: float | None = None
        for upload in self._worthy.values():
            if self._under_way >= self._settings.parts_max:
                break
            at_s = self._begin(upload, begun, now_s, may_send)
            if at_s is not None:
                wake_s = at_s if wake_s is None else min(wake_s, at_s)
        return begun, wake_s

    def _begin(
        self, upload: _Upload, begun: list[Step], now_s: float, may_send: Callable[[ObjectName], bool]
    ) -> float | None:
        """Begin what can be of one upload; give when more of it can, None where that is not a matter of time."""
        number = upload.next_number()
        is_idle = upload.stage in {Stage.LOCAL, Stage.OPEN} and not number
        if is_idle or upload.stage in {Stage.OPENING, Stage.LISTING}:
            return None
        wait_until_s = max(upload.retry_at_s, self._settled_s(upload, number) if number else 0.0)
        if now_s < wait_until_s:
            return wait_until_s
        if not may_send(upload.name):
            return now_s + self._settings.look_again_s
        if upload.stage is Stage.OPEN:
            return self._send(upload, begun, now_s)
        if upload.stage is Stage.LOCAL:
            upload.stage = Stage.OPENING
            begun.append(OpenUpload(upload.upload_id))
        else:
            upload.stage = Stage.LISTING
            begun.append(ListUpload(upload.upload_id, upload.origin_upload_id))
        return None

    def _settled_s(self, upload: _Upload, number: int) -> float:
        """Say from when on a part may be sent."""
        return upload.parts[number].since_s + self._settings.settle_s

    def _send(self, upload: _Upload, begun: list[Step], now_s: float) -> float | None:
        while self._under_way < self._settings.parts_max and (number := upload.next_number()):
            part = upload.parts[number]
            if now_s < (settled_s := self._settled_s(upload, number)):
                return settled_s
            upload.take()
            upload.under_way.add(number)
            self._under_way += 1
            begun.append(SendPart(upload.upload_id, upload.origin_upload_id, number, part.etag))
        return None

    # --- for tests ---------------------------------------------------------------------------------------------------

    def check_invariants(self) -> None:
        """Compare all that is kept twice; for tests, O(n)."""
        uploads = self._uploads.values()
        assert self._under_way == sum(len(upload.under_way) for upload in uploads) <= self._settings.parts_max
        assert self.bytes_received == sum(part.size for upload in uploads for part in upload.parts.values())
        assert self.bytes_at_origin == sum(self._bytes_at_origin(upload) for upload in uploads)
        for upload in uploads:
            assert sorted(upload.waiting) == sorted(upload.is_waiting), f"{upload!r} and what waits"
            assert not upload.under_way & upload.is_waiting, f"{upload!r} would send a part twice at once"
            lacking = {number for number in upload.parts if upload.needs(number)}
            assert lacking <= upload.under_way | upload.is_waiting, f"{upload!r} forgot a part"


def may_travel(policy: Policy, *, suspension: str) -> bool:
    """Whether an object's parts may go early at all.

    Not what is written through, nor what is held back since it may never have to be sent, nor into a bucket that refuses
    (`suspension` says why, "" where it does not).
    """
    return policy.write is WriteMode.BACK and not policy.flush_delay_s and not suspension


def carried_on(upload: UploadRecord, parts: Sequence[PartSize], checksums: tuple[Checksum, ...]) -> str:
    """Say which upload at the origin the flush of a completed upload can go on with; "" none.

    An object whose part numbers have gaps is sent anew, under numbers without: AWS answers 500 to such a Complete where the upload
    has checksums ("Checking object integrity"), and directory buckets refuse it altogether. So is one that lacks the
    checksum that its upload at the origin was opened for.
    """
    if [part.number for part in parts] != list(range(1, len(parts) + 1)):
        return ""
    if upload.checksum_algorithm and not checksums:
        return ""
    return upload.origin_upload_id
