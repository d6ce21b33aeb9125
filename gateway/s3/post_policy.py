"""Who allowed a POST upload, and what: the policy document of a form, its signature and its conditions.

Sources: AWS S3 API Reference "Browser-Based Uploads Using POST (AWS Signature Version 4)", with "POST policy" and "Calculating a
signature"; messages follow AWS's. A form is by whoever signed its policy; what the policy does not name, nobody has allowed, so
every field must be covered by a condition but `file`, `policy`, the signature and those that nobody reads.
"""

import base64
import binascii
import hmac
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec

from gateway.s3.auth import Authenticated, Credential, PayloadMode
from gateway.s3.claims import NOT_OURS, parse_amz_date, scope_parts
from gateway.s3.errors import ErrorCode, S3Error, invalid_argument
from storage.origin import signing
from storage.types import PUT_BYTES_MAX

SIGNATURE_FIELD: Final = "x-amz-signature"

_SIGNED_FIELDS: Final = ("policy", "x-amz-algorithm", "x-amz-credential", "x-amz-date", SIGNATURE_FIELD)
_OLD_FIELDS: Final = ("awsaccesskeyid", "signature")
_EXEMPT_FIELDS: Final = frozenset({"policy", SIGNATURE_FIELD})
"""With `file` and `x-ignore-*`, which are no fields any more when a form has been read."""

_EXPIRATION: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d{1,9})?Z", re.ASCII)
_ESCAPE: Final = re.compile(r"\\(.)", re.DOTALL)
_INTEGER: Final = re.compile(r"[0-9]{1,18}", re.ASCII)
_ESCAPES: Final = {"$": "$", "v": "\\u000b"}
"""What a policy may escape beside what JSON may (AWS "POST policy", character escaping)."""


class Condition(msgspec.Struct, frozen=True, gc=False):
    """One condition on a field, named in lower case. `is_prefix`: the value begins so, and need not be all of it."""

    field: str
    value: str
    is_prefix: bool = False


class Policy(msgspec.Struct, frozen=True):
    """A policy document. The sizes are of the file, both included."""

    expires_at_s: float
    conditions: tuple[Condition, ...]
    size_min: int = 0
    size_max: int = PUT_BYTES_MAX


def authenticate_form(fields: Mapping[str, str], credentials: Mapping[str, Credential]) -> Authenticated:
    """Verify the signature over a form's policy. The policy's life is checked with its conditions.

    Raises:
        S3Error: AccessDenied: nothing is signed; InvalidArgument: a field is missing, or is none; InvalidRequest: signed as AWS
            did before version 4; InvalidAccessKeyId; SignatureDoesNotMatch.
    """
    if any(name in fields for name in _OLD_FIELDS):
        raise S3Error(ErrorCode.INVALID_REQUEST, NOT_OURS)
    if not any(name in fields for name in _SIGNED_FIELDS):
        raise S3Error(ErrorCode.ACCESS_DENIED)
    for name in _SIGNED_FIELDS:
        if name not in fields:
            raise missing_field(name)
    policy, amz_date = fields["policy"], fields["x-amz-date"]
    if fields["x-amz-algorithm"] != signing.ALGORITHM:
        raise S3Error(ErrorCode.INVALID_REQUEST, NOT_OURS)
    if parse_amz_date(amz_date) is None:
        raise invalid_argument("x-amz-date", amz_date, "x-amz-date must be of the form yyyyMMdd'T'HHmmss'Z'")
    parts = scope_parts(fields["x-amz-credential"], amz_date[:8])
    if isinstance(parts, str):
        raise invalid_argument("x-amz-credential", fields["x-amz-credential"], f"x-amz-credential: {parts}")
    access_key, date, region = parts
    credential = credentials.get(access_key)
    if credential is None:
        raise S3Error(ErrorCode.INVALID_ACCESS_KEY_ID, extra={"AWSAccessKeyId": access_key})
    key = signing.signing_key(credential.secret_key, date, region)
    given = fields[SIGNATURE_FIELD]
    if not hmac.compare_digest(signing.signature(key, policy).encode(), given.encode()):
        raise S3Error(
            ErrorCode.SIGNATURE_DOES_NOT_MATCH,
            extra={"AWSAccessKeyId": access_key, "StringToSign": policy, "SignatureProvided": given},
        )
    return Authenticated(
        credential=credential,
        signed_headers=(),
        payload=PayloadMode.UNSIGNED,
        payload_sha256="",
        seed_signature=given,
        signing_key=key,
        amz_date=amz_date,
        scope=signing.credential_scope(date, region),
        is_presigned=False,
    )


def read_policy(text: str) -> Policy:
    """Read a policy as it stands in the form, in base64.

    Raises:
        S3Error: InvalidPolicyDocument.
    """
    document = _read_json(text)
    if not isinstance(document, dict):
        raise _invalid("Invalid JSON.")
    unknown = document.keys() - {"expiration", "conditions"}
    if unknown:
        raise _invalid(f"Unexpected: '{min(unknown)}'")
    for name in ("expiration", "conditions"):
        if name not in document:
            raise _invalid(f"Policy missing {name}.")
    lines = document["conditions"]
    if not isinstance(lines, list):
        raise _invalid("Invalid conditions list.")
    conditions: list[Condition] = []
    size_min, size_max = 0, PUT_BYTES_MAX
    for line in lines:
        read = _read_condition(line)
        if isinstance(read, Condition):
            conditions.append(read)
        else:
            size_min, size_max = max(size_min, read[0]), min(size_max, read[1])
    return Policy(_read_expiration(document["expiration"]), tuple(conditions), size_min, size_max)


