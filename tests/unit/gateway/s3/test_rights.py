"""Which right each operation needs: the table is whole, and closed where it is not."""

import pytest

from gateway.grants import EVERYTHING, NOTHING, Access, parse_grant
from gateway.s3.errors import S3Error
from gateway.s3.request import S3Request, parse
from gateway.s3.rights import NEEDS, Scope, authorise, may
from gateway.s3.routes import ROUTES, Operation, route

OPEN = {Operation.OPTIONS_OBJECT}


def request(method: str, target: str, headers: dict[str, str] | None = None) -> S3Request:
    """Make a request."""
    return parse(method, target, (headers or {}).items(), request_id="R", received_at_s=0.0)


def access(*grants: str) -> Access:
    """Make what a key holds."""
    return Access(tuple(map(parse_grant, grants)))


def is_allowed(
    held: Access, method: str, target: str, headers: dict[str, str] | None = None, *, is_signed: bool = True
) -> bool:
    """Route a request and say whether the right to it is held."""
    asked = request(method, target, headers)
    try:
        authorise(held, route(asked), asked, is_signed=is_signed)
    except S3Error as error:
        if error.code != "AccessDenied":
            raise
        return False
    return True


def test_every_operation_has_a_need() -> None:
    """An operation that is added and forgotten in the table would be closed; none is forgotten but the unknown one."""
    assert set(NEEDS) == set(Operation) - {Operation.UNKNOWN}


