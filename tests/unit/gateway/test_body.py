"""How bodies come in: framing off, digests checked before the last byte is given, memory bounded, aborts told apart."""

import asyncio
import base64
import hashlib
import random
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # ships no types

from gateway.body import MemoryBudget
from storage.origin import signing
from storage.requests import Content, PutRequest, PutResult
from tests.fakes.engine import FakeStore
from tests.fakes.gateway import RawConnection, RunningGateway, in_thread, running_gateway, until

MIB = 1024 * 1024
BODY = random.Random(7).randbytes(3 * MIB + 17)


class RecordingStore(FakeStore):
    """Keeps the pieces as they came, and what was charged for them."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces_taken: list[bytes] = []
        self.budget: MemoryBudget | None = None
        self.charged: list[int] = []

    async def put_object(self, request: PutRequest, content: Content) -> PutResult:
        self._bucket(request.name.bucket)
        async for piece in content.chunks():
            self.pieces_taken.append(piece)
            assert self.budget is not None
            self.charged.append(self.budget.taken_bytes)
        return PutResult("etag", self.now_s, content.checksums())


@pytest.fixture
async def recorded(tmp_path: Path) -> AsyncIterator[tuple[RecordingStore, RunningGateway]]:
    """A gateway over a store that keeps the pieces."""
    store = RecordingStore()
    store.make_bucket("bucket")
    async with running_gateway(str(tmp_path / "log"), store=store) as gateway:
        store.budget = gateway.budget
        yield store, gateway


def md5(data: bytes) -> str:
    """Write a Content-MD5."""
    return base64.b64encode(hashlib.md5(data).digest()).decode()


def crc32(data: bytes) -> str:
    """Write a CRC32 checksum."""
    return base64.b64encode(zlib.crc32(data).to_bytes(4)).decode()


def framed(data: bytes, chunk_bytes: int, trailer: str = "") -> bytes:
    """Write a body in unsigned aws-chunked form."""
    chunks = [data[at : at + chunk_bytes] for at in range(0, len(data), chunk_bytes)]
    lines = b"".join(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n" for chunk in chunks)
    return lines + b"0\r\n" + (f"{trailer}\r\n" if trailer else "").encode() + b"\r\n"


async def put(
    connection: RawConnection, gateway: RunningGateway, body: bytes, headers: dict[str, str]
) -> int:
    """Put a body with these headers; give the status."""
    payload = headers.pop("x-amz-content-sha256", "UNSIGNED-PAYLOAD")
    headers.setdefault("content-length", str(len(body)))
    await connection.send(gateway.signed("PUT", "/bucket/key", headers, payload) + body)
    return (await connection.answer()).status


# --- what is declared is checked ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content-md5": md5(BODY)}, 200),
        ({"content-md5": md5(b"other")}, 400),
        ({"content-md5": "nonsense"}, 400),
        ({"x-amz-checksum-crc32": crc32(BODY)}, 200),
        ({"x-amz-checksum-crc32": crc32(b"other")}, 400),
        ({"x-amz-content-sha256": hashlib.sha256(BODY).hexdigest()}, 200),
        ({"x-amz-content-sha256": hashlib.sha256(b"other").hexdigest()}, 400),
    ],
)
async def test_the_old_object_stays_when_a_digest_is_wrong(
    gateway: RunningGateway, headers: dict[str, str], status: int
) -> None:
    """B30: a body that is not what it was declared to be replaces nothing."""
    gateway.store.put("bucket", "key", b"old")
    connection = await gateway.connect()

    answered = await put(connection, gateway, BODY, dict(headers))

    assert answered == status
    assert gateway.store.data("bucket", "key") == (BODY if status == 200 else b"old")


async def test_the_last_piece_is_withheld_when_a_digest_is_wrong(
    recorded: tuple[RecordingStore, RunningGateway],
) -> None:
    """Whoever forwards the pieces never completes a body that was not verified."""
    store, gateway = recorded
    connection = await gateway.connect()

    status = await put(connection, gateway, BODY, {"content-md5": md5(b"other")})

    assert status == 400
    assert b"".join(store.pieces_taken) == BODY[: 3 * MIB]


async def test_pieces_are_a_mebibyte_when_there_is_memory(
    recorded: tuple[RecordingStore, RunningGateway],
) -> None:
    """A body comes in whole MiB and a rest, and all that it was charged is given back."""
    store, gateway = recorded
    connection = await gateway.connect()

    status = await put(connection, gateway, BODY, {})

    assert status == 200
    assert [len(piece) for piece in store.pieces_taken] == [MIB, MIB, MIB, 17]
    assert b"".join(store.pieces_taken) == BODY
    assert max(store.charged) < 2 * MIB
    assert gateway.budget.taken_bytes == 0


async def test_pieces_are_small_when_the_memory_is_spent(tmp_path: Path) -> None:
    """A body goes on without waiting when others hold the budget; nothing is lost and nothing is over-charged."""
    store = RecordingStore()
    store.make_bucket("bucket")
    async with running_gateway(str(tmp_path / "log"), store=store, budget_bytes=100_000) as gateway:
        store.budget = gateway.budget
        connection = await gateway.connect()

        status = await put(connection, gateway, BODY, {})

        assert status == 200
        assert b"".join(store.pieces_taken) == BODY
        assert max(len(piece) for piece in store.pieces_taken) < MIB
        assert max(store.charged) <= 100_000
        assert gateway.budget.taken_bytes == 0


async def test_an_empty_body_is_checked_when_it_has_a_digest(gateway: RunningGateway) -> None:
    """A body without bytes has no last piece; its digest counts all the same."""
    connection = await gateway.connect()

    wrong = await put(connection, gateway, b"", {"content-md5": md5(b"x")})
    right = await put(connection, gateway, b"", {"content-md5": md5(b"")})

    assert (wrong, right) == (400, 200)
    assert gateway.store.data("bucket", "key") == b""


# --- aws-chunked ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("chunk_bytes", [1000, 65536, 2 * MIB])
async def test_the_framing_is_taken_off_when_a_body_is_chunked(
    gateway: RunningGateway, chunk_bytes: int
) -> None:
    """B02, B28: the stored object holds the payload alone, and its Content-Encoding not the transport's token."""
    connection = await gateway.connect()
    body = framed(BODY, chunk_bytes, f"x-amz-checksum-crc32:{crc32(BODY)}")

    status = await put(
        connection,
        gateway,
        body,
        {
            "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
            "x-amz-decoded-content-length": str(len(BODY)),
            "x-amz-trailer": "x-amz-checksum-crc32",
            "content-encoding": "aws-chunked,gzip",
        },
    )
    await connection.send(gateway.signed("GET", "/bucket/key", {"x-amz-checksum-mode": "ENABLED"}))
    got = await connection.answer()

    assert status == 200
    assert got.body == BODY
    assert got.headers["content-encoding"] == "gzip"
    assert got.headers["x-amz-checksum-crc32"] == crc32(BODY)


