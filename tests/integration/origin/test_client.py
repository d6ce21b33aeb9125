"""The data lane against the fake origin over the loopback: each operation, and each way in which an origin fails."""

import asyncio
import base64
import hashlib
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from storage.clock import SystemClock
from storage.errors import (
    NoSuchBucketError,
    NoSuchKeyError,
    NoSuchUploadError,
    ObjectChangedError,
    OriginRefusedError,
    OriginSuspendedError,
    OriginThrottledError,
    OriginUnavailableError,
    OverloadedError,
    StorageError,
)
from storage.origin.admission import Limiter
from storage.origin.answers import OriginAnswer, WriteAnswer
from storage.origin.client import OriginClient
from storage.origin.documents import PageRequest, PartToComplete
from storage.origin.endpoint import OriginSettings
from storage.origin.limiter import Budget, Demand, LimiterSettings
from storage.origin.multipart import PartTarget
from storage.origin.wire import OutgoingBody
from storage.types import MIB, ByteRange, Checksum, ChecksumAlgorithm, ObjectName, Priority, RangeSpec
from tests.fakes.origin_faults import Fault
from tests.fakes.origin_server import FakeOrigin
from tests.fakes.rotating_credentials import Rotating

NAME = ObjectName("data", "robots/r2 d2+ü.bin")
BODY = bytes(range(256)) * 4000


class ImpatientClock(SystemClock):
    """Notes how long to wait, and does not; `offset_s` puts the wall clock wrong."""

    def __init__(self) -> None:
        self.slept: list[float] = []
        self.offset_s = 0.0

    def wall_s(self) -> float:
        return super().wall_s() + self.offset_s

    async def sleep(self, wait_s: float) -> None:
        self.slept.append(wait_s)


class StoppableLimiter(Limiter):
    """A limiter that can be told to turn everybody away."""

    is_full = False

    async def enter(self, priority: Priority, bytes_hint: int, budget: Budget, bucket: str) -> Demand:
        if self.is_full:
            raise OverloadedError("full")
        return await super().enter(priority, bytes_hint, budget, bucket)


class Lane:
    """A client with all that belongs to it."""

    def __init__(self, origin: FakeOrigin, credentials: Rotating, settings: OriginSettings) -> None:
        self.origin = origin
        self.clock = ImpatientClock()
        self.limiter = StoppableLimiter(LimiterSettings(), self.clock)
        self.client = OriginClient(
            settings, limiter=self.limiter, credentials=credentials, clock=self.clock, rng=random.Random(7)
        )

    async def read(self, wanted: ByteRange | RangeSpec | None = None, if_match: str = "") -> bytes:
        async with self.client.get_object(NAME, wanted, if_match=if_match) as answer:
            return b"".join([chunk async for chunk in answer.chunks()])


@asynccontextmanager
async def lane(*access_keys: str, answer_s: float = 5.0, stall_s: float = 5.0) -> AsyncIterator[Lane]:
    """Start an origin with a bucket, and a client of it."""
    async with FakeOrigin() as origin:
        origin.store.create_bucket("data")
        origin.keys = dict.fromkeys(access_keys or ("AK",), "secret")
        settings = OriginSettings(
            origin.url,
            connect_s=min(answer_s, 1.0),
            answer_s=answer_s,
            stall_s=stall_s,
            read_attempts=4 if answer_s > 1.0 else 2,
        )
        made = Lane(origin, Rotating(*(access_keys or ("AK",))), settings)
        async with made.client:
            yield made
        assert made.limiter.in_flight == 0, "each call gives its slot back"


def body_of(data: bytes, *, is_repeatable: bool = True, with_digests: bool = True) -> OutgoingBody:
    """Make a body that streams in pieces."""

    async def content() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 100_000):
            yield data[start : start + 100_000]

    md5 = base64.b64encode(hashlib.md5(data).digest()).decode() if with_digests else ""
    sha256 = hashlib.sha256(data).hexdigest() if with_digests else ""
    return OutgoingBody(len(data), content, is_repeatable, md5, sha256)


# --- Reads ---------------------------------------------------------------------------------------------------------------


async def test_get_gives_object_and_bytes() -> None:
    """A GET describes the whole object and streams it, signed as botocore signs, key untouched."""
    async with lane() as made:
        stored = made.origin.store.put("data", NAME.key, BODY, content_type="text/x", x_amz_meta_a="1")

        async with made.client.get_object(NAME) as answer:
            chunks = [chunk async for chunk in answer.chunks()]

        assert b"".join(chunks) == BODY
        assert max(map(len, chunks)) <= 256 * 1024
        assert (answer.object.size, answer.object.etag) == (len(BODY), stored.etag)
        assert answer.object.headers == (("content-type", "text/x"),)
        assert answer.object.user_metadata == (("a", "1"),)
        assert answer.object.checksums[0].algorithm is ChecksumAlgorithm.CRC64NVME
        assert made.client.counters.requests == {("GetObject", "200"): 1}
        assert made.client.counters.bytes_in == len(BODY)


@pytest.mark.parametrize(
    ("wanted", "start", "stop"),
    [
        (ByteRange(100, 300), 100, 300),
        (ByteRange(len(BODY) - 10, len(BODY) + 10), len(BODY) - 10, len(BODY)),
        (RangeSpec(suffix=5), len(BODY) - 5, len(BODY)),
        (RangeSpec(start=len(BODY) - 7), len(BODY) - 7, len(BODY)),
    ],
)
async def test_get_gives_a_range(wanted: ByteRange | RangeSpec, start: int, stop: int) -> None:
    """Each form of range gives its bytes and says where they lie."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, BODY)

        async with made.client.get_object(NAME, wanted) as answer:
            got = b"".join([chunk async for chunk in answer.chunks()])

        assert got == BODY[start:stop]
        assert answer.byte_range == ByteRange(start, stop)
        assert answer.object.size == len(BODY)


async def test_get_keeps_gzip_as_it_is_stored() -> None:
    """Bytes labelled gzip come back as they are, whatever they are (B06)."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"not gzip at all", content_encoding="gzip")

        assert await made.read() == b"not gzip at all"


