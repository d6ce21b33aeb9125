"""Where the origin is: settings, addresses of requests, the region of each bucket.

Pure. The path is percent-encoded once, here, and both signed and sent as it is: no normalisation of `//`, `..`, `%2F`.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Final
from urllib.parse import urlsplit

import msgspec

from storage.origin.signing import uri_encode

_BUCKETS_MAX: Final = 1024
"""The addresses of so many buckets are remembered."""

REGIONS_MAX: Final = 10_000
"""So many buckets' regions are remembered; then the oldest is forgotten and learnt again."""

CONNECTIONS_MIN: Final = 512
"""So many connections to the origin are allowed at least; the limiter lets fewer be used."""

_AWS_HOST: Final = re.compile(
    r"^s3(?P<flavour>-fips)?(?P<dualstack>\.dualstack)?(?:[.-](?P<region>[a-z0-9-]+))?\.(?P<suffix>amazonaws\.com(?:\.cn)?)$"
)
_AWS_SUFFIX: Final = re.compile(r"\.amazonaws\.com(?:\.cn)?$")
_REGION: Final = re.compile(r"[A-Za-z0-9._-]{1,63}")
_DNS_BUCKET: Final = re.compile(r"^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$")


@dataclass(frozen=True, slots=True)
class OriginSettings:
    """What the settings say of the origin.

    Attributes:
        endpoint_url: `http://host:port` or `https://host`, a path allowed.
        is_virtual_hosted: Put the bucket into the host name where its name can be a label; else into the path.
        ca_bundle: File of certificates to trust; "" for the system's.
        connect_s: Longest wait for a connection.
        answer_s: Longest wait for the head of an answer once the request is sent.
        stall_s: Longest pause within a body, either way.
        read_attempts: Tries of a read, the first one included.
        connections_max: Most connections at a time.
    """

    endpoint_url: str
    region: str = "us-east-1"
    is_virtual_hosted: bool = False
    access_key: str = ""
    secret_key: str = ""
    session_token: str = ""
    ca_bundle: str = ""
    connect_s: float = 5.0
    answer_s: float = 30.0
    stall_s: float = 30.0
    read_attempts: int = 4
    connections_max: int = CONNECTIONS_MIN

    def __post_init__(self) -> None:
        parts = urlsplit(self.endpoint_url)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise ValueError(f"not an http or https URL of a host: {self.endpoint_url!r}")
        if min(self.connect_s, self.answer_s, self.stall_s) <= 0 or self.read_attempts < 1:
            raise ValueError("time-outs and attempts must be positive")

    @property
    def is_tls(self) -> bool:
        """Whether bodies are protected on the way, so that they need not be signed."""
        return self.endpoint_url.startswith("https:")


class Address(msgspec.Struct, frozen=True, gc=False):
    """Where one request goes: what is sent is what is signed."""

    scheme: str
    host: str
    path: str
    query: str = ""

    @property
    def url(self) -> str:
        """The whole URL, encoded."""
        return f"{self.scheme}://{self.host}{self.target}"

    @property
    def target(self) -> str:
        """Path and query as they stand in the request line and in the signature."""
        return f"{self.path}?{self.query}" if self.query else self.path


def address(
    settings: OriginSettings,
    bucket: str,
    key: str,
    query: tuple[tuple[str, str], ...] = (),
    *,
    region: str = "",
) -> Address:
    """Address a bucket or object; `bucket` "" is the service itself.

    An AWS host is exchanged for the one of `region`; any other serves all regions.
    """
    scheme, host, path = _bucket_address(
        settings.endpoint_url, bucket, region, is_virtual_hosted=settings.is_virtual_hosted
    )
    return Address(
        scheme,
        host,
        f"{path}/{uri_encode(key, keep_slash=True)}" if key else path or "/",
        encode_query(query) if query else "",
    )


@lru_cache(maxsize=_BUCKETS_MAX)
def _bucket_address(
    endpoint_url: str, bucket: str, region: str, *, is_virtual_hosted: bool
) -> tuple[str, str, str]:
    """Give scheme, host and path of a bucket."""
    parts = urlsplit(endpoint_url)
    host = _host_of_region(parts.netloc.rpartition("@")[2], region)
    path = parts.path.rstrip("/")
    if is_virtual_hosted and _DNS_BUCKET.match(bucket):
        host = f"{bucket}.{host}"
    elif bucket:
        path = f"{path}/{uri_encode(bucket)}"
    return parts.scheme, host, path


def is_aws(settings: OriginSettings) -> bool:
    """Whether the origin is Amazon S3 itself, by a host of its own or by one of a VPC endpoint."""
    return _AWS_SUFFIX.search(urlsplit(settings.endpoint_url).hostname or "") is not None


def is_region(text: str) -> bool:
    """Say whether text can name a region: it becomes part of a host name and of signatures."""
    return _REGION.fullmatch(text) is not None


def encode_query(query: tuple[tuple[str, str], ...]) -> str:
    """Percent-encode a query in the order given. A flag such as `uploads` has an empty value, written `uploads=`."""
    return "&".join(f"{uri_encode(name)}={uri_encode(value)}" for name, value in query)


class Regions:
    """The region of each bucket: the settings' until the origin told another."""

    def __init__(self, default: str) -> None:
        self._default = default
        self._learnt: dict[str, str] = {}

    def of(self, bucket: str) -> str:
        """Give the region to sign for."""
        return self._learnt.get(bucket, self._default)

    def learn(self, bucket: str, region: str) -> bool:
        """Keep what the origin told; say whether it is news. What cannot be a region is none."""
        if not bucket or not is_region(region) or self.of(bucket) == region:
            return False
        if len(self._learnt) >= REGIONS_MAX:
            del self._learnt[next(iter(self._learnt))]
        self._learnt[bucket] = region
        return True


def _host_of_region(host: str, region: str) -> str:
    aws = _AWS_HOST.match(host)
    if aws is None or not region or aws["region"] == region or region == "aws-global":
        return host
    if aws["region"] is None and region == "us-east-1":
        return host
    return f"s3{aws['flavour'] or ''}{aws['dualstack'] or ''}.{region}.{aws['suffix']}"
