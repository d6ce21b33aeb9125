"""What the tests of a suite said, and whether that was to be expected.

`expected.tsv` has a line for each test that fails through the gateway: the test, the targets where it does, the reason, a note.
Targets are as `targets.target_name` writes them, without `through`, joined by commas: `seaweed`, `moto`, `seaweed-tls`, `any`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec


class Reason(StrEnum):
    """Why a test is expected to fail."""

    CEPH = "ceph"
    """It asks for Ceph's own behaviour."""

    AWS = "aws"
    """AWS documents otherwise; the note names the page."""

    ORIGIN = "origin"
    """The bare origin fails it, and only the origin can answer."""

    NOISE = "noise"
    """Whether it passes depends on the client's signer or on timing: either outcome is expected."""

    MISSING = "missing"
    """The gateway lacks it."""


class Result(msgspec.Struct, frozen=True):
    """What one test said, as the suite's plugin writes it."""

    test: str
    outcome: str
    seconds: float = 0.0
    message: str = ""
    operations: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Expected:
    """That a test fails, where and why."""

    test: str
    where: frozenset[str]
    reason: Reason
    note: str

    def holds_at(self, origin: str, protocol: str) -> bool:
        """Whether it speaks of the gateway in front of an origin, over `http` or `tls`."""
        return bool(self.where & {"any", origin, f"{origin}-{protocol}"})


@dataclass(frozen=True, slots=True)
class Surprises:
    """Where a run differs from what was expected."""

    new_failures: tuple[Result, ...]
    new_passes: tuple[Expected, ...]

    def __bool__(self) -> bool:
        return bool(self.new_failures or self.new_passes)


HEAD: Final = "test\twhere\treason\tnote"


def read_expected(text: str) -> list[Expected]:
    """Read the lines of `expected.tsv`, which stand in order.

    Raises:
        ValueError: A line that cannot be read, says nothing, or stands out of order.
    """
    lines = text.splitlines()
    if not lines or lines[0] != HEAD:
        raise ValueError(f"the first line is not {HEAD!r}")
    expected = [_read_line(line) for line in lines[1:]]
    keys = [(one.test, sorted(one.where)) for one in expected]
    if keys != sorted(keys):
        raise ValueError("the lines are not in order")
    return expected


def read_results(text: str) -> list[Result]:
    """Read what the plugin wrote; the test's name is without the suite's directory."""
    results = [msgspec.json.decode(line, type=Result) for line in text.splitlines()]
    return [
        msgspec.structs.replace(result, test=result.test.removeprefix("s3tests/functional/"))
        for result in results
    ]


def surprises(
    results: Iterable[Result], expected: Iterable[Expected], *, origin: str, protocol: str
) -> Surprises:
    """Say where a run through the gateway differs from what was expected of it; a skipped test is no surprise."""
    ruling: Mapping[str, Expected] = {one.test: one for one in expected if one.holds_at(origin, protocol)}
    by_test = {result.test: result for result in results}
    failures = [
        result for test, result in by_test.items() if result.outcome == "failed" and test not in ruling
    ]
    passes = [
        ruling[test]
        for test, result in by_test.items()
        if result.outcome == "passed" and test in ruling and ruling[test].reason is not Reason.NOISE
    ]
    return Surprises(tuple(failures), tuple(passes))


def lost_tests(results: Iterable[Result], bare: Iterable[Result]) -> list[Result]:
    """Give the failures of a run through the gateway whose tests the bare origin passes."""
    passing = {result.test for result in bare if result.outcome == "passed"}
    return [result for result in results if result.outcome == "failed" and result.test in passing]


def _read_line(line: str) -> Expected:
    parts = line.split("\t")
    if len(parts) != 4 or not all(parts):
        raise ValueError(f"not four parts: {line!r}")
    test, where, reason, note = parts
    return Expected(test, frozenset(where.split(",")), Reason(reason), note)
