"""Requests that nobody's SDK would send, drawn from one seed: wrong heads, wrong XML, wrong framing, wrong forms, odd queries.

Most are signed rightly, so that they get past the door and reach what reads them.
"""

import base64
import hashlib
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import quote

Sign = Callable[[str, str, dict[str, str], str], bytes]
"""Writes a signed head: method, target, headers, payload hash."""

BOMB = (
    b'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">'
    b'<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;"><!ENTITY d "&c;&c;&c;&c;&c;&c;&c;&c;&c;&c;">]>'
    b"<Delete><Object><Key>&d;</Key></Object></Delete>"
)
OUTSIDE = (
    b'<!DOCTYPE x [<!ENTITY f SYSTEM "file:///etc/passwd">]><Delete><Object><Key>&f;</Key></Object></Delete>'
)
DOCUMENTS = (
    b"<Delete><Object><Key>a</Key></Object><Quiet>true</Quiet></Delete>",
    b"<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>x</ETag></Part></CompleteMultipartUpload>",
    b"<CreateBucketConfiguration><LocationConstraint>eu</LocationConstraint></CreateBucketConfiguration>",
    b"<Tagging><TagSet><Tag><Key>k</Key><Value>v</Value></Tag></TagSet></Tagging>",
)
NASTY_DOCUMENTS = (
    *DOCUMENTS,
    BOMB,
    OUTSIDE,
    b"<a>" * 10,
    b"<a>" * 20_000,
    b"<Delete>" + b"<Object><Key>k</Key></Object>" * 1000 + b"</Delete>",
    b"<Delete>" + b"<Object><Key>k</Key></Object>" * 5000 + b"</Delete>",
    b"<CompleteMultipartUpload><Part><PartNumber>" + b"9" * 5000 + b"</PartNumber><ETag>e</ETag></Part>"
    b"</CompleteMultipartUpload>",
    b'<?xml version="1.0" encoding="utf-7"?><Delete/>',
    b'<?xml version="1.0" encoding="nonsense"?><Delete/>',
    b'<?xml version="1.0" encoding="UTF-16"?><Delete/>',
    "<Delete><Object><Key>\u00fc</Key></Object></Delete>".encode("utf-16"),
    b"<Delete " + b"".join(b'a%d="x" ' % n for n in range(3000)) + b"/>",
    b"<Delete><![CDATA[" + b"x" * 100_000,
    b"<Delete><Object><Key>\xff</Key></Object></Delete>",
    b"",
)
TARGETS = (
    ("POST", "/bucket?delete"),
    ("POST", "/bucket/key?uploadId=u1"),
    ("PUT", "/newbucket"),
    ("POST", "/bucket/key?uploads"),
    ("POST", "/bucket/key?uploadId=%00"),
)
NAMES = (
    "list-type", "max-keys", "prefix", "delimiter", "marker", "continuation-token", "start-after", "encoding-type",
    "fetch-owner", "uploads", "uploadId", "partNumber", "versionId", "max-parts", "part-number-marker", "key-marker",
    "upload-id-marker", "max-uploads", "acl", "tagging", "response-content-type", "X-Amz-Expires", "X-Amz-Date", "x-id",
    "AWSAccessKeyId", "versions", "location", "unknown", "delete",
)  # fmt: skip
VALUES = (
    "", "0", "1", "-1", "2", "1000", "99999999999999999999", "9" * 400, "1e9", "0x10", "\u0661", "a", "/", "%", "%00", "\x00",
    "\r\n", "\uffff", "\U0010ffff", "a" * 1025, "../..", "true", "url", "null", "AAAA", "AWFhYWFhYWFh",
)  # fmt: skip
HEADERS = (
    ("range", ("bytes=0-", "bytes=-0", "bytes=5-1", "bytes=" + "9" * 300 + "-", "bytes=0-0,5-9", "lines=1-2", "bytes=\u0661-")),
    ("if-match", ("*", '"x"', 'W/"x"', "", '"' * 99)),
    ("if-none-match", ("*", '"x","y"', "x" * 5000)),
    ("if-modified-since", ("yesterday", "Thu, 01 Jan 1970 00:00:00 GMT", "Sat, 29 Feb 2031 99:99:99 GMT", "")),
    ("content-md5", ("x", "AAAAAAAAAAAAAAAAAAAAAA==", "\u00fc", "")),
    ("x-amz-checksum-crc32", ("AAAAAA==", "x", "")),
    ("x-amz-checksum-sha256", ("AAAA", "=")),
    ("x-amz-sdk-checksum-algorithm", ("CRC32", "MD6")),
    ("x-amz-copy-source", ("/bucket/key", "bucket", "/bucket/%", "b/k?versionId=1", "/bucket/\u00fc", "%2f")),
    ("x-amz-copy-source-range", ("bytes=0-1", "bytes=-5", "x")),
    ("x-amz-meta-\u00fc", ("x",)),
    ("x-amz-meta-a", ("\u00fc", "x" * 3000, "\t")),
    ("x-amz-tagging", ("a=b", "a=%", "=", "a=b&a=c", "&" * 99)),
    ("x-amz-decoded-content-length", ("5", "-1", "9" * 30)),
    ("x-amz-trailer", ("x-amz-checksum-crc32", "x", ",")),
    ("content-encoding", ("gzip", "aws-chunked", "br,zstd", "x" * 100)),
    ("x-forebay-durability", ("origin", "disk", "moon")),
    ("expect", ("100-continue", "200-ok")),
    ("cookie", ("x" * 9000,)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hostile:
    """Bytes to send. `name` says of which kind they are; `has_body` whether the answer has one."""

    name: str
    sent: bytes
    has_body: bool = True


class Hostility:
    """Draws them."""

    def __init__(self, seed: int, sign: Sign, form_fields: Callable[[], dict[str, str]], host: str) -> None:
        self._draws = random.Random(seed)
        self._sign = sign
        self._form_fields = form_fields
        self._host = host

    def known(self) -> list[Hostile]:
        """Give those that are worth a try whatever the seed: each document once, and bytes that are no UTF-8."""
        head = self._sign("GET", "/bucket/key", {}, "UNSIGNED-PAYLOAD")
        return [
            *(self._with_document("POST", "/bucket?delete", document) for document in NASTY_DOCUMENTS),
            Hostile("head", head.replace(b"/bucket/key", b"/bucket/%FF")),
            Hostile("head", head.replace(b"/bucket/key", b"/bucket/\xff\xfe")),
            Hostile("head", head.replace(b"/bucket/key", b"/%FF/key")),
            Hostile("head", head.replace(b"/bucket/key", b"/bucket/key?prefix=%FF")),
            Hostile("head", head.replace(b"host: ", b"host: \xff")),
            Hostile("head", head.replace(b"Signature=", b"Signature=\xff")),
        ]

    def draw(self) -> Hostile:
        """Give the next one."""
        kinds = (
            self._query,
            self._document,
            self._framing,
            self._transfer,
            self._form,
            self._head,
            self._put,
        )
        return self._draws.choice(kinds)()

    def _query(self) -> Hostile:
        draws = self._draws
        method = draws.choice(("GET", "GET", "HEAD", "PUT", "DELETE", "POST", "OPTIONS", "PATCH"))
        path = draws.choice(
            ("/bucket", "/bucket/", "/bucket/key", "/", "/-/status", "//", "/bucket//a/../b", f"/{'b' * 300}")
        )
        pairs = [(draws.choice(NAMES), draws.choice(VALUES)) for _ in range(draws.randrange(5))]
        query = "&".join(name if draws.random() < 0.2 else f"{name}={quote(value)}" for name, value in pairs)
        target = f"{path}?{query}" if query else path
        head = self._sign(method, target, {**self._some_headers(), "content-length": "0"}, "UNSIGNED-PAYLOAD")
        return Hostile("query", head, method != "HEAD")

    def _put(self) -> Hostile:
        body = self._draws.randbytes(self._draws.choice((0, 1, 100, 70_000)))
        headers = {**self._some_headers(), "content-length": str(len(body))}
        upload_id = quote(self._draws.choice(VALUES))
        target = self._draws.choice(
            ("/bucket/key", f"/bucket/key?partNumber=1&uploadId={upload_id}", "/bucket/key?tagging")
        )
        mode = self._draws.choice(
            ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest(), "0" * 64, "STREAMING-X")
        )
        return Hostile("put", self._sign("PUT", target, headers, mode) + body)

    def _some_headers(self) -> dict[str, str]:
        chosen = self._draws.sample(HEADERS, self._draws.randrange(4))
        # Not all can be signed as text of any language; those go unsigned in `_head`.
        return {
            name: value
            for name, values in chosen
            if name.isascii() and (value := self._draws.choice(values)).isascii()
        }

    def _document(self) -> Hostile:
        draws = self._draws
        document = draws.choice(NASTY_DOCUMENTS)
        document = self._mutated(document) if draws.random() < 0.6 else document
        return self._with_document(*draws.choice(TARGETS), document)

    def _with_document(self, method: str, target: str, document: bytes) -> Hostile:
        headers = {
            "content-length": str(len(document)),
            "content-md5": base64.b64encode(hashlib.md5(document).digest()).decode(),
        }
        return Hostile(
            "document", self._sign(method, target, headers, hashlib.sha256(document).hexdigest()) + document
        )

    def _framing(self) -> Hostile:
        data = self._draws.randbytes(self._draws.choice((0, 5, 9000)))
        crc = base64.b64encode(zlib.crc32(data).to_bytes(4)).decode()
        chunks = f"{len(data):x}\r\n".encode() + data + b"\r\n" if data else b""
        body = self._mutated(chunks + f"0\r\nx-amz-checksum-crc32:{crc}\r\n\r\n".encode())
        headers = {
            "content-length": str(len(body)),
            "content-encoding": "aws-chunked",
            "x-amz-decoded-content-length": str(len(data)),
            "x-amz-trailer": "x-amz-checksum-crc32",
        }
        head = self._sign("PUT", "/bucket/key", headers, "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
        return Hostile("framing", head + body)

    def _transfer(self) -> Hostile:
        body = self._mutated(b"5\r\nhello\r\n0\r\n\r\n")
        headers = {"transfer-encoding": "chunked", "x-amz-decoded-content-length": "5"}
        mode = self._draws.choice(("UNSIGNED-PAYLOAD", "STREAMING-UNSIGNED-PAYLOAD-TRAILER"))
        return Hostile("transfer", self._sign("PUT", "/bucket/key", headers, mode) + body)

    def _form(self) -> Hostile:
        fields = self._form_fields()
        for _ in range(self._draws.randrange(3)):
            fields[
                self._draws.choice(
                    ("key", "acl", "policy", "x-amz-date", "x-amz-credential", "file", "tagging", "redirect")
                )
            ] = self._draws.choice(VALUES)
        lines = [
            f'--b\r\nContent-Disposition: form-data; name="{n}"\r\n\r\n{v}\r\n'.encode()
            for n, v in fields.items()
        ]
        lines.append(b'--b\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n')
        body = (
            b"".join(lines) + self._draws.randbytes(self._draws.choice((0, 50, 300_000))) + b"\r\n--b--\r\n"
        )
        body = self._mutated(body) if self._draws.random() < 0.7 else body
        head = (
            f"POST /bucket HTTP/1.1\r\nhost: {self._host}\r\n"
            f"content-type: multipart/form-data; boundary=b\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return Hostile("form", head.encode() + body)

    def _head(self) -> Hostile:
        head = self._sign("GET", "/bucket/key?list-type=2", self._some_headers(), "UNSIGNED-PAYLOAD")
        return Hostile("head", self._mutated(head[:-4]) + b"\r\n\r\n")

    def _mutated(self, data: bytes) -> bytes:
        draws, changed = self._draws, bytearray(data)
        for _ in range(draws.randrange(1, 4)):
            at = draws.randrange(len(changed) + 1)
            kind = draws.randrange(5)
            if kind == 0:
                changed[at : at + 1] = draws.randbytes(1)
            elif kind == 1:
                changed[at:at] = draws.choice(
                    (b"\r\n", b"\x00", b"\xff\xfe", b"<", b"&", b"-", b"ffffffffffffffff", b"\r\n--b", b"]]>")
                )
            elif kind == 2:
                del changed[at : at + draws.randrange(1, 30)]
            elif kind == 3:
                changed[at:at] = changed[max(0, at - 20) : at] * draws.choice((1, 50))
            else:
                del changed[at:]
        return bytes(changed)
