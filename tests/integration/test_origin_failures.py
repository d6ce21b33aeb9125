"""Every failure of the origin, over a whole engine: nothing lost, nothing blocked, no storm, and all arrives when it heals.

Each row breaks writes of some keys in one way while a put, a delete and an upload of them are acknowledged, and those of
other keys and buckets go on. Rows of the pitfalls B05, B15, B56, B57, B58 and B59 are named where they stand.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from storage.errors import OriginUnavailableError
from storage.flush_events import FlushSettings
from storage.origin.credentials import ChainCredentials
from storage.origin.endpoint import OriginSettings
from tests.fakes.bad_network import BadNetwork
from tests.fakes.certificate import make_certificate
from tests.fakes.origin_faults import Fault
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.running_engine import BUCKET, RunningEngine, ShiftedClock, delete_lines, running_engine
from tests.fakes.writing import delete, flushed, head, pause, settled, until, upload

QUICK = FlushSettings(
    origin_timeout_s=0.4,
    retry_s_min=0.05,
    retry_s_max=0.4,
    probe_s_min=0.1,
    probe_s_max=0.4,
    away_probe_s_max=0.4,
)
BROKEN_S = 0.5
"""So long an origin stays broken at the least."""

REQUESTS_MAX = 40
"""Requests for three broken keys in that time, the parts of an upload among them; a storm would be hundreds."""

OTHER = "other"
WRITES = ("PutObject", "DeleteObject", "CreateMultipartUpload", "UploadPart", "CompleteMultipartUpload")
PARTS = [b"a" * 1000, b"b"]


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let parts be small on both sides: nothing here is about their size."""
    monkeypatch.setattr("storage.uploads.PART_BYTES_MIN", 1)


def breaks(pattern: str, operations: tuple[str, ...] = WRITES, **fault: Any) -> list[Fault]:
    """Break these operations of the keys in one way, until further notice."""
    return [
        Fault(operation=operation, key=f"{BUCKET}/{pattern}", times=-1, **fault) for operation in operations
    ]


@asynccontextmanager
async def engine_with_two_buckets(
    flush: FlushSettings = QUICK, **options: Any
) -> AsyncIterator[RunningEngine]:
    """Run an engine that knows two buckets, one with an object to be deleted."""
    async with running_engine(flush=flush, answer_s=0.6, **options) as running:
        running.origin.store.part_bytes_min = 1
        running.origin.store.create_bucket(OTHER)
        running.origin.store.put(BUCKET, "bad-delete", b"old")
        for bucket in (BUCKET, OTHER):
            await known(running, bucket)
        yield running


async def known(running: RunningEngine, bucket: str) -> None:
    """Have the engine know a bucket; on a machine that stands still its short patience with the origin may end once."""
    async with asyncio.timeout(10.0):
        while True:
            with suppress(OriginUnavailableError):
                await running.engine.bucket_facts(bucket)
                return


async def write_bad_keys(running: RunningEngine) -> str:
    """Have a put, a delete and an upload acknowledged; give the upload's ETag."""
    await running.put("bad-put", b"body")
    await delete(running, "bad-delete")
    return (await upload(running, "bad-upload", PARTS)).etag


async def write_good_key(running: RunningEngine, bucket: str) -> None:
    """Write another key and see it arrive."""
    await running.put("good", b"good", bucket=bucket)
    await until(lambda: running.origin.store.body(bucket, "good") == b"good")


def asked(running: RunningEngine) -> int:
    """Count what the origin was asked."""
    return sum(running.origin.requests.values())


def arrived(running: RunningEngine, etag: str) -> bool:
    """Whether the origin has all three."""
    objects = running.origin.store.buckets[BUCKET].objects
    found = objects.get("bad-upload")
    return (
        running.origin.store.body(BUCKET, "bad-put") == b"body"
        and "bad-delete" not in objects
        and found is not None
        and found.etag == etag
    )


async def check_served(running: RunningEngine, etag: str) -> None:
    """What was acknowledged is what the gateway shows, whatever the origin has."""
    assert (await running.get("bad-put")).data == b"body"
    assert (await head(running, "bad-upload")).etag == etag


