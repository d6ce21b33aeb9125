"""What repairs found lost, told again until an operator has dealt with it.

    <cache_dir>/quarantine/<time>/losses.json      format, so many lines in words, how many in all

A repair makes a directory sound again, and with that the traces of what is lost go: the journal that a second run reads has no hole any
more. So each repair that finds a loss writes it down, durably, before it changes anything; a check, a dry run and a repair tell all
that stands, and none of them calls the directory sound, until the directory under `quarantine/` is removed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from storage.aside import ASIDE_DIRECTORY, Aside
from storage.filesystem import Filesystem
from storage.layout import ROOT

LOSSES_NAME: Final = "losses.json"
FORMAT: Final = 1
_BYTES_MAX: Final = 16 * 1024 * 1024


class _Document(msgspec.Struct, frozen=True):
    format: int
    lost: tuple[str, ...]
    lost_total: int


@dataclass(frozen=True, slots=True)
class StandingLosses:
    """What one repair found lost.

    Attributes:
        place: The directory whose removal ends the telling.
        total: How many losses; at least as many as `lines`, which are bounded. 1 where the report itself does not read back.
    """

    place: str
    lines: tuple[str, ...]
    total: int

    def told(self) -> list[str]:
        """Tell it, a line for each loss."""
        more = self.total - len(self.lines)
        lines = [*self.lines, *([f"... and {more} more"] if more else [])]
        return [f"{line} (told by {self.place})" for line in lines]


def standing_losses(filesystem: Filesystem) -> tuple[StandingLosses, ...]:
    """Read all reports that stand, oldest first. What cannot be read stands too: nothing says that nothing was lost.

    Raises:
        OSError: The cache directory itself cannot be listed.
    """
    if ASIDE_DIRECTORY not in filesystem.list_directory(ROOT):
        return ()
    places = [f"{ASIDE_DIRECTORY}/{name}" for name in filesystem.list_directory(ASIDE_DIRECTORY)]
    return tuple(losses for place in places if (losses := _read(filesystem, place)) is not None)


def keep_losses(
    filesystem: Filesystem,
    aside: Aside,
    standing: Sequence[StandingLosses],
    lines: Sequence[str],
    total: int,
) -> None:
    """Write down what is lost, durably, where no report that stands says all of it already."""
    told = {line for losses in standing for line in losses.lines}
    if not total or (told.issuperset(lines) and total <= sum(losses.total for losses in standing)):
        return
    path = aside.place(LOSSES_NAME)
    unfinished = f"{path}.tmp"
    file = filesystem.create(unfinished)
    try:
        file.pwrite(0, msgspec.json.format(msgspec.json.encode(_Document(FORMAT, tuple(lines), total))))
        file.fdatasync()
    finally:
        file.close()
    filesystem.rename(unfinished, path)
    filesystem.sync_directory(aside.directory())


def standing_lines(standing: Sequence[StandingLosses]) -> list[str]:
    """Tell what stands to people, a line for each loss."""
    return [f"lost before: {line}" for losses in standing for line in losses.told()]


def standing_document(standing: Sequence[StandingLosses]) -> list[dict[str, object]]:
    """Tell what stands as values that JSON has."""
    return [{"place": one.place, "lost": list(one.lines), "lost_total": one.total} for one in standing]


def standing_verdict(standing: Sequence[StandingLosses]) -> str:
    """Say why a directory that may be in order by now is not called sound, and what ends that."""
    total, places = sum(losses.total for losses in standing), ", ".join(losses.place for losses in standing)
    return f"NOT ALL THERE: earlier repairs found {total} losses, named above; once they are dealt with, remove {places}"


def _read(filesystem: Filesystem, place: str) -> StandingLosses | None:
    """Read one report; None where there is none."""
    path = f"{place}/{LOSSES_NAME}"
    try:
        file = filesystem.open_reader(path)
        try:
            document = msgspec.json.decode(file.pread(0, _BYTES_MAX), type=_Document)
        finally:
            file.close()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        return StandingLosses(place, (f"{path}, which names what was lost, cannot be read: {error}",), 1)
    return StandingLosses(place, document.lost, document.lost_total)
