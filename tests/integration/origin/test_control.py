"""The control lane against the fake origin over the loopback."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from storage.clock import SystemClock
from storage.errors import (
    BucketNotEmptyError,
    NoSuchBucketError,
    OriginError,
    OriginRefusedError,
    OriginSuspendedError,
    OriginThrottledError,
    OriginUnavailableError,
)
from storage.origin.admission import Limiter
from storage.origin.control import ControlLane
from storage.origin.endpoint import OriginSettings, Regions
from storage.origin.facts import FactsSource
from storage.origin.limiter import Budget, Demand, LimiterSettings
from storage.types import Priority
from tests.fakes.origin_faults import Fault
from tests.fakes.origin_server import FakeOrigin
from tests.fakes.rotating_credentials import Rotating


class CountingLimiter(Limiter):
    """A limiter that counts whom it lets in."""

    admitted = 0

    async def enter(self, priority: Priority, bytes_hint: int, budget: Budget, bucket: str) -> Demand:
        """Count, and do as others."""
        self.admitted += 1
        return await super().enter(priority, bytes_hint, budget, bucket)


@asynccontextmanager
async def lane(*access_keys: str) -> AsyncIterator[tuple[FakeOrigin, ControlLane, CountingLimiter]]:
    """Start an origin with a bucket, and a control lane to it."""
    async with FakeOrigin() as origin:
        origin.store.create_bucket("data")
        origin.keys = dict.fromkeys(access_keys or ("AK",), "secret")
        limiter = CountingLimiter(LimiterSettings(), SystemClock())
        control = ControlLane(
            OriginSettings(origin.url, connect_s=1.0, answer_s=0.5),
            limiter=limiter,
            credentials=Rotating(*(access_keys or ("AK",))),
            regions=Regions("us-east-1"),
        )
        async with control:
            yield origin, control, limiter
        assert limiter.in_flight == 0, "each call gives its slot back"


async def test_buckets_are_made_listed_and_removed() -> None:
    """Create, list, locate and delete do what they say, in a region too."""
    async with lane() as (origin, control, _):
        await control.create_bucket("far", "eu-west-1")
        await control.create_bucket("near")
        names = [bucket.name for bucket in await control.list_buckets()]
        places = [await control.get_bucket_location(name) for name in ("far", "near")]
        await control.delete_bucket("near")

        assert names == ["data", "far", "near"]
        assert places == ["eu-west-1", "us-east-1"]
        assert sorted(origin.store.buckets) == ["data", "far"]


async def test_facts_come_from_the_documents() -> None:
    """A plain, a KMS and a versioned bucket are told apart by what the origin says."""
    async with lane() as (origin, control, _):
        origin.store.create_bucket("kms", encryption="aws:kms")
        origin.store.create_bucket("versions", versioning="Enabled")
        origin.store.create_bucket("sse", encryption="AES256").has_object_lock = False
        origin.store.create_bucket("lock").has_object_lock = True
        source = FactsSource(control, SystemClock())

        facts = [await source.ask(name) for name in ("data", "kms", "versions", "sse", "lock", "nowhere")]

        assert [fact.exists for fact in facts] == [True, True, True, True, True, False]
        assert [fact.default_encryption for fact in facts] == ["", "aws:kms", "", "AES256", "", ""]
        assert [fact.is_versioned for fact in facts] == [False, False, True, False, False, False]
        assert [fact.has_object_lock for fact in facts] == [False, False, False, False, True, False]


async def test_region_of_a_bucket_elsewhere_is_learnt() -> None:
    """A bucket in another region is asked again there, once."""
    async with lane() as (origin, control, limiter):
        origin.checks_region = True
        origin.store.create_bucket("far", region="eu-west-1", versioning="Enabled")

        first = await control.get_bucket_versioning("far")
        second = await control.get_bucket_versioning("far")

        assert (first, second) == ("Enabled", "Enabled")
        assert origin.requests == {"GetBucketVersioning": 3}
        assert limiter.admitted == 3


async def test_region_that_only_a_head_tells_is_asked_for_behind_the_limiter() -> None:
    """B56: each request has its ticket, that for the region too; the next call knows it."""
    async with lane() as (origin, control, limiter):
        origin.store.create_bucket("far", region="me-south-1", versioning="Enabled")
        origin.faults.add(
            Fault(operation="GetBucketVersioning", status=400, code="IllegalLocationConstraintException")
        )

        answers = [await control.get_bucket_versioning("far") for _ in range(2)]

        assert answers == ["Enabled", "Enabled"]
        assert origin.requests == {"GetBucketVersioning": 3, "HeadBucket": 1}
        assert limiter.admitted == 4


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_redirect_to_another_place_is_not_followed(status: int) -> None:
    """A Location is followed by nobody: what we sign is for the origin that is set. It is told as what it is."""
    async with FakeOrigin() as elsewhere, lane() as (origin, control, limiter):
        elsewhere.store.create_bucket("data", versioning="Enabled")
        location = {"location": f"{elsewhere.url}/data?versioning"}
        origin.faults.add(
            Fault(operation="GetBucketVersioning", status=status, code="Moved", headers=location, times=-1)
        )

        with pytest.raises(OriginError) as refused:
            await control.get_bucket_versioning("data")

        assert refused.value.status == status
        assert elsewhere.requests == {}
        assert sum(origin.requests.values()) == limiter.admitted


async def test_connection_that_broke_is_replaced_once_behind_the_limiter() -> None:
    """B57: what is idle for long dies; the one repetition is a request like any other, and a lasting failure is told."""
    async with lane() as (origin, control, limiter):
        origin.faults.add(Fault(drop="before"))
        answer = await control.get_bucket_versioning("data")
        origin.faults.add(Fault(drop="before", times=-1))
        with pytest.raises(OriginUnavailableError):
            await control.get_bucket_versioning("data")

        assert answer == ""
        assert origin.requests == {"GetBucketVersioning": 4}
        assert limiter.admitted == 4


async def test_expired_credentials_are_renewed() -> None:
    """ExpiredToken asks for others, and the call goes on with them (B59)."""
    async with lane("OLD", "NEW") as (origin, control, _):
        origin.expired = {"OLD"}

        assert await control.get_bucket_versioning("data") == ""
        assert origin.requests_of("GetBucketVersioning") == 2


async def test_answer_that_never_ends_is_given_up() -> None:
    """An origin that says a byte now and then does not hold a slot for ever."""
    async with lane() as (origin, control, limiter):
        origin.faults.add(Fault(operation="ListBuckets", body="<x>" * 4000, body_bytes_per_s=20.0))

        with pytest.raises(OriginUnavailableError) as late:
            await control.list_buckets()

        assert late.value.code == "Timeout"
        assert limiter.in_flight == 0


async def test_refusals_have_their_classes() -> None:
    """Missing, denied, not configured: each as the data lane says it."""
    async with lane() as (origin, control, _):
        origin.store.denied = {"GetBucketVersioning"}
        with pytest.raises(NoSuchBucketError):
            await control.head_bucket("nowhere")
        with pytest.raises(NoSuchBucketError):
            await control.get_bucket_encryption("nowhere")
        with pytest.raises(OriginSuspendedError):
            await control.get_bucket_versioning("data")
        with pytest.raises(OriginRefusedError) as refused:
            await control.get_bucket_encryption("data")

        assert refused.value.code == "ServerSideEncryptionConfigurationNotFoundError"


async def test_bucket_with_objects_is_not_deleted() -> None:
    """409 BucketNotEmpty has its own class."""
    async with lane() as (origin, control, _):
        origin.store.put("data", "k", b"abc")

        with pytest.raises(BucketNotEmptyError):
            await control.delete_bucket("data")


async def test_throttle_is_not_retried_by_aiobotocore() -> None:
    """One request, one SlowDown, one report to the limiter (B56)."""
    async with lane() as (origin, control, limiter):
        origin.faults.add(Fault(status=503, code="SlowDown", times=-1))

        with pytest.raises(OriginThrottledError):
            await control.list_buckets()

        assert origin.requests_of("ListBuckets") == 1
        assert limiter.throttled_total == 1


@pytest.mark.parametrize(
    ("fault", "code"), [(Fault(delay_s=20.0), "Timeout"), (Fault(drop="before", times=2), "Connection")]
)
async def test_no_answer_is_unavailable(fault: Fault, code: str) -> None:
    """Silence and a cut connection are the origin's absence, not a refusal."""
    async with lane() as (origin, control, _):
        origin.faults.add(fault)

        with pytest.raises(OriginUnavailableError) as away:
            await control.list_buckets()

        assert away.value.code == code


@pytest.mark.parametrize(
    ("operation", "problem"),
    [("convert", ValueError("odd")), ("convert", KeyError("missing")), ("cast", RuntimeError("no parser"))],
)
async def test_answer_is_bad_when_reading_it_fails(
    monkeypatch: pytest.MonkeyPatch, operation: str, problem: Exception
) -> None:
    """Whatever our reading of an answer, or aiobotocore's, trips over is the answer's fault."""

    def trip(*_: object) -> None:
        raise problem

    async with lane() as (_, control, _limiter):
        target = (
            "storage.origin.control.msgspec.convert"
            if operation == "convert"
            else "storage.origin.control.cast"
        )
        monkeypatch.setattr(target, trip)

        with pytest.raises(OriginUnavailableError) as bad:
            await control.list_buckets()

        assert bad.value.code == "BadAnswer"
