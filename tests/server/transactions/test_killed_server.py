"""A real server that is killed while a transaction is being ended, and started again: its client commits it once.

At which steps, and what else may come after each: `test_crash_matrix`.
"""

from __future__ import annotations

import threading
from pathlib import Path

import confluent_kafka
import pytest

from spark_kbatch.cluster.groups import read_groups
from spark_kbatch.cluster.transactions.state import Status
from tests.support import builders
from tests.support.dying_server import DyingServer
from tests.support.raw_transactions import EVENTS, until_stable, until_status, values
from tests.support.store import store_of

LOG, OFFSETS = "__client_transactions-0/kbatch.state", "__consumer_offsets-0/kbatch.state"
TIMEOUT_S = 60


@pytest.mark.parametrize(
    ("part", "number"),
    [
        pytest.param(LOG, 1, id="before the decision"),
        pytest.param(OFFSETS, 1, id="before the offsets", marks=pytest.mark.slow),
        pytest.param(
            LOG, 2, id="before the log says that offsets are stored", marks=pytest.mark.slow
        ),
        pytest.param("events-0/kbatch.state", 1, id="before a marker", marks=pytest.mark.slow),
        pytest.param("events-1/kbatch.state", 1, id="before the other marker"),
        pytest.param(LOG, 3, id="before it is complete", marks=pytest.mark.slow),
    ],
)
def test_a_server_killed_while_it_ends_a_transaction_commits_it_once(
    tmp_path: Path, part: str, number: int
) -> None:
    armed = tmp_path / "armed"
    with (
        builders.a_cluster(tmp_path, topics={"events": 2}) as cluster,
        DyingServer(cluster.path, tmp_path / "log", part, str(number), str(armed)) as server,
    ):
        common = {"bootstrap.servers": server.address, "log_level": 0}
        producer = confluent_kafka.Producer(
            common | {"transactional.id": "t", "reconnect.backoff.max.ms": 100}
        )
        consumer = confluent_kafka.Consumer(common | {"group.id": "g"})
        producer.init_transactions(TIMEOUT_S)
        for value, is_commit in ((b"first", True), (b"no", False)):
            producer.begin_transaction()
            send(producer, value)
            end = producer.commit_transaction if is_commit else producer.abort_transaction
            end(TIMEOUT_S)
        producer.begin_transaction()
        send(producer, b"second")
        producer.flush(TIMEOUT_S)
        at = [confluent_kafka.TopicPartition("events", 0, 7)]
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(at, metadata, TIMEOUT_S)
        armed.touch()
        committing = threading.Thread(target=producer.commit_transaction, args=(TIMEOUT_S,))
        committing.start()
        server.wait_until_dead()
        server.start()
        committing.join()
        until_status(cluster, Status.COMPLETE_COMMIT)
        consumer.close()
        (group,) = read_groups(store_of(cluster))
        assert group.offsets[EVENTS].committed_offset == 7
        until_stable(cluster)
        assert sorted(values(cluster)) == [b"first", b"first", b"second", b"second"]


def send(producer: confluent_kafka.Producer, value: bytes) -> None:
    for partition in range(2):
        producer.produce("events", value, partition=partition)
