"""Nothing reaches a key that may not see it, over a real socket, a whole engine and an origin that decides by key.

Each way to read, by each key that may not, of an object in each state: no byte, no ETag, no size, no name.
"""

import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.grants import Access, parse_grant
from gateway.s3.rights import NEEDS, Scope
from gateway.s3.routes import Operation
from gateway.setting_values import OriginKeys
from storage.policy import Policy, PolicyTable
from storage.types import ObjectName
from tests.fakes.gateway import Answer, RunningGateway, ask, running_gateway
from tests.fakes.publishing import TARGET, publish
from tests.fakes.running_engine import BUCKET, RunningEngine, running_engine

SECRET = b"the bytes that nobody may see" * 151
ETAG = hashlib.md5(SECRET).hexdigest()
KEYS = {"cached": "hidden/cached", "dirty": "hidden/dirty", "cold": "hidden/cold", "target": f"{TARGET}k0"}
SOURCE = "staging/v1/k0"
READERS = ["granted elsewhere", "", "refused by the origin"]

READS: Mapping[Operation, tuple[tuple[str, str, dict[str, str]], ...]] = {
    Operation.GET_OBJECT: (
        ("GET", "/bucket/{key}", {}),
        ("GET", "/bucket/{key}", {"range": "bytes=0-3"}),
        ("GET", "/bucket/{key}?partNumber=1", {}),
        ("GET", "/bucket/{key}", {"if-none-match": f'"{ETAG}"'}),
        ("GET", "/bucket/{key}", {"if-match": f'"{ETAG}"'}),
        ("GET", "/bucket/{key}", {"if-match": '"other"'}),
        ("GET", "/bucket/{key}", {"range": "bytes=90-"}),
    ),
    Operation.HEAD_OBJECT: (("HEAD", "/bucket/{key}", {}), ("HEAD", "/bucket/{key}?partNumber=1", {})),
    Operation.GET_OBJECT_ATTRIBUTES: (("GET", "/bucket/{key}?attributes", {}),),
    Operation.GET_OBJECT_TAGGING: (("GET", "/bucket/{key}?tagging", {}),),
    Operation.GET_OBJECT_LEGAL_HOLD: (("GET", "/bucket/{key}?legal-hold", {}),),
    Operation.GET_OBJECT_RETENTION: (("GET", "/bucket/{key}?retention", {}),),
    Operation.GET_OBJECT_TORRENT: (("GET", "/bucket/{key}?torrent", {}),),
    Operation.GET_OBJECT_ANNOTATION: (("GET", "/bucket/{key}?annotation&annotationName=a", {}),),
    Operation.LIST_OBJECT_ANNOTATIONS: (("GET", "/bucket/{key}?annotation", {}),),
    Operation.SELECT_OBJECT_CONTENT: (("POST", "/bucket/{key}?select&select-type=2", {}),),
    Operation.LIST_PARTS: (("GET", "/bucket/{key}?uploadId=none", {}),),
    Operation.LIST_OBJECTS: (("GET", "/bucket?prefix=hidden/", {}), ("GET", "/bucket", {})),
    Operation.LIST_OBJECTS_V2: (
        ("GET", "/bucket?list-type=2&prefix={key}", {}),
        ("GET", "/bucket?list-type=2&delimiter=/", {}),
        ("GET", "/bucket?list-type=2&prefix=hidden/&max-keys=1", {}),
    ),
    Operation.LIST_OBJECT_VERSIONS: (("GET", "/bucket?versions&prefix=hidden/", {}),),
    Operation.LIST_MULTIPART_UPLOADS: (("GET", "/bucket?uploads", {}),),
    Operation.COPY_OBJECT: (("PUT", "/bucket/open/copy", {"x-amz-copy-source": "/bucket/{key}"}),),
    Operation.PUT_OBJECT: (
        ("PUT", "/bucket/{key}", {"if-match": f'"{ETAG}"'}),
        ("PUT", "/bucket/{key}", {"if-none-match": "*"}),
    ),
    Operation.DELETE_OBJECT: (("DELETE", "/bucket/{key}", {"if-match": f'"{ETAG}"'}),),
}


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[tuple[RunningEngine, RunningGateway]]:
    """A gateway over an engine that holds an object in each state, with a key for each way to be refused."""
    async with gateway_over_engine(tmp_path) as both:
        engine, _ = both
        engine.policy[:] = [
            PolicyTable((Policy(bucket=BUCKET, prefix=TARGET, published=True),), Policy(flush_delay_s=3600))
        ]
        await engine.put(SOURCE, SECRET)
        await publish(engine, "v1")
        for state in ("cached", "cold"):
            engine.origin.store.put(BUCKET, KEYS[state], SECRET)
        await engine.get(KEYS["cached"])
        await engine.get(SOURCE)
        await engine.fills_ended()
        yield both


