"""Whose the objects are that are written here."""

import pytest

from storage.account import ASKED_AGAIN_S, UNKNOWN, Account
from storage.errors import OriginRefusedError
from storage.origin.control import BucketsOwner
from storage.requests import Owner


class Origin:
    """Answers ListBuckets with an owner, or refuses."""

    def __init__(self, said: BucketsOwner | None) -> None:
        self.said = said
        self.asked = 0

    async def owner(self) -> BucketsOwner:
        """Give the owner."""
        self.asked += 1
        if self.said is None:
            raise OriginRefusedError("no", status=403, code="AccessDenied")
        return self.said


async def test_owner_is_asked_once() -> None:
    """What the origin says of it does not change."""
    origin = Origin(BucketsOwner("id", "name"))
    account = Account(origin, lambda: 0.0)

    found = [await account.owner() for _ in range(3)]

    assert found == [Owner("id", "name")] * 3
    assert origin.asked == 1


@pytest.mark.parametrize("said", [None, BucketsOwner("", "")])
async def test_owner_when_the_origin_does_not_say(said: BucketsOwner | None) -> None:
    """A refusal fails nothing, and is believed for ten minutes."""
    now_s = [0.0]
    origin = Origin(said)
    account = Account(origin, lambda: now_s[0])

    first = [await account.owner(), await account.owner()]
    asked_first = origin.asked
    now_s[0] = ASKED_AGAIN_S
    origin.said = BucketsOwner("id", "")
    later = await account.owner()

    assert first == [UNKNOWN, UNKNOWN]
    assert asked_first == 1
    assert later == Owner("id")
