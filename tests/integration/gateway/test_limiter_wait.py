"""What waited for the limiter in front of the origin says so, and whose request it is reaches the limiter."""

import pytest

from gateway.respond import with_wait
from storage.stats import asking_client, charge_limiter
from storage.types import ObjectName, RangeSpec
from tests.fakes.engine import FakeOpenObject
from tests.fakes.gateway import ACCESS_KEY, RunningGateway


def test_wait_is_said_beside_the_reason_that_stands_there() -> None:
    """A reason is kept; without one the wait is the whole of it."""
    plain = with_wait((("x-cache", "MISS"),), 1.25)
    beside = with_wait((("x-cache-reason", "validated"), ("etag", "e")), 0.5)

    assert plain == (("x-cache", "MISS"), ("x-cache-reason", "waited 1.2 s for the limiter"))
    assert beside == (("etag", "e"), ("x-cache-reason", "validated; waited 0.5 s for the limiter"))


@pytest.mark.parametrize(("waited_s", "reason"), [(0.05, None), (0.75, "waited 0.8 s for the limiter")])
async def test_answer_that_waited_says_how_long(
    gateway: RunningGateway, monkeypatch: pytest.MonkeyPatch, waited_s: float, reason: str | None
) -> None:
    """x-cache-reason names a wait that is worth a word, the access log each; the client is the key and its machine."""
    gateway.store.put("bucket", "key", b"x")
    asked = gateway.store.open_object
    clients: list[str] = []

    async def waiting(
        name: ObjectName, wanted: RangeSpec | None = None, *, metadata_only: bool = False
    ) -> FakeOpenObject:
        clients.append(asking_client())
        charge_limiter(waited_s)
        return await asked(name, wanted, metadata_only=metadata_only)

    monkeypatch.setattr(gateway.store, "open_object", waiting)
    connection = await gateway.connect()
    await connection.send(gateway.signed("GET", "/bucket/key"))

    answer = await connection.answer()

    assert answer.headers.get("x-cache-reason") == reason
    assert clients == [f"{ACCESS_KEY}@127.0.0.1"]
    assert [entry.limiter_s for entry in await gateway.log()] == [waited_s]
