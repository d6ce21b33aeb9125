"""Error codes, their statuses, and the document."""

import pytest
from defusedxml.ElementTree import fromstring

from gateway.s3.errors import ERRORS, ErrorCode, S3Error, invalid_argument, render


def test_every_code_has_status_and_message() -> None:
    """The table is complete, and each status is one of an error."""
    assert set(ERRORS) == set(ErrorCode)
    assert all(300 < status < 600 and message for status, message in ERRORS.values())


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.ACCESS_DENIED, 403),
        (ErrorCode.BUCKET_NOT_EMPTY, 409),
        (ErrorCode.INVALID_RANGE, 416),
        (ErrorCode.METHOD_NOT_ALLOWED, 405),
        (ErrorCode.NO_SUCH_KEY, 404),
        (ErrorCode.NOT_IMPLEMENTED, 501),
        (ErrorCode.NOT_MODIFIED, 304),
        (ErrorCode.PRECONDITION_FAILED, 412),
        (ErrorCode.SLOW_DOWN, 503),
    ],
)
def test_status_is_that_of_aws(code: ErrorCode, status: int) -> None:
    """Tools act on these statuses."""
    assert S3Error(code).status == status


def test_render_when_plain() -> None:
    """The document names what, where and which request."""
    document = render(S3Error(ErrorCode.NO_SUCH_KEY), resource="/bucket/key", request_id="R1", host_id="H1")

    assert document == (
        b'<?xml version="1.0" encoding="UTF-8"?>\n'
        b"<Error><Code>NoSuchKey</Code><Message>The specified key does not exist.</Message>"
        b"<Resource>/bucket/key</Resource><RequestId>R1</RequestId><HostId>H1</HostId></Error>"
    )


def test_render_when_extra() -> None:
    """Extra fields are elements, and all text is escaped."""
    error = S3Error("OriginCode", "a<b", status=418, extra={"Detail": '"&\x01'})

    document = render(error, resource="/b/<k>", request_id="R")

    assert error.status == 418
    assert b"<Code>OriginCode</Code><Message>a&lt;b</Message><Detail>&quot;&amp;&#x1;</Detail>" in document
    assert b"<Resource>/b/&lt;k&gt;</Resource>" in document


def test_render_when_bytes_are_not_utf8() -> None:
    """A path that is not UTF-8 is shown as far as it is text, in well-formed XML."""
    document = render(S3Error(ErrorCode.INVALID_URI), resource="/b/\udcff", request_id="R")

    assert fromstring(document).findtext("Resource") == "/b/?"


def test_invalid_argument_names_the_argument() -> None:
    """The document says which argument had which value."""
    error = invalid_argument("partNumber", "2aaa", "Not a number")

    assert (error.code, error.status, error.message) == ("InvalidArgument", 400, "Not a number")
    assert error.extra == {"ArgumentName": "partNumber", "ArgumentValue": "2aaa"}


def test_str_says_code_and_message() -> None:
    """A log line with the error tells what it was."""
    assert str(S3Error(ErrorCode.SLOW_DOWN)) == "SlowDown: Please reduce your request rate."


def test_code_as_text_has_the_same_status() -> None:
    """A code that came as text, from the origin, is the same code."""
    assert S3Error("NoSuchKey").status == 404
    assert S3Error("SomethingElse").status == 500
