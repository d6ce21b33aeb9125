"""The multipart/form-data body of a POST upload: fields first, then one file, read as it streams.

Sources: AWS S3 API Reference "POST Object" and "Browser-Based Uploads Using POST", RFC 7578 (form-data), RFC 2046 section 5.1
(boundaries). `file` is the last field that counts: what follows it (a submit button, mostly) is dropped unread, as AWS says.

`FormReader` takes the body at any split. Up to the file's first byte it holds at most FIELDS_BYTES_MAX; of the file it holds
back no more than could be the beginning of a boundary.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from gateway.s3.errors import ErrorCode, S3Error, invalid_argument
from storage.types import KIB

FIELDS_BYTES_MAX: Final = 20 * KIB
"""Of a form, boundaries included and the file's bytes not (AWS "HTML forms")."""

IGNORED_PREFIX: Final = "x-ignore-"

FILENAME_VARIABLE: Final = "${filename}"

_BOUNDARY_CHARACTERS_MAX: Final = 70
"""RFC 2046 section 5.1.1."""

_PADDING_BYTES_MAX: Final = 64
"""So many blanks may follow a boundary on its line; what goes on for longer is no boundary."""

_BOUNDARY: Final = re.compile(r"[0-9A-Za-z'()+_,./:=? -]{0,69}[0-9A-Za-z'()+_,./:=?-]", re.ASCII)
_PARAMETER: Final = re.compile(r';\s*([!#$%&\'*+.^_`|~0-9A-Za-z-]+)\s*=\s*("(?:\\.|[^"\\])*"|[^;\s"]*)\s*')
_QUOTED_PAIR: Final = re.compile(r'\\(["\\])')
_LINE_END: Final = re.compile(rb"[ \t]*\r\n")
_BLANKS: Final = b" \t"


class PostForm(msgspec.Struct, frozen=True, gc=False):
    """The fields of a form, names in lower case, `${filename}` replaced; those that AWS ignores are left out."""

    fields: dict[str, str]


def boundary_of(content_type: str | None) -> bytes:
    """Give the boundary that a Content-Type names.

    Raises:
        S3Error: RequestIsNotMultiPartContent: it is another type; MalformedPOSTRequest: it has no boundary.
    """
    kind, _, _ = (content_type or "").partition(";")
    if kind.strip().lower() != "multipart/form-data":
        raise S3Error(ErrorCode.REQUEST_IS_NOT_MULTIPART)
    boundary = _parameters(content_type or "").get("boundary", "")
    if len(boundary) > _BOUNDARY_CHARACTERS_MAX or _BOUNDARY.fullmatch(boundary) is None:
        raise S3Error(ErrorCode.MALFORMED_POST_REQUEST)
    return boundary.encode("ascii")


