"""`storage.words`: what is told of an error of the system or of a library."""

import errno
import socket
import ssl

import pytest

from storage.words import in_words

REFUSED = "Connect call failed ('127.0.0.1', 9)"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "/cache/journal"), "No space left on device"),
        (ConnectionRefusedError(errno.ECONNREFUSED, REFUSED), "Connection refused"),
        (
            OSError(
                f"Multiple exceptions: [Errno {errno.ENETUNREACH}] Connect call failed ('::1', 9, 0, 0), "
                f"[Errno {errno.ECONNREFUSED}] {REFUSED}, [Errno {errno.ECONNREFUSED}] {REFUSED}"
            ),
            "Network is unreachable; Connection refused",
        ),
        (socket.gaierror(-2, "Name or service not known"), "Name or service not known"),
        (
            ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number (_ssl.c:1000)"),
            "wrong version number",
        ),
        (ValueError("the first line:\n\n  b'and the second'"), "the first line"),
        (TimeoutError(), "timed out"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_an_error_is_told_without_insides(error: Exception, words: str) -> None:
    """No number, class, address or source line of who tells it."""
    assert in_words(error) == words
