"""A server as a file of examples/server runs it, and a client that goes on while it is restarted."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaError, Message, Producer

from tests.support.kafka import free_ports
from tests.support.served import COMMAND
from tests.support.server_files import Run, health_check, replaced
from tests.support.waiting import until

TOKEN = "a-token-of-the-operator"


class ServerProcess:
    """A server, with ports of a test in place of the system's; started and stopped any number of times."""

    def __init__(
        self,
        run: Run,
        log: Path,
        places: Mapping[str, str | Path],
        within: Sequence[str | Path] | None = None,
    ) -> None:
        """Prepare it.

        Args:
            run: what the file says.
            log: file for what it prints.
            places: folders of a test, by those of the system.
            within: a command that runs others in another root, by their own names; by default those of
                this working copy run here.
        """
        ports = dict(zip(("9092", "8088"), map(str, free_ports(2)), strict=True))
        self.address, self._pages = (f"127.0.0.1:{port}" for port in ports.values())
        self._run, self._log, self._within = run, log, within
        here = {"kbatch.$(NAMESPACE).svc": "127.0.0.1", "0.0.0.0": "127.0.0.1"}
        self._stand_ins: Mapping[str, str | Path] = {**ports, **here, **places}
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Start it, and wait until its probe says that clients may connect."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                self._command(self._run.words), env=self._environment(), stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, text=True, umask=0o077,
            )  # fmt: skip
        until(lambda: self.is_ready() or self._process.poll() is not None, "it is ready")
        assert self._process.poll() is None, self.log()

    def _command(self, words: Sequence[str]) -> list[str | Path]:
        program, *rest = replaced(words, self._stand_ins)
        if self._within is not None:
            return [*self._within, program, *rest]
        if program == "python":
            return [sys.executable, *rest]
        assert (Path(program).name, rest[0]) == ("kbatch", "serve")
        return [*COMMAND, *rest[1:]]

    def _environment(self) -> dict[str, str]:
        names, values = self._run.environment.keys(), [*self._run.environment.values()]
        ours = dict(zip(names, replaced(values, self._stand_ins), strict=True))
        return ({} if self._within is not None else dict(os.environ)) | ours

    def is_ready(self) -> bool:
        """Return True if its probe says so."""
        return self.status(self._run.probe) == 200

    def status(self, path: str, **headers: str) -> int | None:
        """Return the status of an answer; None where nothing answers."""
        request = urllib.request.Request(f"http://{self._pages}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return None

    def health_check(self) -> int:
        """Run the command by which the image's health is asked; return its exit code."""
        command = self._command(health_check())
        done = subprocess.run(command, env=self._environment(), capture_output=True, check=False)
        return done.returncode

    def stop(self) -> int:
        """End it as a service manager does, within the time that the file gives; return its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(self._run.stop_s)

    def log(self) -> str:
        """Return what it has printed."""
        return self._log.read_text()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


class Sending:
    """A client that sends a number every few milliseconds, and tries again as long as it takes."""

    def __init__(self, address: str) -> None:
        self.sent = self.acknowledged = 0
        self.failed: list[str] = []
        self._end = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "error_cb": lambda _: None,  # the server is away for a while
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def _send(self) -> None:
        def told(error: KafkaError | None, _message: Message) -> None:
            self.acknowledged += error is None
            if error is not None:
                self.failed.append(str(error))

        while not self._end.wait(0.005):
            self._producer.produce("events", str(self.sent).encode(), on_delivery=told)
            self.sent += 1
            self._producer.poll(0)
        self._producer.flush(60)

    def end(self) -> None:
        """Send no more, and wait until all is acknowledged."""
        self._end.set()
        self._thread.join()
