from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec
import pytest

from storage.effects import Changes, Effect, Needs
from storage.errors import (
    NameIgnoredError,
    NoSuchBucketError,
    NoSuchKeyError,
    NoSuchVersionError,
    OriginError,
    OriginUnavailableError,
)
from storage.origin.wire import OriginObject
from storage.relay_guard import LOOKS_MAX, UNKNOWN, RelayGuard
from storage.requests import RelayRequest
from storage.types import ObjectName

REQUEST = RelayRequest(
    "PutObjectAcl",
    "PUT",
    ObjectName("b", "k"),
    Effect(Needs.KEY, Changes.KEY),
    query=(("acl", ""),),
    guarded=("acl",),
)
BUCKET = msgspec.structs.replace(REQUEST, operation="PutBucketAcl", name=ObjectName("b", ""))
LISTING = b'<?xml version="1.0"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b'


@dataclass
class Answer:
    """One answer to a read, with an ETag, a document, or the document of an error."""

    status: int
    etag: str = ""
    code: str = ""
    body: bytes = b""

    @property
    def headers(self) -> tuple[tuple[str, str], ...]:
        return (("etag", f'"{self.etag}"'),) if self.etag else ()

    async def chunks(self) -> AsyncIterator[bytes]:
        yield f"<Error><Code>{self.code}</Code></Error>".encode() if self.code else self.body


@dataclass
class Origin:
    """Gives answers to GET?acl, others to GET, and sizes and ETags to HEAD, each in turn, the last one for ever."""

    answers: list[Answer]
    shown: list[tuple[int, str]] = field(default_factory=list)
    plain: list[Answer] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    is_s3: bool = False

    @asynccontextmanager
    async def request(
        self, method: str, _name: ObjectName, query: tuple[tuple[str, str], ...], **_rest: object
    ) -> AsyncIterator[Answer]:
        is_by_name = any(name == "acl" for name, _ in query)
        self.asked.append(f"{method}{'?acl' if is_by_name else ''}")
        answers = self.answers if is_by_name else self.plain
        yield answers.pop(0) if len(answers) > 1 else answers[0]

    async def head_object(self, _name: ObjectName) -> OriginObject:
        self.asked.append("HEAD")
        size, etag = self.shown.pop(0) if len(self.shown) > 1 else self.shown[0]
        return OriginObject(etag=etag, size=size, last_modified_s=0)


class Removals:
    """Finds nothing to say against a deletion, and counts."""

    asked = 0

    async def check(self, _request: RelayRequest) -> None:
        self.asked += 1


def guard(
    answers: list[Answer],
    shown: list[tuple[int, str]] | None = None,
    plain: list[Answer] | None = None,
    gateways: RelayGuard | None = None,
    *,
    is_s3: bool = False,
) -> tuple[RelayGuard, Origin]:
    """Make a guard over an origin that answers so."""
    origin = Origin(answers, shown or [], plain or [], is_s3=is_s3)
    return RelayGuard(origin, Removals(), gateways), origin  # type: ignore[arg-type]  # doubles


@pytest.mark.parametrize(
    ("answers", "shown"),
    [
        ([Answer(206, "one")], [(3, "one")]),
        ([Answer(206, "one"), Answer(206, "two")], [(3, "two")]),
        ([Answer(416, ""), Answer(206, "two")], [(3, "two")]),
        ([Answer(206, "one"), Answer(416, "")], [(0, "empty")]),
        ([Answer(416, "")], [(0, "empty")]),
    ],
)
async def test_an_object_that_others_write_meanwhile_is_still_the_object(
    answers: list[Answer], shown: list[tuple[int, str]]
) -> None:
    """Taken for a sub-resource, it would be replaced by the document that was meant for that, and so would all after it."""
    made, _ = guard(answers, shown)

    with pytest.raises(NameIgnoredError):
        await made.check(REQUEST)
    with pytest.raises(NameIgnoredError):
        await made.check(REQUEST)


async def test_an_object_that_is_written_all_the_time_is_not_written_by_the_name() -> None:
    """The questions are bounded, and what cannot be told is refused."""
    made, origin = guard([Answer(206, str(n)) for n in range(10)], [(3, "other")])

    with pytest.raises(OriginUnavailableError):
        await made.check(REQUEST)

    assert origin.asked == ["GET?acl", "HEAD", "GET?acl"] * LOOKS_MAX


