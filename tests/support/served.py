"""`kbatch serve` in a process of its own, to be killed.

with Served(path, log) as server:       # waits until it answers
    server.kill()
    server.start()                      # at the same port
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import ClassVar, Self

from tests.conftest import REPOSITORY
from tests.support.kafka import free_ports

# Not the script of the virtual environment, which need not be of this working copy.
COMMAND = [sys.executable, "-c", "from spark_kbatch.cli.main import main; main()", "serve"]
STOP_TIMEOUT_S = 60


class Served:
    """A process that serves a cluster; killed and started any number of times."""

    command: ClassVar[Sequence[str]] = COMMAND
    stdin: ClassVar[int] = subprocess.DEVNULL

    def __init__(self, path: Path, log: Path, *options: str) -> None:
        """`log` is the file for what it says, `options` are the command's."""
        (self._port,) = free_ports(1)
        self._path, self._log, self._options = path, log, options
        self._process: subprocess.Popen[str] | None = None
        self.address = f"127.0.0.1:{self._port}"

    def start(self) -> Self:
        """Start it, and wait until it listens."""
        words = [*self.command, str(self._path), "--listen", self.address, "--json", *self._options]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                words, cwd=REPOSITORY, stdin=self.stdin, stdout=subprocess.PIPE, stderr=log,
                text=True,
            )  # fmt: skip
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        assert told, self._log.read_text()
        assert json.loads(told)["bootstrap_servers"] == self.address
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def kill(self) -> None:
        """Kill it."""
        process, self._process = self._process, None
        assert process is not None
        assert process.poll() is None, f"it ended by itself:\n{self._log.read_text()}"
        process.kill()
        _wait(process)

    def stop(self) -> None:
        """Stop it as a supervisor does, and wait until it has ended well."""
        process, self._process = self._process, None
        assert process is not None
        process.terminate()
        _wait(process)
        assert process.returncode == 0, self._log.read_text()

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
    process.wait(STOP_TIMEOUT_S)
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
