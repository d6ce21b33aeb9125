"""The table of operations: complete, without overlap, and nothing falls through."""

import itertools

import pytest
from botocore.session import get_session  # type: ignore[import-untyped]  # botocore ships no types
from hypothesis import given, strategies as st

from gateway.s3.errors import S3Error
from gateway.s3.request import S3Request, parse
from gateway.s3.routes import PARAMETERS, ROUTES, SUBRESOURCES, Operation, part_number, route

COPY = {"x-amz-copy-source": "/b/k"}
# Old names of the same requests; a request of another endpoint that looks like ListBuckets; one to an object lambda.
ALIASES = {
    "GetBucketLifecycle": "GetBucketLifecycleConfiguration",
    "GetBucketNotification": "GetBucketNotificationConfiguration",
    "PutBucketLifecycle": "PutBucketLifecycleConfiguration",
    "PutBucketNotification": "PutBucketNotificationConfiguration",
    "ListDirectoryBuckets": "ListBuckets",
    "WriteGetObjectResponse": "PostObject",
}


def request(method: str, target: str, headers: dict[str, str] | None = None) -> S3Request:
    """Make a request."""
    return parse(method, target, (headers or {}).items(), request_id="R", received_at_s=0.0)


def code_of(method: str, target: str, headers: dict[str, str] | None = None) -> str:
    """Give the code that routing ends in."""
    with pytest.raises(S3Error) as caught:
        route(request(method, target, headers))
    return caught.value.code


def route_or_error(method: str, target: str) -> Operation | S3Error:
    """Give the operation, or the error that routing ends in."""
    try:
        return route(request(method, target))
    except S3Error as error:
        return error


def model_requests() -> list[tuple[str, str, str, dict[str, str]]]:
    """Give name, method, target and headers of each operation that botocore knows, from its service model."""
    model = get_session().get_service_model("s3")
    requests = []
    for name in model.operation_names:
        operation = model.operation_model(name)
        target = operation.http["requestUri"].replace("{Bucket}", "bucket").replace("{Key+}", "key")
        headers = {}
        for member in operation.input_shape.required_members if operation.input_shape else []:
            place = operation.input_shape.members[member].serialization
            value = "7" if place.get("name") == "partNumber" else "value"
            if place.get("location") == "querystring":
                target += f"{'&' if '?' in target else '?'}{place['name']}={value}"
            elif place.get("location") == "header":
                headers[place["name"]] = value
        requests.append((name, operation.http["method"], target, headers))
    return requests


MODEL_REQUESTS = model_requests()


@pytest.mark.parametrize(
    ("name", "method", "target", "headers"), MODEL_REQUESTS, ids=[request[0] for request in MODEL_REQUESTS]
)
def test_route_knows_every_operation_of_the_sdk(
    name: str, method: str, target: str, headers: dict[str, str]
) -> None:
    """Each request that botocore can make goes to the operation of its own name (B04)."""
    assert route(request(method, target, headers)) == ALIASES.get(name, name)


def test_operations_are_those_of_the_table() -> None:
    """Every operation has a row, but for the CORS preflight, which any path answers, and what nobody here has heard of."""
    rowless = {Operation.OPTIONS_OBJECT, Operation.UNKNOWN}
    assert {row.operation for row in ROUTES} == set(Operation) - rowless


def test_rows_do_not_overlap() -> None:
    """No two rows ask for the same; where both fit, one asks for more."""
    for one, other in itertools.combinations(ROUTES, 2):
        if (one.method, one.level, set(one.subresources)) == (
            other.method,
            other.level,
            set(other.subresources),
        ):
            demands = {(row.qualifier, row.header) for row in (one, other)}
            assert len(demands) == 2, f"{one} and {other} ask for the same"
            assert all(bool(qualifier) + bool(header) <= 1 for qualifier, header in demands)


def test_subresources_are_no_parameters() -> None:
    """A query name chooses an operation or it does not."""
    assert not SUBRESOURCES & PARAMETERS


