"""Run the integration tests of boto/s3transfer against an origin, or against the gateway in front of it.

    python -m tests.conformance.s3_transfer CLONE --python PYTHON [--origin moto] [--bare] [--tls]

Arguments, results and status are as those of `s3_tests.py`; what is expected to fail stands in `expected_s3_transfer.tsv`.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from tests.conformance.suite import judge, run_suite, running_suite_target, suite_arguments

HERE: Final = Path(__file__).parent


def main(arguments: Sequence[str]) -> int:
    """Run what the arguments ask for; give the exit status."""
    chosen = suite_arguments("s3_transfer", "boto/s3transfer").parse_args(arguments)
    with running_suite_target(chosen) as (target, directory):
        config = directory / "aws.config"
        config.write_text("[default]\ns3 =\n    addressing_style = path\n")
        results = run_suite(
            chosen,
            f"{target.name}-s3transfer",
            plugin="s3_transfer_plugin",
            selection=chosen.only or ["tests/integration"],
            AWS_ENDPOINT_URL_S3=target.endpoint,
            AWS_ACCESS_KEY_ID=target.main.access_key,
            AWS_SECRET_ACCESS_KEY=target.main.secret_key,
            AWS_CONFIG_FILE=str(config),
            **({"AWS_CA_BUNDLE": str(target.trusted)} if target.trusted is not None else {}),
        )
    return judge(chosen, target.name, results, HERE / "expected_s3_transfer.tsv")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
