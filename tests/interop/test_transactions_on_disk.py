"""Kafka's own tools and broker read what a server writes of clients' transactions."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import confluent_kafka
import pytest

from spark_kbatch import Cluster
from spark_kbatch.cluster.transactions.log import read_transactions
from spark_kbatch.cluster.transactions.state import Status
from spark_kbatch.commit.internal_topics import CLIENT_TRANSACTIONS
from spark_kbatch.model import TopicPartition
from tests.support import builders
from tests.support.kafka import Broker, Kafka, by_directory
from tests.support.kafka_clients import read
from tests.support.logs_for_kafka import SMALL, segment_files
from tests.support.raw_clients import RawClient
from tests.support.raw_transactions import EVENTS, OTHER, RawProducer, until_status, values
from tests.support.store import store_of

pytestmark = pytest.mark.interop

ROUNDS = 12
OPEN_MS = 900_000  # longer than the tests take
IN = TopicPartition("in", 0)
_STATE = re.compile(r" key: (\{.*?\}\}) payload: (\{.*\})$", re.MULTILINE)
_MARKER = re.compile(r"^\| offset: (\d+) .* endTxnMarker: (\w+) coordinatorEpoch: (\d+)$", re.M)
_ABORTED = re.compile(
    r"^version: 0 producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+) lastStableOffset: (\d+)$",
    re.MULTILINE,
)
_PRODUCER = re.compile(
    r"^producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) "
    r"currentTxnFirstOffset: (?:OptionalLong\.empty|OptionalLong\[(\d+)\]) ",
    re.MULTILINE,
)
_BATCH = re.compile(r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) ", re.MULTILINE)
_GAP = re.compile(r"^  (\d+) is followed by (\d+)$|^Non-consecutive offsets in ")


class Written(NamedTuple):
    """A cluster whose server runs, and its log dir."""

    cluster: Cluster
    log_dir: Path
    producers: Sequence[RawProducer]

    def files(self, topic_partition: TopicPartition, *suffixes: str) -> list[Path]:
        directory = self.log_dir / str(topic_partition)
        return sorted(path for path in directory.iterdir() if path.suffix in suffixes)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Written]:
    """A running server after many transactions, in several segments; one is open at the end."""
    config = dataclasses.replace(SMALL, segment_bytes=2000)
    folder = tmp_path_factory.mktemp("written")
    cluster = builders.a_cluster(folder, topics={"events": 2, "in": 1}, config=config)
    served = cluster.serve(transaction_max_timeout_ms=OPEN_MS)
    with cluster, served as server, RawClient(server, timeout_s=60) as client:
        first, second, last = producers = [
            RawProducer(client, name, timeout_ms=OPEN_MS).start() for name in "abc"
        ]
        for number in range(ROUNDS):
            value = b"%d" % number
            first.write(EVENTS, OTHER, n=5, value=b"first " + value).end(commit=number % 3 > 0)
            second.write(EVENTS, n=2, value=b"second " + value).add_group("g")
            second.commit_offsets("g", {IN: number})
            second.end(commit=True)
        for name in "ab":
            until_status(cluster, Status.COMPLETE_COMMIT, name)
        last.write(EVENTS, value=b"open").add_group("g")
        last.commit_offsets("g", {IN: 99})
        yield Written(cluster, folder / "cluster" / "broker-0", producers)


def dumped(kafka: Kafka, files: Sequence[Path], *flags: str) -> str:
    """Return what the tool prints; it finds no fault."""
    assert files
    printed, faults = kafka.dump_log(files, *flags)
    assert faults == []
    return printed


def test_the_log_of_transactions_is_decoded_as_that_of_a_broker(
    kafka: Kafka, written: Written
) -> None:
    files = written.files(CLIENT_TRANSACTIONS, ".log", ".index", ".timeindex")
    printed = dumped(kafka, files, "--transaction-log-decoder")

    found: dict[str, list[Any]] = {}
    for key, value in _STATE.findall(printed):
        name = json.loads(key)["data"]["transactionalId"]
        found.setdefault(name, []).append(json.loads(value)["data"])
    stored = read_transactions(store_of(written.cluster)).transactions
    assert {*found} == {*stored, ""}  # the empty one has the coordinator's epoch
    assert printed.count("| offset: ") == sum(map(len, found.values()))
    for name, one in stored.items():
        last = found[name][-1]
        assert (last["producerId"], last["producerEpoch"]) == one.producer
        assert last["transactionStatus"] == one.status
        partitions = last["transactionPartitions"] or []
        assert {
            TopicPartition(of["topic"], p) for of in partitions for p in of["partitionIds"]
        } == {*one.partitions}
    statuses = [one["transactionStatus"] for one in found["a"]]
    assert {*statuses} == {*Status}
    assert statuses.count(Status.COMPLETE_ABORT) == ROUNDS // 3


def test_markers_are_read_with_their_outcome_and_the_coordinators_epoch(
    kafka: Kafka, written: Written
) -> None:
    every = {tp: written.files(tp, ".log", ".index", ".timeindex") for tp in (EVENTS, OTHER)}
    printed = by_directory(
        dumped(kafka, [file for files in every.values() for file in files], "--print-data-log")
    )

    markers = _MARKER.findall(printed[written.log_dir / str(OTHER)])
    outcomes = ["ABORT" if number % 3 == 0 else "COMMIT" for number in range(ROUNDS)]
    assert markers == [(str(5 + 6 * n), what, "0") for n, what in enumerate(outcomes)]
    of_both = Counter(
        what for _, what, _ in _MARKER.findall(printed[written.log_dir / str(EVENTS)])
    )
    assert of_both == {"ABORT": ROUNDS // 3, "COMMIT": 2 * ROUNDS - ROUNDS // 3}


def test_indexes_of_aborted_transactions_and_snapshots_of_producers_are_read(
    kafka: Kafka, written: Written
) -> None:
    aborted = _ABORTED.findall(dumped(kafka, written.files(OTHER, ".txnindex")))
    assert [tuple(map(int, one)) for one in aborted] == [
        (written.producers[0].producer_id, 6 * n, 6 * n + 5, 6 * n + 6) for n in range(0, ROUNDS, 3)
    ]
    snapshots = written.files(EVENTS, ".snapshot")
    producers = _PRODUCER.findall(dumped(kafka, snapshots))
    assert len(snapshots) > 1
    assert {producer_id for producer_id, *_ in producers} == {"0", "1"}
    assert {(epoch, coordinator) for _, epoch, coordinator, _ in producers} <= {
        ("0", "0"),
        ("0", "-1"),
    }


def test_a_broker_started_over_an_export_serves_what_was_decided(
    kafka: Kafka, written: Written, tmp_path: Path
) -> None:
    broker = Broker(kafka, tmp_path / "broker")
    with broker:
        broker.create_topic("events", partitions=2, retention_ms=-1)
    written.cluster.export("events", to=broker.log_dir)
    with broker:
        found = {
            level: read(broker, "events", range(2), isolation_level=level)
            for level in ("read_committed", "read_uncommitted")
        }
        # It goes on after what was decided, and remembers no producer of ours.
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.address, "transactional.id": "a"}
        )
        producer.init_transactions(60)
        producer.begin_transaction()
        producer.produce("events", b"theirs", partition=0)
        producer.commit_transaction(60)
        after = read(broker, "events", [0], isolation_level="read_committed")[0]
    printed, faults = kafka.dump_log(segment_files(broker.directory("events")), "--deep-iteration")

    assert found["read_committed"] == found["read_uncommitted"]
    for tp in (EVENTS, OTHER):
        assert [one.value for one in found["read_committed"][tp.partition]] == values(
            written.cluster, tp
        )
    state = store_of(written.cluster).manager.replica(EVENTS).state
    assert (after[-1].offset, after[-1].value) == (state.last_stable_offset, b"theirs")
    assert "isvalid: true" in printed
    # The tool names the offsets without records, of which a broker's compacted logs have many: here there
    # is a batch without records at each, in place of a marker or of what was aborted.
    empty = {
        offset
        for first, last, count in _BATCH.findall(printed)
        if count == "0"
        for offset in range(int(first), int(last) + 1)
    }
    assert empty == {*range(state.last_stable_offset)} - {one.offset for one in after}
    gaps = [*map(_GAP.match, faults)]
    assert all(gaps)
    assert {
        offset
        for gap in gaps
        if gap is not None and gap[1]
        for offset in range(int(gap[1]) + 1, int(gap[2]))
    } <= empty
