"""docs/architecture.md agrees with the modules and with the layering contracts."""

import re

from tests.tidy.blocks import blocks, code_map, layer_lists
from tests.tidy.repository import DOCS, PACKAGES, ROOT, layers, modules, promise

DOCUMENT = (DOCS / "architecture.md").read_text()


def test_code_map_names_every_module_when_it_is_read() -> None:
    """Every module of gateway/ and storage/ stands in the code map, and nothing that is not there."""
    named = set(re.findall(r"^- `([\w/]+\.py)`", blocks(DOCUMENT)["code-map"], re.MULTILINE))

    assert named == {str(path.relative_to(ROOT)) for package in PACKAGES for path in modules(package)}


def test_code_map_is_in_the_modules_own_words_when_it_is_read() -> None:
    """The line of a module is the first of its docstring; `python -m tests.tidy.rewrite` copies it."""
    assert blocks(DOCUMENT)["code-map"] == code_map("")


def test_every_module_says_what_it_is_for_when_it_is_opened() -> None:
    """A module whose file name is all that is known of it cannot be mapped."""
    silent = [
        str(path.relative_to(ROOT)) for package in PACKAGES for path in modules(package) if not promise(path)
    ]

    assert silent == []


def test_layers_equal_the_contracts_when_they_are_read() -> None:
    """The layers in the document are those that import-linter enforces, in the same order."""
    body = blocks(DOCUMENT)["layers"]
    listed = {
        part.partition(",")[0].strip("`"): re.findall(r"^\d+\. `(.*)`$", part, re.MULTILINE)
        for part in body.split("\n\n`")
    }

    assert body == layer_lists("")
    assert {name: listed[name] for name in ("gateway", "storage", "storage.origin")} == {
        name: lines for name, lines in layers().items() if name
    }


def test_layers_name_every_module_when_a_container_is_exhaustive() -> None:
    """A module or package that no layer names would be free to import anything."""
    for package in ("gateway", "storage", "storage/origin"):
        placed = {name.strip() for layer in layers()[package.replace("/", ".")] for name in layer.split("|")}
        packages = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}

        assert placed == {path.stem for path in modules(package)} | packages, package