async def test_get_of_nothing_is_empty() -> None:
    """An empty object is an answer of no chunks."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"")

        assert await made.read() == b""


async def test_get_behind_the_end_is_refused() -> None:
    """416 comes as the origin said it."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc")

        with pytest.raises(OriginRefusedError) as refused:
            await made.read(ByteRange(3, 4))

        assert (refused.value.status, refused.value.code) == (416, "InvalidRange")


async def test_get_with_another_etag_is_changed() -> None:
    """If-Match that fails says that the object changed."""
    async with lane() as made:
        stored = made.origin.store.put("data", NAME.key, b"abc")

        assert await made.read(if_match=stored.etag) == b"abc"
        with pytest.raises(ObjectChangedError):
            await made.read(if_match="0" * 32)


async def test_get_from_an_origin_that_ignores_if_match_is_changed() -> None:
    """An answer with another ETag than asked for is not used."""
    async with lane() as made:
        stored = made.origin.store.put("data", NAME.key, b"abc")
        made.origin.faults.add(Fault(etag="f" * 32))

        with pytest.raises(ObjectChangedError):
            await made.read(if_match=stored.etag)


async def test_validation_tells_not_modified() -> None:
    """A conditional GET or HEAD of the current version has no body and no object."""
    async with lane() as made:
        stored = made.origin.store.put("data", NAME.key, b"abc")

        async with made.client.get_object(NAME, if_none_match=stored.etag) as answer:
            chunks = [chunk async for chunk in answer.chunks()]
        described = await made.client.head_object(NAME, if_none_match=stored.etag)

        assert (answer.not_modified, chunks, described) == (True, [], None)


async def test_head_describes() -> None:
    """HEAD gives what GET gives, without the bytes."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, BODY, x_amz_storage_class="STANDARD_IA")

        described = await made.client.head_object(NAME)

        assert described is not None
        assert (described.size, described.storage_class) == (len(BODY), "STANDARD_IA")


async def test_missing_things_are_named() -> None:
    """A missing key and a missing bucket are told apart where there is a document."""
    async with lane() as made:
        with pytest.raises(NoSuchKeyError):
            await made.read()
        with pytest.raises(NoSuchKeyError):
            await made.client.head_object(NAME)
        with pytest.raises(NoSuchBucketError):
            await made.client.list_objects_v2(PageRequest("nowhere"))

        assert made.client.counters.retries_total == 0


@pytest.mark.parametrize("cut", [0, 1, 500_000, len(BODY) - 1])
async def test_short_body_is_an_error(cut: int) -> None:
    """A body that ends early raises after its prefix; it never looks whole (B14)."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, BODY)
        made.origin.faults.add(Fault(cut_body_at=cut))
        got = bytearray()

        async def take(answer: OriginAnswer) -> None:
            async for chunk in answer.chunks():
                got.extend(chunk)

        async with made.client.get_object(NAME) as answer:
            with pytest.raises(OriginUnavailableError) as broken:
                await take(answer)

        assert broken.value.code == "Incomplete"
        assert str(broken.value) == f"the origin's answer ended after {len(got)} of {len(BODY)} bytes"
        assert bytes(got) == BODY[: len(got)]
        assert len(got) <= cut


async def test_lie_about_the_length_is_an_error() -> None:
    """A body shorter than its Content-Length, cut or not, raises."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc")
        made.origin.faults.add(Fault(content_length=10))

        with pytest.raises(OriginUnavailableError) as broken:
            await made.read()

        assert broken.value.code == "Incomplete"


async def test_wrong_content_range_is_asked_again() -> None:
    """An answer to another question is dropped unread, and the read retried."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, BODY)
        made.origin.faults.add(Fault(content_range=f"bytes 1-10/{len(BODY)}"))

        assert await made.read(ByteRange(0, 10)) == BODY[:10]
        assert made.origin.requests_of("GetObject") == 2


async def test_wrong_content_range_for_ever_is_an_error() -> None:
    """Tries are bounded, and what stays wrong is told."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, BODY)
        made.origin.faults.add(Fault(content_range=f"bytes 1-10/{len(BODY)}", times=-1))

        with pytest.raises(OriginUnavailableError) as refused:
            await made.read(ByteRange(0, 10))

        assert refused.value.code == "BadAnswer"
        assert made.origin.requests_of("GetObject") == 4


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_read_is_retried_with_jitter(status: int) -> None:
    """A 5xx to a read is tried again after a drawn wait; the last one is told."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc")
        made.origin.faults.add(Fault(status=status, code="Busy", times=2))

        assert await made.read() == b"abc"
        assert len(made.clock.slept) == 2
        assert 0.0 <= made.clock.slept[0] < 0.1
        assert 0.0 <= made.clock.slept[1] < 0.2


async def test_throttle_slows_down_and_is_told() -> None:
    """SlowDown makes the limiter slower, waits for Retry-After, and ends as OriginThrottledError (B56)."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc")
        made.origin.faults.add(Fault(status=503, code="SlowDown", times=-1, retry_after_s=0))

        with pytest.raises(OriginThrottledError):
            await made.read()

        assert made.origin.requests_of("GetObject") == 4
        assert made.limiter.throttled_total == 4
        assert made.limiter.rate_limit_per_s is not None


async def test_retries_end_with_the_budget() -> None:
    """Many failing reads share one budget: ten retries for all of them, not three for each."""
    async with lane() as made:
        made.origin.faults.add(Fault(status=500, times=-1))

        for _ in range(20):
            with pytest.raises(OriginUnavailableError):
                await made.client.head_object(NAME)

        assert 30 <= made.origin.requests_of("HeadObject") <= 33


async def test_idle_connection_is_replaced_at_once() -> None:
    """A connection that died in the pool costs one silent retry, without waiting and without budget (B57)."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc")
        await made.read()
        made.origin.faults.add(Fault(drop="before"))

        assert await made.read() == b"abc"
        assert made.clock.slept == [0.0]
        assert made.client.counters.requests["GetObject", "connection"] == 1


