"""What an operation that the origin alone carries out depends on, and what of ours it may outdate. Pure.

Which operation has which effect is S3's business (`gateway/s3/effects.py`); what follows from it is `storage/relay.py`'s.
"""

from enum import Enum, auto

import msgspec


class Needs(Enum):
    """What must be at the origin as it was acknowledged, before the origin is asked."""

    NOTHING = auto()
    KEY = auto()
    BUCKET = auto()
    """Every object of the bucket."""


class Changes(Enum):
    """What the gateway knows that may be outdated afterwards."""

    NOTHING = auto()
    """It is a read."""
    CONFIGURATION = auto()
    """It writes, but nothing that the gateway keeps."""
    KEY = auto()
    """The object that it names, metadata and tags included."""
    FACTS = auto()
    """Whether writes into the bucket may be acknowledged from the disk."""
    OBJECTS = auto()
    """The facts, and any object of the bucket."""


class Effect(msgspec.Struct, frozen=True, gc=False):
    """What an operation needs and changes.

    Attributes:
        is_repeatable: Sent twice it leaves what it leaves sent once, so that a pooled connection that turns out dead may be
            replaced.
    """

    needs: Needs
    changes: Changes
    is_repeatable: bool = False

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing, so that it may be asked again."""
        return self.changes is Changes.NOTHING
