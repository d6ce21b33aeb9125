"""Settings that do nothing where they stand are named, with their line and table, and no others."""

import re
from pathlib import Path

import pytest

from gateway.idle_settings import idle_settings
from gateway.settings import load

ROOT = Path(__file__).parents[3]


def told(config: str, **variables: str) -> list[str]:
    """Give the lines about a config."""
    return [str(idle) for idle in idle_settings(load(config, variables, {}))]


def named(config: str) -> list[tuple[str, int, int]]:
    """Give what is named, with table and line."""
    return [(idle.name, idle.number, idle.line) for idle in idle_settings(load(config, {}, {}))]


@pytest.mark.parametrize("mode", ["through", "around"])
def test_settings_of_flushes_are_named_when_writes_go_through(mode: str) -> None:
    """Nothing waits for a flush there, so nothing about flushes has an effect; the table inherits the mode too."""
    tail = (
        'flush_delay = "1s"\nflush-deadline = "1m"\non_conflict = "quarantine"\nrelease_after_flush = true\n'
    )
    own = f'[[policies]]\nbucket = "b"\nwrite = "{mode}"\n{tail}'
    inherited = f'write = "{mode}"\n[[policies]]\nbucket = "b"\n{tail}'
    release = [("release_after_flush", 1, 7)] if mode == "around" else []

    expected = [("flush_delay", 1, 4), ("flush_deadline", 1, 5), ("on_conflict", 1, 6), *release]
    assert named(own) == expected
    assert named(inherited) == expected


def test_settings_of_writes_are_named_when_the_table_is_published() -> None:
    """A target is read-only, and what it shows has the policy of its source."""
    config = """\
[[policies]]
match = "s3://b/live/*"
published = true
freshness = "5s"
write = "through"
flush_delay = "1s"
flush_deadline = "1m"
priority = "high"
release_after_flush = true
on_conflict = "quarantine"
"""

    assert named(config) == [
        ("write", 1, 5),
        ("flush_delay", 1, 6),
        ("flush_deadline", 1, 7),
        ("priority", 1, 8),
        ("release_after_flush", 1, 9),
        ("on_conflict", 1, 10),
    ]


@pytest.mark.parametrize("freshness", ["always", "immutable"])
def test_stale_s_is_named_when_the_freshness_knows_no_age(freshness: str) -> None:
    """The one is never covered for, the other always."""
    assert named(f'[[policies]]\nbucket = "b"\nfreshness = "{freshness}"\nstale_s = 60\n') == [
        ("stale_s", 1, 4)
    ]


def test_negative_ttl_is_named_when_the_origin_is_asked_each_time() -> None:
    """Elsewhere it has an effect."""
    table = '[[policies]]\nbucket = "b"\nnegative_ttl = 60\n'

    assert named(table) == []
    assert named(f'{table}freshness = "always"\n') == [("negative_ttl", 1, 3)]


def test_the_top_level_is_named_unless_a_table_takes_its_setting_over() -> None:
    """What a table with write-back inherits has an effect there."""
    top = 'write = "through"\non_conflict = "quarantine"\n'

    assert named(top) == [("on_conflict", 0, 2)]
    assert named(top + '[[policies]]\nbucket = "b"\n') == [("on_conflict", 0, 2)]
    assert named(top + '[[policies]]\nbucket = "b"\nwrite = "back"\n') == []
    (line,) = told("", FOREBAY_WRITE="through", FOREBAY_ON_CONFLICT="quarantine")
    assert line.startswith("on_conflict (variable or flag): without effect: write is through")


def test_a_line_says_where_and_why() -> None:
    """An operator finds the place without counting tables."""
    config = '[[policies]]\nbucket = "a"\n[[policies]]\nbucket = "b"\nfreshness = "always"\nstale_s = 60\n'

    assert told(config) == [
        "stale_s (config file, line 6, [[policies]] number 2): without effect: freshness is always, which nothing covers for"
    ]


def test_nothing_is_named_when_a_setting_has_an_effect_or_would_change_nothing() -> None:
    """What a table inherits is not its own, and what says what holds anyway surprises nobody; the documented examples are clean."""
    inherits = 'on_conflict = "quarantine"\n[[policies]]\nbucket = "b"\nwrite = "through"\n'
    plain = '[[policies]]\nbucket = "b"\nwrite = "through"\non_conflict = "overwrite"\nflush_delay = "0s"\npriority = "high"\n'

    assert named(inherits) == []
    assert named(plain) == []
    for page in ("policies", "configuration", "publish"):
        for config in re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL):
            assert named(config) == [], page
