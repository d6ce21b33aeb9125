"""What an operator can set: one table, three sources, one frozen value.

A setting comes from a TOML file, then from a FOREBAY_* variable, then from a flag; the later source wins. Every source gives
text, and one parser a setting turns it into a value, so that all three read the same. Data only: `gateway/app.py` makes the
objects. `TABLE` drives parsing, `--help` and the tables of the documentation.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

from storage.policy import (
    ANY_BUCKET,
    Freshness,
    FreshnessMode,
    OnConflict,
    Policy,
    PolicyTable,
    RetentionPriority,
)
from storage.types import GIB, KIB, MIB, WriteMode

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
E = TypeVar("E", bound=StrEnum)

ENVIRONMENT_PREFIX: Final = "FOREBAY_"

CACHE_SIZE_MIN: Final = 16 * MIB

_UNITS: Final[Mapping[str, int]] = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": KIB * GIB, "tib": KIB * GIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_SECONDS: Final[Mapping[str, float]] = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_NUMBER_AND_UNIT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)", re.ASCII)
_MATCH: Final = re.compile(r"s3://(?P<bucket>\*|[^/*]+)(?:/(?P<prefix>[^*]*)\*?)?")

_URL: Final = "http(s)://HOST[:PORT]"
_ADDRESS: Final = "HOST:PORT, as in 127.0.0.1:9000 or [::1]:9000"
_SIZE: Final = "a size such as 512MiB, 10GiB or 2TB"
_DURATION: Final = "a duration such as 500ms, 60s, 5m, 2h or 7d; a bare number is seconds"


class SettingsError(Exception):
    """A setting is wrong. One line that names it, says where it came from and what is allowed; never shows a secret."""


class Addressing(StrEnum):
    """How the bucket is named in a request to the origin."""

    PATH = "path"
    VIRTUAL = "virtual"
    AUTO = "auto"


class LogLevel(StrEnum):
    """The least severe message that is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address to listen on; port 0 takes any free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Share:
    """A part of another size: a fraction of it, or so many bytes."""

    fraction: float = 0.0
    size_bytes: int = 0

    def of(self, total_bytes: int) -> int:
        """Give the bytes that the share of `total_bytes` comes to."""
        return self.size_bytes or int(self.fraction * total_bytes)


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A key pair that clients sign with. `is_admin` lets it use what lies under `/-/`."""

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False


@dataclass(frozen=True, slots=True)
class Row(Generic[T_co]):
    """One setting of the table.

    Attributes:
        name: As in TOML; the variable and the flag are made from it.
        parse: Reads text; ValueError where it is not allowed.
        default: As text.
        allowed: For people, after "allowed:".
        description: For people, one clause.
        is_secret: Never shown, and not accepted as a flag, which every user of the machine can see.
    """

    name: str
    parse: Callable[[str], T_co]
    default: str
    allowed: str
    description: str
    is_secret: bool = False

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper()

    @property
    def flag(self) -> str:
        """The command-line flag, "" for a secret."""
        return "" if self.is_secret else "--" + self.name.replace("_", "-")


def parse_size(text: str) -> int:
    """Read bytes: a number with B, KiB, MiB, GiB, TiB (or K, M, G, T) or the decimal KB, MB, GB, TB; any case."""
    number, factor = _number_and_factor(text, _UNITS)
    return int(number * factor)


def parse_duration(text: str) -> float:
    """Read seconds: a number with ms, s, m, h or d; without a unit it is seconds."""
    number, factor = _number_and_factor(text, _SECONDS)
    return number * factor


def parse_freshness(text: str) -> Freshness:
    """Read `always`, `immutable`, or a time to live."""
    if text in {FreshnessMode.ALWAYS, FreshnessMode.IMMUTABLE}:
        return Freshness(FreshnessMode(text))
    return Freshness(FreshnessMode.TTL, parse_duration(text))


def parse_address(text: str) -> Address:
    """Read HOST:PORT, an IPv6 host in brackets."""
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    if is_bracketed:
        host = host[1:-1]
    if not colon or not host or (":" in host and not is_bracketed):
        raise ValueError("not an address")
    return Address(host, _whole_number(0, 65535)(port))


def parse_url(text: str) -> str:
    """Read http(s)://HOST[:PORT], without path or credentials; a slash at the end is dropped."""
    url = urlsplit(text)
    # Reading the port is what checks it.
    is_endpoint = url.scheme in {"http", "https"} and url.hostname and (url.port is None or url.port > 0)
    if not is_endpoint or url.path not in {"", "/"} or url.query or url.fragment or "@" in url.netloc:
        raise ValueError("not such a URL")
    return f"{url.scheme}://{url.netloc}"