def test_an_operation_without_a_row_is_refused_when_the_key_is_restricted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What nobody thought about is open to unrestricted keys alone."""
    monkeypatch.setattr("gateway.s3.rights.NEEDS", {})
    asked = request("GET", "/bucket/key")

    with pytest.raises(S3Error):
        authorise(access("read,write,admin s3://*"), Operation.GET_OBJECT, asked, is_signed=True)
    authorise(EVERYTHING, Operation.GET_OBJECT, asked, is_signed=True)
    assert not may(access("read s3://*"), Operation.GET_OBJECT, asked, "key")


@pytest.mark.parametrize("operation", [row.operation for row in ROUTES], ids=str)
def test_nothing_is_allowed_when_nothing_is_granted(operation: Operation) -> None:
    """No operation but preflights passes without a right."""
    asked = request("GET", "/bucket/key")
    if operation in OPEN:
        return

    with pytest.raises(S3Error) as raised:
        authorise(NOTHING, operation, asked, is_signed=False)

    assert raised.value.code == "AccessDenied"


@pytest.mark.parametrize("operation", sorted(set(NEEDS) - OPEN), ids=str)
def test_anonymous_reads_open_objects_and_listings_alone(operation: Operation) -> None:
    """Read on a prefix opens its objects, its listings, and that the bucket is there: no configuration, no write."""
    opened = access("read s3://bucket/open/*")
    asked = request("GET", "/bucket/open/key?prefix=open/", {"x-amz-copy-source": "bucket/open/key"})

    try:
        authorise(opened, operation, asked, is_signed=False)
    except S3Error:
        is_open = False
    else:
        is_open = True

    need = NEEDS[operation]
    assert is_open == (need.right == "read" and need.scope in {Scope.OBJECT, Scope.PREFIX, Scope.BUCKET_NAME})


@pytest.mark.parametrize(
    ("grants", "method", "target", "allowed"),
    [
        (["read s3://bbb/in/*"], "GET", "/bbb/in/k", True),
        (["read s3://bbb/in/*"], "HEAD", "/bbb/in/k", True),
        (["read s3://bbb/in/*"], "GET", "/bbb/in%2Fk", True),
        (["read s3://bbb/in/*"], "GET", "/bbb/ink", False),
        (["read s3://bbb/in/*"], "GET", "/bbb/in/k?uploadId=u", True),
        (["read s3://bbb/in/*"], "GET", "/bbb/in/k?acl", False),
        (["read s3://bbb/in/*"], "GET", "/bbb/in/k?tagging", True),
        (["read s3://bbb/in/*"], "PUT", "/bbb/in/k", False),
        (["read s3://bbb/in/*"], "DELETE", "/bbb/in/k", False),
        (["read s3://bbb/in/*"], "GET", "/bbb?list-type=2&prefix=in/", True),
        (["read s3://bbb/in/*"], "GET", "/bbb?list-type=2&prefix=in/a", True),
        (["read s3://bbb/in/*"], "GET", "/bbb?list-type=2&prefix=in", False),
        (["read s3://bbb/in/*"], "GET", "/bbb?list-type=2", False),
        (["read s3://bbb/in/*"], "GET", "/bbb?list-type=2&delimiter=/&start-after=in/", False),
        (["read s3://bbb/in/*"], "GET", "/bbb?prefix=&prefix=in/", False),
        (["read s3://bbb/in/*"], "GET", "/bbb?versions&prefix=in/&prefix=", False),
        (["read,write,admin s3://bbb"], "POST", "/bbb/k?restore", False),
        (["read,write,admin s3://bbb"], "GET", "/bbb?session", False),
        (["read,write,admin s3://bbb"], "GET", "/bbb/k?somethingNew", False),
        (["read,write,admin s3://bbb"], "PUT", "/bbb?somethingNew", False),
        (["read s3://bbb/in/*"], "GET", "/bbb?versions&prefix=in/", True),
        (["read s3://bbb/in/*"], "GET", "/bbb?versions", False),
        (["read s3://bbb/in/*"], "GET", "/bbb?uploads", False),
        (["read s3://bbb/in/*"], "HEAD", "/bbb", True),
        (["read s3://bbb/in/*"], "GET", "/bbb?location", True),
        (["read s3://bbb/in/*"], "GET", "/bbb?versioning", False),
        (["read s3://bbb"], "GET", "/bbb?versioning", True),
        (["read s3://bbb"], "GET", "/bbb?policy", False),
        (["read s3://bbb"], "PUT", "/bbb?versioning", False),
        (["read,write s3://bbb"], "PUT", "/bbb?versioning", False),
        (["read,write s3://bbb"], "PUT", "/bbb", False),
        (["read,write s3://bbb"], "DELETE", "/bbb", False),
        (["admin s3://bbb"], "PUT", "/bbb", True),
        (["admin s3://bbb"], "DELETE", "/bbb", True),
        (["admin s3://bbb"], "GET", "/bbb?policy", True),
        (["admin s3://bbb"], "GET", "/bbb/k", False),
        (["admin s3://bbb/in/*"], "DELETE", "/bbb", False),
        (["write s3://bbb/in/*"], "PUT", "/bbb/in/k", True),
        (["write s3://bbb/in/*"], "GET", "/bbb/in/k", False),
        (["write s3://bbb/in/*"], "HEAD", "/bbb/in/k", False),
        (["write s3://bbb/in/*"], "DELETE", "/bbb/in/k", True),
        (["write s3://bbb/in/*"], "POST", "/bbb/in/k?uploads", True),
        (["write s3://bbb/in/*"], "PUT", "/bbb/in/k?uploadId=u&partNumber=1", True),
        (["write s3://bbb/in/*"], "POST", "/bbb/in/k?uploadId=u", True),
        (["write s3://bbb/in/*"], "DELETE", "/bbb/in/k?uploadId=u", True),
        (["write s3://bbb/in/*"], "POST", "/bbb?delete", True),
        (["read s3://bbb"], "POST", "/bbb?delete", False),
        (["read s3://ccc"], "HEAD", "/bbb", False),
        (["read s3://ccc"], "GET", "/bbb?location", False),
        ([], "GET", "/", True),
    ],
)
def test_a_request_is_allowed_when_its_right_is_held_on_its_names(
    grants: list[str], method: str, target: str, *, allowed: bool
) -> None:
    """Objects by their key, listings by their prefix, buckets as a whole; the query's first value counts, as in the operation."""
    assert is_allowed(access(*grants), method, target) is allowed


def test_buckets_are_listed_for_signed_requests_only() -> None:
    """Who does not sign is told of no bucket."""
    assert not is_allowed(access("read s3://*"), "GET", "/", is_signed=False)


