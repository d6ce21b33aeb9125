"""Rows of the list of pitfalls, each by its whole kind, over a real socket: keys, headers, digests, signatures, errors."""

import base64
import hashlib
import zlib
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest

from storage.clock import SystemClock
from storage.origin.signing import format_amz_date
from storage.requests import UploadRequest
from storage.types import MIB, ObjectName
from tests.fakes.gateway import Answer, RunningGateway, in_thread, running_gateway

ODD_KEYS = [
    "plain", "with space", " lead and trail ", "+", "a+b", "%", "%2F", "%25", "a%20b", "100%", "a:b@c", "a&b=c?d#e", "'\"<>", "~-._",
    "[]{}|\\^`", "*$!(),;", "\u00fc\u00e9", "u\u0308", "\u65e5\u672c/\u8a9e", "\U0001f600", "\U0010ffff", "\uffff", "\ue000",
    "\x01\x1f\x7f", "a\tb\nc\rd", "/lead", "//two", "mid//dle", "tail//", "/", ".", "..", "./a", "a/../b", "a/./b", "../../etc/passwd",
    "CASE", "case", "-", "-/status", "metrics", "k" * 1024, "\u65e5" * 341 + "x",
]  # fmt: skip
"""With each other they are distinct, whatever a framework would make of them."""


async def ask(
    gateway: RunningGateway,
    method: str,
    target: str,
    headers: dict[str, str] | None = None,
    body: bytes = b"",
    mode: str = "UNSIGNED-PAYLOAD",
) -> Answer:
    """Send one signed request on a connection of its own."""
    connection = await gateway.connect()
    given = {**(headers or {}), **({"content-length": str(len(body))} if method in {"PUT", "POST"} else {})}
    await connection.send(gateway.signed(method, target, given, mode) + body)
    return await connection.answer(has_body=method != "HEAD")


async def test_every_operation_finds_its_key_when_it_is_odd(gateway: RunningGateway) -> None:
    """B21, B22: put, get, head, list, list by prefix, presigned get, copy and delete, as boto3 does them, byte for byte."""
    client = gateway.client(signature_version="s3v4")

    def put_all() -> None:
        for key in ODD_KEYS:
            client.put_object(Bucket="bucket", Key=key, Body=key.encode())

    def read(key: str) -> dict[str, Any]:
        url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": key})
        client.copy_object(Bucket="copies", Key=key, CopySource={"Bucket": "bucket", "Key": key})
        with urlopen(url) as answer:
            presigned = answer.read()
        return {
            "get": client.get_object(Bucket="bucket", Key=key)["Body"].read(),
            "head": client.head_object(Bucket="bucket", Key=key)["ContentLength"],
            "listed": [e["Key"] for e in client.list_objects_v2(Bucket="bucket", Prefix=key)["Contents"]],
            "presigned": presigned,
        }

    gateway.store.make_bucket("copies")
    await in_thread(put_all)
    listed = await in_thread(client.list_objects_v2, Bucket="bucket")
    for key in ODD_KEYS:
        found = await in_thread(read, key)

        assert found["get"] == found["presigned"] == gateway.store.data("copies", key) == key.encode(), key
        assert found["head"] == len(key.encode())
        assert key in found["listed"]
        assert all(other.startswith(key) for other in found["listed"])
    assert [entry["Key"] for entry in listed["Contents"]] == sorted(ODD_KEYS)

    for key in ODD_KEYS:
        await in_thread(client.delete_object, Bucket="bucket", Key=key)
        assert gateway.store.data("bucket", key) is None
    assert all(gateway.store.data("copies", key) is not None for key in ODD_KEYS)


@pytest.mark.parametrize(
    ("key", "status"), [("k" * 1024, 200), ("k" * 1025, 400), ("\u00fc" * 512, 200), ("\u00fc" * 513, 400)]
)
async def test_a_key_has_1024_bytes_when_it_is_as_long_as_may_be(
    gateway: RunningGateway, key: str, status: int
) -> None:
    """B27: bytes count, not characters; one more is KeyTooLongError with its size."""
    answer = await ask(gateway, "PUT", f"/bucket/{quote(key)}", body=b"x")

    assert answer.status == status
    if status == 400:
        assert b"<Code>KeyTooLongError</Code>" in answer.body
        assert (
            f"<Size>{len(key.encode())}</Size><MaxSizeAllowed>1024</MaxSizeAllowed>".encode() in answer.body
        )


