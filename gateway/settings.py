"""What an operator can set: three sources, one frozen value.

A setting comes from a TOML file, then from a FOREBAY_* variable, then from a flag; the later source wins. Every source gives
text, and the one parser of the setting's row (`gateway/setting_rows.py`) turns it into a value, so that all three read the same.
Data only: `gateway/app.py` makes the objects.
"""

import dataclasses
import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gateway.grants import EVERYTHING, GRANTS_MAX, NOTHING, Access, Grant, Right
from gateway.setting_rows import (
    ACCESS_KEY,
    CACHE_DIR,
    FLUSH_DEADLINE,
    FLUSH_DELAY,
    FRESHNESS,
    KEY_ADMIN,
    KEY_ANONYMOUS,
    KEY_GRANTS,
    KEY_ID,
    KEY_ORIGIN_ID,
    KEY_ORIGIN_PROFILE,
    KEY_ORIGIN_SECRET,
    KEY_ORIGIN_TABLE,
    KEY_ORIGIN_TOKEN,
    KEY_SECRET,
    KEY_TABLE,
    LISTING_TTL,
    NEGATIVE_TTL,
    ON_CONFLICT,
    ORIGIN,
    POLICY_BUCKET,
    POLICY_MATCH,
    POLICY_ONLY_TABLE,
    POLICY_PLACE_TABLE,
    POLICY_PREFIX,
    POLICY_TABLE,
    PRIORITY,
    PUBLISHED,
    RELEASE,
    STALE,
    TABLE,
    WRITE,
    Row,
)
from gateway.setting_values import Address, Addressing, LogLevel, OriginKeys, Share
from gateway.toml_lines import TableLines, tables_of
from storage.policy import ANY_BUCKET, Freshness, OnConflict, Policy, PolicyTable, RetentionPriority
from storage.publish import Targets
from storage.types import WriteMode

T = TypeVar("T")

_MATCH: Final = re.compile(r"s3://(?P<bucket>\*|[^/*]+)(?:/(?P<prefix>[^*]*)\*?)?")


@dataclass(frozen=True, slots=True)
class _Where:
    """The words that say where a setting stands: in which table of the config file, and on which line of it."""

    lines: TableLines
    table: str = ""

    def at(self, name: str) -> str:
        """Say where a setting of the table stands."""
        line = self.lines.line_of(name)
        return "config file" + (f", line {line}" if line else "") + self.table

    def __str__(self) -> str:
        return self.at("")


class SettingsError(Exception):
    """A setting is wrong. One line that names it, says where it came from and what is allowed; never shows a secret."""


