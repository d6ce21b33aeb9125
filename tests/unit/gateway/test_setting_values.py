import pytest

from gateway.setting_values import (
    Share,
    optional,
    parse_duration,
    parse_freshness,
    parse_share,
    parse_size,
    parse_size_or_off,
    whole_number,
)
from storage.policy import Freshness, FreshnessMode
from storage.types import GIB, MIB


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("512", 512), ("10GiB", 10 * GIB), ("10 gib", 10 * GIB), ("1.5MiB", 1_572_864), ("2TB", 2 * 10**12), ("3K", 3072),
     ("1KB", 1000), ("7b", 7)],
)  # fmt: skip
def test_parse_size_reads_both_families_of_units(text: str, size: int) -> None:
    """Binary and decimal units, in any case."""
    assert parse_size(text) == size


@pytest.mark.parametrize(("text", "size"), [("off", None), ("64MiB", 64 * MIB), ("0", 0)])
def test_parse_size_or_off_reads_a_size_or_off(text: str, size: int | None) -> None:
    """Off is no size; 0 is one."""
    assert parse_size_or_off(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "-1", "1 0", "10GiBs", "1e3", "0x10", "1,5MiB", "٣"])
def test_parse_size_refuses_when_the_text_is_no_size(text: str) -> None:
    """Anything else is no size."""
    with pytest.raises(ValueError, match="not a number with a unit"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("500ms", 0.5), ("60s", 60), ("5m", 300), ("2h", 7200), ("7d", 604_800)]
)
def test_parse_duration_reads_each_unit(text: str, seconds: float) -> None:
    """A bare number is seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "freshness"),
    [
        ("60s", Freshness(FreshnessMode.TTL, 60)),
        ("0", Freshness(FreshnessMode.TTL, 0)),
        ("always", Freshness(FreshnessMode.ALWAYS)),
        ("immutable", Freshness(FreshnessMode.IMMUTABLE)),
    ],
)
def test_parse_freshness_reads_mode_or_ttl(text: str, freshness: Freshness) -> None:
    """A time to live, or one of the two words."""
    assert parse_freshness(text) == freshness


@pytest.mark.parametrize(("text", "size"), [("25%", 256 * MIB), ("100%", GIB), ("64MiB", 64 * MIB)])
def test_parse_share_is_a_fraction_or_a_size(text: str, size: int) -> None:
    """A percentage is taken of the other size; a size stands by itself."""
    assert parse_share(text).of(GIB) == size
    assert Share(fraction=0.25).of(GIB) == 256 * MIB


def test_optional_reads_nothing_as_none_and_hands_the_rest_on() -> None:
    """Only the empty text is None; a zero is a value."""
    parse = optional(whole_number(0, 9))

    assert parse("") is None
    assert parse("0") == 0
    with pytest.raises(ValueError, match="not such a number"):
        parse("10")