@asynccontextmanager
async def gateway_over_engine(tmp_path: Path) -> AsyncIterator[tuple[RunningEngine, RunningGateway]]:
    """Run both, with an origin that knows the gateway's key and another one that may do a little."""
    async with running_engine() as engine:
        engine.origin.keys = {"key": "secret", "own": "secret", "mine": "secret"}
        engine.origin.allowed = {"own": (f"{BUCKET}/open/",), "mine": (f"{BUCKET}/hidden/",)}
        async with running_gateway(
            str(tmp_path / "log"),
            engine=engine.engine,
            access={"granted elsewhere": Access((parse_grant("read,write s3://bucket/open/*"),))},
            anonymous=Access((parse_grant("read s3://bucket/open/*"),)),
            origin_keys={
                "refused by the origin": OriginKeys("own", "secret"),
                "let by the origin": OriginKeys("mine", "secret"),
            },
        ) as gateway:
            yield engine, gateway


def told(answer: Answer, target: str) -> str:
    """Give what an answer says beyond the request's own path."""
    path = target.partition("?")[0]
    text = answer.body.decode().replace(f"<Resource>{path}</Resource>", "")
    text = re.sub("<(RequestId|HostId)>[^<]*", "", text)
    return text + repr({**answer.headers, "x-amz-request-id": "", "x-amz-id-2": "", "date": ""})


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("state", KEYS)
async def test_nothing_is_told_to_a_key_that_may_not_see_it(
    running: tuple[RunningEngine, RunningGateway], state: str, reader: str
) -> None:
    """Every way to read, and every write that compares: refused, and nothing of the object in the answer."""
    engine, gateway = running
    key = KEYS[state]
    for operation, requests in READS.items():
        for method, pattern, headers in requests:
            if state == "dirty":
                await engine.put(key, SECRET)
            target = pattern.format(key=key)
            sent = {name: value.format(key=key) for name, value in headers.items()}

            answer = await ask(gateway, method, target, sent, reader)

            where = f"{operation} {method} {target} {sent} of {state} by {reader!r}: {answer}"
            assert answer.status in {403, 501}, where
            text = told(answer, target)
            for part in (SECRET.decode(), ETAG, f"{len(SECRET)}", SOURCE, "k0", "/cached", "/dirty", "/cold"):
                assert part not in text, f"{part!r} in {where}"
            for header in ("x-cache", "etag", "last-modified", "content-range"):
                assert header not in answer.headers, where
            # 0 is what a prefix says that shows nothing.
            assert answer.headers.get("x-forebay-generation", "0") == "0", where
    held = await engine.get(SOURCE if state == "target" else key)
    assert held.data == SECRET


def test_every_way_to_read_is_tried() -> None:
    """An operation that reads an object or names of objects, and is added, is added here."""
    reading = {
        operation
        for operation, need in NEEDS.items()
        if need.right == "read" and need.scope in {Scope.OBJECT, Scope.PREFIX}
    }

    assert reading <= set(READS)


async def test_the_same_answers_are_given_to_a_key_that_the_origin_lets_read(
    running: tuple[RunningEngine, RunningGateway],
) -> None:
    """The refusals above are of the key: with the right at the origin, each state is read and listed."""
    engine, gateway = running
    await engine.put(KEYS["dirty"], SECRET)
    for state in ("cached", "dirty", "cold"):
        answer = await ask(gateway, "GET", f"/bucket/{KEYS[state]}", {}, "let by the origin")
        assert (answer.status, answer.body, answer.headers["etag"]) == (200, SECRET, f'"{ETAG}"')
    listed = await ask(gateway, "GET", "/bucket?prefix=hidden/", {}, "let by the origin")

    assert listed.body.count(b"<Key>hidden/") == 3


async def test_a_write_says_why_it_went_through_and_is_kept_nowhere_else(
    running: tuple[RunningEngine, RunningGateway],
) -> None:
    """The answer to a write of such a key names the reason, and the bytes are at the origin by then."""
    engine, gateway = running
    answer = await ask(gateway, "PUT", "/bucket/hidden/new", {}, "let by the origin")

    assert (answer.status, answer.headers["x-cache-reason"]) == (200, "own credentials")
    assert engine.origin.store.body(BUCKET, "hidden/new") == b""
    assert engine.engine.acknowledged_of(ObjectName(BUCKET, "hidden/new")) is None
