"""`forebay demo`: a whole gateway on this machine, over moto's S3 server as its origin.

moto runs in a process of its own, in its own session, so that Ctrl-C reaches only the gateway, which then can flush and stop
in order before its origin goes. Everything is thrown away at the end: moto keeps its objects in memory, and a cache directory
without its origin is of no use.
"""

import dataclasses
import http.client
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from gateway import app
from gateway.client import GatewayClient, GatewayError
from gateway.settings import Settings, SettingsError
from storage.clock import Clock, SystemClock

BUCKET: Final = "demo"
ACCESS_KEY: Final = "demo-access-key"
SECRET_KEY: Final = "demo-secret-key"  # noqa: S105  # printed on the screen, for a server on the loopback

START_S: Final = 30.0
"""So long may moto take to answer; it takes two seconds."""

STOP_S: Final = 5.0
"""So long may it take to stop before it is killed."""

_POLL_S: Final = 0.1


def run(settings: Settings, *, write: Callable[[str], None]) -> None:
    """Run the demo until Ctrl-C.

    Args:
        settings: Keys are made up where there are none; a named `cache_dir` gets a directory of the demo's in it.
        write: Where the text for people goes.

    Raises:
        SettingsError: moto is not installed.
        GatewayError: moto does not come up.
    """
    with _cache_directory(settings.cache_dir) as cache_dir, _moto() as origin:
        demo_settings = dataclasses.replace(
            settings,
            origin=origin,
            origin_access_key=ACCESS_KEY,
            origin_secret_key=SECRET_KEY,
            cache_dir=str(cache_dir),
            access_key=settings.access_key or ACCESS_KEY,
            secret_key=settings.secret_key or SECRET_KEY,
            access_log="off" if settings.access_log == "-" else settings.access_log,
        )
        create_bucket(origin)
        app.run(
            demo_settings,
            should_drain=True,
            announce=lambda listening: write(welcome(demo_settings, listening, origin)),
        )


def welcome(settings: Settings, listening: app.Listening, origin: str) -> str:
    """Write what a person needs to try the gateway."""
    return f"""
Forebay demo. Ctrl-C ends it; nothing is kept.

  endpoint    {listening.endpoint}
  access key  {settings.access_key}
  secret key  {settings.secret_key}
  bucket      {BUCKET}
  metrics     {listening.metrics}
  origin      {origin} (moto, in memory)
  cache       {settings.cache_dir}

Try it:

  import boto3
  s3 = boto3.client("s3", endpoint_url="{listening.endpoint}", region_name="us-east-1",
                    aws_access_key_id="{settings.access_key}", aws_secret_access_key="{settings.secret_key}")
  s3.put_object(Bucket="{BUCKET}", Key="hello", Body=b"world")
  print(s3.get_object(Bucket="{BUCKET}", Key="hello")["Body"].read())

"""


def create_bucket(origin: str) -> None:
    """Create the demo's bucket at the origin.

    Raises:
        GatewayError: The origin refused.
    """
    GatewayClient(origin, ACCESS_KEY, SECRET_KEY, SystemClock().wall_s).call("PUT", f"/{BUCKET}")


@contextmanager
def _cache_directory(parent: str) -> Iterator[Path]:
    if parent:
        Path(parent).mkdir(parents=True, exist_ok=True)
    path = Path(tempfile.mkdtemp(prefix="forebay-demo-", dir=parent or None))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def _moto() -> Iterator[str]:
    """Run moto's server on a free port until the block ends; give its endpoint."""
    port = _free_port()
    process = subprocess.Popen(  # noqa: S603  # our own interpreter
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_until_up(process, port, SystemClock())
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_up(process: "subprocess.Popen[bytes]", port: int, clock: Clock) -> None:
    deadline_s = clock.monotonic_s() + START_S
    pause = threading.Event()
    while clock.monotonic_s() < deadline_s:
        if process.poll() is not None:
            raise SettingsError("demo: moto's server does not start; install it: pip install 'forebay[demo]'")
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        try:
            connection.request("GET", "/moto-api/")
            connection.getresponse().read()
        except (OSError, http.client.HTTPException):
            pause.wait(_POLL_S)
        else:
            return
        finally:
            connection.close()
    raise GatewayError(f"moto's server did not answer within {START_S:.0f} s")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
