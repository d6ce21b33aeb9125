"""The files of the repository, as the tidy tests look at them."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PACKAGES: Final = ("gateway", "gateway/operations", "gateway/s3", "storage", "storage/origin")

_OWN_DOTTED: Final = frozenset({".ci", ".dockerignore", ".gitignore"})
_MADE: Final = frozenset({"__pycache__", "build", "demo-data", "dist"})


def files() -> Iterator[Path]:
    """Give every file of the repository, relative to its root; what tools leave behind is passed over."""
    waiting = [ROOT]
    while waiting:
        for path in sorted(waiting.pop().iterdir()):
            if path.name in _MADE or path.suffix == ".egg-info":
                continue
            if path.name.startswith(".") and path.name not in _OWN_DOTTED:
                continue
            if path.is_dir():
                waiting.append(path)
            else:
                yield path.relative_to(ROOT)


def modules(package: str) -> list[Path]:
    """Give the modules of a package such as `gateway/s3`, without its own `__init__`."""
    return sorted(path for path in (ROOT / package).glob("*.py") if path.name != "__init__.py")


def promise(module: Path) -> str:
    """Give the first line of a module's docstring, "" for a module that has nothing to say."""
    docstring = ast.get_docstring(ast.parse(module.read_text()))
    return "" if docstring is None else docstring.splitlines()[0]


def layers() -> dict[str, list[str]]:
    """Give import-linter's layers by container, top to bottom; modules of one layer are joined as they stand there."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    contracts = configuration["tool"]["importlinter"]["contracts"]
    return {
        container: contract["layers"]
        for contract in contracts
        if contract["type"] == "layers"
        for container in contract.get("containers", [""])
    }
