"""Objects under keys of the customer's (SSE-C), through a whole gateway to a fake origin."""

from pathlib import Path

from storage.policy import Policy
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET
from tests.integration.test_relay import whole

LATER = Policy(flush_delay_s=60.0)
CUSTOMER_KEY = {
    "x-amz-server-side-encryption-customer-algorithm": "AES256",
    "x-amz-server-side-encryption-customer-key": "a2V5",
    "x-amz-server-side-encryption-customer-key-md5": "bWQ1",
}


async def test_what_a_customers_key_opens_is_never_kept(tmp_path: Path) -> None:
    """A write with such a key goes through without a copy, each read with it is the origin's, and one without it finds nothing."""
    async with whole(tmp_path) as it:
        put = await it.ask("PUT", f"/{BUCKET}/k", b"secret", CUSTOMER_KEY)
        arrived_with = it.arrived.headers
        ranged = await it.ask("GET", f"/{BUCKET}/k", headers={**CUSTOMER_KEY, "range": "bytes=1-3"})
        read_with = it.arrived.headers
        headed = await it.ask("HEAD", f"/{BUCKET}/k", headers=CUSTOMER_KEY)
        before = len(it.running.origin.log)
        it.running.origin.faults.add(Fault(operation="*", status=400, code="InvalidRequest", times=-1))
        bare = await it.ask("GET", f"/{BUCKET}/k")

        assert (put.status, headed.status) == (200, 200)
        assert (ranged.status, ranged.body, ranged.headers["content-range"]) == (206, b"ecr", "bytes 1-3/6")
        assert headed.headers["content-length"] == "6"
        for sent in (arrived_with, read_with):
            assert {name: sent[name] for name in CUSTOMER_KEY} == CUSTOMER_KEY
        assert (bare.status, b"secret" in bare.body) == (400, False)
        assert len(it.running.origin.log) > before


async def test_a_read_with_a_customers_key_sees_what_was_acknowledged(tmp_path: Path) -> None:
    """The origin is asked after the flush, and an older version of the cache is not what it answers."""
    async with whole(tmp_path, policy=LATER) as it:
        await it.running.put("k", b"dirty")

        got = await it.ask("GET", f"/{BUCKET}/k", headers=CUSTOMER_KEY)

        assert (got.status, got.body) == (200, b"dirty")


async def test_a_checksum_that_the_origin_says_too_stands_once(tmp_path: Path) -> None:
    """A client that gives a part's checksum back in its Complete would give back two in one."""
    checksum = {"x-amz-checksum-crc32": "sZlDzg==", "x-amz-checksum-algorithm": "CRC32"}
    async with whole(tmp_path) as it:
        it.running.origin.faults.add(
            Fault(operation="UploadPart", headers={"x-amz-checksum-crc32": "sZlDzg=="}),
            Fault(operation="PutObject", headers={"x-amz-checksum-crc32": "sZlDzg=="}),
        )
        created = await it.ask("POST", f"/{BUCKET}/k?uploads", headers=CUSTOMER_KEY)
        upload_id = created.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()

        part = await it.ask(
            "PUT", f"/{BUCKET}/k?partNumber=1&uploadId={upload_id}", b"bytes", {**CUSTOMER_KEY, **checksum}
        )
        put = await it.ask("PUT", f"/{BUCKET}/k", b"bytes", {**CUSTOMER_KEY, **checksum})

        assert (part.status, put.status) == (200, 200)
        assert part.headers["x-amz-checksum-crc32"] == put.headers["x-amz-checksum-crc32"] == "sZlDzg=="
