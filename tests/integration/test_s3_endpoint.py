"""The blocking S3 client of the commands, over the tests' own origin, which checks signatures with botocore."""

from collections.abc import AsyncIterator

import pytest

from gateway.s3_endpoint import EndpointError, KeyRing, S3Endpoint
from storage.clock import SystemClock
from storage.origin.credentials import Credentials, StaticCredentials
from storage.origin.endpoint import OriginSettings
from tests.fakes.gateway import in_thread
from tests.fakes.origin_faults import Fault
from tests.fakes.origin_server import FakeOrigin

KEYS = Credentials("access", "secret")


@pytest.fixture
async def origin() -> AsyncIterator[FakeOrigin]:
    """An origin that checks signatures, with one bucket."""
    async with FakeOrigin() as running:
        running.keys = {"access": "secret"}
        running.store.create_bucket("data")
        yield running


def endpoint(origin: FakeOrigin, *, answer_s: float = 5.0, region: str = "us-east-1") -> S3Endpoint:
    """Make a client."""
    settings = OriginSettings(origin.url, region, answer_s=answer_s)
    return S3Endpoint(settings, lambda: KEYS, SystemClock())


async def test_what_is_put_is_read_back_with_its_metadata(origin: FakeOrigin) -> None:
    """Bodies, headers and keys that need encoding go both ways, signed."""
    client, key = endpoint(origin), "a b/ü+%/?&=.bin"

    def round_trip() -> tuple[int, int, bytes, str, int]:
        put = client.call("PUT", "data", key, headers={"x-amz-meta-a": "1"}, body=b"body")
        head, pieces = client.stream("data", key)
        body = b"".join(pieces)
        gone = client.call("DELETE", "data", key).status
        return put.status, head.status, body, head.headers["x-amz-meta-a"], gone

    assert await in_thread(round_trip) == (200, 200, b"body", "1", 204)
    assert origin.connections <= 1
    client.close()


async def test_a_refusal_is_an_answer_with_its_code(origin: FakeOrigin) -> None:
    """Any status is told; an error inside a 200 is no success."""
    client = endpoint(origin)
    missing = await in_thread(client.call, "GET", "data", "none")
    origin.faults.add(Fault(operation="CopyObject", error_in_200="InternalError"))
    origin.store.put("data", "k", b"x")
    headers = {"x-amz-copy-source": "data/k"}
    late = await in_thread(client.call, "PUT", "data", "copy", headers=headers)

    assert (missing.status, missing.code, missing.is_success) == (404, "NoSuchKey", False)
    assert (late.status, late.code, late.is_success) == (200, "InternalError", False)
    client.close()


async def test_a_listing_is_read_page_by_page(origin: FakeOrigin) -> None:
    """All keys under the prefix, in order, over more than one page."""
    for number in range(1203):
        origin.store.put("data", f"p/{number:04}", b"x")
    origin.store.put("data", "q", b"x")
    client = endpoint(origin)

    found = await in_thread(lambda: [one.key for one in client.listing("data", "p/")])

    assert found == [f"p/{number:04}" for number in range(1203)]
    assert origin.requests_of("ListObjectsV2") == 2
    client.close()


async def test_a_cut_connection_is_an_error_and_the_next_request_has_a_new_one(origin: FakeOrigin) -> None:
    """A write is never repeated; a read is once, where its connection had been idle."""
    client = endpoint(origin)
    origin.store.put("data", "k", b"x")
    await in_thread(client.call, "HEAD", "data", "k")
    origin.cut_idle_connections()
    read = await in_thread(client.call, "HEAD", "data", "k")
    origin.faults.add(Fault(operation="PutObject", drop="after"))

    with pytest.raises(EndpointError, match=r"broke off: [A-Z][a-z ]+$") as raised:
        await in_thread(client.call, "PUT", "data", "k", body=b"new")

    assert read.status == 200
    assert not raised.value.may_land
    assert origin.requests_of("PutObject") == 1
    assert (await in_thread(client.call, "HEAD", "data", "k")).status == 200
    client.close()


async def test_silence_is_an_error_that_may_still_land(origin: FakeOrigin) -> None:
    """Whoever sat on a request may carry it out later."""
    client = endpoint(origin, answer_s=0.1)
    origin.faults.add(Fault(operation="PutObject", delay_s=0.5))

    with pytest.raises(EndpointError, match=r"does not answer: timed out$") as raised:
        await in_thread(client.call, "PUT", "data", "k", body=b"x")

    assert raised.value.may_land


async def test_a_short_body_is_never_taken_for_the_whole(origin: FakeOrigin) -> None:
    """The iterator raises where the head promised more."""
    origin.store.put("data", "k", b"0123456789")
    origin.faults.add(Fault(operation="GetObject", cut_body_at=4))
    client = endpoint(origin)

    with pytest.raises(EndpointError, match="broke off"):
        await in_thread(lambda: b"".join(client.stream("data", "k")[1]))
    origin.faults.add(Fault(operation="GetObject", cut_body_at=4))
    with pytest.raises(
        EndpointError, match=r"broke off: (after 4 bytes, 6 before the end|Connection reset by peer)$"
    ):
        await in_thread(client.call, "GET", "data", "k")


async def test_the_region_of_a_bucket_is_learnt(origin: FakeOrigin) -> None:
    """A bucket elsewhere is asked for again with its own region, and from then on at once."""
    origin.checks_region = True
    origin.store.create_bucket("far", region="eu-west-1")
    client = endpoint(origin)

    first = await in_thread(client.call, "GET", "far", query=(("list-type", "2"),))
    second = await in_thread(client.call, "GET", "far", query=(("list-type", "2"),))

    assert (first.status, second.status) == (200, 200)
    assert origin.requests_of("ListObjectsV2") == 3
    client.close()


class HandClock(SystemClock):
    """A clock that stands still."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic_s(self) -> float:
        return self.now_s


class CountedKeys(StaticCredentials):
    """Keys that count how often they are asked for."""

    asked = 0

    async def credentials(self) -> Credentials:
        self.asked += 1
        return await super().credentials()


def test_keys_are_asked_for_again_after_some_minutes() -> None:
    """A long run outlives the keys that it began with."""
    clock, source = HandClock(), CountedKeys(KEYS)
    ring = KeyRing(source, clock)
    ring()
    ring()
    clock.now_s = 301.0
    ring()

    assert source.asked == 2
