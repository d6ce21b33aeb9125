import pytest

from storage.errors import DurabilityNotPossibleError
from storage.origin.wire import is_conditional
from storage.policy import Policy
from storage.records import FORMAT, BucketFacts
from storage.types import WriteMode
from storage.writemode import WriteDecision, decide, facts_reason

PLAIN = BucketFacts(FORMAT, "b", exists=True, asked_at_s=0.0)


def facts(**changed: object) -> BucketFacts:
    """Make the facts of a bucket."""
    return BucketFacts(FORMAT, "b", exists=True, asked_at_s=0.0, **changed)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "requested", "mode"),
    [
        (WriteMode.BACK, None, WriteMode.BACK),
        (WriteMode.THROUGH, None, WriteMode.THROUGH),
        (WriteMode.AROUND, None, WriteMode.AROUND),
        (WriteMode.BACK, WriteMode.THROUGH, WriteMode.THROUGH),
        (WriteMode.THROUGH, WriteMode.BACK, WriteMode.BACK),
    ],
)
def test_decide_follows_the_request_then_the_policy_when_nothing_forces_it(
    policy: WriteMode, requested: WriteMode | None, mode: WriteMode
) -> None:
    """What the client asks for comes before the policy, and neither is forced."""
    decision = decide(Policy(write=policy), PLAIN, requested=requested, origin_reason="")

    assert (decision.mode, decision.is_forced) == (mode, False)


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (facts(is_versioned=True), "bucket is versioned"),
        (facts(has_object_lock=True), "bucket has object lock"),
        (facts(default_encryption="aws:kms"), "bucket encrypts with aws:kms"),
        (facts(default_encryption="aws:kms:dsse"), "bucket encrypts with aws:kms:dsse"),
        (facts(etag_is_md5=False), "origin's ETags are not MD5"),
        (facts(default_encryption="AES256"), ""),
        (PLAIN, ""),
    ],
)
def test_facts_reason_names_what_only_the_origin_can_answer(known: BucketFacts, reason: str) -> None:
    """Versions, locks, keys and other ETags need the origin; SSE-S3 changes nothing that a client sees."""
    assert facts_reason(known) == reason


def test_decide_forces_the_origin_when_the_bucket_or_the_request_asks_for_it() -> None:
    """A forced write goes through and is not kept; a policy that keeps nothing still keeps nothing."""
    versioned = decide(Policy(), facts(is_versioned=True), requested=None, origin_reason="")
    locked = decide(Policy(write=WriteMode.AROUND), PLAIN, requested=None, origin_reason="acl")

    assert versioned == WriteDecision(WriteMode.THROUGH, "bucket is versioned", is_forced=True)
    assert locked == WriteDecision(WriteMode.AROUND, "acl", is_forced=True)


def test_decide_refuses_when_the_client_insists_on_the_disk_and_it_cannot_be() -> None:
    """`x-forebay-durability: disk` is never silently turned into something else."""
    with pytest.raises(DurabilityNotPossibleError, match="conditional"):
        decide(Policy(), PLAIN, requested=WriteMode.BACK, origin_reason="conditional")


@pytest.mark.parametrize(
    ("name", "is_it"),
    [
        ("if-match", True),
        ("if-none-match", True),
        ("if-unmodified-since", True),
        ("x-amz-if-match-size", True),
        ("x-amz-copy-source-if-match", True),
        ("x-amz-acl", False),
        ("content-md5", False),
    ],
)
def test_is_conditional_knows_every_condition(name: str, is_it: bool) -> None:
    """A write that depends on what is there does not replace it unconditionally."""
    assert is_conditional((("content-type", "a/b"), (name, "x"))) is is_it
