"""Processes that start without loading their program each time: one that has loaded it forks a child for every start.

Each is a process of its own, with threads, files and environment of its own, and is killed by SIGKILL as any other; only the seconds of
importing are spared, which hundreds of starts would pay hundreds of times. As a program: `python -m tests.end_to_end.forked` reads a
request a line and answers each by a line; a child runs `main` of one of PROGRAMS as if it were the program itself.
"""

import atexit
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final, NoReturn

import msgspec

ROOT: Final = Path(__file__).parents[2]
GATEWAY: Final = "gateway"
ORIGIN: Final = "tests.fakes.origin_server"


class Start(msgspec.Struct, frozen=True, tag=True):
    """A process to start.

    Attributes:
        program: One of PROGRAMS.
        out: The file that its output is appended to; `err` that of its errors.
        bug: Names one of `planted.BUGS`, "" none.
    """

    program: str
    arguments: list[str]
    environment: dict[str, str]
    out: str
    err: str
    bug: str = ""


class Reap(msgspec.Struct, frozen=True, tag=True):
    """A process that has ended, and whose exit status is asked for."""

    pid: int


_Request = Start | Reap


class ForkedProcess:
    """A process that is not our child; what of `subprocess.Popen` the tests use.

    Attributes:
        returncode: As Popen's: None while it runs, negative where a signal ended it.
    """

    def __init__(self, pid: int, reap: Callable[[int], int]) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._file = os.pidfd_open(pid)
        self._reap = reap

    def poll(self) -> int | None:
        """Give the exit status, None while it runs."""
        return self._ended_within(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and give the exit status; subprocess.TimeoutExpired where it does not end in time."""
        status = self._ended_within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("forked process", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, to this very process even where its id is used again."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._file, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _ended_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._file], [], [], timeout)[0]:
            self.returncode = self._reap(self.pid)
            os.close(self._file)
        return self.returncode


class Forker:
    """The process that forks; callable from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def start(
        self,
        program: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        out: Path,
        err: Path | None = None,
        *,
        bug: str = "",
    ) -> ForkedProcess:
        """Start a process; without `err` its errors go where its output goes."""
        asked = Start(program, list(arguments), dict(environment), str(out), str(err or out), bug)
        return ForkedProcess(self._ask(asked), lambda pid: self._ask(Reap(pid)))

    def close(self) -> None:
        """End it; what it forked goes on."""
        with self._lock:
            self._process.communicate()

    def _ask(self, request: _Request) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            self._process.stdin.write(msgspec.json.encode(request) + b"\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        assert answer, f"the process that forks has ended with {self._process.poll()}"
        return int(answer)


@cache
def forker() -> Forker:
    """Give this process' forker, begun at its first use."""
    begun = Forker()
    atexit.register(begun.close)
    return begun


def _run(asked: Start, programs: Mapping[str, Callable[[list[str]], None]]) -> NoReturn:
    """Be the program, in the child."""
    if asked.bug:
        from tests.crash.planted import BUGS  # noqa: PLC0415  for the few that want it

        BUGS[asked.bug]()
    os.environ.clear()
    os.environ.update(asked.environment)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    for number, path in ((1, asked.out), (2, asked.err)):
        os.dup2(os.open(path, flags, 0o644), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    programs[asked.program](asked.arguments)
    sys.exit(0)


def main() -> None:
    """Fork a process for each request of the standard input, until it ends."""
    # Loaded here, before the first fork, and not in the process of the tests.
    from gateway import cli  # noqa: PLC0415
    from tests.fakes import origin_server  # noqa: PLC0415

    programs = {GATEWAY: cli.main, ORIGIN: origin_server.main}
    for line in sys.stdin.buffer:
        request: _Request = msgspec.json.decode(line, type=_Request)
        if isinstance(request, Start):
            answer = os.fork()
            if answer == 0:
                _run(request, programs)
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(request.pid, 0)[1])
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
