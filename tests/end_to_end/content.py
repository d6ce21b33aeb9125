"""What the end-to-end tests move: bytes that no cache can guess, trees of real files, and how much of them.

The default sizes fit the gate; FOREBAY_TEST_LONG=1 is for `make test-long`. What a test measures goes to its output, and to the file
that FOREBAY_TEST_FIGURES names.
"""

import hashlib
import os
import random
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

from storage.types import MIB

IS_LONG: Final = os.environ.get("FOREBAY_TEST_LONG") == "1"

PART_BYTES: Final = 8 * MIB
"""boto3's default transfer settings: longer files are uploaded in parts of this size."""


def content(seed: int, size_bytes: int) -> bytes:
    """Give bytes that look random and are the same for the same seed."""
    return random.Random(seed).randbytes(size_bytes)


def write_content(path: Path, seed: int, size_bytes: int) -> Path:
    """Write such bytes to a file of any size."""
    rng = random.Random(seed)
    with path.open("wb") as file:
        for start in range(0, size_bytes, 4 * MIB):
            file.write(rng.randbytes(min(4 * MIB, size_bytes - start)))
    return path


def s3_etag(path: Path) -> str:
    """Give the ETag that S3 gives a file uploaded by boto3: MD5, or from 8 MiB on MD5 of the parts' MD5s and their number."""
    with path.open("rb") as file:
        digests = [hashlib.md5(part).digest() for part in iter(lambda: file.read(PART_BYTES), b"")]
    if path.stat().st_size < PART_BYTES:
        return f'"{(digests[0] if digests else hashlib.md5().digest()).hex()}"'
    return f'"{hashlib.md5(b"".join(digests)).hexdigest()}-{len(digests)}"'


def make_tree(directory: Path, count: int) -> Path:
    """Copy so many real files, names and folders as they are: Python's own library and what is installed beside it."""
    copied = 0
    for root in (Path(sysconfig.get_path("stdlib")), Path(sysconfig.get_path("purelib"))):
        for source in _files(root):
            target = directory / root.name / source.relative_to(root)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
            copied += 1
            if copied == count:
                return directory
    raise AssertionError(f"this Python comes with {copied} files, not {count}")


def _files(root: Path) -> Iterator[Path]:
    """Yield the files that do not change while a test runs, in an order that mixes sizes and folders."""
    for path in map(Path, _names(root)):
        if path.is_file() and not path.is_symlink() and path.stat().st_size <= 64 * MIB:
            yield path


@cache
def _names(root: Path) -> list[str]:
    """Walk the tens of thousands of files once; looking at each of them would take seconds."""
    found: list[str] = []
    for directory, folders, names in os.walk(root):
        folders[:] = [folder for folder in folders if folder != "__pycache__"]
        found += [f"{directory}/{name}" for name in names]
    return sorted(found, key=lambda name: hashlib.md5(name.encode()).digest())


def differences(one: Path, other: Path) -> str:
    """Give what `diff -r` says of two trees: "" where they are identical."""
    done = subprocess.run(["diff", "-r", str(one), str(other)], capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


def note_figure(text: str) -> None:
    """Write down what a test measured."""
    sys.stdout.write(f"{text}\n")
    if path := os.environ.get("FOREBAY_TEST_FIGURES"):
        with Path(path).open("a") as figures:
            figures.write(f"{text}\n")