@pytest.mark.parametrize(
    ("trailer", "decoded_length"),
    [
        (f"x-amz-checksum-crc32:{crc32(b'other')}", len(BODY)),
        ("", len(BODY)),
        (f"x-amz-checksum-crc32:{crc32(BODY)}", len(BODY) - 1),
        (f"x-amz-checksum-crc32:{crc32(BODY)}", len(BODY) + 1),
    ],
)
async def test_the_old_object_stays_when_the_framing_breaks_its_word(
    gateway: RunningGateway, trailer: str, decoded_length: int
) -> None:
    """A wrong or missing trailer, or another length than announced, is an error before anything is stored."""
    gateway.store.put("bucket", "key", b"old")
    connection = await gateway.connect()

    status = await put(
        connection,
        gateway,
        framed(BODY, 65536, trailer),
        {
            "x-amz-content-sha256": "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
            "x-amz-decoded-content-length": str(decoded_length),
            "x-amz-trailer": "x-amz-checksum-crc32",
        },
    )

    assert status == 400
    assert gateway.store.data("bucket", "key") == b"old"


async def test_signed_chunks_are_checked_when_boto_signs_them(gateway: RunningGateway) -> None:
    """Each chunk of a signed stream is verified with the key of the request; a changed byte is refused."""
    chunked = SignedChunks(gateway)
    connection = await gateway.connect()

    await connection.send(chunked.request(b"a" * 70_000, b"b" * 5))
    good = await connection.answer()
    await connection.send(chunked.request(b"a" * 70_000, b"b" * 5).replace(b"bbbbb", b"bbbbc"))
    bad = await connection.answer()

    assert good.status == 200
    assert bad.status == 403
    assert b"SignatureDoesNotMatch" in bad.body
    assert gateway.store.data("bucket", "key") == b"a" * 70_000 + b"b" * 5


