"""What GET and HEAD answer is the same over each state of the cache: conditions, ranges, overrides, encodings."""

import gzip
import hashlib
import random
from dataclasses import dataclass

import pytest

from gateway.context import OperationContext
from gateway.operations.objects import get_object, head_object
from gateway.s3.dates import http_date
from gateway.s3.errors import S3Error
from gateway.s3.request import parse
from storage.policy import Freshness, Policy
from storage.requests import Content
from storage.types import MIB, ObjectName, RangeSpec
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, PlainBuckets, RunningEngine, read_all, running_engine

DATA = random.Random(1).randbytes(MIB + 77)
DATE_S = 1_700_000_000
DATE, BEFORE = http_date(DATE_S), http_date(DATE_S - 1)
STATES = ("cold", "known", "partly", "warm", "old", "away", "changed")


class NoBody:
    """The body of a request that has none."""

    def content(self) -> Content:
        """Not called for a read."""
        raise NotImplementedError

    async def read_small(self, limit: int, *, checksums_are_of_object: bool = False) -> bytes:
        """Not called for a read."""
        raise NotImplementedError


@dataclass(slots=True)
class Told:
    """What a client is answered."""

    status: int
    headers: dict[str, str]
    body: bytes
    length: int


async def ask(running: RunningEngine, method: str, target: str, **headers: str) -> Told:
    """Send one request through the operations, as a signed client."""
    context = OperationContext(
        running.engine, NoBody(), running.clock, "key", is_signed=True, region="", scheme="http"
    )
    pairs = [("host", "gateway"), *((name.replace("_", "-"), value) for name, value in headers.items())]
    request = parse(method, target, pairs, request_id="1", received_at_s=0.0)
    try:
        response = await (get_object if method == "GET" else head_object)(context, request)
    except S3Error as error:
        return Told(error.status, dict(error.headers), b"", 0)
    body = response.body
    data = b"" if body is None else body if isinstance(body, bytes) else await read_all(body)
    return Told(response.status, dict(response.headers), data, response.length)


async def bring_into(running: RunningEngine, state: str, key: str) -> None:
    """Have an object in some state of the cache."""
    name = ObjectName(BUCKET, key)
    if state == "known":
        await (await running.engine.open_object(name, metadata_only=True)).close()
    elif state == "partly":
        await running.get(key, RangeSpec(start=0, stop=1))
    elif state == "changed":
        before = random.Random(2).randbytes(len(DATA))
        now = running.origin.store.buckets[BUCKET].objects[key]
        running.origin.store.put(BUCKET, key, before)
        await running.get(key)
        running.origin.store.put(BUCKET, key, now.body, **now.headers)
    elif state != "cold":
        await running.get(key)
    await running.fills_ended()


async def go_on(running: RunningEngine, state: str) -> None:
    """Let the state's time come."""
    if state in {"old", "away", "changed"}:
        running.clock.ahead_s = 61.0
    if state == "away":
        running.origin.faults.add(Fault(status=502, times=-1))


