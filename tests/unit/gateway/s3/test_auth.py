"""Who may come in: header signatures, presigned URLs, and every way to be refused."""

import string
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from gateway.s3.auth import Authenticated, Credential, PayloadMode, authenticate
from gateway.s3.claims import is_unsigned, parse_amz_date
from gateway.s3.errors import S3Error, render
from gateway.s3.request import parse
from storage.origin import signing
from storage.origin.signing import EMPTY_SHA256, SigningIdentity, sign_headers, uri_encode
from tests.fakes import botocore_signer

GOLDEN = Path(__file__).parents[3] / "golden" / "sigv4"
CREDENTIALS = {"AK": Credential("AK", "SK", "id-1", is_admin=True)}
AWS_CREDENTIALS = {
    "AKIAIOSFODNN7EXAMPLE": Credential(
        "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "example"
    )
}
AWS_NOW_S = 1369353600.0
AMZ_DATE = "20261129T180307Z"
NOW_S = 1795975387.0
DOMAINS = ("s3.amazonaws.com",)
URL = "http://localhost:9000"


class Example(msgspec.Struct):
    """What a client sends in one of AWS's documented examples."""

    method: str
    target: str
    headers: dict[str, str]
    signature: str


def load(name: str) -> Example:
    """Read an example."""
    return msgspec.json.decode((GOLDEN / f"{name}.json").read_bytes(), type=Example)


def check(
    method: str,
    target: str,
    headers: dict[str, str],
    *,
    now_s: float = NOW_S,
    credentials: dict[str, Credential] = CREDENTIALS,
) -> Authenticated:
    """Authenticate a request that claims a signature; a path keeps the form it is given in."""
    request = parse(method, target, headers.items(), request_id="R", received_at_s=now_s, domains=DOMAINS)
    identity = authenticate(request, credentials, now_s)
    assert identity is not None, "it is anonymous"
    return identity


def refusal(method: str, target: str, headers: dict[str, str], *, now_s: float = NOW_S) -> S3Error:
    """Give the error that authenticating ends in."""
    with pytest.raises(S3Error) as caught:
        check(method, target, headers, now_s=now_s)
    return caught.value


def signed(
    method: str = "GET", target: str = "/bucket/key", headers: dict[str, str] | None = None, **options: str
) -> dict[str, str]:
    """Sign as botocore does; give all headers."""
    return botocore_signer.sign(method, URL + target, headers or {}, amz_date=AMZ_DATE, **options)


def presigned(
    target: str = "/bucket/key",
    *,
    amz_date: str = AMZ_DATE,
    expires_s: int = 3600,
    headers: dict[str, str] | None = None,
) -> str:
    """Presign a GET as botocore does; give the target."""
    url = botocore_signer.presign("GET", URL + target, headers or {}, amz_date=amz_date, expires_s=expires_s)
    return url.removeprefix(URL)


HOST = {"Host": "localhost:9000"}


# --- Header ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "payload"),
    [
        ("get-object", PayloadMode.SHA256),
        ("put-object", PayloadMode.SHA256),
        ("get-bucket-lifecycle", PayloadMode.SHA256),
        ("list-objects", PayloadMode.SHA256),
        ("chunked-put", PayloadMode.STREAMING_SIGNED),
        ("chunked-put-trailer", PayloadMode.STREAMING_SIGNED_TRAILER),
    ],
)
def test_authenticate_when_aws_example(name: str, payload: PayloadMode) -> None:
    """AWS's documented requests are let in, with what the body's decoder needs."""
    example = load(name)
    names = ";".join(sorted(example.headers))
    authorization = (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,"
        f"SignedHeaders={names},Signature={example.signature}"
    )
    headers = {**example.headers, "Authorization": authorization}

    actual = check(example.method, example.target, headers, now_s=AWS_NOW_S, credentials=AWS_CREDENTIALS)

    assert actual.credential.credential_id == "example"
    assert actual.payload is payload
    assert actual.seed_signature == example.signature
    assert actual.scope == "20130524/us-east-1/s3/aws4_request"
    assert actual.amz_date == "20130524T000000Z"
    assert actual.signing_key.hex() == "dbb893acc010964918f1fd433add87c70e8b0db6be30c1fbeafefa5ec6ba8378"
    assert not actual.is_presigned


