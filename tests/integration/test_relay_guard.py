"""Writes by a query name at an origin that overlooks the name: what it takes the request for is not done."""

from pathlib import Path

import pytest

from tests.fakes.origin_faults import Fault
from tests.fakes.running_engine import BUCKET
from tests.integration.test_relay import TAGS, Whole, whole

EMPTY = "empty"
NOT_IMPLEMENTED = (501, b"<Code>NotImplemented</Code>")


def buckets(it: Whole) -> set[str]:
    """Name what is at the origin."""
    return set(it.running.origin.store.buckets)


def writes(it: Whole) -> list[tuple[str, str]]:
    """Give what came to the origin that was no read: methods and targets, the probe's digits left out."""
    log = it.running.origin.log
    return [
        (
            entry.method,
            entry.target.replace(entry.bucket, "probe") if "probe" in entry.bucket else entry.target,
        )
        for entry in log
        if entry.method not in {"GET", "HEAD"}
    ]


@pytest.mark.parametrize("deletes_all", [False, True])
@pytest.mark.parametrize("bucket", [BUCKET, EMPTY])
@pytest.mark.parametrize(
    "ignored", [{("DELETE", "website")}, {("DELETE", "website"), ("GET", "website")}, {("DELETE", "acl")}]
)
async def test_the_deletion_of_a_configuration_deletes_no_bucket(
    tmp_path: Path, bucket: str, ignored: set[tuple[str, str]], *, deletes_all: bool
) -> None:
    """Empty or not: SeaweedFS deletes an empty one, and by its own defaults one with all that is in it."""
    async with whole(tmp_path) as it:
        store = it.running.origin.store
        store.create_bucket(EMPTY)
        store.put(BUCKET, "k", b"bytes")
        store.ignored, store.deletes_all = ignored, deletes_all
        before = buckets(it)

        answers = [await it.ask("DELETE", f"/{bucket}?website") for _ in range(2)]

        assert buckets(it) == before
        assert it.body() == b"bytes"
        is_known = ("DELETE", "website") not in ignored
        assert {answer.status for answer in answers} == {204 if is_known else 501}
        assert is_known or all(b"takes" in answer.body for answer in answers)


async def test_a_name_is_tried_on_a_bucket_of_the_gateways_once(tmp_path: Path) -> None:
    """What a bucket of the gateway's own shows is known of all buckets, and of every key, for the life of the process."""
    async with whole(tmp_path) as it:
        it.running.origin.store.create_bucket(EMPTY)

        for bucket in (BUCKET, EMPTY):
            assert (await it.ask("DELETE", f"/{bucket}?website")).status == 204

        assert writes(it) == [
            ("PUT", "/probe"),
            ("DELETE", "/probe?website="),
            ("DELETE", "/probe"),
            ("DELETE", f"/{BUCKET}?website="),
            ("DELETE", f"/{EMPTY}?website="),
        ]


async def test_a_deletion_that_cannot_be_tried_is_refused(tmp_path: Path) -> None:
    """Where the gateway's key may create no bucket nothing is risked, and the reason is told; other writes go on."""
    async with whole(tmp_path) as it:
        it.running.origin.store.denied = {"CreateBucket"}

        deleted = await it.ask("DELETE", f"/{BUCKET}?website")
        put = await it.ask("PUT", f"/{BUCKET}?website", b"<W/>")

        assert (deleted.status, put.status) == (501, 200)
        assert b"create a bucket" in deleted.body
        assert [method for method, _ in writes(it)] == ["PUT", "DELETE", "PUT"]


async def test_a_failing_origin_is_no_ignoring_one(tmp_path: Path) -> None:
    """A question without an answer is 503, which clients repeat, and leaves no bucket."""
    async with whole(tmp_path) as it:
        it.running.origin.faults.add(
            Fault(operation="DELETE website", status=503, code="InternalError", times=1)
        )
        before = buckets(it)

        answers = [await it.ask("DELETE", f"/{BUCKET}?website") for _ in range(2)]

        assert [answer.status for answer in answers] == [503, 204]
        assert buckets(it) == before


@pytest.mark.parametrize("target", ["website", "strange", "policy"])
@pytest.mark.parametrize("ignored", [set(), {("PUT", "website")}, {("PUT", "website"), ("GET", "website")}])
async def test_a_configuration_makes_no_bucket(
    tmp_path: Path, target: str, ignored: set[tuple[str, str]]
) -> None:
    """A bucket that is not there has no configuration (AWS "Error responses", NoSuchBucket), though the origin knows the name of one."""
    async with whole(tmp_path, questions=None) as it:
        it.running.origin.store.ignored = ignored
        await it.ask("PUT", f"/{BUCKET}?{target}", b"<W/>")

        answer = await it.ask("PUT", f"/missing?{target}", b"<W/>")

        assert (answer.status, b"<Code>NoSuchBucket</Code>" in answer.body) == (404, True)
        assert "missing" not in buckets(it)