@pytest.mark.parametrize(
    ("grants", "source", "allowed"),
    [
        (["write s3://bbb/to/*", "read s3://bbb/from/*"], "bbb/from/k", True),
        (["write s3://bbb/to/*", "read s3://bbb/from/*"], "/bbb/from/k?versionId=v", True),
        (["write s3://bbb/to/*", "read s3://bbb/from/*"], "bbb%2Ffrom%2Fk", True),
        (["write s3://bbb/to/*", "read s3://bbb/from/*"], "bbb/other/k", False),
        (["write s3://bbb/to/*", "read s3://bbb/from/*"], "ccc/from/k", False),
        (["write s3://bbb/to/*"], "bbb/to/k", False),
        (["read s3://bbb"], "bbb/from/k", False),
    ],
)
@pytest.mark.parametrize("query", ["", "?uploadId=u&partNumber=1"])
def test_a_copy_is_allowed_when_its_source_is_readable(
    grants: list[str], source: str, query: str, *, allowed: bool
) -> None:
    """A copy reads one name and writes another, and both are asked for."""
    held = access(*grants)

    assert is_allowed(held, "PUT", f"/bbb/to/k{query}", {"x-amz-copy-source": source}) is allowed


@pytest.mark.parametrize(
    ("headers", "query", "needs"),
    [
        ({}, "", "write"),
        ({"if-none-match": "*"}, "", "write"),
        ({"if-none-match": '"e"'}, "", "read,write"),
        ({"if-match": '"e"'}, "", "read,write"),
        ({"x-amz-if-match-size": "3"}, "", "read,write"),
        ({"if-unmodified-since": "Thu, 01 Jan 2026 00:00:00 GMT"}, "", "read,write"),
        ({"if-modified-since": "Thu, 01 Jan 2026 00:00:00 GMT"}, "", "read,write"),
        ({"x-amz-acl": "private"}, "", "write"),
        ({"x-amz-acl": "bucket-owner-full-control"}, "", "write"),
        ({"x-amz-acl": "public-read"}, "", "write,admin"),
        ({}, "?x-amz-acl=public-read", "write,admin"),
        ({}, "?X-Amz-Acl=public-read", "write,admin"),
        ({"x-amz-grant-read": "id=x"}, "", "write,admin"),
        ({"x-amz-object-lock-mode": "COMPLIANCE"}, "", "write,admin"),
        ({"x-amz-bypass-governance-retention": "true"}, "", "write,admin"),
        ({"x-amz-tagging": "a=b"}, "", "write"),
    ],
)
@pytest.mark.parametrize("method", ["PUT", "DELETE"])
def test_a_write_needs_more_when_its_headers_do_more(
    method: str, headers: dict[str, str], query: str, needs: str
) -> None:
    """What compares reads, what gives access or locks administers, also where the signer moved it into the URL."""
    rights = needs.split(",")

    assert is_allowed(access(f"{needs} s3://bbb"), method, f"/bbb/k{query}", headers)
    for missing in rights:
        others = ",".join(right for right in ("read", "write", "admin") if right != missing)
        assert not is_allowed(access(f"{others} s3://bbb"), method, f"/bbb/k{query}", headers)


def test_may_says_what_the_table_says_when_names_stand_elsewhere() -> None:
    """A name of a batch is held against the operation's own right, and what the request's headers ask for beside it."""
    held = access("write s3://bbb/in/*", "write,admin s3://bbb/held/*")
    batch = request("POST", "/bbb?delete")
    bypassing = request("POST", "/bbb?delete", {"x-amz-bypass-governance-retention": "true"})

    assert may(held, Operation.DELETE_OBJECTS, batch, "in/k")
    assert not may(held, Operation.DELETE_OBJECTS, batch, "k")
    assert not may(held, Operation.HEAD_OBJECT, batch, "in/k")
    assert may(EVERYTHING, Operation.DELETE_OBJECTS, bypassing, "k")
    assert may(held, Operation.DELETE_OBJECTS, bypassing, "held/k")
    assert not may(held, Operation.DELETE_OBJECTS, bypassing, "in/k")
