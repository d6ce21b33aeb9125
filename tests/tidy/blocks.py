"""Parts of the documentation that are made from the code.

A block stands between `<!-- made: NAME -->` and `<!-- end -->`. `python -m tests.tidy.rewrite` writes all of them anew, and the tests
of this directory fail while one is out of step. Where a table has a column of our own words, they are kept.
"""

import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Final

import msgspec

from gateway.setting_rows import KEY_TABLE, POLICY_ONLY_TABLE, POLICY_PLACE_TABLE, POLICY_TABLE, TABLE, Row
from gateway.telemetry import METRICS
from storage import records
from storage.types import Checksum, Extent, Location
from tests.tidy import compatibility
from tests.tidy.repository import DOCS, PACKAGES, ROOT, layers, modules, promise

_BLOCK: Final = re.compile(r"(<!-- made: (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(<!-- end -->)", re.DOTALL)
_FIELD_LINE: Final = re.compile(r"\| \d+ \| `(?P<field>\w+)` \|.*\| (?P<words>[^|]*) \|")

Make = Callable[[str], str]
"""Makes the body of a block; takes the one that is there."""


def blocks(document: str) -> dict[str, str]:
    """Give the blocks of a document by name."""
    return {match["name"]: match["body"] for match in _BLOCK.finditer(document)}


def rewritten(document: str) -> str:
    """Give a document with every block made anew."""
    return _BLOCK.sub(lambda match: f"{match[1]}{MADE[match['name']](match['body'])}{match[4]}", document)


def documents() -> list[Path]:
    """Give the documents that may have blocks."""
    return sorted(DOCS.glob("*.md"))


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [" | ".join(heads), " | ".join("---" for _ in heads), *(" | ".join(row) for row in rows)]
    return "".join(f"| {line} |\n" for line in lines)


# --- settings ----------------------------------------------------------------------------------------------------------


def settings_table(_old: str) -> str:
    """Write what may be set at the top level."""
    return table(
        ("setting", "default", "allowed", "what it is"),
        (
            (
                f"`{row.name}`",
                _default(row),
                row.allowed,
                f"{row.description} (secret)" if row.is_secret else row.description,
            )
            for row in TABLE
        ),
    )


def policy_table(_old: str) -> str:
    """Write what a [[policies]] table may set."""
    rows: list[tuple[Row[object], str]] = [(row, _default(row)) for row in POLICY_PLACE_TABLE]
    rows += [(row, f"as `{row.name}` above") for row in POLICY_TABLE]
    rows += [(row, f"`{row.default}`") for row in POLICY_ONLY_TABLE]
    return table(
        ("setting", "default", "allowed", "what it is"),
        ((f"`{row.name}`", default, row.allowed, row.description) for row, default in rows),
    )


def keys_table(_old: str) -> str:
    """Write what a [[keys]] table holds."""
    return table(
        ("setting", "default", "allowed", "what it is"),
        ((f"`{row.name}`", _default(row), row.allowed, row.description) for row in KEY_TABLE),
    )


def _default(row: Row[object]) -> str:
    return f"`{row.default}`" if row.default else "none"


# --- metrics -----------------------------------------------------------------------------------------------------------


def metrics_table(_old: str) -> str:
    """Write every metric."""
    return table(
        ("metric", "kind", "labels", "what it says"),
        (
            (f"`{row.name}`", row.kind, ", ".join(f"`{label}`" for label in row.labels), row.help)
            for row in METRICS
        ),
    )


# --- the code ----------------------------------------------------------------------------------------------------------


def code_map(_old: str) -> str:
    """Write one line a module, package by package, as the modules say it themselves."""
    parts = []
    for package in PACKAGES:
        lines = [f"- `{path.relative_to(ROOT)}`: {promise(path)}\n" for path in modules(package)]
        parts.append(f"### {package}/\n\n{promise(ROOT / package / '__init__.py')}\n\n{''.join(lines)}")
    return "\n".join(parts)


def layer_lists(_old: str) -> str:
    """Write import-linter's layers, top to bottom."""
    return "\n".join(
        f"{f'`{container}`' if container else 'The packages'}, top to bottom:\n\n"
        + "".join(f"{number}. `{layer}`\n" for number, layer in enumerate(lines, start=1))
        for container, lines in layers().items()
    )


# --- compatibility ------------------------------------------------------------------------------------------------------


def operations_table(_old: str) -> str:
    """Write what becomes of every operation of S3."""
    return table(compatibility.OPERATION_HEADS, compatibility.operation_rows())


