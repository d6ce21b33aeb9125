"""Which digests go with a body to the origin: its own, beside those that the client has told in headers."""

import base64

import msgspec

from storage.intake import HeldContent
from storage.origin.wire import CHECKSUM_PREFIX, OutgoingBody
from storage.workers import Workers

Headers = tuple[tuple[str, str], ...]


def without_told(body: OutgoingBody, told: Headers) -> OutgoingBody:
    """Leave out of a body's digests those that `told` has as headers; the origin wants one checksum at most."""
    names = {name for name, _ in told}
    if any(name.startswith(CHECKSUM_PREFIX) for name in names):
        return msgspec.structs.replace(body, md5="", checksums=())
    if body.checksums or "content-md5" in names:
        return msgspec.structs.replace(body, md5="")
    return body


async def held_body(held: HeldContent, told: Headers, workers: Workers) -> OutgoingBody:
    """Make a body of what is held, with digests beside those that `told` has as headers."""
    names = {name for name, _ in told}
    has_checksum = any(name.startswith(CHECKSUM_PREFIX) for name in names)
    checksums = () if has_checksum else held.checksums()
    md5 = ""
    if not has_checksum and not checksums and "content-md5" not in names:
        md5 = base64.b64encode(await workers.run(held.md5_digest)).decode()
    return OutgoingBody(held.size, held.chunks, is_repeatable=True, md5=md5, checksums=checksums)
