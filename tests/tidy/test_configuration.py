"""docs/configuration.md agrees with the tables of settings, and the examples in the documentation load."""

import re

import pytest

from gateway.setting_rows import TABLE
from gateway.settings import load
from storage.policy import OnConflict, RetentionPriority
from storage.types import ObjectName, WriteMode
from tests.tidy.blocks import MADE, blocks
from tests.tidy.repository import DOCS, ROOT

DOCUMENT = (DOCS / "configuration.md").read_text()
EXAMPLES = [
    (path.name, number, text)
    for path in (
        ROOT / "README.md",
        DOCS / "configuration.md",
        DOCS / "data-loaders.md",
        DOCS / "operations.md",
        DOCS / "policies.md",
    )
    for number, text in enumerate(
        re.findall(r"^```toml\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize("name", ["settings", "policies", "keys"])
def test_table_equals_the_code_when_it_is_read(name: str) -> None:
    """The document shows every setting with its default and what is allowed; `python -m tests.tidy.rewrite` makes it."""
    assert blocks(DOCUMENT)[name] == MADE[name]("")


def test_table_names_every_setting_when_it_is_read() -> None:
    """No setting is missing from the document."""
    named = set(re.findall(r"^\| `(\w+)` \|", blocks(DOCUMENT)["settings"], re.MULTILINE))

    assert named == {row.name for row in TABLE}


@pytest.mark.parametrize(("document", "number", "text"), EXAMPLES)
def test_example_loads_when_it_is_copied(document: str, number: int, text: str) -> None:
    """A configuration in the documentation is one that the gateway takes; a wrong one would raise."""
    settings = load(text, {}, {})

    assert settings != load("", {}, {}), (document, number)


def test_examples_are_found_when_the_documents_are_read() -> None:
    """The test above looks at something."""
    assert {document for document, _, _ in EXAMPLES} >= {"README.md", "configuration.md", "policies.md"}


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        (
            "s3://robots/recordings/7.mcap",
            {"on_conflict": OnConflict.QUARANTINE, "flush_deadline_s": 600, "release_after_flush": False},
        ),
        ("s3://training/samples/7.npz", {"priority": RetentionPriority.HIGH, "release_after_flush": False}),
        (
            "s3://training/checkpoints/7.pt",
            {"write": WriteMode.BACK, "release_after_flush": True, "flush_deadline_s": 60},
        ),
        (
            "s3://training/replay/7",
            {"flush_delay_s": 30, "flush_deadline_s": 300, "priority": RetentionPriority.LOW},
        ),
    ],
)
def test_the_worked_example_says_what_its_page_says(key: str, expected: dict[str, object]) -> None:
    """Four kinds of data, each with the values that the page explains; and each has a table of its own."""
    (text,) = [text for document, _, text in EXAMPLES if document == "policies.md"]
    bucket, _, rest = key.removeprefix("s3://").partition("/")

    policy = load(text, {}, {}).policy_table().find(ObjectName(bucket, rest))

    assert {name: getattr(policy, name) for name in expected} == expected
    assert policy.bucket == bucket
