"""Signature Version 4 against AWS's documented examples and against botocore's signer."""

import hashlib
import string
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies as st

from storage.origin import signing
from tests.fakes import botocore_signer

GOLDEN = Path(__file__).parents[3] / "golden" / "sigv4"


class Chunk(msgspec.Struct):
    """One chunk of an example, all `a`."""

    bytes: int
    signature: str


class Trailer(msgspec.Struct):
    """The trailing headers of an example."""

    text: str
    signature: str


class Example(msgspec.Struct):
    """One of AWS's documented examples."""

    source: str
    access_key: str
    secret_key: str
    region: str
    amz_date: str
    method: str
    target: str
    headers: dict[str, str]
    payload_hash: str
    canonical_request: str
    string_to_sign: str
    signature: str
    chunks: list[Chunk] = []
    trailer: Trailer | None = None

    @property
    def scope(self) -> str:
        """The example's credential scope."""
        return signing.credential_scope(self.amz_date[:8], self.region)

    @property
    def key(self) -> bytes:
        """The example's signing key."""
        return signing.signing_key(self.secret_key, self.amz_date[:8], self.region)


def load(name: str) -> Example:
    """Read an example."""
    return msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes(), type=Example)


EXAMPLES = sorted(path.stem for path in GOLDEN.glob("*.json"))


def test_examples_are_there() -> None:
    """All seven documented examples are read."""
    assert EXAMPLES == [
        "chunked-put",
        "chunked-put-trailer",
        "get-bucket-lifecycle",
        "get-object",
        "list-objects",
        "presigned-get",
        "put-object",
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_each_step_when_aws_example(name: str) -> None:
    """Every step gives what AWS documents for its examples."""
    example = load(name)
    path, _, query = example.target.partition("?")

    canonical = signing.canonical_request(
        example.method,
        path,
        signing.canonical_raw_query(query),
        signing.canonical_headers(example.headers.items()),
        example.payload_hash,
    )
    text = signing.string_to_sign(example.amz_date, example.scope, canonical)

    assert canonical == example.canonical_request
    assert text == example.string_to_sign
    assert signing.signature(example.key, text) == example.signature


@pytest.mark.parametrize("name", ["chunked-put", "chunked-put-trailer"])
def test_chunk_signatures_when_aws_example(name: str) -> None:
    """Chunks chain from the seed signature as AWS documents."""
    example = load(name)
    previous = example.signature
    signatures: list[str] = []

    for chunk in example.chunks:
        digest = hashlib.sha256(b"a" * chunk.bytes).hexdigest()
        previous = signing.chunk_signature(example.key, example.amz_date, example.scope, previous, digest)
        signatures.append(previous)

    assert signatures == [chunk.signature for chunk in example.chunks]


def test_trailer_signature_when_aws_example() -> None:
    """The trailing headers are signed behind the empty chunk as AWS documents."""
    example = load("chunked-put-trailer")
    assert example.trailer is not None
    digest = hashlib.sha256(example.trailer.text.encode()).hexdigest()

    actual = signing.trailer_signature(
        example.key, example.amz_date, example.scope, example.chunks[-1].signature, digest
    )

    assert actual == example.trailer.signature


@pytest.mark.parametrize(
    ("text", "keep_slash", "expected"),
    [
        ("AZaz09-._~", False, "AZaz09-._~"),
        ("a b+c/d", False, "a%20b%2Bc%2Fd"),
        ("a b+c/d", True, "a%20b%2Bc/d"),
        ("//../.", True, "//../."),
        ("ä€😀", True, "%C3%A4%E2%82%AC%F0%9F%98%80"),
        ("%2F", True, "%252F"),
        ("*!'()", False, "%2A%21%27%28%29"),
        ("", False, ""),
    ],
)
def test_uri_encode(text: str, keep_slash: bool, expected: str) -> None:
    """All but the unreserved characters are encoded, once, in upper-case hex."""
    assert signing.uri_encode(text, keep_slash=keep_slash) == expected


def test_canonical_query_sorts_encoded_names_then_values() -> None:
    """Order is by the encoded name, then by the encoded value, as AWS asks."""
    pairs = [("b", "2"), ("a-b", ""), ("a", "z"), ("ä", "1"), ("a", "B")]

    actual = signing.canonical_query(pairs)

    assert actual == "%C3%A4=1&a=B&a=z&a-b=&b=2"


def test_canonical_headers_trim_and_join_blanks() -> None:
    """Blanks at the ends go, runs of them become one, names are in order."""
    actual = signing.canonical_headers([("x-amz-meta-b", "  a   b\t c "), ("host", "h")])

    assert actual == [("host", "h"), ("x-amz-meta-b", "a b c")]


def test_signature_when_bytes_are_not_utf8() -> None:
    """A header that is not UTF-8 is signed as the bytes that were sent."""
    escaped = b"\xff".decode("utf-8", "surrogateescape")

    actual = signing.string_to_sign("20130524T000000Z", "scope", escaped)

    assert actual.endswith(hashlib.sha256(b"\xff").hexdigest())


def test_format_amz_date() -> None:
    """Seconds since the epoch become the basic form of ISO 8601 in UTC."""
    assert signing.format_amz_date(1369353600) == "20130524T000000Z"


def test_identity_hides_its_secrets() -> None:
    """A log line or traceback with an identity shows no secret."""
    identity = signing.SigningIdentity("AK", "very-secret", "us-east-1", "token")

    assert repr(identity) == "SigningIdentity(access_key='AK', region='us-east-1')"


NOW_S = datetime(2026, 11, 29, 18, 3, 7, tzinfo=UTC).timestamp()
KEYS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
VALUES = st.text(st.sampled_from(string.printable.replace("\r", "").replace("\n", "") + "ä€"), max_size=30)
NAMES = st.text(st.sampled_from(string.ascii_lowercase + "-"), min_size=1, max_size=12)


@given(
    method=st.sampled_from(["GET", "PUT", "HEAD", "POST", "DELETE"]),
    key=KEYS,
    query=st.lists(st.tuples(KEYS, KEYS | st.just("")), max_size=4),
    metadata=st.dictionaries(NAMES, VALUES, max_size=4),
    token=st.sampled_from(["", "session/token=="]),
)
def test_sign_headers_agrees_with_botocore(
    method: str, key: str, query: list[tuple[str, str]], metadata: dict[str, str], token: str
) -> None:
    """For any key, query and metadata we send the very headers that botocore would."""
    headers = {f"x-amz-meta-{name}": value for name, value in metadata.items()}
    target = f"/bucket/{signing.uri_encode(key, keep_slash=True)}"
    if query:
        target += "?" + "&".join(
            f"{signing.uri_encode(name)}={signing.uri_encode(value)}" for name, value in query
        )
    expected = botocore_signer.sign(
        method, f"http://localhost:9000{target}", headers, amz_date="20261129T180307Z", token=token
    )

    signed = signing.sign_headers(
        signing.SigningIdentity("AK", "SK", "eu-north-1", token),
        method,
        target,
        {"host": "localhost:9000", **headers},
        "UNSIGNED-PAYLOAD",
        NOW_S,
    )

    assert signed == expected
