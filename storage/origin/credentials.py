"""Who signs for the origin: static keys, or the standard AWS chain with its refresh.

The chain is aiobotocore's: environment, profile files, container and instance roles, web identity. Refreshable credentials
renew themselves before they expire. Keys of a file do not, so when the origin refuses them the chain is walked anew: that is
how rotated keys come into use without a restart.
"""

from dataclasses import dataclass, field
from typing import Protocol, cast

from aiobotocore.session import get_session  # type: ignore[import-untyped]  # it ships no types

from storage.errors import OriginSuspendedError
from storage.words import in_words


@dataclass(frozen=True, slots=True)
class Credentials:
    """One set of keys. `session_token` is "" for long-lived ones."""

    access_key: str
    secret_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


class CredentialSource(Protocol):
    """Where the signer gets its keys."""

    async def credentials(self) -> Credentials:
        """Give keys that are good now.

        Raises:
            OriginSuspendedError: Code NoCredentials, there are none at the moment.
        """
        ...

    def refused(self, credentials: Credentials) -> bool:
        """Learn that the origin refuses these keys; say whether the next call may give others."""
        ...


class StaticCredentials:
    """The keys of the settings; they never change."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    async def credentials(self) -> Credentials:
        """Give the keys."""
        return self._credentials

    def refused(self, credentials: Credentials) -> bool:
        """Say that there are no others."""
        return credentials != self._credentials


class _Frozen(Protocol):
    access_key: str | None
    secret_key: str | None
    token: str | None


class _Chained(Protocol):
    async def get_frozen_credentials(self) -> _Frozen: ...


class _Session(Protocol):
    async def get_credentials(self) -> _Chained | None: ...


class ChainCredentials:
    """The standard AWS chain. A call costs microseconds unless keys are loaded or refreshed."""

    def __init__(self, profile: str = "") -> None:
        """Walk the chain as it stands, or for a profile of the AWS configuration files."""
        self._profile = profile
        self._chained: _Chained | None = None
        self._given: Credentials | None = None

    async def credentials(self) -> Credentials:
        """Give the chain's keys, loading or refreshing them first where needed."""
        try:
            frozen = await self._frozen()
        except Exception as error:
            # Links of the chain read files, run programs and ask other services: what they raise has no common base.
            raise _none(f"the chain of credentials failed: {in_words(error):.500}") from error
        if frozen is None or not frozen.access_key or not frozen.secret_key:
            raise _none("set the origin's keys or provide the standard AWS chain")
        self._given = Credentials(frozen.access_key, frozen.secret_key, frozen.token or "")
        return self._given

    def refused(self, credentials: Credentials) -> bool:
        """Walk the chain anew at the next call, unless newer keys are in use already."""
        if credentials == self._given:
            self._chained = None
        return True

    async def _frozen(self) -> _Frozen | None:
        if self._chained is None:
            made = get_session()
            if self._profile:
                made.set_config_variable("profile", self._profile)
            session = cast("_Session", made)  # aiobotocore has no types
            self._chained = await session.get_credentials()
        return None if self._chained is None else await self._chained.get_frozen_credentials()


def _none(reason: str) -> OriginSuspendedError:
    return OriginSuspendedError(f"no credentials for the origin: {reason}", status=0, code="NoCredentials")
