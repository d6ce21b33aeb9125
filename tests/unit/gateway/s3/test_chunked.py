import base64
import hashlib
import zlib
from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, strategies as st

from gateway.s3.chunked import HELD_CHUNK_BYTES_MAX, AwsChunkedDecoder, ChunkedForm, chunked_form
from gateway.s3.errors import S3Error
from storage.origin import signing

AMZ_DATE = "20130524T000000Z"
SCOPE = "20130524/us-east-1/s3/aws4_request"
KEY = signing.signing_key("wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", "20130524", "us-east-1")
SEED = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
CRC_NAME = "x-amz-checksum-crc32"


class Signer:
    """The signer of AWS's documented example."""

    def chunk_signature(self, previous: str, chunk_sha256_hex: str) -> str:
        return signing.chunk_signature(KEY, AMZ_DATE, SCOPE, previous, chunk_sha256_hex)

    def trailer_signature(self, previous: str, trailer_sha256_hex: str) -> str:
        return signing.trailer_signature(KEY, AMZ_DATE, SCOPE, previous, trailer_sha256_hex)


def crc32_of(payload: bytes) -> str:
    """Give the value of x-amz-checksum-crc32."""
    return base64.b64encode(zlib.crc32(payload).to_bytes(4)).decode()


def framed(form: ChunkedForm, chunks: Sequence[bytes], line_end: bytes = b"\r\n") -> bytes:
    """Frame chunks as a client does; the reference that the decoder must undo."""
    is_signed = form is not ChunkedForm.UNSIGNED_TRAILER
    previous, body = SEED, b""
    for chunk in (*chunks, b""):
        body += b"%x" % len(chunk)
        if is_signed:
            previous = Signer().chunk_signature(previous, hashlib.sha256(chunk).hexdigest())
            body += b";chunk-signature=" + previous.encode()
        body += b"\r\n" + chunk + (b"\r\n" if chunk else b"")
    if form is not ChunkedForm.SIGNED:
        trailer = f"{CRC_NAME}:{crc32_of(b''.join(chunks))}"
        body += trailer.encode() + line_end
        if is_signed:
            digest = hashlib.sha256(f"{trailer}\n".encode()).hexdigest()
            body += (
                b"x-amz-trailer-signature:" + Signer().trailer_signature(previous, digest).encode() + b"\r\n"
            )
    return body + b"\r\n"


def decoder_of(form: ChunkedForm, length: int) -> AwsChunkedDecoder:
    """Make a decoder that expects what `framed` writes."""
    names = frozenset() if form is ChunkedForm.SIGNED else frozenset({CRC_NAME})
    return AwsChunkedDecoder(form, length, trailer_names=names, signer=Signer(), seed_signature=SEED)


def decoded(decoder: AwsChunkedDecoder, pieces: Iterable[bytes]) -> tuple[bytes, dict[str, str]]:
    """Feed all pieces; give the payload and the trailers."""
    released = [piece for data in pieces for piece in decoder.feed(data)]
    assert all(released), "no piece is empty"
    return b"".join(released), decoder.finish()


def code_of(decoder: AwsChunkedDecoder, body: bytes) -> str:
    """Give the code of the error that a body must end in."""
    with pytest.raises(S3Error) as caught:
        decoded(decoder, [body])
    return caught.value.code


forms = st.sampled_from(ChunkedForm)
framing_like = st.sampled_from(
    [
        b"\r\n",
        b"0\r\n\r\n",
        b"5;chunk-signature=" + b"0" * 64 + b"\r\nhello\r\n",
        b"x-amz-checksum-crc32:AAAA\r\n",
    ]
)
chunk_lists = st.lists(st.one_of(st.binary(min_size=1, max_size=200), framing_like), max_size=6)


@given(form=forms, chunks=chunk_lists, data=st.data())
def test_feed_gives_the_payload_however_the_body_is_split(
    form: ChunkedForm, chunks: list[bytes], data: st.DataObject
) -> None:
    """B02: any split of any framing, also of payload that looks like framing, gives the payload and the trailers."""
    body = framed(form, chunks)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]
    payload = b"".join(chunks)

    result = decoded(decoder_of(form, len(payload)), pieces)

    assert result == (payload, {} if form is ChunkedForm.SIGNED else {CRC_NAME: crc32_of(payload)})