@pytest.mark.parametrize("answer", [Answer(200), Answer(200, "its own"), Answer(404, code="NoSuchAcl")])
async def test_a_subresource_is_told_from_the_object_once(answer: Answer) -> None:
    """Also where it has an ETag, which stays as it is."""
    made, origin = guard([answer], [(3, "object")])

    await made.check(REQUEST)
    asked = len(origin.asked)
    await made.check(REQUEST)

    assert len(origin.asked) == asked <= 3


@pytest.mark.parametrize("request_", [REQUEST, BUCKET])
@pytest.mark.parametrize(
    ("by_name", "plain"),
    [
        (Answer(403, code="AccessDenied"), Answer(403, code="AccessDenied")),
        (Answer(403, code="InvalidObjectState"), Answer(403, code="InvalidObjectState")),
        (Answer(400, code="InvalidRequest"), Answer(400, code="InvalidRequest")),
        (Answer(405, code="MethodNotAllowed"), Answer(405, code="MethodNotAllowed")),
        (Answer(404), Answer(404)),
    ],
)
async def test_a_refusal_that_the_name_makes_no_difference_to_tells_nothing(
    request_: RelayRequest, by_name: Answer, plain: Answer
) -> None:
    """Who may not read the object, or reads one that cannot be read now, is refused by an origin that ignores the name as well."""
    made, _ = guard([by_name], plain=[plain])

    for _ in range(2):
        with pytest.raises((OriginError, NoSuchKeyError, NoSuchBucketError)) as refused:
            await made.check(request_)
        if isinstance(refused.value, OriginError):
            assert (refused.value.status, refused.value.code) == (plain.status, plain.code)

    assert not made.knows(request_)


@pytest.mark.parametrize("request_", [REQUEST, BUCKET])
@pytest.mark.parametrize(
    ("by_name", "plain"),
    [
        (Answer(403, code="AccessDenied"), Answer(206, "object")),
        (Answer(405, code="MethodNotAllowed"), Answer(206, "object")),
        (Answer(400, code="InvalidRequest"), Answer(403, code="InvalidObjectState")),
    ],
)
async def test_a_refusal_of_the_name_alone_shows_that_the_origin_knows_it(
    request_: RelayRequest, by_name: Answer, plain: Answer
) -> None:
    """Rights on a sub-resource are rights of its own (AWS "Actions, resources, and condition keys for Amazon S3")."""
    made, origin = guard([by_name], plain=[plain])

    await made.check(request_)
    await made.check(request_)

    assert origin.asked == ["GET?acl", "GET", "GET?acl"]


async def test_a_refusal_that_ends_meanwhile_tells_nothing() -> None:
    """A right that is given between the two questions would make an ignored name look like a known one."""
    denied = Answer(403, code="AccessDenied")
    made, _ = guard([denied, Answer(206, "object")], [(3, "object")], plain=[Answer(206, "object")])

    with pytest.raises(NameIgnoredError):
        await made.check(REQUEST)


async def test_what_the_gateway_found_out_counts_where_a_key_is_refused_alike() -> None:
    """A key may write tags and read nothing; what the origin knows does not depend on who asks."""
    gateways, _ = guard([Answer(200)])
    denied = Answer(403, code="AccessDenied")
    made, _ = guard([denied], plain=[denied], gateways=gateways)

    with pytest.raises(OriginError):
        await made.check(REQUEST)
    await gateways.check(REQUEST)
    await made.check(REQUEST)

    assert made.knows(REQUEST)


@pytest.mark.parametrize(
    "answer",
    [
        Answer(200, body=LISTING),
        Answer(200, body=LISTING.replace(b"ListBucketResult", b"s3:ListBucketResult")),
        Answer(200, body=LISTING + b"x" * 200_000),
        Answer(501, code="NotImplemented"),
    ],
)
async def test_a_bucket_that_is_listed_instead_is_not_written(answer: Answer) -> None:
    """An origin that answers the listing would make or delete the bucket; one that answers 501 has said so itself."""
    made, _ = guard([answer])

    with pytest.raises(NameIgnoredError):
        await made.check(BUCKET)


