"""A write is acknowledged by the local disk, however slow the origin is, and is there at once for everybody."""

import statistics
import time
from pathlib import Path
from typing import Final

import pytest

from storage.types import KIB, MIB
from tests.end_to_end.content import content, note_figure
from tests.end_to_end.origins import FakeOriginProcess
from tests.end_to_end.processes import S3Client, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timing, pytest.mark.timeout(120)]

ORIGIN_LATENCY_S: Final = 0.5
PUT_MEDIAN_S_MAX: Final = 0.05


@pytest.mark.parametrize("size_bytes", [4 * KIB, MIB], ids=["4KiB", "1MiB"])
def test_put_answers_in_milliseconds_when_the_origin_takes_half_a_second(
    fake: FakeOriginProcess, cache_dir: Path, size_bytes: int
) -> None:
    """The median PUT takes under 50 ms, and so do GET and HEAD of what is not at the origin yet; LIST shows all of it."""
    bodies = {f"run/{n:03}": content(n, size_bytes) for n in range(30)}
    with gateway(fake.endpoint, cache_dir) as running:
        client = running.client()
        # The bucket's facts are asked for once, before the first write into it.
        client.put_object(Bucket="data", Key="first", Body=b"")
        fake.set_latency(ORIGIN_LATENCY_S)

        puts = [_timed(client, "put_object", key, Body=body) for key, body in bodies.items()]
        listed = client.list_objects_v2(Bucket="data", Prefix="run/")["Contents"]
        heads = [_timed(client, "head_object", key) for key in bodies]
        gets = [_timed(client, "get_object", key) for key in bodies]
        pending = running.metric("forebay_writeback_pending_objects")
        read = {key: _body(client, key) for key in bodies}
        fake.set_latency(0.0)
        running.flush("s3://data/")

    origin = fake.client()
    at_origin = {key: _body(origin, key) for key in bodies}
    for name, times in (("PUT", puts), ("HEAD", heads), ("GET", gets)):
        median_ms, worst_ms = statistics.median(times) * 1000, max(times) * 1000
        note_figure(f"{name} of {size_bytes} bytes: median {median_ms:.1f} ms, worst {worst_ms:.1f} ms")
    assert statistics.median(puts) < PUT_MEDIAN_S_MAX
    assert statistics.median(heads) < PUT_MEDIAN_S_MAX
    assert statistics.median(gets) < PUT_MEDIAN_S_MAX
    assert [(one["Key"], one["Size"]) for one in listed] == [(key, size_bytes) for key in bodies]
    assert pending > 0
    assert read == bodies
    assert at_origin == bodies


def test_a_change_is_seen_at_once_when_the_origin_is_slow(fake: FakeOriginProcess, cache_dir: Path) -> None:
    """An overwrite and a delete of what the origin has are what GET, HEAD and LIST show while neither has been flushed."""
    origin = fake.client()
    origin.put_object(Bucket="data", Key="overwritten", Body=b"old")
    origin.put_object(Bucket="data", Key="deleted", Body=b"old")
    with gateway(fake.endpoint, cache_dir) as running:
        client = running.client()
        client.put_object(Bucket="data", Key="first", Body=b"")
        client.get_object(Bucket="data", Key="deleted")["Body"].read()
        fake.set_latency(ORIGIN_LATENCY_S)

        client.put_object(Bucket="data", Key="overwritten", Body=b"newer")
        client.delete_object(Bucket="data", Key="deleted")
        size = client.head_object(Bucket="data", Key="overwritten")["ContentLength"]
        body = client.get_object(Bucket="data", Key="overwritten")["Body"].read()
        listed = client.list_objects_v2(Bucket="data")["Contents"]
        with pytest.raises(client.exceptions.NoSuchKey):
            client.get_object(Bucket="data", Key="deleted")

    assert (size, body) == (5, b"newer")
    assert [(one["Key"], one["Size"]) for one in listed] == [("first", 0), ("overwritten", 5)]


def _timed(client: S3Client, operation: str, key: str, **arguments: bytes) -> float:
    begun_s = time.perf_counter()
    answer = getattr(client, operation)(Bucket="data", Key=key, **arguments)
    if operation == "get_object":
        answer["Body"].read()
    return time.perf_counter() - begun_s


def _body(client: S3Client, key: str) -> bytes:
    return bytes(client.get_object(Bucket="data", Key=key)["Body"].read())
