"""The settings that give each user of a suite a gateway key."""

from collections.abc import Iterable

from tests.end_to_end.origins import Account


def keys_config(users: Iterable[tuple[str, str, Account]]) -> str:
    """Write a config file with a key for each access key, secret and account at the origin."""
    return "".join(
        f'[[keys]]\naccess_key = "{access_key}"\nsecret_key = "{secret_key}"\n\n'
        for access_key, secret_key, _account in users
    )
