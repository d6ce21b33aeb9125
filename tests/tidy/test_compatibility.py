"""docs/s3-compatibility.md says what the code does, and what is shown by tests that are there."""

import pytest

from gateway.s3.routes import Operation
from tests.conformance.shown import SHOWN, read_shown
from tests.conformance.verdicts import Reason
from tests.tidy.compatibility import expected, our_tests, support
from tests.tidy.repository import ROOT

OPERATIONS = sorted(set(Operation) - {Operation.UNKNOWN})


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_names_tests_of_ours_that_are_there(operation: Operation) -> None:
    """An operation that is added says where it is tested."""
    assert support(operation)
    assert (ROOT / our_tests(operation)).is_file()


def test_what_suites_have_shown_are_operations() -> None:
    """No line is about an operation that S3 does not have, nor about one that is refused."""
    shown = set(read_shown(SHOWN.read_text()))

    assert shown <= {operation.value for operation in OPERATIONS}
    assert [name for name in shown if support(Operation(name)).startswith("refused")] == []


def test_failures_that_aws_explains_name_its_page() -> None:
    """A test that asks for what AWS documents otherwise is listed with the page that says so."""
    without = [one.test for one in expected() if one.reason is Reason.AWS and '"' not in one.note]

    assert without == []


def test_every_noisy_or_ceph_test_is_listed_once_a_target() -> None:
    """Two lines for one test are about different targets."""
    seen = [(one.test, place) for one in expected() for place in one.where]

    assert len(seen) == len(set(seen))