@pytest.mark.parametrize(
    ("sent", "mode", "sha256"),
    [
        (EMPTY_SHA256, PayloadMode.SHA256, EMPTY_SHA256),
        (EMPTY_SHA256.upper(), PayloadMode.SHA256, EMPTY_SHA256),
        ("UNSIGNED-PAYLOAD", PayloadMode.UNSIGNED, ""),
        ("STREAMING-UNSIGNED-PAYLOAD-TRAILER", PayloadMode.STREAMING_UNSIGNED_TRAILER, ""),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD", PayloadMode.STREAMING_SIGNED, ""),
        ("STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER", PayloadMode.STREAMING_SIGNED_TRAILER, ""),
    ],
)
def test_payload_mode(sent: str, mode: PayloadMode, sha256: str) -> None:
    """x-amz-content-sha256 says how the body is covered."""
    actual = check("PUT", "/bucket/key", signed("PUT", payload_hash=sent))

    assert (actual.payload, actual.payload_sha256) == (mode, sha256)


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        ("SHA256", "InvalidArgument"),
        ("", "InvalidArgument"),
        (EMPTY_SHA256[:-1], "InvalidArgument"),
        ("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD", "NotImplemented"),
    ],
)
def test_payload_mode_when_unknown(sent: str, code: str) -> None:
    """Other values are refused, though signed."""
    assert refusal("PUT", "/bucket/key", signed("PUT", payload_hash=sent)).code == code


def test_authenticate_when_any_region() -> None:
    """The region of the scope is the client's business."""
    actual = check("GET", "/bucket/key", signed(region="mars-1"))

    assert actual.scope == "20261129/mars-1/s3/aws4_request"


def test_authenticate_when_only_date_is_sent() -> None:
    """The Date header stands in for x-amz-date, as botocore sends it where Date is set."""
    headers = signed(headers={"Date": "replaced"})
    assert "x-amz-date" not in headers

    actual = check("GET", "/bucket/key", headers)

    assert actual.amz_date == AMZ_DATE


@pytest.mark.parametrize(
    "date", ["", "Sun, 29 Nov 2026 18:03:07", "Sun, 29 Nov 2026 19:03:07 +0100", "0 GMT"]
)
def test_authenticate_when_date_is_none_of_ours(date: str) -> None:
    """A Date that is not in UTC, or no date, is as good as none."""
    headers = signed(headers={"Date": "replaced"}) | {"date": date}

    assert refusal("GET", "/bucket/key", headers).code == "AccessDenied"


def test_authenticate_when_signed_by_ourselves() -> None:
    """What the signer makes for the origin, the verifier lets in."""
    identity = SigningIdentity("AK", "SK", "us-east-1")
    headers = sign_headers(
        identity,
        "GET",
        "/bucket/k%20%2B?prefix=a%2Fb&acl",
        {"host": "h", "range": "bytes=0-1"},
        EMPTY_SHA256,
        NOW_S,
    )

    actual = check("GET", "/bucket/k%20%2B?prefix=a%2Fb&acl", headers)

    assert actual.signed_headers == ("host", "range", "x-amz-content-sha256", "x-amz-date")
    assert actual.credential.is_admin


@pytest.mark.parametrize(
    ("signed_target", "sent_target"),
    [
        ("/bucket/a~b", "/bucket/a%7Eb"),
        ("/bucket/a%28b%29%3D", "/bucket/a(b)="),
        ("/bucket/a/b", "/bucket/a%2Fb"),
        ("/bucket/a%2Fb", "/bucket/a%2Fb"),
        ("/bucket/k?prefix=a%2Fb%20c", "/bucket/k?prefix=a/b+c"),
        ("/bucket/k?prefix=a/b", "/bucket/k?prefix=a/b"),
        ("/bucket/k?b=2&a=1", "/bucket/k?a=1&b=2"),
        ("/bucket/k?acl=", "/bucket/k?acl"),
    ],
)
def test_authenticate_when_rewritten_on_the_way(signed_target: str, sent_target: str) -> None:
    """Another spelling of the same key and query is the same request."""
    assert check("GET", sent_target, signed(target=signed_target)).credential.access_key == "AK"


