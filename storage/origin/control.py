"""The control lane: the rarer calls about buckets, by aiobotocore, behind the same limiter.

Each request is admitted by our limiter. So what asks again below it is switched off: aiobotocore's retries, aiohttp's of a connection
that broke, redirects, and botocore's own search for a bucket's region; what of these is of use is done here, with a ticket each.

aiobotocore's clients are made for one set of credentials and one region, so one is kept for each pair in use; when the credentials
change, the old ones close after their last call.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from functools import partial
from types import SimpleNamespace
from typing import Final, Protocol, Self, TypeVar, cast

import msgspec
from aiobotocore.config import AioConfig  # type: ignore[import-untyped]  # it ships no types
from aiobotocore.httpsession import AIOHTTPSession  # type: ignore[import-untyped]  # as above
from aiobotocore.session import get_session  # type: ignore[import-untyped]  # it ships no types
from botocore.exceptions import (  # type: ignore[import-untyped]  # it ships no types
    BotoCoreError,
    ClientError,
    ConnectTimeoutError,
    HTTPClientError,
    ReadTimeoutError,
)
from botocore.loaders import create_loader  # type: ignore[import-untyped]  # as above

from storage.errors import (
    NoSuchBucketError,
    OriginThrottledError,
    OriginUnavailableError,
    StorageError,
)
from storage.origin.admission import Limiter
from storage.origin.calls import answer_read, unavailable_feedback
from storage.origin.credentials import Credentials, CredentialSource
from storage.origin.documents import ErrorDocument
from storage.origin.endpoint import OriginSettings, Regions, address
from storage.origin.failures import failure_by_code, failure_named
from storage.origin.limiter import Feedback
from storage.origin.retry import CREDENTIAL_CODES, Outcome, classify
from storage.origin.transport import CutError, cause_in_words, no_hidden_retry
from storage.types import Priority

T = TypeVar("T", bound=msgspec.Struct)

_MODELS: Final = create_loader()
"""What S3 looks like, a MB of JSON: read once, not on the event loop again for each new region or key (0.15 s each time)."""

CLIENTS_MAX: Final = 32
"""Regions times credentials in use; the one made first is dropped beyond it."""

_Operation = Callable[..., Awaitable[Mapping[str, object]]]


class BucketEntry(msgspec.Struct, frozen=True):
    """One bucket of ListBuckets."""

    name: str
    created_at_s: float
    region: str = ""


class BucketsOwner(msgspec.Struct, frozen=True):
    """Whom ListBuckets names as the owner of what it lists; empty where the origin says nothing."""

    account_id: str
    display_name: str


class _S3(Protocol):
    """What we use of an aiobotocore S3 client."""

    list_buckets: _Operation
    create_bucket: _Operation
    delete_bucket: _Operation
    head_bucket: _Operation
    get_bucket_location: _Operation
    get_bucket_versioning: _Operation
    get_bucket_encryption: _Operation
    get_object_lock_configuration: _Operation


class _Held:
    """A client, closed when it is dropped and nobody uses it."""

    def __init__(self, client: _S3, stack: AsyncExitStack) -> None:
        self.client = client
        self.stack = stack
        self.users = 0
        self.is_dropped = False

    async def release(self) -> None:
        if self.is_dropped and not self.users:
            await self.stack.aclose()


class _Answer(msgspec.Struct, frozen=True, rename="pascal"):
    """Base of what is read of answers: aiobotocore's own names."""


class _Nothing(_Answer, frozen=True):
    pass


class _Bucket(_Answer, frozen=True):
    name: str
    creation_date: datetime | None = None
    bucket_region: str = ""


class _Owner(_Answer, frozen=True):
    account_id: str | None = msgspec.field(name="ID", default="")
    display_name: str | None = ""


class _Buckets(_Answer, frozen=True):
    buckets: tuple[_Bucket, ...] = ()
    owner: _Owner = _Owner()


class _Head(_Answer, frozen=True):
    bucket_region: str = ""


class _Location(_Answer, frozen=True):
    location_constraint: str | None = None


class _Versioning(_Answer, frozen=True):
    status: str = ""


class _Default(msgspec.Struct, frozen=True):
    algorithm: str = msgspec.field(name="SSEAlgorithm", default="")