def check_policy(policy: Policy, fields: Mapping[str, str], bucket: str, now_s: float) -> None:
    """Hold a form against its policy; the file's size is held against it as the file comes.

    Args:
        policy: As signed.
        fields: Lower-case names, `${filename}` replaced.
        bucket: What the request names; a field of that name says nothing.
        now_s: Wall clock.

    Raises:
        S3Error: AccessDenied: too late, a condition does not hold, or a field is not covered.
    """
    if now_s >= policy.expires_at_s:
        raise _denied("Policy expired.")
    values = {**fields, "bucket": bucket}
    for condition in policy.conditions:
        if not _holds(condition, values.get(condition.field, "")):
            kind = "starts-with" if condition.is_prefix else "eq"
            shown = json.dumps([kind, f"${condition.field}", condition.value])
            raise _denied(f"Policy Condition failed: {shown}")
    extra = values.keys() - {condition.field for condition in policy.conditions} - _EXEMPT_FIELDS
    if extra:
        raise _denied(f"Extra input fields: {min(extra)}")


def check_size(policy: Policy, size: int, *, is_whole: bool) -> None:
    """Hold the bytes that have come of a file against the policy.

    Raises:
        S3Error: EntityTooLarge; EntityTooSmall where the file is whole.
    """
    if size > policy.size_max:
        raise S3Error(
            ErrorCode.ENTITY_TOO_LARGE,
            extra={"ProposedSize": str(size), "MaxSizeAllowed": str(policy.size_max)},
        )
    if is_whole and size < policy.size_min:
        raise S3Error(
            ErrorCode.ENTITY_TOO_SMALL,
            extra={"ProposedSize": str(size), "MinSizeAllowed": str(policy.size_min)},
        )


def missing_field(name: str) -> S3Error:
    """Make the InvalidArgument of a form that lacks a field; what follows the file is not read, hence the hint."""
    return invalid_argument(
        name,
        "",
        f"Bucket POST must contain a field named '{name}'. If it is specified, please check the order of the fields.",
    )


def _holds(condition: Condition, value: str) -> bool:
    if not condition.is_prefix:
        return value == condition.value
    if condition.field != "content-type":
        return value.startswith(condition.value)
    # A Content-Type with commas is a list, and each of its members must begin so (AWS "POST policy", condition matching).
    return all(
        part.lstrip(" ").startswith(condition.value) or part.startswith(condition.value)
        for part in value.split(",")
    )


def _read_json(text: str) -> object:
    try:
        document = base64.b64decode("".join(text.split()), validate=True).decode()
    except (binascii.Error, UnicodeError, ValueError) as error:
        raise _invalid("Invalid policy encoding.") from error
    plain = _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), document)
    try:
        read: object = json.loads(plain)
    except (ValueError, RecursionError) as error:
        raise _invalid("Invalid JSON.") from error
    return read


def _read_expiration(value: object) -> float:
    found = _EXPIRATION.fullmatch(value) if isinstance(value, str) else None
    if found is not None:
        try:
            return datetime.strptime(found[1], "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC).timestamp()
        except ValueError:
            found = None
    raise _invalid(
        f"Invalid 'expiration' value: '{value}'" if isinstance(value, str) else "Invalid 'expiration' value."
    )


def _read_condition(line: object) -> Condition | tuple[int, int]:
    """Read one condition; a range of sizes as the least and the most."""
    if isinstance(line, dict):
        if len(line) != 1:
            raise _invalid(
                "Invalid Simple-Condition: Simple-Conditions must have exactly one property specified."
            )
        ((name, value),) = line.items()
        if not isinstance(value, str):
            raise _invalid("Invalid Simple-Condition: value must be a string.")
        return Condition(name.lower(), value)
    if not isinstance(line, list) or len(line) != 3 or not isinstance(line[0], str):
        raise _invalid("Invalid Condition: a condition is an object with one property or a list of three.")
    kind, first, second = line[0].lower(), line[1], line[2]
    if kind == "content-length-range":
        return _read_size(first), _read_size(second)
    if kind not in {"eq", "starts-with"}:
        raise _invalid(f"Invalid Condition: unknown operation '{kind}'.")
    if not isinstance(first, str) or not isinstance(second, str) or not first.startswith("$"):
        raise _invalid("Invalid Condition: a field's name begins with a $ and its value is a string.")
    return Condition(first[1:].lower(), second, is_prefix=kind == "starts-with")


def _read_size(value: object) -> int:
    text = str(value) if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if _INTEGER.fullmatch(text) is None:
        raise _invalid("Invalid content-length-range: the sizes are whole numbers.")
    return int(text)


def _invalid(reason: str) -> S3Error:
    return S3Error(ErrorCode.INVALID_POLICY_DOCUMENT, f"Invalid Policy: {reason}")


def _denied(reason: str) -> S3Error:
    return S3Error(ErrorCode.ACCESS_DENIED, f"Invalid according to Policy: {reason}")
