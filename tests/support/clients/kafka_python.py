"""kafka-python."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import kafka
from kafka.admin import ConfigResource, KafkaAdminClient, NewPartitions, NewTopic

from tests.support.clients.interface import (
    SESSION_TIMEOUT_MS,
    TIMEOUT_S,
    ByPartition,
    Client,
    Described,
    Leaving,
    Member,
    Rebalances,
    not_internal,
    python_member,
    record_of,
    tell_records,
    with_key_or_value,
)
from tests.support.reference import Record


class KafkaPython(Client):
    name = "kafka-python"

    def as_sent(self, records: Sequence[Record]) -> list[Record]:
        # It refuses null headers too.
        return [
            one._replace(headers=tuple((name, value or b"") for name, value in one.headers))
            for one in with_key_or_value(records)
        ]

    def produce(
        self, topic: str, records: ByPartition, *, codec: str = "none", idempotent: bool = False
    ) -> None:
        producer = kafka.KafkaProducer(
            bootstrap_servers=self.address,
            compression_type=None if codec == "none" else codec,
            enable_idempotence=idempotent,
            acks="all",
            batch_size=3000,
            linger_ms=5,
        )
        with contextlib.closing(producer):
            sent = [
                producer.send(
                    topic, one.value, one.key, list(one.headers), partition, one.timestamp
                )
                for partition, some in records.items()
                for one in some
            ]
            for future in sent:
                future.get(TIMEOUT_S)

    def read(self, topic: str, starts: Mapping[int, int]) -> dict[int, list[Record]]:
        found: dict[int, list[Record]] = {p: [] for p in starts}
        consumer = kafka.KafkaConsumer(bootstrap_servers=self.address, auto_offset_reset="none")
        places = {p: kafka.TopicPartition(topic, p) for p in starts}
        with contextlib.closing(consumer):
            consumer.assign([*places.values()])
            for partition, offset in starts.items():
                consumer.seek(places[partition], offset)
            ends = consumer.end_offsets([*places.values()])
            while any(consumer.position(one) < ends[one] for one in places.values()):
                for some in consumer.poll(timeout_ms=1000).values():
                    for one in some:
                        found[one.partition].append(record_of(one))
        return found

    def offsets_by_time(self, topic: str, partitions: int, time_ms: int) -> dict[int, int | None]:
        with contextlib.closing(kafka.KafkaConsumer(bootstrap_servers=self.address)) as consumer:
            found = consumer.offsets_for_times(
                {kafka.TopicPartition(topic, p): time_ms for p in range(partitions)}
            )
        return {place.partition: one and one.offset for place, one in found.items()}

    def member(
        self,
        group: str,
        topic: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        instance_id: str | None = None,
    ) -> Member:
        return python_member(__name__, self.address, group, topic, session_timeout_ms, instance_id)

    def _ask(self, method: str, *arguments: Any, **named: Any) -> Any:
        with contextlib.closing(KafkaAdminClient(bootstrap_servers=self.address)) as client:
            return getattr(client, method)(*arguments, **named)

    def topics(self) -> set[str]:
        return not_internal(self._ask("list_topics"))

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        self._ask("create_topics", [NewTopic(topic, partitions, 1, topic_configs=dict(config))])

    def describe(self, topic: str, keys: Iterable[str]) -> Described:
        (found,) = self._ask("describe_topics", [topic])
        resource = ConfigResource("TOPIC", topic)
        config = self._ask("describe_configs", [resource], config_filter="all")["topic"][topic]
        return Described(len(found["partitions"]), {key: config[key]["value"] for key in keys})

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        self._ask("alter_configs", [ConfigResource("TOPIC", topic, dict(config))])

    def grow(self, topic: str, partitions: int) -> None:
        self._ask("create_partitions", {topic: NewPartitions(partitions)})

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        wanted = {kafka.TopicPartition(topic, p): offset for p, offset in before.items()}
        self._ask("delete_records", wanted)

    def delete_topic(self, topic: str) -> None:
        self._ask("delete_topics", [topic])


class _Listener(Rebalances, kafka.ConsumerRebalanceListener):  # type: ignore[misc]
    pass


def main(
    address: str, group: str, topic: str, session_timeout_ms: str, instance_id: str | None = None
) -> None:
    """Run as one member."""
    leaving = Leaving()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        group_instance_id=instance_id,
        session_timeout_ms=int(session_timeout_ms),
        heartbeat_interval_ms=500,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.subscribe([topic], listener=_Listener())
    while not leaving.asked:
        found = consumer.poll(timeout_ms=100)
        tell_records(found)
        if found:
            consumer.commit()
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