@pytest.mark.parametrize("size", [MIB + 1, 33 * MIB + 1])
async def test_a_body_is_taken_when_it_is_longer_than_a_frameworks_limit(
    gateway: RunningGateway, size: int
) -> None:
    """B27: no 413, whatever the length."""
    answer = await ask(gateway, "PUT", "/bucket/key", body=bytes(size))

    assert answer.status == 200
    assert answer.headers["etag"] == f'"{hashlib.md5(bytes(size)).hexdigest()}"'


# --- headers ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("aws-chunked", None),
        ("aws-chunked,gzip", "gzip"),
        ("gzip, aws-chunked", "gzip"),
        ("AWS-Chunked", None),
        ("", None),
        ("gzip", "gzip"),
    ],
)
@pytest.mark.parametrize("is_upload", [False, True])
async def test_the_encoding_of_the_transport_is_not_the_objects(
    gateway: RunningGateway, sent: str, kept: str | None, is_upload: bool
) -> None:
    """B28: aws-chunked is never stored nor answered, in one PUT and in an upload alike; what is left stays."""
    if is_upload:
        await ask(gateway, "POST", "/bucket/key?uploads", {"content-encoding": sent})
        headers = dict(gateway.store.upload_requests[-1].headers)
    else:
        data = b"5\r\nhello\r\n0\r\n\r\n"
        named = {"content-encoding": sent, "x-amz-decoded-content-length": "5"}
        put = await ask(gateway, "PUT", "/bucket/key", named, data, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
        got = await ask(gateway, "GET", "/bucket/key")
        assert (put.status, got.body) == (200, b"hello")
        headers = got.headers

    assert headers.get("content-encoding") == kept


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        ("plain", "plain"),
        ("\u00fc", "=?UTF-8?B?w7w=?="),
        ("\u65e5\u672c", "=?UTF-8?B?5pel5pys?="),
        ("=?UTF-8?B?w7w=?=", "=?UTF-8?B?w7w=?="),
        ("a\tb", "a\tb"),
        ("  x  y ", "x  y"),
        ("", ""),
    ],
)
async def test_metadata_is_answered_as_s3_does_when_it_is_no_ascii(
    gateway: RunningGateway, sent: str, answered: str
) -> None:
    """AWS "Working with object metadata": what is no ASCII comes back as a word of RFC 2047, in GET and HEAD alike."""
    put = await ask(gateway, "PUT", "/bucket/key", {"x-amz-meta-a": sent}, b"x")
    got, head = [await ask(gateway, method, "/bucket/key") for method in ("GET", "HEAD")]

    assert put.status == 200
    assert got.headers["x-amz-meta-a"] == head.headers["x-amz-meta-a"] == answered


async def test_values_are_joined_when_a_header_is_sent_twice(gateway: RunningGateway) -> None:
    """RFC 9110 section 5.3, and how SigV4 signs them: in order, with commas."""
    signed = gateway.signed("PUT", "/bucket/key", {"content-length": "1", "x-amz-meta-a": "1,2"})
    twice = signed.replace(b"x-amz-meta-a: 1,2\r\n", b"x-amz-meta-a: 1\r\nX-Amz-Meta-A:   2  \r\n")
    connection = await gateway.connect()

    await connection.send(twice + b"x")
    put = await connection.answer()
    got = await ask(gateway, "GET", "/bucket/key")

    assert twice != signed
    assert put.status == 200
    assert got.headers["x-amz-meta-a"] == "1,2"


OVERRIDES = {
    "response-cache-control": ("cache-control", "no-store"),
    "response-content-disposition": ("content-disposition", 'attachment; filename="a b.txt"'),
    "response-content-encoding": ("content-encoding", "x"),
    "response-content-language": ("content-language", "mi, en"),
    "response-content-type": ("content-type", "a/b; charset=c"),
    "response-expires": ("expires", "Thu, 01 Dec 1994 16:00:00 GMT"),
}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_every_override_lasts_one_answer(gateway: RunningGateway, method: str) -> None:
    """B35: all six, with and without a range; the next answer is the stored one; unsigned ones are refused."""
    gateway.store.put("bucket", "key", b"0123456789", headers=(("content-type", "t/u"),))
    query = "&".join(f"{name}={quote(value)}" for name, (_, value) in OVERRIDES.items())

    whole = await ask(gateway, method, f"/bucket/key?{query}")
    part = await ask(gateway, method, f"/bucket/key?{query}", {"range": "bytes=0-1"})
    plain = await ask(gateway, method, "/bucket/key")

    assert (whole.status, part.status) == (200, 206)
    for answer in (whole, part):
        assert {header: answer.headers[header] for header, _ in OVERRIDES.values()} == dict(
            OVERRIDES.values()
        )
    assert plain.headers["content-type"] == "t/u"
    assert "content-disposition" not in plain.headers


