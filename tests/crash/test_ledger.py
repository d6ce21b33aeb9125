"""The ledger: what was acknowledged is what is read, however often the gateway is killed and however the origin fails.

In the gate ten kills; FOREBAY_KILLS and FOREBAY_SEED make it longer and other. The planted bugs show that it finds what it is for,
one in the gate, all with FOREBAY_TEST_LONG=1.
"""

import os
import time
from pathlib import Path
from statistics import median
from typing import Final

import pytest

from storage.types import KIB
from tests.crash.ledger_run import ORIGIN_LATENCY_S, FaultsAllTheTime, LedgerRun, shown
from tests.end_to_end.content import IS_LONG, note_figure
from tests.end_to_end.origins import fake_origin
from tests.end_to_end.processes import gateway

KILLS: Final = int(os.environ.get("FOREBAY_KILLS", "10"))
SEED: Final = int(os.environ.get("FOREBAY_SEED", "1"))
START_S_MAX: Final = 2.0
PLANTED_KILLS_MAX: Final = 8
BUGS: Final = ("early-acknowledgement", "early-confirmation", "lost-tombstones")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120 + 20 * KILLS)]


def test_every_acknowledged_state_survives_kills_under_load_with_a_failing_origin(tmp_path: Path) -> None:
    """B09: after each kill, and at the origin alone after the drain, every key shows its last acknowledged state or a later attempt's."""
    begun_s = time.monotonic()
    with (
        fake_origin("--bucket", "data") as origin,
        # What was sent just before the kill is asked for once more after the origin's time-out: a short one here.
        gateway(origin.endpoint, tmp_path / "cache", origin_timeout_s="1s") as running,
    ):
        running.client().put_object(Bucket="data", Key="first", Body=b"")  # the bucket's facts are known now
        origin.set_latency(ORIGIN_LATENCY_S)
        run = LedgerRun(running, origin, tmp_path / "ledger", SEED)
        with FaultsAllTheTime(origin, SEED) as faults:
            for kill in range(KILLS):
                report = run.round(kill)
                assert not report.violations, shown(report, SEED)
        origin.set_latency(0.0)
        running.flush("s3://data/")
        report = run.check()
        alone = run.check_origin()

        assert not report.violations, shown(report, SEED)
        assert not alone.violations, shown(alone, SEED)
        status, said, _ = running.execute("verify", "s3://data/", "--deep", "--bytes")
        assert status == 0, said
        assert "Traceback" not in running.log_path.read_text()

    note_figure(
        f"{KILLS} kills, seed {SEED}, {time.monotonic() - begun_s:.0f} s: {run.tally.acknowledged} acknowledged, "
        f"{run.tally.unanswered} not, {faults.given} faults, {sum(run.pending)} pending at starts, "
        f"starts of {median(run.starts):.2f} s, the slowest {max(run.starts):.2f} s; at the origin {alone.summary()}"
    )
    assert sum(run.pending) > 0, "everything was at the origin whenever the gateway was killed"
    # Not the slowest one: of the waits for a processor only those of the main thread are known and left out.
    assert median(run.starts) < START_S_MAX, f"starts took {run.starts} s"


@pytest.mark.parametrize("bug", BUGS if IS_LONG else BUGS[:1])
def test_a_planted_bug_is_found_by_the_ledger(bug: str, tmp_path: Path) -> None:
    """A gateway that acknowledges, confirms or deletes what it has not done yet fails within a few kills."""
    kills = 0
    found: list[str] = []
    with (
        fake_origin("--bucket", "data") as origin,
        gateway(origin.endpoint, tmp_path / "cache", bug=bug, origin_timeout_s="1s") as running,
    ):
        running.client().put_object(Bucket="data", Key="first", Body=b"")
        origin.set_latency(ORIGIN_LATENCY_S)
        run = LedgerRun(running, origin, tmp_path / "ledger", SEED, size_max=64 * KIB)
        with FaultsAllTheTime(origin, SEED):
            while not found and kills < PLANTED_KILLS_MAX:
                found = [violation.what for violation in run.round(kills).violations]
                kills += 1

    note_figure(f"{bug}: {len(found)} violations after {kills} kills, {found[:3]}")
    assert found, f"{bug} was not found in {kills} kills (seed {SEED})"
