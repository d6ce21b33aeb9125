import dataclasses
import typing

import pytest

from gateway.build import origin_settings
from gateway.grants import EVERYTHING, NOTHING, Access, parse_grant
from gateway.setting_rows import POLICY_ONLY_TABLE, POLICY_PLACE_TABLE, POLICY_TABLE, TABLE
from gateway.setting_values import Address, Addressing, LogLevel, OriginKeys
from gateway.settings import ClientKey, Settings, SettingsError, load
from storage.policy import Freshness, FreshnessMode, OnConflict, Policy, RetentionPriority
from storage.types import GIB, MIB, ObjectName, WriteMode

SERVING = {
    "FOREBAY_ORIGIN": "http://origin:9000/",
    "FOREBAY_CACHE_DIR": "/cache",
    "FOREBAY_ACCESS_KEY": "client",
    "FOREBAY_SECRET_KEY": "hush-hush",
}


def refusal(
    config: str = "", environment: dict[str, str] | None = None, flags: dict[str, str] | None = None
) -> str:
    """Give the one line that loading ends in."""
    with pytest.raises(SettingsError) as caught:
        load(config, environment or {}, flags or {})
    line = str(caught.value)
    assert "\n" not in line
    return line


def test_load_gives_the_defaults_when_nothing_is_set() -> None:
    """The defaults are those of the design, and a client command needs no more."""
    settings = load(None, {}, {})

    assert settings.listen == Address("127.0.0.1", 9000)
    assert settings.endpoint == "http://127.0.0.1:9000"
    assert settings.cache_size == 10 * GIB
    assert settings.dirty_bytes_limit == 5 * GIB
    assert settings.body_memory == 32 * MIB
    assert settings.upload_ttl == 604_800
    assert (settings.flush_concurrency, settings.origin_concurrency) == (6, 64)
    assert settings.default_policy == Policy()
    assert settings.origin_addressing is Addressing.AUTO
    assert settings.log_level is LogLevel.INFO
    assert settings.metrics_listen is None
    assert settings.seed is None
    assert settings.client_keys == ()


@pytest.mark.parametrize("concurrency", ["1", "64", "10000"])
def test_no_request_that_the_limiter_lets_through_waits_for_a_connection(concurrency: str) -> None:
    """B56: a wait for a connection would count as the origin's time, be taken for a time-out, and cut the limit."""
    settings = load(None, {**SERVING, "FOREBAY_ORIGIN_CONCURRENCY": concurrency}, {})

    assert origin_settings(settings).connections_max >= int(concurrency)


def test_load_lets_flags_win_over_variables_over_the_file() -> None:
    """Each later source overrides the one before, setting by setting."""
    config = 'listen = "127.0.0.1:1"\ncache-size = "1GiB"\norigin_region = "eu-west-1"\n'
    environment = {
        "FOREBAY_LISTEN": "127.0.0.1:2",
        "FOREBAY_CACHE_SIZE": "2GiB",
        "FOREBAY_SEED": "",
        "HOME": "/",
    }

    settings = load(config, environment, {"listen": "[::1]:3"})

    assert settings.listen == Address("::1", 3)
    assert str(settings.listen) == "[::1]:3"
    assert settings.cache_size == 2 * GIB
    assert settings.origin_region == "eu-west-1"


