"""Policies of POST uploads: AWS's own example, botocore's signer, and what is refused."""

import base64
import json

import pytest
from botocore.auth import S3SigV4PostAuth  # type: ignore[import-untyped]  # botocore ships no types
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # as above
from botocore.credentials import Credentials  # type: ignore[import-untyped]  # as above
from hypothesis import given, settings, strategies as st

from gateway.s3.auth import Credential
from gateway.s3.errors import S3Error
from gateway.s3.post_policy import Policy, authenticate_form, check_policy, check_size, read_policy

EXAMPLE_SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
EXAMPLE_POLICY = (
    "eyAiZXhwaXJhdGlvbiI6ICIyMDE1LTEyLTMwVDEyOjAwOjAwLjAwMFoiLA0KICAiY29uZGl0aW9ucyI6IFsNCiAgICB7ImJ1Y2tldCI6ICJzaWd2NGV4YW1w"
    "bGVidWNrZXQifSwNCiAgICBbInN0YXJ0cy13aXRoIiwgIiRrZXkiLCAidXNlci91c2VyMS8iXSwNCiAgICB7ImFjbCI6ICJwdWJsaWMtcmVhZCJ9LA0KICAg"
    "IHsic3VjY2Vzc19hY3Rpb25fcmVkaXJlY3QiOiAiaHR0cDovL3NpZ3Y0ZXhhbXBsZWJ1Y2tldC5zMy5hbWF6b25hd3MuY29tL3N1Y2Nlc3NmdWxfdXBsb2Fk"
    "Lmh0bWwifSwNCiAgICBbInN0YXJ0cy13aXRoIiwgIiRDb250ZW50LVR5cGUiLCAiaW1hZ2UvIl0sDQogICAgeyJ4LWFtei1tZXRhLXV1aWQiOiAiMTQzNjUx"
    "MjM2NTEyNzQifSwNCiAgICB7IngtYW16LXNlcnZlci1zaWRlLWVuY3J5cHRpb24iOiAiQUVTMjU2In0sDQogICAgWyJzdGFydHMtd2l0aCIsICIkeC1hbXot"
    "bWV0YS10YWciLCAiIl0sDQoNCiAgICB7IngtYW16LWNyZWRlbnRpYWwiOiAiQUtJQUlPU0ZPRE5ON0VYQU1QTEUvMjAxNTEyMjkvdXMtZWFzdC0xL3MzL2F3"
    "czRfcmVxdWVzdCJ9LA0KICAgIHsieC1hbXotYWxnb3JpdGhtIjogIkFXUzQtSE1BQy1TSEEyNTYifSwNCiAgICB7IngtYW16LWRhdGUiOiAiMjAxNTEyMjlU"
    "MDAwMDAwWiIgfQ0KICBdDQp9"
)
EXAMPLE_SIGNATURE = "8afdbf4008c03f22c2cd3cdb72e4afbb1f6a588f3255ac628749a66d7f09699e"
EXAMPLE_FIELDS = {
    "key": "user/user1/f.txt",
    "acl": "public-read",
    "success_action_redirect": "http://sigv4examplebucket.s3.amazonaws.com/successful_upload.html",
    "content-type": "image/jpeg",
    "x-amz-meta-uuid": "14365123651274",
    "x-amz-server-side-encryption": "AES256",
    "x-amz-credential": "AKIAIOSFODNN7EXAMPLE/20151229/us-east-1/s3/aws4_request",
    "x-amz-algorithm": "AWS4-HMAC-SHA256",
    "x-amz-date": "20151229T000000Z",
    "x-amz-meta-tag": "",
    "policy": EXAMPLE_POLICY,
    "x-amz-signature": EXAMPLE_SIGNATURE,
}
CREDENTIALS = {
    "AKIAIOSFODNN7EXAMPLE": Credential("AKIAIOSFODNN7EXAMPLE", EXAMPLE_SECRET, "example"),
    "AK": Credential("AK", "SK", "id"),
}
NOON = 1_451_476_800.0
"""2015-12-30T12:00:00Z, when the example expires."""


def encoded(document: object) -> str:
    """Write a policy as it stands in a form."""
    text = document if isinstance(document, str) else json.dumps(document)
    return base64.b64encode(text.encode()).decode()


def policy_of(*conditions: object, expiration: object = "2030-01-01T00:00:00Z") -> Policy:
    """Read a policy for the bucket `b` with these conditions."""
    return read_policy(encoded({"expiration": expiration, "conditions": [{"bucket": "b"}, *conditions]}))


def test_awss_example_is_by_its_signer_and_allowed() -> None:
    """AWS "Example: Browser-Based Upload using HTTP POST (Using AWS Signature Version 4)": signature, scope and conditions."""
    identity = authenticate_form(EXAMPLE_FIELDS, CREDENTIALS)
    policy = read_policy(EXAMPLE_POLICY)

    check_policy(policy, EXAMPLE_FIELDS, "sigv4examplebucket", NOON - 1)

    assert identity.credential.credential_id == "example"
    assert identity.scope == "20151229/us-east-1/s3/aws4_request"
    assert policy.expires_at_s == NOON


