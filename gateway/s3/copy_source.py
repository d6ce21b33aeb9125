"""The x-amz-copy-source header of CopyObject and UploadPartCopy: which object or version is copied, decoded exactly once."""

from typing import Final

from gateway.s3.errors import invalid_argument
from gateway.s3.request import check_key, decode, is_bucket_name
from gateway.s3.versions import read_version_id
from storage.types import ObjectName

SOURCE: Final = "x-amz-copy-source"

_VERSION: Final = "versionId="


def parse_copy_source(header: str) -> ObjectName:
    """Read `bucket/key` or `/bucket/key`, percent-encoded, with `?versionId=` behind it or not (AWS API_CopyObject).

    The slash between the two may be encoded too, as some clients encode the whole. A key's own question mark is encoded, so
    the first bare one ends the key.

    Raises:
        S3Error: InvalidArgument: no such form, or a version id that none can be; InvalidURI: a broken percent sign;
            KeyTooLongError.
    """
    path, question, query = header.partition("?")
    bucket, slash, key = decode(path).removeprefix("/").partition("/")
    if not slash or not key or not is_bucket_name(bucket) or (question and not query.startswith(_VERSION)):
        raise invalid_argument(
            SOURCE, header, "Copy Source must mention the source bucket and key: sourcebucket/sourcekey"
        )
    check_key(key)
    return ObjectName(
        bucket, key, read_version_id(decode(query.removeprefix(_VERSION)) if question else None)
    )
