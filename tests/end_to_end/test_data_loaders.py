"""The examples of docs/data-loaders.md, run as they stand but for the address, the keys and what needs torch."""

import io
import os
import re
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.end_to_end.content import content
from tests.end_to_end.forked import ROOT
from tests.end_to_end.origins import Origin
from tests.end_to_end.processes import ACCESS_KEY, SECRET_KEY, GatewayProcess, gateway, program

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

WAIT_S: Final = 60.0


def examples(running: GatewayProcess) -> dict[str, Any]:
    """Run all examples that need nothing but boto3; give their names."""
    page = (ROOT / "docs" / "data-loaders.md").read_text()
    names: dict[str, Any] = {}
    for source in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE):
        if "torch" not in source.partition("\n\n\n")[0]:
            own = source.replace("http://127.0.0.1:9000", running.endpoint)
            own = own.replace("demo-access-key", ACCESS_KEY).replace("demo-secret-key", SECRET_KEY)
            exec(compile(own, "data-loaders.md", "exec"), names)
    return names


def test_examples_do_what_they_say_when_they_are_run(
    moto: Origin,
    make_bucket: Callable[[Origin], str],
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A dataset reads its samples, an order is fetched ahead; a shard gives its members."""
    bucket = make_bucket(moto)
    bodies = {f"recordings/{n}": content(n, 1000 + n) for n in range(8)}
    for key, body in (*bodies.items(), ("shard-0.tar", shard(bodies))):
        moto.client().put_object(Bucket=bucket, Key=key, Body=body)
    forebay = program("forebay")
    assert forebay is not None
    with gateway(moto.endpoint, cache_dir) as running:
        for name in ("ENDPOINT", "ACCESS_KEY", "SECRET_KEY"):
            monkeypatch.setenv(f"FOREBAY_{name}", running.environment[f"FOREBAY_{name}"])
        monkeypatch.setenv("PATH", f"{Path(forebay).parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.chdir(ROOT)
        named = examples(running)
        samples = named["Samples"](bucket, "recordings/")

        order = named["reading_order"]([[0, 1, 2], [3, 4, 5], [6, 7]], 2)
        named["hand_over"](bucket, [samples.keys[index] for index in order], ahead=4)
        brought = wait_for(running, 'forebay_warmup_objects_total{result="brought"}', 4)
        read = {samples.keys[index]: samples[index] for index in range(len(samples))}
        members = dict(named["members"](samples.s3(), bucket, "shard-0.tar"))

    assert order == [0, 3, 1, 4, 2, 5, 6, 7]
    assert brought == 4
    assert read == bodies
    assert members == bodies


def shard(bodies: dict[str, bytes]) -> bytes:
    """Write a tar."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w") as tar:
        for name, body in bodies.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    return written.getvalue()


def wait_for(running: GatewayProcess, metric: str, value: float) -> float:
    """Wait until a metric is as large, and give it."""
    deadline_s = time.monotonic() + WAIT_S
    while running.metric(metric) < value and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return running.metric(metric)


def test_shards_are_dealt_to_every_worker_once_and_stay_with_their_machine() -> None:
    """Over all machines and workers each shard is read once an epoch, in another order, on the same machine."""
    page = (ROOT / "docs" / "data-loaders.md").read_text()
    (source,) = [
        one
        for one in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        if "def shards_of" in one
    ]
    names: dict[str, Any] = {}
    exec(compile(source, "data-loaders.md", "exec"), names)
    shards = [f"shard-{n}.tar" for n in range(60)]

    dealt = {
        (epoch, rank, worker): names["shards_of"](shards, epoch, rank, 3, worker, 2)
        for epoch in (1, 2)
        for rank in range(3)
        for worker in range(2)
    }

    for epoch in (1, 2):
        assert sorted(name for (at, _, _), own in dealt.items() if at == epoch for name in own) == sorted(
            shards
        )
    for rank in range(3):
        first, second = (dealt[epoch, rank, 0] + dealt[epoch, rank, 1] for epoch in (1, 2))
        assert first != second
        assert sorted(first) == sorted(second)
