"""A warm-up as a pipeline runs it: a gateway as a process over moto, the command line, and boto3 behind it."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from storage.types import MIB
from tests.end_to_end.content import content
from tests.end_to_end.forked import ROOT
from tests.end_to_end.origins import Origin
from tests.end_to_end.processes import GatewayProcess, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_a_dataset_is_read_without_the_origin_when_it_was_warmed(
    moto: Origin, make_bucket: Callable[[Origin], str], cache_dir: Path, tmp_path: Path
) -> None:
    """The command says that all is warm, and boto3 reads, heads and finds every object in the cache; a list does the same."""
    bucket = make_bucket(moto)
    bodies = {f"set/{n:03}": content(n, 1000 + 700 * n) for n in range(40)}
    bodies |= {"set/large": content(99, 5 * MIB + 17), "set/empty": b"", "more/a b+ü": content(7, 50_000)}
    for key, body in bodies.items():
        moto.client().put_object(Bucket=bucket, Key=key, Body=body, Metadata={"of": "training"})
    names = tmp_path / "keys.txt"
    names.write_text("more/a b+ü\nnot/there\n")
    with gateway(moto.endpoint, cache_dir) as running:
        client = running.client()

        warmed = running.execute("warm", f"s3://{bucket}/set/", "--fail-under", "100")
        listed = running.execute("warm", f"s3://{bucket}", "--from", str(names), "--fail-under", "60")
        gets = running.metric('forebay_origin_requests_total{operation="GetObject",status="200"}')
        heads = [client.head_object(Bucket=bucket, Key=key) for key in bodies]
        answers = {key: client.get_object(Bucket=bucket, Key=key) for key in bodies}
        read = {key: answer["Body"].read() for key, answer in answers.items()}
        gets_after = running.metric('forebay_origin_requests_total{operation="GetObject",status="200"}')
        again = running.execute("warm", f"s3://{bucket}/set/")
        explained = running.execute("explain", f"s3://{bucket}/set/large")
        brought = running.metric('forebay_warmup_objects_total{result="brought"}')

    assert (warmed[0], warmed[1].splitlines()[-1][:32]) == (0, "42 of 42 objects warm (100.00%):")
    assert listed[0] == 3
    assert "1 of 2 objects warm (50.00%)" in listed[1]
    assert f"s3://{bucket}/not/there" in listed[1]
    assert read == bodies
    for answer in (*heads, *answers.values()):
        assert answer["ResponseMetadata"]["HTTPHeaders"]["x-cache"] == "HIT"
        assert answer["Metadata"] == {"of": "training"}
    assert gets_after == gets
    assert again[0] == 0
    assert "0 fetched (0 B), 42 were here" in again[1]
    assert explained[0] == 0
    assert "all of it, 5.0 MiB" in explained[1]
    assert brought == len(bodies)


def begin(running: GatewayProcess, bucket: str) -> "subprocess.Popen[bytes]":
    """Begin a warm-up of what will be written to the command."""
    return subprocess.Popen(
        [sys.executable, "-m", "gateway", "warm", f"s3://{bucket}", "--from", "-"],
        env=running.environment,
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )


def wait_for(running: GatewayProcess, line: str) -> None:
    """Return when the list of warm-ups has such a line; the test's time-out bounds it."""
    while line not in running.execute("warm", "--status")[1]:
        time.sleep(0.3)


def test_a_list_breaks_off_when_its_command_is_killed_and_not_when_it_is_stopped(
    moto: Origin, make_bucket: Callable[[Origin], str], cache_dir: Path
) -> None:
    """What came down the pipe before was fetched, and the job fails soon; a command that is stopped goes on when it is continued."""
    bucket = make_bucket(moto)
    for number in range(3):
        moto.client().put_object(Bucket=bucket, Key=f"k{number}", Body=bytes(1000))
    with (
        gateway(moto.endpoint, cache_dir) as running,
        begin(running, bucket) as killed,
        begin(running, bucket) as stopped,
    ):
        try:
            for command in (killed, stopped):
                assert command.stdin is not None
                command.stdin.write(b"k0\nk1\n")
                command.stdin.flush()
            wait_for(running, "warm-up 1   running   a list: 2 of 2+ objects")
            wait_for(running, "warm-up 2   running   a list: 2 of 2+ objects")

            stopped.send_signal(signal.SIGSTOP)
            killed.kill()
            wait_for(running, "failed    a list: 2 of 2+ objects")
            after = running.execute("warm", "--status")[1]
            stopped.send_signal(signal.SIGCONT)
            stopped.communicate(b"k2\n", timeout=60)
        finally:
            killed.kill()
            stopped.kill()

    assert after.count("failed") == 1
    assert after.count("running   a list: 2 of 2+ objects") == 1
    assert stopped.returncode == 0
