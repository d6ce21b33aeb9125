"""What `bench.hit_ratio` measures: cells, the report that keeps them, and the goals they are judged by. Pure but for the report's file."""

import os
from collections.abc import Iterator, Sequence
from enum import StrEnum
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

import msgspec

FAIR: Final = "S3-FIFO on segments"


class Goal(StrEnum):
    """What a workload's hit ratio is held against."""

    EPOCHS = "epochs"
    LOOP = "loop"
    MIXED = "mixed"
    S3_FIFO = "s3-fifo"


class Ratios(msgspec.Struct, frozen=True):
    """Hit ratios by bytes and by objects, all of whose bytes were there."""

    by_bytes: float
    by_objects: float


class Written(msgspec.Struct, frozen=True):
    """Bytes that a policy on segments wrote."""

    admitted: int
    rewritten: int


class Cell(msgspec.Struct, frozen=True):
    """One workload at one cache size, for one seed and scale.

    Attributes:
        share: The cache, as a share of all bytes read.
        ratios: Hit ratios of the other policies, by name.
        fair_written: What FAIR wrote; None where only ours ran, `ratios` being empty then.
        access_us: CPU of an access that hits.
        seconds: How long the cell took.
    """

    workload: str
    share: float
    seed: int
    scale: float
    goal: Goal
    reads: int
    cache_bytes: int
    segments: int
    ours: Ratios
    written: Written
    ratios: dict[str, Ratios]
    fair_written: Written | None
    access_us: float
    seconds: float

    @property
    def name(self) -> str:
        """Workload and cache size, as `--cells` picks them."""
        return cell_name(self.workload, self.share)

    @property
    def against_fair(self) -> float:
        """The hit ratio by bytes, in that of FAIR."""
        return self.ours.by_bytes / max(1e-9, self.ratios[FAIR].by_bytes)


def cell_name(workload: str, share: float) -> str:
    """Name a cell."""
    return f"{workload}@{share:g}"


def is_picked(name: str, patterns: Sequence[str]) -> bool:
    """Whether a cell's name begins as one of the patterns says, `*` and `?` standing for anything; no patterns pick all."""
    return not patterns or any(fnmatchcase(name, pattern + "*") for pattern in patterns)


# --- the report ------------------------------------------------------------------------------------------------------


class _Document(msgspec.Struct):
    settings: dict[str, str] = {}
    cells: list[Cell] = []


class Report:
    """The cells measured so far, in a file that a later call goes on with; in memory only without a path.

    Raises:
        ValueError: The file is no report, or was made under other settings.
    """

    def __init__(self, path: Path | None, settings: dict[str, str]) -> None:
        self._path = path
        self._document = _Document(settings)
        if path is not None and path.exists():
            self._document = msgspec.json.decode(path.read_bytes(), type=_Document)
            if self._document.settings != settings:
                raise ValueError(f"{path} was made with {self._document.settings}, not {settings}")

    @property
    def cells(self) -> list[Cell]:
        """All cells, in the order in which they were measured."""
        return self._document.cells

    def find(self, name: str, seed: int, scale: float) -> Cell | None:
        """Give a cell that was measured already."""
        found = (cell for cell in self.cells if (cell.name, cell.seed, cell.scale) == (name, seed, scale))
        return next(found, None)

    def add(self, cell: Cell) -> None:
        """Keep a cell, in the file as well: whole or not at all."""
        self.cells.append(cell)
        if self._path is not None:
            new = self._path.with_name(self._path.name + ".new")
            new.write_bytes(msgspec.json.format(msgspec.json.encode(self._document), indent=1))
            os.replace(new, self._path)  # noqa: PTH105


# --- goals -----------------------------------------------------------------------------------------------------------

EPOCHS_MIN: Final = 0.98
EPOCHS_SMALL_MIN: Final = 0.96
SMALL_SHARE: Final = 0.3
"""From this C/N on, shuffled epochs have to come to EPOCHS_MIN of it, below to EPOCHS_SMALL_MIN."""

LOOP_MIN: Final = 0.96
MIXED_MIN: Final = 1.5
MIXED_SHARE: Final = 0.3
FAIR_MIN: Final = 0.98
FAIR_NEVER_UNDER: Final = 0.94
FAIR_CELLS_MIN: Final = 0.95
"""In so many of all other cells the hit ratio must be FAIR_MIN of that of S3-FIFO on segments, and in none under FAIR_NEVER_UNDER."""

REWRITTEN_MAX: Final = 0.5
ACCESS_US_MAX: Final = 3.0


