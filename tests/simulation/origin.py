"""An origin on virtual time: the fake store behind a network that delays, cuts, loses and brings late.

`SimTransport` takes the place of the real transport, so signing, retries, parsing and all that the engine makes of an
answer are the real ones. A request that was sent lives on without its sender: it is carried out when its time has come,
even where the connection was cut or the process killed meanwhile, until `late_s` after that at the latest.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from tests.fakes.origin_store import Bucket, OriginStore, Received, Reply, Stored, error_reply, operation_of
from tests.simulation.loop import WALL_START_S, DrawnLoop
from tests.simulation.weather import Fate, Weather, fate_of

OP: Final = "x-amz-meta-op"
DELETED: Final = -1
"""Stands for the number of a write where the state is that there is no object."""

WRITES: Final = frozenset(
    {"PutObject", "DeleteObject", "DeleteObjects", "CopyObject", "CompleteMultipartUpload"}
)


@dataclass(frozen=True, slots=True)
class Landed:
    """A state that a key had at the origin from a turn on: the number of the write, or DELETED."""

    turn: int
    at_s: float
    op: int


class SimStore(OriginStore):
    """The fake store, with a history of each key by the numbers that the writes carry in their metadata."""

    def __init__(self, loop: DrawnLoop) -> None:
        super().__init__(lambda: WALL_START_S + loop.time())
        self._loop = loop
        self.part_bytes_min = 0
        self.landed: dict[tuple[str, str], list[Landed]] = {}
        self.gone: dict[str, Bucket] = {}

    def op_of(self, bucket: str, key: str) -> int:
        """Give the number of the write whose state a key has, also in a bucket that is gone for a while."""
        found = (self.buckets.get(bucket) or self.gone[bucket]).objects.get(key)
        return DELETED if found is None else int(found.headers[OP])

    def _store(self, request: Received, *args: object, **kwargs: object) -> Stored:
        stored = super()._store(request, *args, **kwargs)  # type: ignore[arg-type]  # handed on as they came
        self.note(request.bucket, request.key, int(stored.headers[OP]))
        return stored

    def _delete(self, name: str, key: str, version_id: str | None = None) -> dict[str, str]:
        told = super()._delete(name, key, version_id)
        self.note(name, key, DELETED)
        return told

    def note(self, bucket: str, key: str, op: int) -> None:
        """Add to a key's history."""
        landed = Landed(self._loop.turns, self._loop.time(), op)
        self.landed.setdefault((bucket, key), []).append(landed)


@dataclass(eq=False, slots=True)
class Sent:
    """A request under way. `op`: the number that it carries, DELETED for a delete."""

    operation: str
    request: Received
    process: int
    fate: Fate
    at_s: float
    keys: tuple[str, ...]
    op: int
    answered: "asyncio.Future[Reply]"
    landing: asyncio.TimerHandle | None = None
    is_settled: bool = False


