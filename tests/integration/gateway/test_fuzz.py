"""A gateway and its engine among clients that send what they should not: always an answer or the end of the connection, never a 500.

`FOREBAY_SEED=N` chooses what is sent, `FOREBAY_REQUESTS=N` how much.
"""

import asyncio
import os
import resource
from collections import Counter
from pathlib import Path

from defusedxml.ElementTree import ParseError, fromstring

from storage.types import MIB
from tests.fakes.forms import signed_fields
from tests.fakes.gateway import Answer, RunningGateway, running_gateway
from tests.fakes.hostile import Hostile, Hostility
from tests.fakes.running_engine import running_engine

SEED = int(os.environ.get("FOREBAY_SEED", "1"))
REQUESTS = int(os.environ.get("FOREBAY_REQUESTS", "200"))
AT_A_TIME = 8
STALLED_S = 0.05
ANSWER_S = 20.0
GROWTH_BYTES_MAX = 96 * MIB


async def exchange(gateway: RunningGateway, hostile: Hostile) -> Answer | None:
    """Send one request; None where the connection ends without an answer, or there is none to what is not whole."""
    connection = await gateway.connect()
    gateway.connections.remove(connection)
    try:
        try:
            await connection.send(hostile.sent)
        except ConnectionError:
            return None
        try:
            async with asyncio.timeout(ANSWER_S):
                answer = await connection.answer(has_body=hostile.has_body)
                while answer.status == 100:
                    answer = await connection.answer(has_body=hostile.has_body)
        except TimeoutError:
            # Only a head that is not whole may wait, for its end.
            assert hostile.name == "head", hostile
            return None
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        return answer
    finally:
        await connection.close()


def check(hostile: Hostile, answer: Answer) -> None:
    """Hold an answer against what S3 may say to anything."""
    # Of what is relayed, a failure of the origin's own would be passed on; ours has this code.
    assert b"<Code>InternalError</Code>" not in answer.body, (hostile, answer)
    assert len(answer.headers["x-amz-request-id"]) == 16
    if answer.status < 400 or answer.headers.get("content-type") != "application/xml" or not answer.body:
        return
    try:
        document = fromstring(answer.body)
    except ParseError:
        # S3 writes control characters as references, which no parser of XML 1.0 takes.
        assert b"&#x" in answer.body, (hostile, answer)
        return
    assert document.tag == "Error", (hostile, answer)
    # Resource and host id are of our own errors; what the origin says passes as it is.
    assert {"Code", "Message", "RequestId"} <= {child.tag for child in document}, (hostile, answer)


async def test_every_request_is_answered_or_cut_whatever_is_sent(tmp_path: Path) -> None:
    """Heads, queries, XML, framing and forms out of one seed: no 500, no wait without end, nothing left, memory bounded."""
    async with (
        running_engine() as running,
        running_gateway(
            str(tmp_path / "log"),
            store=running.engine,  # type: ignore[arg-type]  # the whole engine in the fake's place
            stalled_receive_s=STALLED_S,
        ) as gateway,
    ):
        await running.put("key", b"0123456789")
        await running.put("keeps the bucket from being deleted", b"x")
        hostility = Hostility(
            SEED,
            gateway.signed,
            lambda: signed_fields({"key": "key"}),
            gateway.host,
        )
        drawn = iter([*hostility.known(), *(hostility.draw() for _ in range(REQUESTS))])
        seen: Counter[tuple[str, int]] = Counter()
        before_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

        async def send() -> None:
            for hostile in drawn:
                answer = await exchange(gateway, hostile)
                seen[hostile.name, 0 if answer is None else answer.status] += 1
                if answer is not None:
                    check(hostile, answer)

        async with asyncio.TaskGroup() as tasks:
            for _ in range(AT_A_TIME):
                tasks.create_task(send())
        connection = await gateway.connect()
        await connection.send(gateway.signed("GET", "/bucket?list-type=2"))
        last = await connection.answer()
        grown_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before_bytes

        assert last.status == 200
        assert gateway.stats.failures == 0, seen
        assert gateway.budget.taken_bytes == 0
        assert gateway.stats.connections == 1
        assert grown_bytes < GROWTH_BYTES_MAX
        kinds = {name for name, _ in seen}
        assert kinds == {"query", "document", "framing", "transfer", "form", "head", "put"}
        # That some get through shows that the rest is not refused at the door.
        assert {status for _, status in seen} >= {200, 204, 400, 403, 404}, seen
        print(f"seed {SEED}: {sorted(seen.items())}, {grown_bytes >> 20} MiB more")  # noqa: T201  # with pytest -s
