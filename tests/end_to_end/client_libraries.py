"""S3 clients that are Python packages, behind the ports of `client_ports.py`.

A package is imported when its client is made: not every machine has all of them.
"""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from storage.types import MIB
from tests.end_to_end.client_ports import Place
from tests.end_to_end.processes import s3_client


class Boto3:
    """boto3, as most Python programs use it."""

    def __init__(self, place: Place) -> None:
        self._client = s3_client(place.endpoint, place.access_key, place.secret_key)
        self._bucket = place.bucket

    def put(self, key: str, body: bytes) -> None:
        self._client.upload_fileobj(BytesIO(body), self._bucket, key)

    def get(self, key: str) -> bytes:
        into = BytesIO()
        self._client.download_fileobj(self._bucket, key, into)
        return into.getvalue()

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        answer = self._client.get_object(Bucket=self._bucket, Key=key, Range=f"bytes={start}-{stop - 1}")
        return bytes(answer["Body"].read())

    def keys(self, prefix: str) -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=prefix, PaginationConfig={"PageSize": 2}
        )
        return [line["Key"] for page in pages for line in page.get("Contents", [])]

    def copy(self, source: str, target: str) -> None:
        self._client.copy({"Bucket": self._bucket, "Key": source}, self._bucket, target)

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self._bucket, Key=key)


class Boto3Crt(Boto3):
    """boto3 whose transfers the AWS common runtime does (`preferred_transfer_client="crt"`).

    boto3 makes its CRT client for TLS and the system's certificates, and gives no way to say otherwise; so the two are put together
    here as boto3 does it, from the same parts.
    """

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        crt: Any = importlib.import_module("s3transfer.crt")
        session = importlib.import_module("botocore.session").Session()
        session.set_credentials(place.access_key, place.secret_key)
        self._serializer = crt.BotocoreCRTRequestSerializer(
            session, {"region_name": place.region, "endpoint_url": place.endpoint}
        )
        providers: Any = importlib.import_module("awscrt.auth").AwsCredentialsProvider
        provider = providers.new_static(place.access_key, place.secret_key)
        self._crt_client = crt.create_s3_crt_client(place.region, provider, use_ssl=False)
        self._manager_type = crt.CRTTransferManager

    def put(self, key: str, body: bytes) -> None:
        with self._manager_type(self._crt_client, self._serializer) as manager:
            manager.upload(BytesIO(body), self._bucket, key).result()

    def get(self, key: str) -> bytes:
        into = BytesIO()
        with self._manager_type(self._crt_client, self._serializer) as manager:
            manager.download(self._bucket, key, into).result()
        return into.getvalue()

    def delete(self, key: str) -> None:
        with self._manager_type(self._crt_client, self._serializer) as manager:
            manager.delete(self._bucket, key).result()


class MinioPy:
    """minio-py."""

    def __init__(self, place: Place) -> None:
        minio = importlib.import_module("minio")
        self._copy_source = importlib.import_module("minio.commonconfig").CopySource
        self._client = minio.Minio(
            place.address,
            access_key=place.access_key,
            secret_key=place.secret_key,
            region=place.region,
            secure=False,
        )
        self._bucket = place.bucket

    def put(self, key: str, body: bytes) -> None:
        self._client.put_object(self._bucket, key, BytesIO(body), len(body), part_size=5 * MIB)

    def get(self, key: str) -> bytes:
        return self._read(key)

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        return self._read(key, offset=start, length=stop - start)

    def keys(self, prefix: str) -> list[str]:
        return [one.object_name for one in self._client.list_objects(self._bucket, prefix, recursive=True)]

    def copy(self, source: str, target: str) -> None:
        self._client.copy_object(self._bucket, target, self._copy_source(self._bucket, source))

    def delete(self, key: str) -> None:
        self._client.remove_object(self._bucket, key)

    def _read(self, key: str, **span: int) -> bytes:
        answer = self._client.get_object(self._bucket, key, **span)
        try:
            return bytes(answer.read())
        finally:
            answer.close()
            answer.release_conn()


