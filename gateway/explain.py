"""Which policy holds for an object, where each of its values comes from, and what becomes of a write: `forebay policy explain`."""

from typing import Final

import msgspec

from gateway.idle_settings import idle_settings
from gateway.setting_rows import POLICY_ONLY_TABLE, POLICY_TABLE
from gateway.settings import Settings
from gateway.toml_lines import TableLines
from storage.policy import ANY_BUCKET, Freshness, FreshnessMode, Policy
from storage.publish import MANIFEST_NAME, Target, Targets, is_manifest_name
from storage.records import BucketFacts
from storage.types import ObjectName, WriteMode
from storage.writemode import decide

THIS_TABLE: Final = "this table"
DEFAULT: Final = "the default"

_ACKNOWLEDGED: Final = {
    WriteMode.BACK: "acknowledged once it is on the local disk",
    WriteMode.THROUGH: "acknowledged once the origin has it; a copy is kept",
    WriteMode.AROUND: "acknowledged once the origin has it; no copy is kept",
}


class ExplainedValue(msgspec.Struct, frozen=True):
    """One setting of the policy that holds; `line` is 0 where it has none."""

    name: str
    value: str
    source: str
    line: int = 0


class PassedOver(msgspec.Struct, frozen=True):
    """A table before the one that holds, and why it does not."""

    number: int
    line: int
    match: str
    why: str


class PolicyExplanation(msgspec.Struct, frozen=True):
    """What holds for one object.

    Attributes:
        number: Of the [[policies]] table, counted from 1; 0 where none matches and the default holds.
        line: Of its header in the config file; 0 where that is not known.
        writes: What becomes of a plain write, the bucket's facts considered.
        target: The published target that the object lies under; "" where it lies under none.
        warnings: Settings of the table that do nothing there, a line each.
    """

    place: str
    number: int
    line: int
    match: str
    values: tuple[ExplainedValue, ...]
    passed_over: tuple[PassedOver, ...]
    writes: str
    target: str = ""
    warnings: tuple[str, ...] = ()


def explain(
    settings: Settings, name: ObjectName, facts: BucketFacts | None, unknown_facts: str = ""
) -> PolicyExplanation:
    """Explain the policy of an object.

    Args:
        settings: Those in force.
        name: The object; its key may be "" for the bucket as a whole.
        facts: What is known of the bucket; None where nothing is.
        unknown_facts: Why nothing is.
    """
    policies = settings.policies
    target = Targets(policies).find(name)
    holds = next((n for n, policy in enumerate(policies) if _holds(policy, name, target)), len(policies))
    is_default = holds == len(policies)
    policy = settings.default_policy if is_default else policies[holds]
    lines = TableLines() if is_default else settings.policy_lines[holds]
    passed_over = tuple(
        PassedOver(n + 1, settings.policy_lines[n].line or 0, _match(other), _why_not(other, name, target))
        for n, other in enumerate(policies[:holds])
    )
    return PolicyExplanation(
        str(name),
        0 if is_default else holds + 1,
        lines.line or 0,
        "what no table matches" if is_default else _match(policy),
        _values(policy, lines, is_default=is_default),
        passed_over,
        _refusal(name, target) or _writes(policy, facts, unknown_facts),
        "" if target is None else str(target),
        tuple(
            str(idle) for idle in idle_settings(settings) if idle.number == (0 if is_default else holds + 1)
        ),
    )


def explanation_lines(told: PolicyExplanation) -> list[str]:
    """Write an explanation for people."""
    holds = f"[[policies]] number {told.number}{_on(told.line)}" if told.number else DEFAULT
    lines = [told.place, f"{'policy':<20} {holds}: {told.match}"]
    if told.target:
        lines.append(f"{'published target':<20} {told.target}: objects have the policy of the source's names")
    lines += [f"{v.name:<20} {v.value:<12} {v.source}{_on(v.line)}" for v in told.values]
    lines.append(f"{'a write is':<20} {told.writes}")
    lines += [f"{'warning':<20} {warning}" for warning in told.warnings]
    lines += [f"not number {one.number}{_on(one.line)}: {one.match}: {one.why}" for one in told.passed_over]
    return lines


def _on(line: int) -> str:
    return f", line {line}" if line else ""


def _match(policy: Policy) -> str:
    return f"s3://{policy.bucket}/{policy.prefix}*"


def _holds(policy: Policy, name: ObjectName, target: Target | None) -> bool:
    """Whether a table is the one; that of a published target is, whatever tables stand before it."""
    if target is None:
        return policy.matches(name)
    return policy.published and (policy.bucket, policy.prefix) == (target.bucket, target.prefix)


def _refusal(name: ObjectName, target: Target | None) -> str:
    if target is not None:
        return "refused: read-only"
    if is_manifest_name(name.key):
        return f"refused: the name {MANIFEST_NAME} is kept for forebay publish"
    return ""


def _why_not(policy: Policy, name: ObjectName, target: Target | None) -> str:
    if target is not None and policy.matches(name):
        return "a published target holds before all other tables"
    if policy.bucket not in {ANY_BUCKET, name.bucket}:
        return f"the bucket is {name.bucket}"
    return f"the key does not begin with {policy.prefix!r}"


def _values(policy: Policy, lines: TableLines, *, is_default: bool) -> tuple[ExplainedValue, ...]:
    texts = _texts(policy)
    rows = (*POLICY_TABLE, *(() if is_default else POLICY_ONLY_TABLE))
    return tuple(
        ExplainedValue(row.name, texts[row.name], THIS_TABLE, lines.keys[row.name])
        if row.name in lines.keys
        else ExplainedValue(row.name, texts[row.name], DEFAULT)
        for row in rows
    )


def _texts(policy: Policy) -> dict[str, str]:
    return {
        "write": policy.write.value,
        "freshness": _freshness_text(policy.freshness),
        "stale_s": _seconds(policy.freshness.stale_s),
        "listing_ttl": _seconds(policy.listing_ttl_s),
        "negative_ttl": _seconds(policy.negative_ttl_s),
        "flush_delay": _seconds(policy.flush_delay_s),
        "flush_deadline": _seconds(policy.flush_deadline_s),
        "priority": policy.priority.value,
        "release_after_flush": _truth(is_so=policy.release_after_flush),
        "on_conflict": policy.on_conflict.value,
        "published": _truth(is_so=policy.published),
    }


def _freshness_text(freshness: Freshness) -> str:
    is_timed = freshness.mode is FreshnessMode.TTL
    return _seconds(freshness.ttl_s) if is_timed else freshness.mode.value


def _seconds(value_s: float) -> str:
    return f"{value_s:g}s"


def _truth(*, is_so: bool) -> str:
    return "true" if is_so else "false"


def _writes(policy: Policy, facts: BucketFacts | None, unknown_facts: str) -> str:
    if facts is None:
        return f"{policy.write.value}, unless the bucket asks for the origin's answer: {unknown_facts or 'nothing is known of it'}"
    if not facts.exists:
        return "refused: the origin has no such bucket"
    decision = decide(policy, facts, requested=None, origin_reason="")
    if decision.is_forced and decision.mode is not policy.write:
        return f"{decision.mode.value}, though the policy says {policy.write.value}: {decision.reason}; no copy is kept"
    if decision.is_forced or (decision.mode is WriteMode.THROUGH and policy.release_after_flush):
        return f"{decision.mode.value}: {_ACKNOWLEDGED[WriteMode.AROUND]}"
    return f"{decision.mode.value}: {_ACKNOWLEDGED[decision.mode]}"