@dataclass(frozen=True, slots=True)
class ClientKey:
    """A key pair that clients sign with. `is_admin` lets it use what lies under `/-/`, `access` says what else it may do.

    Attributes:
        origin: Its own credentials at the origin; None where it shares the gateway's.
    """

    access_key: str
    secret_key: str = field(repr=False)
    is_admin: bool = False
    access: Access = EVERYTHING
    origin: OriginKeys | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, parsed and checked; `load` makes them. Sizes are bytes, durations seconds, secrets are not in the repr.

    A field that `TABLE` describes is named as its row.

    Attributes:
        keys: From [[keys]] tables; `client_keys` adds the pair of access_key and secret_key.
        anonymous: What requests without a signature may do, from [[keys]] tables that say so.
        policies: From [[policies]] tables, the first match wins; `policy_table` adds the default.
        policy_lines: Where each of them stands in the config file, and which settings it has of its own.
        default_lines: The same of the default policy; line 0 is a variable or a flag.
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
    origin_bucket_concurrency: int
    origin_requests_per_s: float
    origin_bucket_requests_per_s: float
    origin_bytes_per_s: int
    origin_timeout_s: float
    read_permit_ttl: float
    cache_dir: str
    cache_size: int
    dirty_bytes_max: Share
    dirty_wait_s: float
    pinned_bytes_max: Share
    flush_concurrency: int
    flush_requests_per_s: float
    flush_bytes_per_s: int
    scrub_bytes_per_s: int
    early_flush_bytes: int | None
    upload_ttl: float
    write: WriteMode
    freshness: Freshness
    stale_s: float
    listing_ttl: float
    negative_ttl: float
    flush_delay: float
    flush_deadline: float
    priority: RetentionPriority
    release_after_flush: bool
    on_conflict: OnConflict
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
    readahead_memory: int
    stalled_send_s: float
    shutdown_grace_s: float
    seed: int | None
    keys: tuple[ClientKey, ...] = ()
    anonymous: Access = NOTHING
    policies: tuple[Policy, ...] = ()
    policy_lines: tuple[TableLines, ...] = ()
    default_lines: TableLines = field(default_factory=TableLines)

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
    def pinned_bytes_limit(self) -> int:
        """How much may be pinned, in bytes."""
        return self.pinned_bytes_max.of(self.cache_size)

    @property
    def default_policy(self) -> Policy:
        """The policy of what no [[policies]] table matches."""
        return Policy(
            write=self.write,
            freshness=dataclasses.replace(self.freshness, stale_s=self.stale_s),
            listing_ttl_s=self.listing_ttl,
            negative_ttl_s=self.negative_ttl,
            flush_delay_s=self.flush_delay,
            flush_deadline_s=self.flush_deadline,
            priority=self.priority,
            release_after_flush=self.release_after_flush,
            on_conflict=self.on_conflict,
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
    lines = tables_of(config_text or "")
    top = _Where(lines[0])
    _refuse_unknown(document, [*(row.name for row in TABLE), "keys", "policies"], top.at)
    chosen = {name.replace("-", "_"): text for name, text in flags.items()}
    _refuse_unknown(chosen, [row.name for row in TABLE], lambda _name: "flag")
    _refuse_secret_flags(chosen)
    values = {row.name: _value(row, document, environment, chosen, top) for row in TABLE}
    settings = Settings(**values)  # type: ignore[arg-type]  # each value is of its own field's parser
    _check_pairs(settings)
    default = _built_policy(lambda: settings.default_policy, "the default policy")
    policies = _tables(document, "policies", lines)
    keys, anonymous = _keys(_tables(document, "keys", lines))
    settings = dataclasses.replace(
        settings,
        keys=keys,
        anonymous=anonymous,
        policies=tuple(_policy(table, where, default) for table, where in policies),
        policy_lines=tuple(_own_lines(table, where) for table, where in policies),
        default_lines=_default_lines(document, environment, chosen, top),
    )
    _built_policy(settings.policy_table, "config file")
    _built_policy(lambda: Targets(settings.policies), "config file")
    _check_keys(settings.client_keys)
    return settings


def _parse_toml(text: str) -> dict[str, object]:
    try:
        return {name.replace("-", "_"): value for name, value in tomllib.loads(text).items()}
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"config file: not TOML: {str(error).splitlines()[0]}") from error


def _refuse_unknown(given: Mapping[str, object], known: Iterable[str], where: Callable[[str], str]) -> None:
    known = list(known)
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"allowed: {', '.join(sorted(known))}"
            raise SettingsError(f"{where(name)}: {name!r} is no setting; {hint}")


def _refuse_secret_flags(flags: Mapping[str, str]) -> None:
    for row in TABLE:
        if row.is_secret and row.name in flags:
            raise SettingsError(
                f"{row.name} (flag): every user could see it; allowed: {row.variable} or the config file"
            )


def _value(
    row: Row[T],
    document: Mapping[str, object],
    environment: Mapping[str, str],
    flags: Mapping[str, str],
    where: _Where,
) -> T:
    if row.name in flags:
        return _parsed(row, flags[row.name], row.flag)
    # An empty variable is how compose files say that there is none.
    if environment.get(row.variable):
        return _parsed(row, environment[row.variable], row.variable)
    return _from_table(row, document, where, row.parse(row.default))


def _from_table(row: Row[T], table: Mapping[str, object], where: _Where, default: T) -> T:
    if row.name not in table:
        return default
    text = _toml_text(table[row.name])
    if text is None:
        raise SettingsError(
            f"{row.name} ({where.at(row.name)}): neither text nor a number; allowed: {row.allowed}"
        )
    return _parsed(row, text, where.at(row.name))


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


