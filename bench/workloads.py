"""Requests as training makes them, and as other caches are measured with: numpy generators, by a seed and a scale.

Each workload draws from a generator of its own, seeded by the seed of the call and its name: what is added or left out changes
no other. Sizes of photographs are those of real ones; other sizes can be given by the caller, one that lists his own data.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from zlib import crc32

import numpy as np

from bench.hit_ratio_cells import Goal

KIB = 1024
MIB = 1024 * KIB

Integers = np.ndarray
Sizes = Callable[[np.random.Generator, int], Integers]

PHOTOGRAPH_SIZES = (
    *((0, 2_135), (2.5, 8_709), (5, 16_037), (10, 24_570), (15, 32_652), (20, 41_726), (25, 57_326)),
    *((30, 70_470), (35, 81_614), (40, 89_830), (45, 99_333), (50, 107_082), (55, 114_350), (60, 121_925)),
    *((65, 130_826), (70, 137_821), (75, 145_991), (80, 157_174), (85, 170_606), (90, 187_870)),
    *((95, 211_865), (97.5, 238_202), (99, 373_682), (99.5, 444_460), (100, 723_977)),
)
"""Percentiles of the bytes of ImageNet's photographs: of one of each of its 1000 classes, as github.com/EliSchwartz/imagenet-sample-images
holds them. Their mean is 109,576; MLPerf Storage gives 114,660 for the whole set."""


@dataclass(frozen=True)
class Workload:
    """A sequence of reads of whole objects.

    Attributes:
        goal: What the policy is held against.
        requests: Numbers of objects, in the order of the reads.
        sizes: Bytes of each object.
        groups: The prefix of each object, by number.
        shares: The cache sizes to try, as shares of all bytes read.
        epoch_reads: How many reads an epoch has, where every item is read once in each; 0 where not.
    """

    name: str
    goal: Goal
    requests: Integers
    sizes: Integers
    groups: Integers
    shares: tuple[float, ...]
    epoch_reads: int = 0


class Reads(NamedTuple):
    """What a generator makes: see `Workload`."""

    requests: Integers
    sizes: Integers
    groups: Integers | None = None
    epoch_reads: int = 0


class Scene(NamedTuple):
    """What a generator makes reads of: its own random numbers, the scale, and sizes for photographs."""

    rng: np.random.Generator
    scale: float
    sizes: Sizes

    def count(self, at_scale_1: int) -> int:
        """Scale a number of objects."""
        return int(at_scale_1 * self.scale)

    def photographs(self, count: int) -> Integers:
        """Draw sizes."""
        return self.sizes(self.rng, count)


def photograph_sizes(rng: np.random.Generator, count: int) -> Integers:
    """Draw from PHOTOGRAPH_SIZES."""
    percents, sizes = zip(*PHOTOGRAPH_SIZES, strict=True)
    return np.interp(100 * rng.random(count), percents, sizes).astype(np.int64)


def sizes_like(known: Sequence[int]) -> Sizes:
    """Draw from sizes that were counted somewhere."""
    array = np.asarray(known, np.int64)
    return lambda rng, count: rng.choice(array, count)


def make(name: str, seed: int, scale: float, sizes: Sizes = photograph_sizes) -> Workload:
    """Make one of WORKLOADS; scale 1 is 120,000 photographs."""
    goal, shares, generate = WORKLOADS[name]
    rng = np.random.default_rng([seed, crc32(name.encode())])
    reads = generate(Scene(rng, scale, sizes))
    groups = np.zeros(len(reads.sizes), np.int64) if reads.groups is None else reads.groups
    return Workload(name, goal, reads.requests, reads.sizes, groups, shares, reads.epoch_reads)


# --- orders of reading -----------------------------------------------------------------------------------------------


def shuffled(rng: np.random.Generator, count: int, epochs: int, base: int = 0) -> Integers:
    """Every item once an epoch, each epoch in an order of its own."""
    return np.concatenate([rng.permutation(count) + base for _ in range(epochs)])


def zipf(rng: np.random.Generator, ranked: Integers, reads: int, exponent: float) -> Integers:
    """Independent reads, the n-th of `ranked` in proportion to n**-exponent."""
    weights = 1 / np.arange(1, len(ranked) + 1) ** exponent
    chosen: Integers = ranked[rng.choice(len(ranked), reads, p=weights / weights.sum())]
    return chosen


def interleaved(rng: np.random.Generator, streams: list[Integers]) -> Integers:
    """Merge streams so that all end together."""
    lengths = [len(stream) for stream in streams]
    labels = np.concatenate([np.full(length, i) for i, length in enumerate(lengths)])
    when = np.concatenate([(np.arange(n) + rng.random(n) * 0.5) / n for n in lengths])
    labels = labels[np.argsort(when, kind="stable")]
    merged = np.empty(len(labels), np.int64)
    for i, stream in enumerate(streams):
        merged[labels == i] = stream
    return merged


def _two_groups(first: int, second: int) -> Integers:
    return np.concatenate([np.zeros(first), np.ones(second)]).astype(np.int64)


# --- every item once an epoch ----------------------------------------------------------------------------------------


def _epochs(scene: Scene) -> Reads:
    count = scene.count(120_000)
    return Reads(shuffled(scene.rng, count, 6), scene.photographs(count), epoch_reads=count)


def _loop(scene: Scene) -> Reads:
    count = scene.count(120_000)
    return Reads(np.tile(np.arange(count), 6), scene.photographs(count), epoch_reads=count)


def _shards(scene: Scene) -> Reads:
    """Archives of some 50 MiB, read whole."""
    count = max(60, scene.count(1_200))
    sizes = np.clip(scene.rng.normal(50, 4, count), 35, 60).astype(np.int64) * MIB
    return Reads(shuffled(scene.rng, count, 8), sizes, epoch_reads=count)


def _ranges(scene: Scene) -> Reads:
    """Archives in an order of their own each epoch, each read through in ranges of 1 MiB."""
    count, ranges = max(30, scene.count(600)), 50
    orders = [scene.rng.permutation(count)[:, None] * ranges + np.arange(ranges) for _ in range(6)]
    requests = np.concatenate([order.ravel() for order in orders])
    return Reads(requests, np.full(count * ranges, MIB), epoch_reads=count * ranges)


# --- by popularity ---------------------------------------------------------------------------------------------------


def _zipf(exponent: float) -> Callable[[Scene], Reads]:
    def generate(scene: Scene) -> Reads:
        ranked = scene.rng.permutation(scene.count(120_000))
        requests = zipf(scene.rng, ranked, scene.count(800_000), exponent)
        return Reads(requests, scene.photographs(len(ranked)))

    return generate


def _drift(scene: Scene) -> Reads:
    """Zipf 1.0 whose most popular twentieth changes places with others twenty times."""
    rng, count = scene.rng, scene.count(120_000)
    ranked, parts = rng.permutation(count), []
    for _ in range(20):
        parts.append(zipf(rng, ranked, scene.count(40_000), 1.0))
        ranked = ranked.copy()
        for place, other in enumerate(rng.permutation(count)[: count // 20].tolist()):
            ranked[place], ranked[other] = ranked[other], ranked[place]
    return Reads(np.concatenate(parts), scene.photographs(count))


def _uniform(scene: Scene) -> Reads:
    count = scene.count(120_000)
    return Reads(scene.rng.integers(0, count, scene.count(700_000)), scene.photographs(count))


def _scan_and_hot(scene: Scene) -> Reads:
    rng, hot, scanned = scene.rng, scene.count(15_000), scene.count(300_000)
    reads = zipf(rng, rng.permutation(hot), scene.count(400_000), 0.7)
    return Reads(interleaved(rng, [reads, np.arange(scanned) + hot]), scene.photographs(hot + scanned))


def _loop_and_hot(scene: Scene) -> Reads:
    rng, hot, looped = scene.rng, scene.count(15_000), scene.count(60_000)
    reads = zipf(rng, rng.permutation(hot), scene.count(400_000), 0.8)
    both = interleaved(rng, [reads, np.tile(np.arange(looped) + hot, 6)])
    return Reads(both, scene.photographs(hot + looped))


# --- mixtures --------------------------------------------------------------------------------------------------------


def _training_run(prefixes: int) -> Callable[[Scene], Reads]:
    """A dataset in epochs, a replay buffer (one appended, three of the last read), checkpoints in parts."""

    def generate(scene: Scene) -> Reads:
        rng, count, window = scene.rng, scene.count(60_000), scene.count(8_000)
        dataset = shuffled(rng, count, 6)
        appended = len(dataset) // 5
        replay: list[int] = []
        for i in range(appended):
            replay.append(count + i)
            replay += [count + max(0, i - int(x * min(i + 1, window))) for x in rng.random(3)]
        reads = interleaved(rng, [dataset, np.array(replay)])
        checkpoints, parts, base = 24, max(4, scene.count(40)), count + appended
        cuts = np.linspace(0, len(reads), checkpoints + 1).astype(int)
        pieces: list[Integers] = []
        for i in range(checkpoints):
            written = base + i * parts + np.arange(parts)
            pieces += [reads[cuts[i] : cuts[i + 1]], written]
            if i % 4 == 3:
                pieces.append(written)
        saved = checkpoints * parts
        buffer, saves = np.full(appended, 64 * KIB), np.full(saved, 8 * MIB)
        sizes = np.concatenate([scene.photographs(count), buffer, saves])
        groups = np.concatenate([np.zeros(count), np.ones(appended), np.full(saved, 2)]).astype(np.int64)
        return Reads(np.concatenate(pieces), sizes, groups if prefixes == 3 else None)

    return generate


def _two_jobs(phase: float) -> Callable[[Scene], Reads]:
    """Two jobs on one dataset, each in orders of its own, the second so much of an epoch behind."""

    def generate(scene: Scene) -> Reads:
        rng, count = scene.rng, scene.count(80_000)
        first, second, lag = shuffled(rng, count, 5), shuffled(rng, count, 5), int(phase * count)
        both = interleaved(rng, [first[lag:], second[: len(second) - lag]])
        requests = np.concatenate([first[:lag], both, second[len(second) - lag :]])
        return Reads(requests, scene.photographs(count))

    return generate


def _two_datasets(scene: Scene) -> Reads:
    """Two at once, one twice as fast."""
    rng, count = scene.rng, scene.count(60_000)
    requests = interleaved(rng, [shuffled(rng, count, 6), shuffled(rng, count, 3, count)])
    return Reads(requests, scene.photographs(2 * count), _two_groups(count, count))


def _validation(scene: Scene) -> Reads:
    """A small set that is read through after each epoch of the large one."""
    rng, count = scene.rng, scene.count(60_000)
    small = count // 10
    epochs = [np.concatenate([rng.permutation(count), count + rng.permutation(small)]) for _ in range(6)]
    return Reads(np.concatenate(epochs), scene.photographs(count + small), _two_groups(count, small))


# --- changes ---------------------------------------------------------------------------------------------------------


def _new_dataset(prefixes: int) -> Callable[[Scene], Reads]:
    """Four epochs of one dataset, five of the next."""

    def generate(scene: Scene) -> Reads:
        rng, count = scene.rng, scene.count(60_000)
        requests = np.concatenate([shuffled(rng, count, 4), shuffled(rng, count, 5, count)])
        groups = _two_groups(count, count) if prefixes == 2 else None
        return Reads(requests, scene.photographs(2 * count), groups)

    return generate


def _epochs_and_zipf(prefixes: int) -> Callable[[Scene], Reads]:
    """Three epochs, Zipf over other items, and both again; with no prefixes, Zipf over the same items."""

    def generate(scene: Scene) -> Reads:
        rng, count = scene.rng, scene.count(60_000)
        base = count if prefixes else 0
        ranked = rng.permutation(count) + base
        parts = [
            part for _ in range(2) for part in (shuffled(rng, count, 3), zipf(rng, ranked, 3 * count, 1.0))
        ]
        groups = _two_groups(count, count) if prefixes == 2 else None
        return Reads(np.concatenate(parts), scene.photographs(count + base), groups)

    return generate


def _sliding(scene: Scene) -> Reads:
    """A dataset of which a tenth is exchanged each epoch."""
    count = scene.count(60_000)
    requests = np.concatenate([scene.rng.permutation(count) + int(i * 0.1 * count) for i in range(6)])
    return Reads(requests, scene.photographs(int(requests.max()) + 1))


WORKLOADS: dict[str, tuple[Goal, tuple[float, ...], Callable[[Scene], Reads]]] = {
    "epochs-jpeg": (Goal.EPOCHS, (0.1, 0.3, 0.5, 0.7, 0.9), _epochs),
    "epochs-shard": (Goal.EPOCHS, (0.1, 0.3, 0.6), _shards),
    "epochs-range": (Goal.EPOCHS, (0.1, 0.3), _ranges),
    "loop-jpeg": (Goal.LOOP, (0.1, 0.3, 0.8), _loop),
    "zipf-0.8": (Goal.S3_FIFO, (0.02, 0.1, 0.3), _zipf(0.8)),
    "zipf-1.0": (Goal.S3_FIFO, (0.02, 0.1, 0.3), _zipf(1.0)),
    "zipf-1.2": (Goal.S3_FIFO, (0.02, 0.1, 0.3), _zipf(1.2)),
    "zipf-drift": (Goal.S3_FIFO, (0.05, 0.2), _drift),
    "uniform": (Goal.S3_FIFO, (0.1, 0.3), _uniform),
    "scan+hot": (Goal.S3_FIFO, (0.01, 0.03, 0.1), _scan_and_hot),
    "loop+hot": (Goal.S3_FIFO, (0.1, 0.3), _loop_and_hot),
    "mixed-1prefix": (Goal.S3_FIFO, (0.1, 0.3), _training_run(1)),
    "mixed-3prefix": (Goal.MIXED, (0.1, 0.3), _training_run(3)),
    "two-jobs-0.05": (Goal.S3_FIFO, (0.1, 0.3), _two_jobs(0.05)),
    "two-jobs-0.5": (Goal.S3_FIFO, (0.1, 0.3), _two_jobs(0.5)),
    "two-datasets": (Goal.S3_FIFO, (0.1, 0.3), _two_datasets),
    "train+validation": (Goal.S3_FIFO, (0.1, 0.3), _validation),
    "new-dataset-1prefix": (Goal.S3_FIFO, (0.1, 0.25), _new_dataset(1)),
    "new-dataset-2prefix": (Goal.S3_FIFO, (0.1, 0.25), _new_dataset(2)),
    "epochs-zipf-same": (Goal.S3_FIFO, (0.1, 0.3), _epochs_and_zipf(0)),
    "epochs-zipf-1prefix": (Goal.S3_FIFO, (0.1, 0.25), _epochs_and_zipf(1)),
    "epochs-zipf-2prefix": (Goal.S3_FIFO, (0.1, 0.25), _epochs_and_zipf(2)),
    "sliding": (Goal.S3_FIFO, (0.1, 0.3), _sliding),
}
"""By name: the goal, the cache sizes to try, and the generator."""
