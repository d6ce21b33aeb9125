"""What a flush asks of the origin under `on_conflict = quarantine`, and what an answer to it means. Pure.

A write has a base: what the origin held under its key when the write was accepted. The flush carries it as a condition
(AWS User Guide "Conditional writes"): If-Match on the base's ETag, or If-None-Match: * where the key was absent. The
origin refuses what does not hold with 412, or 404 where an object that was to be there is gone. Then a HEAD says what
is there, and `standing` what that is to us: states of our own that were sent before count as no other writer's.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

from storage.errors import NoSuchKeyError, OriginRefusedError, StorageError

OWN_ETAGS_MAX: Final = 16
"""So many states of ours that may have taken effect are remembered of one key, the newest ones."""

ABSENT: Final = ""
"""Stands for no object where an ETag is asked for: a base of nothing, a delete of ours."""


@dataclass(frozen=True, slots=True)
class Base:
    """What a write is made on.

    Attributes:
        etag: Of the origin's object when the write was accepted; ABSENT for none, None where nobody asked.
        own_etags: Of states of ours that may have taken effect there since, ABSENT for a delete.
    """

    etag: str | None = None
    own_etags: tuple[str, ...] = ()


NO_BASE: Final = Base()
"""The write takes effect whatever is there: S3's last writer wins."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The conditions of one write, as the origin's client takes them; "" for none."""

    if_match: str = ""
    if_none_match: str = ""


UNCONDITIONAL: Final = Condition()


class Standing(Enum):
    """What the origin's object is to a write that was refused for its condition."""

    LANDED = "landed"
    """The very state that was to be written: an attempt without an answer took effect."""
    OURS = "ours"
    """What the write was made on, or an older state of ours: to be written over."""
    OTHER = "other"
    """Another writer's."""


def condition_of(etag: str) -> Condition:
    """Ask that the origin still holds `etag`, ABSENT for no object."""
    return Condition(if_none_match="*") if etag == ABSENT else Condition(if_match=etag)


def is_condition_refusal(error: StorageError, condition: Condition) -> bool:
    """Whether the origin refused a write because its condition does not hold (AWS: 412; 404 where nothing is there to match)."""
    if isinstance(error, NoSuchKeyError):
        return bool(condition.if_match)
    return isinstance(error, OriginRefusedError) and error.status == 412


def standing(found: str, base: str, own_etags: Collection[str], *, is_landed: bool) -> Standing:
    """Say what an object with the ETag `found` (ABSENT for none) is to a write on `base`.

    `is_landed` says that it has the ETag, size and description of what was to be written.
    """
    if is_landed:
        return Standing.LANDED
    return Standing.OURS if found == base or found in own_etags else Standing.OTHER


def conflict_reason(found: str, base: str) -> str:
    """Say to an operator what happened; one line."""
    told = f"it has ETag {found} now" if found else "it is gone now"
    held = f"ETag {base}" if base else "no object"
    return f"another writer changed the object: {told}, and the write was accepted over {held}"


def joined_etags(*groups: Collection[str]) -> tuple[str, ...]:
    """Join ETags, each once, the newest OWN_ETAGS_MAX of them; a later group is newer."""
    newest_last: dict[str, None] = {}
    for etag in (etag for group in groups for etag in group):
        newest_last.pop(etag, None)
        newest_last[etag] = None
    return tuple(newest_last)[-OWN_ETAGS_MAX:]
