"""A server goes on with the transactions that the one before it has left, unless its log cannot be right."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spark_kbatch import Cluster
from spark_kbatch.clock import monotonic_ms
from spark_kbatch.cluster.group_records import CommittedOffset
from spark_kbatch.cluster.groups import read_groups
from spark_kbatch.cluster.transactions import log as transaction_log
from spark_kbatch.cluster.transactions.administration import FolderTransactions
from spark_kbatch.cluster.transactions.ending import IdleTransactions, idle_transactions
from spark_kbatch.cluster.transactions.log import TransactionLog
from spark_kbatch.cluster.transactions.state import ProducerIdAndEpoch, Status, TransactionMetadata
from spark_kbatch.commit.internal_topics import CLIENT_TRANSACTIONS
from spark_kbatch.errors import GroupIdNotFoundError
from spark_kbatch.model import TopicPartition
from spark_kbatch.wire.errors import ErrorCode
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders
from tests.support.raw_clients import RawClient, produce, produced
from tests.support.raw_transactions import (
    EVENTS,
    OTHER,
    RawProducer,
    stable_offset,
    state_of,
    until_stable,
    until_status,
    values,
)
from tests.support.store import store_of
from tests.support.waiting import until

IN = TopicPartition("in", 0)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(tmp_path, topics={"events": 2, "in": 1}) as cluster:
        yield cluster


def left_open(
    cluster: Cluster, *partitions: TopicPartition, timeout_ms: int = 30_000
) -> RawProducer:
    """Leave a transaction open in these partitions, of a server that has ended; its offsets are pending."""
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        producer = RawProducer(client, timeout_ms=timeout_ms).start().write(*partitions)
        assert producer.add_group("g") is ErrorCode.NONE
        assert producer.commit_offsets("g", {IN: 5}) == [ErrorCode.NONE]
    return producer


def stored(cluster: Cluster, *transactions: TransactionMetadata) -> None:
    """Append states to the log, as a server does that ends after the last of them."""
    log = TransactionLog(store_of(cluster), flush=False)
    log.load()
    for one in transactions:
        log.append(one)


def offset_of(cluster: Cluster) -> int | None:
    found = [one for one in read_groups(store_of(cluster)) if one.group_id == "g"]
    return found[0].offsets[IN].committed_offset if found else None


def test_an_open_transaction_goes_on_and_its_offsets_are_pending_as_before(
    cluster: Cluster,
) -> None:
    before = left_open(cluster, EVENTS)
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        producer = RawProducer(client)
        producer.producer_id, producer.epoch = before.producer_id, before.epoch
        producer.batch(EVENTS)  # the one that is there
        producer.write(OTHER)
        assert producer.produce(EVENTS) is ErrorCode.NONE
        assert server._transactions.pending_of("g") == {IN}
        producer.end(commit=True)
        until_status(cluster, Status.COMPLETE_COMMIT)

    assert values(cluster) == [b"v"] * 3
    assert offset_of(cluster) == 5


def test_the_time_out_of_an_open_transaction_starts_anew(cluster: Cluster) -> None:
    left_open(cluster, EVENTS, OTHER, timeout_ms=400)
    with cluster.serve():
        assert state_of(cluster).status is Status.ONGOING
        until_status(cluster, Status.COMPLETE_ABORT)

    assert values(cluster) == []
    assert offset_of(cluster) is None


@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
@pytest.mark.parametrize("marked", [[], [EVENTS], [EVENTS, OTHER]], ids=["none", "one", "both"])
def test_what_follows_a_decision_is_done_whatever_of_it_was_done_before(
    cluster: Cluster, commit: bool, marked: list[TopicPartition]
) -> None:
    left_open(cluster, EVENTS, OTHER)
    open_one = state_of(cluster)
    status = Status.PREPARE_COMMIT if commit else Status.PREPARE_ABORT
    offsets = open_one.offsets if commit else {}
    decided = open_one._replace(status=status, offsets=offsets)
    stored(cluster, decided)
    if marked:
        idle = IdleTransactions(store_of(cluster))
        idle.log.start_epoch()
        ids = {one: open_one.partitions[one] for one in marked}
        idle._end(decided.producer, ids, is_commit=commit)

    with cluster.serve():
        until_status(cluster, Status.COMPLETE_COMMIT if commit else Status.COMPLETE_ABORT)

    assert values(cluster) == ([b"v"] * 2 if commit else [])
    assert offset_of(cluster) == (5 if commit else None)
    until_stable(cluster, EVENTS)
    until_stable(cluster, OTHER)


def test_offsets_that_were_stored_do_not_replace_newer_ones_after_a_restart(
    cluster: Cluster,
) -> None:
    left_open(cluster, EVENTS)
    open_one = state_of(cluster)
    stored(cluster, open_one._replace(status=Status.PREPARE_COMMIT, offsets={}))
    cluster.alter_group_offsets("g", {IN: 9})
    with cluster.serve():
        until_status(cluster, Status.COMPLETE_COMMIT)

    assert offset_of(cluster) == 9


def served(cluster: Cluster) -> None:
    with cluster.serve():
        until_status(cluster, Status.COMPLETE_COMMIT)


def ended_with_no_server(cluster: Cluster) -> None:
    with idle_transactions(store_of(cluster)) as transactions:
        transactions.abort("t")


@pytest.mark.parametrize("end", [served, ended_with_no_server])
@pytest.mark.parametrize("since", [9, 3], ids=["beyond", "back"])
def test_a_decision_of_long_ago_that_comes_back_does_not_move_a_group(
    cluster: Cluster, end: Callable[[Cluster], None], since: int
) -> None:
    """As from an older image of the log."""
    left_open(cluster, EVENTS)
    stored(cluster, state_of(cluster)._replace(status=Status.PREPARE_COMMIT))
    cluster.alter_group_offsets("g", {IN: since})
    end(cluster)

    assert state_of(cluster).status is Status.COMPLETE_COMMIT
    assert offset_of(cluster) == since


@pytest.mark.parametrize("status", [Status.ONGOING, Status.PREPARE_COMMIT])
def test_a_group_that_is_deleted_with_no_server_does_not_come_back(
    cluster: Cluster, status: Status
) -> None:
    before = left_open(cluster, EVENTS)
    stored(cluster, state_of(cluster)._replace(status=status))
    cluster.delete_group("g")
    with pytest.raises(GroupIdNotFoundError):
        cluster.delete_group("g")
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        if status is Status.ONGOING:
            producer = RawProducer(client)
            producer.producer_id, producer.epoch = before.producer_id, before.epoch
            until(lambda: producer.retried(producer.ask_to_end(commit=True)) is ErrorCode.NONE)
        until_status(cluster, Status.COMPLETE_COMMIT)

    assert values(cluster) == [b"v"]
    assert offset_of(cluster) is None


def test_an_id_without_a_transaction_goes_on(cluster: Cluster) -> None:
    for round_number in range(3):
        with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
            producer = RawProducer(client).start().write(EVENTS).end(commit=True)
            until_status(cluster, Status.COMPLETE_COMMIT)
        assert (producer.producer_id, producer.epoch) == (0, round_number)
    assert values(cluster) == [b"v"] * 3


def test_a_transaction_goes_on_after_the_disk_of_a_leader_is_lost(tmp_path: Path) -> None:
    folders = [str(tmp_path / name) for name in "ab"]
    path = str(tmp_path / "path")
    with Cluster(path, create=True, log_dirs=folders) as cluster:
        cluster.create_topic("events", partitions=2, replication_factor=2)
        with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
            before = RawProducer(client).start()
            before.write(EVENTS, OTHER, value=b"yes").end(commit=True)
            before.write(EVENTS, OTHER, value=b"no").end(commit=False)
            before.write(EVENTS, value=b"also")
        until_status(cluster, Status.ONGOING)
    shutil.rmtree(folders[0])
    with Cluster(path, log_dirs=folders) as cluster:
        assert values(cluster) == [b"yes"] * 2
        with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
            producer = RawProducer(client)
            producer.producer_id, producer.epoch = before.producer_id, before.epoch
            until(lambda: producer.retried(producer.ask_to_end(commit=True)) is ErrorCode.NONE)
            until_status(cluster, Status.COMPLETE_COMMIT)
        assert values(cluster) == [b"yes", b"also", b"yes"]


# A log that cannot be right.


def log_dir(cluster: Cluster) -> Path:
    return Path(cluster.path) / "broker-0" / str(CLIENT_TRANSACTIONS)


def image_of(cluster: Cluster, folder: Path) -> None:
    shutil.copytree(log_dir(cluster), folder)


def put_back(cluster: Cluster, image: Path) -> None:
    shutil.rmtree(log_dir(cluster))
    shutil.copytree(image, log_dir(cluster))


def ensure_nothing_is_decided(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, *told: str
) -> None:
    """Serve for a while: transactions are refused, an error says why, and everything else goes on."""
    before = store_of(cluster).manager.replica(EVENTS).state
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        producer = RawProducer(client, "another")
        until(lambda: any("no transactions for clients" in one for one in caplog.messages))
        assert producer.ask_to_start() is ErrorCode.COORDINATOR_NOT_AVAILABLE
        # Offsets that are pending are not known, so none of them are stable; nobody else waits.
        wait = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        assert stable_offset(client, "g", IN) == (wait, -1)
        assert stable_offset(client, "g", IN, stable=False)[0] is ErrorCode.NONE
        plain = produced(client.ask(ApiKey.PRODUCE, 9, produce(builders.batch(n=1), partition=1)))
        assert plain.error_code == 0
        producer.producer_id, producer.epoch = 0, 0
        assert producer.produce(EVENTS) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    (error,) = [one for one in caplog.records if one.levelno == logging.ERROR]
    for part in told:
        assert part in error.getMessage()
    assert store_of(Cluster(cluster.path)).manager.replica(EVENTS).state == before


def test_a_log_from_before_an_open_transaction_decides_nothing(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        RawProducer(client, "older").start()
    image_of(cluster, tmp_path / "image")
    left_open(cluster, EVENTS)
    put_back(cluster, tmp_path / "image")

    ensure_nothing_is_decided(cluster, caplog, "older than events-0:", "kbatch transactions")


def test_a_log_from_before_a_later_coordinator_decides_nothing(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By the image the transaction is open; in truth it was committed, and another one of the id is open."""
    left_open(cluster, EVENTS)
    image_of(cluster, tmp_path / "image")
    stored(cluster, state_of(cluster)._replace(status=Status.PREPARE_COMMIT))
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        until_status(cluster, Status.COMPLETE_COMMIT)
        producer = RawProducer(client)
        producer.producer_id, producer.epoch = state_of(cluster).producer
        producer.batch(EVENTS)
        producer.write(EVENTS)
    put_back(cluster, tmp_path / "image")

    ensure_nothing_is_decided(cluster, caplog, "older than events-0:")


