"""A pytest plugin for any suite: one line a test, with the S3 operations that it called.

It runs in the suite's own Python, which knows nothing of Forebay: `python -m pytest -p results_plugin`.
"""

import json
import os
from pathlib import Path
from typing import Any, Final

import botocore.auth  # type: ignore[import-untyped]  # it ships no types
import botocore.client  # type: ignore[import-untyped]  # it ships no types
import pytest

RESULTS_VARIABLE: Final = "SUITE_RESULTS"
"""Names the variable with the file that results go to, one JSON object a line."""

MESSAGE_CHARACTERS: Final = 300

_verdicts: dict[str, dict[str, Any]] = {}
_operations: set[str] = set()


def pytest_configure() -> None:
    """Have botocore's clients tell which operations they call, and sign with botocore's own signers.

    Those of the AWS common runtime, which botocore prefers where that is installed, refuse or overwrite the malformed headers of
    ceph/s3-tests, and cannot read the files of boto/s3transfer: such tests would fail in the client.
    """
    python_signers = {
        "v4": botocore.auth.SigV4Auth,
        "v4-query": botocore.auth.SigV4QueryAuth,
        "s3v4": botocore.auth.S3SigV4Auth,
        "s3v4-query": botocore.auth.S3SigV4QueryAuth,
    }
    botocore.auth.AUTH_TYPE_MAPS.update(python_signers)
    call = botocore.client.BaseClient._make_api_call

    def telling_call(client: Any, operation: str, *arguments: Any, **named: Any) -> Any:
        if client.meta.service_model.service_name == "s3":
            _operations.add(operation)
        return call(client, operation, *arguments, **named)

    botocore.client.BaseClient._make_api_call = telling_call


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a test's verdict, and write its line after its clean-up, which never changes the verdict."""
    verdict = _verdicts.setdefault(
        report.nodeid,
        {"test": report.nodeid, "outcome": "passed", "seconds": 0.0, "message": "", "operations": []},
    )
    verdict["seconds"] = round(verdict["seconds"] + report.duration, 2)
    if report.outcome == "skipped":
        verdict["outcome"] = "skipped"
    elif report.failed and report.when in {"setup", "call"}:
        verdict["outcome"] = "failed"
        verdict["message"] = verdict["message"] or _message(report)
    if report.when == "call":
        verdict["operations"] = sorted(_operations)
    if report.when == "teardown":
        _operations.clear()
        with Path(os.environ[RESULTS_VARIABLE]).open("a") as file:
            file.write(json.dumps(verdict) + "\n")


def _message(report: pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(report.longrepr) if crash is None else str(crash.message)
    return " ".join(text.split())[:MESSAGE_CHARACTERS]