async def check_all_arrives(running: RunningEngine, etag: str) -> None:
    """All is flushed, and nothing is left at the origin that nobody will complete."""
    await until(lambda: running.engine.status().pending_objects == 0)
    assert arrived(running, etag)
    assert running.engine.status().quarantined == ()
    assert running.engine.status().suspended_buckets == ()


# --- one object is refused, fails, or gets no answer: B05, B15, B56, B58 -------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        {"status": 503, "code": "SlowDown"},
        {"status": 503, "code": "SlowDown", "retry_after_s": 0},
        {"status": 429, "code": "TooManyRequests"},
        {"status": 500, "code": "InternalError"},
        {"status": 500, "code": "InternalError", "is_processed": True},
        {"status": 502, "code": "BadGateway"},
        {"status": 504, "code": "GatewayTimeout", "is_processed": True},
        {"status": 409, "code": "OperationAborted"},
        {"status": 400, "code": "RequestTimeout"},
        {"status": 400, "code": "BadDigest"},
        {"status": 400, "code": "IncompleteBody"},
        {"drop": "before"},
        {"drop": "after"},
        {"delay_s": 0.9},
        {"error_in_200": "InternalError"},
        {"error_in_200": "SlowDown"},
        {"cut_body_at": 0, "content_length": 100},
    ],
    ids=lambda fault: "-".join(map(str, fault.values())),
)
async def test_failing_keys_are_kept_and_block_nobody_until_they_arrive(fault: dict[str, Any]) -> None:
    """A put, a delete and an upload whose attempts all fail are tried seldom, hold up no other key, and arrive in the end."""
    async with engine_with_two_buckets() as running:
        running.origin.faults.add(*breaks("bad-*", **fault))
        before = asked(running)

        etag = await write_bad_keys(running)
        await write_good_key(running, BUCKET)
        await write_good_key(running, OTHER)
        await pause(BROKEN_S)

        assert asked(running) - before <= REQUESTS_MAX
        assert running.engine.status().pending_objects > 0
        assert running.engine.status().quarantined == ()
        await check_served(running, etag)
        running.origin.faults.clear()
        await check_all_arrives(running, etag)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "InvalidStorageClass"),
        (400, "KeyTooLongError"),
        (400, "EntityTooLarge"),
        (400, "InvalidTag"),
        (400, "SomethingNew"),
        (403, "InvalidObjectState"),
        (405, "MethodNotAllowed"),
        (411, "MissingContentLength"),
        (412, "PreconditionFailed"),
        (501, "NotImplemented"),
    ],
)
async def test_refused_keys_are_quarantined_with_the_reason_and_block_nobody(status: int, code: str) -> None:
    """What the origin refuses for good is asked once, kept, shown with its reason, and sent again on command (B15)."""
    async with engine_with_two_buckets() as running:
        running.origin.faults.add(*breaks("bad-*", status=status, code=code))
        before = asked(running)

        etag = await write_bad_keys(running)
        await until(lambda: len(running.engine.status().quarantined) == 3)
        await write_good_key(running, BUCKET)
        await pause(BROKEN_S)

        lines = running.engine.status().quarantined
        assert sorted(line.key for line in lines) == ["bad-delete", "bad-put", "bad-upload"]
        assert [code in line.reason for line in lines] == [True] * 3
        assert asked(running) - before == 4
        assert running.engine.status().suspended_buckets == ()
        await check_served(running, etag)
        running.origin.faults.clear()
        assert await running.engine.retry_quarantined(BUCKET, "") == 3
        await check_all_arrives(running, etag)