def test_the_example_is_denied_when_it_has_expired() -> None:
    """From the moment of its expiration on."""
    with pytest.raises(S3Error, match="Policy expired") as raised:
        check_policy(read_policy(EXAMPLE_POLICY), EXAMPLE_FIELDS, "sigv4examplebucket", NOON)

    assert raised.value.status == 403


@settings(max_examples=50)
@given(
    document=st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=3),
    region=st.sampled_from(["us-east-1", "eu-north-1"]),
)
def test_botocores_signature_holds_whatever_the_policy_says(document: dict[str, str], region: str) -> None:
    """The second opinion: botocore signs a form of its own making."""
    request = AWSRequest("POST", "http://x/b")
    request.context["s3-presign-post-fields"] = {}
    request.context["s3-presign-post-policy"] = {"expiration": "x", "conditions": [document]}

    S3SigV4PostAuth(Credentials("AK", "SK"), "s3", region).add_auth(request)
    fields = request.context["s3-presign-post-fields"]

    assert authenticate_form(fields, CREDENTIALS).credential.credential_id == "id"
    with pytest.raises(S3Error) as raised:
        authenticate_form({**fields, "policy": fields["policy"][:-4] + "AAAA"}, CREDENTIALS)
    assert raised.value.code == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"x-amz-signature": "0" * 64}, "SignatureDoesNotMatch"),
        ({"x-amz-signature": "\u00e9"}, "SignatureDoesNotMatch"),
        ({"policy": encoded({})}, "SignatureDoesNotMatch"),
        ({"x-amz-credential": "AKX/20151229/us-east-1/s3/aws4_request"}, "InvalidAccessKeyId"),
        ({"x-amz-credential": "AK/20151229/us-east-1/s3/aws4_request"}, "SignatureDoesNotMatch"),
        ({"x-amz-credential": "AKIAIOSFODNN7EXAMPLE/20151228/us-east-1/s3/aws4_request"}, "InvalidArgument"),
        ({"x-amz-credential": "AKIAIOSFODNN7EXAMPLE"}, "InvalidArgument"),
        ({"x-amz-date": "20151230T000000Z"}, "InvalidArgument"),
        ({"x-amz-date": "yesterday"}, "InvalidArgument"),
        ({"x-amz-algorithm": "AWS4-ECDSA-P256-SHA256"}, "InvalidRequest"),
        ({"awsaccesskeyid": "AK", "signature": "x"}, "InvalidRequest"),
        ({"x-amz-signature": None}, "InvalidArgument"),
        ({"policy": None}, "InvalidArgument"),
        (dict.fromkeys(EXAMPLE_FIELDS), "AccessDenied"),
    ],
)
def test_a_form_is_refused_when_its_signature_is_none(change: dict[str, str | None], code: str) -> None:
    """Wrong, of another key, incomplete, of an older version, or not there at all."""
    fields = {name: value for name, value in {**EXAMPLE_FIELDS, **change}.items() if value is not None}

    with pytest.raises(S3Error) as raised:
        authenticate_form(fields, CREDENTIALS)

    assert raised.value.code == code


@pytest.mark.parametrize(
    ("conditions", "fields", "is_allowed"),
    [
        ([{"key": "k"}], {"key": "k"}, True),
        ([{"key": "k"}], {"key": "K"}, False),
        ([{"KEY": "k"}], {"key": "k"}, True),
        ([["eq", "$Key", "k"]], {"key": "k"}, True),
        ([["EQ", "$key", "k"]], {"key": "kk"}, False),
        ([["starts-with", "$key", "u/"]], {"key": "u/1"}, True),
        ([["starts-with", "$key", "u/"]], {"key": "x/u/"}, False),
        ([["starts-with", "$key", "u/"]], {"key": " u/1"}, False),
        ([["starts-with", "$key", ""]], {"key": "x"}, True),
        ([["starts-with", "$key", "u/"], ["starts-with", "$key", "u/v"]], {"key": "u/w"}, False),
        ([["starts-with", "$key", ""]], {"key": "x", "acl": "private"}, False),
        ([["starts-with", "$key", ""], {"acl": "private"}], {"key": "x"}, False),
        ([["starts-with", "$key", ""], ["starts-with", "$x-amz-meta-a", ""]], {"key": "x"}, True),
        ([["starts-with", "$Content-Type", "image/"]], {"content-type": "image/png,image/gif"}, True),
        ([["starts-with", "$Content-Type", "image/"]], {"content-type": "image/png, image/gif"}, True),
        ([["starts-with", "$Content-Type", "image/"]], {"content-type": "image/png,text/html"}, False),
        ([["starts-with", "$x-amz-meta-a", "a"]], {"x-amz-meta-a": "a,b"}, True),
        ([{"key": "x"}, {"bucket": "c"}], {"key": "x", "bucket": "c"}, False),
        ([{"key": "x"}], {"key": "x", "bucket": "c"}, True),
        ([{"key": "x"}], {"key": "x", "policy": "p", "x-amz-signature": "s"}, True),
        ([{"key": "x"}], {"key": "x", "x-amz-date": "d"}, False),
        (["[exactly one]", {"key": "x"}][1:], {"key": "x", "file": "y"}, False),
    ],
)
def test_conditions_decide_when_a_form_is_sent(
    conditions: list[object], fields: dict[str, str], is_allowed: bool
) -> None:
    """All conditions hold and every field is covered, or the form is denied; the bucket is the request's, whatever a field says."""
    policy = policy_of(*conditions)

    if is_allowed:
        check_policy(policy, fields, "b", 0.0)
    else:
        with pytest.raises(S3Error, match="Invalid according to Policy") as raised:
            check_policy(policy, fields, "b", 0.0)
        assert (raised.value.code, raised.value.status) == ("AccessDenied", 403)


