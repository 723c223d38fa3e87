"""A server in a process of its own, to be killed: `python -m tests.support.served PATH PORT`.

with Served(path, log) as server:       # waits until it answers
    server.kill()
    server.start()                      # at the same port
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

import spark_kbatch
from tests.conftest import REPOSITORY
from tests.support.kafka import free_ports

STOP_TIMEOUT_S = 60


class Served:
    """A process that serves a cluster; killed and started any number of times."""

    def __init__(self, path: Path, log: Path) -> None:
        """`log` is the file for what it says."""
        (self._port,) = free_ports(1)
        self._path, self._log = path, log
        self._process: subprocess.Popen[str] | None = None
        self.address = f"127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Start it, and wait until it listens."""
        words = [sys.executable, "-m", "tests.support.served", str(self._path), str(self._port)]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                words, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "listening\n", self._log.read_text()
        return self

    def kill(self) -> None:
        """Kill it."""
        process, self._process = self._process, None
        assert process is not None
        assert process.poll() is None, f"it ended by itself:\n{self._log.read_text()}"
        process.kill()
        _wait(process)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            error.add_note(f"the server said:\n{self._log.read_text()[-10_000:]}")
        if self._process is not None:
            self.kill()


def _wait(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.wait(STOP_TIMEOUT_S)
    process.stdin.close()
    process.stdout.close()


def main(path: str, port: str) -> None:
    """Serve until the input ends: also if the test is killed."""
    with spark_kbatch.open(path) as cluster, cluster.serve(port=int(port)):
        print("listening", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(*sys.argv[1:])
