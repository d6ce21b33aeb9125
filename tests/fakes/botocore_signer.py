"""botocore's SigV4 at a given time, as the second opinion on ours."""

from botocore.auth import (  # type: ignore[import-untyped]  # botocore ships no types
    S3SigV4Auth,
    S3SigV4QueryAuth,
)
from botocore.awsrequest import AWSRequest  # type: ignore[import-untyped]  # as above
from botocore.credentials import Credentials  # type: ignore[import-untyped]  # as above


class _HeaderAuth(S3SigV4Auth):  # type: ignore[misc]  # the base has no types
    payload_hash = "UNSIGNED-PAYLOAD"

    def payload(self, request: AWSRequest) -> str:  # noqa: ARG002  # botocore's signature
        return self.payload_hash


def _add_auth(auth: S3SigV4Auth, request: AWSRequest, amz_date: str) -> None:
    """Do what botocore's `add_auth` does, at another time than now."""
    request.context["timestamp"] = amz_date
    auth._modify_request_before_signing(request)
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    auth._inject_signature_to_request(request, signature)


def sign(
    method: str,
    url: str,
    headers: dict[str, str],
    *,
    amz_date: str,
    access_key: str = "AK",
    secret_key: str = "SK",
    token: str = "",
    region: str = "eu-north-1",
    payload_hash: str = "UNSIGNED-PAYLOAD",
) -> dict[str, str]:
    """Give all headers of a request signed in its header, with lower-case names; the host is added."""
    request = AWSRequest(method, url, headers)
    auth = _HeaderAuth(Credentials(access_key, secret_key, token or None), "s3", region)
    auth.payload_hash = payload_hash
    _add_auth(auth, request, amz_date)
    host = url.split("/")[2]
    return {"host": host} | {name.lower(): value for name, value in request.headers.items()}


def presign(
    method: str,
    url: str,
    headers: dict[str, str],
    *,
    amz_date: str,
    expires_s: int,
    access_key: str = "AK",
    secret_key: str = "SK",
    region: str = "eu-north-1",
) -> str:
    """Give a presigned URL; it signs the host and `headers`."""
    request = AWSRequest(method, url, headers)
    auth = S3SigV4QueryAuth(Credentials(access_key, secret_key), "s3", region, expires=expires_s)
    _add_auth(auth, request, amz_date)
    return str(request.url)
