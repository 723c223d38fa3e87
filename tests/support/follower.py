"""Follows a page as a reader would; tests/test_stranger.py runs this text with the reader's Python.

On stdin comes what to do, as JSON. Python blocks share their names; one whose first line is `# NAME.py` is
saved as that file. Commands run in a shell that has the environment's programs by their full paths alone.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

SEPARATOR = "---- next block ----"
STANDS_FOR: dict[str, str] = {}
_FILE = re.compile(r"# ([\w/-]+\.py)\n")
_PROGRAMS = ("kbatch", "python", "pip", "pytest")
_FOLLOWS_FOR = 3.0  # seconds


def write(path: str, topic: str, partitions: int = 1) -> Any:
    """Create a topic with a record of each minute from 24 October 2024 on, and return its cluster."""
    import spark_kbatch  # noqa: PLC0415  of the reader's environment

    cluster: Any = spark_kbatch.open(path, create=True)
    cluster.create_topic(topic, partitions=partitions)
    first = 1_729_728_000_000
    with cluster.producer() as producer:
        for number in range(2000 * partitions):
            producer.send(
                topic,
                key=f"k{number % 7}",
                value=f"v{number}",
                partition=number % partitions,
                timestamp=first + 60_000 * number,
            )
    return cluster


def commit_offset(servers: str, group: str, topic: str) -> None:
    """Make a consumer group that has read a record of a topic."""
    from confluent_kafka import Consumer, TopicPartition  # noqa: PLC0415

    consumer = Consumer({"bootstrap.servers": servers, "group.id": group})
    consumer.commit(offsets=[TopicPartition(topic, 0, 1)], asynchronous=False)
    consumer.close()


def write_broker_dir(path: str, topic: str, partitions: int) -> None:
    """Make a log dir of a stopped broker that has just created a topic."""
    for partition in range(partitions):
        folder = Path(path, f"{topic}-{partition}")
        folder.mkdir(parents=True)
        (folder / "partition.metadata").write_text("version: 0\ntopic_id: JOPLSEFyTPmlhYgFXC4q0A")
    Path(path, "meta.properties").write_text(
        "version=1\nnode.id=1\ndirectory.id=JOPLSEFyTPmlhYgFXC4q0B\ncluster.id=JOPLSEFyTPmlhYgFXC4q0C\n"
    )


def write_files() -> None:
    """Write the files that are read into topics."""
    import pyarrow as pa  # noqa: PLC0415
    from pyarrow import parquet  # noqa: PLC0415

    Path("lines.txt").write_text("cellar:12.0\nattic:19.0\n")
    Path("day-1.csv").write_text("key,value\ncellar,12.0\n")
    Path("day.csv").write_text("id,payload\ncellar,12.0\n")
    Path("events.jsonl").write_text('{"id": 7, "room": "cellar"}\n')
    parquet.write_table(pa.table({"key": ["attic"], "value": ["19.0"]}), "day-2.parquet")


class Shell:
    """Runs the commands of a page; servers run until its end."""

    def __init__(self, programs: str, not_followed: list[str]) -> None:
        self._not_followed = tuple(not_followed)
        self._functions = "".join(
            f'{name}() {{ "{programs}/{name}" "$@"; }}\n' for name in _PROGRAMS
        )
        self._programs = programs
        self._servers: list[subprocess.Popen[str]] = []
        self.failed: list[str] = []

    def run(self, code: str) -> None:
        """Run a block: in one shell, but for servers and what follows a topic."""
        together: list[str] = []
        for line in re.sub(r"\\\n\s*", "", code).splitlines():
            if line.startswith(self._not_followed):
                continue
            if not re.search(
                "--yes|--dry-run", line
            ):  # a reader answers the question on a terminal
                line = re.sub(r"^kbatch (delete-\w+|groups delete|recover)", r"\g<0> --yes", line)
            for shown, real in STANDS_FOR.items():
                line = line.replace(shown, real)
            goes_on = re.search("--follow|--every", line)
            if line.startswith("kbatch serve ") or goes_on:
                self._run("\n".join(together))
                together = []
                if goes_on:
                    self._run(line, endless=True)
                else:
                    self._serve(line)
            else:
                together.append(line)
        self._run("\n".join(together))

    def _serve(self, line: str) -> None:
        words = line.partition("#")[0].replace("127.0.0.1:9092", "127.0.0.1:0").split()
        if "--listen" not in words:
            words += ["--listen", "127.0.0.1:0"]  # the usual port may be taken here
        server = subprocess.Popen(
            [f"{self._programs}/kbatch", *words[1:]], stdout=subprocess.PIPE, text=True
        )
        self._servers.append(server)
        assert server.stdout is not None
        started = server.stdout.readline()
        found = re.search(r"127\.0\.0\.1:\d+", started)
        if found is None:
            self.failed.append(f"{line}\n    {started or 'ended'}")
        else:
            STANDS_FOR["127.0.0.1:9092"] = found[0]

    def _run(self, script: str, *, endless: bool = False) -> None:
        process = subprocess.Popen(
            ["bash", "-eo", "pipefail", "-c", self._functions + script],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            _, errors = process.communicate("", timeout=_FOLLOWS_FOR if endless else 300)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
            _, errors = process.communicate()
            if endless and "Traceback" not in errors:
                return
        if process.returncode or "Traceback" in errors:
            self.failed.append(f"{script}\n    exit code {process.returncode}: {errors}")

    def stop(self) -> None:
        """Stop the servers as Ctrl+C does."""
        for server in self._servers:
            server.send_signal(signal.SIGINT)
            if server.wait(60):
                self.failed.append(f"a server ended with exit code {server.returncode}")


def follow(task: dict[str, Any]) -> None:
    """Do what a page shows, block by block."""
    exec(task["stage"], globals())
    shell = Shell(task["bin"], task["not_followed"])
    names: dict[str, Any] = {"__name__": "__main__"}
    try:
        for number, (language, code) in enumerate(task["blocks"], start=1):
            file = _FILE.match(code)
            where = f"{task['page']}, block {number}"
            if language == "sh":
                shell.run(code)
            elif file:
                Path(file[1]).write_text(code, encoding="utf-8")
            else:
                exec(compile(code, where, "exec", dont_inherit=True), names)
            print(SEPARATOR, flush=True)
    finally:
        shell.stop()
    if shell.failed:
        sys.exit("\n".join(["Commands that do not work as shown:", *shell.failed]))


if __name__ == "__main__":
    follow(json.load(sys.stdin))