def test_a_policy_without_its_bucket_allows_none() -> None:
    """A policy that names no bucket would open all of them."""
    policy = read_policy(encoded({"expiration": "2030-01-01T00:00:00Z", "conditions": [{"key": "k"}]}))

    with pytest.raises(S3Error, match="Extra input fields: bucket"):
        check_policy(policy, {"key": "k"}, "b", 0.0)


def test_escapes_are_awss_when_json_has_none() -> None:
    r"""`\$` is a dollar sign and `\v` a vertical tab; `\\$` stays a backslash and a dollar sign."""
    text = r'{"expiration": "2030-01-01T00:00:00.5Z", "conditions": [{"key": "\$a\v\\$\u00fc\n"}]}'

    policy = read_policy(encoded(text))

    assert policy.conditions[0].value == "$a\x0b\\$\u00fc\n"


@pytest.mark.parametrize(
    "document",
    [
        "",
        "{",
        "[]",
        "1",
        "[" * 15_000,
        '{"a":' * 4_000,
        "1" * 10_000,
        {},
        {"expiration": "2030-01-01T00:00:00Z"},
        {"conditions": []},
        {"EXPIRATION": "2030-01-01T00:00:00Z", "conditions": []},
        {"expiration": "2030-01-01T00:00:00Z", "CONDITIONS": []},
        {"expiration": "2030-01-01T00:00:00Z", "conditions": {}},
        {"expiration": "2030-01-01", "conditions": []},
        {"expiration": "2030-13-01T00:00:00Z", "conditions": []},
        {"expiration": 5, "conditions": []},
        *[
            {"expiration": "2030-01-01T00:00:00Z", "conditions": [condition]}
            for condition in (
                {},
                {"a": "b", "c": "d"},
                {"a": 1},
                "a",
                None,
                [],
                ["eq", "$key"],
                ["eq", "key", "x"],
                ["eq", "$key", 1],
                ["ends-with", "$key", "x"],
                [1, "$key", "x"],
                ["content-length-range", 1],
                ["content-length-range", -1, 5],
                ["content-length-range", 1.5, 5],
                ["content-length-range", True, 5],
                ["content-length-range", "a", 5],
                ["content-length-range", 0, 10**30],
            )
        ],
    ],
)
def test_a_policy_is_refused_when_it_cannot_be_read(document: object) -> None:
    """Whatever is wrong with it, and however deep or long it is: one code, and no more."""
    with pytest.raises(S3Error) as raised:
        read_policy(encoded(document))

    assert (raised.value.code, raised.value.status) == ("InvalidPolicyDocument", 400)


@pytest.mark.parametrize(
    "text", ["%%%", "aGVsbG8", encoded("x")[:-1] + "\u00fc", base64.b64encode(b"\xff").decode()]
)
def test_a_policy_is_refused_when_it_is_not_base64_of_text(text: str) -> None:
    """The encoding is refused like the document."""
    with pytest.raises(S3Error, match="encoding"):
        read_policy(text)


@pytest.mark.parametrize(
    ("size", "is_whole", "code"),
    [
        (9, True, "EntityTooSmall"),
        (9, False, ""),
        (10, True, ""),
        (20, True, ""),
        (21, False, "EntityTooLarge"),
    ],
)
def test_the_size_is_held_against_the_range_when_the_file_comes(size: int, is_whole: bool, code: str) -> None:
    """Both ends are included; of two ranges the narrower ends count. Too large shows before the end, too small only there."""
    policy = policy_of(["content-length-range", 1, 20], ["content-length-range", "10", "5000"])

    if not code:
        check_size(policy, size, is_whole=is_whole)
        return
    with pytest.raises(S3Error) as raised:
        check_size(policy, size, is_whole=is_whole)
    assert raised.value.code == code
    assert raised.value.extra["ProposedSize"] == str(size)
