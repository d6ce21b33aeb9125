"""Version ids as clients write them: in the query, in a copy's source, in a line of DeleteObjects. Pure.

An id is opaque text of the origin's (AWS User Guide "How S3 Versioning works": Unicode, URL-ready, at most 1,024 bytes). Which ids
there are the origin says; here only what can be none is refused.
"""

from typing import Final

from gateway.s3.errors import invalid_argument

VERSION_ID_BYTES_MAX: Final = 1024


def read_version_id(text: str | None) -> str:
    """Give a version id as it was sent, "" where none was.

    Raises:
        S3Error: InvalidArgument: it is empty, too long, or has characters that no id has.
    """
    if text is None:
        return ""
    if not text:
        raise invalid_argument("versionId", text, "Version id cannot be the empty string")
    if not text.isprintable() or len(text.encode(errors="replace")) > VERSION_ID_BYTES_MAX:
        raise invalid_argument("versionId", text, "Invalid version id specified")
    return text