CONDITIONS: tuple[tuple[dict[str, str], int], ...] = (
    ({"if_match": "ETAG"}, 200),
    ({"if_match": '"other"'}, 412),
    ({"if_match": "*"}, 200),
    ({"if_none_match": "ETAG"}, 304),
    ({"if_none_match": "*"}, 304),
    ({"if_none_match": '"other"'}, 200),
    ({"if_modified_since": DATE}, 304),
    ({"if_modified_since": BEFORE}, 200),
    ({"if_unmodified_since": BEFORE}, 412),
    ({"if_unmodified_since": DATE}, 200),
    ({"if_match": "ETAG", "if_unmodified_since": BEFORE}, 200),
    ({"if_none_match": "ETAG", "if_modified_since": BEFORE}, 304),
    ({"if_none_match": '"other"', "if_modified_since": DATE}, 200),
    ({"if_none_match": "ETAG", "range": "bytes=0-1"}, 304),
    ({"if_match": "ETAG", "range": "bytes=1048570-1048579"}, 206),
    ({"if_range": "ETAG", "range": "bytes=-10"}, 206),
    ({"if_range": '"other"', "range": "bytes=0-1"}, 200),
    ({"if_match": '"other"', "range": "bytes=9999999-"}, 412),
    ({"if_match": "ETAG", "range": "bytes=9999999-"}, 416),
)
BODIES = {"bytes=1048570-1048579": DATA[1048570:1048580], "bytes=-10": DATA[-10:]}


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("state", STATES)
async def test_conditions_are_answered_alike_whatever_is_cached(state: str, method: str) -> None:
    """B33, B16, B34: the origin's own 304 is none of the client's; the same status, range and bytes from any state of the cache."""
    policy = Policy(freshness=Freshness(ttl_s=60.0))
    async with running_engine(policy=policy, questions=PlainBuckets()) as running:
        running.origin.store._now_s = lambda: float(DATE_S)
        for number in range(len(CONDITIONS)):
            running.origin.store.put(BUCKET, f"key-{number}", DATA)
            await bring_into(running, state, f"key-{number}")
        etag = f'"{running.origin.store.buckets[BUCKET].objects["key-0"].etag}"'
        await go_on(running, state)

        for number, (headers, status) in enumerate(CONDITIONS):
            sent = {name: etag if value == "ETAG" else value for name, value in headers.items()}
            told = await ask(running, method, f"/{BUCKET}/key-{number}", **sent)
            after = await ask(running, "GET", f"/{BUCKET}/key-{number}")

            case = f"{state} {method} {headers}"
            assert told.status == status, case
            assert (after.status, after.body) == (200, DATA), case
            if status in {200, 206}:
                wanted = BODIES[headers["range"]] if status == 206 else DATA
                assert told.length == len(wanted), case
                assert told.body == (wanted if method == "GET" else b""), case
            if status in {200, 206, 304}:
                assert (told.headers["etag"], told.headers["last-modified"]) == (etag, DATE), case


@pytest.mark.parametrize("state", STATES)
async def test_overrides_are_of_one_answer_and_stay_in_no_cache(state: str) -> None:
    """B35: what response-* asks for is in that answer, GET and HEAD, and in no later one, cold or warm."""
    query = "?response-content-type=text/x&response-content-disposition=attachment&response-cache-control=no-store"
    policy = Policy(freshness=Freshness(ttl_s=60.0))
    async with running_engine(policy=policy, questions=PlainBuckets()) as running:
        running.origin.store.put(BUCKET, "key", DATA, content_type="a/b")
        await bring_into(running, state, "key")
        await go_on(running, state)

        answers = [
            await ask(running, method, f"/{BUCKET}/key{asked}")
            for asked in (query, "")
            for method in ("GET", "HEAD")
        ]

        overridden, plain = answers[:2], answers[2:]
        assert all(told.headers["content-type"] == "text/x" for told in overridden)
        assert all(told.headers["content-disposition"] == "attachment" for told in overridden)
        assert all(told.headers["content-type"] == "a/b" for told in plain)
        assert not any({"content-disposition", "cache-control"} & told.headers.keys() for told in plain)
        assert answers[0].body == answers[2].body == DATA


@pytest.mark.parametrize("state", STATES)
async def test_encoded_objects_of_the_origin_are_given_as_they_are_stored(state: str) -> None:
    """B06: S3 never decodes: bytes, length, ETag and label of the whole and of a range, whether the label is true or not."""
    policy = Policy(freshness=Freshness(ttl_s=60.0))
    objects = {
        f"{encoding}-{number}": (encoding, data)
        for encoding in ("gzip", "br", "zstd", "deflate")
        for number, data in enumerate((gzip.compress(bytes(300_000)), b"plain bytes"))
    }
    async with running_engine(policy=policy, questions=PlainBuckets()) as running:
        for key, (encoding, data) in objects.items():
            running.origin.store.put(BUCKET, key, data, content_encoding=encoding)
            await bring_into(running, state, key)
        await go_on(running, state)

        for key, (encoding, data) in objects.items():
            whole = await ask(running, "GET", f"/{BUCKET}/{key}", accept_encoding="gzip, br")
            part = await ask(running, "GET", f"/{BUCKET}/{key}", range="bytes=3-8")

            assert (whole.body, whole.length, part.body) == (data, len(data), data[3:9]), key
            assert whole.headers["content-encoding"] == part.headers["content-encoding"] == encoding, key
            assert whole.headers["etag"] == f'"{hashlib.md5(data).hexdigest()}"', key
