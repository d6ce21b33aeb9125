"""The commands that prove things, over real processes: `ledger`, `verify`, `pending`, `status --quarantine`, `retry`, `discard`."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.origins import FakeOriginProcess
from tests.end_to_end.processes import GatewayProcess, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture
def running(fake: FakeOriginProcess, cache_dir: Path) -> Iterator[GatewayProcess]:
    """Run a gateway over the fake origin."""
    with gateway(fake.endpoint, cache_dir) as started:
        yield started


def until(is_so: Callable[[], bool]) -> None:
    """Wait for something that comes soon."""
    deadline = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_ledger_is_written_checked_and_checked_at_the_origin(
    fake: FakeOriginProcess, running: GatewayProcess, tmp_path: Path
) -> None:
    """A load leaves a ledger that holds at the gateway and, after a flush, at the origin alone; one lost byte is reported."""
    ledger = ("s3://data/l/", "--ledger", str(tmp_path / "ledger"))

    written = running.run(
        "ledger", "write", *ledger, "--seconds", "2s", "--clients", "4", "--max-size", "64KiB"
    )
    checked, _, _ = running.execute("ledger", "check", *ledger)
    running.flush("s3://data/")
    at_origin, summary, _ = running.execute("ledger", "check", *ledger, "--at-origin")
    client = fake.client()
    key = client.list_objects_v2(Bucket="data", Prefix="l/")["Contents"][0]["Key"]
    client.delete_object(Bucket="data", Key=key)
    lost, report, _ = running.execute("ledger", "check", *ledger, "--at-origin")

    assert (written.returncode, checked, at_origin, lost) == (0, 0, 0, 1), summary
    assert "requests acknowledged" in written.stdout
    assert summary.endswith("0 violations\n")
    assert report.startswith(f"{key}: LOST: attempt ")


def test_verify_says_when_the_gateway_can_be_left(fake: FakeOriginProcess, running: GatewayProcess) -> None:
    """Status 1 with the dirty keys while some are dirty; 0 once all is at the origin, and then the origin alone has it."""
    fake.add_fault(operation="PutObject", times=-1, status=503, code="SlowDown")
    client = running.client()
    bodies = {f"k{number}": bytes([number]) * 10 for number in range(5)}
    for key, body in bodies.items():
        client.put_object(Bucket="data", Key=key, Body=body, Metadata={"a": "1"})

    early, missing, _ = running.execute("verify", "s3://data/")
    _, waiting, _ = running.execute("pending", "s3://data/")
    fake.clear_faults()
    running.flush("s3://data/")
    proven, summary, _ = running.execute("verify", "s3://data/", "--deep", "--bytes")
    running.kill()
    origin = fake.client()
    left = {key: origin.get_object(Bucket="data", Key=key)["Body"].read() for key in bodies}

    assert (early, proven) == (1, 0), summary
    assert missing.count("dirty       s3://data/k") == 5
    assert "5 changes not at the origin yet, 50 B" in waiting
    assert summary.startswith("5 of 5 acknowledged keys are at the origin")
    assert left == bodies


def test_verify_names_what_the_origin_lost_after_reads_that_still_found_it(
    fake: FakeOriginProcess, cache_dir: Path
) -> None:
    """GETs that found a flushed object at the origin do not hide it: once the origin has lost it, it is missing, after a restart too."""
    with gateway(fake.endpoint, cache_dir, freshness="always") as running:
        client = running.client()
        for key in ("kept", "lost"):
            client.put_object(Bucket="data", Key=key, Body=b"body")
        running.flush("s3://data/")
        for _ in range(2):
            client.get_object(Bucket="data", Key="lost")["Body"].read()
        fake.client().delete_object(Bucket="data", Key="lost")

        found, report, _ = running.execute("verify", "s3://data/")
        running.stop()
    with gateway(fake.endpoint, cache_dir) as running:
        again, report_again, _ = running.execute("verify", "s3://data/")

    assert (found, again) == (1, 1)
    assert report.startswith("missing     s3://data/lost: ")
    assert report.splitlines()[-1].startswith("1 of 2 acknowledged keys are at the origin")
    assert report_again == report


def test_quarantine_is_listed_retried_and_discarded(fake: FakeOriginProcess, running: GatewayProcess) -> None:
    """What was refused shows with reason and age; a retry sends it, a discard gives it up, and each says what it did."""
    fake.add_fault(operation="PutObject", key="data/bad*", times=-1, status=400, code="InvalidRequest")
    client = running.client()
    for key in ("bad1", "bad2", "good"):
        client.put_object(Bucket="data", Key=key, Body=b"body")
    until(lambda: running.metric("forebay_writeback_quarantined_objects") == 2)

    _, listed, _ = running.execute("status", "--quarantine")
    kept, _, _ = running.execute("discard", "s3://data/bad", "--prefix")
    _, discarded, _ = running.execute("discard", "s3://data/bad1", "--yes")
    fake.clear_faults()
    _, retried, _ = running.execute("retry", "s3://data/")
    running.flush("s3://data/")
    keys = [one["Key"] for one in fake.client().list_objects_v2(Bucket="data")["Contents"]]

    lines = listed.splitlines()
    assert [line.split()[3] for line in lines[:-1]] == ["s3://data/bad1", "s3://data/bad2"]
    assert all("InvalidRequest" in line for line in lines[:-1])
    assert lines[-1] == "2 changes quarantined, 8 B"
    assert kept == 2
    assert discarded.endswith("1 changes discarded, 4 B lost; the origin holds what it held before them\n")
    assert retried == "1 refused changes under s3://data/ go back to the flush queue\n"
    assert keys == ["bad2", "good"]
