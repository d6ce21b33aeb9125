"""The throttling storm of `bench/storm.py` in short: it measures what it says, and the gateway spares the origin."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.forked import ROOT
from tests.end_to_end.processes import user_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_gateway_spares_a_throttling_origin(tmp_path: Path) -> None:
    """Every object is read through the gateway without an error, with far fewer throttled answers than without it."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.storm",
            "--objects",
            "500",
            "--parts",
            "direct,set,learnt",
            "--directory",
            tmp_path,
        ],
        cwd=ROOT,
        env=user_environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    shares = {
        part: float(share)
        for part, share in re.findall(
            r"^(\w+): .* requests, ([0-9.]+)% of them 503", done.stdout, re.MULTILINE
        )
    }
    assert shares.keys() == {"direct", "set", "learnt"}, done.stdout + done.stderr
    assert max(shares["set"], shares["learnt"]) < shares["direct"] / 2
    assert done.stdout.count("0 other errors") == 3
