"""What kind of bucket it is at the origin: may a write into it be acknowledged from the disk?

`decide` is the rule; `FactsSource` asks. What the origin will not tell (it denies, does not know the operation, or has no such
configuration) counts as unversioned, not encrypted, not locked. No answer at all is no fact: the old facts stay.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from storage.clock import Clock
from storage.errors import NoSuchBucketError, OriginRefusedError, OriginSuspendedError
from storage.records import FORMAT, BucketFacts

T = TypeVar("T")

_DENIED_CODES: Final = frozenset({"AccessDenied", "AllAccessDisabled", "UnauthorizedAccess"})


@dataclass(frozen=True, slots=True)
class Told:
    """What the origin said of a bucket; None where it would not tell."""

    exists: bool = True
    region: str | None = None
    versioning: str | None = None
    encryption: str | None = None
    has_object_lock: bool | None = None


class BucketQuestions(Protocol):
    """Who answers: `ControlLane`. Each raises OriginError where it cannot."""

    async def head_bucket(self, bucket: str) -> str:
        """The region; NoSuchBucketError where there is no bucket."""
        ...

    async def get_bucket_versioning(self, bucket: str) -> str:
        """`Enabled`, `Suspended` or ""."""
        ...

    async def get_bucket_encryption(self, bucket: str) -> str:
        """The default encryption's algorithm."""
        ...

    async def get_object_lock_configuration(self, bucket: str) -> bool:
        """Whether there is object lock."""
        ...


def decide(bucket: str, told: Told, asked_at_s: float) -> BucketFacts:
    """Turn what was told into facts.

    A suspended bucket still answers version ids and makes delete markers: versioned. ETags are not MD5 under KMS and in
    directory buckets (AWS API_Object, "ETag"; names end with `--x-s3`).
    """
    encryption = told.encryption or ""
    return BucketFacts(
        format=FORMAT,
        bucket=bucket,
        exists=told.exists,
        asked_at_s=asked_at_s,
        region=told.region or "",
        is_versioned=told.versioning in ("Enabled", "Suspended"),
        default_encryption=encryption,
        has_object_lock=bool(told.has_object_lock),
        etag_is_md5=not encryption.startswith("aws:kms") and not bucket.endswith("--x-s3"),
    )


class FactsSource:
    """Asks the origin about buckets."""

    def __init__(self, questions: BucketQuestions, clock: Clock) -> None:
        self._questions = questions
        self._clock = clock

    async def ask(self, bucket: str) -> BucketFacts:
        """Give the facts of a bucket, now; up to four small calls.

        Raises:
            OriginUnavailableError: There was no answer to one of them.
            OriginSuspendedError: The credentials are refused, not the question.
            OverloadedError: The limiter's queue is full or too slow.
        """
        asked_at_s = self._clock.wall_s()
        questions = self._questions
        try:
            told = Told(
                region=await _told(questions.head_bucket(bucket)),
                versioning=await _told(questions.get_bucket_versioning(bucket)),
                encryption=await _told(questions.get_bucket_encryption(bucket)),
                has_object_lock=await _told(questions.get_object_lock_configuration(bucket)),
            )
        except NoSuchBucketError:
            told = Told(exists=False)
        return decide(bucket, told, asked_at_s)


async def _told(question: Awaitable[T]) -> T | None:
    """Wait for an answer; None where the origin will not tell."""
    try:
        return await question
    except OriginRefusedError:
        return None
    except OriginSuspendedError as error:
        if error.code in _DENIED_CODES:
            return None
        raise