@pytest.mark.parametrize("ignored", [{("PUT", "website")}, {("PUT", "website"), ("GET", "website")}])
async def test_a_configuration_that_is_taken_for_a_bucket_is_not_implemented(
    tmp_path: Path, ignored: set[tuple[str, str]]
) -> None:
    """A 409 BucketAlreadyOwnedByYou would say of a bucket what nobody asked for."""
    async with whole(tmp_path) as it:
        it.running.origin.store.ignored = ignored

        answer = await it.ask("PUT", f"/{BUCKET}?website", b"<W/>")

        assert (answer.status, NOT_IMPLEMENTED[1] in answer.body) == (501, True)
        assert b"website" in answer.body


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_an_unknown_name_of_a_bucket_is_asked_about(tmp_path: Path, method: str) -> None:
    """An origin that lists the bucket instead would make or delete it."""
    async with whole(tmp_path) as it:
        answer = await it.ask(method, f"/{BUCKET}?strange", TAGS)

        assert (answer.status, NOT_IMPLEMENTED[1] in answer.body) == (501, True)
        assert writes(it) == []


@pytest.mark.parametrize(
    ("method", "target", "headers"),
    [
        ("POST", "?newfeature", {"content-type": "multipart/form-data; boundary=x"}),
        ("POST", "?metadataTable", {"content-type": "Multipart/Form-Data"}),
        ("PUT", "/k?acl", {"x-amz-copy-source": "/elsewhere/k"}),
        ("PUT", "/k?tagging", {"x-amz-rename-source": "/elsewhere/k"}),
        ("POST", "?delete&newfeature", {}),
        ("POST", "/k?uploads&newfeature", {}),
        ("POST", "/k?uploadId=u&newfeature", {}),
        ("PUT", "/k?partNumber=1&uploadId=u&newfeature", {}),
        ("DELETE", "/k?uploadId=u&newfeature", {}),
        ("DELETE", "/k?tagging&newfeature", {}),
    ],
)
async def test_what_would_be_another_operation_without_the_unknown_is_refused(
    tmp_path: Path, method: str, target: str, headers: dict[str, str]
) -> None:
    """A form makes an object, a source a copy; beside a known name an unknown one may be overlooked."""
    async with whole(tmp_path) as it:
        it.running.origin.store.put(BUCKET, "k", b"bytes")

        answer = await it.ask(method, f"/{BUCKET}{target}", b"<x/>", headers)

        assert (answer.status, NOT_IMPLEMENTED[1] in answer.body) == (501, True)
        assert not it.running.origin.log


@pytest.mark.parametrize(("method", "name"), [("PUT", "acl"), ("PUT", "retention"), ("PUT", "newfeature")])
async def test_who_may_not_read_an_object_does_not_replace_it_by_an_ignored_name(
    tmp_path: Path, method: str, name: str
) -> None:
    """The refusal of a read is no sign that the name was understood."""
    async with whole(tmp_path) as it:
        store = it.running.origin.store
        store.put(BUCKET, "k", b"bytes")
        store.ignored = {("GET", name), (method, name)}
        store.denied = {"GetObject"}

        answer = await it.ask(method, f"/{BUCKET}/k?{name}", TAGS)

        assert (answer.status, b"<Code>AccessDenied</Code>" in answer.body) == (403, True)
        assert it.body() == b"bytes"


async def test_an_old_version_is_asked_about_where_the_newest_is_deleted(tmp_path: Path) -> None:
    """A delete marker has no tags, and hides those of no version that is named (AWS API_PutObjectTagging, versionId)."""
    async with whole(tmp_path, questions=None) as it:
        store = it.running.origin.store
        store.buckets[BUCKET].versioning = "Enabled"
        version_id = store.put(BUCKET, "k", b"bytes").version_id
        await it.ask("DELETE", f"/{BUCKET}/k")

        newest = await it.ask("PUT", f"/{BUCKET}/k?tagging", TAGS)
        tagged = await it.ask("PUT", f"/{BUCKET}/k?tagging&versionId={version_id}", TAGS)
        missing = await it.ask("PUT", f"/{BUCKET}/k?tagging&versionId=none", TAGS)
        strange = await it.ask("PUT", f"/{BUCKET}/k?strange&versionId={version_id}", TAGS)
        got = await it.ask("GET", f"/{BUCKET}/k?versionId={version_id}")

    assert [a.status for a in (newest, tagged, missing, strange)] == [404, 200, 404, 501]
    assert (got.body, got.headers["x-amz-tagging-count"]) == (b"bytes", "1")