async def test_reset_idle_connections_are_not_noticed() -> None:
    """An origin that reset its idle connections is simply connected to again."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc")
        await made.read()

        made.origin.cut_idle_connections()

        assert await made.read() == b"abc"


async def test_no_answer_in_time_is_a_timeout() -> None:
    """An origin that is silent is given up, and what may be in flight goes down."""
    async with lane(answer_s=0.05) as made:
        made.origin.faults.add(Fault(delay_s=20.0, times=-1))

        with pytest.raises(OriginUnavailableError) as late:
            await made.client.head_object(NAME)

        assert late.value.code == "Timeout"
        assert made.client.counters.requests == {("HeadObject", "timeout"): 2}
        assert made.limiter.concurrency_limit == 3


async def test_write_without_an_answer_in_time_is_unknown() -> None:
    """A put that was sent and not answered is given up once, outcome unknown."""
    async with lane(answer_s=0.05) as made:
        made.origin.faults.add(Fault(delay_s=20.0, times=-1))

        with pytest.raises(OriginUnavailableError) as late:
            await made.client.put_object(NAME, (), body_of(b"abc"))

        assert (late.value.code, late.value.outcome_unknown) == ("Timeout", True)
        assert made.origin.requests_of("PutObject") == 1


async def test_stalled_body_is_a_timeout() -> None:
    """A body that stops is given up after stall_s; what came is a prefix."""
    async with lane(stall_s=0.1) as made:
        made.origin.store.put("data", NAME.key, BODY)
        made.origin.faults.add(Fault(body_bytes_per_s=1.0))

        with pytest.raises(OriginUnavailableError) as stalled:
            await asyncio.wait_for(made.read(), 10)

        assert stalled.value.code == "Timeout"


async def test_slow_body_is_no_timeout() -> None:
    """Time-outs bound pauses, not the whole transfer."""
    async with lane(stall_s=0.3) as made:
        made.origin.store.put("data", NAME.key, BODY[:20_000])
        made.origin.faults.add(Fault(body_bytes_per_s=20_000.0))

        assert await made.read() == BODY[:20_000]


async def test_nobody_listening_is_unavailable() -> None:
    """A refused connection is told as such; nothing was sent, so a write's outcome is known."""
    async with lane() as made:
        client = OriginClient(
            OriginSettings("http://127.0.0.1:9"),
            limiter=made.limiter,
            credentials=Rotating("AK"),
            clock=made.clock,
            rng=random.Random(1),
        )
        async with client:
            with pytest.raises(OriginUnavailableError) as refused:
                await client.put_object(NAME, (), body_of(b"abc"))

        assert refused.value.code == "Connection"
        assert str(refused.value) == "no connection to the origin: Connection refused"
        assert refused.value.outcome_unknown is False


async def test_left_answer_cuts_its_connection() -> None:
    """Whoever leaves a body unread does not wait for its end, and the lane goes on."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, BODY * 20)

        async with made.client.get_object(NAME) as answer:
            await anext(aiter(answer.chunks()))

        assert made.limiter.in_flight == 0
        assert await made.read(ByteRange(0, 3)) == BODY[:3]


async def test_tls_origin_is_reached_with_its_authority_only(tmp_path: Path) -> None:
    """HTTPS works with the CA bundle of the settings; a certificate nobody vouches for is no connection."""
    bundle, tls = certificate(tmp_path)
    async with FakeOrigin(tls=tls) as origin, lane() as made:
        origin.store.create_bucket("data")
        trusting, doubting = (
            OriginClient(
                OriginSettings(origin.url, ca_bundle=ca_bundle, read_attempts=1),
                limiter=made.limiter,
                credentials=Rotating("AK"),
                clock=made.clock,
                rng=random.Random(1),
            )
            for ca_bundle in (str(bundle), "")
        )

        async with trusting:
            await trusting.put_object(NAME, (), body_of(BODY, with_digests=False))
        async with doubting:
            with pytest.raises(OriginUnavailableError) as refused:
                await doubting.head_object(NAME)

        assert origin.store.body("data", NAME.key) == BODY
        assert origin.log[0].headers["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD"
        assert refused.value.code == "Connection"
        assert "certificate verify failed" in str(refused.value)
        assert "ssl" not in str(refused.value).lower()


def certificate(directory: Path) -> tuple[Path, ssl.SSLContext]:
    """Make a certificate for the loopback that is its own authority, good for centuries."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "origin")])
    address = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), serial_number=1)
        .not_valid_before(datetime(2020, 1, 1, tzinfo=UTC))
        .not_valid_after(datetime(2999, 1, 1, tzinfo=UTC))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    bundle, secret = directory / "ca.pem", directory / "key.pem"
    bundle.write_bytes(made.public_bytes(Encoding.PEM))
    secret.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(bundle, secret)
    return bundle, tls


# --- Remedies ------------------------------------------------------------------------------------------------------------


async def test_expired_token_is_renewed_once() -> None:
    """ExpiredToken asks the credential source for others and goes on with them (B59)."""
    async with lane("OLD", "NEW") as made:
        made.origin.expired = {"OLD"}

        answer = await made.client.put_object(NAME, (), body_of(b"abc"))

        assert answer.etag == hashlib.md5(b"abc").hexdigest()
        assert made.origin.requests_of("PutObject") == 2
        assert answer.is_earlier_unknown is False


async def test_expired_token_without_others_suspends() -> None:
    """Where there are no other keys the refusal is told, after one request."""
    async with lane("OLD") as made:
        made.origin.expired = {"OLD"}

        with pytest.raises(OriginSuspendedError) as refused:
            await made.read()

        assert refused.value.code == "ExpiredToken"
        assert made.origin.requests_of("GetObject") == 1


