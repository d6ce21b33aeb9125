"""Bytes that are no request: S3's answer, then the end of the connection."""

import pytest

from tests.fakes.gateway import RunningGateway, running_gateway, until


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"nonsense\r\n\r\n", "BadRequest"),
        (b"GET\r\n\r\n", "BadRequest"),
        (b"GET /bucket/a b HTTP/1.1\r\nhost: h\r\n\r\n", "BadRequest"),
        (b"GET /bucket HTTP/9\r\n\r\n", "BadRequest"),
        (b"GET /bucket HTTP/1.1\r\nno colon\r\n\r\n", "BadRequest"),
        (b"GET /bucket HTTP/1.1\r\nhost: h\r\nx\x00y: z\r\n\r\n", "BadRequest"),
        (b"PUT /bucket/k HTTP/1.1\r\nhost: h\r\ncontent-length: five\r\n\r\n", "BadRequest"),
        (b"PUT /bucket/k HTTP/1.1\r\nhost: h\r\ncontent-length: -1\r\n\r\n", "BadRequest"),
        (
            b"PUT /bucket/k HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n",
            "BadRequest",
        ),
        (
            b"PUT /bucket/k HTTP/1.1\r\nhost: h\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n",
            "BadRequest",
        ),
        (
            b"GET /bucket HTTP/1.1\r\nhost: h\r\nx: " + b"y" * 40_000 + b"\r\n\r\n",
            "RequestHeaderSectionTooLarge",
        ),
        (b"GET /bucket/" + b"k" * 40_000 + b" HTTP/1.1\r\nhost: h\r\n\r\n", "RequestHeaderSectionTooLarge"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "BadRequest"),
    ],
)
async def test_an_s3_error_is_answered_when_the_parser_refuses_a_head(
    gateway: RunningGateway, sent: bytes, code: str
) -> None:
    """An XML document with S3's fields, on a connection that was in use, and then nothing more."""
    gateway.store.put("bucket", "key", b"abc")
    connection = await gateway.connect()

    await connection.send(gateway.signed("GET", "/bucket/key"))
    before = await connection.answer()
    await connection.send(sent)
    answer = await connection.answer()
    rest = await connection.reader.read()

    assert before.body == b"abc"
    assert answer.status == 400
    assert answer.headers["content-type"] == "application/xml"
    assert answer.headers["connection"] == "close"
    assert f"<Code>{code}</Code>".encode() in answer.body
    assert f"<RequestId>{answer.headers['x-amz-request-id']}</RequestId>".encode() in answer.body
    assert b"<HostId>fake-instance</HostId>" in answer.body
    assert rest == b""
    await connection.close()
    await until(lambda: len(gateway.stats.requests) == 2)
    assert gateway.stats.requests["Unknown", 400] == 1


async def test_the_refusal_arrives_when_much_follows_what_is_no_request(gateway: RunningGateway) -> None:
    """What a client still sends is dropped, so that no reset overtakes the answer; the connection is closed on our side."""
    connection = await gateway.connect()

    await connection.send(b"nonsense\r\n\r\n")
    for _ in range(20):
        await connection.send(bytes(1 << 18))
    answer = await connection.answer()
    rest = await connection.reader.read()

    assert answer.status == 400
    assert rest == b""


async def test_nothing_is_left_when_clients_that_are_none_have_gone(tmp_path: object) -> None:
    """Their connections are let go, and a stop does not wait for those that stay."""
    async with running_gateway(f"{tmp_path}/log") as gateway:
        gone, stays = await gateway.connect(), await gateway.connect()
        for connection in (gone, stays):
            await connection.send(b"nonsense\r\n\r\n")
            await connection.answer()

        await gone.close()
        await until(lambda: gateway.stats.connections == 1)
        entries = await gateway.log()

    assert gateway.stats.connections == 0
    assert [(e.method, e.status, e.code) for e in entries] == [("UNKNOWN", 400, "BadRequest")] * 2