def parse_share(text: str) -> Share:
    """Read a share of the cache: a percentage, or a size."""
    if not text.endswith("%"):
        return Share(size_bytes=_not_under(1, parse_size)(text))
    fraction = float(text[:-1]) / 100
    if not 0 < fraction <= 1:
        raise ValueError("not a percentage of 1 to 100")
    return Share(fraction=fraction)


def _number_and_factor(text: str, units: Mapping[str, float]) -> tuple[float, float]:
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise ValueError("not a number with a unit")
    return float(match[1]), units[match[2].lower()]


def _text(text: str) -> str:
    return text


def _optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    return lambda text: parse(text) if text else None


def _url_or_none(text: str) -> str:
    return parse_url(text) if text else ""


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip().lower() for name in text.split(",") if name.strip())


def _flag(text: str) -> bool:
    if text not in {"true", "false"}:
        raise ValueError("neither true nor false")
    return text == "true"


def _not_under(least: float, parse: Callable[[str], T]) -> Callable[[str], T]:
    def read(text: str) -> T:
        value = parse(text)
        assert isinstance(value, int | float), value
        if value < least:
            raise ValueError("too small")
        return value

    return read


def _whole_number(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 18 and least <= int(text) <= most):
            raise ValueError("not such a number")
        return int(text)

    return read


def _one_of(kind: type[E]) -> Callable[[str], E]:
    return kind


def _rate(text: str) -> float:
    rate = float(text)
    # Written so that a NaN is refused too.
    if not 0 <= rate < float("inf"):
        raise ValueError("not a rate")
    return rate


def _choices(kind: type[StrEnum]) -> str:
    return ", ".join(kind)


# The table. One row a line, or two: what the formatter would make of it cannot be compared at a glance.
# fmt: off
LISTEN: Final = Row("listen", parse_address, "127.0.0.1:9000", _ADDRESS, "where clients connect")
ORIGIN: Final = Row("origin", _url_or_none, "", _URL, "the S3 endpoint behind the gateway")
CACHE_DIR: Final = Row("cache_dir", _text, "", "a directory", "where the cache and pending writes are kept")
ACCESS_KEY: Final = Row("access_key", _text, "", "an access key id", "what clients sign with; has the admin right")

WRITE: Final = Row("write", _one_of(WriteMode), "back", _choices(WriteMode), "how a write is acknowledged")
FRESHNESS: Final = Row("freshness", parse_freshness, "60s", f"always, immutable, or {_DURATION}",
                       "when the origin must confirm what is cached")
STALE: Final = Row("stale_s", parse_duration, "1h", _DURATION,
                   "how long past its freshness a cached object covers for a failing origin")
NEGATIVE_TTL: Final = Row("negative_ttl", parse_duration, "0s", _DURATION, "how long the origin's 404 is believed")
FLUSH_DELAY: Final = Row("flush_delay", parse_duration, "0s", _DURATION,
                         "how long a write is held back because it may soon be overwritten")
FLUSH_DEADLINE: Final = Row("flush_deadline", parse_duration, "0s", f"{_DURATION}; 0 for none",
                            "after how long a pending write is flushed before others")
ON_CONFLICT: Final = Row("on_conflict", _one_of(OnConflict), "overwrite", _choices(OnConflict),
                         "what a flush does when another writer changed the object")
