"""`forebay demo`: one command, nothing to configure, and nothing left of it at the end."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.end_to_end.forked import ROOT
from tests.end_to_end.processes import free_port, s3_client, user_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(90)]


@dataclass(slots=True)
class Demo:
    """A running demo, and what it printed up to the end of its example."""

    process: "subprocess.Popen[str]"
    text: str = ""
    values: dict[str, str] = field(default_factory=dict)


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    """Run the demo as `make demo` does, on a port of its own and with its files under the test's directory."""
    with (tmp_path / "demo.log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "demo", "--listen", f"127.0.0.1:{free_port()}"],
            env=user_environment(TMPDIR=str(tmp_path)),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        assert process.stdout is not None
        try:
            started = Demo(process)
            for line in process.stdout:
                started.text += line
                if match := re.fullmatch(
                    r"  (endpoint|access key|secret key|bucket|metrics|cache) +(\S+).*\n", line
                ):
                    started.values[match[1]] = match[2]
                if "get_object" in line:
                    break
            yield started
        finally:
            if process.poll() is None:
                # Not SIGKILL: that would leave the origin that it started.
                process.send_signal(signal.SIGINT)
                process.wait(30)
            process.stdout.close()


def test_demo_prints_what_is_needed_and_serves(demo: Demo) -> None:
    """Endpoint, keys, bucket and metrics address as printed work, and so does the printed example."""
    values = demo.values
    client = s3_client(values["endpoint"], values["access key"], values["secret key"])

    client.put_object(Bucket=values["bucket"], Key="k", Body=b"body")
    read = client.get_object(Bucket=values["bucket"], Key="k")["Body"].read()
    with urlopen(values["metrics"], timeout=10) as answer:
        metrics = answer.read().decode()
    example = subprocess.run(
        [sys.executable, "-c", _example(demo.text)], capture_output=True, text=True, check=False
    )

    assert read == b"body"
    assert "forebay_cache_hit_ratio" in metrics
    assert example.stdout == "b'world'\n", example.stderr


def test_demo_leaves_nothing_when_ended_with_control_c(demo: Demo, tmp_path: Path) -> None:
    """Ctrl-C ends it with status 0: no child, no directory, no traceback."""
    values = demo.values
    client = s3_client(values["endpoint"], values["access key"], values["secret key"])
    client.put_object(Bucket=values["bucket"], Key="k", Body=b"body")
    children = _children(demo.process.pid)
    was_there = Path(values["cache"]).is_dir()

    demo.process.send_signal(signal.SIGINT)
    status = demo.process.wait(30)

    assert status == 0
    assert len(children) == 1
    assert not [pid for pid in children if _is_alive(pid)]
    assert was_there
    assert not Path(values["cache"]).exists()
    assert "Traceback" not in (tmp_path / "demo.log").read_text()


def _example(text: str) -> str:
    """Take the snippet out of what was printed."""
    lines = text[text.index("import boto3") :].splitlines()
    return "\n".join(line.removeprefix("  ") for line in lines)


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def _is_alive(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        time.sleep(0.05)
    return True
