"""`kbatch consume`: which records, how they are printed, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner, Result

from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.errors import KBatchError
from tests.support import builders
from tests.support.broker_dirs import a_partition
from tests.support.log_histories import History

COMMAND = [sys.executable, "-c", "from spark_kbatch.cli.main import main; main()", "consume"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    """Topics with four records in partition 0, and one in partition 1 of `events`: times 1000, 2000 ..."""
    path = tmp_path_factory.mktemp("consume")
    made = builders.a_cluster(path, topics={"events": 2, "orders-eu": 1, "orders-us": 1})
    for topic in ("events", "orders-eu", "orders-us"):
        builders.append_records(made, {(topic, 0): builders.encode(rows(4))})
    builders.append_records(made, {("events", 1): builders.encode(rows(1))})
    return made


def rows(count: int) -> pa.RecordBatch:
    """Return records with a key and an escape sequence as value, and times 1000, 2000 ..."""
    return pa.record_batch(
        {
            "key": [b"k%d" % n for n in range(count)],
            "value": [b"\x1b[2J%d\xff" % n for n in range(count)],
            "timestamp": pa.array([1000 * (n + 1) for n in range(count)], pa.int64()),
            "headers": pa.array([[("h", b"\x1b")]] * count, builders.HEADERS_TYPE),
        }
    )


def consume(path: Path | str, *words: str, **more: Any) -> Result:
    return CliRunner().invoke(cli, ["consume", str(path), *words], **more)


def printed(path: Path | str, *words: str) -> list[str]:
    """Return topic, partition and offset of each record."""
    done = consume(path, *words, "--format", r"%t %p %o\n")
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout.splitlines()


EU = [f"orders-eu 0 {n}" for n in range(4)]
US = [f"orders-us 0 {n}" for n in range(4)]
EVENTS = [f"events 0 {n}" for n in range(4)] + ["events 1 0"]


@pytest.mark.parametrize(
    ("words", "records"),
    [
        (["events"], EVENTS),
        (["orders-us", "events"], US + EVENTS),
        (["events", "orders-eu", "--where", "topic = 'events' AND key <> 'k1'"], [EVENTS[0], *EVENTS[2:]]),
        (["events", "--where", "timestamp > TIMESTAMP '1970-01-01 00:00:02Z'"], EVENTS[2:4]),
        (["events", "--where", "headers['h'] = X'1b'", "--max-records", "2"], EVENTS[:2]),
        (["events", "--where", "offset < 3", "--last", "2"], [EVENTS[2], EVENTS[4]]),
        (["^orders-"], EU + US),
        (["^.*s$"], EVENTS + US),
        (["orders-us", "^orders"], US + EU),
        (["events", "--start", "1:1,3"], EVENTS[3:4]),
        (["events", "--start", "earliest", "--start", "0:latest"], EVENTS[4:]),
        (["^orders", "--start", "orders-us:0:3"], EU + US[3:]),
        (["^orders", "--end", "0:1,orders-eu:0:0"], US[:1]),
        (["events", "--from", "2000"], EVENTS[1:4]),
        (["events", "--from", "1970-01-01T00:00:02Z", "--to", "1970-01-01T00:00:03Z"], EVENTS[1:2]),
        (["events", "--to", "1001"], [EVENTS[0], EVENTS[4]]),
        (["events", "--from", "9000"], []),
        (["events", "--from", "3000", "--to", "1000"], []),
        (["events", "--last", "2"], EVENTS[2:]),
        (["events", "--last", "2", "--end", "0:3"], [*EVENTS[1:3], EVENTS[4]]),
        (["^orders", "-n", "5"], EU + US[:1]),
    ],
    ids=" ".join,
)  # fmt: skip
def test_records_are_those_that_were_asked_for(
    cluster: Cluster, words: list[str], records: list[str]
) -> None:
    assert printed(cluster.path, *words) == records


def test_the_last_records_are_counted_where_offsets_have_none(tmp_path: Path) -> None:
    """A transaction's marker has an offset, and an aborted one's records are not printed."""
    history = History()
    for abort in (False, True, False):
        history.append(1, transactional=True, n=2)
        history.end(1, abort=abort)
    a_partition(tmp_path / "t-0", {0: [one.data for one in history.written]})

    assert printed(tmp_path, "t", "--last", "3") == ["t 0 1", "t 0 6", "t 0 7"]
    assert printed(tmp_path, "t", "--last", "2", "--end", "0:7") == ["t 0 1", "t 0 6"]
    assert printed(tmp_path, "t", "--last", "9", "--end", "0:0") == []


def test_a_real_cluster_gives_the_same(cluster: Cluster) -> None:
    with Cluster(cluster.path) as other, other.serve() as server:
        words = ("^orders", "events", "--from", "2000", "--to", "4000")
        local = consume(cluster.path, *words, "--json").stdout
        assert local
        assert consume(server.bootstrap_servers, *words, "--json").stdout == local


def test_a_format_and_raw_values_are_bytes_as_they_are_in_a_pipe(cluster: Cluster) -> None:
    done = consume(cluster.path, "events", "-n", "1", "--format", r"%t|%p|%o|%T|%k|%v|%s|%h|%K|%S|%%\x00\\\t\n")  # fmt: skip
    value = b"\x1b[2J0\xff"
    line = b"events|0|0|1000|k0|" + value + b"|" + value + b"|h=\x1b|2|6|%\x00\\\t\n"
    assert done.stdout_bytes == line
    assert consume(cluster.path, "events", "-n", "1", "--raw").stdout_bytes == value + b"\n"


@pytest.mark.parametrize("words", [["--raw"], ["--format", r"%v %k %h\n"], [], ["--json"]], ids=str)
def test_nothing_of_a_record_reaches_a_terminal_as_it_is(
    cluster: Cluster, words: list[str]
) -> None:
    done = consume(cluster.path, "events", *words, env={"FORCE_COLOR": "1"})
    assert done.exit_code == 0
    assert done.stdout.replace("\n", "").replace("\t", "").isprintable()
    assert r"[2J0" in done.stdout or "base64" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["events", "--format", "%q"], "'%q' is not known; accepted: %t, %p, %o"),
        (["events", "--format", "50%"], "'%' is not known"),
        (["events", "--format", r"a\qb"], r"'\q' is not known"),
        (["events", "--raw", "--json"], "one of --json, --raw and --format"),
        (["events", "--start", "0", "--last", "1"], "one of --start, --from and --last"),
        (["events", "--end", "0", "--to", "1"], "one of --end and --to"),
        (["events", "--follow", "--to", "1"], "leave out --end and --to"),
        (["events", "--start", "1,2"], "1 and 2 are both for all partitions"),
        (["events", "--start", "0:1,0:2"], "partition 0 is given twice"),
        (["events", "--from", "yesterday"], "'yesterday' is not a time"),
        (["events", "--start", "evnets:0:3"], "--start has an offset of partition 0 of topic 'evnets', which"),
        (["events", "--start", "7:3"], "--start has an offset of partition 7, which is not among"),
        (["events", "-p", "0", "--end", "1:1"], "--end has an offset of partition 1, which is not"),
        (["events", "--follow", "--start", "7:3"], "--start has an offset of partition 7, which"),
        (["^["], "'^[' is not a regular expression"),
        (["^nothing"], "no topic matches '^nothing'; topics: events, orders-eu"),
        (["events", "--end", "0:9"], "offset 9 of events-0 is out of range"),
    ],
    ids=lambda one: " ".join(one) if isinstance(one, list) else "",
)  # fmt: skip
def test_what_cannot_be_is_said(cluster: Cluster, words: list[str], said: str) -> None:
    done = consume(cluster.path, *words)
    assert done.exit_code != 0
    assert done.stdout == ""
    if isinstance(done.exception, KBatchError):
        assert said in str(done.exception)
    else:
        assert said in " ".join(done.stderr.split())


def test_offsets_of_topics_that_may_come_are_warned_of(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    done = consume(cluster.path, "^orders", "-f", "-n", "1", "--start", "orders-uk:0:3")
    assert done.exit_code == 0, (done.output, done.exception)
    assert "partition 0 of topic 'orders-uk', which is not among those to read" in caplog.text


@pytest.fixture(params=["folder", "network"])
def followed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Cluster, str]]:
    """A cluster to follow, and where."""
    cluster = builders.a_cluster(tmp_path, topics={"events": 1})
    builders.append_records(cluster, {("events", 0): builders.encode(rows(2))})
    if request.param == "folder":
        yield cluster, str(cluster.path)
    else:
        with Cluster(cluster.path) as other, other.serve() as server:
            yield cluster, server.bootstrap_servers


def test_follow_prints_records_of_new_topics_and_partitions_as_they_come_until_a_signal(
    followed: tuple[Cluster, str],
) -> None:
    cluster, path = followed
    command = [*COMMAND, path, "^", "--follow", "--last", "1", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stdout is not None

        def next_record() -> tuple[str, int, int]:
            record = json.loads(process.stdout.readline())  # type: ignore[union-attr]
            return record["topic"], record["partition"], record["offset"]

        assert next_record() == ("events", 0, 1)
        builders.append_records(cluster, {("events", 0): builders.encode(rows(1))})
        assert next_record() == ("events", 0, 2)
        cluster.create_partitions("events", 2)
        cluster.create_topic("later")
        builders.append_records(cluster, {("events", 1): builders.encode(rows(1))})
        builders.append_records(cluster, {("later", 0): builders.encode(rows(1))})
        assert {next_record(), next_record()} == {("events", 1, 0), ("later", 0, 0)}
        process.send_signal(signal.SIGTERM)
        assert (process.wait(), process.stdout.read(), process.stderr.read()) == (0, b"", b"")  # type: ignore[union-attr]
        watchdog.cancel()


def test_follow_goes_on_where_a_topic_of_a_pattern_is_deleted(
    followed: tuple[Cluster, str],
) -> None:
    cluster, path = followed
    cluster.create_topic("later")
    command = [*COMMAND, path, "^", "--follow", "--json"]
    if not path.startswith("/"):  # A client asks again, for a minute by default.
        command += ["-X", "default.api.timeout.ms=1000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        watchdog = threading.Timer(60, process.kill)
        watchdog.start()
        assert process.stdout is not None
        assert process.stderr is not None
        assert [json.loads(process.stdout.readline())["offset"] for _ in range(2)] == [0, 1]

        cluster.delete_topic("later")

        warnings = iter(process.stderr.readline, b"")
        assert any(b"deleted, and followed no more: later" in line for line in warnings)
        builders.append_records(cluster, {("events", 0): builders.encode(rows(1))})
        assert json.loads(process.stdout.readline())["offset"] == 2
        cluster.create_topic("later")
        builders.append_records(cluster, {("later", 0): builders.encode(rows(1))})
        assert json.loads(process.stdout.readline())["topic"] == "later"
        process.send_signal(signal.SIGTERM)
        assert (process.wait(), process.stdout.read(), process.stderr.read()) == (0, b"", b"")
        watchdog.cancel()


def test_it_ends_quietly_once_no_one_reads_what_it_prints(cluster: Cluster) -> None:
    for words in (["--follow"], []):
        out, to = os.pipe()
        if words:  # seen without a record to print
            words += ["--start", "latest"]
        else:
            os.close(out)
        command = [*COMMAND, str(cluster.path), "events", *words]
        with subprocess.Popen(command, stdout=to, stderr=subprocess.PIPE) as process:
            os.close(to)
            if words:
                os.close(out)
            assert (process.wait(60), process.stderr.read()) == (0, b"")  # type: ignore[union-attr]


@pytest.mark.parametrize("words", [["consume", "--from"], ["offsets", "--time"]], ids=" ".join)
def test_a_number_that_looks_like_seconds_is_warned_of(
    cluster: Cluster, words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    command, option = words
    for time, said in ((1_729_842_000_000, False), (1_729_842_000, True)):
        caplog.clear()
        done = CliRunner().invoke(cli, [command, str(cluster.path), "events", option, str(time)])
        assert done.exit_code == 0
        assert ("times are in ms, and this looks like seconds" in caplog.text) == said


def test_a_condition_on_topics_that_are_not_read_is_told_once(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    where = "topic IN ('nowhere', 'orders-us')"
    done = consume(cluster.path, "events", "orders-us", "--where", where)
    assert len(done.stdout.splitlines()) == len(US)
    (told,) = caplog.messages
    assert "not read: nowhere; read are: events, orders-us" in told


def test_a_condition_that_is_not_taken_says_where(cluster: Cluster) -> None:
    done = consume(cluster.path, "events", "--where", "key = 5")
    assert isinstance(done.exception, KBatchError)
    assert str(done.exception).startswith("--where: at character 7, 5: key is BINARY; write 'text'")
    cluster.create_topic("empty")
    done = consume(cluster.path, "empty", "--where", "key = ")
    assert str(done.exception).startswith("--where: at character 7, the end")
    done = consume(cluster.path, "events", "--where", "")
    assert "--where is ''; accepted: a condition" in str(done.exception)
