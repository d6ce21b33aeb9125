"""The example of docs/access.md on a real gateway: a team's key, one that only reads, one with its own authority, and nobody."""

import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
from botocore.exceptions import ClientError  # type: ignore[import-untyped]  # it ships no types

from tests.end_to_end.origins import fake_origin
from tests.end_to_end.processes import (
    ORIGIN_ACCESS_KEY,
    ORIGIN_SECRET_KEY,
    GatewayProcess,
    S3Client,
    gateway,
    s3_client,
)

CONFIG = """
[[keys]]
access_key = "team"
secret_key = "change-me"
grants = ["read,write s3://data/team/*", "read s3://data/common/*"]

[[keys]]
access_key = "dashboard"
secret_key = "change-me"
grants = ["read s3://data/team/results/*"]

[[keys]]
access_key = "partner"
secret_key = "change-me"
origin_access_key = "partner-at-origin"
origin_secret_key = "change-me-too"
"""
OPEN_TO_ALL = '[[keys]]\nanonymous = true\ngrants = ["read s3://data/common/*"]\n'


def code(call: Callable[[], object]) -> str:
    """Give the code of a refusal, "" where there is none."""
    try:
        call()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return ""


def signing_as(running: GatewayProcess, access_key: str) -> S3Client:
    """Make a client with one of the keys."""
    return s3_client(running.endpoint, access_key, "change-me")


def unsigned(running: GatewayProcess, path: str) -> tuple[int, bytes]:
    """Read without a signature."""
    try:
        with urllib.request.urlopen(f"{running.endpoint}/{path}", timeout=30) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, b""


@pytest.mark.slow
def test_each_key_sees_and_does_what_it_may(tmp_path: Path) -> None:
    """Objects that are cached, dirty and cold: for each key its own, whoever wrote or fetched them; a reload opens a prefix."""
    config = tmp_path / "forebay.toml"
    config.write_text(CONFIG)
    flags = ("--config", str(config), "--flush-delay", "10m")
    with fake_origin("--bucket", "data") as origin:
        origin.set_keys(
            {ORIGIN_ACCESS_KEY: ORIGIN_SECRET_KEY, "partner-at-origin": "change-me-too"},
            {"partner-at-origin": ["data/team/results/"]},
        )
        with gateway(origin.endpoint, tmp_path / "cache", *flags) as running:
            admin, team, dashboard, partner = (
                running.client(),
                *(signing_as(running, key) for key in ("team", "dashboard", "partner")),
            )
            admin.put_object(Bucket="data", Key="common/set", Body=b"common")
            team.put_object(Bucket="data", Key="team/results/r", Body=b"result")
            team.put_object(Bucket="data", Key="team/draft", Body=b"draft")

            assert team.get_object(Bucket="data", Key="common/set")["Body"].read() == b"common"
            assert code(lambda: team.put_object(Bucket="data", Key="common/set", Body=b"")) == "AccessDenied"
            assert code(lambda: team.list_objects_v2(Bucket="data")) == "AccessDenied"
            for reader in (dashboard, partner):
                assert reader.get_object(Bucket="data", Key="team/results/r")["Body"].read() == b"result"
                listed = reader.list_objects_v2(Bucket="data", Prefix="team/results/")
                assert [line["Key"] for line in listed["Contents"]] == ["team/results/r"]
                for key in ("team/draft", "common/set", "nothing"):
                    assert code(lambda: reader.get_object(Bucket="data", Key=key)) == "AccessDenied"  # noqa: B023  # called at once
                    assert code(lambda: reader.head_object(Bucket="data", Key=key)) == "403"  # noqa: B023
            assert (
                code(lambda: dashboard.delete_object(Bucket="data", Key="team/results/r")) == "AccessDenied"
            )
            assert code(lambda: partner.delete_object(Bucket="data", Key="team/draft")) == "AccessDenied"
            partner.put_object(Bucket="data", Key="team/results/p", Body=b"partner's")
            stored = origin.client().get_object(Bucket="data", Key="team/results/p")
            assert stored["Body"].read() == b"partner's"

            assert unsigned(running, "data/common/set")[0] == 403
            config.write_text(CONFIG + OPEN_TO_ALL)
            assert running.process is not None
            running.process.send_signal(signal.SIGHUP)
            deadline_s = time.monotonic() + 20
            while unsigned(running, "data/common/set") != (200, b"common"):
                assert time.monotonic() < deadline_s, "the rights are not taken over"
                time.sleep(0.02)
            assert unsigned(running, "data/team/draft")[0] == 403
            assert running.stop() == 0
