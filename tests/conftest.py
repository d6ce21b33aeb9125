"""What every test has: a comparison of bodies that fails at once."""

from typing import Final

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
