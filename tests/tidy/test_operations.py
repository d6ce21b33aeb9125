"""docs/operations.md agrees with the metrics, the access log, the commands and the admin verbs."""

import re

import msgspec

from gateway import admin, cli
from gateway.access_log import AccessEntry
from gateway.telemetry import METRICS
from storage.reasons import Reason, origin_failed, waited
from tests.tidy.blocks import MADE, blocks
from tests.tidy.repository import DOCS, ROOT

DOCUMENT = (DOCS / "operations.md").read_text()
METRIC = re.compile(r"\bforebay_[a-z_]+\b")
SUFFIXES = ("", "_bucket", "_sum", "_count")


def test_metrics_table_equals_the_code_when_it_is_read() -> None:
    """The document shows every metric; `python -m tests.tidy.rewrite` makes the table."""
    assert blocks(DOCUMENT)["metrics"] == MADE["metrics"]("")


def test_every_metric_that_is_named_exists_when_documents_are_read() -> None:
    """An alert or a sentence about a metric that is not exported would mislead."""
    known = {row.name + suffix for row in METRICS for suffix in SUFFIXES}

    for path in (ROOT / "README.md", *sorted(DOCS.glob("*.md"))):
        assert set(METRIC.findall(path.read_text())) <= known, path.name


def test_access_log_fields_equal_the_code_when_they_are_read() -> None:
    """The table of the access log has one row a field, in the order of a line."""
    section = DOCUMENT.partition("## Access log")[2].partition("\n## ")[0]

    assert tuple(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == tuple(
        field.name for field in msgspec.structs.fields(AccessEntry)
    )


def test_every_reason_is_described_when_the_document_is_read() -> None:
    """The table of x-cache-reason has a row for each word that an answer may have."""
    section = DOCUMENT.partition("## Why was this a miss?")[2].partition("\n## ")[0]
    described = set(re.findall(r"^\| `([^`]+)` \|", section, re.MULTILINE))

    assert described == {*Reason, origin_failed("CODE"), waited(1.0).replace("1.0", "N")}


def test_every_command_is_described_when_the_document_is_read() -> None:
    """Each command of the command line has a row."""
    section = DOCUMENT.partition("## Commands")[2].partition("\n## ")[0]
    commands = set(re.findall(r'_add\(\s*commands,\s*"(\w+)"', (ROOT / "gateway" / "cli.py").read_text()))

    assert cli.DONE == 0
    assert set(re.findall(r"^\| `forebay (\w+)", section, re.MULTILINE)) == commands


def test_every_own_path_is_described_when_the_document_is_read() -> None:
    """Each path that is the gateway's own has a row."""
    paths = re.findall(r"^    (GET|POST)\s+(/[\w/-]+)", admin.__doc__ or "", re.MULTILINE)

    assert len(paths) >= 8
    for method, path in paths:
        assert f"`{method} {path}" in DOCUMENT, (method, path)
