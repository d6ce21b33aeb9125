"""docs/semantics.md promises what a test proves: each sentence ends in the id of one that exists."""

import re
from pathlib import Path

from tests.tidy.repository import DOCS, ROOT

DOCUMENT = (DOCS / "semantics.md").read_text()
TEST_ID = re.compile(r"`(tests/[\w/]+\.py)::((?:test_|Test)\w+)`")
UNPROVEN = "## Not yet proven"


def promises() -> list[str]:
    """Give each item of the lists above the part that is not proven, its lines joined."""
    proven = DOCUMENT.partition(UNPROVEN)[0]
    items = re.findall(r"^- (.*(?:\n  .*)*)", proven, re.MULTILINE)
    return [re.sub(r"\s+", " ", item) for item in items]


def test_every_promise_ends_in_a_test_when_the_document_is_read() -> None:
    """A promise without a proof belongs under what is not yet proven."""
    without = [promise for promise in promises() if not re.search(r"`tests/[^`]+`$", promise)]

    assert len(promises()) >= 20
    assert without == []


def test_every_named_test_exists_when_the_document_is_read() -> None:
    """A test that was renamed or removed takes its promise with it."""
    named = TEST_ID.findall(DOCUMENT)

    assert len(named) == DOCUMENT.count("`tests/")
    assert [f"{path}::{name}" for path, name in named if not _is_defined(ROOT / path, name)] == []


def test_the_unproven_part_is_there_when_the_document_is_read() -> None:
    """What is missing is said."""
    assert UNPROVEN in DOCUMENT


def _is_defined(path: Path, name: str) -> bool:
    definition = rf"^\s*(?:(?:async )?def {name}\(|class {name}\b|{name} = )"
    return path.is_file() and re.search(definition, path.read_text(), re.MULTILINE) is not None