class _Rule(_Answer, frozen=True):
    apply_server_side_encryption_by_default: _Default = _Default()


class _Rules(_Answer, frozen=True):
    rules: tuple[_Rule, ...] = ()


class _Encryption(_Answer, frozen=True):
    server_side_encryption_configuration: _Rules = _Rules()


class _LockRules(_Answer, frozen=True):
    object_lock_enabled: str = ""


class _Lock(_Answer, frozen=True):
    object_lock_configuration: _LockRules = _LockRules()


class _Metadata(msgspec.Struct, frozen=True):
    status: int = msgspec.field(name="HTTPStatusCode", default=0)
    headers: dict[str, str] = msgspec.field(name="HTTPHeaders", default_factory=dict)


class _Error(_Answer, frozen=True):
    code: str | None = ""  # an empty element is None
    message: str | None = ""
    region: str | None = ""


class _Refusal(_Answer, frozen=True):
    error: _Error = _Error()
    response_metadata: _Metadata = _Metadata()

    @property
    def region(self) -> str:
        return self.response_metadata.headers.get("x-amz-bucket-region", "") or self.error.region or ""


class _RefusedError(Exception):
    """The origin's refusal of one request."""

    def __init__(self, refusal: _Refusal, failure: StorageError, operation: str) -> None:
        super().__init__(str(failure))
        self.refusal = refusal
        self.failure = failure
        self.operation = operation

    @property
    def code(self) -> str:
        """The document's code; "" for a HEAD, whose code is its status."""
        code = self.refusal.error.code or ""
        return "" if code.isdigit() else code


class _OneRequestSession(AIOHTTPSession):  # type: ignore[misc]  # it has no types
    """aiobotocore's session, but each call is one request."""

    async def _get_session(self, proxy_url: str | None) -> SimpleNamespace:
        session = await super()._get_session(proxy_url)
        return SimpleNamespace(
            request=partial(session.request, allow_redirects=False, middlewares=(no_hidden_retry,))
        )


