import pytest

from storage.origin.endpoint import REGIONS_MAX, OriginSettings, Regions, address, is_aws


def test_path_address_keeps_the_key_as_it_is() -> None:
    """Slashes, dots and escapes of a key are encoded once and never normalised."""
    settings = OriginSettings("http://127.0.0.1:9000/")

    where = address(settings, "b", "//a/../b +%2Fü", (("uploads", ""), ("x", "a/b c")))

    assert where.url == "http://127.0.0.1:9000/b///a/../b%20%2B%252F%C3%BC?uploads=&x=a%2Fb%20c"
    assert where.host == "127.0.0.1:9000"


def test_service_address_has_a_path() -> None:
    """Without a bucket the request goes to the root, below a path of the endpoint."""
    assert address(OriginSettings("http://h"), "", "").url == "http://h/"
    assert address(OriginSettings("http://h/s3/"), "b", "k").url == "http://h/s3/b/k"


def test_virtual_address_puts_the_bucket_into_the_host_where_it_can() -> None:
    """A name with a dot would not fit the certificate and stays in the path."""
    settings = OriginSettings("https://s3.eu-west-1.amazonaws.com", is_virtual_hosted=True)

    assert address(settings, "data", "k").url == "https://data.s3.eu-west-1.amazonaws.com/k"
    assert address(settings, "my.data", "k").url == "https://s3.eu-west-1.amazonaws.com/my.data/k"


@pytest.mark.parametrize(
    ("endpoint", "region", "host"),
    [
        ("https://s3.amazonaws.com", "eu-west-1", "s3.eu-west-1.amazonaws.com"),
        ("https://s3.amazonaws.com", "us-east-1", "s3.amazonaws.com"),
        ("https://s3.us-east-1.amazonaws.com", "eu-west-1", "s3.eu-west-1.amazonaws.com"),
        ("https://s3-fips.us-east-1.amazonaws.com", "us-west-2", "s3-fips.us-west-2.amazonaws.com"),
        ("https://s3.dualstack.us-east-1.amazonaws.com", "us-west-2", "s3.dualstack.us-west-2.amazonaws.com"),
        ("https://s3.cn-north-1.amazonaws.com.cn", "cn-northwest-1", "s3.cn-northwest-1.amazonaws.com.cn"),
        ("https://minio.local:9000", "eu-west-1", "minio.local:9000"),
    ],
)
def test_aws_host_follows_the_region(endpoint: str, region: str, host: str) -> None:
    """AWS has a host for each region, other origins one for all."""
    assert address(OriginSettings(endpoint), "b", "k", region=region).host == host


@pytest.mark.parametrize("url", ["", "ftp://h", "http://", "h:9000", "http://h?x=1"])
def test_wrong_endpoint_is_refused(url: str) -> None:
    """A setting that is no URL of a host stops the start."""
    with pytest.raises(ValueError, match="not an http or https URL"):
        OriginSettings(url)


def test_regions_are_learnt_and_bounded() -> None:
    """What the origin told is kept, news is told apart, and memory is bounded."""
    regions = Regions("us-east-1")

    news = [regions.learn("b", "eu-west-1"), regions.learn("b", "eu-west-1"), regions.learn("c", "us-east-1")]
    for number in range(REGIONS_MAX):
        regions.learn(f"bucket-{number}", "eu-west-1")

    assert news == [True, False, False]
    assert regions.of("bucket-5") == "eu-west-1"
    assert regions.of("b") == "us-east-1"


@pytest.mark.parametrize("region", ["", "a/b", "eu west", "x" * 64, "r\udce9gion", "a:80", "a\n"])
def test_regions_learn_nothing_when_text_is_no_region(region: str) -> None:
    """What would end up in a host name and a signature has to look like a region."""
    regions = Regions("us-east-1")

    assert regions.learn("data", region) is False
    assert regions.of("data") == "us-east-1"


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("https://s3.eu-central-1.amazonaws.com", True),
        ("https://s3.dualstack.us-east-1.amazonaws.com", True),
        ("https://s3.cn-north-1.amazonaws.com.cn", True),
        ("https://bucket.vpce-1a2b.s3.us-east-1.vpce.amazonaws.com", True),
        ("http://127.0.0.1:8333", False),
        ("https://amazonaws.com.example", False),
        ("https://notamazonaws.com", False),
        ("https://example/s3.amazonaws.com", False),
    ],
)
def test_amazon_s3_is_told_by_its_host(endpoint: str, *, expected: bool) -> None:
    """Its own operations are not asked about there; a server of another name is not taken for it."""
    assert is_aws(OriginSettings(endpoint)) is expected
