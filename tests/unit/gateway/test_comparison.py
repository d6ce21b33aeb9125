"""Holding what was acknowledged against what the origin has."""

import base64
import hashlib
import zlib

import pytest
from msgspec.structs import replace

from gateway.comparison import ByteProof, Pair, Verdict, find, find_in_head, pairs
from storage.acknowledgements import AcknowledgedLine
from storage.origin.documents import ListedObject
from storage.types import Checksum, ChecksumAlgorithm, ChecksumType

LINE = AcknowledgedLine("k", size=5, etag="etag")
LISTED = ListedObject("k", 5, "etag", 0)


def line(key: str) -> AcknowledgedLine:
    """A line of a key."""
    return AcknowledgedLine(key)


def listed(key: str) -> ListedObject:
    """An entry of a key."""
    return ListedObject(key, 1, "e", 0)


def test_pairs_put_equal_keys_together_in_the_order_of_bytes() -> None:
    """Each key once, whichever side has it; order is that of UTF-8."""
    ours = [line("a"), line("b"), line("z"), line("é")]
    theirs = [listed("b"), listed("c"), listed("é"), listed("\U0001f600")]

    found = [
        (pair.line.key if pair.line else "", pair.listed.key if pair.listed else "")
        for pair in pairs(ours, theirs)
    ]

    assert found == [("a", ""), ("b", "b"), ("", "c"), ("z", ""), ("é", "é"), ("", "\U0001f600")]
    assert list(pairs([], [])) == []
    assert list(pairs([line("a")], [])) == [Pair(line("a"), None)]


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [
        (LINE, LISTED, None),
        (LINE, None, Verdict.MISSING),
        (LINE, ListedObject("k", 6, "etag", 0), Verdict.DIFFERENT),
        (LINE, ListedObject("k", 5, "other", 0), Verdict.DIFFERENT),
        (replace(LINE, origin_etag="theirs"), ListedObject("k", 5, "theirs", 0), None),
        (replace(LINE, origin_etag="theirs"), LISTED, Verdict.DIFFERENT),
        (replace(LINE, state="queued"), LISTED, Verdict.DIRTY),
        (replace(LINE, state="queued", is_tombstone=True), None, Verdict.DIRTY),
        (replace(LINE, state="quarantined", reason="403"), LISTED, Verdict.QUARANTINED),
    ],
)
def test_find_says_what_the_origin_lacks(
    ours: AcknowledgedLine, theirs: ListedObject | None, verdict: Verdict | None
) -> None:
    """Only a confirmed change with the origin's own ETag and size is there; a dirty one is dirty whatever is listed."""
    finding = find(ours, theirs)

    assert (None if finding is None else finding.verdict) is verdict


@pytest.mark.parametrize(
    ("headers", "wrong"),
    [
        ({"content-type": "text/plain", "x-amz-meta-a": "1"}, ""),
        ({"content-type": "text/plain", "x-amz-meta-a": "1", "x-amz-meta-b": "2"}, "x-amz-meta-b"),
        ({"content-type": "text/html", "x-amz-meta-a": "1"}, "content-type"),
        ({"content-type": "text/plain"}, "x-amz-meta-a"),
        ({"content-type": "text/plain", "x-amz-meta-a": "1", "x-amz-tagging-count": "2"}, "tags"),
        ({"content-type": "text/plain", "x-amz-meta-a": "1", "x-amz-tagging-count": "1"}, ""),
    ],
)
def test_find_in_head_names_what_differs(headers: dict[str, str], wrong: str) -> None:
    """Stored headers, all user metadata, and the number of tags where it is told; the default class may be left out."""
    ours = replace(
        LINE,
        headers=(("content-type", "text/plain"), ("x-amz-storage-class", "STANDARD")),
        user_metadata=(("a", "1"),),
        tags="t=1",
    )

    finding = find_in_head(ours, headers)

    assert (finding.detail if finding else "") == (f"the origin differs in {wrong}" if wrong else "")


