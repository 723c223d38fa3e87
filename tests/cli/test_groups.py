"""`kbatch groups`, and the lag that `kbatch topics` and `kbatch offsets` show."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import kafka
import pytest
from click.testing import CliRunner, Result

import spark_kbatch
from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.commit.internal_topics import CONSUMER_OFFSETS
from spark_kbatch.errors import ConfigError, GroupIdNotFoundError, GroupNotEmptyError
from spark_kbatch.model import TopicPartition
from spark_kbatch.remote.client import close_idle_clients
from tests.support import builders, stored_groups
from tests.support.broker_dirs import a_partition, batches, checkpoint
from tests.support.store import store_of


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    cluster = builders.a_cluster(tmp_path_factory.mktemp("groups"), topics={"events": 2, "more": 1})
    builders.append_records(cluster, {("events", 0): builders.batch()})
    app = stored_groups.member("app", {"events": [0, 1]})
    stored_groups.store(cluster, "billing", {("events", 0): 1}, [app])
    stored_groups.store(cluster, "au\x1bdit", {("events", 0): 3})
    return cluster


def kbatch(*words: Any) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def rows_of(done: Result) -> list[list[str]]:
    assert done.exit_code == 0, done.output
    _headings, *lines = done.stdout.splitlines()
    return [line.split("\t") for line in lines]


def objects_of(done: Result) -> list[Any]:
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_groups_are_listed_with_their_lag(cluster: Cluster) -> None:
    done = kbatch("groups", cluster.path)

    assert rows_of(done) == [
        [r"au\x1bdit", "Empty", "events", "0", "0"],
        ["billing", "Stable", "events", "1", "2"],
    ]
    drawn = CliRunner().invoke(cli, ["groups", str(cluster.path)], env={"FORCE_COLOR": "1"})
    assert "not served now" in drawn.stdout.replace("\n", " ")


def test_one_group_is_shown_with_its_partitions_and_members(cluster: Cluster) -> None:
    rows = rows_of(kbatch("groups", cluster.path, "billing"))

    assert rows[0][:5] == ["events", "0", "1", "3", "2"]
    assert rows[0][5].startswith("2023-11-14")
    assert rows[-1] == ["app-1", "-", "app", "127.0.0.1", "events-0, events-1"]
    assert ["events", "1", "-", "0", "-", "-"] in rows


def test_groups_as_json_are_one_object_each(cluster: Cluster) -> None:
    _, billing = objects_of(kbatch("groups", cluster.path, "--json"))

    assert objects_of(kbatch("groups", cluster.path, "billing", "--json")) == [billing]
    assert billing["server"] is None
    assert (billing["group"], billing["state"], billing["lag"]) == ("billing", "Stable", 2)
    assert billing["offsets"][0] == {
        "topic": "events",
        "partition": 0,
        "committed_offset": 1,
        "log_end_offset": 3,
        "lag": 2,
        "metadata": "a note",
        "commit_timestamp": "2023-11-14T22:13:20.000Z",
    }
    assert billing["members"] == [
        {
            "member_id": "app-1",
            "instance_id": None,
            "client_id": "app",
            "client_host": "127.0.0.1",
            "partitions": [["events", 0], ["events", 1]],
        }
    ]


def test_the_list_of_groups_shows_where_the_cluster_is_served(cluster: Cluster) -> None:
    with Cluster(cluster.path) as other, other.serve() as server:
        drawn = CliRunner().invoke(cli, ["groups", str(cluster.path)], env={"FORCE_COLOR": "1"})
        found = objects_of(kbatch("groups", cluster.path, "--json"))

    assert server.bootstrap_servers in drawn.stdout.replace("\n", " ")
    assert {one["server"] for one in found} == {server.bootstrap_servers}


def test_a_cluster_without_groups_says_so(tmp_path: Path) -> None:
    path = builders.a_cluster(tmp_path).path

    done = kbatch("groups", path)

    assert done.stderr == f"{path} has no consumer groups; it is not served now.\n"
    assert rows_of(done) == []
    assert kbatch("groups", path, "--json").stdout == ""


@pytest.mark.parametrize("words", [("groups", "none"), ("offsets", "events", "--group", "none")])
def test_the_error_for_an_unknown_group_names_the_existing_ones(
    cluster: Cluster, words: tuple[str, ...]
) -> None:
    command, *rest = words

    done = kbatch(command, cluster.path, *rest)

    assert isinstance(done.exception, ConfigError)
    assert "'none' does not exist" in str(done.exception)
    assert "billing" in str(done.exception)


def test_topics_show_the_lag_of_groups(cluster: Cluster) -> None:
    sums = rows_of(kbatch("topics", cluster.path))
    rows = rows_of(kbatch("topics", cluster.path, "--verbose"))
    events, more = objects_of(kbatch("topics", cluster.path, "--json"))

    assert [row[-1] for row in sums] == [r"au\x1bdit: 0, billing: 2", "-"]
    assert [row[-1] for row in rows] == [r"au\x1bdit: 0, billing: 2", "-", "-"]
    assert events["partitions"][0]["groups"] == {
        "au\x1bdit": {"committed_offset": 3, "lag": 0},
        "billing": {"committed_offset": 1, "lag": 2},
    }
    assert "groups" not in events["partitions"][1]
    assert "groups" not in more["partitions"][0]


def test_offsets_of_a_group_are_shown(cluster: Cluster) -> None:
    words = ("offsets", cluster.path, "events", "--group", "billing")

    assert kbatch(*words).stdout == "0\t1\t3\t2\n1\t-\t0\t-\n"
    assert objects_of(kbatch(*words, "--json")) == [
        {"partition": 0, "committed_offset": 1, "log_end_offset": 3, "lag": 2},
        {"partition": 1, "committed_offset": None, "log_end_offset": 0, "lag": None},
    ]


def test_topics_are_shown_even_if_groups_cannot_be_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = builders.a_cluster(tmp_path)
    stored_groups.store(cluster, "billing", {("events", 0): 0})
    log = store_of(cluster).metadata.cluster_file.log_directory(CONSUMER_OFFSETS, 0)
    (segment,) = log.glob("*.log")
    data = bytearray(segment.read_bytes())
    data[70] ^= 1
    segment.write_bytes(data)

    (events,) = objects_of(kbatch("topics", cluster.path, "--json"))

    assert events["topic"] == "events"
    assert "consumer groups are not shown" in caplog.text


# Offsets moved by hand


@pytest.fixture
def idle(tmp_path: Path) -> Cluster:
    """Return a cluster with a group that has read a part of topic events, and has no members."""
    cluster = builders.a_cluster(tmp_path, topics={"events": 2, "more": 1})
    builders.append_records(
        cluster, {("events", 0): builders.batch(), ("more", 0): builders.batch()}
    )
    cluster.delete_records({("events", 0): 1})
    stored_groups.store(cluster, "audit", {("events", 0): 2})
    return cluster


def committed(cluster: Cluster, group: str = "audit") -> dict[tuple[str, int], int | None]:
    (found,) = (one for one in cluster.groups() if one.group_id == group)
    return {tuple(tp): one.committed_offset for tp, one in found.offsets.items()}


@pytest.mark.parametrize("served", [False, True], ids=["folder", "server"])
@pytest.mark.parametrize(
    ("to", "offset"),
    [
        ("--to-earliest", 1),
        ("--to-latest", 3),
        ("--to-offset 2", 2),
        ("--to-datetime 1970-01-01", 1),
        ("--to-datetime 0", 1),
        ("--to-datetime 2100-01-01T00:00:00+01:00", 3),
    ],
)
def test_a_group_without_members_goes_on_from_where_it_is_told_to(
    idle: Cluster, to: str, offset: int, served: bool
) -> None:
    with contextlib.ExitStack() as stack:
        if served:
            stack.enter_context(idle.serve())
        planned = kbatch("groups", "reset", idle.path, "audit", *to.split(), "--dry-run")
        assert committed(idle) == {("events", 0): 2}
        done = kbatch("groups", "reset", idle.path, "audit", *to.split())

        assert rows_of(done) == rows_of(planned) == [["events", "0", "2", str(offset)]]
        assert committed(idle) == {("events", 0): offset}
        close_idle_clients()


def test_a_time_is_also_looked_for_in_an_open_transaction(
    idle: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of committed records, to whom a broker tells nothing past the last stable offset, sees none here."""
    looked_up = Cluster.list_offsets

    def list_offsets(
        cluster: Cluster, wanted: Any, *, isolation_level: str = "read_committed"
    ) -> dict[Any, Any]:
        if isolation_level == "read_committed":
            return dict.fromkeys(map(TopicPartition._make, wanted))
        return looked_up(cluster, wanted, isolation_level=isolation_level)

    monkeypatch.setattr(Cluster, "list_offsets", list_offsets)

    done = kbatch("groups", "reset", idle.path, "audit", "--to-datetime", "0")

    assert rows_of(done) == [["events", "0", "2", "1"]]


