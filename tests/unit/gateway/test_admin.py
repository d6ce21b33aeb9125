"""Metrics, health and admin verbs over a real socket."""

import urllib.request

import msgspec
import pytest

from gateway.admin import Changed, MetricsServer
from gateway.telemetry import Exporter, RequestStats
from storage.acknowledgements import AcknowledgedLine, AcknowledgedPage
from storage.clock import SystemClock
from storage.requests import BarrierReport, PendingLine, PendingPage, StatusReport
from storage.stats import Stats
from tests.fakes.gateway import Answer, RunningGateway, in_thread

LINE = PendingLine(
    sequence=9,
    bucket="bucket",
    key="key",
    size=5,
    is_tombstone=False,
    acknowledged_at_s=1.0,
    attempts=3,
    state="quarantined",
    reason="403 AccessDenied",
)


async def ask(gateway: RunningGateway, method: str, target: str) -> Answer:
    """Send one signed request."""
    connection = await gateway.connect()
    await connection.send(gateway.signed(method, target, {"content-length": "0"}))
    return await connection.answer()


async def ask_unsigned(gateway: RunningGateway, target: str) -> Answer:
    """Send one GET without a signature."""
    connection = await gateway.connect()
    await connection.send(f"GET {target} HTTP/1.1\r\nhost: {gateway.host}\r\n\r\n".encode())
    return await connection.answer()


async def test_metrics_are_open_when_they_are_asked_for_unsigned(gateway: RunningGateway) -> None:
    """GET /metrics without a signature is the exporter; with one it is the bucket of that name."""
    gateway.store.put("metrics", "key", b"x")
    await ask(gateway, "GET", "/bucket/none")

    exported = await ask_unsigned(gateway, "/metrics")
    listed = await ask(gateway, "GET", "/metrics")
    below = await ask_unsigned(gateway, "/metrics/key")

    assert exported.status == 200
    assert exported.headers["content-type"].startswith("text/plain")
    assert b'forebay_requests_total{operation="GetObject",status="404"} 1.0' in exported.body
    assert b"<ListBucketResult" in listed.body
    assert below.status == 403


async def test_health_is_open_when_the_loop_runs(gateway: RunningGateway) -> None:
    """Health needs no signature; readiness says whether writes are taken, and why not."""
    healthy = await ask_unsigned(gateway, "/-/healthz")
    ready = await ask_unsigned(gateway, "/-/ready")
    gateway.store.is_writable = False
    not_ready = await ask_unsigned(gateway, "/-/ready")

    assert (healthy.status, healthy.body) == (200, b"ok\n")
    assert (ready.status, ready.body) == (200, b"ready\n")
    assert (not_ready.status, not_ready.body) == (503, b"a sync failed\n")


async def test_health_says_what_is_degraded(gateway: RunningGateway) -> None:
    """An origin that is away is told, and is no reason to restart the gateway: still 200."""
    gateway.store.degraded = ("the origin has not answered for 12 s",)

    healthy = await ask_unsigned(gateway, "/-/healthz")

    assert (healthy.status, healthy.body) == (200, b"degraded: the origin has not answered for 12 s\n")


@pytest.mark.parametrize("target", ["/-/status", "/-/pending?bucket=b", "/-/flush/1", "/-/anything"])
async def test_access_is_denied_when_a_verb_is_unsigned(gateway: RunningGateway, target: str) -> None:
    """All else under /-/ needs a signature."""
    answer = await ask_unsigned(gateway, target)

    assert answer.status == 403


async def test_a_barrier_is_followed_when_a_flush_is_asked_for(gateway: RunningGateway) -> None:
    """A flush gives an id; asking with it waits and tells how far it is."""
    started = msgspec.json.decode(
        (await ask(gateway, "POST", "/-/flush?bucket=bucket&prefix=a%2F")).body, type=BarrierReport
    )
    first = msgspec.json.decode((await ask(gateway, "GET", "/-/flush/1?wait=1")).body, type=BarrierReport)
    second = msgspec.json.decode((await ask(gateway, "GET", "/-/flush/1")).body, type=BarrierReport)

    assert (started.barrier_id, started.remaining, started.is_reached) == (1, 2, False)
    assert (first.remaining, second.remaining, second.is_reached) == (1, 0, True)