def _tables(
    document: Mapping[str, object], name: str, lines: Sequence[TableLines]
) -> list[tuple[dict[str, object], _Where]]:
    """Give the tables of [[name]], each with where it stands."""
    value = document.get(name, [])
    if not isinstance(value, list) or not all(isinstance(table, dict) for table in value):
        raise SettingsError(f"{name} (config file): not a list of tables; write [[{name}]] before each")
    found = [table for table in lines if table.name == name]
    if len(found) != len(value):
        # Written in another form: better no line than a wrong one.
        found = [TableLines(name)] * len(value)
    return [
        (
            {key.replace("-", "_"): item for key, item in table.items()},
            _Where(place, f", [[{name}]] number {number}"),
        )
        for number, (table, place) in enumerate(zip(value, found, strict=True), start=1)
    ]


def _own_lines(table: Mapping[str, object], where: _Where) -> TableLines:
    """Say which settings a table has of its own, and where; 0 is a line that is not known."""
    return dataclasses.replace(where.lines, keys={key: where.lines.line_of(key) or 0 for key in table})


def _default_lines(
    document: Mapping[str, object], environment: Mapping[str, str], flags: Mapping[str, str], where: _Where
) -> TableLines:
    """Say which settings of the default policy are set anywhere, and on which line; 0 is none."""
    keys = {row.name: where.lines.line_of(row.name) or 0 for row in POLICY_TABLE if row.name in document}
    keys |= {row.name: 0 for row in POLICY_TABLE if row.name in flags or environment.get(row.variable)}
    return TableLines(keys=keys)


def _keys(tables: Sequence[tuple[Mapping[str, object], _Where]]) -> tuple[tuple[ClientKey, ...], Access]:
    """Read the [[keys]] tables: keys that sign, and what goes without a signature."""
    keys: list[ClientKey] = []
    anonymous: list[Grant] = []
    for table, where in tables:
        _refuse_unknown(table, [row.name for row in KEY_TABLE], where.at)
        if _from_table(KEY_ANONYMOUS, table, where, default=False):
            anonymous += _anonymous(table, where)
        else:
            keys.append(_client_key(table, where))
    return tuple(keys), Access(tuple(anonymous))


def _client_key(table: Mapping[str, object], where: _Where) -> ClientKey:
    access = _grants(table, where)
    key = ClientKey(
        _from_table(KEY_ID, table, where, ""),
        _from_table(KEY_SECRET, table, where, ""),
        is_admin=_from_table(KEY_ADMIN, table, where, default=False),
        access=EVERYTHING if access is None else Access(access),
        origin=_origin_keys(table, where),
    )
    if not key.access_key or not key.secret_key:
        raise SettingsError(f"keys ({where}): access_key and secret_key are both needed")
    if key.is_admin and access is not None:
        # What lies under /-/ names every object, and changes any.
        raise SettingsError(
            f"grants ({where.at(KEY_GRANTS.name)}): a key with the admin right may do everything; "
            "allowed: one of admin and grants"
        )
    return key


def _origin_keys(table: Mapping[str, object], where: _Where) -> OriginKeys | None:
    """Read a key's own credentials at the origin; None where its table has none."""
    keys = OriginKeys(
        _from_table(KEY_ORIGIN_ID, table, where, ""),
        _from_table(KEY_ORIGIN_SECRET, table, where, ""),
        _from_table(KEY_ORIGIN_TOKEN, table, where, ""),
        _from_table(KEY_ORIGIN_PROFILE, table, where, ""),
    )
    if keys == OriginKeys():
        return None
    if keys.profile and keys != OriginKeys(profile=keys.profile):
        raise SettingsError(
            f"origin_profile ({where.at(KEY_ORIGIN_PROFILE.name)}): set beside keys; allowed: {KEY_ORIGIN_PROFILE.allowed}"
        )
    if not keys.profile and not (keys.access_key and keys.secret_key):
        raise SettingsError(f"keys ({where}): origin_access_key and origin_secret_key are both needed")
    return keys


