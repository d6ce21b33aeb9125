"""What can go wrong in storage, by who is at fault and what the caller should do.

`gateway/s3/failures.py` maps each class to one S3 error; nowhere else is an error translated. The class decides, never the
text. `retryable` says that the same call may succeed later without anybody's help.

Texts are read by who runs the gateway, and some by clients: they say what happened in the words of S3, HTTP and the system, and name
no class of ours or of a library's.
"""

from typing import ClassVar


class StorageError(Exception):
    """Base of all expected failures of storage."""

    retryable: ClassVar[bool] = False
    told: tuple[tuple[str, str], ...] = ()
    """Headers of the origin's answer that the client is to see with the error, names in lower case."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class NoSuchBucketError(StorageError):
    """The client named a bucket that the origin does not have. 404 NoSuchBucket."""


class NoSuchKeyError(StorageError):
    """The client named an object that does not exist. 404 NoSuchKey."""


class NoSuchVersionError(NoSuchKeyError):
    """The client named a version that the object does not have. 404 NoSuchVersion."""


class NoSuchUploadError(StorageError):
    """The client named an upload that does not exist or has ended. 404 NoSuchUpload."""


class InvalidPartError(StorageError):
    """A Complete names a part that was not uploaded, or with another ETag or checksum. 400 InvalidPart."""


class InvalidPartOrderError(StorageError):
    """The parts of a Complete are not in ascending order. 400 InvalidPartOrder."""


class PartTooSmallError(StorageError):
    """A part other than the last is under 5 MiB. 400 EntityTooSmall."""


class BucketNotEmptyError(StorageError):
    """A bucket with objects, acknowledged ones included, cannot be deleted. 409 BucketNotEmpty."""


class QuarantinedError(StorageError):
    """The operation needs the origin to hold a state that it refused for good. 409 with the reason."""


class NotNeededError(StorageError):
    """What a request was to bring has come, or is not wanted any more; it was not sent. Seen by warm-ups only."""


class ObjectChangedError(StorageError):
    """The origin's object is no longer the version being read. The reader starts over if no byte was sent."""

    retryable = True


class OverloadedError(StorageError):
    """A bound was reached: backlog, queue, concurrency or budget. 503 SlowDown with Retry-After."""

    retryable = True


class DiskFullError(OverloadedError):
    """No local space, or the reserve would be touched. Nothing was written."""


class DiskFailedError(StorageError):
    """The disk refused a read or write with a known outcome (EIO before the sync, short write). 503 SlowDown."""

    retryable = True


class UnknownOutcomeError(StorageError):
    """A sync failed: what was being committed may or may not be durable. Writes answer 503 until re-opened."""

    retryable = True


class SegmentGoneError(StorageError):
    """A location's bytes are not there: the segment was removed, or is shorter. Clean bytes are a miss then, dirty ones lost."""


class DirtyBytesLostError(StorageError):
    """Acknowledged bytes that are not at the origin cannot be read back. An alarm; 500 InternalError."""


class FormatError(StorageError):
    """The cache directory is of another origin or of a newer format. The start is refused."""


class DamagedError(StorageError):
    """What is on disk contradicts itself in a way recovery must not repair silently. Names `forebay fsck`."""


class LockedError(StorageError):
    """Another process owns the cache directory."""


class OriginError(StorageError):
    """The origin answered with an error, or not at all.

    Attributes:
        status: HTTP status, 0 where there was no answer.
        code: S3 error code, or `Timeout`, `Connection`, `Incomplete`, `BadAnswer`, `Away`.
        body: The origin's error document as received, b"" where there was none.
        outcome_unknown: A write whose request may still have been carried out.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        code: str,
        body: bytes = b"",
        retry_after_s: float | None = None,
        outcome_unknown: bool = False,
    ) -> None:
        super().__init__(message, retry_after_s=retry_after_s)
        self.status = status
        self.code = code
        self.body = body
        self.outcome_unknown = outcome_unknown


class OriginUnavailableError(OriginError):
    """No connection, timeout, cut answer, 5xx: worth a retry, and covered by what is cached."""

    retryable = True


class OriginThrottledError(OriginUnavailableError):
    """503 SlowDown or 429: slow down, then retry."""


class OriginAwayError(OriginUnavailableError):
    """The origin has not answered for a while, so it was not asked this time; nothing was sent. Code `Away`."""


class OriginRefusedError(OriginError):
    """A 4xx about this object or request: an answer, never covered by the cache, retried only on command."""


class OriginSuspendedError(OriginError):
    """A refusal that concerns the bucket or the credentials, not the object; the bucket is probed until it lifts."""

    retryable = True


class BaseUnknownError(StorageError):
    """The origin did not say what it holds, which `on_conflict = quarantine` has to know. 503 with the reason; nothing was done."""

    retryable = True


class DurabilityNotPossibleError(StorageError):
    """The client asked for a disk acknowledgement of a write that only the origin can answer. 400 InvalidRequest."""


class EngineClosedError(StorageError):
    """The engine is stopping or has stopped; nothing was done. 503 SlowDown."""

    retryable = True


class ReadOnlyError(StorageError):
    """The client wrote to a name under a published target, or to one of a manifest. 403 AccessDenied."""


class PublishRefusedError(StorageError):
    """What was to be published cannot be: no such target, or source and target overlap. 400 InvalidRequest with the reason."""


class PublishConflictError(StorageError):
    """Objects lie at the target, or another publish of it came between. 409 with the reason."""


class WarmConflictError(StorageError):
    """A piece of a warm-up's list does not follow on what the job has, or it takes no list. 409 with the reason."""


class GenerationGoneError(StorageError):
    """A listing cannot go on with the generation that it began with. 400 InvalidArgument: the client starts over."""


class NotSupportedError(StorageError):
    """The gateway cannot do this yet, and does nothing instead of something wrong. 501 NotImplemented."""


class NameIgnoredError(NotSupportedError):
    """The origin takes no notice of a name in the query, so it would do something else. 501 with the reason; nothing was done."""