def test_find_in_head_reads_metadata_beyond_ascii() -> None:
    """http.client shows the bytes of UTF-8 as Latin-1."""
    ours = replace(LINE, user_metadata=(("name", "Zoë"),))

    assert find_in_head(ours, {"x-amz-meta-name": "Zoë".encode().decode("latin-1")}) is None


KMS = {"x-amz-server-side-encryption": "aws:kms"}


def proof(ours: AcknowledgedLine, *pieces: bytes, headers: dict[str, str] | None = None) -> Verdict | None:
    """The verdict on some bytes."""
    one = ByteProof(ours)
    for piece in pieces:
        one.add(piece)
    finding = one.finding(headers or {})
    return None if finding is None else finding.verdict


def md5(data: bytes) -> str:
    """The ETag of a single PUT."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def test_bytes_are_proven_by_the_md5_however_they_come() -> None:
    """One byte off is found."""
    ours = AcknowledgedLine("k", size=6, etag=md5(b"abcdef"))

    assert proof(ours, b"abc", b"def") is None
    assert proof(ours, b"abcdeX") is Verdict.BYTES
    assert proof(ours, b"abcde") is Verdict.BYTES
    assert proof(AcknowledgedLine("k", size=0, etag=md5(b""))) is None


def test_bytes_of_an_upload_are_proven_by_its_parts() -> None:
    """The sizes of the parts say where one ends, also in the middle of a piece."""
    digests = b"".join(bytes.fromhex(md5(part)) for part in (b"aaaa", b"bbbb", b"c"))
    ours = AcknowledgedLine("k", size=9, etag=f"{md5(digests)}-3", part_runs=((4, 2), (1, 1)))

    assert proof(ours, b"aaaabb", b"bbc") is None
    assert proof(ours, b"aaaabbbbX") is Verdict.BYTES


def test_bytes_of_an_upload_of_one_empty_part_are_proven() -> None:
    """An upload may have no bytes."""
    ours = AcknowledgedLine("k", size=0, etag=f"{md5(bytes.fromhex(md5(b'')))}-1", part_runs=((0, 1),))

    assert proof(ours) is None


@pytest.mark.parametrize(
    ("algorithm", "value"),
    [
        (ChecksumAlgorithm.CRC32, zlib.crc32(b"body").to_bytes(4, "big")),
        (ChecksumAlgorithm.SHA1, hashlib.sha1(b"body", usedforsecurity=False).digest()),
        (ChecksumAlgorithm.SHA256, hashlib.sha256(b"body").digest()),
    ],
)
def test_bytes_are_proven_by_a_checksum_when_the_etag_is_no_md5(
    algorithm: ChecksumAlgorithm, value: bytes
) -> None:
    """An origin that encrypts gives ETags of its own; the client's checksum holds."""
    checksum = Checksum(algorithm, base64.b64encode(value).decode())
    ours = AcknowledgedLine("k", size=4, etag="x", origin_etag="x", checksums=(checksum,))

    assert proof(ours, b"bo", b"dy") is None
    assert proof(ours, b"bod", b"X") is Verdict.BYTES


@pytest.mark.parametrize("algorithm", [ChecksumAlgorithm.CRC32C, ChecksumAlgorithm.CRC64NVME])
def test_bytes_with_a_wrong_crc_are_found(algorithm: ChecksumAlgorithm) -> None:
    """The CRCs of AWS's own are computed too."""
    ours = AcknowledgedLine("k", size=4, etag=md5(b"body"), checksums=(Checksum(algorithm, "AAAAAA=="),))

    assert proof(ours, b"body") is Verdict.BYTES


def test_bytes_are_unproven_when_nothing_speaks_of_them() -> None:
    """Neither an MD5 nor a checksum of the whole: said as such, and not as right."""
    composite = Checksum(ChecksumAlgorithm.SHA256, "x-2", ChecksumType.COMPOSITE)
    ours = AcknowledgedLine("k", size=4, etag="x", origin_etag="x", checksums=(composite,))

    assert proof(ours, b"body", headers=KMS) is Verdict.UNPROVEN
    assert proof(ours, b"body") is Verdict.BYTES
    assert proof(replace(ours, etag=md5(b"other")), b"body", headers=KMS) is Verdict.BYTES
