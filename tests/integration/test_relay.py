"""What the gateway does not answer itself, through a whole gateway to a fake origin that keeps what arrives."""

import asyncio
import base64
import zlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import parse_qsl, quote, urlencode

import pytest

from storage.flush_events import FlushSettings
from storage.policy import Freshness, FreshnessMode, Policy
from storage.requests import PutRequest
from storage.types import MIB, ObjectName
from tests.fakes.gateway import Answer, RunningGateway, running_gateway
from tests.fakes.origin_faults import Fault
from tests.fakes.origin_server import Logged
from tests.fakes.paused_origin import PausedOrigin
from tests.fakes.publishing import TARGET, publish, target
from tests.fakes.running_engine import BUCKET, BytesContent, PlainBuckets, RunningEngine, running_engine
from tests.fakes.writing import pause, settled, until

if TYPE_CHECKING:
    from tests.fakes.engine import FakeStore

QUICK = FlushSettings(origin_timeout_s=0.6, retry_s_min=0.02, retry_s_max=0.1)
LATER = Policy(flush_delay_s=60.0)
TAGS = b"<Tagging><TagSet><Tag><Key>a</Key><Value>1</Value></Tag></TagSet></Tagging>"


@dataclass
class Whole:
    """A gateway, its engine, and the origin behind."""

    gateway: RunningGateway
    running: RunningEngine

    async def ask(
        self, method: str, target: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> Answer:
        """Send one signed request on a connection of its own."""
        given = dict(headers or {})
        if body or method in {"PUT", "POST"}:
            given["content-length"] = str(len(body))
        connection = await self.gateway.connect()
        await connection.send(self.gateway.signed(method, target, given) + body)
        return await connection.answer(has_body=method != "HEAD")

    @property
    def arrived(self) -> Logged:
        """What came to the origin last."""
        return self.running.origin.log[-1]

    def body(self, key: str = "k") -> bytes | None:
        """Give the origin's bytes of an object."""
        return self.running.origin.store.body(BUCKET, key)


@asynccontextmanager
async def whole(tmp_path: Path, **options: Any) -> AsyncIterator[Whole]:
    """Run all three for the length of the block."""
    options = {"flush": QUICK, "questions": PlainBuckets(), **options}
    async with (
        running_engine(**options) as running,
        running_gateway(str(tmp_path / "access.log"), store=cast("FakeStore", running.engine)) as gateway,
    ):
        yield Whole(gateway, running)


@pytest.mark.parametrize(
    ("method", "target", "operation"),
    [
        ("PUT", "?policy", "PutBucketPolicy"),
        ("DELETE", "?website", "DeleteBucketWebsite"),
        ("PUT", "/a%20b//c/../%C3%BC?acl&versionId=null", "PutObjectAcl"),
        ("PUT", "/k?x-id=PutObjectTagging&tagging", "PutObjectTagging"),
        ("PUT", "/k?newfeature&also=a+b%2Fc", "Unknown"),
    ],
)
async def test_a_request_arrives_as_it_was_sent(
    tmp_path: Path, method: str, target: str, operation: str
) -> None:
    """Method, path, query, body and headers are the client's; connection and signature are the gateway's."""
    async with whole(tmp_path) as it:
        it.running.origin.keys = {"key": "secret"}
        for key in ("k", "a b//c/../ü"):
            it.running.origin.store.put(BUCKET, key, b"bytes")
        headers = {"content-type": "text/xml", "x-amz-expected-bucket-owner": "me", "x-new": "1"}

        answer = await it.ask(method, f"/{BUCKET}{target}", TAGS, headers)

        arrived = it.arrived
        path, _, query = f"/{BUCKET}{target}".partition("?")
        expected = urlencode(parse_qsl(query, keep_blank_values=True), quote_via=quote, safe="")
        assert answer.status in {200, 204, 404}
        assert (arrived.method, arrived.target) == (method, f"{path}?{expected}")
        assert arrived.body == TAGS
        told = {name: value for name, value in arrived.headers.items() if name in headers}
        assert told == headers
        assert arrived.headers["user-agent"] == "forebay"
        assert "expect" not in arrived.headers
        assert (await it.gateway.log())[-1].operation == operation
        assert it.body() == b"bytes"


async def test_an_answer_comes_back_as_it_is(tmp_path: Path) -> None:
    """Status, headers and document are the origin's, an error's too; the request id is the gateway's."""
    async with whole(tmp_path) as it:
        it.running.origin.store.documents[BUCKET, "", "policy"] = b'{"Version": 1}'
        it.running.origin.faults.add(Fault(operation="GET policy", headers={"x-amz-new": "1", "via": "x"}))

        found = await it.ask("GET", f"/{BUCKET}?policy")
        missing = await it.ask("GET", f"/{BUCKET}?cors")

        assert (found.status, found.body) == (200, b'{"Version": 1}')
        assert (found.headers["x-amz-new"], found.headers["server"]) == ("1", "Forebay")
        assert (missing.status, b"<Code>NoSuchCorsConfiguration</Code>" in missing.body) == (404, True)
        assert missing.headers["content-type"] == "application/xml"
        log = await it.gateway.log()
        assert [entry.request_id for entry in log] == [
            found.headers["x-amz-request-id"],
            missing.headers["x-amz-request-id"],
        ]


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", "tagging"),
        ("DELETE", "tagging"),
        ("PUT", "acl"),
        ("PUT", "retention"),
        ("PUT", "legal-hold"),
        ("DELETE", "retention"),
        ("POST", "restore"),
        ("PUT", "newfeature"),
        ("PUT", "newfeature=1&versionId=x"),
        ("DELETE", "newfeature"),
        ("DELETE", "uploadId=x&newfeature"),
    ],
)
async def test_no_subresource_touches_the_object(tmp_path: Path, method: str, target: str) -> None:
    """B04: whatever is written to or deleted of a sub-resource, the object keeps its bytes, dirty or flushed."""
    async with whole(tmp_path, policy=LATER) as it:
        await it.running.put("k", b"bytes")

        first = await it.ask(method, f"/{BUCKET}/k?{target}", TAGS)
        again = await it.ask(method, f"/{BUCKET}/k?{target}", TAGS)
        got = await it.ask("GET", f"/{BUCKET}/k")

        assert {first.status, again.status} <= {200, 204, 404, 405, 501}
        assert (got.status, got.body) == (200, b"bytes")
        assert it.body() in {b"bytes", None}