class S3fs:
    """s3fs, and with it whatever stands on fsspec."""

    def __init__(self, place: Place) -> None:
        s3fs = importlib.import_module("s3fs")
        self._files = s3fs.S3FileSystem(
            key=place.access_key,
            secret=place.secret_key,
            client_kwargs={"endpoint_url": place.endpoint, "region_name": place.region},
            skip_instance_cache=True,
            use_listings_cache=False,
        )
        self._root = place.bucket

    def put(self, key: str, body: bytes) -> None:
        with self._files.open(f"{self._root}/{key}", "wb", block_size=5 * MIB) as file:
            file.write(body)

    def get(self, key: str) -> bytes:
        return bytes(self._files.cat_file(f"{self._root}/{key}"))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        return bytes(self._files.cat_file(f"{self._root}/{key}", start=start, end=stop))

    def keys(self, prefix: str) -> list[str]:
        return [path.removeprefix(f"{self._root}/") for path in self._files.find(f"{self._root}/{prefix}")]

    def copy(self, source: str, target: str) -> None:
        self._files.cp_file(f"{self._root}/{source}", f"{self._root}/{target}")

    def delete(self, key: str) -> None:
        self._files.rm_file(f"{self._root}/{key}")


class Pyarrow:
    """pyarrow, whose file system is the AWS SDK for C++."""

    def __init__(self, place: Place) -> None:
        self._arrow = importlib.import_module("pyarrow")
        self._parquet = importlib.import_module("pyarrow.parquet")
        fs = importlib.import_module("pyarrow.fs")
        self._selector = fs.FileSelector
        self._is_file = fs.FileType.File
        self._files = fs.S3FileSystem(
            access_key=place.access_key,
            secret_key=place.secret_key,
            region=place.region,
            scheme="http",
            endpoint_override=place.address,
        )
        self._root = place.bucket

    def put(self, key: str, body: bytes) -> None:
        with self._files.open_output_stream(f"{self._root}/{key}") as file:
            file.write(body)

    def get(self, key: str) -> bytes:
        with self._files.open_input_stream(f"{self._root}/{key}") as file:
            return bytes(file.read())

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        with self._files.open_input_file(f"{self._root}/{key}") as file:
            return bytes(file.read_at(stop - start, start))

    def keys(self, prefix: str) -> list[str]:
        found = self._files.get_file_info(self._selector(f"{self._root}/{prefix}", recursive=True))
        return [one.path.removeprefix(f"{self._root}/") for one in found if one.type == self._is_file]

    def copy(self, source: str, target: str) -> None:
        self._files.copy_file(f"{self._root}/{source}", f"{self._root}/{target}")

    def delete(self, key: str) -> None:
        self._files.delete_file(f"{self._root}/{key}")

    def write_table(self, key: str, columns: Mapping[str, list[int]]) -> None:
        self._parquet.write_table(
            self._arrow.table(columns), f"{self._root}/{key}", filesystem=self._files, row_group_size=1000
        )

    def read_column(self, key: str, name: str, at_least: int) -> list[int]:
        table = self._parquet.read_table(
            f"{self._root}/{key}",
            filesystem=self._files,
            columns=[name],
            filters=[(name, ">=", at_least)],
        )
        return [int(value) for value in table[name].to_pylist()]


class Obstore:
    """obstore: the Rust crate object_store."""

    def __init__(self, place: Place) -> None:
        self._obstore: Any = importlib.import_module("obstore")
        store = importlib.import_module("obstore.store")
        self._store = store.S3Store(
            place.bucket,
            endpoint=place.endpoint,
            access_key_id=place.access_key,
            secret_access_key=place.secret_key,
            region=place.region,
            virtual_hosted_style_request=False,
            client_options={"allow_http": True},
        )

    def put(self, key: str, body: bytes) -> None:
        self._obstore.put(self._store, key, body, chunk_size=5 * MIB)

    def get(self, key: str) -> bytes:
        return bytes(self._obstore.get(self._store, key).bytes())

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        return bytes(self._obstore.get_range(self._store, key, start=start, end=stop))

    def keys(self, prefix: str) -> list[str]:
        return [one["path"] for page in self._obstore.list(self._store, prefix) for one in page]

    def copy(self, source: str, target: str) -> None:
        self._obstore.copy(self._store, source, target)

    def delete(self, key: str) -> None:
        self._obstore.delete(self._store, key)