PRIORITY: Final = Row("priority", _one_of(RetentionPriority), "normal", _choices(RetentionPriority),
                      "how much a cached byte is worth when space is needed")
RELEASE: Final = Row("release_after_flush", _flag, "false", "true, false", "bytes written back are reclaimed first")

POLICY_TABLE: Final = (WRITE, FRESHNESS, STALE, NEGATIVE_TTL, FLUSH_DELAY, FLUSH_DEADLINE, ON_CONFLICT, PRIORITY, RELEASE)
"""What a [[policies]] table may set; at the top level the same names set the policy of all that no table matches."""

TABLE: Final[tuple[Row[object], ...]] = (
    LISTEN,
    Row("endpoint", parse_url, "http://127.0.0.1:9000", _URL, "the gateway that client commands talk to"),
    ORIGIN,
    Row("origin_region", _text, "us-east-1", "a region's name", "the region that requests to the origin are signed for"),
    Row("origin_addressing", _one_of(Addressing), "auto", _choices(Addressing), "how buckets are named at the origin"),
    Row("origin_access_key", _text, "", "an access key id; empty for the standard AWS chain", "signs requests to the origin"),
    Row("origin_secret_key", _text, "", "the key's secret", "signs requests to the origin", is_secret=True),
    Row("origin_session_token", _text, "", "a session token", "goes with a temporary origin key", is_secret=True),
    Row("origin_concurrency", _whole_number(1, 10_000), "64", "1 to 10000", "the most requests to the origin at a time"),
    Row("origin_requests_per_s", _rate, "0", "a number; 0 for no limit", "the most requests a second to the origin"),
    Row("origin_bytes_per_s", parse_size, "0", f"{_SIZE}; 0 for no limit", "the most bytes a second to and from the origin"),
    Row("origin_timeout_s", _not_under(0.1, parse_duration), "60s", f"{_DURATION}; at least 100ms",
        "how long the origin may be silent"),
    CACHE_DIR,
    Row("cache_size", _not_under(CACHE_SIZE_MIN, parse_size), "10GiB", f"{_SIZE}; at least 16MiB",
        "how much the cache may hold"),
    Row("dirty_bytes_max", parse_share, "50%", f"a percentage of cache_size, or {_SIZE}", "how much may wait for its flush"),
    Row("dirty_wait_s", parse_duration, "5s", _DURATION, "how long a write waits above dirty_bytes_max before it goes through"),
    Row("flush_concurrency", _whole_number(1, 1000), "6", "1 to 1000", "the most flushes at a time"),
    Row("flush_bytes_per_s", parse_size, "0", f"{_SIZE}; 0 for no limit", "the most bytes a second that flushes send"),
    Row("upload_ttl", _not_under(60, parse_duration), "7d", f"{_DURATION}; at least 1m",
        "when an upload that nobody completes is dropped"),
    *POLICY_TABLE,
    ACCESS_KEY,
    Row("secret_key", _text, "", "the key's secret", "what clients sign with", is_secret=True),
    Row("tls_cert", _text, "", "a PEM file; empty for plain HTTP", "the certificate chain that clients see"),
    Row("tls_key", _text, "", "a PEM file", "the certificate's private key"),
    Row("domains", _names, "", "host names, comma-separated", "base domains under which the first label is a bucket"),
    Row("metrics_listen", _optional(parse_address), "", f"{_ADDRESS}; empty for that of listen", "where /metrics is served"),
    Row("access_log", _text, "-", "a file, - for standard output, off", "where requests are logged"),
    Row("log_level", _one_of(LogLevel), "info", _choices(LogLevel), "the least severe message that is logged"),
    Row("connections_max", _whole_number(1, 1_000_000), "4096", "1 to 1000000", "the most client connections; others get a 503"),
    Row("body_memory", _not_under(4 * MIB, parse_size), "64MiB", f"{_SIZE}; at least 4MiB",
        "memory for request bodies on their way to the disk"),
    Row("stalled_send_s", _not_under(1, parse_duration), "60s", f"{_DURATION}; at least 1s",
        "when a client that does not read is cut off"),
    Row("shutdown_grace_s", parse_duration, "30s", _DURATION, "how long running requests may take at a stop"),
    Row("seed", _optional(_whole_number(0, 2**53)), "", "a whole number; empty to draw one", "makes jitter repeatable"),
)
"""Every setting that is one value, in the order of the documentation."""

