"""A pytest plugin for the suite ceph/s3-tests: a clean-up that no missing operation makes into an error.

The suite itself removes its buckets with ListObjectVersions, so that over an origin without it every test would be an error.
"""

import time
from collections.abc import Mapping
from typing import Any, Final

import boto3  # type: ignore[import-untyped]  # it ships no types
import s3tests.functional as suite  # type: ignore[import-not-found]  # in the clone
from botocore.client import Config  # type: ignore[import-untyped]  # it ships no types
from botocore.exceptions import BotoCoreError, ClientError  # type: ignore[import-untyped]  # it ships no types

EMPTYING_S: Final = 15.0
ROUNDS_MAX: Final = 30

FAILED: Final = (ClientError, BotoCoreError)

_clients: dict[str, Any] = {}
_stuck: set[str] = set()


def pytest_configure() -> None:
    """Replace the suite's clean-up."""
    suite.setup = lambda: None
    suite.teardown = _remove_buckets


def _remove_buckets() -> None:
    """Remove the buckets of both users that the suite has made."""
    config = suite.config
    users = {config.main_access_key: config.main_secret_key, config.alt_access_key: config.alt_secret_key}
    for access_key, secret_key in users.items():
        client = _client(access_key, secret_key)
        try:
            buckets = client.list_buckets().get("Buckets", [])
        except FAILED:
            continue
        for bucket in buckets:
            name = bucket["Name"]
            if name.startswith(suite.prefix) and name not in _stuck:
                _remove_bucket(client, name)


def _client(access_key: str, secret_key: str) -> Any:
    if access_key not in _clients:
        _clients[access_key] = boto3.client(
            "s3",
            aws_access_key_id=access_key,
            aws_secret_access_key=secret_key,
            region_name="us-east-1",
            endpoint_url=suite.config.default_endpoint,
            verify=False,
            config=Config(
                signature_version="s3v4",
                retries={"total_max_attempts": 1},
                read_timeout=10,
                connect_timeout=5,
                s3={"addressing_style": "path"},
            ),
        )
    return _clients[access_key]


def _remove_bucket(client: Any, bucket: str) -> None:
    deadline = time.monotonic() + EMPTYING_S
    for upload in _answer(client.list_multipart_uploads, Bucket=bucket).get("Uploads", []):
        _answer(client.abort_multipart_upload, Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
    for _ in range(ROUNDS_MAX):
        found = _contents(client, bucket)
        if not found or time.monotonic() > deadline or not _delete(client, bucket, found):
            break
    try:
        client.delete_bucket(Bucket=bucket)
    except FAILED as error:
        if not isinstance(error, ClientError) or error.response["Error"]["Code"] != "NoSuchBucket":
            _stuck.add(bucket)


def _contents(client: Any, bucket: str) -> list[Mapping[str, str]]:
    """Give some of what a bucket holds: versions and markers, or objects where there are none."""
    answer = _answer(client.list_object_versions, Bucket=bucket, MaxKeys=500)
    lines = answer.get("Versions", []) + answer.get("DeleteMarkers", [])
    if lines:
        return [{"Key": line["Key"], "VersionId": line["VersionId"]} for line in lines]
    answer = _answer(client.list_objects, Bucket=bucket, MaxKeys=500)
    return [{"Key": line["Key"]} for line in answer.get("Contents", [])]


def _delete(client: Any, bucket: str, found: list[Mapping[str, str]]) -> bool:
    """Delete what was found; say whether anything went."""
    batch = {"Objects": found, "Quiet": True}
    answer = _answer(client.delete_objects, Bucket=bucket, Delete=batch, BypassGovernanceRetention=True)
    if answer and len(answer.get("Errors", [])) < len(found):
        return True
    gone = [
        _answer(client.delete_object, Bucket=bucket, BypassGovernanceRetention=True, **one) for one in found
    ]
    return any(gone)


def _answer(call: Any, **arguments: Any) -> dict[str, Any]:
    """Give an answer, an empty one where the call fails."""
    try:
        answer: dict[str, Any] = call(**arguments)
    except FAILED:
        return {}
    return answer