# --- a bucket or the credentials are refused: B15, B59 -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (404, "NoSuchBucket"),
        (403, "AccessDenied"),
        (403, "AllAccessDisabled"),
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (400, "ExpiredToken"),
        (400, "TokenRefreshRequired"),
        (400, "AuthorizationHeaderMalformed"),
        (403, "RequestTimeTooSkewed"),
        (301, "PermanentRedirect"),
    ],
)
async def test_refused_bucket_is_suspended_with_one_probe_and_blocks_no_other(status: int, code: str) -> None:
    """A refusal of all that is in a bucket is no refusal of an object: it waits, is probed seldom, and goes on alone."""
    async with engine_with_two_buckets() as running:
        running.origin.faults.add(*breaks("*", (*WRITES, "DeleteObjects"), status=status, code=code))

        etag = await write_bad_keys(running)
        await until(lambda: bool(running.engine.status().suspended_buckets))
        await write_good_key(running, OTHER)
        before = asked(running)
        await pause(BROKEN_S)

        # A probe a tenth of a second; where keys or clocks may be corrected it is asked twice.
        assert asked(running) - before <= 12
        assert code in dict(running.engine.status().suspended_buckets)[BUCKET]
        assert running.engine.status().quarantined == ()
        await check_served(running, etag)
        running.origin.faults.clear()
        await check_all_arrives(running, etag)


async def test_missing_bucket_waits_until_it_is_made_again() -> None:
    """A bucket that somebody deleted at the origin keeps its changes here; others flush; made again, it gets them (B15)."""
    async with engine_with_two_buckets() as running:
        del running.origin.store.buckets[BUCKET]

        etag = await write_bad_keys(running)
        await write_good_key(running, OTHER)
        await until(lambda: bool(running.engine.status().suspended_buckets))
        report = await settled(running, BUCKET)

        assert (report.is_reached, report.remaining) == (False, 3)
        # The other bucket's object may still wait for its confirmation.
        await until(lambda: running.engine.status().pending_objects == 3)
        running.origin.store.create_bucket(BUCKET)
        await check_all_arrives(running, etag)


async def test_flush_goes_on_alone_when_the_keys_in_a_file_are_rotated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Session keys of a profile expire in the middle; new ones in the file are taken without a restart (B59)."""
    profile = tmp_path / "credentials"
    profile.write_text("[default]\naws_access_key_id = old\naws_secret_access_key = secret\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    async with engine_with_two_buckets(credentials=ChainCredentials()) as running:
        running.origin.keys = {"old": "secret", "new": "secret"}
        running.origin.expired.add("old")

        etag = await write_bad_keys(running)
        await until(lambda: bool(running.engine.status().suspended_buckets))
        reason = dict(running.engine.status().suspended_buckets)[BUCKET]
        profile.write_text("[default]\naws_access_key_id = new\naws_secret_access_key = secret\n")

        assert "ExpiredToken" in reason
        await check_all_arrives(running, etag)


async def test_clock_that_is_off_is_corrected_by_the_origins_date() -> None:
    """RequestTimeTooSkewed costs one more request, once: what follows is signed with the origin's time."""
    async with engine_with_two_buckets() as running:
        running.origin.keys = {"key": "secret"}
        running.origin.clock_offset_s = -7200.0

        etag = await write_bad_keys(running)
        await check_all_arrives(running, etag)
        running.origin.requests.clear()
        await running.put("k", b"body")
        await flushed(running)

        assert asked(running) == 1


# --- ETags, and errors inside of a 200: B58 ------------------------------------------------------------------------------


async def delete_together(running: RunningEngine, keys: list[str]) -> None:
    """Delete keys while the only slot is taken, so that they go in one batch."""
    gate = running.origin.hold("PUT", f"{BUCKET}/in-front")
    await running.put("in-front", b"x")
    await gate.reached.wait()
    await running.engine.delete_objects(BUCKET, delete_lines(keys))
    gate.open()
    await until(lambda: running.engine.status().pending_objects == 0)


ONE_SLOT = FlushSettings(
    concurrency=1, origin_timeout_s=0.4, retry_s_min=0.05, retry_s_max=0.4, probe_s_min=0.1, probe_s_max=0.4
)