KEY_ID: Final = Row("access_key", _text, "", "an access key id", "what clients sign with")
KEY_SECRET: Final = Row("secret_key", _text, "", "the key's secret", "what clients sign with", is_secret=True)
KEY_ADMIN: Final = Row("admin", _flag, "false", "true, false", "whether the key has the admin right")
KEY_TABLE: Final = (KEY_ID, KEY_SECRET, KEY_ADMIN)
"""What a [[keys]] table holds."""

POLICY_MATCH: Final = Row("match", _text, "", "s3://BUCKET/PREFIX*, where BUCKET may be *, and no bucket or prefix beside it",
                          "where the policy holds")
POLICY_BUCKET: Final = Row("bucket", _text, ANY_BUCKET, "a bucket's name, or *", "where the policy holds")
POLICY_PREFIX: Final = Row("prefix", _text, "", "what keys begin with", "where the policy holds")
POLICY_PLACE_TABLE: Final = (POLICY_MATCH, POLICY_BUCKET, POLICY_PREFIX)
"""How a [[policies]] table says where it holds."""
# fmt: on


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, parsed and checked; `load` makes them. Sizes are bytes, durations seconds, secrets are not in the repr.

    A field that `TABLE` describes is named as its row.

    Attributes:
        keys: From [[keys]] tables; `client_keys` adds the pair of access_key and secret_key.
        policies: From [[policies]] tables, the first match wins; `policy_table` adds the default.
    """

    listen: Address
    endpoint: str
    origin: str
    origin_region: str
    origin_addressing: Addressing
    origin_access_key: str
    origin_secret_key: str = field(repr=False)
    origin_session_token: str = field(repr=False)
    origin_concurrency: int
    origin_requests_per_s: float
    origin_bytes_per_s: int
    origin_timeout_s: float
    cache_dir: str
    cache_size: int
    dirty_bytes_max: Share
    dirty_wait_s: float
    flush_concurrency: int
    flush_bytes_per_s: int
    upload_ttl: float
    write: WriteMode
    freshness: Freshness
    stale_s: float
    negative_ttl: float
    flush_delay: float
    flush_deadline: float
    on_conflict: OnConflict
    priority: RetentionPriority
    release_after_flush: bool
    access_key: str
    secret_key: str = field(repr=False)
    tls_cert: str
    tls_key: str
    domains: tuple[str, ...]
    metrics_listen: Address | None
    access_log: str
    log_level: LogLevel
    connections_max: int
    body_memory: int
    stalled_send_s: float
    shutdown_grace_s: float
    seed: int | None
    keys: tuple[ClientKey, ...] = ()
    policies: tuple[Policy, ...] = ()

    @property
    def client_keys(self) -> tuple[ClientKey, ...]:
        """Every key that clients may sign with; the one of access_key first, with the admin right."""
        own = (ClientKey(self.access_key, self.secret_key, is_admin=True),) if self.access_key else ()
        return own + self.keys

    @property
    def dirty_bytes_limit(self) -> int:
        """The dirty mark in bytes."""
        return self.dirty_bytes_max.of(self.cache_size)

    @property
    def default_policy(self) -> Policy:
        """The policy of what no [[policies]] table matches."""
        return Policy(
            write=self.write,
            freshness=dataclasses.replace(self.freshness, stale_s=self.stale_s),
            negative_ttl_s=self.negative_ttl,
            flush_delay_s=self.flush_delay,
            flush_deadline_s=self.flush_deadline,
            on_conflict=self.on_conflict,
            priority=self.priority,
            release_after_flush=self.release_after_flush,
        )

    def policy_table(self) -> PolicyTable:
        """Make the table that storage asks."""
        return PolicyTable(self.policies, self.default_policy)

    def check_serving(self) -> None:
        """Refuse settings that are enough for a client command but not to serve.

        Raises:
            SettingsError: origin, cache_dir or a key to sign with is missing.
        """
        if not self.origin:
            raise _missing(ORIGIN)
        if not self.cache_dir:
            raise _missing(CACHE_DIR)
        if not self.client_keys:
            raise _missing(ACCESS_KEY)


def load(config_text: str | None, environment: Mapping[str, str], flags: Mapping[str, str]) -> Settings:
    """Read and check all settings.

    Args:
        config_text: The TOML file's content, None without one.
        environment: All variables. Unknown FOREBAY_* are passed over: Kubernetes sets some for a service of that name.
        flags: Flag names without the leading dashes, and their text; only those that were given.

    Raises:
        SettingsError: With one line.
    """
    document = _parse_toml(config_text or "")
    _refuse_unknown(document, [*(row.name for row in TABLE), "keys", "policies"], "config file")
    chosen = {name.replace("-", "_"): text for name, text in flags.items()}
    _refuse_unknown(chosen, [row.name for row in TABLE], "flag")
    _refuse_secret_flags(chosen)
    values = {row.name: _value(row, document, environment, chosen) for row in TABLE}
    settings = Settings(**values)  # type: ignore[arg-type]  # each value is of its own field's parser
    _check_pairs(settings)
    default = _built_policy(lambda: settings.default_policy, "the default policy")
    settings = dataclasses.replace(
        settings,
        keys=tuple(_client_key(table, where) for table, where in _tables(document, "keys")),
        policies=tuple(_policy(table, where, default) for table, where in _tables(document, "policies")),
    )
    _built_policy(settings.policy_table, "config file")
    _check_keys(settings.client_keys)
    return settings


def _parse_toml(text: str) -> dict[str, object]:
    try:
        return {name.replace("-", "_"): value for name, value in tomllib.loads(text).items()}
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"config file: not TOML: {str(error).splitlines()[0]}") from error


def _refuse_unknown(given: Mapping[str, object], known: Iterable[str], where: str) -> None:
    known = list(known)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(sorted(known))}"
            raise SettingsError(f"{where}: {name!r} is no setting; {hint}")


def _refuse_secret_flags(flags: Mapping[str, str]) -> None:
    for row in TABLE:
        if row.is_secret and row.name in flags:
            raise SettingsError(
                f"{row.name} (flag): every user could see it; allowed: {row.variable} or the config file"
            )


def _value(
    row: Row[T], document: Mapping[str, object], environment: Mapping[str, str], flags: Mapping[str, str]
) -> T:
    if row.name in flags:
        return _parsed(row, flags[row.name], row.flag)
    # An empty variable is how compose files say that there is none.
    if environment.get(row.variable):
        return _parsed(row, environment[row.variable], row.variable)
    return _from_table(row, document, "config file", row.parse(row.default))


def _from_table(row: Row[T], table: Mapping[str, object], where: str, default: T) -> T:
    if row.name not in table:
        return default
    text = _toml_text(table[row.name])
    if text is None:
        raise SettingsError(f"{row.name} ({where}): neither text nor a number; allowed: {row.allowed}")
    return _parsed(row, text, where)


def _toml_text(value: object) -> str | None:
    """Write a TOML value as the other sources would; None for tables, dates and lists of anything but text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | str):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    return None


