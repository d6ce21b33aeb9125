"""Requests as training makes them, and as other caches are measured with: numpy generators, by a seed and a scale."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

KIB = 1024
MIB = 1024 * KIB

Integers = np.ndarray


@dataclass(frozen=True)
class Workload:
    """A sequence of reads of whole objects.

    Attributes:
        kind: `epochs`, `loop`, `mixed` or `other`: which goal holds.
        requests: Numbers of objects, in the order of the reads.
        sizes: Bytes of each object.
        groups: The prefix of each object, by number.
        shares: The cache sizes to try, as shares of all bytes read.
        epoch_reads: How many reads an epoch has; 0 without epochs.
        part_bytes: Objects are read in ranges of so many bytes; 0 whole.
    """

    name: str
    kind: str
    requests: Integers
    sizes: Integers
    groups: Integers
    shares: tuple[float, ...]
    epoch_reads: int = 0


def jpeg_sizes(rng: np.random.Generator, count: int) -> Integers:
    """Sizes of photographs as training sets hold them: lognormal about 120 KiB."""
    return (np.clip(rng.lognormal(np.log(120), 0.4, count), 50, 300) * KIB).astype(np.int64)


def shuffled(rng: np.random.Generator, count: int, epochs: int, base: int = 0) -> Integers:
    """Every item once an epoch, each epoch in an order of its own."""
    return np.concatenate([rng.permutation(count) + base for _ in range(epochs)])


def zipf(rng: np.random.Generator, count: int, reads: int, exponent: float, base: int = 0) -> Integers:
    """Independent reads, the n-th most popular item in proportion to n**-exponent."""
    weights = 1 / np.arange(1, count + 1) ** exponent
    return rng.permutation(count)[rng.choice(count, reads, p=weights / weights.sum())] + base


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


def all_workloads(seed: int, scale: float) -> Iterator[Workload]:
    """Give all workloads; scale 1 is 120,000 photographs."""
    rng = np.random.default_rng(seed)
    yield from _epochs(rng, scale)
    yield from _popularity(rng, scale)
    yield from _mixtures(rng, scale)
    yield from _changes(rng, scale)


def _one_group(count: int) -> Integers:
    return np.zeros(count, np.int64)


def _epochs(rng: np.random.Generator, scale: float) -> Iterator[Workload]:
    count = int(120_000 * scale)
    sizes, one = jpeg_sizes(rng, count), _one_group(count)
    shares = (0.1, 0.3, 0.5, 0.7, 0.9)
    yield Workload("epochs-jpeg", "epochs", shuffled(rng, count, 6), sizes, one, shares, count)
    yield Workload("loop-jpeg", "loop", np.tile(np.arange(count), 6), sizes, one, (0.1, 0.3, 0.8), count)
    shards = max(60, int(1_200 * scale))
    shard_sizes = np.clip(rng.normal(50, 4, shards), 35, 60).astype(np.int64) * MIB
    requests = shuffled(rng, shards, 8)
    yield Workload(
        "epochs-shard", "epochs", requests, shard_sizes, _one_group(shards), (0.1, 0.3, 0.6), shards
    )
    small, ranges = max(30, int(600 * scale)), 50
    requests = np.concatenate(
        [(rng.permutation(small)[:, None] * ranges + np.arange(ranges)).ravel() for _ in range(6)]
    )
    total = small * ranges
    sizes = np.full(total, MIB)
    yield Workload("epochs-range", "epochs", requests, sizes, _one_group(total), (0.1, 0.3), total)


def _popularity(rng: np.random.Generator, scale: float) -> Iterator[Workload]:
    count = int(120_000 * scale)
    sizes, one = jpeg_sizes(rng, count), _one_group(count)
    for exponent in (0.8, 1.0, 1.2):
        requests = zipf(rng, count, int(800_000 * scale), exponent)
        yield Workload(f"zipf-{exponent}", "other", requests, sizes, one, (0.02, 0.1, 0.3))
    requests = rng.integers(0, count, int(700_000 * scale))
    yield Workload("uniform", "other", requests, sizes, one, (0.1, 0.3))
    hot, scanned = int(15_000 * scale), int(300_000 * scale)
    requests = interleaved(rng, [zipf(rng, hot, int(400_000 * scale), 0.7), np.arange(scanned) + hot])
    both = hot + scanned
    yield Workload("scan+hot", "other", requests, jpeg_sizes(rng, both), _one_group(both), (0.01, 0.03, 0.1))
    looped = int(60_000 * scale)
    requests = interleaved(
        rng, [zipf(rng, hot, int(400_000 * scale), 0.8), np.tile(np.arange(looped) + hot, 6)]
    )
    both = hot + looped
    yield Workload("loop+hot", "other", requests, jpeg_sizes(rng, both), _one_group(both), (0.1, 0.3))


def _mixtures(rng: np.random.Generator, scale: float) -> Iterator[Workload]:
    for prefixes in (1, 3):
        requests, sizes, groups = _training_run(rng, scale)
        kind = "mixed" if prefixes == 3 else "other"
        groups = groups if prefixes == 3 else groups * 0
        yield Workload(f"mixed-{prefixes}prefix", kind, requests, sizes, groups, (0.1, 0.3))
    count = int(80_000 * scale)
    sizes = jpeg_sizes(rng, count)
    for phase in (0.05, 0.5):
        first, second, lag = shuffled(rng, count, 5), shuffled(rng, count, 5), int(phase * count)
        both = interleaved(rng, [first[lag:], second[: len(second) - lag]])
        requests = np.concatenate([first[:lag], both, second[len(second) - lag :]])
        yield Workload(f"two-jobs-{phase}", "other", requests, sizes, _one_group(count), (0.1, 0.3))


def _training_run(rng: np.random.Generator, scale: float) -> tuple[Integers, Integers, Integers]:
    """A dataset in epochs, a replay buffer (one appended, three of the last read), checkpoints in parts."""
    count, epochs, window = int(60_000 * scale), 6, int(8_000 * scale)
    dataset = shuffled(rng, count, epochs)
    appended = len(dataset) // 5
    replay: list[int] = []
    for i in range(appended):
        replay.append(count + i)
        replay += [count + max(0, i - int(x * min(i + 1, window))) for x in rng.random(3)]
    reads = interleaved(rng, [dataset, np.array(replay)])
    checkpoints, parts, base = 24, max(4, int(40 * scale)), count + appended
    cuts = np.linspace(0, len(reads), checkpoints + 1).astype(int)
    pieces: list[Integers] = []
    for i in range(checkpoints):
        written = base + i * parts + np.arange(parts)
        pieces += [reads[cuts[i] : cuts[i + 1]], written]
        if i % 4 == 3:
            pieces.append(written)
    saved = checkpoints * parts
    sizes = np.concatenate([jpeg_sizes(rng, count), np.full(appended, 64 * KIB), np.full(saved, 8 * MIB)])
    groups = np.concatenate([np.zeros(count), np.ones(appended), np.full(saved, 2)]).astype(np.int64)
    return np.concatenate(pieces), sizes, groups


def _changes(rng: np.random.Generator, scale: float) -> Iterator[Workload]:
    count = int(60_000 * scale)
    two = np.concatenate([np.zeros(count), np.ones(count)]).astype(np.int64)
    for prefixes in (1, 2):
        groups = two if prefixes == 2 else two * 0
        requests = np.concatenate([shuffled(rng, count, 4), shuffled(rng, count, 5, count)])
        name = f"new-dataset-{prefixes}prefix"
        yield Workload(name, "other", requests, jpeg_sizes(rng, 2 * count), groups, (0.1, 0.25))
        parts = [shuffled(rng, count, 3), zipf(rng, count, 3 * count, 1.0, count)] * 2
        name = f"epochs-zipf-{prefixes}prefix"
        yield Workload(name, "other", np.concatenate(parts), jpeg_sizes(rng, 2 * count), groups, (0.1, 0.25))
    requests = np.concatenate([rng.permutation(count) + int(i * 0.1 * count) for i in range(6)])
    total = int(requests.max()) + 1
    yield Workload("sliding", "other", requests, jpeg_sizes(rng, total), _one_group(total), (0.1, 0.3))
    requests = interleaved(rng, [shuffled(rng, count, 6), shuffled(rng, count, 3, count)])
    yield Workload("two-datasets", "other", requests, jpeg_sizes(rng, 2 * count), two, (0.1, 0.3))
