"""The road of a request over a real socket: answers, errors, and what becomes of the connection."""

import asyncio
import logging
from pathlib import Path

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # ships no types

from storage.errors import DiskFullError, OriginUnavailableError
from tests.fakes.engine import FakeStore
from tests.fakes.gateway import PLAIN_KEY, RunningGateway, in_thread, pause, running_gateway, until
from tests.fakes.scripted_body import Gate


async def test_put_and_get_when_boto3_uses_its_defaults(gateway: RunningGateway) -> None:
    """What boto3 puts, it gets back byte for byte, with the metadata it gave."""
    client = gateway.client()

    put = await in_thread(
        client.put_object,
        Bucket="bucket",
        Key="a key",
        Body=b"hello",
        ContentType="text/plain",
        Metadata={"a": "b"},
    )
    got = await in_thread(client.get_object, Bucket="bucket", Key="a key")
    body = await in_thread(got["Body"].read)

    assert body == b"hello"
    assert put["ETag"] == got["ETag"] == '"5d41402abc4b2a76b9719d911017c592"'
    assert got["ContentType"] == "text/plain"
    assert got["Metadata"] == {"a": "b"}
    assert got["ResponseMetadata"]["HTTPHeaders"]["x-cache"] == "HIT"


async def test_every_answer_says_what_it_is_when_it_is_an_error(gateway: RunningGateway) -> None:
    """An error is an S3 document whose request id is the header's, and the connection goes on."""
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/bucket/nothing"))
    first = await connection.answer()
    await connection.send(gateway.signed("GET", "/bucket/nothing"))
    second = await connection.answer()

    assert first.status == second.status == 404
    assert first.headers["content-type"] == "application/xml"
    assert first.headers["server"] == "Forebay"
    assert len(first.headers["x-amz-request-id"]) == 16
    assert f"<RequestId>{first.headers['x-amz-request-id']}</RequestId>".encode() in first.body
    assert b"<Code>NoSuchKey</Code>" in first.body
    assert b"<Resource>/bucket/nothing</Resource>" in first.body
    assert first.headers["x-amz-request-id"] != second.headers["x-amz-request-id"]


async def test_head_has_no_body_when_it_fails(gateway: RunningGateway) -> None:
    """The error of a HEAD is its status alone, and the next answer is in step."""
    connection = await gateway.connect()

    await connection.send(
        gateway.signed("HEAD", "/bucket/nothing") + gateway.signed("GET", "/bucket/nothing")
    )
    head = await connection.answer(has_body=False)
    following = await connection.answer()

    assert head.status == 404
    assert following.status == 404
    assert following.body.startswith(b"<?xml")


