"""The form reader at any split of its input, and the forms that are none."""

import itertools
import re

import pytest
from hypothesis import example, given, settings, strategies as st

from gateway.s3.errors import S3Error
from gateway.s3.post_form import FIELDS_BYTES_MAX, FormReader, boundary_of

BOUNDARY = b"XyZ"


def field(name: str, value: str | bytes) -> bytes:
    """Write one field."""
    data = value.encode() if isinstance(value, str) else value
    return b'--XyZ\r\nContent-Disposition: form-data; name="' + name.encode() + b'"\r\n\r\n' + data + b"\r\n"


def file_part(data: bytes, filename: str = "f.txt", name: str = "file") -> bytes:
    """Write the part that holds the file."""
    head = f'--XyZ\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n'
    return head.encode() + b"Content-Type: text/plain\r\n\r\n" + data + b"\r\n"


def form(*parts: bytes) -> bytes:
    """Close a form of these parts."""
    return b"".join(parts) + b"--XyZ--\r\n"


def read(body: bytes, cuts: list[int] | None = None) -> tuple[dict[str, str], bytes]:
    """Feed a body cut at these places."""
    reader = FormReader(BOUNDARY)
    places = [0, *sorted(cut % (len(body) + 1) for cut in cuts or []), len(body)]
    data = b"".join(reader.feed(body[a:b]) for a, b in itertools.pairwise(places))
    reader.finish()
    assert reader.form is not None
    return reader.form.fields, data


# Bytes of which boundaries are made, so that files are full of what nearly is one.
LOOKALIKES = st.lists(
    st.sampled_from([b"\r", b"\n", b"-", b"--", b"XyZ", b"\r\n--XyZ", b" ", b"\t", b"q", b"\x00"]),
    max_size=20,
)


@pytest.mark.slow
@settings(max_examples=150)
@given(pieces=LOOKALIKES, cuts=st.lists(st.integers(0, 10_000), max_size=8), trailer=st.booleans())
@example(pieces=[b"\r\n--XyZ", b"q"], cuts=[], trailer=False)
@example(pieces=[b"\r\n--XyZ", b" " * 70, b"\r"], cuts=[], trailer=False)
def test_the_file_is_the_same_when_the_body_is_cut_anywhere(
    pieces: list[bytes], cuts: list[int], trailer: bool
) -> None:
    """Whatever is no boundary's whole line is the file's, byte for byte, wherever the reads end."""
    data = b"".join(pieces)
    end = re.search(rb"\r\n--XyZ(?:--|[ \t]{0,62}\r\n)", data + b"\r\n--XyZ--")
    body = form(field("key", "k"), file_part(data), *([field("submit", "go")] if trailer else []))

    fields, whole = read(body)
    cut_fields, cut = read(body, cuts)
    single_fields, single = read(body, list(range(len(body))))

    assert whole == cut == single
    assert fields == cut_fields == single_fields == {"key": "k"}
    assert end is not None
    assert whole == data[: end.start()]


def test_fields_are_read_when_their_names_have_any_case() -> None:
    """Names count in lower case, values as they are, empty and long ones too; `x-ignore-` and what follows the file are dropped."""
    body = form(
        field("KEY", "a\r\nb\u00fc"),
        field("Content-Type", ""),
        field("x-ignore-me", "1"),
        field("x-ignore-me", "2"),
        file_part(b""),
        field("key", "other"),
    )

    fields, data = read(body)

    assert fields == {"key": "a\r\nb\u00fc", "content-type": ""}
    assert data == b""


@pytest.mark.parametrize(
    ("filename", "base"),
    [
        ("f.txt", "f.txt"),
        ("C:\\dir\\f.txt", "f.txt"),
        ("/some/where/f.txt", "f.txt"),
        ('a\\"b', 'a"b'),
        ("", ""),
        ("\u65e5 \u672c", "\u65e5 \u672c"),
    ],
)
def test_the_variable_is_the_files_name_when_it_stands_in_a_field(filename: str, base: str) -> None:
    """AWS: ${filename} is what follows the last slash or backslash, in every field but the policy, whose text is signed."""
    body = form(field("key", "u/${filename}"), field("policy", "${filename}"), file_part(b"x", filename))

    fields, _ = read(body)

    assert fields == {"key": f"u/{base}", "policy": "${filename}"}