async def test_the_verbs_answer_json_when_they_are_signed(gateway: RunningGateway) -> None:
    """Status, pending, retry and discard give what the engine says."""
    gateway.store.lines = (LINE,)

    status = msgspec.json.decode((await ask(gateway, "GET", "/-/status")).body, type=StatusReport)
    pending = msgspec.json.decode(
        (await ask(gateway, "GET", "/-/pending?bucket=bucket")).body, type=PendingPage
    )
    retried = msgspec.json.decode((await ask(gateway, "POST", "/-/retry?bucket=bucket")).body, type=Changed)
    dropped = msgspec.json.decode(
        (await ask(gateway, "POST", "/-/discard?bucket=bucket&key=k&sequence=9")).body, type=Changed
    )

    assert status.quarantined == pending.lines == (LINE,)
    assert (retried.changed, dropped.changed) == (3, 1)


async def test_pending_and_quarantine_are_paged_when_they_are_told_where_to_go_on(
    gateway: RunningGateway,
) -> None:
    """A page begins behind a sequence; the quarantine needs no bucket."""
    waiting = msgspec.structs.replace(LINE, sequence=5, key="waiting", state="queued", reason="")
    gateway.store.lines = (waiting, LINE)

    async def keys(target: str) -> list[str]:
        page = msgspec.json.decode((await ask(gateway, "GET", target)).body, type=PendingPage)
        return [line.key for line in page.lines]

    assert await keys("/-/pending?bucket=bucket") == ["waiting", "key"]
    assert await keys("/-/pending?bucket=bucket&after=5") == ["key"]
    assert await keys("/-/quarantine") == ["key"]
    assert await keys("/-/quarantine?bucket=bucket&prefix=k&after=8") == ["key"]
    assert await keys("/-/quarantine?after=9") == []


async def test_acknowledged_keys_are_told_by_page_or_by_key(gateway: RunningGateway) -> None:
    """Pages go on behind a key; one key alone is a line, or null."""
    gateway.store.acknowledged_lines = tuple(
        AcknowledgedLine(key, size=1, etag="e") for key in ("a b", "b+", "c")
    )

    first = msgspec.json.decode(
        (await ask(gateway, "GET", "/-/acknowledged?bucket=bucket")).body, type=AcknowledgedPage
    )
    rest = msgspec.json.decode(
        (await ask(gateway, "GET", "/-/acknowledged?bucket=bucket&deep=1&after=b%2B")).body,
        type=AcknowledgedPage,
    )
    one = (await ask(gateway, "GET", "/-/acknowledged?bucket=bucket&key=b%2B")).body
    none = (await ask(gateway, "GET", "/-/acknowledged?bucket=bucket&key=x")).body

    assert ([line.key for line in first.lines], first.next_after) == (["a b", "b+"], "b+")
    assert ([line.key for line in rest.lines], rest.next_after) == (["c"], "")
    assert msgspec.json.decode(one, type=AcknowledgedLine) == gateway.store.acknowledged_lines[1]
    assert none == b"null\n"


@pytest.mark.parametrize(
    ("method", "target", "status"),
    [
        ("POST", "/-/flush", 400),
        ("GET", "/-/pending", 400),
        ("GET", "/-/pending?bucket=b&after=x", 400),
        ("GET", "/-/quarantine?prefix=p", 400),
        ("GET", "/-/acknowledged", 400),
        ("POST", "/-/discard?bucket=b&sequence=1", 400),
        ("POST", "/-/discard?bucket=b&key=k", 400),
        ("POST", "/-/discard?bucket=b&key=k&sequence=x", 400),
        ("GET", "/-/flush/abc", 400),
        ("GET", "/-/retry?bucket=b", 405),
        ("POST", "/-/status", 405),
        ("GET", "/-/", 405),
        ("DELETE", "/-/healthz", 405),
    ],
)
async def test_a_verb_is_refused_when_it_is_wrong(
    gateway: RunningGateway, method: str, target: str, status: int
) -> None:
    """A missing parameter is 400, an unknown verb 405."""
    answer = await ask(gateway, method, target)

    assert answer.status == status


async def test_metrics_have_their_own_port_when_one_is_set() -> None:
    """The separate port serves metrics and nothing else."""
    server = MetricsServer(Exporter(Stats(), RequestStats(), SystemClock()))
    host, port = await server.listen("127.0.0.1", 0)

    def fetch(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://{host}:{port}{path}", timeout=5) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code

    found, missing = await in_thread(fetch, "/metrics"), await in_thread(fetch, "/-/status")
    await server.stop()

    assert (found, missing) == (200, 404)
