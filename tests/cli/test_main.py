"""The `kbatch` command, run as from a shell."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import click
import pyarrow as pa
import pytest
from click.testing import CliRunner

from spark_kbatch import Cluster
from spark_kbatch.catalog.topic_files import TopicFiles
from spark_kbatch.cli import other_tools
from spark_kbatch.cli.main import cli, main
from spark_kbatch.errors import ConfigError
from spark_kbatch.model import AppendOrigin, TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders
from tests.support.answers import kbatch_answering
from tests.support.commands import COMMANDS
from tests.support.log_histories import data_batch, marker_batch
from tests.support.store import reader_of, store_of

ROWS = pa.record_batch(
    {
        "key": [b"k", None, b"\xff"],
        "value": [b"tab\there", b"two\nlines", None],
        "timestamp": [0, -1, 1_700_000_000_123],
        "headers": pa.array([[("h", b"x"), ("h", None)], None, None], builders.HEADERS_TYPE),
    }
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    cluster = builders.a_cluster(tmp_path_factory.mktemp("cli"), topics={"events": 2, "empty": 1})
    batches = {("events", 0): [builders.encode(ROWS)], ("events", 1): [builders.encode(ROWS)]}
    builders.write(cluster, batches)
    return cluster.path


def kbatch(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the command in this process: starting one takes longer than what most commands do."""
    arguments = ["kbatch", *map(str, words)]
    with CliRunner().isolation() as (out, err, _), mock.patch.object(sys, "argv", arguments):
        code: object = 0
        try:
            main()
        except SystemExit as exit_:
            code = exit_.code or 0
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        shown, told = out.getvalue().decode(), err.getvalue().decode()
    assert isinstance(code, int)
    return subprocess.CompletedProcess(arguments, code, shown, told)


def kbatch_from_a_shell(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from spark_kbatch.cli.main import main; main()",
        *map(str, words),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_topics_shows_sums_of_each_topic(path: Path) -> None:
    done = kbatch_from_a_shell("topics", path)

    assert done.returncode == 0
    assert [line.split("\t") for line in done.stdout.splitlines()] == [
        ["topic", "partitions", "offsets", "bytes"],
        ["empty", "1", "0", "0"],
        ["events", "2", "6", str(2 * len(builders.encode(ROWS)))],
    ]


def test_topics_shows_the_partitions_of_a_named_topic_or_of_all_that_are_asked_for(
    path: Path,
) -> None:
    size = str(len(builders.encode(ROWS)))
    headings = ["topic", "partition", "first offset", "next offset", "offsets", "bytes"]
    events = [["events", "0", "0", "3", "3", size], ["events", "1", "0", "3", "3", size]]

    def rows_of(*words: str) -> list[list[str]]:
        return [line.split("\t") for line in kbatch("topics", path, *words).stdout.splitlines()]

    assert rows_of("events") == [headings, *events]
    assert rows_of("-v") == [headings, ["empty", "0", "0", "0", "0", "0"], *events]


def test_topics_counts_the_partitions_whose_replicas_are_not_all_in_sync(tmp_path: Path) -> None:
    disks = [tmp_path / "a", tmp_path / "b"]
    cluster = Cluster(tmp_path / "cluster", create=True, log_dirs=disks)
    cluster.create_topic("alone")
    cluster.create_topic("copied", partitions=2, replication_factor=2)
    disks[1].rename(tmp_path / "unplugged")
    with cluster.producer() as producer:
        producer.send("copied", "a", partition=0).result()

    lines = kbatch("topics", cluster.path).stdout.splitlines()

    assert lines[0].split("\t") == ["topic", "partitions", "offsets", "bytes", "under-replicated"]
    assert [line.split("\t")[::4] for line in lines[1:]] == [["alone", "0"], ["copied", "2"]]


def test_topics_as_json_is_one_object_a_topic(path: Path) -> None:
    empty, events = map(json.loads, kbatch("topics", path, "--json").stdout.splitlines())

    assert (empty["topic"], events["topic"]) == ("empty", "events")
    assert [p["high_watermark"] for p in events["partitions"]] == [3, 3]
    assert (
        events["topic_id"] == store_of(Cluster(str(path))).metadata.topics.topic("events").topic_id
    )


def test_topics_names_internal_topics_when_asked(path: Path) -> None:
    shown = kbatch("topics", path, "--internal", "--json").stdout.splitlines()

    assert [json.loads(line)["topic"] for line in shown] == [
        "__commits",
        "__transaction_state",
        "empty",
        "events",
    ]


def test_topics_skips_a_topic_that_was_deleted_since_topics_were_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"a": 1, "b": 1})
    listed = TopicFiles.names

    def names(topics: TopicFiles, *, internal: bool = False) -> list[str]:
        monkeypatch.setattr(TopicFiles, "names", listed)
        found = listed(topics, internal=internal)
        cluster.delete_topic("b")
        return found

    monkeypatch.setattr(TopicFiles, "names", names)
    done = CliRunner().invoke(cli, ["topics", str(cluster.path), "--json"])

    assert [json.loads(line)["topic"] for line in done.stdout.splitlines()] == ["a"]


