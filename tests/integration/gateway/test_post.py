"""Browser forms over a real socket: what is stored, what is answered, and what is refused without a trace."""

import base64
import hashlib
from pathlib import Path

import pytest

from storage.requests import Content, PutRequest, PutResult
from storage.types import MIB
from tests.fakes.engine import FakeStore
from tests.fakes.forms import BOUNDARY, TYPE, form, signed_fields
from tests.fakes.gateway import (
    PLAIN_KEY,
    Answer,
    RawConnection,
    RunningGateway,
    in_thread,
    running_gateway,
)


class PieceStore(FakeStore):
    """Notes the sizes of the pieces that it is given, of each body."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[list[int]] = []

    async def put_object(self, request: PutRequest, content: Content) -> PutResult:
        """Take a body piece by piece."""
        self.taken.append([])
        async for piece in content.chunks():
            self.taken[-1].append(len(piece))
        return await super().put_object(request, content)


def request(
    gateway: RunningGateway, body: bytes, target: str = "/bucket", headers: str = "", content_type: str = TYPE
) -> bytes:
    """Write the request that carries a form."""
    return (
        f"POST {target} HTTP/1.1\r\nhost: {gateway.host}\r\ncontent-type: {content_type}\r\n"
        f"content-length: {len(body)}\r\n{headers}\r\n".encode()
    ) + body


async def post(gateway: RunningGateway, body: bytes, **named: str) -> Answer:
    """Send a form on a connection of its own."""
    connection = await gateway.connect()
    await connection.send(request(gateway, body, **named))
    return await connection.answer()


async def test_a_form_of_boto3s_is_stored_when_its_policy_allows_it(gateway: RunningGateway) -> None:
    """boto3's generate_presigned_post, sent as it says: the object is there with its headers, and 204 names it."""
    presigned = await in_thread(
        gateway.client(signature_version="s3v4").generate_presigned_post,
        "bucket",
        "u/${filename}",
        Fields={
            "Content-Type": "text/css",
            "x-amz-meta-a": "b",
            "tagging": "<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>",
        },
        Conditions=[
            ["starts-with", "$Content-Type", "text/"],
            {"x-amz-meta-a": "b"},
            ["starts-with", "$tagging", ""],
            ["content-length-range", 1, 100],
        ],
    )

    answer = await post(gateway, form(presigned["fields"], b"hello", filename="C:\\a b.css"))

    record = gateway.store.record("bucket", "u/a b.css")
    assert answer.status == 204
    assert answer.headers["etag"] == '"5d41402abc4b2a76b9719d911017c592"'
    assert answer.headers["location"] == f"http://{gateway.host}/bucket/u/a%20b.css"
    assert gateway.store.data("bucket", "u/a b.css") == b"hello"
    assert dict(record.headers)["content-type"] == "text/css"
    assert dict(record.user_metadata) == {"a": "b"}
    assert record.tags == "k=v"
    assert gateway.store.put_requests[-1].credential_id == "admin-id"
    assert [(e.operation, e.key, e.status) for e in await gateway.log()] == [("PostObject", "u/a b.css", 204)]


@pytest.mark.parametrize(
    ("fields", "status"),
    [({}, 204), ({"success_action_status": "200"}, 200), ({"success_action_status": "404"}, 204)],
)
async def test_the_status_is_the_forms_choice_when_it_is_one(
    gateway: RunningGateway, fields: dict[str, str], status: int
) -> None:
    """200 and 204 are without a body; what is no choice means 204. The connection goes on."""
    connection = await gateway.connect()
    body = form(
        signed_fields({"key": "k", **fields}),
        b"x",
        after=f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="submit"\r\n\r\nUpload\r\n',
    )

    await connection.send(request(gateway, body) + gateway.signed("GET", "/bucket/k"))
    answer = await connection.answer(has_body=status != 204)
    found = await connection.answer()

    assert answer.status == status
    assert answer.body == b""
    assert found.body == b"x"


