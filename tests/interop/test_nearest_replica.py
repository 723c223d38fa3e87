"""Clients with a rack read from the replica in it, and from another one while that is down."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from spark_kbatch.consumer import reading
from spark_kbatch.errors import OffsetOutOfRangeError
from spark_kbatch.model import LogOffsets, OffsetRange, ReadRange, TopicPartition
from spark_kbatch.record.header import LogRead
from spark_kbatch.remote.client import close_idle_clients
from spark_kbatch.remote.fetcher import PartitionFetcher
from tests.support.kafka_cluster import BrokerCluster, rack_of
from tests.support.network_reads import source_of

pytestmark = pytest.mark.interop

RECORDS = 5000


@pytest.fixture(autouse=True)
def _empty_pool() -> Iterator[None]:
    yield
    close_idle_clients()


class Noting:
    """A fetcher, and the server of each answer with records."""

    def __init__(self, fetcher: PartitionFetcher) -> None:
        self._fetcher = fetcher
        self.servers: list[str] = []

    def fetch(self, tp: TopicPartition, asked: ReadRange) -> tuple[LogRead, LogOffsets]:
        read, edges = self._fetcher.fetch(tp, asked)
        if read.batches:
            self.servers.append(read.path.removeprefix(f"{tp} at ").partition(",")[0])
        return read, edges


def fill(brokers: BrokerCluster, topic: str) -> OffsetRange:
    """Create a topic with one partition, led by the first broker, and return the range of its records."""
    brokers.create_topic(topic)
    producer = Producer({"bootstrap.servers": brokers.direct, "batch.size": 2000, "linger.ms": 5})
    for number in range(RECORDS):
        producer.produce(topic, b"%050d" % number)
    assert producer.flush(60) == 0
    return OffsetRange(TopicPartition(topic, 0), 0, RECORDS)


def test_a_range_is_read_from_the_replica_in_the_clients_rack(
    brokers: BrokerCluster, topic: str
) -> None:
    wanted = fill(brokers, topic)
    options = {"client_rack": rack_of(2), "max_partition_fetch_bytes": "20000"}

    with source_of(brokers.servers, **options).fetcher(wanted, "") as fetcher:
        noting = Noting(fetcher)
        rows = list(reading.read_range(noting, wanted, ["offset"]))

    assert [n for one in rows for n in one.column("offset").to_pylist()] == list(range(RECORDS))
    assert set(noting.servers) == {brokers.proxies[2].address}
    assert len(noting.servers) > 5


def test_a_range_is_read_on_from_another_broker_when_the_replica_is_killed(
    brokers: BrokerCluster, topic: str
) -> None:
    wanted = fill(brokers, topic)
    options = {"client_rack": rack_of(3), "max_partition_fetch_bytes": "20000"}

    with source_of(brokers.servers, **options).fetcher(wanted, "") as fetcher:
        noting = Noting(fetcher)
        batches = reading.read_range(noting, wanted, ["offset"])
        found = next(batches).column("offset").to_pylist()
        brokers.kill(3)
        for rows in batches:
            found += rows.column("offset").to_pylist()
    brokers.restart(3)

    assert found == list(range(RECORDS))
    assert noting.servers[0] == brokers.proxies[3].address
    assert noting.servers[-1] == brokers.proxies[1].address


def test_an_offset_out_of_range_is_one_for_the_leader_to_tell(
    brokers: BrokerCluster, topic: str
) -> None:
    tp, _, end = fill(brokers, topic)
    source = source_of(brokers.servers, client_rack=rack_of(2))

    with pytest.raises(OffsetOutOfRangeError, match=f"offset {end + 1} .* 0 to {end}"):
        source.fetch(tp, ReadRange(end + 1, 1))
