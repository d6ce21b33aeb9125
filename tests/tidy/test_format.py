"""docs/format.md agrees with the records, the families and the journal's own description."""

import inspect
import re
import textwrap
import typing
from collections.abc import Iterable, Iterator

import msgspec
import pytest

from storage import journal_format, keys, records
from storage.family import Family
from tests.tidy.blocks import MADE, MUTATIONS, ROWS, VALUES, blocks, missing_words
from tests.tidy.repository import DOCS

DOCUMENT = (DOCS / "format.md").read_text()

VIEWS = {records.ObjectHead, records.WrittenHead}
"""The first fields of another record, to read it cheaply; never written."""


@pytest.mark.parametrize("name", ["values", "rows", "mutations"])
def test_record_tables_equal_the_code_when_they_are_read(name: str) -> None:
    """Each record stands in the document field by field, in the order of its bytes, with its default."""
    body = blocks(DOCUMENT)[name]

    assert body == MADE[name](body)
    assert missing_words(body) == []


def test_every_record_is_described_when_the_document_is_read() -> None:
    """A record or mutation that is written to disk and not described could not be read by anybody else."""
    rows = {
        kind
        for name, kind in inspect.getmembers(records, inspect.isclass)
        if issubclass(kind, msgspec.Struct) and not name.startswith("_") and kind not in VIEWS
    }

    assert {*VALUES, *ROWS, *MUTATIONS} == rows | {inner for kind in rows for inner in _inner(kind)}


def test_every_family_is_described_when_the_document_is_read() -> None:
    """Each column family has a row that says how its keys are built."""
    section = DOCUMENT.partition("## The index")[2].partition("\n## ")[0]

    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(Family)


@pytest.mark.parametrize("module", [journal_format, keys])
def test_layouts_are_the_modules_own_when_they_are_read(module: object) -> None:
    """The indented layouts of the docstrings stand in the document word by word."""
    docstring = inspect.getdoc(module) or ""
    layouts = re.findall(r"(?:^    .*\n?|^\n(?=    ))+", docstring, re.MULTILINE)

    assert layouts
    for layout in layouts:
        assert textwrap.dedent(layout).strip() in textwrap.dedent(_indented())


def _inner(hint: object) -> Iterator[type[msgspec.Struct]]:
    """Give the structs that a type is made of."""
    if inspect.isclass(hint) and issubclass(hint, msgspec.Struct):
        yield hint
        parts: Iterable[object] = typing.get_type_hints(hint).values()
    else:
        parts = typing.get_args(hint)
    for part in parts:
        yield from _inner(part)


def _indented() -> str:
    """Give the indented lines of the document, and nothing else."""
    return "".join(
        line for line in DOCUMENT.splitlines(keepends=True) if line.startswith("    ") or not line.strip()
    )
