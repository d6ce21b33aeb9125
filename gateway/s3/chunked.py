"""The aws-chunked framing of request bodies: bytes in, payload out, no I/O.

Source: AWS "Signature calculations for the Authorization header: transferring payload in multiple chunks" (with and without
trailing headers). The body of the HTTP request is

    body    = *chunk last [trailers] CRLF
    chunk   = size [";chunk-signature=" 64hex] CRLF size-bytes CRLF         size in hex, more than 0
    last    = "0"  [";chunk-signature=" 64hex] CRLF
    trailers = *(name ":" value LF) [ "x-amz-trailer-signature:" 64hex LF ]    each LF with an optional CR before it

`AwsChunkedDecoder` walks through four states, each of which consumes bytes until it knows the next one:

    LINE --size 0--> TRAILERS (to the end of the body, read by `finish`)
    LINE --size n--> DATA --n bytes--> DATA_END --CRLF--> LINE

The blank line that ends the trailers is not looked for as it arrives: some clients put one between the trailers and their
signature. All that follows the last chunk is kept, bounded, and taken apart when the body has ended.

What is promised about signatures: a chunk of up to HELD_CHUNK_BYTES_MAX is released only once its signature holds. A larger
one is released as it arrives, and its signature is checked when its last byte has come; so a caller who forwards pieces holds
back the last one until `finish` has returned, and then nothing unverified is ever completed.
"""

import hashlib
import hmac
import re
from enum import Enum, StrEnum, auto
from typing import Final, Protocol

from gateway.s3.errors import ErrorCode, S3Error

HELD_CHUNK_BYTES_MAX: Final = 1024 * 1024
"""The largest chunk that is held back until its signature is checked; SDKs send 64 KiB to 1 MiB."""

LINE_BYTES_MAX: Final = 128
"""The longest chunk header line: 16 digits, `;chunk-signature=`, 64 digits and CRLF are 99."""

TRAILER_BYTES_MAX: Final = 4096
"""All that may follow the last chunk: a checksum and a signature are under 200 bytes."""

TRAILER_SIGNATURE: Final = "x-amz-trailer-signature"

_EMPTY_SHA256: Final = hashlib.sha256(b"").hexdigest()
_SIGNED_LINE: Final = re.compile(rb"([0-9a-fA-F]{1,16});chunk-signature=([0-9a-f]{64})\r\n")
_UNSIGNED_LINE: Final = re.compile(rb"([0-9a-fA-F]{1,16})\r\n")
_TRAILER_LINE: Final = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+)[ \t]*:[ \t]*([\x21-\x7e]+)[ \t]*")


class ChunkedForm(StrEnum):
    """The values of x-amz-content-sha256 that announce aws-chunked framing."""

    SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
    SIGNED_TRAILER = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"
    UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


def chunked_form(content_sha256: str | None) -> ChunkedForm | None:
    """Say which framing x-amz-content-sha256 announces; None where the body comes as it is."""
    if content_sha256 is None or not content_sha256.startswith("STREAMING-"):
        return None
    try:
        return ChunkedForm(content_sha256)
    except ValueError as error:
        raise S3Error(
            ErrorCode.NOT_IMPLEMENTED,
            f"This form of a streamed payload is not supported: {content_sha256[:64]}",
        ) from error


class ChunkSigner(Protocol):
    """The key, date and scope of the request's signature, applied to its chunks."""

    def chunk_signature(self, previous: str, chunk_sha256_hex: str) -> str:
        """Sign one chunk: 64 hex digits from the signature before it and the SHA-256 of its bytes."""
        ...

    def trailer_signature(self, previous: str, trailer_sha256_hex: str) -> str:
        """Sign the trailers: from the last chunk's signature and the SHA-256 of `name:value LF` lines."""
        ...


class _State(Enum):
    LINE = auto()
    DATA = auto()
    DATA_END = auto()
    TRAILERS = auto()


