"""What has gone wrong in caching S3 gateways, by row, and which tests show that it is right here: those whose docstrings name the row.

`python -m tests.tidy.pitfalls` writes the table. A test names a row only where it shows the right result of it, for the whole kind.
"""

import ast
import functools
import re
import sys
from collections.abc import Iterator, Mapping
from typing import Final

from tests.tidy.repository import ROOT

ROWS: Final[Mapping[str, str]] = {
    "B01": "what was just written is not found until its write-back ends",
    "B02": "framing of chunked bodies, signatures or trailers in an object; default uploads of SDKs refused",
    "B03": "a body that broke off is published",
    "B04": "a request for a sub-resource taken for one of the object",
    "B05": "an older write lands behind a newer one",
    "B06": "stored encodings undone, by a server or a client",
    "B07": "metadata of one version with the body of another",
    "B08": "old bytes, or old and new ones in one body, after a change behind the gateway",
    "B09": "acknowledged bytes evicted, purged, or gone after a kill",
    "B10": "two winners of a conditional write; a condition judged by what is only here",
    "B11": "a Complete that is sent again is refused",
    "B12": "headers, metadata, tags or checksums lost by a flush",
    "B13": "ETag or date that change by a flush",
    "B14": "a short, empty or failed answer of the origin kept",
    "B15": "one object that the origin refuses stops all, or is dropped",
    "B16": "a wrong slice for a range of a partly cached object",
    "B17": "pages of a listing that repeat, lose, or do not end",
    "B18": "a listing without what is pending, or with what is deleted",
    "B19": "parts glued in the wrong order; wrong lists accepted, right ones refused",
    "B20": "the old bytes of a part that was sent twice",
    "B21": "keys with blanks, +, %, or not of ASCII",
    "B22": "paths made other ones",
    "B23": "sources of copies that are not found; failed copies that leave something",
    "B24": "ranges behind, at and before the ends",
    "B25": "presigned URLs that live too short or too long, or may be changed",
    "B26": "what is cached served to anybody",
    "B27": "limits of the framework on bodies, lines and headers",
    "B28": "aws-chunked kept as an encoding",
    "B29": "DeleteObjects: Quiet, digests, limits, escapes",
    "B30": "wrong digests accepted, or found out too late",
    "B31": "Expect: 100-continue without an interim answer",
    "B32": "an error before the end of a body: reset, or the rest taken for a request",
    "B33": "conditions of reads: ignored, in the wrong order, or the origin's 304 taken for an error",
    "B34": "dates that differ or have parts of seconds",
    "B35": "response-* ignored, or kept in the cache",
    "B51": "memory that grows with objects and readers",
    "B52": "a cache that grows past its limit",
    "B53": "bytes that go away under a reader",
    "B54": "bytes that rotted on the disk served",
    "B55": "as many fetches as readers; readers that fall with the first",
    "B56": "throttling that is multiplied by retries, or ends uploads",
    "B57": "the first request on a connection that was idle fails",
    "B58": "an error inside a 200 taken for success",
    "B59": "credentials that expire end a flush",
    "B60": "a full disk: bad objects, or a gateway that is stuck",
}

_ROW: Final = re.compile(r"\bB\d\d\b")


@functools.cache
def proofs() -> dict[str, list[str]]:
    """Give the tests that name each row, as `file::test`; rows that nobody knows too."""
    found: dict[str, list[str]] = {}
    for test, text in _tests():
        for row in sorted(set(_ROW.findall(text))):
            found.setdefault(row, []).append(test)
    return found


def _tests() -> Iterator[tuple[str, str]]:
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if _ROW.search(text) else ():
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.name.startswith("test_"):
                yield f"{path.relative_to(ROOT)}::{node.name}", ast.get_docstring(node) or ""


def main() -> None:
    """Write which tests show that each row is right."""
    found = proofs()
    for row, words in ROWS.items():
        sys.stdout.write(f"{row} {words}\n")
        sys.stdout.writelines(f"    {test}\n" for test in found.get(row, ("no test",)))


if __name__ == "__main__":
    main()
