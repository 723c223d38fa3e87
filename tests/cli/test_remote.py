"""The `kbatch` command with HOST:PORT of a real cluster, which is a server of ours."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_kbatch import Cluster
from spark_kbatch.cli import paths
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import (
    ConfigError,
    DisconnectedError,
    KBatchError,
    RequestTimedOutError,
)
from spark_kbatch.remote.client import close_idle_clients
from tests.support import builders, stored_groups

SECRET = "s3cret"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("remote")
    with builders.a_cluster(folder, topics={"events": 2}) as cluster:
        builders.append_records(cluster, {("events", 0): builders.batch()})
        app = stored_groups.member("app", {"events": [0, 1]})
        stored_groups.store(cluster, "billing", {("events", 0): 1}, [app])
        yield cluster


@pytest.fixture(scope="module")
def address(cluster: Cluster) -> Iterator[str]:
    with cluster.serve() as server:
        yield server.bootstrap_servers
    close_idle_clients()


def kbatch(*words: Any, **more: Any) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words], prog_name="kbatch", **more)


def objects_of(done: Result) -> list[Any]:
    assert done.exit_code == 0, (done.output, done.exception)
    return [json.loads(line) for line in done.stdout.splitlines()]


def rows_of(done: Result) -> list[list[str]]:
    assert done.exit_code == 0, (done.output, done.exception)
    _headings, *lines = done.stdout.splitlines()
    return [line.split("\t") for line in lines]


@pytest.mark.parametrize(
    "words",
    [
        ["consume", "events"],
        ["consume", "events", "--json", "-p", "0", "--start", "1", "--end", "2"],
        ["consume", "events", "-n", "1", "--isolation-level", "read_uncommitted"],
        ["offsets", "events"],
        ["offsets", "events", "--time", "max-timestamp", "--json"],
        ["offsets", "events", "--group", "billing", "--json"],
        ["delete-records", "events", "0:0", "1:-1", "--json", "--dry-run"],
        ["delete-records", "events", "0:0", "--json", "--yes"],
    ],
    ids=" ".join,
)
def test_output_is_that_of_the_folder(cluster: Cluster, address: str, words: list[str]) -> None:
    command, *rest = words
    remote, local = kbatch(command, address, *rest), kbatch(command, cluster.path, *rest)
    assert (remote.exit_code, remote.stdout) == (0, local.stdout)
    assert remote.stdout


def test_topics_are_listed_with_leaders_and_without_sizes(cluster: Cluster, address: str) -> None:
    assert rows_of(kbatch("topics", address)) == [["events", "2", "3", "0"]]
    assert rows_of(kbatch("topics", address, "-v")) == [
        ["events", "0", "0", "3", "3", "1", "1"],
        ["events", "1", "0", "0", "0", "1", "1"],
    ]
    (topic,) = objects_of(kbatch("topics", address, "events", "--json"))
    assert (topic["topic"], topic["topic_id"]) == ("events", cluster.topic("events").topic_id)
    assert topic["partitions"][0] == {
        "partition": 0, "log_start_offset": 0, "high_watermark": 3, "last_stable_offset": 3,
        "log_end_offset": 3, "size_in_bytes": None, "leader": 1, "replicas": [1], "isr": [1],
    }  # fmt: skip
    names = [one["topic"] for one in objects_of(kbatch("topics", address, "--internal", "--json"))]
    assert "__consumer_offsets" in names


def test_groups_are_those_of_the_folder_but_for_what_no_broker_tells(
    cluster: Cluster, address: str
) -> None:
    (remote,), (local,) = (
        objects_of(kbatch("groups", place, "--json")) for place in (address, cluster.path)
    )
    assert local.pop("generation") == 3
    assert remote.pop("generation") == -1
    for one in local["offsets"]:
        one["commit_timestamp"] = None
    assert remote == local
    done = kbatch("groups", address, "billing")
    assert rows_of(done)[0][:5] == ["events", "0", "1", "3", "2"]
    drawn = kbatch("groups", address, "billing", env={"FORCE_COLOR": "1", "COLUMNS": "200"})
    assert f"Group billing: Stable, served at {address}" in drawn.stdout
    missing = kbatch("groups", address, "nothing")
    assert isinstance(missing.exception, ConfigError)
    assert f"does not exist in {address}; its groups: billing" in str(missing.exception)


def test_topics_are_changed_grown_and_deleted(cluster: Cluster, address: str) -> None:
    made = kbatch("create-topic", address, "t", "--config", "retention.ms=7", "--partitions", 1)
    assert made.stdout == "topic t has 1 partition, replication factor 1\n"
    (described,) = objects_of(kbatch("describe-topic", address, "t", "--json"))
    assert described.pop("config")["retention.ms"] == "7"
    assert described == {
        "topic": "t", "topic_id": cluster.topic("t").topic_id, "num_partitions": 1, "replication_factor": 1,
    }  # fmt: skip
    assert "t\tretention.ms\t7\t-" in kbatch("describe-topic", address, "t").stdout.splitlines()
    again = kbatch("create-topic", address, "t", "--config", "retention.ms=8", "--if-not-exists")
    assert "already exists, with retention.ms=7" in str(again.exception)
    (changed,) = objects_of(
        kbatch("alter-topic", address, "t", "--config", "retention.ms=5", "--json")
    )
    assert changed["config"]["retention.ms"] == "5"
    assert cluster.topic("t").config.retention_ms == 5
    assert (
        "retention.ms=-1" in kbatch("alter-topic", address, "t", "--reset", "retention.ms").stdout
    )
    assert kbatch("create-partitions", address, "t", 3).stdout == "topic t has 3 partitions\n"
    assert cluster.topic("t").partitions == 3

    asked = kbatch("delete-topic", address, "t", input="n\n")
    assert asked.exit_code == 1
    assert "topic t: 3 partitions, 0 offsets" in asked.stderr
    (done,) = objects_of(kbatch("delete-topic", address, "t", "--yes", "--json"))
    assert done == {
        "topic": "t", "num_partitions": 3, "offsets": 0, "size_in_bytes": None, "deleted": True,
    }  # fmt: skip
    assert cluster.topic_names() == ["events"]


def test_client_options_come_from_a_file_and_from_single_ones_over_it(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        "spark_kbatch.remote.store.RemoteStore.__init__",
        lambda self, options: given.append(options) or (_ for _ in ()).throw(KBatchError()),
    )
    file = tmp_path / "client.properties"
    file.write_text(
        "# of the team\n"
        "security.protocol = SASL_SSL\n"
        "sasl.mechanism=PLAIN\n"
        "sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \\\n"
        f'    username="alice" password="{SECRET}";\n'
        "client.id=a\n"
    )
    kbatch("topics", address, "--command-config", file, "-X", "client.id=b", "-X", "client.rack=r")
    (options,) = given
    assert (options.client_id, options.client_rack) == ("b", "r")
    assert options.security.protocol == "SASL_SSL"
    assert options.security.sasl_jaas_config.get("password") == SECRET


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-X", SECRET], "is not KEY=VALUE"),
        (["-X", "client.id=a", "-X", f"client.id={SECRET}"], "'client.id' is given twice"),
        (["-X", f"sasl.jaas.config={SECRET}"], "'sasl.jaas.config' is not valid"),
        (["-X", f"sasl.jaas={SECRET}"], "unknown option 'sasl.jaas'"),
        (["-X", f"ssl.keystore.password={SECRET}"], "'ssl.keystore.password' is not supported"),
        (["--command-config", "{bad}"], "line 2 has"),
        (["--command-config", "{unknown}"], "unknown option 'sasl.jaas'"),
    ],
    ids=["no value", "twice", "bad value", "unknown key", "refused key", "bad file", "unknown in file"],
)  # fmt: skip
def test_errors_of_client_options_repeat_no_value(
    address: str, tmp_path: Path, words: list[str], said: str
) -> None:
    bad, unknown = tmp_path / "bad", tmp_path / "unknown"
    bad.write_text(f"\nssl.key.password={SECRET}\\uXYZ")
    unknown.write_text(f"sasl.jaas={SECRET}")
    files = {"{bad}": str(bad), "{unknown}": str(unknown)}
    done = kbatch("topics", address, *(files.get(word, word) for word in words))
    shown = f"{done.output} {done.exception}".replace("\n", " ")
    assert done.exit_code != 0
    assert said in shown
    assert SECRET not in shown


@pytest.mark.parametrize(
    "words",
    [
        ["gc"], ["history"], ["export", "events", "--log-dir", "x"], ["verify"], ["repair"], ["log-dirs"], ["serve"],
        ["demo"],
    ],
    ids=lambda words: words[0],
)  # fmt: skip
def test_commands_for_folders_say_so(address: str, words: list[str]) -> None:
    command, *rest = words
    done = kbatch(command, address, *rest)
    assert done.exit_code == 2
    said = f"is the address of a real cluster; `kbatch {command}` works on a folder"
    assert said in done.stderr.replace("\n", " ")


def test_options_that_do_not_go_with_what_path_names_are_refused(
    cluster: Cluster, address: str
) -> None:
    for words, said in (
        (["topics", cluster.path, "-X", "client.id=a"], "is a folder"),
        (["consume", cluster.path, "events", "-X", "client.id=a"], "is a folder"),
        (["topics", address, "--foreign-end", "log"], "not for a real cluster"),
        (["consume", address, "events", "--foreign-end", "log"], "not for a real cluster"),
    ):
        done = kbatch(*words)
        assert (done.exit_code, said in done.stderr) == (2, True), done.stderr


def test_a_partition_without_a_leader_is_listed_at_once(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from spark_kbatch.remote.metadata import MetadataCache  # noqa: PLC0415

    update = MetadataCache.update

    def without_leader(self: Any, topics: Any, body: Any, now_ms: int) -> Any:
        for topic in body.topics:
            for one in topic.partitions:
                if one.partition_index == 1:
                    one.leader_id = -1
        return update(self, topics, body, now_ms)

    monkeypatch.setattr(MetadataCache, "update", without_leader)
    close_idle_clients()
    try:
        assert rows_of(kbatch("topics", address)) == [["events", "2", "-", "0"]]
        assert rows_of(kbatch("topics", address, "-v")) == [
            ["events", "0", "0", "3", "3", "1", "1"],
            ["events", "1", "-", "-", "-", "-1", "1"],
        ]
    finally:
        close_idle_clients()


@pytest.mark.parametrize(
    "words",
    [["topics"], ["consume", "t"], ["groups"], ["produce", "t"], ["export", "t", "t.csv"],
     ["create-topic", "t"], ["describe-topic", "t"], ["offsets", "t"]],
    ids=lambda words: words[0],
)  # fmt: skip
def test_servers_that_refuse_connections_are_not_waited_for_a_minute(
    words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "_REFUSED_MS", 300)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        began_s = time.monotonic()
        done = kbatch(
            words[0], f"{address},{address.replace('127.0.0.1', 'localhost')}", *words[1:]
        )

    assert isinstance(done.exception, DisconnectedError)
    assert f"no connection to {address},localhost:" in str(done.exception)
    assert "connection refused: no broker listens there" in str(done.exception)
    assert time.monotonic() - began_s < 30  # of the 60 that a client goes on for


def test_a_server_that_starts_meanwhile_is_waited_for(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    cluster = builders.a_cluster(tmp_path, topics={"events": 1})
    with cluster, ThreadPoolExecutor(1) as beside:
        listed = beside.submit(kbatch, "topics", f"127.0.0.1:{port}", "--json")
        time.sleep(0.5)
        with cluster.serve("127.0.0.1", port):
            assert [one["topic"] for one in objects_of(listed.result())] == ["events"]


def test_new_records_are_followed_as_any_client_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "_REFUSED_MS", 0)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        short = ["-X", "default.api.timeout.ms=500"]
        done = kbatch("consume", address, "t", "--follow", *short)
    assert isinstance(done.exception, RequestTimedOutError)
