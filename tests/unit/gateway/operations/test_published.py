"""Reads and listings under published targets: which object is answered, and the generation on every kind of answer."""

from typing import Any

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # ships no types

from storage.errors import (
    GenerationGoneError,
    OriginUnavailableError,
    PublishConflictError,
    ReadOnlyError,
)
from storage.listing import Position
from storage.publish import View
from storage.types import ObjectName
from tests.fakes.gateway import Answer, RunningGateway, in_thread

NAME = ObjectName("bucket", "live/key")
ETAG = '"781e5e245d69b566979b86e28d23f2c7"'


def show(gateway: RunningGateway, generation: int = 7) -> None:
    """Have the target show an object of its source, and hide what lies under its own name."""
    gateway.store.put("bucket", "live/key", b"hidden")
    gateway.store.put("bucket", "staging/v7/key", b"0123456789")
    source = ObjectName("bucket", "staging/v7/key")
    gateway.store.put_version(source.at_version("v1"), b"0123456789")
    gateway.store.views[NAME] = View(source, generation)
    gateway.store.views[ObjectName("bucket", "live/none")] = View(
        ObjectName("bucket", "staging/v7/none"), generation
    )


async def ask(gateway: RunningGateway, method: str, target: str, **headers: str) -> Answer:
    """Send one signed request."""
    connection = await gateway.connect()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    await connection.send(gateway.signed(method, target, sent))
    return await connection.answer(has_body=method != "HEAD")


@pytest.mark.parametrize(
    ("method", "target", "headers", "status", "body"),
    [
        ("GET", "/bucket/live/key", {}, 200, b"0123456789"),
        ("HEAD", "/bucket/live/key", {}, 200, b""),
        ("GET", "/bucket/live/key", {"range": "bytes=2-4"}, 206, b"234"),
        ("GET", "/bucket/live/key?partNumber=1", {}, 206, b"0123456789"),
        ("GET", "/bucket/live/key", {"if_none_match": ETAG}, 304, b""),
        ("HEAD", "/bucket/live/none", {}, 404, b""),
        ("GET", "/bucket/live/none", {}, 404, None),
        ("GET", "/bucket/live/key", {"if_match": '"other"'}, 412, None),
        ("GET", "/bucket/live/key", {"range": "bytes=90-"}, 416, None),
        ("GET", "/bucket/live/key?partNumber=9", {}, 416, None),
        ("GET", "/bucket/live/key?versionId=v1", {}, 200, b"0123456789"),
        ("GET", "/bucket/live/key?versionId=abc", {}, 404, None),
    ],
)
async def test_every_answer_says_its_generation_when_a_target_is_read(
    gateway: RunningGateway,
    method: str,
    target: str,
    headers: dict[str, str],
    status: int,
    body: bytes | None,
) -> None:
    """What is read is the source's object, and the header is on answers of every kind, once."""
    show(gateway)

    answer = await ask(gateway, method, target, **headers)

    assert answer.status == status
    assert answer.headers["x-forebay-generation"] == "7"
    if body is not None:
        assert answer.body == body
    else:
        assert b"staging" not in answer.body


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("/bucket/live/key?tagging", {}),
        ("/bucket/live/key", {"x_amz_server_side_encryption_customer_algorithm": "AES256"}),
    ],
)
@pytest.mark.parametrize(("status", "code"), [(404, "NoSuchKey"), (403, "AccessDenied"), (500, "Other")])
async def test_an_error_of_the_origin_does_not_name_the_source_when_a_target_is_read(
    gateway: RunningGateway, target: str, headers: dict[str, str], status: int, code: str
) -> None:
    """The origin's document names the object that it was asked for, which is the source's."""
    show(gateway)
    document = f"<Error><Code>{code}</Code><Message>no staging</Message><Key>staging/v7/key</Key></Error>"
    gateway.store.replies.append((status, (), len(document)))
    gateway.store.script.append([document.encode()])

    answer = await ask(gateway, "GET", target, **headers)

    assert b"staging" not in answer.body
    assert answer.status == (status if status < 500 else 503)
    assert answer.headers["x-forebay-generation"] == "7"
    if status < 500:
        assert f"<Code>{code}</Code>".encode() in answer.body
    assert gateway.store.bodies[-1].is_closed


async def test_no_generation_is_said_when_no_target_is_read(gateway: RunningGateway) -> None:
    """The header means a published target and is nowhere else; the next request on a connection does not inherit it."""
    show(gateway)
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/bucket/live/key"))
    first = await connection.answer()
    await connection.send(gateway.signed("GET", "/bucket/staging/v7/key"))
    second = await connection.answer()

    assert first.headers["x-forebay-generation"] == "7"
    assert "x-forebay-generation" not in second.headers


async def test_an_object_is_not_there_when_its_name_would_be_too_long(gateway: RunningGateway) -> None:
    """A source's name that no object can have is a 404, and not an error of the origin."""
    gateway.store.views[NAME] = View(ObjectName("bucket", "s" * 1025), 7)

    answer = await ask(gateway, "GET", "/bucket/live/key")

    assert (answer.status, answer.headers["x-forebay-generation"]) == (404, "7")
    assert b"<Code>NoSuchKey</Code>" in answer.body


async def test_a_presigned_url_of_a_target_works(gateway: RunningGateway) -> None:
    """The signature is of the name that the client knows."""
    show(gateway)
    client = gateway.client(signature_version="s3v4")
    url = client.generate_presigned_url("get_object", Params={"Bucket": "bucket", "Key": "live/key"})
    connection = await gateway.connect()

    target = url.removeprefix(f"http://{gateway.host}")
    await connection.send(f"GET {target} HTTP/1.1\r\nhost: {gateway.host}\r\n\r\n".encode())
    answer = await connection.answer()

    assert (answer.status, answer.body) == (200, b"0123456789")