def test_a_log_from_before_the_last_minute_of_the_same_coordinator_decides_nothing(
    cluster: Cluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the image nothing of this id was ever committed; in truth what is open was."""
    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        producer = RawProducer(client).start()
        image_of(cluster, tmp_path / "image")
        monkeypatch.setattr(transaction_log, "monotonic_ms", lambda: monotonic_ms() + 60_000)
        producer.write(EVENTS).end(commit=True)
        until_status(cluster, Status.COMPLETE_COMMIT)
        producer.write(EVENTS)
    stored(cluster, state_of(cluster)._replace(status=Status.PREPARE_COMMIT))
    put_back(cluster, tmp_path / "image")

    ensure_nothing_is_decided(cluster, caplog, "older than events-0:")


@pytest.mark.parametrize("aborts", [False, True], ids=["server", "abort"])
def test_an_older_log_with_nothing_open_gives_no_epoch_out_twice(
    cluster: Cluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, aborts: bool
) -> None:
    """Else the first batch of a producer would be taken for one that is there, of the producer it does not know."""
    for number in range(3):
        if number == 2:
            put_back(cluster, tmp_path / "image")
        if number == 2 and aborts:
            FolderTransactions(store_of(cluster)).abort(state_of(cluster).transactional_id)
        with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
            producer = RawProducer(client).start()
            for value in (b"one", b"two"):
                producer.write(EVENTS, value=b"%d %s" % (number, value)).end(commit=True)
                until_status(cluster, Status.COMPLETE_COMMIT)
        if number == 0:
            image_of(cluster, tmp_path / "image")

    assert values(cluster) == [b"%d %s" % (n, one) for n in range(3) for one in (b"one", b"two")]
    assert (
        "the log of transactions is old, of epoch 0, and was last written in epoch 1" in caplog.text
    )
    assert state_of(cluster).producer.epoch == 0


def test_a_lost_log_decides_nothing(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    left_open(cluster, EVENTS)
    shutil.rmtree(log_dir(cluster))
    (Path(cluster.path) / "topics" / f"{CLIENT_TRANSACTIONS.topic}.json").unlink()

    ensure_nothing_is_decided(cluster, caplog, "lost, damaged or older than events-0:")


def test_a_damaged_log_decides_nothing(cluster: Cluster, caplog: pytest.LogCaptureFixture) -> None:
    left_open(cluster, EVENTS)
    segment = log_dir(cluster) / f"{0:020d}.log"
    data = bytearray(segment.read_bytes())
    data[100] ^= 1
    segment.write_bytes(data)

    ensure_nothing_is_decided(cluster, caplog, "CRC", "open transactions stay in events-0")


@pytest.mark.parametrize(
    ("status", "epoch"),
    [
        pytest.param(Status.EMPTY, 0, id="its start is lost"),
        pytest.param(Status.ONGOING, 0, id="its partition is lost"),
        pytest.param(Status.COMPLETE_ABORT, 0, id="the marker of its abort is lost"),
        pytest.param(Status.COMPLETE_ABORT, 1, id="that of its time-out"),
        pytest.param(Status.EMPTY, 2, id="that of the next start"),
    ],
)
def test_a_transaction_that_the_log_does_not_have_open_is_aborted_if_it_was_not_committed(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, status: Status, epoch: int
) -> None:
    """As after a loss of power without `flush`: the producer is known, but not all that it has done."""
    left_open(cluster, EVENTS)
    open_one = state_of(cluster)
    producer = open_one.producer._replace(epoch=epoch)
    stored(cluster, open_one._replace(status=status, producer=producer, partitions={}, offsets={}))

    with cluster.serve():
        until_stable(cluster)
    assert "since offset 0 is aborted" in caplog.text
    assert values(cluster) == []


def test_a_transaction_that_may_have_been_committed_is_left_open_and_named(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    left_open(cluster, EVENTS)
    open_one = state_of(cluster)
    stored(
        cluster,
        open_one._replace(status=Status.COMPLETE_COMMIT, partitions={}, offsets={}, commit_epoch=0),
    )

    with cluster.serve() as server, RawClient(server, timeout_s=60) as client:
        RawProducer(client, "another").start().write(OTHER).end(commit=True)
        until_stable(cluster, OTHER)
    assert "transactions are open in events-0 that may have been committed" in caplog.text
    assert values(cluster, EVENTS) == []
    assert values(cluster, OTHER) == [b"v"]


def write_another(producer: RawProducer) -> None:
    producer.write(OTHER, value=b"another")


def abort_another(producer: RawProducer) -> None:
    producer.write(OTHER, value=b"another").end(commit=False)


def start_again(producer: RawProducer) -> None:
    producer.start()


@pytest.mark.parametrize("act", [write_another, abort_another, start_again])
def test_a_partition_from_before_the_marker_of_a_commit_does_not_have_it_aborted(
    cluster: Cluster,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    act: Callable[[RawProducer], None],
) -> None:
    directory = Path(cluster.path) / "broker-0" / str(EVENTS)
    with cluster.serve(flush=True) as server, RawClient(server, timeout_s=60) as client:
        producer = RawProducer(client).start().write(EVENTS, OTHER, value=b"yes")
        shutil.copytree(directory, tmp_path / "image")
        producer.end(commit=True)
        until_status(cluster, Status.COMPLETE_COMMIT)
        act(producer)
        until(lambda: not state_of(cluster).is_decided)
    shutil.rmtree(directory)
    shutil.copytree(tmp_path / "image", directory)
    again = Cluster(cluster.path)
    with again.serve() as server:
        until(lambda: server._transactions._loaded_in is not None)
    read = values(again)

    assert "transactions are open in events-0 that may have been committed" in caplog.text
    assert values(again, EVENTS, committed=False) == [b"yes"]
    assert read == [b"yes"]
    assert store_of(again).manager.replica(EVENTS).state.last_stable_offset == 0
    transactions = FolderTransactions(store_of(again))
    (unknown,) = [(one, at) for one, at in transactions.shown() if not one.transactional_id]
    transactions.decide(unknown[1][EVENTS], is_commit=True)
    assert values(again) == [b"yes"] * 2


def test_a_stored_offset_of_another_topic_of_that_name_is_not_shown(cluster: Cluster) -> None:
    left_open(cluster, EVENTS)
    offsets = {"g": {IN: CommittedOffset(5, topic_id=state_of(cluster).offsets["g"][IN].topic_id)}}
    stored(cluster, state_of(cluster)._replace(status=Status.PREPARE_COMMIT, offsets=offsets))
    cluster.delete_topic("in")
    cluster.create_topic("in")
    with cluster.serve():
        until_status(cluster, Status.COMPLETE_COMMIT)

    assert [one.offsets for one in read_groups(store_of(cluster))] == [{}]
    assert state_of(cluster).producer == ProducerIdAndEpoch(0, 0)
