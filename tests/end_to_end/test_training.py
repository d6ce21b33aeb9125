"""The data loader of `bench/training.py` in short: what is cached is read without the origin, also while that is away."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.end_to_end.forked import ROOT
from tests.end_to_end.processes import user_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SHORT = (
    "--loader=plain --workers=2 --samples=128 --size=64KiB --slots=8 --checkpoint=64KiB --checkpoint-every=4 --ratio=2 "
    "--latency=0.001 --rate=0 --compute=0.005 --outage=0.5 --origin-timeout=2 "
    "--parts=outage"
)
SAMPLES, SLOTS, CHECKPOINTS = 128, 8, 2


def test_training_goes_on_when_the_origin_is_away(tmp_path: Path) -> None:
    """No error and no miss from the second epoch on, though the origin goes away in it; what was acknowledged arrives."""
    report = tmp_path / "report.json"

    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "bench.training",
            *SHORT.split(),
            f"--report={report}",
            f"--directory={tmp_path}",
        ],
        cwd=ROOT,
        env=user_environment(),
        capture_output=True,
        text=True,
        check=False,
    )

    assert report.exists(), done.stdout + done.stderr
    outage = json.loads(report.read_text())["outage"]
    first, *later = outage["epochs"]
    assert first["hit_ratio"] == 0
    assert first["origin_reads"] == SAMPLES
    assert len(later) >= 2
    for epoch in later:
        assert (epoch["errors"], epoch["hit_ratio"], epoch["replay_hit_ratio"]) == ([], 1.0, 1.0)
        assert epoch["origin_reads"] == 0
    assert (outage["acknowledged"], outage["lost"]) == (SLOTS + CHECKPOINTS, [])
