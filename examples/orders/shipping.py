"""A service: it sends a parcel for each invoice, and puts aside what it cannot read."""

import json
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException, Message, Producer


def ship(
    servers: str,
    is_done: Callable[[], bool],
    *,
    invoices: str = "invoices",
    parcels: str = "parcels",
    rejected: str = "rejected",
    group: str = "shipping",
) -> None:
    """Read invoices and write parcels, until `is_done()`; an invoice is done once its parcel is stored."""
    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    producer = Producer({"bootstrap.servers": servers, "enable.idempotence": True, "linger.ms": 0})
    consumer.subscribe([invoices])
    try:
        while not is_done():
            message = consumer.poll(0.1)
            if message is None:
                continue
            if message.error():
                raise KafkaException(message.error())
            topic, value = _outcome(message, parcels, rejected)
            producer.produce(topic, value, message.key())
            if producer.flush(30):
                raise TimeoutError(f"no answer from {servers} for 30 s")
            consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()


def _outcome(message: Message, parcels: str, rejected: str) -> tuple[str, bytes | None]:
    try:
        invoice = json.loads(message.value())
        return parcels, json.dumps({"id": invoice["id"], "to": message.key().decode()}).encode()
    except (ValueError, KeyError, TypeError, AttributeError):
        return rejected, message.value()