def test_the_offsets_of_named_topics_are_moved_in_all_their_partitions(idle: Cluster) -> None:
    words = ["--topic", "events", "-t", "more", "--to-earliest", "--json"]

    assert objects_of(kbatch("groups", "reset", idle.path, "audit", *words)) == [
        {"group": "audit", "topic": "events", "partition": 0, "old_offset": 2, "new_offset": 1},
        {"group": "audit", "topic": "events", "partition": 1, "old_offset": None, "new_offset": 0},
        {"group": "audit", "topic": "more", "partition": 0, "old_offset": None, "new_offset": 0},
    ]
    assert len(objects_of(kbatch("groups", "reset", idle.path, "new", *words))) == 3
    assert committed(idle, "new") == committed(idle) == {
        ("events", 0): 1, ("events", 1): 0, ("more", 0): 0,
    }  # fmt: skip


@pytest.mark.parametrize(("to", "offset"), [("0", 1), ("99", 3)])
def test_an_offset_outside_of_the_log_becomes_its_start_or_end_with_a_warning(
    idle: Cluster, to: str, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    done = kbatch("groups", "reset", idle.path, "audit", "--to-offset", to)

    assert rows_of(done) == [["events", "0", "2", str(offset)]]
    said = f"offset {to} of events-0 is outside of the log, which has 1 to 3 (exclusive): set to {offset}"
    assert said in caplog.messages


def test_a_reader_of_the_group_starts_at_the_offset_that_was_set_and_bars_another_one(
    idle: Cluster,
) -> None:
    reset = ["groups", "reset", idle.path, "audit", "--to-earliest"]
    with idle.serve() as server:
        assert kbatch(*reset).exit_code == 0
        with contextlib.closing(
            kafka.KafkaConsumer(
                "events", bootstrap_servers=server.bootstrap_servers, group_id="audit",
                consumer_timeout_ms=10_000, enable_auto_commit=False,
            )
        ) as consumer:  # fmt: skip
            assert next(consumer).offset == 1
            refused = kbatch(*reset)
            remotely = kbatch("groups", "reset", server.bootstrap_servers, *reset[3:])
            with pytest.raises(GroupNotEmptyError), spark_kbatch.open(idle.path) as cluster:
                cluster.alter_group_offsets("audit", {("events", 0): 1})
        assert isinstance(refused.exception, GroupNotEmptyError)
        assert "'audit' of" in str(refused.exception)
        assert "has members" in str(refused.exception)
        assert isinstance(remotely.exception, GroupNotEmptyError)
        assert kbatch("groups", "reset", server.bootstrap_servers, *reset[3:]).exit_code == 0
        close_idle_clients()
    assert committed(idle) == {("events", 0): 1}


def test_members_that_were_stored_last_bar_a_reset_while_no_server_runs(cluster: Cluster) -> None:
    done = kbatch("groups", "reset", cluster.path, "billing", "--to-earliest")

    assert isinstance(done.exception, GroupNotEmptyError)
    assert committed(cluster, "billing")["events", 0] == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["audit", "--to-datetime", "noon"], "'noon' is not a time since 1970"),
        (["audit", "--to-offset", "earliest"], "'earliest' is not a valid integer"),
        (["audit"], "give one of --to-earliest, --to-latest, --to-offset and --to-datetime"),
        (["audit", "--to-latest", "--to-offset", "1"], "give one of --to-earliest"),
        (["adit", "--to-latest"], "'adit' does not exist"),
        (["audit", "--to-latest", "--topic", "none"], "topic 'none' does not exist"),
    ],
)
def test_a_reset_that_cannot_be_done_says_why(idle: Cluster, words: list[str], said: str) -> None:
    done = kbatch("groups", "reset", idle.path, *words)

    assert done.exit_code in (1, 2)
    assert said in done.stderr + str(done.exception)
    assert committed(idle) == {("events", 0): 2}


