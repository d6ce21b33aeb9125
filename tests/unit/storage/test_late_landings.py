import pytest

from storage import late_landings
from storage.late_landings import LANDING_S, LateLandings
from storage.types import ObjectName

NAME, OTHER = ObjectName("b", "k"), ObjectName("b", "other")


def test_what_may_land_is_doubted_until_then_with_all_versions_of_its_key() -> None:
    """And of no other key."""
    landings = LateLandings()
    landings.note(NAME.at_version("v"), 1000.0)

    assert {landings.doubted_at_s(name) for name in (NAME, NAME.at_version("w"))} == {1000.0 + LANDING_S}
    assert landings.doubted_at_s(OTHER) == 0.0


def test_more_keys_than_are_remembered_are_doubted_with_all_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, and nothing is trusted for that."""
    monkeypatch.setattr(late_landings, "NAMES_MAX", 2)
    landings = LateLandings()
    for number in range(3):
        landings.note(ObjectName("b", str(number)), 1000.0 + number)

    assert landings.doubted_at_s(OTHER) == 1002.0 + LANDING_S
    assert landings.doubted_at_s(ObjectName("b", "0")) == 1002.0 + LANDING_S


def test_the_next_life_doubts_what_the_one_before_did() -> None:
    """A disk that fails does not call back what was sent."""
    before, after = LateLandings(), LateLandings()
    before.note(NAME, 1000.0)
    after.take_over(before)

    assert after.doubted_at_s(NAME) == 1000.0 + LANDING_S