class SignedChunks:
    """Writes a PUT of STREAMING-AWS4-HMAC-SHA256-PAYLOAD form, as AWS's documentation describes it."""

    def __init__(self, gateway: RunningGateway) -> None:
        self._gateway = gateway

    def request(self, *chunks: bytes) -> bytes:
        sizes = [len(f"{len(c):x};chunk-signature=\r\n\r\n") + 64 + len(c) for c in (*chunks, b"")]
        head = self._gateway.signed(
            "PUT",
            "/bucket/key",
            {
                "content-length": str(sum(sizes)),
                "x-amz-decoded-content-length": str(sum(map(len, chunks))),
            },
            "STREAMING-AWS4-HMAC-SHA256-PAYLOAD",
        )
        lines = dict(line.split(": ", 1) for line in head.decode().rstrip("\r\n").split("\r\n")[1:])
        amz_date = lines["x-amz-date"]
        key = signing.signing_key("forebay-secret", amz_date[:8], "us-east-1")
        scope = signing.credential_scope(amz_date[:8], "us-east-1")
        previous = lines["authorization"].rpartition("=")[2]
        body = bytearray()
        for chunk in (*chunks, b""):
            previous = signing.chunk_signature(
                key, amz_date, scope, previous, hashlib.sha256(chunk).hexdigest()
            )
            body += f"{len(chunk):x};chunk-signature={previous}\r\n".encode() + chunk + b"\r\n"
        return head + bytes(body)


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
async def test_the_checksum_is_given_back_when_boto3_chose_the_algorithm(
    gateway: RunningGateway, algorithm: str
) -> None:
    """Every checksum of the SDK is verified, stored and answered when asked for."""
    client = gateway.client()
    field = f"Checksum{algorithm}"

    put_answer: dict[str, Any] = await in_thread(
        client.put_object, Bucket="bucket", Key="key", Body=BODY, ChecksumAlgorithm=algorithm
    )
    head: dict[str, Any] = await in_thread(
        client.head_object, Bucket="bucket", Key="key", ChecksumMode="ENABLED"
    )

    assert gateway.store.data("bucket", "key") == BODY
    assert put_answer[field] == head[field]
    assert head["ChecksumType"] == "FULL_OBJECT"


async def test_gzip_stays_gzip_when_a_body_is_labelled_so(gateway: RunningGateway) -> None:
    """B06: a Content-Encoding is stored, never acted on, whether the bytes are what it says or not."""
    client = gateway.client()

    await in_thread(client.put_object, Bucket="bucket", Key="k", Body=b"plain bytes", ContentEncoding="gzip")

    assert gateway.store.data("bucket", "k") == b"plain bytes"
    assert dict(gateway.store.record("bucket", "k").headers)["content-encoding"] == "gzip"


# --- bodies that do not end well ------------------------------------------------------------------------------------------


async def test_the_old_object_stays_when_the_client_dies(gateway: RunningGateway) -> None:
    """B03: half a body replaces nothing, and the attempt is logged as incomplete."""
    gateway.store.put("bucket", "key", b"old")
    connection = await gateway.connect()

    await connection.send(gateway.signed("PUT", "/bucket/key", {"content-length": str(2 * MIB)}) + bytes(MIB))
    await connection.close()
    await until(lambda: gateway.stats.requests)
    entries = await gateway.log()

    assert gateway.store.data("bucket", "key") == b"old"
    assert [(entry.code, entry.is_cut) for entry in entries] == [("IncompleteBody", True)]
    assert gateway.budget.taken_bytes == 0


async def test_request_timeout_when_a_client_stops_sending(tmp_path: Path) -> None:
    """A body that stands still is given up, told, and its connection closed."""
    async with running_gateway(str(tmp_path / "log"), stalled_receive_s=0.2) as gateway:
        gateway.store.make_bucket("bucket")
        connection = await gateway.connect()

        await connection.send(gateway.signed("PUT", "/bucket/key", {"content-length": "100"}) + bytes(10))
        answer = await connection.answer()

    assert answer.status == 400
    assert b"<Code>RequestTimeout</Code>" in answer.body
    assert gateway.store.data("bucket", "key") is None


@pytest.mark.parametrize("payload", ["UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"])
async def test_missing_content_length_when_the_size_is_not_said(
    gateway: RunningGateway, payload: str
) -> None:
    """A PUT whose size is unknown is refused with 411 before its body."""
    connection = await gateway.connect()
    head = gateway.signed("PUT", "/bucket/key", {}, payload, unsigned={"transfer-encoding": "chunked"})

    await connection.send(head + b"5\r\nhello\r\n0\r\n\r\n")
    answer = await connection.answer()

    assert answer.status == 411
    assert b"<Code>MissingContentLength</Code>" in answer.body


