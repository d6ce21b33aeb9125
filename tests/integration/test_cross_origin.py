"""Requests that browsers send from other sites' pages, through a whole gateway."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import pytest_asyncio

from gateway import cross_origin
from tests.fakes.forms import TYPE, form, signed_fields
from tests.fakes.gateway import Answer, RunningGateway, running_gateway
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET, PlainBuckets, RunningEngine, running_engine

if TYPE_CHECKING:
    from tests.fakes.engine import FakeStore

RULES = (
    b"<CORSConfiguration><CORSRule><AllowedOrigin>https://page.example</AllowedOrigin><AllowedMethod>GET</AllowedMethod>"
    b"<AllowedHeader>x-amz-*</AllowedHeader><ExposeHeader>ETag</ExposeHeader></CORSRule></CORSConfiguration>"
)
PAGE = {"origin": "https://page.example"}
PREFLIGHT = {**PAGE, "access-control-request-method": "GET"}


class Site:
    """A gateway, its engine, and the origin behind."""

    def __init__(self, gateway: RunningGateway, running: RunningEngine) -> None:
        self.gateway = gateway
        self.running = running
        self.documents = running.origin.store.documents
        self.documents[BUCKET, "", "cors"] = RULES

    async def send(self, method: str, target: str, headers: dict[str, str]) -> Answer:
        """Send a request without a signature."""
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        connection = await self.gateway.connect()
        await connection.send(f"{method} {target} HTTP/1.1\r\nhost: gateway\r\n{lines}\r\n".encode())
        return await connection.answer(has_body=method != "HEAD")

    async def ask(self, method: str, target: str, headers: dict[str, str], body: bytes = b"") -> Answer:
        """Send a signed one."""
        length = {"content-length": str(len(body))} if method == "PUT" else {}
        connection = await self.gateway.connect()
        await connection.send(self.gateway.signed(method, target, {**headers, **length}) + body)
        return await connection.answer(has_body=method != "HEAD")

    @property
    def questions(self) -> int:
        """Count how often the origin was asked for rules."""
        return self.running.origin.requests["GET cors"]


@pytest_asyncio.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    """Run all three."""
    async with (
        running_engine(questions=PlainBuckets()) as running,
        running_gateway(str(tmp_path / "access.log"), store=cast("FakeStore", running.engine)) as gateway,
    ):
        yield Site(gateway, running)


async def test_a_preflight_is_answered_without_a_signature(site: Site) -> None:
    """The bucket's rules allow it; the origin is asked once, whatever the path and its parameters."""
    first = await site.send(
        "OPTIONS", f"/{BUCKET}/some/key", {**PREFLIGHT, "access-control-request-headers": "X-Amz-Date"}
    )
    again = await site.send("OPTIONS", f"/{BUCKET}/k?X-Amz-Signature=s&partNumber=1&uploadId=u", PREFLIGHT)

    assert (first.status, again.status, site.questions) == (200, 200, 1)
    assert first.headers["access-control-allow-origin"] == "https://page.example"
    assert first.headers["access-control-allow-headers"] == "x-amz-date"
    assert first.headers["content-length"] == "0"
    assert "Origin" in first.headers["vary"]
    assert [entry.operation for entry in await site.gateway.log()] == ["OptionsObject"] * 2


@pytest.mark.parametrize(
    ("target", "headers", "words"),
    [
        (
            f"/{BUCKET}/k",
            {**PREFLIGHT, "origin": "https://other.example"},
            b"This CORS request is not allowed",
        ),
        (
            f"/{BUCKET}",
            {**PREFLIGHT, "access-control-request-method": "PUT"},
            b"This CORS request is not allowed",
        ),
        (
            f"/{BUCKET}/k",
            {**PREFLIGHT, "access-control-request-headers": "x-other"},
            b"This CORS request is not allowed",
        ),
        ("/no-such-bucket/k", PREFLIGHT, b"CORS is not enabled for this bucket"),
        ("/", PREFLIGHT, b"CORS is not enabled for this bucket"),
        ("/-/status", PREFLIGHT, b"CORS is not enabled for this bucket"),
    ],
)
async def test_a_preflight_that_no_rule_allows_is_forbidden(
    site: Site, target: str, headers: dict[str, str], words: bytes
) -> None:
    """403 with the reason, and nothing that would let the browser go on."""
    answer = await site.send("OPTIONS", target, headers)

    assert answer.status == 403
    assert b"<Code>AccessForbidden</Code>" in answer.body
    assert words in answer.body
    assert "access-control-allow-origin" not in answer.headers


async def test_a_bucket_without_rules_forbids_every_preflight(site: Site) -> None:
    """The origin's own word that there is none is kept as rules are."""
    del site.documents[BUCKET, "", "cors"]

    answers = [await site.send("OPTIONS", f"/{BUCKET}/k", PREFLIGHT) for _ in range(2)]

    assert [answer.status for answer in answers] == [403, 403]
    assert all(b"CORS is not enabled" in answer.body for answer in answers)
    assert site.questions == 1