class FormReader:
    """Takes a form's bytes in; `feed` gives those of the file.

    States: before the file (`form` is None), within it, behind it (`is_ended`; what comes then is dropped).
    """

    def __init__(self, boundary: bytes) -> None:
        self._delimiter: Final = b"\r\n--" + boundary
        # The first boundary stands at the beginning, where no line end can precede it.
        self._buffer = b"\r\n"
        self._fields: dict[str, str] = {}
        self._taken_bytes = 0
        self.form: PostForm | None = None
        """The fields, from the moment that the file has begun."""
        self.is_ended = False
        """Whether the file's last byte was given."""

    def feed(self, data: bytes) -> bytes:
        """Take the next bytes of the body; give what of them, and of bytes held back, belongs to the file.

        Raises:
            S3Error: MalformedPOSTRequest, MaxPostPreDataLengthExceededError, InvalidArgument for a field that is sent twice
                or a form without file.
        """
        if self.is_ended:
            return b""
        self._buffer += data
        if self.form is None:
            self._read_fields()
        return b"" if self.form is None else self._file_bytes()

    def finish(self) -> None:
        """Hear that the body has ended.

        Raises:
            S3Error: MalformedPOSTRequest: the form has not.
        """
        if not self.is_ended:
            raise S3Error(ErrorCode.MALFORMED_POST_REQUEST)

    def _read_fields(self) -> None:
        """Take parts out of the buffer as long as they are whole, up to the file's head."""
        while self.form is None:
            found = self._find_delimiter(0)
            if found is None:
                self._check_size(len(self._buffer))
                return
            start, stop, is_last = found
            if is_last or start > 0:
                # Only a part that was read to its end leaves something before a boundary, or a preamble, which nobody sends.
                raise _no_file() if is_last else S3Error(ErrorCode.MALFORMED_POST_REQUEST)
            head_end = self._buffer.find(b"\r\n\r\n", stop - 2)
            if head_end < 0:
                self._check_size(len(self._buffer))
                return
            if not self._take_part(stop, head_end):
                return

    def _take_part(self, head_start: int, head_end: int) -> bool:
        """Take the part whose head stands there; False where more of it has to come."""
        name, filename = _part_names(self._buffer[head_start:head_end])
        body_start = head_end + 4
        if name == "file":
            self._check_size(body_start)
            self._buffer = self._buffer[body_start:]
            self.form = PostForm(_expanded(self._fields, filename))
            return True
        found = self._find_delimiter(body_start)
        if found is None:
            self._check_size(len(self._buffer))
            return False
        value_end = found[0]
        self._check_size(value_end)
        self._add(name, self._buffer[body_start:value_end])
        self._taken_bytes += value_end
        self._buffer = self._buffer[value_end:]
        return True

    def _add(self, name: str, value: bytes) -> None:
        if name.startswith(IGNORED_PREFIX):
            return
        if name in self._fields:
            raise invalid_argument(name, "", "A field of the form was sent more than once.")
        try:
            self._fields[name] = value.decode()
        except UnicodeDecodeError as error:
            raise S3Error(ErrorCode.MALFORMED_POST_REQUEST) from error

    def _check_size(self, more_bytes: int) -> None:
        if self._taken_bytes + more_bytes > FIELDS_BYTES_MAX:
            raise S3Error(ErrorCode.MAX_POST_PRE_DATA_LENGTH_EXCEEDED)

    def _file_bytes(self) -> bytes:
        found = self._find_delimiter(0)
        if found is not None:
            self.is_ended = True
            payload, self._buffer = self._buffer[: found[0]], b""
            return payload
        kept = self._kept_bytes()
        cut = len(self._buffer) - kept
        payload, self._buffer = self._buffer[:cut], self._buffer[cut:]
        return payload

    def _kept_bytes(self) -> int:
        """Say how many of the last bytes may be the beginning of a boundary's line."""
        start = self._buffer.rfind(b"\r\n--")
        if start >= 0 and self._may_be_delimiter(self._buffer[start:]):
            return len(self._buffer) - start
        tail = self._buffer[-3:]
        return next((size for size in range(len(tail), 0, -1) if b"\r\n--".startswith(tail[-size:])), 0)

    def _may_be_delimiter(self, line: bytes) -> bool:
        """Say whether a line that is not whole may be a boundary's when it is."""
        size = len(self._delimiter)
        if len(line) <= size:
            return self._delimiter.startswith(line)
        rest = line[size:]
        if not line.startswith(self._delimiter) or len(rest) > _PADDING_BYTES_MAX:
            return False
        return rest in {b"-", b"\r"} or rest.rstrip(b"\r").strip(_BLANKS) == b""

    def _find_delimiter(self, start: int) -> tuple[int, int, bool] | None:
        """Find a boundary's whole line: where it begins (with the line end before it) and ends, and whether it is the last.

        A line that only begins like one is data: nothing of a file may be taken for framing that its sender did not mean.
        """
        at = self._buffer.find(self._delimiter, start)
        while at >= 0:
            stop = at + len(self._delimiter)
            if self._buffer.startswith(b"--", stop):
                return at, stop + 2, True
            line_end = _LINE_END.match(self._buffer, stop, stop + _PADDING_BYTES_MAX)
            if line_end is not None:
                return at, line_end.end(), False
            at = self._buffer.find(self._delimiter, at + 2)
        return None


def _part_names(head: bytes) -> tuple[str, str]:
    """Read the name, in lower case, and the file name of a part from its head."""
    try:
        lines = head.decode().split("\r\n")
    except UnicodeDecodeError as error:
        raise S3Error(ErrorCode.MALFORMED_POST_REQUEST) from error
    headers = {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }
    disposition = headers.get("content-disposition", "")
    parameters = _parameters(disposition)
    is_encoded = headers.get("content-transfer-encoding", "binary").lower() not in {"7bit", "8bit", "binary"}
    if disposition.partition(";")[0].strip().lower() != "form-data" or is_encoded:
        raise S3Error(ErrorCode.MALFORMED_POST_REQUEST)
    name = parameters.get("name", "").lower()
    if not name:
        raise S3Error(ErrorCode.MALFORMED_POST_REQUEST)
    return name, parameters.get("filename", "")


def _parameters(value: str) -> dict[str, str]:
    """Read the parameters of a header. A quoted one may hold backslashes: some browsers send a whole path unescaped."""
    found = _PARAMETER.findall(value)
    return {
        name.lower(): _QUOTED_PAIR.sub(r"\1", text[1:-1]) if text.startswith('"') else text
        for name, text in found
    }


def _expanded(fields: Mapping[str, str], filename: str) -> dict[str, str]:
    """Replace the variable by the file's name without its path, in every field (AWS "HTML form fields").

    Not in the policy: its text is what was signed.
    """
    base = re.split(r"[/\\]", filename)[-1]
    return {
        name: value if name == "policy" else value.replace(FILENAME_VARIABLE, base)
        for name, value in fields.items()
    }


def _no_file() -> S3Error:
    return invalid_argument("file", "0", "POST requires exactly one file upload per request.")
