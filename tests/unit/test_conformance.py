"""What a run of a public suite is judged by."""

from pathlib import Path

import pytest

from tests.conformance import shown
from tests.conformance.shown import read_shown, written
from tests.conformance.verdicts import (
    HEAD,
    Reason,
    Result,
    lost_tests,
    read_expected,
    read_results,
    surprises,
)

LISTS = Path(shown.__file__).parent

EXPECTED = f"""{HEAD}
a.py::ceph\tany\tceph\tits own
a.py::moto\tmoto\torigin\tit has none
a.py::noise\tany\tnoise\tby the clock
a.py::tls\tseaweed-tls\torigin\tonly there
"""


def test_a_run_as_expected_has_no_surprises() -> None:
    """What fails is listed, what is listed fails, noise may do either, and what did not run is no matter."""
    expected = read_expected(EXPECTED)
    results = [
        Result("a.py::ceph", "failed"),
        Result("a.py::noise", "passed"),
        Result("a.py::good", "passed"),
    ]

    found = surprises(results, expected, origin="seaweed", protocol="http")

    assert not found


@pytest.mark.parametrize(
    ("result", "origin", "protocol", "failures", "passes"),
    [
        (Result("a.py::new", "failed"), "seaweed", "http", ["a.py::new"], []),
        (Result("a.py::ceph", "passed"), "seaweed", "http", [], ["a.py::ceph"]),
        (Result("a.py::ceph", "skipped"), "seaweed", "http", [], []),
        (Result("a.py::moto", "failed"), "seaweed", "http", ["a.py::moto"], []),
        (Result("a.py::moto", "failed"), "moto", "tls", [], []),
        (Result("a.py::tls", "failed"), "seaweed", "http", ["a.py::tls"], []),
        (Result("a.py::tls", "passed"), "seaweed", "tls", [], ["a.py::tls"]),
    ],
)
def test_new_failures_and_new_passes_show(
    result: Result, origin: str, protocol: str, failures: list[str], passes: list[str]
) -> None:
    """A line of the list holds for its targets and for no others."""
    found = surprises([result], read_expected(EXPECTED), origin=origin, protocol=protocol)

    assert [one.test for one in found.new_failures] == failures
    assert [one.test for one in found.new_passes] == passes
    assert bool(found) is bool(failures or passes)


def test_the_last_word_of_a_test_counts_when_it_ran_twice() -> None:
    """A test that was run again is judged once."""
    results = [Result("a.py::new", "failed"), Result("a.py::new", "passed")]

    assert not surprises(results, [], origin="moto", protocol="http")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "test\treason\n",
        f"{HEAD}\na.py::x\tany\tceph\n",
        f"{HEAD}\na.py::x\tany\tceph\t\n",
        f"{HEAD}\na.py::x\tany\tlazy\tnote\n",
        f"{HEAD}\nb.py::x\tany\tceph\tnote\na.py::x\tany\tceph\tnote\n",
    ],
)
def test_a_list_that_cannot_be_read_is_refused(text: str) -> None:
    """A line without a reason, or out of order, is an error and no silence."""
    with pytest.raises(ValueError, match=r".+"):
        read_expected(text)


@pytest.mark.parametrize("name", ["expected.tsv", "expected_s3_transfer.tsv"])
def test_the_lists_that_are_kept_can_be_read(name: str) -> None:
    """Each has its reasons."""
    assert read_expected((LISTS / name).read_text())


def test_reasons_are_read_from_the_list() -> None:
    """A line has a test, its targets, a reason and a note."""
    first, second, *_ = read_expected(EXPECTED)

    assert (first.reason, first.note, first.where) == (Reason.CEPH, "its own", frozenset({"any"}))
    assert second.holds_at("moto", "http")


def test_lost_tests_are_those_that_the_bare_origin_passes() -> None:
    """What fails on both sides is the origin's own."""
    bare = [Result("a", "passed"), Result("b", "failed")]
    through = [Result("a", "failed"), Result("b", "failed"), Result("c", "failed")]

    assert [one.test for one in lost_tests(through, bare)] == ["a"]


def test_results_are_read_as_the_plugin_writes_them() -> None:
    """A test is named without the directory of its suite."""
    line = '{"test": "s3tests/functional/a.py::t", "outcome": "passed", "seconds": 1.5, "operations": ["GetObject"]}'

    assert read_results(line) == [Result("a.py::t", "passed", 1.5, "", ("GetObject",))]


def test_operations_are_counted_by_suite_when_tests_pass() -> None:
    """A test counts once, and only where it passed."""
    both = ("GetObject", "PutObject")
    results = [
        Result("test_s3.py::a", "passed", operations=both),
        Result("test_s3.py::a", "passed", operations=both),
        Result("test_s3.py::b", "failed", operations=both),
        Result("tests/integration/test_upload.py::c", "passed", operations=("PutObject",)),
    ]

    assert read_shown(written(results)) == {"GetObject": (1, 0), "PutObject": (1, 1)}