async def test_skewed_clock_is_learnt() -> None:
    """RequestTimeTooSkewed teaches the offset; the same call and all later ones are right."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc")
        made.clock.offset_s = -7200.0

        first = await made.read()
        second = await made.read()

        assert (first, second) == (b"abc", b"abc")
        assert made.origin.requests_of("GetObject") == 3


async def test_region_is_learnt_and_kept() -> None:
    """A bucket elsewhere is found by the region that the refusal names, once."""
    async with lane() as made:
        made.origin.checks_region = True
        made.origin.store.create_bucket("far", region="eu-west-1")
        name = ObjectName("far", "k")

        await made.client.put_object(name, (), body_of(b"abc"))
        described = await made.client.head_object(name)

        assert described is not None
        assert made.client.regions.of("far") == "eu-west-1"
        assert made.origin.requests_of("PutObject") == 2
        assert made.origin.requests_of("HeadObject") == 1


async def test_one_shot_body_is_not_sent_again() -> None:
    """A body that cannot be repeated is refused with what was learnt kept for the next."""
    async with lane("OLD", "NEW") as made:
        made.origin.expired = {"OLD"}

        with pytest.raises(OriginSuspendedError):
            await made.client.put_object(NAME, (), body_of(b"abc", is_repeatable=False))
        await made.client.put_object(NAME, (), body_of(b"abc", is_repeatable=False))

        assert made.origin.requests_of("PutObject") == 2


# --- Writes --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, 99_999, 3 * MIB])
@pytest.mark.parametrize("with_digests", [True, False])
async def test_put_stores_what_was_given(size: int, with_digests: bool) -> None:
    """Bytes, headers, metadata, tags and checksum arrive; ETag and checksum come back."""
    data = BODY[:1] * size
    headers = (("content-type", "text/x"), ("x-amz-meta-a", "1"), ("x-amz-tagging", "t=1"))
    async with lane() as made:
        answer = await made.client.put_object(NAME, headers, body_of(data, with_digests=with_digests))

        stored = made.origin.store.buckets["data"].objects[NAME.key]
        assert stored.body == data
        assert stored.headers == {"content-type": "text/x", "x-amz-meta-a": "1"}
        assert stored.tags == "t=1"
        assert answer.etag == hashlib.md5(data).hexdigest()
        assert made.client.counters.bytes_out == size


async def test_put_has_its_checksum_verified() -> None:
    """A checksum that does not fit is refused by the origin, and nothing is stored."""
    body = body_of(b"abc")
    wrong = OutgoingBody(
        body.size,
        body.content,
        is_repeatable=True,
        checksums=(Checksum(ChecksumAlgorithm.CRC32, "AAAAAA=="),),
    )
    async with lane() as made:
        with pytest.raises(OriginRefusedError) as refused:
            await made.client.put_object(NAME, (), wrong)

        assert refused.value.code == "BadDigest"
        assert made.origin.store.body("data", NAME.key) is None


async def test_put_under_a_condition_is_refused_when_it_fails() -> None:
    """If-None-Match: * of an existing key is 412, with the document to pass on."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"there")

        with pytest.raises(OriginRefusedError) as refused:
            await made.client.put_object(NAME, (), body_of(b"abc"), if_none_match="*")

        assert refused.value.status == 412
        assert b"PreconditionFailed" in refused.value.body


async def test_put_is_not_retried_on_a_5xx() -> None:
    """The flusher orders writes; the client sends each once and says what is known."""
    async with lane() as made:
        made.origin.faults.add(Fault(status=500), Fault(status=503, code="SlowDown"))

        with pytest.raises(OriginUnavailableError) as failed:
            await made.client.put_object(NAME, (), body_of(b"abc"))
        with pytest.raises(OriginThrottledError) as throttled:
            await made.client.put_object(NAME, (), body_of(b"abc"))

        assert failed.value.outcome_unknown is True
        assert throttled.value.outcome_unknown is False
        assert made.origin.requests_of("PutObject") == 2


async def test_put_without_an_answer_is_unknown() -> None:
    """A connection cut after the origin took the object is an unknown outcome, and not sent again."""
    async with lane() as made:
        made.origin.faults.add(Fault(drop="after"))

        with pytest.raises(OriginUnavailableError) as cut:
            await made.client.put_object(NAME, (), body_of(b"abc"))

        assert cut.value.outcome_unknown is True
        assert made.origin.store.body("data", NAME.key) == b"abc"
        assert made.origin.requests_of("PutObject") == 1


async def test_put_on_a_dead_pooled_connection_is_repeated_and_told() -> None:
    """The one repetition of a write says that an earlier attempt may still land."""
    async with lane() as made:
        await made.client.put_object(NAME, (), body_of(b"first"))
        made.origin.faults.add(Fault(drop="after"))

        answer = await made.client.put_object(NAME, (), body_of(b"abc"))

        assert answer.is_earlier_unknown is True
        assert made.origin.requests_of("PutObject") == 3


async def test_unknown_attempt_is_told_when_the_next_is_not_let_through() -> None:
    """A put whose repetition the limiter turns away is still an unknown outcome, not a mere overload."""
    async with lane() as made:
        await made.client.put_object(NAME, (), body_of(b"first"))
        made.origin.faults.add(Fault(drop="after", delay_s=0.05))
        async with asyncio.TaskGroup() as group:
            put = group.create_task(outcome(made.client.put_object(NAME, (), body_of(b"abc"))))
            assert await settled(lambda: made.origin.in_flight == 1)
            made.limiter.is_full = True
        failure = put.result()

        assert isinstance(failure, OriginUnavailableError)
        assert failure.outcome_unknown is True
        assert made.origin.requests_of("PutObject") == 2


async def outcome(call: Awaitable[WriteAnswer]) -> WriteAnswer | StorageError:
    """Give the answer or the error."""
    try:
        return await call
    except StorageError as error:
        return error


@pytest.mark.parametrize("if_none_match", ["", "*"])
async def test_put_that_cannot_be_repeated_is_not(if_none_match: str) -> None:
    """Neither a one-shot body nor a conditional put goes twice over the wire."""
    async with lane() as made:
        await made.client.put_object(ObjectName("data", "other"), (), body_of(b"first"))
        made.origin.faults.add(Fault(drop="before"))

        with pytest.raises(OriginUnavailableError) as cut:
            await made.client.put_object(
                NAME, (), body_of(b"abc", is_repeatable=bool(if_none_match)), if_none_match=if_none_match
            )

        assert cut.value.outcome_unknown is True
        assert made.origin.requests_of("PutObject") == 2