async def test_what_it_depends_on_is_flushed_first(tmp_path: Path) -> None:
    """An object's tags are asked of what was acknowledged; configuration waits for nothing; versions wait for all."""
    async with whole(tmp_path, policy=LATER) as it:
        for key in ("k", "other", "third"):
            await it.running.put(key, key.encode())

        await it.ask("GET", f"/{BUCKET}?policy")
        unflushed = it.body("k")
        tags = await it.ask("GET", f"/{BUCKET}/k?tagging")
        one = (it.body("k"), it.body("other"))
        await it.ask("GET", f"/{BUCKET}?versions")

        assert unflushed is None
        assert tags.status == 200
        assert one == (b"k", None)
        assert (it.body("other"), it.body("third")) == (b"other", b"third")


async def test_tags_are_right_at_the_next_head(tmp_path: Path) -> None:
    """x-amz-tagging-count follows what is put and deleted, whether the object was written or read here."""
    async with whole(tmp_path) as it:
        it.running.origin.store.put(BUCKET, "read", b"1", x_amz_tagging="a=1&b=2")
        await it.running.put("k", b"1")
        counts = []
        for key in ("k", "read"):
            for method, body in (("HEAD", b""), ("PUT", TAGS), ("HEAD", b""), ("DELETE", b""), ("HEAD", b"")):
                target = f"/{BUCKET}/{key}" + ("" if method == "HEAD" else "?tagging")
                answer = await it.ask(method, target, body)
                if method == "HEAD":
                    counts.append(answer.headers.get("x-amz-tagging-count"))

        assert counts == [None, "1", None, "2", "1", None]


