"""`kbatch transactions`: what is open and what it holds back; aborting, and deciding what the log does not have."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from spark_kbatch import Cluster
from spark_kbatch.cli.main import cli
from spark_kbatch.cluster.transactions.state import Status
from spark_kbatch.commit.internal_topics import CLIENT_TRANSACTIONS
from spark_kbatch.errors import ConfigError, ServerRunningError
from spark_kbatch.model import TopicPartition
from spark_kbatch.wire.errors import ErrorCode
from tests.support import builders
from tests.support.open_transactions import TIMEOUT_MS, leave_open, look_again, store
from tests.support.raw_clients import RawClient
from tests.support.raw_transactions import (
    EVENTS,
    OTHER,
    RawProducer,
    state_of,
    until_stable,
    values,
)
from tests.support.store import store_of
from tests.support.waiting import until

IN = TopicPartition("in", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2, "in": 1}) as cluster:
        yield cluster


def kbatch(cluster: Cluster, *words: Any) -> Result:
    command, *rest = [str(word) for word in words]
    return CliRunner().invoke(cli, [*command.split(), str(cluster.path), *rest])


def lines(cluster: Cluster, *words: Any) -> list[list[str]]:
    done = kbatch(cluster, *words)
    assert done.exit_code == 0, done.output
    return [line.split("\t") for line in done.stdout.splitlines()]


def objects(cluster: Cluster, *words: Any) -> list[Any]:
    done = kbatch(cluster, *words, "--json")
    assert done.exit_code == 0, done.output
    return [json.loads(line) for line in done.stdout.splitlines()]


# What is shown.


def test_each_id_is_listed_with_its_state_and_what_it_holds_back(cluster: Cluster) -> None:
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        RawProducer(client, "done").start().write(EVENTS).end(commit=True)
        until_stable(cluster)
        RawProducer(client, "open", timeout_ms=20_000).start().write(EVENTS, OTHER, n=3).add(IN)
        found = lines(cluster, "transactions")
        (_, as_json) = objects(cluster, "transactions")
        drawn = CliRunner().invoke(
            cli, ["transactions", str(cluster.path)], env={"FORCE_COLOR": "1"}
        )

    headings, done, still_open = found
    assert headings[:4] == ["transactional id", "producer id", "epoch", "state"]
    assert (done[0], done[3], done[6]) == ("done", "CompleteCommit", "-")
    held = "events-0: 3 from 2, events-1: 3 from 0, in-0: 0 from -"
    assert still_open[5:] == ["20000", held, "-"]
    started = still_open[4]
    assert as_json["server"] == server.bootstrap_servers
    assert server.bootstrap_servers in drawn.stdout.replace("\n", " ")
    assert (as_json["state"], as_json["start_timestamp"]) == ("Ongoing", started)
    assert as_json["partitions"][0] == {
        "topic": "events",
        "partition": 0,
        "start_offset": 2,
        "held_back": 3,
        "last_timestamp": "2023-11-14T22:13:20.000Z",
    }


def test_one_transaction_is_shown_with_its_state_partitions_and_pending_offsets(
    cluster: Cluster,
) -> None:
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        producer = RawProducer(client).start().write(OTHER)
        assert not producer.add_group("g")
        assert producer.commit_offsets("g", {IN: 4}) == [ErrorCode.NONE]

    _, listed, headings, *rows = lines(cluster, "transactions", "t")

    assert [*listed[2:4], *listed[5:]] == ["0", "Ongoing", "30000", "events-1: 1 from 0", "g"]
    assert lines(cluster, "transactions")[1] == listed
    assert headings == [
        "topic", "partition", "start offset", "held back", "last record", "group", "pending offset",
    ]  # fmt: skip
    (written, waiting) = rows
    assert [*written[:4], *written[5:]] == ["events", "1", "0", "1", "-", "-"]
    assert waiting == ["in", "0", "-", "-", "-", "g", "4"]
    (shown,) = objects(cluster, "transactions", "t")
    assert shown["offsets"] == [
        {"group": "g", "topic": "in", "partition": 0, "committed_offset": 4}
    ]
    unknown = kbatch(cluster, "transactions", "none").exception
    assert isinstance(unknown, ConfigError)
    assert str(unknown).endswith("its ids: t")


def test_what_retention_has_deleted_is_not_held_back(cluster: Cluster) -> None:
    leave_open(cluster, EVENTS, n=5)
    cluster.delete_records({EVENTS: 2})

    (listed,) = lines(cluster, "transactions")[1:]
    headings, *rows = lines(cluster, "topics", "events")

    assert listed[6] == "events-0: 3 from 2"
    assert rows[0][headings.index("held back")] == "3"


def test_without_transactions_nothing_is_listed(cluster: Cluster) -> None:
    done = kbatch(cluster, "transactions")

    assert done.stderr == f"{cluster.path} has no transactions of clients; it is not served now.\n"
    assert objects(cluster, "transactions") == []
    assert store_of(cluster).metadata.topics.find(CLIENT_TRANSACTIONS.topic) is None


def test_lists_of_topics_show_what_is_held_back_while_a_transaction_is_open(
    cluster: Cluster,
) -> None:
    assert "held back" not in lines(cluster, "topics")[0]
    leave_open(cluster, EVENTS, n=3)

    headings, events, other = lines(cluster, "topics")
    at = headings.index("held back")
    assert (events[at], other[at]) == ("3", "0")
    headings, *rows = lines(cluster, "topics", "events")
    assert [row[headings.index("held back")] for row in rows] == ["3", "0"]


# Aborting.


def test_abort_ends_the_transaction_and_fences_its_producer_while_no_server_runs(
    cluster: Cluster,
) -> None:
    leave_open(cluster, EVENTS, OTHER, name="billing")
    dry = kbatch(cluster, "transactions abort", "billing", "--dry-run")
    assert dry.stdout == (
        "transaction billing would be aborted: 4 offsets held back in 2 partitions\n"
    )
    refused = kbatch(cluster, "transactions abort", "billing")
    assert "whether to abort" in str(refused.exception)
    assert state_of(cluster, "billing").status is Status.ONGOING

    (aborted,) = objects(cluster, "transactions abort", "billing", "--yes")

    assert (aborted["transactional_id"], aborted["aborted"]) == ("billing", True)
    assert values(cluster) == []
    until_stable(cluster)
    assert state_of(cluster, "billing").status is Status.COMPLETE_ABORT
    assert state_of(cluster, "billing").producer.epoch == 1  # which fences the one that has 0
    again = kbatch(cluster, "transactions abort", "billing", "--yes").exception
    assert str(again).endswith("no open transaction: its state is CompleteAbort")


def test_a_server_that_runs_is_asked_to_abort(cluster: Cluster) -> None:
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        producer = RawProducer(client).start().write(EVENTS)
        kept = RawProducer(client, "kept").start().write(OTHER)

        assert kbatch(cluster, "transactions abort", "t", "--yes").exit_code == 0

        until_stable(cluster)
        assert producer.ask_to_end(commit=True) is ErrorCode.PRODUCER_FENCED
        kept.end(commit=True)
        until_stable(cluster, OTHER)
    assert values(cluster) == [b"v"]


@pytest.mark.parametrize(
    "options",
    [{"advertise": "192.0.2.1:9092"}, {"transaction_max_timeout_ms": 1}],
    ids=["clients have another address", "the time-out is above the maximum"],
)
def test_a_server_is_asked_to_abort_whatever_its_address_for_clients_and_longest_time_out(
    cluster: Cluster, options: dict[str, Any]
) -> None:
    leave_open(cluster, EVENTS)

    with cluster.serve(**options):
        assert kbatch(cluster, "transactions abort", "t", "--yes").exit_code == 0
        until_stable(cluster)
    assert values(cluster) == []


def test_what_was_decided_is_ended_as_decided(cluster: Cluster) -> None:
    store(cluster, leave_open(cluster, EVENTS)._replace(status=Status.PREPARE_COMMIT))

    assert kbatch(cluster, "transactions abort", "t", "--yes").exit_code == 0

    assert values(cluster) == [b"0", b"1"]
    assert state_of(cluster).status is Status.COMPLETE_COMMIT


# What the log does not have.


@pytest.fixture
def lost(cluster: Cluster) -> Cluster:
    """A cluster with an open transaction in two partitions of which the log of transactions is lost."""
    leave_open(cluster, EVENTS, OTHER)
    lose_log(cluster)
    return cluster


def lose_log(cluster: Cluster) -> None:
    shutil.rmtree(log_of_transactions(cluster))
    cluster.path.joinpath("topics", f"{CLIENT_TRANSACTIONS.topic}.json").unlink()


def log_of_transactions(cluster: Cluster) -> Path:
    return store_of(cluster).manager.replica(CLIENT_TRANSACTIONS).log.directory


def test_what_a_lost_log_does_not_have_is_decided_by_the_command_alone(lost: Cluster) -> None:
    with lost.serve() as server, RawClient(server, timeout_s=60) as client:
        until(
            lambda: RawProducer(client, "new").ask_to_start() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        )
        assert isinstance(
            kbatch(lost, "transactions decide", "abort", "--producer-id", 0, "--yes").exception,
            ServerRunningError,
        )
    assert values(lost) == []
    (hanging,) = objects(lost, "transactions")
    assert (hanging["transactional_id"], hanging["state"]) == (None, "Hanging")
    assert [one["held_back"] for one in hanging["partitions"]] == [2, 2]

    committed = kbatch(
        lost, "transactions decide", "commit", "--producer-id", 0, "--partition", 1, "--yes"
    )
    aborted = kbatch(lost, "transactions decide", "abort", "--producer-id", 0, "--yes")

    assert committed.stdout == (
        "transaction of producer 0 in events-1 committed: 2 offsets held back in 1 partition\n"
    )
    assert "events-0 aborted" in aborted.stdout
    assert (values(lost, EVENTS), values(lost, OTHER)) == ([], [b"0", b"1"])
    none = kbatch(lost, "transactions decide", "abort", "--producer-id", 0, "--yes").exception
    assert "no transaction there" in str(none)
    with lost.serve() as server, RawClient(server, timeout_s=60) as client:
        RawProducer(client, "new").start().write(EVENTS, value=b"new").end(commit=True)
        until_stable(lost)
    assert values(lost, EVENTS) == [b"new"]


@contextlib.contextmanager
def older_log(cluster: Cluster) -> Iterator[None]:
    """Put the log's directory back as it was before the block."""
    image, log = cluster.path.with_name("image"), log_of_transactions(cluster)
    shutil.copytree(log, image)
    yield
    shutil.rmtree(log)
    shutil.copytree(image, log)
    look_again()


