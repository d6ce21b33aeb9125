"""The data lane: S3 operations at the origin as plain calls with plain values.

Each method is one S3 operation: build the request, let `Caller` carry it, check and read the answer. ETags come and go
without quotes, keys as text, ranges half-open. Errors are those of storage.errors; methods name only what is particular.

A write's error says in `outcome_unknown` whether it may have been carried out or may still be; an answer says in
`is_earlier_unknown` that an attempt before it may still land. A write whose body `is_repeatable` is sent again only where a
pooled connection turned out dead, or a key, a clock or a region was corrected.
"""

import asyncio
import base64
import copy
import hashlib
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final, Self

from storage.clock import Clock
from storage.errors import (
    NoSuchBucketError,
    NoSuchKeyError,
    NoSuchVersionError,
    ObjectChangedError,
    OriginError,
    OriginRefusedError,
    StorageError,
)
from storage.origin.admission import Limiter
from storage.origin.answers import (
    DeletesAnswer,
    Headers,
    OriginAnswer,
    RawAnswer,
    WriteAnswer,
    made_by,
    written,
    written_without_etag,
)
from storage.origin.calls import Answer, Call, Caller, ErrorAnswer, History, judged
from storage.origin.counters import OriginCounters
from storage.origin.credentials import CredentialSource
from storage.origin.documents import (
    DELETE_KEYS_MAX,
    MAY_LAND,
    DeleteResult,
    ListPage,
    PageRequest,
    can_be_named,
    parse_delete_results,
    parse_list_page,
    write_delete,
)
from storage.origin.endpoint import OriginSettings, Regions
from storage.origin.multipart import MultipartClient
from storage.origin.presence import Presence
from storage.origin.relayed import passed_headers
from storage.origin.retry import CREDENTIAL_CODES
from storage.origin.wire import (
    OriginObject,
    OutgoingBody,
    bad_answer,
    check_answer,
    condition_headers,
    copy_source,
    digest_headers,
    is_conditional,
    parse_part,
    range_header,
)
from storage.types import NULL_VERSION, ByteRange, ObjectName, PartSpan, Priority, RangeSpec

log = logging.getLogger(__name__)

SINGLE_DELETES_MAX: Final = 16
"""Deletes in flight of one batch where the origin knows no batches."""

HEADS_MAX: Final = 2
"""So often an object is asked for by HEAD where the first says that it is not there and a GET that it is."""

COVERED_ANSWER_S: Final = 5.0
"""Longest wait for a description where a version that is cached already can be served without it."""

_MAY_LAND: Final = "an earlier attempt may still land"

_CHECKSUM_MODE: Final = ("x-amz-checksum-mode", "ENABLED")