async def test_dates_agree_to_the_second_when_they_are_asked_for_anywhere(gateway: RunningGateway) -> None:
    """B34: GET, HEAD and both listings say the same date, and a condition on that date says 304."""
    client = gateway.client()
    await in_thread(client.put_object, Bucket="bucket", Key="key", Body=b"x")

    got = (await in_thread(client.get_object, Bucket="bucket", Key="key"))["LastModified"]
    head = (await in_thread(client.head_object, Bucket="bucket", Key="key"))["LastModified"]
    lists = [
        (await in_thread(call, Bucket="bucket"))["Contents"][0]["LastModified"]
        for call in (client.list_objects, client.list_objects_v2)
    ]
    answer = await ask(gateway, "HEAD", "/bucket/key")
    since = await ask(gateway, "GET", "/bucket/key", {"if-modified-since": answer.headers["last-modified"]})

    assert got == head == lists[0] == lists[1]
    assert (since.status, since.body) == (304, b"")


# --- digests ------------------------------------------------------------------------------------------------------------


def b64(data: bytes) -> str:
    """Write a digest as headers have it."""
    return base64.b64encode(data).decode()


WRONG: list[tuple[dict[str, str], str, str]] = [
    ({"content-md5": b64(hashlib.md5(b"other").digest())}, "UNSIGNED-PAYLOAD", "BadDigest"),
    ({"content-md5": "x"}, "UNSIGNED-PAYLOAD", "InvalidDigest"),
    ({"x-amz-checksum-crc32": b64(zlib.crc32(b"other").to_bytes(4))}, "UNSIGNED-PAYLOAD", "BadDigest"),
    ({"x-amz-checksum-crc32c": "AAAAAA=="}, "UNSIGNED-PAYLOAD", "BadDigest"),
    ({"x-amz-checksum-crc64nvme": "AAAAAAAAAAA="}, "UNSIGNED-PAYLOAD", "BadDigest"),
    ({"x-amz-checksum-sha1": b64(hashlib.sha1(b"other").digest())}, "UNSIGNED-PAYLOAD", "BadDigest"),
    ({"x-amz-checksum-sha256": b64(hashlib.sha256(b"other").digest())}, "UNSIGNED-PAYLOAD", "BadDigest"),
    ({}, hashlib.sha256(b"other").hexdigest(), "XAmzContentSHA256Mismatch"),
]


@pytest.mark.parametrize(("headers", "mode", "code"), WRONG)
@pytest.mark.parametrize("is_part", [False, True])
async def test_nothing_changes_when_any_digest_is_wrong(
    gateway: RunningGateway, headers: dict[str, str], mode: str, code: str, is_part: bool
) -> None:
    """B30: of an object and of a part: 400 with the right code, the old bytes and the old part stay."""
    gateway.store.put("bucket", "key", b"old")
    upload_id, _ = await gateway.store.create_upload(UploadRequest(ObjectName("bucket", "key")))
    part = f"/bucket/key?partNumber=1&uploadId={upload_id}"
    await ask(gateway, "PUT", part, body=b"old part")
    before = await ask(gateway, "GET", f"/bucket/key?uploadId={upload_id}")

    answer = await ask(gateway, "PUT", part if is_part else "/bucket/key", headers, b"the body", mode)
    after = await ask(gateway, "GET", f"/bucket/key?uploadId={upload_id}")

    assert answer.status == 400
    assert f"<Code>{code}</Code>".encode() in answer.body
    assert gateway.store.data("bucket", "key") == b"old"
    assert before.body == after.body
    assert b"<PartNumber>1</PartNumber>" in after.body


DOCUMENT = b"<Delete><Object><Key>a&amp;b</Key></Object><Object><Key>none</Key></Object></Delete>"


@pytest.mark.parametrize(
    ("headers", "mode"),
    [
        ({"content-md5": b64(hashlib.md5(DOCUMENT).digest())}, "UNSIGNED-PAYLOAD"),
        ({"x-amz-checksum-crc32": b64(zlib.crc32(DOCUMENT).to_bytes(4))}, "UNSIGNED-PAYLOAD"),
        ({"x-amz-checksum-sha256": b64(hashlib.sha256(DOCUMENT).digest())}, "UNSIGNED-PAYLOAD"),
        ({}, hashlib.sha256(DOCUMENT).hexdigest()),
    ],
)
async def test_keys_are_deleted_when_any_digest_covers_the_list(
    gateway: RunningGateway, headers: dict[str, str], mode: str
) -> None:
    """B29: Content-MD5, any checksum or a signed body will do; unknown keys count as deleted."""
    gateway.store.put("bucket", "a&b", b"x")

    answer = await ask(gateway, "POST", "/bucket?delete", headers, DOCUMENT, mode)

    assert answer.status == 200
    assert answer.body.count(b"<Deleted>") == 2
    assert gateway.store.data("bucket", "a&b") is None


