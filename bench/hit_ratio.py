"""`python -m bench.hit_ratio`: how near the eviction policy comes to what is possible, and to others.

The policy that ships decides over the segment store that ships (`bench/replay.py`). Beside it: S3-FIFO under the same cost of
segments, and from libcachesim, which evicts single objects and pays no such cost, LRU, SIEVE and S3-FIFO. Where every item is read once
an epoch, no policy that waits for reads can hit more than C/N: of N bytes, C are here when the next epoch begins.

    pip install 'forebay[bench]'
    python -m bench.hit_ratio --seed 1 7 --report cells.json        everything, for two seeds; a second call goes on
    python -m bench.hit_ratio --cells zipf 'epochs-*@0.1' --list    some of it
    python -m bench.hit_ratio --trace web12.txt                     a public trace: `bench/traces.py` says which, and where they are
    python -m bench.hit_ratio --set ENTRIES_MAX=1024 --ours-only    another value of one of the policy's constants

A row comes as soon as its cell is measured, ratios `by bytes (by objects)`; for epochs and loops they count from the third epoch on.
`written` and `rewritten` are in caches, ours before that of S3-FIFO on segments. Below the table stands what all cells of the report
come to, and which goals they miss; the exit status is 1 where they miss any.
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import libcachesim
import numpy as np

from bench import workloads
from bench.access_cost import hit_cost
from bench.hit_ratio_cells import (
    FAIR,
    Cell,
    Goal,
    Ratios,
    Report,
    Written,
    cell_name,
    is_picked,
    missed,
    remarks,
    verdict_of,
)
from bench.replay import CacheReplay, Outcome
from bench.segment_s3fifo import SegmentS3Fifo
from bench.traces import read_trace
from bench.workloads import WORKLOADS, Workload
from storage import (
    gittins_policy,
    residents as extents,
    reuse,
    reuse_lessons,
    segment_files,
    segment_ranking,
)
from storage.eviction import EvictionPolicy, ExtentUse
from storage.gittins_policy import GittinsPolicy
from storage.identities import identity_of
from storage.segment_files import segment_bytes_of
from storage.types import ObjectName

OTHERS: dict[str, Callable[..., libcachesim.CacheBase]] = {
    "LRU": libcachesim.LRU,
    "SIEVE": libcachesim.Sieve,
    "S3-FIFO": libcachesim.S3FIFO,
}
COLUMNS = (
    *("workload", "C/N", "seed", "segments", "ours", FAIR),
    *OTHERS,
    *("written", "rewritten", "comes to"),
)
SEGMENTS_MIN = 40
OBJECTS_MIN = 20
"""A cache of fewer segments, or of fewer objects, means nothing."""

TUNABLE = {
    name: module
    for module, names in {
        gittins_policy: ("ADMISSION_MARGIN", "STREAMS_SEGMENTS_MIN"),
        segment_ranking: ("FREED_SHARE_MIN", "LOOKS", "SAMPLE_EXTENTS", "WRITE_COST"),
        reuse_lessons: ("LEARN_READS_MAX", "LEARN_READS_MIN", "LEARN_SHARE", "RELEASE_CACHES"),
        reuse: ("ENTRIES_MAX", "EVENTS_MIN"),
        extents: ("GRAIN_BYTES",),
        segment_files: ("SEGMENTS_A_CACHE",),
    }.items()
    for name in names
}


class Job(NamedTuple):
    """A cell to measure."""

    workload: str
    share: float
    seed: int
    scale: float
    load: Callable[[], Workload]

    @property
    def name(self) -> str:
        """As `--cells` picks it."""
        return cell_name(self.workload, self.share)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what is asked for and not in the report yet, print it as it comes, and judge all of the report."""
    parser = _parser()
    options = parser.parse_args(arguments)
    jobs = [*_jobs(options)]
    if options.list:
        print("\n".join(f"{job.name}, seed {job.seed}" for job in jobs))
        return 0
    settings = {name: f"{_set(name, value):g}" for name, value in options.set}
    settings |= {"sizes": options.sizes.name} if options.sizes else {}
    settings |= {"survivors": "dropped"} if options.drop_survivors else {}
    settings |= {"others": "left out"} if options.ours_only else {}
    try:
        report = Report(options.report, settings)
    except ValueError as error:
        parser.error(str(error))
    print(f"scale {options.scale}; {settings or 'as shipped'}\n")
    print("| " + " | ".join(COLUMNS) + " |")
    print("|---" * len(COLUMNS) + "|", flush=True)
    for job in jobs:
        cell = report.find(job.name, job.seed, job.scale)
        if cell is None:
            cell = measure(job, is_alone=options.ours_only, keeps=not options.drop_survivors)
            if cell is None:
                print(f"{job.name} is left out: the cache would be too small to mean anything", flush=True)
                continue
            report.add(cell)
        print(row_of(cell), flush=True)
    return judge(report.cells)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench.hit_ratio",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--seed", type=int, nargs="+", default=[1])
    add("--scale", type=float, default=0.25, help="1 is 120,000 photographs")
    add("--cells", nargs="*", metavar="PATTERN", help="only those whose workload@share begins so")
    add("--list", action="store_true", help="name the cells, measure none")
    add("--report", type=Path, metavar="FILE", help="JSON, kept after each cell, and gone on with")
    add("--sizes", type=Path, metavar="FILE", help="bytes of photographs, one a line, instead of ImageNet's")
    add("--trace", type=Path, nargs="*", default=[], metavar="FILE", help="see bench/traces.py")
    add("--shares", type=float, nargs="*", default=[0.02, 0.1, 0.3], help="cache sizes for traces")
    add("--set", type=_assignment, nargs="*", default=[], metavar="NAME=VALUE", help=", ".join(TUNABLE))
    add("--ours-only", action="store_true", help="no other policies, nor what is judged by them")
    add("--drop-survivors", action="store_true", help="reclaim keeps nothing of a segment")
    return parser


