"""The ids that a repair gives: behind all that may have been given before, whatever is lost."""

from collections.abc import Iterator
from typing import Final

from storage import keys
from storage.family import Family
from storage.filesystem import Filesystem
from storage.fsck_survey import Survey
from storage.index import Index
from storage.journal_format import JOURNAL_DIRECTORY
from storage.layout import ROOT, SEGMENTS_DIRECTORY
from storage.records import FORMAT, IdsReserved
from storage.restatement import reserved_ids
from storage.rows import all_rows, decode_dirty

LOST_VERSION_IDS: Final = 1 << 32
LOST_SEGMENT_IDS: Final = 1 << 20
"""By so much ids go on behind what is known, where a part of the journal that may have given some is lost."""


class RepairIds:
    """Ids above all that may have been given. None is taken twice, and the reservation covers what was taken."""

    def __init__(self, survey: Survey, filesystem: Filesystem) -> None:
        known = reserved_ids(survey.index)
        margin = bool(survey.refusal)
        self._version_id_limit = max(known.version_id_limit, _newest_version(survey.index) + 1)
        self._version_id_limit += LOST_VERSION_IDS if margin else 0
        self._node = survey.layout.node
        counters = [keys.segment_counter(segment_id) for segment_id in _ids_on_disk(filesystem)]
        self._next_counter = max([known.segment_counter_limit, *(counter + 1 for counter in counters)])
        self._next_counter += LOST_SEGMENT_IDS if margin else 0

    def take(self) -> int:
        """Give the next segment id."""
        self._next_counter += 1
        return keys.segment_id(self._node, self._next_counter - 1)

    def reservation(self) -> IdsReserved:
        """Say what the next start goes on behind."""
        return IdsReserved(FORMAT, self._version_id_limit, self._next_counter)


def spare_segment_id(filesystem: Filesystem, index: Index, node: int) -> int:
    """Give a segment id that was never given: behind what is reserved, and behind all files."""
    counters = [keys.segment_counter(segment_id) for segment_id in _ids_on_disk(filesystem)]
    return keys.segment_id(node, max(reserved_ids(index).segment_counter_limit, *counters, 0) + 1)


def _ids_on_disk(filesystem: Filesystem) -> Iterator[int]:
    there = filesystem.list_directory(ROOT)
    for directory in (JOURNAL_DIRECTORY, SEGMENTS_DIRECTORY):
        for name in filesystem.list_directory(directory) if directory in there else ():
            stem = name.partition(".")[0]
            if len(stem) == 16 and not stem.strip("0123456789abcdef"):
                yield int(stem, 16)


def _newest_version(index: Index) -> int:
    return max((decode_dirty(value).version_id for _, value in all_rows(index, Family.DIRTY)), default=0)