async def test_lines_of_a_batch_of_deletes_are_settled_one_by_one() -> None:
    """Of a batch whose answer refuses, fails and forgets some keys, each line decides for its own key."""
    async with engine_with_two_buckets(ONE_SLOT) as running:
        lines = (
            "<Error><Key>denied</Key><Code>InvalidObjectState</Code><Message>no</Message></Error>"
            "<Error><Key>failed</Key><Code>InternalError</Code></Error>"
            "<Error><Key>slow</Key><Code>SlowDown</Code></Error>"
            "<Error><Key>never-there</Key><Code>NoSuchKey</Code></Error>"
            "<Deleted><Key>believed</Key></Deleted>"
        )
        keys = ["denied", "failed", "slow", "believed", "forgotten"]
        for key in keys:
            running.origin.store.put(BUCKET, key, b"old")
        running.origin.faults.add(
            Fault(operation="DeleteObjects", body=f"<DeleteResult>{lines}</DeleteResult>")
        )

        await delete_together(running, [*keys, "never-there"])

        (line,) = running.engine.status().quarantined
        assert (line.key, "InvalidObjectState" in line.reason) == ("denied", True)
        assert sorted(running.origin.store.buckets[BUCKET].objects) == [
            "bad-delete",
            "believed",  # the fake said that it was deleted, and did not do it
            "denied",
            "in-front",
        ]


@pytest.mark.parametrize("code", ["InternalError", "SlowDown", "ServiceUnavailable"])
async def test_bucket_is_suspended_when_every_line_of_its_batches_fails(code: str) -> None:
    """Batches that are answered 200 and do nothing mean that the origin is away: one probe at a time until a line succeeds."""
    async with engine_with_two_buckets(ONE_SLOT) as running:
        keys = ["a", "b"]
        for key in keys:
            running.origin.store.put(BUCKET, key, b"old")
        lines = "".join(f"<Error><Key>{key}</Key><Code>{code}</Code></Error>" for key in keys)
        running.origin.faults.add(
            Fault(operation="DeleteObjects", body=f"<DeleteResult>{lines}</DeleteResult>", times=-1),
            Fault(operation="DeleteObject", key=f"{BUCKET}/*", status=500, code=code, times=-1),
        )

        gate = running.origin.hold("PUT", f"{BUCKET}/in-front")
        await running.put("in-front", b"x")
        await gate.reached.wait()
        await running.engine.delete_objects(BUCKET, delete_lines(keys))
        gate.open()
        await until(lambda: bool(running.engine.status().suspended_buckets))
        ((bucket, reason),) = running.engine.status().suspended_buckets

        assert (bucket, code in reason) == (BUCKET, True)
        running.origin.faults.clear()
        await until(lambda: running.engine.status().pending_objects == 0)
        assert sorted(running.origin.store.buckets[BUCKET].objects) == ["bad-delete", "in-front"]


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (501, "NotImplemented"),
        (405, "MethodNotAllowed"),
        (404, "NoSuchKey"),
        (404, "NotFound"),
        (404, ""),
        (400, "NotImplemented"),
    ],
)
async def test_deletes_go_one_by_one_where_the_origin_knows_no_batch(status: int, code: str) -> None:
    """An origin without DeleteObjects is asked for it once; from then on each tombstone is a request of its own."""
    async with engine_with_two_buckets(ONE_SLOT) as running:
        for key in "abcd":
            running.origin.store.put(BUCKET, key, b"old")
        no_document = (
            {} if code else {"headers": {"content-type": "text/plain"}, "cut_body_at": 0, "content_length": 0}
        )
        running.origin.faults.add(
            Fault(operation="DeleteObjects", times=-1, status=status, code=code, **no_document)  # type: ignore[arg-type]  # fields by name
        )

        await delete_together(running, ["a", "b"])
        await delete_together(running, ["c", "d"])

        assert sorted(running.origin.store.buckets[BUCKET].objects) == ["bad-delete", "in-front"]
        assert running.origin.requests_of("DeleteObjects") == 1
        assert running.origin.requests_of("DeleteObject") >= 4
        assert running.engine.status().quarantined == ()


async def test_missing_bucket_is_no_missing_batch() -> None:
    """NoSuchBucket in answer to a batch suspends the bucket, and batches go on to be used when it is back."""
    async with engine_with_two_buckets(ONE_SLOT) as running:
        running.origin.faults.add(
            Fault(operation="DeleteObjects", times=2, status=404, code="NoSuchBucket"),
            Fault(operation="DeleteObject", times=1, status=404, code="NoSuchBucket"),
        )

        await delete_together(running, ["a", "b", "c", "d"])
        await delete_together(running, ["a", "b"])

        assert running.origin.requests_of("DeleteObjects") >= 2


