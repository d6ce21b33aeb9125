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
from storage.origin.facts import FactsSource, Told, decide, needs_write_through

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
    ("bucket", "told", "through", "is_md5"),
    [
        ("data", Told(), False, True),
        ("data", Told(encryption="AES256", versioning="", has_object_lock=False), False, True),
        ("data", Told(encryption="aws:kms"), True, False),
        ("data", Told(encryption="aws:kms:dsse"), True, False),
        ("data", Told(versioning="Enabled"), True, True),
        ("data", Told(versioning="Suspended"), True, True),
        ("data", Told(has_object_lock=True), True, True),
        ("data--use1-az4--x-s3", Told(), True, False),
    ],
)
def test_facts_decide_who_answers_a_write(bucket: str, told: Told, through: bool, is_md5: bool) -> None:
    """Versions, KMS, lock and directory buckets need the origin; SSE-S3 and silence do not."""
    facts = decide(bucket, told, 7.0)

    assert needs_write_through(facts) is through
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
    assert needs_write_through(facts) is False


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
