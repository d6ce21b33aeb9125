"""Processes of their own for the benchmarks, on free ports of the loopback: what is measured, and what measures it."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from storage.origin.signing import SigningIdentity

START_S: Final = 60.0


@contextmanager
def process(module: str, *arguments: str, **settings: str) -> Iterator[int]:
    """Run a module with these variables and none of the machine's own for Forebay and AWS; give its id. It is ended with the block."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FOREBAY_"))
    }
    running = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], env={**inherited, **settings}, stdout=subprocess.DEVNULL
    )
    try:
        yield running.pid
    finally:
        running.kill()
        running.wait()


@contextmanager
def gateway(
    origin: str, cache_dir: Path, identity: SigningIdentity, config: Path | None = None, **settings: str
) -> Iterator[tuple[str, int]]:
    """Run a gateway that takes `identity`, with a file of settings beside these; give its address and process id."""
    port = free_port()
    settings = {
        "FOREBAY_ORIGIN": origin,
        "FOREBAY_ORIGIN_ACCESS_KEY": "any",
        "FOREBAY_ORIGIN_SECRET_KEY": "anyanyanyany",
        "FOREBAY_ACCESS_KEY": identity.access_key,
        "FOREBAY_SECRET_KEY": identity.secret_key,
        "FOREBAY_CACHE_DIR": str(cache_dir),
        "FOREBAY_LISTEN": f"127.0.0.1:{port}",
        "FOREBAY_ACCESS_LOG": "off",
        "FOREBAY_LOG_LEVEL": "error",
        **settings,
    }
    arguments = () if config is None else ("--config", str(config))
    with process("gateway", "serve", *arguments, **settings) as pid:
        wait_for(f"http://127.0.0.1:{port}/-/ready")
        yield f"http://127.0.0.1:{port}", pid


@contextmanager
def serving(module: str, verb: str, *arguments: str) -> Iterator[str]:
    """Run a module that serves at its `--port`, and give its address once it answers `verb`."""
    endpoint = f"http://127.0.0.1:{(port := free_port())}"
    with process(module, "--port", str(port), *arguments):
        wait_for(f"{endpoint}/-/{verb}")
        yield endpoint


def free_port() -> int:
    """Give a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(url: str) -> None:
    """Return when an address answers; TimeoutError where it does not in START_S."""
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        with suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.05)
    raise TimeoutError(f"{url} does not answer")