@pytest.mark.parametrize(
    "target", ["/bucket//key", "/bucket/./key", "/bucket/a/../key", "/bucket/key/", "/bucket/Key"]
)
def test_authenticate_does_not_normalise(target: str) -> None:
    """A path that some software takes for the signed one is another key (B22)."""
    assert check("GET", target, signed(target=target)).credential.access_key == "AK"
    assert refusal("GET", target, signed(target="/bucket/key")).code == "SignatureDoesNotMatch"


def test_authenticate_when_nothing_is_signed() -> None:
    """A request that claims no signature has no identity, whatever else stands in it (B26)."""
    headers = {**HOST, "x-amz-date": AMZ_DATE, "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    request = parse("GET", "/bucket/key?a=b", headers.items(), request_id="R", received_at_s=NOW_S)

    assert authenticate(request, {"": CREDENTIALS["AK"]}, NOW_S) is None


@pytest.mark.parametrize(
    "query",
    [
        "X-Amz-Algorithm=AWS4-HMAC-SHA256",
        "X-Amz-Credential=AK",
        "X-Amz-Signature=00",
        "X-Amz-Date=x",
        "X-Amz-Expires=9",
        "X-Amz-SignedHeaders=host",
        "AWSAccessKeyId=AK",
        "Signature=00",
    ],
)
def test_authenticate_when_a_part_of_a_signature_is_there(query: str) -> None:
    """Who sends a part of a signature meant to sign, and is never taken for anonymous."""
    assert refusal("GET", f"/bucket/key?{query}", HOST).status in {400, 403}


def test_authenticate_when_key_is_unknown() -> None:
    """An unknown access key is named."""
    error = refusal("GET", "/bucket/key", signed(access_key="OTHER"))

    assert (error.code, error.status) == ("InvalidAccessKeyId", 403)
    assert error.extra == {"AWSAccessKeyId": "OTHER"}


def test_authenticate_when_secret_is_wrong() -> None:
    """The error shows what we signed, so that the client's author can compare."""
    headers = signed(secret_key="WRONG")

    error = refusal("GET", "/bucket/key", headers)

    assert (error.code, error.status) == ("SignatureDoesNotMatch", 403)
    assert list(error.extra) == [
        "AWSAccessKeyId",
        "StringToSign",
        "SignatureProvided",
        "StringToSignBytes",
        "CanonicalRequest",
        "CanonicalRequestBytes",
    ]
    assert error.extra["CanonicalRequest"] == (
        "GET\n/bucket/key\n\nhost:localhost:9000\nx-amz-content-sha256:UNSIGNED-PAYLOAD\nx-amz-date:20261129T180307Z\n\n"
        "host;x-amz-content-sha256;x-amz-date\nUNSIGNED-PAYLOAD"
    )
    assert error.extra["StringToSign"].startswith(
        "AWS4-HMAC-SHA256\n20261129T180307Z\n20261129/eu-north-1/s3/aws4"
    )
    assert error.extra["StringToSignBytes"].startswith("41 57 53 34 2d")
    assert error.extra["SignatureProvided"] == headers["authorization"][-64:]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-amz-date", "20261129T180308Z"),
        ("x-amz-content-sha256", EMPTY_SHA256),
        ("x-amz-meta-a", "2"),
        ("host", "other"),
        ("content-type", "text/html"),
    ],
)
def test_authenticate_when_a_signed_header_was_changed(name: str, value: str) -> None:
    """Every signed header counts."""
    headers = signed(headers={"x-amz-meta-a": "1", "content-type": "text/plain"}) | {name: value}

    assert refusal("GET", "/bucket/key", headers).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("method", "target"), [("PUT", "/bucket/key"), ("GET", "/bucket/other"), ("GET", "/bucket/key?acl")]
)
def test_authenticate_when_the_request_was_changed(method: str, target: str) -> None:
    """Method, path and query are what was signed."""
    assert refusal(method, target, signed()).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("name", ["x-amz-copy-source", "X-Amz-Meta-B"])