def test_an_older_image_of_the_log_decides_nothing_until_the_command_has(cluster: Cluster) -> None:
    """A newer epoch in a partition shows that. What the command has ended is the newest there is from then on."""
    leave_open(cluster, EVENTS)
    with older_log(cluster):
        leave_open(cluster, EVENTS, age_ms=10 * TIMEOUT_MS)  # which aborts the first
    assert values(cluster) == []
    assert state_of(cluster).status is Status.ONGOING

    hanging = objects(cluster, "transactions")[-1]
    assert (hanging["state"], hanging["producer_epoch"]) == ("Hanging", 2)
    assert lines(cluster, "transactions decide", "abort", "--producer-id", 0, "--yes")

    assert objects(cluster, "transactions") == []  # What the log had is not known to hold.
    leave_open(cluster, OTHER)
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        RawProducer(client).start().write(EVENTS, value=b"new").end(commit=True)
        until_stable(cluster)
    assert values(cluster, EVENTS) == [b"new"]


def hanging_in(cluster: Cluster) -> set[str]:
    """Return the partitions with a transaction to be decided on."""
    rows = objects(cluster, "transactions")
    of = [tp for row in rows if row["state"] == "Hanging" for tp in row["partitions"]]
    return {f"{one['topic']}-{one['partition']}" for one in of if one["start_offset"] is not None}