async def test_error_of_the_source_cuts_the_connection() -> None:
    """A body that fails half-way ends as its own error, and the origin gets nothing whole."""

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 500_000
        raise LookupError("the disk is gone")

    async with lane() as made:
        with pytest.raises(LookupError):
            await made.client.put_object(NAME, (), OutgoingBody(1_000_000, broken, is_repeatable=True))

        assert await settled(lambda: made.origin.in_flight == 0)
        assert made.origin.store.body("data", NAME.key) is None


async def settled(is_so: Callable[[], bool]) -> bool:
    """Wait up to a second for the origin to notice."""
    clock = SystemClock()
    for _ in range(100):
        if is_so():
            return True
        await clock.sleep(0.01)
    return False


async def test_source_may_take_its_time() -> None:
    """While the source makes bytes the origin's clock stands: a paced upload is not given up."""

    async def paced() -> AsyncIterator[bytes]:
        yield b"a"
        await SystemClock().sleep(0.4)
        yield b"b"

    async with lane(answer_s=0.2, stall_s=0.2) as made:
        await made.client.put_object(NAME, (), OutgoingBody(2, paced, is_repeatable=False))

        assert made.origin.store.body("data", NAME.key) == b"ab"


async def test_a_crowd_of_slow_uploads_holds_up_neither_reads_nor_other_uploads() -> None:
    """More of them than the origin is let have at first stand still in their middle: who comes goes at once, and all arrive."""
    goes_on, standing = asyncio.Event(), 2 * LimiterSettings().concurrency_start

    async def stopped() -> AsyncIterator[bytes]:
        yield b"a"
        await goes_on.wait()
        yield b"b"

    async with lane(answer_s=60.0) as made, asyncio.TaskGroup() as uploads:
        made.origin.store.put("data", NAME.key, b"here")
        for number in range(standing):
            slow = OutgoingBody(2, stopped, is_repeatable=False)
            uploads.create_task(made.client.put_object(ObjectName("data", f"slow{number}"), (), slow))
        try:
            async with asyncio.timeout(20):
                read = await made.read()
                await made.client.put_object(ObjectName("data", "quick"), (), body_of(b"quick"))
                assert await settled(lambda: made.limiter.in_flight == standing)
        finally:
            goes_on.set()

    assert read == b"here"
    assert made.origin.store.body("data", "quick") == b"quick"
    assert {made.origin.store.body("data", f"slow{number}") for number in range(standing)} == {b"ab"}


@pytest.mark.parametrize("end", ["refused", "cancelled", "failed"])
async def test_an_upload_that_ends_while_it_waits_for_its_client_leaves_no_place_taken(end: str) -> None:
    """Whoever ends it: the origin, its caller, or the source of its body."""
    goes_on = asyncio.Event()

    async def stopped() -> AsyncIterator[bytes]:
        yield b"a"
        await goes_on.wait()
        if end == "failed":
            raise LookupError("the client has gone")
        yield b"b"

    async with lane(answer_s=60.0) as made:
        if end == "refused":
            made.origin.faults.add(Fault(operation="PutObject", status=403, code="AccessDenied"))
        upload = asyncio.get_running_loop().create_task(
            made.client.put_object(NAME, (), OutgoingBody(2, stopped, is_repeatable=False))
        )
        assert await settled(lambda: made.limiter.resting == 1)
        if end == "cancelled":
            upload.cancel()
        else:
            goes_on.set()
        with pytest.raises((LookupError, asyncio.CancelledError, StorageError)):
            await upload

        assert (made.limiter.resting, made.limiter.in_flight) == (0, 0)


async def test_header_that_http_cannot_carry_is_refused() -> None:
    """A line end in a value never reaches the wire."""
    async with lane() as made:
        with pytest.raises(OriginRefusedError) as refused:
            await made.client.put_object(NAME, (("x-amz-meta-a", "b\r\nc: d"),), body_of(b"abc"))

        assert refused.value.code == "InvalidArgument"
        assert made.origin.requests_of("PutObject") == 0


async def test_put_into_a_kms_bucket_has_another_etag() -> None:
    """What the origin answers is told, MD5 or not."""
    async with lane() as made:
        made.origin.store.create_bucket("kms", encryption="aws:kms", versioning="Enabled")

        answer = await made.client.put_object(ObjectName("kms", "k"), (), body_of(b"abc"))

        assert answer.etag != hashlib.md5(b"abc").hexdigest()
        assert answer.version_id.startswith("v")
        assert ("x-amz-server-side-encryption", "aws:kms") in answer.headers


async def test_delete_succeeds_also_for_nothing() -> None:
    """DELETE is done when nothing is there."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc")

        await made.client.delete_object(NAME)
        await made.client.delete_object(NAME)

        assert made.origin.store.etags("data", NAME.key)[1:] == ["", ""]


async def test_conditional_delete_of_nothing_is_told() -> None:
    """The origin's 404 is no success where the delete names an object: it went between a look and the delete."""
    async with lane() as made:
        made.origin.faults.add(Fault(operation="DeleteObject", status=404, code="NoSuchKey", times=2))

        await made.client.delete_object(NAME)
        with pytest.raises(NoSuchKeyError):
            await made.client.delete_object(NAME, headers=(("if-match", '"e"'),))