def test_authenticate_when_a_header_is_not_signed(name: str) -> None:
    """An x-amz- header that was added afterwards is refused and named."""
    error = refusal("GET", "/bucket/key", {**signed(), name: "value"})

    assert (error.code, error.status) == ("AccessDenied", 403)
    assert error.extra == {"HeadersNotSigned": name.lower()}


def test_authenticate_when_the_host_is_not_signed() -> None:
    """A signature that does not cover the host is good for no host."""
    headers = signed()
    headers["authorization"] = headers["authorization"].replace("host;", "")

    error = refusal("GET", "/bucket/key", headers)

    assert error.extra == {"HeadersNotSigned": "host"}


def test_authenticate_when_the_content_hash_is_missing() -> None:
    """S3 wants x-amz-content-sha256 with a header signature."""
    headers = signed()
    del headers["x-amz-content-sha256"]

    error = refusal("GET", "/bucket/key", headers)

    assert (error.code, error.message) == (
        "InvalidRequest",
        "Missing required header for this request: x-amz-content-sha256",
    )


@pytest.mark.parametrize(
    ("skew_s", "comes_in"), [(900, True), (-900, True), (901, False), (-901, False), (1200, False)]
)
def test_authenticate_when_the_clock_is_off(skew_s: int, comes_in: bool) -> None:
    """15 minutes either way are forgiven, no more (B25)."""
    if comes_in:
        assert check("GET", "/bucket/key", signed(), now_s=NOW_S + skew_s).amz_date == AMZ_DATE
    else:
        error = refusal("GET", "/bucket/key", signed(), now_s=NOW_S + skew_s)
        assert (error.code, error.status) == ("RequestTimeTooSkewed", 403)
        assert error.extra["RequestTime"] == AMZ_DATE
        assert error.extra["MaxAllowedSkewMilliseconds"] == "900000"


@pytest.mark.parametrize(
    "date", ["", "20261329T180307Z", "2026-11-29T18:03:07Z", "now", "\u0662\u0660\u0662\u06661129T180307Z"]
)
def test_authenticate_when_the_date_is_none(date: str) -> None:
    """A date that cannot be read is AccessDenied, as AWS has it."""
    error = refusal("GET", "/bucket/key", signed() | {"x-amz-date": date})

    assert (error.code, error.message) == (
        "AccessDenied",
        "AWS authentication requires a valid Date or x-amz-date header",
    )


VALID = "Credential=AK/20261129/eu-north-1/s3/aws4_request, SignedHeaders=host, Signature=00"


@pytest.mark.parametrize(
    ("authorization", "code"),
    [
        ("AWS AK:signature", "InvalidRequest"),
        ("AWS4-ECDSA-P256-SHA256 " + VALID, "InvalidRequest"),
        ("Bearer token", "InvalidArgument"),
        ("", "InvalidArgument"),
        ("AWS4-HMAC-SHA256", "AuthorizationHeaderMalformed"),
        ("AWS4-HMAC-SHA256 nonsense", "AuthorizationHeaderMalformed"),
        ("AWS4-HMAC-SHA256 Credential=AK, Signature=00", "AuthorizationHeaderMalformed"),
        (f"AWS4-HMAC-SHA256 Extra=1, {VALID}", "AuthorizationHeaderMalformed"),
        (f"AWS4-HMAC-SHA256 {VALID}".replace("host", "h" * 8200), "AuthorizationHeaderMalformed"),
        (f"AWS4-HMAC-SHA256 {VALID}".replace("AK/", ""), "AuthorizationHeaderMalformed"),
        (f"AWS4-HMAC-SHA256 {VALID}".replace("=AK/", "=/"), "AuthorizationHeaderMalformed"),
        (f"AWS4-HMAC-SHA256 {VALID}".replace("20261129", "20261128"), "AuthorizationHeaderMalformed"),
        (f"AWS4-HMAC-SHA256 {VALID}".replace("eu-north-1", ""), "AuthorizationHeaderMalformed"),
        (f"AWS4-HMAC-SHA256 {VALID}".replace("eu-north-1", "r" * 65), "AuthorizationHeaderMalformed"),
        (f"AWS4-HMAC-SHA256 {VALID}".replace("/s3/", "/ec2/"), "AuthorizationHeaderMalformed"),
        (f"AWS4-HMAC-SHA256 {VALID}".replace("aws4_request", "aws5_request"), "AuthorizationHeaderMalformed"),
    ],
)
def test_authenticate_when_the_header_is_malformed(authorization: str, code: str) -> None:
    """Other schemes are refused clearly; a header of ours that is off says so."""
    error = refusal("GET", "/bucket/key", signed() | {"authorization": authorization})

    assert (error.code, error.status) == (code, 400)