class AwsChunkedDecoder:
    r"""Takes the framing off one body. Not to be used again after an error.

    Args:
        form: The framing that the request announced.
        decoded_length: x-amz-decoded-content-length, the bytes of the payload.
        trailer_names: The names in x-amz-trailer, lower case; the body must bring these and no others.
        signer: Checks chunks and trailers; needed by the signed forms, ignored by the other.
        seed_signature: The signature of the request itself, which the first chunk's continues.
    """

    def __init__(
        self,
        form: ChunkedForm,
        decoded_length: int,
        *,
        trailer_names: frozenset[str] = frozenset(),
        signer: ChunkSigner | None = None,
        seed_signature: str = "",
    ) -> None:
        is_signed = form is not ChunkedForm.UNSIGNED_TRAILER
        assert signer is not None or not is_signed, "a signed form needs a signer"
        self._signer: Final = signer if is_signed else None
        self._line_pattern: Final = _SIGNED_LINE if is_signed else _UNSIGNED_LINE
        self._trailer_names: Final = trailer_names if form is not ChunkedForm.SIGNED else frozenset[str]()
        self._decoded_length: Final = decoded_length
        self._state = _State.LINE
        self._partial = bytearray()
        self._announced = 0
        self._chunk_left = 0
        self._previous_signature = seed_signature
        self._chunk_signature = ""
        self._chunk_digest = hashlib.sha256()
        self._held: list[bytes] | None = None

    def feed(self, data: bytes) -> list[bytes]:
        """Take the next bytes of the body; give the payload that may be released, in order, no piece empty.

        How the body is split among calls changes where pieces begin, never what they add up to. Each byte is copied at
        most once; a call that lies inside one chunk gives back `data` itself.

        Raises:
            S3Error: SignatureDoesNotMatch (403), IncompleteBody (400, more or less payload than announced),
                InvalidRequest (400, no such framing), MalformedTrailerError (400).
        """
        released: list[bytes] = []
        at = 0
        while at < len(data):
            if self._state is _State.DATA:
                at = self._take_payload(data, at, released)
            elif self._state is _State.LINE:
                at = self._take_line(data, at)
            elif self._state is _State.DATA_END:
                at = self._take_data_end(data, at)
            else:
                at = self._take_trailers(data, at)
        return released

    def finish(self) -> dict[str, str]:
        """Tell that the body has ended; give the trailers, lower-case names, without their signature.

        Raises:
            S3Error: IncompleteBody (400) where the body ended early, MalformedTrailerError (400),
                SignatureDoesNotMatch (403).
        """
        section = bytes(self._partial)
        if self._state is not _State.TRAILERS or not section.endswith(b"\r\n"):
            raise _incomplete()
        trailers = _parse_trailers(section)
        signature = trailers.pop(TRAILER_SIGNATURE, None)
        if trailers.keys() != self._trailer_names:
            raise _malformed_trailer()
        if self._trailer_names and self._signer is not None:
            self._check_trailer_signature(self._signer, trailers, signature)
        elif signature is not None:
            raise _malformed_trailer()
        return trailers

    def _take_line(self, data: bytes, at: int) -> int:
        # The line feed ends the line wherever it stands; the pattern then says whether it is a chunk's header.
        end = data.find(b"\n", at, at + LINE_BYTES_MAX)
        stop = min(len(data), at + LINE_BYTES_MAX) if end < 0 else end + 1
        self._partial += data[at:stop]
        if len(self._partial) > LINE_BYTES_MAX or (end < 0 and len(self._partial) == LINE_BYTES_MAX):
            raise _bad_framing()
        if end >= 0:
            line = bytes(self._partial)
            self._partial.clear()
            self._begin_chunk(line)
        return stop

    def _begin_chunk(self, line: bytes) -> None:
        match = self._line_pattern.fullmatch(line)
        if match is None:
            raise _bad_framing()
        size = int(match[1], 16)
        self._announced += size
        if self._announced > self._decoded_length:
            raise _incomplete()
        if self._signer is not None:
            self._chunk_signature = match[2].decode("ascii")
        if size == 0:
            self._end_chunks()
            return
        self._state = _State.DATA
        self._chunk_left = size
        if self._signer is not None:
            self._chunk_digest = hashlib.sha256()
            self._held = [] if size <= HELD_CHUNK_BYTES_MAX else None

    def _end_chunks(self) -> None:
        if self._announced != self._decoded_length:
            raise _incomplete()
        self._check_chunk_signature(_EMPTY_SHA256)
        self._state = _State.TRAILERS

    def _take_payload(self, data: bytes, at: int, released: list[bytes]) -> int:
        stop = min(len(data), at + self._chunk_left)
        piece = data[at:stop]
        self._chunk_left -= len(piece)
        if self._signer is not None:
            self._chunk_digest.update(piece)
        if self._held is not None:
            self._held.append(piece)
        if self._chunk_left == 0:
            self._check_chunk_signature(self._chunk_digest.hexdigest())
            self._state = _State.DATA_END
        if self._held is None:
            released.append(piece)
        elif self._chunk_left == 0:
            released += self._held
            self._held = None
        return stop

    def _take_data_end(self, data: bytes, at: int) -> int:
        stop = min(len(data), at + 2 - len(self._partial))
        self._partial += data[at:stop]
        if not b"\r\n".startswith(self._partial):
            raise _bad_framing()
        if len(self._partial) == 2:
            self._partial.clear()
            self._state = _State.LINE
        return stop

    def _take_trailers(self, data: bytes, at: int) -> int:
        if len(self._partial) + len(data) - at > TRAILER_BYTES_MAX:
            raise _malformed_trailer()
        self._partial += data[at:]
        return len(data)

    def _check_chunk_signature(self, sha256_hex: str) -> None:
        if self._signer is None:
            return
        expected = self._signer.chunk_signature(self._previous_signature, sha256_hex)
        if not hmac.compare_digest(expected, self._chunk_signature):
            raise _wrong_signature()
        self._previous_signature = expected

    def _check_trailer_signature(
        self, signer: ChunkSigner, trailers: dict[str, str], signature: str | None
    ) -> None:
        if signature is None:
            raise _malformed_trailer()
        signed = "".join(f"{name}:{value}\n" for name, value in trailers.items())
        sha256_hex = hashlib.sha256(signed.encode("ascii")).hexdigest()
        expected = signer.trailer_signature(self._previous_signature, sha256_hex)
        if not hmac.compare_digest(expected, signature):
            raise _wrong_signature()


