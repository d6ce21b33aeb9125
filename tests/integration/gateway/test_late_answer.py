"""The answer to a long operation, as it stands on the wire."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from storage.errors import OriginRefusedError, StorageError
from storage.requests import UploadRequest
from storage.types import ObjectName
from tests.fakes.gateway import RawConnection, RunningGateway, in_thread, running_gateway, until
from tests.fakes.scripted_body import Gate
from tests.fakes.tasks import start, turns
from tests.fakes.whole_content import FakeContent

COMPLETE = (
    b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>900150983cd24fb0d6963f7d28e17f72</ETag></Part>"
    b"</CompleteMultipartUpload>"
)


@pytest.fixture
async def patient(tmp_path: Path) -> AsyncIterator[RunningGateway]:
    """A gateway that sends blanks after 10 ms, with one upload of a part `abc`."""
    async with running_gateway(str(tmp_path / "access.log"), blanks_every_s=0.01) as running:
        running.store.make_bucket("bucket")
        await running.store.create_upload(UploadRequest(ObjectName("bucket", "key")))
        await running.store.upload_part(ObjectName("bucket", "key"), "upload-1", 1, FakeContent(b"abc"))
        yield running


async def ask_to_complete(gateway: RunningGateway, *, version: str = "1.1") -> RawConnection:
    """Send a Complete."""
    connection = await gateway.connect()
    head = gateway.signed("POST", "/bucket/key?uploadId=upload-1", {"content-length": str(len(COMPLETE))})
    await connection.send(head.replace(b"HTTP/1.1", b"HTTP/" + version.encode()) + COMPLETE)
    return connection


async def chunk(connection: RawConnection) -> bytes:
    """Read one chunk of an answer."""
    size = int(await connection.reader.readline(), 16)
    data = await connection.reader.readexactly(size)
    assert await connection.reader.readexactly(2) == b"\r\n"
    return data


async def test_a_quick_complete_has_its_own_status_and_length(patient: RunningGateway) -> None:
    """Also a quick error: nobody has to look into a 200."""
    done = await (await ask_to_complete(patient)).answer()
    patient.store.fail["complete_upload"] = OriginRefusedError("no", status=412, code="PreconditionFailed")
    refused = await (await ask_to_complete(patient)).answer()

    assert (done.status, refused.status) == (200, 412)
    assert b"<ETag>" in done.body


@pytest.mark.parametrize(
    ("error", "ends"),
    [
        (None, b"CompleteMultipartUploadResult>"),
        (OriginRefusedError("no", status=412, code="PreconditionFailed"), b"</Error>"),
    ],
)
async def test_blanks_come_before_the_document_of_a_long_complete(
    patient: RunningGateway, error: StorageError | None, ends: bytes
) -> None:
    """200 first, a declaration, blanks, then the result or the error; the connection goes on."""
    gate = patient.store.gates["complete_upload"] = Gate()
    if error is not None:
        patient.store.fail["complete_upload"] = error
    connection = await ask_to_complete(patient)
    status, headers = await connection.head()
    chunks = [await chunk(connection) for _ in range(3)]
    gate.opened.set()
    while data := await chunk(connection):
        chunks.append(data)
    await connection.send(patient.signed("HEAD", "/bucket"))
    next_answer = await connection.answer(has_body=False)

    assert (status, headers["transfer-encoding"], "content-length" in headers) == (200, "chunked", False)
    assert chunks[0].startswith(b"<?xml")
    assert set(chunks[1:-1]) == {b" "}
    assert not chunks[-1].startswith(b"<?xml")
    assert chunks[-1].rstrip().endswith(ends)
    assert next_answer.status == 200
    last = (await patient.log())[0]
    assert (last.status, last.code) == (200, "" if error is None else "PreconditionFailed")


async def test_boto3_reads_the_result_and_the_error_behind_the_blanks(patient: RunningGateway) -> None:
    """What an SDK makes of both."""
    client = patient.client()
    parts = {"Parts": [{"PartNumber": 1, "ETag": "900150983cd24fb0d6963f7d28e17f72"}]}

    async def complete() -> str:
        gate = patient.store.gates["complete_upload"] = Gate()
        asking = start(
            in_thread(
                client.complete_multipart_upload,
                Bucket="bucket",
                Key="key",
                UploadId="upload-1",
                MultipartUpload=parts,
            )
        )
        await gate.reached.wait()
        asyncio.get_running_loop().call_later(0.05, gate.opened.set)
        return str((await asking)["ETag"])

    patient.store.fail["complete_upload"] = OriginRefusedError("no", status=412, code="PreconditionFailed")
    with pytest.raises(client.exceptions.ClientError) as raised:
        await complete()

    assert raised.value.response["Error"]["Code"] == "PreconditionFailed"
    assert (await complete()).endswith('-1"')


async def test_a_complete_runs_to_its_end_when_its_client_leaves(patient: RunningGateway) -> None:
    """Before its answer has begun, and after; it is counted, and its object is there."""
    gate = patient.store.gates["complete_upload"] = Gate()
    connection = await ask_to_complete(patient)
    await connection.head()
    await connection.close()
    await turns()
    gate.opened.set()
    await until(lambda: patient.stats.requests)

    assert patient.store.data("bucket", "key") == b"abc"


async def test_http_1_0_waits_for_the_whole_answer(patient: RunningGateway) -> None:
    """It knows no chunks."""
    gate = patient.store.gates["complete_upload"] = Gate()
    connection = await ask_to_complete(patient, version="1.0")
    await gate.reached.wait()
    asyncio.get_running_loop().call_later(0.05, gate.opened.set)
    answer = await connection.answer()

    assert (answer.status, "transfer-encoding" in answer.headers) == (200, False)
