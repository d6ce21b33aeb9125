"""The command that repairs, as a user runs it: a gateway is killed, its directory damaged, repaired and started again.

Every kind of damage is gone through in `tests/integration/test_damage_at_rest.py`.
"""

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # it ships no types

from gateway.cli import execute
from tests.end_to_end.origins import FakeOriginProcess
from tests.end_to_end.processes import GatewayProcess
from tests.fakes.damages import DIRTY, dirty_segment_bit, journal_middle_record

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_gateway_starts_again_when_a_damaged_directory_was_repaired(
    fake: FakeOriginProcess, cache_dir: Path
) -> None:
    """The start refuses and names the command; after it clean data reads right, the hit object is named, all else flushes."""
    fake.add_fault(operation="PutObject", times=-1, status=503, code="SlowDown")
    gateway = GatewayProcess(fake.endpoint, cache_dir, {"FOREBAY_ORIGIN_TIMEOUT_S": "1s"}).start()
    try:
        client = gateway.client()
        for key, body in DIRTY.items():
            client.put_object(Bucket="data", Key=key, Body=body)
        gateway.kill()
        journal_middle_record(cache_dir)
        dirty_segment_bit(cache_dir)

        with pytest.raises(RuntimeError, match="forebay fsck"):
            gateway.start()
        dry = said(gateway, "fsck", "--dry-run")
        repaired = said(gateway, "fsck", "--repair", "--json")
        fake.clear_faults()
        gateway.start()
        read = {
            key: client.get_object(Bucket="data", Key=key)["Body"].read()
            for key in DIRTY
            if "large" not in key
        }
        with pytest.raises(ClientError):
            client.get_object(Bucket="data", Key="dirty/large")
        flushed = said(gateway, "flush", "s3://data/", "--wait")
        status = said(gateway, "status")
    finally:
        gateway.end()

    assert (dry[0], repaired[0], flushed[0]) == (1, 1, 1)
    assert "would: state the journal anew" in dry[1]
    document = json.loads(repaired[1])
    assert [lost.partition(": ")[0] for lost in document["lost"]] == ["s3://data/dirty/large"]
    assert all(Path(cache_dir / kept["place"]).stat().st_size for kept in document["kept_aside"])
    assert read == {key: body for key, body in DIRTY.items() if key != "dirty/large"}
    assert "s3://data/dirty/large" in flushed[1]
    assert "recovered: bytes [" in status[1]
    at_origin = [one["Key"] for one in fake.client().list_objects_v2(Bucket="data")["Contents"]]
    assert sorted(at_origin) == ["dirty/last", "dirty/small"]


def said(gateway: GatewayProcess, *arguments: str) -> tuple[int, str]:
    """Run a command in this process, which is a second faster; give its exit status and what it said."""
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(io.StringIO()):
        status = execute(arguments, gateway.environment)
    return status, output.getvalue()
