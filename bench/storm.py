"""`python -m bench.storm`: a throttling storm, with and without the gateway.

An origin whose token bucket lets 200 requests/s through with a burst of 20, and answers 503 SlowDown to all above; 64 readers over a cold
dataset of 20,000 objects of 4 KiB. Each reader asks for the next object, and for the same again where it was throttled, with full jitter
under a doubling ceiling of 0.1 to 20 s, as SDKs do. Read are

    direct     the origin itself: the share of 503s and the time
    set        through a gateway with origin_requests_per_s at 95 % of the rate
    learnt     through a gateway with nothing set
    warm       GETs of an object that is cached, 50 a second, with and without a storm: pairs of windows through the gateway of `learnt`

and the goals are: set, no 503 and the time within 10 % of objects / (0.95 rate); learnt, under 3 % of 503s after the first 10 s, no second
in which they exceed 10 %, and the time within 25 % of objects / rate; warm, the median p99 in a storm under twice that of quiet or 3 ms
more, whichever is larger. The exit status says whether all that were measured were reached. Origin, gateway, readers and the one that
reads the warm object are processes of their own; two processors do for all four while nothing else runs.

    python -m bench.storm [--objects N] [--rate R] [--burst B] [--latency S] [--readers N] [--parts direct,set,learnt,warm] ...
"""

import argparse
import asyncio
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import aiohttp
from yarl import URL

from bench.processes import free_port, gateway, process, wait_for
from storage.origin.signing import EMPTY_SHA256, SigningIdentity, sign_headers

KEY: Final = SigningIdentity("stormkey", "stormsecretstormsecret", "us-east-1")
WARM: Final = "/data/warm/object"
PROBE_EVERY_S: Final = 0.02


@dataclass(slots=True)
class Read:
    """What the readers met. `errors` are answers other than 200 and 503."""

    seconds: float
    refused: int = 0
    errors: int = 0


def main() -> int:
    """Measure and print."""
    given = _arguments()
    print(
        f"storm: {given.objects} objects of {given.size} bytes, {given.readers} readers; origin {given.rate:g} requests/s, "
        f"burst {given.burst:g}, {given.latency * 1000:g} ms; seed {given.seed}"
    )
    parts = given.parts.split(",")
    is_good = True
    with tempfile.TemporaryDirectory(dir=given.directory) as directory, _origin(given) as origin:
        if "direct" in parts:
            read = asyncio.run(read_all(given, origin, "direct"))
            _show("direct", read, _seconds(origin))
        if "set" in parts:
            cap = 0.95 * given.rate
            with _gateway(origin, Path(directory) / "set", FOREBAY_ORIGIN_REQUESTS_PER_S=f"{cap}") as through:
                read = asyncio.run(read_all(given, through, "set"))
            seconds = _seconds(origin)
            _show("set", read, seconds)
            is_good &= _goal("no 503", sum(second[1] for second in seconds) == 0)
            is_good &= _goal("time within 10 %", read.seconds <= 1.1 * given.objects / cap)
        if "learnt" in parts or "warm" in parts:
            with _gateway(origin, Path(directory) / "learnt") as through:
                if "learnt" in parts:
                    is_good &= _learnt(given, origin, through)
                if "warm" in parts:
                    is_good &= _warm(given, through)
    return 0 if is_good else 1


def _learnt(given: argparse.Namespace, origin: str, through: str) -> bool:
    read = asyncio.run(read_all(given, through, "learnt"))
    seconds = _seconds(origin)
    _show("learnt", read, seconds)
    late = seconds[10:] or seconds[-1:]
    return all(
        (
            _goal("under 3 % of 503s after 10 s", _share(late) < 0.03),
            _goal("no second over 10 %", max(_share([second]) for second in seconds) <= 0.1),
            _goal("time within 25 %", read.seconds <= 1.25 * given.objects / given.rate),
        )
    )


def _warm(given: argparse.Namespace, through: str) -> bool:
    """Measure the warm object in pairs of windows, quiet and in a storm."""
    pairs = []
    urllib.request.urlopen(_signed_request(through, WARM)).read()
    for pair in range(given.pairs):
        quiet_s = _probe(given, through)
        with process("bench.storm", "--role", "storm", "--through", through, *_told(given, f"pair{pair}")):
            time.sleep(1.0)
            storm_s = _probe(given, through)
        pairs.append((quiet_s, storm_s))
        print(f"  warm p99: quiet {quiet_s * 1000:.2f} ms, in a storm {storm_s * 1000:.2f} ms")
    quiet_s, storm_s = (statistics.median(one) for one in zip(*pairs, strict=True))
    return _goal(
        f"warm p99 of {given.pairs} pairs, medians {quiet_s * 1000:.2f} and {storm_s * 1000:.2f} ms",
        storm_s <= max(2 * quiet_s, quiet_s + 0.003),
    )


