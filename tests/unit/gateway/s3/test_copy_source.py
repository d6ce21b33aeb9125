"""x-amz-copy-source in all its forms."""

from urllib.parse import quote

import pytest
from hypothesis import given, strategies as st

from gateway.s3.copy_source import parse_copy_source
from gateway.s3.errors import S3Error
from storage.types import ObjectName

KEYS = st.text(st.characters(codec="utf-8"), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("header", "key", "version_id"),
    [
        ("bucket/key", "key", None),
        ("/bucket/key", "key", None),
        ("bucket%2Fkey", "key", None),
        ("%2Fbucket%2Fkey", "key", None),
        ("bucket/a%20b+c%252F%C3%BC", "a b+c%2F\u00fc", None),
        ("bucket//lead", "/lead", None),
        ("bucket/k%3Fx?versionId=null", "k?x", "null"),
        ("bucket/k?versionId=3sL4kqtJlcpXroDTDmJ%2BrmSpXd3dIbrHY", "k", "3sL4kqtJlcpXroDTDmJ+rmSpXd3dIbrHY"),
        ("bucket/k?versionId=a+b", "k", "a+b"),
    ],
)
def test_the_source_is_decoded_once(header: str, key: str, version_id: str | None) -> None:
    """B23: every form of the header names the key byte for byte; what stands behind the first bare `?` is the version."""
    assert parse_copy_source(header) == ObjectName("bucket", key, version_id or "")


@given(
    key=KEYS,
    version_id=st.none() | st.text("abcXYZ019._+/=-", min_size=1),
    has_slash=st.booleans(),
    is_whole=st.booleans(),
)
def test_whatever_was_encoded_comes_back(
    key: str, version_id: str | None, *, has_slash: bool, is_whole: bool
) -> None:
    """Any key that S3 takes, encoded with or without the slashes, with a version or without."""
    path = f"{'/' if has_slash else ''}bucket/{key}"
    header = quote(path, safe="" if is_whole else "/") + (
        "" if version_id is None else f"?versionId={quote(version_id, safe='')}"
    )

    assert parse_copy_source(header) == ObjectName("bucket", key, version_id or "")


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("", "InvalidArgument"),
        ("bucket", "InvalidArgument"),
        ("bucket/", "InvalidArgument"),
        ("/bucket", "InvalidArgument"),
        ("-/key", "InvalidArgument"),
        ("bucket/k?x=1", "InvalidArgument"),
        ("bucket/k?versionId=", "InvalidArgument"),
        ("bucket/k?", "InvalidArgument"),
        ("bucket/k%zz", "InvalidURI"),
        ("bucket/k?versionId=%00", "InvalidArgument"),
        ("bucket/k?versionId=%zz", "InvalidURI"),
        ("bucket/" + "k" * 1025, "KeyTooLongError"),
    ],
)
def test_what_names_no_object_is_refused(header: str, code: str) -> None:
    """It is an error, and never another object."""
    with pytest.raises(S3Error) as raised:
        parse_copy_source(header)

    assert raised.value.code == code
