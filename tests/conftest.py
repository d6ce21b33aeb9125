"""What every test has: bodies compared so that it fails at once, examples without a deadline, a second chance or none, and its turn."""

import gc
from pathlib import Path
from typing import Final

import pytest
from hypothesis import settings

settings.register_profile("forebay", deadline=None)
settings.load_profile("forebay")

GOES_AGAIN: Final = ("end_to_end", "integration", "contracts")
"""Tests of processes and sockets, which a machine that stands still fails; with `--reruns` such a test fails where it fails
each time. Any other failure is never put to the test twice: a byte that is lost once in a hundred runs is lost."""

WORDS_MAX: Final = 4096
"""Bytes shorter than this are compared as pytest does it, value by value; that takes minutes for some MiB."""


def pytest_assertrepr_compare(op: str, left: object, right: object) -> list[str] | None:
    """Say of two long bodies how long they are and where they part."""
    if op != "==" or not isinstance(left, bytes | bytearray) or not isinstance(right, bytes | bytearray):
        return None
    if max(len(left), len(right)) < WORDS_MAX:
        return None
    common = min(len(left), len(right))
    at = next((n for n in range(common) if left[n] != right[n]), common)
    return [
        f"{len(left)} B == {len(right)} B",
        f"from byte {at}: {bytes(left[at : at + 16])!r}, {bytes(right[at : at + 16])!r}",
    ]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let those tests begin that may take minutes, and only those go again whose outcome hangs on the machine's speed."""
    items.sort(key=_patience_s, reverse=True)
    if not config.getoption("reruns"):
        return
    tests = Path(__file__).parent
    for item in items:
        room = item.path.relative_to(tests).parts[0]
        if room not in GOES_AGAIN and item.get_closest_marker("timing") is None:
            item.add_marker(pytest.mark.flaky(reruns=0))


def pytest_collection_finish() -> None:
    """Leave out what seven thousand tests are made of each time that the collector looks at everything: it lives to the end."""
    gc.collect()
    gc.freeze()


def _patience_s(item: pytest.Item) -> float:
    """Give the time-out that a test has of its own. What comes last should be short: the other worker has nothing to do by then."""
    own = item.get_closest_marker("timeout")
    return float(own.args[0]) if own is not None and own.args else 0.0