class Verdict(NamedTuple):
    """A hit ratio in that of something, and what was asked for."""

    value: float
    asked: float
    of: str

    @property
    def is_met(self) -> bool:
        """Whether it is enough."""
        return self.value >= self.asked

    def __str__(self) -> str:
        value = f"{self.value:.3f}" if self.value < 10 else "over 10"
        return f"{value} of {self.of}" + ("" if self.is_met else f", not {self.asked}")


def verdict_of(cell: Cell) -> Verdict | None:
    """Hold a cell against its goal; None where it is S3-FIFO that did not run."""
    if cell.goal is Goal.EPOCHS:
        asked = EPOCHS_MIN if cell.share >= SMALL_SHARE else EPOCHS_SMALL_MIN
        return Verdict(cell.ours.by_bytes / cell.share, asked, "C/N")
    if cell.goal is Goal.LOOP:
        return Verdict(cell.ours.by_bytes / cell.share, LOOP_MIN, "C/N")
    if not cell.ratios:
        return None
    if _is_mixed(cell):
        plain = cell.ratios["S3-FIFO"].by_bytes
        return Verdict(cell.ours.by_bytes / max(1e-9, plain), MIXED_MIN, "S3-FIFO")
    return Verdict(cell.against_fair, FAIR_MIN, FAIR)


def _is_mixed(cell: Cell) -> bool:
    return cell.goal is Goal.MIXED and cell.share == MIXED_SHARE


def _is_held_against_fair(cell: Cell) -> bool:
    return bool(cell.ratios) and (
        cell.goal is Goal.S3_FIFO or (cell.goal is Goal.MIXED and not _is_mixed(cell))
    )


def remarks(cells: Sequence[Cell]) -> Iterator[str]:
    """Say what the cells come to, those below S3-FIFO by themselves."""
    yield f"CPU of an access that hits: {median(cell.access_us for cell in cells):.2f} us, the median of {len(cells)} cells"
    both = [(cell, cell.fair_written) for cell in cells if cell.fair_written is not None]
    ours, fair = _rewritten(cells)
    if both:
        yield f"rewritten: {ours / 2**30:.2f} GiB, {FAIR} {fair / 2**30:.2f} GiB"
    for cell, fair_written in both:
        rewritten = cell.written.rewritten
        if rewritten > max(REWRITTEN_MAX * fair_written.rewritten, 0.05 * cell.cache_bytes):
            caches = (rewritten / cell.cache_bytes, fair_written.rewritten / cell.cache_bytes)
            yield f"{_label(cell)}: rewrites {caches[0]:.2f} caches, {FAIR} {caches[1]:.2f}"
    held = [cell for cell in cells if _is_held_against_fair(cell)]
    low = [cell for cell in held if cell.against_fair < FAIR_MIN]
    if held:
        yield f"under {FAIR_MIN} of {FAIR}: {len(low)} of {len(held)} cells"
    for cell in low:
        yield f"{_label(cell)}: {cell.against_fair:.3f} of {FAIR}"


def missed(cells: Sequence[Cell]) -> Iterator[str]:
    """Name each goal that the cells miss."""
    for cell in cells:
        verdict = verdict_of(cell)
        if _is_held_against_fair(cell):
            if cell.against_fair < FAIR_NEVER_UNDER:
                yield f"{_label(cell)}: {cell.against_fair:.3f} of {FAIR}, under {FAIR_NEVER_UNDER}"
        elif verdict is not None and not verdict.is_met:
            yield f"{_label(cell)}: {verdict}"
    held = [cell for cell in cells if _is_held_against_fair(cell)]
    enough = sum(cell.against_fair >= FAIR_MIN for cell in held)
    if enough < FAIR_CELLS_MIN * len(held):
        yield f"{enough} of {len(held)} cells come to {FAIR_MIN} of {FAIR}, not {FAIR_CELLS_MIN:.0%}"
    ours, fair = _rewritten(cells)
    if ours > REWRITTEN_MAX * fair:
        yield f"{ours / max(1, fair):.2f} of what {FAIR} rewrites, not {REWRITTEN_MAX}"
    access_us = median(cell.access_us for cell in cells)
    if access_us > ACCESS_US_MAX:
        yield f"an access takes {access_us:.2f} us, not {ACCESS_US_MAX}"


def _rewritten(cells: Sequence[Cell]) -> tuple[int, int]:
    both = [(cell.written, cell.fair_written) for cell in cells if cell.fair_written is not None]
    return sum(ours.rewritten for ours, _ in both), sum(fair.rewritten for _, fair in both)


def _label(cell: Cell) -> str:
    return f"{cell.name}, seed {cell.seed}"
