"""The values that settings have, and how each is read from text.

One parser a kind of value, so that a TOML file, a variable and a flag read the same. A parser raises ValueError for what is not
allowed; `gateway/settings.py` turns that into the one line that names the setting.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final, TypeVar
from urllib.parse import urlsplit

from storage.policy import Freshness, FreshnessMode
from storage.types import GIB, KIB, MIB

T = TypeVar("T")
E = TypeVar("E", bound=StrEnum)

_UNITS: Final[Mapping[str, int]] = {
    "": 1, "b": 1,
    "k": KIB, "kib": KIB, "m": MIB, "mib": MIB, "g": GIB, "gib": GIB, "t": KIB * GIB, "tib": KIB * GIB,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
}  # fmt: skip
_SECONDS: Final[Mapping[str, float]] = {"": 1, "ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400}
_NUMBER_AND_UNIT: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?([A-Za-z]*)", re.ASCII)


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
class OriginKeys:
    """Credentials at the origin: a key pair, with a session token or not, or a profile of the AWS configuration files."""

    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    profile: str = ""


@dataclass(frozen=True, slots=True)
class Share:
    """A part of another size: a fraction of it, or so many bytes."""

    fraction: float = 0.0
    size_bytes: int = 0

    def of(self, total_bytes: int) -> int:
        """Give the bytes that the share of `total_bytes` comes to."""
        return self.size_bytes or int(self.fraction * total_bytes)


def parse_size(text: str) -> int:
    """Read bytes: a number with B, KiB, MiB, GiB, TiB (or K, M, G, T) or the decimal KB, MB, GB, TB; any case."""
    number, factor = _number_and_factor(text, _UNITS)
    return int(number * factor)


def parse_size_or_off(text: str) -> int | None:
    """Read bytes as `parse_size` does, or `off` as None."""
    return None if text == "off" else parse_size(text)


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
    return Address(host, whole_number(0, 65535)(port))


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
        return Share(size_bytes=not_under(1, parse_size)(text))
    fraction = float(text[:-1]) / 100
    if not 0 < fraction <= 1:
        raise ValueError("not a percentage of 1 to 100")
    return Share(fraction=fraction)


def _number_and_factor(text: str, units: Mapping[str, float]) -> tuple[float, float]:
    match = _NUMBER_AND_UNIT.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise ValueError("not a number with a unit")
    return float(match[1]), units[match[2].lower()]


def parse_text(text: str) -> str:
    """Take any text."""
    return text


def optional(parse: Callable[[str], T]) -> Callable[[str], T | None]:
    """Make a parser that reads nothing, "", as None."""
    return lambda text: parse(text) if text else None


def parse_url_or_nothing(text: str) -> str:
    """Read what `parse_url` reads, or nothing."""
    return parse_url(text) if text else ""


def parse_names(text: str) -> tuple[str, ...]:
    """Read names with commas between them, in lower case; empty ones are left out."""
    return tuple(name.strip().lower() for name in text.split(",") if name.strip())


def parse_truth(text: str) -> bool:
    """Read `true` or `false`, as TOML writes them."""
    if text not in {"true", "false"}:
        raise ValueError("neither true nor false")
    return text == "true"


def not_under(least: float, parse: Callable[[str], T]) -> Callable[[str], T]:
    """Make a parser that refuses numbers under `least`, in the units of `parse`."""

    def read(text: str) -> T:
        value = parse(text)
        assert isinstance(value, int | float), value
        if value < least:
            raise ValueError("too small")
        return value

    return read


def whole_number(least: int, most: int) -> Callable[[str], int]:
    """Make a parser of decimal digits that stand for `least` to `most`, both included."""

    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 18 and least <= int(text) <= most):
            raise ValueError("not such a number")
        return int(text)

    return read


def one_of(kind: type[E]) -> Callable[[str], E]:
    """Make a parser of the values of an enumeration."""
    return kind


def parse_rate(text: str) -> float:
    """Read a number that is not negative and not infinite."""
    rate = float(text)
    # Written so that a NaN is refused too.
    if not 0 <= rate < float("inf"):
        raise ValueError("not a rate")
    return rate