@pytest.mark.parametrize("signature", ["00", "ä", "\udcff", ""])
def test_authenticate_when_the_signature_is_no_hex(signature: str) -> None:
    """Whatever stands for a signature is compared, and does not match."""
    headers = signed()
    headers["authorization"] = headers["authorization"][:-64] + signature

    error = refusal("GET", "/bucket/key", headers)

    assert error.code == "SignatureDoesNotMatch"
    assert b"<Code>SignatureDoesNotMatch</Code>" in render(error, resource="/", request_id="R")


def test_authenticate_when_signed_twice() -> None:
    """A header and a query signature in one request are refused."""
    assert refusal("GET", presigned(), signed()).code == "InvalidArgument"


def test_credential_hides_its_secret() -> None:
    """A log line with a credential shows no secret."""
    assert "SK" not in repr(CREDENTIALS)


# --- Presigned URL -----------------------------------------------------------------------------------------------------


def test_presigned_when_aws_example() -> None:
    """AWS's documented presigned URL is let in."""
    example = load("presigned-get")

    actual = check(
        "GET",
        f"{example.target}&X-Amz-Signature={example.signature}",
        example.headers,
        now_s=AWS_NOW_S + 86400,
        credentials=AWS_CREDENTIALS,
    )

    assert actual.is_presigned
    assert actual.payload is PayloadMode.UNSIGNED
    assert actual.signed_headers == ("host",)


def test_presigned_when_dated_hours_ago() -> None:
    """The 15 minutes of header signatures do not bound a URL's life (B25)."""
    target = presigned(amz_date="20261129T130307Z", expires_s=86400)

    assert check("GET", target, HOST).is_presigned


@pytest.mark.parametrize(
    ("age_s", "comes_in"), [(0, True), (3600, True), (3601, False), (-900, True), (-901, False)]
)
def test_presigned_life(age_s: int, comes_in: bool) -> None:
    """A URL lives from its date, with 15 minutes for clocks, to its end."""
    if comes_in:
        assert check("GET", presigned(), HOST, now_s=NOW_S + age_s).is_presigned
    else:
        error = refusal("GET", presigned(), HOST, now_s=NOW_S + age_s)
        assert (error.code, error.status) == ("AccessDenied", 403)
        assert error.message == ("Request has expired" if age_s > 0 else "Request is not valid yet")


def test_presigned_when_expired_says_when() -> None:
    """The document shows the times that were compared."""
    error = refusal("GET", presigned(), HOST, now_s=NOW_S + 4000)

    assert error.extra == {
        "X-Amz-Expires": "3600",
        "Expires": "2026-11-29T19:03:07Z",
        "ServerTime": "2026-11-29T19:09:47Z",
    }


@pytest.mark.parametrize("expires", ["0", "-1", "604801", "abc", "", "1.5", "²", "9" * 5000])
def test_presigned_when_expires_is_out_of_range(expires: str) -> None:
    """X-Amz-Expires is 1 to 604800 seconds (B25)."""
    target = presigned().replace("X-Amz-Expires=3600", f"X-Amz-Expires={expires}")

    error = refusal("GET", target, HOST)

    assert (error.code, error.status) == ("AuthorizationQueryParametersError", 400)


def test_presigned_when_a_week_long() -> None:
    """The longest life is allowed."""
    assert check("GET", presigned(expires_s=604800), HOST, now_s=NOW_S + 604800).is_presigned


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("/bucket/key", "/bucket/other"),
        ("X-Amz-Expires=3600", "X-Amz-Expires=7200"),
        ("X-Amz-Signature=", "response-content-type=text%2Fhtml&X-Amz-Signature="),
        ("X-Amz-Signature=", "versionId=v&X-Amz-Signature="),
    ],
)
def test_presigned_when_tampered(old: str, new: str) -> None:
    """No part of the URL can be changed, and nothing added (B25)."""
    assert refusal("GET", presigned().replace(old, new), HOST).code == "SignatureDoesNotMatch"


