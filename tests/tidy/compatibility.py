"""What docs/s3-compatibility.md takes from the code: operations, clients, and the tests of a public suite that fail."""

from collections.abc import Iterator, Mapping
from typing import Final

from gateway.operations.table import OPERATIONS
from gateway.s3.effects import EFFECTS, REFUSED
from gateway.s3.routes import Operation
from storage.effects import Changes, Needs
from tests.conformance.shown import SHOWN, read_shown
from tests.conformance.verdicts import Expected, read_expected
from tests.end_to_end.client_table import DOES, NOTES, Scenario
from tests.tidy.repository import ROOT

Row = tuple[str, ...]

OPERATION_HEADS: Final = ("operation", "support", "in ceph/s3-tests", "in boto/s3transfer", "our tests")
CLIENT_HEADS: Final = ("client", *(scenario.value for scenario in Scenario), "note")
EXPECTED_HEADS: Final = ("test", "where", "reason", "note")

_UNIT: Final = "tests/unit/gateway/operations"
_OURS: Final[Mapping[Operation, str]] = {
    Operation.ABORT_MULTIPART_UPLOAD: f"{_UNIT}/test_multipart.py",
    Operation.COMPLETE_MULTIPART_UPLOAD: f"{_UNIT}/test_multipart.py",
    Operation.COPY_OBJECT: f"{_UNIT}/test_copy.py",
    Operation.CREATE_BUCKET: f"{_UNIT}/test_buckets.py",
    Operation.CREATE_MULTIPART_UPLOAD: f"{_UNIT}/test_multipart.py",
    Operation.DELETE_BUCKET: f"{_UNIT}/test_buckets.py",
    Operation.DELETE_OBJECT: f"{_UNIT}/test_objects.py",
    Operation.DELETE_OBJECTS: f"{_UNIT}/test_batch.py",
    Operation.GET_BUCKET_LOCATION: f"{_UNIT}/test_buckets.py",
    Operation.GET_OBJECT: f"{_UNIT}/test_objects.py",
    Operation.HEAD_BUCKET: f"{_UNIT}/test_buckets.py",
    Operation.HEAD_OBJECT: f"{_UNIT}/test_objects.py",
    Operation.LIST_BUCKETS: f"{_UNIT}/test_buckets.py",
    Operation.LIST_MULTIPART_UPLOADS: f"{_UNIT}/test_multipart.py",
    Operation.LIST_OBJECTS: f"{_UNIT}/test_listing.py",
    Operation.LIST_OBJECTS_V2: f"{_UNIT}/test_listing.py",
    Operation.LIST_PARTS: f"{_UNIT}/test_multipart.py",
    Operation.OPTIONS_OBJECT: "tests/integration/test_cross_origin.py",
    Operation.PUT_OBJECT: f"{_UNIT}/test_objects.py",
    Operation.UPLOAD_PART: f"{_UNIT}/test_multipart.py",
    Operation.POST_OBJECT: "tests/integration/gateway/test_post.py",
    Operation.UPLOAD_PART_COPY: "tests/integration/test_part_copies.py",
}
_RELAYED: Final = "tests/integration/test_relay.py"
_REFUSED: Final = "tests/unit/gateway/s3/test_effects.py"

_FIRST: Final[Mapping[Needs, str]] = {
    Needs.NOTHING: "",
    Needs.KEY: "; the object is flushed first",
    Needs.BUCKET: "; the bucket is flushed first",
}
_AFTERWARDS: Final[Mapping[Changes, str]] = {
    Changes.NOTHING: "",
    Changes.CONFIGURATION: "",
    Changes.KEY: "; the cached object is asked about again afterwards",
    Changes.FACTS: "; the bucket is asked about again afterwards",
    Changes.OBJECTS: "; all that is cached of the bucket is asked about again afterwards",
}


def operation_rows() -> Iterator[Row]:
    """Give a line for each operation of S3."""
    shown = read_shown(SHOWN.read_text())
    for operation in sorted(set(Operation) - {Operation.UNKNOWN}):
        counts = [str(count) if count else "" for count in shown.get(operation.value, (0, 0))]
        yield (f"`{operation}`", support(operation), *counts, f"`{our_tests(operation)}`")
    effect = "relayed as the most careful effect of its method and level asks; a write without a bucket is refused (501)"
    yield ("any other", effect, "", "", f"`{_RELAYED}`")


def support(operation: Operation) -> str:
    """Say what becomes of an operation."""
    if operation in OPERATIONS:
        return "answered here"
    if operation in EFFECTS:
        effect = EFFECTS[operation]
        return f"relayed{_FIRST[effect.needs]}{_AFTERWARDS[effect.changes]}"
    if operation in REFUSED:
        return f"refused (501): {REFUSED[operation]}"
    return "answered here, by the bucket's CORS rules at the origin"


def our_tests(operation: Operation) -> str:
    """Name the file of our own tests of an operation."""
    if operation in EFFECTS:
        return _RELAYED
    return _REFUSED if operation in REFUSED else _OURS[operation]


def client_rows() -> Iterator[Row]:
    """Give a line for each client, with the scenarios that it does."""
    for name, scenarios in DOES.items():
        marks = ("yes" if scenario in scenarios else "" for scenario in Scenario)
        yield (name, *marks, NOTES.get(name, ""))


def expected() -> list[Expected]:
    """Give the tests of ceph/s3-tests that are expected to fail."""
    return read_expected((ROOT / "tests/conformance/expected.tsv").read_text())


def expected_rows() -> Iterator[Row]:
    """Give a line for each of them."""
    for one in expected():
        yield (f"`{one.test.rpartition('::')[2]}`", ", ".join(sorted(one.where)), one.reason, one.note)
