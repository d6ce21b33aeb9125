"""Browser forms, signed and written as a browser writes them."""

import base64
import datetime as dt
import json
from typing import Any

from storage.clock import SystemClock
from storage.origin.signing import ALGORITHM, credential_scope, format_amz_date, signature, signing_key
from tests.fakes.gateway import ACCESS_KEY, SECRET_KEY

BOUNDARY = "----WebKitFormBoundary7MA4YWxkTrZu0gW"
TYPE = f"multipart/form-data; boundary={BOUNDARY}"


def signed_fields(
    fields: dict[str, str],
    conditions: list[Any] | None = None,
    *,
    bucket: str = "bucket",
    access_key: str = ACCESS_KEY,
    secret_key: str = SECRET_KEY,
    life_s: int = 86_400,
) -> dict[str, str]:
    """Sign a form; each field is allowed as it is unless `conditions` says otherwise."""
    now = dt.datetime.fromtimestamp(SystemClock().wall_s(), dt.UTC)
    amz_date = format_amz_date(int(now.timestamp()))
    signing = {
        "x-amz-algorithm": ALGORITHM,
        "x-amz-credential": f"{access_key}/{credential_scope(amz_date[:8], 'us-east-1')}",
        "x-amz-date": amz_date,
    }
    allowed: list[Any] = [{name: value} for name, value in {"bucket": bucket, **fields, **signing}.items()]
    if conditions is not None:
        allowed = [{"bucket": bucket}, *conditions, *({name: value} for name, value in signing.items())]
    expiration = (now + dt.timedelta(seconds=life_s)).strftime("%Y-%m-%dT%H:%M:%S.000Z")
    policy = base64.b64encode(json.dumps({"expiration": expiration, "conditions": allowed}).encode()).decode()
    key = signing_key(secret_key, amz_date[:8], "us-east-1")
    return {**fields, **signing, "policy": policy, "x-amz-signature": signature(key, policy)}


def form(fields: dict[str, str], data: bytes, *, filename: str = "f.txt", after: str = "") -> bytes:
    """Write a form as a browser does."""
    parts = [
        f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    ]
    parts.append(f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\n')
    head = "".join([*parts, "Content-Type: text/plain\r\n\r\n"]).encode()
    return head + data + f"\r\n{after}--{BOUNDARY}--\r\n".encode()
