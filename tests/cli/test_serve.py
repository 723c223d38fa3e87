"""`kbatch serve`, in a separate process."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import kafka
import pytest
from click.testing import CliRunner

from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.model import TopicPartition
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders
from tests.support.raw_clients import RawClient, produce, produced, request
from tests.support.served import COMMAND
from tests.support.store import store_of

TIMEOUT_S = 30


@contextlib.contextmanager
def served(*words: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Start a server, and end it in any case."""
    command = [*COMMAND, *map(str, words), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line and process.stderr is not None:
        pytest.fail(process.stderr.read())
    return line


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_a_served_cluster_can_be_used_until_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    path = tmp_path / "cluster"

    with served(path, "--partitions", "2", "--json") as process:
        told = json.loads(first_line(process))
        client = kafka.KafkaProducer(bootstrap_servers=told["bootstrap_servers"])
        process.send_signal(signal.SIGUSR1)
        before = json.loads(first_line(process))["metrics"]
        client.send("events", b"value").get(TIMEOUT_S)
        client.close()
        process.send_signal(number)
        rest, errors = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 0
    created, topic = errors.splitlines()
    assert created.endswith(f"created a cluster in {path}")
    assert topic.endswith(f"created topic 'events' with 2 partitions in {path}")
    after = json.loads(rest)["metrics"]
    for metrics, count in ((before, 0), (after, 1)):
        assert metrics["BrokerTopicMetrics"]["MessagesInPerSec"]["Count"] == count
        assert metrics["ReplicaManager"]["UnderReplicatedPartitions"] == 0
        assert metrics["socket-server-metrics"]["connection-creation-total"] > 0
    assert after["RequestMetrics"]["Produce"]["TotalTimeMs"]["Count"] == 1
    assert after["Log"]["events-0"]["LogEndOffset"] + after["Log"]["events-1"]["LogEndOffset"] == 1
    assert told["bootstrap_servers"] == f"{told['host']}:{told['port']}"
    assert (told["path"], told["host"], told["topics"]) == (str(path), "127.0.0.1", [])
    cluster = Cluster(path)
    assert cluster.topic("events").partitions == 2
    assert cluster.read("events").read_all()["value"].to_pylist() == [b"value"]
    assert cluster.running_server() is None


# Serves, with a thread that signals itself once it is told to.
SIGNALLED_ELSEWHERE = """
import signal, sys, threading
from spark_kbatch.cli.main import main

def signal_this_thread():
    sys.stdin.readline()
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=signal_this_thread, daemon=True).start()
main()
"""


def test_a_signal_that_interrupts_no_wait_of_the_main_thread_ends_the_server(
    tmp_path: Path,
) -> None:
    words = ["serve", str(tmp_path / "cluster"), "--listen", "127.0.0.1:0"]
    with subprocess.Popen(
        [sys.executable, "-c", SIGNALLED_ELSEWHERE, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert first_line(process)
            process.communicate("\n", timeout=TIMEOUT_S)
        finally:
            process.kill()

    assert process.returncode == 0


def test_address_path_and_topics_are_printed_once_clients_can_connect(
    tmp_path: Path,
) -> None:
    path = builders.a_cluster(tmp_path, topics={"events": 1, "more": 1}).path

    with served(path, "--no-auto-create", "--config", "max.connections=5") as process:
        line = first_line(process)
        words = line.split()
        address = words[words.index("at") + 1].rstrip(";")
        client = kafka.KafkaConsumer(bootstrap_servers=address, group_id=None)
        topics = client.topics()
        client.close()

    assert line.startswith(f"Serving 2 topics of {path} at 127.0.0.1:")
    assert {"events", "more"} <= topics


@pytest.mark.parametrize("is_abstract", [False, True], ids=["a path", "abstract"])
def test_systemd_is_told_once_clients_can_connect_and_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_abstract: bool
) -> None:
    name = f"@{tmp_path}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(name.replace("@", "\0"))
        manager.settimeout(TIMEOUT_S)
        monkeypatch.setenv("NOTIFY_SOCKET", name)
        with served(tmp_path / "cluster", "--json") as process:
            told = json.loads(first_line(process))
            assert manager.recv(100) == b"READY=1"
            socket.create_connection((told["host"], told["port"]), TIMEOUT_S).close()
            process.terminate()
            assert manager.recv(100) == b"STOPPING=1"
            process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 0


def test_a_service_manager_that_is_gone_stops_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    with served(tmp_path / "cluster") as process:
        first_line(process)
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 0


@contextlib.contextmanager
def a_request_in_progress(
    tmp_path: Path,
) -> Iterator[tuple[Callable[[], None], subprocess.Popen[str], RawClient]]:
    """Yield a server that is told to end while a Produce waits for a lock, a function that unlocks it, and the client.

    A job that commits holds such a lock.
    """
    with (
        builders.a_cluster(tmp_path) as cluster,
        served(cluster.path, "--json") as process,
        contextlib.ExitStack() as locked,
    ):
        told = json.loads(first_line(process))
        server: Any = SimpleNamespace(**told)
        locks = store_of(cluster).manager.locks
        locked.enter_context(locks.partitions([TopicPartition("events", 0)]))
        with RawClient(server) as client:
            client.send(request(ApiKey.PRODUCE, 9, produce(builders.batch(n=1))))
            time.sleep(0.5)
            process.terminate()
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            with pytest.raises(ConnectionRefusedError):
                RawClient(server)
            yield locked.close, process, client


def test_a_request_in_progress_is_answered_before_the_server_ends(tmp_path: Path) -> None:
    with a_request_in_progress(tmp_path) as (unlock, process, client):
        unlock()
        assert produced(client.receive(ApiKey.PRODUCE, 9)).error_code == 0
        assert client.is_closed_by_server()
        process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 0


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with a_request_in_progress(tmp_path) as (_, process, client):
        process.terminate()
        process.communicate(timeout=TIMEOUT_S)
        assert client.is_closed_by_server()

    assert process.returncode == -signal.SIGTERM


def test_each_line_that_is_logged_is_json_if_that_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "cluster"
    began = datetime.now(UTC)
    with served(path, "--json", "--log-format", "json", "--no-auto-create") as process:
        told = json.loads(first_line(process))
        server: Any = SimpleNamespace(**told)
        with RawClient(server) as client:
            topic = "a\x1b[2J\nb\u202e"
            client.ask(ApiKey.PRODUCE, 9, produce(builders.batch(n=1), topic=topic))
        process.terminate()
        _, errors = process.communicate(timeout=TIMEOUT_S)

    created, refused = errors.splitlines()
    assert errors.isascii()
    assert json.loads(created) | {"time": ""} == {
        "time": "", "level": "WARNING", "logger": "spark_kbatch.cluster.parts",
        "message": f"created a cluster in {path}",
    }  # fmt: skip
    assert topic in json.loads(refused)["message"]
    moment = json.loads(refused)["time"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", moment)
    assert began - timedelta(seconds=1) < datetime.fromisoformat(moment) < datetime.now(UTC)


def test_a_second_server_is_refused(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)

    with cluster.serve() as server, served(cluster.path) as process:
        _, errors = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 1
    assert server.bootstrap_servers in errors


def test_addresses_other_than_loopback_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = builders.a_cluster(tmp_path)

    with cluster.serve("127.0.0.2"):
        assert "asks no one for a password" not in caplog.text
    with cluster.serve("0.0.0.0"):
        assert "asks no one for a password" in caplog.text


@pytest.mark.parametrize(
    ("words", "told"),
    [
        pytest.param(["--listen", "9092"], "HOST:PORT", id="no host"),
        pytest.param(["--listen", "localhost:99999"], "HOST:PORT", id="no such port"),
        pytest.param(["--advertise", "localhost:0"], "HOST:PORT", id="a port to come back to"),
        pytest.param(["--partitions", "0"], "1<=x<=100000", id="no partitions"),
        pytest.param(["--config", "flush=true"], "--flush", id="an option of its own"),
        pytest.param(["--config", "flush"], "KEY=VALUE", id="no value"),
    ],
)
def test_usage_errors_start_nothing(tmp_path: Path, words: list[str], told: str) -> None:
    done = CliRunner().invoke(cli, ["serve", str(tmp_path), *words])

    assert (done.exit_code, told in done.stderr) == (2, True)


def test_a_folder_without_a_cluster_is_an_error_if_none_may_be_created(tmp_path: Path) -> None:
    with served(tmp_path, "--no-create") as process:
        _, errors = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 1
    assert errors.startswith(f"kbatch: no kbatch cluster at {tmp_path}")