def test_load_reads_toml_values_of_any_simple_kind() -> None:
    """A number, a truth value and a list of names read like their text."""
    config = """
        flush_concurrency = 3
        domains = ["S3.Local", "b"]
        origin_requests_per_s = 0.5
        [[keys]]
        access_key = "a"
        secret_key = "s"
        admin = true
    """

    settings = load(config, {}, {})

    assert settings.flush_concurrency == 3
    assert settings.domains == ("s3.local", "b")
    assert settings.origin_requests_per_s == 0.5
    assert settings.keys == (ClientKey("a", "s", is_admin=True),)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("listen", "9000"), ("listen", "::1:9000"), ("listen", "h:65536"), ("listen", "h:x"), ("listen", ":9000"),
        ("origin", "origin:9000"), ("origin", "ftp://o"), ("origin", "http://o/path"), ("origin", "http://k:s@o"),
        ("origin", "http://"), ("origin", "http://o:99999"), ("origin_addressing", "dns"), ("cache_size", "1MiB"),
        ("cache_size", "much"), ("dirty_bytes_max", "0%"), ("dirty_bytes_max", "101%"), ("dirty_bytes_max", "0"),
        ("dirty_bytes_max", "x%"), ("freshness", "sometimes"), ("write", "behind"), ("flush_concurrency", "0"),
        ("origin_concurrency", "1.5"), ("origin_requests_per_s", "-1"), ("origin_requests_per_s", "nan"), ("upload_ttl", "1s"),
        ("log_level", "loud"), ("seed", "-1"), ("metrics_listen", "9100"),
    ],
)  # fmt: skip
def test_load_names_the_setting_and_what_is_allowed_when_a_value_is_wrong(name: str, text: str) -> None:
    """A wrong value, from whichever source, is one line with name, source, value and what is allowed."""
    allowed = next(row.allowed for row in TABLE if row.name == name)

    assert (
        refusal(f'{name} = "{text}"')
        == f"{name} (config file, line 1): '{text}' is wrong; allowed: {allowed}"
    )
    variable = f"FOREBAY_{name.upper()}"
    assert (
        refusal(environment={variable: text}) == f"{name} ({variable}): '{text}' is wrong; allowed: {allowed}"
    )
    flag = name.replace("_", "-")
    assert refusal(flags={flag: text}) == f"{name} (--{flag}): '{text}' is wrong; allowed: {allowed}"


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ('cache_sise = "1GiB"', "config file, line 1: 'cache_sise' is no setting; did you mean cache_size?"),
        ("cache_size = [1]", "cache_size (config file, line 1): neither text nor a number"),
        ("cache_size = {}", "cache_size (config file, line 1): neither text nor a number"),
        ("listen = ", "config file: not TOML: "),
        ("keys = 1", "keys (config file): not a list of tables; write [[keys]] before each"),
        ('[[keys]]\naccess_key = "a"', "keys (config file, line 1, [[keys]] number 1): access_key and secret_key are both needed"),
        ('[[keys]]\nsecret = "a"', "config file, line 2, [[keys]] number 1: 'secret' is no setting; did you mean secret_key?"),
        ('[[policies]]\nfreshnes = "1s"', "config file, line 2, [[policies]] number 1: 'freshnes' is no setting; did you mean freshness?"),
        ('[[policies]]\nwrite = "x"', "write (config file, line 2, [[policies]] number 1): 'x' is wrong; allowed: back, through, around"),
        ('[[policies]]\nmatch = "bucket/x"', "match (config file, line 2, [[policies]] number 1): 'bucket/x' is wrong; allowed: s3://BUCKET"),
        ('[[policies]]\nmatch = "s3://b/*x*"', "match (config file, line 2, [[policies]] number 1)"),
        ('[[policies]]\nmatch = "s3://b/"\nprefix = "x"', "match (config file, line 2, [[policies]] number 1)"),
        ('[[policies]]\nflush_delay = "5m"\nflush_deadline = "1m"', "policies (config file, line 1, [[policies]] number 1): flush"),
        ('flush_delay = "5m"\nflush_deadline = "1m"', "policies (the default policy): flush_deadline_s"),
        ('\n[[policies]]\n[[policies]]\n\non_conflict = "ask"', "on_conflict (config file, line 5, [[policies]] number 2): 'ask' is"),
        ('policies = [{write = "x"}]', "write (config file, [[policies]] number 1): 'x' is wrong"),
        ('[[policies]]\nbucket = "b"\nprefix = "x"\npublished = true', "policies (config file): the prefix 'x' of a published target"),
        ('[[policies]]\nmatch = "s3://b/x/"\npublished = true\nfreshness = "immutable"', "policies (config file): the published target"),
        ("[[policies]]\n" * 257, "policies (config file): 257 policies are more than 256"),
        ('tls_cert = "a"', "tls_cert and tls_key: one is set without the other"),
        ('origin_access_key = "a"', "origin_access_key and origin_secret_key: one is set without the other"),
        ('origin_session_token = "a"', "origin_session_token: set without origin_access_key"),
        ('cache_size = "1GiB"\ndirty_bytes_max = "2GiB"', "dirty_bytes_max: more than cache_size"),
        ('cache_size = "1GiB"\npinned_bytes_max = "2GiB"', "pinned_bytes_max: more than cache_size"),
    ],
)  # fmt: skip
def test_load_refuses_with_one_line_when_the_file_is_wrong(config: str, line: str) -> None:
    """Unknown names get a suggestion, tables are counted, contradictions are named."""
    assert refusal(config).startswith(line)


