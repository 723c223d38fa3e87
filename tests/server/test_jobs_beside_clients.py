"""Spark jobs commit while clients produce to, and consume from, the same partitions.

A consumer sees a job as a whole: all its records in a partition at once, and in all partitions at once.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import confluent_kafka
import pytest

from spark_kbatch import Cluster
from spark_kbatch.model import TopicPartition
from spark_kbatch.options.topic import TopicConfig
from spark_kbatch.server.server import Server
from spark_kbatch.wire.protocol import ApiKey
from tests.support import builders
from tests.support.raw_clients import RawClient, fetch_several
from tests.support.reference import Record, decode_batches, encode_batch
from tests.support.waiting import TIMEOUT_S

TOPIC, PARTITIONS = "events", 2
JOBS, BATCHES, ROWS = 25, 3, 20  # batches in each partition, rows in each batch
ROWS_OF_A_JOB = BATCHES * ROWS
LONG = 1 << 30


def run_job(cluster: Cluster, number: int) -> None:
    """Run one job with several batches for each partition."""
    rows = [Record(row, 0, None, b"job-%d" % number) for row in range(ROWS)]
    batches = {(TOPIC, p): BATCHES * [encode_batch(rows)] for p in range(PARTITIONS)}
    transaction = f"{number:032x}"
    extents = builders.staged(cluster, batches, transaction=transaction)
    builders.commit(cluster, extents, transaction=transaction)


class Beside:
    """Jobs and a producing client in two threads, until all jobs are committed."""

    def __init__(self, cluster: Cluster, server: Server) -> None:
        self._path, self._address = str(cluster.path), server.bootstrap_servers
        self.produced = 0
        self._jobs = threading.Thread(target=self._run_jobs)
        self._client = threading.Thread(target=self._produce)
        self._jobs.start()
        self._client.start()

    def _run_jobs(self) -> None:
        # A separate `Cluster`, as in another process.
        with Cluster(self._path) as cluster:
            for number in range(JOBS):
                run_job(cluster, number)
                time.sleep(0.02)

    def _produce(self) -> None:
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self._address, "enable.idempotence": True, "linger.ms": 0}
        )
        while self._jobs.is_alive():
            for partition in range(PARTITIONS):
                producer.produce(TOPIC, b"client", partition=partition)
                self.produced += 1
            producer.poll(0.002)
        assert producer.flush(30) == 0

    @property
    def goes_on(self) -> bool:
        return self._client.is_alive()

    def join(self) -> None:
        self._client.join()
        self._jobs.join()


class Job(NamedTuple):
    """The offsets of a job's rows in a partition."""

    first: int
    last: int


def jobs_of(records: Iterable[Record]) -> dict[bytes, Job]:
    """Return the jobs of a partition, after checking that each is contiguous and complete."""
    offsets: dict[bytes, list[int]] = {}
    for record in records:
        assert record.value is not None
        if record.value != b"client":
            offsets.setdefault(record.value, []).append(record.offset)
    for name, found in offsets.items():
        assert found == [*range(found[0], found[0] + ROWS_OF_A_JOB)], name
    return {name: Job(found[0], found[-1]) for name, found in offsets.items()}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with builders.a_cluster(
        tmp_path, topics={TOPIC: PARTITIONS}, config=TopicConfig(retention_ms=-1)
    ) as cluster:
        yield cluster


def fetch_all(
    client: RawClient, positions: dict[int, int], isolation: int
) -> dict[int, list[Record]]:
    """Fetch from all partitions once; return the records, and move the positions."""
    body = fetch_several(
        positions, TOPIC, max_wait_ms=50, max_bytes=LONG, isolation_level=isolation
    )
    found: dict[int, list[Record]] = {}
    for one in client.ask(ApiKey.FETCH, 12, body).responses[0].partitions:
        assert one.error_code == 0
        found[one.partition_index] = decode_batches(bytes(one.records))
        positions[one.partition_index] += len(found[one.partition_index])
    return found