def test_consume_prints_a_line_a_record(path: Path) -> None:
    done = kbatch("consume", path, "events", "--partition", "0")

    assert done.stdout.splitlines() == [
        "0\t0\t1970-01-01T00:00:00.000Z\tk\ttab\\there\th=x, h=\\N",
        "0\t1\t-\t\\N\ttwo\\nlines\t-",
        "0\t2\t2023-11-14T22:13:20.123Z\t\\xff\t\\N\t-",
    ]


def test_consume_tells_null_from_text_that_looks_like_it(tmp_path: Path) -> None:
    values = [None, b"-", rb"\N", b"", b"\\xff", b"\xff"]
    rows = pa.record_batch({"value": pa.array(values, pa.binary())})
    cluster = builders.a_cluster(tmp_path)
    builders.write(cluster, {("events", 0): [builders.encode(rows)]})

    lines = kbatch("consume", cluster.path, "events").stdout.splitlines()
    assert [line.split("\t")[4] for line in lines] == [
        r"\N", "-", r"\\N", "", r"\\xff", r"\xff",
    ]  # fmt: skip


def test_a_warning_says_its_level_and_who_logs_it(tmp_path: Path) -> None:
    directory = tmp_path / "\x1b[2Jlogs" / "events-0"
    directory.mkdir(parents=True)
    (directory / "00000000000000000000.log").write_bytes(builders.encode(ROWS) + b"torn")

    done = kbatch_from_a_shell("topics", directory.parent)
    assert done.returncode == 0
    assert done.stderr.startswith("WARNING spark_kbatch.log.foreign.log: ")
    assert r"\x1b[2Jlogs/events-0" in done.stderr
    assert "\x1b" not in done.stdout + done.stderr


def test_consume_as_json_keeps_bytes_that_are_no_text(path: Path) -> None:
    lines = kbatch("consume", path, "events", "-p", "1", "--json").stdout.splitlines()

    records = [json.loads(line) for line in lines]
    assert [r["key"] for r in records] == ["k", None, {"base64": "/w=="}]
    assert records[0]["headers"] == [["h", "x"], ["h", None]]
    assert records[1] == {
        "topic": "events", "partition": 1, "offset": 1, "timestamp": None, "key": None, "value": "two\nlines", "headers": [],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "offsets"),
    [
        (["--start", "1"], [1, 2, 1, 2]),
        (["--end", "1"], [0, 0]),
        (["--start", "1", "--end", "2", "-p", "1"], [1]),
        (["--max-records", "4"], [0, 1, 2, 0]),
        (["--start", "3"], []),
    ],
    ids=["start", "end", "both", "max-records", "at the end"],
)
def test_consume_stops_where_it_is_told(path: Path, words: list[str], offsets: list[int]) -> None:
    lines = kbatch("consume", path, "events", "--json", *words).stdout.splitlines()

    assert [json.loads(line)["offset"] for line in lines] == offsets


