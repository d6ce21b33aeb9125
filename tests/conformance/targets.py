"""What a suite is run against: an origin itself, or the gateway in front of it; over HTTP or TLS.

Suites want two users that own different buckets. At SeaweedFS these are two identities with accounts of their own; moto knows one
account and looks at no key, so there both users are one.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.end_to_end.origins import (
    ALT_ACCOUNT,
    MAIN_ACCOUNT,
    Account,
    Origin,
    moto_origin,
    seaweed_origin,
)
from tests.end_to_end.processes import gateway
from tests.fakes.certificate import make_certificate

ORIGINS: Final = ("seaweed", "moto")


@dataclass(frozen=True, slots=True)
class User:
    """Whom a suite signs as.

    Attributes:
        account: Who that is at the origin, as owners are shown in its answers.
    """

    access_key: str
    secret_key: str
    account: Account


@dataclass(frozen=True, slots=True)
class Target:
    """What a suite is pointed at.

    Attributes:
        trusted: The file of its certificate, None over HTTP.
    """

    name: str
    endpoint: str
    main: User
    alt: User
    trusted: Path | None


def target_name(origin: str, *, is_bare: bool, is_tls: bool) -> str:
    """Name a target, as in `seaweed-through-tls`."""
    return f"{origin}-{'bare' if is_bare else 'through'}-{'tls' if is_tls else 'http'}"


@contextmanager
def running_target(
    origin: str, directory: Path, *, is_bare: bool, is_tls: bool, has_own_keys: bool
) -> Iterator[Target]:
    """Run an origin of ORIGINS, and unless `is_bare` the gateway in front of it, with what they keep in a directory.

    The second user's key carries its own origin credentials, the first one's does with `has_own_keys`; else it shares the gateway's,
    which are the same account's.
    """
    name = target_name(origin, is_bare=is_bare, is_tls=is_tls)
    certificate = make_certificate(directory) if is_tls else None
    with _running_origin(origin, directory, certificate if is_bare else None) as running:
        if is_bare:
            main, alt = _own_user(MAIN_ACCOUNT), _own_user(ALT_ACCOUNT)
            yield Target(name, running.endpoint, main, alt, running.trusted)
            return
        main, alt = (
            User("suitemain", "suitemainsecret", MAIN_ACCOUNT),
            User("suitealt", "suitealtsecret", ALT_ACCOUNT),
        )
        config = directory / "forebay.toml"
        config.write_text(_key_table(main, is_own=has_own_keys) + _key_table(alt, is_own=True))
        tls = {} if certificate is None else {"tls_cert": str(certificate[0]), "tls_key": str(certificate[1])}
        flags = ("--config", str(config))
        with gateway(running.endpoint, directory / "cache", *flags, **tls) as through:
            yield Target(name, through.endpoint, main, alt, None if certificate is None else certificate[0])


def _key_table(user: User, *, is_own: bool) -> str:
    """Write the settings of a gateway key."""
    rows = {"access_key": user.access_key, "secret_key": user.secret_key}
    if is_own:
        rows["origin_access_key"] = user.account.access_key
        rows["origin_secret_key"] = user.account.secret_key
    return "[[keys]]\n" + "".join(f'{name} = "{value}"\n' for name, value in rows.items()) + "\n"


def _own_user(account: Account) -> User:
    return User(account.access_key, account.secret_key, account)


@contextmanager
def _running_origin(origin: str, directory: Path, certificate: tuple[Path, Path] | None) -> Iterator[Origin]:
    context = (
        moto_origin(certificate) if origin == "moto" else seaweed_origin(directory, certificate=certificate)
    )
    with context as running:
        yield running