async def test_a_document_names_the_object_when_201_is_wanted(gateway: RunningGateway) -> None:
    """PostResponse has location, bucket, key and ETag."""
    answer = await post(
        gateway, form(signed_fields({"key": "a&b", "success_action_status": "201"}), b"hello")
    )

    assert answer.status == 201
    assert answer.headers["content-type"] == "application/xml"
    assert answer.body.endswith(
        f"<PostResponse><Location>http://{gateway.host}/bucket/a%26b</Location><Bucket>bucket</Bucket><Key>a&amp;b</Key>"
        "<ETag>&quot;5d41402abc4b2a76b9719d911017c592&quot;</ETag></PostResponse>".encode()
    )


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("http://h/p?q=1#f", "http://h/p?q=1&bucket=bucket&key=%C3%BC%2F1&etag=%22{etag}%22#f"),
        ("https://h", "https://h?bucket=bucket&key=%C3%BC%2F1&etag=%22{etag}%22"),
        ("javascript:alert(1)", ""),
        ("http://h/\r\nx: y", ""),
        ("http://[", ""),
        ("nowhere", ""),
    ],
)
@pytest.mark.parametrize("field", ["success_action_redirect", "redirect"])
async def test_a_success_leads_on_when_the_form_says_where(
    gateway: RunningGateway, url: str, location: str, field: str
) -> None:
    """303 with bucket, key and ETag in the query; a URL that is none counts as not sent (AWS "POST Object")."""
    answer = await post(gateway, form(signed_fields({"key": "\u00fc/1", field: url}), b"hello"))

    if location:
        assert answer.status == 303
        assert answer.headers["location"] == location.format(etag="5d41402abc4b2a76b9719d911017c592")
    else:
        assert answer.status == 204
    assert gateway.store.data("bucket", "\u00fc/1") == b"hello"


async def test_the_bucket_is_in_the_host_when_a_form_is_sent_there(tmp_path: Path) -> None:
    """The form's usual address, the bucket's own name."""
    async with running_gateway(str(tmp_path / "log"), domains=("s3.test",)) as gateway:
        gateway.store.make_bucket("my.bucket")
        connection = await gateway.connect()
        body = form(signed_fields({"key": "k"}, bucket="my.bucket"), b"x")

        await connection.send(
            request(gateway, body, "/").replace(gateway.host.encode(), b"my.bucket.s3.test:80")
        )
        answer = await connection.answer()

    assert answer.status == 204
    assert answer.headers["location"] == "http://my.bucket.s3.test:80/k"


async def test_the_engine_is_told_when_only_the_origin_can_answer_a_form(gateway: RunningGateway) -> None:
    """An ACL or encryption in a field is a header for the origin, as in a PUT."""
    fields = {
        "key": "k",
        "acl": "public-read",
        "x-amz-server-side-encryption": "AES256",
        "x-amz-storage-class": "STANDARD_IA",
    }

    answer = await post(gateway, form(signed_fields(fields), b"x"))

    put = gateway.store.put_requests[-1]
    assert answer.status == 204
    assert put.origin_reason == "acl"
    assert dict(put.origin_headers) == {"x-amz-acl": "public-read", "x-amz-server-side-encryption": "AES256"}
    assert dict(put.headers)["x-amz-storage-class"] == "STANDARD_IA"


async def test_nothing_unsigned_counts_when_it_is_sent_beside_a_form(gateway: RunningGateway) -> None:
    """Headers and query of the request are covered by no policy, so nothing of them is stored or passed on."""
    answer = await post(
        gateway,
        form(signed_fields({"key": "k"}), b"x"),
        target="/bucket?x-amz-acl=public-read&x-amz-meta-a=b",
        headers="x-amz-acl: public-read\r\nx-amz-meta-b: c\r\nif-none-match: *\r\nx-amz-tagging: a=b\r\n",
    )

    put = gateway.store.put_requests[-1]
    assert answer.status == 204
    assert (put.origin_reason, put.origin_headers, put.user_metadata, put.tags) == ("", (), (), "")


