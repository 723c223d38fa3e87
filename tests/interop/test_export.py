"""A real broker serves exported records as if producers had sent them."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from confluent_kafka import Producer

from spark_kbatch import Cluster
from spark_kbatch.errors import ConfigError, LogDirLockedError
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from tests.support import builders, kafka_clients, network_reads
from tests.support.faults import Fault, FaultyFiles, died
from tests.support.kafka import Broker, Kafka, by_directory
from tests.support.logs_for_kafka import a_cluster_of_all_codecs, segment_files
from tests.support.reference import Record

pytestmark = pytest.mark.interop

# By partition: the whole log, from within a batch, from within a middle segment, nothing, one record.
LOG_STARTS = (0, 5, 700, 1500, 1499)
RECORDS = 1500


class Served(NamedTuple):
    cluster: Cluster
    broker: Broker
    held: dict[int, list[Record]]  # by partition, from the log start offset on


def a_stopped_broker(kafka: Kafka, folder: Path, *, partitions: int = 1) -> Broker:
    """Return a stopped broker with an empty topic `events` that keeps old records."""
    broker = Broker(kafka, folder / "broker")
    with broker:
        broker.create_topic("events", partitions=partitions, retention_ms=-1)
    return broker


@pytest.fixture(scope="module")
def served(kafka: Kafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    cluster, held = a_cluster_of_all_codecs(folder, n=RECORDS)
    cluster.delete_records({TopicPartition("events", p): at for p, at in enumerate(LOG_STARTS)})
    broker = a_stopped_broker(kafka, folder, partitions=len(held))
    cluster.export("events", to=broker.log_dir)
    with broker:
        left = {p: records[LOG_STARTS[p] :] for p, records in enumerate(held)}
        yield Served(cluster, broker, left)


def test_librdkafka_reads_the_records(served: Served) -> None:
    assert kafka_clients.read(served.broker, "events", served.held) == served.held


def test_the_java_consumer_reads_the_records(kafka: Kafka, served: Served) -> None:
    count = sum(map(len, served.held.values()))

    found = kafka_clients.read_by_console(kafka, served.broker, "events", count)

    assert found == {p: records for p, records in served.held.items() if records}


def test_the_broker_and_we_know_the_same_offsets(kafka: Kafka, served: Served) -> None:
    infos = served.cluster.describe(["events"])

    for time, name in ((-2, "log_start_offset"), (-1, "high_watermark")):
        found = kafka_clients.offsets_by_shell(kafka, served.broker, "events", time)
        assert found == {
            info.topic_partition.partition: getattr(info.offsets, name) for info in infos
        }


def ours(served: Served, time: int | str) -> dict[int, int]:
    """Look up a time with this package, by partition; -1 if there is no such record."""
    wanted = dict.fromkeys(served.cluster.partitions("events"), time)
    found = served.cluster.list_offsets(wanted)
    return {tp.partition: record.offset if record else -1 for tp, record in found.items()}


def first_from(records: list[Record], time: int) -> int:
    return next((r.offset for r in records if r.timestamp >= time), -1)


def test_librdkafka_and_we_find_the_same_offsets_by_time(served: Served) -> None:
    all_times = sorted({r.timestamp for r in served.held[0]})
    times = [0, *all_times[:: len(all_times) // 40], all_times[-1], all_times[-1] + 1]

    found = kafka_clients.offsets_by_time(served.broker, "events", served.held, times)

    for time, offsets in zip(times, found, strict=True):
        assert offsets == {p: first_from(records, time) for p, records in served.held.items()}
        assert ours(served, time) == offsets


@pytest.mark.parametrize("which", [0, 500, 1499], ids=["first", "middle", "last"])
def test_the_java_client_and_we_find_the_same_offsets_by_time(
    kafka: Kafka, served: Served, which: int
) -> None:
    time = sorted(r.timestamp for r in served.held[0])[which]

    found = kafka_clients.offsets_by_shell(kafka, served.broker, "events", time)

    assert {p: offset for p, offset in ours(served, time).items() if offset >= 0} == found


def test_the_java_client_and_we_find_the_same_offsets_of_the_latest_time(
    kafka: Kafka, served: Served
) -> None:
    found = kafka_clients.offsets_by_shell(kafka, served.broker, "events", -3)

    assert set(found) == {p for p, records in served.held.items() if records}
    # In partition 4 most of the last batch is before the log start, where a broker looks too.
    for partition in set(found) - {4}:
        assert ours(served, "max_timestamp")[partition] == found[partition]


def test_a_topic_is_not_exported_while_the_broker_runs(served: Served) -> None:
    with pytest.raises(LogDirLockedError, match="Kafka broker"):
        served.cluster.export("events", to=served.broker.log_dir)


def test_exported_records_survive_a_kill_of_the_broker(served: Served) -> None:
    served.broker.kill()
    served.broker.start()

    assert kafka_clients.read(served.broker, "events", served.held) == served.held


def dumped(kafka: Kafka, broker: Broker, partitions: Iterable[int]) -> dict[int, str]:
    """Return what Kafka's tool prints of each partition; it finds no fault in any of them."""
    directories = {p: broker.directory("events", p) for p in partitions}
    files = [file for directory in directories.values() for file in segment_files(directory)]
    printed, faults = kafka.dump_log(files, "--deep-iteration")
    assert faults == []
    return {p: by_directory(printed)[directory] for p, directory in directories.items()}


def test_the_files_have_no_fault_after_the_broker_ran(kafka: Kafka, served: Served) -> None:
    served.broker.stop()
    try:
        found = dumped(kafka, served.broker, served.held)
        for partition, held in served.held.items():
            assert ("isvalid: true" in found[partition]) == bool(held)
    finally:
        served.broker.start()


