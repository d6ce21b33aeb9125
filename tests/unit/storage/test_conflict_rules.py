"""Conditions of a flush, and what is another writer's object."""

import pytest

from storage.conflict_rules import (
    ABSENT,
    OWN_ETAGS_MAX,
    UNCONDITIONAL,
    Condition,
    Standing,
    condition_of,
    conflict_reason,
    is_condition_refusal,
    joined_etags,
    standing,
)
from storage.errors import NoSuchKeyError, OriginRefusedError, OriginUnavailableError, StorageError


def test_condition_of_asks_for_the_base_or_for_nothing() -> None:
    """AWS knows If-Match with an ETag and If-None-Match with a star."""
    assert condition_of("e") == Condition(if_match="e")
    assert condition_of(ABSENT) == Condition(if_none_match="*")


@pytest.mark.parametrize(
    ("error", "condition", "is_refusal"),
    [
        (OriginRefusedError("x", status=412, code="PreconditionFailed"), condition_of("e"), True),
        (OriginRefusedError("x", status=412, code="PreconditionFailed"), condition_of(ABSENT), True),
        (NoSuchKeyError("x"), condition_of("e"), True),
        (NoSuchKeyError("x"), condition_of(ABSENT), False),
        (NoSuchKeyError("x"), UNCONDITIONAL, False),
        (OriginRefusedError("x", status=400, code="EntityTooSmall"), condition_of("e"), False),
        (OriginUnavailableError("x", status=409, code="ConditionalRequestConflict"), condition_of("e"), False),
    ],
)  # fmt: skip
def test_is_condition_refusal_knows_the_two_answers(
    error: StorageError, condition: Condition, *, is_refusal: bool
) -> None:
    """412, or 404 where something was to be there; a conflict of the moment (409) is tried again instead."""
    assert is_condition_refusal(error, condition) is is_refusal


@pytest.mark.parametrize(
    ("found", "base", "own", "expected"),
    [
        ("theirs", "base", (), Standing.OTHER),
        ("theirs", ABSENT, ("mine",), Standing.OTHER),
        (ABSENT, "base", ("mine",), Standing.OTHER),
        ("mine", "base", ("older", "mine"), Standing.OURS),
        (ABSENT, "base", ("mine", ABSENT), Standing.OURS),
        ("base", "base", (), Standing.OURS),
        (ABSENT, ABSENT, (), Standing.OURS),
    ],
)
def test_standing_tells_ours_from_another_writers(
    found: str, base: str, own: tuple[str, ...], expected: Standing
) -> None:
    """Ours is the base, and what was sent since, deletes too; whatever is the very state that was to be sent has landed."""
    assert standing(found, base, own, is_landed=False) is expected
    assert standing(found, base, own, is_landed=True) is Standing.LANDED


def test_conflict_reason_says_what_is_there_and_what_was_to_be() -> None:
    """An operator reads both ETags, or that there is no object."""
    assert conflict_reason("a", "b") == (
        "another writer changed the object: it has ETag a now, and the write was accepted over ETag b"
    )
    assert conflict_reason(ABSENT, "b").endswith("it is gone now, and the write was accepted over ETag b")
    assert conflict_reason("a", ABSENT).endswith("accepted over no object")


def test_joined_etags_keeps_the_newest_each_once() -> None:
    """Bounded, so that a key that is written all the time costs no more than another."""
    many = [str(n) for n in range(40)]

    assert joined_etags(("a", "b"), ("a", "c")) == ("b", "a", "c")
    assert joined_etags(many, ("39", "30")) == (*many[24:30], *many[31:39], "39", "30")
    assert len(joined_etags(many)) == OWN_ETAGS_MAX == 16
