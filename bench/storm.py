"""`python -m bench.storm`: a throttling storm, with and without the gateway.

An origin whose token bucket lets 200 requests/s through with a burst of 20, and answers 503 SlowDown to all above; 64 readers over a cold
dataset of 20,000 objects of 4 KiB. Each reader asks for the next object, and for the same again where it was throttled, with full jitter
under a doubling ceiling of 0.1 to 20 s, as SDKs do. Read are

    direct     the origin itself: the share of 503s and the time
    set        through a gateway with origin_requests_per_s at 95 % of the rate
    learnt     through a gateway with nothing set
    warm       GETs of an object that is cached, one each 20 ms, with and without a storm: pairs of windows through the gateway of `learnt`

and the goals are: set, no 503 and the time within 10 % of objects / (0.95 rate); learnt, under 3 % of 503s after the first 10 s, no second
in which they exceed 10 %, and the time within 25 % of objects / rate; warm, the median p99 in a storm under twice that of quiet or 3 ms
more, whichever is larger. The exit status says whether all that were measured were reached.

Origin, gateway, readers and the one that reads the warm object are processes of their own, and share the processors. So that the times of
`warm` are the gateway's, the others are as cheap as can be (`bench/plain_client.py`), and a GET's time ends when the kernel has the last
byte of the answer for its reader, not when the reader is let run: its stamp says when. What the gateway itself waits for a
processor is in it, as is all that holds up its event loop. The p99 of what the reader saw, its own lateness included, is printed beside it.

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

import uvloop

from bench.plain_client import Connection, Probe, Took, address, signed_get, signed_headers
from bench.processes import START_S, gateway, process, serving
from storage.origin.signing import SigningIdentity

KEY: Final = SigningIdentity("stormkey", "stormsecretstormsecret", "us-east-1")
WARM: Final = "/data/warm/object"
PROBE_EVERY_S: Final = 0.02
STORM_S: Final = 1.0
FEW_PER_S: Final = 20.0
"""A second with more requests at the origin is one of the storm."""


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
            read = uvloop.run(read_all(given, origin, "direct"))
            _show("direct", read, _seconds(origin))
        if "set" in parts:
            cap = 0.95 * given.rate
            with _gateway(origin, Path(directory) / "set", FOREBAY_ORIGIN_REQUESTS_PER_S=f"{cap}") as through:
                read = uvloop.run(read_all(given, through, "set"))
            seconds = _seconds(origin)
            _show("set", read, seconds)
            is_good &= _goal("no 503", sum(second[1] for second in seconds) == 0)
            is_good &= _goal("time within 10 %", read.seconds <= 1.1 * given.objects / cap)
        if "learnt" in parts or "warm" in parts:
            with _gateway(origin, Path(directory) / "learnt") as through:
                if "learnt" in parts:
                    is_good &= _learnt(given, origin, through)
                if "warm" in parts:
                    is_good &= _warm(given, origin, through)
    return 0 if is_good else 1


def _learnt(given: argparse.Namespace, origin: str, through: str) -> bool:
    read = uvloop.run(read_all(given, through, "learnt"))
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


def _warm(given: argparse.Namespace, origin: str, through: str) -> bool:
    """Measure the warm object in pairs of windows, quiet and in a storm."""
    pairs = []
    urllib.request.urlopen(_signed_request(through, WARM)).read()
    for pair in range(given.pairs):
        quiet = _probe(given, through)
        with process("bench.storm", "--role", "storm", "--through", through, *_told(given, f"pair{pair}")):
            _wait_for_storm(origin)
            begun_s = time.monotonic()
            storm = _probe(given, through)
            if len(_seconds(origin)) < time.monotonic() - begun_s - 1.0:
                raise SystemExit("the storm ended before its window did: give more --objects")
        pairs.append((quiet.answered_s, storm.answered_s))
        print(
            f"  warm p99: quiet {_ms(quiet.answered_s)}, in a storm {_ms(storm.answered_s)}; "
            f"as the reader saw it {_ms(quiet.read_s)} and {_ms(storm.read_s)}"
        )
    quiet_s, storm_s = (statistics.median(one) for one in zip(*pairs, strict=True))
    return _goal(
        f"warm p99 of {given.pairs} pairs, medians {_ms(quiet_s)} and {_ms(storm_s)}",
        storm_s <= max(2 * quiet_s, quiet_s + 0.003),
    )


def _wait_for_storm(origin: str) -> None:
    """Return when the origin has had requests for a second: the readers' process has started by then."""
    _seconds(origin)
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        time.sleep(STORM_S)
        if sum(map(sum, _seconds(origin))) > STORM_S * FEW_PER_S:
            return
    raise TimeoutError("the readers do not read")


