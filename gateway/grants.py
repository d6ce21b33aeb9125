"""What a client key may do: rights on the names of buckets and objects, and who holds which. Pure values.

A grant covers every name that begins with its prefix, in every bucket that its pattern matches. A question is about one key, or
about all names with some beginning: both are answered by the same comparison, since what begins with a longer text begins with a
shorter one, too. So whoever may read a key may also list what begins with it, and a 404 tells them nothing that they may not see.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

GRANTS_MAX: Final = 256
"""Of one key; a request may compare its name with each of them."""

GRANT_FORM: Final = "RIGHTS s3://BUCKET/PREFIX*, as in read,write s3://team-*/in/*"
"""How a grant is written: some of read, write and admin with commas between them, then where they hold."""

_GRANT: Final = re.compile(r"(?P<rights>[a-z,]+)\s+s3://(?P<bucket>\*|[^/*\s]+\*?)(?:/(?P<prefix>[^*]*)\*)?")


class Right(StrEnum):
    """One kind of permission. None of them includes another.

    Attributes:
        READ: Objects, what is known of them, and listings of their names.
        WRITE: Storing and deleting objects, uploads included.
        ADMIN: Buckets themselves, their configuration, and who may do what with an object.
    """

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Grant:
    """Rights on names.

    Attributes:
        bucket: A bucket's name; with `*` at its end every bucket whose name begins so.
        prefix: What keys begin with; "" is every key, and the bucket itself.
    """

    bucket: str
    prefix: str
    rights: frozenset[Right]

    def touches(self, bucket: str) -> bool:
        """Whether it is about anything in a bucket."""
        if self.bucket.endswith("*"):
            return bucket.startswith(self.bucket[:-1])
        return bucket == self.bucket


@dataclass(frozen=True, slots=True)
class Access:
    """All that one key may do. `grants` None is everything; without a grant there is nothing."""

    grants: tuple[Grant, ...] | None

    @property
    def is_unrestricted(self) -> bool:
        """Whether it holds every right on every name."""
        return self.grants is None

    def allows(self, right: Right, bucket: str, start: str) -> bool:
        """Whether the right is held on the key `start` and on every key that begins with it; "" is the bucket as a whole."""
        if self.grants is None:
            return True
        return any(
            right in grant.rights and grant.touches(bucket) and start.startswith(grant.prefix)
            for grant in self.grants
        )

    def holds_any(self, bucket: str, right: Right | None = None) -> bool:
        """Whether it has the right, or any at all, on anything in a bucket: that the bucket is there is no secret then."""
        if self.grants is None:
            return True
        return any(
            grant.touches(bucket) and (right is None or right in grant.rights) for grant in self.grants
        )


EVERYTHING: Final = Access(None)
NOTHING: Final = Access(())


def parse_grant(text: str) -> Grant:
    """Read a grant as `GRANT_FORM` says; without a slash behind it, the place is the whole bucket.

    Raises:
        ValueError: It is not of this form. A prefix without its `*` is none: it could be meant as one key.
    """
    match = _GRANT.fullmatch(text.strip())
    if match is None:
        raise ValueError("not a grant")
    return Grant(match["bucket"], match["prefix"] or "", frozenset(map(Right, match["rights"].split(","))))
