"""`python -m bench.requests`: what a request costs the gateway in processor time, and what its client waits for it.

The origin of reads (`bench/throttled_origin.py`) has every key and answers at once; that of writes is `bench/storing_origin.py`.
`--clients` threads of one process ask one request after the other, each on a connection that is kept, signed as SDKs sign. Measured
are, for bodies of each of `--sizes`:

    miss   GET of an object that is not here: asked of the origin, kept, sent on
    hit    GET of one that is
    head   HEAD of one that is
    put    PUT, acknowledged and flushed

The processor time is that of the gateway's process, all its threads and the kernel's work for it included, from the first request to
the last; for `put` until all is flushed. It is much the same whatever else the machine does; the times of the clients are not.

    python -m bench.requests [--sizes 4KiB,64KiB] [--requests N] [--clients N] [--kinds miss,hit,head,put] ...
"""

import argparse
import hashlib
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from bench.processes import gateway, serving
from gateway.setting_values import parse_size
from storage.origin.signing import EMPTY_SHA256, SigningIdentity, sign_headers

KEY: Final = SigningIdentity("requestskey", "requestssecretrequests", "us-east-1")
READS: Final = frozenset({"miss", "hit", "head"})
WRITES: Final = frozenset({"put"})
HITS: Final = frozenset({"hit", "head"})
PRIMED: Final = 100
METHODS: Final = {"miss": "GET", "hit": "GET", "head": "HEAD", "put": "PUT"}


def main() -> int:
    """Measure and print."""
    given = _arguments()
    print(f"requests: {given.requests} of each kind, {given.clients} clients")
    print(f"{'size':>8}  kind  processor us/request   requests/s   client ms: median    p99")
    for size in given.sizes.split(","):
        body = os.urandom(parse_size(size))
        kinds = given.kinds.split(",")
        for origin, of_it in ((_origin_of_reads, READS), (_origin_of_writes, WRITES)):
            if not of_it.isdisjoint(kinds):
                with (
                    tempfile.TemporaryDirectory(dir=given.directory) as directory,
                    origin(len(body)) as address,
                ):
                    _measure_all(
                        given, address, Path(directory), size, body, [one for one in kinds if one in of_it]
                    )
    return 0


def _measure_all(
    given: argparse.Namespace, origin: str, cache_dir: Path, size: str, body: bytes, kinds: list[str]
) -> None:
    settings = {
        "FOREBAY_CACHE_SIZE": given.cache_size,
        "FOREBAY_FRESHNESS": "immutable",
        "FOREBAY_ORIGIN_CONCURRENCY": "64",
    }
    with gateway(origin, cache_dir, KEY, **settings) as (endpoint, pid):
        for kind in kinds:
            _measure(given, endpoint, pid, size, kind, body)


def _measure(given: argparse.Namespace, endpoint: str, pid: int, size: str, kind: str, body: bytes) -> None:
    sent = body if kind == "put" else b""
    # What the first requests load is no cost of requests, and a hit is one only of what was read before.
    _run(given, endpoint, METHODS[kind], f"first-{kind}", PRIMED, sent)
    if kind in HITS:
        _run(given, endpoint, "GET", "data", given.requests, b"")
    if kind == "put":
        _flush(endpoint)
    before_s, begun_s = _processor_s(pid), time.perf_counter()
    took_ms = sorted(
        _run(given, endpoint, METHODS[kind], "put" if kind == "put" else "data", given.requests, sent)
    )
    seconds = time.perf_counter() - begun_s
    if kind == "put":
        _flush(endpoint)
    processor_us = (_processor_s(pid) - before_s) / given.requests * 1e6
    print(
        f"{size:>8}  {kind:<5}{processor_us:>20.0f}{given.requests / seconds:>13.0f}"
        f"{statistics.median(took_ms):>20.2f}{took_ms[int(0.99 * len(took_ms))]:>7.2f}",
        flush=True,
    )


def _run(
    given: argparse.Namespace, endpoint: str, method: str, prefix: str, requests: int, body: bytes
) -> list[float]:
    """Send so many requests by all clients; give the milliseconds of each."""
    took_ms: list[float] = []
    threads = [
        threading.Thread(
            target=_client,
            args=(endpoint, method, prefix, range(one, requests, given.clients), body, took_ms),
        )
        for one in range(given.clients)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if len(took_ms) != requests:
        raise SystemExit(f"{method}: {requests - len(took_ms)} requests failed")
    return took_ms


def _client(
    endpoint: str, method: str, prefix: str, numbers: range, body: bytes, took_ms: list[float]
) -> None:
    host = endpoint.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    digest = hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256
    for number in numbers:
        path = f"/data/{prefix}/{number:06d}"
        headers = sign_headers(KEY, method, path, {"host": host}, digest, time.time())
        begun_s = time.perf_counter()
        connection.request(method, path, body or None, headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            print(f"{method} {path}: {answer.status}", file=sys.stderr)
            return
        took_ms.append((time.perf_counter() - begun_s) * 1000)


def _flush(endpoint: str) -> None:
    secrets = {"FOREBAY_ACCESS_KEY": KEY.access_key, "FOREBAY_SECRET_KEY": KEY.secret_key}
    command = [sys.executable, "-m", "gateway", "flush", "s3://data/", "--wait", "--endpoint", endpoint]
    subprocess.run(command, env=secrets, check=True, capture_output=True)


def _processor_s(pid: int) -> float:
    """Give the processor time of a process so far, of its threads together (proc(5), utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def _origin_of_writes(_size: int) -> Iterator[str]:
    with serving("bench.storing_origin", "counters") as endpoint:
        yield endpoint


@contextmanager
def _origin_of_reads(size: int) -> Iterator[str]:
    limits = ("--rate", "1e9", "--burst", "1e9", "--latency", "0", "--size", str(size))
    with serving("bench.throttled_origin", "seconds", *limits) as endpoint:
        yield endpoint


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default="4KiB,64KiB")
    parser.add_argument("--kinds", default="miss,hit,head,put")
    parser.add_argument("--requests", type=int, default=4000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--cache-size", default="2GiB")
    parser.add_argument("--directory", default=None, help="where cache directories are made")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
