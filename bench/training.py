"""`python -m bench.training`: three shuffled epochs of a data loader, with and without the gateway, and while the origin is away.

A loader (`bench/loader.py`: PyTorch's DataLoader, or plain processes of the same shape) of 8 workers reads samples in an order drawn
from a seed, writes augmented ones into a replay buffer and reads some of them back; the trainer computes for a fixed time a step, and
writes a checkpoint now and then. The origin answers after 30 ms and lets 300 requests/s through; above that it answers 503 SlowDown.
The time of a step is fixed beforehand so that direct spends half of its time waiting: half of the time in which 8 workers get a batch
that costs 30 ms and `--overhead` a request. Parts:

    direct       the origin itself
    read         the gateway as a read cache (`write = through`), C/N = 1.1
    read-write   as a read and write cache (`write = back`), C/N = 1.1
    half         the same at C/N = 0.5
    half-order   the same, with each epoch's order handed to `forebay warm --order` at its begin
    outage       as `read-write`; in the middle of the second epoch the origin goes away for `--outage` seconds: it cuts every connection.
                 Epochs go on until it is back, and one more is read.

C is `cache_size`, N the bytes of samples, replay buffer and checkpoints. Columns: seconds of the epoch; seconds of it in which the trainer
waited for a batch, and their share; seconds of data, that is how long each worker had requests for samples under way; hit ratios of
samples and of what is read back; requests and bytes at the origin, 503s among them; median and 99th percentile of acknowledgements.

The bound on data at C/N: (1 - C/N) samples * max(latency / workers, 1 / rate), since no more than C/N of an epoch in which each sample
is read once can be hits; and on waiting, what that exceeds the time of computing by. With the order handed over it is asked for ahead
of the workers, and only the rate bounds it. Clients, the loopback and the origin's own work come on top of the latency: where `direct` is
measured too, the bound is also told with what a request of it took.

A machine that has other work to do measures that. Times that are ten times as long (`--latency 0.3 --rate 30 --overhead 0.02`) leave it a
tenth of the share.

After each part with a write cache all is flushed, and the origin must hold the last acknowledged state of every key. Goals (the
exit status): direct to read-write in epochs 2 and 3, waiting less by 68 %, throughput 35 % more, acknowledgements of samples in 20 ms, 85 %
hits in replay; data within 10 % of its bound in `half` and `half-order`; no error in `outage`; nothing lost, no byte wrong.

    python -m bench.training [--parts direct,read,read-write,half,half-order,outage] [--samples N] [--loader torch|plain] ...
"""

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.loader import (
    AUGMENTED_EVERY,
    BUCKET,
    CLIENTS,
    KEY,
    Done,
    Loader,
    PlainLoader,
    TorchLoader,
    Worker,
    content,
    has_torch,
    put,
    reading_order,
    s3,
    sample_key,
    serial_of,
)
from bench.processes import gateway, serving
from gateway.setting_values import parse_size

PARTS: Final = "direct,read,read-write,half,half-order,outage"
RATIOS: Final = {"half": 0.5, "half-order": 0.5}
POLICIES: Final = """
[[policies]]
match = "s3://data/samples/*"
freshness = "immutable"
priority = "high"

[[policies]]
match = "s3://data/checkpoints/*"
release_after_flush = true
"""
"""As docs/data-loaders.md has them for a job of this kind."""

CHECKPOINT_KEYS: Final = 2
EPOCHS_MAX: Final = 1000
COUNTED: Final = ("forebay_warmup_", "forebay_evicted_bytes_total", "forebay_origin_throttled_total")


@dataclass(slots=True)
class Epoch:
    """What one epoch cost."""

    part: str
    number: int
    seconds: float = 0.0
    waiting_s: float = 0.0
    data_s: float = 0.0
    hit_ratio: float = 0.0
    replay_hit_ratio: float = 0.0
    errors: list[str] = field(default_factory=list)
    origin_requests: int = 0
    origin_reads: int = 0
    origin_refused: int = 0
    origin_bytes: int = 0
    written_ms: tuple[float, float] = (0.0, 0.0)
    checkpoints_ms: tuple[float, float] = (0.0, 0.0)


@dataclass(slots=True)
class Outcome:
    """A part as a whole.

    Attributes:
        lost: Keys of which the origin does not hold the last acknowledged state.
        metrics: What the gateway counted of warm-ups and reclaim, by sample.
    """

    epochs: list[Epoch] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    acknowledged: int = 0
    metrics: dict[str, float] = field(default_factory=dict)

    def late(self, of: Callable[[Epoch], float]) -> float:
        """Give the mean of what the epochs after the first show, or that one."""
        return statistics.fmean(of(epoch) for epoch in self.epochs[1:] or self.epochs)


