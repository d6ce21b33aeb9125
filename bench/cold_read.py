"""`python -m bench.cold_read`: a cold large object, through the gateway and in one stream from the origin.

The origin (`bench/origin.py`) gives 50 MB/s on a connection, 20 ms after the question. Measured are: one GET of all of the object from
the origin itself; the same through a gateway whose cache is empty; and through the gateway, cold again, by a client that asks for
successive ranges. Every byte is compared. Origin, gateway and client are processes of their own.

    python -m bench.cold_read [--size 1GiB] [--rate 50MB] [--latency 0.02] [--range 4MiB] [--directory DIR]

The goal, for 1 GiB: at least 5 times the one stream. The exit status says whether it was reached. A machine with two processors gives all
three processes some 500 MB/s together; what else runs on it is taken from that.
"""

import argparse
import json
import os
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from botocore.config import Config

from bench.origin import is_content
from bench.processes import gateway, serving
from gateway.setting_values import parse_size
from storage.origin.signing import SigningIdentity
from storage.types import MIB

GOAL = 5.0
KEY = SigningIdentity("key", "secretsecretsecret", "us-east-1")
RECEIVE_BYTES = MIB


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--size", type=parse_size, default=parse_size("1GiB"))
    parser.add_argument("--rate", default="50MB", help="bytes a second a connection of the origin gives")
    parser.add_argument("--latency", default="0.02", help="seconds to its first byte")
    parser.add_argument(
        "--range", type=parse_size, default=parse_size("4MiB"), help="of the successive ranges"
    )
    parser.add_argument(
        "--memory", default="", help="readahead_memory of the gateway; its default if left out"
    )
    parser.add_argument("--directory", default=None, help="where the cache directory is made")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.directory) as directory, _origin(given) as origin:
        direct_s = _timed(_presigned(origin), given.size, given.size)
        counted = _counters(origin)
        print(f"direct, one stream:    {_shown(given.size, direct_s)}")
        ratio = 0.0
        for label, length in (("through, one GET", given.size), ("through, in ranges", given.range)):
            with _gateway(origin, Path(directory) / label[-3:], given.memory) as (endpoint, pid):
                took_s = _timed(_presigned(endpoint), given.size, length)
                peak, processor_s = _peak_memory(pid), _processor_s(pid)
                readahead = _readahead(endpoint)
            now = _counters(origin)
            asked, sent = (now[name] - counted[name] for name in ("requests", "bytes_out"))
            ratio = ratio or direct_s / took_s
            print(f"{label + ':':<22} {_shown(given.size, took_s)}, {direct_s / took_s:.1f} times")
            print(
                f"    origin: {asked} requests, at most {now['at_a_time']} at a time, {sent / given.size:.3f} of the object sent"
            )
            print(
                f"    gateway: peak memory {peak // MIB} MiB, {processor_s:.1f} s of processor with its start; {readahead}"
            )
            counted = now
    print(f"ratio {ratio:.2f}, goal {GOAL}")
    return 0 if ratio >= GOAL else 1


def _shown(size: int, took_s: float) -> str:
    return f"{took_s:6.2f} s, {size / took_s / 1e6:6.0f} MB/s"


# --- Reading -------------------------------------------------------------------------------------------------------------


def _timed(url: str, size: int, length: int) -> float:
    """Read the object in ranges of `length`, over one connection, comparing; a range of all of it is asked for without one."""
    host, _, rest = url.removeprefix("http://").partition("/")
    name, _, port = host.partition(":")
    buffer = bytearray(RECEIVE_BYTES)
    begun_s = time.perf_counter()
    with socket.create_connection((name, int(port))) as connection:
        for start in range(0, size, length):
            stop = min(size, start + length)
            asked = f"Range: bytes={start}-{stop - 1}\r\n" if length < size else ""
            connection.sendall(f"GET /{rest} HTTP/1.1\r\nHost: {host}\r\n{asked}\r\n".encode())
            _read(connection, buffer, start, stop)
    return time.perf_counter() - begun_s


def _read(connection: socket.socket, buffer: bytearray, start: int, stop: int) -> None:
    view, head = memoryview(buffer), b""
    while b"\r\n\r\n" not in head:
        received = connection.recv(65536)
        if not received:
            raise ConnectionError(f"no answer: {head!r}")
        head += received
    head, _, beginning = head.partition(b"\r\n\r\n")
    if head.split()[1] not in {b"200", b"206"}:
        raise ConnectionError(f"{head.decode()}\n{beginning.decode()}")
    if not is_content(start, memoryview(beginning)):
        raise AssertionError(f"wrong bytes at {start}")
    at = start + len(beginning)
    while at < stop:
        count = connection.recv_into(view[: min(RECEIVE_BYTES, stop - at)])
        if not count:
            raise ConnectionError(f"the answer ended at {at} of {stop}")
        if not is_content(at, view[:count]):
            raise AssertionError(f"wrong bytes between {at} and {at + count}")
        at += count


def _presigned(endpoint: str) -> str:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY.access_key,
        aws_secret_access_key=KEY.secret_key,
        region_name=KEY.region,
        config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
    )
    return str(client.generate_presigned_url("get_object", {"Bucket": "data", "Key": "object"}))


# --- Processes -----------------------------------------------------------------------------------------------------------


@contextmanager
def _origin(given: argparse.Namespace) -> Iterator[str]:
    told = (f"--size={given.size}", f"--rate={given.rate}", f"--latency={given.latency}")
    with serving("bench.origin", "counters", *told) as endpoint:
        yield endpoint


@contextmanager
def _gateway(origin: str, directory: Path, memory: str) -> Iterator[tuple[str, int]]:
    settings = {"FOREBAY_CACHE_SIZE": "4GiB"}
    if memory:
        settings["FOREBAY_READAHEAD_MEMORY"] = memory
    with gateway(origin, directory, KEY, **settings) as running:
        yield running


def _counters(origin: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{origin}/-/counters", timeout=5) as answer:
        return dict(json.load(answer))


def _readahead(endpoint: str) -> str:
    with urllib.request.urlopen(f"{endpoint}/metrics", timeout=5) as answer:
        lines = answer.read().decode().splitlines()
    prefix = "forebay_readahead_bytes_total{"
    found = dict(line.removeprefix(prefix).split("} ") for line in lines if line.startswith(prefix))
    return "readahead " + ", ".join(
        f"{labels.split(chr(34))[1]} {float(value) / MIB:.0f} MiB" for labels, value in found.items()
    )


def _processor_s(pid: int) -> float:
    """Give the processor time of all its threads so far (proc(5), stat)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _peak_memory(pid: int) -> int:
    """Give the largest resident size so far (VmHWM)."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
