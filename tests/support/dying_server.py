"""A server that kills itself at a step: `python -m tests.support.dying_server PATH --listen HOST:PORT --json ...`.

with DyingServer(path, log, "events-0/kbatch.state", "2", str(armed)) as server:
    armed.touch()              # from now on steps are counted
    ...                        # it dies before the second step with this in its text
    server.wait_until_dead()
    server.start()             # `armed` is removed by then, so it lives
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

from spark_kbatch import Cluster
from tests.support.faults import FaultyFiles
from tests.support.served import Served


class DyingServer(Served):
    """The options are a part of a step's text, which of these steps it is, and the file that arms it."""

    command: ClassVar[Sequence[str]] = [sys.executable, "-m", __name__]

    def wait_until_dead(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        assert process.wait(60) == -9, self._log.read_text()
        assert process.stdout is not None
        process.stdout.close()


class _DiesAt(FaultyFiles):
    def __init__(self, part: str, number: int, armed: Path) -> None:
        super().__init__()
        self._part, self._left, self._armed = part, number, armed

    def _step(
        self, name: str, where: Path | int, partly: Callable[[float], object] | None = None
    ) -> None:
        super()._step(name, where, partly)
        if self._part in self.steps[-1] and name == "write" and self._armed.exists():
            self._left -= 1
            if not self._left:
                self._armed.unlink()
                self.die()


def main(path: str, listen: str, part: str, number: str, armed: str) -> None:
    cluster = Cluster(path, files=_DiesAt(part, int(number), Path(armed)))
    host, port = listen.split(":")
    with cluster.serve(host, int(port)) as server:
        print(json.dumps({"bootstrap_servers": server.bootstrap_servers}), flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    _, path, _, listen, _, *rest = sys.argv
    main(path, listen, *rest)
