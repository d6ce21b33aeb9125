"""SIGHUP on a real gateway: other policies from the next write on, and what was queued before keeps its times."""

import io
import signal
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from gateway.cli import execute
from tests.end_to_end.origins import FakeOriginProcess
from tests.end_to_end.processes import GatewayProcess, gateway

HELD = '[[policies]]\nmatch = "s3://data/*"\nflush_delay = "10m"\n'
THROUGH = '[[policies]]\nmatch = "s3://data/*"\nwrite = "through"\n'


def until(is_so: Callable[[], bool], wait_s: float = 20.0) -> None:
    """Return when something is so."""
    deadline_s = time.monotonic() + wait_s
    while not is_so():
        assert time.monotonic() < deadline_s, "it does not come"
        time.sleep(0.02)


def said(running: GatewayProcess, *arguments: str) -> str:
    """Give what a command says, run in this process, which is a second faster."""
    out = io.StringIO()
    with redirect_stdout(out):
        assert execute(arguments, running.environment) == 0
    return out.getvalue()


def hang_up(running: GatewayProcess, config: Path, text: str) -> None:
    """Write the settings anew and send SIGHUP."""
    config.write_text(text)
    assert running.process is not None
    running.process.send_signal(signal.SIGHUP)


@pytest.mark.slow
def test_policies_change_at_a_sighup_and_a_wrong_file_changes_nothing(
    fake: FakeOriginProcess, tmp_path: Path
) -> None:
    """A write before the signal waits as it was acknowledged, one after it goes by the new policy; a typo is told and harmless."""
    config = tmp_path / "forebay.toml"
    config.write_text(HELD)
    with gateway(fake.endpoint, tmp_path / "cache", "--config", str(config)) as running:
        client = running.client()
        client.put_object(Bucket="data", Key="before", Body=b"1")

        hang_up(running, config, THROUGH)
        until(lambda: running.metric('forebay_settings_reloads_total{result="taken"}') == 1)
        client.put_object(Bucket="data", Key="after", Body=b"2")
        hang_up(running, config, THROUGH.replace("through", "thruogh"))
        until(lambda: running.metric('forebay_settings_reloads_total{result="refused"}') == 1)
        client.put_object(Bucket="data", Key="still", Body=b"3")

        origin = fake.client()
        there = {one["Key"] for one in origin.list_objects_v2(Bucket="data").get("Contents", [])}
        explained = said(running, "policy", "explain", "s3://data/k")
        status = said(running, "status")
        assert there == {"after", "still"}
        assert client.get_object(Bucket="data", Key="before")["Body"].read() == b"1"
        assert "[[policies]] number 1, line 1: s3://data/*" in explained
        assert "write                through      this table, line 3" in explained
        assert (
            "not reloaded: write (config file, line 3, [[policies]] number 1): 'thruogh' is wrong" in status
        )
        assert running.metric("forebay_writeback_pending_objects") == 1
        assert running.stop() == 0
