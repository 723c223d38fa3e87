"""Topics that are written to, recreated and grown while a process follows them, which is killed and started again.

    python -m tests.support.followed_topics ADDRESS FILE RUN     the process; writes a line RUN VALUE for each record

Each record is handed out once by a run, and by no later one unless the run before that was killed. Of topics that are
not deleted, each is handed out.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.errors import TopicAlreadyExistsError
from tests.conftest import REPOSITORY
from tests.support import draws
from tests.support.waiting import until

STEADY, AGAIN = "f-steady", "f-again"
GROUP = "soak"
PATIENCE_S = 240
_BEGAN = "began"


def follow(address: str, file: Path, run: str) -> None:
    """Follow the topics until SIGTERM, and write down what is handed out."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    with (
        file.open("ab", buffering=0) as out,
        spark_kbatch.open(address) as cluster,
        cluster.follow(
            re.compile("^f-"),
            start="earliest",
            group=GROUP,
            columns=["value"],
            text=True,
            stop=stop,
        ) as records,
    ):
        out.write(f"{run} {_BEGAN}\n".encode())
        for batch in records:
            values = batch.column("value").to_pylist()
            out.write("".join(f"{run} {value}\n" for value in values).encode())


class Followed:
    """The topics, their writer, and the runs of the process that follows them."""

    def __init__(self, address: str, cluster: Cluster, folder: Path) -> None:
        self._address, self._cluster, self._file = address, cluster, folder / "handed-out"
        self._numbers = itertools.count()
        self._steady, self._again = list[str](), list[str]()  # what is there to be read
        self._killed = set[int]()
        self._rng = random.Random(draws.FIRST)
        cluster.create_topic(STEADY, 2, config={"segment.bytes": 1 << 20})
        cluster.create_topic(AGAIN)

    def run(self, seconds: float, *, rounds: int) -> None:
        """Write, kill and recreate for some seconds, and for some rounds at least; then check what was handed out."""
        deadline = time.monotonic() + seconds
        for number in itertools.count():
            is_last = number >= rounds and time.monotonic() >= deadline
            with self._follower(number) as process:
                until(functools.partial(self._began, number), "it follows", timeout_s=PATIENCE_S)
                for _ in range(self._rng.randint(5, 40)):
                    self._write()
                    time.sleep(0.05)
                if is_last:
                    until(
                        functools.partial(self._has_all, process),
                        "all is handed out",
                        timeout_s=PATIENCE_S,
                    )
                is_killed = not is_last and self._rng.random() < 0.6
                process.send_signal(signal.SIGKILL if is_killed else signal.SIGTERM)
                assert process.wait(PATIENCE_S) == (-signal.SIGKILL if is_killed else 0)
                if is_killed:
                    self._killed.add(number)
            if is_last:
                break
        self._check()

    def _follower(self, number: int) -> subprocess.Popen[bytes]:
        words = ["-m", "tests.support.followed_topics", self._address, str(self._file), str(number)]
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        return subprocess.Popen([sys.executable, *words], cwd=REPOSITORY, env=environment)

    def _write(self) -> None:
        values = [f"{next(self._numbers)}-{'v' * 2000}" for _ in range(20)]
        topic = STEADY
        if self._rng.random() < 0.15:
            topic = AGAIN
            if self._rng.random() < 0.5:
                self._recreate()
            self._again += values
        else:
            self._steady += values
        with self._cluster.producer() as producer:
            for value in values:
                producer.send(topic, value)

    def _recreate(self) -> None:
        self._cluster.delete_topic(AGAIN)
        self._again.clear()
        until(self._is_created, "the topic is there again", timeout_s=PATIENCE_S)

    def _is_created(self) -> bool:
        try:
            self._cluster.create_topic(AGAIN)
        except TopicAlreadyExistsError:  # a broker deletes it a moment later
            return False
        return True

    def _handed_out(self) -> dict[str, list[int]]:
        found = defaultdict[str, list[int]](list)
        lines = self._file.read_text().split("\n") if self._file.exists() else []
        for line in lines:
            run, _, value = line.partition(" ")
            if value:
                found[value].append(int(run))
        return found

    def _began(self, number: int) -> bool:
        return number in self._handed_out()[_BEGAN]

    def _has_all(self, process: subprocess.Popen[bytes]) -> bool:
        assert process.poll() is None, "it has ended"
        return self._handed_out().keys() >= {*self._steady, *self._again}

    def _check(self) -> None:
        found = self._handed_out()
        del found[_BEGAN]
        assert found.keys() >= {*self._steady, *self._again}, "some are lost"
        for value, runs in found.items():
            assert len({*runs}) == len(runs), f"{value[:9]} was handed out twice by one of {runs}"
            assert {*runs[:-1]} <= self._killed, f"{value[:9]} again after a clean end: {runs}"
        assert self._killed


if __name__ == "__main__":
    follow(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
