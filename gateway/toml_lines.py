"""On which line of a TOML text a table begins and a key stands, which tomllib does not tell.

For messages only: what is written in a form that is not recognised (an inline table, a dotted key) has no line, and
nothing else depends on it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_HEADER: Final = re.compile(r"\s*\[(?P<is_list>\[)?\s*[\"']?(?P<name>[A-Za-z0-9_-]+)[\"']?\s*\]")
_KEY: Final = re.compile(r"\s*[\"']?(?P<key>[A-Za-z0-9_-]+)[\"']?\s*=")
_LONG_QUOTES: Final = ('"""', "'''")


@dataclass(frozen=True, slots=True)
class TableLines:
    """One table of a TOML text.

    Attributes:
        name: As in its header; "" for what stands before the first one.
        line: Of the header, counted from 1; None where it has none.
        keys: The line of each key, with `_` for `-`.
    """

    name: str = ""
    line: int | None = None
    keys: Mapping[str, int] = field(default_factory=dict)

    def line_of(self, key: str) -> int | None:
        """Give the line of a key; that of the header where the key is not there."""
        return self.keys.get(key, self.line)


def tables_of(text: str) -> list[TableLines]:
    """Give all tables of a text in order, the first for what stands before any header."""
    keys: dict[str, int] = {}
    tables = [TableLines(keys=keys)]
    quotes = ""
    for number, line in enumerate(text.splitlines(), start=1):
        was_quoted = bool(quotes)
        quotes = _quotes_behind(line, quotes)
        if was_quoted:
            continue
        header = _HEADER.match(line)
        if header is not None:
            keys = {}
            tables.append(TableLines(header["name"] if header["is_list"] else "", number, keys))
        elif (key := _KEY.match(line)) is not None:
            keys.setdefault(key["key"].replace("-", "_"), number)
    return tables


def _quotes_behind(line: str, quotes: str) -> str:
    """Say in which kind of text of several lines the next line begins, "" for none; comments are not looked at."""
    rest = line
    while True:
        if quotes:
            _, found, rest = rest.partition(quotes)
            if not found:
                return quotes
            quotes = ""
        begun = [(at, mark) for mark in _LONG_QUOTES if (at := rest.find(mark)) >= 0]
        if not begun:
            return ""
        at, quotes = min(begun)
        rest = rest[at + len(quotes) :]
