"""Each row of the pitfalls has a test that names it."""

from tests.tidy.pitfalls import ROWS, proofs


def test_every_row_is_shown_right_by_a_test() -> None:
    """A row without a test shows here; a test that names none is not looked for."""
    found = proofs()

    assert [row for row in ROWS if not found.get(row)] == []


def test_every_row_that_a_test_names_is_known() -> None:
    """A wrong number proves nothing."""
    assert sorted(proofs().keys() - ROWS.keys()) == []
