"""librdkafka's loop: `python -m tests.support.transforming.by_librdkafka ADDRESS GROUP SOURCE TARGET ID`."""

from __future__ import annotations

import faulthandler
import random
import signal
import sys

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)

_TIMEOUT_S = 30.0


def main(address: str, group: str, source: str, target: str, transactional_id: str) -> None:
    common = {
        "bootstrap.servers": address,
        "reconnect.backoff.max.ms": 200,
        # By default librdkafka drops the only broker when that goes down, and send_offsets_to_transaction then waits
        # for ever for the one that was dropped, whatever its time-out says: its issues 5511 and 5456.
        "metadata.recovery.strategy": "none",
    }
    producer = Producer(
        common
        | {
            "transactional.id": transactional_id,
            "transaction.timeout.ms": 10_000,
            "linger.ms": 1,
        }
    )
    consumer = Consumer(
        common
        | {
            "group.id": group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 500,
            "fetch.wait.max.ms": 100,
        }
    )
    stopped, rebalanced = [], []
    consumer.subscribe([source], on_assign=lambda *_: rebalanced.append(1))
    signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
    _until_done(lambda: producer.init_transactions(_TIMEOUT_S))
    while not stopped:
        read = [one for one in consumer.consume(100, timeout=0.2) if not one.error()]
        if rebalanced:
            # What one call returns may be from before a rebalance, and of partitions that others have by now.
            rebalanced.clear()
            _rewind(consumer)
            continue
        if not read:
            continue
        try:
            if random.random() < 0.2:
                producer.begin_transaction()
                _send(producer, target, "aborted", read)
                producer.flush(_TIMEOUT_S)
                _until_done(lambda: producer.abort_transaction(_TIMEOUT_S))
            producer.begin_transaction()
            _send(producer, target, "done", read)
            positions = consumer.position(consumer.assignment())
            offsets = [one for one in positions if one.offset >= 0]
            metadata = consumer.consumer_group_metadata()
            _until_done(
                lambda offsets=offsets, metadata=metadata: producer.send_offsets_to_transaction(  # type: ignore[misc]
                    offsets, metadata, _TIMEOUT_S
                )
            )
            _until_done(lambda: producer.commit_transaction(_TIMEOUT_S))
        except KafkaException as failed:
            if not failed.args[0].txn_requires_abort():
                raise
            print("aborted after", failed, file=sys.stderr)
            _until_done(lambda: producer.abort_transaction(_TIMEOUT_S))
            _rewind(consumer)
    consumer.close()


def _send(producer: Producer, target: str, word: str, read: list[Message]) -> None:
    for one in read:
        value = b"%s %s" % (word.encode(), one.value())
        producer.produce(target, value, partition=one.partition())
    producer.poll(0)


def _until_done(call) -> None:  # type: ignore[no-untyped-def]
    while True:
        try:
            call()
            return
        except KafkaException as failed:
            if not failed.args[0].retriable():
                raise


def _rewind(consumer: Consumer) -> None:
    """Go back to what the group has committed, in the partitions that this member still has."""
    for one in consumer.committed(consumer.assignment(), _TIMEOUT_S):
        offset = one.offset if one.offset >= 0 else OFFSET_BEGINNING
        consumer.seek(TopicPartition(one.topic, one.partition, offset))


if __name__ == "__main__":
    faulthandler.register(signal.SIGQUIT)
    try:
        main(*sys.argv[1:])
    except KafkaException as error:
        print("ended after", error, file=sys.stderr)
        sys.exit(3)
