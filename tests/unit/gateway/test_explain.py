"""Which policy holds, where its values come from, why others do not, and what becomes of a write."""

import pytest

from gateway.explain import PassedOver, PolicyExplanation, explain, explanation_lines
from gateway.settings import load
from storage.records import FORMAT, BucketFacts
from storage.types import ObjectName

CONFIG = """\
freshness = "5m"
on_conflict = "quarantine"

[[policies]]
match = "s3://robots/recordings/*"
freshness = "immutable"

[[policies]]
bucket = "training"
prefix = "checkpoints/"
write = "through"
stale_s = 90

[[policies]]
match = "s3://*/checkpoints/*"
release-after-flush = true
"""
SETTINGS = load(CONFIG, {}, {})
FACTS = BucketFacts(FORMAT, "training", exists=True, asked_at_s=1.0)


def values(told: PolicyExplanation) -> dict[str, tuple[str, str, int]]:
    """Give each value with where it comes from."""
    return {value.name: (value.value, value.source, value.line) for value in told.values}


def test_explain_names_the_table_that_holds_and_the_source_of_each_value() -> None:
    """A value is of the table where that sets it, with its line; else of the default."""
    told = explain(SETTINGS, ObjectName("training", "checkpoints/a.pt"), FACTS)

    assert (told.number, told.line, told.match) == (2, 8, "s3://training/checkpoints/*")
    assert values(told) == {
        "write": ("through", "this table", 11),
        "freshness": ("300s", "the default", 0),
        "stale_s": ("90s", "this table", 12),
        "listing_ttl": ("0s", "the default", 0),
        "negative_ttl": ("0s", "the default", 0),
        "flush_delay": ("0s", "the default", 0),
        "flush_deadline": ("0s", "the default", 0),
        "priority": ("normal", "the default", 0),
        "release_after_flush": ("false", "the default", 0),
        "on_conflict": ("quarantine", "the default", 0),
        "published": ("false", "the default", 0),
    }
    assert told.passed_over == (PassedOver(1, 4, "s3://robots/recordings/*", "the bucket is training"),)


def test_explain_says_why_no_table_matches() -> None:
    """Where the default holds, each table is named with what of it does not fit."""
    told = explain(SETTINGS, ObjectName("training", "replay/1"), FACTS)

    assert (told.number, told.match) == (0, "what no table matches")
    assert [one.why for one in told.passed_over] == [
        "the bucket is training",
        "the key does not begin with 'checkpoints/'",
        "the key does not begin with 'checkpoints/'",
    ]
    assert "published" not in values(told)


def test_explain_agrees_with_the_table_that_storage_asks() -> None:
    """What is explained is what holds."""
    for name in (
        ObjectName("training", "checkpoints/a"),
        ObjectName("other", "checkpoints/a"),
        ObjectName("robots", "recordings/a"),
        ObjectName("robots", "a"),
        ObjectName("robots", ""),
    ):
        told = explain(SETTINGS, name, FACTS)
        found = SETTINGS.policy_table().find(name)

        expected = SETTINGS.policies[told.number - 1] if told.number else SETTINGS.default_policy
        assert found == expected, name


@pytest.mark.parametrize(
    ("key", "facts", "writes"),
    [
        ("a", FACTS, "back: acknowledged once it is on the local disk"),
        ("checkpoints/a", FACTS, "through: acknowledged once the origin has it; a copy is kept"),
        (
            "a",
            BucketFacts(FORMAT, "training", exists=True, asked_at_s=1.0, is_versioned=True),
            "through, though the policy says back: bucket is versioned; no copy is kept",
        ),
        (
            "checkpoints/a",
            BucketFacts(FORMAT, "training", exists=True, asked_at_s=1.0, has_object_lock=True),
            "through: acknowledged once the origin has it; no copy is kept",
        ),
        ("a", BucketFacts(FORMAT, "training", exists=False, asked_at_s=1.0), "refused: the origin has no such bucket"),
        ("a", None, "back, unless the bucket asks for the origin's answer: the origin is away"),
    ],
)  # fmt: skip
def test_explain_says_what_becomes_of_a_write(key: str, facts: BucketFacts | None, writes: str) -> None:
    """The bucket's facts are weighed as for a write."""
    assert explain(SETTINGS, ObjectName("training", key), facts, "the origin is away").writes == writes


PUBLISHED = """\
[[policies]]
match = "s3://training/other/*"

[[policies]]
match = "s3://training/datasets/*"
flush_deadline = "1m"

[[policies]]
match = "s3://training/datasets/current/*"
published = true
freshness = "10s"

[[policies]]
match = "s3://training/datasets/current/*"
write = "through"
"""


def test_explain_names_the_target_when_a_broader_table_stands_before_it() -> None:
    """A published target holds in any order of tables, and no write is taken under it."""
    settings = load(PUBLISHED, {}, {})
    name = ObjectName("training", "datasets/current/x")

    told = explain(settings, name, FACTS)
    lines = explanation_lines(told)
    beside = explain(settings, ObjectName("training", "datasets/v1/x"), FACTS)

    assert (told.number, told.line, told.target) == (3, 8, "s3://training/datasets/current/")
    assert values(told)["freshness"] == ("10s", "this table", 11)
    assert values(told)["published"] == ("true", "this table", 10)
    assert [one.why for one in told.passed_over] == [
        "the key does not begin with 'other/'",
        "a published target holds before all other tables",
    ]
    assert told.writes == "refused: read-only"
    assert told.writes == explain(settings, name, None, "the origin is away").writes
    assert lines[1] == "policy               [[policies]] number 3, line 8: s3://training/datasets/current/*"
    assert lines[2].startswith("published target     s3://training/datasets/current/:")
    assert "a write is           refused: read-only" in lines
    assert (beside.number, beside.target) == (2, "")


def test_explain_says_that_a_manifest_is_not_written() -> None:
    """The name is refused where no target is, too."""
    told = explain(SETTINGS, ObjectName("training", "a/.forebay-published"), FACTS)

    assert told.writes == "refused: the name .forebay-published is kept for forebay publish"


def test_explanation_lines_read_as_a_page() -> None:
    """People get the place, the table, the values, the write and what was passed over, a line each."""
    lines = explanation_lines(explain(SETTINGS, ObjectName("other", "checkpoints/a"), FACTS))

    assert lines[0] == "s3://other/checkpoints/a"
    assert lines[1] == "policy               [[policies]] number 3, line 14: s3://*/checkpoints/*"
    assert "release_after_flush  true         this table, line 16" in lines
    assert "freshness            300s         the default" in lines
    assert lines[-2] == "not number 1, line 4: s3://robots/recordings/*: the bucket is other"


def test_explain_warns_of_settings_of_the_table_that_do_nothing() -> None:
    """Those of the table that holds, and no other's."""
    config = CONFIG.replace("stale_s = 90", 'stale_s = 90\nflush_delay = "1s"')
    settings = load(config, {}, {})

    lines = explanation_lines(explain(settings, ObjectName("training", "checkpoints/a"), FACTS))
    others = explain(settings, ObjectName("robots", "recordings/a"), FACTS)

    assert any(line.startswith("warning              flush_delay (config file, line 13,") for line in lines)
    assert others.warnings == ()
