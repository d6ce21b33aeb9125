"""Whom documents name as an owner, through a whole gateway to a fake origin."""

from pathlib import Path

import pytest

from storage.policy import Policy
from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET
from tests.integration.test_relay import Whole, whole

LATER = Policy(flush_delay_s=60.0)
OWN = b"<Owner><ID>o</ID></Owner>"
OTHER = b"<Owner><ID>other</ID><DisplayName>another</DisplayName></Owner>"


def asked(it: Whole) -> int:
    """Count the questions about the account."""
    return sum(logged.operation == "ListBuckets" for logged in it.running.origin.log)


@pytest.mark.parametrize("target", ["", "?list-type=2&fetch-owner=true"])
async def test_listings_name_the_origins_owners(tmp_path: Path, target: str) -> None:
    """An object at the origin is its owner's; one that is not there yet is of the account that will write it."""
    async with whole(tmp_path, policy=LATER) as it:
        it.running.origin.store.put(BUCKET, "a", b"bytes")
        await it.running.put("b", b"dirty")

        listed = await it.ask("GET", f"/{BUCKET}{target}")
        await it.ask("GET", f"/{BUCKET}{target}")

        first, second = listed.body.split(b"</Contents>")[:2]
        assert OTHER in first
        assert OWN in second
        assert asked(it) == 1


async def test_nobody_is_asked_when_no_owner_is_wanted(tmp_path: Path) -> None:
    """Version 2 leaves owners out, and a listing of what is at the origin needs no account."""
    async with whole(tmp_path, policy=LATER) as it:
        it.running.origin.store.put(BUCKET, "a", b"bytes")

        plain = await it.ask("GET", f"/{BUCKET}?list-type=2")
        owned = await it.ask("GET", f"/{BUCKET}?list-type=2&fetch-owner=true")

        assert b"Owner" not in plain.body
        assert OTHER in owned.body
        assert asked(it) == 0


async def test_a_listing_goes_on_when_the_account_may_not_be_known(tmp_path: Path) -> None:
    """A key that may not list buckets lists objects; the gateway's name stands for the owner."""
    async with whole(tmp_path, policy=LATER) as it:
        it.running.origin.faults.add(Fault(operation="ListBuckets", status=403, code="AccessDenied"))
        await it.running.put("b", b"dirty")

        listed = await it.ask("GET", f"/{BUCKET}")

        assert listed.status == 200
        assert b"<Owner><ID>forebay</ID><DisplayName>forebay</DisplayName></Owner>" in listed.body


async def test_buckets_and_uploads_are_the_accounts(tmp_path: Path) -> None:
    """ListBuckets, ListMultipartUploads and ListParts name the account that signs for the origin."""
    async with whole(tmp_path) as it:
        created = await it.ask("POST", f"/{BUCKET}/k?uploads")
        upload_id = created.body.partition(b"<UploadId>")[2].partition(b"<")[0].decode()

        buckets = await it.ask("GET", "/")
        uploads = await it.ask("GET", f"/{BUCKET}?uploads")
        parts = await it.ask("GET", f"/{BUCKET}/k?uploadId={upload_id}")

        assert OWN in buckets.body
        assert b"<Initiator><ID>o</ID></Initiator>" + OWN in uploads.body
        assert b"<Initiator><ID>o</ID></Initiator>" + OWN in parts.body
