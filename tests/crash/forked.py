"""Gateways that start without loading the program each time: a process that has loaded it forks one for every start.

Each is a process of its own, with threads, files and index of its own, and is killed by SIGKILL as any other; only the seconds of
importing are spared, which two hundred starts would pay two hundred times. As a program: `python -m tests.crash.forked LOG [BUG]` reads
a line for each start and writes the child's id.
"""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from tests.end_to_end.processes import ROOT, GatewayProcess


class ForkedChild:
    """A process that is not our child; what of `subprocess.Popen` a GatewayProcess uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._file = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Say whether it has ended; how is not known."""
        return self._ended_within(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        if self._ended_within(timeout) is None:
            raise subprocess.TimeoutExpired("forked gateway", timeout or 0.0)
        return 0

    def _ended_within(self, timeout: float | None) -> int | None:
        if self.returncode is None and select.select([self._file], [], [], timeout)[0]:
            self.returncode = 0
            os.close(self._file)
        return self.returncode

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


@dataclass(slots=True)
class ForkedGateway(GatewayProcess):
    """A gateway whose starts are forked; `bug` names one of `planted.BUGS`, "" none."""

    bug: str = ""
    parent: "subprocess.Popen[str] | None" = field(default=None)

    def launch(self) -> Self:
        """Fork a gateway and do not wait for it."""
        if self.parent is None:
            self.parent = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.forked", str(self.log_path), *filter(None, [self.bug])],
                env=self.environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self.parent.stdin is not None
        assert self.parent.stdout is not None
        self.parent.stdin.write("start\n")
        self.parent.stdin.flush()
        self.process = ForkedChild(int(self.parent.stdout.readline()))  # type: ignore[assignment]  # as it says
        return self

    def end(self) -> None:
        """Kill the gateway, and end what forks it."""
        if self.process is not None:
            self.kill()
        if self.parent is not None:
            self.parent.communicate()


@contextmanager
def forked_gateway(
    origin: str, cache_dir: Path, *, bug: str = "", **settings: str
) -> Iterator[ForkedGateway]:
    """Run a gateway with forked starts; `settings` as for `processes.gateway`."""
    variables = {f"FOREBAY_{name.upper()}": value for name, value in settings.items()}
    running = ForkedGateway(origin, cache_dir, variables, bug=bug)
    try:
        yield running.start()
    finally:
        running.end()


def main(log_path: str, bug: str = "") -> None:
    """Fork a gateway for each line of the standard input."""
    # Loaded here, before the first fork, and not in the process of the tests.
    from gateway import cli  # noqa: PLC0415
    from tests.crash.planted import BUGS  # noqa: PLC0415

    if bug:
        BUGS[bug]()
    # Nobody waits for the children: the kernel takes them away.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            log = os.open(log_path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            nothing = os.open(os.devnull, os.O_RDONLY)
            os.dup2(nothing, 0)
            os.dup2(log, 1)
            os.dup2(log, 2)
            cli.main(["serve"])
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