@pytest.mark.parametrize(
    ("method", "target", "headers", "expected"),
    [
        ("GET", "/", {}, "ListBuckets"),
        ("PUT", "/bucket/key", {}, "PutObject"),
        ("PUT", "/bucket/key", COPY, "CopyObject"),
        ("PUT", "/bucket/key", {"x-amz-copy-source": ""}, "CopyObject"),
        ("PUT", "/bucket/key?x-id=PutObject", {}, "PutObject"),
        ("PUT", "/bucket/key?partNumber=1&uploadId=u", {}, "UploadPart"),
        ("PUT", "/bucket/key?uploadId=u&partNumber=10000", COPY, "UploadPartCopy"),
        ("PUT", "/bucket/key?tagging", COPY, "PutObjectTagging"),
        ("PUT", "/bucket/key?tagging=&versionId=v", {}, "PutObjectTagging"),
        ("GET", "/bucket/key", COPY, "GetObject"),
        ("GET", "/bucket/key?versionId=v&response-content-type=a", {}, "GetObject"),
        ("GET", "/bucket/key?partNumber=2", {}, "GetObject"),
        ("HEAD", "/bucket/key?partNumber=2", {}, "HeadObject"),
        ("GET", "/bucket/key?X-Amz-Signature=s&X-Amz-Expires=", {}, "GetObject"),
        ("GET", "/bucket/key?utm=1", {}, "GetObject"),
        ("DELETE", "/bucket/key?versionId=v", {}, "DeleteObject"),
        ("DELETE", "/bucket/key?x-custom", {}, "DeleteObject"),
        ("DELETE", "/bucket/key?tagging", {}, "DeleteObjectTagging"),
        ("DELETE", "/bucket/key?uploadId=u", {}, "AbortMultipartUpload"),
        ("GET", "/bucket?prefix=&delimiter=/&marker=", {}, "ListObjects"),
        ("GET", "/bucket/?list-type=2&prefix=uploads", {}, "ListObjectsV2"),
        ("GET", "/bucket?inventory", {}, "ListBucketInventoryConfigurations"),
        ("GET", "/bucket?inventory&id=a", {}, "GetBucketInventoryConfiguration"),
        ("GET", "/bucket?id=a", {}, "ListObjects"),
        ("POST", "/bucket", {}, "PostObject"),
        ("OPTIONS", "/bucket/key?anything", {}, "OptionsObject"),
    ],
)
def test_route_when_known(method: str, target: str, headers: dict[str, str], expected: str) -> None:
    """Sub-resources choose; versionId, response-*, x-id and signing parameters do not."""
    assert route(request(method, target, headers)) == expected


@pytest.mark.parametrize(
    ("method", "target", "code"),
    [
        ("PUT", "/bucket/key?tagging&acl", "InvalidArgument"),
        ("PUT", "/bucket/key?partNumber=1", "InvalidArgument"),
        ("PUT", "/bucket/key?uploadId=u", "InvalidArgument"),
        ("PUT", "/bucket/key?uploadId=u&uploadId=v&partNumber=1", "InvalidArgument"),
        ("PUT", "/bucket/key?versionId=v", "InvalidArgument"),
        ("DELETE", "/bucket/key?versionId=v&versionId=w", "InvalidArgument"),
        ("DELETE", "/bucket/key?uploadId=u&partNumber=1", "InvalidArgument"),
        ("DELETE", "/bucket/key?partNumber=1", "MethodNotAllowed"),
        ("DELETE", "/bucket/key?versioning", "MethodNotAllowed"),
        ("PUT", "/bucket/key?policy", "MethodNotAllowed"),
        ("PUT", "/bucket/key?uploads", "MethodNotAllowed"),
        ("HEAD", "/bucket/key?acl", "MethodNotAllowed"),
        ("POST", "/bucket/key", "MethodNotAllowed"),
        ("PATCH", "/bucket/key", "MethodNotAllowed"),
        ("PUT", "/", "MethodNotAllowed"),
        ("GET", "/bucket?list-type=3", "InvalidArgument"),
        ("GET", "/-/metrics", "InvalidBucketName"),
    ],
)
def test_route_refuses_what_it_does_not_know(method: str, target: str, code: str) -> None:
    """What fits no row is an error, never a plain operation on the object (B04)."""
    assert code_of(method, target) == code


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("PUT", "/bucket/key?newfeature"),
        ("PUT", "/bucket/key?newfeature="),
        ("PUT", "/bucket/key?append&position=0"),
        ("PUT", "/bucket/key?newfeature=7"),
        ("PUT", "/bucket/key?partNumber=1&uploadId=u&newfeature=7"),
        ("PUT", "/bucket/key?tagging&newfeature"),
        ("PUT", "/bucket/key?Tagging"),
        ("DELETE", "/bucket/key?newId=7"),
        ("DELETE", "/bucket?newfeature"),
        ("POST", "/bucket?delete&newfeature"),
        ("PATCH", "/bucket/key?newfeature"),
        ("GET", "/bucket/key?newfeature"),
        ("HEAD", "/bucket/key?newfeature"),
        ("GET", "/?newfeature"),
    ],
)
def test_route_when_a_name_may_be_an_operation(method: str, target: str) -> None:
    """A query name that is not known here makes an operation of its own, never a plain one on the object (B04)."""
    assert route(request(method, target)) is Operation.UNKNOWN