def _parsed(row: Row[T], text: str, where: str) -> T:
    try:
        return row.parse(text)
    except ValueError as error:
        shown = "the value" if row.is_secret else repr(text)
        raise SettingsError(f"{row.name} ({where}): {shown} is wrong; allowed: {row.allowed}") from error


def _tables(document: Mapping[str, object], name: str) -> list[tuple[dict[str, object], str]]:
    """Give the tables of [[name]], each with the words that say where it stands."""
    value = document.get(name, [])
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise SettingsError(f"{name} (config file): not a list of tables; write [[{name}]] before each")
    return [
        (
            {key.replace("-", "_"): item for key, item in table.items()},
            f"config file, [[{name}]] number {number}",
        )
        for number, table in enumerate(value, start=1)
    ]


def _client_key(table: Mapping[str, object], where: str) -> ClientKey:
    _refuse_unknown(table, [row.name for row in KEY_TABLE], where)
    key = ClientKey(
        _from_table(KEY_ID, table, where, ""),
        _from_table(KEY_SECRET, table, where, ""),
        is_admin=_from_table(KEY_ADMIN, table, where, default=False),
    )
    if not key.access_key or not key.secret_key:
        raise SettingsError(f"keys ({where}): access_key and secret_key are both needed")
    return key


def _policy(table: Mapping[str, object], where: str, default: Policy) -> Policy:
    """Read one [[policies]] table; what it leaves out is as in the default policy."""
    _refuse_unknown(table, [row.name for row in (*POLICY_PLACE_TABLE, *POLICY_TABLE)], where)
    bucket, prefix = _policy_place(table, where)
    freshness = _from_table(FRESHNESS, table, where, default.freshness)
    stale_s = _from_table(STALE, table, where, default.freshness.stale_s)
    return _built_policy(
        lambda: Policy(
            bucket=bucket,
            prefix=prefix,
            write=_from_table(WRITE, table, where, default.write),
            freshness=dataclasses.replace(freshness, stale_s=stale_s),
            negative_ttl_s=_from_table(NEGATIVE_TTL, table, where, default.negative_ttl_s),
            flush_delay_s=_from_table(FLUSH_DELAY, table, where, default.flush_delay_s),
            flush_deadline_s=_from_table(FLUSH_DEADLINE, table, where, default.flush_deadline_s),
            on_conflict=_from_table(ON_CONFLICT, table, where, default.on_conflict),
            priority=_from_table(PRIORITY, table, where, default.priority),
            release_after_flush=_from_table(RELEASE, table, where, default.release_after_flush),
        ),
        where,
    )