async def test_an_answer_to_a_page_says_what_it_may_see(site: Site) -> None:
    """What is read, what is not there, and what is refused for want of a signature; another page is told nothing."""
    await site.running.put("k", b"bytes")

    found = await site.ask("GET", f"/{BUCKET}/k", PAGE)
    missing = await site.ask("GET", f"/{BUCKET}/missing", PAGE)
    unsigned = await site.send("GET", f"/{BUCKET}/k", PAGE)
    put = await site.ask("PUT", f"/{BUCKET}/k", PAGE, b"more")
    other = await site.ask("GET", f"/{BUCKET}/k", {"origin": "https://other.example"})
    none = await site.ask("GET", f"/{BUCKET}/k", {})

    assert [found.status, missing.status, unsigned.status, put.status] == [200, 404, 403, 200]
    for answer in (found, missing, unsigned):
        assert answer.headers["access-control-allow-origin"] == "https://page.example"
        assert answer.headers["access-control-allow-methods"] == "GET"
        assert answer.headers["access-control-expose-headers"] == "ETag"
        assert "Origin" in answer.headers["vary"]
    for answer in (put, other):
        assert "access-control-allow-origin" not in answer.headers
        assert "Origin" in answer.headers["vary"]
    assert "vary" not in none.headers
    assert site.questions == 1


async def test_a_relayed_answer_has_the_rules_of_the_gateway(site: Site) -> None:
    """The origin is not asked as a page, and what it says of sharing is not said twice."""
    site.running.origin.faults.add(
        Fault(operation="GET policy", headers={"access-control-allow-origin": "https://elsewhere"})
    )
    site.documents[BUCKET, "", "policy"] = b"{}"

    answer = await site.ask("GET", f"/{BUCKET}?policy", PAGE)

    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    asked = next(entry for entry in site.running.origin.log if entry.operation == "GET policy")
    assert "origin" not in asked.headers


async def test_rules_that_pass_through_are_in_force_at_once(site: Site) -> None:
    """PutBucketCors and DeleteBucketCors are seen by the next request."""
    before = await site.send("OPTIONS", f"/{BUCKET}/k", PREFLIGHT)
    await site.ask("PUT", f"/{BUCKET}?cors", PAGE, RULES.replace(b"page.example", b"new.example"))
    old = await site.send("OPTIONS", f"/{BUCKET}/k", PREFLIGHT)
    new = await site.send("OPTIONS", f"/{BUCKET}/k", {**PREFLIGHT, "origin": "https://new.example"})
    await site.ask("DELETE", f"/{BUCKET}?cors", {})
    after = await site.send("OPTIONS", f"/{BUCKET}/k", {**PREFLIGHT, "origin": "https://new.example"})

    assert [answer.status for answer in (before, old, new, after)] == [200, 403, 200, 403]


async def test_rules_that_were_overtaken_while_they_were_asked_for_are_not_kept(site: Site) -> None:
    """An answer that was on its way when the rules changed decides nothing afterwards."""
    gate = site.running.origin.hold("GET", BUCKET)
    asking = asyncio.get_running_loop().create_task(site.send("OPTIONS", f"/{BUCKET}/k", PREFLIGHT))
    await gate.reached.wait()

    await site.ask("DELETE", f"/{BUCKET}?cors", {})
    gate.open()
    await asking
    after = await site.send("OPTIONS", f"/{BUCKET}/k", PREFLIGHT)

    assert after.status == 403


async def test_a_warm_read_does_not_wait_for_rules_that_are_old(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Old rules serve while they are asked for again; where the origin fails they go on."""
    monkeypatch.setattr(cross_origin, "KEPT_S", 0.0)
    await site.running.put("k", b"bytes")
    await site.ask("GET", f"/{BUCKET}/k", PAGE)
    site.running.origin.faults.add(Fault(operation="GET cors", delay_s=5.0, times=1))

    async with asyncio.timeout(3):
        answer = await site.ask("GET", f"/{BUCKET}/k", PAGE)

    assert answer.headers["access-control-allow-origin"] == "https://page.example"
    assert answer.headers["x-cache"] == "HIT"


async def test_an_origin_that_does_not_say_delays_no_second_read(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rules cannot be had the answer goes without after a bounded wait, and a preflight is told to come again."""
    monkeypatch.setattr(cross_origin, "WAIT_S", 0.05)
    await site.running.put("k", b"bytes")
    site.running.origin.faults.add(Fault(operation="GET cors", status=500, code="InternalError", times=-1))

    async with asyncio.timeout(5):
        read = await site.ask("GET", f"/{BUCKET}/k", PAGE)
        preflight = await site.send("OPTIONS", f"/{BUCKET}/k", PREFLIGHT)

    assert (read.status, read.body) == (200, b"bytes")
    assert "access-control-allow-origin" not in read.headers
    assert (preflight.status, preflight.headers["retry-after"]) == (503, "1")


async def test_the_table_is_bounded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for many buckets makes the gateway remember no more than its bound."""
    monkeypatch.setattr(cross_origin, "BUCKETS_MAX", 3)
    for number in range(6):
        await site.send("OPTIONS", f"/bucket-{number}/k", PREFLIGHT)

    assert len(site.gateway.server._cross_origin._known) == 3


async def test_a_form_from_another_sites_page_is_answered_as_the_rules_say(site: Site) -> None:
    """A form that is stored and one that is refused both say what the page may see."""
    site.documents[BUCKET, "", "cors"] = RULES.replace(b"GET", b"POST")
    answers = []
    for fields in (signed_fields({"key": "k"}), {"key": "k"}):
        body = form(fields, b"x")
        connection = await site.gateway.connect()
        head = f"POST /{BUCKET} HTTP/1.1\r\nhost: gateway\r\ncontent-type: {TYPE}\r\ncontent-length: {len(body)}\r\n"
        await connection.send(f"{head}origin: {PAGE['origin']}\r\n\r\n".encode() + body)
        answers.append(await connection.answer())

    assert [answer.status for answer in answers] == [204, 403]
    assert all(a.headers["access-control-allow-origin"] == PAGE["origin"] for a in answers)
    assert (await site.running.get("k")).data == b"x"