def test_presigned_when_used_with_another_method() -> None:
    """A URL to GET does not DELETE."""
    assert refusal("DELETE", presigned(), HOST).code == "SignatureDoesNotMatch"


def test_presigned_when_a_signed_header_is_changed_or_missing() -> None:
    """A header that was signed must come as it was signed (B25)."""
    target = presigned(headers={"Content-Type": "text/plain"})

    assert check("GET", target, HOST | {"content-type": "text/plain"}).is_presigned
    assert refusal("GET", target, HOST | {"content-type": "text/html"}).code == "SignatureDoesNotMatch"
    assert refusal("GET", target, HOST).code == "SignatureDoesNotMatch"


def test_presigned_when_a_header_is_added() -> None:
    """An x-amz- header beside a URL that does not sign it is refused."""
    error = refusal("GET", presigned(), HOST | {"x-amz-copy-source": "/b/k"})

    assert error.extra == {"HeadersNotSigned": "x-amz-copy-source"}


@pytest.mark.parametrize(
    ("in_query", "headers", "signed_headers"),
    [
        (f"&X-Amz-Content-Sha256={EMPTY_SHA256}", {}, "host"),
        ("", {"x-amz-content-sha256": EMPTY_SHA256}, "host%3Bx-amz-content-sha256"),
    ],
)
def test_presigned_when_the_payload_is_signed(
    in_query: str, headers: dict[str, str], signed_headers: str
) -> None:
    """The hash of the body may stand in the query or in a signed header; then the body must have it."""
    scope = signing.credential_scope("20261129", "eu-north-1")
    query = (
        f"X-Amz-Algorithm=AWS4-HMAC-SHA256{in_query}&X-Amz-Credential=AK%2F{uri_encode(scope)}&X-Amz-Date={AMZ_DATE}"
        f"&X-Amz-Expires=60&X-Amz-SignedHeaders={signed_headers}"
    )
    sent = {"host": "h", **headers}
    canonical = signing.canonical_request(
        "GET",
        "/bucket/key",
        signing.canonical_raw_query(query),
        signing.canonical_headers(sent.items()),
        EMPTY_SHA256,
    )
    signature = signing.signature(
        signing.signing_key("SK", "20261129", "eu-north-1"),
        signing.string_to_sign(AMZ_DATE, scope, canonical),
    )

    actual = check("GET", f"/bucket/key?{query}&X-Amz-Signature={signature}", sent)

    assert (actual.payload, actual.payload_sha256) == (PayloadMode.SHA256, EMPTY_SHA256)


@pytest.mark.parametrize(
    "name",
    [
        "X-Amz-Algorithm",
        "X-Amz-Credential",
        "X-Amz-Date",
        "X-Amz-Expires",
        "X-Amz-SignedHeaders",
        "X-Amz-Signature",
    ],
)
def test_presigned_when_a_parameter_is_missing_or_doubled(name: str) -> None:
    """All six parameters are there, once."""
    path, _, query = presigned().partition("?")
    pairs = query.split("&")
    without = "&".join(pair for pair in pairs if not pair.startswith(f"{name}="))

    missing = refusal("GET", f"{path}?{without}", HOST)
    doubled = refusal("GET", f"{path}?{query}&{name}=1", HOST)

    assert missing.code == doubled.code == "AuthorizationQueryParametersError"


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("AWS4-HMAC-SHA256", "AWS4-ECDSA-P256-SHA256", "AuthorizationQueryParametersError"),
        (f"X-Amz-Date={AMZ_DATE}", "X-Amz-Date=today", "AuthorizationQueryParametersError"),
        ("%2Fs3%2F", "%2Fsqs%2F", "AuthorizationQueryParametersError"),
        ("AK%2F", "NOBODY%2F", "InvalidAccessKeyId"),
    ],
)
def test_presigned_when_malformed(old: str, new: str, code: str) -> None:
    """What cannot be read is told apart from what does not match."""
    assert refusal("GET", presigned().replace(old, new), HOST).code == code