def test_load_lists_the_settings_when_a_name_is_like_none() -> None:
    """A name without a likeness gets the list of names."""
    assert "allowed: access_key, access_log, body_memory" in refusal("zzz = 1")


def test_load_refuses_unknown_flags_and_passes_over_unknown_variables() -> None:
    """A flag is typed by somebody; a variable may be Kubernetes'."""
    load("", {"FOREBAY_PORT": "tcp://10.0.0.1:9000"}, {})

    assert refusal(flags={"cach-size": "1"}).startswith(
        "flag: 'cach_size' is no setting; did you mean cache_size?"
    )


def test_load_refuses_secrets_as_flags_without_showing_them() -> None:
    """A secret on a command line is seen by all; the refusal does not repeat it."""
    line = refusal(flags={"secret-key": "hush-hush"})

    assert (
        line == "secret_key (flag): every user could see it; allowed: FOREBAY_SECRET_KEY or the config file"
    )


def test_settings_do_not_show_secrets_in_their_repr() -> None:
    """Whoever logs the settings logs no secret."""
    config = '[[keys]]\naccess_key = "a"\nsecret_key = "hush-hush"\n'
    environment = {
        **SERVING,
        "FOREBAY_ORIGIN_ACCESS_KEY": "o",
        "FOREBAY_ORIGIN_SECRET_KEY": "hush-hush",
        "FOREBAY_ORIGIN_SESSION_TOKEN": "hush-hush",
    }

    assert "hush" not in repr(load(config, environment, {}))


def test_client_keys_give_the_admin_right_to_the_own_key_and_to_those_that_say_so() -> None:
    """The pair of the settings comes first and has the admin right; others have what their table says."""
    config = '[[keys]]\naccess_key = "a"\nsecret_key = "s"\n[[keys]]\naccess_key = "b"\nsecret_key = "t"\nadmin = true\n'

    settings = load(config, SERVING, {})

    assert settings.client_keys == (
        ClientKey("client", "hush-hush", is_admin=True),
        ClientKey("a", "s"),
        ClientKey("b", "t", is_admin=True),
    )


PAIR = 'access_key = "a"\nsecret_key = "s"\n'


@pytest.mark.parametrize(
    ("table", "at", "refused"),
    [
        (PAIR + 'grants = "read s3://b"', 4, "not a list of texts; allowed: a list"),
        (PAIR + "grants = [1]", 4, "not a list of texts"),
        (PAIR + 'grants = ["read s3://b/x"]', 4, "'read s3://b/x' is wrong; allowed: a list of texts RIGHTS s3://"),
        (PAIR + "admin = true\ngrants = []", 5, "a key with the admin right may do everything; allowed: one of"),
        (PAIR + f"grants = {['read s3://b'] * 257}", 4, "257 grants; allowed: at most 256"),
        ("anonymous = true", 1, "wrong beside anonymous; allowed: some, of read alone"),
        ("anonymous = true\ngrants = []", 3, "wrong beside anonymous; allowed: some, of read alone"),
        ('anonymous = true\ngrants = ["read,write s3://b"]', 3, "wrong beside anonymous; allowed: some, of read"),
    ],
)  # fmt: skip
def test_load_refuses_grants_that_say_too_much_or_nothing(table: str, at: int, refused: str) -> None:
    """A list that cannot be read, or contradicts its table, refuses the settings with line and reason."""
    line = refusal(f"[[keys]]\n{table}\n")

    assert line.startswith(f"grants (config file, line {at}, [[keys]] number 1): {refused}")


def test_load_refuses_keys_beside_anonymous() -> None:
    """Who signs is not anonymous."""
    line = refusal('[[keys]]\nanonymous = true\nsecret_key = "s"\ngrants = ["read s3://b"]')

    assert line.startswith("secret_key (config file, line 3, [[keys]] number 1): set beside anonymous")


@pytest.mark.parametrize(
    ("lines", "origin"),
    [
        ("", None),
        ('origin_access_key = "o"\norigin_secret_key = "p"\n', OriginKeys("o", "p")),
        (
            'origin_access_key = "o"\norigin_secret_key = "p"\norigin_session_token = "t"\n',
            OriginKeys("o", "p", "t"),
        ),
        ('origin_profile = "team"\n', OriginKeys(profile="team")),
    ],
)
def test_a_key_has_its_own_origin_credentials_where_its_table_says_so(
    lines: str, origin: OriginKeys | None
) -> None:
    """A pair, with a token or not, or a profile; without any it shares the gateway's."""
    settings = load(f"[[keys]]\n{PAIR}{lines}", SERVING, {})

    assert settings.keys == (ClientKey("a", "s", origin=origin),)
    assert "secret_key='p'" not in repr(settings)