def test_the_broker_goes_on_after_the_last_record(served: Served) -> None:
    offsets = {}
    producer = Producer({"bootstrap.servers": served.broker.address, "linger.ms": 0})
    for partition in served.held:
        producer.produce(
            "events", b"new", partition=partition,
            on_delivery=lambda _, message: offsets.update({message.partition(): message.offset()}),
        )  # fmt: skip
    producer.flush(60)

    assert offsets == dict.fromkeys(served.held, RECORDS)


def test_a_producer_of_the_broker_is_not_mistaken_for_one_of_the_export(
    kafka: Kafka, tmp_path: Path
) -> None:
    """Both sides assign producer ids from 0 on, and the first batch has sequence number 0.

    When a killed broker starts it reads every batch, also for producer ids.
    """
    cluster = builders.a_cluster(tmp_path)
    with cluster.producer() as producer:
        assert producer.send("events", b"ours").result().offset == 0
    broker = Broker(kafka, tmp_path / "broker").start()
    broker.create_topic("events", retention_ms=-1)
    broker.kill()
    cluster.export("events", to=broker.log_dir)

    with broker:
        theirs = Producer({"bootstrap.servers": broker.address, "enable.idempotence": True})
        theirs.produce("events", b"theirs", partition=0)
        assert theirs.flush(60) == 0
        found = kafka_clients.read(broker, "events", [0])[0]

    assert [(r.offset, r.value) for r in found] == [(0, b"ours"), (1, b"theirs")]


def test_a_record_larger_than_the_broker_accepts_is_served(kafka: Kafka, tmp_path: Path) -> None:
    config = TopicConfig(max_message_bytes=4 << 20)
    cluster = builders.a_cluster(tmp_path, config=config)
    large = builders.batch(n=1, value_bytes=3 << 20)
    builders.write(cluster, {("events", 0): [builders.batch(), large, builders.batch()]})
    broker = a_stopped_broker(kafka, tmp_path)
    cluster.export("events", to=broker.log_dir)

    with broker:
        found = kafka_clients.read(broker, "events", [0])

    assert found == {0: builders.contents(cluster)[TopicPartition("events", 0)]}


@pytest.mark.parametrize("format_name", ["V1", "V0"])
def test_the_broker_serves_messages_of_formats_v0_and_v1(
    kafka: Kafka, tmp_path: Path, format_name: str
) -> None:
    cluster, held = a_cluster_of_all_codecs(tmp_path, n=500, format_name=format_name)
    log_starts = [0, 0, 100, 257]
    cluster.delete_records({TopicPartition("events", p): at for p, at in enumerate(log_starts)})
    broker = a_stopped_broker(kafka, tmp_path, partitions=len(held))
    cluster.export("events", to=broker.log_dir)

    with broker:
        found = kafka_clients.read(broker, "events", range(len(held)))
        by_console = kafka_clients.read_by_console(
            kafka, broker, "events", sum(map(len, found.values()))
        )
        over_the_network = network_reads.read(broker.address, "events")

    assert over_the_network == found
    assert found == {p: held[p][log_start:] for p, log_start in enumerate(log_starts)}
    assert by_console == found
    assert all(dumped(kafka, broker, found).values())


class Stop(NamedTuple):
    """An export that is killed in step `at`, when `swapped` partitions have their records."""

    at: int
    swapped: int


def stops_of_an_export(path: Path, log_dir: Path) -> list[Stop]:
    """Return stops in the last batches, and around every rename that swaps a directory.

    Afterwards the log dir is as it was before.
    """
    with as_it_was(log_dir):
        files = FaultyFiles()
        Cluster(str(path), files=files).export("events", to=log_dir)
    steps = list(enumerate(files.steps))
    last_batches = max(at for at, step in steps if step.startswith("write") and ".log" in step)
    renames = [
        at
        for at, step in steps
        if step.startswith("rename") and (step.endswith("-old-delete") or step[-2:] in ("-0", "-1"))
    ]
    assert len(renames) == 4
    return [
        Stop(last_batches, swapped=0),
        *(Stop(at, swapped=number // 2) for number, at in enumerate(renames)),
        Stop(renames[-1] + 1, swapped=2),
    ]


@contextlib.contextmanager
def as_it_was(folder: Path) -> Iterator[None]:
    """Restore a folder when the block ends."""
    copy = folder.with_name(f"{folder.name}-copy")
    shutil.copytree(folder, copy)
    yield
    shutil.rmtree(folder)
    copy.rename(folder)


def test_a_broker_starts_on_the_files_of_a_killed_export(kafka: Kafka, tmp_path: Path) -> None:
    cluster = builders.a_cluster(tmp_path, topics={"events": 2})
    builders.write(cluster, {("events", p): [builders.batch(seed=p)] for p in range(2)})
    held = {tp.partition: records for tp, records in builders.contents(cluster).items()}
    broker = a_stopped_broker(kafka, tmp_path, partitions=2)

    for at, swapped in stops_of_an_export(cluster.path, broker.log_dir):
        with as_it_was(broker.log_dir):
            dying = Cluster(str(cluster.path), files=FaultyFiles(Fault(at, torn=True)))
            assert died(lambda dying=dying: dying.export("events", to=broker.log_dir))
            with broker:
                found = kafka_clients.read(broker, "events", range(2))
            assert found == {p: held[p] if p < swapped else [] for p in range(2)}

            if swapped:
                with pytest.raises(
                    ConfigError, match="delete it on the broker and create it again"
                ):
                    cluster.export("events", to=broker.log_dir)
            else:
                cluster.export("events", to=broker.log_dir)
                with broker:
                    assert kafka_clients.read(broker, "events", range(2)) == held
