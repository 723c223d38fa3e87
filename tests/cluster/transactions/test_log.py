"""States of transactional ids are kept in Kafka's format, survive restarts and rewrites, and are ended without a server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_kbatch import Cluster
from spark_kbatch.cluster import state_log
from spark_kbatch.cluster.group_records import CommittedOffset
from spark_kbatch.cluster.groups import read_groups
from spark_kbatch.cluster.parts import FolderParts
from spark_kbatch.cluster.transactions import records
from spark_kbatch.cluster.transactions.checking import open_transactions
from spark_kbatch.cluster.transactions.ending import idle_transactions
from spark_kbatch.cluster.transactions.log import TransactionLog, read_transactions
from spark_kbatch.cluster.transactions.state import ProducerIdAndEpoch, Status, TransactionMetadata
from spark_kbatch.commit.internal_topics import CLIENT_TRANSACTIONS
from spark_kbatch.errors import CorruptRecordError, ServerRunningError
from spark_kbatch.model import AppendOrigin, TopicPartition
from tests.support import builders
from tests.support.log_histories import data_batch
from tests.support.store import append_records, store_of

A, B = TopicPartition("a", 0), TopicPartition("b", 1)
TOPIC_ID = "AAECAwQFBgcICQoLDA0ODw"
OWNER = ProducerIdAndEpoch(7, 3)
NOW = 1_700_000_000_000

# Kafka's fields by hand, from TransactionLogValue.json; in version 1 with tags of ours.
WRITTEN = (
    "0001" "0000000000000007" "0003" "0000ea60" "01"
    "02" "0262" "02" "00000001" "01" "cc08" "10" "000102030405060708090a0b0c0d0e0f"
    "0000018bcfe56801" "0000018bcfe56800" "00"
)  # fmt: skip
READ_V0 = (
    "0000" "0000000000000007" "0003" "0000ea60" "01"
    "00000001" "0001" "62" "00000001" "00000001" "0000018bcfe56801" "0000018bcfe56800"
)  # fmt: skip


def ongoing(name: str = "t", **fields: Any) -> TransactionMetadata:
    partitions = {B: TOPIC_ID}
    made = TransactionMetadata(name, OWNER, 60_000, Status.ONGOING, partitions, {}, NOW + 1, NOW)
    return made._replace(**fields)


@pytest.fixture
def parts(tmp_path: Path) -> FolderParts:
    return store_of(builders.a_cluster(tmp_path, topics={"a": 1, "b": 2}))


def test_a_state_is_written_in_kafkas_format() -> None:
    key, value = records.pack(ongoing("orders"))

    assert key.hex() == "00000006" + b"orders".hex()
    assert value is not None
    assert value.hex() == WRITTEN


def test_a_state_of_version_0_is_read() -> None:
    assert records.unpack("t", bytes.fromhex(READ_V0)) == ongoing(partitions={B: ""})


text = st.text(st.characters(codec="utf-8"), max_size=20)
partitions = st.builds(TopicPartition, text, st.integers(0, 2**31 - 1))
topic_ids = st.just("") | st.just(TOPIC_ID)
times = st.integers(-1, 2**63 - 1)
producers = st.builds(ProducerIdAndEpoch, times, st.integers(-1, 2**15 - 1))
offsets = st.builds(
    CommittedOffset, times, st.integers(-1, 2**31 - 1), text, times, st.just(-1), topic_ids
)
transactions = st.builds(
    TransactionMetadata, text.map("t".__add__), producers, st.integers(1, 2**31 - 1), st.sampled_from(Status),
    st.dictionaries(partitions, topic_ids, max_size=4),
    st.dictionaries(text, st.dictionaries(partitions, offsets, max_size=3), max_size=3),
    times, times, producers, st.integers(-1, 2**15 - 1),
)  # fmt: skip


@given(transactions)
def test_every_state_comes_back_as_it_was(transaction: TransactionMetadata) -> None:
    key, value = records.pack(transaction)

    assert value is not None
    assert records.unpack(records.unpack_key(key), value) == transaction


@pytest.mark.parametrize(
    "damaged",
    [
        pytest.param("0002" + WRITTEN[4:], id="version"),
        pytest.param(WRITTEN[:-2], id="short"),
        pytest.param(WRITTEN + "00", id="long"),
        pytest.param(WRITTEN[:32] + "09" + WRITTEN[34:], id="status"),
    ],
)
def test_a_damaged_state_is_found(damaged: str) -> None:
    with pytest.raises(CorruptRecordError):
        records.unpack("t", bytes.fromhex(damaged))


def test_without_transactions_of_clients_nothing_is_made(parts: FolderParts) -> None:
    assert read_transactions(parts).transactions == {}
    with idle_transactions(parts) as found:
        assert found.log.contents.transactions == {}

    assert parts.metadata.topics.find(CLIENT_TRANSACTIONS.topic) is None


def test_states_are_loaded_and_each_coordinator_has_an_epoch_of_its_own(parts: FolderParts) -> None:
    for epoch in range(3):
        log = TransactionLog(parts, flush=False)
        log.load()
        log.append(ongoing(f"t{epoch}"))
        log.append(ongoing(f"t{epoch}", updated_ms=NOW + 5))

        assert log.contents.coordinator_epoch == epoch
        assert read_transactions(parts) == log.contents
    assert [*log.contents.transactions] == ["t0", "t1", "t2"]
    log.forget(["t0", "t2"])
    assert [*read_transactions(parts).transactions] == ["t1"]


def test_a_log_that_has_grown_is_rewritten_to_the_last_state_of_each_id(
    parts: FolderParts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state_log, "REWRITE_BYTES", 2000)
    log = TransactionLog(parts, flush=False)
    for number in range(100):
        log.append(ongoing(f"t{number % 3}", updated_ms=number))

    assert parts.manager.replica(CLIENT_TRANSACTIONS).state.log_start_offset > 50
    assert read_transactions(parts) == log.contents
    assert {one.updated_ms for one in log.contents.transactions.values()} == {97, 98, 99}


def opened(
    parts: FolderParts, topic_partition: TopicPartition, producer: ProducerIdAndEpoch = OWNER
) -> str:
    """Append a transactional batch, as a server does for the owner of an open transaction; return the topic's id."""
    batch = data_batch(
        base_offset=0, producer_id=producer.producer_id, epoch=producer.epoch, transactional=True
    )
    errors = []
    append_records(
        parts, flush=False, timeout_ms=1000, required_acks=1, origin=AppendOrigin.COORDINATOR,
        entries_per_partition={topic_partition: batch},
        on_complete=lambda results: errors.append(results[topic_partition].error),
    )  # fmt: skip
    assert errors == [None]
    return parts.manager.partition(topic_partition).topic.topic_id


