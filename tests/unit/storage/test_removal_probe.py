import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from storage.effects import Changes, Effect, Needs
from storage.errors import NameIgnoredError, OriginUnavailableError
from storage.removal_probe import PROBE_PREFIX, RemovalProbe
from storage.requests import RelayRequest
from storage.types import ObjectName

REQUEST = RelayRequest(
    "DeleteBucketMetricsConfiguration",
    "DELETE",
    ObjectName("b", ""),
    Effect(Needs.NOTHING, Changes.CONFIGURATION),
    query=(("metrics", ""), ("id", "1")),
    guarded=("metrics",),
)


@dataclass
class Answer:
    status: int


@dataclass
class Origin:
    """Keeps buckets. `knows` the name in a DELETE or not, lets buckets be made or not; `shows_late` what is deleted is shown on."""

    knows: bool = True
    made_status: int = 200
    shows_late: bool = False
    fails_at: str = ""
    buckets: set[str] = field(default_factory=lambda: {"b"})
    asked: list[str] = field(default_factory=list)
    held: asyncio.Event | None = None
    reached: asyncio.Event = field(default_factory=asyncio.Event)

    @asynccontextmanager
    async def request(
        self, method: str, name: ObjectName, *, operation: str, query: tuple[tuple[str, str], ...]
    ) -> AsyncIterator[Answer]:
        del operation
        assert name.bucket.startswith(PROBE_PREFIX), "no bucket of anybody else is touched"
        step = f"{method} {'&'.join(f'{n}={v}' for n, v in query)}".strip()
        self.asked.append(step)
        if self.held is not None and query:
            self.reached.set()
            await self.held.wait()
        if step == self.fails_at:
            self.fails_at = ""
            raise OriginUnavailableError("cut", status=0, code="Cut", outcome_unknown=True)
        yield Answer(self._status(method, name.bucket, is_by_name=bool(query)))

    def _status(self, method: str, bucket: str, *, is_by_name: bool) -> int:
        if method == "PUT":
            if self.made_status == 200:
                self.buckets.add(bucket)
            return self.made_status
        if bucket not in self.buckets:
            return 200 if method == "HEAD" and self.shows_late else 404
        if method == "DELETE" and not (is_by_name and self.knows):
            self.buckets.discard(bucket)
        return 200 if method == "HEAD" else 204


def probe(origin: Origin) -> RemovalProbe:
    """Make one."""
    return RemovalProbe(origin, random.Random(1))  # type: ignore[arg-type]  # a double of the client


async def test_a_name_that_leaves_the_bucket_alone_is_known() -> None:
    """It is asked once, by all that the query says, and nothing is left."""
    origin = Origin()
    made = probe(origin)

    await made.check(REQUEST)
    await made.check(REQUEST)

    assert origin.asked == ["PUT", "DELETE metrics=&id=1", "HEAD", "DELETE"]
    assert origin.buckets == {"b"}


@pytest.mark.parametrize("shows_late", [False, True])
async def test_a_name_that_deletes_the_bucket_is_refused_from_then_on(*, shows_late: bool) -> None:
    """Also where another node of the origin still shows what is gone."""
    origin = Origin(knows=False, shows_late=shows_late)
    made = probe(origin)

    for _ in range(2):
        with pytest.raises(NameIgnoredError):
            await made.check(REQUEST)

    assert origin.asked.count("PUT") == 1
    assert origin.buckets == {"b"}


async def test_without_a_bucket_to_try_it_on_it_is_refused() -> None:
    """What cannot be told is not tried on a bucket of somebody's; it is asked again, since a right can be given."""
    origin = Origin(made_status=403)
    made = probe(origin)

    for _ in range(2):
        with pytest.raises(NameIgnoredError):
            await made.check(REQUEST)
    origin.made_status = 200
    await made.check(REQUEST)

    assert origin.buckets == {"b"}


@pytest.mark.parametrize("step", ["PUT", "DELETE metrics=&id=1", "HEAD", "DELETE"])
async def test_a_failure_leaves_nothing_and_teaches_nothing(step: str) -> None:
    """Whichever question has no answer, the bucket is deleted, and the next deletion asks anew."""
    origin = Origin(fails_at=step)
    made = probe(origin)

    with pytest.raises(OriginUnavailableError):
        await made.check(REQUEST)
    left = set(origin.buckets)
    await made.check(REQUEST)

    assert left == {"b"}
    assert origin.asked.count("PUT") == 2


async def test_a_client_that_leaves_leaves_no_bucket() -> None:
    """Its bucket is deleted, and who waits behind it asks by itself."""
    origin = Origin(held=(held := asyncio.Event()))
    made = probe(origin)
    async with asyncio.TaskGroup() as group:
        first, _ = (group.create_task(made.check(REQUEST)) for _ in range(2))
        await origin.reached.wait()
        first.cancel()
        held.set()

    assert first.cancelled()
    assert origin.buckets == {"b"}
    assert origin.asked.count("PUT") == 2


async def test_an_origin_that_fails_is_not_taken_for_one_that_refuses() -> None:
    """A 503 says nothing of rights."""
    made = probe(Origin(made_status=503))

    with pytest.raises(OriginUnavailableError):
        await made.check(REQUEST)
