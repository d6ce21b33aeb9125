"""The gateway's memory does not grow with the size of objects or the number of clients.

16 clients move 128 MiB objects by default and 1 GiB with FOREBAY_TEST_LONG=1, each with boto3's default transfer settings: 8 MiB at a
time on ten connections.
"""

import http.client
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import BinaryIO, Final

import pytest

from storage.origin.signing import UNSIGNED_PAYLOAD, SigningIdentity, sign_headers
from storage.types import GIB, MIB
from tests.end_to_end.content import IS_LONG, PART_BYTES, note_figure, write_content
from tests.end_to_end.origins import Origin
from tests.end_to_end.processes import ACCESS_KEY, REGION, SECRET_KEY, GatewayProcess, S3Client, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if IS_LONG else 600)]

CLIENTS: Final = 16
CONNECTIONS: Final = 10
"""Of each client."""

SIZE_BYTES: Final = GIB if IS_LONG else 128 * MIB
PEAK_BYTES_MAX: Final = 300 * MIB


def test_peak_memory_stays_low_when_many_clients_move_large_objects(
    seaweed: Origin, make_bucket: Callable[[Origin], str], tmp_path: Path
) -> None:
    """16 clients upload, read back warm, and read cold through a cache too small for all of it: under 300 MiB each time."""
    bucket, total_bytes = make_bucket(seaweed), CLIENTS * SIZE_BYTES
    source = write_content(tmp_path / "source", 1, SIZE_BYTES)

    room = {"cache_size": f"{total_bytes * 3 // 2}", "dirty_bytes_max": "90%"}
    with gateway(seaweed.endpoint, tmp_path / "cache", **room) as running:
        _at_once(running, lambda client, n: client.upload_file(str(source), bucket, f"{n}"))
        uploaded = running.peak_memory_bytes()
        running.flush(f"s3://{bucket}/")
        flushed = running.peak_memory_bytes()
        _at_once(running, lambda _client, n: _read(running, f"/{bucket}/{n}", source))
        warm = running.peak_memory_bytes()
    shutil.rmtree(tmp_path / "cache")
    with gateway(seaweed.endpoint, tmp_path / "small", cache_size=f"{total_bytes // 2}") as running:
        _at_once(running, lambda client, n: _download(client, bucket, n, source))
        cold = running.peak_memory_bytes()

    peaks = {"uploaded": uploaded, "flushed": flushed, "warm": warm, "cold": cold}
    shown = ", ".join(f"{name} {peak // MIB} MiB" for name, peak in peaks.items())
    note_figure(f"peak memory, {CLIENTS} clients of {SIZE_BYTES // MIB} MiB: {shown}")
    assert max(peaks.values()) < PEAK_BYTES_MAX, shown


def _at_once(running: GatewayProcess, work: Callable[[S3Client, int], None]) -> None:
    clients = [running.client() for _ in range(CLIENTS)]
    with ThreadPoolExecutor(CLIENTS) as threads:
        list(threads.map(work, clients, range(CLIENTS)))


def _download(client: S3Client, bucket: str, number: int, source: Path) -> None:
    """Download with ten connections, and compare as it comes: 16 files of 1 GiB would need a disk of their own."""
    with source.open("rb") as expected:
        compared = _Compared(expected)
        client.download_fileobj(bucket, f"{number}", compared)
        assert compared.is_equal, f"object {number} differs"
        assert expected.read(1) == b"", f"object {number} is short"


def _read(running: GatewayProcess, target: str, source: Path) -> None:
    """Do the same without the SDK, which takes five times as much of the processors as the gateway does to send what it has."""
    with ThreadPoolExecutor(CONNECTIONS) as threads:
        list(threads.map(lambda first: _read_parts(running, target, source, first), range(CONNECTIONS)))


def _read_parts(running: GatewayProcess, target: str, source: Path, first: int) -> None:
    """Read each tenth part on one connection, and compare as it comes."""
    identity, host = SigningIdentity(ACCESS_KEY, SECRET_KEY, REGION), f"127.0.0.1:{running.port}"
    with closing(http.client.HTTPConnection(host, timeout=60)) as connection, source.open("rb") as expected:
        for start in range(first * PART_BYTES, SIZE_BYTES, CONNECTIONS * PART_BYTES):
            asked = {"host": host, "range": f"bytes={start}-{start + PART_BYTES - 1}"}
            headers = sign_headers(identity, "GET", target, asked, UNSIGNED_PAYLOAD, time.time())
            connection.request("GET", target, headers=headers)
            answer = connection.getresponse()
            expected.seek(start)
            left = PART_BYTES
            while piece := answer.read(MIB):
                assert piece == expected.read(len(piece)), f"{target} differs in {start} and behind"
                left -= len(piece)
            assert (answer.status, left) == (206, 0), f"{target} from {start}"


class _Compared:
    """Takes what is written to it, in order, and compares it with a file."""

    def __init__(self, expected: BinaryIO) -> None:
        self.is_equal = True
        self._expected = expected

    def write(self, data: bytes) -> int:
        self.is_equal = self.is_equal and self._expected.read(len(data)) == data
        return len(data)
