import pytest
from hypothesis import given, strategies as st

from gateway.s3.errors import S3Error
from gateway.s3.tagging import Tags, check_tags, decode_tags, encode_tags, read_tagging, tag_count


@pytest.mark.parametrize(
    ("header", "stored"),
    [
        (None, ""),
        ("", ""),
        ("a=1", "a=1"),
        ("foo=bar&bar", "bar=&foo=bar"),
        ("project+name=x%2Fy%20z", "project%20name=x%2Fy%20z"),
        ("k=a=b", "k=a%3Db"),
        ("%C3%A9=%E2%82%AC1".replace("%E2%82%AC", "%E4%BA%8C"), "%C3%A9=%E4%BA%8C1"),
    ],
)
def test_read_tagging_gives_one_spelling_of_the_header(header: str | None, stored: str) -> None:
    """However a client spells its tags, they are stored sorted and encoded in one way."""
    assert read_tagging(header) == stored


@pytest.mark.parametrize(
    ("header", "code"),
    [
        ("&".join(f"k{n}=v" for n in range(11)), "InvalidTag"),
        ("a=1&a=2", "InvalidTag"),
        ("=1", "InvalidTag"),
        ("k" * 129 + "=1", "InvalidTag"),
        ("k=" + "v" * 257, "InvalidTag"),
        ("aws:k=1", "InvalidTag"),
        ("k=a%0Ab", "InvalidTag"),
        ("k=%3Cb%3E", "InvalidTag"),
        ("k=%FF", "InvalidArgument"),
        ("k=\udcff", "InvalidArgument"),
    ],
)
def test_read_tagging_refuses_when_tags_are_past_the_limits(header: str, code: str) -> None:
    """Number, lengths, characters and names are checked as S3 does, so that the flush is not refused later."""
    with pytest.raises(S3Error) as caught:
        read_tagging(header)

    assert (caught.value.code, caught.value.status) == (code, 400)


def test_check_tags_takes_the_longest_tags_there_are() -> None:
    """Ten tags of 128 and 256 characters pass unchanged."""
    tags = tuple((f"{n}" + "é" * 127, "+-=._:/@ " + "9" * 247) for n in range(10))

    assert check_tags(tags) is tags


@given(st.dictionaries(st.text(min_size=1), st.text(), max_size=10).map(lambda tags: tuple(tags.items())))
def test_decode_tags_reads_what_encode_tags_writes(tags: Tags) -> None:
    """Every text survives the stored form, and the number is told without reading it."""
    stored = encode_tags(tags)

    assert decode_tags(stored) == tuple(sorted(tags))
    assert tag_count(stored) == len(tags)
