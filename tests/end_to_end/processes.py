"""Real processes for end-to-end tests: the gateway as a user starts it, and how any process is started and ended here.

Processes are ended by their id. Ports are free ones at the time of the call; everything listens on 127.0.0.1. What the gateway
logs goes to a file beside its cache directory. Origins are in `origins.py`.
"""

import io
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self, TypeAlias

import boto3  # type: ignore[import-untyped]  # it ships no types
from botocore.config import Config  # type: ignore[import-untyped]  # it ships no types

from gateway.cli import execute
from tests.end_to_end.forked import GATEWAY, ROOT, ForkedProcess, forker

S3Client: TypeAlias = Any
"""boto3 makes its clients at run time; there is no type to name."""

ACCESS_KEY: Final = "gatewaykey"
SECRET_KEY: Final = "gatewaysecretgatewaysecret"
ORIGIN_ACCESS_KEY: Final = "perfkey"
ORIGIN_SECRET_KEY: Final = "perfsecretperfsecret"
REGION: Final = "us-east-1"
START_S: Final = 60.0
PRESIGNING: Final = Config(signature_version="s3v4")
"""boto3 presigns for us-east-1 with Signature Version 2 unless told otherwise; the gateway takes Version 4, as newer regions do."""


def free_port() -> int:
    """Give a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def free_port_pair(offset: int = 10_000) -> int:
    """Give a port P such that P and P + offset were free: SeaweedFS derives its gRPC ports so."""
    for _ in range(100):
        port = free_port()
        if port + offset > 65_535:
            port -= offset
        with socket.socket() as one, socket.socket() as other:
            try:
                one.bind(("127.0.0.1", port))
                other.bind(("127.0.0.1", port + offset))
            except OSError:
                continue
            return port
    raise RuntimeError("no free pair of ports")


def s3_client(
    endpoint: str, access_key: str, secret_key: str, *, config: Config | None = None, **options: object
) -> S3Client:
    """Make a boto3 client as a user would, with default transfer settings and few retries; `config` is laid over it."""
    own = Config(retries={"max_attempts": 2, "mode": "standard"}, s3={"addressing_style": "path"})
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        region_name=REGION,
        config=own if config is None else own.merge(config),
        **options,
    )


def user_environment(**variables: str) -> dict[str, str]:
    """Give this process' environment without the machine's own AWS and Forebay settings, and with `variables`."""
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "FOREBAY_"))
    }
    return {**inherited, **variables}


def program(name: str) -> str | None:
    """Find a program beside this Python, where wheels install theirs, else on the path."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else shutil.which(name)


@contextmanager
def process(command: list[str], cwd: Path = ROOT) -> "Iterator[subprocess.Popen[bytes]]":
    """Run a program until the block ends; then it is killed."""
    process = subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_port(port: int, process: "subprocess.Popen[bytes] | ForkedProcess") -> None:
    """Return when something listens there; RuntimeError where the process ends first."""
    deadline = time.monotonic() + START_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"nothing listens on port {port}")
        time.sleep(0.05)