def _anonymous(table: Mapping[str, object], where: _Where) -> tuple[Grant, ...]:
    """Read a table about requests without a signature, which may read and nothing else."""
    for row in (KEY_ID, KEY_SECRET, KEY_ADMIN, *KEY_ORIGIN_TABLE):
        if row.name in table:
            raise SettingsError(
                f"{row.name} ({where.at(row.name)}): set beside anonymous; allowed: {KEY_ANONYMOUS.allowed}"
            )
    grants = _grants(table, where)
    if not grants or any(grant.rights != {Right.READ} for grant in grants):
        raise SettingsError(
            f"grants ({where.at(KEY_GRANTS.name)}): wrong beside anonymous; allowed: some, of read alone"
        )
    return grants


def _grants(table: Mapping[str, object], where: _Where) -> tuple[Grant, ...] | None:
    """Read the list of a key's grants; None where the table has none."""
    if KEY_GRANTS.name not in table:
        return None
    texts, place = table[KEY_GRANTS.name], where.at(KEY_GRANTS.name)
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise SettingsError(f"grants ({place}): not a list of texts; allowed: {KEY_GRANTS.allowed}")
    if len(texts) > GRANTS_MAX:
        raise SettingsError(f"grants ({place}): {len(texts)} grants; allowed: at most {GRANTS_MAX}")
    return tuple(_parsed(KEY_GRANTS, text, place) for text in texts)


def _policy(table: Mapping[str, object], where: _Where, default: Policy) -> Policy:
    """Read one [[policies]] table; what it leaves out is as in the default policy."""
    _refuse_unknown(
        table, [row.name for row in (*POLICY_PLACE_TABLE, *POLICY_TABLE, *POLICY_ONLY_TABLE)], where.at
    )
    bucket, prefix = _policy_place(table, where)
    freshness = _from_table(FRESHNESS, table, where, default.freshness)
    stale_s = _from_table(STALE, table, where, default.freshness.stale_s)
    return _built_policy(
        lambda: Policy(
            bucket=bucket,
            prefix=prefix,
            write=_from_table(WRITE, table, where, default.write),
            freshness=dataclasses.replace(freshness, stale_s=stale_s),
            listing_ttl_s=_from_table(LISTING_TTL, table, where, default.listing_ttl_s),
            negative_ttl_s=_from_table(NEGATIVE_TTL, table, where, default.negative_ttl_s),
            flush_delay_s=_from_table(FLUSH_DELAY, table, where, default.flush_delay_s),
            flush_deadline_s=_from_table(FLUSH_DEADLINE, table, where, default.flush_deadline_s),
            priority=_from_table(PRIORITY, table, where, default.priority),
            release_after_flush=_from_table(RELEASE, table, where, default.release_after_flush),
            on_conflict=_from_table(ON_CONFLICT, table, where, default.on_conflict),
            published=_from_table(PUBLISHED, table, where, default=False),
        ),
        where,
    )


def _policy_place(table: Mapping[str, object], where: _Where) -> tuple[str, str]:
    match = _from_table(POLICY_MATCH, table, where, "")
    if not match:
        bucket = _from_table(POLICY_BUCKET, table, where, ANY_BUCKET)
        return bucket, _from_table(POLICY_PREFIX, table, where, "")
    place = _MATCH.fullmatch(match)
    if place is None or "bucket" in table or "prefix" in table:
        raise SettingsError(
            f"match ({where.at('match')}): {match!r} is wrong; allowed: {POLICY_MATCH.allowed}"
        )
    return place["bucket"], place["prefix"] or ""


def _built_policy(build: Callable[[], T], where: object) -> T:
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
    if settings.pinned_bytes_limit > settings.cache_size:
        raise SettingsError("pinned_bytes_max: more than cache_size; allowed: up to 100%")


def _check_keys(keys: tuple[ClientKey, ...]) -> None:
    seen: set[str] = set()
    for key in keys:
        if key.access_key in seen:
            raise SettingsError(f"keys: access_key {key.access_key!r} is given twice; allowed: each once")
        seen.add(key.access_key)


def _missing(row: Row[str]) -> SettingsError:
    return SettingsError(f"{row.name}: not set; use {row.flag} or {row.variable}; allowed: {row.allowed}")
