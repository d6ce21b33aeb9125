"""The table of operations."""

import inspect

from gateway.operations.table import OPERATIONS


def test_every_operation_has_one_form() -> None:
    """Each takes a context and a request, and nothing of a connection."""
    for operator in OPERATIONS.values():
        assert list(inspect.signature(operator).parameters) == ["context", "request"]
        assert inspect.iscoroutinefunction(operator)
