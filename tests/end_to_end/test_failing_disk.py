"""A real gateway over RocksDB and a real file system whose syncs, or whose index, fail for a while.

The failures come from a library that is preloaded into the process (`tests/fakes/failing_disk.c`), compiled here.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from botocore.config import Config  # type: ignore[import-untyped]  # it ships no types
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # it ships no types

from storage.types import KIB, MIB
from tests.end_to_end.content import content
from tests.end_to_end.forked import ROOT
from tests.end_to_end.origins import FakeOriginProcess
from tests.end_to_end.processes import GatewayProcess, S3Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SIZES: Final = (100, 100 * KIB, 3 * MIB)
ONE_ATTEMPT: Final = Config(retries={"max_attempts": 0})


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    target = tmp_path_factory.mktemp("library") / "failing_disk.so"
    source = ROOT / "tests" / "fakes" / "failing_disk.c"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", target, source, "-ldl"], check=True)
    return target


@contextmanager
def failing_gateway(origin: str, cache_dir: Path, library: Path, switches: Path) -> Iterator[GatewayProcess]:
    """Run a gateway whose disk fails while a file of the failure's name is in `switches`."""
    switches.mkdir()
    settings = {
        "LD_PRELOAD": str(library),
        "FAILING_DISK": str(switches),
        # An attempt before the re-opening may land for so long, and a flush waits for that.
        "FOREBAY_ORIGIN_TIMEOUT_S": "2",
    }
    running = GatewayProcess(origin, cache_dir, settings)
    try:
        yield running.start()
    finally:
        running.end()


@pytest.mark.parametrize("failure", ["sync", "index"])
def test_a_gateway_goes_on_by_itself_when_its_disk_was_bad(
    fake: FakeOriginProcess, cache_dir: Path, tmp_path: Path, library: Path, failure: str
) -> None:
    """Writes answer 503 while it lasts, reads go on; then the same process writes again, and has all it acknowledged."""
    acknowledged = {f"before/{n}": content(n, SIZES[n % 3]) for n in range(9)}
    switch = tmp_path / "switches" / failure
    with failing_gateway(fake.endpoint, cache_dir, library, tmp_path / "switches") as running:
        assert running.process is not None
        process_id = running.process.pid
        client = running.client(config=ONE_ATTEMPT)
        fake.set_latency(0.2)
        for key, body in acknowledged.items():
            client.put_object(Bucket="data", Key=key, Body=body)
        switch.touch()
        # A group whose journal record was synced before the index failed may be there afterwards, or not.
        refused = [refusal(client, f"refused/{n}", content(n, SIZES[n % 3])) for n in range(3)]
        wait_for(lambda: running.metric('forebay_reopenings_total{result="failed"}') >= 1, failure == "sync")
        is_ready = running.is_ready()
        read_meanwhile = (
            {key: body_of(client, key) for key in acknowledged} if failure == "sync" else acknowledged
        )
        switch.unlink()
        wait_for(running.is_ready)
        reopened = running.metric('forebay_reopenings_total{result="done"}')
        for key in ("after/1", "after/2"):
            acknowledged[key] = content(len(key), 50 * KIB)
            client.put_object(Bucket="data", Key=key, Body=acknowledged[key])
        read = {key: body_of(client, key) for key in acknowledged}
        left = {f"refused/{n}": body_or_none(client, f"refused/{n}") for n in range(3)}
        fake.set_latency(0.0)
        running.flush("s3://data/")
        is_same = running.process.pid == process_id and running.process.poll() is None
        status = running.stop()

    origin = fake.client()
    assert refused[0] == (503, True)
    assert all(code == 503 for code, _ in refused)
    assert not is_ready or failure == "index"
    assert read_meanwhile == {key: acknowledged[key] for key in read_meanwhile}
    assert reopened >= 1
    assert read == acknowledged
    assert all(left[f"refused/{n}"] in {None, content(n, SIZES[n % 3])} for n in range(3))
    assert {key: body_of(origin, key) for key in acknowledged} == acknowledged
    assert {key: body_or_none(origin, key) for key in left} == left
    assert (is_same, status) == (True, 0)


def refusal(client: S3Client, key: str, body: bytes) -> tuple[int, bool]:
    """Put, and give the status of the refusal and whether it says when to come back."""
    with pytest.raises(ClientError) as caught:
        client.put_object(Bucket="data", Key=key, Body=body)
    metadata = caught.value.response["ResponseMetadata"]
    return metadata["HTTPStatusCode"], "retry-after" in metadata["HTTPHeaders"]


def body_of(client: S3Client, key: str) -> bytes:
    """Read an object."""
    return bytes(client.get_object(Bucket="data", Key=key)["Body"].read())


def body_or_none(client: S3Client, key: str) -> bytes | None:
    """Read an object that may not be there."""
    try:
        return body_of(client, key)
    except client.exceptions.NoSuchKey:
        return None


def wait_for(condition: Callable[[], bool], is_wanted: bool = True) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + 60
    while is_wanted and not condition():
        assert time.monotonic() < deadline, "it does not come"
        time.sleep(0.02)