@pytest.mark.parametrize(
    ("lines", "line"),
    [
        ('origin_access_key = "o"', "keys (config file, line 1, [[keys]] number 1): origin_access_key and origin_secret_key are"),
        ('origin_session_token = "t"', "keys (config file, line 1, [[keys]] number 1): origin_access_key and origin_secret_key are"),
        ('origin_profile = "p"\norigin_session_token = "t"', "origin_profile (config file, line 4, [[keys]] number 1): set beside keys"),
        ('origin_profile = ["p", 1]', "origin_profile (config file, line 4, [[keys]] number 1): neither text"),
    ],
)  # fmt: skip
def test_load_refuses_origin_credentials_that_are_not_whole(lines: str, line: str) -> None:
    """Half a pair, a token alone, or two kinds at once are refused with line and reason."""
    assert refusal(f"[[keys]]\n{PAIR}{lines}").startswith(line)


def test_keys_hold_what_their_grants_say_and_all_without_any() -> None:
    """A key without a list may do everything, with an empty one nothing; tables without a signature add up."""
    own = 'access_key = "{}"\nsecret_key = "s"\n'
    config = (
        f"[[keys]]\n{own.format('all')}[[keys]]\n{own.format('none')}grants = []\n"
        f'[[keys]]\n{own.format("some")}grants = ["read s3://b/a,b/*", "write s3://c"]\n'
        '[[keys]]\nanonymous = true\ngrants = ["read s3://b"]\n'
        '[[keys]]\nanonymous = true\ngrants = ["read s3://c/x/*"]\n'
    )

    settings = load(config, SERVING, {})

    assert [key.access for key in settings.client_keys] == [
        EVERYTHING,
        EVERYTHING,
        NOTHING,
        Access((parse_grant("read s3://b/a,b/*"), parse_grant("write s3://c"))),
    ]
    assert settings.anonymous == Access((parse_grant("read s3://b"), parse_grant("read s3://c/x/*")))
    assert load("", SERVING, {}).anonymous == NOTHING


def test_load_refuses_when_an_access_key_is_given_twice() -> None:
    """Two secrets for one key id cannot both be right."""
    config = '[[keys]]\naccess_key = "client"\nsecret_key = "s"\n'
    with pytest.raises(SettingsError, match="keys: access_key 'client' is given twice"):
        load(config, SERVING, {})


def test_policy_table_finds_the_first_match_and_fills_in_the_default() -> None:
    """A policy says what it changes; the rest is as at the top level."""
    config = """
        freshness = "5m"
        stale_s = "10m"
        flush_deadline = "1h"
        [[policies]]
        match = "s3://data/frozen/*"
        freshness = "immutable"
        [[policies]]
        bucket = "data"
        write = "through"
        [[policies]]
        match = "s3://*/tmp/"
        listing_ttl = "2m"
        negative_ttl = "3m"
        flush_delay = "30s"
        flush_deadline = 90
        priority = "low"
        stale_s = 0
        release-after-flush = true
        on_conflict = "quarantine"
    """
    table = load(config, {}, {}).policy_table()

    frozen = table.find(ObjectName("data", "frozen/a"))
    data = table.find(ObjectName("data", "tmp/a"))
    scratch = table.find(ObjectName("other", "tmp/a"))
    rest = table.find(ObjectName("other", "a"))

    assert (frozen.freshness, frozen.write) == (
        Freshness(FreshnessMode.IMMUTABLE, stale_s=600),
        WriteMode.BACK,
    )
    assert (data.freshness, data.write) == (Freshness(FreshnessMode.TTL, 300, 600), WriteMode.THROUGH)
    assert scratch == Policy(
        bucket="*",
        prefix="tmp/",
        freshness=Freshness(FreshnessMode.TTL, 300, 0),
        listing_ttl_s=120,
        negative_ttl_s=180,
        flush_delay_s=30,
        flush_deadline_s=90,
        priority=RetentionPriority.LOW,
        release_after_flush=True,
        on_conflict=OnConflict.QUARANTINE,
    )
    assert (rest.flush_deadline_s, rest.priority) == (3600, RetentionPriority.NORMAL)