class ControlLane:
    """Calls about buckets. Use as an async context manager. `regions` is shared with the data lane."""

    def __init__(
        self, settings: OriginSettings, *, limiter: Limiter, credentials: CredentialSource, regions: Regions
    ) -> None:
        self._settings = settings
        self._limiter = limiter
        self._credentials = credentials
        self._regions = regions
        self._held: dict[tuple[Credentials, str], _Held] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for key in list(self._held):
            await self._drop(key)

    def signed_by(self, credentials: CredentialSource) -> "ControlLane":
        """Give a lane that asks with other credentials, behind the same limiter; to be closed like any other."""
        return ControlLane(
            self._settings, limiter=self._limiter, credentials=credentials, regions=self._regions
        )

    async def list_buckets(self) -> tuple[BucketEntry, ...]:
        """Give all buckets of the account."""
        answer = await self._ask(_Buckets, "", lambda s3: s3.list_buckets())
        return tuple(
            BucketEntry(
                bucket.name,
                bucket.creation_date.timestamp() if bucket.creation_date else 0.0,
                bucket.bucket_region,
            )
            for bucket in answer.buckets
        )

    async def owner(self) -> BucketsOwner:
        """Say whose the buckets are."""
        found = (await self._ask(_Buckets, "", lambda s3: s3.list_buckets())).owner
        return BucketsOwner(found.account_id or "", found.display_name or "")

    async def create_bucket(self, bucket: str, region: str = "") -> None:
        """Make a bucket in a region, the settings' by default."""
        region = region or self._settings.region
        self._regions.learn(bucket, region)
        # us-east-1 is what no constraint means, and S3 refuses it as one (AWS API_CreateBucket).
        place = {} if region == "us-east-1" else {"CreateBucketConfiguration": {"LocationConstraint": region}}
        await self._ask(_Nothing, bucket, lambda s3: s3.create_bucket(Bucket=bucket, **place))

    async def delete_bucket(self, bucket: str) -> None:
        """Remove an empty bucket."""
        await self._ask(_Nothing, bucket, lambda s3: s3.delete_bucket(Bucket=bucket))

    async def head_bucket(self, bucket: str) -> str:
        """Give the bucket's region, "" where the origin has none to tell; NoSuchBucketError where there is no bucket."""
        answer = await self._ask(_Head, bucket, lambda s3: s3.head_bucket(Bucket=bucket))
        self._regions.learn(bucket, answer.bucket_region)
        return answer.bucket_region

    async def get_bucket_location(self, bucket: str) -> str:
        """Give the bucket's region as its own document says; `EU` is eu-west-1."""
        answer = await self._ask(_Location, bucket, lambda s3: s3.get_bucket_location(Bucket=bucket))
        place = answer.location_constraint or ""
        return {"": "us-east-1", "EU": "eu-west-1"}.get(place, place)

    async def get_bucket_versioning(self, bucket: str) -> str:
        """Give `Enabled`, `Suspended`, or "" for a bucket that never had versioning."""
        return (
            await self._ask(_Versioning, bucket, lambda s3: s3.get_bucket_versioning(Bucket=bucket))
        ).status

    async def get_bucket_encryption(self, bucket: str) -> str:
        """Give the default encryption's algorithm, "" where the document names none."""
        answer = await self._ask(_Encryption, bucket, lambda s3: s3.get_bucket_encryption(Bucket=bucket))
        rules = answer.server_side_encryption_configuration.rules
        return rules[0].apply_server_side_encryption_by_default.algorithm if rules else ""

    async def get_object_lock_configuration(self, bucket: str) -> bool:
        """Say whether the bucket has object lock."""
        answer = await self._ask(_Lock, bucket, lambda s3: s3.get_object_lock_configuration(Bucket=bucket))
        return answer.object_lock_configuration.object_lock_enabled == "Enabled"

    async def _ask(
        self, shape: type[T], bucket: str, call: Callable[[_S3], Awaitable[Mapping[str, object]]]
    ) -> T:
        """Make one call; once more where its answer told the region or the credentials were renewed."""
        with answer_read(f"a question about bucket {bucket!r}"):
            return await self._asked(shape, bucket, call)

    async def _asked(
        self, shape: type[T], bucket: str, call: Callable[[_S3], Awaitable[Mapping[str, object]]]
    ) -> T:
        for is_last in (False, True):
            credentials = await self._credentials.credentials()
            try:
                return msgspec.convert(await self._once(credentials, bucket, call), shape)
            except _RefusedError as refused:
                if is_last or not await self._is_remedied(refused, bucket, credentials):
                    raise refused.failure from refused.__cause__
            except HTTPClientError as error:
                # A connection that was idle for long may be dead; what is asked here may be asked twice.
                if is_last or not isinstance(error.kwargs.get("error"), CutError):
                    raise _away(error) from error
            except (BotoCoreError, TimeoutError) as error:
                raise _away(error) from error
        raise AssertionError("the last round answers or raises")

    async def _once(
        self,
        credentials: Credentials,
        bucket: str,
        call: Callable[[_S3], Awaitable[Mapping[str, object]]],
    ) -> Mapping[str, object]:
        """Send one request, and let the limiter learn of it."""
        settings = self._settings
        async with (
            self._limiter.admit(Priority.FOREGROUND, bucket=bucket) as ticket,
            self._client(credentials, self._regions.of(bucket)) as s3,
        ):
            try:
                async with asyncio.timeout(settings.connect_s + settings.answer_s):
                    answer = await call(s3)
            except ClientError as error:
                refusal = msgspec.convert(error.response, _Refusal)
                failure = _failure(refusal, bucket, is_head=error.operation_name == "HeadBucket")
                ticket.report(_feedback(failure), getattr(failure, "retry_after_s", None))
                raise _RefusedError(refusal, failure, error.operation_name) from error
            except (BotoCoreError, TimeoutError) as error:
                ticket.report(Feedback.TIMED_OUT if _is_timeout(error) else Feedback.FAILED)
                raise
            ticket.report(Feedback.SUCCESS)
            return answer

    async def _is_remedied(self, refused: "_RefusedError", bucket: str, credentials: Credentials) -> bool:
        refusal = refused.refusal
        if self._regions.learn(bucket, refusal.region):
            return True
        if refusal.error.code in CREDENTIAL_CODES:
            return self._credentials.refused(credentials)
        is_elsewhere = classify(refusal.response_metadata.status, refused.code) is Outcome.ELSEWHERE
        if refusal.region or not is_elsewhere or refused.operation in {"HeadBucket", "CreateBucket"}:
            return False
        return self._regions.learn(bucket, await self._region_told_to_head(bucket, credentials))

    async def _region_told_to_head(self, bucket: str, credentials: Credentials) -> str:
        """Ask for the region of a bucket that is elsewhere: the answer to HeadBucket tells it, a refusal too (AWS API_HeadBucket)."""
        try:
            answer = await self._once(credentials, bucket, lambda s3: s3.head_bucket(Bucket=bucket))
        except _RefusedError as refused:
            return refused.refusal.region
        except (BotoCoreError, TimeoutError):
            return ""
        return msgspec.convert(answer, _Head).bucket_region

    @asynccontextmanager
    async def _client(self, credentials: Credentials, region: str) -> AsyncIterator[_S3]:
        key = (credentials, region)
        if key not in self._held:
            made = await self._make(credentials, region)
            if self._held.setdefault(key, made) is not made:
                await made.stack.aclose()  # another call made one meanwhile
        held = self._held[key]
        held.users += 1
        try:
            for other in [k for k in self._held if k[0] != credentials or len(self._held) > CLIENTS_MAX]:
                if other != key:
                    await self._drop(other)
            yield held.client
        finally:
            held.users -= 1
            await held.release()

    async def _make(self, credentials: Credentials, region: str) -> _Held:
        settings = self._settings
        config = AioConfig(
            s3={"addressing_style": "virtual" if settings.is_virtual_hosted else "path"},
            signature_version="s3v4",
            connect_timeout=settings.connect_s,
            read_timeout=settings.answer_s,
            retries={"total_max_attempts": 1, "mode": "standard"},
            max_pool_connections=settings.connections_max,
            http_session_cls=_OneRequestSession,
        )
        session = get_session()
        session.register_component("data_loader", _MODELS)
        context = session.create_client(
            "s3",
            region_name=region,
            endpoint_url=address(settings, "", "", region=region).url.rstrip("/"),
            verify=settings.ca_bundle or None,
            aws_access_key_id=credentials.access_key,
            aws_secret_access_key=credentials.secret_key,
            aws_session_token=credentials.session_token or None,
            config=config,
        )
        stack = AsyncExitStack()
        client = await stack.enter_async_context(context)
        client.meta.events.register_last("before-parameter-build.s3", _take_as_redirected)
        return _Held(cast("_S3", client), stack)  # aiobotocore has no types

    async def _drop(self, key: tuple[Credentials, str]) -> None:
        held = self._held.pop(key, None)
        if held is not None:
            held.is_dropped = True
            await held.release()