@pytest.mark.parametrize(("headers", "mode", "code"), WRONG)
async def test_no_key_is_deleted_when_the_digest_of_the_list_is_wrong(
    gateway: RunningGateway, headers: dict[str, str], mode: str, code: str
) -> None:
    """B29: a list that may be damaged deletes nothing."""
    gateway.store.put("bucket", "a&b", b"x")

    answer = await ask(gateway, "POST", "/bucket?delete", headers, DOCUMENT, mode)

    assert answer.status == 400
    assert f"<Code>{code}</Code>".encode() in answer.body
    assert gateway.store.data("bucket", "a&b") == b"x"


# --- signatures of other kinds -------------------------------------------------------------------------------------------


def _amz_now() -> str:
    return format_amz_date(int(SystemClock().wall_s()))


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/bucket/key", "authorization: AWS AK:frJIUN8DYpKDtOLCwo//yllqDzg=\r\ndate: {http}\r\n"),
        ("/bucket/key?AWSAccessKeyId=AK&Expires=4000000000&Signature=x", ""),
        (
            "/bucket/key",
            (
                "authorization: AWS4-ECDSA-P256-SHA256 Credential=AK/20261130/s3/aws4_request, SignedHeaders=host, Signature=00\r\n"
                "x-amz-date: {amz}\r\nx-amz-region-set: *\r\n"
            ),
        ),
    ],
)
async def test_a_signature_of_another_version_is_refused_by_name(
    gateway: RunningGateway, target: str, headers: str
) -> None:
    """SigV2 in header and query, and SigV4A: 400 InvalidRequest that says which one to use, not a wrong signature."""
    connection = await gateway.connect()
    filled = headers.format(amz=_amz_now(), http="Mon, 30 Nov 2026 00:00:00 GMT")

    await connection.send(f"GET {target} HTTP/1.1\r\nhost: {gateway.host}\r\n{filled}\r\n".encode())
    answer = await connection.answer()

    assert answer.status == 400
    assert b"<Code>InvalidRequest</Code>" in answer.body
    assert b"Please use AWS4-HMAC-SHA256" in answer.body


async def test_a_presigned_url_of_version_4a_is_refused_by_name(gateway: RunningGateway) -> None:
    """The query names its algorithm, and the answer the one that there is."""
    connection = await gateway.connect()
    query = (
        f"X-Amz-Algorithm=AWS4-ECDSA-P256-SHA256&X-Amz-Credential=AK%2F20261130%2Fs3%2Faws4_request&X-Amz-Date={_amz_now()}"
        "&X-Amz-Expires=60&X-Amz-SignedHeaders=host&X-Amz-Region-Set=*&X-Amz-Signature=00"
    )

    await connection.send(f"GET /bucket/key?{query} HTTP/1.1\r\nhost: {gateway.host}\r\n\r\n".encode())
    answer = await connection.answer()

    assert answer.status == 400
    assert b'only supports "AWS4-HMAC-SHA256"' in answer.body.replace(b"&quot;", b'"')


# --- hosts ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ["my.dotted.bucket.s3.test", "my.dotted.bucket.s3.test:9000", "MY.dotted.bucket.S3.test:80"]
)
async def test_the_bucket_is_all_before_the_domain_when_it_has_dots(tmp_path: Path, host: str) -> None:
    """Dots, ports and case of a virtual-host name; the port is signed as it was sent."""
    async with running_gateway(str(tmp_path / "log"), domains=("s3.test", "test")) as gateway:
        gateway.store.put("my.dotted.bucket", "a/b", b"found")
        connection = await gateway.connect()

        await connection.send(gateway.signed("GET", "/a/b", {"host": host}))
        answer = await connection.answer()

    assert answer.body == b"found"