async def test_a_quarantined_object_says_why_it_cannot_be_relayed(tmp_path: Path) -> None:
    """The reason is told of the object itself and of its bucket as a whole; its bucket's configuration goes on."""
    async with whole(tmp_path) as it:
        it.running.origin.faults.add(Fault(operation="PutObject", times=1, status=400, code="InvalidRequest"))
        await it.running.put("k", b"bytes")
        await settled(it.running)
        await it.running.put("other", b"bytes")

        refused = [
            await it.ask("GET", f"/{BUCKET}/k?tagging"),
            await it.ask("PUT", f"/{BUCKET}/k?tagging", TAGS),
            await it.ask("GET", f"/{BUCKET}?versions"),
            await it.ask("PUT", f"/{BUCKET}?versioning", b"<V><Status>Enabled</Status></V>"),
        ]
        taken = [
            await it.ask("PUT", f"/{BUCKET}?policy", b"{}"),
            await it.ask("GET", f"/{BUCKET}?policy"),
            await it.ask("PUT", f"/{BUCKET}/other?tagging", TAGS),
        ]

        assert [answer.status for answer in refused] == [409] * 4
        assert all(b"InvalidRequest" in answer.body for answer in refused)
        assert [answer.status for answer in taken] == [200] * 3


async def test_a_change_of_versioning_is_known_to_the_next_write(tmp_path: Path) -> None:
    """What was acknowledged is flushed before it, and the first write after it goes through with the origin's version id."""
    async with whole(tmp_path, policy=LATER, questions=None) as it:
        await it.running.put("k", b"old")

        await it.ask("PUT", f"/{BUCKET}?versioning", b"<V><Status>Enabled</Status></V>")
        flushed = it.body("k")
        written = await it.ask("PUT", f"/{BUCKET}/k", b"new")

        assert flushed == b"old"
        assert written.headers["x-amz-version-id"]
        assert it.body("k") == b"new"


@pytest.mark.parametrize("target", ["?newfeature", "/other?newfeature"])
@pytest.mark.parametrize("mode", [FreshnessMode.IMMUTABLE, FreshnessMode.TTL])
async def test_an_unknown_write_makes_the_cache_doubt(
    tmp_path: Path, target: str, mode: FreshnessMode
) -> None:
    """After a write that nobody here has heard of, any object of its bucket is asked for before it is shown."""
    async with whole(tmp_path, policy=Policy(freshness=Freshness(mode))) as it:
        for key in ("k", "other"):
            it.running.origin.store.put(BUCKET, key, b"old")
            await it.ask("GET", f"/{BUCKET}/{key}")
        it.running.origin.store.put(BUCKET, "k", b"new!")
        before = await it.ask("GET", f"/{BUCKET}/k")

        await it.ask("PUT", f"/{BUCKET}{target}", b"x")
        after = [await it.ask("GET", f"/{BUCKET}/k") for _ in range(2)]

        assert before.body == b"old"
        assert [answer.body for answer in after] == [b"new!", b"new!"]
        assert after[1].headers["x-cache"] == "HIT"


async def test_what_names_a_source_is_not_relayed_without_being_known(tmp_path: Path) -> None:
    """An origin may take an unknown write with a source for a copy, of an object that is not flushed."""
    async with whole(tmp_path) as it:
        answer = await it.ask("PUT", f"/{BUCKET}/k?newfeature", b"", {"x-amz-copy-source": "/elsewhere/k"})

        assert answer.status == 501
        assert not it.running.origin.log


async def test_a_target_of_a_publish_takes_no_relayed_write(tmp_path: Path) -> None:
    """A manifest is nobody's to change, by a sub-resource either."""
    async with whole(tmp_path) as it:
        answer = await it.ask("PUT", f"/{BUCKET}/data/.forebay-published?tagging", TAGS)

        assert answer.status == 403
        assert not it.running.origin.log