def _take_as_redirected(context: dict[str, dict[str, object]], **_: object) -> None:
    """Keep botocore from asking for the region of a bucket, and from asking again there, of its own accord."""
    context["s3_redirect"]["redirected"] = True


def _is_timeout(error: Exception) -> bool:
    return isinstance(error, (ConnectTimeoutError, ReadTimeoutError, TimeoutError))


def _away(error: Exception) -> OriginUnavailableError:
    if _is_timeout(error):
        return OriginUnavailableError("the origin did not answer in time", status=0, code="Timeout")
    # botocore's own text of an error that it does not know names the classes that it met.
    cause = error.kwargs.get("error") if isinstance(error, HTTPClientError) else None
    why = cause_in_words(cause if isinstance(cause, Exception) else error)
    return OriginUnavailableError(f"no connection to the origin: {why}", status=0, code="Connection")


def _failure(refusal: _Refusal, bucket: str, *, is_head: bool) -> StorageError:
    """Give our exception for aiobotocore's; a HEAD's code is its status."""
    status, error = refusal.response_metadata.status, refusal.error
    code = error.code or ""
    document = ErrorDocument("" if code.isdigit() else code, error.message or "")
    if is_head and status == 404:
        return NoSuchBucketError(f"the origin has no bucket {bucket}")
    return failure_by_code(document) or failure_named(
        status, document, refusal.response_metadata.headers, b"", is_read=True
    )


def _feedback(failure: StorageError) -> Feedback:
    if isinstance(failure, OriginThrottledError):
        return Feedback.THROTTLED
    return unavailable_feedback(failure) if isinstance(failure, OriginUnavailableError) else Feedback.SUCCESS
