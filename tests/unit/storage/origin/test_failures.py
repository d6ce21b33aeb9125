import pytest

from storage.errors import (
    BucketNotEmptyError,
    NoSuchBucketError,
    NoSuchKeyError,
    NoSuchUploadError,
    NoSuchVersionError,
    OriginError,
    OriginRefusedError,
    OriginSuspendedError,
    OriginThrottledError,
    OriginUnavailableError,
    StorageError,
)
from storage.origin.failures import failure_in_success, failure_of, names_reason, told_region


def document(code: str) -> bytes:
    """Write an error document."""
    return f"<Error><Code>{code}</Code><Message>m</Message></Error>".encode()


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, document("SlowDown"), OriginThrottledError),
        (503, b"", OriginThrottledError),
        (429, b"", OriginThrottledError),
        (500, document("InternalError"), OriginUnavailableError),
        (502, b"<html>bad gateway</html>", OriginUnavailableError),
        (403, document("AccessDenied"), OriginSuspendedError),
        (400, document("ExpiredToken"), OriginSuspendedError),
        (301, b"", OriginSuspendedError),
        (400, document("InvalidArgument"), OriginRefusedError),
        (412, b"", OriginRefusedError),
        (501, document("NotImplemented"), OriginRefusedError),
        (404, b"page not found", OriginRefusedError),
        (404, document("NoSuchLifecycleConfiguration"), OriginRefusedError),
        (404, document("NoSuchKey"), NoSuchKeyError),
        (404, document("NoSuchBucket"), NoSuchBucketError),
        (404, document("NoSuchUpload"), NoSuchUploadError),
        (404, document("NoSuchVersion"), NoSuchVersionError),
        (404, b"", NoSuchKeyError),
        (409, document("BucketNotEmpty"), BucketNotEmptyError),
    ],
)
def test_error_answer_becomes_its_exception(status: int, body: bytes, kind: type[StorageError]) -> None:
    """Status and code decide the class, and so what the caller does."""
    failure = failure_of(status, {}, body, is_read=True, has_key=True)

    assert type(failure) is kind


def test_head_of_a_missing_bucket_is_told_by_the_request() -> None:
    """A 404 without a document concerns the bucket where the request named no key."""
    assert type(failure_of(404, {}, b"", is_read=True, has_key=False)) is NoSuchBucketError


def test_head_of_a_missing_version_is_told_by_the_request() -> None:
    """A 404 without a document is of the version where one was named; one with a document says itself what it is of."""
    bare = failure_of(404, {}, b"", is_read=True, has_key=True, has_version=True)
    told = failure_of(404, {}, document("NoSuchKey"), is_read=True, has_key=True, has_version=True)

    assert (type(bare), type(told)) == (NoSuchVersionError, NoSuchKeyError)


@pytest.mark.parametrize(
    ("headers", "body", "kind", "is_named"),
    [
        ({}, b"", NoSuchKeyError, False),
        ({}, document("NoSuchKey"), NoSuchKeyError, True),
        ({"x-amz-delete-marker": "true"}, b"", NoSuchKeyError, True),
        ({"x-minio-error-code": "NoSuchKey"}, b"", NoSuchKeyError, True),
        ({"x-minio-error-code": "NoSuchBucket"}, b"", NoSuchBucketError, True),
        ({"x-minio-error-code": "NoSuchVersion"}, b"", NoSuchVersionError, True),
        ({"x-minio-error-code": "SomethingElse"}, b"", NoSuchKeyError, False),
        ({"x-minio-error-code": "NoSuchBucket"}, document("NoSuchKey"), NoSuchKeyError, True),
    ],
)
def test_404_says_what_is_not_there_by_document_or_header(
    headers: dict[str, str],
    body: bytes,
    kind: type[StorageError],
    is_named: bool,
) -> None:
    """The document counts, and headers where there is none, as HEAD has none; where neither says it, the key is a guess."""
    assert type(failure_of(404, headers, body, is_read=True, has_key=True)) is kind
    assert names_reason(headers, body) is is_named