# Groups deleted


@pytest.mark.parametrize("where", ["folder", "served folder", "address"])
def test_a_group_without_members_is_deleted_with_its_offsets(idle: Cluster, where: str) -> None:
    stored_groups.store(idle, "other", {("events", 1): 0})
    with contextlib.ExitStack() as stack:
        path: Any = idle.path
        if where != "folder":
            server = stack.enter_context(idle.serve())
            path = server.bootstrap_servers if where == "address" else path
        planned = kbatch("groups", "delete", path, "audit", "--dry-run")
        assert planned.stdout == "group audit would be deleted: 1 offset\n"
        refused = kbatch("groups", "delete", path, "audit")
        assert "group audit: 1 offset\n" in refused.stderr
        assert "give --yes to delete" in str(refused.exception)
        assert committed(idle) == {("events", 0): 2}

        done = kbatch("groups", "delete", path, "audit", "--yes")
        assert done.stdout == "group audit deleted: 1 offset\n"
        again = kbatch("groups", "delete", path, "audit", "--yes")
        assert isinstance(again.exception, ConfigError)
        with pytest.raises(GroupIdNotFoundError, match="'audit' does not exist"):
            idle.delete_group("audit")
        close_idle_clients()
    assert [one.group_id for one in idle.groups()] == ["other"]