async def test_a_body_that_is_not_what_was_declared_does_not_arrive(tmp_path: Path) -> None:
    """B30: a wrong digest is told before the origin has the body whole, of a small and of a long one."""
    async with whole(tmp_path) as it:
        it.running.origin.store.put(BUCKET, "k", b"bytes")
        small = await it.ask("PUT", f"/{BUCKET}?policy", b"{}", {"content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="})
        long = await it.ask(
            "PUT", f"/{BUCKET}/k?newfeature", bytes(9 * MIB), {"x-amz-checksum-crc32": "AAAAAA=="}
        )

        assert [small.status, long.status] == [400, 400]
        assert b"BadDigest" in small.body + long.body
        assert all(entry.status == 0 for entry in it.running.origin.log if entry.method == "PUT")


async def test_a_long_body_arrives_whole(tmp_path: Path) -> None:
    """A body over what is held is streamed, and the origin has every byte of it; other writes go on meanwhile."""
    async with whole(tmp_path) as it:
        it.running.origin.store.put(BUCKET, "k", b"1")
        body = bytes(9 * MIB)
        head = it.gateway.signed("PUT", f"/{BUCKET}/k?newfeature", {"content-length": str(len(body))})
        connection = await it.gateway.connect()

        await connection.send(head + body[: 8 * MIB])
        async with asyncio.timeout(5):
            other = await it.ask("PUT", f"/{BUCKET}/other", b"bytes")
        await connection.send(body[8 * MIB :])
        answer = await connection.answer()

        assert (other.status, answer.status) == (200, 200)
        assert it.running.origin.store.documents[BUCKET, "k", "newfeature"] == body


async def test_a_long_body_for_a_bucket_as_a_whole_is_refused(tmp_path: Path) -> None:
    """The bucket would take no write for as long as its client likes."""
    async with whole(tmp_path) as it:
        length = {"content-length": str(9 * MIB)}
        connection = await it.gateway.connect()

        await connection.send(it.gateway.signed("PUT", f"/{BUCKET}?newfeature", length))
        answer = await connection.answer()

        assert answer.status == 501
        assert not it.running.origin.log


async def test_a_stream_without_a_length_arrives_in_chunks(tmp_path: Path) -> None:
    """An event stream comes through byte for byte, in chunks, and the connection goes on."""
    async with whole(tmp_path) as it:
        it.running.origin.store.put(BUCKET, "k", b"1")
        it.running.origin.store.documents[BUCKET, "k", "select"] = stream = bytes(range(256)) * 4096
        connection = await it.gateway.connect()
        head = it.gateway.signed("POST", f"/{BUCKET}/k?select&select-type=2", {"content-length": "2"})

        await connection.send(head + b"<>")
        status, headers = await connection.head()
        received = b""
        while size := int(await connection.reader.readuntil(b"\r\n"), 16):
            received += await connection.reader.readexactly(size)
            await connection.reader.readexactly(2)
        await connection.reader.readexactly(2)
        await connection.send(it.gateway.signed("HEAD", f"/{BUCKET}"))

        assert (status, headers["transfer-encoding"]) == (200, "chunked")
        assert "content-length" not in headers
        assert received == stream
        assert (await connection.head())[0] == 200


async def test_a_stream_that_breaks_off_never_looks_whole(tmp_path: Path) -> None:
    """The origin's cut is the client's."""
    async with whole(tmp_path) as it:
        it.running.origin.store.put(BUCKET, "k", b"1")
        it.running.origin.store.documents[BUCKET, "k", "select"] = bytes(MIB)
        it.running.origin.faults.add(Fault(operation="POST select", cut_body_at=700_000))
        connection = await it.gateway.connect()

        await connection.send(it.gateway.signed("POST", f"/{BUCKET}/k?select", {"content-length": "0"}))
        received = await connection.reader.read(-1)

        assert len(received) > 600_000
        assert not received.endswith(b"0\r\n\r\n")


