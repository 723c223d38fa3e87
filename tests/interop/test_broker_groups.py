"""The groups in a real broker's log dir, stopped or killed, are those that Kafka's own tool showed before."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

import confluent_kafka
import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer

import spark_kbatch
from spark_kbatch.cli.main import cli
from tests.support.kafka import Broker, Kafka
from tests.support.waiting import until

pytestmark = pytest.mark.interop

TOOLS = "org.apache.kafka.tools.consumer"
PATIENCE_S = 120
# Committed offset, log end and lag, by group, topic and partition.
Shown: TypeAlias = dict[tuple[str, str, int], tuple[int, int, int]]


class Left(NamedTuple):
    """What a broker leaves, and what it showed while it ran."""

    log_dir: Path
    offsets: Shown
    states: dict[str, str]


def consumer(broker: Broker, group: str, **settings: object) -> Consumer:
    return Consumer(
        {"bootstrap.servers": broker.address, "group.id": group, "auto.offset.reset": "earliest"}
        | {"enable.auto.commit": False}
        | {name.replace("_", "."): value for name, value in settings.items()}
    )


def consume(broker: Broker, group: str, count: int, **settings: object) -> Consumer:
    """Consume so many records of `events`, and commit."""
    found = consumer(broker, group, **settings)
    found.subscribe(["events"])
    left = count
    while left:
        left -= len(found.consume(left, timeout=1))
    found.commit(asynchronous=False)
    return found


def committing(broker: Broker, group: str, name: str) -> Producer:
    """Open a transaction that commits offset 9 of events-0 for a group; the caller ends it."""
    producer = Producer(
        {"bootstrap.servers": broker.address, "transactional.id": name}
        | {"transaction.timeout.ms": 900_000}
    )
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    producer.produce("made", value=b"of a transaction")
    reader = consumer(broker, group)
    producer.send_offsets_to_transaction(
        [confluent_kafka.TopicPartition("events", 0, 9)],
        reader.consumer_group_metadata(),
        PATIENCE_S,
    )
    reader.close()
    return producer


def commit(broker: Broker, group: str, topic: str, offset: int) -> None:
    reader = consumer(broker, group)
    reader.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, offset)], asynchronous=False)
    reader.close()


def fill(kafka: Kafka, broker: Broker) -> Iterator[object]:
    """Make groups of each kind; yield clients that are to stay."""
    for topic, count in (("events", 3), ("made", 1), ("short-lived", 1)):
        broker.create_topic(topic, partitions=count)
    producer = Producer({"bootstrap.servers": broker.address})
    for number in range(90):
        producer.produce("events", value=b"%d" % number, partition=number % 3)
    producer.flush()
    kafka.run(
        f"{TOOLS}.ConsoleConsumer", "--bootstrap-server", broker.address, "--topic", "events",
        "--group", "console", "--from-beginning", "--max-messages", 20,
    )  # fmt: skip
    consume(broker, "left", 50).close()
    yield consume(broker, "with members", 10, group_instance_id="i-1")
    yield consume(broker, "new protocol", 10, group_protocol="consumer")
    consume(broker, "new protocol left", 60, group_protocol="consumer").close()
    committing(broker, "transactional", "t-1").commit_transaction(PATIENCE_S)
    commit(broker, "aborted", "events", 4)
    committing(broker, "aborted", "t-2").abort_transaction(PATIENCE_S)
    commit(broker, "pending", "events", 5)
    yield committing(broker, "pending", "t-3")
    commit(broker, "behind it", "events", 6)
    commit(broker, "topic gone", "short-lived", 0)
    commit(broker, "topic gone", "events", 7)
    commit(broker, "deleted", "events", 8)
    admin = broker.admin()
    admin.delete_consumer_groups(["deleted"])["deleted"].result(PATIENCE_S)
    admin.delete_topics(["short-lived"])["short-lived"].result(PATIENCE_S)


def by_tool(kafka: Kafka, broker: Broker, *words: str) -> str:
    return kafka.run(
        f"{TOOLS}.group.ConsumerGroupCommand", "--bootstrap-server", broker.address, *words
    )


def shown(printed: str) -> Shown:
    """Return what the tool shows with `--describe`; names of groups may have spaces."""
    rows = re.findall(
        r"^(\S.*?) +(events|made|short-lived) +(\d+) +(\d+) +(\d+) +(\d+) ", printed, re.MULTILINE
    )
    return {
        (group, topic, int(partition)): (int(offset), int(end), int(lag))
        for group, topic, partition, offset, end, lag in rows
    }


@pytest.fixture(params=["stop", "kill"])
def left(request: pytest.FixtureRequest, kafka: Kafka, tmp_path: Path) -> Iterator[Left]:
    broker = Broker(kafka, tmp_path / "broker", offsets_topic_num_partitions=4)
    with broker:
        stay = list(fill(kafka, broker))
        offsets = shown(by_tool(kafka, broker, "--describe", "--all-groups"))
        with spark_kbatch.connect(broker.address) as cluster:
            states = {one.group_id: one.state for one in cluster.groups()}
        end: Callable[[], None] = getattr(broker, request.param)
        end()
        yield Left(broker.log_dir, offsets, states)
        del stay


def test_groups_of_a_log_dir_are_those_that_the_broker_showed(left: Left) -> None:
    assert {group for group, _, _ in left.offsets} == {
        "console", "left", "with members", "new protocol", "new protocol left", "transactional",
        "aborted", "pending", "behind it", "topic gone",
    }  # fmt: skip
    assert left.offsets["transactional", "events", 0][0] == 9
    assert left.offsets["pending", "events", 0][0] == 5
    assert left.states["with members"] == left.states["new protocol"] == "Stable"

    with spark_kbatch.open(left.log_dir) as logs:
        found = {one.group_id: one for one in logs.groups()}
    done = CliRunner().invoke(cli, ["groups", str(left.log_dir), "--json"])

    assert {
        (name, *tp): (at.committed_offset, at.log_end_offset, at.lag)
        for name, one in found.items()
        for tp, at in one.offsets.items()
        if at.committed_offset is not None
    } == left.offsets
    assert {name: one.state for name, one in found.items()} == left.states
    assert [one.instance_id for one in found["with members"].members] == ["i-1"]
    assert done.exit_code == 0, done.output
    assert {
        (one["group"], at["topic"], at["partition"]): (
            at["committed_offset"], at["log_end_offset"], at["lag"]
        )
        for one in map(json.loads, done.stdout.splitlines())
        for at in one["offsets"]
        if at["committed_offset"] is not None
    } == left.offsets  # fmt: skip


def test_a_new_broker_takes_topics_and_groups_of_a_lost_one(
    kafka: Kafka, tmp_path: Path, left: Left
) -> None:
    lost = tmp_path / "backup"
    shutil.copytree(left.log_dir, lost)
    spark_kbatch.mirror(lost, tmp_path / "between", "events", keep_offsets=True)
    with Broker(kafka, tmp_path / "new") as broker:
        broker.create_topic("events", partitions=3, retention_ms=-1)
        broker.stop()
        with spark_kbatch.open(tmp_path / "between") as between:
            between.export("events", to=broker.log_dir)
        broker.start()
        with spark_kbatch.open(lost) as logs, spark_kbatch.connect(broker.address) as new:
            for group in logs.groups():
                offsets = {
                    tp: at.committed_offset
                    for tp, at in group.offsets.items()
                    if at.committed_offset is not None and tp.topic == "events"
                }
                new.alter_group_offsets(group.group_id, offsets)
        until(lambda: "console" in by_tool(kafka, broker, "--list"), timeout_s=PATIENCE_S)
        found = shown(by_tool(kafka, broker, "--describe", "--all-groups"))

    assert found == {key: at for key, at in left.offsets.items() if key[1] == "events"}
