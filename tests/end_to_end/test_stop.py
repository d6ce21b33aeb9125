"""How the gateway stops and starts, and what its commands say: exit status and lines are what scripts and people rely on."""

import http.client
import signal
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # it ships no types

from storage.types import MIB
from tests.end_to_end.content import content
from tests.end_to_end.origins import FakeOriginProcess, fake_origin
from tests.end_to_end.processes import PRESIGNING, GatewayProcess, S3Client, free_port, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

OBJECTS = {f"k{n:02}": content(n, 1000 + n * 4000) for n in range(20)}


@pytest.fixture
def running(fake: FakeOriginProcess, cache_dir: Path) -> Iterator[GatewayProcess]:
    """Run a gateway over the fake origin."""
    with gateway(fake.endpoint, cache_dir) as started:
        yield started


# --- the stop ------------------------------------------------------------------------------------------------------------


def test_sigterm_lets_a_running_upload_finish(running: GatewayProcess) -> None:
    """A PUT under way at SIGTERM is answered 200 and kept; new connections are refused; the exit status is 0."""
    body = content(1, 2 * MIB)
    url = urlsplit(
        running.client(config=PRESIGNING).generate_presigned_url(
            "put_object", Params={"Bucket": "data", "Key": "k"}
        )
    )
    connection = http.client.HTTPConnection(url.netloc, timeout=30)
    connection.putrequest("PUT", f"{url.path}?{url.query}")
    connection.putheader("Content-Length", str(len(body)))
    connection.endheaders()
    connection.send(body[:MIB])
    time.sleep(0.3)

    assert running.process is not None
    running.process.send_signal(signal.SIGTERM)
    _wait_until_refused(running.port)
    connection.send(body[MIB:])
    status = connection.getresponse().status
    connection.close()
    exit_status = running.process.wait(30)
    running.start()
    read = _read(running.client(), "k")

    assert status == 200
    assert exit_status == 0
    assert read == body


def test_sigterm_keeps_the_dirty_queue_for_the_next_start(
    fake: FakeOriginProcess, running: GatewayProcess
) -> None:
    """A stop with an origin that takes nothing is quick and loses nothing: the next start flushes by itself."""
    fake.add_fault(operation="PutObject", times=-1, status=503, code="SlowDown")
    client = running.client()
    for key, body in OBJECTS.items():
        client.put_object(Bucket="data", Key=key, Body=body)

    begun_s = time.monotonic()
    exit_status = running.stop()
    stopped_s = time.monotonic() - begun_s
    stored_at_stop = _keys(fake.client())
    fake.clear_faults()
    running.start()
    read = {key: _read(running.client(), key) for key in OBJECTS}
    _wait_until(lambda: running.metric("forebay_writeback_pending_objects") == 0)
    origin = fake.client()
    at_origin = {key: _read(origin, key) for key in _keys(origin)}

    assert exit_status == 0
    assert stopped_s < 10
    assert stored_at_stop == []
    assert read == OBJECTS
    assert at_origin == OBJECTS


def test_drain_flushes_everything_before_the_end(fake: FakeOriginProcess, cache_dir: Path) -> None:
    """With --drain the origin has all that was acknowledged when the process has ended, with status 0."""
    with gateway(fake.endpoint, cache_dir, "--drain", flush_delay="1h") as running:
        client = running.client()
        for key, body in OBJECTS.items():
            client.put_object(Bucket="data", Key=key, Body=body)
        stored_before = _keys(fake.client())
        fake.set_latency(0.1)

        exit_status = running.stop()

    fake.set_latency(0.0)
    origin = fake.client()
    assert stored_before == []
    assert exit_status == 0
    assert {key: _read(origin, key) for key in _keys(origin)} == OBJECTS


def test_a_second_signal_ends_a_drain_that_gets_nowhere(fake: FakeOriginProcess, cache_dir: Path) -> None:
    """Whoever does not want to wait for the drain sends the signal again; nothing is lost by it."""
    # After such an end the next start looks once more, after this time, at what it sent.
    with gateway(fake.endpoint, cache_dir, "--drain", origin_timeout_s="1s") as running:
        fake.add_fault(operation="PutObject", times=-1, status=503, code="SlowDown")
        running.client().put_object(Bucket="data", Key="k", Body=b"body")
        assert running.process is not None

        running.process.send_signal(signal.SIGTERM)
        _wait_until(lambda: "draining" in running.log_path.read_text())
        is_waiting = running.process.poll() is None
        exit_status = running.stop()
        fake.clear_faults()
        running.start()
        running.flush("s3://data/")

    assert is_waiting
    assert exit_status == -signal.SIGTERM
    assert _read(fake.client(), "k") == b"body"