@pytest.mark.parametrize("kind", ["put", "delete", "copy"])
async def test_conditional_write_is_not_repeated_on_a_dead_connection(kind: str) -> None:
    """Its first attempt may have taken effect and would refute the second; the caller hears that nobody knows."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc")
        await made.client.head_object(NAME)
        made.origin.faults.add(Fault(operation="*", drop="before"))
        condition = (("if-none-match", "*"),)
        attempts = {
            "put": made.client.put_object(NAME, condition, body_of(b"abc")),
            "delete": made.client.delete_object(NAME, headers=condition),
            "copy": made.client.copy_object(NAME, NAME, condition),
        }

        with pytest.raises(OriginUnavailableError) as raised:
            await attempts.pop(kind)

        for unused in attempts.values():
            unused.close()
        assert raised.value.outcome_unknown
        assert len(made.origin.log) == 2


async def test_batch_delete_settles_each_key() -> None:
    """Markup and line ends in keys survive; a key that XML cannot carry goes alone."""
    keys = ("a", "b&<>\r\n", "c\x01")
    async with lane() as made:
        for key in keys:
            made.origin.store.put("data", key, b"abc")

        answer = await made.client.delete_objects("data", keys, priority=Priority.FLUSH)

        assert [(result.key, result.code) for result in answer.results] == [(key, "") for key in keys]
        assert made.origin.store.buckets["data"].objects == {}
        assert (made.origin.requests_of("DeleteObjects"), made.origin.requests_of("DeleteObject")) == (1, 1)


@pytest.mark.parametrize(
    ("codes", "throttled"),
    [
        (("SlowDown", ""), 1),
        (("ServiceUnavailable", "InternalError"), 1),
        (("InternalError", "InternalError"), 0),
        (("AccessDenied", ""), 0),
    ],
)
async def test_lines_that_ask_for_less_slow_the_limiter(codes: tuple[str, str], throttled: int) -> None:
    """SlowDown in a line of a 200 counts as one of the whole request; so does an error document in a 200."""
    lines = "".join(
        f"<Error><Key>{key}</Key><Code>{code}</Code></Error>"
        if code
        else f"<Deleted><Key>{key}</Key></Deleted>"
        for key, code in zip("ab", codes, strict=True)
    )
    async with lane() as made:
        made.origin.faults.add(Fault(operation="DeleteObjects", body=f"<DeleteResult>{lines}</DeleteResult>"))

        answer = await made.client.delete_objects("data", ("a", "b"))

        assert [result.code for result in answer.results] == list(codes)
        assert made.limiter.throttled_total == throttled
        made.origin.faults.add(Fault(operation="DeleteObjects", error_in_200="SlowDown"))
        with pytest.raises(OriginThrottledError):
            await made.client.delete_objects("data", ("a", "b"))
        assert made.limiter.throttled_total == throttled + 1


async def test_batch_delete_goes_singly_where_there_is_no_batch() -> None:
    """An origin without DeleteObjects is asked for it once."""
    async with lane() as made:
        made.origin.store.unsupported = {"DeleteObjects"}
        made.origin.faults.add(Fault(operation="DeleteObject", key="data/b", status=403, code="AccessDenied"))

        first = await made.client.delete_objects("data", ("a", "b"))
        second = await made.client.delete_objects("data", ("a", "b"))

        assert [result.code for result in first.results] == ["", "AccessDenied"]
        assert [result.code for result in second.results] == ["", ""]
        assert made.origin.requests_of("DeleteObjects") == 1


async def test_copy_is_made_at_the_origin() -> None:
    """A copy says what it made, without bytes through us."""
    async with lane() as made:
        stored = made.origin.store.put("data", NAME.key, b"abc")

        answer = await made.client.copy_object(NAME, ObjectName("data", "copy"))

        assert answer.etag == stored.etag
        assert made.origin.store.body("data", "copy") == b"abc"


async def test_copy_with_an_error_inside_its_200_fails() -> None:
    """The status of a copy is not believed (B58)."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc")
        made.origin.faults.add(Fault(operation="CopyObject", error_in_200="InternalError"))

        with pytest.raises(OriginUnavailableError) as failed:
            await made.client.copy_object(NAME, ObjectName("data", "copy"))

        assert failed.value.outcome_unknown is True


async def test_listing_gives_pages() -> None:
    """Keys and prefixes come decoded and in order; start-after goes on behind a key."""
    async with lane() as made:
        for key in ("a b", "a+c", "d/1", "d/2", "e\n"):
            made.origin.store.put("data", key, b"abc")

        whole = await made.client.list_objects_v2(PageRequest("data", delimiter="/"))
        token = (await made.client.list_objects_v2(PageRequest("data", max_keys=3))).next_token
        rest = await made.client.list_objects_v2(PageRequest("data", token=token))
        page = await made.client.list_objects_v2(PageRequest("data", start_after="a b", max_keys=2))
        below = await made.client.list_objects_v2(PageRequest("data", "d/"))

        assert [entry.key for entry in whole.objects] == ["a b", "a+c", "e\n"]
        assert (whole.prefixes, whole.is_truncated) == (("d/",), False)
        assert [entry.key for entry in page.objects] == ["a+c", "d/1"]
        assert page.is_truncated is True
        assert [entry.key for entry in rest.objects] == ["d/2", "e\n"]
        assert [entry.key for entry in below.objects] == ["d/1", "d/2"]


async def test_cut_listing_is_asked_again() -> None:
    """Half a page is never used: the read is retried."""
    async with lane() as made:
        made.origin.store.put("data", "a", b"abc")
        made.origin.faults.add(Fault(operation="ListObjectsV2", cut_body_at=50))

        page = await made.client.list_objects_v2(PageRequest("data"))

        assert [entry.key for entry in page.objects] == ["a"]
        assert made.origin.requests_of("ListObjectsV2") == 2


# --- Uploads -------------------------------------------------------------------------------------------------------------


async def upload(made: Lane, *parts: bytes) -> tuple[str, tuple[PartToComplete, ...]]:
    """Open an upload and send its parts."""
    made.origin.store.part_bytes_min = 1
    upload_id = await made.client.create_multipart_upload(NAME, (("content-type", "text/x"),))
    sent = []
    for number, data in enumerate(parts, start=1):
        answer = await made.client.upload_part(PartTarget(NAME, upload_id, number), body_of(data))
        sent.append(PartToComplete(number, answer.etag))
    return upload_id, tuple(sent)


async def test_upload_becomes_an_object() -> None:
    """Create, parts, copied part, list, complete: the object has all bytes in order."""
    async with lane() as made:
        made.origin.store.put("data", "source", b"0123456789")
        upload_id, sent = await upload(made, b"one", b"two")
        copied = await made.client.upload_part_copy(
            ObjectName("data", "source"),
            PartTarget(NAME, upload_id, 3),
            (("x-amz-copy-source-range", "bytes=2-4"),),
        )
        parts = (*sent, PartToComplete(3, copied.etag))
        page = await made.client.list_parts(NAME, upload_id)
        uploads = await made.client.list_multipart_uploads("data", "robots/")

        answer = await made.client.complete_multipart_upload(NAME, upload_id, parts)

        assert [(part.number, part.size) for part in page.parts] == [(1, 3), (2, 3), (3, 3)]
        assert [(entry.key, entry.upload_id) for entry in uploads.uploads] == [(NAME.key, upload_id)]
        assert answer.etag.endswith("-3")
        assert made.origin.store.body("data", NAME.key) == b"onetwo234"


