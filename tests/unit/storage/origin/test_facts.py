import pytest

from storage.clock import SystemClock
from storage.errors import (
    NoSuchBucketError,
    OriginError,
    OriginRefusedError,
    OriginSuspendedError,
    OriginUnavailableError,
    StorageError,
)
from storage.origin.facts import FactsSource, Told, decide

DENIED = OriginSuspendedError("no", status=403, code="AccessDenied")
NOT_CONFIGURED = OriginRefusedError("none", status=404, code="ObjectLockConfigurationNotFoundError")
NOT_IMPLEMENTED = OriginRefusedError("no", status=501, code="NotImplemented")


class Origin:
    """Answers as it is told; an exception is raised."""

    def __init__(self, **answers: str | bool | StorageError) -> None:
        self.answers: dict[str, str | bool | StorageError] = {
            "head": "eu-west-1",
            "versioning": "",
            "encryption": "AES256",
            "lock": False,
            **answers,
        }
        self.asked: list[str] = []

    def _text(self, name: str, bucket: str) -> str:
        self.asked.append(bucket)
        answer = self.answers[name]
        if isinstance(answer, StorageError):
            raise answer
        return str(answer)

    async def head_bucket(self, bucket: str) -> str:
        return self._text("head", bucket)

    async def get_bucket_versioning(self, bucket: str) -> str:
        return self._text("versioning", bucket)

    async def get_bucket_encryption(self, bucket: str) -> str:
        return self._text("encryption", bucket)

    async def get_object_lock_configuration(self, bucket: str) -> bool:
        return self._text("lock", bucket) == "True"


@pytest.mark.parametrize(
    ("bucket", "told", "is_plain", "is_md5"),
    [
        ("data", Told(), True, True),
        ("data", Told(encryption="AES256", versioning="", has_object_lock=False), True, True),
        ("data", Told(encryption="aws:kms"), False, False),
        ("data", Told(encryption="aws:kms:dsse"), False, False),
        ("data", Told(versioning="Enabled"), False, True),
        ("data", Told(versioning="Suspended"), False, True),
        ("data", Told(has_object_lock=True), False, True),
        ("data--use1-az4--x-s3", Told(), False, False),
    ],
)
def test_facts_say_what_a_bucket_is(bucket: str, told: Told, is_plain: bool, is_md5: bool) -> None:
    """Versions, KMS, lock and directory buckets are no plain buckets; with SSE-S3, or told nothing of, one is."""
    facts = decide(bucket, told, 7.0)

    is_unmarked = not facts.is_versioned and not facts.has_object_lock
    assert (is_unmarked and facts.etag_is_md5) is is_plain
    assert facts.etag_is_md5 is is_md5
    assert facts.asked_at_s == 7.0


async def test_ask_puts_the_answers_together() -> None:
    """All four answers stand in the facts."""
    origin = Origin(versioning="Enabled", lock=True)

    facts = await FactsSource(origin, SystemClock()).ask("data")

    assert origin.asked == ["data"] * 4
    assert (facts.bucket, facts.exists, facts.region) == ("data", True, "eu-west-1")
    assert (facts.is_versioned, facts.default_encryption, facts.has_object_lock) == (True, "AES256", True)


@pytest.mark.parametrize("refusal", [DENIED, NOT_CONFIGURED, NOT_IMPLEMENTED])
async def test_what_is_not_told_counts_as_plain(refusal: OriginError) -> None:
    """Denied, unknown and not configured all mean: unversioned, not encrypted, not locked."""
    source = FactsSource(
        Origin(head=refusal, versioning=refusal, encryption=refusal, lock=refusal), SystemClock()
    )

    facts = await source.ask("data")

    assert facts.exists is True
    assert (facts.is_versioned, facts.default_encryption, facts.has_object_lock) == (False, "", False)


@pytest.mark.parametrize("question", ["head", "versioning"])
async def test_missing_bucket_is_a_fact(question: str) -> None:
    """A bucket that is not there, or goes while we ask, does not exist."""
    source = FactsSource(Origin(**{question: NoSuchBucketError("gone")}), SystemClock())

    assert (await source.ask("data")).exists is False


@pytest.mark.parametrize(
    "failure",
    [
        OriginUnavailableError("away", status=0, code="Timeout"),
        OriginSuspendedError("old", status=400, code="ExpiredToken"),
    ],
)
@pytest.mark.parametrize("question", ["head", "versioning", "encryption", "lock"])
async def test_no_answer_is_no_fact(failure: OriginError, question: str) -> None:
    """An origin that is away, or refuses our keys, leaves the old facts in force."""
    source = FactsSource(Origin(**{question: failure}), SystemClock())

    with pytest.raises(type(failure)):
        await source.ask("data")