@dataclass(slots=True)
class SimOrigin:
    """The origin and its network.

    Attributes:
        refuses: Whether objects are refused for good now and then.
        at_event: Called at each arrival and landing.
        attempts: Requests by operation.
        sent_at_s: When requests were sent, by bucket and key.
    """

    loop: DrawnLoop
    draws: random.Random
    late_s: float
    at_event: Callable[[], None]
    store: SimStore
    weather: Weather = Weather.CLEAR
    weather_bucket: str = ""
    refuses: bool = False
    token: int = 1
    under_way: list[Sent] = field(default_factory=list)
    attempts: Counter[str] = field(default_factory=Counter)
    sent_at_s: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)

    def send(self, request: Received, process: int) -> Sent | None:
        """Take a request off a process' hands; None where there is no connection."""
        operation = operation_of(request)
        fate = fate_of(self._weather_for(request), self.draws, late_s=self.late_s, refuses=self.refuses)
        self.attempts[operation] += 1
        keys = _written_keys(operation, request)
        for key in keys or (request.key,):
            self.sent_at_s.setdefault((request.bucket, key), []).append(self.loop.time())
        upload = request.query.get("uploadId", "")
        self._tell(f"{operation} {request.bucket}/{','.join(keys) or request.key} {upload}", fate)
        self.at_event()
        if fate.is_refused:
            return None
        op = self._op_of(operation, request)
        sent = Sent(operation, request, process, fate, self.loop.time(), keys, op, self.loop.create_future())
        self.under_way.append(sent)
        if fate.is_lost:
            self._settle(sent)
        else:
            sent.landing = self.loop.call_later(fate.out_s, self._land, sent)
        return sent

    def may_land(self, bucket: str, key: str) -> list[Sent]:
        """Give the requests under way that may yet change a key."""
        return [
            sent
            for sent in self.under_way
            if sent.request.bucket == bucket and key in sent.keys and self._may_change(sent)
        ]

    def process_died(self, process: int) -> None:
        """Let what a killed process had sent be lost, land soon, or land late."""
        for sent in [sent for sent in self.under_way if sent.process == process]:
            drawn = self.draws.random()
            is_cut = 0 <= sent.fate.cut_s < self.loop.time() - sent.at_s
            if is_cut or sent.landing is None or drawn < 0.4:
                continue
            sent.landing.cancel()
            if drawn < 0.6:
                self._settle(sent)
            else:
                sent.landing = self.loop.call_later(self.draws.random() * self.late_s, self._land, sent)

    def change(self, weather: Weather, bucket: str) -> None:
        """Let the weather turn."""
        for name, kept in list(self.store.gone.items()):
            self.store.buckets[name] = kept
            del self.store.gone[name]
        if self.weather is Weather.EXPIRED:
            self.token += 1
        self.weather, self.weather_bucket = weather, bucket
        if weather is Weather.GONE:
            self.store.gone[bucket] = self.store.buckets.pop(bucket)
        self.trace.append(f"{self.loop.time():.3f} the weather is {weather.value} {bucket}")

    # --- inside --------------------------------------------------------------------------------------------------------

    def _weather_for(self, request: Received) -> Weather:
        if self.weather is Weather.DENIED and request.bucket == self.weather_bucket:
            return self.weather
        return Weather.CLEAR if self.weather is Weather.DENIED else self.weather

    def _tell(self, what: str, fate: Fate) -> None:
        odd = {
            name: value
            for name in Fate.__slots__
            if (value := getattr(fate, name)) != getattr(Fate(), name) and name not in {"out_s", "answer_s"}
        }
        self.trace.append(f"{self.loop.time():.3f} sent {what} {odd or ''}")

    def _op_of(self, operation: str, request: Received) -> int:
        if operation == "CompleteMultipartUpload":
            upload = self.store.uploads.get(request.query["uploadId"])
            return 0 if upload is None else int(upload.headers.get(OP, 0))
        return int(request.headers.get(OP, 0)) if "Put" in operation or "Copy" in operation else DELETED

    def _may_change(self, sent: Sent) -> bool:
        if sent.is_settled or sent.operation not in WRITES or (sent.fate.status and not sent.fate.is_done):
            return False
        return (
            sent.operation != "CompleteMultipartUpload"
            or sent.request.query["uploadId"] in self.store.uploads
        )

    def _land(self, sent: Sent) -> None:
        """Carry a request out, and send its answer on its way."""
        fate, reply = sent.fate, None
        self.at_event()
        if self.weather is Weather.DENIED and sent.request.bucket == self.weather_bucket:
            reply = error_reply(403, "AccessDenied")
        elif not fate.status or fate.is_done:
            reply = self._carried_out(sent)
            self.trace.append(f"{self.loop.time():.3f} landed {sent.operation} {sent.keys} {reply.status}")
        self._settle(sent)
        if fate.status and (reply is None or reply.status < 300):
            reply = error_reply(fate.status, fate.code, "as drawn")
            if fate.is_in_200:
                reply.body = b"\n \n" + reply.body
            if fate.retry_after_s >= 0:
                reply.headers["retry-after"] = str(fate.retry_after_s)
        assert reply is not None, f"{fate} has no answer"
        if fate.is_garbage and sent.request.method != "HEAD" and reply.status < 300:
            reply = Reply(200, b"<html>no such thing")
        if sent.request.method == "HEAD":
            reply.body = b""
        self.loop.call_later(fate.answer_s, _answer, sent, reply)

    def _carried_out(self, sent: Sent) -> Reply:
        """Let the store do it; lines of a batch may fail one by one."""
        if sent.operation != "DeleteObjects" or not sent.fate.line_code:
            return self.store.handle(sent.operation, sent.request)
        failing = [key for key in sent.keys if self.draws.random() < 0.5]
        kept = [key for key in sent.keys if key not in failing]
        for key in kept if sent.request.bucket in self.store.buckets else ():
            self.store._delete(sent.request.bucket, key)
        lines = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in kept)
        lines += "".join(
            f"<Error><Key>{key}</Key><Code>{sent.fate.line_code}</Code></Error>" for key in failing
        )
        return Reply(200, f"<DeleteResult>{lines}</DeleteResult>".encode())

    def _settle(self, sent: Sent) -> None:
        sent.is_settled = True
        self.under_way.remove(sent)


def _answer(sent: Sent, reply: Reply) -> None:
    if not sent.answered.done():
        sent.answered.set_result(reply)


def _written_keys(operation: str, request: Received) -> tuple[str, ...]:
    if operation == "DeleteObjects":
        pieces = request.body.decode().split("<Key>")[1:]
        return tuple(piece.partition("</Key>")[0] for piece in pieces)
    return (request.key,) if operation in WRITES else ()
