"""Why the origin is asked: for bytes that are read now, or that will be. Pure.

A client's read asks as `FOR_READ`. Who asks ahead of clients says what for, and until when it is of use: such a request waits behind
all others, and much may have happened by the time it may go.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

import msgspec


class Intent(Enum):
    """Why bytes are brought: they are read now; a warm-up, and they will be read; they are next in an order that was announced."""

    READ = "read"
    WARM_UP = "warm-up"
    NEXT = "next"


def _always() -> bool:
    return True


class Ask(msgspec.Struct, frozen=True):
    """What an asker wants.

    Attributes:
        intent: Why. What is brought for a read to come is announced to the eviction policy, and told of as read when it is.
        is_wanted: Looked at when a request may go that was made ahead of clients; where it is not, nothing is sent.
    """

    intent: Intent = Intent.READ
    is_wanted: Callable[[], bool] = _always


FOR_READ: Final = Ask()
FOR_WARM_UP: Final = Ask(Intent.WARM_UP)
