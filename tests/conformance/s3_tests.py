"""Run ceph/s3-tests against an origin, or against the gateway in front of it, and compare with what is expected.

    python -m tests.conformance.s3_tests CLONE --python PYTHON [--origin seaweed] [--bare] [--tls] [--tests core]

CLONE is a work tree of the suite, PYTHON one that has its requirements; see README.md beside this. Each result is a line of
OUTPUT/TARGET-TESTS.jsonl. The status is 1 where a test fails or passes that should not.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.conformance.s3_tests_config import suite_config
from tests.conformance.suite import judge, run_suite, running_suite_target, suite_arguments
from tests.conformance.targets import Target
from tests.conformance.verdicts import Result

HERE: Final = Path(__file__).parent
LISTS: Final = ("core", "versioning", "all")
FUNCTIONAL: Final = "s3tests/functional"
IRRELEVANT_MARKERS: Final = (
    "lifecycle",
    "lifecycle_expiration",
    "lifecycle_transition",
    "cloud_transition",
    "cloud_restore",
    "bucket_logging",
    "s3website",
    "s3website_routing_rules",
    "s3website_redirect_location",
)
"""What the whole suite leaves out: tests that wait for days of Ceph's own clock, and services that no origin here has."""


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; give the exit status."""
    parser = suite_arguments("s3_tests", "ceph/s3-tests")
    parser.add_argument("--tests", choices=LISTS, default="core")
    chosen = parser.parse_args(arguments)
    chosen.own_keys = chosen.own_keys or chosen.tests == "all"
    with running_suite_target(chosen) as (target, directory):
        results = _run(chosen, target, directory)
    return judge(chosen, target.name, results, HERE / "expected.tsv")


def _run(chosen: argparse.Namespace, target: Target, directory: Path) -> list[Result]:
    config = directory / "s3tests.conf"
    config.write_text(suite_config(target))
    return run_suite(
        chosen,
        f"{target.name}-{chosen.tests}",
        plugin="s3_tests_plugin",
        selection=_selection(chosen),
        S3TEST_CONF=str(config),
        S3_USE_SIGV4="1",
        AWS_MAX_ATTEMPTS="2",
    )


def _selection(chosen: argparse.Namespace) -> list[str]:
    if chosen.only:
        return [f"{FUNCTIONAL}/{test}" for test in chosen.only]
    if chosen.tests == "all":
        files = [f"{FUNCTIONAL}/test_s3.py", f"{FUNCTIONAL}/test_headers.py"]
        return [*files, "-m", " and ".join(f"not {marker}" for marker in IRRELEVANT_MARKERS)]
    return [f"{FUNCTIONAL}/{test}" for test in listed_tests(chosen.tests)]


def listed_tests(name: str) -> list[str]:
    """Give the tests of a checked-in list, `core` or `versioning`."""
    return (HERE / f"{name}.txt").read_text().split()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