@pytest.mark.parametrize("form", ChunkedForm)
def test_finish_refuses_when_the_body_is_cut_anywhere(form: ChunkedForm) -> None:
    """B03: no proper beginning of a body passes for a whole one."""
    body = framed(form, [b"abc", b"0\r\n\r\n"])

    for stop in range(len(body)):
        assert code_of(decoder_of(form, 8), body[:stop]) == "IncompleteBody"


@given(chunks=chunk_lists, data=st.data())
def test_feed_refuses_when_a_bit_of_a_signed_body_is_flipped(
    chunks: list[bytes], data: st.DataObject
) -> None:
    """No damage of a signed body goes unseen, wherever it falls."""
    body = bytearray(framed(ChunkedForm.SIGNED_TRAILER, chunks))
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 6))
    decoder = decoder_of(ChunkedForm.SIGNED_TRAILER, len(b"".join(chunks)))

    try:
        payload, trailers = decoded(decoder, [bytes(body)])
    except S3Error:
        return

    # What may differ without a harm is the case of a hex digit of a size, or of a trailer's name.
    assert (payload, trailers) == (b"".join(chunks), {CRC_NAME: crc32_of(payload)})


def test_feed_verifies_the_chunks_of_the_documented_example() -> None:
    """AWS's own example of 65 KiB of `a` in two chunks decodes, signature by signature."""
    signatures = (
        b"ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        b"0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        b"b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    )
    sizes = (65536, 1024, 0)
    body = b"".join(
        b"%x;chunk-signature=%s\r\n%s\r\n" % (size, signature, b"a" * size)
        for size, signature in zip(sizes, signatures, strict=True)
    )

    payload, trailers = decoded(decoder_of(ChunkedForm.SIGNED, 66560), [body])

    assert payload == b"a" * 66560
    assert trailers == {}


def test_feed_gives_back_the_call_itself_when_it_lies_inside_a_chunk() -> None:
    """Payload is not copied where it need not be."""
    decoder = decoder_of(ChunkedForm.UNSIGNED_TRAILER, 1 << 20)
    decoder.feed(b"100000\r\n")
    data = bytes(64 * 1024)

    released = decoder.feed(data)

    assert released[0] is data


def test_feed_releases_nothing_of_a_held_chunk_when_its_signature_is_wrong() -> None:
    """Bytes of a chunk of ordinary size are never seen before they are verified."""
    body = bytearray(framed(ChunkedForm.SIGNED, [b"good", b"evil"]))
    body[body.index(b"evil")] = ord("E")
    decoder = decoder_of(ChunkedForm.SIGNED, 8)
    until_bad_chunk_ends = body.index(b"Evil") + 3

    assert decoder.feed(bytes(body[:until_bad_chunk_ends])) == [b"good"]
    with pytest.raises(S3Error) as caught:
        decoder.feed(bytes(body[until_bad_chunk_ends:]))

    assert (caught.value.code, caught.value.status) == ("SignatureDoesNotMatch", 403)


def test_feed_releases_a_large_chunk_as_it_arrives_but_not_its_end_when_its_signature_is_wrong() -> None:
    """A chunk too large to hold streams, and its last piece comes only with its signature."""
    size = HELD_CHUNK_BYTES_MAX + 2
    decoder = decoder_of(ChunkedForm.SIGNED, size)
    decoder.feed(b"%x;chunk-signature=%s\r\n" % (size, b"0" * 64))

    assert decoder.feed(b"a" * (size - 1)) == [b"a" * (size - 1)]
    with pytest.raises(S3Error):
        decoder.feed(b"a")


@pytest.mark.parametrize(("declared", "code"), [(2, "IncompleteBody"), (4, "IncompleteBody")])
def test_feed_refuses_when_the_payload_is_not_as_long_as_declared(declared: int, code: str) -> None:
    """B03: more or less than x-amz-decoded-content-length is no complete body."""
    body = framed(ChunkedForm.UNSIGNED_TRAILER, [b"abc"])

    assert code_of(decoder_of(ChunkedForm.UNSIGNED_TRAILER, declared), body) == code


@pytest.mark.parametrize(
    "body",
    [b"zz\r\n", b"\r\n", b"3\nabc\r\n", b"3;chunk-signature=" + b"0" * 64 + b"\r\nabc\r\n", b"3\r\nabcX\n", b"3\r\nabc\rX",
     b"-3\r\n", b"0x3\r\nabc\r\n", b"3" * 17 + b"\r\n", b"3" * 10_000],
)  # fmt: skip
def test_feed_refuses_when_the_framing_is_broken(body: bytes) -> None:
    """What is not the announced framing is refused as soon as it shows, a line without an end too."""
    assert code_of(decoder_of(ChunkedForm.UNSIGNED_TRAILER, 3), body) == "InvalidRequest"


@pytest.mark.parametrize(
    "section",
    [
        b"\r\n",
        b"x-amz-checksum-crc32c:AAAAAA==\r\n\r\n",
        b"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-checksum-crc32:AAAAAA==\r\n\r\n",
        b"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-meta-a:b\r\n\r\n",
        b"x-amz-checksum-crc32:AAAAAA==\r\nx-amz-trailer-signature:00\r\n\r\n",
        b"x-amz-checksum-crc32\r\n\r\n",
        b"x-amz-checksum-crc32:\xff\xff\r\n\r\n",
        b"x-amz-checksum-crc32:" + b"A" * 5000 + b"\r\n\r\n",
    ],
)
def test_finish_refuses_when_the_trailers_are_not_those_announced(section: bytes) -> None:
    """Trailers that are missing, others, repeated, signed where nothing is, or endless are 400."""
    body = b"3\r\nabc\r\n0\r\n" + section

    assert code_of(decoder_of(ChunkedForm.UNSIGNED_TRAILER, 3), body) == "MalformedTrailerError"


def test_finish_refuses_when_a_signed_form_has_no_trailer_signature() -> None:
    """A signed trailer cannot be stripped of its signature."""
    body = framed(ChunkedForm.SIGNED_TRAILER, [b"abc"])
    unsigned = body[: body.index(b"x-amz-trailer-signature")] + b"\r\n"

    assert code_of(decoder_of(ChunkedForm.SIGNED_TRAILER, 3), unsigned) == "MalformedTrailerError"


def test_finish_refuses_when_the_trailer_signature_is_wrong() -> None:
    """A checksum replaced together with the payload's is caught by the signature."""
    body = framed(ChunkedForm.SIGNED_TRAILER, [b"abc"])
    forged = body.replace(crc32_of(b"abc").encode(), b"AAAAAA==")

    assert code_of(decoder_of(ChunkedForm.SIGNED_TRAILER, 3), forged) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("form", [ChunkedForm.SIGNED_TRAILER, ChunkedForm.UNSIGNED_TRAILER])
def test_finish_reads_trailers_when_a_blank_line_stands_before_their_end(form: ChunkedForm) -> None:
    """Some clients end the checksum with a bare line feed and a blank line; that is read too."""
    body = framed(form, [b"abc"], line_end=b"\n\r\n")

    assert decoded(decoder_of(form, 3), [body]) == (b"abc", {CRC_NAME: crc32_of(b"abc")})


def test_finish_needs_no_trailer_signature_when_no_trailer_was_announced() -> None:
    """The trailer form without trailers is the plain form."""
    decoder = AwsChunkedDecoder(ChunkedForm.UNSIGNED_TRAILER, 3)

    assert decoded(decoder, [b"3\r\nabc\r\n0\r\n\r\n"]) == (b"abc", {})


def test_chunked_form_tells_framing_from_digests() -> None:
    """Only the STREAMING- values announce framing, and only three of them are known."""
    assert chunked_form("STREAMING-UNSIGNED-PAYLOAD-TRAILER") is ChunkedForm.UNSIGNED_TRAILER
    assert chunked_form("UNSIGNED-PAYLOAD") is None
    assert chunked_form(None) is None
    with pytest.raises(S3Error) as caught:
        chunked_form("STREAMING-AWS4-ECDSA-P256-SHA256-PAYLOAD")
    assert caught.value.status == 501