def _policy_place(table: Mapping[str, object], where: str) -> tuple[str, str]:
    match = _from_table(POLICY_MATCH, table, where, "")
    if not match:
        bucket = _from_table(POLICY_BUCKET, table, where, ANY_BUCKET)
        return bucket, _from_table(POLICY_PREFIX, table, where, "")
    place = _MATCH.fullmatch(match)
    if place is None or "bucket" in table or "prefix" in table:
        raise SettingsError(f"match ({where}): {match!r} is wrong; allowed: {POLICY_MATCH.allowed}")
    return place["bucket"], place["prefix"] or ""


def _built_policy(build: Callable[[], T], where: str) -> T:
    """Turn what the policy's own checks refuse into a line."""
    try:
        return build()
    except ValueError as error:
        raise SettingsError(f"policies ({where}): {error}") from error


def _check_pairs(settings: Settings) -> None:
    pairs = (
        ("tls_cert", "tls_key"),
        ("access_key", "secret_key"),
        ("origin_access_key", "origin_secret_key"),
    )
    for first, second in pairs:
        if bool(getattr(settings, first)) != bool(getattr(settings, second)):
            raise SettingsError(
                f"{first} and {second}: one is set without the other; allowed: both or neither"
            )
    if settings.origin_session_token and not settings.origin_access_key:
        raise SettingsError("origin_session_token: set without origin_access_key; allowed: with it only")
    if settings.dirty_bytes_limit > settings.cache_size:
        raise SettingsError("dirty_bytes_max: more than cache_size; allowed: up to 100%")


def _check_keys(keys: tuple[ClientKey, ...]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key.access_key in seen:
            raise SettingsError(f"keys: access_key {key.access_key!r} is given twice; allowed: each once")
        seen.add(key.access_key)


def _missing(row: Row[str]) -> SettingsError:
    return SettingsError(f"{row.name}: not set; use {row.flag} or {row.variable}; allowed: {row.allowed}")