def test_policy_is_published_only_where_its_own_table_says_so() -> None:
    """A target is named with its prefix; the top level cannot make one of everything."""
    config = '[[policies]]\nmatch = "s3://b/current/*"\npublished = true\n[[policies]]\nmatch = "s3://b/*"\n'
    table = load(config, {}, {}).policy_table()

    assert table.find(ObjectName("b", "current/a")).published
    assert not table.find(ObjectName("b", "a")).published
    assert not table.find(ObjectName("c", "a")).published
    assert refusal("published = true").startswith("config file, line 1: 'published' is no setting")


@pytest.mark.parametrize(
    ("missing", "line"),
    [
        ("FOREBAY_ORIGIN", "origin: not set; use --origin or FOREBAY_ORIGIN; allowed: http(s)://HOST[:PORT]"),
        (
            "FOREBAY_CACHE_DIR",
            "cache_dir: not set; use --cache-dir or FOREBAY_CACHE_DIR; allowed: a directory",
        ),
    ],
)
def test_check_serving_names_what_is_missing(missing: str, line: str) -> None:
    """A gateway does not start without an origin and a place for its cache."""
    load("", SERVING, {}).check_serving()
    without = {name: value for name, value in SERVING.items() if name != missing}

    with pytest.raises(SettingsError) as caught:
        load("", without, {}).check_serving()

    assert str(caught.value) == line


def test_check_serving_refuses_when_nobody_could_sign() -> None:
    """A gateway without any client key would answer 403 to all."""
    without = {name: value for name, value in SERVING.items() if not name.endswith("_KEY")}

    with pytest.raises(SettingsError, match="access_key: not set"):
        load("", without, {}).check_serving()


def test_dirty_mark_follows_the_cache_size_or_stands_by_itself() -> None:
    """A percentage is one of cache_size; a size is that size."""
    assert load('cache_size = "1GiB"\ndirty_bytes_max = "25%"', {}, {}).dirty_bytes_limit == 256 * MIB
    assert load('dirty_bytes_max = "64MiB"', {}, {}).dirty_bytes_limit == 64 * MIB
    assert load('cache_size = "1GiB"\npinned_bytes_max = "25%"', {}, {}).pinned_bytes_limit == 256 * MIB


def test_pins_and_writes_leave_a_tenth_of_the_cache_unless_set() -> None:
    """So that pins go for writes only where somebody has said so; docs/configuration.md gives the rule."""
    settings = load('cache_size = "1GiB"', {}, {})

    assert 0 < settings.pinned_bytes_limit <= 0.9 * settings.cache_size - settings.dirty_bytes_limit


def test_a_policy_pins_by_its_priority() -> None:
    """Pinned is one more priority, of a table or of all; the table that storage asks says whether any does."""
    pinned = load('[[policies]]\nmatch = "s3://b/x*"\npriority = "pinned"', {}, {})
    assert pinned.policies[0].priority is RetentionPriority.PINNED
    assert pinned.policy_table().has_pins
    assert load('priority = "pinned"', {}, {}).policy_table().has_pins
    assert not load('priority = "high"', {}, {}).policy_table().has_pins


def test_table_has_one_row_for_each_field_whose_default_is_of_its_type() -> None:
    """The table and the dataclass are one: same names, same order, values of the annotated types."""
    hints = typing.get_type_hints(Settings)
    fields = [f.name for f in dataclasses.fields(Settings)]

    assert [row.name for row in TABLE] == fields[: len(TABLE)]
    assert fields[len(TABLE) :] == ["keys", "anonymous", "policies", "policy_lines", "default_lines"]
    for row in TABLE:
        kinds = (
            typing.get_args(hints[row.name])
            if row.name in {"metrics_listen", "seed", "early_flush_bytes"}
            else (hints[row.name],)
        )
        value = row.parse(row.default)
        assert any(type(value) is (typing.get_origin(kind) or kind) for kind in kinds), (row.name, value)


def test_table_says_something_of_every_setting() -> None:
    """Help and documentation are made from the table, so no row may be silent."""
    for row in (*TABLE, *POLICY_TABLE, *POLICY_PLACE_TABLE, *POLICY_ONLY_TABLE):
        assert row.description, row.name
        assert row.allowed, row.name
        assert row.is_secret == (row.flag == ""), row.name
        assert row.variable == f"FOREBAY_{row.name.upper()}"
