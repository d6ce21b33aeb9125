"""Settings of a policy that do nothing where they stand, so that whoever wrote them is told. Pure.

They are no errors: a request may ask for the disk under a policy that writes through, and what a table inherits it did
not ask for. So only what a table says itself is looked at, and of the top level only what no table takes over.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from gateway.settings import Settings
from storage.policy import FreshnessMode, Policy
from storage.types import WriteMode

_OF_FLUSHES: Final = ("flush_delay", "flush_deadline", "on_conflict")

_PLAIN: Final = Policy()
"""A setting that says what holds anyway is no surprise."""

_DISK_ONLY: Final = "only a write that asks for x-forebay-durability: disk heeds it"


@dataclass(frozen=True, slots=True)
class IdleSetting:
    """One setting without effect.

    Attributes:
        number: Of its [[policies]] table, counted from 1; 0 for the top level.
        line: Of the config file; 0 where that is not known.
        why: Goes behind "without effect: ".
    """

    name: str
    number: int
    line: int
    why: str

    def __str__(self) -> str:
        line = f", line {self.line}" if self.line else ""
        table = f", [[policies]] number {self.number}" if self.number else ""
        where = f"config file{line}{table}" if line or table else "variable or flag"
        return f"{self.name} ({where}): without effect: {self.why}"


def idle_settings(settings: Settings) -> tuple[IdleSetting, ...]:
    """Give all of them, the top level first, then by table."""
    found = list(_of_top_level(settings))
    for number, (policy, lines) in enumerate(
        zip(settings.policies, settings.policy_lines, strict=True), start=1
    ):
        whys = _whys(policy)
        found += [
            IdleSetting(name, number, lines.keys[name], whys[name]) for name in lines.keys if name in whys
        ]
    return tuple(found)


def _of_top_level(settings: Settings) -> Iterator[IdleSetting]:
    tables = tuple(zip(settings.policies, settings.policy_lines, strict=True))
    for name, why in _whys(settings.default_policy).items():
        line = settings.default_lines.keys.get(name)
        is_taken_over = any(name not in lines.keys and name not in _whys(policy) for policy, lines in tables)
        if line is not None and not is_taken_over:
            yield IdleSetting(name, 0, line, why)


def _whys(policy: Policy) -> dict[str, str]:
    """Say of each setting that does nothing under a policy why; of those that would do nothing anyway, nothing."""
    whys = dict(_reasons(policy))
    return {name: why for name, why in whys.items() if _value(policy, name) != _value(_PLAIN, name)}


def _reasons(policy: Policy) -> Iterator[tuple[str, str]]:
    if policy.published:
        for name in ("write", "listing_ttl", "negative_ttl", *_OF_FLUSHES, "priority", "release_after_flush"):
            yield (
                name,
                "a published target takes no writes, and shows objects under the policy of their source",
            )
        return
    if policy.write is not WriteMode.BACK:
        for name in _OF_FLUSHES:
            yield name, f"write is {policy.write.value}, so nothing waits for a flush; {_DISK_ONLY}"
    if policy.write is WriteMode.AROUND:
        yield "release_after_flush", f"write is around, which keeps no copy; {_DISK_ONLY}"
    if policy.freshness.mode is FreshnessMode.ALWAYS:
        yield "stale_s", "freshness is always, which nothing covers for"
        yield "negative_ttl", "freshness is always, so the origin is asked each time"
    if policy.freshness.mode is FreshnessMode.IMMUTABLE:
        yield "stale_s", "freshness is immutable, which covers without limit"


def _value(policy: Policy, name: str) -> object:
    values: dict[str, object] = {
        "write": policy.write,
        "listing_ttl": policy.listing_ttl_s,
        "negative_ttl": policy.negative_ttl_s,
        "flush_delay": policy.flush_delay_s,
        "flush_deadline": policy.flush_deadline_s,
        "on_conflict": policy.on_conflict,
        "priority": policy.priority,
        "release_after_flush": policy.release_after_flush,
        "stale_s": policy.freshness.stale_s,
    }
    return values[name]