def stable(parts: FolderParts, topic_partition: TopicPartition) -> bool:
    state = parts.manager.replica(topic_partition).state
    return state.last_stable_offset == state.high_watermark


def test_a_transaction_of_a_server_that_is_gone_is_aborted(parts: FolderParts) -> None:
    partitions = {A: opened(parts, A), B: opened(parts, B)}
    log = TransactionLog(parts, flush=False)
    log.append(ongoing(partitions=partitions, offsets={"g": {A: CommittedOffset(5)}}))
    found = [*open_transactions(parts, log.contents, [A, B])]
    assert [(one.topic_partition, one.is_known, one.is_beyond) for one in found] == [
        (A, True, False), (B, True, False),
    ]  # fmt: skip
    assert not stable(parts, A)

    with idle_transactions(parts) as transactions:
        transactions.abort("t")

    assert stable(parts, A)
    assert stable(parts, B)
    kept = read_transactions(parts).transactions["t"]
    assert (kept.status, kept.producer) == (Status.COMPLETE_ABORT, ProducerIdAndEpoch(7, 4))
    assert read_groups(parts) == []
    assert [*open_transactions(parts, read_transactions(parts), [A, B])] == []


def test_a_decision_of_a_server_that_is_gone_is_carried_out_with_its_offsets_once(
    parts: FolderParts,
) -> None:
    topic_id = opened(parts, A)
    log = TransactionLog(parts, flush=False)
    pending = {"g": {A: CommittedOffset(5, topic_id=topic_id)}}
    log.append(ongoing(status=Status.PREPARE_COMMIT, partitions={A: topic_id}, offsets=pending))

    for _ in range(2):
        with idle_transactions(parts) as transactions:
            transactions.abort("t")  # what is decided is ended as decided

    assert stable(parts, A)
    assert parts.manager.replica(A).state.log_end_offset == 2  # a record and a marker
    assert read_transactions(parts).transactions["t"].status is Status.COMPLETE_COMMIT
    ((group_id, offsets),) = [(one.group_id, one.offsets) for one in read_groups(parts)]
    assert (group_id, offsets[A].committed_offset) == ("g", 5)


