"""What is cached costs the origin nothing: counted at the origin, and said by the gateway's own metric."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from urllib.request import urlopen

import pytest
import xxhash

from storage.types import MIB
from tests.end_to_end.content import content, note_figure
from tests.end_to_end.origins import FakeOriginProcess
from tests.end_to_end.processes import PRESIGNING, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

READERS = 50


def test_second_read_makes_no_origin_request(fake: FakeOriginProcess, cache_dir: Path) -> None:
    """Objects of all kinds of sizes are read from the origin once; the second read is local, and the hit ratio is a half."""
    bodies = {
        f"epoch/{size}": content(size, size) for size in (0, 1, 40_000, MIB, MIB + 1, 3 * MIB, 9 * MIB + 123)
    }
    for key, body in bodies.items():
        fake.client().put_object(Bucket="data", Key=key, Body=body)
    with gateway(fake.endpoint, cache_dir) as running:
        client = running.client()

        first = {key: client.get_object(Bucket="data", Key=key)["Body"].read() for key in bodies}
        after_first = fake.counters()
        answers = {key: client.get_object(Bucket="data", Key=key) for key in bodies}
        second = {key: answer["Body"].read() for key, answer in answers.items()}
        after_second = fake.counters()
        ratio = running.metric('forebay_cache_hit_ratio{unit="requests"}')
        bytes_ratio = running.metric('forebay_cache_hit_ratio{unit="bytes"}')

    results = {key: _x_cache(answer) for key, answer in answers.items()}
    assert first == bodies
    assert second == bodies
    assert results == dict.fromkeys(bodies, "HIT")
    assert after_second == after_first
    assert ratio == pytest.approx(0.5)
    assert bytes_ratio == pytest.approx(0.5, abs=0.01)


def test_what_was_written_is_read_without_the_origin(fake: FakeOriginProcess, cache_dir: Path) -> None:
    """The gateway's own writes are hits from the first read on, before the flush and after it."""
    body = content(1, 2 * MIB)
    with gateway(fake.endpoint, cache_dir) as running:
        client = running.client()

        client.put_object(Bucket="data", Key="k", Body=body)
        before = client.get_object(Bucket="data", Key="k")
        before_body = before["Body"].read()
        running.flush("s3://data/")
        after_flush = fake.counters()
        after = client.get_object(Bucket="data", Key="k")
        after_body = after["Body"].read()
        at_end = fake.counters()

    assert (before_body, after_body) == (body, body)
    assert (_x_cache(before), _x_cache(after)) == ("HIT", "HIT")
    assert at_end == after_flush
    assert at_end.requests["PutObject"] == 1


def test_many_readers_of_a_cold_object_cost_one_objects_bytes(
    fake: FakeOriginProcess, cache_dir: Path
) -> None:
    """50 concurrent readers of one cold 32 MiB object get its bytes, and the origin sends them once."""
    body = content(2, 32 * MIB)
    fake.client().put_object(Bucket="data", Key="cold", Body=body)
    # So slow that every reader comes while the first fill is on its way.
    fake.add_fault(operation="GetObject", times=-1, body_bytes_per_s=16 * MIB)
    before = fake.counters()
    with gateway(fake.endpoint, cache_dir) as running:
        url = running.client(config=PRESIGNING).generate_presigned_url(
            "get_object", Params={"Bucket": "data", "Key": "cold"}
        )

        digests = _read_at_once(lambda: _digest(url), READERS)
        after = fake.counters()

    sent = after.bytes_out - before.bytes_out
    note_figure(f"{READERS} readers of a cold 32 MiB object: {after.requests['GetObject']} GET, {sent} bytes")
    assert digests == [xxhash.xxh3_64_hexdigest(body)] * READERS
    assert sent == 32 * MIB
    assert after.requests["GetObject"] == 1


def _read_at_once(read: Callable[[], str], count: int) -> list[str]:
    together = Barrier(count)

    def wait_and_read(_: int) -> str:
        together.wait(30)
        return read()

    with ThreadPoolExecutor(count) as readers:
        return list(readers.map(wait_and_read, range(count)))


def _digest(url: str) -> str:
    hasher = xxhash.xxh3_64()
    with urlopen(url, timeout=60) as answer:
        while piece := answer.read(MIB):
            hasher.update(piece)
    return hasher.hexdigest()


def _x_cache(answer: dict[str, dict[str, dict[str, str]]]) -> str:
    return answer["ResponseMetadata"]["HTTPHeaders"]["x-cache"]