async def read_all(given: argparse.Namespace, endpoint: str, prefix: str) -> Read:
    """Read the dataset once with all readers; give how it went."""
    rng = random.Random(given.seed)
    order = list(range(given.objects))
    rng.shuffle(order)
    keys = iter(order)
    read = Read(0.0)
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, auto_decompress=False) as session:

        async def reader() -> None:
            for number in keys:
                path, attempt = f"/data/{prefix}/{number:08d}", 0
                while (status := await _get(session, endpoint, path)) != 200:
                    read.refused += status == 503
                    read.errors += status != 503
                    await asyncio.sleep(rng.random() * min(20.0, 0.1 * 2**attempt))
                    attempt += 1

        begun_s = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for _ in range(given.readers):
                group.create_task(reader())
        read.seconds = time.monotonic() - begun_s
    return read


async def _get(session: aiohttp.ClientSession, endpoint: str, path: str) -> int:
    async with session.get(URL(endpoint + path, encoded=True), headers=_signed(endpoint, path)) as answer:
        await answer.read()
        return answer.status


async def probe(given: argparse.Namespace) -> float:
    """Read the warm object for a window; give the 99th percentile of how long it took, in seconds."""
    took_s = []
    async with aiohttp.ClientSession(auto_decompress=False) as session:
        end_s = time.monotonic() + given.window
        while time.monotonic() < end_s:
            begun_s = time.perf_counter()
            assert await _get(session, given.through, WARM) == 200, "the warm object is served"
            took_s.append(time.perf_counter() - begun_s)
            await asyncio.sleep(PROBE_EVERY_S)
    return sorted(took_s)[int(0.99 * len(took_s))]


def _probe(given: argparse.Namespace, through: str) -> float:
    command = [
        sys.executable,
        "-m",
        "bench.storm",
        "--role",
        "probe",
        "--through",
        through,
        *_told(given, ""),
    ]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def _signed(endpoint: str, path: str) -> dict[str, str]:
    headers = {"host": endpoint.removeprefix("http://")}
    return sign_headers(KEY, "GET", path, headers, EMPTY_SHA256, time.time())


def _signed_request(endpoint: str, path: str) -> urllib.request.Request:
    return urllib.request.Request(endpoint + path, headers=_signed(endpoint, path))


def _share(seconds: list[list[int]]) -> float:
    refused = sum(second[1] for second in seconds)
    return refused / max(1, refused + sum(second[0] for second in seconds))


def _show(part: str, read: Read, seconds: list[list[int]]) -> None:
    worst = max((_share([second]), number) for number, second in enumerate(seconds))
    print(
        f"{part}: {read.seconds:.1f} s; at the origin {sum(map(sum, seconds))} requests, {_share(seconds):.2%} of them 503, "
        f"{_share(seconds[10:]):.2%} after 10 s, worst second {worst[0]:.1%} (no. {worst[1]}), the first {_share(seconds[:1]):.1%}; "
        f"readers met {read.refused} times 503, {read.errors} other errors"
    )


def _goal(text: str, is_reached: bool) -> bool:
    print(f"  {'reached' if is_reached else 'MISSED'}: {text}")
    return is_reached


def _seconds(origin: str) -> list[list[int]]:
    with urllib.request.urlopen(f"{origin}/-/seconds") as answer:
        found: list[list[int]] = json.loads(answer.read())
    return found


@contextmanager
def _origin(given: argparse.Namespace) -> Iterator[str]:
    port = free_port()
    told = [f"--{name}={getattr(given, name)}" for name in ("rate", "burst", "latency", "size")]
    with process("bench.throttled_origin", "--port", str(port), *told):
        wait_for(f"http://127.0.0.1:{port}/-/seconds")
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _gateway(origin: str, cache_dir: Path, **settings: str) -> Iterator[str]:
    settings |= {"FOREBAY_CACHE_SIZE": "1GiB", "FOREBAY_FRESHNESS": "immutable"}
    with gateway(origin, cache_dir, KEY, **settings) as (endpoint, _):
        yield endpoint


def _told(given: argparse.Namespace, prefix: str) -> list[str]:
    names = ("objects", "readers", "seed", "window")
    return [f"--{name}={getattr(given, name)}" for name in names] + [f"--prefix={prefix}"]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--objects", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=4096)
    parser.add_argument("--readers", type=int, default=64)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--burst", type=float, default=20.0)
    parser.add_argument("--latency", type=float, default=0.01)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--window", type=float, default=10.0, help="seconds of each of the windows of `warm`")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--parts", default="direct,set,learnt,warm")
    parser.add_argument("--directory", default=None, help="where cache directories are made")
    parser.add_argument("--role", choices=("run", "probe", "storm"), default="run", help=argparse.SUPPRESS)
    parser.add_argument("--through", default="", help=argparse.SUPPRESS)
    parser.add_argument("--prefix", default="", help=argparse.SUPPRESS)
    return parser.parse_args()


def play(given: argparse.Namespace) -> int:
    """Do what the process is for."""
    if given.role == "probe":
        print(asyncio.run(probe(given)))
        return 0
    if given.role == "storm":
        asyncio.run(read_all(given, given.through, given.prefix))
        return 0
    return main()


if __name__ == "__main__":
    sys.exit(play(_arguments()))