def test_method_not_allowed_says_which_are() -> None:
    """The refusal names the methods that the sub-resource has."""
    with pytest.raises(S3Error) as caught:
        route(request("PUT", "/bucket/key?uploads"))

    assert caught.value.headers == {"Allow": "POST"}
    assert caught.value.extra == {"Method": "PUT", "ResourceType": "uploads"}


@pytest.mark.parametrize("text", ["2aaa", "0", "10001", "-1", "", "1.0", "+1", "²", "\u0663", "9" * 5000])
def test_part_number_when_bad(text: str) -> None:
    """A part number that is none is InvalidArgument on any method (B04)."""
    assert code_of("PUT", f"/bucket/key?partNumber={text}&uploadId=u") == "InvalidArgument"
    assert code_of("GET", f"/bucket/key?partNumber={text}") == "InvalidArgument"


def test_part_number_when_good_or_absent() -> None:
    """The number is given as one, None where there is none."""
    assert part_number(request("GET", "/bucket/key?partNumber=10000")) == 10_000
    assert part_number(request("GET", "/bucket/key")) is None


@given(
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD"]),
    path=st.sampled_from(["/", "/bucket", "/bucket/key"]),
    names=st.sets(st.sampled_from(sorted(SUBRESOURCES)), min_size=1, max_size=3),
)
def test_subresources_never_fall_through(method: str, path: str, names: set[str]) -> None:
    """With any sub-resources the operation is one whose row has just these, or there is none."""
    target = f"{path}?" + "&".join(f"{name}={'1' if name == 'partNumber' else ''}" for name in sorted(names))

    outcome = route_or_error(method, target)

    if isinstance(outcome, S3Error):
        assert outcome.code in {"MethodNotAllowed", "InvalidArgument"}
    else:
        chosen = names - {"partNumber"} if method in {"GET", "HEAD"} else names
        assert chosen in [set(row.subresources) for row in ROUTES if row.operation == outcome]


@pytest.mark.slow
@given(
    method=st.sampled_from(["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS"]),
    query=st.lists(
        st.tuples(
            st.sampled_from(sorted(SUBRESOURCES | PARAMETERS)) | st.text("ab-", max_size=3),
            st.text("12a", max_size=3),
        )
    ),
)
def test_route_raises_only_s3_errors(method: str, query: list[tuple[str, str]]) -> None:
    """Any query is routed or refused with an S3Error."""
    target = "/bucket/key?" + "&".join(f"{name}={value}" for name, value in query)

    outcome = route_or_error(method, target)

    assert outcome.status in {400, 405} if isinstance(outcome, S3Error) else outcome in Operation