def _parse_trailers(section: bytes) -> dict[str, str]:
    """Take the trailers apart; the last line must be blank, further blank lines are passed over."""
    try:
        lines = section.decode("ascii").split("\n")
    except UnicodeDecodeError as error:
        raise _malformed_trailer() from error
    # The section ends in CRLF, so the last element is "" and the one before it the line that must be blank.
    if lines[-2] != "\r":
        raise _incomplete()
    trailers: dict[str, str] = {}
    for line in lines:
        text = line.removesuffix("\r")
        if not text:
            continue
        match = _TRAILER_LINE.fullmatch(text)
        if match is None or match[1].lower() in trailers:
            raise _malformed_trailer()
        trailers[match[1].lower()] = match[2]
    return trailers


def _incomplete() -> S3Error:
    return S3Error(
        ErrorCode.INCOMPLETE_BODY,
        "You did not provide the number of bytes specified by the x-amz-decoded-content-length header",
    )


def _bad_framing() -> S3Error:
    return S3Error(
        ErrorCode.INVALID_REQUEST, "The request body is not in the aws-chunked form it was announced in"
    )


def _malformed_trailer() -> S3Error:
    return S3Error(
        ErrorCode.MALFORMED_TRAILER,
        "The request contained trailing data that was not well-formed or did not conform to our published schema.",
    )


def _wrong_signature() -> S3Error:
    return S3Error(
        ErrorCode.SIGNATURE_DOES_NOT_MATCH,
        "A chunk signature we calculated does not match the signature you provided.",
    )