async def test_delete_of_what_is_not_there_is_done_where_the_origin_says_so() -> None:
    """Some origins answer 404 NoSuchKey to a DELETE: that is what was wanted. A 404 without a document says nothing."""
    async with engine_with_two_buckets() as running:
        running.origin.faults.add(
            Fault(operation="DeleteObject", key="*/a", status=404, code="NoSuchKey"),
            Fault(operation="DeleteObject", key="*/b", status=404, cut_body_at=0, content_length=0),
        )

        await delete(running, "a")
        await delete(running, "b")
        await until(lambda: running.engine.status().pending_objects == 0)

        assert running.origin.store.etags(BUCKET, "a") == []
        assert running.origin.store.etags(BUCKET, "b") == [""]


@pytest.mark.parametrize(
    "body",
    [
        "<Error><Code>InternalError</Cod",
        '<?xml version="1.0"?>\n<Err',
        "\n \n<Error><Code>InternalError</Code></Error>",
        "<html><head><title>Sign in</title></head></html>",
        "<html><br>Sign in",
    ],
)
async def test_success_with_a_document_that_is_none_is_no_success(body: str) -> None:
    """A 200 to a put or delete whose body is an error, cut off or somebody's web page is not believed (B58)."""
    async with engine_with_two_buckets() as running:
        for operation in ("PutObject", "DeleteObject"):
            running.origin.faults.add(Fault(operation=operation, body=body, etag="e", times=2))

        await running.put("k", b"body")
        await delete(running, "bad-delete")
        await until(lambda: running.engine.status().pending_objects == 0)

        assert sorted(running.origin.store.buckets[BUCKET].objects) == ["k"]
        assert running.origin.store.body(BUCKET, "k") == b"body"


@pytest.mark.parametrize("name", ["content-type", "x-amz-meta-kind", "etag"])
async def test_origin_that_shows_objects_in_its_own_way_is_not_sent_them_again_and_again(name: str) -> None:
    """Where a HEAD after a lost answer never shows what was sent, the object is sent once more, not for ever."""
    async with engine_with_two_buckets() as running:
        running.origin.faults.add(
            Fault(operation="PutObject", drop="after"),
            Fault(operation="HeadObject", times=-1, headers={name: "the-origins-own"}),
        )

        await running.put("k", b"body")
        await until(lambda: running.engine.status().pending_objects == 0)

        assert running.origin.requests_of("PutObject") <= 3
        assert running.origin.store.body(BUCKET, "k") == b"body"


# --- what is no HTTP, and what is not there ------------------------------------------------------------------------------


HUGE = b"HTTP/1.1 200 OK\r\nx-huge: " + b"a" * 100_000 + b'\r\netag: "x"\r\ncontent-length: 0\r\n\r\n'
MANY = (
    b"HTTP/1.1 200 OK\r\n"
    + b"".join(b"x-%d: y\r\n" % n for n in range(20_000))
    + b"content-length: 0\r\n\r\n"
)


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/1.1 banana\r\n\r\n",
        b"",
        HUGE,
        MANY,
        b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b'HTTP/1.1 200 OK\r\netag: "x"\r\ncontent-length: 31\r\n\r\n<Error><Code>InternalError</Cod',
        b"HTTP/1.1 500 Oh\r\ncontent-length: 6\r\n\r\n<Error",
    ],
    ids=["ssh", "tls", "banana", "empty", "huge", "many", "short", "negative", "chunk", "cut-xml", "cut-500"],
)
async def test_answers_that_are_none_lose_nothing(answer: bytes) -> None:
    """Whatever garbage stands where an answer should: no success, no crash, no storm; with a true answer all arrives."""
    async with engine_behind_a_network() as (running, network):
        network.turn_bad(answer)

        etag = await write_bad_keys(running)
        await pause(BROKEN_S)

        assert not arrived(running, etag)
        assert 0 < network.requests <= REQUESTS_MAX
        assert running.engine.status().pending_objects == 3
        await check_served(running, etag)
        network.heal()
        await check_all_arrives(running, etag)


