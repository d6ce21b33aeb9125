"""Every setting in one table: names, defaults, what is allowed, what it is for.

The tables drive parsing (`gateway/settings.py`), `--help` (`gateway/cli.py`) and `docs/configuration.md`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, TypeVar

from gateway.grants import GRANT_FORM, parse_grant
from gateway.setting_values import (
    Addressing,
    LogLevel,
    not_under,
    one_of,
    optional,
    parse_address,
    parse_duration,
    parse_freshness,
    parse_names,
    parse_rate,
    parse_share,
    parse_size,
    parse_size_or_off,
    parse_text,
    parse_truth,
    parse_url,
    parse_url_or_nothing,
    whole_number,
)
from storage.policy import ANY_BUCKET, OnConflict, RetentionPriority
from storage.types import MIB, WriteMode

T_co = TypeVar("T_co", covariant=True)

ENVIRONMENT_PREFIX: Final = "FOREBAY_"

CACHE_SIZE_MIN: Final = 16 * MIB

_URL: Final = "http(s)://HOST[:PORT]"
_ADDRESS: Final = "HOST:PORT, as in 127.0.0.1:9000 or [::1]:9000"
_SIZE: Final = "a size such as 512MiB, 10GiB or 2TB"
_DURATION: Final = "a duration such as 500ms, 60s, 5m, 2h or 7d; a bare number is seconds"


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


def _choices(kind: type[StrEnum]) -> str:
    return ", ".join(kind)


# The table. One row a line, or two: what the formatter would make of it cannot be compared at a glance.
# fmt: off
LISTEN: Final = Row("listen", parse_address, "127.0.0.1:9000", _ADDRESS, "where clients connect")
ORIGIN: Final = Row("origin", parse_url_or_nothing, "", _URL, "the S3 endpoint behind the gateway")
CACHE_DIR: Final = Row("cache_dir", parse_text, "", "a directory", "where the cache and pending writes are kept")
ACCESS_KEY: Final = Row("access_key", parse_text, "", "an access key id", "what clients sign with; has the admin right")

WRITE: Final = Row("write", one_of(WriteMode), "back", _choices(WriteMode), "how a write is acknowledged")
FRESHNESS: Final = Row("freshness", parse_freshness, "60s", f"always, immutable, or {_DURATION}",
                       "when the origin must confirm what is cached")
STALE: Final = Row("stale_s", parse_duration, "1h", _DURATION,
                   "how long past its freshness a cached object covers for a failing origin")
LISTING_TTL: Final = Row("listing_ttl", parse_duration, "0s", f"{_DURATION}; 0 to ask each time",
                         "how long a page of the origin's listing is believed, which may hide what other writers add")
NEGATIVE_TTL: Final = Row("negative_ttl", parse_duration, "0s", f"{_DURATION}; 0 to ask each time",
                          "how long the origin's word is believed that there is no such object, which may hide what other writers make")
FLUSH_DELAY: Final = Row("flush_delay", parse_duration, "0s", _DURATION,
                         "how long a write is held back because it may soon be overwritten")
FLUSH_DEADLINE: Final = Row("flush_deadline", parse_duration, "0s", f"{_DURATION}; 0 for none",
                            "after how long a pending write is flushed before others")
PRIORITY: Final = Row("priority", one_of(RetentionPriority), "normal", _choices(RetentionPriority),
                      "how much a cached byte is worth when space is needed")
RELEASE: Final = Row("release_after_flush", parse_truth, "false", "true, false",
                     "whether the local copy goes once the origin has the object")
ON_CONFLICT: Final = Row("on_conflict", one_of(OnConflict), "overwrite", _choices(OnConflict),
                         "what a flush does when another writer changed the object")

POLICY_TABLE: Final = (
    WRITE, FRESHNESS, STALE, LISTING_TTL, NEGATIVE_TTL, FLUSH_DELAY, FLUSH_DEADLINE, PRIORITY, RELEASE, ON_CONFLICT,
)
"""What a [[policies]] table may set; at the top level the same names set the policy of all that no table matches."""

PUBLISHED: Final = Row("published", parse_truth, "false", "true, false", "whether the prefix is a target of forebay publish")

POLICY_ONLY_TABLE: Final = (PUBLISHED,)
"""What only a [[policies]] table may set, since it makes sense of a prefix alone."""

TABLE: Final[tuple[Row[object], ...]] = (
    LISTEN,
    Row("endpoint", parse_url, "http://127.0.0.1:9000", _URL, "the gateway that client commands talk to"),
    ORIGIN,
    Row("origin_region", parse_text, "us-east-1", "a region's name", "the region that requests to the origin are signed for"),
    Row("origin_addressing", one_of(Addressing), "auto", _choices(Addressing), "how buckets are named at the origin"),
    Row("origin_access_key", parse_text, "", "an access key id; empty for the standard AWS chain", "signs requests to the origin"),
    Row("origin_secret_key", parse_text, "", "the key's secret", "signs requests to the origin", is_secret=True),
    Row("origin_session_token", parse_text, "", "a session token", "goes with a temporary origin key", is_secret=True),
    Row(
        "origin_concurrency",
        whole_number(1, 10_000),
        "64",
        "1 to 10000",
        "the most requests to the origin at a time, at most half of them uploads that pass through as they come",
    ),
    Row("origin_bucket_concurrency", whole_number(0, 10_000), "0", "0 to 10000; 0 for that of all",
        "the most requests at a time to one bucket"),
    Row("origin_requests_per_s", parse_rate, "0", "a number; 0 for no limit", "the most requests a second to the origin"),
    Row("origin_bucket_requests_per_s", parse_rate, "0", "a number; 0 for no limit",
        "the most requests a second to one bucket"),
    Row("origin_bytes_per_s", parse_size, "0", f"{_SIZE}; 0 for no limit", "the most bytes a second to and from the origin"),
    Row("origin_timeout_s", not_under(0.1, parse_duration), "60s", f"{_DURATION}; at least 100ms",
        "how long the origin may be silent"),
    Row("read_permit_ttl", parse_duration, "60s", f"{_DURATION}; 0 to ask each time",
        "how long the origin's word is good on what a key with origin credentials of its own may read"),
    CACHE_DIR,
    Row("cache_size", not_under(CACHE_SIZE_MIN, parse_size), "10GiB", f"{_SIZE}; at least 16MiB",
        "how much the cache may hold"),
    Row("dirty_bytes_max", parse_share, "50%", f"a percentage of cache_size, or {_SIZE}", "how much may wait for its flush"),
    Row("dirty_wait_s", parse_duration, "5s", _DURATION, "how long a write waits above dirty_bytes_max before it goes through"),
    Row("pinned_bytes_max", parse_share, "40%", f"a percentage of cache_size, or {_SIZE}",
        "how much policies may pin; what is more has the priority high"),
    Row("flush_concurrency", whole_number(1, 1000), "6", "1 to 1000", "the most flushes at a time"),
    Row("flush_requests_per_s", parse_rate, "0", "a number; 0 for no limit", "the most requests a second that flushes send"),
    Row("flush_bytes_per_s", parse_size, "0", f"{_SIZE}; 0 for no limit", "the most bytes a second that flushes send"),
    Row("scrub_bytes_per_s", parse_size, "8MiB", f"{_SIZE}; 0 for none",
        "how fast what is on the disk is read and checked in the background"),
    Row("early_flush_bytes", parse_size_or_off, "64MiB", f"{_SIZE}; off for never",
        "from how many bytes on an upload's parts go to the origin before its Complete"),
    Row("upload_ttl", not_under(60, parse_duration), "7d", f"{_DURATION}; at least 1m",
        "when an upload that nobody completes is dropped"),
    *POLICY_TABLE,
    ACCESS_KEY,
    Row("secret_key", parse_text, "", "the key's secret", "what clients sign with", is_secret=True),
    Row("tls_cert", parse_text, "", "a PEM file; empty for plain HTTP", "the certificate chain that clients see"),
    Row("tls_key", parse_text, "", "a PEM file", "the certificate's private key"),
    Row("domains", parse_names, "", "host names, comma-separated", "base domains under which the first label is a bucket"),
    Row("metrics_listen", optional(parse_address), "", f"{_ADDRESS}; empty for that of listen", "where /metrics is served"),
    Row("access_log", parse_text, "-", "a file, - for standard output, off", "where requests are logged"),
    Row("log_level", one_of(LogLevel), "info", _choices(LogLevel), "the least severe message that is logged"),
    Row("connections_max", whole_number(1, 1_000_000), "4096", "1 to 1000000", "the most client connections; others get a 503"),
    Row("body_memory", not_under(4 * MIB, parse_size), "32MiB", f"{_SIZE}; at least 4MiB",
        "memory for request bodies on their way to the disk"),
    Row("readahead_memory", parse_size, "48MiB", f"{_SIZE}; 0 for no readahead",
        "memory for what is fetched ahead of sequential readers, 3 MiB a request"),
    Row("stalled_send_s", not_under(1, parse_duration), "60s", f"{_DURATION}; at least 1s",
        "when a client that does not read is cut off"),
    Row("shutdown_grace_s", parse_duration, "30s", _DURATION, "how long running requests may take at a stop"),
    Row("seed", optional(whole_number(0, 2**53)), "", "a whole number; empty to draw one", "makes jitter repeatable"),
)
"""Every setting that is one value, in the order of the documentation."""

KEY_ID: Final = Row("access_key", parse_text, "", "an access key id", "what clients sign with")
KEY_SECRET: Final = Row("secret_key", parse_text, "", "the key's secret", "what clients sign with", is_secret=True)
KEY_ADMIN: Final = Row("admin", parse_truth, "false", "true, false", "whether the key has the admin right")
KEY_ANONYMOUS: Final = Row("anonymous", parse_truth, "false", "true, false; true has no keys beside it, and grants of read alone",
                           "whether the table is about requests without a signature")
KEY_GRANTS: Final = Row("grants", parse_grant, "", f"a list of texts {GRANT_FORM}",
                        "what the key may do and nothing else; left out, it may do everything")
KEY_ORIGIN_ID: Final = Row("origin_access_key", parse_text, "", "an access key id", "signs what this key asks of the origin")
KEY_ORIGIN_SECRET: Final = Row("origin_secret_key", parse_text, "", "the key's secret", "the same", is_secret=True)
KEY_ORIGIN_TOKEN: Final = Row("origin_session_token", parse_text, "", "a session token", "goes with a temporary origin key",
                              is_secret=True)
KEY_ORIGIN_PROFILE: Final = Row("origin_profile", parse_text, "", "a profile of the AWS configuration files, and no keys beside it",
                                "where the credentials come from that sign what this key asks of the origin")
KEY_ORIGIN_TABLE: Final = (KEY_ORIGIN_ID, KEY_ORIGIN_SECRET, KEY_ORIGIN_TOKEN, KEY_ORIGIN_PROFILE)
"""How a [[keys]] table gives a key an authority of its own at the origin."""

KEY_TABLE: Final = (KEY_ID, KEY_SECRET, KEY_ADMIN, KEY_ANONYMOUS, KEY_GRANTS, *KEY_ORIGIN_TABLE)
"""What a [[keys]] table holds."""

POLICY_MATCH: Final = Row("match", parse_text, "", "s3://BUCKET/PREFIX*, where BUCKET may be *, and no bucket or prefix beside it",
                          "where the policy holds")
POLICY_BUCKET: Final = Row("bucket", parse_text, ANY_BUCKET, "a bucket's name, or *", "where the policy holds")
POLICY_PREFIX: Final = Row("prefix", parse_text, "", "what keys begin with", "where the policy holds")
POLICY_PLACE_TABLE: Final = (POLICY_MATCH, POLICY_BUCKET, POLICY_PREFIX)
"""How a [[policies]] table says where it holds."""
# fmt: on
