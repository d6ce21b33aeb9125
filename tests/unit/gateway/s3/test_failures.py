"""Every failure of storage becomes one S3 error."""

import pytest

from gateway.s3.errors import S3Error
from gateway.s3.failures import CODES, to_s3_error
from storage import errors


def all_classes(root: type[errors.StorageError]) -> set[type[errors.StorageError]]:
    """Give a class and all below it."""
    return {root}.union(*(all_classes(below) for below in root.__subclasses__()))


def make(kind: type[errors.StorageError]) -> errors.StorageError:
    """Make an error of a class."""
    if issubclass(kind, errors.OriginError):
        return kind("text", status=0, code="Connection")
    return kind("text")


def refused(status: int, code: str) -> S3Error:
    """Translate a refusal of the origin."""
    return to_s3_error(errors.OriginRefusedError("the origin's words", status=status, code=code))


def test_every_class_is_in_the_table() -> None:
    """A new class of error cannot be forgotten here."""
    defined = {kind for kind in all_classes(errors.StorageError) if kind.__module__ == "storage.errors"}

    assert set(CODES) == defined


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [
        (errors.NoSuchBucketError, 404, "NoSuchBucket"),
        (errors.NoSuchKeyError, 404, "NoSuchKey"),
        (errors.NoSuchUploadError, 404, "NoSuchUpload"),
        (errors.NoSuchVersionError, 404, "NoSuchVersion"),
        (errors.InvalidPartError, 400, "InvalidPart"),
        (errors.InvalidPartOrderError, 400, "InvalidPartOrder"),
        (errors.PartTooSmallError, 400, "EntityTooSmall"),
        (errors.BucketNotEmptyError, 409, "BucketNotEmpty"),
        (errors.QuarantinedError, 409, "OperationAborted"),
        (errors.ObjectChangedError, 503, "ServiceUnavailable"),
        (errors.OverloadedError, 503, "SlowDown"),
        (errors.DiskFullError, 503, "SlowDown"),
        (errors.DiskFailedError, 503, "SlowDown"),
        (errors.UnknownOutcomeError, 503, "ServiceUnavailable"),
        (errors.EngineClosedError, 503, "SlowDown"),
        (errors.SegmentGoneError, 503, "ServiceUnavailable"),
        (errors.BaseUnknownError, 503, "ServiceUnavailable"),
        (errors.DurabilityNotPossibleError, 400, "InvalidRequest"),
        (errors.NotSupportedError, 501, "NotImplemented"),
        (errors.NameIgnoredError, 501, "NotImplemented"),
        (errors.ReadOnlyError, 403, "AccessDenied"),
        (errors.PublishRefusedError, 400, "InvalidRequest"),
        (errors.PublishConflictError, 409, "OperationAborted"),
        (errors.GenerationGoneError, 400, "InvalidArgument"),
        (errors.DirtyBytesLostError, 500, "InternalError"),
        (errors.FormatError, 500, "InternalError"),
        (errors.DamagedError, 500, "InternalError"),
        (errors.LockedError, 500, "InternalError"),
        (errors.StorageError, 500, "InternalError"),
        (errors.OriginError, 503, "ServiceUnavailable"),
        (errors.OriginUnavailableError, 503, "ServiceUnavailable"),
        (errors.OriginThrottledError, 503, "SlowDown"),
        (errors.OriginRefusedError, 503, "ServiceUnavailable"),
        (errors.OriginSuspendedError, 503, "ServiceUnavailable"),
    ],
)
def test_each_class_has_its_answer(kind: type[errors.StorageError], status: int, code: str) -> None:
    """The class alone decides what the client sees."""
    actual = to_s3_error(make(kind))

    assert (actual.status, actual.code) == (status, code)


@pytest.mark.parametrize("kind", sorted(all_classes(errors.StorageError), key=repr))
def test_retryable_classes_answer_what_clients_retry(kind: type[errors.StorageError]) -> None:
    """What time cures is a 503 with Retry-After, which SDKs wait for."""
    actual = to_s3_error(make(kind))

    if kind.retryable:
        assert actual.status == 503
    assert ("Retry-After" in actual.headers) is (actual.status == 503)


def test_new_subclass_answers_as_its_base() -> None:
    """A class that the table does not know is not an internal error if its base is none."""

    class NewError(errors.OverloadedError):
        pass

    assert to_s3_error(NewError("text")).code == "SlowDown"


@pytest.mark.parametrize(("retry_after_s", "header"), [(None, "1"), (0.0, "1"), (2.2, "3"), (30.0, "30")])
def test_retry_after_is_whole_seconds(retry_after_s: float | None, header: str) -> None:
    """The wait is rounded up, one second at least."""
    error = errors.OverloadedError("full", retry_after_s=retry_after_s)

    assert to_s3_error(error).headers == {"Retry-After": header}


def test_message_of_insides_is_not_shown() -> None:
    """What a failure says of paths and offsets stays here; what is meant for the client goes out."""
    assert "secret" not in to_s3_error(errors.DiskFailedError("/secret/path: EIO")).message
    assert to_s3_error(errors.QuarantinedError("refused by the origin: EntityTooLarge")).message == (
        "refused by the origin: EntityTooLarge"
    )
    assert to_s3_error(errors.BaseUnknownError("nobody knows what is there")).message == (
        "nobody knows what is there"
    )


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (403, "AccessDenied"),
        (404, "NoSuchKey"),
        (412, "PreconditionFailed"),
        (400, "InvalidStorageClass"),
        (416, "InvalidRange"),
    ],
)
def test_refusal_passes_as_the_origin_said_it(status: int, code: str) -> None:
    """Status, code and words of a refusal are the origin's."""
    actual = refused(status, code)

    assert (actual.status, actual.code, actual.message) == (status, code, "the origin's words")


@pytest.mark.parametrize(
    ("status", "sent", "code"),
    [
        (404, "", "NoSuchKey"),
        (404, "404", "NoSuchKey"),
        (403, "", "AccessDenied"),
        (412, "", "PreconditionFailed"),
        (405, "", "MethodNotAllowed"),
        (400, "Bad Request", "InvalidRequest"),
        (418, "", "InvalidRequest"),
    ],
)
def test_refusal_without_code_takes_it_from_the_status(status: int, sent: str, code: str) -> None:
    """An answer to HEAD has no document; the status says what was meant."""
    actual = refused(status, sent)

    assert (actual.status, actual.code) == (status, code)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, "ExpiredToken"),
        (403, "InvalidAccessKeyId"),
        (403, "SignatureDoesNotMatch"),
        (403, "RequestTimeTooSkewed"),
    ],
)
def test_refusal_of_the_gateways_own_key_is_not_the_clients(status: int, code: str) -> None:
    """A client whose signature we accepted is not told that it is wrong (B59)."""
    actual = refused(status, code)

    assert (actual.status, actual.code) == (503, "ServiceUnavailable")


def test_suspended_bucket_answers_why() -> None:
    """A denial of the bucket is the client's business, an expired token of ours is not."""
    denied = errors.OriginSuspendedError("denied", status=403, code="AccessDenied")
    expired = errors.OriginSuspendedError("expired", status=400, code="ExpiredToken")

    assert to_s3_error(denied).status == 403
    assert to_s3_error(expired).status == 503


def test_throttling_is_never_passed_as_a_refusal() -> None:
    """A 429 is SlowDown, which every SDK knows."""
    actual = to_s3_error(errors.OriginThrottledError("slow", status=429, code="TooManyRequests"))

    assert (actual.status, actual.code) == (503, "SlowDown")