async def test_a_client_that_leaves_ends_the_origins_request(tmp_path: Path) -> None:
    """A stream that nobody reads is cut at the origin, long before its end, and leaves nothing open."""
    async with whole(tmp_path) as it:
        it.running.origin.store.put(BUCKET, "k", b"1")
        it.running.origin.store.documents[BUCKET, "k", "select"] = bytes(8 * MIB)
        it.running.origin.faults.add(Fault(operation="POST select", body_bytes_per_s=MIB))
        connection = await it.gateway.connect()

        await connection.send(it.gateway.signed("POST", f"/{BUCKET}/k?select", {"content-length": "0"}))
        await connection.reader.readexactly(1000)
        connection.writer.transport.abort()
        await until(lambda: it.running.origin.in_flight == 0)

        assert it.running.origin.bytes_out < 4 * MIB


@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=403, code="InvalidAccessKeyId", times=-1),
        Fault(status=403, code="SignatureDoesNotMatch", times=-1),
        Fault(status=301, code="PermanentRedirect", times=-1),
    ],
)
async def test_what_concerns_the_gateway_is_no_answer_to_a_client(tmp_path: Path, fault: Fault) -> None:
    """A client that read of a bad key would throw its own away, and one that was redirected would go past the gateway."""
    async with whole(tmp_path) as it:
        it.running.origin.faults.add(fault)

        answer = await it.ask("GET", f"/{BUCKET}?policy")

        assert answer.status == 503
        assert fault.code.encode() not in answer.body


async def test_a_write_is_sent_once_and_a_read_again(tmp_path: Path) -> None:
    """What was cut without an answer is asked again where that changes nothing, else told."""
    async with whole(tmp_path) as it:
        it.running.origin.store.put(BUCKET, "k", b"1")
        it.running.origin.faults.add(Fault(operation="GET acl", drop="after"))
        it.running.origin.faults.add(Fault(operation="POST restore", drop="after"))

        read = await it.ask("GET", f"/{BUCKET}/k?acl")
        written = await it.ask("POST", f"/{BUCKET}/k?restore", b"<R/>")

        assert (read.status, it.running.origin.requests["GET acl"]) == (404, 2)
        assert (written.status, it.running.origin.requests["POST restore"]) == (503, 1)


@pytest.mark.parametrize("is_killed", [False, True])
async def test_doubts_outlive_a_restart(tmp_path: Path, *, is_killed: bool) -> None:
    """What an unknown write may change is asked for after a clean stop, and after a kill while the origin works at it."""
    policy = Policy(freshness=Freshness(FreshnessMode.IMMUTABLE))
    async with whole(tmp_path, policy=policy) as it:
        origin, running = it.running.origin, it.running
        left: tuple[object, object] = (running.filesystem, running.index_home)
        origin.store.put(BUCKET, "k", b"old")
        await it.ask("GET", f"/{BUCKET}/k")
        gate = origin.hold("PUT", BUCKET)
        writing = asyncio.get_running_loop().create_task(it.ask("PUT", f"/{BUCKET}?newfeature", b"x"))
        await gate.reached.wait()
        if is_killed:
            left = running.stop_uncleanly()
        gate.open()
        await writing
    async with PausedOrigin() as again:
        again.store.buckets.update(origin.store.buckets)
        again.store.put(BUCKET, "k", b"new!")
        filesystem, index_home = left
        async with whole(
            tmp_path, policy=policy, origin=again, filesystem=filesystem, index_home=index_home
        ) as it:
            answer = await it.ask("GET", f"/{BUCKET}/k")

    assert answer.body == b"new!"


