"""One checksum over what several fills bring: their stretches come together here, and readers wait for what they show.

A whole object that comes in one fill is compared by that fill. Where it comes in pieces, each fill of the version computes the
CRC of its own stretch as it writes it, and the CRCs are joined. A reader of the whole object keeps its last block back until
that has shown what it shows, so that nobody gets a whole body that is not the object.

It lives as long as a fill contributes to it or a reader waits for it; `ahead.Ahead` finds it by its version.
"""

import asyncio
from typing import Final

from storage.errors import OriginUnavailableError
from storage.hashers import JointCheck


class Joint:
    """The checksum of one version, and who works on it."""

    def __init__(self, check: JointCheck) -> None:
        self._check: Final = check
        self._under_way = 0
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        state = "settled" if self.is_settled else f"{self._under_way} stretches under way"
        return f"<Joint: {state}>"

    @property
    def is_settled(self) -> bool:
        """Whether it is known if the bytes are the object's, or that it will not be known."""
        return self._check.is_settled

    @property
    def is_refuted(self) -> bool:
        """Whether they are not."""
        return self._check.is_refuted

    def error(self) -> OriginUnavailableError:
        """Make the error for bytes that are refuted."""
        return self._check.error()

    def begin(self, start: int) -> "Stretch":
        """Begin a stretch at byte `start`; `Stretch.end` is owed."""
        self._under_way += 1
        return Stretch(self, self._check, start)

    def end(self) -> None:
        """Count the end of a stretch; `Stretch` calls this."""
        self._under_way -= 1
        self._changed.set()

    def give_up(self) -> None:
        """Take it that some byte will not come by a stretch."""
        self._check.give_up()
        self._changed.set()

    async def wait(self) -> None:
        """Wait until it is settled, or nobody works on it now."""
        while not self.is_settled and self._under_way:
            self._changed.clear()
            await self._changed.wait()


class Stretch:
    """What one fill contributes. Fed on worker threads, one call at a time; ended on the loop."""

    def __init__(self, joint: Joint, check: JointCheck, start: int) -> None:
        self._joint: Final = joint
        self._check: Final = check
        self._hasher: Final = check.stretch()
        self._start: Final = start
        self._length = 0

    def update(self, block: bytes) -> None:
        """Take the next bytes, once they are written."""
        # Before the digest changes: see `end`.
        self._length += len(block)
        self._hasher.update(block)

    def end(self, stop: int) -> None:
        """Contribute what was written, up to `stop`.

        A fill that was cancelled may have left a block to its thread, whose bytes nobody will find: the digest, which is read
        first, counts only if the length says that it is of these bytes.
        """
        digest = self._hasher.digest()
        if self._length != stop - self._start:
            self._check.give_up()
        elif self._length:
            self._check.add(self._start, stop, digest)
        self._joint.end()
