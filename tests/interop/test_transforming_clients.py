"""Transactional clients write each record once through groups, while the server and they are killed.

Each client runs in its own loop (`tests.support.transforming`) on a folder's server, and on Kafka's broker, which shows
what the loops themselves guarantee. 20,000 records on each by default, 200,000 with KBATCH_SCHEDULES=10.
"""

from __future__ import annotations

import contextlib
import random
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from spark_kbatch import Cluster
from spark_kbatch.cluster.transactions.log import read_transactions
from spark_kbatch.model import TopicPartition
from tests.support import builders, draws
from tests.support.committed_reader import CommittedReader
from tests.support.kafka import Broker, Kafka
from tests.support.kafka_clients import read
from tests.support.served import Served
from tests.support.store import store_of
from tests.support.transforming import CLIENTS, Loop, Topics
from tests.support.waiting import until

pytestmark = pytest.mark.interop

PARTITIONS = 3
RECORDS, KILLS_OF_EACH = 5_000, 3
TIMEOUT_S = 300
TOPICS = Topics("source", "target")


class Site(NamedTuple):
    """What serves the clients."""

    server: Broker | Served
    ensure_left: Callable[[], None]  # checks what it leaves, once it is stopped


@contextlib.contextmanager
def a_broker(kafka: Kafka, folder: Path) -> Iterator[Site]:
    """Start Kafka's own broker."""
    every = {"transaction_abort_timed_out_transaction_cleanup_interval_ms": 500}
    with Broker(kafka, folder / "broker", **every) as broker:
        yield Site(broker, broker.stop)


@contextlib.contextmanager
def a_served_folder(_: Kafka, folder: Path) -> Iterator[Site]:
    """Start `kbatch serve`."""
    cluster = builders.a_cluster(folder, topics={})
    with cluster, Served(cluster.path, folder / "server.log") as server:

        def ensure_left() -> None:
            server.stop()
            ensure_nothing_is_open(cluster)
            assert "Traceback" not in (folder / "server.log").read_text()

        yield Site(server, ensure_left)


def ensure_nothing_is_open(cluster: Cluster) -> None:
    parts = store_of(cluster)
    found = read_transactions(parts).transactions.values()
    assert found
    assert not any(one.is_open or one.is_decided for one in found), found
    for number in range(PARTITIONS):
        state = parts.manager.replica(TopicPartition(TOPICS.target, number)).state
        assert state.last_stable_offset == state.high_watermark == state.log_end_offset


def fill(address: str, values: list[bytes]) -> None:
    """Create both topics, and write what the loop reads."""
    admin = AdminClient({"bootstrap.servers": address})
    for done in admin.create_topics([NewTopic(one, PARTITIONS, 1) for one in TOPICS]).values():
        done.result(30)
    producer = confluent_kafka.Producer({"bootstrap.servers": address, "linger.ms": 5})
    for number, value in enumerate(values):
        producer.produce(TOPICS.source, value, partition=number % PARTITIONS)
    assert producer.flush(TIMEOUT_S) == 0


def committed(address: str, group: str) -> dict[int, int]:
    admin = AdminClient({"bootstrap.servers": address})
    wanted = [
        confluent_kafka.ConsumerGroupTopicPartitions(
            group, [confluent_kafka.TopicPartition(TOPICS.source, p) for p in range(PARTITIONS)]
        )
    ]
    answer = admin.list_consumer_group_offsets(wanted, require_stable=True)[group].result(30)
    return {one.partition: one.offset for one in answer.topic_partitions}


@contextlib.contextmanager
def telling_state(kafka: Kafka, server: Broker | Served, loop: Loop) -> Iterator[None]:
    """Let a failure tell what the programs said and do, which transactions are open, and who is in the group."""
    try:
        yield
    except Exception as error:
        error.add_note(loop.does())
        described = f"consumer.group.ConsumerGroupCommand --describe --group {loop.group}"
        for asked in "TransactionsCommand list", f"{described} --members --verbose", described:
            tool, *words = asked.split()
            name = f"org.apache.kafka.tools.{tool}"
            try:
                told = kafka.run(name, "--bootstrap-server", server.address, *words)
            except (AssertionError, subprocess.TimeoutExpired) as failed:  # of the tool
                told = str(failed)
            error.add_note(f"{asked} says:\n{told}")
        raise


@pytest.mark.parametrize("client", CLIENTS)
@pytest.mark.parametrize("site", [a_broker, a_served_folder], ids=["kafka", "served"])
def test_a_clients_loop_writes_each_record_once_while_it_and_the_server_are_killed(
    kafka: Kafka,
    tmp_path: Path,
    site: Callable[[Kafka, Path], contextlib.AbstractContextManager[Site]],
    client: str,
) -> None:
    count, kills = draws.many(RECORDS), draws.many(KILLS_OF_EACH)
    rng = random.Random(draws.FIRST)
    values = [b"%d" % number for number in range(count)]
    with draws.naming_first(), site(kafka, tmp_path) as (server, ensure_left):
        fill(server.address, values)
        with (
            CommittedReader(server.address, {TOPICS.target: PARTITIONS}) as reader,
            Loop(client, kafka, server.address, TOPICS, tmp_path) as loop,
            telling_state(kafka, server, loop),
        ):

            def progress(least: int) -> None:
                def is_there() -> bool:
                    loop.tend()
                    return len(reader.found[TOPICS.target]) >= least

                until(is_there, f"{least} records are committed", timeout_s=TIMEOUT_S)

            for number in range(1, 2 * kills + 1):
                progress(number * count // (2 * kills + 2))
                time.sleep(rng.uniform(0, 0.3))
                if number % 2:
                    server.kill()
                    time.sleep(rng.uniform(0, 0.5))
                    server.start()
                else:
                    loop.kill(rng.randrange(2))
            progress(count)
            ensure_committed_to_the_end(loop, server.address, count)
            loop.stop()
            reader.ensure(TOPICS.target, [b"done " + one for one in values])
        written = read(server, TOPICS.target, range(PARTITIONS), isolation_level="read_uncommitted")
        words = {record.value.split()[0] for some in written.values() for record in some}  # type: ignore[union-attr]
        assert words == {b"done", b"aborted"}
        ensure_left()


def ensure_committed_to_the_end(loop: Loop, address: str, count: int) -> None:
    """Check the group's offsets, which the last transaction commits before its records are read."""
    ends = {p: len(range(p, count, PARTITIONS)) for p in range(PARTITIONS)}
    until(lambda: committed(address, loop.group) == ends, "the group has committed everything")