async def test_what_is_read_while_an_unknown_write_is_under_way_is_doubted_too(tmp_path: Path) -> None:
    """An object that was fetched before the origin was done with the write may be older than that."""
    async with whole(tmp_path) as it:
        it.running.origin.store.put(BUCKET, "k", b"old")
        gate = it.running.origin.hold("PUT", BUCKET)
        writing = asyncio.get_running_loop().create_task(it.ask("PUT", f"/{BUCKET}?newfeature", b"x"))
        await gate.reached.wait()
        during = await it.ask("GET", f"/{BUCKET}/k")
        it.running.origin.store.put(BUCKET, "k", b"new!")

        gate.open()
        await writing
        after = await it.ask("GET", f"/{BUCKET}/k")

        assert (during.body, after.body) == (b"old", b"new!")


async def test_an_unknown_write_without_an_answer_is_doubted_for_a_while(tmp_path: Path) -> None:
    """As long as it may still land, nothing of the bucket is served without the origin's word."""
    async with whole(tmp_path) as it:
        it.running.origin.store.put(BUCKET, "k", b"old")
        it.running.origin.faults.add(Fault(operation="PUT newfeature", drop="before"))

        failed = await it.ask("PUT", f"/{BUCKET}?newfeature", b"x")
        read = await it.ask("GET", f"/{BUCKET}/k")
        it.running.origin.store.put(BUCKET, "k", b"new!")
        again = await it.ask("GET", f"/{BUCKET}/k")

        assert (failed.status, read.body, again.body) == (503, b"old", b"new!")


@pytest.mark.parametrize(
    ("method", "target", "body", "operation"),
    [
        ("PUT", f"/{BUCKET}/k?tagging", TAGS, "PutObjectTagging"),
        ("PUT", f"/{BUCKET}/k", b"new!", "PutObject"),
    ],
)
async def test_what_is_read_while_a_write_may_still_land_is_asked_for_again(
    tmp_path: Path, method: str, target: str, body: bytes, operation: str
) -> None:
    """It had no answer, so a reader that came before it landed must not hide it from those who come after."""
    async with whole(tmp_path, policy=Policy(freshness=Freshness(ttl_s=3600.0))) as it:
        it.running.origin.store.put(BUCKET, "k", b"old")
        it.running.origin.faults.add(Fault(operation=operation, times=2, drop="before"))

        failed = await it.ask(method, target, body, {"x-forebay-durability": "origin"})
        read = await it.ask("GET", f"/{BUCKET}/k")
        it.running.origin.store.put(BUCKET, "k", b"new!", x_amz_tagging="a=1")
        it.running.clock.ahead_s += 61.0
        again = await it.ask("GET", f"/{BUCKET}/k")
        asked = it.running.origin.requests["HeadObject"]
        known = await it.ask("GET", f"/{BUCKET}/k")

        assert (failed.status, read.body, again.body, known.body) == (503, b"old", b"new!", b"new!")
        assert again.headers["x-amz-tagging-count"] == "1"
        assert it.running.origin.requests["HeadObject"] == asked