async def test_a_name_of_an_object_is_none_of_a_bucket() -> None:
    """`encryption` is a sub-resource of buckets everywhere, and of objects at few origins."""
    made, _ = guard([Answer(200, body=b"<Acl/>"), Answer(206, "object")], [(3, "object")])

    await made.check(BUCKET)

    with pytest.raises(NameIgnoredError):
        await made.check(REQUEST)


@pytest.mark.parametrize(
    ("code", "request_", "expected"),
    [
        ("NoSuchKey", REQUEST, NoSuchKeyError),
        ("NoSuchVersion", REQUEST, NoSuchVersionError),
        ("NoSuchBucket", REQUEST, NoSuchBucketError),
        ("NoSuchBucket", BUCKET, NoSuchBucketError),
        ("NoSuchKey", msgspec.structs.replace(REQUEST, operation=UNKNOWN), NameIgnoredError),
    ],
)
async def test_what_is_not_there_has_no_subresource(
    code: str, request_: RelayRequest, expected: type[Exception]
) -> None:
    """S3's own answer, and nothing is learnt by it; of what nobody knows nothing can be said."""
    made, _ = guard([Answer(404, code=code)])

    with pytest.raises(expected):
        await made.check(request_)

    assert not made.knows(request_)


async def test_s3_is_not_asked_about_what_it_documents() -> None:
    """It costs a request, and a right to read that a writer need not have; a name that S3 does not document is asked about."""
    made, origin = guard([Answer(206, "object")], [(3, "object")], is_s3=True)

    await made.check(REQUEST)
    asked = list(origin.asked)
    with pytest.raises(NameIgnoredError):
        await made.check(msgspec.structs.replace(REQUEST, operation=UNKNOWN))

    assert asked == []


@pytest.mark.parametrize(
    ("method", "name", "is_s3", "expected"),
    [
        ("DELETE", BUCKET.name, False, 1),
        ("DELETE", BUCKET.name, True, 0),
        ("PUT", BUCKET.name, False, 0),
        ("DELETE", REQUEST.name, False, 0),
    ],
)
async def test_a_deletion_of_a_buckets_subresource_is_tried_elsewhere_first(
    method: str, name: ObjectName, expected: int, *, is_s3: bool
) -> None:
    """Reading the name does not tell; an object's is looked after by reading, and S3 keeps to what it documents."""
    origin, removals = Origin([Answer(200, body=b"<Acl/>")], is_s3=is_s3), Removals()
    made = RelayGuard(origin, removals)  # type: ignore[arg-type]  # doubles
    asked = msgspec.structs.replace(REQUEST, method=method, name=name, operation=UNKNOWN)

    await made.check(asked)

    assert removals.asked == expected


@pytest.mark.parametrize("code", ["BucketNotEmpty", "BucketAlreadyExists", "BucketAlreadyOwnedByYou"])
def test_an_answer_of_another_operation_gives_it_away(code: str) -> None:
    """The refusals of DeleteBucket and CreateBucket are told as what they mean; other conflicts are the origin's to tell."""
    made, _ = guard([])
    document, other = (f"<Error><Code>{c}</Code></Error>".encode() for c in (code, "OperationAborted"))

    made.check_answer(BUCKET, other)
    made.check_answer(BUCKET, b"no document")
    made.check_answer(REQUEST, document)
    with pytest.raises(NameIgnoredError):
        made.check_answer(BUCKET, document)


async def test_reads_say_who_pays_and_whose_bucket_it_is() -> None:
    """Without these headers the origin refuses what it would let be written."""
    seen: list[tuple[tuple[str, str], ...]] = []
    told = (("X-Amz-Request-Payer", "requester"), ("x-amz-expected-bucket-owner", "1"))

    class Noting(Origin):
        def request(self, method: str, name: ObjectName, query: object, **rest: object):  # type: ignore[no-untyped-def,override]
            seen.append(rest["headers"])  # type: ignore[arg-type]
            return super().request(method, name, query, **rest)  # type: ignore[arg-type]

    made = RelayGuard(Noting([Answer(200)]), Removals())  # type: ignore[arg-type]  # doubles
    await made.check(msgspec.structs.replace(REQUEST, headers=(*told, ("content-md5", "x"))))

    assert set(seen[0]) == {*told, ("range", "bytes=0-0")}
