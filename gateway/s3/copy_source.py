"""The x-amz-copy-source header of CopyObject and UploadPartCopy: which object is copied, decoded exactly once."""

from typing import Final

import msgspec

from gateway.s3.errors import invalid_argument
from gateway.s3.request import check_key, decode, is_bucket_name
from storage.types import ObjectName

SOURCE: Final = "x-amz-copy-source"

_VERSION: Final = "?versionId="


class CopySource(msgspec.Struct, frozen=True, gc=False):
    """What a copy reads. `version_id` is None for the current version; the word `null` names the version without id."""

    name: ObjectName
    version_id: str | None = None


def parse_copy_source(header: str) -> CopySource:
    """Read `bucket/key` or `/bucket/key`, percent-encoded, with `?versionId=` behind it or not (AWS API_CopyObject).

    The slash between the two may be encoded too, as some clients encode the whole. A key's own question mark is encoded, so
    the first bare one ends the key.

    Raises:
        S3Error: InvalidArgument: no such form; InvalidURI: a broken percent sign; KeyTooLongError.
    """
    path, question, query = header.partition("?")
    bucket, slash, key = decode(path).removeprefix("/").partition("/")
    version_id = _version_id(question + query)
    if not slash or not key or not is_bucket_name(bucket) or version_id == "":
        raise invalid_argument(
            SOURCE, header, "Copy Source must mention the source bucket and key: sourcebucket/sourcekey"
        )
    check_key(key)
    return CopySource(ObjectName(bucket, key), version_id)


def _version_id(query: str) -> str | None:
    """Give the version that a query names; None without a query, "" for a query that is none."""
    if not query:
        return None
    return decode(query.removeprefix(_VERSION)) if query.startswith(_VERSION) else ""