# --- errors ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "target", "headers", "elements"),
    [
        ("GET", "/bucket/a%26b", {}, "<Code>NoSuchKey</Code>...<Key>a&amp;b</Key>"),
        ("GET", "/missing", {}, "<Code>NoSuchBucket</Code>...<BucketName>missing</BucketName>"),
        ("GET", "/missing/key", {}, "<Code>NoSuchBucket</Code>...<BucketName>missing</BucketName>"),
        ("GET", "/bucket/key?uploadId=u%3C1", {}, "<Code>NoSuchUpload</Code>...<UploadId>u&lt;1</UploadId>"),
        ("GET", "/B!", {}, "<Code>InvalidBucketName</Code>...<BucketName>B!</BucketName>"),
        (
            "PATCH",
            "/bucket/key",
            {},
            "<Code>MethodNotAllowed</Code>...<Method>PATCH</Method><ResourceType>OBJECT</ResourceType>",
        ),
        (
            "GET",
            "/bucket?max-keys=x",
            {},
            "<ArgumentName>max-keys</ArgumentName><ArgumentValue>x</ArgumentValue>",
        ),
        (
            "GET",
            "/bucket/there",
            {"range": "bytes=9-"},
            "<Code>InvalidRange</Code>...<RangeRequested>bytes=9-</RangeRequested><ActualObjectSize>3</ActualObjectSize>",
        ),
        (
            "GET",
            "/bucket/there",
            {"if-match": '"x"'},
            "<Code>PreconditionFailed</Code>...<Condition>If-Match</Condition>",
        ),
        (
            "GET",
            "/bucket/there",
            {"if-unmodified-since": "Thu, 01 Jan 1970 00:00:00 GMT"},
            "<Code>PreconditionFailed</Code>...<Condition>If-Unmodified-Since</Condition>",
        ),
    ],
)
async def test_an_error_says_what_it_is_about(
    gateway: RunningGateway, method: str, target: str, headers: dict[str, str], elements: str
) -> None:
    """Code, message, S3's own elements, then resource, request id and host id, in S3's order."""
    gateway.store.put("bucket", "there", b"123")

    answer = await ask(gateway, method, target, headers)

    text = answer.body.decode()
    at = -1
    for element in [
        *elements.split("..."),
        f"<Resource>{target.partition('?')[0].replace('&', '&amp;')}</Resource>",
    ]:
        at = text.find(element, at + 1)
        assert at >= 0, (element, text)
    assert text.endswith(
        f"<RequestId>{answer.headers['x-amz-request-id']}</RequestId><HostId>{answer.headers['x-amz-id-2']}</HostId></Error>"
    )


async def test_a_copy_says_nothing_of_its_target_when_its_source_is_missing(gateway: RunningGateway) -> None:
    """The key of the request is not the one that was not found."""
    answer = await ask(gateway, "PUT", "/bucket/target", {"x-amz-copy-source": "/bucket/source"})

    assert answer.status == 404
    assert b"<Key>" not in answer.body


async def test_the_error_comes_before_the_body_when_the_bucket_is_missing(gateway: RunningGateway) -> None:
    """B31: nobody is told to send what will be refused anyway."""
    connection = await gateway.connect()
    head = {"content-length": "5000000"}

    await connection.send(gateway.signed("PUT", "/missing/key", head, unsigned={"expect": "100-continue"}))
    answer = await connection.answer()

    assert answer.status == 404
    assert b"<Code>NoSuchBucket</Code>" in answer.body
    assert answer.headers["connection"] == "close"


async def test_the_connection_goes_on_when_requests_are_refused(gateway: RunningGateway) -> None:
    """Errors of every road on one connection, with bodies and without, and each answer is the next request's."""
    gateway.store.put("bucket", "key", b"abc")
    connection = await gateway.connect()
    refused = [
        (gateway.signed("GET", "/bucket/none"), 404),
        (gateway.signed("PUT", "/bucket/key", {"content-length": "5"}, access_key="unknown") + b"hello", 403),
        (gateway.signed("PUT", "/bucket/key?acl&tagging", {"content-length": "5"}) + b"hello", 400),
        (gateway.signed("PUT", "/bucket/key", {"content-length": "5", "content-md5": "x"}) + b"hello", 400),
        (gateway.signed("POST", "/bucket?delete", {"content-length": "3"}) + b"<a>", 400),
        (gateway.signed("PATCH", "/bucket/key", {"content-length": "5"}) + b"hello", 405),
        (f"GET /bucket HTTP/1.1\r\nhost: {gateway.host}\r\n\r\n".encode(), 403),
        (gateway.signed("GET", "/bucket/key", {"range": "bytes=9-"}), 416),
    ]

    for sent, status in refused:
        await connection.send(sent)
        answer = await connection.answer()
        assert answer.status == status, sent
        assert "connection" not in answer.headers
    await connection.send(gateway.signed("GET", "/bucket/key"))
    last = await connection.answer()

    assert last.body == b"abc"
