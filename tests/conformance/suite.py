"""Run a public suite of tests, of which there is a clone, against a target, and say what came of it."""

import argparse
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.conformance.targets import ORIGINS, Target, running_target
from tests.conformance.verdicts import Result, lost_tests, read_expected, read_results, surprises
from tests.end_to_end.processes import user_environment

PLUGINS: Final = Path(__file__).parent
RAN: Final = frozenset({0, 1})
"""pytest's statuses of a run that came to its end."""


def suite_arguments(command: str, repository: str) -> argparse.ArgumentParser:
    """Give the arguments that the command of every suite has."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.conformance.{command}")
    parser.add_argument("clone", type=Path, help=f"a work tree of {repository}")
    parser.add_argument("--python", default=sys.executable, help="a Python with the suite's requirements")
    parser.add_argument("--origin", choices=ORIGINS, default="seaweed")
    parser.add_argument("--bare", action="store_true", help="the origin alone, without the gateway")
    parser.add_argument("--tls", action="store_true")
    parser.add_argument(
        "--own-keys", action="store_true", help="the first user's key has its own authority, too"
    )
    parser.add_argument("--output", type=Path, default=Path.cwd(), help="a directory for the results")
    parser.add_argument("--compare", type=Path, metavar="RESULTS", help="of the bare origin")
    parser.add_argument("--only", action="append", default=[], metavar="TEST", help="as the results name it")
    parser.add_argument("--timeout", type=int, default=60, help="seconds a test")
    parser.add_argument("--traceback", choices=("no", "short", "long"), default="no")
    return parser


@contextmanager
def running_suite_target(chosen: argparse.Namespace) -> Iterator[tuple[Target, Path]]:
    """Run the target that the arguments name, and give it with a directory that goes with it."""
    with tempfile.TemporaryDirectory(prefix="conformance-") as name:
        directory = Path(name)
        target_run = running_target(
            chosen.origin,
            directory,
            is_bare=chosen.bare,
            is_tls=chosen.tls,
            has_own_keys=chosen.own_keys,
        )
        with target_run as target:
            yield target, directory


def run_suite(
    chosen: argparse.Namespace, name: str, *, plugin: str, selection: Sequence[str], **variables: str
) -> list[Result]:
    """Run the tests of a selection with a plugin of this directory, and give what each said.

    What they said stands in NAME.jsonl of the output directory too, and pytest's own words in NAME.log.
    """
    chosen.output.mkdir(parents=True, exist_ok=True)
    results = (chosen.output / f"{name}.jsonl").absolute()
    results.write_text("")
    log_path = results.with_suffix(".log")
    with log_path.open("w") as log:
        status = subprocess.run(
            [
                chosen.python,
                *("-m", "pytest", "-p", "results_plugin", "-p", plugin, "-p", "no:cacheprovider", "-q"),
                *(f"--tb={chosen.traceback}", f"--timeout={chosen.timeout}", "--timeout-method=signal"),
                *("-W", "ignore"),
                *selection,
            ],
            cwd=chosen.clone,
            env=user_environment(
                PYTHONPATH=f"{PLUGINS}:{chosen.clone.absolute()}",
                PYTHONDONTWRITEBYTECODE="1",
                SUITE_RESULTS=str(results),
                AWS_EC2_METADATA_DISABLED="true",
                AWS_DEFAULT_REGION="us-east-1",
                **variables,
            ),
            stdout=log,
            stderr=subprocess.STDOUT,
            check=False,
        ).returncode
    if status not in RAN:
        raise SystemExit(f"the suite ended with {status}: {log_path}")
    return read_results(results.read_text())


def judge(chosen: argparse.Namespace, target: str, results: list[Result], expected: Path) -> int:
    """Write what came of a run, and give the exit status: 1 where a test fails or passes that should not.

    With results of the bare origin at hand, what fails there is no surprise here.
    """
    counts = Counter(result.outcome for result in results)
    said = ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", "skipped"))
    sys.stdout.write(f"{target}: {said} of {len(results)}\n")
    judged = results
    if chosen.compare is not None:
        lost = lost_tests(results, read_results(chosen.compare.read_text()))
        _write_results("passes bare and fails here", lost)
        judged = [*lost, *(result for result in results if result.outcome != "failed")]
    if chosen.bare:
        return 0
    found = surprises(
        judged,
        read_expected(expected.read_text()),
        origin=chosen.origin,
        protocol="tls" if chosen.tls else "http",
    )
    _write_results("failures that are not expected", found.new_failures)
    for one in found.new_passes:
        sys.stdout.write(f"passes, and is expected to fail: {one.test}: {one.reason}: {one.note}\n")
    return 1 if found else 0


def _write_results(head: str, results: Sequence[Result]) -> None:
    sys.stdout.write(f"{head}: {len(results)}\n")
    for result in results:
        sys.stdout.write(f"  {result.test}: {result.message}\n")
