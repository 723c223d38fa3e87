"""`kbatch mirror` and `spark_kbatch.mirror`: arguments, places, summaries, signals."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import spark_kbatch
from spark_kbatch import Cluster, MirrorProgress
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import ConfigError, UnknownTopicOrPartitionError
from tests.support import builders
from tests.support.broker_dirs import a_batch, a_partition
from tests.support.mirrors import as_mirrored

COMMAND = [sys.executable, "-c", "from spark_kbatch.cli.main import main; main()", "mirror"]
TIMEOUT_S = 30


@pytest.fixture
def source(tmp_path: Path) -> Cluster:
    cluster = builders.a_cluster(tmp_path / "source", topics={"events": 2, "clicks": 1})
    write(cluster)
    return cluster


def write(cluster: Cluster) -> None:
    for place in (("events", 0), ("events", 1), ("clicks", 0)):
        builders.append_records(cluster, {place: builders.batch(n=5)})


def run(*words: Any) -> Result:
    return CliRunner().invoke(cli, ["mirror", *map(str, words)])


def holds(target: Path, source: Cluster, *topics: str) -> bool:
    """Return True if the target has these topics of the source, and nothing else."""
    wanted = {tp: found for tp, found in as_mirrored(source.path).items() if tp.topic in topics}
    return builders.contents(Cluster(target)) == wanted


def values(cluster: Cluster, topic: str) -> list[Any]:
    """Return what a reader sees of a topic, by partition and in order."""
    found = (
        cluster.read(topic)
        .read_all()
        .sort_by([("partition", "ascending"), ("offset", "ascending")])
    )
    return found.select(["partition", "key", "value"]).to_pylist()


def test_topics_are_copied_and_counted(source: Cluster, tmp_path: Path) -> None:
    done = run(source.path, tmp_path / "target", "events", "clicks")

    assert done.exit_code == 0, done.output
    assert done.output.startswith("Copied 15 records of 2 topics, 0.0 MB, to ")
    assert done.output.endswith("in 1 commit. Created events, clicks.\n")
    assert holds(tmp_path / "target", source, "events", "clicks")


def test_json_is_one_object(source: Cluster, tmp_path: Path) -> None:
    words = (source.path, tmp_path / "target", "events", "--json")

    assert json.loads(run(*words).output) == {
        "source": str(source.path),
        "target": str(tmp_path / "target"),
        "topics": ["events"],
        "records": 10,
        "size_in_bytes": 2 * len(builders.batch(n=5)),
        "units": 1,
        "batches_kept": 2,
        "batches_encoded": 0,
        "offsets_left": 0,
        "topics_created": ["events"],
    }
    assert json.loads(run(*words).output)["records"] == 0


def test_a_terminal_shows_a_bar(source: Cluster, tmp_path: Path) -> None:
    words = ["mirror", str(source.path), str(tmp_path / "target"), "events"]

    done = CliRunner(env={"FORCE_COLOR": "1", "COLUMNS": "100"}).invoke(cli, words)

    assert "10 records, 0.0 MB" in done.stderr
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda one: one.name)
def test_a_mirror_that_follows_ends_with_a_signal(
    source: Cluster, tmp_path: Path, number: signal.Signals
) -> None:
    target = tmp_path / "target"
    command = [*COMMAND, str(source.path), str(target), "events", "--follow", "--json"]
    with subprocess.Popen(
        [*command, "--unit-seconds", "0.1"], stdout=subprocess.PIPE, text=True
    ) as process:
        until_it_holds(target, source)
        write(source)
        until_it_holds(target, source)
        process.send_signal(number)
        told, _ = process.communicate(timeout=TIMEOUT_S)

    assert process.returncode == 0
    assert json.loads(told)["records"] == 20


def test_a_mirror_that_is_interrupted_before_it_is_done_says_so(
    source: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_given: object, stop: threading.Event, **_options: object) -> MirrorProgress:
        assert not stop.is_set()
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(TIMEOUT_S)
        return MirrorProgress(0, 0, 0, 0, 0, 10, ())

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(spark_kbatch, "mirror", interrupted)
    words = ["mirror", str(source.path), str(tmp_path / "target"), "events"]
    done = CliRunner().invoke(cli, words)
    for number, handler in before.items():
        signal.signal(number, handler)

    assert done.exit_code == 130
    assert "10 offsets are left to copy." in done.stdout
    assert done.stderr.endswith("kbatch: interrupted\n")


@pytest.mark.parametrize("more", [[], ["--follow"]], ids=str)
def test_a_mirror_that_has_not_connected_yet_is_interrupted_at_once(
    tmp_path: Path, more: list[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # which never answers
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        command = [*COMMAND, address, str(tmp_path / "target"), "events", *more]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            with silent.accept()[0]:  # open, as a client warns of one that is closed
                process.send_signal(signal.SIGINT)
                _, told = process.communicate(timeout=TIMEOUT_S)

    assert (process.returncode, told) == (130, "kbatch: interrupted\n")
    assert not (tmp_path / "target").exists()


def until_it_holds(target: Path, source: Cluster) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        if (target / "cluster.json").exists() and holds(target, source, "events"):
            return
        time.sleep(0.05)
    raise AssertionError("the records did not come")


def test_a_broker_of_ours_is_a_source_and_a_target(source: Cluster, tmp_path: Path) -> None:
    with source.serve(port=0) as server:
        done = spark_kbatch.mirror(
            server.bootstrap_servers, tmp_path / "copy", ["events", "clicks"]
        )
    back = Cluster(tmp_path / "back", create=True)
    with back.serve(port=0) as server:
        for expected in (15, 0):
            again = spark_kbatch.mirror(
                tmp_path / "copy", server.bootstrap_servers, ["events", "clicks"]
            )
            assert again.records_count == expected

    assert done.records_count == 15
    assert holds(tmp_path / "copy", source, "events", "clicks")
    assert {topic: values(back, topic) for topic in ("events", "clicks")} == {
        topic: values(source, topic) for topic in ("events", "clicks")
    }


def test_a_server_is_followed_until_another_thread_stops_it(
    source: Cluster, tmp_path: Path
) -> None:
    stop, written = threading.Event(), threading.Event()

    def write_then_stop(done: spark_kbatch.MirrorProgress) -> None:
        if done.units and not written.is_set():
            written.set()
            write(source)
        elif done.records_count == 20:
            stop.set()

    with source.serve(port=0) as server:
        done = spark_kbatch.mirror(
            server.bootstrap_servers, tmp_path / "target", "events", follow=True,
            unit_bytes=1 << 20, unit_seconds=0.01, on_progress=write_then_stop, stop=stop,
        )  # fmt: skip

    assert (done.records_count, done.offsets_left) == (20, 0)


def test_the_name_follows_the_sources_cluster_wherever_it_is(
    source: Cluster, tmp_path: Path
) -> None:
    with source.serve(port=0) as server:
        spark_kbatch.mirror(server.bootstrap_servers, tmp_path / "target", "events")
    moved = source.path.rename(tmp_path / "moved")
    write(Cluster(moved))

    assert spark_kbatch.mirror(moved, tmp_path / "target", "events").records_count == 10


def test_a_brokers_logs_have_a_name_with_and_without_a_cluster_id(tmp_path: Path) -> None:
    a_partition(tmp_path / "broker" / "t-0", {0: [a_batch(0, 1)]}, index=False)

    assert spark_kbatch.mirror(tmp_path / "broker", tmp_path / "target", "t").records_count == 2
    assert spark_kbatch.mirror(tmp_path / "broker", tmp_path / "target", "t").records_count == 0
    (tmp_path / "broker" / "meta.properties").write_text("version=1\ncluster.id=an-id\nnode.id=1\n")
    with pytest.raises(ConfigError, match="no progress of mirror 'kbatch-mirror-an-id'"):
        spark_kbatch.mirror(tmp_path / "broker", tmp_path / "target", "t")


def test_a_cluster_is_not_mirrored_into_itself(source: Cluster) -> None:
    with source.serve(port=0) as server, pytest.raises(ConfigError, match="are one cluster"):
        spark_kbatch.mirror(server.bootstrap_servers, source.path, "events")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param({"topics": []}, "topics is", id="no topics"),
        pytest.param({"name": ""}, "name is", id="no name"),
        pytest.param({"unit_bytes": 0}, "unit_bytes is 0", id="empty units"),
        pytest.param({"unit_seconds": -1}, "unit_seconds is -1", id="negative time"),
        pytest.param({"follow": 1}, "follow is 1", id="not a boolean"),
        pytest.param({"source_config": {"client.id": "a"}}, "source_config is for", id="config"),
        pytest.param({"target_config": {"client.id": "a"}}, "target_config is for", id="configs"),
        pytest.param({"source": "nowhere"}, "no kbatch cluster", id="no source"),
    ],
)
def test_a_wrong_argument_is_named(
    source: Cluster, tmp_path: Path, given: dict[str, Any], told: str
) -> None:
    words = {"source": source.path, "target": tmp_path / "target", "topics": "events"} | given

    with pytest.raises(ConfigError, match=told):
        spark_kbatch.mirror(**words)

    assert not (tmp_path / "target").exists()


def test_a_topic_that_the_source_does_not_have_leaves_no_new_cluster(
    source: Cluster, tmp_path: Path
) -> None:
    done = run(source.path, tmp_path / "target", "events", "nope")

    assert isinstance(done.exception, UnknownTopicOrPartitionError)
    assert "'nope'" in str(done.exception)
    assert not (tmp_path / "target").exists()


def test_a_file_of_client_properties_is_read(source: Cluster, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# of a test\n\nclient.id = a-\\\nmirror\nnonsense.key=1\n")
    with source.serve(port=0) as server:
        words = (server.bootstrap_servers, tmp_path / "target", "events")
        done = run(*words, "--source-config", file)
        assert "nonsense.key" in str(done.exception)
        file.write_text(file.read_text().replace("nonsense.key=1", "retry.backoff.ms = 5"))
        done = run(*words, "--source-config", file)

    assert done.exit_code == 0, done.output
    assert holds(tmp_path / "target", source, "events")


def test_a_line_that_cannot_be_read_is_named_without_its_text(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("client.id=a\nssl.key.password=secret\\u12\n")

    done = run("a:1", "b:1", "t", "--target-config", tmp_path / "file")

    assert done.exit_code == 2
    assert "line 2 has" in done.output.replace("\n", " ")
    assert "secret" not in done.output