@pytest.mark.parametrize("isolation", [0, 1], ids=["uncommitted", "committed"])
def test_every_fetch_shows_a_job_in_all_partitions_or_in_none(
    cluster: Cluster, isolation: int
) -> None:
    seen: dict[int, list[Record]] = {p: [] for p in range(PARTITIONS)}
    with cluster.serve() as server, RawClient(server) as client:
        positions = dict.fromkeys(seen, 0)
        beside = Beside(cluster, server)
        answers, is_over = 0, False
        while not is_over:
            was_over = not beside.goes_on
            fetched = fetch_all(client, positions, isolation)
            is_over = was_over and not any(fetched.values())
            of_partitions = [jobs_of(records) for records in fetched.values()]
            assert of_partitions[0].keys() == of_partitions[1].keys()
            answers += any(of_partitions)
            for partition, records in fetched.items():
                seen[partition] += records
        beside.join()

    assert answers > 1, "jobs were committed while the client fetched"
    for records in seen.values():
        assert [record.offset for record in records] == [*range(len(records))]
        assert len(jobs_of(records)) == JOBS
    values = Counter(record.value for records in seen.values() for record in records)
    assert values[b"client"] == beside.produced


def test_the_end_that_a_client_gets_is_never_inside_a_job(cluster: Cluster) -> None:
    with cluster.serve() as server:
        client = confluent_kafka.Consumer(
            {"bootstrap.servers": server.bootstrap_servers, "group.id": "none"}
        )
        end_of(client, 0)  # connected before the jobs start
        beside = Beside(cluster, server)
        ends: dict[int, set[int]] = {p: set() for p in range(PARTITIONS)}
        while beside.goes_on:
            for partition in ends:
                ends[partition].add(end_of(client, partition))
        client.close()
        beside.join()

    contents = builders.contents(cluster)
    for partition, told in ends.items():
        jobs = jobs_of(contents[TopicPartition(TOPIC, partition)]).values()
        assert len(told) > 1
        assert not [end for end in told for job in jobs if job.first < end <= job.last]


def test_a_client_that_sees_a_row_of_a_job_can_read_all_of_it(cluster: Cluster) -> None:
    with cluster.serve() as server:
        settings = {"bootstrap.servers": server.bootstrap_servers, "group.id": "none"}
        reading, looking = (confluent_kafka.Consumer(settings) for _ in range(2))
        reading.assign([confluent_kafka.TopicPartition(TOPIC, p, 0) for p in range(PARTITIONS)])
        beside = Beside(cluster, server)
        ends_at_sight: dict[bytes, dict[int, int]] = {}
        seen: dict[int, list[Record]] = {p: [] for p in range(PARTITIONS)}

        def look() -> bool:
            for message in reading.consume(50, timeout=0.1):
                assert not message.error(), message.error()
                value = message.value()
                seen[message.partition()].append(Record(message.offset(), 0, None, value))
                if value != b"client" and value not in ends_at_sight:
                    ends_at_sight[value] = {p: end_of(looking, p) for p in range(PARTITIONS)}
            return len(ends_at_sight) == JOBS and not beside.goes_on

        deadline = time.monotonic() + TIMEOUT_S
        while not look():
            assert time.monotonic() < deadline, f"{len(ends_at_sight)} jobs are seen"
        beside.join()
        ends = {p: end_of(looking, p) for p in range(PARTITIONS)}
        while any(len(seen[p]) < ends[p] for p in ends):
            assert time.monotonic() < deadline, f"{ends} were not reached"
            look()
        reading.close()
        looking.close()

    for partition, records in seen.items():
        assert [record.offset for record in records] == [*range(len(records))]
        for name, job in jobs_of(records).items():
            assert ends_at_sight[name][partition] > job.last


def end_of(client: confluent_kafka.Consumer, partition: int) -> int:
    """Return the end of a partition, as the server gives it."""
    place = confluent_kafka.TopicPartition(TOPIC, partition)
    end: int = client.get_watermark_offsets(place, timeout=10)[1]
    return end