@dataclass(slots=True)
class GatewayProcess:
    """A gateway that can be killed and started again over the same cache directory.

    Attributes:
        origin: Its origin's endpoint.
        settings: FOREBAY_* variables beside those that every test needs.
        flags: Of `forebay serve`.
        started_s: How long the last start took, from the new process to the first "ready", less the time in which other
            processes had the processors.
        bug: Planted in it: one of `planted.BUGS`, "" none.
    """

    origin: str
    cache_dir: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: "subprocess.Popen[bytes] | ForkedProcess | None" = None
    started_s: float = 0.0
    bug: str = ""

    @property
    def scheme(self) -> str:
        """Say https where a certificate is set."""
        return "https" if "FOREBAY_TLS_CERT" in self.settings else "http"

    @property
    def endpoint(self) -> str:
        """What clients are pointed at."""
        return f"{self.scheme}://127.0.0.1:{self.port}"

    @property
    def log_path(self) -> Path:
        """Where its output goes, of all its lives."""
        return self.cache_dir.with_name(f"{self.cache_dir.name}.log")

    @property
    def environment(self) -> dict[str, str]:
        """The gateway's settings as variables."""
        own = {
            "FOREBAY_ORIGIN": self.origin,
            "FOREBAY_ORIGIN_ACCESS_KEY": ORIGIN_ACCESS_KEY,
            "FOREBAY_ORIGIN_SECRET_KEY": ORIGIN_SECRET_KEY,
            "FOREBAY_ACCESS_KEY": ACCESS_KEY,
            "FOREBAY_SECRET_KEY": SECRET_KEY,
            "FOREBAY_CACHE_DIR": str(self.cache_dir),
            "FOREBAY_CACHE_SIZE": "2GiB",
            "FOREBAY_LISTEN": f"127.0.0.1:{self.port}",
            "FOREBAY_ENDPOINT": self.endpoint,
            "FOREBAY_ACCESS_LOG": "off",
        }
        if self.scheme == "https":
            # What a user sets so that the client commands trust a certificate of their own.
            own["SSL_CERT_FILE"] = self.settings["FOREBAY_TLS_CERT"]
        return {**user_environment(**own), **self.settings}

    def launch(self) -> Self:
        """Start the process and do not wait for it."""
        if not self._is_preloaded:
            arguments = ["serve", *self.flags]
            self.process = forker().start(GATEWAY, arguments, self.environment, self.log_path, bug=self.bug)
            return self
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "gateway", "serve", *self.flags],
                env=self.environment,
                cwd=ROOT,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    @property
    def _is_preloaded(self) -> bool:
        """Whether it needs libraries that are loaded before Python is: a fork would not have them."""
        return "LD_PRELOAD" in self.settings

    def start(self) -> Self:
        """Start, and return when it is ready."""
        begun_s = time.monotonic()
        self.launch()
        self.wait_until_ready()
        self.started_s = time.monotonic() - begun_s - self.queued_s()
        return self

    def wait_until_ready(self) -> None:
        """Return when writes are taken."""
        assert self.process is not None, "not started"
        deadline = time.monotonic() + START_S
        while not self.is_ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"the gateway ended with {self.process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"the gateway is not ready:\n{self.log_tail()}")
            time.sleep(0.01)

    def is_ready(self) -> bool:
        """Whether it takes requests."""
        try:
            return bool(self.get("/-/ready"))
        except OSError:
            return False

    def get(self, path: str) -> bytes:
        """Give what an open path of its own answers; OSError where that is no 200."""
        context = None
        if self.scheme == "https":
            context = ssl.create_default_context(cafile=self.settings["FOREBAY_TLS_CERT"])
        with urllib.request.urlopen(f"{self.endpoint}{path}", timeout=5, context=context) as answer:
            return bytes(answer.read())

    def log_tail(self) -> str:
        """Give the last lines of its output."""
        return "\n".join(self.log_path.read_text(errors="replace").splitlines()[-30:])

    def kill(self) -> None:
        """SIGKILL, as the out-of-memory killer does."""
        assert self.process is not None, "not started"
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s: float = 60.0) -> int:
        """SIGTERM, as a service manager does; give the exit status."""
        assert self.process is not None, "not started"
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def end(self) -> None:
        """End it however it is."""
        if self.process is None or self.process.poll() is not None:
            return
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.kill()

    def client(self, **options: Any) -> S3Client:
        """Speak to the gateway; over TLS its own certificate is what is trusted."""
        if self.scheme == "https":
            options.setdefault("verify", self.settings["FOREBAY_TLS_CERT"])
        return s3_client(self.endpoint, ACCESS_KEY, SECRET_KEY, **options)

    def run(self, *arguments: str, timeout_s: float = 300.0) -> "subprocess.CompletedProcess[str]":
        """Run a command of forebay with its settings, in a process of its own."""
        with tempfile.TemporaryDirectory() as directory:
            out, err = Path(directory, "out"), Path(directory, "err")
            running = forker().start(GATEWAY, arguments, self.environment, out, err)
            try:
                status = running.wait(timeout_s)
            finally:
                running.kill()
            return subprocess.CompletedProcess(arguments, status, out.read_text(), err.read_text())

    def execute(self, *arguments: str) -> tuple[int, str, str]:
        """Do as `run` in this process; give status, output and errors."""
        environment = self.environment
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err), _variable("SSL_CERT_FILE", environment):
            status = execute(arguments, environment)
        return status, out.getvalue(), err.getvalue()

    def flush(self, place: str) -> None:
        """Do what `forebay flush PLACE --wait` does, which must succeed."""
        status, out, err = self.execute("flush", place, "--wait")
        assert status == 0, f"{out}\n{err}\n{self.log_tail()}"

    def metric(self, name: str) -> float:
        """Give one sample of /metrics, named with its labels as the exposition writes it; 0 where it is not there."""
        for line in self.get("/metrics").decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.rsplit(" ", 1)[1])
        return 0.0

    def peak_memory_bytes(self) -> int:
        """Give the largest resident size so far (VmHWM)."""
        assert self.process is not None, "not started"
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) * 1024

    def queued_s(self) -> float:
        """Give how long its main thread was ready to run while others had the processors (proc(5), schedstat)."""
        assert self.process is not None, "not started"
        return int(Path(f"/proc/{self.process.pid}/schedstat").read_text().split()[1]) / 1e9


@contextmanager
def _variable(name: str, environment: Mapping[str, str]) -> Iterator[None]:
    """Take one variable over from an environment; OpenSSL reads it from this process' own."""
    before = os.environ.get(name)
    if name in environment:
        os.environ[name] = environment[name]
    try:
        yield
    finally:
        os.environ.pop(name, None)
        if before is not None:
            os.environ[name] = before


@contextmanager
def gateway(
    origin: str, cache_dir: Path, *flags: str, bug: str = "", **settings: str
) -> Iterator[GatewayProcess]:
    """Run a gateway; `settings` are FOREBAY_* variables without the prefix, in lower case, `flags` those of `forebay serve`."""
    variables = {f"FOREBAY_{name.upper()}": value for name, value in settings.items()}
    running = GatewayProcess(origin, cache_dir, variables, flags, bug=bug)
    try:
        yield running.start()
    finally:
        running.end()