class Origin:
    """The origin's process, steered."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint

    def fill(self, given: argparse.Namespace) -> None:
        """Put the samples there, past all limits."""
        connection = http.client.HTTPConnection(self.endpoint.removeprefix("http://"))
        for number in range(given.samples):
            connection.request("PUT", f"/{BUCKET}/{sample_key(number)}", content(number, 0, given.size))
            connection.getresponse().read()
        self.limit(given.latency, given.rate, given.burst)

    def limit(self, latency_s: float, rate: float, burst: float) -> None:
        """Let requests take so long, and so many a second through; 0 for no bound."""
        self._call("POST", "settings", {"latency_s": latency_s, "rate": rate, "burst": burst})

    def counters(self) -> dict[str, int]:
        """Give requests, requests for objects, 503s among all, and bytes so far."""
        told = self._call("GET", "counters")
        return {
            "origin_requests": sum(told["requests"].values()),
            "origin_reads": told["requests"].get("GetObject", 0),
            "origin_refused": told["refused"],
            "origin_bytes": told["bytes_in"] + told["bytes_out"],
        }

    def go_away(self) -> None:
        """Cut every connection from now on."""
        self._call("POST", "settings", {"is_away": True})

    def come_back(self) -> None:
        """Answer again."""
        self._call("POST", "settings", {"is_away": False})

    def _call(self, method: str, verb: str, document: object = None) -> Any:
        body = None if document is None else json.dumps(document).encode()
        request = urllib.request.Request(f"{self.endpoint}/-/{verb}", data=body, method=method)
        with urllib.request.urlopen(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text.startswith(b"{") else None


class Outage:
    """Takes the origin away in the middle of the second epoch, and says when the training may end."""

    def __init__(self, origin: Origin, seconds: float, steps: int) -> None:
        self._origin = origin
        self._seconds = seconds
        self._middle = (2, steps // 2)
        self._back_at_s = 0.0
        self.is_away = False
        self.last_epoch = EPOCHS_MAX

    def step(self, epoch: int, step: int) -> None:
        """Look at the time after a step."""
        if (epoch, step) == self._middle:
            self._origin.go_away()
            self.is_away, self._back_at_s = True, time.monotonic() + self._seconds
        elif self.is_away and time.monotonic() >= self._back_at_s:
            self._origin.come_back()
            self.is_away, self.last_epoch = False, epoch + 1


class Training:
    """One part: a loader over one endpoint, and what is acknowledged to it."""

    def __init__(self, given: argparse.Namespace, origin: Origin, part: str, endpoint: str) -> None:
        self._given = given
        self._origin = origin
        self._part = part
        self._endpoint = endpoint
        self._client = CLIENTS[given.client](endpoint)
        self._saved = 0
        self._acknowledged: dict[str, int] = {}
        self._unsure: dict[str, set[int]] = {}
        self.outcome = Outcome()

    def run(self) -> None:
        """Read the epochs."""
        given = self._given
        dataset = Worker(self._endpoint, given.client, given.size, given.slots, given.workers, given.seed)
        loader: Loader = (TorchLoader if given.loader == "torch" else PlainLoader)(dataset, given.prefetch)
        steps = -(-given.samples // given.batch)
        outage = Outage(self._origin, given.outage, steps) if self._part == "outage" else None
        try:
            # Workers start, connect and import outside of what is measured.
            for _ in loader.epoch([[] for _ in range(given.workers)]):
                pass
            number = 1
            while number <= (given.epochs if outage is None else outage.last_epoch):
                with self._order_handed_over(self._batches(number)):
                    self.outcome.epochs.append(self._epoch(loader, number, outage))
                show(given, self.outcome.epochs[-1])
                number += 1
        finally:
            loader.close()

    def _batches(self, number: int) -> list[list[int]]:
        order = list(range(self._given.samples))
        random.Random(self._given.seed * 1000 + number).shuffle(order)
        return [order[at : at + self._given.batch] for at in range(0, len(order), self._given.batch)]

    def _epoch(self, loader: Loader, number: int, outage: Outage | None) -> Epoch:
        given, epoch, before = self._given, Epoch(self._part, number), self._origin.counters()
        batches = self._batches(number)
        done: list[Done] = []
        saved: list[Done] = []
        begun_s = time.monotonic()
        arriving = iter(loader.epoch(batches))
        for step in range(len(batches)):
            asked_s = time.monotonic()
            done += next(arriving)
            epoch.waiting_s += time.monotonic() - asked_s
            time.sleep(given.compute)
            if (step + 1) % given.checkpoint_every == 0:
                saved.append(self._save())
            if outage is not None:
                outage.step(number, step)
        epoch.seconds = time.monotonic() - begun_s
        for name, count in self._origin.counters().items():
            setattr(epoch, name, count - before[name])
        self._fill_in(epoch, done, saved)
        return epoch

    def _save(self) -> Done:
        """Write a checkpoint, over the last but one."""
        self._saved += 1
        slot = self._saved % CHECKPOINT_KEYS
        body = content(slot, self._saved, self._given.checkpoint)
        return put(self._client, f"checkpoints/{slot}", body, self._saved)

    def _fill_in(self, epoch: Epoch, done: list[Done], saved: list[Done]) -> None:
        of = {kind: [one for one in done if one.kind == kind] for kind in ("sample", "replay", "write")}
        epoch.data_s = sum(one.seconds for one in of["sample"]) / self._given.workers
        epoch.hit_ratio = _hit_ratio(of["sample"])
        epoch.replay_hit_ratio = _hit_ratio(of["replay"])
        epoch.written_ms = _percentiles_ms(of["write"])
        epoch.checkpoints_ms = _percentiles_ms(saved)
        epoch.errors = [f"{one.kind} {one.key}: {one.error}" for one in (*done, *saved) if one.error]
        for one in (*of["write"], *saved):
            if one.error:
                self._unsure.setdefault(one.key, set()).add(one.serial)
            else:
                self._acknowledged[one.key] = one.serial
                self._unsure.pop(one.key, None)

    @contextmanager
    def _order_handed_over(self, batches: list[list[int]]) -> Iterator[None]:
        """Tell the gateway in which order the epoch will read, as a sampler can."""
        with ExitStack() as stack:
            if self._part == "half-order":
                directory = stack.enter_context(tempfile.TemporaryDirectory(dir=self._given.directory))
                keys = Path(directory, "order.txt")
                order = reading_order(batches, self._given.workers)
                keys.write_text("".join(f"{sample_key(one)}\n" for one in order))
                ahead = (
                    "--ahead",
                    str(self._given.ahead),
                    "--concurrency",
                    str(self._given.ahead_concurrency),
                )
                idle = ("--idle", "10s")
                self._forebay(
                    "warm", f"s3://{BUCKET}", "--from", str(keys), "--order", "--detach", *ahead, *idle
                )
            yield

    def check(self) -> None:
        """Flush, and hold what the origin has against what was acknowledged."""
        with urllib.request.urlopen(f"{self._endpoint}/metrics", timeout=60) as answer:
            lines = [line.rpartition(" ") for line in answer.read().decode().splitlines()]
        self.outcome.metrics = {name: float(value) for name, _, value in lines if name.startswith(COUNTED)}
        self._forebay("flush", f"s3://{BUCKET}/", "--wait")
        self._origin.limit(0.0, 0.0, 0.0)
        client = s3(self._origin.endpoint)
        self.outcome.acknowledged = len(self._acknowledged)
        for key, serial in self._acknowledged.items():
            body = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            if serial_of(body) not in {serial, *self._unsure.get(key, ())}:
                self.outcome.lost.append(key)
        self._origin.limit(self._given.latency, self._given.rate, self._given.burst)

    def _forebay(self, *arguments: str) -> None:
        secrets = {"FOREBAY_ACCESS_KEY": KEY.access_key, "FOREBAY_SECRET_KEY": KEY.secret_key}
        command = [sys.executable, "-m", "gateway", *arguments, "--endpoint", self._endpoint]
        subprocess.run(command, env=secrets, check=True, capture_output=True)


def main() -> int:
    """Measure and print."""
    given = _arguments()
    print(_title(given))
    outcomes: dict[str, Outcome] = {}
    with tempfile.TemporaryDirectory(dir=given.directory) as directory, _origin() as origin:
        origin.fill(given)
        print(HEAD)
        for part in given.parts.split(","):
            outcomes[part] = _part(given, origin, part, Path(directory, part))
    if given.report:
        told = {part: asdict(outcome) for part, outcome in outcomes.items()}
        Path(given.report).write_text(json.dumps(told))
    return 0 if all([*_judged(given, outcomes)]) else 1


def _part(given: argparse.Namespace, origin: Origin, part: str, cache_dir: Path) -> Outcome:
    if part == "direct":
        training = Training(given, origin, part, origin.endpoint)
        training.run()
        return training.outcome
    settings = {
        "FOREBAY_CACHE_SIZE": str(int(RATIOS.get(part, given.ratio) * _dataset_bytes(given))),
        "FOREBAY_WRITE": "through" if part == "read" else "back",
        "FOREBAY_ORIGIN_TIMEOUT_S": str(given.origin_timeout),
    }
    policies = cache_dir.with_suffix(".toml")
    policies.write_text(POLICIES)
    with gateway(origin.endpoint, cache_dir, KEY, policies, **settings) as (endpoint, _):
        training = Training(given, origin, part, endpoint)
        training.run()
        training.check()
    return training.outcome


# --- Showing -------------------------------------------------------------------------------------------------------------

HEAD: Final = (
    f"{'part':<11}epoch  seconds  waiting  share   data  hits  replay  "
    f"origin: requests   503     MB  written ms: median   p99  checkpoint ms: median   p99  errors"
)


def show(given: argparse.Namespace, epoch: Epoch) -> None:
    """Print a row."""
    print(
        f"{epoch.part:<11}{epoch.number:>5}{epoch.seconds:>9.2f}{epoch.waiting_s:>9.2f}{epoch.waiting_s / epoch.seconds:>7.1%}"
        f"{epoch.data_s:>7.2f}{epoch.hit_ratio:>6.3f}{epoch.replay_hit_ratio:>8.3f}"
        f"{epoch.origin_requests:>18}{epoch.origin_refused:>6}{epoch.origin_bytes / 1e6:>7.1f}"
        f"{epoch.written_ms[0]:>20.1f}{epoch.written_ms[1]:>6.0f}{epoch.checkpoints_ms[0]:>23.1f}{epoch.checkpoints_ms[1]:>6.0f}"
        f"{len(epoch.errors):>8}",
        flush=True,
    )
    for error in epoch.errors[: given.errors_shown]:
        print(f"    {error}")


def _title(given: argparse.Namespace) -> str:
    data = f"{given.samples} samples of {given.size} bytes, {given.slots} slots of replay, {CHECKPOINT_KEYS} checkpoints of"
    ratio = f"C/N = {given.ratio:g}, 0.5 in half and half-order"
    loader = f"{given.workers} workers ({given.loader}, {given.client}), batch {given.batch}, prefetch {given.prefetch}"
    return (
        f"training: {data} {given.checkpoint}, one each {given.checkpoint_every} steps; {ratio}; {loader}, an augmented sample each "
        f"{AUGMENTED_EVERY}; {given.compute * 1000:.1f} ms of computing a step; origin {given.latency * 1000:g} ms, "
        f"{given.rate:g} requests/s, burst {given.burst:g}; seed {given.seed}"
    )


def _bounds_s(given: argparse.Namespace, part: str, latency_s: float) -> tuple[float, float]:
    """Give the bounds on data and on waiting in an epoch, of an origin that answers after so long."""
    misses = (1 - RATIOS[part]) * given.samples
    data_s = misses * max(latency_s / given.workers, 1 / given.rate)
    ahead_s = misses / given.rate if part == "half-order" else data_s
    computing_s = given.compute * -(-given.samples // given.batch)
    return data_s, max(0.0, ahead_s - computing_s)


def _judged(given: argparse.Namespace, outcomes: dict[str, Outcome]) -> Iterator[bool]:
    for part, outcome in outcomes.items():
        errors = [error for epoch in outcome.epochs for error in epoch.errors]
        if part != "direct":
            yield _goal(f"{part}: {len(outcome.lost)} of {outcome.acknowledged} keys lost", not outcome.lost)
        yield _goal(f"{part}: {len(errors)} errors", not errors)
        if part in RATIOS:
            data_s, waiting_s = _bounds_s(given, part, given.latency)
            measured_s = outcome.late(lambda epoch: epoch.data_s)
            if "direct" in outcomes:
                met_s = outcomes["direct"].late(lambda epoch: epoch.data_s) * given.workers / given.samples
                met_bound_s, _ = _bounds_s(given, part, met_s)
                print(
                    f"  {part}: a request of direct took {met_s * 1000:.1f} ms; with that for the latency data has the bound "
                    f"{met_bound_s:.2f} s, and took {measured_s / met_bound_s:.2f} of it"
                )
            yield _goal(
                f"{part}: C/N = {RATIOS[part]}, data {measured_s:.2f} s, bound {data_s:.2f} s, {measured_s / data_s:.2f} of it; waiting "
                f"{outcome.late(lambda epoch: epoch.waiting_s):.2f} s, bound {waiting_s:.2f} s; "
                f"hits {outcome.late(lambda epoch: epoch.hit_ratio):.3f}",
                measured_s <= 1.1 * data_s,
            )
    if {"direct", "read-write"} <= outcomes.keys():
        yield from _against_reference(outcomes["direct"], outcomes["read-write"])


def _against_reference(direct: Outcome, cached: Outcome) -> Iterator[bool]:
    """Compare with the published figures of a cache slightly larger than the dataset."""
    less = 1 - cached.late(lambda epoch: epoch.waiting_s) / direct.late(lambda epoch: epoch.waiting_s)
    yield _goal(f"waiting {-less:+.0%}, reference -68 %", less >= 0.68)
    more = direct.late(lambda epoch: epoch.seconds) / cached.late(lambda epoch: epoch.seconds) - 1
    yield _goal(f"throughput {more:+.0%}, reference +35 %", more >= 0.35)
    took_ms = cached.late(lambda epoch: epoch.written_ms[0])
    yield _goal(f"samples acknowledged in {took_ms:.1f} ms (median), reference 5 to 20 ms", took_ms <= 20)
    replayed = cached.late(lambda epoch: epoch.replay_hit_ratio)
    yield _goal(f"hits in replay {replayed:.1%}, reference 85 %", replayed >= 0.85)


def _goal(text: str, is_reached: bool) -> bool:
    print(f"  {'reached' if is_reached else 'MISSED'}: {text}")
    return is_reached


def _hit_ratio(reads: list[Done]) -> float:
    return sum(one.is_hit for one in reads) / max(1, len(reads))


def _percentiles_ms(writes: list[Done]) -> tuple[float, float]:
    took_ms = sorted(one.seconds * 1000 for one in writes)
    return (statistics.median(took_ms), took_ms[int(0.99 * len(took_ms))]) if took_ms else (0.0, 0.0)


def _dataset_bytes(given: argparse.Namespace) -> int:
    return int((given.samples + given.slots) * given.size + CHECKPOINT_KEYS * given.checkpoint)


@contextmanager
def _origin() -> Iterator[Origin]:
    with serving("bench.storing_origin", "counters") as endpoint:
        yield Origin(endpoint)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", default=PARTS)
    parser.add_argument("--loader", choices=("torch", "plain"), default="torch" if has_torch() else "plain")
    parser.add_argument("--samples", type=int, default=4000)
    parser.add_argument("--size", type=parse_size, default=parse_size("64KiB"))
    parser.add_argument("--slots", type=int, default=128, help="objects of the replay buffer")
    parser.add_argument("--checkpoint", type=parse_size, default=parse_size("4MiB"))
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps between two checkpoints")
    parser.add_argument("--ratio", type=float, default=1.1, help="C/N of read, read-write and outage")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--prefetch", type=int, default=2, help="batches a worker")
    parser.add_argument("--rate", type=float, default=300.0, help="requests a second that the origin takes")
    parser.add_argument("--burst", type=float, default=30.0)
    parser.add_argument("--latency", type=float, default=0.03)
    parser.add_argument("--client", choices=tuple(CLIENTS), default="http")
    parser.add_argument(
        "--overhead",
        type=float,
        default=0.002,
        help="seconds a request takes beside the latency, to fix --compute",
    )
    parser.add_argument(
        "--compute", type=float, default=None, help="seconds a step; fixed by the above if left out"
    )
    parser.add_argument("--ahead", type=int, default=256, help="of the order that is handed over")
    parser.add_argument("--ahead-concurrency", type=int, default=16)
    parser.add_argument("--outage", type=float, default=60.0, help="seconds")
    parser.add_argument(
        "--origin-timeout",
        type=float,
        default=60.0,
        help="seconds that the origin may be silent, and in which what it cut may yet land",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--directory", default=None, help="where cache directories are made")
    parser.add_argument("--report", default=None, help="a file for all figures, as JSON")
    parser.add_argument("--errors-shown", type=int, default=3)
    given = parser.parse_args()
    if given.compute is None:
        requests = given.batch * (1 + 2 / AUGMENTED_EVERY)
        given.compute = 0.5 * requests * (given.latency + given.overhead) / given.workers
    return given


if __name__ == "__main__":
    sys.exit(main())