@pytest.mark.parametrize(
    ("content_type", "boundary"),
    [
        ("multipart/form-data; boundary=XyZ", b"XyZ"),
        ('Multipart/Form-Data; charset=utf-8; boundary="a b"', b"a b"),
        (
            "multipart/form-data;boundary=----WebKitFormBoundary7MA4YWxkTrZu0gW",
            b"----WebKitFormBoundary7MA4YWxkTrZu0gW",
        ),
    ],
)
def test_the_boundary_is_read_when_the_type_names_one(content_type: str, boundary: bytes) -> None:
    """Quoted or not, whatever stands beside it."""
    assert boundary_of(content_type) == boundary


@pytest.mark.parametrize(
    ("content_type", "code"),
    [
        (None, "RequestIsNotMultiPartContent"),
        ("application/x-www-form-urlencoded", "RequestIsNotMultiPartContent"),
        ("multipart/form-data", "MalformedPOSTRequest"),
        ("multipart/form-data; boundary=", "MalformedPOSTRequest"),
        ("multipart/form-data; boundary=" + "a" * 71, "MalformedPOSTRequest"),
        ('multipart/form-data; boundary="a\u00fc"', "MalformedPOSTRequest"),
    ],
)
def test_a_form_is_refused_when_its_type_is_another(content_type: str | None, code: str) -> None:
    """What is no form, or has no boundary to find, is told apart."""
    with pytest.raises(S3Error) as raised:
        boundary_of(content_type)

    assert raised.value.code == code


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "MalformedPOSTRequest"),
        (b"--XyZ\r\n", "MalformedPOSTRequest"),
        (b"--other\r\n\r\n", "MalformedPOSTRequest"),
        (b"preamble\r\n" + form(file_part(b"x")), "MalformedPOSTRequest"),
        (b"--XyZ\r\n\r\nvalue\r\n--XyZ--", "MalformedPOSTRequest"),
        (b"--XyZ\r\nContent-Disposition: attachment; name=key\r\n\r\nv\r\n--XyZ--", "MalformedPOSTRequest"),
        (b"--XyZ\r\nContent-Disposition: form-data\r\n\r\nv\r\n--XyZ--", "MalformedPOSTRequest"),
        (form(field("key", b"\xff"), file_part(b"x")), "MalformedPOSTRequest"),
        (form(file_part(b"x"))[:-5], "MalformedPOSTRequest"),
        (
            b'--XyZ\r\nContent-Disposition: form-data; name="file"\r\nContent-Transfer-Encoding: base64\r\n\r\neA==\r\n--XyZ--',
            "MalformedPOSTRequest",
        ),
        (form(field("key", "a"), field("Key", "b"), file_part(b"x")), "InvalidArgument"),
        (form(field("key", "a")), "InvalidArgument"),
        (form(), "InvalidArgument"),
        (form(field("key", "a" * FIELDS_BYTES_MAX), file_part(b"x")), "MaxPostPreDataLengthExceededError"),
        (field("key", "a" * FIELDS_BYTES_MAX), "MaxPostPreDataLengthExceededError"),
        (
            form(*[field(f"k{n}", "v" * 100) for n in range(200)], file_part(b"x")),
            "MaxPostPreDataLengthExceededError",
        ),
        (b"--XyZ\r\nContent-Disposition: " + b"a" * FIELDS_BYTES_MAX, "MaxPostPreDataLengthExceededError"),
        (b"x" * (FIELDS_BYTES_MAX + 1), "MaxPostPreDataLengthExceededError"),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_a_form_is_refused_when_it_is_none(body: bytes, code: str, step: int) -> None:
    """The same code however the body is cut; never more than the fields' bound is held."""
    with pytest.raises(S3Error) as raised:
        read(body, list(range(0, len(body), step)))

    assert raised.value.code == code


def test_little_is_held_back_when_a_file_is_long() -> None:
    """Of a file that is all beginnings of boundaries no more is kept than one of them."""
    reader = FormReader(BOUNDARY)
    reader.feed(field("key", "k") + file_part(b"")[:-2])

    for piece in [b"\r\n--Xy", b"\r\n--XyZ" + b" " * 60, b"\r" * 5000, b"\r\n--X" * 5000, b"-" * 100_000]:
        reader.feed(piece)
        assert len(reader._buffer) < 100


def test_a_form_of_twenty_kilobytes_is_read_when_its_fields_are_many() -> None:
    """Up to the bound everything is taken, at one byte a read, too."""
    fields = [field(f"x-amz-meta-{n}", "v" * 150) for n in range(90)]
    body = form(*fields, file_part(b"x" * 10_000))

    read_fields, data = read(body, list(range(0, 25_000, 17)))

    assert len(read_fields) == 90
    assert data == b"x" * 10_000