async def test_silent_origin_is_given_up_in_time_and_tried_again() -> None:
    """An origin that takes requests and says nothing holds up the flush for a time-out each, and loses nothing."""
    async with engine_behind_a_network() as (running, network):
        network.turn_bad(hangs=True)

        etag = await write_bad_keys(running)
        await pause(1.0)

        assert 0 < network.requests <= REQUESTS_MAX
        await check_served(running, etag)
        network.heal()
        await check_all_arrives(running, etag)


async def test_all_arrives_after_hours_without_a_connection() -> None:
    """Refused connections for hours by the wall clock: writes go on, nothing is lost, and the first answer lets all go on."""
    clock = ShiftedClock()
    async with engine_behind_a_network(clock=clock) as (running, network):
        await network.refuse()

        etag = await write_bad_keys(running)
        for hour in range(1, 7):
            clock.ahead_s = hour * 3600.0
            await running.put(f"hour-{hour}", b"%d" % hour)
            await pause(0.05)
        assert running.engine.status().pending_objects == 9
        assert running.engine.status().oldest_pending_s > 5 * 3600
        await network.listen()

        await check_all_arrives(running, etag)
        assert [running.origin.store.body(BUCKET, f"hour-{n}") for n in range(1, 7)] == [
            b"%d" % n for n in range(1, 7)
        ]


async def test_name_of_the_origin_that_is_not_found_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its name's address nobody can be asked; the changes wait, and go when the name is found."""
    origin = PausedOrigin()
    async with origin:
        settings = OriginSettings(endpoint_url=origin.url.replace("127.0.0.1", "localhost"), answer_s=0.3)
        async with engine_with_two_buckets(origin=origin, origin_settings=settings) as running:
            loop = asyncio.get_running_loop()
            monkeypatch.setattr(loop, "getaddrinfo", _not_found)

            etag = await write_bad_keys(running)
            await pause(BROKEN_S)

            assert not arrived(running, etag)
            assert running.engine.status().pending_objects == 3
            await check_served(running, etag)
            monkeypatch.undo()
            await check_all_arrives(running, etag)


async def test_origin_whose_certificate_is_not_trusted_gets_nothing_and_loses_nothing(tmp_path: Path) -> None:
    """No byte is sent over a connection that may be anybody's; with the right CA at the next start all arrives."""
    certificate, key = make_certificate(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(certificate, key)
    origin = PausedOrigin()
    origin._tls = tls
    async with origin:
        trusting = OriginSettings(endpoint_url=origin.url, ca_bundle=str(certificate))
        async with engine_with_two_buckets(origin=origin, origin_settings=trusting) as first:
            assert first.engine.status().is_writable
        doubting = OriginSettings(endpoint_url=origin.url)
        async with running_engine(
            flush=QUICK,
            origin=origin,
            origin_settings=doubting,
            filesystem=first.filesystem,
            index_home=first.index_home,
        ) as second:
            before = asked(second)
            etag = await write_bad_keys(second)
            await pause(BROKEN_S)

            assert asked(second) == before
            assert second.engine.status().pending_objects == 3
            assert "certificate" in second.engine.pending(BUCKET, "", 1).lines[0].reason
            await check_served(second, etag)
        async with running_engine(
            flush=QUICK,
            origin=origin,
            origin_settings=trusting,
            filesystem=first.filesystem,
            index_home=first.index_home,
        ) as third:
            await check_all_arrives(third, etag)


async def _not_found(*_: object, **__: object) -> list[object]:
    raise OSError("Name or service not known")


@asynccontextmanager
async def engine_behind_a_network(**options: Any) -> AsyncIterator[tuple[RunningEngine, BadNetwork]]:
    """Run an engine whose way to the origin may turn bad."""
    async with PausedOrigin() as origin, BadNetwork(origin._port) as network:
        settings = OriginSettings(endpoint_url=network.url, connect_s=0.3, answer_s=0.3, stall_s=0.3)
        async with engine_with_two_buckets(origin=origin, origin_settings=settings, **options) as running:
            yield running, network