def test_consume_prints_nothing_where_one_partition_does_not_hold_what_is_asked_for(
    tmp_path: Path,
) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 3})
    data = builders.encode(ROWS)
    builders.write(cluster, {("events", 0): [data, data], ("events", 2): [data]})

    done = kbatch("consume", cluster.path, "events", "--start", "4")
    assert (done.returncode, done.stdout) == (1, "")
    assert "events-1" in done.stderr
    assert "offset 4" in done.stderr
    shown = kbatch("consume", cluster.path, "events", "--start", "4", "-p", "0").stdout
    assert len(shown.splitlines()) == 2


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Make a cluster with four segments, two more than retention keeps, and files of a dead job."""
    data = builders.encode(ROWS)
    config = TopicConfig(segment_bytes=len(data), retention_bytes=2 * len(data))
    cluster = builders.a_cluster(tmp_path, config=config)
    for _ in range(4):
        builders.append_records(cluster, {("events", 0): data})
    builders.staged(cluster, {("events", 0): [data]}, transaction="dead" * 8)
    for path in (cluster.path / "staging-0").rglob("*"):
        os.utime(path, (0, 0))
    return cluster.path


def first_offset(path: Path) -> int:
    cluster = Cluster(str(path))
    return reader_of(cluster).edges([TopicPartition("events", 0)])[TopicPartition("events", 0)][0]


def test_gc_says_what_it_deletes(old: Path) -> None:
    size = len(builders.encode(ROWS))
    lines = [
        f"events-0: 2 segments of {2 * size:,} bytes {{}} at offset 6",
        f"days ago: {size:,} bytes {{}}",
    ]
    for words, outcome, start in (
        (["--dry-run"], "would be deleted", "it would start"),
        ([], "deleted", "it starts"),
    ):
        done = kbatch("gc", old, *words)
        assert done.returncode == 0
        deleted, left_over, *kept = done.stdout.splitlines()
        assert deleted == lines[0].format(f"{outcome}; {start}")
        assert left_over.startswith(f"staged by {'dead' * 8}, ")
        assert left_over.endswith(lines[1].format(outcome))
        assert first_offset(old) == (0 if words else 6)
        assert len(kept) == (0 if words else 1)
    waiting, nothing = kbatch("gc", old).stdout.splitlines()
    assert re.fullmatch(r"deleted segments of events-0: [\d,]+ bytes, kept until .*Z", waiting)
    assert nothing == "Nothing to delete yet."


def test_delete_topic_asks_first(old: Path) -> None:
    cluster = Cluster(str(old))
    cluster.create_topic("more")
    summary = f"topic events: 1 partition, 12 offsets, {4 * len(builders.encode(ROWS)):,} bytes"
    done = kbatch_answering("n\n", "delete-topic", old, "events", "more")
    assert (done.returncode, done.stdout) == (1, "")
    assert summary in done.stderr
    assert cluster.topic_names() == ["events", "more"]
    done = kbatch_answering("y\n", "delete-topic", old, "events", "more")
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"topic events deleted: {summary.partition(': ')[2]}",
        "topic more deleted: 1 partition, 0 offsets, 0 bytes",
    ]
    assert cluster.topic_names() == []


@pytest.mark.parametrize("words", [["delete-topic", "events"], ["delete-records", "events", "0:4"]])
def test_what_deletes_takes_no_answer_that_is_not_typed(old: Path, words: list[str]) -> None:
    command, *rest = words
    done = CliRunner().invoke(cli, [command, str(old), *rest], input="y\ny\n")
    assert (done.exit_code, done.stdout) == (1, "")
    assert "stdin is no terminal" in str(done.exception)
    assert "give --yes to delete" in str(done.exception)
    assert first_offset(old) == 0


def test_history_lists_what_was_committed_to_a_deleted_topic(path: Path, tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    builders.write(cluster, {("events", 0): [builders.encode(ROWS)]})
    cluster.delete_topic("events")
    (commit,) = map(
        json.loads, kbatch("history", cluster.path, "-t", "events", "--json").stdout.splitlines()
    )
    assert commit["commit"] == 0
    assert "'absent' does not exist" in kbatch("history", path, "-t", "absent").stderr


def test_delete_topic_only_says_what_would_go_or_does_not_ask(old: Path) -> None:
    rows = {
        "topic": "events",
        "num_partitions": 1,
        "offsets": 12,
        "size_in_bytes": 4 * len(builders.encode(ROWS)),
    }
    done = kbatch("delete-topic", old, "events", "--dry-run", "--json")
    assert json.loads(done.stdout) == rows | {"deleted": False}
    assert Cluster(str(old)).topic_names() == ["events"]
    done = kbatch("delete-topic", old, "events", "--yes", "--json")
    assert json.loads(done.stdout) == rows | {"deleted": True}
    assert done.stderr == ""

    again = kbatch("delete-topic", old, "events", "--yes")
    assert again.returncode == 1
    assert "topic 'events' does not exist" in again.stderr


def test_delete_topic_deletes_none_where_one_is_not_there(old: Path) -> None:
    assert kbatch("delete-topic", old, "events", "absent", "--yes").returncode == 1
    assert kbatch("delete-topic", old, "events", "__commits", "--yes").returncode == 1
    assert Cluster(str(old)).topic_names() == ["events"]


def test_delete_topic_deletes_one_whose_logs_cannot_be_read(old: Path) -> None:
    (old / "broker-0" / "events-0" / "kbatch.state").write_bytes(b"")
    done = kbatch("delete-topic", old, "events", "--yes")
    assert done.returncode == 0
    assert done.stdout == "topic events deleted: 1 partition, whose logs cannot be read\n"


def test_gc_removes_the_files_of_deleted_topics(old: Path) -> None:
    kbatch("gc", old)
    cluster = Cluster(str(old))
    cluster.alter_topic("events", {"file.delete.delay.ms": 1})
    cluster.create_topic("more", config={"file.delete.delay.ms": 500})
    topic = cluster.delete_topic("more")
    time.sleep(0.6)
    said = "files of the deleted topic more {}\n"
    assert kbatch("gc", old, "--dry-run").stdout.endswith(said.format("would be deleted"))
    found = json.loads(kbatch("gc", old, "--dry-run", "--json").stdout.splitlines()[-1])
    assert found == {"deleted_topic": "more", "topic_id": topic.topic_id}
    assert kbatch("gc", old).stdout.endswith(said.format("deleted"))
    assert kbatch("gc", old).stdout == "Nothing to delete.\n"


def test_create_partitions_says_what_becomes_of_keys(old: Path) -> None:
    done = kbatch("create-partitions", old, "events", "3")
    assert done.stdout == "topic events has 3 partitions\n"
    assert "records with equal keys" in done.stderr
    done = kbatch("create-partitions", old, "events", "4", "--json")
    assert json.loads(done.stdout) == {"topic": "events", "num_partitions": 4}
    done = kbatch("create-partitions", old, "events", "4")
    assert done.returncode == 1
    assert "topic 'events' has 4 partitions; 4 would not be an increase" in done.stderr


def test_alter_topic_prints_all_settings(old: Path) -> None:
    words = ("--config", "retention.ms=5000", "--config", "index.interval.bytes=1")
    shown = kbatch("alter-topic", old, "events", *words).stdout.splitlines()
    assert {"retention.ms=5000", "index.interval.bytes=1", "min.insync.replicas=1"} <= {*shown}
    done = kbatch("alter-topic", old, "events", "--reset", "retention.ms", "--json")
    config = json.loads(done.stdout)["config"]
    assert (config["retention.ms"], config["index.interval.bytes"]) == (-1, 1)
    assert json.loads(kbatch("alter-topic", old, "events", "--json").stdout)["config"] == config


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--config", "retention.ms"], 2, "is not KEY=VALUE"),
        (
            ["--config", "retention.ms=1", "--config", "retention.ms=2"],
            2,
            "'retention.ms' is given twice",
        ),
        (
            ["--config", "retention.ms=1", "--reset", "retention.ms"],
            2,
            "is given to both --config and --reset",
        ),
        (
            ["--config", "retention.ms=1", "--reset", "retention_ms"],
            2,
            "is given to both --config and --reset",
        ),
        (["--config", "retention.mss=1"], 1, "the nearest known one is 'retention.ms'"),
        (["--reset", "retention.mss"], 1, "the nearest known one is 'retention.ms'"),
        (["--config", "num.partitions=8"], 1, "and more by `kbatch create-partitions`"),
        (["--config", "message.format.version=0.9.0"], 1, "cannot be changed"),
    ],
    ids=[
        "no value",
        "twice",
        "set and reset",
        "in two spellings",
        "unknown",
        "unknown, to reset",
        "partitions",
        "the format",
    ],
)
def test_alter_topic_says_what_is_wrong(old: Path, words: list[str], code: int, said: str) -> None:
    done = CliRunner().invoke(cli, ["alter-topic", str(old), "events", *words])
    assert isinstance(done.exception, SystemExit if code == 2 else ConfigError)
    assert said in (done.output if code == 2 else str(done.exception))


def test_gc_says_what_it_leaves(old: Path) -> None:
    stray = old / "staging-0" / ".nfs0001"
    stray.write_bytes(b"x")
    kbatch("gc", old)
    said, *_ = kbatch("gc", old).stdout.splitlines()
    assert said == f"{stray} not deleted: it is not what a job makes there"
    said, *_ = kbatch("gc", old, "--json").stdout.splitlines()
    assert json.loads(said) == {
        "not_removed": str(stray),
        "why": "it is not what a job makes there",
    }


def test_a_damaged_topic_file_is_said_after_all_else(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 1, "others": 1})
    (cluster.path / "topics" / "events.json").write_text("{")
    done = kbatch("topics", cluster.path, "--json")
    assert [json.loads(line)["topic"] for line in done.stdout.splitlines()] == ["others"]
    assert done.returncode == 1
    assert f"`kbatch repair {cluster.path}` recreates the file" in done.stderr.replace("\n", " ")
    (line,) = kbatch("gc", cluster.path).stdout.splitlines()
    assert line.startswith("topic events is left out: ")


def test_gc_as_json_is_one_object_a_partition_and_a_dead_job(old: Path) -> None:
    deleted, left_over, waiting = map(
        json.loads, kbatch("gc", old, "events", "--json").stdout.splitlines()
    )

    size = len(builders.encode(ROWS))
    assert deleted == {
        "topic": "events", "partition": 0, "log_start_offset": 6, "segments": [0, 3],
        "size_in_bytes": 2 * size, "files": [],
    }  # fmt: skip
    assert (left_over.pop("transaction"), left_over.pop("size_in_bytes")) == ("dead" * 8, size)
    assert left_over.pop("age_ms") > 0
    assert (waiting["waiting"], waiting["name"]) == ("deleted segments", "events-0")
    assert json.loads(kbatch("gc", old, "--json").stdout) == waiting


def test_gc_keeps_what_jobs_staged_for_as_long_as_it_is_told(old: Path) -> None:
    kbatch("gc", old, "--staging-retention-ms", 2**60)
    assert len(list((old / "staging-0").iterdir())) == 1


def test_records_below_an_offset_are_deleted(old: Path) -> None:
    looked = kbatch("delete-records", old, "events", "0:4", "--dry-run").stdout
    assert looked == "events-0 would start at offset 4: 4 offsets would be deleted\n"
    assert first_offset(old) == 0
    done = kbatch("delete-records", old, "events", "0:4", "--yes").stdout
    assert done == "events-0 starts at offset 4: 4 offsets deleted\n"
    assert first_offset(old) == 4
    found = kbatch("delete-records", old, "events", "0:-1", "--json", "--yes").stdout
    assert json.loads(found) == {
        "topic": "events", "partition": 0, "log_start_offset": 12, "offsets": 8, "deleted": True,
    }  # fmt: skip
    below = kbatch("delete-records", old, "events", "0:1", "--json", "--dry-run").stdout
    assert json.loads(below) == {
        "topic": "events", "partition": 0, "log_start_offset": 12, "offsets": 0, "deleted": False,
    }  # fmt: skip


def test_a_topic_is_created_and_described(tmp_path: Path) -> None:
    path = tmp_path / "new"
    words = ("--partitions", "2", "--config", "retention.ms=5000")
    refused = kbatch("create-topic", path, "events", *words, "--no-create")
    assert "no such folder" in refused.stderr
    done = kbatch("create-topic", path, "events", *words)
    assert done.stdout == "topic events has 2 partitions, replication factor 1\n"
    again = kbatch("create-topic", path, "events")
    assert (again.returncode, "or give --if-not-exists" in again.stderr) == (1, True)
    there = kbatch("create-topic", path, "events", *words, "--if-not-exists", "--json")
    (described,) = kbatch("describe-topic", path, "events", "--json").stdout.splitlines()
    assert json.loads(there.stdout) == json.loads(described)
    assert json.loads(described)["config"]["retention.ms"] == 5000
    kbatch("create-topic", path, "more")
    rows = [
        line.split("\t")
        for line in kbatch("describe-topic", path, "events", "more").stdout.splitlines()
    ]
    assert rows[:3] == [
        ["topic", "setting", "value", "default"],
        ["events", "num.partitions", "2", "-"],
        ["events", "replication.factor", "1", "-"],
    ]
    assert ["events", "retention.ms", "5000", "-1"] in rows
    assert ["more", "retention.ms", "-1", "-1"] in rows


@pytest.mark.parametrize(
    ("time", "rows"),
    [
        ("earliest", ["0\t0\t-", "1\t0\t-"]),
        ("latest", ["0\t3\t-", "1\t3\t-"]),
        ("max-timestamp", ["0\t2\t2023-11-14T22:13:20.123Z", "1\t2\t2023-11-14T22:13:20.123Z"]),
        ("1", ["0\t2\t2023-11-14T22:13:20.123Z", "1\t2\t2023-11-14T22:13:20.123Z"]),
        ("1970-01-01", ["0\t0\t1970-01-01T00:00:00.000Z", "1\t0\t1970-01-01T00:00:00.000Z"]),
        ("2023-11-14T23:13:20.123+01:00", ["0\t2\t2023-11-14T22:13:20.123Z", "1\t2\t2023-11-14T22:13:20.123Z"]),
        ("2023-11-14T22:13:20.124Z", ["0\t-\t-", "1\t-\t-"]),
    ],
    ids=["earliest", "latest", "max", "ms", "date", "zone", "after-all"],
)  # fmt: skip
def test_offsets_shows_where_a_time_begins(path: Path, time: str, rows: list[str]) -> None:
    assert kbatch("offsets", path, "events", "--time", time).stdout.splitlines() == rows


def test_history_lists_commits_the_newest_first(path: Path) -> None:
    done = kbatch("history", path)

    headings, *rows = [line.split("\t") for line in done.stdout.splitlines()]
    assert headings == ["commit", "time", "mode", "by", "topics", "records", "bytes"]
    size = str(2 * len(builders.encode(ROWS)))
    assert rows == [["0", "2023-11-14T22:13:20.000Z", "append", "-", "events", "6", size]]


def test_history_as_json_is_one_object_a_commit(path: Path) -> None:
    done = kbatch("history", path, "--topic", "events", "--max-commits", "1", "--json")
    commit = json.loads(done.stdout)

    assert (commit["commit"], commit["records"], commit["mode"]) == (0, 6, "append")
    assert commit["time"] == "2023-11-14T22:13:20.000Z"
    assert commit["offsets"] == {"events": {"0": [0, 3], "1": [0, 3]}}
    assert kbatch("history", path, "--topic", "empty", "--json").stdout == ""


def test_history_of_a_commit_is_what_ending_offsets_takes(path: Path) -> None:
    done = kbatch("history", path, "0")

    assert json.loads(done.stdout) == {"events": {"0": 3, "1": 3}}


def test_offsets_as_json_has_null_where_there_is_none(path: Path) -> None:
    done = kbatch("offsets", path, "events", "--time", "99999999999999", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows == [{"partition": p, "offset": None, "timestamp": None} for p in (0, 1)]


def test_repair_says_what_it_did_and_does_it(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events-eu": 2})
    builders.write(cluster, {("events-eu", 0): [builders.encode(ROWS)]})
    index = cluster.path / "broker-0/events-eu-0/00000000000000000000.index"
    index.unlink()

    looked = kbatch("repair", cluster.path, "--dry-run")
    assert (looked.returncode, index.exists()) == (0, False)
    assert "events-eu-0: can be repaired, offsets 0 to 3" in looked.stdout.splitlines()
    done = kbatch("repair", cluster.path, "events-eu-0", "--json")
    (report,) = map(json.loads, done.stdout.splitlines())
    assert index.exists()
    assert report == {
        "topic": "events-eu", "partition": 0, "log_start_offset": 0, "log_end_offset": 3,
        "found": [f"{index} is missing: it is rebuilt"], "damaged": [], "offline": [],
    }  # fmt: skip
    again = kbatch("repair", cluster.path, "events-eu")
    assert again.stdout.splitlines() == [
        "events-eu-0: ok, offsets 0 to 3",
        "events-eu-1: ok, offsets 0 to 0",
    ]


def test_repair_of_damaged_batches_is_exit_code_1(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path)
    builders.write(cluster, {("events", 0): [builders.encode(ROWS)]})
    path = cluster.path / "broker-0/events-0/00000000000000000000.log"
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))

    done = kbatch("repair", cluster.path, "events")
    assert done.returncode == 1
    first, second = done.stdout.splitlines()
    assert first == "events-0: damaged, offsets 0 to 3"
    assert f"position 0 of {path}: CRC-32C" in second


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["repair", "{path}", "events-9"], "partition events-9 does not exist"),
        (["offsets", "{path}", "absent"], "topic 'absent' does not exist"),
        (["consume", "{path}", "absent"], "topic 'absent' does not exist"),
        (["consume", "{path}", "events", "-p", "7"], "events-7"),
        (["consume", "{path}", "events", "--start", "9"], "9"),
        (["topics", "{path}/nowhere"], "there is no such folder"),
        (["topics", "hdfs://host/x"], "'hdfs'"),
        (
            ["delete-records", "{path}", "events", "0:9", "--yes"],
            "offset 9 of events-0 is out of range",
        ),
        (["delete-records", "{path}", "events", "7:1", "--dry-run"], "has partitions 0 to 1"),
        (["delete-records", "{path}", "__commits", "0:1", "--yes"], "__commits"),
        (["gc", "{path}", "absent"], "topic 'absent' does not exist"),
        (["demo", "{path}"], "already holds something"),
    ],
    ids=[
        "repair",
        "offsets",
        "topic",
        "partition",
        "offset",
        "folder",
        "scheme",
        "deleted",
        "deleted partition",
        "deleted internal topic",
        "collected",
        "demo",
    ],
)
def test_a_failure_is_one_line_and_exit_code_1(path: Path, words: list[str], reason: str) -> None:
    done = kbatch(*(word.format(path=path) for word in words))

    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("kbatch: ")
    assert reason in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ["consume", "x"],
        ["consume", "x", "t", "--start", "-5"],
        ["nonsense"],
        ["offsets", "x", "t", "--time", "yesterday"],
        ["topics", "x", "--bad"],
        ["delete-records", "x", "t"],
        ["delete-records", "x", "t", "0"],
        ["delete-records", "x", "t", "0:-2"],
        ["delete-records", "x", "t", "0:1", "0:2"],
    ],
    ids=[
        "missing",
        "offset",
        "command",
        "time",
        "option",
        "no partition",
        "no offset",
        "negative",
        "twice",
    ],
)
def test_usage_errors_are_exit_code_2(words: list[str]) -> None:
    assert kbatch(*words).returncode == 2


@pytest.mark.parametrize(
    ("isolation_level", "offsets"), [("read_committed", [2]), ("read_uncommitted", [0, 2, 3])]
)
def test_consume_leaves_out_what_transactions_aborted_unless_it_is_asked_for(
    tmp_path: Path, isolation_level: str, offsets: list[int]
) -> None:
    cluster = builders.a_cluster(tmp_path)
    for data in (
        data_batch(base_offset=0, producer_id=1, transactional=True),
        marker_batch(base_offset=0, producer_id=1, abort=True),
        data_batch(base_offset=0),
        data_batch(base_offset=0, producer_id=2, transactional=True),
    ):
        builders.append_records(cluster, {("events", 0): data}, origin=AppendOrigin.COORDINATOR)

    done = kbatch("consume", cluster.path, "events", "--json", "--isolation-level", isolation_level)
    assert [json.loads(line)["offset"] for line in done.stdout.splitlines()] == offsets
    read = cluster.read("events", columns=["offset"], isolation_level=isolation_level)
    assert [offset for rows in read for offset in rows.column("offset").to_pylist()] == offsets


@pytest.mark.parametrize(
    ("words", "ours"),
    [
        (["consume", "-o", "-5"], "--last N"),
        (["consume", "-c", "5"], "-n N"),
        (["consume", "-c5"], "-n N"),
        (["consume", "-C"], "nothing: the command is that mode"),
        (["consume", "--from-beginning"], "the default"),
        (["consume", "--property", "print.key=true"], "--format"),
        (["consume", "--group", "g"], "`Cluster.follow(group=)` in Python"),
        (["produce", "-P"], "nothing: the command is that mode"),
        (["produce", "-b", "broker:9092"], "PATH, or HOST:PORT"),
        (["produce", "-t", "events"], "TOPIC"),
        (["produce", "--property", "parse.key=true"], "-K (--key-separator)"),
        (["topics", "-L"], "nothing: the command is that mode"),
        (["topics", "--list"], "nothing: the command is that mode"),
        (["topics", "--bootstrap-server", "broker:9092"], "PATH, or HOST:PORT"),
        (["topics", "--describe"], "`kbatch describe-topic`"),
        (["topics", "--config", "client.properties"], "--command-config FILE"),
        (["create-topic", "--topic", "t"], "TOPIC"),
        (["create-topic", "--set", "retention.ms=5"], "--config KEY=VALUE"),
        (["groups", "--describe"], "`kbatch groups PATH GROUP`"),
        (["groups", "--group", "g"], "GROUP"),
        (["groups", "-g", "g"], "GROUP"),
        (["groups", "--to-earliest"], "`kbatch groups reset`"),
        (["groups reset", "--execute"], "without --dry-run it is done"),
        (["groups reset", "--to", "1729842000000"], "--to-offset N or --to-datetime TIME"),
        (["groups reset", "--shift-by", "-5"], "nothing that moves by a number"),
        (["groups delete", "--group", "g"], "GROUP"),
        (["serve", "--port", "9092"], "--listen HOST:PORT"),
        (["serve", "--host", "0.0.0.0"], "--listen HOST:PORT"),
        (["serve", "--advertised-listeners", "h:1"], "--advertise HOST:PORT"),
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, list) else "",
)
def test_an_option_of_another_tool_is_answered_by_ours(
    path: Path, words: list[str], ours: str
) -> None:
    command, option, *rest = words
    done = CliRunner().invoke(cli, [*command.split(), str(path), "events", option, *rest])

    assert done.exit_code == 2
    said = " ".join(done.stderr.split())
    assert f"No such option: {option[:2] if len(option) == 3 else option}; here it is " in said
    assert ours in said


def test_a_mode_of_kcat_is_answered_by_a_command() -> None:
    done = CliRunner().invoke(cli, ["-L", "-b", "broker:9092"])
    assert done.exit_code == 2
    assert "No such option: -L; here it is `kbatch topics`" in done.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("ls", "here it is `kbatch topics`"),
        ("list-topics cluster", "here it is `kbatch topics`"),
        ("LIST_TOPICS", "here it is `kbatch topics`"),
        ("status", "`kbatch verify` for whether all is well"),
        ("rm cluster events", "here it is `kbatch delete-topic`, `kbatch delete-records`"),
        ("cat events", "here it is `kbatch consume`"),
        ("tail -f events", "here it is `kbatch consume --follow`"),
        ("kafka-topics.sh --list", "here it is `kbatch topics`"),
        ("kafka-console-producer", "here it is `kbatch produce`"),
        ("help topics", "here it is `kbatch --help`"),
        ("topcis", "did you mean `kbatch topics`?"),
        ("consum", "did you mean `kbatch consume`?"),
        ("./topic topics", "the command comes first: `kbatch topics ./topic`"),
        ("zzz", "`kbatch --help` lists all commands"),
        ("ev\x1b[2Jil", r"'ev\x1b[2Jil'"),
    ],
)
def test_a_word_that_is_no_command_is_answered_by_the_command_that_does_it(
    words: str, said: str
) -> None:
    done = CliRunner().invoke(cli, words.split(" "))

    assert done.exit_code == 2
    told = " ".join(done.stderr.split())
    assert f"No such command {words.split(' ')[0]!r}; " in told
    assert said in told


def test_words_of_other_tools_are_no_commands_and_what_answers_them_is() -> None:
    assert not other_tools.COMMANDS_OF_OTHERS.keys() & COMMANDS.keys()
    for answer in other_tools.COMMANDS_OF_OTHERS.values():
        for words in re.findall(r"`kbatch ([a-z -]+?)(?: -| [A-Z]|`)", answer):
            assert words.strip() in {*COMMANDS, "--help", "--version"}


def test_commands_are_listed_in_groups() -> None:
    told = CliRunner().invoke(cli, ["--help"]).stdout
    groups = re.findall(r"^([A-Z][a-z ]+):", told.partition("Options:")[2], re.MULTILINE)
    assert groups == ["Records", "Topics", "Groups", "Upkeep", "Servers"]
    assert len(told.splitlines()) <= 60
    assert set(re.findall(r"^  ([a-z][a-z -]+?)  ", told, re.MULTILINE)) == COMMANDS.keys()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("json", "--json prints JSON lines"),
        ("JSONL", "--json prints JSON lines"),
        ("csv", "`kbatch export` writes CSV"),
        ("avro", "--value-format says what values are"),
        (r"a\n", "names no field, such as %v"),
    ],
)
def test_a_format_of_records_that_names_no_field_is_refused(
    path: Path, text: str, said: str
) -> None:
    done = CliRunner().invoke(cli, ["consume", str(path), "events", "--format", text])
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
    assert not done.stdout


def test_an_answer_of_the_table_is_for_no_option_that_the_command_has() -> None:
    assert other_tools.OURS.keys() <= COMMANDS.keys()
    for name, theirs in other_tools.OURS.items():
        own = {word for one in COMMANDS[name].params for word in one.opts}
        assert not own & theirs.keys(), name


def test_options_that_an_answer_names_exist() -> None:
    known = set[str]()
    for command in COMMANDS.values():
        known |= {word for one in command.params for word in one.opts}
    for answers in (other_tools.OF_ALL, *other_tools.OURS.values()):
        for answer in answers.values():
            assert set(re.findall(r"(?<![\w-])--[a-z-]+", answer)) <= known, answer
            for words in re.findall(r"`kbatch ([a-z -]+?)(?: -| [A-Z]|`)", answer):
                assert words.strip() in COMMANDS


def test_a_format_that_is_given_by_f_as_to_kcat_is_answered_by_ours(path: Path) -> None:
    done = CliRunner().invoke(cli, ["consume", str(path), "events", "-f", "%k"])
    assert done.exit_code == 2
    assert "a format is given by --format, and -f is --follow" in " ".join(done.stderr.split())


def test_a_file_of_client_properties_is_not_taken_for_a_setting(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL")
    done = CliRunner().invoke(cli, ["create-topic", str(path), "t", "--config", str(file)])
    assert done.exit_code == 2
    assert "--command-config" in done.stderr


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_ends_with_examples_that_it_takes(name: str) -> None:
    command = COMMANDS[name]
    heading, *examples = (command.epilog or "").replace("\b\n", "").splitlines()
    assert heading == "Examples:"
    assert 1 <= len(examples) <= 2
    for example in examples:
        for part in example.split(" | "):
            program, *words = shlex.split(part.partition(" < ")[0])
            assert program == "kbatch"
            outer = click.Context(cli, **cli.context_settings)
            found, of, rest = cli.resolve_command(outer, words)
            assert of is not None
            with of.make_context(found, rest, parent=outer):
                pass
        assert f"kbatch {name} " in f"{example} "


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["offsets", "--group", "g", "--time", "0"], "--time has no meaning beside --group"),
        (["offsets", "-g", "g", "--isolation-level", "read_committed"], "beside --group"),
        (["export", "--log-dir", "d", "--foreign-end", "log"], "--foreign-end has no meaning"),
        (["history", "3", "-n", "1"], "--max-commits has no meaning beside COMMIT"),
    ],
)
def test_an_option_that_means_nothing_beside_another_is_refused(
    words: list[str], said: str
) -> None:
    command, *rest = words
    topic = [] if command == "history" else ["events"]
    done = CliRunner().invoke(cli, [command, "./cluster", *topic, *rest])
    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    "time", ["1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.998Z", "1960-01-01"]
)
def test_a_time_before_1970_is_no_word_for_an_edge(time: str) -> None:
    done = CliRunner().invoke(cli, ["offsets", "./cluster", "events", "--time", time])
    assert done.exit_code == 2
    assert "is not a time since 1970" in " ".join(done.stderr.split())
