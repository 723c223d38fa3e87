"""Spark's standalone cluster on loopback: a master and workers of one core, each in its own JVM."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyspark

from tests.conftest import REPOSITORY, SHORT_LIVED_JVM
from tests.support.kills import kill_tree

_BIN = Path(pyspark.__file__).parent / "bin"
_START_S = 120
# Of workers in turn: Spark gives no host a second attempt of a task that it runs already.
_HOSTS = ("127.0.0.1", "localhost")
_CONF = {
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": SHORT_LIVED_JVM,
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.executor.extraJavaOptions": SHORT_LIVED_JVM,
    "spark.executor.memory": "512m",
    "spark.log.level": "WARN",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
}


class Process:
    """A running program and its output."""

    def __init__(self, folder: Path, name: str, *command: str) -> None:
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as output:
            self.popen = subprocess.Popen(
                command,
                cwd=folder,
                env={
                    **os.environ,
                    "PYSPARK_PYTHON": sys.executable,
                    "PYTHONPATH": str(REPOSITORY),
                    "SPARK_DAEMON_JAVA_OPTS": SHORT_LIVED_JVM,
                    "SPARK_DAEMON_MEMORY": "256m",
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                stdout=output,
                stderr=output,
            )

    def printed(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, pattern: str) -> str:
        """Wait until the output matches; return the first group of the match."""
        deadline = time.monotonic() + _START_S
        while (found := re.search(pattern, self.printed())) is None:
            assert self.popen.poll() is None, self.printed()
            assert time.monotonic() < deadline, self.printed()
            time.sleep(0.05)
        return found[1]

    def kill(self) -> None:
        """Kill it and all processes that it started."""
        kill_tree(self.popen.pid)
        self.popen.wait()


class Standalone:
    """A running cluster. Executors are child processes of their workers."""

    def __init__(self, folder: Path, processes: ExitStack, *, workers: int) -> None:
        self._folder, self._processes = folder, processes
        master = self._spark_class("master", "master.Master", _HOSTS[0], "--port", "0")
        self._url = master.wait_for(r"Starting Spark master at (spark://\S+)")
        self.workers = [
            self._spark_class(
                f"worker-{number}", "worker.Worker", _HOSTS[number % len(_HOSTS)], "--cores", "1",
                "--memory", "1g", "--work-dir", str(folder / f"work-{number}"), self._url,
            )
            for number in range(workers)
        ]  # fmt: skip
        for worker in self.workers:
            worker.wait_for("(Successfully) registered with master")

    def submit(self, *arguments: str) -> Process:
        """Start spark-submit."""
        conf = [part for item in _CONF.items() for part in ("--conf", "=".join(item))]
        return self._start(
            "submit", str(_BIN / "spark-submit"), "--master", self._url, *conf, *arguments
        )

    @property
    def conf(self) -> dict[str, str]:
        """What a driver that is not submitted needs."""
        return _CONF | {"spark.master": self._url}

    def _spark_class(self, name: str, main: str, host: str, *arguments: str) -> Process:
        return self._start(
            name, str(_BIN / "spark-class"), f"org.apache.spark.deploy.{main}",
            "--host", host, "--webui-port", "0", *arguments,
        )  # fmt: skip

    def _start(self, name: str, *command: str) -> Process:
        process = Process(self._folder, name, *command)
        self._processes.callback(process.kill)
        return process


@contextmanager
def standalone(folder: Path, *, workers: int) -> Iterator[Standalone]:
    """Start a cluster in `folder`; at the end kill all its processes."""
    with ExitStack() as processes:
        yield Standalone(folder, processes, workers=workers)