async def test_complete_with_an_error_inside_its_200_fails() -> None:
    """An error behind blanks in a 200 keeps the upload open and the outcome unknown (B58)."""
    async with lane() as made:
        upload_id, parts = await upload(made, b"one")
        made.origin.faults.add(Fault(operation="CompleteMultipartUpload", error_in_200="InternalError"))

        with pytest.raises(OriginUnavailableError) as failed:
            await made.client.complete_multipart_upload(NAME, upload_id, parts)

        assert (failed.value.code, failed.value.outcome_unknown) == ("InternalError", True)
        assert made.origin.requests_of("CompleteMultipartUpload") == 1


async def test_complete_without_an_answer_is_unknown_and_sent_once() -> None:
    """A Complete whose answer is lost is for the caller to settle."""
    async with lane() as made:
        upload_id, parts = await upload(made, b"one")
        made.origin.faults.add(Fault(operation="CompleteMultipartUpload", drop="after"))

        with pytest.raises(OriginUnavailableError) as cut:
            await made.client.complete_multipart_upload(NAME, upload_id, parts)
        described = await made.client.head_object(NAME)

        assert cut.value.outcome_unknown is True
        assert described is not None
        assert described.etag.endswith("-1")
        assert made.origin.requests_of("CompleteMultipartUpload") == 1


async def test_ended_upload_is_missing() -> None:
    """After an abort the upload is gone."""
    async with lane() as made:
        upload_id, parts = await upload(made, b"one")

        await made.client.abort_multipart_upload(NAME, upload_id)

        with pytest.raises(NoSuchUploadError):
            await made.client.complete_multipart_upload(NAME, upload_id, parts)


# --- Passing through -----------------------------------------------------------------------------------------------------


async def test_passed_request_is_signed_anew() -> None:
    """Any operation goes through with its headers and comes back as it is."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc", x_amz_tagging="t=1")
        headers = (
            ("Authorization", "the client's"),
            ("Host", "gateway"),
            ("x-amz-expected-bucket-owner", "me"),
        )

        async with made.client.request("GET", NAME, query=(("tagging", ""),), headers=headers) as answer:
            body = b"".join([chunk async for chunk in answer.chunks()])

        assert answer.status == 200
        assert b"<Key>t</Key><Value>1</Value>" in body
        assert ("content-type", "application/xml") in answer.headers
        assert made.origin.log[-1].headers["x-amz-expected-bucket-owner"] == "me"


async def test_passed_error_comes_back_whole() -> None:
    """A refusal is an answer: status, headers and document as the origin wrote them."""
    async with lane() as made:
        async with made.client.request("GET", ObjectName("data", ""), query=(("encryption", ""),)) as answer:
            body = b"".join([chunk async for chunk in answer.chunks()])

        assert answer.status == 404
        assert b"ServerSideEncryptionConfigurationNotFoundError" in body
        assert any(name == "x-amz-request-id" for name, _ in answer.headers)


async def test_passed_write_with_a_body_is_sent_once() -> None:
    """A streamed body goes through; without an answer the outcome is unknown."""
    async with lane() as made:
        async with made.client.request("PUT", NAME, body=body_of(b"abc")) as answer:
            status = answer.status
        made.origin.faults.add(Fault(drop="after"))
        with pytest.raises(OriginUnavailableError) as cut:
            async with made.client.request("PUT", NAME, body=body_of(b"abc")):
                pass

        assert status == 200
        assert cut.value.outcome_unknown is True
        assert made.origin.requests_of("PutObject") == 2


# --- Answers that make no sense --------------------------------------------------------------------------------------------


@asynccontextmanager
async def raw_lane(answer: bytes) -> AsyncIterator[OriginClient]:
    """Give the client of an origin that says the same bytes to everything, and ends the connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    clock = ImpatientClock()
    client = OriginClient(
        OriginSettings(f"http://127.0.0.1:{port}", read_attempts=1, stall_s=5.0, answer_s=5.0),
        limiter=Limiter(LimiterSettings(), clock),
        credentials=Rotating("AK"),
        clock=clock,
        rng=random.Random(7),
    )
    async with server, client:
        yield client


OK = b"HTTP/1.1 200 OK\r\n"
ETAG = b'etag: "e"\r\n'


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff\xfe\x00",
        b"HTTP/1.1 200",
        b"HTTP/1.1 99999 Odd\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",
        OK + b"\r\n",
        OK + ETAG + b"content-length: " + b"1" * 4301 + b"\r\n\r\n",
        OK + ETAG + b"content-length: 9999999999999999999\r\n\r\n",
        OK + ETAG + b"content-length: 5\r\n\r\nab",
        OK + ETAG + b"transfer-encoding: chunked\r\n\r\nzz\r\n",
        OK + ETAG + b"transfer-encoding: chunked\r\n\r\n2\r\nabcd\r\n",
        OK + ETAG + b"content-length: 2\r\nlast-modified: Wed, 32 Oct 0000 99:99:99 GMT\r\n\r\nab",
        OK + b'etag: "\xe9"\r\ncontent-length: 2\r\nx-amz-meta-a: \xe9\r\n\r\nab',
        OK + ETAG + b"set-cookie: \xff=\x01; expires=never\r\ncontent-length: 2\r\n\r\nab",
        OK + ETAG + b"content-encoding: gzip\r\ncontent-length: 2\r\n\r\nab",
        OK + b"content-length: 11\r\n\r\n<Error></Er",
        b"HTTP/1.1 301 Moved\r\nlocation: \xff\xfe://\r\nx-amz-bucket-region: \xe9\r\ncontent-length: 0\r\n\r\n",
        (
            b"HTTP/1.1 400 Bad\r\ndate: Wed, 21 Oct 0000 07:28:00 GMT\r\ncontent-length: 53\r\n\r\n"
            b"<Error><Code>RequestTimeTooSkewed</Code></Error>     "
        ),
        b"HTTP/1.1 503 Slow\r\nretry-after: " + b"9" * 5000 + b"\r\ncontent-length: 0\r\n\r\n",
    ],
)
async def test_no_answer_ends_the_gateway_whatever_it_is(answer: bytes) -> None:
    """Every operation succeeds or fails with an error that storage knows; nothing else comes out."""
    async with raw_lane(answer) as client:

        async def read() -> None:
            async with client.get_object(NAME) as opened:
                async for _ in opened.chunks():
                    pass

        calls: tuple[Callable[[], Awaitable[object]], ...] = (
            read,
            lambda: client.head_object(NAME),
            lambda: client.list_objects_v2(PageRequest("data")),
            lambda: client.put_object(NAME, (), body_of(b"abc")),
            lambda: client.copy_object(NAME, NAME),
        )
        for call in calls:
            try:
                await call()
            except StorageError:
                continue