def _assignment(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    if name not in TUNABLE:
        raise argparse.ArgumentTypeError(f"{name} is not one of {', '.join(TUNABLE)}")
    return name, float(value)


def _set(name: str, value: float) -> float:
    """Give one of the policy's constants another value."""
    module = TUNABLE[name]
    setattr(module, name, type(getattr(module, name))(value))
    return value


# --- what there is to measure ----------------------------------------------------------------------------------------


def _jobs(options: argparse.Namespace) -> Iterator[Job]:
    """Give the cells of the command line; beside traces only those that are asked for."""
    patterns = options.cells if options.cells is not None else ["-"] * bool(options.trace)
    for seed in options.seed:
        for name, (_, shares, _) in WORKLOADS.items():
            load = partial(_generated, name, seed, options.scale, options.sizes)
            jobs = (Job(name, share, seed, options.scale, load) for share in shares)
            yield from (job for job in jobs if is_picked(job.name, patterns))
    for path in options.trace:
        load = partial(_recorded, path)
        yield from (Job(f"trace-{path.name.split('.')[0]}", share, 0, 1.0, load) for share in options.shares)


@lru_cache(maxsize=1)
def _generated(name: str, seed: int, scale: float, sizes: Path | None) -> Workload:
    if sizes is None:
        return workloads.make(name, seed, scale)
    known = [int(line) for line in sizes.read_text().split()]
    return workloads.make(name, seed, scale, workloads.sizes_like(known))


@lru_cache(maxsize=1)
def _recorded(path: Path) -> Workload:
    trace = read_trace(path)
    arrays = (np.asarray(column, np.int64) for column in (trace.requests, trace.sizes, trace.groups))
    return Workload(f"trace-{trace.name}", Goal.S3_FIFO, *arrays, shares=())


# --- measuring -------------------------------------------------------------------------------------------------------


def measure(job: Job, *, is_alone: bool, keeps: bool) -> Cell | None:
    """Replay one cell; None where the cache would be too small to mean anything."""
    begun = time.monotonic()
    workload = job.load()
    capacity = int(job.share * int(workload.sizes[np.unique(workload.requests)].sum()))
    segment = segment_bytes_of(capacity)
    mean = workload.sizes[workload.requests].mean()
    if capacity < SEGMENTS_MIN * segment or capacity < OBJECTS_MIN * mean:
        return None
    uses = [
        ExtentUse(ObjectName("bench", f"g{group}/{number}"), number + 1, 0, size)
        for number, (group, size) in enumerate(
            zip(workload.groups.tolist(), workload.sizes.tolist(), strict=True)
        )
    ]
    policy = GittinsPolicy(capacity_bytes=capacity, segment_bytes=segment)
    ours = _replay(policy, workload, uses, capacity, segment, keeps=keeps)
    ratios, fair_written = {}, None
    if not is_alone:
        fair_policy = SegmentS3Fifo(capacity_bytes=capacity, segment_bytes=segment)
        fair = _replay(fair_policy, workload, uses, capacity, segment, keeps=True)
        fair_written = Written(fair.admitted_bytes, fair.rewritten_bytes)
        ratios = {FAIR: Ratios(fair.byte_ratio, fair.object_ratio)}
        ratios |= {name: _simulated(make, workload, capacity) for name, make in OTHERS.items()}
    return Cell(
        workload=job.workload,
        share=job.share,
        seed=job.seed,
        scale=job.scale,
        goal=workload.goal,
        reads=len(workload.requests),
        cache_bytes=capacity,
        segments=capacity // segment,
        ours=Ratios(ours.byte_ratio, ours.object_ratio),
        written=Written(ours.admitted_bytes, ours.rewritten_bytes),
        ratios=ratios,
        fair_written=fair_written,
        access_us=_access_us(policy, uses),
        seconds=time.monotonic() - begun,
    )


def _counted_from(workload: Workload) -> int:
    return 2 * workload.epoch_reads


def _replay(
    policy: EvictionPolicy,
    workload: Workload,
    uses: Sequence[ExtentUse],
    capacity: int,
    segment: int,
    *,
    keeps: bool,
) -> Outcome:
    replay = CacheReplay(policy, uses, capacity_bytes=capacity, segment_bytes=segment)
    replay.carries_out_keep = keeps
    begin = _counted_from(workload)
    for count, number in enumerate(workload.requests.tolist()):
        if count == begin and count:
            replay.count_hits_anew()
        replay.read(number)
    return replay.outcome


def _simulated(make: Callable[..., libcachesim.CacheBase], workload: Workload, capacity: int) -> Ratios:
    """Give the hit ratios of a policy on single objects."""
    cache = make(capacity)
    request = libcachesim.Request()
    begin = _counted_from(workload)
    hits = hit_bytes = read_bytes = 0
    sizes = workload.sizes.tolist()
    for count, number in enumerate(workload.requests.tolist()):
        request.obj_id, request.obj_size = number, sizes[number]
        is_hit = cache.get(request)
        if count >= begin:
            read_bytes += sizes[number]
            if is_hit:
                hits += 1
                hit_bytes += sizes[number]
    return Ratios(hit_bytes / max(1, read_bytes), hits / max(1, len(workload.requests) - begin))


def _access_us(policy: GittinsPolicy, uses: Sequence[ExtentUse]) -> float:
    """Give the CPU time of an access that hits, learning included, after all that the policy has been through."""
    use_of = {identity_of(use.version_id, 0): use for use in uses}
    places = []
    for segment_id, residents in policy._segments.items():
        for offset, identity, length in zip(
            residents.offsets, residents.identities, residents.lengths, strict=True
        ):
            use = use_of.get(identity)
            if use is not None and use.length == length:
                places.append((use, segment_id, offset))
    if not places:
        return 0.0
    rng = np.random.default_rng(1)
    order = [places[i] for i in rng.integers(0, len(places), 20_000).tolist()]
    return hit_cost(policy, [(segment_id, offset, use.length) for use, segment_id, offset in order]).hit_us


# --- the table -------------------------------------------------------------------------------------------------------


def row_of(cell: Cell) -> str:
    """Give a cell's line of the table."""
    verdict = verdict_of(cell)
    written, fair = cell.written, cell.fair_written
    both = [written] if fair is None else [written, fair]
    columns = (
        cell.workload,
        f"{cell.share:g}",
        f"{cell.seed}",
        f"{cell.segments}",
        *(_shown(ratios) for ratios in (cell.ours, *(cell.ratios.get(name) for name in (FAIR, *OTHERS)))),
        " / ".join(f"{(one.admitted + one.rewritten) / cell.cache_bytes:.1f}" for one in both),
        " / ".join(f"{one.rewritten / cell.cache_bytes:.2f}" for one in both),
        f"{verdict or ''}",
    )
    return "| " + " | ".join(columns) + " |"


def _shown(ratios: Ratios | None) -> str:
    return "" if ratios is None else f"{ratios.by_bytes:.4f} ({ratios.by_objects:.4f})"


def judge(cells: Sequence[Cell]) -> int:
    """Print what the cells come to; 1 where they miss a goal."""
    if not cells:
        print("nothing was measured")
        return 1
    print()
    for line in remarks(cells):
        print(line)
    goals = [*missed(cells)]
    for line in goals:
        print(f"GOAL MISSED: {line}")
    return int(bool(goals))


if __name__ == "__main__":
    sys.exit(main())
