"""A large upload over real S3 servers: how long after its Complete it is at the origin, with and without parts that went early.

96 MiB over SeaweedFS by default; 256 MiB, and over moto too, with FOREBAY_TEST_LONG=1.
"""

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from storage.types import MIB
from tests.end_to_end.content import IS_LONG, PART_BYTES, content, note_figure
from tests.end_to_end.origins import Origin
from tests.end_to_end.processes import GatewayProcess, S3Client, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PARTS = 32 if IS_LONG else 12
EARLY_BYTES = PARTS * PART_BYTES * 3 // 4
PARTS_UNDER_WAY = 4
"""So many may be on their way when the Complete comes, and are counted as sent before or after it."""

FLUSH_RATE = f"{PARTS * PART_BYTES // 4}"
"""What the gateway may send a second: an origin that takes four seconds for the object."""


def part_of(number: int) -> bytes:
    """Give the bytes of a part."""
    return content(number, MIB) * (PART_BYTES // MIB)


def send_parts(client: S3Client, bucket: str, upload_id: str) -> list[dict[str, object]]:
    """Upload all parts; give the lines of the Complete."""
    lines: list[dict[str, object]] = []
    for number in range(1, PARTS + 1):
        sent = client.upload_part(
            Bucket=bucket, Key="checkpoint", UploadId=upload_id, PartNumber=number, Body=part_of(number)
        )
        line = {"PartNumber": number, "ETag": sent["ETag"], "ChecksumCRC32": sent["ChecksumCRC32"]}
        lines.append(line)
    return lines


def wait_until_early(running: GatewayProcess) -> None:
    """Wait as long as a trainer that writes its checkpoint more slowly."""
    deadline = time.monotonic() + 60
    while running.metric("forebay_early_flush_bytes") < EARLY_BYTES:
        assert time.monotonic() < deadline, running.log_tail()
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class Flush:
    """What followed a Complete: how long until the origin had the object, and what was sent for it; and the object's ETag."""

    took_s: float
    sent_bytes: float
    etag: str


def flush_of(origin: Origin, bucket: str, cache_dir: Path, early_flush_bytes: str) -> Flush:
    """Upload an object and flush it."""
    settings = {"flush_bytes_per_s": FLUSH_RATE, "early_flush_bytes": early_flush_bytes}
    with gateway(origin.endpoint, cache_dir, **settings) as running:
        client = running.client()
        upload_id = client.create_multipart_upload(
            Bucket=bucket, Key="checkpoint", ChecksumAlgorithm="CRC32", Metadata={"step": "17"}
        )["UploadId"]
        lines = send_parts(client, bucket, upload_id)
        if early_flush_bytes != "off":
            wait_until_early(running)
        assert client.list_multipart_uploads(Bucket=bucket)["Uploads"][0]["UploadId"] == upload_id
        sent_early_bytes = running.metric('forebay_origin_bytes_total{direction="out"}')
        begun_s = time.monotonic()
        made = client.complete_multipart_upload(
            Bucket=bucket, Key="checkpoint", UploadId=upload_id, MultipartUpload={"Parts": lines}
        )
        running.flush(f"s3://{bucket}/checkpoint")
        took_s = time.monotonic() - begun_s
        sent_bytes = running.metric('forebay_origin_bytes_total{direction="out"}') - sent_early_bytes
        return Flush(took_s, sent_bytes, str(made["ETag"]))


@pytest.mark.timing
@pytest.mark.parametrize(("name", "ratio_max"), [("seaweed", 0.7), *([("moto", None)] if IS_LONG else [])])
def test_large_upload_is_safe_sooner_when_its_parts_went_early(
    request: pytest.FixtureRequest,
    make_bucket: Callable[[Origin], str],
    tmp_path: Path,
    name: str,
    ratio_max: float | None,
) -> None:
    """After the Complete only what is missing travels; the object at the origin is the same, and nothing is left beside it."""
    origin: Origin = request.getfixturevalue(name)
    flushes: dict[str, Flush] = {}
    client, bucket = origin.client(), ""
    for setting in ("off", "16MiB"):
        bucket = make_bucket(origin)
        flushes[setting] = flush_of(origin, bucket, tmp_path / setting, setting)
        at_origin = client.head_object(Bucket=bucket, Key="checkpoint")
        assert (at_origin["ETag"], at_origin["Metadata"]) == (flushes[setting].etag, {"step": "17"})
        assert not client.list_multipart_uploads(Bucket=bucket).get("Uploads")
    assert _digest_of(client.get_object(Bucket=bucket, Key="checkpoint")["Body"]) == _digest_of_parts()
    early, late = flushes["16MiB"], flushes["off"]
    ratio = early.took_s / late.took_s
    note_figure(
        f"early flush, {name}: {PARTS * PART_BYTES // MIB} MiB clean {early.took_s:.2f} s after the Complete, "
        f"{late.took_s:.2f} s without, ratio {ratio:.2f}"
    )

    assert late.sent_bytes >= PARTS * PART_BYTES
    assert early.sent_bytes <= PARTS * PART_BYTES - EARLY_BYTES + PARTS_UNDER_WAY * PART_BYTES
    # moto takes seconds for the Complete itself, and more of them the busier the machine is.
    assert ratio_max is None or ratio < ratio_max


def _digest_of(body: Any) -> bytes:
    digest = hashlib.md5()
    for piece in body.iter_chunks(MIB):
        digest.update(piece)
    return digest.digest()


def _digest_of_parts() -> bytes:
    digest = hashlib.md5()
    for number in range(1, PARTS + 1):
        digest.update(part_of(number))
    return digest.digest()