class OriginClient(MultipartClient):
    """The origin's data lane. Use as an async context manager, on the loop that calls it."""

    def __init__(
        self,
        settings: OriginSettings,
        *,
        limiter: Limiter,
        credentials: CredentialSource,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        super().__init__(Caller(settings, limiter=limiter, credentials=credentials, clock=clock, rng=rng))
        self._presence = Presence(self._caller, clock)
        self._knows_batches = True

    async def __aenter__(self) -> Self:
        await self._caller.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._caller.close()

    def signed_by(self, credentials: CredentialSource) -> Self:
        """Give a client that asks with other credentials; see `Caller.signed_by`."""
        other = copy.copy(self)
        other._caller = self._caller.signed_by(credentials)  # noqa: SLF001  of the same class
        return other

    def at_priority(self, priority: Priority) -> Self:
        """Give a client for who asks again itself, whose calls all have one priority; see `Caller.at_priority`."""
        other = copy.copy(self)
        other._caller = self._caller.at_priority(priority)  # noqa: SLF001  of the same class
        return other

    @property
    def counters(self) -> OriginCounters:
        """Counts since the start, for telemetry."""
        return self._caller.counters

    @property
    def regions(self) -> Regions:
        """What is known of the buckets' regions."""
        return self._caller.regions

    @property
    def is_s3(self) -> bool:
        """Whether the origin is Amazon S3 itself, which knows what it documents."""
        return self._caller.is_s3

    # --- Objects -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def get_object(
        self,
        name: ObjectName,
        wanted: ByteRange | RangeSpec | None = None,
        *,
        if_match: str = "",
        if_none_match: str = "",
        priority: Priority = Priority.FOREGROUND,
        on_turn: Callable[[], object] | None = None,
    ) -> AsyncIterator[OriginAnswer]:
        """Open an object, or one version of it, or a range of either. `on_turn` is called when the request may go; see `Call`.

        An origin that ignores the range and sends the whole object gives the range as well, and is counted.

        A 412, or another ETag than `if_match` from an origin that ignores conditions, is ObjectChangedError. With
        `if_none_match` a 304 gives an answer that is `not_modified`. A range behind the end is OriginRefusedError 416.
        NoSuchKeyError and NoSuchBucketError as for `head_object`.
        """
        headers = (*condition_headers(if_match, if_none_match), _CHECKSUM_MODE)
        if wanted is not None:
            headers = (*headers, ("range", range_header(wanted)))
        call = Call(
            "GetObject",
            "GET",
            name.bucket,
            name.key,
            query=_version_query(name),
            headers=headers,
            priority=priority,
            bytes_hint=wanted.length if isinstance(wanted, ByteRange) else 0,
            on_turn=on_turn,
        )

        async def opened(answer: Answer) -> OriginAnswer:
            if answer.status == 304 and if_none_match:
                return OriginAnswer(answer, None)
            checked = check_answer(answer.status, answer.headers, wanted=wanted, if_match=if_match)
            _check_version(name, checked.object)
            if wanted is not None and self.counters.count_range(is_ignored=checked.is_range_ignored):
                log.warning("the origin ignores ranges: each costs all that lies before its end (%s)", name)
            return OriginAnswer(answer, checked)

        history = History()
        try:
            answer = await self._caller.run(call, opened, history)
        except NoSuchKeyError:
            if history.lacks_reason:
                await self._presence.check_bucket(name.bucket, priority, within_s=None)
            raise
        except OriginRefusedError as error:
            if error.status == 412 and if_match:
                raise ObjectChangedError(f"{name} is no longer {if_match}") from error
            raise
        try:
            yield answer
        finally:
            answer.close()

    async def head_object(
        self,
        name: ObjectName,
        *,
        if_none_match: str = "",
        priority: Priority = Priority.FOREGROUND,
        is_covered: bool = False,
        is_retried: bool = True,
    ) -> OriginObject | None:
        """Describe an object or one version of it; None where `if_none_match` names its current version.

        A 404 is NoSuchKeyError only where the origin says that it is the key, and NoSuchBucketError where it says that it is the
        bucket: a HEAD seldom says which, so a GET of the first byte follows (`storage/origin/presence.py`).

        `is_covered` says that the caller can do without: no retry then, and OriginUnavailableError (Timeout) after
        COVERED_ANSWER_S, the waits for admission and credentials included. `is_retried` as for `Call`.
        """
        headers = (*condition_headers("", if_none_match), _CHECKSUM_MODE)
        call = Call(
            "HeadObject",
            "HEAD",
            name.bucket,
            name.key,
            query=_version_query(name),
            headers=headers,
            priority=priority,
            is_retried=is_retried,
            within_s=COVERED_ANSWER_S if is_covered else None,
        )

        async def described(answer: Answer) -> OriginObject | None:
            answer.close()
            if answer.status == 304 and if_none_match:
                return None
            found = check_answer(answer.status, answer.headers, wanted=None).object
            _check_version(name, found)
            return found

        for _ in range(1 if is_covered else HEADS_MAX):
            history = History()
            try:
                return await self._caller.run(call, described, history)
            except NoSuchKeyError:
                if not history.lacks_reason:
                    raise
            await self._presence.explain(self._caller, call)
        raise bad_answer(f"HEAD does not find what GET does: {name}")

    async def head_part(self, name: ObjectName, number: int, *, if_match: str) -> PartSpan:
        """Say which bytes of a version one part of its upload is (AWS API_HeadObject, partNumber).

        Raises:
            ObjectChangedError: The origin holds another version.
            OriginRefusedError: 416, there is no such part.
        """
        headers = (*condition_headers(if_match, ""), _CHECKSUM_MODE)
        query = (("partNumber", str(number)), *_version_query(name))
        call = Call("HeadObject", "HEAD", name.bucket, name.key, query=query, headers=headers)

        async def described(answer: Answer) -> PartSpan:
            answer.close()
            return parse_part(answer.status, answer.headers, if_match=if_match)

        try:
            return await self._caller.run(call, described)
        except NoSuchKeyError as error:
            raise ObjectChangedError(f"{name} is not at the origin any more") from error
        except OriginRefusedError as error:
            if error.status == 412:
                raise ObjectChangedError(f"{name} is no longer {if_match}") from error
            raise

    async def put_object(
        self,
        name: ObjectName,
        headers: Headers,
        body: OutgoingBody,
        *,
        if_match: str = "",
        if_none_match: str = "",
        priority: Priority = Priority.FOREGROUND,
    ) -> WriteAnswer:
        """Store an object. `headers` is `wire.object_headers`; digests and checksums come from `body`.

        An error raised by the body's source ends the call as it is, with the connection cut before the body is whole.
        A conditional put is not repeated on a dead connection: its first attempt could make the second fail.
        """
        conditioned = headers + condition_headers(if_match, if_none_match)
        call = Call(
            "PutObject",
            "PUT",
            name.bucket,
            name.key,
            headers=conditioned + digest_headers(body),
            body=body,
            priority=priority,
            is_read=False,
            is_idempotent=not is_conditional(conditioned),
            bytes_hint=body.size,
        )
        return await self._caller.run(call, written)

    async def delete_object(
        self,
        name: ObjectName,
        *,
        headers: Headers = (),
        priority: Priority = Priority.FOREGROUND,
    ) -> WriteAnswer:
        """Delete an object, or one of its versions; success also where there was none, however the origin says so.

        Not so a conditional delete: where it names an object, one that is not there is NoSuchKeyError.
        """
        call = Call(
            "DeleteObject",
            "DELETE",
            name.bucket,
            name.key,
            query=_version_query(name),
            headers=headers,
            priority=priority,
            is_read=False,
            is_idempotent=not is_conditional(headers),
        )
        history = History()
        try:
            return await self._caller.run(call, written_without_etag, history)
        except NoSuchKeyError:
            # A 404 without its document may as well be of a proxy, or of a bucket that is gone.
            if not history.has_document or is_conditional(headers):
                raise
            return WriteAnswer("", is_earlier_unknown=history.unknown is not None)

    async def delete_objects(
        self, bucket: str, keys: tuple[str, ...], *, priority: Priority = Priority.FOREGROUND
    ) -> DeletesAnswer:
        """Delete up to 1000 different keys, each settled by its own line.

        Keys that XML cannot carry, and all keys where the origin knows no batch, are deleted one by one. A key that the
        answer does not mention has the code `Incomplete`. An error that concerns the whole batch is raised.
        """
        assert len(set(keys)) == len(keys) <= DELETE_KEYS_MAX, "a batch names each key once"
        together = tuple(key for key in keys if can_be_named(key)) if self._knows_batches else ()
        told: dict[str, DeleteResult] = {}
        is_earlier_unknown = lacks_batches = False
        if together:
            history = History()
            try:
                told, is_earlier_unknown = await self._delete_batch(bucket, together, priority, history)
            except (OriginRefusedError, NoSuchKeyError, NoSuchBucketError) as error:
                lacks_batches = _knows_no_batch(error, history)
                if not lacks_batches:
                    raise
                together = ()
        alone = tuple(key for key in keys if key not in set(together))
        singly = await self._delete_singly(bucket, alone, priority)
        if lacks_batches and any(not result.code for result in singly.values()):
            # It takes deletes, so it was the batch that it does not know.
            self._knows_batches = False
        told.update(singly)
        results = tuple(
            told.get(key) or DeleteResult(key, "Incomplete", "no line in the answer") for key in keys
        )
        return DeletesAnswer(results, is_earlier_unknown)

    async def copy_object(
        self,
        source: ObjectName,
        target: ObjectName,
        headers: Headers = (),
        *,
        priority: Priority = Priority.FOREGROUND,
    ) -> WriteAnswer:
        """Copy an object, or one version of it, at the origin; an error inside a 200 is raised."""
        call = Call(
            "CopyObject",
            "PUT",
            target.bucket,
            target.key,
            headers=(copy_source(source), *headers),
            priority=priority,
            is_read=False,
            is_idempotent=not is_conditional(headers),
        )
        return await self._caller.run(call, made_by)

    async def list_objects_v2(self, page: PageRequest) -> ListPage:
        """Give one page of a listing."""
        place = ("continuation-token", page.token) if page.token else ("start-after", page.start_after)
        owner = ("fetch-owner", "true" if page.with_owner else "")
        optional = (("prefix", page.prefix), ("delimiter", page.delimiter), place, owner)
        query = (
            ("list-type", "2"),
            ("encoding-type", "url"),
            ("max-keys", str(page.max_keys)),
            *((name, value) for name, value in optional if value),
        )
        call = Call("ListObjectsV2", "GET", page.bucket, query=query)

        async def listed(answer: Answer) -> ListPage:
            return parse_list_page(await answer.document())

        return await self._caller.run(call, listed)

    # --- Anything else -----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def request(  # noqa: PLR0913 - all that a request has
        self,
        method: str,
        name: ObjectName,
        *,
        operation: str = "PassThrough",
        query: Headers = (),
        headers: Headers = (),
        body: bytes | OutgoingBody = b"",
        is_read: bool | None = None,
        is_repeatable: bool = False,
    ) -> AsyncIterator[RawAnswer]:
        """Pass an operation through, signed anew, and give the answer as it came, an error answer too.

        `name.key` "" addresses the bucket, both "" the service. Headers of the connection and of the client's signature are
        left out. A read, which GET and HEAD are unless told otherwise, is retried as reads are, where its body is at hand;
        anything else is sent once, but for what `is_repeatable` on a pooled connection that turned out dead.

        What concerns the gateway and not the client is an error and no answer: a refusal of the gateway's own key or clock,
        and a redirect, which would send the client past the gateway.

        Raises:
            OriginUnavailableError: There was no answer; `outcome_unknown` for a write.
            OriginError: Such a refusal or redirect, that no correction helped against.
            OverloadedError: As for all calls.
        """
        has_body_at_hand = not isinstance(body, OutgoingBody) or body.is_repeatable
        is_read = (method in ("GET", "HEAD") if is_read is None else is_read) and has_body_at_hand
        call = Call(
            operation,
            method,
            name.bucket,
            name.key,
            query=query,
            headers=passed_headers(headers),
            body=body,
            is_read=is_read,
            is_idempotent=is_read or is_repeatable,
            bytes_hint=body.size if isinstance(body, OutgoingBody) else len(body),
        )

        async def as_it_is(answer: Answer) -> Answer:
            return answer

        history = History()
        answer: Answer | ErrorAnswer
        try:
            answer = opened = await self._caller.run(call, as_it_is, history)
            is_unknown = opened.is_earlier_unknown
        except StorageError as error:
            if history.answer is None or _is_about_us(error):
                raise
            answer = history.answer
            # A failure after an attempt without an answer has that one's; `run` raises it in place of the answer.
            is_unknown = isinstance(error, OriginError) and error.outcome_unknown
        try:
            yield RawAnswer(answer, is_unknown=is_unknown)
        finally:
            if isinstance(answer, Answer):
                answer.close()

    # --- Parts of the above ------------------------------------------------------------------------------------------

    async def _delete_batch(
        self, bucket: str, keys: tuple[str, ...], priority: Priority, history: History
    ) -> tuple[dict[str, DeleteResult], bool]:
        body = write_delete(keys)
        digest = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        call = Call(
            "DeleteObjects",
            "POST",
            bucket,
            query=(("delete", ""),),
            headers=(("content-type", "application/xml"), ("content-md5", digest)),
            body=body,
            priority=priority,
            is_read=False,
        )

        async def settled(answer: Answer) -> tuple[dict[str, DeleteResult], bool]:
            results = parse_delete_results(await judged(answer))
            answer.teach_lines(result.code for result in results)
            answer.close()
            return {result.key: result for result in results}, answer.is_earlier_unknown

        return await self._caller.run(call, settled, history)

    async def _delete_singly(
        self, bucket: str, keys: tuple[str, ...], priority: Priority
    ) -> dict[str, DeleteResult]:
        told: dict[str, DeleteResult] = {}

        async def delete(key: str) -> None:
            try:
                answer = await self.delete_object(ObjectName(bucket, key), priority=priority)
            except OriginError as error:
                told[key] = DeleteResult(key, error.code, str(error))
            except StorageError as error:
                told[key] = DeleteResult(key, type(error).__name__.removesuffix("Error"), str(error))
            else:
                is_known = not answer.is_earlier_unknown
                told[key] = DeleteResult(key) if is_known else DeleteResult(key, MAY_LAND, _MAY_LAND)

        for start in range(0, len(keys), SINGLE_DELETES_MAX):
            async with asyncio.TaskGroup() as group:
                for key in keys[start : start + SINGLE_DELETES_MAX]:
                    group.create_task(delete(key))
        return told