def test_presigned_when_version_2() -> None:
    """The old query signature is refused with the way out."""
    error = refusal("GET", "/bucket/key?AWSAccessKeyId=AK&Expires=1&Signature=s", HOST)

    assert error.code == "InvalidRequest"
    assert "AWS4-HMAC-SHA256" in error.message


# --- Properties --------------------------------------------------------------------------------------------------------

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
QUERIES = st.lists(st.tuples(TEXT.map(lambda name: f"q{name}"), TEXT | st.just("")), max_size=4)
VALUES = st.text(st.sampled_from(string.printable.replace("\r", "").replace("\n", "") + "ä€"), max_size=30)
WIRE = st.binary(max_size=40).map(lambda data: data.decode("utf-8", "surrogateescape"))


def target_of(key: str, query: list[tuple[str, str]]) -> str:
    """Encode as botocore does."""
    encoded = "&".join(f"{quote(name, safe='-._~')}={quote(value, safe='-._~')}" for name, value in query)
    return f"/bucket/{quote(key, safe='/~')}" + (f"?{encoded}" if encoded else "")


@given(key=TEXT, query=QUERIES, metadata=st.dictionaries(st.sampled_from("abcd"), VALUES))
def test_every_request_of_botocore_comes_in(
    key: str, query: list[tuple[str, str]], metadata: dict[str, str]
) -> None:
    """Any key, query and metadata that botocore signs is verified (B21)."""
    target = target_of(key, query)
    headers = signed("PUT", target, {f"x-amz-meta-{name}": value for name, value in metadata.items()})

    assert check("PUT", target, headers).credential.access_key == "AK"


@given(key=TEXT, query=QUERIES)
def test_every_presigned_url_of_botocore_comes_in(key: str, query: list[tuple[str, str]]) -> None:
    """Any key and query that botocore presigns is verified (B21)."""
    target = presigned(target_of(key, query))

    assert check("GET", target, HOST).is_presigned


@given(key=TEXT, other=TEXT)
def test_no_signature_is_good_for_another_key(key: str, other: str) -> None:
    """However the path is spelt, a signature opens its own key only."""
    headers = signed(target=f"/bucket/{uri_encode(key)}")
    path = f"/bucket/{uri_encode(other)}"

    if key == other:
        assert check("GET", path, headers).credential.access_key == "AK"
    else:
        assert refusal("GET", path, headers).code == "SignatureDoesNotMatch"


@pytest.mark.slow
@settings(max_examples=100)
@given(
    headers=st.dictionaries(
        st.sampled_from(
            ["Authorization", "x-amz-date", "date", "x-amz-content-sha256", "host", "x-amz-meta-a"]
        ),
        WIRE,
    ),
    authorization=st.sampled_from([None, "AWS4-HMAC-SHA256 ", f"AWS4-HMAC-SHA256 {VALID}"]),
    query=st.lists(
        st.tuples(
            st.sampled_from(["X-Amz-Algorithm", "X-Amz-Expires", "X-Amz-Credential", "X-Amz-Date", "a"]), WIRE
        )
    ),
)
def test_authenticate_raises_only_s3_errors(
    headers: dict[str, str], authorization: str | None, query: list[tuple[str, str]]
) -> None:
    """Whatever a socket delivers as a signature is refused with an S3Error that can be written down."""
    if authorization is not None:
        headers = headers | {"Authorization": authorization + headers.get("Authorization", "")}
    target = "/bucket/key?" + "&".join(f"{name}={quote(value, errors='replace')}" for name, value in query)

    request = parse("GET", target, headers.items(), request_id="R", received_at_s=NOW_S)
    if is_unsigned(request):
        assert authenticate(request, CREDENTIALS, NOW_S) is None
        return
    error = refusal("GET", target, headers)

    assert error.status in {400, 403, 501}
    assert render(error, resource=target, request_id="R").endswith(b"</Error>")


def test_parse_amz_date() -> None:
    """The basic form of ISO 8601 is read as UTC; anything else is None."""
    assert parse_amz_date("20130524T000000Z") == 1369353600.0
    assert parse_amz_date("20130524T000000") is None
    assert parse_amz_date("20130229T000000Z") is None
