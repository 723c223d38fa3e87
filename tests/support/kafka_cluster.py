"""Three brokers that replicate, each behind a proxy: killed, restarted, made slow, leaders moved.

    with BrokerCluster(kafka, folder) as cluster:
        cluster.servers                         # behind the proxies: for the clients under test
        cluster.direct                          # for the test's own clients
        cluster.create_topic("events", partitions=3)
        cluster.move_leaders("events")
        cluster.kill(2); cluster.restart(2); cluster.proxies[2].delay_s = 1.0

The proxies know nothing of traffic among the brokers: a slow broker replicates as fast as the others.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import TopicCollection
from confluent_kafka import TopicPartition as PartitionOf
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec
from kafka import TopicPartition
from kafka.admin import KafkaAdminClient

from tests.support.kafka import START_TIMEOUT_S, Broker, Kafka, Listener, Voter, free_ports
from tests.support.proxies import Proxies, Proxy
from tests.support.waiting import until

NODES = (1, 2, 3)
_SMALL: dict[str, object] = {
    "replica_selector_class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
    # A dead broker is noticed soon, and a leader stays where the test moved it.
    "broker_session_timeout_ms": 3000,
    "broker_heartbeat_interval_ms": 500,
    "auto_leader_rebalance_enable": "false",
    "min_insync_replicas": 2,
    "default_replication_factor": 3,
    "offsets_topic_replication_factor": 3,
    "transaction_state_log_replication_factor": 3,
    "transaction_state_log_min_isr": 2,
    "log_retention_ms": -1,
    "log_cleaner_dedupe_buffer_size": 2**21,
    "num_io_threads": 2,
    "num_network_threads": 2,
    "background_threads": 2,
}


def rack_of(node: int) -> str:
    """Return the rack of a broker; each has its own."""
    return f"rack-{node}"


class BrokerCluster:
    """Three brokers with replication factor 3 and two in-sync replicas at least."""

    def __init__(self, kafka: Kafka, folder: Path) -> None:
        self._opened = contextlib.ExitStack()
        proxies = self._opened.enter_context(Proxies())
        self.proxies: dict[int, Proxy] = {}
        self.brokers: dict[int, Broker] = {}
        voters = [Voter(n, port) for n, port in zip(NODES, free_ports(len(NODES)), strict=True)]
        for n, own in zip(NODES, voters, strict=True):
            proxy = self.proxies[n] = proxies.open()
            listener = Listener("PROXIED", "PLAINTEXT", advertised=proxy.address)
            broker = self.brokers[n] = Broker(
                kafka, folder / f"broker-{n}", voters=[own, *(v for v in voters if v != own)],
                listeners=[listener], memory="256m", broker_rack=rack_of(n), **_SMALL,
            )  # fmt: skip
            proxy.target = broker.addresses["PROXIED"]
        self.servers = ",".join(proxy.address for proxy in self.proxies.values())
        self.direct = ",".join(broker.address for broker in self.brokers.values())

    def __enter__(self) -> Self:
        try:
            for broker in self.brokers.values():
                broker.launch()
            for broker in self.brokers.values():
                broker.wait_until_up()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        for broker in self.brokers.values():
            broker.kill()
        self._opened.close()

    # Faults

    def kill(self, node: int) -> None:
        """Kill a broker, as a machine that fails does."""
        self.brokers[node].kill()

    def stop(self, node: int) -> None:
        """Stop a broker; it hands its leaders over first."""
        self.brokers[node].stop()

    def restart(self, node: int) -> None:
        """Start a broker that is down; on return all replicas are in sync."""
        self.brokers[node].start()
        self.wait_until_in_sync()

    def restart_all_in_turn(self) -> None:
        """Restart one broker after the other, as an operator does."""
        for node in NODES:
            self.stop(node)
            self.restart(node)

    def recover(self) -> None:
        """Undo all faults: brokers are up and in sync, proxies forward at once and have counted nothing."""
        for node, broker in self.brokers.items():
            self.proxies[node].go_on()
            self.proxies[node].forget()
            if not broker.is_running:
                broker.start()
        self.wait_until_in_sync()

    def move_leaders(self, *topics: str) -> None:
        """Move the leader of each partition of topics to the next broker; on return they lead."""
        moved = {
            topic: {p: _next(leader) for p, leader in self.leaders(topic).items()}
            for topic in topics
        }
        self._lead(moved)

    def lead(self, topic: str, wanted: dict[int, int]) -> None:
        """Have these brokers lead these partitions of a topic."""
        self._lead({topic: wanted})

    def _lead(self, wanted: Mapping[str, Mapping[int, int]]) -> None:
        orders = {
            TopicPartition(topic, p): [n, *(other for other in NODES if other != n)]
            for topic, nodes in wanted.items()
            for p, n in nodes.items()
        }
        with self._admin() as admin:
            admin.alter_partition_reassignments(orders)
            until(lambda: not admin.list_partition_reassignments())
            admin.elect_leaders(
                0, {topic: sorted(nodes) for topic, nodes in wanted.items()}, raise_errors=False
            )  # preferred; those that lead already are errors
        for topic, nodes in wanted.items():
            until(lambda topic=topic, nodes=nodes: nodes.items() <= self.leaders(topic).items())

    # State

    def leaders(self, topic: str) -> dict[int, int]:
        """Return the leader of each partition, -1 for none."""
        return {p.id: p.leader.id if p.leader else -1 for p in self._described(topic)}

    def ends(self, topic: str) -> list[int]:
        """Return the end of each partition."""
        client = self._client()
        count = len(client.list_topics(topic, timeout=START_TIMEOUT_S).topics[topic].partitions)
        wanted = {PartitionOf(topic, p): OffsetSpec.latest() for p in range(count)}
        found = client.list_offsets(wanted)
        ends = {one.partition: f.result(START_TIMEOUT_S).offset for one, f in found.items()}
        return [ends[p] for p in range(count)]

    def wait_until_in_sync(self) -> None:
        """Wait until all replicas of all topics are in sync."""
        until(self._in_sync, timeout_s=START_TIMEOUT_S)

    def _in_sync(self) -> bool:
        listed = self._client().list_topics(timeout=START_TIMEOUT_S)
        partitions = [p for topic in listed.topics.values() for p in topic.partitions.values()]
        return len(listed.brokers) == len(NODES) and all(
            len(p.isrs) == len(NODES) and p.leader >= 0 for p in partitions
        )

    def create_topic(self, name: str, *, partitions: int = 1, **config: object) -> None:
        """Create a topic; partition p is led by the broker p of `NODES`, and on from the first."""
        settings = {key.replace("_", "."): str(value) for key, value in config.items()}
        client = self._client()
        for future in client.create_topics(
            [NewTopic(name, partitions, len(NODES), config=settings)]
        ).values():
            future.result(timeout=START_TIMEOUT_S)
        until(lambda: name in client.list_topics(timeout=10).topics)
        self.wait_until_in_sync()
        self.lead(name, {p: NODES[p % len(NODES)] for p in range(partitions)})

    def files(self, topic: str) -> Iterator[Path]:
        """Yield the segments of one replica of each partition, of broker 1."""
        for folder in sorted(self.brokers[1].log_dir.glob(f"{topic}-*")):
            yield from sorted(folder.glob("*.log"))

    def _described(self, topic: str) -> list[Any]:
        client = self._client()
        (future,) = client.describe_topics(TopicCollection([topic])).values()
        return list(future.result(timeout=START_TIMEOUT_S).partitions)

    def _client(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.direct, "log_level": 0})

    @contextlib.contextmanager
    def _admin(self) -> Iterator[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            admin = KafkaAdminClient(bootstrap_servers=self.direct.split(","))
            try:
                yield admin
            finally:
                admin.close()


def _next(node: int) -> int:
    return NODES[(NODES.index(node) + 1) % len(NODES)] if node in NODES else NODES[0]