class _Readers:
    """The readers of a dataset, each with a connection of its own."""

    def __init__(self, given: argparse.Namespace, endpoint: str, prefix: str) -> None:
        self._endpoint = endpoint
        self._prefix = prefix
        self._rng = random.Random(given.seed)
        order = list(range(given.objects))
        self._rng.shuffle(order)
        self._keys = iter(order)
        self._loop = asyncio.get_running_loop()
        self._reading = given.readers
        self._attempts: dict[Connection, tuple[str, int]] = {}
        self.read = Read(0.0)
        self.ended: asyncio.Future[None] = self._loop.create_future()

    async def open(self) -> None:
        """Connect and begin."""
        for _ in range(self._reading):
            await self._loop.create_connection(
                lambda: Connection(self._next, self._answered, self._lost), *address(self._endpoint)
            )

    def _next(self, connection: Connection) -> None:
        """Ask for the next object, or end with the last one."""
        number = next(self._keys, None)
        if number is not None:
            self._attempts[connection] = f"/data/{self._prefix}/{number:08d}", 0
            self._ask(connection)
            return
        connection.close()
        self._reading -= 1
        if not self._reading and not self.ended.done():
            self.ended.set_result(None)

    def _ask(self, connection: Connection) -> None:
        path, _ = self._attempts[connection]
        connection.ask(signed_get(KEY, self._endpoint, path))

    def _answered(self, connection: Connection, status: int) -> None:
        if status == 200:
            self._next(connection)
            return
        self.read.refused += status == 503
        self.read.errors += status != 503
        path, attempt = self._attempts[connection]
        self._attempts[connection] = path, attempt + 1
        self._loop.call_later(self._rng.random() * min(20.0, 0.1 * 2**attempt), self._ask, connection)

    def _lost(self) -> None:
        if not self.ended.done():
            self.ended.set_exception(ConnectionError("a connection ended in the middle"))


async def read_all(given: argparse.Namespace, endpoint: str, prefix: str) -> Read:
    """Read the dataset once with all readers; give how it went."""
    readers = _Readers(given, endpoint, prefix)
    begun_s = time.monotonic()
    await readers.open()
    await readers.ended
    readers.read.seconds = time.monotonic() - begun_s
    return readers.read


def probe(given: argparse.Namespace) -> Took:
    """Read the warm object for a window; give the 99th percentiles of how long it took, in seconds."""
    taken, reader = [], Probe(given.through)
    request = signed_get(KEY, given.through, WARM)
    end_s = time.monotonic() + given.window
    while time.monotonic() < end_s:
        taken.append(reader.get(request))
        time.sleep(PROBE_EVERY_S)
    reader.close()
    return Took(*(sorted(one)[int(0.99 * len(taken))] for one in zip(*taken, strict=True)))


def _probe(given: argparse.Namespace, through: str) -> Took:
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
    return Took(*json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def _signed_request(endpoint: str, path: str) -> urllib.request.Request:
    return urllib.request.Request(endpoint + path, headers=signed_headers(KEY, endpoint, path))


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
    told = [f"--{name}={getattr(given, name)}" for name in ("rate", "burst", "latency", "size")]
    with serving("bench.throttled_origin", "seconds", *told) as endpoint:
        yield endpoint


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
        print(json.dumps(probe(given)))
        return 0
    if given.role == "storm":
        uvloop.run(read_all(given, given.through, given.prefix))
        return 0
    return main()


if __name__ == "__main__":
    sys.exit(play(_arguments()))