async def test_a_write_is_denied_when_storage_says_read_only(gateway: RunningGateway) -> None:
    """Clients see 403 AccessDenied with the reason."""
    gateway.store.fail["put_object"] = ReadOnlyError("s3://bucket/live/ is published and read-only")
    client = gateway.client()

    with pytest.raises(ClientError, match=r"AccessDenied.*published and read-only"):
        await in_thread(client.put_object, Bucket="bucket", Key="live/key", Body=b"x")


@pytest.mark.parametrize("operation", ["list_objects_v2", "list_objects"])
async def test_pages_carry_their_generation_when_a_listing_goes_on(
    gateway: RunningGateway, operation: str
) -> None:
    """Each page names its generation; the next one is asked for of the same, by token or by NextMarker."""
    for key in ("live/a", "live/b", "live/c"):
        gateway.store.put("bucket", key, b"x")
    gateway.store.generation = 7
    paginator = gateway.client().get_paginator(operation)

    pages: list[dict[str, Any]] = await in_thread(
        lambda: list(paginator.paginate(Bucket="bucket", Prefix="live/", PaginationConfig={"PageSize": 1}))
    )

    keys = [entry["Key"] for page in pages for entry in page["Contents"]]
    named = [page["ResponseMetadata"]["HTTPHeaders"]["x-forebay-generation"] for page in pages]
    assert keys == ["live/a", "live/b", "live/c"]
    assert named == ["7", "7", "7"]
    assert [(query.generation, query.after) for query in gateway.store.queries] == [
        (None, Position()),
        (7, Position("live/a")),
        (7, Position("live/b")),
    ]


@pytest.mark.parametrize("version", ["&list-type=2", ""])
async def test_a_listing_that_fails_says_its_generation(gateway: RunningGateway, version: str) -> None:
    """A LIST that ends in an error of the origin names the generation that it would have been of."""
    gateway.store.generation = 7
    gateway.store.fail["list_objects"] = OriginUnavailableError("away", status=0, code="Timeout")

    failed = await ask(gateway, "GET", f"/bucket?prefix=live%2F{version}")
    gateway.store.fail["list_objects"] = GenerationGoneError("begin the listing anew")
    gone = await ask(gateway, "GET", f"/bucket?prefix=live%2F{version}")
    gateway.store.generation = None
    gateway.store.fail["list_objects"] = GenerationGoneError("begin the listing anew")
    elsewhere = await ask(gateway, "GET", f"/bucket?prefix=live%2F{version}")

    assert (failed.status, failed.headers["x-forebay-generation"]) == (503, "7")
    assert (gone.status, gone.headers["x-forebay-generation"]) == (400, "7")
    assert elsewhere.status == 400
    assert "x-forebay-generation" not in elsewhere.headers


async def test_a_token_from_before_is_of_no_generation(gateway: RunningGateway) -> None:
    """A token that was made outside of targets goes on with what was not published; a start-after begins anew."""
    for key in ("a", "b"):
        gateway.store.put("bucket", key, b"x")
    client = gateway.client()
    page = await in_thread(client.list_objects_v2, Bucket="bucket", MaxKeys=1)

    await in_thread(client.list_objects_v2, Bucket="bucket", ContinuationToken=page["NextContinuationToken"])
    await in_thread(client.list_objects_v2, Bucket="bucket", StartAfter="a")
    await in_thread(client.list_objects, Bucket="bucket", Marker="a")

    assert [query.generation for query in gateway.store.queries] == [None, 0, None, None]


async def test_a_client_begins_anew_when_its_generation_is_gone(gateway: RunningGateway) -> None:
    """The listing ends with 400 InvalidArgument, which SDKs do not repeat, and says what to do."""
    gateway.store.fail["list_objects"] = GenerationGoneError("generation 7 is gone; begin the listing anew")
    client = gateway.client()

    with pytest.raises(ClientError, match=r"InvalidArgument.*begin the listing anew") as raised:
        await in_thread(client.list_objects_v2, Bucket="bucket")

    assert raised.value.response["ResponseMetadata"]["HTTPStatusCode"] == 400


async def test_a_publish_is_followed_when_it_is_asked_for(gateway: RunningGateway) -> None:
    """The verb answers a number at once, by which its end is asked for."""
    target = "/-/publish?bucket=bucket&copy=0&source=staging%2Fv7%2F&target=live%2F"

    begun = await ask(gateway, "POST", target, content_length="0")
    ended = await ask(gateway, "GET", "/-/publish/1?wait=1")
    repeated = await ask(gateway, "POST", f"{target}1".replace("copy=0", "copy=1"), content_length="0")
    gateway.store.fail["start_publish"] = PublishConflictError("live/old lies at the target")
    refused = await ask(gateway, "POST", target, content_length="0")

    assert b'"publish_id":1' in begun.body
    assert b'"is_copy":false,"phase":"flushing"' in begun.body
    assert b'"phase":"done"' in ended.body
    assert b'"is_copy":true' in repeated.body
    assert (refused.status, b"live/old lies at the target" in refused.body) == (409, True)


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/-/publish?bucket=b&source=s/", 400),
        ("POST", "/-/publish/1", 405),
        ("GET", "/-/publish", 405),
        ("GET", "/-/publish/x", 400),
    ],
)
async def test_a_publish_is_refused_when_it_is_asked_for_wrongly(
    gateway: RunningGateway, method: str, target: str, status: int
) -> None:
    """A missing parameter is 400, another method 405."""
    answer = await ask(gateway, method, target, content_length="0")

    assert answer.status == status
