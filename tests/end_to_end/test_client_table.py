"""Every client of the table, scenario by scenario, with the endpoint as its only change."""

import importlib.util
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from storage.types import MIB
from tests.end_to_end.client_ports import Place
from tests.end_to_end.client_programs import PROGRAMS, Client
from tests.end_to_end.client_table import DOES, SLOW, Scenario
from tests.end_to_end.content import content, differences, make_tree
from tests.end_to_end.origins import Origin
from tests.end_to_end.processes import ACCESS_KEY, REGION, SECRET_KEY, gateway

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

LARGE_BYTES = 12 * MIB + 5

ODD_NAMES = (
    "a b.bin",
    "plus+sign",
    "per%cent",
    "per%20cent",
    "amp&er=sand#hash",
    "grüße/日本語.txt",
    "~tilde'(x)!",
)


@pytest.fixture(scope="module")
def place(
    moto: Origin, make_bucket: Callable[[Origin], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    """Run the gateway over moto."""
    directory = tmp_path_factory.mktemp("clients")
    with gateway(moto.endpoint, directory / "cache") as running:
        yield Place(running.endpoint, ACCESS_KEY, SECRET_KEY, REGION, make_bucket(moto), directory)


@pytest.fixture
def client(request: pytest.FixtureRequest, place: Place, tmp_path: Path) -> Iterator[Client]:
    """Start the client of the test's parameter."""
    program = PROGRAMS[request.param]
    if program.package and importlib.util.find_spec(program.package) is None:
        pytest.skip(f"{program.name} is not installed")
    with program.start(replace(place, directory=tmp_path)) as started:
        yield started


def _clients(scenario: Scenario) -> pytest.MarkDecorator:
    """Run a test for each client that does a scenario."""
    is_long = bool(os.environ.get("FOREBAY_TEST_LONG"))
    skip = pytest.mark.skip(reason="takes long; FOREBAY_TEST_LONG=1 runs it")
    cases = [
        pytest.param(name, marks=() if is_long or (name, scenario) not in SLOW else (skip,), id=name)
        for name, scenarios in DOES.items()
        if scenario in scenarios
    ]
    return pytest.mark.parametrize("client", cases, indirect=True)


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """Name a place in the bucket for one test."""
    return "".join(letter if letter.isalnum() else "-" for letter in request.node.name) + "/"


@_clients(Scenario.SMALL)
def test_small_objects_are_put_listed_copied_and_deleted(client: Client, prefix: str) -> None:
    """What a client writes it lists and reads; a copy has the same bytes; what it deletes is gone."""
    bodies = {f"{prefix}a": b"first", f"{prefix}b/c": b"second", f"{prefix}b/empty": b""}

    for key, body in bodies.items():
        client.put(key, body)
    client.copy(f"{prefix}a", f"{prefix}copy")
    listed = client.keys(prefix)
    read = {key: client.get(key) for key in listed}
    client.delete(f"{prefix}a")
    left = client.keys(prefix)

    assert read == {**bodies, f"{prefix}copy": b"first"}
    assert len(listed) == len(read)
    assert sorted(left) == sorted(set(read) - {f"{prefix}a"})


@_clients(Scenario.NAMES)
def test_odd_names_come_back_as_they_were_given(client: Client, prefix: str) -> None:
    """A key with any printable character names one object, in the listing too."""
    bodies = {f"{prefix}{name}": name.encode() for name in ODD_NAMES}

    for key, body in bodies.items():
        client.put(key, body)

    assert {key: client.get(key) for key in client.keys(prefix)} == bodies


@_clients(Scenario.LARGE)
def test_large_objects_come_back_whole(client: Client, prefix: str) -> None:
    """An object that the client sends in parts has its bytes."""
    body = content(7, LARGE_BYTES)

    client.put(f"{prefix}large", body)

    assert client.get(f"{prefix}large") == body


@_clients(Scenario.RANGES)
def test_ranges_are_the_bytes_asked_for(client: Client, prefix: str) -> None:
    """Ranges at the object's edges, of one byte, and across a block's edge are right."""
    body = content(8, 2 * MIB + 3)
    spans = [(0, 1), (0, 100), (MIB - 1, MIB + 1), (1, 2 * MIB), (len(body) - 1, len(body))]
    client.put(f"{prefix}ranges", body)

    read = [client.get_range(f"{prefix}ranges", start, stop) for start, stop in spans]

    assert read == [body[start:stop] for start, stop in spans]


@_clients(Scenario.SYNC)
def test_sync_makes_trees_alike_and_sends_nothing_twice(client: Client, prefix: str, tmp_path: Path) -> None:
    """A tree goes there and back, a second sync moves nothing, and what was removed is removed."""
    tree, back, place = make_tree(tmp_path / "tree", 20), tmp_path / "back", prefix.rstrip("/")
    back.mkdir()
    odd, yesterday_s = tree / "with blank + ü.txt", time.time() - 86_400
    odd.write_bytes(b"odd")
    # S3 tells times in whole seconds: a file written and sent within one second would be newer than its object.
    os.utime(odd, times=(yesterday_s, yesterday_s))

    sent = client.sync_up(tree, place)
    came = client.sync_down(place, back)
    second = (client.sync_up(tree, place), client.sync_down(place, back))
    was_alike = differences(tree, back) == ""
    odd.unlink()
    client.sync_up(tree, place)
    client.sync_down(place, back)

    files = sum(path.is_file() for path in tree.rglob("*")) + 1
    assert (sent, came) == (files, files)
    assert second == (0, 0)
    assert was_alike
    assert differences(tree, back) == ""


@_clients(Scenario.COLUMNS)
def test_columns_of_parquet_are_read_with_a_condition(client: Client, prefix: str) -> None:
    """A table that the client writes gives the rows that it asks for."""
    columns = {"step": list(range(10_000)), "double": [2 * n for n in range(10_000)]}

    client.write_table(f"{prefix}table.parquet", columns)

    assert client.read_column(f"{prefix}table.parquet", "double", 19_000) == list(range(19_000, 20_000, 2))