async def test_a_bug_is_an_internal_error_when_an_operation_raises(
    gateway: RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    """What no rule foresaw answers 500 with the request id, and the log has the traceback under the same id."""
    gateway.store.fail["open_object"] = ZeroDivisionError("a bug")
    connection = await gateway.connect()

    with caplog.at_level(logging.ERROR):
        await connection.send(gateway.signed("GET", "/bucket/key"))
        answer = await connection.answer()

    assert answer.status == 500
    assert b"<Code>InternalError</Code>" in answer.body
    assert b"ZeroDivisionError" not in answer.body
    assert answer.headers["x-amz-request-id"] in caplog.text
    assert "ZeroDivisionError: a bug" in caplog.text
    assert gateway.stats.failures == 1


async def test_slow_down_when_storage_has_no_room(gateway: RunningGateway) -> None:
    """A failure of storage that passes is a 503 that SDKs retry."""
    gateway.store.fail["put_object"] = DiskFullError("no room", retry_after_s=3)
    client = gateway.client()

    with pytest.raises(ClientError) as raised:
        await in_thread(client.put_object, Bucket="bucket", Key="k", Body=b"x")

    assert raised.value.response["Error"]["Code"] == "SlowDown"
    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 503
    assert raised.value.response["ResponseMetadata"]["HTTPHeaders"]["retry-after"] == "3"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
async def test_access_is_denied_when_a_warm_object_is_asked_for_unsigned(
    gateway: RunningGateway, method: str
) -> None:
    """B26: nothing is served or changed before its signature was checked."""
    gateway.store.put("bucket", "key", b"secret")
    connection = await gateway.connect()

    await connection.send(
        f"{method} /bucket/key HTTP/1.1\r\nhost: {gateway.host}\r\ncontent-length: 0\r\n\r\n".encode()
    )
    answer = await connection.answer(has_body=method != "HEAD")

    assert answer.status == 403
    assert b"secret" not in answer.body
    assert gateway.store.data("bucket", "key") == b"secret"
    assert gateway.store.calls == []


async def test_not_implemented_when_an_operation_is_refused(gateway: RunningGateway) -> None:
    """B04: what is neither answered nor relayed is 501 with the reason, and leaves the object alone."""
    gateway.store.put("bucket", "key", b"bytes")
    client = gateway.client()

    with pytest.raises(ClientError) as raised:
        await in_thread(client.rename_object, Bucket="bucket", Key="key", RenameSource="other")

    assert raised.value.response["Error"]["Code"] == "NotImplemented"
    assert "two objects" in raised.value.response["Error"]["Message"]
    assert gateway.store.data("bucket", "key") == b"bytes"


@pytest.mark.parametrize(
    ("version", "body"), [("1.0", b"abcdef"), ("1.1", b"3\r\nabc\r\n3\r\ndef\r\n0\r\n\r\n")]
)
async def test_a_stream_when_nobody_knows_how_long_it_is(
    gateway: RunningGateway, version: str, body: bytes
) -> None:
    """It goes in chunks to who knows them, else up to the end of the connection; an odd status is passed on."""
    gateway.store.make_bucket("bucket")
    gateway.store.script.append([b"abc", b"", b"def"])
    gateway.store.replies.append((299, (("x-new", "1"),), None))
    connection = await gateway.connect()
    head = gateway.signed("GET", "/bucket?newfeature", {"connection": "close"})

    await connection.send(head.replace(b" HTTP/1.1\r\n", f" HTTP/{version}\r\n".encode()))
    status, headers = await connection.head()

    assert (status, headers["x-new"]) == (299, "1")
    assert ("transfer-encoding" in headers) == (version == "1.1")
    assert "content-length" not in headers
    assert await connection.reader.read(-1) == body
    assert gateway.store.bodies[-1].is_closed


async def test_a_stream_ends_with_its_client_when_nothing_is_sent(gateway: RunningGateway) -> None:
    """What an operation that was asked by POST still answers is let go while it is waited for."""
    gateway.store.make_bucket("bucket")
    gateway.store.script.append([b"abc"])
    gateway.store.replies.append((200, (), None))
    gate = gateway.store.gates["next_piece"] = Gate()
    connection = await gateway.connect()

    await connection.send(gateway.signed("POST", "/bucket/key?select", {"content-length": "0"}))
    await gate.reached.wait()
    connection.writer.transport.abort()

    async with asyncio.timeout(5):
        await until(lambda: gateway.store.bodies[-1].is_closed)
    assert not gate.opened.is_set()


# --- Expect, early errors, what is left of a body -------------------------------------------------------------------------


async def test_continue_comes_before_the_body_when_the_client_waits_for_it(gateway: RunningGateway) -> None:
    """B31: a client that sends its head only is told to go on, then gets its answer on the same connection."""
    connection = await gateway.connect()
    head = gateway.signed("PUT", "/bucket/key", {"content-length": "5"}, unsigned={"expect": "100-continue"})

    await connection.send(head)
    interim = await connection.reader.readuntil(b"\r\n\r\n")
    await connection.send(b"hello")
    answer = await connection.answer()
    await connection.send(gateway.signed("GET", "/bucket/key"))
    got = await connection.answer()

    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.status == 200
    assert got.body == b"hello"


async def test_no_continue_when_the_client_sends_without_waiting(gateway: RunningGateway) -> None:
    """A body that is already there needs no leave: the first answer is the final one."""
    connection = await gateway.connect()
    head = gateway.signed("PUT", "/bucket/key", {"content-length": "5"}, unsigned={"expect": "100-continue"})

    await connection.send(head + b"hello")
    answer = await connection.answer()

    assert answer.status == 200
    assert gateway.store.data("bucket", "key") == b"hello"


@pytest.mark.parametrize(
    ("target", "access_key", "status", "code"),
    [
        ("/bucket/key?versionId=x", "forebay-access", 400, b"InvalidArgument"),
        ("/bucket/key", "unknown", 403, b"InvalidAccessKeyId"),
    ],
)
async def test_the_error_is_final_when_a_waiting_client_is_refused_by_its_head(
    gateway: RunningGateway, target: str, access_key: str, status: int, code: bytes
) -> None:
    """B31: no 100 before an error that the head alone decides; the connection ends, as its state would be unclear."""
    connection = await gateway.connect()
    head = gateway.signed(
        "PUT",
        target,
        {"content-length": "5000000"},
        unsigned={"expect": "100-continue"},
        access_key=access_key,
    )

    await connection.send(head)
    answer = await connection.answer()
    rest = await connection.reader.read()

    assert answer.status == status
    assert code in answer.body
    assert answer.headers["connection"] == "close"
    assert rest == b""


async def test_the_answer_arrives_when_a_long_body_is_refused(gateway: RunningGateway) -> None:
    """B32: a client that sends 20 MiB before it reads still finds the 403, then the end of the connection."""
    connection = await gateway.connect()
    head = gateway.signed("PUT", "/bucket/key", {"content-length": str(20 << 20)}, access_key="unknown")

    await connection.send(head)
    for _ in range(20):
        await connection.send(bytes(1 << 20))
    answer = await connection.answer()
    rest = await connection.reader.read()

    assert answer.status == 403
    assert answer.headers["connection"] == "close"
    assert rest == b""


async def test_no_such_bucket_when_a_whole_body_was_sent_to_nowhere(gateway: RunningGateway) -> None:
    """B32: boto3 reads NoSuchBucket after a 20 MiB PUT, not a reset."""
    client = gateway.client()

    with pytest.raises(ClientError) as raised:
        await in_thread(client.put_object, Bucket="missing", Key="k", Body=bytes(20 << 20))

    assert raised.value.response["Error"]["Code"] == "NoSuchBucket"


async def test_a_body_is_no_request_when_its_own_request_was_refused(gateway: RunningGateway) -> None:
    """B32: a refused PUT whose body looks like a request does not smuggle it in; the connection stays in step."""
    gateway.store.put("bucket", "victim", b"x")
    connection = await gateway.connect()
    smuggled = gateway.signed("DELETE", "/bucket/victim")
    head = gateway.signed("PUT", "/bucket/key", {"content-length": str(len(smuggled))}, access_key="unknown")

    await connection.send(head + smuggled)
    refused = await connection.answer()
    await connection.send(gateway.signed("HEAD", "/bucket/victim"))
    found = await connection.answer(has_body=False)

    assert refused.status == 403
    assert "connection" not in refused.headers
    assert found.status == 200
    assert gateway.store.data("bucket", "victim") == b"x"


async def test_answers_keep_their_order_when_requests_are_pipelined(gateway: RunningGateway) -> None:
    """Requests sent without waiting are answered in order, each with its own bytes."""
    bodies = {f"k{number}": bytes([65 + number]) * (number * 40_000 + 1) for number in range(5)}
    for key, data in bodies.items():
        gateway.store.put("bucket", key, data)
    connection = await gateway.connect()

    await connection.send(b"".join(gateway.signed("GET", f"/bucket/{key}") for key in bodies))
    answers = [await connection.answer() for _ in bodies]

    assert [answer.body for answer in answers] == list(bodies.values())


async def test_the_connection_closes_when_the_client_asks_for_it(gateway: RunningGateway) -> None:
    """Connection: close is honoured, and said."""
    gateway.store.put("bucket", "key", b"abc")
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/bucket/key", unsigned={"connection": "close"}))
    answer = await connection.answer()
    rest = await connection.reader.read()

    assert answer.body == b"abc"
    assert answer.headers["connection"] == "close"
    assert rest == b""


async def test_the_key_is_as_sent_when_it_looks_like_a_path(gateway: RunningGateway) -> None:
    """B21, B22: keys with slashes, dots, blanks and percent signs are stored and found byte for byte."""
    client = gateway.client()
    keys = ["/lead", "//two", "mid//dle", "tail//", "a/../b", "..", "./a", "a b+c%2F@:\u00fc\u65e5", "a%25b"]

    for key in keys:
        await in_thread(client.put_object, Bucket="bucket", Key=key, Body=key.encode())
    listed = await in_thread(client.list_objects_v2, Bucket="bucket")

    assert [entry["Key"] for entry in listed["Contents"]] == sorted(keys)
    assert all(gateway.store.data("bucket", key) == key.encode() for key in keys)


async def test_a_long_presigned_url_works_when_the_key_has_1023_bytes(gateway: RunningGateway) -> None:
    """B27: a request line of 7 kB is no error."""
    key = "\u65e5" * 341
    gateway.store.put("bucket", key, b"far")
    client = gateway.client(signature_version="s3v4")
    params = {"Bucket": "bucket", "Key": key, "ResponseContentDisposition": "x" * 3000}
    url = client.generate_presigned_url("get_object", Params=params)
    connection = await gateway.connect()

    target = url.removeprefix(f"http://{gateway.host}")
    await connection.send(f"GET {target} HTTP/1.1\r\nhost: {gateway.host}\r\n\r\n".encode())
    answer = await connection.answer()

    assert len(target) > 6000
    assert answer.status == 200
    assert answer.body == b"far"
    assert answer.headers["content-disposition"] == "x" * 3000


async def test_the_bucket_is_in_the_host_when_a_domain_is_set(tmp_path: Path) -> None:
    """Virtual-host style reads the bucket from the name, and /metrics is then a key of it."""
    async with running_gateway(str(tmp_path / "log"), domains=("s3.test",)) as gateway:
        gateway.store.put("bucket", "metrics", b"an object")
        connection = await gateway.connect()

        await connection.send(gateway.signed("GET", "/metrics", {"host": "bucket.s3.test"}))
        signed = await connection.answer()
        await connection.send(b"GET /metrics HTTP/1.1\r\nhost: bucket.s3.test\r\n\r\n")
        unsigned = await connection.answer()

    assert signed.body == b"an object"
    assert unsigned.status == 403


async def test_slow_down_when_there_are_too_many_connections(tmp_path: Path) -> None:
    """A connection over the limit gets one 503 and its end; those within it go on."""
    async with running_gateway(str(tmp_path / "log"), connections_max=1) as gateway:
        gateway.store.put("bucket", "key", b"abc")
        first, second = await gateway.connect(), await gateway.connect()

        await second.send(gateway.signed("GET", "/bucket/key"))
        refused = await second.answer()
        rest = await second.reader.read()
        await first.send(gateway.signed("GET", "/bucket/key"))
        served = await first.answer()

    assert refused.status == 503
    assert b"<Code>SlowDown</Code>" in refused.body
    assert rest == b""
    assert served.body == b"abc"
    assert gateway.stats.refused_connections == 1


async def test_a_read_ends_when_its_client_leaves(gateway: RunningGateway) -> None:
    """A GET that waits for the origin is given up once its client is gone, and is counted as that."""
    gate = gateway.store.gates["open_object"] = Gate()
    connection = await gateway.connect()
    await connection.send(gateway.signed("GET", "/bucket/key"))
    await gate.reached.wait()

    await connection.close()
    await until(lambda: gateway.stats.requests)

    assert dict(gateway.stats.requests) == {("GetObject", 499): 1}


async def test_a_write_goes_on_when_its_client_leaves(gateway: RunningGateway) -> None:
    """A PUT whose body is complete happens, whether or not its client hears of it."""
    gate = gateway.store.gates["put_object_taken"] = Gate()
    connection = await gateway.connect()
    await connection.send(gateway.signed("PUT", "/bucket/key", {"content-length": "5"}) + b"hello")
    await gate.reached.wait()

    await connection.close()
    await pause(0.05)
    gate.opened.set()
    await until(lambda: gateway.stats.requests)

    assert gateway.store.data("bucket", "key") == b"hello"


async def test_the_origin_fails_whole_when_no_byte_was_sent(gateway: RunningGateway) -> None:
    """An error of the first piece is an error answer, not a cut connection."""
    gateway.store.put("bucket", "key", bytes(100))
    gateway.store.script.append([OriginUnavailableError("gone", status=0, code="Connection")])
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/bucket/key"))
    answer = await connection.answer()

    assert answer.status == 503
    assert b"<Code>ServiceUnavailable</Code>" in answer.body
    assert gateway.store.bodies[0].is_closed


async def test_running_requests_end_when_the_server_stops(tmp_path: Path) -> None:
    """A stop lets a request that runs finish with a whole answer, and closes its connection."""
    store = FakeStore()
    store.put("bucket", "key", b"abc")
    gate = store.gates["open_object"] = Gate()
    async with running_gateway(str(tmp_path / "log"), store=store) as gateway:
        connection, idle = await gateway.connect(), await gateway.connect()
        await connection.send(gateway.signed("GET", "/bucket/key"))
        await gate.reached.wait()

        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            tasks.create_task(gateway.server.stop(60.0))
            idle_rest = await idle.reader.read()
            gate.opened.set()
            answer = await connection.answer()

    assert answer.body == b"abc"
    assert answer.headers["connection"] == "close"
    assert idle_rest == b""


async def test_requests_are_logged_when_they_end(gateway: RunningGateway) -> None:
    """The access log has one line a request with what was asked, answered and moved."""
    client = gateway.client()

    await in_thread(client.put_object, Bucket="bucket", Key="k", Body=b"hello")
    await in_thread((await in_thread(client.get_object, Bucket="bucket", Key="k"))["Body"].read)
    with pytest.raises(ClientError):
        await in_thread(client.get_object, Bucket="bucket", Key="none")
    entries = await gateway.log()

    assert [(e.operation, e.key, e.status, e.code, e.cache) for e in entries] == [
        ("PutObject", "k", 200, "", ""),
        ("GetObject", "k", 200, "", "HIT"),
        ("GetObject", "none", 404, "NoSuchKey", ""),
    ]
    assert entries[0].bytes_in >= 5
    assert entries[1].bytes_out == 5
    assert all(entry.bucket == "bucket" and entry.duration_s > 0 and not entry.is_cut for entry in entries)


async def test_admin_verbs_are_denied_when_the_key_has_no_right(gateway: RunningGateway) -> None:
    """A key that may use S3 may not use what lies under /-/."""
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/-/status", access_key=PLAIN_KEY))
    denied = await connection.answer()
    await connection.send(gateway.signed("GET", "/-/status"))
    allowed = await connection.answer()

    assert denied.status == 403
    assert allowed.status == 200
