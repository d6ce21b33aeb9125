"""Whether a write may be acknowledged from the local disk.

Pure. The gateway answers locally only what it can answer as the origin would. The reasons are shown in `x-cache-reason` and in logs.
"""

import msgspec

from storage.errors import DurabilityNotPossibleError
from storage.policy import Policy
from storage.records import BucketFacts
from storage.types import WriteMode


class WriteDecision(msgspec.Struct, frozen=True, gc=False):
    """A mode, and why it is not write-back where it is not ("" where it is).

    `is_forced` says that the request or its bucket asks for the origin's own answer: what comes of it is not kept,
    since the gateway does not know all that the origin made of it (encryption, versions, locks).
    """

    mode: WriteMode
    reason: str = ""
    is_forced: bool = False


def facts_reason(facts: BucketFacts) -> str:
    """Say what about the bucket asks for the origin's own answer, "" where nothing does."""
    if facts.is_versioned:
        return "bucket is versioned"
    if facts.has_object_lock:
        return "bucket has object lock"
    if facts.default_encryption not in {"", "AES256"}:
        return f"bucket encrypts with {facts.default_encryption}"
    if not facts.etag_is_md5:
        return "origin's ETags are not MD5"
    return ""


def late_reason(facts: BucketFacts) -> str:
    """Say why a write that was decided by older facts waits for the origin before it is acknowledged; "" where it need not.

    What was promised of an ETag holds as it was decided.
    """
    return facts_reason(msgspec.structs.replace(facts, etag_is_md5=True))


def decide(
    policy: Policy, facts: BucketFacts, *, requested: WriteMode | None, origin_reason: str
) -> WriteDecision:
    """Choose how one write is acknowledged.

    Raises:
        DurabilityNotPossibleError: The client insisted on the disk, and it cannot be.
    """
    reason = origin_reason or facts_reason(facts)
    wanted = requested or policy.write
    if not reason:
        return WriteDecision(wanted, "" if wanted is WriteMode.BACK else "policy or request")
    if requested is WriteMode.BACK:
        raise DurabilityNotPossibleError(f"x-forebay-durability: disk is not possible here: {reason}")
    return WriteDecision(
        WriteMode.AROUND if wanted is WriteMode.AROUND else WriteMode.THROUGH, reason, is_forced=True
    )
