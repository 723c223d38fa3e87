"""aiokafka."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import aiokafka
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

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

_Result = TypeVar("_Result")


class AioKafka(Client):
    name = "aiokafka"

    def as_sent(self, records: Sequence[Record]) -> list[Record]:
        return with_key_or_value(records)

    def produce(
        self, topic: str, records: ByPartition, *, codec: str = "none", idempotent: bool = False
    ) -> None:
        async def produce() -> None:
            producer = aiokafka.AIOKafkaProducer(
                bootstrap_servers=self.address,
                compression_type=None if codec == "none" else codec,
                enable_idempotence=idempotent,
                acks="all",
                max_batch_size=3000,
                linger_ms=5,
            )
            async with producer:
                sent = [
                    await producer.send(
                        topic, record.value, record.key, partition, record.timestamp,
                        list(record.headers),
                    )
                    for partition, some in records.items()
                    for record in some
                ]  # fmt: skip
                await asyncio.gather(*sent)

        _run(produce())

    def read(self, topic: str, starts: Mapping[int, int]) -> dict[int, list[Record]]:
        async def read() -> dict[int, list[Record]]:
            found: dict[int, list[Record]] = {p: [] for p in starts}
            places = {p: aiokafka.TopicPartition(topic, p) for p in starts}
            consumer = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=self.address, auto_offset_reset="none"
            )
            async with consumer:
                consumer.assign([*places.values()])
                for partition, offset in starts.items():
                    consumer.seek(places[partition], offset)
                ends = await consumer.end_offsets([*places.values()])
                positions = dict(starts)
                while any(positions[p] < ends[places[p]] for p in starts):
                    for some in (await consumer.getmany(timeout_ms=1000)).values():
                        for one in some:
                            found[one.partition].append(record_of(one))
                            positions[one.partition] = one.offset + 1
            return found

        return _run(read())

    def offsets_by_time(self, topic: str, partitions: int, time_ms: int) -> dict[int, int | None]:
        async def look() -> dict[int, int | None]:
            async with aiokafka.AIOKafkaConsumer(bootstrap_servers=self.address) as consumer:
                found = await consumer.offsets_for_times(
                    {aiokafka.TopicPartition(topic, p): time_ms for p in range(partitions)}
                )
            return {place.partition: one and one.offset for place, one in found.items()}

        return _run(look())

    def member(
        self,
        group: str,
        topic: str,
        *,
        session_timeout_ms: int = SESSION_TIMEOUT_MS,
        instance_id: str | None = None,
    ) -> Member:
        return python_member(__name__, self.address, group, topic, session_timeout_ms, instance_id)

    @contextlib.asynccontextmanager
    async def _admin(self) -> AsyncIterator[Any]:
        client = AIOKafkaAdminClient(bootstrap_servers=self.address)
        await client.start()
        try:
            yield client
        finally:
            await client.close()

    def _ask(self, method: str, *arguments: Any) -> Any:
        async def ask() -> Any:
            async with self._admin() as client:
                return await getattr(client, method)(*arguments)

        return _run(ask())

    def topics(self) -> set[str]:
        return not_internal(self._ask("list_topics"))

    def create_topic(self, topic: str, partitions: int, config: Mapping[str, str]) -> None:
        wanted = NewTopic(topic, partitions, 1, topic_configs=dict(config))
        _ensure(self._ask("create_topics", [wanted]).topic_errors)

    def describe(self, topic: str, keys: Iterable[str]) -> Described:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic)
        (answer,) = self._ask("describe_configs", [resource])
        ((error, message, _, _, entries),) = answer.resources
        assert not error, message
        config = {entry[0]: entry[1] for entry in entries}
        (found,) = self._ask("describe_topics", [topic])
        return Described(len(found["partitions"]), {key: config[key] for key in keys})

    def alter(self, topic: str, config: Mapping[str, str]) -> None:
        resource = ConfigResource(ConfigResourceType.TOPIC, topic, dict(config))
        (answer,) = self._ask("alter_configs", [resource])
        ((error, message, _, _),) = answer.resources
        assert not error, message

    def grow(self, topic: str, partitions: int) -> None:
        self._ask("create_partitions", {topic: NewPartitions(partitions)})

    def delete_records(self, topic: str, before: Mapping[int, int]) -> None:
        self._ask(
            "delete_records",
            {aiokafka.TopicPartition(topic, p): RecordsToDelete(o) for p, o in before.items()},
        )

    def delete_topic(self, topic: str) -> None:
        _ensure(self._ask("delete_topics", [topic]).topic_error_codes)


def _run(work: Coroutine[Any, Any, _Result]) -> _Result:
    return asyncio.run(asyncio.wait_for(work, TIMEOUT_S))


def _ensure(errors: Iterable[Any]) -> None:
    assert [one[1] for one in errors] == [0], errors


class _Listener(Rebalances, aiokafka.ConsumerRebalanceListener):  # type: ignore[misc]
    pass


async def _member(
    address: str, group: str, topic: str, session_timeout_ms: str, instance_id: str | None
) -> None:
    leaving = Leaving()
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=address,
        group_id=group,
        group_instance_id=instance_id,
        session_timeout_ms=int(session_timeout_ms),
        heartbeat_interval_ms=500,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
    )
    consumer.subscribe([topic], listener=_Listener())
    async with consumer:
        while not leaving.asked:
            found = await consumer.getmany(timeout_ms=100)
            tell_records(found)
            if found:
                await consumer.commit()


def main(
    address: str, group: str, topic: str, session_timeout_ms: str, instance_id: str | None = None
) -> None:
    """Run as one member."""
    asyncio.run(_member(address, group, topic, session_timeout_ms, instance_id))


if __name__ == "__main__":
    main(*sys.argv[1:])