@pytest.mark.parametrize("served", [False, True], ids=["folder", "server"])
def test_a_group_with_members_is_not_deleted(cluster: Cluster, served: bool) -> None:
    with contextlib.ExitStack() as stack:
        if served:
            stack.enter_context(cluster.serve())
        done = kbatch("groups", "delete", cluster.path, "billing", "--yes")
        with pytest.raises(GroupNotEmptyError):
            cluster.delete_group("billing")
        close_idle_clients()

    assert isinstance(done.exception, GroupNotEmptyError)
    assert committed(cluster, "billing")["events", 0] == 1


def test_a_time_after_the_last_record_is_told_to_be_the_end(
    idle: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    done = kbatch("groups", "reset", idle.path, "audit", "--to-datetime", "2100-01-01")

    assert rows_of(done) == [["events", "0", "2", "3"]]
    said = "events-0 has no record of 2100-01-01T00:00:00.000Z or later: set to its end, offset 3"
    assert said in caplog.messages


def test_a_place_without_groups_says_so(tmp_path: Path) -> None:
    logs = tmp_path / "kafka-logs"
    a_partition(logs / "events-0", {0: batches(0, 4)})

    told = f"no consumer groups are kept in {logs}: it is a Kafka broker's log directory"
    for words in (
        ["groups", logs],
        ["groups", logs, "billing"],
        ["groups", "reset", logs, "billing", "--to-earliest"],
        ["groups", "delete", logs, "billing", "--yes"],
    ):
        done = kbatch(*words)
        assert done.exit_code == 1
        assert told in str(done.exception)


def test_groups_of_a_brokers_logs_are_shown_and_only_read(cluster: Cluster, tmp_path: Path) -> None:
    logs = tmp_path / "backup"
    shutil.copytree(cluster.path / "broker-0", logs)

    listed, one, at = (
        kbatch(*words)
        for words in (
            ["groups", logs],
            ["groups", logs, "billing", "--json"],
            ["offsets", logs, "events", "--group", "billing"],
        )
    )

    assert listed.stdout == kbatch("groups", cluster.path).stdout
    assert objects_of(one) == objects_of(kbatch("groups", cluster.path, "billing", "--json"))
    assert [line.split("\t") for line in at.stdout.splitlines()] == [
        ["0", "1", "3", "2"],
        ["1", "-", "0", "-"],
    ]
    wide = {"FORCE_COLOR": "1", "COLUMNS": "300"}
    drawn = CliRunner().invoke(cli, ["groups", str(logs), "billing"], env=wide)
    assert "read as its broker left it" in drawn.stdout.replace("\n", " ")
    for words in (
        ["groups", "reset", logs, "billing", "--to-earliest"],
        ["groups", "reset", logs, "billing", "--to-earliest", "--dry-run"],
        ["groups", "delete", logs, "billing", "--yes"],
    ):
        done = kbatch(*words)
        assert done.exit_code == 1
        assert f"group 'billing' cannot be changed in {logs}" in str(done.exception)
        assert "`kbatch mirror --keep-offsets`" in str(done.exception)


def test_missing_offsets_of_a_brokers_logs_are_an_error_that_an_option_leaves_out(
    cluster: Cluster, tmp_path: Path
) -> None:
    logs = tmp_path / "backup"
    shutil.copytree(cluster.path / "broker-0", logs)
    checkpoint(logs, "replication", {f"{CONSUMER_OFFSETS.topic} 0": 99})

    done = kbatch("groups", logs)

    assert done.exit_code == 1
    assert "foreign.end=log (--foreign-end log) leaves out what is missing" in str(done.exception)
    assert len(rows_of(kbatch("groups", logs, "--foreign-end", "log"))) == 2


def test_an_offset_cannot_be_moved_by_a_number_and_no_other_option_is_taken_for_that() -> None:
    done = kbatch("groups", "reset", "my-cluster", "billing", "--shift-by", "-5")
    assert "here it is nothing that moves by a number: --to-offset N is the offset" in done.stderr
