"""Ids that never return: version ids and segment ids from blocks reserved in the journal.

An id is handed out only below the reserved limit, and a start continues at the limit, so an id used before a crash,
journaled or not, is never used for something else. Handing out is synchronous; the engine commits the next reservation
while the present one lasts.
"""

from typing import Final

from storage import keys
from storage.errors import OverloadedError
from storage.records import FORMAT, IdsReserved

VERSION_IDS_BLOCK: Final = 1 << 20
SEGMENT_IDS_BLOCK: Final = 1 << 12


class Ids:
    """Hands out ids below the reserved limits; none before the first `adopt`."""

    def __init__(self, node: int, *, next_version_id: int, next_segment_counter: int) -> None:
        self._node = node
        self._next_version_id = next_version_id
        self._next_segment_counter = next_segment_counter
        self._version_id_limit = next_version_id
        self._segment_counter_limit = next_segment_counter

    def reservation(self) -> IdsReserved:
        """Say what to journal next: a full block above what is in use."""
        return IdsReserved(
            FORMAT,
            version_id_limit=self._next_version_id + VERSION_IDS_BLOCK,
            segment_counter_limit=self._next_segment_counter + SEGMENT_IDS_BLOCK,
        )

    def adopt(self, reserved: IdsReserved) -> None:
        """Use a reservation that is durable; limits only rise."""
        self._version_id_limit = max(self._version_id_limit, reserved.version_id_limit)
        self._segment_counter_limit = max(self._segment_counter_limit, reserved.segment_counter_limit)

    @property
    def is_running_low(self) -> bool:
        """Whether half a block or less is left of either kind."""
        return (
            self._version_id_limit - self._next_version_id <= VERSION_IDS_BLOCK // 2
            or self._segment_counter_limit - self._next_segment_counter <= SEGMENT_IDS_BLOCK // 2
        )

    def take_version_id(self) -> int:
        """Give the next version id.

        Raises:
            OverloadedError: The reservation is used up; the next one is not durable yet.
        """
        if self._next_version_id >= self._version_id_limit:
            raise OverloadedError("version ids are being reserved; try again", retry_after_s=1.0)
        self._next_version_id += 1
        return self._next_version_id - 1

    def take_segment_id(self) -> int:
        """Give the next segment id; errors as take_version_id."""
        if self._next_segment_counter >= self._segment_counter_limit:
            raise OverloadedError("segment ids are being reserved; try again", retry_after_s=1.0)
        self._next_segment_counter += 1
        return keys.segment_id(self._node, self._next_segment_counter - 1)
