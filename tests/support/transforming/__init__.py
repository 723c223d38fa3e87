"""The loops of transactional clients: they consume, transform and produce, exactly once, through a group.

    Loop("franz-go", kafka, address, topics, folder)     its programs, which are killed and started again

A program takes the records of the topic SOURCE and writes "done VALUE" into the same partition of TARGET; one
transaction has some records and the group's offsets. One transaction of five is aborted on purpose, after it has
written "aborted VALUE": then its records are transformed again.

    by_librdkafka    confluent-kafka
    by_aiokafka      aiokafka; it does not say of which generation offsets are, so one program has its group alone
    Transform.java   Kafka's own client
    franz_go         franz-go, which Go brings

Their arguments are ADDRESS GROUP SOURCE TARGET TRANSACTIONAL_ID. They end by themselves with the code 3 after an error
that a client takes as final, as programs do that a supervisor starts again, and with 0 after SIGTERM. SIGQUIT has them
print what their threads do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from tests.conftest import REPOSITORY
from tests.support.kafka import Kafka, MissingToolError

CLIENTS = ("librdkafka", "Java", "franz-go", "aiokafka")
FINAL_ERROR = 3
_HERE = Path(__file__).parent
_BUILT = REPOSITORY / "build" / "interop"
_STOP_TIMEOUT_S, _PRINTS_S = 60, 10
_SAID_MAX, _DOES_MAX = 5_000, 10_000


class Topics(NamedTuple):
    """What a loop reads, and what it writes."""

    source: str
    target: str


class Loop:
    """The programs of one client, all in one group."""

    def __init__(
        self, client: str, kafka: Kafka, address: str, topics: Topics, folder: Path
    ) -> None:
        """Prepare them; what they say goes into `folder`.

        Raises:
            MissingToolError: what builds one of them is not here.
        """
        self.group = f"group-of-{topics.source}"
        self._command = [*_command(client, kafka), address, self.group, *topics]
        self._logs = [folder / f"{client}-{n}.log" for n in range(1 if client == "aiokafka" else 2)]
        self._running: list[subprocess.Popen[bytes]] = []
        self.ended = 0  # by themselves, after an error

    def __enter__(self) -> Self:
        self._running = [self._started(n) for n in range(len(self._logs))]
        return self

    def _started(self, number: int) -> subprocess.Popen[bytes]:
        with self._logs[number].open("ab") as log:
            return subprocess.Popen(
                [*self._command, f"{self.group}-{number}"], cwd=REPOSITORY, stdout=log, stderr=log
            )

    def tend(self) -> None:
        """Start those again that have ended after an error; nothing else may have ended them."""
        for number, process in enumerate(self._running):
            code = process.poll()
            if code is not None:
                assert code == FINAL_ERROR, f"{self._logs[number].name} ended with {code}"
                self.ended += 1
                self._running[number] = self._started(number)

    def kill(self, number: int) -> None:
        """Kill one, and start another in its place."""
        process = self._running[number % len(self._running)]
        process.kill()
        process.wait()
        self._running[number % len(self._running)] = self._started(number % len(self._running))

    def does(self) -> str:
        """Return what all programs have printed, and what their threads do; those in Go end with it."""
        said = [log.stat().st_size for log in self._logs]
        for process in self._running:
            process.send_signal(signal.SIGQUIT)
        time.sleep(_PRINTS_S)
        return "\n".join(
            f"{log.name}, code {process.poll()}:\n"
            + log.read_bytes()[max(0, end - _SAID_MAX) : end + _DOES_MAX].decode(errors="replace")
            for log, process, end in zip(self._logs, self._running, said, strict=True)
        )

    def stop(self) -> None:
        """Stop all as a supervisor does."""
        for process in self._running:
            process.terminate()
        for process in self._running:
            process.wait(_STOP_TIMEOUT_S)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._running:
            process.kill()
            process.wait()


def _command(client: str, kafka: Kafka) -> Sequence[str]:
    match client:
        case "Java":
            return kafka.command(str(_HERE / "Transform.java"))  # compiled when it starts
        case "franz-go":
            return [str(_franz_go())]
        case _:
            return [sys.executable, "-m", f"{__name__}.by_{client}"]


def _franz_go() -> Path:
    program = _BUILT / "franz-go-loop"
    done = subprocess.run(
        ["go", "build", "-o", str(program), "."], cwd=_HERE / "franz_go", env=dict(os.environ),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise MissingToolError(f"Go cannot build franz-go's loop:\n{done.stdout}{done.stderr}")
    return program