def clients_table(_old: str) -> str:
    """Write which client does what."""
    return table(compatibility.CLIENT_HEADS, compatibility.client_rows())


def expected_table(_old: str) -> str:
    """Write which tests of ceph/s3-tests fail, and why."""
    return table(compatibility.EXPECTED_HEADS, compatibility.expected_rows())


# --- records -----------------------------------------------------------------------------------------------------------

VALUES: Final[tuple[type[msgspec.Struct], ...]] = (
    Location,
    Extent,
    Checksum,
    records.OriginIdentity,
    records.Validated,
    records.PartSize,
)
ROWS: Final[tuple[type[msgspec.Struct], ...]] = (
    records.ObjectRecord,
    records.OverlayRecord,
    records.DirtyEntry,
    records.UploadRecord,
    records.PartRecord,
    records.SegmentRow,
    records.ResidentRow,
    records.BucketFacts,
)
MUTATIONS: Final[tuple[type[msgspec.Struct], ...]] = typing.get_args(records.Mutation)


def values_tables(old: str) -> str:
    """Write the values that records are made of, field by field."""
    return _structs(VALUES, old)


def rows_tables(old: str) -> str:
    """Write the rows of the index, field by field."""
    return _structs(ROWS, old)


def mutations_tables(old: str) -> str:
    """Write the mutations of the journal, field by field."""
    return _structs(MUTATIONS, old)


def missing_words(body: str) -> list[str]:
    """Name the fields of a block that nothing is said about."""
    return [match["field"] for match in _FIELD_LINE.finditer(body) if not match["words"].strip()]


def _structs(kinds: Sequence[type[msgspec.Struct]], old: str) -> str:
    said = _words(old)
    return "\n".join(_struct(kind, said) for kind in kinds)


def _struct(kind: type[msgspec.Struct], said: Mapping[tuple[str, str], str]) -> str:
    info = msgspec.structs.fields(kind)
    hints = typing.get_type_hints(kind)
    tag = kind.__struct_config__.tag
    rows = [("0", f'"{tag}"', "str", "", "the tag")] if tag is not None else []
    rows += [
        (
            str(position),
            f"`{field.name}`",
            type_words(hints[field.name]),
            _default_words(field),
            said.get((kind.__name__, field.name), ""),
        )
        for position, field in enumerate(info, start=len(rows))
    ]
    head = f"### {kind.__name__}\n\n{(kind.__doc__ or '').splitlines()[0]}\n\n"
    return head + table(("at", "field", "type", "default", "what it says"), rows)


def _words(body: str) -> dict[tuple[str, str], str]:
    said: dict[tuple[str, str], str] = {}
    record = ""
    for line in body.splitlines():
        if line.startswith("### "):
            record = line[4:]
        match = _FIELD_LINE.fullmatch(line)
        if match is not None:
            said[record, match["field"]] = match["words"].strip()
    return said


def _default_words(field: msgspec.structs.FieldInfo) -> str:
    if field.default_factory is not msgspec.NODEFAULT or field.default is msgspec.NODEFAULT:
        return ""
    value = field.default
    return f"`{value.value if isinstance(value, Enum) else _literal(value)}`"


def _literal(value: object) -> str:
    match value:
        case None:
            return "nil"
        case ():
            return "[]"
        case b"":
            return '""'
        case bool():
            return str(value).lower()
        case str():
            return f'"{value}"'
        case _:
            return str(value)


def type_words(hint: object) -> str:
    """Write a field's type as MessagePack has it."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType or origin is typing.Union:
        return " or ".join(map(type_words, arguments))
    if origin is tuple and arguments[-1] is Ellipsis:
        return f"array of {type_words(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(map(type_words, arguments))}]"
    assert isinstance(hint, type), hint
    return _enum_words(hint) if issubclass(hint, Enum) else _NAMES.get(hint, hint.__name__)


_NAMES: Final = {types.NoneType: "nil", bytes: "bin"}


def _enum_words(kind: type[Enum]) -> str:
    if issubclass(kind, int):
        return f"int: {', '.join(f'{member.value} {member.name.lower()}' for member in kind)}"
    return f"str: {', '.join(member.value for member in kind)}"


MADE: Final[Mapping[str, Make]] = {
    "code-map": code_map,
    "layers": layer_lists,
    "settings": settings_table,
    "policies": policy_table,
    "keys": keys_table,
    "metrics": metrics_table,
    "operations": operations_table,
    "clients": clients_table,
    "expected-failures": expected_table,
    "values": values_tables,
    "rows": rows_tables,
    "mutations": mutations_tables,
}
"""Who makes which block."""
