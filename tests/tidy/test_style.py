"""What no linter looks for: paths of a machine, leftovers, documents that nobody finds, files that grew too long."""

import ast
import re
from pathlib import Path

import pytest

from tests.tidy.blocks import documents, rewritten
from tests.tidy.repository import DOCS, ROOT, files

LINES_MAX = 700

LONG_FILES = {
    "tests/fakes/origin_store.py": "one S3 server's whole state, which no reader wants to look for in two places",
    "tests/integration/origin/test_client.py": "one test a behaviour of the origin's client",
    "tests/unit/storage/test_commit.py": "one test a way in which a group may go through the door, or not",
    "tests/unit/storage/test_compaction.py": "one test a place where a compaction may be cut short",
    "tests/unit/storage/test_flush.py": "one test a story of the flush planner",
    "tests/integration/test_flusher.py": "one test a way in which a flush may go wrong",
    "tests/unit/storage/test_fsck_repair.py": "one test a damage and what a repair makes of it",
    "tests/unit/storage/test_journal.py": "one test a way in which a journal file may be torn or damaged",
    "tests/unit/storage/test_recovery.py": "one test a state in which a start may find the directory",
    "tests/unit/storage/test_segments.py": "one test a rule of the segments' header",
}
"""Longer than LINES_MAX, and why."""

FORBIDDEN = {
    "a path of a machine": r"(?<![\w.:/*-])/(?:wor" + r"k|roo" + r"t|home/\w+)/",
    "a registry's host": r"\b(?:pypi\." + r"org|pythonhosted\." + r"org|npmjs\." + r"com|ghcr\." + r"io|quay\." + r"io|docker\." + r"io)\b",
    "a leftover": r"\b(?:TO" + r"DO|FIX" + r"ME)\b",
}  # fmt: skip
"""Patterns, cut so that this file does not hold what it looks for."""

BINARY = frozenset({".gz", ".parquet", ".png"})

TEXTS = [path for path in files() if path.suffix not in BINARY]


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_holds_what_does_not_belong_there(what: str) -> None:
    """The repository says nothing of the machine it was written on, and leaves nothing to be done in comments."""
    pattern = re.compile(FORBIDDEN[what])

    found = [
        f"{path}:{number}: {line.strip()[:120]}"
        for path in TEXTS
        for number, line in enumerate((ROOT / path).read_text().splitlines(), start=1)
        if pattern.search(line)
    ]

    assert found == []


def test_files_are_found_when_the_repository_is_walked() -> None:
    """The tests of this file look at something."""
    assert {Path("README.md"), Path("gateway/server.py"), Path(".ci/run"), Path("docker/Dockerfile")} <= set(
        TEXTS
    )


def test_no_source_file_is_longer_than_a_reader_bears() -> None:
    """A file over the bound is split, or listed with the reason why not."""
    lengths = {
        str(path): len((ROOT / path).read_text().splitlines()) for path in TEXTS if path.suffix == ".py"
    }

    assert {path for path, lines in lengths.items() if lines > LINES_MAX} == set(LONG_FILES)


def test_every_document_is_linked_from_where_readers_begin() -> None:
    """README or the architecture leads to every page."""
    linked = {
        (page.parent / target).resolve()
        for page in (ROOT / "README.md", DOCS / "architecture.md")
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    }

    assert {path for path in DOCS.rglob("*.md") if path.resolve() not in linked} == set()


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_somewhere_when_they_are_followed(page: Path) -> None:
    """A relative link names a file that is there, and a heading that is in it."""
    for target, heading in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text()):
        path = page.parent / target if target else page
        assert path.exists(), target
        if heading:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings}, (
                heading
            )


def test_python_examples_compile_when_they_are_copied() -> None:
    """An example in README and documents is a program; what it does is tested in tests/end_to_end."""
    pages = (ROOT / "README.md", *sorted(DOCS.glob("*.md")))
    examples = [
        example
        for page in pages
        for example in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    ]

    assert len(examples) >= 9
    for example in examples:
        ast.parse(example)


def test_made_blocks_are_in_step_when_documents_are_read() -> None:
    """`python -m tests.tidy.rewrite` would change nothing."""
    stale = [path.name for path in documents() if rewritten(path.read_text()) != path.read_text()]

    assert stale == []
