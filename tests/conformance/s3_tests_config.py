"""The configuration file of ceph/s3-tests for a target."""

from urllib.parse import urlsplit

from tests.conformance.targets import Target, User

_TEMPLATE = """\
[DEFAULT]
host = {host}
port = {port}
is_secure = {is_secure}
ssl_verify = False
[fixtures]
bucket prefix = s3t-{{random}}-
iam name prefix = s3-tests-
iam path prefix = /s3-tests/
"""


def suite_config(target: Target) -> str:
    """Write it; the suite's third user, `tenant`, and those of its IAM tests are the second and the first."""
    place = urlsplit(target.endpoint)
    head = _TEMPLATE.format(host=place.hostname, port=place.port, is_secure=place.scheme == "https")
    users = {
        "s3 main": target.main,
        "s3 alt": target.alt,
        "s3 tenant": target.alt,
        "iam": target.main,
        "iam root": target.main,
        "iam alt root": target.alt,
    }
    return head + "".join(_section(name, user) for name, user in users.items())


def _section(name: str, user: User) -> str:
    account = user.account
    lines = [
        f"[{name}]",
        f"display_name = {account.name}",
        f"user_id = {account.account_id}",
        f"email = {account.name}@example.com",
        f"access_key = {user.access_key}",
        f"secret_key = {user.secret_key}",
    ]
    if name == "s3 main":
        lines.append("api_name =")
    if name == "s3 tenant":
        lines.append("tenant =")
    return "\n".join([*lines, ""])