def test_a_topic_that_is_gone_or_created_again_needs_no_marker(tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"a": 1, "b": 2})
    parts = store_of(cluster)
    log = TransactionLog(parts, flush=False)
    log.append(ongoing(partitions={A: opened(parts, A), B: opened(parts, B)}))
    cluster.delete_topic("a")
    cluster.delete_topic("b")
    cluster.create_topic("b", partitions=2)

    with idle_transactions(parts) as transactions:
        transactions.abort("t")

    assert read_transactions(parts).transactions["t"].status is Status.COMPLETE_ABORT
    assert parts.manager.replica(B).state.log_end_offset == 0


def test_transactions_of_a_server_that_runs_are_its_own(tmp_path: Path) -> None:
    cluster: Cluster = builders.a_cluster(tmp_path)
    with cluster.serve(), pytest.raises(ServerRunningError), idle_transactions(store_of(cluster)):
        pass


def test_what_the_log_does_not_have_is_told_apart(parts: FolderParts) -> None:
    """An unknown producer or a newer epoch shows that the log is old; a known one can be aborted."""
    topic_id = opened(parts, A)
    empty = TransactionLog(parts, flush=False)
    empty.append(ongoing("t", status=Status.EMPTY, partitions={}))

    def found(owner: TransactionMetadata) -> tuple[bool, bool, bool]:
        empty.append(owner)
        (one,) = open_transactions(parts, empty.contents, [A])
        return one.is_known, one.is_beyond, one.may_abort

    assert found(ongoing(partitions={A: topic_id})) == (True, False, True)
    assert found(ongoing(partitions={A: TOPIC_ID})) == (False, False, True)
    ended = ongoing(status=Status.COMPLETE_ABORT, partitions={})
    assert found(ended._replace(commit_epoch=OWNER.epoch - 1)) == (False, False, True)
    assert found(ended._replace(commit_epoch=OWNER.epoch)) == (False, False, False)
    assert found(ongoing(producer=ProducerIdAndEpoch(7, 4), partitions={})) == (False, False, True)
    assert found(ongoing(producer=ProducerIdAndEpoch(7, 2), partitions={})) == (False, True, False)
    assert found(ongoing(producer=ProducerIdAndEpoch(8, 3), partitions={})) == (False, True, False)


def test_a_marker_of_a_later_coordinator_shows_that_the_log_is_old(parts: FolderParts) -> None:
    opened(parts, A)
    with idle_transactions(parts) as transactions:
        (unknown,) = open_transactions(parts, transactions.log.contents, [A])
        assert unknown.is_beyond
        transactions.log.start_again(above=11)
        transactions.end_unknown(unknown, is_commit=False)
    assert stable(parts, A)

    old = TransactionLog(parts, flush=False)
    old.append(ongoing(partitions={A: opened(parts, A)}))
    old.contents.coordinator_epoch = 11
    (found,) = open_transactions(parts, old.contents, [A])
    assert (found.is_beyond, found.coordinator_epoch) == (True, 12)