async def test_text_is_told_as_text_when_an_origin_sends_latin_1() -> None:
    """A description with bytes that are no UTF-8 can be stored as a record."""
    head = (
        OK
        + b'etag: "e\xe9"\r\ncontent-length: 2\r\ncontent-disposition: Z\xfcrich\r\nx-amz-meta-a: \xe9\r\n\r\n'
    )
    async with raw_lane(head) as client:
        described = await client.head_object(NAME)

        assert described is not None
        assert (described.etag, described.user_metadata) == ("e\u00e9", (("a", "\u00e9"),))
        assert described.headers == (("content-disposition", "Z\u00fcrich"),)


@pytest.mark.parametrize("problem", [ValueError("odd"), KeyError("missing"), AssertionError("not so")])
async def test_answer_is_bad_when_reading_it_fails(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, problem: Exception
) -> None:
    """Whatever our reading of an answer trips over is the answer's fault, and the log names the operation."""

    def trip(*_: object) -> None:
        raise problem

    async with lane() as made:
        stored = made.origin.store.put("data", NAME.key, b"abc")
        monkeypatch.setattr("storage.origin.client.parse_list_page", trip)
        monkeypatch.setattr("storage.origin.calls.failure_of", trip)
        monkeypatch.setattr("storage.origin.answers.parse_checksums", trip)

        with pytest.raises(OriginUnavailableError) as listed:
            await made.client.list_objects_v2(PageRequest("data"))
        with pytest.raises(OriginUnavailableError) as refused:
            await made.client.head_object(ObjectName("data", "nothing"))
        with pytest.raises(OriginUnavailableError) as put:
            await made.client.put_object(NAME, (), body_of(b"abc"), if_match=stored.etag)

        assert {error.value.code for error in (listed, refused, put)} == {"BadAnswer"}
        assert put.value.outcome_unknown is True
        assert "ListObjectsV2" in caplog.text


async def test_call_fails_as_unavailable_when_the_client_is_closed() -> None:
    """A call that comes after the end finds no origin."""
    async with lane() as made:
        await made.client.__aexit__()

        with pytest.raises(OriginUnavailableError) as closed:
            await made.client.head_object(NAME)

        assert (closed.value.code, closed.value.outcome_unknown) == ("Connection", False)


async def test_headers_are_signed_as_they_are_sent_when_a_client_sends_latin_1() -> None:
    """What is no UTF-8 goes out as text, so that the signature is of what the origin sees."""
    async with lane() as made:
        await made.client.put_object(NAME, (("content-disposition", "Z\udcfcrich"),), body_of(b"abc"))

        described = await made.client.head_object(NAME)

        assert described is not None
        assert dict(described.headers)["content-disposition"] == "Z\u00fcrich"


# --- Covered by what is cached -----------------------------------------------------------------------------------------------


async def test_covered_head_is_not_retried_when_the_origin_fails() -> None:
    """Whoever has a stale version to serve hears of the failure at once."""
    async with lane() as made:
        made.origin.store.put("data", NAME.key, b"abc")
        made.origin.faults.add(Fault(status=500, times=-1))

        with pytest.raises(OriginUnavailableError):
            await made.client.head_object(NAME, is_covered=True)

        assert (made.origin.requests_of("HeadObject"), made.clock.slept) == (1, [])


async def test_covered_head_ends_in_time_when_the_origin_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """A black hole costs the covered time and no more, and tells the limiter."""
    monkeypatch.setattr("storage.origin.client.COVERED_ANSWER_S", 0.2)
    async with lane() as made:
        made.origin.faults.add(Fault(delay_s=20.0, times=-1))

        async with asyncio.timeout(2.0):
            with pytest.raises(OriginUnavailableError) as silent:
                await made.client.head_object(NAME, is_covered=True)

        assert silent.value.code == "Timeout"
        assert made.client.counters.requests == {("HeadObject", "timeout"): 1}


async def test_covered_head_ends_in_time_when_all_slots_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the limiter counts too: a black hole fills it with calls that wait."""
    monkeypatch.setattr("storage.origin.client.COVERED_ANSWER_S", 0.2)
    async with lane() as made:
        monkeypatch.setattr(made.limiter, "enter", wait_for_ever)

        async with asyncio.timeout(2.0):
            with pytest.raises(OriginUnavailableError) as full:
                await made.client.head_object(NAME, is_covered=True)

        assert full.value.code == "Timeout"
        assert made.origin.requests_of("HeadObject") == 0


async def wait_for_ever(*_: object) -> Demand:
    """Let nobody in."""
    await asyncio.Event().wait()
    raise AssertionError("nobody gets here")


async def test_covered_head_is_answered_over_a_dead_connection() -> None:
    """A pooled connection that died is replaced, as for any read."""
    async with lane() as made:
        stored = made.origin.store.put("data", NAME.key, b"abc")
        await made.client.head_object(NAME)
        made.origin.cut_idle_connections()

        assert await made.client.head_object(NAME, if_none_match=stored.etag, is_covered=True) is None