# --- the start -----------------------------------------------------------------------------------------------------------


def test_start_is_refused_when_the_directory_is_in_use(running: GatewayProcess) -> None:
    """A second gateway on the same directory ends with one line that says what to do, and does not disturb the first."""
    second = GatewayProcess(running.origin, running.cache_dir)

    done = second.run("serve")

    assert done.returncode == 1
    assert _last_line(done.stderr) == (
        "forebay: the cache directory is in use by another process; stop it first"
    )
    assert "Traceback" not in done.stderr
    assert running.is_ready()


def test_start_is_refused_when_the_directory_belongs_to_another_origin(running: GatewayProcess) -> None:
    """What is cached and pending of one bucket must not be mixed with another's; the line names the way out."""
    running.stop()
    other = GatewayProcess(f"http://127.0.0.1:{free_port()}", running.cache_dir)

    done = other.run("serve")

    assert done.returncode == 1
    assert running.origin in _last_line(done.stderr)
    assert "--drain" in _last_line(done.stderr)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "settings", "named"),
    [
        (["serve", "--cache-size", "lots"], {}, "cache_size"),
        (["serve"], {"FOREBAY_ORIGIN": "127.0.0.1:9000"}, "origin"),
        (["serve"], {"FOREBAY_ORIGIN": ""}, "origin"),
    ],
    ids=["flag", "variable", "nothing"],
)
def test_one_line_names_what_is_wrong_when_a_setting_is(
    tmp_path: Path, arguments: list[str], settings: dict[str, str], named: str
) -> None:
    """A wrong setting ends the start with status 2 and one line that names it and says what is allowed."""
    command = GatewayProcess(f"http://127.0.0.1:{free_port()}", tmp_path / "cache", settings)

    done = command.run(*arguments)

    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert named in done.stderr
    assert "allowed: " in done.stderr


def test_gateway_starts_and_works_when_the_origin_is_away(cache_dir: Path) -> None:
    """Cached objects are read and writes taken without the origin; what needs it fails; all is flushed when it is back."""
    port = free_port()
    with fake_origin("--bucket", "data", port=port) as origin:
        endpoint = origin.endpoint
        with gateway(endpoint, cache_dir, origin_timeout_s="1s") as running:
            running.client().put_object(Bucket="data", Key="cached", Body=b"cached")
            running.flush("s3://data/")
    with gateway(endpoint, cache_dir, origin_timeout_s="1s") as running:
        client = running.client()

        cached = _read(client, "cached")
        client.put_object(Bucket="data", Key="new", Body=b"new")
        new = _read(client, "new")
        with pytest.raises(ClientError) as refused:
            client.get_object(Bucket="data", Key="never-seen")
        with fake_origin("--bucket", "data", port=port) as origin:
            running.flush("s3://data/")
            at_origin = _read(origin.client(), "new")

    assert (cached, new, at_origin) == (b"cached", b"new", b"new")
    assert refused.value.response["ResponseMetadata"]["HTTPStatusCode"] in {500, 502, 503, 504}


# --- the commands --------------------------------------------------------------------------------------------------------


def test_status_shows_what_is_pending_and_where(fake: FakeOriginProcess, running: GatewayProcess) -> None:
    """`forebay status` says in lines for people how much waits for its flush, of which origin, and how full the cache is."""
    fake.add_fault(operation="PutObject", times=-1, status=503, code="SlowDown")
    running.client().put_object(Bucket="data", Key="k", Body=content(1, 3 * MIB))

    done = running.run("status")

    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if " " in line)
    assert done.returncode == 0
    assert done.stderr == ""
    assert done.stdout.splitlines()[0] == "serving"
    assert lines["origin"].startswith(f"{fake.endpoint}, ")
    assert lines["write-back"].startswith("1 pending, 3.0 MiB, oldest ")
    assert "of 2.0 GiB, 3.0 MiB dirty" in lines["cache"]


def test_command_fails_in_one_line_when_no_gateway_answers(tmp_path: Path) -> None:
    """Without a gateway a command ends with status 1 and says which endpoint does not answer."""
    stopped = GatewayProcess(f"http://127.0.0.1:{free_port()}", tmp_path / "cache")

    done = stopped.run("flush", "s3://data/", "--wait")

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith(f"forebay: {stopped.endpoint} does not answer")
    assert done.stderr.count("\n") == 1


