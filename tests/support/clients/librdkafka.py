"""librdkafka, through confluent-kafka."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import (
    OFFSET_END,
    TIMESTAMP_NOT_AVAILABLE,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicPartition,
    admin,
)

from tests.support.clients.interface import (
    SESSION_TIMEOUT_MS,
    TIMEOUT_S,
    ByPartition,
    Client,
    Described,
    Leaving,
    Member,
    not_internal,
    python_member,
    tell,
)
from tests.support.reference import Record


class Librdkafka(Client):
    name = "confluent-kafka"

    def produce(
        self, topic: str, records: ByPartition, *, codec: str = "none", idempotent: bool = False
    ) -> None:
        errors: list[Any] = []
        settings = {"compression.type": codec, "enable.idempotence": idempotent, "acks": "all"}
        producer = Producer(
            {"bootstrap.servers": self.address, "batch.size": 3000, "linger.ms": 5} | settings
        )
        for partition, some in records.items():
            for record in some:
                producer.produce(
                    topic, record.value, record.key, partition, timestamp=record.timestamp,
                    headers=list(record.headers),
                    on_delivery=lambda error, _: errors.append(error) if error else None,
                )  # fmt: skip
        assert producer.flush(TIMEOUT_S) == 0
        assert errors == []

    def read(self, topic: str, starts: Mapping[int, int]) -> dict[int, list[Record]]:
        found: dict[int, list[Record]] = {p: [] for p in starts}
        unfinished = set(starts)
        consumer = self._consumer(enable_partition_eof=True, check_crcs=True)
        try:
            consumer.assign([TopicPartition(topic, p, offset) for p, offset in starts.items()])
            deadline = time.monotonic() + TIMEOUT_S
            while unfinished:
                assert time.monotonic() < deadline, f"partitions {unfinished} have no end"
                for message in consumer.consume(1000, timeout=0.1):
                    if message.error():
                        assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                        unfinished.discard(message.partition())
                    else:
                        found[message.partition()].append(_record(message))
        finally:
            consumer.close()
        return found

    def offsets_by_time(self, topic: str, partitions: int, time_ms: int) -> dict[int, int | None]:
        consumer = self._consumer()
        wanted = [TopicPartition(topic, p, time_ms) for p in range(partitions)]
        found = consumer.offsets_for_times(wanted, timeout=TIMEOUT_S)
        consumer.close()
        return {one.partition: None if one.offset == OFFSET_END else one.offset for one in found}

    def _consumer(self, **options: Any) -> Consumer:
        settings = {"group.id": "none", "enable.auto.commit": False, "auto.offset.reset": "error"}
        given = {name.replace("_", "."): value for name, value in options.items()}
        return Consumer({"bootstrap.servers": self.address} | settings | given)

    def member(
        self,
        group: str,
        topic: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        instance_id: str | None = None,
    ) -> Member:
        return python_member(__name__, self.address, group, topic, session_timeout_ms, instance_id)

    def _admin(self) -> admin.AdminClient:
        return admin.AdminClient({"bootstrap.servers": self.address})

    def topics(self) -> set[str]:
        return not_internal(self._admin().list_topics(timeout=TIMEOUT_S).topics)

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        client = self._admin()
        _wait(client.create_topics([admin.NewTopic(topic, partitions, 1, config=dict(config))]))

    def describe(self, topic: str, keys: Iterable[str]) -> Described:
        client = self._admin()
        resource = admin.ConfigResource(admin.ResourceType.TOPIC, topic)
        (config,) = _wait(client.describe_configs([resource]))
        found = client.list_topics(topic, timeout=TIMEOUT_S).topics[topic]
        return Described(len(found.partitions), {key: config[key].value for key in keys})

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        client = self._admin()
        set_ = admin.AlterConfigOpType.SET
        entries = [
            admin.ConfigEntry(key, value, incremental_operation=set_)
            for key, value in config.items()
        ]
        resource = admin.ConfigResource(
            admin.ResourceType.TOPIC, topic, incremental_configs=entries
        )
        _wait(client.incremental_alter_configs([resource]))

    def grow(self, topic: str, partitions: int) -> None:
        client = self._admin()
        _wait(client.create_partitions([admin.NewPartitions(topic, partitions)]))

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        client = self._admin()
        _wait(client.delete_records([TopicPartition(topic, p, o) for p, o in before.items()]))

    def delete_topic(self, topic: str) -> None:
        client = self._admin()
        _wait(client.delete_topics([topic]))


def _wait(futures: Mapping[Any, Any]) -> list[Any]:
    return [future.result(timeout=TIMEOUT_S) for future in futures.values()]


def _record(message: Any) -> Record:
    kind, timestamp = message.timestamp()
    return Record(
        message.offset(),
        -1 if kind == TIMESTAMP_NOT_AVAILABLE else timestamp,
        message.key(),
        message.value(),
        tuple(message.headers() or ()),
    )


def main(
    address: str, group: str, topic: str, session_timeout_ms: str, instance_id: str | None = None
) -> None:
    """Run as one member."""
    leaving = Leaving()
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": group,
            "session.timeout.ms": int(session_timeout_ms),
            "heartbeat.interval.ms": 500,
            "auto.offset.reset": "earliest",
            "reconnect.backoff.max.ms": 200,
            "enable.auto.commit": False,
        }
        | ({"group.instance.id": instance_id} if instance_id else {})
    )
    consumer.subscribe(
        [topic],
        on_assign=lambda _, some: tell(assigned=[one.partition for one in some]),
        on_revoke=lambda _, some: tell(revoked=[one.partition for one in some]),
    )
    while not leaving.asked:
        messages = consumer.consume(100, timeout=0.1)
        for message in messages:
            assert not message.error(), message.error()
            tell(
                partition=message.partition(), offset=message.offset(),
                value=message.value().decode(),
            )  # fmt: skip
        if messages:
            # If a commit fails because the server goes away, the next one makes up for it.
            with contextlib.suppress(KafkaException):
                consumer.commit(asynchronous=False)
    consumer.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
