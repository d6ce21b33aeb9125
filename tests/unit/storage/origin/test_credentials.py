from pathlib import Path

import pytest
from botocore.exceptions import (  # type: ignore[import-untyped]  # it ships no types
    ClientError,
    CredentialRetrievalError,
    ProfileNotFound,
)

from storage.errors import OriginSuspendedError
from storage.origin.credentials import ChainCredentials, Credentials, StaticCredentials


@pytest.fixture(autouse=True)
def _no_real_chain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))


class Chain:
    """A session and its credentials; fails at loading, or at refreshing where they are loaded."""

    access_key = "AK"
    token = None

    def __init__(self, problem: Exception | None, *, is_loaded: bool) -> None:
        self.secret_key: str | None = "s"
        self.problem = problem
        self._is_loaded = is_loaded

    async def get_credentials(self) -> "Chain":
        if self.problem is not None and not self._is_loaded:
            raise self.problem
        return self

    async def get_frozen_credentials(self) -> "Chain":
        if self.problem is not None:
            raise self.problem
        return self


def write(path: Path, access_key: str) -> None:
    """Write a profile with one key."""
    path.write_text(
        f"[default]\naws_access_key_id = {access_key}\naws_secret_access_key = s\naws_session_token = t\n"
    )


async def test_static_keys_stay() -> None:
    """The settings' keys are given, and there are no others when they are refused."""
    keys = Credentials("AK", "s")
    source = StaticCredentials(keys)

    assert await source.credentials() == keys
    assert source.refused(keys) is False


async def test_chain_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The standard variables are the first link."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AK")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")

    assert await ChainCredentials().credentials() == Credentials("AK", "s")


async def test_chain_takes_rotated_keys_when_the_old_are_refused(tmp_path: Path) -> None:
    """A credentials file that changed is read again once its keys are refused, and not before (B59)."""
    source = ChainCredentials()
    write(tmp_path / "credentials", "OLD")
    old = await source.credentials()
    write(tmp_path / "credentials", "NEW")

    unasked = await source.credentials()
    is_renewed = source.refused(old)
    renewed = await source.credentials()

    assert (old, unasked, is_renewed) == (Credentials("OLD", "s", "t"), old, True)
    assert renewed == Credentials("NEW", "s", "t")


async def test_late_refusal_of_old_keys_keeps_the_new(tmp_path: Path) -> None:
    """Ten calls that were refused with the old keys load the new ones once."""
    source = ChainCredentials()
    write(tmp_path / "credentials", "OLD")
    old = await source.credentials()
    write(tmp_path / "credentials", "NEW")
    source.refused(old)
    new = await source.credentials()
    write(tmp_path / "credentials", "NEWER")

    source.refused(old)

    assert await source.credentials() == new


async def test_empty_chain_is_told() -> None:
    """Without any credentials the error says what to do."""
    with pytest.raises(OriginSuspendedError) as refused:
        await ChainCredentials().credentials()

    assert refused.value.code == "NoCredentials"


def test_secrets_are_not_shown() -> None:
    """A log line of credentials shows the access key and nothing else."""
    assert repr(Credentials("AK", "very secret", "token")) == "Credentials(access_key='AK')"


@pytest.mark.parametrize(
    "problem",
    [
        CredentialRetrievalError(provider="custom-process", error_msg="it failed"),
        ProfileNotFound(profile="none"),
        ClientError({"Error": {"Code": "AccessDenied"}}, "AssumeRoleWithWebIdentity"),
        ConnectionRefusedError("no metadata service"),
        TimeoutError(),
        RuntimeError("Session is closed"),
        ValueError("not JSON"),
    ],
)
@pytest.mark.parametrize("is_loaded", [False, True])
async def test_failing_chain_is_told_as_no_credentials(
    monkeypatch: pytest.MonkeyPatch, problem: Exception, is_loaded: bool
) -> None:
    """Whatever loading or refreshing keys trips over means that there are none now; the next call asks again."""
    chain = Chain(problem, is_loaded=is_loaded)
    monkeypatch.setattr("storage.origin.credentials.get_session", lambda: chain)
    source = ChainCredentials()

    with pytest.raises(OriginSuspendedError) as refused:
        await source.credentials()
    chain.problem = None

    assert (refused.value.status, refused.value.code) == (0, "NoCredentials")
    assert refused.value.__cause__ is problem
    assert await source.credentials() == Credentials("AK", "s")


async def test_chain_without_a_key_is_told_as_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """A set of keys that has holes signs nothing."""
    chain = Chain(None, is_loaded=True)
    chain.secret_key = None
    monkeypatch.setattr("storage.origin.credentials.get_session", lambda: chain)

    with pytest.raises(OriginSuspendedError) as refused:
        await ChainCredentials().credentials()

    assert refused.value.code == "NoCredentials"