@pytest.mark.parametrize("size", [0, 1, 300_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 5_000_000])
async def test_the_bytes_are_the_files_when_it_has_any_length(gateway: RunningGateway, size: int) -> None:
    """Empty, short, and longer than several pieces; with digests that hold, and nothing left of the memory that was charged."""
    data = (b"\r\n--" + BOUNDARY.encode()[:-1]) * (size // 8 + 1)
    data = data[:size]
    md5 = base64.b64encode(hashlib.md5(data).digest()).decode()
    sha256 = base64.b64encode(hashlib.sha256(data).digest()).decode()
    fields = signed_fields({"key": "k", "content-md5": md5, "x-amz-checksum-sha256": sha256})

    answer = await post(gateway, form(fields, data))

    assert answer.status == 204
    assert gateway.store.data("bucket", "k") == data
    assert [c.value for c in gateway.store.record("bucket", "k").checksums] == [sha256]
    assert answer.headers["x-amz-checksum-sha256"] == sha256
    assert gateway.budget.taken_bytes == 0


async def test_pieces_are_small_when_the_memory_for_forms_is_spent(tmp_path: Path) -> None:
    """A form that finds the budget spent is stored all the same."""
    async with running_gateway(str(tmp_path / "log"), budget_bytes=1000) as gateway:
        gateway.store.make_bucket("bucket")

        answer = await post(gateway, form(signed_fields({"key": "k"}), b"ab" * 400_000))

        assert answer.status == 204
        assert gateway.store.data("bucket", "k") == b"ab" * 400_000
        assert gateway.budget.taken_bytes == 0


async def test_the_last_piece_of_a_file_is_withheld_when_the_form_breaks_its_word(tmp_path: Path) -> None:
    """Whoever forwards the pieces never completes a file whose digest is wrong, or whose form has no end."""
    store = PieceStore()
    store.make_bucket("bucket")
    async with running_gateway(str(tmp_path / "log"), store=store) as gateway:
        data = bytes(2 * MIB + 5)
        wrong = form(signed_fields({"key": "k", "content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="}), data)
        cut = form(signed_fields({"key": "k"}), data)[:-10]

        answers = [(await post(gateway, body)).status for body in (wrong, cut)]

    assert answers == [400, 400]
    assert [sum(pieces) for pieces in store.taken] == [2 * MIB, MIB]
    assert all(size <= MIB for pieces in store.taken for size in pieces)


RANGE = [["starts-with", "$key", ""], ["content-length-range", 10, 1000]]


@pytest.mark.parametrize(
    ("fields", "data", "code"),
    [
        (signed_fields({"key": "k"}, RANGE), b"123456789", "EntityTooSmall"),
        (signed_fields({"key": "k"}, RANGE), b"1" * 1001, "EntityTooLarge"),
        (signed_fields({"key": "k"}, RANGE), b"1" * 3_000_000, "EntityTooLarge"),
        (
            signed_fields({"key": "k", "content-md5": "AAAAAAAAAAAAAAAAAAAAAA=="}),
            b"x" * 2_000_000,
            "BadDigest",
        ),
        (signed_fields({"key": "k", "content-md5": "x"}), b"x", "InvalidDigest"),
        (signed_fields({"key": "k", "x-amz-checksum-crc32": "AAAAAA=="}), b"x", "BadDigest"),
        (signed_fields({"key": "k"}, secret_key="wrong"), b"x", "SignatureDoesNotMatch"),
        (signed_fields({"key": "k"}, access_key="unknown"), b"x", "InvalidAccessKeyId"),
        (signed_fields({"key": "k"}, life_s=-1), b"x", "AccessDenied"),
        (signed_fields({"key": "k"}, bucket="other"), b"x", "AccessDenied"),
        ({**signed_fields({"key": "k"}), "acl": "public-read"}, b"x", "AccessDenied"),
        ({**signed_fields({"key": "k"}), "key": "other"}, b"x", "AccessDenied"),
        ({"key": "k"}, b"x", "AccessDenied"),
        ({"key": "k", "AWSAccessKeyId": "a", "policy": "b", "signature": "c"}, b"x", "InvalidRequest"),
        (signed_fields({}), b"x", "InvalidArgument"),
        (signed_fields({"key": ""}), b"x", "InvalidArgument"),
        (signed_fields({"key": "k" * 1025}), b"x", "KeyTooLongError"),
        (signed_fields({"key": "k", "content-type": "a\r\nx: y"}), b"x", "InvalidArgument"),
        (signed_fields({"key": "k", "x-amz-acl": "private\r\nx-amz-y: z"}), b"x", "InvalidArgument"),
        (signed_fields({"key": "k", "x-amz-copy-source": "/bucket/secret"}), b"x", "InvalidArgument"),
        (signed_fields({"key": "k", "x-amz-meta-a": "x" * 2100}), b"x", "MetadataTooLarge"),
        (signed_fields({"key": "k", "tagging": "<a>" * 50}), b"x", "MalformedXML"),
        (signed_fields({"key": "k", "x-ignore-a": "x" * 20_000}), b"x", "MaxPostPreDataLengthExceededError"),
    ],
)
async def test_nothing_is_stored_when_a_form_is_refused(
    gateway: RunningGateway, fields: dict[str, str], data: bytes, code: str
) -> None:
    """The old object stays, whatever is wrong and however late it shows; nothing stays charged."""
    gateway.store.put("bucket", "k", b"old")

    answer = await post(gateway, form(fields, data))

    assert answer.status in {400, 403}
    assert f"<Code>{code}</Code>".encode() in answer.body
    assert b"<Resource>/bucket</Resource>" in answer.body
    assert gateway.store.data("bucket", "k") == b"old"
    assert gateway.store.put_requests == []
    assert gateway.budget.taken_bytes == 0


@pytest.mark.parametrize(
    ("content_type", "body", "code"),
    [
        ("text/plain", b"x", "RequestIsNotMultiPartContent"),
        ("multipart/form-data", b"x", "MalformedPOSTRequest"),
        (TYPE, b"x", "MalformedPOSTRequest"),
        (TYPE, b"", "MalformedPOSTRequest"),
        (TYPE, form(signed_fields({"key": "k"}), b"x")[:-6], "MalformedPOSTRequest"),
    ],
)
async def test_a_post_is_refused_when_it_is_no_form(
    gateway: RunningGateway, content_type: str, body: bytes, code: str
) -> None:
    """A POST on a bucket is a form or nothing; one that is cut stores nothing."""
    answer = await post(gateway, body, content_type=content_type)

    assert answer.status == 400
    assert f"<Code>{code}</Code>".encode() in answer.body
    assert gateway.store.put_requests == []


@pytest.mark.parametrize(
    "head",
    [
        "POST /bucket/key HTTP/1.1",
        "POST /bucket?delete HTTP/1.1",
        "POST /bucket/key?uploads HTTP/1.1",
        "POST /bucket/key?uploadId=1 HTTP/1.1",
        "POST /bucket?unknown HTTP/1.1",
        "POST /-/flush HTTP/1.1",
        "POST / HTTP/1.1",
        "PUT /bucket HTTP/1.1",
        "PUT /bucket/key HTTP/1.1",
    ],
)
async def test_access_is_denied_when_a_form_is_sent_elsewhere(gateway: RunningGateway, head: str) -> None:
    """A form's signature opens PostObject and nothing else."""
    body = form(signed_fields({"key": "key"}), b"x")
    connection = await gateway.connect()

    await connection.send(
        f"{head}\r\nhost: {gateway.host}\r\ncontent-type: {TYPE}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        + body
    )
    answer = await connection.answer()

    assert answer.status == 403
    assert gateway.store.calls == []


async def test_a_form_needs_its_length_when_its_bucket_is_there(gateway: RunningGateway) -> None:
    """Without Content-Length nothing bounds the file."""
    connection = await gateway.connect()
    body = form(signed_fields({"key": "k"}), b"x")

    await connection.send(
        f"POST /bucket HTTP/1.1\r\nhost: {gateway.host}\r\ncontent-type: {TYPE}\r\ntransfer-encoding: chunked\r\n\r\n"
        f"{len(body):x}\r\n".encode()
        + body
        + b"\r\n0\r\n\r\n"
    )
    answer = await connection.answer()

    assert answer.status == 411


async def test_no_such_bucket_when_a_form_is_sent_to_nowhere(gateway: RunningGateway) -> None:
    """A form for a bucket that is not there says so."""
    answer = await post(gateway, form(signed_fields({"key": "k"}, bucket="missing"), b"x"), target="/missing")

    assert answer.status == 404
    assert b"<Code>NoSuchBucket</Code>" in answer.body


async def test_any_key_of_the_gateway_signs_forms(gateway: RunningGateway) -> None:
    """The writer's name is kept with what it wrote."""
    await post(gateway, form(signed_fields({"key": "k"}, access_key=PLAIN_KEY), b"x"))

    assert gateway.store.put_requests[-1].credential_id == "plain-id"


async def test_a_waiting_client_is_told_to_go_on_when_it_sends_a_form(gateway: RunningGateway) -> None:
    """B31: whose form it is shows in the body only, so leave comes first."""
    body = form(signed_fields({"key": "k"}), b"x")
    connection: RawConnection = await gateway.connect()

    head, _, rest = request(gateway, body, headers="expect: 100-continue\r\n").partition(b"\r\n\r\n")
    await connection.send(head + b"\r\n\r\n")
    interim = await connection.reader.readuntil(b"\r\n\r\n")
    await connection.send(rest)
    answer = await connection.answer()

    assert interim == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.status == 204


async def test_the_old_object_stays_when_a_forms_client_dies(gateway: RunningGateway) -> None:
    """B03: a form that ends in the middle of its file stores nothing."""
    gateway.store.put("bucket", "k", b"old")
    body = form(signed_fields({"key": "k"}), b"x" * 3_000_000)
    connection = await gateway.connect()

    await connection.send(request(gateway, body)[:2_500_000])
    connection.writer.write_eof()
    rest = await connection.reader.read()

    assert b"<Code>IncompleteBody</Code>" in rest or rest == b""
    assert gateway.store.data("bucket", "k") == b"old"
    assert gateway.budget.taken_bytes == 0