async def test_a_chunked_transfer_works_when_the_payload_has_a_size(gateway: RunningGateway) -> None:
    """HTTP's own chunking round aws-chunked framing, as SDKs send streams without length, is taken off too."""
    connection = await gateway.connect()
    body = framed(b"hello", 3)
    head = gateway.signed(
        "PUT",
        "/bucket/key",
        {"x-amz-decoded-content-length": "5"},
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER",
        unsigned={"transfer-encoding": "chunked"},
    )

    await connection.send(head + f"{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n")
    answer = await connection.answer()

    assert answer.status == 200
    assert gateway.store.data("bucket", "key") == b"hello"


async def test_entity_too_large_when_a_put_says_so_in_its_head(gateway: RunningGateway) -> None:
    """More than 5 GiB is refused before the body, with no leave to send it."""
    connection = await gateway.connect()
    head = gateway.signed(
        "PUT", "/bucket/key", {"content-length": str(5 * 1024**3 + 1)}, unsigned={"expect": "100-continue"}
    )

    await connection.send(head)
    answer = await connection.answer()

    assert answer.status == 400
    assert b"<Code>EntityTooLarge</Code>" in answer.body
    assert gateway.store.calls == []


async def test_many_bodies_arrive_when_they_come_at_once(gateway: RunningGateway) -> None:
    """Bodies that share the budget do not mix and do not block each other."""
    client = gateway.client(max_pool_connections=12)
    bodies = {f"k{number}": random.Random(number).randbytes(2 * MIB + number) for number in range(12)}

    async with asyncio.TaskGroup() as tasks:
        for key, data in bodies.items():
            tasks.create_task(in_thread(client.put_object, Bucket="bucket", Key=key, Body=data))

    assert all(gateway.store.data("bucket", key) == data for key, data in bodies.items())
    assert gateway.budget.taken_bytes == 0


async def test_a_small_document_is_refused_when_it_is_too_long(gateway: RunningGateway) -> None:
    """A document that is read whole has a limit, told by the head."""
    connection = await gateway.connect()
    head = gateway.signed(
        "POST", "/bucket?delete=", {"content-length": str(9 * MIB), "content-md5": md5(b"")}
    )

    await connection.send(head)
    answer = await connection.answer()

    assert answer.status == 400
    assert b"<Code>MaxMessageLengthExceeded</Code>" in answer.body


async def test_a_presigned_put_is_checked_when_its_url_covers_the_body(gateway: RunningGateway) -> None:
    """A body put with a presigned URL arrives; headers that were not signed are refused."""
    client = gateway.client(signature_version="s3v4")
    url = client.generate_presigned_url("put_object", Params={"Bucket": "bucket", "Key": "key"})
    target = url.removeprefix(f"http://{gateway.host}")
    connection = await gateway.connect()

    await connection.send(
        f"PUT {target} HTTP/1.1\r\nhost: {gateway.host}\r\ncontent-length: 2\r\n\r\nhi".encode()
    )
    stored = await connection.answer()
    await connection.send(
        f"PUT {target} HTTP/1.1\r\nhost: {gateway.host}\r\nx-amz-acl: public-read\r\ncontent-length: 2\r\n\r\nno".encode()
    )
    refused = await connection.answer()

    assert stored.status == 200
    assert refused.status == 403
    assert gateway.store.data("bucket", "key") == b"hi"


def test_bytes_cannot_be_given_back_when_nobody_took_them() -> None:
    """The budget notices a body that gives back more than it took."""
    budget = MemoryBudget(10)

    assert budget.take(10)
    assert not budget.take(1)
    with pytest.raises(AssertionError):
        budget.give(11)


async def test_nothing_is_stored_when_a_part_is_cut(gateway: RunningGateway) -> None:
    """B03: a part whose body breaks off is not recorded."""
    client = gateway.client()
    upload = await in_thread(client.create_multipart_upload, Bucket="bucket", Key="key")
    connection = await gateway.connect()
    target = f"/bucket/key?partNumber=1&uploadId={upload['UploadId']}"

    await connection.send(gateway.signed("PUT", target, {"content-length": str(MIB)}) + bytes(1000))
    await connection.close()
    await until(lambda: ("UploadPart", 400) in gateway.stats.requests)
    with pytest.raises(ClientError):
        await in_thread(
            client.complete_multipart_upload, Bucket="bucket", Key="key", UploadId=upload["UploadId"]
        )
    parts = await in_thread(client.list_parts, Bucket="bucket", Key="key", UploadId=upload["UploadId"])

    assert "Parts" not in parts