def _version_query(name: ObjectName) -> Headers:
    return (("versionId", name.version_id),) if name.version_id else ()


def _check_version(name: ObjectName, found: OriginObject) -> None:
    """Refuse an answer about another version than was asked for.

    An origin without versions takes no notice of the id and gives what it has; SeaweedFS does so in a bucket that never
    had versions. The version `null` may go without its name.

    Raises:
        NoSuchVersionError: It is one.
    """
    if not name.version_id or found.version_id == name.version_id:
        return
    if name.version_id == NULL_VERSION and not found.version_id:
        return
    raise NoSuchVersionError(f"asked for {name}, the origin told of version {found.version_id!r:.100}")


def _knows_no_batch(error: StorageError, history: History) -> bool:
    """Whether a refusal of DeleteObjects says that there is no such operation: by status, code, or a 404 that names no bucket."""
    if isinstance(error, OriginError):
        return error.status in (404, 405, 501) or error.code in ("MethodNotAllowed", "NotImplemented")
    return isinstance(error, NoSuchKeyError) or not history.has_document


def _is_about_us(error: StorageError) -> bool:
    """Whether an error answer concerns who and where the gateway is, so that its client could do nothing about it."""
    if not isinstance(error, OriginError):
        return False
    is_redirect = 300 <= error.status < 400
    return is_redirect or error.code in CREDENTIAL_CODES | {"SignatureDoesNotMatch", "RequestTimeTooSkewed"}
