"""Ctrl+C ends every command in one way: "kbatch: interrupted", and exit code 130."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from tests.support import builders
from tests.support.commands import COMMANDS

SOON_S = 60
COMMAND = [sys.executable, "-m", "spark_kbatch"]


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    made = builders.a_cluster(tmp_path, topics={"events": 1})
    with made.producer(flush=False) as producer:
        producer.send_arrow("events", {"value": ["v" * 1000] * 2000})
    return made


def test_a_read_that_is_interrupted_says_so(cluster: Cluster) -> None:
    command = [*COMMAND, "consume", str(cluster.path), "events"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout is not None
        running.stdout.read(1)  # it has begun, and waits as long as the pipe is full
        running.send_signal(signal.SIGINT)
        _, told = running.communicate(timeout=SOON_S)

    assert (running.returncode, told) == (130, "kbatch: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_a_read_that_follows_ends_before_it_has_printed_what_was_there(
    cluster: Cluster, number: signal.Signals
) -> None:
    command = [*COMMAND, "consume", str(cluster.path), "events", "--follow", "--raw"]
    unbuffered = os.environ | {"PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=unbuffered
    ) as running:
        assert running.stdout is not None
        begun = running.stdout.read(1)
        running.send_signal(number)
        shown, told = running.communicate(timeout=SOON_S)

    lines = (begun + shown).splitlines(keepends=True)
    assert (running.returncode, told) == (0, b"")
    assert len(lines) < 2000
    assert {*lines} == {b"v" * 1000 + b"\n"}


def test_a_question_that_is_interrupted_deletes_nothing(cluster: Cluster) -> None:
    ours, terminal = pty.openpty()
    command = [*COMMAND, "delete-topic", str(cluster.path), "events"]
    with subprocess.Popen(command, stdin=terminal, stderr=subprocess.PIPE) as running:
        os.close(terminal)
        assert running.stderr is not None
        asked = b""
        while not asked.endswith(b"]: "):
            asked += running.stderr.read(1)
        time.sleep(0.1)
        running.send_signal(signal.SIGINT)
        told = running.stderr.read().decode()
        assert running.wait(SOON_S) == 130
    os.close(ours)

    assert told.endswith("kbatch: interrupted\n")
    assert cluster.topic_names() == ["events"]


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_so_does_every_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(**_given: object) -> None:
        raise KeyboardInterrupt

    command = COMMANDS[name]
    monkeypatch.setattr(command, "callback", interrupted)
    monkeypatch.setattr(command, "params", [])
    done = CliRunner().invoke(cli, [name])

    assert (done.exit_code, done.stderr) == (130, "kbatch: interrupted\n")