class Polars:
    """polars: Parquet in objects, by the Rust crate object_store."""

    def __init__(self, place: Place) -> None:
        self._polars: Any = importlib.import_module("polars")
        self._root = f"s3://{place.bucket}"
        self._options = {
            "aws_endpoint_url": place.endpoint,
            "aws_access_key_id": place.access_key,
            "aws_secret_access_key": place.secret_key,
            "aws_region": place.region,
            "aws_allow_http": "true",
            "aws_virtual_hosted_style_request": "false",
        }

    def write_table(self, key: str, columns: Mapping[str, list[int]]) -> None:
        frame = self._polars.DataFrame(columns)
        frame.write_parquet(f"{self._root}/{key}", storage_options=self._options, row_group_size=1000)

    def read_column(self, key: str, name: str, at_least: int) -> list[int]:
        scanned = self._polars.scan_parquet(f"{self._root}/{key}", storage_options=self._options)
        column = self._polars.col(name)
        return [int(value) for value in scanned.filter(column >= at_least).select(name).collect()[name]]


class DuckDb:
    """DuckDB with its extension httpfs, which the package duckdb-ext-httpfs brings for one release of DuckDB."""

    def __init__(self, place: Place) -> None:
        duckdb: Any = importlib.import_module("duckdb")
        self._database = duckdb.connect()
        extensions = importlib.util.find_spec("duckdb_ext")
        folders = (extensions.submodule_search_locations or []) if extensions is not None else []
        found = [path for folder in folders for path in Path(folder).rglob("httpfs.duckdb_extension")]
        if not any(f"v{duckdb.__version__}" in path.parts for path in found):
            pytest.skip("DuckDB's extension httpfs is not here for its release")
        self._database.execute(f"LOAD '{found[0]}'")
        self._database.execute(
            f"CREATE SECRET (TYPE s3, KEY_ID '{place.access_key}', SECRET '{place.secret_key}', "
            f"REGION '{place.region}', ENDPOINT '{place.address}', URL_STYLE 'path', USE_SSL false)"
        )
        self._root = f"s3://{place.bucket}"

    def write_table(self, key: str, columns: Mapping[str, list[int]]) -> None:
        self._database.register("made", importlib.import_module("pyarrow").table(columns))
        self._database.execute(
            f"COPY made TO '{self._root}/{key}' (FORMAT parquet, ROW_GROUP_SIZE 2048)",
        )

    def read_column(self, key: str, name: str, at_least: int) -> list[int]:
        found = self._database.execute(
            f"SELECT {name} FROM '{self._root}/{key}' WHERE {name} >= {at_least} ORDER BY {name}"
        )
        return [int(row[0]) for row in found.fetchall()]


class TorchConnector:
    """The S3 client of s3torchconnector, which is Mountpoint's; it needs no torch by itself."""

    def __init__(self, place: Place) -> None:
        client = importlib.import_module("s3torchconnectorclient._mountpoint_s3_client")
        self._client = client.MountpointS3Client(
            region=place.region,
            user_agent_prefix="tests",
            throughput_target_gbps=1.0,
            part_size=5 * MIB,
            endpoint=place.endpoint,
            force_path_style=True,
        )
        self._bucket = place.bucket

    def put(self, key: str, body: bytes) -> None:
        stream = self._client.put_object(self._bucket, key)
        stream.write(body)
        stream.close()

    def get(self, key: str) -> bytes:
        return b"".join(self._client.get_object(self._bucket, key))

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        return b"".join(self._client.get_object(self._bucket, key, start=start, end=stop))

    def keys(self, prefix: str) -> list[str]:
        pages = self._client.list_objects(self._bucket, prefix=prefix, delimiter="", max_keys=2)
        return [one.key for page in pages for one in page.object_info]

    def copy(self, source: str, target: str) -> None:
        self._client.copy_object(self._bucket, source, self._bucket, target)

    def delete(self, key: str) -> None:
        self._client.delete_object(self._bucket, key)


@contextmanager
def torch_connector(place: Place) -> Iterator[TorchConnector]:
    """Give it for the length of the block, with the environment in which alone it looks for keys."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ACCESS_KEY_ID", place.access_key)
        patch.setenv("AWS_SECRET_ACCESS_KEY", place.secret_key)
        yield TorchConnector(place)
