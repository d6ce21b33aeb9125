"""Object tags: the x-amz-tagging header, AWS's limits, and the form in which tags are stored.

Source: AWS "Categorizing your object storage using tags" and "PutObjectTagging". Stored tags are the header's own form, a
query string, written in one way only: sorted by key, blanks as %20, UTF-8. `decode_tags` reads what `encode_tags` wrote.
"""

import unicodedata
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from gateway.s3.errors import ErrorCode, S3Error

TAGS_MAX: Final = 10
TAG_KEY_CHARACTERS_MAX: Final = 128
TAG_VALUE_CHARACTERS_MAX: Final = 256

Tags = tuple[tuple[str, str], ...]
"""Pairs of key and value, each key once."""

_PUNCTUATION: Final = frozenset("_.:/=+-@")


def read_tagging(header: str | None) -> str:
    """Read x-amz-tagging and give the tags as they are stored, "" for none.

    Raises:
        S3Error: InvalidArgument (400) for text that is no query string in UTF-8, InvalidTag (400) past AWS's limits.
    """
    return encode_tags(check_tags(_parse(header))) if header else ""


def check_tags(tags: Tags) -> Tags:
    """Give the tags back if S3 would take them: at most 10, distinct keys, lengths, characters, no `aws:`.

    Raises:
        S3Error: InvalidTag (400).
    """
    if len(tags) > TAGS_MAX:
        raise _invalid_tag(f"Object tags cannot be greater than {TAGS_MAX}")
    if len({key for key, _ in tags}) < len(tags):
        raise _invalid_tag("Cannot provide multiple Tags with the same key")
    for key, value in tags:
        if not 0 < len(key) <= TAG_KEY_CHARACTERS_MAX or not _has_legal_characters(key):
            raise _invalid_tag("The TagKey you have provided is invalid")
        if len(value) > TAG_VALUE_CHARACTERS_MAX or not _has_legal_characters(value):
            raise _invalid_tag("The TagValue you have provided is invalid")
        if key.lower().startswith("aws:"):
            raise _invalid_tag("System tags cannot be added/updated by requester")
    return tags


def encode_tags(tags: Tags) -> str:
    """Write tags in the stored form."""
    return "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in sorted(tags))


def decode_tags(stored: str) -> Tags:
    """Read tags in the stored form, for documents."""
    return _parse(stored)


def tag_count(stored: str) -> int:
    """Count the tags of the stored form."""
    return stored.count("&") + 1 if stored else 0


def _parse(text: str) -> Tags:
    pairs = (pair.partition("=") for pair in text.split("&") if pair)
    return tuple((_unquote(key), _unquote(value)) for key, _, value in pairs)


def _unquote(text: str) -> str:
    try:
        return unquote_to_bytes(text.replace("+", "%20")).decode("utf-8")
    except UnicodeError as error:
        raise S3Error(
            ErrorCode.INVALID_ARGUMENT,
            "The header 'x-amz-tagging' shall be encoded as UTF-8 then URLEncoded URL query parameters "
            "without tag name duplicates.",
        ) from error


def _has_legal_characters(text: str) -> bool:
    # Letters, digits and separators of any script, and AWS's eight signs.
    return all(c in _PUNCTUATION or unicodedata.category(c)[0] in "LNZ" for c in text)


def _invalid_tag(message: str) -> S3Error:
    return S3Error(ErrorCode.INVALID_TAG, message)