@pytest.mark.parametrize("status", [404, 405])
def test_failure_tells_of_a_delete_marker(status: int) -> None:
    """What the headers say of a marker goes to the client, whatever class the error is; without a marker nothing does."""
    marker = {"x-amz-delete-marker": "true", "x-amz-version-id": "m1", "x-amz-request-id": "1"}

    failure = failure_of(status, marker, b"", is_read=True, has_key=True)
    other = failure_of(status, {"x-amz-version-id": "v1"}, b"", is_read=True, has_key=True)

    assert failure.told == (("x-amz-delete-marker", "true"), ("x-amz-version-id", "m1"))
    assert other.told == ()


def test_failure_carries_what_was_answered() -> None:
    """Status, code, document and Retry-After go on with the exception."""
    body = document("SlowDown")

    failure = failure_of(503, {"retry-after": "7"}, body, is_read=False, has_key=True)

    assert isinstance(failure, OriginError)
    assert (failure.status, failure.code, failure.body, failure.retry_after_s) == (503, "SlowDown", body, 7.0)
    assert failure.outcome_unknown is False


@pytest.mark.parametrize(("is_read", "unknown"), [(True, False), (False, True)])
def test_only_a_write_has_an_unknown_outcome(is_read: bool, unknown: bool) -> None:
    """A 500 to a write may have been carried out; a read has nothing to carry out."""
    failure = failure_of(500, {}, document("InternalError"), is_read=is_read, has_key=True)

    assert isinstance(failure, OriginError)
    assert failure.outcome_unknown is unknown


def test_error_inside_a_success_is_found() -> None:
    """A 200 with an error document is a failure whose outcome is unknown; SlowDown inside it is a throttle."""
    failed = failure_in_success(b" \n" + document("InternalError"))
    throttled = failure_in_success(document("SlowDown"))

    assert isinstance(failed, OriginUnavailableError)
    assert (failed.status, failed.outcome_unknown) == (500, True)
    assert type(throttled) is OriginThrottledError
    assert failure_in_success(b"<CopyObjectResult/>") is None
    assert failure_in_success(b"") is None


@pytest.mark.parametrize(
    "body",
    [
        b"<Error><Code>InternalErr",
        b' <?xml version="1.0"?><Er',
        b"<html><body>Sign in</body></html>",
        b"<HTML/>",
    ],
)
def test_success_with_a_spoilt_document_is_a_bad_answer(body: bytes) -> None:
    """A document that is cut off or somebody's web page shows that this is not the origin's whole answer."""
    failed = failure_in_success(body)

    assert isinstance(failed, OriginUnavailableError)
    assert (failed.status, failed.code) == (0, "BadAnswer")


@pytest.mark.parametrize("body", [b"OK", b"   ", b"\xff\xfe", b"<PutObjectResult/>"])
def test_success_with_other_words_stays_one(body: bytes) -> None:
    """What an origin says beside its success, in no document or an own one, does not make a failure of it."""
    assert failure_in_success(body) is None


def test_region_is_told_by_header_or_document() -> None:
    """Both places where S3 names a bucket's region are read."""
    body = b"<Error><Code>AuthorizationHeaderMalformed</Code><Region>eu-west-1</Region></Error>"

    assert told_region({"x-amz-bucket-region": "us-west-2"}, body) == "us-west-2"
    assert told_region({}, body) == "eu-west-1"
    assert told_region({}, b"") == ""


@pytest.mark.parametrize("region", ["evil/host", "r\udce9gion", "a b"])
def test_no_region_is_told_when_the_text_is_none(region: str) -> None:
    """Neither a header nor a document can bring another text into host names and signatures."""
    body = f"<Error><Code>PermanentRedirect</Code><Region>{region}</Region></Error>"

    assert told_region({"x-amz-bucket-region": region}, b"") == ""
    assert told_region({}, body.encode("utf-8", "surrogatepass")) == ""