async def test_a_checksum_behind_the_body_arrives_in_the_head(tmp_path: Path) -> None:
    """The framing ends at the gateway; the origin gets the checksum that the client sent in its trailer."""
    async with whole(tmp_path) as it:
        crc = base64.b64encode(zlib.crc32(TAGS).to_bytes(4, "big")).decode()
        body = b"%x\r\n%b\r\n0\r\nx-amz-checksum-crc32:%b\r\n\r\n" % (len(TAGS), TAGS, crc.encode())
        headers = {
            "content-encoding": "aws-chunked",
            "content-length": str(len(body)),
            "x-amz-decoded-content-length": str(len(TAGS)),
            "x-amz-sdk-checksum-algorithm": "CRC32",
            "x-amz-trailer": "x-amz-checksum-crc32",
        }
        connection = await it.gateway.connect()

        head = it.gateway.signed("PUT", f"/{BUCKET}?cors", headers, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
        await connection.send(head + body)
        answer = await connection.answer()

        told = it.arrived.headers
        assert (answer.status, it.arrived.body) == (200, TAGS)
        assert (told["x-amz-checksum-crc32"], told["x-amz-sdk-checksum-algorithm"]) == (crc, "CRC32")
        assert not {"content-encoding", "x-amz-trailer", "x-amz-decoded-content-length"} & set(told)


async def test_a_name_that_shows_another_is_asked_about_by_that(tmp_path: Path) -> None:
    """Tags under a published target are its source's, which is flushed first, and say of which generation they are."""
    async with whole(tmp_path) as it:
        target(it.running)
        source = PutRequest(ObjectName(BUCKET, "staging/one/k"), tags="a=1")
        await it.running.engine.put_object(source, BytesContent(b"bytes"))
        report = await publish(it.running, "one")
        assert report.phase == "done", report

        tags = await it.ask("GET", f"/{BUCKET}/{TARGET}k?tagging")
        missing = await it.ask("GET", f"/{BUCKET}/{TARGET}missing?tagging")
        written = await it.ask("PUT", f"/{BUCKET}/{TARGET}k?tagging", TAGS)

        assert (tags.status, tags.headers["x-forebay-generation"]) == (200, "1")
        assert b"<Key>a</Key>" in tags.body
        assert (missing.status, missing.headers["x-forebay-generation"]) == (404, "1")
        assert written.status == 403


@pytest.mark.parametrize(
    ("method", "target", "after_bytes"),
    [("POST", "restore", 3), ("PUT", "newfeature", -1), ("PUT", "acl", -1)],
)
async def test_the_next_write_waits_until_the_answer_is_whole(
    tmp_path: Path, method: str, target: str, after_bytes: int
) -> None:
    """An operation that answers its head first and ends its work behind that has its turn to the end."""
    async with whole(tmp_path) as it:
        it.running.origin.store.put(BUCKET, "k", b"1")
        it.running.origin.store.documents[BUCKET, "k", "restore"] = b"<done/>"
        gate = it.running.origin.hold(method, f"{BUCKET}/k", after_bytes)
        async with asyncio.TaskGroup() as group:
            first = group.create_task(it.ask(method, f"/{BUCKET}/k?{target}", b"<R/>"))
            await gate.reached.wait()
            second = group.create_task(it.ask("PUT", f"/{BUCKET}/k?tagging", TAGS))
            await pause(0.1)
            meanwhile = it.running.origin.requests["PutObjectTagging"]
            gate.open()

        assert meanwhile == 0
        assert (first.result().status, second.result().status) == (200, 200)
        assert it.running.origin.requests["PutObjectTagging"] == 1


@pytest.mark.parametrize("body", [b"bytes", b""])
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
@pytest.mark.parametrize(
    "target", ["strange", "strange=7&versionId=x", "annotation&annotationName=a", "encryption"]
)
async def test_a_name_that_the_origin_does_not_know_writes_nothing(
    tmp_path: Path, method: str, target: str, body: bytes
) -> None:
    """B04: an origin that ignores the name would replace or delete the object, dirty or not; so it is not asked to."""
    async with whole(tmp_path, policy=LATER) as it:
        await it.running.put("k", body)

        answers = [await it.ask(method, f"/{BUCKET}/k?{target}", TAGS) for _ in range(2)]

        assert {answer.status for answer in answers} <= {501, 405}
        assert (await it.ask("GET", f"/{BUCKET}/k")).body == body
        assert it.body() in {body, None}


async def test_a_name_is_asked_about_once(tmp_path: Path) -> None:
    """What the origin is known to know costs no further request; of an object that is not there nothing can be known."""
    async with whole(tmp_path) as it:
        missing = await it.ask("PUT", f"/{BUCKET}/missing?acl", TAGS)
        strange = await it.ask("PUT", f"/{BUCKET}/missing?newfeature", TAGS)
        it.running.origin.store.put(BUCKET, "k", b"bytes")
        for _ in range(3):
            await it.ask("PUT", f"/{BUCKET}/k?acl", TAGS)

        assert (missing.status, strange.status) == (404, 501)
        assert it.running.origin.requests["GET acl"] == 2
        assert it.running.origin.requests["PUT acl"] == 3
        assert it.body("missing") is None