def test_flush_waits_until_the_origin_has_what_was_acknowledged(
    fake: FakeOriginProcess, running: GatewayProcess
) -> None:
    """`forebay flush --wait` returns 0 when all under the prefix is at the origin; without --wait it returns at once."""
    client = running.client()
    client.put_object(Bucket="data", Key="warm", Body=b"")
    fake.set_latency(0.3)
    for key, body in OBJECTS.items():
        client.put_object(Bucket="data", Key=key, Body=body)

    begun = running.run("flush", "s3://data/k")
    waited = running.run("flush", "s3://data/k", "--wait")
    fake.set_latency(0.0)

    origin = fake.client()
    assert (begun.returncode, waited.returncode) == (0, 0)
    assert begun.stdout.startswith("barrier ")
    assert {key: _read(origin, key) for key in OBJECTS} == OBJECTS


def test_flush_lists_what_is_not_at_the_origin_and_why(
    fake: FakeOriginProcess, running: GatewayProcess
) -> None:
    """What the origin refuses for good is listed with its reason, status 1; the rest is flushed; `retry` sends it again."""
    fake.add_fault(operation="PutObject", key="data/bad", times=-1, status=400, code="InvalidRequest")
    client = running.client()
    client.put_object(Bucket="data", Key="bad", Body=b"bad")
    client.put_object(Bucket="data", Key="good", Body=b"good")

    blocked = running.run("flush", "s3://data/", "--wait")
    status = running.run("status")
    good = _read(fake.client(), "good")
    still_readable = _read(client, "bad")
    fake.clear_faults()
    retried = running.run("retry", "s3://data/")
    flushed = running.run("flush", "s3://data/", "--wait")

    assert blocked.returncode == 1
    assert "s3://data/bad (3 B, " in blocked.stdout
    assert "InvalidRequest" in blocked.stdout
    assert "s3://data/bad" in status.stdout
    assert (good, still_readable) == (b"good", b"bad")
    assert (retried.returncode, flushed.returncode) == (0, 0)
    assert _read(fake.client(), "bad") == b"bad"


def test_fsck_finds_nothing_when_the_gateway_was_stopped_or_killed(running: GatewayProcess) -> None:
    """A directory is whole after a stop and after a kill; fsck says so with status 0 and changes nothing."""
    client = running.client()
    for key, body in OBJECTS.items():
        client.put_object(Bucket="data", Key=key, Body=body)

    running.stop()
    before = _files(running.cache_dir)
    stopped = running.run("fsck")
    after = _files(running.cache_dir)
    running.start()
    running.client().put_object(Bucket="data", Key="more", Body=b"more")
    running.kill()
    killed = running.run("fsck")

    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    assert before == after
    assert killed.returncode == 0, killed.stdout + killed.stderr


def test_fsck_names_what_is_wrong_when_a_segment_is_damaged(
    fake: FakeOriginProcess, running: GatewayProcess
) -> None:
    """A flipped byte in a dirty body is found: status 1, and a line that names the object."""
    fake.add_fault(operation="PutObject", times=-1, status=503, code="SlowDown")
    running.client().put_object(Bucket="data", Key="precious", Body=content(1, 2 * MIB))
    running.stop()
    segment = max((running.cache_dir / "segments").iterdir(), key=lambda path: path.stat().st_size)
    with segment.open("r+b") as file:
        file.seek(MIB)
        byte = file.read(1)
        file.seek(MIB)
        file.write(bytes([byte[0] ^ 0xFF]))

    done = running.run("fsck")

    assert done.returncode == 1
    assert "s3://data/precious" in done.stdout + done.stderr


def test_fsck_is_refused_when_a_gateway_has_the_directory(running: GatewayProcess) -> None:
    """Fsck reads a directory at rest only: one line, which says the way on, status 1."""
    done = running.run("fsck")

    assert done.returncode == 1
    line = _last_line(done.stderr)
    assert line.startswith("forebay: the cache directory is in use by another process; stop it first")
    assert line.endswith("Nothing was read or changed")


def _wait_until_refused(port: int) -> None:
    """Return when nothing listens there any more."""
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        assert time.monotonic() < deadline, "new connections are still taken"
        time.sleep(0.05)


def _read(client: S3Client, key: str) -> bytes:
    return bytes(client.get_object(Bucket="data", Key=key)["Body"].read())


def _keys(client: S3Client) -> list[str]:
    return [str(one["Key"]) for one in client.list_objects_v2(Bucket="data").get("Contents", [])]


def _last_line(text: str) -> str:
    return text.rstrip("\n").rpartition("\n")[2]


def _files(directory: Path) -> dict[str, tuple[int, int]]:
    found = [path for path in directory.rglob("*") if path.is_file()]
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in found}


def _wait_until(is_so: Callable[[], bool], timeout_s: float = 30.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not is_so():
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.05)