@pytest.fixture
def older(cluster: Cluster) -> Cluster:
    """A cluster with an older log: of `t`, open in two partitions, and of `late`, which is not known to be open."""
    leave_open(cluster, IN, name="late", age_ms=2 * TIMEOUT_MS)
    leave_open(cluster, EVENTS, OTHER)
    with older_log(cluster):
        leave_open(cluster, EVENTS, OTHER)
    return cluster


def test_after_one_decision_the_rest_of_an_older_log_is_still_to_be_decided(
    older: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    refused = kbatch(older, "transactions abort", "late", "--yes").exception
    assert "nothing is decided" in str(refused)
    commit = ("transactions decide", "commit", "--producer-id")

    assert lines(older, *commit, 1, "--partition", 1, "--yes")

    assert "forgets 'late', which it had in state Ongoing" in caplog.text
    look_again()
    assert (values(older), values(older, IN)) == ([b"0", b"1"], [])
    assert hanging_in(older) == {"events-0", "in-0"}
    assert lines(older, *commit, 1, "--yes")
    look_again()
    assert values(older, IN) == []
    assert lines(older, *commit, 0, "--yes")
    assert (values(older), values(older, IN)) == ([b"0", b"1"] * 2, [b"0", b"1"])
    assert objects(older, "transactions") == []
    with older.serve() as server, RawClient(server, timeout_s=60) as client:
        RawProducer(client).start().write(EVENTS, value=b"new").end(commit=True)
        until_stable(older)
    assert values(older, EVENTS) == [b"0", b"1", b"new"]


def test_a_decision_that_dies_before_its_marker_leaves_all_to_be_decided(
    older: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spark_kbatch.cluster.transactions.ending.append_and_wait", None)
    killed = kbatch(older, "transactions decide", "commit", "--producer-id", 1, "--yes")
    assert isinstance(killed.exception, TypeError)
    monkeypatch.undo()

    look_again()
    assert (values(older), values(older, IN)) == ([], [])
    assert hanging_in(older) == {"events-0", "events-1", "in-0"}


# A log that cannot be read.


def flip_a_bit(cluster: Cluster) -> None:
    (segment,) = log_of_transactions(cluster).glob("*.log")
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)


def remove_directory(cluster: Cluster) -> None:
    shutil.rmtree(log_of_transactions(cluster))


DECIDE = ("transactions decide", "commit", "--producer-id", 0, "--yes")


def write_and_restart(cluster: Cluster) -> None:
    """Commit with a new producer, whose transaction is open in another partition over a restart."""
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        RawProducer(client).start().write(EVENTS, value=b"new").end(commit=True)
        until_stable(cluster)
        open_producer = RawProducer(client, "later").start().write(OTHER, value=b"later")
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        open_producer._client = client
        until(lambda: RawProducer.retried(open_producer.ask_to_end(commit=True)) is ErrorCode.NONE)
        until_stable(cluster, OTHER)


@pytest.mark.parametrize("lose", [remove_directory, flip_a_bit])
def test_after_the_log_is_gone_or_damaged_the_commands_of_the_error_lead_to_transactions_again(
    cluster: Cluster, lose: Callable[[Cluster], None], caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        for _ in range(2):  # The second has a marker of a later epoch.
            RawProducer(client, "done").start().write(OTHER, value=b"done").end(commit=True)
            until_stable(cluster, OTHER)
    leave_open(cluster, EVENTS)
    (producer_id,) = (one["producer_id"] for one in objects(cluster, "transactions", "t"))
    lose(cluster)

    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        until(lambda: "there are no transactions for clients" in caplog.text)
        assert RawProducer(client, "new").ask_to_start() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        running = kbatch(cluster, "transactions new-log", "--yes").exception
        assert isinstance(running, ServerRunningError)
    assert "open transactions stay in events-0; run `kbatch repair`" in caplog.text
    assert "`kbatch transactions new-log`" in caplog.text

    assert kbatch(cluster, "repair").exit_code == 1
    assert "whether to replace" in str(kbatch(cluster, "transactions new-log").exception)
    assert objects(cluster, "transactions new-log", "--dry-run") == [
        {"held_back": 2, "replaced": False}
    ]
    done = kbatch(cluster, "transactions new-log", "--yes")

    assert done.stdout == (
        "log of transactions replaced: 2 offsets held back in 1 partition, to be decided\n"
    )
    look_again()
    assert (values(cluster, EVENTS), hanging_in(cluster)) == ([], {"events-0"})
    assert lines(cluster, "transactions decide", "commit", "--producer-id", producer_id, "--yes")
    write_and_restart(cluster)
    assert values(cluster, EVENTS) == [b"0", b"1", b"new"]
    assert values(cluster, OTHER) == [b"done", b"done", b"later"]
    assert kbatch(cluster, "verify").exit_code == 0


@pytest.mark.parametrize("lose", [remove_directory, flip_a_bit])
def test_with_nothing_open_a_new_log_is_all_that_a_server_needs(
    cluster: Cluster, lose: Callable[[Cluster], None]
) -> None:
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        for _ in range(2):
            RawProducer(client, "done").start().write(OTHER, value=b"done").end(commit=True)
            until_stable(cluster, OTHER)
    lose(cluster)

    assert lines(cluster, "transactions new-log", "--yes")

    write_and_restart(cluster)
    assert values(cluster) == [b"new", b"done", b"done", b"later"]


def test_a_damaged_log_that_is_replaced_stays_beside_the_new_one(cluster: Cluster) -> None:
    leave_open(cluster, EVENTS)
    flip_a_bit(cluster)
    log = log_of_transactions(cluster)
    damaged = {path.name: path.read_bytes() for path in log.iterdir()}

    assert lines(cluster, "transactions new-log", "--yes")

    (stray,) = log.parent.glob(f"{log.name}.*-stray")
    assert {path.name: path.read_bytes() for path in stray.iterdir()} == damaged


def test_a_log_that_can_be_read_or_repaired_is_not_replaced(cluster: Cluster) -> None:
    leave_open(cluster, EVENTS)

    def why_kept() -> str:
        why = str(kbatch(cluster, "transactions new-log", "--yes").exception)
        assert why == str(kbatch(cluster, "transactions new-log", "--dry-run").exception)
        return why

    assert "can be read" in why_kept()
    log_of_transactions(cluster).joinpath("kbatch.state").unlink()
    assert "kbatch.state is lost: it is rebuilt from the batches" in why_kept()
    assert kbatch(cluster, "repair").exit_code == 0
    topic_file = cluster.path / "topics" / f"{CLIENT_TRANSACTIONS.topic}.json"
    for lose in (topic_file.unlink, lambda: topic_file.write_text("{")):
        lose()
        assert "recreates the file" in why_kept()
        assert kbatch(cluster, "repair").exit_code == 0
    assert state_of(cluster).status is Status.ONGOING


def test_a_log_of_which_another_disk_has_a_whole_copy_is_repaired_and_not_replaced(
    tmp_path: Path,
) -> None:
    disks = [tmp_path / name for name in ("disk-0", "disk-1")]
    with Cluster(tmp_path / "cluster", create=True, log_dirs=disks) as cluster:
        cluster.create_topic("events", partitions=2)
        leave_open(cluster, EVENTS)
        flip_a_bit(cluster)

        why = kbatch(cluster, "transactions new-log", "--yes").exception

        assert "can be read, so it is kept" in str(why)
        assert state_of(cluster).status is Status.ONGOING


def test_a_log_that_cannot_be_read_is_told_and_its_transactions_are_shown(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    leave_open(cluster, EVENTS)
    flip_a_bit(cluster)

    (hanging,) = objects(cluster, "transactions")

    assert hanging["state"] == "Hanging"
    assert "the log of transactions cannot be read" in caplog.text
    assert "`kbatch transactions new-log`" in caplog.text
    assert str(CLIENT_TRANSACTIONS) in str(kbatch(cluster, *DECIDE).exception)
