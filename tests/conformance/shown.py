"""Which operations the passing tests of public suites have shown to work through the gateway.

    python -m tests.conformance.shown RESULTS...

writes `shown.tsv` anew from results of runs through the gateway: an operation, how many tests of each suite called it and passed.
docs/s3-compatibility.md says so beside the operation.
"""

import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.conformance.verdicts import Result, read_results

SHOWN: Final = Path(__file__).parent / "shown.tsv"
HEAD: Final = "operation\tceph/s3-tests\tboto/s3transfer"
TRANSFER_TESTS: Final = "tests/integration/"


def main(paths: Sequence[str]) -> int:
    """Write the file anew."""
    results = [result for path in paths for result in read_results(Path(path).read_text())]
    SHOWN.write_text(written(results))
    return 0


def written(results: Iterable[Result]) -> str:
    """Write what results show; a test that ran several times counts once."""
    suites: dict[str, tuple[set[str], set[str]]] = defaultdict(lambda: (set(), set()))
    for result in results:
        if result.outcome == "passed":
            for operation in result.operations:
                suites[operation][result.test.startswith(TRANSFER_TESTS)].add(result.test)
    lines = [
        f"{operation}\t{len(ceph)}\t{len(transfer)}" for operation, (ceph, transfer) in sorted(suites.items())
    ]
    return "\n".join([HEAD, *lines, ""])


def read_shown(text: str) -> Mapping[str, tuple[int, int]]:
    """Read the file: by operation, the tests of ceph/s3-tests and of boto/s3transfer."""
    lines = text.splitlines()
    assert lines[0] == HEAD, lines[0]
    rows = [line.split("\t") for line in lines[1:]]
    return {operation: (int(ceph), int(transfer)) for operation, ceph, transfer in rows}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
