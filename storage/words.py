"""What went wrong below us, in words: no class, no brackets, none of the insides of who tells it."""

import os
import re
from typing import Final

_ERRNO: Final = re.compile(r"\[Errno (\d+)\]")
_TLS_INSIDES: Final = re.compile(r"^\[[^\]]*\] | \(_[a-z]+\.c:\d+\)$")

_ADDRESSED: Final = "Connect call failed"
"""asyncio's words for a connection that could not be made, with the address as Python shows one."""


def in_words(error: BaseException) -> str:
    """Say what an error of the system or of a library is, in one line.

    The system's own words where it has some, each once where asyncio joins those of several addresses; else the first line of what the
    error says of itself, else the name of its class.
    """
    told = str(error)
    if isinstance(error, OSError) and isinstance(error.strerror, str):
        told = error.strerror
        if error.errno and told.startswith(_ADDRESSED):
            return os.strerror(error.errno)
    told = told.strip().partition("\n")[0]
    numbers = _ERRNO.findall(told)
    if numbers:
        return "; ".join(dict.fromkeys(os.strerror(int(number)) for number in numbers))
    words = _TLS_INSIDES.sub("", told).rstrip(": ")
    return words or ("timed out" if isinstance(error, TimeoutError) else type(error).__name__)
